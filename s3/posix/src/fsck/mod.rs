//! Checks the files on disk against their stored metadata. Changes nothing.
//!
//! Each file costs one `newfstatat` and one `getxattrat`. A file is opened only if these calls show a problem, or if
//! its content must be read. A file that is replaced or removed during the check is not reported as a finding.

mod content;
mod events;
mod private;

use std::fs::File;
use std::rc::Rc;
use std::time::SystemTime;

use fordway_store::{Bucket, BucketDocumentKind, Error, ErrorKind, MAX_KEY_BYTES, Result};
use fordway_sys::{
    EntryKind, Errno, FileStat, Mode, OFlags, get_xattr_in, is_immutable, name_to_text, open_in, stat,
    stat_in, text_to_name,
};

use crate::actors::{ImpersonatedUserCache, bucket_owner};
use crate::errors::{from_errno, is_stale};
use crate::layout::{ATTRIBUTE, ObjectPath, PRIVATE_DIR, join};
use crate::record::{ContentChangeStamp, ObjectRecord};
use crate::scan::{
    BucketArea, BucketAreaKind, ChosenBuckets, PROGRESS_ENTRIES, each_entry, known_kind, open_child,
    path_of_child,
};
use crate::sidecar::{RECORD_BYTES, SidecarIdentities, place_of};
use crate::stage::is_bare;
use crate::versions::names::NoncurrentVersionName;
use crate::{PosixStore, PosixStoreState};

/// The options of [`PosixStore::check`].
#[derive(Clone, Debug, Default)]
pub struct FsckOptions {
    /// The buckets to check. If the list is empty, all buckets are checked.
    pub buckets: Vec<Bucket>,
    /// Whether to also read each file that has an MD5 or a checksum, and to compare its content with this digest.
    pub read: bool,
    /// Whether to also report locked versions whose files do not have the immutable flag (see
    /// [`crate::PosixConfig::immutable_locks`]).
    pub immutable_locks: bool,
    /// A function that checks the bucket's documents, for example the policy, and describes the problem with a
    /// document. This crate itself can check only the notification configuration.
    pub document_problem: Option<DocumentCheckFunction>,
}

/// Describes the problem with a document of a bucket; returns `None` for a document without problems.
pub type DocumentCheckFunction = fn(&Bucket, &BucketDocumentKind, &[u8]) -> Option<String>;

/// An event during a check. The receiver can stop the check by returning an error.
#[derive(Debug)]
pub enum FsckEvent<'e> {
    /// The totals so far. This event is sent at least once per 1,024 entries, and about every 4 MiB of content.
    Progress(&'e FsckSummary),
    /// A finding, which may be only a note (see [`FindingSeverity`]).
    Found(FsckFinding),
}

/// The totals of a check: examined entries, files and bytes, and findings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FsckSummary {
    /// The number of directory entries examined.
    pub entries: u64,
    /// The number of files examined: objects, old versions, delete markers, and parts of uploads.
    pub files: u64,
    /// The total size of the files examined, in bytes.
    pub size_bytes: u64,
    /// The number of files whose content was checked against a digest.
    pub read_files: u64,
    /// The number of content bytes read to check digests.
    pub read_bytes: u64,
    /// The number of findings of severity `Note`.
    pub notes: u64,
    /// The number of findings of severity `Unreadable`.
    pub unreadable: u64,
    /// The number of findings of severity `Corrupt`.
    pub corrupt: u64,
}

impl PosixStore {
    /// Checks all files in the buckets, and passes each finding to `tell`. A process that may act as other users
    /// examines each bucket as the bucket's owner, and other users' files as the users who own them. Memory: one open
    /// directory for each level of the tree. Cost: see the module documentation; with [`FsckOptions::read`], also about
    /// 1.4 ms per MiB of content that has an MD5. Errors: `NoSuchBucket` before anything is checked; errors that `tell`
    /// returns.
    pub fn check(
        &self,
        options: &FsckOptions,
        tell: &mut dyn FnMut(FsckEvent) -> Result<()>,
    ) -> Result<FsckSummary> {
        let chosen = ChosenBuckets::of(self, &options.buckets)?;
        let (summary, buffer) = (FsckSummary::default(), Vec::new());
        let actors = Rc::new(ImpersonatedUserCache::new(&self.inner));
        let (inner, now) = (&self.inner, SystemTime::now());
        let identities = SidecarIdentities::default();
        let mut check =
            FsckRun { inner, actors: actors.clone(), options, now, tell, summary, buffer, identities };
        for (bucket, error) in &chosen.unreadable {
            check.found(FindingKind::Unreadable, bucket.as_str(), error.to_string())?;
        }
        for bucket in &chosen.buckets {
            match bucket_owner(&self.inner, bucket) {
                Ok(Some(owner)) => actors.act_as(owner, || check.bucket(bucket))?,
                // The bucket's owner has removed the bucket in the meantime. The other buckets must still be checked.
                Ok(None) => {}
                Err(error) => check.found(FindingKind::Unreadable, bucket.as_str(), error.to_string())?,
            }
        }
        check.progress()?;
        Ok(check.summary)
    }
}

