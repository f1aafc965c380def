//! Objects: put, get, head, delete, ranges and metadata; conditional requests; ETags and checksums; copies.

use std::time::{Duration, SystemTime};

use fordway_store::{
    BoxedMetadata, Bucket, ByteRange, Checksum, ChecksumAlgorithm, Conditions, CopyOptions, DeleteOptions,
    ETag, ETagMatch, ETagPolicy, ErrorKind, ExpectedContent, GetOptions, Key, Metadata, PutOptions, Result,
    Store, VersioningState,
};

use super::{all_keys, assert_kind, bucket, bytes, delete, get, head, key, put};

/// Tests the four basic calls, and the errors that they return if there is no object.
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

/// A second put replaces everything that the first put stored.
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

/// An object without content can be stored and read like any other object.
pub fn empty_objects(store: &dyn Store) {
    let b = bucket(store);
    put(store, &b, "empty", b"");
    assert_eq!(get(store, &b, "empty").unwrap(), b"");
    assert_eq!(head(store, &b, "empty").unwrap().size, 0);
    assert_eq!(all_keys(store, &b), ["empty"]);
    let options = GetOptions::range(ByteRange::Inclusive(0, 0));
    assert_kind(store.get(&b, &key("empty"), &options), ErrorKind::InvalidRange);
}

/// An object can be written in many calls, whose data is concatenated, and can be read back as a stream.
pub fn large_objects_stream(store: &dyn Store) {
    let b = bucket(store);
    let body = bytes(20_000_003, 7);
    let mut writer = store.writer(&b, &key("big"), &PutOptions::default()).unwrap();
    body.chunks(777_777).for_each(|chunk| writer.write(chunk).unwrap());
    assert_kind(get(store, &b, "big"), ErrorKind::NoSuchKey);
    let size = Some(body.len() as u64);
    writer.commit(&ExpectedContent { size, ..Default::default() }).unwrap();
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

/// A writer that is not committed leaves nothing behind.
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

/// Headers and user metadata are returned as they were stored.
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

/// Tests ranges of all three kinds at both ends of an object.
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

/// A range outside the object is an error, not an empty response.
pub fn ranges_outside_are_refused(store: &dyn Store) {
    let b = bucket(store);
    put(store, &b, "k", b"0123456789");
    for range in [ByteRange::From(10), ByteRange::Inclusive(10, 20), ByteRange::Last(0)] {
        assert_kind(store.get(&b, &key("k"), &GetOptions::range(range)), ErrorKind::InvalidRange);
    }
}

/// Deleting a missing object succeeds, and does not affect any other object.
pub fn deleting_nothing_succeeds(store: &dyn Store) {
    let b = bucket(store);
    put(store, &b, "a/b", b"x");
    for name in ["none", "a", "a/", "a/b/c", "a/b/", "a//b"] {
        delete(store, &b, name);
    }
    assert_eq!(all_keys(store, &b), ["a/b"]);
}

/// One call deletes many objects, and returns a separate result for each object.
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

/// A batch has one result per key, in order, regardless of its size and of any failures.
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

/// One call reads any number of ranges, including none. The ranges may overlap, and may be in any order. If one range
/// is outside the object, the call fails.
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
    // A caller need not know the object's size to read ranges that have an end.
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
    for few in [&ranges[..1], &[]] {
        let missing = store.read_ranges(&b, &key("none"), few, &GetOptions::default());
        assert_kind(missing, ErrorKind::NoSuchKey);
        assert_kind(store.read_ranges(&b, &key("k"), few, &stale), ErrorKind::PreconditionFailed);
    }
}

/// A call reads more ranges than fit in one message of the node lane.
pub fn very_many_ranges_at_once(store: &dyn Store) {
    let b = bucket(store);
    let body = bytes(100_000, 9);
    put(store, &b, "k", &body);
    let ranges: Vec<_> = (0..200_000_u64).map(|n| n / 2).map(|at| ByteRange::Inclusive(at, at)).collect();
    let read = |options: &GetOptions| store.read_ranges(&b, &key("k"), &ranges, options);
    let found = read(&GetOptions::default()).unwrap();
    assert!(found.len() == ranges.len() && found.iter().zip(0..).all(|(byte, n)| *byte == [body[n / 2]]));
    let stale = GetOptions { conditions: Conditions::only_if(ETag::new("other")), ..Default::default() };
    assert_kind(read(&stale), ErrorKind::PreconditionFailed);
}

