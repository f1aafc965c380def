//! File systems that other nodes may change: how to recognize them, and how to get data from their server instead of
//! this node's caches.

use std::os::fd::AsFd;

use rustix::fs::{AtFlags, RawDir, StatxFlags, makedev};
use rustix::io::{Errno, Result};

use super::dir::text_to_name;
use super::file::get_xattr_in;
use crate::call::{fstatfs, linkat, of_open_file, point, statx};
use crate::file::FileStat;

/// The types that `statfs` returns for file systems that only this kernel changes: ext2 to ext4, XFS, Btrfs, tmpfs,
/// ramfs, overlayfs, F2FS, ZFS, bcachefs, JFS, NILFS, ReiserFS, FAT, exFAT, NTFS, UFS.
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
pub(crate) const NFS: u64 = 0x6969;
pub(crate) const OCFS2: u64 = 0x7461_636F;
pub(crate) const LUSTRE: u64 = 0x0BD0_0BD0;

/// Returns the type of the file system of `file`.
pub(crate) fn type_of(file: impl AsFd) -> Result<u64> {
    // The type has 32 bits; some architectures sign-extend it.
    Ok(fstatfs(file)?.f_type as u64 & 0xFFFF_FFFF)
}

/// Returns whether only this kernel changes file systems of this type.
pub(crate) fn is_local(kind: u64) -> bool {
    LOCAL.contains(&kind)
}

/// Returns whether a rename over an existing name leaves the directory entry in place, so that a reader of the
/// directory cannot miss the name. This is the case on ext2 to ext4 and on XFS. On Btrfs and tmpfs, the entry moves to
/// a new place, which a read that has already begun never reaches. Other file systems are assumed to move entries too.
/// Cost: one `fstatfs`.
pub fn keeps_entries_in_place(dir: impl AsFd) -> bool {
    type_of(dir).is_ok_and(|kind| matches!(kind, 0xEF53 | 0x5846_5342))
}

/// Which nodes may change a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum FileSystemSharing {
    /// Only this kernel may change the file system.
    #[default]
    Local,
    /// The clients of an NFS server may change the file system.
    Nfs,
    /// It is not known which nodes may change the file system. This applies to FUSE, and to every file system of an
    /// unknown type.
    Unknown,
}

impl FileSystemSharing {
    /// Classifies the file system of `file` by its type. Cost: one `fstatfs`.
    pub fn of(file: impl AsFd) -> Result<Self> {
        #[cfg(feature = "faults")]
        if let Some(planned) = crate::fault::sharing() {
            return Ok(planned);
        }
        Ok(match type_of(file)? {
            NFS => FileSystemSharing::Nfs,
            kind if is_local(kind) => FileSystemSharing::Local,
            _ => FileSystemSharing::Unknown,
        })
    }

    /// Returns whether other nodes may change the file system.
    pub fn is_shared(self) -> bool {
        self != FileSystemSharing::Local
    }
}

/// Returns the device of an open file, without asking a server. Cost: one `statx`.
pub(crate) fn device_in_memory(file: impl AsFd) -> Result<u64> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let stat = statx(file, "", flags, StatxFlags::empty())?;
    Ok(makedev(stat.stx_dev_major, stat.stx_dev_minor))
}

/// Returns the server's metadata of an open file, and updates the kernel's cache of the file. For an NFS directory, the
/// call also updates the cached names in the directory. Errors: `STALE` if the server no longer has the file. Cost: one
/// `statx`, and a round trip.
pub fn stat_now(file: impl AsFd) -> Result<FileStat> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC;
    let stat = statx(file, "", flags, StatxFlags::BASIC_STATS).map_err(of_open_file)?;
    Ok(FileStat::of_statx(&stat, makedev(stat.stx_dev_major, stat.stx_dev_minor)))
}

/// Makes the kernel check whether the cached file at `path` (relative to `dir`) still exists, and look up every name of
/// the path again if the file is gone. The results are discarded. Cost: two calls and two round trips.
///
/// The kernel looks names up again if the server no longer has the file of a name (`ESTALE`). An NFS server reports
/// this error in response to a request for the metadata of the file. The GlusterFS client uses its cache for such a
/// request, but not for a request for an extended attribute, so this function makes both requests.
pub fn look_again(dir: impl AsFd, path: &str) {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::STATX_FORCE_SYNC;
    let _ = statx(&dir, &*text_to_name(path), flags, StatxFlags::BASIC_STATS);
    let _ = get_xattr_in(dir, path, c"user.fordway", &mut [0; 8]);
}

