//! Opens paths that must not lead out of a directory.

use std::collections::VecDeque;
use std::ffi::CString;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::{Errno, Result};

use super::dir::{name_to_text, text_to_name, with_name};
use crate::call::{fstat, openat, openat2, readlinkat, statat};
use crate::identity::file_user;
use crate::nowait::{CachedLookupProbe, is_only_in_memory, would_wait};
use crate::shared::{FileSystemSharing, device_in_memory};

/// The maximum number of symbolic links followed on one path, as in the kernel.
const MAX_LINKS: usize = 40;

/// How a [`RootDirectory`] resolves paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathResolutionMethod {
    /// With `openat2`, if the kernel supports it.
    Kernel,
    /// Name by name, as on kernels without `openat2`.
    Walk,
}

/// Which symbolic links the resolution of a path may follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SymlinkPolicy {
    /// Links that lead to a file or directory beneath the directory in which the path starts.
    Beneath,
    /// Those links of [`SymlinkPolicy::Beneath`] that belong to root or to the thread's file-system user. Other links
    /// cause the error `LOOP`. The kernel cannot check the owner, so the path is walked name by name.
    Own,
    /// No links: a link within the path, or at its end, causes the error `LOOP`.
    None,
}

impl SymlinkPolicy {
    fn resolve(self) -> ResolveFlags {
        let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        match self {
            SymlinkPolicy::Beneath | SymlinkPolicy::Own => beneath,
            SymlinkPolicy::None => beneath | ResolveFlags::NO_SYMLINKS,
        }
    }
}

/// A directory beneath which paths are resolved: no `..`, absolute path, symbolic link or race with a rename leads out
/// of it.
#[derive(Debug)]
pub struct RootDirectory {
    dir: OwnedFd,
    kernel_resolves: AtomicBool,
    recall: CachedLookupProbe,
    /// The device of the root if only this kernel changes its file system.
    local_device: Option<u64>,
}

impl RootDirectory {
    /// Opens the directory at `path`. Errors: the errors of `open`; `NOTDIR`.
    pub fn open(path: &Path, resolution: PathResolutionMethod) -> Result<Self> {
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let dir = openat(CWD, path, flags, Mode::empty())?;
        let kernel_resolves = AtomicBool::new(resolution == PathResolutionMethod::Kernel);
        let local_device = match FileSystemSharing::of(&dir) {
            Ok(FileSystemSharing::Local) => device_in_memory(&dir).ok(),
            _ => None,
        };
        Ok(RootDirectory { dir, kernel_resolves, recall: CachedLookupProbe::default(), local_device })
    }

    /// Returns the open directory.
    pub fn dir(&self) -> &OwnedFd {
        &self.dir
    }

    /// Opens the relative `path` beneath the root; `CLOEXEC` is added to `flags`. Cost: one `openat2`. Errors: `XDEV`
    /// if the path leads out of the root, errors of `openat`, and `AGAIN` within
    /// [`without_waiting`](crate::without_waiting).
    pub fn open_beneath(&self, path: &str, flags: OFlags, mode: Mode) -> Result<File> {
        self.open_from(&self.dir, path, SymlinkPolicy::Beneath, flags, mode)
    }

    /// Opens `path` like [`RootDirectory::open_beneath`], but the path starts in `start`, a directory beneath the root,
    /// and must not lead out of `start`.
    pub fn open_from(
        &self,
        start: impl AsFd,
        path: &str,
        links: SymlinkPolicy,
        flags: OFlags,
        mode: Mode,
    ) -> Result<File> {
        let (start, flags) = (start.as_fd(), flags | OFlags::CLOEXEC);
        if is_only_in_memory() && (links == SymlinkPolicy::Own || !self.opens_from_memory(start)) {
            would_wait();
            return Err(Errno::AGAIN);
        }
        if links == SymlinkPolicy::Own {
            return open_by_walk(start, path, (links, None), flags, mode).map(File::from);
        }
        if self.kernel_resolves.load(Ordering::Relaxed) {
            match self.open_by_kernel(start, path, links, flags, mode) {
                // Seccomp filters of older containers return EPERM for unknown system calls. Trying the walk
                // distinguishes such a filter from a denied file, for which the walk would also fail.
                Err(Errno::NOSYS | Errno::PERM) => {}
                done => return done.map(File::from),
            }
        }
        let opened = open_by_walk(start, path, (links, None), flags, mode)?;
        self.kernel_resolves.store(false, Ordering::Relaxed);
        Ok(File::from(opened))
    }

