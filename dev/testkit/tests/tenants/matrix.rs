//! Replaces every file that Fordway keeps in a bucket with everything that a tenant can put in its place, and then runs
//! every operation that reads the file. The effects on this bucket are not checked. No operation may wait forever,
//! allocate memory according to a size in the file, or access files of another user.

use std::cell::Cell;
use std::fs;
use std::os::unix::fs::{lchown, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use fordway_posix::EventJournal;
use fordway_store::{
    Bucket, BucketDocumentKind, CompleteOptions, CompletedPart, CopyOptions, DeleteOptions, ETag, ETagPolicy,
    ExpectedContent, GetOptions, OpenObject, PartOptions, PutOptions, Store, Tags, UploadId, VersioningState,
    VersionsQuery,
};
use rustix::fs::{CWD, FileType, Mode, mknodat};

use crate::criticals::record_of_part;
use crate::ground::{ALICE, BOB, Ground, Lane, bucket, chmod, is_root, key, put, read, snapshot};

/// A time that no call exceeds even on a busy machine, unless the call is blocked.
const PATIENCE: Duration = Duration::from_secs(20);
/// More memory than any operation in this test needs.
const MEMORY_BYTES: u64 = 256 << 20;

/// A replacement for one of Fordway's files or directories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Instead {
    /// A link to another user's file.
    LinkToFile,
    /// A link to another user's directory.
    LinkToDirectory,
    LinkToItself,
    Fifo,
    Socket,
    /// A sparse file of one tebibyte, which takes no disk space.
    Huge,
    /// The original file, now owned by another user and inaccessible to others.
    Foreign,
    /// Bytes that no program of Fordway writes.
    HandWritten,
    /// A record in Fordway's format with impossible values.
    Lies,
    Directory,
    Empty,
    Nothing,
}

impl Instead {
    const ALL: [Instead; 12] = [
        Instead::LinkToFile,
        Instead::LinkToDirectory,
        Instead::LinkToItself,
        Instead::Fifo,
        Instead::Socket,
        Instead::Huge,
        Instead::Foreign,
        Instead::HandWritten,
        Instead::Lies,
        Instead::Directory,
        Instead::Empty,
        Instead::Nothing,
    ];

    /// Replaces the file or directory at `path` as a tenant would.
    fn put(self, ground: &Ground, path: &Path) {
        if self == Instead::Foreign {
            chmod(path, 0o600);
            return lchown(path, Some(BOB), Some(BOB)).unwrap();
        }
        if path.is_dir() && !path.is_symlink() { fs::remove_dir_all(path) } else { fs::remove_file(path) }
            .unwrap();
        match self {
            Instead::LinkToFile => symlink(up_to_root(ground, path).join("bob/thesis"), path).unwrap(),
            Instead::LinkToDirectory => symlink(up_to_root(ground, path).join("bob/things"), path).unwrap(),
            Instead::LinkToItself => symlink(path.file_name().unwrap(), path).unwrap(),
            Instead::Fifo => mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o666), 0).unwrap(),
            Instead::Socket => bind(path),
            Instead::Huge => fs::File::create(path).and_then(|file| file.set_len(1 << 40)).unwrap(),
            Instead::HandWritten => fs::write(path, b"\x01\xff\xff\xff\x00 what is this?\n").unwrap(),
            Instead::Lies => fs::write(path, lies()).unwrap(),
            Instead::Directory => {
                fs::create_dir(path).unwrap();
                fs::write(path.join("inside"), "x").unwrap();
            }
            Instead::Empty => fs::write(path, "").unwrap(),
            Instead::Foreign | Instead::Nothing => return,
        }
        lchown(path, Some(ALICE), Some(ALICE)).unwrap();
    }
}

/// Creates a socket at `path`. The socket is created in another directory and renamed, because the path of a socket is
/// limited to 108 bytes.
fn bind(path: &Path) {
    let away = tempfile::Builder::new().tempdir_in("/tmp").unwrap();
    drop(UnixListener::bind(away.path().join("s")).unwrap());
    if fs::rename(away.path().join("s"), path).is_err() {
        mknodat(CWD, path, FileType::Socket, Mode::from_raw_mode(0o666), 0).unwrap();
    }
}

