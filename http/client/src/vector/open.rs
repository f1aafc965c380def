//! Opens a file: finds its location, size and version, with retries for failures that may be temporary. A file can also
//! be opened by its first read, because the response to the read also contains the size and version. The bytes then
//! arrive one round trip earlier than after a HEAD.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

use fordway_store::{Error, ErrorKind, Result};
use fordway_wire::byteranges::{ByterangesParser, ByterangesParserStep, boundary_of};
use fordway_wire::range::{digits, parse_content_range, parse_unsatisfied_range};

use super::redirect::{RedirectResponse, RedirectRoute};
use super::request::{RangeRequest, SpanQueue};
use super::session::ConnectionPermit;
use super::source::{AtomicHttpTrafficCounts, FileVersion, RemoteFileSource};
use super::{HttpSession, RemoteResource, WebFileResource, learned};
use crate::connection::BufferedConnection;
use crate::retry::{pause, retry_after};
use crate::{HttpExchangeRequest, HttpResponse, ReplayPolicy};

/// The maximum number of bytes read from a document other than the file itself.
pub(super) const DOCUMENT_BYTES_MAX: usize = 64 * 1024;

/// The result of a request to one address.
pub(super) enum FileOrRedirect {
    File(FileVersion),
    Elsewhere(RedirectResponse),
}

/// Why opening failed, and when the server allows a retry.
pub(super) struct OpenFailure {
    pub(super) error: Error,
    pub(super) retry_after: Option<Duration>,
}

impl From<Error> for OpenFailure {
    fn from(error: Error) -> Self {
        OpenFailure { error, retry_after: None }
    }
}

/// Opens the file at a URL, or at the location to which the URL redirects.
pub(super) fn open_url(session: &Arc<HttpSession>, url: &str) -> Result<RemoteFileSource> {
    open_url_by(session, url, &mut describe_alone)
}

/// A function that requests size and version from one address.
type FileProbeFunction<'d> =
    dyn FnMut(&HttpSession, &dyn RemoteResource, &AtomicHttpTrafficCounts) -> Result<FileOrRedirect> + 'd;

/// Opens the file at a URL, or at the location to which the URL redirects. If remembered redirections fail, they are
/// dropped and requested again.
pub(super) fn open_url_by(
    session: &Arc<HttpSession>,
    url: &str,
    describe: &mut FileProbeFunction,
) -> Result<RemoteFileSource> {
    let mut route = RedirectRoute::start(session, WebFileResource::parse(url)?)?;
    match search(&mut route, describe) {
        Err(_) if route.is_recalled() => {
            route.forget();
            search(&mut RedirectRoute::start(session, WebFileResource::parse(url)?)?, describe)
        }
        found => found,
    }
}

/// Follows redirections from address to address.
fn search(route: &mut RedirectRoute, describe: &mut FileProbeFunction) -> Result<RemoteFileSource> {
    let traffic = AtomicHttpTrafficCounts::default();
    loop {
        match describe(&route.session, &route.file, &traffic) {
            Ok(FileOrRedirect::File(version)) => {
                return Ok(RemoteFileSource::of_url(route, version, traffic));
            }
            Ok(FileOrRedirect::Elsewhere(moved)) => {
                route.follow(&moved).map_err(|error| route.named("open", error))?;
            }
            Err(error) => return Err(route.named("open", error)),
        }
    }
}

/// Opens the file at exactly this target.
pub(super) fn open_target(
    session: &Arc<HttpSession>,
    target: Box<dyn RemoteResource>,
) -> Result<RemoteFileSource> {
    open_target_by(session, target, &mut describe_alone)
}

/// Opens the file at exactly this target, using `describe` to request size and version.
pub(super) fn open_target_by(
    session: &Arc<HttpSession>,
    target: Box<dyn RemoteResource>,
    describe: &mut FileProbeFunction,
) -> Result<RemoteFileSource> {
    let traffic = AtomicHttpTrafficCounts::default();
    let version = match describe(session, &*target, &traffic) {
        Ok(FileOrRedirect::File(version)) => Ok(version),
        Ok(FileOrRedirect::Elsewhere(moved)) => Err(target.refusal(moved.status, Some(&moved.location), b"")),
        Err(error) => Err(error),
    };
    let version = version.map_err(|error| target.named("open", error))?;
    Ok(RemoteFileSource::of_target(session, target, version, traffic))
}

