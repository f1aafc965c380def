//! Waits for locks that others hold. Whoever may write to a bucket may hold its locks for as long as they
//! like, so no thread waits for one: what finds a lock taken is tried again later, and in the end answered
//! with 503 and when to come back.

use std::time::{Duration, Instant};

use fordway_sys::with_lock_patience;

use crate::s3::error::Outcome;

/// How long a request waits for locks, all together.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
/// The first and the longest pause between two tries.
const PAUSE_MIN: Duration = Duration::from_micros(200);
const PAUSE_MAX: Duration = Duration::from_millis(50);

/// The pauses of one request between its tries.
pub(super) struct Pauses {
    started: Instant,
    next: Duration,
}

impl Pauses {
    pub(super) fn new() -> Self {
        Pauses { started: Instant::now(), next: PAUSE_MIN }
    }

    /// Lets others go on; says `false` at once if there was enough of that.
    pub(super) async fn pause(&mut self) -> bool {
        if self.started.elapsed() >= PATIENCE {
            return false;
        }
        tokio::time::sleep(self.next).await;
        self.next = (self.next * 2).min(PAUSE_MAX);
        true
    }
}

/// What comes of `work`, which changes nothing where it finds a lock taken: it is tried until the lock is
/// free. Errors: from it.
pub(super) async fn until_unlocked<T>(mut work: impl FnMut() -> Outcome<T>) -> Outcome<T> {
    let mut pauses = None;
    loop {
        match with_lock_patience(Duration::ZERO, &mut work) {
            Err(failure) if failure.is_lock_timeout() => {
                if !pauses.get_or_insert_with(Pauses::new).pause().await {
                    return Err(failure);
                }
            }
            done => return done,
        }
    }
}

#[cfg(test)]
mod tests {
    use fordway_store::{Error, ErrorKind};

    use super::*;

    #[test]
    fn work_is_tried_until_the_lock_is_free() {
        let runtime = crate::workers::new_runtime().unwrap();
        let mut tries = 0;
        let done = runtime.block_on(until_unlocked(|| {
            tries += 1;
            if tries < 4 { Err(Error::from(ErrorKind::LockTimeout).into()) } else { Ok(tries) }
        }));
        assert_eq!(done.map_err(|_| "it fails"), Ok(4));
        let failed =
            runtime.block_on(until_unlocked(|| -> Outcome<()> { Err(Error::from(ErrorKind::Io).into()) }));
        assert_eq!(failed.err().unwrap().0.code().as_str(), "InternalError");
    }
}
