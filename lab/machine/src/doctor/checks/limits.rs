//! What the control groups of this process allow, and what they have withheld.

use super::Answer;
use super::processors::allowed;
use crate::doctor::cgroup::Group;
use crate::doctor::finding::Said;
use crate::doctor::tree::{Tree, listed, value_of};

/// Limits of version 1 from here on stand for none.
const NO_LIMIT_BYTES: u64 = 1 << 60;

pub(super) fn cpu_quota(tree: &Tree) -> Answer {
    let group = Group::of(tree, "cpu")?;
    let quotas = if group.is_v2 { quotas_v2(tree, &group) } else { quotas_v1(tree, &group) };
    let least = quotas.into_iter().min_by(f64::total_cmp);
    let Some(quota) = least else { return Ok(Said::ok("no limit of processor time")) };
    let cpus = allowed(tree)?.len();
    let said = match quota < cpus as f64 {
        true => Said::costs(
            format!(
                "{quota:.2} processors' worth of time on {cpus} processors: when more threads than that compute, all \
                 stand still until the period (mostly 100 ms) ends"
            ),
            "ask for whole processors (Guaranteed QoS with the static CPU manager), or start no more threads than that",
        ),
        false => {
            Said::ok(format!("limited to {quota:.2} processors' worth of time, which is all {cpus} of them"))
        }
    };
    Ok(said.measured("quota", quota, "processors"))
}

/// `max 100000` or `150000 100000`, in microseconds.
fn quotas_v2(tree: &Tree, group: &Group) -> Vec<f64> {
    let quota = |(_, text): (String, String)| {
        let (quota, period) = text.split_once(' ')?;
        Some(quota.parse::<f64>().ok()? / period.parse::<f64>().ok()?)
    };
    group.texts(tree, "cpu.max").into_iter().filter_map(quota).collect()
}

fn quotas_v1(tree: &Tree, group: &Group) -> Vec<f64> {
    let quota = |(path, text): (String, String)| {
        let quota: f64 = text.parse().ok().filter(|quota| *quota > 0.0)?;
        let period = tree.read(&path.replace("cfs_quota_us", "cfs_period_us")).ok()?;
        Some(quota / period.parse::<f64>().ok()?)
    };
    group.texts(tree, "cpu.cfs_quota_us").into_iter().filter_map(quota).collect()
}

pub(super) fn throttling(tree: &Tree) -> Answer {
    let group = Group::of(tree, "cpu")?;
    let texts = group.texts(tree, "cpu.stat");
    let worst = texts.iter().filter_map(|(_, text)| throttled(text)).max_by(|a, b| a.0.total_cmp(&b.0));
    let Some((share, seconds)) = worst else {
        return Ok(Said::ok("no processor time was withheld: no quota is counted here"));
    };
    let said = match share > 0.0 {
        true => Said::costs(
            format!(
                "stopped in {share:.1} % of its periods, {seconds:.1} s in all: who waits for it waits as long"
            ),
            "raise the quota to whole processors, or start fewer threads",
        ),
        false => Said::ok("its quota has never stopped it"),
    };
    Ok(said.measured("periods stopped", share, "%").measured("stopped", seconds, "s"))
}

/// The share of periods in percent, and seconds; version 2 counts microseconds, version 1 nanoseconds.
fn throttled(text: &str) -> Option<(f64, f64)> {
    let number = |name: &str| value_of(text, name)?.parse::<f64>().ok();
    let (periods, stopped) = (number("nr_periods")?, number("nr_throttled")?);
    let seconds = match number("throttled_usec") {
        Some(us) => us / 1e6,
        None => number("throttled_time")? / 1e9,
    };
    Some((100.0 * stopped / periods.max(1.0), seconds))
}

