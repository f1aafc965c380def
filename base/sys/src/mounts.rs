//! Finds the mount of a file, and recognizes mounts that are unsuitable for a store on several nodes.

use std::collections::BTreeMap;
use std::fs::DirEntry;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;

use rustix::fs::{AtFlags, StatxFlags, makedev};
use rustix::io::Result;

use crate::call::statx;
use crate::shared::{LUSTRE, NFS, OCFS2, is_local, type_of};

/// The calling thread's list of mounts, which may differ from the process's list, because a thread may have its own
/// mount namespace.
const MOUNTS: &str = "/proc/thread-self/mountinfo";

/// A reason why a store's guarantees do not hold on a file system, with advice on how to solve the problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MountProblem {
    /// Overwrites and deletes may be lost: locks work only within this node, or it is unknown whether they work between
    /// nodes.
    Locks(&'static str),
    /// Objects may be lost, with or without locks.
    Objects(&'static str),
}

impl MountProblem {
    /// Returns the known problem of the file system of `file`; `None` if no problem is known. Cost: one `fstatfs`. On
    /// file systems that other nodes may change, except OCFS2, also one `statx`, and a read of the list of mounts.
    pub fn of(file: impl AsFd) -> Result<Option<Self>> {
        let kind = type_of(&file)?;
        if is_local(kind) {
            return Ok(None);
        }
        if kind == OCFS2 {
            return Ok(Some(MountProblem::Locks(NODES_OWN_LOCKS)));
        }
        // Any user may mount a FUSE file system at a path that is not UTF-8, so the list may contain invalid bytes.
        let mounts = std::fs::read(MOUNTS).unwrap_or_default();
        let mounts = String::from_utf8_lossy(&mounts);
        let mount = mount_id(&file).and_then(|id| Mount::find(&mounts, id));
        Ok(match mount {
            Some(mount) => mount.problem(),
            None if matches!(kind, NFS | LUSTRE) => Some(MountProblem::Locks(UNSEEN)),
            None => None,
        })
    }

    /// Returns the sentence that explains the problem.
    pub fn why(self) -> &'static str {
        let (MountProblem::Locks(why) | MountProblem::Objects(why)) = self;
        why
    }
}

/// The properties of a mount that determine its guarantees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountProperties {
    /// The file system's type, as in the list of mounts.
    pub kind: String,
    /// The options of the file system, sorted, without options that name a node.
    pub options: String,
    /// The release of this node's kernel.
    pub kernel: String,
}

impl MountProperties {
    /// Returns the properties of the mount of `file`. Returns `None` if the list of mounts does not contain the mount.
    /// Cost: reads two files of `/proc`.
    pub fn of(file: impl AsFd) -> Option<Self> {
        let mounts = std::fs::read(MOUNTS).ok()?;
        let mounts = String::from_utf8_lossy(&mounts);
        let mount = Mount::find(&mounts, mount_id(&file)?)?;
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").ok()?;
        let (kind, options) = (mount.kind.to_owned(), options_of_all_nodes(mount.options));
        Some(MountProperties { kind, options, kernel: kernel.trim().to_owned() })
    }
}

/// Returns the names of the directories in `dir` that are separate mounts of file systems that are not known to be
/// local, each with its device. Cost: reads a link and the list of mounts; no request to a file server.
pub fn remote_mounts_in(dir: impl AsFd) -> Vec<(String, u64)> {
    let Ok(path) = std::fs::read_link(format!("/proc/self/fd/{}", dir.as_fd().as_raw_fd())) else {
        return Vec::new();
    };
    let mounts = std::fs::read(MOUNTS).unwrap_or_default();
    remote_mounts_at(&path, &String::from_utf8_lossy(&mounts))
}

fn remote_mounts_at(dir: &Path, mounts: &str) -> Vec<(String, u64)> {
    let Some(dir) = dir.to_str().map(escaped) else { return Vec::new() };
    let mut found = BTreeMap::new();
    for line in mounts.lines() {
        let (mut fields, Some((_, mount))) = (line.split(' ').skip(2), Mount::of(line)) else { continue };
        let (Some(device), Some(point)) = (fields.next().and_then(device_of), fields.nth(1)) else {
            continue;
        };
        let name = point.strip_prefix(dir.trim_end_matches('/')).and_then(|rest| rest.strip_prefix('/'));
        if let Some(name) = name.filter(|name| !name.is_empty() && !name.contains('/')) {
            // A later mount at the same point hides the earlier one.
            found.insert(name, Some(device).filter(|_| !LOCAL_KINDS.contains(&mount.kind)));
        }
    }
    found.into_iter().filter_map(|(name, device)| Some((name.to_owned(), device?))).collect()
}

