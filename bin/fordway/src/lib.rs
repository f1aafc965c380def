//! The `fordway` command as a library, so that tests can run the same code as the binary.
//!
//! [`CommandLine`] is the command line, and [`run`] runs it. `args` defines the options, and `commands` contains the
//! commands. `transfer` contains the engine that transfers and removes many objects in parallel.

mod args;
mod commands;
mod dav;
pub mod davix;
mod replicas;
mod transfer;
mod web;
mod wildcard;

pub use args::{BuiltinCommand, CommandLine, LabCommand, LabPassthroughArgs};
pub use commands::run;
