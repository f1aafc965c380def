//! Documents of buckets.

use fordway_store::{Bucket, DocumentKind, ErrorKind, MAX_DOCUMENT_BYTES, Store};

use super::{assert_kind, bucket};

const TAGGING: DocumentKind = DocumentKind::known("tagging");
const CORS: DocumentKind = DocumentKind::known("cors");

/// As a gateway writes it, so that it comes back as it is from every lane.
fn tagging(name: &str) -> String {
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?><Tagging xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">\
         <TagSet><Tag><Key>{name}</Key><Value>v</Value></Tag></TagSet></Tagging>"
    )
}

fn text(store: &dyn Store, bucket: &Bucket, kind: &DocumentKind) -> Option<String> {
    let document = store.document(bucket, kind).unwrap();
    document.map(|document| String::from_utf8(document).unwrap())
}

/// A document is set, replaced and removed, each kind by itself, and goes with the bucket.
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
    assert!(store.list(&b, &Default::default()).unwrap().entries.is_empty(), "documents are no objects");
    store.delete_document(&b, &TAGGING).unwrap();
    assert_eq!(text(store, &b, &TAGGING), None);
    store.set_document(&b, &TAGGING, tagging("third").as_bytes()).unwrap();
    store.delete_bucket(&b).unwrap();
    store.create_bucket(&b).unwrap();
    assert_eq!(text(store, &b, &TAGGING), None, "a new bucket has none");
}

/// Errors say what is missing or too large.
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
