//! Request contexts: requests that the program drives.
//!
//! A request that is given a context is checked and copied at once, and begun by the next call of one of the `run`
//! functions. Requests to other machines are carried out at the same time, by workers; those for local files one after the
//! other by the caller, as long as each takes a moment only. All callbacks run on the thread that drives the context.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use fordway_sys::ProcessIdentity;
use rustix::event::{EventfdFlags, eventfd};

use super::response::{Outcome, QUICK_MAX_BYTES, RequestFailure};
use crate::relay::{
    CallbackRelay, DriverDemand, RelayEvent, RequestNumber, RequestWork, WorkerJob, interrupted,
    workers_were_started,
};
use crate::response::{CallbackResponder, without_panic};
use crate::status::Status;

/// How long one call of `S3_runonce_request_context` begins something further.
const TURN_MAX: Duration = Duration::from_millis(1);
/// The most requests to other machines that a context has under way: each has a thread.
const REMOTE_MAX: usize = 256;
/// The most requests for local files that a context has under way on threads. More would not make the disk faster.
const LONG_MAX: usize = 8;

/// What carrying out a request means for the thread that does it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestWeight {
    /// A moment, for local files: less than handing it to another thread takes.
    Quick,
    /// More than that, for local files.
    Long,
    /// Waiting for another machine or process.
    Remote,
}

impl RequestWeight {
    /// Of a request that moves `bytes` of content, to or from files of this node if it `is_local`.
    pub(crate) const fn of(is_local: bool, bytes: u64) -> Self {
        match is_local {
            true if bytes <= QUICK_MAX_BYTES => RequestWeight::Quick,
            true => RequestWeight::Long,
            false => RequestWeight::Remote,
        }
    }
}

/// `S3RequestContext`, which C knows by its address only.
pub struct RequestContext(Arc<RequestQueue>);

impl RequestContext {
    /// An empty one. Costs no thread and no descriptor.
    pub(crate) fn new() -> Self {
        RequestContext(Arc::new(RequestQueue(Mutex::new(QueueState::default()))))
    }

    /// What is behind it; it outlives the context if a callback destroys that.
    pub(crate) fn queue(&self) -> Arc<RequestQueue> {
        self.0.clone()
    }
}

/// The requests of a context.
pub(crate) struct RequestQueue(Mutex<QueueState>);

/// Only threads of the program touch it, so no thread that a child process lacks can hold its lock.
struct QueueState {
    process: ProcessIdentity,
    relay: Arc<CallbackRelay>,
    /// What the relay was told last.
    told: DriverDemand,
    signal: Option<Arc<OwnedFd>>,
    /// Who is told the end, in the order in which they came.
    unfinished: BTreeMap<RequestNumber, UnfinishedRequest>,
    unstarted: VecDeque<(RequestNumber, RequestWeight, RequestWork)>,
    next_number: RequestNumber,
    /// Requests on workers.
    long: usize,
    remote: usize,
}

// SAFETY: what may not change threads by itself are the program's pointers, which any thread of the program may use that
// drives the context or adds to it.
unsafe impl Send for QueueState {}

struct UnfinishedRequest {
    responder: CallbackResponder,
    /// `Quick` for what no worker has.
    on_worker: RequestWeight,
}

impl Default for QueueState {
    fn default() -> Self {
        QueueState {
            process: ProcessIdentity::current(),
            relay: Arc::default(),
            told: DriverDemand::default(),
            signal: None,
            unfinished: BTreeMap::new(),
            unstarted: VecDeque::new(),
            next_number: 0,
            long: 0,
            remote: 0,
        }
    }
}

impl QueueState {
    /// In a child process: a relay without the workers of the parent, whose requests end here as interrupted.
    fn renew(&mut self) {
        if workers_were_started() {
            self.unstarted.clear();
        }
        let kept = |number| self.unstarted.binary_search_by_key(number, |(unstarted, ..)| *unstarted).is_ok();
        let lost = self.unfinished.keys().filter(|number| !kept(number));
        let events = lost.map(|number| RelayEvent::Ended(*number, Err(parents())));
        let relay = CallbackRelay::with_events(events);
        self.unfinished.values_mut().for_each(|request| request.on_worker = RequestWeight::Quick);
        (self.relay, self.told) = (Arc::new(relay), DriverDemand::default());
        (self.process, self.signal, self.long, self.remote) = (ProcessIdentity::current(), None, 0, 0);
        self.tell_demand();
    }

