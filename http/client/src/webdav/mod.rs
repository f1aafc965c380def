//! WebDAV (RFC 4918): what is at a web server, and changing it; and copies from one server to another
//! that the client only orders (WLCG's HTTP-TPC).
//!
//! Requests go through a [`Session`]: its connections, credentials, redirections, TLS and retries are
//! the same as for reads. Answers are documents of at most 64 MiB.

mod call;
mod change;
mod failure;
mod list;
mod put;
mod third_party;

use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

pub use list::{Listing, Walk};
pub use put::Upload;
pub use third_party::{Direction, Progress, ThirdParty};

use super::vector::{Options, Session};
use super::{Timeouts, Version};

/// How long an answer may take to a request that changes something: a server may have much to copy or
/// to remove before it says a word.
const PATIENCE: Duration = Duration::from_secs(600);

/// Servers that speak WebDAV, as one session sees them. All addresses are `http(s)://` URLs; what may not
/// stand in one is percent-encoded, and a query goes with every request.
pub struct WebDav {
    session: Arc<Session>,
    /// The same with more patience, made when something is changed.
    patient: OnceLock<Arc<Session>>,
}

/// What is known of something at a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resource {
    /// Its address.
    pub url: String,
    /// Its path below what was listed, decoded, with `/` between the parts; empty for that itself.
    pub relative: String,
    /// Whether it holds others.
    pub is_collection: bool,
    /// Bytes, where the server says so of a file.
    pub size_bytes: Option<u64>,
    /// When it was last changed, where the server says so.
    pub modified: Option<SystemTime>,
    /// As the server writes it, with its quotes.
    pub etag: Option<String>,
}

impl WebDav {
    /// Over the connections of `session`.
    pub fn new(session: Arc<Session>) -> Self {
        WebDav { session, patient: OnceLock::new() }
    }

    /// The session of requests that change something.
    fn patient(&self) -> &Arc<Session> {
        self.patient.get_or_init(|| {
            let options = &self.session.options;
            let first_byte = options.timeouts.first_byte.max(PATIENCE);
            let timeouts = Timeouts { first_byte, ..options.timeouts };
            // What is sent as it is made is sent in chunks.
            Arc::new(Session::new(Options { timeouts, http: Version::Http1, ..options.clone() }))
        })
    }

    /// The session.
    pub fn session(&self) -> &Arc<Session> {
        &self.session
    }
}

/// The address without its query, which may hold a signature or a token: what may be shown.
pub fn without_query(url: &str) -> &str {
    url.split(['?', '#']).next().unwrap_or_default()
}

/// The address of `name` (percent-encoded) in the collection at `url`: behind the path, before the query.
pub fn member_url(url: &str, name: &str) -> String {
    let (path, query) = url.split_at(url.find(['?', '#']).unwrap_or(url.len()));
    format!("{}/{name}{query}", path.trim_end_matches('/'))
}

/// The address as a collection's, with the final slash that servers want.
pub fn collection_url(url: &str) -> String {
    member_url(url, "")
}

/// The address of the collection that holds what is at `url`; `None` for the root of a server.
pub fn parent_url(url: &str) -> Option<String> {
    let (path, query) = url.split_at(url.find(['?', '#']).unwrap_or(url.len()));
    let root = path.find("://")? + 3;
    let path = path.trim_end_matches('/');
    let slash = path.rfind('/').filter(|slash| *slash > root)?;
    Some(format!("{}/{query}", &path[..slash]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_members_and_parents() {
        assert_eq!(member_url("http://h/a/?t=1", "b%20c"), "http://h/a/b%20c?t=1");
        assert_eq!(collection_url("http://h"), "http://h/");
        assert_eq!(collection_url("http://h/a//"), "http://h/a/");
        assert_eq!(parent_url("http://h/a/b/?q").as_deref(), Some("http://h/a/?q"));
        assert_eq!(parent_url("http://h/a").as_deref(), Some("http://h/"));
        assert_eq!(parent_url("http://h/"), None);
        assert_eq!(parent_url("http://h"), None);
    }
}
