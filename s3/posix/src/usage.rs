//! Adds up the data that each user stores in each bucket, by file owner.

use std::collections::BTreeMap;
use std::fs::File;
use std::rc::Rc;

use fordway_store::{Bucket, Error, Result};
use fordway_sys::{EntryKind, Errno, kind_in, name_to_text, stat_in};

use crate::actors::ImpersonatedUserCache;
use crate::errors::from_errno;
use crate::layout::{PRIVATE_DIR, odd_dir, split, versions_dir};
use crate::scan::{PROGRESS_ENTRIES, each_entry, known_kind, open_child, path_of_child};
use crate::{PosixStore, PosixStoreState};

/// The totals for files of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileTotals {
    /// The number of files.
    pub files: u64,
    /// The total length of the files, in bytes. The disk space used differs: sparse files take up less space, and small
    /// files take up more.
    pub size_bytes: u64,
}

impl FileTotals {
    fn add(&mut self, size_bytes: u64) {
        self.files += 1;
        self.size_bytes += size_bytes;
    }
}

/// The files of one user in one bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UserUsage {
    /// Objects.
    pub objects: FileTotals,
    /// Old versions and delete markers.
    pub versions: FileTotals,
    /// All other files that Fordway stores: uploads in progress, staged files, and metadata.
    pub other: FileTotals,
}

/// An event that is reported while usage is being added up. The receiver can stop the work by returning an error.
#[derive(Debug)]
pub enum UsageEvent {
    /// The number of directory entries examined so far.
    Progress(u64),
    /// A directory that could not be read; its content is missing from the totals.
    Failed(Error),
}

impl PosixStore {
    /// Adds up the files in `bucket` by owner (uid). A process that may act as other users examines a bucket as the
    /// bucket's owner, and other users' directories as the users who own them. Links are not followed.
    pub fn usage(
        &self,
        bucket: &Bucket,
        tell: &mut dyn FnMut(UsageEvent) -> Result<()>,
    ) -> Result<BTreeMap<u32, UserUsage>> {
        // A link to a directory within a bucket has no files of its own.
        if self.inner.volume.root.leads_into_bucket(bucket) {
            return Ok(BTreeMap::new());
        }
        let actors = Rc::new(ImpersonatedUserCache::new(&self.inner));
        let (users, entries) = (BTreeMap::new(), 0);
        let mut walk = UsageWalk { inner: &self.inner, bucket, actors: actors.clone(), tell, users, entries };
        actors.in_bucket(bucket, || walk.tree())?;
        Ok(walk.users)
    }
}

struct UsageWalk<'u> {
    inner: &'u PosixStoreState,
    bucket: &'u Bucket,
    actors: Rc<ImpersonatedUserCache>,
    tell: &'u mut dyn FnMut(UsageEvent) -> Result<()>,
    users: BTreeMap<u32, UserUsage>,
    entries: u64,
}

impl UsageWalk<'_> {
    fn tree(&mut self) -> Result<()> {
        let top = self.bucket.as_str();
        match self.inner.volume.open_to_scan(top) {
            Ok(dir) => self.directory(&dir, top, |usage| &mut usage.objects),
            Err(errno) => self.failed(errno, top),
        }
    }

    fn directory(
        &mut self,
        dir: &File,
        path: &str,
        totals: fn(&mut UserUsage) -> &mut FileTotals,
    ) -> Result<()> {
        let mut unread = None;
        let read = each_entry(dir, |name, kind| {
            self.entries += 1;
            if self.entries.is_multiple_of(PROGRESS_ENTRIES) {
                (self.tell)(UsageEvent::Progress(self.entries))?;
            }
            let name = name_to_text(name);
            match known_kind(dir, &name, kind) {
                EntryKind::Dir => self.child(dir, path, &name, totals),
                EntryKind::File => {
                    match stat_in(dir, &name) {
                        Ok(stat) => totals(self.users.entry(stat.user).or_default()).add(stat.size),
                        // A file that was removed in the meantime takes up no space.
                        Err(Errno::NOENT | Errno::STALE) => {}
                        Err(errno) => unread = unread.or(Some(errno)),
                    }
                    Ok(())
                }
                EntryKind::Unknown => {
                    unread = unread.or(kind_in(dir, &name).err().filter(|errno| *errno != Errno::NOENT));
                    Ok(())
                }
                _ => Ok(()),
            }
        })?;
        // One report for each directory is enough.
        match read.err().or(unread) {
            // Another node has removed the directory.
            Some(Errno::STALE) if path != self.bucket.as_str() => Ok(()),
            Some(errno) => self.failed(errno, path),
            None => Ok(()),
        }
    }

    fn child(
        &mut self,
        parent: &File,
        path: &str,
        name: &str,
        totals: fn(&mut UserUsage) -> &mut FileTotals,
    ) -> Result<()> {
        // The key of anything below this directory would be too long, so nothing below the directory was stored through
        // S3.
        let Some(path) = path_of_child(self.bucket, path, name) else { return Ok(()) };
        let totals = self.totals_of(&path).unwrap_or(totals);
        match open_child(parent, name) {
            Ok(dir) => self.directory(&dir, &path, totals),
            // The directory was removed or replaced in the meantime.
            Err(Errno::NOENT | Errno::STALE | Errno::NOTDIR | Errno::LOOP) => Ok(()),
            Err(errno) => match self.actors.open_as_owner(parent, name, errno) {
                Ok((dir, owner)) => self.actors.clone().act_as(owner, || self.directory(&dir, &path, totals)),
                Err(errno) => self.failed(errno, &path),
            },
        }
    }

    /// Returns the totals to which the files below `path` are added, or `None` if these are the same totals as for the
    /// parent of `path`.
    fn totals_of(&self, path: &str) -> Option<fn(&mut UserUsage) -> &mut FileTotals> {
        let bucket = self.bucket;
        match path {
            // This pattern also matches the private directory of another bucket that was moved into this bucket.
            _ if split(path).1 == PRIVATE_DIR => Some(|usage| &mut usage.other),
            _ if path == odd_dir(bucket) => Some(|usage| &mut usage.objects),
            _ if path == versions_dir(bucket) => Some(|usage| &mut usage.versions),
            _ => None,
        }
    }

    fn failed(&mut self, errno: Errno, path: &str) -> Result<()> {
        let error = from_errno(errno, &format!("reading the directory {path}"));
        (self.tell)(UsageEvent::Failed(error))
    }
}
