//! The frames of the node lane: the messages between a client and the gateway of its node.
//!
//! This module works on bytes; the sockets are in `client` and `serve`. `docs/reference/wire.md` documents the
//! protocol.
//!
//! * `handshake`: the first bytes of each side, and the proof of knowing a secret
//! * `fields`: the elements of messages, and the store's own types as fields
//! * `request`: every operation, and its response
//!
//! This file splits the bytes of a connection into frames. A [`FrameBuffer`] stores bytes as they arrive, and finds the
//! frames in them.
//!
//! ```text
//! 0   4   length of all that follows the header: fields, then body
//! 4   4   id, which the response repeats
//! 8   4   length of the body
//! 12  1   code: in a request, the operation; in a response, 0 (done) or 1 (failed)
//! 13  1   flags
//! 14  2   zero
//! ```

mod fields;
mod handshake;
mod request;

pub use fields::{MessageCursor, ReadField, WriteField};
pub use handshake::{
    CLIENT_HELLO_BYTES, GATEWAY_HELLO_BYTES, HandshakeProof, HandshakeSide, MAGIC, NONCE_BYTES,
    NodeClientHello, NodeGatewayHello, VERSION,
};
pub use request::{
    CommitResponse, ContentTransferMethod, GetResponse, NodeResponse, ReadResponse, Request,
    StartWriteResponse, longest_bytes, take_reply,
};

use fordway_store::Result;

use self::fields::malformed;

/// The maximum length of a frame from either side, without its header.
pub const FRAME_BYTES_MAX: usize = 16 << 20;
/// The maximum length of a request's fields. Decoded fields take several times as much memory.
pub const FIELDS_BYTES_MAX: usize = 2 << 20;
/// The maximum number of objects in one batch request.
pub const BATCH_OBJECTS_MAX: usize = 1024;
/// The maximum total number of bytes of content in the ranges of one `ReadRanges`.
pub const RANGES_BYTES_MAX: u64 = 8 << 20;
/// The maximum number of bytes of content sent inline in a response. For larger content, a descriptor is cheaper.
pub const INLINE_BYTES_MAX: usize = 64 << 10;
/// The maximum number of entries in one page of a listing.
pub const PAGE_ENTRIES_MAX: usize = 4096;

/// The length of a header.
pub const HEADER_BYTES: usize = 16;

/// Flags of a response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResponseFlags(pub u8);

impl ResponseFlags {
    /// A descriptor was passed with the frame's first byte.
    pub const DESCRIPTOR: ResponseFlags = ResponseFlags(1);
    /// Content follows the frame; the fields contain its length in bytes.
    pub const STREAM: ResponseFlags = ResponseFlags(2);
    /// The gateway polls for the next request without sleeping, and the client may do the same.
    pub const AWAKE: ResponseFlags = ResponseFlags(4);
    /// Another response to the same request follows.
    pub const MORE: ResponseFlags = ResponseFlags(8);
    /// The gateway's thread has moved to another processor, because the client may be running on the gateway's previous
    /// processor. Polling may therefore succeed again.
    pub const MOVED: ResponseFlags = ResponseFlags(16);

    /// Returns whether all of `flags` are set.
    pub const fn has(self, flags: ResponseFlags) -> bool {
        self.0 & flags.0 == flags.0
    }

    /// Returns these flags combined with `flags`.
    pub const fn with(self, flags: ResponseFlags) -> ResponseFlags {
        ResponseFlags(self.0 | flags.0)
    }
}

/// The header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// The number of bytes that follow: fields and body.
    pub length: u32,
    /// The number that the client chooses, and that the gateway repeats in the response.
    pub id: u32,
    /// The length of the body, which comes last.
    pub body_bytes: u32,
    /// The operation of a request, or the outcome in a response.
    pub code: u8,
    /// See [`ResponseFlags`].
    pub flags: ResponseFlags,
}

/// A frame that has arrived completely.
#[derive(Clone, Copy, Debug)]
pub struct ReceivedFrame<'a> {
    /// The header.
    pub header: FrameHeader,
    /// The encoded fields.
    pub fields: &'a [u8],
    /// The body.
    pub body: &'a [u8],
}

impl FrameHeader {
    /// Parses the header at the beginning of `input`; returns `None` if the input is too short for a header. Errors:
    /// `InvalidArgument` for a length over [`FRAME_BYTES_MAX`] and for bytes that are not a header.
    pub fn read(input: &[u8]) -> Result<Option<FrameHeader>> {
        let Some((bytes, _)) = input.split_first_chunk::<HEADER_BYTES>() else { return Ok(None) };
        let number = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let (length, id, body_bytes) = (number(0), number(4), number(8));
        if length as usize > FRAME_BYTES_MAX {
            return Err(malformed(&format!("{length} bytes are more than {FRAME_BYTES_MAX}")));
        }
        if body_bytes > length || bytes[14..] != [0, 0] {
            return Err(malformed("this is not a frame header"));
        }
        Ok(Some(FrameHeader { length, id, body_bytes, code: bytes[12], flags: ResponseFlags(bytes[13]) }))
    }

