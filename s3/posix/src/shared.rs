//! File systems that other nodes change too.
//!
//! A client of such a file system remembers names and attributes for a while, so under a key's lock it may still show
//! what another node has replaced. Before a condition is decided, the key's name is therefore looked up anew at the
//! server. What does that was measured, with two mounts each:
//!
//! | | NFS 4.2 | GlusterFS |
//! |---|---|---|
//! | `statx` of the directory with `AT_STATX_FORCE_SYNC` | every case | no |
//! | an attribute asked for by name | sometimes | where the old file is gone |
//! | the directory read | every case | every case but a deleted name, which it does not show |
//! | a lock taken, a name made or removed beside it, `O_DIRECT`, `O_EXCL` | some | no |
//!
//! An old file that lives on under another name, as old versions do, is told on GlusterFS by reading the directory
//! alone.

use std::time::Duration;

use fordway_store::{Bucket, ErrorKind, Key, Result, VersioningState};
use fordway_sys::{Errno, FileSystemSharing, Mode, OFlags, inode_in, look_again, open_in, stat_now};

use crate::ReadConsistency;
use crate::errors::from_errno;
use crate::layout::{ObjectPath, odd, plain, private_dir, versions_of};
use crate::private::AreaContents;
use crate::stage::{MAX_RACES, give_way};
use crate::volume::RootVolume;

/// How long a name that is remembered wrongly is waited for at a time.
const PAUSE: Duration = Duration::from_millis(10);
/// How often an operation starts again because the server no longer knows a file.
pub(crate) const MAX_STALE: usize = 20;

impl RootVolume {
    /// Has this node find `key` as the server has it now, whatever it remembers of its names. The key's lock is held,
    /// so it stays as it is found. Cost: none on a local file system; else some round trips, and in buckets that
    /// keep versions, except on NFS, a directory that is read.
    pub(crate) fn refresh(&self, bucket: &Bucket, key: &Key, contents: AreaContents) -> Result<()> {
        if !contents.sharing.is_shared() {
            return Ok(());
        }
        let is_versioned = contents.versioning != VersioningState::Unversioned;
        let is_checked = contents.sharing != FileSystemSharing::Nfs && (is_versioned || self.is_strong());
        let odd = contents.has_odd.then(|| odd(bucket, key));
        for place in plain(bucket, key).into_iter().chain(odd) {
            self.refresh_place(&place, is_checked)?;
        }
        Ok(())
    }

    /// Whether reads ask the server first.
    pub(crate) fn is_strong(&self) -> bool {
        self.config.consistency == ReadConsistency::Strong
    }

    /// Before a read: as [`RootVolume::refresh`], where reads ask the server first.
    pub(crate) fn freshen(&self, bucket: &Bucket, key: &Key) -> Result<()> {
        if !self.is_strong() {
            return Ok(());
        }
        let contents = self.contents(bucket)?;
        if !contents.sharing.is_shared() {
            return Ok(());
        }
        self.refresh_dirs(&private_dir(bucket));
        let contents = self.contents(bucket)?;
        if contents.versioning != VersioningState::Unversioned {
            self.refresh_dirs(&versions_of(bucket, key));
        }
        self.refresh(bucket, key, contents)
    }

    /// Before a directory is listed.
    pub(crate) fn freshen_dir(&self, path: &str, sharing: FileSystemSharing) {
        if self.is_strong() && sharing.is_shared() {
            self.refresh_dirs(path);
        }
    }

    fn refresh_place(&self, place: &ObjectPath, is_checked: bool) -> Result<()> {
        for race in 0..MAX_RACES {
            give_way(race);
            match self.try_refresh(place, is_checked) {
                Ok(true) => {
                    // One that is held may be gone by now, and another in its place.
                    self.dirs.forget(&place.dir);
                    return Ok(());
                }
                Ok(false) => std::thread::sleep(PAUSE),
                Err(Errno::NOENT) if race == 0 => self.refresh_dirs(&place.dir),
                Err(Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG) => return Ok(()),
                Err(Errno::STALE) => self.refresh_dirs(&place.dir),
                Err(errno) => return Err(from_errno(errno, "asking the server for the object")),
            }
        }
        Err(ErrorKind::ConditionalConflict.into())
    }

    /// Says whether what is remembered of the name agrees with the directory, where that is to be checked.
    fn try_refresh(&self, place: &ObjectPath, is_checked: bool) -> Result<bool, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let dir = self.root.open_beneath(&place.dir, flags, Mode::empty())?;
        if stat_now(&dir)?.links == 0 {
            return Err(Errno::STALE);
        }
        look_again(&dir, &place.name);
        if !is_checked {
            return Ok(true);
        }
        let listed = inode_in(&dir, &place.name)?;
        let found = match open_in(&dir, &place.name, OFlags::PATH, Mode::empty()).and_then(stat_now) {
            Ok(stat) => Some(stat.inode),
            Err(Errno::NOENT | Errno::STALE) => None,
            Err(errno) => return Err(errno),
        };
        Ok(listed == found)
    }

    /// Has this node look up `dir` and all directories above it anew. Cost: some round trips for each.
    pub(crate) fn refresh_dirs(&self, dir: &str) {
        self.dirs.forget(dir);
        let ends = dir.match_indices('/').map(|(at, _)| at).chain([dir.len()]);
        for path in ends.map(|end| &dir[..end]) {
            // The caller opens the directory again and sees the error.
            let _ = self.open_dir(path).and_then(stat_now);
            look_again(self.root.dir(), path);
        }
    }
}
