//! Parses bytes into the head of a request, or into the reason why the message is refused. The parser is stricter than
//! HTTP requires wherever two programs could interpret a message differently (RFC 9112 section 11.2).

use std::mem::MaybeUninit;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, Request, StatusCode, Uri, Version};

/// The maximum number of headers in a head.
pub(crate) const HEADERS_MAX: usize = 128;

/// The reason why a message is refused. The gateway closes the connection after a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MessageRefusal {
    pub(crate) status: StatusCode,
    pub(crate) why: &'static str,
}

impl MessageRefusal {
    pub(crate) const fn bad(why: &'static str) -> Self {
        MessageRefusal { status: StatusCode::BAD_REQUEST, why }
    }

    const fn too_large(why: &'static str) -> Self {
        MessageRefusal { status: StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, why }
    }
}

/// The way in which the end of a request's body is recognized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestFraming {
    /// By the length of the body in bytes; 0 if the request specifies no length.
    Length(u64),
    /// By the last chunk of the body.
    Chunked,
}

/// A request's head, borrowed from the received bytes.
#[derive(Debug)]
pub(crate) struct RequestHead<'b> {
    pub(crate) method: &'b str,
    pub(crate) target: &'b str,
    pub(crate) headers: &'b [httparse::Header<'b>],
    /// The bytes from which the head was parsed; `None` if they are not UTF-8.
    text: Option<&'b str>,
    /// The length of the head in bytes.
    pub(crate) bytes: usize,
    pub(crate) framing: RequestFraming,
    /// Whether the client accepts the chunked transfer coding and interim responses.
    pub(crate) is_http_1_1: bool,
    /// Whether the client wants to reuse the connection.
    pub(crate) keep_alive: bool,
    /// Whether the client waits for `100 Continue` before it sends the body.
    pub(crate) expects_continue: bool,
}

const TOO_LARGE: &str = "the request's head exceeds this gateway's limit";

/// Storage for the parsed headers of a head.
pub(crate) type HeaderStorage<'b> = [MaybeUninit<httparse::Header<'b>>; HEADERS_MAX];

/// Parses the head at the start of `bytes`. Returns the head and its length, or `None` if the end of the head has not
/// arrived yet. Errors: the head has more than `bytes_max` bytes, or is not HTTP.
pub(crate) fn parse<'b>(
    bytes: &'b [u8],
    room: &'b mut HeaderStorage<'b>,
    bytes_max: usize,
) -> Result<Option<(RequestHead<'b>, usize)>, MessageRefusal> {
    let mut request = httparse::Request::new(&mut []);
    let length = match request.parse_with_uninit_headers(bytes, room) {
        Ok(httparse::Status::Complete(length)) if length <= bytes_max => length,
        Ok(httparse::Status::Partial) if bytes.len() < bytes_max => return Ok(None),
        Ok(_) => return Err(MessageRefusal::too_large(TOO_LARGE)),
        Err(error) => return Err(unreadable(error, bytes.len() >= bytes_max)),
    };
    if has_bare_line_feed(&bytes[..length]) {
        return Err(MessageRefusal::bad("a line of the request's head ends without a carriage return"));
    }
    let is_http_1_1 = request.version == Some(1);
    let mut head = RequestHead {
        method: request.method.unwrap_or_default(),
        target: request.path.unwrap_or_default(),
        headers: request.headers,
        text: std::str::from_utf8(&bytes[..length]).ok(),
        bytes: length,
        framing: RequestFraming::Length(0),
        is_http_1_1,
        keep_alive: false,
        expects_continue: false,
    };
    read_semantics(&mut head)?;
    Ok(Some((head, length)))
}

fn unreadable(error: httparse::Error, is_too_long: bool) -> MessageRefusal {
    match error {
        httparse::Error::TooManyHeaders => MessageRefusal::too_large("the request has more than 128 headers"),
        httparse::Error::Version => MessageRefusal {
            status: StatusCode::HTTP_VERSION_NOT_SUPPORTED,
            why: "only HTTP/1.0 and HTTP/1.1 are supported",
        },
        _ if is_too_long => MessageRefusal::too_large(TOO_LARGE),
        _ => MessageRefusal::bad("the request's head is not HTTP"),
    }
}

/// Returns whether a line ends with a bare line feed, which the parser accepts but some intermediaries refuse.
fn has_bare_line_feed(head: &[u8]) -> bool {
    // Checks all pairs without an early exit, so that the compiler can vectorize the loop.
    let pairs = head.iter().zip(head.get(1..).unwrap_or_default());
    let is_within =
        pairs.fold(false, |found, (before, byte)| found | ((*byte == b'\n') & (*before != b'\r')));
    is_within || head.first() == Some(&b'\n')
}

