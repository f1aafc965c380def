//! Repeats copies that failed because this process has too many open files. Every copy needs a few files and
//! connections, so a large `--jobs` can exceed the limit of the system.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use fordway_store::{ErrorKind, Result};

/// The copies of a command.
#[derive(Default)]
pub(crate) struct CopyAttempts {
    counts: Mutex<AttemptCounts>,
    ended: Condvar,
    /// Held by the copy that waits for another copy to end. Only one copy is repeated at a time, because several would
    /// compete for the files of the copy that has ended.
    turn: Mutex<()>,
}

#[derive(Default)]
struct AttemptCounts {
    in_progress: u64,
    started: u64,
    ended: u64,
}

/// An attempt that is in progress. Dropping it ends the attempt.
struct CopyAttempt<'a> {
    attempts: &'a CopyAttempts,
    /// The number of attempts that had started, including this one; `None` if another attempt was in progress.
    started: Option<u64>,
}

impl CopyAttempts {
    /// Calls `copy`. If this process has too many open files, waits until another copy has ended, and calls `copy`
    /// again. Workers that wait start no other copy, so fewer copies are in progress afterwards. Errors: the errors of
    /// `copy`; `TooManyOpenFiles` only if no other copy was in progress.
    pub(crate) fn perform<T>(&self, copy: impl Fn() -> Result<T>) -> Result<T> {
        let mut turn = None;
        loop {
            let attempt = self.start();
            let result = copy();
            let is_out_of_files =
                matches!(&result, Err(error) if error.kind() == ErrorKind::TooManyOpenFiles);
            if !is_out_of_files || attempt.is_alone() {
                return result;
            }
            drop(attempt);
            let ended = self.lock().ended;
            turn.get_or_insert_with(|| self.turn.lock().unwrap_or_else(PoisonError::into_inner));
            self.wait_for_end(ended);
        }
    }

    fn start(&self) -> CopyAttempt<'_> {
        let mut counts = self.lock();
        let is_first = counts.in_progress == 0;
        counts.in_progress += 1;
        counts.started += 1;
        CopyAttempt { attempts: self, started: is_first.then_some(counts.started) }
    }

    /// Waits until more than `ended` attempts have ended, or no attempt is in progress.
    fn wait_for_end(&self, ended: u64) {
        let is_waiting = |counts: &mut AttemptCounts| counts.in_progress > 0 && counts.ended <= ended;
        drop(self.ended.wait_while(self.lock(), is_waiting));
    }

    fn lock(&self) -> MutexGuard<'_, AttemptCounts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CopyAttempt<'_> {
    /// Returns whether no other attempt was in progress during this attempt.
    fn is_alone(&self) -> bool {
        self.started == Some(self.attempts.lock().started)
    }
}

impl Drop for CopyAttempt<'_> {
    fn drop(&mut self) {
        let mut counts = self.attempts.lock();
        counts.in_progress -= 1;
        counts.ended += 1;
        self.attempts.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;

    /// Performs copies on many threads, of which only `limit` may be in progress.
    fn succeeded(limit: usize) -> usize {
        let (attempts, open) = (CopyAttempts::default(), AtomicUsize::new(0));
        let copy = || {
            let is_refused = open.fetch_add(1, Ordering::SeqCst) >= limit;
            std::thread::sleep(Duration::from_millis(1));
            open.fetch_sub(1, Ordering::SeqCst);
            if is_refused { Err(ErrorKind::TooManyOpenFiles.into()) } else { Ok(()) }
        };
        std::thread::scope(|scope| {
            let perform = || (0..20).filter(|_| attempts.perform(copy).is_ok()).count();
            let workers: Vec<_> = (0..30).map(|_| scope.spawn(perform)).collect();
            workers.into_iter().map(|worker| worker.join().unwrap()).sum()
        })
    }

    #[test]
    fn copies_wait_for_files() {
        assert_eq!(succeeded(3), 600);
        assert_eq!(succeeded(1), 600);
        assert_eq!(succeeded(0), 0, "a copy that no other copy hinders is not repeated without end");
    }
}
