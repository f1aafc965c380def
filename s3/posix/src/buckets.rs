//! Buckets (the subdirectories of the root) and their documents: small files in the private area, such as
//! `document-cors` or `document-tagging`.
//!
//! A document must be a regular file within the size limit for documents, and only the file's owner may have write
//! permission. In a bucket with the sticky bit, the file must also belong to the bucket's owner or root. For a document
//! that controls access or notifications, the last condition applies in every bucket. Where other users may rename
//! files, these documents also need the owner's mark (see [`crate::mark`]). Documents are not cached: each call reads
//! the file.

use std::os::fd::AsFd;
use std::sync::Arc;

use fordway_store::{
    Bucket, BucketDocumentKind, BucketInfo, ErrorKind, MAX_DOCUMENT_BYTES, Result, check_document,
};
use fordway_sys::{
    EntryKind, Errno, FileStat, FileSystemSharing, Mode, OFlags, created_ns, file_user, is_own_file,
    make_dir, open_in, read_dir, stat, stat_in,
};

use crate::area::{TrustedOwner, is_writable_by_others, not_ours, read_small, remove_if_file};
use crate::errors::{from_errno, is_stale};
use crate::events::{NOTIFICATION, announce_notifications, await_notifications};
use crate::layout::{ObjectPath, document_name, private_dir, spare_name};
use crate::lifecycle::RULES;
use crate::mark::{ATTEMPTS, unmarkable, unmarked, unsettled, writable};
use crate::read::system_time;
use crate::shared::{leads_to, retry_stale};
use crate::stage::{SETTING_MODE, StagedFile, sync_dir};
use crate::{Durability, PosixStoreState};

/// A document as it was read.
pub(crate) struct StoredDocument {
    pub(crate) bytes: Vec<u8>,
    /// The user who set the document; `None` if this is not certain, or does not matter for this kind.
    pub(crate) author: Option<u32>,
}

impl PosixStoreState {
    /// Returns the first `most` of the buckets whose names `wanted` accepts, in order. Examines no other buckets.
    pub(crate) fn find_buckets(
        &self,
        wanted: &dyn Fn(&Bucket) -> bool,
        most: usize,
    ) -> Result<Vec<BucketInfo>> {
        // The result omits names that have disappeared in the meantime, symbolic links that do not lead to a directory
        // beneath the root, and buckets that the caller is not permitted to examine.
        let is_omitted =
            |kind| matches!(kind, ErrorKind::NoSuchBucket | ErrorKind::AccessDenied | ErrorKind::KeyTooLong);
        let names = self.bucket_names()?.into_iter().filter(wanted);
        let found = names.map(|name| self.head_bucket(&name));
        found
            .filter(|found| !found.as_ref().is_err_and(|error| is_omitted(error.kind())))
            .take(most)
            .collect()
    }

    /// Returns the names in the root that may belong to buckets, in order. Symbolic links are included.
    pub(crate) fn bucket_names(&self) -> Result<Vec<Bucket>> {
        let mut names = Vec::new();
        let dir = open_in(self.volume.root.dir(), ".", OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty());
        dir.and_then(|dir| {
            read_dir(dir, |name, kind| {
                let name = std::str::from_utf8(name).ok().and_then(|name| Bucket::new(name).ok());
                let may_be_dir = matches!(kind, EntryKind::Dir | EntryKind::Link | EntryKind::Unknown);
                names.extend(name.filter(|_| may_be_dir));
            })
        })
        .map_err(|errno| from_errno(errno, "reading the root"))?;
        names.sort_unstable();
        Ok(names)
    }

