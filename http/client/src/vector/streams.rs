//! One HTTP/2 connection with several requests in flight, each in its own stream.
//!
//! If a stream ends early, only its bytes are requested again; if the connection ends, the bytes of all streams are
//! requested again.

use std::collections::{BTreeMap, VecDeque};
use std::future::Future as _;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Instant;

use fordway_store::{Error, ErrorKind};
use fordway_wire::range::digits;
use h2::RecvStream;
use h2::client::ResponseFuture;
use rustix::event::PollFlags;

use super::batch::FragmentBatch;
use super::content::{ContentHeaders, RangeResponseBody};
use super::line::{RangeRequestOutcome, StreamEndReason, is_cheap};
use super::request::{BatchId, RangeRequest};
use super::session::ConnectionPermit;
use super::sink::FragmentSink;
use super::source::FileVersion;
use crate::Timeouts;
use crate::connection::{BufferedConnection, io_error};
use crate::http2::Http2Connection;
use crate::response::lost;

/// The maximum number of concurrent streams, even if the server allows more.
const DEPTH_MAX: usize = 256;
/// The maximum number of consecutive refused streams before a failure is reported.
const REFUSALS_MAX: usize = 2 * DEPTH_MAX;
/// An HTTP/2 connection in use.
pub(super) struct MultiplexedConnection {
    connection: BufferedConnection,
    /// Streams, in the order of their requests.
    streams: VecDeque<RequestStream>,
    /// Stream outcomes that have not been reported yet.
    events: VecDeque<RangeRequestOutcome>,
    /// The number of complete responses since this use of the connection began.
    answered: usize,
    /// The value of `answered` when the first of the current requests was sent.
    answered_before: usize,
    /// The number of streams refused since the last response.
    refusals: usize,
    /// The maximum number of concurrent streams, lowered after refusals.
    depth_max: usize,
    /// When the current first stream became the first.
    front_since: Instant,
    is_closing: bool,
    _permit: ConnectionPermit,
}

impl MultiplexedConnection {
    pub(super) fn new(connection: BufferedConnection, permit: ConnectionPermit) -> Self {
        MultiplexedConnection {
            connection,
            streams: VecDeque::new(),
            events: VecDeque::new(),
            answered: 0,
            answered_before: 0,
            refusals: 0,
            depth_max: DEPTH_MAX,
            front_since: Instant::now(),
            is_closing: false,
            _permit: permit,
        }
    }

    pub(super) fn depth(&self) -> usize {
        self.streams.len() + self.events.len()
    }

    /// Returns the maximum number of concurrent streams: the smaller of the limits of this client and of the server,
    /// but at least one.
    pub(super) fn depth_max(&self) -> usize {
        let stated = self.connection.http2().map_or(1, Http2Connection::streams_max);
        self.depth_max.min(stated).max(1)
    }

    pub(super) fn was_idle(&self) -> bool {
        let had_answers = self.connection.is_reused || self.answered_before > 0;
        let is_begun = |stream: &RequestStream| matches!(stream.state, StreamState::Receiving(..));
        had_answers && self.answered == self.answered_before && !self.streams.iter().any(is_begun)
    }

    pub(super) fn push(&mut self, mut request: RangeRequest, write: impl FnOnce(&mut Vec<u8>)) {
        if self.streams.is_empty() {
            (self.answered_before, self.front_since) = (self.answered, Instant::now());
        }
        request.is_pipelined = !self.streams.is_empty();
        let mut head = Vec::with_capacity(512);
        write(&mut head);
        self.streams.push_back(RequestStream::new(request, head));
    }

    /// Opens as many streams as the server allows, and sends as much as possible without blocking.
    pub(super) fn flush(&mut self) -> Result<(), Error> {
        let Some(http2) = self.connection.as_http2() else { return Ok(()) };
        // If the connection has ended, report the end only after all received data has been processed.
        let can_send = http2.end().is_none() && http2.takes_more();
        for stream in self.streams.iter_mut().filter(|_| can_send) {
            let StreamState::Unsent(head) = &stream.state else { continue };
            match http2.open_stream(head).map_err(|error| cut(error, "sending requests"))? {
                Some(response) => stream.state = StreamState::Waiting(response),
                None => break,
            }
        }
        http2.flush();
        Ok(())
    }

