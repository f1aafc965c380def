//! The way to a file that is somewhere else: answers that name another address are followed, within
//! limits, and those that hold for good are remembered by the session: what one user was told, signed
//! addresses among it, is no other's. Small documents are fetched this way, with what their heads say.

use std::sync::Arc;

use fordway_store::{Error, ErrorKind, Result};

use super::open::{DOCUMENT_BYTES_MAX, ask};
use super::source::ReadCounts;
use super::{HttpSession, RangeTarget, WebFile};
use crate::HttpResponse;

/// Addresses behind the first one, at most.
pub(super) const HOPS_MAX: usize = 10;
/// Addresses that are remembered, at most.
const REMEMBERED_MAX: usize = 10_000;

/// An answer that names another address.
#[derive(Debug)]
pub(crate) struct RedirectResponse {
    pub(crate) status: u16,
    /// As the server writes it.
    pub(crate) location: String,
}

impl RedirectResponse {
    /// The answer of such a status and `Location`, if it means that.
    pub(crate) fn of(status: u16, location: Option<&str>) -> Option<Self> {
        let location = location.filter(|_| matches!(status, 301 | 302 | 303 | 307 | 308))?;
        Some(RedirectResponse { status, location: location.trim().to_owned() })
    }

    fn is_for_good(&self) -> bool {
        matches!(self.status, 301 | 308)
    }
}

/// Where the search for a file has come to.
pub(crate) struct RedirectRoute {
    /// Whose search it is.
    start: Arc<HttpSession>,
    /// Whose connections and credentials are used there.
    pub(crate) session: Arc<HttpSession>,
    pub(crate) file: WebFile,
    /// The addresses before this one.
    passed: Vec<WebFile>,
    /// Whether one of them was left by what is remembered, and not by an answer.
    is_recalled: bool,
}

impl RedirectRoute {
    /// Starts at the address that the caller named, or where that is known to have moved for good.
    /// Errors: as [`RedirectRoute::follow`]; errors of credentials that cannot be used.
    pub(crate) fn start(session: &Arc<HttpSession>, file: WebFile) -> Result<Self> {
        let file = file.authorized(&session.options)?;
        let mut route = RedirectRoute::onwards(session, file);
        route.follow_remembered()?;
        Ok(route)
    }

    /// Starts where the file was found.
    pub(super) fn onwards(session: &Arc<HttpSession>, file: WebFile) -> Self {
        let (start, session) = (session.clone(), session.clone());
        RedirectRoute { start, session, file, passed: Vec::new(), is_recalled: false }
    }

    /// Goes where an answer says that the file is. What credentials the session has stay behind when
    /// that is another scheme, host or port, and are not taken up again on the way back.
    /// Errors: `BadResponse`, with the whole way, for what is no address, leads in a circle, is too
    /// long or leaves TLS.
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
            self.refused("it leads to what is no address of a file; tell who runs the server")
                .caused_by(error)
        })?;
        let (ours, theirs) = (self.file.origin(), next.origin());
        if ours.tls && !theirs.tls {
            let why = format!(
                "it leads from https to {}, where nothing is protected; name that address if you trust it",
                next.shown()
            );
            return Err(self.refused(&why));
        }
        if ours != theirs {
            // They are for the host that the user named, not for one that it sends us to.
            self.session = self.session.without_credentials();
        }
        let next = next.authorized(&self.session.options)?;
        let is_circle = self.file.url() == next.url() || self.passed.iter().any(|p| p.url() == next.url());
        self.passed.push(std::mem::replace(&mut self.file, next));
        // What is remembered has led here, and would lead the next read here too.
        if is_circle || self.passed.len() > HOPS_MAX {
            self.forget();
        }
        if is_circle {
            return Err(self.refused("it leads in a circle; tell who runs the server"));
        }
        if self.passed.len() > HOPS_MAX {
            let why = format!("it is longer than {HOPS_MAX} steps; name an address further on");
            return Err(self.refused(&why));
        }
        Ok(())
    }

    /// The address that it began with, and whose search it is.
    pub(super) fn door(&self) -> (Arc<HttpSession>, WebFile) {
        (self.start.clone(), self.passed.first().unwrap_or(&self.file).clone())
    }

    /// Whether what is remembered had a part in it.
    pub(super) fn is_recalled(&self) -> bool {
        self.is_recalled
    }

    /// Whether it has come to this address.
    pub(super) fn leads_to(&self, file: Option<&WebFile>) -> bool {
        file.is_some_and(|file| file.url() == self.file.url())
    }

    /// Has the servers on the way asked again next time.
    pub(super) fn forget(&self) {
        for session in [&self.start, &self.start.without_credentials()] {
            let mut known = session.moved();
            self.passed.iter().for_each(|passed| drop(known.remove(&passed.url())));
        }
    }

    fn refused(&self, why: &str) -> Error {
        Error::new(ErrorKind::BadResponse, format!("the redirection was not followed: {why}"))
    }

    /// Names the file in an error, and the way to it.
    pub(crate) fn named(&self, operation: &'static str, error: Error) -> Error {
        let Some(first) = self.passed.first() else { return self.file.named(operation, error) };
        let way: Vec<_> = self.passed.iter().chain([&self.file]).map(WebFile::shown).collect();
        let (kind, tries) = (error.kind(), error.tries());
        let detail = format!("{} (redirected: {})", error.detail(), way.join(" -> "));
        let mut told = Error::new(kind, detail).after_tries(tries);
        if let Some(cause) = std::error::Error::source(&error) {
            told = told.caused_by(cause.to_string());
        }
        first.named(operation, told)
    }
}

