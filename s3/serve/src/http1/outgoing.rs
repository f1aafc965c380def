//! Encodes the heads of responses, and sends responses to the socket.

use std::cell::RefCell;
use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use fordway_store::{FileRegion, ObjectContent};
use fordway_wire::date::http_date;
use http::{HeaderName, Response, StatusCode, header};
use http_body::Body as _;

use crate::answer::PreparedBody;
use crate::buffers::{give_buffer, take_buffer};
use crate::content::{ContentPieces, MultipartContent, PIECE_BYTES, RangeSource, append, append_part};
use crate::http1::wire::BufferedSocket;

/// The maximum size of a body that is copied into the buffer after the head. One call then sends the head and the body.
/// Up to this size, copying a file costs less than `sendfile`.
const INLINE_BYTES: u64 = 64 * 1024;

/// The response that is sent if the content of the intended response cannot be read.
const UNREADABLE: &[u8] =
    b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";

/// The properties of the request that determine the form of its response.
#[derive(Clone, Copy)]
pub(crate) struct ResponseConstraints {
    /// Whether the client accepts the chunked transfer coding.
    pub(crate) is_http_1_1: bool,
    /// Whether the response consists only of its head, because the method is HEAD.
    pub(crate) is_head: bool,
}

/// A response that is complete except for its last headers.
pub(crate) struct OutgoingResponse {
    pub(crate) status: StatusCode,
    /// The number of bytes of the body, if known.
    pub(crate) body_bytes: Option<u64>,
    head: Vec<u8>,
    body: OutgoingBody,
    /// Whether only the end of the connection marks the end of the body.
    ends_connection: bool,
}

enum OutgoingBody {
    Nothing,
    Bytes(Bytes),
    File(FileRegion),
    Pieces(ContentPieces),
    /// A body from the S3 layer, and whether the body is sent in chunks.
    Stream(s3s::Body, bool),
    Parts(MultipartContent),
}

impl OutgoingResponse {
    pub(crate) fn new(response: Response<PreparedBody>, form: ResponseConstraints) -> Self {
        let (parts, reply) = response.into_parts();
        let mut head = start(parts.status);
        for (name, value) in &parts.headers {
            if !is_of_the_connection(name) {
                put(&mut head, name.as_str(), value.as_bytes());
            }
        }
        let may_have_body =
            parts.status != StatusCode::NO_CONTENT && parts.status != StatusCode::NOT_MODIFIED;
        let body_bytes = reply.len();
        let length = body_bytes.filter(|_| may_have_body);
        let is_stated = parts.headers.contains_key(header::CONTENT_LENGTH);
        if let Some(length) = length.filter(|_| !is_stated) {
            put_number(&mut head, "content-length", length);
        }
        let is_chunked = may_have_body && length.is_none() && !is_stated;
        if is_chunked && form.is_http_1_1 {
            put(&mut head, "transfer-encoding", b"chunked");
        }
        let body = match may_have_body && !form.is_head {
            true => OutgoingBody::new(reply, is_chunked && form.is_http_1_1),
            false => OutgoingBody::Nothing,
        };
        let ends_connection = is_chunked && !form.is_http_1_1;
        let body_bytes = if matches!(body, OutgoingBody::Nothing) { Some(0) } else { body_bytes };
        OutgoingResponse { status: parts.status, body_bytes, head, body, ends_connection }
    }

    /// Returns a response whose head is complete except for the connection's headers.
    pub(crate) fn written(status: StatusCode, head: Vec<u8>, reply: PreparedBody) -> Self {
        let body_bytes = reply.len();
        OutgoingResponse {
            status,
            body_bytes,
            head,
            body: OutgoingBody::new(reply, false),
            ends_connection: false,
        }
    }

    /// Adds a header. `name` must be in lower case.
    pub(crate) fn add_header(&mut self, name: &str, value: &str) {
        put(&mut self.head, name, value.as_bytes());
    }

    /// Returns whether the connection cannot be used after this response.
    pub(crate) fn ends_connection(&self) -> bool {
        self.ends_connection
    }