    /// Opens `path` like [`RootDirectory::open_from`], but refuses the name `closed` in the path and in the targets of
    /// links. Cost: about three calls for each name. Errors: as for [`RootDirectory::open_from`], and `LOOP` for the
    /// name `closed`.
    pub fn open_from_except(
        &self,
        start: impl AsFd,
        path: &str,
        (links, closed): (SymlinkPolicy, &str),
        flags: OFlags,
        mode: Mode,
    ) -> Result<File> {
        let (start, flags) = (start.as_fd(), flags | OFlags::CLOEXEC);
        if is_only_in_memory() && !self.opens_from_memory(start) {
            would_wait();
            return Err(Errno::AGAIN);
        }
        // The walk waits for devices. If the caller must not wait, `openat2` first determines whether the walk would
        // wait.
        if self.kernel_resolves.load(Ordering::Relaxed)
            && let Some(Err(Errno::AGAIN)) =
                self.ask_memory(start, path, OFlags::PATH | OFlags::CLOEXEC, links.resolve())
        {
            return Err(Errno::AGAIN);
        }
        open_by_walk(start, path, (links, Some(closed)), flags, mode).map(File::from)
    }

    /// Returns whether a file below `start` can be opened without waiting. A FUSE or NFS client may ask its server when
    /// a file is opened, even if the name is cached. Cost: one `statx`, which does not wait.
    fn opens_from_memory(&self, start: BorrowedFd<'_>) -> bool {
        self.kernel_resolves.load(Ordering::Relaxed)
            && !self.recall.never_answers()
            && self.local_device.is_some_and(|device| device_in_memory(start) == Ok(device))
    }

    fn open_by_kernel(
        &self,
        start: BorrowedFd<'_>,
        path: &str,
        links: SymlinkPolicy,
        flags: OFlags,
        mode: Mode,
    ) -> Result<OwnedFd> {
        let resolve = links.resolve();
        if let Some(answer) = self.ask_memory(start, path, flags, resolve) {
            return answer;
        }
        // EAGAIN means that a `..` in the path or in a link raced with a rename or mount elsewhere; the kernel asks the
        // caller to retry.
        let opened = with_name(path, |name| {
            let attempt = || openat2(start, name, flags, mode, resolve);
            let mut attempts = (0..128).map(|_| attempt());
            attempts.find(|opened| !matches!(opened, Err(Errno::AGAIN))).unwrap_or(Err(Errno::AGAIN))
        });
        if opened.is_ok() && self.recall.is_in_doubt() {
            self.ask_memory_again(start, path);
        }
        opened
    }

