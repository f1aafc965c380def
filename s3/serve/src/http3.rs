//! HTTP/3 (RFC 9114). quinn implements QUIC, and h3 implements frames. This module implements limits and the transfer
//! of content.
//!
//! Responses of one connection take turns. QUIC keeps data that the client has not acknowledged, up to a limit for the
//! whole connection. When the amount of data falls below this limit again, quinn wakes the latest waiter first, so the
//! first of many waiters may wait forever. Therefore only a few responses wait in quinn, and the others wait in this
//! module, in order.

mod turns;
mod window;

use std::future::{Future, poll_fn};
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::fs::MetadataExt as _;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use fordway_http::parts::{FilteredBidiStream, FilteredConnection, FilteredRecvStream, quic_transport};
use fordway_store::{Error, ErrorKind, Result};
use fordway_wire::range::digits;
use h3::error::{Code, ConnectionError};
use h3::server::{RequestResolver, RequestStream};
use h3_quinn::SendStream;
use http::{HeaderMap, Method, Request, Response, StatusCode, header};
use http_body::{Body, Frame, SizeHint};
use quinn::crypto::rustls::QuicServerConfig;
use quinn::{
    ConnectionId, ConnectionIdGenerator, Endpoint, EndpointConfig, Incoming, TokioRuntime, TransportConfig,
    VarInt,
};
use rustls::ServerConfig;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::task::JoinSet;
use tokio::time::error::Elapsed;
use tokio::time::{Instant, timeout};

use crate::answer::{ConnectionRequestLimits, GatewayState};
use crate::connection::WaitDeadline;
use crate::gateway::StopReceiver;
use crate::http1::STALLED;
use crate::limits::ConnectionLimitState;
use crate::multiplexed::{ClientWait, ReplyBody, SharedConnectionState};
use crate::tls::{GatewaySecret, TlsVersion};
use crate::unsigned::ConnectionPeer;
use crate::{TlsCertificate, multiplexed};
use turns::{ResponseScheduler, SendingSlice, SliceSender};
use window::{ConnectionMemory, ConnectionWindows};

/// The maximum time that a client may take, after the gateway has sent the last response, to receive it and close the
/// connection.
const LINGER: Duration = Duration::from_millis(500);

/// The idle time after which the send window of a connection is shrunk again, and the interval between two attempts to
/// shrink it.
const REST_AFTER: Duration = Duration::from_secs(1);

/// The error code sent to a client whose address has too many connections (H3_EXCESSIVE_LOAD, RFC 9114 section 8.1).
const EXCESSIVE_LOAD: VarInt = VarInt::from_u32(0x107);

/// A connection, and the memory that QUIC needs for it.
type TrackedConnection = (quinn::Connection, ConnectionMemory);
type Http3ServerConnection = h3::server::Connection<FilteredConnection, Bytes>;
type AcceptedRequest = std::result::Result<Option<Http3RequestResolver>, ConnectionError>;
type Http3RequestResolver = RequestResolver<FilteredConnection, Bytes>;

/// Serves one connection until it ends, or until the gateway is stopped and the connection's requests in progress have
/// been answered.
///
/// `slot` is the connection's slot. A client whose address is not validated yet has no slot, and takes one of `slots`
/// after the handshake.
pub(crate) async fn serve(
    connection: PendingHandshake,
    (slot, slots): (Option<OwnedSemaphorePermit>, Arc<Semaphore>),
    shared: &Arc<GatewayState>,
    stopped: StopReceiver,
) {
    if let Err(error) = speak(connection, (slot, slots), shared, stopped).await {
        tracing::debug!(%error, "an HTTP/3 connection ended early");
    }
}

async fn speak(
    accepted: PendingHandshake,
    slots: (Option<OwnedSemaphorePermit>, Arc<Semaphore>),
    shared: &Arc<GatewayState>,
    stopped: StopReceiver,
) -> io::Result<()> {
    // QUIC always uses TLS 1.3 (RFC 9001).
    let caller = ConnectionPeer::Remote { address: accepted.remote(), tls: Some(TlsVersion::V1_3) };
    let Some((quic, account, slot)) = admit(accepted, slots, shared).await? else { return Ok(()) };
    let (windows, over) = (Arc::new(ConnectionWindows::new(quic)), stopped.clone());
    let outcome = converse((shared, &caller, account.clone(), windows.clone()), stopped).await;
    let ended = windows.ended();
    drop((windows, slot));
    tokio::select! {
        // Until QUIC has freed the memory, the connection counts for its address and its user. Other clients can use
        // its slot.
        () = ended.wait_until_freed(account) => {}
        // A stopping gateway accepts no more connections.
        () = over.over() => {}
    }
    outcome
}

