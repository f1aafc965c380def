//! Checks the rest of a bucket's private directory: sidecar files, documents, staged files and uploads in progress.

use std::fs::File;

use fordway_store::{Bucket, Error, ErrorKind, Key, Result, UploadId};
use fordway_sys::{EntryKind, Errno, FileStat, Mode, OFlags, is_immutable, name_to_text, stat, stat_in};

use crate::area::{TrustedOwner, each_name, mode_of_dir, mode_of_file, read_small};
use crate::events::NOTIFICATION;
use crate::fsck::{FindingKind, FsckRun, show_name};
use crate::layout::{
    LOCKS, MARKERS, TMP, VERSIONING, document_kind, document_name, is_hidden_name, is_private_dir_name,
    is_private_name, is_setting_name, join, meta_dir, private_dir, upload_of, uploads_dir,
};
use crate::lifecycle::RULES;
use crate::mark::unmarked;
use crate::multipart::parts::{
    ArrivedPart, CLOSED, UPLOAD, UploadDirectory, UploadFileRole, part_number, role_of,
};
use crate::object_lock::VersioningAndLockSetting;
use crate::private::VERSIONING_BYTES;
use crate::scan::{each_entry, known_kind, open_child};
use crate::sidecar::inode_of;

impl FsckRun<'_> {
    /// Checks the names of all sidecar files. The content of a sidecar file is checked together with its object.
    pub(super) fn sidecar_names(&mut self, bucket: &Bucket) -> Result<()> {
        let path = meta_dir(bucket);
        let dir = match self.inner.volume.open_to_scan(&path) {
            Ok(dir) => dir,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(()),
            Err(errno) => return self.unreadable(&path, errno, "opening"),
        };
        let read = each_entry(&dir, |name, _| {
            self.looked_at_one()?;
            match std::str::from_utf8(name).ok().and_then(inode_of) {
                Some(_) => Ok(()),
                None => self.found(FindingKind::SidecarName, join(&path, &name_to_text(name)), ""),
            }
        })?;
        read.or_else(|errno| self.unreadable(&path, errno, "reading"))
    }

    /// Checks that the bucket's versioning file, if there is one, is valid.
    pub(super) fn versioning(&mut self, bucket: &Bucket) -> Result<()> {
        let path = join(&private_dir(bucket), VERSIONING);
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let opened = self.inner.volume.root.open_beneath(&path, flags, Mode::empty());
        let wants_flag = self.options.immutable_locks;
        let read = opened.and_then(|file| {
            let lacks_flag = wants_flag && is_immutable(&file) == Ok(false);
            read_small(&file, VERSIONING_BYTES).map(|read| read.map(|(text, _)| (text, lacks_flag)))
        });
        match read {
            Ok(Some((text, lacks_flag))) => match VersioningAndLockSetting::parse(&text) {
                Some(setting) if lacks_flag && setting.object_lock.is_some() => {
                    self.found(FindingKind::NotImmutable, path, "")
                }
                Some(_) => Ok(()),
                None => {
                    self.found(FindingKind::BadVersioning, path, format!("it says {:?}", show_name(&text)))
                }
            },
            Ok(None) | Err(Errno::LOOP | Errno::NXIO) => {
                self.found(FindingKind::BadVersioning, path, "it is not a small regular file")
            }
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(()),
            Err(errno) => self.unreadable(&path, errno, "reading"),
        }
    }

    /// Checks that the bucket's documents can be read and parsed. The notification configuration is checked separately.
    pub(super) fn documents(&mut self, bucket: &Bucket) -> Result<()> {
        let Some(problem_of) = self.options.document_problem else { return Ok(()) };
        // If the directory cannot be read, the check of the private area reports the error.
        let names = self.inner.volume.names_in(&private_dir(bucket)).unwrap_or_default();
        // A document's normal name and its spare name, a second hard link, have the same kind.
        let mut kinds: Vec<_> = names.iter().filter_map(|name| document_kind(name)).collect();
        kinds.sort_unstable();
        kinds.dedup();
        for kind in kinds.iter().filter(|kind| **kind != NOTIFICATION) {
            let path = join(&private_dir(bucket), &document_name(kind));
            match self.inner.stored_document(bucket, kind) {
                // A lifecycle run does not apply rules of an unknown author.
                Ok(Some(document)) if *kind == RULES && document.author.is_none() => {
                    let why = unmarked(&path).detail().to_owned();
                    self.found(FindingKind::BadDocument, path, why)?;
                }
                Ok(Some(document)) => {
                    if let Some(problem) = problem_of(bucket, kind, &document.bytes) {
                        self.found(FindingKind::BadDocument, path, problem)?;
                    }
                }
                Ok(None) => {}
                Err(error) if error.kind() == ErrorKind::AccessDenied => {
                    self.found(FindingKind::BadDocument, path, error.detail().to_owned())?;
                }
                Err(error) => self.found(FindingKind::Unreadable, path, error.to_string())?,
            }
        }
        Ok(())
    }

    /// Checks that the private directory contains only files that Fordway creates in it.
    pub(super) fn private_area(&mut self, bucket: &Bucket) -> Result<()> {
        let path = private_dir(bucket);
        let dir = match self.inner.volume.open_to_scan(&path) {
            Ok(dir) => dir,
            Err(Errno::NOENT) => return Ok(()),
            Err(Errno::NOTDIR | Errno::LOOP) => {
                return self.found(FindingKind::NotOurs, path, "it is not a directory");
            }
            Err(errno) => return self.unreadable(&path, errno, "opening"),
        };
        let (of, guard) = (self.inner.volume.state_of(bucket)?, self.inner.volume.guard_now(bucket)?);
        self.owner_in_area(&path, stat(&dir).ok(), guard)?;
        self.mode_in_area(&path, stat(&dir).ok(), mode_of_dir(&of, &path))?;
        let mut names = Vec::new();
        let read = each_entry(&dir, |name, _| {
            names.push(name_to_text(name).into_owned());
            Ok(())
        })?;
        if let Err(errno) = read {
            return self.unreadable(&path, errno, "reading");
        }
        names.iter().try_for_each(|name| self.private_entry((&dir, &path), name, (&of, guard)))
    }

    fn private_entry(
        &mut self,
        (dir, path): (&File, &str),
        name: &str,
        (of, guard): (&FileStat, Option<TrustedOwner>),
    ) -> Result<()> {
        let (shown, found) = (join(path, name), stat_in(dir, name).ok());
        if !is_private_name(name) {
            return self.found(FindingKind::StrayPrivate, shown, "");
        }
        let is_dir = is_private_dir_name(name);
        match &found {
            Some(state) if is_dir && !state.is_dir => {
                return self.found(FindingKind::NotOurs, shown, "it is not a directory");
            }
            Some(state) if !is_dir && !state.is_file => {
                return self.found(FindingKind::NotOurs, shown, "it is not a regular file");
            }
            _ => {}
        }
        if name == TMP {
            self.staged_names(dir, &shown)?;
        }
        match name {
            _ if is_dir => self.mode_in_area(&shown, found, mode_of_dir(of, &shown))?,
            LOCKS | MARKERS => self.mode_in_area(&shown, found, mode_of_file(of, name))?,
            _ => {}
        }
        self.owner_in_area(&shown, found.filter(|_| is_dir || is_setting_name(name)), guard)
    }

    fn staged_names(&mut self, private: &File, path: &str) -> Result<()> {
        let Ok(dir) = open_child(private, TMP) else { return Ok(()) };
        let mut told = Ok(());
        // A directory that cannot be read has no names to report.
        let _ = each_name(&dir, |name| {
            if told.is_ok() && !is_hidden_name(name) {
                told = self.found(FindingKind::StrayPrivate, join(path, name), "");
            }
        });
        told
    }

    fn owner_in_area(
        &mut self,
        path: &str,
        state: Option<FileStat>,
        guard: Option<TrustedOwner>,
    ) -> Result<()> {
        let Some((state, guard)) = state.zip(guard) else { return Ok(()) };
        // The check assumes root as the caller. A file that belongs to neither root nor the bucket's owner is dangerous
        // to all other writers.
        let danger = guard.danger(&state, 0);
        danger.map_or(Ok(()), |why| self.found(FindingKind::NotOurs, path, format!("it {why}")))
    }
}

