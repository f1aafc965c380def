//! Much of a file: in order, or in whatever order it comes.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use fordway_store::{Error, ErrorKind, Result};
use fordway_wire::file_hash::RunningHash;

use super::ReplicatedFile;
use super::board::JobId;

/// What is handed out at once where no pieces say it.
pub(super) const UNIT_BYTES: u64 = 1 << 20;
/// Bytes of one job.
const JOB_BYTES: u64 = 4 << 20;
/// Bytes on their way or waiting for their turn.
const AHEAD_BYTES: u64 = 64 << 20;

/// Takes bytes and where they belong.
pub(super) type PlacedSink<'a> = dyn FnMut(u64, &[u8]) -> Result<()> + 'a;

/// Jobs of a copy, made as there is room for them.
struct Copying<'a> {
    file: &'a ReplicatedFile,
    /// Ranges of units that no job is made of yet.
    left: VecDeque<Range<u64>>,
    under_way: VecDeque<(JobId, u64)>,
    under_way_bytes: u64,
    job_bytes: u64,
}

impl ReplicatedFile {
    /// Bytes in which the file is handed out: a piece, where pieces are verified.
    pub(super) fn unit_bytes(&self) -> u64 {
        self.shared.pieces.as_ref().map_or(UNIT_BYTES, |pieces| pieces.length_bytes)
    }

    /// Hands the bytes of `range` to `sink`, in order and each of them once. The whole file is held
    /// against its digest as it passes, if there is one.
    /// Errors: as [`ReplicatedFile::read_ranges`], and errors of `sink`, which end it; `BadDigest` at the end.
    /// Cost: 64 MiB of memory at most, unless pieces are larger than 16 MiB.
    pub fn copy_range(&self, range: Range<u64>, sink: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let len = range.end.saturating_sub(range.start);
        self.check(&[(range.start, usize::try_from(len).unwrap_or(usize::MAX))])?;
        let is_whole = range == (0..self.size_bytes());
        let mut hash = self.hash.as_ref().filter(|_| is_whole).map(|hash| RunningHash::new(hash.kind));
        let unit = self.unit_bytes();
        let aligned = range.start / unit * unit..(range.end.div_ceil(unit) * unit).min(self.size_bytes());
        let mut copying = Copying::new(self, VecDeque::from([aligned]));
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
        match hash.map(RunningHash::finish) {
            Some(found) if Some(&found) != self.hash.as_ref() => Err(self.named(wrong_whole())),
            _ => Ok(()),
        }
    }

    /// Hands the bytes of `ranges`, which begin and end with units, to `sink` as they come.
    pub(super) fn copy_units(&self, ranges: VecDeque<Range<u64>>, sink: &mut PlacedSink<'_>) -> Result<()> {
        let mut copying = Copying::new(self, ranges);
        while let Some((offset, bytes)) = copying.next_of_any()? {
            sink(offset, &bytes)?;
        }
        Ok(())
    }
}

impl<'a> Copying<'a> {
    fn new(file: &'a ReplicatedFile, left: VecDeque<Range<u64>>) -> Self {
        let unit = file.unit_bytes();
        let job_bytes = (JOB_BYTES / unit).max(1) * unit;
        Copying { file, left, under_way: VecDeque::new(), under_way_bytes: 0, job_bytes }
    }

    /// Makes jobs as long as there is room.
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
        let (at, outcome) = self.file.shared.wait_for(|board| {
            under_way
                .iter()
                .enumerate()
                .find_map(|(at, (id, _))| Some((at, board.jobs.get(id).and_then(|job| job.outcome.clone())?)))
        });
        let Some((id, offset)) = self.under_way.remove(at) else { return Ok(None) };
        self.taken(id, offset, outcome)
    }

    fn taken(
        &mut self,
        id: JobId,
        offset: u64,
        outcome: super::board::Outcome,
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

impl Drop for Copying<'_> {
    fn drop(&mut self) {
        let mut board = self.file.shared.board();
        board.expected_bytes = 0;
        self.under_way.drain(..).for_each(|(id, _)| board.release(id));
        drop(board);
        self.file.shared.changed.notify_all();
    }
}

pub(super) fn wrong_whole() -> Error {
    let detail = "the whole file does not have the digest that the Metalink states";
    Error::new(ErrorKind::BadDigest, detail)
}
