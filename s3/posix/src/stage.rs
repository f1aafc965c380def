//! Staged files, which are written without a visible name and then published atomically.
//!
//! A *bare* object is completely described by its file alone. A put with the ETag policy `fast` and without metadata,
//! tags or checksum creates a bare object. The object's ETag is derived from the file's inode number, size and
//! modification time. Fordway sets the modification time explicitly, with nanosecond precision, because file systems
//! take timestamps from a clock that ticks every few milliseconds, and an inode number may be freed and reused within a
//! tick. No two files therefore have both the same inode number and the same modification time in nanoseconds. The
//! sticky bit, which has no meaning for files on Linux, marks a file without a record. The mark saves one system call
//! for a reader and two calls for a writer. If the bit is not set, a reader looks for a record; a file without a record
//! is then still a bare object.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use fordway_store::{Bucket, ETag, ETagPolicy, Error, ErrorKind, MAX_DOCUMENT_BYTES, PutResult, Result};
use fordway_sys::{
    CoarseInstant, Errno, FileStat, FileSystemSharing, Mode, OFlags, create_unnamed, file_user,
    free_bytes_before, link, link_unnamed, open_in, remove_file, rename, rename_new, set_mode, set_modified,
    set_size, stat, stat_now, sync_all, sync_data, write_all_at,
};

use fordway_wire::notification::EventKind;

use crate::area::{StagingDirectory, read_small, remove_if_file};
use crate::dirs::{DirectoryHandle, HOLD};
use crate::errors::{from_errno, is_stale, on_another_mount};
use crate::layout::{ObjectPath, is_setting_name, spare_name, tmp_dir};
use crate::mark::{OwnerMark, unsettled};
use crate::multipart::parts::LINKED;
use crate::private::PrivateDirectoryContents;
use crate::read::system_time;
use crate::record::{ContentChangeStamp, ObjectRecord, etag_of_file};
use crate::server_clock::note_written;
use crate::site::require_fit;
use crate::versions::names::now_ns;
use crate::{Durability, PosixStoreState};

/// The mode of a new file, before the process's umask.
pub(crate) const FILE_MODE: Mode = Mode::from_raw_mode(0o666);
/// The mode of a file that holds a setting of the bucket. Settings are replaced and never changed in place, so only
/// their owner needs to write to them.
pub(crate) const SETTING_MODE: Mode = Mode::from_raw_mode(0o644);
/// The mode of a new directory, before the process's umask.
pub(crate) const DIR_MODE: Mode = Mode::from_raw_mode(0o777);

/// The maximum number of times that publishing starts again after a concurrent delete has removed the directory. Many
/// successive attempts may fail if several processes continuously create and remove one directory.
pub(crate) const MAX_RACES: usize = 1000;

/// If a put writes more than this many bytes, it checks before all content has arrived whether the file can be
/// published.
const LONG_BYTES: u64 = 8 << 20;

/// A file being written. If the value is dropped before the file is published, the file is removed, unless the file has
/// a name in an upload.
pub(crate) struct StagedFile {
    pub(crate) inner: Arc<PosixStoreState>,
    pub(crate) bucket: Bucket,
    /// The path at which the file will be published.
    pub(crate) place: ObjectPath<'static>,
    /// Whether `place` is the key's plain path.
    pub(crate) is_plain: bool,
    /// The directory of `place`.
    pub(crate) parent: DirectoryHandle,
    pub(crate) file: OwnedFd,
    /// Whether the file's mode marks it as a file without a record.
    pub(crate) may_be_bare: bool,
    /// The contents of the bucket's private area when the file was started.
    contents: PrivateDirectoryContents,
    started: CoarseInstant,
    /// The file's hidden name, if the file system has no unnamed files.
    pub(crate) hidden: Option<HiddenName>,
    /// The file's inode number, if it has been read.
    pub(crate) inode: Option<u64>,
    written: u64,
    /// Whether the file has a hole.
    has_hole: bool,
    /// The event that reports the object.
    pub(crate) event: EventKind,
}