    /// Opens `name` (a single name, not a path) in `dir`, a directory beneath the root; does not follow a link. Cost:
    /// one `openat`. Errors: the errors of `openat`, and `AGAIN` within [`without_waiting`](crate::without_waiting).
    pub fn open_in(&self, dir: impl AsFd, name: &str, flags: OFlags) -> Result<File> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        if is_only_in_memory() && !self.opens_from_memory(dir.as_fd()) {
            would_wait();
            return Err(Errno::AGAIN);
        }
        let answer = match self.kernel_resolves.load(Ordering::Relaxed) {
            true => self.ask_memory(&dir, name, flags, ResolveFlags::empty()),
            false => None,
        };
        let opened = match answer {
            // The kernel lacks or forbids `openat2`; see `open_from`.
            None | Some(Err(Errno::NOSYS | Errno::PERM)) => {
                with_name(name, |name| openat(dir, name, flags, Mode::empty()))
            }
            Some(answer) => answer,
        };
        opened.map(File::from)
    }

    /// Opens a file without waiting for a device. Returns `None` if the caller may wait, or if cached lookups never
    /// succeed on this kernel or file system. Errors: `AGAIN` if the open would block.
    fn ask_memory(
        &self,
        dir: impl AsFd,
        path: &str,
        flags: OFlags,
        resolve: ResolveFlags,
    ) -> Option<Result<OwnedFd>> {
        if !self.recall.is_to_be_asked() {
            return None;
        }
        let stays = if is_only_in_memory() { ResolveFlags::NO_XDEV } else { ResolveFlags::empty() };
        let resolve = resolve | ResolveFlags::CACHED | stays;
        let answer = with_name(path, |path| openat2(dir, path, flags, Mode::empty(), resolve));
        match answer {
            Ok(_) => self.recall.has_answered(),
            Err(Errno::AGAIN) => {
                self.recall.has_not_answered();
                would_wait();
            }
            // The path leads to another file system, whose server may have to be asked.
            Err(Errno::XDEV) if is_only_in_memory() => {
                would_wait();
                return Some(Err(Errno::AGAIN));
            }
            // The name is invalid, or Linux is older than 5.12.
            Err(Errno::INVAL) => {
                if self.look_into_memory(self.dir.as_fd(), ".") == Err(Errno::INVAL) {
                    self.recall.gives_up();
                }
                return None;
            }
            Err(_) => {}
        }
        Some(answer)
    }

    /// Tries a cached lookup of a path that was just opened, and records whether this lookup succeeds.
    fn ask_memory_again(&self, start: BorrowedFd<'_>, path: &str) {
        match self.look_into_memory(start, path) {
            Ok(()) => self.recall.has_answered(),
            Err(Errno::AGAIN) => self.recall.was_in_vain(),
            Err(_) => {}
        }
    }

    fn look_into_memory(&self, start: BorrowedFd<'_>, path: &str) -> Result<()> {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS | ResolveFlags::CACHED;
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        with_name(path, |path| openat2(start, path, flags, Mode::empty(), resolve)).map(drop)
    }
}

/// Walks `path` and keeps the directory of every level open. `..` therefore returns to an open directory, and never
/// needs a lookup that a rename could divert. Errors: `XDEV` if the path leads out of `start`; `LOOP` for too many
/// links, a forbidden link or the name `closed`; errors of `openat`.
fn open_by_walk(
    start: BorrowedFd<'_>,
    path: &str,
    (links, closed): (SymlinkPolicy, Option<&str>),
    flags: OFlags,
    mode: Mode,
) -> Result<OwnedFd> {
    // `openat2` beneath a directory returns the same error, so callers see no difference.
    if path.starts_with('/') {
        return Err(Errno::XDEV);
    }
    let mut levels = vec![start.try_clone_to_owned().map_err(|_| Errno::MFILE)?];
    let mut names: VecDeque<String> = split(path).collect();
    let mut followed = 0;
    while let Some(name) = names.pop_front() {
        let here = levels.last().ok_or(Errno::XDEV)?;
        if name == ".." {
            levels.pop();
            if levels.is_empty() {
                return Err(Errno::XDEV);
            }
            continue;
        }
        if closed == Some(&*name) {
            return Err(Errno::LOOP);
        }
        let last = names.is_empty();
        if let Some(target) = link_target(here, &name, links)?
            && !(last && flags.contains(OFlags::NOFOLLOW))
        {
            followed += 1;
            if links == SymlinkPolicy::None || followed > MAX_LINKS {
                return Err(Errno::LOOP);
            }
            if target.starts_with('/') {
                return Err(Errno::XDEV);
            }
            // The target of the link replaces its name in the path, and is subject to the same rules.
            for name in split(&target).collect::<Vec<_>>().into_iter().rev() {
                names.push_front(name);
            }
            continue;
        }
        if last {
            // Links were resolved above. If a link appears in the meantime, this call fails instead of following it.
            return with_name(&name, |name| openat(here, name, flags | OFlags::NOFOLLOW, mode));
        }
        let step = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let next = with_name(&name, |name| openat(here, name, step, Mode::empty()))?;
        levels.push(next);
    }
    let here = levels.last().ok_or(Errno::XDEV)?;
    openat(here, ".", flags, mode)
}

