//! A connection that can go on on another thread.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use super::{Pool, STAYS};

pub(super) type Connection = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A connection as a task of one thread. Where it is to leave, the task ends and another thread has a
/// new one. What the connection waits for still comes by its first thread, until it settles its socket.
pub(super) struct Movable {
    /// `None` once it has left.
    connection: Option<Connection>,
    pool: Arc<Pool>,
    at: usize,
    stays: bool,
}

impl Movable {
    /// The connection is counted as one of `at` already.
    pub(super) fn new(connection: Connection, pool: Arc<Pool>, at: usize) -> Self {
        Movable { connection: Some(connection), pool, at, stays: false }
    }
}

impl Future for Movable {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.pool.is_to_leave(self.at, self.stays) {
            if let Some(connection) = self.connection.take() {
                self.pool.put(connection, Some(self.at));
            }
            return Poll::Ready(());
        }
        let Some(connection) = &mut self.connection else { return Poll::Ready(()) };
        STAYS.set(false);
        let polled = connection.as_mut().poll(context);
        self.stays |= STAYS.get();
        polled
    }
}

impl Drop for Movable {
    fn drop(&mut self) {
        if self.connection.is_some() {
            self.pool.workers[self.at].connections.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
