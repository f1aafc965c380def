//! The requests that a load generator sends, and their encoding.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use fordway_store::{ByteRange, Error, ErrorKind, Result};
use fordway_wire::range::format_range;
use fordway_wire::sigv4::UNSIGNED_PAYLOAD;

use fordway_client::s3::{RequestSigner, UnsignedRequest};
use fordway_http::Origin;

const USER_AGENT: &str = concat!("fordway/", env!("CARGO_PKG_VERSION"));
/// The placeholder in a URL that is replaced by the number of an object.
const NUMBER: &str = "{number}";
/// The short form of the placeholder. Help texts omit the short form, because clap replaces `{n}` with a line break.
const NUMBER_FOR_SHORT: &str = "{n}";

/// The HTTP methods that a load generator can send. All these methods are idempotent (RFC 9110 section 9.2.2), so a
/// request whose outcome is unknown may be sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadMethod {
    /// Reads an object.
    Get,
    /// Writes an object.
    Put,
    /// Reads only the head of the response.
    Head,
    /// Removes an object.
    Delete,
}

impl LoadMethod {
    /// Returns the method as it is written in a request.
    pub const fn name(self) -> &'static str {
        match self {
            LoadMethod::Get => "GET",
            LoadMethod::Put => "PUT",
            LoadMethod::Head => "HEAD",
            LoadMethod::Delete => "DELETE",
        }
    }
}

/// The description of the requests to send.
pub struct RequestTemplate {
    /// The method of every request.
    pub method: LoadMethod,
    /// The URL, which may have a query. `{number}` in the URL's path, or `{n}` for short, is replaced with a number
    /// that cycles through the values from 0 to `objects` - 1.
    pub url: String,
    /// The number of objects that `{number}` counts through, at least 1.
    pub objects: u64,
    /// The size of the body for PUT; the expected size for GET, if it is known.
    pub size_bytes: Option<u64>,
    /// The requested range; `None` for the whole object.
    pub range: Option<ByteRange>,
    /// The signer of every request; `None` for unsigned requests.
    pub signer: Option<RequestSigner>,
}

/// An endless sequence of requests, shared by threads.
pub struct RequestSequence {
    plan: RequestTemplate,
    origin: Origin,
    authority: String,
    /// The path to send: the part before the number, and the part after the number.
    path: (String, Option<String>),
    query: String,
    body: Arc<[u8]>,
    /// The value of the `Range` header, if a range is requested.
    range: Option<String>,
    next: AtomicU64,
}

impl RequestSequence {
    /// Prepares the requests of `plan`. Errors: `InvalidArgument` for an invalid URL; `EntityTooLarge` for a body
    /// that does not fit into memory.
    pub fn new(plan: RequestTemplate) -> Result<Self> {
        let (place, query) = plan.url.split_once('?').unwrap_or((&plan.url, ""));
        let (scheme, rest) = place.split_once("://").unwrap_or(("", place));
        let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let (origin, _) = Origin::parse(&format!("{scheme}://{host}"))?;
        let path = if path.is_empty() { "/".to_owned() } else { path.replace(NUMBER_FOR_SHORT, NUMBER) };
        check(&plan.url, &path, query)?;
        if plan.objects > 1 && !path.contains(NUMBER) {
            let detail = format!(
                "the path of the URL has no {NUMBER}, so {} objects cannot be requested; add {NUMBER}",
                plan.objects
            );
            return Err(Error::new(ErrorKind::InvalidArgument, detail));
        }
        let path = match path.split_once(NUMBER) {
            Some((before, after)) => (before.to_owned(), Some(after.to_owned())),
            None => (path, None),
        };
        let body: Arc<[u8]> = match plan.method {
            LoadMethod::Put => body(plan.size_bytes.unwrap_or(0))?.into(),
            LoadMethod::Get | LoadMethod::Head | LoadMethod::Delete => Arc::new([]),
        };
        Ok(RequestSequence {
            authority: origin.authority(),
            origin,
            path,
            query: query.to_owned(),
            body,
            range: plan.range.map(format_range),
            next: AtomicU64::new(0),
            plan,
        })
    }

