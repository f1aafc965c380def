//! What the tests of every lane share. Only tests depend on this crate.
//!
//! [`conformance`] is one suite that runs on every lane; [`model`] holds random operations against
//! the store in memory.

pub mod conformance;
pub mod model;
