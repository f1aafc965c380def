//! IOR's pattern: every rank writes blocks of transfers to its own file or a shared file, and reads the data of another
//! rank. A file is a plain file, a prefix of objects (one for each transfer), or one object that is written as a
//! multipart upload.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use fordway_measure::{SeededRandom, bytes_text};
use fordway_store::{
    CompleteOptions, CompletedPart, ETag, Error, ErrorKind, ExpectedContent, Key, MAX_PARTS, MIN_PART_BYTES,
    PartOptions, PutOptions, Result, UploadId, Writer,
};
use fordway_sys::read_into_spare;
use fordway_wire::size_text::parse_bytes;
use serde::Serialize;

use super::site::PatternBuffer;
use crate::phase::{PhaseRecorder, WorkloadRank, decoded, encoded};
use crate::site::LocationBackend;
use crate::target::failed;
use crate::{MeasuredTarget, PhaseResult, WorkloadLocation};

/// The maximum number of transfers of one rank in random order. The order is kept in memory.
const MAX_RANDOM_TRANSFERS: u64 = 1 << 28;

/// The options of IOR's pattern.
#[derive(Clone, Debug, Args, Serialize)]
pub struct IorPlan {
    /// Preset for the other options
    #[arg(long, short, value_enum, default_value_t = IorPreset::Easy)]
    pub mode: IorPreset,
    /// Size of one read or write [default: 2 MiB for easy, 47008 for hard, 4 KiB for rnd]
    #[arg(long, short, value_name = "SIZE", value_parser = parse_bytes)]
    pub transfer_size: Option<u64>,
    /// Number of contiguous bytes that a rank writes, a multiple of the transfer size [default: 64 MiB for easy, 47008
    /// for hard, 16 MiB for rnd]
    #[arg(long, short, value_name = "SIZE", value_parser = parse_bytes)]
    pub block_size: Option<u64>,
    /// Number of blocks per rank [default: 1 for easy and rnd, 1000 for hard]
    #[arg(long, short, value_name = "N")]
    pub segments: Option<u64>,
    /// Use a file for each rank instead of a shared file; implied by --mode easy
    #[arg(long, short = 'F')]
    pub file_per_process: bool,
    /// Read the data that the next rank wrote, so that no rank reads its own cached data
    #[arg(long, short = 'C')]
    pub reorder: bool,
    /// After this many seconds, each rank stops as soon as it has written as much as the fastest rank had
    /// written by then
    #[arg(long, short = 'D', value_name = "SECONDS")]
    pub stonewall: Option<u64>,
    /// How a file is stored on S3
    #[arg(long, value_enum, default_value_t = IorMapping::Fragment)]
    pub mapping: IorMapping,
    /// Write files to stable storage before they are closed (only plain files)
    #[arg(long, short = 'e')]
    pub fsync: bool,
    /// Seed for random orders
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// The three access patterns of ior in IO500.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum IorPreset {
    /// Large aligned transfers, a file for each rank
    Easy,
    /// 47,008-byte transfers of all ranks interleaved in one file
    Hard,
    /// 4 KiB transfers in random order in one file
    Rnd,
}

/// How a file is represented on a lane that has only objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum IorMapping {
    /// Each transfer is an object, and all objects are in one bucket
    Fragment,
    /// Each file is a bucket, and each transfer is an object in this bucket
    Bucket,
    /// Each file is an object, written as a multipart upload and read in ranges
    Multipart,
}

/// The plan with all defaults resolved.
#[derive(Clone, Debug)]
pub(crate) struct ResolvedIorPlan {
    pub(crate) name: String,
    pub(crate) transfer_bytes: u64,
    pub(crate) block_bytes: u64,
    pub(crate) segments: u64,
    pub(crate) file_per_process: bool,
    pub(crate) is_random: bool,
    /// The offset from a reader's rank to the rank whose data it reads.
    pub(crate) shift: usize,
    pub(crate) wall: Option<Duration>,
    pub(crate) mapping: IorMapping,
    pub(crate) fsync: bool,
    pub(crate) seed: u64,
}

