//! The `node` lane: a gateway on the same node, reached by a Unix socket, or by TCP from another.
//!
//! Small content goes through the socket; large content does not: the gateway passes the descriptor
//! of a file, and the caller reads or writes that itself.
//!
//! * `connection`: one socket: where the gateway is, greeting, sending, waiting for answers
//! * `session`: connections at rest, and what is done when one breaks
//! * `store`: the calls of `Store`; `batch`, `read`, `write` have those that are more than one message

mod batch;
mod connection;
mod read;
mod session;
mod store;
mod write;

pub use connection::{NodeAddress, NodeSecret};
pub use store::NodeStore;

/// The lane's name.
const LANE: &str = "node";
