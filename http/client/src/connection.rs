//! One connection, its received but unused bytes, and the buffers that are kept for the connection's lifetime.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::time::{Duration, Instant};

use fordway_store::{Error, ErrorKind, Result};

use super::Timeouts;
use super::carrier::{TcpOrTlsStream, TlsStream};
#[cfg(feature = "http2")]
use super::http2::Http2Connection;
use super::proxy::ProxyRequestRewriter;
use super::response::{MAX_HEAD_BYTES, ResponseHead, lost};
use super::socket::TcpSocket;
use super::tls::certificate_refusal;

/// The buffer size for receiving a head; large enough for a head and a small body.
const BUFFER_BYTES: usize = 16 * 1024;

enum ConnectionTransport {
    Plain(TcpSocket),
    Tls(Box<TlsStream>),
    #[cfg(feature = "http2")]
    Http2(Box<Http2Connection>),
}

/// A connection with its buffers. In `buffer`, the bytes in `..used` have been consumed, although a head remains
/// readable there. The bytes in `used..filled` have been received but not yet consumed.
pub struct BufferedConnection {
    transport: ConnectionTransport,
    timeouts: Timeouts,
    buffer: Vec<u8>,
    used: usize,
    filled: usize,
    /// Rewrites requests; `None` unless the connection leads to a proxy that forwards requests.
    forwarding: Option<ProxyRequestRewriter>,
    /// The head of the request being sent; kept to reuse its capacity.
    pub request_head: Vec<u8>,
    /// The number of request bytes sent so far, including the head.
    sent: usize,
    /// The number of bytes received since the connection was opened.
    pub received_bytes: u64,
    /// Whether calls block. If not, calls that would block fail with `WouldBlock`, and the caller retries them.
    is_blocking: bool,
    /// Whether the last non-blocking call received fewer bytes than it had room for.
    is_drained: bool,
    /// Whether an earlier response was received on this connection.
    pub is_reused: bool,
    pub(super) made: Instant,
    /// The deadline for all waits of the current exchange, if the exchange as a whole has a deadline.
    pub(super) until: Option<Instant>,
}

/// The destination of the next received bytes.
pub(super) enum ReceiveTarget<'m> {
    /// The caller's memory, without a copy.
    Place(&'m mut [u8]),
    /// The connection's buffer, where the caller inspects the bytes; the value is the maximum number of bytes.
    Aside(usize),
}

/// The result of waiting for a response before the request has been sent completely.
pub(super) enum EarlyResponse {
    /// `100 Continue`: the server is ready for the body.
    GoOn,
    /// A final response.
    Answer(ResponseHead),
    /// Nothing has arrived.
    Nothing,
}

impl BufferedConnection {
    pub(super) fn plain(socket: TcpSocket, timeouts: Timeouts) -> Self {
        Self::over(ConnectionTransport::Plain(socket), timeouts)
    }

    pub(super) fn tls(stream: TlsStream, timeouts: Timeouts) -> Self {
        Self::over(ConnectionTransport::Tls(Box::new(stream)), timeouts)
    }

    /// Creates a connection that sends requests on `carrier` without rewriting them.
    pub(super) fn on(carrier: TcpOrTlsStream, timeouts: Timeouts) -> Self {
        match carrier {
            TcpOrTlsStream::Tcp(socket) => Self::plain(socket, timeouts),
            TcpOrTlsStream::Tls(stream) => Self::tls(*stream, timeouts),
        }
    }

    #[cfg(feature = "http2")]
    pub(super) fn multiplexed(connection: Http2Connection, timeouts: Timeouts) -> Self {
        Self::over(ConnectionTransport::Http2(Box::new(connection)), timeouts)
    }

    fn over(transport: ConnectionTransport, timeouts: Timeouts) -> Self {
        BufferedConnection {
            transport,
            timeouts,
            forwarding: None,
            buffer: vec![0; BUFFER_BYTES],
            used: 0,
            filled: 0,
            is_drained: false,
            request_head: Vec::with_capacity(1024),
            sent: 0,
            received_bytes: 0,
            is_blocking: true,
            is_reused: false,
            made: Instant::now(),
            until: None,
        }
    }