/// Serves the requests of a connection.
async fn converse(
    (shared, caller, account, windows): (
        &Arc<GatewayState>,
        &ConnectionPeer,
        Arc<ConnectionLimitState>,
        Arc<ConnectionWindows>,
    ),
    stopped: StopReceiver,
) -> io::Result<()> {
    let head_bytes_max = shared.limits.head_bytes_max as u64;
    let mut connection: Http3ServerConnection = h3::server::builder()
        .max_field_section_size(head_bytes_max)
        .build(FilteredConnection::new(windows.connection().clone(), head_bytes_max))
        .await
        .map_err(io::Error::other)?;
    // When the connection ends, the set is dropped, which cancels the requests that are still in progress.
    let mut requests = JoinSet::new();
    let stop = stopped.over();
    take_requests(&mut connection, &mut requests, (shared, caller, account, windows), stop).await?;
    send_goaway(&mut connection, &mut requests).await?;
    while !requests.is_empty() {
        tokio::select! {
            _ = requests.join_next() => {}
            next = connection.accept() => drop(next.map_err(io::Error::other)?),
        }
    }
    // All responses have been sent. The client closes the connection after it has received all of them.
    let last = async { while let Ok(Some(_)) = connection.accept().await {} };
    let _ = timeout(LINGER, last).await;
    Ok(())
}

/// Sends the GOAWAY frame. A client that receives slowly may leave no room for it until the responses end, and a
/// client that acknowledges nothing leaves none at all. h3 does not send the rest of a frame later, so this function
/// waits.
async fn send_goaway(connection: &mut Http3ServerConnection, requests: &mut JoinSet<()>) -> io::Result<()> {
    // With the argument 1, the GOAWAY frame names the next request as the first request that is not served.
    let mut sent = pin!(connection.shutdown(1));
    while !requests.is_empty() {
        tokio::select! {
            sent = sent.as_mut() => return sent.map_err(io::Error::other),
            _ = requests.join_next() => {}
        }
    }
    timeout(LINGER, sent).await.unwrap_or(Ok(())).map_err(io::Error::other)
}

/// Performs the handshake and counts the connection. Returns `None` if the client's address has too many connections, or
/// if there is no slot for a client whose address was not validated. Errors: the errors of the connection; `TimedOut`.
async fn admit(
    accepted: PendingHandshake,
    (slot, slots): (Option<OwnedSemaphorePermit>, Arc<Semaphore>),
    shared: &GatewayState,
) -> io::Result<Option<(TrackedConnection, Arc<ConnectionLimitState>, OwnedSemaphorePermit)>> {
    let header_timeout = shared.limits.header_timeout;
    if let Some(slot) = slot {
        let Some(account) = shared.addresses.admit(accepted.remote().ip()) else {
            accepted.incoming.refuse();
            return Ok(None);
        };
        let (quic, _) = timeout(header_timeout, accepted.handshake()).await??;
        return Ok(Some((quic, account, slot)));
    }
    // The address is counted after the handshake, because before the handshake it may be spoofed. The permit is kept
    // until there is a slot, so that few connections wait for slots.
    let ((connection, memory), permit) = timeout(header_timeout, accepted.handshake()).await??;
    let account = shared.addresses.admit(connection.remote_address().ip());
    let slot = match account {
        Some(_) => timeout(header_timeout, slots.acquire_owned()).await.ok(),
        None => None,
    };
    if let (Some(account), Some(slot)) = (account.clone(), slot) {
        return Ok(Some(((connection, memory), account, slot.map_err(io::Error::other)?)));
    }
    connection.close(EXCESSIVE_LOAD, b"too many connections");
    drop(connection);
    // The permit is kept until QUIC has freed the memory, so that refused connections together use little memory.
    tokio::spawn(async move { memory.keep_until_freed((account, permit)).await });
    Ok(None)
}

