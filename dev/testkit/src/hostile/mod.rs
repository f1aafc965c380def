//! An HTTP/1.1 or HTTP/2 server that serves a single file. Its script determines which responses are incorrect.
//!
//! With an empty [`ResponseFaultScript`], the server is a correct origin server. It supports GET and HEAD, one or
//! several ranges, `If-Range`, keep-alive and pipelining. A script adds [`ResponseFault`]s to some or all responses. A
//! response can have several faults that do not contradict each other. The server records all requests, so that a test
//! can check what a client sent.
//!
//! The server shares no code with the client that it tests.

mod answer;
mod streams;

use std::io::{self, BufRead, BufReader, Read};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use self::answer::ConnectionDisposition;
use self::streams::HostileCertificate;
use super::proxy::{ConnectionAcceptor, lock};

/// A server that listens on a free port of a loopback address that no other server of this process uses. The addresses
/// differ because clients remember properties of a server by its address. Dropping this value stops the server.
#[derive(Debug)]
pub struct HostileServer {
    shared: Arc<HostileState>,
    acceptor: ConnectionAcceptor,
}

#[derive(Debug)]
struct HostileState {
    file: Vec<u8>,
    protocol: ServerProtocol,
    script: Mutex<ResponseFaultScript>,
    requests: Mutex<Vec<RecordedRequest>>,
}

/// The protocol of the server.
#[derive(Debug)]
enum ServerProtocol {
    Http1,
    Http2,
    /// HTTP/2 over TLS, as the only protocol offered in ALPN.
    SecureHttp2(HostileCertificate),
}

impl HostileServer {
    /// Starts a server that serves `file` at any path. Panics if no port is free. All functions of this type panic when
    /// a test cannot continue.
    pub fn start(file: impl Into<Vec<u8>>, script: ResponseFaultScript) -> Self {
        Self::speaking(|_| ServerProtocol::Http1, file.into(), script)
    }

    /// Starts a server like [`start`](Self::start), but with HTTP/2 by prior knowledge.
    pub fn start_http2(file: impl Into<Vec<u8>>, script: ResponseFaultScript) -> Self {
        Self::speaking(|_| ServerProtocol::Http2, file.into(), script)
    }

    /// Starts a server like [`start`](Self::start), but over TLS and only with HTTP/2.
    pub fn start_secure_http2(file: impl Into<Vec<u8>>, script: ResponseFaultScript) -> Self {
        Self::speaking(|own| ServerProtocol::SecureHttp2(HostileCertificate::new(own)), file.into(), script)
    }

    /// Returns the server's certificate in PEM form, if it has one.
    pub fn certificate(&self) -> Option<&str> {
        if let ServerProtocol::SecureHttp2(certificate) = &self.shared.protocol {
            Some(&certificate.pem)
        } else {
            None
        }
    }

    fn speaking(
        protocol: impl FnOnce(Ipv4Addr) -> ServerProtocol,
        file: Vec<u8>,
        script: ResponseFaultScript,
    ) -> Self {
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let [_, first, second, third] = STARTED.fetch_add(1, Ordering::Relaxed).to_be_bytes();
        let own = Ipv4Addr::new(127, 1 + first, second, third);
        let shared = Arc::new(HostileState {
            file,
            protocol: protocol(own),
            script: Mutex::new(script),
            requests: Mutex::default(),
        });
        let serve = {
            let shared = Arc::clone(&shared);
            move |stream: &TcpStream, number, _: &_| match &shared.protocol {
                ServerProtocol::Http1 => serve(stream, number, &shared),
                ServerProtocol::Http2 => streams::serve(stream, number, &shared, None),
                ServerProtocol::SecureHttp2(own) => streams::serve(stream, number, &shared, Some(own)),
            }
        };
        HostileServer { shared, acceptor: ConnectionAcceptor::start(own, serve) }
    }

    /// Returns the file's URL.
    pub fn url(&self) -> String {
        let scheme = if self.certificate().is_some() { "https" } else { "http" };
        format!("{scheme}://{}/file", self.address())
    }

    /// Returns the address that the server listens on.
    pub fn address(&self) -> SocketAddr {
        self.acceptor.address()
    }

