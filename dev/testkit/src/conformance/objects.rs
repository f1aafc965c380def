//! Objects: put, get, head, delete, ranges and metadata.

use std::time::{Duration, SystemTime};

use fordway_store::{
    BoxedMetadata, ByteRange, Conditions, ETag, ErrorKind, Expected, GetOptions, Key, Metadata, PutOptions,
    Result, Store, Versioning,
};

use super::{all_keys, assert_kind, bucket, bytes, delete, get, head, key, put};

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
    let options = PutOptions {
        metadata: BoxedMetadata::from(Metadata { user, ..Default::default() }),
        ..Default::default()
    };
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
    let metadata = BoxedMetadata::from(Metadata {
        content_type: text("text/x-test; charset=utf-8"),
        content_encoding: text("zstd"),
        content_language: text("de"),
        content_disposition: text("attachment; filename=\"x y.txt\""),
        cache_control: text("max-age=60"),
        expires: text("Thu, 01 Dec 2033 16:00:00 GMT"),
        user: user.into(),
    });
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

/// A batch has one answer per key, in order, whatever the size and whatever failed in it.
pub fn batches_answer_in_order(store: &dyn Store) {
    let b = bucket(store);
    for count in [0, 3, 300] {
        let keys: Vec<Key> = (0..count).map(|i| key(&format!("d{}/k{count}-{i}", i % 3))).collect();
        let bodies: Vec<Vec<u8>> = (0..count).map(|i| bytes(i * 7, i as u64)).collect();
        let objects: Vec<(Key, &[u8])> =
            keys.iter().zip(&bodies).map(|(key, body)| (key.clone(), body.as_slice())).collect();
        let put = store.put_many(&b, &objects, &PutOptions::default());
        assert!(put.len() == count && put.iter().all(Result::is_ok));
        let mut asked = keys.clone();
        asked.insert(count / 2, key("missing"));
        let (got, heads) = (store.get_many(&b, &asked), store.head_many(&b, &asked));
        assert_eq!((got.len(), heads.len()), (count + 1, count + 1));
        for (at, (got, head)) in got.into_iter().zip(heads).enumerate() {
            if at == count / 2 {
                assert_kind(got, ErrorKind::NoSuchKey);
                assert_kind(head, ErrorKind::NoSuchKey);
                continue;
            }
            let wanted = &bodies[if at < count / 2 { at } else { at - 1 }];
            assert_eq!((got.unwrap(), head.unwrap().size), (wanted.clone(), wanted.len() as u64));
        }
        assert!(store.delete_many(&b, &asked).iter().all(Result::is_ok));
    }
    assert!(all_keys(store, &b).is_empty());
}

/// Many ranges in one call: any order, overlapping, none; one that lies outside fails all.
pub fn many_ranges_at_once(store: &dyn Store) {
    let b = bucket(store);
    let body = bytes(100_000, 9);
    put(store, &b, "k", &body);
    let read = |ranges: &[ByteRange]| store.read_ranges(&b, &key("k"), ranges, &GetOptions::default());
    let ranges = [
        ByteRange::Inclusive(70_000, 70_999),
        ByteRange::Inclusive(10, 19),
        ByteRange::Inclusive(15, 24),
        ByteRange::Inclusive(10, 19),
        ByteRange::Last(7),
        ByteRange::From(99_990),
        ByteRange::Inclusive(99_999, 200_000),
        ByteRange::Inclusive(0, 99_999),
    ];
    let expected = [
        &body[70_000..71_000],
        &body[10..20],
        &body[15..25],
        &body[10..20],
        &body[99_993..],
        &body[99_990..],
        &body[99_999..],
        &body[..],
    ];
    assert!(read(&ranges).unwrap() == expected);
    // With an end each, nothing need be known of the object before.
    let with_end = [0, 1, 2, 3, 6, 7];
    assert!(read(&with_end.map(|n| ranges[n])).unwrap() == with_end.map(|n| expected[n]));
    assert!(read(&ranges[6..7]).unwrap() == expected[6..7]);
    assert!(read(&[]).unwrap().is_empty());
    let outside = [ByteRange::Inclusive(0, 1), ByteRange::From(100_000)];
    assert_kind(read(&outside), ErrorKind::InvalidRange);
    for outside in [ByteRange::Inclusive(100_000, 100_009), ByteRange::Inclusive(u64::MAX - 1, u64::MAX)] {
        assert_kind(read(&[outside]), ErrorKind::InvalidRange);
        assert_kind(read(&[ByteRange::Inclusive(0, 9), outside]), ErrorKind::InvalidRange);
    }
    let stale = GetOptions { conditions: Conditions::only_if(ETag::new("other")), ..Default::default() };
    let refused = store.read_ranges(&b, &key("k"), &ranges, &stale);
    assert_kind(refused, ErrorKind::PreconditionFailed);
    let missing = store.read_ranges(&b, &key("none"), &ranges, &GetOptions::default());
    assert_kind(missing, ErrorKind::NoSuchKey);
    let missing = store.read_ranges(&b, &key("none"), &ranges[..1], &GetOptions::default());
    assert_kind(missing, ErrorKind::NoSuchKey);
}

/// Many ranges of a version that is not the latest.
pub fn many_ranges_of_a_version(store: &dyn Store) {
    let b = bucket(store);
    store.set_versioning(&b, Versioning::Enabled).unwrap();
    let older = put(store, &b, "k", b"0123456789").version.unwrap();
    put(store, &b, "k", b"abc");
    let ranges = [ByteRange::Inclusive(2, 4), ByteRange::Last(1)];
    let found = store.read_ranges(&b, &key("k"), &ranges, &GetOptions::version(older)).unwrap();
    assert_eq!(found, [b"234".to_vec(), b"9".to_vec()]);
}
