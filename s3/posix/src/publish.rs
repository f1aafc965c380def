//! Giving a staged file its name.
//!
//! Where a key has one place and its bucket keeps no versions, a creation is one `linkat`, which
//! fails if the name is taken, and takes no lock. Everything else is decided under the key's lock, and so is a put of a
//! key that this process put before.
//!
//! A key may lie at its plain place or at its odd one. Three rules keep it one object for every
//! reader, who looks at the plain place first:
//!
//! 1. Nothing is put at an odd place without the key's lock.
//! 2. A key that is at one of the two stays there until it is deleted.
//! 3. Where the two files are there all the same (the first odd key of a bucket was made while
//!    another writer, who could not know of it, made the plain one) the plain one is the object, and
//!    the next writer or deleter removes the other, before the plain one goes.

use fordway_store::{Conditions, Error, ErrorKind, Key, PutResult, Result, VersionId, VersioningState};
use fordway_sys::{Errno, link, link_unnamed, remove_file, rename, stat, stat_in};

use crate::errors::from_errno;
use crate::layout::{ObjectPath, odd, plain, tmp_dir};
use crate::private::AreaContents;
use crate::record::Record;
use crate::stage::{HiddenName, MAX_RACES, StagedFile, give_way, hidden_name};
use crate::versions::{new_version, order_in};

impl StagedFile {
    /// Publishes the file as the object `key`, described by `record`, if `conditions` hold.
    /// Errors: `PreconditionFailed`, `NoSuchKey` (If-Match of nothing), `NotImplemented` (If-Match or
    /// versions without locks).
    pub(crate) fn publish(
        mut self,
        key: &Key,
        mut record: Record,
        conditions: &Conditions,
    ) -> Result<PutResult> {
        self.try_publish(key, &mut record, conditions)
    }

    /// As [`StagedFile::publish`]; after the error `LockTimeout` it may be tried again.
    pub(crate) fn try_publish(
        &mut self,
        key: &Key,
        record: &mut Record,
        conditions: &Conditions,
    ) -> Result<PutResult> {
        let seen = self.inner.volume.contents_for_write(&self.bucket)?;
        if self.may_be_marker(key, record, seen)
            && let Some(made) = self.publish_marker(key, record, conditions)?
        {
            return Ok(made);
        }
        let is_versioned = seen.versioning == VersioningState::Enabled;
        record.version = if is_versioned { Some(new_version(0)?) } else { None };
        let mut made = self.seal(record)?;
        let is_simple = seen.is_simple() && self.is_plain;
        let creates_only = *conditions == Conditions::create_only();
        if !conditions.is_empty() && !creates_only {
            self.inner.require_locks("If-Match on writes")?;
        }
        let is_done = match is_simple {
            true if creates_only => self.publish_new(key)?,
            true if conditions.is_empty() => {
                !self.inner.recent_puts.contains(&self.bucket, key) && self.link(Some(key))?
            }
            _ => false,
        };
        if !is_done {
            let (inner, bucket) = (self.inner.clone(), self.bucket.clone());
            inner
                .locked(&bucket, key, |contents| self.publish_locked(key, (conditions, record), contents))?;
            made.version = record.version.clone();
        }
        if is_simple {
            self.inner.recent_puts.insert(&self.bucket, key);
        }
        if record.version.is_none() && seen.versioning == VersioningState::Suspended {
            made.version = Some(VersionId::null());
        }
        self.sync_name()?;
        Ok(made)
    }

    /// Publishes the file at its plain path if no object has the key; returns whether that is decided.
    /// Errors: `PreconditionFailed`.
    fn publish_new(&mut self, key: &Key) -> Result<bool> {
        if !self.link(Some(key))? {
            // The cached state of the name may be stale: the server is asked under the lock.
            if self.inner.volume.contents_for_write(&self.bucket)?.sharing.is_shared() {
                return Ok(false);
            }
            return match stat_in(&self.parent, &self.place.name) {
                Ok(stat) if !stat.is_dir => Err(exists()),
                // It is a directory, or gone again: that is decided under the lock.
                Ok(_) | Err(Errno::NOENT | Errno::STALE) => Ok(false),
                Err(errno) => Err(from_errno(errno, "reading the state of what is there")),
            };
        }
        // The bucket's first odd key may have been made since we looked, and may be this one.
        if !self.inner.volume.contents(&self.bucket)?.has_odd {
            return Ok(true);
        }
        let (inner, bucket) = (self.inner.clone(), self.bucket.clone());
        let is_alone =
            inner.locked(&bucket, key, |_| match inner.volume.open_file(&bucket, &odd(&bucket, key))? {
                None => Ok(true),
                Some(_) => self.withdraw().and(Err(exists())),
            });
        if is_alone.as_ref().is_err_and(|error| error.kind() == ErrorKind::LockTimeout) {
            self.withdraw()?;
        }
        is_alone
    }

