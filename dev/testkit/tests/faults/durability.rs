//! With durability enabled, all content (objects, and the files that describe them) is on stable storage before it gets
//! a name.

use fordway_posix::{Durability, PosixConfig, PosixStore};
use fordway_store::{
    Bucket, CompleteOptions, CompletedPart, CopyOptions, ExpectedContent, Key, MAX_TAGS, MIN_PART_BYTES,
    MultipartUploads, ObjectVersions, Objects, PartOptions, PutOptions, Result, Tags, VersioningState,
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

/// Returns options with more tags than an attribute can hold.
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
                "fdatasync" => (is_dirty, synced) = (false, synced + 1),
                "linkat" | "link_by_descriptor" | "renameat" => {
                    assert!(!is_dirty, "{name}: call {} of {calls:?}", at + 1);
                }
                _ => {}
            }
        }
        assert!(synced > 0, "{name}: {calls:?}");
    }
}