/// Returns the `..` components that lead from the directory of `path` to the root.
fn up_to_root(ground: &Ground, path: &Path) -> PathBuf {
    let below = path.parent().unwrap().strip_prefix(ground.path("")).unwrap();
    below.components().map(|_| "..").collect()
}

/// Returns a record in Fordway's format with numbers, names and strings that could mislead its reader.
fn lies() -> Vec<u8> {
    let mut record = record_of_part(u64::MAX, "etag\r\nx-injected: yes", Some("../../../../bob/thesis"));
    let mut field = |tag: u8, value: &[u8]| {
        record.push(tag);
        record.extend_from_slice(&(value.len() as u16).to_le_bytes());
        record.extend_from_slice(value);
    };
    field(4, b"text/plain\r\nset-cookie: x=1");
    field(10, b"\x04name\r\nvalue: x");
    field(13, b"\x03\x00tag<&>\x01\x02");
    (0..4).for_each(|_| field(14, &[&[0xc4, 0x09][..], &u64::MAX.to_le_bytes()].concat()));
    field(19, b"0123456789abcdef0123456789abcdef");
    record
}

/// The content of a bucket before a file in it is replaced.
struct Fixture {
    bucket: Bucket,
    upload: UploadId,
    parts: Vec<CompletedPart>,
}

impl Fixture {
    /// Creates Alice's bucket `name` with every kind of file that Fordway can create.
    fn new(ground: &Ground, name: &str) -> Self {
        ground.bucket(name, ALICE, 0o777);
        let bucket = bucket(name);
        let (upload, parts) = ground.on(Lane::Embedded, ALICE, |store| Fixture::fill(store, &bucket));
        ground.write(&format!("{name}/.fordway/tmp/0123456789abcdef"), ALICE, 0o644, "staged");
        let upload_dir = format!("{name}/.fordway/mpu/{}", upload.as_str());
        ground.write(&format!("{upload_dir}/part-size"), ALICE, 0o644, "6291456");
        ground.write(&format!("{upload_dir}/00003.claim"), ALICE, 0o644, "");
        Fixture { bucket, upload, parts }
    }

    fn fill(store: &dyn Store, bucket: &Bucket) -> (UploadId, Vec<CompletedPart>) {
        let tags = (0..10).map(|n| (format!("{n:0>100}"), "v".repeat(256))).collect();
        let long = PutOptions { tags, etag_policy: Some(ETagPolicy::Md5), ..Default::default() };
        store.put(bucket, &key("apart"), b"content", &long).unwrap();
        for name in ["plain", "x//y", "folder/", "dir/in", &format!("long//{}", "x".repeat(400))] {
            put(store, bucket, name, if name.ends_with('/') { b"" } else { b"content" }).unwrap();
        }
        let upload = store.create_upload(bucket, &key("up"), &PutOptions::default()).unwrap();
        let parts = (1..=2).map(|number| {
            let options = PartOptions::default();
            let mut part = store.part_writer(bucket, &key("up"), &upload, number, &options).unwrap();
            part.write(&vec![number as u8; 1000]).unwrap();
            CompletedPart {
                number,
                etag: part.commit(&ExpectedContent::default()).unwrap().etag,
                checksum: None,
            }
        });
        let parts = parts.collect();
        store.set_versioning(bucket, VersioningState::Enabled).unwrap();
        let rules = "<NotificationConfiguration><QueueConfiguration><Queue>arn:fordway:sqs::ci:webhook</Queue>\
                     <Event>s3:ObjectCreated:*</Event></QueueConfiguration></NotificationConfiguration>";
        store.set_document(bucket, &BucketDocumentKind::known("notification"), rules.as_bytes()).unwrap();
        for name in ["plain", "x//y"] {
            put(store, bucket, name, b"newer").unwrap();
        }
        (upload, parts)
    }

    /// Returns every file and directory of the private area, including the area itself.
    fn area(&self, ground: &Ground) -> Vec<PathBuf> {
        let (mut found, mut todo) = (Vec::new(), vec![ground.path(self.bucket.as_str()).join(".fordway")]);
        while let Some(path) = todo.pop() {
            if path.is_dir() {
                todo.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            }
            found.push(path);
        }
        found.sort();
        found
    }

