//! New connections over TCP, with and without TLS, to a process that only responds to requests. Each operation also
//! exchanges the smallest message and its response, because the response proves that the responding process has
//! finished its part of the connection set-up.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use fordway_command::file_error;
use fordway_http::TlsRoots;
use fordway_http::parts::TlsConnector;
use fordway_store::{Error, ErrorKind, Result};
use fordway_workload::ledger::LedgerComponent;
use rustix::net::sockopt::set_socket_linger;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, HandshakeKind, StreamOwned};

use super::round_trip::PeerServer;
use crate::commands::ledger::echo::{EchoRequest, ORDER_BYTES, ReplySendMethod};

/// Returns the smallest request.
pub(super) fn short_order() -> EchoRequest {
    let form = ReplySendMethod::Bytes;
    EchoRequest { request_bytes: ORDER_BYTES, head_bytes: ORDER_BYTES, body_bytes: 0, form }
}

/// Returns new TLS settings of our client, which trust the certificate in a directory. The settings contain no session
/// tickets, so the first connection cannot resume a session.
pub(super) fn tls_settings(certificate: &Path, protocol: &'static [u8]) -> Result<TlsConnector> {
    TlsConnector::forget_shared();
    let tls = TlsConnector::new(TlsRoots::File(certificate.join("cert.pem")), protocol);
    tls.config()?;
    Ok(tls)
}

/// The kind of connection that an operation uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::commands::ledger) enum ConnectionHandshakeKind {
    /// The connection of the previous operation, which is reused.
    Kept,
    /// A new connection over TCP.
    Tcp,
    /// A new connection with a full TLS handshake (RFC 8446 section 2).
    FullTls,
    /// A new connection that resumes an earlier TLS session (RFC 8446 section 2.2).
    ResumedTls,
}

/// An exchange of the smallest request and its response, on the connection that `setup` selects.
pub(in crate::commands::ledger) struct TcpConnectionComponent {
    setup: ConnectionHandshakeKind,
    certificate: PathBuf,
    /// The TLS settings of the next operation. A session can be resumed only with the settings that opened it.
    settings: Option<Arc<ClientConfig>>,
    connection: Option<Connection>,
    server: PeerServer,
}

enum Connection {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Connection {
    fn exchange(&mut self) -> io::Result<()> {
        let (request, mut response) = (short_order().to_bytes(), [0; ORDER_BYTES]);
        let mut exchange = |socket: &mut dyn ReadWrite| {
            socket.write_all(&request)?;
            socket.read_exact(&mut response)
        };
        match self {
            Connection::Plain(socket) => exchange(socket),
            Connection::Tls(stream) => exchange(&mut **stream),
        }
    }
}

trait ReadWrite: Read + Write {}

impl<T: Read + Write> ReadWrite for T {}

impl TcpConnectionComponent {
    /// Starts the responding process, which uses the certificate in this directory.
    pub(in crate::commands::ledger) fn new(
        setup: ConnectionHandshakeKind,
        certificate: &Path,
    ) -> Result<Self> {
        let kind = match setup {
            ConnectionHandshakeKind::Kept | ConnectionHandshakeKind::Tcp => "connect",
            ConnectionHandshakeKind::FullTls | ConnectionHandshakeKind::ResumedTls => "connect-tls",
        };
        let server = PeerServer::start(kind, certificate)?;
        let certificate = certificate.to_owned();
        Ok(TcpConnectionComponent { setup, certificate, settings: None, connection: None, server })
    }

    fn connect(&self) -> io::Result<Connection> {
        let socket = TcpStream::connect(self.server.address)?;
        socket.set_nodelay(true)?;
        let Some(settings) = &self.settings else { return Ok(Connection::Plain(socket)) };
        let name = ServerName::from(self.server.address.ip());
        let session = ClientConnection::new(settings.clone(), name).map_err(io::Error::other)?;
        Ok(Connection::Tls(Box::new(StreamOwned::new(session, socket))))
    }

    /// Returns the kind of the last handshake; `None` without TLS.
    fn handshake(&self) -> Option<HandshakeKind> {
        match &self.connection {
            Some(Connection::Tls(stream)) => stream.conn.handshake_kind(),
            _ => None,
        }
    }
}

/// Closes a connection with a reset, so that its port is free immediately. Otherwise, thousands of closed connections
/// would use up the ports of the machine.
fn discard(connection: Connection) {
    let socket = match &connection {
        Connection::Plain(socket) => socket,
        Connection::Tls(stream) => &stream.sock,
    };
    let _ = set_socket_linger(socket, Some(Duration::ZERO));
}

impl LedgerComponent for TcpConnectionComponent {
    fn moves_content(&self) -> bool {
        false
    }

    fn prepare(&mut self, _: u64) -> Result<()> {
        if self.setup == ConnectionHandshakeKind::ResumedTls && self.settings.is_none() {
            self.settings = Some(tls_settings(&self.certificate, b"http/1.1")?.config()?);
            // Open the session that later operations resume.
            self.run()?;
        }
        Ok(())
    }

    fn before(&mut self) -> Result<()> {
        if self.setup != ConnectionHandshakeKind::Kept {
            self.connection.take().into_iter().for_each(discard);
        }
        if self.setup == ConnectionHandshakeKind::FullTls {
            self.settings = Some(tls_settings(&self.certificate, b"http/1.1")?.config()?);
        }
        Ok(())
    }

    fn run(&mut self) -> Result<()> {
        let failed = |error| file_error("connecting to", self.server.address, error);
        let mut connection = match self.connection.take() {
            Some(kept) => kept,
            None => self.connect().map_err(failed)?,
        };
        connection.exchange().map_err(failed)?;
        self.connection = Some(connection);
        Ok(())
    }

    fn check(&self) -> Result<()> {
        let expected = match self.setup {
            ConnectionHandshakeKind::Kept | ConnectionHandshakeKind::Tcp => None,
            ConnectionHandshakeKind::FullTls => Some(HandshakeKind::Full),
            ConnectionHandshakeKind::ResumedTls => Some(HandshakeKind::Resumed),
        };
        match self.handshake() == expected {
            true => Ok(()),
            false => {
                let why = format!("the handshake was {:?}, not {expected:?}", self.handshake());
                Err(Error::new(ErrorKind::BadResponse, why))
            }
        }
    }

    fn server_pid(&self) -> Option<u32> {
        self.server.pid()
    }
}

/// Reads and parses the trusted certificates, as our client does before its first connection.
pub(in crate::commands::ledger) struct TrustedCertificatesComponent(pub(in crate::commands::ledger) PathBuf);

impl LedgerComponent for TrustedCertificatesComponent {
    fn moves_content(&self) -> bool {
        false
    }

    fn prepare(&mut self, _: u64) -> Result<()> {
        Ok(())
    }

    fn run(&mut self) -> Result<()> {
        tls_settings(&self.0, b"http/1.1").map(drop)
    }
}
