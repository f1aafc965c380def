//! Batches that run in the background, on shared connections. There is no extra thread. A thread that waits for one
//! batch drives all batches.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fordway_store::{Error, ErrorKind, Result};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd};

use super::batch::FragmentBatch;
use super::engine::BatchEngine;
use super::open::UnconsumedResponse;
use super::request::BatchId;
use super::sink::BatchMemory;
use super::source::RemoteFileSource;

/// Batches in flight, shared between threads.
pub(super) struct InFlightBatches {
    source: Arc<RemoteFileSource>,
    state: Mutex<InFlightBatchState>,
    /// Signals that a batch has ended, or that no thread is driving the engine any longer.
    changed: Condvar,
}

#[derive(Default)]
struct InFlightBatchState {
    next_id: BatchId,
    /// The engine; `None` while a thread is driving it.
    engine: Option<BatchEngine<BatchMemory>>,
    is_driven: bool,
    /// Batches submitted while a thread was driving the engine.
    submitted: Vec<(BatchId, FragmentBatch<BatchMemory>)>,
    /// Batches cancelled while a thread was driving the engine; that thread passes the cancellations to the engine.
    cancelled: Vec<CancelScope>,
    ended: HashMap<BatchId, Result<BatchMemory>>,
    /// Wakes the driving thread; created when first needed.
    bell: Option<Arc<OwnedFd>>,
}

/// The batches to cancel.
#[derive(Clone, Copy)]
enum CancelScope {
    One(BatchId),
    All,
}

impl InFlightBatches {
    pub(super) fn new(source: Arc<RemoteFileSource>) -> Self {
        InFlightBatches { source, state: Mutex::default(), changed: Condvar::new() }
    }

    /// Adds a batch, and sends as many of its requests as possible without blocking.
    pub(super) fn submit(&self, batch: FragmentBatch<BatchMemory>) -> BatchId {
        let mut state = self.locked();
        let id = state.next_id();
        if state.is_driven {
            state.submitted.push((id, batch));
            state.ring();
            return id;
        }
        state.move_engine(&self.source, |engine| engine.add(id, batch));
        id
    }

    /// Adds the first batch, whose first response is already arriving, and sends its other requests.
    pub(super) fn begin(&self, batch: FragmentBatch<BatchMemory>, begun: UnconsumedResponse) -> BatchId {
        let mut state = self.locked();
        let id = state.next_id();
        state.move_engine(&self.source, |engine| engine.begin(id, batch, begun));
        id
    }

    /// Returns whether the batch has ended. The call itself neither sends nor receives anything.
    pub(super) fn has_ended(&self, id: BatchId) -> bool {
        self.locked().ended.contains_key(&id)
    }

    /// Returns whether no batch is in flight.
    pub(super) fn is_idle(&self) -> bool {
        let state = self.locked();
        !state.is_driven
            && state.submitted.is_empty()
            && state.engine.as_ref().is_none_or(BatchEngine::is_idle)
    }

    /// Cancels a batch, whether it has ended or not. Afterwards, nothing is written to the batch's memory.
    pub(super) fn cancel(&self, id: BatchId) {
        self.give_up(CancelScope::One(id));
    }

    /// Cancels all batches; threads that are waiting for one of them get an error.
    pub(super) fn cancel_all(&self) {
        self.give_up(CancelScope::All);
    }

