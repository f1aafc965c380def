//! The list of all checks. Each check is a function that examines files. This module also contains the checks of disks
//! and of MPI, and the checks of properties that a node's files do not show. Such a property is reported as "cannot
//! see". Without this report, a missing finding could be mistaken for an "ok".

mod clocks;
mod limits;
mod memory;
mod network;
mod pressure;
mod processors;

pub(crate) use limits::{CpuQuotaCounters, memory_limit_bytes, quota_counters};
pub(super) use processors::{allowed, cores_of, online};

use DoctorCheckFunction::{Interface, Node, Rdma};

use super::tree::{SystemTree, UnreadableFile};
use super::{DoctorFinding, FindingDraft};

type DoctorCheckResult = Result<FindingDraft, UnreadableFile>;

/// A check of the doctor.
struct DoctorCheck {
    name: &'static str,
    /// The numbers of Richter's 17 improvements that the check covers.
    richter: &'static [u8],
    ask: DoctorCheckFunction,
}

/// What a check examines: the whole node, or each of its devices.
enum DoctorCheckFunction {
    Node(fn(&SystemTree) -> DoctorCheckResult),
    /// Each network interface that is backed by a device.
    Interface(fn(&SystemTree, &str) -> DoctorCheckResult),
    /// Each RDMA device; the second function creates the finding if there is no device.
    Rdma(fn(&SystemTree, &str) -> DoctorCheckResult, fn() -> FindingDraft),
}

/// All checks, in the order in which they are reported.
const CHECKS: &[DoctorCheck] = &[
    DoctorCheck { name: "link-speed", richter: &[1], ask: Interface(network::link_speed) },
    DoctorCheck { name: "nic-driver", richter: &[2], ask: Interface(network::driver) },
    DoctorCheck { name: "nic-node", richter: &[9], ask: Interface(network::node) },
    DoctorCheck { name: "mtu", richter: &[17], ask: Interface(network::mtu) },
    DoctorCheck { name: "queues", richter: &[3], ask: Interface(network::queues) },
    DoctorCheck { name: "irq-spread", richter: &[3, 8], ask: Interface(network::interrupts_spread) },
    DoctorCheck { name: "tcp-buffers", richter: &[7], ask: Node(network::tcp_buffers) },
    DoctorCheck { name: "rdma", richter: &[1, 2, 7], ask: Rdma(network::rdma_port, network::no_rdma_device) },
    DoctorCheck {
        name: "partition",
        richter: &[16],
        ask: Rdma(network::rdma_partition, network::no_partition),
    },
    DoctorCheck { name: "mpi", richter: &[6], ask: Node(mpi) },
    DoctorCheck { name: "nesting", richter: &[5], ask: Node(processors::nesting) },
    DoctorCheck { name: "steal", richter: &[4, 10, 14], ask: Node(processors::steal) },
    DoctorCheck { name: "pressure", richter: &[4, 14], ask: Node(pressure::processors) },
    DoctorCheck { name: "memory-pressure", richter: &[], ask: Node(pressure::memory) },
    DoctorCheck { name: "disk-pressure", richter: &[], ask: Node(pressure::disks) },
    DoctorCheck { name: "cpu-quota", richter: &[4, 8], ask: Node(limits::cpu_quota) },
    DoctorCheck { name: "throttling", richter: &[8, 10], ask: Node(limits::throttling) },
    DoctorCheck { name: "pinning", richter: &[8, 9], ask: Node(processors::pinning) },
    DoctorCheck { name: "exclusive", richter: &[14], ask: Node(limits::exclusive) },
    DoctorCheck { name: "smt", richter: &[14], ask: Node(processors::smt) },
    DoctorCheck { name: "numa", richter: &[9], ask: Node(memory::numa) },
    DoctorCheck { name: "zone-reclaim", richter: &[], ask: Node(memory::zone_reclaim) },
    DoctorCheck { name: "memory-overcommit", richter: &[4], ask: Node(memory::overcommit) },
    DoctorCheck { name: "memory-limit", richter: &[4], ask: Node(limits::memory) },
    DoctorCheck { name: "huge-pages", richter: &[3], ask: Node(memory::huge_pages) },
    DoctorCheck { name: "governor", richter: &[3], ask: Node(clocks::governor) },
    DoctorCheck { name: "clock-limit", richter: &[], ask: Node(clocks::clock_limit) },
    DoctorCheck { name: "heat", richter: &[], ask: Node(clocks::heat) },
    DoctorCheck { name: "sleep-states", richter: &[], ask: Node(clocks::sleep_states) },
    DoctorCheck { name: "clocksource", richter: &[3], ask: Node(clocks::clock_source) },
    DoctorCheck { name: "autogroup", richter: &[8], ask: Node(processors::autogroup) },
    DoctorCheck { name: "disk", richter: &[11], ask: Node(disks) },
    DoctorCheck { name: "io-limit", richter: &[12], ask: Node(limits::io) },
    DoctorCheck { name: "gang", richter: &[10], ask: Node(gang) },
    DoctorCheck { name: "placement", richter: &[9, 13], ask: Node(placement) },
    DoctorCheck { name: "problem-size", richter: &[15], ask: Node(problem_size) },
];

