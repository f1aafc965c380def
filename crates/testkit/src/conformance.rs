//! The one truth about what a [`Store`] does. Every case is a function of an empty store, so a new
//! lane is tested by one line: `conformance_suite!(open_my_store())`.

use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fordway_store::{
    Bucket, ByteRange, Checksum, ChecksumAlgorithm, CompletedPart, Conditions, CopyOptions, DeleteOptions,
    ETag, ETagMatch, ETagPolicy, Error, ErrorKind, Expected, GetOptions, Key, ListQuery, Listing,
    MIN_PART_BYTES, Metadata, PartOptions, PartsQuery, PutOptions, PutResult, Result, Store, UploadId,
    UploadsQuery,
};

/// A store to test, with whatever must live as long as it does.
pub struct Fixture {
    store: Arc<dyn Store>,
    _keep: Box<dyn std::any::Any>,
}

impl Fixture {
    /// `keep` is dropped after the test: a temporary directory, a server.
    pub fn new(store: impl Store + 'static, keep: impl std::any::Any) -> Self {
        Fixture { store: Arc::new(store), _keep: Box::new(keep) }
    }
}

impl Deref for Fixture {
    type Target = dyn Store;

    fn deref(&self) -> &Self::Target {
        &*self.store
    }
}

/// Declares one test for every case, each on a store that `$open` makes anew.
#[macro_export]
macro_rules! conformance_suite {
    ($open:expr) => {
        $crate::conformance_suite! { @list declare ($open) }
    };
    (@list $rule:ident $open:tt) => {
        $crate::conformance_suite! { @$rule $open;
            buckets_are_made_listed_and_removed, bucket_names_are_checked, a_missing_bucket_is_named,
            a_bucket_with_objects_stays, put_get_head_delete, overwriting_replaces_everything, empty_objects,
            large_objects_stream, an_abandoned_writer_leaves_nothing, metadata_round_trips, ranges,
            ranges_outside_are_refused, deleting_nothing_succeeds, many_are_deleted, keys_that_are_paths,
            keys_that_are_no_paths, long_keys, a_key_beside_its_own_prefix, a_prefix_beside_its_own_key,
            listing_is_in_byte_order, listing_pages_join, listing_rolls_up, listing_with_start_after,
            listing_says_what_head_says, etags_follow_the_policy, wrong_digests_publish_nothing,
            checksums_are_kept, create_only, replace_only_if, delete_only_if, conditional_reads, copy_keeps_all,
            copy_replaces_metadata, copy_conditions, copy_onto_itself, multipart_makes_one_object, multipart_of_uniform_parts, multipart_outlives_a_failed_completion,
            multipart_refuses_what_does_not_fit, multipart_parts_are_listed, multipart_part_is_replaced,
            multipart_abort, multipart_copies_parts, multipart_etag_is_that_of_s3, racing_creators_have_one_winner
        }
    };
    (@declare ($open:expr); $($case:ident),* $(,)?) => {
        $(#[test]
        fn $case() {
            let fixture: $crate::conformance::Fixture = $open;
            $crate::conformance::$case(&*fixture);
        })*

        /// A case that is written but not declared would never run.
        #[test]
        fn every_case_is_declared() {
            assert_eq!([$(stringify!($case)),*].len(), $crate::conformance::cases_written());
        }
    };
    (@run ($open:expr); $($case:ident),* $(,)?) => {{
        let cases: &[Case] = &[$((stringify!($case), $case)),*];
        run_cases(cases, $open)
    }};
}

/// Runs every case on a store of its own and returns how many there are; for fixtures that are too
/// costly to make for each test, such as a file system. Panics with the names of those that failed.
pub fn run_all(open: &dyn Fn() -> Fixture) -> usize {
    conformance_suite! { @list run (open) }
}

/// A case and its name.
type Case = (&'static str, fn(&dyn Store));

fn run_cases(cases: &[Case], open: &dyn Fn() -> Fixture) -> usize {
    let fails = |case: fn(&dyn Store)| catch_unwind(AssertUnwindSafe(|| case(&*open()))).is_err();
    let failed: Vec<_> = cases.iter().filter(|(_, case)| fails(*case)).map(|(name, _)| name).collect();
    assert!(failed.is_empty(), "{} of {} cases failed: {failed:?}", failed.len(), cases.len());
    cases.len()
}

/// The number of cases in this file.
pub fn cases_written() -> usize {
    include_str!("conformance.rs").lines().filter(|line| line.ends_with("(store: &dyn Store) {")).count()
}

fn bucket(store: &dyn Store) -> Bucket {
    let bucket = Bucket::new("conformance").unwrap();
    store.create_bucket(&bucket).unwrap();
    bucket
}

fn key(key: &str) -> Key {
    Key::new(key).unwrap()
}

fn put(store: &dyn Store, bucket: &Bucket, name: &str, body: &[u8]) -> PutResult {
    store.put(bucket, &key(name), body, &PutOptions::default()).unwrap()
}

fn get(store: &dyn Store, bucket: &Bucket, name: &str) -> Result<Vec<u8>> {
    store.get(bucket, &key(name), &GetOptions::default())?.content.into_vec()
}

fn head(store: &dyn Store, bucket: &Bucket, name: &str) -> Result<fordway_store::ObjectInfo> {
    store.head(bucket, &key(name), &GetOptions::default())
}

fn delete(store: &dyn Store, bucket: &Bucket, name: &str) {
    store.delete(bucket, &key(name), &DeleteOptions::default()).unwrap();
}

fn names(listing: &Listing) -> Vec<&str> {
    listing.entries.iter().map(|entry| entry.name()).collect()
}

fn all_keys(store: &dyn Store, bucket: &Bucket) -> Vec<String> {
    let listing = store.list(bucket, &ListQuery::default()).unwrap();
    assert_eq!(listing.next, None);
    listing.entries.iter().map(|entry| entry.name().to_owned()).collect()
}

#[track_caller]
fn assert_kind<T>(result: Result<T>, kind: ErrorKind) -> Error {
    let error = result.err().unwrap_or_else(|| panic!("this should have failed with {kind:?}"));
    assert_eq!(error.kind(), kind, "{error}");
    error
}

/// Bytes that differ from one offset and one seed to the next.
fn bytes(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..len).map(|_| next()).collect()
}

