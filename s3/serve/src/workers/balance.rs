//! Decides how many threads a load needs, and moves connections to other threads.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use crate::workers::{STAYS, ServingThreadPoolState};

/// The interval at which the load is measured while there are connections.
const TICK: Duration = Duration::from_millis(100);
/// The fraction of time for which the threads must be busy before another thread is added.
const FULL: f64 = 0.75;
/// The number of idle processors that make another thread worthwhile.
const IDLE_MIN: f64 = 0.5;
/// The minimum number of ticks between an increase and a later reduction of the number of threads. The pause is needed
/// because moved connections need time to settle.
const REST_TICKS: u32 = 10;

/// Monitors the threads of `pool`, and keeps as many of them active as the load needs.
pub(super) async fn keep(pool: &Arc<ServingThreadPoolState>) {
    loop {
        pool.arrival.notified().await;
        let mut balance = WorkerScaler::new(pool);
        while pool.is_occupied() {
            tokio::time::sleep(TICK).await;
            balance.look();
        }
    }
}

/// The last measurement, with which the next measurement is compared.
struct WorkerScaler<'p> {
    pool: &'p ServingThreadPoolState,
    at: Instant,
    busy: Vec<Duration>,
    idle: Option<Duration>,
    rest: u32,
}

impl<'p> WorkerScaler<'p> {
    fn new(pool: &'p ServingThreadPoolState) -> Self {
        WorkerScaler { pool, at: Instant::now(), busy: pool.busy(), idle: idle_time(), rest: 0 }
    }

    /// Measures the load since the last tick, and adjusts the number of active threads.
    fn look(&mut self) {
        let now = WorkerScaler::new(self.pool);
        let elapsed = now.at.duration_since(self.at).as_secs_f64().max(1e-3);
        let share = |now: Duration, then: Duration| now.saturating_sub(then).as_secs_f64() / elapsed;
        let busy = now.busy.iter().zip(&self.busy).map(|(now, then)| share(*now, *then)).sum();
        let idle = now.idle.zip(self.idle).map(|(now, then)| share(now, then));
        let active = self.pool.active.load(Ordering::Relaxed);
        let seen =
            WorkerLoad { active, max: self.pool.workers.len(), busy, idle: idle.unwrap_or(f64::INFINITY) };
        let wanted = seen.wanted();
        let rest = match wanted.cmp(&active) {
            std::cmp::Ordering::Greater => REST_TICKS,
            _ => self.rest.saturating_sub(1),
        };
        // The number of threads grows immediately, but shrinks only when [`REST_TICKS`] ticks have passed since it last
        // grew.
        if wanted > active || self.rest == 0 {
            self.pool.set_active(wanted);
        }
        *self = WorkerScaler { rest, ..now };
    }
}

/// The load during one tick. Times are divided by the tick's length, so that 1.0 means one fully used processor.
#[derive(Clone, Copy, Debug)]
struct WorkerLoad {
    active: usize,
    max: usize,
    /// The total time for which the threads were busy.
    busy: f64,
    /// The total time for which the machine's processors were idle.
    idle: f64,
}

impl WorkerLoad {
    /// Returns the number of threads that are needed. If the active threads are busy and processors are idle, the
    /// number grows, at most by half. The number shrinks by one if the remaining threads have time for the work of the
    /// removed thread. On a machine without an idle processor, the number shrinks even if the remaining threads become
    /// fully busy, because additional threads would wait for processors, not for requests.
    fn wanted(self) -> usize {
        let has_idle = self.idle >= IDLE_MIN;
        if self.busy >= FULL * self.active as f64 && has_idle {
            let more = (self.active / 2).max(1).min(self.idle.ceil() as usize);
            return (self.active + more).min(self.max);
        }
        let room = if has_idle { FULL - 0.25 } else { 1.0 };
        match self.active > 1 && self.busy < room * (self.active - 1) as f64 {
            true => self.active - 1,
            false => self.active,
        }
    }
}

impl ServingThreadPoolState {
    fn is_occupied(&self) -> bool {
        self.workers.iter().any(|worker| worker.connections.load(Ordering::Relaxed) > 0)
    }

