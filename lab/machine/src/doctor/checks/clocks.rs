//! Checks of clocks: how fast processors run, how deeply they sleep, and the cost of reading the time.

use std::collections::BTreeMap;

use super::DoctorCheckResult;
use super::processors::{PROCESSORS, allowed, is_guest};
use crate::doctor::FindingDraft;
use crate::doctor::tree::{SystemTree, UnreadableFile, shown};

/// A processor's clock counts as uncapped if the clock is allowed to reach this share of the processor's highest
/// frequency.
const CLOCK_LEAST: f64 = 0.95;
/// The longest wake-up latency of a sleep state, in µs, that is not reported as a problem. This limit is several times
/// the latency of a small message.
const WAKING_MAX_US: u64 = 50;

/// Checks which frequency governors the usable processors use. Cost: reads one file for each usable processor, and one
/// file for the driver.
pub(super) fn governor(tree: &SystemTree) -> DoctorCheckResult {
    let mine = allowed(tree)?;
    let governors = tree.read_each(PROCESSORS, &mine, "/cpufreq/scaling_governor");
    if governors.is_empty() {
        return no_clock_control(tree, "/cpufreq/scaling_governor");
    }
    let drivers = tree.read_each(PROCESSORS, &mine[..1], "/cpufreq/scaling_driver");
    // The drivers `intel_pstate` and `amd-pstate-epp` choose the clock frequency themselves, so processors reach full
    // speed even with the governor `powersave`.
    let is_adaptive = drivers
        .first()
        .is_some_and(|(_, driver)| matches!(driver.as_str(), "intel_pstate" | "amd-pstate-epp"));
    let mut by_name: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (cpu, governor) in &governors {
        by_name.entry(governor).or_default().push(*cpu);
    }
    let effect = |name: &str| match name {
        "powersave" if !is_adaptive => "processors remain at their lowest clock",
        _ => "after each wait the clock frequency must rise again, so times vary",
    };
    let others: Vec<String> = by_name
        .iter()
        .filter(|(name, _)| **name != "performance")
        .map(|(name, cpus)| match by_name.len() {
            1 => format!("{name}: {}", effect(name)),
            _ => format!("{name} on processors {}: {}", shown(cpus), effect(name)),
        })
        .collect();
    Ok(match others.is_empty() {
        true => FindingDraft::ok("performance: processors keep a high clock frequency"),
        false => FindingDraft::costs(
            others.join("; "),
            "srun --cpu-freq=Performance, or cpupower frequency-set --governor performance",
        ),
    })
}

/// Creates the finding for a node on which no usable processor has a `file` that contains a number. In a guest, this is
/// expected, because the host controls the clock.
fn no_clock_control(tree: &SystemTree, file: &str) -> DoctorCheckResult {
    match is_guest(tree) {
        Some(true) => Ok(FindingDraft::cannot_see(
            "the host chooses the clock frequency, not the guest",
            "ask the provider",
        )),
        _ => {
            let path = format!("{PROCESSORS}{}{file}", allowed(tree)?[0]);
            Err(tree.read(&path).map_or_else(|unseen| unseen, |text| UnreadableFile::unknown(&path, &text)))
        }
    }
}

/// Checks whether the clock frequency is capped; reports the cap and the maximum in GHz. Cost: reads two files for each
/// usable processor.
pub(super) fn clock_limit(tree: &SystemTree) -> DoctorCheckResult {
    let mine = allowed(tree)?;
    let khz = |file: &str| -> BTreeMap<usize, f64> {
        let texts = tree.read_each(PROCESSORS, &mine, file);
        texts.into_iter().filter_map(|(cpu, text)| Some((cpu, text.parse().ok()?))).collect()
    };
    let (ceilings, highest) = (khz("/cpufreq/scaling_max_freq"), khz("/cpufreq/cpuinfo_max_freq"));
    let limited: Vec<(usize, f64, f64)> = ceilings
        .iter()
        .filter_map(|(cpu, ceiling)| Some((*cpu, *ceiling, *highest.get(cpu)?)))
        .filter(|(_, ceiling, highest)| *ceiling < CLOCK_LEAST * highest)
        .collect();
    let Some((_, ceiling, of)) = limited.iter().min_by(|a, b| a.1.total_cmp(&b.1)) else {
        return match ceilings.is_empty() || highest.is_empty() {
            true => no_clock_control(tree, "/cpufreq/scaling_max_freq"),
            false => Ok(FindingDraft::ok("processors may reach their highest clock")),
        };
    };
    let cpus: Vec<usize> = limited.iter().map(|(cpu, ..)| *cpu).collect();
    let (ceiling, of) = (ceiling / 1e6, of / 1e6);
    Ok(FindingDraft::costs(
        format!("processors {} are limited to {ceiling:.1} GHz of {of:.1} GHz", shown(&cpus)),
        "cpupower frequency-set --max, or the power limit that a scheduler or a tool has set",
    )
    .measured("ceiling", ceiling, "GHz"))
}

