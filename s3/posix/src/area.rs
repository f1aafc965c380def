//! Creates the directories and files in a bucket's private area, `.fordway`, and detects when other users have replaced
//! them.
//!
//! Anyone who can write to a bucket can also write to its `.fordway`, so no file in `.fordway` is trusted because of
//! its name alone. Links are not followed (see [`crate::volume::BucketsRoot`]). Only regular files are read, and only
//! up to the size that Fordway itself would write. Mode and group are set on newly created files and directories. When
//! a notification configuration is set, mode and group are also set on an existing journal directory. In a bucket with
//! the sticky bit, writers are not permitted to remove each other's files, so ownership matters in the private area as
//! well. If the process may act as other users, it creates directories as the bucket's owner. A writer stores no files
//! in a directory that belongs to a user other than the writer, the bucket's owner or root.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};

use fordway_store::{Bucket, BucketDocumentKind, Error, ErrorKind, Result};
use fordway_sys::{
    Errno, FileStat, FileSystemSharing, Mode, OFlags, PeerCredentials, act_for, create_unnamed, file_group,
    file_user, is_in_group, is_own_file, is_same_user, link_unnamed, make_dir, make_dir_regardless_of_umask,
    name_to_text, open_in, read_dir, read_into_spare, remove_dir, remove_file, set_group, set_mode, stat,
    stat_in,
};

use crate::dirs::DirectoryHandle;
use crate::errors::from_errno;
use crate::layout::{
    LOCKS, ObjectPath, is_events_dir, is_hidden_name, is_tmp_dir, is_upload_dir, private_dir, tmp_dir,
};
use crate::stage::{HiddenName, MAX_RACES, give_way, hidden_name};
use crate::volume::StoreDirectoryTree;

/// The sticky bit: in a directory that has this bit, users may remove only their own files.
const STICKY: u32 = 0o1000;
/// The setgid bit: new files and directories in a directory that has this bit get the directory's group.
const SETGID: u32 = 0o2000;
/// The mode bits that a directory for all writers of a bucket inherits from the bucket's directory.
const HANDED_ON: u32 = 0o1777;
/// The mode of a directory that only one writer uses.
const OWN_DIR_MODE: Mode = Mode::from_raw_mode(0o700);

/// The only user, other than root, who is trusted to own directories in a bucket that has the sticky bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TrustedOwner {
    owner: u32,
}

impl TrustedOwner {
    /// Returns the trusted owner of a bucket whose directory has the metadata `of`. Returns `None` for a bucket without
    /// the sticky bit, where all writers have the same rights.
    pub(crate) fn of(of: &FileStat) -> Option<Self> {
        (of.mode & STICKY != 0).then_some(TrustedOwner { owner: of.user })
    }

    /// Returns the owner of the bucket whose directory has the metadata `of`. For access rules and notifications, only
    /// this user and root are trusted.
    pub(crate) fn alone(of: &FileStat) -> Self {
        TrustedOwner { owner: of.user }
    }

    /// Returns the only user, other than root, whose documents of this kind are trusted in the bucket whose directory
    /// has the metadata `of`; `None` if every writer's documents are trusted.
    pub(crate) fn of_documents(of: &FileStat, kind: &BucketDocumentKind) -> Option<Self> {
        if kind.is_owners() { Some(TrustedOwner::alone(of)) } else { TrustedOwner::of(of) }
    }

    /// Returns whether `user` is the bucket's owner or root. The sticky bit does not prevent the owner and root from
    /// removing other users' files. An owner without an ID in this process's user namespace is not trusted.
    pub(crate) fn trusts(&self, user: u32) -> bool {
        user == 0 || is_same_user(user, self.owner)
    }

    /// Returns the reason why a user other than the caller, the bucket's owner or root could remove the caller's files
    /// in the directory whose metadata is `dir`. Returns `None` if no other user could remove the files.
    pub(crate) fn danger(&self, dir: &FileStat, caller: u32) -> Option<String> {
        if !is_same_user(dir.user, caller) && !self.trusts(dir.user) {
            return Some(format!("belongs to the user with the id {}", dir.user));
        }
        may_others_rename_in(dir).then(|| "may be written to by others and lacks the sticky bit".to_owned())
    }
}

