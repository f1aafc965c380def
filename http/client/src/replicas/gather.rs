//! Reads ranges. With verification, jobs fetch the pieces that contain the ranges. Without verification, jobs fetch
//! exactly these ranges. This module also copies large parts of a file, in order or in any order.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::ops::Range;
use std::sync::{Arc, MutexGuard, PoisonError};

use fordway_store::{Error, ErrorKind, Result, check_room};

use super::ReplicatedFile;
use super::board::{RangeJobId, RangeJobResult, RangeJobScheduler};
use crate::vector::{FileDigest, Fragment, ReceivedRanges};

/// The maximum number of bytes in one job.
const JOB_BYTES: u64 = 4 << 20;
/// The maximum number of ranges in one job.
const JOB_RANGES_MAX: usize = 1_000;
/// The maximum total size, in bytes, of the verified pieces cached for later reads.
const KEPT_BYTES: u64 = 32 << 20;
/// The maximum number of bytes that one call keeps in flight.
const CALL_BYTES: usize = 32 << 20;

/// Submitted ranges. If no caller waits for the ranges, their bytes remain in memory until the file is closed.
#[derive(Debug)]
#[must_use = "`wait` returns the bytes"]
pub struct ReplicatedReadTicket {
    wanted: Vec<(u64, usize)>,
    jobs: Vec<RangeJobId>,
    memory: Vec<u8>,
}

/// Pieces that are in memory or in flight.
#[derive(Default)]
pub(super) struct PieceCache {
    /// For each piece, the job that contains the piece, and the offset within the job.
    pieces: HashMap<u64, (RangeJobId, usize)>,
    /// Cached jobs, oldest first, each with its pieces and its size in bytes.
    kept: VecDeque<(RangeJobId, Vec<u64>, u64)>,
}