/// A bucket appears in the list, once, and is gone when it was removed.
pub fn buckets_are_made_listed_and_removed(store: &dyn Store) {
    let names = ["zeta", "alpha", "Mid_dle"].map(|name| Bucket::new(name).unwrap());
    names.iter().for_each(|name| store.create_bucket(name).unwrap());
    let listed: Vec<_> = store.list_buckets().unwrap().into_iter().map(|info| info.name).collect();
    assert_eq!(listed, ["Mid_dle", "alpha", "zeta"].map(|name| Bucket::new(name).unwrap()));
    assert_kind(store.create_bucket(&names[0]), ErrorKind::BucketAlreadyOwnedByYou);
    let created = store.list_buckets().unwrap()[0].created;
    let age = SystemTime::now().duration_since(created).unwrap_or_default();
    assert!(age < Duration::from_secs(600), "{age:?}");
    assert_eq!(store.head_bucket(&names[0]).unwrap().name, names[0]);
    store.delete_bucket(&names[0]).unwrap();
    assert_kind(store.head_bucket(&names[0]), ErrorKind::NoSuchBucket);
    assert_eq!(store.list_buckets().unwrap().len(), 2);
}

/// Names that S3 does not allow for new buckets are refused.
pub fn bucket_names_are_checked(store: &dyn Store) {
    for name in ["ab", &"x".repeat(64)] {
        assert_kind(store.create_bucket(&Bucket::new(name).unwrap()), ErrorKind::InvalidBucketName);
    }
    assert!(store.list_buckets().unwrap().is_empty());
}

/// Every call on a bucket that is not there says that it is the bucket that is missing.
pub fn a_missing_bucket_is_named(store: &dyn Store) {
    let (none, k) = (Bucket::new("none").unwrap(), key("a/b"));
    assert_kind(store.head_bucket(&none), ErrorKind::NoSuchBucket);
    assert_kind(store.delete_bucket(&none), ErrorKind::NoSuchBucket);
    assert_kind(store.put(&none, &k, b"x", &PutOptions::default()), ErrorKind::NoSuchBucket);
    assert_kind(store.get(&none, &k, &GetOptions::default()), ErrorKind::NoSuchBucket);
    assert_kind(store.delete(&none, &k, &DeleteOptions::default()), ErrorKind::NoSuchBucket);
    assert_kind(store.list(&none, &ListQuery::default()), ErrorKind::NoSuchBucket);
    assert_kind(store.create_upload(&none, &k, &PutOptions::default()), ErrorKind::NoSuchBucket);
    assert_kind(store.list_uploads(&none, &UploadsQuery::default()), ErrorKind::NoSuchBucket);
    let mut buffer = Vec::new();
    assert_kind(store.read(&none, &k, &GetOptions::default(), &mut buffer), ErrorKind::NoSuchBucket);
}

/// A bucket is removed only when no object is in it.
pub fn a_bucket_with_objects_stays(store: &dyn Store) {
    let b = bucket(store);
    for name in ["deep/down/below", "odd//key"] {
        put(store, &b, name, b"x");
        assert_kind(store.delete_bucket(&b), ErrorKind::BucketNotEmpty);
        assert_eq!(get(store, &b, name).unwrap(), b"x");
        delete(store, &b, name);
    }
    store.delete_bucket(&b).unwrap();
}

/// The four calls of everyday life, and what each says when there is nothing.
pub fn put_get_head_delete(store: &dyn Store) {
    let b = bucket(store);
    let before = SystemTime::now() - Duration::from_secs(3);
    let made = put(store, &b, "dir/file.txt", b"hello");
    assert_eq!(get(store, &b, "dir/file.txt").unwrap(), b"hello");
    let info = head(store, &b, "dir/file.txt").unwrap();
    assert_eq!((info.size, &info.etag), (5, &made.etag));
    assert!(info.modified >= before && info.modified <= SystemTime::now() + Duration::from_secs(3));
    assert!(info.metadata.user.is_empty());
    let mut buffer = b"something longer from before".to_vec();
    let read = store.read(&b, &key("dir/file.txt"), &GetOptions::default(), &mut buffer).unwrap();
    assert_eq!((buffer.as_slice(), read), (&b"hello"[..], 5));
    delete(store, &b, "dir/file.txt");
    for name in ["dir/file.txt", "dir", "dir/", "never"] {
        assert_kind(get(store, &b, name), ErrorKind::NoSuchKey);
    }
    let missing = store.read(&b, &key("dir/file.txt"), &GetOptions::default(), &mut buffer);
    assert_kind(missing, ErrorKind::NoSuchKey);
    assert!(all_keys(store, &b).is_empty());
}

/// A second put leaves nothing of the first.
pub fn overwriting_replaces_everything(store: &dyn Store) {
    let b = bucket(store);
    let user = [("a".to_owned(), "1".to_owned())].into();
    let options = PutOptions { metadata: Metadata { user, ..Default::default() }, ..Default::default() };
    let first = store.put(&b, &key("k"), &bytes(100_000, 1), &options).unwrap();
    let second = put(store, &b, "k", b"short");
    assert_ne!(first.etag, second.etag);
    assert_eq!(get(store, &b, "k").unwrap(), b"short");
    let info = head(store, &b, "k").unwrap();
    assert!(info.metadata.user.is_empty());
    assert_eq!((info.size, info.etag), (5, second.etag));
    assert_eq!(all_keys(store, &b), ["k"]);
}

/// An object of no bytes is an object.
pub fn empty_objects(store: &dyn Store) {
    let b = bucket(store);
    put(store, &b, "empty", b"");
    assert_eq!(get(store, &b, "empty").unwrap(), b"");
    assert_eq!(head(store, &b, "empty").unwrap().size, 0);
    assert_eq!(all_keys(store, &b), ["empty"]);
    let options = GetOptions::range(ByteRange::Inclusive(0, 0));
    assert_kind(store.get(&b, &key("empty"), &options), ErrorKind::InvalidRange);
}

