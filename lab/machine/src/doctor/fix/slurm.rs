//! A job script for Slurm.

use std::fmt::Write;

use super::{Job, Remedy, left_over};
use crate::doctor::finding::Finding;

/// Options of `sbatch`.
const BATCH: &[Remedy<&str>] = &[
    Remedy {
        answers: &["noise", "steal", "pressure", "exclusive", "cpu-quota", "throttling"],
        setting: "--exclusive",
        why: "whole nodes, shared with no other job",
    },
    Remedy {
        answers: &["memory-limit", "memory-overcommit"],
        setting: "--mem=0",
        why: "all memory of the nodes, and no job beside that takes some",
    },
    Remedy { answers: &["smt"], setting: "--hint=nomultithread", why: "one rank for a core" },
    Remedy {
        answers: &["numa", "pinning"],
        setting: "--distribution=block:block",
        why: "neighbours in rank on one chip",
    },
    Remedy { answers: &["numa"], setting: "--mem-bind=local", why: "memory of a rank on its own NUMA node" },
    Remedy {
        answers: &["noise", "irq-spread"],
        setting: "--core-spec=1",
        why: "one core for the system and its interrupts",
    },
    Remedy {
        answers: &["governor"],
        setting: "--cpu-freq=Performance",
        why: "processors keep their clock up",
    },
    Remedy {
        answers: &["placement"],
        setting: "--switches=1@01:00:00",
        why: "nodes at one switch; waits an hour for that",
    },
];

/// Options of `srun`.
const STEP: &[Remedy<&str>] = &[Remedy {
    answers: &["pinning", "numa", "exclusive"],
    setting: "--cpu-bind=cores",
    why: "each rank kept to its core",
}];

/// What Slurm does without being asked.
const BY_ITSELF: &[&str] = &["gang", "problem-size"];

pub(super) fn script(findings: &[Finding], job: Job) -> String {
    let ranks = if BATCH.iter().any(|remedy| is_system_core(remedy, findings)) {
        job.processors.max(2) - 1
    } else {
        job.processors
    };
    let mut text = format!(
        "#!/bin/bash\n# Made by `fordway doctor --fix slurm`. Each option says which findings it is for.\n\
         #SBATCH --nodes={}\n#SBATCH --ntasks-per-node={ranks}\n#SBATCH --cpus-per-task=1\n",
        job.nodes
    );
    for remedy in BATCH {
        add(&mut text, remedy, findings, |text, setting| writeln!(text, "#SBATCH {setting}"));
    }
    text.push_str("# gang: Slurm starts all tasks of a job together, and needs no option for it.\n");
    let answered: Vec<_> =
        BATCH.iter().chain(STEP).flat_map(|remedy| remedy.answers).chain(BY_ITSELF).copied().collect();
    for line in left_over(findings, &answered) {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "# Not by an option: {line}");
    }
    let mut step = "srun".to_owned();
    for remedy in STEP {
        add(&mut text, remedy, findings, |_, setting| write!(step, " {setting}"));
    }
    text + &step + " \"$@\"\n"
}

fn is_system_core(remedy: &Remedy<&str>, findings: &[Finding]) -> bool {
    remedy.setting.starts_with("--core-spec") && !remedy.reasons(findings).is_empty()
}

/// The reason as a comment, then the setting by `put`.
fn add(
    text: &mut String,
    remedy: &Remedy<&str>,
    findings: &[Finding],
    put: impl FnOnce(&mut String, &str) -> std::fmt::Result,
) {
    let reasons = remedy.reasons(findings);
    if reasons.is_empty() {
        return;
    }
    let _ = writeln!(text, "# {}: {}", reasons.join(", "), remedy.why);
    let _ = put(text, remedy.setting);
}
