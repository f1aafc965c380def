//! Tests how the store reacts when POSIX programs change files in its root.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, SystemTime};

use fordway_posix::{PosixConfig, PosixStore};
use fordway_store::{
    BoxedMetadata, Bucket, ByteRange, ChecksumAlgorithm, CompleteOptions, CompletedPart, Conditions,
    CopyOptions, DeleteOptions, ETagPolicy, ErrorKind, ExpectedContent, GetOptions, Key, ListQuery,
    MIN_PART_BYTES, Metadata, MultipartUploadOperations, ObjectRenameOperations, ObjectTagOperations,
    Objects, PartOptions, PartsQuery, PutOptions, RenameOptions, Result, Tags, UploadsQuery,
};
use tempfile::TempDir;

fn open() -> (TempDir, PosixStore, Bucket) {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir_all(dir.path().join("root/bucket")).unwrap();
    let store = PosixStore::open(&dir.path().join("root"), PosixConfig::default()).unwrap();
    (dir, store, Bucket::new("bucket").unwrap())
}

fn key(key: &str) -> Key {
    Key::new(key).unwrap()
}

fn get(store: &PosixStore, bucket: &Bucket, name: &str) -> Result<Vec<u8>, ErrorKind> {
    let object = store.get(bucket, &key(name), &GetOptions::default()).map_err(|error| error.kind())?;
    Ok(object.content.into_vec().unwrap())
}

fn keys(store: &PosixStore, bucket: &Bucket) -> Vec<String> {
    let listing = store.list(bucket, &ListQuery::default()).unwrap();
    listing.entries.iter().map(|entry| entry.name().to_owned()).collect()
}

#[test]
fn a_tree_that_exists_is_a_bucket() {
    let (dir, store, bucket) = open();
    let at = dir.path().join("root/bucket");
    fs::create_dir_all(at.join("a/b")).unwrap();
    fs::create_dir_all(at.join("empty/inner")).unwrap();
    fs::write(at.join("a/b/c"), "made by POSIX").unwrap();
    assert_eq!(get(&store, &bucket, "a/b/c"), Ok(b"made by POSIX".to_vec()));
    assert_eq!(keys(&store, &bucket), ["a/b/c"]);
    store.put(&bucket, &key("a/b/d"), b"made by S3", &PutOptions::default()).unwrap();
    assert_eq!(fs::read(at.join("a/b/d")).unwrap(), b"made by S3");
    assert_eq!(fs::metadata(at.join("a/b/d")).unwrap().permissions().mode() & 0o111, 0);
    store.delete(&bucket, &key("a/b/c"), &DeleteOptions::default()).unwrap();
    store.delete(&bucket, &key("a/b/d"), &DeleteOptions::default()).unwrap();
    assert!(at.join("a/b").is_dir(), "a directory that the store did not make is kept");
}

/// The first set of tags fits into an attribute; the second set does not.
#[test]
fn a_file_that_posix_made_takes_tags() {
    let (dir, store, bucket) = open();
    fs::write(dir.path().join("root/bucket/k"), "made by POSIX").unwrap();
    for (count, value_bytes) in [(1, 1), (10, 256)] {
        let tags: Tags = (0..count).map(|n| (format!("{n:0>100}"), "v".repeat(value_bytes))).collect();
        store.set_tags(&bucket, &key("k"), None, &tags).unwrap();
        assert_eq!(store.tags(&bucket, &key("k"), None).unwrap(), tags);
        assert_eq!(get(&store, &bucket, "k"), Ok(b"made by POSIX".to_vec()));
    }
}

#[test]
fn a_file_changed_beneath_the_store_gets_another_etag() {
    let (dir, store, bucket) = open();
    let tag = |name: &str| store.head(&bucket, &key(name), &GetOptions::default()).unwrap().etag;
    let listed =
        || store.list(&bucket, &ListQuery::default()).unwrap().entries[0].object().unwrap().etag.clone();
    let made = store.put(&bucket, &key("k"), b"one", &PutOptions::default()).unwrap().etag;
    assert_eq!((tag("k"), listed()), (made.clone(), made.clone()));
    fs::write(dir.path().join("root/bucket/k"), "two").unwrap();
    let changed = tag("k");
    assert_ne!(changed, made);
    assert_eq!((tag("k"), listed()), (changed.clone(), changed));
    assert_eq!(get(&store, &bucket, "k"), Ok(b"two".to_vec()));
}

