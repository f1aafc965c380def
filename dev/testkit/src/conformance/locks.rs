//! Object lock and renames.

use std::time::{Duration, SystemTime};

use fordway_store::{
    Bucket, CompleteOptions, CompletedPart, Conditions, CopyOptions, DefaultRetention, DeleteOptions,
    ErrorKind, ExpectedContent, GetOptions, LockConfiguration, ObjectLock, PartOptions, PutOptions,
    RenameOptions, Result, Retention, RetentionMode, RetentionPeriod, Store, VersionId, VersioningState,
    VersionsQuery, ms_since_1970,
};

use super::{all_keys, assert_kind, bucket, get, head, key, put};

/// The retention mode that tests use by default.
const GOVERNANCE: RetentionMode = RetentionMode::Governance;

fn lockable(store: &dyn Store) -> Bucket {
    let bucket = bucket(store);
    store.set_versioning(&bucket, VersioningState::Enabled).unwrap();
    store.set_lock_configuration(&bucket, &LockConfiguration::default()).unwrap();
    bucket
}

/// Returns a retention that ends in `hours` hours, rounded to seconds because not every lane keeps fractions.
fn hours(mode: RetentionMode, hours: u64) -> Retention {
    let until = SystemTime::now() + Duration::from_secs(hours * 3600);
    Retention { mode, until_ms: ms_since_1970(until) / 1000 * 1000 }
}

fn retained(retention: Retention) -> PutOptions {
    PutOptions { lock: ObjectLock { retention: Some(retention), legal_hold: None }, ..Default::default() }
}

fn put_with(store: &dyn Store, b: &Bucket, name: &str, options: &PutOptions) -> VersionId {
    store.put(b, &key(name), b"content", options).unwrap().version.expect("the bucket keeps versions")
}

fn remove(store: &dyn Store, b: &Bucket, name: &str, version: &VersionId, bypass: bool) -> Result<()> {
    let options =
        DeleteOptions { version: Some(version.clone()), bypass_governance: bypass, ..Default::default() };
    store.delete(b, &key(name), &options).map(drop)
}

fn lock_of(store: &dyn Store, b: &Bucket, name: &str, version: &VersionId) -> ObjectLock {
    store.head(b, &key(name), &GetOptions::version(version.clone())).unwrap().lock
}

/// Object lock requires versioning. If object lock is set, versioning can no longer be suspended.
pub fn object_lock_is_a_setting_of_the_bucket(store: &dyn Store) {
    let b = bucket(store);
    assert_eq!(store.lock_configuration(&b).unwrap(), None);
    let none = LockConfiguration::default();
    assert_kind(store.set_lock_configuration(&b, &none), ErrorKind::InvalidArgument);
    store.set_versioning(&b, VersioningState::Suspended).unwrap();
    assert_kind(store.set_lock_configuration(&b, &none), ErrorKind::InvalidArgument);
    store.set_versioning(&b, VersioningState::Enabled).unwrap();
    for period in [None, Some(RetentionPeriod::Days(30)), Some(RetentionPeriod::Years(2)), None] {
        let default = period.map(|period| DefaultRetention { mode: RetentionMode::Compliance, period });
        store.set_lock_configuration(&b, &LockConfiguration { default }).unwrap();
        assert_eq!(store.lock_configuration(&b).unwrap(), Some(LockConfiguration { default }));
    }
    assert_kind(store.set_versioning(&b, VersioningState::Suspended), ErrorKind::InvalidArgument);
    store.set_versioning(&b, VersioningState::Enabled).unwrap();
    assert_eq!(store.lock_configuration(&b).unwrap(), Some(none));
    for count in [0, 36_501] {
        let period = RetentionPeriod::Days(count);
        let default = Some(DefaultRetention { mode: GOVERNANCE, period });
        let wrong = store.set_lock_configuration(&b, &LockConfiguration { default });
        assert_kind(wrong, ErrorKind::InvalidArgument);
    }
    let missing = Bucket::new("missing").unwrap();
    assert_kind(store.lock_configuration(&missing), ErrorKind::NoSuchBucket);
}