    /// Performs every operation. Only the time that the operations take is relevant, not their results.
    fn ask_everything(&self, store: &dyn Store) {
        let Fixture { bucket, upload, parts } = self;
        let _ =
            (store.head_bucket(bucket), store.versioning(bucket), store.list(bucket, &Default::default()));
        let versions = store.list_versions(bucket, &VersionsQuery::default());
        for version in versions.iter().flat_map(|page| &page.versions) {
            let get = GetOptions::version(version.version.clone());
            let _ = store.get(bucket, &key(&version.key), &get).map(read_if_short);
        }
        let copy = CopyOptions::default();
        let long = format!("long//{}", "x".repeat(400));
        for name in ["apart", "plain", "x//y", "folder/", "dir/in", "none", &long] {
            let key = key(name);
            let _ = store.get(bucket, &key, &GetOptions::default()).map(read_if_short);
            let _ = (store.head(bucket, &key, &GetOptions::default()), store.tags(bucket, &key, None));
            let _ = store.object_parts(bucket, &key, &GetOptions::default());
            let _ = store.set_tags(bucket, &key, None, &Tags::from([("a".to_owned(), "b".to_owned())]));
            // A copy of a tebibyte would take too long, and would use disk space.
            if store.head(bucket, &key, &GetOptions::default()).is_ok_and(|info| info.size < 1 << 20) {
                let _ = store.copy((bucket, &key), bucket, &crate::ground::key("copied"), &copy);
            }
            let _ = put(store, bucket, name, b"again");
            let _ = store.delete(bucket, &key, &DeleteOptions::default());
        }
        let _ = store.list_uploads(bucket, &Default::default());
        let _ = store.list_parts(bucket, &key("up"), upload, &Default::default());
        for (number, size) in [(3, 6 << 20), (4, 100)] {
            let options = PartOptions { size_hint: Some(size), ..Default::default() };
            let _ = store.part_writer(bucket, &key("up"), upload, number, &options).and_then(|mut part| {
                part.write(&[7; 100])?;
                part.commit(&ExpectedContent::default())
            });
        }
        let complete = CompleteOptions::default();
        let _ = store.complete_upload(bucket, &key("up"), upload, parts, &complete);
        let lied = [CompletedPart { number: 1, etag: ETag::opaque(7), checksum: None }];
        let _ = store.complete_upload(bucket, &key("up"), upload, &lied, &complete);
        let _ = store.abort_upload(bucket, &key("up"), upload);
        if let Ok(fresh) = store.create_upload(bucket, &key("fresh"), &PutOptions::default()) {
            let _ = store.abort_upload(bucket, &key("fresh"), &fresh);
        }
        let _ = store.set_versioning(bucket, VersioningState::Suspended);
        let _ = put(store, bucket, "plain", b"once more");
        let _ = store.delete_bucket(bucket);
    }
}

/// Creates Bob's files, which must not change.
fn make_bobs_things(ground: &Ground) {
    ground.bucket("bob", BOB, 0o755);
    ground.write("bob/thesis", BOB, 0o600, "mine");
    let old = "0123456789abcdef";
    for path in [
        format!("things/{old}"),
        format!("things/{old}{old}/upload"),
        format!("things/{old}{old}/data"),
        "things/upload".to_owned(),
        "things/data".to_owned(),
        "things/00001".to_owned(),
        "things/tmp/file".to_owned(),
        "things/locks".to_owned(),
        format!("things/{old}-null"),
    ] {
        ground.write(&format!("bob/{path}"), BOB, 0o666, "mine too");
    }
    fs::create_dir(ground.path("bob/things/empty")).unwrap();
    // Links to this directory must have no effect, although other users may write to it.
    chmod(&ground.path("bob/things"), 0o777);
}

/// Reads the object, unless it is larger than any object that the test has put.
fn read_if_short(object: OpenObject) {
    if object.content.len() < 1 << 20 {
        let _ = object.content.into_vec();
    }
}

/// Returns the peak memory use of this process. The kernel counts it approximately: a later call can return less.
fn peak_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

