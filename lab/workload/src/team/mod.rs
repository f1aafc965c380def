//! Ranks that work at once and meet between blocks of work.
//!
//! A workload is written once for a [`Team`]. Its ranks are threads of this process
//! ([`threads`]), or the processes of an MPI job, whose team a leaf brings along.

mod threads;

pub use threads::threads;

use fordway_store::Result;

/// What one rank knows of all ranks. Every method but `rank` and `size` is collective: all ranks call
/// it, in the same order. Errors: `Internal` once a rank has ended early, so that nobody waits for it.
pub trait Team {
    /// This rank, from 0.
    fn rank(&self) -> usize;

    /// How many ranks there are.
    fn size(&self) -> usize;

    /// Returns when all ranks have come.
    fn barrier(&self) -> Result<()>;

    /// Everybody's `mine`, by rank.
    fn all_gather(&self, mine: Vec<u8>) -> Result<Vec<Vec<u8>>>;

    /// Everybody's `mine`, by rank, on rank 0; nothing on the others.
    fn gather(&self, mine: Vec<u8>) -> Result<Vec<Vec<u8>>>;

    /// Rank 0's `mine`, on all ranks.
    fn broadcast(&self, mine: Vec<u8>) -> Result<Vec<u8>>;

    /// The largest of everybody's `mine`.
    fn max(&self, mine: u64) -> Result<u64>;

    /// The sum of everybody's `mine`.
    fn sum(&self, mine: u64) -> Result<u64>;
}
