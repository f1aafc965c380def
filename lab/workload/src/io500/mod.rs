//! IO500's phases, in their order, on any lane.

mod find;
pub mod published;
mod score;

pub use score::score;
pub(crate) use score::{figure, unit};

use std::time::Duration;

use clap::Args;
use fordway_store::{Error, ErrorKind, Result};
use fordway_wire::size_text::parse_bytes;
use serde::Serialize;

use crate::ior::{self, Mapping, Shape};
use crate::mdtest::{Files, HARD_BYTES, Removal};
use crate::phase::Crew;
use crate::{PhaseResult, Site};

/// What a run must last to count, by IO500's rules: the stonewall of every writing phase.
pub const COMPLIANT_SECONDS: u64 = 300;

/// How IO500 works.
#[derive(Clone, Debug, Args, Serialize)]
pub struct Io500Plan {
    /// Seconds that each writing phase lasts; below 300 the result is stamped non-compliant
    #[arg(long, value_name = "SECONDS", default_value_t = COMPLIANT_SECONDS)]
    pub stonewall: u64,
    /// The most bytes that each rank writes in ior-easy
    #[arg(long, value_name = "SIZE", default_value = "9920000MiB", value_parser = parse_bytes)]
    pub easy_bytes: u64,
    /// The most transfers of each rank in ior-hard
    #[arg(long, value_name = "N", default_value_t = 10_000_000)]
    pub hard_transfers: u64,
    /// The most files of each rank in mdtest-easy
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    pub easy_files: u64,
    /// The most files of each rank in mdtest-hard
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    pub hard_files: u64,
    /// How a file is removed on S3
    #[arg(long, value_enum, default_value_t = Removal::Direct)]
    pub delete: Removal,
}

/// Bytes of one transfer of ior-easy.
const EASY_TRANSFER_BYTES: u64 = 2 << 20;
/// Bytes of one transfer of ior-hard.
const HARD_TRANSFER_BYTES: u64 = 47_008;

impl Io500Plan {
    /// Why a result cannot be compared with others'; nothing if it can.
    pub fn stamp(&self, results: &[PhaseResult]) -> Option<String> {
        let short: Vec<&str> = results
            .iter()
            .filter(|result| result.phase.ends_with("-write"))
            .filter(|result| result.wall_ns() < COMPLIANT_SECONDS * 1_000_000_000)
            .map(|result| result.phase.as_str())
            .collect();
        match short.is_empty() {
            true => None,
            false => {
                Some(format!("non-compliant (short run: {} below {COMPLIANT_SECONDS} s)", short.join(", ")))
            }
        }
    }

    /// Errors: `InvalidArgument`.
    pub(crate) fn check(&self) -> Result<()> {
        if self.easy_bytes < EASY_TRANSFER_BYTES {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                "--easy-bytes must be at least 2 MiB, one transfer",
            ));
        }
        if [self.hard_transfers, self.easy_files, self.hard_files, self.stonewall].contains(&0) {
            let why = "--stonewall, --hard-transfers, --easy-files and --hard-files must be at least 1";
            return Err(Error::new(ErrorKind::InvalidArgument, why));
        }
        Ok(())
    }

    pub(crate) fn run(&self, crew: &Crew, site: &Site) -> Result<Vec<PhaseResult>> {
        let (easy, hard) = (self.ior("ior-easy"), self.ior("ior-hard"));
        let (many, shared) = (self.mdtest("mdtest-easy"), self.mdtest("mdtest-hard"));
        let mut results = Vec::new();
        let mut keep = |(result, count)| {
            results.push(result);
            count
        };
        let easy_transfers = keep(ior::write(crew, site, &easy)?);
        let many_items = keep(many.create(crew, site, "write")?);
        let stamp = find::timestamp(crew, site)?;
        let hard_transfers = keep(ior::write(crew, site, &hard)?);
        let shared_items = keep(shared.create(crew, site, "write")?);
        results.push(find::find(crew, site, &[&many, &shared], stamp, shared_items)?);
        results.push(ior::read(crew, site, &easy, easy_transfers)?);
        results.push(many.stat(crew, site, many_items)?);
        results.push(ior::read(crew, site, &hard, hard_transfers)?);
        results.push(shared.stat(crew, site, shared_items)?);
        results.push(many.delete(crew, site, many_items)?);
        results.push(shared.read(crew, site, shared_items)?);
        results.push(shared.delete(crew, site, shared_items)?);
        Ok(results)
    }

    fn ior(&self, name: &str) -> Shape {
        let is_easy = name == "ior-easy";
        Shape {
            name: name.into(),
            transfer_bytes: if is_easy { EASY_TRANSFER_BYTES } else { HARD_TRANSFER_BYTES },
            block_bytes: match is_easy {
                true => self.easy_bytes / EASY_TRANSFER_BYTES * EASY_TRANSFER_BYTES,
                false => HARD_TRANSFER_BYTES,
            },
            segments: if is_easy { 1 } else { self.hard_transfers },
            file_per_process: is_easy,
            is_random: false,
            shift: 1,
            wall: Some(Duration::from_secs(self.stonewall)),
            mapping: Mapping::Fragment,
            fsync: false,
            seed: 1,
        }
    }

    fn mdtest(&self, name: &str) -> Files {
        let is_easy = name == "mdtest-easy";
        Files {
            name: name.into(),
            bytes: if is_easy { 0 } else { HARD_BYTES },
            items: if is_easy { self.easy_files } else { self.hard_files },
            unique_dirs: is_easy,
            shift: 1,
            wall: Some(Duration::from_secs(self.stonewall)),
            removal: self.delete,
        }
    }
}