#[test]
fn links_lead_nowhere_but_beneath_the_root() {
    let (dir, store, bucket) = open();
    let at = dir.path().join("root/bucket");
    fs::create_dir(at.join("real")).unwrap();
    fs::write(at.join("real/file"), "inside").unwrap();
    fs::write(dir.path().join("secret"), "secret").unwrap();
    for (link, target) in [
        ("good", "real/file"),
        ("gooddir", "real"),
        ("out", "../../secret"),
        ("outdir", "../.."),
        ("abs", "/etc/hostname"),
        ("loop", "loop"),
        ("dangling", "nothing"),
        ("real/up", ".."),
    ] {
        symlink(target, at.join(link)).unwrap();
    }
    assert_eq!(get(&store, &bucket, "good"), Ok(b"inside".to_vec()));
    assert_eq!(get(&store, &bucket, "gooddir/file"), Ok(b"inside".to_vec()));
    for name in ["out", "outdir/secret", "abs", "loop"] {
        assert_eq!(get(&store, &bucket, name), Err(ErrorKind::AccessDenied), "{name}");
        let head = store.head(&bucket, &key(name), &GetOptions::default());
        assert_eq!(head.unwrap_err().kind(), ErrorKind::AccessDenied, "{name}");
    }
    for name in ["outdir/planted", "dangling/planted", "dangling/more/planted"] {
        let put = store.put(&bucket, &key(name), b"x", &PutOptions::default());
        assert_eq!(put.unwrap_err().kind(), ErrorKind::AccessDenied, "{name}");
    }
    assert!(!dir.path().join("planted").exists());
    let _ = store.delete(&bucket, &key("outdir/secret"), &DeleteOptions::default());
    assert_eq!(fs::read(dir.path().join("secret")).unwrap(), b"secret");
    // The listing shows the objects that can be read, does not follow cycles, and ignores links that cannot be
    // followed.
    assert_eq!(keys(&store, &bucket), ["good", "gooddir/file", "real/file"]);
    store.put(&bucket, &key("out"), b"mine now", &PutOptions::default()).unwrap();
    assert_eq!(fs::read(dir.path().join("secret")).unwrap(), b"secret");
    assert_eq!(get(&store, &bucket, "out"), Ok(b"mine now".to_vec()));
}

#[test]
fn what_is_no_file_is_no_object() {
    let (dir, store, bucket) = open();
    let at = dir.path().join("root/bucket");
    let made = Command::new("mkfifo").arg(at.join("fifo")).status().unwrap();
    assert!(made.success());
    let _socket = std::os::unix::net::UnixListener::bind(at.join("socket")).unwrap();
    for name in ["fifo", "socket"] {
        assert_eq!(get(&store, &bucket, name), Err(ErrorKind::NoSuchKey), "{name}");
    }
    assert!(keys(&store, &bucket).is_empty());
}

/// A copy of a sparse file takes no more space than the file.
#[test]
fn a_copy_keeps_holes() {
    const MIB: u64 = 1 << 20;
    let (dir, store, bucket) = open();
    let at = dir.path().join("root/bucket");
    // The offsets of the data, and the size of the file.
    let cases: [(&[u64], u64); 5] = [
        (&[0, 7 * MIB, 20 * MIB + 12_345], 64 * MIB),
        (&[10 * MIB], 10 * MIB + 4),
        (&[], 16 * MIB),
        (&[], 16 * MIB + 1),
        (&[0], 4),
    ];
    for (number, (offsets, size)) in cases.into_iter().enumerate() {
        let name = format!("sparse{number}");
        let file = fs::File::create(at.join(&name)).unwrap();
        file.set_len(size).unwrap();
        for offset in offsets {
            file.write_all_at(b"data", *offset).unwrap();
        }
        if file.metadata().unwrap().blocks() * 512 > MIB {
            fordway_needs::skip("this file system has no sparse files");
            return;
        }
        let content = fs::read(at.join(&name)).unwrap();
        for checksum in [None, Some(ChecksumAlgorithm::Crc64Nvme)] {
            let options = CopyOptions { checksum, ..Default::default() };
            store.copy((&bucket, &key(&name)), &bucket, &key("copy"), &options).unwrap();
            let copied = fs::metadata(at.join("copy")).unwrap();
            assert_eq!(copied.len(), size, "{name}");
            assert!(copied.blocks() * 512 <= MIB, "{name}: {} blocks", copied.blocks());
            assert!(fs::read(at.join("copy")).unwrap() == content, "{name}");
            let found = store.head(&bucket, &key("copy"), &GetOptions::default()).unwrap().checksum;
            let put = PutOptions { checksum, ..Default::default() };
            let expected = store.put(&bucket, &key("put"), &content, &put).unwrap().checksum;
            assert_eq!(found, expected, "{name}");
        }
    }
}

#[test]
fn a_directory_moved_or_removed_in_use_is_found_again() {
    let (dir, store, bucket) = open();
    let at = dir.path().join("root/bucket");
    let put = |name: &str| store.put(&bucket, &key(name), b"x", &PutOptions::default());
    put("d/one").unwrap();
    fs::remove_dir_all(at.join("d")).unwrap();
    assert_eq!(get(&store, &bucket, "d/one"), Err(ErrorKind::NoSuchKey));
    put("d/two").unwrap();
    assert_eq!(keys(&store, &bucket), ["d/two"]);
    // The store keeps a directory open from its second use on. If another directory replaces this directory, the store
    // detects the replacement immediately.
    for round in 0..20 {
        let body = format!("round {round}");
        fs::remove_dir_all(at.join("d")).unwrap();
        fs::create_dir(at.join("d")).unwrap();
        fs::write(at.join("d/one"), &body).unwrap();
        for _ in 0..3 {
            assert_eq!(get(&store, &bucket, "d/one"), Ok(body.clone().into_bytes()));
        }
    }
    fs::remove_dir_all(&at).unwrap();
    assert_eq!(put("d/three").unwrap_err().kind(), ErrorKind::NoSuchBucket);
    assert_eq!(get(&store, &bucket, "d/two"), Err(ErrorKind::NoSuchBucket));
    fs::create_dir(&at).unwrap();
    put("d/four").unwrap();
    assert_eq!(get(&store, &bucket, "d/four"), Ok(b"x".to_vec()));
}