impl IorPlan {
    /// Resolves all defaults. Errors: `InvalidArgument` for inconsistent sizes.
    pub(crate) fn shape(&self) -> Result<ResolvedIorPlan> {
        let (transfer, block, segments) = match self.mode {
            IorPreset::Easy => (2 << 20, 64 << 20, 1),
            IorPreset::Hard => (47_008, 47_008, 1000),
            IorPreset::Rnd => (4 << 10, 16 << 20, 1),
        };
        let transfer_bytes = self.transfer_size.unwrap_or(transfer);
        // In hard mode a block is one transfer.
        let block = if self.mode == IorPreset::Hard { transfer_bytes } else { block };
        let shape = ResolvedIorPlan {
            name: "ior".into(),
            transfer_bytes,
            block_bytes: self.block_size.unwrap_or(block),
            segments: self.segments.unwrap_or(segments),
            file_per_process: self.file_per_process || self.mode == IorPreset::Easy,
            is_random: self.mode == IorPreset::Rnd,
            shift: usize::from(self.reorder),
            wall: self.stonewall.map(Duration::from_secs),
            mapping: self.mapping,
            fsync: self.fsync,
            seed: self.seed,
        };
        shape.check()?;
        Ok(shape)
    }

    /// Checks the plan for a run on `ranks` ranks. Errors: `InvalidArgument` if the plan is impossible.
    pub(crate) fn check(&self, ranks: usize) -> Result<()> {
        let shape = self.shape()?;
        match shape.mapping {
            IorMapping::Multipart => check_multipart(&shape, ranks),
            IorMapping::Fragment | IorMapping::Bucket => Ok(()),
        }
    }

    /// Writes all files, reads them back and verifies them. The caller removes the site.
    pub(crate) fn run(&self, crew: &WorkloadRank, site: &WorkloadLocation) -> Result<Vec<PhaseResult>> {
        let shape = self.shape()?;
        let (write, transfers) = write(crew, site, &shape)?;
        let read = read(crew, site, &shape, transfers)?;
        Ok(vec![write, read])
    }

    /// Removes the buckets, if each file is a bucket.
    pub(crate) fn clean_up(&self, crew: &WorkloadRank, site: &WorkloadLocation) -> Result<()> {
        let (shape, rank) = (self.shape()?, crew.team.rank());
        crew.agree(IorFile::new(site, &shape, rank)?.remove(&shape, rank))
    }
}

impl ResolvedIorPlan {
    fn check(&self) -> Result<()> {
        let invalid = |why: String| Err(Error::new(ErrorKind::InvalidArgument, why));
        let (transfer, block) = (self.transfer_bytes, self.block_bytes);
        if transfer == 0 || block == 0 || self.segments == 0 {
            return invalid("transfer, block and segments must each be at least 1".into());
        }
        if transfer > 4 << 30 {
            return invalid(format!(
                "a transfer of {} is too large, because each transfer is held in memory; use at most 4 GiB",
                bytes_text(transfer)
            ));
        }
        if !block.is_multiple_of(transfer) {
            return invalid(format!(
                "a block of {block} bytes is not a multiple of the transfer of {transfer}; change --block-size"
            ));
        }
        if block.checked_mul(self.segments).is_none_or(|bytes| bytes > i64::MAX as u64 >> 16) {
            return invalid(format!(
                "{} blocks of {} are more than a file can hold",
                self.segments,
                bytes_text(block)
            ));
        }
        if self.is_random && self.transfers() > MAX_RANDOM_TRANSFERS {
            return invalid(format!(
                "{} transfers in random order are more than {MAX_RANDOM_TRANSFERS}; use larger transfers or smaller blocks",
                self.transfers()
            ));
        }
        Ok(())
    }

    /// Returns the number of transfers of one rank.
    fn transfers(&self) -> u64 {
        self.block_bytes / self.transfer_bytes * self.segments
    }