    /// Replaces the script, starting with the next request. The numbering of requests and connections continues.
    pub fn follow(&self, script: ResponseFaultScript) {
        *lock(&self.shared.script) = script;
    }

    /// Returns the requests so far, in the order of arrival.
    pub fn requests(&self) -> Vec<RecordedRequest> {
        lock(&self.shared.requests).clone()
    }

    /// Returns the number of connections so far.
    pub fn connections(&self) -> usize {
        self.acceptor.connections()
    }
}

impl HostileState {
    /// Records a request, and returns the faults of its response.
    fn lies_for(&self, request: &RecordedRequest) -> Vec<ResponseFault> {
        let mut requests = lock(&self.requests);
        requests.push(request.clone());
        let mut lies = lock(&self.script).lies(requests.len() - 1, request.connection, &request.method);
        if lies.contains(&ResponseFault::MuteForDigests) && request.header("want-digest").is_some() {
            lies.push(ResponseFault::Mute);
        }
        lies
    }
}

/// Responds to the requests of a connection until either side ends it.
fn serve(stream: &TcpStream, connection: usize, shared: &HostileState) {
    let mut reader = BufReader::new(stream);
    while let Ok(Some(mut request)) = RecordedRequest::read(&mut reader) {
        request.connection = connection;
        let lies = shared.lies_for(&request);
        let is_left = lies.contains(&ResponseFault::LeavesPipelined) && has_more(&reader);
        let answer = answer::answer(&request, &shared.file, &lies);
        let is_last = request.header("connection") == Some("close");
        let lies = if answer.is_aside { &[][..] } else { &lies };
        match answer::send(stream, &answer, lies) {
            Ok(ConnectionDisposition::GoOn) if is_left => {
                drain(&mut reader);
                break;
            }
            Ok(ConnectionDisposition::GoOn) if !is_last => {}
            Ok(ConnectionDisposition::GoOn | ConnectionDisposition::Close) => {
                // Closing the socket with unread requests would send a reset, and the response might be lost.
                let _ = stream.shutdown(Shutdown::Write);
                drain(&mut reader);
                break;
            }
            Ok(ConnectionDisposition::Gone) | Err(_) => break,
        }
    }
}

/// Returns whether there is unread data.
fn has_more(reader: &BufReader<&TcpStream>) -> bool {
    let stream = reader.get_ref();
    let waits = || {
        stream.set_nonblocking(true)?;
        let peeked = stream.peek(&mut [0]);
        stream.set_nonblocking(false)?;
        peeked
    };
    !reader.buffer().is_empty() || waits().is_ok_and(|len| len > 0)
}

/// Discards everything received until the client closes.
fn drain(reader: &mut impl Read) {
    let mut ignored = [0; 4096];
    while reader.read(&mut ignored).is_ok_and(|len| len > 0) {}
}

/// A deviation from the correct response. Byte positions are offsets in the body, from 0.
#[derive(Clone, Debug, PartialEq)]
pub enum ResponseFault {
    // Faults in the content of the response.
    /// Responds with this status, an empty body, and optionally `Retry-After` in seconds.
    Status(u16, Option<u64>),
    /// Responds with this status and this `Location`.
    Redirect(u16, String),
    /// Sends the whole file for any range request.
    WholeForRange,
    /// Sends the whole file if a request has more ranges than this.
    WholeOverRanges(usize),
    /// Responds with this status to a request for several ranges.
    RefusesLists(u16),
    /// Responds 400 to a request whose head is longer than this many bytes.
    HeadBytesMax(usize),
    /// If a request has several ranges, sends one part, from the first requested byte to the last.
    OneSpan,
    /// If a request has several ranges, sends only the first of the ranges.
    FirstRangeOnly,
    /// Sends at most this many bytes of a single range, with the correct `Content-Range` for these bytes.
    RangeBytesMax(u64),
    /// Joins ranges that are adjacent, overlap or are at most this many bytes apart into one part.
    MergedParts(u64),
    /// Sends the parts in reverse order.
    ReversedParts,
    /// Omits the part with this number, counted from 0.
    MissingPart(usize),
    /// Sends another version of the file, in which every byte (XOR with this number) and the `ETag` are different.
    Version(u8),
    /// Ignores `If-Range`.
    IgnoresIfRange,
    /// Flips all bits of the byte at this position of the file in every response. The `ETag` does not change.
    FlippedAt(u64),
    /// For targets with this suffix, sends a document with this content type and body. An empty suffix means that the
    /// request's `Accept` header must contain the content type instead. For other targets that end in `.meta4`,
    /// responds 404.
    Document(&'static str, &'static str, String),

