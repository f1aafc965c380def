//! Code shared by the programs `fordway` and `fordway-lab`: options common to all commands, and a command's context.
//!
//! [`CommandContext`] gives a command its lane, streams and Ctrl-C flag. [`CommandExit`] is the command's exit code.
//! [`program`] connects `main` to the commands.

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
pub mod version;
pub mod web;

pub use address::{PRIVATE_AREA, StorageAddress, check_not_private};
pub use context::{CommandContext, IncompleteFileKind, InterruptFlag, TemporaryFile};
pub use exit::{CommandExit, file_error};
pub use output::{CommandOutputStreams, OutputFormat, shown_name};
