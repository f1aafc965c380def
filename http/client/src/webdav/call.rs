//! Sends one WebDAV request: follows redirections, retries after failures that may be temporary, and explains refusals
//! (RFC 4918 section 11, RFC 9110 section 15).

use std::time::{Duration, Instant, SystemTime};

use fordway_store::{Error, ErrorKind, Result};
use fordway_wire::s3_error;
use fordway_wire::webdav::MultistatusEntry;

use super::WebDavClient;
use crate::client::{BodySink, StreamedBody};
use crate::retry::{RetryBudget, pause, retry_after};
use crate::vector::redirect::{RedirectResponse, RedirectRoute};
use crate::vector::{RemoteResource as _, WebFileResource};
use crate::{ExchangeFailure, HttpExchangeRequest, HttpResponse, HttpVersion, ReplayPolicy};

/// The minimum size of a body for which the client first asks the server whether it accepts the request (`Expect:
/// 100-continue`).
const ASK_FIRST_BYTES: u64 = 64 * 1024;

/// The header that contains the address to which a resource is copied or moved.
pub(super) const DESTINATION: &str = "destination";

/// A function that produces a body's content, from the first byte, each time it is called.
pub(super) type BodyProducer<'a> = dyn FnMut(&mut BodySink<'_>) -> Result<()> + 'a;

/// A request.
pub(super) struct DavRequest<'a> {
    pub(super) method: &'static str,
    /// The operation's name in messages.
    pub(super) operation: &'static str,
    /// The headers; names are in lower case.
    pub(super) headers: Vec<(&'static str, String)>,
    pub(super) body: DavBody<'a>,
    /// Whether the request may be sent twice.
    pub(super) replay: ReplayPolicy,
    /// Whether the server rejected `Expect: 100-continue`.
    pub(super) must_not_ask: bool,
    /// Whether the last attempt contained `Expect: 100-continue`.
    pub(super) has_asked: bool,
    /// Whether the last attempt sent any of a streamed body.
    pub(super) is_begun: bool,
}

pub(super) enum DavBody<'a> {
    Bytes(&'static str),
    /// A streamed body, and its size, if known.
    Made(Option<u64>, &'a mut BodyProducer<'a>),
}

/// The final response to a request, after redirections.
pub(super) struct DavResponse {
    pub(super) status: u16,
    pub(super) document: Vec<u8>,
    /// The value of the `Content-Type` header.
    pub(super) content_type: Option<String>,
    /// The value of the `Server` header.
    pub(super) server: Option<String>,
    /// The server's time when the request was sent, computed from the `Date` header.
    pub(super) begun: Option<SystemTime>,
    /// The URL that responded.
    pub(super) file: WebFileResource,
    /// Whether the server may have acted on an earlier attempt.
    pub(super) is_repeated: bool,
}

impl DavResponse {
    /// Returns a response from the same server with a different status and without a document. The new response
    /// represents the part of a multistatus document that describes one resource.
    pub(super) fn of_status(&self, status: u16) -> Self {
        let (document, content_type, server, begun) = (Vec::new(), None, None, self.begun);
        let (file, is_repeated) = (self.file.clone(), false);
        DavResponse { status, document, content_type, server, begun, file, is_repeated }
    }
}

/// A failed request, without a response.
pub(super) struct DavFailure {
    pub(super) error: Error,
    retry_after: Option<Duration>,
    pub(super) may_have_acted: bool,
}

/// A final response, or a redirection.
enum ResponseOrRedirect {
    Answer(DavResponse),
    Elsewhere(RedirectResponse),
}

impl<'a> DavRequest<'a> {
    /// Creates a request without a body. The request may be sent twice; see [`DavRequest::once`].
    pub(super) fn new(method: &'static str, operation: &'static str) -> Self {
        DavRequest {
            method,
            operation,
            headers: Vec::new(),
            body: DavBody::Bytes(""),
            replay: ReplayPolicy::Idempotent,
            must_not_ask: false,
            has_asked: false,
            is_begun: false,
        }
    }

    pub(super) fn header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    /// Returns whether the last attempt asked for the server's consent and sent nothing of the body, so the request can
    /// be repeated without `Expect: 100-continue`.
    fn is_unsent_after_asking(&self) -> bool {
        self.has_asked && !self.is_begun && !self.must_not_ask
    }

