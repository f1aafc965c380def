//! One connection with several requests under way: in a pipeline by HTTP/1.1, or as streams by HTTP/2.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use fordway_store::Error;
use rustix::event::PollFlags;

use super::Options;
use super::batch::Batch;
use super::content::{Content, Refusal};
use super::learned::Learned;
use super::pipeline::Pipeline;
use super::request::{BatchId, Request};
use super::session::Permit;
use super::sink::Sink;
use super::source::FileVersion;
#[cfg(feature = "http2")]
use super::streams::Streams;
use crate::connection::Connection;

/// For so long, and only where bytes came as recently, many bytes are waited for at once.
pub(super) const GATHERING_TIME: Duration = Duration::from_millis(20);
/// Requests under way in a pipeline, at most.
const DEPTH_MAX: usize = 64;
/// Single ranges in a pipeline that are worth a further connection.
const RANGES_EACH: usize = 16;

/// A connection that is in use.
pub(super) enum Line {
    /// Answers come in the order of their requests.
    Pipeline(Pipeline),
    /// They come in any order, and side by side.
    #[cfg(feature = "http2")]
    Streams(Streams),
}

/// What became of a request.
pub(super) enum Event {
    /// Its answer ended.
    Answered(Answered),
    /// It was refused.
    Refused(Request, Refusal),
    /// All of the file is about to come where this many ranges were asked for, and would cost more than
    /// to ask again; the connection is of no more use.
    Whole { asked: usize },
    /// The rest of what comes is of no use to anybody, nor is the connection.
    Useless,
    /// There is no whole answer to this one, whose stream is gone; the connection goes on.
    #[cfg(feature = "http2")]
    Ended(Request, End),
    /// The connection is of no more use.
    Broken(Error),
    /// The proxy at its other end refuses us.
    Forbidden(Error),
    /// All that came was taken, and more is to come.
    Pending,
}

/// A request and what came of it.
pub(super) struct Answered {
    pub(super) request: Request,
    /// Ranges that came.
    pub(super) ranges: usize,
    /// Bytes that were missing.
    pub(super) new_bytes: u64,
    /// Whether all of the file came.
    pub(super) was_whole: bool,
}

/// Why a stream ended before its answer did.
#[cfg(feature = "http2")]
pub(super) enum End {
    /// As [`Event::Whole`].
    Whole,
    /// Nobody wants the rest, or the server did not look at it: that is nobody's failure.
    Unneeded,
    /// Something went wrong.
    Failed(Error),
}

impl Event {
    /// The request, if it is about one.
    #[cfg(feature = "http2")]
    pub(super) fn into_request(self) -> Option<Request> {
        match self {
            Event::Answered(Answered { request, .. }) => Some(request),
            Event::Refused(request, _) | Event::Ended(request, _) => Some(request),
            _ => None,
        }
    }

    /// The end of an answer.
    pub(super) fn of(request: Request, content: Content) -> Self {
        let (ranges, new_bytes, was_whole) = (content.ranges(), content.new_bytes, content.is_whole());
        match content.into_refusal() {
            Some(refusal) => Event::Refused(request, refusal),
            None => Event::Answered(Answered { request, ranges, new_bytes, was_whole }),
        }
    }
}

/// Does the same with either.
macro_rules! either {
    ($line:expr, $way:ident => $does:expr) => {
        match $line {
            Line::Pipeline($way) => $does,
            #[cfg(feature = "http2")]
            Line::Streams($way) => $does,
        }
    };
}

impl Line {
    pub(super) fn new(connection: Connection, permit: Permit) -> Self {
        #[cfg(feature = "http2")]
        if connection.is_http2() {
            return Line::Streams(Streams::new(connection, permit));
        }
        Line::Pipeline(Pipeline::new(connection, permit))
    }

    /// One of HTTP/1.1 with a request that is being answered.
    pub(super) fn begun(connection: Connection, permit: Permit, request: Request) -> Self {
        Line::Pipeline(Pipeline::begun(connection, permit, request))
    }

    /// Requests under way.
    pub(super) fn depth(&self) -> usize {
        either!(self, line => line.depth())
    }

    /// Requests that may be under way at once.
    pub(super) fn depth_max(&self, server: &Learned) -> usize {
        match self {
            _ if !server.pipelines => 1,
            Line::Pipeline(_) => DEPTH_MAX,
            #[cfg(feature = "http2")]
            Line::Streams(streams) => streams.depth_max(),
        }
    }

