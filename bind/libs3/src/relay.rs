//! Between the threads that carry out a context's requests and the thread that drives the context. The workers call the
//! stores, and wait there for disks and other machines; callbacks run on the driving thread alone. So a worker hands over
//! each callback and waits for what it returns.
//!
//! Workers are started as they are needed, and end when they had nothing to do for a while or the relay closes. Nobody
//! waits for one that waits for another machine: it finds the relay closed later, and ends without a callback.

use std::collections::VecDeque;
use std::mem;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use fordway_store::ObjectContent;
use fordway_sys::{ProcessIdentity, with_signals_blocked};

use super::response::{Outcome, RequestFailure};
use crate::response::{CallbackResponder, without_panic};
use crate::status::Status;

/// How long a worker waits for another request before it ends.
const IDLE_MAX: Duration = Duration::from_secs(5);
/// How long the end of a context waits for workers that have nothing to wait for but a processor.
const LEAVE_MAX: Duration = Duration::from_millis(100);

/// A request of a context, by the order in which they were added.
pub(crate) type RequestNumber = u64;

/// What is left to do of a request. It may be called on any thread: what it has of the program's (pointers for callbacks,
/// and memory that results go to) it uses in [`CallbackResponder::call`] only.
pub(crate) type RequestWork = Box<dyn FnOnce(&CallbackResponder) -> Outcome>;

/// A request for a worker.
pub(crate) struct WorkerJob {
    pub(crate) number: RequestNumber,
    pub(crate) responder: CallbackResponder,
    pub(crate) work: RequestWork,
}

// SAFETY: the pointers that a responder and a `RequestWork` hold are the program's, and used on the driving thread alone;
// a target's pointer to its pool is only compared. Everything else in them may change threads, content too (below).
unsafe impl Send for WorkerJob {}

const fn may_change_threads<T: Send>() {}
const _: () = may_change_threads::<ObjectContent>();

/// What the driving thread is to do.
pub(crate) enum RelayEvent {
    Callback(WaitingCallback),
    Ended(RequestNumber, Outcome),
}

/// A callback whose worker waits for it. Dropped without a call, it tells the worker so.
pub(crate) struct WaitingCallback {
    /// Both lie on the worker's stack, and stay there until `progress` is another than `WAITING`.
    call: *mut dyn FnMut(),
    progress: *const AtomicU8,
    worker: Thread,
    process: ProcessIdentity,
    /// How it ends.
    end: u8,
}

// SAFETY: the worker touches neither the callback nor what it captured until `progress` says that it is over, so that one
// thread at a time has them.
unsafe impl Send for WaitingCallback {}

const WAITING: u8 = 0;
const CALLED: u8 = 1;
const DROPPED: u8 = 2;

impl WaitingCallback {
    /// Calls it, on the thread of the caller.
    pub(crate) fn run(mut self) {
        // SAFETY: it lies where it was until this is dropped, and nobody else has it.
        unsafe { (*self.call)() };
        self.end = CALLED;
    }
}

impl Drop for WaitingCallback {
    fn drop(&mut self) {
        // In a child that a callback forked there is no worker, and something else may lie at its place.
        if self.process.is_current() {
            // SAFETY: it lies there until this store, which is the last use.
            unsafe { (*self.progress).store(self.end, Ordering::Release) };
            self.worker.unpark();
        }
    }
}

/// What the workers of a context and its driving thread share.
#[derive(Default)]
pub(crate) struct CallbackRelay {
    state: Mutex<RelayState>,
    is_closed: AtomicBool,
    /// Something to do for the driving thread.
    ready: Condvar,
    /// Something to do for a worker.
    assigned: Condvar,
    /// A worker ended.
    left: Condvar,
}

#[derive(Default)]
struct RelayState {
    events: VecDeque<RelayEvent>,
    demand: DriverDemand,
    /// Threads that wait in [`CallbackRelay::wait`].
    waiting_drivers: usize,
    /// What `select` waits for, readable as long as there is something to do. The context owns it.
    signal: Weak<OwnedFd>,
    is_signalled: bool,
    jobs: VecDeque<WorkerJob>,
    workers: WorkerCounts,
}

