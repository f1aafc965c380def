//! WebDAV (RFC 4918): lists and changes the files on a web server, and requests copies from one server directly to
//! another (WLCG's HTTP-TPC).
//!
//! Requests use an [`HttpSession`], so connections, credentials, redirections, TLS and retries are the same as for
//! reads. Response documents are limited to 64 MiB.

mod call;
mod list;
mod request;
mod third_party;

pub use list::{CollectionListing, CollectionWalk};
pub use request::CustomHttpRequest;
pub use third_party::{CopyDirection, CopyProgressCallback, ThirdPartyCopy};

use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use fordway_store::{Error, ErrorKind, Result};
use fordway_wire::webdav::{PerformanceMarkerParser, ThirdPartyCopyOutcome, multistatus};

use self::call::{BodyProducer, DESTINATION, DavBody, DavRequest, DavResponse, of_members, reported};
use super::Timeouts;
use super::vector::{HttpSession, SessionOptions};
use crate::retry::{RetryBudget, pause};
use crate::vector::{RemoteResource as _, WebFileResource};

/// The timeout for the response to a request that changes something. A server may copy or remove a lot of data before
/// it responds.
const PATIENCE: Duration = Duration::from_secs(600);

/// A client of WebDAV servers, all accessed through one session. All addresses are `http(s)://` URLs; characters that
/// are not allowed in a URL are percent-encoded, and every request keeps the URL's query.
pub struct WebDavClient {
    session: Arc<HttpSession>,
    /// A session with the same options and a longer timeout, created when the first change is requested.
    patient: OnceLock<Arc<HttpSession>>,
}

/// The properties that the server reports of a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DavResource {
    /// The URL of the resource.
    pub url: String,
    /// The path of the resource below the listed collection, decoded, with `/` between the parts; empty for the
    /// collection itself.
    pub relative: String,
    /// Whether the resource is a collection.
    pub is_collection: bool,
    /// The size of a file, if the server reports it.
    pub size_bytes: Option<u64>,
    /// The last modification, if the server reports it.
    pub modified: Option<SystemTime>,
    /// The ETag as the server writes it, with its quotes.
    pub etag: Option<String>,
}

impl DavResource {
    /// Returns whether `self` and `other` describe the same version of a resource, according to the properties that the
    /// server reports. A server may report an ETag as weak while a file is new, and as strong later, so the comparison
    /// ignores the difference.
    pub fn is_same_version(&self, other: &DavResource) -> bool {
        let etag = |of: &DavResource| of.etag.as_deref().map(|etag| etag.trim_start_matches("W/").to_owned());
        let properties = |of: &DavResource| (of.is_collection, of.size_bytes, of.modified, etag(of));
        properties(self) == properties(other)
    }

    /// Returns the value of `If-Match` that limits a request to this version of a file; `None` without a strong ETag,
    /// which the comparison requires (RFC 9110 section 13.1.1).
    fn if_match(&self) -> Option<&str> {
        self.etag.as_deref().filter(|etag| etag.starts_with('"') && !self.is_collection)
    }
}

impl WebDavClient {
    /// Creates a client that uses `session`'s connections.
    pub fn new(session: Arc<HttpSession>) -> Self {
        WebDavClient { session, patient: OnceLock::new() }
    }

    /// Returns the session for requests that change something.
    fn patient(&self) -> &Arc<HttpSession> {
        self.patient.get_or_init(|| {
            let options = &self.session.options;
            let first_byte = options.timeouts.first_byte.max(PATIENCE);
            let timeouts = Timeouts { first_byte, ..options.timeouts };
            Arc::new(HttpSession::new(SessionOptions { timeouts, ..options.clone() }))
        })
    }

    /// Returns the session.
    pub fn session(&self) -> &Arc<HttpSession> {
        &self.session
    }
}

/// Returns the URL without its query, which may contain a signature or a token; the result is safe to display.
pub fn without_query(url: &str) -> &str {
    url.split(['?', '#']).next().unwrap_or_default()
}

