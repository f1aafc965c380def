//! A site where a workload runs: a bucket or directory of a lane. A site can have further buckets or directories,
//! whose names begin with the name of the site. This module also generates content that identifies its writer and
//! offset.
//!
//! A buffer is filled with noise once. For each transfer, a hash of writer and offset then replaces the first word of
//! each page, which costs one memory write per 4 KiB. A page from another offset, another writer or an earlier transfer
//! is therefore detected, and verification is a plain memory comparison.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::{fs, io};

use fordway_measure::RowDescription;
use fordway_store::{Bucket, Error, ErrorKind, Result, Store};

use crate::{MeasuredTarget, PosixTarget, ServerPid, StoreTarget};

/// A bucket or directory, which may not exist yet. Clones refer to the same bucket or directory.
#[derive(Clone)]
pub struct WorkloadLocation {
    lane: RowDescription,
    name: Bucket,
    kind: WorkloadLocationKind,
    made: MadeBuckets,
}

/// The names of the buckets or directories that this run has created. All clones of a site share one list.
type MadeBuckets = Arc<Mutex<BTreeSet<String>>>;

#[derive(Clone)]
enum WorkloadLocationKind {
    Files { parent: PathBuf },
    Objects { store: Arc<dyn Store>, server_pid: Option<u32> },
}

/// The operations that a site supports in addition to operations on whole objects.
pub(crate) enum LocationBackend<'s> {
    /// Files in this directory, which can be written and read at offsets.
    Files(PathBuf),
    /// Objects in this bucket, which can be uploaded in parts.
    Objects(&'s Arc<dyn Store>, &'s Bucket),
}

/// The lanes whose stores work in this process, without a server.
const IN_THIS_PROCESS: [&str; 2] = ["embedded", "memory"];

impl WorkloadLocation {
    /// Creates a site for the directory `name` in `parent`: plain files, each written in place.
    pub fn files(parent: &Path, name: Bucket) -> Self {
        let description =
            format!("plain open, pwrite, pread, stat and unlink by absolute path below {}", parent.display());
        let lane = RowDescription { name: "posix".into(), description };
        let kind = WorkloadLocationKind::Files { parent: parent.to_owned() };
        WorkloadLocation { lane, name, kind, made: MadeBuckets::default() }
    }

    /// Creates a site for the bucket `name` of `store`. `server_pid` is the process whose CPU time counts as the
    /// server's.
    pub fn objects(
        lane: RowDescription,
        store: Arc<dyn Store>,
        name: Bucket,
        server_pid: Option<u32>,
    ) -> Self {
        let kind = WorkloadLocationKind::Objects { store, server_pid };
        WorkloadLocation { lane, name, kind, made: MadeBuckets::default() }
    }

    /// Makes the name of each lane unique: the second `posix` becomes `posix-2`.
    pub fn number_lanes(sites: &mut [WorkloadLocation]) {
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for site in sites {
            let count = counts.entry(site.lane.name.clone()).or_default();
            *count += 1;
            if *count > 1 {
                site.lane.name += &format!("-{count}");
            }
        }
    }

    /// Returns a site for another bucket or directory, whose name is this site's name with a suffix.
    pub(crate) fn beside(&self, suffix: &str) -> Result<Self> {
        Ok(WorkloadLocation { name: Bucket::new(format!("{}-{suffix}", self.name))?, ..self.clone() })
    }

    /// Returns the lane of the site.
    pub fn lane(&self) -> &RowDescription {
        &self.lane
    }

    /// Returns the name of the site's bucket or directory.
    pub(crate) fn name(&self) -> &Bucket {
        &self.name
    }

    /// Returns whether the site belongs to a server whose process is unknown. The CPU time of such a server is not
    /// measured, and appears to belong to an unrelated process.
    pub fn has_unknown_server(&self) -> bool {
        match &self.kind {
            WorkloadLocationKind::Files { .. } => false,
            WorkloadLocationKind::Objects { store, server_pid } => {
                server_pid.is_none() && !IN_THIS_PROCESS.contains(&store.lane())
            }
        }
    }

    pub(crate) fn server_pid(&self) -> Option<u32> {
        match self.kind {
            WorkloadLocationKind::Files { .. } => None,
            WorkloadLocationKind::Objects { server_pid, .. } => server_pid,
        }
    }

    /// Creates the bucket or directory. Errors: `BucketAlreadyOwnedByYou` if the bucket or directory exists.
    pub(crate) fn make(&self) -> Result<()> {
        self.create().map_err(|error| self.naming_the_bucket(error))?;
        self.made().insert(self.name.to_string());
        Ok(())
    }

