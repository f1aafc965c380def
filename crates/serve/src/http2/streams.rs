//! Requests in progress on one connection.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::rt::Executor;
use tokio::time::{Instant, Sleep, sleep};

/// Starts what serves a request, on the thread of its connection, and ends it where it does not move.
#[derive(Clone)]
pub(super) struct Streams {
    open: Arc<AtomicUsize>,
    stall_timeout: Duration,
}

impl Streams {
    pub(super) fn new(stall_timeout: Duration) -> Self {
        Streams { open: Arc::default(), stall_timeout }
    }

    /// Whether there are any.
    pub(super) fn are_open(&self) -> bool {
        self.open.load(Ordering::Relaxed) > 0
    }
}

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Streams {
    fn execute(&self, request: F) {
        self.open.fetch_add(1, Ordering::Relaxed);
        let open = Open(self.open.clone());
        let stall_timeout = self.stall_timeout;
        tokio::spawn(Moving { request: Box::pin(request), timer: None, stall_timeout, _open: open });
    }
}

/// Counted as long as it is there.
struct Open(Arc<AtomicUsize>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A request that ends, and with it its stream, when nothing was sent or taken for too long: neither
/// of its body nor of the answer's.
struct Moving<F> {
    request: Pin<Box<F>>,
    timer: Option<Pin<Box<Sleep>>>,
    stall_timeout: Duration,
    _open: Open,
}

impl<F: Future<Output = ()>> Future for Moving<F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let stall_timeout = self.stall_timeout;
        if self.timer.as_mut().is_some_and(|timer| timer.as_mut().poll(context).is_ready()) {
            tracing::debug!("a request on an HTTP/2 connection did not move for {stall_timeout:?}");
            return Poll::Ready(());
        }
        if self.request.as_mut().poll(context).is_ready() {
            return Poll::Ready(());
        }
        match &mut self.timer {
            Some(timer) => {
                timer.as_mut().reset(Instant::now() + stall_timeout);
                Poll::Pending
            }
            none => none.insert(Box::pin(sleep(stall_timeout))).as_mut().poll(context),
        }
    }
}