impl FsckRun<'_> {
    /// Checks that all writers of the bucket can use a file or directory, whose mode should be `wanted`.
    fn mode_in_area(&mut self, path: &str, state: Option<FileStat>, wanted: u32) -> Result<()> {
        match state.map(|state| wanted & !state.mode & 0o077) {
            None | Some(0) => Ok(()),
            Some(missing) => {
                let why =
                    format!("the permissions {missing:03o} are missing, so other writers are locked out");
                self.found(FindingKind::ClosedPrivate, path, why)
            }
        }
    }
}

impl FsckRun<'_> {
    pub(super) fn uploads(&mut self, bucket: &Bucket) -> Result<()> {
        let path = uploads_dir(bucket);
        let dir = match self.inner.volume.open_to_scan(&path) {
            Ok(dir) => dir,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(()),
            Err(errno) => return self.unreadable(&path, errno, "opening"),
        };
        let read = each_entry(&dir, |name, _| {
            self.looked_at_one()?;
            let shown = join(&path, &name_to_text(name));
            match std::str::from_utf8(name).ok().and_then(upload_of) {
                Some(id) => self.upload(bucket, &dir, &shown, &id),
                None => self.found(FindingKind::StrayPart, shown, "it is not an upload"),
            }
        })?;
        read.or_else(|errno| self.unreadable(&path, errno, "reading"))
    }

    fn upload(&mut self, bucket: &Bucket, uploads: &File, path: &str, id: &UploadId) -> Result<()> {
        let dir = match open_child(uploads, id.as_str()) {
            Ok(dir) => dir,
            Err(Errno::NOENT) => return Ok(()),
            Err(Errno::NOTDIR | Errno::LOOP) => {
                return self.found(FindingKind::StrayPart, path, "it is not an upload");
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
            Some(UploadFileRole::Upload) => Ok(()),
            Some(UploadFileRole::PartBytes) => self.file(bucket, dir, path, name),
            Some(UploadFileRole::PartRecord) => match UploadDirectory::new(&self.inner.volume, path)
                .record(name)
            {
                Ok(Some((record, _)))
                    if !part_number(name).is_some_and(|number| ArrivedPart::is_possible(number, &record)) =>
                {
                    self.found(FindingKind::BadUpload, join(path, name), "a part cannot have such a record")
                }
                Ok(_) => Ok(()),
                Err(error) => self.bad_record(join(path, name), &error),
            },
            None => self.stray(join(path, name)),
        }
    }

    fn record_of_upload(&mut self, dir: &File, path: &str) -> Result<()> {
        let found = match UploadDirectory::new(&self.inner.volume, path).record(UPLOAD) {
            Ok(None) => UploadDirectory::new(&self.inner.volume, path).record(CLOSED),
            found => found,
        };
        match found {
            Ok(Some((record, _))) if record.key.as_ref().is_some_and(|key| Key::new(key).is_ok()) => Ok(()),
            Ok(Some(_)) => self.found(FindingKind::BadUpload, path, "its record names no key"),
            // The upload ended after the directory was read.
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
        self.found(FindingKind::StrayPart, path, "it is neither a part nor another file of the upload")
    }
}