    pub(super) fn interest(&self) -> PollFlags {
        let is_blocked = self.connection.http2().is_some_and(Http2Connection::has_unsent);
        if is_blocked { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN }
    }

    /// Returns the time at which waiting for a response ends with a timeout. The first stream's timeout begins when the
    /// stream becomes first. The timeout is therefore also long enough for a server that responds to requests one by
    /// one.
    pub(super) fn deadline(&self, timeouts: &Timeouts) -> Option<Instant> {
        let front = self.streams.front()?;
        let limit = match front.state {
            StreamState::Receiving(..) => timeouts.progress,
            _ => timeouts.first_byte,
        };
        Some(front.moved.max(self.front_since) + limit)
    }

    pub(super) fn carries(&self, batches: &[BatchId]) -> bool {
        self.streams.iter().any(|stream| batches.contains(&stream.request.batch))
    }

    pub(super) fn is_open(&self) -> bool {
        !self.is_closing
    }

    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.connection.socket().as_fd()
    }

    pub(super) fn ignores_range(&self, version: &FileVersion) -> bool {
        self.streams.iter().any(|RequestStream { request, state, .. }| {
            let is_whole = matches!(state, StreamState::Receiving(_, content, _) if content.is_whole());
            is_whole && request.spans.len() == 1 && request.bytes < version.size_bytes
        })
    }

    pub(super) fn advance<S: FragmentSink>(
        &mut self,
        batches: &mut BTreeMap<BatchId, FragmentBatch<S>>,
        version: &FileVersion,
    ) -> RangeRequestOutcome {
        while self.events.is_empty() {
            let Some(http2) = self.connection.as_http2() else { return RangeRequestOutcome::Pending };
            let has_more = http2.turn();
            self.is_closing = !http2.takes_more();
            let ended = http2.end().map(|end| lost(end.to_string()));
            self.take(batches, version);
            match ended {
                _ if !self.events.is_empty() => {}
                Some(error) => return RangeRequestOutcome::Broken(error),
                None if !has_more => return RangeRequestOutcome::Pending,
                None => {}
            }
        }
        self.events.pop_front().unwrap_or(RangeRequestOutcome::Pending)
    }

    /// Processes the data that has arrived on all streams.
    fn take<S: FragmentSink>(
        &mut self,
        batches: &mut BTreeMap<BatchId, FragmentBatch<S>>,
        version: &FileVersion,
    ) {
        let (mut index, is_closing) = (0, self.is_closing);
        while let Some(stream) = self.streams.get_mut(index) {
            let is_too_late = is_closing && matches!(stream.state, StreamState::Unsent(_));
            let end = match stream.step(batches.get_mut(&stream.request.batch), version) {
                Ok(StreamProgress::GoesOn) if is_too_late => {
                    Some(self.unseen("the server accepts no more requests"))
                }
                Ok(StreamProgress::GoesOn) => {
                    index += 1;
                    continue;
                }
                Ok(StreamProgress::Done) => None,
                Ok(StreamProgress::Ended(end)) => Some(end),
                Err(broken) => match self.broken(broken) {
                    Some(end) => Some(end),
                    // The stream ends with the connection. The end is reported after all received data has been
                    // processed.
                    None => {
                        index += 1;
                        continue;
                    }
                },
            };
            let Some(mut stream) = self.streams.remove(index) else { return };
            if end.is_some() {
                stream.lose_unconfirmed(batches);
            }
            if index == 0 {
                self.front_since = Instant::now();
            }
            let event = self.event_of(stream, end);
            self.events.push_back(event);
        }
    }

    /// Returns the outcome of a stream; `end` is the reason if it ended early.
    fn event_of(&mut self, stream: RequestStream, end: Option<StreamEndReason>) -> RangeRequestOutcome {
        match (end, stream.state) {
            (Some(end), _) => RangeRequestOutcome::Ended(stream.request, end),
            (None, StreamState::Receiving(_, content, _)) => {
                (self.answered, self.refusals) = (self.answered + 1, 0);
                RangeRequestOutcome::of(stream.request, content)
            }
            (None, _) => RangeRequestOutcome::Ended(stream.request, StreamEndReason::Unneeded),
        }
    }

    /// Returns the reason for the end of a stream, according to its error; `None` if the connection has ended.
    fn broken(&mut self, error: h2::Error) -> Option<StreamEndReason> {
        let is_refused = error.is_reset() && error.reason() == Some(h2::Reason::REFUSED_STREAM);
        // A server that is shutting down announces which streams it will not process, and may close the connection
        // immediately.
        if error.is_remote() && (error.is_go_away() || is_refused) {
            if is_refused {
                self.depth_max = self.depth_max.min(self.streams.len() - 1).max(1);
            }
            return Some(self.unseen(&error.to_string()));
        }
        if self.connection.http2().is_none_or(|http2| http2.end().is_some()) {
            return None;
        }
        Some(StreamEndReason::Failed(lost("the server ended a response early").caused_by(error)))
    }

    /// Returns the end reason for a request that the server did not process. Such a request is not a failure as long as
    /// the server processes other requests.
    fn unseen(&mut self, why: &str) -> StreamEndReason {
        self.refusals += 1;
        let is_used = self.answered > 0 || self.connection.is_reused || self.streams.len() > 1;
        match is_used && self.refusals < REFUSALS_MAX {
            true => StreamEndReason::Unneeded,
            false => StreamEndReason::Failed(Error::new(ErrorKind::Unavailable, why)),
        }
    }

    /// See [`RangeResponseBody::lose_unconfirmed`].
    pub(super) fn lose_unconfirmed<S: FragmentSink>(
        &mut self,
        batches: &mut BTreeMap<BatchId, FragmentBatch<S>>,
    ) {
        self.streams.iter_mut().for_each(|stream| stream.lose_unconfirmed(batches));
    }

    pub(super) fn close(mut self, keep: impl FnOnce(BufferedConnection)) -> VecDeque<RangeRequest> {
        let is_clean = self.depth() == 0 && !self.is_closing;
        let told = self.events.drain(..).filter_map(RangeRequestOutcome::into_request);
        let under_way = self.streams.drain(..).map(|stream| stream.request);
        let requests = told.chain(under_way).collect();
        if is_clean {
            keep(self.connection);
        }
        // The permit is dropped last, so that no other thread uses the permit for a new connection while this
        // connection is still open.
        requests
    }
}

