//! Request contexts: sets of requests that make progress only while the program drives them.
//!
//! The arguments of a request with a context are checked and copied immediately. The request starts in the next call to
//! one of the `run` functions. Requests to other machines are carried out concurrently by workers. Short requests for
//! local files are carried out one after another on the driving thread. All callbacks run on the thread that drives the
//! context.

use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use fordway_sys::ProcessIdentity;
use rustix::event::{EventfdFlags, eventfd};

use super::response::{QUICK_MAX_BYTES, RequestFailure, RequestResult};
use crate::relay::{
    CallbackRelay, DrivingThreadEvent, PendingDriverWork, RequestNumber, RequestWork, WorkerJob, interrupted,
    workers_were_started,
};
use crate::response::{CallbackResponder, without_panic};
use crate::status::Status;

/// The time after which a call to `S3_runonce_request_context` starts no further work.
const TURN_MAX: Duration = Duration::from_millis(1);
/// The maximum number of concurrent requests to other machines in a context. Each request occupies a thread.
const REMOTE_MAX: usize = 256;
/// The maximum number of concurrent requests for local files on worker threads in a context. More requests would not
/// increase disk throughput.
const LONG_MAX: usize = 8;

/// The maximum number of bytes that the uploads of a context buffer at the same time. An upload that buffers more runs
/// when no other upload of the context buffers content.
const BUFFERED_MAX_BYTES: u64 = 512 << 20;

/// How long a request occupies the thread that carries it out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestSchedulingClass {
    /// A short request for local files, which takes less time than passing it to another thread.
    Quick,
    /// A longer request for local files.
    Long,
    /// A request that waits for another machine or process.
    Remote {
        /// The maximum number of bytes of content that the request holds in memory.
        buffered_bytes: u64,
    },
}

impl RequestSchedulingClass {
    /// Returns the class of a request that transfers `bytes` of content. `is_local` means that the request accesses
    /// files on this node.
    pub(crate) const fn of(is_local: bool, bytes: u64) -> Self {
        match is_local {
            true if bytes <= QUICK_MAX_BYTES => RequestSchedulingClass::Quick,
            true => RequestSchedulingClass::Long,
            false => RequestSchedulingClass::Remote { buffered_bytes: 0 },
        }
    }
}

/// `S3RequestContext`, which is opaque to C.
pub struct RequestContext(Arc<RequestQueue>);

impl RequestContext {
    /// Creates an empty context. Uses no thread and no descriptor.
    pub(crate) fn new() -> Self {
        RequestContext(Arc::new(RequestQueue(Mutex::new(QueueState::default()))))
    }

    /// Returns the context's queue. The queue outlives the context if a callback destroys the context.
    pub(crate) fn queue(&self) -> Arc<RequestQueue> {
        self.0.clone()
    }
}

/// The requests of a context.
pub(crate) struct RequestQueue(Mutex<QueueState>);

/// The state of a queue. Only threads of the program lock the state, never a worker. If a worker held the lock during a
/// fork, the lock would stay locked in the child, where the worker does not exist.
struct QueueState {
    process: ProcessIdentity,
    relay: Arc<CallbackRelay>,
    /// The pending work that was last reported to the relay.
    told: PendingDriverWork,
    signal: Option<Arc<OwnedFd>>,
    /// The requests whose completion has not been reported yet, in order of arrival.
    unfinished: BTreeMap<RequestNumber, UnfinishedRequest>,
    unstarted: VecDeque<(RequestNumber, RequestSchedulingClass, RequestWork)>,
    next_number: RequestNumber,
    /// The number of long requests on workers.
    long: usize,
    /// The number of remote requests on workers.
    remote: usize,
    /// The number of bytes that the remote requests on workers hold in memory.
    buffered_bytes: u64,
}

// SAFETY: the only parts that are not `Send` are the program's pointers. The program's threads that drive the context
// or add requests to it may use these pointers.
unsafe impl Send for QueueState {}

