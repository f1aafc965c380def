//! Finds credentials for web servers:
//!
//! - bearer tokens (RFC 6750), by WLCG bearer token discovery
//! - passwords by host, in `~/.netrc`, which `ftp` and `curl` also use
//! - client certificates and X.509 proxies, in PEM files that contain a certificate chain and a key
//!
//! Secrets are read only from files that belong to the user and that no other user can read.
//!
//! Credentials are sent only to the host that the caller named, never to the target of a redirection. Each
//! [`HttpSession`](super::vector::HttpSession) has its own credentials and connections.

use std::fmt;
use std::fs::OpenOptions;
use std::io::{ErrorKind as IoKind, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use fordway_store::{Error, ErrorKind, Result};
use rustls::InconsistentKeys;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

use super::{Origin, ProxySettings};

/// The credentials of a session. Credential files are read when they are needed: token files whenever a file is opened,
/// certificate files at the first TLS connection.
#[derive(Clone, Default)]
pub struct SessionCredentials {
    /// The sources of bearer tokens, tried in order.
    bearers: Vec<BearerTokenSource>,
    netrc: Option<SecretFilePath>,
    /// The client certificates, tried in order.
    certificates: Vec<CertificateFiles>,
    /// The value of the `Authorization` header that the caller has chosen. This value overrides passwords and tokens.
    authorization: Option<String>,
    goes_unprotected: bool,
}

impl SessionCredentials {
    /// Creates a value without credentials.
    pub fn none() -> Self {
        SessionCredentials::default()
    }

    /// Returns the credentials that the environment specifies, and the credentials in the usual files. Bearer tokens:
    /// `BEARER_TOKEN`, `BEARER_TOKEN_FILE`, `$XDG_RUNTIME_DIR/bt_u$UID` and `/tmp/bt_u$UID` (WLCG bearer token
    /// discovery). Passwords: `NETRC` or `~/.netrc`. Certificates: `X509_USER_PROXY`, `X509_USER_CERT` with
    /// `X509_USER_KEY`, and `/tmp/x509up_u$UID`. Does not read any file yet.
    pub fn discover() -> Self {
        SessionCredentials::resolve(&|name| std::env::var(name).ok())
    }

    /// Like [`SessionCredentials::discover`], but calls `variable` for the value of each environment variable.
    pub fn resolve(variable: &dyn Fn(&str) -> Option<String>) -> Self {
        let get = |name: &str| variable(name).filter(|value| !value.is_empty());
        let user = fordway_sys::user_id();
        let usual_netrc = || get("HOME").map(|home| SecretFilePath::Usual(Path::new(&home).join(".netrc")));
        SessionCredentials {
            bearers: bearer_tokens(&get, user),
            netrc: get("NETRC").map(|path| SecretFilePath::Named(path.into())).or_else(usual_netrc),
            certificates: certificate_files(&get, user),
            authorization: None,
            goes_unprotected: false,
        }
    }

    /// Tries this bearer token before all others.
    pub fn with_bearer_token(mut self, token: impl Into<String>) -> Self {
        self.bearers.insert(0, BearerTokenSource::Token(token.into()));
        self
    }

    /// Tries this client certificate before all others. `chain` and `key` are PEM files, and `chain` begins with the
    /// client's certificate. `chain` and `key` may be the same file, as with an X.509 proxy.
    pub fn with_certificate(mut self, chain: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        self.certificates.insert(0, CertificateFiles::named(chain.into(), key.into()));
        self
    }

    /// Sends this value of `Authorization` instead of any password or token. Unlike a token, the value is never passed
    /// on to the other server of a third-party copy.
    pub fn with_authorization(mut self, value: impl Into<String>) -> Self {
        self.authorization = Some(value.into());
        self
    }

    /// Sends this user and password to every host, instead of any other password or token.
    pub fn with_login(self, user: impl Into<String>, password: impl Into<String>) -> Self {
        let login = UserLogin { user: user.into(), password: password.into() };
        self.with_authorization(login.basic())
    }

    /// Also sends tokens and passwords over plain HTTP, where anyone on the network path can read them. By default,
    /// they are sent over plain HTTP only to this machine.
    pub fn over_plain_http(mut self) -> Self {
        self.goes_unprotected = true;
        self
    }

    /// Returns whether there are no credentials.
    pub fn is_none(&self) -> bool {
        self.authorization.is_none()
            && self.bearers.is_empty()
            && self.netrc.is_none()
            && self.certificates.is_empty()
    }

    /// Returns whether tokens and passwords are withheld from `origin`, because others could read them on the network
    /// path. Without TLS, a proxy could read them even if the origin is this machine.
    pub(super) fn is_withheld_from(&self, origin: &Origin, proxies: &ProxySettings) -> bool {
        let is_on_the_way = || !is_this_machine(origin) || proxies.name_of(origin).is_some();
        !(self.is_none() || origin.tls || self.goes_unprotected) && is_on_the_way()
    }

    /// Returns the value of `Authorization` for `origin`: the value that the caller has chosen, else the password for
    /// the origin's host in netrc, else the first token found. Errors: `AccessDenied` if a file with a secret can be
    /// read by other users, or if a file that the caller or the environment specifies cannot be opened or belongs to
    /// another user; `InvalidArgument` if such a specified file is missing, or if the content of any file is invalid;
    /// `Io` if reading fails.
    pub(super) fn authorization(&self, origin: &Origin, proxies: &ProxySettings) -> Result<Option<String>> {
        match &self.authorization {
            Some(_) if self.is_withheld_from(origin, proxies) => Ok(None),
            Some(chosen) => Ok(Some(chosen.clone())),
            None => self.found_authorization(origin, proxies),
        }
    }

    /// Like [`SessionCredentials::authorization`], but ignores the value that the caller has chosen.
    pub(super) fn found_authorization(
        &self,
        origin: &Origin,
        proxies: &ProxySettings,
    ) -> Result<Option<String>> {
        if self.is_withheld_from(origin, proxies) {
            return Ok(None);
        }
        if let Some(place) = &self.netrc
            && let Some(text) = place.read_text()?
            && let Some(login) = find_login(&text, &origin.host)
        {
            return Ok(Some(login.basic()));
        }
        for bearer in &self.bearers {
            if let Some(token) = bearer.token()? {
                return Ok(Some(format!("Bearer {token}")));
            }
        }
        Ok(None)
    }

    /// Returns the certificate and key, if there are any. Errors: as for [`SessionCredentials::authorization`].
    pub(super) fn identity(&self) -> Result<Option<ClientCertificate>> {
        for files in &self.certificates {
            if let Some(identity) = files.load()? {
                return Ok(Some(identity));
            }
        }
        Ok(None)
    }
}

/// Shows the sources of secrets, but not the secrets themselves.
impl fmt::Debug for SessionCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials")
            .field("bearers", &self.bearers.len())
            .field("netrc", &self.netrc)
            .field("certificates", &self.certificates)
            .finish_non_exhaustive()
    }
}

