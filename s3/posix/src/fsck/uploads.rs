//! Multipart uploads that are in progress.

use std::fs::File;

use fordway_store::{Bucket, Error, ErrorKind, Key, Result, UploadId};
use fordway_sys::{EntryKind, Errno, name_to_text, stat};

use super::{Check, FindingKind};
use crate::layout::{join, upload_of, uploads_dir};
use crate::parts::{CLOSED, Part, Role, UPLOAD, part_number, role_of};
use crate::scan::{each_entry, known_kind, open_child};

impl Check<'_> {
    pub(super) fn uploads(&mut self, bucket: &Bucket) -> Result<()> {
        let path = uploads_dir(bucket);
        let dir = match self.inner.open_to_scan(&path) {
            Ok(dir) => dir,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(()),
            Err(errno) => return self.unreadable(&path, errno, "opening"),
        };
        let read = each_entry(&dir, |name, _| {
            self.looked_at_one()?;
            let shown = join(&path, &name_to_text(name));
            match std::str::from_utf8(name).ok().and_then(upload_of) {
                Some(id) => self.upload(bucket, &dir, &shown, &id),
                None => self.found(FindingKind::StrayPart, shown, "it is no upload"),
            }
        })?;
        read.or_else(|errno| self.unreadable(&path, errno, "reading"))
    }

    fn upload(&mut self, bucket: &Bucket, uploads: &File, path: &str, id: &UploadId) -> Result<()> {
        let dir = match open_child(uploads, id.as_str()) {
            Ok(dir) => dir,
            Err(Errno::NOENT) => return Ok(()),
            Err(Errno::NOTDIR | Errno::LOOP) => {
                return self.found(FindingKind::StrayPart, path, "it is no upload");
            }
            Err(errno) => match self.actors.open_as_owner(uploads, id.as_str(), errno) {
                Ok((dir, owner)) => {
                    return self.actors.clone().act_as(owner, || self.files_of_upload(bucket, &dir, path));
                }
                Err(errno) => return self.unreadable(path, errno, "opening"),
            },
        };
        self.files_of_upload(bucket, &dir, path)
    }

    fn files_of_upload(&mut self, bucket: &Bucket, dir: &File, path: &str) -> Result<()> {
        self.record_of_upload(dir, path)?;
        let read = each_entry(dir, |name, kind| {
            self.looked_at_one()?;
            match std::str::from_utf8(name) {
                Ok(name) if known_kind(dir, name, kind) == EntryKind::File => {
                    self.file_of_upload(bucket, dir, path, name)
                }
                _ => self.stray(join(path, &name_to_text(name))),
            }
        })?;
        read.or_else(|errno| self.unreadable(path, errno, "reading"))
    }

    fn file_of_upload(&mut self, bucket: &Bucket, dir: &File, path: &str, name: &str) -> Result<()> {
        match role_of(name) {
            Some(Role::Upload) => Ok(()),
            Some(Role::PartBytes) => self.file(bucket, dir, path, name),
            Some(Role::PartRecord) => match self.inner.read_upload(path, name) {
                Ok(Some((record, _)))
                    if !part_number(name).is_some_and(|number| Part::is_possible(number, &record)) =>
                {
                    self.found(FindingKind::BadUpload, join(path, name), "no part has such a record")
                }
                Ok(_) => Ok(()),
                Err(error) => self.bad_record(join(path, name), &error),
            },
            None => self.stray(join(path, name)),
        }
    }

    fn record_of_upload(&mut self, dir: &File, path: &str) -> Result<()> {
        let found = match self.inner.read_upload(path, UPLOAD) {
            Ok(None) => self.inner.read_upload(path, CLOSED),
            found => found,
        };
        match found {
            Ok(Some((record, _))) if record.key.as_ref().is_some_and(|key| Key::new(key).is_ok()) => Ok(()),
            Ok(Some(_)) => self.found(FindingKind::BadUpload, path, "its record names no key"),
            // It ended since the directory was read.
            Ok(None) if stat(dir).is_ok_and(|stat| stat.links == 0) => Ok(()),
            Ok(None) => self.found(FindingKind::UploadRest, path, ""),
            Err(error) => self.bad_record(path.to_owned(), &error),
        }
    }

    fn bad_record(&mut self, path: String, error: &Error) -> Result<()> {
        match error.kind() {
            ErrorKind::Corrupt => self.found(FindingKind::BadUpload, path, "its record does not decode"),
            _ => self.found(FindingKind::Unreadable, path, error.to_string()),
        }
    }

    fn stray(&mut self, path: String) -> Result<()> {
        self.found(FindingKind::StrayPart, path, "it is neither a part nor of the upload")
    }
}
