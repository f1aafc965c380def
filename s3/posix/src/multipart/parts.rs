//! Defines the files in a multipart upload's directory, and the file that receives the bytes of each part.
//!
//! ```text
//! ID/upload         the record of the future object; named `closed` while the upload is being completed
//! ID/data           the future object: part N of an upload of uniform parts starts at byte (N - 1) x size
//! ID/part-size      the size of uniform parts, as text: the length of the first part whose length was announced
//! ID/NNNNN.claim    exists if part N is being written, or was written, into `data`
//! ID/NNNNN          the record of part N: its ETag and size, and where its bytes are
//! ID/NNNNN-RANDOM   the bytes of a part that could not be written into `data`
//! ID/whole          the future object if it is not `data`: a copy of the parts
//! ID/assembled      exists from the time when `whole` was complete
//! ID/linked         the future object while it is linked to its key, if one rename cannot move it
//! ```
//!
//! One step both removes the content from the upload and makes it the object. The files of a closed upload therefore
//! show after a crash whether the upload was completed. A completed upload has no `data`, or has `assembled` but no
//! `whole`.
//!
//! A part is written into `data` only if `data` has no other hard link. `cp -al` creates such a link.
//!
//! A part is written into `data` only once. If a part is sent again, its bytes go to a separate file, so that the bytes
//! that were acknowledged first are never overwritten. When the part's record names the new file, the separate file
//! that the record named before is removed.

use std::fs::File;
use std::os::fd::AsFd;
use std::sync::Arc;

use fordway_store::{Bucket, Error, ErrorKind, PartInfo, PutResult, Result, UploadId};
use fordway_sys::{
    Errno, FileStat, FileSystemSharing, Mode, OFlags, copy_range, forget_names, inode_among, look_again,
    look_up_existing, open_in, remove_dir, remove_file, stat, stat_in, stat_now, sync_data, write_all_at,
};

use crate::area::{read_small, remove_each};
use crate::dirs::DirectoryHandle;
use crate::errors::from_errno;
use crate::layout::{ObjectPath, is_hidden_name, upload_dir, upload_of};
use crate::read::system_time;
use crate::record::ObjectRecord;
use crate::shared::{NAME_TIMEOUT, look_before_opening};
use crate::sidecar::decode_record;
use crate::stage::{FILE_MODE, StagedFile, hidden_name, made_of, settle_time, unique_etag};
use crate::volume::StoreDirectoryTree;
use crate::write::{append_range, for_each_piece, needs_plain_copy};
use crate::{Durability, PosixStoreState};

/// The record of the future object, in an open upload.
pub(crate) const UPLOAD: &str = "upload";
/// The record of the future object, while the upload is being completed.
pub(crate) const CLOSED: &str = "closed";
/// The content of the future object.
pub(crate) const DATA: &str = "data";
const PART_SIZE: &str = "part-size";
/// The content of the future object, if it was copied from the parts.
pub(crate) const WHOLE: &str = "whole";
/// A file that is created when [`WHOLE`] is complete. If [`WHOLE`] is then missing, [`WHOLE`] has become the object.
pub(crate) const ASSEMBLED: &str = "assembled";
/// The content of the future object while it is being linked to its key.
pub(crate) const LINKED: &str = "linked";

/// The maximum length of uniform parts. With this length, the last possible part still ends within the maximum file
/// size.
pub(crate) const UNIFORM_BYTES_MAX: u64 = i64::MAX as u64 / fordway_store::MAX_PARTS as u64;

/// The size, in bytes, of the largest memory page that any processor uses.
const PAGE_BYTES_MAX: u64 = 64 * 1024;

/// The maximum number of names that a writer reads to find out whether an upload is open.
const LISTED_MAX: usize = 256;

/// The maximum size of a record, in bytes: more than metadata and a key need.
const MAX_RECORD_BYTES: usize = 64 * 1024;

