//! Checks of processors: which of them this process may use, and what takes their time away. Checks of memory:
//! NUMA, huge pages and overcommitment. Checks of kernel settings.

use super::Answer;
use crate::doctor::FindingDraft;
use crate::doctor::tree::{SystemTree, UnreadableFile, listed, value_of};

const STAT: &str = "proc/stat";
const STATUS: &str = "proc/self/status";
const ONLINE: &str = "sys/devices/system/cpu/online";
/// Shares of time, in percent, at or above which a finding is `costs`.
const STEAL_COSTS: f64 = 0.5;
const PRESSURE_COSTS: f64 = 5.0;

/// Returns whether this machine runs under a hypervisor, by the flags that x86 reports; `None` if the file has no
/// flags.
pub(super) fn is_guest(tree: &SystemTree) -> Option<bool> {
    let info = tree.read("proc/cpuinfo").ok()?;
    let flags = value_of(&info, "flags")?;
    Some(flags.split(' ').any(|flag| flag == "hypervisor"))
}

/// Returns the processors that this process may use.
pub(crate) fn allowed(tree: &SystemTree) -> Result<Vec<usize>, UnreadableFile> {
    let status = tree.read(STATUS)?;
    let list = value_of(&status, "Cpus_allowed_list").map(listed).unwrap_or_default();
    match list.is_empty() {
        true => Err(UnreadableFile::unknown(STATUS, "no Cpus_allowed_list, which")),
        false => Ok(list),
    }
}

/// Checks the share of time that other guests, or the host itself, took since boot.
pub(super) fn steal(tree: &SystemTree) -> Answer {
    let text = tree.read(STAT)?;
    let line = value_of(&text, "cpu").ok_or_else(|| UnreadableFile::unknown(STAT, &text))?;
    // The fields are: user nice system idle iowait irq softirq steal. Guest time is already counted in user.
    let ticks: Vec<f64> = line.split_whitespace().take(8).filter_map(|tick| tick.parse().ok()).collect();
    let [.., stolen] = ticks[..] else { return Err(UnreadableFile::unknown(STAT, line)) };
    let share = 100.0 * stolen / ticks.iter().sum::<f64>().max(1.0);
    let said = match is_guest(tree) {
        Some(false) => FindingDraft::ok("no hypervisor beneath, so nothing is stolen"),
        _ if share >= STEAL_COSTS => FindingDraft::costs(
            format!(
                "other guests had {share:.1} % of the processors' time since boot when we wanted it; at a barrier \
                 all ranks wait for the one that is put aside"
            ),
            "ask for dedicated processors (OpenStack: hw:cpu_policy=dedicated; clouds: dedicated hosts, no burstable types)",
        ),
        _ if stolen == 0.0 => FindingDraft::cannot_see(
            "no time was stolen, or the hypervisor does not tell: it need not",
            "the noise test sees it too",
        ),
        _ => {
            FindingDraft::ok(format!("{share:.2} % of the processors' time went to other guests since boot"))
        }
    };
    Ok(said.measured("stolen since boot", share, "%"))
}

/// Checks the share of the last minute in which some task waited for a processor.
pub(super) fn pressure(tree: &SystemTree) -> Answer {
    let path = "proc/pressure/cpu";
    let text = tree.read(path)?;
    let average = text.split_whitespace().find_map(|field| field.strip_prefix("avg60="));
    let share: f64 =
        average.and_then(|value| value.parse().ok()).ok_or_else(|| UnreadableFile::unknown(path, &text))?;
    let said = match share >= PRESSURE_COSTS {
        true => FindingDraft::costs(
            format!("in {share:.0} % of the last minute something was ready to run and had no processor"),
            "do not start more ranks than processors, and keep other jobs off the node",
        ),
        false => {
            FindingDraft::ok(format!("in {share:.1} % of the last minute something waited for a processor"))
        }
    };
    Ok(said.measured("waited in the last minute", share, "%"))
}