/// Starts requests until the client closes the connection, `stop` is ready, or the connection has been idle for the
/// header timeout, or for the stall timeout if the client does not receive the end of its responses. Also stops if the
/// client sends too many requests without a valid signature, if its user has too many connections, or if the client has
/// moved to another address.
async fn take_requests(
    connection: &mut Http3ServerConnection,
    requests: &mut JoinSet<()>,
    (shared, caller, account, windows): (
        &Arc<GatewayState>,
        &ConnectionPeer,
        Arc<ConnectionLimitState>,
        Arc<ConnectionWindows>,
    ),
    stop: impl Future<Output = ()>,
) -> io::Result<()> {
    let mut stop = pin!(stop);
    let turns = Arc::new(ResponseScheduler::new(shared.limits.body.clone()));
    let state = SharedConnectionState::new(account);
    loop {
        let next = tokio::select! {
            next = next_request(connection, &shared.limits, &windows) => Some(next),
            // After each response, the loop checks whether the connection may remain open.
            Some(_) = requests.join_next() => None,
            () = stop.as_mut() => return Ok(()),
        };
        while requests.try_join_next().is_some() {}
        if !state.account.is_welcome() {
            return Ok(());
        }
        let Some(next) = next else { continue };
        match next {
            Ok(Ok(Some(request))) => {
                let with = (shared.clone(), state.clone());
                requests.spawn(answer(request, with, caller.clone(), (turns.clone(), windows.clone())));
                if has_moved(&windows, caller) {
                    return Ok(());
                }
            }
            Ok(Ok(None)) => return Ok(()),
            Ok(Err(error)) if error.is_h3_no_error() => return Ok(()),
            Ok(Err(error)) => return Err(io::Error::other(error)),
            Err(_) if requests.is_empty() && !windows.is_moving() => return Ok(()),
            Err(_) => {}
        }
    }
}

/// Waits for the next request, for at most the header timeout. A connection without responses needs no large send
/// window. While the client has not acknowledged what fills this window, waits at most for the stall timeout. If the
/// client's own limits prevent the gateway from finding this out, the header timeout applies.
async fn next_request(
    connection: &mut Http3ServerConnection,
    limits: &ConnectionRequestLimits,
    windows: &ConnectionWindows,
) -> std::result::Result<AcceptedRequest, Elapsed> {
    let limit = limits.header_timeout;
    match timeout(REST_AFTER.min(limit), connection.accept()).await {
        Ok(next) => return Ok(next),
        Err(over) if limit <= REST_AFTER => return Err(over),
        Err(_) => {}
    }
    // `is_moving` counts from here.
    windows.is_moving();
    let (since, limit) = (Instant::now(), limit - REST_AFTER);
    let mut patience = limits.body.stall_timeout.min(limit);
    while !windows.rest() {
        let left = patience.saturating_sub(since.elapsed());
        match timeout(REST_AFTER.min(left), connection.accept()).await {
            Ok(next) => return Ok(next),
            Err(over) if left.is_zero() && (patience == limit || windows.can_send()) => return Err(over),
            Err(_) if left.is_zero() => patience = limit,
            Err(_) => {}
        }
    }
    timeout(limit.saturating_sub(since.elapsed()), connection.accept()).await
}

async fn answer(
    request: Http3RequestResolver,
    (shared, state): (Arc<GatewayState>, SharedConnectionState),
    caller: ConnectionPeer,
    (turns, windows): (Arc<ResponseScheduler>, Arc<ConnectionWindows>),
) {
    if let Err(error) = exchange(request, (&shared, &state), &caller, (&turns, &windows)).await {
        tracing::debug!(%error, "a request over HTTP/3 ended early");
    }
}

async fn exchange(
    resolver: Http3RequestResolver,
    (shared, state): (&GatewayState, &SharedConnectionState),
    caller: &ConnectionPeer,
    ways: (&ResponseScheduler, &Arc<ConnectionWindows>),
) -> io::Result<()> {
    let limits = &shared.limits;
    let head = timeout(limits.header_timeout, resolver.resolve_request()).await?;
    let (request, stream): (Request<()>, RequestStream<FilteredBidiStream<Bytes>, Bytes>) =
        head.map_err(io::Error::other)?;
    let (mut send, mut receive) = stream.split();
    let stated = match checked_length(&request, &mut receive, limits).await {
        Ok(stated) => stated,
        Err(error) => {
            let code = reset_code(&error);
            // h3-quinn panics in `stop_sending` if the stream is waiting for data, for example after a timeout.
            // Dropping the stream also makes the client stop sending.
            if code == Code::H3_MESSAGE_ERROR {
                receive.stop_sending(code);
            }
            send.stop_stream(code);
            return Err(error);
        }
    };
    if has_moved(ways.1, caller) {
        // The client may send the request again on another connection (RFC 9114 section 4.1.1). Requests that began
        // before the client moved can end.
        receive.stop_sending(Code::H3_REQUEST_REJECTED);
        send.stop_stream(Code::H3_REQUEST_REJECTED);
        return Err(io::Error::new(
            io::ErrorKind::ConnectionAborted,
            "the client has moved to another address",
        ));
    }
    let (mut body, length) = body_of(&request, stated, (receive, ways.1, &state.account), limits);
    let go_on = body.as_mut().filter(|_| expects_continue(request.headers())).map(Http3RequestBody::go_on);
    // This future is larger than the state for sending the response. The future is boxed, so that its memory is freed
    // when the response begins.
    let with = (shared, state, ClientWait::default());
    let answering = Box::pin(multiplexed::exchange(with, caller, request.map(|()| body), length));
    let _in_progress = ways.1.response();
    let response = match go_on {
        None => answering.await,
        Some(go_on) => answer_expectation(answering, go_on, (&mut send, ways.0)).await?,
    };
    ways.1.open_for(&state.account);
    ways.1.belong_to_user_of(&state.account);
    let sent = send_answer(&mut send, response, ways).await;
    if sent.is_err() {
        // Resetting the stream prevents the client from mistaking a part of the response for the whole response.
        send.stop_stream(Code::H3_INTERNAL_ERROR);
    }
    sent
}

