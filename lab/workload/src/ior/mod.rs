//! IOR's pattern: every rank writes blocks of transfers, into a file of its own or a shared one, and
//! reads what another rank wrote.

mod open;
mod place;

use std::time::Duration;

use clap::{Args, ValueEnum};
use fordway_measure::{Shuffle, bytes_text};
use fordway_store::{Error, ErrorKind, Result};
use fordway_wire::size_text::parse_bytes;
use serde::Serialize;

use self::open::Open;
use self::place::Place;
use crate::pattern::Pattern;
use crate::phase::{Crew, Recorder};
use crate::{PhaseResult, Site};

/// The most transfers of one rank in random order, whose order is held in memory.
const MAX_RANDOM_TRANSFERS: u64 = 1 << 28;

/// How IOR works.
#[derive(Clone, Debug, Args, Serialize)]
pub struct IorPlan {
    /// What the other options start from
    #[arg(long, short, value_enum, default_value_t = Mode::Easy)]
    pub mode: Mode,
    /// Bytes of one read or write [easy: 2 MiB, hard: 47008, rnd: 4 KiB]
    #[arg(long, short, value_name = "SIZE", value_parser = parse_bytes)]
    pub transfer_size: Option<u64>,
    /// Bytes that a rank writes in a row; a multiple of the transfer [easy: 64 MiB, hard: 47008, rnd: 16 MiB]
    #[arg(long, short, value_name = "SIZE", value_parser = parse_bytes)]
    pub block_size: Option<u64>,
    /// Blocks of each rank [easy, rnd: 1, hard: 1000]
    #[arg(long, short, value_name = "N")]
    pub segments: Option<u64>,
    /// A file for each rank instead of a shared one; easy does so by itself
    #[arg(long, short = 'F')]
    pub file_per_process: bool,
    /// Read what the next rank wrote, so that no rank reads from its own memory
    #[arg(long, short = 'C')]
    pub reorder: bool,
    /// Stop writing after this many seconds; then all ranks go on to where the fastest stood
    #[arg(long, short = 'D', value_name = "SECONDS")]
    pub stonewall: Option<u64>,
    /// What a file is on S3
    #[arg(long, value_enum, default_value_t = Mapping::Fragment)]
    pub mapping: Mapping,
    /// Wait for stable storage before a written file counts as closed (posix alone)
    #[arg(long, short = 'e')]
    pub fsync: bool,
    /// Decides random orders
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// The three shapes of IO500.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Large aligned transfers, a file for each rank
    Easy,
    /// 47,008-byte transfers of all ranks interleaved in one file
    Hard,
    /// 4 KiB transfers in random order in one file
    Rnd,
}

/// What a file is where there are only objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mapping {
    /// Each transfer is an object, all in one bucket
    Fragment,
    /// Each file is a bucket, each transfer an object in it
    Bucket,
    /// Each file is an object, written as a multipart upload and read by ranges
    Multipart,
}

/// The plan with every choice made.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) name: String,
    pub(crate) transfer_bytes: u64,
    pub(crate) block_bytes: u64,
    pub(crate) segments: u64,
    pub(crate) file_per_process: bool,
    pub(crate) is_random: bool,
    /// Readers take the data of the rank this many further on.
    pub(crate) shift: usize,
    pub(crate) wall: Option<Duration>,
    pub(crate) mapping: Mapping,
    pub(crate) fsync: bool,
    pub(crate) seed: u64,
}

impl IorPlan {
    /// Makes every choice. Errors: `InvalidArgument` for sizes that do not go together.
    pub(crate) fn shape(&self) -> Result<Shape> {
        let (transfer, block, segments) = match self.mode {
            Mode::Easy => (2 << 20, 64 << 20, 1),
            Mode::Hard => (47_008, 47_008, 1000),
            Mode::Rnd => (4 << 10, 16 << 20, 1),
        };
        let transfer_bytes = self.transfer_size.unwrap_or(transfer);
        // In the hard shape a block is one transfer.
        let block = if self.mode == Mode::Hard { transfer_bytes } else { block };
        let shape = Shape {
            name: "ior".into(),
            transfer_bytes,
            block_bytes: self.block_size.unwrap_or(block),
            segments: self.segments.unwrap_or(segments),
            file_per_process: self.file_per_process || self.mode == Mode::Easy,
            is_random: self.mode == Mode::Rnd,
            shift: usize::from(self.reorder),
            wall: self.stonewall.map(Duration::from_secs),
            mapping: self.mapping,
            fsync: self.fsync,
            seed: self.seed,
        };
        shape.check()?;
        Ok(shape)
    }

