//! A server of one file, by HTTP/1.1 or HTTP/2, that does exactly what it is told to, right or wrong.
//!
//! Without a [`LieScript`] it is a correct origin: GET and HEAD, one range or many, `If-Range`, keep-alive and
//! pipelining. A script adds [`Lie`]s, to every answer or to some; they combine as far as that makes sense.
//! What a client asked for is kept, so that a test can say how often it tried and how.
//!
//! It shares no code with the client that it tests.

mod answer;
mod streams;

use std::io::{self, BufRead, BufReader, Read};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use self::answer::ConnectionFate;
use self::streams::ServerCertificate;
use super::proxy::{ConnectionAcceptor, lock};

/// The server. It listens on a free port of a loopback address that no other server of this process has: what a
/// client has learned of one is never taken for knowledge of another that got its port. It is gone when this is
/// dropped.
#[derive(Debug)]
pub struct HostileServer {
    shared: Arc<HostileState>,
    acceptor: ConnectionAcceptor,
}

#[derive(Debug)]
struct HostileState {
    file: Vec<u8>,
    protocol: ServerProtocol,
    script: Mutex<LieScript>,
    requests: Mutex<Vec<RecordedRequest>>,
}

/// What is spoken.
#[derive(Debug)]
enum ServerProtocol {
    Http1,
    Http2,
    /// Through TLS, in whose handshake nothing else can be agreed on.
    SecureHttp2(ServerCertificate),
}

impl HostileServer {
    /// Serves `file` at any path. Panics if there is no port, as everything here does when a test cannot go on.
    pub fn start(file: impl Into<Vec<u8>>, script: LieScript) -> Self {
        Self::speaking(|_| ServerProtocol::Http1, file.into(), script)
    }

    /// The same by HTTP/2, for clients that know it beforehand.
    pub fn start_http2(file: impl Into<Vec<u8>>, script: LieScript) -> Self {
        Self::speaking(|_| ServerProtocol::Http2, file.into(), script)
    }

    /// The same through TLS. It takes nothing else.
    pub fn start_secure_http2(file: impl Into<Vec<u8>>, script: LieScript) -> Self {
        Self::speaking(|own| ServerProtocol::SecureHttp2(ServerCertificate::new(own)), file.into(), script)
    }

    /// Its certificate, as PEM, where it has one.
    pub fn certificate(&self) -> Option<&str> {
        if let ServerProtocol::SecureHttp2(certificate) = &self.shared.protocol {
            Some(&certificate.pem)
        } else {
            None
        }
    }

    fn speaking(protocol: impl FnOnce(Ipv4Addr) -> ServerProtocol, file: Vec<u8>, script: LieScript) -> Self {
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

    /// The file's URL.
    pub fn url(&self) -> String {
        let scheme = if self.certificate().is_some() { "https" } else { "http" };
        format!("{scheme}://{}/file", self.address())
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.acceptor.address()
    }

    /// Goes by another script from the next request on. Requests and connections are counted on.
    pub fn follow(&self, script: LieScript) {
        *lock(&self.shared.script) = script;
    }

    /// What was asked so far, in the order of arrival.
    pub fn requests(&self) -> Vec<RecordedRequest> {
        lock(&self.shared.requests).clone()
    }

    /// Connections taken so far.
    pub fn connections(&self) -> usize {
        self.acceptor.connections()
    }
}

impl HostileState {
    /// Keeps a request, and says what to do to its answer.
    fn lies_for(&self, request: &RecordedRequest) -> Vec<Lie> {
        let mut requests = lock(&self.requests);
        requests.push(request.clone());
        lock(&self.script).lies(requests.len() - 1, request.connection, &request.method)
    }
}

/// Answers the requests of a connection until one side has enough.
fn serve(stream: &TcpStream, connection: usize, shared: &HostileState) {
    let mut reader = BufReader::new(stream);
    while let Ok(Some(mut request)) = RecordedRequest::read(&mut reader) {
        request.connection = connection;
        let lies = shared.lies_for(&request);
        let is_left = lies.contains(&Lie::LeavesPipelined) && has_more(&reader);
        let answer = answer::answer(&request, &shared.file, &lies);
        let is_last = request.header("connection") == Some("close");
        let lies = if answer.is_aside { &[][..] } else { &lies };
        match answer::send(stream, &answer, lies) {
            Ok(ConnectionFate::GoOn) if is_left => {
                drain(&mut reader);
                break;
            }
            Ok(ConnectionFate::GoOn) if !is_last => {}
            Ok(ConnectionFate::GoOn | ConnectionFate::Close) => {
                // To close over requests that nobody read would be a reset, and the answer might be lost.
                let _ = stream.shutdown(Shutdown::Write);
                drain(&mut reader);
                break;
            }
            Ok(ConnectionFate::Gone) | Err(_) => break,
        }
    }
}

/// Whether something has come that was not read yet.
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

/// Takes whatever comes without looking at it, until the client closes.
fn drain(reader: &mut impl Read) {
    let mut ignored = [0; 4096];
    while reader.read(&mut ignored).is_ok_and(|len| len > 0) {}
}

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
pub struct LieScript(Vec<(LieTrigger, Lie)>);

#[derive(Clone, Debug)]
enum LieTrigger {
    Always,
    Requests(std::ops::Range<usize>),
    Connections(std::ops::Range<usize>),
    Method(&'static str),
}

impl LieScript {
    /// No lies: a correct server.
    pub fn honest() -> Self {
        LieScript::default()
    }

