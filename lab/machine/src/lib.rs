//! Examines a node, finds what impairs the programs that run on it, and compares machines.
//!
//! [`doctor`] reads files of `/proc` and `/sys`. The input of each check is a directory tree, so a node can be examined
//! from a copy of its files. The tests use such copies to examine nodes that we do not have.
//!
//! A [`MachineWatch`] refuses a machine that is too busy, and determines whether the results of a run are reliable.
//!
//! A [`MachineCatalogue`] contains machines with their [`MachineFeature`]s, and is read from a TOML file.
//! [`similarity`] computes a number from 0 to 1 for two machines. A [`SimilarityTable`] contains the similarities of
//! all pairs of machines from two catalogues, and [`heat_map`] draws such a table.

mod catalogue;
pub mod doctor;
mod similarity;
mod watch;

pub use catalogue::{MachineCatalogue, MachineEntry, MachineFeature};
pub use similarity::{
    CommonFeatures, MachinePairSimilarity, OmittedFeature, SimilarityTable, heat_map, ratio, similarity,
};
pub use watch::MachineWatch;