    /// Replaces the timeouts, for requests of another client. Costs a system call only if a timeout changes.
    pub(super) fn set_timeouts(&mut self, timeouts: Timeouts) -> io::Result<()> {
        self.timeouts = timeouts;
        match &mut self.transport {
            ConnectionTransport::Plain(socket) => socket.set_write_timeout(timeouts.progress),
            ConnectionTransport::Tls(stream) => stream.sock.tcp_mut().set_write_timeout(timeouts.progress),
            #[cfg(feature = "http2")]
            ConnectionTransport::Http2(connection) => {
                connection.set_timeout(timeouts.progress);
                Ok(())
            }
        }
    }

    /// Records that the connection leads to a proxy that forwards requests.
    pub(super) fn forwarded(self, forwarding: ProxyRequestRewriter) -> Self {
        BufferedConnection { forwarding: Some(forwarding), ..self }
    }

    /// Appends a request's head to `request_head`, in the form that the server, or a forwarding proxy, expects.
    pub(super) fn push_head(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let start = self.request_head.len();
        write(&mut self.request_head);
        if let Some(forwarding) = &self.forwarding {
            forwarding.rewrite(&mut self.request_head, start);
        }
    }

    /// Returns the proxy's refusal, if the connection leads to a forwarding proxy and `status` is 407.
    pub(super) fn refused_by_proxy(&self, status: u16) -> Option<Error> {
        self.forwarding.as_ref().filter(|_| status == 407).map(ProxyRequestRewriter::wants_login)
    }

    /// Returns whether the connection is still open and no unsolicited bytes have arrived.
    pub(super) fn is_quiet(&mut self) -> bool {
        let is_quiet = match &mut self.transport {
            #[cfg(feature = "http2")]
            ConnectionTransport::Http2(connection) => connection.is_open(),
            _ => self.socket().is_quiet(),
        };
        is_quiet && self.has_nothing_left()
    }

    /// Returns whether all received bytes have been consumed.
    pub fn has_nothing_left(&self) -> bool {
        self.used == self.filled
    }

    /// Returns whether this is an HTTP/2 connection, which multiplexes requests and marks the end of each body.
    pub(super) fn is_http2(&self) -> bool {
        #[cfg(feature = "http2")]
        return self.http2().is_some();
        #[cfg(not(feature = "http2"))]
        false
    }

    /// Returns the HTTP/2 connection; `None` for HTTP/1.1 and 3.
    #[cfg(feature = "http2")]
    pub(super) fn http2(&self) -> Option<&Http2Connection> {
        if let ConnectionTransport::Http2(connection) = &self.transport { Some(connection) } else { None }
    }

    /// Returns the HTTP/2 connection, so that the caller can drive it; `None` for HTTP/1.1 and 3.
    #[cfg(feature = "http2")]
    pub(super) fn as_http2(&mut self) -> Option<&mut Http2Connection> {
        if let ConnectionTransport::Http2(connection) = &mut self.transport { Some(connection) } else { None }
    }

    /// Sets whether calls block from now on. A caller with many requests in flight makes calls non-blocking, and waits
    /// for all requests at once. Cost: none.
    pub fn set_waiting(&mut self, waits: bool) {
        (self.is_blocking, self.is_drained) = (waits, false);
        match &mut self.transport {
            ConnectionTransport::Plain(socket) => socket.set_waiting(waits),
            ConnectionTransport::Tls(stream) => stream.sock.tcp_mut().set_waiting(waits),
            // Calls on an HTTP/2 connection that carries a single request always block.
            #[cfg(feature = "http2")]
            ConnectionTransport::Http2(_) => {}
        }
    }

    /// Makes the next non-blocking call check for new data, even if the last call received all available data.
    pub fn look_again(&mut self) {
        self.is_drained = false;
    }

