//! A description of this machine: the properties that affect measurements.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// The machine that performed a run. Values that cannot be read are `None`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// The kernel release, from `/proc/sys/kernel/osrelease`.
    pub kernel: Option<String>,
    /// The name and version of the distribution, from `PRETTY_NAME` in `/etc/os-release`.
    pub system: Option<String>,
    /// The processor's name.
    pub cpu_model: Option<String>,
    /// Processors this process may use, regardless of a quota of CPU time. For MPI ranks, the processors that all ranks
    /// together may use.
    pub cpus: usize,
    /// Memory in bytes.
    pub memory_bytes: Option<u64>,
    /// Frequency governor of the first processor.
    pub cpu_governor: Option<String>,
    /// The kernel's clock source.
    pub clock_source: Option<String>,
    /// Whether the machine runs under a hypervisor.
    pub is_virtual: Option<bool>,
    /// The 1-minute load average at the start. A high value means that other processes make the results noisy.
    pub load_1min: Option<f64>,
    /// The setting for transparent huge pages.
    pub huge_pages: Option<String>,
    /// The kernel's TCP congestion control for new connections.
    #[serde(default)]
    pub tcp_congestion_control: Option<String>,
    /// The file systems that the run used.
    pub file_systems: Vec<FileSystem>,
}

/// The mounted file system that contains a path, as listed in `/proc/self/mounts`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FileSystem {
    /// The role of the path in the run, such as `source` or `root`.
    pub role: String,
    /// The path that was examined.
    pub path: String,
    /// The mount point of the file system.
    pub mount_point: String,
    /// The type of the file system, such as `ext4` or `lustre`.
    pub kind: String,
    /// The mount options, separated by commas.
    pub options: String,
}

impl Machine {
    /// Reads the properties of this machine. `paths` are the paths that the run uses, each with its role.
    pub fn observe(paths: &[(&str, &Path)]) -> Self {
        let cpuinfo = read("/proc/cpuinfo").unwrap_or_default();
        let selected = |text: String| {
            let selected = text.split(['[', ']']).nth(1).map(str::to_owned);
            selected.unwrap_or(text)
        };
        Machine {
            kernel: read("/proc/sys/kernel/osrelease"),
            system: read("/etc/os-release").and_then(|text| value_of(&text, "PRETTY_NAME", '=')),
            cpu_model: value_of(&cpuinfo, "model name", ':'),
            // A quota can be used up on all of these processors within a part of its period, so it does not bound the
            // number of busy processors.
            cpus: fordway_sys::usable_cores().len().max(1),
            memory_bytes: read("/proc/meminfo")
                .and_then(|text| value_of(&text, "MemTotal", ':'))
                .and_then(|value| value.trim_end_matches("kB").trim().parse::<u64>().ok())
                .map(|kib| kib * 1024),
            cpu_governor: read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            clock_source: read("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
            is_virtual: value_of(&cpuinfo, "flags", ':')
                .map(|flags| flags.split(' ').any(|flag| flag == "hypervisor")),
            load_1min: read("/proc/loadavg").and_then(|text| text.split(' ').next()?.parse().ok()),
            huge_pages: read("/sys/kernel/mm/transparent_hugepage/enabled").map(selected),
            tcp_congestion_control: read("/proc/sys/net/ipv4/tcp_congestion_control"),
            file_systems: paths.iter().filter_map(|(role, path)| FileSystem::of(role, path)).collect(),
        }
    }

    /// Returns the number of this machine's processors that this process can keep busy: all that it may use, or fewer
    /// under a quota of CPU time. Call this on the machine that was observed.
    pub fn cpus_at_once(&self) -> usize {
        std::thread::available_parallelism().map_or(self.cpus, usize::from).min(self.cpus)
    }
}

impl FileSystem {
    /// Returns the file system that contains `path`. Its mount point is the longest mount point that is a prefix of
    /// `path`.
    pub fn of(role: &str, path: &Path) -> Option<Self> {
        let path = fs::canonicalize(path).ok()?;
        let mounts = read("/proc/self/mounts")?;
        let fits = |line: &str| {
            let mut fields = line.split(' ');
            let (_, mount_point) = (fields.next()?, fields.next()?.replace("\\040", " "));
            let (kind, options) = (fields.next()?.to_owned(), fields.next()?.to_owned());
            let path_text = path.display().to_string();
            path.starts_with(&mount_point).then(|| FileSystem {
                role: role.to_owned(),
                path: path_text,
                mount_point,
                kind,
                options,
            })
        };
        // A later mount hides an earlier mount at the same mount point; of equal maxima, `max_by_key` returns the last.
        mounts.lines().filter_map(fits).max_by_key(|found| found.mount_point.len())
    }
}

fn read(path: &str) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned()).filter(|text| !text.is_empty())
}

fn value_of(text: &str, name: &str, separator: char) -> Option<String> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(separator)?;
        (key.trim() == name).then(|| value.trim().trim_matches('"').to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_is_described() {
        let machine = Machine::observe(&[("root", Path::new("/"))]);
        assert_eq!(machine.cpus, fordway_sys::usable_cores().len());
        assert!((1..=machine.cpus).contains(&machine.cpus_at_once()));
        assert!(machine.kernel.is_some() && machine.memory_bytes.is_some_and(|bytes| bytes > 1 << 20));
        assert_eq!(machine.file_systems[0].mount_point, "/");
        assert!(Machine::observe(&[("none", Path::new("/does/not/exist"))]).file_systems.is_empty());
    }
}
