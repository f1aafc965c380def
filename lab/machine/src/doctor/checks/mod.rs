//! The checks, each a function of files, and the list of them. Those that are of no other file are here: what peripherals
//! there are for programs that do much I/O; what no file of a node says, and what the program itself decides. The last are
//! told, so that nobody takes their absence from the list for an "ok".

mod limits;
mod network;
mod processors;

pub(super) use processors::allowed;

use Ask::{Interface, Node, Rdma};

use super::tree::{Tree, Unseen};
use super::{Finding, Said};

type Answer = Result<Said, Unseen>;

/// One check.
struct Check {
    name: &'static str,
    /// Which of Richter's 17 improvements it stands for.
    richter: &'static [u8],
    ask: Ask,
}

/// What a check is asked about.
enum Ask {
    Node(fn(&Tree) -> Answer),
    /// Each network interface that has a device behind it.
    Interface(fn(&Tree, &str) -> Answer),
    /// Each RDMA device; and what is said where none is seen.
    Rdma(fn(&Tree, &str) -> Answer, fn() -> Said),
}

/// In the order in which they are told.
const CHECKS: &[Check] = &[
    Check { name: "link-speed", richter: &[1], ask: Interface(network::link_speed) },
    Check { name: "nic-driver", richter: &[2], ask: Interface(network::driver) },
    Check { name: "mtu", richter: &[17], ask: Interface(network::mtu) },
    Check { name: "queues", richter: &[3], ask: Interface(network::queues) },
    Check { name: "irq-spread", richter: &[3, 8], ask: Interface(network::interrupts_spread) },
    Check { name: "tcp-buffers", richter: &[7], ask: Node(network::tcp_buffers) },
    Check { name: "rdma", richter: &[1, 2, 7], ask: Rdma(network::rdma_port, network::no_rdma_device) },
    Check { name: "partition", richter: &[16], ask: Rdma(network::rdma_partition, network::no_partition) },
    Check { name: "mpi", richter: &[6], ask: Node(mpi) },
    Check { name: "nesting", richter: &[5], ask: Node(processors::nesting) },
    Check { name: "steal", richter: &[4, 10, 14], ask: Node(processors::steal) },
    Check { name: "pressure", richter: &[4, 14], ask: Node(processors::pressure) },
    Check { name: "cpu-quota", richter: &[4, 8], ask: Node(limits::cpu_quota) },
    Check { name: "throttling", richter: &[8, 10], ask: Node(limits::throttling) },
    Check { name: "pinning", richter: &[8, 9], ask: Node(processors::pinning) },
    Check { name: "exclusive", richter: &[14], ask: Node(limits::exclusive) },
    Check { name: "smt", richter: &[14], ask: Node(processors::smt) },
    Check { name: "numa", richter: &[9], ask: Node(processors::numa) },
    Check { name: "memory-overcommit", richter: &[4], ask: Node(processors::overcommit) },
    Check { name: "memory-limit", richter: &[4], ask: Node(limits::memory) },
    Check { name: "huge-pages", richter: &[3], ask: Node(processors::huge_pages) },
    Check { name: "governor", richter: &[3], ask: Node(processors::governor) },
    Check { name: "clocksource", richter: &[3], ask: Node(processors::clock_source) },
    Check { name: "autogroup", richter: &[8], ask: Node(processors::autogroup) },
    Check { name: "disk", richter: &[11], ask: Node(disks) },
    Check { name: "io-limit", richter: &[12], ask: Node(limits::io) },
    Check { name: "gang", richter: &[10], ask: Node(gang) },
    Check { name: "placement", richter: &[9, 13], ask: Node(placement) },
    Check { name: "problem-size", richter: &[15], ask: Node(problem_size) },
];

/// Runs every check on `tree`. What cannot be read is a finding, not an error. Cost: some 100 small files.
pub fn examine(tree: &Tree) -> Vec<Finding> {
    CHECKS.iter().flat_map(|check| check.findings(tree)).collect()
}

impl Check {
    fn findings(&self, tree: &Tree) -> Vec<Finding> {
        tree.take_seen();
        match self.ask {
            Node(ask) => vec![self.put_down(tree, None, ask(tree))],
            Interface(ask) => self.each(tree, network::interfaces(tree), network::none(), ask),
            Rdma(ask, none) => self.each(tree, network::rdma_devices(tree), none(), ask),
        }
    }