    /// Cost: one `openat2`, one `statx` and one `close`; with strong consistency, a few more.
    pub(crate) fn head_bucket(&self, bucket: &Bucket) -> Result<BucketInfo> {
        let sharing = self.volume.sharing_if_strong(bucket);
        self.volume.freshen_dir(bucket.as_str(), false, sharing);
        let created = self.volume.open_dir(bucket.as_str()).and_then(|dir| {
            self.volume.require_kept(&dir, sharing)?;
            created_ns(dir)
        });
        match created {
            Ok(created) => Ok(BucketInfo { name: bucket.clone(), created: system_time(created) }),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::STALE) => Err(ErrorKind::NoSuchBucket.into()),
            Err(errno) => Err(from_errno(errno, "opening the bucket")),
        }
    }

    pub(crate) fn create_bucket(&self, bucket: &Bucket) -> Result<()> {
        if let Err(refused) = bucket.for_creation() {
            // An existing directory is a bucket even if its name is not allowed for a new bucket.
            let is_bucket = self.head_bucket(bucket).is_ok();
            return Err(if is_bucket { self.why_taken(bucket).into() } else { refused });
        }
        match make_dir(self.volume.root.dir(), bucket.as_str(), Mode::from_raw_mode(0o777)) {
            Ok(true) => self.sync_root(),
            Ok(false) => Err(self.why_taken(bucket).into()),
            Err(errno) => Err(from_errno(errno, "making the bucket")),
        }
    }

    /// Returns `BucketAlreadyOwnedByYou` or `BucketAlreadyExists` for a new bucket whose name is taken. Root counts as
    /// the owner of every bucket. A name that is not a bucket, such as a file or a link that leads nowhere, has no
    /// owner.
    fn why_taken(&self, bucket: &Bucket) -> ErrorKind {
        let user = file_user();
        match self.volume.owner_of(bucket) {
            Ok(owner) if user == 0 || owner == user => ErrorKind::BucketAlreadyOwnedByYou,
            _ => ErrorKind::BucketAlreadyExists,
        }
    }

    /// Writes the root's directory to stable storage if the durability is `full`.
    pub(crate) fn sync_root(&self) -> Result<()> {
        match self.volume.config.durability {
            Durability::Full => sync_dir(self.volume.root.dir())
                .map_err(|errno| from_errno(errno, "writing the bucket's name to stable storage")),
            Durability::None | Durability::Data => Ok(()),
        }
    }

    /// Reads a document of the bucket. Cost: one `openat2`; if there is a document, also a read and a few `fstat`.
    pub(crate) fn document(&self, bucket: &Bucket, kind: &BucketDocumentKind) -> Result<Option<Vec<u8>>> {
        Ok(self.stored_document(bucket, kind)?.map(|document| document.bytes))
    }

    /// Reads a document as [`PosixStoreState::document`] does, and also returns its author.
    pub(crate) fn stored_document(
        &self,
        bucket: &Bucket,
        kind: &BucketDocumentKind,
    ) -> Result<Option<StoredDocument>> {
        // The document is opened again if another node replaces it between the open and the read.
        let refresh = || self.volume.forget_file(&document_place(bucket, kind));
        retry_stale(is_stale, refresh, || self.try_document(bucket, kind))
    }

    fn try_document(&self, bucket: &Bucket, kind: &BucketDocumentKind) -> Result<Option<StoredDocument>> {
        let (place, sharing) = (document_place(bucket, kind), self.volume.sharing_of(bucket));
        self.volume.freshen_file(&place, sharing)?;
        let path = place.path();
        let failed = |errno| from_errno(errno, "reading the document");
        let ignored = |error| if self.is_strangers(bucket, &place) { Ok(None) } else { Err(error) };
        let file = match self.volume.open_private(&place, sharing) {
            Ok(file) => file,
            Err(Errno::NOENT | Errno::NOTDIR) => return self.volume.require_bucket(bucket).map(|()| None),
            Err(Errno::LOOP | Errno::NXIO) => return ignored(not_ours(&path, "is not a regular file")),
            Err(errno @ (Errno::ACCESS | Errno::PERM | Errno::AGAIN)) => return ignored(failed(errno)),
            Err(errno) => return Err(failed(errno)),
        };
        let Some((bytes, state)) = (match read_small(&file, MAX_DOCUMENT_BYTES) {
            Err(Errno::ISDIR) => None,
            read => read.map_err(failed)?,
        }) else {
            return ignored(not_ours(&path, "is not a small regular file"));
        };
        let of = self.volume.state_of(bucket)?;
        let keeper = TrustedOwner::of_documents(&of, kind);
        // If the caller's ID stands for several users, equal IDs do not show that the caller owns the file.
        let is_callers =
            || state.user == of.user && self.volume.is_callers(bucket, &of) && is_own_file(&file);
        if keeper.is_some_and(|keeper| !keeper.trusts(state.user)) && !is_callers() {
            return ignored(not_ours(&path, &format!("belongs to the user with the id {}", state.user)));
        }
        if is_writable_by_others(&state) {
            return Err(writable(&path));
        }
        let is_known = has_author(&of, kind)
            && (!self.volume.may_others_rename(bucket, &of)?
                || self.volume.owner_mark(bucket, kind.as_str())?.is_on(&file, &state));
        if !is_known && has_author(&of, kind) && self.is_replaced(&place, &file, sharing) {
            // The document has been replaced since it was opened, which altered its change time. After this error, the
            // document is opened again.
            return Err(failed(Errno::STALE));
        }
        match is_known || keeper.is_none() {
            true => Ok(Some(StoredDocument { bytes, author: is_known.then_some(state.user) })),
            false => Err(unmarked(&path)),
        }
    }

    /// Returns whether the open file no longer has its name at `place`, because it was replaced.
    #[cold]
    fn is_replaced(&self, place: &ObjectPath, file: impl AsFd, sharing: FileSystemSharing) -> bool {
        let Ok(now) = stat(&file) else { return false };
        let has_name = |name: &str| {
            let is_at = |dir| leads_to(dir, name, (now.device, now.inode));
            self.volume.open_dir(&place.dir).is_ok_and(is_at)
        };
        // An NFS client gives a file that is open on this node another name, instead of removing the file.
        now.links == 0
            || sharing == FileSystemSharing::Nfs
                && !has_name(&place.name)
                && !has_name(&spare_name(&place.name))
    }

    /// Returns whether the file at `place`, a path in the private directory, certainly replaces no file of the bucket's
    /// owner: the bucket and its private directory have the sticky bit, and the file belongs to another user, who could
    /// not remove the owner's file.
    fn is_strangers(&self, bucket: &Bucket, place: &ObjectPath) -> bool {
        let Ok(Some(guard)) = self.volume.guard_now(bucket) else { return false };
        let Ok(dir) = self.volume.open_dir(&place.dir) else { return false };
        let is_safe =
            stat(&dir).is_ok_and(|dir| guard.trusts(dir.user) && guard.danger(&dir, dir.user).is_none());
        is_safe && stat_in(&dir, &place.name).is_ok_and(|state| !guard.trusts(state.user))
    }

    pub(crate) fn set_document(
        self: &Arc<Self>,
        bucket: &Bucket,
        kind: &BucketDocumentKind,
        document: &[u8],
    ) -> Result<()> {
        check_document(document)?;
        self.volume.require_bucket(bucket)?;
        self.volume.check_keeper(bucket, kind)?;
        if *kind == NOTIFICATION {
            announce_notifications(&self.volume, bucket)?;
        }
        self.publish_document(bucket, kind, document)?;
        if *kind == NOTIFICATION {
            await_notifications(&self.volume, bucket)?;
        }
        Ok(())
    }

    /// Publishes a document with its owner's mark. Where the document needs the mark, publishes it again if publishing
    /// took too long for the mark to be valid.
    fn publish_document(
        self: &Arc<Self>,
        bucket: &Bucket,
        kind: &BucketDocumentKind,
        document: &[u8],
    ) -> Result<()> {
        for _ in 0..ATTEMPTS {
            let place = document_place(bucket, kind);
            let mut staged = StagedFile::with_mode(self, bucket, place, false, SETTING_MODE)?;
            staged.write(document)?;
            let of = self.volume.state_of(bucket)?;
            let mark = self.volume.owner_mark(bucket, kind.as_str())?;
            let needs_mark = has_author(&of, kind) && self.volume.may_others_rename(bucket, &of)?;
            if needs_mark {
                // A document that nobody would trust must not replace one that is trusted.
                let is_marked = mark.set(staged.file());
                if !is_marked.map_err(|errno| from_errno(errno, "marking the document"))? {
                    return Err(unmarkable());
                }
            }
            if staged.publish_marked(&mark)? || !needs_mark {
                return Ok(());
            }
        }
        Err(unsettled())
    }

    pub(crate) fn delete_document(&self, bucket: &Bucket, kind: &BucketDocumentKind) -> Result<()> {
        self.volume.require_bucket(bucket)?;
        self.volume.check_keeper(bucket, kind)?;
        let private = match self.volume.open_dir(&private_dir(bucket)) {
            Ok(private) => private,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(()),
            Err(errno) => return Err(from_errno(errno, "opening .fordway")),
        };
        let name = document_name(kind);
        // The document's spare name, a second hard link, is removed first. In the opposite order, the document would
        // reappear if this process were killed between the two removals.
        remove_if_file(&private, &spare_name(&name))
            .and_then(|()| remove_if_file(&private, &name))
            .and_then(|()| self.volume.sync_names(&private))
            .map_err(|errno| from_errno(errno, "removing the document"))?;
        if stat_in(&private, &name).is_ok_and(|state| state.is_dir) {
            return Err(not_ours(&document_place(bucket, kind).path(), "is not a regular file"));
        }
        if *kind == NOTIFICATION {
            await_notifications(&self.volume, bucket)?;
        }
        Ok(())
    }
}

/// Returns whether it matters who set a document of this kind in the bucket whose directory has the metadata `of`.
fn has_author(of: &FileStat, kind: &BucketDocumentKind) -> bool {
    *kind == RULES || TrustedOwner::of_documents(of, kind).is_some()
}

fn document_place(bucket: &Bucket, kind: &BucketDocumentKind) -> ObjectPath<'static> {
    ObjectPath { dir: private_dir(bucket).into(), name: document_name(kind).into() }
}
