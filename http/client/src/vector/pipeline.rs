//! One HTTP/1.1 connection with several requests in flight, answered in order.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::{Duration, Instant};

use fordway_store::Error;
use rustix::event::PollFlags;

use super::SessionOptions;
use super::answer::RangeResponse;
use super::batch::FragmentBatch;
use super::learned::ServerProfile;
use super::line::{GATHERING_TIME, RangeRequestOutcome, is_cheap};
use super::request::{BatchId, RangeRequest};
use super::session::ConnectionPermit;
use super::sink::FragmentSink;
use super::source::FileVersion;
use crate::Timeouts;
use crate::connection::{BufferedConnection, io_error};
use crate::response::{ResponseHead, lost};

/// The minimum buffer space when a head is received.
const HEAD_BYTES: usize = 16 * 1024;

/// The number of bytes that must arrive within a response before the thread wakes up. Without this minimum, a server
/// that sends every part separately would wake up the thread for each segment.
const GATHERED_BYTES: u64 = 1024 * 1024;
/// If fewer bytes than this remain of a response, any byte wakes up the thread.
const REST_BYTES: u64 = 64 * 1024;

/// An HTTP/1.1 connection in use.
pub(super) struct PipelinedConnection {
    connection: BufferedConnection,
    /// Requests in flight; the response to the first request is arriving.
    requests: VecDeque<RangeRequest>,
    answer: Option<RangeResponse>,
    head: ResponseHead,
    /// The number of complete responses since this use of the connection began.
    answered: usize,
    /// The number of bytes that had been received when the last response ended.
    received_bytes_before: u64,
    has_unsent: bool,
    /// Whether the server announced that it will close the connection.
    is_closing: bool,
    /// When bytes last arrived.
    moved: Instant,
    /// The longest wait for the head of a response whose request was the only one in flight.
    waited: Duration,
    _permit: ConnectionPermit,
}

impl PipelinedConnection {
    pub(super) fn new(mut connection: BufferedConnection, permit: ConnectionPermit) -> Self {
        connection.set_waiting(false);
        PipelinedConnection {
            received_bytes_before: connection.received_bytes,
            connection,
            requests: VecDeque::new(),
            answer: None,
            head: ResponseHead::default(),
            answered: 0,
            has_unsent: false,
            is_closing: false,
            moved: Instant::now(),
            waited: Duration::ZERO,
            _permit: permit,
        }
    }

    /// Creates a connection with a request whose response is arriving.
    pub(super) fn begun(
        connection: BufferedConnection,
        permit: ConnectionPermit,
        request: RangeRequest,
    ) -> Self {
        let mut pipeline = PipelinedConnection::new(connection, permit);
        pipeline.requests.push_back(request);
        pipeline
    }

    /// Returns the number of requests in flight.
    pub(super) fn depth(&self) -> usize {
        self.requests.len()
    }

    /// Returns whether the connection was idle when the first request was sent, and has received nothing since. If the
    /// connection ends now, the server may have closed it before the request was sent, so the end is not a failure.
    pub(super) fn was_idle(&self) -> bool {
        let is_first = self.requests.front().is_none_or(|request| !request.is_pipelined);
        let had_answers = self.connection.is_reused || self.answered > 0;
        is_first && had_answers && self.connection.received_bytes == self.received_bytes_before
    }

    /// Queues a request, whose head `write` appends.
    pub(super) fn push(&mut self, mut request: RangeRequest, write: impl FnOnce(&mut Vec<u8>)) {
        if self.requests.is_empty() {
            self.moved = Instant::now();
        }
        request.is_pipelined = !self.requests.is_empty();
        request.came_along = request.is_pipelined && self.has_unsent;
        self.connection.push_head(write);
        self.requests.push_back(request);
        self.has_unsent = true;
    }

    /// Sends queued requests as long as the socket has room.
    pub(super) fn flush(&mut self) -> Result<(), Error> {
        if self.has_unsent {
            let sent = self.connection.send_queued();
            self.has_unsent = !sent.map_err(|error| cut(error, "sending requests"))?;
        }
        Ok(())
    }

