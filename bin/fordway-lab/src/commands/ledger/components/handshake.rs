//! Both ends of TLS in this process: their settings, and the handshake in memory.

use std::sync::Arc;

use fordway_store::{Error, ErrorKind, Result};
use fordway_workload::ledger::LedgerComponent;
use rustls::client::Resumption;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, HandshakeKind, RootCertStore, ServerConfig, ServerConnection};

use super::failed;

/// The number of sessions that our client keeps.
const SESSIONS_MAX: usize = 256;

/// The TLS settings of our client and of the gateway.
#[derive(Clone)]
pub(super) struct TlsEndpointConfigs {
    client: ClientConfig,
    server: Arc<ServerConfig>,
}

impl TlsEndpointConfigs {
    pub(super) fn make() -> Result<Self> {
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
        Ok(TlsEndpointConfigs { client, server: Arc::new(server) })
    }

    /// Returns both ends of a session before the handshake.
    fn start(client: Arc<ClientConfig>, server: Arc<ServerConfig>) -> Result<TlsConnectionPair> {
        let name = ServerName::try_from("127.0.0.1").map_err(failed)?;
        let client = ClientConnection::new(client, name).map_err(failed)?;
        Ok(TlsConnectionPair { client, server: ServerConnection::new(server).map_err(failed)? })
    }

    /// Returns both ends of a session after the handshake.
    pub(super) fn session(self) -> Result<TlsConnectionPair> {
        let mut session = TlsEndpointConfigs::start(Arc::new(self.client), self.server)?;
        session.shake_hands()?;
        Ok(session)
    }
}

/// Both ends of a session.
pub(super) struct TlsConnectionPair {
    pub(super) client: ClientConnection,
    pub(super) server: ServerConnection,
}

impl TlsConnectionPair {
    /// Performs the handshake, and transfers the tickets that the server sends after the handshake.
    fn shake_hands(&mut self) -> Result<()> {
        while self.client.is_handshaking() || self.server.is_handshaking() {
            self.exchange()?;
        }
        self.exchange()
    }

    /// Passes the client's pending bytes to the server, and the server's pending bytes to the client.
    fn exchange(&mut self) -> Result<()> {
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

/// Complete TLS handshakes in memory, including the work of the client and of the server.
pub(in crate::commands::ledger) struct TlsHandshakeComponent {
    ends: TlsEndpointConfigs,
    /// The client's settings for the next operation. The settings store the sessions that can be resumed.
    client: Arc<ClientConfig>,
    expected: HandshakeKind,
    last: Option<HandshakeKind>,
}

impl TlsHandshakeComponent {
    /// Creates a component for full handshakes, or for handshakes that resume a session.
    pub(in crate::commands::ledger) fn new(expected: HandshakeKind) -> Result<Self> {
        let ends = TlsEndpointConfigs::make()?;
        let client = Arc::new(ends.client.clone());
        let mut made = TlsHandshakeComponent { ends, client, expected, last: None };
        // Open the session that later operations resume.
        made.run()?;
        Ok(made)
    }
}

impl LedgerComponent for TlsHandshakeComponent {
    fn moves_content(&self) -> bool {
        false
    }

    fn prepare(&mut self, _: u64) -> Result<()> {
        Ok(())
    }

    fn before(&mut self) -> Result<()> {
        if self.expected == HandshakeKind::Full {
            let mut client = self.ends.client.clone();
            client.resumption = Resumption::in_memory_sessions(SESSIONS_MAX);
            self.client = Arc::new(client);
        }
        Ok(())
    }

    fn run(&mut self) -> Result<()> {
        let mut session = TlsEndpointConfigs::start(self.client.clone(), self.ends.server.clone())?;
        session.shake_hands()?;
        self.last = session.client.handshake_kind();
        Ok(())
    }

    fn check(&self) -> Result<()> {
        match self.last == Some(self.expected) {
            true => Ok(()),
            false => {
                let why = format!("the handshake was {:?}, not {:?}", self.last, self.expected);
                Err(Error::new(ErrorKind::BadResponse, why))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handshakes_are_of_their_kind() {
        for expected in [HandshakeKind::Full, HandshakeKind::Resumed] {
            let mut handshake = TlsHandshakeComponent::new(expected).unwrap();
            for _ in 0..5 {
                handshake.before().unwrap();
                handshake.run().unwrap();
                handshake.check().unwrap();
            }
        }
    }
}
