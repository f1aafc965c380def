//! Tests what other nodes and their file server may do to an operation: a clock that is behind, a reply that is lost,
//! and a file system without locks.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use fordway_posix::{PosixConfig, PosixStore, ReadConsistency};
use fordway_store::{
    Bucket, CompleteOptions, CompletedPart, Conditions, ETagMatch, ErrorKind, ExpectedContent, GetOptions,
    Key, ListQuery, MIN_PART_BYTES, Metadata, MultipartUploadOperations, ObjectListing,
    ObjectRenameOperations, ObjectVersionOperations, Objects, PartOptions, PartsQuery, PutOptions,
    RenameOptions, Result, VersioningState, VersionsQuery,
};
use fordway_sys::fault::{self, FaultInjectionPlan, SyscallFault};
use fordway_sys::{Errno, FileSystemSharing, get_xattr, set_xattr};

const ATTRIBUTE: &std::ffi::CStr = c"user.fordway";

fn bucket() -> Bucket {
    Bucket::new("bucket").unwrap()
}

fn key(name: &str) -> Key {
    Key::new(name).unwrap()
}

fn open(dir: &Path) -> PosixStore {
    let store = PosixStore::open(dir, PosixConfig::default()).unwrap();
    store.create_bucket(&bucket()).or_else(|_| store.head_bucket(&bucket()).map(drop)).unwrap();
    store
}

fn shared(sharing: FileSystemSharing) -> FaultInjectionPlan {
    FaultInjectionPlan { sharing: Some(sharing), ..FaultInjectionPlan::default() }
}

fn body(store: &PosixStore, name: &str) -> Result<Vec<u8>> {
    let mut body = Vec::new();
    store.read(&bucket(), &key(name), &GetOptions::default(), &mut body).map(|_| body)
}

/// Changes the modification time of a file and the time in its record, as if a node whose clock is this far behind had
/// written the file. Returns the time.
fn set_back(path: &Path, by: Duration) -> SystemTime {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let modified = file.metadata().unwrap().modified().unwrap() - by;
    let mut buffer = [0; 4096];
    let mut record = get_xattr(&file, ATTRIBUTE, &mut buffer).unwrap().unwrap().to_vec();
    // The first field is the size and the time (see `record.rs`).
    assert_eq!(record[..4], [1, 1, 16, 0]);
    let ns = modified.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_nanos() as i64;
    record[12..20].copy_from_slice(&ns.to_le_bytes());
    set_xattr(&file, ATTRIBUTE, &record).unwrap();
    file.set_modified(modified).unwrap();
    modified
}

/// A FUSE client may show the size and time that a file had before another node completed an upload. The record is
/// newer than this state, no matter how far the clocks of the nodes differ.
#[test]
fn a_read_waits_for_the_current_size_whatever_the_clocks_say() {
    for behind in [Duration::ZERO, Duration::from_secs(120), Duration::from_secs(86_400)] {
        let dir = crate::way::scratch();
        let path = dir.path().join("bucket/k");
        let whole = vec![b'w'; 100_000];
        fault::run(shared(FileSystemSharing::Unknown), || {
            let store = open(dir.path());
            let metadata = Metadata { content_type: Some("text/plain".to_owned()), ..Metadata::default() };
            let options = PutOptions { metadata: metadata.into(), ..PutOptions::default() };
            store.put(&bucket(), &key("k"), &whole, &options).unwrap();
            let modified = set_back(&path, behind);
            let file = File::options().write(true).open(&path).unwrap();
            file.set_len(1000).unwrap();
            file.set_modified(modified - Duration::from_secs(1)).unwrap();
            let grown = std::thread::spawn({
                let (path, whole) = (path.clone(), whole.clone());
                move || {
                    std::thread::sleep(Duration::from_millis(300));
                    std::fs::write(&path, whole).unwrap();
                    File::options().write(true).open(&path).unwrap().set_modified(modified).unwrap();
                }
            });
            let read = body(&store, "k").unwrap();
            grown.join().unwrap();
            assert_eq!(read.len(), whole.len(), "{behind:?}");
        });
    }
}