    /// Sends the response, and tells the client whether the connection remains open. Errors: the connection is no
    /// longer usable, because the client is gone or the content ended early.
    pub(crate) async fn send(
        mut self,
        wire: &mut BufferedSocket,
        keep_alive: bool,
        form: ResponseConstraints,
    ) -> io::Result<()> {
        put(&mut self.head, "date", &date());
        match (keep_alive, form.is_http_1_1) {
            (false, _) => put(&mut self.head, "connection", b"close"),
            (true, false) => put(&mut self.head, "connection", b"keep-alive"),
            (true, true) => {}
        }
        self.head.extend_from_slice(b"\r\n");
        let sent = self.body.send(wire, &mut self.head).await;
        give_buffer(self.head);
        sent
    }
}

impl OutgoingBody {
    fn new(reply: PreparedBody, is_chunked: bool) -> Self {
        match reply {
            PreparedBody::Nothing => OutgoingBody::Nothing,
            PreparedBody::Content(ObjectContent::Bytes(bytes)) => OutgoingBody::Bytes(bytes),
            PreparedBody::Content(ObjectContent::File(region)) => OutgoingBody::File(region),
            PreparedBody::Content(stream @ ObjectContent::Stream(..)) => {
                OutgoingBody::Pieces(ContentPieces::new(stream))
            }
            PreparedBody::Parts(parts) => OutgoingBody::Parts(parts),
            PreparedBody::Remote(region) => OutgoingBody::Pieces(ContentPieces::Remote(region)),
            PreparedBody::Document(document) => match document.bytes() {
                Some(bytes) => OutgoingBody::Bytes(bytes),
                None => OutgoingBody::Stream(document, is_chunked),
            },
        }
    }

    async fn send(self, wire: &mut BufferedSocket, head: &mut Vec<u8>) -> io::Result<()> {
        match self {
            OutgoingBody::Nothing => wire.send(head).await,
            OutgoingBody::Bytes(bytes) => wire.send_both(head, &bytes).await,
            OutgoingBody::File(region) if region.len <= INLINE_BYTES => {
                if let Err(error) = append(&region.file, range_of(&region), head).await {
                    wire.send(UNREADABLE).await?;
                    return Err(error);
                }
                wire.send(head).await
            }
            OutgoingBody::File(region) => {
                wire.send_before_file(head).await?;
                wire.send_file(&region.file, range_of(&region)).await
            }
            OutgoingBody::Pieces(pieces) => send_pieces(wire, head, pieces).await,
            OutgoingBody::Parts(parts) => send_parts(wire, head, parts).await,
            OutgoingBody::Stream(body, is_chunked) => send_stream(wire, head, body, is_chunked).await,
        }
    }
}

fn range_of(region: &FileRegion) -> Range<u64> {
    region.offset..region.offset + region.len
}

/// Sends the parts one after another; gathers small parts in `buffer`, so that one call sends many of them.
async fn send_parts(
    wire: &mut BufferedSocket,
    buffer: &mut Vec<u8>,
    parts: MultipartContent,
) -> io::Result<()> {
    let MultipartContent { source, ranges, texts, .. } = parts;
    for range in ranges {
        buffer.extend_from_slice(texts.before(&range).as_bytes());
        match &source {
            RangeSource::File(region) if range.end - range.start > INLINE_BYTES => {
                wire.send_before_file(buffer).await?;
                buffer.clear();
                let place = region.offset + range.start..region.offset + range.end;
                wire.send_file(&region.file, place).await?;
            }
            RangeSource::Remote(_) => {
                for start in range.clone().step_by(PIECE_BYTES as usize) {
                    append_part(&source, start..range.end.min(start + PIECE_BYTES), buffer).await?;
                    wire.send_before_file(buffer).await?;
                    buffer.clear();
                }
            }
            source => append_part(source, range, buffer).await?,
        }
        if buffer.len() as u64 >= INLINE_BYTES {
            wire.send_before_file(buffer).await?;
            buffer.clear();
        }
    }
    buffer.extend_from_slice(texts.end().as_bytes());
    wire.send(buffer).await
}

async fn send_pieces(wire: &mut BufferedSocket, head: &[u8], mut pieces: ContentPieces) -> io::Result<()> {
    wire.send_before_file(head).await?;
    while pieces.len() > 0 {
        let piece;
        (piece, pieces) = pieces.next(PIECE_BYTES).await?;
        wire.send(&piece).await?;
    }
    Ok(())
}

