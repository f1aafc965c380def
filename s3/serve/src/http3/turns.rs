//! Answers of one connection take turns. QUIC keeps what the client has not confirmed, up to a limit for
//! all of a connection; when there is room again, quinn wakes the one first that came last, so the
//! first of many waiters may wait for ever. Only few may wait here, and the others in order.

use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use h3::error::StreamError;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

/// Answers that may wait for room at once.
const TURNS: usize = 4;
/// How long one of them may keep the others from it: a client may be slow to read one answer alone.
const TURN: Duration = Duration::from_millis(250);
/// How many times as long as a quiet connection an answer is waited for while others move: they may
/// have the whole of a slow link.
const PATIENCE_AMONG_OTHERS: u32 = 10;

/// What the answers of a connection have in common.
pub(super) struct Turns {
    turns: Semaphore,
    stall_timeout: Duration,
    started: Instant,
    /// When something was last sent, in ms after `started`.
    moved_ms: AtomicU64,
}

impl Turns {
    pub(super) fn new(stall_timeout: Duration) -> Self {
        Turns {
            turns: Semaphore::new(TURNS),
            stall_timeout,
            started: Instant::now(),
            moved_ms: AtomicU64::new(0),
        }
    }

    /// Has something sent when it is its turn. Errors: `TimedOut` where the client takes nothing of it.
    pub(super) async fn send(
        &self,
        sending: impl Future<Output = Result<(), StreamError>>,
    ) -> io::Result<()> {
        let mut sending = pin!(sending);
        let turn = self.turns.acquire().await.map_err(io::Error::other)?;
        let at_once = timeout(TURN, sending.as_mut()).await;
        drop(turn);
        let sent = match at_once {
            Ok(sent) => sent,
            Err(_) => self.wait(sending).await?,
        };
        self.moved_ms.store(self.started.elapsed().as_millis() as u64, Ordering::Relaxed);
        sent.map_err(io::Error::other)
    }

    async fn wait<T>(&self, mut sending: Pin<&mut impl Future<Output = T>>) -> io::Result<T> {
        let since = Instant::now();
        loop {
            if let Ok(sent) = timeout(self.stall_timeout, sending.as_mut()).await {
                return Ok(sent);
            }
            let moved = self.started + Duration::from_millis(self.moved_ms.load(Ordering::Relaxed));
            let is_over = since.elapsed() >= PATIENCE_AMONG_OTHERS * self.stall_timeout;
            if is_over || moved.elapsed() >= self.stall_timeout {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
    }
}
