//! Reads many ranges of a file in few requests.
//!
//! A call's fragments become a plan, which lists each byte to receive once, with its destination. The [`engine`] turns
//! the plan into [`request`]s that are as large as the server is known to accept ([`learned`]). On each [`line`], the
//! engine sends as many requests ahead as the window allows. A line is a connection: either a [`pipeline`] of HTTP/1.1,
//! or [`streams`] of HTTP/2. In a pipeline, each [`answer`] is received straight into the caller's memory, several
//! parts per call. The module [`content`] checks each response against its request. The bytes of a response go into a
//! [`sink`] through a [`batch`], which tracks the missing bytes. A [`reader`] submits ranges that it expects to be read
//! next. This module contains the file itself, a [`RemoteFile`].

mod answer;
mod batch;
mod content;
mod download;
mod engine;
mod learned;
mod line;
mod open;
mod pace;
mod pipeline;
mod reader;
pub(super) mod redirect;
mod request;
mod session;
mod sink;
mod source;
#[cfg(feature = "http2")]
mod streams;
mod web;
mod window;

pub use download::copy_unsized;
pub(crate) use download::{DigestHasher, FileDigest};
pub use learned::ServerProfile;
pub use open::{UnconsumedResponse, is_passing, is_without_size};
pub use reader::{AccessAdvice, ReadAheadSettings, RemoteReader};
pub use session::{CredentialScope, HttpSession, SessionOptions};
pub(super) use sink::in_order;
pub use sink::{Fragment, FragmentMemory};
pub use source::{FileVersion, RemoteResource, VersionPrecondition};
pub use web::WebFileResource;

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Instant;

use fordway_store::{Error, ErrorKind, Result, check_room};

use self::batch::{FragmentBatch, ReceivePlan};
use self::engine::BatchEngine;
use self::sink::{BatchMemory, FragmentArena, SpareBufferPool};
use self::source::RemoteFileSource;
use self::window::InFlightBatches;

/// A file on a server, in the version that existed when it was opened. Threads may share the file.
///
/// [`RemoteFile::read_ranges`] waits for its bytes. [`RemoteFile::submit`] does not wait: many batches may be in
/// flight, with all of their requests sent ahead. [`RemoteFile::wait`] returns the bytes of one batch.
pub struct RemoteFile {
    source: Arc<RemoteFileSource>,
    window: InFlightBatches,
    spares: SpareBufferPool,
}

/// The maximum number of spare memory buffers that are kept for later batches.
const SPARES_MAX: usize = 64;

/// Submitted ranges. If no caller waits for the ranges, their bytes remain in memory until the file is closed.
#[derive(Debug)]
#[must_use = "`wait` returns the bytes"]
pub struct RangeReadTicket(u64);

/// The bytes of submitted ranges that have arrived.
#[derive(Debug)]
pub struct ReceivedRanges {
    /// The bytes, one range after the other, in the requested order. The memory may be passed to the next
    /// [`RemoteFile::submit`].
    pub bytes: Vec<u8>,
}

/// The cost of a file's reads so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HttpTrafficCounts {
    /// The number of requests sent, including the request for the size and version.
    pub requests: u64,
    /// The number of connections opened.
    pub connections: u64,
}

impl RemoteFile {
    /// Opens the file at an `http(s)://` URL, or at the location it redirects to, by requesting its size and version.
    /// Reads then use that location, or the location to which its server redirects GET requests. Errors: `NoSuchKey`,
    /// `AccessDenied`, `InvalidArgument`, `Unavailable`, `Timeout`, `BadResponse`. Cost: one request (HEAD), plus one
    /// per redirection.
    pub fn open(session: &Arc<HttpSession>, url: &str) -> Result<Self> {
        open::open_url(session, url).map(Self::of_source)
    }

    /// Opens a file and submits `ranges` (offset, length) in one step. The response to the first request opens the
    /// file, so that the first bytes arrive a round trip earlier. `memory` is used as in [`RemoteFile::submit`].
    /// Errors: as for [`RemoteFile::open`] and [`RemoteFile::submit`]. Cost: as for [`RemoteFile::submit`], plus a HEAD
    /// with HTTP/2, or if the first response does not contain the size. For an unknown server, the first request has at
    /// most 10 ranges.
    pub fn open_reading(
        session: &Arc<HttpSession>,
        url: &str,
        ranges: &[(u64, usize)],
        memory: Vec<u8>,
    ) -> Result<(Self, RangeReadTicket)> {
        let is_range = |(offset, length): &(u64, usize)| offset.checked_add(*length as u64).is_some();
        let wanted = if ranges.iter().all(is_range) { ReceivePlan::new(ranges).spans() } else { Vec::new() };
        let (source, begun) = open::open_url_reading(session, url, &wanted)?;
        let file = Self::of_source(source);
        let Some(begun) = begun else {
            let ticket = file.submit(ranges, memory)?;
            return Ok((file, ticket));
        };
        file.check_to_be_held(ranges)?;
        let batch = FragmentBatch::new(ranges, file.arena(ranges, memory));
        let ticket = RangeReadTicket(file.window.begin(batch, begun));
        Ok((file, ticket))
    }

