//! The `fordway` command as a library: what the binary does is here, so that tests can do it too.
//!
//! [`Cli`] is the command line, [`Context`] its surroundings (a lane, streams, Ctrl-C), [`run`]
//! carries it out, and [`Exit`] says how it ended. `args` defines the options, `commands` holds one
//! file per command, and `transfer` the engine that moves and removes many objects at once.

mod address;
mod args;
mod commands;
mod context;
mod dav;
mod exit;
mod external;
mod interrupt;
mod output;
mod part;
mod replicas;
mod transfer;
mod units;
mod web;
mod wildcard;

pub use args::{Cli, Command, GlobalArgs};
pub use commands::run;
pub use context::Context;
pub use exit::Exit;
pub use interrupt::Interrupt;
pub use output::{Format, Output};
