//! Completes and aborts uploads.

use std::collections::HashSet;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::time::Duration;

use fordway_store::{
    Bucket, CompleteOptions, CompletedPart, Error, ErrorKind, Key, PartInfo, PutResult, Result, UploadId,
    VersioningState,
};
use fordway_sys::{
    Errno, FileStat, FileSystemSharing, OFlags, links_in, lock_file, look_again, look_up_existing, open_in,
    remove_file, rename, stat, stat_in, unlock_file,
};
use fordway_wire::notification::EventKind;

use super::OpenUpload;
use crate::area::remove_if_file;
use crate::dirs::DirectoryHandle;
use crate::errors::{from_errno, is_stale};
use crate::events::{ChangeRecorder, facts_of};
use crate::layout::{ObjectPath, odd, plain, split, upload_dir, upload_of};
use crate::locks::not_locked;
use crate::multipart::MultipartUploadManager;
use crate::multipart::parts::{
    ASSEMBLED, ArrivedPart, CLOSED, DATA, UPLOAD, UploadDirectory, UploadRecord, WHOLE,
    all_claims_are_settled, being_completed, has_at_server, open_content, part_name, remove_upload_dir,
};
use crate::read::ObjectFile;
use crate::record::ObjectRecord;
use crate::shared::{MAX_STALE, stat_at_server, wait_for_server};
use crate::stage::{FILE_MODE, StagedFile};
use crate::write::append_range;

/// The longest time for which a part of a closed upload waits for the upload's lock. Most completions finish within
/// this time. The upload has then become an object, or accepts parts again, so the part is not refused with
/// `LockTimeout`.
const REOPENING: Duration = Duration::from_secs(1);

/// The maximum number of old versions among which a repeated completion looks for its object.
const NEWER_VERSIONS_MAX: usize = 16;

/// An upload locked by this process, so that no other process completes or aborts it.
struct LockedUpload {
    held: DirectoryHandle,
    /// The future object's file; `None` after it has been passed to `assemble`.
    data: Option<OwnedFd>,
    /// The same open file as `data`, which holds the upload's lock.
    locked: UploadLock,
    upload: OpenUpload,
    /// Whether the upload had already been closed by a completion whose process died.
    was_closed: bool,
    sharing: FileSystemSharing,
}

/// The lock of an upload: a lock on its open `data`. Dropping this value releases the lock. Closing the file is not
/// sufficient, because a forked child may have inherited it.
struct UploadLock(OwnedFd);

impl UploadLock {
    /// Takes over the lock that the open file `data` holds.
    fn of(data: &File) -> Result<Self> {
        data.try_clone().map(|file| UploadLock(file.into())).map_err(|error| {
            unlock_file(data);
            from_errno(Errno::from_io_error(&error).unwrap_or(Errno::IO), "locking the upload")
        })
    }
}

impl Drop for UploadLock {
    fn drop(&mut self) {
        unlock_file(&self.0);
    }
}

impl LockedUpload {
    /// Reopens the upload, so that it accepts parts again, after a completion has failed or was interrupted. The upload
    /// must not have become an object: writing a part into `data` could change the object.
    fn reopen(self) -> Result<(), Errno> {
        discard_whole(&self.held)?;
        rename(&self.held, CLOSED, &self.held, UPLOAD)
    }
}

/// Removes an unpublished copy of the parts that an earlier completion left behind. The copy is removed last, because
/// [`ASSEMBLED`] without a copy means that the copy was published.
fn discard_whole(held: &DirectoryHandle) -> Result<(), Errno> {
    remove_if_file(held, ASSEMBLED)?;
    remove_if_file(held, WHOLE)
}

