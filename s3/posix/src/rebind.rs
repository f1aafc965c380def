//! Binds sidecar files to their objects again after a root was copied. The name of a sidecar file contains the inode
//! number that the object's file had in the original root.
//!
//! A copy can be repeated into the same root. The root then contains an object's sidecar file under two names: the name
//! that the last migration gave it, and the name in the original root. The sidecar file that was written last is the
//! right one, because a change of tags or of a lock changes nothing else by which the two could be told apart. A
//! migration therefore sets the modification time of a sidecar file that it writes to the time of the sidecar file that
//! it read.

use std::collections::HashSet;
use std::fs::File;
use std::sync::Arc;

use foldhash::HashMap;
use fordway_store::{Bucket, ErrorKind, ObjectLock, Result, Retention, RetentionMode};
use fordway_sys::{
    EntryKind, Errno, FileStat, Mode, OFlags, is_same_user, name_to_text, open_in, remove_file, rename,
    set_modified, stat_in, sync_all,
};

use crate::PosixStoreState;
use crate::actors::ImpersonatedUserCache;
use crate::area::{TrustedOwner, names_of, read_small};
use crate::errors::from_errno;
use crate::layout::{join, meta_dir};
use crate::migrate::MigrationReport;
use crate::record::ObjectRecord;
use crate::scan::{BucketArea, each_entry, known_kind, open_child, path_of_child};
use crate::sidecar::{MAX_RECORD_BYTES, VersionIdentity, inode_of, short_record, sidecar_name};
use crate::stage::{hidden_name, sync_dir};

/// A sidecar file.
struct FoundSidecar {
    /// The inode number in the file's name.
    inode: u64,
    /// The user who owns the sidecar file.
    owner: u32,
    modified_ns: i64,
    record: ObjectRecord,
}

/// Sidecar files, by the object version to which their records belong.
type FoundSidecars = HashMap<VersionIdentity, Vec<FoundSidecar>>;

/// An object's file whose record is in a sidecar file.
struct ApartFile {
    /// The path, relative to the root.
    path: String,
    stat: FileStat,
    /// The part of the record that is in the file's attribute.
    short: ObjectRecord,
}

/// Writes each record that is in a sidecar file to a new sidecar file, which is named after the current inode number of
/// the object's file. A sidecar file that is replaced keeps another name until all records are written, so that an
/// interrupted run can be repeated. The caller acts as the bucket's owner.
pub(crate) fn rebind_sidecars(
    inner: &Arc<PosixStoreState>,
    actors: &ImpersonatedUserCache,
    bucket: &Bucket,
    report: &mut MigrationReport<'_>,
) -> Result<()> {
    let Ok(meta) = inner.volume.open_to_scan(&meta_dir(bucket)) else { return Ok(()) };
    let sidecars = found_in(actors, &meta)?;
    if sidecars.is_empty() {
        return Ok(());
    }
    let failed_before = report.failed;
    let mut files = Vec::new();
    for area in BucketArea::all(bucket) {
        if let Ok(dir) = inner.volume.open_to_scan(&area.top) {
            ApartFileSearch { actors, area: &area }.directory((&dir, &area.top), &mut files, report)?;
        }
    }
    let guard = inner.volume.guard_now(bucket)?;
    let used = used_by_own(&files, &sidecars);
    let mut rebinding =
        SidecarRebinder { inner, actors, bucket, guard, sidecars, used, meta, displaced: Vec::new() };
    for file in &files {
        match rebinding.rebind(file) {
            Ok(Some(done)) => report.done(file.path.clone(), done)?,
            Ok(None) => {}
            Err(error) => report.failed(&file.path, error)?,
        }
    }
    // After a failure, a displaced sidecar file may contain the only record of an object that has not been bound.
    if report.failed == failed_before {
        rebinding.remove_displaced();
    }
    Ok(())
}

/// Reads all sidecar files in `meta`. A sidecar file that cannot be read or decoded is skipped; `fsck` reports the
/// object whose record is missing.
fn found_in(actors: &ImpersonatedUserCache, meta: &File) -> Result<FoundSidecars> {
    let mut found = FoundSidecars::default();
    let names = names_of(meta).map_err(|errno| from_errno(errno, "reading .fordway/meta"))?;
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
    for (name, inode) in names.iter().filter_map(|name| Some((name, inode_of(name)?))) {
        let read = || read_small(open_in(meta, name, flags, Mode::empty())?, MAX_RECORD_BYTES);
        let Ok(Some((bytes, stat))) = actors.or_as_owner(meta, name, read) else { continue };
        let Some(record) = ObjectRecord::decode(&bytes) else { continue };
        let Some(identity) = record.identity() else { continue };
        let (owner, modified_ns) = (stat.user, stat.modified_ns);
        found.entry(identity).or_default().push(FoundSidecar { inode, owner, modified_ns, record });
    }
    Ok(found)
}