    /// Returns the origin to which the requests are sent.
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    pub(super) fn method(&self) -> LoadMethod {
        self.plan.method
    }

    pub(super) fn body(&self) -> &Arc<[u8]> {
        &self.body
    }

    /// Returns the body size that each response should have; `None` if any size is accepted.
    pub(super) fn expected_bytes(&self) -> Option<u64> {
        self.plan.size_bytes.filter(|_| self.plan.method == LoadMethod::Get)
    }

    /// Returns whether each response should contain a part of an object.
    pub(super) fn is_for_part(&self) -> bool {
        let is_all = self.plan.range == Some(ByteRange::From(0));
        self.plan.method == LoadMethod::Get && self.plan.range.is_some() && !is_all
    }

    /// Returns the number of content bytes that an exchange transferred, given the number of body bytes received. The
    /// response body of a PUT is not content.
    pub(super) fn moved_bytes(&self, received_bytes: u64, is_whole: bool) -> u64 {
        match self.method() {
            LoadMethod::Put if is_whole => self.body.len() as u64,
            LoadMethod::Put => 0,
            LoadMethod::Get | LoadMethod::Head | LoadMethod::Delete => received_bytes,
        }
    }

    /// Returns whether all requests have the same head.
    pub(super) fn are_alike(&self) -> bool {
        self.path.1.is_none() && self.plan.signer.is_none()
    }

    /// Appends the head of the next request for HTTP/1.1 to `head`, and advances the number.
    pub(super) fn write_head(&self, head: &mut Vec<u8>) {
        let mut push =
            |pieces: &[&str]| pieces.iter().for_each(|piece| head.extend_from_slice(piece.as_bytes()));
        push(&[self.method().name(), " "]);
        let target = self.next_target();
        push(&[&target, " HTTP/1.1\r\nhost: ", &self.authority, "\r\nuser-agent: ", USER_AGENT, "\r\n"]);
        if self.method() == LoadMethod::Put {
            push(&["content-length: ", &self.body.len().to_string(), "\r\n"]);
        }
        if let Some(range) = &self.range {
            push(&["range: ", range, "\r\n"]);
        }
        self.sign(&target, |name, value| push(&[name, ": ", value, "\r\n"]));
        push(&["\r\n"]);
    }

    /// Builds the next request for HTTP/2 and HTTP/3. Errors: `InvalidArgument` for a value that a request cannot
    /// contain.
    pub(super) fn http_request(&self) -> Result<http::Request<()>> {
        let target = self.next_target();
        let scheme = if self.origin.tls { "https" } else { "http" };
        let mut request = http::Request::builder()
            .method(self.method().name())
            .uri(format!("{scheme}://{}{target}", self.authority))
            .header("user-agent", USER_AGENT);
        if self.method() == LoadMethod::Put {
            request = request.header("content-length", self.body.len());
        }
        if let Some(range) = &self.range {
            request = request.header("range", range);
        }
        let mut signed = Some(request);
        self.sign(&target, |name, value| signed = signed.take().map(|request| request.header(name, value)));
        let request = signed.unwrap_or_default().body(());
        request
            .map_err(|error| Error::new(ErrorKind::InvalidArgument, "preparing the request").caused_by(error))
    }

    /// Returns the path and query of the next request, and advances the number.
    fn next_target(&self) -> String {
        let mut target = self.path.0.clone();
        if let Some(after) = &self.path.1 {
            let number = self.next.fetch_add(1, Ordering::Relaxed) % self.plan.objects.max(1);
            target += &number.to_string();
            target += after;
        }
        if !self.query.is_empty() {
            target.push('?');
            target += &self.query;
        }
        target
    }