/// A writer whose client has given up may keep writing after the upload has been completed. The bytes of this writer
/// must not get into the object.
#[test]
fn a_part_that_comes_too_late_is_not_in_the_object() {
    let (_dir, store, bucket) = open();
    let size = MIN_PART_BYTES as usize;
    let upload = store.create_upload(&bucket, &key("k"), &PutOptions::default()).unwrap();
    let options = PartOptions { size_hint: Some(size as u64), ..Default::default() };
    let writer = |number| store.part_writer(&bucket, &key("k"), &upload, number, &options).unwrap();
    let send = |number, value: u8| {
        let mut writer = writer(number);
        writer.write(&vec![value; size]).unwrap();
        CompletedPart::new(number, writer.commit(&ExpectedContent::default()).unwrap().etag)
    };
    let first = send(1, 1);
    let mut late = writer(2);
    late.write(&vec![9; size / 2]).unwrap();
    let parts = [first, send(2, 2)];
    store.complete_upload(&bucket, &key("k"), &upload, &parts, &CompleteOptions::default()).unwrap();
    late.write(&vec![9; size / 2]).unwrap();
    assert_eq!(late.commit(&ExpectedContent::default()).unwrap_err().kind(), ErrorKind::NoSuchUpload);
    assert_eq!(get(&store, &bucket, "k"), Ok([vec![1; size], vec![2; size]].concat()));
}

/// `cp -al` gives each file of a bucket a second hard link, including the files of an upload. The object in one bucket
/// must not change when further parts of the upload are sent to the other bucket.
#[test]
fn a_part_sent_to_a_hard_linked_copy_does_not_change_the_object() {
    let size = MIN_PART_BYTES as usize;
    for is_completed_first in [true, false] {
        let (dir, store, bucket) = open();
        let upload = store.create_upload(&bucket, &key("k"), &PutOptions::default()).unwrap();
        let options = PartOptions { size_hint: Some(size as u64), ..Default::default() };
        let send = |bucket: &Bucket, number, value: u8| {
            let mut writer = store.part_writer(bucket, &key("k"), &upload, number, &options).unwrap();
            writer.write(&vec![value; size]).unwrap();
            CompletedPart::new(number, writer.commit(&ExpectedContent::default()).unwrap().etag)
        };
        let complete = |bucket: &Bucket, parts: &[CompletedPart]| {
            store.complete_upload(bucket, &key("k"), &upload, parts, &CompleteOptions::default()).unwrap();
        };
        let first = send(&bucket, 1, 1);
        let root = dir.path().join("root");
        let copied = Command::new("cp").arg("-al").arg(root.join("bucket")).arg(root.join("copy")).status();
        assert!(copied.unwrap().success());
        let (copy, alone) = (Bucket::new("copy").unwrap(), std::slice::from_ref(&first));
        if is_completed_first {
            complete(&bucket, alone);
        }
        let second = send(&copy, 2, 2);
        if !is_completed_first {
            complete(&bucket, alone);
        }
        assert_eq!(get(&store, &bucket, "k"), Ok(vec![1; size]));
        complete(&copy, &[first, second]);
        assert_eq!(get(&store, &bucket, "k"), Ok(vec![1; size]));
        assert_eq!(get(&store, &copy, "k"), Ok([vec![1; size], vec![2; size]].concat()));
        let inode = |name: &str| fs::metadata(root.join(name)).unwrap().ino();
        assert_ne!(inode("bucket/k"), inode("copy/k"));
    }
}

/// If a completion is killed after it has closed the upload, the upload can still be listed, completed or aborted.
#[test]
fn an_upload_left_closed_is_not_lost() {
    let (dir, store, bucket) = open();
    let start = || {
        let upload = store.create_upload(&bucket, &key("k"), &PutOptions::default()).unwrap();
        let mut writer = store.part_writer(&bucket, &key("k"), &upload, 1, &PartOptions::default()).unwrap();
        writer.write(b"content").unwrap();
        let etag = writer.commit(&ExpectedContent::default()).unwrap().etag;
        let at = dir.path().join("root/bucket/.fordway/mpu").join(upload.as_str());
        fs::rename(at.join("upload"), at.join("closed")).unwrap();
        (upload, [CompletedPart::new(1, etag)])
    };
    let (upload, parts) = start();
    let listed = store.list_uploads(&bucket, &UploadsQuery::default()).unwrap().uploads;
    assert_eq!((listed.len(), &listed[0].upload, listed[0].key.as_str()), (1, &upload, "k"));
    store.complete_upload(&bucket, &key("k"), &upload, &parts, &CompleteOptions::default()).unwrap();
    assert_eq!(get(&store, &bucket, "k"), Ok(b"content".to_vec()));
    let (upload, _) = start();
    store.abort_upload(&bucket, &key("k"), &upload).unwrap();
    assert!(store.list_uploads(&bucket, &UploadsQuery::default()).unwrap().uploads.is_empty());
}