    /// Returns the length of the whole frame, including this header.
    pub fn frame_bytes(&self) -> usize {
        HEADER_BYTES + self.length as usize
    }

    /// Returns the frame at the beginning of `input`; `None` until all of it has arrived.
    pub fn frame<'a>(&self, input: &'a [u8]) -> Option<ReceivedFrame<'a>> {
        let whole = input.get(HEADER_BYTES..self.frame_bytes())?;
        let (fields, body) = whole.split_at(whole.len() - self.body_bytes as usize);
        Some(ReceivedFrame { header: *self, fields, body })
    }
}

/// Reserves space for a header at the end of `out`; the caller then appends the fields. Returns the start of the frame,
/// for [`end_frame`].
pub fn begin_frame(out: &mut Vec<u8>) -> usize {
    let start = out.len();
    out.extend_from_slice(&[0; HEADER_BYTES]);
    start
}

/// Writes the header of the frame that was begun at `start`. The caller sends `body_bytes` bytes of body after the
/// bytes in `out`.
pub fn end_frame(
    out: &mut [u8],
    start: usize,
    (id, code, flags): (u32, u8, ResponseFlags),
    body_bytes: usize,
) {
    let length = out.len() - start - HEADER_BYTES + body_bytes;
    debug_assert!(length <= FRAME_BYTES_MAX, "a frame of {length} bytes");
    let header = &mut out[start..start + HEADER_BYTES];
    header[0..4].copy_from_slice(&(length as u32).to_le_bytes());
    header[4..8].copy_from_slice(&id.to_le_bytes());
    header[8..12].copy_from_slice(&(body_bytes as u32).to_le_bytes());
    header[12..].copy_from_slice(&[code, flags.0, 0, 0]);
}

/// The initial size of the buffer, which grows only for a larger frame.
const ROOM_BYTES: usize = 72 << 10;

/// A buffer between a socket, which fills it, and a reader of frames.
#[derive(Debug, Default)]
pub struct FrameBuffer {
    /// The buffer's memory, which is fully initialised, so that a socket can write to any part of it.
    buffer: Vec<u8>,
    start: usize,
    end: usize,
}

impl FrameBuffer {
    /// Returns the bytes that have arrived and are not consumed yet.
    pub fn waiting(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// Returns the header of the next frame; `None` until that frame has arrived completely. Errors: `InvalidArgument`
    /// if the bytes are not a frame.
    pub fn next_header(&self) -> Result<Option<FrameHeader>> {
        let header = FrameHeader::read(self.waiting())?;
        Ok(header.filter(|header| header.frame_bytes() <= self.waiting().len()))
    }

    /// Returns the frame with the header that [`FrameBuffer::next_header`] returned.
    pub fn frame(&self, header: &FrameHeader) -> Option<ReceivedFrame<'_>> {
        header.frame(self.waiting())
    }

    /// Drops the first `count` bytes.
    pub fn consume(&mut self, count: usize) {
        self.start = (self.start + count).min(self.end);
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Returns space for the next bytes, which may be smaller than the rest of the frame that has begun. Memory beyond
    /// 72 KiB is allocated only as the bytes of a long frame arrive; the buffer at most doubles each time.
    pub fn room(&mut self) -> &mut [u8] {
        let waiting = self.end - self.start;
        if self.start > 0 && self.buffer.len() - self.end < ROOM_BYTES / 2 {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, waiting);
        }
        if self.end == self.buffer.len() {
            let room = self.begun_bytes().min(2 * waiting).max(ROOM_BYTES).max(waiting + HEADROOM_BYTES);
            // The exact size is reserved, because a vector would otherwise double its capacity.
            self.buffer.reserve_exact(room.saturating_sub(self.buffer.len()));
            self.buffer.resize(room, 0);
        }
        &mut self.buffer[self.end..]
    }

    /// Returns the length of the frame that has begun to arrive, including its header; 0 until the header is complete.
    pub fn begun_bytes(&self) -> usize {
        FrameHeader::read(self.waiting()).ok().flatten().map_or(0, |header| header.frame_bytes())
    }

    /// Records that `count` bytes of the space were filled.
    pub fn filled(&mut self, count: usize) {
        self.end = (self.end + count).min(self.buffer.len());
    }

