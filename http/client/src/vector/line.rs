//! One connection with several requests under way: in a pipeline by HTTP/1.1, or as streams by HTTP/2.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use fordway_store::Error;
use rustix::event::PollFlags;

use super::SessionOptions;
use super::batch::FragmentBatch;
use super::content::{RefusalResponse, ResponseContent};
use super::learned::ServerProfile;
use super::pipeline::PipelinedConnection;
use super::request::{BatchId, RangeRequest};
use super::session::ConnectionPermit;
use super::sink::FragmentSink;
use super::source::FileVersion;
#[cfg(feature = "http2")]
use super::streams::MultiplexedConnection;
use crate::connection::BufferedConnection;

/// For so long, and only where bytes came as recently, many bytes are waited for at once.
pub(super) const GATHERING_TIME: Duration = Duration::from_millis(20);
/// Requests under way in a pipeline, at most.
const DEPTH_MAX: usize = 64;
/// Single ranges in a pipeline that are worth a further connection.
const RANGES_EACH: usize = 16;

/// A connection that is in use.
pub(super) enum ActiveConnection {
    /// Answers come in the order of their requests.
    Pipeline(PipelinedConnection),
    /// They come in any order, and side by side.
    #[cfg(feature = "http2")]
    Streams(MultiplexedConnection),
}

/// What became of a request.
pub(super) enum RequestEvent {
    /// Its answer ended.
    Answered(AnsweredRequest),
    /// It was refused.
    Refused(RangeRequest, RefusalResponse),
    /// All of the file is about to come where this many ranges were asked for, and would cost more than
    /// to ask again; the connection is of no more use.
    Whole { asked: usize },
    /// The rest of what comes is of no use to anybody, nor is the connection.
    Useless,
    /// There is no whole answer to this one, whose stream is gone; the connection goes on.
    #[cfg(feature = "http2")]
    Ended(RangeRequest, StreamEnd),
    /// The connection is of no more use.
    Broken(Error),
    /// The proxy at its other end refuses us.
    Forbidden(Error),
    /// All that came was taken, and more is to come.
    Pending,
}

/// A request and what came of it.
pub(super) struct AnsweredRequest {
    pub(super) request: RangeRequest,
    /// Ranges that came.
    pub(super) ranges: usize,
    /// Bytes that were missing.
    pub(super) new_bytes: u64,
    /// Whether all of the file came.
    pub(super) was_whole: bool,
}

/// Why a stream ended before its answer did.
#[cfg(feature = "http2")]
pub(super) enum StreamEnd {
    /// As [`RequestEvent::Whole`].
    Whole,
    /// Nobody wants the rest, or the server did not look at it: that is nobody's failure.
    Unneeded,
    /// Something went wrong.
    Failed(Error),
}

impl RequestEvent {
    /// The request, if it is about one.
    #[cfg(feature = "http2")]
    pub(super) fn into_request(self) -> Option<RangeRequest> {
        match self {
            RequestEvent::Answered(AnsweredRequest { request, .. }) => Some(request),
            RequestEvent::Refused(request, _) | RequestEvent::Ended(request, _) => Some(request),
            _ => None,
        }
    }

    /// The end of an answer.
    pub(super) fn of(request: RangeRequest, content: ResponseContent) -> Self {
        let (ranges, new_bytes, was_whole) = (content.ranges(), content.new_bytes, content.is_whole());
        match content.into_refusal() {
            Some(refusal) => RequestEvent::Refused(request, refusal),
            None => RequestEvent::Answered(AnsweredRequest { request, ranges, new_bytes, was_whole }),
        }
    }
}

/// Does the same with either.
macro_rules! either {
    ($line:expr, $way:ident => $does:expr) => {
        match $line {
            ActiveConnection::Pipeline($way) => $does,
            #[cfg(feature = "http2")]
            ActiveConnection::Streams($way) => $does,
        }
    };
}

impl ActiveConnection {
    pub(super) fn new(connection: BufferedConnection, permit: ConnectionPermit) -> Self {
        #[cfg(feature = "http2")]
        if connection.is_http2() {
            return ActiveConnection::Streams(MultiplexedConnection::new(connection, permit));
        }
        ActiveConnection::Pipeline(PipelinedConnection::new(connection, permit))
    }

