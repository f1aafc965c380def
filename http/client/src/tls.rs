//! TLS by rustls: which certificates are trusted, and the handshake's set-up.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use fordway_store::{Error, ErrorKind, Result};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::socket::Socket;
use super::{Credentials, Origin};

/// Whose certificates are trusted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum TlsRoots {
    /// Those that the system trusts.
    #[default]
    System,
    /// Those in this PEM file, and no others (as `AWS_CA_BUNDLE`).
    File(PathBuf),
    /// Those in the PEM files of this directory, and no others (as `X509_CERT_DIR`). What holds no
    /// certificate (revocations, policies) is passed over.
    Directory(PathBuf),
}

impl TlsRoots {
    /// Those of a file that was named, else of `X509_CERT_DIR`, else the system's, for which
    /// `SSL_CERT_FILE` and `SSL_CERT_DIR` may name others.
    pub fn find(file: Option<PathBuf>) -> Self {
        let directory = || std::env::var_os("X509_CERT_DIR").filter(|path| !path.is_empty());
        match file {
            Some(file) => TlsRoots::File(file),
            None => directory().map_or(TlsRoots::System, |path| TlsRoots::Directory(path.into())),
        }
    }
}

/// Opens TLS sessions; the certificates are loaded when the first one is asked for.
pub struct TlsConnector {
    roots: TlsRoots,
    /// The protocol that is offered (ALPN, RFC 7301).
    protocol: &'static [u8],
    /// Whose certificate is shown.
    who: Credentials,
    config: OnceLock<Arc<ClientConfig>>,
}

impl TlsConnector {
    /// `protocol` is what ALPN asks for.
    pub fn new(roots: TlsRoots, protocol: &'static [u8]) -> Self {
        TlsConnector { roots, protocol, who: Credentials::none(), config: OnceLock::new() }
    }

    /// Shows the certificate of `who` to servers that ask for one.
    pub(super) fn showing(self, who: Credentials) -> Self {
        TlsConnector { who, ..self }
    }

    /// Completes the handshake with what is at the other end of `socket`. Errors: `BadResponse` for a certificate that is
    /// not trusted, and for what is no TLS: trying again would change nothing; `Unavailable`, `InvalidArgument`.
    pub(super) fn start(
        &self,
        origin: &Origin,
        socket: Socket,
    ) -> Result<StreamOwned<ClientConnection, Socket>> {
        let config = self.config()?;
        let name = Self::name(origin)?;
        let failed = |error: std::io::Error| {
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

    /// Whether the handshake ended because the server speaks nothing that was offered (RFC 7301 section 3.2).
    #[cfg(feature = "http2")]
    pub(super) fn is_for_want_of_protocol(error: &Error) -> bool {
        use std::error::Error as _;
        let told = error.source().and_then(|source| source.downcast_ref::<std::io::Error>());
        matches!(
            told.and_then(of_rustls),
            Some(rustls::Error::AlertReceived(rustls::AlertDescription::NoApplicationProtocol))
        )
    }

    /// Whom the certificate must name. Errors: `InvalidArgument`.
    pub fn name(origin: &Origin) -> Result<ServerName<'static>> {
        ServerName::try_from(origin.host.clone()).map_err(|error| {
            Error::new(ErrorKind::InvalidArgument, format!("{origin} has no valid host name"))
                .caused_by(error)
        })
    }

    /// What sessions are opened with. Errors: `InvalidArgument` where no certificate is trusted.
    pub fn config(&self) -> Result<Arc<ClientConfig>> {
        if let Some(config) = self.config.get() {
            return Ok(config.clone());
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| Error::new(ErrorKind::Internal, "setting up TLS").caused_by(error))?
            .with_root_certificates(self.trusted()?);
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
            TlsRoots::System => {
                let found = rustls_native_certs::load_native_certs();
                roots.add_parsable_certificates(found.certs);
            }
            TlsRoots::File(path) => {
                let unreadable = |error| {
                    let detail = format!("{} is not a PEM file of certificates", path.display());
                    Error::new(ErrorKind::InvalidArgument, detail).caused_by(error)
                };
                let certificates = CertificateDer::pem_file_iter(path).map_err(unreadable)?;
                let certificates = certificates.collect::<Result<Vec<_>, _>>().map_err(unreadable)?;
                roots.add_parsable_certificates(certificates);
            }
            TlsRoots::Directory(path) => {
                let listed = std::fs::read_dir(path).map_err(|error| {
                    let detail = format!("{} is not a directory of certificates", path.display());
                    Error::new(ErrorKind::InvalidArgument, detail).caused_by(error)
                })?;
                let files =
                    listed.flatten().filter_map(|file| CertificateDer::pem_file_iter(file.path()).ok());
                roots.add_parsable_certificates(files.flat_map(Iterator::flatten));
            }
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

fn of_rustls(error: &std::io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref()
}

/// What the most frequent failures mean to the people who set up the two sides; empty for others.
fn in_words(error: &std::io::Error) -> &'static str {
    use rustls::{CertificateError, Error as Tls, InvalidMessage};
    match of_rustls(error) {
        Some(Tls::InvalidMessage(InvalidMessage::InvalidContentType)) => {
            " (what answers there does not speak TLS; is the address http:// ?)"
        }
        Some(Tls::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature)) => {
            " (nobody who is trusted here has signed its certificate; AWS_CA_BUNDLE names others)"
        }
        Some(Tls::InvalidCertificate(CertificateError::Other(other)))
            if format!("{other:?}").contains("CaUsedAsEndEntity") =>
        {
            " (it shows a certificate for signing others, CA:TRUE, as `openssl req -x509` makes them; \
             make one with `-addext basicConstraints=critical,CA:FALSE`)"
        }
        _ => "",
    }
}
