//! Checks of control groups: the limits that apply to this process, and how often they took effect.
//! [`ControlGroupDirectories`] finds the groups of cgroups version 1, of version 2, and of hybrid set-ups.

use std::collections::HashSet;

use super::DoctorCheckResult;
use super::processors::allowed;
use crate::doctor::FindingDraft;
use crate::doctor::tree::{SystemTree, UnreadableFile, listed, value_of};

/// A limit of at least this value counts as no limit. Version 1 of cgroups expresses "no limit" as a very large number.
const NO_LIMIT_BYTES: u64 = 1 << 60;

pub(super) fn cpu_quota(tree: &SystemTree) -> DoctorCheckResult {
    let group = ControlGroupDirectories::of(tree, "cpu")?;
    let quotas = if group.is_v2 { quotas_v2(tree, &group) } else { quotas_v1(tree, &group) };
    let least = quotas.into_iter().min_by(f64::total_cmp);
    let Some(quota) = least else { return Ok(FindingDraft::ok("no limit of processor time")) };
    let cpus = allowed(tree)?.len();
    let said = match quota < cpus as f64 {
        true => FindingDraft::costs(
            format!(
                "{quota:.2} processors' worth of time on {cpus} processors: if more threads compute, all of them are \
                 stopped until the period (usually 100 ms) ends"
            ),
            "request whole processors (Guaranteed QoS with the static CPU manager), or start no more threads than the quota",
        ),
        false => FindingDraft::ok(format!(
            "limited to {quota:.2} processors' worth of time, which is all {cpus} processors"
        )),
    };
    Ok(said.measured("quota", quota, "processors"))
}

/// Returns the CPU quotas from `cpu.max`, in processors. The file contains, for example, `max 100000` or
/// `150000 100000`, in microseconds.
fn quotas_v2(tree: &SystemTree, group: &ControlGroupDirectories) -> Vec<f64> {
    let quota = |(_, text): (String, String)| {
        let (quota, period) = text.split_once(' ')?;
        Some(quota.parse::<f64>().ok()? / period.parse::<f64>().ok()?)
    };
    group.texts(tree, "cpu.max").into_iter().filter_map(quota).collect()
}

fn quotas_v1(tree: &SystemTree, group: &ControlGroupDirectories) -> Vec<f64> {
    let quota = |(path, text): (String, String)| {
        let quota: f64 = text.parse().ok().filter(|quota| *quota > 0.0)?;
        let period = tree.read(&path.replace("cfs_quota_us", "cfs_period_us")).ok()?;
        Some(quota / period.parse::<f64>().ok()?)
    };
    group.texts(tree, "cpu.cfs_quota_us").into_iter().filter_map(quota).collect()
}

pub(super) fn throttling(tree: &SystemTree) -> DoctorCheckResult {
    let group = ControlGroupDirectories::of(tree, "cpu")?;
    let texts = group.texts(tree, "cpu.stat");
    let worst = texts.iter().filter_map(|(_, text)| throttled(text)).max_by(|a, b| a.0.total_cmp(&b.0));
    let Some((share, seconds)) = worst else {
        return Ok(FindingDraft::ok("no processor time was withheld: no quota is set here"));
    };
    let since = |(path, text): &(String, String)| {
        Some(CpuThrottling::of(text)?.since(&CpuThrottling::of(tree.earlier(path)?)?).share())
    };
    let recent = texts.iter().filter_map(since).max_by(f64::total_cmp);
    let total = format!("{share:.1} % of its periods, {seconds:.1} s in total");
    let costs = |what: String| {
        FindingDraft::costs(what, "raise the quota to whole processors, or start fewer threads")
    };
    let said = match recent {
        _ if share == 0.0 => FindingDraft::ok("its quota has never stopped it"),
        None => costs(format!("stopped in {total}: other ranks wait for it during that time")),
        Some(0.0) => FindingDraft::ok(format!(
            "its quota did not stop it during this test, but stopped it in {total} since the group was created"
        )),
        Some(recent) => costs(format!(
            "stopped in {:.1} % of its periods during this test: other ranks wait for it during that time; since the \
             group was created, in {total}",
            100.0 * recent
        )),
    };
    Ok(said.measured("periods stopped", share, "%").measured("stopped", seconds, "s"))
}