/// The checks that judge counters. The counters have increased since boot, or since a control group was created, so
/// their values alone do not show whether the cause still exists.
const COUNTING: [&str; 4] = ["steal", "throttling", "memory-limit", "heat"];

/// Stores the current values of all counters in `tree`. [`examine`] then judges by the increase since this call.
pub fn remember_counters(tree: &mut SystemTree) {
    tree.remember(|tree| {
        for check in CHECKS.iter().filter(|check| COUNTING.contains(&check.name)) {
            check.findings(tree);
        }
    });
}

/// Runs every check on `tree`. A file that cannot be read results in a finding, not an error. Cost: reads about 100
/// small files.
pub fn examine(tree: &SystemTree) -> Vec<DoctorFinding> {
    CHECKS.iter().flat_map(|check| check.findings(tree)).collect()
}

impl DoctorCheck {
    fn findings(&self, tree: &SystemTree) -> Vec<DoctorFinding> {
        tree.take_seen();
        match self.ask {
            Node(ask) => vec![self.put_down(tree, None, ask(tree))],
            Interface(ask) => self.each(tree, network::interfaces(tree), network::none(), ask),
            Rdma(ask, none) => self.each(tree, network::rdma_devices(tree), none(), ask),
        }
    }

    fn each(
        &self,
        tree: &SystemTree,
        names: Vec<String>,
        none: FindingDraft,
        ask: fn(&SystemTree, &str) -> DoctorCheckResult,
    ) -> Vec<DoctorFinding> {
        if names.is_empty() {
            return vec![self.put_down(tree, None, Ok(none))];
        }
        let about = |name: String| {
            tree.take_seen();
            let answer = ask(tree, &name);
            self.put_down(tree, Some(name), answer)
        };
        names.into_iter().map(about).collect()
    }

    fn put_down(&self, tree: &SystemTree, about: Option<String>, answer: DoctorCheckResult) -> DoctorFinding {
        let said = answer.unwrap_or_else(FindingDraft::from);
        DoctorFinding { about, read: tree.take_seen(), ..said.put_down(self.name, self.richter) }
    }
}

const BLOCK: &str = "sys/block";

fn disks(tree: &SystemTree) -> DoctorCheckResult {
    let is_disk = |name: &String| tree.link(&format!("{BLOCK}/{name}/device")).is_ok();
    let names: Vec<_> = tree.names(BLOCK)?.into_iter().filter(is_disk).collect();
    let turns =
        |name: &&String| tree.read(&format!("{BLOCK}/{name}/queue/rotational")).is_ok_and(|flag| flag == "1");
    // Virtual disks report themselves as rotational, regardless of the device behind them.
    let is_virtual = |name: &&String| name.starts_with("vd") || name.starts_with("xvd");
    let turning: Vec<_> =
        names.iter().filter(|name| !is_virtual(name)).filter(turns).map(String::as_str).collect();
    let is_own = |name: &&String| name.starts_with("nvme");
    let own: Vec<_> = names.iter().filter(is_own).map(String::as_str).collect();
    Ok(match (own.is_empty(), turning.is_empty()) {
        (false, _) => FindingDraft::ok(format!("{}: NVMe", own.join(", "))),
        (true, false) => FindingDraft::costs(
            format!("{}: turning disks", turning.join(", ")),
            "send jobs that do much I/O to nodes with NVMe (sbatch --constraint, a node selector)",
        ),
        (true, true) if names.is_empty() => FindingDraft::cannot_see(
            "no disk is visible: files are on a network, or the disks are hidden here",
            "measure: fordway machines probe --disk DIR",
        ),
        (true, true) => FindingDraft::cannot_see(
            format!("{}: the device behind it is not visible", names.join(", ")),
            "measure: fordway machines probe --disk DIR",
        ),
    })
}

