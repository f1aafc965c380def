//! HTTP/1.1: one request at a time on each of many connections.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fordway_store::{Error, ErrorKind, Result};
use fordway_sys::{TcpInfo, tcp_info};
use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};

use super::opener::ConnectionOpener;
use super::{
    CONNECTS_AT_ONCE, FinishedRequest, LoadGenerator, NetworkTraffic, RequestSequence, ResponseProblem,
    answered_early, is_success, no_answer_within, stopped,
};
use fordway_http::parts::BodyFraming;
use fordway_http::parts::Connector;
use fordway_http::parts::ResponseHead;
use fordway_http::parts::{BufferedConnection, io_error};
use fordway_http::{HttpVersion, SessionCredentials, Timeouts, TlsRoots};

/// The maximum number of body bytes to discard in one call.
const SCRATCH_BYTES: usize = 1 << 20;
/// The interval at which requests in flight are checked for a timeout.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Waits shorter than this limit have nanosecond resolution, at the cost of one more system call.
const COARSE: Duration = Duration::from_millis(20);
/// The epoll data of the event that belongs to no slot: a connection attempt has ended.
const OPENED: u64 = u64::MAX;

/// A load generator for HTTP/1.1 over TCP, or over TLS if the URL scheme is `https`.
pub struct Http1LoadGenerator {
    requests: Arc<RequestSequence>,
    opener: ConnectionOpener,
    timeout: Duration,
    epoll: OwnedFd,
    events: Vec<epoll::Event>,
    lines: Vec<LoadConnection>,
    /// Requests that have ended outside of [`LoadGenerator::wait`]; the next wait reports them.
    early: Vec<FinishedRequest>,
    scratch: Vec<u8>,
    /// The request head, if it is the same for all requests.
    head: Option<Vec<u8>>,
    traffic: NetworkTraffic,
    looked: Instant,
}