    /// Removes the name that was just given, unless another writer has replaced it.
    fn withdraw(&self) -> Result<()> {
        let id = |stat: fordway_sys::FileStat| (stat.device, stat.inode);
        let named = stat_in(&self.parent, &self.place.name).map(id);
        if named.is_ok() && named == stat(&self.file).map(id) {
            remove_file(&self.parent, &self.place.name).map_err(|errno| from_errno(errno, "withdrawing"))?;
        }
        Ok(())
    }

    /// With the key's lock held, nobody else replaces or removes the object, or puts it at its odd
    /// place; only a creation at its plain place, which needs no lock, may come between, and that is
    /// tried again.
    fn publish_locked(
        &mut self,
        key: &Key,
        (conditions, record): (&Conditions, &mut Record),
        contents: AreaContents,
    ) -> Result<()> {
        let (inner, bucket) = (self.inner.clone(), self.bucket.clone());
        let is_versioned = contents.versioning != VersioningState::Unversioned;
        if is_versioned {
            inner.require_locks("a write to a bucket that keeps versions")?;
        }
        if contents.is_simple() && conditions.is_empty() && self.is_plain {
            return self.replace(key, contents);
        }
        for race in 0..MAX_RACES {
            give_way(race);
            let current = inner.volume.locate(&bucket, key, contents)?;
            let current_etag = match &current {
                Some((_, opened)) => Some(opened.etag()),
                None => inner.volume.open_marker(&bucket, key, contents)?.map(|marker| marker.etag()),
            };
            conditions.check_write(current_etag.as_ref())?;
            if is_versioned {
                let floor = match &current {
                    Some((_, opened)) => {
                        inner.keep_version(&bucket, key, opened, record.version.is_none())?
                    }
                    None if record.version.is_some() => inner.highest_order(&bucket, key)?,
                    None => 0,
                };
                self.come_after(floor, record)?;
            }
            // The old file is closed by now: NFS and FUSE take the name of an open one away before it is replaced.
            let place = current.map(|(place, _)| place);
            let is_done = match &place {
                Some(place) => {
                    self.turn_to(place)?;
                    self.replace(key, contents)?;
                    true
                }
                None => self.create_anywhere(key, contents)?,
            };
            if is_done {
                if is_versioned && record.version.is_none() {
                    inner.forget_null(&bucket, key)?;
                }
                inner.remove_marker(&bucket, key, contents)?;
                return inner.remove_hidden_odd(&bucket, key, &self.place, contents);
            }
        }
        Err(ErrorKind::ConditionalConflict.into())
    }

    /// Gives the version another name where its own does not come after `floor`, the highest order that its key has:
    /// the clocks of two nodes may differ.
    fn come_after(&mut self, floor: u64, record: &mut Record) -> Result<()> {
        let is_after = |version: &VersionId| order_in(version).is_some_and(|order| order > floor);
        if record.version.as_ref().is_none_or(is_after) {
            return Ok(());
        }
        record.version = Some(new_version(floor)?);
        self.seal(record).map(drop)
    }

    /// Makes the object where it can lie; says `false` if another writer was faster.
    fn create_anywhere(&mut self, key: &Key, contents: AreaContents) -> Result<bool> {
        if self.link(Some(key))? {
            return Ok(true);
        }
        let is_file = || stat_in(&self.parent, &self.place.name).is_ok_and(|stat| !stat.is_dir);
        if contents.sharing.is_shared() && is_file() {
            // A creation on another node, or a name that is gone and still remembered.
            return Ok(false);
        }
        self.move_to_odd(key)?;
        // Now that the odd place can be seen to be there: a plain file made before is found here,
        // and a writer that makes it from now on finds us.
        let is_taken = match plain(&self.bucket, key) {
            Some(place) => self.inner.volume.open_file(&self.bucket, &place)?.is_some(),
            None => false,
        };
        Ok(!is_taken && self.link(Some(key))?)
    }