impl ReplicatedFile {
    /// Reads from `offset` until `buffer` is full or the file ends; returns the number of bytes read. Errors: as for
    /// [`ReplicatedFile::read_ranges`], except that a read past the end is not an error.
    pub fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let there = self.size_bytes().saturating_sub(offset);
        let count = buffer.len().min(usize::try_from(there).unwrap_or(usize::MAX));
        if count > 0 {
            self.read_ranges(&mut [Fragment { offset, buffer: &mut buffer[..count] }])?;
        }
        Ok(count)
    }

    /// Fills all of `fragments`, which may overlap and be in any order. Errors: `InvalidRange` if a fragment exceeds
    /// the file, before anything is read; `BadDigest` if all remaining replicas sent bytes that do not match the
    /// digests; the replicas' errors if none of them sent anything. After an error, the content of the fragments is
    /// undefined. Cost: one [`crate::vector::RemoteFile::read_ranges`] over all pieces that overlap the fragments (only
    /// the fragments themselves if verification is off), plus one copy of the bytes.
    pub fn read_ranges(&self, fragments: &mut [Fragment<'_>]) -> Result<()> {
        let wanted: Vec<_> = fragments.iter().map(|part| (part.offset, part.buffer.len())).collect();
        self.check(&wanted)?;
        let mut pieces = Vec::new();
        for fragment in fragments.iter_mut() {
            let offset = fragment.offset;
            let chunks = fragment.buffer.chunks_mut(CALL_BYTES).enumerate();
            pieces.extend(chunks.map(|(index, chunk)| (offset + (index * CALL_BYTES) as u64, chunk)));
        }
        let mut under_way = VecDeque::new();
        let (mut rest, mut memory) = (pieces.as_mut_slice(), Vec::new());
        loop {
            while !rest.is_empty() && under_way.len() < 2 {
                let (call, after) = rest.split_at_mut(calls_end(rest));
                rest = after;
                let ranges: Vec<_> = call.iter().map(|(offset, chunk)| (*offset, chunk.len())).collect();
                under_way.push_back((call, self.submit(&ranges, std::mem::take(&mut memory))?));
            }
            let Some((call, ticket)) = under_way.pop_front() else { return Ok(()) };
            memory = self.wait(ticket)?.bytes;
            let mut from = memory.as_slice();
            for (_, chunk) in call {
                let (bytes, after) = from.split_at(chunk.len());
                chunk.copy_from_slice(bytes);
                from = after;
            }
        }
    }

    /// Requests `ranges` (offset, length) without waiting for them. `memory`, which may be empty, is reused for the
    /// bytes. Errors: `InvalidRange`, even if the cause is insufficient memory; [`ReplicatedFile::wait`] returns all
    /// other errors.
    pub fn submit(&self, ranges: &[(u64, usize)], memory: Vec<u8>) -> Result<ReplicatedReadTicket> {
        self.check(ranges)?;
        // For a short time, the bytes are in memory twice: as they arrived, and in the requested order.
        let lengths = ranges.iter().map(|(_, length)| *length);
        check_room(lengths.clone().chain(lengths)).map_err(|error| self.named(error))?;
        let jobs = {
            let mut board = self.shared.board();
            match &self.shared.pieces {
                Some(pieces) => {
                    self.cache().jobs_for(&mut board, ranges, (pieces.length_bytes, self.size_bytes()))
                }
                None => jobs_of(&mut board, ranges),
            }
        };
        self.shared.changed.notify_all();
        self.shared.ensure_streams();
        Ok(ReplicatedReadTicket { wanted: ranges.to_vec(), jobs, memory })
    }

    /// Waits for submitted ranges, and returns their bytes one range after the other. Errors: as for
    /// [`ReplicatedFile::read_ranges`].
    pub fn wait(&self, ticket: ReplicatedReadTicket) -> Result<ReceivedRanges> {
        let outcomes: Vec<(RangeJobId, RangeJobResult)> =
            ticket.jobs.iter().map(|id| (*id, self.shared.wait_job(*id))).collect();
        let mut bytes = ticket.memory;
        bytes.clear();
        let gathered = match &self.shared.pieces {
            Some(pieces) => self.cache().gather(&outcomes, &ticket.wanted, pieces.length_bytes, &mut bytes),
            None => append_all(&outcomes, &mut bytes),
        };
        self.let_go(ticket.jobs, &outcomes);
        gathered.map_err(|error| self.named(error))?;
        Ok(ReceivedRanges { bytes })
    }

    /// Cancels submitted ranges.
    pub fn cancel(&self, ticket: ReplicatedReadTicket) {
        self.let_go(ticket.jobs, &[]);
        self.shared.changed.notify_all();
    }

    fn let_go(&self, jobs: Vec<RangeJobId>, outcomes: &[(RangeJobId, RangeJobResult)]) {
        let (mut board, mut cache) = (self.shared.board(), self.cache());
        jobs.into_iter().for_each(|id| board.release(id));
        for (id, _) in outcomes.iter().filter(|(_, outcome)| outcome.is_err()) {
            cache.forget(&mut board, *id);
        }
        cache.shrink(&mut board);
    }

    fn cache(&self) -> MutexGuard<'_, PieceCache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn check(&self, ranges: &[(u64, usize)]) -> Result<()> {
        let size = self.size_bytes();
        let is_outside =
            |(offset, len): &&(u64, usize)| offset.checked_add(*len as u64).is_none_or(|end| end > size);
        let Some((offset, len)) = ranges.iter().find(is_outside) else { return Ok(()) };
        let detail = format!("{len} bytes at {offset} of a file of {size} bytes");
        Err(self.named(Error::new(ErrorKind::InvalidRange, detail)))
    }
}

/// Returns how many of the first pieces one call requests: as many as fit into 32 MiB, but at least one.
fn calls_end(pieces: &[(u64, &mut [u8])]) -> usize {
    let mut bytes = 0;
    let fits = pieces.iter().take_while(|(_, chunk)| {
        bytes += chunk.len();
        bytes <= CALL_BYTES
    });
    fits.count().max(1)
}

/// Adds jobs for exactly these ranges, in the given order.
fn jobs_of(board: &mut RangeJobScheduler, ranges: &[(u64, usize)]) -> Vec<RangeJobId> {
    let (mut jobs, mut rest) = (Vec::new(), ranges);
    while !rest.is_empty() {
        let mut bytes = 0;
        let fits = rest.iter().take(JOB_RANGES_MAX).take_while(|(_, len)| {
            bytes += *len as u64;
            bytes <= JOB_BYTES
        });
        let (job, after) = rest.split_at(fits.count().max(1));
        jobs.push(board.add(Arc::from(job)));
        rest = after;
    }
    jobs
}

