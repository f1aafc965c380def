//! Files on their way to a name: written where nobody sees them, then published in one step.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use fordway_store::{Bucket, Conditions, ETag, Error, ErrorKind, Key, PutResult, Result};
use fordway_sys::{
    ByteLocks, Errno, FileStat, Mode, OFlags, create_unnamed, free_bytes, link, link_unnamed, make_dir,
    open_in, remove_file, rename, set_xattr, stat, sync_data, write_all_at,
};

use crate::dirs::Dir;
use crate::errors::from_errno;
use crate::layout::{
    ATTRIBUTE, OUR_DIR, Place, join, lock_byte, locks_path, odd, private_dir, split, tmp_dir,
};
use crate::read::system_time;
use crate::record::{Record, Seal};
use crate::{Durability, Inner};

/// Modes of what we make, before the process's umask.
pub(crate) const FILE_MODE: Mode = Mode::from_raw_mode(0o666);
const DIR_MODE: Mode = Mode::from_raw_mode(0o777);

/// Free bytes beyond which a file system that says it is full means the attribute alone.
const SOME_ROOM_BYTES: u64 = 1 << 20;

/// How often a publish starts again after a racing delete removed its directory. Where several
/// processes do nothing but make and prune one directory, each try may well be lost.
const MAX_RACES: usize = 1000;

/// A file being written. Dropping it unpublished leaves nothing behind.
pub(crate) struct Staged {
    inner: Arc<Inner>,
    bucket: Bucket,
    /// Where it is to be published.
    place: Place<'static>,
    /// The directory of `place`.
    parent: Dir,
    file: OwnedFd,
    /// The hidden name it has, where the file system knows no unnamed files.
    hidden: Option<Hidden>,
    written: u64,
}

/// A name that is not that of an object.
struct Hidden {
    dir: Dir,
    name: String,
    /// Whether the file goes if it is not published.
    is_temporary: bool,
}

impl Hidden {
    /// Leaves the name alone: it was renamed away.
    fn forget(mut self) {
        self.is_temporary = false;
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        if self.is_temporary {
            // What cannot be removed is left to `gc`.
            let _ = remove_file(&self.dir, &self.name);
        }
    }
}

impl Staged {
    /// Starts a file that will be published at `place` in `bucket`.
    /// Errors: `NoSuchBucket`, and `NoSuchKey` if a parent of `place` is a file.
    pub(crate) fn at(inner: &Arc<Inner>, bucket: &Bucket, place: Place) -> Result<Self> {
        for race in 0..MAX_RACES {
            give_way(race);
            let parent = inner.parent_of(bucket, &place.dir)?;
            let (file, hidden) = match create_unnamed(&parent, FILE_MODE) {
                Ok(file) => (file, None),
                Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => inner.create_hidden(bucket)?,
                // In a removed directory tmpfs says ENOENT, ext4 EPERM. It may have been opened just now.
                Err(_) if parent.is_removed() => {
                    inner.dirs.forget(&place.dir);
                    continue;
                }
                Err(errno) => return Err(from_errno(errno, "making a file")),
            };
            let (place, inner, bucket) = (place.into_owned(), inner.clone(), bucket.clone());
            return Ok(Staged { inner, bucket, place, parent, file, hidden, written: 0 });
        }
        Err(ErrorKind::ConditionalConflict.into())
    }

    /// The name it will have.
    pub(crate) fn name(&self) -> &str {
        &self.place.name
    }

    /// The file, for what writes to it without passing through this process.
    pub(crate) fn file(&self) -> &OwnedFd {
        &self.file
    }

    /// Bytes written by [`Staged::write`], and where the next one goes.
    pub(crate) fn written(&self) -> u64 {
        self.written
    }

    /// Appends `data`. Errors: `NoSpace`, `QuotaExceeded` (both say how much is missing), `Io`.
    pub(crate) fn write(&mut self, data: &[u8]) -> Result<()> {
        match write_all_at(&self.file, data, self.written) {
            Ok(()) => {
                self.written += data.len() as u64;
                Ok(())
            }
            Err(errno) => Err(self.failed_write(errno, data.len())),
        }
    }