    /// Gives the file its name if that is free; says whether it was. `key` names an object.
    pub(crate) fn link(&mut self, key: Option<&Key>) -> Result<bool> {
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
                Err(Errno::NOENT | Errno::STALE) => {
                    if !self.reopen_parent(key)? {
                        return Ok(false);
                    }
                }
                Err(errno) => return Err(from_errno(errno, "publishing")),
            }
        }
        Err(ErrorKind::ConditionalConflict.into())
    }

    /// Replaces what has the name, with the key's lock held; a directory that has it makes the key an
    /// odd one.
    fn replace(&mut self, key: &Key, contents: AreaContents) -> Result<()> {
        for race in 0..MAX_RACES {
            give_way(race);
            let old = self.inner.volume.may_have_sidecar(contents, &self.parent, &self.place.name);
            match self.rename_into_place()? {
                Ok(()) => {
                    self.inner.volume.remove_sidecar(&self.bucket, old);
                    return Ok(());
                }
                Err(Errno::ISDIR | Errno::EXIST | Errno::NOTEMPTY) if self.move_to_odd(key)? => {}
                Err(Errno::NOENT | Errno::STALE) => {
                    if !self.reopen_parent(Some(key))? {
                        self.move_to_odd(key)?;
                    }
                }
                Err(errno) => return Err(from_errno(errno, "publishing")),
            }
        }
        Err(ErrorKind::ConditionalConflict.into())
    }

    /// Renames the file over whatever has its name; an unnamed one is given a hidden name first.
    pub(crate) fn rename_into_place(&mut self) -> Result<Result<(), Errno>> {
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

    fn hide(&self) -> Result<HiddenName> {
        let name = hidden_name()?;
        for race in 0..MAX_RACES {
            give_way(race);
            let (dir, shelter) = self.inner.volume.staging_dir(&self.bucket)?;
            match link_unnamed(&self.file, &dir, &name) {
                Ok(()) => return Ok(HiddenName { dir, name, is_temporary: true, _shelter: shelter }),
                // A concurrent removal of the bucket took it.
                Err(Errno::NOENT | Errno::STALE) if dir.is_removed() => {
                    self.inner.volume.dirs.forget(&tmp_dir(&self.bucket));
                }
                Err(errno) => return Err(from_errno(errno, "naming the staged file")),
            }
        }
        Err(ErrorKind::ConditionalConflict.into())
    }

    /// Finds or makes the parent again after a delete removed it; says `false` if the file of another
    /// key is in its place by now, so that `key` has become an odd one.
    fn reopen_parent(&mut self, key: Option<&Key>) -> Result<bool> {
        match self.inner.volume.sharing.is_shared() {
            true => self.inner.volume.refresh_dirs(&self.place.dir),
            false => self.inner.volume.dirs.forget(&self.place.dir),
        }
        match self.inner.volume.parent_of(&self.bucket, &self.place.dir) {
            Ok(parent) => {
                self.parent = parent;
                Ok(true)
            }
            Err(error) if error.kind() == ErrorKind::NoSuchKey && key.is_some() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Turns to the key's odd place; says whether that is another than the one tried.
    fn move_to_odd(&mut self, key: &Key) -> Result<bool> {
        let place = odd(&self.bucket, key);
        let is_other = place != self.place;
        self.turn_to(&place)?;
        Ok(is_other)
    }

    /// Goes on at `place`.
    fn turn_to(&mut self, place: &ObjectPath) -> Result<()> {
        if *place != self.place {
            self.parent = self.inner.volume.parent_of(&self.bucket, &place.dir)?;
            self.place = place.clone().into_owned();
            self.is_plain = false;
        }
        Ok(())
    }
}

fn exists() -> Error {
    Error::new(ErrorKind::PreconditionFailed, "the object exists")
}
