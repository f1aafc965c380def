//! A file that is filled in place, in any order, and can be resumed after `kill -9`.
//!
//! If the digests of the file's pieces are known, the digests show which parts of an unfinished file are valid. If no
//! digests are known, a mark of one byte is written past the end of the file after each complete unit. The complete
//! file is truncated to its size, which removes the marks.
//!
//! Missing units are stored as runs, so that memory use grows with the bytes that have arrived, not with the size that
//! a server reports.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use fordway_store::{Error, ErrorKind, Result};
use fordway_wire::file_hash::FileHash;
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

use super::ReplicatedFile;
use crate::vector::{DigestHasher, FileDigest};

/// The maximum number of bytes read back in one call.
const CHUNK_BYTES: usize = 1 << 20;

/// A function that receives the number of newly arrived bytes; an error that it returns ends the copy.
pub(super) type ProgressCallback<'a> = dyn FnMut(u64) -> Result<()> + 'a;

/// A part file that is being filled.
struct PartFileWriter<'a> {
    file: &'a ReplicatedFile,
    part: &'a File,
    unit_bytes: u64,
    missing: MissingUnits,
    has_marks: bool,
    /// The digest of the first `hashed_bytes` bytes.
    hash: Option<DigestHasher>,
    hashed_bytes: u64,
}

impl ReplicatedFile {
    /// Completes `part`, which must be open for reading and writing. Reuses bytes that an earlier call left in `part`
    /// if a digest can verify them. Returns the number of reused bytes. Calls `progress` with the number of reused
    /// bytes first, and then with the number of new bytes as they arrive. Errors: as for
    /// [`ReplicatedFile::copy_range`], errors of `progress`, and errors of the file system such as `Io` and `NoSpace`.
    pub fn complete(&self, part: &File, progress: &mut ProgressCallback<'_>) -> Result<u64> {
        let mut growing = PartFileWriter::open(self, part).map_err(io_error)?;
        let size = self.size_bytes();
        let resumed_bytes = size - growing.missing_bytes();
        progress(resumed_bytes)?;
        let mut is_ours = resumed_bytes == 0;
        loop {
            growing.fetch(progress)?;
            if growing.is_right().map_err(io_error)? {
                break;
            }
            self.find_who_lied(is_ours)?;
            growing.begin_again().map_err(io_error)?;
            is_ours = true;
        }
        self.shared.board().sites.iter_mut().for_each(|site| site.is_set_aside = false);
        part.set_len(size).map_err(io_error)?;
        Ok(resumed_bytes)
    }

    /// Finds the replica that sent wrong bytes. Called if the digest of the file does not match. Without digests of
    /// pieces, it is not known which part is wrong. If one replica sent the whole file, that replica is at fault, and
    /// is not used again. In all cases, the best remaining replica must now send the whole file, and the others are not
    /// used in the meantime. Errors: `BadDigest` if there are digests of pieces, which have already been checked; the
    /// replicas' errors if no replica remains.
    fn find_who_lied(&self, is_ours: bool) -> Result<()> {
        let mut board = self.shared.board();
        if self.shared.pieces.is_some() {
            let detail = "its pieces match the digests in the Metalink, but the whole file does not";
            return Err(self.named(Error::new(ErrorKind::BadDigest, detail)));
        }
        let gave: Vec<usize> =
            (0..board.sites.len()).filter(|at| board.sites[*at].delivered_bytes > 0).collect();
        if let ([site], true) = (gave.as_slice(), is_ours) {
            board.failed(*site, &self.wrong_whole(), true, std::time::Instant::now());
        }
        let candidate = (0..board.sites.len()).filter(|at| board.sites[*at].out.is_none());
        let now = std::time::Instant::now();
        let Some(candidate) = candidate.min_by_key(|at| board.sites[*at].rank(now)) else {
            return Err(self.named((&super::site::told(&board.sites)).into()));
        };
        for (at, site) in board.sites.iter_mut().enumerate() {
            site.is_set_aside = at != candidate;
            site.delivered_bytes = 0;
        }
        drop(board);
        self.shared.changed.notify_all();
        Ok(())
    }
}

impl<'a> PartFileWriter<'a> {
    fn open(file: &'a ReplicatedFile, part: &'a File) -> io::Result<Self> {
        let unit_bytes = file.unit_bytes();
        let units = file.size_bytes().div_ceil(unit_bytes);
        let hash = file.hash.as_ref().map(FileDigest::start);
        let has_marks = file.shared.pieces.is_none();
        let missing = MissingUnits::all(units);
        let mut growing =
            PartFileWriter { file, part, unit_bytes, missing, has_marks, hash, hashed_bytes: 0 };
        let there = part.metadata()?.len();
        match (has_marks, &file.hash) {
            (false, _) => growing.find_right_pieces(there)?,
            (true, Some(_)) => growing.find_marked_units(there)?,
            (true, None) => part.set_len(0)?,
        }
        part.set_len(growing.len_bytes())?;
        Ok(growing)
    }

