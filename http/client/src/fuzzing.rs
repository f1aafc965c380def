//! Entry points for fuzzing the client's side of HTTP (`dev/fuzz`). Each entry point takes arbitrary bytes that a
//! server could send.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use fordway_store::Error;

use crate::Timeouts;
use crate::connection::BufferedConnection;
use crate::response::{BodyFraming, ResponseHead};
use crate::socket::TcpSocket;

/// The maximum number of responses that are read from one connection.
const RESPONSES_MAX: usize = 16;

/// Reads responses from a connection that delivers `bytes` and then ends. The first byte selects the request method and
/// the number of bytes read at a time. A body is never longer than the bytes that arrived.
pub fn responses(bytes: &[u8]) {
    let Some((choice, sent)) = bytes.split_first() else { return };
    let method = if choice & 1 == 0 { "GET" } else { "HEAD" };
    let Ok(mut connection) = receiving(sent) else { return };
    let (mut head, mut left) = (ResponseHead::default(), sent.len());
    for _ in 0..RESPONSES_MAX {
        let Ok(true) = next_head(&mut connection, &mut head) else { return };
        let Ok(mut framing) = BodyFraming::of(&head, &connection, method) else { return };
        let keeps = head.may_keep_alive(&connection, &framing);
        let at_once = 1 + usize::from(choice >> 1) * 7;
        let Ok(body) = body_of(&mut connection, &mut framing, head.end, at_once) else { return };
        assert!(framing.has_ended(), "the body has been read to its end");
        assert!(body <= left, "{body} bytes of body in {left} bytes");
        left -= body;
        if !keeps {
            return;
        }
    }
}

/// Returns a connection that delivers `bytes` and then ends.
fn receiving(bytes: &[u8]) -> io::Result<BufferedConnection> {
    let (mut server, client) = UnixStream::pair()?;
    server.write_all(bytes)?;
    server.shutdown(Shutdown::Write)?;
    let limit = Duration::from_secs(5);
    let timeouts = Timeouts { connect: limit, first_byte: limit, progress: limit, idle: limit };
    let stream = TcpStream::from(OwnedFd::from(client));
    Ok(BufferedConnection::plain(TcpSocket::over(stream, &timeouts), timeouts))
}

/// Reads the next head as the client does; returns `false` at the end of the connection.
fn next_head(connection: &mut BufferedConnection, head: &mut ResponseHead) -> Result<bool, Error> {
    loop {
        if connection.take_head(head)? {
            return Ok(true);
        }
        if connection.receive_more().map_err(crate::response::body_error)? == 0 {
            return Ok(false);
        }
    }
}

/// Reads a body `at_once` bytes at a time; returns its length.
fn body_of(
    connection: &mut BufferedConnection,
    framing: &mut BodyFraming,
    keep_until: usize,
    at_once: usize,
) -> io::Result<usize> {
    let (mut room, mut total) = (vec![0; at_once], 0);
    loop {
        match framing.read(connection, keep_until, &mut room)? {
            0 => return Ok(total),
            count => total += count,
        }
    }
}

/// Reads chunks as vectored reads do: gets the length of each run of content before reading it.
pub fn chunk_runs(bytes: &[u8]) {
    let Ok(mut connection) = receiving(bytes) else { return };
    let mut framing = BodyFraming::Chunked(crate::response::ChunkDecoderState::Size);
    let (mut total, mut room) = (0, [0; 512]);
    while let Ok(run @ 1..) = framing.run(&mut connection, 0) {
        let wanted = room.len().min(usize::try_from(run).unwrap_or(usize::MAX));
        let Ok(count @ 1..) = connection.read(&mut room[..wanted]) else { return };
        framing.passed(count as u64);
        total += count;
        assert!(total < bytes.len(), "content and framing have at most as many bytes as arrived");
    }
    let mut rest = Vec::new();
    let _ended = io::Read::by_ref(&mut BytesAfterBody(&mut connection)).take(1 << 16).read_to_end(&mut rest);
    assert!(total + rest.len() <= bytes.len());
}

/// Filters the frames of an HTTP/3 stream, as the client and the gateway do before h3 receives them. The first byte
/// selects the kind of stream, and the number of bytes that arrive at a time, which must make no difference.
#[cfg(feature = "http3")]
pub fn http3_frames(bytes: &[u8]) {
    use crate::http3::frames::{FrameFilter, FrameViolation};

    const FRAME_BYTES_MAX: u64 = 64;
    let Some((choice, stream)) = bytes.split_first() else { return };
    let filtered = |at_once: usize| -> (Vec<u8>, Result<(), FrameViolation>) {
        let mut filter = match choice & 1 {
            0 => FrameFilter::of_message(FRAME_BYTES_MAX),
            _ => FrameFilter::of_unidirectional(FRAME_BYTES_MAX),
        };
        let mut passed = Vec::new();
        for received in stream.chunks(at_once) {
            let mut received = bytes::Bytes::copy_from_slice(received);
            loop {
                match filter.next(&mut received) {
                    Ok(Some(piece)) => passed.extend_from_slice(&piece),
                    Ok(None) => break,
                    Err(violation) => return (passed, Err(violation)),
                }
            }
        }
        (passed, filter.end())
    };
    let whole = filtered(usize::MAX);
    // A filtered body begins with a head of 9 bytes, instead of the head of at least 2 bytes that arrived.
    assert!(whole.0.len() <= stream.len() + 7, "{} bytes of {}", whole.0.len(), stream.len());
    assert_eq!(filtered(1 + usize::from(choice >> 1)), whole);
}

/// Reads the bytes that follow a body on the connection.
struct BytesAfterBody<'c>(&'c mut BufferedConnection);

impl Read for BytesAfterBody<'_> {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        self.0.read(room)
    }
}
