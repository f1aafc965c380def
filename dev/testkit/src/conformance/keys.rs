//! Keys of every kind, and keys in each other's way.

use fordway_store::{Bucket, Conditions, ErrorKind, PutOptions, Store};

use super::{all_keys, assert_kind, bucket, bytes, delete, get, head, key, put};

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
