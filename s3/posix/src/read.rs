//! Opens and reads objects.

use std::fs::File;
use std::ops::Range;
use std::os::fd::AsFd;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use fordway_store::{
    Bucket, ByteRange, ETag, Error, ErrorKind, FileRegion, GetOptions, Key, ObjectContent, ObjectInfo,
    ObjectPart, OpenObject, Result, VersionId, VersioningState,
};
use fordway_sys::{
    Errno, FileStat, FileSystemSharing, Mode, OFlags, SymlinkPolicy, get_xattr_in, look_again,
    read_into_spare, stat, stat_in,
};

use crate::PosixStoreState;
use crate::contested::callers_place;
use crate::dirs::DirectoryHandle;
use crate::errors::{from_errno, is_stale, on_another_mount};
use crate::layout::{ATTRIBUTE, ObjectPath, is_private, marked_dir, odd, plain, split, versions_of};
use crate::patience::{left_of, pause};
use crate::private::{PrivateDirectoryContents, is_settled};
use crate::record::{ContentChangeStamp, NOTHING, ObjectRecord, etag_of_file};
use crate::shared::{MAX_STALE, NAME_TIMEOUT, PAUSE, retry_stale, stat_at_server, wait_for_server};
use crate::sidecar::{RECORD_BYTES, decode_record};
use crate::stage::{give_way, is_bare};
use crate::versions::owners::VersionOwners;
use crate::volume::{StoreDirectoryTree, unreadable};

/// On a shared file system, content up to this size, in bytes, is read as soon as its file is opened.
const SMALL_BYTES: u64 = 64 << 10;

/// The open file of an object.
pub(crate) struct ObjectFile {
    pub(crate) file: File,
    pub(crate) stat: FileStat,
    /// The object's record; `None` for a bare object, or if the record cannot be decoded.
    pub(crate) recorded: Option<Box<ObjectRecord>>,
    /// Whether the path to the file contains a symbolic link, in which case the file may belong to another bucket.
    pub(crate) is_linked: bool,
}

/// An open regular file without its record.
struct FoundFile {
    file: File,
    stat: FileStat,
    is_linked: bool,
}

impl FoundFile {
    /// Returns the file with its record.
    fn with(self, recorded: Option<Box<ObjectRecord>>) -> ObjectFile {
        let FoundFile { file, stat, is_linked } = self;
        ObjectFile { file, stat, recorded, is_linked }
    }
}

impl ObjectFile {
    /// Returns the object's record, or an empty record if `recorded` is `None`.
    pub(crate) fn record(&self) -> &ObjectRecord {
        self.recorded.as_deref().unwrap_or(&NOTHING)
    }

    /// Returns the object's ETag.
    pub(crate) fn etag(&self) -> ETag {
        self.record().etag.clone().unwrap_or_else(|| etag_of_file(&self.stat))
    }

    /// Returns the object's version ID.
    pub(crate) fn version(&self) -> VersionId {
        self.record().version.clone().unwrap_or_else(VersionId::null)
    }

    /// Returns whether the file has lost its last name since it was opened. Cost: one `fstat`.
    pub(crate) fn is_nameless(&self) -> bool {
        stat(&self.file).is_ok_and(|now| now.links == 0)
    }

    /// Returns the file, and the object's properties as S3 reports them.
    pub(crate) fn into_info(self) -> (File, ObjectInfo) {
        let (file, object) = self.into_named();
        (file, object.into_info())
    }

    /// Returns the file, together with the object in the form that a lookup by name returns.
    fn into_named(self) -> (File, UnopenedObject) {
        (self.file, UnopenedObject { stat: self.stat, recorded: self.recorded })
    }
}

/// An object that was found by its name, without opening it.
pub(crate) struct UnopenedObject {
    stat: FileStat,
    /// The object's record; `None` for a bare object.
    recorded: Option<Box<ObjectRecord>>,
}

impl UnopenedObject {
    /// Returns the object's properties as S3 reports them. The returned value is large, so callers should call this
    /// method last.
    #[inline]
    pub(crate) fn into_info(self) -> ObjectInfo {
        match self.recorded {
            None => info_of_bare(&self.stat),
            Some(record) => info_of(&self.stat, *record),
        }
    }
}

/// Returns the properties that S3 reports for a file with this metadata and no record.
pub(crate) fn info_of_bare(stat: &FileStat) -> ObjectInfo {
    let modified = system_time(stat.modified_ns);
    ObjectInfo { modified, ..ObjectInfo::new(stat.size, etag_of_file(stat)) }
}

