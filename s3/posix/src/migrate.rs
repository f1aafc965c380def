//! Migrates a root to this program's format version, and repairs the damage done by copying a root or by changing the
//! modes of its files. The content and metadata of objects are not changed, and nothing is removed.
//!
//! A copy loses the owners and modes in the private areas of buckets. A copy also invalidates the names of sidecar
//! files, which contain the inode numbers that the objects' files had in the original root.

use std::cell::RefCell;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use foldhash::HashMap;
use fordway_store::{Bucket, ErrorKind, Result};
use fordway_sys::{
    EntryKind, Errno, FileStat, Mode, OFlags, file_user, link, name_to_text, open_in, remove_file, set_group,
    set_mode, set_owner, stat, stat_in,
};

use crate::actors::ImpersonatedUserCache;
use crate::area::{TrustedOwner, mode_of_dir, mode_of_file, names_of, read_small};
use crate::errors::from_errno;
use crate::layout::{
    LOCKS, MARKERS, ODD, VERSIONS, is_private_dir_name, is_private_name, is_upload_dir, join, meta_dir,
    private_dir, tmp_dir, uploads_dir, versions_dir,
};
use crate::record::ObjectRecord;
use crate::scan::{BucketArea, chosen_buckets, each_entry, known_kind, open_child, path_of_child};
use crate::sidecar::{
    MAX_RECORD_BYTES, RecordAttribute, VersionIdentity, inode_of, read_attribute, sidecar_name,
};
use crate::stage::hidden_name;
use crate::unhide::unhide_records;
use crate::volume::StoreRootDirectory;
use crate::{PosixStore, PosixStoreState, format};

/// A change that the migration made to one file or directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MigrationStep {
    /// The path, relative to the root.
    pub path: String,
    /// The change that was made.
    pub done: &'static str,
}

impl PosixStore {
    /// Sets the owner, group and mode that this version uses on the files and directories in each bucket's private
    /// area. Also removes the sticky bit where it hides an object's record, binds sidecar files to their objects again,
    /// and records the root's format version. Must be run by the root user, or by the owner of the root directory and
    /// the buckets. No other program may work in the root directory at the same time, because programs that are already
    /// running may still create files with other owners and modes. Memory: the records in all sidecar files of one
    /// bucket at a time. Errors: `NoSuchBucket`, file-system errors, and errors that `tell` returns.
    pub fn migrate(
        &self,
        buckets: &[Bucket],
        tell: &mut dyn FnMut(MigrationStep) -> Result<()>,
    ) -> Result<()> {
        let actors = ImpersonatedUserCache::new(&self.inner);
        for bucket in chosen_buckets(self, buckets)? {
            migrate_owners(&self.inner.volume, &bucket, tell)?;
            actors.in_bucket(&bucket, || {
                unhide_records(&self.inner, &actors, &bucket, tell)?;
                rebind_sidecars(&self.inner, &bucket, tell)
            })?;
        }
        if buckets.is_empty() && self.inner.volume.root.format(self.path())? < format::VERSION {
            self.inner.volume.root.write_format()?;
            let path = format!("{}/format", crate::PRIVATE_DIR);
            tell(MigrationStep { path, done: "written" })?;
        }
        Ok(())
    }
}

/// The maximum directory depth of the walk, which is more than an encoded key of maximum length needs.
const MAX_DEPTH: usize = 64;

/// Makes the bucket's owner the owner of each directory that Fordway created in the bucket's private area, and sets the
/// mode that all writers need. Links are not followed, and names that Fordway does not write are not changed.
fn migrate_owners(
    volume: &StoreRootDirectory,
    bucket: &Bucket,
    tell: &mut dyn FnMut(MigrationStep) -> Result<()>,
) -> Result<()> {
    let of =
        volume.open_dir(bucket.as_str()).and_then(stat).map_err(|e| from_errno(e, "opening the bucket"))?;
    let path = private_dir(bucket);
    match volume.open_to_scan(&path) {
        Ok(dir) => {
            migrate_dir(&of, (&dir, &path), 0, tell)?;
            // The lock table is missing if an earlier migration was interrupted after it had created the directory.
            // This migration then creates the table.
            if TrustedOwner::of(&of).is_some() {
                if stat_in(&dir, LOCKS) == Err(Errno::NOENT) {
                    volume.open_shared_file(bucket, LOCKS)?;
                }
                make_common_dirs(volume, bucket)?;
            }
            Ok(())
        }
        // In a bucket with the sticky bit, the migration creates the missing directory. If the first writer created the
        // directory, that writer could deny access to the other writers.
        Err(Errno::NOENT) if TrustedOwner::of(&of).is_some() => {
            volume.parent_of(bucket, &path)?;
            volume.open_shared_file(bucket, LOCKS)?;
            make_common_dirs(volume, bucket)?;
            tell(MigrationStep { path, done: "made for all writers of the bucket" })
        }
        // `fsck` reports a private area that is not a directory.
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(()),
        Err(errno) => Err(from_errno(errno, "opening .fordway")),
    }
}