/// The counters of the CPU quotas that apply to this process. Each counter starts when its control group is created.
#[derive(Clone, Debug, Default)]
pub(crate) struct CpuQuotaCounters {
    /// The smallest quota of all groups, in processors; `None` if there is none or it cannot be read.
    pub(crate) processors: Option<f64>,
    /// The counters of each group that has them, by the path of their file.
    groups: Vec<(String, CpuThrottling)>,
}

/// How often a control group was throttled.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct CpuThrottling {
    /// The number of scheduling periods.
    periods: f64,
    /// The number of periods in which the group was throttled.
    throttled: f64,
    /// How long the group was throttled, in seconds, added up over processors.
    pub(crate) seconds: f64,
}

impl CpuThrottling {
    /// Returns the share of the periods in which the group was throttled.
    pub(crate) fn share(&self) -> f64 {
        (self.throttled / self.periods.max(1.0)).clamp(0.0, 1.0)
    }

    fn of(text: &str) -> Option<Self> {
        let number = |name: &str| value_of(text, name)?.parse::<f64>().ok();
        let (_, seconds) = throttled(text)?;
        Some(CpuThrottling { periods: number("nr_periods")?, throttled: number("nr_throttled")?, seconds })
    }

    fn since(&self, begin: &Self) -> Self {
        CpuThrottling {
            periods: self.periods - begin.periods,
            throttled: self.throttled - begin.throttled,
            seconds: self.seconds - begin.seconds,
        }
    }
}

impl CpuQuotaCounters {
    /// Returns the throttling since `begin` of the group that was throttled in the largest share of its periods since
    /// then. The counters' absolute values do not identify this group, because a parent may have been throttled long
    /// ago.
    pub(crate) fn since(&self, begin: &CpuQuotaCounters) -> CpuThrottling {
        let of_group = |(path, end): &(String, CpuThrottling)| {
            let (_, begin) = begin.groups.iter().find(|(begun, _)| begun == path)?;
            Some(end.since(begin))
        };
        let groups = self.groups.iter().filter_map(of_group);
        groups.max_by(|a, b| a.share().total_cmp(&b.share())).unwrap_or_default()
    }
}

/// Returns the counters of all groups with the smallest of their quotas; `None` if no group has such counters.
pub(crate) fn quota_counters(tree: &SystemTree) -> Option<CpuQuotaCounters> {
    let group = ControlGroupDirectories::of(tree, "cpu").ok()?;
    let counts = |(path, text): (String, String)| Some((path, CpuThrottling::of(&text)?));
    let groups: Vec<_> = group.texts(tree, "cpu.stat").into_iter().filter_map(counts).collect();
    let quotas = [quotas_v2(tree, &group), quotas_v1(tree, &group)].concat();
    let processors = quotas.into_iter().reduce(f64::min);
    (!groups.is_empty()).then_some(CpuQuotaCounters { processors, groups })
}

/// Returns the percentage of scheduling periods in which the group was throttled, and the total throttled time in
/// seconds. Version 2 of cgroups counts microseconds; version 1 counts nanoseconds.
fn throttled(text: &str) -> Option<(f64, f64)> {
    let number = |name: &str| value_of(text, name)?.parse::<f64>().ok();
    let (periods, stopped) = (number("nr_periods")?, number("nr_throttled")?);
    let seconds = match number("throttled_usec") {
        Some(us) => us / 1e6,
        None => number("throttled_time")? / 1e9,
    };
    Some((100.0 * stopped / periods.max(1.0), seconds))
}

/// Checks whether this process has exclusive use of its processors: all of them are isolated from the scheduler, or a
/// control group reserves them.
pub(super) fn exclusive(tree: &SystemTree) -> DoctorCheckResult {
    let isolated = listed(&tree.read("sys/devices/system/cpu/isolated").unwrap_or_default());
    let isolated: HashSet<usize> = isolated.into_iter().collect();
    if allowed(tree)?.iter().all(|cpu| isolated.contains(cpu)) {
        return Ok(FindingDraft::ok("its processors are isolated from the scheduler"));
    }
    let group = ControlGroupDirectories::of(tree, "cpuset")?;
    let (name, own): (_, &[&str]) = match group.is_v2 {
        true => ("cpuset.cpus.partition", &["root", "isolated"]),
        false => ("cpuset.cpu_exclusive", &["1"]),
    };
    // Skip the topmost group, which contains all processes even if it is marked as exclusive.
    let top = group.directories.last().map(|top| format!("{top}/{name}"));
    let texts = group.texts(tree, name);
    let is_own = texts.iter().any(|(path, text)| Some(path) != top.as_ref() && own.contains(&text.as_str()));
    Ok(match is_own {
        true => FindingDraft::ok("its processors belong to no other group"),
        false => FindingDraft::cannot_see(
            "nothing keeps other processes or other guests off these processors; only the noise test shows whether there are any",
            "use whole nodes (sbatch --exclusive), the static CPU manager, or hw:cpu_policy=dedicated",
        ),
    })
}

