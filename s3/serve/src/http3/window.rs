//! The flow-control windows of QUIC connections, which determine how much memory a client can occupy.
//!
//! A client that neither reads nor identifies itself occupies little memory, because the windows of its connection
//! begin small. The send window grows with the amount of data that the client has acknowledged, and the sum of all
//! growth is limited. The receive window grows at the first validly signed request.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use quinn::{TransportConfig, VarInt};

use crate::limits::ConnectionLimitState;

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
/// The growth that other connections leave, divided by this number, is the maximum growth of one connection. If many
/// connections grow, all get about the same share.
const GROWTH_DIVISOR: u64 = 8;

/// The maximum number of STREAM frames that a connection without responses sends between two calls to
/// [`ConnectionWindows::is_moving`]. These frames contain about 64 KiB.
const KEEP_ALIVE_FRAMES: u64 = 50;

/// The growth of all connections of the process in bytes.
static GROWTH_BYTES: AtomicU64 = AtomicU64::new(0);

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

/// The windows of a connection.
pub(super) struct ConnectionWindows {
    connection: quinn::Connection,
    send: Mutex<SendWindow>,
    /// The number of responses in progress.
    responses: AtomicUsize,
    /// Whether a validly signed request has opened the receive window.
    is_open: AtomicBool,
    /// The number of sent STREAM frames and of received datagrams at the last call to
    /// [`ConnectionWindows::is_moving`].
    seen: Mutex<(u64, u64)>,
}

/// A response in progress.
pub(super) struct ResponseInProgress<'w>(&'w ConnectionWindows);

impl Drop for ResponseInProgress<'_> {
    fn drop(&mut self) {
        self.0.responses.fetch_sub(1, Ordering::Relaxed);
    }
}

impl ConnectionWindows {
    pub(super) fn new(connection: quinn::Connection) -> Self {
        let (responses, is_open) = (AtomicUsize::new(0), AtomicBool::new(false));
        ConnectionWindows { connection, send: Mutex::default(), responses, is_open, seen: Mutex::default() }
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

    /// Returns the number of bytes to send before the next call to [`ConnectionWindows::has_sent`]. The window grows
    /// only between the calls.
    pub(super) fn slice_bytes(&self) -> usize {
        let window_bytes = self.send.lock().unwrap_or_else(PoisonError::into_inner).bytes();
        (window_bytes / 2).min(SLICE_BYTES_MAX) as usize
    }

    /// Adapts the send window after `bytes` bytes were sent.
    pub(super) fn has_sent(&self, bytes: usize) {
        let path = self.connection.stats().path;
        let mut send = self.send.lock().unwrap_or_else(PoisonError::into_inner);
        let before_bytes = send.bytes();
        send.has_sent(bytes as u64, path_window_bytes(path.rtt, path.cwnd));
        if send.bytes() != before_bytes {
            self.connection.set_send_window(send.bytes());
        }
    }

    /// Makes the send window of a connection without responses small, so that other connections can grow.
    pub(super) fn rest(&self) {
        let mut send = self.send.lock().unwrap_or_else(PoisonError::into_inner);
        if self.responses.load(Ordering::Relaxed) == 0 && send.growth_bytes > 0 {
            send.grow_to(SEND_WINDOW_MIN_BYTES);
            self.connection.set_send_window(send.bytes());
        }
    }

    /// Returns whether the client may still be receiving responses, which QUIC keeps until they are acknowledged. The
    /// result is true if, since the last call, packets have arrived and the gateway has sent more than
    /// [`KEEP_ALIVE_FRAMES`].
    pub(super) fn is_moving(&self) -> bool {
        let stats = self.connection.stats();
        let now = (stats.frame_tx.stream, stats.udp_rx.datagrams);
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *seen, now);
        now.0 - before.0 > KEEP_ALIVE_FRAMES && now.1 > before.1
    }
}

/// The size of a send window, and the values on which the size depends.
#[derive(Default)]
struct SendWindow {
    sent_bytes: u64,
    /// A lower bound of the number of bytes that the client has acknowledged.
    acknowledged_bytes: u64,
    /// The part of [`GROWTH_BYTES`] that belongs to this window.
    growth_bytes: u64,
}

