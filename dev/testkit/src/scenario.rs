//! Operations that are tested with a fault at every step. A scenario consists of an initial state and an operation.
//! This module also takes snapshots of everything that is visible in the store.

use std::collections::{BTreeMap, BTreeSet};

use fordway_store::{
    BoxedMetadata, Bucket, CompleteOptions, CompletedPart, Conditions, CopyOptions, DeleteOptions, ETag,
    Error, ErrorKind, ExpectedContent, GetOptions, Key, ListQuery, MIN_PART_BYTES, Metadata, PartOptions,
    PutOptions, RenameOptions, Result, Store, UploadId, VersionSummary, VersioningState, VersionsQuery,
};

/// An operation, and the initial state of the bucket on which the operation runs.
pub struct OperationScenario {
    /// The name in messages.
    pub name: &'static str,
    /// The objects that are put before the operation, in this order. The content `DELETED` means that the object is
    /// deleted.
    before: &'static [(&'static str, &'static str)],
    /// The sizes of the parts of a multipart upload to the key `dir/k`, which are sent before the operation.
    parts: &'static [usize],
    /// The operation.
    pub act: fn(&dyn Store) -> Result<()>,
    /// The expected error of the operation, or `None` if it must succeed.
    pub refused: Option<ErrorKind>,
    /// Whether the bucket keeps versions. If so, the operation must not lose any version.
    pub keeps_versions: bool,
}

/// The properties of an object that a reader can see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectSnapshot {
    /// The object's content.
    pub body: Vec<u8>,
    etag: ETag,
    metadata: BoxedMetadata,
}

/// All objects of the bucket except [`NOTES`].
pub type BucketSnapshot = BTreeMap<String, ObjectSnapshot>;

/// The key of the object in which the client stores its notes on an upload. The key is not a path, so it does not
/// conflict with other keys.
const NOTES: &str = "notes//of the client";

/// In an initial state, this content means that the object is deleted.
const DELETED: &str = "\0";

