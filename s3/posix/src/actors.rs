//! Lets one process maintain the files of many users by acting as one user after another. The process examines or
//! removes each file with only the rights of the file's owner. Users therefore cannot use names or symbolic links to
//! trick root into actions that are denied to them.

use std::cell::RefCell;
use std::fs::File;
use std::rc::Rc;
use std::sync::Arc;

use foldhash::HashMap;
use fordway_store::{Bucket, ErrorKind, Result};
use fordway_sys::{
    Errno, ImpersonatedUser, Mode, OFlags, file_user, may_act_as_others, open_in, peer_of_user, stat, stat_in,
};

use crate::PosixStoreState;
use crate::errors::from_errno;

/// A cache of the users that the process has acted as.
pub(crate) struct ImpersonatedUserCache {
    inner: Arc<PosixStoreState>,
    /// Whether the process may act as other users. Without this permission, the process does all work as its own user.
    may: bool,
    roles: RefCell<HashMap<u32, Rc<ImpersonatedUser>>>,
}

impl ImpersonatedUserCache {
    pub(crate) fn new(inner: &Arc<PosixStoreState>) -> Self {
        ImpersonatedUserCache { inner: inner.clone(), may: may_act_as_others(), roles: RefCell::default() }
    }

    /// Runs `work` as the user `uid` without any capabilities, or as the process's own user if the process is not
    /// permitted to act as other users. The cache of open directories is cleared before and after `work`, because the
    /// user determines which symbolic links may be followed for changes.
    pub(crate) fn act_as<T>(&self, uid: u32, work: impl FnOnce() -> Result<T>) -> Result<T> {
        if !self.may {
            return work();
        }
        let failed = |errno| from_errno(errno, "acting as the owner of the file");
        let role = self.role(uid).map_err(failed)?;
        let dirs = &self.inner.volume.dirs;
        dirs.forget_all();
        let done = role.play(work).map_err(failed)?;
        dirs.forget_all();
        done
    }

    /// Runs `work` in `bucket` as the bucket's owner. Errors: `NoSuchBucket`.
    pub(crate) fn in_bucket<T>(&self, bucket: &Bucket, work: impl FnOnce() -> Result<T>) -> Result<T> {
        match bucket_owner(&self.inner, bucket)? {
            Some(owner) => self.act_as(owner, work),
            None => Err(ErrorKind::NoSuchBucket.into()),
        }
    }

    /// Runs `work`. If access is denied, runs `work` again as `owner`, the owner of the file.
    pub(crate) fn or_as<T>(&self, owner: Option<u32>, work: impl Fn() -> Result<T>) -> Result<T> {
        match (work(), owner) {
            (Err(error), Some(owner))
                if error.kind() == ErrorKind::AccessDenied && self.is_another(owner) =>
            {
                self.act_as(owner, work)
            }
            (done, _) => done,
        }
    }

    /// Opens the directory `name` in `parent` as the directory's owner, after the caller was denied access to it.
    /// Returns the open directory and its owner; the caller must act as this owner to examine the directory's content.
    /// Errors: `denied` if the owner is not permitted to open the directory either.
    pub(crate) fn open_as_owner(
        &self,
        parent: &File,
        name: &str,
        denied: Errno,
    ) -> Result<(File, u32), Errno> {
        let owner = self.owner_where_denied(parent, name, denied).ok_or(denied)?;
        // The directory is opened in two steps, because its owner may lack the right to search `parent`.
        let held = open_in(parent, name, OFlags::PATH | OFlags::DIRECTORY, Mode::empty())?;
        let open = || open_in(&held, ".", OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty());
        let opened = self.act_as(owner, || open().map_err(|errno| from_errno(errno, "opening")));
        opened.map(|dir| (File::from(dir), owner)).map_err(|_| denied)
    }

    /// Runs `open`, which opens `name` in `dir`. If access is denied, runs `open` again as the owner of `name`.
    pub(crate) fn or_as_owner<T>(
        &self,
        dir: &File,
        name: &str,
        open: impl Fn() -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let denied = match open() {
            Err(errno) => errno,
            done => return done,
        };
        let owner = self.owner_where_denied(dir, name, denied).ok_or(denied)?;
        self.act_as(owner, || Ok(open())).map_err(|_| denied)?
    }

    fn owner_where_denied(&self, dir: &File, name: &str, denied: Errno) -> Option<u32> {
        let is_denied = matches!(denied, Errno::ACCESS | Errno::PERM);
        let owner = is_denied.then(|| stat_in(dir, name).ok()).flatten()?.user;
        self.is_another(owner).then_some(owner)
    }

    fn is_another(&self, user: u32) -> bool {
        self.may && user != file_user()
    }

    fn role(&self, uid: u32) -> Result<Rc<ImpersonatedUser>, Errno> {
        if let Some(role) = self.roles.borrow().get(&uid) {
            return Ok(role.clone());
        }
        let role = Rc::new(ImpersonatedUser::new(&peer_of_user(uid))?);
        self.roles.borrow_mut().insert(uid, role.clone());
        Ok(role)
    }
}

/// Returns the owner of `bucket`, or `None` if the bucket no longer exists.
pub(crate) fn bucket_owner(inner: &PosixStoreState, bucket: &Bucket) -> Result<Option<u32>> {
    match inner.volume.open_dir(bucket.as_str()).and_then(stat) {
        Ok(state) => Ok(Some(state.user)),
        Err(Errno::NOENT | Errno::NOTDIR | Errno::STALE) => Ok(None),
        Err(errno) => Err(from_errno(errno, "opening the bucket")),
    }
}