fn is_this_machine(origin: &Origin) -> bool {
    let address = origin.host.parse::<std::net::IpAddr>();
    origin.host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

/// The source of a bearer token: the token itself, or a file that contains it.
#[derive(Clone)]
enum BearerTokenSource {
    Token(String),
    File(SecretFilePath),
}

/// Returns the sources of tokens, in search order. The search ends at the first source that the environment specifies.
fn bearer_tokens(get: &dyn Fn(&str) -> Option<String>, user: u32) -> Vec<BearerTokenSource> {
    if let Some(token) = get("BEARER_TOKEN") {
        return vec![BearerTokenSource::Token(token)];
    }
    if let Some(path) = get("BEARER_TOKEN_FILE") {
        return vec![BearerTokenSource::File(SecretFilePath::Named(path.into()))];
    }
    let directories = get("XDG_RUNTIME_DIR").into_iter().chain(["/tmp".to_owned()]);
    let usual = |directory: String| SecretFilePath::Usual(Path::new(&directory).join(format!("bt_u{user}")));
    directories.map(|directory| BearerTokenSource::File(usual(directory))).collect()
}

impl BearerTokenSource {
    /// Returns the token, if it exists. Errors: as for [`SecretFilePath::read_text`]; `InvalidArgument` if the text is
    /// not a token.
    fn token(&self) -> Result<Option<String>> {
        let (token, from) = match self {
            BearerTokenSource::Token(token) => (token.clone(), "the bearer token".to_owned()),
            BearerTokenSource::File(place) => match place.read_text()? {
                Some(text) => (text, place.path().display().to_string()),
                None => return Ok(None),
            },
        };
        let token = token.trim();
        if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            let detail = format!("{from} is not a token; it must be one word of ASCII characters");
            return Err(Error::new(ErrorKind::InvalidArgument, detail));
        }
        Ok(Some(token.to_owned()))
    }
}