    fn sign(&self, target: &str, add: impl FnMut(&'static str, &str)) {
        let Some(signer) = &self.plan.signer else { return };
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        // Do not sign the payload, because hashing bodies would use most of the client's CPU time. TCP and TLS have
        // their own checksums.
        let (method, host, payload_hash) = (self.method().name(), self.authority.as_str(), UNSIGNED_PAYLOAD);
        let request = UnsignedRequest { method, path, query, host, headers: &[], payload_hash };
        signer.sign(&request, SystemTime::now(), add);
    }
}

/// Checks that the path of a URL has at most one placeholder. Also checks that path and query contain only characters
/// that need no escaping, because the URL is sent unchanged.
fn check(url: &str, path: &str, query: &str) -> Result<()> {
    let legal = |b: u8| b.is_ascii_graphic() && !b"\"<>\\^`|".contains(&b);
    let numbers = path.matches(NUMBER).count();
    let is_plain = |text: &str| text.bytes().all(|b| legal(b) && !b"{}#".contains(&b));
    if numbers > 1 || !is_plain(&path.replace(NUMBER, "")) || !is_plain(query) {
        let detail = format!(
            "the URL {url:?} cannot be sent: write any character that is not a letter, digit or punctuation of a URL as %XX, and \
             {NUMBER} at most once"
        );
        return Err(Error::new(ErrorKind::InvalidArgument, detail));
    }
    Ok(())
}

/// Returns incompressible bytes, so that compression on links or disks has no effect. Errors: `EntityTooLarge` if the
/// bytes do not fit into memory.
fn body(size_bytes: u64) -> Result<Vec<u8>> {
    let too_large = || {
        let detail = format!("a body of {size_bytes} bytes does not fit into memory; lower --size");
        Error::new(ErrorKind::EntityTooLarge, detail)
    };
    let size = usize::try_from(size_bytes).map_err(|_| too_large())?;
    let mut body = Vec::new();
    body.try_reserve_exact(size.saturating_add(8)).map_err(|_| too_large())?;
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    while body.len() < size {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        body.extend_from_slice(&state.to_le_bytes());
    }
    body.truncate(size);
    Ok(body)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requests(method: LoadMethod, url: &str, size_bytes: Option<u64>) -> Result<RequestSequence> {
        RequestSequence::new(RequestTemplate {
            method,
            url: url.to_owned(),
            objects: 2,
            size_bytes,
            range: None,
            signer: None,
        })
    }

    fn next_head(requests: &RequestSequence) -> String {
        let mut head = Vec::new();
        requests.write_head(&mut head);
        String::from_utf8(head).unwrap()
    }

    #[test]
    fn numbers_count_through_the_objects() {
        let short = requests(LoadMethod::Head, "http://h:9/{n}", None).unwrap();
        assert!(next_head(&short).starts_with("HEAD /0 "));
        let requests = requests(LoadMethod::Put, "http://h:9/b/o-{number}.bin?x=1", Some(3)).unwrap();
        let lines: Vec<_> = (0..3).map(|_| next_head(&requests).lines().next().unwrap().to_owned()).collect();
        assert_eq!(lines, ["0", "1", "0"].map(|n| format!("PUT /b/o-{n}.bin?x=1 HTTP/1.1")));
        assert!(next_head(&requests).contains("\r\nhost: h:9\r\n"));
        assert!(next_head(&requests).ends_with("\r\ncontent-length: 3\r\n\r\n"));
        assert_eq!(requests.body().len(), 3);
    }

    #[test]
    fn what_cannot_be_sent_is_refused() {
        for bad in [
            "",
            "h/x",
            "ftp://h/x",
            "http://h/a b",
            "http://h/a\r\nx: y",
            "http://h/a?b c",
            "http://h/a?b\r\nx: y",
            "http://h/a?n={number}",
            "http://h/a#b",
            "http://h/{number}{n}",
            "http://h/{m}",
            // Several objects need a number in the path.
            "http://h/x",
        ] {
            let refused =
                requests(LoadMethod::Get, bad, None).err().unwrap_or_else(|| panic!("{bad:?} passed"));
            assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{bad:?}");
        }
        let refused = requests(LoadMethod::Put, "http://h/{n}", Some(u64::MAX)).err().expect("too large");
        assert_eq!(refused.kind(), ErrorKind::EntityTooLarge);
    }
}