/// Returns whether the client no longer has the address of its handshake, which policies and the access log use. The
/// port may change, as behind a NAT.
fn has_moved(windows: &ConnectionWindows, caller: &ConnectionPeer) -> bool {
    let now = windows.connection().remote_address().ip();
    matches!(caller, ConnectionPeer::Remote { address, .. } if address.ip() != now)
}

/// Returns the code that tells a client why its request was reset (RFC 9114 section 8.1). A malformed request gets
/// `H3_MESSAGE_ERROR`. Any other request gets `H3_REQUEST_CANCELLED`, for example if its client is
/// too slow.
fn reset_code(error: &io::Error) -> Code {
    match error.kind() {
        io::ErrorKind::InvalidData => Code::H3_MESSAGE_ERROR,
        _ => Code::H3_REQUEST_CANCELLED,
    }
}

fn expects_continue(headers: &HeaderMap) -> bool {
    headers.get(header::EXPECT).is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"100-continue"))
}

/// Waits for the response. Sends `100 Continue` when the body is needed, which `go_on` reports.
async fn answer_expectation(
    mut answering: impl Future<Output = Response<ReplyBody>> + Unpin,
    go_on: oneshot::Receiver<()>,
    (send, turns): (&mut RequestStream<SendStream<Bytes>, Bytes>, &ResponseScheduler),
) -> io::Result<Response<ReplyBody>> {
    tokio::select! {
        biased;
        response = &mut answering => return Ok(response),
        Ok(()) = go_on => {}
    }
    let mut head = Response::new(());
    *head.status_mut() = StatusCode::CONTINUE;
    turns.send(send.send_response(head)).await?;
    Ok(answering.await)
}

async fn send_answer(
    send: &mut RequestStream<SendStream<Bytes>, Bytes>,
    response: Response<ReplyBody>,
    (turns, windows): (&ResponseScheduler, &Arc<ConnectionWindows>),
) -> io::Result<()> {
    let (mut parts, mut body) = response.into_parts();
    // HTTP/3 forbids headers that apply to a connection (RFC 9114 section 4.2).
    for name in [header::CONNECTION, header::TRANSFER_ENCODING] {
        parts.headers.remove(name);
    }
    let head = Response::from_parts(parts, ());
    turns.send(send.send_response(head)).await?;
    while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
        let Ok(data) = frame.map_err(io::Error::other)?.into_data() else { continue };
        turns.send_slices(data, &mut WindowedStream { send, windows }).await?;
    }
    turns.send(send.finish()).await
}

/// The stream of a response, with the windows of its connection.
struct WindowedStream<'s> {
    send: &'s mut RequestStream<SendStream<Bytes>, Bytes>,
    windows: &'s ConnectionWindows,
}

impl SliceSender for WindowedStream<'_> {
    fn slice_bytes(&self) -> usize {
        self.windows.slice_bytes()
    }

    fn send(&mut self, slice: Bytes) -> SendingSlice<'_> {
        Box::pin(async {
            let bytes = slice.len();
            self.send.send_data(slice).await?;
            self.windows.has_sent(bytes);
            Ok(())
        })
    }
}

/// The maximum number of requests in progress on one connection.
const STREAMS_MAX: u32 = 256;
/// The maximum number of clients that wait to be accepted. Further clients are refused.
const WAITING_MAX: usize = 1024;
/// The maximum number of received bytes that are kept for all waiting clients together.
const WAITING_BYTES_MAX: u64 = 16 << 20;
/// The maximum number of handshakes with clients whose addresses are not validated. The limit is lower if an eighth of
/// the maximum number of connections is less than this number. Further clients must first prove that they receive
/// packets at their address, which costs a round trip (RFC 9000 section 8.1.2).
const UNVALIDATED_MAX: u32 = 128;
/// The requested size of the socket's kernel buffers, in each direction.
const SOCKET_BUFFER_BYTES: usize = 4 << 20;