/// All scenarios. The store's ETags must depend on the content only (policy MD5), so that two runs can be compared.
pub const SCENARIOS: &[OperationScenario] = &[
    OperationScenario::new("put a new key", &[("other", "x")], |store| put(store, "k", &new_value())),
    OperationScenario::new("put over a key", &[("k", "old")], |store| put(store, "k", &new_value())),
    OperationScenario::new("put into new directories", &[], |store| put(store, "a/b/c/k", &new_value())),
    OperationScenario::new("put a first key that is not a path", &[], |store| {
        put(store, "a//k", &new_value())
    }),
    OperationScenario::new("put over a key that is not a path", &[("a//k", "old")], |store| {
        put(store, "a//k", &new_value())
    }),
    OperationScenario::new("put a key next to its prefix", &[("a/b", "x")], |store| {
        put(store, "a", &new_value())
    }),
    OperationScenario::new("put a key below another", &[("a", "x")], |store| put(store, "a/b", &new_value())),
    OperationScenario::new("put over a key whose prefix is gone", HIDDEN_PLACE, |store| {
        put(store, "a", &new_value())
    }),
    OperationScenario::new("create a key", &[("other", "x")], |store| create(store, "dir/k")),
    OperationScenario::new("create a key next to its prefix", &[("a/b", "x")], |store| create(store, "a")),
    OperationScenario::new("create an existing key", &[("k", "old")], |store| create(store, "k"))
        .refused(ErrorKind::PreconditionFailed),
    OperationScenario::new("create an existing key, apart", HIDDEN_PLACE, |store| create(store, "a"))
        .refused(ErrorKind::PreconditionFailed),
    OperationScenario::new("replace the version that was read", &[("k", "old")], replace_if_same),
    OperationScenario::new("copy to a new key", &[("from", "source")], |store| copy(store, "from", "dir/to")),
    OperationScenario::new("copy over a key", &[("from", "source"), ("to", "old")], |store| {
        copy(store, "from", "to")
    }),
    OperationScenario::new("complete an upload", &[("dir/k", "old")], complete).parts(&[70_000]),
    OperationScenario::new("complete a large upload", &[], complete).parts(&[MIN_PART_BYTES as usize, 1000]),
    OperationScenario::new("create an upload", &[("other", "x")], |store| {
        store.create_upload(&bucket(), &key("dir/k"), &options()).map(drop)
    }),
    OperationScenario::new("send a part", &[("dir/k", "old")], send_part).parts(&[70_000]),
    OperationScenario::new("rename a key", &[("dir/from", "source"), ("other", "x")], |store| {
        rename(store, "dir/from", "new/to")
    }),
    OperationScenario::new("rename over a key", &[("from", "source"), ("a/to", LONG)], |store| {
        rename(store, "from", "a/to")
    }),
    OperationScenario::new("rename a key to one that is not a path", &[("from", "source")], |store| {
        rename(store, "from", "a//to")
    }),
    OperationScenario::new("rename over a key apart", HIDDEN_PLACE, |store| rename(store, "a", "a/b")),
    OperationScenario::new("delete and prune", &[("a/b/c/k", "old"), ("a/other", "x")], |store| {
        delete(store, "a/b/c/k")
    }),
    OperationScenario::new("delete a key that is not a path", &[("a//k", "old")], |store| {
        delete(store, "a//k")
    }),
    OperationScenario::new("delete a key with an older version apart", TWO_PLACES, |store| {
        delete(store, "a")
    }),
    OperationScenario::new("put over a key with long metadata", &[("k", LONG)], |store| {
        put(store, "k", format!("{LONG} and new").as_bytes())
    }),
    OperationScenario::new("delete a key with long metadata", &[("dir/k", LONG)], |store| {
        delete(store, "dir/k")
    }),
    OperationScenario::new("put a directory", &[("other", "x")], |store| put(store, "a/b/", b"")),
    OperationScenario::new("put over a directory", &[("a/", "")], |store| put(store, "a/", &new_value())),
    OperationScenario::new("put a key below a directory", &[("a/", "")], |store| {
        put(store, "a/b", &new_value())
    }),
    OperationScenario::new("delete a directory", &[("a/b/", ""), ("other", "x")], |store| {
        delete(store, "a/b/")
    }),
    OperationScenario::new("delete the last key of a directory", &[("a/", ""), ("a/b/c", "x")], |store| {
        delete(store, "a/b/c")
    }),
    OperationScenario::new("tag a key", &[("k", "old")], |store| {
        store.set_tags(&bucket(), &key("k"), None, &[("made-by".to_owned(), "a scenario".to_owned())].into())
    }),
    OperationScenario::new("put over a key and keep it", &[("k", "old")], |store| {
        put(store, "k", &new_value())
    })
    .keeping(),
    OperationScenario::new("put over a key apart and keep it", HIDDEN_PLACE, |store| {
        put(store, "a", &new_value())
    })
    .keeping(),
    OperationScenario::new("complete an upload and keep the old", &[("dir/k", "old")], complete)
        .parts(&[70_000])
        .keeping(),
    OperationScenario::new("delete a key and keep it", &[("a/k", "old")], |store| delete(store, "a/k"))
        .keeping(),
    OperationScenario::new("put a key that was deleted", &[("k", "old"), ("k", DELETED)], |store| {
        put(store, "k", &new_value())
    })
    .keeping(),
    OperationScenario::new("delete the latest version", &[("k", "old"), ("k", "new")], delete_latest)
        .keeping(),
    OperationScenario::new("delete a delete marker", &[("a/k", "old"), ("a/k", DELETED)], delete_latest)
        .keeping(),
];

/// The body of an object whose metadata is too large for an attribute.
const LONG: &str = "long";

/// An initial state in which the object `a` is not at its plain path. The path was occupied when `a` was written, and
/// is now free.
const HIDDEN_PLACE: &[(&str, &str)] = &[("a/b", "x"), ("a", "apart"), ("a/b", DELETED)];
/// An initial state like [`HIDDEN_PLACE`], but in which `a` was then written again. The older copy of `a` is hidden,
/// and must remain hidden.
const TWO_PLACES: &[(&str, &str)] = &[("a/b", "x"), ("a", "apart"), ("a/b", DELETED), ("a", "newer")];

impl OperationScenario {
    const fn new(
        name: &'static str,
        before: &'static [(&'static str, &'static str)],
        act: fn(&dyn Store) -> Result<()>,
    ) -> Self {
        OperationScenario { name, before, parts: &[], act, refused: None, keeps_versions: false }
    }

