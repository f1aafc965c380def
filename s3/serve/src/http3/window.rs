//! The flow-control windows of QUIC connections, which determine how much memory a client can occupy.
//!
//! A client that neither reads nor identifies itself occupies little memory, because the windows of its connection
//! begin small. The send window grows with the amount of data that the client has acknowledged, and the sum of all
//! growth is limited. QUIC keeps data until it is acknowledged, so the growth is counted until then, also if the window
//! has become smaller. The receive window grows at the first validly signed request.

use std::any::Any;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use quinn::{TransportConfig, VarInt, WriteError};

use crate::limits::{ConnectionLimitState, UserResourceUsage};

/// The flow-control window of one request: the number of bytes that a client may send before the gateway reads them.
/// With a round trip of 1 ms, this window allows 1 GiB/s.
const STREAM_WINDOW_BYTES: u32 = 1 << 20;
/// The flow-control window of a connection in bytes, for all its requests together, after a validly signed request.
const CONNECTION_WINDOW_BYTES: u32 = 2 << 20;
/// The flow-control window of a connection before a validly signed request.
const UNSIGNED_WINDOW_BYTES: u32 = 64 << 10;

/// The send window of a new connection: the maximum number of bytes of all its responses that are kept until the client
/// has acknowledged them. A new connection may send less than half of this number at once, regardless of the window.
const SEND_WINDOW_MIN_BYTES: u64 = 32 << 10;
/// The maximum send window if the round trip to the client is short.
const NEAR_SEND_WINDOW_BYTES: u64 = 2 << 20;
/// The maximum send window if the round trip to the client is long.
const FAR_SEND_WINDOW_BYTES: u64 = 8 << 20;
/// The maximum number of bytes in one slice. Within the default `--stall-timeout` of 30 s, a client must receive one
/// slice, which is about 2 KiB/s.
const SLICE_BYTES_MAX: u64 = 64 << 10;
/// The minimum round-trip time that counts as long. With this round-trip time, [`NEAR_SEND_WINDOW_BYTES`] allows 400
/// MiB/s.
const FAR: Duration = Duration::from_millis(5);

/// The maximum number of bytes by which the send windows of all connections together exceed
/// [`SEND_WINDOW_MIN_BYTES`].
const GROWTH_BYTES_MAX: u64 = 64 << 20;
/// The growth that other connections of its user leave, divided by this number, is the maximum growth of one connection.
/// If many connections grow, all get about the same share. A single connection gets 8 MiB.
const GROWTH_DIVISOR: u64 = 6;

/// The maximum number of STREAM frames that a connection without responses sends between two calls to
/// [`ConnectionWindows::is_moving`]. These frames contain about 64 KiB.
const KEEP_ALIVE_FRAMES: u64 = 50;

/// The type of a stream without a meaning (RFC 9114 section 6.2.3), and each byte of its content. Clients ignore both.
const RESERVED_STREAM_TYPE: u8 = 0x21;

/// The time between two checks whether QUIC has freed the memory of a connection that has ended.
const FREED_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// The growth of send windows in bytes.
#[derive(Default)]
struct WindowGrowth {
    of_all: AtomicU64,
    /// The growth of connections whose users are unknown.
    of_unknown_users: AtomicU64,
}

/// The growth of all connections of the process.
static GROWTH: WindowGrowth = WindowGrowth { of_all: AtomicU64::new(0), of_unknown_users: AtomicU64::new(0) };

/// Sets the windows of new connections.
pub(super) fn set_first_windows(transport: &mut TransportConfig) {
    transport
        .stream_receive_window(VarInt::from_u32(STREAM_WINDOW_BYTES))
        .receive_window(VarInt::from_u32(UNSIGNED_WINDOW_BYTES))
        .send_window(SEND_WINDOW_MIN_BYTES);
}

/// Sets the windows of connections whose clients are known to read, for servers that are not gateways.
pub(super) fn set_full_windows(transport: &mut TransportConfig) {
    set_first_windows(transport);
    transport.receive_window(VarInt::from_u32(CONNECTION_WINDOW_BYTES)).send_window(NEAR_SEND_WINDOW_BYTES);
}