/// Returns whether the mode of the directory lets users other than its owner rename other users' files in it.
fn may_others_rename_in(dir: &FileStat) -> bool {
    is_writable_by_others(dir) && dir.mode & STICKY == 0
}

/// A directory for staged files that only the caller may enter. Dropping this value removes the directory.
pub(crate) struct StagingDirectory {
    parent: DirectoryHandle,
    name: String,
}

impl Drop for StagingDirectory {
    fn drop(&mut self) {
        // If the directory cannot be removed now, `gc` removes it later.
        let _ = remove_dir(&self.parent, &self.name);
    }
}

/// Returns whether the mode lets users other than the file's owner write to the file.
pub(crate) fn is_writable_by_others(state: &FileStat) -> bool {
    state.mode & 0o022 != 0
}

/// Reads a small file, which must have been opened with `O_NONBLOCK`, and returns its content and state. Returns `None`
/// if Fordway cannot have written the file, because it is not a regular file or is longer than `most` bytes. Memory:
/// the file's size.
pub(crate) fn read_small(file: impl AsFd, most: usize) -> Result<Option<(Vec<u8>, FileStat)>, Errno> {
    let state = stat(&file)?;
    let Ok(size) = usize::try_from(state.size) else { return Ok(None) };
    if !state.is_file || size > most {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    read_into_spare(&file, &mut bytes, 0, size)?;
    Ok(Some((bytes, state)))
}

/// Returns `AccessDenied` for a file or directory that Fordway did not create. The error states why `path` cannot be
/// used, and advises that the bucket's owner remove the file.
pub(crate) fn not_ours(path: &str, why: &str) -> Error {
    let next = "Fordway does not create such a file; have the bucket's owner remove it";
    Error::new(ErrorKind::AccessDenied, format!("{path} {why}, and {next}"))
}

/// Returns `AccessDenied` for a directory in which other users could remove the caller's files. The error advises the
/// user to run `fordway fsck --migrate`.
fn unsafe_place(path: &str, why: &str) -> Error {
    let next = "run `fordway fsck ROOT --migrate` as root, which makes the bucket's owner its owner and sets its mode";
    Error::new(
        ErrorKind::AccessDenied,
        format!("{path} {why}, so other users could remove files in it; {next}"),
    )
}

/// Returns `AccessDenied` for a caller whose ID is also the ID of other users.
fn not_told_apart(caller: u32) -> Error {
    let why = format!(
        "the id {caller} stands for all users who have no id in this user namespace, so their files look like yours; \
         run Fordway as a user with another id"
    );
    Error::new(ErrorKind::AccessDenied, why)
}

/// Runs `make` in `parent`, as the bucket's owner if possible, else as the caller. To act as the owner, the process
/// must be permitted to act as other users. In addition, the caller must be root, or have write permission in a bucket
/// with the sticky bit.
fn as_keeper<T: Send + 'static>(
    of: &FileStat,
    parent: impl AsFd,
    make: impl Fn(&OwnedFd) -> Result<T, Errno> + Send + Clone + 'static,
) -> Result<T, Errno> {
    let parent = owned(parent)?;
    match as_owner(of, &parent, make.clone())? {
        Some(made) => Ok(made),
        None => make(&parent),
    }
}

