//! `fordway bench rest` as a process.

mod command;
mod gateway;
mod loops;
mod multiplexed;
mod protocols;
mod server;
