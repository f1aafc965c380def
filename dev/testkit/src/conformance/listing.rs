//! Listings, and keys of every kind, including keys that conflict with each other.

use std::time::Duration;

use fordway_store::{Bucket, Conditions, ErrorKind, ListQuery, ObjectListing, PutOptions, Store};

use super::{all_keys, assert_kind, bucket, bytes, delete, get, head, key, put};

fn names(listing: &ObjectListing) -> Vec<&str> {
    listing.entries.iter().map(|entry| entry.name()).collect()
}

/// Keys are listed in the order of their UTF-8 bytes, regardless of directories.
pub fn listing_is_in_byte_order(store: &dyn Store) {
    let b = bucket(store);
    let mut names =
        vec!["a", "a!", "a-b", "a.b", "a/", "a/b", "a//c", "a0", "ab", "A", "ä", "z/y/x", "z/y-x", "z/y0"];
    names.iter().for_each(|name| drop(put(store, &b, name, b"x")));
    names.sort_unstable();
    assert_eq!(all_keys(store, &b), names);
}

/// Pages of any size, with and without a delimiter, together make up the whole listing.
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

/// A delimiter groups keys. An empty directory is not listed.
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

/// `start_after` need not be an existing key.
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

/// For each object, a listing returns the same size, ETag and time as a HEAD request.
pub fn listing_says_what_head_says(store: &dyn Store) {
    let b = bucket(store);
    for (name, size) in [("a", 0), ("d/e", 10_000), ("odd//key", 3)] {
        put(store, &b, name, &bytes(size, 9));
    }
    let listing = store.list(&b, &ListQuery::default()).unwrap();
    assert_eq!(names(&listing), ["a", "d/e", "odd//key"]);
    for entry in listing.entries {
        let listed = entry.object().unwrap();
        let info = head(store, &b, &listed.key).unwrap();
        assert_eq!((listed.size, &listed.etag), (info.size, &info.etag));
        let apart = listed.modified.duration_since(info.modified).unwrap_or_else(|e| e.duration());
        assert!(apart < Duration::from_secs(1), "{apart:?}");
    }
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

/// Tests keys that are paths, with characters that are special in URLs and shells.
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

/// Tests keys that cannot be paths, including keys that would lead out of the bucket's directory.
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

/// Tests keys of up to 1,024 bytes, with one segment and with many segments.
pub fn long_keys(store: &dyn Store) {
    let b = bucket(store);
    let one = "s".repeat(1024);
    let many = "d/".repeat(511) + "ff";
    let wide = "ü".repeat(512);
    let slashes = "/".repeat(1024);
    let names = ["n".repeat(255), "n".repeat(256), one, many, wide, slashes];
    round_trip(store, &b, &names.iter().map(String::as_str).collect::<Vec<_>>());
}

/// Stores `a`, then `a/b`. Both are objects, and they are independent of each other.
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

/// Stores a key below `a`, then `a` itself, with conditions. The objects are independent of each other.
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