    /// Opens the file at `target`, and does not follow redirections.
    pub fn open_target(session: &Arc<HttpSession>, target: Box<dyn RemoteResource>) -> Result<Self> {
        open::open_target(session, target).map(Self::of_source)
    }

    /// Opens the file at `target` by requesting the first of `ranges`, which may extend past the end of the file. The
    /// caller must read these ranges next, with [`RemoteFile::read_begun`]. Cost: the first request (with HTTP/2, a
    /// HEAD).
    pub fn open_target_reading(
        session: &Arc<HttpSession>,
        target: Box<dyn RemoteResource>,
        ranges: &[(u64, usize)],
    ) -> Result<(Self, Option<UnconsumedResponse>)> {
        let (source, begun) = open::open_target_reading(session, target, &ReceivePlan::new(ranges).spans())?;
        Ok((Self::of_source(source), begun))
    }

    /// Creates a file whose version is already known. `opening` is the traffic that determined the version. Sends
    /// nothing.
    pub fn of_version(
        session: &Arc<HttpSession>,
        target: Box<dyn RemoteResource>,
        version: FileVersion,
        opening: HttpTrafficCounts,
    ) -> Self {
        Self::of_source(RemoteFileSource::of_target(session, target, version, opening.into()))
    }

    fn of_source(source: RemoteFileSource) -> Self {
        let source = Arc::new(source);
        RemoteFile {
            window: InFlightBatches::new(source.clone()),
            source,
            spares: SpareBufferPool::default(),
        }
    }

    /// Returns the version that is read.
    pub fn version(&self) -> &FileVersion {
        &self.source.version
    }

    /// Returns whether the server's `Link` headers name replicas of the file (RFC 6249).
    pub fn has_links(&self) -> bool {
        !fordway_wire::metalink::read_links(self.source.version.links.iter().map(String::as_str), [])
            .is_empty()
    }

    /// Returns the size of the file.
    pub fn size_bytes(&self) -> u64 {
        self.source.version.size_bytes
    }

    /// Returns the number of requests and connections so far.
    pub fn traffic(&self) -> HttpTrafficCounts {
        HttpTrafficCounts {
            requests: self.source.traffic.requests.load(Ordering::Relaxed),
            connections: self.source.traffic.connections.load(Ordering::Relaxed),
        }
    }

    /// Returns the known properties of the server.
    pub fn learned(&self) -> ServerProfile {
        self.source.place().learned()
    }

