//! Opens connections to an origin (scheme, host and port), and sets up TLS with rustls: the trusted certificates, and
//! the configuration of the handshake.

#[cfg(feature = "http2")]
use std::collections::HashSet;
use std::fmt;
use std::path::{Path, PathBuf};
#[cfg(feature = "http2")]
use std::sync::Mutex;
#[cfg(feature = "http2")]
use std::sync::PoisonError;
use std::sync::{Arc, OnceLock};

use fordway_store::{Error, ErrorKind, Result};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, RootCertStore, SignatureScheme, StreamOwned,
};

use super::connection::BufferedConnection;
#[cfg(feature = "http2")]
use super::http2::Http2Connection;
#[cfg(feature = "http3")]
use super::http3;
use super::proxy::ProxySettings;
use super::socket::TcpSocket;
use super::{HttpVersion, SessionCredentials, Timeouts};

/// Opens connections: through a proxy if one is configured for the origin, with TLS if the origin requires it.
pub struct Connector {
    version: HttpVersion,
    timeouts: Timeouts,
    tls: TlsConnector,
    proxies: ProxySettings,
    #[cfg(feature = "http2")]
    http2: Http2OnlyOrigins,
}

/// Servers known to support only HTTP/2, because an attempt with HTTP/1.1 failed.
#[cfg(feature = "http2")]
struct Http2OnlyOrigins {
    tls: TlsConnector,
    origins: Mutex<HashSet<Origin>>,
}

impl Connector {
    /// Creates a connector for this HTTP version, without a proxy.
    pub fn new(version: HttpVersion, timeouts: Timeouts, roots: TlsRoots, who: SessionCredentials) -> Self {
        let protocol: &[u8] = match version {
            HttpVersion::Http1 => b"http/1.1",
            #[cfg(feature = "http2")]
            HttpVersion::Http2 => b"h2",
            #[cfg(feature = "http3")]
            HttpVersion::Http3 => b"h3",
        };
        #[cfg(feature = "http2")]
        let http2 = Http2OnlyOrigins {
            tls: TlsConnector::new(roots.clone(), b"h2").showing(who.clone()),
            origins: Mutex::default(),
        };
        let tls = TlsConnector::new(roots, protocol).showing(who);
        Connector {
            version,
            timeouts,
            tls,
            proxies: ProxySettings::none(),
            #[cfg(feature = "http2")]
            http2,
        }
    }

    /// Uses these proxies for connections.
    pub(super) fn through(self, proxies: ProxySettings) -> Self {
        Connector { proxies, ..self }
    }

    /// The proxies in use.
    pub(super) fn proxies(&self) -> &ProxySettings {
        &self.proxies
    }

    /// Opens a connection. Errors: `Unavailable`, `Timeout`, `InvalidArgument`; `BadResponse` if the server does not
    /// support HTTP/2; `AccessDenied` if a proxy refuses.
    pub fn connect(&self, origin: &Origin) -> Result<BufferedConnection> {
        match self.version {
            HttpVersion::Http1 if origin.tls => self.secure(origin),
            HttpVersion::Http1 => match self.proxies.of(origin)? {
                Some(proxy) if proxy.forwards() => {
                    let connection = BufferedConnection::plain(proxy.connect(&self.timeouts)?, self.timeouts);
                    Ok(connection.forwarded(proxy.forwarding(origin)))
                }
                _ => Ok(BufferedConnection::plain(self.socket(origin)?, self.timeouts)),
            },
            #[cfg(feature = "http2")]
            HttpVersion::Http2 => self.multiplexed(origin, &self.tls),
            #[cfg(feature = "http3")]
            HttpVersion::Http3 => self.over_quic(origin),
        }
    }

    /// Opens an HTTP/3 connection. Errors: `InvalidArgument` if the origin has a proxy, because none carries QUIC.
    #[cfg(feature = "http3")]
    fn over_quic(&self, origin: &Origin) -> Result<BufferedConnection> {
        if self.proxies.of(origin)?.is_some() {
            let detail = format!(
                "HTTP/3 does not go through a proxy; use HTTP 1.1 or 2 for {origin} (FORDWAY_HTTP_VERSION), or add it to \
                 NO_PROXY"
            );
            return Err(Error::new(ErrorKind::InvalidArgument, detail));
        }
        let socket = http3::connect(origin, &self.timeouts, &self.tls)?;
        Ok(BufferedConnection::plain(socket, self.timeouts))
    }

