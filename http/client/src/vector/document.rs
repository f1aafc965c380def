//! Small documents at web servers, and what their heads say.

use std::sync::Arc;

use fordway_store::Result;

use super::open::{DOCUMENT_BYTES_MAX, ask};
use super::redirect::{Moved, Route};
use super::source::Counts;
use super::{Session, Target, WebFile};
use crate::Response;

/// What is read of an answer.
#[derive(Debug, Default)]
pub(crate) struct Document {
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
    session: &Arc<Session>,
    url: &str,
    (method, accept): (&'static str, &str),
    limit_bytes: usize,
    wants_body: impl Fn(&Response) -> bool,
) -> Result<Document> {
    let mut route = Route::start(session, WebFile::parse(url)?)?;
    loop {
        let _permit = route.session.permit(route.file.origin())?;
        let headers = [("accept", accept)];
        let mut answer = ask(&route.session, &route.file, &Counts::default(), method, &headers)
            .map_err(|error| route.named("open", error))?;
        if let Some(moved) = Moved::of(answer.status(), answer.header("location")) {
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
        return Ok(Document { base: route.file.url(), links, digests, body });
    }
}

/// What `reference` means in what came from `base`. Errors: `InvalidArgument`.
pub(crate) fn resolve(base: &str, reference: &str) -> Result<String> {
    Ok(WebFile::parse(base)?.relative(reference)?.url())
}