    /// Returns whether the scenario transfers so much data that only some tests run it.
    pub fn is_large(&self) -> bool {
        self.parts.iter().sum::<usize>() as u64 >= MIN_PART_BYTES
    }

    const fn parts(self, parts: &'static [usize]) -> Self {
        OperationScenario { parts, ..self }
    }

    const fn keeping(self) -> Self {
        OperationScenario { keeps_versions: true, ..self }
    }

    const fn refused(self, kind: ErrorKind) -> Self {
        OperationScenario { refused: Some(kind), ..self }
    }

    /// Creates the bucket and its initial content. Returns any error of the store.
    pub fn prepare(&self, store: &dyn Store) -> Result<()> {
        store.create_bucket(&bucket())?;
        if self.keeps_versions {
            store.set_versioning(&bucket(), VersioningState::Enabled)?;
        }
        for (name, value) in self.before {
            match *value {
                DELETED => delete(store, name)?,
                value => put(store, name, value.as_bytes())?,
            }
        }
        if self.parts.is_empty() {
            return Ok(());
        }
        let key = key("dir/k");
        let upload = store.create_upload(&bucket(), &key, &options())?;
        let mut notes = upload.as_str().to_owned();
        for (number, size) in (1..).zip(self.parts) {
            let mut writer = store.part_writer(&bucket(), &key, &upload, number, &PartOptions::default())?;
            writer.write(&vec![number as u8; *size])?;
            let made = writer.commit(&ExpectedContent::default())?;
            notes = format!("{notes}\n{}", made.etag.as_str());
        }
        put(store, NOTES, notes.as_bytes())
    }
}

/// Returns the bucket of all scenarios.
pub fn bucket() -> Bucket {
    Bucket::new("bucket").unwrap_or_else(|error| panic!("{error}"))
}

fn key(name: &str) -> Key {
    Key::new(name).unwrap_or_else(|error| panic!("{error}"))
}

/// Returns a value longer than one page, so that a torn object would be detected.
fn new_value() -> Vec<u8> {
    (0..70_000u32).map(|i| (i / 7) as u8).collect()
}

fn options() -> PutOptions {
    let user = [("made-by".to_owned(), "a scenario".to_owned())].into();
    let metadata = BoxedMetadata::from(Metadata {
        content_type: Some("text/x-test".to_owned()),
        user,
        ..Default::default()
    });
    PutOptions { metadata, ..Default::default() }
}

fn put(store: &dyn Store, name: &str, body: &[u8]) -> Result<()> {
    let mut options = options();
    if body.starts_with(LONG.as_bytes()) {
        options.metadata.user.insert("long".to_owned(), "x".repeat(5000));
    }
    store.put(&bucket(), &key(name), body, &options).map(drop)
}

fn delete_latest(store: &dyn Store) -> Result<()> {
    let latest = store.list_versions(&bucket(), &VersionsQuery::default())?.versions.into_iter().next();
    // The version exists, but listings omit versions that the caller may not read.
    let closed = || Error::from(ErrorKind::AccessDenied).during("list", "scenario", "bucket", "k");
    let latest = latest.ok_or_else(closed)?;
    let options = DeleteOptions { version: Some(latest.version), ..Default::default() };
    store.delete(&bucket(), &key(&latest.key), &options).map(drop)
}

fn create(store: &dyn Store, name: &str) -> Result<()> {
    let options = PutOptions { conditions: Conditions::create_only(), ..options() };
    store.put(&bucket(), &key(name), &new_value(), &options).map(drop)
}

fn replace_if_same(store: &dyn Store) -> Result<()> {
    let etag = store.head(&bucket(), &key("k"), &GetOptions::default())?.etag;
    let options = PutOptions { conditions: Conditions::only_if(etag), ..options() };
    store.put(&bucket(), &key("k"), &new_value(), &options).map(drop)
}

fn rename(store: &dyn Store, from: &str, to: &str) -> Result<()> {
    store.rename(&bucket(), &key(from), &key(to), &RenameOptions::default())
}

fn copy(store: &dyn Store, from: &str, to: &str) -> Result<()> {
    store.copy((&bucket(), &key(from)), &bucket(), &key(to), &CopyOptions::default()).map(drop)
}

fn delete(store: &dyn Store, name: &str) -> Result<()> {
    store.delete(&bucket(), &key(name), &DeleteOptions::default()).map(drop)
}

