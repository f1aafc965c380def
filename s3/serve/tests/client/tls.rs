//! A self-signed certificate for a gateway, and a client that trusts it.

use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fordway_serve::TlsCertificate;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned, SupportedProtocolVersion};

use super::Client;

pub type TlsStream = StreamOwned<ClientConnection, TcpStream>;

pub struct Certificate {
    directory: PathBuf,
    der: CertificateDer<'static>,
    /// Removes the directory at the end.
    _own: Option<tempfile::TempDir>,
}

impl Certificate {
    pub fn new() -> Self {
        let own = tempfile::tempdir().unwrap();
        let directory = own.path().to_owned();
        Certificate { der: write(&directory), directory, _own: Some(own) }
    }

    /// Returns the certificate that another process has made in `directory`.
    pub fn of_other_process(directory: PathBuf) -> Self {
        let der = CertificateDer::from_pem_file(directory.join("cert.pem")).unwrap();
        Certificate { directory, der, _own: None }
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Replaces the certificate in the files with a new certificate.
    pub fn renew(&mut self) {
        self.der = write(&self.directory);
    }

    pub fn path(&self) -> PathBuf {
        self.directory.join("cert.pem")
    }

    pub fn load(&self) -> TlsCertificate {
        TlsCertificate::load(&self.path(), &self.directory.join("key.pem")).unwrap()
    }

    /// Returns a configuration that trusts this certificate and offers `protocol`.
    pub fn client_config(&self, protocol: &str) -> Arc<ClientConfig> {
        self.config_with(protocol, rustls::DEFAULT_VERSIONS)
    }

    fn config_with(
        &self,
        protocol: &str,
        versions: &[&'static SupportedProtocolVersion],
    ) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(self.der.clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![protocol.into()];
        Arc::new(config)
    }

    /// Connects for HTTP/1.1. Fails if the server presents another certificate.
    pub fn connect(&self, client: &Client) -> std::io::Result<TlsStream> {
        self.connect_with(client, rustls::DEFAULT_VERSIONS)
    }

    /// Connects for HTTP/1.1 with one of the TLS versions in `versions`. Fails if the server presents another
    /// certificate.
    pub fn connect_with(
        &self,
        client: &Client,
        versions: &[&'static SupportedProtocolVersion],
    ) -> std::io::Result<TlsStream> {
        let session = ClientConnection::new(self.config_with("http/1.1", versions), name()).unwrap();
        let mut stream = StreamOwned::new(session, client.connect());
        while stream.conn.is_handshaking() {
            stream.conn.complete_io(&mut stream.sock)?;
        }
        Ok(stream)
    }
}

pub fn name() -> ServerName<'static> {
    ServerName::try_from("localhost").unwrap()
}

fn write(directory: &Path) -> CertificateDer<'static> {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    std::fs::write(directory.join("cert.pem"), made.cert.pem()).unwrap();
    std::fs::write(directory.join("key.pem"), made.signing_key.serialize_pem()).unwrap();
    made.cert.der().clone()
}
