//! Compares the results of random operations with the results of the in-memory store.

use fordway_store::{
    Bucket, ByteRange, Conditions, CopyOptions, DeleteOptions, Error, ErrorKind, GetOptions, Key, ListQuery,
    MemoryStore, Objects, PutOptions, Result, Store, Tags, VersionListing, VersionSummary, VersioningState,
    VersionsQuery,
};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};

/// One operation on a bucket. The operations of a sequence use few keys, so that they conflict.
#[derive(Clone, Debug)]
pub enum ModelOperation {
    /// Put an object that consists of this byte, repeated this many times.
    Put(Key, u8, usize),
    /// Like `Put`, but only if there is no object.
    Create(Key, u8, usize),
    /// Get the whole object, or a range. The range is given as its first byte and the number of bytes after this byte.
    Get(Key, Option<(u64, u64)>),
    /// Get the size of the object with HEAD.
    Head(Key),
    /// Delete the object.
    Delete(Key),
    /// Copy the first key to the second.
    Copy(Key, Key),
    /// List with prefix, delimiter, start and page size.
    List(String, bool, Option<String>, usize),
    /// Enable or suspend versioning.
    Versioning(bool),
    /// List all pages of versions with prefix, delimiter and page size.
    ListVersions(String, bool, usize),
    /// Act on the version at this position in a list of all versions.
    Version(usize, VersionOperation),
    /// Replace the tags of a key with this many new tags.
    Tag(Key, usize),
}

/// An operation on a version.
#[derive(Clone, Copy, Debug)]
pub enum VersionOperation {
    /// Get the version.
    Get,
    /// Delete the version permanently.
    Delete,
    /// Copy the version over the latest version.
    Restore,
    /// Replace the version's tags with this many new tags, and read them.
    Tag(usize),
}

/// Returns the configuration for `cases` sequences, or for the number of sequences in `PROPTEST_CASES` if this variable
/// is set. Failures are printed, not stored in files.
pub fn config(cases: u32) -> ProptestConfig {
    let asked = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok());
    ProptestConfig { cases: asked.unwrap_or(cases), failure_persistence: None, ..ProptestConfig::default() }
}

/// Generates sequences of fewer than `max` operations.
pub fn operations(max: usize) -> impl Strategy<Value = Vec<ModelOperation>> {
    proptest::collection::vec(operation(), 1..max)
}

/// Generates sequences of up to `max` operations. The first operation enables versioning, and later operations may
/// suspend and enable it.
pub fn versioned_operations(max: usize) -> impl Strategy<Value = Vec<ModelOperation>> {
    let version = prop_oneof![
        3 => Just(VersionOperation::Get),
        3 => Just(VersionOperation::Delete),
        1 => Just(VersionOperation::Restore),
        1 => (0..4usize).prop_map(VersionOperation::Tag),
    ];
    let one = prop_oneof![
        6 => operation(),
        1 => any::<bool>().prop_map(ModelOperation::Versioning),
        2 => (text(), any::<bool>(), 1..6usize).prop_map(|(prefix, roll_up, max)| ModelOperation::ListVersions(prefix, roll_up, max)),
        4 => (0..12usize, version).prop_map(|(at, act)| ModelOperation::Version(at, act)),
        1 => (key(), 0..4usize).prop_map(|(key, count)| ModelOperation::Tag(key, count)),
    ];
    proptest::collection::vec(one, 1..max).prop_map(|mut all| {
        all.insert(0, ModelOperation::Versioning(true));
        all
    })
}

/// Returns the `count` operations generated from `seed`, for tests that run as several processes.
pub fn sequence(seed: u64, count: usize) -> Vec<ModelOperation> {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let random = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(ProptestConfig::default(), random);
    let mut next = || operation().new_tree(&mut runner).unwrap_or_else(|why| panic!("{why}")).current();
    (0..count).map(|_| next()).collect()
}

impl ModelOperation {
    /// Returns the same operation on keys with `prefix` prepended.
    pub fn below(self, prefix: &str) -> Self {
        let text = |text: String| format!("{prefix}{text}");
        let key = |key: Key| Key::new(text(key.to_string())).unwrap_or_else(|error| panic!("{error}"));
        match self {
            ModelOperation::Put(k, value, len) => ModelOperation::Put(key(k), value, len),
            ModelOperation::Create(k, value, len) => ModelOperation::Create(key(k), value, len),
            ModelOperation::Get(k, range) => ModelOperation::Get(key(k), range),
            ModelOperation::Head(k) => ModelOperation::Head(key(k)),
            ModelOperation::Delete(k) => ModelOperation::Delete(key(k)),
            ModelOperation::Copy(from, to) => ModelOperation::Copy(key(from), key(to)),
            ModelOperation::List(within, roll_up, start, max) => {
                ModelOperation::List(text(within), roll_up, start.map(text), max)
            }
            ModelOperation::Tag(k, count) => ModelOperation::Tag(key(k), count),
            of_the_bucket => of_the_bucket,
        }
    }
}

