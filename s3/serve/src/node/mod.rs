//! The gateway of a node: the node protocol on a Unix socket, and on TCP for clients that know the secret.
//!
//! Each connection has one thread, which reads requests, calls the store, and responds in order. A call takes
//! microseconds, so passing the call to another thread would cost more than the call itself. The responses to requests
//! that arrive together are collected in a buffer, and sent in as few system calls as possible.
//!
//! * `gateway`: configuration, accepting, graceful shutdown; `socket_file`: creating and removing the socket
//! * `access`: users, their stores, and limits on the resources that clients can occupy; `accounts`: the resources that
//!   each user uses
//! * `connection`: one client's handshake, reading requests, waiting for the next request
//! * `http`: clients that use HTTP instead of the node protocol
//! * `session`: implements each request in terms of the store
//! * `content`: sends responses and content to the client
//! * `stats`: counters, and the decision whether polling for the next request is worthwhile

mod access;
mod accounts;
mod connection;
mod content;
mod gateway;
mod http;
mod session;
mod socket_file;
mod stats;

#[cfg(feature = "fuzzing")]
pub(crate) use access::AdmittedCaller;
pub use gateway::{NodeGateway, NodeGatewayConfig, NodeStopHandle, NodeTcpConfig, RunningNodeGateway};
#[cfg(feature = "fuzzing")]
pub(crate) use http::HttpService;
