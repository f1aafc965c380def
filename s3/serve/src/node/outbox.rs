//! Replies on their way out.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use fordway_store::{Error, Result};
use fordway_sys::{Errno, send_all};
use fordway_wire::node::{Flags, Put, Reply};

use super::stats::Stats;

/// Replies wait until this many bytes of them have come together, or no request waits any more.
const GATHER_BYTES: usize = 64 << 10;

/// Collects replies, and sends as many as there are by one system call.
pub(super) struct Outbox {
    socket: Arc<OwnedFd>,
    buffer: Vec<u8>,
    pub(super) stats: Arc<Stats>,
    /// Whether another request has arrived already, so that its reply can share the call.
    pub(super) more_to_come: bool,
    /// Flags that all replies have.
    pub(super) flags: Flags,
}

impl Outbox {
    pub(super) fn new(socket: Arc<OwnedFd>, stats: Arc<Stats>) -> Self {
        Outbox { socket, buffer: Vec::new(), stats, more_to_come: false, flags: Flags::default() }
    }

    /// Answers a request. Errors: from the socket, after which the connection is over.
    pub(super) fn answer<T: Put>(&mut self, id: u32, answer: &Result<T>) -> Result<(), Errno> {
        self.answer_with_body(id, answer, &[])
    }

    /// As [`Outbox::answer`], with content.
    pub(super) fn answer_with_body<T: Put>(
        &mut self,
        id: u32,
        answer: &Result<T>,
        body: &[u8],
    ) -> Result<(), Errno> {
        self.put(id, self.flags, answer.as_ref(), body.len());
        self.stats.inline_bytes_out.add(body.len() as u64);
        if self.more_to_come && self.buffer.len() + body.len() < GATHER_BYTES {
            self.buffer.extend_from_slice(body);
            return Ok(());
        }
        self.send(body, None)
    }

    /// Answers at once; another answer to the same request will follow.
    pub(super) fn answer_before_more<T: Put>(
        &mut self,
        id: u32,
        answer: &T,
        body: &[u8],
    ) -> Result<(), Errno> {
        self.put(id, self.flags.with(Flags::MORE), Ok(answer), body.len());
        self.stats.inline_bytes_out.add(body.len() as u64);
        self.send(body, None)
    }

    /// Has neither side look out before the next request: a client that moves large content itself is
    /// busy for longer, and two threads that take turns share a core best.
    pub(super) fn let_sleep(&mut self) {
        self.flags = Flags::default();
    }

    /// Answers, and passes `descriptor`.
    pub(super) fn answer_with_descriptor<T: Put>(
        &mut self,
        id: u32,
        answer: &T,
        descriptor: BorrowedFd<'_>,
    ) -> Result<(), Errno> {
        // A descriptor goes with the first byte of its own frame.
        self.flush()?;
        self.let_sleep();
        self.put(id, self.flags.with(Flags::DESCRIPTOR), Ok(answer), 0);
        self.stats.descriptors_out.add(1);
        self.send(&[], Some(descriptor))
    }

    /// Answers; content will follow through [`Outbox::stream`].
    pub(super) fn answer_before_stream<T: Put>(&mut self, id: u32, answer: &T) {
        self.put(id, self.flags.with(Flags::STREAM), Ok(answer), 0);
    }

    /// Sends content behind what was answered.
    pub(super) fn stream(&mut self, content: &[u8]) -> Result<(), Errno> {
        self.stats.inline_bytes_out.add(content.len() as u64);
        self.send(content, None)
    }

    /// Sends what has come together.
    pub(super) fn flush(&mut self) -> Result<(), Errno> {
        match self.buffer.is_empty() {
            true => Ok(()),
            false => self.send(&[], None),
        }
    }

    fn put<T: Put>(&mut self, id: u32, flags: Flags, answer: Result<&T, &Error>, body_bytes: usize) {
        if answer.is_err() {
            self.stats.failed.add(1);
        }
        Reply { id, flags, answer, body_bytes }.put(&mut self.buffer);
    }

    fn send(&mut self, body: &[u8], descriptor: Option<BorrowedFd<'_>>) -> Result<(), Errno> {
        let sent = send_all(self.socket.as_fd(), &self.buffer, body, descriptor);
        self.buffer.clear();
        // What one long page of a listing needed is not kept for good.
        self.buffer.shrink_to(GATHER_BYTES);
        sent
    }
}
