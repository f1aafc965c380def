//! What a node is, and what about it costs the programs that run on it.
//!
//! [`doctor`] asks the files of `/proc` and `/sys`. Each of its checks is a function of a directory tree,
//! so that one node can be examined on another: the tests do so with nodes that we do not have.

pub mod doctor;
