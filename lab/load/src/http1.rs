//! HTTP/1.1: one request at a time on each of many connections.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fordway_store::{Error, ErrorKind, Result};
use fordway_sys::{TcpInfo, tcp_info};
use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};

use super::{
    FinishedRequest, NetworkTraffic, RequestSequence, RequestSlots, ResponseProblem, no_answer_within,
};
use fordway_http::parts::BodyFraming;
use fordway_http::parts::Connector;
use fordway_http::parts::ResponseHead;
use fordway_http::parts::{BufferedConnection, io_error};
use fordway_http::{HttpVersion, SessionCredentials, Timeouts, TlsRoots};

/// Body bytes that one call may drop.
const SCRATCH_BYTES: usize = 1 << 20;
/// How often requests are looked through for those that take too long.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Waits shorter than this are kept to the nanosecond, which takes one more system call.
const COARSE: Duration = Duration::from_millis(20);
/// After a connection that could not be made: a server that is down must not keep a processor busy.
const AFTER_REFUSAL: Duration = Duration::from_millis(1);

/// HTTP/1.1 over TCP, or TLS where the URL says `https`.
pub struct Http1Load {
    requests: Arc<RequestSequence>,
    connector: Connector,
    timeout: Duration,
    epoll: OwnedFd,
    events: Vec<epoll::Event>,
    lines: Vec<LoadConnection>,
    /// Ended before they could be waited for.
    early: Vec<FinishedRequest>,
    scratch: Vec<u8>,
    /// The head of every request, where all are alike.
    head: Option<Vec<u8>>,
    traffic: NetworkTraffic,
    looked: Instant,
}

/// A connection and the request on it.
struct LoadConnection {
    connection: Option<BufferedConnection>,
    state: Http1State,
    head: ResponseHead,
    framing: BodyFraming,
    /// Whether the kernel is asked to tell when more can be sent.
    waits_to_send: bool,
    /// Whether the connection can take another request after this one.
    keep_alive: bool,
    started: Instant,
    first_byte: Option<Instant>,
    /// When the last byte was there, where one clock reading told both.
    last_byte: Option<Instant>,
    /// Whether the request went out a second time.
    is_resent: bool,
    received_before: u64,
    body_bytes: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Http1State {
    Idle,
    Sending,
    Head,
    Body,
}

enum Http1Step {
    Pending,
    Done,
}

impl Http1Load {
    /// Connects `connections` (at least 1) times. `timeouts.first_byte` is what a whole exchange may take.
    /// Errors: `Unavailable`, `Timeout`, `InvalidArgument`, `Io`.
    pub fn connect(
        requests: Arc<RequestSequence>,
        connections: usize,
        timeouts: Timeouts,
        roots: TlsRoots,
    ) -> Result<Self> {
        let failed =
            |error: rustix::io::Errno| Error::new(ErrorKind::Io, "epoll").caused_by(io::Error::from(error));
        let now = Instant::now();
        let mut http1 = Http1Load {
            connector: Connector::new(HttpVersion::Http1, timeouts, roots, SessionCredentials::none()),
            timeout: timeouts.first_byte,
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?,
            events: Vec::with_capacity(connections),
            lines: (0..connections).map(|_| LoadConnection::new(now)).collect(),
            early: Vec::new(),
            scratch: vec![0; SCRATCH_BYTES],
            head: None,
            traffic: NetworkTraffic::default(),
            looked: now,
            requests,
        };
        if http1.requests.are_alike() {
            let mut head = Vec::new();
            http1.requests.write_head(&mut head);
            http1.head = Some(head);
        }
        (0..connections).try_for_each(|slot| http1.open(slot))?;
        Ok(http1)
    }

    fn open(&mut self, slot: usize) -> Result<()> {
        let mut connection = self.connector.connect(self.requests.origin())?;
        connection.set_waiting(false);
        let data = epoll::EventData::new_u64(slot as u64);
        epoll::add(&self.epoll, connection.socket(), data, epoll::EventFlags::IN).map_err(|errno| {
            Error::new(ErrorKind::Io, "setting up a connection").caused_by(io::Error::from(errno))
        })?;
        self.lines[slot].connection = Some(connection);
        self.lines[slot].waits_to_send = false;
        self.traffic.connections += 1;
        Ok(())
    }

