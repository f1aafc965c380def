//! Heads of HTTP/1.1 in the terms of HTTP/2, and back (RFC 9113 section 8).

use h2::RecvStream;
use http::{HeaderName, Method, Request, Response, Uri};

/// The most headers of a request.
const HEADERS_MAX: usize = 128;

/// A head of HTTP/1.1 in the terms of HTTP/2; `None` for what is no such head.
pub(super) fn request(head: &[u8], is_tls: bool) -> Option<Request<()>> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut parsed = httparse::Request::new(&mut headers);
    parsed.parse(head).ok()?;
    let host = parsed.headers.iter().find(|header| header.name.eq_ignore_ascii_case("host"))?;
    let scheme = if is_tls { "https" } else { "http" };
    let uri =
        Uri::builder().scheme(scheme).authority(host.value).path_and_query(parsed.path?).build().ok()?;
    let mut request = Request::builder().method(Method::from_bytes(parsed.method?.as_bytes()).ok()?).uri(uri);
    for header in parsed.headers.iter().filter(|header| !header.name.eq_ignore_ascii_case("host")) {
        request = request.header(HeaderName::from_bytes(header.name.as_bytes()).ok()?, header.value);
    }
    request.body(()).ok()
}

/// The head of an answer as HTTP/1.1 writes it.
pub(super) fn text(answer: &Response<RecvStream>) -> Vec<u8> {
    let mut text = Vec::with_capacity(1024);
    let mut put = |piece: &[u8]| text.extend_from_slice(piece);
    put(b"HTTP/1.1 ");
    put(answer.status().as_str().as_bytes());
    put(b"\r\n");
    for (name, value) in answer.headers() {
        put(name.as_str().as_bytes());
        put(b": ");
        put(value.as_bytes());
        put(b"\r\n");
    }
    put(b"\r\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_keeps_all_that_it_says() {
        let head =
            b"PUT /b/a%20b?x=1 HTTP/1.1\r\nHost: h:9\r\nContent-Length: 5\r\nx-amz-meta-a: 1, 2\r\n\r\n";
        let request = request(head, true).unwrap();
        assert_eq!(
            (request.method().as_str(), request.uri().to_string().as_str()),
            ("PUT", "https://h:9/b/a%20b?x=1")
        );
        let headers: Vec<_> =
            request.headers().iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect();
        assert_eq!(headers, [("content-length", "5"), ("x-amz-meta-a", "1, 2")]);
        assert!(super::request(b"GET / HTTP/1.1\r\n\r\n", true).is_none(), "there is no host");
    }
}
