//! What the tests of every lane share. Only tests depend on this crate.
//!
//! [`conformance`] is one suite that runs on every lane; [`model`] holds random operations against
//! the store in memory; [`scenario`] holds operations to be tested with a fault at every step.

pub mod conformance;
pub mod model;
pub mod scenario;
