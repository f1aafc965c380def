//! Workloads, which define the operations to run and their order. A [`MeasuredTarget`] performs the operations. The
//! caller builds the targets; this crate does not depend on the lanes behind the targets.
//!
//! [`compare::run`] stores, lists, reads and deletes one tree of files on every target, in interleaved blocks;
//! [`summary::summarise`] computes the rows of a table from the records.
//!
//! A [`bench::WorkloadPlan`] ([`ior`], [`mdtest`], [`mdworkbench`], [`io500`]) is a workload that the ranks of a
//! [`RankTeam`] run at a [`WorkloadLocation`]. [`bench::describe`] creates a run file from the results, and [`report`]
//! formats tables.
//!
//! [`rest::run_block`] generates load on a server.
//!
//! [`ledger`] measures layers individually, and checks whether their costs add up to the cost of a lane.
//!
//! [`speedup::measure`] runs one job with several rank counts in several set-ups.
//!
//! [`transport::run`] exchanges messages of many sizes over every available transport.

pub mod bench;
pub mod compare;
mod early;
pub mod io500;
pub mod ior;
pub mod ledger;
pub mod mdtest;
pub mod mdworkbench;
pub mod options;
mod phase;
mod posix;
pub mod report;
pub mod rest;
mod result;
pub mod run_output;
mod site;
pub mod speedup;
pub mod summary;
mod target;
pub mod team;
pub mod transport;
mod tree;

pub use early::EarlyEnd;
pub use phase::{MAX_RAW_OPERATIONS, RunControl, WorkloadRank};
pub use posix::{PosixTarget, SyncLevel};
pub use result::{PhaseResult, RankResult};
pub use site::WorkloadLocation;
pub use target::{DelayInjectingTarget, InjectedDelayCounter, MeasuredTarget, ServerPid, StoreTarget};
pub use team::RankTeam;
pub use tree::{FileTree, TreeFile, TreeLimits, TreeProgress};