/// One call reads many ranges of a version that is not the latest.
pub fn many_ranges_of_a_version(store: &dyn Store) {
    let b = bucket(store);
    store.set_versioning(&b, VersioningState::Enabled).unwrap();
    let older = put(store, &b, "k", b"0123456789").version.unwrap();
    put(store, &b, "k", b"abc");
    let ranges = [ByteRange::Inclusive(2, 4), ByteRange::Last(1)];
    let found = store.read_ranges(&b, &key("k"), &ranges, &GetOptions::version(older)).unwrap();
    assert_eq!(found, [b"234".to_vec(), b"9".to_vec()]);
}

/// A put with `If-None-Match: *` never replaces an object.
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

/// A put with `If-Match` replaces only the version that the caller has seen.
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

/// A conditional delete removes only the version that the caller has seen.
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
    // If there is no object, a conditional delete succeeds, because no version can be lost.
    delete_if(&second).unwrap();
}

/// Tests `get`, `read` and `head` with each of the four conditions of a read.
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

/// If many clients create a key at the same time, exactly one client succeeds, and readers see the object of this
/// client.
pub fn racing_creators_have_one_winner(store: &dyn Store) {
    let b = bucket(store);
    let create = PutOptions { conditions: Conditions::create_only(), ..Default::default() };
    for round in 0..20 {
        let name = format!("d{round}/k");
        let body = |racer: u64| bytes(1000, racer);
        let (winners, losers): (Vec<_>, Vec<_>) = std::thread::scope(|scope| {
            let race = |racer| {
                let (name, create, b) = (&name, &create, &b);
                scope.spawn(move || store.put(b, &key(name), &body(racer), create).map(|_| racer))
            };
            let racers: Vec<_> = (0..8).map(race).collect();
            racers.into_iter().map(|racer| racer.join().unwrap()).partition(Result::is_ok)
        });
        let winners: Vec<u64> = winners.into_iter().flatten().collect();
        assert_eq!(winners.len(), 1, "round {round}: {winners:?}");
        losers.into_iter().for_each(|loser| drop(assert_kind(loser, ErrorKind::PreconditionFailed)));
        assert_eq!(get(store, &b, &name).unwrap(), body(winners[0]));
    }
}

/// An ETag is the content's MD5, or a string that does not have the form of an MD5.
pub fn etags_follow_the_policy(store: &dyn Store) {
    let b = bucket(store);
    let put = |policy, body: &[u8]| {
        let options = PutOptions { etag_policy: Some(policy), ..Default::default() };
        store.put(&b, &key("k"), body, &options).unwrap().etag
    };
    let md5 = put(ETagPolicy::Md5, b"hello");
    // Over HTTP, a third-party service may choose the ETag policy, and then always chooses MD5. The other lanes use the
    // caller's ETag policy.
    if store.lane() != "http" {
        let fast = put(ETagPolicy::Fast, b"hello");
        assert_eq!(fast.as_md5(), None);
        assert_eq!(head(store, &b, "k").unwrap().etag, fast);
        // Writing the same content again results in another ETag.
        assert_ne!(fast, put(ETagPolicy::Fast, b"hello"));
        assert_eq!(md5.as_str(), "5d41402abc4b2a76b9719d911017c592");
    }
    let last = put(ETagPolicy::Md5, b"bye");
    assert_eq!(head(store, &b, "k").unwrap().etag, last);
}

/// Content that does not match the sender's digest is refused, and the old object remains.
pub fn wrong_digests_publish_nothing(store: &dyn Store) {
    let b = bucket(store);
    put(store, &b, "k", b"old");
    let options =
        PutOptions { check_md5: true, checksum: Some(ChecksumAlgorithm::Crc32), ..Default::default() };
    let commit = |expected: ExpectedContent| {
        let mut writer = store.writer(&b, &key("k"), &options)?;
        writer.write(b"new content")?;
        writer.commit(&expected)
    };
    let crc = Checksum { algorithm: ChecksumAlgorithm::Crc32, value: vec![1, 2, 3, 4], parts: None };
    assert_kind(commit(ExpectedContent { md5: Some([7; 16]), ..Default::default() }), ErrorKind::BadDigest);
    assert_kind(commit(ExpectedContent { checksum: Some(crc), ..Default::default() }), ErrorKind::BadDigest);
    assert_kind(commit(ExpectedContent { size: Some(12), ..Default::default() }), ErrorKind::IncompleteBody);
    assert_eq!(get(store, &b, "k").unwrap(), b"old");
    commit(ExpectedContent { size: Some(11), ..Default::default() }).unwrap();
    assert_eq!(get(store, &b, "k").unwrap(), b"new content");
}

