//! The examination of a node: Richter's 17 improvements for clouds that are to do HPC (2015, section 6),
//! and what is known to matter since.

mod cgroup;
mod checks;
mod finding;
mod fix;
mod noise;
mod ranks;
mod tree;

pub use checks::examine;
pub use finding::{Finding, Measured, Verdict};
pub use fix::{Fix, Job};
pub use noise::Noise;
pub use tree::{Tree, Unseen};

/// The processors that the examined process may use. Errors: the file that does not say so.
pub fn processors(tree: &Tree) -> Result<Vec<usize>, Unseen> {
    checks::allowed(tree)
}

/// How many improvements Richter lists.
pub const RICHTERS_POINTS: u8 = 17;