    /// Counts bytes that came by another way than [`Staged::write`].
    pub(crate) fn advance(&mut self, bytes: u64) {
        self.written += bytes;
    }

    pub(crate) fn failed_write(&self, errno: Errno, wanted: usize) -> Error {
        let free = free_bytes(&self.file).map_or(String::new(), |free| format!(", {free} are free"));
        from_errno(errno, &format!("{} bytes are written, {wanted} more were to follow{free}", self.written))
    }

    /// Attaches `record`, sealed for the content as it is now and with a tag of its own if it has
    /// none yet, and makes the content durable where that is asked for.
    pub(crate) fn seal(&self, record: &mut Record) -> Result<PutResult> {
        let stat = stat(&self.file).map_err(|errno| from_errno(errno, "reading the file's state"))?;
        record.seal = Some(Seal::of(&stat));
        let etag = record.etag.get_or_insert_with(|| unique_etag(&stat)).clone();
        let packed = record.encode();
        match set_xattr(&self.file, ATTRIBUTE, &packed) {
            Ok(()) => {}
            // Without attributes the ETag is that of a file POSIX made; metadata would be lost.
            Err(Errno::OPNOTSUPP) if record.metadata.is_empty() => {}
            Err(errno) => return Err(failed_attribute(errno, &self.file, packed.len())),
        }
        if self.inner.config.durability != Durability::None {
            sync_data(&self.file).map_err(|errno| from_errno(errno, "writing to stable storage"))?;
        }
        Ok(PutResult { etag, modified: system_time(stat.modified_ns), checksum: record.checksum.clone() })
    }

    /// Publishes the file as the object `key` if `conditions` hold.
    /// Errors: `PreconditionFailed`, `NoSuchKey` (If-Match of nothing), `NotImplemented` (If-Match
    /// without locks).
    pub(crate) fn publish(mut self, key: &Key, conditions: &Conditions) -> Result<()> {
        let inner = self.inner.clone();
        if *conditions == Conditions::create_only() {
            self.publish_new(key)?;
        } else if !conditions.is_empty() {
            inner.require_if_match()?;
            inner.locked(&self.bucket.clone(), key, |_| self.publish_checked(key, conditions))?;
        } else if !self.link(Some(key))? {
            inner.locked(&self.bucket.clone(), key, |_| self.replace(key))?;
        }
        self.sync_name()
    }

    /// Publishes the file at its path whatever is there: for files that no other writer publishes.
    pub(crate) fn publish_private(mut self) -> Result<()> {
        if !self.link(None)? {
            self.rename_into_place()?.map_err(|errno| from_errno(errno, "publishing"))?;
        }
        self.sync_name()
    }

    /// Publishes the file at its place if there is none yet.
    pub(crate) fn publish_if_new(mut self) -> Result<()> {
        self.link(None)?;
        self.sync_name()
    }

    fn publish_new(&mut self, key: &Key) -> Result<()> {
        let exists = || Error::new(ErrorKind::PreconditionFailed, "the object exists");
        if self.inner.has_odd(&self.bucket) && self.inner.open_file(&odd(&self.bucket, key))?.is_some() {
            return Err(exists());
        }
        if self.link(Some(key))? {
            return Ok(());
        }
        let is_dir = match fordway_sys::stat_in(&self.parent, &self.place.name) {
            Ok(stat) => stat.is_dir,
            Err(Errno::NOENT) => false,
            Err(errno) => return Err(from_errno(errno, "reading the state of what is there")),
        };
        if is_dir && self.move_to_odd(key)? && self.link(Some(key))? {
            return Ok(());
        }
        Err(exists())
    }

    /// With the key's lock held, nobody replaces or removes the object between check and rename;
    /// only a creation, which needs no lock, may come between, and that is tried again.
    fn publish_checked(&mut self, key: &Key, conditions: &Conditions) -> Result<()> {
        for _ in 0..MAX_RACES {
            let current = self.inner.find_object(&self.bucket, key)?.map(|opened| opened.into_info().1.etag);
            conditions.check_write(current.as_ref())?;
            if current.is_some() {
                return self.replace(key);
            }
            if self.link(Some(key))? {
                return Ok(());
            }
        }
        Err(ErrorKind::ConditionalConflict.into())
    }

