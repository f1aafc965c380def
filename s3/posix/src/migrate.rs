//! Migrates a root to this program's format version, and repairs the damage done by copying a root or by changing the
//! modes of its files. The content and metadata of objects are not changed, and nothing is removed.
//!
//! A copy loses the owners and modes in the private areas of buckets. A copy also invalidates the names of sidecar
//! files (see [`crate::rebind`]). A failure in one bucket, directory or file is reported, and the migration continues:
//! one user's file must not stop the repair of the other buckets.

use std::fs::File;
use std::os::fd::OwnedFd;

use fordway_store::{Bucket, Error, Result};
use fordway_sys::{
    Errno, FileStat, Mode, OFlags, file_user, open_in, set_group, set_mode, set_owner, stat, stat_in,
};

use crate::actors::{ImpersonatedUserCache, bucket_owner};
use crate::area::{TrustedOwner, mode_of_dir, mode_of_file, names_of, not_ours};
use crate::errors::from_errno;
use crate::layout::{
    EVENTS, LOCKS, MARKERS, META, ODD, TMP, UPLOADS, VERSIONS, is_hidden_name, is_private_dir_name,
    is_private_name, is_upload_dir, join, private_dir, tmp_dir, upload_of, uploads_dir, versions_dir,
    webhook_of_event,
};
use crate::rebind::rebind_sidecars;
use crate::scan::ChosenBuckets;
use crate::sidecar::inode_of;
use crate::store::LANE;
use crate::unhide::unhide_records;
use crate::volume::StoreDirectoryTree;
use crate::{PosixStore, format};

/// A change that the migration made to one file or directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MigrationStep {
    /// The path, relative to the root.
    pub path: String,
    /// The change that was made.
    pub done: &'static str,
}

/// An event during a migration. The receiver can stop the migration by returning an error.
#[derive(Debug)]
pub enum MigrationEvent {
    /// A file or directory was changed.
    Done(MigrationStep),
    /// A file, directory or bucket could not be examined or changed; the migration continues.
    Failed(Error),
}

/// Passes events to the receiver.
pub(crate) struct MigrationReport<'t> {
    tell: &'t mut dyn FnMut(MigrationEvent) -> Result<()>,
    /// Whether the receiver has stopped the migration.
    is_ended: bool,
    /// The number of failures.
    pub(crate) failed: u64,
}

impl MigrationReport<'_> {
    fn say(&mut self, event: MigrationEvent) -> Result<()> {
        let said = (self.tell)(event);
        self.is_ended |= said.is_err();
        said
    }

    pub(crate) fn done(&mut self, path: String, done: &'static str) -> Result<()> {
        self.say(MigrationEvent::Done(MigrationStep { path, done }))
    }

    pub(crate) fn failed(&mut self, path: &str, error: Error) -> Result<()> {
        self.failed += 1;
        let (bucket, below) = path.split_once('/').unwrap_or((path, ""));
        self.say(MigrationEvent::Failed(error.during("migrate", LANE, bucket, below)))
    }

    /// Reports an error and continues, unless the receiver has stopped the migration.
    fn survive(&mut self, path: &str, done: Result<()>) -> Result<()> {
        match done {
            Err(error) if !self.is_ended => self.failed(path, error),
            done => done,
        }
    }
}

impl PosixStore {
    /// Sets the owner, group and mode that this version uses on the files and directories in each bucket's private
    /// area. Also removes the sticky bit where it hides an object's record, binds sidecar files to their objects again,
    /// and records the root's format version. Must be run by the root user, or by the owner of the root directory and
    /// the buckets. No other program may work in the root directory at the same time, because programs that are already
    /// running may still create files with other owners and modes. Memory: the records in all sidecar files of one
    /// bucket at a time, and the paths of the files to which they belong. Errors: `NoSuchBucket`, errors of reading the
    /// root directory or writing its format version, and errors that `tell` returns.
    pub fn migrate(
        &self,
        buckets: &[Bucket],
        tell: &mut dyn FnMut(MigrationEvent) -> Result<()>,
    ) -> Result<()> {
        let actors = ImpersonatedUserCache::new(&self.inner);
        let mut report = MigrationReport { tell, is_ended: false, failed: 0 };
        let chosen = ChosenBuckets::of(self, buckets)?;
        for (bucket, error) in chosen.unreadable {
            report.failed(bucket.as_str(), error)?;
        }
        for bucket in &chosen.buckets {
            let done = self.migrate_bucket(&actors, bucket, &mut report);
            report.survive(bucket.as_str(), done)?;
        }
        if buckets.is_empty() && self.inner.volume.root.format(self.path())? < format::VERSION {
            self.inner.volume.root.write_format()?;
            report.done(format!("{}/format", crate::PRIVATE_DIR), "written")?;
        }
        Ok(())
    }

