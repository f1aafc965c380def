//! The turns of the responses of one connection, and the time that a response waits for its client.

use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use h3::error::StreamError;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

use crate::limits::BodyTransferLimits;

/// The maximum number of responses that wait in quinn at the same time.
const TURNS: usize = 4;
/// The time after which a response that waits in quinn gives up its turn. Without this limit, a client that reads one
/// of its responses slowly would delay its other responses.
const TURN: Duration = Duration::from_millis(250);
/// The maximum time that a response waits while other responses on its connection make progress, as a multiple of the
/// stall timeout. This time exceeds the stall timeout because the other responses may use all of a slow link.
const PATIENCE_AMONG_OTHERS: u32 = 10;

/// The future that sends one slice.
pub(super) type SendingSlice<'s> = Pin<Box<dyn Future<Output = Result<(), StreamError>> + Send + 's>>;

/// Sends the content of one response in slices.
pub(super) trait SliceSender {
    /// Returns the maximum length of the next slice.
    fn slice_bytes(&self) -> usize;

    /// Sends `slice`.
    fn send(&mut self, slice: Bytes) -> SendingSlice<'_>;
}

/// The state that the responses of a connection share.
pub(super) struct ResponseScheduler {
    turns: Semaphore,
    limits: BodyTransferLimits,
    started: Instant,
    /// The time at which data was last sent, in ms after `started`.
    moved_ms: AtomicU64,
}

impl ResponseScheduler {
    pub(super) fn new(limits: BodyTransferLimits) -> Self {
        ResponseScheduler {
            turns: Semaphore::new(TURNS),
            limits,
            started: Instant::now(),
            moved_ms: AtomicU64::new(0),
        }
    }

    /// Runs `sending` when it is this response's turn. Errors: `TimedOut` if the client receives no data from this
    /// response.
    pub(super) async fn send(
        &self,
        sending: impl Future<Output = Result<(), StreamError>>,
    ) -> io::Result<()> {
        let mut sending = pin!(sending);
        let turn = self.turns.acquire().await.map_err(io::Error::other)?;
        let at_once = timeout(TURN, sending.as_mut()).await;
        // A slow response keeps waiting without a turn, so that other responses can be sent.
        drop(turn);
        let sent = match at_once {
            Ok(sent) => sent,
            Err(_) => self.wait(sending).await?,
        };
        self.moved_ms.store(self.started.elapsed().as_millis() as u64, Ordering::Relaxed);
        sent.map_err(io::Error::other)
    }

    /// Sends `data` in slices. Each slice waits for its own turn, so that a slow client makes progress with each of
    /// them. Errors: as for [`ResponseScheduler::send`].
    pub(super) async fn send_slices(
        &self,
        mut data: Bytes,
        sender: &mut (impl SliceSender + Send),
    ) -> io::Result<()> {
        while !data.is_empty() {
            let slice = data.split_to(sender.slice_bytes().min(data.len()));
            self.send(sender.send(slice)).await?;
        }
        Ok(())
    }

    async fn wait<T>(&self, mut sending: Pin<&mut impl Future<Output = T>>) -> io::Result<T> {
        let since = Instant::now();
        let stall_timeout = self.limits.stall_timeout;
        loop {
            if let Ok(sent) = timeout(stall_timeout, sending.as_mut()).await {
                return Ok(sent);
            }
            let moved = self.started + Duration::from_millis(self.moved_ms.load(Ordering::Relaxed));
            let is_over = since.elapsed() >= PATIENCE_AMONG_OTHERS * stall_timeout;
            if is_over || moved.elapsed() >= stall_timeout {
                self.limits.count_slow();
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLICE_BYTES: usize = 1 << 10;
    const SLICE_TIME: Duration = Duration::from_millis(50);

    /// Needs [`SLICE_TIME`] for each slice, until `left` slices are sent.
    struct SlowLink {
        left: usize,
    }

    impl SliceSender for SlowLink {
        fn slice_bytes(&self) -> usize {
            SLICE_BYTES
        }

        fn send(&mut self, slice: Bytes) -> SendingSlice<'_> {
            assert_eq!(slice.len(), SLICE_BYTES);
            Box::pin(async {
                if self.left == 0 {
                    std::future::pending::<()>().await;
                }
                tokio::time::sleep(SLICE_TIME).await;
                self.left -= 1;
                Ok(())
            })
        }
    }

    /// A client on a slow link receives data all the time, but needs longer than the limit for a large piece of it.
    #[test]
    fn a_slow_client_makes_progress_with_each_slice() {
        const SLICES: usize = 40;
        let stall_timeout = 10 * SLICE_TIME;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let turns = ResponseScheduler::new(BodyTransferLimits::of_tests(stall_timeout));
            let data = Bytes::from(vec![7; SLICES * SLICE_BYTES]);
            let mut link = SlowLink { left: SLICES };
            turns.send_slices(data.clone(), &mut link).await.unwrap();
            assert_eq!(link.left, 0);
            let mut link = SlowLink { left: 3 };
            let cut = turns.send_slices(data, &mut link).await.unwrap_err();
            assert_eq!((link.left, cut.kind()), (0, io::ErrorKind::TimedOut));
        });
    }
}
