//! Copies from one server directly to another (WLCG's HTTP-TPC): one of the two servers receives a COPY request, and
//! reports its progress.

use std::io::Read as _;
use std::time::{Duration, Instant};

use fordway_store::{Error, ErrorKind, Result};
use fordway_wire::webdav::{PerformanceMarkerParser, ThirdPartyCopyOutcome};

use super::call::reported;
use super::{WebDavClient, without_query};
use crate::connection::EarlyResponse;
use crate::response::body_error;
use crate::vector::redirect::{RedirectResponse, RedirectRoute};
use crate::vector::{RemoteResource as _, WebFileResource};
use crate::{HttpClient, HttpExchangeRequest, HttpResponse, ReplayPolicy, Timeouts};

/// The interval between calls to `progress`, which may stop the copy.
const TICK: Duration = Duration::from_millis(200);
/// The advice for a copy that failed on the server. The server is running, so the advice of `Unavailable` does not
/// apply.
const COPY_AGAIN: &str =
    "copy again; if that fails too, copy through this machine with `fordway cp --third-party never`";
/// The advice for a copy with the wrong size.
const REMOVE_AND_COPY_AGAIN: &str = "remove the destination and copy again; if that fails too, copy through this machine with `fordway cp --third-party never`";
/// The message of an error for a truncated report.
pub(super) const WITHOUT_RESULT: &str = "the server's report ends without the result of the copy";
/// The maximum number of bytes read from the body of an error response.
const DOCUMENT_BYTES_MAX: usize = 64 * 1024;

/// The server that transfers the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyDirection {
    /// The destination reads from the source (`Source` header). A server that does not support this header refuses the
    /// request.
    Pull,
    /// The source writes to the destination (`Destination` header). A server that does not support destinations on
    /// other servers may interpret the destination as one of its own paths. Apache httpd and nginx do so, and this
    /// client therefore never sends a push to them.
    Push,
}

/// A copy of one file from one server to another.
#[derive(Clone, Copy, Debug)]
pub struct ThirdPartyCopy<'t> {
    /// The file to copy.
    pub from: &'t str,
    /// The destination.
    pub to: &'t str,
    /// The server that transfers the data.
    pub direction: CopyDirection,
    /// Whether an existing destination is replaced.
    pub replaces: bool,
    /// The maximum time during which the server may send nothing at all.
    pub silence: Duration,
}

/// A function that receives the number of bytes copied, and the total, if known.
pub type CopyProgressCallback<'p> = dyn FnMut(u64, Option<u64>) -> Result<()> + 'p;