/// What a context has for its driver beside callbacks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DriverDemand {
    /// A request can be begun.
    pub(crate) is_startable: bool,
    /// Requests are unfinished.
    pub(crate) is_unfinished: bool,
}

#[derive(Default)]
struct WorkerCounts {
    alive: usize,
    idle: usize,
}

impl RelayState {
    fn has_work(&self) -> bool {
        !self.events.is_empty() || self.demand.is_startable
    }

    /// Has the descriptor say what is so.
    fn update_signal(&mut self) {
        let has_work = self.has_work();
        if has_work == self.is_signalled {
            return;
        }
        let Some(signal) = self.signal.upgrade() else { return };
        // Neither can fail or wait: the counter is 0 before it is 1, and 1 before it is 0.
        let _ = match has_work {
            true => rustix::io::write(&*signal, &1_u64.to_ne_bytes()),
            false => rustix::io::read(&*signal, &mut [0; 8]),
        };
        self.is_signalled = has_work;
    }
}

impl CallbackRelay {
    /// With what has happened already.
    pub(crate) fn with_events(events: impl IntoIterator<Item = RelayEvent>) -> Self {
        let relay = CallbackRelay::default();
        relay.locked().events.extend(events);
        relay
    }

    /// Whether there is something to do for the driving thread.
    pub(crate) fn has_work(&self) -> bool {
        self.locked().has_work()
    }

    /// Has `signal` readable as long as there is something to do.
    pub(crate) fn signal_by(&self, signal: Weak<OwnedFd>) {
        let mut state = self.locked();
        (state.signal, state.is_signalled) = (signal, false);
        state.update_signal();
    }

    /// Tells what there is for the driver beside callbacks.
    pub(crate) fn demand(&self, demand: DriverDemand) {
        let mut state = self.locked();
        state.demand = demand;
        self.wake_driver(&mut state);
    }

    /// What came first of what the driving thread is to do.
    pub(crate) fn next_event(&self) -> Option<RelayEvent> {
        let mut state = self.locked();
        let event = state.events.pop_front();
        state.update_signal();
        event
    }

    /// Sleeps until there is something to do, or nothing is unfinished.
    pub(crate) fn wait(&self) {
        let mut state = self.locked();
        while state.demand.is_unfinished && !state.has_work() {
            state.waiting_drivers += 1;
            state = self.ready.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.waiting_drivers -= 1;
        }
    }

