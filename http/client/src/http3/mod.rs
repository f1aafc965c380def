//! HTTP/3 (RFC 9114): requests over QUIC. To its caller, a connection is an HTTP/1.1 connection. A thread translates
//! between one end of a pair of sockets and QUIC. Pipelining, polling, framing and timeouts therefore work as on any
//! other connection, and each request still has a QUIC stream of its own.
//!
//! Cost, compared with HTTP/1.1: one thread per connection, and two more copies and two more switches between threads
//! per message.

mod bridge;
mod filtered;
pub(crate) mod frames;

use std::future::pending;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use fordway_store::{Error, ErrorKind, Result};
use quinn::congestion::{BbrConfig, NewRenoConfig};
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ConnectionError, TransportConfig, VarInt};
use tokio::task::{JoinSet, LocalSet};

pub use filtered::{FilteredBidiStream, FilteredConnection, FilteredOpener, FilteredRecvStream};
use frames::FrameViolation;

use super::dial::NEXT_ADDRESS_AFTER;
use super::socket::TcpSocket;
use super::tls::{TlsConnector, alert_refusal, certificate_in_words};
use super::{Origin, Timeouts};

/// The flow-control window per request: the bandwidth-delay product of 1 Gbit/s and 60 ms. The connection as a whole
/// has no window. Responses are read in order, so bytes of later responses could use up a window of the whole
/// connection and block the first response. A server can therefore make a connection buffer this many bytes for each of
/// [`bridge::PIPELINE_MAX`] requests (256 MiB).
const WINDOW_BYTES: u32 = 8 << 20;
/// The interval between packets on an otherwise silent connection. A server may take minutes to respond. Meanwhile,
/// these packets prevent the server and firewalls from closing the connection as abandoned.
const KEEP_ALIVE: Duration = Duration::from_secs(5);
/// The time to wait until the packet that closes a connection has been sent.
const FAREWELL: Duration = Duration::from_millis(100);

/// The reason why a connection ended, if known. The connection's caller receives this reason as an error.
#[derive(Clone, Debug, Default)]
pub(super) struct ConnectionEndReason(Arc<OnceLock<(ErrorKind, String)>>);

impl ConnectionEndReason {
    /// Returns the reason as an error, if there is one.
    pub(super) fn error(&self) -> Option<Error> {
        self.0.get().map(|(kind, why)| Error::new(*kind, why.clone()))
    }

    /// Records the reason if the server refused the client's certificate. A server checks the certificate after the
    /// client's handshake has ended.
    fn tell(&self, quic: &quinn::Connection) {
        let refused = quic.close_reason().and_then(|end| received_alert(&end)).and_then(alert_refusal);
        refused.iter().for_each(|error| self.set(error));
    }

    /// Records why the connection ends, unless a reason has already been recorded.
    fn set(&self, error: &Error) {
        let _ = self.0.set((error.kind(), error.detail().to_owned()));
    }
}

/// Returns the error of a connection that was closed because the server violated HTTP/3.
fn violation_error(violation: &FrameViolation) -> Error {
    Error::new(ErrorKind::BadResponse, format!("the server violated HTTP/3: {violation}"))
        .caused_by(*violation)
}

/// Connects, and returns the caller's end of a socket pair, over which the caller speaks HTTP/1.1. Errors:
/// `Unavailable`, `Timeout`; `BadResponse` for an untrusted certificate; `InvalidArgument`.
pub(super) fn connect(origin: &Origin, timeouts: &Timeouts, tls: &TlsConnector) -> Result<TcpSocket> {
    let failed = |error: std::io::Error| {
        Error::new(ErrorKind::Io, format!("setting up HTTP/3 with {origin}")).caused_by(error)
    };
    let config = quic_config(origin, tls)?;
    let (ours, theirs) = UnixStream::pair().map_err(failed)?;
    theirs.set_nonblocking(true).map_err(failed)?;
    let (report, outcome) = sync_channel(1);
    let (host, limits, notice) = (origin.clone(), *timeouts, ConnectionEndReason::default());
    let ours_to_read = notice.clone();
    let run = move || translate(&host, config, (theirs, limits), &report, &notice);
    let thread = std::thread::Builder::new().name("http3".to_owned());
    // Signals belong to the program's own threads. Without this mask, a caller that closes its end early would also end
    // a program that does not ignore SIGPIPE: tokio writes to the pair without MSG_NOSIGNAL.
    fordway_sys::with_signals_blocked(|| thread.spawn(run)).map_err(failed)?;
    wait_for(&outcome, origin, timeouts.connect)?;
    TcpSocket::bridged(OwnedFd::from(ours), timeouts, ours_to_read)
}

