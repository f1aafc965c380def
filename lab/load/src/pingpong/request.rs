//! What is asked for: the size at the end of a path.

use std::io::{self, Read};
use std::net::TcpStream;

/// The most bytes that the head of a request may have.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// The most headers that it may have.
const HEADERS_MAX: usize = 64;

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Bytes of content.
    pub bytes: u64,
    /// Whether another request may follow on the connection.
    pub keep_alive: bool,
}

/// What comes next on a connection.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Received {
    Request(Wanted),
    /// Something that is not answered, and why.
    Refused(&'static str),
    End,
}

/// The requests of one connection.
pub(super) struct Requests<'s> {
    socket: &'s TcpStream,
    buffer: Vec<u8>,
}

impl<'s> Requests<'s> {
    pub(super) fn new(socket: &'s TcpStream) -> Self {
        Requests { socket, buffer: Vec::with_capacity(1024) }
    }

    /// The next one. Errors: from the socket.
    pub(super) fn next(&mut self) -> io::Result<Received> {
        loop {
            if let Some((received, length)) = parse(&self.buffer) {
                self.buffer.drain(..length);
                return Ok(received);
            }
            if self.buffer.len() > HEAD_BYTES_MAX {
                return Ok(Received::Refused("the head of the request is too long\n"));
            }
            let mut piece = [0; 1024];
            match self.socket.read(&mut piece) {
                Ok(0) => return Ok(Received::End),
                Ok(got) => self.buffer.extend_from_slice(&piece[..got]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// The request at the start of `bytes`, and how long its head is; `None` if it is not all there yet.
fn parse(bytes: &[u8]) -> Option<(Received, usize)> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    let length = match request.parse(bytes) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return None,
        Err(_) => return Some((Received::Refused("this is no request of HTTP/1.1\n"), bytes.len())),
    };
    Some((meaning(&request), length))
}

fn meaning(request: &httparse::Request) -> Received {
    if request.method != Some("GET") {
        return Received::Refused("only GET is answered\n");
    }
    let named = |name: &'static str| {
        request.headers.iter().filter(move |header| header.name.eq_ignore_ascii_case(name))
    };
    if named("content-length").any(|header| header.value != b"0") || named("transfer-encoding").count() > 0 {
        return Received::Refused("a request with a body is not answered\n");
    }
    let path = request.path.unwrap_or_default();
    let last = path.split('?').next().and_then(|path| path.rsplit('/').next()).unwrap_or_default();
    let Some(bytes) = Some(last).filter(|text| is_number(text)).and_then(|text| text.parse().ok()) else {
        return Received::Refused("the path must end with a number of bytes, as /pong/1000 does\n");
    };
    let says_close = named("connection").any(|header| header.value.eq_ignore_ascii_case(b"close"));
    Received::Request(Wanted { bytes, keep_alive: !says_close && request.version == Some(1) })
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(request: &str) -> Received {
        parse(request.as_bytes()).expect("a whole head").0
    }

    #[test]
    fn the_last_part_of_the_path_is_the_size() {
        let wanted = |bytes, keep_alive| Received::Request(Wanted { bytes, keep_alive });
        assert_eq!(received("GET /pong/0 HTTP/1.1\r\n\r\n"), wanted(0, true));
        assert_eq!(received("GET /a/b/500000?x=1 HTTP/1.1\r\nhost: h\r\n\r\n"), wanted(500_000, true));
        assert_eq!(received("GET /1 HTTP/1.1\r\nConnection: Close\r\n\r\n"), wanted(1, false));
        assert_eq!(received("GET /1 HTTP/1.0\r\n\r\n"), wanted(1, false));
        assert_eq!(parse(b"GET /1 HTTP/1.1\r\nhost:"), None);
    }

    #[test]
    fn what_cannot_be_answered_is_refused() {
        let tail = "HTTP/1.1\r\n\r\n";
        for bad in ["GET /", "GET /x", "GET /-1", "GET /+1", "GET /99999999999999999999", "PUT /1"] {
            assert!(matches!(received(&format!("{bad} {tail}")), Received::Refused(_)), "{bad}");
        }
        let body = "GET /1 HTTP/1.1\r\ncontent-length: 3\r\n\r\nabc";
        assert!(matches!(received(body), Received::Refused(_)));
        assert!(matches!(received("\0\r\n\r\n"), Received::Refused(_)));
    }
}