/// Returns the properties that S3 reports for a file with this metadata and this record. [`ObjectRecord::unseal_for`]
/// must already have been applied to the record.
pub(crate) fn info_of(stat: &FileStat, record: ObjectRecord) -> ObjectInfo {
    ObjectInfo {
        size: stat.size,
        modified: system_time(stat.modified_ns),
        etag: record.etag.unwrap_or_else(|| etag_of_file(stat)),
        metadata: record.metadata,
        checksum: record.checksum,
        version: record.version,
        tag_count: record.tags.len(),
        part_count: u16::try_from(record.parts.len()).ok().filter(|count| *count > 0),
        lock: record.lock,
    }
}

/// Returns whether a stale cached name can be the cause of this error. Such an error means that the file handle is
/// stale (`ESTALE`), or that an object that was just found is missing.
fn is_stale_name(error: &Error) -> bool {
    is_stale(error) || error.kind() == ErrorKind::NoSuchKey
}

/// The result of looking up a name without opening it.
pub(crate) enum NameLookup {
    Found(UnopenedObject),
    /// The name does not exist.
    Missing,
    /// Only opening the file shows whether there is an object, because the name is a symbolic link, or may have been
    /// replaced between two system calls.
    Unclear,
}

impl NameLookup {
    /// Returns the object's properties as S3 reports them, if the lookup found an object.
    pub(crate) fn found(self) -> Option<ObjectInfo> {
        match self {
            NameLookup::Found(object) => Some(object.into_info()),
            NameLookup::Missing | NameLookup::Unclear => None,
        }
    }
}

impl StoreDirectoryTree {
    /// Describes the file at `place` without opening it. Returns `None` if the file is missing or has to be opened.
    /// Cost: as for [`StoreDirectoryTree::describe_in`].
    pub(crate) fn describe(&self, place: &ObjectPath) -> Result<Option<ObjectInfo>> {
        let Ok(dir) = self.dirs.open(&self.root, &place.dir) else { return Ok(None) };
        Ok(self.describe_in(&dir, &place.name)?.found())
    }

    /// Describes the file as [`StoreDirectoryTree::describe`] does, but also reads a record that the sticky bit hides.
    /// Cost: one `newfstatat` and one `getxattrat`; another `newfstatat` for a file without a record.
    pub(crate) fn describe_unhidden(&self, place: &ObjectPath) -> Result<Option<ObjectInfo>> {
        let Ok(dir) = self.dirs.open(&self.root, &place.dir) else { return Ok(None) };
        match stat_in(&dir, &place.name) {
            Ok(stat) if stat.is_file => Ok(self.describe_recorded(&dir, &place.name, &stat)?.found()),
            _ => Ok(None),
        }
    }

    /// Describes the object at `key` without opening it. Returns `Missing` only if there is no object at any of the
    /// key's possible paths. Cost: as for [`StoreDirectoryTree::describe_in`]; if the object is missing, usually also
    /// one `fstat`, or two for a key with a `/`.
    fn describe_object(&self, bucket: &Bucket, key: &Key) -> Result<NameLookup> {
        let Some(place) = plain(bucket, key) else { return Ok(NameLookup::Unclear) };
        let Ok(dir) = self.dirs.open(&self.root, &place.dir) else { return Ok(NameLookup::Unclear) };
        match self.describe_in(&dir, &place.name)? {
            NameLookup::Missing if self.may_be_elsewhere(bucket, &place, &dir)? => Ok(NameLookup::Unclear),
            described => Ok(described),
        }
    }

    /// Describes the file `name` in `dir` without opening it. Cost: one `newfstatat`, and one `getxattrat` unless the
    /// object is bare. For a file written by a POSIX program: another `newfstatat`; if the file is described again
    /// unchanged, only the first `newfstatat`.
    #[inline]
    pub(crate) fn describe_in(&self, dir: impl AsFd, name: &str) -> Result<NameLookup> {
        match stat_in(&dir, name) {
            Ok(stat) => self.describe_stat(dir, name, &stat),
            Err(Errno::NOENT) => Ok(NameLookup::Missing),
            Err(_) => Ok(NameLookup::Unclear),
        }
    }

