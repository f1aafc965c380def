//! The root directory, and the rule that limits where symbolic links beneath the root may lead.
//!
//! In this file, a link is a symbolic link. Links are followed among the objects of a bucket, but not in its private
//! area. Anyone who can write to the bucket could otherwise place links in the private area that lead other programs,
//! including `gc` running as root, to other users' files. Links into a private area are not followed either. Reads
//! follow links into other buckets, but changes do not, because a change would be made under the locks and rules of the
//! bucket that contains the link.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use fordway_store::{Bucket, Error, ErrorKind, Key, Result, VersioningState};
use fordway_sys::{
    Errno, FileStat, FileSystemSharing, Mode, OFlags, PerProcess, RootDirectory, SymlinkPolicy, make_dir,
    open_in, remove_dir, set_xattr, stat, stat_in, sync_all,
};

use crate::area::not_ours;
use crate::dirs::{DirectoryCache, DirectoryHandle};
use crate::entries::collect_entries;
use crate::errors::{LEAVES_BUCKET, from_errno, on_root};
use crate::layout::{OUR_DIR, ObjectPath, PRIVATE_DIR, is_events_dir, is_private, join};
use crate::private::{PrivateDirectoryCache, PrivateDirectoryContents};
use crate::recent::SetBackFiles;
use crate::remote::RemoteBuckets;
use crate::site::{FileSystemTraits, require_fit, site_of_root};
use crate::stage::{DIR_MODE, MAX_RACES, give_way, sync_dir};
use crate::unrecorded::UnrecordedFiles;
use crate::versions::KeyVersions;
use crate::{Durability, PosixConfig, ReadConsistency, format};

/// The root directory with its cached state: the directories that the store keeps open, and the contents of each
/// bucket's private area. This type finds, opens and describes files, and creates directories.
/// [`crate::PosixStoreState`] takes locks and publishes files.
pub(crate) struct StoreDirectoryTree {
    pub(crate) path: PathBuf,
    pub(crate) root: BucketsRoot,
    pub(crate) config: PosixConfig,
    /// The root's file system. A bucket may be on a different file system.
    site: FileSystemTraits,
    /// The root's device number.
    device: u64,
    pub(crate) dirs: PerProcess<DirectoryCache>,
    pub(crate) private: PrivateDirectoryCache,
    pub(crate) unrecorded: UnrecordedFiles,
    /// Files whose time a program has set back.
    pub(crate) set_back: SetBackFiles,
}

impl StoreDirectoryTree {
    /// Opens the root. Errors: `InvalidArgument` if `root` is missing or not a directory; `AccessDenied`;
    /// `NotImplemented` if the root has a later format version.
    pub(crate) fn open(root: &Path, config: PosixConfig) -> Result<Self> {
        let opened = RootDirectory::open(root, config.resolution).map_err(|errno| on_root(errno, root))?;
        format::check(&opened, root)?;
        let site = site_of_root(&opened).map_err(|errno| on_root(errno, root))?;
        let FileStat { device, inode, .. } = stat(opened.dir()).map_err(|errno| on_root(errno, root))?;
        Ok(StoreDirectoryTree {
            path: root.to_owned(),
            root: BucketsRoot::new(opened, config.links),
            config,
            site,
            device,
            dirs: PerProcess::default(),
            private: PrivateDirectoryCache::new(site, RemoteBuckets::of_root((device, inode))),
            unrecorded: UnrecordedFiles::default(),
            set_back: SetBackFiles::default(),
        })
    }

    /// Checks the root's mount. Errors: `NotImplemented` if the store's guarantees are known not to hold on this mount.
    pub(crate) fn require_fit(&self) -> Result<()> {
        require_fit(self.site.unfit, &self.config, self.path.display())
    }

    /// Returns an error of `kind`, or `NoSuchBucket` if the bucket itself is missing.
    pub(crate) fn missing(&self, bucket: &Bucket, kind: ErrorKind) -> Error {
        self.require_bucket(bucket).err().unwrap_or_else(|| kind.into())
    }

