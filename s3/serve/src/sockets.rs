//! The sockets on which a gateway listens. The gateway binds them itself, or a service manager passes them to the
//! gateway.

use std::io;
#[cfg(feature = "http3")]
use std::net::UdpSocket;
use std::net::{SocketAddr, TcpListener};

use fordway_store::{Error, ErrorKind, Result};
use fordway_sys::{ActivationSocket, ActivationSocketKind};

use crate::GatewayConfig;
#[cfg(feature = "http3")]
use crate::http3::QuicListener;

/// The name that marks the metrics socket among the passed sockets.
const METRICS_NAME: &str = "metrics";

/// The listening sockets of a gateway.
pub struct GatewaySockets {
    pub(crate) http: TcpListener,
    pub(crate) metrics: Option<TcpListener>,
    #[cfg(feature = "http3")]
    pub(crate) quic: Option<UdpSocket>,
}

/// The maximum number of free TCP ports that are tried to find a port number that is also free for UDP.
#[cfg(feature = "http3")]
const PORTS_TRIED: usize = 100;

impl GatewaySockets {
    /// Binds the addresses of `config`. Errors: as for [`Gateway::bind`](crate::Gateway::bind).
    pub fn bind(config: &GatewayConfig) -> Result<Self> {
        ProvidedSockets::default().complete(config)
    }

    /// Takes sockets passed by a service manager, and binds the addresses for which no socket was passed. The socket
    /// named `metrics` is for metrics, the other listening socket is for S3, and a datagram socket is for HTTP/3.
    ///
    /// If the service manager keeps the sockets open while it replaces the gateway, no connection attempt fails. New
    /// connections wait in the kernel's queue until the next gateway accepts them. Errors: `InvalidArgument` if no
    /// socket is for S3, or if the gateway cannot use a socket; errors from [`GatewaySockets::bind`].
    pub fn passed(sockets: Vec<ActivationSocket>, config: &GatewayConfig) -> Result<Self> {
        let mut choice = ProvidedSockets::default();
        sockets.into_iter().try_for_each(|socket| choice.take(socket))?;
        if choice.http.is_none() {
            let why = "the service manager passed no socket for S3; set its address in ListenStream=";
            return Err(Error::new(ErrorKind::InvalidArgument, why));
        }
        choice.complete(config)
    }

    pub(crate) fn local_addr(&self) -> Result<SocketAddr> {
        let unknown = |error| Error::new(ErrorKind::Io, "reading the socket's address").caused_by(error);
        self.http.local_addr().map_err(unknown)
    }
}

/// The sockets that a service manager has passed, and that the gateway uses instead of new sockets.
#[derive(Default)]
struct ProvidedSockets {
    http: Option<TcpListener>,
    metrics: Option<TcpListener>,
    #[cfg(feature = "http3")]
    quic: Option<UdpSocket>,
}

impl ProvidedSockets {
    fn take(&mut self, ActivationSocket { name, role, socket }: ActivationSocket) -> Result<()> {
        let replaced = match role {
            ActivationSocketKind::StreamListener if name == METRICS_NAME => {
                self.metrics.replace(socket.into()).is_some()
            }
            ActivationSocketKind::StreamListener => self.http.replace(socket.into()).is_some(),
            #[cfg(feature = "http3")]
            ActivationSocketKind::Datagram => self.quic.replace(socket.into()).is_some(),
            _ => true,
        };
        if replaced {
            let why = format!(
                "the service manager passed a socket named {name:?} that the gateway cannot use; pass one listening \
                 socket for S3, at most one named {METRICS_NAME:?}, and at most one UDP socket for HTTP/3"
            );
            return Err(Error::new(ErrorKind::InvalidArgument, why));
        }
        Ok(())
    }

    fn complete(self, config: &GatewayConfig) -> Result<GatewaySockets> {
        #[cfg(feature = "http3")]
        let (http, quic) = match (self.http, self.quic) {
            (None, None) if config.http3 && config.listen.port() == 0 => {
                let (http, quic) = listen_on_one_port(config.listen, UdpSocket::bind)?;
                (http, Some(quic))
            }
            (http, quic) => (http.map_or_else(|| listen(config.listen), Ok)?, quic),
        };
        #[cfg(not(feature = "http3"))]
        let http = self.http.map_or_else(|| listen(config.listen), Ok)?;
        let metrics = match (self.metrics, config.metrics) {
            (None, Some(address)) => Some(listen(address)?),
            (passed, _) => passed,
        };
        for listener in [Some(&http), metrics.as_ref()].into_iter().flatten() {
            listener.set_nonblocking(true).map_err(|error| cannot_listen(config.listen, error))?;
        }
        #[cfg(feature = "http3")]
        let quic = quic_socket(quic, &http, config)?;
        Ok(GatewaySockets {
            http,
            metrics,
            #[cfg(feature = "http3")]
            quic,
        })
    }
}