    /// Describes the file `name` in `dir`, whose metadata is `stat`, without opening it. Cost: one `getxattrat` unless
    /// the object is bare; one `newfstatat` for a file written by a POSIX program; none for such a file that was
    /// described before and is unchanged.
    #[inline]
    pub(crate) fn describe_stat(&self, dir: impl AsFd, name: &str, stat: &FileStat) -> Result<NameLookup> {
        if !stat.is_file {
            return Ok(NameLookup::Unclear);
        }
        if is_bare(stat) || self.unrecorded.contains(stat) {
            return Ok(NameLookup::Found(UnopenedObject { stat: *stat, recorded: None }));
        }
        self.describe_recorded(dir, name, stat)
    }

    /// Describes an object that is not bare, as [`StoreDirectoryTree::describe_stat`] does. Not inlined, so that
    /// describing a bare object needs no stack for a record.
    #[inline(never)]
    fn describe_recorded(&self, dir: impl AsFd, name: &str, stat: &FileStat) -> Result<NameLookup> {
        let mut buffer = [0; RECORD_BYTES];
        // If the file's times are more than a clock tick old when the attribute is read, every later change gives the
        // file a different time.
        let is_settled = is_settled(stat);
        // A record that is sealed for this size and time belongs to this version. If the record is not sealed for this
        // state, the file may have been replaced after its state was read.
        match get_xattr_in(&dir, name, ATTRIBUTE, &mut buffer) {
            Ok(Some(bytes)) => {
                let record = decode_record(bytes)?;
                let is_sealed = record.seal == Some(ContentChangeStamp::of(stat)) && !record.is_apart;
                let object = UnopenedObject { stat: *stat, recorded: Some(Box::new(record)) };
                Ok(if is_sealed { NameLookup::Found(object) } else { NameLookup::Unclear })
            }
            Ok(None) if is_settled && self.is_still(dir, name, stat) => {
                self.unrecorded.insert(stat);
                Ok(NameLookup::Found(UnopenedObject { stat: *stat, recorded: None }))
            }
            _ => Ok(NameLookup::Unclear),
        }
    }

    /// Returns whether `name` has had the metadata `stat` without interruption since `stat` was read. A rename also
    /// changes the state, so the function detects that a file was replaced after `stat` was read, even if the original
    /// file was then put back. Returns false if other nodes may change the file.
    fn is_still(&self, dir: impl AsFd, name: &str, stat: &FileStat) -> bool {
        self.is_local(stat.device) && stat_in(dir, name).is_ok_and(|now| now == *stat)
    }

    /// Checks that the source of a copy still has this size and modification time, because a POSIX program may have
    /// written to the file during the copy. Errors: `ConditionalConflict`. Cost: one `fstat`.
    pub(crate) fn require_unchanged(&self, file: &File, before: (u64, SystemTime)) -> Result<()> {
        let failed = |errno| from_errno(errno, "reading the metadata of the source");
        let mut now = stat(file).map_err(failed)?;
        if self.sharing_on(file, now.device).is_shared() {
            now = stat_at_server(file).map_err(failed)?;
        }
        match (now.size, system_time(now.modified_ns)) == before {
            true => Ok(()),
            false => {
                let why = "another program wrote to the source while it was copied";
                Err(Error::new(ErrorKind::ConditionalConflict, why))
            }
        }
    }

    /// Returns whether an object that was not found at `place` may still exist. The object may be at its odd path or
    /// among the old versions, or another node may have written the object. If `dir` was removed and recreated while it
    /// was held open, the object may also be at `place`.
    fn may_be_elsewhere(&self, bucket: &Bucket, place: &ObjectPath, dir: &DirectoryHandle) -> Result<bool> {
        let glance = self.private.glance(&self.root, bucket).map_err(unreadable)?;
        let PrivateDirectoryContents { has_markers, sharing, .. } = glance.contents;
        if !glance.contents.is_simple() || has_markers || sharing.is_shared() {
            return Ok(true);
        }
        // A bucket directory cannot have been removed while its private directory exists.
        let is_bucket = place.dir == bucket.as_str();
        if is_bucket && glance.is_held_by(dir) {
            return Ok(false);
        }
        let is_gone = dir.is_gone();
        if is_bucket && !is_gone {
            glance.was_held_by(dir);
        }
        Ok(is_gone)
    }

    /// Opens the object at `key`. Errors: `NoSuchKey`, `NoSuchBucket`.
    pub(crate) fn open_object(&self, bucket: &Bucket, key: &Key) -> Result<ObjectFile> {
        match self.find_object(bucket, key)? {
            Some(opened) => Ok(opened),
            None => Err(self.missing_object(bucket, key)),
        }
    }