/// Waits until the handshake has ended. Errors: the error of the handshake; `Timeout`, `Interrupted`.
fn wait_for(outcome: &Receiver<Result<()>>, origin: &Origin, limit: Duration) -> Result<()> {
    let until = Instant::now() + limit;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        match outcome.recv_timeout(fordway_sys::wait_at_most(left)) {
            Ok(connected) => return connected,
            Err(RecvTimeoutError::Timeout) if !left.is_zero() => {
                fordway_sys::after_signal().map_err(|_| {
                    Error::new(ErrorKind::Interrupted, "a signal arrived during the handshake")
                })?;
            }
            Err(RecvTimeoutError::Timeout) => return Err(not_in_time(origin, limit)),
            Err(RecvTimeoutError::Disconnected) => return Err(ErrorKind::Internal.into()),
        }
    }
}

/// The advice for a server that cannot be reached over HTTP/3.
const OTHERWISE: &str = "use HTTP 1.1 or 2 (FORDWAY_HTTP_VERSION)";

fn not_in_time(origin: &Origin, limit: Duration) -> Error {
    let detail = format!(
        "{origin} did not complete a QUIC handshake within {limit:?}; check that it supports HTTP/3 and that no firewall \
         stops UDP packets to port {}, or {OTHERWISE}",
        origin.port
    );
    Error::new(ErrorKind::Timeout, detail)
}

/// Runs a connection until either side ends it. Reports the outcome of the handshake.
fn translate(
    origin: &Origin,
    config: quinn::ClientConfig,
    (socket, timeouts): (UnixStream, Timeouts),
    report: &SyncSender<Result<()>>,
    notice: &ConnectionEndReason,
) {
    let limit = timeouts.connect;
    let failed = |error: std::io::Error| {
        Error::new(ErrorKind::Io, format!("setting up HTTP/3 with {origin}")).caused_by(error)
    };
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return drop(report.send(Err(failed(error)))),
    };
    LocalSet::new().block_on(&runtime, async {
        let connected = tokio::time::timeout(limit, connect_quic(origin, config)).await;
        let connected = connected.unwrap_or_else(|_| Err(not_in_time(origin, limit)));
        let socket = tokio::net::UnixStream::from_std(socket).map_err(failed);
        match connected.and_then(|quic| Ok((quic, socket?))) {
            Ok((quic, socket)) => {
                if report.send(Ok(())).is_ok() {
                    // A pool closes its idle connections before this limit.
                    bridge::run(socket, &quic, 2 * timeouts.idle, notice).await;
                }
                quic.close(VarInt::from_u32(0x100), b"");
                // Without this wait, the runtime could end before the packet is sent.
                tokio::time::sleep(FAREWELL).await;
            }
            Err(error) => drop(report.send(Err(error))),
        }
    });
}

/// Returns the settings of QUIC connections, which use the same congestion control as the kernel uses for TCP in this
/// network namespace. With other congestion control, HTTP/3 would be many times slower than HTTP/1.1 and 2 over a lossy
/// link where an administrator has chosen BBR for TCP (`bench/http-wan`). Cost: one small file is read.
pub fn quic_transport() -> TransportConfig {
    let mut transport = TransportConfig::default();
    // Nothing reads datagrams, but QUIC would store more than 1 MB of them for each connection.
    transport.datagram_receive_buffer_size(None);
    let name = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control").unwrap_or_default();
    if name.starts_with("bbr") {
        transport.congestion_controller_factory(Arc::new(BbrConfig::default()));
    } else if name.starts_with("reno") {
        transport.congestion_controller_factory(Arc::new(NewRenoConfig::default()));
    }
    transport
}

/// Returns the configuration of QUIC connections to `origin`. Errors: `InvalidArgument`.
fn quic_config(origin: &Origin, tls: &TlsConnector) -> Result<quinn::ClientConfig> {
    if !origin.tls {
        let detail =
            format!("HTTP/3 is always encrypted; write {origin} with https://, or use HTTP 1.1 or 2");
        return Err(Error::new(ErrorKind::InvalidArgument, detail));
    }
    let crypto = QuicClientConfig::try_from(tls.config()?)
        .map_err(|error| Error::new(ErrorKind::Internal, "setting up QUIC").caused_by(error))?;
    let mut transport = quic_transport();
    transport.stream_receive_window(VarInt::from_u32(WINDOW_BYTES));
    transport.send_window(u64::from(WINDOW_BYTES));
    transport.keep_alive_interval(Some(KEEP_ALIVE));
    let mut config = quinn::ClientConfig::new(Arc::new(crypto));
    config.transport_config(Arc::new(transport));
    Ok(config)
}

/// Opens a QUIC connection for HTTP/3. If the host has several addresses, uses the first address that completes the
/// handshake. Must run in a [`LocalSet`]. Sets no time limit. Errors: as for [`connect`].
pub async fn open_quic(origin: &Origin, tls: &TlsConnector) -> Result<quinn::Connection> {
    connect_quic(origin, quic_config(origin, tls)?).await
}

