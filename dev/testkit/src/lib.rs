//! What the tests of every lane share. Only tests depend on this crate.
//!
//! [`conformance`] is one suite that runs on every lane; [`model`] holds random operations against
//! the store in memory; [`history`] judges what several clients of one key saw; [`scenario`] has the
//! operations of which every step is tested with a fault; [`hostile`] is a server of one file that lies as told;
//! [`cluster`] starts file systems that nodes share, with two mounts each;
//! [`proxy`] stands between a client and its servers; [`foreign`] are WebDAV servers of others.

pub mod cluster;
pub mod conformance;
pub mod foreign;
pub mod history;
pub mod hostile;
pub mod model;
pub mod proxy;
pub mod scenario;
pub mod socks;