fn append_all(outcomes: &[(RangeJobId, RangeJobResult)], bytes: &mut Vec<u8>) -> Result<()> {
    for (_, outcome) in outcomes {
        bytes.extend_from_slice(outcome.as_ref()?);
    }
    Ok(())
}

impl PieceCache {
    /// Returns the jobs, existing and new, for all pieces that overlap `ranges`.
    fn jobs_for(
        &mut self,
        board: &mut RangeJobScheduler,
        ranges: &[(u64, usize)],
        (length_bytes, size_bytes): (u64, u64),
    ) -> Vec<RangeJobId> {
        let mut wanted = BTreeSet::new();
        for (offset, len) in ranges.iter().filter(|(_, len)| *len > 0) {
            wanted.extend(offset / length_bytes..=(offset + *len as u64 - 1) / length_bytes);
        }
        let mut jobs: Vec<RangeJobId> = Vec::new();
        let mut missing = Vec::new();
        for piece in wanted {
            match self.pieces.get(&piece) {
                Some((job, _)) if jobs.contains(job) => {}
                Some((job, _)) => {
                    board.jobs.get_mut(job).into_iter().for_each(|job| job.interest += 1);
                    jobs.push(*job);
                }
                None => missing.push(piece),
            }
        }
        let per_job = usize::try_from(JOB_BYTES / length_bytes).unwrap_or(1).clamp(1, JOB_RANGES_MAX);
        for group in missing.chunks(per_job) {
            let range = |piece: &u64| {
                let offset = piece * length_bytes;
                (offset, length_bytes.min(size_bytes - offset) as usize)
            };
            let ranges: Vec<_> = group.iter().map(range).collect();
            let bytes = ranges.iter().map(|(_, len)| *len as u64).sum();
            let job = board.add(ranges.iter().copied().collect());
            // Each job is registered for the waiting caller and for the cache.
            board.jobs.get_mut(&job).into_iter().for_each(|job| job.interest += 1);
            let mut start = 0;
            for (piece, (_, len)) in group.iter().zip(&ranges) {
                self.pieces.insert(*piece, (job, start));
                start += len;
            }
            self.kept.push_back((job, group.to_vec(), bytes));
            jobs.push(job);
        }
        jobs
    }

    /// Appends the bytes of `ranges` from the pieces that contain them.
    fn gather(
        &self,
        outcomes: &[(RangeJobId, RangeJobResult)],
        ranges: &[(u64, usize)],
        length_bytes: u64,
        bytes: &mut Vec<u8>,
    ) -> Result<()> {
        let mut found: HashMap<RangeJobId, &[u8]> = HashMap::new();
        for (id, outcome) in outcomes {
            found.insert(*id, outcome.as_ref()?);
        }
        for (offset, len) in ranges {
            let (mut at, end) = (*offset, offset + *len as u64);
            while at < end {
                let piece = at / length_bytes;
                let count = (end.min((piece + 1) * length_bytes) - at) as usize;
                let place = self.pieces.get(&piece).and_then(|(job, start)| Some((found.get(job)?, start)));
                let within = (at % length_bytes) as usize;
                let taken = place.and_then(|(bytes, start)| bytes.get(start + within..)?.get(..count));
                bytes.extend_from_slice(taken.ok_or_else(lost)?);
                at += count as u64;
            }
        }
        Ok(())
    }

    /// Drops a failed job, so that later callers request its bytes again.
    fn forget(&mut self, board: &mut RangeJobScheduler, id: RangeJobId) {
        if let Some(at) = self.kept.iter().position(|(job, ..)| *job == id) {
            self.drop_kept(board, at);
        }
    }

