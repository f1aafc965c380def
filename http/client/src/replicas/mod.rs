//! A file that is at several places: read from the best, and from another where that fails, lies or is
//! slow; or from several at once.
//!
//! What is to be read becomes [`job`]s on a [`board`], where streams take them. A [`stream`] is a thread with a
//! connection to one of the [`site`]s. What has arrived is checked against the digests of pieces before anybody
//! sees it. Who waits looks after the streams meanwhile: one that stands still or crawls gets company from
//! another replica, and the slower of the two leaves. A [`part`] is a file that grows in place, in any order.

mod board;
mod cache;
mod copy;
mod discover;
mod file;
mod gather;
mod health;
mod job;
mod meter;
mod missing;
mod part;
mod site;
mod stream;
mod sweep;

use std::time::Duration;

pub use cache::MetalinkCache;
pub use discover::{Discovery, discover, fetch_metalink, is_metalink_name};
pub use file::{ReplicaStatus, ReplicatedFile};
pub use gather::ReplicatedTicket;

use super::vector;

/// How a [`ReplicatedFile`] is read.
#[derive(Clone, Debug)]
pub struct ReplicaOptions {
    /// Connections, credentials and time limits. Retries count for each turn of a replica.
    pub session: vector::Options,
    /// Connections at once, of all replicas together: never more, but for the moment in which a replica
    /// that stands still or crawls is compared with another. `None` is one stream, with as many
    /// connections as a server without pipelining needs for vectored reads.
    pub streams: Option<usize>,
    /// Whether pieces are checked against their digests. Reads of small ranges then read whole pieces.
    pub verify: bool,
    /// Countries (ISO 3166-1) that are preferred among replicas of the same priority.
    pub locations: Vec<String>,
    /// Another replica is asked when nothing has arrived for so long.
    pub stall: Duration,
    /// Another replica is asked when a stream was slow for so long.
    pub detection: Duration,
    /// What is slow, if no other replica is known to be faster: bytes in a second.
    pub rate_floor_bytes_per_s: f64,
}

impl Default for ReplicaOptions {
    fn default() -> Self {
        ReplicaOptions {
            session: vector::Options::default(),
            streams: None,
            verify: true,
            locations: Vec::new(),
            stall: Duration::from_secs(1),
            detection: Duration::from_secs(2),
            rate_floor_bytes_per_s: 4e6,
        }
    }
}