/// A slot of the load generator: its connection, and its request in flight.
struct LoadConnection {
    connection: Option<BufferedConnection>,
    /// Whether a connection is being opened. The connection is kept even if the request that needed it has since timed
    /// out.
    is_opening: bool,
    state: Http1State,
    head: ResponseHead,
    framing: BodyFraming,
    /// Whether epoll also reports when the socket is writable.
    waits_to_send: bool,
    /// Whether the connection can carry a further request.
    keep_alive: bool,
    started: Instant,
    first_byte: Option<Instant>,
    /// The arrival time of the last byte, if the whole body arrived together with the end of the head. In that case,
    /// this is the time at which the head became complete.
    last_byte: Option<Instant>,
    /// Whether the request has been sent a second time.
    is_resent: bool,
    /// The head of a request that is sent again as soon as the new connection is open.
    resent_head: Option<Vec<u8>>,
    received_before: u64,
    body_bytes: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Http1State {
    Idle,
    Connecting,
    Sending,
    Head,
    Body,
}

enum Http1PollResult {
    Pending,
    Done,
}

impl Http1LoadGenerator {
    /// Opens `connections` (at least 1) connections. `timeouts.first_byte` limits the duration of a whole exchange.
    /// Errors: `Unavailable`, `Timeout`, `InvalidArgument`, `Io`; `Interrupted` if `stop` is set during the call.
    pub fn connect(
        requests: Arc<RequestSequence>,
        connections: usize,
        timeouts: Timeouts,
        roots: TlsRoots,
        stop: &AtomicBool,
    ) -> Result<Self> {
        let failed =
            |error: rustix::io::Errno| Error::new(ErrorKind::Io, "epoll").caused_by(io::Error::from(error));
        let now = Instant::now();
        let connector = Connector::new(HttpVersion::Http1, timeouts, roots, SessionCredentials::none());
        let opener = ConnectionOpener::new(connector, requests.clone())?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?;
        epoll::add(&epoll, &opener, epoll::EventData::new_u64(OPENED), epoll::EventFlags::IN)
            .map_err(failed)?;
        let mut http1 = Http1LoadGenerator {
            opener,
            timeout: timeouts.first_byte,
            epoll,
            events: Vec::with_capacity(connections + 1),
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
        http1.open_all(stop)?;
        Ok(http1)
    }

    /// Opens the connections of all slots: first one alone, because it reads the certificates, and then the others,
    /// several at a time.
    fn open_all(&mut self, stop: &AtomicBool) -> Result<()> {
        let (mut slots, mut in_flight) = (0..self.lines.len(), 0);
        loop {
            let at_once = if self.traffic.connections == 0 { 1 } else { CONNECTS_AT_ONCE };
            while in_flight < at_once
                && let Some(slot) = slots.next()
            {
                self.opener.open(slot)?;
                in_flight += 1;
            }
            if in_flight == 0 {
                return Ok(());
            }
            if let Some((slot, connection)) = self.opener.take(LOOK_EVERY) {
                self.keep(slot, connection?)?;
                in_flight -= 1;
            }
            if stop.load(Ordering::Relaxed) {
                return Err(stopped());
            }
        }
    }

    /// Assigns a new connection to `slot`.
    fn keep(&mut self, slot: usize, mut connection: BufferedConnection) -> Result<()> {
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

    /// Starts to open a connection for the request of `slot`, unless a connection is already being opened for an
    /// earlier request of the slot.
    fn open(&mut self, slot: usize, finished: &mut Vec<FinishedRequest>) {
        let line = &mut self.lines[slot];
        line.state = Http1State::Connecting;
        if line.is_opening {
            return;
        }
        match self.opener.open(slot) {
            Ok(()) => self.lines[slot].is_opening = true,
            Err(error) => finished.push(self.end(slot, Some(ResponseProblem::Failed(error)))),
        }
    }

    /// Takes the connections that have been opened, and sends the requests that were waiting for them.
    fn take_opened(&mut self, finished: &mut Vec<FinishedRequest>) {
        self.opener.clear();
        while let Some((slot, connection)) = self.opener.take(Duration::ZERO) {
            self.lines[slot].is_opening = false;
            let kept = connection.and_then(|connection| self.keep(slot, connection));
            match kept {
                // The request has timed out; the next request uses the connection.
                _ if self.lines[slot].state != Http1State::Connecting => {}
                Ok(()) => self.send_first(slot, finished),
                Err(error) => finished.push(self.end(slot, Some(ResponseProblem::Failed(error)))),
            }
        }
    }

    /// Advances the request on `slot` as far as possible without blocking.
    fn advance(&mut self, slot: usize, finished: &mut Vec<FinishedRequest>) {
        let line = &mut self.lines[slot];
        if matches!(line.state, Http1State::Idle | Http1State::Connecting) {
            // The server closed the connection or sent unsolicited bytes, so the next request uses a new connection.
            line.connection = None;
            return;
        }
        let problem = match line.advance(&self.requests, &mut self.scratch) {
            Ok(Http1PollResult::Pending) => return self.watch(slot, finished),
            Ok(Http1PollResult::Done) => {
                ResponseProblem::of(line.head.status, line.body_bytes, &self.requests)
            }
            Err(error) if line.may_resend(&error) => {
                line.is_resent = true;
                return self.resend(slot, finished);
            }
            Err(error) => Some(ResponseProblem::Failed(error)),
        };
        finished.push(self.end(slot, problem));
    }

    /// Sends the request of `slot` again, on a new connection. The request's latency is still measured from the first
    /// attempt.
    fn resend(&mut self, slot: usize, finished: &mut Vec<FinishedRequest>) {
        let line = &mut self.lines[slot];
        line.resent_head = line.connection.take().map(|lost| lost.request_head);
        self.open(slot, finished);
    }

    /// Writes the head of the request of `slot` into the connection's buffer, and sends the request.
    fn send_first(&mut self, slot: usize, finished: &mut Vec<FinishedRequest>) {
        let line = &mut self.lines[slot];
        line.state = Http1State::Sending;
        let Some(connection) = &mut line.connection else { return };
        // Count a resent request only once, because request sizes are computed from `sent_bytes`.
        if let Some(head) = line.resent_head.take() {
            connection.request_head = head;
            return self.send(slot, finished);
        }
        match &self.head {
            // The connection's buffer still contains the head.
            Some(head) if connection.request_head.len() == head.len() => {}
            Some(head) => connection.request_head.extend_from_slice(head),
            None => {
                connection.request_head.clear();
                self.requests.write_head(&mut connection.request_head);
            }
        }
        self.traffic.sent_bytes += (connection.request_head.len() + self.requests.body().len()) as u64;
        self.send(slot, finished);
    }

    /// Passes the request of `slot` to the kernel. The head of the request is already in the connection's buffer.
    fn send(&mut self, slot: usize, finished: &mut Vec<FinishedRequest>) {
        let line = &mut self.lines[slot];
        let Some(connection) = &mut line.connection else { return };
        line.received_before = connection.received_bytes;
        match connection.send(self.requests.body()) {
            Ok(()) => line.state = Http1State::Head,
            // Ignore the error: a permanent error recurs when the rest of the request is sent or the response is read.
            Err(_) => self.advance(slot, finished),
        }
    }

    /// Makes epoll also report when the socket is writable, but only while part of the request is unsent.
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

    /// Waits for events. Short waits use `poll`, which has nanosecond resolution; `epoll_wait` counts in
    /// milliseconds.
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
            // End this wait early; the next call waits for the remainder at high resolution.
            _ => limit - COARSE / 2,
        };
        epoll::wait(&self.epoll, spare_capacity(&mut self.events), Some(&timespec(rest)))?;
        Ok(())
    }
}

impl LoadGenerator for Http1LoadGenerator {
    fn slots(&self) -> usize {
        self.lines.len()
    }