    /// Opens the object at `key`, if it exists.
    pub(crate) fn find_object(&self, bucket: &Bucket, key: &Key) -> Result<Option<ObjectFile>> {
        retry_stale(
            is_stale_name,
            || self.refresh_name(bucket, key),
            || self.find_file(bucket, key, |found, place| self.with_record(bucket, found, place)),
        )
    }

    /// Drops this node's cached names for `key`, because the server no longer has the file to which they led.
    #[cold]
    pub(crate) fn refresh_name(&self, bucket: &Bucket, key: &Key) {
        if let Some(place) = plain(bucket, key) {
            self.forget_file(&place);
        }
        self.refresh_dirs(&versions_of(bucket, key));
    }

    /// Returns the file `found`, which was opened at `place`, with its record.
    fn with_record(
        &self,
        bucket: &Bucket,
        found: FoundFile,
        place: Option<&ObjectPath>,
    ) -> Result<ObjectFile> {
        let seems_bare = is_bare(&found.stat) || self.unrecorded.contains(&found.stat);
        if seems_bare && !self.may_have_record(&found.file, &found.stat) {
            return Ok(found.with(None));
        }
        let record = self.stored_record(bucket, (&found.file, &found.stat), place)?;
        self.described_by(record, found)
    }

    fn described_by(&self, record: ObjectRecord, mut found: FoundFile) -> Result<ObjectFile> {
        if record.is_newer_than(&found.stat) {
            found.stat = self.stat_of_sealed(&found.file, found.stat, &record)?;
        }
        let record = record.unseal_for(&found.stat);
        Ok(found.with(Some(Box::new(record))))
    }

    /// Reads the record of an open file that seems to be bare. A POSIX program may have set the sticky bit on a file
    /// with a record (`chmod -R 1777`), which hides the record from readers. Cost: one `fgetxattr` if the file has the
    /// sticky bit, otherwise none. Errors: `Corrupt`.
    pub(crate) fn unhide_record(&self, bucket: &Bucket, opened: &mut ObjectFile) -> Result<()> {
        if is_bare(&opened.stat) {
            let record = self.stored_record(bucket, (&opened.file, &opened.stat), None)?;
            opened.recorded = Some(Box::new(record.unseal_for(&opened.stat)));
        }
        Ok(())
    }

    /// Returns whether a file that is bare according to its cached state may now have a record. After another node has
    /// stored a record, a FUSE client may still show the file's earlier state, but the client requests extended
    /// attributes from the server. If `ReadConsistency::Strong` is set, reads therefore also request the record.
    /// Returns false on local file systems and NFS.
    fn may_have_record(&self, file: &File, stat: &FileStat) -> bool {
        self.is_strong() && self.sharing_on(file, stat.device) == FileSystemSharing::Unknown
    }

    /// Returns the metadata of a file whose record is newer than `stat`. If another node has completed an upload to
    /// which this node has written a part, a FUSE client may show an earlier size and time until its cached names
    /// expire. If size and time do not change within that period, a program must have set the time back. The function
    /// then returns the metadata that the client shows, and later calls for the same metadata do not wait.
    #[cold]
    fn stat_of_sealed(&self, file: &File, stat: FileStat, record: &ObjectRecord) -> Result<FileStat> {
        let Some(seal) = record.seal else { return Ok(stat) };
        if self.sharing_on(file, stat.device) != FileSystemSharing::Unknown {
            return Ok(stat);
        }
        let patience = left_of(NAME_TIMEOUT);
        let begin = Instant::now();
        loop {
            let now = stat_at_server(file).map_err(|errno| from_errno(errno, "reading the state"))?;
            if !record.is_newer_than(&now) || self.set_back.contains(seal, &now) {
                return Ok(now);
            }
            if begin.elapsed() >= patience {
                // After a shorter wait, the state may still come from the client's cache.
                if patience == NAME_TIMEOUT {
                    self.set_back.insert(seal, &now);
                }
                return Ok(now);
            }
            pause(PAUSE);
        }
    }