    /// Checks that the bucket exists. Cost: usually one `fstat`, because the store keeps the bucket's directory open.
    /// Errors: `NoSuchBucket`, and errors from opening the bucket.
    pub(crate) fn require_bucket(&self, bucket: &Bucket) -> Result<()> {
        let sharing = self.sharing_of(bucket);
        let held = match sharing.is_shared() {
            true => None,
            false => self.dirs.open(&self.root, bucket.as_str()).ok().filter(|dir| !dir.is_gone()),
        };
        let open = || self.open_dir(bucket.as_str()).and_then(|dir| self.require_kept(&dir, sharing));
        match held.map_or_else(open, |_| Ok(())) {
            Ok(()) => Ok(()),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::STALE) => Err(ErrorKind::NoSuchBucket.into()),
            Err(errno) => Err(from_errno(errno, "opening the bucket")),
        }
    }

    /// Returns the versions of a key.
    pub(crate) fn versions<'v>(&'v self, bucket: &'v Bucket, key: &'v Key) -> KeyVersions<'v> {
        KeyVersions { volume: self, bucket, key }
    }

    /// Returns whether the bucket keeps versions. Errors: as for [`StoreDirectoryTree::require_bucket`].
    pub(crate) fn versioning(&self, bucket: &Bucket) -> Result<VersioningState> {
        self.require_bucket(bucket)?;
        Ok(self.contents(bucket)?.versioning)
    }

    /// Checks that the bucket exists, and returns the contents of its private directory. Cost: usually one `fstat`.
    /// Errors: as for [`StoreDirectoryTree::require_bucket`].
    pub(crate) fn contents_of_existing(&self, bucket: &Bucket) -> Result<PrivateDirectoryContents> {
        let glance = self.private.glance(&self.root, bucket).map_err(unreadable)?;
        if !glance.contents.sharing.is_shared()
            && let Ok(dir) = self.dirs.open(&self.root, bucket.as_str())
        {
            // A bucket directory cannot have been removed while its private directory exists.
            if glance.is_held_by(&dir) {
                return Ok(glance.contents);
            }
            if !dir.is_gone() {
                glance.was_held_by(&dir);
                return Ok(glance.contents);
            }
        }
        self.require_bucket(bucket).map(|()| glance.contents)
    }

    /// Opens the directory at `path` with `O_PATH`, for operations on its entries.
    pub(crate) fn open_dir(&self, path: &str) -> Result<File, Errno> {
        self.root.open_beneath(path, OFlags::PATH | OFlags::DIRECTORY, Mode::empty())
    }

    /// Opens the directory at `path` for [`crate::scan::each_entry`].
    pub(crate) fn open_to_scan(&self, path: &str) -> Result<File, Errno> {
        self.root.open_beneath(path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())
    }

    /// Returns whether `path` leads to a regular file.
    pub(crate) fn is_file(&self, path: &str) -> bool {
        let found = self.root.open_beneath(path, OFlags::PATH, Mode::empty()).and_then(stat);
        found.is_ok_and(|stat| stat.is_file)
    }

    /// Returns the contents of the bucket's private directory. Cost: usually one `fstat`.
    pub(crate) fn contents(&self, bucket: &Bucket) -> Result<PrivateDirectoryContents> {
        Ok(self.private.glance(&self.root, bucket).map_err(unreadable)?.contents)
    }

    /// Returns the contents of the bucket's private directory, which may be up to 10 ms old. The result is current if
    /// other nodes may change the file system and [`ReadConsistency::Strong`] is set. Cost: usually none. Errors:
    /// `NoSuchBucket`, because a writer that still holds the directory of a bucket that is being removed must not
    /// conclude that the bucket keeps no versions.
    pub(crate) fn contents_for_write(&self, bucket: &Bucket) -> Result<PrivateDirectoryContents> {
        let contents = self.private.glance_for_write(&self.root, bucket, self.config.consistency);
        match contents.map_err(unreadable)? {
            PrivateDirectoryContents { device: 0, .. } => Err(ErrorKind::NoSuchBucket.into()),
            contents => Ok(contents),
        }
    }

    /// Returns whether other nodes may change the bucket's file system, or the root's file system if the bucket is
    /// missing or cannot be read. Cost: usually none.
    pub(crate) fn sharing_of(&self, bucket: &Bucket) -> FileSystemSharing {
        let contents = self.private.glance_for_write(&self.root, bucket, ReadConsistency::FileSystem);
        contents.map_or(self.site.sharing, |contents| contents.sharing)
    }

    /// Returns the result of [`StoreDirectoryTree::sharing_of`] if reads must first query the file server. Otherwise,
    /// returns `Local`, at no cost.
    pub(crate) fn sharing_if_strong(&self, bucket: &Bucket) -> FileSystemSharing {
        if self.is_strong() { self.sharing_of(bucket) } else { FileSystemSharing::Local }
    }

    /// Returns whether other nodes may change the file system of `file`, which is on `device`. Cost: none on the root's
    /// device; elsewhere, at most one `fstatfs` per second.
    pub(crate) fn sharing_on(&self, file: impl AsFd, device: u64) -> FileSystemSharing {
        if device == self.device {
            return self.site.sharing;
        }
        self.private.site_of(file, device).map_or(FileSystemSharing::Unknown, |site| site.sharing)
    }

    /// Returns the root's device if other nodes may change its file system.
    pub(crate) fn own_remote_device(&self) -> Option<u64> {
        self.site.sharing.is_shared().then_some(self.device)
    }

    /// Returns whether `device` is the root's device and only this kernel may change its file system.
    pub(crate) fn is_local(&self, device: u64) -> bool {
        device == self.device && !self.site.sharing.is_shared()
    }

    /// Returns the directory at `dir` in `bucket`. If the directory is missing, creates it with all its parents.
    /// Errors: `NoSuchBucket`; `NoSuchKey` if a parent is a file.
    pub(crate) fn parent_of(&self, bucket: &Bucket, dir: &str) -> Result<DirectoryHandle> {
        let missing = |errno| match errno {
            Errno::NOENT | Errno::NOTDIR if dir == bucket.as_str() => ErrorKind::NoSuchBucket.into(),
            errno => from_errno(errno, "opening the directory"),
        };
        let is_private = is_private(dir);
        for race in 0..MAX_RACES {
            give_way(race);
            match self.dirs.open(&self.root, dir) {
                Err(Errno::NOENT) if dir != bucket.as_str() => {}
                Ok(found) if !is_private => return found.for_change().map_err(missing),
                Err(errno) if !is_private => return Err(missing(errno)),
                Ok(found) => return self.check_keeping(bucket, dir).map(|()| found),
                Err(Errno::LOOP) => {
                    return Err(not_ours(dir, "is a symbolic link, or is reached through one"));
                }
                Err(Errno::NOTDIR) => {
                    self.require_bucket(bucket)?;
                    return Err(not_ours(dir, "is not a directory, or is reached through a file"));
                }
                Err(errno) => return Err(missing(errno)),
            }
            match self.make_dirs(bucket, dir) {
                Ok(made) if !is_private => return Ok(self.dirs.keep(dir, made)),
                // Another process is removing empty directories while this process creates them, so the attempt is
                // repeated.
                Ok(_) | Err(Errno::NOENT) => {}
                Err(errno) => return Err(unmade(errno, dir)),
            }
            self.require_bucket(bucket)?;
        }
        Err(ErrorKind::ConditionalConflict.into())
    }

    /// Creates `dir` and its parents below the bucket. Marks each new directory outside the private area as created by
    /// Fordway, so that Fordway may remove the directory later. Returns the open directory `dir`. Cost of a new level
    /// outside the private area: `mkdirat`, `openat`, `fsetxattr`, `close`.
    pub(crate) fn make_dirs(&self, bucket: &Bucket, dir: &str) -> Result<File, Errno> {
        let below = dir.strip_prefix(bucket.as_str()).unwrap_or_default();
        let mut path = bucket.as_str().to_owned();
        let mut here = self.root.open_to_change(&path)?;
        for name in below.split('/').filter(|name| !name.is_empty()) {
            path = join(&path, name);
            let is_new = match is_private(&path) {
                true => self.make_private_dir(bucket, &here, (&path, name))?,
                false => make_dir(&here, name, DIR_MODE)?,
            };
            if is_new {
                self.sync_names(&here)?;
            }
            here = match is_new && !is_private(&path) {
                true => open_new_dir(&here, name).inspect_err(|_| {
                    // Nothing else would remove the directory, and the bucket could then not be removed.
                    let _ = remove_dir(&here, name);
                })?,
                false => self.open_dir_in(&here, name, &path)?,
            };
        }
        Ok(here)
    }

    /// Writes the names in `dir` to stable storage if the durability is `full`.
    pub(crate) fn sync_names(&self, dir: impl AsFd) -> Result<(), Errno> {
        if self.config.durability == Durability::Full { sync_dir(dir) } else { Ok(()) }
    }

    /// Writes the record of the open `file`, which has just been changed, to stable storage if the durability is
    /// `full`.
    pub(crate) fn sync_record(&self, file: impl AsFd) -> Result<()> {
        match self.config.durability {
            Durability::Full => {
                sync_all(file).map_err(|errno| from_errno(errno, "writing the record to stable storage"))
            }
            Durability::None | Durability::Data => Ok(()),
        }
    }

    /// Opens the directory `name` in `parent`; `path` is the path of the directory to open. Resolves the whole path
    /// from the root only if the name is a link. Errors: `LEAVES_BUCKET`; `LOOP`, including for a link to a directory
    /// that does not exist.
    pub(crate) fn open_dir_in(&self, parent: &File, name: &str, path: &str) -> Result<File, Errno> {
        match open_in(parent, name, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()) {
            Ok(dir) => Ok(dir.into()),
            Err(Errno::NOTDIR | Errno::LOOP) => match self.root.open_to_change(path) {
                Err(Errno::NOENT) => Err(Errno::LOOP),
                opened => opened,
            },
            Err(errno) => Err(errno),
        }
    }

    /// Checks that the two paths refer to different directory entries, even if both entries lead to one file. A link to
    /// a directory gives an entry a second path. Errors: `InvalidArgument`.
    pub(crate) fn check_two_entries(&self, one: &ObjectPath, other: &ObjectPath) -> Result<()> {
        let dir_of = |place: &ObjectPath| {
            let state = self.open_dir(&place.dir).and_then(stat);
            state.map(|state| (state.device, state.inode)).map_err(|e| from_errno(e, "opening a directory"))
        };
        match one.name == other.name && dir_of(one)? == dir_of(other)? {
            true => {
                Err(Error::new(ErrorKind::InvalidArgument, "both keys lead to the same file, through a link"))
            }
            false => Ok(()),
        }
    }

    /// Returns the names in the directory at `path`, without duplicates. Names that are replaced during the call are
    /// included.
    pub(crate) fn names_in(&self, path: &str) -> Result<Vec<String>> {
        let is_shared = self.sharing_at(path).is_shared();
        let read = || {
            let dir = self.open_dir(path)?;
            let dir = open_in(dir, ".", OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
            let before = if is_shared { None } else { Some(stat(&dir)?) };
            collect_entries(&dir.into(), before.as_ref(), Vec::new, |names, name, _| {
                names.extend(String::from_utf8(name.to_vec()));
            })
        };
        match self.read_existing(path, read) {
            Ok(mut names) => {
                names.sort_unstable();
                names.dedup();
                Ok(names)
            }
            // Fordway creates only directories at this path; anything else is treated as an empty directory.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(Vec::new()),
            Err(errno) => Err(from_errno(errno, "reading .fordway")),
        }
    }

    /// Returns the result of `read`, which opens and reads the directory at `path`. If another node has removed the
    /// directory in the meantime, looks up the path again, because the directory may have been created again, and calls
    /// `read` once more. Errors: the errors of `read`, with `NOENT` instead of `STALE`.
    pub(crate) fn read_existing<T>(
        &self,
        path: &str,
        mut read: impl FnMut() -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        match read() {
            Err(Errno::STALE) => {
                self.refresh_dirs(path);
                read().map_err(|errno| if errno == Errno::STALE { Errno::NOENT } else { errno })
            }
            done => done,
        }
    }

    /// Opens the directory at `path` for reading. Returns `None` if there is no directory.
    pub(crate) fn open_to_list(&self, path: &str) -> Result<Option<File>> {
        let open = || self.root.open_beneath(path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty());
        let mut opened = open();
        if matches!(opened, Err(Errno::STALE)) {
            self.refresh_dirs(path);
            opened = open();
        }
        match opened {
            Ok(dir) => Ok(Some(dir)),
            Err(Errno::NOENT | Errno::STALE | Errno::NOTDIR | Errno::NAMETOOLONG) => Ok(None),
            Err(errno) => Err(from_errno(errno, &format!("opening the directory {path:?}"))),
        }
    }
}

