//! Buckets.

use std::time::{Duration, SystemTime};

use fordway_store::{
    Bucket, DeleteOptions, ErrorKind, GetOptions, ListQuery, PutOptions, Store, UploadsQuery,
};

use super::{assert_kind, bucket, delete, get, key, put};

/// A bucket appears in the list, once, and is gone when it was removed.
pub fn buckets_are_made_listed_and_removed(store: &dyn Store) {
    let names = ["zeta", "alpha", "mid.dle"].map(|name| Bucket::new(name).unwrap());
    names.iter().for_each(|name| store.create_bucket(name).unwrap());
    let listed: Vec<_> = store.list_buckets().unwrap().into_iter().map(|info| info.name).collect();
    assert_eq!(listed, ["alpha", "mid.dle", "zeta"].map(|name| Bucket::new(name).unwrap()));
    assert_kind(store.create_bucket(&names[0]), ErrorKind::BucketAlreadyOwnedByYou);
    let created = store.list_buckets().unwrap()[0].created;
    let age = SystemTime::now().duration_since(created).unwrap_or_default();
    assert!(age < Duration::from_secs(600), "{age:?}");
    assert_eq!(store.head_bucket(&names[0]).unwrap().name, names[0]);
    store.delete_bucket(&names[0]).unwrap();
    assert_kind(store.head_bucket(&names[0]), ErrorKind::NoSuchBucket);
    assert_eq!(store.list_buckets().unwrap().len(), 2);
}

/// New buckets have names of 3 to 255 bytes.
pub fn bucket_names_are_checked(store: &dyn Store) {
    for name in ["ab", "10.0.0.1", "a-b-", "a..b", "a.-b"] {
        assert_kind(store.create_bucket(&Bucket::new(name).unwrap()), ErrorKind::InvalidBucketName);
    }
    assert!(store.list_buckets().unwrap().is_empty());
    for name in ["a_b", &"x".repeat(64), &"X".repeat(255)] {
        let bucket = Bucket::new(name).unwrap();
        // Over S3 a new bucket has a name that Amazon would take.
        if store.lane() == "http" {
            assert_kind(store.create_bucket(&bucket), ErrorKind::InvalidBucketName);
            continue;
        }
        store.create_bucket(&bucket).unwrap();
        store.put(&bucket, &key("k"), b"x", &PutOptions::default()).unwrap();
        assert_eq!(store.list_buckets().unwrap()[0].name, bucket);
        store.delete(&bucket, &key("k"), &DeleteOptions::default()).unwrap();
        store.delete_bucket(&bucket).unwrap();
    }
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