/// A user name and password for HTTP Basic authentication.
#[derive(Debug, Default, PartialEq, Eq)]
struct UserLogin {
    user: String,
    password: String,
}

impl UserLogin {
    /// Returns the value of `Authorization` (RFC 7617).
    fn basic(&self) -> String {
        format!("Basic {}", STANDARD.encode(format!("{}:{}", self.user, self.password)))
    }
}

/// Returns the login of the first entry for `host`. The `default` entry is ignored, because it would disclose a
/// password to every server.
fn find_login(text: &str, host: &str) -> Option<UserLogin> {
    let mut words = netrc_words(text);
    while let Some(word) = words.next() {
        if word == "machine" && words.next().is_some_and(|name| name.eq_ignore_ascii_case(host)) {
            return Some(login_entry(&mut words));
        }
    }
    None
}

fn login_entry(words: &mut impl Iterator<Item = String>) -> UserLogin {
    let mut login = UserLogin::default();
    while let Some(word) = words.next() {
        match word.as_str() {
            "login" => login.user = words.next().unwrap_or_default(),
            "password" => login.password = words.next().unwrap_or_default(),
            "account" => drop(words.next()),
            _ => break,
        }
    }
    login
}

/// Returns the words outside comments and macros. A macro ends at an empty line.
fn netrc_words(text: &str) -> impl Iterator<Item = String> {
    let mut is_macro = false;
    let lines = text.lines().filter(move |line| {
        is_macro = line.trim_start().starts_with("macdef") || (is_macro && !line.trim().is_empty());
        !is_macro && !line.trim_start().starts_with('#')
    });
    lines.flat_map(|line| {
        let mut rest = line;
        std::iter::from_fn(move || {
            let (word, after) = next_word(rest.trim_start())?;
            rest = after;
            Some(word)
        })
    })
}

/// Returns the first word, and the text after it. As in curl, a word in quotes may contain spaces, and escapes begin
/// with a backslash.
fn next_word(text: &str) -> Option<(String, &str)> {
    let plain = || {
        let (word, rest) = text.split_at(text.find(char::is_whitespace).unwrap_or(text.len()));
        (!word.is_empty()).then(|| (word.to_owned(), rest))
    };
    text.strip_prefix('"').and_then(quoted_word).or_else(plain)
}

/// Returns the text up to the closing quote, with its escapes replaced, and the text after the quote. Returns `None` if
/// there is no closing quote.
fn quoted_word(text: &str) -> Option<(String, &str)> {
    let (mut word, mut letters) = (String::new(), text.char_indices());
    loop {
        word.push(match letters.next()? {
            (at, '"') => return Some((word, &text[at + 1..])),
            (_, '\\') => match letters.next()?.1 {
                'n' => '\n',
                'r' => '\r',
                't' => '\t',
                other => other,
            },
            (_, letter) => letter,
        });
    }
}

/// The certificate and key presented to servers that request one.
pub(crate) type ClientCertificate = Arc<CertifiedKey>;

/// The files of a certificate and its key.
#[derive(Clone, Debug)]
struct CertificateFiles {
    /// The PEM file with the certificate chain: the client's certificate, then the intermediate certificates. At the
    /// usual path, this file also contains the key.
    chain: PathBuf,
    key: SecretFilePath,
}

/// Returns the files in which to look for certificates. The search ends at files that the environment specifies.
fn certificate_files(get: &dyn Fn(&str) -> Option<String>, user: u32) -> Vec<CertificateFiles> {
    if let Some(proxy) = get("X509_USER_PROXY") {
        return vec![CertificateFiles::named(proxy.clone().into(), proxy.into())];
    }
    if let Some(chain) = get("X509_USER_CERT") {
        let key = get("X509_USER_KEY").unwrap_or_else(|| chain.clone());
        return vec![CertificateFiles::named(chain.into(), key.into())];
    }
    let proxy = PathBuf::from(format!("/tmp/x509up_u{user}"));
    vec![CertificateFiles { chain: proxy.clone(), key: SecretFilePath::Usual(proxy) }]
}

impl CertificateFiles {
    fn named(chain: PathBuf, key: PathBuf) -> Self {
        CertificateFiles { chain, key: SecretFilePath::Named(key) }
    }