/// Many writes make one object, of exactly those bytes, and it streams out again.
pub fn large_objects_stream(store: &dyn Store) {
    let b = bucket(store);
    let body = bytes(20_000_003, 7);
    let mut writer = store.writer(&b, &key("big"), &PutOptions::default()).unwrap();
    body.chunks(777_777).for_each(|chunk| writer.write(chunk).unwrap());
    assert_kind(get(store, &b, "big"), ErrorKind::NoSuchKey);
    let size = Some(body.len() as u64);
    writer.commit(&Expected { size, ..Default::default() }).unwrap();
    let mut seen = Vec::new();
    let object = store.get(&b, &key("big"), &GetOptions::default()).unwrap();
    assert_eq!((object.info.size, object.range), (body.len() as u64, 0..body.len() as u64));
    object
        .content
        .for_each_chunk(|chunk| {
            seen.extend_from_slice(chunk);
            Ok(())
        })
        .unwrap();
    assert!(seen == body);
}

/// What is not committed was never there.
pub fn an_abandoned_writer_leaves_nothing(store: &dyn Store) {
    let b = bucket(store);
    put(store, &b, "old", b"old");
    for name in ["old", "new"] {
        let mut writer = store.writer(&b, &key(name), &PutOptions::default()).unwrap();
        writer.write(&bytes(100_000, 1)).unwrap();
        drop(writer);
    }
    assert_eq!(all_keys(store, &b), ["old"]);
    assert_eq!(get(store, &b, "old").unwrap(), b"old");
    delete(store, &b, "old");
    store.delete_bucket(&b).unwrap();
}

/// Headers and user metadata come back as they were given.
pub fn metadata_round_trips(store: &dyn Store) {
    let b = bucket(store);
    let text = |text: &str| Some(text.to_owned());
    let user = [("colour", "blue"), ("x-long", &"v".repeat(1000)), ("spaced", "a  b;c=\"d\"")]
        .map(|(name, value)| (name.to_owned(), value.to_owned()));
    let metadata = Metadata {
        content_type: text("text/x-test; charset=utf-8"),
        content_encoding: text("zstd"),
        content_language: text("de"),
        content_disposition: text("attachment; filename=\"x y.txt\""),
        cache_control: text("max-age=60"),
        expires: text("Thu, 01 Dec 2033 16:00:00 GMT"),
        user: user.into(),
    };
    let options = PutOptions { metadata: metadata.clone(), ..Default::default() };
    store.put(&b, &key("k"), b"x", &options).unwrap();
    assert_eq!(head(store, &b, "k").unwrap().metadata, metadata);
    assert_eq!(store.get(&b, &key("k"), &GetOptions::default()).unwrap().info.metadata, metadata);
}

/// Ranges of all three kinds, at both ends.
pub fn ranges(store: &dyn Store) {
    let b = bucket(store);
    let body = bytes(100_000, 3);
    put(store, &b, "k", &body);
    for (range, wanted) in [
        (ByteRange::From(0), 0..100_000),
        (ByteRange::From(99_999), 99_999..100_000),
        (ByteRange::Inclusive(0, 0), 0..1),
        (ByteRange::Inclusive(10, 19), 10..20),
        (ByteRange::Inclusive(99_990, 200_000), 99_990..100_000),
        (ByteRange::Last(1), 99_999..100_000),
        (ByteRange::Last(200_000), 0..100_000),
    ] {
        let object = store.get(&b, &key("k"), &GetOptions::range(range)).unwrap();
        assert_eq!(
            (object.range.clone(), object.info.size),
            (wanted.start as u64..wanted.end as u64, 100_000)
        );
        assert_eq!(object.content.into_vec().unwrap(), &body[wanted.clone()], "{range:?}");
        let mut buffer = Vec::new();
        let size = store.read(&b, &key("k"), &GetOptions::range(range), &mut buffer).unwrap();
        assert_eq!((size, buffer.as_slice()), (100_000, &body[wanted]), "{range:?}");
    }
}

/// A range with no byte of the object in it is an error, not an empty answer.
pub fn ranges_outside_are_refused(store: &dyn Store) {
    let b = bucket(store);
    put(store, &b, "k", b"0123456789");
    for range in [ByteRange::From(10), ByteRange::Inclusive(10, 20), ByteRange::Last(0)] {
        assert_kind(store.get(&b, &key("k"), &GetOptions::range(range)), ErrorKind::InvalidRange);
    }
}

/// Removing what is not there succeeds, and harms nothing beside it.
pub fn deleting_nothing_succeeds(store: &dyn Store) {
    let b = bucket(store);
    put(store, &b, "a/b", b"x");
    for name in ["none", "a", "a/", "a/b/c", "a/b/", "a//b"] {
        delete(store, &b, name);
    }
    assert_eq!(all_keys(store, &b), ["a/b"]);
}

/// One call removes many; each has its own result.
pub fn many_are_deleted(store: &dyn Store) {
    let b = bucket(store);
    let keys: Vec<Key> = (0..1100).map(|i| key(&format!("d{}/k{i}", i % 7))).collect();
    for k in &keys[..20] {
        store.put(&b, k, b"x", &PutOptions::default()).unwrap();
    }
    put(store, &b, "stays", b"x");
    let results = store.delete_many(&b, &keys);
    assert_eq!(results.len(), keys.len());
    assert!(results.iter().all(Result::is_ok));
    assert_eq!(all_keys(store, &b), ["stays"]);
}

#[track_caller]
fn round_trip(store: &dyn Store, b: &Bucket, names: &[&str]) {
    for (seed, name) in names.iter().enumerate() {
        put(store, b, name, &bytes(50 + seed, seed as u64));
    }
    for (seed, name) in names.iter().enumerate() {
        assert_eq!(get(store, b, name).unwrap(), bytes(50 + seed, seed as u64), "{name:?}");
        assert_eq!(head(store, b, name).unwrap().size, 50 + seed as u64, "{name:?}");
    }
    let mut sorted = names.to_vec();
    sorted.sort_unstable();
    assert_eq!(all_keys(store, b), sorted);
    for (at, name) in names.iter().enumerate() {
        delete(store, b, name);
        assert_kind(get(store, b, name), ErrorKind::NoSuchKey);
        assert_eq!(all_keys(store, b).len(), names.len() - at - 1, "{name:?}");
    }
}

