//! Buckets (the subdirectories of the root) and their documents: small files in the private area, such as
//! `document-cors` or `document-tagging`.
//!
//! A document must be a regular file within the size limit for documents. In a bucket with the sticky bit, the file
//! must also belong to the bucket's owner or root, and only the file's owner may have write permission. For a document
//! that controls access, the last two conditions apply in every bucket. Documents are not cached: each call reads the
//! file.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fordway_store::{
    Bucket, BucketDocumentKind, BucketInfo, Error, ErrorKind, ListQuery, MAX_DOCUMENT_BYTES, Result,
    VersioningState, check_document,
};
use fordway_sys::{
    ByteRangeGuard, EntryKind, Errno, Mode, OFlags, created_ns, file_user, lock_range, make_dir, open_in,
    read_dir, remove_dir, remove_file, stat, stat_in,
};

use crate::area::{
    each_name, is_writable_by_others, not_ours, read_small, remove_each, remove_if_file, remove_staged,
};
use crate::delete::remove_empty_tree;
use crate::errors::{from_errno, is_stale};
use crate::events::{NOTIFICATION, announce_notifications, await_notifications};
use crate::layout::{
    EVENTS, LOCKS, MARKERS, META, ODD, ObjectPath, PRIVATE_DIR, TMP, UPLOADS, VERSIONING, VERSIONS,
    document_kind, document_name, is_hidden_name, is_private_name, is_setting_name, private_dir, spare_name,
    upload_of, webhook_of_event,
};
use crate::locks::ALL_KEYS;
use crate::multipart::parts::remove_upload_dir;
use crate::object_lock::VersioningAndLockSetting;
use crate::patience::pause;
use crate::private::PrivateDirectoryContents;
use crate::read::system_time;
use crate::shared::retry_stale;
use crate::sidecar::inode_of;
use crate::stage::{SETTING_MODE, StagedFile, sync_dir};
use crate::versions::list::has_versions;
use crate::{Durability, PosixStoreState};

/// The maximum time for which the removal of a bucket waits for processes on this node to close the bucket's private
/// files. The removal is tried again every [`CLOSING_PAUSE`]. NFS and FUSE keep a removed file under a hidden name
/// while a process on the same node has it open.
const CLOSING_MAX: Duration = Duration::from_secs(1);
const CLOSING_PAUSE: Duration = Duration::from_millis(20);

/// The settings of a bucket, read before its removal so that they can be restored if the removal fails.
struct BucketSettings {
    versioning: VersioningAndLockSetting,
    documents: Vec<(BucketDocumentKind, Vec<u8>)>,
}

impl BucketSettings {
    /// Returns these settings, which were removed, and the settings that were found in the bucket afterwards.
    fn merged(self, found: BucketSettings) -> BucketSettings {
        let mut documents = found.documents;
        let is_new = |kind: &BucketDocumentKind| documents.iter().all(|(known, _)| known != kind);
        let earlier: Vec<_> = self.documents.into_iter().filter(|(kind, _)| is_new(kind)).collect();
        documents.extend(earlier);
        BucketSettings { versioning: self.versioning.restored(found.versioning), documents }
    }
}

impl PosixStoreState {
    pub(crate) fn list_buckets(&self) -> Result<Vec<BucketInfo>> {
        // The result omits names that have disappeared in the meantime, symbolic links that do not lead to a directory
        // beneath the root, and buckets that cannot be examined.
        Ok(self.bucket_names()?.iter().filter_map(|name| self.head_bucket(name).ok()).collect())
    }

    /// Returns the names in the root that may belong to buckets, in order. Symbolic links are included.
    pub(crate) fn bucket_names(&self) -> Result<Vec<Bucket>> {
        let mut names = Vec::new();
        let dir = open_in(self.volume.root.dir(), ".", OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty());
        dir.and_then(|dir| {
            read_dir(dir, |name, kind| {
                let name = std::str::from_utf8(name).ok().and_then(|name| Bucket::new(name).ok());
                let may_be_dir = matches!(kind, EntryKind::Dir | EntryKind::Link | EntryKind::Unknown);
                names.extend(name.filter(|_| may_be_dir));
            })
        })
        .map_err(|errno| from_errno(errno, "reading the root"))?;
        names.sort_unstable();
        Ok(names)
    }