/// What is read of an answer.
#[derive(Debug, Default)]
pub(crate) struct LinkDocument {
    /// Where it came from in the end, which relative addresses in it start from.
    pub(crate) base: String,
    /// Values of all `Link` headers.
    pub(crate) links: Vec<String>,
    /// Values of all `Digest` headers.
    pub(crate) digests: Vec<String>,
    /// The body, if it was wanted.
    pub(crate) body: Option<Vec<u8>>,
}

/// Asks for what is at `url`, or where that leads to, once; reads the body if `wants_body` says so of
/// the head. Errors: as [`super::RemoteFile::open`]; `EntityTooLarge` for more than `limit_bytes`.
pub(crate) fn fetch(
    session: &Arc<HttpSession>,
    url: &str,
    (method, accept): (&'static str, &str),
    limit_bytes: usize,
    wants_body: impl Fn(&HttpResponse) -> bool,
) -> Result<LinkDocument> {
    let mut route = RedirectRoute::start(session, WebFile::parse(url)?)?;
    loop {
        let _permit = route.session.permit(route.file.origin())?;
        let headers = [("accept", accept)];
        let mut answer = ask(&route.session, &route.file, &ReadCounts::default(), method, &headers)
            .map_err(|error| route.named("open", error))?;
        if let Some(moved) = RedirectResponse::of(answer.status(), answer.header("location")) {
            // The next step takes a permit of its own. Threads that each hold one and wait for another would wait for
            // ever.
            drop(answer);
            drop(_permit);
            route.follow(&moved).map_err(|error| route.named("open", error))?;
            continue;
        }
        if answer.status() >= 300 {
            let text = answer.read_rest(DOCUMENT_BYTES_MAX).unwrap_or_default();
            let error = route.file.refusal(answer.status(), answer.header("location"), &text);
            return Err(route.named("open", error));
        }
        let named = |wanted: &str| {
            let of_name = answer.headers().filter(|(name, _)| name.eq_ignore_ascii_case(wanted));
            of_name.map(|(_, value)| value.to_owned()).collect()
        };
        let (links, digests) = (named("link"), named("digest"));
        let body = wants_body(&answer).then(|| answer.read_rest(limit_bytes)).transpose();
        let body = body.map_err(|error| route.named("open", error))?;
        return Ok(LinkDocument { base: route.file.url(), links, digests, body });
    }
}

/// What `reference` means in what came from `base`. Errors: `InvalidArgument`.
pub(crate) fn resolve(base: &str, reference: &str) -> Result<String> {
    Ok(WebFile::parse(base)?.relative(reference)?.url())
}
