//! The checks, each a function of files, and the list of them.

mod interrupts;
mod kernel;
mod limits;
mod memory;
mod network;
mod outside;
mod processors;
mod rdma;
mod storage;

use super::finding::{Finding, Said};
use super::tree::{Tree, Unseen};

pub(super) use processors::allowed;

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

use Ask::{Interface, Node, Rdma};

/// In the order in which they are told.
const CHECKS: &[Check] = &[
    Check { name: "link-speed", richter: &[1], ask: Interface(network::link_speed) },
    Check { name: "nic-driver", richter: &[2], ask: Interface(network::driver) },
    Check { name: "mtu", richter: &[17], ask: Interface(network::mtu) },
    Check { name: "queues", richter: &[3], ask: Interface(network::queues) },
    Check { name: "irq-spread", richter: &[3, 8], ask: Interface(interrupts::spread) },
    Check { name: "tcp-buffers", richter: &[7], ask: Node(network::tcp_buffers) },
    Check { name: "rdma", richter: &[1, 2, 7], ask: Rdma(rdma::port, rdma::no_device) },
    Check { name: "partition", richter: &[16], ask: Rdma(rdma::partition, rdma::no_partition) },
    Check { name: "mpi", richter: &[6], ask: Node(outside::mpi) },
    Check { name: "nesting", richter: &[5], ask: Node(processors::nesting) },
    Check { name: "steal", richter: &[4, 10, 14], ask: Node(processors::steal) },
    Check { name: "pressure", richter: &[4, 14], ask: Node(processors::pressure) },
    Check { name: "cpu-quota", richter: &[4, 8], ask: Node(limits::cpu_quota) },
    Check { name: "throttling", richter: &[8, 10], ask: Node(limits::throttling) },
    Check { name: "pinning", richter: &[8, 9], ask: Node(processors::pinning) },
    Check { name: "exclusive", richter: &[14], ask: Node(limits::exclusive) },
    Check { name: "smt", richter: &[14], ask: Node(processors::smt) },
    Check { name: "numa", richter: &[9], ask: Node(memory::numa) },
    Check { name: "memory-overcommit", richter: &[4], ask: Node(memory::overcommit) },
    Check { name: "memory-limit", richter: &[4], ask: Node(limits::memory) },
    Check { name: "huge-pages", richter: &[3], ask: Node(memory::huge_pages) },
    Check { name: "governor", richter: &[3], ask: Node(kernel::governor) },
    Check { name: "clocksource", richter: &[3], ask: Node(kernel::clock_source) },
    Check { name: "autogroup", richter: &[8], ask: Node(kernel::autogroup) },
    Check { name: "disk", richter: &[11], ask: Node(storage::disks) },
    Check { name: "io-limit", richter: &[12], ask: Node(limits::io) },
    Check { name: "gang", richter: &[10], ask: Node(outside::gang) },
    Check { name: "placement", richter: &[9, 13], ask: Node(outside::placement) },
    Check { name: "problem-size", richter: &[15], ask: Node(outside::problem_size) },
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
            Rdma(ask, none) => self.each(tree, rdma::devices(tree), none(), ask),
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
