//! Removes empty buckets.
//!
//! A removal that is refused must leave the bucket as it was, with its settings, uploads, undelivered events, and the
//! metadata of objects that were created in the meantime. The kernel removes only an empty directory, so the private
//! directory must leave the bucket first. Without its settings, however, a bucket with object lock would accept objects
//! that are not protected. A removal therefore moves the whole bucket out of the reach of new requests, and destroys
//! nothing until the bucket's own directory is gone:
//!
//! ```text
//! ROOT/BUCKET                               1. the bucket, to which no writer holds a lock
//! ROOT/.fordway-removing-RANDOM/BUCKET      2. the bucket, which no request finds
//! ROOT/.fordway-removing-RANDOM/.fordway    3. the private directory; then the bucket's directory is removed
//! ```
//!
//! A put of a new object takes no lock, and may still have the bucket's directory open. If the put creates its object
//! before the bucket's directory is removed, the removal fails, and both directories move back. Otherwise, the put
//! fails. Requests between the moves, usually within a fraction of a millisecond, do not find the bucket. If the
//! process is killed between the moves, the next `gc` moves the directories back.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use fordway_store::{Bucket, Error, ErrorKind, ListQuery, Result};
use fordway_sys::{
    ByteRangeGuard, Errno, FileStat, Mode, OFlags, lock_range, make_dir, open_in, read_dir, remove_dir,
    remove_file, rename, rename_new, stat, stat_in,
};

use crate::PosixStoreState;
use crate::any_object::any_object;
use crate::area::{each_name, names_of, remove_each, remove_if_file, remove_staged};
use crate::delete::remove_empty_tree;
use crate::errors::from_errno;
use crate::layout::{
    EVENTS, LOCKS, META, ODD, PRIVATE_DIR, TMP, UPLOADS, VERSIONING, VERSIONS, is_hidden_name,
    is_private_dir_name, is_private_name, join, removal_name, removal_of, upload_of, webhook_of_event,
};
use crate::locks::ALL_KEYS;
use crate::multipart::parts::{remove_upload_dir, role_of};
use crate::object_lock::unshield_setting;
use crate::patience::pause;
use crate::shared::leads_to;
use crate::sidecar::inode_of;
use crate::stage::hidden_name;
use crate::versions::list::has_versions;

/// The maximum time for which the removal of a bucket waits for processes on this node to close the bucket's private
/// files. The files are removed again every [`CLOSING_PAUSE`]. NFS and FUSE keep a removed file under a hidden name
/// while a process on the same node has it open.
const CLOSING_MAX: Duration = Duration::from_secs(1);
const CLOSING_PAUSE: Duration = Duration::from_millis(20);
/// The time after which a removal counts as interrupted. A removal takes a few seconds at most.
pub(crate) const INTERRUPTED: Duration = Duration::from_secs(120);
/// The mode of the directory into which a bucket moves: only the user who removes the bucket may enter it.
const REMOVAL_MODE: Mode = Mode::from_raw_mode(0o700);

/// A bucket's directory that was moved out of the reach of requests.
struct MovedBucket<'m> {
    store: &'m PosixStoreState,
    bucket: Bucket,
    /// The name, in the root, of the directory to which the bucket was moved.
    name: String,
    removal: OwnedFd,
}

/// The removal of one bucket.
pub(crate) struct BucketRemoval<'r> {
    pub(crate) store: &'r PosixStoreState,
    pub(crate) bucket: &'r Bucket,
}