    /// Gives the file its name if that is free; says whether it was. `key` is that of an object.
    fn link(&mut self, key: Option<&Key>) -> Result<bool> {
        for race in 0..MAX_RACES {
            give_way(race);
            let name = &self.place.name;
            let linked = match &self.hidden {
                None => link_unnamed(&self.file, &self.parent, name),
                Some(hidden) => link(&hidden.dir, &hidden.name, &self.parent, name),
            };
            match linked {
                Ok(()) => return Ok(true),
                Err(Errno::EXIST) => return Ok(false),
                // A delete has just pruned the directory.
                Err(Errno::NOENT | Errno::STALE) => self.reopen_parent(key)?,
                Err(errno) => return Err(from_errno(errno, "publishing")),
            }
        }
        Err(ErrorKind::ConditionalConflict.into())
    }

    /// Replaces what has the name; a directory that has it makes the key an odd one.
    fn replace(&mut self, key: &Key) -> Result<()> {
        for race in 0..MAX_RACES {
            give_way(race);
            match self.rename_into_place()? {
                Ok(()) => return Ok(()),
                Err(Errno::ISDIR | Errno::EXIST | Errno::NOTEMPTY) if self.move_to_odd(key)? => {}
                Err(Errno::NOENT | Errno::STALE) => self.reopen_parent(Some(key))?,
                Err(errno) => return Err(from_errno(errno, "publishing")),
            }
        }
        Err(ErrorKind::ConditionalConflict.into())
    }

    /// Renames the file over whatever has its name; an unnamed one is given a hidden name first.
    fn rename_into_place(&mut self) -> Result<Result<(), Errno>> {
        let hidden = match self.hidden.take() {
            Some(hidden) => hidden,
            None => self.hide()?,
        };
        let renamed = rename(&hidden.dir, &hidden.name, &self.parent, &self.place.name);
        match renamed {
            Ok(()) => hidden.forget(),
            Err(_) => self.hidden = Some(hidden),
        }
        Ok(renamed)
    }

    fn hide(&self) -> Result<Hidden> {
        let dir = self.inner.tmp_dir(&self.bucket)?;
        let name = hidden_name()?;
        link_unnamed(&self.file, &dir, &name).map_err(|errno| from_errno(errno, "naming the staged file"))?;
        Ok(Hidden { dir, name, is_temporary: true })
    }

    /// Finds or makes the parent again after a delete removed it. If the file of another key is in
    /// its place by now, `key` has become an odd one.
    fn reopen_parent(&mut self, key: Option<&Key>) -> Result<()> {
        self.inner.dirs.forget(&self.place.dir);
        match (self.inner.parent_of(&self.bucket, &self.place.dir), key) {
            (Ok(parent), _) => self.parent = parent,
            (Err(error), Some(key)) if error.kind() == ErrorKind::NoSuchKey && self.move_to_odd(key)? => {}
            (Err(error), _) => return Err(error),
        }
        Ok(())
    }

    /// Turns to the key's odd place; says whether that is another than the one tried.
    fn move_to_odd(&mut self, key: &Key) -> Result<bool> {
        let place = odd(&self.bucket, key);
        if place == self.place {
            return Ok(false);
        }
        self.parent = self.inner.parent_of(&self.bucket, &place.dir)?;
        self.place = place;
        Ok(true)
    }

    fn sync_name(&self) -> Result<()> {
        if self.inner.config.durability == Durability::Full {
            sync_dir(&self.parent)
                .map_err(|errno| from_errno(errno, "writing the name to stable storage"))?;
        }
        Ok(())
    }
}

impl Inner {
    /// Stages `file`, which lies at `name` in `dir` and stays there if it is not published.
    pub(crate) fn stage_existing(
        self: &Arc<Self>,
        bucket: &Bucket,
        key: &Key,
        file: OwnedFd,
        dir: Dir,
        name: &str,
    ) -> Result<Staged> {
        // Found as for a new file, which knows where a key's parent is a file.
        let Staged { inner, bucket, place, parent, written, .. } = self.stage(bucket, key)?;
        let hidden = Some(Hidden { dir, name: name.to_owned(), is_temporary: false });
        Ok(Staged { inner, bucket, place, parent, file, hidden, written })
    }