#[track_caller]
fn in_time<T>(what: &str, act: impl FnOnce() -> T) -> T {
    let started = Instant::now();
    let done = act();
    assert!(started.elapsed() < PATIENCE, "{what} took {:?}", started.elapsed());
    done
}

/// For each file in a bucket and each replacement ([`Instead`]), runs `act` on a new bucket with this replacement, and
/// then checks that Bob is unaffected.
fn for_each_replacement(act: impl Fn(&Ground, &Fixture, &str)) {
    let ground = Ground::new();
    make_bobs_things(&ground);
    let bob = ground.client("bob");
    let before = snapshot(&ground.path("bob"));
    let memory = peak_bytes();
    let count = Fixture::new(&ground, "first").area(&ground).len();
    assert!(count >= 25, "{count} things are kept");
    for at in 0..count {
        for (number, instead) in Instead::ALL.into_iter().enumerate() {
            let fixture = Fixture::new(&ground, &format!("b{at}-{number}"));
            let area = fixture.area(&ground);
            let path = &area[at];
            let what = format!("{instead:?} in the place of {}", path.display());
            instead.put(&ground, path);
            in_time(&what, || act(&ground, &fixture, &what));
            assert_eq!(snapshot(&ground.path("bob")), before, "{what}");
            assert_eq!(in_time(&what, || read(&bob, &bucket("bob"), "thesis")).unwrap(), b"mine", "{what}");
            // Remove the bucket, because checking all earlier buckets in each round would take too long.
            let _ = fs::remove_dir_all(ground.path(fixture.bucket.as_str()));
        }
    }
    let growth = peak_bytes().saturating_sub(memory);
    assert!(growth < MEMORY_BYTES, "{growth} bytes");
}

#[test]
fn beneath_the_http_gateway() {
    if is_root() {
        for_each_replacement(|ground, fixture, _| {
            ground.on(Lane::Http, ALICE, |store| fixture.ask_everything(store));
        });
    }
}

#[test]
fn beneath_the_node_gateway() {
    if is_root() {
        for_each_replacement(|ground, fixture, _| {
            ground.on(Lane::Node, ALICE, |store| fixture.ask_everything(store));
        });
    }
}

#[test]
fn beneath_an_embedded_store() {
    if is_root() {
        for_each_replacement(|ground, fixture, _| {
            ground.on(Lane::Embedded, ALICE, |store| fixture.ask_everything(store));
        });
    }
}

/// The program runs as root, so the kernel's permission checks do not restrict it.
#[test]
fn beneath_an_embedded_store_of_roots() {
    if is_root() {
        for_each_replacement(|ground, fixture, _| fixture.ask_everything(&ground.embedded()));
    }
}

/// The program runs as root, as a gateway that delivers events does.
#[test]
fn beneath_the_delivery_of_events() {
    if is_root() {
        let claimed = Cell::new(0);
        for_each_replacement(|ground, fixture, what| {
            let journal = EventJournal::of(&ground.embedded());
            let _ = journal.buckets().unwrap();
            let names = journal
                .waiting(&fixture.bucket, "ci", None, 100)
                .map(|found| found.names)
                .unwrap_or_default();
            let hour = Duration::from_secs(3600);
            let read = || journal.read(&fixture.bucket, "ci", &names, hour);
            if let Ok(Some(Ok(found))) = journal.claim(&fixture.bucket, "ci", read) {
                assert!(found.events.iter().all(|event| event.record.key != "thesis"), "{what}");
                let _ = journal.remove(&fixture.bucket, &found.events);
                claimed.set(claimed.get() + found.events.len());
            }
        });
        assert!(claimed.get() > 0);
    }
}

#[test]
fn beneath_gc_and_fsck() {
    if is_root() {
        for_each_replacement(|ground, fixture, what| {
            let found = ground.check();
            let outcome = ground.collect();
            let after = ground.path(fixture.bucket.as_str());
            assert!(
                after.join("plain").exists() && after.join("dir/in").exists(),
                "{what}: objects are kept"
            );
            assert!(outcome.entries > 0 && found.len() < 100, "{what}");
            ground.check();
        });
    }
}
