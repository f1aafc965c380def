//! Frames of the node lane.

use std::borrow::Cow;
use std::hint::black_box;

use fordway_store::{Bucket, ErrorKind, GetOptions, Key, Result};
use fordway_wire::node::{Flags, Header, Inbox, ReadDone, Reply, Request, Sent, take_reply};
use fordway_workload::ledger::Rung;

use super::files::name;

/// Writing and reading the frames of a read by the node lane: what both sides do but for the socket.
pub(in super::super) struct NodeFrames {
    bucket: Bucket,
    key: Key,
    options: GetOptions,
    size_bytes: u64,
    out: Vec<u8>,
    inbox: Inbox,
}

impl NodeFrames {
    pub(in super::super) fn new(bucket: &Bucket) -> Result<Self> {
        Ok(NodeFrames {
            bucket: bucket.clone(),
            key: Key::new(name(0))?,
            options: GetOptions::default(),
            size_bytes: 0,
            out: Vec::new(),
            inbox: Inbox::default(),
        })
    }

    /// The lengths of the request and of the reply without its body, in bytes.
    pub(in super::super) fn lengths(&mut self, size_bytes: u64) -> Result<(usize, usize)> {
        self.prepare(size_bytes)?;
        self.put_request();
        let request_bytes = self.out.len();
        self.put_reply();
        Ok((request_bytes, self.out.len()))
    }

    fn put_request(&mut self) {
        self.out.clear();
        let request = Request::Read {
            bucket: Cow::Borrowed(&self.bucket),
            key: Cow::Borrowed(&self.key),
            options: Cow::Borrowed(&self.options),
            is_large: false,
        };
        request.put(&mut self.out, 1, 0);
    }

    fn put_reply(&mut self) {
        self.out.clear();
        let answer = ReadDone { size: self.size_bytes, sent: Sent::Descriptor(0, self.size_bytes) };
        Reply { id: 1, flags: Flags::default(), answer: Ok(&answer), body_bytes: 0 }.put(&mut self.out);
    }

    /// What was written, as it is read.
    fn arrive(&mut self) -> Result<Header> {
        let room = self.inbox.room();
        room[..self.out.len()].copy_from_slice(&self.out);
        self.inbox.filled(self.out.len());
        self.inbox.next_header()?.ok_or_else(|| ErrorKind::Internal.into())
    }
}

impl Rung for NodeFrames {
    fn prepare(&mut self, size_bytes: u64) -> Result<()> {
        self.key = Key::new(name(size_bytes))?;
        self.size_bytes = size_bytes;
        Ok(())
    }

    fn run(&mut self) -> Result<()> {
        self.put_request();
        let header = self.arrive()?;
        let frame = self.inbox.frame(&header).ok_or(ErrorKind::Internal)?;
        black_box(Request::take(header.code, frame.fields)?);
        self.inbox.consume(header.frame_bytes());
        self.put_reply();
        let header = self.arrive()?;
        let frame = self.inbox.frame(&header).ok_or(ErrorKind::Internal)?;
        black_box(take_reply::<ReadDone>(&frame)?);
        self.inbox.consume(header.frame_bytes());
        Ok(())
    }
}
