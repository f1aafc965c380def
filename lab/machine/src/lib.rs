//! What a node is, what about it costs the programs that run on it, and which machine is like which.
//!
//! [`doctor`] asks the files of `/proc` and `/sys`. Each of its checks is a function of a directory tree,
//! so that one node can be examined on another: the tests do so with nodes that we do not have.
//!
//! A [`Catalogue`] holds machines with their [`Feature`]s, as a TOML file does. [`similarity`] is a number
//! from 0 to 1 of two machines, [`Table`] all of two catalogues, and [`heat_map`] a picture of them.

mod catalogue;
pub mod doctor;
mod similarity;

pub use catalogue::{Catalogue, Entry, Feature};
pub use similarity::{Choice, LeftOut, Pair, Table, heat_map, ratio, similarity};
