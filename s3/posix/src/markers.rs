//! Markers: empty objects whose keys end in a slash. A marker is stored as the directory that its key names, with a
//! record attached to the directory. Folders created through S3 are therefore directories to POSIX programs.
//!
//! Creating the first marker of a bucket also creates the file `markers` in the private directory. If this file is
//! missing, no marker is looked up. A notification configuration also creates the file (see [`crate::events`]). All
//! changes of markers are made under the key's lock. If an object with such a key has content, or the key cannot be a
//! directory, the object is stored at the key's odd path instead. An object at the odd path hides any marker with the
//! same key.

use std::fs::File;

use fordway_store::{Bucket, Conditions, ErrorKind, Key, PutResult, Result, VersioningState};
use fordway_sys::{Errno, FileStat, Mode, OFlags, open_in, set_xattr, stat, sync_all};

use crate::Durability;
use crate::errors::from_errno;
use crate::layout::{ATTRIBUTE, MARKERS, marked_dir, odd};
use crate::private::PrivateDirectoryContents;
use crate::read::ObjectFile;
use crate::record::{ContentChangeStamp, ObjectRecord};
use crate::sidecar::{ATTRIBUTE_BYTES, RecordAttribute, read_attribute};
use crate::stage::{MAX_RACES, StagedFile, give_way, made_of, unique_etag};
use crate::versions::names::now_ns;
use crate::volume::StoreDirectoryTree;

impl StoreDirectoryTree {
    /// Opens the directory that represents the object `key`, if that object exists as a directory.
    pub(crate) fn open_marker(
        &self,
        bucket: &Bucket,
        key: &Key,
        contents: PrivateDirectoryContents,
    ) -> Result<Option<ObjectFile>> {
        if !contents.has_markers {
            return Ok(None);
        }
        let Some(path) = marked_dir(bucket, key) else { return Ok(None) };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        match self.root.open_noting_links(&path, flags, Mode::empty()) {
            Ok((dir, is_linked)) => {
                Ok(self.marker_in(bucket, dir)?.map(|marker| ObjectFile { is_linked, ..marker }))
            }
            Err(Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG) => Ok(None),
            Err(errno) => Err(from_errno(errno, "opening")),
        }
    }

    /// Returns the object that the directory `dir` represents, or `None` if the directory has no record.
    fn marker_in(&self, bucket: &Bucket, dir: File) -> Result<Option<ObjectFile>> {
        let RecordAttribute::Found(ObjectRecord { seal: Some(seal), .. }) = read_attribute(&dir)? else {
            return Ok(None);
        };
        let found = stat(&dir).map_err(|errno| from_errno(errno, "reading the metadata of the directory"))?;
        let stat = FileStat { size: 0, modified_ns: seal.modified_ns, ..found };
        let recorded = Some(Box::new(self.load_record(bucket, &dir, &stat)?));
        Ok(Some(ObjectFile { file: dir, stat, recorded, is_linked: false }))
    }

    /// Opens the key's latest version, which may be a directory. The caller must hold the key's lock.
    pub(crate) fn latest_file(
        &self,
        bucket: &Bucket,
        key: &Key,
        contents: PrivateDirectoryContents,
    ) -> Result<Option<ObjectFile>> {
        match self.locate(bucket, key, contents)? {
            Some((_, opened)) => Ok(Some(opened)),
            None => self.open_marker(bucket, key, contents),
        }
    }

    fn say_that_there_are_markers(&self, bucket: &Bucket, contents: PrivateDirectoryContents) -> Result<()> {
        if contents.has_markers {
            return Ok(());
        }
        self.open_shared_file(bucket, MARKERS)?;
        self.private.forget(bucket);
        // The first marker is created only when every delete checks for markers. A delete that does not check for
        // markers would remove the marker's directory as an empty directory.
        self.private.outlast(&contents);
        Ok(())
    }
}

impl StagedFile {
    /// Returns whether the staged object may become a directory rather than a file.
    pub(crate) fn may_be_marker(
        &self,
        key: &Key,
        record: &ObjectRecord,
        contents: PrivateDirectoryContents,
    ) -> bool {
        self.written() == 0
            && record.parts.is_empty()
            && contents.versioning == VersioningState::Unversioned
            && marked_dir(&self.bucket, key).is_some()
    }

    /// Publishes the empty object `key` as a directory. Returns `None` if the object has to be a file.
    pub(crate) fn publish_marker(
        &self,
        key: &Key,
        record: &mut ObjectRecord,
        conditions: &Conditions,
    ) -> Result<Option<PutResult>> {
        let (inner, bucket) = (&self.inner, &self.bucket);
        inner.locked(bucket, key, |contents| {
            let apart = match contents.has_odd {
                true => inner.volume.open_file(bucket, &odd(bucket, key))?,
                false => None,
            };
            if apart.is_some() || contents.versioning != VersioningState::Unversioned {
                return Ok(None);
            }
            let current = inner.volume.open_marker(bucket, key, contents)?;
            conditions.check_write(current.map(|marker| marker.etag()).as_ref())?;
            inner.volume.say_that_there_are_markers(bucket, contents)?;
            self.mark(key, record)
        })
    }

    fn mark(&self, key: &Key, record: &mut ObjectRecord) -> Result<Option<PutResult>> {
        let Some(path) = marked_dir(&self.bucket, key) else { return Ok(None) };
        for race in 0..MAX_RACES {
            give_way(race);
            let dir = match self.inner.volume.parent_of(&self.bucket, &path) {
                Ok(dir) => dir,
                // A parent of the path is a file, so the object cannot be a directory.
                Err(error) if error.kind() == ErrorKind::NoSuchKey => return Ok(None),
                Err(error) => return Err(error),
            };
            let failed = |errno| from_errno(errno, "making a directory an object");
            let dir =
                open_in(&dir, ".", OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).map_err(failed)?;
            let state = FileStat { size: 0, modified_ns: now_ns() as i64, ..stat(&dir).map_err(failed)? };
            record.seal = Some(ContentChangeStamp::of(&state));
            let etag = record.etag.clone().unwrap_or_else(|| unique_etag(&state));
            let packed = ObjectRecord { etag: Some(etag.clone()), ..record.clone() }.encode();
            if packed.len() > ATTRIBUTE_BYTES || set_xattr(&dir, ATTRIBUTE, &packed).is_err() {
                return Ok(None);
            }
            if self.inner.volume.config.durability != Durability::None {
                sync_all(&dir).map_err(failed)?;
            }
            // A delete that had not yet seen the file `markers` may have removed the directory.
            if stat(&dir).map_err(failed)?.links > 0 {
                record.etag = Some(etag);
                return Ok(Some(made_of(record, &state)));
            }
            self.inner.volume.dirs.forget(&path);
        }
        Err(ErrorKind::ConditionalConflict.into())
    }
}