struct FsckRun<'c> {
    inner: &'c PosixStoreState,
    actors: Rc<ImpersonatedUserCache>,
    options: &'c FsckOptions,
    now: SystemTime,
    tell: &'c mut dyn FnMut(FsckEvent) -> Result<()>,
    summary: FsckSummary,
    /// A buffer, reused for each file, for the content to be hashed.
    buffer: Vec<u8>,
    identities: SidecarIdentities,
}

impl FsckRun<'_> {
    fn bucket(&mut self, bucket: &Bucket) -> Result<()> {
        if self.inner.volume.root.leads_into_bucket(bucket) {
            self.found(FindingKind::BucketLink, bucket.as_str(), "")?;
        }
        for area in BucketArea::all(bucket) {
            self.tree(&area)?;
        }
        self.uploads(bucket)?;
        self.sidecar_names(bucket)?;
        self.versioning(bucket)?;
        self.notifications(bucket)?;
        self.documents(bucket)?;
        self.events(bucket)?;
        self.private_area(bucket)
    }

    fn tree(&mut self, area: &BucketArea) -> Result<()> {
        match self.inner.volume.open_to_scan(&area.top) {
            Ok(dir) => self.directory(area, &dir, &area.top),
            // If there is a file in place of the directory, the check of the private area reports the file.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(()),
            Err(errno) => self.unreadable(&area.top, errno, "opening"),
        }
    }

    fn directory(&mut self, area: &BucketArea, dir: &File, path: &str) -> Result<()> {
        let read = each_entry(dir, |name, kind| {
            self.looked_at_one()?;
            if area.is_private(name) {
                return self.private_in(area, path);
            }
            let text = name_to_text(name);
            if std::str::from_utf8(name).is_err() {
                self.found(FindingKind::NotUtf8, join(path, &text), "")?;
            }
            self.entry(area, dir, path, &text, kind)
        })?;
        read.or_else(|errno| self.unreadable(path, errno, "reading"))
    }

    /// Reports a private area, in the directory `path`, that is not the bucket's own.
    fn private_in(&mut self, area: &BucketArea, path: &str) -> Result<()> {
        match path == area.bucket.as_str() {
            true => Ok(()),
            false => self.found(FindingKind::NestedPrivate, join(path, PRIVATE_DIR), ""),
        }
    }

    fn entry(
        &mut self,
        area: &BucketArea,
        dir: &File,
        path: &str,
        name: &str,
        kind: EntryKind,
    ) -> Result<()> {
        match known_kind(dir, name, kind) {
            EntryKind::Dir => self.child(area, dir, path, name),
            EntryKind::File => {
                self.name(area, path, name)?;
                self.file(area.bucket, dir, path, name)
            }
            EntryKind::Link => self.link(join(path, name)),
            EntryKind::Other => self.found(FindingKind::SpecialFile, join(path, name), ""),
            // The entry was removed in the meantime.
            EntryKind::Unknown => Ok(()),
        }
    }

    fn child(&mut self, area: &BucketArea, parent: &File, path: &str, name: &str) -> Result<()> {
        let Some(path) = path_of_child(area.bucket, path, name) else {
            return self.found(FindingKind::LongKey, join(path, name), "nothing below it was checked");
        };
        match open_child(parent, name) {
            Ok(dir) => self.directory(area, &dir, &path),
            // A writer has removed the directory, or put a file in its place.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(()),
            Err(errno) => match self.actors.open_as_owner(parent, name, errno) {
                Ok((dir, owner)) => self.actors.clone().act_as(owner, || self.directory(area, &dir, &path)),
                Err(errno) => self.unreadable(&path, errno, "opening"),
            },
        }
    }

    /// Checks that the file's name is the name of a key or of an old version.
    fn name(&mut self, area: &BucketArea, path: &str, name: &str) -> Result<()> {
        let place = join(path, name);
        let is_ours = match area.held {
            BucketAreaKind::Plain => return self.plain_name(area, place),
            BucketAreaKind::Odd => area.decode(&place).is_some(),
            BucketAreaKind::Versions => {
                area.decode(path).is_some() && NoncurrentVersionName::parse(name).is_some()
            }
        };
        match (is_ours, area.held) {
            (true, _) => Ok(()),
            (false, BucketAreaKind::Versions) => self.found(FindingKind::VersionName, place, ""),
            (false, _) => self.found(FindingKind::OddName, place, ""),
        }
    }

    fn plain_name(&mut self, area: &BucketArea, place: String) -> Result<()> {
        let key_bytes = place.len() - area.top.len() - 1;
        if key_bytes <= MAX_KEY_BYTES {
            return Ok(());
        }
        self.found(FindingKind::LongKey, place, format!("the key has {key_bytes} bytes"))
    }

    fn link(&mut self, path: String) -> Result<()> {
        match self.inner.volume.root.open_beneath(&path, OFlags::PATH, Mode::empty()) {
            Ok(_) => Ok(()),
            Err(Errno::XDEV) => self.found(FindingKind::LinkOutside, path, "it leads outside the root"),
            Err(Errno::LOOP) => {
                self.found(FindingKind::LinkOutside, path, "it is part of a loop of symbolic links")
            }
            Err(Errno::NOENT | Errno::NOTDIR) => self.found(FindingKind::LinkDangling, path, ""),
            Err(errno) => self.unreadable(&path, errno, "following"),
        }
    }

    /// Checks the file `name` in `dir`, and opens the file only if necessary.
    fn file(&mut self, bucket: &Bucket, dir: &File, path: &str, name: &str) -> Result<()> {
        let stat = match stat_in(dir, name) {
            Ok(stat) if stat.is_file => stat,
            // The file was removed, or was replaced by an entry that is not a file.
            Ok(_) | Err(Errno::NOENT) => return Ok(()),
            Err(errno) => return self.unreadable(&join(path, name), errno, "examining"),
        };
        self.summary.files += 1;
        self.summary.size_bytes += stat.size;
        let mut short = [0; RECORD_BYTES];
        match get_xattr_in(dir, name, ATTRIBUTE, &mut short) {
            Ok(None) | Err(Errno::NOENT) => Ok(()),
            Ok(Some(bytes)) if !is_bare(&stat) && self.is_fine(bytes, &stat) => Ok(()),
            // Without extended attributes, a record can only be in a sidecar file.
            Err(Errno::OPNOTSUPP) if is_bare(&stat) && !self.has_sidecars(bucket)? => Ok(()),
            _ => self.opened(bucket, dir, &join(path, name), name),
        }
    }

    /// Returns whether the file's state and record show no problem, in which case the file need not be opened.
    fn is_fine(&self, record: &[u8], stat: &FileStat) -> bool {
        let Some(record) = ObjectRecord::decode(record) else { return false };
        let is_to_be_read = self.options.read && content::can_be_checked(&record);
        let is_to_be_opened = is_to_be_read || self.must_be_immutable(&record);
        is_sealed(&record, stat) && !record.is_apart && !is_to_be_opened
    }

    fn has_sidecars(&self, bucket: &Bucket) -> Result<bool> {
        Ok(self.inner.volume.contents(bucket)?.has_meta)
    }

    fn must_be_immutable(&self, record: &ObjectRecord) -> bool {
        self.options.immutable_locks && record.lock.is_active(self.now)
    }

    /// Checks a file after opening it, so that its state and its record belong to the same version.
    fn opened(&mut self, bucket: &Bucket, dir: &File, path: &str, name: &str) -> Result<()> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let open = || open_in(dir, name, flags, Mode::empty());
        let file = match self.actors.or_as_owner(dir, name, open) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT | Errno::LOOP) => return Ok(()),
            Err(errno) => return self.unreadable(path, errno, "opening"),
        };
        let stat = match stat(&file) {
            Ok(stat) if stat.is_file => stat,
            Ok(_) => return Ok(()),
            Err(errno) => return self.unreadable(path, errno, "examining"),
        };
        let volume = &self.inner.volume;
        // The kernel checks permissions again when the attribute of an open file is read, but not when the content is
        // read.
        let place = ObjectPath::of_path(path.to_owned());
        let load = || {
            let stored = || volume.stored_record(bucket, (&file, &stat), Some(&place));
            self.actors.or_as(Some(stat.user), stored)
        };
        let mut loaded = load();
        if loaded.as_ref().is_ok_and(|record| record.is_apart) {
            // The sidecar file is looked up again, because this node may have cached it as missing.
            loaded = volume.reveal(&place_of(bucket, &stat), volume.sharing_of(bucket)).and_then(|()| load());
        }
        if loaded.as_ref().is_ok_and(|record| !record.is_empty()) && is_hidden(&file, &stat) {
            self.found(FindingKind::HiddenRecord, path, "")?;
        }
        if loaded.as_ref().is_ok_and(|record| self.must_be_immutable(record))
            && is_immutable(&file) == Ok(false)
        {
            self.found(FindingKind::NotImmutable, path, "")?;
        }
        match loaded {
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                self.found(FindingKind::BadRecord, path, error.detail())
            }
            // A writer has replaced or removed the object since it was opened.
            Err(error) if is_stale(&error) => Ok(()),
            Err(error) => self.found(FindingKind::Unreadable, path, error.to_string()),
            Ok(record) if record.is_apart => match self.identities.lack(volume, bucket, (&record, &stat)) {
                true => self.changed(path, &record, &stat),
                false => self.found(FindingKind::RecordMissing, path, ""),
            },
            Ok(record) if !is_sealed(&record, &stat) => self.changed(path, &record, &stat),
            Ok(record) if self.options.read => self.content(path, &file, &record),
            Ok(_) => Ok(()),
        }
    }

    fn changed(&mut self, path: &str, record: &ObjectRecord, now: &FileStat) -> Result<()> {
        let detail = match record.seal {
            Some(ContentChangeStamp { size, .. }) if size != now.size => {
                format!("{size} bytes were stored, but the file now has {}", now.size)
            }
            Some(_) => "the file was changed after it was stored".to_owned(),
            None => "the record does not state the content to which its ETag belongs".to_owned(),
        };
        let lost = if record.is_apart { "; its metadata and tags are lost" } else { "" };
        let detail = format!("{detail}{lost}");
        self.found(FindingKind::Changed, path, detail)
    }

    fn unreadable(&mut self, path: &str, errno: Errno, doing: &str) -> Result<()> {
        let error: Error = from_errno(errno, doing);
        let detail = match error.detail() {
            "" => error.to_string(),
            detail => detail.to_owned(),
        };
        self.found(FindingKind::Unreadable, path, detail)
    }

    fn found(&mut self, kind: FindingKind, path: impl Into<String>, detail: impl Into<String>) -> Result<()> {
        let count = match kind.severity() {
            FindingSeverity::Note => &mut self.summary.notes,
            FindingSeverity::Unreadable => &mut self.summary.unreadable,
            FindingSeverity::Corrupt => &mut self.summary.corrupt,
        };
        *count += 1;
        let path = show_name(&text_to_name(&path.into()));
        (self.tell)(FsckEvent::Found(FsckFinding { kind, path, detail: detail.into() }))
    }

    fn looked_at_one(&mut self) -> Result<()> {
        self.summary.entries += 1;
        if self.summary.entries.is_multiple_of(PROGRESS_ENTRIES) { self.progress() } else { Ok(()) }
    }

    fn progress(&mut self) -> Result<()> {
        (self.tell)(FsckEvent::Progress(&self.summary))
    }
}

