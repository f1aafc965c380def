//! A request with any method. The response is passed on regardless of its status.

use std::io::Read as _;
use std::time::Instant;

use fordway_store::Result;

use super::WebDavClient;
use super::call::{DavBody, DavRequest, send};
use crate::HttpResponse;
use crate::client::BodySink;
use crate::response::body_error;
use crate::retry::{RetryBudget, pause};
use crate::vector::redirect::{RedirectResponse, RedirectRoute};
use crate::vector::{RemoteResource as _, WebFileResource};

/// The number of bytes of a response that are passed on at a time.
const CHUNK_BYTES: usize = 256 * 1024;

/// A request that the caller composes.
#[derive(Clone, Copy, Debug)]
pub struct CustomHttpRequest<'r> {
    /// The method, in capitals.
    pub method: &'static str,
    /// The content.
    pub body: Option<&'r [u8]>,
    /// Whether redirections are followed; otherwise, they are passed on like other responses.
    pub follows: bool,
}

impl WebDavClient {
    /// Sends a request, and passes the final response to `sink`: its status, which may be a failure, and its content,
    /// in order. Returns the status. Errors: connection errors, which name the URL; `BadResponse` for redirections that
    /// cannot be followed. Cost: one request, which is sent again only if the server cannot have acted on it.
    pub fn request(
        &self,
        url: &str,
        wanted: &CustomHttpRequest<'_>,
        sink: &mut dyn FnMut(u16, &[u8]) -> Result<()>,
    ) -> Result<u16> {
        let mut route = RedirectRoute::start(self.patient(), WebFileResource::parse(url)?)?;
        let until = self.patient().until();
        loop {
            let named = |error| route.named("request", error);
            let mut response = connect_and_send(&route, wanted, until).map_err(named)?;
            let moved = RedirectResponse::of(response.status(), response.header("location"));
            if let Some(moved) = moved.filter(|_| wanted.follows) {
                drop(response);
                route.follow(&moved).map_err(|error| route.named("request", error))?;
                continue;
            }
            let mut chunk = vec![0; CHUNK_BYTES];
            loop {
                let got = response.read(&mut chunk).map_err(|error| named(body_error(error)))?;
                if got == 0 {
                    return Ok(response.status());
                }
                sink(response.status(), &chunk[..got])?;
            }
        }
    }
}

/// Sends the request to one address. Sends the request again after a failure to connect.
fn connect_and_send(
    route: &RedirectRoute,
    wanted: &CustomHttpRequest<'_>,
    until: Option<Instant>,
) -> Result<HttpResponse> {
    let _permit = route.session.permit(route.file.origin())?;
    let mut retries = RetryBudget::new(route.session.options.max_retries, until);
    loop {
        let mut produce = |sink: &mut BodySink<'_>| sink(wanted.body.unwrap_or_default());
        // Servers expect a length with these methods, even for an empty body.
        let has_body = wanted.body.is_some() || matches!(wanted.method, "PUT" | "POST" | "PATCH");
        let size_bytes = wanted.body.map_or(0, <[u8]>::len) as u64;
        let body = if has_body { DavBody::Made(Some(size_bytes), &mut produce) } else { DavBody::Bytes("") };
        let call = DavRequest::new(wanted.method, "request").once();
        let mut call = DavRequest { body, must_not_ask: true, ..call };
        match send(route, &mut call, until) {
            Ok(response) => return Ok(response),
            Err(failed) => pause(retries.after(failed.error, !failed.may_have_acted, None)?)?,
        }
    }
}
