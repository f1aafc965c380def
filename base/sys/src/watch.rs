//! Watches on directories: the kernel queues every change of a name in a watched directory (inotify).
//!
//! The kernel queues each change before the call that makes the change returns. The queued changes are in the order in
//! which the calls took effect. A process that reads the queue therefore gets all earlier changes by any process on
//! this machine.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::inotify::{CreateFlags, ReadFlags, WatchFlags};
use rustix::io::{Errno, Result};

use crate::call::{inotify_add_watch, inotify_init, inotify_rm_watch, read};

/// The size, in bytes, of the buffer for the records that one `read` returns.
const QUEUE_READ_BYTES: usize = 16 << 10;
/// The size of the record of a change without its name, in bytes.
const HEAD_BYTES: usize = 16;
/// The size of the longest record, in bytes.
const CHANGE_BYTES_MAX: usize = HEAD_BYTES + 256;

/// The number of a watched directory in a [`DirectoryWatcher`]. The number is never reused for another directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchId(i32);

/// A change in a watched directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirectoryChange<'n> {
    /// The name was added: created, linked, or the target of a rename, perhaps over another file.
    Made {
        /// The name.
        name: &'n [u8],
        /// Whether the name belongs to a directory, rather than to any other type of file.
        is_dir: bool,
    },
    /// The name was renamed to another name. The name may still exist: an exchange of two names reports each name first
    /// as `Made` (the new file), and then as `Moved` (the old file).
    Moved {
        /// The name.
        name: &'n [u8],
        /// Whether the name belonged to a directory.
        is_dir: bool,
    },
    /// The name was removed by `unlink` or `rmdir`.
    Gone {
        /// The name.
        name: &'n [u8],
        /// Whether the name belonged to a directory.
        is_dir: bool,
    },
    /// The directory itself was moved or removed, or its owner or mode changed; or the watch has ended.
    Itself,
}

/// A queue of the changes in the watched directories. The kernel takes about 10 ms to close a queue, so a queue is kept
/// open as long as it may be used again. After a fork, the child process shares the queue with its parent, and must not
/// read it.
#[derive(Debug)]
pub struct DirectoryWatcher {
    queue: OwnedFd,
    read: Vec<u8>,
}

impl DirectoryWatcher {
    /// Creates a queue without any watched directory. Cost: one `inotify_init1`. Errors: `MFILE` if the user has too
    /// many queues (`fs.inotify.max_user_instances`, usually 128), `NOSYS` without inotify.
    pub fn new() -> Result<Self> {
        let queue = inotify_init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        Ok(DirectoryWatcher { queue, read: Vec::with_capacity(QUEUE_READ_BYTES) })
    }

    /// Starts to watch `dir`, for which the caller needs read permission. From then on, each change of a name in `dir`
    /// takes about 1 µs longer in every process. Cost: one `inotify_add_watch`, whose duration grows with the number of
    /// cached names. Errors: `NOSPC` if the user has too many watches (`fs.inotify.max_user_watches`), `ACCESS`,
    /// `NOENT` without `/proc`.
    pub fn watch(&self, dir: impl AsFd) -> Result<WatchId> {
        let path = format!("/proc/self/fd/{}", dir.as_fd().as_raw_fd());
        let names = WatchFlags::CREATE | WatchFlags::DELETE | WatchFlags::MOVE;
        let itself = WatchFlags::ATTRIB | WatchFlags::DELETE_SELF | WatchFlags::MOVE_SELF;
        let flags = names | itself | WatchFlags::ONLYDIR | WatchFlags::EXCL_UNLINK;
        inotify_add_watch(&self.queue, path, flags).map(WatchId)
    }

    /// Stops watching a directory. Changes that are already queued are still returned. Cost: one `inotify_rm_watch`.
    pub fn unwatch(&self, watch: WatchId) {
        // An error means that the watch has already ended.
        let _ = inotify_rm_watch(&self.queue, watch.0);
    }