/// Only the first read of a file whose time was set back waits until the client's caches have expired.
#[test]
fn a_file_whose_time_was_set_back_is_read_at_once_the_next_time() {
    let dir = crate::way::scratch();
    fault::run(shared(FileSystemSharing::Unknown), || {
        let store = open(dir.path());
        let metadata = Metadata { content_type: Some("text/plain".to_owned()), ..Metadata::default() };
        let options = PutOptions { metadata: metadata.into(), ..PutOptions::default() };
        store.put(&bucket(), &key("k"), b"before", &options).unwrap();
        let path = dir.path().join("bucket/k");
        std::fs::write(&path, "after").unwrap();
        let past = SystemTime::now() - Duration::from_secs(10);
        File::options().write(true).open(&path).unwrap().set_modified(past).unwrap();
        assert_eq!(body(&store, "k").unwrap(), b"after");
        let begin = Instant::now();
        assert_eq!(body(&store, "k").unwrap(), b"after");
        assert!(begin.elapsed() < Duration::from_millis(500), "{:?}", begin.elapsed());
    });
}

/// The calls that give a file a name, and the error of each that a client reports if the server's reply was lost.
const NAMING: [(&str, Errno); 5] = [
    ("linkat", Errno::EXIST),
    ("link_by_descriptor", Errno::EXIST),
    ("renameat", Errno::NOENT),
    ("renameat_with", Errno::EXIST),
    ("renameat_with", Errno::NOENT),
];

/// Loses the reply of each call that gives a file a name. `act` must succeed. `missing` are calls that the file system
/// does not support.
fn lose_each_reply<P>(
    sharing: FileSystemSharing,
    missing: &'static [(&'static str, Errno)],
    prepare: impl Fn(&PosixStore) -> P,
    act: impl Fn(&PosixStore, &P) -> Result<()>,
    check: impl Fn(&PosixStore, &str),
) {
    let plan = |nth| FaultInjectionPlan { nth, missing, ..shared(sharing) };
    let run = |nth| {
        let dir = crate::way::scratch();
        let (store, prepared) = fault::run(plan(None), || {
            let store = open(dir.path());
            let prepared = prepare(&store);
            (store, prepared)
        })
        .0;
        let (done, calls) = fault::run(plan(nth), || act(&store, &prepared));
        (dir, done, calls)
    };
    let named = |calls: &[&'static str]| -> Vec<(usize, &'static str)> {
        let is_naming = |call: &str| NAMING.iter().any(|(name, _)| *name == call);
        (1..).zip(calls.iter().copied()).filter(|(_, call)| is_naming(call)).collect()
    };
    let (.., calls) = run(None);
    assert!(!named(&calls).is_empty(), "{calls:?}");
    for (number, (_, call)) in named(&calls).into_iter().enumerate() {
        for (_, errno) in NAMING.iter().filter(|(name, _)| *name == call) {
            // A call that refreshes a cache may come earlier or later in the next run, so the test looks for the
            // position again.
            let is_lost = (0..100).any(|_| {
                let (.., calls) = run(None);
                let Some((at, _)) = named(&calls).get(number).copied() else { return false };
                let (dir, done, made) = run(Some((at, SyscallFault::LoseReply(*errno))));
                if made.get(at - 1) != Some(&call) {
                    return false;
                }
                let place = format!("{sharing:?}, call {at} of {made:?}: {errno}");
                assert!(done.is_ok(), "{place}: {done:?}");
                fault::run(plan(None), || check(&open(dir.path()), &place));
                true
            });
            assert!(is_lost, "{call} was never made at the same position: {calls:?}");
        }
    }
}

const SHARED: [FileSystemSharing; 2] = [FileSystemSharing::Nfs, FileSystemSharing::Unknown];
/// For each of three kinds of file systems, the calls that it lacks: none; `open_tmpfile`; `open_tmpfile` and
/// `renameat_with`.
const LACKS: [&[(&str, Errno)]; 3] = [
    &[],
    &[("open_tmpfile", Errno::OPNOTSUPP)],
    &[("open_tmpfile", Errno::OPNOTSUPP), ("renameat_with", Errno::INVAL)],
];

fn each_way(act: impl Fn(FileSystemSharing, &'static [(&'static str, Errno)])) {
    SHARED.into_iter().for_each(|sharing| LACKS.into_iter().for_each(|missing| act(sharing, missing)));
}