    pub(crate) fn head_bucket(&self, bucket: &Bucket) -> Result<BucketInfo> {
        let sharing = self.volume.sharing_of(bucket);
        self.volume.freshen_dir(bucket.as_str(), false, sharing);
        let created = self.volume.open_dir(bucket.as_str()).and_then(|dir| {
            self.volume.require_kept(&dir, sharing)?;
            created_ns(dir)
        });
        match created {
            Ok(created) => Ok(BucketInfo { name: bucket.clone(), created: system_time(created) }),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::STALE) => Err(ErrorKind::NoSuchBucket.into()),
            Err(errno) => Err(from_errno(errno, "opening the bucket")),
        }
    }

    pub(crate) fn create_bucket(&self, bucket: &Bucket) -> Result<()> {
        bucket.for_creation()?;
        match make_dir(self.volume.root.dir(), bucket.as_str(), Mode::from_raw_mode(0o777)) {
            Ok(true) => self.sync_root(),
            Ok(false) => Err(self.why_taken(bucket).into()),
            Err(errno) => Err(from_errno(errno, "making the bucket")),
        }
    }

    /// Returns `BucketAlreadyOwnedByYou` or `BucketAlreadyExists` for a new bucket whose name is taken. Root counts as
    /// the owner of every bucket. A name that is not a bucket, such as a file or a link that leads nowhere, is nobody's.
    fn why_taken(&self, bucket: &Bucket) -> ErrorKind {
        let user = file_user();
        match self.volume.owner_of(bucket) {
            Ok(owner) if user == 0 || owner == user => ErrorKind::BucketAlreadyOwnedByYou,
            _ => ErrorKind::BucketAlreadyExists,
        }
    }

    /// Writes the root's directory to stable storage if the durability is `full`.
    fn sync_root(&self) -> Result<()> {
        match self.volume.config.durability {
            Durability::Full => sync_dir(self.volume.root.dir())
                .map_err(|errno| from_errno(errno, "writing the bucket's name to stable storage")),
            Durability::None | Durability::Data => Ok(()),
        }
    }

    /// Removes an empty bucket. The bucket's private files are removed only after all checks have passed; if removing
    /// the bucket then fails, its settings are restored.
    pub(crate) fn delete_bucket(self: &Arc<Self>, bucket: &Bucket) -> Result<()> {
        let dir = self.require_empty(bucket)?;
        self.remove_empty(bucket, &dir)
    }

    /// Checks that the bucket may be removed, and returns its directory. Changes nothing.
    fn require_empty(&self, bucket: &Bucket) -> Result<File> {
        self.head_bucket(bucket)?;
        let query = ListQuery { max_keys: 1, ..Default::default() };
        if !self.list(bucket, &query)?.entries.is_empty() || has_versions(self, bucket)? {
            return Err(ErrorKind::BucketNotEmpty.into());
        }
        let dir =
            self.volume.open_dir(bucket.as_str()).map_err(|errno| from_errno(errno, "opening the bucket"))?;
        self.check_removable(bucket, &dir)?;
        self.settings(bucket)?;
        Ok(dir)
    }

    fn remove_empty(self: &Arc<Self>, bucket: &Bucket, dir: &File) -> Result<()> {
        let mut removed = None;
        let done = match self.is_removed_at_once(bucket)? {
            true => Ok(()),
            false => self.remove_bucket(bucket, dir, &mut removed),
        };
        self.volume.private.forget(bucket);
        match (done, removed) {
            (Ok(()), _) => {
                self.volume.private.remote.forget(bucket);
                self.sync_root()
            }
            (Err(error), Some(settings)) => self.restore(bucket, settings).and(Err(error)),
            (Err(error), None) => Err(error),
        }
    }

    /// Reads the bucket's settings. Errors: as for [`PosixStoreState::document`], because a document that is not
    /// trusted could not be restored unchanged.
    fn settings(&self, bucket: &Bucket) -> Result<BucketSettings> {
        let PrivateDirectoryContents { versioning, object_lock, .. } = self.volume.contents(bucket)?;
        let mut documents: Vec<(BucketDocumentKind, Vec<u8>)> = Vec::new();
        for kind in self.volume.names_in(&private_dir(bucket))?.iter().filter_map(|name| document_kind(name))
        {
            // A document may have a second name, its spare name.
            if documents.iter().all(|(known, _)| *known != kind) {
                documents.extend(self.document(bucket, &kind)?.map(|document| (kind, document)));
            }
        }
        Ok(BucketSettings { versioning: VersioningAndLockSetting { versioning, object_lock }, documents })
    }

    /// Restores the settings of a bucket that could not be removed, except settings that were set again in the meantime.
    fn restore(self: &Arc<Self>, bucket: &Bucket, settings: BucketSettings) -> Result<()> {
        let BucketSettings { versioning, documents } = settings;
        if versioning.versioning != VersioningState::Unversioned {
            match self.with_setting(bucket, |now| Ok(versioning.restored(now))) {
                // The file system grants no locks.
                Err(error) if error.kind() == ErrorKind::NotImplemented => {
                    self.write_versioning(bucket, versioning)?;
                }
                done => done?,
            }
        }
        documents.iter().try_for_each(|(kind, document)| {
            if *kind == NOTIFICATION {
                announce_notifications(&self.volume, bucket)?;
            }
            let place = document_place(bucket, kind);
            let mut staged = StagedFile::with_mode(self, bucket, place, false, SETTING_MODE)?;
            staged.write(document)?;
            staged.publish_if_new().map(drop)
        })
    }

    /// Checks that the bucket's directory contains only Fordway's own files. Errors: `BucketNotEmpty` for directories
    /// and files that are not objects; `AccessDenied` if the bucket is a symbolic link.
    fn check_removable(&self, bucket: &Bucket, dir: &File) -> Result<()> {
        let failed = |errno| from_errno(errno, "reading the bucket");
        if stat_in(self.volume.root.dir(), bucket.as_str()).map_err(failed)?.is_link {
            let why = "the bucket is a symbolic link; remove that with rm";
            return Err(Error::new(ErrorKind::AccessDenied, why));
        }
        let mut holds_more = false;
        open_in(dir, ".", OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())
            .and_then(|dir| read_dir(dir, |name, _| holds_more |= name != PRIVATE_DIR.as_bytes()))
            .map_err(failed)?;
        if holds_more || !holds_only_ours(dir) { Err(holds_no_objects()) } else { Ok(()) }
    }

    /// Removes the bucket's directory if it is empty, and returns whether the directory was removed. The kernel checks
    /// whether the caller may remove the directory before it checks whether the directory is empty. If the caller may
    /// not remove the bucket, the bucket's uploads and waiting events therefore remain. Cost: one `unlinkat`.
    fn is_removed_at_once(&self, bucket: &Bucket) -> Result<bool> {
        match remove_dir(self.volume.root.dir(), bucket.as_str()) {
            Ok(()) => Ok(true),
            Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(false),
            Err(errno) => Err(from_errno(errno, "removing the bucket")),
        }
    }

    /// Removes the bucket as [`PosixStoreState::try_remove_bucket`] does. If the bucket is in use on a file system that
    /// other nodes may change, tries again for up to [`CLOSING_MAX`].
    fn remove_bucket(&self, bucket: &Bucket, dir: &File, removed: &mut Option<BucketSettings>) -> Result<()> {
        let begin = Instant::now();
        loop {
            match self.try_remove_bucket(bucket, dir, removed) {
                Err(error)
                    if error.kind() == ErrorKind::ConditionalConflict
                        && self.volume.sharing_of(bucket).is_shared()
                        && begin.elapsed() < CLOSING_MAX =>
                {
                    pause(CLOSING_PAUSE);
                }
                done => return done,
            }
        }
    }

    /// Removes the bucket's private directory, then the bucket's directory itself. Objects written in the meantime are
    /// never removed, because a directory that contains an object is kept. Sets `removed` to the settings that were
    /// removed. Errors: `ConditionalConflict` if another process is using a private file.
    fn try_remove_bucket(
        &self,
        bucket: &Bucket,
        dir: &File,
        removed: &mut Option<BucketSettings>,
    ) -> Result<()> {
        let failed = |errno| from_errno(errno, "removing the bucket's own files");
        self.locks.close(bucket);
        let _excluded = match open_in(dir, PRIVATE_DIR, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()) {
            Ok(private) => self.remove_private_dir(bucket, (dir, &private), removed)?,
            Err(Errno::NOENT) => None,
            // Fordway did not create the file or symbolic link with this name. The file or link is removed, because it
            // cannot be an object.
            Err(Errno::NOTDIR | Errno::LOOP) => {
                remove_file(dir, PRIVATE_DIR).map_err(failed)?;
                None
            }
            Err(errno) => return Err(failed(errno)),
        };
        remove_dir(self.volume.root.dir(), bucket.as_str()).map_err(|errno| match errno {
            Errno::NOTEMPTY => holds_no_objects(),
            errno => from_errno(errno, "removing the bucket"),
        })
    }

    /// Removes the private directory. The settings are removed last, while no writer holds the lock of a key, and only
    /// if the bucket is still empty. Between their removal and the removal of the bucket, no version could be
    /// protected, so no protected version can be lost. Returns the lock that excludes the writers.
    fn remove_private_dir(
        &self,
        bucket: &Bucket,
        (dir, private): (&File, &OwnedFd),
        removed: &mut Option<BucketSettings>,
    ) -> Result<Option<ByteRangeGuard>> {
        remove_areas(private)?;
        let mut excluded = self.exclude_writers(bucket)?;
        // Writers may have created objects, or changed the settings, since they were checked.
        self.volume.private.forget(bucket);
        self.check_removable(bucket, dir)?;
        require_no_areas(private)?;
        let found = self.settings(bucket)?;
        *removed = Some(match removed.take() {
            Some(before) => before.merged(found),
            None => found,
        });
        remove_settings(private)?;
        if self.volume.sharing_of(bucket).is_shared() {
            // NFS and FUSE would keep the open lock file under a hidden name.
            excluded = None;
        }
        let is_kept = |errno| match errno {
            Errno::NOTEMPTY if holds_foreign(private, is_private_name) => holds_no_objects(),
            errno => not_removed(errno),
        };
        remove_if_file(private, LOCKS).and_then(|()| remove_dir(dir, PRIVATE_DIR)).map_err(is_kept)?;
        Ok(excluded)
    }

    /// Waits until no writer holds the lock of a key of the bucket, and takes all these locks. Returns `None` if the
    /// store or the file system has no locks, or if there is no room for a lock file. Errors: `ConditionalConflict`.
    fn exclude_writers(&self, bucket: &Bucket) -> Result<Option<ByteRangeGuard>> {
        if !self.volume.config.if_match {
            return Ok(None);
        }
        let Ok(file) = self.volume.open_shared_file(bucket, LOCKS) else { return Ok(None) };
        match lock_range(file.into(), ALL_KEYS, self.volume.config.lock_patience) {
            Ok(excluded) if stat(&excluded).is_ok_and(|state| state.links > 0) => Ok(Some(excluded)),
            Ok(_) | Err(Errno::TIMEDOUT) => Err(in_use()),
            Err(_) => Ok(None),
        }
    }

    /// Reads a document of the bucket. Cost: one `openat2`; if there is a document, also a read and a few `fstat`.
    pub(crate) fn document(&self, bucket: &Bucket, kind: &BucketDocumentKind) -> Result<Option<Vec<u8>>> {
        Ok(self.document_and_owner(bucket, kind)?.map(|(document, _)| document))
    }

    /// Reads a document as [`PosixStoreState::document`] does, and also returns the owner of the document's file.
    pub(crate) fn document_and_owner(
        &self,
        bucket: &Bucket,
        kind: &BucketDocumentKind,
    ) -> Result<Option<(Vec<u8>, u32)>> {
        // The document is opened again if another node replaces it between the open and the read.
        let refresh = || self.volume.forget_file(&document_place(bucket, kind));
        retry_stale(is_stale, refresh, || self.try_document(bucket, kind))
    }

    fn try_document(&self, bucket: &Bucket, kind: &BucketDocumentKind) -> Result<Option<(Vec<u8>, u32)>> {
        let (place, sharing) = (document_place(bucket, kind), self.volume.sharing_of(bucket));
        self.volume.freshen_file(&place, sharing)?;
        let path = place.path();
        let failed = |errno| from_errno(errno, "reading the document");
        let ignored = |error| if self.is_strangers(bucket, &place) { Ok(None) } else { Err(error) };
        let file = match self.volume.open_private(&place, sharing) {
            Ok(file) => file,
            Err(Errno::NOENT | Errno::NOTDIR) => return self.volume.require_bucket(bucket).map(|()| None),
            Err(Errno::LOOP | Errno::NXIO) => return ignored(not_ours(&path, "is not a regular file")),
            Err(errno @ (Errno::ACCESS | Errno::PERM | Errno::AGAIN)) => return ignored(failed(errno)),
            Err(errno) => return Err(failed(errno)),
        };
        let Some((document, state)) = (match read_small(&file, MAX_DOCUMENT_BYTES) {
            Err(Errno::ISDIR) => None,
            read => read.map_err(failed)?,
        }) else {
            return ignored(not_ours(&path, "is not a small regular file"));
        };
        match self.volume.keeper(bucket, kind)? {
            Some(keeper) if !keeper.trusts(state.user) => {
                ignored(not_ours(&path, &format!("belongs to the user with the id {}", state.user)))
            }
            Some(_) if is_writable_by_others(&state) => Err(Error::new(
                ErrorKind::AccessDenied,
                format!(
                    "users other than its owner may write to {path}; check its content, and run `chmod go-w` on it"
                ),
            )),
            _ => Ok(Some((document, state.user))),
        }
    }

    /// Returns whether the file at `place`, a path in the private directory, certainly replaces no file of the bucket's
    /// owner: the bucket and its private directory have the sticky bit, and the file belongs to another user, who could
    /// not remove the owner's file.
    fn is_strangers(&self, bucket: &Bucket, place: &ObjectPath) -> bool {
        let Ok(Some(guard)) = self.volume.guard_now(bucket) else { return false };
        let Ok(dir) = self.volume.open_dir(&place.dir) else { return false };
        let is_safe =
            stat(&dir).is_ok_and(|dir| guard.trusts(dir.user) && guard.danger(&dir, dir.user).is_none());
        is_safe && stat_in(&dir, &place.name).is_ok_and(|state| !guard.trusts(state.user))
    }

    pub(crate) fn set_document(
        self: &Arc<Self>,
        bucket: &Bucket,
        kind: &BucketDocumentKind,
        document: &[u8],
    ) -> Result<()> {
        check_document(document)?;
        self.volume.require_bucket(bucket)?;
        self.volume.check_keeper(bucket, kind)?;
        if *kind == NOTIFICATION {
            announce_notifications(&self.volume, bucket)?;
        }
        let mut staged =
            StagedFile::with_mode(self, bucket, document_place(bucket, kind), false, SETTING_MODE)?;
        staged.write(document)?;
        staged.publish_private()?;
        if *kind == NOTIFICATION {
            await_notifications(&self.volume, bucket)?;
        }
        Ok(())
    }

    pub(crate) fn delete_document(&self, bucket: &Bucket, kind: &BucketDocumentKind) -> Result<()> {
        self.volume.require_bucket(bucket)?;
        self.volume.check_keeper(bucket, kind)?;
        let private = match self.volume.open_dir(&private_dir(bucket)) {
            Ok(private) => private,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(()),
            Err(errno) => return Err(from_errno(errno, "opening .fordway")),
        };
        let name = document_name(kind);
        // The document's spare name, a second hard link, is removed first. In the opposite order, the document would
        // reappear if this process were killed between the two removals.
        remove_if_file(&private, &spare_name(&name))
            .and_then(|()| remove_if_file(&private, &name))
            .and_then(|()| self.volume.sync_names(&private))
            .map_err(|errno| from_errno(errno, "removing the document"))?;
        if stat_in(&private, &name).is_ok_and(|state| state.is_dir) {
            return Err(not_ours(&document_place(bucket, kind).path(), "is not a regular file"));
        }
        if *kind == NOTIFICATION {
            await_notifications(&self.volume, bucket)?;
        }
        Ok(())
    }
}