/// A name that no object can have.
pub(crate) struct HiddenName {
    pub(crate) dir: DirectoryHandle,
    pub(crate) name: String,
    /// Whether the file is removed if it is not published.
    pub(crate) is_temporary: bool,
    /// The directory that was created for this file alone. The guard is dropped when the file has left the directory,
    /// and then removes the directory.
    pub(crate) _shelter: Option<StagingDirectory>,
}

impl HiddenName {
    /// Moves the file to `name` in `parent` if that name is free. The content of an upload leaves the upload's
    /// directory in the same step, because it must be clear after a crash whether the upload was completed. If the file
    /// system does not support this step, the content is first renamed within the upload's directory. A crash after
    /// this rename counts as a completion. `is_ours` returns whether a name in a directory belongs to the file although
    /// the call that gave it this name has failed (see [`StagedFile::has_name`]). Errors: as for [`link`].
    pub(crate) fn move_to_new(
        &self,
        parent: &DirectoryHandle,
        name: &str,
        is_ours: impl Fn(&DirectoryHandle, &str) -> bool,
    ) -> Result<(), Errno> {
        let link = |from: &str| match link(&self.dir, from, parent, name) {
            Err(Errno::EXIST) if is_ours(parent, name) => Ok(()),
            done => done,
        };
        if self.is_temporary {
            return link(&self.name);
        }
        match rename_new(&self.dir, &self.name, parent, name) {
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {}
            Err(Errno::EXIST | Errno::NOENT) if is_ours(parent, name) => return Ok(()),
            done => return done,
        }
        match rename(&self.dir, &self.name, &self.dir, LINKED) {
            Err(Errno::NOENT) if is_ours(&self.dir, LINKED) => {}
            done => done?,
        }
        let linked = link(LINKED);
        match linked {
            // If the removal fails, the file is removed later with the rest of the upload.
            Ok(()) => drop(remove_file(&self.dir, LINKED)),
            Err(_) => rename(&self.dir, LINKED, &self.dir, &self.name)?,
        }
        linked
    }

    /// Prevents the removal of the hidden name, because the file was renamed.
    pub(crate) fn forget(mut self) {
        self.is_temporary = false;
    }
}

impl Drop for HiddenName {
    fn drop(&mut self) {
        if self.is_temporary {
            // If the removal fails, `gc` removes the file later.
            let _ = remove_file(&self.dir, &self.name);
        }
    }
}

impl StagedFile {
    /// Starts a file that will be published at `place` in `bucket`.
    /// Errors: `NoSuchBucket`; `NoSuchKey` if a parent of `place` is a file; `NotImplemented` for a bucket on a mount
    /// that is known to break the store's guarantees.
    pub(crate) fn at(inner: &Arc<PosixStoreState>, bucket: &Bucket, place: ObjectPath) -> Result<Self> {
        StagedFile::with_mode(inner, bucket, place, false, FILE_MODE)
    }

    /// Starts a file as [`StagedFile::at`] does, with `mode` before the process's umask. `is_plain` is true if
    /// `place` is the plain path of a key.
    pub(crate) fn with_mode(
        inner: &Arc<PosixStoreState>,
        bucket: &Bucket,
        place: ObjectPath,
        is_plain: bool,
        mode: Mode,
    ) -> Result<Self> {
        for race in 0..MAX_RACES {
            give_way(race);
            let parent = inner.volume.parent_of(bucket, &place.dir)?;
            let started = CoarseInstant::now();
            // The bucket may be a separate mount, so the bucket's mount is checked in addition to the root's.
            let contents = inner.volume.contents_for_write(bucket)?;
            require_fit(contents.unfit, &inner.volume.config, "the bucket's mount")?;
            // Few shared file systems support unnamed files, and some of the file systems that report support for
            // unnamed files lose these files.
            let unnamed = match contents.sharing {
                FileSystemSharing::Local => create_unnamed(&parent, mode),
                FileSystemSharing::Nfs | FileSystemSharing::Unknown => Err(Errno::OPNOTSUPP),
            };
            let (file, hidden) = match unnamed {
                Ok(file) => (file, None),
                Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {
                    match inner.volume.create_hidden(bucket, mode) {
                        // Another node has removed the bucket, or its directory for staged files.
                        Err(error) if is_stale(&error) => {
                            inner.volume.refresh_dirs(&tmp_dir(bucket));
                            continue;
                        }
                        made => {
                            let (file, hidden) = made?;
                            if contents.sharing == FileSystemSharing::Unknown {
                                inner.volume.require_one_number(contents.device, hidden.as_ref())?;
                            }
                            (file, hidden)
                        }
                    }
                }
                // In a removed directory, tmpfs returns ENOENT, and ext4 returns EPERM. Even a directory that was just
                // opened may have been removed in the meantime.
                Err(_) if parent.is_removed() => {
                    inner.volume.dirs.forget(&place.dir);
                    continue;
                }
                Err(errno) => return Err(from_errno(errno, "making a file")),
            };
            let (place, inner, bucket) = (place.into_owned(), inner.clone(), bucket.clone());
            let may_be_bare = mode == bare_mode();
            return Ok(StagedFile {
                inner,
                bucket,
                place,
                is_plain,
                parent,
                file,
                may_be_bare,
                contents,
                started,
                hidden,
                inode: None,
                written: 0,
                has_hole: false,
                event: EventKind::Put,
            });
        }
        Err(ErrorKind::ConditionalConflict.into())
    }

