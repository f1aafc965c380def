//! Removes sidecar files whose object is gone or has since been replaced.
//!
//! A sidecar file is named after the inode number of its object's file. Only a search through all files in the bucket
//! can therefore show that the object is gone. One search can miss a file that is renamed during the search. Therefore
//! a sidecar file is removed only if two searches have failed to find its object's file.
//!
//! If an object's own sidecar file is missing, no sidecar file of the bucket is removed, because the root may be a
//! copy. In a copy of a root, the objects' files have inode numbers that differ from those in the names of the sidecar
//! files. `fsck --migrate` corrects the names. A changed file to which no sidecar file of the bucket belongs does not
//! indicate a copy: its record is lost.

use std::collections::HashSet;
use std::fs::File;

use fordway_store::{Bucket, Result};
use fordway_sys::{
    EntryKind, Errno, FileStat, Mode, OFlags, forget_names, kind_in, link, name_to_text, open_in,
    remove_file, rename, stat, stat_in, stat_now,
};

use super::{GarbageFile, GarbageKind, GcRun, newest_ns, size_freed};
use crate::errors::from_errno;
use crate::layout::{join, meta_dir};
use crate::record::ObjectRecord;
use crate::scan::{each_entry, known_kind, open_child, path_of_child};
use crate::sidecar::{SidecarIdentities, inode_of, place_of, short_record, sidecar_name};
use crate::stage::hidden_name;
use crate::volume::StoreDirectoryTree;

/// The number of searches through the bucket that must fail to find the object's file before its sidecar file is
/// removed.
const LOOKS: usize = 2;

impl GcRun<'_> {
    pub(super) fn sidecars(&mut self, bucket: &Bucket) -> Result<()> {
        let path = meta_dir(bucket);
        self.identities = SidecarIdentities::default();
        let mut orphans = self.old_sidecars(bucket, &path)?;
        for _ in 0..LOOKS {
            if orphans.is_empty() || !self.strike_living(bucket, &mut orphans)? {
                return Ok(());
            }
        }
        let dir = match self.inner.volume.open_to_scan(&path) {
            Ok(dir) => dir,
            Err(errno) => return self.failed(bucket, errno, "opening", &path),
        };
        let mut orphans: Vec<u64> = orphans.into_iter().collect();
        orphans.sort_unstable();
        orphans.into_iter().try_for_each(|inode| self.sidecar(bucket, &dir, &path, inode))
    }

    /// Returns the inode numbers in the names of all sidecar files that are too old to belong to a write in progress.
    fn old_sidecars(&mut self, bucket: &Bucket, path: &str) -> Result<HashSet<u64>> {
        let mut inodes = HashSet::new();
        let limit = self.options.staged_age;
        self.each_below(bucket, path, |sweep, dir, name| {
            let is_old = || stat_in(dir, name).is_ok_and(|stat| !sweep.is_younger(newest_ns(&stat), limit));
            inodes.extend(inode_of(name).filter(|_| is_old()));
            Ok(())
        })?;
        Ok(inodes)
    }

    /// Removes from `orphans` the inode numbers of files that still own their sidecar files. Returns whether the scan
    /// has found all files of the bucket.
    fn strike_living(&mut self, bucket: &Bucket, orphans: &mut HashSet<u64>) -> Result<bool> {
        match self.inner.volume.open_to_scan(bucket.as_str()) {
            Ok(dir) => self.strike_in(bucket, &dir, bucket.as_str(), orphans),
            Err(errno) => self.failed(bucket, errno, "opening", bucket.as_str()).map(|()| false),
        }
    }

    fn strike_in(
        &mut self,
        bucket: &Bucket,
        dir: &File,
        path: &str,
        orphans: &mut HashSet<u64>,
    ) -> Result<bool> {
        let mut saw_all = true;
        if self.is_shared(bucket) {
            // Cached names are dropped, because another node may have changed the directory since the names were
            // cached.
            let _ = stat_now(dir);
            forget_names(dir);
        }
        let read = each_entry(dir, |name, kind| {
            self.looked_at_one()?;
            saw_all &= self.strike_entry(bucket, (dir, path, &name_to_text(name)), kind, orphans)?;
            Ok(())
        })?;
        match read {
            Ok(()) => Ok(saw_all),
            Err(errno) => self.failed(bucket, errno, "reading", path).map(|()| false),
        }
    }

    fn strike_entry(
        &mut self,
        bucket: &Bucket,
        (dir, path, name): (&File, &str, &str),
        kind: EntryKind,
        orphans: &mut HashSet<u64>,
    ) -> Result<bool> {
        let found = match known_kind(dir, name, kind) {
            EntryKind::Dir => return self.strike_child(bucket, (dir, path, name), orphans),
            EntryKind::File if self.is_shared(bucket) => {
                open_in(dir, name, OFlags::PATH | OFlags::NOFOLLOW, Mode::empty()).and_then(stat_now)
            }
            EntryKind::File => stat_in(dir, name),
            EntryKind::Link => {
                let found = followed(&self.inner.volume, &join(path, name));
                // The attribute, which may show that the sidecar file belongs to this file, cannot be read without
                // opening the file. The sidecar file is kept, regardless of whether a POSIX program has changed the
                // file.
                found.inspect(|stat| _ = orphans.remove(&stat.inode))
            }
            EntryKind::Unknown => kind_in(dir, name).and(Err(Errno::AGAIN)),
            EntryKind::Other => return Ok(true),
        };
        match found {
            // A symbolic link to a directory may lead to files of other buckets whose sidecar files are in this bucket.
            Ok(stat) if stat.is_dir => Ok(false),
            Ok(stat) => self.strike_file(bucket, (dir, path, name), &stat, orphans),
            // The name may have been cached as missing, or the object may now have another name.
            Err(Errno::NOENT | Errno::STALE) if self.is_shared(bucket) => Ok(false),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::XDEV | Errno::LOOP) => Ok(true),
            Err(errno) => self.failed(bucket, errno, "examining", &join(path, name)).map(|()| false),
        }
    }

    fn strike_child(
        &mut self,
        bucket: &Bucket,
        (parent, path, name): (&File, &str, &str),
        orphans: &mut HashSet<u64>,
    ) -> Result<bool> {
        let Some(path) = path_of_child(bucket, path, name) else { return Ok(true) };
        if path == meta_dir(bucket) {
            return Ok(true);
        }
        match open_child(parent, name) {
            Ok(dir) => self.strike_in(bucket, &dir, &path, orphans),
            Err(Errno::NOENT | Errno::STALE) if self.is_shared(bucket) => Ok(false),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(true),
            Err(errno) => self.failed(bucket, errno, "opening", &path).map(|()| false),
        }
    }

    /// Removes the inode number of a file that owns a sidecar file from `orphans`. Returns `false` if the file's record
    /// is in a sidecar file that is missing but may exist under another name, or if the file's attribute cannot be
    /// read. Cost: one `getxattrat`, and a read of the sidecar file if there is one.
    fn strike_file(
        &mut self,
        bucket: &Bucket,
        (dir, path, name): (&File, &str, &str),
        stat: &FileStat,
        orphans: &mut HashSet<u64>,
    ) -> Result<bool> {
        let inner = self.inner;
        let volume = &inner.volume;
        let may_be_orphan = orphans.contains(&stat.inode);
        // The sticky bit, which marks a bare object, may hide a record.
        let short = match short_record(&self.actors, dir, name) {
            Ok(short) => short,
            Err(Errno::STALE) => return Ok(false),
            Err(errno) => return self.failed(bucket, errno, "examining", &join(path, name)).map(|()| false),
        };
        // In a copy of a root that is not migrated yet, another sidecar file may belong to this object.
        if let Some(short) = &short
            && matches!(volume.read_sidecar(bucket, stat, Some(short)), Ok(None))
            && !self.identities.lack(volume, bucket, (short, stat))
        {
            return Ok(false);
        }
        if may_be_orphan && is_described(volume, bucket, stat, short.as_ref()) {
            orphans.remove(&stat.inode);
        }
        Ok(true)
    }

    fn is_shared(&self, bucket: &Bucket) -> bool {
        self.inner.volume.sharing_of(bucket).is_shared()
    }

    fn sidecar(&mut self, bucket: &Bucket, meta: &File, path: &str, inode: u64) -> Result<()> {
        let name = sidecar_name(inode);
        let Ok(stat) = stat_in(meta, &name) else { return Ok(()) };
        if self.is_younger(newest_ns(&stat), self.options.staged_age) {
            return Ok(());
        }
        let (kind, size_bytes) = (GarbageKind::Sidecar, size_freed(&stat));
        let garbage = GarbageFile { kind, path: join(path, &name), size_bytes };
        let inner = self.inner;
        self.remove(bucket, (garbage, stat.user), || {
            remove_if_same(&inner.volume, bucket, meta, &name, &stat)
        })
        .map(drop)
    }
}