/// Ordinary keys, with everything that a URL or a shell would trip over.
pub fn keys_that_are_paths(store: &dyn Store) {
    let b = bucket(store);
    let names = [
        "plain",
        "dir/file",
        "dir/sub/file",
        "with space",
        "tab\there",
        "ünïcödé/日本語",
        "a+b",
        "a%20b",
        "%2F",
        "quote'\"",
        "back\\slash",
        "?query=1&x#y",
        "*star",
        "[b]",
        "~tilde",
        "$HOME",
        ".hidden",
        "..two",
        "a.",
        "new\nline",
        "<xml>&amp;</xml>",
        "-dash",
        "colon:semi;comma,",
        "dir/.hidden/x",
        "emoji🦀",
    ];
    round_trip(store, &b, &names);
}

/// Keys that no path can spell, among them those that would lead out of a directory.
pub fn keys_that_are_no_paths(store: &dyn Store) {
    let b = bucket(store);
    let names = [
        "..",
        ".",
        "../x",
        "../../../../etc/passwd",
        "a/../b",
        "a/./b",
        "a//b",
        "/",
        "//",
        "/abs",
        "trail/",
        "dir//",
        ".fordway",
        ".fordway/tmp/x",
        ".fordway/odd/a",
        "a/..",
        "./a",
        "\u{1}\u{7f}",
    ];
    round_trip(store, &b, &names);
}

/// Keys of up to 1,024 bytes, in one segment and in many.
pub fn long_keys(store: &dyn Store) {
    let b = bucket(store);
    let one = "s".repeat(1024);
    let many = "d/".repeat(511) + "ff";
    let wide = "ü".repeat(512);
    let slashes = "/".repeat(1024);
    let names = ["n".repeat(255), "n".repeat(256), one, many, wide, slashes];
    round_trip(store, &b, &names.iter().map(String::as_str).collect::<Vec<_>>());
}

/// `a`, then `a/b`: both are objects, and each comes and goes alone.
pub fn a_key_beside_its_own_prefix(store: &dyn Store) {
    let b = bucket(store);
    put(store, &b, "a", b"first");
    put(store, &b, "a/b", b"second");
    put(store, &b, "a/b/c", b"third");
    put(store, &b, "a", b"first again");
    put(store, &b, "a/b", b"second again");
    assert_eq!(all_keys(store, &b), ["a", "a/b", "a/b/c"]);
    delete(store, &b, "a");
    assert_eq!(get(store, &b, "a/b").unwrap(), b"second again");
    put(store, &b, "a/b", b"second at last");
    assert_eq!(get(store, &b, "a/b").unwrap(), b"second at last");
    assert_eq!(all_keys(store, &b), ["a/b", "a/b/c"]);
    delete(store, &b, "a/b");
    assert_kind(get(store, &b, "a/b"), ErrorKind::NoSuchKey);
    assert_eq!(get(store, &b, "a/b/c").unwrap(), b"third");
}

/// `a/b`, then `a`: the other way round, with conditions.
pub fn a_prefix_beside_its_own_key(store: &dyn Store) {
    let b = bucket(store);
    put(store, &b, "a/b/c", b"third");
    let create = PutOptions { conditions: Conditions::create_only(), ..Default::default() };
    store.put(&b, &key("a/b"), b"second", &create).unwrap();
    store.put(&b, &key("a"), b"first", &create).unwrap();
    for name in ["a", "a/b", "a/b/c"] {
        assert_kind(store.put(&b, &key(name), b"no", &create), ErrorKind::PreconditionFailed);
    }
    assert_eq!(all_keys(store, &b), ["a", "a/b", "a/b/c"]);
    delete(store, &b, "a/b/c");
    assert_eq!(get(store, &b, "a/b").unwrap(), b"second");
    assert_eq!(get(store, &b, "a").unwrap(), b"first");
    delete(store, &b, "a");
    delete(store, &b, "a/b");
    store.delete_bucket(&b).unwrap();
}

/// The order is that of UTF-8 bytes, whatever directories would make of it.
pub fn listing_is_in_byte_order(store: &dyn Store) {
    let b = bucket(store);
    let mut names =
        vec!["a", "a!", "a-b", "a.b", "a/", "a/b", "a//c", "a0", "ab", "A", "ä", "z/y/x", "z/y-x", "z/y0"];
    names.iter().for_each(|name| drop(put(store, &b, name, b"x")));
    names.sort_unstable();
    assert_eq!(all_keys(store, &b), names);
}

/// Pages of any size, with and without a delimiter, join to the whole.
pub fn listing_pages_join(store: &dyn Store) {
    let b = bucket(store);
    let names: Vec<String> =
        (0..60).map(|i| format!("{}/{}/{i:03}", i % 3, i % 5)).chain(["0".into(), "1//x".into()]).collect();
    names.iter().for_each(|name| drop(put(store, &b, name, b"x")));
    for (prefix, delimiter) in
        [("", None), ("", Some("/")), ("1/", Some("/")), ("1/2", None), ("", Some("2/"))]
    {
        let delimiter = delimiter.map(str::to_owned);
        let whole = ListQuery { delimiter: delimiter.clone(), ..ListQuery::prefix(prefix) };
        let whole = store.list(&b, &whole).unwrap();
        for max_keys in [1, 2, 7, 61] {
            let mut query = ListQuery { delimiter: delimiter.clone(), max_keys, ..ListQuery::prefix(prefix) };
            let mut entries = Vec::new();
            loop {
                let page = store.list(&b, &query).unwrap();
                assert!(page.entries.len() <= max_keys);
                entries.extend(page.entries);
                if page.next.is_none() {
                    break;
                }
                query.start_after = page.next;
            }
            assert_eq!(
                entries, whole.entries,
                "prefix {prefix:?}, delimiter {delimiter:?}, pages of {max_keys}"
            );
        }
    }
}

/// A delimiter rolls keys up; an empty directory is nothing.
pub fn listing_rolls_up(store: &dyn Store) {
    let b = bucket(store);
    for name in ["a", "b/1", "b/2", "c//d", "c/e", "f/g/h"] {
        put(store, &b, name, b"x");
    }
    let list = |prefix: &str, delimiter: &str| {
        let query = ListQuery { delimiter: Some(delimiter.into()), ..ListQuery::prefix(prefix) };
        names(&store.list(&b, &query).unwrap()).join(" ")
    };
    assert_eq!(list("", "/"), "a b/ c/ f/");
    assert_eq!(list("c/", "/"), "c// c/e");
    assert_eq!(list("b", "/"), "b/");
    assert_eq!(list("b/", "/"), "b/1 b/2");
    assert_eq!(list("", "g/"), "a b/1 b/2 c//d c/e f/g/");
    assert_eq!(list("nothing", "/"), "");
    delete(store, &b, "f/g/h");
    assert_eq!(list("", "/"), "a b/ c/");
}