    /// Goes on with the request on `slot` as far as that is possible without waiting.
    fn advance(&mut self, slot: usize, finished: &mut Vec<FinishedRequest>) {
        let line = &mut self.lines[slot];
        if line.state == Http1State::Idle {
            // The server closed the connection, or speaks unasked: the next request gets a new one.
            line.connection = None;
            return;
        }
        let problem = match line.advance(&self.requests, &mut self.scratch) {
            Ok(Http1Step::Pending) => return self.watch(slot, finished),
            Ok(Http1Step::Done) => {
                ResponseProblem::of(line.head.status, line.body_bytes, self.requests.expected_bytes())
            }
            Err(error) if line.may_resend(&error) => {
                line.is_resent = true;
                return self.resend(slot, finished);
            }
            Err(error) => Some(ResponseProblem::Failed(error)),
        };
        finished.push(self.end(slot, problem));
    }

    /// Sends the request of `slot` once more, on a new connection; its time goes on.
    fn resend(&mut self, slot: usize, finished: &mut Vec<FinishedRequest>) {
        let lost = self.lines[slot].connection.take();
        match self.open(slot) {
            Ok(()) => {
                let line = &mut self.lines[slot];
                line.state = Http1State::Sending;
                if let (Some(lost), Some(new)) = (lost, &mut line.connection) {
                    new.request_head.extend_from_slice(&lost.request_head);
                }
                self.send(slot, finished);
            }
            Err(error) => finished.push(self.end(slot, Some(ResponseProblem::Failed(error)))),
        }
    }

    /// Hands the request of `slot`, whose head is in the connection's buffer, to the kernel.
    fn send(&mut self, slot: usize, finished: &mut Vec<FinishedRequest>) {
        let line = &mut self.lines[slot];
        let Some(connection) = &mut line.connection else { return };
        line.received_before = connection.received_bytes;
        match connection.send(self.requests.body()) {
            Ok(()) => line.state = Http1State::Head,
            // What else is wrong shows when the rest is sent, or the answer read.
            Err(_) => self.advance(slot, finished),
        }
    }

    /// Has the kernel tell when more of the request can be sent, for as long as that matters.
    fn watch(&mut self, slot: usize, finished: &mut Vec<FinishedRequest>) {
        let line = &mut self.lines[slot];
        let wanted = line.state == Http1State::Sending;
        let Some(connection) = line.connection.as_ref().filter(|_| wanted != line.waits_to_send) else {
            return;
        };
        line.waits_to_send = wanted;
        let flags =
            if wanted { epoll::EventFlags::IN | epoll::EventFlags::OUT } else { epoll::EventFlags::IN };
        let data = epoll::EventData::new_u64(slot as u64);
        if let Err(error) = epoll::modify(&self.epoll, connection.socket(), data, flags) {
            let error = Error::new(ErrorKind::Io, "waiting to send").caused_by(io::Error::from(error));
            finished.push(self.end(slot, Some(ResponseProblem::Failed(error))));
        }
    }

    fn end(&mut self, slot: usize, problem: Option<ResponseProblem>) -> FinishedRequest {
        let line = &mut self.lines[slot];
        let ended = line.last_byte.unwrap_or_else(Instant::now);
        let is_whole = !matches!(problem, Some(ResponseProblem::Failed(_)));
        if let Some(connection) = &mut line.connection {
            self.traffic.received_bytes += connection.received_bytes - line.received_before;
            match is_whole && line.keep_alive {
                true => connection.is_reused = true,
                false => line.connection = None,
            }
        }
        line.state = Http1State::Idle;
        let body_bytes = self.requests.moved_bytes(line.body_bytes, is_whole);
        let (started, first_byte) = (line.started, line.first_byte);
        FinishedRequest { slot, started, first_byte, ended, body_bytes, problem }
    }

    fn give_up_late(&mut self, now: Instant, finished: &mut Vec<FinishedRequest>) {
        self.looked = now;
        for slot in 0..self.lines.len() {
            let line = &self.lines[slot];
            if line.state != Http1State::Idle && now.duration_since(line.started) > self.timeout {
                finished.push(self.end(slot, Some(no_answer_within(self.timeout))));
            }
        }
    }