    /// Replaces the started file with `file`, which is `name` in `dir`. If `file` is not published, it keeps
    /// that name.
    pub(crate) fn with_existing(self, file: OwnedFd, dir: DirectoryHandle, name: &str) -> Self {
        let hidden = Some(HiddenName { dir, name: name.to_owned(), is_temporary: false, _shelter: None });
        let StagedFile { inner, bucket, place, is_plain, parent, contents, started, written, event, .. } =
            self;
        StagedFile {
            inner,
            bucket,
            place,
            is_plain,
            parent,
            file,
            may_be_bare: false,
            contents,
            started,
            hidden,
            inode: None,
            written,
            has_hole: false,
            event,
        }
    }

    /// Returns whether the file has a name in an upload's directory. The file loses this name when it becomes an
    /// object.
    pub(crate) fn is_named_in_upload(&self) -> bool {
        self.hidden.as_ref().is_some_and(|hidden| !hidden.is_temporary)
    }

    /// Names the file `name` in `dir`. The file has this name until it is published, and keeps it if it is
    /// never published. If `dir` is on another file system, the file remains without that name.
    pub(crate) fn kept_as(mut self, dir: &DirectoryHandle, name: &str) -> Result<Self> {
        self.sync_content()?;
        let named = match &self.hidden {
            None => link_unnamed(&self.file, dir, name),
            Some(hidden) => rename(&hidden.dir, &hidden.name, dir, name),
        };
        match named {
            Ok(()) => {
                if let Some(hidden) = self.hidden.take() {
                    hidden.forget();
                }
                let (dir, name) = (dir.clone(), name.to_owned());
                self.hidden = Some(HiddenName { dir, name, is_temporary: false, _shelter: None });
                Ok(self)
            }
            Err(Errno::XDEV) => Ok(self),
            Err(errno) => Err(from_errno(errno, "naming the staged file")),
        }
    }

    /// Returns the contents of the bucket's private area as `StoreDirectoryTree::contents_for_write` does. Cost: none
    /// if the file was started less than 10 ms ago, on a file system that only this node changes.
    pub(crate) fn contents_for_write(&self) -> Result<PrivateDirectoryContents> {
        match self.contents.sharing == FileSystemSharing::Local && self.started.elapsed() < HOLD {
            true => Ok(self.contents),
            false => self.inner.volume.contents_for_write(&self.bucket),
        }
    }

    /// Returns whether the file was started so long ago that the state of its directory may have changed.
    pub(crate) fn is_long_started(&self) -> bool {
        self.started.elapsed() >= HOLD
    }

    /// Returns whether other nodes may change the bucket's file system.
    pub(crate) fn sharing(&self) -> FileSystemSharing {
        self.contents.sharing
    }

    /// Returns the name under which the file will be published.
    pub(crate) fn name(&self) -> &str {
        &self.place.name
    }