    /// Single ranges that are worth a further connection: streams do not wait for one another, so those are worth
    /// one that the server does not take at once.
    pub(super) fn ranges_each(&self) -> usize {
        match self {
            Line::Pipeline(_) => RANGES_EACH,
            #[cfg(feature = "http2")]
            Line::Streams(streams) => streams.depth_max(),
        }
    }

    /// Whether an end of the connection now may be one that came before the requests under way: it was
    /// idle then, and nothing was received since. That is nobody's failure.
    pub(super) fn was_idle(&self) -> bool {
        either!(self, line => line.was_idle())
    }

    /// Queues a request, whose head `write` appends.
    pub(super) fn push(&mut self, request: Request, write: impl FnOnce(&mut Vec<u8>)) {
        either!(self, line => line.push(request, write));
    }

    /// Sends what is queued as far as the socket takes it.
    pub(super) fn flush(&mut self) -> Result<(), Error> {
        either!(self, line => line.flush())
    }

    /// What to wait for.
    pub(super) fn interest(&self) -> PollFlags {
        either!(self, line => line.interest())
    }

    /// Sees to it that a wait ends when it is worth while; whether it waits for many bytes, and so does not
    /// notice when few come.
    pub(super) fn gather(&mut self) -> bool {
        match self {
            Line::Pipeline(pipeline) => pipeline.gather(),
            // Frames are looked at as they come: windows are kept open by that.
            #[cfg(feature = "http2")]
            Line::Streams(_) => false,
        }
    }

    /// When the other side has had time enough.
    pub(super) fn deadline(&self, options: &Options, server: &Learned) -> Option<Instant> {
        match self {
            Line::Pipeline(pipeline) => pipeline.deadline(options, server),
            #[cfg(feature = "http2")]
            Line::Streams(streams) => streams.deadline(&options.timeouts),
        }
    }

    /// Whether the request in front came with one that was answered, and may be left unanswered for that.
    pub(super) fn may_be_left(&self) -> bool {
        matches!(self, Line::Pipeline(pipeline) if pipeline.may_be_left())
    }

    /// Whether an end of the connection now tells that its server does not take requests ahead.
    pub(super) fn ends_early(&self) -> bool {
        matches!(self, Line::Pipeline(pipeline) if pipeline.ends_early())
    }

    /// Whether a request for one of `batches` is under way on it.
    pub(super) fn carries(&self, batches: &[BatchId]) -> bool {
        either!(self, line => line.carries(batches))
    }

    /// Whether it takes further requests.
    pub(super) fn is_open(&self) -> bool {
        either!(self, line => line.is_open())
    }

    /// Whether nothing more will come of it: it takes no requests, and none is being answered.
    pub(super) fn is_spent(&self) -> bool {
        match self {
            // What is under way behind the last answer is not answered any more.
            Line::Pipeline(pipeline) => !pipeline.is_open(),
            #[cfg(feature = "http2")]
            Line::Streams(streams) => !streams.is_open() && streams.depth() == 0,
        }
    }

    /// Whether the whole file is coming where one range of it was asked for.
    pub(super) fn ignores_range(&self, version: &FileVersion) -> bool {
        either!(self, line => line.ignores_range(version))
    }

    /// Goes on until an answer has ended, or nothing more has arrived.
    pub(super) fn advance<S: Sink>(
        &mut self,
        batches: &mut BTreeMap<BatchId, Batch<S>>,
        version: &FileVersion,
    ) -> Event {
        either!(self, line => line.advance(batches, version))
    }

    /// Ends its use: `keep` gets the connection if another request may follow on it. What was under
    /// way comes back.
    pub(super) fn close(self, keep: impl FnOnce(Connection)) -> VecDeque<Request> {
        either!(self, line => line.close(keep))
    }
}

impl AsFd for Line {
    fn as_fd(&self) -> BorrowedFd<'_> {
        either!(self, line => line.socket())
    }
}

/// Whether the whole file costs little more than what is missing.
pub(super) fn is_cheap<S: Sink>(version: &FileVersion, batch: &Batch<S>) -> bool {
    version.size_bytes <= 2 * batch.missing_bytes() + (64 << 10)
}