/// The destination of the bytes of an arriving part.
pub(crate) enum PartSink {
    /// The part is written into `data` from `offset` on, and has at most `limit` bytes.
    InPlace { data: File, offset: u64, limit: u64, written: u64 },
    /// The part is written into a separate file.
    Apart(StagedFile),
}

/// A part that has arrived.
#[derive(Clone, Debug)]
pub(crate) struct ArrivedPart {
    pub(crate) info: PartInfo,
    /// The name of the file that contains the part's bytes; `None` if the bytes are in `data`, at the part's offset.
    pub(crate) file: Option<String>,
}

/// The record of an upload.
pub(crate) struct UploadRecord {
    pub(crate) record: ObjectRecord,
    pub(crate) started_ns: i64,
    /// Whether the upload is open. Otherwise, the upload is being completed, or its completion was interrupted.
    pub(crate) accepts_parts: bool,
}

/// The purpose of a file in an upload's directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UploadFileRole {
    /// A file that belongs to the whole upload, or a claim.
    Upload,
    /// The record of a part.
    PartRecord,
    /// The bytes of a part.
    PartBytes,
}

impl PartSink {
    /// Opens a sink for part `number` of the upload in `dir`; `size` is the part's length in bytes, if known.
    pub(crate) fn open(
        inner: &Arc<PosixStoreState>,
        bucket: &fordway_store::Bucket,
        dir: &str,
        number: u16,
        size: Option<u64>,
    ) -> Result<Self> {
        let held = inner
            .volume
            .dirs
            .open(&inner.volume.root, dir)
            .map_err(|e| from_errno(e, "opening the upload"))?;
        if let Some(size) = size
            && let Some(uniform) = uniform_size(inner, bucket, dir, &held, size)?
            && size <= uniform
            && may_share_a_file(uniform, inner.volume.sharing_of(bucket))
            && claim(&held, number, inner.volume.sharing_of(bucket))?
        {
            let data = open_content(&held, DATA, OFlags::WRONLY)?;
            let (data, state) =
                data.ok_or_else(|| Error::new(ErrorKind::NoSuchUpload, "its data is gone"))?;
            // After `cp -al`, the other hard link of `data` may be an object, which must not change.
            if state.links <= 1 {
                let offset = u64::from(number - 1) * uniform;
                return Ok(PartSink::InPlace { data, offset, limit: size, written: 0 });
            }
        }
        let name = format!("{}-{}", part_name(number), hidden_name()?);
        StagedFile::at(inner, bucket, in_upload(dir, &name)).map(PartSink::Apart)
    }

