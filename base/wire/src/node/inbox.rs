//! Bytes as they arrive, and the frames in them.

use fordway_store::Result;

use super::frame::{Frame, Header};

/// What is made room for at once; more only for a frame that needs it.
const ROOM_BYTES: usize = 72 << 10;

/// A buffer between a socket, which fills it, and a reader of frames.
#[derive(Debug, Default)]
pub struct Inbox {
    /// All of it is initialised, so that a socket can write anywhere.
    buffer: Vec<u8>,
    start: usize,
    end: usize,
}

impl Inbox {
    /// What has arrived and was not taken.
    pub fn waiting(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// The header of the frame that comes next; `None` until the whole of that frame is there.
    /// Errors: `InvalidArgument` for what is no frame.
    pub fn next_header(&self) -> Result<Option<Header>> {
        let header = Header::read(self.waiting())?;
        Ok(header.filter(|header| header.frame_bytes() <= self.waiting().len()))
    }

    /// The frame with the header that [`Inbox::next_header`] answered.
    pub fn frame(&self, header: &Header) -> Option<Frame<'_>> {
        header.frame(self.waiting())
    }

    /// Drops the first `count` bytes.
    pub fn consume(&mut self, count: usize) {
        self.start = (self.start + count).min(self.end);
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Room for what arrives next: at least for the rest of the frame that has begun. Memory beyond
    /// 72 KiB is taken as bytes of a long frame do arrive, twice as much at a time.
    pub fn room(&mut self) -> &mut [u8] {
        let waiting = self.end - self.start;
        if self.start > 0 && self.buffer.len() - self.end < ROOM_BYTES / 2 {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, waiting);
        }
        if self.end == self.buffer.len() {
            let room = self.begun_bytes().min(2 * waiting).max(ROOM_BYTES).max(waiting + HEADROOM_BYTES);
            // Not twice as much, as a vector would.
            self.buffer.reserve_exact(room.saturating_sub(self.buffer.len()));
            self.buffer.resize(room, 0);
        }
        &mut self.buffer[self.end..]
    }

    /// Bytes of the frame that has begun to arrive, its header included; 0 until that is there.
    pub fn begun_bytes(&self) -> usize {
        Header::read(self.waiting()).ok().flatten().map_or(0, |header| header.frame_bytes())
    }

    /// Says that `count` bytes of the room were filled.
    pub fn filled(&mut self, count: usize) {
        self.end = (self.end + count).min(self.buffer.len());
    }

    /// Bytes of memory it holds.
    pub fn capacity_bytes(&self) -> usize {
        self.buffer.capacity()
    }

    /// Gives memory beyond `keep_bytes` (at least 72 KiB) back, if nothing is waiting.
    pub fn shrink(&mut self, keep_bytes: usize) {
        let keep = keep_bytes.max(ROOM_BYTES);
        if self.start == self.end && self.buffer.capacity() > keep {
            self.buffer.truncate(keep);
            self.buffer.shrink_to_fit();
        }
    }
}

/// The least room that a call of the operating system is worth.
const HEADROOM_BYTES: usize = 4 << 10;

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use fordway_store::Bucket;

    use super::super::{HEADER_BYTES, Request};
    use super::*;

    fn feed(inbox: &mut Inbox, mut bytes: &[u8], at_once: usize) {
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
            let (mut inbox, mut found) = (Inbox::default(), Vec::new());
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

    /// Sixteen bytes that announce sixteen million take no memory.
    #[test]
    fn an_announcement_takes_no_memory() {
        let mut inbox = Inbox::default();
        let mut bytes = Vec::new();
        Request::Append {}.put(&mut bytes, 1, 16 << 20);
        feed(&mut inbox, &bytes[..HEADER_BYTES], 16);
        inbox.room();
        assert!(inbox.next_header().unwrap().is_none());
        assert!(inbox.capacity_bytes() <= 72 << 10, "{}", inbox.capacity_bytes());
    }
}