/// Sends another part of the upload, whose ID is in the client's notes.
fn send_part(store: &dyn Store) -> Result<()> {
    let notes = notes(store)?;
    let upload = UploadId::new(notes.lines().next().unwrap_or_default())?;
    let options = PartOptions::default();
    let mut writer = store.part_writer(&bucket(), &key("dir/k"), &upload, 2, &options)?;
    writer.write(&new_value())?;
    writer.commit(&ExpectedContent::default()).map(drop)
}

fn notes(store: &dyn Store) -> Result<String> {
    let notes = store.get(&bucket(), &key(NOTES), &GetOptions::default())?.content.into_vec()?;
    Ok(String::from_utf8_lossy(&notes).into_owned())
}

/// Completes the upload, whose ID and part ETags are in the client's notes.
fn complete(store: &dyn Store) -> Result<()> {
    let notes = notes(store)?;
    let mut lines = notes.lines();
    let upload = UploadId::new(lines.next().unwrap_or_default())?;
    let part = |(number, etag)| CompletedPart::new(number, ETag::new(etag));
    let parts: Vec<_> = (1..).zip(lines).map(part).collect();
    store.complete_upload(&bucket(), &key("dir/k"), &upload, &parts, &CompleteOptions::default()).map(drop)
}

/// Returns everything that a reader sees. Panics if the results of list, head and get are inconsistent.
pub fn snapshot(store: &dyn Store) -> BucketSnapshot {
    let listing = store.list(&bucket(), &ListQuery::default()).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(listing.next, None);
    let names = listing.entries.iter().map(|entry| entry.name()).filter(|name| *name != NOTES);
    names.map(|name| (name.to_owned(), seen(store, name))).collect()
}

fn seen(store: &dyn Store, name: &str) -> ObjectSnapshot {
    let object = store.get(&bucket(), &key(name), &GetOptions::default());
    let object = object.unwrap_or_else(|error| panic!("it is listed, but: {error}"));
    let info = object.info;
    let body = object.content.into_vec().unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(info.size, body.len() as u64, "{name}");
    let head = store.head(&bucket(), &key(name), &GetOptions::default());
    assert_eq!(head.as_ref().ok(), Some(&info), "{name}");
    let query = ListQuery { prefix: name.to_owned(), max_keys: 1, ..Default::default() };
    let listed = store.list(&bucket(), &query).unwrap_or_else(|error| panic!("{error}"));
    let listed = listed.entries.first().and_then(|entry| match entry {
        fordway_store::ListEntry::Object(object) => Some((object.key.as_str(), object.size, &object.etag)),
        _ => None,
    });
    assert_eq!(listed, Some((name, info.size, &info.etag)));
    ObjectSnapshot { body, etag: info.etag, metadata: info.metadata }
}

/// Returns the keys and contents of all readable versions. Panics if a listed version cannot be read.
pub fn versions(store: &dyn Store) -> BTreeSet<(String, Vec<u8>)> {
    let listing = store.list_versions(&bucket(), &VersionsQuery::default());
    let listing = listing.unwrap_or_else(|error| panic!("{error}"));
    let objects = listing.versions.into_iter().filter(|version| version.content.is_some());
    let read = |found: VersionSummary| {
        let object = store.get(&bucket(), &key(&found.key), &GetOptions::version(found.version));
        let body = object.and_then(|object| object.content.into_vec());
        (found.key, body.unwrap_or_else(|error| panic!("it is listed, but: {error}")))
    };
    objects.map(read).collect()
}

/// Checks that the store works: puts, reads and deletes each key of `shown` and two unused keys. Panics if a call
/// fails, or if objects remain after the deletes.
pub fn works(store: &dyn Store, shown: &BucketSnapshot) {
    for name in shown.keys().map(String::as_str).chain(["fresh/dir/key", "fresh//odd"]) {
        put(store, name, b"again").unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(seen(store, name).body, b"again", "{name}");
        delete(store, name).unwrap_or_else(|error| panic!("{error}"));
        let gone = store.head(&bucket(), &key(name), &GetOptions::default());
        assert_eq!(gone.map_err(|error| error.kind()), Err(ErrorKind::NoSuchKey), "{name}");
    }
    assert_eq!(snapshot(store).len(), 0);
}
