//! Follows redirections, up to a limit. The session remembers permanent redirections. Redirections received for one
//! user, which may contain signed URLs, are never used for another user. This module also fetches small documents,
//! along with the relevant headers of their responses.

use std::sync::Arc;
use std::time::Instant;

use fordway_store::{Error, ErrorKind, Result};

use super::open::{DOCUMENT_BYTES_MAX, ask_until, has_file};
use super::source::AtomicHttpTrafficCounts;
use super::{HttpSession, RemoteResource, WebFileResource};
use crate::HttpResponse;

/// The maximum number of redirections.
pub(super) const HOPS_MAX: usize = 10;
/// The maximum number of remembered URLs.
const REMEMBERED_MAX: usize = 10_000;

/// A redirection (status 301, 302, 303, 307 or 308).
#[derive(Debug)]
pub(crate) struct RedirectResponse {
    pub(crate) status: u16,
    /// The URL as the server writes it.
    pub(crate) location: String,
}

impl RedirectResponse {
    /// Returns the redirection that this status and `Location` express, if any.
    pub(crate) fn of(status: u16, location: Option<&str>) -> Option<Self> {
        let location = location.filter(|_| matches!(status, 301 | 302 | 303 | 307 | 308))?;
        Some(RedirectResponse { status, location: location.trim().to_owned() })
    }

    fn is_for_good(&self) -> bool {
        matches!(self.status, 301 | 308)
    }
}

/// The route to a file: the current address and the earlier addresses.
pub(crate) struct RedirectRoute {
    /// The session that began the route.
    start: Arc<HttpSession>,
    /// The session whose connections and credentials are used at the current address.
    pub(crate) session: Arc<HttpSession>,
    pub(crate) file: WebFileResource,
    /// The earlier addresses, in order.
    passed: Vec<WebFileResource>,
    /// Whether any step of the route is a remembered redirection.
    is_recalled: bool,
}

impl RedirectRoute {
    /// Starts at the URL that the caller specified, or at the new location if that URL is known to have moved
    /// permanently. Errors: as for [`RedirectRoute::follow`]; `AccessDenied`, `InvalidArgument` or `Io` if the
    /// credentials for the host cannot be used.
    pub(crate) fn start(session: &Arc<HttpSession>, file: WebFileResource) -> Result<Self> {
        let session = session.at(file.origin());
        let file = file.authorized(&session.options)?;
        let mut route = RedirectRoute::onwards(&session, file);
        route.follow_remembered()?;
        Ok(route)
    }

    /// Starts at the location where the file was found.
    pub(super) fn onwards(session: &Arc<HttpSession>, file: WebFileResource) -> Self {
        let (start, session) = (session.clone(), session.clone());
        RedirectRoute { start, session, file, passed: Vec::new(), is_recalled: false }
    }

    /// Follows a redirection. If the scheme, host or port changes, the session's credentials are not sent to the new
    /// address or to any later one. Errors: `BadResponse`, which names the whole route, for an invalid URL, a loop, too
    /// many steps, or a step from TLS to plain HTTP.
    pub(crate) fn follow(&mut self, moved: &RedirectResponse) -> Result<()> {
        let (from, told) = (self.file.url(), self.session.clone());
        self.step(&moved.location)?;
        if moved.is_for_good() {
            let mut known = told.moved();
            if known.len() >= REMEMBERED_MAX {
                known.clear();
            }
            known.insert(from, self.file.url());
            drop(known);
        }
        self.follow_remembered()
    }

    fn follow_remembered(&mut self) -> Result<()> {
        loop {
            let next = self.session.moved().get(&self.file.url()).cloned();
            match next {
                Some(location) => {
                    self.is_recalled = true;
                    self.step(&location)?;
                }
                None => return Ok(()),
            }
        }
    }

    fn step(&mut self, location: &str) -> Result<()> {
        let next = self.file.relative(location).map_err(|error| {
            self.refused("its target is not the address of a file; report this to the operator of the server")
                .caused_by(error)
        })?;
        let (ours, theirs) = (self.file.origin(), next.origin());
        if ours.tls && !theirs.tls {
            let why = format!(
                "it leads from https to {}, which is not encrypted; use that address directly if you trust it",
                next.shown()
            );
            return Err(self.refused(&why));
        }
        if ours != theirs {
            // The credentials are for the host that the user named, not for a host that it redirects to.
            self.session = self.session.without_credentials();
        }
        let next = next.authorized(&self.session.options)?;
        let is_loop = self.file.url() == next.url() || self.passed.iter().any(|p| p.url() == next.url());
        self.passed.push(std::mem::replace(&mut self.file, next));
        // Drop any remembered steps of this route, because with them the next read would fail in the same way.
        if is_loop || self.passed.len() > HOPS_MAX {
            self.forget();
        }
        if is_loop {
            return Err(self.refused("it is a redirect loop; report this to the operator of the server"));
        }
        if self.passed.len() > HOPS_MAX {
            let why = format!("it has more than {HOPS_MAX} steps; use an address further along it");
            return Err(self.refused(&why));
        }
        Ok(())
    }