fn cut(error: io::Error, doing: &str) -> Error {
    io_error(error, doing, "nothing arrived in time")
}

/// The maximum number of unwanted bytes that are received to avoid cancelling the stream.
const LET_COME_BYTES: u64 = 256 << 10;

/// A request in flight.
pub(super) struct RequestStream {
    pub(super) request: RangeRequest,
    pub(super) state: StreamState,
    /// When bytes last arrived on the stream.
    pub(super) moved: Instant,
    news: Arc<StreamReadyFlag>,
}

/// Whether a stream may have received a response or data since the last check. The flag avoids checking every stream,
/// because a connection may have hundreds of streams.
struct StreamReadyFlag(AtomicBool);

impl Wake for StreamReadyFlag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

pub(super) enum StreamState {
    /// The head, in HTTP/1.1 form.
    Unsent(Vec<u8>),
    Waiting(ResponseFuture),
    /// The body is arriving; the number of its remaining bytes, if known.
    Receiving(RecvStream, RangeResponseBody, Option<u64>),
}

/// The progress of a stream.
pub(super) enum StreamProgress {
    GoesOn,
    Done,
    Ended(StreamEndReason),
}

impl RequestStream {
    /// Creates a request with this head, in HTTP/1.1 form.
    pub(super) fn new(request: RangeRequest, head: Vec<u8>) -> Self {
        let news = Arc::new(StreamReadyFlag(AtomicBool::new(true)));
        RequestStream { request, state: StreamState::Unsent(head), moved: Instant::now(), news }
    }