#[cold]
pub(crate) fn unreadable(errno: Errno) -> Error {
    from_errno(errno, "reading .fordway and .fordway/versioning, as every writer must")
}

/// The advice to users who cannot write to a bucket's journal of events.
pub(crate) const EVENTS_ADVICE: &str = "the bucket's events are recorded there; have the bucket's owner run `fordway \
                                        admin set events` again, which makes the directory for all writers";

/// Returns the error for a directory that cannot be created.
fn unmade(errno: Errno, dir: &str) -> Error {
    let is_denied = matches!(errno, Errno::ACCESS | Errno::PERM);
    if is_denied && is_events_dir(dir) {
        return Error::new(ErrorKind::AccessDenied, format!("cannot make {dir}: {EVENTS_ADVICE}"));
    }
    if is_private(dir) && is_denied {
        let why = "users who replace or delete objects, or upload in parts, must be able to write to the bucket's directory";
        return Error::new(ErrorKind::AccessDenied, format!("cannot make {dir}: {why}"));
    }
    from_errno(errno, &format!("making {dir}"))
}

/// Opens a directory that was just created, and marks it as created by Fordway. On a file system without extended
/// attributes, the directory is not marked. Errors: also `NOSPC`, `DQUOT` and `IO` from setting the mark.
fn open_new_dir(parent: &File, name: &str) -> Result<File, Errno> {
    match open_in(parent, name, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()) {
        Ok(dir) => match set_xattr(&dir, OUR_DIR, b"1") {
            Err(errno @ (Errno::NOSPC | Errno::DQUOT | Errno::IO)) => Err(errno),
            _ => Ok(dir.into()),
        },
        // The umask may deny the process itself access to the directories that it creates.
        Err(Errno::ACCESS) => {
            open_in(parent, name, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).map(File::from)
        }
        Err(errno) => Err(errno),
    }
}