#[test]
fn a_put_whose_name_was_given_succeeds_although_the_reply_was_lost() {
    let has = |content: &'static [u8]| {
        move |store: &PosixStore, place: &str| assert_eq!(body(store, "k").unwrap(), content, "{place}")
    };
    let put = |store: &PosixStore, content: &[u8], conditions| {
        let options = PutOptions { conditions, ..PutOptions::default() };
        store.put(&bucket(), &key("k"), content, &options).map(|put| put.etag)
    };
    each_way(|sharing, missing| {
        let create = |store: &PosixStore, _: &()| put(store, b"new", Conditions::create_only()).map(drop);
        lose_each_reply(sharing, missing, |_| (), create, has(b"new"));
        let prepare = |store: &PosixStore| put(store, b"old", Conditions::default()).unwrap();
        let replace = |store: &PosixStore, etag: &fordway_store::ETag| {
            let if_match = Some(ETagMatch::Tags(vec![etag.clone()]));
            put(store, b"newer", Conditions { if_match, ..Conditions::default() }).map(drop)
        };
        lose_each_reply(sharing, missing, prepare, replace, has(b"newer"));
    });
}

#[test]
fn a_rename_that_was_made_succeeds_although_the_reply_was_lost() {
    each_way(|sharing, missing| {
        let put = |store: &PosixStore, name: &str| {
            store.put(&bucket(), &key(name), name.as_bytes(), &PutOptions::default()).map(drop).unwrap();
        };
        let check = |store: &PosixStore, place: &str| {
            assert_eq!(body(store, "to").unwrap(), b"from", "{place}");
            assert_eq!(body(store, "from").unwrap_err().kind(), ErrorKind::NoSuchKey, "{place}");
        };
        let conditions = RenameOptions { conditions: Conditions::create_only(), ..RenameOptions::default() };
        let rename = |store: &PosixStore, options: &RenameOptions| {
            store.rename(&bucket(), &key("from"), &key("to"), options)
        };
        lose_each_reply(
            sharing,
            missing,
            |store| put(store, "from"),
            |store, ()| rename(store, &conditions),
            check,
        );
        let both = |store: &PosixStore| ["from", "to"].iter().for_each(|name| put(store, name));
        lose_each_reply(sharing, missing, both, |store, ()| rename(store, &RenameOptions::default()), check);
    });
}

#[test]
fn an_upload_that_was_completed_succeeds_although_the_reply_was_lost() {
    let size = MIN_PART_BYTES as usize;
    let prepare = |store: &PosixStore| {
        let upload = store.create_upload(&bucket(), &key("k"), &PutOptions::default()).unwrap();
        let parts = [1_u8, 2].map(|number| {
            let options = PartOptions { size_hint: Some(MIN_PART_BYTES), ..Default::default() };
            let mut writer =
                store.part_writer(&bucket(), &key("k"), &upload, number.into(), &options).unwrap();
            writer.write(&vec![number; size]).unwrap();
            CompletedPart::new(number.into(), writer.commit(&ExpectedContent::default()).unwrap().etag)
        });
        (upload, parts)
    };
    each_way(|sharing, missing| {
        let complete = |store: &PosixStore, (upload, parts): &(_, [CompletedPart; 2])| {
            let options = CompleteOptions::conditions(Conditions::create_only());
            store.complete_upload(&bucket(), &key("k"), upload, parts, &options).map(drop)
        };
        let check = |store: &PosixStore, place: &str| {
            assert!(body(store, "k").unwrap() == [vec![1; size], vec![2; size]].concat(), "{place}");
        };
        lose_each_reply(sharing, missing, prepare, complete, check);
    });
}

/// Lustre without the mount option `flock` has no locks, and returns `ENOSYS`.
#[test]
fn a_file_system_without_locks_is_named_as_the_cause() {
    for missing in [
        &[("fcntl", Errno::NOLCK)] as &'static [_],
        &[("fcntl", Errno::NOSYS)],
        &[("fcntl", Errno::OPNOTSUPP)],
    ] {
        let dir = crate::way::scratch();
        let plan = FaultInjectionPlan { missing, ..shared(FileSystemSharing::Unknown) };
        let refused = fault::run(plan, || {
            let store = open(dir.path());
            let conditions = Conditions { if_match: Some(ETagMatch::Any), ..Conditions::default() };
            store.put(&bucket(), &key("k"), b"1", &PutOptions { conditions, ..PutOptions::default() })
        })
        .0;
        let refused = refused.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::NotImplemented, "{missing:?}: {refused}");
        assert!(refused.to_string().contains("`flock`"), "{refused}");
    }
}