    /// Drops the oldest pieces beyond the limit, except pieces that a caller is waiting for.
    fn shrink(&mut self, board: &mut RangeJobScheduler) {
        let mut kept_bytes: u64 = self.kept.iter().map(|(.., bytes)| bytes).sum();
        let mut at = 0;
        while kept_bytes > KEPT_BYTES && at < self.kept.len() {
            let (id, _, bytes) = self.kept[at];
            if board.jobs.get(&id).is_some_and(|job| job.interest > 1) {
                at += 1;
                continue;
            }
            kept_bytes -= bytes;
            self.drop_kept(board, at);
        }
    }

    fn drop_kept(&mut self, board: &mut RangeJobScheduler, at: usize) {
        let Some((id, pieces, _)) = self.kept.remove(at) else { return };
        for piece in pieces {
            if self.pieces.get(&piece).is_some_and(|(job, _)| *job == id) {
                self.pieces.remove(&piece);
            }
        }
        board.release(id);
    }
}

fn lost() -> Error {
    Error::new(ErrorKind::Internal, "a piece was dropped while a caller waited for it")
}

/// The unit of a copy if pieces are not verified.
pub(super) const UNIT_BYTES: u64 = 1 << 20;
/// The number of bytes in one job.
const COPY_JOB_BYTES: u64 = 4 << 20;
/// The maximum number of bytes that are in flight or have arrived out of order.
const AHEAD_BYTES: u64 = 64 << 20;

/// A function that consumes bytes at an offset.
pub(super) type OffsetByteSink<'a> = dyn FnMut(u64, &[u8]) -> Result<()> + 'a;

/// The jobs of a copy, added whenever there is room for them.
struct CopyJobQueue<'a> {
    file: &'a ReplicatedFile,
    /// Ranges of units that have no job yet.
    left: VecDeque<Range<u64>>,
    under_way: VecDeque<(RangeJobId, u64)>,
    under_way_bytes: u64,
    job_bytes: u64,
}

impl ReplicatedFile {
    /// Returns the size of the units in which the file is copied: the size of a piece if pieces are verified, otherwise
    /// 1 MiB.
    pub(super) fn unit_bytes(&self) -> u64 {
        self.shared.pieces.as_ref().map_or(UNIT_BYTES, |pieces| pieces.length_bytes)
    }

    /// Passes the bytes of `range` to `sink`, in order and exactly once. If `range` is the whole file and the
    /// description contains the file's digest, the bytes are also checked against this digest. Errors: as for
    /// [`ReplicatedFile::read_ranges`]; errors of `sink`, which end the copy; `BadDigest` at the end. Cost: about 64
    /// MiB of memory, or more if pieces are larger than 16 MiB.
    pub fn copy_range(&self, range: Range<u64>, sink: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let len = range.end.saturating_sub(range.start);
        self.check(&[(range.start, usize::try_from(len).unwrap_or(usize::MAX))])?;
        let is_whole = range == (0..self.size_bytes());
        let mut hash = self.hash.as_ref().filter(|_| is_whole).map(FileDigest::start);
        let unit = self.unit_bytes();
        let aligned = range.start / unit * unit..(range.end.div_ceil(unit) * unit).min(self.size_bytes());
        let mut copying = CopyJobQueue::new(self, VecDeque::from([aligned]));
        while let Some((offset, bytes)) = copying.next_in_order()? {
            let end = offset + bytes.len() as u64;
            let wanted = range.start.max(offset)..range.end.min(end);
            if wanted.is_empty() {
                continue;
            }
            let bytes = &bytes[(wanted.start - offset) as usize..(wanted.end - offset) as usize];
            hash.iter_mut().for_each(|hash| hash.update(bytes));
            sink(bytes)?;
        }
        let is_right =
            hash.zip(self.hash.as_ref()).is_none_or(|(running, stated)| stated.check(running).is_ok());
        if is_right { Ok(()) } else { Err(self.named(self.wrong_whole())) }
    }

    /// Passes the bytes of `ranges`, which must consist of whole units, to `sink` as they arrive.
    pub(super) fn copy_units(
        &self,
        ranges: VecDeque<Range<u64>>,
        sink: &mut OffsetByteSink<'_>,
    ) -> Result<()> {
        let mut copying = CopyJobQueue::new(self, ranges);
        while let Some((offset, bytes)) = copying.next_of_any()? {
            sink(offset, &bytes)?;
        }
        Ok(())
    }
}