/// Reads the headers that determine the framing of the message and the use of the connection.
fn read_semantics(head: &mut RequestHead<'_>) -> Result<(), MessageRefusal> {
    let (mut length, mut is_chunked, mut hosts) = (None, false, 0);
    let (mut close, mut keep) = (false, false);
    for header in head.headers {
        let name = header.name;
        if name.eq_ignore_ascii_case("content-length") {
            if length.replace(content_length(header.value)?).is_some() {
                return Err(MessageRefusal::bad("the request has several Content-Length headers"));
            }
        } else if name.eq_ignore_ascii_case("transfer-encoding") {
            if is_chunked {
                return Err(MessageRefusal::bad("the request has several Transfer-Encoding headers"));
            }
            check_coding(header.value)?;
            is_chunked = true;
        } else if name.eq_ignore_ascii_case("host") {
            hosts += 1;
        } else if name.eq_ignore_ascii_case("connection") {
            close |= has_option(header.value, b"close");
            keep |= has_option(header.value, b"keep-alive");
        } else if name.eq_ignore_ascii_case("expect") && !header.value.trim_ascii().is_empty() {
            check_expectation(header.value)?;
            head.expects_continue = head.is_http_1_1;
        }
    }
    if hosts > 1 || (hosts == 0 && head.is_http_1_1) {
        return Err(MessageRefusal::bad("the request must have one Host header"));
    }
    head.keep_alive = !close && (head.is_http_1_1 || keep);
    head.framing = match (is_chunked, length) {
        (false, length) => RequestFraming::Length(length.unwrap_or(0)),
        (true, None) if head.is_http_1_1 => RequestFraming::Chunked,
        (true, None) => return Err(MessageRefusal::bad("HTTP/1.0 has no Transfer-Encoding")),
        (true, Some(_)) => {
            return Err(MessageRefusal::bad("the request has a Content-Length and a Transfer-Encoding"));
        }
    };
    Ok(())
}

/// Parses a `Content-Length`, which must consist of digits only: no sign, no list and no space.
fn content_length(value: &[u8]) -> Result<u64, MessageRefusal> {
    let text = std::str::from_utf8(value).unwrap_or_default();
    fordway_wire::range::digits(text).ok_or(MessageRefusal::bad("the Content-Length is not a number"))
}

fn check_coding(value: &[u8]) -> Result<(), MessageRefusal> {
    if value.eq_ignore_ascii_case(b"chunked") {
        return Ok(());
    }
    let ends_chunked = value
        .rsplit(|&byte| byte == b',')
        .next()
        .is_some_and(|last| last.trim_ascii().eq_ignore_ascii_case(b"chunked"));
    match ends_chunked {
        true => Err(MessageRefusal {
            status: StatusCode::NOT_IMPLEMENTED,
            why: "the only supported Transfer-Encoding is chunked",
        }),
        false => Err(MessageRefusal::bad("the Transfer-Encoding does not end with chunked")),
    }
}

fn check_expectation(value: &[u8]) -> Result<(), MessageRefusal> {
    match value.eq_ignore_ascii_case(b"100-continue") {
        true => Ok(()),
        false => Err(MessageRefusal {
            status: StatusCode::EXPECTATION_FAILED,
            why: "the only supported expectation is 100-continue",
        }),
    }
}

fn has_option(value: &[u8], option: &[u8]) -> bool {
    value.split(|&byte| byte == b',').any(|listed| listed.trim_ascii().eq_ignore_ascii_case(option))
}

