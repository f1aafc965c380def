//! TLS with rustls: the gateway's certificate, and its replacement at run time.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use fordway_store::{Error, ErrorKind, Result};
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ProtocolVersion, ServerConfig};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;

use crate::connection::ClientSocket;

/// The protocols that the gateway offers to clients, in the order of preference (ALPN, RFC 7301). A client that
/// supports both protocols gets HTTP/1.1, because small requests then need less CPU time, and because hyper cannot send
/// `100 Continue` over HTTP/2. AWS's SDK for Go waits 1 s for `100 Continue` before each large upload.
const PROTOCOLS: [&[u8]; 2] = [b"http/1.1", b"h2"];

/// The version of TLS of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TlsVersion {
    V1_2,
    V1_3,
}

impl TlsVersion {
    /// Returns the version of a connection whose handshake is complete.
    pub(crate) fn of(connection: &rustls::ServerConnection) -> Self {
        // rustls supports only these two versions.
        match connection.protocol_version() {
            Some(ProtocolVersion::TLSv1_3) => TlsVersion::V1_3,
            _ => TlsVersion::V1_2,
        }
    }

    /// Returns the version as a number, for policies.
    pub(crate) fn number(self) -> &'static str {
        match self {
            TlsVersion::V1_2 => "1.2",
            TlsVersion::V1_3 => "1.3",
        }
    }
}

/// A secret from which other keys are derived. The secret is the same after a restart of the gateway.
#[cfg(feature = "http3")]
pub(crate) struct GatewaySecret([u8; 32]);

#[cfg(feature = "http3")]
impl GatewaySecret {
    /// Creates the secret from a key. The key cannot be derived from the secret.
    pub(crate) fn of(key: &[u8]) -> Self {
        GatewaySecret(hmac_sha256(key, b"fordway gateway secret 1"))
    }

    /// Returns a key that depends on all of `parts`.
    pub(crate) fn derived(&self, parts: &[&[u8]]) -> [u8; 32] {
        parts.iter().fold(self.0, |key, part| hmac_sha256(&key, part))
    }
}

#[cfg(feature = "http3")]
fn hmac_sha256(key: &[u8], text: &[u8]) -> [u8; 32] {
    let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, key);
    let mut tag = [0; 32];
    tag.copy_from_slice(ring::hmac::sign(&key, text).as_ref());
    tag
}

/// A certificate and its key, from two PEM files. Clones share the certificate.
#[derive(Clone, Debug)]
pub struct TlsCertificate(Arc<WatchedCertificate>);

#[derive(Debug)]
struct WatchedCertificate {
    certificate: PathBuf,
    key: PathBuf,
    current: RwLock<Arc<ServerConfig>>,
}

impl TlsCertificate {
    /// Reads the files `certificate` and `key`. `certificate` contains the server's own certificate, followed by the
    /// chain up to a trusted certificate. Errors: `InvalidArgument` for files that cannot be read, are not PEM or do
    /// not match.
    pub fn load(certificate: &Path, key: &Path) -> Result<Self> {
        let current = RwLock::new(Arc::new(read(certificate, key)?));
        Ok(TlsCertificate(Arc::new(WatchedCertificate {
            certificate: certificate.to_owned(),
            key: key.to_owned(),
            current,
        })))
    }

    /// Reads both files again, for new connections. Errors: as for [`TlsCertificate::load`]; after an error, the
    /// previous certificate remains in use.
    pub fn reload(&self) -> Result<()> {
        let newer = Arc::new(read(&self.0.certificate, &self.0.key)?);
        *self.0.current.write().unwrap_or_else(PoisonError::into_inner) = newer;
        Ok(())
    }

    /// Returns a secret that is derived from the private key in the file. Errors: `InvalidArgument` if the file can no
    /// longer be read.
    #[cfg(feature = "http3")]
    pub(crate) fn secret(&self) -> Result<GatewaySecret> {
        Ok(GatewaySecret::of(read_key(&self.0.key)?.secret_der()))
    }