/// Usual paths of MPI launchers on systems without environment modules.
const LAUNCHERS: [&str; 6] = [
    "usr/bin/mpirun.openmpi",
    "usr/bin/mpirun.mpich",
    "usr/bin/mpirun",
    "usr/local/bin/mpirun",
    "usr/lib64/openmpi/bin/mpirun",
    "opt/amazon/openmpi/bin/mpirun",
];

fn mpi(tree: &SystemTree) -> DoctorCheckResult {
    let found: Vec<_> = LAUNCHERS.into_iter().filter(|path| tree.has(path)).collect();
    Ok(match found.first() {
        Some(path) => FindingDraft::ok(format!("there is one: /{path}")),
        None => FindingDraft::cannot_see(
            "no MPI in the usual places; a module may provide one",
            "install one (Debian: openmpi-bin), or load its module",
        ),
    })
}

fn gang(_: &SystemTree) -> DoctorCheckResult {
    Ok(FindingDraft::cannot_see(
        "the host and the cluster's scheduler decide whether the processors of all ranks run at the same time",
        "Slurm starts all tasks of a job together; on Kubernetes use a PodGroup (--fix kubernetes); on a cloud, dedicated processors",
    ))
}

fn placement(_: &SystemTree) -> DoctorCheckResult {
    Ok(FindingDraft::cannot_see(
        "a node cannot see how many switches are between the nodes of a job, or what else the scheduler knows about them",
        "request neighbouring nodes: sbatch --switches=1, a cluster placement group, podAffinity; measure: fordway-mpi transport on two nodes",
    ))
}

fn problem_size(_: &SystemTree) -> DoctorCheckResult {
    Ok(FindingDraft::cannot_see(
        "how much a rank computes between two messages depends on the program; Richter found a minimum of 100,000 grid points",
        "use fewer ranks for small problems",
    ))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::doctor::{DoctorVerdict, RICHTERS_POINTS};

    #[test]
    fn each_of_richters_points_has_a_check_and_names_are_unique() {
        let points: BTreeSet<u8> = CHECKS.iter().flat_map(|check| check.richter).copied().collect();
        assert_eq!(points, (1..=RICHTERS_POINTS).collect());
        let names: BTreeSet<_> = CHECKS.iter().map(|check| check.name).collect();
        assert_eq!(names.len(), CHECKS.len());
    }

    #[test]
    fn the_manual_has_every_check() {
        let manual = include_str!("../../../../../docs/reference/doctor.md");
        for DoctorCheck { name, richter, .. } in CHECKS {
            let points = richter.iter().map(u8::to_string).collect::<Vec<_>>().join(", ");
            let rows = [format!("| `{name}` | {points} |"), format!("| `{name}`* | {points} |")];
            assert!(rows.iter().any(|row| manual.contains(row)), "{name} [{points}] is missing");
        }
    }

    #[test]
    fn an_empty_tree_is_examined_and_nothing_is_claimed() {
        let place = tempfile::tempdir().unwrap();
        let findings = examine(&SystemTree::at(place.path()));
        assert!(findings.len() >= CHECKS.len());
        for finding in findings {
            assert_eq!(finding.verdict, DoctorVerdict::CannotSee, "{finding:?}");
            assert!(finding.measured.is_empty() && finding.read.is_empty(), "{finding:?}");
        }
    }
}
