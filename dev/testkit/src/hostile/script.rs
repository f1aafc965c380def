//! What the server is told to do wrong, and when.

use std::time::Duration;

/// A deviation from the right answer. Byte numbers count the body from 0.
#[derive(Clone, Debug, PartialEq)]
pub enum Lie {
    // What is answered.
    /// This status with an empty body, and perhaps `Retry-After` in seconds.
    Status(u16, Option<u64>),
    /// This status, and this as `Location`.
    Redirect(u16, String),
    /// The whole file to any request for a range.
    WholeForRange,
    /// The whole file to a request for more ranges than this.
    WholeOverRanges(usize),
    /// 400 to a request with more bytes of head than this.
    HeadBytesMax(usize),
    /// One part from the first byte asked for to the last, to a request for many ranges.
    OneSpan,
    /// The first range alone, to a request for many.
    FirstRangeOnly,
    /// Ranges that touch, overlap or are at most this many bytes apart come as one part.
    MergedParts(u64),
    /// Parts from last to first.
    ReversedParts,
    /// The part of this number, from 0, is left out.
    MissingPart(usize),
    /// The file is another one: every byte differs (by exclusive or with this number), and so does the `ETag`.
    Version(u8),
    /// `If-Range` is not looked at.
    IgnoresIfRange,
    /// The byte of the file at this position has all bits flipped, wherever it is sent; the `ETag` is as ever.
    FlippedAt(u64),
    /// This body for a target that ends so, as of a type; 404 is what others get that end in `.meta4`.
    Document(&'static str, &'static str, String),

    // How it is written down.
    /// `Content-Range` is moved by this many bytes; the body is right.
    ContentRangeMoved(i64),
    /// `Content-Range` gives this as the file's size.
    ContentRangeSize(u64),
    /// Every part has this many bytes more (or fewer) than its `Content-Range` says; `Content-Length` counts them.
    PartBytesOff(i64),
    /// The body has this many bytes more (or fewer) at its end than its head says of the file; its framing fits.
    BodyOff(i64),
    /// No `Content-Range` at all.
    NoContentRange,
    /// Lines of heads end without a carriage return, in parts too.
    BareLineFeeds,
    /// Heads of parts are long and short by turns, from the short one on with 0, from the long one with 1.
    UnevenHeads(usize),
    /// This boundary, in quotes if the flag says so.
    Boundary(&'static str, bool),
    /// Nothing behind the last part.
    NoFinalBoundary,
    /// Text before the first boundary and behind the last.
    Preamble,
    /// This header besides.
    Header(&'static str, String),
    /// This status to a request that asks for a digest.
    RefusesDigests(u16),
    /// Every byte of what is sent differs, under the marks of the right ones.
    Flipped,
    /// No `ETag`.
    NoETag,

    // How it is sent.
    /// The body in chunks of this many bytes.
    Chunked(usize),
    /// Neither length nor chunks: the body ends with the connection.
    UntilClose,
    /// `Content-Length` says this many bytes more (or fewer) than the body has; the connection stays open.
    ContentLengthOff(i64),
    /// The connection is reset behind this many bytes of the body.
    ResetAt(usize),
    /// The connection is closed in order behind this many bytes of the body.
    CloseAt(usize),
    /// Nothing comes behind this many bytes of the body, until the client leaves.
    StallAt(usize),
    /// Nothing is answered at all, until the client leaves.
    Mute,
    /// The body comes at this rate, in bytes a second.
    Slow(u64),
    /// The head comes a byte at a time, with this pause before each.
    SlowHead(Duration),
    /// The connection closes behind the answer, which announces that.
    ClosesAfter,
    /// The connection closes behind the answer, which does not; requests that came with this one are dropped.
    DropsPipelined,
    /// Requests that came with this one stay unanswered, and so do all that follow on the connection.
    LeavesPipelined,

    // By HTTP/2 alone. There a reset is of the stream, and a connection that closes behind an answer says so by GOAWAY.
    /// The stream is refused, as one that was not looked at.
    RefusesStream,
    /// This many streams are allowed at once; of a script's start, for all of a connection.
    StreamsMax(u32),
}

/// Which lies are told when.
#[derive(Clone, Debug, Default)]
pub struct Script(Vec<(When, Lie)>);

#[derive(Clone, Debug)]
enum When {
    Always,
    Requests(std::ops::Range<usize>),
    Connections(std::ops::Range<usize>),
    Method(&'static str),
}

impl Script {
    /// No lies: a correct server.
    pub fn honest() -> Self {
        Script::default()
    }

    /// Adds a lie to every answer.
    pub fn always(self, lie: Lie) -> Self {
        self.with(When::Always, lie)
    }

    /// Adds a lie to the answers of these requests, counted from 0 over all connections.
    pub fn on_requests(self, numbers: std::ops::Range<usize>, lie: Lie) -> Self {
        self.with(When::Requests(numbers), lie)
    }

    /// Adds a lie to all answers on these connections, counted from 0.
    pub fn on_connections(self, numbers: std::ops::Range<usize>, lie: Lie) -> Self {
        self.with(When::Connections(numbers), lie)
    }

    /// Adds a lie to the answers to requests of this method.
    pub fn on_method(self, method: &'static str, lie: Lie) -> Self {
        self.with(When::Method(method), lie)
    }

    fn with(mut self, when: When, lie: Lie) -> Self {
        self.0.push((when, lie));
        self
    }

    /// What to do to the answer of one request.
    pub(super) fn lies(&self, request: usize, connection: usize, method: &str) -> Vec<Lie> {
        let is_due = |when: &When| match when {
            When::Always => true,
            When::Requests(numbers) => numbers.contains(&request),
            When::Connections(numbers) => numbers.contains(&connection),
            When::Method(wanted) => *wanted == method,
        };
        self.0.iter().filter(|(when, _)| is_due(when)).map(|(_, lie)| lie.clone()).collect()
    }
}