/// In a bucket without object lock, nothing can be locked.
pub fn without_object_lock_nothing_is_locked(store: &dyn Store) {
    let b = bucket(store);
    put(store, &b, "k", b"content");
    for state in [None, Some(VersioningState::Enabled)] {
        state.into_iter().for_each(|state| store.set_versioning(&b, state).unwrap());
        let options = retained(hours(GOVERNANCE, 1));
        assert_kind(store.put(&b, &key("k"), b"locked", &options), ErrorKind::InvalidArgument);
        assert_kind(store.create_upload(&b, &key("k"), &options), ErrorKind::InvalidArgument);
        let copy = CopyOptions { lock: options.lock, ..Default::default() };
        assert_kind(store.copy((&b, &key("k")), &b, &key("copy"), &copy), ErrorKind::InvalidArgument);
        let set = store.set_retention(&b, &key("k"), None, options.lock.retention, false);
        assert_kind(set, ErrorKind::InvalidArgument);
        assert_kind(store.set_legal_hold(&b, &key("k"), None, true), ErrorKind::InvalidArgument);
        assert_eq!(get(store, &b, "k").unwrap(), b"content");
    }
    assert_eq!(all_keys(store, &b), ["k"]);
}

/// A retained version cannot be deleted. A delete without a version ID hides the version, and an overwrite keeps it.
pub fn a_retained_version_stays(store: &dyn Store) {
    let b = lockable(store);
    for name in ["k", "dir/k", "odd//k"] {
        for mode in RetentionMode::ALL {
            let retention = hours(mode, 1);
            let version = put_with(store, &b, name, &retained(retention));
            assert_eq!(lock_of(store, &b, name, &version).retention, Some(retention));
            // Try to delete the version when it is the latest version, when it is an old version, and when a delete
            // marker hides it.
            assert_kind(remove(store, &b, name, &version, false), ErrorKind::AccessDenied);
            put(store, &b, name, b"newer");
            assert_kind(remove(store, &b, name, &version, false), ErrorKind::AccessDenied);
            let marker = store.delete(&b, &key(name), &DeleteOptions::default()).unwrap();
            assert!(marker.is_marker);
            assert_kind(remove(store, &b, name, &version, false), ErrorKind::AccessDenied);
            let read = store.get(&b, &key(name), &GetOptions::version(version.clone())).unwrap();
            assert_eq!(read.content.into_vec().unwrap(), b"content");
            assert_kind(store.delete_bucket(&b), ErrorKind::BucketNotEmpty);
            let may_bypass = mode == GOVERNANCE;
            let bypassed = remove(store, &b, name, &version, true);
            assert_eq!(
                bypassed.map_err(|error| error.kind()).err(),
                (!may_bypass).then_some(ErrorKind::AccessDenied)
            );
        }
    }
}

/// A new version, or an upload, cannot have a retention that has ended.
pub fn a_new_version_has_no_retention_in_the_past(store: &dyn Store) {
    let b = lockable(store);
    for mode in RetentionMode::ALL {
        let ended = retained(Retention { mode, until_ms: 1000 });
        assert_kind(store.put(&b, &key("k"), b"content", &ended), ErrorKind::InvalidArgument);
        assert_kind(store.create_upload(&b, &key("k"), &ended), ErrorKind::InvalidArgument);
        put(store, &b, "from", b"content");
        let options = CopyOptions { lock: ended.lock, ..Default::default() };
        assert_kind(store.copy((&b, &key("from")), &b, &key("k"), &options), ErrorKind::InvalidArgument);
    }
    assert_kind(head(store, &b, "k"), ErrorKind::NoSuchKey);
}

/// A retention can be extended. Only a retention in governance mode can be shortened or removed, and only with a
/// bypass.
pub fn a_retention_is_only_extended(store: &dyn Store) {
    let b = lockable(store);
    let set = |name: &str, retention: Option<Retention>, bypass: bool| {
        store.set_retention(&b, &key(name), None, retention, bypass)
    };
    for mode in RetentionMode::ALL {
        let name = mode.name();
        let version = put_with(store, &b, name, &PutOptions::default());
        assert_eq!(lock_of(store, &b, name, &version), ObjectLock::NONE);
        for extended in [2, 3] {
            set(name, Some(hours(mode, extended)), false).unwrap();
        }
        let kept = lock_of(store, &b, name, &version);
        for shorter in [Some(hours(mode, 1)), None] {
            assert_kind(set(name, shorter, false), ErrorKind::AccessDenied);
        }
        assert_kind(set(name, Some(Retention { until_ms: 1000, mode }), true), ErrorKind::InvalidArgument);
        assert_eq!(lock_of(store, &b, name, &version), kept);
        let other = RetentionMode::ALL.into_iter().find(|other| *other != mode).unwrap();
        assert_kind(set(name, Some(hours(other, 9)), false), ErrorKind::AccessDenied);
    }
    let compliance = RetentionMode::Compliance.name();
    assert_kind(set(compliance, Some(hours(RetentionMode::Compliance, 1)), true), ErrorKind::AccessDenied);
    set(GOVERNANCE.name(), Some(hours(GOVERNANCE, 1)), true).unwrap();
    set(GOVERNANCE.name(), None, true).unwrap();
    let version = head(store, &b, GOVERNANCE.name()).unwrap().version.unwrap();
    remove(store, &b, GOVERNANCE.name(), &version, false).unwrap();
    assert_kind(set("missing", Some(hours(GOVERNANCE, 1)), false), ErrorKind::NoSuchKey);
}

