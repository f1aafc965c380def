//! Buckets, their documents, and tags of objects.

use std::time::{Duration, SystemTime};

use fordway_store::{
    Bucket, BucketDocumentKind, CompleteOptions, CopyOptions, DeleteOptions, ErrorKind, ExpectedContent,
    GetOptions, ListQuery, MAX_DOCUMENT_BYTES, PartOptions, PutOptions, Store, Tags, UploadsQuery,
    VersioningState,
};

use super::{assert_kind, bucket, delete, get, head, key, put};

/// A bucket is listed exactly once, and not at all after its removal.
pub fn buckets_are_made_listed_and_removed(store: &dyn Store) {
    let names = ["zeta", "alpha", "mid.dle"].map(|name| Bucket::new(name).unwrap());
    names.iter().for_each(|name| store.create_bucket(name).unwrap());
    let listed: Vec<_> = store.list_buckets().unwrap().into_iter().map(|info| info.name).collect();
    assert_eq!(listed, ["alpha", "mid.dle", "zeta"].map(|name| Bucket::new(name).unwrap()));
    let some = store.find_buckets(&|name| name.as_str() > "alpha", 1).unwrap();
    assert_eq!(some.into_iter().map(|info| info.name).collect::<Vec<_>>(), [names[2].clone()]);
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
        // Over HTTP, a new bucket needs a name that AWS would accept.
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

/// Every call on a missing bucket fails with `NoSuchBucket`.
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

/// A bucket can be removed only when it has no objects.
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

const TAGGING: BucketDocumentKind = BucketDocumentKind::known("tagging");
const CORS: BucketDocumentKind = BucketDocumentKind::known("cors");

/// Returns a tagging document in the form that the gateway returns, so that every lane returns the document unchanged.
fn tagging(name: &str) -> String {
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?><Tagging xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">\
         <TagSet><Tag><Key>{name}</Key><Value>v</Value></Tag></TagSet></Tagging>"
    )
}

fn text(store: &dyn Store, bucket: &Bucket, kind: &BucketDocumentKind) -> Option<String> {
    let document = store.document(bucket, kind).unwrap();
    document.map(|document| String::from_utf8(document).unwrap())
}

/// A document of each kind can be set, replaced and removed separately, and is removed with its bucket.
pub fn documents_are_kept_and_replaced(store: &dyn Store) {
    let b = bucket(store);
    assert_eq!(text(store, &b, &TAGGING), None);
    store.delete_document(&b, &TAGGING).unwrap();
    for name in ["first", "second"] {
        store.set_document(&b, &TAGGING, tagging(name).as_bytes()).unwrap();
        let kept = text(store, &b, &TAGGING).unwrap();
        assert!(kept.contains(&format!("<Key>{name}</Key>")), "{kept}");
    }
    assert_eq!(text(store, &b, &CORS), None, "another kind");
    assert!(store.list(&b, &Default::default()).unwrap().entries.is_empty(), "documents are not objects");
    store.delete_document(&b, &TAGGING).unwrap();
    assert_eq!(text(store, &b, &TAGGING), None);
    store.set_document(&b, &TAGGING, tagging("third").as_bytes()).unwrap();
    store.delete_bucket(&b).unwrap();
    store.create_bucket(&b).unwrap();
    assert_eq!(text(store, &b, &TAGGING), None, "a new bucket has none");
}

/// Calls on a missing bucket fail with `NoSuchBucket`, and calls with a document that is too large fail with
/// `EntityTooLarge`.
pub fn documents_have_limits(store: &dyn Store) {
    let missing = Bucket::new("missing").unwrap();
    assert_kind(store.document(&missing, &CORS), ErrorKind::NoSuchBucket);
    assert_kind(store.set_document(&missing, &TAGGING, tagging("k").as_bytes()), ErrorKind::NoSuchBucket);
    assert_kind(store.delete_document(&missing, &CORS), ErrorKind::NoSuchBucket);
    let b = bucket(store);
    let long = vec![b'x'; MAX_DOCUMENT_BYTES + 1];
    assert_kind(store.set_document(&b, &TAGGING, &long), ErrorKind::EntityTooLarge);
    assert_eq!(text(store, &b, &TAGGING), None);
}

