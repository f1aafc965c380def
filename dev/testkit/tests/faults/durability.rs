//! Tests durability. If durability is enabled, all content (objects, and the files that describe them) is on stable
//! storage before it gets a name. At `full`, every change of names, records and settings is on stable storage when the
//! call returns.

use fordway_posix::{Durability, PosixConfig, PosixStore};
use fordway_store::{
    Bucket, BucketDocumentKind, BucketDocumentOperations, CompleteOptions, CompletedPart, CopyOptions,
    DeleteOptions, ExpectedContent, Key, LockConfiguration, MAX_TAGS, MIN_PART_BYTES,
    MultipartUploadOperations, ObjectLockOperations, ObjectTagOperations, ObjectVersionOperations, Objects,
    PartOptions, PutOptions, Result, Tags, VersionId, VersioningState, VersionsQuery,
};
use fordway_sys::fault::{self, FaultInjectionPlan};

fn bucket() -> Bucket {
    Bucket::new("bucket").unwrap()
}

fn key(key: &str) -> Key {
    Key::new(key).unwrap()
}

fn put(store: &PosixStore, name: &str, options: &PutOptions) -> Result<()> {
    store.put(&bucket(), &key(name), b"content", options).map(drop)
}

/// Returns options with more tags than an extended attribute can contain.
fn long() -> PutOptions {
    let tags: Tags = (0..MAX_TAGS).map(|n| (format!("{n:0>100}"), "v".repeat(256))).collect();
    PutOptions { tags, ..Default::default() }
}

fn upload(store: &PosixStore) -> Result<()> {
    let id = store.create_upload(&bucket(), &key("parts"), &PutOptions::default())?;
    let options = PartOptions { size_hint: Some(MIN_PART_BYTES), ..Default::default() };
    let mut parts = Vec::new();
    for number in [1, 2, 2] {
        let mut writer = store.part_writer(&bucket(), &key("parts"), &id, number, &options)?;
        writer.write(&vec![7; MIN_PART_BYTES as usize])?;
        parts.push(CompletedPart::new(number, writer.commit(&ExpectedContent::default())?.etag));
    }
    parts.remove(1);
    store.complete_upload(&bucket(), &key("parts"), &id, &parts, &CompleteOptions::default()).map(drop)
}

type Act = fn(&PosixStore) -> Result<()>;

const ACTS: &[(&str, Act)] = &[
    ("put", |store| put(store, "dir/k", &PutOptions::default())),
    ("put over", |store| put(store, "dir/k", &PutOptions::default())),
    ("put with long metadata", |store| put(store, "long", &long())),
    ("copy", |store| {
        store.copy((&bucket(), &key("long")), &bucket(), &key("copy"), &CopyOptions::default()).map(drop)
    }),
    ("upload", upload),
    ("keep versions", |store| store.set_versioning(&bucket(), VersioningState::Enabled)),
    ("keep no more versions", |store| store.set_versioning(&bucket(), VersioningState::Suspended)),
];

#[test]
fn nothing_is_named_before_it_is_on_stable_storage() {
    let dir = tempfile::tempdir().unwrap();
    let config = PosixConfig { durability: Durability::Data, ..PosixConfig::default() };
    let store = PosixStore::open(dir.path(), config).unwrap();
    store.create_bucket(&bucket()).unwrap();
    for (name, act) in ACTS {
        let (done, calls) = fault::run(FaultInjectionPlan::default(), || act(&store));
        done.unwrap_or_else(|error| panic!("{name}: {error}"));
        let (mut is_dirty, mut synced) = (false, 0);
        for (at, call) in calls.iter().enumerate() {
            match *call {
                "pwrite" | "copy_file_range" => is_dirty = true,
                "fdatasync" | "fsync" => (is_dirty, synced) = (false, synced + 1),
                "linkat" | "link_by_descriptor" | "renameat" => {
                    assert!(!is_dirty, "{name}: call {} of {calls:?}", at + 1);
                }
                _ => {}
            }
        }
        assert!(synced > 0, "{name}: {calls:?}");
    }
}