/// Finds the files of one area whose records are in sidecar files.
struct ApartFileSearch<'s> {
    actors: &'s ImpersonatedUserCache,
    area: &'s BucketArea<'s>,
}

impl ApartFileSearch<'_> {
    fn directory(
        &self,
        (dir, path): (&File, &str),
        files: &mut Vec<ApartFile>,
        report: &mut MigrationReport<'_>,
    ) -> Result<()> {
        let read = each_entry(dir, |name, kind| {
            let text = name_to_text(name);
            if self.area.is_private(name) {
                return Ok(());
            }
            match known_kind(dir, &text, kind) {
                EntryKind::Dir => self.child((dir, path, &text), files, report),
                EntryKind::File => self.file((dir, path, &text), files, report),
                _ => Ok(()),
            }
        })?;
        read.or_else(|errno| report.failed(path, from_errno(errno, "reading the directory")))
    }

    fn child(
        &self,
        (parent, path, name): (&File, &str, &str),
        files: &mut Vec<ApartFile>,
        report: &mut MigrationReport<'_>,
    ) -> Result<()> {
        let Some(below) = path_of_child(self.area.bucket, path, name) else { return Ok(()) };
        let denied = match open_child(parent, name) {
            Ok(child) => return self.directory((&child, &below), files, report),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(()),
            Err(errno) => errno,
        };
        match self.actors.open_as_owner(parent, name, denied) {
            Ok((child, owner)) => {
                self.actors.act_as(owner, || self.directory((&child, &below), files, report))
            }
            Err(errno) => report.failed(&below, from_errno(errno, "opening the directory")),
        }
    }

    fn file(
        &self,
        (dir, path, name): (&File, &str, &str),
        files: &mut Vec<ApartFile>,
        report: &mut MigrationReport<'_>,
    ) -> Result<()> {
        let found = short_record(self.actors, dir, name)
            .and_then(|short| short.map(|short| Ok((short, stat_in(dir, name)?))).transpose());
        match found {
            Ok(Some((short, stat))) if stat.is_file => {
                files.push(ApartFile { path: join(path, name), stat, short });
                Ok(())
            }
            Ok(_) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => report.failed(&join(path, name), from_errno(errno, "reading the metadata")),
        }
    }
}

/// Returns the inode numbers of the files whose own sidecar files, according to the names, belong to them.
fn used_by_own(files: &[ApartFile], sidecars: &FoundSidecars) -> HashSet<u64> {
    let is_own = |file: &&ApartFile| {
        let found = file.short.identity().and_then(|identity| sidecars.get(&identity));
        found.is_some_and(|found| found.iter().any(|sidecar| sidecar.inode == file.stat.inode))
    };
    files.iter().filter(is_own).map(|file| file.stat.inode).collect()
}

/// Binds the sidecar files of one bucket to their objects again.
struct SidecarRebinder<'r> {
    inner: &'r Arc<PosixStoreState>,
    actors: &'r ImpersonatedUserCache,
    bucket: &'r Bucket,
    guard: Option<TrustedOwner>,
    sidecars: FoundSidecars,
    /// The inode numbers of the files that have a sidecar file of their own.
    used: HashSet<u64>,
    /// The directory of the sidecar files.
    meta: File,
    /// Further names of sidecar files that were replaced.
    displaced: Vec<String>,
}