/// Returns the URL of `name` (percent-encoded) in the collection at `url`. The name is appended to the path, before the
/// query.
pub fn member_url(url: &str, name: &str) -> String {
    let (path, query) = url.split_at(url.find(['?', '#']).unwrap_or(url.len()));
    format!("{}/{name}{query}", path.trim_end_matches('/'))
}

/// Returns the URL of a collection, with the final slash that servers expect.
pub fn collection_url(url: &str) -> String {
    member_url(url, "")
}

/// Returns the URL of the parent collection of `url`; `None` for the root of a server.
pub fn parent_url(url: &str) -> Option<String> {
    let (path, query) = url.split_at(url.find(['?', '#']).unwrap_or(url.len()));
    let root = path.find("://")? + 3;
    let path = path.trim_end_matches('/');
    let slash = path.rfind('/').filter(|slash| *slash > root)?;
    Some(format!("{}/{query}", &path[..slash]))
}

impl WebDavClient {
    /// Creates a collection. Errors: `PreconditionFailed` if the URL exists; `NoSuchKey` if the parent collection does
    /// not exist; `AccessDenied`, `NoSpace`, `InvalidArgument`, `MethodNotAllowed`, `Unavailable`, `Timeout`,
    /// `BadResponse`, `Io` and others. Cost: one request (MKCOL), which is not retried if the server may have acted on
    /// it.
    pub fn make_collection(&self, url: &str) -> Result<()> {
        let url = collection_url(url);
        self.change(&url, &mut DavRequest::new("MKCOL", "make").once(), &|_| {
            self.list_one(&url).is_ok_and(|found| found.is_collection)
        })?;
        Ok(())
    }

    /// Creates a collection and its parents, any of which may already exist. If a server supports neither MKCOL nor
    /// PROPFIND, the collection is assumed to exist. Cost: one request, plus one if the collection exists, plus two for
    /// each missing parent.
    pub fn make_collections(&self, url: &str) -> Result<()> {
        match self.make_collection(url) {
            Err(error) if error.kind() == ErrorKind::NoSuchKey => {
                let Some(parent) = parent_url(url) else { return Err(error) };
                self.make_collections(&parent)?;
                // Another client may create the collection at the same time.
                self.unless_there(url, self.make_collection(url))
            }
            made => self.unless_there(url, made),
        }
    }

    /// Ignores the failure if it means that the collection already exists, but not if there is a file at the URL.
    fn unless_there(&self, url: &str, made: Result<()>) -> Result<()> {
        match made {
            Err(error) if error.kind() == ErrorKind::PreconditionFailed => match self.list_one(url) {
                Ok(found) if !found.is_collection => Err(error),
                _ => Ok(()),
            },
            made => made,
        }
    }

    /// Removes a file, or a collection if `url` ends with a slash. Most servers remove a collection with all its
    /// members, and some refuse to remove a collection that has members. Errors: `NoSuchKey`; `ConditionalConflict` for
    /// a locked resource; `AccessDenied`, `InvalidArgument`, `MethodNotAllowed`, `Unavailable`, `Timeout`,
    /// `BadResponse`, `Io` and others. If members could not be removed, the error names them. Cost: one request
    /// (DELETE).
    pub fn remove(&self, url: &str) -> Result<()> {
        self.send_removal(url, DavRequest::new("DELETE", "remove"))
    }

    /// Removes a file if it is still the described version. The server checks the version if it supports `If-Match` and
    /// has reported a strong ETag. nginx and XRootD do not check the version. Errors: `PreconditionFailed` for another
    /// version; otherwise as for [`WebDavClient::remove`]. Cost: one request (DELETE).
    pub fn remove_version(&self, file: &DavResource) -> Result<()> {
        self.send_removal(&file.url, only_version(DavRequest::new("DELETE", "remove"), file))
    }