/// `start_after` need not be a key.
pub fn listing_with_start_after(store: &dyn Store) {
    let b = bucket(store);
    for name in ["a", "b/1", "b/2", "b0", "c"] {
        put(store, &b, name, b"x");
    }
    let list = |start: &str| {
        let query = ListQuery { start_after: Some(start.into()), ..Default::default() };
        names(&store.list(&b, &query).unwrap()).join(" ")
    };
    assert_eq!(list(""), "a b/1 b/2 b0 c");
    assert_eq!(list("a"), "b/1 b/2 b0 c");
    assert_eq!(list("b"), "b/1 b/2 b0 c");
    assert_eq!(list("b/1"), "b/2 b0 c");
    assert_eq!(list("b/11"), "b/2 b0 c");
    assert_eq!(list("b/~"), "b0 c");
    assert_eq!(list("c"), "");
}

/// Size, tag and time in a listing are those of the object.
pub fn listing_says_what_head_says(store: &dyn Store) {
    let b = bucket(store);
    for (name, size) in [("a", 0), ("d/e", 10_000), ("odd//key", 3)] {
        put(store, &b, name, &bytes(size, 9));
    }
    for entry in store.list(&b, &ListQuery::default()).unwrap().entries {
        let listed = entry.object().unwrap();
        let info = head(store, &b, &listed.key).unwrap();
        assert_eq!((listed.size, &listed.etag), (info.size, &info.etag));
        let apart = listed.modified.duration_since(info.modified).unwrap_or_else(|e| e.duration());
        assert!(apart < Duration::from_secs(1), "{apart:?}");
    }
}

/// An ETag is the content's MD5, or says that it is none.
pub fn etags_follow_the_policy(store: &dyn Store) {
    let b = bucket(store);
    let put = |policy, body: &[u8]| {
        let options = PutOptions { etag_policy: Some(policy), ..Default::default() };
        store.put(&b, &key("k"), body, &options).unwrap().etag
    };
    let md5 = put(ETagPolicy::Md5, b"hello");
    // A service of somebody else's knows no policy but MD5; ours takes the caller's word in process.
    if store.lane() != "http" {
        let fast = put(ETagPolicy::Fast, b"hello");
        assert_eq!(fast.as_md5(), None);
        assert_eq!(head(store, &b, "k").unwrap().etag, fast);
        // Not even the same content again is the same version.
        assert_ne!(fast, put(ETagPolicy::Fast, b"hello"));
        assert_eq!(md5.as_str(), "5d41402abc4b2a76b9719d911017c592");
    }
    let last = put(ETagPolicy::Md5, b"bye");
    assert_eq!(head(store, &b, "k").unwrap().etag, last);
}

/// Content that is not what its sender says is refused, and the old object stands.
pub fn wrong_digests_publish_nothing(store: &dyn Store) {
    let b = bucket(store);
    put(store, &b, "k", b"old");
    let options =
        PutOptions { check_md5: true, checksum: Some(ChecksumAlgorithm::Crc32), ..Default::default() };
    let commit = |expected: Expected| {
        let mut writer = store.writer(&b, &key("k"), &options)?;
        writer.write(b"new content")?;
        writer.commit(&expected)
    };
    let crc = Checksum { algorithm: ChecksumAlgorithm::Crc32, value: vec![1, 2, 3, 4] };
    assert_kind(commit(Expected { md5: Some([7; 16]), ..Default::default() }), ErrorKind::BadDigest);
    assert_kind(commit(Expected { checksum: Some(crc), ..Default::default() }), ErrorKind::BadDigest);
    assert_kind(commit(Expected { size: Some(12), ..Default::default() }), ErrorKind::IncompleteBody);
    assert_eq!(get(store, &b, "k").unwrap(), b"old");
    commit(Expected { size: Some(11), ..Default::default() }).unwrap();
    assert_eq!(get(store, &b, "k").unwrap(), b"new content");
}

/// A checksum that was verified once is told again.
pub fn checksums_are_kept(store: &dyn Store) {
    let b = bucket(store);
    for algorithm in ChecksumAlgorithm::ALL {
        let options = PutOptions { checksum: Some(algorithm), ..Default::default() };
        let made = store.put(&b, &key("k"), b"123456789", &options).unwrap();
        let kept = head(store, &b, "k").unwrap().checksum;
        assert_eq!(kept.as_ref().map(|sum| sum.algorithm), Some(algorithm));
        assert_eq!(kept, made.checksum);
    }
}

/// `If-None-Match: *` never replaces.
pub fn create_only(store: &dyn Store) {
    let b = bucket(store);
    let create = PutOptions { conditions: Conditions::create_only(), ..Default::default() };
    for name in ["k", "d/k", "odd//k", "d"] {
        store.put(&b, &key(name), b"first", &create).unwrap();
        assert_kind(store.put(&b, &key(name), b"second", &create), ErrorKind::PreconditionFailed);
        assert_eq!(get(store, &b, name).unwrap(), b"first");
        delete(store, &b, name);
        store.put(&b, &key(name), b"third", &create).unwrap();
    }
}

/// `If-Match` replaces only what the caller has seen.
pub fn replace_only_if(store: &dyn Store) {
    let b = bucket(store);
    let replace = |tag: &ETag, body: &[u8]| {
        let options = PutOptions { conditions: Conditions::only_if(tag.clone()), ..Default::default() };
        store.put(&b, &key("k"), body, &options)
    };
    assert_kind(replace(&ETag::new("x"), b"0"), ErrorKind::NoSuchKey);
    let first = put(store, &b, "k", b"1").etag;
    let second = replace(&first, b"22").unwrap().etag;
    assert_kind(replace(&first, b"333"), ErrorKind::PreconditionFailed);
    assert_eq!(get(store, &b, "k").unwrap(), b"22");
    replace(&second, b"333").unwrap();
    assert_eq!(get(store, &b, "k").unwrap(), b"333");
}

