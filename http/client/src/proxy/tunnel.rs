//! The conversation that opens a tunnel.

use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

use fordway_store::{Error, ErrorKind, Result};

use crate::socket::Socket;

/// The most bytes of a proxy's answer; its document is not read.
const HEAD_BYTES_MAX: usize = 32 * 1024;
/// The most headers of it.
const HEADERS_MAX: usize = 64;

/// Sends `request` and returns the status of the answer, all of it within `limit`. With 2xx the socket is
/// at the other end's service. Errors: `Unavailable`, `Timeout`, `BadResponse`.
pub(super) fn open(socket: &mut Socket, request: &str, limit: Duration) -> Result<u16> {
    let deadline = Instant::now() + limit;
    socket.write_all(request.as_bytes()).map_err(|error| cut(&error, limit))?;
    let (mut answer, mut filled) = (vec![0; 1024], 0);
    loop {
        if let Some((status, length)) = parse(&answer[..filled])? {
            // Neither TLS nor HTTP/2 has a server that speaks first.
            if (200..300).contains(&status) && filled > length {
                return Err(bad("it sent bytes through the tunnel that nobody asked for"));
            }
            socket.set_read_timeout(limit).map_err(|error| cut(&error, limit))?;
            return Ok(status);
        }
        if filled == answer.len() {
            if filled >= HEAD_BYTES_MAX {
                return Err(bad("the head of its answer is over 32 KiB"));
            }
            answer.resize(2 * filled, 0);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(cut(&io::ErrorKind::TimedOut.into(), limit));
        }
        socket.set_read_timeout(left).map_err(|error| cut(&error, limit))?;
        match socket.read(&mut answer[filled..]) {
            Ok(0) => {
                return Err(Error::new(ErrorKind::Unavailable, "it closed the connection without an answer"));
            }
            Ok(got) => filled += got,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(cut(&error, limit)),
        }
    }
}

/// Status and bytes of the final head at the front of `received`; `None` if it is not all there.
/// Errors: `BadResponse`.
fn parse(mut received: &[u8]) -> Result<Option<(u16, usize)>> {
    let mut passed = 0;
    loop {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut head = httparse::Response::new(&mut headers);
        match head.parse(received) {
            Ok(httparse::Status::Partial) => return Ok(None),
            Err(_) => return Err(bad("its answer is not HTTP/1.1; is that the address of an HTTP proxy?")),
            Ok(httparse::Status::Complete(length)) => {
                let status = head.code.unwrap_or_default();
                passed += length;
                if status >= 200 {
                    return Ok(Some((status, passed)));
                }
                received = &received[length..];
            }
        }
    }
}

fn bad(why: &str) -> Error {
    Error::new(ErrorKind::BadResponse, why)
}

pub(super) fn cut(error: &io::Error, limit: Duration) -> Error {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            Error::new(ErrorKind::Timeout, format!("it did not answer within {limit:?}"))
        }
        _ => Error::new(ErrorKind::Unavailable, format!("the connection to it was cut ({error})")),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_last_head_counts() {
        let answer =
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.0 200 Connection established\r\nVia: p\r\n\r\nmore";
        assert_eq!(parse(answer).unwrap(), Some((200, answer.len() - 4)));
        for end in 0..answer.len() - 4 {
            assert_eq!(parse(&answer[..end]).unwrap(), None, "{end}");
        }
        assert_eq!(
            parse(b"HTTP/1.1 407 No\r\nContent-Length: 9\r\n\r\n").unwrap().map(|found| found.0),
            Some(407)
        );
        assert_eq!(parse(b"SSH-2.0-OpenSSH\r\n").unwrap_err().kind(), ErrorKind::BadResponse);
    }

    proptest! {
        #[test]
        fn whatever_comes_is_an_answer_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            if let Ok(Some((status, length))) = parse(&bytes) {
                prop_assert!(status >= 200 && length <= bytes.len());
            }
        }

        #[test]
        fn any_status_is_found(status in 200_u16..1000, reason in "[ -~]{0,30}", value in "[ -~]{0,30}") {
            let answer = format!("HTTP/1.1 {status} {reason}\r\nX: {value}\r\n\r\n");
            prop_assert_eq!(parse(answer.as_bytes()).unwrap(), Some((status, answer.len())));
        }
    }
}