    /// Opens an HTTP/1.1 connection over TLS.
    #[cfg(not(feature = "http2"))]
    fn secure(&self, origin: &Origin) -> Result<BufferedConnection> {
        self.secure_http1(origin)
    }

    /// Opens an HTTP/1.1 connection over TLS, or over HTTP/2 if the server accepts nothing else.
    #[cfg(feature = "http2")]
    fn secure(&self, origin: &Origin) -> Result<BufferedConnection> {
        let known = || self.http2.origins.lock().unwrap_or_else(PoisonError::into_inner);
        if known().contains(origin) {
            return self.multiplexed(origin, &self.http2.tls);
        }
        match self.secure_http1(origin) {
            Err(error) if TlsConnector::is_for_want_of_protocol(&error) => {
                let connection = self.multiplexed(origin, &self.http2.tls)?;
                tracing::debug!(%origin, "speaks only HTTP/2");
                known().insert(origin.clone());
                Ok(connection)
            }
            made => made,
        }
    }

    fn secure_http1(&self, origin: &Origin) -> Result<BufferedConnection> {
        // Fail on unusable credentials before any connection is made.
        self.tls.config()?;
        let stream = self.tls.start(origin, self.socket(origin)?)?;
        Ok(BufferedConnection::tls(stream, self.timeouts))
    }

    #[cfg(feature = "http2")]
    fn multiplexed(&self, origin: &Origin, tls: &TlsConnector) -> Result<BufferedConnection> {
        let connection = Http2Connection::connect(origin, self.socket(origin)?, &self.timeouts, tls)?;
        Ok(BufferedConnection::multiplexed(connection, self.timeouts))
    }

    /// Opens a socket whose peer is the origin, directly or through a proxy tunnel.
    fn socket(&self, origin: &Origin) -> Result<TcpSocket> {
        match self.proxies.of(origin)? {
            Some(proxy) => proxy.tunnel(origin, &self.timeouts),
            None => TcpSocket::connect(origin, &self.timeouts),
        }
    }
}

/// Scheme, host and port of a server. Connections to the same origin are interchangeable.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Origin {
    /// Whether the scheme is `https`.
    pub tls: bool,
    /// A host name or an address; IPv6 addresses are without brackets.
    pub host: String,
    /// The port, 1 to 65,535.
    pub port: u16,
}

impl Origin {
    /// Splits `http(s)://host[:port][/path]` into origin and path (empty, or starting with `/` and
    /// not ending with it). Errors: `InvalidArgument`.
    pub fn parse(url: &str) -> Result<(Self, String)> {
        let refused = |why: &str| {
            let detail = format!("the endpoint {url:?} {why}; write it as http(s)://host[:port]");
            Error::new(ErrorKind::InvalidArgument, detail)
        };
        let (scheme, rest) = url.split_once("://").ok_or_else(|| refused("has no scheme"))?;
        let tls = match scheme.to_ascii_lowercase().as_str() {
            "http" => false,
            "https" => true,
            _ => return Err(refused("is neither http nor https")),
        };
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        if authority.contains(['@', '?', '#']) || path.contains(['?', '#']) {
            return Err(refused("has a user, query or fragment"));
        }
        let (host, port) = split_port(authority).ok_or_else(|| refused("has no valid host and port"))?;
        let legal = |b: u8| b.is_ascii_alphanumeric() || b"-._:%".contains(&b);
        if host.is_empty() || !host.bytes().all(legal) {
            return Err(refused("has no valid host"));
        }
        let port = port.unwrap_or(if tls { 443 } else { 80 });
        let host = host.to_ascii_lowercase();
        Ok((Origin { tls, host, port }, path.trim_end_matches('/').to_owned()))
    }