    /// Returns the file offset of transfer `number` of `rank`.
    fn offset(&self, rank: usize, ranks: usize, number: u64) -> u64 {
        let in_block = self.block_bytes / self.transfer_bytes;
        let (segment, within) = (number / in_block, number % in_block * self.transfer_bytes);
        match self.file_per_process {
            true => segment * self.block_bytes + within,
            false => (segment * ranks as u64 + rank as u64) * self.block_bytes + within,
        }
    }

    /// Returns the order of the transfers of `rank`; `None` if the transfers are sequential.
    fn order(&self, rank: usize) -> Option<Vec<u32>> {
        self.is_random.then(|| {
            let mut order: Vec<u32> = (0..self.transfers() as u32).collect();
            SeededRandom::new(self.seed ^ ((rank as u64) << 32)).shuffle(&mut order);
            order
        })
    }
}

/// Writes the files. Returns the result, and the number of transfers that each rank wrote.
pub(crate) fn write(
    crew: &WorkloadRank,
    site: &WorkloadLocation,
    shape: &ResolvedIorPlan,
) -> Result<(PhaseResult, u64)> {
    let (rank, ranks) = (crew.team.rank(), crew.team.size());
    let place = IorFile::new(site, shape, rank)?;
    crew.agree(place.prepare(shape, rank))?;
    let mut pattern = PatternBuffer::new(shape.transfer_bytes as usize);
    let order = shape.order(rank);
    let name = format!("{}-write", shape.name);
    let (mut results, transfers) = crew.phase(&[&name], site, |recorder| {
        let mut open = OpenIorFile::for_writing(crew, &place, shape)?;
        let done = recorder.repeat(shape.transfers(), shape.wall, |recorder, turn| {
            let offset = shape.offset(rank, ranks, nth(order.as_deref(), turn));
            let content = pattern.stamped(rank as u64, offset);
            recorder.operation(0, shape.transfer_bytes, || open.write(offset, content), Ok);
        })?;
        recorder.expect(0, open.close(crew, shape));
        Ok(done)
    })?;
    Ok((results.remove(0), transfers))
}

/// Reads the first `transfers` transfers of each rank and verifies them.
pub(crate) fn read(
    crew: &WorkloadRank,
    site: &WorkloadLocation,
    shape: &ResolvedIorPlan,
    transfers: u64,
) -> Result<PhaseResult> {
    let ranks = crew.team.size();
    let writer = (crew.team.rank() + shape.shift) % ranks;
    let place = IorFile::new(site, shape, writer)?;
    let mut pattern = PatternBuffer::new(shape.transfer_bytes as usize);
    let order = shape.order(writer);
    let mut buffer = Vec::with_capacity(shape.transfer_bytes as usize);
    let name = format!("{}-read", shape.name);
    let work = |recorder: &mut PhaseRecorder| {
        let open = &OpenIorFile::for_reading(&place, shape)?;
        recorder.repeat(transfers, None, |recorder, turn| {
            let offset = shape.offset(writer, ranks, nth(order.as_deref(), turn));
            let buffer = &mut buffer;
            let check = |found: &Vec<u8>| match pattern.is(writer as u64, offset, found) {
                true => Ok(()),
                false => Err(place.wrong(offset)),
            };
            let bytes = shape.transfer_bytes;
            recorder.operation(0, bytes, || open.read(offset, bytes, buffer).map(|()| &*buffer), check);
        })
    };
    Ok(crew.phase(&[&name], site, work)?.0.remove(0))
}

fn nth(order: Option<&[u32]>, turn: u64) -> u64 {
    order.map_or(turn, |order| u64::from(order[turn as usize]))
}

/// The file of one rank, or the file shared by all ranks.
struct IorFile {
    site: WorkloadLocation,
    target: Box<dyn MeasuredTarget>,
    /// The file's name within the site; empty if the site itself is the file.
    name: String,
}