/// A UDP socket that accepts clients.
pub(crate) struct QuicListener {
    endpoint: Endpoint,
    tls: TlsCertificate,
    idle_timeout: Duration,
    made: Mutex<Option<CachedQuicConfig>>,
    /// The handshakes that may begin without a validated address.
    unvalidated: Arc<Semaphore>,
}

/// The QUIC configuration for new clients, and the TLS configuration from which it was built.
struct CachedQuicConfig {
    of: Arc<ServerConfig>,
    config: Arc<quinn::ServerConfig>,
}

/// A client whose handshake has not begun.
pub(crate) struct PendingHandshake {
    incoming: Incoming,
    config: Arc<quinn::ServerConfig>,
    /// The permit for a client whose address is not validated.
    unvalidated: Option<OwnedSemaphorePermit>,
}

impl PendingHandshake {
    pub(super) fn remote(&self) -> SocketAddr {
        self.incoming.remote_address()
    }

    /// Returns whether the client has proved that it receives packets at its address.
    pub(crate) fn is_validated(&self) -> bool {
        self.unvalidated.is_none()
    }

    /// Performs the handshake, which validates the client's address. After the handshake, the calling thread's runtime
    /// drives the connection. Also returns the permit of a client whose address was not validated before.
    async fn handshake(self) -> io::Result<(TrackedConnection, Option<OwnedSemaphorePermit>)> {
        let (config, memory) = ConnectionMemory::of_next(&self.config);
        Ok(((self.incoming.accept_with(config)?.await?, memory), self.unvalidated))
    }
}

impl QuicListener {
    /// Sets the socket options that [`QuicListener::start`] needs. Errors: the errors of the operating system.
    pub(crate) fn prepare(socket: &UdpSocket) -> io::Result<()> {
        socket.set_nonblocking(true)?;
        // A failure to set a buffer size is ignored, because smaller buffers only reduce the speed.
        let _ = rustix::net::sockopt::set_socket_recv_buffer_size(socket, SOCKET_BUFFER_BYTES);
        let _ = rustix::net::sockopt::set_socket_send_buffer_size(socket, SOCKET_BUFFER_BYTES);
        Ok(())
    }

    /// Listens in the calling runtime, on a socket that was [prepared](QuicListener::prepare). A listener with the same
    /// `secret`, for example after a restart, can tell clients of an earlier listener that their connections are gone.
    /// `connections_max` is the maximum number of connections. Errors: `InvalidArgument`, `Io`.
    pub(crate) fn start(
        socket: UdpSocket,
        tls: TlsCertificate,
        secret: &GatewaySecret,
        (idle_timeout, connections_max): (Duration, u32),
    ) -> Result<Self> {
        let first = config(&tls.current(), idle_timeout, window::set_first_windows)?;
        let address = socket.local_addr().map_err(cannot_listen)?;
        let settings = endpoint_config(secret, address);
        let endpoint =
            Endpoint::new(settings, Some(first), socket, Arc::new(TokioRuntime)).map_err(cannot_listen)?;
        let unvalidated = Arc::new(Semaphore::new((connections_max / 8).clamp(1, UNVALIDATED_MAX) as usize));
        Ok(QuicListener { endpoint, tls, idle_timeout, made: Mutex::default(), unvalidated })
    }

    /// Accepts the next client; `None` when the socket is closed. If too many handshakes with clients whose addresses
    /// are not validated are in progress, further clients must first validate their addresses.
    pub(crate) async fn accept(&self) -> Option<PendingHandshake> {
        loop {
            let incoming = self.endpoint.accept().await?;
            let unvalidated = match incoming.remote_address_validated() {
                true => None,
                false => match self.unvalidated.clone().try_acquire_owned() {
                    Ok(permit) => Some(permit),
                    Err(_) => {
                        // A client whose address is not validated can always be asked to retry.
                        let _ = incoming.retry();
                        continue;
                    }
                },
            };
            match self.config() {
                Ok(config) => return Some(PendingHandshake { incoming, config, unvalidated }),
                Err(error) => {
                    tracing::error!(%error, "a client of HTTP/3 is refused");
                    incoming.refuse();
                }
            }
        }
    }