    /// Seals a part whose bytes lie in an upload's `data`: only a record of its own says so.
    pub(crate) fn seal_part(&self, data: &File, record: &mut Record) -> Result<PutResult> {
        let stat = stat(data).map_err(|errno| from_errno(errno, "reading the upload's state"))?;
        let etag = record.etag.get_or_insert_with(|| unique_etag(&stat)).clone();
        if self.config.durability != Durability::None {
            sync_data(data).map_err(|errno| from_errno(errno, "writing to stable storage"))?;
        }
        Ok(PutResult { etag, modified: system_time(stat.modified_ns), checksum: record.checksum.clone() })
    }

    /// The directory at `dir` in `bucket`, made with all its parents where it is missing.
    /// Errors: `NoSuchBucket`; `NoSuchKey` if a parent is a file.
    pub(crate) fn parent_of(&self, bucket: &Bucket, dir: &str) -> Result<Dir> {
        let missing = |errno| match errno {
            Errno::NOENT | Errno::NOTDIR if dir == bucket.as_str() => ErrorKind::NoSuchBucket.into(),
            errno => from_errno(errno, "opening the directory"),
        };
        for race in 0..MAX_RACES {
            give_way(race);
            match self.dirs.open(&self.root, dir) {
                Err(Errno::NOENT) if dir != bucket.as_str() => {}
                done => return done.map_err(missing),
            }
            match self.make_dirs(bucket, dir) {
                // Another process prunes while we make: start again.
                Ok(()) | Err(Errno::NOENT) => {}
                Err(errno) => return Err(from_errno(errno, "making the directory")),
            }
            self.require_bucket(bucket)?;
        }
        Err(ErrorKind::ConditionalConflict.into())
    }

    /// Makes `dir` and its parents below the bucket, each marked as ours to remove.
    pub(crate) fn make_dirs(&self, bucket: &Bucket, dir: &str) -> Result<(), Errno> {
        let below = dir.strip_prefix(bucket.as_str()).unwrap_or_default();
        let mut path = bucket.as_str().to_owned();
        let private = private_dir(bucket);
        let mut here = self.open_dir(&path)?;
        for name in below.split('/').filter(|name| !name.is_empty()) {
            let is_new = make_dir(&here, name, DIR_MODE)?;
            if is_new && self.config.durability == Durability::Full {
                sync_dir(&here)?;
            }
            path = join(&path, name);
            if is_new && !path.starts_with(&private) {
                mark_as_ours(&here, name);
            }
            here = self.open_dir(&path)?;
        }
        Ok(())
    }

    /// The directory for staged files, made where it is missing.
    fn tmp_dir(&self, bucket: &Bucket) -> Result<Dir> {
        self.parent_of(bucket, &tmp_dir(bucket))
    }

    fn create_hidden(&self, bucket: &Bucket) -> Result<(OwnedFd, Option<Hidden>)> {
        let dir = self.tmp_dir(bucket)?;
        let name = hidden_name()?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let file = open_in(&dir, &name, flags, FILE_MODE).map_err(|e| from_errno(e, "making a file"))?;
        Ok((file, Some(Hidden { dir, name, is_temporary: true })))
    }

    pub(crate) fn require_if_match(&self) -> Result<()> {
        match self.config.if_match {
            true => Ok(()),
            false => Err(Error::new(
                ErrorKind::NotImplemented,
                "If-Match on writes needs locks, which this store was opened without",
            )),
        }
    }