    fn give_up(&self, which: CancelScope) {
        let mut state = self.locked();
        match which {
            CancelScope::One(id) => {
                let is_over = state.ended.remove(&id).is_some();
                let before = state.submitted.len();
                state.submitted.retain(|(submitted, _)| *submitted != id);
                if is_over || state.submitted.len() < before {
                    return;
                }
            }
            CancelScope::All => {
                state.ended.clear();
                state.submitted.clear();
            }
        }
        if let Some(engine) = &mut state.engine {
            which.tell(engine);
            return;
        }
        // The driving thread owns the engine, and therefore the memory of the batches. Wait until that thread has
        // cancelled the batches.
        state.cancelled.push(which);
        state.ring();
        while state.is_driven && !state.cancelled.is_empty() {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits until a batch has ended. Errors: the batch's failure.
    pub(super) fn wait(&self, id: BatchId) -> Result<BatchMemory> {
        self.wait_for(id, None);
        self.locked().ended.remove(&id).unwrap_or_else(|| {
            Err(Error::new(
                ErrorKind::InvalidArgument,
                "no read has that ticket: it was cancelled, or belongs to another file",
            ))
        })
    }

    /// Waits until a batch has ended or `limit` is reached; returns whether the batch has ended.
    pub(super) fn wait_until(&self, id: BatchId, limit: Instant) -> bool {
        self.wait_for(id, Some(limit))
    }

    fn wait_for(&self, id: BatchId, limit: Option<Instant>) -> bool {
        let mut state = self.locked();
        loop {
            if state.ended.contains_key(&id) {
                return true;
            }
            let left = limit.map(|limit| limit.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return false;
            }
            if state.is_driven {
                let left = left.unwrap_or(Duration::MAX);
                let waited = self.changed.wait_timeout(state, left);
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
                continue;
            }
            let Some(mut engine) = state.engine.take_if(|engine| engine.has(id)) else { return true };
            state.is_driven = true;
            drop(state);
            self.drive(&mut engine, id, limit);
            state = self.locked();
            // Before another thread takes over, send the batches submitted since the last exchange.
            if state.hand_over(&mut engine) {
                engine.turn();
            }
            (state.engine, state.is_driven) = (Some(engine), false);
            self.changed.notify_all();
        }
    }

    /// Drives all batches until batch `id` has ended, or until `limit`.
    fn drive(&self, engine: &mut BatchEngine<BatchMemory>, id: BatchId, limit: Option<Instant>) {
        loop {
            let goes_on = engine.turn();
            let (has_new, bell) = self.exchange(engine);
            if !engine.has(id) {
                return;
            }
            if limit.is_some_and(|limit| limit <= Instant::now()) {
                return;
            }
            if goes_on || has_new {
                continue;
            }
            let ringing = bell.as_ref().map(|bell| PollFd::from_borrowed_fd(bell.as_fd(), PollFlags::IN));
            let rings = engine.wait(ringing, limit);
            if let Some(bell) = bell.as_ref().filter(|_| rings) {
                // The value is irrelevant, because it only signals that there are batches to fetch.
                let _not_rung = rustix::io::read(bell, &mut [0; 8]);
            }
        }
    }

    /// Publishes the results of ended batches, and fetches submitted batches; returns whether any submitted batches
    /// were fetched.
    fn exchange(&self, engine: &mut BatchEngine<BatchMemory>) -> (bool, Option<Arc<OwnedFd>>) {
        let ended = engine.take_ended();
        let mut state = self.locked();
        if !ended.is_empty() {
            state.ended.extend(ended);
            self.changed.notify_all();
        }
        if !state.cancelled.is_empty() {
            self.changed.notify_all();
        }
        let has_new = state.hand_over(engine);
        let made = || eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).ok().map(Arc::new);
        if state.bell.is_none() {
            state.bell = made();
        }
        (has_new, state.bell.clone())
    }

    fn locked(&self) -> MutexGuard<'_, InFlightBatchState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CancelScope {
    fn tell(self, engine: &mut BatchEngine<BatchMemory>) {
        match self {
            CancelScope::One(id) => engine.cancel(id),
            CancelScope::All => engine.cancel_all(),
        }
    }
}

impl InFlightBatchState {
    fn next_id(&mut self) -> BatchId {
        self.next_id += 1;
        self.next_id - 1
    }

    /// Passes batches or cancellations to the engine while no thread is driving it, and lets the engine make as much
    /// progress as possible without blocking.
    fn move_engine(
        &mut self,
        source: &Arc<RemoteFileSource>,
        tell: impl FnOnce(&mut BatchEngine<BatchMemory>),
    ) {
        let engine = self.engine.get_or_insert_with(|| BatchEngine::new(source.clone()));
        tell(engine);
        engine.turn();
        let ended = engine.take_ended();
        self.ended.extend(ended);
    }

    /// Passes submitted and cancelled batches to the engine; returns whether any were submitted.
    fn hand_over(&mut self, engine: &mut BatchEngine<BatchMemory>) -> bool {
        if !self.cancelled.is_empty() {
            self.ended.extend(engine.take_ended());
        }
        for which in self.cancelled.drain(..) {
            match which {
                CancelScope::One(id) => drop(self.ended.remove(&id)),
                CancelScope::All => self.ended.clear(),
            }
            which.tell(engine);
        }
        let has_new = !self.submitted.is_empty();
        self.submitted.drain(..).for_each(|(id, batch)| engine.add(id, batch));
        has_new
    }

    fn ring(&self) {
        if let Some(bell) = &self.bell {
            // The write can fail only if the counter is full, and one signal is enough.
            let _rung = rustix::io::write(bell, &1_u64.to_ne_bytes());
        }
    }
}