impl BucketRemoval<'_> {
    /// Removes an empty bucket. If the bucket cannot be removed, it remains as it was.
    pub(crate) fn run(&self) -> Result<()> {
        match self.require_empty()? {
            Some(dir) => self.remove_empty(&dir),
            None => self.finish(),
        }
    }

    /// Checks that the bucket may be removed, and returns its directory. Changes nothing, unless another program
    /// removes the bucket's last file at the same time: then the bucket may be removed too, and the result is `None`.
    fn require_empty(&self) -> Result<Option<File>> {
        self.store.head_bucket(self.bucket)?;
        let query = ListQuery { max_keys: 1, ..Default::default() };
        let is_empty = !self.has_any_object()
            && self.store.list(self.bucket, &query)?.entries.is_empty()
            && !has_versions(self.store, self.bucket)?;
        if !is_empty {
            return self.remove_if_emptied().map(|()| None);
        }
        let dir = self
            .store
            .volume
            .open_dir(self.bucket.as_str())
            .map_err(|errno| from_errno(errno, "opening the bucket"))?;
        self.check_removable(&dir)?;
        Ok(Some(dir))
    }

    /// Returns `true` if the bucket certainly contains an object. Unlike a listing, does not read and sort all names.
    fn has_any_object(&self) -> bool {
        let volume = &self.store.volume;
        let dir = volume.open_to_list(self.bucket.as_str()).ok().flatten();
        let bucket = (self.bucket, volume.sharing_of(self.bucket));
        dir.is_some_and(|dir| any_object(volume, bucket, "", &dir).is_some())
    }

    /// Removes a bucket that was not empty a moment ago, if another program has removed all its files since. Errors:
    /// `AccessDenied` if the caller may not remove the bucket anyway, because the kernel checks permissions before
    /// content; otherwise `BucketNotEmpty`.
    fn remove_if_emptied(&self) -> Result<()> {
        match remove_dir(self.store.volume.root.dir(), self.bucket.as_str()) {
            Ok(()) => Ok(()),
            Err(errno @ (Errno::ACCESS | Errno::PERM)) => Err(from_errno(errno, "removing the bucket")),
            Err(_) => Err(ErrorKind::BucketNotEmpty.into()),
        }
    }

    fn remove_empty(&self, dir: &File) -> Result<()> {
        let done = match self.is_removed_at_once()? {
            true => Ok(()),
            false => self.remove_bucket(dir),
        };
        self.store.volume.private.forget(self.bucket);
        done?;
        self.finish()
    }

    /// Forgets a bucket that was removed, and makes the removal durable if the configuration requires it.
    fn finish(&self) -> Result<()> {
        self.store.volume.private.forget(self.bucket);
        self.store.volume.private.remote.forget(self.bucket);
        self.store.sync_root()
    }

    /// Checks that the bucket's directory contains only Fordway's own files. Errors: `BucketNotEmpty` for directories
    /// and files that are not objects; `AccessDenied` if the bucket is a symbolic link.
    fn check_removable(&self, dir: &File) -> Result<()> {
        let failed = |errno| from_errno(errno, "reading the bucket");
        if stat_in(self.store.volume.root.dir(), self.bucket.as_str()).map_err(failed)?.is_link {
            let why = "the bucket is a symbolic link; remove that with rm";
            return Err(Error::new(ErrorKind::AccessDenied, why));
        }
        check_content(dir)
    }

    /// Removes the bucket's directory if it is empty, and returns whether the directory was removed. The kernel checks
    /// whether the caller may remove the directory before it checks whether the directory is empty. Cost: one
    /// `unlinkat`.
    fn is_removed_at_once(&self) -> Result<bool> {
        match remove_dir(self.store.volume.root.dir(), self.bucket.as_str()) {
            Ok(()) => Ok(true),
            Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(false),
            Err(errno) => Err(from_errno(errno, "removing the bucket")),
        }
    }

    /// Removes the bucket with its private directory. `dir` is the bucket's directory. Errors: `ConditionalConflict` if
    /// another process holds the lock of a key.
    fn remove_bucket(&self, dir: &File) -> Result<()> {
        self.store.locks.close(self.bucket);
        let excluded = self.exclude_writers()?;
        // Writers may have created objects since the bucket was checked.
        self.store.volume.private.forget(self.bucket);
        let is_shared = self.store.volume.sharing_of(self.bucket).is_shared();
        self.check_removable(dir)?;
        if let Ok(private) = open_in(dir, PRIVATE_DIR, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()) {
            remove_empty_areas(&private)?;
        }
        let moved = MovedBucket::take(self.store, self.bucket, dir)?;
        self.store.volume.private.forget(self.bucket);
        match moved.take_apart(dir) {
            Ok(()) => {
                // NFS and FUSE would keep the open lock file under a hidden name.
                drop(excluded);
                moved.destroy(is_shared);
                Ok(())
            }
            Err(error) => moved.put_back().and(Err(error)),
        }
    }

    /// Waits until no writer holds the lock of a key of the bucket, and takes all these locks. Returns `None` if the
    /// store or the file system has no locks, or if there is no room for a lock file. Errors: `ConditionalConflict`.
    fn exclude_writers(&self) -> Result<Option<ByteRangeGuard>> {
        if !self.store.volume.config.if_match {
            return Ok(None);
        }
        let Ok(file) = self.store.volume.open_shared_file(self.bucket, LOCKS) else { return Ok(None) };
        match lock_range(file.into(), ALL_KEYS, self.store.volume.config.lock_patience) {
            Ok(excluded) if stat(&excluded).is_ok_and(|state| state.links > 0) => Ok(Some(excluded)),
            Ok(_) | Err(Errno::TIMEDOUT) => Err(in_use()),
            Err(_) => Ok(None),
        }
    }
}

