//! Settings that address what was found: a job script for Slurm, manifests for Kubernetes.

mod kubernetes;
mod slurm;

use super::checks;
use super::finding::{Finding, Verdict};
use super::tree::{Tree, Unseen, value_of};

/// For whom settings are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fix {
    /// A job script: options of `sbatch` and `srun`.
    Slurm,
    /// A PodGroup and a Job, as YAML.
    Kubernetes,
}

/// How large the job is that settings are written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Job {
    /// Nodes.
    pub nodes: u32,
    /// Processors of each that ranks run on.
    pub processors: usize,
    /// Memory of each, in MiB.
    pub memory_mib: u64,
}

impl Job {
    /// As much of each node as the process examined has of its own, a tenth of the memory left to the system.
    /// Errors: the file that does not say how much that is.
    pub fn filling(tree: &Tree, nodes: u32) -> Result<Self, Unseen> {
        let info = tree.read("proc/meminfo")?;
        let kib =
            value_of(&info, "MemTotal").and_then(|text| text.trim_end_matches(" kB").parse::<u64>().ok());
        let kib = kib.ok_or_else(|| Unseen::unknown("proc/meminfo", "no MemTotal, which"))?;
        Ok(Job { nodes, processors: checks::allowed(tree)?.len(), memory_mib: kib * 9 / 10 / 1024 })
    }
}

impl Fix {
    /// The settings, as a file that can be used as it is; each says which findings it is for.
    pub fn text(self, findings: &[Finding], job: Job) -> String {
        match self {
            Fix::Slurm => slurm::script(findings, job),
            Fix::Kubernetes => kubernetes::manifests(findings, job),
        }
    }
}

/// A setting, and the checks that it answers.
struct Remedy<T> {
    answers: &'static [&'static str],
    setting: T,
    why: &'static str,
}

impl<T> Remedy<T> {
    /// Those of its checks that found something to be done, or could not see; empty if all is well.
    fn reasons(&self, findings: &[Finding]) -> Vec<&'static str> {
        let mut checks: Vec<_> = findings
            .iter()
            .filter(|finding| finding.verdict != Verdict::Ok && self.answers.contains(&finding.check))
            .map(|finding| finding.check)
            .collect();
        checks.dedup();
        checks
    }
}

/// What no setting of a job changes: it is reported for the node's admin.
fn left_over(findings: &[Finding], answered: &[&str]) -> Vec<String> {
    let is_left =
        |finding: &&Finding| finding.verdict == Verdict::Costs && !answered.contains(&finding.check);
    let line = |finding: &Finding| {
        let about = finding.about.as_deref().map(|about| format!(" ({about})")).unwrap_or_default();
        format!("{}{about}: {}", finding.check, finding.advice.as_deref().unwrap_or_default())
    };
    findings.iter().filter(is_left).map(line).collect()
}