    // Faults in the form of the response.
    /// `Content-Range` is wrong by this many bytes. The body is correct.
    ContentRangeMoved(i64),
    /// `Content-Range` contains this size of the file.
    ContentRangeSize(u64),
    /// Every part is this many bytes longer (or shorter, if negative) than its `Content-Range` specifies.
    /// `Content-Length` is consistent with the parts that are sent.
    PartBytesOff(i64),
    /// The body is this many bytes longer (or shorter, if negative) at its end than the requested content. The framing
    /// is consistent with the body.
    BodyOff(i64),
    /// Omits `Content-Range`.
    NoContentRange,
    /// Ends each header line with a line feed only, in the head of the response and in the heads of parts.
    BareLineFeeds,
    /// Heads of parts are alternately long and short. With 0, the first head is short; with 1, it is long.
    UnevenHeads(usize),
    /// Uses this boundary, in quotes if the flag is set.
    Boundary(&'static str, bool),
    /// Sends nothing after the last part.
    NoFinalBoundary,
    /// Sends text before the first boundary and after the last boundary.
    Preamble,
    /// Sends this additional header.
    Header(&'static str, String),
    /// Responds with this status to a request with `Want-Digest`.
    RefusesDigests(u16),
    /// Sends only wrong bytes, but correct validators.
    Flipped,
    /// Omits the `ETag`.
    NoETag,

    // Faults in the transmission of the response.
    /// Sends the body in chunks of this many bytes.
    Chunked(usize),
    /// Sends neither a length nor chunks, so the body ends when the connection is closed.
    UntilClose,
    /// `Content-Length` is larger (or smaller, if negative) than the body by this many bytes. The connection remains
    /// open.
    ContentLengthOff(i64),
    /// Resets the connection after this many bytes of the body.
    ResetAt(usize),
    /// Closes the connection gracefully after this many bytes of the body.
    CloseAt(usize),
    /// Sends nothing after this many bytes of the body, until the client disconnects.
    StallAt(usize),
    /// Sends nothing at all, until the client disconnects.
    Mute,
    /// Like `Mute`, but only for requests with `Want-Digest`.
    MuteForDigests,
    /// Sends the body at this rate, in bytes per second.
    Slow(u64),
    /// Sends the head one byte at a time, with this pause before each byte.
    SlowHead(Duration),
    /// Announces in the response that the connection will be closed, and closes it after the response.
    ClosesAfter,
    /// Closes the connection after the response without announcing the close. Requests that were pipelined behind this
    /// request are dropped.
    DropsPipelined,
    /// Sends no responses to requests that were pipelined behind this request, or to any later request on the
    /// connection.
    LeavesPipelined,

    // Faults of HTTP/2 only. Over HTTP/2, a reset applies to the stream, and GOAWAY announces a close after a response.
    /// Refuses the stream with a code that means that the request was not processed.
    RefusesStream,
    /// Allows this many concurrent streams. The limit is read from the script when the connection starts.
    StreamsMax(u32),
}

/// A list of faults, each with the responses to which it applies.
#[derive(Clone, Debug, Default)]
pub struct ResponseFaultScript(Vec<(ResponseFaultTrigger, ResponseFault)>);

#[derive(Clone, Debug)]
enum ResponseFaultTrigger {
    Always,
    Requests(std::ops::Range<usize>),
    Connections(std::ops::Range<usize>),
    Method(&'static str),
}

impl ResponseFaultScript {
    /// Returns a script without faults, for a correct server.
    pub fn honest() -> Self {
        ResponseFaultScript::default()
    }

    /// Adds a fault to every response.
    pub fn always(self, lie: ResponseFault) -> Self {
        self.with(ResponseFaultTrigger::Always, lie)
    }

    /// Adds a fault to the responses to these requests, which are counted from 0 over all connections.
    pub fn on_requests(self, numbers: std::ops::Range<usize>, lie: ResponseFault) -> Self {
        self.with(ResponseFaultTrigger::Requests(numbers), lie)
    }

    /// Adds a fault to all responses on these connections, which are counted from 0.
    pub fn on_connections(self, numbers: std::ops::Range<usize>, lie: ResponseFault) -> Self {
        self.with(ResponseFaultTrigger::Connections(numbers), lie)
    }

    /// Adds a fault to the responses to requests with this method.
    pub fn on_method(self, method: &'static str, lie: ResponseFault) -> Self {
        self.with(ResponseFaultTrigger::Method(method), lie)
    }

    fn with(mut self, when: ResponseFaultTrigger, lie: ResponseFault) -> Self {
        self.0.push((when, lie));
        self
    }

    /// Returns the faults of the response to one request.
    fn lies(&self, request: usize, connection: usize, method: &str) -> Vec<ResponseFault> {
        let is_due = |when: &ResponseFaultTrigger| match when {
            ResponseFaultTrigger::Always => true,
            ResponseFaultTrigger::Requests(numbers) => numbers.contains(&request),
            ResponseFaultTrigger::Connections(numbers) => numbers.contains(&connection),
            ResponseFaultTrigger::Method(wanted) => *wanted == method,
        };
        self.0.iter().filter(|(when, _)| is_due(when)).map(|(_, lie)| lie.clone()).collect()
    }
}

/// A request as received.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordedRequest {
    /// The number of the connection, counted from 0.
    pub connection: usize,
    /// The method as sent, such as `GET` or `HEAD`.
    pub method: String,
    /// The request target as sent.
    pub target: String,
    /// Headers (lowercase name and value), in the order of arrival.
    pub headers: Vec<(String, String)>,
    /// The length of the head, including line breaks.
    pub head_bytes: usize,
}

/// One range of a `Range` header. The end is inclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestedRange {
    Between(u64, u64),
    From(u64),
    Last(u64),
}

impl RecordedRequest {
    /// Reads one head. Returns `None` at the end of the connection. The request must not have a body.
    fn read(reader: &mut impl BufRead) -> io::Result<Option<Self>> {
        let mut request = RecordedRequest::default();
        let mut line = String::new();
        loop {
            line.clear();
            request.head_bytes += reader.read_line(&mut line)?;
            if line.is_empty() {
                return Ok(None);
            }
            let text = line.trim_end_matches(['\r', '\n']);
            if request.method.is_empty() {
                let mut words = text.split(' ').map(str::to_owned);
                (request.method, request.target) =
                    (words.next().unwrap_or_default(), words.next().unwrap_or_default());
            } else if let Some((name, value)) = text.split_once(':') {
                request.headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
            } else {
                return Ok(Some(request));
            }
        }
    }