    /// Returns the address to which a resource is copied or moved.
    fn destination(&self) -> Option<&str> {
        self.headers.iter().find(|(name, _)| *name == DESTINATION).map(|(_, to)| to.as_str())
    }

    /// Replaces the destination.
    fn redirect_to(&mut self, to: String) {
        self.headers.retain(|(name, _)| *name != DESTINATION);
        self.headers.push((DESTINATION, to));
    }

    /// Prevents retries of the request if the server may already have acted on it.
    pub(super) fn once(self) -> Self {
        DavRequest { replay: ReplayPolicy::IfUnsent, ..self }
    }
}

impl WebDavClient {
    /// Sends a request to `url`, and follows redirections. Returns the final response, even if its status is a failure.
    /// Errors: connection errors, which name the URL; `BadResponse` for redirections that are not followed.
    pub(super) fn ask(&self, url: &str, call: &mut DavRequest<'_>) -> Result<DavResponse> {
        let is_question = matches!(call.method, "PROPFIND" | "OPTIONS");
        let session = if is_question { &self.session } else { self.patient() };
        let mut route = RedirectRoute::start(session, WebFileResource::parse(url)?)?;
        let destination = call.destination().map(str::to_owned);
        let until = session.until();
        loop {
            if let Some(to) = destination.as_deref().filter(|_| route.is_redirected()) {
                let found = self.redirected_destination(&route, to);
                call.redirect_to(found.map_err(|error| route.named(call.operation, error))?);
            }
            let moved = match ask_here(&route, call, until) {
                Ok(ResponseOrRedirect::Answer(answer)) => return Ok(answer),
                Ok(ResponseOrRedirect::Elsewhere(moved)) => moved,
                Err(error) => return Err(route.named(call.operation, error)),
            };
            route.follow(&moved).map_err(|error| route.named(call.operation, error))?;
        }
    }

    /// Returns the address of the destination `to` at the server to which the source was redirected. That server would
    /// interpret the original address as one of its own paths. The redirect of a PROPFIND shows the new address, even
    /// if there is nothing at the destination. Errors: `InvalidArgument` if the destination is at another server.
    fn redirected_destination(&self, route: &RedirectRoute, to: &str) -> Result<String> {
        let found = self.propfind(to, "0")?.file;
        if found.origin() == route.file.origin() {
            return Ok(found.url());
        }
        let detail = format!("{} is not on the same server as {}", found.shown(), route.file.shown());
        Err(Error::new(ErrorKind::InvalidArgument, detail))
    }
}

/// Sends the request to one URL; retries after failures that may be temporary, but not after `until`.
fn ask_here(
    route: &RedirectRoute,
    call: &mut DavRequest<'_>,
    until: Option<Instant>,
) -> Result<ResponseOrRedirect> {
    let _permit = route.session.permit(route.file.origin())?;
    let (mut retries, mut may_have_acted) =
        (RetryBudget::new(route.session.options.max_retries, until), false);
    loop {
        let failed = match try_once(route, call, until) {
            // Status 417: the server rejects the expectation (RFC 9110 section 15.5.18). Some servers send another
            // status instead, or close the connection.
            Ok(ResponseOrRedirect::Answer(answer))
                if answer.status == 417 && !call.must_not_ask
                    || matches!(answer.status, 400 | 501) && call.is_unsent_after_asking() =>
            {
                call.must_not_ask = true;
                continue;
            }
            Err(failed) if failed.error.is_at_lost_connection() && call.is_unsent_after_asking() => {
                call.must_not_ask = true;
                continue;
            }
            Ok(ResponseOrRedirect::Answer(answer)) => {
                return Ok(ResponseOrRedirect::Answer(DavResponse { is_repeated: may_have_acted, ..answer }));
            }
            Ok(moved) => return Ok(moved),
            Err(failed) => failed,
        };
        may_have_acted |= failed.may_have_acted;
        let kind = failed.error.kind();
        let may_pass = matches!(kind, ErrorKind::Unavailable | ErrorKind::Timeout | ErrorKind::Io);
        let may_repeat = call.replay == ReplayPolicy::Idempotent || !failed.may_have_acted;
        let wait = retries.after(failed.error, may_pass && may_repeat, failed.retry_after)?;
        pause(wait)?;
    }
}

