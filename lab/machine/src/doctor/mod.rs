//! Examines a node for Richter's 17 improvements to clouds for HPC (2015, section 6), and for effects discovered later.
//! A [`DoctorFinding`] is the result of a check, as text and as structured fields.

mod checks;
mod fix;
mod noise;
mod shared;
mod tree;

pub(crate) use checks::{CpuQuotaCounters, quota_counters};
pub use checks::{examine, remember_counters};
pub use fix::{JobScheduler, JobSize};
pub use noise::SystemNoise;
pub(crate) use noise::WorkQuantum;
pub use shared::{examine_mounts, share_caches, verdict_on};
pub use tree::{SystemTree, UnreadableFile};

use serde::Serialize;

/// Returns the processors that the examined process may use. Errors: the file that lists these processors cannot be
/// read.
pub fn processors(tree: &SystemTree) -> Result<Vec<usize>, UnreadableFile> {
    checks::allowed(tree)
}

/// Returns the smallest memory limit that control groups impose on this process, in bytes; `None` if there is no limit,
/// or if it cannot be read.
pub fn memory_limit_bytes(tree: &SystemTree) -> Option<u64> {
    checks::memory_limit_bytes(tree)
}

/// The number of improvements that Richter lists.
pub const RICHTERS_POINTS: u8 = 17;

/// The conclusion of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DoctorVerdict {
    /// The check found no problem.
    Ok,
    /// The check found a condition that has, or may have, a cost for the programs that run on this node.
    Costs,
    /// The property cannot be determined from inside the node, or this user lacks the permission to determine it.
    CannotSee,
}

impl DoctorVerdict {
    /// Returns the verdict as displayed to users.
    pub fn text(self) -> &'static str {
        match self {
            DoctorVerdict::Ok => "ok",
            DoctorVerdict::Costs => "costs you",
            DoctorVerdict::CannotSee => "cannot see",
        }
    }
}

/// A number that was measured, or read from a kernel counter.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MeasuredNumber {
    /// The quantity that was measured.
    pub what: &'static str,
    /// The value, in `unit`.
    pub value: f64,
    /// The unit, such as `%`, `ns` or `Gbit/s`.
    pub unit: &'static str,
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DoctorFinding {
    /// The check's name.
    pub check: &'static str,
    /// The numbers of Richter's improvements that the check covers; empty for effects discovered later.
    pub richter: &'static [u8],
    /// The interface or device that the finding concerns, if a node can have several.
    pub about: Option<String>,
    /// The conclusion: `ok`, `costs` or `cannot_see`.
    pub verdict: DoctorVerdict,
    /// The observation, and its effect.
    pub what: String,
    /// The recommended action.
    pub advice: Option<String>,
    /// The measured numbers; empty if nothing was measured.
    pub measured: Vec<MeasuredNumber>,
    /// The files that were read for this finding.
    pub read: Vec<String>,
}

/// The result of a check, before the check's name and the files it read are added.
#[derive(Clone, Debug)]
struct FindingDraft {
    verdict: DoctorVerdict,
    what: String,
    advice: Option<String>,
    measured: Vec<MeasuredNumber>,
}

impl FindingDraft {
    fn ok(what: impl Into<String>) -> Self {
        FindingDraft { verdict: DoctorVerdict::Ok, what: what.into(), advice: None, measured: Vec::new() }
    }

    fn costs(what: impl Into<String>, advice: impl Into<String>) -> Self {
        FindingDraft { verdict: DoctorVerdict::Costs, advice: Some(advice.into()), ..FindingDraft::ok(what) }
    }

    fn cannot_see(what: impl Into<String>, advice: impl Into<String>) -> Self {
        FindingDraft {
            verdict: DoctorVerdict::CannotSee,
            advice: Some(advice.into()),
            ..FindingDraft::ok(what)
        }
    }

    /// Turns the draft into a finding, for a check that read no files and does not concern a particular device.
    fn put_down(self, check: &'static str, richter: &'static [u8]) -> DoctorFinding {
        DoctorFinding {
            check,
            richter,
            about: None,
            verdict: self.verdict,
            what: self.what,
            advice: self.advice,
            measured: self.measured,
            read: Vec::new(),
        }
    }

    fn measured(mut self, what: &'static str, value: f64, unit: &'static str) -> Self {
        self.measured.push(MeasuredNumber { what, value, unit });
        self
    }
}

impl From<UnreadableFile> for FindingDraft {
    fn from(unseen: UnreadableFile) -> Self {
        FindingDraft { advice: None, ..FindingDraft::cannot_see(format!("cannot be read: {unseen}"), "") }
    }
}
