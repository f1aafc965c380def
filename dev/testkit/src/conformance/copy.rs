//! Copies.

use fordway_store::{
    BoxedMetadata, Bucket, Checksum, ChecksumAlgorithm, Conditions, CopyOptions, ETag, ETagMatch, ErrorKind,
    Metadata, PutOptions, Store,
};

use super::{assert_kind, bucket, bytes, get, head, key, put};

/// A copy has the bytes, the tag and the metadata of its source, which stays as it was.
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

/// A copy may say its own metadata.
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

/// A copy may have a checksum that its source has not, also onto itself.
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