impl IorFile {
    /// Returns the file that `rank` writes.
    fn new(site: &WorkloadLocation, shape: &ResolvedIorPlan, rank: usize) -> Result<Self> {
        let file = match shape.file_per_process {
            true => format!("data.{rank:08}"),
            false => "data".to_owned(),
        };
        let is_bucket =
            shape.mapping == IorMapping::Bucket && matches!(site.means(), LocationBackend::Objects(..));
        let (site, name) = match is_bucket {
            true => (site.beside(&format!("{}-{file}", shape.name))?, String::new()),
            false => (site.clone(), format!("{}/{file}", shape.name)),
        };
        Ok(IorFile { target: site.target(), site, name })
    }

    /// Creates the directory that contains the file or, if the file is a bucket, the bucket. All ranks call this
    /// function.
    fn prepare(&self, shape: &ResolvedIorPlan, rank: usize) -> Result<()> {
        let is_mine = shape.file_per_process || rank == 0;
        match self.path() {
            Some(path) => fs::create_dir_all(path.parent().unwrap_or(&path)).map_err(|error| {
                Error::new(ErrorKind::from(&error), format!("creating the directory of {}", path.display()))
                    .caused_by(error)
            }),
            None if self.is_bucket() && is_mine => self.site.make(),
            None => Ok(()),
        }
    }

    /// Removes the file's bucket, if the file is a bucket that this run has created. All ranks call this function.
    fn remove(&self, shape: &ResolvedIorPlan, rank: usize) -> Result<()> {
        let is_mine = shape.file_per_process || rank == 0;
        if self.is_bucket() && is_mine { self.site.remove_if_made() } else { Ok(()) }
    }

    fn is_bucket(&self) -> bool {
        self.name.is_empty()
    }

    /// Returns the path of the file, if it is a plain file.
    fn path(&self) -> Option<PathBuf> {
        match self.site.means() {
            LocationBackend::Files(dir) => Some(dir.join(&self.name)),
            LocationBackend::Objects(..) => None,
        }
    }

    /// Returns the key of the whole file, if the file is one object.
    fn key(&self) -> Result<Key> {
        Key::new(&*self.name)
    }

    /// Returns the key of the transfer at `offset`, if each transfer is an object.
    fn fragment(&self, offset: u64) -> Result<Key> {
        match self.is_bucket() {
            true => Key::new(format!("{offset:016}")),
            false => Key::new(format!("{}/{offset:016}", self.name)),
        }
    }

    fn wrong(&self, offset: u64) -> Error {
        let what = format!("{} has different content at byte {offset} from what was written", self.name);
        // The advice for damaged objects does not fit the files of a benchmark.
        Error::new(ErrorKind::Corrupt, format!("{what}, on lane {}", self.site.lane().name)).with_advice("")
    }
}

/// The minimum size of parts in bytes, unless a block is smaller.
const PART_BYTES: u64 = 8 << 20;

