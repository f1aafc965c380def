//! Sets up TLS with rustls: the trusted certificates, the client's certificate, and the configuration of the handshake.
//!
//! Within a process, connectors with the same settings share their configuration, and therefore the tickets of earlier
//! sessions. Tickets shorten later handshakes (RFC 8446 section 2.2). No request is sent as early data (section 2.3),
//! because an attacker could replay it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use fordway_store::{Error, ErrorKind, Result};
use fordway_sys::PerProcess;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::sign::SingleCertAndKey;
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, RootCertStore, SignatureScheme, StreamOwned,
};

use super::access::ClientCertificate;
use super::carrier::{TcpOrTlsStream, TlsStream};
use super::client::is_timeout;
use super::{Origin, SessionCredentials};

/// The trusted certificate authorities.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum TlsRoots {
    /// The authorities of the system.
    #[default]
    System,
    /// The authorities in this PEM file, and no others (as with `AWS_CA_BUNDLE`).
    File(PathBuf),
    /// The authorities in the PEM files of this directory, and no others (as with `X509_CERT_DIR`). Files without a
    /// certificate (revocations, policies) are skipped.
    Directory(PathBuf),
    /// The authorities of the system, and the authorities in the PEM files of these directories.
    SystemAnd(Vec<PathBuf>),
    /// No verification: connections are encrypted, but any server can impersonate the requested server.
    Unverified,
}

impl TlsRoots {
    /// Returns the authorities in `file`, else the authorities in `X509_CERT_DIR`, else the authorities of the system,
    /// which `SSL_CERT_FILE` and `SSL_CERT_DIR` can replace.
    pub fn find(file: Option<PathBuf>) -> Self {
        let directory = || std::env::var_os("X509_CERT_DIR").filter(|path| !path.is_empty());
        match file {
            Some(file) => TlsRoots::File(file),
            None => directory().map_or(TlsRoots::System, |path| TlsRoots::Directory(path.into())),
        }
    }
}

/// How long a configuration is used and shared. After this time, the certificates are read again.
const SHARED_FOR: Duration = Duration::from_secs(600);
/// The maximum number of shared configurations.
const SHARED_MAX: usize = 32;

/// The environment variables that replace the certificates of the system, as in OpenSSL.
const SYSTEM_VARIABLES: [&str; 2] = ["SSL_CERT_FILE", "SSL_CERT_DIR"];

/// The TLS configurations that the connectors of this process share, oldest first.
static SHARED: LazyLock<PerProcess<Mutex<Vec<CachedTlsConfig>>>> = LazyLock::new(PerProcess::default);

struct CachedTlsConfig {
    settings: TlsConfigKey,
    config: DatedTlsConfig,
}

/// A configuration, and the time at which its certificates were read.
#[derive(Clone)]
struct DatedTlsConfig {
    config: Arc<ClientConfig>,
    made: Instant,
}

impl DatedTlsConfig {
    fn is_recent(&self) -> bool {
        self.made.elapsed() < SHARED_FOR
    }
}

/// All settings that a configuration depends on. When a session is resumed, certificates are not sent again, so only
/// connectors with equal settings may share tickets.
#[derive(PartialEq, Eq)]
struct TlsConfigKey {
    roots: TlsRoots,
    /// The files and directories of certificates, with the time of their last change and their size in bytes.
    files: Vec<(PathBuf, Option<(SystemTime, u64)>)>,
    protocol: &'static [u8],
    identity: Option<Vec<CertificateDer<'static>>>,
}

impl TlsConfigKey {
    /// Collects the settings. `system` returns the value of an environment variable that replaces the certificates of
    /// the system.
    fn new(
        roots: &TlsRoots,
        protocol: &'static [u8],
        identity: Option<&ClientCertificate>,
        system: impl Fn(&str) -> Option<OsString>,
    ) -> Self {
        let of_system = || SYSTEM_VARIABLES.iter().filter_map(|name| system(name)).map(PathBuf::from);
        let paths: Vec<PathBuf> = match roots {
            TlsRoots::System => of_system().collect(),
            TlsRoots::SystemAnd(paths) => of_system().chain(paths.iter().cloned()).collect(),
            TlsRoots::File(path) | TlsRoots::Directory(path) => vec![path.clone()],
            TlsRoots::Unverified => Vec::new(),
        };
        let state = |path: &PathBuf| {
            let about = path.metadata().ok()?;
            Some((about.modified().ok()?, about.len()))
        };
        let files = paths.into_iter().map(|path| (path.clone(), state(&path))).collect();
        let identity = identity.map(|shown| shown.cert.clone());
        TlsConfigKey { roots: roots.clone(), files, protocol, identity }
    }

