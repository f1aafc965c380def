//! Stores and reads the records of objects. An object's record is in an extended attribute of the object's file. If the
//! record does not fit into the attribute, or the file system has no extended attributes, the record is in a sidecar
//! file below `meta/`.
//!
//! A sidecar file is named after the inode number of the object's file. The sidecar file therefore keeps its name when
//! the object is renamed or gets another hard link. A sidecar file is valid only for the file whose attribute has the
//! same seal, ETag and version. A file that a POSIX program has changed therefore keeps its sidecar file. On a file
//! system without extended attributes, a sidecar file is valid only as long as the file has the size and modification
//! time in the sidecar file's seal.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};

use fordway_store::{Bucket, Error, ErrorKind, Result};
use fordway_sys::{
    Errno, FileStat, FileSystemSharing, Mode, OFlags, free_bytes, get_xattr, get_xattr_in, is_same_user,
    link, links_in, open_in, remove_file, stat, stat_in, stat_now,
};

use crate::actors::ImpersonatedUserCache;
use crate::area::{TrustedOwner, names_of, read_small};
use crate::dirs::DirectoryHandle;
use crate::errors::{from_errno, is_stale};
use crate::layout;
use crate::layout::{ATTRIBUTE, ObjectPath, meta_dir};
use crate::private::{PrivateDirectoryContents, is_settled};
use crate::read::ObjectFile;
use crate::record::{ContentChangeStamp, ObjectRecord, etag_of_file};
use crate::server_clock::has_recent_names;
use crate::shared::retry_stale;
use crate::stage::{HiddenName, hidden_name, is_bare};
use crate::volume::StoreDirectoryTree;

/// The size of the stack buffer for a record. Most records fit into the buffer; a longer record costs a second call to
/// `fgetxattr` or `getxattrat`.
pub(crate) const RECORD_BYTES: usize = 512;
/// The maximum size of an attribute, in bytes: ext4 keeps all attributes of a file in one 4 KiB block.
pub(crate) const ATTRIBUTE_BYTES: usize = 3 * 1024;
/// The maximum size of a record, in bytes: more than 10,000 parts with their checksums need.
pub(crate) const MAX_RECORD_BYTES: usize = 1 << 20;
/// If setting an attribute fails with `ENOSPC` although the file system has more free bytes than this, the attribute is
/// too large.
const SOME_ROOM_BYTES: u64 = 1 << 20;

/// Identifies one version of one object by the size and modification time of its file, its ETag and its version ID.
pub(crate) type VersionIdentity = (u64, i64, String, String);

/// The users who own sidecar files with the records of a version.
type OwnedIdentities = HashMap<VersionIdentity, Vec<u32>>;

/// The record in an open file's attribute.
pub(crate) enum RecordAttribute {
    Absent,
    Found(ObjectRecord),
    /// The file system has no extended attributes.
    Unsupported,
}

/// The identities of all versions whose records are in the sidecar files of one bucket. The identities are read on
/// first use. Memory: about 150 bytes for each sidecar file.
#[derive(Default)]
pub(crate) struct SidecarIdentities {
    /// The bucket and its identities; no identities if a sidecar file could not be read.
    known: Option<(Bucket, Option<OwnedIdentities>)>,
}

impl SidecarIdentities {
    /// Returns whether the rest of a record is permanently lost. `short` is the part of the record in the attribute of
    /// a file that has the metadata `stat` and no valid sidecar file. The rest is lost if a POSIX program has changed
    /// the file and no sidecar file of the bucket belongs to the file. In this case, `fsck --migrate` would not find a
    /// sidecar file either. For example, the `gc` of earlier versions removed the sidecar files of changed files.
    /// Returns `false` if a sidecar file cannot be read.
    pub(crate) fn lack(
        &mut self,
        volume: &StoreDirectoryTree,
        bucket: &Bucket,
        (short, stat): (&ObjectRecord, &FileStat),
    ) -> bool {
        let Some(identity) = short.identity().filter(|_| short.is_of_other_content(stat)) else {
            return false;
        };
        if self.known.as_ref().is_none_or(|(known, _)| known != bucket) {
            self.known = Some((bucket.clone(), volume.identities_apart(bucket).ok()));
        }
        let Some((_, Some(known))) = &self.known else { return false };
        let Ok(guard) = volume.guard_now(bucket) else { return false };
        // As when a sidecar file is read, other users' sidecar files do not count.
        let is_believed =
            |owner: &u32| is_same_user(*owner, stat.user) || guard.is_none_or(|guard| guard.trusts(*owner));
        known.get(&identity).is_none_or(|owners| !owners.iter().any(is_believed))
    }
}

