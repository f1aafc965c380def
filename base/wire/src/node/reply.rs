//! Answers that are more than one of the store's types.

use std::ops::Range;

use fordway_store::{Error, ErrorKind, ObjectInfo, PutResult, Result};

use super::FRAME_BYTES_MAX;
use super::fields::{Input, Put, Take, malformed};
use super::frame::{Flags, Frame, HEADER_BYTES, begin_frame, end_frame};

/// The code of a reply that answers what was asked for.
pub(super) const DONE: u8 = 0;
/// The code of a reply that is an error.
pub(super) const FAILED: u8 = 1;

/// How content comes with a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// As the frame's body.
    Inline,
    /// As this many bytes behind the frame.
    Stream(u64),
    /// As bytes of the file whose descriptor came along: offset and length.
    Descriptor(u64, u64),
}

/// The answer to `Get`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Got {
    /// The object.
    pub info: ObjectInfo,
    /// The bytes of it that are sent.
    pub range: Range<u64>,
    /// How they are sent.
    pub sent: Sent,
}

/// The answer to `Read`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadDone {
    /// Bytes in the whole object.
    pub size: u64,
    /// How those that were asked for are sent.
    pub sent: Sent,
}

/// The answer to `Start` and `StartPart`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Started {
    /// Whether a descriptor came along, to which the content can be written from its first byte on.
    pub has_file: bool,
}

/// The answer to `Commit`, and to `PutSpare` where that was done.
#[derive(Clone, Debug)]
pub struct Committed {
    /// The object.
    pub made: PutResult,
    /// Whether a descriptor came along, to which the content of the next object can be written.
    pub has_spare: bool,
}

impl Put for Sent {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Sent::Inline => out.push(0),
            Sent::Stream(len) => (1u8, *len).put(out),
            Sent::Descriptor(offset, len) => (2u8, (*offset, *len)).put(out),
        }
    }
}

impl Take for Sent {
    fn take(input: &mut Input<'_>) -> Result<Self> {
        match u8::take(input)? {
            0 => Ok(Sent::Inline),
            1 => Ok(Sent::Stream(u64::take(input)?)),
            2 => Ok(Sent::Descriptor(u64::take(input)?, u64::take(input)?)),
            _ => Err(malformed("there is no such way to send content")),
        }
    }
}

impl Put for Got {
    fn put(&self, out: &mut Vec<u8>) {
        self.info.put(out);
        (self.range.start, self.range.end).put(out);
        self.sent.put(out);
    }
}

impl Take for Got {
    fn take(input: &mut Input<'_>) -> Result<Self> {
        let (info, (start, end)) = Take::take(input)?;
        Ok(Got { info, range: start..end, sent: Sent::take(input)? })
    }
}

impl Put for ReadDone {
    fn put(&self, out: &mut Vec<u8>) {
        (self.size, self.sent).put(out);
    }
}

impl Take for ReadDone {
    fn take(input: &mut Input<'_>) -> Result<Self> {
        let (size, sent) = Take::take(input)?;
        Ok(ReadDone { size, sent })
    }
}

impl Put for Started {
    fn put(&self, out: &mut Vec<u8>) {
        self.has_file.put(out);
    }
}

impl Take for Started {
    fn take(input: &mut Input<'_>) -> Result<Self> {
        Ok(Started { has_file: bool::take(input)? })
    }
}

impl Put for Committed {
    fn put(&self, out: &mut Vec<u8>) {
        self.made.put(out);
        self.has_spare.put(out);
    }
}

impl Take for Committed {
    fn take(input: &mut Input<'_>) -> Result<Self> {
        Ok(Committed { made: Take::take(input)?, has_spare: Take::take(input)? })
    }
}

/// Reads the reply of a frame. Errors: the one that the gateway answered; `BadResponse` for what is
/// no reply.
pub fn take_reply<T: Take>(frame: &Frame<'_>) -> Result<T> {
    let bad = |error: Error| Error::new(ErrorKind::BadResponse, error.detail());
    match frame.header.code {
        DONE => Input::all(frame.fields).map_err(bad),
        FAILED => Err(Input::all::<Error>(frame.fields).unwrap_or_else(bad)),
        _ => Err(bad(malformed("there is no such reply"))),
    }
}

/// A reply as it is sent, but for its body.
#[derive(Debug)]
pub struct Reply<'a, T> {
    /// The id of the request.
    pub id: u32,
    /// See [`Flags`].
    pub flags: Flags,
    /// What is answered.
    pub answer: Result<&'a T, &'a Error>,
    /// Bytes of body that follow.
    pub body_bytes: usize,
}

impl<T: Put> Reply<'_, T> {
    /// Appends the reply but for its body. An answer that no frame has room for becomes an error.
    pub fn put(&self, out: &mut Vec<u8>) {
        let start = begin_frame(out);
        let room = FRAME_BYTES_MAX.saturating_sub(self.body_bytes);
        if let Ok(answer) = self.answer {
            answer.put(out);
            if out.len() - start - HEADER_BYTES <= room {
                return end_frame(out, start, (self.id, DONE, self.flags), self.body_bytes);
            }
            out.truncate(start + HEADER_BYTES);
        }
        let too_long = || Error::new(ErrorKind::EntityTooLarge, "the answer is longer than a message may be");
        self.answer.err().unwrap_or(&too_long()).put(out);
        end_frame(out, start, (self.id, FAILED, self.flags), self.body_bytes);
    }
}