struct UnfinishedRequest {
    responder: CallbackResponder,
    /// The class of the request if it is on a worker; otherwise `Quick`.
    on_worker: RequestSchedulingClass,
}

impl Default for QueueState {
    fn default() -> Self {
        QueueState {
            process: ProcessIdentity::current(),
            relay: Arc::default(),
            told: PendingDriverWork::default(),
            signal: None,
            unfinished: BTreeMap::new(),
            unstarted: VecDeque::new(),
            next_number: 0,
            long: 0,
            remote: 0,
            buffered_bytes: 0,
        }
    }
}

impl QueueState {
    /// Resets the state in a child process: creates a relay without the parent's workers, and ends the requests of
    /// these workers as interrupted. If the parent ever had a worker, the unstarted requests also end as interrupted,
    /// because a lock that they need may stay locked in the child.
    fn renew(&mut self) {
        if workers_were_started() {
            self.unstarted.clear();
        }
        let kept = |number| self.unstarted.binary_search_by_key(number, |(unstarted, ..)| *unstarted).is_ok();
        let lost = self.unfinished.keys().filter(|number| !kept(number));
        let events = lost.map(|number| DrivingThreadEvent::Ended(*number, Err(parents())));
        let relay = CallbackRelay::with_events(events);
        self.unfinished.values_mut().for_each(|request| request.on_worker = RequestSchedulingClass::Quick);
        (self.relay, self.told) = (Arc::new(relay), PendingDriverWork::default());
        (self.process, self.signal) = (ProcessIdentity::current(), None);
        (self.long, self.remote, self.buffered_bytes) = (0, 0, 0);
        self.tell_demand();
    }

    fn has_room(&self, weight: RequestSchedulingClass) -> bool {
        match weight {
            RequestSchedulingClass::Quick | RequestSchedulingClass::Long => self.long < LONG_MAX,
            RequestSchedulingClass::Remote { buffered_bytes } => {
                let has_memory = buffered_bytes == 0
                    || self.buffered_bytes == 0
                    || self.buffered_bytes.saturating_add(buffered_bytes) <= BUFFERED_MAX_BYTES;
                self.remote < REMOTE_MAX && has_memory
            }
        }
    }

    fn is_startable(&self) -> bool {
        self.unstarted.front().is_some_and(|(_, weight, _)| self.has_room(*weight))
    }

    fn tell_demand(&mut self) {
        let is_unfinished = !self.unfinished.is_empty();
        let demand = PendingDriverWork { is_startable: self.is_startable(), is_unfinished };
        if self.told != demand {
            self.relay.demand(demand);
            self.told = demand;
        }
    }

    /// Counts a request that begins to run on a worker.
    fn count_begun(&mut self, weight: RequestSchedulingClass) {
        match weight {
            RequestSchedulingClass::Quick | RequestSchedulingClass::Long => self.long += 1,
            RequestSchedulingClass::Remote { buffered_bytes } => {
                self.remote += 1;
                self.buffered_bytes = self.buffered_bytes.saturating_add(buffered_bytes);
            }
        }
    }

    /// Undoes [`QueueState::count_begun`].
    fn count_ended(&mut self, weight: RequestSchedulingClass) {
        match weight {
            RequestSchedulingClass::Quick | RequestSchedulingClass::Long => self.long -= 1,
            RequestSchedulingClass::Remote { buffered_bytes } => {
                self.remote -= 1;
                self.buffered_bytes = self.buffered_bytes.saturating_sub(buffered_bytes);
            }
        }
    }

    /// Removes a request that has ended, and returns its responder.
    fn take(&mut self, number: RequestNumber) -> Option<CallbackResponder> {
        let UnfinishedRequest { responder, on_worker } = self.unfinished.remove(&number)?;
        if on_worker != RequestSchedulingClass::Quick {
            self.count_ended(on_worker);
        }
        self.tell_demand();
        Some(responder)
    }
}

