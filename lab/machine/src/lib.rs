//! What a node is, what about it costs the programs that run on it, and which machine is like which.
//!
//! [`doctor`] asks the files of `/proc` and `/sys`. Each of its checks is a function of a directory tree,
//! so that one node can be examined on another: the tests do so with nodes that we do not have.
//!
//! A [`MachineCatalogue`] holds machines with their [`Feature`]s, as a TOML file does. [`similarity`] is a number
//! from 0 to 1 of two machines, [`SimilarityTable`] all of two catalogues, and [`heat_map`] a picture of them.

mod catalogue;
pub mod doctor;
mod similarity;

pub use catalogue::{Feature, MachineCatalogue, MachineEntry};
pub use similarity::{
    FeatureChoice, MachinePair, OmittedFeature, SimilarityTable, heat_map, ratio, similarity,
};
