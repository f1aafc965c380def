//! Converts heads of requests and responses between HTTP/1.1 text and the form that HTTP/2 and 3 share (RFC 9113
//! section 8, RFC 9114 section 4).

use http::{HeaderName, Method, Request, Response, Uri};

/// The maximum number of headers in a request.
const HEADERS_MAX: usize = 128;

/// The connection-specific headers, which requests and responses of HTTP/2 and 3 must not contain (RFC 9113 section
/// 8.2.2).
pub(super) const OF_CONNECTION: [&str; 5] =
    ["connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade"];

/// Converts an HTTP/1.1 head to a request without connection-specific headers. Returns `None` if the head is invalid.
pub(super) fn request_of_head(head: &[u8], is_tls: bool) -> Option<Request<()>> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut parsed = httparse::Request::new(&mut headers);
    parsed.parse(head).ok()?;
    let host = parsed.headers.iter().find(|header| header.name.eq_ignore_ascii_case("host"))?;
    let scheme = if is_tls { "https" } else { "http" };
    let uri =
        Uri::builder().scheme(scheme).authority(host.value).path_and_query(parsed.path?).build().ok()?;
    let mut request = Request::builder().method(Method::from_bytes(parsed.method?.as_bytes()).ok()?).uri(uri);
    let is_dropped = |name: &str| {
        name.eq_ignore_ascii_case("host") || OF_CONNECTION.iter().any(|own| name.eq_ignore_ascii_case(own))
    };
    for header in parsed.headers.iter().filter(|header| !is_dropped(header.name)) {
        request = request.header(HeaderName::from_bytes(header.name.as_bytes()).ok()?, header.value);
    }
    request.body(()).ok()
}

/// Returns a response head in HTTP/1.1 form, without the empty line that ends it.
pub(super) fn head_of_response<T>(response: &Response<T>) -> Vec<u8> {
    let mut text = Vec::with_capacity(1024);
    let mut put = |piece: &[u8]| text.extend_from_slice(piece);
    put(b"HTTP/1.1 ");
    put(response.status().as_str().as_bytes());
    put(b"\r\n");
    for (name, value) in response.headers() {
        put(name.as_str().as_bytes());
        put(b": ");
        put(value.as_bytes());
        put(b"\r\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_keeps_all_that_it_says() {
        let head =
            b"PUT /b/a%20b?x=1 HTTP/1.1\r\nHost: h:9\r\nConnection: close\r\nContent-Length: 5\r\nx-amz-meta-a: 1, 2\r\n\r\n";
        let request = request_of_head(head, true).unwrap();
        assert_eq!(
            (request.method().as_str(), request.uri().to_string().as_str()),
            ("PUT", "https://h:9/b/a%20b?x=1")
        );
        let headers: Vec<_> =
            request.headers().iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect();
        assert_eq!(headers, [("content-length", "5"), ("x-amz-meta-a", "1, 2")]);
        assert!(request_of_head(b"GET / HTTP/1.1\r\n\r\n", true).is_none(), "there is no host");
    }
}
