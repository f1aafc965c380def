//! Entry points for fuzzing the gateway's parsers (`dev/fuzz`). Each entry point accepts arbitrary bytes, as a client
//! could send them. An entry point panics if a parser accepts input that must be refused.

use std::io::{Read, Write};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, LazyLock};
use std::thread;
use std::time::Duration;

use fordway_store::{Bucket, Key, MemoryStore, Objects as _, PutOptions, Store};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Uri};

use crate::aws_chunked;
use crate::domains::BucketDomains;
use crate::gate;
use crate::http1::{
    ChunkDecoder, ChunkStep, HEADERS_MAX, RequestFraming, RequestHead, is_plain_request, parse,
};
use crate::limits::{UserLimitOverrides, UserLimits, UserResourceUsage};
use crate::node::{AdmittedCaller, HttpService};
use crate::s3::{CONDITIONS, conditions_in, metadata, stated_checksum, tags};
use crate::signature;

const HEAD_BYTES_MAX: usize = 64 * 1024;
/// The time for which an HTTP/2 client waits for the next bytes before it closes the connection.
const HTTP2_WAIT: Duration = Duration::from_millis(20);
const REGION: &str = "us-east-1";

/// Parses the head of an HTTP/1.1 request. If the head announces a chunked body, also decodes the chunks after the
/// head.
pub fn http1_request(bytes: &[u8]) {
    let mut room = [const { MaybeUninit::uninit() }; HEADERS_MAX];
    let Ok(Some((head, length))) = parse(bytes, &mut room, HEAD_BYTES_MAX) else { return };
    check_head(&head, &bytes[..length]);
    let _is_plain = is_plain_request(&head);
    if head.framing == RequestFraming::Chunked {
        check_chunks(&bytes[length..]);
    }
    if let Ok(mut request) = head.to_request(bytes) {
        assert_eq!(request.headers().len(), head.headers.len());
        let domains = BucketDomains::new(&["s3.example.org".to_owned()]).expect("a host name");
        let _names = domains.names(request.headers(), request.uri());
        let _operation = gate::admit(&mut request, &domains);
    }
}

/// Checks that no other program can interpret the head differently (RFC 9112 section 11.2).
fn check_head(head: &RequestHead<'_>, text: &[u8]) {
    let count =
        |name: &str| head.headers.iter().filter(|header| header.name.eq_ignore_ascii_case(name)).count();
    assert!(count("content-length") + count("transfer-encoding") <= 1, "two framings");
    assert!(!head.is_http_1_1 || count("host") == 1, "no host, or two");
    let breaks = text.windows(2).filter(|pair| *pair == b"\r\n").count();
    let is_bare = |byte: u8| text.iter().filter(|found| **found == byte).count() != breaks;
    assert!(!is_bare(b'\n') && !is_bare(b'\r') && !text.contains(&0), "a control character");
}

/// Returns the sizes of the pieces in which a body is passed to the parser. The parser parses an incomplete line again
/// for each piece, so a long body is split only into large pieces.
fn pieces(bytes: &[u8]) -> impl Iterator<Item = usize> {
    let count = bytes.len();
    [1, 7, 97, 4096].into_iter().filter(move |piece| count / piece < 500)
}

/// Decodes a chunked body in pieces of several sizes. The content must be the same for every size.
fn check_chunks(bytes: &[u8]) {
    let whole = chunks(bytes, bytes.len().max(1));
    for piece in pieces(bytes) {
        assert_eq!(chunks(bytes, piece), whole, "in pieces of {piece} bytes");
    }
    if let Some((content, rest)) = whole {
        assert!(content.len() + rest < bytes.len(), "content without framing");
    }
}

/// Feeds a chunked body to the decoder in pieces. Returns the content, and the number of bytes after the body. Returns
/// `None` if the body is malformed or has no end.
fn chunks(bytes: &[u8], piece: usize) -> Option<(Vec<u8>, usize)> {
    let (mut decoder, mut content) = (ChunkDecoder::default(), Vec::new());
    let (mut used, mut arrived) = (0, 0);
    loop {
        match decoder.step(&bytes[used..arrived], usize::MAX).ok()? {
            ChunkStep::Skip(count) | ChunkStep::Trailer(count) => used += count,
            ChunkStep::Data(count) => {
                content.extend_from_slice(&bytes[used..used + count]);
                used += count;
            }
            ChunkStep::End => return Some((content, bytes.len() - used)),
            ChunkStep::More if arrived == bytes.len() => return None,
            ChunkStep::More => arrived = bytes.len().min(arrived + piece),
        }
    }
}