impl WebDavClient {
    /// Copies a file; returns its size, if known. Calls `progress` with the number of bytes copied so far, on each
    /// report from the server and several times a second. If `progress` returns an error, the connection is closed,
    /// which stops the copy.
    ///
    /// The server that transfers the data receives the user's credentials as usual (`Authorization`, or a certificate).
    /// The same server also receives the user's bearer token for the other server (`TransferHeaderAuthorization`),
    /// unless the connection is plain HTTP. After a redirection to another scheme, host or port, the new server
    /// receives neither the credentials nor the token. No server ever receives a password for the other server.
    ///
    /// The result is checked by comparing the sizes of both files. Errors: `NotImplemented` if the server does not
    /// support such copies, in which case nothing was done; `Unavailable` with the server's reason if the copy failed;
    /// `Corrupt` if the sizes differ or the destination is missing; `IncompleteBody` if the report ends before the copy
    /// ends; `Timeout` if the server sends nothing for too long; `PreconditionFailed` if the destination exists and
    /// must not be replaced; `InvalidArgument` if the source is a collection; `NoSuchKey` if the source is missing;
    /// `NoSpace`, `AccessDenied`, `MethodNotAllowed`, `BadResponse`, `Io` and others. Cost: one request (COPY) on a
    /// separate connection, one request to examine each file, and one request (OPTIONS) before a push.
    pub fn third_party_copy(
        &self,
        copy: &ThirdPartyCopy<'_>,
        progress: &mut CopyProgressCallback<'_>,
    ) -> Result<Option<u64>> {
        let until = self.session.until();
        let size_bytes = self.size_of_source(copy)?;
        let progress = &mut |bytes| match until {
            Some(until) if until <= Instant::now() => Err(late()),
            _ => progress(bytes, size_bytes),
        };
        let (active, passive) = match copy.direction {
            CopyDirection::Pull => (copy.to, copy.from),
            CopyDirection::Push => (copy.from, copy.to),
        };
        let passive = WebFileResource::parse(passive)?;
        let mut route = RedirectRoute::start(&self.session, WebFileResource::parse(active)?)?;
        if copy.direction == CopyDirection::Push {
            self.refuse_unsafe_push(active)?;
        }
        let mut response = loop {
            // The server at the new address of a redirection must not get the token that the first server may get.
            let headers = self.headers(copy, &passive, &route)?;
            let response = order(&route, &headers, copy.silence, progress);
            let response = response.map_err(|error| route.named("copy", error))?;
            match RedirectResponse::of(response.status(), response.header("location")) {
                Some(moved) => route.follow(&moved).map_err(|error| route.named("copy", error))?,
                None => break response,
            }
        };
        watch(&mut response, &route, copy.silence, progress).map_err(|error| route.named("copy", error))?;
        self.hold_against(copy.to, size_bytes).map_err(|error| route.named("copy", error))?;
        Ok(size_bytes)
    }