/// The directory tree to which symbolic links in a bucket may lead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum SymlinkScope {
    /// Anywhere beneath the root, including another bucket.
    #[default]
    BeneathRoot,
    /// Only within the bucket, which must not itself be a link. Intended for users who may access only some buckets.
    BeneathBucket,
}

/// The root directory, whose subdirectories are the buckets, together with the rule for links.
pub(crate) struct BucketsRoot {
    root: RootDirectory,
    rule: SymlinkScope,
}

impl BucketsRoot {
    pub(crate) fn new(root: RootDirectory, rule: SymlinkScope) -> Self {
        BucketsRoot { root, rule }
    }

    /// Returns the root directory.
    pub(crate) fn dir(&self) -> &OwnedFd {
        self.root.dir()
    }

    /// Opens `path`, which begins with the name of a bucket. Cost: one `openat2`. If the bucket is a link, two further
    /// `openat2` and a `close`. If there are other links, also about three calls for each name, because the path is
    /// walked name by name. Errors: `XDEV` or `LOOP` for a link that the rule forbids; `LOOP` for a link into a private
    /// directory; errors from `openat`.
    pub(crate) fn open_beneath(&self, path: &str, flags: OFlags, mode: Mode) -> Result<File, Errno> {
        self.open_noting_links(path, flags, mode).map(|(file, _)| file)
    }