    /// Returns the configuration for new clients, rebuilt if the certificate was replaced.
    fn config(&self) -> Result<Arc<quinn::ServerConfig>> {
        let current = self.tls.current();
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(made) = made.as_ref().filter(|made| Arc::ptr_eq(&made.of, &current)) {
            return Ok(made.config.clone());
        }
        let config = Arc::new(config(&current, self.idle_timeout, window::set_first_windows)?);
        *made = Some(CachedQuicConfig { of: current, config: config.clone() });
        Ok(config)
    }

    /// Stops accepting clients.
    pub(crate) fn refuse_all(&self) {
        self.endpoint.set_server_config(None);
    }

    /// Closes the open connections, and waits for up to 1 s until the clients have been notified.
    pub(crate) async fn close(&self) {
        self.endpoint.close(VarInt::from_u32(0), b"the gateway ended");
        let _ = tokio::time::timeout(Duration::from_secs(1), self.endpoint.wait_idle()).await;
    }
}

fn cannot_listen(error: io::Error) -> Error {
    Error::new(ErrorKind::Io, "listening for HTTP/3").caused_by(error)
}

/// The minimum time between two stateless resets. After a restart, each connection of the previous process needs a
/// reset.
const RESET_INTERVAL: Duration = Duration::from_millis(1);

/// Returns the settings of an endpoint at `address`. The endpoint's key for stateless resets is the same after a
/// restart, so the clients of the previous endpoint accept its resets (RFC 9000 section 10.3).
fn endpoint_config(secret: &GatewaySecret, address: SocketAddr) -> EndpointConfig {
    let key = reset_key(secret, &HostIdentity::read(), address);
    let mut config = EndpointConfig::new(Arc::new(ring::hmac::Key::new(ring::hmac::HMAC_SHA256, &key)));
    config.cid_generator(|| Box::new(RandomConnectionIds)).min_reset_interval(RESET_INTERVAL);
    config
}

/// The properties that distinguish the hosts of gateways: machines, and containers on one machine. The properties do
/// not change when the gateway's process is restarted.
#[derive(Clone, Default)]
struct HostIdentity {
    name: Vec<u8>,
    /// The content of `/etc/machine-id`, which distinguishes cloned machines with the same name; empty if there is no
    /// such file.
    machine: Vec<u8>,
    /// The inode number of the network namespace, which distinguishes containers with the same name and machine ID on
    /// one machine.
    network: u64,
}

impl HostIdentity {
    fn read() -> Self {
        let network = std::fs::metadata("/proc/self/ns/net");
        HostIdentity {
            name: rustix::system::uname().nodename().to_bytes().to_vec(),
            machine: std::fs::read("/etc/machine-id").unwrap_or_default(),
            network: network.map_or(0, |found| found.ino()),
        }
    }
}

/// Returns the key for stateless resets. The key depends on the host and the address, because gateways that share a
/// secret must not have the same key. If a load balancer assigned a connection to another gateway with the same key, a
/// reset by that gateway would end the connection (RFC 9000 section 21.11).
fn reset_key(secret: &GatewaySecret, host: &HostIdentity, address: SocketAddr) -> [u8; 32] {
    let (network, address) = (host.network.to_be_bytes(), address.to_string());
    secret.derived(&[b"fordway quic reset 2", &host.name, &host.machine, &network, address.as_bytes()])
}

/// Generates connection IDs. With the generator of quinn, an endpoint recognises only its own IDs, so it would not
/// answer packets for connections of the previous endpoint.
struct RandomConnectionIds;

/// The number of bytes of a connection ID.
const CONNECTION_ID_BYTES: usize = 8;

impl ConnectionIdGenerator for RandomConnectionIds {
    fn generate_cid(&mut self) -> ConnectionId {
        let mut bytes = [0; CONNECTION_ID_BYTES];
        getrandom::fill(&mut bytes).expect("the kernel provides random numbers");
        ConnectionId::new(&bytes)
    }