async fn connect_quic(origin: &Origin, config: quinn::ClientConfig) -> Result<quinn::Connection> {
    let unreachable = |error: std::io::Error| {
        Error::new(ErrorKind::Unavailable, format!("no QUIC connection to {origin}")).caused_by(error)
    };
    let addresses = tokio::net::lookup_host((origin.host.as_str(), origin.port)).await;
    let mut attempts = JoinSet::new();
    // Attempts overlap, because waiting for a handshake to fail would take too long. A UDP packet to a closed port is
    // not always refused, and QUIC's handshake timeout is longer than this client's.
    for (rank, address) in (0..).zip(addresses.map_err(unreachable)?) {
        let (config, origin) = (config.clone(), origin.clone());
        attempts.spawn_local(async move {
            tokio::time::sleep(NEXT_ADDRESS_AFTER * rank).await;
            connect_to(address, config, &origin).await
        });
    }
    let mut last = Error::new(ErrorKind::Unavailable, format!("{origin} has no address"));
    while let Some(attempt) = attempts.join_next().await {
        match attempt {
            Ok(Ok(connection)) => return Ok(connection),
            Ok(Err(error)) => last = error,
            Err(error) => last = unreachable(std::io::Error::other(error)),
        }
    }
    Err(last)
}

async fn connect_to(
    address: SocketAddr,
    config: quinn::ClientConfig,
    origin: &Origin,
) -> Result<quinn::Connection> {
    let failed = |kind| Error::new(kind, format!("no QUIC connection to {origin}"));
    let endpoint = quinn::Endpoint::client(unspecified(address))
        .map_err(|error| failed(ErrorKind::Unavailable).caused_by(error))?;
    let connecting = endpoint
        .connect_with(config, address, &origin.host)
        .map_err(|error| failed(ErrorKind::InvalidArgument).caused_by(error))?;
    tokio::select! {
        connected = connecting => connected.map_err(|error| handshake_failure(error, origin)),
        error = refusal(address) => {
            let detail = format!("{origin} accepts no UDP packets at port {}, which HTTP/3 needs; {OTHERWISE}", origin.port);
            Err(Error::new(ErrorKind::Unavailable, detail).caused_by(error))
        }
    }
}

/// Returns the local address to which a socket for packets to `address` is bound.
fn unspecified(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    }
}

/// Returns as soon as the address refuses packets, as a closed port does; otherwise never returns. The kernel reports
/// a refusal only to a connected socket, and QUIC's socket is not connected. A QUIC server drops the probe packet,
/// because it is too short.
async fn refusal(address: SocketAddr) -> io::Error {
    let probe = async {
        let socket = tokio::net::UdpSocket::bind(unspecified(address)).await?;
        socket.connect(address).await?;
        socket.send(&[0]).await?;
        socket.recv(&mut [0]).await
    };
    match probe.await {
        Err(error) => error,
        Ok(_) => pending().await,
    }
}

fn handshake_failure(error: ConnectionError, origin: &Origin) -> Error {
    use rustls::AlertDescription as Alert;
    let no_connection = format!("no QUIC connection to {origin}");
    let unsupported = || (ErrorKind::BadResponse, format!("{origin} does not support HTTP/3; {OTHERWISE}"));
    let (kind, detail) = match &error {
        ConnectionError::TransportError(told) if alert(told.code) == Some(Alert::NoApplicationProtocol) => {
            unsupported()
        }
        // The certificate is not trusted. Another attempt would not help.
        ConnectionError::TransportError(told) if alert(told.code).is_some() => {
            let detail = no_connection + certificate_in_words(&told.reason);
            return Error::new(ErrorKind::BadResponse, detail).at_untrusted_server().caused_by(error);
        }
        ConnectionError::TimedOut => (ErrorKind::Timeout, format!("{no_connection}; {OTHERWISE}")),
        _ => match received_alert(&error) {
            Some(Alert::NoApplicationProtocol) => unsupported(),
            Some(alert) => alert_refusal(alert).map_or((ErrorKind::BadResponse, no_connection), |refused| {
                (refused.kind(), refused.detail().to_owned())
            }),
            None => (ErrorKind::Unavailable, format!("{no_connection}; {OTHERWISE}")),
        },
    };
    Error::new(kind, detail).caused_by(error)
}

/// Returns the TLS alert with which the server ended a connection, if any.
fn received_alert(end: &ConnectionError) -> Option<rustls::AlertDescription> {
    if let ConnectionError::ConnectionClosed(told) = end { alert(told.error_code) } else { None }
}

/// Returns the TLS alert that this error code contains, if any (RFC 9001 section 4.8).
fn alert(code: quinn::TransportErrorCode) -> Option<rustls::AlertDescription> {
    let alert = u64::from(code).checked_sub(0x100)?;
    u8::try_from(alert).ok().map(rustls::AlertDescription::from)
}