/// A file that is about to lose its last name. Until its sidecar file is removed, no new object may get its inode
/// number, because the sidecar file of the new object would have the same name.
pub(crate) struct UnlinkingFile {
    stat: FileStat,
    /// The device of the bucket's private area.
    private_device: u64,
    hold: InodeHold,
}

/// What keeps the inode number of a removed file in use.
enum InodeHold {
    /// The file is open.
    Open { _file: OwnedFd },
    /// The file has a hidden name. On a file system that other nodes may change, an open file would not be enough: a
    /// server does not know which files are open but not being read or written, and NFS and FUSE rename a file that is
    /// replaced while it is open.
    Named(HiddenName),
}

impl StoreDirectoryTree {
    /// Returns the record of the object in the open `file`, whose metadata is `stat`, or the default record if the file
    /// has no record. If `is_apart` is set in the returned record, the sidecar file with the rest of the record is
    /// missing. Cost: one `fgetxattr`, unless the object is bare. Errors: `Corrupt`; `ESTALE` if the object has been
    /// replaced or removed, and its sidecar file with it.
    pub(crate) fn load_record(&self, bucket: &Bucket, file: &File, stat: &FileStat) -> Result<ObjectRecord> {
        if is_bare(stat) {
            Ok(ObjectRecord::default())
        } else {
            self.stored_record(bucket, (file, stat), None)
        }
    }

    /// Returns the record as [`StoreDirectoryTree::load_record`] does, but also reads the attribute if the object seems
    /// to be bare. `place` is the path at which the file was opened, if known. The lock comes from the attribute, because
    /// an immutable flag protects the attribute, but not the sidecar file. Cost: one `fgetxattr`; if there may be a
    /// sidecar file, also its lookup; if it is missing, also the check that the object has not been removed: one
    /// `fstat` on a local file system, and one round trip on NFS if the file has one name and has not changed recently.
    /// Otherwise, and for a strong read, also the lookup of `place`.
    pub(crate) fn stored_record(
        &self,
        bucket: &Bucket,
        (file, stat): (&File, &FileStat),
        place: Option<&ObjectPath>,
    ) -> Result<ObjectRecord> {
        let require_kept = || self.require_kept_object(file, stat, place);
        let is_settled = self.is_local(stat.device) && is_settled(stat);
        match read_attribute(file)? {
            RecordAttribute::Absent => {
                if is_settled {
                    self.unrecorded.insert(stat);
                }
                Ok(ObjectRecord::default())
            }
            RecordAttribute::Found(record) if !record.is_apart => Ok(record),
            RecordAttribute::Found(short) => match self.read_sidecar(bucket, stat, Some(&short))? {
                Some(record) => Ok(ObjectRecord { lock: short.lock, ..record }),
                None => require_kept().map(|()| short),
            },
            RecordAttribute::Unsupported if self.contents(bucket)?.has_meta => {
                match self.read_sidecar(bucket, stat, None)? {
                    Some(record) => Ok(record),
                    None => require_kept().map(|()| ObjectRecord::default()),
                }
            }
            RecordAttribute::Unsupported => Ok(ObjectRecord::default()),
        }
    }

