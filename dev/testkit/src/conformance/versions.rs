//! Cases for buckets with versioning.

use fordway_store::{
    Bucket, ChecksumAlgorithm, ChecksumType, Conditions, CopyOptions, DeleteOptions, DeleteResult, ErrorKind,
    ExpectedContent, GetOptions, PutOptions, Result, Store, Tags, VersionId, VersionListing, VersionSummary,
    VersioningState, VersionsQuery,
};

use super::{all_keys, assert_kind, bucket, delete, get, head, key, put};

fn versioned(store: &dyn Store) -> Bucket {
    let bucket = bucket(store);
    store.set_versioning(&bucket, VersioningState::Enabled).unwrap();
    bucket
}

/// Puts `body`, and returns the new version's ID.
fn put_version(store: &dyn Store, b: &Bucket, name: &str, body: &[u8]) -> VersionId {
    put(store, b, name, body).version.expect("the bucket keeps versions")
}

fn get_version(store: &dyn Store, b: &Bucket, name: &str, version: &VersionId) -> Result<Vec<u8>> {
    store.get(b, &key(name), &GetOptions::version(version.clone()))?.content.into_vec()
}

fn delete_version(store: &dyn Store, b: &Bucket, name: &str, version: &VersionId) -> DeleteResult {
    let options = DeleteOptions { version: Some(version.clone()), ..Default::default() };
    store.delete(b, &key(name), &options).unwrap()
}

fn mark(store: &dyn Store, b: &Bucket, name: &str) -> VersionId {
    let deleted = store.delete(b, &key(name), &DeleteOptions::default()).unwrap();
    assert!(deleted.is_marker);
    deleted.version.expect("a delete marker has a name")
}

/// Returns each version as `KEY@ID`, with `!` before the ID of a delete marker and `*` after the ID of the latest
/// version.
fn shown(versions: &[VersionSummary]) -> Vec<String> {
    let show = |version: &VersionSummary| {
        let marker = if version.content.is_none() { "!" } else { "" };
        let latest = if version.is_latest { "*" } else { "" };
        format!("{}@{marker}{}{latest}", version.key, version.version)
    };
    versions.iter().map(show).collect()
}

fn all_versions(store: &dyn Store, b: &Bucket) -> Vec<String> {
    let page = store.list_versions(b, &VersionsQuery::default()).unwrap();
    assert_eq!((page.next, page.prefixes.len()), (None, 0));
    shown(&page.versions)
}

/// Versioning can be switched on and off, but a bucket never becomes unversioned again.
pub fn versioning_is_a_state_of_the_bucket(store: &dyn Store) {
    let b = bucket(store);
    assert_eq!(store.versioning(&b).unwrap(), VersioningState::Unversioned);
    for state in [VersioningState::Enabled, VersioningState::Suspended, VersioningState::Enabled] {
        store.set_versioning(&b, state).unwrap();
        assert_eq!(store.versioning(&b).unwrap(), state);
    }
    assert_kind(store.set_versioning(&b, VersioningState::Unversioned), ErrorKind::InvalidArgument);
    assert_eq!(store.versioning(&b).unwrap(), VersioningState::Enabled);
    let missing = Bucket::new("missing").unwrap();
    assert_kind(store.versioning(&missing), ErrorKind::NoSuchBucket);
    assert_kind(store.set_versioning(&missing, VersioningState::Enabled), ErrorKind::NoSuchBucket);
    assert_kind(store.list_versions(&missing, &VersionsQuery::default()), ErrorKind::NoSuchBucket);
}

/// Without versioning, every object has one version, with the ID `null`.
pub fn without_versioning_there_is_one_version(store: &dyn Store) {
    let b = bucket(store);
    put(store, &b, "k", b"old");
    assert_eq!(put(store, &b, "k", b"new").version, None);
    assert_eq!(head(store, &b, "k").unwrap().version, None);
    assert_eq!(all_versions(store, &b), ["k@null*"]);
    assert_eq!(get_version(store, &b, "k", &VersionId::null()).unwrap(), b"new");
    assert_eq!(store.delete(&b, &key("k"), &DeleteOptions::default()).unwrap(), DeleteResult::default());
    assert!(all_versions(store, &b).is_empty());
    put(store, &b, "k", b"again");
    assert!(!delete_version(store, &b, "k", &VersionId::null()).is_marker);
    assert!(all_keys(store, &b).is_empty());
}