fn operation() -> impl Strategy<Value = ModelOperation> {
    let body = (any::<u8>(), prop_oneof![Just(0usize), 1..5000usize]);
    prop_oneof![
        4 => (key(), body.clone()).prop_map(|(key, (value, len))| ModelOperation::Put(key, value, len)),
        1 => (key(), body).prop_map(|(key, (value, len))| ModelOperation::Create(key, value, len)),
        2 => (key(), proptest::option::of((0..3000u64, 0..3000u64))).prop_map(|(key, range)| ModelOperation::Get(key, range)),
        1 => key().prop_map(ModelOperation::Head),
        3 => key().prop_map(ModelOperation::Delete),
        1 => (key(), key()).prop_map(|(from, to)| ModelOperation::Copy(from, to)),
        2 => (text(), any::<bool>(), proptest::option::of(text()), 0..6usize)
            .prop_map(|(prefix, roll_up, start, max)| ModelOperation::List(prefix, roll_up, start, max)),
    ]
}

/// Generates short strings of characters that matter in paths, so that prefixes and conflicts are common.
fn text() -> impl Strategy<Value = String> {
    proptest::collection::vec(prop_oneof![Just("a"), Just("b"), Just("/"), Just("."), Just("ä")], 0..6)
        .prop_map(|parts| parts.concat())
}

fn key() -> impl Strategy<Value = Key> {
    text().prop_filter_map("a key is not empty", |text| Key::new(text).ok())
}

/// The part of an operation's result that must be equal in all stores.
#[derive(Debug, PartialEq)]
enum ModelOutcome {
    Done,
    Bytes(Vec<u8>),
    Size(u64),
    Names(Vec<String>, Option<String>),
    /// The versions and the common prefixes. Each version consists of its key, whether it is the latest version,
    /// whether its ID is `null`, and its size.
    Versions(Vec<(String, bool, bool, Option<u64>)>, Vec<String>),
    Tags(Tags, usize),
    Failed(ErrorKind),
}

/// Runs `operations` on `store`, which must be empty, and on the model. Panics if a result differs.
pub fn check(store: &dyn Store, operations: &[ModelOperation]) {
    let bucket = Bucket::new("model").unwrap_or_else(|error| panic!("{error}"));
    store.create_bucket(&bucket).unwrap_or_else(|error| panic!("{error}"));
    BucketReferenceModel::new(bucket).follow(store, operations);
}

/// A reference model of a bucket, or of the part of a bucket that no other client changes.
pub struct BucketReferenceModel {
    model: MemoryStore,
    bucket: Bucket,
    done: usize,
}

impl BucketReferenceModel {
    /// Creates a model of `bucket`, which must not contain any objects that the operations would see.
    pub fn new(bucket: Bucket) -> Self {
        let model = MemoryStore::default();
        model.create_bucket(&bucket).unwrap_or_else(|error| panic!("{error}"));
        BucketReferenceModel { model, bucket, done: 0 }
    }

    /// Runs `operations` on `store` and on the model. Panics if a result differs.
    pub fn follow(&mut self, store: &dyn Store, operations: &[ModelOperation]) {
        for operation in operations {
            let found = answer(store, &self.bucket, operation);
            let wanted = answer(&self.model, &self.bucket, operation);
            assert_eq!(found, wanted, "operation {}, {operation:?}", self.done);
            self.done += 1;
        }
    }
}

fn answer(store: &dyn Store, bucket: &Bucket, operation: &ModelOperation) -> ModelOutcome {
    run(store, bucket, operation).unwrap_or_else(|error| ModelOutcome::Failed(error.kind()))
}