    /// Reads the record of an open object again, if the record is in a sidecar file that this node may have cached as
    /// missing. The caller holds the key's lock, and is about to change the record or to make a decision that depends
    /// on the record. Cost: none on a local file system; on other file systems, one `fgetxattr`, and further calls if
    /// there may be a sidecar file.
    pub(crate) fn renew_record(
        &self,
        bucket: &Bucket,
        opened: &mut ObjectFile,
        sharing: FileSystemSharing,
    ) -> Result<()> {
        if !sharing.is_shared() || opened.stat.is_dir {
            return Ok(());
        }
        let short = match read_attribute(&opened.file)? {
            RecordAttribute::Found(record) if record.is_apart => Some(record),
            RecordAttribute::Unsupported if !is_bare(&opened.stat) => None,
            _ => return Ok(()),
        };
        self.reveal(&place_of(bucket, &opened.stat), sharing)?;
        if let Some(mut record) = self.read_sidecar(bucket, &opened.stat, short.as_ref())? {
            record.lock = short.map_or(record.lock, |short| short.lock);
            opened.recorded = Some(Box::new(record.unseal_for(&opened.stat)));
        }
        Ok(())
    }

    /// Checks that an open file without a sidecar file, whose metadata is `seen`, is still an object. Otherwise, a
    /// writer may have removed the sidecar file together with the object, and the caller must open the key again. A
    /// removed object has no name, except on a file system that other nodes may change: there, the file has a hidden
    /// name until its sidecar file is removed, so the check may have to look up `place`, where the file was opened. If
    /// `place` is `None`, the check does not detect a file with a hidden name. Errors: `ESTALE`, and errors that leave
    /// this unknown. Cost: one `fstat`; on a file system that other nodes may change, one round trip, and the cost of
    /// [`StoreDirectoryTree::leads_to_at_server`] and another round trip if the file may have a hidden name.
    #[cold]
    fn require_kept_object(&self, file: &File, seen: &FileStat, place: Option<&ObjectPath>) -> Result<()> {
        let sharing = self.sharing_on(file, seen.device);
        let is_kept = match sharing.is_shared() {
            false => stat(file).map(|now| now.links > 0),
            true => self.is_kept_at_server(file, (seen, sharing), place),
        };
        match is_kept {
            Ok(true) => Ok(()),
            Ok(false) | Err(Errno::STALE) => Err(from_errno(Errno::STALE, "reading the metadata")),
            Err(errno) => Err(from_errno(errno, "reading the metadata")),
        }
    }

    fn is_kept_at_server(
        &self,
        file: &File,
        (seen, sharing): (&FileStat, FileSystemSharing),
        place: Option<&ObjectPath>,
    ) -> Result<bool, Errno> {
        let now = stat_now(file)?;
        let Some(place) = place else { return Ok(now.links > 0) };
        if now.links == 0 {
            return Ok(false);
        }
        if !self.is_strong() && sharing == FileSystemSharing::Nfs && has_kept_its_names(seen, &now) {
            return Ok(true);
        }
        // As long as the file has a name, the server gives its inode number to no other file. So the file is asked
        // again after the name: if it had a name then, `place` does not lead to a later file with its number.
        Ok(self.leads_to_at_server(place, (seen.device, seen.inode))? && stat_now(file)?.links > 0)
    }

    /// Returns the record in this file's sidecar file, if the sidecar file exists and is valid for this file. `short`
    /// is the record in the file's attribute; `None` if the file system has no extended attributes. Errors: `Corrupt`.
    pub(crate) fn read_sidecar(
        &self,
        bucket: &Bucket,
        stat: &FileStat,
        short: Option<&ObjectRecord>,
    ) -> Result<Option<ObjectRecord>> {
        let place = place_of(bucket, stat);
        // The sidecar file is opened again if another node replaces it between the open and the read.
        retry_stale(
            is_stale,
            || self.forget_file(&place),
            || self.try_read_sidecar(bucket, (stat, short), &place),
        )
    }