    /// Appends `bytes`. Errors: as for a write; `IncompleteBody` if the part is longer than announced.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<()> {
        match self {
            PartSink::Apart(staged) => staged.write(bytes),
            PartSink::InPlace { data, offset, limit, written } => {
                if *written + bytes.len() as u64 > *limit {
                    let why = format!("more bytes arrived than the announced {limit}");
                    return Err(Error::new(ErrorKind::IncompleteBody, why));
                }
                write_all_at(&*data, bytes, *offset + *written).map_err(|errno| {
                    from_errno(errno, &format!("{written} bytes of the part were written"))
                })?;
                *written += bytes.len() as u64;
                Ok(())
            }
        }
    }

    /// Appends `len` bytes of `file` from `offset`; the kernel copies them if possible. Errors: as for a write;
    /// `IncompleteBody` if the file has become shorter.
    pub(crate) fn copy(&mut self, file: &File, offset: u64, len: u64) -> Result<()> {
        match self {
            PartSink::Apart(staged) => append_range(staged, file, offset, len),
            PartSink::InPlace { data, offset: start, limit, written } => {
                debug_assert!(*written + len <= *limit, "the part was opened for {limit} bytes");
                let copied = copy_range(file, offset, &*data, *start + *written, len)
                    .or_else(|errno| if needs_plain_copy(errno) { Ok(0) } else { Err(errno) })
                    .map_err(|errno| from_errno(errno, "copying the part"))?;
                *written += copied;
                for_each_piece(file, offset + copied, len - copied, |piece| self.write(piece))
            }
        }
    }

    /// Publishes the bytes as part `number` of the upload in `dir`. Errors: as for a write; `LockTimeout` if the upload
    /// is being completed, and `NoSuchUpload` if it has ended.
    pub(crate) fn publish(
        self,
        inner: &Arc<PosixStoreState>,
        bucket: &fordway_store::Bucket,
        (dir, number): (&str, u16),
        mut record: ObjectRecord,
    ) -> Result<fordway_store::PutResult> {
        let held = inner.volume.dirs.open(&inner.volume.root, dir).map_err(|errno| match errno {
            Errno::NOENT | Errno::NOTDIR | Errno::STALE => ended(),
            errno => from_errno(errno, "opening the upload"),
        })?;
        let sharing = inner.volume.sharing_of(bucket);
        require_open(&held, sharing)?;
        let (made, size, file) = match self {
            PartSink::InPlace { data, written, .. } => {
                let made = seal_part(&inner.volume, &data, &mut record)?;
                (made, written, None)
            }
            PartSink::Apart(mut staged) => {
                let (made, size, name) =
                    (staged.seal(&mut record)?, staged.written(), staged.name().to_owned());
                staged.publish_private()?;
                (made, size, Some(name))
            }
        };
        let text = ObjectRecord { key: file, ..record }.with_size(size).encode();
        let name = part_name(number);
        let mut staged = StagedFile::at(inner, bucket, in_upload(dir, &name))?;
        staged.write(&text)?;
        let replaced = UploadDirectory::new(&inner.volume, dir).file_of_part(number);
        staged.publish_private()?;
        // A completion that began before the new record was in place may need the replaced file. A completion that
        // begins later reads the new record.
        if let Some(replaced) = replaced.filter(|_| has_at_server(&held, UPLOAD, sharing) == Ok(true)) {
            // A file that cannot be removed now is removed with the upload.
            let _ = remove_file(&held, &replaced);
        }
        Ok(made)
    }
}

/// Returns the length of uniform parts in this upload. If no length is set yet, sets it to `size`, unless `size` is too
/// small or too large for a uniform part.
fn uniform_size(
    inner: &Arc<PosixStoreState>,
    bucket: &fordway_store::Bucket,
    dir: &str,
    held: &DirectoryHandle,
    size: u64,
) -> Result<Option<u64>> {
    if let Some(text) = read_text(held, PART_SIZE)? {
        return Ok(uniform(text));
    }
    if !(fordway_store::MIN_PART_BYTES..=UNIFORM_BYTES_MAX).contains(&size) {
        return Ok(None);
    }
    let mut staged = StagedFile::at(inner, bucket, in_upload(dir, PART_SIZE))?;
    staged.write(size.to_string().as_bytes())?;
    staged.publish_if_new()?;
    // If several writers try to set the length at the same time, one of them succeeds, and all use that length.
    Ok(read_text(held, PART_SIZE)?.and_then(uniform))
}

/// Returns whether two nodes can safely write neighbouring parts of this length into one file. The client of a shared
/// file system may write back whole pages, and would then overwrite the end or the beginning of the other node's part.
fn may_share_a_file(uniform: u64, sharing: FileSystemSharing) -> bool {
    !sharing.is_shared() || uniform.is_multiple_of(PAGE_BYTES_MAX)
}

/// Parses the length of uniform parts. Returns `None` if `text` is not a valid length.
pub(crate) fn uniform(text: String) -> Option<u64> {
    text.parse().ok().filter(|size| *size <= UNIFORM_BYTES_MAX)
}

