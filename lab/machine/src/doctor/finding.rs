//! What a check found, in words and in fields.

use serde::Serialize;

use super::tree::Unseen;

/// What a finding comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// As it should be.
    Ok,
    /// It costs the programs that run here, or may.
    Costs,
    /// It cannot be told from inside, or not by this user.
    CannotSee,
}

impl Verdict {
    /// As people read it.
    pub fn text(self) -> &'static str {
        match self {
            Verdict::Ok => "ok",
            Verdict::Costs => "costs you",
            Verdict::CannotSee => "cannot see",
        }
    }
}

/// A number that was measured, or counted by the kernel.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measured {
    /// Of what.
    pub what: &'static str,
    /// In `unit`.
    pub value: f64,
    /// `%`, `ns`, `Gbit/s` and the like.
    pub unit: &'static str,
}

/// What one check found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// The check's name.
    pub check: &'static str,
    /// Which of Richter's improvements it stands for; empty for what is known since.
    pub richter: &'static [u8],
    /// The interface or device it is about, where there may be several.
    pub about: Option<String>,
    /// What it comes to.
    pub verdict: Verdict,
    /// What is so, and what that does.
    pub what: String,
    /// What to do about it.
    pub advice: Option<String>,
    /// Numbers; empty where nothing was measured.
    pub measured: Vec<Measured>,
    /// The files that were read for it.
    pub read: Vec<String>,
}

/// What a check says, before it is put down with its name and what it read.
#[derive(Clone, Debug)]
pub(super) struct Said {
    pub(super) verdict: Verdict,
    pub(super) what: String,
    pub(super) advice: Option<String>,
    pub(super) measured: Vec<Measured>,
}

impl Said {
    pub(super) fn ok(what: impl Into<String>) -> Self {
        Said { verdict: Verdict::Ok, what: what.into(), advice: None, measured: Vec::new() }
    }

    pub(super) fn costs(what: impl Into<String>, advice: impl Into<String>) -> Self {
        Said { verdict: Verdict::Costs, advice: Some(advice.into()), ..Said::ok(what) }
    }

    pub(super) fn cannot_see(what: impl Into<String>, advice: impl Into<String>) -> Self {
        Said { verdict: Verdict::CannotSee, advice: Some(advice.into()), ..Said::ok(what) }
    }

    /// Without files: what was measured, or what no file says.
    pub(super) fn put_down(self, check: &'static str, richter: &'static [u8]) -> Finding {
        Finding {
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

    pub(super) fn measured(mut self, what: &'static str, value: f64, unit: &'static str) -> Self {
        self.measured.push(Measured { what, value, unit });
        self
    }
}

impl From<Unseen> for Said {
    fn from(unseen: Unseen) -> Self {
        Said { advice: None, ..Said::cannot_see(format!("cannot be read: {unseen}"), "") }
    }
}