    fn each(
        &self,
        tree: &Tree,
        names: Vec<String>,
        none: Said,
        ask: fn(&Tree, &str) -> Answer,
    ) -> Vec<Finding> {
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

    fn put_down(&self, tree: &Tree, about: Option<String>, answer: Answer) -> Finding {
        let said = answer.unwrap_or_else(Said::from);
        Finding { about, read: tree.take_seen(), ..said.put_down(self.name, self.richter) }
    }
}

const BLOCK: &str = "sys/block";

fn disks(tree: &Tree) -> Answer {
    let is_disk = |name: &String| tree.link(&format!("{BLOCK}/{name}/device")).is_ok();
    let names: Vec<_> = tree.names(BLOCK)?.into_iter().filter(is_disk).collect();
    let turns =
        |name: &&String| tree.read(&format!("{BLOCK}/{name}/queue/rotational")).is_ok_and(|flag| flag == "1");
    // Virtual disks say that they turn, whatever is behind.
    let is_virtual = |name: &&String| name.starts_with("vd") || name.starts_with("xvd");
    let turning: Vec<_> =
        names.iter().filter(|name| !is_virtual(name)).filter(turns).map(String::as_str).collect();
    let is_own = |name: &&String| name.starts_with("nvme");
    let own: Vec<_> = names.iter().filter(is_own).map(String::as_str).collect();
    Ok(match (own.is_empty(), turning.is_empty()) {
        (false, _) => Said::ok(format!("{}: NVMe", own.join(", "))),
        (true, false) => Said::costs(
            format!("{}: turning disks", turning.join(", ")),
            "send jobs that do much I/O to nodes with NVMe (sbatch --constraint, a node selector)",
        ),
        (true, true) if names.is_empty() => Said::cannot_see(
            "no disk is seen: files are on a network, or the disks are not shown here",
            "measure: fordway machines probe --disk DIR",
        ),
        (true, true) => Said::cannot_see(
            format!("{}: what is behind does not show", names.join(", ")),
            "measure: fordway machines probe --disk DIR",
        ),
    })
}

/// Where launchers are without a module system.
const LAUNCHERS: [&str; 6] = [
    "usr/bin/mpirun.openmpi",
    "usr/bin/mpirun.mpich",
    "usr/bin/mpirun",
    "usr/local/bin/mpirun",
    "usr/lib64/openmpi/bin/mpirun",
    "opt/amazon/openmpi/bin/mpirun",
];

fn mpi(tree: &Tree) -> Answer {
    let found: Vec<_> = LAUNCHERS.into_iter().filter(|path| tree.has(path)).collect();
    Ok(match found.first() {
        Some(path) => Said::ok(format!("there is one: /{path}")),
        None => Said::cannot_see(
            "no MPI where systems put it; a module may bring one",
            "install one (Debian: openmpi-bin), or load its module",
        ),
    })
}

fn gang(_: &Tree) -> Answer {
    Ok(Said::cannot_see(
        "whether the processors of all ranks run at the same time is up to the host and the scheduler of the cluster",
        "Slurm starts all tasks of a job together; on Kubernetes use a PodGroup (--fix kubernetes); on a cloud, dedicated processors",
    ))
}

fn placement(_: &Tree) -> Answer {
    Ok(Said::cannot_see(
        "how many switches are between the nodes of a job, and what else the scheduler knows of them, does not show in a node",
        "ask for nearness: sbatch --switches=1, a cluster placement group, podAffinity; measure: fordway-mpi transport on two nodes",
    ))
}

fn problem_size(_: &Tree) -> Answer {
    Ok(Said::cannot_see(
        "how much a rank computes between two messages is the program's matter; Richter found 100,000 grid points the least",
        "use fewer ranks for small problems",
    ))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::doctor::{RICHTERS_POINTS, Verdict};

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
        for Check { name, richter, .. } in CHECKS {
            let points = richter.iter().map(u8::to_string).collect::<Vec<_>>().join(", ");
            let rows = [format!("| `{name}` | {points} |"), format!("| `{name}`* | {points} |")];
            assert!(rows.iter().any(|row| manual.contains(row)), "{name} [{points}] is missing");
        }
    }

    #[test]
    fn an_empty_tree_is_examined_and_nothing_is_claimed() {
        let place = tempfile::tempdir().unwrap();
        let findings = examine(&Tree::at(place.path()));
        assert!(findings.len() >= CHECKS.len());
        for finding in findings {
            assert_eq!(finding.verdict, Verdict::CannotSee, "{finding:?}");
            assert!(finding.measured.is_empty() && finding.read.is_empty(), "{finding:?}");
        }
    }
}