/// Runs `make` as [`as_keeper`] does, but only as the bucket's owner; returns `None` if this is not possible.
fn as_owner<T: Send + 'static>(
    of: &FileStat,
    parent: &OwnedFd,
    make: impl Fn(&OwnedFd) -> Result<T, Errno> + Send + 'static,
) -> Result<Option<T>, Errno> {
    let caller = file_user();
    let may_ask = caller == 0 || (of.mode & STICKY != 0 && may_write(of));
    if caller == of.user {
        return make(parent).map(Some);
    }
    if !may_ask {
        return Ok(None);
    }
    let owner = PeerCredentials { uid: of.user, gid: of.group, groups: Vec::new() };
    let handed = owned(parent)?;
    match act_for(&owner, move || make(&handed)) {
        Ok(Ok(made)) => Ok(Some(made)),
        // The process is not permitted to act as other users, or the owner has no write permission for `parent`.
        Ok(Err(Errno::ACCESS | Errno::PERM)) | Err(_) => Ok(None),
        // For example, the owner's quota is used up. The directory is then not created as the caller, because other
        // writers would not trust it.
        Ok(Err(errno)) => Err(errno),
    }
}

/// Returns whether the mode of the directory lets the caller, who is not its owner, write to it.
fn may_write(of: &FileStat) -> bool {
    of.mode & 0o002 != 0 || (of.mode & 0o020 != 0 && is_in_group(of.group))
}

fn owned(dir: impl AsFd) -> Result<OwnedFd, Errno> {
    dir.as_fd().try_clone_to_owned().map_err(|_| Errno::MFILE)
}

/// Returns the mode for a directory in the private area, which is the mode of the bucket's directory. However, users
/// with only read permission for the bucket cannot enter an upload's directory, because its `data` is also the upload's
/// lock. In a bucket with the sticky bit, only the user who started the upload may write to this directory.
pub(crate) fn mode_of_dir(of: &FileStat, path: &str) -> u32 {
    if !is_upload_dir(path) {
        return of.mode & HANDED_ON;
    }
    let of_writers = of.mode & 0o700 | of.mode & classes_with(of.mode & 0o222);
    of_writers & if of.mode & STICKY != 0 { 0o755 } else { 0o777 }
}

/// Returns the mode for a file that all writers of a bucket share. A lock that conflicts with every writer's lock needs
/// only the permission to read, so users who may only read the bucket get no permission for `locks`.
pub(crate) fn mode_of_file(of: &FileStat, name: &str) -> u32 {
    let rw = of.mode & 0o666;
    if name == LOCKS { rw & (0o600 | classes_with(of.mode & 0o222)) } else { rw }
}

/// Returns all permissions of each class (owner, group, others) that has a permission in `mode`.
fn classes_with(mode: u32) -> u32 {
    [0o700, 0o070, 0o007].into_iter().filter(|class| mode & class != 0).sum()
}

/// Revokes the read permission of users who may not write to the lock table `file`, whose metadata is `state`. Earlier
/// releases gave them this permission. Only an empty file of the caller is changed.
fn close_to_readers(file: &OwnedFd, state: &FileStat) {
    let excess = state.mode & 0o044 & !classes_with(state.mode & 0o022);
    let is_own = state.user == file_user() && state.links == 1 && state.size == 0;
    if excess != 0 && is_own {
        // Without the permission, the mode stays as it is until the owner runs `fsck --migrate`.
        let _ = set_mode(file, state.mode & !excess);
    }
}

/// Gives the lock table `file`, whose metadata is `state`, the permissions that all writers need. A writer that died
/// while it created the file may have left it closed to other writers. Only an empty file of the caller is changed.
#[cold]
fn open_to_writers(file: &OwnedFd, state: &FileStat, of: &FileStat, name: &str) {
    if state.links == 1 && state.size == 0 {
        // After an error, the file stays as it is until the next write of its owner.
        let _ = hand_on(file, of.group, mode_of_file(of, name), 0o666);
    }
}

/// Creates the directory if it is missing, and gives the new directory the bucket's group and mode. Returns whether the
/// directory is new. The directory has its mode from the start: if this process dies, or cannot set the mode, other
/// writers must not be locked out. If the directory is created with another group, however, its group bits are set
/// later, because members of that group must not write to it.
fn make_shared_dir(parent: &OwnedFd, name: &str, group: u32, mode: u32) -> Result<bool, Errno> {
    let above = stat(parent)?;
    let first_group = if above.mode & SETGID == 0 { file_group() } else { above.group };
    let first_mode = if first_group == group { mode } else { mode & !0o070 };
    if !make_dir_regardless_of_umask(parent, name, Mode::from_raw_mode(first_mode & HANDED_ON))? {
        return Ok(false);
    }
    match settle_new_dir(parent, name, group, mode) {
        Ok(()) => Ok(true),
        Err(errno) => {
            // If the directory remains, its owner's `fsck --migrate` sets its mode.
            let _ = remove_dir(parent, name);
            Err(errno)
        }
    }
}

