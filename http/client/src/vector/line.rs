//! One connection with several requests in flight: a pipeline with HTTP/1.1, or streams with HTTP/2.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use fordway_store::Error;
use rustix::event::PollFlags;

use super::SessionOptions;
use super::batch::FragmentBatch;
use super::content::{RangeResponseBody, UnsuccessfulResponse};
use super::learned::ServerProfile;
use super::pipeline::PipelinedConnection;
use super::request::{BatchId, RangeRequest};
use super::session::ConnectionPermit;
use super::sink::FragmentSink;
use super::source::FileVersion;
#[cfg(feature = "http2")]
use super::streams::MultiplexedConnection;
use crate::connection::BufferedConnection;

/// The maximum duration of a wait for many bytes. If no bytes have arrived on a connection for this long, the next byte
/// on this connection ends a wait.
pub(super) const GATHERING_TIME: Duration = Duration::from_millis(20);
/// The maximum number of requests in flight in a pipeline.
const DEPTH_MAX: usize = 64;
/// The number of queued single ranges per pipeline that justifies another connection.
const RANGES_EACH: usize = 16;

/// A connection in use.
pub(super) enum ActiveConnection {
    /// A pipeline: responses arrive in the order of their requests.
    Pipeline(PipelinedConnection),
    /// Streams: responses arrive in any order, and interleaved.
    #[cfg(feature = "http2")]
    Streams(MultiplexedConnection),
}

/// The outcome of a request.
pub(super) enum RangeRequestOutcome {
    /// The response has ended.
    Answered(AnsweredRequest),
    /// The server refused the request.
    Refused(RangeRequest, UnsuccessfulResponse),
    /// The whole file is about to arrive instead of this many ranges, and receiving it would cost more than another
    /// request. The connection can no longer be used.
    Whole { asked: usize },
    /// The rest of the response is not needed, and the connection can no longer be used.
    Useless,
    /// The response is incomplete, and its stream is closed; the connection remains usable.
    #[cfg(feature = "http2")]
    Ended(RangeRequest, StreamEndReason),
    /// The connection can no longer be used.
    Broken(Error),
    /// The connection leads to a proxy that refuses the requests.
    Forbidden(Error),
    /// Everything received has been processed, and more data will follow.
    Pending,
}

/// A request and the statistics of its response.
pub(super) struct AnsweredRequest {
    pub(super) request: RangeRequest,
    /// The number of ranges received.
    pub(super) ranges: usize,
    /// The number of received bytes that had been missing.
    pub(super) new_bytes: u64,
    /// Whether the whole file was received.
    pub(super) was_whole: bool,
}

/// Why a stream ended before its response was complete.
#[cfg(feature = "http2")]
pub(super) enum StreamEndReason {
    /// The whole file is about to arrive, as for [`RangeRequestOutcome::Whole`].
    Whole,
    /// The rest of the response is not needed, or the server did not process the request. Neither case is a failure.
    Unneeded,
    /// A failure.
    Failed(Error),
}

impl RangeRequestOutcome {
    /// Returns the request, if the outcome contains it.
    #[cfg(feature = "http2")]
    pub(super) fn into_request(self) -> Option<RangeRequest> {
        match self {
            RangeRequestOutcome::Answered(AnsweredRequest { request, .. }) => Some(request),
            RangeRequestOutcome::Refused(request, _) | RangeRequestOutcome::Ended(request, _) => {
                Some(request)
            }
            _ => None,
        }
    }

    /// Returns the outcome of a request whose response is complete.
    pub(super) fn of(request: RangeRequest, content: RangeResponseBody) -> Self {
        let (ranges, new_bytes, was_whole) = (content.ranges(), content.new_bytes, content.is_whole());
        match content.into_refusal() {
            Some(refusal) => RangeRequestOutcome::Refused(request, refusal),
            None => RangeRequestOutcome::Answered(AnsweredRequest { request, ranges, new_bytes, was_whole }),
        }
    }
}