    fn send_removal(&self, url: &str, mut call: DavRequest<'_>) -> Result<()> {
        let answer = self.ask(url, &mut call)?;
        let is_done = || match self.stat(url).map_err(|error| error.kind()) {
            Err(ErrorKind::NoSuchKey) => true,
            // Credentials may permit removals only, and some services, such as Azure's, always respond with 202.
            Err(ErrorKind::AccessDenied) => {
                let url = without_query(url);
                tracing::warn!("the server has accepted the removal of {url}; the result cannot be read");
                true
            }
            _ => false,
        };
        match check(&answer, "DELETE").and_then(|()| self.check_done(&answer, &is_done)) {
            // An earlier attempt removed the resource, but its response was lost.
            Err(error) if error.kind() == ErrorKind::NoSuchKey && answer.is_repeated => Ok(()),
            done => done.map_err(|error| answer.file.named("remove", error)),
        }
    }

    /// Copies a file or a whole collection within one server. Errors: `PreconditionFailed` if the destination exists
    /// and must not be replaced, `InvalidArgument` if the destination is on another server, `NoSpace`; `IncompleteBody`
    /// if the server's report ends before the result; `Corrupt` if a copy that the server reports as complete is
    /// missing or has another size; otherwise as for [`WebDavClient::remove`]. Cost: one request (COPY), which is not
    /// retried if the server may have acted on it, one request (PROPFIND of the destination) per redirection, and two
    /// requests (PROPFIND) after a report.
    pub fn copy(&self, from: &str, to: &str, replaces: bool) -> Result<()> {
        // Do not retry: a copy whose connection was lost may still be running, and both copies would write to the same
        // destination.
        let mut call = to_destination("COPY", "copy", (from, to), replaces)?.once();
        let is_done = |answer: &DavResponse| match (self.stat(from), self.stat(to)) {
            // A collection exists before its members do.
            (Ok(source), Ok(copy)) if !source.is_collection && source.size_bytes.is_some() => {
                // With `replaces`, an older file of the same size may have been at the destination.
                copy.size_bytes == source.size_bytes && (!replaces || answer.is_before(&copy))
            }
            _ => false,
        };
        if self.change(from, &mut call, &is_done)? {
            // Without the properties of the source, only the existence of the destination can be checked.
            let size_bytes = self.stat(from).ok().and_then(|source| source.size_bytes);
            let source = WebFileResource::parse(from)?;
            self.hold_against(to, size_bytes)
                .map_err(|error| source.named("copy", error.with_advice(REMOVE_AND_TRY_AGAIN)))?;
        }
        Ok(())
    }

    /// Moves a file or a whole collection within a server. Errors: as for [`WebDavClient::copy`]. Cost: one request
    /// (MOVE), which is not retried if the server may have acted on it.
    pub fn rename(&self, from: &str, to: &str, replaces: bool) -> Result<()> {
        self.send_move((from, to), to_destination("MOVE", "move", (from, to), replaces)?)
    }

    /// Moves a file or a whole collection within a server. A file is moved only if it is still the described version,
    /// as in [`WebDavClient::remove_version`]. Errors: `PreconditionFailed` for another version; otherwise as for
    /// [`WebDavClient::rename`].
    pub fn rename_version(&self, from: &DavResource, to: &str, replaces: bool) -> Result<()> {
        let call = to_destination("MOVE", "move", (&from.url, to), replaces)?;
        self.send_move((&from.url, to), only_version(call, from))
    }

    fn send_move(&self, (from, to): (&str, &str), call: DavRequest<'_>) -> Result<()> {
        let is_gone = || self.stat(from).is_err_and(|error| error.kind() == ErrorKind::NoSuchKey);
        self.change(from, &mut call.once(), &|_| is_gone() && self.stat(to).is_ok()).map(drop)
    }

    /// Sends a request that changes something. Returns whether the server's report states success. `is_done` looks for
    /// the result if the status does not state it.
    fn change(
        &self,
        url: &str,
        call: &mut DavRequest<'_>,
        is_done: &dyn Fn(&DavResponse) -> bool,
    ) -> Result<bool> {
        let (method, operation) = (call.method, call.operation);
        let answer = self.ask(url, call)?;
        let believed = check(&answer, method).and_then(|()| match believe(&answer)? {
            true => Ok(true),
            false => self.check_done(&answer, &|| is_done(&answer)).map(|()| false),
        });
        believed.map_err(|error| answer.file.named(operation, error))
    }