/// Returns whether the sticky bit hides the record of a file that had the metadata `before`. A writer that adds a
/// record to a bare object removes the bit after it has added the record, so the metadata is read again.
fn is_hidden(file: &File, before: &FileStat) -> bool {
    is_bare(before) && stat(file).is_ok_and(|now| is_bare(&now))
}

/// Returns whether the ETag and the checksum in the record apply to the file in its current state. Returns `true` if
/// the record contains neither an ETag nor a checksum.
fn is_sealed(record: &ObjectRecord, stat: &FileStat) -> bool {
    (record.etag.is_none() && record.checksum.is_none()) || record.seal == Some(ContentChangeStamp::of(stat))
}

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FindingSeverity {
    /// Information that does not indicate damage.
    Note,
    /// A file or directory could not be examined.
    Unreadable,
    /// Data or metadata differs from what was stored.
    Corrupt,
}

impl FindingSeverity {
    /// Returns the name used in tables and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            FindingSeverity::Note => "note",
            FindingSeverity::Unreadable => "unreadable",
            FindingSeverity::Corrupt => "corrupt",
        }
    }
}

macro_rules! findings {
    ($($(#[$doc:meta])* $kind:ident = $name:literal, $severity:ident, $advice:literal;)*) => {
        /// The kinds of findings.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum FindingKind { $($(#[$doc])* $kind,)* }

        impl FindingKind {
            /// All kinds, in declaration order.
            pub const ALL: &'static [FindingKind] = &[$(FindingKind::$kind),*];

            /// Returns the name used in tables and JSON.
            pub const fn name(self) -> &'static str {
                match self { $(FindingKind::$kind => $name),* }
            }

            /// Returns the severity of this kind.
            pub const fn severity(self) -> FindingSeverity {
                match self { $(FindingKind::$kind => FindingSeverity::$severity),* }
            }

            /// Returns advice on what the user can do next.
            pub const fn advice(self) -> &'static str {
                match self { $(FindingKind::$kind => $advice),* }
            }
        }
    };
}