/// Returns the smallest memory limit of all groups, in bytes; `None` if there is no limit, or if it cannot be read.
pub(crate) fn memory_limit_bytes(tree: &SystemTree) -> Option<u64> {
    least_memory_limit(tree, &ControlGroupDirectories::of(tree, "memory").ok()?)
}

fn least_memory_limit(tree: &SystemTree, group: &ControlGroupDirectories) -> Option<u64> {
    let name = if group.is_v2 { "memory.max" } else { "memory.limit_in_bytes" };
    let limits = group.texts(tree, name);
    limits.iter().filter_map(|(_, text)| text.parse().ok()).filter(|n: &u64| *n < NO_LIMIT_BYTES).min()
}

pub(super) fn memory(tree: &SystemTree) -> DoctorCheckResult {
    let group = ControlGroupDirectories::of(tree, "memory")?;
    let limit = least_memory_limit(tree, &group);
    if let Some(slowed) = slowed_down(tree, &group) {
        return Ok(slowed);
    }
    let Some(limit) = limit else { return Ok(FindingDraft::ok("no limit of memory")) };
    let (hits, recent) = match group.is_v2 {
        true => counted(tree, &group, "memory.events", |text| value_of(text, "max")?.parse().ok()),
        false => counted(tree, &group, "memory.failcnt", |text| text.parse().ok()),
    };
    let gib = limit as f64 / f64::from(1 << 30);
    let said = match (hits, recent) {
        (0, _) => FindingDraft::ok(format!("limited to {gib:.1} GiB, never reached; cached files count too")),
        (hits, Some(0)) => FindingDraft::ok(format!(
            "limited to {gib:.1} GiB, not reached during this test, but {hits} times since the group was created"
        )),
        (hits, _) => FindingDraft::costs(
            format!(
                "limited to {gib:.1} GiB, reached {hits} times: each time the program waits while the kernel reclaims pages"
            ),
            "request more memory (sbatch --mem, resources.limits.memory), or read less at once",
        ),
    };
    Ok(said.measured("limit", gib, "GiB"))
}

/// Creates the finding for groups that have exceeded their `memory.high`; `None` if there is no such group. The kernel
/// throttles the tasks of such a group, which must then reclaim pages themselves.
fn slowed_down(tree: &SystemTree, group: &ControlGroupDirectories) -> Option<FindingDraft> {
    let high = group.texts(tree, "memory.high");
    let least: u64 = high.iter().filter_map(|(_, text)| text.parse().ok()).min()?;
    let (times, recent) = counted(tree, group, "memory.events", |text| value_of(text, "high")?.parse().ok());
    let gib = least as f64 / f64::from(1 << 30);
    let said = FindingDraft::costs(
        format!(
            "memory use exceeded {gib:.1} GiB (memory.high) {times} times: each time tasks were throttled"
        ),
        "request more memory, or have memory.high raised",
    );
    (times > 0 && recent != Some(0)).then(|| said.measured("limit", gib, "GiB"))
}

/// Returns the largest count that `parse` finds in the files `name` of all groups, and the largest increase since the
/// files were remembered; `None` if they were not remembered.
fn counted(
    tree: &SystemTree,
    group: &ControlGroupDirectories,
    name: &str,
    parse: fn(&str) -> Option<u64>,
) -> (u64, Option<u64>) {
    let texts = group.texts(tree, name);
    let total = texts.iter().filter_map(|(_, text)| parse(text)).max().unwrap_or(0);
    let since =
        |(path, text): &(String, String)| Some(parse(text)?.saturating_sub(parse(tree.earlier(path)?)?));
    (total, texts.iter().filter_map(since).max())
}