    /// Returns the configuration with the current certificate.
    pub(crate) fn current(&self) -> Arc<ServerConfig> {
        self.0.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Performs the TLS handshake. Errors: `TimedOut`, and errors in the client's handshake.
    pub(crate) async fn accept(&self, socket: TcpStream, timeout: Duration) -> io::Result<ClientSocket> {
        let accepted = tokio::time::timeout(timeout, TlsAcceptor::from(self.current()).accept(socket)).await;
        Ok(ClientSocket::Tls(Box::new(accepted.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??)))
    }
}

fn read(certificate: &Path, key: &Path) -> Result<ServerConfig> {
    let chain = CertificateDer::pem_file_iter(certificate)
        .and_then(Iterator::collect::<std::result::Result<Vec<_>, _>>)
        .and_then(|chain| if chain.is_empty() { Err(pem::Error::NoItemsFound) } else { Ok(chain) })
        .map_err(refused(certificate, "is not a PEM file with a certificate"))?;
    let secret = read_key(key)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::new(ErrorKind::Internal, "setting up TLS").caused_by(error))?
        .with_no_client_auth()
        .with_single_cert(chain, secret);
    let mut config = config.map_err(|error| {
        let detail = format!(
            "the certificate in {} and the key in {} cannot be used together",
            certificate.display(),
            key.display()
        );
        Error::new(ErrorKind::InvalidArgument, detail).caused_by(error)
    })?;
    config.alpn_protocols = PROTOCOLS.map(<[u8]>::to_vec).to_vec();
    Ok(config)
}

fn read_key(file: &Path) -> Result<PrivateKeyDer<'static>> {
    PrivateKeyDer::from_pem_file(file).map_err(refused(file, "is not a PEM file with a private key"))
}

fn refused(file: &Path, what: &str) -> impl FnOnce(pem::Error) -> Error {
    let (file, what) = (file.display().to_string(), what.to_owned());
    move |error| match error {
        pem::Error::Io(error) => {
            let detail = format!("{file} cannot be read; correct the path or the permissions");
            Error::new(ErrorKind::InvalidArgument, detail).caused_by(error)
        }
        error => Error::new(ErrorKind::InvalidArgument, format!("{file} {what}")).caused_by(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(directory: &Path, names: [&str; 2]) -> [PathBuf; 2] {
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        let texts = [made.cert.pem(), made.signing_key.serialize_pem()];
        std::array::from_fn(|number| {
            let path = directory.join(names[number]);
            std::fs::write(&path, &texts[number]).unwrap();
            path
        })
    }

    fn shown(tls: &TlsCertificate) -> *const ServerConfig {
        Arc::as_ptr(&tls.0.current.read().unwrap())
    }

    #[test]
    fn a_broken_newer_file_leaves_the_old_certificate() {
        let directory = tempfile::tempdir().unwrap();
        let [certificate, key] = write(directory.path(), ["cert", "key"]);
        let tls = TlsCertificate::load(&certificate, &key).unwrap();
        let first = shown(&tls);
        std::fs::write(&certificate, "half a certif").unwrap();
        let error = tls.reload().expect_err("it is broken");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().contains(&certificate.display().to_string()), "{error}");
        assert_eq!(shown(&tls), first);
        write(directory.path(), ["cert", "key"]);
        tls.reload().unwrap();
        assert_ne!(shown(&tls), first);
    }

    #[test]
    fn files_that_cannot_serve_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let [certificate, key] = write(directory.path(), ["cert", "key"]);
        let [_, other_key] = write(directory.path(), ["cert2", "key2"]);
        for (certificate, key) in [
            (&certificate, &other_key),
            (&key, &key),
            (&certificate, &certificate),
            (&directory.path().join("none"), &key),
        ] {
            let error = TlsCertificate::load(certificate, key).expect_err("they do not fit");
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        }
    }
}