    fn has_room(&self, weight: RequestWeight) -> bool {
        match weight {
            RequestWeight::Quick | RequestWeight::Long => self.long < LONG_MAX,
            RequestWeight::Remote => self.remote < REMOTE_MAX,
        }
    }

    fn is_startable(&self) -> bool {
        self.unstarted.front().is_some_and(|(_, weight, _)| self.has_room(*weight))
    }

    fn tell_demand(&mut self) {
        let is_unfinished = !self.unfinished.is_empty();
        let demand = DriverDemand { is_startable: self.is_startable(), is_unfinished };
        if self.told != demand {
            self.relay.demand(demand);
            self.told = demand;
        }
    }

    fn count(&mut self, weight: RequestWeight) -> &mut usize {
        match weight {
            RequestWeight::Quick | RequestWeight::Long => &mut self.long,
            RequestWeight::Remote => &mut self.remote,
        }
    }

    /// Forgets a request that has ended.
    fn take(&mut self, number: RequestNumber) -> Option<CallbackResponder> {
        let UnfinishedRequest { responder, on_worker } = self.unfinished.remove(&number)?;
        if on_worker != RequestWeight::Quick {
            *self.count(on_worker) -= 1;
        }
        self.tell_demand();
        Some(responder)
    }
}

fn parents() -> RequestFailure {
    let why = "the request is the parent process's; make it again in this one";
    RequestFailure::refused(Status::Interrupted, why)
}

