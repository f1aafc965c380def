//! What a layer costs by itself, and whether the layers add up to the whole.
//!
//! A [`Rung`] does the work of one layer and no other. [`measure`] does each at every size, in
//! interleaved blocks; [`Account::of`] fits a cost per operation and per byte to each, adds up those
//! that a [`Path`] is made of, and holds the sum against the whole, which was measured beside them.
//! What is left is the residual: nobody's yet.
//!
//! * `schedule`: in which order, and how long
//! * `fit`: a line, or a few, through the times of one rung
//! * `path`: what a way is made of
//! * `account`: all of it as a result, [`text`] as tables

mod account;
mod fit;
mod path;
mod schedule;
mod text;

pub use account::{Account, Cost, Entry, PartCost, RungAccount};
pub use fit::{Fit, Piece};
pub use path::{Part, Path};
pub use schedule::{MeasuredRung, Plan, Progress, measure};
pub use text::{FIT_MEDIAN_PERCENT_MAX, entry_table, rung_table};

use fordway_store::Result;

/// The work of one layer, or of a whole way.
pub trait Rung {
    /// Makes ready for operations of `size_bytes` (at least 1); not timed.
    fn prepare(&mut self, size_bytes: u64) -> Result<()>;

    /// What comes before each operation; not timed. A layer that rests between its turns in the whole way has
    /// its rest here.
    fn before(&mut self) -> Result<()> {
        Ok(())
    }

    /// Does the work once; this is what is timed.
    fn run(&mut self) -> Result<()>;

    /// Looks whether the last operation did what it should; not timed.
    fn check(&self) -> Result<()> {
        Ok(())
    }

    /// The process whose CPU time is the other side's, where there is one.
    fn server_pid(&self) -> Option<u32> {
        None
    }
}
