//! Choices of the kernel.

use super::Answer;
use crate::doctor::finding::Said;
use crate::doctor::tree::Tree;

pub(super) fn governor(tree: &Tree) -> Answer {
    let governor = tree.read("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
    if governor.is_err() && super::processors::is_guest(tree) == Some(true) {
        return Ok(Said::cannot_see("a guest does not choose its clock; the host does", "ask the provider"));
    }
    let governor = governor?;
    let driver = tree.read("sys/devices/system/cpu/cpu0/cpufreq/scaling_driver").unwrap_or_default();
    // This one chooses by itself, and its powersave goes up to full speed.
    let is_adaptive = matches!(driver.as_str(), "intel_pstate" | "amd-pstate-epp");
    Ok(match governor.as_str() {
        "performance" => Said::ok("performance: processors keep their clock up"),
        "powersave" if !is_adaptive => Said::costs(
            "powersave: processors stay at their lowest clock",
            "srun --cpu-freq=Performance, or cpupower frequency-set --governor performance",
        ),
        other => Said::costs(
            format!("{other}: after each wait the clock has to rise again, and times vary"),
            "srun --cpu-freq=Performance, or cpupower frequency-set --governor performance",
        ),
    })
}

pub(super) fn clock_source(tree: &Tree) -> Answer {
    let source = tree.read("sys/devices/system/clocksource/clocksource0/current_clocksource")?;
    Ok(match source.as_str() {
        "tsc" | "kvm-clock" | "hyperv_clocksource_tsc_page" | "arch_sys_counter" => {
            Said::ok(format!("{source}: read without a system call"))
        }
        other => Said::costs(
            format!("{other}: each look at the clock is a system call or worse, and MPI looks often"),
            "choose tsc: clocksource=tsc tsc=reliable on the kernel's command line",
        ),
    })
}

pub(super) fn autogroup(tree: &Tree) -> Answer {
    let enabled = tree.read("proc/sys/kernel/sched_autogroup_enabled")?;
    Ok(match enabled.as_str() {
        "1" => Said::costs(
            "each login has an equal share of the processors, whatever it runs, and nice counts only within it",
            "sysctl kernel.sched_autogroup_enabled=0 on nodes that compute",
        ),
        _ => Said::ok("off: processes compete by their priorities"),
    })
}
