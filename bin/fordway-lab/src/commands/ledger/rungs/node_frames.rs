//! Frames of the node lane.

use std::borrow::Cow;
use std::hint::black_box;
use std::time::UNIX_EPOCH;

use fordway_store::{Bucket, ETag, ErrorKind, Expected, GetOptions, Key, PutOptions, PutResult, Result};
use fordway_wire::node::{Committed, Flags, Header, Inbox, ReadDone, Reply, Request, Sent, take_reply};
use fordway_workload::ledger::Rung;

use super::Operation;

/// Content that is put goes in one message up to this size; more is written to a file of the gateway's.
pub(in super::super) const WHOLE_BYTES_MAX: u64 = 128 << 10;

/// Writing and reading the frames of an operation by the node lane: what both sides do but for the socket
/// and the content.
pub(in super::super) struct NodeFrames {
    operation: Operation,
    bucket: Bucket,
    key: Key,
    read: GetOptions,
    write: PutOptions,
    expected: Expected,
    made: Committed,
    size_bytes: u64,
    out: Vec<u8>,
    inbox: Inbox,
}

impl NodeFrames {
    pub(in super::super) fn new(operation: Operation, bucket: &Bucket) -> Result<Self> {
        let etag = ETag::opaque(u128::MAX);
        let made = PutResult { etag, modified: UNIX_EPOCH, checksum: None, version: None };
        Ok(NodeFrames {
            operation,
            bucket: bucket.clone(),
            key: Key::new(operation.name(0))?,
            read: GetOptions::default(),
            write: PutOptions::default(),
            expected: Expected::default(),
            made: Committed { made, has_spare: true },
            size_bytes: 0,
            out: Vec::new(),
            inbox: Inbox::default(),
        })
    }

    /// The lengths of the request and of the reply without their bodies, in bytes.
    pub(in super::super) fn lengths(&mut self, size_bytes: u64) -> Result<(usize, usize)> {
        self.prepare(size_bytes)?;
        self.put_request();
        let request_bytes = self.out.len();
        self.put_reply();
        Ok((request_bytes, self.out.len()))
    }

    fn is_whole(&self) -> bool {
        self.size_bytes <= WHOLE_BYTES_MAX
    }

    fn put_request(&mut self) {
        self.out.clear();
        let (bucket, key) = (Cow::Borrowed(&self.bucket), Cow::Borrowed(&self.key));
        let options = Cow::Borrowed(&self.write);
        let request = match self.operation {
            Operation::Get => {
                Request::Read { bucket, key, options: Cow::Borrowed(&self.read), is_large: false }
            }
            Operation::Put if self.is_whole() => {
                Request::Put { bucket, key, options, expected: Cow::Borrowed(&self.expected) }
            }
            Operation::Put => Request::PutSpare { bucket, key, options, filled: self.size_bytes, core: 0 },
        };
        request.put(&mut self.out, 1, 0);
    }

    fn put_reply(&mut self) {
        self.out.clear();
        let flags = Flags::default();
        match self.operation {
            Operation::Get => {
                let sent = Sent::Descriptor(0, self.size_bytes);
                let answer = ReadDone { size: self.size_bytes, sent };
                Reply { id: 1, flags, answer: Ok(&answer), body_bytes: 0 }.put(&mut self.out);
            }
            Operation::Put if self.is_whole() => {
                Reply { id: 1, flags, answer: Ok(&self.made.made), body_bytes: 0 }.put(&mut self.out);
            }
            Operation::Put => {
                let answer = Some(self.made.clone());
                Reply { id: 1, flags, answer: Ok(&answer), body_bytes: 0 }.put(&mut self.out);
            }
        }
    }

    /// What was written, as it is read.
    fn arrive(&mut self) -> Result<Header> {
        let room = self.inbox.room();
        room[..self.out.len()].copy_from_slice(&self.out);
        self.inbox.filled(self.out.len());
        self.inbox.next_header()?.ok_or_else(|| ErrorKind::Internal.into())
    }

    fn take_request(&mut self) -> Result<()> {
        let header = self.arrive()?;
        let frame = self.inbox.frame(&header).ok_or(ErrorKind::Internal)?;
        black_box(Request::take(header.code, frame.fields)?);
        self.inbox.consume(header.frame_bytes());
        Ok(())
    }

    fn take_reply(&mut self) -> Result<()> {
        let header = self.arrive()?;
        let frame = self.inbox.frame(&header).ok_or(ErrorKind::Internal)?;
        match self.operation {
            Operation::Get => drop(black_box(take_reply::<ReadDone>(&frame)?)),
            Operation::Put if self.is_whole() => drop(black_box(take_reply::<PutResult>(&frame)?)),
            Operation::Put => drop(black_box(take_reply::<Option<Committed>>(&frame)?)),
        }
        self.inbox.consume(header.frame_bytes());
        Ok(())
    }
}

impl Rung for NodeFrames {
    fn prepare(&mut self, size_bytes: u64) -> Result<()> {
        self.key = Key::new(self.operation.name(size_bytes))?;
        self.size_bytes = size_bytes;
        Ok(())
    }

    fn run(&mut self) -> Result<()> {
        self.put_request();
        self.take_request()?;
        self.put_reply();
        self.take_reply()
    }
}