    /// Returns the shared configuration with these settings. If there is no such configuration, calls `make` and shares
    /// the result.
    fn shared(self, make: impl FnOnce() -> Result<ClientConfig>) -> Result<DatedTlsConfig> {
        let locked = || SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        let known = |shared: &[CachedTlsConfig]| {
            shared.iter().find(|known| known.settings == self).map(|known| known.config.clone())
        };
        let mut shared = locked();
        shared.retain(|known| known.config.is_recent());
        if let Some(config) = known(&shared) {
            return Ok(config);
        }
        // Release the lock, so that other threads do not wait while this thread reads certificates.
        drop(shared);
        let made = Instant::now();
        let config = DatedTlsConfig { config: Arc::new(make()?), made };
        let mut shared = locked();
        if let Some(config) = known(&shared) {
            return Ok(config);
        }
        if shared.len() >= SHARED_MAX {
            shared.remove(0);
        }
        shared.push(CachedTlsConfig { settings: self, config: config.clone() });
        Ok(config)
    }
}

/// Opens TLS sessions. The certificates are read when the first session is opened, and again after [`SHARED_FOR`].
pub struct TlsConnector {
    roots: TlsRoots,
    /// The protocol offered by ALPN (RFC 7301).
    protocol: &'static [u8],
    /// The credentials whose certificate is presented to servers.
    who: SessionCredentials,
    config: Mutex<Option<DatedTlsConfig>>,
}

impl TlsConnector {
    /// Creates a connector that offers `protocol` by ALPN.
    pub fn new(roots: TlsRoots, protocol: &'static [u8]) -> Self {
        TlsConnector { roots, protocol, who: SessionCredentials::none(), config: Mutex::default() }
    }

    /// Drops the configurations and session tickets that connectors share. Measurements call this function so that the
    /// next connection of a new connector behaves like the first connection of a process.
    pub fn forget_shared() {
        SHARED.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Presents the certificate of `who` to servers that request one.
    pub(super) fn showing(self, who: SessionCredentials) -> Self {
        TlsConnector { who, ..self }
    }

    /// Performs the handshake with the peer of `carrier`. Errors: `BadResponse` for an untrusted certificate and for a
    /// peer that does not use TLS, because a retry would not help against either cause; `AccessDenied` if the peer
    /// requires or refuses a client certificate; `Timeout` if the peer sends nothing for too long; `Unavailable`,
    /// `InvalidArgument`.
    pub(super) fn start(&self, origin: &Origin, carrier: TcpOrTlsStream) -> Result<TlsStream> {
        let config = self.config()?;
        let name = Self::name(origin)?;
        let failed = |error: std::io::Error| {
            if let Some(refused) = certificate_refusal(&error) {
                return refused.caused_by(error);
            }
            let detail = format!("no TLS session with {origin}{}", in_words(&error));
            let is_untrusted = matches!(of_rustls(&error), Some(rustls::Error::InvalidCertificate(_)));
            let is_for_good =
                is_untrusted || matches!(of_rustls(&error), Some(rustls::Error::InvalidMessage(_)));
            let kind = match () {
                () if is_for_good => ErrorKind::BadResponse,
                () if is_timeout(&error) => ErrorKind::Timeout,
                () => ErrorKind::Unavailable,
            };
            let failure = Error::new(kind, detail).caused_by(error);
            if is_untrusted { failure.at_untrusted_server() } else { failure }
        };
        let session = ClientConnection::new(config, name).map_err(|e| failed(std::io::Error::other(e)))?;
        let mut stream = StreamOwned::new(session, carrier);
        while stream.conn.is_handshaking() {
            stream.conn.complete_io(&mut stream.sock).map_err(failed)?;
        }
        Ok(stream)
    }

    /// Returns whether the handshake failed because the server supports none of the offered protocols (RFC 7301 section
    /// 3.2).
    #[cfg(feature = "http2")]
    pub(super) fn is_for_want_of_protocol(error: &Error) -> bool {
        use std::error::Error as _;
        let told = error.source().and_then(|source| source.downcast_ref::<std::io::Error>());
        matches!(
            told.and_then(of_rustls),
            Some(rustls::Error::AlertReceived(rustls::AlertDescription::NoApplicationProtocol))
        )
    }

    /// Returns the name that the server's certificate must contain. Errors: `InvalidArgument` if the origin's host is
    /// neither a valid name nor an address.
    pub fn name(origin: &Origin) -> Result<ServerName<'static>> {
        ServerName::try_from(origin.host.clone()).map_err(|error| {
            Error::new(ErrorKind::InvalidArgument, format!("{origin} has no valid host name"))
                .caused_by(error)
        })
    }