enum OpenIorFile<'p> {
    File(File, Key),
    Fragments(&'p IorFile),
    Upload(RankUpload<'p>),
    Ranges(&'p IorFile, Key),
}

/// A multipart upload to which this rank sends parts.
struct RankUpload<'p> {
    place: &'p IorFile,
    key: Key,
    id: UploadId,
    part_bytes: u64,
    /// The part being written: its writer, its number, and its bytes so far.
    current: Option<(Box<dyn Writer>, u16, u64)>,
    /// The parts that were sent, by number and ETag.
    sent: Vec<(u16, String)>,
}

/// Returns the size of a part: whole transfers of about 8 MiB in total, or the whole block if the block is smaller.
fn part_bytes(shape: &ResolvedIorPlan) -> u64 {
    let transfers = PART_BYTES.div_ceil(shape.transfer_bytes);
    shape.block_bytes.min(transfers * shape.transfer_bytes)
}

/// Checks that the plan complies with S3's rules for multipart uploads. Errors: `InvalidArgument`.
fn check_multipart(shape: &ResolvedIorPlan, ranks: usize) -> Result<()> {
    let invalid = |why: String| Err(Error::new(ErrorKind::InvalidArgument, why));
    let part = part_bytes(shape);
    let writers = if shape.file_per_process { 1 } else { ranks as u64 };
    let parts = shape.block_bytes.div_ceil(part) * shape.segments * writers;
    if shape.is_random {
        return invalid("multipart uploads have no random order; use --mapping fragment".into());
    }
    if !shape.block_bytes.is_multiple_of(part) {
        return invalid(format!(
            "a block must be a multiple of the parts of {}; change --block-size",
            bytes_text(part)
        ));
    }
    if part < MIN_PART_BYTES && parts > 1 {
        return invalid(format!("parts of {} are below S3's 5 MiB; use larger blocks", bytes_text(part)));
    }
    if parts > u64::from(MAX_PARTS) {
        return invalid(format!("{parts} parts are more than S3's {MAX_PARTS}; use larger transfers"));
    }
    if shape.wall.is_some() && !shape.file_per_process {
        return invalid("a shared upload that stops early would have holes, which S3 does not support; use --file-per-process or no --stonewall".into());
    }
    Ok(())
}

impl<'p> OpenIorFile<'p> {
    /// Opens the file for writing. All ranks call this function. If the call fails on one rank, it fails on all ranks.
    fn for_writing(crew: &WorkloadRank, place: &'p IorFile, shape: &ResolvedIorPlan) -> Result<Self> {
        let opened = match (place.path(), shape.mapping) {
            (Some(_), _) => OpenIorFile::file(place, OpenOptions::new().read(true).write(true).create(true)),
            (None, IorMapping::Multipart) => {
                return RankUpload::start(crew, place, shape).map(OpenIorFile::Upload);
            }
            (None, _) => Ok(OpenIorFile::Fragments(place)),
        };
        let (opened, outcome) = opened.map_or_else(|error| (None, Err(error)), |open| (Some(open), Ok(())));
        crew.agree(outcome)?;
        opened.ok_or_else(|| ErrorKind::Internal.into())
    }

    /// Opens the file for reading.
    fn for_reading(place: &'p IorFile, shape: &ResolvedIorPlan) -> Result<Self> {
        match (place.path(), shape.mapping) {
            (Some(_), _) => OpenIorFile::file(place, OpenOptions::new().read(true)),
            (None, IorMapping::Multipart) => Ok(OpenIorFile::Ranges(place, place.key()?)),
            (None, _) => Ok(OpenIorFile::Fragments(place)),
        }
    }

    fn file(place: &IorFile, options: &OpenOptions) -> Result<Self> {
        let (path, key) = (place.path().unwrap_or_default(), place.key()?);
        match options.open(path) {
            Ok(file) => Ok(OpenIorFile::File(file, key)),
            Err(error) => Err(failed("open", "posix", &key, error)),
        }
    }

    fn write(&mut self, offset: u64, content: &[u8]) -> Result<()> {
        match self {
            OpenIorFile::File(file, key) => {
                file.write_all_at(content, offset).map_err(|error| failed("pwrite", "posix", key, error))
            }
            OpenIorFile::Fragments(place) => place.target.put(&place.fragment(offset)?, content),
            OpenIorFile::Upload(upload) => upload.write(offset, content),
            OpenIorFile::Ranges(..) => Err(ErrorKind::MethodNotAllowed.into()),
        }
    }

    fn read(&self, offset: u64, len: u64, buffer: &mut Vec<u8>) -> Result<()> {
        buffer.clear();
        match self {
            OpenIorFile::File(file, key) => {
                let read = read_into_spare(file, buffer, offset, len as usize);
                read.map(drop).map_err(|error| failed("pread", "posix", key, error.into()))
            }
            OpenIorFile::Fragments(place) => place.target.get(&place.fragment(offset)?, buffer),
            OpenIorFile::Ranges(place, key) => place.target.get_range(key, offset, len, buffer),
            OpenIorFile::Upload(_) => Err(ErrorKind::MethodNotAllowed.into()),
        }
    }

    /// Closes a written file: syncs a plain file if the plan requires it, and completes an upload. All ranks call this
    /// function.
    fn close(self, crew: &WorkloadRank, shape: &ResolvedIorPlan) -> Result<()> {
        match self {
            OpenIorFile::File(file, key) if shape.fsync => {
                file.sync_all().map_err(|error: io::Error| failed("fsync", "posix", &key, error))
            }
            OpenIorFile::Upload(upload) => upload.complete(crew, shape),
            _ => Ok(()),
        }
    }
}

impl<'p> RankUpload<'p> {
    /// Creates the upload of a shared file on rank 0, or one upload on each rank.
    fn start(crew: &WorkloadRank, place: &'p IorFile, shape: &ResolvedIorPlan) -> Result<Self> {
        let key = place.key()?;
        let begins = shape.file_per_process || crew.is_first();
        let begun = match place.site.means() {
            LocationBackend::Objects(store, bucket) if begins => {
                store.create_upload(bucket, &key, &PutOptions::default()).map(|id| id.as_str().to_owned())
            }
            _ => Ok(String::new()),
        };
        let (mut id, outcome) = begun.map_or_else(|error| (String::new(), Err(error)), |id| (id, Ok(())));
        crew.agree(outcome)?;
        if !shape.file_per_process {
            id = decoded(&crew.team.broadcast(encoded(&id)?)?)?;
        }
        let (part_bytes, current, sent) = (part_bytes(shape), None, Vec::new());
        Ok(RankUpload { place, key, id: UploadId::new(id)?, part_bytes, current, sent })
    }

    /// Writes one transfer. Parts are numbered by their position in the file, so that the parts of all ranks form one
    /// sequence.
    fn write(&mut self, offset: u64, content: &[u8]) -> Result<()> {
        let LocationBackend::Objects(store, bucket) = self.place.site.means() else {
            return Err(ErrorKind::Internal.into());
        };
        if self.current.is_none() {
            let number = (offset / self.part_bytes + 1) as u16;
            let options = PartOptions { size_hint: Some(self.part_bytes), ..Default::default() };
            let writer = store.part_writer(bucket, &self.key, &self.id, number, &options)?;
            self.current = Some((writer, number, 0));
        }
        if let Some((writer, _, bytes)) = &mut self.current {
            writer.write(content)?;
            *bytes += content.len() as u64;
            if *bytes < self.part_bytes {
                return Ok(());
            }
        }
        self.send()
    }

    /// Finishes the part being written, if there is one.
    fn send(&mut self) -> Result<()> {
        if let Some((writer, number, bytes)) = self.current.take() {
            let expected = ExpectedContent { size: Some(bytes), ..Default::default() };
            let sent = writer.commit(&expected)?;
            self.sent.push((number, sent.etag.as_str().to_owned()));
        }
        Ok(())
    }

    fn complete(mut self, crew: &WorkloadRank, shape: &ResolvedIorPlan) -> Result<()> {
        let outcome = self.send();
        let mut sent = std::mem::take(&mut self.sent);
        if !shape.file_per_process {
            let all = crew.team.gather(encoded(&sent)?)?;
            let lists = all.iter().map(|one| decoded(one)).collect::<Result<Vec<Vec<(u16, String)>>>>()?;
            sent = lists.concat();
        }
        outcome?;
        sent.sort_unstable();
        let parts: Vec<_> =
            sent.iter().map(|(number, tag)| CompletedPart::new(*number, ETag::new(tag))).collect();
        match self.place.site.means() {
            LocationBackend::Objects(store, bucket) if shape.file_per_process || crew.is_first() => {
                let options = CompleteOptions::default();
                store.complete_upload(bucket, &self.key, &self.id, &parts, &options).map(drop)
            }
            _ => Ok(()),
        }
    }
}