    /// Returns the size of the buffer's memory in bytes.
    pub fn capacity_bytes(&self) -> usize {
        self.buffer.capacity()
    }

    /// Frees memory beyond `keep_bytes` (72 KiB or more), if no bytes are waiting.
    pub fn shrink(&mut self, keep_bytes: usize) {
        let keep = keep_bytes.max(ROOM_BYTES);
        if self.start == self.end && self.buffer.capacity() > keep {
            self.buffer.truncate(keep);
            self.buffer.shrink_to_fit();
        }
    }
}

/// The minimum amount of space that is worth a system call.
const HEADROOM_BYTES: usize = 4 << 10;

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use fordway_store::Bucket;

    use super::{HEADER_BYTES, Request, WriteField, *};

    #[test]
    fn a_frame_is_found_again_only_when_it_is_whole() {
        let mut out = b"before".to_vec();
        let start = begin_frame(&mut out);
        out.extend_from_slice(b"fields");
        end_frame(&mut out, start, (7, 3, ResponseFlags::STREAM), 4);
        out.extend_from_slice(b"body and what comes behind");
        let input = &out[start..];
        let header = FrameHeader::read(input).unwrap().unwrap();
        assert_eq!((header.id, header.code, header.length, header.body_bytes), (7, 3, 10, 4));
        assert!(header.flags.has(ResponseFlags::STREAM) && !header.flags.has(ResponseFlags::DESCRIPTOR));
        let frame = header.frame(input).unwrap();
        assert_eq!((frame.fields, frame.body), (&b"fields"[..], &b"body"[..]));
        for len in 0..header.frame_bytes() {
            let arrived = &input[..len];
            let header = FrameHeader::read(arrived).unwrap();
            assert!(header.is_none_or(|header| header.frame(arrived).is_none()), "{len} bytes");
        }
    }

    #[test]
    fn what_is_no_header_is_refused() {
        let header = |length: u32, body: u32, zero: u8| {
            let mut bytes = Vec::new();
            (length, (1u32, (body, [1, 0, zero, 0]))).put(&mut bytes);
            FrameHeader::read(&bytes)
        };
        assert!(header(FRAME_BYTES_MAX as u32, 0, 0).unwrap().is_some());
        for refused in [header(FRAME_BYTES_MAX as u32 + 1, 0, 0), header(3, 4, 0), header(3, 3, 1)] {
            assert_eq!(refused.unwrap_err().kind(), fordway_store::ErrorKind::InvalidArgument);
        }
    }

    fn feed(inbox: &mut FrameBuffer, mut bytes: &[u8], at_once: usize) {
        while !bytes.is_empty() {
            let room = inbox.room();
            let count = bytes.len().min(at_once).min(room.len());
            room[..count].copy_from_slice(&bytes[..count]);
            inbox.filled(count);
            bytes = &bytes[count..];
        }
    }

    #[test]
    fn frames_come_out_whole_however_they_arrive() {
        let bucket = Bucket::new("b").unwrap();
        let mut bytes = Vec::new();
        let bodies = [0, 1, 70_000, 5, 300_000, 0, 72 << 10];
        for (id, body) in bodies.iter().enumerate() {
            Request::HeadBucket { bucket: Cow::Borrowed(&bucket) }.put(&mut bytes, id as u32, *body);
            bytes.resize(bytes.len() + body, id as u8);
        }
        for at_once in [1, 15, 16, 4096, 100_000, usize::MAX] {
            let (mut inbox, mut found) = (FrameBuffer::default(), Vec::new());
            for piece in bytes.chunks(at_once.min(bytes.len())) {
                feed(&mut inbox, piece, at_once);
                while let Some(header) = inbox.next_header().unwrap() {
                    let frame = inbox.frame(&header).unwrap();
                    assert!(frame.body.iter().all(|byte| u32::from(*byte) == header.id));
                    found.push(frame.body.len());
                    inbox.consume(header.frame_bytes());
                }
            }
            assert_eq!(found, bodies, "{at_once} at a time");
            assert!(inbox.waiting().is_empty());
            inbox.shrink(0);
            assert!(inbox.capacity_bytes() <= 72 << 10);
        }
    }

    /// A header of 16 bytes that announces a body of 16 MiB must not cause an allocation of 16 MiB.
    #[test]
    fn an_announcement_takes_no_memory() {
        let mut inbox = FrameBuffer::default();
        let mut bytes = Vec::new();
        Request::Append {}.put(&mut bytes, 1, 16 << 20);
        feed(&mut inbox, &bytes[..HEADER_BYTES], 16);
        inbox.room();
        assert!(inbox.next_header().unwrap().is_none());
        assert!(inbox.capacity_bytes() <= 72 << 10, "{}", inbox.capacity_bytes());
    }
}
