//! Random operations, held against the store in memory.

use fordway_store::{
    Bucket, ByteRange, Conditions, CopyOptions, DeleteOptions, ErrorKind, GetOptions, Key, ListQuery,
    MemoryStore, PutOptions, Result, Store,
};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};

/// One operation on a bucket; keys are drawn from few, so that operations meet.
#[derive(Clone, Debug)]
pub enum Operation {
    /// Put so many bytes of a value.
    Put(Key, u8, usize),
    /// Put only if there is nothing.
    Create(Key, u8, usize),
    /// Get, whole or a range.
    Get(Key, Option<(u64, u64)>),
    /// Head.
    Head(Key),
    /// Delete.
    Delete(Key),
    /// Copy the first key to the second.
    Copy(Key, Key),
    /// List with prefix, delimiter, start and page size.
    List(String, bool, Option<String>, usize),
}

/// `cases` sequences, or as many as `PROPTEST_CASES` says. Failures are not kept in files: the input is printed.
pub fn config(cases: u32) -> ProptestConfig {
    let asked = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok());
    ProptestConfig { cases: asked.unwrap_or(cases), failure_persistence: None, ..ProptestConfig::default() }
}

/// Sequences of up to `max` operations.
pub fn operations(max: usize) -> impl Strategy<Value = Vec<Operation>> {
    proptest::collection::vec(operation(), 1..max)
}

/// `count` operations that follow from `seed`, for tests that run as several processes.
pub fn sequence(seed: u64, count: usize) -> Vec<Operation> {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let random = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(ProptestConfig::default(), random);
    let mut next = || operation().new_tree(&mut runner).unwrap_or_else(|why| panic!("{why}")).current();
    (0..count).map(|_| next()).collect()
}

impl Operation {
    /// The same operation on the keys that begin with `prefix`.
    pub fn below(self, prefix: &str) -> Self {
        let text = |text: String| format!("{prefix}{text}");
        let key = |key: Key| Key::new(text(key.to_string())).unwrap_or_else(|error| panic!("{error}"));
        match self {
            Operation::Put(k, value, len) => Operation::Put(key(k), value, len),
            Operation::Create(k, value, len) => Operation::Create(key(k), value, len),
            Operation::Get(k, range) => Operation::Get(key(k), range),
            Operation::Head(k) => Operation::Head(key(k)),
            Operation::Delete(k) => Operation::Delete(key(k)),
            Operation::Copy(from, to) => Operation::Copy(key(from), key(to)),
            Operation::List(within, roll_up, start, max) => {
                Operation::List(text(within), roll_up, start.map(text), max)
            }
        }
    }
}

fn operation() -> impl Strategy<Value = Operation> {
    let body = (any::<u8>(), prop_oneof![Just(0usize), 1..5000usize]);
    prop_oneof![
        4 => (key(), body.clone()).prop_map(|(key, (value, len))| Operation::Put(key, value, len)),
        1 => (key(), body).prop_map(|(key, (value, len))| Operation::Create(key, value, len)),
        2 => (key(), proptest::option::of((0..3000u64, 0..3000u64))).prop_map(|(key, range)| Operation::Get(key, range)),
        1 => key().prop_map(Operation::Head),
        3 => key().prop_map(Operation::Delete),
        1 => (key(), key()).prop_map(|(from, to)| Operation::Copy(from, to)),
        2 => (text(), any::<bool>(), proptest::option::of(text()), 0..6usize)
            .prop_map(|(prefix, roll_up, start, max)| Operation::List(prefix, roll_up, start, max)),
    ]
}

/// Short texts of the letters that matter to paths, so that prefixes and conflicts are common.
fn text() -> impl Strategy<Value = String> {
    proptest::collection::vec(prop_oneof![Just("a"), Just("b"), Just("/"), Just("."), Just("ä")], 0..6)
        .prop_map(|parts| parts.concat())
}

fn key() -> impl Strategy<Value = Key> {
    text().prop_filter_map("a key is not empty", |text| Key::new(text).ok())
}

/// What an operation answered, as far as all stores must agree.
#[derive(Debug, PartialEq)]
enum Answer {
    Done,
    Bytes(Vec<u8>),
    Size(u64),
    Names(Vec<String>, Option<String>),
    Failed(ErrorKind),
}

/// Runs `operations` on `store` (empty) and on the model, and panics where they differ.
pub fn check(store: &dyn Store, operations: &[Operation]) {
    let bucket = Bucket::new("model").unwrap_or_else(|error| panic!("{error}"));
    store.create_bucket(&bucket).unwrap_or_else(|error| panic!("{error}"));
    Follower::new(bucket).follow(store, operations);
}

/// A model that goes along with a bucket, or with the part of it that nobody else touches.
pub struct Follower {
    model: MemoryStore,
    bucket: Bucket,
    done: usize,
}

impl Follower {
    /// Of `bucket`, in which the operations to come find nothing yet.
    pub fn new(bucket: Bucket) -> Self {
        let model = MemoryStore::default();
        model.create_bucket(&bucket).unwrap_or_else(|error| panic!("{error}"));
        Follower { model, bucket, done: 0 }
    }

    /// Runs `operations` on `store` and on the model, and panics where they differ.
    pub fn follow(&mut self, store: &dyn Store, operations: &[Operation]) {
        for operation in operations {
            let found = answer(store, &self.bucket, operation);
            let wanted = answer(&self.model, &self.bucket, operation);
            assert_eq!(found, wanted, "operation {}, {operation:?}", self.done);
            self.done += 1;
        }
    }
}

fn answer(store: &dyn Store, bucket: &Bucket, operation: &Operation) -> Answer {
    run(store, bucket, operation).unwrap_or_else(|error| Answer::Failed(error.kind()))
}

fn run(store: &dyn Store, bucket: &Bucket, operation: &Operation) -> Result<Answer> {
    match operation {
        Operation::Put(key, value, len) => {
            store.put(bucket, key, &vec![*value; *len], &PutOptions::default()).map(|_| Answer::Done)
        }
        Operation::Create(key, value, len) => {
            let options = PutOptions { conditions: Conditions::create_only(), ..Default::default() };
            store.put(bucket, key, &vec![*value; *len], &options).map(|_| Answer::Done)
        }
        Operation::Get(key, range) => {
            let range = range.map(|(first, more)| ByteRange::Inclusive(first, first + more));
            let object = store.get(bucket, key, &GetOptions { range, ..Default::default() })?;
            object.content.into_vec().map(Answer::Bytes)
        }
        Operation::Head(key) => {
            store.head(bucket, key, &GetOptions::default()).map(|info| Answer::Size(info.size))
        }
        Operation::Delete(key) => store.delete(bucket, key, &DeleteOptions::default()).map(|()| Answer::Done),
        Operation::Copy(from, to) => {
            store.copy((bucket, from), bucket, to, &CopyOptions::default()).map(|_| Answer::Done)
        }
        Operation::List(prefix, roll_up, start, max_keys) => {
            let query = ListQuery {
                prefix: prefix.clone(),
                delimiter: roll_up.then(|| "/".to_owned()),
                start_after: start.clone(),
                max_keys: *max_keys,
            };
            let page = store.list(bucket, &query)?;
            let names = page.entries.iter().map(|entry| entry.name().to_owned()).collect();
            Ok(Answer::Names(names, page.next))
        }
    }
}
