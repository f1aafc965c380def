//! File systems that other nodes change too: which they are, and how to ask their server instead of this node's caches.

use std::os::fd::AsFd;

use rustix::fs::{AtFlags, RawDir, StatxFlags, makedev};
use rustix::io::{Errno, Result};

use super::dir::text_to_name;
use super::file::get_xattr_in;
use crate::call::{fstatfs, point, statx};
use crate::file::FileStat;

/// The types that `statfs` gives of file systems that only this kernel changes: ext2 to ext4, XFS, Btrfs, tmpfs, ramfs,
/// overlayfs, F2FS, ZFS, bcachefs, JFS, NILFS, ReiserFS, FAT, exFAT, NTFS, UFS.
const LOCAL: [u64; 16] = [
    0xEF53,
    0x5846_5342,
    0x9123_683E,
    0x0102_1994,
    0x8584_58F6,
    0x794C_7630,
    0xF2F5_2010,
    0x2FC1_2FC1,
    0xCA45_1A4E,
    0x3153_464A,
    0x3434,
    0x5265_4973,
    0x4D44,
    0x2011_BAB0,
    0x7366_746E,
    0x0001_1954,
];

/// The types of NFS, OCFS2 and Lustre.
const NFS: u64 = 0x6969;
const OCFS2: u64 = 0x7461_636F;
const LUSTRE: u64 = 0x0BD0_0BD0;

/// Whether other nodes may change a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum FileSystemSharing {
    /// This kernel alone.
    #[default]
    Local,
    /// The clients of an NFS server.
    Nfs,
    /// Perhaps other nodes: FUSE, and every file system of an unknown type.
    Unknown,
}

impl FileSystemSharing {
    /// Classifies the file system of `file` by its type. Cost: one `fstatfs`.
    pub fn of(file: impl AsFd) -> Result<Self> {
        // The type is 32 bits; some architectures extend its sign.
        let kind = fstatfs(file)?.f_type as u64 & 0xFFFF_FFFF;
        Ok(match kind {
            NFS => FileSystemSharing::Nfs,
            kind if LOCAL.contains(&kind) => FileSystemSharing::Local,
            _ => FileSystemSharing::Unknown,
        })
    }

    /// Whether other nodes may change it.
    pub fn is_shared(self) -> bool {
        self != FileSystemSharing::Local
    }
}

/// Describes an open file as its server does, and brings what the kernel remembers of it up to date: for a directory
/// of NFS, the names in it too. Cost: one `statx`, and a round trip.
pub fn stat_now(file: impl AsFd) -> Result<FileStat> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC;
    let stat = statx(file, "", flags, StatxFlags::BASIC_STATS)?;
    Ok(FileStat::of_statx(&stat, makedev(stat.stx_dev_major, stat.stx_dev_minor)))
}

/// Has the kernel find out whether what it remembers under `path` (from `dir`) still exists, and look every name on
/// the way up again if it does not. What is found is of no interest. Cost: two calls, and as many round trips.
///
/// The kernel looks names up again where the server no longer knows the file behind one (`ESTALE`). NFS says so when
/// it is asked for the state. GlusterFS answers that question from a cache of the client, but not the one for an
/// attribute.
pub fn look_again(dir: impl AsFd, path: &str) {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::STATX_FORCE_SYNC;
    let _ = statx(&dir, &*text_to_name(path), flags, StatxFlags::BASIC_STATS);
    let _ = get_xattr_in(dir, path, c"user.fordway", &mut [0; 8]);
}

/// Why locks on the file system of `file` exclude the programs of this node alone, with the way out, where that is
/// known; `None` says nothing. Cost: one `fstatfs`; on NFS and Lustre the list of mounts is read.
pub fn locks_of_one_node(file: impl AsFd) -> Result<Option<&'static str>> {
    let kind = fstatfs(&file)?.f_type as u64 & 0xFFFF_FFFF;
    if kind == OCFS2 {
        return Ok(Some("OCFS2 keeps the locks of open files on each node; no mount option changes that"));
    }
    if kind != NFS && kind != LUSTRE {
        return Ok(None);
    }
    let stat = statx(&file, "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)?;
    let device = format!("{}:{}", stat.stx_dev_major, stat.stx_dev_minor);
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    Ok(options_of(&mounts, &device).and_then(keeps_locks))
}