/// Requests size and version, and identifies the server.
fn describe_alone(
    session: &HttpSession,
    target: &dyn RemoteResource,
    traffic: &AtomicHttpTrafficCounts,
) -> Result<FileOrRedirect> {
    alone(session, target, &mut |_| try_describe(session, target, traffic))
}

/// Requests size and version by requesting the first byte, for servers that respond to HEAD themselves but redirect
/// GET.
pub(super) fn by_first_byte_alone(
    session: &HttpSession,
    target: &dyn RemoteResource,
    traffic: &AtomicHttpTrafficCounts,
) -> Result<FileOrRedirect> {
    alone(session, target, &mut |_| by_first_byte(session, target, traffic, None))
}

/// Calls `ask` with a connection permit, which `ask` may keep; retries after failures that may be temporary.
pub(super) fn alone(
    session: &HttpSession,
    target: &dyn RemoteResource,
    ask: &mut dyn FnMut(&mut Option<ConnectionPermit>) -> Result<FileOrRedirect, OpenFailure>,
) -> Result<FileOrRedirect> {
    let mut permit = Some(session.permit(target.origin())?);
    let mut retries = session.retries();
    loop {
        match ask(&mut permit) {
            Ok(described) => return Ok(described),
            Err(OpenFailure { error, retry_after }) => {
                let is_passing = is_passing(error.kind());
                pause(retries.after(error, is_passing, retry_after)?)?;
            }
        }
    }
}

const NO_SIZE: &str = "the server does not state the size of the file, so its ranges are unknown";

/// Returns the error (`BadResponse`) for a file whose size the server does not report.
pub(super) fn without_size() -> Error {
    Error::new(ErrorKind::BadResponse, NO_SIZE)
}

/// Returns the error (`BadResponse`) for a response that contains a whole file, has no declared size, and ends with the
/// connection: a truncated file could not be detected.
pub(super) fn without_end() -> Error {
    let detail = "the server does not state the size of the file, and the response ends with the connection, so a file \
                  that is cut off could not be told from a complete one";
    Error::new(ErrorKind::BadResponse, detail)
}

/// Returns whether the error means that the file exists but the server does not report its size.
/// [`super::copy_unsized`] copies such a file.
pub fn is_without_size(error: &Error) -> bool {
    error.kind() == ErrorKind::BadResponse && error.detail().starts_with(NO_SIZE)
}

/// Returns whether a successful response without a range contains the file. Other statuses announce something else: 202
/// means that the server has to fetch the file first, for example from tape, and the body is a message.
pub(super) fn has_file(status: u16) -> bool {
    matches!(status, 200 | 203 | 204)
}

/// Returns whether a retry may succeed.
pub fn is_passing(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Unavailable | ErrorKind::Timeout | ErrorKind::Io)
}

pub(super) fn try_describe(
    session: &HttpSession,
    target: &dyn RemoteResource,
    traffic: &AtomicHttpTrafficCounts,
) -> Result<FileOrRedirect, OpenFailure> {
    let described = ask(session, target, traffic, "HEAD", &[])?;
    let size = described.header("content-length").and_then(digits);
    let is_file = has_file(described.status());
    match described.status() {
        _ if is_file && size.is_some_and(|size| size > 0) => {
            Ok(FileOrRedirect::File(version_of(&described, (session, target), size)?))
        }
        // Request the first byte if the response to HEAD contains no length or the length 0. Apache sends no length for
        // an empty file, and servers that implement HEAD incorrectly send 0 for every file. Also request the first byte
        // if HEAD is refused: a URL signed for GET allows only GET, and many programs that generate their content do
        // not implement HEAD.
        status if may_allow_get(status, target.implements_head()) => {
            drop(described);
            by_first_byte(session, target, traffic, size.filter(|_| is_file))
        }
        _ => not_the_file(described, target),
    }
}

/// Returns whether a GET may succeed although the response to HEAD had this status, or no size.
fn may_allow_get(status: u16, implements_head: bool) -> bool {
    match status {
        200..=299 | 403 | 405 | 501 => true,
        400 | 404 | 406 | 411..=428 | 430..=499 | 500 => !implements_head,
        _ => false,
    }
}

