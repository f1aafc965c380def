//! What is run, and in which order. A [`Target`] is a way to do the work; who builds targets knows
//! which lane is behind them, this crate does not.
//!
//! [`compare::run`] sends one tree of files down every target in interleaved blocks;
//! [`summary::summarise`] makes a table of the records. [`rest::run_block`] makes load on a server.

pub mod compare;
mod delay;
mod posix;
pub mod rest;
pub mod summary;
mod target;
mod tree;

pub use delay::{DelayLog, DelayTarget};
pub use posix::{PosixTarget, Sync};
pub use target::{StoreTarget, Target};
pub use tree::{Item, Tree, TreeLimits};