    /// Processes received data until the response has ended, or no more data has arrived. Errors: the reason why the
    /// stream ended early.
    pub(super) fn step<S: FragmentSink>(
        &mut self,
        batch: Option<&mut FragmentBatch<S>>,
        version: &FileVersion,
    ) -> Result<StreamProgress, h2::Error> {
        let Some(batch) = batch else { return Ok(StreamProgress::Ended(StreamEndReason::Unneeded)) };
        match &self.state {
            StreamState::Receiving(..) => {}
            _ if batch.has_ended() => return Ok(StreamProgress::Ended(StreamEndReason::Unneeded)),
            StreamState::Unsent(_) => return Ok(StreamProgress::GoesOn),
            StreamState::Waiting(_) => {}
        }
        if !self.news.0.swap(false, Ordering::Relaxed) && !batch.has_ended() {
            return Ok(StreamProgress::GoesOn);
        }
        let waker = Waker::from(self.news.clone());
        let mut context = Context::from_waker(&waker);
        if let StreamState::Waiting(response) = &mut self.state {
            let Poll::Ready(answer) = Pin::new(response).poll(&mut context) else {
                return Ok(StreamProgress::GoesOn);
            };
            if let Err(error) = self.begin(answer?, version) {
                return Ok(StreamProgress::Ended(StreamEndReason::Failed(error)));
            }
        }
        self.receive(batch, version, &mut context)
    }

    /// See [`RangeResponseBody::lose_unconfirmed`].
    fn lose_unconfirmed<S: FragmentSink>(&mut self, batches: &mut BTreeMap<BatchId, FragmentBatch<S>>) {
        let StreamState::Receiving(_, content, _) = &self.state else { return };
        if let Some(lost) =
            batches.get_mut(&self.request.batch).and_then(|batch| content.lose_unconfirmed(batch))
        {
            self.request.include(lost);
        }
    }

    /// Processes the head of the response. Errors: as for [`RangeResponseBody::new`].
    fn begin(&mut self, answer: http::Response<RecvStream>, version: &FileVersion) -> Result<(), Error> {
        self.moved = Instant::now();
        self.request.waited = Some(self.request.sent.elapsed());
        let (head, body) = answer.into_parts();
        let texts =
            head.headers.iter().filter_map(|(name, value)| Some((name.as_str(), value.to_str().ok()?)));
        let headers = ContentHeaders::of(texts);
        let stated = head.headers.get("content-length").and_then(|value| value.to_str().ok());
        let length = stated.and_then(digits);
        let content =
            RangeResponseBody::new((head.status.as_u16(), &headers), length, &self.request, version)?;
        self.state = StreamState::Receiving(body, content, length);
        Ok(())
    }

    /// Processes the received part of the body.
    fn receive<S: FragmentSink>(
        &mut self,
        batch: &mut FragmentBatch<S>,
        version: &FileVersion,
        context: &mut Context<'_>,
    ) -> Result<StreamProgress, h2::Error> {
        let StreamState::Receiving(body, content, left) = &mut self.state else {
            return Ok(StreamProgress::GoesOn);
        };
        loop {
            if content.is_whole() && self.request.spans.len() > 1 && !is_cheap(version, batch) {
                return Ok(StreamProgress::Ended(StreamEndReason::Whole));
            }
            // If the rest is short, receive it instead of cancelling the stream, because it is most likely in flight
            // already.
            let is_long = left.unwrap_or(content.data_left()) > LET_COME_BYTES;
            let is_useless = batch.has_ended() && is_long && content.is_confirmed();
            if is_useless || content.is_enough() {
                return Ok(if content.is_enough() {
                    StreamProgress::Done
                } else {
                    StreamProgress::Ended(StreamEndReason::Unneeded)
                });
            }
            let Poll::Ready(piece) = body.poll_data(context) else { return Ok(StreamProgress::GoesOn) };
            let Some(piece) = piece else {
                return Ok(content.check_end().map_or_else(
                    |error| StreamProgress::Ended(StreamEndReason::Failed(error)),
                    |()| StreamProgress::Done,
                ));
            };
            let piece = piece?;
            self.moved = Instant::now();
            body.flow_control().release_capacity(piece.len())?;
            *left = left.map(|left| left.saturating_sub(piece.len() as u64));
            if let Err(error) = put(content, &piece, (&self.request, batch, version)) {
                batch.refute(&error);
                return Ok(StreamProgress::Ended(StreamEndReason::Failed(error)));
            }
        }
    }
}

/// Copies an entire piece to its destination.
fn put<S: FragmentSink>(
    content: &mut RangeResponseBody,
    mut piece: &[u8],
    (request, batch, version): (&RangeRequest, &mut FragmentBatch<S>, &FileVersion),
) -> Result<(), Error> {
    while !piece.is_empty() {
        let taken = content.take(piece, (request, batch, version))?;
        piece = &piece[taken..];
    }
    Ok(())
}
