//! Processes: their CPU time and resource usage, how to terminate them, how to distinguish a forked child from its
//! parent, and which processor a thread runs on.

use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Once, OnceLock};

use rustix::io::{Errno, Result};
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

use super::file::last_errno;

/// The resources that the calling process has used so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CurrentProcessUsage {
    /// CPU time in user mode, in nanoseconds (the kernel's resolution is microseconds).
    pub user_ns: u64,
    /// CPU time in the kernel, in nanoseconds (the kernel's resolution is microseconds).
    pub system_ns: u64,
    /// The largest resident set so far, in bytes.
    pub max_rss_bytes: u64,
    /// The number of times that the process yielded the processor, usually to wait.
    pub voluntary_switches: u64,
    /// The number of times that the kernel preempted the process.
    pub involuntary_switches: u64,
}

/// Raises the limit on open files to the maximum that the process may set without privileges. Returns the new limit;
/// `None` means no limit. Most shells start programs with a limit of 1,024.
pub fn raise_open_files() -> Result<Option<u64>> {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })?;
    Ok(maximum)
}

/// Returns the CPU time of all threads of process `pid`, including ended ones, in nanoseconds.
/// Errors: `SRCH` if there is no such process. Cost: one `clock_gettime`.
pub fn process_cpu_ns(pid: u32) -> Result<u64> {
    // The kernel's encoding of another process's CPU clock (see clock_getcpuclockid(3)).
    let pid = i32::try_from(pid).map_err(|_| Errno::SRCH)?;
    let clock = (!pid << 3) | 2;
    match clock_ns(clock) {
        Err(Errno::INVAL) => Err(Errno::SRCH),
        done => done,
    }
}

/// Returns the CPU time of the calling thread, in nanoseconds. Cost: one `clock_gettime`.
pub fn thread_cpu_ns() -> u64 {
    clock_ns(libc::CLOCK_THREAD_CPUTIME_ID).unwrap_or_default()
}

/// Returns the ID of the calling thread, which is not 0. Cost: one `gettid`.
pub fn thread_id() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs()
}

/// Returns the CPU time of a thread of this process, in nanoseconds. Errors: `INVAL` if this process has no such
/// thread. Cost: one `clock_gettime`.
pub fn cpu_ns_of_thread(thread: u32) -> Result<u64> {
    // The kernel's encoding of a thread's CPU clock (see pthread_getcpuclockid(3)).
    let thread = i32::try_from(thread).map_err(|_| Errno::INVAL)?;
    clock_ns((!thread << 3) | 6)
}

fn clock_ns(clock: libc::clockid_t) -> Result<u64> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid `timespec` for the kernel to fill.
    match unsafe { libc::clock_gettime(clock, &raw mut time) } {
        0 => Ok(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64),
        _ => Err(last_errno()),
    }
}

/// Asks process `pid` to terminate (SIGTERM). Errors: `SRCH` if there is no such process; `PERM`.
pub fn terminate(pid: u32) -> Result<()> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(Errno::SRCH)?;
    kill_process(pid, Signal::TERM)
}

/// Returns the resources that the calling process has used. Cost: one `getrusage`.
pub fn process_usage() -> CurrentProcessUsage {
    // SAFETY: `rusage` is plain data, for which all zeros is a valid value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is a valid `rusage` for the kernel to fill; with RUSAGE_SELF the call cannot fail.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) };
    let ns = |time: libc::timeval| time.tv_sec as u64 * 1_000_000_000 + time.tv_usec as u64 * 1_000;
    CurrentProcessUsage {
        user_ns: ns(usage.ru_utime),
        system_ns: ns(usage.ru_stime),
        max_rss_bytes: usage.ru_maxrss as u64 * 1024,
        voluntary_switches: usage.ru_nvcsw as u64,
        involuntary_switches: usage.ru_nivcsw as u64,
    }
}

/// The number of forks between the process that first called [`ProcessIdentity::current`] and this process.
static FORKS: AtomicU64 = AtomicU64::new(0);