    /// Opens `path` as [`BucketsRoot::open_beneath`] does, and also returns whether the path contains a link.
    pub(crate) fn open_noting_links(
        &self,
        path: &str,
        flags: OFlags,
        mode: Mode,
    ) -> Result<(File, bool), Errno> {
        match self.root.open_from(self.dir(), path, SymlinkPolicy::None, flags, mode) {
            Err(Errno::LOOP) => self.open_through_links(path, flags, mode).map(|file| (file, true)),
            done => done.map(|file| (file, false)),
        }
    }

    /// Opens the directory at `path` (`O_PATH`), so that names in it can be created and removed. Any link in the path
    /// must belong to the caller or to root. Otherwise, anyone who may write to a bucket could place a link to another
    /// user's directory in the bucket. A program that runs as this other user would then remove or overwrite files in
    /// the user's own directory. A link must also not lead out of the bucket: in another bucket, the locks and versions
    /// of that bucket would have to be respected. A bucket that is a link must lead to a bucket. Cost: as for
    /// [`BucketsRoot::open_beneath`]; if the path contains a link, also four calls for each name in the path. Errors:
    /// the errors of [`BucketsRoot::open_beneath`]; `LOOP` for another user's link; `LEAVES_BUCKET` for a link out of
    /// the bucket.
    pub(crate) fn open_to_change(&self, path: &str) -> Result<File, Errno> {
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        match self.root.open_from(self.dir(), path, SymlinkPolicy::None, flags, Mode::empty()) {
            Err(Errno::LOOP) => {}
            done => return done,
        }
        let found = self.open_through_links(path, flags, Mode::empty())?;
        if is_private(path) {
            let (bucket, _) = path.split_once('/').unwrap_or((path, ""));
            self.require_child(self.open_beneath(bucket, flags, Mode::empty())?)?;
            return Ok(found);
        }
        let own = match self.open_in_bucket(path, SymlinkPolicy::Own, flags) {
            // A link out of the bucket must not be followed, regardless of its owner, so this reason is reported first.
            Err(Errno::LOOP) => match self.open_in_bucket(path, SymlinkPolicy::Beneath, flags) {
                Err(LEAVES_BUCKET) => Err(LEAVES_BUCKET),
                _ => Err(Errno::LOOP),
            },
            done => done,
        }?;
        // The results differ if a link was replaced between the two calls.
        let (found, is) = (stat(found)?, stat(&own)?);
        ((found.device, found.inode) == (is.device, is.inode)).then_some(own).ok_or(Errno::LOOP)
    }