    /// Runs `callback` on the driving thread, and returns what it returned. For workers.
    /// Errors: `Interrupted` once the relay is closed.
    pub(crate) fn call<T>(&self, callback: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
        let (mut callback, mut returned) = (Some(callback), None);
        let mut call = || returned = callback.take().map(|callback| without_panic(callback));
        let progress = AtomicU8::new(WAITING);
        let call: *mut (dyn FnMut() + '_) = &mut call;
        // SAFETY: only the lifetime changes. It is not called after `progress` left `WAITING`, which is waited for below.
        let call: *mut (dyn FnMut() + 'static) = unsafe { mem::transmute(call) };
        let (worker, process) = (thread::current(), ProcessIdentity::current());
        self.push(RelayEvent::Callback(WaitingCallback {
            call,
            progress: &progress,
            worker,
            process,
            end: DROPPED,
        }));
        while progress.load(Ordering::Acquire) == WAITING {
            thread::park();
        }
        returned.unwrap_or_else(|| Err(interrupted()))
    }

    /// Adds an event, unless the relay is closed: then it is dropped.
    fn push(&self, event: RelayEvent) {
        let mut state = self.locked();
        if self.is_closed() {
            drop(state);
            return drop(event);
        }
        state.events.push_back(event);
        self.wake_driver(&mut state);
    }

    fn wake_driver(&self, state: &mut RelayState) {
        state.update_signal();
        if state.waiting_drivers > 0 {
            self.ready.notify_all();
        }
    }

    /// Whether callbacks may run no more.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// Has no further callback run, and waits for the workers that wait for nothing else.
    pub(crate) fn close(&self) {
        let (events, jobs, busy) = {
            let mut state = self.locked();
            self.is_closed.store(true, Ordering::Release);
            let WorkerCounts { alive, idle } = state.workers;
            let relaying =
                state.events.iter().filter(|event| matches!(event, RelayEvent::Callback(_))).count();
            (mem::take(&mut state.events), mem::take(&mut state.jobs), alive - idle - relaying)
        };
        // Their workers go on without an answer.
        drop((events, jobs));
        self.assigned.notify_all();
        let until = Instant::now() + LEAVE_MAX;
        let mut state = self.locked();
        while state.workers.alive > busy {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            state = self.left.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn locked(&self) -> MutexGuard<'_, RelayState> {
        // It is whole after every change, whatever panicked since.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether this process ever had a worker. A child of it may find locks of the lanes taken for good.
static WERE_STARTED: AtomicBool = AtomicBool::new(false);

/// Whether this process, or one that it was forked from, ever had a worker.
pub(crate) fn workers_were_started() -> bool {
    WERE_STARTED.load(Ordering::Acquire)
}

impl CallbackRelay {
    /// Has a worker carry out `job`, a new one if all are at work. Gives it back if there is none and cannot be.
    pub(crate) fn assign(self: &Arc<Self>, job: WorkerJob) -> Result<(), WorkerJob> {
        let number = job.number;
        let mut state = self.locked();
        state.jobs.push_back(job);
        if state.workers.idle >= state.jobs.len() {
            drop(state);
            self.assigned.notify_one();
            return Ok(());
        }
        state.workers.alive += 1;
        drop(state);
        WERE_STARTED.store(true, Ordering::Release);
        let relay = self.clone();
        let worker = thread::Builder::new().name("fordway-s3".to_owned());
        // Signals are for the program's own threads.
        match with_signals_blocked(|| worker.spawn(move || relay.work())) {
            Ok(_) => Ok(()),
            Err(error) => self.without_worker(number, &error),
        }
    }

    /// Leaves the request to the workers that there are.
    fn without_worker(&self, number: RequestNumber, error: &std::io::Error) -> Result<(), WorkerJob> {
        tracing::debug!(%error, "no further thread can be started");
        let mut state = self.locked();
        state.workers.alive -= 1;
        let job = match state.workers.alive {
            0 => state.jobs.iter().position(|job| job.number == number),
            _ => None,
        };
        job.and_then(|at| state.jobs.remove(at)).map_or(Ok(()), Err)
    }

    fn work(&self) {
        while let Some(WorkerJob { number, responder, work }) = self.next_job() {
            let outcome = without_panic(|| work(&responder));
            self.push(RelayEvent::Ended(number, outcome));
        }
    }

    /// Waits for a request; `None` after a long wait or when the relay is closed, and the worker then is none any more.
    fn next_job(&self) -> Option<WorkerJob> {
        let mut state = self.locked();
        let mut is_patient = true;
        loop {
            let job = if self.is_closed() { None } else { state.jobs.pop_front() };
            if job.is_some() {
                return job;
            }
            if self.is_closed() || !is_patient {
                state.workers.alive -= 1;
                self.left.notify_all();
                return None;
            }
            state.workers.idle += 1;
            let waited = self.assigned.wait_timeout(state, IDLE_MAX);
            let (woken, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            (state, is_patient) = (woken, !timeout.timed_out());
            state.workers.idle -= 1;
        }
    }
}

/// The end of a request whose context is gone.
pub(crate) fn interrupted() -> RequestFailure {
    let why = "the request context was destroyed before the request was finished; run it first";
    RequestFailure::refused(Status::Interrupted, why)
}