impl<'b> RequestHead<'b> {
    /// Returns the value of a header of this head; `None` if the value is not UTF-8. Cost: a few instructions if all of
    /// the head is UTF-8, because the whole head has been checked already.
    pub(crate) fn value(&self, header: &httparse::Header<'b>) -> Option<&'b str> {
        let of_head = || {
            let text = self.text?;
            let start = header.value.as_ptr().addr().checked_sub(text.as_ptr().addr())?;
            text.get(start..start + header.value.len())
        };
        of_head().or_else(|| std::str::from_utf8(header.value).ok())
    }
}

impl RequestHead<'_> {
    /// Converts the head to a request for the S3 layer. `source` is the buffer from which the head was parsed. The
    /// function copies this buffer once.
    pub(crate) fn to_request(&self, source: &[u8]) -> Result<Request<()>, MessageRefusal> {
        let copy = Bytes::copy_from_slice(source);
        let copied = |part: &[u8]| {
            // The address of an empty slice has no meaning, so an empty slice gets the offset 0.
            let start = if part.is_empty() { 0 } else { part.as_ptr().addr() - source.as_ptr().addr() };
            copy.slice(start..start + part.len())
        };
        let mut request = Request::new(());
        *request.method_mut() = Method::from_bytes(self.method.as_bytes())
            .map_err(|_| MessageRefusal::bad("the request's method is invalid"))?;
        *request.uri_mut() = Uri::from_maybe_shared(copied(self.target.as_bytes()))
            .map_err(|_| MessageRefusal::bad("the request's target is not a path"))?;
        *request.version_mut() = if self.is_http_1_1 { Version::HTTP_11 } else { Version::HTTP_10 };
        let headers = request.headers_mut();
        headers.reserve(self.headers.len());
        for header in self.headers {
            let name = HeaderName::from_bytes(header.name.as_bytes());
            let value = HeaderValue::from_maybe_shared(copied(header.value));
            let (Ok(name), Ok(value)) = (name, value) else {
                return Err(MessageRefusal::bad("a header of the request is not valid HTTP"));
            };
            headers.append(name, value);
        }
        Ok(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD_BYTES_MAX: usize = 64 * 1024;

    fn refused(head: &str) -> u16 {
        let mut room = [const { MaybeUninit::uninit() }; HEADERS_MAX];
        parse(head.as_bytes(), &mut room, HEAD_BYTES_MAX).expect_err(head).status.as_u16()
    }

    #[track_caller]
    fn check(head: &str, look: impl FnOnce(&RequestHead<'_>)) {
        let mut room = [const { MaybeUninit::uninit() }; HEADERS_MAX];
        let (parsed, length) =
            parse(head.as_bytes(), &mut room, HEAD_BYTES_MAX).unwrap().expect("the head is whole");
        assert_eq!(length, head.len());
        look(&parsed);
    }

    #[test]
    fn what_a_good_client_sends() {
        check("GET /b/k?x=1 HTTP/1.1\r\nHost: h\r\nRange: bytes=0-1\r\n\r\n", |head| {
            assert_eq!((head.method, head.target), ("GET", "/b/k?x=1"));
            assert_eq!(head.framing, RequestFraming::Length(0));
            assert!(head.keep_alive && head.is_http_1_1 && !head.expects_continue);
        });
        check("PUT /b/k HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nExpect: 100-Continue\r\n\r\n", |head| {
            assert_eq!(head.framing, RequestFraming::Length(5));
            assert!(head.expects_continue);
        });
        check("PUT /b/k HTTP/1.1\r\nHost: h\r\nExpect: \r\n\r\n", |head| assert!(!head.expects_continue));
        check("PUT /b/k HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: Chunked\r\n\r\n", |head| {
            assert_eq!(head.framing, RequestFraming::Chunked);
        });
    }

    #[test]
    fn values_are_text_or_nothing() {
        let values = |head: &[u8]| {
            let mut room = [const { MaybeUninit::uninit() }; HEADERS_MAX];
            let (head, _) = parse(head, &mut room, HEAD_BYTES_MAX).unwrap().expect("the head is whole");
            head.headers.iter().map(|header| head.value(header).map(str::to_owned)).collect::<Vec<_>>()
        };
        let some = |text: &str| Some(text.to_owned());
        let head = "GET / HTTP/1.1\r\nHost: h\r\nA:\r\nB: \u{e4} b \r\n\r\n";
        assert_eq!(values(head.as_bytes()), [some("h"), some(""), some("\u{e4} b")]);
        let head = b"GET / HTTP/1.1\r\nHost: h\r\nA: \xff\r\nB: b\r\n\r\n";
        assert_eq!(values(head), [some("h"), None, some("b")]);
    }

    #[test]
    fn who_wants_the_connection_again() {
        for (version, connection, expected) in [
            ("1.1", "", true),
            ("1.1", "Connection: close\r\n", false),
            ("1.1", "Connection: TE, Close\r\n", false),
            ("1.1", "Connection: close\r\nConnection: keep-alive\r\n", false),
            ("1.0", "", false),
            ("1.0", "Connection: Keep-Alive\r\n", true),
            ("1.0", "Connection: keep-alive, close\r\n", false),
        ] {
            check(&format!("GET / HTTP/{version}\r\nHost: h\r\n{connection}\r\n"), |head| {
                assert_eq!(head.keep_alive, expected, "{version} {connection}");
            });
        }
    }

    #[test]
    fn what_two_programs_could_read_differently() {
        for head in [
            "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
            "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\n",
            "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5, 5\r\n\r\n",
            "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: +5\r\n\r\n",
            "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 0x5\r\n\r\n",
            "POST / HTTP/1.1\r\nHost: h\r\nContent-Length:\r\n\r\n",
            "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 99999999999999999999\r\n\r\n",
            "POST / HTTP/1.1\r\nHost: h\r\nContent-Length : 5\r\n\r\n",
            "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
            "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked, identity\r\n\r\n",
            "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: xchunked\r\n\r\n",
            "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: \x0bchunked\r\n\r\n",
            "POST / HTTP/1.0\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: h\r\nX: a\r\n b\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: h\r\n X: a\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: h\nX: a\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: h\r\nX: a\rb\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: h\r\nX: a\0b\r\n\r\n",
            "GET / HTTP/1.1\nHost: h\n\n",
            "GET / HTTP/1.1\r\nHost: h\r\nHost: h\r\n\r\n",
            "GET / HTTP/1.1\r\n\r\n",
            "GET  / HTTP/1.1\r\nHost: h\r\n\r\n",
            "GE(T / HTTP/1.1\r\nHost: h\r\n\r\n",
        ] {
            assert_eq!(refused(head), 400, "{head:?}");
        }
    }

    #[test]
    fn what_is_not_offered_is_named() {
        assert_eq!(refused("GET / HTTP/2.0\r\n\r\n"), 505);
        assert_eq!(refused("PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip, chunked\r\n\r\n"), 501);
        assert_eq!(refused("PUT / HTTP/1.1\r\nHost: h\r\nExpect: coffee\r\n\r\n"), 417);
        let many = "X: y\r\n".repeat(HEADERS_MAX);
        assert_eq!(refused(&format!("GET / HTTP/1.1\r\nHost: h\r\n{many}\r\n")), 431);
        let long = "a".repeat(HEAD_BYTES_MAX);
        assert_eq!(refused(&format!("GET / HTTP/1.1\r\nHost: h\r\nX: {long}\r\n\r\n")), 431);
        assert_eq!(refused(&format!("GET /{long}")), 431);
    }

    #[test]
    fn an_unfinished_head_is_waited_for_at_every_length() {
        let head = "PUT /b/k HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\n";
        for end in 0..head.len() {
            let mut room = [const { MaybeUninit::uninit() }; HEADERS_MAX];
            assert!(parse(&head.as_bytes()[..end], &mut room, HEAD_BYTES_MAX).unwrap().is_none(), "{end}");
        }
    }

    /// Parses heads that consist of relevant pieces in random order. Parsing must terminate, and an accepted head must
    /// have only one interpretation.
    #[test]
    fn random_heads_do_no_harm() {
        const PIECES: &[&str] = &[
            "GET ",
            "/ ",
            "HTTP/1.1",
            "HTTP/1.0",
            "\r\n",
            "\n",
            "\r",
            "Host: h",
            "Content-Length: ",
            "5",
            "-1",
            "Transfer-Encoding: ",
            "chunked",
            ",",
            " ",
            "\t",
            ":",
            "Connection: close",
            "\0",
            "\u{fe}",
            "x",
        ];
        let mut state = 1u32;
        let mut next = move || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 16) as usize
        };
        let mut accepted = 0;
        for _ in 0..100_000 {
            let mut text = if next() % 2 == 0 { "GET / HTTP/1.1\r\nHost: h\r\n" } else { "" }.to_owned();
            (0..next() % 8).for_each(|_| text.push_str(PIECES[next() % PIECES.len()]));
            text.push_str("\r\n\r\n");
            let mut room = [const { MaybeUninit::uninit() }; HEADERS_MAX];
            if let Ok(Some((head, length))) = parse(text.as_bytes(), &mut room, HEAD_BYTES_MAX) {
                let count = |name: &str| {
                    head.headers.iter().filter(|header| header.name.eq_ignore_ascii_case(name)).count()
                };
                assert!(count("content-length") + count("transfer-encoding") <= 1, "{text:?}");
                assert!(!head.is_http_1_1 || count("host") == 1, "{text:?}");
                assert!(!text[..length].replace("\r\n", "").contains(['\r', '\n', '\0']), "{text:?}");
                accepted += 1;
            }
        }
        assert!(accepted > 1000, "{accepted}");
    }
}
