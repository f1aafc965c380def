//! The UDP socket, its certificate, and connections as they come.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fordway_store::{Error, ErrorKind, Result};
use quinn::crypto::rustls::QuicServerConfig;
use quinn::{Endpoint, EndpointConfig, Incoming, TokioRuntime, TransportConfig, VarInt};
use rustls::ServerConfig;

use crate::Tls;
use crate::gateway::cannot_listen;

/// Requests in progress on one connection.
const STREAMS_MAX: u32 = 256;
/// What a client may send on one request before it is read; 1 ms away, that is 1 GiB/s.
const STREAM_WINDOW_BYTES: u32 = 1 << 20;
/// What a client may send on all requests before it is read: a bound on what it makes us keep.
const CONNECTION_WINDOW_BYTES: u32 = 2 << 20;
/// What is kept of all answers of a connection until the client has confirmed it.
const SEND_WINDOW_BYTES: u64 = 2 << 20;
/// Clients that wait for a slot, and the bytes that are kept of all of them; others are refused.
const WAITING_MAX: usize = 1024;
const WAITING_BYTES_MAX: u64 = 16 << 20;
/// What the kernel is asked to keep of datagrams, in either direction.
const SOCKET_BUFFER_BYTES: usize = 4 << 20;

/// A UDP socket that waits for clients.
pub(crate) struct Listener {
    endpoint: Endpoint,
    tls: Tls,
    idle_timeout: Duration,
    made: Mutex<Option<Made>>,
}

/// What clients are shown, and what it was made of.
struct Made {
    of: Arc<ServerConfig>,
    config: Arc<quinn::ServerConfig>,
}

/// A client whose handshake is still to come.
pub(crate) struct Accepted {
    incoming: Incoming,
    config: Arc<quinn::ServerConfig>,
}

impl Accepted {
    pub(super) fn remote(&self) -> SocketAddr {
        self.incoming.remote_address()
    }

    /// From here on the connection belongs to the thread that this is called on.
    pub(super) async fn handshake(self) -> io::Result<quinn::Connection> {
        Ok(self.incoming.accept_with(self.config)?.await?)
    }
}

impl Listener {
    /// Binds the address. Errors: `InvalidArgument`, `AccessDenied`, `Io`.
    pub(crate) fn bind(address: SocketAddr) -> Result<UdpSocket> {
        let failed = |error| cannot_listen(address, error);
        let socket = UdpSocket::bind(address).map_err(failed)?;
        socket.set_nonblocking(true).map_err(failed)?;
        // The kernel gives what it may; less costs speed, and nothing else.
        let _ = rustix::net::sockopt::set_socket_recv_buffer_size(&socket, SOCKET_BUFFER_BYTES);
        let _ = rustix::net::sockopt::set_socket_send_buffer_size(&socket, SOCKET_BUFFER_BYTES);
        Ok(socket)
    }

    /// Listens, in the runtime that this is called in. Errors: `InvalidArgument`, `Io`.
    pub(crate) fn start(socket: UdpSocket, tls: Tls, idle_timeout: Duration) -> Result<Self> {
        let first = config(&tls.current(), idle_timeout)?;
        let endpoint = Endpoint::new(EndpointConfig::default(), Some(first), socket, Arc::new(TokioRuntime))
            .map_err(|error| Error::new(ErrorKind::Io, "listening for HTTP/3").caused_by(error))?;
        Ok(Listener { endpoint, tls, idle_timeout, made: Mutex::default() })
    }

    /// The next client; `None` when the socket is closed.
    pub(crate) async fn accept(&self) -> Option<Accepted> {
        loop {
            let incoming = self.endpoint.accept().await?;
            match self.config() {
                Ok(config) => return Some(Accepted { incoming, config }),
                Err(error) => {
                    tracing::error!(%error, "a client of HTTP/3 is refused");
                    incoming.refuse();
                }
            }
        }
    }

    /// What a client is shown now: the certificate may have been exchanged since.
    fn config(&self) -> Result<Arc<quinn::ServerConfig>> {
        let current = self.tls.current();
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(made) = made.as_ref().filter(|made| Arc::ptr_eq(&made.of, &current)) {
            return Ok(made.config.clone());
        }
        let config = Arc::new(config(&current, self.idle_timeout)?);
        *made = Some(Made { of: current, config: config.clone() });
        Ok(config)
    }

    /// Takes no more clients.
    pub(crate) fn refuse_all(&self) {
        self.endpoint.set_server_config(None);
    }

    /// Closes what is still open, and waits until clients were told.
    pub(crate) async fn close(&self) {
        self.endpoint.close(VarInt::from_u32(0), b"the gateway ended");
        let _ = tokio::time::timeout(Duration::from_secs(1), self.endpoint.wait_idle()).await;
    }
}

fn config(tls: &ServerConfig, idle_timeout: Duration) -> Result<quinn::ServerConfig> {
    let failed =
        |why: &'static str| move |error| Error::new(ErrorKind::InvalidArgument, why).caused_by(error);
    let mut tls = tls.clone();
    tls.alpn_protocols = vec![b"h3".to_vec()];
    let crypto = QuicServerConfig::try_from(Arc::new(tls))
        .map_err(|error| failed("the certificate cannot be used for HTTP/3")(io::Error::other(error)))?;
    let mut transport = TransportConfig::default();
    let idle = idle_timeout
        .try_into()
        .map_err(|error| failed("the header timeout is too long for HTTP/3")(io::Error::other(error)))?;
    transport
        .max_concurrent_bidi_streams(VarInt::from_u32(STREAMS_MAX))
        .stream_receive_window(VarInt::from_u32(STREAM_WINDOW_BYTES))
        .receive_window(VarInt::from_u32(CONNECTION_WINDOW_BYTES))
        .send_window(SEND_WINDOW_BYTES)
        .max_idle_timeout(Some(idle));
    let mut config = quinn::ServerConfig::with_crypto(Arc::new(crypto));
    config
        .max_incoming(WAITING_MAX)
        .incoming_buffer_size_total(WAITING_BYTES_MAX)
        .transport_config(Arc::new(transport));
    Ok(config)
}
