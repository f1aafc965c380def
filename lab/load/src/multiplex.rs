//! Code shared by HTTP/2 and HTTP/3. Each stream is a task on a runtime in the calling thread.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fordway_store::{Error, ErrorKind, Result};
use fordway_sys::TcpInfo;
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
use tokio::io::unix::AsyncFd;
use tokio::runtime::Runtime;
use tokio::sync::{Mutex, Notify};
use tokio::task::{JoinSet, LocalSet};

use super::{
    AFTER_REFUSAL, CONNECTS_AT_ONCE, FinishedRequest, LoadGenerator, NetworkTraffic, RequestSequence,
    ResponseProblem, no_answer_within, stopped,
};
use fordway_http::{Timeouts, TlsRoots};

/// The longest wait for a connection before the stop flag is checked.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// A connection that carries many exchanges at once. Clones share the connection.
pub trait ExchangeSender: Clone + 'static {
    /// Opens a connection. Errors: `Unavailable`, `Timeout`, `InvalidArgument`, `BadResponse`.
    fn connect(
        requests: &Arc<RequestSequence>,
        timeouts: Timeouts,
        roots: &TlsRoots,
    ) -> impl Future<Output = Result<Self>>;

    /// Sends the next request, and receives the whole response. Stores the arrival time of the head, the status and the
    /// number of body bytes in `exchange`.
    fn exchange(&mut self, exchange: &mut TimedExchange) -> impl Future<Output = Result<(), FailedExchange>>;

    /// Returns the bytes sent and received on this connection so far.
    fn traffic(&self) -> NetworkTraffic;

    /// Returns the kernel's statistics of the connection, if it is a TCP connection.
    fn tcp(&self) -> Option<TcpInfo>;
}

/// The times and the result of an exchange.
pub struct TimedExchange {
    /// The time at which the request began.
    pub started: Instant,
    /// The time at which the head of the response arrived.
    pub first_byte: Option<Instant>,
    /// The status of the response.
    pub status: u16,
    /// The number of body bytes received.
    pub body_bytes: u64,
}

/// The error of an exchange, and whether its connection must be replaced.
pub struct FailedExchange {
    /// The error to report.
    pub error: Error,
    /// Whether the connection must be replaced: no further request can succeed on it, or the server reported that it
    /// did not process this request.
    pub ends_connection: bool,
}

/// Converts an error that affects only this request, or the error of a connection that could not be opened.
impl From<Error> for FailedExchange {
    fn from(error: Error) -> Self {
        FailedExchange { error, ends_connection: false }
    }
}

/// A load generator over connections that carry many requests at once. Slot `n` uses connection `n % connections`.
pub struct MultiplexedLoadGenerator<S> {
    shared: Rc<SharedLoadState>,
    timeouts: Timeouts,
    roots: TlsRoots,
    lines: Vec<Rc<ConnectionSlot<S>>>,
    slots: usize,
    timer: Rc<AsyncFd<std::os::fd::OwnedFd>>,
    // These two fields are dropped last, because the fields above use them.
    tasks: LocalSet,
    runtime: Runtime,
}

/// A slot for a connection, which is replaced if it is lost.
struct ConnectionSlot<S> {
    session: RefCell<Option<S>>,
    /// The number of connections that this slot has lost. A request compares the numbers before and after its exchange,
    /// so that a late failure does not remove a newer connection.
    lost: Cell<u64>,
    /// Whether a request has succeeded on the current connection.
    has_answered: Cell<bool>,
}

struct SharedLoadState {
    requests: Arc<RequestSequence>,
    finished: RefCell<Vec<FinishedRequest>>,
    /// The traffic of all lost connections, and their number.
    past: RefCell<NetworkTraffic>,
    ended: Notify,
    /// Held during the pause after a failed attempt to connect.
    refusal: Mutex<()>,
}