    fn try_read_sidecar(
        &self,
        bucket: &Bucket,
        (stat, short): (&FileStat, Option<&ObjectRecord>),
        place: &ObjectPath,
    ) -> Result<Option<ObjectRecord>> {
        let failed = |errno| from_errno(errno, "reading the metadata");
        let sharing = self.sharing_of(bucket);
        self.freshen_file(place, sharing)?;
        let path = place.path();
        let file = match self.open_private(place, sharing) {
            Ok(file) => file,
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
            Err(errno) => return Err(failed(errno)),
        };
        let corrupt = || Error::new(ErrorKind::Corrupt, format!("{path} was not written by this version"));
        let (bytes, state) = read_small(&file, MAX_RECORD_BYTES).map_err(failed)?.ok_or_else(corrupt)?;
        // A sidecar file is ignored if its owner is not trusted and does not own the object's file. Such a sidecar file
        // may contain false information about the object.
        let is_believed =
            |guard: TrustedOwner| is_same_user(state.user, stat.user) || guard.trusts(state.user);
        if !self.contents(bucket)?.guard.is_none_or(is_believed) {
            return Ok(None);
        }
        // Without an attribute, only the inode number connects the two files.
        if short.is_none() && state.device != stat.device {
            return Ok(None);
        }
        let record = ObjectRecord::decode(&bytes).ok_or_else(corrupt)?;
        Ok(record.is_rest_of(short, stat).then_some(record))
    }

    /// Checks that no part of the record is missing, because the caller is about to store the record again, or to copy
    /// it. If the missing part is permanently lost, the rest counts as the whole record from now on. Errors:
    /// `MethodNotAllowed`.
    pub(crate) fn require_whole(&self, bucket: &Bucket, opened: &mut ObjectFile) -> Result<()> {
        match opened.record().is_apart {
            true => self.accept_loss(bucket, opened),
            false => Ok(()),
        }
    }

    #[cold]
    fn accept_loss(&self, bucket: &Bucket, opened: &mut ObjectFile) -> Result<()> {
        // The record of a file reached through a symbolic link may be in another bucket.
        let is_lost = !opened.is_linked
            && match read_attribute(&opened.file)? {
                RecordAttribute::Found(short) => {
                    SidecarIdentities::default().lack(self, bucket, (&short, &opened.stat))
                }
                _ => false,
            };
        match &mut opened.recorded {
            Some(record) if is_lost => {
                record.is_apart = false;
                Ok(())
            }
            _ => Err(Error::new(
                ErrorKind::MethodNotAllowed,
                "the object's metadata and tags are missing: if this is a copy of a root, run `fordway fsck ROOT \
                 --migrate`; otherwise, put the object again, or copy it with new metadata and tags",
            )),
        }
    }

    /// Returns the identities of all versions whose records are in the bucket's sidecar files. Errors: `Corrupt`, and
    /// errors of the file system.
    fn identities_apart(&self, bucket: &Bucket) -> Result<OwnedIdentities> {
        let failed = |errno| from_errno(errno, "reading the metadata");
        let dir = match self.open_to_scan(&meta_dir(bucket)) {
            Ok(dir) => dir,
            Err(Errno::NOENT) => return Ok(OwnedIdentities::new()),
            Err(errno) => return Err(failed(errno)),
        };
        let mut identities = OwnedIdentities::new();
        for name in names_of(&dir).map_err(failed)?.iter().filter(|name| inode_of(name).is_some()) {
            let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
            match open_in(&dir, name, flags, Mode::empty())
                .and_then(|file| read_small(&file, MAX_RECORD_BYTES))
            {
                Ok(Some((bytes, state))) => {
                    if let Some(identity) = decode_record(&bytes)?.identity() {
                        identities.entry(identity).or_default().push(state.user);
                    }
                }
                // The object was removed.
                Err(Errno::NOENT | Errno::STALE) | Ok(None) => {}
                Err(errno) => return Err(failed(errno)),
            }
        }
        Ok(identities)
    }