/// Returns the metadata of the target of the symbolic link at `path`.
fn followed(volume: &StoreDirectoryTree, path: &str) -> Result<FileStat, Errno> {
    volume.root.open_beneath(path, OFlags::PATH, Mode::empty()).and_then(stat)
}

/// Returns whether the sidecar file named after this file's inode number belongs, or may belong, to this file.
fn is_described(
    volume: &StoreDirectoryTree,
    bucket: &Bucket,
    stat: &FileStat,
    short: Option<&ObjectRecord>,
) -> bool {
    let sharing = volume.sharing_of(bucket);
    let is_absent = || matches!(volume.read_sidecar(bucket, stat, short), Ok(None));
    // A missing sidecar file is looked up again, because this node may have cached it as missing.
    let is_still_absent =
        || !sharing.is_shared() || volume.reveal(&place_of(bucket, stat), sharing).is_ok() && is_absent();
    stat.is_file && !(is_absent() && is_still_absent())
}

/// Removes the sidecar file `name`, unless it has been replaced since it was examined. The inode number in its name may
/// now belong to a new object. The sidecar file is first renamed into the directory for staged files, so that only the
/// file that was examined is removed.
fn remove_if_same(
    volume: &StoreDirectoryTree,
    bucket: &Bucket,
    meta: &File,
    name: &str,
    seen: &FileStat,
) -> Result<bool> {
    let failed = |errno| from_errno(errno, "removing");
    let ((aside, _shelter), hidden) = (volume.staging_dir(bucket)?, hidden_name()?);
    match rename(meta, name, &aside, &hidden) {
        Ok(()) => {}
        Err(Errno::NOENT) => return Ok(false),
        Err(errno) => return Err(failed(errno)),
    }
    let now = stat_in(&aside, &hidden).map_err(failed)?;
    let is_same = (now.inode, now.modified_ns) == (seen.inode, seen.modified_ns);
    if !is_same {
        // The sidecar file is moved back, unless a newer sidecar file has taken its name.
        link(&aside, &hidden, meta, name).or_else(|errno| match errno {
            Errno::EXIST => Ok(()),
            errno => Err(failed(errno)),
        })?;
    }
    remove_file(&aside, &hidden).map_err(failed)?;
    Ok(is_same)
}
