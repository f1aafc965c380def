//! Checks of processors: the processors that this process may use, and the share of processor time that other guests
//! take.

use std::collections::HashSet;

use super::DoctorCheckResult;
use crate::doctor::FindingDraft;
use crate::doctor::tree::{SystemTree, UnreadableFile, listed, value_of};

/// The path of a processor's directory, without the number at its end.
pub(super) const PROCESSORS: &str = "sys/devices/system/cpu/cpu";

const STAT: &str = "proc/stat";
const STATUS: &str = "proc/self/status";
const ONLINE: &str = "sys/devices/system/cpu/online";
/// The share of stolen time, in percent, at or above which the verdict is `costs`.
const STEAL_COSTS: f64 = 0.5;

/// Returns whether this machine runs under a hypervisor, according to the CPU flags of x86; `None` if the file lists no
/// flags.
pub(super) fn is_guest(tree: &SystemTree) -> Option<bool> {
    let info = tree.read("proc/cpuinfo").ok()?;
    let flags = value_of(&info, "flags")?;
    Some(flags.split(' ').any(|flag| flag == "hypervisor"))
}

/// Returns the processors that this process may use. Without a restriction, `Cpus_allowed_list` contains every
/// processor that the kernel could support, such as 128 processors in a guest with 4. Processors that are not online
/// are therefore left out.
pub(crate) fn allowed(tree: &SystemTree) -> Result<Vec<usize>, UnreadableFile> {
    let status = tree.read(STATUS)?;
    let mut list = value_of(&status, "Cpus_allowed_list").map(listed).unwrap_or_default();
    if list.is_empty() {
        return Err(UnreadableFile::unknown(STATUS, "no Cpus_allowed_list, which"));
    }
    if let Ok(online) = online(tree) {
        let online: HashSet<usize> = online.into_iter().collect();
        list.retain(|cpu| online.contains(cpu));
    }
    match list.is_empty() {
        true => Err(UnreadableFile::unknown(
            STATUS,
            "a Cpus_allowed_list without processors that are online, which",
        )),
        false => Ok(list),
    }
}

/// Returns the processors that are online.
pub(crate) fn online(tree: &SystemTree) -> Result<Vec<usize>, UnreadableFile> {
    let text = tree.read(ONLINE)?;
    let list = listed(&text);
    if list.is_empty() { Err(UnreadableFile::unknown(ONLINE, &text)) } else { Ok(list) }
}

/// Checks the share of time taken by other guests or by the host since boot.
pub(super) fn steal(tree: &SystemTree) -> DoctorCheckResult {
    let text = tree.read(STAT)?;
    let line = value_of(&text, "cpu").ok_or_else(|| UnreadableFile::unknown(STAT, &text))?;
    let (stolen, all) = ticks(line).ok_or_else(|| UnreadableFile::unknown(STAT, line))?;
    let share = 100.0 * stolen / all.max(1.0);
    let earlier = tree.earlier(STAT).and_then(|text| ticks(value_of(text, "cpu")?));
    let recent = earlier.map(|before| (stolen - before.0, all - before.1));
    // A single tick may be a coincidence.
    let is_recent = recent.is_none_or(|(stolen, all)| stolen >= 2.0 && 100.0 * stolen / all >= STEAL_COSTS);
    let (judged, period) = match recent {
        Some((stolen, all)) => (100.0 * stolen / all.max(1.0), "during this test"),
        None => (share, "since boot"),
    };
    let said = match is_guest(tree) {
        Some(false) => FindingDraft::ok("no hypervisor, so no time is stolen"),
        _ if judged >= STEAL_COSTS && is_recent => FindingDraft::costs(
            format!(
                "other guests took {judged:.1} % of the processors' time {period} while this guest had work; at \
                 a barrier all ranks wait for the rank that was interrupted"
            ),
            "request dedicated processors (OpenStack: hw:cpu_policy=dedicated; clouds: dedicated hosts, no burstable types)",
        ),
        _ if stolen == 0.0 => FindingDraft::cannot_see(
            "no time was stolen, or the hypervisor does not report it",
            "the noise test detects it too",
        ),
        _ => {
            FindingDraft::ok(format!("{share:.2} % of the processors' time went to other guests since boot"))
        }
    };
    Ok(said.measured("stolen since boot", share, "%"))
}

/// Returns the stolen time and the total time of all processors, in ticks.
fn ticks(line: &str) -> Option<(f64, f64)> {
    // The fields are: user nice system idle iowait irq softirq steal. `user` already includes the time of guests.
    let ticks: Vec<f64> = line.split_whitespace().take(8).filter_map(|tick| tick.parse().ok()).collect();
    let is_whole = ticks.len() == 8 && ticks.iter().all(|tick| tick.is_finite());
    is_whole.then(|| (ticks[7], ticks.iter().sum()))
}