    /// Returns the configuration of sessions, which connectors with the same settings share. If certificates cannot be
    /// read again, returns the previous configuration. Errors: `InvalidArgument` if no certificate is trusted.
    pub fn config(&self) -> Result<Arc<ClientConfig>> {
        let known = || self.config.lock().unwrap_or_else(PoisonError::into_inner);
        let before = known().clone();
        if let Some(recent) = before.as_ref().filter(|config| config.is_recent()) {
            return Ok(recent.config.clone());
        }
        match (self.current(), before) {
            (Ok(current), _) => Ok(known().insert(current).config.clone()),
            // A file may be about to be replaced. The next connection tries to read the file again.
            (Err(error), Some(before)) => {
                tracing::warn!(%error, "certificates cannot be read again; the previous ones remain in use");
                Ok(before.config)
            }
            (Err(error), None) => Err(error),
        }
    }

    fn current(&self) -> Result<DatedTlsConfig> {
        let identity = self.who.identity()?;
        let system = |name: &str| std::env::var_os(name);
        let settings = TlsConfigKey::new(&self.roots, self.protocol, identity.as_ref(), system);
        settings.shared(|| self.made(identity))
    }

    fn made(&self, identity: Option<ClientCertificate>) -> Result<ClientConfig> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| Error::new(ErrorKind::Internal, "setting up TLS").caused_by(error))?;
        let builder = match self.roots {
            TlsRoots::Unverified => {
                let everyone = Arc::new(InsecureServerCertVerifier(provider));
                builder.dangerous().with_custom_certificate_verifier(everyone)
            }
            _ => builder.with_root_certificates(self.trusted()?),
        };
        let mut config = match identity {
            Some(identity) => builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(identity))),
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = vec![self.protocol.to_vec()];
        Ok(config)
    }

    fn trusted(&self) -> Result<RootCertStore> {
        let mut roots = RootCertStore::empty();
        match &self.roots {
            TlsRoots::System => add_system(&mut roots),
            TlsRoots::SystemAnd(directories) => {
                add_system(&mut roots);
                directories.iter().try_for_each(|path| add_directory(&mut roots, path))?;
            }
            TlsRoots::Unverified => return Ok(roots),
            TlsRoots::File(path) => {
                let unreadable = |error| {
                    let detail = format!("{} is not a PEM file of certificates", path.display());
                    Error::new(ErrorKind::InvalidArgument, detail).caused_by(error)
                };
                let certificates = CertificateDer::pem_file_iter(path).map_err(unreadable)?;
                let certificates = certificates.collect::<Result<Vec<_>, _>>().map_err(unreadable)?;
                roots.add_parsable_certificates(certificates);
            }
            TlsRoots::Directory(path) => add_directory(&mut roots, path)?,
        }
        match roots.is_empty() {
            false => Ok(roots),
            true => Err(Error::new(ErrorKind::InvalidArgument, self.none_trusted())),
        }
    }

    /// Returns the message for a certificate source without any certificate.
    fn none_trusted(&self) -> String {
        match &self.roots {
            TlsRoots::File(path) => {
                format!("{} contains no certificate in PEM; name another file, as in AWS_CA_BUNDLE", path.display())
            }
            TlsRoots::Directory(path) => {
                let path = path.display();
                format!("{path} contains no file with a certificate in PEM; name another directory in X509_CERT_DIR")
            }
            _ => "there is no trusted certificate; install ca-certificates, or name a file in AWS_CA_BUNDLE or a \
                  directory in X509_CERT_DIR"
                .to_owned(),
        }
    }
}