/// Claims the place of part `number` in `data`. Returns whether the place was free. Errors: `LockTimeout` or
/// `NoSuchUpload` if the upload was closed before the claim. A completion first closes the upload and then looks for
/// claims. Therefore either the writer finds the upload closed, or the completion finds the claim.
fn claim(dir: &DirectoryHandle, number: u16, sharing: FileSystemSharing) -> Result<bool> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
    match open_in(dir, &format!("{}.claim", part_name(number)), flags, FILE_MODE) {
        Ok(_) => {}
        Err(Errno::EXIST) => return Ok(false),
        Err(errno) => return Err(from_errno(errno, "claiming the part's place")),
    }
    require_open(dir, sharing).map(|()| true)
}

/// Returns the error for a part of a closed upload. Clients retry after an error of this kind. The retry can succeed,
/// because the upload accepts parts again if the completion fails.
pub(crate) fn being_completed() -> Error {
    let why = "the upload is being completed; send the part again, or complete or abort the upload";
    Error::new(ErrorKind::LockTimeout, why)
}

/// Returns the error for a part of an upload that no longer exists.
fn ended() -> Error {
    Error::new(ErrorKind::NoSuchUpload, "it was completed or aborted in the meantime")
}

/// Checks that the upload in `dir` is open, according to the file server. With a stale result, a part could be written
/// into an object that another node has just published, or could be lost after its acknowledgement. Errors:
/// `LockTimeout` if the upload is being completed, `NoSuchUpload` if it has ended, and errors from examining the
/// upload, after which the upload may still be open. Cost: on a shared file system, several round trips.
fn require_open(dir: &DirectoryHandle, sharing: FileSystemSharing) -> Result<()> {
    let has = |name| match has_at_server(dir, name, sharing) {
        // Another node has removed the directory.
        Err(Errno::STALE) => Ok(false),
        looked => looked.map_err(|errno| from_errno(errno, "examining the upload")),
    };
    match has(UPLOAD)? {
        true => Ok(()),
        false if has(CLOSED)? => Err(being_completed()),
        false => Err(ended()),
    }
}