fn parents() -> RequestFailure {
    let why = "the request belongs to the parent process; make it again in this process";
    RequestFailure::refused(Status::Interrupted, why)
}

impl RequestQueue {
    fn locked(&self) -> MutexGuard<'_, QueueState> {
        // The state is consistent after every change, so poisoning can be ignored.
        let mut state = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if !state.process.is_current() {
            state.renew();
        }
        state
    }

    /// Returns the number of requests whose completion has not been reported yet. Returns 0 while the context is being
    /// destroyed, so that a callback that drives the context does not wait for the other requests.
    pub(crate) fn unfinished(&self) -> usize {
        let state = self.locked();
        if state.relay.is_closed() { 0 } else { state.unfinished.len() }
    }

    /// Returns a descriptor for `select` that is readable if and only if the driver has work to do. Returns `None` if
    /// all requests are finished, or if the context is being destroyed. Errors: the system's error if no descriptor is
    /// available.
    pub(crate) fn signal(&self) -> std::io::Result<Option<RawFd>> {
        let mut state = self.locked();
        if state.unfinished.is_empty() || state.relay.is_closed() {
            return Ok(None);
        }
        if let Some(signal) = &state.signal {
            return Ok(Some(signal.as_raw_fd()));
        }
        let signal = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        state.relay.signal_by(Arc::downgrade(&signal));
        Ok(Some(state.signal.insert(signal).as_raw_fd()))
    }

    /// Returns whether the driver has work to do now.
    pub(crate) fn has_work(&self) -> bool {
        let relay = self.locked().relay.clone();
        relay.has_work()
    }

    fn add(&self, responder: CallbackResponder, weight: RequestSchedulingClass, work: RequestWork) {
        let mut state = self.locked();
        let number = state.next_number;
        state.next_number += 1;
        let on_worker = RequestSchedulingClass::Quick;
        state.unfinished.insert(number, UnfinishedRequest { responder, on_worker });
        state.unstarted.push_back((number, weight, work));
        state.tell_demand();
    }

    /// Does all work that can be done without waiting, but starts no further work after [`TURN_MAX`]. Errors: the
    /// caller is a callback of an unfinished request in the same context, or a callback that runs while the context is
    /// being destroyed.
    pub(crate) fn run_once(&self) -> RequestResult {
        let until = Instant::now() + TURN_MAX;
        self.run_while(|| Instant::now() < until)
    }

    /// Does all work that can be done without waiting. Errors: as for [`RequestQueue::run_once`].
    pub(crate) fn run_ready(&self) -> RequestResult {
        self.run_while(|| true)
    }

    /// Carries out all requests, including requests that callbacks add. Errors: as for [`RequestQueue::run_once`].
    pub(crate) fn run_all(&self) -> RequestResult {
        loop {
            self.run_ready()?;
            let relay = {
                let state = self.locked();
                if state.unfinished.is_empty() {
                    return Ok(());
                }
                state.relay.clone()
            };
            relay.wait();
        }
    }

    fn run_while(&self, may_go_on: impl Fn() -> bool) -> RequestResult {
        if CallbackFrame::is_in(self) {
            let why = "a callback of a request cannot drive the context that the request is in; use another context";
            return Err(RequestFailure::refused(Status::InternalError, why));
        }
        if self.is_being_destroyed() {
            let why = "the request context is being destroyed, so it cannot be driven; run it first";
            return Err(RequestFailure::refused(Status::Interrupted, why));
        }
        loop {
            // Starting requests and relaying events alternate. A long queue therefore does not delay events, and
            // frequent events do not delay the start of requests.
            let (has_started, has_relayed) = (self.start_next(), self.relay_next());
            if !(has_started || has_relayed) || !may_go_on() {
                return Ok(());
            }
        }
    }

    fn is_being_destroyed(&self) -> bool {
        let state = self.locked();
        state.relay.is_closed() && !state.unfinished.is_empty()
    }

    /// Starts the oldest unstarted request if the limit for its class permits this. Returns whether a request was
    /// started.
    fn start_next(&self) -> bool {
        let mut state = self.locked();
        if !state.is_startable() {
            return false;
        }
        let Some((number, weight, work)) = state.unstarted.pop_front() else { return false };
        state.tell_demand();
        match weight {
            RequestSchedulingClass::Quick => self.run_here(state, number, work),
            RequestSchedulingClass::Long | RequestSchedulingClass::Remote { .. } => {
                self.run_on_worker(state, number, weight, work)
            }
        }
        true
    }

    /// Carries out the request on this thread, but passes a step to a worker if the step would take too long.
    fn run_here(&self, state: MutexGuard<'_, QueueState>, number: RequestNumber, work: RequestWork) {
        let Some(request) = state.unfinished.get(&number) else { return };
        let responder = request.responder.on_driver(state.relay.clone());
        drop(state);
        let outcome = in_callbacks_of(self, || without_panic(|| work(&responder)));
        match (outcome, responder.take_rest()) {
            (Ok(()), Some(rest)) => {
                self.run_on_worker(self.locked(), number, RequestSchedulingClass::Long, rest)
            }
            (outcome, _) => self.finish(number, outcome),
        }
    }

    /// Assigns the request to a worker, or carries it out on this thread if no worker is available.
    fn run_on_worker(
        &self,
        mut state: MutexGuard<'_, QueueState>,
        number: RequestNumber,
        weight: RequestSchedulingClass,
        work: RequestWork,
    ) {
        let relay = state.relay.clone();
        let Some(request) = state.unfinished.get_mut(&number) else { return };
        request.on_worker = weight;
        let responder = request.responder.on_worker(relay.clone());
        state.count_begun(weight);
        state.tell_demand();
        drop(state);
        if let Err(WorkerJob { work, responder, .. }) = relay.assign(WorkerJob { number, responder, work }) {
            let responder = responder.on_driver(relay);
            let work = || {
                work(&responder)?;
                responder.take_rest().map_or(Ok(()), |rest| rest(&responder))
            };
            let outcome = in_callbacks_of(self, || without_panic(work));
            self.finish(number, outcome);
        }
    }

    /// Handles the oldest event: runs a callback or reports the end of a request. Returns whether there was an event.
    fn relay_next(&self) -> bool {
        let relay = self.locked().relay.clone();
        let Some(event) = relay.next_event() else { return false };
        match event {
            DrivingThreadEvent::Callback(waiting) => in_callbacks_of(self, || waiting.run()),
            DrivingThreadEvent::Ended(number, outcome) => self.finish(number, outcome),
        }
        true
    }

    fn finish(&self, number: RequestNumber, outcome: RequestResult) {
        // If the request is no longer in the queue, the context has been destroyed, and the request's completion has
        // already been reported.
        let responder = self.locked().take(number);
        if let Some(responder) = responder {
            responder.complete(outcome);
        }
    }

    /// Ends all requests as interrupted, in order of arrival, and then the requests that callbacks have added in the
    /// meantime. If callbacks of these added requests add further requests, the further requests are dropped without a
    /// callback, because a program that repeats every interrupted request would never stop adding requests. Afterwards,
    /// no other callback runs.
    pub(crate) fn interrupt(&self) {
        let relay = self.locked().relay.clone();
        relay.close();
        self.end_added();
        self.end_added();
        let dropped = {
            let mut state = self.locked();
            let dropped = (std::mem::take(&mut state.unfinished), std::mem::take(&mut state.unstarted));
            state.tell_demand();
            dropped
        };
        if !dropped.0.is_empty() {
            tracing::debug!(
                count = dropped.0.len(),
                "requests were added to a destroyed context; dropped them"
            );
        }
    }

    /// Ends the requests that have been added before this call as interrupted.
    fn end_added(&self) {
        let end = self.locked().next_number;
        loop {
            let first = {
                let mut state = self.locked();
                let first = state.unfinished.keys().next().copied().filter(|number| *number < end);
                state.unstarted.clear();
                first.and_then(|number| state.take(number))
            };
            // No lock is held while a callback runs.
            let Some(responder) = first else { return };
            responder.complete(Err(interrupted()));
        }
    }
}