    /// Returns the file, for use by a writer outside this process.
    pub(crate) fn file(&self) -> &OwnedFd {
        &self.file
    }

    /// Returns the number of bytes written, which is also the offset of the next write.
    pub(crate) fn written(&self) -> u64 {
        self.written
    }

    /// Appends `data`. Errors: `NoSpace`, `QuotaExceeded` (both with the numbers of written and free bytes), `Io`. If
    /// the content is long: `NotImplemented` if the file is not on the mount of the bucket's private area.
    pub(crate) fn write(&mut self, data: &[u8]) -> Result<()> {
        if self.written <= LONG_BYTES && self.written + data.len() as u64 > LONG_BYTES {
            self.require_mount_for(LONG_BYTES + 1)?;
        }
        match write_all_at(&self.file, data, self.written) {
            Ok(()) => {
                self.written += data.len() as u64;
                Ok(())
            }
            Err(errno) => Err(self.failed_write(errno, data.len())),
        }
    }

    /// Counts `bytes` bytes that a writer outside this process has written to the file without [`StagedFile::write`].
    /// Errors: `IncompleteBody` if the size of the file does not match. Cost: one `fstat`.
    pub(crate) fn filled(&mut self, bytes: u64) -> Result<()> {
        let size =
            stat(&self.file).map_err(|errno| from_errno(errno, "reading the metadata of the file"))?.size;
        if size != bytes {
            let why = format!("{size} bytes were written to the file, but {bytes} were announced");
            return Err(Error::new(ErrorKind::IncompleteBody, why));
        }
        self.written = bytes;
        Ok(())
    }

    /// Switches to `place`, the path of another object. Returns whether the switch was possible. The path must be in
    /// the directory in which the file was created, because the file has that directory's group, ACL and quota. Cost:
    /// two `fstat`.
    pub(crate) fn retarget(&mut self, place: ObjectPath<'_>) -> bool {
        if !self.is_plain || place.dir != self.place.dir {
            return false;
        }
        // The path may now refer to another directory.
        let volume = &self.inner.volume;
        match volume.dirs.open(&volume.root, &place.dir).and_then(DirectoryHandle::for_change) {
            Ok(parent) if parent.is_same_as(&self.parent) => {
                (self.parent, self.place) = (parent, place.into_owned());
                true
            }
            Ok(_) | Err(_) => false,
        }
    }

    /// Counts bytes that were written without [`StagedFile::write`].
    pub(crate) fn advance(&mut self, bytes: u64) {
        self.written += bytes;
    }

    /// Appends `bytes` zeros as a hole, which takes no space. The content is then written to stable storage before the
    /// file gets its name. Errors: as for a write.
    pub(crate) fn append_hole(&mut self, bytes: u64) -> Result<()> {
        let size = self.written + bytes;
        set_size(&self.file, size).map_err(|errno| self.failed_write(errno, bytes as usize))?;
        (self.written, self.has_hole) = (size, true);
        Ok(())
    }

    /// Returns whether `source` still has `bytes` bytes, and only this node may change its file system. Cost: one
    /// `fstat`.
    pub(crate) fn is_settled_on_this_node(&self, source: &File, bytes: u64) -> bool {
        stat(source).is_ok_and(|stat| {
            stat.size >= bytes && !self.inner.volume.sharing_on(source, stat.device).is_shared()
        })
    }

    pub(crate) fn failed_write(&self, errno: Errno, wanted: usize) -> Error {
        let free = free_bytes_before(&self.file, self.written);
        let free = free.map_or(String::new(), |free| format!(", and {free} were free"));
        from_errno(
            errno,
            &format!("{} bytes were written, and {wanted} more were announced{free}", self.written),
        )
    }

    /// Seals `record` for the current content, gives it a unique ETag if it has no ETag yet, and attaches it to the
    /// file. Makes the content durable if the configuration requires it.
    pub(crate) fn seal(&mut self, record: &mut ObjectRecord) -> Result<PutResult> {
        self.show_content()?;
        let stamped = if self.may_be_bare && record.is_empty() { self.stamp()? } else { None };
        let stat = match stamped {
            Some(stat) => self.require_no_mount(&stat).map(|()| stat)?,
            None => self.attach(record)?,
        };
        self.inode = Some(stat.inode);
        self.sync_content()?;
        Ok(made_of(record, &stat))
    }

