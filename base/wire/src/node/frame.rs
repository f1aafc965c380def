//! Where a message begins and ends.
//!
//! ```text
//! 0   4   length of all that follows the header: fields, then body
//! 4   4   id, which the reply repeats
//! 8   4   length of the body
//! 12  1   code: the operation of a request; 0 (done) or 1 (failed) of a reply
//! 13  1   flags
//! 14  2   zero
//! ```

use fordway_store::Result;

use super::FRAME_BYTES_MAX;
use super::fields::malformed;

/// The length of a header.
pub const HEADER_BYTES: usize = 16;

/// Flags of a reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(pub u8);

impl Flags {
    /// A descriptor came with the frame's first byte.
    pub const DESCRIPTOR: Flags = Flags(1);
    /// Content follows the frame, as many bytes as its fields say.
    pub const STREAM: Flags = Flags(2);
    /// The gateway looks out for the next request without sleeping, and the client may do the same.
    pub const AWAKE: Flags = Flags(4);
    /// Another reply to the same request follows.
    pub const MORE: Flags = Flags(8);

    /// Whether all of `flags` are set.
    pub const fn has(self, flags: Flags) -> bool {
        self.0 & flags.0 == flags.0
    }

    /// These and `flags`.
    pub const fn with(self, flags: Flags) -> Flags {
        Flags(self.0 | flags.0)
    }
}

/// The header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Bytes that follow it: fields and body.
    pub length: u32,
    /// Chosen by the client, repeated by the server.
    pub id: u32,
    /// How many of the bytes, the last ones, are the body.
    pub body_bytes: u32,
    /// What is asked for, or how it went.
    pub code: u8,
    /// See [`Flags`].
    pub flags: Flags,
}

/// A frame that has arrived whole.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// Its header.
    pub header: Header,
    /// What it says.
    pub fields: &'a [u8],
    /// The content it carries.
    pub body: &'a [u8],
}

impl Header {
    /// The header at the beginning of `input`; `None` if that is too short for one.
    /// Errors: `InvalidArgument` for a length over [`FRAME_BYTES_MAX`] and for what is no header.
    pub fn read(input: &[u8]) -> Result<Option<Header>> {
        let Some((bytes, _)) = input.split_first_chunk::<HEADER_BYTES>() else { return Ok(None) };
        let number = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let (length, id, body_bytes) = (number(0), number(4), number(8));
        if length as usize > FRAME_BYTES_MAX {
            return Err(malformed(&format!("{length} bytes are more than {FRAME_BYTES_MAX}")));
        }
        if body_bytes > length || bytes[14..] != [0, 0] {
            return Err(malformed("this is no header of a frame"));
        }
        Ok(Some(Header { length, id, body_bytes, code: bytes[12], flags: Flags(bytes[13]) }))
    }

    /// Bytes of the whole frame, this header included.
    pub fn frame_bytes(&self) -> usize {
        HEADER_BYTES + self.length as usize
    }

    /// The frame that `input` begins with; `None` until all of it has arrived.
    pub fn frame<'a>(&self, input: &'a [u8]) -> Option<Frame<'a>> {
        let whole = input.get(HEADER_BYTES..self.frame_bytes())?;
        let (fields, body) = whole.split_at(whole.len() - self.body_bytes as usize);
        Some(Frame { header: *self, fields, body })
    }
}

/// Makes room for a header at the end of `out`; what is appended then are the fields. Returns what
/// [`end_frame`] wants to know.
pub fn begin_frame(out: &mut Vec<u8>) -> usize {
    let start = out.len();
    out.extend_from_slice(&[0; HEADER_BYTES]);
    start
}

/// Writes the header of the frame that was begun at `start`; `body_bytes` of body follow what is in
/// `out`.
pub fn end_frame(out: &mut [u8], start: usize, (id, code, flags): (u32, u8, Flags), body_bytes: usize) {
    let length = out.len() - start - HEADER_BYTES + body_bytes;
    debug_assert!(length <= FRAME_BYTES_MAX, "a frame of {length} bytes");
    let header = &mut out[start..start + HEADER_BYTES];
    header[0..4].copy_from_slice(&(length as u32).to_le_bytes());
    header[4..8].copy_from_slice(&id.to_le_bytes());
    header[8..12].copy_from_slice(&(body_bytes as u32).to_le_bytes());
    header[12..].copy_from_slice(&[code, flags.0, 0, 0]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::Put;

    #[test]
    fn a_frame_is_found_again_only_when_it_is_whole() {
        let mut out = b"before".to_vec();
        let start = begin_frame(&mut out);
        out.extend_from_slice(b"fields");
        end_frame(&mut out, start, (7, 3, Flags::STREAM), 4);
        out.extend_from_slice(b"body and what comes behind");
        let input = &out[start..];
        let header = Header::read(input).unwrap().unwrap();
        assert_eq!((header.id, header.code, header.length, header.body_bytes), (7, 3, 10, 4));
        assert!(header.flags.has(Flags::STREAM) && !header.flags.has(Flags::DESCRIPTOR));
        let frame = header.frame(input).unwrap();
        assert_eq!((frame.fields, frame.body), (&b"fields"[..], &b"body"[..]));
        for len in 0..header.frame_bytes() {
            let arrived = &input[..len];
            let header = Header::read(arrived).unwrap();
            assert!(header.is_none_or(|header| header.frame(arrived).is_none()), "{len} bytes");
        }
    }

    #[test]
    fn what_is_no_header_is_refused() {
        let header = |length: u32, body: u32, zero: u8| {
            let mut bytes = Vec::new();
            (length, (1u32, (body, [1, 0, zero, 0]))).put(&mut bytes);
            Header::read(&bytes)
        };
        assert!(header(FRAME_BYTES_MAX as u32, 0, 0).unwrap().is_some());
        for refused in [header(FRAME_BYTES_MAX as u32 + 1, 0, 0), header(3, 4, 0), header(3, 3, 1)] {
            assert_eq!(refused.unwrap_err().kind(), fordway_store::ErrorKind::InvalidArgument);
        }
    }
}