    /// Returns the length of the unfinished file: the size of the complete file, plus one byte per unit if there are
    /// marks.
    fn len_bytes(&self) -> u64 {
        let size = self.file.size_bytes();
        size + if self.has_marks { self.units() } else { 0 }
    }

    fn units(&self) -> u64 {
        self.file.size_bytes().div_ceil(self.unit_bytes)
    }

    fn len_of(&self, unit: u64) -> usize {
        self.unit_bytes.min(self.file.size_bytes() - unit * self.unit_bytes) as usize
    }

    fn missing_bytes(&self) -> u64 {
        let runs = self.missing.byte_ranges(self.unit_bytes, self.file.size_bytes());
        runs.iter().map(|run| run.end - run.start).sum()
    }

    fn find_right_pieces(&mut self, there: u64) -> io::Result<()> {
        let Some(pieces) = &self.file.shared.pieces else { return Ok(()) };
        let mut buffer = Vec::new();
        for (unit, hex) in (0..).zip(&pieces.hex) {
            let len = self.len_of(unit);
            if unit * self.unit_bytes + len as u64 > there {
                break;
            }
            buffer.resize(len, 0);
            self.part.read_exact_at(&mut buffer, unit * self.unit_bytes)?;
            if FileHash::of(pieces.kind, &buffer).hex == *hex {
                self.missing.remove(unit..unit + 1);
            }
        }
        Ok(())
    }

    /// Finds the units that are already complete. A file that is too short to have marks was written from start to end.
    fn find_marked_units(&mut self, there: u64) -> io::Result<()> {
        let size = self.file.size_bytes();
        if there == self.len_bytes() && there > size {
            return self.read_marks();
        }
        // Any bytes past the size are not marks that this code wrote, so drop these bytes.
        self.part.set_len(there.min(size))?;
        self.part.set_len(self.len_bytes())?;
        if there <= size {
            let whole = if there == size { self.units() } else { there / self.unit_bytes };
            self.missing.remove(0..whole);
            self.mark(0..whole)?;
        }
        Ok(())
    }

    /// Reads the marks of complete units. Skips holes, which contain no marks, because a large declared size may mean a
    /// huge number of units.
    fn read_marks(&mut self) -> io::Result<()> {
        let size = self.file.size_bytes();
        let mut marks = vec![0; CHUNK_BYTES];
        let mut at = size;
        while let Some(data) = self.data_behind(at)? {
            at = data.end.min(data.start + CHUNK_BYTES as u64);
            let marks = &mut marks[..(at - data.start) as usize];
            self.part.read_exact_at(marks, data.start)?;
            for (unit, _) in (data.start - size..).zip(marks).filter(|(_, mark)| **mark == b'x') {
                self.missing.remove(unit..unit + 1);
            }
        }
        Ok(())
    }

    /// Returns the next range of written bytes in the file, from `at` on. A file system that does not support holes
    /// reports all bytes as written.
    fn data_behind(&self, at: u64) -> io::Result<Option<Range<u64>>> {
        let end = self.len_bytes();
        if at >= end {
            return Ok(None);
        }
        let start = match seek(self.part, SeekFrom::Data(at)) {
            Ok(start) => start.max(at),
            Err(Errno::NXIO) => return Ok(None),
            Err(Errno::INVAL | Errno::OPNOTSUPP) => at,
            Err(error) => return Err(error.into()),
        };
        let hole = seek(self.part, SeekFrom::Hole(start)).unwrap_or(end).min(end);
        Ok((start < end).then_some(start..hole.max(start + 1)))
    }

    /// Marks `units` as complete, with one byte for each unit past the end of the content.
    fn mark(&self, units: Range<u64>) -> io::Result<()> {
        let (mut at, end) = (self.file.size_bytes() + units.start, self.file.size_bytes() + units.end);
        while at < end {
            let count = (end - at).min(CHUNK_BYTES as u64);
            self.part.write_all_at(&vec![b'x'; count as usize], at)?;
            at += count;
        }
        Ok(())
    }

    fn fetch(&mut self, progress: &mut ProgressCallback<'_>) -> Result<()> {
        let wanted = self.missing.byte_ranges(self.unit_bytes, self.file.size_bytes());
        let file = self.file;
        file.copy_units(wanted, &mut |offset, bytes| {
            self.put(offset, bytes).map_err(io_error)?;
            progress(bytes.len() as u64)
        })
    }

    fn put(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.part.write_all_at(bytes, offset)?;
        let first = offset / self.unit_bytes;
        let units = first..first + (bytes.len() as u64).div_ceil(self.unit_bytes);
        if self.has_marks {
            self.mark(units.clone())?;
        }
        self.missing.remove(units);
        if offset == self.hashed_bytes {
            self.hash.iter_mut().for_each(|hash| hash.update(bytes));
            self.hashed_bytes += bytes.len() as u64;
        }
        self.hash_what_follows()
    }