impl<'a> CopyJobQueue<'a> {
    fn new(file: &'a ReplicatedFile, left: VecDeque<Range<u64>>) -> Self {
        let unit = file.unit_bytes();
        let job_bytes = (COPY_JOB_BYTES / unit).max(1) * unit;
        CopyJobQueue { file, left, under_way: VecDeque::new(), under_way_bytes: 0, job_bytes }
    }

    /// Adds jobs until [`AHEAD_BYTES`], or the size of two jobs if this is larger, are in flight or have arrived out of
    /// order.
    fn fill(&mut self) {
        let ahead_bytes = AHEAD_BYTES.max(2 * self.job_bytes);
        let mut board = self.file.shared.board();
        let before = self.under_way.len();
        while self.under_way_bytes < ahead_bytes
            && let Some(first) = self.left.front_mut()
        {
            let job = first.start..first.end.min(first.start + self.job_bytes);
            first.start = job.end;
            if first.is_empty() {
                self.left.pop_front();
            }
            if job.is_empty() {
                continue;
            }
            let unit = self.file.unit_bytes();
            let ranges: Vec<(u64, usize)> = (job.start..job.end)
                .step_by(usize::try_from(unit).unwrap_or(usize::MAX))
                .map(|start| (start, unit.min(job.end - start) as usize))
                .collect();
            self.under_way.push_back((board.add(Arc::from(ranges)), job.start));
            self.under_way_bytes += job.end - job.start;
        }
        board.expected_bytes = self.left.iter().map(|range| range.end - range.start).sum();
        if self.under_way.len() > before {
            self.file.shared.changed.notify_all();
        }
    }

    fn next_in_order(&mut self) -> Result<Option<(u64, Arc<Vec<u8>>)>> {
        self.fill();
        let Some((id, offset)) = self.under_way.front().copied() else { return Ok(None) };
        let outcome = self.file.shared.wait_job(id);
        self.under_way.pop_front();
        self.taken(id, offset, outcome)
    }

    fn next_of_any(&mut self) -> Result<Option<(u64, Arc<Vec<u8>>)>> {
        self.fill();
        if self.under_way.is_empty() {
            return Ok(None);
        }
        let under_way = &self.under_way;
        let waited = self.file.shared.wait_for(|board| {
            under_way
                .iter()
                .enumerate()
                .find_map(|(at, (id, _))| Some((at, board.jobs.get(id).and_then(|job| job.outcome.clone())?)))
        });
        let (at, outcome) = waited.map_err(|told| self.file.named((&told).into()))?;
        let Some((id, offset)) = self.under_way.remove(at) else { return Ok(None) };
        self.taken(id, offset, outcome)
    }

    fn taken(
        &mut self,
        id: RangeJobId,
        offset: u64,
        outcome: super::board::RangeJobResult,
    ) -> Result<Option<(u64, Arc<Vec<u8>>)>> {
        let mut board = self.file.shared.board();
        self.under_way_bytes -= board.jobs.get(&id).map_or(0, |job| job.bytes);
        board.release(id);
        drop(board);
        match outcome {
            Ok(bytes) => Ok(Some((offset, bytes))),
            Err(told) => Err(self.file.named((&told).into())),
        }
    }
}

impl Drop for CopyJobQueue<'_> {
    fn drop(&mut self) {
        let mut board = self.file.shared.board();
        board.expected_bytes = 0;
        self.under_way.drain(..).for_each(|(id, _)| board.release(id));
        drop(board);
        self.file.shared.changed.notify_all();
    }
}

impl ReplicatedFile {
    /// Returns the error for a copy of the whole file whose digest is wrong.
    pub(super) fn wrong_whole(&self) -> Error {
        let detail = match &self.hash {
            Some(digest) if self.is_hash_stated => {
                format!("the whole file does not match the {} that the server states", digest.name())
            }
            _ => "the whole file does not match the digest in the Metalink".to_owned(),
        };
        Error::new(ErrorKind::BadDigest, detail)
    }
}