/// Whether nobody else may run where this process may.
pub(super) fn exclusive(tree: &Tree) -> Answer {
    let isolated = listed(&tree.read("sys/devices/system/cpu/isolated").unwrap_or_default());
    if allowed(tree)?.iter().all(|cpu| isolated.contains(cpu)) {
        return Ok(Said::ok("its processors are isolated from the scheduler"));
    }
    let group = Group::of(tree, "cpuset")?;
    let (name, own): (_, &[&str]) = match group.is_v2 {
        true => ("cpuset.cpus.partition", &["root", "isolated"]),
        false => ("cpuset.cpu_exclusive", &["1"]),
    };
    // The topmost group is marked so too, and everybody is in it.
    let top = group.directories.last().map(|top| format!("{top}/{name}"));
    let texts = group.texts(tree, name);
    let is_own = texts.iter().any(|(path, text)| Some(path) != top.as_ref() && own.contains(&text.as_str()));
    Ok(match is_own {
        true => Said::ok("its processors belong to no other group"),
        false => Said::cannot_see(
            "nothing keeps other processes, or other guests, off these processors; whether there are any shows only in noise",
            "take whole nodes (sbatch --exclusive), the static CPU manager, or hw:cpu_policy=dedicated",
        ),
    })
}

pub(super) fn memory(tree: &Tree) -> Answer {
    let group = Group::of(tree, "memory")?;
    let name = if group.is_v2 { "memory.max" } else { "memory.limit_in_bytes" };
    let limits = group.texts(tree, name);
    let limit =
        limits.iter().filter_map(|(_, text)| text.parse().ok()).filter(|n: &u64| *n < NO_LIMIT_BYTES).min();
    let Some(limit) = limit else { return Ok(Said::ok("no limit of memory")) };
    let hits = if group.is_v2 { hits_v2(tree, &group) } else { hits_v1(tree, &group) };
    let gib = limit as f64 / f64::from(1 << 30);
    let said = match hits {
        0 => Said::ok(format!("limited to {gib:.1} GiB, never reached; it holds for cached files too")),
        hits => Said::costs(
            format!(
                "limited to {gib:.1} GiB, reached {hits} times: each time pages are searched for in the program's time"
            ),
            "ask for more memory (sbatch --mem, resources.limits.memory), or read less at once",
        ),
    };
    Ok(said.measured("limit", gib, "GiB"))
}

fn hits_v2(tree: &Tree, group: &Group) -> u64 {
    let hits = |(_, text): &(String, String)| value_of(text, "max")?.parse::<u64>().ok();
    group.texts(tree, "memory.events").iter().filter_map(hits).max().unwrap_or(0)
}

fn hits_v1(tree: &Tree, group: &Group) -> u64 {
    group.texts(tree, "memory.failcnt").iter().filter_map(|(_, text)| text.parse().ok()).max().unwrap_or(0)
}

pub(super) fn io(tree: &Tree) -> Answer {
    let group = Group::of(tree, "io").or_else(|_| Group::of(tree, "blkio"))?;
    // A hybrid set-up without a controller `io` finds the empty one of version 2, and may have blkio's.
    let old = Group::of(tree, "blkio").ok().filter(|group| !group.is_v2);
    let names = ["blkio.throttle.read_bps_device", "blkio.throttle.write_bps_device"];
    let mut texts = group.texts(tree, "io.max");
    texts.extend(old.iter().flat_map(|old| names.map(|name| old.texts(tree, name))).flatten());
    let limits: Vec<_> =
        texts.iter().map(|(_, text)| text.as_str()).filter(|text| !text.is_empty()).collect();
    Ok(match limits.first() {
        None => Said::cannot_see(
            "no limit of disk traffic is set here; what the host or the storage allows, and whether it is reserved, does not show",
            "measure: fordway machines probe --disk DIR; reserve with --gres or a storage class",
        ),
        Some(limit) => Said::costs(
            format!("disk traffic is limited ({}): programs that read much wait", limit.replace('\n', "; ")),
            "have the limit raised for jobs that do much I/O",
        ),
    })
}