impl RequestQueue {
    fn locked(&self) -> MutexGuard<'_, QueueState> {
        // It is whole after every change, whatever panicked since.
        let mut state = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if !state.process.is_current() {
            state.renew();
        }
        state
    }

    /// The requests whose end was not told yet.
    pub(crate) fn unfinished(&self) -> usize {
        self.locked().unfinished.len()
    }

    /// What `select` may wait for: a descriptor that is readable exactly when there is something to do for the driver. `None`
    /// if nothing is unfinished. Errors: the system's, if it has no descriptor left.
    pub(crate) fn signal(&self) -> std::io::Result<Option<RawFd>> {
        let mut state = self.locked();
        if state.unfinished.is_empty() {
            return Ok(None);
        }
        if let Some(signal) = &state.signal {
            return Ok(Some(signal.as_raw_fd()));
        }
        let signal = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        state.relay.signal_by(Arc::downgrade(&signal));
        Ok(Some(state.signal.insert(signal).as_raw_fd()))
    }

    /// Whether there is something to do for the driver now.
    pub(crate) fn has_work(&self) -> bool {
        let relay = self.locked().relay.clone();
        relay.has_work()
    }

    fn add(&self, responder: CallbackResponder, weight: RequestWeight, work: RequestWork) {
        let mut state = self.locked();
        let number = state.next_number;
        state.next_number += 1;
        let on_worker = RequestWeight::Quick;
        state.unfinished.insert(number, UnfinishedRequest { responder, on_worker });
        state.unstarted.push_back((number, weight, work));
        state.tell_demand();
    }

    /// Does what there is to do now, without waiting; after [`TURN_MAX`] it begins nothing further.
    /// Errors: a callback of an unfinished request of the same context calls it.
    pub(crate) fn run_once(&self) -> Outcome {
        let until = Instant::now() + TURN_MAX;
        self.run_while(|| Instant::now() < until)
    }

    /// Does what there is to do now, without waiting. Errors: as [`RequestQueue::run_once`].
    pub(crate) fn run_ready(&self) -> Outcome {
        self.run_while(|| true)
    }

    /// Carries out all requests, and those that callbacks add. Errors: as [`RequestQueue::run_once`].
    pub(crate) fn run_all(&self) -> Outcome {
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

    fn run_while(&self, may_go_on: impl Fn() -> bool) -> Outcome {
        if CallbackScope::is_in(self) {
            let why = "a callback of a request cannot drive the context that the request is in; use another context";
            return Err(RequestFailure::refused(Status::InternalError, why));
        }
        loop {
            // By turns, so that neither a long queue nor a busy server holds up the other.
            let (has_started, has_relayed) = (self.start_next(), self.relay_next());
            if !(has_started || has_relayed) || !may_go_on() {
                return Ok(());
            }
        }
    }

    /// Begins the request that came first, if there is room; says whether there was one.
    fn start_next(&self) -> bool {
        let mut state = self.locked();
        if !state.is_startable() {
            return false;
        }
        let Some((number, weight, work)) = state.unstarted.pop_front() else { return false };
        state.tell_demand();
        match weight {
            RequestWeight::Quick => self.run_here(state, number, work),
            RequestWeight::Long | RequestWeight::Remote => self.run_on_worker(state, number, weight, work),
        }
        true
    }

    /// Carries the request out on this thread, except for what of it takes long.
    fn run_here(&self, state: MutexGuard<'_, QueueState>, number: RequestNumber, work: RequestWork) {
        let Some(request) = state.unfinished.get(&number) else { return };
        let responder = request.responder.on_driver(state.relay.clone());
        drop(state);
        let outcome = {
            let _scope = CallbackScope::enter(self);
            without_panic(|| work(&responder))
        };
        match (outcome, responder.take_rest()) {
            (Ok(()), Some(rest)) => self.run_on_worker(self.locked(), number, RequestWeight::Long, rest),
            (outcome, _) => self.finish(number, outcome),
        }
    }

    /// Leaves the request to a worker, or carries it out on this thread where there is none.
    fn run_on_worker(
        &self,
        mut state: MutexGuard<'_, QueueState>,
        number: RequestNumber,
        weight: RequestWeight,
        work: RequestWork,
    ) {
        let relay = state.relay.clone();
        let Some(request) = state.unfinished.get_mut(&number) else { return };
        request.on_worker = weight;
        let responder = request.responder.on_worker(relay.clone());
        *state.count(weight) += 1;
        state.tell_demand();
        drop(state);
        if let Err(WorkerJob { work, responder, .. }) = relay.assign(WorkerJob { number, responder, work }) {
            let responder = responder.on_driver(relay);
            let _scope = CallbackScope::enter(self);
            let outcome = without_panic(|| {
                work(&responder)?;
                responder.take_rest().map_or(Ok(()), |rest| rest(&responder))
            });
            drop(_scope);
            self.finish(number, outcome);
        }
    }

    /// Runs the callback, or tells the end, that has waited longest; says whether there was one.
    fn relay_next(&self) -> bool {
        let relay = self.locked().relay.clone();
        let Some(event) = relay.next_event() else { return false };
        match event {
            RelayEvent::Callback(waiting) => {
                let _scope = CallbackScope::enter(self);
                waiting.run();
            }
            RelayEvent::Ended(number, outcome) => self.finish(number, outcome),
        }
        true
    }

    fn finish(&self, number: RequestNumber, outcome: Outcome) {
        // Without it, the context was destroyed, and the end was told.
        let responder = self.locked().take(number);
        if let Some(responder) = responder {
            responder.complete(outcome);
        }
    }

    /// Ends all requests as interrupted, in the order in which they came. No other callback runs from now on.
    pub(crate) fn interrupt(&self) {
        let relay = self.locked().relay.clone();
        relay.close();
        loop {
            let first = {
                let mut state = self.locked();
                let first = state.unfinished.keys().next().copied();
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
    /// The queues that have a callback of an unfinished request on this thread's stack.
    static IN_CALLBACK: RefCell<Vec<*const RequestQueue>> = const { RefCell::new(Vec::new()) };
}

/// While it lives, this thread is in a callback of an unfinished request, or may be.
struct CallbackScope;

impl CallbackScope {
    fn enter(queue: &RequestQueue) -> Self {
        IN_CALLBACK.with_borrow_mut(|queues| queues.push(queue));
        CallbackScope
    }

    fn is_in(queue: &RequestQueue) -> bool {
        IN_CALLBACK.with_borrow(|queues| queues.contains(&std::ptr::from_ref(queue)))
    }
}

impl Drop for CallbackScope {
    fn drop(&mut self) {
        IN_CALLBACK.with_borrow_mut(|queues| queues.pop());
    }
}

/// Checks a request by `prepare`, then carries it out at once, or leaves it to `context`.
///
/// # Safety
/// `context` is NULL or was made by `S3_create_request_context` and not yet destroyed.
#[inline]
pub(crate) unsafe fn submit<Work>(
    context: *const RequestContext,
    responder: CallbackResponder,
    prepare: impl FnOnce() -> Outcome<(RequestWeight, Work)>,
) where
    Work: FnOnce(&CallbackResponder) -> Outcome + 'static,
{
    // SAFETY: the caller vouches for it.
    let Some(context) = (unsafe { context.as_ref() }) else {
        return responder.run(|responder| prepare()?.1(responder));
    };
    match without_panic(prepare) {
        Ok((weight, work)) => context.0.add(responder, weight, Box::new(work)),
        Err(failure) => responder.complete(Err(failure)),
    }
}