    fn start(&mut self, slot: usize) {
        self.lines[slot].begin(Instant::now());
        let mut finished = std::mem::take(&mut self.early);
        match self.lines[slot].connection {
            Some(_) => self.send_first(slot, &mut finished),
            None => self.open(slot, &mut finished),
        }
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
                    Error::new(ErrorKind::Io, "waiting for responses").caused_by(io::Error::from(error))
                );
            }
        }
        for at in 0..self.events.len() {
            match self.events[at].data.u64() {
                OPENED => self.take_opened(finished),
                slot => self.advance(slot as usize, finished),
            }
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
            is_opening: false,
            resent_head: None,
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
        (self.is_resent, self.resent_head) = (false, None);
    }

    /// Returns whether the failed request may be sent again, once. The request may be sent again if the connection was
    /// closed, had carried an earlier request, and delivered no byte of this response. The server has then probably
    /// closed the idle connection, which a server may do at any time.
    fn may_resend(&self, error: &Error) -> bool {
        let was_in_use = self.connection.as_ref().is_some_and(|connection| {
            connection.is_reused && connection.received_bytes == self.received_before
        });
        was_in_use && !self.is_resent && error.kind() == ErrorKind::Unavailable
    }

    fn advance(&mut self, requests: &RequestSequence, scratch: &mut [u8]) -> Result<Http1PollResult> {
        let Some(connection) = &mut self.connection else { return Err(ErrorKind::Internal.into()) };
        connection.look_again();
        if self.state == Http1State::Sending {
            match connection.send_rest(requests.body()) {
                Ok(()) => self.state = Http1State::Head,
                // A server may reject a request before it has read the body. The response then contains the reason.
                Err(error) if would_wait(&error) || is_cut(&error) => {}
                Err(error) => return Err(io_error(error, "sending the request", "")),
            }
        }
        if matches!(self.state, Http1State::Sending | Http1State::Head) {
            let Some(received) = receive_head(connection, &mut self.head, &mut self.first_byte)? else {
                return Ok(Http1PollResult::Pending);
            };
            if self.state == Http1State::Sending && is_success(self.head.status) {
                return Err(answered_early(self.head.status));
            }
            self.framing = BodyFraming::of(&self.head, connection, requests.method().name())?;
            // The connection cannot be reused if the response arrived before the request had been sent completely.
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

    fn receive_body(&mut self, scratch: &mut [u8]) -> Result<Http1PollResult> {
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
                Err(error) if would_wait(&error) => return Ok(Http1PollResult::Pending),
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    let left = self.framing.known_left().unwrap_or_default();
                    return Err(fordway_http::parts::short_body(left));
                }
                Err(error) => return Err(io_error(error, "receiving the body", "")),
            }
        }
        self.done()
    }

    /// Checks that no bytes follow the complete response. Errors: `BadResponse` if bytes follow.
    fn done(&self) -> Result<Http1PollResult> {
        match &self.connection {
            Some(connection) if !connection.has_nothing_left() => {
                let detail = "bytes follow the end of the response: its stated length is wrong";
                Err(Error::new(ErrorKind::BadResponse, detail))
            }
            _ => Ok(Http1PollResult::Done),
        }
    }
}

/// Receives bytes until the head is complete, and returns the time at which it became complete; `None` if the head is
/// still incomplete.
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
                let detail = "the server closed the connection without a response";
                return Err(Error::new(ErrorKind::Unavailable, detail));
            }
            Ok(_) => {}
            Err(error) if would_wait(&error) => return Ok(None),
            Err(error) => return Err(io_error(error, "receiving the response", "")),
        }
        let now = Instant::now();
        first_byte.get_or_insert(now);
        if connection.take_head(head)? {
            return Ok(Some(now));
        }
    }
}

/// Consumes the body bytes that were received together with the head, and returns their number.
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