    /// One of HTTP/1.1 with a request that is being answered.
    pub(super) fn begun(
        connection: BufferedConnection,
        permit: ConnectionPermit,
        request: RangeRequest,
    ) -> Self {
        ActiveConnection::Pipeline(PipelinedConnection::begun(connection, permit, request))
    }

    /// Requests under way.
    pub(super) fn depth(&self) -> usize {
        either!(self, line => line.depth())
    }

    /// Requests that may be under way at once.
    pub(super) fn depth_max(&self, server: &ServerProfile) -> usize {
        match self {
            _ if !server.pipelines => 1,
            ActiveConnection::Pipeline(_) => DEPTH_MAX,
            #[cfg(feature = "http2")]
            ActiveConnection::Streams(streams) => streams.depth_max(),
        }
    }

    /// Single ranges that are worth a further connection: streams do not wait for one another, so those are worth
    /// one that the server does not take at once.
    pub(super) fn ranges_each(&self) -> usize {
        match self {
            ActiveConnection::Pipeline(_) => RANGES_EACH,
            #[cfg(feature = "http2")]
            ActiveConnection::Streams(streams) => streams.depth_max(),
        }
    }

    /// Whether an end of the connection now may be one that came before the requests under way: it was
    /// idle then, and nothing was received since. That is nobody's failure.
    pub(super) fn was_idle(&self) -> bool {
        either!(self, line => line.was_idle())
    }

    /// Queues a request, whose head `write` appends.
    pub(super) fn push(&mut self, request: RangeRequest, write: impl FnOnce(&mut Vec<u8>)) {
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
            ActiveConnection::Pipeline(pipeline) => pipeline.gather(),
            // Frames are looked at as they come: windows are kept open by that.
            #[cfg(feature = "http2")]
            ActiveConnection::Streams(_) => false,
        }
    }

    /// When the other side has had time enough.
    pub(super) fn deadline(&self, options: &SessionOptions, server: &ServerProfile) -> Option<Instant> {
        match self {
            ActiveConnection::Pipeline(pipeline) => pipeline.deadline(options, server),
            #[cfg(feature = "http2")]
            ActiveConnection::Streams(streams) => streams.deadline(&options.timeouts),
        }
    }

    /// Whether the request in front came with one that was answered, and may be left unanswered for that.
    pub(super) fn may_be_left(&self) -> bool {
        matches!(self, ActiveConnection::Pipeline(pipeline) if pipeline.may_be_left())
    }

    /// Whether an end of the connection now tells that its server does not take requests ahead.
    pub(super) fn ends_early(&self) -> bool {
        matches!(self, ActiveConnection::Pipeline(pipeline) if pipeline.ends_early())
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
            ActiveConnection::Pipeline(pipeline) => !pipeline.is_open(),
            #[cfg(feature = "http2")]
            ActiveConnection::Streams(streams) => !streams.is_open() && streams.depth() == 0,
        }
    }

    /// Whether the whole file is coming where one range of it was asked for.
    pub(super) fn ignores_range(&self, version: &FileVersion) -> bool {
        either!(self, line => line.ignores_range(version))
    }

    /// Goes on until an answer has ended, or nothing more has arrived.
    pub(super) fn advance<S: FragmentSink>(
        &mut self,
        batches: &mut BTreeMap<BatchId, FragmentBatch<S>>,
        version: &FileVersion,
    ) -> RequestEvent {
        either!(self, line => line.advance(batches, version))
    }

    /// Ends its use: `keep` gets the connection if another request may follow on it. What was under
    /// way comes back.
    pub(super) fn close(self, keep: impl FnOnce(BufferedConnection)) -> VecDeque<RangeRequest> {
        either!(self, line => line.close(keep))
    }
}

impl AsFd for ActiveConnection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        either!(self, line => line.socket())
    }
}

/// Whether the whole file costs little more than what is missing.
pub(super) fn is_cheap<S: FragmentSink>(version: &FileVersion, batch: &FragmentBatch<S>) -> bool {
    version.size_bytes <= 2 * batch.missing_bytes() + (64 << 10)
}
