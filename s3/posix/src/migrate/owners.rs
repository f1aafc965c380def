//! Owners and modes in the private areas of buckets.

use std::fs::File;
use std::os::fd::OwnedFd;

use fordway_store::{Bucket, Result};
use fordway_sys::{Errno, FileStat, Mode, OFlags, file_user, open_in, set_group, set_mode, set_owner, stat};

use super::Migrated;
use crate::Inner;
use crate::area::{Guard, mode_of_dir, names_of};
use crate::errors::from_errno;
use crate::layout::{
    LOCKS, MARKERS, ODD, VERSIONS, is_private_dir_name, is_private_name, is_upload_dir, join, private_dir,
};

/// Levels of directories that a long key takes, and some more.
const MAX_DEPTH: usize = 64;

impl Inner {
    /// Gives each directory of ours in the bucket's private area to the bucket's owner, and the mode that all
    /// writers need. Links are not followed, and what has no name of ours is left alone.
    pub(super) fn migrate_owners(
        &self,
        bucket: &Bucket,
        tell: &mut dyn FnMut(Migrated) -> Result<()>,
    ) -> Result<()> {
        let of =
            self.open_dir(bucket.as_str()).and_then(stat).map_err(|e| from_errno(e, "opening the bucket"))?;
        let path = private_dir(bucket);
        match self.open_to_scan(&path) {
            Ok(dir) => self.migrate_dir(&of, (&dir, &path), 0, tell),
            // In a bucket for many, the first writer could keep the others out by it.
            Err(Errno::NOENT) if Guard::of(&of).is_some() => {
                self.parent_of(bucket, &path)?;
                self.open_shared_file(bucket, LOCKS)?;
                tell(Migrated { path, done: "made for all who write to the bucket" })
            }
            // What is no directory is told of by a check.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(()),
            Err(errno) => Err(from_errno(errno, "opening .fordway")),
        }
    }

    fn migrate_dir(
        &self,
        of: &FileStat,
        (dir, path): (&File, &str),
        depth: usize,
        tell: &mut dyn FnMut(Migrated) -> Result<()>,
    ) -> Result<()> {
        if hand_over(of, dir, mode_of_dir(of, path), !is_upload_dir(path))? {
            tell(Migrated { path: path.to_owned(), done: "given to the bucket's owner, with its mode" })?;
        }
        if depth >= MAX_DEPTH {
            return Ok(());
        }
        for name in names_of(dir).map_err(|errno| from_errno(errno, "reading the private area"))? {
            let below = join(path, &name);
            if depth == 0 && [LOCKS, MARKERS].contains(&name.as_str()) {
                self.migrate_file(of, dir, (&below, &name), tell)?;
            }
            let is_walked = match depth {
                0 => is_private_name(&name) && is_private_dir_name(&name),
                _ => is_below(path, &[ODD, VERSIONS]) || is_upload_dir(&below),
            };
            let flags = OFlags::RDONLY | OFlags::DIRECTORY;
            if is_walked && let Ok(child) = open_in(dir, &name, flags, Mode::empty()) {
                self.migrate_dir(of, (&File::from(child), &below), depth + 1, tell)?;
            }
        }
        Ok(())
    }

    fn migrate_file(
        &self,
        of: &FileStat,
        dir: &File,
        (path, name): (&str, &str),
        tell: &mut dyn FnMut(Migrated) -> Result<()>,
    ) -> Result<()> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let Ok(file) = open_in(dir, name, flags, Mode::empty()) else { return Ok(()) };
        let state = stat(&file).map_err(|errno| from_errno(errno, "looking at the private area"))?;
        // One with another name, or with content, is somebody's file.
        let is_ours = state.is_file && state.links == 1 && state.size == 0;
        if is_ours && hand_over(of, &file, state.mode & !0o666 | of.mode & 0o666, true)? {
            tell(Migrated { path: path.to_owned(), done: "given to the bucket's owner, with its mode" })?;
        }
        Ok(())
    }
}

/// Whether `path` lies in one of the directories `names` of a private area.
fn is_below(path: &str, names: &[&str]) -> bool {
    path.split('/').nth(2).is_some_and(|name| names.contains(&name))
}

/// Gives an open file or directory owner, group and mode; says whether that changed anything. What the
/// process may not change stays.
fn hand_over(
    of: &FileStat,
    made: &(impl std::os::fd::AsFd + ?Sized),
    mode: u32,
    to_owner: bool,
) -> Result<bool> {
    let made: OwnedFd =
        made.as_fd().try_clone_to_owned().map_err(|_| from_errno(Errno::MFILE, "migrating"))?;
    let now = stat(&made).map_err(|errno| from_errno(errno, "looking at the private area"))?;
    let owner = if to_owner { of.user } else { now.user };
    let wanted = now.mode & !0o1777 | mode & 0o1777;
    if (now.user, now.group, now.mode) == (owner, of.group, wanted) {
        return Ok(false);
    }
    let failed = |errno| from_errno(errno, "migrating the private area");
    let caller = file_user();
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