/// A legal hold protects a version until the hold is removed, even after the version's retention ends.
pub fn a_legal_hold_protects(store: &dyn Store) {
    let b = lockable(store);
    let lock = ObjectLock { retention: None, legal_hold: Some(true) };
    let first = put_with(store, &b, "k", &PutOptions { lock, ..Default::default() });
    let second = put_with(store, &b, "k", &PutOptions::default());
    assert_eq!(lock_of(store, &b, "k", &first), lock);
    assert_kind(remove(store, &b, "k", &first, true), ErrorKind::AccessDenied);
    let none = fordway_store::VersionId::new("None").unwrap();
    assert_kind(store.set_legal_hold(&b, &key("k"), Some(&none), false), ErrorKind::NoSuchVersion);
    let released = store.set_retention(&b, &key("k"), Some(&none), None, false);
    assert_kind(released, ErrorKind::NoSuchVersion);
    store.set_legal_hold(&b, &key("k"), Some(&first), false).unwrap();
    assert_eq!(lock_of(store, &b, "k", &first).legal_hold, Some(false));
    remove(store, &b, "k", &first, false).unwrap();
    store.set_legal_hold(&b, &key("k"), None, true).unwrap();
    assert_kind(remove(store, &b, "k", &second, true), ErrorKind::AccessDenied);
    // Tags can still be changed, and the lock remains.
    let tags = fordway_store::Tags::from([("name".to_owned(), "value".to_owned())]);
    store.set_tags(&b, &key("k"), None, &tags).unwrap();
    assert_eq!(lock_of(store, &b, "k", &second).legal_hold, Some(true));
    store.set_legal_hold(&b, &key("k"), None, false).unwrap();
    remove(store, &b, "k", &second, false).unwrap();
    let left = store.list_versions(&b, &VersionsQuery::default()).unwrap();
    assert!(left.versions.is_empty());
    store.delete_bucket(&b).unwrap();
}

/// The default retention applies to every new version whose writer does not specify a retention.
pub fn the_default_retention_is_for_all_writers(store: &dyn Store) {
    let b = lockable(store);
    put(store, &b, "before", b"content");
    let period = RetentionPeriod::Days(1);
    let default = Some(DefaultRetention { mode: GOVERNANCE, period });
    store.set_lock_configuration(&b, &LockConfiguration { default }).unwrap();
    assert_eq!(head(store, &b, "before").unwrap().lock, ObjectLock::NONE);
    put(store, &b, "put", b"content");
    store.copy((&b, &key("before")), &b, &key("copied"), &CopyOptions::default()).unwrap();
    upload(store, &b, "uploaded", &PutOptions::default());
    let day = Duration::from_secs(24 * 3600);
    for name in ["put", "copied", "uploaded"] {
        let info = head(store, &b, name).unwrap();
        let retention = info.lock.retention.unwrap_or_else(|| panic!("{name} has no retention"));
        assert_eq!(retention.mode, GOVERNANCE);
        // The clocks of this test and of the store may differ, and headers contain whole seconds only.
        let off = retention.until_ms.abs_diff(ms_since_1970(SystemTime::now() + day));
        assert!(off < 600_000, "{name}: {off} ms");
        assert_kind(remove(store, &b, name, &info.version.unwrap(), false), ErrorKind::AccessDenied);
    }
    let asked = hours(RetentionMode::Compliance, 5);
    put_with(store, &b, "asked", &retained(asked));
    upload(store, &b, "asked-in-parts", &retained(asked));
    let copy = CopyOptions { lock: retained(asked).lock, ..Default::default() };
    store.copy((&b, &key("put")), &b, &key("asked-in-copy"), &copy).unwrap();
    for name in ["asked", "asked-in-parts", "asked-in-copy"] {
        assert_eq!(head(store, &b, name).unwrap().lock.retention, Some(asked), "{name}");
    }
}