fn run(store: &dyn Store, bucket: &Bucket, operation: &ModelOperation) -> Result<ModelOutcome> {
    match operation {
        ModelOperation::Put(key, value, len) => {
            store.put(bucket, key, &vec![*value; *len], &PutOptions::default()).map(|_| ModelOutcome::Done)
        }
        ModelOperation::Create(key, value, len) => {
            let options = PutOptions { conditions: Conditions::create_only(), ..Default::default() };
            store.put(bucket, key, &vec![*value; *len], &options).map(|_| ModelOutcome::Done)
        }
        ModelOperation::Get(key, range) => {
            let range = range.map(|(first, more)| ByteRange::Inclusive(first, first + more));
            let object = store.get(bucket, key, &GetOptions { range, ..Default::default() })?;
            object.content.into_vec().map(ModelOutcome::Bytes)
        }
        ModelOperation::Head(key) => {
            store.head(bucket, key, &GetOptions::default()).map(|info| ModelOutcome::Size(info.size))
        }
        ModelOperation::Delete(key) => {
            store.delete(bucket, key, &DeleteOptions::default()).map(|_| ModelOutcome::Done)
        }
        ModelOperation::Copy(from, to) => {
            store.copy((bucket, from), bucket, to, &CopyOptions::default()).map(|_| ModelOutcome::Done)
        }
        ModelOperation::List(prefix, roll_up, start, max_keys) => {
            let query = ListQuery {
                prefix: prefix.clone(),
                delimiter: roll_up.then(|| "/".to_owned()),
                start_after: start.clone(),
                max_keys: *max_keys,
            };
            let page = store.list(bucket, &query)?;
            let names = page.entries.iter().map(|entry| entry.name().to_owned()).collect();
            Ok(ModelOutcome::Names(names, page.next))
        }
        ModelOperation::Versioning(keep) => {
            let versioning = if *keep { VersioningState::Enabled } else { VersioningState::Suspended };
            store.set_versioning(bucket, versioning).map(|()| ModelOutcome::Done)
        }
        ModelOperation::ListVersions(prefix, roll_up, max_keys) => {
            let delimiter = roll_up.then(|| "/".to_owned());
            let query = VersionsQuery {
                prefix: prefix.clone(),
                delimiter,
                max_keys: *max_keys,
                ..Default::default()
            };
            let all = all_versions(store, bucket, query)?;
            let shown = |version: &VersionSummary| {
                let size = version.content.as_ref().map(|(size, _)| *size);
                (version.key.clone(), version.is_latest, version.version.is_null(), size)
            };
            Ok(ModelOutcome::Versions(all.versions.iter().map(shown).collect(), all.prefixes))
        }
        ModelOperation::Version(at, act) => {
            let all = all_versions(store, bucket, VersionsQuery::default())?.versions;
            all.get(*at).map_or(Ok(ModelOutcome::Done), |version| on_version(store, bucket, version, *act))
        }
        ModelOperation::Tag(key, count) => {
            store.set_tags(bucket, key, None, &tags(*count))?;
            Ok(ModelOutcome::Tags(
                store.tags(bucket, key, None)?,
                store.head(bucket, key, &GetOptions::default())?.tag_count,
            ))
        }
    }
}

fn on_version(
    store: &dyn Store,
    bucket: &Bucket,
    of: &VersionSummary,
    act: VersionOperation,
) -> Result<ModelOutcome> {
    let key = Key::new(of.key.as_str())?;
    let version = of.version.clone();
    match act {
        VersionOperation::Get => {
            let object = store.get(bucket, &key, &GetOptions::version(version))?;
            object.content.into_vec().map(ModelOutcome::Bytes)
        }
        VersionOperation::Delete => {
            let options = DeleteOptions { version: Some(version), ..Default::default() };
            let deleted = store.delete(bucket, &key, &options)?;
            Ok(ModelOutcome::Size(u64::from(deleted.is_marker)))
        }
        VersionOperation::Restore => {
            let options = CopyOptions { source_version: Some(version), ..Default::default() };
            store.copy((bucket, &key), bucket, &key, &options).map(|_| ModelOutcome::Done)
        }
        VersionOperation::Tag(count) => {
            store.set_tags(bucket, &key, Some(&version), &tags(count))?;
            let found = store.head(bucket, &key, &GetOptions::version(version.clone()))?.tag_count;
            Ok(ModelOutcome::Tags(store.tags(bucket, &key, Some(&version))?, found))
        }
    }
}

fn tags(count: usize) -> Tags {
    (0..count).map(|number| (format!("name {number}"), "ä=&".repeat(number))).collect()
}

/// Lists all pages and joins them.
fn all_versions(store: &dyn Store, bucket: &Bucket, mut query: VersionsQuery) -> Result<VersionListing> {
    let mut all = VersionListing::default();
    loop {
        let page = store.list_versions(bucket, &query)?;
        if page.versions.len() + page.prefixes.len() > query.max_keys {
            return Err(Error::new(ErrorKind::Internal, "a page is too long"));
        }
        all.versions.extend(page.versions);
        all.prefixes.extend(page.prefixes);
        let Some((key, version)) = page.next else { return Ok(all) };
        (query.key_after, query.version_after) = (Some(key), version);
    }
}
