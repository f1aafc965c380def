//! The `node` lane: a gateway on the same node, over a Unix socket, or on another node, over TCP.
//!
//! Small content is sent over the socket. For large content, the gateway passes the descriptor of a file, and the
//! caller reads or writes that file itself.
//!
//! * `connection`: one socket, with the gateway's address, the handshake, sending, and waiting for responses
//! * `session`: idle connections, and retries when a connection breaks
//! * `store`: the methods of `Store`; `batch`, `read`, `write`: calls that take more than one message; `spare`: files
//!   that the gateway passes in advance

mod batch;
mod connection;
mod read;
mod session;
mod spare;
mod store;
mod write;

pub use connection::{NodeAddress, NodeKeyPair};
pub use store::NodeStore;

/// The lane's name.
const LANE: &str = "node";