/// Requests the first byte, and takes size and version from the response. `stated` is the size in the response to HEAD,
/// if any. `stated` is used if the response does not describe a range because the file has no first byte.
fn by_first_byte(
    session: &HttpSession,
    target: &dyn RemoteResource,
    traffic: &AtomicHttpTrafficCounts,
    stated: Option<u64>,
) -> Result<FileOrRedirect, OpenFailure> {
    let mut answer = ask(session, target, traffic, "GET", &[("range", "bytes=0-0")])?;
    let content_range = answer.header("content-range").unwrap_or_default();
    let range = parse_content_range(content_range);
    let is_of_range = answer.status() != 206 || range.is_some();
    let size = match answer.status() {
        206 => range.map_or(stated, |(_, size)| size),
        416 => parse_unsatisfied_range(content_range).or(stated),
        status if has_file(status) => answer.body_bytes(),
        _ => return not_the_file(answer, target),
    };
    let version = version_of(&answer, (session, target), size)?;
    // Read the body to free the connection for the next request, unless the body is a whole file that is too long to
    // be worth reading. For an empty file, XRootD announces a byte that never arrives.
    if is_of_range && answer.body_bytes().is_some_and(|bytes| bytes <= DOCUMENT_BYTES_MAX as u64) {
        answer.read_document()?;
    }
    Ok(FileOrRedirect::File(version))
}

/// Returns the redirection in a response, or the error for a refusal.
pub(super) fn not_the_file(
    mut answer: HttpResponse,
    target: &dyn RemoteResource,
) -> Result<FileOrRedirect, OpenFailure> {
    let document = answer.read_rest(DOCUMENT_BYTES_MAX).unwrap_or_default();
    let (status, location) = (answer.status(), answer.header("location"));
    if let Some(moved) = RedirectResponse::of(status, location) {
        return Ok(FileOrRedirect::Elsewhere(moved));
    }
    let wish = answer.header("retry-after").and_then(|text| retry_after(text, SystemTime::now()));
    Err(OpenFailure { error: target.refusal(status, location, &document), retry_after: wish })
}

pub(super) fn ask(
    session: &HttpSession,
    target: &dyn RemoteResource,
    traffic: &AtomicHttpTrafficCounts,
    method: &'static str,
    headers: &[(&str, &str)],
) -> Result<HttpResponse> {
    ask_until(session, target, traffic, (method, None), headers)
}

/// Like [`ask`], but every wait for the response or its body ends at the time `until`, if any. Errors: `Timeout`.
pub(super) fn ask_until(
    session: &HttpSession,
    target: &dyn RemoteResource,
    traffic: &AtomicHttpTrafficCounts,
    (method, until): (&'static str, Option<Instant>),
    headers: &[(&str, &str)],
) -> Result<HttpResponse> {
    if until.is_some_and(|until| until <= Instant::now()) {
        return Err(Error::new(ErrorKind::Timeout, "the time for this request has passed"));
    }
    let exchange = HttpExchangeRequest {
        origin: target.origin(),
        method,
        write_head: &|head| target.write_head(method, headers, head),
        body: &[],
        replay: ReplayPolicy::Idempotent,
    };
    let response = session.http.send_until(&exchange, until);
    let response = response.map_err(|failure| failure.error)?;
    traffic.requests.fetch_add(1, Ordering::Relaxed);
    traffic.connections.fetch_add(u64::from(response.is_first()), Ordering::Relaxed);
    Ok(response)
}

pub(super) fn version_of(
    response: &HttpResponse,
    (session, target): (&HttpSession, &dyn RemoteResource),
    size_bytes: Option<u64>,
) -> Result<FileVersion> {
    let size_bytes = size_bytes.ok_or_else(without_size)?;
    super::learned::note(session, target, |server| {
        response.header("server").inspect(|name| server.introduced(name));
    });
    let links = response.headers().filter(|(name, _)| name.eq_ignore_ascii_case("link"));
    let links = links.map(|(_, value)| value.to_owned()).collect();
    let mut version = FileVersion::new(size_bytes, |name| response.header(name).map(str::to_owned));
    version.links = links;
    Ok(version)
}

/// A request whose response head has arrived but has not been consumed yet.
pub struct UnconsumedResponse {
    pub(super) request: RangeRequest,
    pub(super) connection: BufferedConnection,
    pub(super) permit: ConnectionPermit,
}

/// The first reads of a file that is not open yet.
struct InitialRangeReads<'w> {
    /// The wanted spans, in order.
    wanted: &'w [Range<u64>],
    begun: Option<UnconsumedResponse>,
}