    /// Checks that the server has carried out a request without a report. After status 202, it may do so later, or
    /// never (RFC 9110 section 15.3.3), so `is_done` looks for the result, as many times as a request may be sent.
    /// Errors: `Unavailable`; `Interrupted`.
    fn check_done(&self, answer: &DavResponse, is_done: &dyn Fn() -> bool) -> Result<()> {
        let mut retries = RetryBudget::new(self.session.options.max_retries, self.session.until());
        while answer.status == 202 && !is_done() {
            let detail =
                "the server has accepted the request, but has not carried it out yet (HTTP status 202)";
            let pending = || Error::new(ErrorKind::Unavailable, detail);
            let Ok(wait) = retries.after(pending(), true, None) else {
                return Err(pending().with_advice(
                    "use `fordway stat` to see the result; if nothing changes, ask the server's administrator",
                ));
            };
            pause(wait)?;
        }
        Ok(())
    }
}

impl DavResponse {
    /// Returns whether a file was written after the request had been sent, according to the server's clock.
    fn is_before(&self, file: &DavResource) -> bool {
        file.modified.zip(self.begun).is_some_and(|(modified, begun)| modified >= begun)
    }
}

/// Limits a request to one version of a file, if the server has reported a strong ETag.
fn only_version<'c>(call: DavRequest<'c>, file: &DavResource) -> DavRequest<'c> {
    match file.if_match() {
        Some(etag) => call.header("if-match", etag),
        None => call,
    }
}

/// Checks that a response reports success for every resource.
fn check(answer: &DavResponse, method: &str) -> Result<()> {
    match answer.status {
        207 => of_members(method, &multistatus(&answer.document)?).map_or(Ok(()), Err),
        200..=299 => Ok(()),
        // Apache sends this status with a document that names the locked members of a collection.
        424 => {
            let named = multistatus(&answer.document).ok().and_then(|members| of_members(method, &members));
            Err(named.unwrap_or_else(|| answer.refusal(method)))
        }
        _ => Err(answer.refusal(method)),
    }
}

/// The advice for a request that the server reports as failed after its status.
const TRY_AGAIN: &str =
    "try again; if that fails too, ask the server's administrator for the reason in its log";

/// The advice for a copy that is incomplete although the server reports success.
const REMOVE_AND_TRY_AGAIN: &str =
    "remove the destination and copy again; if that fails too, ask the server's administrator for the reason";

/// Checks the report in a response to COPY or MOVE. The status of XRootD and dCache means only that the copy has
/// started, and the report contains the result. Returns whether there is a report. Errors: `Unavailable` with the
/// server's reason; `IncompleteBody` if the report ends before the result.
fn believe(answer: &DavResponse) -> Result<bool> {
    let kind = answer.content_type.as_deref().unwrap_or_default().to_ascii_lowercase();
    // HTML and XML documents are not reports. A report may have any other type: XRootD's has text/plain, dCache's does
    // not.
    if answer.status == 207 || kind.contains("html") || kind.contains("xml") {
        return Ok(false);
    }
    let mut report = PerformanceMarkerParser::default();
    let has_marker = report.push(&answer.document)?;
    match report.finish()? {
        Some(ThirdPartyCopyOutcome::Success) => Ok(true),
        Some(ThirdPartyCopyOutcome::Failure(reason)) => {
            Err(reported("the server could not carry out the request", &reason, TRY_AGAIN))
        }
        None if has_marker => Err(Error::new(ErrorKind::IncompleteBody, third_party::WITHOUT_RESULT)),
        None => Ok(false),
    }
}

