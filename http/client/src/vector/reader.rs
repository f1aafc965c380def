//! Read-ahead for a remote file.

use std::collections::VecDeque;
use std::io::{self, Read, Seek, SeekFrom};
use std::sync::Arc;
use std::time::Instant;

use fordway_store::{Error, ErrorKind, Result};

use super::pace::{AccessPattern, AccessPatternDetector, ReadAheadWindow};
use super::{RangeReadTicket, RemoteFile};

/// The settings of a [`RemoteReader`].
#[derive(Clone, Copy, Debug)]
pub struct ReadAheadSettings {
    /// The maximum memory for read-ahead, in bytes.
    pub max_bytes: u64,
}

impl Default for ReadAheadSettings {
    fn default() -> Self {
        ReadAheadSettings { max_bytes: 64 << 20 }
    }
}

/// A program's advice about its future reads, as in `posix_fadvise`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessAdvice<'a> {
    /// No advice: the reader detects the access pattern itself.
    Normal,
    /// Reads will be sequential, starting with the first read.
    Sequential,
    /// Reads will be in random order: nothing should be read ahead.
    Random,
    /// These ranges (offset, length) will be read; they are requested immediately, as far as memory allows.
    WillNeed(&'a [(u64, usize)]),
    /// The program will not read the bytes that were read ahead.
    DontNeed,
}

/// Reads a file in any order, with read-ahead if the reads are predictable: sequential, with a constant stride, or with
/// small jumps forward.
///
/// Read-ahead uses the connections of [`RemoteFile::submit`], and requests as many bytes in advance as arrive in two
/// round trips at the measured rate. A jump to another position cancels the requests in flight, unless little data is
/// outstanding.
pub struct RemoteReader {
    file: Arc<RemoteFile>,
    history: AccessPatternDetector,
    pace: ReadAheadWindow,
    last_pattern: AccessPattern,
    /// The access pattern according to the program's advice; the observed pattern is used instead if `is_watching` is
    /// set.
    advice: AccessPattern,
    is_watching: bool,
    pieces: VecDeque<ReadAheadPiece>,
    /// The offset of the next piece.
    ahead: u64,
    max_bytes: u64,
    spare: Vec<u8>,
    /// The position used by `Read` and `Seek`.
    position: u64,
}

/// Ranges that were requested together.
struct ReadAheadPiece {
    /// The ranges, in ascending order.
    ranges: Vec<(u64, usize)>,
    /// The size of the piece's memory.
    capacity_bytes: u64,
    /// Whether the program requested the ranges explicitly. If so, the piece is kept until it has been read completely
    /// or the program declares it unnecessary.
    is_asked_for: bool,
    unread_bytes: u64,
    /// Present while the ranges are in flight.
    ticket: Option<RangeReadTicket>,
    /// The bytes of the ranges, one after the other, once they have arrived.
    bytes: Vec<u8>,
}

/// Unwanted bytes in flight are received anyway, up to this number, because a new connection would cost more.
const LET_COME_BYTES: u64 = 1 << 20;
/// The maximum number of records in one request of a strided read.
const RECORDS_PER_PIECE: usize = 64;

impl ReadAheadPiece {
    fn end(&self) -> u64 {
        self.ranges.last().map_or(0, |(offset, len)| offset + *len as u64)
    }

    /// Returns where the byte at offset `at` is in the piece's memory, and the number of bytes available from there to
    /// the end of its range.
    fn find(&self, at: u64) -> Option<(usize, usize)> {
        let mut start = 0;
        for (offset, len) in &self.ranges {
            if let Some(within) = at.checked_sub(*offset).filter(|within| *within < *len as u64) {
                return Some((start + within as usize, len - within as usize));
            }
            start += len;
        }
        None
    }
}

impl RemoteReader {
    /// Creates a reader for `file`. Sends nothing yet.
    pub fn new(file: Arc<RemoteFile>, options: ReadAheadSettings) -> Self {
        RemoteReader {
            file,
            history: AccessPatternDetector::default(),
            // Leave a fifth of the memory unused, because allocations are up to a quarter larger than needed.
            pace: ReadAheadWindow::new(options.max_bytes / 5 * 4),
            last_pattern: AccessPattern::Random,
            advice: AccessPattern::Random,
            is_watching: true,
            pieces: VecDeque::new(),
            ahead: 0,
            max_bytes: options.max_bytes,
            spare: Vec::new(),
            position: 0,
        }
    }

