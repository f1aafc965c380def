//! Waits that a signal may end. The kernel wakes up a thread that waits for a socket when a signal handler has run in it;
//! what that signal meant is known to the program alone, so it is asked. A signal that came just before the wait wakes up
//! nobody, so a program that wants to be asked is asked now and then as well.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rustix::io::{Errno, Result};
use rustix::thread::{NanosleepRelativeResult, nanosleep};
use rustix::time::Timespec;

/// How long a signal may go unnoticed.
const NOTICE_TIME: Duration = Duration::from_millis(100);

static MUST_STOP: OnceLock<fn() -> bool> = OnceLock::new();

/// Has waits of this process ask `must_stop` when a signal wakes them up. It runs in the waiting thread, outside of
/// the signal handler. Only the first call of a process has an effect. A process that never calls this waits on.
pub fn ask_after_signals(must_stop: fn() -> bool) {
    MUST_STOP.get_or_init(|| must_stop);
}

/// How long to wait in one go where all of the wait is `limit`: until the program is to be asked again.
pub fn wait_at_most(limit: Duration) -> Duration {
    if MUST_STOP.get().is_some() { limit.min(NOTICE_TIME) } else { limit }
}

/// What a call does that failed with `INTR`, or has waited for a while: begins again, or ends. Errors: `CANCELED` if the program wants to stop.
pub fn after_signal() -> Result<()> {
    match MUST_STOP.get() {
        Some(must_stop) if must_stop() => Err(Errno::CANCELED),
        _ => Ok(()),
    }
}

/// Lets the thread sleep. Errors: `CANCELED` if a signal came and the program wants to stop.
pub fn sleep(duration: Duration) -> Result<()> {
    let begin = Instant::now();
    loop {
        let left = duration.saturating_sub(begin.elapsed());
        if left.is_zero() {
            return Ok(());
        }
        // A day, where the kernel's type has no room for more.
        let now = Timespec::try_from(wait_at_most(left)).unwrap_or(Timespec { tv_sec: 86_400, tv_nsec: 0 });
        match nanosleep(&now) {
            NanosleepRelativeResult::Err(errno) => return Err(errno),
            NanosleepRelativeResult::Ok | NanosleepRelativeResult::Interrupted(_) => after_signal()?,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleeps_as_long_as_asked() {
        let begin = Instant::now();
        sleep(Duration::from_millis(20)).unwrap();
        assert!(begin.elapsed() >= Duration::from_millis(20));
        assert_eq!(after_signal(), Ok(()));
    }
}
