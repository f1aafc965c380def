//! A clock for what may be a few milliseconds off.

use std::time::Duration;

/// A moment of the monotonic clock, as of the kernel's last tick (1 to 10 ms ago). Cost: a fifth of
/// `Instant::now`'s, which reads the processor's counter; none is a system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tick {
    /// Since the clock started.
    ns: u64,
}

impl Tick {
    /// The last one.
    pub fn now() -> Self {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the pointer is to a `timespec` of ours. The call cannot fail for this clock; the C
        // library's is used because it works in debuggers that give a process no vDSO.
        unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &raw mut time) };
        // The clock starts with the machine, so it is never negative; 64 bits last for 584 years.
        Tick { ns: time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64 }
    }

    /// How long ago it was, by the last tick.
    pub fn elapsed(self) -> Duration {
        Duration::from_nanos(Tick::now().ns.saturating_sub(self.ns))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn it_is_at_most_a_tick_behind() {
        let (start, tick) = (Instant::now(), Tick::now());
        std::thread::sleep(Duration::from_millis(30));
        let (exact, coarse) = (start.elapsed(), tick.elapsed());
        assert!(coarse + Duration::from_millis(11) > exact, "{coarse:?} of {exact:?}");
        assert!(coarse < exact + Duration::from_millis(11), "{coarse:?} of {exact:?}");
    }
}
