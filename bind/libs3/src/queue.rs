//! Request contexts: requests that wait until the program drives them.
//!
//! A request that is given a context is checked and copied at once, and carried out by the caller of
//! one of the `run` functions. There is always something to do while anything waits, so the
//! descriptor given for `select` is ready then, and the time to wait is nothing.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, MutexGuard};

use rustix::event::{EventfdFlags, eventfd};

use super::response::{Outcome, RequestFailure};
use crate::response::{CallbackResponder, without_panic};
use crate::status::Status;

/// `S3RequestContext`, which C knows by its address only.
pub struct RequestContext {
    waiting: Mutex<VecDeque<QueuedRequest>>,
    /// Always ready to be read.
    ready: OwnedFd,
}

struct QueuedRequest {
    responder: CallbackResponder,
    work: Box<dyn FnOnce(&CallbackResponder) -> Outcome>,
}

impl RequestContext {
    /// An empty one. Errors: the system's, if it has no descriptor left.
    pub(crate) fn new() -> std::io::Result<Self> {
        let ready = eventfd(1, EventfdFlags::CLOEXEC)?;
        Ok(RequestContext { waiting: Mutex::default(), ready })
    }

    pub(crate) fn waiting(&self) -> usize {
        self.queue().len()
    }

    /// What to wait for in `select`; `None` if nothing waits here.
    pub(crate) fn ready_fd(&self) -> Option<RawFd> {
        (self.waiting() > 0).then(|| self.ready.as_raw_fd())
    }

    /// Carries out the request that came first; says whether there was one.
    pub(crate) fn run_one(&self) -> bool {
        // No lock is held while a callback may add to the queue.
        let first = self.queue().pop_front();
        let ran = first.is_some();
        if let Some(QueuedRequest { responder, work }) = first {
            responder.run(work);
        }
        ran
    }

    /// Ends all that waits, without carrying it out.
    pub(crate) fn interrupt(&self) {
        loop {
            let first = self.queue().pop_front();
            let Some(QueuedRequest { responder, .. }) = first else { return };
            let why = "the request context was destroyed before the request ran; run it first";
            responder.complete(Err(RequestFailure::refused(Status::Interrupted, why)));
        }
    }

    fn queue(&self) -> MutexGuard<'_, VecDeque<QueuedRequest>> {
        // A queue is whole after every push or pop, whatever panicked since.
        self.waiting.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
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
    prepare: impl FnOnce() -> Outcome<Work>,
) where
    Work: FnOnce(&CallbackResponder) -> Outcome + 'static,
{
    // SAFETY: the caller vouches for it.
    let Some(context) = (unsafe { context.as_ref() }) else {
        return responder.run(|responder| prepare()?(responder));
    };
    match without_panic(|| prepare().map(Box::new)) {
        Ok(work) => context.queue().push_back(QueuedRequest { responder, work }),
        Err(failure) => responder.complete(Err(failure)),
    }
}
