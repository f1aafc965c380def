//! Memory: where it is, how it is mapped, and whether it is there.

use super::Answer;
use crate::doctor::finding::Said;
use crate::doctor::tree::{Tree, Unseen, listed, value_of};

pub(super) fn numa(tree: &Tree) -> Answer {
    let nodes = listed(&tree.read("sys/devices/system/node/online")?);
    let mine = super::processors::allowed(tree)?;
    let is_used = |node: &usize| {
        let cpus = tree.read(&format!("sys/devices/system/node/node{node}/cpulist")).unwrap_or_default();
        listed(&cpus).iter().any(|cpu| mine.contains(cpu))
    };
    let used = nodes.iter().filter(|node| is_used(node)).count();
    Ok(match (nodes.len(), used) {
        (1, _) if super::processors::is_guest(tree) == Some(true) => Said::cannot_see(
            "one NUMA node is shown; the hypervisor may hide that there are more beneath",
            "ask for a topology (OpenStack: hw:numa_nodes)",
        ),
        (1, _) => Said::ok("one NUMA node"),
        (all, ..=1) => Said::ok(format!("kept to one of {all} NUMA nodes")),
        (all, used) => Said::costs(
            format!(
                "spread over {used} of {all} NUMA nodes: memory of another node is further away, and ranks that move leave theirs behind"
            ),
            "bind memory and ranks: srun --mem-bind=local --cpu-bind=cores, mpirun --map-by numa --bind-to core",
        ),
    })
}

/// Guests cannot see what the host has promised to others; paging and a balloon are its traces.
pub(super) fn overcommit(tree: &Tree) -> Answer {
    let info = tree.read("proc/meminfo")?;
    let kib = |name: &str| value_of(&info, name)?.trim_end_matches(" kB").parse::<u64>().ok();
    let (Some(total), Some(free)) = (kib("SwapTotal"), kib("SwapFree")) else {
        return Err(Unseen::unknown("proc/meminfo", "no SwapTotal, which"));
    };
    let has_balloon = has_balloon(tree);
    let used_mib = total.saturating_sub(free) as f64 / 1024.0;
    let said = match (used_mib > 0.0, has_balloon, super::processors::is_guest(tree)) {
        (true, ..) => Said::costs(
            format!("{used_mib:.0} MiB are swapped out: who touches them waits for a disk"),
            "use less memory for each node, or no swap on nodes that compute",
        ),
        (_, true, _) => Said::cannot_see(
            "nothing is swapped here; a balloon (virtio_balloon) lets the host take memory back, and whether it has \
             promised more than it has does not show",
            "ask for huge pages beneath (OpenStack: hw:mem_page_size=large): such memory is not overcommitted",
        ),
        (_, _, Some(true)) => Said::cannot_see(
            "nothing is swapped here; whether the host pages does not show",
            "ask for huge pages beneath (OpenStack: hw:mem_page_size=large): such memory is not overcommitted",
        ),
        _ => Said::ok("nothing is swapped"),
    };
    Ok(said.measured("swapped", used_mib, "MiB"))
}

fn has_balloon(tree: &Tree) -> bool {
    let devices = "sys/bus/virtio/devices";
    let is_balloon = |name: &String| {
        tree.link(&format!("{devices}/{name}/driver")).is_ok_and(|driver| driver == "virtio_balloon")
    };
    tree.names(devices).is_ok_and(|names| names.iter().any(is_balloon))
}

pub(super) fn huge_pages(tree: &Tree) -> Answer {
    let path = "sys/kernel/mm/transparent_hugepage/enabled";
    let text = tree.read(path)?;
    let chosen = text.split(['[', ']']).nth(1);
    match chosen {
        Some("always") => Ok(Said::ok("programs get pages of 2 MiB without asking")),
        Some("madvise") => Ok(Said::costs(
            "pages of 2 MiB only for programs that ask: large arrays of others miss in the TLB, in a guest twice",
            "echo always > /sys/kernel/mm/transparent_hugepage/enabled, or GLIBC_TUNABLES=glibc.malloc.hugetlb=1",
        )),
        Some("never") => Ok(Said::costs(
            "pages of 4 KiB only: large arrays miss in the TLB, in a guest twice",
            "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled, and have programs ask",
        )),
        _ => Err(Unseen::unknown(path, &text)),
    }
}