    /// Reads the files. Returns `None` if there is no file at the usual path. Errors: as for [`SecretFilePath::read`];
    /// `InvalidArgument` if the files do not contain a certificate and a key.
    fn load(&self) -> Result<Option<ClientCertificate>> {
        let Some(secret) = self.key.read()? else { return Ok(None) };
        let wrong = |path: &std::path::Path, what: &str| {
            Error::new(ErrorKind::InvalidArgument, format!("{} has no {what} in PEM form", path.display()))
        };
        let public = if self.chain == self.key.path() {
            secret.clone()
        } else {
            std::fs::read(&self.chain).map_err(|error| {
                let detail = format!("reading {}", self.chain.display());
                Error::new(ErrorKind::InvalidArgument, detail).caused_by(error)
            })?
        };
        let chain = CertificateDer::pem_slice_iter(&public)
            .collect::<std::result::Result<Vec<_>, _>>()
            .map_err(|error| wrong(&self.chain, "certificate").caused_by(error))?;
        if chain.is_empty() {
            return Err(wrong(&self.chain, "certificate"));
        }
        let key = PrivateKeyDer::from_pem_slice(&secret)
            .map_err(|error| wrong(self.key.path(), "private key").caused_by(error))?;
        let key = rustls::crypto::ring::sign::any_supported_type(&key)
            .map_err(|error| wrong(self.key.path(), "private key of a supported type").caused_by(error))?;
        let identity = CertifiedKey::new(chain, key);
        // Ignore any other error. A proxy certificate has an extension that only grid software understands, so the
        // check fails to parse the certificate.
        if let Err(error @ rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch)) =
            identity.keys_match()
        {
            let (chain, key) = (self.chain.display(), self.key.path().display());
            let detail = format!("the certificate in {chain} does not belong to the private key in {key}");
            return Err(Error::new(ErrorKind::InvalidArgument, detail).caused_by(error));
        }
        Ok(Some(Arc::new(identity)))
    }
}

/// The maximum size, in bytes, of a file with a secret. A larger file cannot be a token, a certificate or a list of
/// passwords.
const BYTES_MAX: u64 = 1 << 20;

/// The path of a file with a secret, and whether the file must exist.
#[derive(Clone, Debug)]
enum SecretFilePath {
    /// A path that the caller or the environment specifies. The file must exist.
    Named(PathBuf),
    /// The usual path. The file may be missing, and in `/tmp` it may belong to another user.
    Usual(PathBuf),
}

impl SecretFilePath {
    fn path(&self) -> &Path {
        let (SecretFilePath::Named(path) | SecretFilePath::Usual(path)) = self;
        path
    }

    /// Returns the content; `None` if the usual path has no file that belongs to the user. Errors: `AccessDenied` if
    /// the file can be read by other users, if it has more than [`BYTES_MAX`] bytes, or if a file that the caller or
    /// the environment specifies cannot be opened or belongs to another user; `InvalidArgument` if such a specified
    /// file is missing; `Io` if reading fails.
    fn read(&self) -> Result<Option<Vec<u8>>> {
        let (path, is_named) = (self.path(), matches!(self, SecretFilePath::Named(_)));
        let failed = |kind, error| Error::new(kind, format!("reading {}", path.display())).caused_by(error);
        // The open must not block if another user has placed a named pipe at the usual path.
        let nonblocking = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
        let file = match OpenOptions::new().read(true).custom_flags(nonblocking).open(path) {
            Ok(file) => file,
            Err(_) if !is_named => return Ok(None),
            Err(error) if error.kind() == IoKind::NotFound => {
                return Err(failed(ErrorKind::InvalidArgument, error));
            }
            Err(error) => return Err(failed(ErrorKind::AccessDenied, error)),
        };
        let about = file.metadata().map_err(|error| failed(ErrorKind::Io, error))?;
        let is_ours = about.uid() == fordway_sys::user_id() && about.is_file();
        match () {
            () if !is_ours && !is_named => {
                tracing::warn!(path = %path.display(), "not used: it belongs to another user");
                return Ok(None);
            }
            () if !is_ours => {
                return Err(refused(path, "does not belong to you; copy it to a file of your own"));
            }
            () if about.mode() & 0o077 != 0 => {
                let why = format!("can be read by other users; run: chmod 600 {}", path.display());
                return Err(refused(path, &why));
            }
            () => {}
        }
        let mut content = Vec::new();
        file.take(BYTES_MAX + 1).read_to_end(&mut content).map_err(|error| failed(ErrorKind::Io, error))?;
        if content.len() as u64 > BYTES_MAX {
            return Err(refused(path, "has more than 1 MiB; name a file that contains only the secret"));
        }
        Ok(Some(content))
    }