/// The options of the file system on `device`, from the text of `/proc/self/mountinfo`.
fn options_of<'m>(mounts: &'m str, device: &str) -> Option<&'m str> {
    let line = mounts.lines().find(|line| line.split(' ').nth(2) == Some(device))?;
    line.rsplit_once(' ').map(|(_, options)| options)
}

/// Why a mount with `options` keeps locks to itself, if it does.
fn keeps_locks(options: &str) -> Option<&'static str> {
    options.split(',').find_map(|option| match option {
        "nolock" => Some("the mount has `nolock`: mount it without, or with vers=4.2"),
        "local_lock=all" | "local_lock=posix" => {
            Some("the mount has `local_lock`: mount it with local_lock=none")
        }
        "localflock" => Some("the mount has `localflock`: mount it with `flock`"),
        _ => None,
    })
}

/// The inode that the directory `dir`, which must be open for reading and not have been read, gives for `name`: what
/// the server says, whatever is remembered of the name. Cost: it reads the directory up to the name.
pub fn inode_in(dir: impl AsFd, name: &str) -> Result<Option<u64>> {
    const BUFFER_BYTES: usize = 32 * 1024;
    let (name, mut buffer) = (text_to_name(name), Vec::with_capacity(BUFFER_BYTES));
    let mut entries = RawDir::new(dir, buffer.spare_capacity_mut());
    loop {
        if entries.is_buffer_empty() {
            point("getdents64")?;
        }
        match entries.next() {
            None | Some(Err(Errno::NOENT)) => return Ok(None),
            Some(Err(errno)) => return Err(errno),
            Some(Ok(entry)) if entry.file_name().to_bytes() == &*name => return Ok(Some(entry.ino())),
            Some(Ok(_)) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_server_says_is_what_a_local_kernel_knows() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("f"), "content").unwrap();
        let file = std::fs::File::open(dir.path().join("f")).unwrap();
        assert_eq!(stat_now(&file).unwrap(), crate::stat(&file).unwrap());
        let open = || std::fs::File::open(dir.path()).unwrap();
        assert_eq!(inode_in(open(), "f").unwrap(), Some(crate::stat(&file).unwrap().inode));
        assert_eq!(inode_in(open(), "g").unwrap(), None);
        look_again(open(), "f");
        look_again(open(), "none/at/all");
    }

    #[test]
    fn mounts_that_keep_locks_to_themselves_are_known() {
        let mounts = "22 1 0:20 / / rw shared:1 - ext4 /dev/vda rw\n\
                      40 22 0:51 / /a rw,relatime - nfs host:/a rw,vers=3,nolock,local_lock=all,addr=10.0.0.1\n\
                      41 22 0:52 / /b rw,relatime shared:9 - nfs4 host:/b rw,vers=4.2,local_lock=none\n\
                      42 22 0:53 / /c rw - lustre host@tcp:/c rw,localflock\n";
        let why = |device| options_of(mounts, device).map(keeps_locks);
        assert!(why("0:51").unwrap().unwrap().contains("nolock"));
        assert_eq!(why("0:52"), Some(None));
        assert!(why("0:53").unwrap().unwrap().contains("`flock`"));
        assert_eq!(why("0:54"), None);
        assert!(keeps_locks("rw,local_lock=posix").is_some() && keeps_locks("local_lock=flock").is_none());
        assert_eq!(locks_of_one_node(std::fs::File::open("/proc/self/stat").unwrap()), Ok(None));
    }

    #[test]
    fn proc_is_of_no_known_type() {
        assert_eq!(
            FileSystemSharing::of(std::fs::File::open("/proc/self/stat").unwrap()),
            Ok(FileSystemSharing::Unknown)
        );
        assert!(FileSystemSharing::Unknown.is_shared() && !FileSystemSharing::Local.is_shared());
    }
}