/// The name of an operation, the operation, and the minimum number of files and directories that it must sync.
type SyncedAct = (&'static str, Act, usize);

fn delete(store: &PosixStore, name: &str, version: Option<VersionId>) -> Result<()> {
    store.delete(&bucket(), &key(name), &DeleteOptions { version, ..Default::default() }).map(drop)
}

fn set_tags(store: &PosixStore, tags: &Tags) -> Result<()> {
    store.set_tags(&bucket(), &key("dir/k"), None, tags)
}

fn cors() -> BucketDocumentKind {
    BucketDocumentKind::new("cors").unwrap()
}

/// Each put syncs the content and the directory. If an old version is kept, it first gets a name in another directory,
/// which is also synced.
const FULL: &[SyncedAct] = &[
    ("put below new directories", |store| put(store, "dir/below/k", &PutOptions::default()), 4),
    ("put", |store| put(store, "dir/k", &PutOptions::default()), 2),
    ("put over", |store| put(store, "dir/k", &PutOptions::default()), 2),
    ("set tags", |store| set_tags(store, &Tags::from([("a".into(), "b".into())])), 1),
    ("set long tags", |store| set_tags(store, &long().tags), 3),
    (
        "make a directory an object",
        |store| store.put(&bucket(), &key("marked/"), b"", &PutOptions::default()).map(drop),
        3,
    ),
    ("remove a directory", |store| delete(store, "marked/", None), 1),
    ("set a document", |store| store.set_document(&bucket(), &cors(), b"x"), 2),
    ("remove a document", |store| store.delete_document(&bucket(), &cors()), 1),
    ("upload", upload, 10),
    ("keep versions", |store| store.set_versioning(&bucket(), VersioningState::Enabled), 2),
    ("keep a version", |store| put(store, "dir/k", &PutOptions::default()), 5),
    ("keep another version", |store| put(store, "dir/k", &PutOptions::default()), 3),
    ("hide", |store| delete(store, "dir/k", None), 3),
    ("show again", |store| delete(store, "dir/k", newest(store)), 2),
    ("make the one before the latest", |store| delete(store, "dir/k", newest(store)), 1),
    (
        "set a lock",
        |store| {
            store.set_lock_configuration(&bucket(), &LockConfiguration::default())?;
            store.set_legal_hold(&bucket(), &key("dir/k"), None, true)
        },
        3,
    ),
];

fn newest(store: &PosixStore) -> Option<VersionId> {
    let query = VersionsQuery { prefix: "dir/k".to_owned(), ..VersionsQuery::default() };
    Some(store.list_versions(&bucket(), &query).unwrap().versions[0].version.clone())
}

/// The test cannot determine which directories a call changes. The test therefore counts the syncs, and checks that at
/// least one sync follows the last change.
#[test]
fn at_full_every_change_is_synced() {
    let dir = tempfile::tempdir().unwrap();
    let config = PosixConfig { durability: Durability::Full, ..PosixConfig::default() };
    let store = PosixStore::open(dir.path(), config).unwrap();
    store.create_bucket(&bucket()).unwrap();
    for (name, act, least) in FULL {
        let (done, calls) = fault::run(FaultInjectionPlan::default(), || act(&store));
        done.unwrap_or_else(|error| panic!("{name}: {error}"));
        let is_sync = |call: &&str| ["fsync", "fdatasync"].contains(call);
        let is_change = |call: &&str| {
            let names = ["linkat", "link_by_descriptor", "mkdirat", "renameat", "renameat_with"];
            names.contains(call) || ["fsetxattr", "fremovexattr"].contains(call)
        };
        let synced = calls.iter().filter(|call| is_sync(call)).count();
        assert!(synced >= *least, "{name}: {synced} of {least} in {calls:?}");
        // After other changes, a removal only cleans up.
        let last_change = calls.iter().rposition(is_change);
        let last_change = last_change.or_else(|| calls.iter().rposition(|call| *call == "unlinkat"));
        let last_sync = calls.iter().rposition(is_sync);
        assert!(last_change.is_some() && last_sync > last_change, "{name}: {calls:?}");
    }
}

/// The length of a file with holes can be on disk before its content. The copy of such a file must not have a valid
/// ETag and zeros as its content after a power cut.
#[test]
fn a_copy_with_holes_is_on_stable_storage_before_it_has_a_name() {
    let dir = crate::way::scratch();
    let store = PosixStore::open(dir.path(), PosixConfig::default()).unwrap();
    store.create_bucket(&bucket()).unwrap();
    for (name, hole_bytes, is_synced) in [("sparse", 4 << 20, true), ("whole", 0, false)] {
        let path = dir.path().join("bucket").join(name);
        std::fs::write(&path, vec![1; 1 << 20]).unwrap();
        std::fs::File::options().write(true).open(&path).unwrap().set_len((1 << 20) + hole_bytes).unwrap();
        let copy = || {
            let to = key(&format!("copy of {name}"));
            store.copy((&bucket(), &key(name)), &bucket(), &to, &CopyOptions::default()).map(drop)
        };
        let (copied, calls) = fault::run(FaultInjectionPlan::default(), copy);
        copied.unwrap();
        let named = calls.iter().position(|call| call.starts_with("link")).unwrap();
        assert_eq!(calls[..named].contains(&"fdatasync"), is_synced, "{name}: {calls:?}");
    }
}