    /// Returns the events to poll for.
    pub(super) fn interest(&self) -> PollFlags {
        if self.has_unsent { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN }
    }

    /// Sets how many bytes wake up a waiting thread. Returns whether the connection waits for many bytes; the arrival
    /// of a few bytes may then go unnoticed.
    pub(super) fn gather(&mut self) -> bool {
        let left = self.answer.as_ref().map_or(0, RangeResponse::bytes_left);
        let gathers = left >= REST_BYTES && self.moved.elapsed() < GATHERING_TIME;
        self.connection.set_low_water(if gathers { left.min(GATHERED_BYTES) as usize } else { 1 });
        gathers
    }

    /// Returns the time at which to give up waiting for the server; `None` if no request is in flight. A server that
    /// might not support pipelining gets less time if [`PipelinedConnection::may_be_left`] holds.
    pub(super) fn deadline(&self, options: &SessionOptions, server: &ServerProfile) -> Option<Instant> {
        let Timeouts { progress, first_byte, .. } = options.timeouts;
        let doubts = if server.has_overlapped { 4 } else { 1 };
        let patience = options.patience.max(4 * self.waited) * doubts;
        let limit = match () {
            () if self.answer.is_some() => progress,
            () if !server.has_pipelined && self.may_be_left() => first_byte.min(patience),
            () => first_byte,
        };
        (!self.requests.is_empty()).then(|| self.moved + limit)
    }

    /// Returns whether the first request was sent before the previous response had ended, and nothing has arrived since
    /// then.
    pub(super) fn may_be_left(&self) -> bool {
        let is_behind = self.requests.front().is_some_and(|request| request.is_pipelined);
        let is_silent = self.connection.received_bytes == self.received_bytes_before;
        is_behind && self.answer.is_none() && is_silent && self.connection.has_nothing_left()
    }

    /// Returns whether the connection has a request for one of `batches` in flight.
    pub(super) fn carries(&self, batches: &[BatchId]) -> bool {
        self.requests.iter().any(|request| batches.contains(&request.batch))
    }

    /// Returns whether the connection accepts further requests.
    pub(super) fn is_open(&self) -> bool {
        !self.is_closing
    }

    /// Returns whether at most the first request has been answered, and later requests are in flight. If the connection
    /// ends now, the server may not support pipelining.
    pub(super) fn ends_early(&self) -> bool {
        self.answered <= 1 && self.depth() > usize::from(self.answered == 0)
    }