/// Identifies a process, so that a forked child recognizes resources that its parent opened. A child that was forked
/// later must not use its parent's connections, thread pools, or locks on open files. The child shares locks and
/// connections with its parent, and lacks its parent's threads. A type with such a resource stores the identity of its
/// process next to the resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessIdentity(u64);

impl ProcessIdentity {
    /// Returns the identity of the calling process. Cost: two atomic loads, no system call.
    pub fn current() -> Self {
        static WATCHED: Once = Once::new();
        extern "C" fn in_child() {
            FORKS.fetch_add(1, Ordering::AcqRel);
        }
        WATCHED.call_once(|| {
            // SAFETY: the handler only counts, which is allowed after a fork. If there is no memory to register the
            // handler, nothing is counted, and a child uses the resources that its parent opened.
            unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        });
        ProcessIdentity(FORKS.load(Ordering::Acquire))
    }

    /// Returns whether this value identifies the calling process.
    pub fn is_current(self) -> bool {
        self == ProcessIdentity::current()
    }
}

/// A child of this process that [`fork_process`] has started. Dropping this value kills the child and waits for its
/// end.
#[derive(Debug)]
pub struct ForkedProcess(libc::pid_t);

/// Starts a child that has a copy of this process's memory, runs `work`, and exits without running destructors. The
/// kernel kills the child when the calling thread ends. The child has only one thread, so `work` must not wait for a
/// lock that another thread of this process may hold now, and must not print. Cost: the kernel copies the page tables,
/// so the time grows with the memory in use. Errors: `AGAIN` for too many processes; `NOMEM`.
pub fn fork_process(work: impl FnOnce()) -> Result<ForkedProcess> {
    let parent = std::process::id();
    // SAFETY: the child has a consistent copy of this thread's memory, does only what `work` does, and then exits.
    match unsafe { libc::fork() } {
        -1 => Err(last_errno()),
        0 => {
            // SAFETY: the call takes no pointers.
            unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
            // The parent may have ended before the call.
            let has_parent = rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get().cast_unsigned());
            let is_done = has_parent == Some(parent)
                && std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).is_ok();
            // SAFETY: the call ends the child immediately, so that nothing of the parent is dropped here.
            unsafe { libc::_exit(i32::from(!is_done)) };
        }
        child => Ok(ForkedProcess(child)),
    }
}

impl Drop for ForkedProcess {
    fn drop(&mut self) {
        // SAFETY: the calls access no memory of this process, and the process ID cannot have been reused, because only
        // this value waits for the child.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, std::ptr::null_mut(), 0);
        }
    }
}

/// A value that each process creates for itself. After a fork, the child creates a new value, and never accesses its
/// parent's value. During the fork, another thread of the parent may have held a lock in that value, and no thread of
/// the child would release the lock. The child may also lack descriptors that the value contains, because the kernel
/// copies the table of descriptors before the memory. The number of such a descriptor may then belong to another file.
/// Because of such locks and descriptors, a child does not drop its parent's value. Cost of an access: two atomic
/// loads.
#[derive(Debug)]
pub struct PerProcess<T> {
    made_by: ProcessIdentity,
    value: ManuallyDrop<T>,
    /// The value of a forked child. Only the child uses this field.
    in_child: OnceLock<Box<PerProcess<T>>>,
}

impl<T: Default> Default for PerProcess<T> {
    fn default() -> Self {
        PerProcess {
            made_by: ProcessIdentity::current(),
            value: ManuallyDrop::new(T::default()),
            in_child: OnceLock::new(),
        }
    }
}

impl<T: Default> Deref for PerProcess<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        if self.made_by.is_current() { &self.value } else { self.of_child() }
    }
}

impl<T: Default> PerProcess<T> {
    #[cold]
    fn of_child(&self) -> &T {
        self.in_child.get_or_init(Box::default)
    }
}

