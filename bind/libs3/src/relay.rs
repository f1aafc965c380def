//! Connects the threads that carry out a context's requests (the workers) with the thread that drives the context.
//! Workers make the store calls, which wait for disks and other machines. Callbacks run only on the driving thread, so
//! a worker passes each callback to that thread and waits for its result.
//!
//! Workers are started on demand, and exit when they have been idle for [`IDLE_MAX`] or when the relay closes. Closing
//! does not wait for a worker that is waiting for another machine. Such a worker later finds the relay closed, and
//! exits without a callback.

use std::collections::VecDeque;
use std::mem;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use fordway_store::ObjectContent;
use fordway_sys::{ProcessIdentity, with_signals_blocked};

use super::response::{RequestFailure, RequestResult};
use crate::response::{CallbackResponder, without_panic};
use crate::status::Status;

/// How long a worker waits for another request before it exits.
const IDLE_MAX: Duration = Duration::from_secs(5);
/// How long destroying a context waits for workers that can exit as soon as they get CPU time.
const LEAVE_MAX: Duration = Duration::from_millis(100);

/// A request's number in its context. Requests are numbered in the order in which they are added.
pub(crate) type RequestNumber = u64;

/// The remaining work of a request. The work may run on any thread, but uses the program's memory (pointers for
/// callbacks, and memory for results) only within [`CallbackResponder::call`].
pub(crate) type RequestWork = Box<dyn FnOnce(&CallbackResponder) -> RequestResult>;

/// A request for a worker.
pub(crate) struct WorkerJob {
    pub(crate) number: RequestNumber,
    pub(crate) responder: CallbackResponder,
    pub(crate) work: RequestWork,
}

// SAFETY: the pointers in a responder and a `RequestWork` belong to the program, and are used only on the driving
// thread. A target's pointer to its pool is only used in comparisons. All other fields of a job are `Send`. The
// assertion below checks at compile time that `ObjectContent` is `Send`.
unsafe impl Send for WorkerJob {}

const fn may_change_threads<T: Send>() {}
const _: () = may_change_threads::<ObjectContent>();

/// A task for the driving thread.
pub(crate) enum DrivingThreadEvent {
    Callback(WaitingCallback),
    Ended(RequestNumber, RequestResult),
}

/// A callback that a worker is waiting for. If the callback is dropped without being run, the worker is notified.
pub(crate) struct WaitingCallback {
    /// `call` and `progress` are on the worker's stack, and remain valid until `progress` is no longer `WAITING`.
    call: *mut dyn FnMut(),
    progress: *const AtomicU8,
    worker: Thread,
    process: ProcessIdentity,
    /// The value to store in `progress` when this struct is dropped.
    end: u8,
}

// SAFETY: the worker does not access the callback or its captures while `progress` is `WAITING`, so only one thread at
// a time accesses them.
unsafe impl Send for WaitingCallback {}

const WAITING: u8 = 0;
const CALLED: u8 = 1;
const DROPPED: u8 = 2;

impl WaitingCallback {
    /// Runs the callback on the current thread.
    pub(crate) fn run(mut self) {
        // SAFETY: the callback remains valid until this value is dropped, and no other thread accesses it until then.
        unsafe { (*self.call)() };
        self.end = CALLED;
    }
}

impl Drop for WaitingCallback {
    fn drop(&mut self) {
        // If a callback forked this process, do not notify the worker: the worker does not exist here, and its memory
        // may have been reused.
        if self.process.is_current() {
            // SAFETY: `progress` remains valid until this store, and is not used after it.
            unsafe { (*self.progress).store(self.end, Ordering::Release) };
            self.worker.unpark();
        }
    }
}

/// The state shared by the workers of a context and its driving thread.
#[derive(Default)]
pub(crate) struct CallbackRelay {
    state: Mutex<CallbackRelayState>,
    is_closed: AtomicBool,
    /// Notified when the driving thread has work to do.
    ready: Condvar,
    /// Notified when there is a job for a worker.
    assigned: Condvar,
    /// Notified when a worker has exited.
    left: Condvar,
}

#[derive(Default)]
struct CallbackRelayState {
    events: VecDeque<DrivingThreadEvent>,
    demand: PendingDriverWork,
    /// The number of threads waiting in [`CallbackRelay::wait`].
    waiting_drivers: usize,
    /// The descriptor for `select`, which is readable as long as there is work to do. The context owns the descriptor.
    signal: Weak<OwnedFd>,
    is_signalled: bool,
    jobs: VecDeque<WorkerJob>,
    workers: WorkerCounts,
}

/// The work of a context's driver other than running callbacks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PendingDriverWork {
    /// A request can be started.
    pub(crate) is_startable: bool,
    /// There are unfinished requests.
    pub(crate) is_unfinished: bool,
}

#[derive(Default)]
struct WorkerCounts {
    alive: usize,
    idle: usize,
}

impl CallbackRelayState {
    fn has_work(&self) -> bool {
        !self.events.is_empty() || self.demand.is_startable
    }

    /// Makes the descriptor readable if there is work to do, and unreadable otherwise.
    fn update_signal(&mut self) {
        let has_work = self.has_work();
        if has_work == self.is_signalled {
            return;
        }
        let Some(signal) = self.signal.upgrade() else { return };
        // Neither call can fail or block, because the counter of the eventfd alternates between 0 and 1.
        let _ = match has_work {
            true => rustix::io::write(&*signal, &1_u64.to_ne_bytes()),
            false => rustix::io::read(&*signal, &mut [0; 8]),
        };
        self.is_signalled = has_work;
    }
}

