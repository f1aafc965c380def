//! Requests in progress on one connection.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::rt::Executor;
use tokio::time::{Instant, Sleep, sleep_until};

/// How many times as long as a quiet connection a request is waited for while others on its connection
/// move: they may have the whole of a slow link.
const PATIENCE_AMONG_OTHERS: u32 = 10;

/// Starts what serves a request, on the thread of its connection, and ends it where it does not move.
#[derive(Clone)]
pub(super) struct Streams {
    all: Arc<All>,
    stall_timeout: Duration,
}

/// What the requests of a connection have in common.
struct All {
    open: AtomicUsize,
    started: Instant,
    /// When one of them last moved, in ms after `started`.
    moved_ms: AtomicU64,
}

impl Streams {
    pub(super) fn new(stall_timeout: Duration) -> Self {
        let all = All { open: AtomicUsize::new(0), started: Instant::now(), moved_ms: AtomicU64::new(0) };
        Streams { all: Arc::new(all), stall_timeout }
    }

    /// Whether there are any.
    pub(super) fn are_open(&self) -> bool {
        self.all.open.load(Ordering::Relaxed) > 0
    }
}

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Streams {
    fn execute(&self, request: F) {
        self.all.open.fetch_add(1, Ordering::Relaxed);
        let open = Open(self.all.clone());
        let (request, stall_timeout) = (Box::pin(request), self.stall_timeout);
        tokio::spawn(Moving { request, timer: None, moved: self.all.started, stall_timeout, open });
    }
}

/// Counted as long as it is there.
struct Open(Arc<All>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A request that ends, and with it its stream, when nothing was sent or taken for too long: neither
/// of its body nor of the answer's.
struct Moving<F> {
    request: Pin<Box<F>>,
    timer: Option<Pin<Box<Sleep>>>,
    moved: Instant,
    stall_timeout: Duration,
    open: Open,
}

enum Timer {
    Over,
    /// Others on the connection have moved since.
    Extended,
}

impl<F> Moving<F> {
    /// Notes that it moved, and sets the timer anew.
    fn note(&mut self) -> &mut Pin<Box<Sleep>> {
        self.moved = Instant::now();
        let all = &self.open.0;
        let moved_ms = self.moved.duration_since(all.started).as_millis() as u64;
        all.moved_ms.store(moved_ms, Ordering::Relaxed);
        let deadline = self.moved + self.stall_timeout;
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        timer.as_mut().reset(deadline);
        timer
    }

    /// Ready when the timer fired: whether it has not moved for too long, or is waited for on.
    fn poll_timer(&mut self, context: &mut Context<'_>) -> Poll<Timer> {
        let Some(timer) = &mut self.timer else { return Poll::Pending };
        ready!(timer.as_mut().poll(context));
        loop {
            let all = &self.open.0;
            let last = all.started + Duration::from_millis(all.moved_ms.load(Ordering::Relaxed));
            let patience = self.moved + PATIENCE_AMONG_OTHERS * self.stall_timeout;
            let deadline = patience.min(last + self.stall_timeout);
            if deadline <= Instant::now() {
                return Poll::Ready(Timer::Over);
            }
            timer.as_mut().reset(deadline);
            if timer.as_mut().poll(context).is_pending() {
                return Poll::Ready(Timer::Extended);
            }
        }
    }
}

impl<F: Future<Output = ()>> Future for Moving<F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let timer = self.poll_timer(context);
        if let Poll::Ready(Timer::Over) = timer {
            tracing::debug!("a request on an HTTP/2 connection did not move for {:?}", self.stall_timeout);
            return Poll::Ready(());
        }
        if self.request.as_mut().poll(context).is_ready() {
            return Poll::Ready(());
        }
        match timer {
            // It was looked at because of the timer: that is no movement.
            Poll::Ready(_) => Poll::Pending,
            Poll::Pending => self.note().as_mut().poll(context),
        }
    }
}