/// Checks whether processors were throttled because they were too hot. Cost: reads two files for each usable processor.
pub(super) fn heat(tree: &SystemTree) -> DoctorCheckResult {
    let mine = allowed(tree)?;
    let sum = |file: &str| -> Option<u64> {
        let texts = tree.read_each(PROCESSORS, &mine, file);
        texts
            .iter()
            .map(|(_, text)| text.parse::<u64>().ok())
            .sum::<Option<u64>>()
            .filter(|_| !texts.is_empty())
    };
    let file = "/thermal_throttle/core_throttle_count";
    let Some(times) = sum(file) else {
        return match is_guest(tree) {
            Some(true) => Ok(FindingDraft::cannot_see(
                "only the host can see processor temperatures",
                "ask the provider",
            )),
            _ => no_clock_control(tree, file),
        };
    };
    let earlier = |cpu: &usize| tree.earlier(&format!("{PROCESSORS}{cpu}{file}"))?.parse::<u64>().ok();
    // Not every processor has such a file.
    let before: Vec<u64> = mine.iter().filter_map(earlier).collect();
    let before = (!before.is_empty()).then(|| before.iter().sum::<u64>());
    let said = match (times, before) {
        (0, _) => FindingDraft::ok("no processor was throttled because of heat since boot"),
        (times, Some(before)) if times <= before => FindingDraft::ok(format!(
            "no processor was throttled because of heat during this test, but {times} times since boot"
        )),
        (times, _) => FindingDraft::costs(
            format!(
                "processors were throttled because of heat {times} times since boot; other ranks then wait for them"
            ),
            "have the node's cooling checked; compare it with other nodes",
        ),
    };
    Ok(match sum("/thermal_throttle/core_throttle_total_time_ms") {
        Some(ms) => said.measured("slowed down since boot", ms as f64 / 1e3, "s"),
        None => said,
    })
}

/// Checks how long the first usable processor takes to wake from its deepest enabled sleep state, in µs.
pub(super) fn sleep_states(tree: &SystemTree) -> DoctorCheckResult {
    let first = allowed(tree)?[0];
    let directory = format!("{PROCESSORS}{first}/cpuidle");
    let names = match tree.names(&directory) {
        Err(_) if is_guest(tree) == Some(true) => {
            return Ok(FindingDraft::cannot_see(
                "the host chooses the sleep states of processors, not the guest",
                "ask the provider",
            ));
        }
        names => names?,
    };
    let state = |name: &String| {
        let read = |file: &str| tree.read(&format!("{directory}/{name}/{file}"));
        let is_off = read("disable").is_ok_and(|flag| flag == "1");
        let latency_us: u64 = read("latency").ok()?.parse().ok()?;
        Some((latency_us, read("name").unwrap_or_default())).filter(|_| !is_off)
    };
    let deepest = names.iter().filter(|name| name.starts_with("state")).filter_map(state).max();
    let (latency_us, name) = deepest.ok_or_else(|| UnreadableFile::unknown(&directory, "no state"))?;
    let said = match latency_us > WAKING_MAX_US {
        true => FindingDraft::costs(
            format!(
                "idle processors sleep as deeply as {name}, and take up to {latency_us} µs to wake: a wait for a message \
                 may last that much longer"
            ),
            "cpupower idle-set --disable-by-latency 10 while a job runs, or tuned-adm profile latency-performance",
        ),
        false => FindingDraft::ok(format!("idle processors wake within {latency_us} µs ({name})")),
    };
    Ok(said.measured("time to wake", latency_us as f64, "µs"))
}

pub(super) fn clock_source(tree: &SystemTree) -> DoctorCheckResult {
    let source = tree.read("sys/devices/system/clocksource/clocksource0/current_clocksource")?;
    Ok(match source.as_str() {
        "tsc" | "kvm-clock" | "hyperv_clocksource_tsc_page" | "arch_sys_counter" => {
            FindingDraft::ok(format!("{source}: read without a system call"))
        }
        other => FindingDraft::costs(
            format!("{other}: each clock reading is a system call or worse, and MPI reads the clock often"),
            "choose tsc: clocksource=tsc tsc=reliable on the kernel's command line",
        ),
    })
}