    /// Returns the origin at `label.host`, with the same scheme and port.
    pub fn subdomain(&self, label: &str) -> Self {
        Origin { host: format!("{label}.{}", self.host), ..self.clone() }
    }

    /// Returns the value of the `Host` header, without the port if it is the scheme's default.
    pub fn authority(&self) -> String {
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        match (self.tls, self.port) {
            (true, 443) | (false, 80) => host,
            (_, port) => format!("{host}:{port}"),
        }
    }

    /// Returns whether the host is an IP address or `localhost`, neither of which has subdomains.
    pub fn is_numeric_or_local(&self) -> bool {
        self.host == "localhost" || self.host.parse::<std::net::IpAddr>().is_ok()
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", if self.tls { "https" } else { "http" }, self.authority())
    }
}

fn split_port(authority: &str) -> Option<(&str, Option<u16>)> {
    let (host, rest) = match authority.strip_prefix('[') {
        Some(bracketed) => bracketed.split_once(']')?,
        None => authority.split_at(authority.find(':').unwrap_or(authority.len())),
    };
    match rest.strip_prefix(':') {
        None if rest.is_empty() => Some((host, None)),
        None => None,
        Some(port) => port.parse().ok().filter(|port| *port != 0).map(|port| (host, Some(port))),
    }
}

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
    /// The authorities of the system, and those in the PEM files of these directories.
    SystemAnd(Vec<PathBuf>),
    /// Anybody: connections are encrypted, but the server may be another than the one that was named.
    Unverified,
}

impl TlsRoots {
    /// Returns the authorities in the named file, else in `X509_CERT_DIR`, else the system's, which `SSL_CERT_FILE` and
    /// `SSL_CERT_DIR` may replace.
    pub fn find(file: Option<PathBuf>) -> Self {
        let directory = || std::env::var_os("X509_CERT_DIR").filter(|path| !path.is_empty());
        match file {
            Some(file) => TlsRoots::File(file),
            None => directory().map_or(TlsRoots::System, |path| TlsRoots::Directory(path.into())),
        }
    }
}

/// Opens TLS sessions; loads the certificates when the first session is opened.
pub struct TlsConnector {
    roots: TlsRoots,
    /// The protocol offered by ALPN (RFC 7301).
    protocol: &'static [u8],
    /// The credentials whose certificate is presented to servers.
    who: SessionCredentials,
    config: OnceLock<Arc<ClientConfig>>,
}

impl TlsConnector {
    /// Creates a connector that offers `protocol` by ALPN.
    pub fn new(roots: TlsRoots, protocol: &'static [u8]) -> Self {
        TlsConnector { roots, protocol, who: SessionCredentials::none(), config: OnceLock::new() }
    }

    /// Presents the certificate of `who` to servers that request one.
    pub(super) fn showing(self, who: SessionCredentials) -> Self {
        TlsConnector { who, ..self }
    }

    /// Performs the handshake with the peer of `socket`. Errors: `BadResponse` for an untrusted certificate and for a
    /// peer that does not use TLS, because a retry would not help in these cases; `Unavailable`, `InvalidArgument`.
    pub(super) fn start(
        &self,
        origin: &Origin,
        socket: TcpSocket,
    ) -> Result<StreamOwned<ClientConnection, TcpSocket>> {
        let config = self.config()?;
        let name = Self::name(origin)?;
        let failed = |error: std::io::Error| {
            if let Some(refused) = certificate_refusal(&error) {
                return refused.caused_by(error);
            }
            let detail = format!("no TLS session with {origin}{}", in_words(&error));
            let is_for_good = matches!(
                of_rustls(&error),
                Some(rustls::Error::InvalidCertificate(_) | rustls::Error::InvalidMessage(_))
            );
            let kind = if is_for_good { ErrorKind::BadResponse } else { ErrorKind::Unavailable };
            Error::new(kind, detail).caused_by(error)
        };
        let session = ClientConnection::new(config, name).map_err(|e| failed(std::io::Error::other(e)))?;
        let mut stream = StreamOwned::new(session, socket);
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

    /// Returns the name that the server's certificate must contain. Errors: `InvalidArgument`.
    pub fn name(origin: &Origin) -> Result<ServerName<'static>> {
        ServerName::try_from(origin.host.clone()).map_err(|error| {
            Error::new(ErrorKind::InvalidArgument, format!("{origin} has no valid host name"))
                .caused_by(error)
        })
    }