fn try_once(
    route: &RedirectRoute,
    call: &mut DavRequest<'_>,
    until: Option<Instant>,
) -> Result<ResponseOrRedirect, DavFailure> {
    let begun = Instant::now();
    let mut response = send(route, call, until)?;
    let took = begun.elapsed();
    let sent = |error| DavFailure { error, retry_after: None, may_have_acted: true };
    let moved = RedirectResponse::of(response.status(), response.header("location"));
    // Status 303 points to a description of the result, not to the resource to be changed.
    if let Some(moved) = moved.filter(|moved| moved.status != 303) {
        return Ok(ResponseOrRedirect::Elsewhere(moved));
    }
    let document = response.read_document().map_err(sent)?;
    let header = |name| response.header(name).map(str::to_owned);
    let (content_type, server) = (header("content-type"), header("server"));
    let date = response.header("date").and_then(fordway_wire::date::parse_http);
    let begun = date.and_then(|date| date.checked_sub(took));
    let (status, file) = (response.status(), route.file.clone());
    let answer = DavResponse { status, document, content_type, server, begun, file, is_repeated: false };
    if is_passing(status, call.method) {
        let wish = response.header("retry-after").and_then(|text| retry_after(text, SystemTime::now()));
        let may_have_acted = !matches!(status, 429 | 503);
        let error = Error::new(ErrorKind::Unavailable, answer.refusal(call.method).detail());
        return Err(DavFailure { error, retry_after: wish, may_have_acted });
    }
    Ok(ResponseOrRedirect::Answer(answer))
}

/// Returns whether to ask the server, before the body is sent, whether it accepts the request. Without this check, all
/// of a large body is sent even if the server then refuses or redirects the request. The check costs a round trip,
/// which is too much for a small body.
fn is_worth_asking(body: &DavBody<'_>, version: HttpVersion) -> bool {
    match body {
        DavBody::Bytes(_) => false,
        DavBody::Made(Some(size), _) => version == HttpVersion::Http1 && *size >= ASK_FIRST_BYTES,
        // Over HTTP/2 and 3, at most one flow-control window of a refused body is sent, and some servers, such as
        // nginx, do not respond to `Expect: 100-continue`. However, content of unknown size, such as standard input,
        // can be read only once, so the client always asks the server before it sends such content.
        DavBody::Made(None, _) => true,
    }
}

/// Sends the request once. Every wait ends at `until`, even if bytes keep arriving.
pub(super) fn send(
    route: &RedirectRoute,
    call: &mut DavRequest<'_>,
    until: Option<Instant>,
) -> Result<HttpResponse, DavFailure> {
    let mut headers = call.headers.clone();
    match &call.body {
        DavBody::Bytes("") => {}
        DavBody::Bytes(text) => headers.push(("content-length", text.len().to_string())),
        DavBody::Made(Some(size), _) => headers.push(("content-length", size.to_string())),
        DavBody::Made(None, _) => headers.push(("transfer-encoding", "chunked".to_owned())),
    }
    let options = &route.session.options;
    let asks_first = options.asks_first && !call.must_not_ask && is_worth_asking(&call.body, options.http);
    (call.has_asked, call.is_begun) = (asks_first, false);
    if asks_first {
        headers.push(("expect", "100-continue".to_owned()));
    }
    let headers: Vec<_> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let body = if let DavBody::Bytes(text) = call.body { text.as_bytes() } else { &[] };
    let exchange = HttpExchangeRequest {
        origin: route.file.origin(),
        method: call.method,
        write_head: &|head| route.file.write_head(call.method, &headers, head),
        body,
        replay: call.replay,
    };
    let http = &route.session.http;
    let sent = match &mut call.body {
        DavBody::Bytes(_) => http.send_until(&exchange, until),
        DavBody::Made(size_bytes, produce) => {
            let size_bytes = *size_bytes;
            let mut body = StreamedBody { size_bytes, asks_first, produce, until, is_begun: false };
            let sent = http.send_streamed(&exchange, &mut body);
            call.is_begun = body.is_begun;
            sent
        }
    };
    sent.map_err(|ExchangeFailure { error, may_have_acted }| DavFailure {
        error,
        retry_after: None,
        may_have_acted,
    })
}

/// The maximum number of members named in an error.
const NAMED_MAX: usize = 5;
/// The maximum length of the server's message that is quoted in an error.
const WORDS_CHARS_MAX: usize = 200;