    /// Runs `act` with the lock of `key` held: no other writer that replaces or deletes it, in any
    /// process on any node that shares the file system's locks, is at work meanwhile. `act` is told
    /// whether the bucket has odd keys, where that was seen on the way.
    pub(crate) fn locked<T>(
        &self,
        bucket: &Bucket,
        key: &Key,
        act: impl FnOnce(Option<bool>) -> Result<T>,
    ) -> Result<T> {
        if !self.config.if_match {
            return act(None);
        }
        for _ in 0..MAX_RACES {
            let locks = self.lock_table(bucket)?;
            let _held = locks.lock(lock_byte(key)).map_err(|errno| from_errno(errno, "locking the key"))?;
            let glance = self.odd_keys.glance(&self.root, bucket);
            if glance.vouches_for_locks() {
                return act(glance.has_odd);
            }
            if locks.is_current().map_err(|errno| from_errno(errno, "locking the key"))? {
                glance.vouch_for_locks();
                return act(glance.has_odd);
            }
            // The bucket was removed and made again: so was its lock table.
            self.lock_tables().remove(bucket);
        }
        Err(ErrorKind::ConditionalConflict.into())
    }

    fn lock_table(&self, bucket: &Bucket) -> Result<Arc<ByteLocks>> {
        if let Some(locks) = self.lock_tables().get(bucket) {
            return Ok(locks.clone());
        }
        let path = locks_path(bucket);
        self.parent_of(bucket, split(&path).0)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOCTTY;
        let file = self.root.open_beneath(&path, flags, FILE_MODE);
        let file = file.map_err(|errno| from_errno(errno, "opening the bucket's lock table"))?;
        let locks = Arc::new(ByteLocks::new(file.into()));
        self.lock_tables().insert(bucket.clone(), locks.clone());
        Ok(locks)
    }

    fn lock_tables(&self) -> std::sync::MutexGuard<'_, std::collections::HashMap<Bucket, Arc<ByteLocks>>> {
        // A map is whole after every single insert or remove, even if a panic follows.
        self.locks.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// Lets others go on before the try number `race` (from 0). A directory that is being removed can be
/// found, dead, until the remover is done with it, and that may wait for this very processor.
fn give_way(race: usize) {
    match race {
        0 => {}
        1..4 => std::thread::yield_now(),
        _ => std::thread::sleep(Duration::from_micros(1 << race.min(6))),
    }
}

/// Marks a directory as made by us. A file system without attributes leaves it unmarked, and then
/// it merely stays when it becomes empty.
fn mark_as_ours(parent: &File, name: &str) {
    if let Ok(dir) = open_in(parent, name, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()) {
        let _ = set_xattr(&dir, OUR_DIR, b"1");
    }
}

fn sync_dir(dir: impl AsFd) -> Result<(), Errno> {
    sync_data(open_in(dir, ".", OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?)
}

fn failed_attribute(errno: Errno, file: &OwnedFd, bytes: usize) -> Error {
    // ext4 says "no space" to an attribute that does not fit into its one block.
    let has_room = free_bytes(file).is_ok_and(|free| free > SOME_ROOM_BYTES);
    match errno {
        Errno::OPNOTSUPP => Error::new(
            ErrorKind::NotImplemented,
            "this file system has no extended attributes, which the object's metadata needs",
        ),
        Errno::TOOBIG | Errno::RANGE => too_much_metadata(bytes),
        Errno::NOSPC if has_room => too_much_metadata(bytes),
        errno => from_errno(errno, "storing the metadata"),
    }
}

fn too_much_metadata(bytes: usize) -> Error {
    let why =
        format!("the metadata takes {bytes} bytes, more than this file system's attributes hold; use less");
    Error::new(ErrorKind::InvalidArgument, why)
}

/// A tag that no other version of any object has. While the file exists no other has its inode;
/// when it is gone, a later one of that inode has another time, and where clocks are coarse or were
/// set back, another number within a process and other random bits between processes.
fn unique_etag(stat: &FileStat) -> ETag {
    static VERSIONS: AtomicU64 = AtomicU64::new(0);
    static PROCESS: LazyLock<u64> = LazyLock::new(|| getrandom::u64().unwrap_or_default());
    let version = VERSIONS.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let low = (*PROCESS ^ stat.inode.rotate_left(32)).wrapping_add(version);
    ETag::opaque(u128::from(stat.modified_ns as u64) << 64 | u128::from(low))
}

/// A name that no other writer on any node comes upon.
pub(crate) fn hidden_name() -> Result<String> {
    let random =
        getrandom::u64().map_err(|error| Error::new(ErrorKind::Io, "no random number").caused_by(error))?;
    Ok(format!("{random:016x}"))
}