    fn made(&self) -> std::sync::MutexGuard<'_, BTreeSet<String>> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn naming_the_bucket(&self, error: Error) -> Error {
        match error.kind() {
            ErrorKind::BucketAlreadyOwnedByYou => {
                let (name, lane) = (&self.name, &self.lane.name);
                let detail =
                    format!("{name} already exists on lane {lane}; remove it, or choose another --name");
                Error::new(ErrorKind::BucketAlreadyOwnedByYou, detail)
            }
            _ => error,
        }
    }

    fn create(&self) -> Result<()> {
        match &self.kind {
            WorkloadLocationKind::Objects { store, .. } => store.create_bucket(&self.name),
            WorkloadLocationKind::Files { parent } => fs::create_dir(parent.join(self.name.as_str()))
                .map_err(|error| {
                    let kind = match error.kind() {
                        io::ErrorKind::AlreadyExists => ErrorKind::BucketAlreadyOwnedByYou,
                        io::ErrorKind::NotFound => ErrorKind::InvalidArgument,
                        _ => ErrorKind::from(&error),
                    };
                    let what = format!("creating the directory {} in {}", self.name, parent.display());
                    Error::new(kind, what).caused_by(error)
                }),
        }
    }

    /// Returns the target for the site's objects or files.
    pub(crate) fn target(&self) -> Box<dyn MeasuredTarget> {
        match &self.kind {
            WorkloadLocationKind::Files { .. } => {
                Box::new(PosixTarget::in_place(self.lane.clone(), self.dir()))
            }
            WorkloadLocationKind::Objects { store, server_pid } => Box::new(StoreTarget::within(
                self.lane.clone(),
                store.clone(),
                self.name.clone(),
                server_pid.map(ServerPid::new),
            )),
        }
    }

    pub(crate) fn means(&self) -> LocationBackend<'_> {
        match &self.kind {
            WorkloadLocationKind::Files { .. } => LocationBackend::Files(self.dir()),
            WorkloadLocationKind::Objects { store, .. } => LocationBackend::Objects(store, &self.name),
        }
    }

    /// Removes the bucket or directory and its content; does nothing if the bucket or directory does not exist.
    pub(crate) fn remove(&self) -> Result<()> {
        match self.target().clean_up() {
            Err(error) if error.kind() == ErrorKind::NoSuchBucket => Ok(()),
            done => done,
        }
    }

    /// Like [`remove`](Self::remove), but keeps a bucket or directory that this run has not created.
    pub(crate) fn remove_if_made(&self) -> Result<()> {
        match self.made().remove(self.name.as_str()) {
            true => self.remove(),
            false => Ok(()),
        }
    }

    fn dir(&self) -> PathBuf {
        match &self.kind {
            WorkloadLocationKind::Files { parent } => parent.join(self.name.as_str()),
            WorkloadLocationKind::Objects { .. } => PathBuf::new(),
        }
    }
}

/// The distance between the words that identify writer and offset, in bytes.
const PAGE_BYTES: usize = 4096;

/// A reusable buffer for the content of a transfer or object.
pub(crate) struct PatternBuffer {
    bytes: Vec<u8>,
}

impl PatternBuffer {
    /// Creates a buffer for content of `len` bytes.
    pub(crate) fn new(len: usize) -> Self {
        PatternBuffer { bytes: noise(len) }
    }

    /// Returns the content that `writer` writes at `offset`.
    pub(crate) fn stamped(&mut self, writer: u64, offset: u64) -> &[u8] {
        let seed = mix(writer.wrapping_mul(0x1_0000_0001).wrapping_add(1));
        for (page, bytes) in self.bytes.chunks_mut(PAGE_BYTES).enumerate() {
            let word = mix(seed ^ offset.wrapping_add((page * PAGE_BYTES) as u64)).to_le_bytes();
            let len = bytes.len().min(8);
            bytes[..len].copy_from_slice(&word[..len]);
        }
        &self.bytes
    }

    /// Returns whether `found` is the content that `writer` wrote at `offset`.
    pub(crate) fn is(&mut self, writer: u64, offset: u64, found: &[u8]) -> bool {
        self.stamped(writer, offset) == found
    }
}

/// Returns `len` bytes of pseudorandom noise. The noise for a smaller `len` is a prefix of the noise for a larger
/// `len`.
pub(crate) fn noise(len: usize) -> Vec<u8> {
    let words = (0..len.div_ceil(8) as u64).flat_map(|at| mix(at).to_le_bytes());
    words.take(len).collect()
}

/// Diffuses every bit of `word` over all bits, with the finalizer of SplitMix64 (Steele et al. 2014).
fn mix(word: u64) -> u64 {
    let word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_of_another_place_or_writer_is_told_apart() {
        for len in [1usize, 9, 3901, 47_008] {
            let mut pattern = PatternBuffer::new(len);
            let content = pattern.stamped(3, 1 << 20).to_vec();
            assert_eq!(content.len(), len);
            assert!(pattern.is(3, 1 << 20, &content));
            if len > 1 {
                assert!(!pattern.is(2, 1 << 20, &content) && !pattern.is(3, 2 << 20, &content));
            }
            assert!(!pattern.is(3, 1 << 20, &content[1..]));
            let mut torn = content.clone();
            torn[len - 1] ^= 1;
            assert!(!pattern.is(3, 1 << 20, &torn));
        }
        assert!(PatternBuffer::new(0).is(1, 2, b""));
    }

    #[test]
    fn every_page_is_stamped() {
        let mut pattern = PatternBuffer::new(3 * PAGE_BYTES);
        let (one, other) = (pattern.stamped(1, 0).to_vec(), pattern.stamped(1, 1 << 30).to_vec());
        assert!(one.chunks(PAGE_BYTES).zip(other.chunks(PAGE_BYTES)).all(|(a, b)| a != b));
    }
}
