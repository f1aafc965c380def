//! What TLS does to content: sealing it on one side, opening it on the other, both in memory.

use std::io::{Read, Write};
use std::sync::Arc;

use fordway_store::Result;
use fordway_workload::ledger::Rung;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection};

use super::{Contents, failed, same};

/// Content is handed to TLS in pieces of this size, as the gateway does.
const PIECE_BYTES: usize = 256 << 10;

/// Two ends of a session that has shaken hands.
pub(in super::super) struct Tls {
    client: ClientConnection,
    server: ServerConnection,
    contents: Contents,
    sealed: Vec<u8>,
    opened: Vec<u8>,
}

impl Tls {
    pub(in super::super) fn new(contents: &Contents) -> Result<Self> {
        let (client, server) = ends()?;
        let contents = contents.clone();
        let mut tls = Tls { client, server, contents, sealed: Vec::new(), opened: Vec::new() };
        while tls.client.is_handshaking() || tls.server.is_handshaking() {
            tls.shake_hands()?;
        }
        // What is left are tickets for later sessions.
        tls.shake_hands()?;
        tls.server.set_buffer_limit(None);
        Ok(tls)
    }

    fn shake_hands(&mut self) -> Result<()> {
        let mut flight = Vec::new();
        while self.client.wants_write() {
            self.client.write_tls(&mut flight).map_err(failed)?;
        }
        let mut rest = flight.as_slice();
        while !rest.is_empty() {
            self.server.read_tls(&mut rest).map_err(failed)?;
            self.server.process_new_packets().map_err(failed)?;
        }
        flight.clear();
        while self.server.wants_write() {
            self.server.write_tls(&mut flight).map_err(failed)?;
        }
        let mut rest = flight.as_slice();
        while !rest.is_empty() {
            self.client.read_tls(&mut rest).map_err(failed)?;
            self.client.process_new_packets().map_err(failed)?;
        }
        Ok(())
    }
}

fn ends() -> Result<(ClientConnection, ServerConnection)> {
    let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).map_err(failed)?;
    let certificate = made.cert.der().clone();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone()).map_err(failed)?;
    let client = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(failed)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let server = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(failed)?
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .map_err(failed)?;
    let name = ServerName::try_from("127.0.0.1").map_err(failed)?;
    let client = ClientConnection::new(Arc::new(client), name).map_err(failed)?;
    Ok((client, ServerConnection::new(Arc::new(server)).map_err(failed)?))
}

impl Rung for Tls {
    fn prepare(&mut self, size_bytes: u64) -> Result<()> {
        self.opened.resize(size_bytes as usize, 0);
        Ok(())
    }

    fn run(&mut self) -> Result<()> {
        let mut done = 0;
        for piece in self.contents.of(self.opened.len() as u64).chunks(PIECE_BYTES) {
            self.sealed.clear();
            self.server.writer().write_all(piece).map_err(failed)?;
            while self.server.wants_write() {
                self.server.write_tls(&mut self.sealed).map_err(failed)?;
            }
            let mut rest = self.sealed.as_slice();
            while !rest.is_empty() {
                self.client.read_tls(&mut rest).map_err(failed)?;
                let ready = self.client.process_new_packets().map_err(failed)?.plaintext_bytes_to_read();
                self.client.reader().read_exact(&mut self.opened[done..done + ready]).map_err(failed)?;
                done += ready;
            }
        }
        Ok(())
    }

    fn check(&self) -> Result<()> {
        same(&self.opened, self.contents.of(self.opened.len() as u64))
    }
}