    /// Checks that the file, whose metadata is `stat`, is on the mount of the bucket's private area. Errors:
    /// `NotImplemented`. Cost: none if the file and the private area have the same device number.
    fn require_no_mount(&self, stat: &FileStat) -> Result<()> {
        if stat.device == self.contents.device { Ok(()) } else { self.require_same_mount() }
    }

    /// If an object of `bytes` bytes is long, checks that the object's directory is on the mount of the bucket's
    /// private area. Without this check, the object would be refused only after all its content has arrived. Errors:
    /// `NotImplemented`. Cost: one `fstat` for a long object.
    pub(crate) fn require_mount_for(&self, bytes: u64) -> Result<()> {
        let is_below_bucket = self.is_plain && self.place.dir != self.bucket.as_str();
        if is_below_bucket && bytes > LONG_BYTES { self.require_same_mount() } else { Ok(()) }
    }

    /// Checks that the file's directory has the same device number as the bucket's private area. If the numbers differ,
    /// removes the directories that were created for the file. Only directories are compared, because on overlayfs a
    /// file and its directory may have different device numbers.
    #[cold]
    fn require_same_mount(&self) -> Result<()> {
        let parent =
            stat(&self.parent).map_err(|errno| from_errno(errno, "reading the metadata of the directory"))?;
        match parent.device == self.inner.volume.contents(&self.bucket)?.device {
            true => Ok(()),
            false => {
                self.inner.prune(&self.bucket, &self.place.dir, self.contents);
                Err(on_another_mount())
            }
        }
    }

    /// Checks that this file, a sidecar file, is on the device of the object's file. Otherwise, another object on the
    /// bucket's own device may have the same inode number. Errors: `NotImplemented`. Cost: usually none.
    pub(crate) fn require_device(&self, device: u64) -> Result<()> {
        let is_same = || stat(&self.file).is_ok_and(|own| own.device == device);
        if device == self.contents.device || is_same() { Ok(()) } else { Err(on_another_mount()) }
    }

    /// Sends the content to the server if other nodes might otherwise see the name before the content.
    fn show_content(&self) -> Result<()> {
        match self.hidden.is_some() && self.contents.sharing.is_shared() {
            true => {
                sync_data(&self.file).map_err(|errno| from_errno(errno, "writing the content to the server"))
            }
            false => Ok(()),
        }
    }

    /// Makes the content durable if the configuration requires it. The content is synced before the file gets a name,
    /// so that a crash of the node leaves no truncated object.
    fn sync_content(&self) -> Result<()> {
        if self.inner.volume.config.durability != Durability::None {
            // Syncing only the data is not enough, because the attributes, and the time that an ETag may depend on, are
            // part of the object.
            sync_all(&self.file).map_err(|errno| from_errno(errno, "writing to stable storage"))?;
        } else if self.has_hole {
            // The length before a hole can be on disk earlier than the content. After a power cut, the file would have
            // the size and time for which its ETag is valid, but zeros as its content.
            sync_data(&self.file).map_err(|errno| from_errno(errno, "writing to stable storage"))?;
        }
        Ok(())
    }

    /// Stores `record` with the file, and returns the file's metadata.
    fn attach(&self, record: &mut ObjectRecord) -> Result<FileStat> {
        // Another node may have written to the file of a multipart upload, and the client on that node may still set
        // the time.
        let is_upload = self.hidden.as_ref().is_some_and(|hidden| !hidden.is_temporary);
        if self.contents.sharing == FileSystemSharing::Unknown
            || is_upload && self.contents.sharing.is_shared()
        {
            settle_time(&self.file);
        }
        let state = if self.contents.sharing.is_shared() { stat_now(&self.file) } else { stat(&self.file) };
        let stat = state.map_err(|errno| from_errno(errno, "reading the metadata of the file"))?;
        if self.contents.sharing.is_shared() {
            note_written(&stat);
        }
        self.require_no_mount(&stat)?;
        record.seal = Some(ContentChangeStamp::of(&stat));
        let policy = if record.etag.is_none() { ETagPolicy::Fast } else { ETagPolicy::Md5 };
        record.etag.get_or_insert_with(|| unique_etag(&stat));
        self.inner.store_record(&self.bucket, &self.file, &stat, (record, policy))?;
        Ok(stat)
    }

