//! WebDAV (RFC 4918): what is at a web server, and changing it; and copies from one server to another
//! that the client only orders (WLCG's HTTP-TPC).
//!
//! Requests go through a [`HttpSession`]: its connections, credentials, redirections, TLS and retries are
//! the same as for reads. Answers are documents of at most 64 MiB.

mod call;
mod list;
mod third_party;

pub use list::{CollectionListing, CollectionWalk};
pub use third_party::{CopyDirection, Progress, ThirdParty};

use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use fordway_store::{Error, ErrorKind, Result};
use fordway_wire::webdav::{CopyOutcome, CopyReport, multistatus};

use self::call::{DavBody, DavCall, DavResponse, Produce, of_members};
use super::vector::{HttpSession, SessionOptions};
use super::{HttpVersion, Timeouts};
use crate::vector::{RangeTarget as _, WebFile};

/// How long an answer may take to a request that changes something: a server may have much to copy or
/// to remove before it says a word.
const PATIENCE: Duration = Duration::from_secs(600);

/// Servers that speak WebDAV, as one session sees them. All addresses are `http(s)://` URLs; what may not
/// stand in one is percent-encoded, and a query goes with every request.
pub struct WebDav {
    session: Arc<HttpSession>,
    /// The same with more patience, made when something is changed.
    patient: OnceLock<Arc<HttpSession>>,
}

/// What is known of something at a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DavResource {
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
    pub fn new(session: Arc<HttpSession>) -> Self {
        WebDav { session, patient: OnceLock::new() }
    }

    /// The session of requests that change something.
    fn patient(&self) -> &Arc<HttpSession> {
        self.patient.get_or_init(|| {
            let options = &self.session.options;
            let first_byte = options.timeouts.first_byte.max(PATIENCE);
            let timeouts = Timeouts { first_byte, ..options.timeouts };
            // What is sent as it is made is sent in chunks.
            Arc::new(HttpSession::new(SessionOptions {
                timeouts,
                http: HttpVersion::Http1,
                ..options.clone()
            }))
        })
    }

    /// The session.
    pub fn session(&self) -> &Arc<HttpSession> {
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

impl WebDav {
    /// Makes a collection. Errors: `PreconditionFailed` if something is there, `NoSuchKey` if the collection
    /// that it would be in is not, `AccessDenied`, `NoSpace`, ... Cost: one request (MKCOL), which is
    /// not sent again if the server may have acted on it.
    pub fn make_collection(&self, url: &str) -> Result<()> {
        let url = collection_url(url);
        self.change(&url, &mut DavCall::new("MKCOL", "make").once())
    }

    /// Makes a collection and those that it is in, of which all may be there already. A server that takes no
    /// MKCOL and no PROPFIND says no more than one where it is there.
    /// Cost: one request, one more if it is there, and two for each that is missing above it.
    pub fn make_collections(&self, url: &str) -> Result<()> {
        match self.make_collection(url) {
            Err(error) if error.kind() == ErrorKind::NoSuchKey => {
                let Some(parent) = parent_url(url) else { return Err(error) };
                self.make_collections(&parent)?;
                // Somebody else may make it just now.
                self.unless_there(url, self.make_collection(url))
            }
            made => self.unless_there(url, made),
        }
    }

    /// What was not made because it is there is good, if it is no file.
    fn unless_there(&self, url: &str, made: Result<()>) -> Result<()> {
        match made {
            Err(error) if error.kind() == ErrorKind::PreconditionFailed => match self.list_one(url) {
                Ok(found) if !found.is_collection => Err(error),
                _ => Ok(()),
            },
            made => made,
        }
    }

    /// Removes a file, or the collection that `url` names with a slash at its end. What servers do to
    /// one that is not empty differs: most remove all of it, some refuse.
    /// Errors: `NoSuchKey`, `ConditionalConflict` for what is locked, `AccessDenied`, ...; a failure of
    /// members names them. Cost: one request (DELETE).
    pub fn remove(&self, url: &str) -> Result<()> {
        let answer = self.ask(url, &mut DavCall::new("DELETE", "remove"))?;
        match check(&answer, "DELETE") {
            // An earlier try removed it, and its answer was lost.
            Err(error) if error.kind() == ErrorKind::NoSuchKey && answer.is_repeated => Ok(()),
            done => done.map_err(|error| answer.file.named("remove", error)),
        }
    }

    /// Copies a file or a whole collection within a server, which does the work.
    /// Errors: `PreconditionFailed` if something is at the destination and is not to be replaced,
    /// `InvalidArgument` if it is at another server, as [`WebDav::remove`].
    /// Cost: one request (COPY), which is not sent again if the server may have acted on it.
    pub fn copy(&self, from: &str, to: &str, replaces: bool) -> Result<()> {
        // A copy that seems lost may still be at work, and two would write to one place.
        self.change(from, &mut to_destination("COPY", "copy", (from, to), replaces)?.once())
    }

    /// Moves a file or a whole collection within a server. Errors: as [`WebDav::copy`].
    /// Cost: one request (MOVE), which is not sent again if the server may have acted on it.
    pub fn rename(&self, from: &str, to: &str, replaces: bool) -> Result<()> {
        self.change(from, &mut to_destination("MOVE", "move", (from, to), replaces)?.once())
    }

    fn change(&self, url: &str, call: &mut DavCall<'_>) -> Result<()> {
        let (method, operation) = (call.method, call.operation);
        let answer = self.ask(url, call)?;
        check(&answer, method)
            .and_then(|()| believe(&answer))
            .map_err(|error| answer.file.named(operation, error))
    }
}

/// Whether an answer says that all was done.
fn check(answer: &DavResponse, method: &str) -> Result<()> {
    match answer.status {
        207 => of_members(method, &multistatus(&answer.document)?).map_or(Ok(()), Err),
        200..=299 => Ok(()),
        // Apache names what is locked below a collection in a document that goes with this status.
        424 => {
            let named = multistatus(&answer.document).ok().and_then(|members| of_members(method, &members));
            Err(named.unwrap_or_else(|| answer.refusal(method)))
        }
        _ => Err(answer.refusal(method)),
    }
}

/// XRootD answers COPY by a report of the copy, whose status says only that it began.
/// Errors: `Unavailable` with the server's reason.
fn believe(answer: &DavResponse) -> Result<()> {
    if !answer.is_plain_text || answer.status == 207 {
        return Ok(());
    }
    let mut report = CopyReport::default();
    report.push(&answer.document)?;
    match report.finish()? {
        Some(CopyOutcome::Failure(reason)) => {
            Err(Error::new(ErrorKind::Unavailable, format!("the server could not do it: {reason}")))
        }
        _ => Ok(()),
    }
}

/// Errors: `InvalidArgument` for another server: some take the path for one of their own.
fn to_destination(
    method: &'static str,
    operation: &'static str,
    (from, to): (&str, &str),
    replaces: bool,
) -> Result<DavCall<'static>> {
    let (from, to) = (WebFile::parse(from)?, WebFile::parse(to)?);
    if from.origin() != to.origin() {
        let detail = format!("{} is at another server", to.shown());
        return Err(from.named(operation, Error::new(ErrorKind::InvalidArgument, detail)));
    }
    let overwrite = if replaces { "T" } else { "F" };
    Ok(DavCall::new(method, operation).header("destination", to.url()).header("overwrite", overwrite))
}