/// A conditional delete removes only what the caller has seen.
pub fn delete_only_if(store: &dyn Store) {
    let b = bucket(store);
    let first = put(store, &b, "k", b"1").etag;
    let second = put(store, &b, "k", b"2").etag;
    let delete_if = |tag: &ETag| {
        let options = DeleteOptions { conditions: Conditions::only_if(tag.clone()) };
        store.delete(&b, &key("k"), &options)
    };
    assert_kind(delete_if(&first), ErrorKind::PreconditionFailed);
    assert_eq!(get(store, &b, "k").unwrap(), b"2");
    delete_if(&second).unwrap();
    assert_kind(get(store, &b, "k"), ErrorKind::NoSuchKey);
}

/// The four conditions of a read, on `get`, `read` and `head`.
pub fn conditional_reads(store: &dyn Store) {
    let b = bucket(store);
    let tag = put(store, &b, "k", b"x").etag;
    let tags = |tag: &str| Some(ETagMatch::Tags(vec![ETag::new(tag)]));
    let hour = Duration::from_secs(3600);
    let (past, future) = (Some(SystemTime::now() - hour), Some(SystemTime::now() + hour));
    let none = Conditions::default;
    for (conditions, kind) in [
        (Conditions { if_match: tags(tag.as_str()), ..none() }, None),
        (Conditions { if_match: Some(ETagMatch::Any), ..none() }, None),
        (Conditions { if_match: tags("other"), ..none() }, Some(ErrorKind::PreconditionFailed)),
        (Conditions { if_none_match: tags("other"), ..none() }, None),
        (Conditions { if_none_match: tags(tag.as_str()), ..none() }, Some(ErrorKind::NotModified)),
        (Conditions { if_modified_since: past, ..none() }, None),
        (Conditions { if_unmodified_since: future, ..none() }, None),
        (Conditions { if_unmodified_since: past, ..none() }, Some(ErrorKind::PreconditionFailed)),
    ] {
        let options = GetOptions { conditions, range: None };
        let results = [
            store.get(&b, &key("k"), &options).err(),
            store.head(&b, &key("k"), &options).err(),
            store.read(&b, &key("k"), &options, &mut Vec::new()).err(),
        ];
        for result in results {
            assert_eq!(result.map(|error| error.kind()), kind, "{:?}", options.conditions);
        }
    }
}

/// A copy has the bytes, the tag and the metadata of its source, which stays as it was.
pub fn copy_keeps_all(store: &dyn Store) {
    let b = bucket(store);
    let other = Bucket::new("other").unwrap();
    store.create_bucket(&other).unwrap();
    let body = bytes(3_000_000, 5);
    let metadata = Metadata {
        content_type: Some("a/b".into()),
        user: [("n".into(), "v".into())].into(),
        ..Default::default()
    };
    let options = PutOptions { metadata: metadata.clone(), ..Default::default() };
    let made = store.put(&b, &key("from//odd"), &body, &options).unwrap();
    for (to, name) in [(&b, "to"), (&other, "d/to"), (&other, "d")] {
        let copied = store.copy((&b, &key("from//odd")), to, &key(name), &CopyOptions::default()).unwrap();
        assert_eq!(copied.etag, made.etag);
        assert!(get(store, to, name).unwrap() == body);
        let info = head(store, to, name).unwrap();
        assert_eq!((info.metadata, info.etag), (metadata.clone(), made.etag.clone()));
    }
    assert!(get(store, &b, "from//odd").unwrap() == body);
    let missing = store.copy((&b, &key("none")), &b, &key("x"), &CopyOptions::default());
    assert_kind(missing, ErrorKind::NoSuchKey);
}

/// A copy may say its own metadata.
pub fn copy_replaces_metadata(store: &dyn Store) {
    let b = bucket(store);
    let old = Metadata { user: [("old".into(), "1".into())].into(), ..Default::default() };
    let new = Metadata { user: [("new".into(), "2".into())].into(), ..Default::default() };
    store.put(&b, &key("k"), b"x", &PutOptions { metadata: old, ..Default::default() }).unwrap();
    let options = CopyOptions { metadata: Some(new.clone()), ..Default::default() };
    for to in ["copy", "k"] {
        store.copy((&b, &key("k")), &b, &key(to), &options).unwrap();
        assert_eq!(head(store, &b, to).unwrap().metadata.user, new.user);
        assert_eq!(get(store, &b, to).unwrap(), b"x");
    }
}

/// Conditions on the source and on the destination.
pub fn copy_conditions(store: &dyn Store) {
    let b = bucket(store);
    let tag = put(store, &b, "from", b"x").etag;
    let copy = |source_conditions| {
        let options = CopyOptions { source_conditions, ..Default::default() };
        store.copy((&b, &key("from")), &b, &key("to"), &options)
    };
    let unless = Conditions { if_none_match: Some(ETagMatch::Tags(vec![tag.clone()])), ..Default::default() };
    assert_kind(copy(Conditions::only_if(ETag::new("other"))), ErrorKind::PreconditionFailed);
    assert_kind(copy(unless), ErrorKind::PreconditionFailed);
    assert_kind(get(store, &b, "to"), ErrorKind::NoSuchKey);
    copy(Conditions::only_if(tag)).unwrap();
    let create = CopyOptions { conditions: Conditions::create_only(), ..Default::default() };
    let again = store.copy((&b, &key("from")), &b, &key("to"), &create);
    assert_kind(again, ErrorKind::PreconditionFailed);
}

/// A copy onto itself that changes nothing is a mistake.
pub fn copy_onto_itself(store: &dyn Store) {
    let b = bucket(store);
    put(store, &b, "k", b"x");
    let result = store.copy((&b, &key("k")), &b, &key("k"), &CopyOptions::default());
    let error = result.expect_err("a copy onto itself must change something");
    assert!(matches!(error.kind(), ErrorKind::InvalidArgument), "{error}");
    assert_eq!(get(store, &b, "k").unwrap(), b"x");
}

fn put_part(
    store: &dyn Store,
    b: &Bucket,
    name: &str,
    upload: &UploadId,
    number: u16,
    body: &[u8],
) -> CompletedPart {
    let options = PartOptions { size_hint: Some(body.len() as u64), ..Default::default() };
    let mut writer = store.part_writer(b, &key(name), upload, number, &options).unwrap();
    body.chunks(1 << 20).for_each(|chunk| writer.write(chunk).unwrap());
    let etag = writer.commit(&Expected::default()).unwrap().etag;
    CompletedPart { number, etag }
}