/// Creates the directories that most writes need. If another user created one of them, that user could deny access to it.
/// The directories `odd` and `meta` are not created, because each write costs more if they exist.
fn make_common_dirs(volume: &StoreRootDirectory, bucket: &Bucket) -> Result<()> {
    for path in [tmp_dir(bucket), uploads_dir(bucket), versions_dir(bucket)] {
        // `fsck` reports a file in the place of a directory.
        match volume.make_dirs(bucket, &path) {
            Ok(_) | Err(Errno::ACCESS | Errno::PERM | Errno::NOTDIR | Errno::LOOP) => {}
            Err(errno) => return Err(from_errno(errno, "making a directory in .fordway")),
        }
    }
    Ok(())
}

fn migrate_dir(
    of: &FileStat,
    (dir, path): (&File, &str),
    depth: usize,
    tell: &mut dyn FnMut(MigrationStep) -> Result<()>,
) -> Result<()> {
    if hand_over(of, dir, mode_of_dir(of, path), !is_upload_dir(path))? {
        tell(MigrationStep { path: path.to_owned(), done: "given to the bucket's owner, with its mode" })?;
    }
    if depth >= MAX_DEPTH {
        return Ok(());
    }
    for name in names_of(dir).map_err(|errno| from_errno(errno, "reading the private area"))? {
        let below = join(path, &name);
        if depth == 0 && [LOCKS, MARKERS].contains(&name.as_str()) {
            migrate_file(of, dir, (&below, &name), tell)?;
        }
        let is_walked = match depth {
            0 => is_private_name(&name) && is_private_dir_name(&name),
            _ => is_below(path, &[ODD, VERSIONS]) || is_upload_dir(&below),
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        if is_walked && let Ok(child) = open_in(dir, &name, flags, Mode::empty()) {
            migrate_dir(of, (&File::from(child), &below), depth + 1, tell)?;
        }
    }
    Ok(())
}

fn migrate_file(
    of: &FileStat,
    dir: &File,
    (path, name): (&str, &str),
    tell: &mut dyn FnMut(MigrationStep) -> Result<()>,
) -> Result<()> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
    let Ok(file) = open_in(dir, name, flags, Mode::empty()) else { return Ok(()) };
    let state = stat(&file).map_err(|errno| from_errno(errno, "examining the private area"))?;
    // Every file that Fordway creates in this directory has a single hard link and is empty, except that `markers` may
    // have one byte.
    let is_ours = state.is_file && state.links == 1 && state.size <= u64::from(name == MARKERS);
    if is_ours && hand_over(of, &file, state.mode & !0o666 | mode_of_file(of, name), true)? {
        tell(MigrationStep { path: path.to_owned(), done: "given to the bucket's owner, with its mode" })?;
    }
    Ok(())
}

/// Returns whether `path` is in one of a private area's directories `names`.
fn is_below(path: &str, names: &[&str]) -> bool {
    path.split('/').nth(2).is_some_and(|name| names.contains(&name))
}

/// Sets the owner, group and mode of an open file or directory. Returns whether anything was changed. Attributes that
/// the process is not permitted to change remain unchanged.
fn hand_over(
    of: &FileStat,
    made: &(impl std::os::fd::AsFd + ?Sized),
    mode: u32,
    to_owner: bool,
) -> Result<bool> {
    let made: OwnedFd =
        made.as_fd().try_clone_to_owned().map_err(|_| from_errno(Errno::MFILE, "migrating"))?;
    let now = stat(&made).map_err(|errno| from_errno(errno, "examining the private area"))?;
    let owner = if to_owner { of.user } else { now.user };
    let wanted = now.mode & !0o1777 | mode & 0o1777;
    if (now.user, now.group, now.mode) == (owner, of.group, wanted) {
        return Ok(false);
    }
    let failed = |errno| from_errno(errno, "migrating the private area");
    let caller = file_user();
    // Only root and the owner may change the mode.
    if caller != 0 && caller != now.user {
        return Ok(false);
    }
    if now.group != of.group {
        let _ = set_group(&made, of.group);
    }
    if now.user != owner && caller == 0 {
        set_owner(&made, owner).map_err(failed)?;
    }
    set_mode(&made, wanted).map_err(failed)?;
    Ok(true)
}

/// Records from sidecar files, keyed by the object version to which each record belongs.
type SidecarRecords = HashMap<VersionIdentity, ObjectRecord>;

/// Writes each record that is in a sidecar file to a new sidecar file, which is named after the current inode number of
/// the object's file. A sidecar file that is replaced keeps another name until all records are written, so that an
/// interrupted run can be repeated.
fn rebind_sidecars(
    inner: &Arc<PosixStoreState>,
    bucket: &Bucket,
    tell: &mut dyn FnMut(MigrationStep) -> Result<()>,
) -> Result<()> {
    let records = records_apart(&inner.volume, bucket)?;
    if records.is_empty() {
        return Ok(());
    }
    let meta = inner.volume.open_to_scan(&meta_dir(bucket));
    let meta = meta.map_err(|errno| from_errno(errno, "opening .fordway/meta"))?;
    let rebinding = SidecarRebinder { inner, records, meta, displaced: RefCell::default() };
    for area in BucketArea::all(bucket) {
        if let Ok(dir) = inner.volume.open_to_scan(&area.top) {
            rebinding.rebind_in(&area, (&dir, &area.top), tell)?;
        }
    }
    // Names that cannot be removed are left to `gc`.
    let SidecarRebinder { meta, displaced, .. } = rebinding;
    for name in displaced.into_inner() {
        let _ = remove_file(&meta, &name);
    }
    Ok(())
}