    /// Reads from `offset` until `buffer` is full or the file ends; returns the number of bytes read. Errors: as for
    /// [`RemoteFile::read_ranges`], except that a read past the end is not an error.
    pub fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let there = self.size_bytes().saturating_sub(offset);
        let count = buffer.len().min(usize::try_from(there).unwrap_or(usize::MAX));
        if count == 0 {
            return Ok(0);
        }
        self.read_ranges(&mut [Fragment { offset, buffer: &mut buffer[..count] }])?;
        Ok(count)
    }

    /// Fills all of `fragments`, which may overlap and be in any order. Errors: `InvalidRange`, before anything is
    /// read, if a fragment extends past the end of the file; `PreconditionFailed` if the file is no longer the version
    /// that was opened; `Unavailable`, `Timeout`, `BadResponse`, `AccessDenied` and others. After an error, the content
    /// of the fragments is undefined. Cost: each byte is received once, directly into its fragment. There are as few
    /// requests as the server allows, and all of them are sent without waiting for responses.
    pub fn read_ranges(&self, fragments: &mut [Fragment<'_>]) -> Result<()> {
        self.read_begun(fragments, None)
    }

    /// Like [`RemoteFile::read_ranges`], but uses the request for these fragments that was begun when the file was
    /// opened.
    pub fn read_begun(
        &self,
        fragments: &mut [Fragment<'_>],
        begun: Option<UnconsumedResponse>,
    ) -> Result<()> {
        let wanted: Vec<_> = fragments.iter().map(|part| (part.offset, part.buffer.len())).collect();
        self.check(&wanted)?;
        let mut engine = BatchEngine::new(self.source.clone());
        let batch = FragmentBatch::new(&wanted, fragments);
        match begun {
            Some(begun) => engine.begin(0, batch, begun),
            None => engine.add(0, batch),
        }
        loop {
            let goes_on = engine.turn();
            if let Some((_, result)) = engine.take_ended().pop() {
                return result.map(|_| ()).map_err(|error| self.named(error));
            }
            if !goes_on {
                engine.wait(None, None);
            }
        }
    }

    /// Requests `ranges` (offset, length) without waiting for them. `memory`, which may be empty, is reused for the
    /// next batch that receives bytes. A batch without reused memory allocates memory when its first byte arrives.
    /// Errors: `InvalidRange`, even if the cause is insufficient memory; [`RemoteFile::wait`] returns all other errors.
    /// Cost: does not block; sends as many requests as the window has room for.
    pub fn submit(&self, ranges: &[(u64, usize)], memory: Vec<u8>) -> Result<RangeReadTicket> {
        self.check_to_be_held(ranges)?;
        Ok(RangeReadTicket(self.window.submit(FragmentBatch::new(ranges, self.arena(ranges, memory)))))
    }

    fn arena(&self, ranges: &[(u64, usize)], memory: Vec<u8>) -> BatchMemory {
        let mut spares = self.spares.lock().unwrap_or_else(PoisonError::into_inner);
        if memory.capacity() > 0 && spares.len() < SPARES_MAX {
            spares.push(memory);
        }
        BatchMemory::Arena(FragmentArena::new(ranges, &self.spares))
    }

    /// Submits ranges whose bytes are received straight into `memory`, which must have room for each of `ranges`;
    /// [`RemoteFile::wait`] then returns no bytes. Errors: as for [`RemoteFile::submit`].
    pub fn submit_into(
        &self,
        ranges: &[(u64, usize)],
        memory: Box<dyn FragmentMemory>,
    ) -> Result<RangeReadTicket> {
        self.check(ranges)?;
        Ok(RangeReadTicket(self.window.submit(FragmentBatch::new(ranges, BatchMemory::Memory(memory)))))
    }

    /// Cancels submitted ranges. After this call returns, nothing is written to the memory of the ranges. Cost: if
    /// bytes of the ranges are already in flight, the connection is closed instead of drained, and later requests need
    /// a new connection.
    pub fn cancel(&self, ticket: RangeReadTicket) {
        self.window.cancel(ticket.0);
    }

    /// Cancels all submitted ranges; threads that are waiting for them get `InvalidArgument`.
    pub fn cancel_all(&self) {
        self.window.cancel_all();
    }

    /// Returns whether [`RemoteFile::wait`] would return immediately. Neither sends nor receives anything itself.
    pub fn has_ended(&self, ticket: &RangeReadTicket) -> bool {
        self.window.has_ended(ticket.0)
    }

    /// Like [`RemoteFile::wait`], but does not return the bytes, and returns at `limit` at the latest. Returns whether
    /// the batch has ended.
    pub fn wait_until(&self, ticket: &RangeReadTicket, limit: Instant) -> bool {
        self.window.wait_until(ticket.0, limit)
    }

    /// Waits for submitted ranges. During the wait, all submitted ranges make progress. Errors: as for
    /// [`RemoteFile::read_ranges`].
    pub fn wait(&self, ticket: RangeReadTicket) -> Result<ReceivedRanges> {
        let landing = self.window.wait(ticket.0).map_err(|error| self.named(error))?;
        Ok(ReceivedRanges { bytes: landing.into_bytes() })
    }

    /// Returns whether no submitted ranges are in flight.
    fn is_idle(&self) -> bool {
        self.window.is_idle()
    }

    /// Checks that the ranges are within the file, and that their bytes fit into memory.
    fn check_to_be_held(&self, ranges: &[(u64, usize)]) -> Result<()> {
        self.check(ranges)?;
        check_room(ranges.iter().map(|(_, length)| *length)).map_err(|error| self.named(error))
    }

    fn check(&self, ranges: &[(u64, usize)]) -> Result<()> {
        let size = self.size_bytes();
        let is_within = |(offset, length): &(u64, usize)| {
            offset.checked_add(*length as u64).is_some_and(|end| end <= size)
        };
        match ranges.iter().position(|range| !is_within(range)) {
            None => Ok(()),
            Some(index) => {
                let (offset, length) = ranges[index];
                let detail = format!("{length} bytes at {offset} (range {index}) of a file of {size} bytes");
                Err(self.named(Error::new(ErrorKind::InvalidRange, detail)))
            }
        }
    }

    /// Adds the operation and the URL to an error.
    pub fn named(&self, error: Error) -> Error {
        self.source.place().target.named("read", error)
    }
}
