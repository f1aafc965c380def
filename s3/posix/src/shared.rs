//! File systems that other nodes may also change.
//!
//! The client of a shared file system caches names and attributes. Even while this node holds a key's lock, the client
//! may still show a file that another node has replaced. The key's name is therefore looked up again at the server
//! before a condition is checked. Measurements with two mounts of each file system showed which calls make the current
//! file visible:
//!
//! | | NFS 4.2 | GlusterFS |
//! |---|---|---|
//! | `statx` of the directory with `AT_STATX_FORCE_SYNC` | every case | no |
//! | reading an attribute by name | sometimes | if the old file is gone |
//! | reading the directory | every case | every case except a deleted name, which is not shown |
//! | taking a lock, creating or removing another name in the directory, `O_DIRECT`, `O_EXCL` | some cases | no |
//!
//! On NFS, querying the directory's state does not always reveal a name that this node has cached as missing. If a
//! program opens a name while another node creates it, the Linux client may cache the name as missing, together with
//! the directory's state after the creation. The reason is that the client records the directory's state when it
//! handles the response, not when it sends the request. The name then stays missing on this node until the directory
//! changes again. Reading the directory reveals the name.
//!
//! If the replaced file still exists under another name, as old versions do, GlusterFS shows the new file only after
//! the directory is read.

use std::fs::File;
use std::os::fd::AsFd;
use std::time::Duration;

use fordway_store::{Bucket, Error, ErrorKind, Key, ROOT_DIR, Result, VersioningState};
use fordway_sys::{
    Errno, FileStat, FileSystemSharing, Mode, OFlags, forget_names, inode_in, look_again, look_up_existing,
    open_in, read_into_spare, require_kept, stat, stat_in, stat_now,
};

use crate::ReadConsistency;
use crate::errors::from_errno;
use crate::layout::{
    ObjectPath, is_setting_name, join, odd, plain, private_dir, spare_name, split, versions_of,
};
use crate::names::DirectoryTimes;
use crate::patience::pause;
use crate::private::{PrivateDirectoryContents, correct_names};
use crate::server_clock::is_recent;
use crate::stage::give_way;
use crate::volume::StoreDirectoryTree;

/// The pause before rechecking a name for which this node has a stale cache entry.
pub(crate) const PAUSE: Duration = Duration::from_millis(10);
/// The maximum number of retries of a name lookup.
const MAX_REFRESHES: usize = 60;
/// The number of attempts after which there is a long pause.
const QUICK_REFRESHES: usize = 10;
/// The length of the long pause: longer than the time for which FUSE clients cache names by default.
pub(crate) const NAME_TIMEOUT: Duration = Duration::from_millis(1100);
/// The number of attempts to publish that are made without a pause.
const QUICK_RACES: usize = 4;
/// The maximum number of times that an operation restarts because the server no longer has a file (`ESTALE`).
pub(crate) const MAX_STALE: usize = 20;

/// The condition under which a repeated lookup of a name is also compared with the listing of its directory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ListingComparisonPolicy {
    Never,
    /// Only if the name is missing.
    IfMissing,
    Always,
}

impl ListingComparisonPolicy {
    /// Returns the check that is sufficient to find every change made by another node.
    fn on(sharing: FileSystemSharing) -> Self {
        match sharing {
            FileSystemSharing::Local => ListingComparisonPolicy::Never,
            FileSystemSharing::Nfs => ListingComparisonPolicy::IfMissing,
            FileSystemSharing::Unknown => ListingComparisonPolicy::Always,
        }
    }
}

/// Waits as [`give_way`] does, but longer on a shared file system: by the time all attempts are used up, every cache
/// entry has expired.
pub(crate) fn give_way_on(sharing: FileSystemSharing, race: usize) {
    match sharing.is_shared() && race >= QUICK_RACES {
        true => pause(PAUSE),
        false => give_way(race),
    }
}