/// The calls that read the state and the names of an open directory.
const OF_DIRECTORIES: &[&str] = &["statx", "getdents64"];
/// The calls that look up names in directories, and that read records.
const OF_NAMES: &[&str] = &["statat", "openat", "openat2", "getxattrat", "fgetxattr"];

/// Returns how many calls of `list` fail if another node removes one of the directories just before one of the calls
/// `failing`.
fn failed_lists<T>(
    (sharing, failing): (FileSystemSharing, &[&str]),
    dir: &Path,
    list: impl Fn(&PosixStore) -> Result<T>,
    check: impl Fn(T),
) -> usize {
    let run = |nth| {
        fault::run(
            FaultInjectionPlan { nth, sharing: Some(sharing), ..FaultInjectionPlan::default() },
            || PosixStore::open(dir, PosixConfig::default()).and_then(|store| list(&store)),
        )
    };
    let (listed, calls) = run(None);
    check(listed.unwrap());
    let reads = (1..).zip(calls).filter(|(_, call)| failing.contains(call));
    let listed = reads.map(|(at, _)| run(Some((at, SyscallFault::Fail(Errno::STALE)))).0);
    listed.filter(Result::is_err).count()
}

/// A listing succeeds if another node removes a directory while the listing reads it. Only the removal of the bucket's
/// own directory makes the listing fail. Further directories in the bucket cause no further failures.
#[test]
fn a_listing_passes_over_directories_that_another_node_removes() {
    for sharing in SHARED {
        let dirs = [(); 2].map(|()| crate::way::scratch());
        for (dir, keys) in dirs.iter().zip([&["a"][..], &["a", "d/x", "d/e/x", "f/x"]]) {
            let store = open(dir.path());
            for key_name in keys {
                store.put(&bucket(), &key(key_name), b"", &PutOptions::default()).unwrap();
            }
        }
        let all = |store: &PosixStore| store.list(&bucket(), &ListQuery::default());
        let prefixes = |store: &PosixStore| {
            store.list(&bucket(), &ListQuery { delimiter: Some("/".to_owned()), ..ListQuery::default() })
        };
        let [flat, deep] = [&dirs[0], &dirs[1]].map(|dir| dir.path());
        let of = (sharing, OF_DIRECTORIES);
        let sizes = |most: usize| move |listed: ObjectListing| assert_eq!(listed.entries.len(), most);
        let expected = failed_lists(of, flat, all, sizes(1));
        assert_eq!(failed_lists(of, deep, all, sizes(4)), expected, "{sharing:?}");
        let expected = failed_lists(of, flat, prefixes, sizes(1));
        assert_eq!(failed_lists(of, deep, prefixes, sizes(3)), expected, "{sharing:?}");
    }
}

/// The same for a directory with symbolic links and a folder.
#[test]
fn a_listing_passes_over_links_and_folders_that_another_node_removes() {
    for sharing in SHARED {
        let dirs = [(); 2].map(|()| crate::way::scratch());
        for (dir, keys) in dirs.iter().zip([&["a"][..], &["a", "d/x", "d/folder/", "e/y"]]) {
            let store = open(dir.path());
            for key_name in keys {
                store.put(&bucket(), &key(key_name), b"", &PutOptions::default()).unwrap();
            }
            let private = dir.path().join("bucket/.fordway");
            std::fs::create_dir_all(&private).unwrap();
            std::fs::write(private.join("markers"), "").unwrap();
        }
        for (target, link) in [("../a", "file"), ("../e", "dir"), ("../none", "dangling")] {
            std::os::unix::fs::symlink(target, dirs[1].path().join("bucket/d").join(link)).unwrap();
        }
        let list = |store: &PosixStore| store.list(&bucket(), &ListQuery::default());
        let sizes = |most: usize| move |listed: ObjectListing| assert_eq!(listed.entries.len(), most);
        let of = (sharing, OF_NAMES);
        let expected = failed_lists(of, dirs[0].path(), list, sizes(1));
        assert_eq!(failed_lists(of, dirs[1].path(), list, sizes(6)), expected, "{sharing:?}");
    }
}