fn document_place(bucket: &Bucket, kind: &BucketDocumentKind) -> ObjectPath<'static> {
    ObjectPath { dir: private_dir(bucket).into(), name: document_name(kind).into() }
}

/// Returns whether the private directory in the bucket's directory `dir` contains only names that Fordway writes.
fn holds_only_ours(dir: &File) -> bool {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let Ok(private) = open_in(dir, PRIVATE_DIR, flags, Mode::empty()) else { return true };
    let holds_only = |name, is_ours: fn(&str) -> bool| match open_in(&private, name, flags, Mode::empty()) {
        Ok(dir) => !holds_foreign(&dir, is_ours),
        Err(errno) => !matches!(errno, Errno::NOTDIR | Errno::LOOP),
    };
    !holds_foreign(&private, is_private_name)
        && holds_only(TMP, is_hidden_name)
        && holds_only(META, |name| inode_of(name).is_some())
        && holds_only(UPLOADS, |name| upload_of(name).is_some())
        && holds_only(EVENTS, |name| webhook_of_event(name).is_some())
}

/// Removes the directories in a bucket's private directory, except objects and old versions.
fn remove_areas(private: &OwnedFd) -> Result<()> {
    for name in [ODD, VERSIONS] {
        remove_empty_tree(private, name).map_err(|errno| match errno {
            Errno::NOTEMPTY => holds_no_objects(),
            errno => not_removed(errno),
        })?;
    }
    let file = |dir: &OwnedFd, name: &str| remove_if_file(dir, name);
    remove_ours(private, META, |name| inode_of(name).is_some(), file)?;
    remove_ours(private, TMP, is_hidden_name, remove_staged)?;
    remove_ours(private, EVENTS, |name| webhook_of_event(name).is_some(), file)?;
    remove_ours(private, UPLOADS, |name| upload_of(name).is_some(), remove_upload_dir)
}