    fn migrate_bucket(
        &self,
        actors: &ImpersonatedUserCache,
        bucket: &Bucket,
        report: &mut MigrationReport<'_>,
    ) -> Result<()> {
        let volume = &self.inner.volume;
        // The owner may have removed the bucket in the meantime. Nothing may be changed through a link into a bucket.
        let Some(owner) = bucket_owner(&self.inner, bucket)? else { return Ok(()) };
        if volume.root.leads_into_bucket(bucket) {
            return Ok(());
        }
        let done = migrate_owners(volume, bucket, report);
        report.survive(bucket.as_str(), done)?;
        actors.act_as(owner, || {
            unhide_records(&self.inner, actors, bucket, report)?;
            rebind_sidecars(&self.inner, actors, bucket, report)
        })
    }
}

/// The maximum directory depth of the walk, which is more than an encoded key of maximum length needs.
const MAX_DEPTH: usize = 64;

/// Makes the bucket's owner the owner of each directory that Fordway created in the bucket's private area, and sets the
/// mode that all writers need. Links are not followed, and names that Fordway does not write are not changed.
fn migrate_owners(
    volume: &StoreDirectoryTree,
    bucket: &Bucket,
    report: &mut MigrationReport<'_>,
) -> Result<()> {
    let of =
        volume.open_dir(bucket.as_str()).and_then(stat).map_err(|e| from_errno(e, "opening the bucket"))?;
    let path = private_dir(bucket);
    match volume.open_to_scan(&path) {
        Ok(dir) => {
            migrate_dir(&of, (&dir, &path), 0, report)?;
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
            report.done(path, "made for all writers of the bucket")
        }
        // `fsck` reports a private area that is not a directory.
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(()),
        Err(errno) => Err(from_errno(errno, "opening .fordway")),
    }
}

/// Creates the directories that most writes need. If another user created one of them, that user could deny access to
/// it. The directories `odd` and `meta` are not created, because each write costs more if they exist.
fn make_common_dirs(volume: &StoreDirectoryTree, bucket: &Bucket) -> Result<()> {
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
    report: &mut MigrationReport<'_>,
) -> Result<()> {
    let names = names_of(dir).map_err(|errno| from_errno(errno, "reading the private area"))?;
    let to_owner = !is_upload_dir(path);
    if to_owner && let Some(name) = foreign_name(of, (dir, path), &names)? {
        let why = format!("does not belong to the bucket's owner and contains {name:?}");
        return report.failed(path, not_ours(path, &why));
    }
    if hand_over(of, dir, mode_of_dir(of, path), to_owner)? {
        report.done(path.to_owned(), "given to the bucket's owner, with its mode")?;
    }
    if depth >= MAX_DEPTH {
        return Ok(());
    }
    for name in names {
        let below = join(path, &name);
        if depth == 0 && [LOCKS, MARKERS].contains(&name.as_str()) {
            migrate_file(of, dir, (&below, &name), report)?;
        }
        let is_walked = match depth {
            0 => is_private_name(&name) && is_private_dir_name(&name),
            _ => is_below(path, &[ODD, VERSIONS]) || is_upload_dir(&below),
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        if is_walked && let Ok(child) = open_in(dir, &name, flags, Mode::empty()) {
            let done = migrate_dir(of, (&File::from(child), &below), depth + 1, report);
            report.survive(&below, done)?;
        }
    }
    Ok(())
}

fn migrate_file(
    of: &FileStat,
    dir: &File,
    (path, name): (&str, &str),
    report: &mut MigrationReport<'_>,
) -> Result<()> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
    let Ok(file) = open_in(dir, name, flags, Mode::empty()) else { return Ok(()) };
    let state = stat(&file).map_err(|errno| from_errno(errno, "examining the private area"))?;
    // Every file that Fordway creates in this directory has a single hard link and is empty, except that `markers` may
    // have one byte.
    let is_ours = state.is_file && state.links == 1 && state.size <= u64::from(name == MARKERS);
    if is_ours && hand_over(of, &file, state.mode & !0o666 | mode_of_file(of, name), true)? {
        report.done(path.to_owned(), "given to the bucket's owner, with its mode")?;
    }
    Ok(())
}

/// Returns a name in the directory at `path` that Fordway does not write there, if the directory and the bucket belong
/// to different users. Anyone who may write to a bucket can rename another user's private directory to the name of the
/// private area. Such a directory must not be given to the bucket's owner, who could then read the files in it.
fn foreign_name(of: &FileStat, (dir, path): (&File, &str), names: &[String]) -> Result<Option<String>> {
    let now = stat(dir).map_err(|errno| from_errno(errno, "examining the private area"))?;
    if now.user == of.user {
        return Ok(None);
    }
    let is_ours = |name: &str| match path.split('/').nth(2) {
        None => is_private_name(name),
        Some(TMP) => is_hidden_name(name),
        Some(META) => inode_of(name).is_some(),
        Some(UPLOADS) => upload_of(name).is_some(),
        Some(EVENTS) => is_hidden_name(name) || webhook_of_event(name).is_some(),
        // A key can have any name.
        _ => true,
    };
    Ok(names.iter().find(|name| !is_ours(name)).cloned())
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