/// Like the previous test, for the directories of old versions, of odd keys and of an upload's parts.
#[test]
fn private_directories_that_another_node_removes_fail_no_listing() {
    for sharing in SHARED {
        let of = (sharing, OF_DIRECTORIES);
        let dir = crate::way::scratch();
        let store = open(dir.path());
        store.set_versioning(&bucket(), VersioningState::Enabled).unwrap();
        for name in ["k", "odd//k"] {
            for body in [b"1", b"2"] {
                store.put(&bucket(), &key(name), body, &PutOptions::default()).unwrap();
            }
        }
        let upload = store.create_upload(&bucket(), &key("u"), &PutOptions::default()).unwrap();
        let options = PartOptions::default();
        let mut part = store.part_writer(&bucket(), &key("u"), &upload, 1, &options).unwrap();
        part.write(b"part").unwrap();
        part.commit(&ExpectedContent::default()).unwrap();
        let own = failed_lists(of, dir.path(), |store| store.list(&bucket(), &ListQuery::default()), |_| ());
        let versions = |store: &PosixStore| store.list_versions(&bucket(), &VersionsQuery::default());
        let failed = failed_lists(of, dir.path(), versions, |listed| assert_eq!(listed.versions.len(), 4));
        assert!(failed <= own, "{sharing:?}: {failed} of the listings of versions, and {own} of the objects");
        let parts =
            |store: &PosixStore| store.list_parts(&bucket(), &key("u"), &upload, &PartsQuery::default());
        assert_eq!(failed_lists(of, dir.path(), parts, |_| ()), 0, "{sharing:?}");
    }
}

/// Another node replaces an object while it has the object open, so the name is missing for a moment. This node's clock
/// is ahead of the server's, so the directory seems to have changed long ago.
#[test]
fn a_strong_read_waits_for_a_replaced_object_whatever_the_clocks_say() {
    let dir = crate::way::scratch();
    let at = |name: &str| dir.path().join("bucket").join(name);
    let config = PosixConfig { consistency: ReadConsistency::Strong, ..PosixConfig::default() };
    fault::run(shared(FileSystemSharing::Nfs), || {
        open(dir.path());
        let store = PosixStore::open(dir.path(), config).unwrap();
        for body in [b"1", b"2"] {
            store.put(&bucket(), &key("k"), body, &PutOptions::default()).unwrap();
        }
        std::fs::rename(at("k"), at(".fordway/aside")).unwrap();
        File::open(at("")).unwrap().set_modified(SystemTime::now() - Duration::from_secs(3600)).unwrap();
        let locks = File::options().write(true).open(at(".fordway/locks")).unwrap();
        let held = fordway_sys::lock_range(locks.into(), 0..0x0100_0000, Duration::ZERO).unwrap();
        let (from, to) = (at(".fordway/aside"), at("k"));
        let writer = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            std::fs::rename(from, to).unwrap();
            drop(held);
        });
        assert_eq!(body(&store, "k").unwrap(), b"2");
        writer.join().unwrap();
    });
}

/// Returns a plan for a file system without extended attributes, where records are in sidecar files.
fn without_attributes(sharing: FileSystemSharing) -> FaultInjectionPlan {
    FaultInjectionPlan { missing: crate::missing::NO_ATTRIBUTES, ..shared(sharing) }
}

/// Puts an object whose content type is in a sidecar file.
fn put_typed(store: &PosixStore, name: &str) {
    let metadata = Metadata { content_type: Some(name.to_owned()), ..Metadata::default() };
    let options = PutOptions { metadata: metadata.into(), ..PutOptions::default() };
    store.put(&bucket(), &key(name), b"content", &options).unwrap();
}

/// A file without a sidecar file has no record if its key still leads to it, however recently it has changed.
#[test]
fn a_call_does_not_wait_for_the_record_of_a_new_file() {
    const FILES: usize = 40;
    for sharing in SHARED {
        let dir = crate::way::scratch();
        fault::run(without_attributes(sharing), || {
            let store = open(dir.path());
            put_typed(&store, "typed");
            assert!(dir.path().join("bucket/.fordway/meta").exists());
            let write = |number| std::fs::write(dir.path().join(format!("bucket/{number}")), "").unwrap();
            (0..FILES).for_each(write);
            let begin = Instant::now();
            assert_eq!(store.list(&bucket(), &ListQuery::default()).unwrap().entries.len(), FILES + 1);
            for number in 0..FILES {
                store.head(&bucket(), &key(&number.to_string()), &GetOptions::default()).unwrap();
            }
            // If each file took 100 ms, the heads would take 4 s, and the listing its longest time, 2 s.
            assert!(begin.elapsed() < Duration::from_secs(3), "{sharing:?}: {:?}", begin.elapsed());
        });
    }
}