    /// Counts the bytes received by a call, and records whether the call drained the socket. A call on a plain socket
    /// returns all available bytes, up to the size of the buffer.
    fn received(&mut self, got: usize, room: usize) {
        self.received_bytes += got as u64;
        let is_plain = matches!(self.transport, ConnectionTransport::Plain(_));
        self.is_drained = is_plain && !self.is_blocking && got < room;
    }

    /// Fails with `WouldBlock` if the last call received all available data.
    fn check_drained(&self) -> io::Result<()> {
        if self.is_drained { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
    }

    /// Sets the low-water mark; see [`TcpSocket::set_low_water`]. Only HTTP/1.1 connections without TLS have a
    /// low-water mark.
    pub(super) fn set_low_water(&mut self, bytes: usize) {
        if let ConnectionTransport::Plain(socket) = &mut self.transport {
            socket.set_low_water(bytes);
        }
    }

    /// Returns the underlying socket.
    pub fn socket(&self) -> &TcpSocket {
        match &self.transport {
            ConnectionTransport::Plain(socket) => socket,
            ConnectionTransport::Tls(stream) => stream.sock.tcp(),
            #[cfg(feature = "http2")]
            ConnectionTransport::Http2(connection) => &connection.socket,
        }
    }

    /// Sends the head and `body`, in one call if the socket has room. The timeout applies to each period without
    /// progress.
    pub fn send(&mut self, body: &[u8]) -> io::Result<()> {
        (self.used, self.filled, self.sent) = (0, 0, 0);
        self.send_rest(body)
    }

    /// Continues a [`BufferedConnection::send`] of the same `body` that ended with `WouldBlock`.
    pub fn send_rest(&mut self, body: &[u8]) -> io::Result<()> {
        while self.sent < self.request_head.len() + body.len() {
            let head = self.request_head.get(self.sent..).unwrap_or_default();
            let body = &body[self.sent.saturating_sub(self.request_head.len())..];
            let pieces = [IoSlice::new(head), IoSlice::new(body)];
            let written = match &mut self.transport {
                ConnectionTransport::Plain(socket) => socket.write_vectored(&pieces),
                ConnectionTransport::Tls(stream) => stream.write_vectored(&pieces),
                #[cfg(feature = "http2")]
                ConnectionTransport::Http2(connection) => connection.write(head, body),
            };
            match written {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(sent) => self.sent += sent,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        match &mut self.transport {
            ConnectionTransport::Plain(_) => Ok(()),
            ConnectionTransport::Tls(stream) => stream.flush(),
            // Data that the HTTP/2 connection has accepted is sent while the caller waits for the response.
            #[cfg(feature = "http2")]
            ConnectionTransport::Http2(_) => Ok(()),
        }
    }

    /// Sends the unsent rest of `request_head`, to which several requests may have been appended. Returns `false` if
    /// the socket's buffer is full.
    pub(super) fn send_queued(&mut self) -> io::Result<bool> {
        match self.send_rest(&[]) {
            Ok(()) => {
                self.request_head.clear();
                self.sent = 0;
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Receives a head, and skips interim responses (1xx). Returns `None` if the server closed the connection without
    /// sending anything, or after an interim response. Errors: `BadResponse`, `Timeout`, `Unavailable`, `Io`.
    pub(super) fn receive_head(&mut self) -> Result<Option<ResponseHead>> {
        let deadline = Instant::now() + self.timeouts.first_byte;
        self.limit_wait(self.timeouts.first_byte)?;
        let (mut head, mut has_received) = (ResponseHead::default(), false);
        loop {
            if self.take_head(&mut head)? {
                return Ok(Some(head));
            }
            if has_received {
                // The limit applies to the whole head, so a server cannot extend it by sending single bytes or interim
                // responses.
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Err(self.receive_error(io::ErrorKind::TimedOut.into()));
                }
                self.limit_wait(left)?;
            }
            match self.receive_more() {
                // A server that has closed the connection sends an end of stream or a reset. No response will follow;
                // the caller decides whether to resend the request.
                Ok(0) if self.has_nothing_left() => return Ok(None),
                Err(error) if is_reset(&error) && self.has_nothing_left() => return Ok(None),
                Ok(0) => {
                    return Err(Error::new(ErrorKind::BadResponse, "the connection ended within a head"));
                }
                Ok(_) => has_received = true,
                Err(error) => return Err(self.receive_error(error)),
            }
        }
    }

    /// Waits up to `limit` for the first response. A response that has begun to arrive by then is kept, so that a later
    /// call can return it. Errors: `Unavailable` if the connection was closed; `BadResponse`, `Io`.
    pub(super) fn first_word(&mut self, limit: Duration) -> Result<EarlyResponse> {
        #[cfg(feature = "http2")]
        if self.is_http2() {
            return self.first_word_http2(limit);
        }
        let deadline = Instant::now() + limit;
        let mut head = ResponseHead::default();
        loop {
            while self.filled > self.used && head.parse(&self.buffer, self.used..self.filled)? {
                self.used = head.end;
                match head.status {
                    100 => return Ok(EarlyResponse::GoOn),
                    101..=199 => {}
                    _ => return Ok(EarlyResponse::Answer(head)),
                }
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(EarlyResponse::Nothing);
            }
            self.limit_wait(left)?;
            match self.receive_more() {
                Ok(0) => return Err(super::client::closed()),
                Ok(_) => {}
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                }
                Err(error) => return Err(self.receive_error(error)),
            }
        }
    }

    #[cfg(feature = "http2")]
    fn first_word_http2(&mut self, limit: Duration) -> Result<EarlyResponse> {
        self.limit_wait(limit)?;
        let Some(http2) = self.as_http2() else { return Ok(EarlyResponse::Nothing) };
        match http2.await_word() {
            Ok(false) => Ok(EarlyResponse::GoOn),
            Ok(true) => self.receive_head()?.map(EarlyResponse::Answer).ok_or_else(super::client::closed),
            Err(error) if error.kind() == io::ErrorKind::TimedOut => Ok(EarlyResponse::Nothing),
            Err(error) if is_reset(&error) => Err(super::client::closed()),
            Err(error) => Err(self.receive_error(error)),
        }
    }

    /// Sends a head whose body follows in pieces. `body_bytes` is the size of the body, if known.
    pub(super) fn send_head(&mut self, body_bytes: Option<u64>) -> io::Result<()> {
        #[cfg(feature = "http2")]
        if let ConnectionTransport::Http2(connection) = &mut self.transport {
            (self.used, self.filled) = (0, 0);
            return connection.start(&self.request_head, body_bytes);
        }
        let _ = body_bytes;
        self.send(&[])
    }

    /// Returns whether, over HTTP/3, a final response has arrived although the body of the request is still being sent.
    /// On other connections, an early response is found by a later call, or makes the next send fail.
    pub(super) fn is_answered_early(&mut self) -> bool {
        if !self.socket().is_bridge() || (self.has_nothing_left() && self.socket().is_quiet()) {
            return false;
        }
        if self.has_nothing_left() && self.receive_more().is_err() {
            return true;
        }
        // A late `100 Continue` is not a final response, so skip it.
        let mut head = ResponseHead::default();
        while head.parse(&self.buffer, self.used..self.filled).is_ok_and(|is_whole| is_whole)
            && head.status == 100
        {
            self.used = head.end;
        }
        !self.has_nothing_left()
    }

    /// Ends a body of unknown size that was sent in pieces. Has an effect only on an HTTP/2 connection, which has its
    /// own marker for the end of a body.
    pub(super) fn finish_body(&mut self) -> io::Result<()> {
        #[cfg(feature = "http2")]
        if let Some(http2) = self.as_http2() {
            return http2.finish();
        }
        Ok(())
    }

    /// Sends `before` and then a piece of a body. The head must already have been sent. Received bytes are kept.
    pub(super) fn send_piece(&mut self, before: &[u8], piece: &[u8]) -> io::Result<()> {
        self.request_head.clear();
        self.request_head.extend_from_slice(before);
        self.sent = 0;
        self.send_rest(piece)
    }

    /// Takes the next head from the received bytes, and skips the heads of interim responses. Returns `false` if the
    /// head is incomplete. Errors: `BadResponse`.
    pub fn take_head(&mut self, head: &mut ResponseHead) -> Result<bool> {
        while self.filled > self.used && head.parse(&self.buffer, self.used..self.filled)? {
            self.used = head.end;
            if head.status >= 200 {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Marks the last received head, and everything after it, as unread again. Returns `false` on an HTTP/2 connection,
    /// whose buffer does not contain the head. Between taking the head and calling this method, only
    /// [`BufferedConnection::receive_more`] may be called.
    pub(super) fn unread(&mut self) -> bool {
        if self.is_http2() {
            return false;
        }
        self.request_head.clear();
        (self.used, self.sent) = (0, 0);
        true
    }

    /// Returns the bytes of the head in `range`. The bytes are valid until the next request.
    pub(super) fn text(&self, range: std::ops::Range<usize>) -> &[u8] {
        &self.buffer[range]
    }

    /// Returns the bytes that have been received but not yet consumed.
    pub fn waiting(&self) -> &[u8] {
        &self.buffer[self.used..self.filled]
    }

    /// Consumes `count` received bytes.
    pub fn consume(&mut self, count: usize) {
        self.used += count;
        debug_assert!(self.used <= self.filled);
    }

    /// Reads body bytes into `target`: the bytes that have already been received, or, if no bytes have been received,
    /// as many bytes as one system call returns. Returns 0 at the end of the stream.
    pub(super) fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        if !self.has_nothing_left() {
            return Ok(self.take_waiting(target));
        }
        self.progress_limit()?;
        let got = retry(|| match &mut self.transport {
            ConnectionTransport::Plain(socket) => socket.read(target),
            ConnectionTransport::Tls(stream) => stream.read(target),
            #[cfg(feature = "http2")]
            ConnectionTransport::Http2(connection) => connection.read(target),
        })?;
        self.received_bytes += got as u64;
        Ok(got)
    }

    /// Returns whether [`BufferedConnection::read_ahead`] fills more than the first target.
    pub(super) fn reads_far_ahead(&self) -> bool {
        matches!(self.transport, ConnectionTransport::Plain(_))
    }

    /// Receives the next bytes with one read (on a plain socket, one system call). The buffer must be empty. Body bytes
    /// go straight into their targets. Bytes to inspect go into the buffer, starting at position 0;
    /// [`BufferedConnection::text`] returns them until the next call. Returns the number of bytes, or 0 at the end. An
    /// encrypted connection fills only the first target.
    pub(super) fn read_ahead(&mut self, nexts: Vec<ReceiveTarget<'_>>) -> io::Result<usize> {
        debug_assert!(self.has_nothing_left());
        self.check_drained()?;
        // TLS decrypts into its own memory first, so filling several targets at once would not save a copy.
        let ConnectionTransport::Plain(socket) = &mut self.transport else {
            let first = nexts
                .into_iter()
                .find_map(|next| if let ReceiveTarget::Place(place) = next { Some(place) } else { None });
            return first.map_or(Ok(0), |place| self.read(place));
        };
        let aside_bytes =
            nexts.iter().map(|next| if let ReceiveTarget::Aside(len) = next { *len } else { 0 }).sum();
        if self.buffer.len() < aside_bytes {
            self.buffer.resize(aside_bytes, 0);
        }
        let mut aside = &mut self.buffer[..];
        let piece = |next| match next {
            ReceiveTarget::Place(place) => IoSliceMut::new(place),
            ReceiveTarget::Aside(len) => {
                let (piece, rest) = std::mem::take(&mut aside).split_at_mut(len);
                aside = rest;
                IoSliceMut::new(piece)
            }
        };
        let mut pieces: Vec<_> = nexts.into_iter().map(piece).collect();
        let room = pieces.iter().map(|piece| piece.len()).sum();
        let got = retry(|| socket.read_vectored(&mut pieces))?;
        (self.used, self.filled) = (0, 0);
        self.received(got, room);
        Ok(got)
    }

    /// Puts `bytes`, the most recently received and still unused bytes, back into the buffer.
    pub(super) fn put_back(&mut self, bytes: &[u8]) {
        debug_assert!(self.has_nothing_left());
        if self.buffer.len() < bytes.len() {
            self.buffer.resize(bytes.len(), 0);
        }
        self.buffer[..bytes.len()].copy_from_slice(bytes);
        (self.used, self.filled) = (0, bytes.len());
    }

    /// Moves the unconsumed bytes to the start of a buffer of at least `room_bytes`, and receives more bytes after
    /// them. Returns 0 at the end of the stream.
    pub(super) fn receive_next(&mut self, room_bytes: usize) -> io::Result<usize> {
        self.buffer.copy_within(self.used..self.filled, 0);
        (self.used, self.filled) = (0, self.filled - self.used);
        if self.buffer.len() < room_bytes || self.buffer.len() > self.filled.max(MAX_HEAD_BYTES) {
            // Bytes that were put back may have enlarged the buffer.
            self.buffer.resize(self.filled.max(room_bytes), 0);
            self.buffer.shrink_to_fit();
        }
        self.receive_more()
    }

    /// Discards up to `limit_bytes` of an unwanted body. The buffer must be empty. Returns 0 at the end of the stream.
    pub(super) fn discard_next(&mut self, limit_bytes: usize) -> io::Result<usize> {
        debug_assert!(self.has_nothing_left());
        let mut scratch = std::mem::take(&mut self.buffer);
        (self.used, self.filled) = (0, 0);
        let limit = scratch.len().min(limit_bytes);
        let dropped = self.discard(&mut scratch[..limit]);
        self.buffer = scratch;
        dropped
    }

    /// Reads unwanted body bytes into `scratch`, like [`BufferedConnection::read`], and discards them. With a plain
    /// socket, the kernel discards them instead, and `scratch` only limits their number.
    pub fn discard(&mut self, scratch: &mut [u8]) -> io::Result<usize> {
        match &mut self.transport {
            ConnectionTransport::Plain(socket) if self.used == self.filled => {
                let got = retry(|| socket.discard(scratch))?;
                self.received_bytes += got as u64;
                Ok(got)
            }
            _ => self.read(scratch),
        }
    }

    /// Reads body bytes until `target` is full or the stream ends; returns the number of bytes read.
    pub(super) fn read_all(&mut self, target: &mut [u8]) -> io::Result<usize> {
        let mut done = self.take_waiting(target);
        while done < target.len() {
            self.progress_limit()?;
            let rest = &mut target[done..];
            let got = retry(|| match &mut self.transport {
                ConnectionTransport::Plain(socket) => socket.receive_all(rest),
                ConnectionTransport::Tls(stream) => stream.read(rest),
                #[cfg(feature = "http2")]
                ConnectionTransport::Http2(connection) => connection.receive_all(rest),
            })?;
            if got == 0 {
                break;
            }
            self.received_bytes += got as u64;
            done += got;
        }
        Ok(done)
    }

    /// Receives more bytes after the unconsumed bytes. The head, which ends at `keep_until`, is not moved. Consumed
    /// bytes after the head are dropped if room is needed. Returns 0 at the end of the stream.
    pub(super) fn receive_behind(&mut self, keep_until: usize) -> io::Result<usize> {
        if self.filled == self.buffer.len() && self.used > keep_until {
            self.buffer.copy_within(self.used..self.filled, keep_until);
            self.filled -= self.used - keep_until;
            self.used = keep_until;
        }
        self.progress_limit()?;
        self.receive_more()
    }

    fn take_waiting(&mut self, target: &mut [u8]) -> usize {
        let count = target.len().min(self.filled - self.used);
        target[..count].copy_from_slice(&self.buffer[self.used..self.used + count]);
        self.used += count;
        count
    }

    /// Receives more bytes after the unconsumed bytes. The buffer grows up to the maximum head size. Returns 0 at the
    /// end of the stream.
    pub fn receive_more(&mut self) -> io::Result<usize> {
        if self.filled == self.buffer.len() {
            if self.buffer.len() >= MAX_HEAD_BYTES {
                return Err(io::Error::other(Error::new(ErrorKind::BadResponse, "the head is over 128 KiB")));
            }
            self.buffer.resize(2 * self.buffer.len(), 0);
        }
        self.check_drained()?;
        let room = &mut self.buffer[self.filled..];
        let room_bytes = room.len();
        let got = retry(|| match &mut self.transport {
            ConnectionTransport::Plain(socket) => socket.read(room),
            ConnectionTransport::Tls(stream) => stream.read(room),
            #[cfg(feature = "http2")]
            ConnectionTransport::Http2(connection) => connection.read(room),
        })?;
        self.filled += got;
        self.received(got, room_bytes);
        Ok(got)
    }

    fn progress_limit(&mut self) -> io::Result<()> {
        self.set_read_timeout(self.timeouts.progress)
    }

    fn limit_wait(&mut self, limit: Duration) -> Result<()> {
        self.set_read_timeout(limit).map_err(|error| self.receive_error(error))
    }

    fn set_read_timeout(&mut self, limit: Duration) -> io::Result<()> {
        if !self.is_blocking {
            return Ok(());
        }
        let left = self.until.map(|until| until.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let limit = left.map_or(limit, |left| limit.min(left));
        match &mut self.transport {
            ConnectionTransport::Plain(socket) => socket.set_read_timeout(limit),
            ConnectionTransport::Tls(stream) => stream.sock.tcp_mut().set_read_timeout(limit),
            #[cfg(feature = "http2")]
            ConnectionTransport::Http2(connection) => {
                connection.set_timeout(limit);
                Ok(())
            }
        }
    }

    fn receive_error(&self, error: io::Error) -> Error {
        let limit = format!("{:?}", self.timeouts.first_byte);
        io_error(error, "receiving the response", &format!("no complete response arrived within {limit}"))
    }
}

fn retry(mut call: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

/// Returns whether the error means that the server has closed the connection, and not that the server is slow or
/// faulty.
fn is_reset(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof)
}

/// Returns whether the error means that a wait ended because the program must stop after a signal.
pub(super) fn is_stop(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::CANCELED.raw_os_error())
}

/// Converts a socket error. An [`Error`] that was wrapped in the `io::Error` is returned unchanged. Timeouts and lost
/// connections have their own error kinds.
pub fn io_error(error: io::Error, doing: &str, too_late: &str) -> Error {
    if error.get_ref().is_some_and(|inner| inner.is::<Error>()) {
        let inner = error.into_inner().and_then(|inner| inner.downcast::<Error>().ok());
        return inner.map_or_else(|| Error::from(ErrorKind::Internal), |ours| *ours);
    }
    match error.kind() {
        _ if is_stop(&error) => Error::new(ErrorKind::Interrupted, format!("a signal arrived while {doing}")),
        // Under TLS 1.3, the server checks the certificate after the client's handshake has ended.
        io::ErrorKind::InvalidData if certificate_refusal(&error).is_some() => {
            certificate_refusal(&error).unwrap_or_else(|| ErrorKind::Internal.into()).caused_by(error)
        }
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Error::new(ErrorKind::Timeout, too_late),
        _ if is_reset(&error) => lost(format!("the connection was cut while {doing}")).caused_by(error),
        _ => Error::new(ErrorKind::Io, doing).caused_by(error),
    }
}
