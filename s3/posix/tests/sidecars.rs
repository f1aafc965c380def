//! Tests sidecar files in three cases: objects are replaced while other objects reuse their inode numbers, POSIX
//! programs change objects, and a root is copied.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, SystemTime};

use fordway_posix::{FsckEvent, FsckOptions, PosixConfig, PosixStore};
use fordway_store::{
    Bucket, CopyOptions, ETagPolicy, ErrorKind, GetOptions, Key, MAX_TAGS, Metadata, ObjectTagOperations,
    Objects, PutOptions, Tags,
};
use tempfile::TempDir;

/// Returns tags that do not fit into an attribute.
fn many_tags() -> Tags {
    (0..MAX_TAGS).map(|n| (format!("{n:0>100}"), "v".repeat(256))).collect()
}

/// A store with an object `k` whose record is in a sidecar file.
struct Apart {
    dir: TempDir,
    store: PosixStore,
    bucket: Bucket,
    key: Key,
}

impl Apart {
    fn new() -> Self {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let store = PosixStore::open(dir.path(), PosixConfig::default()).unwrap();
        let (bucket, key) = (Bucket::new("bucket").unwrap(), Key::new("k").unwrap());
        store.create_bucket(&bucket).unwrap();
        let metadata = Metadata { content_type: Some("text/x".into()), ..Metadata::default() };
        let options = PutOptions {
            tags: many_tags(),
            metadata: metadata.into(),
            etag_policy: Some(ETagPolicy::Md5),
            ..PutOptions::default()
        };
        store.put(&bucket, &key, b"content", &options).unwrap();
        let apart = Apart { dir, store, bucket, key };
        assert!(apart.sidecar().exists());
        apart
    }

    fn file(&self) -> PathBuf {
        self.dir.path().join("bucket/k")
    }

    fn sidecar(&self) -> PathBuf {
        let inode = self.file().metadata().unwrap().ino();
        self.dir.path().join(format!("bucket/.fordway/meta/{inode:016x}"))
    }

    /// Gives the sidecar file another name, as in a copy of a root, in which files have other inode numbers.
    fn lose_sidecar(&self) {
        let sidecar = self.sidecar();
        fs::rename(&sidecar, sidecar.with_file_name(format!("{:016x}", 1))).unwrap();
    }

    fn touch(&self) {
        let file = OpenOptions::new().write(true).open(self.file()).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(1000)).unwrap();
    }

    /// Returns the object's content type and tags, and whether its ETag is an MD5.
    fn description(&self) -> (Option<String>, Tags, bool) {
        let info = self.store.head(&self.bucket, &self.key, &GetOptions::default()).unwrap();
        let tags = self.store.tags(&self.bucket, &self.key, None).unwrap();
        assert_eq!(info.tag_count, tags.len());
        (info.metadata.content_type.clone(), tags, !info.etag.as_str().contains('-'))
    }

    fn findings(&self) -> Vec<&'static str> {
        let mut found = Vec::new();
        let mut tell = |event: FsckEvent<'_>| {
            if let FsckEvent::Found(finding) = event {
                found.push(finding.kind.name());
            }
            Ok(())
        };
        self.store.check(&FsckOptions::default(), &mut tell).unwrap();
        found
    }
}

#[test]
fn a_changed_file_keeps_its_metadata_and_tags() {
    let apart = Apart::new();
    let (kind, tags) = (Some("text/x".to_owned()), many_tags());
    assert_eq!(apart.description(), (kind.clone(), tags.clone(), true));
    apart.touch();
    assert_eq!(apart.description(), (kind.clone(), tags.clone(), false), "after `touch`");
    let mut file = OpenOptions::new().append(true).open(apart.file()).unwrap();
    file.write_all(b" and more").unwrap();
    drop(file);
    assert_eq!(apart.description(), (kind.clone(), tags.clone(), false), "after `>>`");
    assert_eq!(apart.findings(), ["changed"]);
    // Changed tags are stored in the sidecar file, which stays valid when the file changes once more.
    let tags: Tags = tags.into_iter().map(|(name, value)| (name, value.replace('v', "w"))).collect();
    apart.store.set_tags(&apart.bucket, &apart.key, None, &tags).unwrap();
    assert_eq!(apart.description(), (kind.clone(), tags.clone(), false));
    apart.touch();
    assert_eq!(apart.description(), (kind.clone(), tags.clone(), false));
    // The tags now fit into the attribute.
    let one = Tags::from([("a".to_owned(), "b".to_owned())]);
    apart.store.set_tags(&apart.bucket, &apart.key, None, &one).unwrap();
    assert_eq!(apart.description(), (kind, one, false));
}

/// An overwrite removes the sidecar file of the old content. A reader that has opened the old content then reads the
/// new one, instead of the old one without its metadata and tags.
#[test]
fn readers_see_metadata_and_tags_while_the_object_is_overwritten() {
    let apart = Apart::new();
    let metadata = Metadata { content_type: Some("text/x".into()), ..Metadata::default() };
    let options = PutOptions { tags: many_tags(), metadata: metadata.into(), ..PutOptions::default() };
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for _ in 0..1_000 {
                apart.store.put(&apart.bucket, &apart.key, b"again", &options).unwrap();
            }
        });
        while !writer.is_finished() {
            let object = apart.store.get(&apart.bucket, &apart.key, &GetOptions::default()).unwrap();
            assert_eq!(object.info.metadata.content_type.as_deref(), Some("text/x"));
            assert_eq!(object.info.tag_count, many_tags().len());
            assert_eq!(apart.store.tags(&apart.bucket, &apart.key, None).unwrap().len(), many_tags().len());
        }
    });
}