    /// Returns the socket, for waiting on it.
    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.connection.socket().as_fd()
    }

    /// Returns whether the whole file is arriving instead of one requested range.
    pub(super) fn ignores_range(&self, version: &FileVersion) -> bool {
        let is_part = |request: &RangeRequest| request.spans.len() == 1 && request.bytes < version.size_bytes;
        self.answer.as_ref().is_some_and(|answer| answer.content.is_whole())
            && self.requests.front().is_some_and(is_part)
    }

    /// Processes received data until the first response has ended, or no more data has arrived.
    pub(super) fn advance<S: FragmentSink>(
        &mut self,
        batches: &mut BTreeMap<BatchId, FragmentBatch<S>>,
        version: &FileVersion,
    ) -> RangeRequestOutcome {
        let before = self.connection.received_bytes;
        self.connection.look_again();
        let event = self.step(batches, version).unwrap_or_else(RangeRequestOutcome::Broken);
        if self.connection.received_bytes > before {
            self.moved = Instant::now();
        }
        event
    }

    fn step<S: FragmentSink>(
        &mut self,
        batches: &mut BTreeMap<BatchId, FragmentBatch<S>>,
        version: &FileVersion,
    ) -> Result<RangeRequestOutcome, Error> {
        let Some(request) = self.requests.front_mut() else { return Ok(RangeRequestOutcome::Pending) };
        let Some(batch) = batches.get_mut(&request.batch) else { return Ok(RangeRequestOutcome::Useless) };
        let answer = match &mut self.answer {
            Some(answer) => answer,
            None if batch.has_ended() => return Ok(RangeRequestOutcome::Useless),
            None => {
                if !receive_head(&mut self.connection, &mut self.head)? {
                    return Ok(RangeRequestOutcome::Pending);
                }
                let waited = request.sent.elapsed();
                // If a request had to wait behind others, its waiting time does not show how long the server takes.
                if !request.is_pipelined {
                    self.waited = self.waited.max(waited);
                }
                request.waited = Some(waited);
                if let Some(refused) = self.connection.refused_by_proxy(self.head.status) {
                    return Ok(RangeRequestOutcome::Forbidden(refused));
                }
                self.answer.insert(RangeResponse::new(&self.head, &self.connection, request, version)?)
            }
        };
        // The server ignores a list of this length and sends the whole file. Receiving all of a large file for a few
        // spans costs more than requesting the spans again in shorter lists.
        if answer.content.is_whole() && request.spans.len() > 1 && !is_cheap(version, batch) {
            return Ok(RangeRequestOutcome::Whole { asked: request.spans.len() });
        }
        match answer.advance(&mut self.connection, (request, batch, version)) {
            Ok(true) => Ok(self.finish()),
            // If the rest of a response is short, receive it, to keep the connection; if it is long, a new connection
            // is cheaper.
            Ok(false) if batch.has_ended() && answer.is_long() && answer.content.is_confirmed() => {
                Ok(RangeRequestOutcome::Useless)
            }
            Ok(false) => Ok(RangeRequestOutcome::Pending),
            Err(error) => Err(cut(error, "receiving a response")).inspect_err(|error| batch.refute(error)),
        }
    }

    /// See [`RangeResponseBody::lose_unconfirmed`](super::content::RangeResponseBody::lose_unconfirmed).
    pub(super) fn lose_unconfirmed<S: FragmentSink>(
        &mut self,
        batches: &mut BTreeMap<BatchId, FragmentBatch<S>>,
    ) {
        let (Some(answer), Some(request)) = (&self.answer, self.requests.front_mut()) else { return };
        if let Some(lost) =
            batches.get_mut(&request.batch).and_then(|batch| answer.content.lose_unconfirmed(batch))
        {
            request.include(lost);
        }
    }

    fn finish(&mut self) -> RangeRequestOutcome {
        let (Some(request), Some(answer)) = (self.requests.pop_front(), self.answer.take()) else {
            return RangeRequestOutcome::Pending;
        };
        self.answered += 1;
        self.received_bytes_before = self.connection.received_bytes;
        self.is_closing |= !answer.keeps_alive;
        RangeRequestOutcome::of(request, answer.content)
    }

    /// Stops using the connection. Passes the connection to `keep` if it accepts another request. Returns the requests
    /// in flight.
    pub(super) fn close(mut self, keep: impl FnOnce(BufferedConnection)) -> VecDeque<RangeRequest> {
        let is_clean = self.requests.is_empty() && !self.is_closing && !self.has_unsent;
        if is_clean && self.connection.has_nothing_left() {
            self.connection.set_waiting(true);
            self.connection.set_low_water(1);
            keep(self.connection);
        }
        // The permit is dropped last, so that no other thread opens a connection before this connection is returned or
        // closed.
        self.requests
    }
}

/// Receives the head of the next response; returns `false` if it is incomplete. Errors: `Unavailable` if the connection
/// ended.
fn receive_head(connection: &mut BufferedConnection, head: &mut ResponseHead) -> Result<bool, Error> {
    loop {
        if connection.take_head(head)? {
            return Ok(true);
        }
        match connection.receive_next(HEAD_BYTES) {
            Ok(0) => return Err(lost("the server closed the connection")),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(cut(error, "receiving a response")),
        }
    }
}

fn cut(error: io::Error, doing: &str) -> Error {
    io_error(error, doing, "nothing arrived in time")
}