/// While a completion runs, the parts are listed, and a further part is refused with an error after which clients send
/// the part again. After the completion was interrupted, the next part reopens the upload.
#[test]
fn a_closed_upload_shows_its_parts_and_accepts_parts_once_its_completion_has_died() {
    let (dir, store, bucket) = open();
    let upload = store.create_upload(&bucket, &key("k"), &PutOptions::default()).unwrap();
    let size = MIN_PART_BYTES as usize;
    let begin = |number| {
        let options = PartOptions { size_hint: Some(MIN_PART_BYTES), ..Default::default() };
        store.part_writer(&bucket, &key("k"), &upload, number, &options)
    };
    let send = |number: u16| {
        let mut writer = begin(number)?;
        writer.write(&vec![number as u8; size])?;
        Ok(CompletedPart::new(number, writer.commit(&ExpectedContent::default())?.etag))
    };
    let first = send(1).unwrap();
    let mut in_flight = begin(2).unwrap();
    in_flight.write(&vec![2; size]).unwrap();
    let at = dir.path().join("root/bucket/.fordway/mpu").join(upload.as_str());
    let completion = fs::File::options().read(true).write(true).open(at.join("data")).unwrap();
    fordway_sys::lock_file(&completion, Duration::ZERO).unwrap();
    fs::rename(at.join("upload"), at.join("closed")).unwrap();
    let listed = store.list_parts(&bucket, &key("k"), &upload, &PartsQuery::default()).unwrap();
    assert_eq!(listed.parts.iter().map(|part| part.number).collect::<Vec<_>>(), [1]);
    let refused: Result<CompletedPart> = send(3);
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::LockTimeout);
    let refused = in_flight.commit(&ExpectedContent::default()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::LockTimeout);
    assert!(at.join("closed").exists() && !at.join("upload").exists());
    drop(completion);
    let parts = [first, send(2).unwrap(), send(3).unwrap()];
    store.complete_upload(&bucket, &key("k"), &upload, &parts, &CompleteOptions::default()).unwrap();
    assert_eq!(get(&store, &bucket, "k"), Ok([vec![1; size], vec![2; size], vec![3; size]].concat()));
    assert!(!at.exists());
}

/// A part that is sent again replaces its previous copy, which is also removed from the disk. The first copy may be
/// within the future object.
#[test]
fn a_part_that_is_sent_again_frees_its_earlier_copy() {
    for size_hint in [None, Some(MIN_PART_BYTES)] {
        let (dir, store, bucket) = open();
        let upload = store.create_upload(&bucket, &key("k"), &PutOptions::default()).unwrap();
        let options = PartOptions { size_hint, ..Default::default() };
        let size = MIN_PART_BYTES as usize;
        let mut last = Vec::new();
        for value in 0..5 {
            let mut writer = store.part_writer(&bucket, &key("k"), &upload, 1, &options).unwrap();
            writer.write(&vec![value; size]).unwrap();
            let etag = writer.commit(&ExpectedContent::default()).unwrap().etag;
            last = vec![CompletedPart::new(1, etag)];
        }
        let at = dir.path().join("root/bucket/.fordway/mpu").join(upload.as_str());
        let names = fs::read_dir(&at).unwrap().map(|entry| entry.unwrap().file_name());
        let copies =
            names.filter(|name| name.to_str().is_some_and(|name| name.starts_with("00001-"))).count();
        assert_eq!(copies, 1, "{size_hint:?}");
        store.complete_upload(&bucket, &key("k"), &upload, &last, &CompleteOptions::default()).unwrap();
        assert_eq!(get(&store, &bucket, "k"), Ok(vec![4; size]));
    }
}