    /// Adds the next contiguous bytes of the file to the digest.
    fn hash_what_follows(&mut self) -> io::Result<()> {
        let Some(hash) = &mut self.hash else { return Ok(()) };
        let end = self.missing.first().map_or(self.file.size_bytes(), |unit| unit * self.unit_bytes);
        let mut buffer = Vec::new();
        while self.hashed_bytes < end {
            buffer.resize(CHUNK_BYTES.min((end - self.hashed_bytes) as usize), 0);
            self.part.read_exact_at(&mut buffer, self.hashed_bytes)?;
            hash.update(&buffer);
            self.hashed_bytes += buffer.len() as u64;
        }
        Ok(())
    }

    fn is_right(&mut self) -> io::Result<bool> {
        self.hash_what_follows()?;
        let stated = self.file.hash.as_ref();
        Ok(self.hash.take().zip(stated).is_none_or(|(running, stated)| stated.check(running).is_ok()))
    }

    fn begin_again(&mut self) -> io::Result<()> {
        self.missing = MissingUnits::all(self.units());
        self.hash = self.file.hash.as_ref().map(FileDigest::start);
        self.hashed_bytes = 0;
        // Truncate the file to drop the marks, because no byte of the file is known to be valid.
        self.part.set_len(0)?;
        self.part.set_len(self.len_bytes())
    }
}

fn io_error(error: io::Error) -> Error {
    Error::new(ErrorKind::from(&error), "writing the destination file").caused_by(error)
}

/// The indices of the missing units, as runs that neither touch nor overlap. Maps the first unit of each run to the
/// run's end (exclusive).
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct MissingUnits(BTreeMap<u64, u64>);

impl MissingUnits {
    /// Returns all units of a file with `count` units.
    pub(super) fn all(count: u64) -> Self {
        MissingUnits((count > 0).then_some((0, count)).into_iter().collect())
    }

    /// Removes `units`, which are now complete. Cost: logarithmic in the total number of runs, and linear in the number
    /// of affected runs.
    pub(super) fn remove(&mut self, units: Range<u64>) {
        if units.is_empty() {
            return;
        }
        let before = self.0.range(..units.start).next_back().map(|(start, end)| (*start, *end));
        if let Some((start, end)) = before.filter(|(_, end)| *end > units.start) {
            self.0.insert(start, units.start);
            self.keep_behind(units.end, end);
        }
        while let Some((start, end)) = self.0.range(units.clone()).next().map(|(start, end)| (*start, *end)) {
            self.0.remove(&start);
            self.keep_behind(units.end, end);
        }
    }

    fn keep_behind(&mut self, start: u64, end: u64) {
        if end > start {
            self.0.insert(start, end);
        }
    }

    /// Returns the first missing unit.
    pub(super) fn first(&self) -> Option<u64> {
        self.0.keys().next().copied()
    }

    /// Returns the runs, from first to last.
    pub(super) fn runs(&self) -> impl Iterator<Item = Range<u64>> {
        self.0.iter().map(|(start, end)| *start..*end)
    }

    /// Returns the runs as byte ranges of a file of `size_bytes` in units of `unit_bytes`.
    pub(super) fn byte_ranges(&self, unit_bytes: u64, size_bytes: u64) -> VecDeque<Range<u64>> {
        let bytes = |unit: u64| unit.saturating_mul(unit_bytes).min(size_bytes);
        self.runs().map(|run| bytes(run.start)..bytes(run.end)).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn neighbours_are_one_run() {
        let mut missing = MissingUnits::all(7);
        missing.remove(2..4);
        missing.remove(5..6);
        assert_eq!(missing.byte_ranges(10, 65), [0..20, 40..50, 60..65]);
        assert!(MissingUnits::all(0).byte_ranges(10, 0).is_empty());
        assert!(MissingUnits::all(u64::MAX).byte_ranges(1 << 20, 1 << 62).iter().eq([&(0..1 << 62)]));
    }

    proptest! {
        #[test]
        fn it_is_a_set(removed in prop::collection::vec((0_u64..40, 0_u64..9), 0..20)) {
            let (mut missing, mut model) = (MissingUnits::all(40), (0..40).collect::<BTreeSet<u64>>());
            for (start, count) in removed {
                let units = start..(start + count).min(40);
                missing.remove(units.clone());
                model.retain(|unit| !units.contains(unit));
                let found: Vec<u64> = missing.runs().flatten().collect();
                prop_assert_eq!(&found, &model.iter().copied().collect::<Vec<_>>());
                prop_assert_eq!(missing.first(), model.first().copied());
                let runs: Vec<_> = missing.runs().collect();
                prop_assert!(runs.windows(2).all(|pair| pair[0].end < pair[1].start));
            }
        }
    }
}
