//! Telling a process from the one that it was forked from.

use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

/// Forks that led to this process since the first [`Process::current`].
static FORKS: AtomicU64 = AtomicU64::new(0);

/// A process as what it opened knows it. Locks on open files, connections and pools of threads are no
/// good in a child that was forked after they were made: it shares them with its parent, or lacks the
/// threads. Who keeps such a thing keeps this beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process(u64);

impl Process {
    /// The calling one. Cost: two atomic loads, no system call.
    pub fn current() -> Self {
        static WATCHED: Once = Once::new();
        extern "C" fn in_child() {
            FORKS.fetch_add(1, Ordering::AcqRel);
        }
        WATCHED.call_once(|| {
            // SAFETY: the handler only counts, which is allowed after a fork. Without memory for the
            // registration nothing is counted, and a child shares what its parent opened.
            unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        });
        Process(FORKS.load(Ordering::Acquire))
    }

    /// Whether it is the calling one.
    pub fn is_current(self) -> bool {
        self == Process::current()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_is_another_process() {
        let parent = Process::current();
        // SAFETY: the child does nothing but compare and exit.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let is_other = !parent.is_current() && Process::current().is_current();
            // SAFETY: ends the child at once, without anything of the test's that would run twice.
            unsafe { libc::_exit(i32::from(!is_other)) };
        }
        let mut status = -1;
        // SAFETY: `status` is where the kernel may write.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(status, 0);
        assert!(parent.is_current());
    }
}