    /// Returns the file `name` in `dir`, which is about to be removed or replaced, if its removal may leave a sidecar
    /// file behind.
    #[inline]
    pub(crate) fn may_have_sidecar(
        &self,
        (bucket, contents): (&Bucket, PrivateDirectoryContents),
        dir: impl AsFd,
        name: &str,
    ) -> Option<UnlinkingFile> {
        // Only the check for sidecar files is inlined, because almost no bucket has them.
        match contents.has_meta {
            false => None,
            true if contents.sharing.is_shared() => self.name_unlinking((bucket, contents.device), dir, name),
            true => UnlinkingFile::open(dir, name, contents.device),
        }
    }

    /// Gives the file `name` in `dir` a hidden name, if the file may have a sidecar file. Also returns `None` if the
    /// file cannot get the name; `gc` then removes the sidecar file. Cost: two or three round trips; for a file that
    /// may have a sidecar file, three more, and two when the sidecar file is removed.
    #[cold]
    fn name_unlinking(
        &self,
        (bucket, private_device): (&Bucket, u64),
        dir: impl AsFd,
        name: &str,
    ) -> Option<UnlinkingFile> {
        // Without this call, this node may still see a file that another node has replaced.
        let _ = stat_now(&dir);
        if !may_be_apart(&dir, name) {
            return None;
        }
        let (tmp, shelter) = self.staging_dir(bucket).ok()?;
        let aside = hidden_name().ok()?;
        match link(&dir, name, &tmp, &aside) {
            // No other writer uses this name, so the server has received the request twice.
            Ok(()) | Err(Errno::EXIST) => {}
            Err(_) => return None,
        }
        let hidden = HiddenName { dir: tmp, name: aside, is_temporary: true, _shelter: shelter };
        let stat = stat_in(&hidden.dir, &hidden.name).ok().filter(|stat| stat.is_file)?;
        Some(UnlinkingFile { stat, private_device, hold: InodeHold::Named(hidden) })
    }

    /// Removes the sidecar file of a removed file. If the removal fails, `gc` removes the sidecar file later.
    pub(crate) fn remove_sidecar(&self, bucket: &Bucket, gone: Option<UnlinkingFile>) {
        if let Some(gone) = gone.filter(UnlinkingFile::has_lost_its_names) {
            self.remove_sidecar_of(bucket, &gone.stat, gone.private_device);
        }
    }

    /// Removes the sidecar file of the file whose metadata is `stat`. `private_device` is the device of the bucket's
    /// private area. Returns whether there was a sidecar file.
    pub(crate) fn remove_sidecar_of(&self, bucket: &Bucket, stat: &FileStat, private_device: u64) -> bool {
        let Ok(dir) = self.open_dir(&meta_dir(bucket)) else { return false };
        let name = sidecar_name(stat.inode);
        // A file on a mount within the bucket may have the inode number of another object's file, to which the sidecar
        // file then belongs.
        let is_own = || stat_in(&dir, &name).is_ok_and(|sidecar| sidecar.device == stat.device);
        (stat.device == private_device || is_own()) && remove_file(&dir, &name).is_ok()
    }
}

/// Returns whether an NFS server's state `now` of a file shows that the file has not got a hidden name recently. `seen`
/// is the file's state when it was opened. A new link is counted, and changes the change time. File systems other than
/// NFS do not show this reliably: the state may come from the client's cache, and some do not count links.
fn has_kept_its_names(seen: &FileStat, now: &FileStat) -> bool {
    now.links == 1 && now.changed_ns == seen.changed_ns && !has_recent_names(now)
}

/// Returns whether the record of the file `name` in `dir` may be in a sidecar file. Cost: at most two calls.
fn may_be_apart(dir: impl AsFd, name: &str) -> bool {
    if stat_in(&dir, name).is_ok_and(|stat| is_bare(&stat)) {
        return false;
    }
    match get_xattr_in(dir, name, ATTRIBUTE, &mut [0; RECORD_BYTES]) {
        Ok(None) => false,
        Ok(Some(bytes)) => ObjectRecord::decode(bytes).is_none_or(|record| record.is_apart),
        // The attribute may be too long for the buffer, or the file system may have no attributes.
        Err(_) => true,
    }
}