pub(super) fn io(tree: &SystemTree) -> DoctorCheckResult {
    let group =
        ControlGroupDirectories::of(tree, "io").or_else(|_| ControlGroupDirectories::of(tree, "blkio"))?;
    // In a hybrid set-up without the `io` controller, `group` is the empty group of version 2, and limits may be in
    // `blkio`.
    let old = ControlGroupDirectories::of(tree, "blkio").ok().filter(|group| !group.is_v2);
    let names = ["blkio.throttle.read_bps_device", "blkio.throttle.write_bps_device"];
    let mut texts = group.texts(tree, "io.max");
    texts.extend(old.iter().flat_map(|old| names.map(|name| old.texts(tree, name))).flatten());
    for (path, text) in &texts {
        if let Some(unknown) = text.lines().find(|line| !is_device_limit(line)) {
            return Err(UnreadableFile::unknown(path, unknown));
        }
    }
    let limits: Vec<_> =
        texts.iter().map(|(_, text)| text.as_str()).filter(|text| !text.is_empty()).collect();
    Ok(match limits.first() {
        None => FindingDraft::cannot_see(
            "no limit on disk traffic is set here; limits and reservations of the host or the storage are not visible",
            "measure: fordway machines probe --disk DIR; reserve with --gres or a storage class",
        ),
        Some(limit) => FindingDraft::costs(
            format!(
                "disk traffic is limited ({}): programs that read a lot of data must wait",
                limit.replace('\n', "; ")
            ),
            "have the limit raised for jobs that do much I/O",
        ),
    })
}

/// Returns whether the line is a device and its limits, such as `8:0 rbps=1048576 wbps=max` in version 2 or
/// `8:0 1048576` in version 1.
fn is_device_limit(line: &str) -> bool {
    let mut words = line.split(' ');
    let is_number = |text: &str| text.parse::<u64>().is_ok();
    let device = words.next().and_then(|device| device.split_once(':'));
    let is_device = device.is_some_and(|(major, minor)| is_number(major) && is_number(minor));
    let mut limits = words.map(|word| word.split_once('=').map_or(word, |(_, value)| value)).peekable();
    is_device && limits.peek().is_some() && limits.all(|value| value == "max" || is_number(value))
}

const OWN: &str = "proc/self/cgroup";
const MOUNTS: &str = "proc/self/mountinfo";

/// The group directories of one controller: first the process's own group, then each visible ancestor. A limit in any
/// of these groups applies.
#[derive(Debug, PartialEq)]
pub(in crate::doctor) struct ControlGroupDirectories {
    pub(in crate::doctor) is_v2: bool,
    pub(in crate::doctor) directories: Vec<String>,
}

impl ControlGroupDirectories {
    /// Finds the groups of `controller`, such as `cpu`. In a hybrid set-up, version 1 takes precedence if it has the
    /// controller.
    pub(in crate::doctor) fn of(tree: &SystemTree, controller: &str) -> Result<Self, UnreadableFile> {
        let (own, mounts) = (tree.read(OWN)?, tree.read(MOUNTS)?);
        let v1 =
            own.lines().find_map(|line| path_of(line, |names| names.split(',').any(|n| n == controller)));
        let v2 = || own.lines().find_map(|line| path_of(line, str::is_empty));
        let (is_v2, path) = match v1 {
            Some(path) => (false, path),
            None => (true, v2().ok_or_else(|| UnreadableFile::unknown(OWN, &own))?),
        };
        let holds = |mount: &MountPoint<'_>| match is_v2 {
            true => mount.kind == "cgroup2",
            false => mount.kind == "cgroup" && mount.options.split(',').any(|option| option == controller),
        };
        let mount = mounts.lines().filter_map(MountPoint::of).find(holds);
        let mount =
            mount.ok_or_else(|| UnreadableFile::unknown(MOUNTS, "no control groups mounted, which"))?;
        Ok(ControlGroupDirectories { is_v2, directories: up(&mount, path) })
    }

    /// Returns the path and the content of the file `name` in each directory that has it; the process's own group is
    /// first.
    pub(in crate::doctor) fn texts(&self, tree: &SystemTree, name: &str) -> Vec<(String, String)> {
        let file = |directory: &String| {
            let path = format!("{directory}/{name}");
            Some((tree.read(&path).ok()?, path))
        };
        self.directories.iter().filter_map(file).map(|(text, path)| (path, text)).collect()
    }
}