    /// Opens the file of `key`, and returns the result of `read` for the file and its path; `None` if the file does not
    /// exist. Looks first at the plain path, then at the odd path, then for a marker, which is opened without a path.
    fn find_file<T>(
        &self,
        bucket: &Bucket,
        key: &Key,
        read: impl FnOnce(FoundFile, Option<&ObjectPath>) -> Result<T>,
    ) -> Result<Option<T>> {
        if let Some(place) = plain(bucket, key)
            && let Some(found) = self.open_regular(&place)?
        {
            return read(found, Some(&place)).map(Some);
        }
        let contents = self.contents(bucket)?;
        if contents.has_odd {
            let place = odd(bucket, key);
            if let Some(found) = self.open_regular(&place)? {
                return read(found, Some(&place)).map(Some);
            }
        }
        let marker = self.open_marker(bucket, key, contents)?;
        let found =
            marker.map(|ObjectFile { file, stat, is_linked, .. }| FoundFile { file, stat, is_linked });
        found.map(|found| read(found, None)).transpose()
    }

    /// Opens the object's file at `place`; returns `None` if there is no file.
    pub(crate) fn open_file(&self, bucket: &Bucket, place: &ObjectPath) -> Result<Option<ObjectFile>> {
        retry_stale(
            is_stale,
            || self.forget_file(place),
            || {
                self.open_regular(place)?
                    .map(|found| self.with_record(bucket, found, Some(place)))
                    .transpose()
            },
        )
    }

    /// Opens the file at `place` before it becomes an old version or is removed, in a bucket that keeps versions. Reads
    /// the record even if the sticky bit hides it, because the record may contain a version ID and a lock. A file whose
    /// record cannot be decoded is returned without a record (`None`), because an S3 client could otherwise never
    /// replace it.
    pub(crate) fn open_to_keep(&self, bucket: &Bucket, place: &ObjectPath) -> Result<Option<ObjectFile>> {
        let open = || {
            let Some(found) = self.open_regular(place)? else { return Ok(None) };
            match self.stored_record(bucket, (&found.file, &found.stat), Some(place)) {
                Ok(record) => self.described_by(record, found).map(Some),
                Err(error) if error.kind() == ErrorKind::Corrupt => Ok(Some(found.with(None))),
                Err(error) => Err(error),
            }
        };
        retry_stale(is_stale, || self.forget_file(place), open)
    }

    /// Describes the file at `place` as if it had no record; returns `None` if there is no file. Listings use this
    /// function for a file whose record cannot be decoded.
    pub(crate) fn describe_without_record(&self, place: &ObjectPath) -> Result<Option<ObjectInfo>> {
        Ok(self.open_regular(place)?.map(|found| info_of_bare(&found.stat)))
    }

    /// Drops this node's cached names for `place`, because the server no longer has the file to which they led.
    #[cold]
    pub(crate) fn forget_file(&self, place: &ObjectPath) {
        self.refresh_dirs(&place.dir);
        look_again(self.root.dir(), &place.path());
    }

    /// Opens the regular file at `place`; returns `None` if there is no file. Detects a FIFO, socket or device after
    /// opening it for reading in non-blocking mode, which neither waits nor moves data.
    fn open_regular(&self, place: &ObjectPath) -> Result<Option<FoundFile>> {
        for race in 0..MAX_STALE {
            give_way(race);
            let opened = self.open_to_read(place).and_then(|(file, is_linked)| {
                let stat = stat(&file)?;
                // On the path of a file in a private directory, only the bucket can be a symbolic link.
                Ok(FoundFile { file, stat, is_linked: is_linked && !is_private(&place.dir) })
            });
            return match opened {
                Ok(found) => Ok(Some(found).filter(|found| found.stat.is_file)),
                Err(Errno::NOENT | Errno::NOTDIR | Errno::NXIO | Errno::NAMETOOLONG) => Ok(None),
                // Another node has replaced or removed the file, or a directory on its path.
                Err(Errno::STALE) => {
                    self.forget_file(place);
                    continue;
                }
                Err(errno) => Err(from_errno(errno, "opening")),
            };
        }
        Ok(None)
    }