/// Creates a request with a `Destination` header. Errors: `InvalidArgument` for a destination on another server,
/// because some servers would interpret its path as one of their own paths.
fn to_destination(
    method: &'static str,
    operation: &'static str,
    (from, to): (&str, &str),
    replaces: bool,
) -> Result<DavRequest<'static>> {
    let (from, to) = (WebFileResource::parse(from)?, WebFileResource::parse(to)?);
    if from.origin() != to.origin() {
        let detail = format!("{} is on another server", to.shown());
        return Err(from.named(operation, Error::new(ErrorKind::InvalidArgument, detail)));
    }
    let overwrite = if replaces { "T" } else { "F" };
    Ok(DavRequest::new(method, operation).header(DESTINATION, to.url()).header("overwrite", overwrite))
}

/// The options of an upload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DavUploadOptions<'u> {
    /// The size of the content, if known. Content of unknown size is sent in chunks, which some servers do not support.
    pub size_bytes: Option<u64>,
    /// The media type of the content (`Content-Type`).
    pub content_type: Option<&'u str>,
    /// Whether an existing file is an error. Some servers, such as nginx and XRootD, do not check for an existing file
    /// (`If-None-Match: *`), so the caller should check before the upload.
    pub only_new: bool,
}

impl WebDavClient {
    /// Writes a file. `produce` passes the content, in order, to the function that it receives. If an attempt fails or
    /// the server redirects, `produce` is called again and starts from the beginning.
    ///
    /// The upload occupies a connection to the server. If `produce` reads from the same server, it needs another
    /// connection, and the session's limit must allow both connections.
    ///
    /// Success means that the server has reported that it has the whole file. Whether the file is durable, and whether
    /// an interrupted write leaves a partial file, depends on the server. Errors: any error from `produce`; `NoSuchKey`
    /// if the parent collection is missing; `PreconditionFailed` if `only_new` is set and the file exists;
    /// `ConditionalConflict` if the file is locked; `AccessDenied`, `NoSpace`, `EntityTooLarge`, `KeyTooLong`,
    /// `InvalidArgument`, `MethodNotAllowed`, `Unavailable`, `Timeout`, `BadResponse`, `Io` and others. Cost: one
    /// request (PUT). If the content is 64 KiB or larger (HTTP/1.1), or its size is unknown, the client first waits for
    /// the server's consent (`Expect: 100-continue`), which costs one more round trip.
    pub fn put<'p>(
        &self,
        url: &str,
        upload: &DavUploadOptions<'_>,
        produce: &'p mut BodyProducer<'p>,
    ) -> Result<()> {
        let mut call = DavRequest::new("PUT", "put");
        if let Some(kind) = upload.content_type {
            call = call.header("content-type", kind);
        }
        if upload.only_new {
            // Do not retry: a second attempt would fail because of the file created by the first.
            call = call.header("if-none-match", "*").once();
        }
        let answer =
            self.ask(url, &mut DavRequest { body: DavBody::Made(upload.size_bytes, produce), ..call })?;
        // An older file of this size at the URL may be the file that the upload replaces.
        let is_done = || match self.stat(url) {
            Ok(found) if upload.size_bytes.is_some() && found.size_bytes == upload.size_bytes => {
                answer.is_before(&found)
            }
            _ => false,
        };
        check(&answer, "PUT")
            .and_then(|()| self.check_done(&answer, &is_done))
            .map_err(|error| answer.file.named("put", error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_recognized_by_its_properties() {
        let resource = |etag: Option<&str>, size_bytes| DavResource {
            url: "http://h/a".to_owned(),
            relative: String::new(),
            is_collection: false,
            size_bytes,
            modified: None,
            etag: etag.map(str::to_owned),
        };
        let (strong, weak) = (resource(Some("\"a\""), Some(1)), resource(Some("W/\"a\""), Some(1)));
        assert!(strong.is_same_version(&weak));
        for other in
            [resource(Some("\"b\""), Some(1)), resource(Some("\"a\""), Some(2)), resource(None, Some(1))]
        {
            assert!(!strong.is_same_version(&other), "{other:?}");
        }
        assert_eq!((strong.if_match(), weak.if_match()), (Some("\"a\""), None));
        assert_eq!(DavResource { is_collection: true, ..strong }.if_match(), None);
    }

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
