//! Fault injection for tests. This module is compiled only with the `faults` feature.
//!
//! Every file-system call of this crate passes [`point`]. A test runs an operation under a [`FaultInjectionPlan`] and
//! gets the list of calls that the operation made. The plan may make one of the calls fail, or kill the process just
//! before that call. A plan applies only to the calling thread, so tests can run in parallel. Cost without a plan: one
//! relaxed load.

use std::cell::RefCell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rustix::io::{Errno, Result};
use rustix::process::{Signal, getpid, kill_process};

use crate::shared::FileSystemSharing;

/// The fault that replaces a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyscallFault {
    /// The process dies, as if by `kill -9`. The effects of earlier calls remain, so dying before call N + 1 is the
    /// same as dying after call N.
    Kill,
    /// The call is not made and fails with this error.
    Fail(Errno),
    /// The call is made, but its result is replaced with this error. This fault simulates a file server whose reply was
    /// lost: the client sent the request again, and the server reported that there was nothing left to do. The fault
    /// applies only to calls that are defined in [`crate::call`], not to calls that follow a bare [`point`].
    LoseReply(Errno),
}

/// The faults that occur while an operation runs. The default plan has no faults.
#[derive(Clone, Copy, Debug, Default)]
pub struct FaultInjectionPlan {
    /// The number of a call, counted from 1, and the fault at that call.
    pub nth: Option<(usize, SyscallFault)>,
    /// Names of calls that always fail, each with its error, to simulate an old kernel or a file system that lacks a
    /// feature.
    pub missing: &'static [(&'static str, Errno)],
    /// The sharing that is reported for every file system, instead of the sharing that its type suggests.
    pub sharing: Option<FileSystemSharing>,
    /// How much earlier the last change of every file's names and attributes (`ctime`) seems to be. No call can set
    /// this time back.
    pub age: Duration,
}

struct FaultInjectionRun {
    plan: FaultInjectionPlan,
    calls: Vec<&'static str>,
    /// The number of a call, counted from 1, and the function to run just before that call.
    meanwhile: Option<(usize, Box<dyn FnOnce()>)>,
    /// The error that replaces the result of the call that is being made.
    lost: Option<Errno>,
}

/// The number of threads that run under a plan.
static PLANNED: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static RUN: RefCell<Option<FaultInjectionRun>> = const { RefCell::new(None) };
}

/// Ends the plan when dropped, even if the operation panics.
struct FaultInjectionGuard;

impl Drop for FaultInjectionGuard {
    fn drop(&mut self) {
        PLANNED.fetch_sub(1, Ordering::Relaxed);
        RUN.set(None);
    }
}

/// Runs `act` under `plan`; returns its result, and the file-system calls that `act` reached on this thread, in order.
/// A nested plan replaces the outer one.
pub fn run<T>(plan: FaultInjectionPlan, act: impl FnOnce() -> T) -> (T, Vec<&'static str>) {
    run_under(plan, None, act)
}

