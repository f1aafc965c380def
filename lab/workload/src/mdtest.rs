//! mdtest's pattern: every rank creates many small files, then queries the size of each file, reads it and removes
//! it.

use std::time::Duration;

use clap::{Args, ValueEnum};
use fordway_store::{DeleteOptions, Error, ErrorKind, Key, ListEntry, ListQuery, Result};
use fordway_wire::size_text::parse_bytes;
use serde::Serialize;

use super::site::PatternBuffer;
use crate::phase::{PhaseRecorder, WorkloadRank};
use crate::site::LocationBackend;
use crate::{MeasuredTarget, PhaseResult, WorkloadLocation};

/// The size of a file in hard mode, in bytes, as defined by IO500.
pub(crate) const HARD_BYTES: u64 = 3901;
/// The maximum size of a file, in bytes. Whole files are kept in memory.
const MAX_BYTES: u64 = 1 << 30;

/// The options of mdtest's pattern.
#[derive(Clone, Debug, Args, Serialize)]
pub struct MdtestPlan {
    /// Preset for the other options
    #[arg(long, short, value_enum, default_value_t = MdtestMode::Easy)]
    pub mode: MdtestMode,
    /// Number of files per rank
    #[arg(long, short = 'n', value_name = "N", default_value_t = 1000)]
    pub items: u64,
    /// Size of a file [default: 0 for easy, 3901 for hard]
    #[arg(long, short = 'w', value_name = "SIZE", value_parser = parse_bytes)]
    pub file_size: Option<u64>,
    /// Distance, in ranks, from a rank to the rank whose files it queries, reads and removes
    #[arg(long, short = 'N', value_name = "RANKS", default_value_t = 0)]
    pub shift: usize,
    /// After this many seconds, each rank stops as soon as it has created as many files as the fastest rank
    #[arg(long, short = 'W', value_name = "SECONDS")]
    pub stonewall: Option<u64>,
    /// How to remove a file on S3; plain files are always removed directly
    #[arg(long, value_enum, default_value_t = FileRemoval::Direct)]
    pub delete: FileRemoval,
}

/// The two variants of mdtest in IO500.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum MdtestMode {
    /// Empty files, a directory for each rank
    Easy,
    /// Files of 3,901 bytes in one directory
    Hard,
}

/// How to remove a file that may consist of several objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FileRemoval {
    /// List and remove all keys that begin with the file's name, which is correct for every mapping
    List,
    /// Remove the object with the file's name
    Direct,
}

/// The plan with all defaults resolved.
#[derive(Clone, Debug)]
pub(crate) struct ResolvedMdtestPlan {
    pub(crate) name: String,
    pub(crate) bytes: u64,
    pub(crate) items: u64,
    pub(crate) unique_dirs: bool,
    pub(crate) shift: usize,
    pub(crate) wall: Option<Duration>,
    pub(crate) removal: FileRemoval,
}

impl MdtestPlan {
    /// Resolves all defaults. Errors: `InvalidArgument` for files of more than 1 GiB, or for 0 files.
    pub(crate) fn files(&self) -> Result<ResolvedMdtestPlan> {
        let (bytes, unique_dirs) = match self.mode {
            MdtestMode::Easy => (0, true),
            MdtestMode::Hard => (HARD_BYTES, false),
        };
        let bytes = self.file_size.unwrap_or(bytes);
        if bytes > MAX_BYTES {
            let why = format!(
                "files of {bytes} bytes are too large, because each file is held in memory; use at most {MAX_BYTES} \
                 bytes, or ior"
            );
            return Err(Error::new(ErrorKind::InvalidArgument, why));
        }
        if self.items == 0 {
            return Err(Error::new(ErrorKind::InvalidArgument, "--items must be at least 1"));
        }
        Ok(ResolvedMdtestPlan {
            name: "mdtest".into(),
            bytes,
            items: self.items,
            unique_dirs,
            shift: self.shift,
            wall: self.stonewall.map(Duration::from_secs),
            removal: self.delete,
        })
    }

    pub(crate) fn run(&self, crew: &WorkloadRank, site: &WorkloadLocation) -> Result<Vec<PhaseResult>> {
        let files = self.files()?;
        let (created, items) = files.create(crew, site, "create")?;
        let stat = files.stat(crew, site, items)?;
        let read = files.read(crew, site, items)?;
        Ok(vec![created, stat, read, files.delete(crew, site, items)?])
    }
}

impl ResolvedMdtestPlan {
    /// Returns the key prefix of the files that `rank` creates.
    pub(crate) fn prefix(&self, rank: usize) -> String {
        match self.unique_dirs {
            true => format!("{}/dir.{rank:08}/file.", self.name),
            false => format!("{}/shared/file.{rank:08}.", self.name),
        }
    }