/// A completion reads the record of a part, and then the file that the record names. A part that is sent again in
/// between must not remove this file.
#[test]
fn a_part_that_is_sent_again_takes_no_file_from_a_running_completion() {
    let (_dir, store, bucket) = open();
    store.put(&bucket, &key("k"), b"old", &PutOptions::default()).unwrap();
    // With this policy, the ETag of the part remains the same.
    let options = PutOptions { etag_policy: Some(ETagPolicy::Md5), ..Default::default() };
    let upload = store.create_upload(&bucket, &key("k"), &options).unwrap();
    let send = || {
        let mut writer = store.part_writer(&bucket, &key("k"), &upload, 1, &PartOptions::default())?;
        writer.write(b"content")?;
        writer.commit(&ExpectedContent::default())
    };
    let parts = [CompletedPart::new(1, send().unwrap().etag)];
    let complete = |conditions: Conditions| {
        let options = CompleteOptions::conditions(conditions);
        store.complete_upload(&bucket, &key("k"), &upload, &parts, &options)
    };
    thread::scope(|scope| {
        let sender = scope.spawn(|| {
            let refused = (0..300).filter_map(|_| send().err());
            refused.for_each(|error| assert_eq!(error.kind(), ErrorKind::LockTimeout, "{error}"));
        });
        while !sender.is_finished() {
            let refused = complete(Conditions::create_only()).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::PreconditionFailed, "{refused}");
        }
    });
    complete(Conditions::default()).unwrap();
    assert_eq!(get(&store, &bucket, "k"), Ok(b"content".to_vec()));
}

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// This test is meaningful only for ordinary users, because root can read every file.
#[test]
fn one_unreadable_file_hides_no_other() {
    let (dir, store, bucket) = open();
    let at = dir.path().join("root/bucket");
    for name in ["a", "b", "c"] {
        store.put(&bucket, &key(name), b"x", &PutOptions::default()).unwrap();
    }
    mode(&at.join("b"), 0);
    assert_eq!(keys(&store, &bucket), ["a", "b", "c"]);
    if fs::read(at.join("b")).is_err() {
        assert_eq!(get(&store, &bucket, "b"), Err(ErrorKind::AccessDenied));
    }
}

/// A file whose name consists of arbitrary bytes has a key. Listings show this key, and reads, puts and deletes with
/// the key act on the file.
#[test]
fn names_that_are_no_utf8_are_keys() {
    let (dir, store, bucket) = open();
    let at = dir.path().join("root/bucket");
    let below = at.join(OsStr::from_bytes(b"d\xe9"));
    fs::create_dir(&below).unwrap();
    let file = below.join(OsStr::from_bytes(b"a\xff.txt"));
    fs::write(&file, "posix").unwrap();
    fs::write(at.join("é"), "plain").unwrap();
    let name = "d\u{efe9}/a\u{efff}.txt";
    assert_eq!(keys(&store, &bucket), [name, "é"]);
    assert_eq!(get(&store, &bucket, name), Ok(b"posix".to_vec()));
    store.put(&bucket, &key(name), b"s3", &PutOptions::default()).unwrap();
    assert_eq!(fs::read(&file).unwrap(), b"s3");
    store.delete(&bucket, &key(name), &DeleteOptions::default()).unwrap();
    assert!(!file.exists());

    // A key that escapes the bytes of `é` unnecessarily is a different key, and has no plain path.
    let needless = "\u{efc3}\u{efa9}";
    store.put(&bucket, &key(needless), b"apart", &PutOptions::default()).unwrap();
    assert_eq!(get(&store, &bucket, "é"), Ok(b"plain".to_vec()));
    assert_eq!(get(&store, &bucket, needless), Ok(b"apart".to_vec()));
    assert_eq!(keys(&store, &bucket), ["é", needless]);
}

/// An empty object whose key ends in a slash is the directory with that name. Other directories are not objects.
#[test]
fn an_empty_key_that_ends_in_a_slash_is_a_directory() {
    let (dir, store, bucket) = open();
    let at = dir.path().join("root/bucket");
    let put = |name: &str, body: &[u8]| store.put(&bucket, &key(name), body, &PutOptions::default()).unwrap();
    let delete = |name: &str| store.delete(&bucket, &key(name), &DeleteOptions::default()).unwrap();
    fs::create_dir(at.join("posix")).unwrap();
    let made = put("a/b/", b"").etag;
    assert!(at.join("a/b").is_dir());
    assert_eq!(keys(&store, &bucket), ["a/b/"]);
    assert_eq!(store.head(&bucket, &key("a/b/"), &GetOptions::default()).unwrap().etag, made);
    assert_eq!(get(&store, &bucket, "a/b/"), Ok(Vec::new()));
    assert_eq!(get(&store, &bucket, "a/"), Err(ErrorKind::NoSuchKey));
    assert_eq!(get(&store, &bucket, "posix/"), Err(ErrorKind::NoSuchKey));

    // Creating and deleting objects in the directory does not change the object that the directory represents.
    put("a/b/c/d", b"x");
    fs::write(at.join("a/b/e"), "made by POSIX").unwrap();
    assert_eq!(keys(&store, &bucket), ["a/b/", "a/b/c/d", "a/b/e"]);
    delete("a/b/c/d");
    delete("a/b/e");
    assert_eq!(keys(&store, &bucket), ["a/b/"]);
    assert_eq!(store.head(&bucket, &key("a/b/"), &GetOptions::default()).unwrap().etag, made);

    // If an object whose key ends in a slash has content, the object is a file in the private area. A delete of the
    // object removes the directories that were created for it.
    put("a/b/", b"content");
    assert_eq!(get(&store, &bucket, "a/b/"), Ok(b"content".to_vec()));
    assert_eq!(keys(&store, &bucket), ["a/b/"]);
    delete("a/b/");
    assert_eq!(keys(&store, &bucket), [""; 0]);
    put("a/b/", b"");
    delete("a/b/");
    assert!(!at.join("a").exists());
    put("posix/", b"");
    delete("posix/");
    assert!(at.join("posix").is_dir());
}