/// An overwritten object is kept under the version ID that its writer received.
pub fn overwriting_keeps_versions(store: &dyn Store) {
    let b = versioned(store);
    for name in ["k", "dir/k", "odd//k"] {
        let bodies: [&[u8]; 3] = [b"one", b"two!", b"three"];
        let made = bodies.map(|body| put_version(store, &b, name, body));
        for (version, body) in made.iter().zip(bodies) {
            assert_eq!(get_version(store, &b, name, version).unwrap(), body);
            let info = store.head(&b, &key(name), &GetOptions::version(version.clone())).unwrap();
            assert_eq!((info.version.as_ref(), info.size), (Some(version), body.len() as u64));
        }
        assert_eq!(get(store, &b, name).unwrap(), b"three");
        assert_eq!(head(store, &b, name).unwrap().version.as_ref(), Some(&made[2]));
        let query = VersionsQuery { prefix: name.to_owned(), ..Default::default() };
        let listed = store.list_versions(&b, &query).unwrap().versions;
        let [one, two, three] = made;
        assert_eq!(
            shown(&listed),
            [format!("{name}@{three}*"), format!("{name}@{two}"), format!("{name}@{one}")]
        );
        let sizes: Vec<_> = listed.iter().map(|version| version.content.clone().unwrap().0).collect();
        assert_eq!(sizes, [5, 4, 3]);
        let tag = store.head(&b, &key(name), &GetOptions::version(two)).unwrap().etag;
        assert_eq!(listed[1].content.clone().unwrap().1, tag);
    }
    assert_eq!(all_keys(store, &b), ["dir/k", "k", "odd//k"]);
}

/// An object that existed before versioning becomes the version `null`.
pub fn objects_of_before_are_the_version_null(store: &dyn Store) {
    let b = bucket(store);
    put(store, &b, "k", b"before");
    store.set_versioning(&b, VersioningState::Enabled).unwrap();
    assert_eq!(all_versions(store, &b), ["k@null*"]);
    let version = put_version(store, &b, "k", b"after");
    assert!(!version.is_null());
    assert_eq!(all_versions(store, &b), [format!("k@{version}*"), "k@null".to_owned()]);
    assert_eq!(get_version(store, &b, "k", &VersionId::null()).unwrap(), b"before");
    let info = store.head(&b, &key("k"), &GetOptions::version(VersionId::null())).unwrap();
    assert_eq!(info.version, None);
}

/// A delete hides the object behind a delete marker, which has a version ID. No version is lost.
pub fn a_delete_hides_behind_a_marker(store: &dyn Store) {
    let b = versioned(store);
    let version = put_version(store, &b, "k", b"x");
    let marker = mark(store, &b, "k");
    assert_ne!(marker, version);
    assert_kind(get(store, &b, "k"), ErrorKind::NoSuchKey);
    assert_kind(head(store, &b, "k"), ErrorKind::NoSuchKey);
    assert!(all_keys(store, &b).is_empty());
    assert_kind(get_version(store, &b, "k", &marker), ErrorKind::MethodNotAllowed);
    let head_of_marker = store.head(&b, &key("k"), &GetOptions::version(marker.clone()));
    let head_of_marker = head_of_marker.expect_err("a delete marker has no content");
    assert_eq!(head_of_marker.kind(), ErrorKind::MethodNotAllowed);
    assert!(head_of_marker.marker().is_none_or(|found| found.version == marker), "{head_of_marker:?}");
    for (name, is_hidden) in [("k", true), ("never", false)] {
        let missing = store.get(&b, &key(name), &GetOptions::default()).expect_err("there is no object");
        assert_eq!((missing.kind(), missing.is_at_delete_marker()), (ErrorKind::NoSuchKey, is_hidden));
        assert!(missing.marker().is_none_or(|found| found.version == marker), "{missing:?}");
    }
    assert_eq!(get_version(store, &b, "k", &version).unwrap(), b"x");
    let again = mark(store, &b, "k");
    assert_eq!(
        all_versions(store, &b),
        [format!("k@!{again}*"), format!("k@!{marker}"), format!("k@{version}")]
    );
    // Deleting a key that never existed also creates a delete marker.
    let of_nothing = mark(store, &b, "none");
    assert_eq!(all_versions(store, &b)[3], format!("none@!{of_nothing}*"));
    let newer = put_version(store, &b, "k", b"y");
    assert_eq!(all_versions(store, &b)[0], format!("k@{newer}*"));
    assert_eq!(get(store, &b, "k").unwrap(), b"y");
}

