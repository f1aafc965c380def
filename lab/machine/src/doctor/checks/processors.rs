//! Whose the processors are, and what takes them away.

use super::Answer;
use crate::doctor::finding::Said;
use crate::doctor::tree::{Tree, Unseen, listed, value_of};

const STAT: &str = "proc/stat";
const STATUS: &str = "proc/self/status";
const ONLINE: &str = "sys/devices/system/cpu/online";
/// Shares of time, in percent, from which on they are told as a cost.
const STEAL_COSTS: f64 = 0.5;
const PRESSURE_COSTS: f64 = 5.0;

/// Whether a hypervisor is beneath, as x86 tells; `None` where the file does not say.
pub(super) fn is_guest(tree: &Tree) -> Option<bool> {
    let info = tree.read("proc/cpuinfo").ok()?;
    let flags = value_of(&info, "flags")?;
    Some(flags.split(' ').any(|flag| flag == "hypervisor"))
}

/// The processors that this process may use.
pub(crate) fn allowed(tree: &Tree) -> Result<Vec<usize>, Unseen> {
    let status = tree.read(STATUS)?;
    let list = value_of(&status, "Cpus_allowed_list").map(listed).unwrap_or_default();
    match list.is_empty() {
        true => Err(Unseen::unknown(STATUS, "no Cpus_allowed_list, which")),
        false => Ok(list),
    }
}

/// What other guests, or the host itself, took since boot.
pub(super) fn steal(tree: &Tree) -> Answer {
    let text = tree.read(STAT)?;
    let line = value_of(&text, "cpu").ok_or_else(|| Unseen::unknown(STAT, &text))?;
    // user nice system idle iowait irq softirq steal; guest time is counted in user already.
    let ticks: Vec<f64> = line.split_whitespace().take(8).filter_map(|tick| tick.parse().ok()).collect();
    let [.., stolen] = ticks[..] else { return Err(Unseen::unknown(STAT, line)) };
    let share = 100.0 * stolen / ticks.iter().sum::<f64>().max(1.0);
    let said = match is_guest(tree) {
        Some(false) => Said::ok("no hypervisor beneath, so nothing is stolen"),
        _ if share >= STEAL_COSTS => Said::costs(
            format!(
                "other guests had {share:.1} % of the processors' time since boot when we wanted it; at a barrier \
                 all ranks wait for the one that is put aside"
            ),
            "ask for dedicated processors (OpenStack: hw:cpu_policy=dedicated; clouds: dedicated hosts, no burstable types)",
        ),
        _ if stolen == 0.0 => Said::cannot_see(
            "no time was stolen, or the hypervisor does not tell: it need not",
            "the noise test sees it too",
        ),
        _ => Said::ok(format!("{share:.2} % of the processors' time went to other guests since boot")),
    };
    Ok(said.measured("stolen since boot", share, "%"))
}

/// How much of the last minute something here waited for a processor.
pub(super) fn pressure(tree: &Tree) -> Answer {
    let path = "proc/pressure/cpu";
    let text = tree.read(path)?;
    let average = text.split_whitespace().find_map(|field| field.strip_prefix("avg60="));
    let share: f64 =
        average.and_then(|value| value.parse().ok()).ok_or_else(|| Unseen::unknown(path, &text))?;
    let said = match share >= PRESSURE_COSTS {
        true => Said::costs(
            format!("in {share:.0} % of the last minute something was ready to run and had no processor"),
            "do not start more ranks than processors, and keep other jobs off the node",
        ),
        false => Said::ok(format!("in {share:.1} % of the last minute something waited for a processor")),
    };
    Ok(said.measured("waited in the last minute", share, "%"))
}

/// Where a hypervisor is beneath, whether that one is a guest itself cannot be asked.
pub(super) fn nesting(tree: &Tree) -> Answer {
    let info = tree.read("proc/cpuinfo")?;
    let flags = value_of(&info, "flags").ok_or_else(|| Unseen::unknown("proc/cpuinfo", "no flags, which"))?;
    let has = |name: &str| flags.split(' ').any(|flag| flag == name);
    let can_host = has("vmx") || has("svm") || tree.has("sys/module/kvm_pvm");
    Ok(match (has("hypervisor"), can_host) {
        (false, _) => Said::ok("no hypervisor beneath"),
        (true, true) => Said::cannot_see(
            "a guest that can host guests: those would be nested, and pay twice for each exit; whether this one is \
             nested itself does not show",
            "run jobs in this machine, not in machines inside it",
        ),
        (true, false) => Said::cannot_see(
            "a guest; whether its host is a guest too does not show",
            "ask the provider; nested guests pay for each exit twice",
        ),
    })
}

pub(super) fn pinning(tree: &Tree) -> Answer {
    let (mine, all) = (allowed(tree)?.len(), listed(&tree.read(ONLINE)?).len());
    Ok(match mine < all {
        true => Said::ok(format!("kept to {mine} of {all} processors")),
        false => Said::costs(
            format!(
                "free to use all {all} processors: the scheduler moves ranks between them, and their caches are lost"
            ),
            "bind ranks: mpirun --bind-to core, srun --cpu-bind=cores",
        ),
    })
}

pub(super) fn smt(tree: &Tree) -> Answer {
    let active = tree.read("sys/devices/system/cpu/smt/active")?;
    let control = tree.read("sys/devices/system/cpu/smt/control").unwrap_or_default();
    Ok(match (active.as_str(), is_guest(tree)) {
        ("1", _) => Said::costs(
            "cores run two threads each: ranks on one core share its units, and slow each other",
            "one rank for a core: srun --hint=nomultithread, or echo off > /sys/devices/system/cpu/smt/control",
        ),
        (_, Some(true)) => Said::cannot_see(
            "the hypervisor shows cores with one thread; two of them may be one core of the host",
            "ask for a thread policy (OpenStack: hw:cpu_thread_policy=isolate or prefer)",
        ),
        _ => Said::ok(format!("one thread for a core (SMT {control})")),
    })
}