    /// Returns the file.
    pub fn file(&self) -> &Arc<RemoteFile> {
        &self.file
    }

    /// Returns how much memory, in bytes, read-ahead uses for data that has arrived or is in flight.
    pub fn held_bytes(&self) -> u64 {
        let pieces: u64 = self.pieces.iter().map(|piece| piece.capacity_bytes).sum();
        pieces + self.spare.capacity() as u64
    }

    /// Applies a program's advice. Errors: `InvalidRange`.
    pub fn advise(&mut self, advice: AccessAdvice<'_>) -> Result<()> {
        match advice {
            AccessAdvice::Normal => (self.is_watching, self.advice) = (true, AccessPattern::Random),
            AccessAdvice::Sequential => (self.is_watching, self.advice) = (false, AccessPattern::Sequential),
            AccessAdvice::Random => {
                (self.is_watching, self.advice) = (false, AccessPattern::Random);
                self.jump();
            }
            AccessAdvice::WillNeed(ranges) => return self.will_need(ranges),
            AccessAdvice::DontNeed => self.give_up(|_| true),
        }
        Ok(())
    }

    /// Reads from `offset` until `buffer` is full or the file ends; returns the number of bytes read. Errors: as for
    /// [`RemoteFile::read_at`]. Cost: one copy if the bytes were read ahead, otherwise one request; the next read-ahead
    /// requests are sent before the call waits for the bytes.
    pub fn read_at(&mut self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let there = self.file.size_bytes().saturating_sub(offset);
        let count = buffer.len().min(usize::try_from(there).unwrap_or(usize::MAX));
        if count == 0 {
            return Ok(0);
        }
        let pattern = self.pattern(offset, count);
        let mut done = 0;
        while done < count {
            let at = offset + done as u64;
            self.plan(pattern, at);
            let read = self.read_piece(at, &mut buffer[done..count]);
            done += read.inspect_err(|_| self.give_up(|_| true))?;
        }
        self.pace.read(count as u64, Instant::now(), || self.file.learned());
        Ok(count)
    }

    /// Returns the pattern to expect after this read. If the read is a jump, restarts read-ahead.
    fn pattern(&mut self, offset: u64, count: usize) -> AccessPattern {
        let reach = if self.last_pattern == AccessPattern::Sequential { self.ahead } else { 0 };
        let seen = self.history.observe(offset, count, reach);
        if seen == AccessPattern::Random && !self.pieces.iter().any(|piece| piece.find(offset).is_some()) {
            self.jump();
        }
        self.last_pattern = if self.is_watching { seen } else { self.advice };
        self.last_pattern
    }

    fn jump(&mut self) {
        self.pace.restart();
        let let_come = self.under_way_bytes() <= LET_COME_BYTES;
        let file = self.file.clone();
        self.give_up(|piece| {
            let is_coming = piece.ticket.as_ref().is_some_and(|ticket| !file.has_ended(ticket));
            !(piece.is_asked_for || is_coming && let_come)
        });
    }

    /// Requests the bytes that the pattern predicts.
    fn plan(&mut self, pattern: AccessPattern, at: u64) {
        self.sweep(at);
        match pattern {
            AccessPattern::Sequential => self.plan_sequence(at),
            AccessPattern::Strided { stride, len } => self.plan_records(at, stride, len),
            AccessPattern::Random => {}
        }
    }

    fn plan_sequence(&mut self, at: u64) {
        let size = self.file.size_bytes();
        let (until, request_bytes) = (size.min(at + self.pace.window_bytes()), self.pace.request_bytes());
        if self.ahead < at || !self.is_contiguous_until_ahead(at) {
            self.ahead = at;
        }
        while self.ahead < until {
            let len = request_bytes.min(size - self.ahead);
            // The window advances by whole requests.
            if (self.ahead > at && self.ahead + len > until)
                || !self.send_for(vec![(self.ahead, len as usize)], false)
            {
                return;
            }
            self.ahead += len;
        }
    }

