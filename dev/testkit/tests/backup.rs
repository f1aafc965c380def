//! Copies a root as backup programs do, and checks the state of a store whose root has been replaced by a copy.

use std::fs;
use std::path::Path;
use std::process::Command;

use fordway_posix::{FindingSeverity, FsckEvent, FsckOptions, MigrationEvent, PosixConfig, PosixStore};
use fordway_store::{
    Bucket, ChecksumAlgorithm, CompleteOptions, CompletedPart, DeleteOptions, ETagPolicy, ExpectedContent,
    GetOptions, Key, MIN_PART_BYTES, Metadata, MultipartUploadOperations, ObjectTagOperations,
    ObjectVersionOperations, Objects, PartOptions, PutOptions, Tags, UploadId, VersioningState,
    VersionsQuery,
};

fn bucket(name: &str) -> Bucket {
    Bucket::new(name).unwrap()
}

fn key(name: &str) -> Key {
    Key::new(name).unwrap()
}

/// Returns tags that do not fit into an extended attribute.
fn many_tags() -> Tags {
    (0..10).map(|n| (format!("{n:0>100}"), "v".repeat(256))).collect()
}

/// The keys of the objects in the bucket `plain`. There are objects with an MD5, without an MD5, with a checksum, and
/// with a record in a sidecar file.
const KEYS: [&str; 8] = ["a/md5", "a/fast", "bare", "x//odd", "apart", "also-apart", "empty/", "summed"];

/// The unfinished upload in a root that contains every kind of data.
struct Original {
    upload: UploadId,
    parts: Vec<CompletedPart>,
}

impl Original {
    fn make(root: &Path) -> Self {
        let store = PosixStore::open(root, PosixConfig::default()).unwrap();
        let plain = bucket("plain");
        store.create_bucket(&plain).unwrap();
        for name in KEYS {
            let body = if name == "empty/" { "" } else { name };
            store.put(&plain, &key(name), body.as_bytes(), &options_of(name)).unwrap();
        }
        make_versions(&store);
        let upload = store.create_upload(&plain, &key("up"), &PutOptions::default()).unwrap();
        let parts = (1..=2).map(|number| put_part(&store, &upload, number)).collect();
        Original { upload, parts }
    }
}

fn options_of(name: &str) -> PutOptions {
    let mut options = PutOptions::default();
    match name {
        "a/md5" => options.etag_policy = Some(ETagPolicy::Md5),
        "a/fast" => {
            let metadata = Metadata { content_type: Some("text/x".to_owned()), ..Default::default() };
            options.metadata = metadata.into();
        }
        "summed" => options.checksum = Some(ChecksumAlgorithm::Sha256),
        "apart" | "also-apart" => {
            (options.tags, options.etag_policy) = (many_tags(), Some(ETagPolicy::Md5));
        }
        "x//odd" => options.tags = Tags::from([("name".to_owned(), "value".to_owned())]),
        _ => {}
    }
    options
}

fn make_versions(store: &PosixStore) {
    let versioned = bucket("versioned");
    store.create_bucket(&versioned).unwrap();
    store.set_versioning(&versioned, VersioningState::Enabled).unwrap();
    for name in ["k", "k//odd"] {
        for body in ["one", "two", "three"] {
            let options =
                PutOptions { etag_policy: Some(ETagPolicy::Md5), tags: many_tags(), ..Default::default() };
            store.put(&versioned, &key(name), body.as_bytes(), &options).unwrap();
        }
    }
    store.delete(&versioned, &key("k//odd"), &DeleteOptions::default()).unwrap();
}

/// Puts a part. All parts have the same length.
fn put_part(store: &PosixStore, upload: &UploadId, number: u16) -> CompletedPart {
    let options = PartOptions { size_hint: Some(MIN_PART_BYTES), ..Default::default() };
    let mut part = store.part_writer(&bucket("plain"), &key("up"), upload, number, &options).unwrap();
    part.write(&vec![number as u8; MIN_PART_BYTES as usize]).unwrap();
    CompletedPart { number, etag: part.commit(&ExpectedContent::default()).unwrap().etag, checksum: None }
}

/// Returns everything that S3 reports about the two buckets, except times and the ETag of the object `bare`.
fn told(store: &PosixStore) -> Vec<String> {
    let plain = bucket("plain");
    let tell = |name: &&str| {
        let info = store.head(&plain, &key(name), &GetOptions::default()).unwrap();
        let tags = store.tags(&plain, &key(name), None).unwrap();
        let etag = (*name != "bare").then_some(info.etag);
        let body = read(store, &plain, name);
        format!("{name} {etag:?} {:?} {:?} {tags:?} {body}", info.metadata, info.checksum)
    };
    let mut all: Vec<String> = KEYS.iter().map(tell).collect();
    let versioned = bucket("versioned");
    let versions = store.list_versions(&versioned, &VersionsQuery::default()).unwrap().versions;
    all.extend(versions.iter().map(|version| {
        let get = GetOptions::version(version.version.clone());
        let object = store.get(&versioned, &key(&version.key), &get).ok();
        let body = object.map(|object| object.content.into_vec().unwrap());
        let tags = store.tags(&versioned, &key(&version.key), Some(&version.version)).ok();
        format!("{} {:?} {} {body:?} {tags:?}", version.key, version.version, version.is_latest)
    }));
    all
}