/// Makes an NFS or FUSE client that has cached the existence of `name` in `dir` look up the name at the server, even if
/// the directory looks unchanged. With older kernels, a FUSE client does so only once its cached name has expired.
/// Nothing is changed: the call tries to link a directory, which no kernel allows. Before the kernel refuses, it looks
/// up the new name as for an exclusive creation. The call does not help if the client has cached that the name is
/// missing. Cost: one call, and usually a round trip.
pub fn look_up_existing(dir: impl AsFd, name: &str) {
    let _ = linkat(&dir, c".", &dir, &*text_to_name(name), AtFlags::empty());
}

/// Drops the kernel's cache of the names in `dir`, which must be open for reading, so that the next read asks the
/// server. That read also corrects names that an NFS client has cached as missing. Cost: one call.
pub fn forget_names(dir: impl AsFd) {
    let _ = rustix::fs::fadvise(dir, 0, None, rustix::fs::Advice::DontNeed);
}

/// Checks that the server still has an open file or directory. After another node has removed a file, the MooseFS
/// client shows the file for another second, but does not cache the list of the file's extended attributes. `file` must
/// be open for reading. Errors: `STALE` if the file or directory is gone. Cost: one `flistxattr`, and a round trip.
pub fn require_kept(file: impl AsFd) -> Result<()> {
    point("flistxattr")?;
    match rustix::fs::flistxattr(file, &mut [0_u8; 0][..]) {
        Ok(_) | Err(Errno::OPNOTSUPP) => Ok(()),
        Err(errno) => Err(of_open_file(errno)),
    }
}

/// Returns the inode number that the directory `dir` lists for `name`. The result comes from the server, regardless of
/// cached entries. `dir` must be open for reading and not have been read yet. Cost: a read of the
/// directory up to the name.
pub fn inode_in(dir: impl AsFd, name: &str) -> Result<Option<u64>> {
    Ok(find_in(dir, name, usize::MAX)?.flatten())
}

/// Searches `dir` for `name` like [`inode_in`], but reads at most `names_max` names, apart from `.` and `..`. Returns
/// `None` if the name is not among these names and the directory has more names. Cost: a read of the directory up to
/// the name, or up to `names_max` names.
pub fn inode_among(dir: impl AsFd, name: &str, names_max: usize) -> Result<Option<Option<u64>>> {
    find_in(dir, name, names_max)
}

fn find_in(dir: impl AsFd, name: &str, names_max: usize) -> Result<Option<Option<u64>>> {
    const BUFFER_BYTES: usize = 32 * 1024;
    let (name, mut buffer) = (text_to_name(name), Vec::with_capacity(BUFFER_BYTES));
    let mut entries = RawDir::new(dir, buffer.spare_capacity_mut());
    let mut seen = 0;
    loop {
        if entries.is_buffer_empty() {
            point("getdents64")?;
        }
        match entries.next() {
            None | Some(Err(Errno::NOENT)) => return Ok(Some(None)),
            Some(Err(errno)) => return Err(errno),
            Some(Ok(entry)) if entry.file_name().to_bytes() == &*name => return Ok(Some(Some(entry.ino()))),
            Some(Ok(entry)) if matches!(entry.file_name().to_bytes(), b"." | b"..") => {}
            Some(Ok(_)) if seen == names_max => return Ok(None),
            Some(Ok(_)) => seen += 1,
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
        assert_eq!(require_kept(&file), Ok(()));
        let open = || std::fs::File::open(dir.path()).unwrap();
        assert_eq!(inode_in(open(), "f").unwrap(), Some(crate::stat(&file).unwrap().inode));
        assert_eq!(inode_in(open(), "g").unwrap(), None);
        assert_eq!(inode_among(open(), "g", 1).unwrap(), Some(None), "the directory has one name");
        assert_eq!(inode_among(open(), "g", 0).unwrap(), None, "it has more than none");
        look_again(open(), "f");
        look_up_existing(open(), "f");
        look_up_existing(open(), "h");
        forget_names(open());
        assert_eq!(inode_in(open(), "h").unwrap(), None, "nothing is made");
        look_again(open(), "none/at/all");
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