impl UnlinkingFile {
    fn open(dir: impl AsFd, name: &str, private_device: u64) -> Option<Self> {
        let file = open_in(&dir, name, OFlags::PATH, Mode::empty()).ok()?;
        let stat = stat(&file).ok()?;
        let is_last_name = || links_in(dir, name).is_ok_and(|links| links <= 1);
        let hold = InodeHold::Open { _file: file };
        (stat.is_file && is_last_name()).then_some(UnlinkingFile { stat, private_device, hold })
    }

    /// Returns whether the file has lost all names that an object may have. On a file system that other nodes may
    /// change, the file may not be the one that was removed, because this node may have cached the name of an earlier
    /// file. The sidecar file named after its inode number may then belong to another object.
    fn has_lost_its_names(&self) -> bool {
        match &self.hold {
            InodeHold::Open { .. } => true,
            InodeHold::Named(HiddenName { dir, name, .. }) => match links_in(dir, name) {
                Ok(links) if links > 1 => links_after_link(dir, name) == Some(2),
                links => links == Ok(1),
            },
        }
    }
}

/// Returns the number of hard links to the file `name` in `dir` while the file has one more. The GlusterFS client may
/// return the number from a cache, but the server's response to the creation of a link refreshes that cache.
#[cold]
fn links_after_link(dir: &DirectoryHandle, name: &str) -> Option<u64> {
    let other = hidden_name().ok()?;
    link(dir, name, dir, &other).ok()?;
    let links = links_in(dir, name).ok();
    let _ = remove_file(dir, &other);
    links
}

impl ObjectRecord {
    /// Returns the part of the record that is stored in the attribute when the whole record does not fit.
    pub(crate) fn kept_short(&self) -> ObjectRecord {
        ObjectRecord {
            seal: self.seal,
            etag: self.etag.clone(),
            checksum: self.checksum.clone(),
            version: self.version.clone(),
            lock: self.lock,
            is_apart: true,
            ..Default::default()
        }
    }

    /// Returns whether this record, from a sidecar file, belongs to the file that has the metadata `stat` and whose
    /// attribute contains `short`.
    fn is_rest_of(&self, short: Option<&ObjectRecord>, stat: &FileStat) -> bool {
        let is_of_this_content = |record: &ObjectRecord| record.seal == Some(ContentChangeStamp::of(stat));
        match short.filter(|short| short.identity().is_some()) {
            // A POSIX program may have changed the file since the attribute was written. Fordway may then have been
            // killed after it had written a sidecar file for the changed content, and before it replaced the attribute.
            Some(short) if !is_of_this_content(short) => {
                self.identity() == short.identity() || is_of_this_content(self)
            }
            Some(short) => self.identity() == short.identity(),
            None => is_of_this_content(self),
        }
    }

    /// Returns the seal, the ETag and the version ID, which together identify one version of one object. Returns `None`
    /// if the record has no seal or no ETag.
    pub(crate) fn identity(&self) -> Option<VersionIdentity> {
        let (seal, etag) = (self.seal?, self.etag.as_ref()?.as_str().to_owned());
        let version = self.version.as_ref().map_or(String::new(), |version| version.as_str().to_owned());
        Some((seal.size, seal.modified_ns, etag, version))
    }

    /// Returns the record with a seal over the content that `stat` identifies. If the record has no ETag, the
    /// result contains the ETag derived from the file. [`ObjectRecord::unseal_for`] must already have been applied to
    /// the record.
    pub(crate) fn sealed_for(&self, stat: &FileStat) -> ObjectRecord {
        let etag = self.etag.clone().unwrap_or_else(|| etag_of_file(stat));
        ObjectRecord { seal: Some(ContentChangeStamp::of(stat)), etag: Some(etag), ..self.clone() }
    }

    /// Returns whether this record, from the attribute of a file whose metadata is `stat`, was stored for content that
    /// the file no longer has.
    fn is_of_other_content(&self, stat: &FileStat) -> bool {
        self.seal.is_some_and(|seal| seal != ContentChangeStamp::of(stat))
    }