/// Tells whether QUIC has freed the memory of a connection. QUIC keeps the data of a closed connection for three probe
/// timeouts (RFC 9000 section 10.2). Their length depends on the client: on the delay of acknowledgements that it
/// announces, up to 16 s, and on the round-trip time that its acknowledgements show.
#[derive(Clone)]
pub(super) struct ConnectionMemory(Weak<dyn Any + Send + Sync>);

impl ConnectionMemory {
    /// Returns a copy of `config` for a single connection, and the memory of this connection. quinn drops the copy
    /// together with the data of the connection.
    pub(super) fn of_next(config: &quinn::ServerConfig) -> (Arc<quinn::ServerConfig>, Self) {
        let own = Arc::new(config.clone());
        let memory: Weak<quinn::ServerConfig> = Arc::downgrade(&own);
        (own, ConnectionMemory(memory))
    }

    async fn wait_until_freed(&self) {
        while self.0.strong_count() > 0 {
            tokio::time::sleep(FREED_CHECK_INTERVAL).await;
        }
    }

    /// Keeps `kept` until QUIC has freed the memory. The caller has dropped its handles of the connection.
    pub(super) async fn keep_until_freed<K>(self, kept: K) {
        self.wait_until_freed().await;
        drop(kept);
    }
}

/// The windows of a connection.
pub(super) struct ConnectionWindows {
    connection: quinn::Connection,
    memory: ConnectionMemory,
    send: Arc<Mutex<SendWindow>>,
    /// The number of responses in progress.
    responses: AtomicUsize,
    /// Whether a validly signed request has opened the receive window.
    is_open: AtomicBool,
    /// The result of [`movement`] at the last call to [`ConnectionWindows::is_moving`].
    seen: Mutex<(u64, u64)>,
    /// The stream of [`ConnectionWindows::probe`]. There is only one, because some clients permit few streams.
    probe: Mutex<Option<quinn::SendStream>>,
}

/// The growth of the send window of a connection that has ended.
pub(super) struct EndedWindow {
    send: Arc<Mutex<SendWindow>>,
    memory: ConnectionMemory,
}

impl EndedWindow {
    /// Counts the growth until QUIC has freed the memory, which also contains what the client sent and nobody read, and
    /// keeps `account` until then. The caller has dropped its handles of the connection.
    pub(super) async fn wait_until_freed<S>(self, account: S) {
        self.memory.keep_until_freed((self.send, account)).await;
    }
}

fn lock(send: &Mutex<SendWindow>) -> MutexGuard<'_, SendWindow> {
    send.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A response in progress.
pub(super) struct ResponseInProgress<'w>(&'w ConnectionWindows);

impl Drop for ResponseInProgress<'_> {
    fn drop(&mut self) {
        self.0.responses.fetch_sub(1, Ordering::Relaxed);
    }
}

impl ConnectionWindows {
    pub(super) fn new((connection, memory): (quinn::Connection, ConnectionMemory)) -> Self {
        ConnectionWindows {
            send: Arc::new(Mutex::new(SendWindow::new(&GROWTH))),
            responses: AtomicUsize::new(0),
            is_open: AtomicBool::new(false),
            seen: Mutex::new(movement(&connection)),
            probe: Mutex::default(),
            connection,
            memory,
        }
    }