    /// Returns the first address, and the session that began the route.
    pub(super) fn door(&self) -> (Arc<HttpSession>, WebFileResource) {
        (self.start.clone(), self.passed.first().unwrap_or(&self.file).clone())
    }

    /// Returns whether the current address differs from the first address.
    pub(crate) fn is_redirected(&self) -> bool {
        !self.passed.is_empty()
    }

    /// Returns whether any step was remembered.
    pub(super) fn is_recalled(&self) -> bool {
        self.is_recalled
    }

    /// Returns whether this address is the end of the route.
    pub(super) fn leads_to(&self, file: Option<&WebFileResource>) -> bool {
        file.is_some_and(|file| file.url() == self.file.url())
    }

    /// Drops the remembered steps of this route, so that the next request follows the servers' current redirections.
    pub(super) fn forget(&self) {
        for session in [&self.start, &self.start.without_credentials()] {
            let mut known = session.moved();
            self.passed.iter().for_each(|passed| drop(known.remove(&passed.url())));
        }
    }

    fn refused(&self, why: &str) -> Error {
        Error::new(ErrorKind::BadResponse, format!("the redirection was not followed: {why}"))
    }

    /// Adds the file and its route to an error.
    pub(crate) fn named(&self, operation: &'static str, error: Error) -> Error {
        let Some(first) = self.passed.first() else { return self.file.named(operation, error) };
        let way: Vec<_> = self.passed.iter().chain([&self.file]).map(WebFileResource::shown).collect();
        let detail = format!("{} (redirected: {})", error.detail(), way.join(" -> "));
        let mut told = error.repeated().with_detail(detail);
        if let Some(cause) = std::error::Error::source(&error) {
            told = told.caused_by(cause.to_string());
        }
        first.named(operation, told)
    }
}

/// The relevant parts of the response for a small document.
#[derive(Debug, Default)]
pub(crate) struct ReplicaDiscoveryResponse {
    /// The final URL, which is the base of relative URLs in the response.
    pub(crate) base: String,
    /// The values of all `Link` headers.
    pub(crate) links: Vec<String>,
    /// The values of all `Digest` and `Repr-Digest` headers, in the form of `Digest`.
    pub(crate) digests: Vec<String>,
    /// The body, if it was requested.
    pub(crate) body: Option<Vec<u8>>,
}

/// Requests `url`, or the location it redirects to, without retries; reads the body if `wants_body` accepts the head.
/// Errors: as for [`super::RemoteFile::open`]; `EntityTooLarge` for more than `limit_bytes`; `Timeout` at `until`.
pub(crate) fn fetch(
    session: &Arc<HttpSession>,
    url: &str,
    (method, accept): (&'static str, &str),
    (limit_bytes, until): (usize, Option<Instant>),
    wants_body: impl Fn(&HttpResponse) -> bool,
) -> Result<ReplicaDiscoveryResponse> {
    let mut route = RedirectRoute::start(session, WebFileResource::parse(url)?)?;
    loop {
        let _permit = route.session.permit(route.file.origin())?;
        let headers = [("accept", accept)];
        let traffic = AtomicHttpTrafficCounts::default();
        let answer = ask_until(&route.session, &route.file, &traffic, (method, until), &headers);
        let mut answer = answer.map_err(|error| route.named("open", error))?;
        if let Some(moved) = RedirectResponse::of(answer.status(), answer.header("location")) {
            // Drop the permit, because the next step needs a permit of its own: threads that each hold one permit and
            // wait for another would deadlock.
            drop(answer);
            drop(_permit);
            route.follow(&moved).map_err(|error| route.named("open", error))?;
            continue;
        }
        if !has_file(answer.status()) {
            let text = answer.read_rest(DOCUMENT_BYTES_MAX).unwrap_or_default();
            let error = route.file.refusal(answer.status(), answer.header("location"), &text);
            return Err(route.named("open", error));
        }
        let named = |wanted: &str| -> Vec<String> {
            let of_name = answer.headers().filter(|(name, _)| name.eq_ignore_ascii_case(wanted));
            of_name.map(|(_, value)| value.to_owned()).collect()
        };
        let (links, mut digests) = (named("link"), named("digest"));
        // `Repr-Digest` (RFC 9530) has the same members, with colons around the values.
        digests.extend(named("repr-digest").iter().map(|value| value.replace(':', "")));
        let body = wants_body(&answer).then(|| answer.read_rest(limit_bytes)).transpose();
        let body = body.map_err(|error| route.named("open", error))?;
        return Ok(ReplicaDiscoveryResponse { base: route.file.url(), links, digests, body });
    }
}

/// Resolves `reference` against `base`. Errors: `InvalidArgument`.
pub(crate) fn resolve(base: &str, reference: &str) -> Result<String> {
    Ok(WebFileResource::parse(base)?.relative(reference)?.url())
}