impl SidecarRebinder<'_> {
    /// Writes the sidecar file of `file` if the sidecar file is missing, belongs to another object, or is older than
    /// another sidecar file of the same object. Returns a description of the change, or `None` if nothing was changed.
    fn rebind(&mut self, file: &ApartFile) -> Result<Option<&'static str>> {
        let Some(identity) = file.short.identity() else { return Ok(None) };
        // An error in reading the sidecar file is ignored: `fsck` reports damaged sidecar files.
        let own = self.inner.volume.read_sidecar(self.bucket, &file.stat, Some(&file.short)).ok().flatten();
        // The sidecar file was written for the file's changed content, and is newer than the attribute.
        if own.as_ref().is_some_and(|own| own.identity().as_ref() != Some(&identity)) {
            return Ok(None);
        }
        let Some(best) = self.best_for(file, &identity, own.is_some()) else { return Ok(None) };
        let lock = strictest(best.record.lock, file.short.lock);
        let (record, modified_ns) = (ObjectRecord { lock, ..best.record.clone() }, best.modified_ns);
        let is_bound = best.inode == file.stat.inode && own.is_some();
        if is_bound || own.as_ref() == Some(&record) {
            return Ok(None);
        }
        Ok(self.replace(file, &record, modified_ns)?.then_some("bound to its metadata again"))
    }

    /// Returns the sidecar file with the record of `file`: of the sidecar files whose owners are trusted, the one that
    /// was written last. A sidecar file that belongs to another file, to which a program has copied the content and the
    /// attributes of this file, is used only if there is no other.
    fn best_for(&self, file: &ApartFile, identity: &VersionIdentity, has_own: bool) -> Option<&FoundSidecar> {
        let is_believed = |found: &&FoundSidecar| {
            self.guard
                .is_none_or(|guard| is_same_user(found.owner, file.stat.user) || guard.trusts(found.owner))
        };
        let is_own = |found: &FoundSidecar| found.inode == file.stat.inode;
        let is_free = |found: &FoundSidecar| is_own(found) || !self.used.contains(&found.inode);
        let found = self.sidecars.get(identity)?.iter().filter(is_believed);
        found
            .filter(|found| !has_own || is_free(found))
            .max_by_key(|found| (is_free(found), found.modified_ns, is_own(found)))
    }

    /// Writes `record` to the sidecar file of `file`. Returns `false` if the file cannot have a sidecar file.
    fn replace(&mut self, file: &ApartFile, record: &ObjectRecord, modified_ns: i64) -> Result<bool> {
        let name = sidecar_name(file.stat.inode);
        let displaced = self.displace(&name)?;
        let write = || self.write(file, record, modified_ns);
        // In a bucket with the sticky bit, the owner of the object could not replace another user's sidecar file later.
        let written = match self.guard {
            Some(_) => self.actors.act_as(file.stat.user, write).or_else(|_| write()),
            None => write(),
        };
        if let (Err(_), Some(other)) = (&written, &displaced) {
            let _ = rename(&self.meta, other, &self.meta, &name);
        }
        match written {
            // The file is on a mount within the bucket.
            Err(error) if error.kind() == ErrorKind::NotImplemented => return Ok(false),
            written => written?,
        }
        self.displaced.extend(displaced);
        Ok(true)
    }

    fn write(&self, file: &ApartFile, record: &ObjectRecord, modified_ns: i64) -> Result<()> {
        self.inner.write_sidecar(self.bucket, &file.stat, record)?;
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        open_in(&self.meta, &sidecar_name(file.stat.inode), flags, Mode::empty())
            .and_then(|file| {
                set_modified(&file, modified_ns)?;
                // The displaced sidecar file with the same record is removed later.
                sync_all(&file)
            })
            .map_err(|errno| from_errno(errno, "setting the time of the metadata"))
    }

    /// Gives another name to the sidecar file `name`, which is about to be replaced. The file may contain the record of
    /// an object that has not been bound again yet. The other name is also valid for a sidecar file, so a repeated run
    /// reads the record again. Creating a second link instead would require write permission for the file, which may
    /// belong to another user.
    fn displace(&self, name: &str) -> Result<Option<String>> {
        let other = hidden_name()?;
        match rename(&self.meta, name, &self.meta, &other) {
            Ok(()) => Ok(Some(other)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(from_errno(errno, "keeping the metadata of another object")),
        }
    }

    /// Removes the further names, after the names of the new sidecar files are on stable storage. Names that cannot be
    /// removed are left to `gc`.
    fn remove_displaced(self) {
        if !self.displaced.is_empty() && sync_dir(&self.meta).is_err() {
            return;
        }
        for name in &self.displaced {
            let _ = remove_file(&self.meta, name);
        }
    }
}

/// Returns a lock that protects the object for as long as either of the two locks does.
fn strictest(one: ObjectLock, other: ObjectLock) -> ObjectLock {
    let strict = |retention: &Retention| retention.mode == RetentionMode::Compliance;
    let retention = match (one.retention, other.retention) {
        (Some(one), Some(other)) => Some(Retention {
            mode: if strict(&other) { other.mode } else { one.mode },
            until_ms: one.until_ms.max(other.until_ms),
        }),
        (one, other) => one.or(other),
    };
    let is_held = one.legal_hold == Some(true) || other.legal_hold == Some(true);
    let legal_hold = if is_held { Some(true) } else { one.legal_hold.or(other.legal_hold) };
    ObjectLock { retention, legal_hold }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_strictest_lock_has_the_later_end_and_keeps_a_hold() {
        let retention = |mode, until_ms| Some(Retention { mode, until_ms });
        let one = ObjectLock { retention: retention(RetentionMode::Governance, 9), legal_hold: Some(false) };
        let other = ObjectLock { retention: retention(RetentionMode::Compliance, 5), legal_hold: Some(true) };
        let both = ObjectLock { retention: retention(RetentionMode::Compliance, 9), legal_hold: Some(true) };
        assert_eq!(strictest(one, other), both);
        assert_eq!(strictest(other, one), both);
        assert_eq!(strictest(one, ObjectLock::NONE), one);
        assert_eq!(strictest(ObjectLock::NONE, other), other);
    }
}