    /// Publishes the file at its path, and replaces any file that has this path. Must be used only for files that no
    /// other writer publishes at the same time.
    ///
    /// If a program on this node has the old file open, the NFS client gives the old file another name before it
    /// renames the new file. Other nodes then see no file for the duration of one request. A bucket must never appear
    /// to have no policy or no `versioning`, so the old file has a second hard link, its spare name, while it is being
    /// replaced.
    pub(crate) fn publish_private(self) -> Result<()> {
        self.publish_sparing(|staged, spare| staged.keep_spare(spare).is_ok())
    }

    /// Publishes the file as [`StagedFile::publish_private`] does. `keep` makes the spare name.
    fn publish_sparing(mut self, keep: impl FnOnce(&Self, &str) -> bool) -> Result<()> {
        self.show_content()?;
        self.sync_content()?;
        let has_spare = self.sharing() == FileSystemSharing::Nfs && is_setting_name(&self.place.name);
        let spare = has_spare.then(|| spare_name(&self.place.name));
        if self.link(None)? {
            // A writer that died may have left a file with only the spare name, which would otherwise remain.
            let _ = spare.as_deref().map(|spare| remove_if_file(&self.parent, spare));
        } else {
            // The kernel may refuse to link another user's file (`fs.protected_hardlinks`). The error is ignored,
            // because the file can be replaced without a spare name.
            let _ = spare.as_deref().map(|spare| keep(&self, spare));
            let renamed = self.rename_into_place();
            let _ = spare.as_deref().map(|spare| remove_if_file(&self.parent, spare));
            renamed?.map_err(|errno| self.publishing_failed(errno))?;
        }
        self.sync_name()
    }

    /// Publishes the file as [`StagedFile::publish_private`] does, with its owner's mark (see [`crate::mark`]). Returns
    /// whether the mark is valid.
    pub(crate) fn publish_marked(self, mark: &OwnerMark<'_>) -> Result<bool> {
        let keep = |staged: &Self, spare: &str| {
            staged.keep_marked_spare(spare, mark).unwrap_or(false) || staged.keep_spare(spare).is_ok()
        };
        self.with_mark(mark, |staged| staged.publish_sparing(keep)).map(|((), is_valid)| is_valid)
    }

    /// Publishes the file as [`StagedFile::publish_if_new`] does, with its owner's mark (see [`crate::mark`]). Errors:
    /// `ConditionalConflict` if the mark of the published file is not valid.
    pub(crate) fn publish_new_marked(self, mark: &OwnerMark<'_>) -> Result<bool> {
        match self.with_mark(mark, StagedFile::publish_if_new)? {
            (true, false) => Err(unsettled()),
            (is_published, _) => Ok(is_published),
        }
    }

    /// Sets the mark before the file is published, so that no reader sees the file without the mark. If publishing has
    /// taken so long that the mark is no longer valid, sets it again. Also returns whether the mark is valid.
    fn with_mark<T>(
        self,
        mark: &OwnerMark<'_>,
        publish: impl FnOnce(Self) -> Result<T>,
    ) -> Result<(T, bool)> {
        let durability = self.inner.volume.config.durability;
        let opened = |error| Error::new(ErrorKind::from(&error), "marking the file").caused_by(error);
        let file = self.file.try_clone().map_err(opened)?;
        let is_marked = mark.set(&file).unwrap_or(false);
        let published = publish(self)?;
        let settled = if is_marked { mark.settle(&file, durability) } else { Ok(false) };
        Ok((published, settled.map_err(|errno| from_errno(errno, "marking the file"))?))
    }

    /// Gives the file that is about to be replaced a second hard link, named `spare`.
    fn keep_spare(&self, spare: &str) -> Result<(), Errno> {
        remove_if_file(&self.parent, spare)?;
        link(&self.parent, &self.place.name, &self.parent, spare)
    }

