//! Checks of memory: NUMA placement, overcommitment and page size.

use super::DoctorCheckResult;
use super::processors::{allowed, is_guest};
use crate::doctor::FindingDraft;
use crate::doctor::tree::{SystemTree, UnreadableFile, listed, shown, value_of};

const NODES: &str = "sys/devices/system/node/online";
/// The maximum number of NUMA nodes that a kernel can be built for.
const MAX_NODES: usize = 1 << 10;
/// The minimum amount of swapped memory for a finding, in MiB. Smaller amounts usually belong to idle programs, so no
/// program waits for this memory.
const SWAPPED_LEAST_MIB: f64 = 64.0;

/// The NUMA nodes of this machine, and which of them have a processor that this process may use.
pub(super) struct UsableNumaNodes {
    pub(super) all: Vec<usize>,
    pub(super) used: Vec<usize>,
}

impl UsableNumaNodes {
    /// Determines both lists of nodes. Cost: reads one file for each node.
    pub(super) fn of(tree: &SystemTree) -> Result<Self, UnreadableFile> {
        let text = tree.read(NODES)?;
        let mut all = listed(&text);
        if all.is_empty() {
            return Err(UnreadableFile::unknown(NODES, &text));
        }
        all.truncate(MAX_NODES);
        let mine: std::collections::HashSet<usize> = allowed(tree)?.into_iter().collect();
        let is_used = |node: &usize| {
            let cpus = tree.read(&format!("sys/devices/system/node/node{node}/cpulist")).unwrap_or_default();
            listed(&cpus).iter().any(|cpu| mine.contains(cpu))
        };
        let used = all.iter().copied().filter(is_used).collect();
        Ok(UsableNumaNodes { all, used })
    }
}

/// Checks whether the processors and the memory of this process are on the same NUMA node.
pub(super) fn numa(tree: &SystemTree) -> DoctorCheckResult {
    let UsableNumaNodes { all, used } = UsableNumaNodes::of(tree)?;
    let memory = value_of(&tree.read("proc/self/status")?, "Mems_allowed_list").map(listed);
    let memory = memory.unwrap_or_else(|| all.clone());
    let far: Vec<usize> = used.iter().copied().filter(|node| !memory.contains(node)).collect();
    Ok(match (all.len(), used.len()) {
        (1, _) if is_guest(tree) == Some(true) => FindingDraft::cannot_see(
            "one NUMA node is visible; the hypervisor may hide others",
            "request a topology (OpenStack: hw:numa_nodes)",
        ),
        (1, _) => FindingDraft::ok("one NUMA node"),
        _ if !far.is_empty() => FindingDraft::costs(
            format!(
                "processors of node {} may be used, but only memory of node {}: each access crosses between the nodes",
                shown(&far),
                shown(&memory)
            ),
            "allow memory of the processors' own node: srun --mem-bind=local, cpuset.mems of the group",
        ),
        (all, 0) => FindingDraft::cannot_see(
            format!("none of the {all} NUMA nodes lists a processor that this process may use"),
            "see lscpu and numactl --show",
        ),
        (all, 1) => FindingDraft::ok(format!("kept to one of {all} NUMA nodes")),
        (all, used) => FindingDraft::costs(
            format!(
                "spread over {used} of {all} NUMA nodes: access to another node's memory is slower, and the memory \
                 of ranks that move stays behind"
            ),
            "bind memory and ranks: srun --mem-bind=local --cpu-bind=cores, mpirun --map-by numa --bind-to core",
        ),
    })
}

/// Checks whether the kernel reclaims pages on the local node before it allocates memory on another node.
pub(super) fn zone_reclaim(tree: &SystemTree) -> DoctorCheckResult {
    let mode = tree.read("proc/sys/vm/zone_reclaim_mode")?;
    let nodes = UsableNumaNodes::of(tree)?.all.len();
    Ok(match (mode.as_str(), nodes) {
        ("0", _) => FindingDraft::ok("off: a full NUMA node allocates memory on the other nodes"),
        (_, 0..=1) => FindingDraft::ok("there is one NUMA node, so it has no effect"),
        (mode, _) => FindingDraft::costs(
            format!(
                "on (vm.zone_reclaim_mode={mode}): a full NUMA node drops cached files, and programs wait while \
                 pages are reclaimed, although other nodes have free memory"
            ),
            "sysctl vm.zone_reclaim_mode=0",
        ),
    })
}

/// Checks for signs of overcommitted memory: swapping, and a memory balloon. A guest cannot see whether its host has
/// overcommitted memory.
pub(super) fn overcommit(tree: &SystemTree) -> DoctorCheckResult {
    let info = tree.read("proc/meminfo")?;
    let kib = |name: &str| value_of(&info, name)?.trim_end_matches(" kB").parse::<u64>().ok();
    let (Some(total), Some(free)) = (kib("SwapTotal"), kib("SwapFree")) else {
        return Err(UnreadableFile::unknown("proc/meminfo", "no SwapTotal, which"));
    };
    let has_balloon = has_balloon(tree);
    let used_mib = total.saturating_sub(free) as f64 / 1024.0;
    let is_much = used_mib >= SWAPPED_LEAST_MIB;
    let said = match (is_much, has_balloon, is_guest(tree)) {
        (true, ..) => FindingDraft::costs(
            format!("{used_mib:.0} MiB are swapped out: a program that accesses them waits for a disk"),
            "use less memory for each node, or no swap on nodes that compute",
        ),
        (_, true, _) => FindingDraft::cannot_see(
            "nothing is swapped here; a balloon (virtio_balloon) lets the host take memory back; whether the host \
             is overcommitted is not visible",
            "request huge pages on the host (OpenStack: hw:mem_page_size=large): such memory is not overcommitted",
        ),
        (_, _, Some(true)) => FindingDraft::cannot_see(
            "nothing is swapped here; whether the host swaps is not visible",
            "request huge pages on the host (OpenStack: hw:mem_page_size=large): such memory is not overcommitted",
        ),
        _ if used_mib > 0.0 => {
            FindingDraft::ok(format!("{:.0} KiB are swapped out, too little to matter", used_mib * 1024.0))
        }
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

pub(super) fn huge_pages(tree: &SystemTree) -> DoctorCheckResult {
    let path = "sys/kernel/mm/transparent_hugepage/enabled";
    let text = tree.read(path)?;
    let chosen = text.split(['[', ']']).nth(1);
    match chosen {
        Some("always") => Ok(FindingDraft::ok("programs get pages of 2 MiB without requesting them")),
        Some("madvise") => Ok(FindingDraft::costs(
            "only programs that request pages of 2 MiB get them: large arrays of other programs cause TLB misses, which cost twice as much in a guest",
            "echo always > /sys/kernel/mm/transparent_hugepage/enabled, or GLIBC_TUNABLES=glibc.malloc.hugetlb=1",
        )),
        Some("never") => Ok(FindingDraft::costs(
            "pages of 4 KiB only: large arrays cause TLB misses, which cost twice as much in a guest",
            "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled, and have programs request them",
        )),
        _ => Err(UnreadableFile::unknown(path, &text)),
    }
}