impl<S: ExchangeSender> MultiplexedLoadGenerator<S> {
    /// Opens `connections` (at least 1) connections, with up to `streams` concurrent requests on each. Errors:
    /// `Unavailable`, `Timeout`, `InvalidArgument`, `BadResponse`, `Io`; `Interrupted` if `stop` is set during the
    /// call.
    pub fn connect(
        requests: Arc<RequestSequence>,
        (connections, streams): (usize, usize),
        timeouts: Timeouts,
        roots: TlsRoots,
        stop: &AtomicBool,
    ) -> Result<Self> {
        let failed = |error: std::io::Error| Error::new(ErrorKind::Io, "starting a runtime").caused_by(error);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let tasks = LocalSet::new();
        let timer = {
            let _inside = runtime.enter();
            let fd = rustix::time::timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK)
                .map_err(|errno| failed(errno.into()))?;
            // The constructor is deprecated because some types may return the wrong descriptor; `OwnedFd` does not.
            #[expect(deprecated)]
            Rc::new(AsyncFd::new(fd).map_err(failed)?)
        };
        let sessions = tasks.block_on(
            &runtime,
            open_all::<S>(connections, requests.clone(), timeouts, roots.clone(), stop),
        )?;
        let lines = sessions.into_iter().map(|session| Rc::new(ConnectionSlot::new(session))).collect();
        let past = RefCell::new(NetworkTraffic { connections: 0, ..NetworkTraffic::default() });
        let shared = Rc::new(SharedLoadState {
            requests,
            finished: RefCell::default(),
            past,
            ended: Notify::new(),
            refusal: Mutex::default(),
        });
        let slots = connections * streams;
        Ok(MultiplexedLoadGenerator { shared, timeouts, roots, lines, slots, timer, tasks, runtime })
    }
}

impl<S: ExchangeSender> LoadGenerator for MultiplexedLoadGenerator<S> {
    fn slots(&self) -> usize {
        self.slots
    }

    fn start(&mut self, slot: usize) {
        let line = self.lines[slot % self.lines.len()].clone();
        let (shared, timeouts, roots) = (self.shared.clone(), self.timeouts, self.roots.clone());
        self.tasks.spawn_local(async move {
            let begun = Instant::now();
            let mut exchange = TimedExchange { started: begun, first_byte: None, status: 0, body_bytes: 0 };
            let work = shared.answered(&line, &mut exchange, timeouts, &roots);
            let problem = match tokio::time::timeout(timeouts.first_byte, work).await {
                Ok(Ok(())) => ResponseProblem::of(exchange.status, exchange.body_bytes, &shared.requests),
                Ok(Err(error)) => Some(ResponseProblem::Failed(error)),
                Err(_) => Some(no_answer_within(timeouts.first_byte)),
            };
            let body_bytes = shared.requests.moved_bytes(exchange.body_bytes, problem.is_none());
            let (started, first_byte, ended) = (exchange.started, exchange.first_byte, Instant::now());
            shared.finished.borrow_mut().push(FinishedRequest {
                slot,
                started,
                first_byte,
                ended,
                body_bytes,
                problem,
            });
            shared.ended.notify_one();
        });
    }

    fn wait(&mut self, limit: Duration, finished: &mut Vec<FinishedRequest>) -> Result<()> {
        let (shared, timer) = (self.shared.clone(), self.timer.clone());
        // The wait uses a timerfd, because Tokio's own timers have a resolution of 1 ms. A value of 0 would disarm
        // the timer.
        let limit = limit.max(Duration::from_nanos(1));
        let value = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: i64::from(limit.subsec_nanos()) };
        let once = Itimerspec { it_interval: Timespec::default(), it_value: value };
        rustix::time::timerfd_settime(&*timer, TimerfdTimerFlags::empty(), &once).map_err(|errno| {
            Error::new(ErrorKind::Io, "setting a timer").caused_by(std::io::Error::from(errno))
        })?;
        self.tasks.block_on(&self.runtime, async {
            if shared.finished.borrow().is_empty() {
                tokio::select! {
                    () = shared.ended.notified() => {}
                    ready = timer.readable() => {
                        if let Ok(mut ready) = ready {
                            ready.clear_ready();
                        }
                    }
                }
            }
        });
        finished.append(&mut self.shared.finished.borrow_mut());
        Ok(())
    }

    fn traffic(&self) -> NetworkTraffic {
        let mut total = *self.shared.past.borrow();
        for session in self.lines.iter().filter_map(|line| line.session.borrow().clone()) {
            total += session.traffic();
        }
        total
    }

    fn tcp(&self) -> Vec<TcpInfo> {
        self.lines.iter().filter_map(|line| line.session.borrow().as_ref()?.tcp()).collect()
    }
}