    /// Returns the time for which each thread has been busy since its start.
    fn busy(&self) -> Vec<Duration> {
        self.workers.iter().map(|worker| worker.runtime.metrics().worker_total_busy_duration(0)).collect()
    }

    /// Makes the first `wanted` threads active. Connections of other threads move at their next event. If the number of
    /// threads has grown, threads with more than their share of connections move the surplus to other threads, starting
    /// with busy connections.
    pub(super) fn set_active(&self, wanted: usize) {
        let before = self.active.swap(wanted, Ordering::Relaxed);
        let open = |at: usize| self.workers[at].connections.load(Ordering::Relaxed);
        let share = (0..wanted).map(open).sum::<usize>().div_ceil(wanted.max(1));
        for at in 0..self.workers.len() {
            let surplus = if wanted > before { open(at).saturating_sub(share) } else { 0 };
            self.workers[at].surplus.store(surplus, Ordering::Relaxed);
        }
        if wanted != before {
            tracing::debug!(threads = wanted, "the number of threads that serve connections changes");
        }
    }
}

/// Returns the total time for which the processors have been idle since the machine was started, or `None` if the time
/// cannot be read. The time is in the first line of `/proc/stat` (proc(5)), in hundredths of a second, regardless of
/// the kernel's clock rate.
fn idle_time() -> Option<Duration> {
    idle_of(&std::fs::read_to_string("/proc/stat").ok()?)
}

fn idle_of(stat: &str) -> Option<Duration> {
    let mut fields = stat.lines().next()?.split_ascii_whitespace().skip(4);
    let mut next = || fields.next()?.parse::<u64>().ok();
    let (idle, waiting_for_disks) = (next()?, next()?);
    Some(Duration::from_millis((idle + waiting_for_disks) * 10))
}

pub(super) type ConnectionFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The task that runs a connection on one thread. When the connection has to move, the task ends and another thread
/// gets a new task for the connection. Until the connection registers its socket again, the events of the socket still
/// arrive through the previous thread.
pub(super) struct MovableConnection {
    /// The connection; `None` after it has moved to another thread.
    connection: Option<ConnectionFuture>,
    pool: Arc<ServingThreadPoolState>,
    at: usize,
    stays: bool,
}

impl MovableConnection {
    /// Creates a connection's task. The connection must already be counted among the connections of thread `at`.
    pub(super) fn new(connection: ConnectionFuture, pool: Arc<ServingThreadPoolState>, at: usize) -> Self {
        MovableConnection { connection: Some(connection), pool, at, stays: false }
    }
}

impl Future for MovableConnection {
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

impl Drop for MovableConnection {
    fn drop(&mut self) {
        if self.connection.is_some() {
            self.pool.workers[self.at].connections.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(active: usize, busy: f64, idle: f64) -> usize {
        WorkerLoad { active, max: 8, busy, idle }.wanted()
    }

    #[test]
    fn threads_are_added_while_processors_are_idle() {
        assert_eq!(wanted(1, 0.5, 7.0), 1);
        assert_eq!(wanted(1, 0.9, 7.0), 2);
        assert_eq!(wanted(4, 3.9, 4.0), 6);
        assert_eq!(wanted(4, 3.9, 0.6), 5);
        assert_eq!(wanted(8, 8.0, 40.0), 8);
        assert_eq!(wanted(1, 1.0, 0.2), 1);
    }

    #[test]
    fn threads_are_taken_away_that_others_can_stand_in_for() {
        assert_eq!(wanted(2, 0.4, 1.5), 1);
        assert_eq!(wanted(2, 0.9, 1.0), 2);
        // No processor is idle, so one thread that never sleeps does more work than two threads.
        assert_eq!(wanted(2, 0.9, 0.1), 1);
        assert_eq!(wanted(2, 1.4, 0.1), 2);
        assert_eq!(wanted(1, 0.0, 2.0), 1);
    }

    #[test]
    fn the_time_of_idle_processors() {
        let stat = "cpu  10 20 30 400 50 0 0 0 0 0\ncpu0 1 2 3 4 5 0 0 0 0 0\n";
        assert_eq!(idle_of(stat), Some(Duration::from_millis(4_500)));
        assert_eq!(idle_of("cpu 1 2 3"), None);
        assert_eq!(idle_of(""), None);
    }
}