/// Parses `MAJOR:MINOR`.
fn device_of(text: &str) -> Option<u64> {
    let (major, minor) = text.split_once(':')?;
    Some(makedev(major.parse().ok()?, minor.parse().ok()?))
}

/// Returns a path as the kernel writes it in the list of mounts.
fn escaped(path: &str) -> String {
    let mut text = String::with_capacity(path.len());
    for char in path.chars() {
        match char {
            ' ' | '\t' | '\n' | '\\' => text.push_str(&format!("\\{:03o}", u32::from(char))),
            char => text.push(char),
        }
    }
    text
}

/// The names of the file systems that only this kernel changes.
const LOCAL_KINDS: [&str; 22] = [
    "bcachefs", "btrfs", "exfat", "ext2", "ext3", "ext4", "f2fs", "jfs", "msdos", "nilfs2", "ntfs", "ntfs3",
    "overlay", "ramfs", "reiserfs", "rootfs", "squashfs", "tmpfs", "ufs", "vfat", "xfs", "zfs",
];

/// Sorts mount options, and leaves out the addresses, which differ between the nodes that mount one file system. Also
/// leaves out `nosharecache`, which only a measurement between two mounts on one node needs.
fn options_of_all_nodes(options: &str) -> String {
    let of_one_node = ["addr=", "clientaddr=", "mountaddr="];
    let mut kept: Vec<&str> = options
        .split(',')
        .filter(|option| {
            *option != "nosharecache" && !of_one_node.iter().any(|name| option.starts_with(name))
        })
        .collect();
    kept.sort_unstable();
    kept.join(",")
}

const NODES_OWN_LOCKS: &str =
    "OCFS2 keeps the locks of open files on each node, and no mount option changes that";
const UNSEEN: &str = "its mount is not listed in /proc/self/mountinfo, so it is unknown whether all nodes see its \
                      locks: mount /proc, or leave the chroot that hides the mount";
const OLD_NFS: &str =
    "NFS 2 and 3 leave locks to separate programs, and are not tested: mount it with vers=4.2";
const LUSTRE_WITHOUT_LOCKS: &str = "the mount lacks `flock`, so it has no locks: mount it with `flock`";
const BEEGFS: &str = "BeeGFS keeps locks on each node by default: set tuneUseGlobalFileLocks = true in \
                      beegfs-client.conf on every node, and mount it again";
const SSHFS: &str = "sshfs gives each name an inode number of its own, so objects lose their metadata and change their \
                     ETags, and its locks do not reach other nodes: use another file system, for example NFS";
const BINDFS: &str = "bindfs keeps locks on each mount, unless the option --enable-lock-forwarding is set, which the \
                      list of mounts does not show: use the directory itself, or a bind mount (mount --bind)";
const JUICEFS: &str = "JuiceFS loses files that get their name after they are written, and concurrent creators of one \
                       name hang: use another file system";

/// A line of `mountinfo`. The kernel writes spaces in names as `\040`, so a name is always one field.
#[derive(Debug, PartialEq, Eq)]
struct Mount<'m> {
    kind: &'m str,
    /// The options of the file system. The options of the mount point are separate and are not read.
    options: &'m str,
}

impl<'m> Mount<'m> {
    /// Finds the mount with the ID `id`.
    fn find(mounts: &'m str, id: u64) -> Option<Self> {
        mounts.lines().filter_map(Mount::of).find(|(number, _)| *number == id).map(|(_, mount)| mount)
    }

    /// Parses `ID PARENT DEVICE ROOT POINT OPTIONS [TAG...] - TYPE SOURCE OPTIONS`.
    fn of(line: &'m str) -> Option<(u64, Self)> {
        let mut fields = line.split(' ');
        let id = fields.next()?.parse().ok()?;
        let mut fields = fields.skip(5).skip_while(|field| *field != "-").skip(1);
        let (kind, _source, options) = (fields.next()?, fields.next()?, fields.next()?);
        Some((id, Mount { kind, options }))
    }

    fn has(&self, option: &str) -> bool {
        self.options.split(',').any(|has| has == option)
    }