    fn send(&self) -> MutexGuard<'_, SendWindow> {
        lock(&self.send)
    }

    /// Returns what remains when the connection has ended.
    pub(super) fn ended(&self) -> EndedWindow {
        EndedWindow { send: self.send.clone(), memory: self.memory.clone() }
    }

    pub(super) fn connection(&self) -> &quinn::Connection {
        &self.connection
    }

    /// Counts a response, until the result is dropped.
    pub(super) fn response(&self) -> ResponseInProgress<'_> {
        self.responses.fetch_add(1, Ordering::Relaxed);
        ResponseInProgress(self)
    }

    /// Opens the receive window if the client has sent a validly signed request. Cost: one atomic load after the window
    /// was opened.
    pub(super) fn open_for(&self, account: &ConnectionLimitState) {
        if !self.is_open.load(Ordering::Relaxed) && account.has_signed() {
            self.is_open.store(true, Ordering::Relaxed);
            self.connection.set_receive_window(VarInt::from_u32(CONNECTION_WINDOW_BYTES));
        }
    }

    /// Counts the growth of the send window for the connection's latest user.
    pub(super) fn belong_to_user_of(&self, account: &ConnectionLimitState) {
        let mut send = self.send();
        if send.user_id() != account.user_id() {
            send.belong_to(account.user());
        }
    }

    /// Returns the number of bytes to send before the next call to [`ConnectionWindows::has_sent`]. The window grows
    /// only between the calls.
    pub(super) fn slice_bytes(&self) -> usize {
        (self.send().bytes / 2).min(SLICE_BYTES_MAX) as usize
    }

    /// Adapts the send window after `bytes` bytes were sent.
    pub(super) fn has_sent(&self, bytes: usize) {
        let path = self.connection.stats().path;
        let mut send = self.send();
        let before_bytes = send.bytes;
        send.has_sent(bytes as u64, path_window_bytes(path.rtt, path.cwnd));
        if send.bytes != before_bytes {
            self.connection.set_send_window(send.bytes);
        }
    }

    /// Makes the send window of a connection without responses small, so that other connections can grow. Returns false
    /// if the window has not become small: usually, the client must first acknowledge data that the small window could
    /// not hold, because a small window would block the next responses. See [`ConnectionWindows::can_send`].
    pub(super) fn rest(&self) -> bool {
        let mut send = self.send();
        if self.responses.load(Ordering::Relaxed) > 0 || send.growth_bytes == 0 {
            return true;
        }
        let is_acknowledged = self.probe(SEND_WINDOW_MIN_BYTES);
        match is_acknowledged {
            true => send.shrink(),
            false => self.connection.set_send_window(send.bytes),
        }
        is_acknowledged
    }

    /// Returns whether the client permits the gateway to send more data. If not, `rest` cannot find out whether the
    /// client has acknowledged all data. May send a byte without a meaning.
    pub(super) fn can_send(&self) -> bool {
        let send = self.send();
        let can_send = self.probe(u64::MAX);
        self.connection.set_send_window(send.bytes);
        can_send
    }

    /// Sets the send window, and returns whether it has room for more data. To find out, sends a byte without a
    /// meaning. Also returns false if the client's limits for streams or data are reached.
    fn probe(&self, window_bytes: u64) -> bool {
        self.connection.set_send_window(window_bytes);
        let mut probe = self.probe.lock().unwrap_or_else(PoisonError::into_inner);
        let mut context = Context::from_waker(Waker::noop());
        let mut stream = match probe.take() {
            Some(stream) => stream,
            None => match pin!(self.connection.open_uni()).poll(&mut context) {
                Poll::Ready(Ok(stream)) => stream,
                Poll::Ready(Err(_)) | Poll::Pending => return false,
            },
        };
        let written = Pin::new(&mut stream).poll_write(&mut context, &[RESERVED_STREAM_TYPE]);
        // quinn looks at the window first. A stream that the client has stopped is reset when it is dropped.
        if let Poll::Ready(Err(error)) = written {
            return matches!(error, WriteError::Stopped(_));
        }
        *probe = Some(stream);
        written.is_ready()
    }

    /// Returns whether the client may still be receiving responses, which QUIC keeps until they are acknowledged. The
    /// result is true if, since the last call, packets have arrived and the gateway has sent more than
    /// [`KEEP_ALIVE_FRAMES`].
    pub(super) fn is_moving(&self) -> bool {
        let now = movement(&self.connection);
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *seen, now);
        now.0 - before.0 > KEEP_ALIVE_FRAMES && now.1 > before.1
    }
}

/// Returns the number of sent STREAM frames and of received datagrams.
fn movement(connection: &quinn::Connection) -> (u64, u64) {
    let stats = connection.stats();
    (stats.frame_tx.stream, stats.udp_rx.datagrams)
}

/// The size of a send window, and the values on which the size depends.
struct SendWindow {
    bytes: u64,
    sent_bytes: u64,
    /// A lower bound of the number of bytes that the client has acknowledged.
    acknowledged_bytes: u64,
    /// The part of `growth` that belongs to this window. QUIC keeps at most this number of bytes beyond
    /// [`SEND_WINDOW_MIN_BYTES`].
    growth_bytes: u64,
    growth: &'static WindowGrowth,
    user: Option<Arc<UserResourceUsage>>,
}

impl SendWindow {
    fn new(growth: &'static WindowGrowth) -> Self {
        let bytes = SEND_WINDOW_MIN_BYTES;
        SendWindow { bytes, sent_bytes: 0, acknowledged_bytes: 0, growth_bytes: 0, growth, user: None }
    }

