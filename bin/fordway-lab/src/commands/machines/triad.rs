//! Memory bandwidth as STREAM measures it: `a[i] = b[i] + q * c[i]` on all threads.

use std::collections::BTreeSet;
use std::fs;
use std::hint::black_box;
use std::path::Path;

use fordway_measure::{Machine, bytes_text};
use fordway_store::{Error, ErrorKind, Result};
use fordway_wire::size_text::parse_bytes;

use super::memory::fastest_round;

/// STREAM's rule: each array has at least four times the bytes of the last-level caches.
const TIMES_CACHE: u64 = 4;
/// Each array has at least this, also where caches are small or unknown: shorter rounds are all start and end.
const ARRAY_BYTES_MIN: u64 = 64 << 20;
/// Rounds of which the fastest counts, as STREAM has it.
const ROUNDS: usize = 10;
const Q: f64 = 3.0;
const CPUS: &str = "/sys/devices/system/cpu";

/// How much work a triad is.
pub(super) struct Triad {
    array_bytes: u64,
    cache_bytes: Option<u64>,
    threads: usize,
}

impl Triad {
    /// What this machine needs. Errors: `InvalidArgument` if that is more than a quarter of its memory.
    pub(super) fn of(machine: &Machine) -> Result<Self> {
        let cache_bytes = last_level_cache_bytes(Path::new(CPUS));
        let array_bytes = (TIMES_CACHE * cache_bytes.unwrap_or(0)).max(ARRAY_BYTES_MIN);
        let wanted = 3 * array_bytes;
        if machine.memory_bytes.is_none_or(|memory| wanted > memory / 4) {
            let why =
                format!("it takes {} of memory, more than a quarter of what there is", bytes_text(wanted));
            return Err(Error::new(ErrorKind::InvalidArgument, why));
        }
        Ok(Triad { array_bytes, cache_bytes, threads: machine.cpus })
    }

    pub(super) fn how(&self) -> String {
        let cache = match self.cache_bytes {
            Some(bytes) => format!("last-level cache {}", bytes_text(bytes)),
            None => "the kernel does not tell the size of the cache".to_owned(),
        };
        let (threads, array) = (self.threads, bytes_text(self.array_bytes));
        format!("triad on {threads} threads, 3 arrays of {array} ({cache}), the fastest of {ROUNDS}")
    }

    /// MB/s read and written.
    pub(super) fn mb_per_s(&self) -> f64 {
        let length = (self.array_bytes / 8) as usize / self.threads;
        let fastest = fastest_round(self.threads, ROUNDS, || {
            // By the thread that uses them, so that they lie in its part of the memory.
            let (mut a, b, c) = (vec![1.0f64; length], vec![2.0; length], vec![0.5; length]);
            move || {
                let (b, c) = (black_box(&b), black_box(&c));
                a.iter_mut().zip(b).zip(c).for_each(|((a, b), c)| *a = b + Q * c);
                black_box(&a);
            }
        });
        (3 * 8 * length * self.threads) as f64 / fastest.as_micros().max(1) as f64
    }
}

/// The sum of all caches of the last level; `None` if the kernel does not say.
fn last_level_cache_bytes(cpus: &Path) -> Option<u64> {
    let mut caches = BTreeSet::new();
    for cpu in fs::read_dir(cpus).ok()?.flatten() {
        for cache in fs::read_dir(cpu.path().join("cache")).into_iter().flatten().flatten() {
            let read = |name| fs::read_to_string(cache.path().join(name)).map(|text| text.trim().to_owned());
            let (Ok(level), Ok(size), Ok(shared)) = (read("level"), read("size"), read("shared_cpu_list"))
            else {
                continue;
            };
            // The kernel writes 32768K.
            let size = parse_bytes(&size.replace('K', "KiB").replace('M', "MiB")).ok();
            caches.insert((level.parse::<u8>().ok()?, shared, size?));
        }
    }
    let last = caches.iter().map(|(level, ..)| *level).max()?;
    Some(caches.iter().filter(|(level, ..)| *level == last).map(|(.., size)| size).sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two sockets of two processors: what processors share counts once.
    #[test]
    fn caches_of_the_last_level_are_added() {
        let dir = tempfile::tempdir().unwrap();
        for (cpu, socket) in [(0, "0-1"), (1, "0-1"), (2, "2-3"), (3, "2-3")] {
            let own = cpu.to_string();
            for (index, level, size, shared) in [(0, "1", "48K", own.as_str()), (3, "3", "32768K", socket)] {
                let cache = dir.path().join(format!("cpu{cpu}/cache/index{index}"));
                fs::create_dir_all(&cache).unwrap();
                for (name, text) in [("level", level), ("size", size), ("shared_cpu_list", shared)] {
                    fs::write(cache.join(name), format!("{text}\n")).unwrap();
                }
            }
        }
        assert_eq!(last_level_cache_bytes(dir.path()), Some(64 << 20));
        assert_eq!(last_level_cache_bytes(&dir.path().join("cpu0")), None);
        assert_eq!(last_level_cache_bytes(&dir.path().join("missing")), None);
    }

    #[test]
    fn a_machine_without_the_memory_is_told() {
        let small = Machine { cpus: 1, memory_bytes: Some(1 << 20), ..Machine::default() };
        let error = Triad::of(&small).err().expect("it was measured");
        assert!(error.to_string().contains("more than a quarter"), "{error}");
        let triad = Triad { array_bytes: 1 << 16, cache_bytes: None, threads: 2 };
        assert!(triad.mb_per_s() > 0.0 && triad.how().contains("3 arrays of 64.0 KiB"));
    }
}
