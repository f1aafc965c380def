//! What is sent.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use fordway_store::{ByteRange, Error, ErrorKind, Result};
use fordway_wire::range::format_range;
use fordway_wire::sigv4::UNSIGNED_PAYLOAD;

use fordway_client::s3::{RequestSigner, UnsignedRequest};
use fordway_http::Origin;

const USER_AGENT: &str = concat!("fordway/", env!("CARGO_PKG_VERSION"));
/// What the number of an object takes the place of in a URL.
const NUMBER: &str = "{number}";
/// The same, where help need not show it: the library that writes help makes a new line of it.
const NUMBER_FOR_SHORT: &str = "{n}";

/// The methods that load can be made of. All are idempotent (RFC 9110 section 9.2.2): a request may be sent again
/// when it is not known what became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadMethod {
    /// Reads.
    Get,
    /// Writes.
    Put,
    /// Asks for the head only.
    Head,
    /// Removes.
    Delete,
}

impl LoadMethod {
    /// As it is sent.
    pub const fn name(self) -> &'static str {
        match self {
            LoadMethod::Get => "GET",
            LoadMethod::Put => "PUT",
            LoadMethod::Head => "HEAD",
            LoadMethod::Delete => "DELETE",
        }
    }
}

/// What requests are to be made of.
pub struct RequestPlan {
    /// What is done.
    pub method: LoadMethod,
    /// Where; `{number}`, or `{n}` for short, stands for a number that counts through `objects`. A query may follow.
    pub url: String,
    /// How many objects `{number}` counts through, at least 1.
    pub objects: u64,
    /// For PUT the size of the body; for GET the size expected, if it is known.
    pub size_bytes: Option<u64>,
    /// The bytes that GET asks for, where not all.
    pub range: Option<ByteRange>,
    /// Signs every request, where given.
    pub signer: Option<RequestSigner>,
}

/// Requests, one after the other. Shared between threads.
pub struct RequestSequence {
    plan: RequestPlan,
    origin: Origin,
    authority: String,
    /// The path as it is sent, before and after the number.
    path: (String, Option<String>),
    query: String,
    body: Arc<[u8]>,
    /// The value of `Range`, where one is asked for.
    range: Option<String>,
    next: AtomicU64,
}

impl RequestSequence {
    /// Errors: `InvalidArgument` for a URL that is none, or a body that cannot be held in memory.
    pub fn new(plan: RequestPlan) -> Result<Self> {
        let (place, query) = plan.url.split_once('?').unwrap_or((&plan.url, ""));
        let (scheme, rest) = place.split_once("://").unwrap_or(("", place));
        let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let (origin, _) = Origin::parse(&format!("{scheme}://{host}"))?;
        let path = if path.is_empty() { "/".to_owned() } else { path.replace(NUMBER_FOR_SHORT, NUMBER) };
        check(&plan.url, &path)?;
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

    /// Where they go.
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    pub(super) fn method(&self) -> LoadMethod {
        self.plan.method
    }

    pub(super) fn body(&self) -> &Arc<[u8]> {
        &self.body
    }

    /// Bytes of body that each answer should have.
    pub(super) fn expected_bytes(&self) -> Option<u64> {
        self.plan.size_bytes.filter(|_| self.plan.method == LoadMethod::Get)
    }

    /// Bytes of content that an exchange moved, of which this many were received. What a server says to a
    /// body that it took is not content.
    pub(super) fn moved_bytes(&self, received_bytes: u64, is_whole: bool) -> u64 {
        match self.method() {
            LoadMethod::Put if is_whole => self.body.len() as u64,
            LoadMethod::Put => 0,
            LoadMethod::Get | LoadMethod::Head | LoadMethod::Delete => received_bytes,
        }
    }

    /// Whether all requests have the same head.
    pub(super) fn are_alike(&self) -> bool {
        self.path.1.is_none() && self.plan.signer.is_none()
    }

    /// Writes the head of the next request.
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

    /// The next request as HTTP/2 and 3 want it. Errors: `InvalidArgument` for what no request may hold.
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
            .map_err(|error| Error::new(ErrorKind::InvalidArgument, "the request cannot be").caused_by(error))
    }

    /// The path and query of the next request.
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
        // Hashing bodies would be most of what a client does; TCP and TLS have checksums of their own.
        let (method, host, payload_hash) = (self.method().name(), self.authority.as_str(), UNSIGNED_PAYLOAD);
        let request = UnsignedRequest { method, path, query, host, headers: &[], payload_hash };
        signer.sign(&request, SystemTime::now(), add);
    }
}

/// A URL goes out as it is given, so it must be fit to.
fn check(url: &str, path: &str) -> Result<()> {
    let legal = |b: u8| b.is_ascii_graphic() && !b"\"<>\\^`|".contains(&b);
    let numbers = path.matches(NUMBER).count();
    if numbers > 1 || !path.replace(NUMBER, "").bytes().all(|b| legal(b) && !b"{}".contains(&b)) {
        let detail = format!(
            "the URL {url:?} cannot be sent: write what is no letter, digit or punctuation of a URL as %XX, and \
             {NUMBER} at most once"
        );
        return Err(Error::new(ErrorKind::InvalidArgument, detail));
    }
    Ok(())
}

/// Bytes that no link or disk can compress away.
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
        RequestSequence::new(RequestPlan {
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
            "http://h/{number}{n}",
            "http://h/{m}",
        ] {
            let refused =
                requests(LoadMethod::Get, bad, None).err().unwrap_or_else(|| panic!("{bad:?} passed"));
            assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{bad:?}");
        }
        let refused = requests(LoadMethod::Put, "http://h/x", Some(u64::MAX)).err().expect("too large");
        assert_eq!(refused.kind(), ErrorKind::EntityTooLarge);
    }
}
