//! Waits that a signal may interrupt, and signals that the process ignores.
//!
//! After a signal handler has run in a thread that is waiting for a socket, the kernel wakes up the thread. Only the
//! program can interpret the signal, so these functions ask the program whether to stop. A signal that arrives just
//! before the wait wakes up no thread, so the program is also asked at intervals.

use std::cell::Cell;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rustix::io::{Errno, Result};
use rustix::process::Signal;
use rustix::thread::{NanosleepRelativeResult, nanosleep};
use rustix::time::Timespec;

/// The maximum time until a wait notices a signal that arrived just before the wait.
const NOTICE_TIME: Duration = Duration::from_millis(100);

/// The grace time that replaces a longer one whose end the clock cannot represent: about 100 years.
const GRACE_TIME_MAX: Duration = Duration::from_secs(100 * 366 * 86_400);

static MUST_STOP: OnceLock<fn() -> bool> = OnceLock::new();

thread_local! {
    /// The time until which waits of this thread continue, even if the program must stop.
    static GRACE_UNTIL: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Makes waits of this process call `must_stop` when a signal wakes them up. `must_stop` runs in the waiting thread,
/// outside the signal handler. Only the first call in a process has an effect. In a process that never calls this
/// function, waits continue after a signal.
pub fn ask_after_signals(must_stop: fn() -> bool) {
    MUST_STOP.get_or_init(|| must_stop);
}

/// Returns how long a wait of at most `limit` may last before it must check whether the program must stop.
pub fn wait_at_most(limit: Duration) -> Duration {
    if MUST_STOP.get().is_some() { limit.min(NOTICE_TIME) } else { limit }
}

/// Returns `Ok` if a call that failed with `INTR`, or that has waited for a while, may be restarted. Errors: `CANCELED`
/// if the program must stop.
pub fn after_signal() -> Result<()> {
    match MUST_STOP.get() {
        Some(_) if GRACE_UNTIL.get().is_some_and(|until| Instant::now() < until) => Ok(()),
        Some(must_stop) if must_stop() => Err(Errno::CANCELED),
        _ => Ok(()),
    }
}

/// Calls `work`. For `grace`, waits of `work` in this thread continue even if the program must stop. With
/// `Duration::MAX`, the waits never end early. This function is for clean-up after an interrupted operation, such as
/// aborting an upload. The grace time of an enclosing call applies if it ends later.
pub fn with_grace<T>(grace: Duration, work: impl FnOnce() -> T) -> T {
    /// Ends the grace time, even if `work` panics.
    struct Restore(Option<Instant>);
    impl Drop for Restore {
        fn drop(&mut self) {
            GRACE_UNTIL.set(self.0);
        }
    }
    let before = GRACE_UNTIL.get();
    let _restore = Restore(before);
    let now = Instant::now();
    // The clock cannot represent the end of a very long grace time, such as `Duration::MAX`.
    let until = now.checked_add(grace).or_else(|| now.checked_add(GRACE_TIME_MAX));
    GRACE_UNTIL.set(before.max(until));
    work()
}

/// Makes the calling thread sleep. Errors: `CANCELED` if a signal arrived and the program must stop.
pub fn sleep(duration: Duration) -> Result<()> {
    let begin = Instant::now();
    loop {
        let left = duration.saturating_sub(begin.elapsed());
        if left.is_zero() {
            return Ok(());
        }
        // The thread sleeps for one day if the kernel's type cannot represent the rest of the time.
        let now = Timespec::try_from(wait_at_most(left)).unwrap_or(Timespec { tv_sec: 86_400, tv_nsec: 0 });
        match nanosleep(&now) {
            NanosleepRelativeResult::Err(errno) => return Err(errno),
            NanosleepRelativeResult::Ok | NanosleepRelativeResult::Interrupted(_) => after_signal()?,
        }
    }
}

/// Returns whether this process ignores a signal. A process inherits the signals that its parent ignores: `nohup`
/// ignores SIGHUP, and a shell without job control ignores SIGINT for commands that it starts with `&`.
pub fn is_ignored(signal: Signal) -> bool {
    // SAFETY: `sigaction` is plain data, for which all zeros is a valid value.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: the first pointer is null, so this call changes nothing; the kernel may write to `action`.
    let read = unsafe { libc::sigaction(signal.as_raw(), std::ptr::null(), &raw mut action) };
    read == 0 && action.sa_sigaction == libc::SIG_IGN
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

    /// This test is the only one that calls `ask_after_signals`, because only the first call in a process has an
    /// effect.
    #[test]
    fn waits_end_after_a_stop_except_in_a_grace_time() {
        thread_local!(static STOPS: Cell<bool> = const { Cell::new(false) });
        ask_after_signals(|| STOPS.get());
        assert_eq!(after_signal(), Ok(()));
        STOPS.set(true);
        assert_eq!(after_signal(), Err(Errno::CANCELED));
        let long = Duration::from_secs(600);
        with_grace(long, || {
            assert_eq!(after_signal(), Ok(()));
            with_grace(Duration::ZERO, || assert_eq!(after_signal(), Ok(()), "the longer time applies"));
        });
        assert_eq!(with_grace(Duration::MAX, after_signal), Ok(()), "too long for the clock");
        assert_eq!(with_grace(Duration::ZERO, after_signal), Err(Errno::CANCELED));
        assert_eq!(after_signal(), Err(Errno::CANCELED), "the grace time has ended");
        let begin = Instant::now();
        assert_eq!(sleep(long), Err(Errno::CANCELED));
        assert!(begin.elapsed() < Duration::from_secs(60));
    }

    #[test]
    fn only_an_ignored_signal_is_said_to_be_ignored() {
        // The Rust runtime ignores SIGPIPE.
        assert!(is_ignored(Signal::PIPE));
        assert!(!is_ignored(Signal::USR1));
    }
}