/// Returns whether the upload in `dir` has the file `name`, according to the file server. Errors: any error that does
/// not show that the file is missing. Cost: on a shared file system, several round trips.
pub(crate) fn has_at_server(
    dir: &DirectoryHandle,
    name: &str,
    sharing: FileSystemSharing,
) -> Result<bool, Errno> {
    match sharing {
        FileSystemSharing::Local => {}
        FileSystemSharing::Nfs => {
            let _ = stat_now(dir);
            look_up_existing(dir, name);
            look_again(dir, name);
        }
        // After a rename, the GlusterFS client may still show the file's old name for another second.
        FileSystemSharing::Unknown => {
            let listed = open_in(dir, ".", OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())
                .and_then(|dir| inode_among(dir, name, LISTED_MAX));
            if let Ok(Some(listed)) = listed {
                return Ok(listed.is_some());
            }
        }
    }
    match stat_in(dir, name) {
        Ok(_) => Ok(true),
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Returns whether every claim among `names` belongs to a part in `parts` that is stored in `data`. `parts` is sorted
/// by number.
pub(crate) fn all_claims_are_settled(names: &[String], parts: &[ArrivedPart]) -> bool {
    let is_in_data = |number: u16| {
        let found = parts.binary_search_by_key(&number, |part| part.info.number);
        found.is_ok_and(|at| parts[at].file.is_none())
    };
    let mut claims = names.iter().filter_map(|name| name.strip_suffix(".claim"));
    claims.all(|number| part_number(number).is_some_and(is_in_data))
}

fn read_text(dir: &DirectoryHandle, name: &str) -> Result<Option<String>> {
    Ok(read_bytes(dir, name)?.and_then(|(bytes, _)| String::from_utf8(bytes).ok()))
}

/// Returns a small file's content and modification time, or `None` if there is no such file. Errors: `Corrupt` if the
/// file is not a small regular file.
fn read_bytes(dir: &DirectoryHandle, name: &str) -> Result<Option<(Vec<u8>, i64)>> {
    let failed = |errno| from_errno(errno, "reading the upload");
    let corrupt =
        || Error::new(ErrorKind::Corrupt, format!("{name} of the upload was not written by this version"));
    let file = match open_in(dir, name, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY, Mode::empty()) {
        Ok(file) => file,
        Err(Errno::NOENT) => return Ok(None),
        Err(Errno::LOOP | Errno::NXIO) => return Err(corrupt()),
        Err(errno) => return Err(failed(errno)),
    };
    let read = read_small(&file, MAX_RECORD_BYTES).map_err(failed);
    let (bytes, state) = read?.ok_or_else(corrupt)?;
    Ok(Some((bytes, state.modified_ns)))
}

/// Opens an upload's content file `name`, and returns it with its metadata. Returns `None` if there is no such file.
/// Errors: `AccessDenied` if the file is not a regular file.
pub(crate) fn open_content(
    dir: &DirectoryHandle,
    name: &str,
    flags: OFlags,
) -> Result<Option<(File, FileStat)>> {
    let failed = |errno| from_errno(errno, "opening the upload's content");
    let file = match open_in(dir, name, flags | OFlags::NONBLOCK | OFlags::NOCTTY, Mode::empty()) {
        Ok(file) => File::from(file),
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
        Err(errno) => return Err(failed(errno)),
    };
    let state = stat(&file).map_err(failed)?;
    match state.is_file {
        true => Ok(Some((file, state))),
        false => {
            let why =
                format!("{name} of the upload is not a regular file; abort the upload and start it again");
            Err(Error::new(ErrorKind::AccessDenied, why))
        }
    }
}

/// Removes an upload's directory with all of Fordway's files in it. Fordway's files are recognized by their names
/// alone, and symbolic links are not followed. A file or directory that is already gone is not an error. Errors:
/// `NOTEMPTY` if the directory contains other files.
pub(crate) fn remove_upload_dir(uploads: &impl AsFd, name: &str) -> Result<(), Errno> {
    let dir = match open_in(uploads, name, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()) {
        Ok(dir) => dir,
        Err(Errno::NOENT) => return Ok(()),
        Err(errno) => return Err(errno),
    };
    remove_each(
        &dir,
        |name| role_of(name).is_some(),
        |dir, name| match remove_file(dir, name) {
            // Fordway creates no directories in an upload's directory, so a directory is left in place.
            Err(Errno::NOENT | Errno::ISDIR | Errno::PERM) => Ok(()),
            removed => removed,
        },
    )?;
    match remove_dir(uploads, name) {
        Err(Errno::NOENT) => Ok(()),
        done => done,
    }
}

impl ArrivedPart {
    /// Returns the part that the record describes, or `None` if no part can have this record. A file named in the
    /// record must belong to part `number`.
    pub(crate) fn of(number: u16, record: ObjectRecord, modified_ns: i64) -> Option<Self> {
        let (size, etag) = (record.seal?.size, record.etag?);
        let is_possible = size <= UNIFORM_BYTES_MAX && (1..=fordway_store::MAX_PARTS).contains(&number);
        let names_own_file = record.key.as_deref().is_none_or(|file| is_file_of_part(file, number));
        let (modified, checksum) = (system_time(modified_ns), record.checksum);
        let info = PartInfo { number, size, etag, modified, checksum };
        (is_possible && names_own_file).then_some(ArrivedPart { info, file: record.key })
    }

    /// Returns whether this version of Fordway could have written the record for part `number`.
    pub(crate) fn is_possible(number: u16, record: &ObjectRecord) -> bool {
        ArrivedPart::of(number, record.clone(), 0).is_some()
    }
}

/// Returns whether `name` is the name of a separate file that belongs to part `number`.
fn is_file_of_part(name: &str, number: u16) -> bool {
    let (part, random) = name.split_once('-').unwrap_or_default();
    part_number(part) == Some(number) && is_hidden_name(random)
}

/// Returns the purpose of the file `name` in an upload's directory, or `None` if Fordway never writes this name.
pub(crate) fn role_of(name: &str) -> Option<UploadFileRole> {
    let is_number = |number| part_number(number).is_some();
    match name {
        UPLOAD | CLOSED | DATA | PART_SIZE | WHOLE | ASSEMBLED | LINKED => Some(UploadFileRole::Upload),
        _ if is_number(name) => Some(UploadFileRole::PartRecord),
        _ if name.strip_suffix(".claim").is_some_and(is_number) => Some(UploadFileRole::Upload),
        _ if name
            .split_once('-')
            .is_some_and(|(number, random)| is_number(number) && is_hidden_name(random)) =>
        {
            Some(UploadFileRole::PartBytes)
        }
        _ => None,
    }
}

pub(crate) fn part_number(name: &str) -> Option<u16> {
    name.parse().ok().filter(|number| part_name(*number) == name)
}

pub(crate) fn part_name(number: u16) -> String {
    format!("{number:05}")
}

pub(crate) fn in_upload<'p>(dir: &'p str, name: &'p str) -> ObjectPath<'p> {
    ObjectPath { dir: dir.into(), name: name.into() }
}

/// Returns the user who started an upload, if the upload still exists.
pub(crate) fn owner_of_upload(
    volume: &StoreDirectoryTree,
    bucket: &Bucket,
    upload: &UploadId,
) -> Option<u32> {
    let dir = volume.open_dir(&upload_dir(bucket, &upload_of(upload.as_str())?)).ok()?;
    stat(&dir).ok().map(|state| state.user)
}

/// The directory of an upload.
#[derive(Clone, Copy)]
pub(crate) struct UploadDirectory<'u> {
    volume: &'u StoreDirectoryTree,
    path: &'u str,
}

impl<'u> UploadDirectory<'u> {
    pub(crate) fn new(volume: &'u StoreDirectoryTree, path: &'u str) -> Self {
        UploadDirectory { volume, path }
    }

    fn held(&self) -> Result<DirectoryHandle, Errno> {
        self.volume.dirs.open(&self.volume.root, self.path)
    }

    /// Returns the parts that have arrived, sorted by number, and the names of all files of the upload.
    pub(crate) fn parts(&self) -> Result<(Vec<ArrivedPart>, Vec<String>)> {
        let held = self.held().map_err(|e| from_errno(e, "opening the upload"))?;
        let names = self.names()?;
        let mut parts = Vec::new();
        for name in &names {
            let Some(number) = part_number(name) else { continue };
            let Some((bytes, modified_ns)) = read_bytes(&held, name)? else { continue };
            parts.extend(ArrivedPart::of(number, decode_record(&bytes)?, modified_ns));
        }
        parts.sort_unstable_by_key(|part| part.info.number);
        Ok((parts, names))
    }

    /// Returns the name of the separate file that contains the bytes of part `number`. Returns `None` if the part has
    /// not arrived, or if its bytes are in `data`.
    fn file_of_part(&self, number: u16) -> Option<String> {
        let (record, _) = self.record(&part_name(number)).ok()??;
        record.key.filter(|file| is_file_of_part(file, number))
    }

    /// Returns the names of all files of the upload. The caller must have closed the upload, so that the names include
    /// every claim that a writer may still act on.
    fn names(&self) -> Result<Vec<String>> {
        let UploadDirectory { volume, path } = *self;
        let sharing = volume.sharing_at(path);
        if sharing == FileSystemSharing::Nfs
            && let Ok(opened) = volume.open_to_scan(path)
        {
            forget_names(opened);
        }
        let names = volume.names_in(path)?;
        if sharing != FileSystemSharing::Unknown || names.len() < LISTED_MAX {
            return Ok(names);
        }
        // A writer on another node that has not read the whole directory may not have detected yet that the upload is
        // closed. After a pause, the names are read again, and then include any claim of that writer.
        std::thread::sleep(NAME_TIMEOUT);
        volume.names_in(path)
    }

    /// Returns the length of uniform parts; `None` if no length was ever set. If no length was set, no part is in
    /// `data`.
    pub(crate) fn part_size(&self) -> Result<Option<u64>> {
        let held = self.held().map_err(|e| from_errno(e, "opening the upload"))?;
        Ok(read_text(&held, PART_SIZE)?.and_then(uniform))
    }

    /// Returns the record of the upload, whether the upload is open or closed; `None` if there is no such upload.
    pub(crate) fn record_of_upload(&self) -> Result<Option<UploadRecord>> {
        // Between two lookups, a failed completion may reopen the upload, and the next completion may close it again.
        for name in [UPLOAD, CLOSED].into_iter().cycle().take(9) {
            if let Some((record, started_ns)) = self.record(name)? {
                return Ok(Some(UploadRecord { record, started_ns, accepts_parts: name == UPLOAD }));
            }
        }
        Ok(None)
    }

    /// Returns the record in the file `name`, and the time at which the record was written.
    pub(crate) fn record(&self, name: &str) -> Result<Option<(ObjectRecord, i64)>> {
        let held = match self.held() {
            Ok(held) => held,
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
            Err(errno) => return Err(from_errno(errno, "opening the upload")),
        };
        // The name is looked up first, because another node may be about to create the record.
        if look_before_opening(&held, name, self.volume.sharing_at(self.path)) == Err(Errno::NOENT) {
            return Ok(None);
        }
        read_bytes(&held, name)?.map(|(bytes, time)| Ok((decode_record(&bytes)?, time))).transpose()
    }
}

/// Seals a part whose bytes are in an upload's `data`. Adds an ETag to the part's record if the record has no ETag.
/// Writes the bytes to stable storage if the durability requires it or if other nodes may change the file system.
pub(crate) fn seal_part(
    volume: &StoreDirectoryTree,
    data: &File,
    record: &mut ObjectRecord,
) -> Result<PutResult> {
    let state = || stat(data).map_err(|errno| from_errno(errno, "reading the metadata of the upload"));
    let mut stat = state()?;
    let is_shared = volume.sharing_on(data, stat.device).is_shared();
    if volume.config.durability != Durability::None || is_shared {
        sync_data(data).map_err(|errno| from_errno(errno, "writing to stable storage"))?;
    }
    if is_shared {
        // The upload may be completed on another node, so this node's client must not change the file's modification
        // time later.
        settle_time(data);
        stat = state()?;
    }
    record.etag.get_or_insert_with(|| unique_etag(&stat));
    Ok(made_of(record, &stat))
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant, UNIX_EPOCH};

    use fordway_store::{ETag, MAX_PARTS};

    use super::*;

    fn arrived(number: u16, file: Option<&str>) -> ArrivedPart {
        let etag = ETag::new("part");
        let info = PartInfo { number, size: 1, etag, modified: UNIX_EPOCH, checksum: None };
        ArrivedPart { info, file: file.map(str::to_owned) }
    }

    #[test]
    fn claims_are_settled_by_parts_in_the_common_file() {
        let names = |all: &[&str]| all.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let parts = [arrived(2, None), arrived(5, Some("00005-x")), arrived(7, None)];
        assert!(all_claims_are_settled(&names(&["data", "00002.claim", "00007.claim", "00005"]), &parts));
        for open in ["00001.claim", "00005.claim", "00008.claim", "2.claim", "x.claim"] {
            assert!(!all_claims_are_settled(&names(&["00002.claim", open]), &parts), "{open}");
        }
    }

    /// While a completion checks the claims, it holds the lock of the upload.
    #[test]
    fn claims_of_many_parts_are_checked_quickly() {
        let parts: Vec<_> = (1..=MAX_PARTS).map(|number| arrived(number, None)).collect();
        let names: Vec<_> = (1..=MAX_PARTS).map(|number| format!("{}.claim", part_name(number))).collect();
        let times = (0..5).map(|_| {
            let start = Instant::now();
            assert!(all_claims_are_settled(&names, &parts));
            start.elapsed()
        });
        assert!(times.min().unwrap() < Duration::from_secs(1));
    }
}