/// Sets the group and mode of a directory that was just created, if they differ. A directory that is not empty, or that
/// another user owns, is not the new directory, so its mode and group are not changed.
fn settle_new_dir(parent: &OwnedFd, name: &str, group: u32, mode: u32) -> Result<(), Errno> {
    let made = stat_in(parent, name)?;
    if made.group == group && (made.mode ^ mode) & HANDED_ON == 0 {
        return Ok(());
    }
    let dir = match open_in(parent, name, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()) {
        // Another process has removed or replaced the directory, or the mode closes the directory to its owner.
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::ACCESS) => return Ok(()),
        opened => opened?,
    };
    match stat(&dir)?.user == file_user() && is_empty(&dir)? {
        true => hand_on(&dir, group, mode, HANDED_ON),
        false => Ok(()),
    }
}

fn is_empty(dir: &OwnedFd) -> Result<bool, Errno> {
    let mut has_any = false;
    let again = open_in(dir, ".", OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
    read_dir(again, |_, _| has_any = true)?;
    Ok(!has_any)
}

/// Creates the empty file `name`, and gives it the bucket's group and mode. On a local file system, the file gets its
/// mode before its name. In the opposite order, other writers would be locked out if this process died in between.
/// Errors: `EXIST`.
fn make_file(
    parent: &OwnedFd,
    (name, sharing): (&str, FileSystemSharing),
    group: u32,
    mode: u32,
) -> Result<OwnedFd, Errno> {
    // Until the file has its mode, no other user may open it.
    let closed = Mode::from_raw_mode(0o600);
    let unnamed = if sharing.is_shared() { Err(Errno::OPNOTSUPP) } else { create_unnamed(parent, closed) };
    match unnamed {
        Ok(file) => {
            hand_on(&file, group, mode, 0o666)?;
            link_unnamed(&file, parent, name).map(|()| file)
        }
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOCTTY;
            let file = open_in(parent, name, flags, closed)?;
            if let Err(errno) = hand_on(&file, group, mode, 0o666) {
                let _ = remove_file(parent, name);
                return Err(errno);
            }
            Ok(file)
        }
        // In a removed directory, ext4 returns EPERM.
        Err(Errno::PERM) if stat(parent)?.links == 0 => Err(Errno::NOENT),
        Err(errno) => Err(errno),
    }
}

/// Sets the group of a newly created file or directory, and the mode bits in `mask`. All writers of the bucket can then
/// use the file or directory, regardless of the umask. Attributes that the process is not permitted to change, or that
/// the file system does not have, remain unchanged. Errors: all other errors of the file system.
fn hand_on(made: &OwnedFd, group: u32, mode: u32, mask: u32) -> Result<(), Errno> {
    let if_possible = |done| match done {
        Err(Errno::PERM | Errno::ACCESS | Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS) => Ok(()),
        done => done,
    };
    let now = stat(made)?;
    if now.group != group {
        if_possible(set_group(made, group))?;
    }
    let wanted = now.mode & !mask | mode & mask;
    if wanted == now.mode { Ok(()) } else { if_possible(set_mode(made, wanted)) }
}

/// Creates a directory in `tmp` that only the caller may enter.
fn shelter_in(tmp: DirectoryHandle) -> Result<(DirectoryHandle, StagingDirectory)> {
    let failed = |errno| from_errno(errno, "making a directory for a staged file");
    let name = hidden_name()?;
    make_dir(&tmp, &name, OWN_DIR_MODE).map_err(failed)?;
    let shelter = StagingDirectory { parent: tmp, name };
    let dir = open_in(&shelter.parent, &shelter.name, OFlags::PATH | OFlags::DIRECTORY, Mode::empty());
    let dir = File::from(dir.map_err(failed)?);
    let state = stat(&dir).map_err(failed)?;
    if state.user != file_user() || state.mode & 0o077 != 0 {
        return Err(not_ours("a directory in .fordway/tmp", "has replaced a file that was just created"));
    }
    Ok((DirectoryHandle::new(dir), shelter))
}