fn read(store: &PosixStore, bucket: &Bucket, name: &str) -> String {
    let object = store.get(bucket, &key(name), &GetOptions::default()).unwrap();
    String::from_utf8(object.content.into_vec().unwrap()).unwrap()
}

/// Returns the findings of a check that are more severe than a note.
fn damage(store: &PosixStore) -> Vec<String> {
    let mut found = Vec::new();
    let options = FsckOptions { read: true, ..Default::default() };
    let checked = store.check(&options, &mut |event| {
        if let FsckEvent::Found(finding) = event
            && finding.kind.severity() != FindingSeverity::Note
        {
            found.push(format!("{} {}", finding.kind.name(), finding.path));
        }
        Ok(())
    });
    checked.unwrap();
    found
}

fn migrate(store: &PosixStore) -> Vec<&'static str> {
    let mut done = Vec::new();
    let migrated = store.migrate(&[], &mut |event| match event {
        MigrationEvent::Done(step) => {
            done.push(step.done);
            Ok(())
        }
        MigrationEvent::Failed(error) => Err(error),
    });
    migrated.unwrap();
    done
}

fn copy(command: &str, from: &Path, to: &Path) -> bool {
    let script = command.replace("FROM", from.to_str().unwrap()).replace("TO", to.to_str().unwrap());
    Command::new("bash").args(["-e", "-o", "pipefail", "-c", &script]).status().unwrap().success()
}

/// Returns whether the file system of the tests supports extended attributes. On other file systems, there are no
/// attributes to copy.
fn has_attributes(dir: &Path) -> bool {
    let file = fs::File::create(dir.join("probe")).unwrap();
    fordway_sys::set_xattr(&file, c"user.probe", b"1").is_ok()
}

/// Copies a root with `command`, migrates the copy, and compares the content of the copy with the original's content.
fn comes_back(program: &str, command: &str) {
    let dir = tempfile::tempdir().unwrap();
    if fordway_needs::program(program).is_none() {
        return;
    }
    if !has_attributes(dir.path()) {
        return fordway_needs::skip("the file system of temporary files has no attributes");
    }
    let (root, restored) = (dir.path().join("root"), dir.path().join("restored"));
    fs::create_dir(&root).unwrap();
    fs::create_dir(&restored).unwrap();
    let original = Original::make(&root);
    let before = told(&PosixStore::open(&root, PosixConfig::default()).unwrap());
    assert!(copy(command, &root, &restored));
    let store = PosixStore::open(&restored, PosixConfig::default()).unwrap();
    assert!(!damage(&store).is_empty(), "records kept apart are called by inodes, which are others now");
    let done = migrate(&store);
    assert!(done.contains(&"bound to its metadata again") && done.contains(&"written"), "{done:?}");
    assert_eq!(damage(&store), [""; 0]);
    assert_eq!(told(&store), before);
    assert_eq!(migrate(&store), [""; 0], "a second time there is nothing to do");
    // An upload that was started before the root was copied can be completed in the copied root.
    let mut parts = original.parts;
    parts.push(put_part(&store, &original.upload, 3));
    let complete = CompleteOptions::default();
    store.complete_upload(&bucket("plain"), &key("up"), &original.upload, &parts, &complete).unwrap();
    let body = read(&store, &bucket("plain"), "up");
    assert_eq!(body.len() as u64, 3 * MIN_PART_BYTES);
    assert!(body.bytes().enumerate().all(|(at, byte)| u64::from(byte) == at as u64 / MIN_PART_BYTES + 1));
}

#[test]
fn rsync_keeps_everything() {
    comes_back("rsync", "rsync -aHAX FROM/ TO/");
}

/// Returns tags that do not fit into an extended attribute, with one more tag.
fn many_tags_and(value: &str) -> Tags {
    let mut tags = many_tags();
    tags.pop_last();
    tags.insert("round".to_owned(), value.to_owned());
    tags
}