/// Binds the sidecar files of one bucket to their objects again.
struct SidecarRebinder<'r> {
    inner: &'r Arc<PosixStoreState>,
    records: SidecarRecords,
    /// The directory of the sidecar files.
    meta: File,
    /// Further names of sidecar files that were replaced.
    displaced: RefCell<Vec<String>>,
}

fn records_apart(volume: &StoreRootDirectory, bucket: &Bucket) -> Result<SidecarRecords> {
    let mut records = SidecarRecords::default();
    let Ok(dir) = volume.open_to_scan(&meta_dir(bucket)) else { return Ok(records) };
    let names = names_of(&dir).map_err(|errno| from_errno(errno, "reading .fordway/meta"))?;
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
    for name in names.iter().filter(|name| inode_of(name).is_some()) {
        let file = open_in(&dir, name, flags, Mode::empty());
        let Ok(Some((bytes, _))) = file.and_then(|file| read_small(&file, MAX_RECORD_BYTES)) else {
            continue;
        };
        let record = ObjectRecord::decode(&bytes);
        records.extend(record.and_then(|record| Some((record.identity()?, record))));
    }
    Ok(records)
}

impl SidecarRebinder<'_> {
    fn rebind_in(
        &self,
        area: &BucketArea,
        (dir, path): (&File, &str),
        tell: &mut dyn FnMut(MigrationStep) -> Result<()>,
    ) -> Result<()> {
        let read = each_entry(dir, |name, kind| {
            let text = name_to_text(name);
            if area.is_private(name) {
                return Ok(());
            }
            match known_kind(dir, &text, kind) {
                EntryKind::Dir => {
                    let Some(below) = path_of_child(area.bucket, path, &text) else { return Ok(()) };
                    match open_child(dir, &text) {
                        Ok(child) => self.rebind_in(area, (&child, &below), tell),
                        Err(_) => Ok(()),
                    }
                }
                EntryKind::File => self
                    .rebind(area.bucket, (dir, &text))?
                    .map_or(Ok(()), |done| tell(MigrationStep { path: join(path, &text), done })),
                _ => Ok(()),
            }
        })?;
        read.map_err(|errno| from_errno(errno, "reading the bucket"))
    }

    /// Writes the sidecar file of the file `name` if the sidecar file is missing or belongs to another object. Returns
    /// a description of the change, or `None` if nothing was changed.
    fn rebind(&self, bucket: &Bucket, (dir, name): (&File, &str)) -> Result<Option<&'static str>> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let Ok(file) = open_in(dir, name, flags, Mode::empty()).map(File::from) else { return Ok(None) };
        let Ok(state) = stat(&file) else { return Ok(None) };
        let Some(short) = short_record(&file, &state) else { return Ok(None) };
        // An error in reading the sidecar file is ignored: `fsck` reports damaged sidecar files.
        let found = self.inner.volume.read_sidecar(bucket, &state, Some(&short));
        if found.is_ok_and(|found| found.is_some()) {
            return Ok(None);
        }
        match short.identity().and_then(|identity| self.records.get(&identity)) {
            Some(record) => {
                self.keep_displaced(&sidecar_name(state.inode))?;
                match self.inner.write_sidecar(bucket, &state, record) {
                    Ok(()) => Ok(Some("bound to its metadata again")),
                    // The file is on a mount within the bucket.
                    Err(error) if error.kind() == ErrorKind::NotImplemented => Ok(None),
                    Err(error) => Err(error),
                }
            }
            None => Ok(None),
        }
    }

    /// Links the sidecar file `name`, which is about to be replaced, to another name. The old file may contain the
    /// record of an object that has not been bound again yet. The other name is also valid for a sidecar file, so a
    /// repeated run reads the record again.
    fn keep_displaced(&self, name: &str) -> Result<()> {
        let other = hidden_name()?;
        match link(&self.meta, name, &self.meta, &other) {
            Ok(()) => self.displaced.borrow_mut().push(other),
            Err(Errno::NOENT) => {}
            Err(errno) => return Err(from_errno(errno, "keeping the metadata of another object")),
        }
        Ok(())
    }
}

/// Returns the record in the file's attribute if the rest of the record is in a sidecar file.
fn short_record(file: &File, state: &FileStat) -> Option<ObjectRecord> {
    match read_attribute(file) {
        Ok(RecordAttribute::Found(short)) if state.is_file && short.is_apart => Some(short),
        _ => None,
    }
}