fn upload(store: &dyn Store, b: &Bucket, name: &str, options: &PutOptions) {
    let id = store.create_upload(b, &key(name), options).unwrap();
    let mut part = store.part_writer(b, &key(name), &id, 1, &PartOptions::default()).unwrap();
    part.write(b"a part").unwrap();
    let made = part.commit(&ExpectedContent::default()).unwrap();
    let parts = [CompletedPart { number: 1, etag: made.etag, checksum: None }];
    store.complete_upload(b, &key(name), &id, &parts, &CompleteOptions::default()).unwrap();
}

/// A rename moves an object with all its properties, to any key, over any object.
pub fn a_rename_moves_an_object(store: &dyn Store) {
    let b = bucket(store);
    let from_to =
        [("a", "b"), ("a", "new/dir/b"), ("dir/a", "b"), ("odd//a", "b"), ("a", "odd//b"), ("a", "taken")];
    for (from, to) in from_to {
        put(store, &b, "taken", b"replaced");
        put(store, &b, "beside/it", b"stays");
        let metadata = fordway_store::Metadata {
            user: [("colour".to_owned(), "blue".to_owned())].into(),
            ..Default::default()
        };
        let tags = fordway_store::Tags::from([("name".to_owned(), "value".to_owned())]);
        let options = PutOptions { metadata: metadata.into(), tags, ..Default::default() };
        store.put(&b, &key(from), b"content", &options).unwrap();
        let before = head(store, &b, from).unwrap();
        store.rename(&b, &key(from), &key(to), &RenameOptions::default()).unwrap();
        assert_eq!(head(store, &b, to).unwrap(), before, "{from} to {to}");
        assert_eq!(get(store, &b, to).unwrap(), b"content");
        assert_kind(get(store, &b, from), ErrorKind::NoSuchKey);
        let mut expected = vec!["beside/it", to, "taken"];
        expected.sort_unstable();
        expected.dedup();
        assert_eq!(all_keys(store, &b), expected, "{from} to {to}");
        super::delete(store, &b, to);
    }
}

/// A rename may have conditions on both objects.
pub fn a_rename_has_conditions(store: &dyn Store) {
    let b = bucket(store);
    let (a, other) = (key("a"), key("b"));
    let tag = put(store, &b, "a", b"content").etag;
    let onto = |conditions| RenameOptions { conditions, ..Default::default() };
    let of = |source_conditions| RenameOptions { source_conditions, ..Default::default() };
    let wrong = Conditions::only_if(fordway_store::ETag::new("other"));
    assert_kind(store.rename(&b, &a, &other, &of(wrong.clone())), ErrorKind::PreconditionFailed);
    assert_kind(store.rename(&b, &a, &other, &onto(wrong.clone())), ErrorKind::NoSuchKey);
    let taken = put(store, &b, "b", b"in the way").etag;
    assert_kind(store.rename(&b, &a, &other, &onto(wrong)), ErrorKind::PreconditionFailed);
    assert_kind(
        store.rename(&b, &a, &other, &onto(Conditions::create_only())),
        ErrorKind::PreconditionFailed,
    );
    assert_eq!(get(store, &b, "b").unwrap(), b"in the way");
    let options =
        RenameOptions { source_conditions: Conditions::only_if(tag), conditions: Conditions::only_if(taken) };
    store.rename(&b, &a, &other, &options).unwrap();
    store.rename(&b, &other, &a, &onto(Conditions::create_only())).unwrap();
    assert_eq!(all_keys(store, &b), ["a"]);
    assert_eq!(get(store, &b, "a").unwrap(), b"content");
}

/// Impossible renames fail with a specific error, and change nothing.
pub fn a_rename_is_refused_by_name(store: &dyn Store) {
    let b = bucket(store);
    put(store, &b, "a", b"content");
    let rename = |from: &str, to: &str| store.rename(&b, &key(from), &key(to), &RenameOptions::default());
    assert_kind(rename("missing", "b"), ErrorKind::NoSuchKey);
    assert_kind(rename("a", "a"), ErrorKind::InvalidArgument);
    store.set_versioning(&b, VersioningState::Enabled).unwrap();
    assert_kind(rename("a", "b"), ErrorKind::NotImplemented);
    assert_eq!(all_keys(store, &b), ["a"]);
    let missing = Bucket::new("missing").unwrap();
    let moved = store.rename(&missing, &key("a"), &key("b"), &RenameOptions::default());
    assert_kind(moved, ErrorKind::NoSuchBucket);
}
