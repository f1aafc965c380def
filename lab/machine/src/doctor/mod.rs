//! The examination of a node: Richter's 17 improvements for clouds that are to do HPC (2015, section 6),
//! and what is known to matter since. A [`DoctorFinding`] is what a check found, in words and in fields.

mod checks;
mod fix;
mod noise;
mod shared;
mod tree;

pub use checks::examine;
pub use fix::{JobSize, SettingsReader};
pub use noise::ProcessorNoise;
pub use shared::examine_mounts;
pub use tree::{SystemTree, UnreadableFile};

use serde::Serialize;

/// The processors that the examined process may use. Errors: the file that does not say so.
pub fn processors(tree: &SystemTree) -> Result<Vec<usize>, UnreadableFile> {
    checks::allowed(tree)
}

/// How many improvements Richter lists.
pub const RICHTERS_POINTS: u8 = 17;

/// What a finding comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DoctorVerdict {
    /// As it should be.
    Ok,
    /// It costs the programs that run here, or may.
    Costs,
    /// It cannot be told from inside, or not by this user.
    CannotSee,
}

impl DoctorVerdict {
    /// As people read it.
    pub fn text(self) -> &'static str {
        match self {
            DoctorVerdict::Ok => "ok",
            DoctorVerdict::Costs => "costs you",
            DoctorVerdict::CannotSee => "cannot see",
        }
    }
}

/// A number that was measured, or counted by the kernel.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MeasuredNumber {
    /// Of what.
    pub what: &'static str,
    /// In `unit`.
    pub value: f64,
    /// `%`, `ns`, `Gbit/s` and the like.
    pub unit: &'static str,
}

/// What one check found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DoctorFinding {
    /// The check's name.
    pub check: &'static str,
    /// Which of Richter's improvements it stands for; empty for what is known since.
    pub richter: &'static [u8],
    /// The interface or device it is about, where there may be several.
    pub about: Option<String>,
    /// What it comes to.
    pub verdict: DoctorVerdict,
    /// What is so, and what that does.
    pub what: String,
    /// What to do about it.
    pub advice: Option<String>,
    /// Numbers; empty where nothing was measured.
    pub measured: Vec<MeasuredNumber>,
    /// The files that were read for it.
    pub read: Vec<String>,
}

/// What a check says, before it is put down with its name and what it read.
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

    /// Without files: what was measured, or what no file says.
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