impl CallbackRelay {
    /// Creates a relay whose queue initially contains `events`.
    pub(crate) fn with_events(events: impl IntoIterator<Item = DrivingThreadEvent>) -> Self {
        let relay = CallbackRelay::default();
        relay.locked().events.extend(events);
        relay
    }

    /// Returns whether the driving thread has work to do.
    pub(crate) fn has_work(&self) -> bool {
        self.locked().has_work()
    }

    /// Keeps `signal` readable as long as there is work to do.
    pub(crate) fn signal_by(&self, signal: Weak<OwnedFd>) {
        let mut state = self.locked();
        (state.signal, state.is_signalled) = (signal, false);
        state.update_signal();
    }

    /// Sets the work of the driver other than running callbacks.
    pub(crate) fn demand(&self, demand: PendingDriverWork) {
        let mut state = self.locked();
        state.demand = demand;
        self.wake_driver(&mut state);
    }

    /// Removes and returns the oldest event for the driving thread.
    pub(crate) fn next_event(&self) -> Option<DrivingThreadEvent> {
        let mut state = self.locked();
        let event = state.events.pop_front();
        state.update_signal();
        event
    }

    /// Sleeps until there is work to do, or all requests are finished.
    pub(crate) fn wait(&self) {
        let mut state = self.locked();
        while state.demand.is_unfinished && !state.has_work() {
            state.waiting_drivers += 1;
            state = self.ready.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.waiting_drivers -= 1;
        }
    }

    /// Runs `callback` on the driving thread, and returns its result. Called by workers. Errors: `Interrupted` if the
    /// relay is closed.
    pub(crate) fn call<T>(&self, callback: impl FnOnce() -> RequestResult<T>) -> RequestResult<T> {
        let (mut callback, mut returned) = (Some(callback), None);
        let mut call = || returned = callback.take().map(|callback| without_panic(callback));
        let progress = AtomicU8::new(WAITING);
        let call: *mut (dyn FnMut() + '_) = &mut call;
        // SAFETY: only the lifetime changes. The callback is not called after `progress` has changed from `WAITING` to
        // another value, and this function waits below until `progress` has changed.
        let call: *mut (dyn FnMut() + 'static) = unsafe { mem::transmute(call) };
        let (worker, process) = (thread::current(), ProcessIdentity::current());
        self.push(DrivingThreadEvent::Callback(WaitingCallback {
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

    /// Adds an event, or drops it if the relay is closed.
    fn push(&self, event: DrivingThreadEvent) {
        let mut state = self.locked();
        if self.is_closed() {
            drop(state);
            return drop(event);
        }
        state.events.push_back(event);
        self.wake_driver(&mut state);
    }

    fn wake_driver(&self, state: &mut CallbackRelayState) {
        state.update_signal();
        if state.waiting_drivers > 0 {
            self.ready.notify_all();
        }
    }

    /// Returns whether callbacks may no longer run.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// Prevents further callbacks, and waits for at most [`LEAVE_MAX`] until the workers that are idle or waiting for a
    /// callback have exited.
    pub(crate) fn close(&self) {
        let (events, jobs, busy) = {
            let mut state = self.locked();
            self.is_closed.store(true, Ordering::Release);
            let WorkerCounts { alive, idle } = state.workers;
            let relaying =
                state.events.iter().filter(|event| matches!(event, DrivingThreadEvent::Callback(_))).count();
            (mem::take(&mut state.events), mem::take(&mut state.jobs), alive - idle - relaying)
        };
        // Workers that were waiting for these callbacks continue without a result.
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

    fn locked(&self) -> MutexGuard<'_, CallbackRelayState> {
        // The state is consistent after every change, so poisoning can be ignored.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether this process ever had a worker. If so, locks that a worker held during a fork stay locked in the child.
static WERE_STARTED: AtomicBool = AtomicBool::new(false);

/// Returns whether this process, or a process from which it was forked, ever had a worker.
pub(crate) fn workers_were_started() -> bool {
    WERE_STARTED.load(Ordering::Acquire)
}

impl CallbackRelay {
    /// Assigns `job` to a worker, and starts a new worker if all are busy. Returns the job if there is no worker and no
    /// thread can be started.
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
        // Block signals in the worker, because they must be delivered to the program's own threads.
        match with_signals_blocked(|| worker.spawn(move || relay.work())) {
            Ok(_) => Ok(()),
            Err(error) => self.without_worker(number, &error),
        }
    }

    /// Leaves the job in the queue for the existing workers. Returns the job if there are no workers.
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
            self.push(DrivingThreadEvent::Ended(number, outcome));
        }
    }

    /// Waits for a request. Returns `None` if no request arrives within [`IDLE_MAX`] or if the relay is closed. The
    /// worker is then no longer counted, and must exit.
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

/// Returns the failure for a request whose context was destroyed.
pub(crate) fn interrupted() -> RequestFailure {
    let why = "the request context was destroyed before the request was finished; run it first";
    RequestFailure::refused(Status::Interrupted, why)
}