impl<T> Drop for PerProcess<T> {
    fn drop(&mut self) {
        if self.made_by.is_current() {
            // SAFETY: the value is dropped only here, and is not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}

/// Runs `work` with all signals blocked. A thread that `work` starts inherits the blocked signals, so that the kernel
/// delivers signals to other threads of the process. Cost: two system calls.
pub fn with_signals_blocked<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: `sigset_t` is plain data, for which all zeros is a valid value.
    let (mut all, mut before) = unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
    // SAFETY: `all` and `before` are valid sets of signals; with a valid set and SIG_SETMASK neither call can fail.
    unsafe {
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
    }
    let _restore = SignalMaskGuard(before);
    work()
}

/// A set of blocked signals. When this value is dropped, even after a panic, the calling thread gets this set.
struct SignalMaskGuard(libc::sigset_t);

impl Drop for SignalMaskGuard {
    fn drop(&mut self) {
        // SAFETY: the field is a valid set of signals, so this call cannot fail.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut()) };
    }
}

/// Returns the number of the processor that the calling thread runs on. Cost: no system call.
pub fn current_core() -> u32 {
    sched_getcpu() as u32
}

/// Returns the numbers of the processors that the calling thread may use; empty if the system does not report them.
pub fn usable_cores() -> Vec<usize> {
    let Ok(set) = sched_getaffinity(None) else { return Vec::new() };
    (0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect()
}

/// The processors that a thread may use. The thread can be pinned to one of these processors temporarily. Only the
/// thread that created this value may use it.
#[derive(Debug)]
pub struct ThreadAffinity {
    /// The processors that the thread may use; `None` if the system does not report them.
    all: Option<CpuSet>,
    kept_to: Option<u32>,
}

impl ThreadAffinity {
    /// Reads which processors the calling thread may use.
    pub fn of_this_thread() -> Self {
        ThreadAffinity { all: sched_getaffinity(None).ok(), kept_to: None }
    }

    /// Pins the thread to `core`, if the thread may use it. Cost: one system call if `core` has changed.
    pub fn keep_to(&mut self, core: u32) {
        let index = core as usize;
        let may_use = self.all.is_some_and(|all| index < CpuSet::MAX_CPU && all.is_set(index));
        if self.kept_to == Some(core) || !may_use {
            return;
        }
        let mut only = CpuSet::new();
        only.set(index);
        // If the system refuses, the thread keeps its processors.
        if sched_setaffinity(None, &only).is_ok() {
            self.kept_to = Some(core);
        }
    }

    /// Moves the thread to another processor, chosen by the system; the thread may return later. Does nothing if the
    /// thread is pinned. Returns whether the thread has moved. Cost: two system calls.
    pub fn leave_current(&mut self) -> bool {
        let (None, Some(all)) = (self.kept_to, &self.all) else { return false };
        let (mut others, here) = (*all, current_core() as usize);
        others.unset(here);
        let has_moved = others.count() > 0 && sched_setaffinity(None, &others).is_ok();
        if has_moved {
            let _ = sched_setaffinity(None, all);
        }
        has_moved
    }

    /// Lets the thread use all its processors again. Cost: one system call if the thread was pinned.
    pub fn use_all(&mut self) {
        if let (Some(_), Some(all)) = (self.kept_to, &self.all) {
            let _ = sched_setaffinity(None, all);
            self.kept_to = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn open_files_may_be_as_many_as_are_allowed() {
        let most = raise_open_files().unwrap();
        assert_eq!(getrlimit(Resource::Nofile).current, most);
        assert!(most.is_none_or(|most| most >= 256));
    }

    #[test]
    fn cpu_time_grows_with_work_and_names_missing_processes() {
        let (before, thread_before) = (process_cpu_ns(std::process::id()).unwrap(), thread_cpu_ns());
        let mut sum = 0u64;
        while thread_cpu_ns() - thread_before < 2_000_000 {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        assert!(process_cpu_ns(std::process::id()).unwrap() - before >= 2_000_000);
        assert!(process_usage().max_rss_bytes > 0);
        assert_eq!(process_cpu_ns(0x7fff_fff0), Err(Errno::SRCH));
    }

    /// Returns whether `check`, which neither allocates much nor panics, returns true in a forked child.
    fn holds_in_child(check: impl FnOnce() -> bool) -> bool {
        // SAFETY: the child only runs `check` and exits.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let holds = check();
            // SAFETY: the call ends the child immediately, so that no part of the test runs twice.
            unsafe { libc::_exit(i32::from(!holds)) };
        }
        let mut status = -1;
        // SAFETY: the kernel may write to `status`.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        status == 0
    }

    #[test]
    fn a_child_is_another_process() {
        let parent = ProcessIdentity::current();
        assert!(holds_in_child(|| !parent.is_current() && ProcessIdentity::current().is_current()));
        assert!(parent.is_current());
    }

    #[test]
    fn a_forked_process_works_until_it_is_dropped() {
        let (mut near, far) = std::os::unix::net::UnixStream::pair().unwrap();
        let child = fork_process(|| {
            (&far).write_all(b"done").unwrap();
            std::thread::sleep(std::time::Duration::from_secs(60));
        });
        drop(far);
        let mut said = [0; 4];
        near.read_exact(&mut said).unwrap();
        assert_eq!(&said, b"done");
        drop(child.unwrap());
        assert_eq!(near.read(&mut said).unwrap(), 0, "the child has closed its end");
    }

    #[test]
    fn a_child_does_not_touch_what_its_parent_made() {
        struct NotDropped(Mutex<Option<ProcessIdentity>>);
        impl Default for NotDropped {
            fn default() -> Self {
                NotDropped(Mutex::new(None))
            }
        }
        impl Drop for NotDropped {
            fn drop(&mut self) {
                let made_by = *self.0.get_mut().unwrap();
                if made_by.is_some_and(|process| !process.is_current()) {
                    std::process::abort();
                }
            }
        }
        let (value, other) = (PerProcess::<NotDropped>::default(), PerProcess::<NotDropped>::default());
        *other.0.lock().unwrap() = Some(ProcessIdentity::current());
        let held = value.0.lock().unwrap();
        // In the child, no thread would ever release the lock that is held here.
        assert!(holds_in_child(|| {
            drop(other);
            let is_fresh =
                value.0.try_lock().is_ok_and(|mut of_child| of_child.replace(value.made_by).is_none());
            is_fresh && value.0.try_lock().is_ok_and(|of_child| of_child.is_some())
        }));
        drop(held);
    }

    #[test]
    fn a_thread_that_is_started_with_signals_blocked_has_none() {
        let blocked = || {
            let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
            let line =
                status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap().trim().to_owned();
            u64::from_str_radix(&line, 16).unwrap()
        };
        let before = blocked();
        let of_thread = with_signals_blocked(|| std::thread::spawn(blocked)).join().unwrap();
        assert_eq!(blocked(), before);
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGALRM, libc::SIGCHLD] {
            assert!(of_thread & (1 << (signal - 1)) != 0, "signal {signal} of {of_thread:x}");
            assert!(before & (1 << (signal - 1)) == 0, "the test needs signal {signal}");
        }
    }

    #[test]
    fn a_thread_keeps_to_a_core_for_as_long_as_it_says() {
        let mut cores = ThreadAffinity::of_this_thread();
        let before = sched_getaffinity(None).unwrap();
        let core = current_core();
        assert!(usable_cores().contains(&(core as usize)) && usable_cores().len() as u32 == before.count());
        cores.keep_to(core);
        let kept = sched_getaffinity(None).unwrap();
        assert!(kept.count() == 1 && kept.is_set(core as usize));
        assert_eq!(current_core(), core);
        cores.keep_to(u32::MAX);
        assert_eq!(sched_getaffinity(None).unwrap(), kept, "there is no such core");
        assert!(!cores.leave_current(), "it is pinned");
        cores.use_all();
        assert_eq!(sched_getaffinity(None).unwrap(), before);
        // The system may move the thread at any time, so the test checks only the return value and the set of usable
        // processors.
        assert_eq!(cores.leave_current(), before.count() > 1);
        assert_eq!(sched_getaffinity(None).unwrap(), before);
    }
}