/// Returns the socket for HTTP/3: `passed`, or a new socket bound to the address of `http`. Errors: as for
/// [`GatewaySockets::passed`]; `InvalidArgument` if there is no certificate.
#[cfg(feature = "http3")]
fn quic_socket(
    passed: Option<UdpSocket>,
    http: &TcpListener,
    config: &GatewayConfig,
) -> Result<Option<UdpSocket>> {
    let refused = |why| Err(Error::new(ErrorKind::InvalidArgument, why));
    let failed = |error| cannot_listen(config.listen, error);
    match (config.http3, passed) {
        (false, None) => Ok(None),
        (false, Some(_)) => {
            refused("the service manager passed a UDP socket; use --http3 to serve HTTP/3 on it")
        }
        (true, _) if config.tls.is_none() => {
            refused("HTTP/3 is always encrypted; specify a certificate and its key")
        }
        (true, passed) => {
            let bind = || UdpSocket::bind(http.local_addr()?);
            let socket = passed.map_or_else(bind, Ok).map_err(failed)?;
            QuicListener::prepare(&socket).map_err(failed)?;
            Ok(Some(socket))
        }
    }
}

/// Binds a TCP socket to a free port, and a UDP socket for HTTP/3 to the same port with `bind_udp`. The kernel chooses
/// a free TCP port, but another program may use the UDP port with this number, so up to [`PORTS_TRIED`] ports are
/// tried. Errors: as for [`GatewaySockets::bind`].
#[cfg(feature = "http3")]
fn listen_on_one_port(
    address: SocketAddr,
    bind_udp: impl Fn(SocketAddr) -> io::Result<UdpSocket>,
) -> Result<(TcpListener, UdpSocket)> {
    // The kernel could choose the port of a closed socket again, so the sockets stay open until a port is found.
    let mut tried = Vec::new();
    loop {
        let http = listen(address)?;
        match http.local_addr().and_then(&bind_udp) {
            Ok(quic) => return Ok((http, quic)),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => tried.push(http),
            Err(error) => return Err(cannot_listen(address, error)),
        }
        if tried.len() == PORTS_TRIED {
            let detail = format!(
                "HTTP/3 needs the UDP port with the number of the TCP port, and other programs use the UDP ports of \
                 {PORTS_TRIED} free TCP ports at {}; choose a port that is free for both",
                address.ip()
            );
            return Err(Error::new(ErrorKind::InvalidArgument, detail));
        }
    }
}

fn listen(address: SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(address).map_err(|error| cannot_listen(address, error))
}

pub(crate) fn cannot_listen(address: SocketAddr, error: io::Error) -> Error {
    let (kind, detail) = match error.kind() {
        io::ErrorKind::AddrInUse => (
            ErrorKind::InvalidArgument,
            format!(
                "{address} is in use by another program; choose another port, or port 0 for any free one"
            ),
        ),
        io::ErrorKind::AddrNotAvailable => (
            ErrorKind::InvalidArgument,
            format!("{address} is not an address of this machine; try 127.0.0.1 or 0.0.0.0"),
        ),
        io::ErrorKind::PermissionDenied => (
            ErrorKind::AccessDenied,
            format!(
                "you may not listen on {address}; ports below 1024 need privileges, so choose a higher one"
            ),
        ),
        _ => (ErrorKind::Io, format!("listening on {address}")),
    };
    Error::new(kind, detail).caused_by(error)
}

#[cfg(all(test, feature = "http3"))]
mod tests {
    use std::cell::Cell;
    use std::net::Ipv4Addr;

    use super::*;

    /// Binds a TCP and a UDP socket. Pretends that other programs use the first `taken` UDP ports that are tried.
    fn bound(taken: usize) -> Result<(TcpListener, UdpSocket)> {
        let tried = Cell::new(0);
        listen_on_one_port((Ipv4Addr::LOCALHOST, 0).into(), |address| {
            tried.set(tried.get() + 1);
            if tried.get() > taken { UdpSocket::bind(address) } else { Err(io::ErrorKind::AddrInUse.into()) }
        })
    }

    #[test]
    fn a_port_is_chosen_that_is_free_for_tcp_and_udp() {
        for taken in [0, 1, PORTS_TRIED - 1] {
            let (http, quic) = bound(taken).unwrap();
            assert_eq!(http.local_addr().unwrap(), quic.local_addr().unwrap());
        }
        let error = bound(PORTS_TRIED).unwrap_err();
        assert!(error.detail().contains("choose a port"), "{error}");
    }
}