/// Another node replaces an object and removes its sidecar file, just before any call of a reader. The replaced file
/// still has a hidden name. The reader must not take it for an object without a record, even if the clocks differ so
/// much that the replacement of the open file seems to be old.
#[test]
fn a_replaced_object_is_never_seen_without_its_record() {
    let ages = [Duration::ZERO, LONG_AGO];
    for (sharing, age) in SHARED.into_iter().flat_map(|sharing| ages.map(|age| (sharing, age))) {
        for at in 1.. {
            let dir = crate::way::scratch();
            let plan = without_attributes(sharing);
            let store = fault::run(plan, || {
                let store = open(dir.path());
                ["old", "new"].iter().for_each(|name| put_typed(&store, name));
                store
            })
            .0;
            let below = |name: &str| dir.path().join("bucket").join(name);
            let inode = std::os::unix::fs::MetadataExt::ino(&below("old").metadata().unwrap());
            let sidecar = below(".fordway/meta").join(format!("{inode:016x}"));
            assert!(sidecar.exists());
            let [from, to, aside] = ["new", "old", ".fordway/aside"].map(below);
            let replace = move || {
                std::fs::hard_link(&to, aside).unwrap();
                std::fs::rename(from, to).unwrap();
                std::fs::remove_file(sidecar).unwrap();
            };
            let head = || store.head(&bucket(), &key("old"), &GetOptions::default()).unwrap();
            let plan = FaultInjectionPlan { age, ..plan };
            let (info, calls) = fault::run_interleaved(plan, (at, replace), head);
            let found = info.metadata.content_type.as_deref();
            // Only the clocks reveal a file that was replaced between its opening and the first look at its state.
            let needs_clocks = !calls[..calls.len().min(at - 1)].contains(&"fstat");
            assert!(
                matches!(found, Some("old" | "new")) || age == LONG_AGO && needs_clocks,
                "{sharing:?}, {age:?}, before call {at} of {calls:?}: {found:?}"
            );
            if at > calls.len() {
                assert!(at > 5, "{calls:?}");
                break;
            }
        }
    }
}

/// Longer than any time that the store takes for recent.
const LONG_AGO: Duration = Duration::from_secs(7 * 24 * 3600);

/// Returns the calls of a `head` and of a listing of a bucket on NFS in which `k` and `files` more objects are files of
/// POSIX programs that last changed `age` ago. Another object has a sidecar file.
fn calls_without_sidecars(files: usize, age: Duration) -> [Vec<&'static str>; 2] {
    let dir = crate::way::scratch();
    let plan = without_attributes(FileSystemSharing::Nfs);
    fault::run(plan, || put_typed(&open(dir.path()), "typed"));
    let write = |name: &str| std::fs::write(dir.path().join("bucket").join(name), "").unwrap();
    write("k");
    (0..files).for_each(|number| write(&number.to_string()));
    let plan = FaultInjectionPlan { age, ..plan };
    // Each store is new, so that it makes the same calls in each run.
    let new = || PosixStore::open(dir.path(), PosixConfig::default()).unwrap();
    let (info, of_head) = fault::run(plan, || new().head(&bucket(), &key("k"), &GetOptions::default()));
    assert_eq!(info.unwrap().metadata, Metadata::default().into());
    let (listed, of_list) = fault::run(plan, || new().list(&bucket(), &ListQuery::default()));
    assert_eq!(listed.unwrap().entries.len(), files + 2);
    [of_head, of_list]
}