async fn send_stream(
    wire: &mut BufferedSocket,
    head: &[u8],
    mut body: s3s::Body,
    is_chunked: bool,
) -> io::Result<()> {
    wire.send_before_file(head).await?;
    while let Some(frame) = std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
        let Ok(data) = frame.map_err(io::Error::other)?.into_data() else { continue };
        if is_chunked && !data.is_empty() {
            wire.send(format!("{:x}\r\n", data.len()).as_bytes()).await?;
            wire.send_both(&data, b"\r\n").await?;
        } else {
            wire.send(&data).await?;
        }
    }
    wire.send(if is_chunked { b"0\r\n\r\n" } else { b"" }).await
}

/// Returns whether only the connection may write the header. Such a header in a response of the S3 layer is not sent.
fn is_of_the_connection(name: &HeaderName) -> bool {
    [header::CONNECTION, header::TRANSFER_ENCODING, header::DATE].contains(name)
}

/// Starts a head with its status line.
pub(crate) fn start(status: StatusCode) -> Vec<u8> {
    let mut head = take_buffer();
    head.extend_from_slice(b"HTTP/1.1 ");
    head.extend_from_slice(status.as_str().as_bytes());
    head.push(b' ');
    head.extend_from_slice(status.canonical_reason().unwrap_or_default().as_bytes());
    head.extend_from_slice(b"\r\n");
    head
}

/// Appends a header.
pub(crate) fn put(head: &mut Vec<u8>, name: &str, value: &[u8]) {
    head.extend_from_slice(name.as_bytes());
    head.extend_from_slice(b": ");
    head.extend_from_slice(value);
    head.extend_from_slice(b"\r\n");
}

/// The maximum number of digits of a 64-bit number.
const DIGITS_MAX: usize = 20;

/// Appends a header whose value is a number. Cost: no allocation.
pub(crate) fn put_number(head: &mut Vec<u8>, name: &str, value: u64) {
    let (mut digits, mut rest) = ([b'0'; DIGITS_MAX], value);
    let mut start = digits.len();
    loop {
        start -= 1;
        digits[start] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            return put(head, name, &digits[start..]);
        }
    }
}

/// Returns the current time in the format of `Date`. Cost: each thread formats the time once a second.
fn date() -> [u8; 29] {
    thread_local! {
        static WRITTEN: RefCell<(u64, [u8; 29])> = const { RefCell::new((0, [b' '; 29])) };
    }
    let now = SystemTime::now();
    let second = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    WRITTEN.with_borrow_mut(|(written, text)| {
        if *written != second {
            *written = second;
            *text = http_date(now);
        }
        *text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_any_length_are_written() {
        for number in [0, 9, 10, 4096, u64::MAX] {
            let mut head = Vec::new();
            put_number(&mut head, "content-length", number);
            assert_eq!(String::from_utf8(head).unwrap(), format!("content-length: {number}\r\n"));
        }
    }

    #[test]
    fn what_an_answer_says_of_its_length() {
        let written = |status: u16, reply: PreparedBody, is_http_1_1: bool| {
            let mut response = Response::new(reply);
            *response.status_mut() = StatusCode::from_u16(status).unwrap();
            let outgoing =
                OutgoingResponse::new(response, ResponseConstraints { is_http_1_1, is_head: false });
            (String::from_utf8(outgoing.head).unwrap(), outgoing.ends_connection)
        };
        let bytes = || PreparedBody::Content(ObjectContent::Bytes(Bytes::from_static(b"hello")));
        assert_eq!(written(200, bytes(), true).0, "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n");
        assert_eq!(written(204, PreparedBody::Nothing, true).0, "HTTP/1.1 204 No Content\r\n");
        assert_eq!(written(304, bytes(), true).0, "HTTP/1.1 304 Not Modified\r\n");
        assert_eq!(written(200, PreparedBody::Nothing, true).0, "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n");
        let unknown = || PreparedBody::Document(s3s::Body::http_body_unsync(UnknownLengthBody));
        let (head, ends_connection) = written(200, unknown(), true);
        assert!(head.ends_with("transfer-encoding: chunked\r\n") && !ends_connection);
        let (head, ends_connection) = written(200, unknown(), false);
        assert!(!head.contains("chunked") && ends_connection);
    }

    /// A body of unknown length.
    struct UnknownLengthBody;

    impl http_body::Body for UnknownLengthBody {
        type Data = Bytes;
        type Error = std::convert::Infallible;

        fn poll_frame(
            self: Pin<&mut Self>,
            _context: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Option<Result<http_body::Frame<Bytes>, Self::Error>>> {
            std::task::Poll::Pending
        }
    }
}
