//! The clocks of file servers.
//!
//! A directory's time shows whether a file in it may be in the middle of being replaced. The server's clock sets this
//! time, and may differ by minutes from this node's clock. Each file that this process writes shows the difference: the
//! server has just set the file's change time. The difference is to the monotonic clock, so that it remains right when
//! this node's clock is set.

use std::sync::{LazyLock, RwLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use fordway_sys::FileStat;

/// The maximum number of devices whose servers' clocks are known.
const DEVICES_MAX: usize = 64;
/// A directory that has not changed for this long contains no file that is being replaced.
const RECENT: Duration = Duration::from_secs(300);
/// The same time if the server's clock is unknown, because this process has not written to the device. The time is
/// longer than the usual difference between the clocks of servers and nodes.
const RECENT_WITHOUT_CLOCK: Duration = Duration::from_secs(900);
/// The same time for the names of a file. The time is longer, because a mistake would not hide an object, but show it
/// without its metadata. Clocks that are set to the wrong time zone differ by less than a day.
const RECENT_NAMES_WITHOUT_CLOCK: Duration = Duration::from_secs(24 * 3600);

/// The number of nanoseconds by which the clock of each device's server is ahead of [`monotonic_ns`].
static AHEAD: RwLock<Vec<(u64, i64)>> = RwLock::new(Vec::new());

/// Learns the server's clock from the metadata of a file that has just been written, on a file system that other nodes
/// may change.
pub(crate) fn note_written(stat: &FileStat) {
    let ahead_ns = stat.changed_ns.saturating_sub(monotonic_ns());
    let mut all = AHEAD.write().unwrap_or_else(|poisoned| poisoned.into_inner());
    all.retain(|(device, _)| *device != stat.device);
    if all.len() == DEVICES_MAX {
        all.remove(0);
    }
    all.push((stat.device, ahead_ns));
}

/// Returns whether a directory with this state has changed so recently that a file in it may be in the middle of being
/// replaced.
pub(crate) fn is_recent(dir: &FileStat) -> bool {
    has_just_passed(dir.modified_ns, dir.device, RECENT_WITHOUT_CLOCK)
}

/// Returns whether a file with this state has got or lost a name so recently that another node may be in the middle of
/// replacing or removing it.
pub(crate) fn has_recent_names(file: &FileStat) -> bool {
    has_just_passed(file.changed_ns, file.device, RECENT_NAMES_WITHOUT_CLOCK)
}

/// Returns whether `time_ns`, which the server of `device` has set, is recent; `without_clock` is the limit if this
/// server's clock is unknown.
fn has_just_passed(time_ns: i64, device: u64, without_clock: Duration) -> bool {
    let all = AHEAD.read().unwrap_or_else(|poisoned| poisoned.into_inner());
    let known = all.iter().find(|(of, _)| *of == device);
    let (now_ns, recent) = match known {
        Some((_, ahead_ns)) => (monotonic_ns().saturating_add(*ahead_ns), RECENT),
        None => (now_ns(), without_clock),
    };
    now_ns.saturating_sub(time_ns) < recent.as_nanos() as i64
}

/// Returns the time since the first call.
fn monotonic_ns() -> i64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    START.elapsed().as_nanos() as i64
}

fn now_ns() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE_NS: i64 = 60_000_000_000;

    /// Returns the state of a file on `device` that changed this long ago, according to this node's clock.
    fn changed(device: u64, ago_ns: i64) -> FileStat {
        let file = fordway_sys::stat(std::fs::File::open("/").unwrap()).unwrap();
        let time = now_ns() - ago_ns;
        FileStat { device, modified_ns: time, changed_ns: time, ..file }
    }

    #[test]
    fn what_is_recent_depends_on_the_servers_clock() {
        // No file system has these device numbers.
        let [unknown, behind, same, ahead] = [u64::MAX, u64::MAX - 1, u64::MAX - 2, u64::MAX - 3];
        for (device, minutes) in [(behind, 20), (same, 0), (ahead, -20)] {
            note_written(&changed(device, minutes * MINUTE_NS));
        }
        let limits = [unknown, behind, same, ahead].map(|device| {
            let is_recent = |minutes: &i64| is_recent(&changed(device, *minutes * MINUTE_NS + MINUTE_NS / 2));
            (-30..60).filter(is_recent).max().unwrap()
        });
        assert_eq!(limits, [14, 24, 4, -16]);
        let of_names = [unknown, behind, same, ahead].map(|device| {
            let is_recent =
                |minutes: &i64| has_recent_names(&changed(device, *minutes * MINUTE_NS + MINUTE_NS / 2));
            (-30..2000).filter(is_recent).max().unwrap()
        });
        assert_eq!(of_names, [24 * 60 - 1, 24, 4, -16]);
    }
}
