//! Listings.

use std::time::Duration;

use fordway_store::{ListQuery, Listing, Store};

use super::{all_keys, bucket, bytes, delete, head, put};

fn names(listing: &Listing) -> Vec<&str> {
    listing.entries.iter().map(|entry| entry.name()).collect()
}

/// The order is by UTF-8 bytes, whatever directories would make of it.
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

/// Size, tag and time in a listing are the object's.
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