    fn cid_len(&self) -> usize {
        CONNECTION_ID_BYTES
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}

/// Returns the QUIC configuration of a gateway, for servers that measure QUIC without a gateway. Errors:
/// `InvalidArgument`.
pub fn quic_server_config(tls: &TlsCertificate, idle_timeout: Duration) -> Result<quinn::ServerConfig> {
    config(&tls.current(), idle_timeout, window::set_full_windows)
}

/// Prepares a UDP socket as a gateway does. Errors: the errors of the operating system.
pub fn prepare_quic_socket(socket: &UdpSocket) -> io::Result<()> {
    QuicListener::prepare(socket)
}

/// The maximum interval of the packets that keep a connection open.
const KEEP_ALIVE_INTERVAL_MAX: Duration = Duration::from_secs(10);

/// Returns the interval of the packets that keep a quiet connection open, so that it does not end while the gateway
/// works on a request for longer than the idle timeout of the gateway or of the client. `take_requests` ends
/// connections without requests.
fn keep_alive_interval(idle_timeout: Duration) -> Duration {
    KEEP_ALIVE_INTERVAL_MAX.min(idle_timeout / 3)
}

/// Returns the QUIC configuration. `set_windows` sets the flow-control windows.
fn config(
    tls: &ServerConfig,
    idle_timeout: Duration,
    set_windows: fn(&mut TransportConfig),
) -> Result<quinn::ServerConfig> {
    let failed =
        |why: &'static str| move |error| Error::new(ErrorKind::InvalidArgument, why).caused_by(error);
    let mut tls = tls.clone();
    tls.alpn_protocols = vec![b"h3".to_vec()];
    let crypto = QuicServerConfig::try_from(Arc::new(tls))
        .map_err(|error| failed("the certificate cannot be used for HTTP/3")(io::Error::other(error)))?;
    let mut transport = quic_transport();
    let idle = idle_timeout
        .try_into()
        .map_err(|error| failed("the header timeout is too long for HTTP/3")(io::Error::other(error)))?;
    set_windows(&mut transport);
    transport
        .max_concurrent_bidi_streams(VarInt::from_u32(STREAMS_MAX))
        .max_idle_timeout(Some(idle))
        .keep_alive_interval(Some(keep_alive_interval(idle_timeout)));
    let mut config = quinn::ServerConfig::with_crypto(Arc::new(crypto));
    config
        .max_incoming(WAITING_MAX)
        .incoming_buffer_size_total(WAITING_BYTES_MAX)
        .transport_config(Arc::new(transport));
    Ok(config)
}

/// Headers that apply to a connection, which HTTP/3 forbids (RFC 9114 section 4.2).
const OF_CONNECTION: [&str; 5] =
    ["connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade"];

/// Checks the headers of a request, and that a body with the declared length 0 is empty. Returns the declared length of
/// the body, if any. Errors: `InvalidData` for a malformed request (RFC 9114 sections 4.1.2 and 4.2); `TimedOut`;
/// errors of the connection.
async fn checked_length(
    request: &Request<()>,
    stream: &mut RequestStream<FilteredRecvStream, Bytes>,
    limits: &ConnectionRequestLimits,
) -> io::Result<Option<u64>> {
    let headers = request.headers();
    if OF_CONNECTION.iter().any(|name| headers.contains_key(*name))
        || headers.get_all(header::TE).iter().any(|value| !value.as_bytes().eq_ignore_ascii_case(b"trailers"))
    {
        return Err(malformed("a header applies to a connection"));
    }
    let stated = stated_length(headers)?;
    if stated == Some(0) {
        timeout(limits.body.stall_timeout, receive_end(stream)).await??;
    }
    Ok(stated)
}

/// Receives the end of an empty body. Errors: `InvalidData` if the body is not empty; errors of the connection.
async fn receive_end(stream: &mut RequestStream<FilteredRecvStream, Bytes>) -> io::Result<()> {
    while let Some(piece) = stream.recv_data().await.map_err(io::Error::other)? {
        if piece.has_remaining() {
            return Err(malformed("there is a body, but its stated length is 0"));
        }
    }
    Ok(())
}

/// Returns the value of `content-length`. Errors: `InvalidData` if a value is not a number, or if two values differ.
fn stated_length(headers: &HeaderMap) -> io::Result<Option<u64>> {
    let mut stated = None;
    for value in headers.get_all(header::CONTENT_LENGTH) {
        let length = value.to_str().ok().and_then(digits);
        let length = length.ok_or_else(|| malformed("content-length is not a number"))?;
        if stated.replace(length).is_some_and(|before| before != length) {
            return Err(malformed("two values of content-length differ"));
        }
    }
    Ok(stated)
}

fn malformed(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

/// Returns the body of `request` for the S3 layer, and the body's length if it is known. `stated` is the result of
/// [`checked_length`].
fn body_of(
    request: &Request<()>,
    stated: Option<u64>,
    (stream, windows, account): (
        RequestStream<FilteredRecvStream, Bytes>,
        &Arc<ConnectionWindows>,
        &Arc<ConnectionLimitState>,
    ),
    limits: &ConnectionRequestLimits,
) -> (Option<Http3RequestBody>, SizeHint) {
    let has_none = matches!(*request.method(), Method::GET | Method::HEAD | Method::DELETE);
    if stated == Some(0) || (stated.is_none() && has_none) {
        return (None, SizeHint::with_exact(0));
    }
    let received = Http3RequestBody {
        stream,
        windows: windows.clone(),
        account: account.clone(),
        left: stated,
        has_ended: false,
        go_on: None,
        patience: WaitDeadline::default(),
        stall_timeout: limits.body.stall_timeout,
    };
    let length = received.size_hint();
    (Some(received), length)
}

struct Http3RequestBody {
    stream: RequestStream<FilteredRecvStream, Bytes>,
    windows: Arc<ConnectionWindows>,
    account: Arc<ConnectionLimitState>,
    /// The number of bytes that have not arrived yet, if known.
    left: Option<u64>,
    /// Whether the end of the body has been received. A body may continue beyond its declared length, so the length
    /// alone does not show the end.
    has_ended: bool,
    /// Reports that the body is needed and has not arrived.
    go_on: Option<oneshot::Sender<()>>,
    patience: WaitDeadline,
    stall_timeout: Duration,
}

impl Http3RequestBody {
    /// Returns a receiver that is told when the body is needed and has not arrived.
    fn go_on(&mut self) -> oneshot::Receiver<()> {
        let (teller, told) = oneshot::channel();
        self.go_on = Some(teller);
        told
    }

    fn poll_data(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Option<Bytes>>> {
        if self.has_ended {
            return Poll::Ready(Ok(None));
        }
        // The body is usually read after the signature was verified.
        self.windows.open_for(&self.account);
        let received = self.stream.poll_recv_data(context);
        let received = received.map_ok(|data| data.map(|mut data| data.copy_to_bytes(data.remaining())));
        let Poll::Ready(received) = received else {
            self.go_on.take().map(|teller| teller.send(()));
            ready!(self.patience.poll_over(context, self.stall_timeout));
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, STALLED)));
        };
        self.patience.end();
        let data = received.map_err(io::Error::other)?;
        let count = data.as_ref().map_or(0, |data| data.len() as u64);
        match &mut self.left {
            // The body must have exactly the length in `content-length` (RFC 9114 section 4.1.2).
            Some(left) if count > *left || (data.is_none() && *left > 0) => {
                return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
            }
            Some(left) => *left -= count,
            None => {}
        }
        self.has_ended = data.is_none();
        if data.is_some() && self.left == Some(0) {
            self.look_for_end(context)?;
        }
        Poll::Ready(Ok(data))
    }