fn complete(
    store: &dyn Store,
    b: &Bucket,
    name: &str,
    upload: &UploadId,
    parts: &[CompletedPart],
) -> Result<PutResult> {
    store.complete_upload(b, &key(name), upload, parts, &Conditions::default())
}

/// Parts in any order make one object with the upload's metadata, visible only when complete.
pub fn multipart_makes_one_object(store: &dyn Store) {
    let b = bucket(store);
    let metadata = Metadata {
        content_type: Some("a/b".into()),
        user: [("n".into(), "v".into())].into(),
        ..Default::default()
    };
    let part = MIN_PART_BYTES as usize;
    let (one, two, three) = (bytes(part, 1), bytes(part + 17, 2), bytes(5, 3));
    for name in ["plain/key", "odd//key", "plain"] {
        let options = PutOptions { metadata: metadata.clone(), ..Default::default() };
        let upload = store.create_upload(&b, &key(name), &options).unwrap();
        let third = put_part(store, &b, name, &upload, 30, &three);
        let first = put_part(store, &b, name, &upload, 1, &one);
        let second = put_part(store, &b, name, &upload, 2, &two);
        assert_kind(get(store, &b, name), ErrorKind::NoSuchKey);
        let made = complete(store, &b, name, &upload, &[first, second, third]).unwrap();
        assert!(made.etag.as_str().ends_with("-3"), "{}", made.etag);
        assert!(get(store, &b, name).unwrap() == [&one[..], &two, &three].concat());
        let info = head(store, &b, name).unwrap();
        assert_eq!((info.etag, info.metadata), (made.etag, metadata.clone()));
        assert_kind(complete(store, &b, name, &upload, &[]), ErrorKind::NoSuchUpload);
    }
    assert!(store.list_uploads(&b, &UploadsQuery::default()).unwrap().uploads.is_empty());
}

/// Parts of one size with a shorter last one, in any order, sent again, left out: what every client does.
pub fn multipart_of_uniform_parts(store: &dyn Store) {
    let b = bucket(store);
    let size = MIN_PART_BYTES as usize;
    let bodies = [bytes(size, 1), bytes(size, 2), bytes(size, 3), bytes(70_000, 4)];
    let again = bytes(size, 5);
    for (round, order) in [[1u16, 2, 3, 4], [4, 3, 1, 2], [2, 4, 1, 3]].into_iter().enumerate() {
        let name = format!("d{round}/k");
        let upload = store.create_upload(&b, &key(&name), &PutOptions::default()).unwrap();
        let send = |number: u16, body: &[u8]| put_part(store, &b, &name, &upload, number, body);
        let mut parts: Vec<_> = order.iter().map(|n| send(*n, &bodies[usize::from(*n) - 1])).collect();
        parts.sort_by_key(|part| part.number);
        let mut whole = bodies.concat();
        if round == 1 {
            parts[1] = send(2, &again);
            whole[size..2 * size].copy_from_slice(&again);
        }
        if round == 2 {
            parts.truncate(3);
            whole.truncate(3 * size);
        }
        complete(store, &b, &name, &upload, &parts).unwrap();
        assert!(get(store, &b, &name).unwrap() == whole, "round {round}");
        let uploads = store.list_uploads(&b, &UploadsQuery::default()).unwrap().uploads;
        assert!(uploads.is_empty(), "round {round}");
    }
}

/// A completion that is refused leaves the upload as it was.
pub fn multipart_outlives_a_failed_completion(store: &dyn Store) {
    let b = bucket(store);
    put(store, &b, "k", b"old");
    let (first, second) = (bytes(MIN_PART_BYTES as usize, 1), bytes(1000, 2));
    let upload = store.create_upload(&b, &key("k"), &PutOptions::default()).unwrap();
    let parts = [put_part(store, &b, "k", &upload, 1, &first), put_part(store, &b, "k", &upload, 2, &second)];
    let create = Conditions::create_only();
    let refused = store.complete_upload(&b, &key("k"), &upload, &parts[..1], &create);
    assert_kind(refused, ErrorKind::PreconditionFailed);
    assert_eq!(get(store, &b, "k").unwrap(), b"old");
    let listed = store.list_parts(&b, &key("k"), &upload, &PartsQuery::default()).unwrap();
    assert_eq!(listed.parts.len(), 2);
    complete(store, &b, "k", &upload, &parts).unwrap();
    assert!(get(store, &b, "k").unwrap() == [first, second].concat());
}

/// Completion refuses parts that are missing, changed, out of order or too small.
pub fn multipart_refuses_what_does_not_fit(store: &dyn Store) {
    let b = bucket(store);
    put(store, &b, "k", b"old");
    let upload = store.create_upload(&b, &key("k"), &PutOptions::default()).unwrap();
    let small = put_part(store, &b, "k", &upload, 1, b"small");
    let last = put_part(store, &b, "k", &upload, 2, b"last");
    let part = |number, tag: &str| CompletedPart { number, etag: ETag::new(tag) };
    let complete = |parts: &[CompletedPart]| complete(store, &b, "k", &upload, parts);
    assert_kind(complete(&[small.clone(), last.clone()]), ErrorKind::EntityTooSmall);
    assert_kind(complete(&[last.clone(), small.clone()]), ErrorKind::InvalidPartOrder);
    assert_kind(complete(&[part(9, "00000000000000000000000000000000")]), ErrorKind::InvalidPart);
    assert_kind(complete(&[part(1, "00000000000000000000000000000000")]), ErrorKind::InvalidPart);
    let unknown = UploadId::new("0123456789abcdef").unwrap();
    let elsewhere =
        store.complete_upload(&b, &key("k"), &unknown, std::slice::from_ref(&last), &Conditions::default());
    assert_kind(elsewhere, ErrorKind::NoSuchUpload);
    let other_key = store.complete_upload(
        &b,
        &key("other"),
        &upload,
        std::slice::from_ref(&last),
        &Conditions::default(),
    );
    assert_kind(other_key, ErrorKind::NoSuchUpload);
    assert_eq!(get(store, &b, "k").unwrap(), b"old");
    complete(&[last]).unwrap();
    assert_eq!(get(store, &b, "k").unwrap(), b"last");
    for number in [0, 10_001] {
        let upload = store.create_upload(&b, &key("k"), &PutOptions::default()).unwrap();
        let writer = store.part_writer(&b, &key("k"), &upload, number, &PartOptions::default());
        let sent = writer.and_then(|writer| writer.commit(&Expected::default()));
        assert_kind(sent, ErrorKind::InvalidArgument);
        store.abort_upload(&b, &key("k"), &upload).unwrap();
    }
}