impl DavResponse {
    /// Returns the error that this response to `method` reports.
    pub(super) fn refusal(&self, method: &str) -> Error {
        let is_collection = self.status == 301 && matches!(method, "COPY" | "MOVE");
        if matches!(self.status, 300..=399 | 401 | 403 | 407) && !is_collection {
            let mut error = self.file.refusal(self.status, None, b"");
            if let Some(words) = self.words() {
                error = Error::new(error.kind(), format!("{}: {words}", error.detail()));
            }
            return error;
        }
        let (kind, why) = meaning(self.status, method);
        let words = self.words().unwrap_or_default();
        let colon = if words.is_empty() { "" } else { ": " };
        let detail = format!("{why} (HTTP status {}){colon}{words}", self.status);
        // Some servers report a full disk with 500 and the error message of the operating system.
        match self.status >= 500 && says_full(&words) {
            true => Error::new(ErrorKind::NoSpace, detail).with_advice(MAKE_ROOM),
            false => advised(Error::new(kind, detail), self.status),
        }
    }

    /// Returns the first non-blank line of a plain-text body, in which some servers explain a failure.
    fn words(&self) -> Option<String> {
        if self.content_type.as_ref().is_some_and(|kind| !kind.starts_with("text/plain")) {
            return None;
        }
        let text = String::from_utf8_lossy(&self.document);
        let line = text.lines().map(str::trim).find(|line| !line.is_empty())?;
        Some(line.chars().filter(|c| !c.is_control()).take(WORDS_CHARS_MAX).collect())
    }
}

/// The advice for a server without free space. The usual advice of `NoSpace` is about the file systems of this machine.
const MAKE_ROOM: &str = "delete files on the server, ask its administrator for more space or a larger quota, or write \
                         to another server";

/// Returns whether a server's message says that a file system or a quota is full.
fn says_full(words: &str) -> bool {
    let words = words.to_ascii_lowercase();
    ["no space left", "insufficient storage", "quota exceeded"].iter().any(|said| words.contains(said))
}

/// Returns the error for a failure that a server reports after the status of its response. `reason` is the server's
/// reason, which may be empty. `advice` is added to the error, unless the reason is that the server has no space.
pub(super) fn reported(what: &str, reason: &str, advice: &'static str) -> Error {
    let detail = match reason {
        "" => format!("{what}, and gives no reason"),
        reason => format!("{what}: {reason}"),
    };
    match says_full(reason) {
        true => Error::new(ErrorKind::NoSpace, detail).with_advice(MAKE_ROOM),
        false => Error::new(ErrorKind::Unavailable, detail).with_advice(advice),
    }
}

/// Replaces an error's advice if the usual advice does not apply to the WebDAV server's status code. The usual advice
/// of an error kind is about S3 and this machine.
fn advised(error: Error, status: u16) -> Error {
    match status {
        413 => error.with_advice("split the file, or ask the server's administrator to raise the limit"),
        414 => error.with_advice("shorten the path"),
        507 => error.with_advice(MAKE_ROOM),
        _ => error,
    }
}

/// Returns the error kind of a status, and a message that explains the status for a request with `method`.
fn meaning(status: u16, method: &str) -> (ErrorKind, String) {
    let said = |kind, why: &str| (kind, why.to_owned());
    match (status, method) {
        // If the address of a collection does not end with a slash, Apache redirects the client.
        (301, "COPY" | "MOVE") => said(
            ErrorKind::InvalidArgument,
            "the source or the destination is a collection; end its address with /",
        ),
        (404 | 410, _) => said(ErrorKind::NoSuchKey, "there is nothing at this address"),
        (405, "MKCOL") => said(
            ErrorKind::PreconditionFailed,
            "this address already exists, or the server does not support WebDAV here",
        ),
        (409, "PUT") => said(
            ErrorKind::NoSuchKey,
            "its parent collection does not exist (make it with `fordway mkdir --parents`), or it is a collection itself",
        ),
        (409, "MKCOL" | "COPY" | "MOVE") => said(
            ErrorKind::NoSuchKey,
            "its parent collection does not exist; make it with `fordway mkdir --parents`",
        ),
        (412, "DELETE") => said(ErrorKind::PreconditionFailed, "it is not the version that was asked for"),
        (412, _) => said(ErrorKind::PreconditionFailed, "the destination already exists"),
        (400, _) => said(ErrorKind::InvalidArgument, "the server does not accept this request"),
        (405 | 501, _) => (
            ErrorKind::MethodNotAllowed,
            format!(
                "the server does not accept {method} here: it does not support WebDAV, or not at this address"
            ),
        ),
        (413, _) => said(ErrorKind::EntityTooLarge, "the server does not accept this much content"),
        (414, _) => said(ErrorKind::KeyTooLong, "the server does not accept an address of this length"),
        (423, _) => said(ErrorKind::ConditionalConflict, "it is locked; wait until the lock is released"),
        (424, _) => said(ErrorKind::ConditionalConflict, "an operation that it depends on failed"),
        (502, "COPY" | "MOVE") => {
            said(ErrorKind::InvalidArgument, "the server does not accept this destination")
        }
        (507, _) => said(ErrorKind::NoSpace, "the server has no space left"),
        _ => said(s3_error::from_s3(status, ""), "the server refused"),
    }
}