    /// Returns the size of the source, if it is known. The user may lack the permission or the network access to read a
    /// source that only the other server needs to read. Errors: `InvalidArgument` for a collection; otherwise as for
    /// [`WebDavClient::stat`].
    fn size_of_source(&self, copy: &ThirdPartyCopy<'_>) -> Result<Option<u64>> {
        use ErrorKind as K;
        match self.stat(copy.from) {
            Ok(source) if source.is_collection => {
                let detail =
                    format!("{} is a collection; files are copied one by one", without_query(copy.from));
                Err(Error::new(ErrorKind::InvalidArgument, detail))
            }
            Ok(source) => Ok(source.size_bytes),
            Err(error)
                if copy.direction == CopyDirection::Pull
                    && matches!(error.kind(), K::AccessDenied | K::Unavailable | K::Timeout | K::Io) =>
            {
                tracing::debug!(%error, "the size of the source is unknown");
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Checks the destination after the copy. Errors: `Corrupt` if the destination is missing, or has the wrong size.
    pub(super) fn hold_against(&self, url: &str, size_bytes: Option<u64>) -> Result<()> {
        let found = match self.stat(url) {
            Ok(found) => found.size_bytes,
            Err(error) if error.kind() == ErrorKind::NoSuchKey => {
                let detail = "the server reports a complete copy, but the destination is missing";
                return Err(Error::new(ErrorKind::Corrupt, detail).with_advice(COPY_AGAIN));
            }
            // A user who may write to the destination may lack permission to read it.
            Err(error) => {
                tracing::debug!(%error, "the state of a copy could not be read");
                return Ok(());
            }
        };
        match (size_bytes, found) {
            (Some(size), Some(found)) if size != found => {
                let detail = format!(
                    "the server reports a complete copy, but the destination has {found} of {size} bytes"
                );
                Err(Error::new(ErrorKind::Corrupt, detail).with_advice(REMOVE_AND_COPY_AGAIN))
            }
            _ => Ok(()),
        }
    }

    /// Refuses to push from a server that is known not to support pushing. Errors: `NotImplemented` if the server would
    /// interpret any destination as one of its own paths.
    fn refuse_unsafe_push(&self, active: &str) -> Result<()> {
        let answer = self.ask(active, &mut super::call::DavRequest::new("OPTIONS", "copy"))?;
        let server = answer.server.unwrap_or_default();
        if ["apache", "nginx", "lighttpd"].iter().any(|name| server.to_ascii_lowercase().starts_with(name)) {
            let detail = format!(
                "{server} may mistake a destination on another server for its own path; use pull instead"
            );
            return Err(answer.file.named("copy", Error::new(ErrorKind::NotImplemented, detail)));
        }
        Ok(())
    }

    /// Returns the headers of the request to the current address of `route`. Errors: as for the credentials of a host.
    fn headers(
        &self,
        copy: &ThirdPartyCopy<'_>,
        passive: &WebFileResource,
        route: &RedirectRoute,
    ) -> Result<Vec<(&'static str, String)>> {
        let name = if copy.direction == CopyDirection::Pull { "source" } else { "destination" };
        let overwrite = if copy.replaces { "T" } else { "F" };
        let mut headers = vec![
            (name, passive.url()),
            ("overwrite", overwrite.to_owned()),
            // No credential is delegated: the request contains the token for the other server.
            ("credential", "none".to_owned()),
            ("content-length", "0".to_owned()),
        ];
        let token = self.token_for_other(passive, route)?;
        headers.extend(token.map(|token| ("transferheaderauthorization", token)));
        Ok(headers)
    }

    /// Returns the value of `TransferHeaderAuthorization`: the token for the other server, `passive`. Returns `None` if
    /// there is no token, or if the server at the current address of `route` must not get the token.
    fn token_for_other(&self, passive: &WebFileResource, route: &RedirectRoute) -> Result<Option<String>> {
        let (options, active) = (&self.session.options, route.file.origin());
        let said = options.credentials.found_authorization(passive.origin(), &options.proxies)?;
        let Some(token) = said.filter(|said| said.starts_with("Bearer ")) else { return Ok(None) };
        // After a redirection to another server, the session of the route has no credentials.
        if route.session.options.credentials.is_none() {
            tracing::warn!(%active, "the token for the other server is not sent to the target of a redirection");
            return Ok(None);
        }
        // The token is for the other server, but it would be sent on this unencrypted connection.
        if options.credentials.is_withheld_from(active, &options.proxies) {
            tracing::warn!(%active, "the token for the other server is not sent over plain HTTP; use https");
            return Ok(None);
        }
        Ok(Some(token))
    }
}

/// Sends the request and waits for the head of the response, which may take a long time.
fn order(
    route: &RedirectRoute,
    headers: &[(&str, String)],
    silence: Duration,
    progress: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<HttpResponse> {
    let options = &route.session.options;
    // The request uses its own connection, because the response may take minutes. In the meantime, `progress` is called
    // at each tick, and may stop the copy.
    let timeouts = Timeouts { progress: TICK, ..options.timeouts };
    let (roots, who) = (options.tls_roots.clone(), options.credentials.clone());
    let http = HttpClient::identified(options.http, timeouts, roots, who).through(options.proxies.clone());
    let headers: Vec<_> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let exchange = HttpExchangeRequest {
        origin: route.file.origin(),
        method: "COPY",
        write_head: &|head| route.file.write_head("COPY", &headers, head),
        body: &[],
        replay: ReplayPolicy::IfUnsent,
    };
    let mut connection = http.connect(exchange.origin)?;
    connection.request_head.clear();
    connection.push_head(exchange.write_head);
    connection
        .send(&[])
        .map_err(|error| Error::new(ErrorKind::Unavailable, "sending the request").caused_by(error))?;
    let asked = Instant::now();
    loop {
        match connection.first_word(TICK)? {
            EarlyResponse::Answer(head) => return http.answered(head, connection, &exchange),
            EarlyResponse::GoOn | EarlyResponse::Nothing => progress(0)?,
        }
        if asked.elapsed() > silence {
            return Err(silent(silence));
        }
    }
}

/// Reads the server's report to its end, and passes the number of copied bytes to `progress`. Errors: the server's
/// refusal, or its reason for a failed copy; `IncompleteBody` if the report does not contain the result; `Timeout` if
/// nothing arrives for longer than `silence`; errors of `progress`, which end the wait.
fn watch(
    response: &mut HttpResponse,
    route: &RedirectRoute,
    silence: Duration,
    progress: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<()> {
    let status = response.status();
    if !(200..300).contains(&status) {
        return Err(refusal(response, route));
    }
    // Servers that do not report progress respond with 204, or with 201 and an empty body.
    let reports = response.body_bytes() != Some(0);
    let (mut report, mut buffer) = (PerformanceMarkerParser::default(), [0; 4096]);
    let mut heard = Instant::now();
    loop {
        progress(report.bytes())?;
        match response.read(&mut buffer).map_err(body_error) {
            Ok(0) => break,
            Ok(got) => {
                heard = Instant::now();
                report.push(&buffer[..got])?;
            }
            Err(error) if error.kind() == ErrorKind::Timeout && heard.elapsed() <= silence => {}
            Err(error) if error.kind() == ErrorKind::Timeout => return Err(silent(silence)),
            Err(error) => return Err(error),
        }
    }
    let bytes = report.bytes();
    match report.finish()? {
        Some(ThirdPartyCopyOutcome::Success) => progress(bytes),
        Some(ThirdPartyCopyOutcome::Failure(reason)) => {
            Err(reported("the server could not copy it", &reason, COPY_AGAIN))
        }
        None if !reports && status != 202 => Ok(()),
        None => Err(Error::new(ErrorKind::IncompleteBody, WITHOUT_RESULT)),
    }
}

fn refusal(response: &mut HttpResponse, route: &RedirectRoute) -> Error {
    let document = response.read_rest(DOCUMENT_BYTES_MAX).unwrap_or_default();
    let content_type = response.header("content-type").map(str::to_owned);
    let (status, file) = (response.status(), route.file.clone());
    let answer = super::call::DavResponse {
        status,
        document,
        content_type,
        server: None,
        begun: None,
        file,
        is_repeated: false,
    };
    let error = answer.refusal("COPY");
    // A server that implements only local COPY reports a missing header. A server without COPY reports that it does not
    // support the method.
    if matches!(status, 400 | 404 | 405 | 411 | 415 | 501 | 502) {
        let detail = format!("the server does not support third-party copies: {}", error.detail());
        return Error::new(ErrorKind::NotImplemented, detail);
    }
    error
}

/// The advice for a copy that may still be in progress.
const LOOK_BEFORE_RETRY: &str =
    "before you retry, use `fordway stat` to check whether the destination is still growing";

fn late() -> Error {
    let detail = "the deadline has passed; the server may still be copying";
    Error::new(ErrorKind::Timeout, detail).with_advice(LOOK_BEFORE_RETRY)
}

fn silent(silence: Duration) -> Error {
    let detail =
        format!("the server reported nothing about the copy for {silence:?}; it may still be copying");
    Error::new(ErrorKind::Timeout, detail).with_advice(LOOK_BEFORE_RETRY)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::SessionCredentials;
    use crate::vector::{HttpSession, SessionOptions};

    #[test]
    fn the_token_for_the_other_server_is_not_sent_in_the_clear() {
        let credentials = SessionCredentials::none().with_bearer_token("secret");
        let options = SessionOptions { credentials, ..SessionOptions::default() };
        let session = Arc::new(HttpSession::new(options));
        let dav = WebDavClient::new(session.clone());
        let from = "https://a.example.org/f";
        let direction = CopyDirection::Pull;
        let passive = WebFileResource::parse(from).unwrap();
        for (to, is_sent) in [("https://b.example.org/g", true), ("http://b.example.org:443/g", false)] {
            let copy = ThirdPartyCopy { from, to, direction, replaces: true, silence: Duration::ZERO };
            let route = RedirectRoute::start(&session, WebFileResource::parse(to).unwrap()).unwrap();
            let headers = dav.headers(&copy, &passive, &route).unwrap();
            assert_eq!(
                headers.iter().any(|(name, _)| *name == "transferheaderauthorization"),
                is_sent,
                "{to}"
            );
        }
    }
}