/// An object without metadata is a file without a record. Metadata that is set later, and changes by POSIX programs,
/// take effect.
#[test]
fn an_object_without_more_to_say_is_a_bare_file() {
    let (dir, store, bucket) = open();
    let path = dir.path().join("root/bucket/k");
    let info = || store.head(&bucket, &key("k"), &GetOptions::default()).unwrap();
    let has_record = || rustix::fs::getxattr(&path, c"user.fordway", &mut [0; 512]).is_ok();
    let made = store.put(&bucket, &key("k"), b"bare", &PutOptions::default()).unwrap();
    assert_eq!((info().etag, info().modified), (made.etag.clone(), made.modified));
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7111, 0o1000);
    assert!(!has_record());

    // Without the mode bit that marks a bare file, the store looks for a record and finds none.
    mode(&path, 0o600);
    assert_eq!(info().etag, made.etag);
    fs::write(&path, "BARE").unwrap();
    assert_ne!(info().etag, made.etag);

    let made = store.put(&bucket, &key("k"), b"bare", &PutOptions::default()).unwrap();
    let tags = [("name".to_owned(), "value".to_owned())].into();
    store.set_tags(&bucket, &key("k"), None, &tags).unwrap();
    assert_eq!(store.tags(&bucket, &key("k"), None).unwrap(), tags);
    assert_eq!((info().etag, info().tag_count), (made.etag.clone(), 1));
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o1000, 0);
    assert!(has_record());
    let typed =
        BoxedMetadata::from(Metadata { content_type: Some("text/plain".into()), ..Default::default() });
    store.put(&bucket, &key("k"), b"more", &PutOptions { metadata: typed, ..Default::default() }).unwrap();
    assert_eq!(info().metadata.content_type.as_deref(), Some("text/plain"));
}

/// A gateway sends metadata in HTTP headers, so it could not serve an object whose metadata is not valid in a header.
#[test]
fn metadata_that_no_header_can_hold_is_refused() {
    let (_dir, store, bucket) = open();
    let named = |name: &str, value: &str| Metadata {
        user: [(name.to_owned(), value.to_owned())].into(),
        ..Default::default()
    };
    let typed = |value: &str| Metadata { content_type: Some(value.to_owned()), ..Default::default() };
    let cached = Metadata { cache_control: Some("no-store\n".to_owned()), ..Default::default() };
    store.put(&bucket, &key("from"), b"x", &PutOptions::default()).unwrap();
    let refused =
        [named("a b", ""), named("a:b", ""), named("", ""), named("\u{e9}", ""), typed("a\r\nb: c"), cached];
    for metadata in refused.map(BoxedMetadata::from) {
        let options = PutOptions { metadata: metadata.clone(), ..Default::default() };
        let copy = CopyOptions { metadata: Some(metadata), ..Default::default() };
        for done in [
            store.put(&bucket, &key("k"), b"x", &options).map(drop),
            store.writer(&bucket, &key("k"), &options).map(drop),
            store.create_upload(&bucket, &key("k"), &options).map(drop),
            store.copy((&bucket, &key("from")), &bucket, &key("k"), &copy).map(drop),
        ] {
            assert_eq!(done.map_err(|error| error.kind()), Err(ErrorKind::InvalidArgument), "{options:?}");
        }
    }
    for metadata in [named("a_B.9", "caf\u{e9}\r\nb"), typed("text/plain;\tcharset=\u{e9}")] {
        let options = PutOptions { metadata: metadata.into(), ..Default::default() };
        store.put(&bucket, &key("k"), b"x", &options).unwrap();
    }
}

/// A read whose range extends beyond the object is shortened, but a shortened part would remain undetected.
#[test]
fn a_copied_part_is_as_long_as_its_range() {
    let (_dir, store, bucket) = open();
    store.put(&bucket, &key("from"), &[7; 100], &PutOptions::default()).unwrap();
    let upload = store.create_upload(&bucket, &key("k"), &PutOptions::default()).unwrap();
    let copy = |first, last| {
        let range = GetOptions::range(ByteRange::Inclusive(first, last));
        let made = store.copy_part((&bucket, &key("from")), &range, (&bucket, &key("k"), &upload, 1));
        made.map(drop).map_err(|error| error.kind())
    };
    assert_eq!((copy(10, 99), copy(10, 100)), (Ok(()), Err(ErrorKind::InvalidRange)));
}

