//! Processes: their CPU time, their use of resources, and their end.

use rustix::io::{Errno, Result};
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};

use crate::xattr::last_errno;

/// What the calling process has used so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// CPU time in user mode, nanoseconds (resolution of the kernel: microseconds).
    pub user_ns: u64,
    /// CPU time in the kernel, nanoseconds (resolution of the kernel: microseconds).
    pub system_ns: u64,
    /// The largest resident set so far, bytes.
    pub max_rss_bytes: u64,
    /// Times the process waited of its own will.
    pub voluntary_switches: u64,
    /// Times it was made to wait.
    pub involuntary_switches: u64,
}

/// Lets the process open as many files at once as the system allows it to without privileges;
/// returns how many that are, `None` for any number. Most shells start programs with 1,024.
pub fn raise_open_files() -> Result<Option<u64>> {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })?;
    Ok(maximum)
}

/// CPU time of all threads of process `pid`, ended ones included, in nanoseconds.
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

/// CPU time of the calling thread, in nanoseconds. Cost: one `clock_gettime`.
pub fn thread_cpu_ns() -> u64 {
    clock_ns(libc::CLOCK_THREAD_CPUTIME_ID).unwrap_or_default()
}

fn clock_ns(clock: libc::clockid_t) -> Result<u64> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid `timespec` for the kernel to fill.
    match unsafe { libc::clock_gettime(clock, &raw mut time) } {
        0 => Ok(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64),
        _ => Err(last_errno()),
    }
}

/// Asks process `pid` to end (SIGTERM). Errors: `SRCH` if there is none, `PERM`.
pub fn terminate(pid: u32) -> Result<()> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(Errno::SRCH)?;
    kill_process(pid, Signal::TERM)
}

/// Resources used by the calling process. Cost: one `getrusage`.
pub fn process_usage() -> Usage {
    // SAFETY: `rusage` is plain data, for which all zeros is a valid value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is a valid `rusage` for the kernel to fill; with RUSAGE_SELF it cannot fail.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) };
    let ns = |time: libc::timeval| time.tv_sec as u64 * 1_000_000_000 + time.tv_usec as u64 * 1_000;
    Usage {
        user_ns: ns(usage.ru_utime),
        system_ns: ns(usage.ru_stime),
        max_rss_bytes: usage.ru_maxrss as u64 * 1024,
        voluntary_switches: usage.ru_nvcsw as u64,
        involuntary_switches: usage.ru_nivcsw as u64,
    }
}

#[cfg(test)]
mod tests {
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
}
