//! Code shared by the tests of all lanes. Only tests depend on this crate.
//!
//! [`conformance`] is one suite that runs on every lane; [`model`] checks random operations against the in-memory
//! store; [`history`] checks that concurrent operations on one key are linearizable; [`scenario`] contains operations
//! that are tested with a fault at every step; [`hostile`] serves a single file and responds incorrectly wherever its
//! script says so; [`cluster`] starts shared file systems, with two mounts each; [`turns`] uses several stores in turn;
//! [`proxy`] is a proxy between a client and its servers; [`foreign`] starts third-party WebDAV servers.

pub mod cluster;
pub mod conformance;
pub mod foreign;
pub mod history;
pub mod hostile;
pub mod model;
pub mod proxy;
pub mod scenario;
pub mod socks;
pub mod turns;