    /// Returns the configuration of sessions. Errors: `InvalidArgument` if no certificate is trusted.
    pub fn config(&self) -> Result<Arc<ClientConfig>> {
        if let Some(config) = self.config.get() {
            return Ok(config.clone());
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| Error::new(ErrorKind::Internal, "setting up TLS").caused_by(error))?;
        let builder = match self.roots {
            TlsRoots::Unverified => {
                let everyone = Arc::new(UncheckedServer(provider));
                builder.dangerous().with_custom_certificate_verifier(everyone)
            }
            _ => builder.with_root_certificates(self.trusted()?),
        };
        let mut config = match self.who.identity()? {
            Some(identity) => builder.with_client_cert_resolver(identity),
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = vec![self.protocol.to_vec()];
        Ok(self.config.get_or_init(|| Arc::new(config)).clone())
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
            true => Err(Error::new(
                ErrorKind::InvalidArgument,
                "there is no trusted certificate; install ca-certificates, or name a file in AWS_CA_BUNDLE or a directory in X509_CERT_DIR",
            )),
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

/// Accepts the certificate of any server. It still checks that the server has the key of the certificate that it shows.
#[derive(Debug)]
struct UncheckedServer(Arc<CryptoProvider>);

impl ServerCertVerifier for UncheckedServer {
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

/// Returns the error if the server has refused the client's certificate, or the lack of one. Another attempt would not
/// help.
pub(super) fn certificate_refusal(error: &std::io::Error) -> Option<Error> {
    let Some(rustls::Error::AlertReceived(alert)) = of_rustls(error) else { return None };
    alert_refusal(*alert)
}

/// Returns the error if the alert refuses the client's certificate, or the lack of one.
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

/// The explanation of an untrusted certificate.
pub(super) const UNKNOWN_ISSUER: &str =
    " (no trusted authority has signed its certificate; set AWS_CA_BUNDLE to trust another)";

/// Returns an explanation, for the administrators on both sides, if this is one of the most common failures; otherwise,
/// an empty string.
fn in_words(error: &std::io::Error) -> &'static str {
    use rustls::{CertificateError, Error as Tls, InvalidMessage};
    match of_rustls(error) {
        Some(Tls::InvalidMessage(InvalidMessage::InvalidContentType)) => {
            " (the server does not speak TLS; is the address http:// ?)"
        }
        Some(Tls::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature)) => {
            UNKNOWN_ISSUER
        }
        Some(Tls::InvalidCertificate(CertificateError::Other(other)))
            if format!("{other:?}").contains("CaUsedAsEndEntity") =>
        {
            " (its certificate is for a certificate authority, CA:TRUE, as `openssl req -x509` makes by default; make \
             one with `-addext basicConstraints=critical,CA:FALSE`)"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(url: &str) -> Option<(String, String)> {
        Origin::parse(url).ok().map(|(origin, path)| (origin.to_string(), path))
    }

    #[test]
    fn parses_what_people_write() {
        let pair = |a: &str, b: &str| Some((a.to_owned(), b.to_owned()));
        assert_eq!(shown("http://127.0.0.1:9000/"), pair("http://127.0.0.1:9000", ""));
        assert_eq!(shown("HTTPS://S3.Example.org"), pair("https://s3.example.org", ""));
        assert_eq!(shown("http://[::1]:9000/base/"), pair("http://[::1]:9000", "/base"));
        assert_eq!(shown("https://h:443"), pair("https://h", ""));
        for bad in ["", "host", "ftp://h", "http://", "http://h:x", "http://h:0", "http://a@h", "http://h h"]
        {
            assert_eq!(Origin::parse(bad).unwrap_err().kind(), ErrorKind::InvalidArgument, "{bad}");
        }
    }
}