    /// Returns the known problem of this mount.
    fn problem(&self) -> Option<MountProblem> {
        let why = match self.kind {
            "nfs" | "nfs4" => return self.unfit_nfs().map(MountProblem::Locks),
            "fuse.juicefs" => return Some(MountProblem::Objects(JUICEFS)),
            "fuse.sshfs" => return Some(MountProblem::Objects(SSHFS)),
            "fuse.bindfs" => BINDFS,
            "ocfs2" => NODES_OWN_LOCKS,
            "lustre" if self.has("localflock") => "the mount has `localflock`: mount it with `flock`",
            "lustre" if !self.has("flock") => LUSTRE_WITHOUT_LOCKS,
            "beegfs" | "fhgfs" if !has_global_beegfs_locks(BEEGFS_CLIENTS) => BEEGFS,
            "gfs2" if self.has("localflocks") => "the mount has `localflocks`: mount it without",
            "cifs" | "smb3" if self.has("nobrl") => "the mount has `nobrl`: mount it without",
            _ => return None,
        };
        Some(MountProblem::Locks(why))
    }

    fn unfit_nfs(&self) -> Option<&'static str> {
        if self.has("nolock") {
            return Some("the mount has `nolock`: mount it with vers=4.2");
        }
        // `local_lock=flock` concerns `flock(2)` locks; we use `fcntl(2)` locks.
        if self.has("local_lock=all") || self.has("local_lock=posix") {
            return Some("the mount has `local_lock`: mount it with local_lock=none, or vers=4.2");
        }
        let version = self.options.split(',').find_map(|option| option.strip_prefix("vers="));
        let is_version_4 = version.map_or(self.kind == "nfs4", |version| version.starts_with('4'));
        (!is_version_4).then_some(OLD_NFS)
    }
}

/// The directory in which the client of BeeGFS lists its settings, in one subdirectory for each mount.
const BEEGFS_CLIENTS: &str = "/proc/fs/beegfs";

/// Returns whether all mounts of BeeGFS on this node have locks that all nodes see. The list of mounts does not show
/// this setting.
fn has_global_beegfs_locks(clients: impl AsRef<Path>) -> bool {
    let Ok(clients) = std::fs::read_dir(clients) else { return false };
    let settings = |client: std::io::Result<DirEntry>| std::fs::read_to_string(client?.path().join("config"));
    let mut found: Vec<_> = clients.map(settings).collect();
    // Only subdirectories of mounts have this file.
    found.retain(|settings| settings.is_ok());
    !found.is_empty() && found.iter().flatten().all(|settings| shows_global_locks(settings))
}

fn shows_global_locks(settings: &str) -> bool {
    let value =
        settings.lines().find_map(|line| line.strip_prefix("tuneUseGlobalFileLocks")?.split_once('='));
    value.is_some_and(|(_, value)| matches!(value.trim(), "1" | "true"))
}