/// Applies the same expression to either variant.
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

    /// Creates an HTTP/1.1 connection with a request whose response is arriving.
    pub(super) fn begun(
        connection: BufferedConnection,
        permit: ConnectionPermit,
        request: RangeRequest,
    ) -> Self {
        ActiveConnection::Pipeline(PipelinedConnection::begun(connection, permit, request))
    }

    /// Returns the number of requests in flight.
    pub(super) fn depth(&self) -> usize {
        either!(self, line => line.depth())
    }

    /// Returns the maximum number of requests in flight.
    pub(super) fn depth_max(&self, server: &ServerProfile) -> usize {
        match self {
            _ if !server.pipelines => 1,
            ActiveConnection::Pipeline(_) => DEPTH_MAX,
            #[cfg(feature = "http2")]
            ActiveConnection::Streams(streams) => streams.depth_max(),
        }
    }

    /// Returns the number of single ranges per connection that justifies another connection. Streams do not wait for
    /// one another, so another connection is justified only for ranges beyond the server's stream limit.
    pub(super) fn ranges_each(&self) -> usize {
        match self {
            ActiveConnection::Pipeline(_) => RANGES_EACH,
            #[cfg(feature = "http2")]
            ActiveConnection::Streams(streams) => streams.depth_max(),
        }
    }

    /// Returns whether the connection was idle until the current requests were sent, and has received nothing since. If
    /// the connection ends now, the server may have closed it before the requests were sent, so the end is not a
    /// failure.
    pub(super) fn was_idle(&self) -> bool {
        either!(self, line => line.was_idle())
    }

    /// Queues a request, whose head `write` appends.
    pub(super) fn push(&mut self, request: RangeRequest, write: impl FnOnce(&mut Vec<u8>)) {
        either!(self, line => line.push(request, write));
    }

    /// Sends queued requests as long as the socket has room.
    pub(super) fn flush(&mut self) -> Result<(), Error> {
        either!(self, line => line.flush())
    }

    /// Returns the events to poll for.
    pub(super) fn interest(&self) -> PollFlags {
        either!(self, line => line.interest())
    }

    /// Sets how many bytes wake up a waiting thread. Returns whether the connection waits for many bytes; the arrival
    /// of a few bytes may then go unnoticed.
    pub(super) fn gather(&mut self) -> bool {
        match self {
            ActiveConnection::Pipeline(pipeline) => pipeline.gather(),
            // Process HTTP/2 frames as they arrive, to keep the flow-control windows open.
            #[cfg(feature = "http2")]
            ActiveConnection::Streams(_) => false,
        }
    }

    /// Returns the time at which to give up waiting for the server.
    pub(super) fn deadline(&self, options: &SessionOptions, server: &ServerProfile) -> Option<Instant> {
        match self {
            ActiveConnection::Pipeline(pipeline) => pipeline.deadline(options, server),
            #[cfg(feature = "http2")]
            ActiveConnection::Streams(streams) => streams.deadline(&options.timeouts),
        }
    }

    /// Returns whether the first request was sent together with a request that has been answered, and may therefore
    /// have been ignored.
    pub(super) fn may_be_left(&self) -> bool {
        matches!(self, ActiveConnection::Pipeline(pipeline) if pipeline.may_be_left())
    }

    /// Returns whether the end of the connection at this point would show that the server does not support pipelining.
    pub(super) fn ends_early(&self) -> bool {
        matches!(self, ActiveConnection::Pipeline(pipeline) if pipeline.ends_early())
    }

    /// Returns whether the connection has a request for one of `batches` in flight.
    pub(super) fn carries(&self, batches: &[BatchId]) -> bool {
        either!(self, line => line.carries(batches))
    }

    /// Returns whether the connection accepts further requests.
    pub(super) fn is_open(&self) -> bool {
        either!(self, line => line.is_open())
    }

    /// Returns whether the connection is finished: it accepts no requests, and no response is arriving.
    pub(super) fn is_spent(&self) -> bool {
        match self {
            // The server does not respond to requests after its last response.
            ActiveConnection::Pipeline(pipeline) => !pipeline.is_open(),
            #[cfg(feature = "http2")]
            ActiveConnection::Streams(streams) => !streams.is_open() && streams.depth() == 0,
        }
    }

    /// Returns whether the whole file is arriving instead of one requested range.
    pub(super) fn ignores_range(&self, version: &FileVersion) -> bool {
        either!(self, line => line.ignores_range(version))
    }

    /// Processes received data until a response has ended, or no more data has arrived.
    pub(super) fn advance<S: FragmentSink>(
        &mut self,
        batches: &mut BTreeMap<BatchId, FragmentBatch<S>>,
        version: &FileVersion,
    ) -> RangeRequestOutcome {
        either!(self, line => line.advance(batches, version))
    }

    /// Marks content as missing if it must not be used when the connection is closed before the next delimiter has
    /// arrived.
    pub(super) fn lose_unconfirmed<S: FragmentSink>(
        &mut self,
        batches: &mut BTreeMap<BatchId, FragmentBatch<S>>,
    ) {
        either!(self, line => line.lose_unconfirmed(batches));
    }

    /// Stops using the connection. Passes the connection to `keep` if it accepts another request. Returns the requests
    /// in flight.
    pub(super) fn close(self, keep: impl FnOnce(BufferedConnection)) -> VecDeque<RangeRequest> {
        either!(self, line => line.close(keep))
    }
}

impl AsFd for ActiveConnection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        either!(self, line => line.socket())
    }
}

/// Returns whether receiving the whole file costs little more than requesting the missing bytes.
pub(super) fn is_cheap<S: FragmentSink>(version: &FileVersion, batch: &FragmentBatch<S>) -> bool {
    version.size_bytes <= 2 * batch.missing_bytes() + (64 << 10)
}