    /// If the file that is about to be replaced has the mark, gives the name `spare` to a copy that has the mark too. A
    /// second hard link would update the file's change time, which would invalidate the mark until the file is replaced
    /// or, if this writer dies, forever. Returns `false` if the file has no valid mark. Another user's file is not
    /// copied, because the copy would be the caller's.
    fn keep_marked_spare(&self, spare: &str, mark: &OwnerMark<'_>) -> Result<bool> {
        let failed = |errno| from_errno(errno, "reading the old document");
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW;
        let old = open_in(&self.parent, &self.place.name, flags, Mode::empty()).map_err(failed)?;
        let Some((bytes, state)) = read_small(&old, MAX_DOCUMENT_BYTES).map_err(failed)? else {
            return Ok(false);
        };
        if state.user != file_user() || !mark.is_on(&old, &state) {
            return Ok(false);
        }
        let place = ObjectPath { dir: self.place.dir.clone(), name: spare.to_owned().into() };
        let mut copy = StagedFile::with_mode(&self.inner, &self.bucket, place, false, SETTING_MODE)?;
        copy.write(&bytes)?;
        copy.with_mark(mark, |copy| copy.publish_sparing(|_, _| false)).map(|((), is_valid)| is_valid)
    }

    /// Publishes the file at its path, unless another file already has this path. Returns whether the file was
    /// published.
    pub(crate) fn publish_if_new(mut self) -> Result<bool> {
        self.show_content()?;
        self.sync_content()?;
        let is_published = self.link(None)?;
        self.sync_name().map(|()| is_published)
    }

    pub(crate) fn sync_name(&self) -> Result<()> {
        let synced = self.inner.volume.sync_names(&self.parent);
        synced.map_err(|errno| from_errno(errno, "writing the name to stable storage"))
    }
}

/// Yields the CPU before attempt number `race` (counted from 0). A directory that another thread is removing may still
/// be found until that thread is done, and the thread may be waiting for this CPU.
pub(crate) fn give_way(race: usize) {
    if race > 0 {
        yield_or_sleep(race);
    }
}

#[cold]
fn yield_or_sleep(race: usize) {
    match race {
        0..4 => std::thread::yield_now(),
        _ => std::thread::sleep(Duration::from_micros(1 << race.min(6))),
    }
}

