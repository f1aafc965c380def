//! Removes the sticky bit from files that have a record. The bit marks a file without a record, so it hides the record
//! from readers. Fordway does not set the bit on such files, but `chmod -R 1777` does.

use std::cell::Cell;
use std::fs::File;

use fordway_store::{Bucket, Result};
use fordway_sys::{EntryKind, Errno, FileStat, Mode, OFlags, name_to_text, open_in, set_mode, stat, stat_in};

use crate::PosixStoreState;
use crate::actors::ImpersonatedUserCache;
use crate::errors::from_errno;
use crate::layout::join;
use crate::migrate::MigrationReport;
use crate::scan::{BucketArea, each_entry, known_kind, open_child, path_of_child};
use crate::sidecar::{RecordAttribute, read_attribute};
use crate::stage::{STICKY, is_bare};

/// Removes the sticky bit from all objects and versions of the bucket that have a record. The bit of a file that
/// belongs to another user is removed with the rights of this user. A file that cannot be opened, or whose mode cannot
/// be changed, is left to `fsck`, which reports the file.
pub(crate) fn unhide_records(
    inner: &PosixStoreState,
    actors: &ImpersonatedUserCache,
    bucket: &Bucket,
    report: &mut MigrationReport<'_>,
) -> Result<()> {
    for area in BucketArea::all(bucket) {
        if let Ok(dir) = inner.volume.open_to_scan(&area.top) {
            RecordUnhider { inner, actors, area: &area }.directory((&dir, &area.top), report)?;
        }
    }
    Ok(())
}

struct RecordUnhider<'u> {
    inner: &'u PosixStoreState,
    actors: &'u ImpersonatedUserCache,
    area: &'u BucketArea<'u>,
}

impl RecordUnhider<'_> {
    fn directory(&self, (dir, path): (&File, &str), report: &mut MigrationReport<'_>) -> Result<()> {
        let read = each_entry(dir, |name, kind| {
            if self.area.is_private(name) {
                return Ok(());
            }
            let text = name_to_text(name);
            match known_kind(dir, &text, kind) {
                EntryKind::Dir => self.child((dir, path, &text), report),
                EntryKind::File if self.file(dir, &text)? => {
                    report.done(join(path, &text), "sticky bit removed, which hid its metadata")
                }
                _ => Ok(()),
            }
        })?;
        read.or_else(|errno| report.failed(path, from_errno(errno, "reading the directory")))
    }

    /// Examines the directory `name`. A directory that cannot be opened is left to the search for sidecar files, and to
    /// `fsck`, which report it.
    fn child(
        &self,
        (parent, path, name): (&File, &str, &str),
        report: &mut MigrationReport<'_>,
    ) -> Result<()> {
        let Some(below) = path_of_child(self.area.bucket, path, name) else { return Ok(()) };
        let denied = match open_child(parent, name) {
            Ok(child) => return self.directory((&child, &below), report),
            Err(errno) => errno,
        };
        match self.actors.open_as_owner(parent, name, denied) {
            Ok((child, owner)) => self.actors.act_as(owner, || self.directory((&child, &below), report)),
            Err(_) => Ok(()),
        }
    }

    /// Removes the bit from the file `name`, if the bit hides a record. Returns whether the bit was removed.
    fn file(&self, dir: &File, name: &str) -> Result<bool> {
        let found = stat_in(dir, name);
        let Some(found) = found.ok().filter(is_bare) else { return Ok(false) };
        let is_done = Cell::new(false);
        let done = self.actors.or_as(Some(found.user), || {
            is_done
                .set(self.try_file(dir, name).map_err(|errno| from_errno(errno, "removing the sticky bit"))?);
            Ok(())
        });
        Ok(done.is_ok() && is_done.get())
    }

    fn try_file(&self, dir: &File, name: &str) -> Result<bool, Errno> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = File::from(open_in(dir, name, flags, Mode::empty())?);
        let state = stat(&file)?;
        if !is_bare(&state) || !self.has_record(&file, &state) {
            return Ok(false);
        }
        set_mode(&file, state.mode & !STICKY).map(|()| true)
    }

    /// Returns whether the file has a record. A record that cannot be decoded also counts, so that `fsck` can report
    /// it.
    fn has_record(&self, file: &File, state: &FileStat) -> bool {
        match read_attribute(file) {
            Ok(RecordAttribute::Absent) => false,
            Ok(RecordAttribute::Found(_)) => true,
            Ok(RecordAttribute::Unsupported) => {
                let record = self.inner.volume.stored_record(self.area.bucket, (file, state), None);
                record.is_ok_and(|record| !record.is_empty())
            }
            Err(_) => true,
        }
    }
}