fn tags(listed: &[(&str, &str)]) -> Tags {
    listed.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn put_tagged(store: &dyn Store, b: &Bucket, name: &str, tags: &Tags) {
    let options = PutOptions { tags: tags.clone(), ..Default::default() };
    store.put(b, &key(name), b"x", &options).unwrap();
}

/// Tags can be set by a write or later. They are replaced as a whole, and removed by an overwrite.
pub fn tags_are_kept_and_replaced(store: &dyn Store) {
    let b = bucket(store);
    let first = tags(&[("a", "1"), ("b c", ""), ("ä=+ _", "ü @:/.-")]);
    for name in ["k", "dir/k", "odd//k"] {
        put_tagged(store, &b, name, &first);
        assert_eq!(store.tags(&b, &key(name), None).unwrap(), first);
        let before = head(store, &b, name).unwrap();
        assert_eq!(before.tag_count, 3);
        let second = tags(&[("n", "v")]);
        store.set_tags(&b, &key(name), None, &second).unwrap();
        assert_eq!(store.tags(&b, &key(name), None).unwrap(), second);
        let after = head(store, &b, name).unwrap();
        assert_eq!(after.tag_count, 1);
        assert_eq!((after.etag, after.modified), (before.etag, before.modified));
        assert_eq!(get(store, &b, name).unwrap(), b"x");
        store.set_tags(&b, &key(name), None, &Tags::new()).unwrap();
        assert!(store.tags(&b, &key(name), None).unwrap().is_empty());
        store.set_tags(&b, &key(name), None, &first).unwrap();
        put(store, &b, name, b"new");
        assert!(store.tags(&b, &key(name), None).unwrap().is_empty());
        assert_eq!(head(store, &b, name).unwrap().tag_count, 0);
    }
    assert_kind(store.tags(&b, &key("none"), None), ErrorKind::NoSuchKey);
    assert_kind(store.set_tags(&b, &key("none"), None, &first), ErrorKind::NoSuchKey);
}

/// Tags and metadata are independent: a change of the tags leaves the metadata unchanged, and vice versa.
pub fn tags_leave_the_metadata(store: &dyn Store) {
    let b = bucket(store);
    let metadata = fordway_store::BoxedMetadata::from(fordway_store::Metadata {
        content_type: Some("a/b".into()),
        user: [("n".into(), "v".into())].into(),
        ..Default::default()
    });
    let options = PutOptions { metadata: metadata.clone(), ..Default::default() };
    store.put(&b, &key("k"), b"x", &options).unwrap();
    store.set_tags(&b, &key("k"), None, &tags(&[("a", "1")])).unwrap();
    assert_eq!(head(store, &b, "k").unwrap().metadata, metadata);
}

/// A copy has the tags of its source, or the tags that its caller specifies.
pub fn tags_survive_copies(store: &dyn Store) {
    let b = bucket(store);
    let old = tags(&[("old", "1")]);
    put_tagged(store, &b, "from", &old);
    store.copy((&b, &key("from")), &b, &key("kept"), &CopyOptions::default()).unwrap();
    assert_eq!(store.tags(&b, &key("kept"), None).unwrap(), old);
    let new = tags(&[("new", "2")]);
    for to in ["replaced", "from"] {
        let options = CopyOptions { tags: Some(new.clone()), ..Default::default() };
        store.copy((&b, &key("from")), &b, &key(to), &options).unwrap();
        assert_eq!(store.tags(&b, &key(to), None).unwrap(), new);
        assert_eq!(get(store, &b, to).unwrap(), b"x");
    }
    let none = CopyOptions { tags: Some(Tags::new()), ..Default::default() };
    store.copy((&b, &key("kept")), &b, &key("bare"), &none).unwrap();
    assert!(store.tags(&b, &key("bare"), None).unwrap().is_empty());
}

/// S3's limits apply to every operation that sets tags. An operation that exceeds the limits fails and writes nothing.
pub fn tags_have_limits(store: &dyn Store) {
    let b = bucket(store);
    put_tagged(store, &b, "k", &tags(&[("a", "1")]));
    let most: Tags = (0..10).map(|at| (format!("{at:0>128}"), "ä".repeat(256))).collect();
    put_tagged(store, &b, "most", &most);
    assert_eq!(store.tags(&b, &key("most"), None).unwrap(), most);
    let eleven: Tags = (0..11).map(|at| (at.to_string(), String::new())).collect();
    let (long, longer) = ("x".repeat(129), "x".repeat(257));
    let each = [("", "v"), (&*long, ""), ("n", &*longer), ("a&b", ""), ("n", "100%")];
    for bad in each.into_iter().map(|tag| tags(&[tag])).chain([eleven]) {
        assert_kind(store.set_tags(&b, &key("k"), None, &bad), ErrorKind::InvalidTag);
        let options = PutOptions { tags: bad.clone(), ..Default::default() };
        assert_kind(store.put(&b, &key("k"), b"new", &options), ErrorKind::InvalidTag);
        assert_kind(store.create_upload(&b, &key("k"), &options), ErrorKind::InvalidTag);
        let options = CopyOptions { tags: Some(bad), ..Default::default() };
        let copied = store.copy((&b, &key("k")), &b, &key("copy"), &options);
        assert_kind(copied, ErrorKind::InvalidTag);
    }
    assert_eq!(get(store, &b, "k").unwrap(), b"x");
    assert_eq!(store.tags(&b, &key("k"), None).unwrap(), tags(&[("a", "1")]));
}

/// Every version has its own tags. A delete marker has no tags.
pub fn tags_of_versions(store: &dyn Store) {
    let b = bucket(store);
    store.set_versioning(&b, VersioningState::Enabled).unwrap();
    let one = put(store, &b, "k", b"one").version.unwrap();
    let two = put(store, &b, "k", b"two").version.unwrap();
    store.set_tags(&b, &key("k"), Some(&one), &tags(&[("one", "1")])).unwrap();
    store.set_tags(&b, &key("k"), None, &tags(&[("two", "2")])).unwrap();
    assert_eq!(store.tags(&b, &key("k"), Some(&one)).unwrap(), tags(&[("one", "1")]));
    assert_eq!(store.tags(&b, &key("k"), Some(&two)).unwrap(), tags(&[("two", "2")]));
    assert_eq!(store.tags(&b, &key("k"), None).unwrap(), tags(&[("two", "2")]));
    let info = store.head(&b, &key("k"), &GetOptions::version(one.clone())).unwrap();
    assert_eq!((info.tag_count, info.size), (1, 3));
    let marker = store.delete(&b, &key("k"), &Default::default()).unwrap().version.unwrap();
    assert_kind(store.tags(&b, &key("k"), None), ErrorKind::NoSuchKey);
    assert_kind(store.tags(&b, &key("k"), Some(&marker)), ErrorKind::MethodNotAllowed);
    let refused = store.set_tags(&b, &key("k"), Some(&marker), &tags(&[("x", "")]));
    assert_kind(refused, ErrorKind::MethodNotAllowed);
    assert_eq!(store.tags(&b, &key("k"), Some(&two)).unwrap(), tags(&[("two", "2")]));
}

/// A completed object has the tags with which its upload was created.
pub fn tags_of_an_upload(store: &dyn Store) {
    let b = bucket(store);
    let wanted = tags(&[("a", "1"), ("b", "2")]);
    let options = PutOptions { tags: wanted.clone(), ..Default::default() };
    let upload = store.create_upload(&b, &key("k"), &options).unwrap();
    let mut part = store.part_writer(&b, &key("k"), &upload, 1, &PartOptions::default()).unwrap();
    part.write(b"x").unwrap();
    let etag = part.commit(&ExpectedContent::default()).unwrap().etag;
    let parts = [fordway_store::CompletedPart::new(1, etag)];
    store.complete_upload(&b, &key("k"), &upload, &parts, &CompleteOptions::default()).unwrap();
    assert_eq!(store.tags(&b, &key("k"), None).unwrap(), wanted);
    assert_eq!(head(store, &b, "k").unwrap().tag_count, 2);
}