/// Checks that a writer has not created again any of the directories that [`remove_areas`] removes. Errors:
/// `ConditionalConflict`.
fn require_no_areas(private: &OwnedFd) -> Result<()> {
    let is_area = |name: &str| [ODD, VERSIONS, META, TMP, EVENTS, UPLOADS].contains(&name);
    let mut has_area = false;
    each_name(private, |name| has_area |= is_area(name)).map_err(not_removed)?;
    if has_area { Err(in_use()) } else { Ok(()) }
}

/// Removes the settings in a bucket's private directory. The file `versioning` is removed last. If this process is
/// killed earlier, object lock remains on.
fn remove_settings(private: &OwnedFd) -> Result<()> {
    let versioning = [spare_name(VERSIONING), VERSIONING.to_owned()];
    let is_other =
        |name: &str| name == MARKERS || (is_setting_name(name) && versioning.iter().all(|own| own != name));
    remove_each(private, is_other, remove_if_file)
        .and_then(|()| versioning.iter().try_for_each(|name| remove_if_file(private, name)))
        .map_err(not_removed)
}

/// Returns the error for a private file that could not be removed.
fn not_removed(errno: Errno) -> Error {
    match errno {
        // When an open file is removed, NFS and FUSE keep it under a hidden name.
        Errno::NOTEMPTY | Errno::BUSY => in_use(),
        errno => from_errno(errno, "removing the bucket's own files"),
    }
}