/// Decodes a chunked body.
pub fn http1_chunks(bytes: &[u8]) {
    check_chunks(bytes);
}

/// Passes an `aws-chunked` body in pieces of several sizes to the framing check. The result must be the same for every
/// size.
pub fn signed_chunks(bytes: &[u8]) {
    let whole = aws_chunked::check_framing(bytes, bytes.len().max(1));
    for piece in pieces(bytes) {
        assert_eq!(aws_chunked::check_framing(bytes, piece), whole, "in pieces of {piece} bytes");
    }
}

/// Checks the syntax of a signature. The input is the request's target, a line break, and the request's headers, one on
/// each line.
pub fn signature_form(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let (target, lines) = text.split_once('\n').unwrap_or((&text, ""));
    let Ok(uri) = target.parse::<Uri>() else { return };
    let headers = headers_in(lines);
    for allows_version_2 in [false, true] {
        let _formed = signature::check_form(&mut headers.clone(), &uri, REGION, allows_version_2);
    }
    let mut request = Request::new(());
    (*request.uri_mut(), *request.headers_mut()) = (uri, headers);
    let _operation = gate::admit(&mut request, &BucketDomains::none());
}

/// Returns the valid headers among lines of the form `name: value`.
fn headers_in(lines: &str) -> HeaderMap {
    let header = |line: &str| {
        let (name, value) = line.split_once(':')?;
        let name = HeaderName::from_bytes(name.trim().as_bytes()).ok()?;
        Some((name, HeaderValue::from_str(value.trim()).ok()?))
    };
    lines.lines().filter_map(header).collect()
}

/// Reads conditions and metadata from headers, one on each line.
pub fn object_headers(bytes: &[u8]) {
    let headers = headers_in(&String::from_utf8_lossy(bytes));
    let _conditions = conditions_in(&headers, &CONDITIONS);
    let _metadata = metadata(&headers);
    let _checksum = stated_checksum(&headers);
    let _tags = tags(headers.get("x-amz-tagging").and_then(|value| value.to_str().ok()));
}

static SERVICE: LazyLock<HttpService> =
    LazyLock::new(|| HttpService::new(Duration::from_secs(5), Arc::default()));

/// Serves a whole connection, HTTP/1.1 or HTTP/2, from an in-memory store that contains one object. No response may be
/// an internal error.
pub fn connection(bytes: &[u8]) {
    let Ok((mut client, server)) = UnixStream::pair() else { return };
    if client.write_all(bytes).is_err() {
        return;
    }
    // The HTTP/2 server drops all requests of a connection that the client closes. An HTTP/2 client therefore closes
    // the connection only after it has received nothing for [`HTTP2_WAIT`].
    let is_http2 = bytes.starts_with(b"PRI");
    let early_end = if is_http2 { Ok(()) } else { client.shutdown(Shutdown::Write) };
    if client.set_read_timeout(is_http2.then_some(HTTP2_WAIT)).and(early_end).is_err() {
        return;
    }
    let reader = thread::spawn(move || {
        let mut received = Vec::new();
        let _ended = client.read_to_end(&mut received);
        received
    });
    let admitted = AdmittedCaller { uid: 1000, store: small_store(), lends_files: false };
    let account = UserResourceUsage::new(UserLimitOverrides::default(), UserLimits::default());
    let _ended = SERVICE.serve(&OwnedFd::from(server), &[], (Ok(admitted), account));
    let received = reader.join().expect("a thread that only reads");
    let is_internal = |line: &[u8]| line.starts_with(b"HTTP/1.1 500");
    assert!(!received.split(|byte| *byte == b'\n').any(is_internal), "a response with status 500");
}

fn small_store() -> Arc<dyn Store> {
    let (store, bucket) = (MemoryStore::default(), Bucket::new("bucket").expect("a valid name"));
    let key = Key::new("k").expect("a valid key");
    let made = store.create_bucket(&bucket);
    made.and_then(|()| store.put(&bucket, &key, b"0123456789", &PutOptions::default()))
        .expect("a store in memory");
    Arc::new(store)
}

/// Parses the input as data that clients send to the token service, and as data that OIDC providers send to the
/// gateway.
pub fn tokens(bytes: &[u8]) {
    crate::sts::fuzz(bytes);
}
