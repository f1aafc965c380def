//! Credentials for web servers: bearer tokens, passwords and certificates, and where they are found.
//!
//! What is said here goes to the host that the caller named, never to one that a server sends us to:
//! a [`Session`](super::vector::Session) has one set of credentials and connections of its own.

mod bearer;
mod certificate;
mod netrc;
mod private;

use std::fmt;
use std::path::{Path, PathBuf};

use fordway_store::Result;

use super::{Origin, Proxies};
use bearer::Bearer;
use certificate::CertificateFiles;
pub(super) use certificate::Identity;
use private::Place;

/// What a session may say about who it is. Files are read when they are needed: tokens for each file
/// that is opened, certificates for the first TLS connection.
#[derive(Clone, Default)]
pub struct Credentials {
    /// Tried in turn.
    bearers: Vec<Bearer>,
    netrc: Option<Place>,
    /// Tried in turn.
    certificates: Vec<CertificateFiles>,
    goes_unprotected: bool,
}

impl Credentials {
    /// Nothing to say.
    pub fn none() -> Self {
        Credentials::default()
    }

    /// Those that the environment names and those at the usual places: `BEARER_TOKEN`,
    /// `BEARER_TOKEN_FILE`, `$XDG_RUNTIME_DIR/bt_u$UID` and `/tmp/bt_u$UID` (WLCG bearer token
    /// discovery); `NETRC` or `~/.netrc`; `X509_USER_PROXY`, `X509_USER_CERT` with `X509_USER_KEY`,
    /// `/tmp/x509up_u$UID`. Reads no file yet.
    pub fn discover() -> Self {
        Credentials::resolve(&|name| std::env::var(name).ok())
    }

    /// As [`Credentials::discover`], with `variable` in the place of the environment.
    pub fn resolve(variable: &dyn Fn(&str) -> Option<String>) -> Self {
        let get = |name: &str| variable(name).filter(|value| !value.is_empty());
        let user = fordway_sys::user_id();
        let usual_netrc = || get("HOME").map(|home| Place::Usual(Path::new(&home).join(".netrc")));
        Credentials {
            bearers: bearer::discover(&get, user),
            netrc: get("NETRC").map(|path| Place::Named(path.into())).or_else(usual_netrc),
            certificates: certificate::discover(&get, user),
            goes_unprotected: false,
        }
    }

    /// This bearer token before all others.
    pub fn with_bearer_token(mut self, token: impl Into<String>) -> Self {
        self.bearers.insert(0, Bearer::Token(token.into()));
        self
    }

    /// This client certificate before all others: PEM files, the certificate first in its chain.
    /// They may be the same one, as with an X.509 proxy.
    pub fn with_certificate(mut self, chain: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        self.certificates.insert(0, CertificateFiles::named(chain.into(), key.into()));
        self
    }

    /// Sends tokens and passwords also over plain HTTP, where everybody on the way can read them.
    /// Otherwise that is done only on this machine.
    pub fn over_plain_http(mut self) -> Self {
        self.goes_unprotected = true;
        self
    }

    /// Whether there is nothing to say.
    pub fn is_none(&self) -> bool {
        self.bearers.is_empty() && self.netrc.is_none() && self.certificates.is_empty()
    }

    /// Whether tokens and passwords are kept from `origin`, because others could read them on the way:
    /// a proxy is one of them, where there is no TLS.
    pub(super) fn is_withheld_from(&self, origin: &Origin, proxies: &Proxies) -> bool {
        let is_on_the_way = || !is_this_machine(origin) || proxies.name_of(origin).is_some();
        !(self.is_none() || origin.tls || self.goes_unprotected) && is_on_the_way()
    }

    /// The value of `Authorization` for `origin`: the password that netrc has for its host, else the
    /// first token that is found. Errors: `AccessDenied`, `InvalidArgument`, `Io` for what was named and
    /// cannot be used, and for secrets that others can read.
    pub(super) fn authorization(&self, origin: &Origin, proxies: &Proxies) -> Result<Option<String>> {
        if self.is_withheld_from(origin, proxies) {
            return Ok(None);
        }
        if let Some(place) = &self.netrc
            && let Some(text) = place.read_text()?
            && let Some(login) = netrc::find(&text, &origin.host)
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

    /// Certificate and key, if there are any. Errors: as [`Credentials::authorization`].
    pub(super) fn identity(&self) -> Result<Option<Identity>> {
        for files in &self.certificates {
            if let Some(identity) = files.load()? {
                return Ok(Some(identity));
            }
        }
        Ok(None)
    }
}

/// Says where secrets come from, and none of them.
impl fmt::Debug for Credentials {
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
        Credentials::resolve(&variable).authorization(&Origin::parse(url).unwrap().0, &Proxies::none())
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
        let proxies = Proxies::resolve(&|name| (name == "http_proxy").then(|| "p".to_owned()));
        let (local, _) = Origin::parse("http://127.0.0.1").unwrap();
        let who = Credentials::none().with_bearer_token("t");
        assert_eq!(who.authorization(&local, &proxies).unwrap(), None, "a proxy is in between");
        let open = Credentials::none().with_bearer_token("t").over_plain_http();
        assert_eq!(open.authorization(&origin, &Proxies::none()).unwrap().as_deref(), Some("Bearer t"));
        assert!(!format!("{:?}", Credentials::none().with_bearer_token("secret")).contains("secret"));
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
}