    /// Waits for events, precisely where the wait is short: `epoll_wait` counts in milliseconds.
    fn collect(&mut self, limit: Duration) -> rustix::io::Result<()> {
        let timespec = |duration: Duration| Timespec {
            tv_sec: duration.as_secs() as i64,
            tv_nsec: i64::from(duration.subsec_nanos()),
        };
        let limit = limit.min(LOOK_EVERY);
        let rest = match limit {
            Duration::ZERO => Duration::ZERO,
            _ if limit < COARSE => {
                let mut ready = [PollFd::new(&self.epoll, PollFlags::IN)];
                if poll(&mut ready, Some(&timespec(limit)))? == 0 {
                    return Ok(());
                }
                Duration::ZERO
            }
            _ => limit - COARSE / 2,
        };
        epoll::wait(&self.epoll, spare_capacity(&mut self.events), Some(&timespec(rest)))?;
        Ok(())
    }
}

impl RequestSlots for Http1Load {
    fn slots(&self) -> usize {
        self.lines.len()
    }

    fn start(&mut self, slot: usize) {
        let now = Instant::now();
        self.lines[slot].begin(now);
        if self.lines[slot].connection.is_none()
            && let Err(error) = self.open(slot)
        {
            std::thread::sleep(AFTER_REFUSAL);
            let ended = self.end(slot, Some(ResponseProblem::Failed(error)));
            return self.early.push(ended);
        }
        let line = &mut self.lines[slot];
        let Some(connection) = &mut line.connection else { return };
        match &self.head {
            // It stays in the connection's buffer.
            Some(head) if connection.request_head.len() == head.len() => {}
            Some(head) => connection.request_head.extend_from_slice(head),
            None => {
                connection.request_head.clear();
                self.requests.write_head(&mut connection.request_head);
            }
        }
        // Once, also where it is sent again: what is asked is the size of a request.
        self.traffic.sent_bytes += (connection.request_head.len() + self.requests.body().len()) as u64;
        let mut finished = std::mem::take(&mut self.early);
        self.send(slot, &mut finished);
        self.early = finished;
    }

    fn wait(&mut self, limit: Duration, finished: &mut Vec<FinishedRequest>) -> Result<()> {
        let had = finished.len();
        finished.append(&mut self.early);
        let limit = if finished.len() > had { Duration::ZERO } else { limit };
        self.events.clear();
        match self.collect(limit) {
            Ok(()) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => {
                return Err(
                    Error::new(ErrorKind::Io, "waiting for answers").caused_by(io::Error::from(error))
                );
            }
        }
        for at in 0..self.events.len() {
            let slot = self.events[at].data.u64() as usize;
            self.advance(slot, finished);
        }
        let now = Instant::now();
        if now.duration_since(self.looked) >= LOOK_EVERY {
            self.give_up_late(now, finished);
        }
        Ok(())
    }

    fn traffic(&self) -> NetworkTraffic {
        self.traffic
    }

    fn tcp(&self) -> Vec<TcpInfo> {
        let open = self.lines.iter().filter_map(|line| line.connection.as_ref());
        open.filter_map(|connection| tcp_info(connection.socket()).ok()).collect()
    }
}

impl LoadConnection {
    fn new(now: Instant) -> Self {
        LoadConnection {
            connection: None,
            state: Http1State::Idle,
            head: ResponseHead::default(),
            framing: BodyFraming::Empty,
            waits_to_send: false,
            keep_alive: false,
            started: now,
            first_byte: None,
            last_byte: None,
            is_resent: false,
            received_before: 0,
            body_bytes: 0,
        }
    }

    fn begin(&mut self, now: Instant) {
        (self.state, self.keep_alive, self.body_bytes) = (Http1State::Sending, false, 0);
        (self.started, self.first_byte, self.last_byte) = (now, None, None);
        self.is_resent = false;
    }

    /// Whether the connection was closed between two requests, which the server may do at any time and
    /// which is no answer to this one: no byte came, and others were answered before.
    fn may_resend(&self, error: &Error) -> bool {
        let was_in_use = self.connection.as_ref().is_some_and(|connection| {
            connection.is_reused && connection.received_bytes == self.received_before
        });
        was_in_use && !self.is_resent && error.kind() == ErrorKind::Unavailable
    }