/// Checks whether virtual machines are nested. A guest cannot see whether its host is a guest too.
pub(super) fn nesting(tree: &SystemTree) -> Answer {
    let info = tree.read("proc/cpuinfo")?;
    let flags =
        value_of(&info, "flags").ok_or_else(|| UnreadableFile::unknown("proc/cpuinfo", "no flags, which"))?;
    let has = |name: &str| flags.split(' ').any(|flag| flag == name);
    let can_host = has("vmx") || has("svm") || tree.has("sys/module/kvm_pvm");
    Ok(match (has("hypervisor"), can_host) {
        (false, _) => FindingDraft::ok("no hypervisor beneath"),
        (true, true) => FindingDraft::cannot_see(
            "a guest that can host guests: those would be nested, and pay twice for each exit; whether this one is \
             nested itself does not show",
            "run jobs in this machine, not in machines inside it",
        ),
        (true, false) => FindingDraft::cannot_see(
            "a guest; whether its host is a guest too does not show",
            "ask the provider; nested guests pay for each exit twice",
        ),
    })
}

pub(super) fn pinning(tree: &SystemTree) -> Answer {
    let (mine, all) = (allowed(tree)?.len(), listed(&tree.read(ONLINE)?).len());
    Ok(match mine < all {
        true => FindingDraft::ok(format!("kept to {mine} of {all} processors")),
        false => FindingDraft::costs(
            format!(
                "free to use all {all} processors: the scheduler moves ranks between them, and their caches are lost"
            ),
            "bind ranks: mpirun --bind-to core, srun --cpu-bind=cores",
        ),
    })
}

pub(super) fn smt(tree: &SystemTree) -> Answer {
    let active = tree.read("sys/devices/system/cpu/smt/active")?;
    let control = tree.read("sys/devices/system/cpu/smt/control").unwrap_or_default();
    Ok(match (active.as_str(), is_guest(tree)) {
        ("1", _) => FindingDraft::costs(
            "cores run two threads each: ranks on one core share its units, and slow each other",
            "one rank for a core: srun --hint=nomultithread, or echo off > /sys/devices/system/cpu/smt/control",
        ),
        (_, Some(true)) => FindingDraft::cannot_see(
            "the hypervisor shows cores with one thread; two of them may be one core of the host",
            "ask for a thread policy (OpenStack: hw:cpu_thread_policy=isolate or prefer)",
        ),
        _ => FindingDraft::ok(format!("one thread for a core (SMT {control})")),
    })
}

pub(super) fn numa(tree: &SystemTree) -> Answer {
    let nodes = listed(&tree.read("sys/devices/system/node/online")?);
    let mine = allowed(tree)?;
    let is_used = |node: &usize| {
        let cpus = tree.read(&format!("sys/devices/system/node/node{node}/cpulist")).unwrap_or_default();
        listed(&cpus).iter().any(|cpu| mine.contains(cpu))
    };
    let used = nodes.iter().filter(|node| is_used(node)).count();
    Ok(match (nodes.len(), used) {
        (1, _) if is_guest(tree) == Some(true) => FindingDraft::cannot_see(
            "one NUMA node is shown; the hypervisor may hide that there are more beneath",
            "ask for a topology (OpenStack: hw:numa_nodes)",
        ),
        (1, _) => FindingDraft::ok("one NUMA node"),
        (all, ..=1) => FindingDraft::ok(format!("kept to one of {all} NUMA nodes")),
        (all, used) => FindingDraft::costs(
            format!(
                "spread over {used} of {all} NUMA nodes: memory of another node is further away, and ranks that move leave theirs behind"
            ),
            "bind memory and ranks: srun --mem-bind=local --cpu-bind=cores, mpirun --map-by numa --bind-to core",
        ),
    })
}

/// Checks signs of overcommitted memory: swapping and a balloon. A guest cannot see how much memory the host has
/// promised to others.
pub(super) fn overcommit(tree: &SystemTree) -> Answer {
    let info = tree.read("proc/meminfo")?;
    let kib = |name: &str| value_of(&info, name)?.trim_end_matches(" kB").parse::<u64>().ok();
    let (Some(total), Some(free)) = (kib("SwapTotal"), kib("SwapFree")) else {
        return Err(UnreadableFile::unknown("proc/meminfo", "no SwapTotal, which"));
    };
    let has_balloon = has_balloon(tree);
    let used_mib = total.saturating_sub(free) as f64 / 1024.0;
    let said = match (used_mib > 0.0, has_balloon, is_guest(tree)) {
        (true, ..) => FindingDraft::costs(
            format!("{used_mib:.0} MiB are swapped out: who touches them waits for a disk"),
            "use less memory for each node, or no swap on nodes that compute",
        ),
        (_, true, _) => FindingDraft::cannot_see(
            "nothing is swapped here; a balloon (virtio_balloon) lets the host take memory back, and whether it has \
             promised more than it has does not show",
            "ask for huge pages beneath (OpenStack: hw:mem_page_size=large): such memory is not overcommitted",
        ),
        (_, _, Some(true)) => FindingDraft::cannot_see(
            "nothing is swapped here; whether the host pages does not show",
            "ask for huge pages beneath (OpenStack: hw:mem_page_size=large): such memory is not overcommitted",
        ),
        _ => FindingDraft::ok("nothing is swapped"),
    };
    Ok(said.measured("swapped", used_mib, "MiB"))
}

