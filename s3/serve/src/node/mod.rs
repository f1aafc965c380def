//! The gateway of a node: the node protocol on a Unix socket, and on TCP for clients that know the secret.
//!
//! A thread for each connection reads requests, calls the store, and answers in order: for calls that
//! take microseconds every hand-over to another thread costs more than the call. A client that sends
//! many requests at once has them answered by as few system calls as there are buffers to fill.
//!
//! * `gateway`: what is configured, making the socket, accepting, ending in good order
//! * `access`: the users, as whom they act, the store for that, and what they can make the gateway keep
//! * `connection`: one client: greeting, reading, looking out for the next request
//! * `http`: clients that speak HTTP instead, in the gateway's own words
//! * `session`: each request in terms of the store
//! * `content`: replies and content on their way out
//! * `stats`: what is counted, and whether looking out pays

mod access;
mod connection;
mod content;
mod gateway;
mod http;
mod session;
mod stats;

pub use gateway::{NodeConfig, NodeGateway, NodeStop, NodeTcp, RunningNode};