    /// Returns the open file, and whether its path contains a symbolic link that has to be checked before a change.
    fn open_to_read(&self, place: &ObjectPath) -> Result<(File, bool), Errno> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let open = || self.root.open_noting_links(&place.path(), flags, Mode::empty());
        let Some(dir) = self.dirs.open_if_busy(&self.root, &place.dir)? else {
            let opened = open();
            if matches!(opened, Err(Errno::AGAIN)) {
                self.dirs.unask(&place.dir);
            }
            return opened;
        };
        match self.root.open_in(&dir, &place.name, flags) {
            // A symbolic link is resolved from the root, so that it cannot lead outside the root.
            Err(Errno::LOOP) => open(),
            Err(Errno::NOENT) if dir.is_gone() => {
                self.dirs.forget(&place.dir);
                open()
            }
            done => done.map(|file| (file, dir.is_read_only())),
        }
    }

    /// Opens the object at `key`, and returns it with its path. `contents` must have been read under the key's lock. In
    /// a bucket that keeps versions, the record of the returned object is `None` only if it cannot be decoded.
    pub(crate) fn locate(
        &self,
        bucket: &Bucket,
        key: &Key,
        contents: PrivateDirectoryContents,
    ) -> Result<Option<(ObjectPath<'static>, ObjectFile)>> {
        self.refresh(bucket, key, contents)?;
        let odd = odd(bucket, key);
        let own = callers_place(self, bucket, key, contents);
        let places =
            plain(bucket, key).map(ObjectPath::into_owned).into_iter().chain(contents.has_odd.then_some(odd));
        for place in own.into_iter().chain(places) {
            let opened = match contents.versioning {
                VersioningState::Unversioned => self.open_file(bucket, &place)?,
                _ => self.open_to_keep(bucket, &place)?,
            };
            if let Some(opened) = opened {
                return Ok(Some((place, opened)));
            }
        }
        Ok(None)
    }

    /// Opens the object as [`StoreDirectoryTree::locate`] does. If the object is missing, and the caller would fail for
    /// that reason, looks it up again, because this node may have cached an existing name as missing.
    pub(crate) fn locate_required(
        &self,
        bucket: &Bucket,
        key: &Key,
        (contents, is_required): (PrivateDirectoryContents, bool),
    ) -> Result<Option<(ObjectPath<'static>, ObjectFile)>> {
        let located = self.locate(bucket, key, contents)?;
        if located.is_some() || !is_required || !contents.sharing.is_shared() {
            return Ok(located);
        }
        self.reveal_object(bucket, key, contents)?;
        self.locate(bucket, key, contents)
    }

    /// Checks that `opened`, the latest version of `key`, may be changed: no symbolic link in its path leads out of the
    /// bucket, or into a private directory. Cost: none if the path contains no link. Errors: `AccessDenied`.
    pub(crate) fn require_own_file(&self, bucket: &Bucket, key: &Key, opened: &ObjectFile) -> Result<()> {
        match opened.is_linked {
            true => self.check_links(bucket, key, &opened.stat),
            false => Ok(()),
        }
    }

    #[cold]
    fn check_links(&self, bucket: &Bucket, key: &Key, is: &FileStat) -> Result<()> {
        let path = plain(bucket, key).map(|place| place.path()).or_else(|| marked_dir(bucket, key));
        let Some(path) = path else { return Ok(()) };
        let found = self.root.open_in_bucket(&path, SymlinkPolicy::Beneath, OFlags::PATH).and_then(stat);
        let found = found.map_err(|errno| from_errno(errno, "following the links"))?;
        match (found.device, found.inode) == (is.device, is.inode) {
            true => Ok(()),
            false => Err(ErrorKind::ConditionalConflict.into()),
        }
    }

    /// Checks that names may be created and removed in the directory of the key's plain path, if that directory exists.
    /// Cost: usually none. Errors: `AccessDenied`.
    pub(crate) fn require_own_dir(&self, bucket: &Bucket, key: &Key, doing: &str) -> Result<()> {
        match plain(bucket, key).map(|place| self.dirs.open(&self.root, &place.dir)) {
            Some(Ok(dir)) => dir.for_change().map(drop).map_err(|errno| from_errno(errno, doing)),
            Some(Err(_)) | None => Ok(()),
        }
    }

    /// Checks that the key's directory, or the nearest parent that exists, is on the mount of the bucket's private
    /// area. Errors: `NotImplemented`. Cost: none for a key in the bucket's own directory; else usually one `fstat`,
    /// and an `openat2` for each directory that does not exist.
    pub(crate) fn require_own_mount(&self, bucket: &Bucket, key: &Key) -> Result<()> {
        let Some(place) = plain(bucket, key) else { return Ok(()) };
        let mut dir = &*place.dir;
        while dir != bucket.as_str() {
            match self.dirs.open(&self.root, dir).and_then(stat) {
                Ok(state) if state.device == self.contents(bucket)?.device => return Ok(()),
                Ok(_) => return Err(on_another_mount()),
                Err(Errno::NOENT) => dir = split(dir).0,
                // The completion uses the odd path, or fails with a more specific error.
                Err(_) => return Ok(()),
            }
        }
        Ok(())
    }

    /// Returns the error for a missing object: the bucket is missing, a delete marker hides the object, or the object
    /// never existed. The caller must have just read the bucket's contents.
    #[cold]
    pub(crate) fn missing_object(&self, bucket: &Bucket, key: &Key) -> Error {
        let error = self.missing(bucket, ErrorKind::NoSuchKey);
        let is_versioned = || {
            self.contents_for_write(bucket).is_ok_and(|seen| seen.versioning != VersioningState::Unversioned)
        };
        if error.kind() != ErrorKind::NoSuchKey || !is_versioned() {
            return error;
        }
        match self.versions(bucket, key).newest_archived(VersionOwners::Any) {
            Ok(Some(newest)) if newest.is_marker => error.at_marker(newest.as_marker()),
            _ => error,
        }
    }
}