fn split(path: &str) -> impl Iterator<Item = String> + '_ {
    path.split('/').filter(|name| !name.is_empty() && *name != ".").map(str::to_owned)
}

/// Returns the target of the link `name` in `dir`, or `None` if `name` is missing or not a link. Errors: `LOOP` if
/// `links` forbids the link.
fn link_target(dir: impl AsFd, name: &str, links: SymlinkPolicy) -> Result<Option<String>> {
    let name = text_to_name(name);
    match statat(&dir, &*name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Symlink => {
            let target = match links {
                SymlinkPolicy::Own => own_target(&dir, &name)?,
                SymlinkPolicy::Beneath | SymlinkPolicy::None => readlinkat(&dir, &*name, Vec::new())?,
            };
            Ok(Some(name_to_text(target.as_bytes()).into_owned()))
        }
        Ok(_) | Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns the target of a link that belongs to root or to the caller. The link is opened once, so that owner and
/// target belong to the same link.
fn own_target(dir: impl AsFd, name: &[u8]) -> Result<CString> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let link = openat(dir, name, flags, Mode::empty())?;
    let owner = fstat(&link)?.st_uid;
    if owner != 0 && owner != file_user() {
        return Err(Errno::LOOP);
    }
    readlinkat(&link, "", Vec::new())
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::{only_in_memory, without_waiting};

    /// `openat2` and the walk name by name must agree on every path: on whether it can be opened, and on the error if
    /// it cannot.
    #[test]
    fn nothing_leaves_the_root() {
        let outer = tempfile::tempdir().unwrap();
        let top = outer.path().join("root");
        std::fs::create_dir_all(top.join("a/b")).unwrap();
        std::fs::write(outer.path().join("secret"), "secret").unwrap();
        std::fs::write(top.join("a/b/f"), "inside").unwrap();
        for (link, target) in [
            ("out", "../secret"),
            ("abs", "/etc/hostname"),
            ("in", "a/b/f"),
            ("a/up", "../a/b/f"),
            ("a/dir", "b"),
            ("a/far", "../../secret"),
            ("loop", "loop"),
            ("outdir", ".."),
        ] {
            symlink(target, top.join(link)).unwrap();
        }
        for resolution in [PathResolutionMethod::Kernel, PathResolutionMethod::Walk] {
            let root = RootDirectory::open(&top, resolution).unwrap();
            let read = |path: &str| {
                let mut text = String::new();
                root.open_beneath(path, OFlags::RDONLY, Mode::empty())
                    .map(|mut file| file.read_to_string(&mut text).map(|_| text).unwrap_or_default())
            };
            for path in ["a/b/f", "in", "a/up", "a/dir/f", "a/b/../b/f", "./a//b/f"] {
                assert_eq!(read(path).as_deref(), Ok("inside"), "{resolution:?} {path}");
            }
            for path in
                ["../secret", "out", "abs", "a/far", "outdir/secret", "a/../../secret", "/etc/hostname"]
            {
                assert_eq!(read(path), Err(Errno::XDEV), "{resolution:?} {path}");
            }
            for path in ["in", "a/up", "a/dir/f", "out", "loop"] {
                let opened =
                    root.open_from(root.dir(), path, SymlinkPolicy::None, OFlags::RDONLY, Mode::empty());
                assert_eq!(opened.err(), Some(Errno::LOOP), "{resolution:?} {path}");
            }
            let below = root.open_beneath("a", OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
            for (path, expected) in
                [("b/f", None), ("dir/f", None), ("up", Some(Errno::XDEV)), ("..", Some(Errno::XDEV))]
            {
                let opened =
                    root.open_from(&below, path, SymlinkPolicy::Beneath, OFlags::RDONLY, Mode::empty());
                assert_eq!(opened.err(), expected, "{resolution:?} {path} from a");
            }
            for path in ["a/b/f", "in", "a/up", "a/dir/f"] {
                let open = |closed| {
                    let links = (SymlinkPolicy::Beneath, closed);
                    root.open_from_except(root.dir(), path, links, OFlags::RDONLY, Mode::empty()).err()
                };
                assert_eq!(
                    [open("b"), open("f"), open("c")],
                    [Some(Errno::LOOP), Some(Errno::LOOP), None],
                    "{path}"
                );
            }
            assert_eq!(read("loop"), Err(Errno::LOOP), "{resolution:?}");
            assert_eq!(read("a/none"), Err(Errno::NOENT), "{resolution:?}");
            assert_eq!(read("a/b/f/x"), Err(Errno::NOTDIR), "{resolution:?}");
        }
    }

    /// On any file system, a name that was never looked up is not in memory; a name that was just created is in memory.
    #[test]
    fn names_are_not_waited_for_by_who_says_so() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("a")).unwrap();
        std::fs::write(dir.path().join("a/f"), "").unwrap();
        let root = RootDirectory::open(dir.path(), PathResolutionMethod::Kernel).unwrap();
        let open = |path: &str| root.open_beneath(path, OFlags::RDONLY, Mode::empty()).map(drop);
        if without_waiting(|| open("a/f")) != Some(Ok(())) || !root.recall.is_believed() {
            fordway_needs::skip("this kernel or file system cannot look up names only in memory");
            return;
        }
        let held = root.open_beneath("a", OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
        let open_in = |name: &str| root.open_in(&held, name, OFlags::RDONLY).map(drop);
        assert_eq!(without_waiting(|| open_in("f")), Some(Ok(())));
        assert_eq!(without_waiting(|| open("a/none")), None);
        assert_eq!(without_waiting(|| open_in("nothing")), None);
        assert_eq!(without_waiting(|| (open("a/zero"), open("a/f"))), None, "one is enough");
        assert_eq!(open("a/none"), Err(Errno::NOENT));
        assert_eq!(open_in("nothing"), Err(Errno::NOENT));
        std::os::unix::fs::symlink("f", dir.path().join("a/l")).unwrap();
        assert_eq!(without_waiting(|| open_in("l")), Some(Err(Errno::LOOP)));
        assert_eq!(without_waiting(|| open("a\0f")), Some(Err(Errno::INVAL)));
        assert!(root.recall.is_believed(), "an invalid name says nothing about the file system");
        let walk = RootDirectory::open(dir.path(), PathResolutionMethod::Walk).unwrap();
        let opened = without_waiting(|| walk.open_beneath("a/f", OFlags::RDONLY, Mode::empty()).is_ok());
        assert_eq!(opened, Some(true), "a thread that walks the path waits");
        assert_eq!(only_in_memory(|| open("a/f")), Some(Ok(())));
        assert_eq!(only_in_memory(|| open_in("f")), Some(Ok(())));
        let whole = RootDirectory::open(Path::new("/"), PathResolutionMethod::Kernel).unwrap();
        let open = || whole.open_beneath("proc/version", OFlags::RDONLY, Mode::empty()).map(drop);
        assert_eq!((open(), only_in_memory(open)), (Ok(()), None), "another file system beneath the root");
        let proc = whole.open_beneath("proc", OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
        assert_eq!(only_in_memory(|| whole.open_in(&proc, "version", OFlags::RDONLY).map(drop)), None);
        let open = || walk.open_beneath("a/f", OFlags::RDONLY, Mode::empty()).map(drop);
        assert_eq!(only_in_memory(open), None, "a thread that walks the path would wait");
        assert_eq!(only_in_memory(|| walk.open_in(&held, "f", OFlags::RDONLY).map(drop)), None);
    }
}
