//! Tags of objects.

use fordway_store::{
    Bucket, CompleteOptions, CopyOptions, ErrorKind, Expected, GetOptions, PartOptions, PutOptions, Store,
    Tags, Versioning,
};

use super::{assert_kind, bucket, get, head, key, put};

fn tags(listed: &[(&str, &str)]) -> Tags {
    listed.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn put_tagged(store: &dyn Store, b: &Bucket, name: &str, tags: &Tags) {
    let options = PutOptions { tags: tags.clone(), ..Default::default() };
    store.put(b, &key(name), b"x", &options).unwrap();
}

/// Tags come with a write or later, are replaced as a whole, and go with an overwrite.
pub fn tags_are_kept_and_replaced(store: &dyn Store) {
    let b = bucket(store);
    let first = tags(&[("a", "1"), ("b c", ""), ("ä&=+%", "ü \"<>'/?")]);
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

/// Tags lie beside the metadata, and changing the one leaves the other.
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

/// A copy has the tags of its source, or its own.
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

/// S3's limits hold wherever tags come in, and nothing is written that breaks them.
pub fn tags_have_limits(store: &dyn Store) {
    let b = bucket(store);
    put_tagged(store, &b, "k", &tags(&[("a", "1")]));
    let most: Tags = (0..10).map(|at| (format!("{at:0>128}"), "ä".repeat(256))).collect();
    put_tagged(store, &b, "most", &most);
    assert_eq!(store.tags(&b, &key("most"), None).unwrap(), most);
    let eleven: Tags = (0..11).map(|at| (at.to_string(), String::new())).collect();
    for bad in [eleven, tags(&[("", "v")]), tags(&[(&"x".repeat(129), "")]), tags(&[("n", &"x".repeat(257))])]
    {
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

/// Every version has tags of its own; a delete marker has none.
pub fn tags_of_versions(store: &dyn Store) {
    let b = bucket(store);
    store.set_versioning(&b, Versioning::Enabled).unwrap();
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

/// Tags given when an upload starts become its object's.
pub fn tags_of_an_upload(store: &dyn Store) {
    let b = bucket(store);
    let wanted = tags(&[("a", "1"), ("b", "2")]);
    let options = PutOptions { tags: wanted.clone(), ..Default::default() };
    let upload = store.create_upload(&b, &key("k"), &options).unwrap();
    let mut part = store.part_writer(&b, &key("k"), &upload, 1, &PartOptions::default()).unwrap();
    part.write(b"x").unwrap();
    let etag = part.commit(&Expected::default()).unwrap().etag;
    let parts = [fordway_store::CompletedPart::new(1, etag)];
    store.complete_upload(&b, &key("k"), &upload, &parts, &CompleteOptions::default()).unwrap();
    assert_eq!(store.tags(&b, &key("k"), None).unwrap(), wanted);
    assert_eq!(head(store, &b, "k").unwrap().tag_count, 2);
}
