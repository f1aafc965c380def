//! Limits the total time that one operation waits for other nodes' changes to become visible.
//!
//! On a shared file system, it may take a second to determine the state of a single file. A listing examines many
//! files, and another user may have prepared each of them so that the wait is as long as possible.

use std::cell::Cell;
use std::time::Duration;

thread_local! {
    /// The time for which this thread's operation may still wait; `None` without a limit.
    static LEFT: Cell<Option<Duration>> = const { Cell::new(None) };
}

/// Runs `work`. All calls to [`pause`] in `work` together take at most `total`, less the time counted by [`spend`]. If
/// the caller already runs with a limit, that limit remains in force instead.
pub(crate) fn within<T>(total: Duration, work: impl FnOnce() -> T) -> T {
    let _restored = WaitBudgetGuard(LEFT.get());
    if LEFT.get().is_none() {
        LEFT.set(Some(total));
    }
    work()
}

/// Returns `most`, or the time for which the operation may still wait if that is shorter.
pub(crate) fn left_of(most: Duration) -> Duration {
    LEFT.get().map_or(most, |left| left.min(most))
}

/// Subtracts `time`, for which the operation has waited, from its remaining waiting time.
pub(crate) fn spend(time: Duration) {
    LEFT.set(LEFT.get().map(|left| left.saturating_sub(time)));
}

/// Sleeps for `time`, or until the operation has used up its waiting time.
pub(crate) fn pause(time: Duration) {
    let time = left_of(time);
    spend(time);
    std::thread::sleep(time);
}

/// Removes the limit when the outermost operation ends, even if it ends with a panic.
struct WaitBudgetGuard(Option<Duration>);

impl Drop for WaitBudgetGuard {
    fn drop(&mut self) {
        if self.0.is_none() {
            LEFT.set(None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOMENT: Duration = Duration::from_millis(5);

    #[test]
    fn an_operation_and_those_within_it_share_one_limit() {
        within(3 * MOMENT, || {
            pause(MOMENT);
            assert_eq!(left_of(Duration::MAX), 2 * MOMENT);
            within(Duration::MAX, || spend(MOMENT));
            assert_eq!(left_of(Duration::MAX), MOMENT);
            pause(Duration::MAX);
            assert_eq!(left_of(MOMENT), Duration::ZERO);
        });
        assert_eq!(left_of(Duration::MAX), Duration::MAX);
    }

    #[test]
    fn the_limit_ends_with_its_operation() {
        assert!(std::panic::catch_unwind(|| within(MOMENT, || panic!("in the middle"))).is_err());
        assert_eq!(left_of(Duration::MAX), Duration::MAX);
    }
}