    /// Errors: `InvalidArgument` for what cannot be done on `ranks`.
    pub(crate) fn check(&self, ranks: usize) -> Result<()> {
        let shape = self.shape()?;
        match shape.mapping {
            Mapping::Multipart => open::check_multipart(&shape, ranks),
            Mapping::Fragment | Mapping::Bucket => Ok(()),
        }
    }

    /// Writes, reads back and verifies; leaves the site to be removed.
    pub(crate) fn run(&self, crew: &Crew, site: &Site) -> Result<Vec<PhaseResult>> {
        let shape = self.shape()?;
        let (write, transfers) = write(crew, site, &shape)?;
        let read = read(crew, site, &shape, transfers)?;
        Ok(vec![write, read])
    }

    /// Removes the buckets of files that have their own.
    pub(crate) fn clean_up(&self, crew: &Crew, site: &Site) -> Result<()> {
        let (shape, rank) = (self.shape()?, crew.team.rank());
        crew.agree(Place::new(site, &shape, rank)?.remove(&shape, rank))
    }
}

impl Shape {
    fn check(&self) -> Result<()> {
        let invalid = |why: String| Err(Error::new(ErrorKind::InvalidArgument, why));
        let (transfer, block) = (self.transfer_bytes, self.block_bytes);
        if transfer == 0 || block == 0 || self.segments == 0 {
            return invalid("transfer, block and segments must each be at least 1".into());
        }
        if transfer > 4 << 30 {
            return invalid(format!(
                "a transfer of {} is held in memory whole; use at most 4 GiB",
                bytes_text(transfer)
            ));
        }
        if !block.is_multiple_of(transfer) {
            return invalid(format!(
                "a block of {block} bytes is no multiple of the transfer of {transfer}; change --block-size"
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

    /// Transfers of one rank.
    fn transfers(&self) -> u64 {
        self.block_bytes / self.transfer_bytes * self.segments
    }

    /// Where the transfer `number` of `rank` lies in its file.
    fn offset(&self, rank: usize, ranks: usize, number: u64) -> u64 {
        let in_block = self.block_bytes / self.transfer_bytes;
        let (segment, within) = (number / in_block, number % in_block * self.transfer_bytes);
        match self.file_per_process {
            true => segment * self.block_bytes + within,
            false => (segment * ranks as u64 + rank as u64) * self.block_bytes + within,
        }
    }

    /// The order of the transfers of `rank`, where it is not the order of their numbers.
    fn order(&self, rank: usize) -> Option<Vec<u32>> {
        self.is_random.then(|| {
            let mut order: Vec<u32> = (0..self.transfers() as u32).collect();
            Shuffle::new(self.seed ^ ((rank as u64) << 32)).shuffle(&mut order);
            order
        })
    }
}

/// Writes. Answers how many transfers each rank did.
pub(crate) fn write(crew: &Crew, site: &Site, shape: &Shape) -> Result<(PhaseResult, u64)> {
    let (rank, ranks) = (crew.team.rank(), crew.team.size());
    let place = Place::new(site, shape, rank)?;
    crew.agree(place.prepare(shape, rank))?;
    let mut pattern = Pattern::new(shape.transfer_bytes as usize);
    let order = shape.order(rank);
    let name = format!("{}-write", shape.name);
    let (mut results, transfers) = crew.phase(&[&name], site, |recorder| {
        let mut open = Open::for_writing(crew, &place, shape)?;
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

/// Reads the first `transfers` of each rank and verifies them.
pub(crate) fn read(crew: &Crew, site: &Site, shape: &Shape, transfers: u64) -> Result<PhaseResult> {
    let ranks = crew.team.size();
    let writer = (crew.team.rank() + shape.shift) % ranks;
    let place = Place::new(site, shape, writer)?;
    let mut pattern = Pattern::new(shape.transfer_bytes as usize);
    let order = shape.order(writer);
    let mut buffer = Vec::with_capacity(shape.transfer_bytes as usize);
    let name = format!("{}-read", shape.name);
    let work = |recorder: &mut Recorder| {
        let open = &Open::for_reading(&place, shape)?;
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