    fn advance(&mut self, requests: &RequestSequence, scratch: &mut [u8]) -> Result<Http1Step> {
        let Some(connection) = &mut self.connection else { return Err(ErrorKind::Internal.into()) };
        connection.look_again();
        if self.state == Http1State::Sending {
            match connection.send_rest(requests.body()) {
                Ok(()) => self.state = Http1State::Head,
                // A server may refuse a request before it has read the body: its answer says why.
                Err(error) if would_wait(&error) || is_cut(&error) => {}
                Err(error) => return Err(io_error(error, "sending the request", "")),
            }
        }
        if matches!(self.state, Http1State::Sending | Http1State::Head) {
            let Some(received) = receive_head(connection, &mut self.head, &mut self.first_byte)? else {
                return Ok(Http1Step::Pending);
            };
            self.framing = BodyFraming::of(&self.head, connection, requests.method().name())?;
            // An answer before the end of the request leaves a connection of no further use.
            self.keep_alive =
                self.state == Http1State::Head && self.head.may_keep_alive(connection, &self.framing);
            self.state = Http1State::Body;
            self.body_bytes += take_waiting(connection, &mut self.framing);
            if self.framing.has_ended() {
                self.last_byte = Some(received);
            }
        }
        self.receive_body(scratch)
    }

    fn receive_body(&mut self, scratch: &mut [u8]) -> Result<Http1Step> {
        let Some(connection) = &mut self.connection else { return Err(ErrorKind::Internal.into()) };
        while !self.framing.has_ended() {
            let got = match &self.framing {
                BodyFraming::Length(left) => {
                    let room = usize::try_from(*left).unwrap_or(usize::MAX).min(scratch.len());
                    match connection.discard(&mut scratch[..room]) {
                        Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
                        Ok(got) => {
                            self.framing.passed(got as u64);
                            Ok(got)
                        }
                        Err(error) => Err(error),
                    }
                }
                _ => self.framing.read(connection, self.head.end, scratch),
            };
            match got {
                Ok(got) => self.body_bytes += got as u64,
                Err(error) if would_wait(&error) => return Ok(Http1Step::Pending),
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    let left = self.framing.known_left().unwrap_or_default();
                    return Err(fordway_http::parts::short_body(left));
                }
                Err(error) => return Err(io_error(error, "receiving the body", "")),
            }
        }
        self.done()
    }

    /// The answer is whole; nothing may follow it.
    fn done(&self) -> Result<Http1Step> {
        match &self.connection {
            Some(connection) if !connection.has_nothing_left() => {
                let detail = "bytes follow the end of the answer: its stated length is wrong";
                Err(Error::new(ErrorKind::BadResponse, detail))
            }
            _ => Ok(Http1Step::Done),
        }
    }
}

/// Receives until the head is there and says when that was; `None` if it is not yet.
fn receive_head(
    connection: &mut BufferedConnection,
    head: &mut ResponseHead,
    first_byte: &mut Option<Instant>,
) -> Result<Option<Instant>> {
    loop {
        match connection.receive_more() {
            Ok(0) if first_byte.is_some() => {
                return Err(Error::new(ErrorKind::BadResponse, "the connection ended within a head"));
            }
            Ok(0) => {
                let detail = "the server closed the connection without an answer";
                return Err(Error::new(ErrorKind::Unavailable, detail));
            }
            Ok(_) => {}
            Err(error) if would_wait(&error) => return Ok(None),
            Err(error) => return Err(io_error(error, "receiving the answer", "")),
        }
        let now = Instant::now();
        first_byte.get_or_insert(now);
        if connection.take_head(head)? {
            return Ok(Some(now));
        }
    }
}

/// Takes what of the body came along with the head; returns how many bytes.
fn take_waiting(connection: &mut BufferedConnection, framing: &mut BodyFraming) -> u64 {
    let BodyFraming::Length(left) = framing else { return 0 };
    let waiting = (connection.waiting().len() as u64).min(*left);
    connection.consume(waiting as usize);
    framing.passed(waiting);
    waiting
}

fn would_wait(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
}

fn is_cut(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}