    /// Opens `path`. The caller must have checked that the path leads to a file or directory beneath the root. Errors:
    /// `LEAVES_BUCKET` if the path leads out of the bucket; `LOOP` for a link into a private directory, or a link that
    /// `links` forbids.
    pub(crate) fn open_in_bucket(
        &self,
        path: &str,
        links: SymlinkPolicy,
        flags: OFlags,
    ) -> Result<File, Errno> {
        let links = (links, PRIVATE_DIR);
        let (bucket, below) = path.split_once('/').unwrap_or((path, "."));
        let step = OFlags::PATH | OFlags::DIRECTORY;
        let bucket = self.root.open_from_except(self.dir(), bucket, links, step, Mode::empty())?;
        self.require_child(&bucket)?;
        match self.root.open_from_except(&bucket, below, links, flags, Mode::empty()) {
            Err(Errno::XDEV) => Err(LEAVES_BUCKET),
            done => done,
        }
    }

    /// Checks that a bucket's open directory is in the root directory. A link may lead from the root to a directory
    /// within another bucket, whose locks and versions would have to be respected. Cost: three `fstat`. Errors:
    /// `LEAVES_BUCKET`.
    fn require_child(&self, bucket: impl AsFd) -> Result<(), Errno> {
        let (root, above, is) = (stat(self.dir())?, stat_in(&bucket, "..")?, stat(&bucket)?);
        let is_root = |state: &FileStat| (state.device, state.inode) == (root.device, root.inode);
        (is_root(&above) && !is_root(&is)).then_some(()).ok_or(LEAVES_BUCKET)
    }

    /// Returns whether the bucket is a link to a directory within a bucket, or to the root. Nothing can be changed
    /// through such a link.
    pub(crate) fn leads_into_bucket(&self, bucket: &Bucket) -> bool {
        let opened = self.open_beneath(bucket.as_str(), OFlags::PATH | OFlags::DIRECTORY, Mode::empty());
        opened.is_ok_and(|dir| self.require_child(dir) == Err(LEAVES_BUCKET))
    }