    /// Returns the value of a header. `name` must be in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(has, _)| has == name).map(|(_, value)| value.as_str())
    }

    /// Returns the number of requested ranges, or 0 without a valid `Range` header.
    pub fn ranges(&self) -> usize {
        self.asked().map_or(0, |asked| asked.len())
    }

    /// Returns the ranges, or `None` if the header is missing or invalid.
    fn asked(&self) -> Option<Vec<RequestedRange>> {
        let list = self.header("range")?.strip_prefix("bytes=")?;
        list.split(',').map(|range| RequestedRange::parse(range.trim())).collect()
    }
}

impl RequestedRange {
    fn parse(text: &str) -> Option<Self> {
        let (first, last) = text.split_once('-')?;
        match (first.parse(), last.parse()) {
            (Ok(first), Ok(last)) if first <= last => Some(RequestedRange::Between(first, last)),
            (Ok(first), Err(_)) if last.is_empty() => Some(RequestedRange::From(first)),
            (Err(_), Ok(last)) if first.is_empty() => Some(RequestedRange::Last(last)),
            _ => None,
        }
    }

    /// Returns the start and the exclusive end of the range in a file of `size` bytes, or `None` if the range is empty.
    fn within(self, size: u64) -> Option<(u64, u64)> {
        let (start, end) = match self {
            RequestedRange::Between(first, last) => (first, size.min(last.saturating_add(1))),
            RequestedRange::From(first) => (first, size),
            RequestedRange::Last(count) => (size.saturating_sub(count), size),
        };
        (start < end).then_some((start, end))
    }
}