/// Returns the ID of the mount through which `file` was opened: from `statx` (Linux 5.8), otherwise from `/proc`.
fn mount_id(file: impl AsFd) -> Option<u64> {
    if let Ok(stat) = statx(&file, "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID)
        && stat.stx_mask & StatxFlags::MNT_ID.bits() != 0
    {
        return Some(stat.stx_mnt_id);
    }
    let told =
        std::fs::read_to_string(format!("/proc/thread-self/fdinfo/{}", file.as_fd().as_raw_fd())).ok()?;
    mount_id_told(&told)
}

fn mount_id_told(told: &str) -> Option<u64> {
    told.lines().find_map(|line| line.strip_prefix("mnt_id:"))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines as kernels print them.
    const LISTED: &str = concat!(
        "22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard\n",
        "40 22 0:51 / /a rw,relatime shared:20 - nfs host:/a rw,vers=3,rsize=1048576,wsize=1048576,namlen=255,hard,\
         nolock,proto=tcp,timeo=600,retrans=2,sec=sys,mountaddr=10.77.1.1,mountvers=3,mountport=20048,\
         mountproto=tcp,local_lock=all,addr=10.77.1.1\n",
        "41 22 0:52 / /b rw,relatime shared:9 master:3 - nfs4 10.77.1.1:/ rw,vers=4.2,rsize=262144,hard,proto=tcp,\
         clientaddr=10.77.1.2,local_lock=none,addr=10.77.1.1\n",
        "42 22 0:53 / /c rw - lustre host@tcp:/c rw,localflock,lazystatfs\n",
        "43 22 0:54 / /d rw,nosuid - fuse.juicefs JuiceFS:fwy rw,user_id=0,group_id=0,default_permissions,allow_other\n",
        "44 22 0:55 / /e rw - fuse.glusterfs 10.88.0.1:fordway rw,user_id=0,group_id=0,allow_other,max_read=131072\n",
        "45 22 8:16 / /f rw - ocfs2 /dev/sdb rw,_netdev,heartbeat=local,nointr,data=ordered,coherency=full\n",
        "46 22 0:56 / /g rw - nfs host:/g rw,vers=3,hard,proto=tcp,local_lock=none,addr=10.0.0.1\n",
        "47 22 0:57 / /h rw - nfs host:/h rw,vers=2,hard,proto=udp,local_lock=flock,addr=10.0.0.1\n",
        "48 22 0:58 / /i rw - nfs host:/i rw,vers=3,hard,local_lock=posix,addr=10.0.0.1\n",
        "49 22 0:59 / /j rw - cifs //host/j rw,vers=3.1.1,cache=strict,nobrl,addr=10.0.0.1\n",
        "50 22 0:60 / /k rw - gfs2 /dev/vg/k rw,localflocks\n",
        "51 22 0:61 / /l rw - lustre host@tcp:/l rw,lazystatfs\n",
        "52 22 0:62 / /m rw - lustre host@tcp:/m rw,flock,lazystatfs\n",
        "53 22 0:63 / /n rw,relatime - beegfs beegfs_nodev rw,cfgFile=/etc/beegfs/beegfs-client.conf\n",
        "55 22 0:65 / /o rw,nosuid,nodev - fuse.sshfs me@host:/o rw,user_id=0,group_id=0,allow_other\n",
        "56 22 0:66 / /p rw,relatime - fuse.bindfs /srv/p rw,user_id=0,group_id=0,default_permissions,allow_other\n",
        "57 22 0:67 / /q rw,relatime - virtiofs q rw\n",
    );

    fn said(mounts: &str, id: u64) -> Option<MountProblem> {
        Mount::find(mounts, id).unwrap().problem()
    }

    #[test]
    fn mounts_that_cannot_keep_promises_are_known_by_their_lines() {
        for (id, mends) in [
            (40, "`nolock`: mount it with vers=4.2"),
            (42, "mount it with `flock`"),
            (45, "OCFS2"),
            (46, "NFS 2 and 3"),
            (47, "NFS 2 and 3"),
            (48, "local_lock=none"),
            (49, "`nobrl`"),
            (50, "`localflocks`"),
            (51, "mount it with `flock`"),
            (53, "tuneUseGlobalFileLocks = true"),
            (56, "--enable-lock-forwarding"),
        ] {
            let Some(MountProblem::Locks(why)) = said(LISTED, id) else { panic!("{id}") };
            assert!(why.contains(mends), "{id}: {why}");
        }
        assert_eq!(said(LISTED, 43), Some(MountProblem::Objects(JUICEFS)));
        assert_eq!(said(LISTED, 55), Some(MountProblem::Objects(SSHFS)));
        for fit in [22, 41, 44, 52, 57] {
            assert_eq!(said(LISTED, fit), None, "{fit}");
        }
        assert_eq!(Mount::find(LISTED, 54), None);
    }

    #[test]
    fn beegfs_is_fit_if_all_its_mounts_have_global_locks() {
        let clients = tempfile::tempdir().unwrap();
        let settings = |client: &str, value: &str| {
            std::fs::create_dir_all(clients.path().join(client)).unwrap();
            let text =
                format!("sysMountSanityCheckMS = 11000\ntuneUseGlobalFileLocks = {value}\nquota = 0\n");
            std::fs::write(clients.path().join(client).join("config"), text).unwrap();
        };
        assert!(!has_global_beegfs_locks(clients.path()), "no mount shows its settings");
        assert!(!has_global_beegfs_locks(clients.path().join("none")));
        settings("a", "1");
        std::fs::create_dir(clients.path().join("other")).unwrap();
        assert!(has_global_beegfs_locks(clients.path()));
        settings("b", "0");
        assert!(!has_global_beegfs_locks(clients.path()));
        settings("b", "true");
        assert!(has_global_beegfs_locks(clients.path()));
    }

    #[test]
    fn remote_mounts_in_a_directory_are_found_by_their_lines() {
        let listed = concat!(
            "22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n",
            "30 22 0:40 / /srv/my\\040root/far rw - nfs4 host:/ rw,vers=4.2\n",
            "31 22 0:41 / /srv/my\\040root/near rw - xfs /dev/vdb rw\n",
            "32 22 0:42 / /srv/my\\040root/near/deep rw - nfs4 host:/ rw,vers=4.2\n",
            "33 22 0:43 / /srv/my\\040root/twice rw - nfs4 host:/ rw,vers=4.2\n",
            "34 33 0:44 / /srv/my\\040root/twice rw - tmpfs none rw\n",
            "35 22 259:300 / /srv/my\\040root/fuse rw - fuse.glusterfs host:v rw\n",
            "36 22 0:46 / /srv/my\\040root2/other rw - nfs4 host:/ rw,vers=4.2\n",
            "37 22 0:47 / /far rw - nfs4 host:/ rw,vers=4.2\n",
        );
        let found = |dir| remote_mounts_at(Path::new(dir), listed);
        let expected = [("far".to_owned(), makedev(0, 40)), ("fuse".to_owned(), makedev(259, 300))].to_vec();
        assert_eq!(found("/srv/my root"), expected);
        assert_eq!(found("/"), [("far".to_owned(), makedev(0, 47))].to_vec());
        assert_eq!(found("/srv"), Vec::new());
        let proc = remote_mounts_in(std::fs::File::open("/").unwrap());
        let device = crate::stat(std::fs::File::open("/proc").unwrap()).unwrap().device;
        assert!(proc.contains(&("proc".to_owned(), device)), "{proc:?}");
    }

    #[test]
    fn what_an_nfs_mount_leaves_unsaid_is_its_type() {
        let said = |kind, options| Mount { kind, options }.unfit_nfs();
        assert_eq!(said("nfs", "rw"), Some(OLD_NFS));
        assert_eq!((said("nfs4", "rw"), said("nfs", "rw,vers=4.1")), (None, None));
        assert_eq!(said("nfs", "rw,nfsvers=4"), Some(OLD_NFS), "no kernel prints that");
        assert!(said("nfs4", "rw,vers=4.2,local_lock=posix").unwrap().contains("local_lock"));
    }

    #[test]
    fn nodes_of_one_file_system_have_the_same_options() {
        let [one, other] = ["10.77.1.2", "10.77.2.2"]
            .map(|node| options_of_all_nodes(&format!("rw,vers=4.2,hard,clientaddr={node},addr=10.77.1.1")));
        assert_eq!(one, "hard,rw,vers=4.2");
        assert_eq!(one, other);
        assert_eq!(options_of_all_nodes("rw,vers=4.2,nosharecache,hard"), one, "as the doctor mounts it");
    }

    /// A name chosen by a user is not mistaken for a field, and a truncated line is not mistaken for another mount.
    #[test]
    fn hostile_names_change_nothing() {
        let hostile = concat!(
            "60 22 0:61 / /a\\040-\\040ext4\\040x\\040rw rw - nfs host:/a\\040-\\040ext4 rw,vers=3,nolock\n",
            "61 22 0:62 / /- rw - fuse.glusterfs -\\040nfs rw,user_id=0\n",
            "62 22 0:63 /- - rw,nolock - nfs4 - rw,vers=4.2\n",
            "63 22 0:64 / /b rw - nfs4\n",
            "64 22 0:65 / /\u{fffd}\\01240\\04022 rw - fuse.nolock nolock rw,vers=3\n",
            "\n - - - -\n18446744073709551616 1 0:1 / / rw - ext4 x rw\n",
        );
        assert!(said(hostile, 60).unwrap().why().contains("nolock"));
        for fit in [61, 62, 64] {
            assert_eq!(said(hostile, fit), None, "{fit}");
        }
        for none in [40, 63, 0] {
            assert_eq!(Mount::find(hostile, none), None, "{none}");
        }
    }

    /// `statx` and `/proc` return the same mount ID, and the list of mounts contains this ID.
    #[test]
    fn the_mount_of_an_open_file_is_found() {
        let file = std::fs::File::open("/proc/self/stat").unwrap();
        let told = std::fs::read_to_string(format!("/proc/thread-self/fdinfo/{}", file.as_raw_fd())).unwrap();
        let id = mount_id(&file).unwrap();
        assert_eq!(mount_id_told(&told), Some(id));
        let mounts = std::fs::read_to_string(MOUNTS).unwrap();
        assert_eq!(Mount::find(&mounts, id).unwrap().kind, "proc");
        assert_eq!(MountProblem::of(file), Ok(None));
        assert_eq!(MountProblem::of(tempfile::tempfile().unwrap()), Ok(None));
        assert_eq!(mount_id_told("pos:\t0\nmnt_id:\tx\n"), None);
    }
}