fn has_balloon(tree: &SystemTree) -> bool {
    let devices = "sys/bus/virtio/devices";
    let is_balloon = |name: &String| {
        tree.link(&format!("{devices}/{name}/driver")).is_ok_and(|driver| driver == "virtio_balloon")
    };
    tree.names(devices).is_ok_and(|names| names.iter().any(is_balloon))
}

pub(super) fn huge_pages(tree: &SystemTree) -> Answer {
    let path = "sys/kernel/mm/transparent_hugepage/enabled";
    let text = tree.read(path)?;
    let chosen = text.split(['[', ']']).nth(1);
    match chosen {
        Some("always") => Ok(FindingDraft::ok("programs get pages of 2 MiB without asking")),
        Some("madvise") => Ok(FindingDraft::costs(
            "pages of 2 MiB only for programs that ask: large arrays of others miss in the TLB, in a guest twice",
            "echo always > /sys/kernel/mm/transparent_hugepage/enabled, or GLIBC_TUNABLES=glibc.malloc.hugetlb=1",
        )),
        Some("never") => Ok(FindingDraft::costs(
            "pages of 4 KiB only: large arrays miss in the TLB, in a guest twice",
            "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled, and have programs ask",
        )),
        _ => Err(UnreadableFile::unknown(path, &text)),
    }
}

pub(super) fn governor(tree: &SystemTree) -> Answer {
    let governor = tree.read("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
    if governor.is_err() && is_guest(tree) == Some(true) {
        return Ok(FindingDraft::cannot_see(
            "a guest does not choose its clock; the host does",
            "ask the provider",
        ));
    }
    let governor = governor?;
    let driver = tree.read("sys/devices/system/cpu/cpu0/cpufreq/scaling_driver").unwrap_or_default();
    // These drivers choose the clock themselves; their `powersave` also reaches full speed.
    let is_adaptive = matches!(driver.as_str(), "intel_pstate" | "amd-pstate-epp");
    Ok(match governor.as_str() {
        "performance" => FindingDraft::ok("performance: processors keep their clock up"),
        "powersave" if !is_adaptive => FindingDraft::costs(
            "powersave: processors stay at their lowest clock",
            "srun --cpu-freq=Performance, or cpupower frequency-set --governor performance",
        ),
        other => FindingDraft::costs(
            format!("{other}: after each wait the clock has to rise again, and times vary"),
            "srun --cpu-freq=Performance, or cpupower frequency-set --governor performance",
        ),
    })
}

pub(super) fn clock_source(tree: &SystemTree) -> Answer {
    let source = tree.read("sys/devices/system/clocksource/clocksource0/current_clocksource")?;
    Ok(match source.as_str() {
        "tsc" | "kvm-clock" | "hyperv_clocksource_tsc_page" | "arch_sys_counter" => {
            FindingDraft::ok(format!("{source}: read without a system call"))
        }
        other => FindingDraft::costs(
            format!("{other}: each look at the clock is a system call or worse, and MPI looks often"),
            "choose tsc: clocksource=tsc tsc=reliable on the kernel's command line",
        ),
    })
}

pub(super) fn autogroup(tree: &SystemTree) -> Answer {
    let enabled = tree.read("proc/sys/kernel/sched_autogroup_enabled")?;
    Ok(match enabled.as_str() {
        "1" => FindingDraft::costs(
            "each login has an equal share of the processors, whatever it runs, and nice counts only within it",
            "sysctl kernel.sched_autogroup_enabled=0 on nodes that compute",
        ),
        _ => FindingDraft::ok("off: processes compete by their priorities"),
    })
}