/// A root is copied each night to the same directory. A change of tags changes only the sidecar file, whose name in the
/// copy belongs to no object.
#[test]
fn a_repeated_copy_has_the_latest_tags() {
    let dir = tempfile::tempdir().unwrap();
    if fordway_needs::program("rsync").is_none() {
        return;
    }
    if !has_attributes(dir.path()) {
        return fordway_needs::skip("the file system of temporary files has no attributes");
    }
    let (root, copied) = (dir.path().join("root"), dir.path().join("copy"));
    fs::create_dir(&root).unwrap();
    fs::create_dir(&copied).unwrap();
    Original::make(&root);
    let plain = bucket("plain");
    let open = |path: &Path| PosixStore::open(path, PosixConfig::default()).unwrap();
    let tags = |path: &Path, name: &str| open(path).tags(&plain, &key(name), None).unwrap();
    for night in ["first", "second", "third"] {
        open(&root).set_tags(&plain, &key("apart"), None, &many_tags_and(night)).unwrap();
        assert!(copy("rsync -aHAX FROM/ TO/", &root, &copied));
        migrate(&open(&copied));
        assert_eq!(tags(&copied, "apart"), many_tags_and(night), "{night}");
        assert_eq!(tags(&copied, "also-apart"), many_tags(), "{night}");
        assert_eq!(migrate(&open(&copied)), [""; 0], "{night}: a second time there is nothing to do");
    }
    // A change in the copy itself is kept until the original changes.
    open(&copied).set_tags(&plain, &key("apart"), None, &many_tags_and("in the copy")).unwrap();
    migrate(&open(&copied));
    assert_eq!(tags(&copied, "apart"), many_tags_and("in the copy"));
}

/// A POSIX program copies an object with its attributes and times. The copy has its own tags from then on.
#[test]
fn a_migration_does_not_mix_up_an_object_and_its_copy() {
    let dir = tempfile::tempdir().unwrap();
    if !has_attributes(dir.path()) {
        return fordway_needs::skip("the file system of temporary files has no attributes");
    }
    let store = PosixStore::open(dir.path(), PosixConfig::default()).unwrap();
    let plain = bucket("plain");
    store.create_bucket(&plain).unwrap();
    store.put(&plain, &key("one"), b"one", &options_of("apart")).unwrap();
    assert!(copy("cp -a FROM/plain/one TO/plain/two", dir.path(), dir.path()));
    migrate(&store);
    store.set_tags(&plain, &key("two"), None, &many_tags_and("two")).unwrap();
    store.set_tags(&plain, &key("one"), None, &many_tags_and("one")).unwrap();
    migrate(&store);
    for name in ["one", "two"] {
        assert_eq!(store.tags(&plain, &key(name), None).unwrap(), many_tags_and(name), "{name}");
    }
}

#[test]
fn tar_with_attributes_keeps_everything() {
    let attributes = "--xattrs --xattrs-include='user.*'";
    comes_back("tar", &format!("tar {attributes} -C FROM -cf - . | tar {attributes} -C TO -xpf -"));
}

/// Copies a root without extended attributes and times. Keys and content are preserved, including old versions and
/// uploads. Metadata, tags and stored ETags are lost.
#[test]
fn a_plain_copy_keeps_content() {
    let dir = tempfile::tempdir().unwrap();
    let (root, restored) = (dir.path().join("root"), dir.path().join("restored"));
    fs::create_dir(&root).unwrap();
    let original = Original::make(&root);
    assert!(copy("cp -r FROM TO", &root, &restored));
    let store = PosixStore::open(&restored, PosixConfig::default()).unwrap();
    migrate(&store);
    assert_eq!(damage(&store), [""; 0]);
    let plain = bucket("plain");
    for name in KEYS.iter().filter(|name| **name != "empty/") {
        assert_eq!(read(&store, &plain, name), *name);
        assert_eq!(store.tags(&plain, &key(name), None).unwrap(), Tags::new());
        let info = store.head(&plain, &key(name), &GetOptions::default()).unwrap();
        assert!(info.metadata.is_empty() && info.etag.as_md5().is_none(), "{name}");
    }
    let versions = store.list_versions(&bucket("versioned"), &VersionsQuery::default()).unwrap().versions;
    // The latest version of `k` is now the version `null`. The delete marker and the old versions keep their IDs.
    assert_eq!(versions.iter().filter(|version| version.content.is_some()).count(), 6);
    assert_eq!(versions.iter().filter(|version| version.version.is_null()).count(), 1);
    let complete = CompleteOptions::default();
    store.complete_upload(&plain, &key("up"), &original.upload, &original.parts, &complete).unwrap();
    assert_eq!(read(&store, &plain, "up").len() as u64, 2 * MIN_PART_BYTES);
}

/// A root with a later format version is refused, with a message that contains the remedy. A root with the current
/// format version is opened.
#[test]
fn a_root_of_a_later_version_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let open = || PosixStore::open(dir.path(), PosixConfig::default());
    let format = dir.path().join(".fordway/format");
    migrate(&open().unwrap());
    assert_eq!(fs::read_to_string(&format).unwrap(), "fordway 2\n");
    open().unwrap();
    fs::write(&format, "fordway 3\n").unwrap();
    let error = open().map(drop).expect_err("it is of a later version");
    assert_eq!(error.kind(), fordway_store::ErrorKind::NotImplemented);
    assert!(error.to_string().contains("version 3") && error.to_string().contains("up to 2"), "{error}");
    fs::write(&format, "what?").unwrap();
    let error = open().map(drop).expect_err("it says nothing");
    assert_eq!(error.kind(), fordway_store::ErrorKind::Corrupt);
    fs::remove_file(&format).unwrap();
    std::os::unix::fs::symlink("/dev/zero", &format).unwrap();
    open().unwrap();
}