    /// Adapts the window after `bytes` bytes were sent. `path_bytes` is the size that suits the path.
    fn has_sent(&mut self, bytes: u64, path_bytes: u64) {
        self.sent_bytes += bytes;
        // All sent bytes that do not fit into the window must have been acknowledged.
        self.acknowledged_bytes = self.acknowledged_bytes.max(self.sent_bytes.saturating_sub(self.bytes));
        let wanted_bytes = path_bytes.min(SEND_WINDOW_MIN_BYTES + 2 * self.acknowledged_bytes);
        let growth_bytes = wanted_bytes.saturating_sub(SEND_WINDOW_MIN_BYTES).min(self.most_growth_bytes());
        // The window shrinks slowly, because a slow client must acknowledge the difference before it receives more.
        let slowly_bytes = self.bytes.saturating_sub(bytes);
        let before_bytes = self.bytes;
        self.bytes = (SEND_WINDOW_MIN_BYTES + growth_bytes).max(slowly_bytes);
        // The previous window may be full.
        self.count(self.bytes.max(before_bytes) - SEND_WINDOW_MIN_BYTES);
    }

    /// Makes the window as small as possible. The caller knows that the client has acknowledged what does not fit.
    fn shrink(&mut self) {
        self.bytes = SEND_WINDOW_MIN_BYTES;
        self.count(0);
    }

    /// Returns the growth that this window can have. A user can have three quarters of the growth that other users
    /// leave, so that a user whose clients do not acknowledge data cannot take all of it.
    fn most_growth_bytes(&self) -> u64 {
        let of_user = self.of_user().load(Ordering::Relaxed);
        let other_users = self.growth.of_all.load(Ordering::Relaxed).saturating_sub(of_user);
        let users_most = GROWTH_BYTES_MAX.saturating_sub(other_users) / 4 * 3;
        users_most.saturating_sub(of_user.saturating_sub(self.growth_bytes)) / GROWTH_DIVISOR
    }

    /// Counts `growth_bytes` for this window. The sums may briefly be a little too large, because threads do not wait
    /// for each other.
    fn count(&mut self, growth_bytes: u64) {
        for sum in [&self.growth.of_all, self.of_user()] {
            sum.fetch_add(growth_bytes, Ordering::Relaxed);
            sum.fetch_sub(self.growth_bytes, Ordering::Relaxed);
        }
        self.growth_bytes = growth_bytes;
    }

    /// Returns the growth of all windows of the user.
    fn of_user(&self) -> &AtomicU64 {
        self.user.as_ref().map_or(&self.growth.of_unknown_users, |user| &user.window_growth_bytes)
    }

    /// Returns the id of the user's [`UserResourceUsage`], or 0.
    fn user_id(&self) -> u64 {
        self.user.as_ref().map_or(0, |user| user.id())
    }

    fn belong_to(&mut self, user: Option<Arc<UserResourceUsage>>) {
        let growth_bytes = self.growth_bytes;
        self.count(0);
        self.user = user;
        self.count(growth_bytes);
    }
}

impl Drop for SendWindow {
    fn drop(&mut self) {
        self.count(0);
    }
}

