//! ETags and checksums.

use fordway_store::{Checksum, ChecksumAlgorithm, ETagPolicy, ErrorKind, Expected, PutOptions, Store};

use super::{assert_kind, bucket, get, head, key, put};

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
    let crc = Checksum { algorithm: ChecksumAlgorithm::Crc32, value: vec![1, 2, 3, 4], parts: None };
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
