//! Multipart uploads that are in progress.

use std::fs::File;

use fordway_store::{Bucket, ErrorKind, Result, UploadId};
use fordway_sys::{EntryKind, Errno};

use super::finding::show_name;
use super::{Check, FindingKind};
use crate::layout::{join, uploads_dir};
use crate::multipart::{UPLOAD_FILE, part_number};
use crate::scan::{each_entry, known_kind, open_child};

impl Check<'_> {
    pub(super) fn uploads(&mut self, bucket: &Bucket) -> Result<()> {
        let path = uploads_dir(bucket);
        let dir = match self.inner.open_to_list(&path) {
            Ok(dir) => dir,
            Err(Errno::NOENT) => return Ok(()),
            Err(errno) => return self.unreadable(&path, errno, "opening"),
        };
        let read = each_entry(&dir, |name, _| {
            self.looked_at_one()?;
            let shown = join(&path, &show_name(name));
            match std::str::from_utf8(name).ok().and_then(|name| UploadId::new(name).ok()) {
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
            Err(errno) => return self.unreadable(path, errno, "opening"),
        };
        self.record_of_upload(bucket, uploads, path, id)?;
        let read = each_entry(&dir, |name, kind| {
            self.looked_at_one()?;
            match std::str::from_utf8(name) {
                Ok(UPLOAD_FILE) => Ok(()),
                Ok(name) if is_part(&dir, name, kind) => self.file(&dir, path, name),
                _ => self.found(FindingKind::StrayPart, join(path, &show_name(name)), "it is no part"),
            }
        })?;
        read.or_else(|errno| self.unreadable(path, errno, "reading"))
    }

    fn record_of_upload(&mut self, bucket: &Bucket, uploads: &File, path: &str, id: &UploadId) -> Result<()> {
        match self.inner.find_upload(bucket, id) {
            Ok(Some(upload)) if upload.record.key.is_some() => Ok(()),
            Ok(Some(_)) => self.found(FindingKind::BadUpload, path, "its record names no key"),
            // It may have ended since the directory was read.
            Ok(None) if open_child(uploads, id.as_str()).is_err() => Ok(()),
            Ok(None) => self.found(FindingKind::UploadRest, path, ""),
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                self.found(FindingKind::BadUpload, path, "its record does not decode")
            }
            Err(error) => self.found(FindingKind::Unreadable, path, error.to_string()),
        }
    }
}

fn is_part(dir: &File, name: &str, kind: EntryKind) -> bool {
    part_number(name).is_some() && known_kind(dir, name, kind) == EntryKind::File
}