fn add_system(roots: &mut RootCertStore) {
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
}

fn add_directory(roots: &mut RootCertStore, path: &Path) -> Result<()> {
    let listed = std::fs::read_dir(path).map_err(|error| {
        let detail = format!("{} is not a directory of certificates", path.display());
        Error::new(ErrorKind::InvalidArgument, detail).caused_by(error)
    })?;
    let files = listed.flatten().filter_map(|file| CertificateDer::pem_file_iter(file.path()).ok());
    roots.add_parsable_certificates(files.flat_map(Iterator::flatten));
    Ok(())
}

/// Accepts the certificate of any server, but still checks that the server has the private key of the certificate.
#[derive(Debug)]
struct InsecureServerCertVerifier(Arc<CryptoProvider>);

impl ServerCertVerifier for InsecureServerCertVerifier {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

fn of_rustls(error: &std::io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref()
}

/// Returns an error if the server has rejected the client's certificate or requires one. Another attempt would not
/// help.
pub(super) fn certificate_refusal(error: &std::io::Error) -> Option<Error> {
    let Some(rustls::Error::AlertReceived(alert)) = of_rustls(error) else { return None };
    alert_refusal(*alert)
}

/// Returns an error if the alert means that the server rejects the client's certificate or requires one.
pub(super) fn alert_refusal(alert: rustls::AlertDescription) -> Option<Error> {
    use rustls::AlertDescription as Alert;
    let why = match alert {
        Alert::CertificateRequired => {
            "the server requires a client certificate; name one in X509_USER_PROXY, or in X509_USER_CERT and X509_USER_KEY"
        }
        Alert::BadCertificate
        | Alert::UnsupportedCertificate
        | Alert::CertificateRevoked
        | Alert::CertificateExpired
        | Alert::CertificateUnknown
        | Alert::UnknownCA
        | Alert::AccessDenied => {
            "the server does not accept the client certificate; check that it has not expired, and that the server trusts \
             its authority"
        }
        _ => return None,
    };
    Some(Error::new(ErrorKind::AccessDenied, why))
}

/// The explanation, appended to an error, of a certificate that no trusted authority has signed.
const UNKNOWN_ISSUER: &str =
    " (no trusted authority has signed its certificate; set AWS_CA_BUNDLE to trust another)";

/// Returns an explanation of `error` for the administrators of client and server, or an empty string if there is no
/// explanation.
fn in_words(error: &std::io::Error) -> &'static str {
    use rustls::{Error as Tls, InvalidMessage};
    match of_rustls(error) {
        Some(Tls::InvalidMessage(InvalidMessage::InvalidContentType)) => {
            " (the server does not speak TLS; is the address http:// ?)"
        }
        Some(Tls::InvalidCertificate(why)) => certificate_in_words(&format!("{why:?}")),
        _ => "",
    }
}