    /// Returns the content as a string. Errors: as for [`SecretFilePath::read`]; `InvalidArgument` if the content is
    /// not UTF-8.
    fn read_text(&self) -> Result<Option<String>> {
        let Some(content) = self.read()? else { return Ok(None) };
        let text = String::from_utf8(content).map_err(|error| {
            let detail = format!("{} is not text", self.path().display());
            Error::new(ErrorKind::InvalidArgument, detail).caused_by(error.utf8_error())
        })?;
        Ok(Some(text))
    }
}

fn refused(path: &Path, why: &str) -> Error {
    Error::new(ErrorKind::AccessDenied, format!("{} {why}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use fordway_store::ErrorKind;
    use tempfile::TempDir;

    use super::*;

    fn write(dir: &TempDir, name: &str, text: &str, mode: u32) -> String {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        path.to_str().unwrap().to_owned()
    }

    fn said(variables: &[(&str, &str)], url: &str) -> Result<Option<String>> {
        let variable = |name: &str| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        SessionCredentials::resolve(&variable)
            .authorization(&Origin::parse(url).unwrap().0, &ProxySettings::none())
    }

    #[test]
    fn a_file_that_is_too_large_is_no_secret() {
        let dir = TempDir::new().unwrap();
        for (len, kind) in [(1 << 20, None), ((1 << 20) + 1, Some(ErrorKind::AccessDenied))] {
            let path = write(&dir, &len.to_string(), &"x".repeat(len), 0o600);
            let read = SecretFilePath::Named(path.into()).read();
            assert_eq!(read.err().map(|error| error.kind()), kind, "{len}");
        }
    }

    #[test]
    fn the_nearer_token_wins() {
        let dir = TempDir::new().unwrap();
        let named = write(&dir, "named", " of-the-file\n", 0o600);
        let runtime = dir.path().to_str().unwrap();
        write(&dir, &format!("bt_u{}", fordway_sys::user_id()), "of-the-runtime", 0o400);
        let all = [
            ("BEARER_TOKEN", "of-the-environment"),
            ("BEARER_TOKEN_FILE", &named),
            ("XDG_RUNTIME_DIR", runtime),
        ];
        for (from, token) in [(0, "of-the-environment"), (1, "of-the-file"), (2, "of-the-runtime")] {
            assert_eq!(said(&all[from..], "https://h").unwrap(), Some(format!("Bearer {token}")));
        }
    }

    #[test]
    fn a_password_for_the_host_goes_before_a_token_for_all() {
        let dir = TempDir::new().unwrap();
        let netrc = write(&dir, "netrc", "machine h login me password secret", 0o600);
        let both = [("BEARER_TOKEN", "t"), ("NETRC", netrc.as_str())];
        assert_eq!(said(&both, "https://H:8443").unwrap().as_deref(), Some("Basic bWU6c2VjcmV0"));
        assert_eq!(said(&both, "https://other").unwrap().as_deref(), Some("Bearer t"));
        write(&dir, ".netrc", "machine h login my password own", 0o600);
        let home = [("HOME", dir.path().to_str().unwrap())];
        assert_eq!(said(&home, "https://h").unwrap().as_deref(), Some("Basic bXk6b3du"));
    }

    #[test]
    fn nothing_is_said_where_others_listen() {
        let token = [("BEARER_TOKEN", "t")];
        assert_eq!(said(&token, "http://h").unwrap(), None);
        for url in ["http://127.0.0.1:80", "http://[::1]", "http://localhost", "https://h"] {
            assert_eq!(said(&token, url).unwrap().as_deref(), Some("Bearer t"), "{url}");
        }
        let (origin, _) = Origin::parse("http://h").unwrap();
        let proxies = ProxySettings::resolve(&|name| (name == "http_proxy").then(|| "p".to_owned()));
        let (local, _) = Origin::parse("http://127.0.0.1").unwrap();
        let who = SessionCredentials::none().with_bearer_token("t");
        assert_eq!(who.authorization(&local, &proxies).unwrap(), None, "a proxy is in between");
        let open = SessionCredentials::none().with_bearer_token("t").over_plain_http();
        assert_eq!(open.authorization(&origin, &ProxySettings::none()).unwrap().as_deref(), Some("Bearer t"));
        assert!(!format!("{:?}", SessionCredentials::none().with_bearer_token("secret")).contains("secret"));
    }

    #[test]
    fn what_the_caller_chose_is_sent_and_not_passed_on() {
        let (origin, _) = Origin::parse("https://h").unwrap();
        let (plain, _) = Origin::parse("http://h").unwrap();
        let direct = ProxySettings::none();
        let who = SessionCredentials::none().with_bearer_token("t").with_login("me", "secret");
        assert_eq!(who.authorization(&origin, &direct).unwrap().as_deref(), Some("Basic bWU6c2VjcmV0"));
        assert_eq!(who.found_authorization(&origin, &direct).unwrap().as_deref(), Some("Bearer t"));
        assert_eq!(who.authorization(&plain, &direct).unwrap(), None);
        assert!(!who.is_none() && !format!("{who:?}").contains("bWU6"));
        let alone = SessionCredentials::none().with_authorization("Bearer x").over_plain_http();
        assert_eq!(alone.authorization(&plain, &direct).unwrap().as_deref(), Some("Bearer x"));
        assert_eq!(alone.found_authorization(&origin, &direct).unwrap(), None);
    }

    #[test]
    fn secrets_that_others_can_read_are_refused() {
        let dir = TempDir::new().unwrap();
        let readable = write(&dir, "readable", "t", 0o644);
        let missing = dir.path().join("missing").to_str().unwrap().to_owned();
        for name in ["BEARER_TOKEN_FILE", "NETRC"] {
            for (path, kind) in [(&readable, ErrorKind::AccessDenied), (&missing, ErrorKind::InvalidArgument)]
            {
                let error = said(&[(name, path)], "https://h").unwrap_err();
                assert_eq!(error.kind(), kind, "{error}");
                assert!(error.to_string().contains(path.as_str()), "{error}");
            }
        }
    }

    #[test]
    fn a_token_cannot_end_the_header() {
        for token in ["a b", "a\r\nx: y", "\u{e4}", " "] {
            let error = said(&[("BEARER_TOKEN", token)], "https://h").unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{token:?}");
        }
    }

    #[test]
    fn entries_are_found_by_host() {
        let text = "# machine a login no password no\nmacdef init\nmachine a login macro\n\n\
                    machine b login bob\n  password b#1 account x\nmachine a password pa login ann\n\
                    machine a login second\ndefault login anybody password open";
        let found = |host| find_login(text, host).map(|login| (login.user, login.password));
        assert_eq!(found("B"), Some(("bob".into(), "b#1".into())));
        assert_eq!(found("a"), Some(("ann".into(), "pa".into())));
        assert_eq!(found("c"), None);
        assert_eq!(found("ann"), None);
        let text = r#"machine c login "Anna Bell" password "a \"b\" \\c" account x"#;
        let found = |host| find_login(text, host).map(|login| (login.user, login.password));
        assert_eq!(found("c"), Some(("Anna Bell".into(), r#"a "b" \c"#.into())));
        assert_eq!(find_login("machine d password \"half login l", "d").unwrap().password, "\"half");
    }

    #[test]
    fn a_certificate_with_the_key_of_another_is_refused() {
        let dir = TempDir::new().unwrap();
        let made = || rcgen::generate_simple_self_signed(vec!["me".to_owned()]).unwrap();
        let (one, other) = (made(), made());
        let chain = write(&dir, "chain.pem", &one.cert.pem(), 0o644);
        for (name, pair, kind) in [("own", &one, None), ("other", &other, Some(ErrorKind::InvalidArgument))] {
            let key = write(&dir, name, &pair.signing_key.serialize_pem(), 0o600);
            let variable = |name: &str| match name {
                "X509_USER_CERT" => Some(chain.clone()),
                "X509_USER_KEY" => Some(key.clone()),
                _ => None,
            };
            let loaded = SessionCredentials::resolve(&variable).identity();
            let refused = loaded.err();
            assert_eq!(refused.as_ref().map(Error::kind), kind, "{refused:?}");
            for path in refused.iter().flat_map(|_| [&chain, &key]) {
                assert!(refused.as_ref().unwrap().to_string().contains(path.as_str()), "{refused:?}");
            }
        }
    }
}