findings! {
    /// The content does not match the stored MD5 or checksum, although the file's size and modification time match the
    /// record.
    Corrupt = "corrupt", Corrupt,
        "restore it from a copy; do not overwrite it before you have one";
    /// The `user.fordway` attribute, or the sidecar file below `.fordway/meta`, cannot be decoded.
    BadRecord = "bad-record", Corrupt,
        "restore it, or remove it (an attribute: setfattr -x user.fordway) to accept the content without metadata";
    /// The file has a record and also the sticky bit, which marks a file without a record. S3 clients therefore see no
    /// metadata, tags, version ID or lock. A POSIX program has set the bit, for example with `chmod -R 1777`.
    HiddenRecord = "hidden-record", Corrupt,
        "remove the sticky bit (chmod -t), or run `fordway fsck --migrate`, which removes it from all such files";
    /// According to the attribute, the rest of the record is in a sidecar file, but this sidecar file is missing or
    /// belongs to another version. The content is intact; the object's metadata, tags and list of parts are lost.
    RecordMissing = "record-missing", Corrupt,
        "in a copy of a root, run fsck --migrate; else restore the file below .fordway/meta that has the inode's name, \
         or put the object again, or copy it, with new metadata and tags";
    /// The content of the file `.fordway/versioning` is not valid.
    BadVersioning = "bad-versioning", Corrupt,
        "set the bucket's versioning again with an S3 client; until then, old versions are kept";
    /// The notification configuration is not valid, or writers do not trust its file because of the file's owner or
    /// mode. The finding may also mean that the file `markers` does not announce the configuration, so that writers do
    /// not look for it.
    BadNotification = "bad-notification", Corrupt,
        "check or remove the file, then have the bucket's owner set it again; until then, changes have no events";
    /// A document of the bucket, for example the policy, cannot be parsed or cannot be read as a document.
    BadDocument = "bad-document", Corrupt,
        "check or remove the file, then set it again; `fordway admin show` shows which settings the bucket has";
    /// The record of a multipart upload, or of a part, cannot be decoded. The finding may also mean that the record of
    /// an upload contains no valid key, or that Fordway cannot have written the record of a part.
    BadUpload = "bad-upload", Corrupt,
        "have the client send the part again, or remove the upload's directory and have the client start again";
    /// The file or directory cannot be opened or read.
    Unreadable = "unreadable", Unreadable,
        "run as a user who may read the file; if that does not help, look for disk errors in the kernel's log";
    /// A POSIX program changed the file, so its stored ETag and checksum no longer apply.
    Changed = "changed", Note,
        "nothing, if the change was intended; otherwise restore it; copying it onto itself with --content-type or --metadata stores a new ETag";
    /// The file of a locked version does not have the immutable flag. Writers remove the flag while they change the
    /// key, so a key that is being changed during the check may be reported.
    NotImmutable = "not-immutable", Note,
        "set the flag (chattr +i); S3 clients cannot remove the version, but programs on this machine can";
    /// The mode of `.fordway`, or of an entry in it, lacks permissions that the bucket's directory has. Other writers
    /// of the bucket cannot replace or delete objects. A writer that was killed may have left such a mode, or the mode
    /// of the bucket's directory was changed later.
    ClosedPrivate = "closed-private", Note,
        "run `fordway fsck --migrate` as the owner or as root, which sets the mode";
    /// A name below `.fordway/odd` that is not an encoded key.
    OddName = "odd-name", Note,
        "move it away; no S3 client can see it";
    /// A name below `.fordway/versions` that is not the name of a version.
    VersionName = "version-name", Note,
        "move it away; no S3 client can see it";
    /// A name below `.fordway/meta` that is not the name of a sidecar file.
    SidecarName = "sidecar-name", Note,
        "move it away; nothing reads it";
    /// An entry of `.fordway/events` that is not the record of an event.
    BadEvent = "bad-event", Note,
        "move it away; it is not delivered";
    /// A key of more than 1,024 bytes.
    LongKey = "long-key", Note,
        "shorten the path; S3 clients cannot name it";
    /// A directory or file called `.fordway` below a directory of the bucket.
    NestedPrivate = "nested-private", Note,
        "the files in it are not objects; if its directory was a bucket, move that directory next to the other buckets; \
         if early versions of Fordway stored the files as objects, put them again under their keys";
    /// A name that is not UTF-8.
    NotUtf8 = "not-utf8", Note,
        "rename it (convmv); S3 clients see private characters in place of such bytes";
    /// A symbolic link that leads outside the root, or is part of a loop.
    LinkOutside = "link-outside", Note,
        "replace it by its target, or by a link within the root; S3 clients cannot follow it";
    /// A bucket that is a symbolic link to a directory within another bucket, or to the root.
    BucketLink = "bucket-link", Note,
        "let the link lead to a bucket; S3 clients can only read through it";
    /// A symbolic link whose target does not exist.
    LinkDangling = "link-dangling", Note,
        "remove it or restore its target; S3 clients do not see it";
    /// A FIFO, socket or device.
    SpecialFile = "special-file", Note,
        "move it away; S3 clients do not see it";
    /// The directory of an upload whose record is missing.
    UploadRest = "upload-rest", Note,
        "run `fordway gc`";
    /// A file in an upload's directory that is neither the upload's record nor a part.
    StrayPart = "stray-part", Note,
        "remove it by hand once the upload is gone; Fordway neither reads nor removes it";
    /// A name in `.fordway` that Fordway does not use.
    StrayPrivate = "stray-private", Note,
        "move it away; Fordway neither reads nor removes it";
    /// `.fordway`, or a file in it, does not have the type with which Fordway creates it. For example, a symbolic link,
    /// a FIFO or a file has replaced a directory. In a bucket with the sticky bit, the finding may also mean that a
    /// user other than the bucket's owner or root owns the file or directory, or could remove other users' files in the
    /// directory.
    NotOurs = "not-ours", Corrupt,
        "find out who created it, and remove it; or run `fordway fsck --migrate` as root, which makes the bucket's owner the owner of directories";
}

/// A finding about one file or directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FsckFinding {
    /// The kind of finding.
    pub kind: FindingKind,
    /// The path of the file, relative to the root; bytes that are not UTF-8 are shown as `\xNN`.
    pub path: String,
    /// Further details; may be empty.
    pub detail: String,
}

/// Renders a name, which may contain arbitrary bytes, as unambiguous text.
pub(super) fn show_name(name: &[u8]) -> String {
    let mut shown = String::with_capacity(name.len() + 8);
    for chunk in name.utf8_chunks() {
        shown.push_str(chunk.valid());
        chunk.invalid().iter().for_each(|byte| shown.push_str(&format!("\\x{byte:02x}")));
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_told_apart_and_say_what_to_do() {
        let mut names: Vec<_> = FindingKind::ALL.iter().map(|kind| kind.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), FindingKind::ALL.len());
        assert!(FindingKind::ALL.iter().all(|kind| !kind.advice().is_empty()));
    }

    #[test]
    fn foreign_names_are_shown_byte_by_byte() {
        assert_eq!(show_name(b"a\xff\xc3\xa4"), "a\\xff\u{e4}");
    }
}
