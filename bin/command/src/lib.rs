//! What the programs `fordway` and `fordway-lab` share: the options that all commands take, and a command's surroundings.
//!
//! [`CommandContext`] is what a command is given (a lane, streams, Ctrl-C), [`CommandExit`] says how it ended, and
//! [`program`] is the way from `main` to a command and back.

mod address;
pub mod args;
mod context;
mod exit;
pub mod external;
pub mod manual;
mod output;
pub mod program;
pub mod reading;
pub mod replicas;
pub mod units;
pub mod web;

pub use address::StorageAddress;
pub use context::{CommandContext, InterruptFlag, LeftoverKind, TemporaryFile};
pub use exit::{CommandExit, file_error};
pub use output::{CommandOutput, OutputFormat};