pub(crate) fn sync_dir(dir: impl AsFd) -> Result<(), Errno> {
    sync_all(open_in(dir, ".", OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?)
}

/// Returns the result of a write after which the file has the metadata `stat`.
pub(crate) fn made_of(record: &ObjectRecord, stat: &FileStat) -> PutResult {
    PutResult {
        etag: record.etag.clone().unwrap_or_else(|| etag_of_file(stat)),
        modified: system_time(stat.modified_ns),
        checksum: record.checksum.clone(),
        version: record.version.clone(),
    }
}

/// Returns an ETag that no other version of any object has. While the file exists, no other file has its inode number.
/// A later file with that inode number has a different time. Because the clock may be coarse or may have been set back,
/// the ETag also contains a per-process counter and random bits that differ between processes.
pub(crate) fn unique_etag(stat: &FileStat) -> ETag {
    static VERSIONS: AtomicU64 = AtomicU64::new(0);
    static PROCESS: LazyLock<u64> = LazyLock::new(|| getrandom::u64().unwrap_or_default());
    let version = VERSIONS.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let low = (*PROCESS ^ stat.inode.rotate_left(32)).wrapping_add(version);
    ETag::opaque(u128::from(stat.modified_ns as u64) << 64 | u128::from(low))
}

/// Returns a random name that no other writer on any node uses.
pub(crate) fn hidden_name() -> Result<String> {
    let random =
        getrandom::u64().map_err(|error| Error::new(ErrorKind::Io, "no random number").caused_by(error))?;
    Ok(hidden_name_of(random))
}

/// Returns the name for a staged file with this number.
pub(crate) fn hidden_name_of(number: u64) -> String {
    format!("{number:016x}")
}

/// Sets the modification time of a newly written file explicitly, so that the file system's client does not change it
/// later. The MooseFS client records the time of each write by its own clock, and sends this time to the server seconds
/// later. The server keeps the later time. The seal of an object would then not match its file. When the time is set
/// explicitly, the client discards the times of its writes.
pub(crate) fn settle_time(file: impl AsFd) {
    // Without permission or support, the time remains unchanged.
    let _ = set_modified(file, i64::try_from(now_ns()).unwrap_or(i64::MAX));
}

/// The bit that marks bare objects (`S_ISVTX`).
pub(crate) const STICKY: u32 = 0o1000;

/// Returns the mode for a file that will be a bare object, before the process's umask.
pub(crate) fn bare_mode() -> Mode {
    FILE_MODE | Mode::from_raw_mode(STICKY)
}

/// Returns whether the file's mode marks the file as a bare object, which has no record.
pub(crate) fn is_bare(stat: &FileStat) -> bool {
    stat.is_file && stat.mode & STICKY != 0
}

/// Removes the mark of a bare object from a file that will get a record.
pub(crate) fn be_bare_no_more(file: impl AsFd, stat: &FileStat) -> Result<()> {
    match is_bare(stat) {
        true => {
            set_mode(file, stat.mode & !STICKY).map_err(|errno| from_errno(errno, "storing the metadata"))
        }
        false => Ok(()),
    }
}

impl StagedFile {
    /// Sets the file's modification time so that its state differs from the state of every other version, and returns
    /// the state. Returns `None` if the file system does not keep times with nanosecond precision.
    pub(crate) fn stamp(&self) -> Result<Option<FileStat>> {
        let now_ns = i64::try_from(now_ns()).unwrap_or(i64::MAX);
        if set_modified(&self.file, now_ns).is_err() {
            return Ok(None);
        }
        let stat = stat(&self.file).map_err(|errno| from_errno(errno, "reading the metadata of the file"))?;
        Ok(Some(stat).filter(|stat| is_bare(stat) && stat.modified_ns == now_ns))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use fordway_store::{BucketDocumentKind, BucketDocumentOperations};

    use super::*;
    use crate::layout::private_dir;
    use crate::{PosixConfig, PosixStore};

    /// On NFS, a document has a spare name while it is replaced. Neither the spare name nor a writer that dies may
    /// cause readers to distrust the old document.
    #[test]
    fn a_marked_document_is_believed_while_it_is_replaced() {
        let temp = tempfile::tempdir().unwrap();
        let (bucket, policy) = (Bucket::new("bucket").unwrap(), BucketDocumentKind::known("policy"));
        std::fs::create_dir(temp.path().join("bucket")).unwrap();
        std::fs::set_permissions(temp.path().join("bucket"), PermissionsExt::from_mode(0o777)).unwrap();
        let store = PosixStore::open(temp.path(), PosixConfig::default()).unwrap();
        store.set_document(&bucket, &policy, b"old").unwrap();
        // Later changes of the file invalidate its mark.
        std::thread::sleep(Duration::from_millis(2100));
        let (inner, name) = (&store.inner, "document-policy");
        let place = ObjectPath { dir: private_dir(&bucket).into(), name: name.into() };
        let mark = inner.volume.owner_mark(&bucket, "policy").unwrap();
        let staged = StagedFile::with_mode(inner, &bucket, place, false, SETTING_MODE).unwrap();
        assert!(staged.keep_marked_spare(&spare_name(name), &mark).unwrap());
        let read = || store.document(&bucket, &policy).map(Option::unwrap);
        assert_eq!(read().unwrap(), b"old");
        // If the writer dies now, the spare name may be the only one.
        let area = temp.path().join("bucket/.fordway");
        std::fs::rename(area.join(spare_name(name)), area.join(name)).unwrap();
        assert_eq!(read().unwrap(), b"old");
        // An untrusted document must not be copied, because its copy would be trusted.
        std::thread::sleep(Duration::from_millis(2100));
        staged.keep_spare(&spare_name(name)).unwrap();
        assert_eq!(read().unwrap_err().kind(), ErrorKind::AccessDenied);
        assert!(!staged.keep_marked_spare(&spare_name(name), &mark).unwrap());
    }
}
