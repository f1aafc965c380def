//! Tests that a store rejects a mount that cannot provide the store's guarantees. The test itself implements the file
//! system: it responds to the kernel's FUSE requests. The store can recognize the file system only by its name.
//! Requires root.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind as IoErrorKind, Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fordway_posix::{PosixConfig, PosixStore};
use fordway_store::{Bucket, ErrorKind, GetOptions, Key, Objects, PutOptions};

const HEAD_BYTES: usize = 40;
/// The size of the request buffer, in bytes. The buffer has room for the largest request of the kernel, which is a
/// write request with its header.
const REQUEST_BYTES: usize = 1 << 17;
const WRITE_BYTES: u32 = 1 << 16;
const IS_DIR: u32 = 0o040_755;
const IS_FILE: u32 = 0o100_644;
/// The node IDs of the directory, of the only file that can exist, and of the link to it on [`RELINKING`].
const DIR: u64 = 1;
const FILE: u64 = 2;
const LINK: u64 = 3;
/// The type of a file system with the directory `.fordway/tmp`, in which a link to a file has an inode number of its
/// own. The number of links is wrong too, as in some FUSE daemons.
const RELINKING: &str = "fuse.relinking";
const PRIVATE: u64 = 4;
const TMP: u64 = 5;
const TMPFILE: u32 = 51;
const ENOENT: i32 = 2;
const ENOSYS: i32 = 38;

/// The content of a response, assembled from numbers.
#[derive(Default)]
struct Words(Vec<u8>);

impl Words {
    fn long(mut self, number: u64) -> Self {
        self.0.extend(number.to_ne_bytes());
        self
    }

    fn word(mut self, number: u32) -> Self {
        self.0.extend(number.to_ne_bytes());
        self
    }

    fn zeros(mut self, bytes: usize) -> Self {
        self.0.resize(self.0.len() + bytes, 0);
        self
    }
}

/// Appends the attributes of `node`: size and times of 0, the mode, and the number of links.
fn attributes(words: Words, node: u64) -> Words {
    let (mode, links) = if [DIR, PRIVATE, TMP].contains(&node) { (IS_DIR, 2) } else { (IS_FILE, 1) };
    words.long(node).zeros(52).word(mode).word(links).zeros(20)
}

/// Returns the response of the file system [`RELINKING`], which has no names except those that the kernel remembers.
fn answer_relinking(operation: u32, node: u64, content: &[u8]) -> Option<Result<Words, i32>> {
    const CREATE: u32 = 35;
    // The kernel remembers names for a long time, and attributes for no time.
    let entry = |node| attributes(Words::default().long(node).long(0).long(1000).zeros(16), node);
    Some(Ok(match operation {
        1 if content == b".fordway\0" => entry(PRIVATE),
        1 if content == b"tmp\0" => entry(TMP),
        CREATE => entry(FILE).zeros(16),
        13 => entry(LINK),
        // UNLINK, FLUSH, FSYNC
        10 | 25 | 20 => Words::default(),
        _ => return answer(operation, node, content),
    }))
}

/// Returns the response to the request `operation` on `node`; `None` if the request has no response. The file system
/// consists of one empty directory. An unnamed file can be created in the directory and linked to a name, but a lookup
/// of the name fails.
fn answer(operation: u32, node: u64, content: &[u8]) -> Option<Result<Words, i32>> {
    let words = Words::default();
    let entry = || attributes(Words::default().long(FILE).zeros(32), FILE);
    Some(Ok(match operation {
        // LOOKUP
        1 => return Some(Err(ENOENT)),
        // FORGET, INTERRUPT, BATCH_FORGET
        2 | 36 | 42 => return None,
        // GETATTR, SETATTR: the kernel must not cache the attributes.
        3 | 4 => attributes(words.zeros(16), node),
        // LINK
        13 => entry(),
        // WRITE: everything was written.
        16 => words.word(u32::from_ne_bytes(content[16..20].try_into().unwrap())).word(0),
        // STATFS
        17 => words.zeros(80),
        // RELEASE, RELEASEDIR
        18 | 29 => words,
        // INIT: protocol 7.31, no read-ahead, no flags.
        26 => words.word(7).word(31).zeros(12).word(WRITE_BYTES).zeros(40),
        // OPENDIR
        27 => words.zeros(16),
        TMPFILE => entry().zeros(16),
        _ => return Some(Err(ENOSYS)),
    }))
}

