//! How long a client is waited for, at no cost to one that keeps up.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep};

/// A deadline that starts with a wait and is forgotten when the wait ends. The timer behind it is
/// left running in between and looked at only when it fires: setting one for every wait would cost
/// more than most waits take.
#[derive(Default)]
pub(crate) struct Patience {
    deadline: Option<Instant>,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Patience {
    /// The wait is over.
    pub(crate) fn end(&mut self) {
        self.deadline = None;
    }

    /// Ready once the wait, which the first call begins, has lasted for `timeout`.
    pub(crate) fn poll_over(&mut self, context: &mut Context<'_>, timeout: Duration) -> Poll<()> {
        let deadline = *self.deadline.get_or_insert_with(|| Instant::now() + timeout);
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
        if timer.deadline() > deadline {
            timer.as_mut().reset(deadline);
        }
        loop {
            ready!(timer.as_mut().poll(context));
            if timer.deadline() >= deadline {
                return Poll::Ready(());
            }
            timer.as_mut().reset(deadline);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    #[test]
    fn a_wait_lasts_as_long_as_it_may_and_the_next_one_too() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let mut patience = Patience::default();
            for timeout_ms in [50, 20, 80] {
                let (start, timeout) = (Instant::now(), Duration::from_millis(timeout_ms));
                poll_fn(|context| patience.poll_over(context, timeout)).await;
                let took = start.elapsed();
                assert!(took >= timeout && took < timeout + Duration::from_millis(500), "{took:?}");
                patience.end();
            }
        });
    }
}
