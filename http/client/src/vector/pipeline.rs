//! One connection of HTTP/1.1 with several requests under way, answered in order.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::{Duration, Instant};

use fordway_store::{Error, ErrorKind};
use rustix::event::PollFlags;

use super::SessionOptions;
use super::answer::RangeResponse;
use super::batch::FragmentBatch;
use super::learned::ServerProfile;
use super::line::{GATHERING_TIME, RequestEvent, is_cheap};
use super::request::{BatchId, RangeRequest};
use super::session::ConnectionPermit;
use super::sink::FragmentSink;
use super::source::FileVersion;
use crate::Timeouts;
use crate::connection::{BufferedConnection, io_error};
use crate::response::ResponseHead;

/// Received at least at once where a head is awaited.
const HEAD_BYTES: usize = 16 * 1024;

/// In the midst of an answer we are woken up for this many bytes, not for each segment: a server that sends
/// every part by itself would wake us for each.
const GATHERED_BYTES: u64 = 1024 * 1024;
/// For the rest of an answer that is shorter than this, we are woken up as soon as any of it is there.
const REST_BYTES: u64 = 64 * 1024;

/// A connection that is in use.
pub(super) struct PipelinedConnection {
    connection: BufferedConnection,
    /// Under way; the first is being answered.
    requests: VecDeque<RangeRequest>,
    answer: Option<RangeResponse>,
    head: ResponseHead,
    /// Answers received to their end since it was taken into use.
    answered: usize,
    /// Received when the answer before had ended.
    received_bytes_before: u64,
    has_unsent: bool,
    /// Whether the server said that it will close.
    is_closing: bool,
    /// When bytes came last.
    moved: Instant,
    /// The longest that the head of an answer took whose request was alone under way.
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

    /// With a request that is being answered.
    pub(super) fn begun(
        connection: BufferedConnection,
        permit: ConnectionPermit,
        request: RangeRequest,
    ) -> Self {
        let mut pipeline = PipelinedConnection::new(connection, permit);
        pipeline.requests.push_back(request);
        pipeline
    }

    /// Requests under way.
    pub(super) fn depth(&self) -> usize {
        self.requests.len()
    }

    /// Whether an end of the connection now may be one that came before the request in front: it was
    /// idle then, and nothing was received since. That is nobody's failure.
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

    /// Sends what is queued as far as the socket takes it.
    pub(super) fn flush(&mut self) -> Result<(), Error> {
        if self.has_unsent {
            let sent = self.connection.send_queued();
            self.has_unsent = !sent.map_err(|error| cut(error, "sending requests"))?;
        }
        Ok(())
    }

    /// What to wait for.
    pub(super) fn interest(&self) -> PollFlags {
        if self.has_unsent { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN }
    }

    /// Sees to it that a wait ends when it is worth while; whether it waits for many bytes, and so does not
    /// notice when few come.
    pub(super) fn gather(&mut self) -> bool {
        let left = self.answer.as_ref().map_or(0, RangeResponse::bytes_left);
        let gathers = left >= REST_BYTES && self.moved.elapsed() < GATHERING_TIME;
        self.connection.set_low_water(if gathers { left.min(GATHERED_BYTES) as usize } else { 1 });
        gathers
    }

    /// When the other side has had time enough. A server that may know no pipelining has less time where
    /// [`PipelinedConnection::may_be_left`].
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

    /// Whether the request in front came with one that was answered, and nothing came since.
    pub(super) fn may_be_left(&self) -> bool {
        let is_behind = self.requests.front().is_some_and(|request| request.is_pipelined);
        let is_silent = self.connection.received_bytes == self.received_bytes_before;
        is_behind && self.answer.is_none() && is_silent && self.connection.has_nothing_left()
    }

    /// Whether a request for one of `batches` is under way on it.
    pub(super) fn carries(&self, batches: &[BatchId]) -> bool {
        self.requests.iter().any(|request| batches.contains(&request.batch))
    }

    /// Whether it takes further requests.
    pub(super) fn is_open(&self) -> bool {
        !self.is_closing
    }

    /// Whether an end of the connection now comes behind its first answer, with requests under way.
    pub(super) fn ends_early(&self) -> bool {
        self.answered <= 1 && self.depth() > usize::from(self.answered == 0)
    }