/// Checks for nested virtual machines. A guest cannot see whether its host is also a guest.
pub(super) fn nesting(tree: &SystemTree) -> DoctorCheckResult {
    let info = tree.read("proc/cpuinfo")?;
    let flags =
        value_of(&info, "flags").ok_or_else(|| UnreadableFile::unknown("proc/cpuinfo", "no flags, which"))?;
    let has = |name: &str| flags.split(' ').any(|flag| flag == name);
    let can_host = has("vmx") || has("svm") || tree.has("sys/module/kvm_pvm");
    Ok(match (has("hypervisor"), can_host) {
        (false, _) => FindingDraft::ok("no hypervisor"),
        (true, true) => FindingDraft::cannot_see(
            "this guest can host other guests: these would be nested, and pay twice for each exit; whether this \
             guest is nested itself is not visible",
            "run jobs in this machine, not in machines inside it",
        ),
        (true, false) => FindingDraft::cannot_see(
            "a guest; whether its host is also a guest is not visible",
            "ask the provider; nested guests pay for each exit twice",
        ),
    })
}

pub(super) fn pinning(tree: &SystemTree) -> DoctorCheckResult {
    let (mine, all) = (allowed(tree)?.len(), online(tree)?.len());
    Ok(match mine < all {
        true => FindingDraft::ok(format!("kept to {mine} of {all} processors")),
        false if all == 1 => FindingDraft::ok("there is only one processor"),
        false => FindingDraft::costs(
            format!(
                "free to use all {all} processors: the scheduler moves ranks between them, and ranks that move lose their cached data"
            ),
            "bind ranks: mpirun --bind-to core, srun --cpu-bind=cores",
        ),
    })
}

pub(super) fn autogroup(tree: &SystemTree) -> DoctorCheckResult {
    let enabled = tree.read("proc/sys/kernel/sched_autogroup_enabled")?;
    Ok(match enabled.as_str() {
        "1" => FindingDraft::costs(
            "each login session has an equal share of the processors, regardless of its load, and nice has an effect only within a session",
            "sysctl kernel.sched_autogroup_enabled=0 on nodes that compute",
        ),
        _ => FindingDraft::ok("off: processes compete by their priorities"),
    })
}

/// Checks whether this process may use two threads of one core. Cost: reads one file for each usable processor.
pub(super) fn smt(tree: &SystemTree) -> DoctorCheckResult {
    let active = tree.read("sys/devices/system/cpu/smt/active")?;
    let control = tree.read("sys/devices/system/cpu/smt/control").unwrap_or_default();
    Ok(match (active.as_str(), is_guest(tree)) {
        ("1", _) if uses_one_thread_a_core(tree)? => {
            FindingDraft::ok("cores run two threads each; this process may use one of them")
        }
        ("1", _) => FindingDraft::costs(
            "cores run two threads each: ranks on one core share its execution units, and slow each other down",
            "one rank per core: srun --hint=nomultithread, or echo off > /sys/devices/system/cpu/smt/control",
        ),
        (_, Some(true)) => FindingDraft::cannot_see(
            "the hypervisor shows cores with one thread; two of them may be one core of the host",
            "request a thread policy (OpenStack: hw:cpu_thread_policy=isolate or prefer)",
        ),
        _ => FindingDraft::ok(format!("one thread per core (SMT {control})")),
    })
}

/// Returns the number of cores to which `processors` belong. If the kernel does not report the threads of cores, two
/// processors are one core if SMT is active.
pub(crate) fn cores_of(tree: &SystemTree, processors: &[usize]) -> usize {
    let siblings = tree.read_each(PROCESSORS, processors, "/topology/thread_siblings_list");
    let cores: HashSet<_> = siblings.iter().map(|(_, siblings)| siblings).collect();
    let is_smt = || tree.read("sys/devices/system/cpu/smt/active").is_ok_and(|active| active == "1");
    match siblings.len() == processors.len() {
        true => cores.len(),
        false if is_smt() => processors.len().div_ceil(2),
        false => processors.len(),
    }
}

/// Returns whether no two usable processors are threads of the same core; false if the kernel does not report the
/// threads of cores.
fn uses_one_thread_a_core(tree: &SystemTree) -> Result<bool, UnreadableFile> {
    let mine = allowed(tree)?;
    let siblings = tree.read_each(PROCESSORS, &mine, "/topology/thread_siblings_list");
    let cores: HashSet<_> = siblings.iter().map(|(_, siblings)| siblings).collect();
    Ok(cores.len() == mine.len())
}
