//! HTTP/1.1 from the client's side, on blocking sockets and in the calling thread.
//!
//! A small request costs one `sendmsg` and one `recv` on a pooled connection: head and body leave
//! together, the answer's head is parsed where it was received, and a large body is received
//! straight into the caller's buffer.

pub mod load;

mod body;
mod client;
mod connection;
mod connector;
mod origin;
mod pool;
mod response;
mod socket;
mod tls;

use std::time::Duration;

pub use client::{Exchange, Failure, HttpClient, Replay};
pub use origin::Origin;
pub use response::Response;
pub use tls::TlsRoots;

/// How long to wait for the other side before giving up with `Timeout`.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// For a connection to be made, TLS excluded.
    pub connect: Duration,
    /// From the end of the request to the end of the answer's head.
    pub first_byte: Duration,
    /// Between two pieces of a body, in either direction.
    pub progress: Duration,
    /// How long an unused connection is kept.
    pub idle: Duration,
}

impl Timeouts {
    /// The same, none of them longer than `limit`.
    pub fn within(self, limit: Duration) -> Self {
        Timeouts {
            connect: self.connect.min(limit),
            first_byte: self.first_byte.min(limit),
            progress: self.progress.min(limit),
            idle: self.idle,
        }
    }
}

impl Default for Timeouts {
    fn default() -> Self {
        let wait = Duration::from_secs(30);
        Timeouts {
            connect: Duration::from_secs(5),
            first_byte: wait,
            progress: wait,
            idle: Duration::from_secs(15),
        }
    }
}