/// Runs `act` under `plan`, and runs `meanwhile` just before call number `at` of `act`, counted from 1, as if another
/// process had won the race. Returns what [`run`] returns; the calls of `meanwhile` do not count.
pub fn run_interleaved<T>(
    plan: FaultInjectionPlan,
    (at, meanwhile): (usize, impl FnOnce() + 'static),
    act: impl FnOnce() -> T,
) -> (T, Vec<&'static str>) {
    run_under(plan, Some((at, Box::new(meanwhile))), act)
}

fn run_under<T>(
    plan: FaultInjectionPlan,
    meanwhile: Option<(usize, Box<dyn FnOnce()>)>,
    act: impl FnOnce() -> T,
) -> (T, Vec<&'static str>) {
    PLANNED.fetch_add(1, Ordering::Relaxed);
    RUN.set(Some(FaultInjectionRun { plan, calls: Vec::new(), meanwhile, lost: None }));
    let planned = FaultInjectionGuard;
    let result = act();
    let calls = RUN.with_borrow_mut(Option::take).map(|run| run.calls).unwrap_or_default();
    drop(planned);
    (result, calls)
}

/// Marks the point before the call `name`. Errors: the planned fault.
#[inline]
pub(crate) fn point(name: &'static str) -> Result<()> {
    if PLANNED.load(Ordering::Relaxed) == 0 {
        return Ok(());
    }
    if let Some(meanwhile) = RUN.with_borrow_mut(|run| run.as_mut()?.take_meanwhile()) {
        let run = RUN.take();
        meanwhile();
        RUN.set(run);
    }
    RUN.with_borrow_mut(|run| run.as_mut().map_or(Ok(()), |run| run.reach(name)))
}

/// Returns the result of a call after its [`point`]: `result`, or the planned error if the reply is lost.
#[inline]
pub(crate) fn reply<T>(result: Result<T>) -> Result<T> {
    if PLANNED.load(Ordering::Relaxed) == 0 {
        return result;
    }
    let lost = RUN.with_borrow_mut(|run| run.as_mut().and_then(|run| run.lost.take()));
    lost.map_or(result, Err)
}

/// Returns the plan's [`FileSystemSharing`]; `None` if the thread has no plan, or if the plan does not set this value.
pub(crate) fn sharing() -> Option<FileSystemSharing> {
    if PLANNED.load(Ordering::Relaxed) == 0 {
        return None;
    }
    RUN.with_borrow(|run| run.as_ref()?.plan.sharing)
}

/// Returns the plan's `age` in nanoseconds; 0 if the thread has no plan.
pub(crate) fn age_ns() -> i64 {
    if PLANNED.load(Ordering::Relaxed) == 0 {
        return 0;
    }
    RUN.with_borrow(|run| run.as_ref().map_or(0, |run| run.plan.age.as_nanos() as i64))
}

impl FaultInjectionRun {
    fn take_meanwhile(&mut self) -> Option<Box<dyn FnOnce()>> {
        let is_due = self.meanwhile.as_ref().is_some_and(|(at, _)| *at == self.calls.len() + 1);
        self.meanwhile.take_if(|_| is_due).map(|(_, meanwhile)| meanwhile)
    }

    fn reach(&mut self, name: &'static str) -> Result<()> {
        self.calls.push(name);
        match self.plan.nth {
            Some((at, SyscallFault::Kill)) if at == self.calls.len() => {
                let _ = kill_process(getpid(), Signal::KILL);
                // Only a process that lacks permission to send itself a signal reaches this line.
                std::process::abort()
            }
            Some((at, SyscallFault::Fail(errno))) if at == self.calls.len() => Err(errno),
            Some((at, SyscallFault::LoseReply(errno))) if at == self.calls.len() => {
                self.lost = Some(errno);
                Ok(())
            }
            _ => match self.plan.missing.iter().find(|(missing, _)| *missing == name) {
                Some((_, errno)) => Err(*errno),
                None => Ok(()),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn three() -> [Result<()>; 3] {
        ["a", "b", "a"].map(point)
    }

    #[test]
    fn calls_are_counted_failed_by_number_and_by_name() {
        assert_eq!(run(FaultInjectionPlan::default(), three), ([Ok(()); 3], vec!["a", "b", "a"]));
        let second = FaultInjectionPlan {
            nth: Some((2, SyscallFault::Fail(Errno::IO))),
            ..FaultInjectionPlan::default()
        };
        assert_eq!(run(second, three).0, [Ok(()), Err(Errno::IO), Ok(())]);
        let missing = FaultInjectionPlan { missing: &[("a", Errno::NOSYS)], ..FaultInjectionPlan::default() };
        assert_eq!(run(missing, three).0, [Err(Errno::NOSYS), Ok(()), Err(Errno::NOSYS)]);
        assert_eq!(three(), [Ok(()); 3]);
    }

    #[test]
    fn other_work_is_done_just_before_a_call() {
        let seen = std::rc::Rc::new(RefCell::new(Vec::new()));
        let other = seen.clone();
        let meanwhile = move || other.borrow_mut().push(point("x"));
        let act = || {
            point("a").unwrap();
            assert!(seen.borrow().is_empty());
            point("b").unwrap();
            assert_eq!(*seen.borrow(), [Ok(())]);
        };
        assert_eq!(run_interleaved(FaultInjectionPlan::default(), (2, meanwhile), act).1, ["a", "b"]);
    }

    #[test]
    fn a_call_whose_reply_is_lost_is_made() {
        let plan = FaultInjectionPlan {
            nth: Some((2, SyscallFault::LoseReply(Errno::EXIST))),
            ..FaultInjectionPlan::default()
        };
        let dir = tempfile::tempdir().unwrap();
        let open = std::fs::File::open(dir.path()).unwrap();
        let make = |name| crate::call::mkdirat(&open, name, rustix::fs::Mode::RWXU);
        let (made, _) = run(plan, || ["a", "b", "c"].map(make));
        assert_eq!(made, [Ok(()), Err(Errno::EXIST), Ok(())]);
        assert!(dir.path().join("b").exists());
    }

    #[test]
    fn other_threads_are_left_alone() {
        let plan = FaultInjectionPlan {
            nth: Some((1, SyscallFault::Fail(Errno::IO))),
            ..FaultInjectionPlan::default()
        };
        let (other, calls) = run(plan, || std::thread::scope(|scope| scope.spawn(three).join()));
        assert_eq!((other.ok(), calls), (Some([Ok(()); 3]), vec![]));
    }

    #[test]
    fn a_panic_ends_the_plan() {
        let plan = FaultInjectionPlan {
            nth: Some((1, SyscallFault::Fail(Errno::IO))),
            ..FaultInjectionPlan::default()
        };
        let panicked = std::panic::catch_unwind(|| run(plan, || panic!("on purpose")));
        assert!(panicked.is_err());
        assert_eq!(point("a"), Ok(()));
    }
}