/// A version is removed permanently, and the newest remaining version becomes the latest.
pub fn deleting_a_version_promotes_the_next(store: &dyn Store) {
    let b = versioned(store);
    let one = put_version(store, &b, "d/k", b"one");
    let two = put_version(store, &b, "d/k", b"two");
    let three = put_version(store, &b, "d/k", b"three");
    let marker = mark(store, &b, "d/k");
    let removed = delete_version(store, &b, "d/k", &marker);
    assert_eq!(removed, DeleteResult { version: Some(marker.clone()), is_marker: true });
    assert_eq!(get(store, &b, "d/k").unwrap(), b"three");
    assert_eq!(all_keys(store, &b), ["d/k"]);

    let removed = delete_version(store, &b, "d/k", &three);
    assert_eq!(removed, DeleteResult { version: Some(three.clone()), is_marker: false });
    assert_eq!(get(store, &b, "d/k").unwrap(), b"two");
    assert_kind(get_version(store, &b, "d/k", &three), ErrorKind::NoSuchVersion);
    delete_version(store, &b, "d/k", &one);
    assert_eq!(all_versions(store, &b), [format!("d/k@{two}*")]);
    // Removing a removed version succeeds, and changes nothing.
    delete_version(store, &b, "d/k", &one);
    assert_eq!(get(store, &b, "d/k").unwrap(), b"two");
    delete_version(store, &b, "d/k", &two);
    assert_kind(get(store, &b, "d/k"), ErrorKind::NoSuchKey);
    assert!(all_versions(store, &b).is_empty());
    store.delete_bucket(&b).unwrap();
}

/// While versioning is suspended, writes and deletes replace only the version `null`.
pub fn suspended_versioning_replaces_null(store: &dyn Store) {
    let b = versioned(store);
    let kept = put_version(store, &b, "k", b"kept");
    store.set_versioning(&b, VersioningState::Suspended).unwrap();
    let made = put(store, &b, "k", b"null 1");
    // Over HTTP, the response omits the version ID `null`, as on AWS.
    assert!(made.version.is_none_or(|version| version.is_null()));
    put(store, &b, "k", b"null 2");
    assert_eq!(all_versions(store, &b), ["k@null*".to_owned(), format!("k@{kept}")]);
    assert_eq!(get(store, &b, "k").unwrap(), b"null 2");
    assert_eq!(get_version(store, &b, "k", &kept).unwrap(), b"kept");

    let deleted = store.delete(&b, &key("k"), &DeleteOptions::default()).unwrap();
    assert_eq!(deleted, DeleteResult { version: Some(VersionId::null()), is_marker: true });
    assert_eq!(all_versions(store, &b), ["k@!null*".to_owned(), format!("k@{kept}")]);
    store.set_versioning(&b, VersioningState::Enabled).unwrap();
    let newer = put_version(store, &b, "k", b"newer");
    assert_eq!(all_versions(store, &b), [format!("k@{newer}*"), "k@!null".to_owned(), format!("k@{kept}")]);
    // The version `null` is also replaced if it is not the latest.
    store.set_versioning(&b, VersioningState::Suspended).unwrap();
    put(store, &b, "k", b"null 3");
    assert_eq!(all_versions(store, &b), ["k@null*".to_owned(), format!("k@{newer}"), format!("k@{kept}")]);
}