    /// Calls `visit` for every change before this call, in order. Cost: one `read`, and another for about every 100
    /// changes. Errors: `OVERFLOW` if changes were lost because there were too many (`fs.inotify.max_queued_events`,
    /// usually 16,384); the state of every directory is then unknown.
    pub fn changes(&mut self, mut visit: impl FnMut(WatchId, DirectoryChange<'_>)) -> Result<()> {
        loop {
            self.read.clear();
            match read(&self.queue, rustix::buffer::spare_capacity(&mut self.read)) {
                Ok(_) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(errno),
            }
            visit_each(&self.read, &mut visit)?;
            // There was room for another change, so the queue is empty.
            if self.read.len() + CHANGE_BYTES_MAX <= self.read.capacity() {
                return Ok(());
            }
        }
    }
}

/// Calls `visit` for each of the kernel's records in `bytes`. Errors: `OVERFLOW` if a record reports that changes were
/// lost.
fn visit_each(mut bytes: &[u8], visit: &mut impl FnMut(WatchId, DirectoryChange<'_>)) -> Result<()> {
    // struct inotify_event: int wd; uint32_t mask, cookie, len; char name[len], filled up with zeros.
    while let Some((head, rest)) = bytes.split_first_chunk::<HEAD_BYTES>() {
        let number = |at: usize| u32::from_ne_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let (watch, mask) = (WatchId(number(0).cast_signed()), ReadFlags::from_bits_retain(number(4)));
        let Some((name, rest)) = rest.split_at_checked(number(12) as usize) else {
            return Err(Errno::OVERFLOW);
        };
        if mask.contains(ReadFlags::QUEUE_OVERFLOW) {
            return Err(Errno::OVERFLOW);
        }
        let name = &name[..name.iter().position(|byte| *byte == 0).unwrap_or(name.len())];
        let is_dir = mask.contains(ReadFlags::ISDIR);
        if name.is_empty() {
            visit(watch, DirectoryChange::Itself);
        } else if mask.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO) {
            visit(watch, DirectoryChange::Made { name, is_dir });
        } else if mask.contains(ReadFlags::MOVED_FROM) {
            visit(watch, DirectoryChange::Moved { name, is_dir });
        } else if mask.contains(ReadFlags::DELETE) {
            visit(watch, DirectoryChange::Gone { name, is_dir });
        }
        bytes = rest;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// Returns the queued changes as text: `+` created, `-` removed, `<` renamed, `/` for a directory.
    fn changes(watcher: &mut DirectoryWatcher) -> Vec<String> {
        let mut all = Vec::new();
        let text = |sign, name: &[u8], is_dir| {
            format!("{sign}{}{}", String::from_utf8_lossy(name), if is_dir { "/" } else { "" })
        };
        watcher
            .changes(|_, change| {
                all.push(match change {
                    DirectoryChange::Made { name, is_dir } => text('+', name, is_dir),
                    DirectoryChange::Moved { name, is_dir } => text('<', name, is_dir),
                    DirectoryChange::Gone { name, is_dir } => text('-', name, is_dir),
                    DirectoryChange::Itself => "itself".to_owned(),
                });
            })
            .unwrap();
        all
    }

    #[test]
    fn every_way_to_change_a_name_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let mut watcher = DirectoryWatcher::new().unwrap();
        let watch = watcher.watch(File::open(dir.path()).unwrap()).unwrap();
        assert!(changes(&mut watcher).is_empty());
        fs::write(at("a"), "").unwrap();
        fs::hard_link(at("a"), at("b")).unwrap();
        fs::rename(at("a"), at("b2")).unwrap();
        fs::create_dir(at("d")).unwrap();
        fs::write(at("d/inside"), "").unwrap();
        fs::rename(at("d/inside"), at("b")).unwrap();
        fs::remove_dir(at("d")).unwrap();
        fs::remove_file(at("b")).unwrap();
        let seen = ["+a", "+b", "<a", "+b2", "+d/", "+b", "-d/", "-b"];
        assert_eq!(changes(&mut watcher), seen);
        fs::set_permissions(dir.path(), Permissions::from_mode(0o750)).unwrap();
        assert_eq!(changes(&mut watcher), ["itself"]);
        watcher.unwatch(watch);
        fs::write(at("c"), "").unwrap();
        assert_eq!(changes(&mut watcher), ["itself"]);
    }

    /// Even if there are many changes, all of them are returned, in order and without a wait.
    #[test]
    fn many_changes_are_all_seen() {
        let dir = tempfile::tempdir().unwrap();
        let mut watcher = DirectoryWatcher::new().unwrap();
        watcher.watch(File::open(dir.path()).unwrap()).unwrap();
        let names: Vec<String> = (0..5000).map(|at| format!("{at:0200}")).collect();
        names.iter().for_each(|name| fs::write(dir.path().join(name), "").unwrap());
        let seen = changes(&mut watcher);
        assert!(seen.iter().eq(names.iter().map(|name| format!("+{name}")).collect::<Vec<_>>().iter()));
        assert!(changes(&mut watcher).is_empty());
    }

    #[test]
    fn lost_changes_are_an_error() {
        let most: usize =
            fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap().trim().parse().unwrap();
        if most > 100_000 {
            return fordway_needs::skip("the queue of inotify is too long to fill");
        }
        let dir = tempfile::tempdir().unwrap();
        let mut watcher = DirectoryWatcher::new().unwrap();
        watcher.watch(File::open(dir.path()).unwrap()).unwrap();
        for at in 0..=most / 2 {
            fs::write(dir.path().join(format!("{at}")), "").unwrap();
            fs::remove_file(dir.path().join(format!("{at}"))).unwrap();
        }
        assert_eq!(watcher.changes(|_, _| {}), Err(Errno::OVERFLOW));
    }
}