    /// Returns whether the path of a directory contains a link below its bucket. Cost: two `openat2`. Returns `false`
    /// if the directory does not exist. Errors: any error of these calls that shows neither a missing directory nor a
    /// link.
    pub(crate) fn is_behind_link(&self, path: &str) -> Result<bool, Errno> {
        let Some((bucket, below)) = path.split_once('/') else { return Ok(false) };
        let step = OFlags::PATH | OFlags::DIRECTORY;
        let opened = self
            .root
            .open_from(self.dir(), bucket, SymlinkPolicy::Beneath, step, Mode::empty())
            .and_then(|bucket| self.root.open_from(&bucket, below, SymlinkPolicy::None, step, Mode::empty()));
        match opened {
            Ok(_) | Err(Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG) => Ok(false),
            Err(Errno::LOOP) => Ok(true),
            Err(errno) => Err(errno),
        }
    }

    /// Opens `path`, which contains a link, in two steps: first the bucket, then the rest. The rule for a bucket that
    /// is a link differs from the rule for links within a bucket.
    fn open_through_links(&self, path: &str, flags: OFlags, mode: Mode) -> Result<File, Errno> {
        let links = (SymlinkPolicy::Beneath, PRIVATE_DIR);
        let (name, below) = path.split_once('/').unwrap_or((path, ""));
        let is_in_bucket = self.rule == SymlinkScope::BeneathBucket;
        if below.is_empty() {
            return match is_in_bucket {
                true => Err(Errno::LOOP),
                false => self.root.open_from_except(self.dir(), path, links, flags, mode),
            };
        }
        let to_bucket = if is_in_bucket { SymlinkPolicy::None } else { SymlinkPolicy::Beneath };
        let step = OFlags::PATH | OFlags::DIRECTORY;
        let bucket = self.root.open_from(self.dir(), name, to_bucket, step, Mode::empty())?;
        if is_in_bucket && !is_private(path) {
            return self.root.open_from_except(&bucket, below, links, flags, mode);
        }
        match self.root.open_from(&bucket, below, SymlinkPolicy::None, flags, mode) {
            Err(Errno::LOOP) if !is_private(path) => {
                self.root.open_from_except(self.dir(), path, links, flags, mode)
            }
            done => done,
        }
    }

    /// Returns the root's format version. Errors: as for [`format::check`].
    pub(crate) fn format(&self, path: &Path) -> Result<u32> {
        format::check(&self.root, path)
    }

    /// Records this program's format version in the root. Errors: file-system errors.
    pub(crate) fn write_format(&self) -> Result<()> {
        format::write(&self.root)
    }

    /// Opens `name` in `dir`, a directory beneath the root, without following a link.
    pub(crate) fn open_in(&self, dir: impl AsFd, name: &str, flags: OFlags) -> Result<File, Errno> {
        self.root.open_in(dir, name, flags)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_on_other_devices_than_the_roots_are_examined() {
        let root = tempfile::tempdir().unwrap();
        let volume = StoreDirectoryTree::open(root.path(), PosixConfig::default()).unwrap();
        let file = File::open("/proc/self/stat").unwrap();
        let device = stat(&file).unwrap().device;
        assert_eq!(volume.sharing_on(&file, device), FileSystemSharing::Unknown);
        // A file on the root's device is not examined.
        assert_eq!(volume.sharing_on(&file, volume.device), FileSystemSharing::Local);
        assert_eq!(volume.sharing_of(&Bucket::new("missing").unwrap()), FileSystemSharing::Local);
    }

    #[test]
    fn a_bucket_is_remote_while_it_is_found_on_a_shared_file_system() {
        let root = tempfile::tempdir().unwrap();
        let volume = StoreDirectoryTree::open(root.path(), PosixConfig::default()).unwrap();
        let bucket = Bucket::new("bucket").unwrap();
        assert_eq!(volume.remote_dir("bucket"), None);
        volume.private.remote.note(&bucket, 7, true);
        assert_eq!(volume.remote_dir("bucket"), Some((7, "bucket".to_owned())));
        assert_eq!(volume.remote_dir(""), Some((7, "bucket".to_owned())), "some bucket is remote");
        assert_eq!(volume.remote_dir("other"), None);
        assert_eq!(volume.remote_dir(fordway_store::ROOT_DIR), None, "the root is not");
        volume.private.remote.note(&bucket, 7, false);
        assert_eq!(volume.remote_dir("bucket"), None);
    }
}