/// Returns the result of `attempt`. After an error for which `is_stale` holds, drops this node's cached names with
/// `refresh` and repeats the attempt, up to [`MAX_STALE`] attempts in all.
pub(crate) fn retry_stale<T>(
    is_stale: impl Fn(&Error) -> bool,
    refresh: impl Fn(),
    mut attempt: impl FnMut() -> Result<T>,
) -> Result<T> {
    let result = attempt();
    if !result.as_ref().is_err_and(&is_stale) {
        return result;
    }
    attempt_again(&is_stale, &refresh, &mut attempt)
}

/// Repeats an attempt that has failed once. Not inlined, because only file systems that several nodes share need this
/// function.
#[cold]
fn attempt_again<T>(
    is_stale: &dyn Fn(&Error) -> bool,
    refresh: &dyn Fn(),
    attempt: &mut dyn FnMut() -> Result<T>,
) -> Result<T> {
    for race in 1..MAX_STALE - 1 {
        wait_for_server(race);
        refresh();
        let result = attempt();
        if !result.as_ref().is_err_and(is_stale) {
            return result;
        }
    }
    wait_for_server(MAX_STALE - 1);
    refresh();
    attempt()
}

/// Waits before attempt number `race` to open a file that the server no longer has. The wait becomes longer with later
/// attempts; before the last attempt, it lasts until the clients' cached names have expired.
pub(crate) fn wait_for_server(race: usize) {
    match race {
        0..QUICK_RACES => give_way(race),
        race if race + 1 >= MAX_STALE => pause(NAME_TIMEOUT),
        _ => pause(PAUSE),
    }
}

/// Checks on NFS that a name exists before it is opened. If a missing name is opened while another node creates it, the
/// client may cache the name as missing. A `stat` of the name does not have this effect. Errors: from `newfstatat`.
/// Cost: one `newfstatat` on NFS, otherwise none.
pub(crate) fn look_before_opening(
    dir: impl AsFd,
    name: &str,
    sharing: FileSystemSharing,
) -> Result<(), Errno> {
    match sharing {
        FileSystemSharing::Nfs => stat_in(dir, name).map(drop),
        FileSystemSharing::Local | FileSystemSharing::Unknown => Ok(()),
    }
}

/// Opens a file in `dir`, a bucket's private directory, by calling `open` with the file's name. On NFS, also tries the
/// file's spare name, a second hard link. While a node replaces a file that it has open, the file cannot be opened by
/// its own name (see [`StagedFile::publish_private`](crate::stage::StagedFile::publish_private)). If that node dies at
/// this point, the spare name is the only name of a setting, and the setting still applies. Errors: the errors of
/// `open`. Further cost on NFS if the file is missing: one call to `state`, which returns the metadata of `dir`. If
/// `dir` has changed recently, or if the file is a setting, also an attempt to open the spare name. If `dir` has
/// changed recently or there is a spare name, also another attempt and one `statx`.
pub(crate) fn open_spared<T: AsFd>(
    dir: impl AsFd,
    name: &str,
    sharing: FileSystemSharing,
    state: impl FnOnce() -> Result<FileStat, Errno>,
    open: impl Fn(&str) -> Result<T, Errno>,
) -> Result<T, Errno> {
    let opened = open(name);
    if sharing != FileSystemSharing::Nfs || !matches!(opened, Err(Errno::NOENT)) {
        return opened;
    }
    let is_recent = is_recent(&state()?);
    if !is_recent && !is_setting_name(name) {
        return opened;
    }
    let again = || stat_now(&dir).and_then(|_| open(name));
    match open(&spare_name(name)) {
        // While the file is being replaced, it also has the name `.nfs...`.
        Ok(spare) if stat(&spare)?.links > 1 => Ok(spare),
        // Either the file has just been replaced and can now be opened under its name, or its writer has died. The file
        // was not deleted, because a delete removes the spare name first.
        Ok(spare) => match again() {
            Err(Errno::NOENT) => Ok(spare),
            found => found,
        },
        Err(Errno::NOENT) if is_recent => again(),
        Err(Errno::NOENT) => opened,
        Err(errno) => Err(errno),
    }
}