/// Returns the path from a line `ID:CONTROLLERS:PATH` if `is_right` accepts the line's controllers.
fn path_of(line: &str, is_right: impl Fn(&str) -> bool) -> Option<&str> {
    let mut fields = line.splitn(3, ':').skip(1);
    let (controllers, path) = (fields.next()?, fields.next()?);
    is_right(controllers).then_some(path)
}

struct MountPoint<'a> {
    root: &'a str,
    point: &'a str,
    kind: &'a str,
    options: &'a str,
}

impl<'a> MountPoint<'a> {
    /// Parses a line of `mountinfo`, which consists of two groups of fields separated by ` - `.
    fn of(line: &'a str) -> Option<Self> {
        let (before, after) = line.split_once(" - ")?;
        let mut before = before.split(' ').skip(3);
        let mut after = after.split(' ');
        let (root, point, kind) = (before.next()?, before.next()?, after.next()?);
        Some(MountPoint { root, point, kind, options: after.nth(1)? })
    }
}

/// Returns the directories from the group at `path` up to the top of the mount. In a container, the top of the mount is
/// the container's own group, regardless of its path on the host.
fn up(mount: &MountPoint<'_>, path: &str) -> Vec<String> {
    let top = mount.point.trim_start_matches('/');
    let inside = match mount.root {
        "/" => path,
        root => path.strip_prefix(root).unwrap_or(""),
    };
    let mut names: Vec<_> = inside.split('/').filter(|name| !name.is_empty()).collect();
    if names.contains(&"..") {
        names.clear();
    }
    let mut directories = Vec::with_capacity(names.len() + 1);
    loop {
        directories.push([&[top], names.as_slice()].concat().join("/"));
        if names.pop().is_none() {
            return directories;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn group(own: &str, mounts: &str, controller: &str) -> Result<ControlGroupDirectories, UnreadableFile> {
        let place = tempfile::tempdir().unwrap();
        fs::create_dir_all(place.path().join("proc/self")).unwrap();
        fs::write(place.path().join(OWN), own).unwrap();
        fs::write(place.path().join(MOUNTS), mounts).unwrap();
        ControlGroupDirectories::of(&SystemTree::at(place.path()), controller)
    }

    const V1: &str = "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct";
    const V2: &str = "41 31 0:38 / /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw";

    #[test]
    fn version_1_version_2_and_both() {
        let one = group("4:cpu,cpuacct:/job/step\n", V1, "cpu").unwrap();
        let top = "sys/fs/cgroup/cpu,cpuacct";
        assert_eq!(one.directories, [format!("{top}/job/step"), format!("{top}/job"), top.to_owned()]);
        let two = group("0::/user.slice\n", V2, "cpu").unwrap();
        assert!(two.is_v2 && !one.is_v2);
        assert_eq!(two.directories, ["sys/fs/cgroup/user.slice", "sys/fs/cgroup"]);
        let both = format!("{V1}\n{}", V2.replace("/sys/fs/cgroup ", "/sys/fs/cgroup/unified "));
        let own = "4:cpu,cpuacct:/\n0::/x\n";
        assert!(!group(own, &both, "cpu").unwrap().is_v2);
        assert_eq!(
            group(own, &both, "io").unwrap().directories,
            ["sys/fs/cgroup/unified/x", "sys/fs/cgroup/unified"]
        );
    }

    #[test]
    fn a_container_is_at_the_top_of_what_it_sees() {
        let mounts = V1.replace(" / ", " /docker/7f ");
        assert_eq!(
            group("4:cpu,cpuacct:/docker/7f\n", &mounts, "cpu").unwrap().directories,
            ["sys/fs/cgroup/cpu,cpuacct"]
        );
        assert_eq!(group("0::/../../x\n", V2, "cpu").unwrap().directories, ["sys/fs/cgroup"]);
    }

    #[test]
    fn no_control_groups_are_named_as_such() {
        let why = group("", V2, "cpu").expect_err("the process is in none").to_string();
        assert!(why.starts_with("/proc/self/cgroup: "), "{why}");
        let why = group("0::/\n", "", "cpu").expect_err("none is mounted").to_string();
        assert!(why.contains("no control groups mounted"), "{why}");
    }
}