/// A listing contains the checksum algorithm of each version, including the latest.
pub fn versions_list_their_checksums(store: &dyn Store) {
    let b = versioned(store);
    for algorithm in [ChecksumAlgorithm::Crc32, ChecksumAlgorithm::Sha256] {
        let options = PutOptions { checksum: Some(algorithm), ..Default::default() };
        let mut writer = store.writer(&b, &key("k"), &options).unwrap();
        writer.write(b"x").unwrap();
        writer.commit(&ExpectedContent::default()).unwrap();
    }
    store.delete(&b, &key("k"), &DeleteOptions::default()).unwrap();
    let page = store.list_versions(&b, &VersionsQuery::default()).unwrap();
    let listed = page.versions.iter().map(|version| version.checksum.map(|plan| (plan.algorithm, plan.kind)));
    let whole = ChecksumType::FullObject;
    assert_eq!(
        listed.collect::<Vec<_>>(),
        [None, Some((ChecksumAlgorithm::Sha256, whole)), Some((ChecksumAlgorithm::Crc32, whole))]
    );
}

/// Returns all pages, concatenated.
fn pages(store: &dyn Store, b: &Bucket, query: &VersionsQuery) -> (Vec<String>, Vec<String>) {
    let (mut query, mut joined) = (query.clone(), VersionListing::default());
    loop {
        let page = store.list_versions(b, &query).unwrap();
        let entries = page.versions.len() + page.prefixes.len();
        assert!(entries <= query.max_keys, "{entries} entries of {}", query.max_keys);
        assert!(entries > 0 || page.next.is_none(), "an empty page that is not the last");
        joined.versions.extend(page.versions);
        joined.prefixes.extend(page.prefixes);
        let Some((key, version)) = page.next else { break };
        (query.key_after, query.version_after) = (Some(key), version);
    }
    (shown(&joined.versions), joined.prefixes)
}

/// Pages of every length together make up the whole listing, even if a page ends between two versions of a key.
pub fn pages_of_versions_join(store: &dyn Store) {
    let b = versioned(store);
    for (name, count) in [("a", 3), ("dir/x", 2), ("dir/y", 1), ("dir//odd", 2), ("z", 1)] {
        (0..count).for_each(|body: u8| drop(put_version(store, &b, name, &[body])));
    }
    mark(store, &b, "a");
    mark(store, &b, "dir/y");
    put_version(store, &b, "a", b"back");
    for delimiter in [None, Some("/".to_owned())] {
        for prefix in ["", "dir/", "nothing"] {
            let query =
                VersionsQuery { prefix: prefix.into(), delimiter: delimiter.clone(), ..Default::default() };
            let whole = pages(store, &b, &query);
            for max_keys in 1..=whole.0.len() + whole.1.len() {
                let query = VersionsQuery { max_keys, ..query.clone() };
                assert_eq!(pages(store, &b, &query), whole, "{max_keys} at a time, {prefix:?} {delimiter:?}");
            }
        }
    }
    let nothing = VersionsQuery { max_keys: 0, ..Default::default() };
    assert_eq!(store.list_versions(&b, &nothing).unwrap(), VersionListing::default());
}

/// A prefix selects keys, a delimiter groups them, and a start position skips whole keys.
pub fn versions_are_selected_and_rolled_up(store: &dyn Store) {
    let b = versioned(store);
    let names = ["a/1", "a/1", "a/2", "b", "c/d/1"].map(|name| put_version(store, &b, name, b"x"));
    let rolled = |prefix: &str| {
        let query =
            VersionsQuery { prefix: prefix.into(), delimiter: Some("/".into()), ..Default::default() };
        pages(store, &b, &query)
    };
    assert_eq!(rolled(""), (vec![format!("b@{}*", names[3])], vec!["a/".to_owned(), "c/".to_owned()]));
    let below = [format!("a/1@{}*", names[1]), format!("a/1@{}", names[0]), format!("a/2@{}*", names[2])];
    assert_eq!(rolled("a/"), (below.to_vec(), vec![]));
    assert_eq!(rolled("c"), (vec![], vec!["c/".to_owned()]));
    let query = VersionsQuery { key_after: Some("a/1".into()), ..Default::default() };
    let after = [format!("a/2@{}*", names[2]), format!("b@{}*", names[3]), format!("c/d/1@{}*", names[4])];
    assert_eq!(pages(store, &b, &query).0, after);
    let query = VersionsQuery { version_after: Some(names[1].clone()), ..query };
    assert_eq!(pages(store, &b, &query).0[0], format!("a/1@{}", names[0]));
}

