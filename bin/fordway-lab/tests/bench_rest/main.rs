//! Tests `fordway bench rest` as a separate process.

mod command;
mod gateway;
mod loops;
mod multiplexed;
mod protocols;
mod server;