#[test]
fn a_sidecar_file_of_another_object_is_not_used() {
    let apart = Apart::new();
    let sidecar = fs::read(apart.sidecar()).unwrap();
    apart.store.put(&apart.bucket, &apart.key, b"another", &PutOptions::default()).unwrap();
    let options = PutOptions { tags: many_tags(), ..PutOptions::default() };
    apart.store.put(&apart.bucket, &apart.key, b"third", &options).unwrap();
    fs::write(apart.sidecar(), sidecar).unwrap();
    assert_eq!(apart.description().1, Tags::new());
    assert_eq!(apart.findings(), ["record-missing"]);
    apart.touch();
    assert_eq!(apart.description().1, Tags::new());
    assert_eq!(apart.findings(), ["changed"]);
}

/// Earlier versions of `gc` removed the sidecar file of an object if a POSIX program had changed the object's file.
#[test]
fn a_changed_file_without_a_sidecar_file_is_an_ordinary_object() {
    let apart = Apart::new();
    let Apart { store, bucket, key, .. } = &apart;
    fs::remove_file(apart.sidecar()).unwrap();
    assert_eq!(apart.findings(), ["record-missing"]);
    assert!(is_refused(store.set_tags(bucket, key, None, &Tags::new())));
    apart.touch();
    assert_eq!(apart.findings(), ["changed"]);
    let copy = Key::new("copy").unwrap();
    store.copy((bucket, key), bucket, &copy, &CopyOptions::default()).unwrap();
    assert_eq!(store.tags(bucket, &copy, None).unwrap(), Tags::new());
    let one = Tags::from([("a".to_owned(), "b".to_owned())]);
    store.set_tags(bucket, key, None, &one).unwrap();
    assert_eq!(apart.description(), (None, one, false));
    assert_eq!(apart.findings(), Vec::<&str>::new());
}

/// Returns whether an operation was refused because the object's metadata is missing.
fn is_refused<T: std::fmt::Debug>(done: fordway_store::Result<T>) -> bool {
    done.is_err_and(|error| {
        error.kind() == ErrorKind::MethodNotAllowed
            && error.to_string().contains("fordway fsck ROOT --migrate")
    })
}

#[test]
fn a_missing_sidecar_file_is_not_made_up_for() {
    let apart = Apart::new();
    let Apart { store, bucket, key, .. } = &apart;
    apart.lose_sidecar();
    let (one, copy) = (Tags::from([("a".to_owned(), "b".to_owned())]), Key::new("copy").unwrap());
    let copied = |options: &CopyOptions| store.copy((bucket, key), bucket, &copy, options);
    assert!(is_refused(store.set_tags(bucket, key, None, &one)));
    assert!(is_refused(store.set_tags(bucket, key, None, &Tags::new())));
    assert!(is_refused(copied(&CopyOptions::default())));
    let with_tags = CopyOptions { tags: Some(one.clone()), ..CopyOptions::default() };
    assert!(is_refused(copied(&with_tags)));
    let with_both = CopyOptions { metadata: Some(Metadata::default().into()), ..with_tags };
    copied(&with_both).unwrap();
    assert_eq!(store.tags(bucket, &copy, None).unwrap(), one);
    // A migration also finds the sidecar file of an object that was changed after the root was copied.
    apart.touch();
    assert!(is_refused(store.set_tags(bucket, key, None, &one)));
    assert_eq!(apart.findings(), ["record-missing"]);
    store.migrate(&[], &mut |_| Ok(())).unwrap();
    assert_eq!(apart.description(), (Some("text/x".to_owned()), many_tags(), false));
    assert_eq!(apart.findings(), ["changed"]);
    copied(&CopyOptions::default()).unwrap();
    assert_eq!(store.tags(bucket, &copy, None).unwrap(), many_tags());
    store.set_tags(bucket, key, None, &one).unwrap();
    store.migrate(&[], &mut |_| Ok(())).unwrap();
    assert_eq!(store.tags(bucket, key, None).unwrap(), one);
}

/// Each of four stores replaces its own objects, whose new files reuse inode numbers that the other stores have just
/// freed. If the file system does not reuse inode numbers (tmpfs), the test proves nothing.
#[test]
fn an_inode_that_is_used_again_keeps_its_record() {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let bucket = Bucket::new("bucket").unwrap();
    PosixStore::open(dir.path(), PosixConfig::default()).unwrap().create_bucket(&bucket).unwrap();
    let tags = many_tags();
    thread::scope(|scope| {
        for number in 0..4 {
            let (dir, bucket, tags) = (&dir, &bucket, &tags);
            scope.spawn(move || {
                let store = PosixStore::open(dir.path(), PosixConfig::default()).unwrap();
                let key = Key::new(format!("k{number}")).unwrap();
                let options = PutOptions { tags: tags.clone(), ..Default::default() };
                for round in 0..1500 {
                    store.put(bucket, &key, b"body", &options).unwrap();
                    let info = store.head(bucket, &key, &GetOptions::default()).unwrap();
                    assert_eq!(info.tag_count, MAX_TAGS, "thread {number}, round {round}");
                }
            });
        }
    });
}
