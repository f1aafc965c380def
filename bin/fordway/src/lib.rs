//! The `fordway` command as a library: what the binary does is here, so that tests can do it too.
//!
//! [`CommandLine`] is the command line, and [`run`] carries it out. `args` defines the options, `commands` holds the
//! commands, and `transfer` the engine that moves and removes many objects at once.

mod args;
mod commands;
mod dav;
mod replicas;
mod transfer;
mod web;
mod wildcard;

pub use args::{BuiltinCommand, CommandLine, LabArgs, LabCommand};
pub use commands::run;