/// A missing version is reported as `NoSuchVersion`, even if the key is missing.
pub fn unknown_versions_are_named(store: &dyn Store) {
    let b = versioned(store);
    let other = put_version(store, &b, "other", b"x");
    put_version(store, &b, "k", b"x");
    for version in [other, VersionId::new("0123456789abcdef0123456789abcdef").unwrap(), VersionId::null()] {
        for name in ["k", "none"] {
            assert_kind(get_version(store, &b, name, &version), ErrorKind::NoSuchVersion);
            let options = GetOptions::version(version.clone());
            assert_kind(store.head(&b, &key(name), &options), ErrorKind::NoSuchVersion);
            assert_kind(store.tags(&b, &key(name), Some(&version)), ErrorKind::NoSuchVersion);
        }
        let options = CopyOptions { source_version: Some(version), ..Default::default() };
        let copied = store.copy((&b, &key("k")), &b, &key("copy"), &options);
        assert_kind(copied, ErrorKind::NoSuchVersion);
    }
    assert_kind(get(store, &b, "copy"), ErrorKind::NoSuchKey);
}

/// Every operation refuses a malformed version ID, such as `None`. Deleting a version that does not exist succeeds, so
/// without this check, a delete with a malformed ID would succeed too.
pub fn a_malformed_id_is_refused(store: &dyn Store) {
    let b = bucket(store);
    let none = VersionId::new("None").unwrap();
    let refused = |b: &Bucket| {
        for name in ["k", "none"] {
            assert_kind(get_version(store, b, name, &none), ErrorKind::NoSuchVersion);
            assert_kind(
                store.head(b, &key(name), &GetOptions::version(none.clone())),
                ErrorKind::NoSuchVersion,
            );
            assert_kind(store.tags(b, &key(name), Some(&none)), ErrorKind::NoSuchVersion);
            let tagged = store.set_tags(b, &key(name), Some(&none), &Tags::new());
            assert_kind(tagged, ErrorKind::NoSuchVersion);
            let options = DeleteOptions { version: Some(none.clone()), ..Default::default() };
            assert_kind(store.delete(b, &key(name), &options), ErrorKind::NoSuchVersion);
            let options = CopyOptions { source_version: Some(none.clone()), ..Default::default() };
            let copied = store.copy((b, &key(name)), b, &key("copy"), &options);
            assert_kind(copied, ErrorKind::NoSuchVersion);
        }
    };
    put(store, &b, "k", b"x");
    refused(&b);
    store.set_versioning(&b, VersioningState::Enabled).unwrap();
    refused(&b);
    put_version(store, &b, "k", b"y");
    refused(&b);
    assert_eq!(all_versions(store, &b).len(), 2);
}

/// A bucket is not empty while it has versions or delete markers.
pub fn a_bucket_with_versions_stays(store: &dyn Store) {
    let b = versioned(store);
    let version = put_version(store, &b, "k", b"x");
    let marker = mark(store, &b, "k");
    assert_kind(store.delete_bucket(&b), ErrorKind::BucketNotEmpty);
    delete_version(store, &b, "k", &version);
    assert_kind(store.delete_bucket(&b), ErrorKind::BucketNotEmpty);
    delete_version(store, &b, "k", &marker);
    store.delete_bucket(&b).unwrap();
}