/// Returns whether the same request may succeed if it is retried soon. Requests that change something are not retried
/// after a status that servers also use for permanent failures (500 by XRootD, 502 for a destination on another
/// server).
pub(super) fn is_passing(status: u16, method: &str) -> bool {
    let changes = !matches!(method, "PROPFIND" | "GET" | "HEAD" | "OPTIONS");
    matches!(status, 408 | 429 | 503 | 504) || (matches!(status, 500 | 502) && !changes)
}

/// Returns the error for a request that failed for some members; `None` if it succeeded for all of them.
pub(super) fn of_members(method: &str, described: &[MultistatusEntry]) -> Option<Error> {
    let failed = |one: &&MultistatusEntry| one.status.is_some_and(|status| status >= 400);
    // Skip 424 (Failed Dependency) statuses, which only report a consequence of another failure (RFC 4918 section
    // 11.4).
    let causes: Vec<_> = described.iter().filter(failed).filter(|one| one.status != Some(424)).collect();
    let all: Vec<_> = described.iter().filter(failed).collect();
    let told = if causes.is_empty() { all } else { causes };
    let status = told.first()?.status?;
    let (kind, _) = meaning(status, method);
    let names = told.iter().take(NAMED_MAX).map(|one| {
        let status = one.status.unwrap_or_default();
        let href: String = one.href.chars().filter(|c| !c.is_control()).take(WORDS_CHARS_MAX).collect();
        format!("{href}: {} (HTTP status {status})", meaning(status, method).1)
    });
    let (names, more) = (names.collect::<Vec<_>>().join(", "), told.len().saturating_sub(NAMED_MAX));
    let more = if more > 0 { format!(", and {more} more") } else { String::new() };
    Some(advised(Error::new(kind, format!("some members failed: {names}{more}")), status))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn described(href: &str, status: u16) -> MultistatusEntry {
        MultistatusEntry { href: href.to_owned(), status: Some(status), ..MultistatusEntry::default() }
    }

    #[test]
    fn members_that_failed_are_named() {
        let some = [described("/d/a", 204), described("/d/b\r", 423), described("/d", 424)];
        let error = of_members("DELETE", &some).unwrap();
        assert_eq!(error.kind(), ErrorKind::ConditionalConflict);
        assert!(error.detail().contains("/d/b: it is locked") && !error.detail().contains("424"), "{error}");
        let many: Vec<_> = (0..8).map(|n| described(&format!("/{n}"), 507)).collect();
        let error = of_members("COPY", &many).unwrap();
        assert_eq!(error.kind(), ErrorKind::NoSpace);
        assert!(error.detail().ends_with("and 3 more"), "{error}");
        assert!(of_members("DELETE", &[described("/d", 200)]).is_none());
        assert!(of_members("DELETE", &[]).is_none());
    }

    #[test]
    fn statuses_are_told_apart() {
        for (status, method, kind) in [
            (405, "MKCOL", ErrorKind::PreconditionFailed),
            (405, "PROPFIND", ErrorKind::MethodNotAllowed),
            (301, "MOVE", ErrorKind::InvalidArgument),
            (409, "MKCOL", ErrorKind::NoSuchKey),
            (412, "MOVE", ErrorKind::PreconditionFailed),
            (423, "DELETE", ErrorKind::ConditionalConflict),
            (507, "PUT", ErrorKind::NoSpace),
            (404, "DELETE", ErrorKind::NoSuchKey),
            (503, "PUT", ErrorKind::Unavailable),
        ] {
            assert_eq!(meaning(status, method).0, kind, "{status} {method}");
        }
        assert!(is_passing(503, "MOVE") && is_passing(500, "PROPFIND") && !is_passing(500, "DELETE"));
    }
}