/// Returns the response to a request: its operation, its node and its content.
type Answer = fn(u32, u64, &[u8]) -> Option<Result<Words, i32>>;

/// Responds to requests until the file system is unmounted. Counts the unnamed files that are created.
fn serve(mut device: File, unnamed: &AtomicUsize, answer: Answer) {
    let mut request = vec![0; REQUEST_BYTES];
    loop {
        let length = match device.read(&mut request) {
            Ok(length) => length,
            // The file system is not mounted yet.
            Err(error) if error.kind() == IoErrorKind::PermissionDenied => {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            }
            Err(_) => return,
        };
        let (head, content) = request[..length].split_at(HEAD_BYTES);
        let operation = u32::from_ne_bytes(head[4..8].try_into().unwrap());
        let [unique, node] = [8, 16].map(|at| u64::from_ne_bytes(head[at..at + 8].try_into().unwrap()));
        unnamed.fetch_add(usize::from(operation == TMPFILE), Ordering::Relaxed);
        let Some(answer) = answer(operation, node, content) else { continue };
        let (error, content) = answer.map_or_else(|error| (-error, Words::default()), |content| (0, content));
        let head = Words::default().word(16 + content.0.len() as u32).word(error as u32).long(unique);
        // The process that sent the request may have exited.
        let _ = device.write(&[head.0, content.0].concat());
    }
}

/// Mounts a file system of the type `kind` on `dir`. Returns a counter of the unnamed files that are created on the
/// file system. Returns `None` and records a skip if the file system cannot be mounted.
fn mount(kind: &str, dir: &Path) -> Option<Arc<AtomicUsize>> {
    std::fs::create_dir_all(dir).unwrap();
    let Ok(device) = OpenOptions::new().read(true).write(true).open("/dev/fuse") else {
        fordway_needs::skip("there is no /dev/fuse");
        return None;
    };
    let (copy, unnamed) = (device.try_clone().unwrap(), Arc::new(AtomicUsize::new(0)));
    let counter = unnamed.clone();
    let answer: Answer = if kind == RELINKING { answer_relinking } else { answer };
    std::thread::spawn(move || serve(copy, &counter, answer));
    let options = "fd=0,rootmode=40000,user_id=0,group_id=0";
    let mut command = Command::new("mount");
    command.args(["-i", "-t", kind, "-o", options, "JuiceFS:test"]).arg(dir);
    let mounted = command.stdin(Stdio::from(device)).output().unwrap();
    if !mounted.status.success() {
        let why = String::from_utf8_lossy(&mounted.stderr).into_owned();
        fordway_needs::skip(format_args!("FUSE cannot be mounted: {why}"));
        return None;
    }
    Some(unnamed)
}

/// Runs `work` in a thread with a separate mount namespace, in which `/run` is private.
fn in_own_mounts(work: impl FnOnce() + Send + 'static) {
    if !fordway_needs::root("mount file systems") {
        return;
    }
    let name = std::thread::current().name().unwrap_or_default().to_owned();
    let apart = std::thread::Builder::new().name(name).spawn(|| {
        // The mount namespace exists as long as the thread.
        let _namespace = fordway_sys::new_mount_namespace(c"/run").unwrap();
        work();
    });
    apart.unwrap().join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}

fn bucket() -> Bucket {
    Bucket::new("bucket").unwrap()
}

fn refusal(refused: fordway_store::Error) -> String {
    assert_eq!(refused.kind(), ErrorKind::NotImplemented, "{refused}");
    refused.to_string()
}

#[test]
fn a_root_on_juicefs_is_refused_whatever_is_promised() {
    in_own_mounts(|| {
        let root = Path::new("/run/root");
        let Some(_) = mount("fuse.juicefs", root) else { return };
        for if_match in [true, false] {
            let config = PosixConfig { if_match, ..PosixConfig::default() };
            let said = refusal(PosixStore::open(root, config).err().unwrap());
            assert!(said.contains("/run/root") && said.contains("JuiceFS"), "{said}");
        }
        assert!(PosixStore::open_for_care(root, PosixConfig::default()).is_ok(), "it can be looked at");
    });
}

