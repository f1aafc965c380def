//! Code shared by the tests of all lanes. Only tests depend on this crate.
//!
//! * [`conformance`]: a test suite that runs on every lane
//! * [`model`]: compares the results of random operations with the results of the in-memory store
//! * [`history`]: checks that concurrent operations on one key are linearizable
//! * [`scenario`]: operations that are tested with a fault at every step
//! * [`hostile`]: a server for a single file that adds the faults of a script to its responses
//! * [`cluster`]: starts shared file systems with two mounts each
//! * [`turns`]: a store that passes its calls to several stores in round-robin order
//! * [`proxy`]: a proxy between a client and its servers
//! * [`socks`]: a SOCKS 5 proxy between a client and its servers
//! * [`foreign`]: starts third-party WebDAV servers

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