    /// Returns whether the record contains no more information than the state `stat` of its file.
    pub(crate) fn says_no_more_than(&self, stat: &FileStat) -> bool {
        *self == ObjectRecord { seal: self.seal, etag: Some(etag_of_file(stat)), ..Default::default() }
    }
}

/// Returns the path of the sidecar file of a file whose metadata is `stat`.
pub(crate) fn place_of(bucket: &Bucket, stat: &FileStat) -> ObjectPath<'static> {
    ObjectPath { dir: meta_dir(bucket).into(), name: sidecar_name(stat.inode).into() }
}

/// Returns the name of the sidecar file for an inode number.
pub(crate) fn sidecar_name(inode: u64) -> String {
    format!("{inode:016x}")
}

/// Returns the inode number whose sidecar file is called `name`, or `None` if `name` is not a valid name for a sidecar
/// file.
pub(crate) fn inode_of(name: &str) -> Option<u64> {
    u64::from_str_radix(name, 16).ok().filter(|inode| sidecar_name(*inode) == name)
}

/// Returns the record in the attribute of the file `name` if the rest of the record is in a sidecar file. Returns
/// `None` for a symbolic link. If the caller may not read the attribute, reads it as the owner of the file. A file
/// whose attribute cannot be read must not be mistaken for a file without a record: its sidecar file may be the only
/// copy of the metadata. Cost: one `getxattrat`.
pub(crate) fn short_record(
    actors: &ImpersonatedUserCache,
    dir: &File,
    name: &str,
) -> Result<Option<ObjectRecord>, Errno> {
    let read = || {
        let mut buffer = [0; RECORD_BYTES];
        match get_xattr_in(dir, name, ATTRIBUTE, &mut buffer) {
            Ok(bytes) => Ok(bytes.and_then(ObjectRecord::decode)),
            // A long attribute contains the whole record. A file that has no attributes or no longer exists has no
            // record.
            Err(Errno::RANGE | Errno::OPNOTSUPP | Errno::NODATA | Errno::NOENT | Errno::LOOP) => Ok(None),
            Err(errno) => Err(errno),
        }
    };
    Ok(actors.or_as_owner(dir, name, read)?.filter(|record| record.is_apart))
}

pub(crate) fn read_attribute(file: &File) -> Result<RecordAttribute> {
    let found = |bytes: Option<&[u8]>| match bytes {
        None => Ok(RecordAttribute::Absent),
        Some(bytes) => decode_record(bytes).map(RecordAttribute::Found),
    };
    let failed = |errno| from_errno(errno, "reading the metadata");
    match get_xattr(file, ATTRIBUTE, &mut [0; RECORD_BYTES]) {
        Ok(bytes) => found(bytes),
        Err(Errno::OPNOTSUPP) => Ok(RecordAttribute::Unsupported),
        Err(Errno::RANGE) => {
            let mut long = vec![0; 64 * 1024];
            found(get_xattr(file, ATTRIBUTE, &mut long).map_err(failed)?)
        }
        Err(errno) => Err(failed(errno)),
    }
}

pub(crate) fn decode_record(bytes: &[u8]) -> Result<ObjectRecord> {
    ObjectRecord::decode(bytes).ok_or_else(|| {
        let name = layout::ATTRIBUTE.to_string_lossy();
        Error::new(ErrorKind::Corrupt, format!("the attribute {name} was not written by this version"))
    })
}

/// Returns whether `errno` means only that the attribute is too long for this file.
pub(crate) fn is_no_room(errno: Errno, file: impl AsFd) -> bool {
    match errno {
        Errno::TOOBIG | Errno::RANGE => true,
        // ext4 returns ENOSPC for an attribute that does not fit into the file's one attribute block.
        Errno::NOSPC => free_bytes(file).is_ok_and(|free| free > SOME_ROOM_BYTES),
        _ => false,
    }
}