thread_local! {
    /// The innermost frame of this thread, or NULL. The variable has no destructor, because exit handlers may still
    /// drive contexts when a thread's destructors have run.
    static INNERMOST: Cell<*const CallbackFrame> = const { Cell::new(ptr::null()) };
}

/// Marks the part of a thread's stack in which callbacks of unfinished requests of `queue` run.
struct CallbackFrame {
    queue: *const RequestQueue,
    /// The enclosing frame, which belongs to another context, or NULL.
    outer: *const CallbackFrame,
}

impl CallbackFrame {
    /// Returns whether this thread is in a callback of an unfinished request of `queue`.
    fn is_in(queue: &RequestQueue) -> bool {
        let mut frame = INNERMOST.get();
        // SAFETY: a frame is on this thread's stack, and `in_callbacks_of` unlinks the frame before its end.
        while let Some(CallbackFrame { queue: within, outer }) = unsafe { frame.as_ref() } {
            if ptr::eq(*within, queue) {
                return true;
            }
            frame = *outer;
        }
        false
    }
}

/// Runs `work`, in which callbacks of unfinished requests of `queue` may run.
fn in_callbacks_of<T>(queue: &RequestQueue, work: impl FnOnce() -> T) -> T {
    /// Unlinks the innermost frame, even if `work` panics.
    struct FrameGuard(*const CallbackFrame);
    impl Drop for FrameGuard {
        fn drop(&mut self) {
            INNERMOST.set(self.0);
        }
    }
    let frame = CallbackFrame { queue, outer: INNERMOST.get() };
    let _unlinked = FrameGuard(frame.outer);
    INNERMOST.set(&frame);
    work()
}