/// After the lookup of its sidecar file, an old file costs one round trip: the question whether it has changed. A file
/// that has just changed is looked up by its name, and then asked whether it still has one.
#[test]
fn only_a_file_that_has_just_changed_is_looked_up_again() {
    const LOOKUP: [&str; 8] =
        ["openat2", "statx", "linkat", "statx", "getxattrat", "openat2", "fstat", "statx"];
    // Kernels before 6.13 read attributes by `lgetxattr`.
    let present = |call: &&'static str| if *call == "lgetxattr" { "getxattrat" } else { *call };
    let [old, new] = [LONG_AGO, Duration::ZERO]
        .map(|age| calls_without_sidecars(0, age)[0].iter().map(present).collect::<Vec<_>>());
    assert!(old.ends_with(&["statat", "statx"]), "{old:?}");
    assert_eq!(new, [&old[..], &LOOKUP].concat());
    const FILES: usize = 20;
    let lookups = |age| {
        let calls = &calls_without_sidecars(FILES, age)[1];
        calls.iter().filter(|call| **call == "linkat").count()
    };
    assert_eq!([LONG_AGO, Duration::ZERO].map(lookups), [0, FILES + 1]);
}

/// A root in which the sidecar file of the object `k` was moved away.
struct MissingSidecar {
    root: tempfile::TempDir,
    sidecar: PathBuf,
    aside: PathBuf,
}

impl MissingSidecar {
    fn new(sharing: FileSystemSharing) -> Self {
        let root = crate::way::scratch();
        fault::run(without_attributes(sharing), || put_typed(&open(root.path()), "k"));
        let below = |name: &str| root.path().join("bucket").join(name);
        let inode = std::os::unix::fs::MetadataExt::ino(&below("k").metadata().unwrap());
        let sidecar = below(".fordway/meta").join(format!("{inode:016x}"));
        let aside = below(".fordway/aside");
        std::fs::rename(&sidecar, &aside).unwrap();
        MissingSidecar { sidecar, aside, root }
    }

    /// Returns the content type of `k`, and the calls. The store is new, so it makes the same calls in each run. The
    /// sidecar file comes back just before call number `at`.
    fn head(&self, plan: FaultInjectionPlan, at: usize) -> (Result<Option<String>>, Vec<&'static str>) {
        let (aside, sidecar) = (self.aside.clone(), self.sidecar.clone());
        let reveal = move || std::fs::rename(aside, sidecar).unwrap();
        fault::run_interleaved(plan, (at, reveal), || {
            let store = PosixStore::open(self.root.path(), PosixConfig::default())?;
            store
                .head(&bucket(), &key("k"), &GetOptions::default())
                .map(|info| info.metadata.content_type.clone())
        })
    }
}

/// Another node replaces an object twice while a reader looks up its name. The server has given the inode number of the
/// first file, which the reader has open, to the third. The reader must not take the third file for the first one.
#[test]
fn a_file_whose_inode_number_was_given_away_is_opened_again() {
    for sharing in SHARED {
        let missing = MissingSidecar::new(sharing);
        let plan = without_attributes(sharing);
        let (found, calls) = missing.head(plan, usize::MAX);
        assert_eq!(found.unwrap(), None);
        let at = calls.iter().rposition(|call| *call == "statx").unwrap() + 1;
        let nth = Some((at, SyscallFault::Fail(Errno::STALE)));
        let (found, calls) = missing.head(FaultInjectionPlan { nth, ..plan }, at + 1);
        assert_eq!(found.unwrap().as_deref(), Some("k"), "{sharing:?}, call {at} of {calls:?}");
    }
}

/// If the server cannot say whether an object without a sidecar file has been removed, the object is not shown without
/// its metadata.
#[test]
fn an_error_of_the_server_does_not_hide_the_metadata() {
    let cases = [(LONG_AGO, "statx"), (Duration::ZERO, "statx"), (Duration::ZERO, "openat2")];
    for (sharing, (age, call)) in SHARED.into_iter().flat_map(|sharing| cases.map(|case| (sharing, case))) {
        let missing = MissingSidecar::new(sharing);
        let plan = FaultInjectionPlan { age, ..without_attributes(sharing) };
        let calls = missing.head(plan, usize::MAX).1;
        let at = calls.iter().rposition(|made| *made == call).unwrap() + 1;
        for errno in [Errno::IO, Errno::TIMEDOUT, Errno::ACCESS] {
            let nth = Some((at, SyscallFault::Fail(errno)));
            let (found, calls) = missing.head(FaultInjectionPlan { nth, ..plan }, usize::MAX);
            assert!(found.is_err(), "{sharing:?}, {errno} at call {at} of {calls:?}");
        }
    }
}