    fn key(&self, rank: usize, item: u64) -> Result<Key> {
        Key::new(format!("{}{item:010}", self.prefix(rank)))
    }

    fn phase_name(&self, what: &str) -> String {
        format!("{}-{what}", self.name)
    }

    /// Creates the files. Returns the result, and how many files each rank created.
    pub(crate) fn create(
        &self,
        crew: &WorkloadRank,
        site: &WorkloadLocation,
        what: &str,
    ) -> Result<(PhaseResult, u64)> {
        let (rank, target) = (crew.team.rank(), site.target());
        let mut pattern = PatternBuffer::new(self.bytes as usize);
        let (mut results, items) = crew.phase(&[&self.phase_name(what)], site, |recorder| {
            recorder.repeat(self.items, self.wall, |recorder, item| {
                let (key, content) = (self.key(rank, item), pattern.stamped(rank as u64, item));
                recorder.operation(0, self.bytes, || target.put(&key?, content), Ok);
            })
        })?;
        Ok((results.remove(0), items))
    }

    /// Queries the size of each file. A wrong size counts as an error.
    pub(crate) fn stat(
        &self,
        crew: &WorkloadRank,
        site: &WorkloadLocation,
        items: u64,
    ) -> Result<PhaseResult> {
        self.each(crew, site, "stat", items, |recorder, target, owner, item| {
            let key = self.key(owner, item);
            let check = |size| match size == self.bytes {
                true => Ok(()),
                false => Err(self.wrong(owner, item, site)),
            };
            recorder.operation(0, 0, || target.head(&key?), check);
        })
    }

    /// Reads each file as a whole and verifies it.
    pub(crate) fn read(
        &self,
        crew: &WorkloadRank,
        site: &WorkloadLocation,
        items: u64,
    ) -> Result<PhaseResult> {
        let mut pattern = PatternBuffer::new(self.bytes as usize);
        let mut buffer = Vec::with_capacity(self.bytes as usize);
        self.each(crew, site, "read", items, |recorder, target, owner, item| {
            let key = self.key(owner, item);
            let read = || target.get(&key?, &mut buffer).map(|()| &buffer);
            let check = |found: &Vec<u8>| match pattern.is(owner as u64, item, found) {
                true => Ok(()),
                false => Err(self.wrong(owner, item, site)),
            };
            recorder.operation(0, self.bytes, read, check);
        })
    }

    /// Removes each file.
    pub(crate) fn delete(
        &self,
        crew: &WorkloadRank,
        site: &WorkloadLocation,
        items: u64,
    ) -> Result<PhaseResult> {
        self.each(crew, site, "delete", items, |recorder, target, owner, item| {
            let key = self.key(owner, item);
            let remove = || match (self.removal, site.means()) {
                (FileRemoval::List, LocationBackend::Objects(..)) => list_and_delete(site, key?.as_str()),
                _ => target.delete(&key?),
            };
            recorder.operation(0, 0, remove, Ok);
        })
    }

    fn each(
        &self,
        crew: &WorkloadRank,
        site: &WorkloadLocation,
        what: &str,
        items: u64,
        mut act: impl FnMut(&mut PhaseRecorder, &dyn MeasuredTarget, usize, u64),
    ) -> Result<PhaseResult> {
        let owner = (crew.team.rank() + self.shift) % crew.team.size();
        let target = site.target();
        let work = |recorder: &mut PhaseRecorder| {
            recorder.repeat(items, None, |recorder, item| act(recorder, &*target, owner, item))
        };
        Ok(crew.phase(&[&self.phase_name(what)], site, work)?.0.remove(0))
    }

    fn wrong(&self, owner: usize, item: u64, site: &WorkloadLocation) -> Error {
        let what = format!("file {item} of rank {owner} does not have the content that was written");
        Error::new(ErrorKind::Corrupt, format!("{what}, on lane {}", site.lane().name)).with_advice("")
    }
}

/// Removes all objects whose keys begin with `prefix`.
fn list_and_delete(site: &WorkloadLocation, prefix: &str) -> Result<()> {
    let LocationBackend::Objects(store, bucket) = site.means() else {
        return Err(ErrorKind::Internal.into());
    };
    let page = store.list(bucket, &ListQuery::prefix(prefix))?;
    if page.entries.is_empty() {
        return Err(Error::new(ErrorKind::NoSuchKey, format!("nothing begins with {prefix}")));
    }
    for object in page.entries.iter().filter_map(ListEntry::object) {
        store.delete(bucket, &Key::new(&*object.key)?, &DeleteOptions::default())?;
    }
    Ok(())
}