/// The checksum that a put returns is correct, and is also returned later.
pub fn checksums_are_kept(store: &dyn Store) {
    let b = bucket(store);
    for algorithm in ChecksumAlgorithm::ALL {
        let options = PutOptions { checksum: Some(algorithm), ..Default::default() };
        let made = store.put(&b, &key("k"), b"123456789", &options).unwrap();
        let kept = head(store, &b, "k").unwrap().checksum;
        assert_eq!(kept, made.checksum);
        assert_eq!(kept, Some(Checksum::of(algorithm, b"123456789")));
    }
}

/// A copy has the bytes, the ETag and the metadata of its source. The source does not change.
pub fn copy_keeps_all(store: &dyn Store) {
    let b = bucket(store);
    let other = Bucket::new("other").unwrap();
    store.create_bucket(&other).unwrap();
    let body = bytes(3_000_000, 5);
    let metadata = BoxedMetadata::from(Metadata {
        content_type: Some("a/b".into()),
        user: [("n".into(), "v".into())].into(),
        ..Default::default()
    });
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

/// The caller of a copy may replace the metadata.
pub fn copy_replaces_metadata(store: &dyn Store) {
    let b = bucket(store);
    let old =
        BoxedMetadata::from(Metadata { user: [("old".into(), "1".into())].into(), ..Default::default() });
    let new =
        BoxedMetadata::from(Metadata { user: [("new".into(), "2".into())].into(), ..Default::default() });
    store.put(&b, &key("k"), b"x", &PutOptions { metadata: old, ..Default::default() }).unwrap();
    let options = CopyOptions { metadata: Some(new.clone()), ..Default::default() };
    for to in ["copy", "k"] {
        store.copy((&b, &key("k")), &b, &key(to), &options).unwrap();
        assert_eq!(head(store, &b, to).unwrap().metadata.user, new.user);
        assert_eq!(get(store, &b, to).unwrap(), b"x");
    }
}

/// Tests copies with conditions on the source and on the destination.
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

/// A copy onto itself that changes nothing is an error.
pub fn copy_onto_itself(store: &dyn Store) {
    let b = bucket(store);
    put(store, &b, "k", b"x");
    let result = store.copy((&b, &key("k")), &b, &key("k"), &CopyOptions::default());
    let error = result.expect_err("a copy onto itself must change something");
    assert!(matches!(error.kind(), ErrorKind::InvalidArgument), "{error}");
    assert_eq!(get(store, &b, "k").unwrap(), b"x");
}

/// A copy, even onto itself, may have a checksum that its source does not have.
pub fn copy_with_a_checksum(store: &dyn Store) {
    let (b, body) = (bucket(store), bytes(700_000, 3));
    let crc = PutOptions { checksum: Some(ChecksumAlgorithm::Crc32), ..Default::default() };
    store.put(&b, &key("k"), &body, &crc).unwrap();
    for algorithm in ChecksumAlgorithm::ALL {
        let options = CopyOptions { checksum: Some(algorithm), ..Default::default() };
        let made = store.copy((&b, &key("k")), &b, &key("copy"), &options).unwrap();
        let sum = Some(Checksum::of(algorithm, &body));
        assert_eq!(made.checksum, sum, "{algorithm:?}");
        assert_eq!(head(store, &b, "copy").unwrap().checksum, sum, "{algorithm:?}");
    }
    let options = CopyOptions { checksum: Some(ChecksumAlgorithm::Sha512), ..Default::default() };
    store.copy((&b, &key("k")), &b, &key("k"), &options).unwrap();
    assert_eq!(head(store, &b, "k").unwrap().checksum, Some(Checksum::of(ChecksumAlgorithm::Sha512, &body)));
}