/// The root is local, but one of its buckets is on an unsuitable file system. A check of the root does not detect the
/// unsuitable bucket.
#[test]
fn a_bucket_on_juicefs_is_not_written_to() {
    in_own_mounts(|| {
        let root = Path::new("/run/root");
        let Some(unnamed) = mount("fuse.juicefs", &root.join("bucket")) else { return };
        let store = PosixStore::open(root, PosixConfig::default()).unwrap();
        let key = Key::new("dir/key").unwrap();
        let missed = store.get(&bucket(), &key, &GetOptions::default()).unwrap_err();
        assert_eq!(missed.kind(), ErrorKind::NoSuchKey, "{missed}");
        let plain = Key::new("key").unwrap();
        let said = refusal(store.put(&bucket(), &plain, b"x", &PutOptions::default()).unwrap_err());
        assert!(said.contains("JuiceFS"), "{said}");
        assert_eq!(unnamed.load(Ordering::Relaxed), 0);
    });
}

#[test]
fn a_root_on_sshfs_is_refused() {
    in_own_mounts(|| {
        let root = Path::new("/run/root");
        let Some(_) = mount("fuse.sshfs", root) else { return };
        let said = refusal(PosixStore::open(root, PosixConfig::default()).err().unwrap());
        assert!(said.contains("sshfs"), "{said}");
    });
}

/// The type of the file system shows no problem, but a link to a file has an inode number of its own.
#[test]
fn a_bucket_whose_links_have_numbers_of_their_own_is_not_written_to() {
    in_own_mounts(|| {
        let root = Path::new("/run/root");
        let Some(_) = mount(RELINKING, &root.join("bucket")) else { return };
        let store = PosixStore::open(root, PosixConfig::default()).unwrap();
        let put = store.put(&bucket(), &Key::new("key").unwrap(), b"x", &PutOptions::default());
        let said = refusal(put.unwrap_err());
        assert!(said.contains("inode number"), "{said}");
    });
}

/// Unnamed files are not used in a bucket on an unknown file system, even if they are used in the root. The file system
/// of this test cannot create directories, so the store cannot use hidden names instead.
#[test]
fn a_bucket_on_an_unknown_file_system_has_no_unnamed_files() {
    in_own_mounts(|| {
        let root = Path::new("/run/root");
        let Some(unnamed) = mount("fuse.unknown", &root.join("bucket")) else { return };
        let store = PosixStore::open(root, PosixConfig::default()).unwrap();
        let put = store.put(&bucket(), &Key::new("key").unwrap(), b"x", &PutOptions::default());
        let refused = put.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Io, "{refused}");
        assert!(refused.to_string().contains("os error 38"), "a directory cannot be created: {refused}");
        assert_eq!(unnamed.load(Ordering::Relaxed), 0);
    });
}

/// Unnamed files are not used on a mount within a bucket. Even with unnamed files, such a mount would be unsuitable,
/// because the bucket's locks are on another file system.
#[test]
fn a_mount_within_a_bucket_is_not_written_to() {
    in_own_mounts(|| {
        let root = Path::new("/run/root");
        let Some(unnamed) = mount("fuse.unknown", &root.join("bucket/dir")) else { return };
        let store = PosixStore::open(root, PosixConfig::default()).unwrap();
        let put = |key: &str| store.put(&bucket(), &Key::new(key).unwrap(), b"x", &PutOptions::default());
        let refused = put("dir/key").unwrap_err();
        if unnamed.load(Ordering::Relaxed) == 0 {
            fordway_needs::skip("FUSE has unnamed files since Linux 6.2");
            return;
        }
        let said = refusal(refused);
        assert!(said.contains("mount it as a bucket"), "{said}");
        assert_eq!(unnamed.load(Ordering::Relaxed), 1, "it was made, and not published");
        put("key").unwrap();
    });
}

/// Opens a root on the same file system under another name. The success shows that the other tests of this file mount
/// the file system, and that the store rejects it only because of its name.
#[test]
fn a_root_on_an_unknown_file_system_is_opened() {
    in_own_mounts(|| {
        let root = Path::new("/run/root");
        let Some(_) = mount("fuse.unknown", root) else { return };
        let mounts = std::fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
        assert!(mounts.contains(" /run/root ") && mounts.contains(" - fuse.unknown "), "{mounts}");
        assert!(PosixStore::open(root, PosixConfig::default()).is_ok());
    });
}