/// Checks a request with `prepare`, and then carries out the request immediately or adds it to `context`.
///
/// # Safety
/// `context` is NULL, or was created by `S3_create_request_context` and has not been destroyed.
#[inline]
pub(crate) unsafe fn submit<Work>(
    context: *const RequestContext,
    responder: CallbackResponder,
    prepare: impl FnOnce() -> RequestResult<(RequestSchedulingClass, Work)>,
) where
    Work: FnOnce(&CallbackResponder) -> RequestResult + 'static,
{
    // SAFETY: the caller guarantees that `context` is NULL or has not been destroyed.
    let Some(context) = (unsafe { context.as_ref() }) else {
        return responder.run(|responder| prepare()?.1(responder));
    };
    match without_panic(prepare) {
        Ok((weight, work)) => context.0.add(responder, weight, Box::new(work)),
        Err(failure) => responder.complete(Err(failure)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uploads_that_buffer_their_content_wait_for_memory() {
        let mut state = QueueState::default();
        let [small, half, huge] = [1 << 20, BUFFERED_MAX_BYTES / 2, 8 * BUFFERED_MAX_BYTES]
            .map(|buffered_bytes| RequestSchedulingClass::Remote { buffered_bytes });
        assert!(state.has_room(huge));
        state.count_begun(half);
        assert!(state.has_room(half) && !state.has_room(huge));
        state.count_begun(half);
        assert!(!state.has_room(small));
        assert!(state.has_room(RequestSchedulingClass::of(false, u64::MAX)));
        state.count_ended(half);
        assert!(state.has_room(small));
        state.count_ended(half);
        assert!(state.has_room(huge));
        state.count_begun(huge);
        assert!(!state.has_room(small));
        state.count_ended(huge);
        assert_eq!((state.remote, state.buffered_bytes), (0, 0));
    }
}