/// Ends the removals of buckets that began more than `age` ago and were interrupted: moves the bucket back, or
/// removes its remains if the bucket's directory is gone. Leaves files that the caller may not change.
pub(crate) fn end_interrupted_removals(store: &PosixStoreState, age: Duration) {
    let root = store.volume.root.dir();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as i64;
    let is_over =
        |state: FileStat| now.saturating_sub(state.modified_ns.max(state.changed_ns)) > age.as_nanos() as i64;
    let Ok(names) = names_of(root) else { return };
    for name in names.into_iter().filter(|name| removal_of(name).is_some()) {
        if !stat_in(root, &name).is_ok_and(is_over) {
            continue;
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let Ok(removal) = open_in(root, &name, flags, Mode::empty()) else { continue };
        let Ok(found) = names_of(&removal) else { continue };
        let bucket = found.into_iter().find_map(|name| Bucket::new(name).ok());
        match bucket {
            Some(bucket) => {
                let moved = MovedBucket { store, bucket, name, removal };
                // If the bucket cannot be moved back, the next run tries again.
                let _ = moved.give_private_back().and_then(|()| moved.put_back());
            }
            None => destroy_removal(root, &removal, &name),
        }
    }
}

impl<'m> MovedBucket<'m> {
    /// Moves the bucket, whose directory is `dir`. Errors: `ConditionalConflict` if another directory has replaced it.
    fn take(store: &'m PosixStoreState, bucket: &Bucket, dir: &File) -> Result<Self> {
        let root = store.volume.root.dir();
        let failed = |errno| from_errno(errno, "removing the bucket");
        let name = removal_name(&hidden_name()?);
        make_dir(root, &name, REMOVAL_MODE).map_err(failed)?;
        let opened = open_in(root, &name, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty());
        let taken = opened
            .and_then(|removal| rename(root, bucket.as_str(), &removal, bucket.as_str()).map(|()| removal));
        match taken {
            Ok(removal) => {
                let moved = MovedBucket { store, bucket: bucket.clone(), name, removal };
                let is_same = |is: FileStat| leads_to(&moved.removal, bucket.as_str(), (is.device, is.inode));
                match stat(dir).is_ok_and(is_same) {
                    true => Ok(moved),
                    false => moved.put_back().and(Err(in_use())),
                }
            }
            Err(errno) => {
                let _ = remove_dir(root, &name);
                Err(failed(errno))
            }
        }
    }

    /// Moves the private directory out of the bucket's directory `dir`, then removes `dir`, which has no other content.
    /// If `dir` cannot be removed, moves the private directory back.
    fn take_apart(&self, dir: &File) -> Result<()> {
        let failed = |errno| from_errno(errno, "removing the bucket's own files");
        match open_in(dir, PRIVATE_DIR, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()) {
            Ok(_) => {
                match rename(dir, PRIVATE_DIR, &self.removal, PRIVATE_DIR) {
                    // Only the owner of a directory may move it, but an empty directory can be removed.
                    Err(Errno::ACCESS | Errno::PERM) => {
                        remove_dir(dir, PRIVATE_DIR).map_err(|errno| match errno {
                            Errno::NOTEMPTY => failed(Errno::ACCESS),
                            errno => failed(errno),
                        })?
                    }
                    done => done.map_err(failed)?,
                }
            }
            Err(Errno::NOENT) => {}
            // Fordway did not create the file or symbolic link with this name. The file or link is removed, because it
            // cannot be an object.
            Err(Errno::NOTDIR | Errno::LOOP) => remove_file(dir, PRIVATE_DIR).map_err(failed)?,
            Err(errno) => return Err(failed(errno)),
        }
        // Without the locks of keys, a writer may have created a directory for odd keys or old versions again.
        let is_used = |name| {
            !matches!(stat_in(&self.removal, &join(PRIVATE_DIR, name)), Err(Errno::NOENT | Errno::NOTDIR))
        };
        if is_used(ODD) || is_used(VERSIONS) {
            return self.give_private_back().and(Err(in_use()));
        }
        let Err(errno) = remove_dir(&self.removal, self.bucket.as_str()) else { return Ok(()) };
        self.give_private_back()?;
        Err(match errno {
            Errno::NOTEMPTY | Errno::EXIST => ErrorKind::BucketNotEmpty.into(),
            errno => from_errno(errno, "removing the bucket"),
        })
    }

    /// Moves the private directory back into the bucket's directory.
    fn give_private_back(&self) -> Result<()> {
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let moved = open_in(&self.removal, self.bucket.as_str(), flags, Mode::empty())
            .and_then(|dir| move_new(&self.removal, PRIVATE_DIR, &dir, PRIVATE_DIR));
        match moved {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(self.not_put_back(errno)),
        }
    }

    /// Moves the bucket back to its name. If another process has created a bucket with this name in the meantime, the
    /// new bucket is replaced if it is still empty. Errors: any error means that the bucket is still in the directory
    /// for removals.
    fn put_back(&self) -> Result<()> {
        let (root, bucket) = (self.store.volume.root.dir(), self.bucket.as_str());
        let moved = match move_new(&self.removal, bucket, root, bucket) {
            Err(Errno::EXIST) => rename(&self.removal, bucket, root, bucket),
            done => done,
        };
        self.store.volume.private.forget(&self.bucket);
        moved.map_err(|errno| self.not_put_back(errno))?;
        let _ = remove_dir(root, &self.name);
        self.store.sync_root()
    }

    fn not_put_back(&self, errno: Errno) -> Error {
        let MovedBucket { name, bucket, .. } = self;
        from_errno(
            errno,
            &format!("moving {name}/{bucket} back to {bucket}; do this with mv, or run `fordway gc`"),
        )
    }

    /// Removes the private directory of the bucket, which is gone. Files that cannot be removed are left to `gc`.
    fn destroy(&self, is_shared: bool) {
        let (root, begin) = (self.store.volume.root.dir(), Instant::now());
        destroy_removal(root, &self.removal, &self.name);
        while is_shared && stat_in(root, &self.name).is_ok() && begin.elapsed() < CLOSING_MAX {
            pause(CLOSING_PAUSE);
            destroy_removal(root, &self.removal, &self.name);
        }
    }
}

/// Moves a directory if the new name is free. On a file system without such a rename, the new name may also be an empty
/// directory.
fn move_new(from_dir: impl AsFd, from: &str, to_dir: impl AsFd, to: &str) -> Result<(), Errno> {
    match rename_new(&from_dir, from, &to_dir, to) {
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => rename(from_dir, from, to_dir, to),
        done => done,
    }
}

/// Checks that the directory of a bucket contains only Fordway's own files. Errors: `BucketNotEmpty`.
fn check_content(dir: &File) -> Result<()> {
    let mut holds_more = false;
    open_in(dir, ".", OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())
        .and_then(|dir| read_dir(dir, |name, _| holds_more |= name != PRIVATE_DIR.as_bytes()))
        .map_err(|errno| from_errno(errno, "reading the bucket"))?;
    if holds_more || !holds_only_ours(dir) { Err(holds_no_objects()) } else { Ok(()) }
}

/// Removes a private directory, in the directory `removal` in the root, and then `removal` itself, as far as possible.
fn destroy_removal(root: &OwnedFd, removal: &OwnedFd, name: &str) {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    if let Ok(private) = open_in(removal, PRIVATE_DIR, flags, Mode::empty()) {
        let _ = remove_empty_areas(&private);
        remove_areas(&private);
        let is_file = |name: &str| is_private_name(name) && !is_private_dir_name(name);
        let _ = remove_each(&private, is_file, remove_private_file);
        let _ = remove_dir(removal, PRIVATE_DIR);
    }
    let _ = remove_dir(root, name);
}

/// Removes a file in a private directory. The setting of a bucket with object lock may have the immutable flag.
fn remove_private_file(private: &OwnedFd, name: &str) -> Result<(), Errno> {
    match remove_if_file(private, name) {
        Err(Errno::PERM) if name == VERSIONING => {
            let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
            let unshielded = unshield_setting(open_in(private, name, flags, Mode::empty())?)?;
            remove_if_file(private, name)?;
            unshielded.leave();
            Ok(())
        }
        done => done,
    }
}

/// Returns whether the private directory in the bucket's directory `dir` contains only files and directories that
/// Fordway creates.
fn holds_only_ours(dir: &File) -> bool {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let Ok(private) = open_in(dir, PRIVATE_DIR, flags, Mode::empty()) else { return true };
    let holds_only = |name, is_ours: fn(&str) -> bool| match open_in(&private, name, flags, Mode::empty()) {
        Ok(dir) => !holds_foreign(&dir, is_ours),
        Err(errno) => !matches!(errno, Errno::NOTDIR | Errno::LOOP),
    };
    let is_file = |name: &str| !stat_in(&private, name).is_ok_and(|state| state.is_dir);
    !holds_foreign(&private, |name| is_private_dir_name(name) || (is_private_name(name) && is_file(name)))
        && holds_only(TMP, is_hidden_name)
        && holds_only(META, |name| inode_of(name).is_some())
        && holds_only(UPLOADS, |name| upload_of(name).is_some())
        && holds_only(EVENTS, |name| webhook_of_event(name).is_some())
        && each_dir_holds_only(&private, UPLOADS, |name| role_of(name).is_some())
        && each_dir_holds_only(&private, TMP, is_hidden_name)
}

/// Returns whether each directory in the directory `name` contains only names that Fordway writes.
fn each_dir_holds_only(private: &OwnedFd, name: &str, is_ours: fn(&str) -> bool) -> bool {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let Ok(dir) = open_in(private, name, flags, Mode::empty()) else { return true };
    let mut is_all_ours = true;
    let read = each_name(&dir, |name| {
        let inner = open_in(&dir, name, flags, Mode::empty());
        is_all_ours &= !inner.is_ok_and(|inner| holds_foreign(&inner, is_ours));
    });
    read.is_err() || is_all_ours
}

/// Removes the directories of objects and old versions in a private directory, if they contain no files.
fn remove_empty_areas(private: &OwnedFd) -> Result<()> {
    for name in [ODD, VERSIONS] {
        remove_empty_tree(private, name).map_err(|errno| match errno {
            Errno::NOTEMPTY => holds_no_objects(),
            errno => from_errno(errno, "removing the bucket's own files"),
        })?;
    }
    Ok(())
}

/// Removes the other directories in a private directory with Fordway's files in them. Errors that leave files behind
/// are not reported.
fn remove_areas(private: &OwnedFd) {
    let file = |dir: &OwnedFd, name: &str| remove_if_file(dir, name);
    remove_ours(private, META, |name| inode_of(name).is_some(), file);
    remove_ours(private, TMP, is_hidden_name, remove_staged);
    remove_ours(private, EVENTS, |name| webhook_of_event(name).is_some(), file);
    remove_ours(private, UPLOADS, |name| upload_of(name).is_some(), remove_upload_dir);
}

/// Removes Fordway's own files in the directory `name`, then the directory if it is empty.
fn remove_ours(
    private: &OwnedFd,
    name: &str,
    is_ours: impl Fn(&str) -> bool,
    remove: impl Fn(&OwnedFd, &str) -> Result<(), Errno>,
) {
    if let Ok(dir) = open_in(private, name, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()) {
        let _ = remove_each(&dir, is_ours, |dir, name| remove(dir, name).or(Ok(())));
        let _ = remove_dir(private, name);
    }
}

/// Returns whether the directory contains names that Fordway does not write. The names `.nfs...` and `.fuse_hidden...`
/// do not count: NFS and FUSE keep a removed file under one of these names only as long as the file is open.
fn holds_foreign(dir: &OwnedFd, is_ours: impl Fn(&str) -> bool) -> bool {
    let is_kept = |name: &str| name.starts_with(".nfs") || name.starts_with(".fuse_hidden");
    let mut has_foreign = false;
    let read = each_name(dir, |name| has_foreign |= !is_ours(name) && !is_kept(name));
    read.is_ok() && has_foreign
}

fn holds_no_objects() -> Error {
    let why = "it holds directories or files that are not objects; remove them with rmdir or rm";
    Error::new(ErrorKind::BucketNotEmpty, why)
}

fn in_use() -> Error {
    let why = "another process is working in the bucket; delete the bucket again when that process has ended";
    Error::new(ErrorKind::ConditionalConflict, why)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;

    use fordway_store::{
        DefaultRetention, DeleteOptions, GetOptions, Key, LockConfiguration, ObjectLockOperations,
        ObjectVersionOperations, Objects, PutOptions, PutResult, RetentionMode, RetentionPeriod,
        VersioningState,
    };

    use super::*;
    use crate::{PosixConfig, PosixStore};

    const LOCKED: LockConfiguration = LockConfiguration {
        default: Some(DefaultRetention { mode: RetentionMode::Compliance, period: RetentionPeriod::Days(1) }),
    };

    struct Rig {
        dir: tempfile::TempDir,
        store: PosixStore,
        bucket: Bucket,
        key: Key,
    }

    impl Rig {
        /// Creates an empty bucket that keeps versions.
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let store = PosixStore::open(dir.path(), PosixConfig::default()).unwrap();
            let (bucket, key) = (Bucket::new("bucket").unwrap(), Key::new("k").unwrap());
            store.create_bucket(&bucket).unwrap();
            store.set_versioning(&bucket, VersioningState::Enabled).unwrap();
            Rig { dir, store, bucket, key }
        }

        fn put(&self) -> Result<PutResult> {
            self.store.put(&self.bucket, &self.key, b"content", &PutOptions::default())
        }

        /// Checks that the bucket has object lock, and that the version is protected.
        fn check_protected(&self, put: PutResult) {
            assert_eq!(self.store.lock_configuration(&self.bucket).unwrap(), Some(LOCKED));
            self.put().unwrap();
            let options = DeleteOptions { version: put.version, ..Default::default() };
            let refused = self.store.delete(&self.bucket, &self.key, &options).map(drop);
            assert_eq!(refused.expect_err("it is locked").kind(), ErrorKind::AccessDenied);
        }
    }

    /// A removal that is refused does not restore settings that it read before they were changed.
    #[test]
    fn object_lock_that_is_set_during_a_removal_stays_on() {
        let rig = Rig::new();
        let (inner, bucket) = (&rig.store.inner, &rig.bucket);
        let removal = BucketRemoval { store: inner, bucket };
        let dir = removal.require_empty().unwrap().unwrap();
        rig.store.set_lock_configuration(bucket, &LOCKED).unwrap();
        let put = rig.put().unwrap();
        let refused = removal.remove_empty(&dir).expect_err("there is an object");
        assert_eq!(refused.kind(), ErrorKind::BucketNotEmpty);
        rig.check_protected(put);
    }

    /// If another program removes the last file between the check and the refusal, the bucket is removed.
    #[test]
    fn a_bucket_that_was_emptied_meanwhile_is_removed() {
        let rig = Rig::new();
        let bucket = Bucket::new("plain").unwrap();
        std::fs::create_dir(rig.dir.path().join("plain")).unwrap();
        std::fs::write(rig.dir.path().join("plain/k"), "by hand").unwrap();
        let removal = BucketRemoval { store: &rig.store.inner, bucket: &bucket };
        assert_eq!(removal.remove_if_emptied().unwrap_err().kind(), ErrorKind::BucketNotEmpty);
        std::fs::remove_file(rig.dir.path().join("plain/k")).unwrap();
        removal.remove_if_emptied().and_then(|()| removal.finish()).unwrap();
        assert!(!rig.dir.path().join("plain").exists());
        assert_eq!(removal.run().unwrap_err().kind(), ErrorKind::NoSuchBucket);
    }

    /// A removal waits for a writer that holds a lock, and sees what this writer has done.
    #[test]
    fn a_removal_waits_for_writers() {
        let rig = Rig::new();
        let (inner, bucket) = (&rig.store.inner, &rig.bucket);
        rig.store.set_lock_configuration(bucket, &LOCKED).unwrap();
        let (begun, has_begun) = channel();
        thread::scope(|scope| {
            let writer = scope.spawn(|| {
                inner.locked(bucket, &Key::new("other").unwrap(), |_| {
                    begun.send(()).unwrap();
                    thread::sleep(Duration::from_millis(100));
                    rig.put()
                })
            });
            has_begun.recv().unwrap();
            let removal = BucketRemoval { store: inner, bucket };
            let refused = removal.remove_empty(&removal.require_empty().unwrap().unwrap());
            assert_eq!(refused.expect_err("there is an object").kind(), ErrorKind::BucketNotEmpty);
            rig.check_protected(writer.join().unwrap().unwrap());
        });
    }

    /// Wherever a removal is interrupted, it is undone, or completed if the bucket's directory is gone.
    #[test]
    fn an_interrupted_removal_is_ended() {
        for moves in 0..3 {
            let rig = Rig::new();
            let (inner, bucket, root) = (&rig.store.inner, &rig.bucket, rig.dir.path());
            rig.store.set_lock_configuration(bucket, &LOCKED).unwrap();
            let dir = BucketRemoval { store: inner, bucket }.require_empty().unwrap().unwrap();
            let moved = MovedBucket::take(inner, bucket, &dir).unwrap();
            let removal = root.join(&moved.name);
            if moves > 0 {
                std::fs::rename(removal.join("bucket/.fordway"), removal.join(".fordway")).unwrap();
            }
            if moves > 1 {
                std::fs::remove_dir(removal.join("bucket")).unwrap();
            }
            end_interrupted_removals(inner, INTERRUPTED);
            assert!(removal.exists(), "it may still be running");
            thread::sleep(Duration::from_millis(20));
            end_interrupted_removals(inner, Duration::ZERO);
            assert!(!removal.exists(), "{moves} moves");
            match moves {
                0 | 1 => rig.check_protected(rig.put().unwrap()),
                _ => assert!(!root.join("bucket").exists()),
            }
        }
    }

    /// Whenever a put of a protected version is acknowledged during a removal, the version remains.
    #[test]
    fn no_protected_version_is_lost_in_a_race_with_removals() {
        for _ in 0..30 {
            let rig = Rig::new();
            rig.store.set_lock_configuration(&rig.bucket, &LOCKED).unwrap();
            thread::scope(|scope| {
                let removal = scope.spawn(|| rig.store.delete_bucket(&rig.bucket));
                let writer = scope.spawn(|| (0..3).map(|_| rig.put()).collect::<Vec<_>>());
                let made = writer.join().unwrap();
                let is_removed = removal.join().unwrap().is_ok();
                let protected = made.into_iter().flatten().filter_map(|put| put.version);
                for version in protected {
                    assert!(!is_removed);
                    let options = GetOptions { version: Some(version), ..Default::default() };
                    rig.store.get(&rig.bucket, &rig.key, &options).unwrap();
                }
            });
        }
    }
}