/// Opens the file at a URL, or at the location to which the URL redirects, by requesting the first of the spans
/// `wanted`. The returned request is `None` if the file had to be opened by a HEAD: over HTTP/2, or because the
/// response contains no size.
pub(super) fn open_url_reading(
    session: &Arc<HttpSession>,
    url: &str,
    wanted: &[Range<u64>],
) -> Result<(RemoteFileSource, Option<UnconsumedResponse>)> {
    if !InitialRangeReads::is_possible(session, wanted) {
        return open_url(session, url).map(|source| (source, None));
    }
    let mut first = InitialRangeReads { wanted, begun: None };
    let source = open_url_by(session, url, &mut |session, target, traffic| {
        first.describe_alone(session, target, traffic)
    })?;
    Ok((source, first.begun))
}

/// Opens the file at exactly this target by requesting the first of the spans `wanted`.
pub(super) fn open_target_reading(
    session: &Arc<HttpSession>,
    target: Box<dyn RemoteResource>,
    wanted: &[Range<u64>],
) -> Result<(RemoteFileSource, Option<UnconsumedResponse>)> {
    if !InitialRangeReads::is_possible(session, wanted) {
        return open_target(session, target).map(|source| (source, None));
    }
    let mut first = InitialRangeReads { wanted, begun: None };
    let source = open_target_by(session, target, &mut |session, target, traffic| {
        first.describe_alone(session, target, traffic)
    })?;
    Ok((source, first.begun))
}

impl InitialRangeReads<'_> {
    fn is_possible(session: &HttpSession, wanted: &[Range<u64>]) -> bool {
        !wanted.is_empty() && !session.options.http.is_multiplexed()
    }

    fn describe_alone(
        &mut self,
        session: &HttpSession,
        target: &dyn RemoteResource,
        traffic: &AtomicHttpTrafficCounts,
    ) -> Result<FileOrRedirect> {
        alone(session, target, &mut |permit| self.describe((session, target, traffic), permit))
    }

    /// Requests as many of the first wanted spans as fit into one request. Takes size and version from the head of the
    /// response, or from the head of the response's first part.
    fn describe(
        &mut self,
        (session, target, traffic): (&HttpSession, &dyn RemoteResource, &AtomicHttpTrafficCounts),
        permit: &mut Option<ConnectionPermit>,
    ) -> Result<FileOrRedirect, OpenFailure> {
        let mut queue = SpanQueue::default();
        queue.push(0, self.wanted.iter().cloned());
        let server = learned::about_or_careful(session, target);
        let Some((mut request, list)) = queue.next(&server, session.options.window_bytes) else {
            return try_describe(session, target, traffic);
        };
        let asked = Instant::now();
        let list = std::str::from_utf8(list).unwrap_or_default();
        let mut answer = ask(session, target, traffic, "GET", &[("range", list)])?;
        let size = match answer.status() {
            200 => answer.body_bytes(),
            206 => size_of_whole(&mut answer)?,
            // The server rejects the list or the ranges, but not necessarily the file itself.
            201..=299 | 400 | 413 | 414 | 416 | 431 | 494 | 501 => None,
            // A firewall may refuse a list. The next request shows whether the file itself is refused.
            403 if request.spans.len() > 1 => None,
            _ => return not_the_file(answer, target),
        };
        let Some(size) = size else {
            drop(answer);
            return try_describe(session, target, traffic);
        };
        let version = version_of(&answer, (session, target), Some(size))?;
        request.cut_at(size);
        self.begun = answer.into_unread().zip(permit.take()).map(|(connection, permit)| {
            request.sent = asked.max(connection.made);
            UnconsumedResponse { request, connection, permit }
        });
        Ok(FileOrRedirect::File(version))
    }
}

/// Returns the size of the whole file, if a partial response contains it. Errors: the errors of receiving.
fn size_of_whole(answer: &mut HttpResponse) -> Result<Option<u64>> {
    if let Some(stated) = answer.header("content-range") {
        return Ok(parse_content_range(stated).and_then(|(_, size)| size));
    }
    let Some(boundary) = answer.header("content-type").and_then(boundary_of) else { return Ok(None) };
    answer.peek(|body| size_in_first_part(&boundary, body)).map(Option::flatten)
}

/// Returns the whole file's size if the head of the first part of a body contains it; `None` if more of the body is
/// needed.
fn size_in_first_part(boundary: &str, mut body: &[u8]) -> Option<Option<u64>> {
    let mut parts = ByterangesParser::new(boundary);
    while !body.is_empty() {
        match parts.step(body) {
            Ok(ByterangesParserStep::Part(_, _, size)) => return Some(size),
            Ok(step) => body = &body[step.len()..],
            Err(_) => return Some(None),
        }
    }
    None
}