    /// Adds a lie to every answer.
    pub fn always(self, lie: Lie) -> Self {
        self.with(LieTrigger::Always, lie)
    }

    /// Adds a lie to the answers of these requests, counted from 0 over all connections.
    pub fn on_requests(self, numbers: std::ops::Range<usize>, lie: Lie) -> Self {
        self.with(LieTrigger::Requests(numbers), lie)
    }

    /// Adds a lie to all answers on these connections, counted from 0.
    pub fn on_connections(self, numbers: std::ops::Range<usize>, lie: Lie) -> Self {
        self.with(LieTrigger::Connections(numbers), lie)
    }

    /// Adds a lie to the answers to requests of this method.
    pub fn on_method(self, method: &'static str, lie: Lie) -> Self {
        self.with(LieTrigger::Method(method), lie)
    }

    fn with(mut self, when: LieTrigger, lie: Lie) -> Self {
        self.0.push((when, lie));
        self
    }

    /// What to do to the answer of one request.
    fn lies(&self, request: usize, connection: usize, method: &str) -> Vec<Lie> {
        let is_due = |when: &LieTrigger| match when {
            LieTrigger::Always => true,
            LieTrigger::Requests(numbers) => numbers.contains(&request),
            LieTrigger::Connections(numbers) => numbers.contains(&connection),
            LieTrigger::Method(wanted) => *wanted == method,
        };
        self.0.iter().filter(|(when, _)| is_due(when)).map(|(_, lie)| lie.clone()).collect()
    }
}

/// A request as it came.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordedRequest {
    /// The connection it came on, from 0.
    pub connection: usize,
    /// `GET`, `HEAD` or whatever was sent.
    pub method: String,
    /// The target as it was sent.
    pub target: String,
    /// Names in small letters, and values, in the order they came.
    pub headers: Vec<(String, String)>,
    /// Bytes of the head, with its line ends.
    pub head_bytes: usize,
}

/// One range of a `Range` header, its end included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestedRange {
    Between(u64, u64),
    From(u64),
    Last(u64),
}

impl RecordedRequest {
    /// Reads one head; `None` at the end of the connection. A body must not follow.
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

    /// The value of a header, whose name is given in small letters.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(has, _)| has == name).map(|(_, value)| value.as_str())
    }

    /// How many ranges are asked for; 0 without a `Range` header that can be read.
    pub fn ranges(&self) -> usize {
        self.asked().map_or(0, |asked| asked.len())
    }

    /// The ranges; `None` where the whole is asked for, or the header makes no sense.
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

    /// The bytes of a file of `size` bytes that are meant, end excluded; `None` where there are none.
    fn within(self, size: u64) -> Option<(u64, u64)> {
        let (start, end) = match self {
            RequestedRange::Between(first, last) => (first, size.min(last.saturating_add(1))),
            RequestedRange::From(first) => (first, size),
            RequestedRange::Last(count) => (size.saturating_sub(count), size),
        };
        (start < end).then_some((start, end))
    }
}