impl MultipartUploadManager<'_> {
    /// Publishes the object. Only one call at a time can work on an upload. A part that is still being written when the
    /// call begins does not become part of the object.
    pub(crate) fn complete_upload(
        &self,
        (bucket, key): (&Bucket, &Key),
        upload: &UploadId,
        parts: &[CompletedPart],
        options: &CompleteOptions,
    ) -> Result<PutResult> {
        let taken = self.take_upload(bucket, key, upload);
        let was_completed = match &taken {
            Ok(taken) => taken.was_closed,
            Err(error) => error.kind() == ErrorKind::NoSuchUpload,
        };
        if was_completed && let Some(made) = self.made_before(bucket, key, upload, parts)? {
            // The object already exists. Files that cannot be removed are left to `gc`.
            match taken {
                Ok(taken) => drop(self.end_upload(taken)),
                Err(_) => self.remove_rest(bucket, key, upload),
            }
            return Ok(made);
        }
        let mut taken = taken?;
        if taken.was_closed && self.is_published(bucket, key, &taken)? {
            self.end_upload(taken)?;
            return Err(Error::new(ErrorKind::NoSuchUpload, "it was completed before"));
        }
        let data = taken.data.take().ok_or(ErrorKind::Internal)?;
        let found = &taken.upload;
        let made = self.assemble((bucket, key), (upload, found), &taken.held, data, (parts, options));
        match &made {
            // The object exists. Files that cannot be removed are left to the next completion, or to `gc`.
            Ok(_) => drop(self.end_upload(taken)),
            Err(_) if self.is_published(bucket, key, &taken).is_ok_and(|is_published| !is_published) => {
                // If the upload cannot be reopened now, the next part that arrives tries again.
                let _ = taken.reopen();
            }
            Err(_) => {}
        }
        made
    }

    /// Returns whether the upload has become an object, even if that object no longer exists. If `data` has further
    /// hard links, one of them may be the object, or all of them belong to copies of the bucket (`cp -al`). Errors: any
    /// error after which this is not known; the upload must then remain as it is.
    fn is_published(&self, bucket: &Bucket, key: &Key, taken: &LockedUpload) -> Result<bool> {
        let failed = |errno| from_errno(errno, "examining the upload");
        let has = |name| has_at_server(&taken.held, name, taken.sharing).map_err(failed);
        if has(ASSEMBLED)? {
            return Ok(!has(WHOLE)?);
        }
        if !has(DATA)? {
            return Ok(true);
        }
        match links_in(&taken.held, DATA).map_err(failed)? {
            0 | 1 => Ok(false),
            _ => self.is_object(bucket, key, stat_in(&taken.held, DATA).map_err(failed)?),
        }
    }

    /// Returns whether the file with the metadata `file` is the object `key`, or one of the key's newest old versions.
    #[cold]
    fn is_object(&self, bucket: &Bucket, key: &Key, file: FileStat) -> Result<bool> {
        let volume = &self.inner.volume;
        let kept = volume.versions(bucket, key).newest_places(NEWER_VERSIONS_MAX)?;
        let places = plain(bucket, key).map(ObjectPath::into_owned).into_iter().chain([odd(bucket, key)]);
        for place in places.chain(kept) {
            match volume.open_dir(&place.dir).and_then(|dir| stat_in(dir, &place.name)) {
                Ok(found) if (found.device, found.inode) == (file.device, file.inode) => return Ok(true),
                Ok(_) | Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => {}
                Err(errno) => return Err(from_errno(errno, "examining the object")),
            }
        }
        Ok(false)
    }

    /// Returns the result of an earlier completion of this upload from `parts`. Returns `None` if the resulting object
    /// is neither the object at `key` nor one of the key's newest old versions. A client that has not received the
    /// response may send the request again. Also records the event again, because the earlier completion may have ended
    /// before it recorded the event.
    fn made_before(
        &self,
        bucket: &Bucket,
        key: &Key,
        upload: &UploadId,
        parts: &[CompletedPart],
    ) -> Result<Option<PutResult>> {
        let volume = &self.inner.volume;
        // Another node may have completed the upload.
        let contents = volume.contents(bucket)?;
        volume.refresh(bucket, key, contents)?;
        let is_same = |opened: &ObjectFile| {
            opened.record().made_by.as_ref() == Some(upload)
                && CompletedPart::could_make(parts, &opened.etag())
        };
        let mut found = volume.find_object(bucket, key)?.filter(is_same);
        if found.is_none() && contents.versioning != VersioningState::Unversioned {
            found = volume.versions(bucket, key).find_recent_version(NEWER_VERSIONS_MAX, is_same)?;
        }
        let Some(opened) = found else { return Ok(None) };
        let (_, info) = opened.into_info();
        let (etag, checksum, version) = (info.etag, info.checksum, info.version);
        let made = PutResult { etag, modified: info.modified, checksum, version };
        let facts = facts_of(&made, info.size);
        let changes = ChangeRecorder::of(self.inner, bucket, contents);
        changes.record(key, EventKind::CompleteUpload, || Ok((Some(made), facts)))
    }

    pub(crate) fn abort_upload(&self, bucket: &Bucket, key: &Key, upload: &UploadId) -> Result<()> {
        let taken = self.take_upload(bucket, key, upload);
        if taken.is_err() {
            self.remove_rest(bucket, key, upload);
        }
        self.end_upload(taken?)
    }

    /// Removes the files of a completion whose process died after it had renamed `data` to the object. As long as these
    /// files exist, they are listed as an upload that can no longer be completed or aborted.
    fn remove_rest(&self, bucket: &Bucket, key: &Key, upload: &UploadId) {
        let Some(ours) = upload_of(upload.as_str()) else { return };
        let dir = upload_dir(bucket, &ours);
        let is_closed = || {
            let record = UploadDirectory::new(&self.inner.volume, &dir)
                .record(CLOSED)
                .ok()
                .flatten()
                .map(|(record, _)| record);
            record.is_some_and(|record| record.key.as_deref() == Some(key.as_str()))
        };
        let has_no_data = || {
            self.inner
                .volume
                .open_dir(&dir)
                .is_ok_and(|held| matches!(stat_in(held, DATA), Err(Errno::NOENT)))
        };
        if is_closed() && has_no_data() {
            // Files that cannot be removed are left to `gc`.
            let _ = self.remove_upload(&dir);
        }
    }

    fn end_upload(&self, taken: LockedUpload) -> Result<()> {
        let LockedUpload { held, data, locked, upload, .. } = taken;
        // The upload can no longer be completed or aborted, so the locked file can be closed before it is removed. This
        // order is necessary, because NFS and FUSE keep a file that is removed while it is open under a hidden name,
        // and its directory could not be removed.
        remove_file(&held, CLOSED).map_err(|errno| from_errno(errno, "removing the upload"))?;
        drop((data, locked));
        self.remove_upload(&upload.dir)
    }

    /// Locks and closes an upload. A closed upload accepts no new part.
    fn take_upload(&self, bucket: &Bucket, key: &Key, upload: &UploadId) -> Result<LockedUpload> {
        let mut race = 0;
        loop {
            match (self.try_take_upload(bucket, key, upload), upload_of(upload.as_str())) {
                // Another node has completed or aborted the upload, or has replaced one of its files.
                (Err(error), Some(ours)) if is_stale(&error) && race < MAX_STALE => {
                    wait_for_server(race);
                    let data = ObjectPath { dir: upload_dir(bucket, &ours).into(), name: DATA.into() };
                    self.inner.volume.forget_file(&data);
                }
                // Another node has started the upload, but this node has cached that the upload is missing.
                (Err(error), Some(ours))
                    if error.kind() == ErrorKind::NoSuchUpload && race == 0 && self.is_shared(bucket) =>
                {
                    self.inner.volume.refresh_dirs(&upload_dir(bucket, &ours));
                }
                (done, _) => return done,
            }
            race += 1;
        }
    }

    fn try_take_upload(&self, bucket: &Bucket, key: &Key, upload: &UploadId) -> Result<LockedUpload> {
        let (held, data, dir) = self.opened_data(bucket, upload)?;
        match lock_file(&data, self.inner.volume.config.lock_patience) {
            // Without locks, two concurrent completions may both succeed. The result is still correct, because both
            // completions create the same object.
            Ok(()) | Err(Errno::NOLCK | Errno::OPNOTSUPP | Errno::NOSYS) => {}
            Err(errno) => return Err(not_locked(errno)),
        }
        let locked = UploadLock::of(&data)?;
        let (upload, was_closed) = self.close_upload(bucket, key, &held, dir)?;
        Ok(self.locked_upload(bucket, held, (data, locked), (upload, was_closed)))
    }

    /// Reopens an upload that a completion has closed, if the process of that completion has died before the upload
    /// became an object. Does nothing if the upload is open. Errors: `LockTimeout` if a completion holds the upload's
    /// lock, or may hold it because the file system has no locks that work on all nodes; `NoSuchUpload` if the upload
    /// has become an object.
    pub(super) fn reopen_abandoned(&self, bucket: &Bucket, key: &Key, upload: &UploadId) -> Result<()> {
        let missing = || self.inner.volume.missing(bucket, ErrorKind::NoSuchUpload);
        if self.inner.volume.contents(bucket)?.unfit.is_some() {
            // A completion on another node may hold a lock that this node cannot see.
            return Err(being_completed());
        }
        let (held, data, dir) = self.opened_data(bucket, upload)?;
        lock_file(&data, REOPENING.min(self.inner.volume.config.lock_patience))
            .map_err(|_| being_completed())?;
        let locked = UploadLock::of(&data)?;
        // Another process may have ended or reopened the upload before this process got the lock.
        let found = UploadDirectory::new(&self.inner.volume, &dir).record_of_upload()?;
        let found = found.filter(|found| found.record.key.as_deref() == Some(key.as_str()));
        let UploadRecord { record, accepts_parts, .. } = found.ok_or_else(missing)?;
        if accepts_parts {
            return Ok(());
        }
        let upload = OpenUpload { record, dir, accepts_parts };
        let taken = self.locked_upload(bucket, held, (data, locked), (upload, true));
        if self.is_published(bucket, key, &taken)? {
            return Err(Error::new(ErrorKind::NoSuchUpload, "it was completed before"));
        }
        match taken.reopen() {
            Ok(()) => Ok(()),
            // Another node has ended or reopened the upload, while this node still has the upload's files cached.
            Err(Errno::NOENT) => Err(being_completed()),
            Err(errno) => Err(from_errno(errno, "reopening the upload")),
        }
    }

    /// Opens the directory of an upload and the file whose lock is the upload's lock. Also returns the path of the
    /// directory.
    fn opened_data(&self, bucket: &Bucket, upload: &UploadId) -> Result<(DirectoryHandle, File, String)> {
        let missing = || self.inner.volume.missing(bucket, ErrorKind::NoSuchUpload);
        let dir = upload_dir(bucket, &upload_of(upload.as_str()).ok_or_else(missing)?);
        let failed = |errno| match errno {
            Errno::NOENT | Errno::NOTDIR => self.inner.volume.missing(bucket, ErrorKind::NoSuchUpload),
            errno => from_errno(errno, "opening the upload"),
        };
        let held = self.inner.volume.dirs.open(&self.inner.volume.root, &dir).map_err(failed)?;
        self.inner.volume.check_keeping(bucket, &dir)?;
        let (data, _) = open_content(&held, DATA, OFlags::RDWR)?.ok_or_else(missing)?;
        Ok((held, data, dir))
    }

    /// Returns the upload with the open file `data` and its lock.
    fn locked_upload(
        &self,
        bucket: &Bucket,
        held: DirectoryHandle,
        (data, locked): (File, UploadLock),
        (upload, was_closed): (OpenUpload, bool),
    ) -> LockedUpload {
        let sharing = self.inner.volume.sharing_of(bucket);
        LockedUpload { held, data: Some(data.into()), locked, upload, was_closed, sharing }
    }

    /// Closes the upload, so that no part can be started. Returns the upload with the record of its future object, and
    /// whether the upload was already closed. Because this process holds the lock, only a completion whose process died
    /// can have closed the upload.
    fn close_upload(
        &self,
        bucket: &Bucket,
        key: &Key,
        held: &DirectoryHandle,
        dir: String,
    ) -> Result<(OpenUpload, bool)> {
        let missing = || self.inner.volume.missing(bucket, ErrorKind::NoSuchUpload);
        let files = UploadDirectory::new(&self.inner.volume, &dir);
        let (name, found) = match files.record(UPLOAD)? {
            Some(found) => (UPLOAD, Some(found)),
            None => (CLOSED, files.record(CLOSED)?),
        };
        let (record, _) = found.ok_or_else(missing)?;
        if record.key.as_deref() != Some(key.as_str()) {
            return Err(missing());
        }
        if name == UPLOAD {
            rename(held, UPLOAD, held, CLOSED).map_err(|errno| match errno {
                // Another node has ended the upload, while this node still has the upload's files cached.
                Errno::NOENT => missing(),
                errno => from_errno(errno, "closing the upload"),
            })?;
        }
        Ok((OpenUpload { record, dir, accepts_parts: false }, name == CLOSED))
    }

    /// Creates the object from the given parts. Uses `data` itself if it contains exactly these parts and has no other
    /// hard link; otherwise copies the parts.
    fn assemble(
        &self,
        (bucket, key): (&Bucket, &Key),
        (id, upload): (&UploadId, &OpenUpload),
        held: &DirectoryHandle,
        data: OwnedFd,
        (wanted, options): (&[CompletedPart], &CompleteOptions),
    ) -> Result<PutResult> {
        let (parts, names) = self.parts_among(bucket, &upload.dir, wanted)?;
        let present = infos_of(&parts);
        let chosen = CompletedPart::select(wanted, &present)?;
        let record = ObjectRecord { made_by: Some(id.clone()), ..upload.record_of(&chosen) };
        options.check(chosen.iter().map(|part| part.size).sum(), record.checksum.as_ref())?;
        let numbers: HashSet<u16> = chosen.iter().map(|info| info.number).collect();
        let chosen: Vec<&ArrivedPart> =
            parts.iter().filter(|part| numbers.contains(&part.info.number)).collect();
        // The object is staged like a new file, so that the object gets its odd path if a parent of the key is a file.
        let existing = |data| -> Result<StagedFile> {
            Ok(self.inner.stage(bucket, key, FILE_MODE)?.with_existing(data, held.clone(), DATA))
        };
        let state = match self.is_shared(bucket) {
            true => stat_at_server(&data),
            false => stat(&data),
        };
        let FileStat { size, links, .. } =
            state.map_err(|errno| from_errno(errno, "reading the metadata of the upload"))?;
        // After `cp -al`, `data` also belongs to a copy of the bucket. If the file itself became the object, changes in
        // the copy would also change the object.
        let is_alone = links <= 1;
        let is_whole = all_claims_are_settled(&names, &parts) && lie_in_place(&chosen, size);
        let mut staged = match is_alone && is_whole {
            true => existing(data)?,
            false => self.copy_parts(bucket, key, upload, held, &chosen)?,
        };
        staged.event = EventKind::CompleteUpload;
        staged.publish(key, record, &options.conditions)
    }

    /// Returns the parts that have arrived, sorted by number, and the names of all files of the upload. On a shared
    /// file system, this node may have cached that a part is missing. This node may also have cached an earlier record
    /// of the part, whose file no longer exists. Therefore, if one of the `wanted` parts or the file of a part is not
    /// found, all parts are looked up again.
    fn parts_among(
        &self,
        bucket: &Bucket,
        dir: &str,
        wanted: &[CompletedPart],
    ) -> Result<(Vec<ArrivedPart>, Vec<String>)> {
        let volume = &self.inner.volume;
        let files = UploadDirectory::new(volume, dir);
        let found = files.parts();
        let has_all = |parts: &[ArrivedPart]| CompletedPart::select(wanted, &infos_of(parts)).is_ok();
        let are_whole =
            |(parts, names): &(Vec<ArrivedPart>, Vec<String>)| has_all(parts) && have_files(parts, names);
        if !self.is_shared(bucket) || found.as_ref().is_ok_and(are_whole) {
            return found;
        }
        volume.refresh_dirs(dir);
        if let Ok(held) = volume.dirs.open(&volume.root, dir) {
            for part in wanted {
                look_up_existing(&held, &part_name(part.number));
                look_again(&held, &part_name(part.number));
            }
        }
        files.parts()
    }

    fn copy_parts(
        &self,
        bucket: &Bucket,
        key: &Key,
        upload: &OpenUpload,
        held: &DirectoryHandle,
        chosen: &[&ArrivedPart],
    ) -> Result<StagedFile> {
        let uniform = UploadDirectory::new(&self.inner.volume, &upload.dir).part_size()?;
        let failed = |errno| from_errno(errno, "assembling the parts");
        discard_whole(held).map_err(failed)?;
        let mut staged = self.inner.stage(bucket, key, FILE_MODE)?;
        for part in chosen {
            let name = part.file.as_deref().unwrap_or(DATA);
            let file = open_content(held, name, OFlags::RDONLY)?;
            let (file, _) = file.ok_or_else(|| Error::new(ErrorKind::InvalidPart, "a part is gone"))?;
            let offset = match (&part.file, uniform) {
                (Some(_), _) => 0,
                (None, Some(uniform)) => u64::from(part.info.number - 1) * uniform,
                (None, None) => {
                    return Err(Error::new(ErrorKind::InvalidPart, "the length of parts is gone"));
                }
            };
            append_range(&mut staged, &file, offset, part.info.size)?;
        }
        let staged = staged.kept_as(held, WHOLE)?;
        // If the content has no name in the upload, `ASSEMBLED` would mean that the content has already become the
        // object.
        if !staged.is_named_in_upload() {
            return Ok(staged);
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        open_in(held, ASSEMBLED, flags, FILE_MODE).map_err(failed)?;
        self.inner.volume.sync_names(held).map_err(failed)?;
        Ok(staged)
    }

    fn remove_upload(&self, dir: &str) -> Result<()> {
        let (parent, name) = split(dir);
        self.inner.volume.dirs.forget(dir);
        self.inner.volume.open_dir(parent).and_then(|parent| remove_upload_dir(&parent, name)).or_else(
            |errno| match errno {
                // The directory is kept if it contains files that Fordway did not create.
                Errno::NOTEMPTY => Ok(()),
                errno => Err(from_errno(errno, "removing the upload")),
            },
        )
    }
}

fn infos_of(parts: &[ArrivedPart]) -> Vec<PartInfo> {
    parts.iter().map(|part| part.info.clone()).collect()
}

/// Returns whether `names` contains the separate file of every part whose bytes are in a separate file.
fn have_files(parts: &[ArrivedPart], names: &[String]) -> bool {
    let names: HashSet<&str> = names.iter().map(String::as_str).collect();
    parts.iter().all(|part| part.file.as_deref().is_none_or(|file| names.contains(file)))
}

/// Returns whether `data`, which has `size` bytes, consists of exactly these parts. The parts must be numbered from 1
/// without gaps, and all but the last must have the same size. No part may be in a separate file, and no bytes may
/// follow the parts.
fn lie_in_place(parts: &[&ArrivedPart], size: u64) -> bool {
    let part_size = parts.first().map_or(0, |part| part.info.size);
    let last = parts.len().saturating_sub(1);
    let are_uniform = parts.iter().enumerate().all(|(at, part)| {
        let is_uniform = if at == last { part.info.size <= part_size } else { part.info.size == part_size };
        part.file.is_none() && usize::from(part.info.number) == at + 1 && is_uniform
    });
    are_uniform && parts.iter().map(|part| part.info.size).sum::<u64>() == size
}