/// Removes Fordway's own files in the directory `name`, then the directory if it is empty. Errors: `BucketNotEmpty` if
/// the directory contains other files; `ConditionalConflict` if another process still has a removed file open, or has
/// just created a file in the directory.
fn remove_ours(
    private: &OwnedFd,
    name: &str,
    is_ours: impl Fn(&str) -> bool,
    remove: impl Fn(&OwnedFd, &str) -> Result<(), Errno>,
) -> Result<()> {
    let failed = |errno| from_errno(errno, "removing the bucket's own files");
    let dir = match open_in(private, name, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()) {
        Ok(dir) => dir,
        Err(Errno::NOENT) => return Ok(()),
        Err(Errno::NOTDIR | Errno::LOOP) => return Err(holds_no_objects()),
        Err(errno) => return Err(failed(errno)),
    };
    let removed = remove_each(&dir, &is_ours, |dir, name| match remove(dir, name) {
        // The directory contains other files, or a file was just written to it.
        Err(Errno::NOTEMPTY) => Ok(()),
        removed => removed,
    });
    removed.map_err(failed)?;
    match remove_dir(private, name) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(Errno::NOTEMPTY) if holds_foreign(&dir, is_ours) => Err(holds_no_objects()),
        Err(Errno::NOTEMPTY) => Err(in_use()),
        Err(errno) => Err(failed(errno)),
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
    };

    use super::*;
    use crate::{PosixConfig, PosixStore};

    const LOCKED: LockConfiguration = LockConfiguration {
        default: Some(DefaultRetention { mode: RetentionMode::Compliance, period: RetentionPeriod::Days(1) }),
    };

    struct Rig {
        _dir: tempfile::TempDir,
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
            Rig { _dir: dir, store, bucket, key }
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
        let dir = inner.require_empty(bucket).unwrap();
        rig.store.set_lock_configuration(bucket, &LOCKED).unwrap();
        let put = rig.put().unwrap();
        let refused = inner.remove_empty(bucket, &dir).expect_err("there is an object");
        assert_eq!(refused.kind(), ErrorKind::BucketNotEmpty);
        rig.check_protected(put);
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
            let refused = inner.remove_empty(bucket, &inner.require_empty(bucket).unwrap());
            assert_eq!(refused.expect_err("there is an object").kind(), ErrorKind::BucketNotEmpty);
            rig.check_protected(writer.join().unwrap().unwrap());
        });
    }

    /// If a program sets versioning or object lock between the removal of the settings and their restoration, object
    /// lock remains on.
    #[test]
    fn restored_settings_never_turn_object_lock_off() {
        let setting = |versioning, object_lock| VersioningAndLockSetting { versioning, object_lock };
        let locked = setting(VersioningState::Enabled, Some(LOCKED));
        let relocked = setting(VersioningState::Enabled, Some(LockConfiguration::default()));
        let enabled = setting(VersioningState::Enabled, None);
        let suspended = setting(VersioningState::Suspended, None);
        let none = VersioningAndLockSetting::default();
        for (before, now, after) in [
            (enabled, none, enabled),
            (enabled, suspended, suspended),
            (enabled, locked, locked),
            (locked, none, locked),
            (locked, suspended, locked),
            (locked, enabled, locked),
            (locked, relocked, relocked),
            (none, locked, locked),
        ] {
            assert_eq!(before.restored(now), after, "{before:?} {now:?}");
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
