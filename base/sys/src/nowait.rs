//! Look-ups that do not wait for a device, so that a thread with many clients never does.

use std::cell::Cell;
use std::sync::atomic::{AtomicU8, Ordering};

/// How the calling thread looks names up.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Waits,
    AsksMemory,
    /// It asked, and something was not in memory.
    WouldHaveWaited,
}

thread_local! {
    static MODE: Cell<Mode> = const { Cell::new(Mode::Waits) };
}

/// Does `work` with the files that a [`Root`](crate::Root) opens looked up in memory alone; `None` if
/// one of them would have had to be waited for. `work` has seen `AGAIN` then, and whatever it made of
/// that is thrown away: it must be something that changes nothing and can be done again, by a thread
/// that may wait. Asking for the state of a name (`stat_in`, `get_xattr_in`) still waits: no kernel
/// offers it otherwise. Not to be nested.
///
/// Cost: no system call.
pub fn without_waiting<T>(work: impl FnOnce() -> T) -> Option<T> {
    /// Also where `work` panics.
    struct Waits;
    impl Drop for Waits {
        fn drop(&mut self) {
            MODE.set(Mode::Waits);
        }
    }
    let _waits = Waits;
    MODE.set(Mode::AsksMemory);
    let done = work();
    (MODE.get() != Mode::WouldHaveWaited).then_some(done)
}

/// Said before a wait for a device: whether the calling thread is within [`without_waiting`], and so
/// must fail instead. What it does then is done again where waiting is allowed.
pub fn would_wait() -> bool {
    let is_to_fail = is_asking();
    if is_to_fail {
        MODE.set(Mode::WouldHaveWaited);
    }
    is_to_fail
}

/// Whether what the calling thread does now is to be done again: something within [`without_waiting`] was
/// not in memory, and what comes of it, errors included, is thrown away. Changes nothing.
pub fn is_to_be_done_again() -> bool {
    MODE.get() == Mode::WouldHaveWaited
}

fn is_asking() -> bool {
    MODE.get() != Mode::Waits
}

/// Whether a file system answers from memory at all: each look-up that it does not answer is done
/// twice. NFS, FUSE and Lustre may want to ask their server about every name, whatever the kernel holds.
///
/// One that has answered once is believed in for good. Before that, what was not in memory is asked
/// for again right after it was opened: where it is not there even then, [`IN_VAIN_MAX`] times, asking
/// is given up. It takes several, because a rename anywhere can come between.
#[derive(Debug, Default)]
pub(crate) struct Recall(AtomicU8);

/// Nobody has asked yet, or was answered from memory at once.
const UNKNOWN: u8 = 0;
/// Something was not in memory; more of it counts how often it was asked for again without effect.
const IN_DOUBT: u8 = 1;
const IN_VAIN_MAX: u8 = 8;
const NEVER: u8 = IN_DOUBT + IN_VAIN_MAX;
const ANSWERS: u8 = u8::MAX;

impl Recall {
    /// Whether the calling thread is to ask memory alone.
    pub(crate) fn is_to_be_asked(&self) -> bool {
        is_asking() && self.0.load(Ordering::Relaxed) != NEVER
    }

    /// Whether the calling thread, which may wait, is to ask again for what it has just opened.
    pub(crate) fn is_in_doubt(&self) -> bool {
        !is_asking() && (IN_DOUBT..NEVER).contains(&self.0.load(Ordering::Relaxed))
    }

    /// Something was found in memory.
    pub(crate) fn has_answered(&self) {
        // Written once, so that threads do not contend for it.
        if self.0.load(Ordering::Relaxed) != ANSWERS {
            self.0.store(ANSWERS, Ordering::Relaxed);
        }
    }

    /// Whether something was found in memory once.
    #[cfg(test)]
    pub(crate) fn is_believed(&self) -> bool {
        self.0.load(Ordering::Relaxed) == ANSWERS
    }

    /// Something was not in memory, which may be true.
    pub(crate) fn has_not_answered(&self) {
        // Whoever came first has said it or more.
        let _ = self.0.compare_exchange(UNKNOWN, IN_DOUBT, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Something was not in memory that had to be.
    pub(crate) fn was_in_vain(&self) {
        let next = |count| (IN_DOUBT..NEVER).contains(&count).then(|| count + 1);
        // Nothing to count where another thread was answered meanwhile.
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
    }

    /// The kernel does not know the question.
    pub(crate) fn gives_up(&self) {
        self.0.store(NEVER, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_have_waited_counts_for_nothing() {
        assert_eq!(without_waiting(|| 1), Some(1));
        assert_eq!(without_waiting(would_wait), None);
        assert_eq!(without_waiting(|| (would_wait(), 1).1), None);
        assert_eq!(without_waiting(is_to_be_done_again), Some(false));
        let mut again = (false, false);
        let done = without_waiting(|| again = (would_wait(), is_to_be_done_again()));
        assert_eq!((done, again), (None, (true, true)));
        assert!(!is_to_be_done_again(), "only while it is done");
        assert!(!would_wait(), "outside, one may wait");
        std::panic::catch_unwind(|| without_waiting(|| panic!("in the middle"))).expect_err("it panics");
        assert!(!would_wait(), "also after a panic");
        assert_eq!(without_waiting(|| 2), Some(2));
    }

    #[test]
    fn who_never_answers_is_asked_no_more() {
        let recall = Recall::default();
        let is_asked = || without_waiting(|| recall.is_to_be_asked()) == Some(true);
        assert!(is_asked() && !recall.is_in_doubt());
        assert!(!recall.is_to_be_asked(), "who may wait does");
        recall.has_not_answered();
        for _ in 0..IN_VAIN_MAX {
            assert!(is_asked() && recall.is_in_doubt());
            recall.was_in_vain();
        }
        assert!(!is_asked() && !recall.is_in_doubt());
        recall.was_in_vain();
        assert!(!is_asked());
    }

    #[test]
    fn one_answer_settles_it() {
        let recall = Recall::default();
        recall.has_not_answered();
        recall.was_in_vain();
        recall.has_answered();
        for _ in 0..2 * IN_VAIN_MAX {
            recall.has_not_answered();
            recall.was_in_vain();
        }
        assert!(!recall.is_in_doubt());
        assert_eq!(without_waiting(|| recall.is_to_be_asked()), Some(true));
    }
}