    /// Returns whether the byte at `at` has been requested, or is the next byte to be read ahead.
    fn is_contiguous_until_ahead(&self, at: u64) -> bool {
        self.ahead == at || self.pieces.iter().any(|piece| piece.find(at).is_some())
    }

    fn plan_records(&mut self, at: u64, stride: u64, len: usize) {
        let is_started = self.pieces.iter().any(|piece| piece.find(at).is_some());
        let is_in_step = self.ahead > at && (self.ahead - at).is_multiple_of(stride);
        if !is_started || !is_in_step {
            self.ahead = at;
        }
        let records = (self.pace.window_bytes() / len as u64).clamp(1, 16 * RECORDS_PER_PIECE as u64);
        let until = at.saturating_add(stride.saturating_mul(records));
        let per_piece = RECORDS_PER_PIECE.min(records.div_ceil(4) as usize);
        loop {
            let starts = std::iter::successors(Some(self.ahead), |start| start.checked_add(stride));
            let is_there = |start: &u64| *start + len as u64 <= self.file.size_bytes();
            let ranges: Vec<_> =
                starts.take_while(is_there).take(per_piece).map(|start| (start, len)).collect();
            let Some(last) = ranges.last().map(|(start, _)| start + stride) else { return };
            if (self.ahead > at && last > until) || !self.send_for(ranges, false) {
                return;
            }
            self.ahead = last;
        }
    }

    fn will_need(&mut self, ranges: &[(u64, usize)]) -> Result<()> {
        let mut sorted: Vec<_> = ranges.iter().copied().filter(|(_, len)| *len > 0).collect();
        sorted.sort_unstable();
        if let Some((offset, len)) = sorted.iter().find(|(offset, len)| {
            offset.checked_add(*len as u64).is_none_or(|end| end > self.file.size_bytes())
        }) {
            let size = self.file.size_bytes();
            let detail = format!("{len} bytes at {offset} were announced for a file of {size} bytes");
            return Err(Error::new(ErrorKind::InvalidRange, detail));
        }
        let mut piece: Vec<(u64, usize)> = Vec::new();
        for range in sorted {
            let bytes: usize = piece.iter().map(|(_, len)| len).sum();
            let is_full = bytes + range.1 > 2 << 20 && !piece.is_empty();
            if is_full && !self.send_for(std::mem::take(&mut piece), true) {
                return Ok(());
            }
            piece.push(range);
        }
        if !piece.is_empty() {
            self.send_for(piece, true);
        }
        Ok(())
    }

    /// Requests ranges if there is enough memory for them; returns whether there was enough.
    fn send_for(&mut self, ranges: Vec<(u64, usize)>, is_asked_for: bool) -> bool {
        let wanted_bytes: u64 = ranges.iter().map(|(_, len)| *len as u64).sum();
        if (self.spare.capacity() as u64) < wanted_bytes {
            self.spare = Vec::new();
        }
        let capacity_bytes = (self.spare.capacity() as u64).max(wanted_bytes + wanted_bytes / 4);
        if self.held_bytes() - self.spare.capacity() as u64 + capacity_bytes > self.max_bytes {
            return false;
        }
        let memory = std::mem::take(&mut self.spare);
        match self.file.submit(&ranges, memory) {
            Ok(ticket) => {
                let (ticket, bytes) = (Some(ticket), Vec::new());
                self.pieces.push_back(ReadAheadPiece {
                    ranges,
                    capacity_bytes,
                    is_asked_for,
                    unread_bytes: wanted_bytes,
                    ticket,
                    bytes,
                });
                true
            }
            Err(_) => false,
        }
    }