impl PosixStoreState {
    pub(crate) fn get(&self, bucket: &Bucket, key: &Key, options: &GetOptions) -> Result<OpenObject> {
        // `retry_stale` is not used here, because each function that returns the large result also copies that result.
        let mut race = 1;
        loop {
            let opened = self.open_settled(bucket, key, options.version.as_ref())?;
            let parts = if options.part.is_some() { opened.record().parts.clone() } else { Vec::new() };
            let device = opened.stat.device;
            let (file, info) = opened.into_info();
            options.conditions.check_read(&info)?;
            let range = options.wanted(info.size, &parts)?;
            match self.content_of(file, &range, device) {
                Err(error) if is_stale(&error) && race < MAX_STALE => {
                    wait_for_server(race);
                    self.volume.refresh_name(bucket, key);
                }
                content => return Ok(OpenObject { info, range, content: content? }),
            }
            race += 1;
        }
    }

    /// Opens the object or version. If the object is missing, looks it up again when no writer holds the key's lock
    /// (see [`PosixStoreState::settled`]).
    #[inline]
    pub(crate) fn open_settled(
        &self,
        bucket: &Bucket,
        key: &Key,
        version: Option<&VersionId>,
    ) -> Result<ObjectFile> {
        self.settled((bucket, key), || {
            let refresh = || self.volume.refresh_name(bucket, key);
            retry_stale(is_stale, refresh, || self.volume.versions(bucket, key).open_version(version))
        })
    }

    /// Returns a range of a file's content, to be read later. FUSE may open a file on its server only at the first
    /// read. Another node may have removed the file by then. On such a file system, the first byte is therefore read
    /// now, or all bytes if the content is small. `device` is the device of the file.
    fn content_of(&self, file: File, range: &Range<u64>, device: u64) -> Result<ObjectContent> {
        if range.is_empty() {
            // An empty object may be a directory, which has no content to read.
            return Ok(ObjectContent::Bytes(Default::default()));
        }
        let region = FileRegion { file, offset: range.start, len: range.end - range.start };
        if self.volume.sharing_on(&region.file, device) != FileSystemSharing::Unknown {
            return Ok(ObjectContent::File(region));
        }
        let is_small = region.len <= SMALL_BYTES;
        let end = region.offset + if is_small { region.len } else { 1 };
        let mut bytes = Vec::new();
        read_exactly(&region.file, region.offset..end, &mut bytes)?;
        Ok(if is_small { ObjectContent::Bytes(bytes.into()) } else { ObjectContent::File(region) })
    }

    /// Reads the requested content of an object into `buffer`, and returns the object's size. Reads the record only if
    /// the options require the record, or if the file's size may come from a stale cache entry.
    pub(crate) fn read(
        &self,
        bucket: &Bucket,
        key: &Key,
        options: &GetOptions,
        buffer: &mut Vec<u8>,
    ) -> Result<u64> {
        let is_plain = options.conditions.is_empty() && options.version.is_none() && options.part.is_none();
        if !is_plain {
            let object = self.get(bucket, key, options)?;
            object.content.read_to(buffer)?;
            return Ok(object.info.size);
        }
        self.settled((bucket, key), || {
            self.volume.freshen(bucket, key)?;
            let refresh = || self.volume.refresh_name(bucket, key);
            retry_stale(is_stale, refresh, || {
                let size = self.volume.find_file(bucket, key, |found, place| {
                    buffer.clear();
                    self.read_content(bucket, (found, place), options.range, buffer)
                })?;
                size.ok_or_else(|| self.volume.missing_object(bucket, key))
            })
        })
    }