/// Returns whether `name` in `dir` is a name of the file with the device and inode numbers `identity`. Cost: one call,
/// and usually a round trip.
#[cold]
pub(crate) fn leads_to(dir: impl AsFd, name: &str, identity: (u64, u64)) -> bool {
    stat_in(dir, name).is_ok_and(|there| (there.device, there.inode) == identity)
}

/// Returns a file's metadata on the server; the file must be open for reading. The GlusterFS client returns the
/// metadata from a cache, but the server's response to a read also contains the metadata, which refreshes that cache.
/// If the kernel has cached the byte that is read, the metadata may still come from the client's cache. Cost: one
/// `pread`, one `statx`.
pub(crate) fn stat_at_server(file: impl AsFd) -> Result<FileStat, Errno> {
    // The error of a failed read is ignored, because the read only refreshes the cache.
    let _ = read_into_spare(&file, &mut Vec::new(), 0, 1);
    stat_now(file)
}

impl StoreDirectoryTree {
    /// Makes this node see the current state of `key` on the server, regardless of the names that the node has cached.
    /// The caller holds the key's lock, so no other writer changes the key while the caller uses the result. Cost: none
    /// on a local file system; on other file systems, several round trips. If the bucket keeps versions, or
    /// [`ReadConsistency::Strong`] is set, the directory is also read. On NFS, the directory is read only if the key is
    /// missing.
    pub(crate) fn refresh(
        &self,
        bucket: &Bucket,
        key: &Key,
        contents: PrivateDirectoryContents,
    ) -> Result<()> {
        if !contents.sharing.is_shared() {
            return Ok(());
        }
        let is_versioned = contents.versioning != VersioningState::Unversioned;
        let check = match self.is_strong() || is_versioned {
            true => ListingComparisonPolicy::on(contents.sharing),
            false => ListingComparisonPolicy::Never,
        };
        let odd = contents.has_odd.then(|| odd(bucket, key));
        for place in plain(bucket, key).into_iter().chain(odd) {
            self.refresh_place(&place, contents.sharing, check)?;
        }
        Ok(())
    }

    /// Returns whether the store is configured with [`ReadConsistency::Strong`].
    pub(crate) fn is_strong(&self) -> bool {
        self.config.consistency == ReadConsistency::Strong
    }

    /// Returns what the times of a directory on a file system show about changes of the directory's names.
    pub(crate) fn directory_times(&self, sharing: FileSystemSharing) -> DirectoryTimes {
        DirectoryTimes::on(sharing, self.is_strong())
    }

    /// Returns the device of the shared file system that contains `bucket`, and a directory through which the file
    /// server can be queried. Returns `None` if no shared file system is known. The argument `bucket` has the same
    /// meaning as in [`fordway_store::Store::file_server`]. Cost: no system call.
    pub(crate) fn remote_dir(&self, bucket: &str) -> Option<(u64, String)> {
        let of_bucket = self.private.remote.find(bucket);
        of_bucket.or_else(|| Some((self.own_remote_device()?, ROOT_DIR.to_owned())))
    }

    /// Sends a request about the directory at `path` to its file server, and returns once the server has responded.
    pub(crate) fn ask_server(&self, path: &str) {
        // Even if the call fails, the server has responded.
        let _ = self.open_dir(path).and_then(stat_now);
    }

    /// If [`ReadConsistency::Strong`] is set, refreshes the key before a read, as [`StoreDirectoryTree::refresh`] does.
    #[inline]
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

    /// If [`ReadConsistency::Strong`] is set, refreshes a file of the private area before it is read. Cost: none on a
    /// local file system; otherwise as for a key.
    pub(crate) fn freshen_file(&self, place: &ObjectPath, sharing: FileSystemSharing) -> Result<()> {
        if !self.is_strong() || !sharing.is_shared() {
            return Ok(());
        }
        self.refresh_dirs(&place.dir);
        self.refresh_place(place, sharing, ListingComparisonPolicy::on(sharing))
    }