/// Parts and uploads are listed, in pages.
pub fn multipart_parts_are_listed(store: &dyn Store) {
    let b = bucket(store);
    let uploads: Vec<_> = ["b", "a", "a"]
        .map(|name| store.create_upload(&b, &key(name), &PutOptions::default()).unwrap())
        .into_iter()
        .collect();
    for number in [5, 1, 3] {
        put_part(store, &b, "b", &uploads[0], number, &bytes(usize::from(number) * 100, 1));
    }
    let query = PartsQuery { after: 1, max_parts: 1 };
    let page = store.list_parts(&b, &key("b"), &uploads[0], &query).unwrap();
    assert_eq!((page.parts[0].number, page.parts[0].size, page.truncated), (3, 300, true));
    let all = store.list_parts(&b, &key("b"), &uploads[0], &PartsQuery::default()).unwrap();
    assert_eq!(all.parts.iter().map(|part| part.number).collect::<Vec<_>>(), [1, 3, 5]);
    assert!(!all.truncated);
    let listed = store.list_uploads(&b, &UploadsQuery::default()).unwrap().uploads;
    assert_eq!(listed.iter().map(|upload| upload.key.as_str()).collect::<Vec<_>>(), ["a", "a", "b"]);
    assert_ne!(listed[0].upload, listed[1].upload);
    let query = UploadsQuery { prefix: "b".into(), ..Default::default() };
    assert_eq!(store.list_uploads(&b, &query).unwrap().uploads.len(), 1);
    assert!(all_keys(store, &b).is_empty());
}

/// The last part of a number counts.
pub fn multipart_part_is_replaced(store: &dyn Store) {
    let b = bucket(store);
    let upload = store.create_upload(&b, &key("k"), &PutOptions::default()).unwrap();
    let old = put_part(store, &b, "k", &upload, 1, b"old and longer");
    let new = put_part(store, &b, "k", &upload, 1, b"new");
    assert_kind(complete(store, &b, "k", &upload, &[old]), ErrorKind::InvalidPart);
    complete(store, &b, "k", &upload, &[new]).unwrap();
    assert_eq!(get(store, &b, "k").unwrap(), b"new");
}

/// An aborted upload is gone with its parts.
pub fn multipart_abort(store: &dyn Store) {
    let b = bucket(store);
    let upload = store.create_upload(&b, &key("k"), &PutOptions::default()).unwrap();
    let part = put_part(store, &b, "k", &upload, 1, b"x");
    store.abort_upload(&b, &key("k"), &upload).unwrap();
    assert_kind(store.abort_upload(&b, &key("k"), &upload), ErrorKind::NoSuchUpload);
    assert_kind(complete(store, &b, "k", &upload, &[part]), ErrorKind::NoSuchUpload);
    let parts = store.list_parts(&b, &key("k"), &upload, &PartsQuery::default());
    assert_kind(parts, ErrorKind::NoSuchUpload);
    let writer = store.part_writer(&b, &key("k"), &upload, 1, &PartOptions::default());
    let sent = writer.and_then(|writer| writer.commit(&Expected::default()));
    assert_kind(sent, ErrorKind::NoSuchUpload);
    store.delete_bucket(&b).unwrap();
}

/// A part may be a range of another object.
pub fn multipart_copies_parts(store: &dyn Store) {
    let b = bucket(store);
    let body = bytes(MIN_PART_BYTES as usize + 1000, 4);
    put(store, &b, "from", &body);
    let upload = store.create_upload(&b, &key("k"), &PutOptions::default()).unwrap();
    let whole = GetOptions::default();
    let first = store.copy_part((&b, &key("from")), &whole, (&b, &key("k"), &upload, 1)).unwrap();
    let range = GetOptions::range(ByteRange::Inclusive(10, 29));
    let second = store.copy_part((&b, &key("from")), &range, (&b, &key("k"), &upload, 2)).unwrap();
    let parts = [(1, first.etag), (2, second.etag)].map(|(number, etag)| CompletedPart { number, etag });
    complete(store, &b, "k", &upload, &parts).unwrap();
    assert!(get(store, &b, "k").unwrap() == [&body[..], &body[10..30]].concat());
}

/// With MD5 tags, a multipart object's tag is what S3 would make of the same parts.
pub fn multipart_etag_is_that_of_s3(store: &dyn Store) {
    let b = bucket(store);
    let options = PutOptions { etag_policy: Some(ETagPolicy::Md5), ..Default::default() };
    let upload = store.create_upload(&b, &key("k"), &options).unwrap();
    let first = put_part(store, &b, "k", &upload, 1, &vec![0; MIN_PART_BYTES as usize]);
    let second = put_part(store, &b, "k", &upload, 2, b"");
    let made = complete(store, &b, "k", &upload, &[first.clone(), second]).unwrap();
    // md5 of 5 MiB of zeros; and of that digest followed by the md5 of nothing.
    assert_eq!(first.etag.as_str(), "5f363e0e58a95f06cbe9bbc662c5dfb6");
    assert_eq!(made.etag.as_str(), "1faefa44d632065e8bd4fd2a462ed292-2");
}

/// Of many that create one key at once, exactly one succeeds, and it is the one that is read.
pub fn racing_creators_have_one_winner(store: &dyn Store) {
    let b = bucket(store);
    let create = PutOptions { conditions: Conditions::create_only(), ..Default::default() };
    for round in 0..20 {
        let name = format!("d{round}/k");
        let body = |racer: u64| bytes(1000, racer);
        let winners: Vec<u64> = std::thread::scope(|scope| {
            let race = |racer| {
                let (name, create, b) = (&name, &create, &b);
                scope.spawn(move || store.put(b, &key(name), &body(racer), create).map(|_| racer))
            };
            let racers: Vec<_> = (0..8).map(race).collect();
            racers.into_iter().filter_map(|racer| racer.join().unwrap().ok()).collect()
        });
        assert_eq!(winners.len(), 1, "round {round}: {winners:?}");
        assert_eq!(get(store, &b, &name).unwrap(), body(winners[0]));
    }
}