/// Removes a file or symbolic link. Leaves a directory in place; neither a directory nor a missing file is an error.
pub(crate) fn remove_if_file(dir: &impl AsFd, name: &str) -> Result<(), Errno> {
    match remove_file(dir, name) {
        Err(Errno::NOENT | Errno::ISDIR) => Ok(()),
        Err(Errno::PERM) if stat_in(dir, name).is_ok_and(|state| state.is_dir) => Ok(()),
        done => done,
    }
}

/// Calls `visit` for each name in a directory, regardless of the read position of `dir`.
pub(crate) fn each_name(dir: &impl AsFd, mut visit: impl FnMut(&str)) -> Result<(), Errno> {
    let dir = open_in(dir, ".", OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
    read_dir(dir, |name, _| visit(&name_to_text(name)))
}

/// Returns all names in a directory, regardless of the read position of `dir`.
pub(crate) fn names_of(dir: &impl AsFd) -> Result<Vec<String>, Errno> {
    let mut names = Vec::new();
    each_name(dir, |name| names.push(name.to_owned()))?;
    Ok(names)
}

/// Calls `remove` for the names in `dir` that satisfy `is_ours`; `remove` need not remove all of them. The names are
/// removed while the directory is read, because all names of a large directory might not fit into memory. A file system
/// may then skip some names. The directory is therefore read again until a pass finds no names that satisfy `is_ours`,
/// or finds no fewer names than the previous pass. Errors: the first error from `remove`.
pub(crate) fn remove_each<D: AsFd>(
    dir: &D,
    is_ours: impl Fn(&str) -> bool,
    remove: impl Fn(&D, &str) -> Result<(), Errno>,
) -> Result<(), Errno> {
    let mut found_before = u64::MAX;
    loop {
        let (mut found, mut done) = (0, Ok(()));
        each_name(dir, |name| {
            if done.is_ok() && is_ours(name) {
                found += 1;
                done = remove(dir, name);
            }
        })?;
        done?;
        if found == 0 || found >= found_before {
            return Ok(());
        }
        found_before = found;
    }
}

/// Removes a staged file, or the private directory of a staged file together with its content.
pub(crate) fn remove_staged(dir: &impl AsFd, name: &str) -> Result<(), Errno> {
    remove_if_file(dir, name)?;
    match open_in(dir, name, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()) {
        Ok(shelter) => {
            remove_each(&shelter, is_hidden_name, remove_if_file)?;
            remove_dir(dir, name)
        }
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(()),
        Err(errno) => Err(errno),
    }
}

impl StoreDirectoryTree {
    /// Returns the metadata of the bucket's directory.
    fn bucket_state(&self, bucket: &Bucket) -> Result<FileStat, Errno> {
        self.open_dir(bucket.as_str()).and_then(stat)
    }

    /// Creates the directory `name`, whose path is `path`, in `parent`. Returns whether the directory is new.
    pub(crate) fn make_private_dir(
        &self,
        bucket: &Bucket,
        parent: &File,
        (path, name): (&str, &str),
    ) -> Result<bool, Errno> {
        let of = self.bucket_state(bucket)?;
        let (group, mode) = (of.group, mode_of_dir(&of, path));
        let name = name.to_owned();
        let make = move |parent: &OwnedFd| make_shared_dir(parent, &name, group, mode);
        // The directory of an upload belongs to the user who starts the upload.
        if is_upload_dir(path) && file_user() != 0 {
            return make(&owned(parent)?);
        }
        // A writer who owned the journal of events could deny access to the other writers.
        if is_events_dir(path) && TrustedOwner::of(&of).is_some_and(|guard| !guard.trusts(file_user())) {
            return as_owner(&of, &owned(parent)?, make)?.ok_or(Errno::PERM);
        }
        as_keeper(&of, parent, make)
    }

    /// Sets the bucket's group and mode on the existing directory `path` if the directory belongs to the caller or to
    /// the bucket's owner. Attributes that the process is not permitted to change remain unchanged.
    pub(crate) fn renew_private_dir(&self, bucket: &Bucket, path: &str) -> Result<(), Errno> {
        let of = self.bucket_state(bucket)?;
        let dir = OwnedFd::from(self.open_to_scan(path)?);
        let owner = stat(&dir)?.user;
        if owner == of.user || owner == file_user() {
            hand_on(&dir, of.group, mode_of_dir(&of, path), HANDED_ON)?;
        }
        Ok(())
    }

    /// Opens the file `name` in the bucket's private area for writing, and creates it if it is missing. A new file is
    /// empty. Errors: `AccessDenied` if the name belongs to something other than a regular file.
    pub(crate) fn open_shared_file(&self, bucket: &Bucket, name: &'static str) -> Result<File> {
        let dir = private_dir(bucket);
        let failed = |errno| from_errno(errno, &format!("opening .fordway/{name}"));
        for race in 0..MAX_RACES {
            give_way(race);
            let parent = self.parent_of(bucket, &dir)?;
            let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
            let opened = match open_in(&parent, name, flags, Mode::empty()) {
                Err(Errno::NOENT) => self
                    .make_shared_file(bucket, &parent, name)
                    .and_then(|made| self.sync_names(&parent).map(|()| made)),
                done => done,
            };
            let opened = opened.and_then(|file| stat(&file).map(|state| (file, state)));
            match opened {
                Ok((file, state)) if state.is_file => {
                    if name == LOCKS {
                        close_to_readers(&file, &state);
                    }
                    if state.mode & 0o077 == 0
                        && state.user == file_user()
                        && self.contents_for_write(bucket)?.has_other_writers
                    {
                        open_to_writers(&file, &state, &self.state_of(bucket)?, name);
                    }
                    return Ok(file.into());
                }
                Ok(_) | Err(Errno::NXIO | Errno::LOOP | Errno::ISDIR) => {
                    return Err(not_ours(&format!("{dir}/{name}"), "is not a regular file"));
                }
                Err(Errno::EXIST) => {}
                // A concurrent removal of the bucket has removed the directory.
                Err(Errno::NOENT) => self.dirs.forget(&dir),
                Err(errno) => return Err(failed(errno)),
            }
        }
        Err(ErrorKind::ConditionalConflict.into())
    }

    fn make_shared_file(
        &self,
        bucket: &Bucket,
        parent: &DirectoryHandle,
        name: &'static str,
    ) -> Result<OwnedFd, Errno> {
        let of = self.bucket_state(bucket)?;
        let (group, mode, sharing) = (of.group, mode_of_file(&of, name), self.sharing_of(bucket));
        as_keeper(&of, parent, move |parent| make_file(parent, (name, sharing), group, mode))
    }

    /// Returns the directory for staged files, and creates it if it is missing. If a user other than the caller, the
    /// bucket's owner or root could replace a staged file in this directory, creates a subdirectory that only the
    /// caller may enter. Returns the directory to use, and a guard that removes the subdirectory if one was created.
    pub(crate) fn staging_dir(&self, bucket: &Bucket) -> Result<(DirectoryHandle, Option<StagingDirectory>)> {
        let path = tmp_dir(bucket);
        let dir = self.parent_of(bucket, &path)?;
        match self.guard(bucket)? {
            Some(guard) if self.first_untrusted(guard, &path)?.is_some() => {
                let (own, shelter) = shelter_in(dir)?;
                Ok((own, Some(shelter)))
            }
            _ => Ok((dir, None)),
        }
    }

    /// Returns the owner who is trusted in the bucket's private area, which must exist; `None` if every writer is
    /// trusted. Cost: usually none.
    pub(crate) fn guard(&self, bucket: &Bucket) -> Result<Option<TrustedOwner>> {
        let contents = self.contents_for_write(bucket)?;
        match contents.exists {
            true => Ok(contents.guard),
            // The private area was created after its state was cached.
            false => self.guard_now(bucket),
        }
    }

    /// Returns what [`StoreDirectoryTree::guard`] returns, but does not require the private area to exist.
    pub(crate) fn guard_now(&self, bucket: &Bucket) -> Result<Option<TrustedOwner>> {
        Ok(TrustedOwner::of(&self.state_of(bucket)?))
    }

    /// Returns whether the caller owns the bucket whose directory has the metadata `of`, even if the caller's ID stands
    /// for several users.
    pub(crate) fn is_callers(&self, bucket: &Bucket, of: &FileStat) -> bool {
        of.user == file_user() && self.open_to_scan(bucket.as_str()).is_ok_and(is_own_file)
    }

    /// Returns whether the caller owns the bucket and root or the caller owns its private directory, and no other user
    /// may rename files there. As [`StoreDirectoryTree::is_callers`], the result is right for every caller.
    #[cold]
    pub(crate) fn is_callers_alone(&self, bucket: &Bucket, of: &FileStat) -> bool {
        let is_private_safe = || {
            let dir = self.open_to_scan(&private_dir(bucket))?;
            let state = stat(&dir)?;
            Ok::<_, Errno>(!may_others_rename_in(&state) && (state.user == 0 || is_own_file(&dir)))
        };
        !may_others_rename_in(of) && self.is_callers(bucket, of) && is_private_safe().unwrap_or(false)
    }

    /// Returns the user ID of the bucket's owner. Errors: `NoSuchBucket`.
    pub(crate) fn owner_of(&self, bucket: &Bucket) -> Result<u32> {
        self.require_bucket(bucket)?;
        Ok(self.state_of(bucket)?.user)
    }

    /// Returns the metadata of the bucket's directory.
    pub(crate) fn state_of(&self, bucket: &Bucket) -> Result<FileStat> {
        self.bucket_state(bucket).map_err(|errno| match errno {
            Errno::NOENT => ErrorKind::NoSuchBucket.into(),
            errno => from_errno(errno, "reading the metadata of the bucket"),
        })
    }

    /// Returns whether the file at the path `plain` of a key replaces the file whose metadata is `odd` at the key's odd
    /// path. Returns `false` if another user put the file there without the right to replace the odd file: in a bucket
    /// with the sticky bit, only the owner of the odd file, the bucket's owner and root have this right. Anyone who may
    /// write to a directory on the path could have renamed a file of any user, so the directories must be protected as
    /// well.
    pub(crate) fn may_replace_odd(
        &self,
        bucket: &Bucket,
        plain: &ObjectPath,
        odd: &FileStat,
    ) -> Result<bool> {
        let Some(guard) = self.guard_now(bucket)? else { return Ok(true) };
        let look = || {
            let mut dir = open_in(self.open_dir(bucket.as_str())?, ".", OFlags::PATH, Mode::empty())?;
            for name in plain.dir.split('/').skip(1) {
                dir = open_in(&dir, name, OFlags::PATH | OFlags::DIRECTORY, Mode::empty())?;
                if guard.danger(&stat(&dir)?, odd.user).is_some() {
                    return Ok(false);
                }
            }
            let file = stat_in(&dir, &plain.name)?;
            Ok(file.is_file && (is_same_user(file.user, odd.user) || guard.trusts(file.user)))
        };
        match look() {
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(false),
            done => done.map_err(|errno| from_errno(errno, "examining the file that hides the object")),
        }
    }

    /// Checks that the caller may keep files in the directory `path` in the private area. Errors: `AccessDenied` if a
    /// user other than the caller, the bucket's owner or root could remove the files.
    pub(crate) fn check_keeping(&self, bucket: &Bucket, path: &str) -> Result<()> {
        // `staging_dir` protects staged files with a separate directory.
        if is_tmp_dir(path) {
            return Ok(());
        }
        let Some(guard) = self.guard(bucket)? else { return Ok(()) };
        if is_upload_dir(path) {
            return self.check_uploader(path);
        }
        match self.first_untrusted(guard, path)? {
            // The private directory itself contains the lock table and other shared files. The shared files can be used
            // regardless of the directory's owner.
            Some((at, _)) if path == private_dir(bucket) && at == path => Ok(()),
            None => Ok(()),
            Some(_) if !is_same_user(file_user(), file_user()) => Err(not_told_apart(file_user())),
            Some((at, why)) => Err(unsafe_place(&at, &why)),
        }
    }

    /// Checks that the caller is root or started the upload at `path`. Errors: `AccessDenied`.
    fn check_uploader(&self, path: &str) -> Result<()> {
        let failed = |errno| from_errno(errno, "opening the upload");
        let owner = self.open_dir(path).and_then(stat).map_err(failed)?.user;
        let caller = file_user();
        if caller == owner || caller == 0 {
            return Ok(());
        }
        let why = format!("the upload was started by the user with the id {owner}; start a new upload");
        Err(Error::new(ErrorKind::AccessDenied, why))
    }

    /// Returns the first private-area directory along `path` in which a user other than the caller, the bucket's owner
    /// or root could remove the caller's files. Also returns the reason.
    fn first_untrusted(&self, guard: TrustedOwner, path: &str) -> Result<Option<(String, String)>> {
        let caller = file_user();
        let bucket_end = path.find('/').unwrap_or(path.len());
        let ends = path.match_indices('/').map(|(at, _)| at).filter(|at| *at > bucket_end);
        for end in ends.chain([path.len()]) {
            let at = &path[..end];
            let state = self.open_dir(at).and_then(stat);
            let state = state.map_err(|errno| from_errno(errno, "opening the directory"))?;
            if let Some(why) = guard.danger(&state, caller) {
                return Ok(Some((at.to_owned(), why)));
            }
        }
        Ok(None)
    }

    pub(crate) fn create_hidden(&self, bucket: &Bucket, mode: Mode) -> Result<(OwnedFd, Option<HiddenName>)> {
        let (dir, shelter) = self.staging_dir(bucket)?;
        let name = hidden_name()?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let file = open_in(&dir, &name, flags, mode).map_err(|e| from_errno(e, "making a file"))?;
        Ok((file, Some(HiddenName { dir, name, is_temporary: true, _shelter: shelter })))
    }

    /// Checks that the caller may change a setting that applies to all writers of the bucket. `what` completes the
    /// sentence "whether the bucket ...".
    pub(crate) fn check_decides(&self, bucket: &Bucket, what: &str) -> Result<()> {
        match self.guard_now(bucket)? {
            Some(guard) if guard.trusts(file_user()) => Ok(()),
            Some(guard) if guard.owner == file_user() => Err(not_told_apart(guard.owner)),
            Some(_) => {
                let why = format!(
                    "the bucket has the sticky bit, so only its owner decides whether it {what}; ask the owner"
                );
                Err(Error::new(ErrorKind::AccessDenied, why))
            }
            None => Ok(()),
        }
    }

    /// Checks that the caller may set documents of this kind. Errors: `AccessDenied`.
    pub(crate) fn check_keeper(&self, bucket: &Bucket, kind: &BucketDocumentKind) -> Result<()> {
        if !kind.is_owners() {
            return self.check_decides(bucket, "has documents");
        }
        let of = self.state_of(bucket)?;
        match TrustedOwner::of_documents(&of, kind) {
            Some(keeper) if !keeper.trusts(file_user()) && !self.is_callers(bucket, &of) => {
                let why = match kind.decides_access() {
                    true => "only the bucket's owner controls access to it; ask the owner",
                    false => "only the bucket's owner sets its notifications; ask the owner",
                };
                Err(Error::new(ErrorKind::AccessDenied, why))
            }
            _ => Ok(()),
        }
    }
}