/// What is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DavUpload<'u> {
    /// Its bytes, where they are known. If not it goes in chunks, which not every server takes.
    pub size_bytes: Option<u64>,
    /// Its media type.
    pub content_type: Option<&'u str>,
    /// Whether something that is there is an error. Servers differ in whether they look (`If-None-Match: *`):
    /// nginx and XRootD do not, so look yourself before.
    pub only_new: bool,
}

impl WebDav {
    /// Writes a file. `produce` hands its bytes to the function that it is given, in order; it is called
    /// again, to begin anew, if an attempt failed or the server sends us elsewhere.
    ///
    /// A connection to the server is held meanwhile: who reads from the same server needs another one, and
    /// as many have to be allowed.
    ///
    /// When this returns without an error the server said that it has all of it; how durable that is, and
    /// whether a write that broke off leaves a part, is up to the server.
    /// Errors: from `produce`; `NoSuchKey` if the collection that it would be in is missing,
    /// `PreconditionFailed`, `AccessDenied`, `NoSpace`, ... Cost: one request (PUT), and a round trip more
    /// from 64 KiB on, where the server is asked before the body is sent.
    pub fn put<'p>(&self, url: &str, upload: &DavUpload<'_>, produce: &'p mut Produce<'p>) -> Result<()> {
        let mut call = DavCall::new("PUT", "put");
        if let Some(kind) = upload.content_type {
            call = call.header("content-type", kind);
        }
        if upload.only_new {
            // Sent twice, it would find what it made itself.
            call = call.header("if-none-match", "*").once();
        }
        let answer =
            self.ask(url, &mut DavCall { body: DavBody::Made(upload.size_bytes, produce), ..call })?;
        check(&answer, "PUT").map_err(|error| answer.file.named("put", error))
    }
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