    /// Checks whether the end of the body has arrived together with the last byte. If so, no further call is needed to
    /// receive the end. Errors: `UnexpectedEof` if the body is longer than declared.
    fn look_for_end(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        match self.stream.poll_recv_data(context) {
            Poll::Ready(Ok(Some(data))) if data.has_remaining() => Err(io::ErrorKind::UnexpectedEof.into()),
            Poll::Ready(Ok(None)) => {
                self.has_ended = true;
                Ok(())
            }
            Poll::Ready(Err(error)) => Err(io::Error::other(error)),
            Poll::Ready(Ok(Some(_))) | Poll::Pending => Ok(()),
        }
    }
}

impl Body for Http3RequestBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        self.poll_data(context).map(|data| data.map(|data| data.map(Frame::data)).transpose())
    }

    fn is_end_stream(&self) -> bool {
        self.has_ended
    }

    fn size_hint(&self) -> SizeHint {
        self.left.map(SizeHint::with_exact).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gateways_with_the_same_secret_have_different_reset_keys() {
        let secret = GatewaySecret::of(b"the key of a certificate");
        let address: SocketAddr = "0.0.0.0:443".parse().unwrap();
        let host = HostIdentity { name: b"gateway".to_vec(), machine: b"1\n".to_vec(), network: 1 };
        let key = reset_key(&secret, &host, address);
        assert_eq!(key, reset_key(&secret, &host, address));
        for other in [
            HostIdentity { name: b"other".to_vec(), ..host.clone() },
            HostIdentity { machine: b"2\n".to_vec(), ..host.clone() },
            HostIdentity { machine: Vec::new(), ..host.clone() },
            HostIdentity { network: 2, ..host.clone() },
        ] {
            assert_ne!(key, reset_key(&secret, &other, address));
        }
        assert_ne!(key, reset_key(&secret, &host, "0.0.0.0:8443".parse().unwrap()));
        assert_ne!(key, reset_key(&GatewaySecret::of(b"another key"), &host, address));
        let own = [HostIdentity::read(), HostIdentity::read()].map(|own| reset_key(&secret, &own, address));
        assert_eq!(own[0], own[1], "the key is the same after a restart");
        assert_ne!(HostIdentity::read().network, 0);
    }
}