/// A version can be copied, even over the latest version of its own key.
pub fn versions_are_copied(store: &dyn Store) {
    let b = versioned(store);
    let one = put_version(store, &b, "k", b"one");
    let two = put_version(store, &b, "k", b"two");
    let options = CopyOptions { source_version: Some(one.clone()), ..Default::default() };
    let copied = store.copy((&b, &key("k")), &b, &key("copy"), &options).unwrap();
    assert_eq!(get(store, &b, "copy").unwrap(), b"one");
    assert_eq!(head(store, &b, "copy").unwrap().version, copied.version);
    let restored = store.copy((&b, &key("k")), &b, &key("k"), &options).unwrap().version.unwrap();
    assert_eq!(get(store, &b, "k").unwrap(), b"one");
    let query = VersionsQuery { prefix: "k".into(), ..Default::default() };
    let listed = store.list_versions(&b, &query).unwrap().versions;
    assert_eq!(shown(&listed), [format!("k@{restored}*"), format!("k@{two}"), format!("k@{one}")]);
    mark(store, &b, "k");
    let hidden = store.copy((&b, &key("k")), &b, &key("x"), &CopyOptions::default());
    assert_kind(hidden, ErrorKind::NoSuchKey);
}

/// Conditions of writes and deletes apply to the latest version. A delete marker does not count as an object.
pub fn conditions_see_the_latest_version(store: &dyn Store) {
    let b = versioned(store);
    let first = put(store, &b, "k", b"1");
    let create = PutOptions { conditions: Conditions::create_only(), ..Default::default() };
    assert_kind(store.put(&b, &key("k"), b"2", &create), ErrorKind::PreconditionFailed);
    mark(store, &b, "k");
    let second = store.put(&b, &key("k"), b"2", &create).unwrap();
    let stale = DeleteOptions { conditions: Conditions::only_if(first.etag), ..Default::default() };
    assert_kind(store.delete(&b, &key("k"), &stale), ErrorKind::PreconditionFailed);
    let fits = DeleteOptions { conditions: Conditions::only_if(second.etag), ..Default::default() };
    assert!(store.delete(&b, &key("k"), &fits).unwrap().is_marker);
    assert_eq!(all_versions(store, &b).len(), 4);
}

/// Each version of a batch is removed permanently, even if the batch contains several versions of a key.
pub fn many_versions_are_deleted(store: &dyn Store) {
    let b = versioned(store);
    let [first, second] = [b"1", b"2"].map(|body| put_version(store, &b, "k", body));
    let marker = mark(store, &b, "k");
    let [other, odd] = ["d/l", "odd//\u{1}"].map(|name| put_version(store, &b, name, b"x"));
    let kept = put_version(store, &b, "d/l", b"y");
    let batch = [("d/l", &other), ("k", &first), ("k", &marker), ("odd//\u{1}", &odd)];
    let batch = batch.map(|(name, version)| (key(name), version.clone()));
    let deleted: Vec<_> = store.delete_versions(&b, &batch).into_iter().map(Result::unwrap).collect();
    assert_eq!(
        deleted.iter().map(|deleted| deleted.is_marker).collect::<Vec<_>>(),
        [false, false, true, false]
    );
    assert_eq!(all_versions(store, &b), [format!("d/l@{kept}*"), format!("k@{second}*")]);
    assert_eq!(get(store, &b, "k").unwrap(), b"2");
}

/// Each key of a batch gets its own delete marker.
pub fn many_are_marked(store: &dyn Store) {
    let b = versioned(store);
    let names = ["a", "d/b", "odd//c"];
    let made = names.map(|name| put_version(store, &b, name, b"x"));
    let done = store.delete_many(&b, &names.map(key));
    let markers: Vec<_> = done.into_iter().map(|deleted| deleted.unwrap()).collect();
    assert!(markers.iter().all(|deleted| deleted.is_marker));
    let expected = names.iter().zip(&markers).zip(&made).flat_map(|((name, marker), version)| {
        [format!("{name}@!{}*", marker.version.clone().unwrap()), format!("{name}@{version}")]
    });
    assert_eq!(all_versions(store, &b), expected.collect::<Vec<_>>());
    delete(store, &b, "a");
    assert!(all_keys(store, &b).is_empty());
}