    /// Reads at `at` from the piece that contains it, or from the file; returns the number of bytes read.
    fn read_piece(&mut self, at: u64, buffer: &mut [u8]) -> Result<usize> {
        let found = |(index, piece): (usize, &ReadAheadPiece)| piece.find(at).map(|place| (index, place));
        let Some((index, (start, len))) = self.pieces.iter().enumerate().find_map(found) else {
            return self.fetch(at, buffer);
        };
        let piece = &mut self.pieces[index];
        if let Some(ticket) = piece.ticket.take() {
            piece.bytes = self.file.wait(ticket)?.bytes;
            // The memory may be larger than was accounted for, for example if ranges were requested again.
            piece.bytes.shrink_to(usize::try_from(piece.capacity_bytes).unwrap_or(usize::MAX));
        }
        let count = len.min(buffer.len());
        buffer[..count].copy_from_slice(&piece.bytes[start..][..count]);
        piece.unread_bytes = piece.unread_bytes.saturating_sub(count as u64);
        let is_at_end = !piece.is_asked_for && at + count as u64 == piece.end();
        if is_at_end || piece.unread_bytes == 0 {
            self.drop_piece(index);
        }
        Ok(count)
    }

    /// Reads bytes that no piece contains; returns the number of bytes read.
    fn fetch(&mut self, at: u64, buffer: &mut [u8]) -> Result<usize> {
        /// The minimum size of a separate request.
        const CHUNK_BYTES: usize = 64 << 10;
        if self.file.is_idle() {
            return self.file.read_at(at, buffer);
        }
        let room_bytes = self.max_bytes.saturating_sub(self.held_bytes()) / 5 * 4;
        let room = usize::try_from(room_bytes).unwrap_or(usize::MAX);
        if room < buffer.len().min(CHUNK_BYTES) {
            self.give_up(|_| true);
        }
        // Submit the request behind the requests in flight, on the same connection: there may be no other connection
        // available.
        let count = buffer.len().min(room.max(CHUNK_BYTES));
        let ticket = self.file.submit(&[(at, count)], Vec::new())?;
        buffer[..count].copy_from_slice(&self.file.wait(ticket)?.bytes);
        Ok(count)
    }

    fn under_way_bytes(&self) -> u64 {
        let under_way = self.pieces.iter().filter(|piece| piece.ticket.is_some());
        under_way.flat_map(|piece| &piece.ranges).map(|(_, len)| *len as u64).sum()
    }

    /// Drops pieces before the reader's position, once they have arrived.
    fn sweep(&mut self, at: u64) {
        while let Some(index) = self.pieces.iter().position(|piece| {
            let is_passed = !piece.is_asked_for && piece.end() <= at;
            is_passed && piece.ticket.as_ref().is_none_or(|ticket| self.file.has_ended(ticket))
        }) {
            self.drop_piece(index);
        }
    }

    /// Drops the pieces for which `is_unwanted` holds, whether they have arrived or not.
    fn give_up(&mut self, is_unwanted: impl Fn(&ReadAheadPiece) -> bool) {
        while let Some(index) = self.pieces.iter().position(&is_unwanted) {
            self.drop_piece(index);
        }
        self.ahead = 0;
    }

    /// Drops a piece, and keeps its memory for the next one.
    fn drop_piece(&mut self, index: usize) {
        let Some(piece) = self.pieces.remove(index) else { return };
        if let Some(ticket) = piece.ticket {
            self.file.cancel(ticket);
        }
        if piece.bytes.capacity() > self.spare.capacity() {
            self.spare = piece.bytes;
        }
    }
}

impl Read for RemoteReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.read_at(self.position, buffer).map_err(io::Error::other)?;
        self.position += count as u64;
        Ok(count)
    }
}

impl Seek for RemoteReader {
    /// Sets the position. Requests nothing: only reads move the read-ahead window.
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let position = match to {
            SeekFrom::Start(offset) => Some(offset),
            SeekFrom::End(distance) => self.file.size_bytes().checked_add_signed(distance),
            SeekFrom::Current(distance) => self.position.checked_add_signed(distance),
        };
        let is_before =
            || io::Error::new(io::ErrorKind::InvalidInput, "the position is before the start of the file");
        self.position = position.ok_or_else(is_before)?;
        Ok(self.position)
    }
}

impl Drop for RemoteReader {
    /// Cancels everything in flight.
    fn drop(&mut self) {
        self.give_up(|_| true);
    }
}