    /// Reads a range of an open file, or the whole file if `range` is `None`. Returns the file's size.
    fn read_content(
        &self,
        bucket: &Bucket,
        (found, place): (FoundFile, Option<&ObjectPath>),
        range: Option<ByteRange>,
        buffer: &mut Vec<u8>,
    ) -> Result<u64> {
        let (file, size) = match self.volume.sharing_on(&found.file, found.stat.device) {
            // Only the record shows whether the size comes from a stale cache entry.
            FileSystemSharing::Unknown => {
                let opened = self.volume.with_record(bucket, found, place)?;
                (opened.file, opened.stat.size)
            }
            FileSystemSharing::Local | FileSystemSharing::Nfs => (found.file, found.stat.size),
        };
        let range = range.map_or(Ok(0..size), |range| range.resolve(size))?;
        read_exactly(&file, range, buffer).map(|()| size)
    }

    /// Opens the file once and reads all `ranges` from the same version of the object. Cost: as for opening the file,
    /// and one `pread` for each range.
    pub(crate) fn read_ranges(
        &self,
        bucket: &Bucket,
        key: &Key,
        ranges: &[ByteRange],
        options: &GetOptions,
    ) -> Result<Vec<Vec<u8>>> {
        let (file, info) = self.open_settled(bucket, key, options.version.as_ref())?.into_info();
        options.conditions.check_read(&info)?;
        let wanted = ranges.iter().map(|range| range.resolve(info.size)).collect::<Result<Vec<_>>>()?;
        let read = |range| {
            let mut bytes = Vec::new();
            read_exactly(&file, range, &mut bytes).map(|()| bytes)
        };
        wanted.into_iter().map(read).collect()
    }

    pub(crate) fn object_parts(
        &self,
        bucket: &Bucket,
        key: &Key,
        options: &GetOptions,
    ) -> Result<Vec<ObjectPart>> {
        let opened = self.open_settled(bucket, key, options.version.as_ref())?;
        let parts = opened.record().parts.clone();
        options.conditions.check_read(&opened.into_info().1)?;
        Ok(parts)
    }

    pub(crate) fn head(&self, bucket: &Bucket, key: &Key, options: &GetOptions) -> Result<ObjectInfo> {
        let object = self.settled((bucket, key), || self.described(bucket, key, options.version.as_ref()))?;
        if options.conditions.is_empty() {
            return Ok(object.into_info());
        }
        let info = object.into_info();
        options.conditions.check_read(&info).map(|()| info)
    }

    fn described(&self, bucket: &Bucket, key: &Key, version: Option<&VersionId>) -> Result<UnopenedObject> {
        self.volume.freshen(bucket, key)?;
        let described = match version {
            None => self.volume.describe_object(bucket, key)?,
            Some(_) => NameLookup::Unclear,
        };
        match described {
            NameLookup::Found(mut object) => {
                self.volume.versions(bucket, key).disown_copy(&object.stat, &mut object.recorded)?;
                Ok(object)
            }
            NameLookup::Missing => Err(ErrorKind::NoSuchKey.into()),
            NameLookup::Unclear => {
                Ok(self.volume.versions(bucket, key).open_version(version)?.into_named().1)
            }
        }
    }
}

/// Appends a range of `file` to `buffer`. Errors: `IncompleteBody` if the file has become shorter.
fn read_exactly(file: &File, range: std::ops::Range<u64>, buffer: &mut Vec<u8>) -> Result<()> {
    let len = usize::try_from(range.end - range.start).map_err(|_| Error::from(ErrorKind::EntityTooLarge))?;
    let got =
        read_into_spare(file, buffer, range.start, len).map_err(|errno| from_errno(errno, "reading"))?;
    match got == len {
        true => Ok(()),
        false => Err(Error::new(ErrorKind::IncompleteBody, "the file was truncated while it was read")),
    }
}

pub(crate) fn system_time(ns: i64) -> SystemTime {
    match u64::try_from(ns) {
        Ok(ns) => UNIX_EPOCH + Duration::from_nanos(ns),
        Err(_) => UNIX_EPOCH - Duration::from_nanos(ns.unsigned_abs()),
    }
}