/// Returns an explanation of a fault of a server's certificate, or an empty string if there is no explanation. `why`
/// contains rustls's name for the fault, because quinn reports only the message of an error.
pub(super) fn certificate_in_words(why: &str) -> &'static str {
    if why.contains("UnknownIssuer") || why.contains("BadSignature") {
        return UNKNOWN_ISSUER;
    }
    if why.contains("CaUsedAsEndEntity") {
        return " (its certificate is for a certificate authority, CA:TRUE, as `openssl req -x509` makes by default; \
                make one with `-addext basicConstraints=critical,CA:FALSE`)";
    }
    ""
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};

    use rustls::{HandshakeKind, ServerConfig, ServerConnection};

    use super::*;
    use crate::Timeouts;
    use crate::socket::TcpSocket;

    /// Serves TLS connections until the test ends. Sends a byte on each connection, so that the client also receives
    /// tickets.
    fn serve(certificate: &rcgen::CertifiedKey<rcgen::KeyPair>) -> Origin {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let key =
            rustls::pki_types::PrivateKeyDer::try_from(certificate.signing_key.serialize_der()).unwrap();
        let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let config = config.unwrap().with_no_client_auth();
        let config = Arc::new(config.with_single_cert(vec![certificate.cert.der().clone()], key).unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || {
            for socket in listener.incoming() {
                let session = ServerConnection::new(config.clone()).unwrap();
                let _ = StreamOwned::new(session, socket.unwrap()).write_all(b"x");
            }
        });
        Origin { tls: true, host: "127.0.0.1".to_owned(), port }
    }

    fn handshake(roots: &TlsRoots, origin: &Origin) -> Option<HandshakeKind> {
        let connector = TlsConnector::new(roots.clone(), b"http/1.1");
        let socket = TcpStream::connect((origin.host.as_str(), origin.port)).unwrap();
        let socket = TcpSocket::over(socket, &Timeouts::default());
        let mut stream = connector.start(origin, TcpOrTlsStream::Tcp(socket)).unwrap();
        stream.read_exact(&mut [0]).unwrap();
        stream.conn.handshake_kind()
    }

    #[test]
    fn connectors_that_trust_the_same_authorities_share_tickets() {
        let certificate = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let (one, other) = (dir.path().join("one.pem"), dir.path().join("other.pem"));
        std::fs::write(&one, certificate.cert.pem()).unwrap();
        std::fs::write(&other, certificate.cert.pem()).unwrap();
        let origin = serve(&certificate);
        let trusted = TlsRoots::File(one.clone());
        assert_eq!(handshake(&trusted, &origin), Some(HandshakeKind::Full));
        assert_eq!(handshake(&trusted, &origin), Some(HandshakeKind::Resumed));
        assert_eq!(handshake(&TlsRoots::File(other), &origin), Some(HandshakeKind::Full));
        assert_eq!(handshake(&TlsRoots::Unverified, &origin), Some(HandshakeKind::Full));
        // The file at the same path has changed.
        std::fs::write(&one, format!("# a comment\n{}", certificate.cert.pem())).unwrap();
        assert_eq!(handshake(&trusted, &origin), Some(HandshakeKind::Full));
    }

    /// A connector lives as long as its session, which may be longer than a certificate.
    #[test]
    fn a_connector_reads_changed_certificates_again() {
        let certificate = |_| rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
        let [old, new] = [0, 1].map(certificate);
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("ca.pem");
        std::fs::write(&file, old.cert.pem()).unwrap();
        let connector = TlsConnector::new(TlsRoots::File(file.clone()), b"http/1.1");
        let start = |origin: &Origin| {
            let socket = TcpStream::connect((origin.host.as_str(), origin.port)).unwrap();
            let socket = TcpSocket::over(socket, &Timeouts::default());
            connector.start(origin, TcpOrTlsStream::Tcp(socket))
        };
        let (before, after) = (serve(&old), serve(&new));
        start(&before).unwrap();
        let age = || {
            let mut config = connector.config.lock().unwrap();
            config.as_mut().unwrap().made = Instant::now() - SHARED_FOR;
        };
        std::fs::remove_file(&file).unwrap();
        age();
        start(&before).expect("the file is missing for a moment");
        std::fs::write(&file, format!("# new\n{}", new.cert.pem())).unwrap();
        start(&after).expect("the configuration is old");
        assert!(start(&before).is_err(), "the old certificate is no longer trusted");
    }

    #[test]
    fn a_source_without_certificates_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let junk = dir.path().join("junk.pem");
        std::fs::write(&junk, "no certificate\n").unwrap();
        for (roots, path) in [
            (TlsRoots::File(junk.clone()), &junk),
            (TlsRoots::Directory(dir.path().to_owned()), &dir.path().to_owned()),
        ] {
            let error = TlsConnector::new(roots, b"h2").config().expect_err("there is no certificate");
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(error.to_string().contains(&format!("{} contains no", path.display())), "{error}");
        }
    }

    /// A program can set the variables after its first connection.
    #[test]
    fn certificates_of_the_system_depend_on_the_environment() {
        let settings = |value: Option<&str>| {
            let system = |name: &str| value.filter(|_| name == "SSL_CERT_FILE").map(OsString::from);
            TlsConfigKey::new(&TlsRoots::System, b"h2", None, system)
        };
        assert!(settings(None) == settings(None));
        assert!(settings(Some("/a")) == settings(Some("/a")));
        assert!(settings(Some("/a")) != settings(None));
        assert!(settings(Some("/a")) != settings(Some("/b")));
    }
}
