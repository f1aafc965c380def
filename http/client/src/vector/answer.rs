//! One answer of HTTP/1.1 on its way: its framing, and the shortest way of its bytes to where they belong.

use std::io;

use fordway_store::Error;

use super::ahead::Ahead;
use super::batch::{Batch, Here};
use super::content::{Content, Headers};
use super::request::Request;
use super::sink::Sink;
use super::version::FileVersion;
use crate::body::{Framing, short_body};
use crate::connection::Connection;
use crate::response::Head;

/// A piece of this size or more is received straight into place.
const DIRECT_BYTES: u64 = 8 * 1024;
/// Received at once where one call cannot put as much into place.
const STAGING_BYTES: usize = 64 * 1024;
/// A server that has surprised us so often in an answer is not foreseen any more.
const SURPRISES_MAX: usize = 2;
/// Unwanted bytes from this number on are dropped in the kernel.
const DISCARD_BYTES: u64 = 16 * 1024;

/// An answer whose head was received.
pub(super) struct Answer {
    framing: Framing,
    pub(super) content: Content,
    /// How often something else came than was foreseen.
    surprises: usize,
    /// Whether the connection takes further requests behind it.
    pub(super) keeps_alive: bool,
}

impl Answer {
    /// Errors: `PreconditionFailed` for another version, `BadResponse` for what was not asked.
    pub(super) fn new(
        head: &Head,
        connection: &Connection,
        request: &Request,
        version: &FileVersion,
    ) -> Result<Self, Error> {
        let framing = Framing::of(head, connection, "GET")?;
        let keeps_alive = head.may_keep_alive(connection, &framing);
        let headers = Headers::of(head.headers(connection));
        let content = Content::new((head.status, &headers), framing.known_left(), request, version)?;
        Ok(Answer { framing, content, surprises: 0, keeps_alive })
    }

    /// Whether more is to come than it would cost to make another connection.
    pub(super) fn is_long(&self) -> bool {
        self.framing.known_left().unwrap_or(self.content.data_left()) > 256 << 10
    }

    /// Bytes of the body that are known to be on their way.
    pub(super) fn bytes_left(&self) -> u64 {
        self.framing.known_left().unwrap_or(0)
    }

    /// Takes what has arrived. `false` if more is to come and the socket has nothing now.
    /// Errors: `IncompleteBody`, `BadResponse`, `PreconditionFailed`, `Unavailable`, and errors of sockets.
    pub(super) fn advance<S: Sink>(
        &mut self,
        connection: &mut Connection,
        (request, batch, version): (&Request, &mut Batch<S>, &FileVersion),
    ) -> io::Result<bool> {
        loop {
            let run = match self.framing.run(connection, 0) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                run => run?,
            };
            if run == 0 {
                return self.content.check_end().map(|()| true).map_err(io::Error::other);
            }
            if connection.has_nothing_left() {
                match self.receive(connection, (request, batch, version), run) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                    received => received?,
                }
                continue;
            }
            let waiting = connection.waiting();
            let bytes = &waiting[..waiting.len().min(usize::try_from(run).unwrap_or(usize::MAX))];
            let taken = self.content.take(bytes, (request, batch, version)).map_err(io::Error::other)?;
            connection.consume(taken);
            self.framing.passed(taken as u64);
            if self.content.is_enough() {
                // What is left of it is not worth the connection.
                (self.framing, self.keeps_alive) = (Framing::Empty, false);
            }
        }
    }

    /// Receives what is next: into place, into nothing, or to be looked at.
    fn receive<S: Sink>(
        &mut self,
        connection: &mut Connection,
        (request, batch, version): (&Request, &mut Batch<S>, &FileVersion),
        run: u64,
    ) -> io::Result<()> {
        let data = run.min(self.content.data_left());
        let here = if data > 0 { batch.look(self.content.at) } else { Here::Unwanted(0) };
        let got = match here {
            Here::Wanted(_) => self.receive_wanted(connection, (request, batch, version), run)?,
            Here::Unwanted(len) if len.min(data) >= DISCARD_BYTES => {
                let got = connection.discard_next(usize::try_from(len.min(data)).unwrap_or(usize::MAX))?;
                self.framing.passed(got as u64);
                self.content.passed(got as u64);
                got
            }
            Here::Unwanted(_) => connection.receive_next(STAGING_BYTES)?,
        };
        match (got, &self.framing) {
            (1.., _) => Ok(()),
            (0, Framing::UntilClose) => {
                self.framing = Framing::Empty;
                Ok(())
            }
            (0, framing) => Err(io::Error::other(short_body(framing.known_left().unwrap_or(1)))),
        }
    }

    /// The same where content is next that is wanted.
    fn receive_wanted<S: Sink>(
        &mut self,
        connection: &mut Connection,
        (request, batch, version): (&Request, &mut Batch<S>, &FileVersion),
        run: u64,
    ) -> io::Result<usize> {
        let foresees = self.surprises < SURPRISES_MAX && connection.reads_far_ahead();
        let mut ahead = Ahead::of(&self.content, run, foresees, (request, &*batch));
        if ahead.first_bytes() < DIRECT_BYTES && ahead.bytes < STAGING_BYTES as u64 {
            return connection.receive_next(STAGING_BYTES);
        }
        let got = ahead.receive(connection, batch)?;
        let settled = ahead.settle(got, connection, &mut self.content, (request, batch, version))?;
        self.framing.passed(settled.body_bytes);
        self.surprises += usize::from(settled.is_surprise);
        Ok(got)
    }
}