impl<S> ConnectionSlot<S> {
    fn new(session: S) -> Self {
        ConnectionSlot {
            session: RefCell::new(Some(session)),
            lost: Cell::default(),
            has_answered: Cell::default(),
        }
    }
}

impl SharedLoadState {
    /// Performs one request. Sends the request once more if the connection must be replaced, no byte of the response
    /// arrived, and an earlier request on the connection succeeded. In this case, the server probably closed the
    /// connection before the request arrived.
    async fn answered<S: ExchangeSender>(
        &self,
        line: &ConnectionSlot<S>,
        exchange: &mut TimedExchange,
        timeouts: Timeouts,
        roots: &TlsRoots,
    ) -> Result<()> {
        let was_in_use = line.has_answered.get();
        match self.exchange(line, exchange, timeouts, roots).await {
            Err(broken) if was_in_use && broken.ends_connection && exchange.first_byte.is_none() => {
                self.exchange(line, exchange, timeouts, roots).await.map_err(|broken| broken.error)
            }
            done => done.map_err(|broken| broken.error),
        }
    }

    /// Performs one exchange on `line`. Opens a new connection if the last connection was lost.
    async fn exchange<S: ExchangeSender>(
        &self,
        line: &ConnectionSlot<S>,
        exchange: &mut TimedExchange,
        timeouts: Timeouts,
        roots: &TlsRoots,
    ) -> Result<(), FailedExchange> {
        let known = line.session.borrow().clone();
        let mut session = match known {
            Some(session) => session,
            None => {
                let made = in_time::<S>(&self.requests, timeouts, roots).await;
                if made.is_err() {
                    let _turn = self.refusal.lock().await;
                    tokio::time::sleep(AFTER_REFUSAL).await;
                }
                let made = made?;
                line.session.borrow_mut().get_or_insert(made).clone()
            }
        };
        let number = line.lost.get();
        let done = session.exchange(exchange).await;
        // By now, the slot may contain a newer connection, to which this result does not apply.
        match &done {
            Ok(()) if number == line.lost.get() => line.has_answered.set(true),
            Err(broken) if broken.ends_connection && number == line.lost.get() => self.lose(line),
            _ => {}
        }
        done
    }

    /// Drops the connection of `line`, and adds the connection's traffic to the total of lost connections.
    fn lose<S: ExchangeSender>(&self, line: &ConnectionSlot<S>) {
        line.has_answered.set(false);
        line.lost.set(line.lost.get() + 1);
        let Some(lost) = line.session.borrow_mut().take() else { return };
        let traffic = lost.traffic();
        *self.past.borrow_mut() += traffic;
    }
}

/// Opens connections, several at a time.
async fn open_all<S: ExchangeSender>(
    connections: usize,
    requests: Arc<RequestSequence>,
    timeouts: Timeouts,
    roots: TlsRoots,
    stop: &AtomicBool,
) -> Result<Vec<S>> {
    let (mut opened, mut attempts) = (Vec::with_capacity(connections), JoinSet::new());
    while opened.len() < connections {
        while attempts.len() < CONNECTS_AT_ONCE.min(connections - opened.len()) {
            let (requests, roots) = (requests.clone(), roots.clone());
            attempts.spawn_local(async move { in_time::<S>(&requests, timeouts, &roots).await });
        }
        if let Ok(Some(ended)) = tokio::time::timeout(LOOK_EVERY, attempts.join_next()).await {
            opened.push(ended.map_err(|_| Error::from(ErrorKind::Internal))??);
        }
        if stop.load(Ordering::Relaxed) {
            return Err(stopped());
        }
    }
    Ok(opened)
}

async fn in_time<S: ExchangeSender>(
    requests: &Arc<RequestSequence>,
    timeouts: Timeouts,
    roots: &TlsRoots,
) -> Result<S> {
    let late = |_| {
        let detail = format!("{} accepted no connection within {:?}", requests.origin(), timeouts.connect);
        Error::new(ErrorKind::Timeout, detail)
    };
    tokio::time::timeout(timeouts.connect, S::connect(requests, timeouts, roots)).await.map_err(late)?
}

/// Wraps an error returned by the library that implements `protocol`.
pub(super) fn failed(protocol: &str, error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::new(ErrorKind::Unavailable, format!("the {protocol} exchange was cut off")).caused_by(error)
}