/// Returns the size of the send window that a path can use. If the round-trip time is long, the size is twice the
/// congestion window: the data in flight, and the data that can be sent next.
fn path_window_bytes(round_trip: Duration, congestion_window_bytes: u64) -> u64 {
    match round_trip < FAR {
        true => NEAR_SEND_WINDOW_BYTES,
        false => (2 * congestion_window_bytes).clamp(SEND_WINDOW_MIN_BYTES, FAR_SEND_WINDOW_BYTES),
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use quinn::crypto::rustls::QuicClientConfig;
    use quinn::crypto::{ClientConfig, Session};
    use quinn_proto::transport_parameters::TransportParameters;

    use super::*;
    use crate::TlsCertificate;
    use crate::limits::{UserLimitOverrides, UserLimits};

    #[test]
    fn the_send_window_is_what_the_path_can_hold() {
        let far = Duration::from_millis(60);
        assert_eq!(path_window_bytes(Duration::from_micros(200), 64 << 20), NEAR_SEND_WINDOW_BYTES);
        assert_eq!(path_window_bytes(far, 10 << 10), SEND_WINDOW_MIN_BYTES);
        assert_eq!(path_window_bytes(far, 3 << 20), 6 << 20);
        assert_eq!(path_window_bytes(far, 64 << 20), FAR_SEND_WINDOW_BYTES);
    }

    fn user() -> Arc<UserResourceUsage> {
        UserResourceUsage::new(UserLimitOverrides::default(), UserLimits::default())
    }

    fn windows(
        growth: &'static WindowGrowth,
        user: &Arc<UserResourceUsage>,
        count: usize,
    ) -> Vec<SendWindow> {
        let window = |_| {
            let mut window = SendWindow::new(growth);
            window.belong_to(Some(user.clone()));
            window
        };
        (0..count).map(window).collect()
    }

    fn growth() -> &'static WindowGrowth {
        Box::leak(Box::default())
    }

    /// Sends as much as a window allows if the client has acknowledged `acknowledged_bytes`.
    fn fill(window: &mut SendWindow, acknowledged_bytes: u64) {
        while window.sent_bytes < acknowledged_bytes + window.bytes {
            let room = acknowledged_bytes + window.bytes - window.sent_bytes;
            window.has_sent(room.min(16 << 10), FAR_SEND_WINDOW_BYTES);
        }
    }

    /// Fills a window until its client has acknowledged much data. Then the client acknowledges nothing more.
    fn fill_often(window: &mut SendWindow) {
        for _ in 0..12 {
            let acknowledged_bytes = window.sent_bytes;
            fill(window, acknowledged_bytes);
        }
    }

    #[test]
    fn windows_grow_by_acknowledgements_and_share_what_there_is() {
        let mut windows = windows(growth(), &user(), 400);
        windows.iter_mut().for_each(|window| fill(window, 0));
        assert!(windows.iter().all(|window| window.bytes == SEND_WINDOW_MIN_BYTES), "nobody acknowledges");
        fill_often(&mut windows[0]);
        assert!(windows[0].bytes > FAR_SEND_WINDOW_BYTES - (1 << 20), "{} bytes", windows[0].bytes);
        for _ in 0..12 {
            for window in &mut windows {
                let acknowledged_bytes = window.sent_bytes;
                fill(window, acknowledged_bytes);
            }
        }
        let sum: u64 = windows.iter().map(|window| window.growth_bytes).sum();
        assert!((GROWTH_BYTES_MAX / 2..=GROWTH_BYTES_MAX).contains(&sum), "{sum} bytes");
        windows.truncate(1);
        windows[0].shrink();
        assert_eq!((windows[0].bytes, windows[0].growth_bytes), (SEND_WINDOW_MIN_BYTES, 0));
    }

    /// A window that shrinks may still be full with what was sent before.
    #[test]
    fn growth_counts_until_it_is_acknowledged() {
        const SLICE_BYTES: u64 = 64 << 10;
        let (growth, user) = (growth(), user());
        let mut window = windows(growth, &user, 1).remove(0);
        fill_often(&mut window);
        let full_bytes = window.bytes;
        for shrinks in 1..4 {
            window.has_sent(SLICE_BYTES, SEND_WINDOW_MIN_BYTES);
            let before_bytes = full_bytes - (shrinks - 1) * SLICE_BYTES;
            assert_eq!(window.bytes, before_bytes - SLICE_BYTES);
            assert_eq!(growth.of_all.load(Ordering::Relaxed), before_bytes - SEND_WINDOW_MIN_BYTES);
        }
        drop(window);
        assert_eq!(growth.of_all.load(Ordering::Relaxed), 0);
        assert_eq!(user.window_growth_bytes.load(Ordering::Relaxed), 0);
    }

    /// The client determines how long QUIC keeps the memory, so no time is too long.
    #[tokio::test]
    async fn growth_and_account_are_kept_until_quic_has_freed_the_memory() {
        let (growth, user, quic) = (growth(), user(), Arc::new(()));
        let memory: Weak<()> = Arc::downgrade(&quic);
        let memory = ConnectionMemory(memory);
        let mut window = windows(growth, &user, 1).remove(0);
        fill_often(&mut window);
        let full_bytes = window.growth_bytes;
        let ended = EndedWindow { send: Arc::new(Mutex::new(window)), memory: memory.clone() };
        let account = Arc::new(());
        let freed = tokio::spawn(ended.wait_until_freed(account.clone()));
        tokio::task::yield_now().await;
        assert_eq!(growth.of_all.load(Ordering::Relaxed), full_bytes);
        assert_eq!(Arc::strong_count(&account), 2);
        drop(quic);
        freed.await.unwrap();
        assert_eq!(growth.of_all.load(Ordering::Relaxed), 0);
        assert_eq!(Arc::strong_count(&account), 1);
    }

    /// Announces that this client delays acknowledgements by up to 16 s.
    struct LateAcknowledgements(Arc<QuicClientConfig>);

    impl ClientConfig for LateAcknowledgements {
        fn start_session(
            self: Arc<Self>,
            version: u32,
            server_name: &str,
            parameters: &TransportParameters,
        ) -> Result<Box<dyn Session>, quinn::ConnectError> {
            let mut encoded = Vec::new();
            parameters.write(&mut encoded);
            // The parameter max_ack_delay, its length, and 16000 ms (RFC 9000 section 18.2).
            encoded.extend([0x0b, 2, 0x7e, 0x80]);
            let parameters = TransportParameters::read(quinn::Side::Server, &mut encoded.as_slice()).unwrap();
            self.0.clone().start_session(version, server_name, &parameters)
        }
    }

    /// Returns the memory of a connection that its client has closed.
    async fn closed_by(wrap: fn(Arc<QuicClientConfig>) -> Arc<dyn ClientConfig>) -> ConnectionMemory {
        let directory = tempfile::tempdir().unwrap();
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        let [certificate, key] = ["cert.pem", "key.pem"].map(|name| directory.path().join(name));
        std::fs::write(&certificate, made.cert.pem()).unwrap();
        std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
        let tls = TlsCertificate::load(&certificate, &key).unwrap();
        let config = crate::http3::quic_server_config(&tls, Duration::from_secs(60)).unwrap();
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let server = quinn::Endpoint::server(config.clone(), any).unwrap();
        let mut roots = rustls::RootCertStore::empty();
        roots.add(made.cert.der().clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut trusting = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        trusting.alpn_protocols = vec![b"h3".to_vec()];
        let crypto = wrap(Arc::new(QuicClientConfig::try_from(trusting).unwrap()));
        let client = quinn::Endpoint::client(any).unwrap();
        let address = server.local_addr().unwrap();
        let connecting = client.connect_with(quinn::ClientConfig::new(crypto), address, "localhost").unwrap();
        let (own, memory) = ConnectionMemory::of_next(&config);
        let accepting = async { server.accept().await.unwrap().accept_with(own).unwrap().await.unwrap() };
        let (connected, accepted) = tokio::join!(connecting, accepting);
        let connected = connected.unwrap();
        assert_eq!(connected.max_datagram_size(), None, "nothing would read datagrams");
        connected.close(0_u32.into(), b"");
        accepted.closed().await;
        memory
    }

    #[tokio::test]
    async fn quic_keeps_the_memory_for_as_long_as_the_client_wants() {
        let usual = closed_by(|crypto| crypto).await;
        tokio::time::timeout(Duration::from_secs(5), usual.wait_until_freed())
            .await
            .expect("it is freed soon");
        let late = closed_by(|crypto| Arc::new(LateAcknowledgements(crypto))).await;
        tokio::time::timeout(Duration::from_secs(11), late.wait_until_freed())
            .await
            .expect_err("the memory is still used");
    }

    #[test]
    fn a_user_whose_clients_acknowledge_nothing_leaves_growth_to_others() {
        let (growth, one) = (growth(), user());
        let mut silent = windows(growth, &one, 40);
        silent.iter_mut().for_each(fill_often);
        let mut window = windows(growth, &user(), 1).remove(0);
        fill_often(&mut window);
        assert!(window.bytes >= 1 << 20, "{} bytes", window.bytes);
        silent[0].belong_to(None);
        let sums = [&growth.of_all, &growth.of_unknown_users, &one.window_growth_bytes, window.of_user()];
        let [all, unknown, one, other] = sums.map(|sum| sum.load(Ordering::Relaxed));
        assert_eq!((unknown, all), (silent[0].growth_bytes, unknown + one + other));
    }
}