    /// Opens a private file for reading. Errors: as for [`look_before_opening`].
    pub(crate) fn open_private(&self, place: &ObjectPath, sharing: FileSystemSharing) -> Result<File, Errno> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        if sharing != FileSystemSharing::Nfs {
            return self.root.open_beneath(&place.path(), flags, Mode::empty());
        }
        let dir = self.open_dir(&place.dir)?;
        let state = || stat_now(&dir);
        open_spared(&dir, &place.name, sharing, state, |name| {
            look_before_opening(&dir, name, sharing)?;
            self.root.open_beneath(&join(&place.dir, name), flags, Mode::empty())
        })
    }

    /// Returns whether other nodes may change the file system of the bucket that contains `path`, a private path.
    pub(crate) fn sharing_at(&self, path: &str) -> FileSystemSharing {
        let bucket = path.split('/').next().and_then(|name| Bucket::new(name).ok());
        bucket.map_or(FileSystemSharing::Unknown, |bucket| self.sharing_of(&bucket))
    }

    /// If [`ReadConsistency::Strong`] is set, looks up the directory at `path` again before it is listed. The
    /// directories above `path` are looked up again as well, unless this listing has just read the parent of `path`.
    pub(crate) fn freshen_dir(&self, path: &str, is_parent_fresh: bool, sharing: FileSystemSharing) {
        if !self.is_strong() || !sharing.is_shared() {
            return;
        }
        if !is_parent_fresh {
            return self.refresh_dirs(path);
        }
        self.dirs.forget(path);
        let (parent, name) = split(path);
        if let Ok(parent) = self.open_dir(parent) {
            look_again(&parent, name);
        }
    }

    /// If [`ReadConsistency::Strong`] is set, drops the names that an NFS client has cached for `dir`, which must be
    /// open for reading. The cached names look current if two names were created within one step of the server's clock,
    /// and this node has read the directory in between. Cost: one call on NFS, otherwise none.
    pub(crate) fn freshen_names(&self, dir: &File, sharing: FileSystemSharing) {
        if self.is_strong() && sharing == FileSystemSharing::Nfs {
            forget_names(dir);
        }
    }

    /// If [`ReadConsistency::Strong`] is set, checks that the server still has the directory `dir`. Errors: `NOENT`,
    /// `STALE`.
    pub(crate) fn require_kept(&self, dir: &File, sharing: FileSystemSharing) -> Result<(), Errno> {
        match self.is_strong() && sharing.is_shared() {
            true => require_kept(open_in(dir, ".", OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?),
            false => Ok(()),
        }
    }

    /// Refreshes `dir` and the directories above it, and recreates the directories that the server no longer has. After
    /// another node has removed a directory, MooseFS still shows the directory for another second, but allows this node
    /// to create it again.
    pub(crate) fn renew_dirs(&self, bucket: &Bucket, dir: &str) {
        self.refresh_dirs(dir);
        // Errors are ignored here: the caller opens the directory again, and then sees the error.
        let _ = self.make_dirs(bucket, dir);
    }

    fn refresh_place(
        &self,
        place: &ObjectPath,
        sharing: FileSystemSharing,
        check: ListingComparisonPolicy,
    ) -> Result<()> {
        for attempt in 0..MAX_REFRESHES {
            match self.try_refresh(place, sharing, check) {
                Ok(true) => {
                    // The held directory may have been replaced in the meantime.
                    self.dirs.forget(&place.dir);
                    return Ok(());
                }
                // GlusterFS keeps a name cached as long as the name is used more often than once a second.
                Ok(false) if attempt % QUICK_REFRESHES == QUICK_REFRESHES - 1 => {
                    pause(NAME_TIMEOUT);
                }
                Ok(false) => pause(PAUSE),
                // The directories are looked up again, because this node may have cached that the directory is missing
                // although another node has created it.
                Err(Errno::NOENT) if attempt == 0 => self.refresh_dirs(&place.dir),
                Err(Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG) => return Ok(()),
                Err(Errno::STALE) => self.refresh_dirs(&place.dir),
                Err(errno) => return Err(from_errno(errno, "opening the object at the file server")),
            }
        }
        Err(ErrorKind::ConditionalConflict.into())
    }

    /// Looks up a name again at the server. Returns whether this node's cached entry agrees with the directory, to the
    /// extent that `check` requires.
    fn try_refresh(
        &self,
        place: &ObjectPath,
        sharing: FileSystemSharing,
        check: ListingComparisonPolicy,
    ) -> Result<bool, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let dir = self.root.open_beneath(&place.dir, flags, Mode::empty())?;
        if stat_now(&dir)?.links == 0 {
            return Err(Errno::STALE);
        }
        if sharing == FileSystemSharing::Nfs {
            look_up_existing(&dir, &place.name);
        }
        look_again(&dir, &place.name);
        if check == ListingComparisonPolicy::Never {
            return Ok(true);
        }
        let find = || match open_in(&dir, &place.name, OFlags::PATH, Mode::empty()).and_then(stat_now) {
            Ok(stat) => Ok(Some(stat.inode)),
            Err(Errno::NOENT | Errno::STALE) => Ok(None),
            Err(errno) => Err(errno),
        };
        if check == ListingComparisonPolicy::IfMissing {
            if find()?.is_some() {
                return Ok(true);
            }
            forget_names(&dir);
        }
        let listed = inode_in(&dir, &place.name)?;
        Ok(listed == find()?)
    }

    /// Returns whether `place` leads to the file with the device and inode numbers `identity`, according to the server.
    /// On a FUSE file system, the name may still come from a cache of the client. Cost: seven calls, and up to six
    /// round trips. Errors: errors that leave this unknown.
    pub(crate) fn leads_to_at_server(&self, place: &ObjectPath, identity: (u64, u64)) -> Result<bool, Errno> {
        let look = || {
            let dir = self.open_dir(&place.dir)?;
            stat_now(&dir)?;
            look_up_existing(&dir, &place.name);
            look_again(&dir, &place.name);
            self.root.open_beneath(&place.path(), OFlags::PATH, Mode::empty()).and_then(stat)
        };
        match look() {
            Ok(found) => Ok((found.device, found.inode) == identity),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::STALE) => Ok(false),
            Err(errno) => Err(errno),
        }
    }

    /// Makes this node see the file at `place` if the server has it. The caller is about to make a decision that would
    /// be wrong if the file existed. An NFS client may have cached the name as missing. Cost: none on a local file
    /// system; on other file systems, several round trips, and one read of the directory if the directory has changed
    /// recently or [`ReadConsistency::Strong`] is set.
    pub(crate) fn reveal(&self, place: &ObjectPath, sharing: FileSystemSharing) -> Result<()> {
        if !sharing.is_shared() {
            return Ok(());
        }
        self.refresh_dirs(&place.dir);
        let has_changed = || self.open_dir(&place.dir).and_then(stat_now).is_ok_and(|dir| is_recent(&dir));
        let check = match self.is_strong() || has_changed() {
            true => ListingComparisonPolicy::on(sharing),
            false => ListingComparisonPolicy::Never,
        };
        self.refresh_place(place, sharing, check)
    }

    /// Calls [`StoreDirectoryTree::reveal`] for each path that the latest version of `key` may have.
    pub(crate) fn reveal_object(
        &self,
        bucket: &Bucket,
        key: &Key,
        contents: PrivateDirectoryContents,
    ) -> Result<()> {
        let odd = contents.has_odd.then(|| odd(bucket, key));
        let mut places = plain(bucket, key).into_iter().chain(odd);
        places.try_for_each(|place| self.reveal(&place, contents.sharing))
    }

    /// Opens the directory `name` in `parent`, whose path is `path`, to look up names in it. Resolves the whole path
    /// only if the name is a symbolic link.
    fn open_dir_to_look(&self, parent: &File, name: &str, path: &str) -> Result<File, Errno> {
        match open_in(parent, name, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()) {
            Err(Errno::NOTDIR | Errno::LOOP) => self.open_dir(path),
            opened => opened.map(File::from),
        }
    }

    /// Makes this node look up `dir` and all directories above it again. Cost: several round trips for each directory;
    /// if one of them is missing on NFS, also a read of the directory above it, under the conditions of
    /// [`StoreDirectoryTree::reveal`].
    pub(crate) fn refresh_dirs(&self, dir: &str) {
        self.dirs.forget(dir);
        let Ok(mut here) = self.root.open_beneath(".", OFlags::PATH | OFlags::DIRECTORY, Mode::empty())
        else {
            return;
        };
        let mut end = 0;
        for name in dir.split('/') {
            // Errors are ignored here: the caller opens the directory again, and then sees the error.
            let state = stat_now(&here);
            look_again(&here, name);
            end += name.len() + 1;
            let open = || self.open_dir_to_look(&here, name, &dir[..end - 1]);
            let mut next = open();
            if matches!(next, Err(Errno::NOENT))
                && self.sharing_at(dir) == FileSystemSharing::Nfs
                && (self.is_strong() || state.is_ok_and(|state| is_recent(&state)))
            {
                // The name is looked up again, because this node may have cached it as missing.
                let _ = correct_names(&here);
                next = open();
            }
            let Ok(next) = next else { return };
            here = next;
        }
        let _ = stat_now(&here);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::time::{SystemTime, UNIX_EPOCH};

    use super::*;
    use crate::errors::is_stale;

    /// If a node dies while it replaces a setting, the setting may remain under its spare name only. The store finds
    /// this setting, even if the directory has not changed for a long time.
    #[test]
    fn a_setting_whose_writer_died_still_applies() {
        let temp = tempfile::tempdir().unwrap();
        let dir = File::open(temp.path()).unwrap();
        let read = |name: &str, modified_ns: i64| {
            let state = || Ok(FileStat { modified_ns, ..stat(&dir)? });
            let open = |name: &str| open_in(&dir, name, OFlags::RDONLY, Mode::empty());
            let opened = open_spared(&dir, name, FileSystemSharing::Nfs, state, open)?;
            std::io::read_to_string(File::from(opened)).map_err(|_| Errno::IO)
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as i64;
        for name in ["versioning", "document-policy"] {
            for modified_ns in [0, now] {
                assert_eq!(read(name, modified_ns), Err(Errno::NOENT));
                std::fs::write(temp.path().join(spare_name(name)), "old").unwrap();
                assert_eq!(read(name, modified_ns).as_deref(), Ok("old"), "{name}, {modified_ns}");
                std::fs::write(temp.path().join(name), "new").unwrap();
                assert_eq!(read(name, modified_ns).as_deref(), Ok("new"), "{name}, {modified_ns}");
                std::fs::remove_file(temp.path().join(spare_name(name))).unwrap();
                std::fs::remove_file(temp.path().join(name)).unwrap();
            }
        }
    }

    #[test]
    fn only_a_stale_file_is_tried_again_after_a_refresh() {
        let (attempts, refreshes) = (Cell::new(0), Cell::new(0));
        let run = |stale: usize, failure: Errno| {
            attempts.set(0);
            refreshes.set(0);
            let refresh = || refreshes.set(refreshes.get() + 1);
            retry_stale(is_stale, refresh, || match attempts.replace(attempts.get() + 1) < stale {
                true => Err(from_errno(failure, "reading")),
                false => Ok(attempts.get()),
            })
        };
        assert_eq!(run(3, Errno::STALE).unwrap(), 4);
        assert_eq!(refreshes.get(), 3);
        assert!(run(1, Errno::ACCESS).is_err());
        assert_eq!((attempts.get(), refreshes.get()), (1, 0));
        assert!(run(usize::MAX, Errno::STALE).is_err());
        assert_eq!((attempts.get(), refreshes.get()), (MAX_STALE, MAX_STALE - 1));
    }
}
