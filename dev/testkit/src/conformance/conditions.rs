//! Conditional requests.

use std::time::{Duration, SystemTime};

use fordway_store::{Conditions, DeleteOptions, ETag, ETagMatch, ErrorKind, GetOptions, PutOptions, Store};

use super::{assert_kind, bucket, bytes, delete, get, key, put};

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
        let options = DeleteOptions { conditions: Conditions::only_if(tag.clone()), ..Default::default() };
        store.delete(&b, &key("k"), &options)
    };
    assert_kind(delete_if(&first), ErrorKind::PreconditionFailed);
    assert_eq!(get(store, &b, "k").unwrap(), b"2");
    delete_if(&second).unwrap();
    assert_kind(get(store, &b, "k"), ErrorKind::NoSuchKey);
    // Where nothing is, there is nothing to protect.
    delete_if(&second).unwrap();
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
        let options = GetOptions { conditions, ..Default::default() };
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
