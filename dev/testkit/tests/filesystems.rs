//! Tests the embedded lane on disk file systems: ext4, XFS and Btrfs. Each file system is created in a file, mounted
//! for the test, and unmounted afterwards. Requires root.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use fordway_posix::{PosixConfig, PosixStore};
use fordway_store::{Bucket, CopyOptions, GetOptions, Key, PutOptions};
use fordway_testkit::conformance::{StoreFixture, cases_written, run_all};
use fordway_testkit::model;

/// The size of an image, which is a sparse file.
const IMAGE_BYTES: u64 = 400 << 20;
/// The number of sequences of operations that are checked against the model.
const MODEL_RUNS: u64 = 20;
/// The number of operations in each sequence.
const MODEL_OPERATIONS: usize = 60;

/// A mounted file system in a file. The file system is unmounted when this value is dropped, even after a panic. The
/// loop device is removed with the mount.
struct Disk {
    mount: PathBuf,
    _dir: tempfile::TempDir,
}

impl Disk {
    /// Creates and mounts a file system. Returns `None` and records a skip if that is not possible.
    fn make(mkfs: &[&str]) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let (image, mount) = (dir.path().join("image"), dir.path().join("mount"));
        File::create(&image).unwrap().set_len(IMAGE_BYTES).unwrap();
        std::fs::create_dir(&mount).unwrap();
        let made = run(Command::new(mkfs[0]).args(&mkfs[1..]).arg(&image))
            .and_then(|()| run(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&mount)));
        match made {
            Ok(()) => Some(Disk { mount, _dir: dir }),
            Err(why) => {
                fordway_needs::skip(format_args!("{why}; root, loop devices and {} are needed", mkfs[0]));
                None
            }
        }
    }

    /// Creates a store on the disk. The store's directory is removed with the fixture.
    fn open(&self) -> StoreFixture {
        let dir = tempfile::tempdir_in(&self.mount).unwrap();
        StoreFixture::new(PosixStore::open(dir.path(), PosixConfig::default()).unwrap(), dir)
    }

    /// Writes all data to the disk, and returns the number of free bytes.
    fn settled_free_bytes(&self) -> u64 {
        run(Command::new("sync").arg("-f").arg(&self.mount)).unwrap();
        fordway_sys::free_bytes(File::open(&self.mount).unwrap()).unwrap()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let unmounted = run(Command::new("umount").arg(&self.mount));
        if unmounted.is_err() {
            // A process still has a file open. The mount is removed when that file is closed.
            let _ = run(Command::new("umount").arg("-l").arg(&self.mount));
        }
    }
}

fn run(command: &mut Command) -> Result<(), String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let ended = command.stdin(Stdio::null()).stdout(Stdio::null()).output();
    let ended = ended.map_err(|error| format!("{name}: {error}"))?;
    let text = String::from_utf8_lossy(&ended.stderr);
    if ended.status.success() { Ok(()) } else { Err(format!("{name}: {}", text.trim())) }
}

/// Checks that this file system passes all tests of the embedded lane.
fn works_on(disk: &Disk) {
    assert_eq!(run_all(&|| disk.open()), cases_written());
    for seed in 0..MODEL_RUNS {
        model::check(&*disk.open(), &model::sequence(seed, MODEL_OPERATIONS));
    }
}

/// Checks that a copy of a large object takes almost no disk space, because it shares the original's blocks.
fn copies_share_blocks(disk: &Disk) {
    const SIZE: usize = 64 << 20;
    let (store, bucket) = (disk.open(), Bucket::new("bucket").unwrap());
    let (from, to) = (Key::new("from").unwrap(), Key::new("dir/to").unwrap());
    let body: Vec<u8> =
        (0..SIZE as u32 / 4).flat_map(|i| i.wrapping_mul(0x9e37_79b9).to_le_bytes()).collect();
    store.create_bucket(&bucket).unwrap();
    let empty = disk.settled_free_bytes();
    store.put(&bucket, &from, &body, &PutOptions::default()).unwrap();
    let before = disk.settled_free_bytes();
    assert!(empty - before > SIZE as u64 / 2, "the original takes {} bytes", empty - before);
    store.copy((&bucket, &from), &bucket, &to, &CopyOptions::default()).unwrap();
    let taken = before.saturating_sub(disk.settled_free_bytes());
    assert!(taken < SIZE as u64 / 8, "the copy takes {taken} bytes");
    let copy = store.get(&bucket, &to, &GetOptions::default()).unwrap();
    assert!(copy.content.into_vec().unwrap() == body);
}

#[test]
fn ext4() {
    // Use a block size of 4,096 bytes, as on a larger disk, because metadata must fit into one block.
    let Some(disk) = Disk::make(&["mkfs.ext4", "-q", "-b", "4096", "-O", "has_journal"]) else { return };
    works_on(&disk);
}

#[test]
fn xfs() {
    let Some(disk) = Disk::make(&["mkfs.xfs", "-q", "-m", "reflink=1"]) else { return };
    works_on(&disk);
    copies_share_blocks(&disk);
}

#[test]
fn btrfs() {
    let Some(disk) = Disk::make(&["mkfs.btrfs", "-q"]) else { return };
    works_on(&disk);
    copies_share_blocks(&disk);
}

/// The tests above are meaningful only if the file system that was created is of the requested kind.
#[test]
fn a_disk_is_of_the_kind_asked_for_and_gone_afterwards() {
    let Some(disk) = Disk::make(&["mkfs.ext4", "-q"]) else { return };
    let mount = disk.mount.clone();
    let mounts = || std::fs::read_to_string("/proc/self/mounts").unwrap();
    let is_mounted = |at: &Path| {
        let line = format!(" {} ext4 ", at.display());
        mounts().lines().any(|mounted| mounted.contains(&line))
    };
    assert!(is_mounted(&mount));
    let failed = std::panic::catch_unwind(move || {
        let _disk = disk;
        panic!("on purpose");
    });
    assert!(failed.is_err());
    assert!(!is_mounted(&mount));
}