/// No two versions have the same ETag, even if inode numbers are reused immediately.
#[test]
fn tags_of_bare_objects_are_never_used_twice() {
    let (_dir, store, bucket) = open();
    let mut seen = HashSet::new();
    for round in 0..1000 {
        let tag = store.put(&bucket, &key("k"), b"same", &PutOptions::default()).unwrap().etag;
        assert!(seen.insert(tag.clone()), "{tag} in round {round}");
        if round % 3 == 0 {
            store.delete(&bucket, &key("k"), &DeleteOptions::default()).unwrap();
        }
    }
}

/// Anyone who may write to the bucket can take locks and stage files in it, regardless of the umask of the first
/// writer.
#[test]
fn what_is_ours_in_a_shared_bucket_is_shared() {
    let (dir, store, bucket) = open();
    let at = dir.path().join("root/bucket");
    mode(&at, 0o2775);
    for body in ["old", "new"] {
        store.put(&bucket, &key("k"), body.as_bytes(), &PutOptions::default()).unwrap();
    }
    store.put(&bucket, &key("a//b"), b"odd", &PutOptions::default()).unwrap();
    let mode_of = |below: &str| fs::metadata(at.join(".fordway").join(below)).unwrap().permissions().mode();
    for below in ["", "tmp", "odd"] {
        assert_eq!(mode_of(below) & 0o777, 0o775, "{below}");
    }
    // Users who may only read the bucket get no permission for its locks.
    assert_eq!(mode_of("locks") & 0o777, 0o660);
}

/// A file can have a time that does not fit into 64 bits when given in nanoseconds since 1970.
#[test]
fn a_file_from_the_far_future_is_an_object() {
    let (dir, store, bucket) = open();
    let path = dir.path().join("root/bucket/k");
    fs::write(&path, "made by POSIX").unwrap();
    let touched = Command::new("touch").args(["-d", "@12000000000"]).arg(&path).status().unwrap();
    assert!(touched.success());
    assert_eq!(get(&store, &bucket, "k"), Ok(b"made by POSIX".to_vec()));
    let info = store.head(&bucket, &key("k"), &GetOptions::default()).unwrap();
    assert!(info.modified > std::time::SystemTime::now());
    assert_eq!(keys(&store, &bucket), ["k"]);
}

/// A sparse file can be larger than memory: reading the whole file returns an error instead of killing the program.
#[test]
fn a_file_longer_than_memory_is_read_in_pieces_or_not_at_all() {
    let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    fs::create_dir(dir.path().join("bucket")).unwrap();
    let file = fs::File::create(dir.path().join("bucket/k")).unwrap();
    if file.set_len(1 << 62).is_err() {
        fordway_needs::skip("this file system does not support files of this size");
        return;
    }
    let store = PosixStore::open(dir.path(), PosixConfig::default()).unwrap();
    let (bucket, mut buffer) = (Bucket::new("bucket").unwrap(), Vec::new());
    let whole = store.read(&bucket, &key("k"), &GetOptions::default(), &mut buffer);
    assert_eq!(whole.expect_err("nobody has that much").kind(), ErrorKind::Io);
    let end = GetOptions::range(ByteRange::Last(3));
    assert_eq!(store.read(&bucket, &key("k"), &end, &mut buffer).unwrap(), 1 << 62);
    assert_eq!(buffer, [0; 3]);
}

/// Through a link to a directory, or a link to the file itself, one object has two keys. A rename or a copy from one of
/// these keys to the other must not remove the only file.
#[test]
fn what_two_keys_lead_to_is_not_lost() {
    let (dir, store, bucket) = open();
    let at = |below: &str| dir.path().join("root/bucket").join(below);
    fs::create_dir(at("real")).unwrap();
    fs::write(at("real/x"), "content").unwrap();
    symlink("real", at("alias")).unwrap();
    let rename = |from: &str, to: &str| {
        store.rename(&bucket, &key(from), &key(to), &RenameOptions::default()).map_err(|error| error.kind())
    };
    let copy = store.copy((&bucket, &key("real/x")), &bucket, &key("alias/x"), &CopyOptions::default());
    assert_eq!(copy.unwrap_err().kind(), ErrorKind::InvalidArgument);
    for (from, to) in [("real/x", "alias/x"), ("alias/x", "real/x")] {
        assert_eq!(rename(from, to), Err(ErrorKind::InvalidArgument), "{from} {to}");
        assert_eq!(get(&store, &bucket, "real/x").unwrap(), b"content");
    }
    symlink("real/x", at("link")).unwrap();
    rename("real/x", "link").unwrap();
    assert_eq!(get(&store, &bucket, "link").unwrap(), b"content");
    assert_eq!(keys(&store, &bucket), ["link"]);
    // Two hard links to one file are two entries. The rename leaves one entry.
    fs::hard_link(at("link"), at("hard")).unwrap();
    rename("link", "hard").unwrap();
    assert_eq!(keys(&store, &bucket), ["hard"]);
}