impl SendWindow {
    fn bytes(&self) -> u64 {
        SEND_WINDOW_MIN_BYTES + self.growth_bytes
    }

    /// Adapts the window after `bytes` bytes were sent. `path_bytes` is the size that suits the path.
    fn has_sent(&mut self, bytes: u64, path_bytes: u64) {
        self.sent_bytes += bytes;
        // All sent bytes that do not fit into the window must have been acknowledged.
        self.acknowledged_bytes = self.acknowledged_bytes.max(self.sent_bytes.saturating_sub(self.bytes()));
        self.grow_to(path_bytes.min(SEND_WINDOW_MIN_BYTES + 2 * self.acknowledged_bytes));
    }

    /// Changes the size to `bytes`, or less if other connections use the growth.
    fn grow_to(&mut self, bytes: u64) {
        let others = GROWTH_BYTES.load(Ordering::Relaxed).saturating_sub(self.growth_bytes);
        let most = GROWTH_BYTES_MAX.saturating_sub(others) / GROWTH_DIVISOR;
        let growth_bytes = bytes.saturating_sub(SEND_WINDOW_MIN_BYTES).min(most);
        // The sum may briefly be a little too large, because threads do not wait for each other.
        GROWTH_BYTES.fetch_add(growth_bytes, Ordering::Relaxed);
        GROWTH_BYTES.fetch_sub(self.growth_bytes, Ordering::Relaxed);
        self.growth_bytes = growth_bytes;
    }
}

impl Drop for SendWindow {
    fn drop(&mut self) {
        GROWTH_BYTES.fetch_sub(self.growth_bytes, Ordering::Relaxed);
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
    use super::*;

    #[test]
    fn the_send_window_is_what_the_path_can_hold() {
        let far = Duration::from_millis(60);
        assert_eq!(path_window_bytes(Duration::from_micros(200), 64 << 20), NEAR_SEND_WINDOW_BYTES);
        assert_eq!(path_window_bytes(far, 10 << 10), SEND_WINDOW_MIN_BYTES);
        assert_eq!(path_window_bytes(far, 3 << 20), 6 << 20);
        assert_eq!(path_window_bytes(far, 64 << 20), FAR_SEND_WINDOW_BYTES);
    }

    /// Sends as much as a window allows if the client has acknowledged `acknowledged_bytes`.
    fn fill(window: &mut SendWindow, acknowledged_bytes: u64) {
        while window.sent_bytes < acknowledged_bytes + window.bytes() {
            let room = acknowledged_bytes + window.bytes() - window.sent_bytes;
            window.has_sent(room.min(16 << 10), FAR_SEND_WINDOW_BYTES);
        }
    }

    #[test]
    fn windows_grow_by_acknowledgements_and_share_what_there_is() {
        let mut windows: Vec<_> = (0..400).map(|_| SendWindow::default()).collect();
        windows.iter_mut().for_each(|window| fill(window, 0));
        assert!(windows.iter().all(|window| window.bytes() == SEND_WINDOW_MIN_BYTES), "nobody acknowledges");
        let mut acknowledged = 0;
        for _ in 0..8 {
            let one = &mut windows[0];
            acknowledged = one.sent_bytes;
            fill(one, acknowledged);
        }
        assert!(windows[0].bytes() > FAR_SEND_WINDOW_BYTES - (1 << 20), "{} bytes", windows[0].bytes());
        for _ in 0..2 {
            for window in &mut windows {
                fill(window, acknowledged);
            }
        }
        let sum: u64 = windows.iter().map(|window| window.growth_bytes).sum();
        assert!((GROWTH_BYTES_MAX / 2..=GROWTH_BYTES_MAX).contains(&sum), "{sum} bytes");
        windows.truncate(1);
        windows[0].grow_to(0);
        assert_eq!(windows[0].bytes(), SEND_WINDOW_MIN_BYTES);
    }
}