    /// The socket, to wait for it.
    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.connection.socket().as_fd()
    }

    /// Whether the whole file is coming where one range of it was asked for.
    pub(super) fn ignores_range(&self, version: &FileVersion) -> bool {
        let is_part = |request: &RangeRequest| request.spans.len() == 1 && request.bytes < version.size_bytes;
        self.answer.as_ref().is_some_and(|answer| answer.content.is_whole())
            && self.requests.front().is_some_and(is_part)
    }

    /// Goes on until the answer in front has ended, or nothing more has arrived.
    pub(super) fn advance<S: FragmentSink>(
        &mut self,
        batches: &mut BTreeMap<BatchId, FragmentBatch<S>>,
        version: &FileVersion,
    ) -> RequestEvent {
        let before = self.connection.received_bytes;
        self.connection.look_again();
        let event = self.step(batches, version).unwrap_or_else(RequestEvent::Broken);
        if self.connection.received_bytes > before {
            self.moved = Instant::now();
        }
        event
    }

    fn step<S: FragmentSink>(
        &mut self,
        batches: &mut BTreeMap<BatchId, FragmentBatch<S>>,
        version: &FileVersion,
    ) -> Result<RequestEvent, Error> {
        let Some(request) = self.requests.front_mut() else { return Ok(RequestEvent::Pending) };
        let Some(batch) = batches.get_mut(&request.batch) else { return Ok(RequestEvent::Useless) };
        let answer = match &mut self.answer {
            Some(answer) => answer,
            None if batch.has_ended() => return Ok(RequestEvent::Useless),
            None => {
                if !receive_head(&mut self.connection, &mut self.head)? {
                    return Ok(RequestEvent::Pending);
                }
                let waited = request.sent.elapsed();
                // A request that waited behind others says nothing of how long the server takes.
                if !request.is_pipelined {
                    self.waited = self.waited.max(waited);
                }
                request.waited = Some(waited);
                if let Some(refused) = self.connection.refused_by_proxy(self.head.status) {
                    return Ok(RequestEvent::Forbidden(refused));
                }
                self.answer.insert(RangeResponse::new(&self.head, &self.connection, request, version)?)
            }
        };
        // The server answers so long a list with the whole file. To receive a large file for a few spans of it costs
        // more than to ask again with shorter lists.
        if answer.content.is_whole() && request.spans.len() > 1 && !is_cheap(version, batch) {
            return Ok(RequestEvent::Whole { asked: request.spans.len() });
        }
        match answer.advance(&mut self.connection, (request, batch, version)) {
            Ok(true) => Ok(self.finish()),
            // What is left of a short answer is received, which keeps the connection; a new one is cheaper than a long
            // rest.
            Ok(false) if batch.has_ended() && answer.is_long() => Ok(RequestEvent::Useless),
            Ok(false) => Ok(RequestEvent::Pending),
            Err(error) => Err(cut(error, "receiving an answer")).inspect_err(|error| batch.refute(error)),
        }
    }

    fn finish(&mut self) -> RequestEvent {
        let (Some(request), Some(answer)) = (self.requests.pop_front(), self.answer.take()) else {
            return RequestEvent::Pending;
        };
        self.answered += 1;
        self.received_bytes_before = self.connection.received_bytes;
        self.is_closing |= !answer.keeps_alive;
        RequestEvent::of(request, answer.content)
    }

    /// Ends its use: `keep` gets the connection if another request may follow on it. What was under
    /// way comes back.
    pub(super) fn close(mut self, keep: impl FnOnce(BufferedConnection)) -> VecDeque<RangeRequest> {
        let is_clean = self.requests.is_empty() && !self.is_closing && !self.has_unsent;
        if is_clean && self.connection.has_nothing_left() {
            self.connection.set_waiting(true);
            self.connection.set_low_water(1);
            keep(self.connection);
        }
        // The permit goes last: until it does, nobody makes a connection in the place of this one.
        self.requests
    }
}

/// `false` if there is no whole head yet. Errors: `Unavailable` where the connection ended.
fn receive_head(connection: &mut BufferedConnection, head: &mut ResponseHead) -> Result<bool, Error> {
    loop {
        if connection.take_head(head)? {
            return Ok(true);
        }
        match connection.receive_next(HEAD_BYTES) {
            Ok(0) => return Err(Error::new(ErrorKind::Unavailable, "the server closed the connection")),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(cut(error, "receiving an answer")),
        }
    }
}

fn cut(error: io::Error, doing: &str) -> Error {
    io_error(error, doing, "nothing arrived in time")
}