/// A name that is not an object does not prevent a rename to its key. A link to a directory stays, because objects may
/// have keys below it.
#[test]
fn a_rename_replaces_a_name_that_is_no_object() {
    let (dir, store, bucket) = open();
    let at = |below: &str| dir.path().join("root/bucket").join(below);
    fs::create_dir(at("real")).unwrap();
    for kind in ["fifo", "dangling link", "link to a directory"] {
        store.put(&bucket, &key("from"), kind.as_bytes(), &PutOptions::default()).unwrap();
        match kind {
            "fifo" => assert!(Command::new("mkfifo").arg(at(kind)).status().unwrap().success()),
            "dangling link" => symlink("missing", at(kind)).unwrap(),
            _ => symlink("real", at(kind)).unwrap(),
        }
        store.rename(&bucket, &key("from"), &key(kind), &RenameOptions::default()).unwrap();
        assert_eq!(get(&store, &bucket, kind).unwrap(), kind.as_bytes());
        assert_eq!(get(&store, &bucket, "from"), Err(ErrorKind::NoSuchKey));
        assert_eq!(at(kind).is_symlink(), kind == "link to a directory");
    }
    assert_eq!(keys(&store, &bucket), ["dangling link", "fifo", "link to a directory"]);
}

/// Two keys may share the in-process lock that excludes other threads.
#[test]
fn renames_do_not_deadlock() {
    let (_dir, store, bucket) = open();
    let pairs: Vec<_> = (0..600).map(|number| (format!("from/{number}"), format!("to/{number}"))).collect();
    for (from, _) in &pairs {
        store.put(&bucket, &key(from), b"x", &PutOptions::default()).unwrap();
    }
    let (next, begin) = (std::sync::atomic::AtomicUsize::new(0), std::time::Instant::now());
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                while let Some((from, to)) =
                    pairs.get(next.fetch_add(1, std::sync::atomic::Ordering::Relaxed))
                {
                    store.rename(&bucket, &key(from), &key(to), &RenameOptions::default()).unwrap();
                }
            });
        }
    });
    assert!(begin.elapsed() < std::time::Duration::from_secs(8), "{:?}", begin.elapsed());
}

/// If another program replaces the directory of a key while the object is being written, the object must be found under
/// its key after the put. The store keeps directories open for 10 ms.
#[test]
fn a_directory_that_is_replaced_during_a_put_does_not_take_the_object_along() {
    let held_for = std::time::Duration::from_millis(10);
    for has_old in [false, true] {
        for replacement in ["directory", "nothing", "file"] {
            let (dir, store, bucket) = open();
            let at = dir.path().join("root/bucket");
            fs::create_dir_all(at.join("dir")).unwrap();
            if has_old {
                store.put(&bucket, &key("dir/k"), b"old", &PutOptions::default()).unwrap();
            }
            let mut writer = store.writer(&bucket, &key("dir/k"), &PutOptions::default()).unwrap();
            writer.write(b"new").unwrap();
            fs::rename(at.join("dir"), at.join("away")).unwrap();
            match replacement {
                "directory" => fs::create_dir(at.join("dir")).unwrap(),
                "file" => fs::write(at.join("dir"), "x").unwrap(),
                _ => {}
            }
            thread::sleep(2 * held_for);
            writer.commit(&ExpectedContent::default()).unwrap();
            assert_eq!(get(&store, &bucket, "dir/k"), Ok(b"new".to_vec()), "{replacement}, {has_old}");
            assert_eq!(fs::read(at.join("away/k")).ok(), has_old.then(|| b"old".to_vec()), "{replacement}");
        }
    }
}

/// A copy is refused if another program writes to the source during the copy, even though the source keeps its name and
/// its inode number.
#[test]
fn a_source_that_changes_while_it_is_copied_is_refused() {
    let (dir, store, bucket) = open();
    let path = dir.path().join("root/bucket/source");
    fs::write(&path, vec![b'x'; 16 << 20]).unwrap();
    let copy = || {
        let copied = store.copy((&bucket, &key("source")), &bucket, &key("copy"), &CopyOptions::default());
        copied.map(drop).map_err(|error| error.kind())
    };
    let copy_part = || {
        let upload = store.create_upload(&bucket, &key("parts"), &PutOptions::default()).unwrap();
        let (from, to) = ((&bucket, &key("source")), (&bucket, &key("parts"), &upload, 1));
        store.copy_part(from, &GetOptions::default(), to).map(drop).map_err(|error| error.kind())
    };
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let file = fs::File::options().write(true).open(&path).unwrap();
            while !is_done.load(Ordering::Relaxed) {
                file.write_all_at(b"y", 0).unwrap();
                file.set_modified(SystemTime::now()).unwrap();
            }
        });
        let refused = |act: &dyn Fn() -> Result<(), ErrorKind>| {
            (0..1000).any(|_| act().is_err_and(|kind| kind == ErrorKind::ConditionalConflict))
        };
        let refused = (refused(&copy), refused(&copy_part));
        is_done.store(true, Ordering::Relaxed);
        assert_eq!(refused, (true, true));
    });
    assert_eq!((copy(), copy_part()), (Ok(()), Ok(())));
}
