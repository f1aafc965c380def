//! Checks how the cost of a call grows when there are ten and forty times as many objects or versions. The cost is
//! counted in system calls, which do not depend on the machine.

use std::time::Duration;

use fordway_posix::{LifecycleOptions, PosixConfig, PosixStore};
use fordway_store::{
    Bucket, BucketDocumentKind, BucketDocumentOperations, DeleteOptions, GetOptions, Key, ListQuery,
    MultipartUploadOperations, ObjectTagOperations, ObjectVersionOperations, Objects, PutOptions, Tags,
    UploadsQuery, VersionId, VersioningState, VersionsQuery,
};
use fordway_sys::fault::{FaultInjectionPlan, run};
use tempfile::TempDir;

/// The number of other objects or versions.
const SIZES: [usize; 3] = [100, 1_000, 4_000];

fn open() -> (TempDir, PosixStore, Bucket) {
    let (dir, bucket) = (tempfile::tempdir().unwrap(), Bucket::new("bucket").unwrap());
    let store = PosixStore::open(dir.path(), PosixConfig::default()).unwrap();
    store.create_bucket(&bucket).unwrap();
    (dir, store, bucket)
}

fn key(key: &str) -> Key {
    Key::new(key).unwrap()
}

fn put(store: &PosixStore, bucket: &Bucket, name: &str) -> Option<VersionId> {
    store.put(bucket, &key(name), b"content", &PutOptions::default()).unwrap().version
}

/// Counts the system calls of several identical calls, and returns the minimum. An additional first call fills the
/// caches. On a slow machine, any call may have to refresh expired cache entries, so only the minimum is meaningful.
fn calls(mut act: impl FnMut()) -> usize {
    act();
    let counts = (0..5).map(|_| run(FaultInjectionPlan::default(), &mut act).1.len());
    counts.min().unwrap_or_default()
}

/// Panics if the last count is more than `ratio` times the first count.
#[track_caller]
fn assert_flat(what: &str, counts: &[usize], ratio: f64) {
    let (least, most) = (counts[0], counts[counts.len() - 1]);
    let is_flat = least > 0 && most as f64 <= least as f64 * ratio;
    assert!(is_flat, "{what}: {counts:?} system calls at {SIZES:?}");
}

/// Panics if the recorded calls read a directory, or if no call was recorded.
#[track_caller]
fn assert_reads_no_names(called: &[&str]) {
    assert!(!called.is_empty() && !called.contains(&"getdents64"), "all names were read: {called:?}");
}

#[test]
fn a_key_with_many_versions_costs_what_one_with_few_does() {
    let (mut puts, mut gets, mut heads) = (Vec::new(), Vec::new(), Vec::new());
    for size in SIZES {
        let (_dir, store, bucket) = open();
        store.set_versioning(&bucket, VersioningState::Enabled).unwrap();
        let versions: Vec<_> = (0..size).map(|_| put(&store, &bucket, "k").unwrap()).collect();
        let middle = GetOptions::version(versions[size / 2].clone());
        puts.push(calls(|| drop(put(&store, &bucket, "k"))));
        gets.push(calls(|| drop(store.get(&bucket, &key("k"), &middle).unwrap())));
        heads.push(calls(|| drop(store.head(&bucket, &key("k"), &middle).unwrap())));
    }
    assert_flat("put", &puts, 1.2);
    assert_flat("get by version", &gets, 1.2);
    assert_flat("head by version", &heads, 1.2);
}

/// Removes versions one after the other, in the order of a listing and in the opposite order.
#[test]
fn a_delete_among_many_versions_costs_what_one_among_few_does() {
    for is_newest_first in [true, false] {
        let mut deletes = Vec::new();
        for size in [SIZES[0], SIZES[1]] {
            let (_dir, store, bucket) = open();
            store.set_versioning(&bucket, VersioningState::Enabled).unwrap();
            let mut versions: Vec<_> = (0..size).map(|_| put(&store, &bucket, "k").unwrap()).collect();
            if is_newest_first {
                versions.reverse();
            }
            let mut versions = versions.into_iter();
            let mut delete = || {
                let options = DeleteOptions { version: versions.next(), ..Default::default() };
                store.delete(&bucket, &key("k"), &options).unwrap();
            };
            // The second read of the names creates the index.
            delete();
            delete();
            let counts = (0..20).map(|_| {
                let called = run(FaultInjectionPlan::default(), &mut delete).1;
                assert_reads_no_names(&called);
                called.len()
            });
            deletes.push(counts.min().unwrap());
        }
        assert_flat("delete of a version", &deletes, 1.2);
    }
}

#[test]
fn puts_and_deletes_of_a_key_with_many_versions_read_no_names() {
    for versioning in [VersioningState::Enabled, VersioningState::Suspended] {
        let (_dir, store, bucket) = open();
        store.set_versioning(&bucket, VersioningState::Enabled).unwrap();
        (0..SIZES[1]).for_each(|_| drop(put(&store, &bucket, "k")));
        store.set_versioning(&bucket, versioning).unwrap();
        let missing = GetOptions::version(VersionId::new("0123456789abcdef.0123456789abcdef").unwrap());
        let step = || {
            put(&store, &bucket, "k");
            put(&store, &bucket, "k");
            store.delete(&bucket, &key("k"), &Default::default()).unwrap();
            store.delete(&bucket, &key("k"), &Default::default()).unwrap();
            store.get(&bucket, &key("k"), &GetOptions::default()).unwrap_err();
            store.head(&bucket, &key("k"), &missing).unwrap_err();
        };
        let first = run(FaultInjectionPlan::default(), step).1;
        assert!(first.contains(&"getdents64"), "the names are read once: {first:?}");
        step();
        assert_reads_no_names(&run(FaultInjectionPlan::default(), step).1);
    }
}

#[test]
fn expiry_of_a_version_costs_the_same_among_many() {
    const RULES: &[u8] =
        b"<LifecycleConfiguration><Rule><Status>Enabled</Status><Filter/><NoncurrentVersionExpiration>\
        <NoncurrentDays>1</NoncurrentDays><NewerNoncurrentVersions>3</NewerNoncurrentVersions>\
        </NoncurrentVersionExpiration></Rule></LifecycleConfiguration>";
    let mut per_version = Vec::new();
    for size in [SIZES[0], SIZES[1]] {
        let (_dir, store, bucket) = open();
        store.set_versioning(&bucket, VersioningState::Enabled).unwrap();
        store.set_document(&bucket, &BucketDocumentKind::known("lifecycle"), RULES).unwrap();
        (0..size).for_each(|_| drop(put(&store, &bucket, "k")));
        std::thread::sleep(Duration::from_millis(50));
        let options = LifecycleOptions { day: Duration::from_millis(1), ..Default::default() };
        let expire = |dry_run: bool| {
            let options = LifecycleOptions { dry_run, ..options.clone() };
            let act = || store.run_lifecycle(&options, &mut |_| Ok(())).unwrap();
            let (summary, called) = run(FaultInjectionPlan::default(), act);
            assert_eq!(summary.changed as usize, size - 4);
            let reads = called.iter().filter(|call| **call == "getdents64").count();
            assert!(reads <= 30, "{size} versions: {reads} reads of directories");
            called.len()
        };
        per_version.push((expire(true) + expire(false)).div_ceil(size));
    }
    assert_flat("expiry of a version", &per_version, 1.2);
}

#[test]
fn a_small_page_of_versions_looks_at_few_keys() {
    let mut pages = Vec::new();
    for size in [SIZES[0], SIZES[1]] {
        let (_dir, store, bucket) = open();
        store.set_versioning(&bucket, VersioningState::Enabled).unwrap();
        (0..size).for_each(|at| drop(put(&store, &bucket, &format!("d{at:06}/k"))));
        std::thread::sleep(Duration::from_millis(50));
        let query = VersionsQuery { max_keys: 10, ..Default::default() };
        pages.push(calls(|| {
            let page = store.list_versions(&bucket, &query).unwrap();
            assert_eq!(page.versions.len(), 10);
            assert!(page.next.is_some());
        }));
    }
    assert_flat("small page of versions", &pages, 1.2);
}

#[test]
fn a_page_of_versions_reads_what_it_shows() {
    let mut pages = Vec::new();
    for size in [SIZES[1], SIZES[2]] {
        let (_dir, store, bucket) = open();
        store.set_versioning(&bucket, VersioningState::Enabled).unwrap();
        let versions: Vec<_> = (0..size).map(|_| put(&store, &bucket, "k").unwrap()).collect();
        std::thread::sleep(Duration::from_millis(50));
        let query = VersionsQuery {
            max_keys: 50,
            key_after: Some("k".into()),
            version_after: Some(versions[size / 2].clone()),
            ..Default::default()
        };
        let page = || {
            let page = store.list_versions(&bucket, &query).unwrap().versions;
            let shown: Vec<_> = page.iter().rev().map(|shown| &shown.version).collect();
            assert_eq!(shown, versions[size / 2 - 50..size / 2].iter().collect::<Vec<_>>());
            assert!(page.iter().all(|shown| !shown.is_latest));
        };
        page();
        let called = run(FaultInjectionPlan::default(), page).1;
        assert!(!called.contains(&"getdents64"), "names that are known were read: {called:?}");
        pages.push(called.len());
    }
    assert_flat("page of versions", &pages, 1.2);
}

#[test]
fn a_page_among_many_keys_costs_what_one_among_few_does() {
    for (what, name) in
        [("plain", (|at| format!("k{at:06}")) as fn(usize) -> String), ("odd", |at| format!("run//e{at:06}"))]
    {
        let (mut pages, mut below) = (Vec::new(), Vec::new());
        for size in SIZES {
            let (_dir, store, bucket) = open();
            (0..size).for_each(|at| drop(put(&store, &bucket, &name(at))));
            // A change within one tick of the file system's clock cannot be detected, so nothing about the directory is
            // cached until the tick has passed.
            std::thread::sleep(Duration::from_millis(50));
            let middle = Some(name(size / 2 - 1));
            let query = ListQuery { start_after: middle, max_keys: 50, ..Default::default() };
            let page = |query: &ListQuery| store.list(&bucket, query).unwrap().entries.len();
            page(&query);
            pages.push(calls(|| assert_eq!(page(&query), 50)));
            let query = ListQuery { prefix: name(7), ..Default::default() };
            page(&query);
            below.push(calls(|| assert_eq!(page(&query), 1)));
        }
        assert_flat(&format!("page of {what} keys"), &pages, 1.2);
        assert_flat(&format!("prefix of {what} keys"), &below, 1.2);
    }
}

#[test]
fn a_page_of_uploads_reads_what_it_shows() {
    let (mut pages, mut last) = (Vec::new(), Vec::new());
    for size in [SIZES[0], SIZES[1]] {
        let (_dir, store, bucket) = open();
        let create = |at: usize| {
            let created = store.create_upload(&bucket, &key(&format!("k{at:06}")), &PutOptions::default());
            created.unwrap()
        };
        let uploads: Vec<_> = (0..size).map(create).collect();
        let list = |after: usize, most: usize| {
            let key_after = Some(format!("k{after:06}"));
            let query = UploadsQuery { max_uploads: most, key_after, ..Default::default() };
            let page = store.list_uploads(&bucket, &query).unwrap();
            (page.uploads.into_iter().map(|shown| shown.upload).collect::<Vec<_>>(), page.truncated)
        };
        let (middle, end) = (size / 2, size - 1);
        // A listing immediately after a change reads more.
        std::thread::sleep(Duration::from_millis(50));
        pages.push(calls(|| assert_eq!(list(middle, 10), (uploads[middle + 1..middle + 11].to_vec(), true))));
        last.push(calls(|| assert_eq!(list(end - 5, 10), (uploads[end - 4..].to_vec(), false))));
        // A page also shows the changes since the previous page.
        store.abort_upload(&bucket, &key(&format!("k{:06}", middle + 1)), &uploads[middle + 1]).unwrap();
        let added = create(middle + 2);
        let shown = [&uploads[middle + 2], &added, &uploads[middle + 3]].map(Clone::clone).to_vec();
        assert_eq!(list(middle, 3), (shown, true));
    }
    assert_flat("page of uploads", &pages, 1.2);
    assert_flat("last page of uploads", &last, 1.2);
}

#[test]
fn all_pages_of_uploads_read_their_directory_once() {
    let mut per_upload = Vec::new();
    for size in [SIZES[0], SIZES[1]] {
        let (_dir, store, bucket) = open();
        for at in 0..size {
            store.create_upload(&bucket, &key(&format!("k{:06}", at / 2)), &PutOptions::default()).unwrap();
        }
        std::thread::sleep(Duration::from_millis(50));
        let all = || {
            let mut query = UploadsQuery { max_uploads: 9, ..Default::default() };
            let mut found = Vec::new();
            loop {
                let page = store.list_uploads(&bucket, &query).unwrap();
                found.extend(page.uploads.into_iter().map(|shown| (shown.key, shown.upload)));
                let last = found.last().cloned().filter(|_| page.truncated);
                let Some((key, upload)) = last else { break };
                (query.key_after, query.upload_after) = (Some(key), Some(upload.as_str().to_owned()));
            }
            assert!(found.is_sorted());
            found.dedup();
            assert_eq!(found.len(), size);
        };
        all();
        // The directory was read by the first pages.
        assert_reads_no_names(&run(FaultInjectionPlan::default(), all).1);
        per_upload.push(100 * calls(all) / size);
    }
    assert_flat("100 uploads", &per_upload, 1.3);
}

#[test]
fn all_versions_of_many_keys_cost_no_more_than_twice_the_listing() {
    let (_dir, store, bucket) = open();
    store.set_versioning(&bucket, VersioningState::Enabled).unwrap();
    for at in 0..2 * 1_000 {
        put(&store, &bucket, &format!("k{:06}", at % 1_000));
    }
    std::thread::sleep(Duration::from_millis(50));
    let all = || {
        let mut query = VersionsQuery { max_keys: 1_000, ..Default::default() };
        let mut count = 0;
        loop {
            let page = store.list_versions(&bucket, &query).unwrap();
            count += page.versions.len();
            let Some((key, version)) = page.next else { return assert_eq!(count, 2_000) };
            (query.key_after, query.version_after) = (Some(key), version);
        }
    };
    let per_version = calls(all) as f64 / 2_000.0;
    assert!(per_version <= 8.0, "{per_version} system calls for each version");
}

/// Returns the names of the system calls that `act` makes when the caches are filled.
fn called(mut act: impl FnMut()) -> Vec<&'static str> {
    act();
    act();
    run(FaultInjectionPlan::default(), act).1
}

#[test]
fn an_overwrite_does_not_try_to_create_what_was_put_before() {
    let (_dir, store, bucket) = open();
    let overwrite = called(|| drop(put(&store, &bucket, "k")));
    let links = overwrite.iter().filter(|call| call.starts_with("link")).count();
    assert_eq!(links, 1, "only the hidden name is linked: {overwrite:?}");
    // After a delete, a put creates the key again without a lock.
    store.delete(&bucket, &key("k"), &Default::default()).unwrap();
    let create = run(FaultInjectionPlan::default(), || drop(put(&store, &bucket, "k"))).1;
    assert!(!create.iter().any(|call| call.starts_with("rename")), "{create:?}");
}

#[test]
fn keys_away_from_the_flat_directory_cost_few_calls() {
    let (_dir, store, bucket) = open();
    put(&store, &bucket, "first");
    std::thread::sleep(Duration::from_millis(50));
    let (missing, options) = (key("missing"), GetOptions::default());
    let head = called(|| drop(store.head(&bucket, &missing, &options).unwrap_err()));
    assert!(head.len() <= 2, "head of a missing key: {head:?}");
    let get = called(|| drop(store.get(&bucket, &missing, &options).unwrap_err()));
    assert!(get.len() <= 4, "get of a missing key: {get:?}");

    put(&store, &bucket, "alone/object");
    std::thread::sleep(Duration::from_millis(50));
    let alone = key("alone/object");
    let (_, head) =
        run(FaultInjectionPlan::default(), || drop(store.head(&bucket, &alone, &options).unwrap()));
    assert!(head.len() <= 3, "head of an object alone in its directory: {head:?}");

    let (_, flat) = run(FaultInjectionPlan::default(), || drop(put(&store, &bucket, "second")));
    let deep = (0..5).map(|at| {
        let name = format!("a{at}/b/c/object");
        run(FaultInjectionPlan::default(), || drop(put(&store, &bucket, &name))).1
    });
    let deep = deep.min_by_key(Vec::len).unwrap();
    // Each new directory is created, opened, marked with an extended attribute, and closed.
    assert!(deep.len() <= flat.len() + 3 * 4, "three new directories: {deep:?}, a flat key: {flat:?}");
}

/// A directory of files that a POSIX program wrote is also a bucket.
#[test]
fn files_of_posix_programs_are_described_without_opening_them() {
    const FILES: usize = 100;
    let (dir, store, bucket) = open();
    for at in 0..FILES {
        std::fs::write(dir.path().join(format!("bucket/f{at:03}")), "content").unwrap();
    }
    std::thread::sleep(Duration::from_millis(50));
    let options = GetOptions::default();
    let plan = FaultInjectionPlan::default;
    let (opened, get) = run(plan(), || store.get(&bucket, &key("f007"), &options).unwrap().info);
    assert!(get.contains(&"fgetxattr"), "get: {get:?}");
    let get = called(|| assert_eq!(store.get(&bucket, &key("f007"), &options).unwrap().info, opened));
    assert!(!get.contains(&"fgetxattr"), "get again: {get:?}");
    // Now and then, a call also opens the directory again.
    let head_of = |at: usize| {
        let name = key(&format!("f{at:03}"));
        run(plan(), || assert_eq!(store.head(&bucket, &name, &options).unwrap().size, 7)).1
    };
    let first = (10..15).map(head_of).min_by_key(Vec::len).unwrap();
    assert!(first.len() == 3 && !first.iter().any(|call| call.starts_with("open")), "head: {first:?}");
    let again = (10..15).map(head_of).min_by_key(Vec::len).unwrap();
    assert_eq!(again.len(), 1, "head again: {again:?}");
    assert_eq!(store.head(&bucket, &key("f007"), &options).unwrap(), opened);
    let list = || assert_eq!(store.list(&bucket, &ListQuery::default()).unwrap().entries.len(), FILES);
    let (_, first) = run(plan(), list);
    assert!(first.len() <= 3 * FILES + 20, "{} system calls for {FILES} files", first.len());
    let again = (0..5).map(|_| run(plan(), list).1).min_by_key(Vec::len).unwrap();
    // Files that share a cache slot with another file are examined again, which takes two more calls.
    assert!(again.len() <= FILES + 50, "system calls for {FILES} files that were listed before: {again:?}");
    // A file that was given a record is described with this record, and a changed file with its new state.
    let tags = Tags::from([("a".to_owned(), "1".to_owned())]);
    store.set_tags(&bucket, &key("f010"), None, &tags).unwrap();
    assert_eq!(store.head(&bucket, &key("f010"), &options).unwrap().tag_count, 1);
    assert_eq!(store.get(&bucket, &key("f010"), &options).unwrap().info.tag_count, 1);
    std::fs::write(dir.path().join("bucket/f007"), "more content").unwrap();
    assert_eq!(store.head(&bucket, &key("f007"), &options).unwrap().size, 12);
    // A head that directly follows a change must open the file, because the file may be replaced between the system
    // calls of the head.
    std::fs::write(dir.path().join("bucket/new"), "content").unwrap();
    let head =
        run(FaultInjectionPlan::default(), || drop(store.head(&bucket, &key("new"), &options).unwrap())).1;
    assert!(head.contains(&"fgetxattr"), "the file was not opened: {head:?}");
}

/// Tests the sequence of calls that IOR makes after each delete.
#[test]
fn a_prefix_after_each_change_costs_the_same_among_many_keys() {
    let mut counts = Vec::new();
    for size in SIZES {
        let (_dir, store, bucket) = open();
        (0..size).for_each(|at| drop(put(&store, &bucket, &format!("k{at:06}"))));
        let step = |at: usize| {
            let name = format!("k{at:06}");
            store.delete(&bucket, &key(&name), &Default::default()).unwrap();
            assert!(store.list(&bucket, &ListQuery::prefix(&name)).unwrap().entries.is_empty());
        };
        (0..10).for_each(step);
        let called = run(FaultInjectionPlan::default(), || (10..50).for_each(step)).1;
        assert!(!called.contains(&"getdents64"), "the directory was read: {called:?}");
        counts.push(called.len());
    }
    assert_flat("prefix after a delete", &counts, 1.2);
}

/// Removes the objects of a directory page by page, as `fordway rm -r` does. Each page changes the directory.
#[test]
fn a_page_after_changes_costs_the_same_among_many_keys() {
    use fordway_store::ObjectBatchOperations;
    const PAGE: usize = 1_000;
    let mut reads = Vec::new();
    for size in [6 * PAGE, 18 * PAGE] {
        let (dir, store, bucket) = open();
        for at in 0..size {
            std::fs::write(dir.path().join(format!("bucket/k{at:06}")), "content").unwrap();
        }
        let remove_all = || {
            let (mut query, mut count) = (ListQuery { max_keys: PAGE, ..Default::default() }, 0);
            loop {
                let page = store.list(&bucket, &query).unwrap();
                let keys: Vec<_> = page.entries.iter().map(|entry| key(entry.name())).collect();
                assert!(store.delete_many(&bucket, &keys).iter().all(Result::is_ok));
                count += keys.len();
                if page.next.is_none() {
                    return assert_eq!(count, size);
                }
                query.start_after = page.next;
            }
        };
        let called = run(FaultInjectionPlan::default(), remove_all).1;
        reads.push(100 * called.iter().filter(|call| **call == "getdents64").count() / (size / PAGE));
    }
    assert_flat("100 pages with removals", &reads, 1.2);
}

/// Creates this many files in `dir`, as a POSIX program does.
fn write_files(dir: &std::path::Path, count: usize) {
    std::fs::create_dir_all(dir).unwrap();
    (0..count).for_each(|at| std::fs::write(dir.join(format!("k{at:06}")), "content").unwrap());
}

/// Lists all pages of a bucket, and returns the number of entries.
fn list_all(store: &PosixStore, bucket: &Bucket, mut query: ListQuery) -> usize {
    let mut count = 0;
    loop {
        let page = store.list(bucket, &query).unwrap();
        count += page.entries.len();
        if page.next.is_none() {
            return count;
        }
        query.start_after = page.next;
    }
}

#[test]
fn pages_of_a_directory_with_links_read_the_directory_once() {
    for are_many in [false, true] {
        let mut per_key = Vec::new();
        for size in [SIZES[1], SIZES[2]] {
            let (dir, store, bucket) = open();
            let (files, links) = (dir.path().join("bucket"), if are_many { size / 2 } else { 1 });
            (0..size).for_each(|at| drop(put(&store, &bucket, &format!("k{at:06}"))));
            std::fs::create_dir(files.join("below")).unwrap();
            std::fs::write(files.join("below/object"), "content").unwrap();
            std::os::unix::fs::symlink("below", files.join("l-to-a-directory")).unwrap();
            for at in 0..links {
                std::os::unix::fs::symlink(format!("k{at:06}"), files.join(format!("k{at:06}-link")))
                    .unwrap();
            }
            std::thread::sleep(Duration::from_millis(50));
            let query = ListQuery { max_keys: 100, ..Default::default() };
            let all = || assert_eq!(list_all(&store, &bucket, query.clone()), size + links + 2);
            all();
            let called = run(FaultInjectionPlan::default(), all).1;
            // The link's target is read on each page that shows it.
            let reads = called.iter().filter(|call| **call == "getdents64").count();
            assert!(reads <= 8, "{size} files: {reads} getdents64");
            per_key.push(100 * called.len() / size);
        }
        assert_flat("100 keys beside links", &per_key, 1.2);
    }
}

/// Tests the sequence of calls that IOR makes after each delete, in a directory to which links are added.
#[test]
fn a_prefix_after_each_change_beside_links_reads_no_names() {
    let (dir, store, bucket) = open();
    write_files(&dir.path().join("bucket"), SIZES[1]);
    let link = |at: usize| dir.path().join(format!("bucket/link{at:06}"));
    let step = |at: usize| {
        std::os::unix::fs::symlink("k000999", link(at)).unwrap();
        store.delete(&bucket, &key(&format!("k{at:06}")), &Default::default()).unwrap();
        let names = |prefix: &str| list_all(&store, &bucket, ListQuery::prefix(prefix));
        assert_eq!((names(&format!("k{at:06}")), names(&format!("link{at:06}"))), (0, 1));
        std::fs::remove_file(link(at)).unwrap();
        std::fs::create_dir(link(at)).unwrap();
        std::fs::write(link(at).join("object"), "content").unwrap();
        assert_eq!(names(&format!("link{at:06}/")), 1);
        std::fs::remove_file(link(at).join("object")).unwrap();
        std::fs::remove_dir(link(at)).unwrap();
        std::fs::write(link(at), "content").unwrap();
        assert_eq!(names(&format!("link{at:06}")), 1);
    };
    (0..10).for_each(step);
    let called = run(FaultInjectionPlan::default(), || (10..50).for_each(step)).1;
    // One call reads the new directory, and another finds its end.
    let reads = called.iter().filter(|call| **call == "getdents64").count();
    assert!(reads <= 40 * 2, "the directory was read: {reads} getdents64");
}

/// A listing needs to know only whether a directory below its prefix contains an object.
#[test]
fn a_directory_that_is_one_entry_costs_the_same_for_many_files() {
    let (mut pages, mut versions, mut removals) = (Vec::new(), Vec::new(), Vec::new());
    for size in SIZES {
        let (dir, store, bucket) = open();
        write_files(&dir.path().join("bucket/d"), size);
        write_files(&dir.path().join("bucket/e/below/below"), size);
        std::fs::create_dir(dir.path().join("bucket/f")).unwrap();
        std::thread::sleep(Duration::from_millis(50));
        let delimiter = Some("/".to_owned());
        let query = ListQuery { delimiter: delimiter.clone(), ..Default::default() };
        pages.push(calls(|| assert_eq!(store.list(&bucket, &query).unwrap().entries.len(), 2)));
        let query = VersionsQuery { delimiter, ..Default::default() };
        versions.push(calls(|| assert_eq!(store.list_versions(&bucket, &query).unwrap().prefixes.len(), 2)));
        write_files(&dir.path().join("bucket"), size);
        removals.push(calls(|| drop(store.delete_bucket(&bucket).unwrap_err())));
    }
    assert_flat("page of common prefixes", &pages, 1.0);
    assert_flat("page of common prefixes of versions", &versions, 1.0);
    assert_flat("removal of a bucket that is not empty", &removals, 1.0);
}

#[test]
fn a_page_of_buckets_examines_those_it_shows() {
    let (mut pages, mut below) = (Vec::new(), Vec::new());
    for size in [SIZES[0], SIZES[1]] {
        let (dir, store, _) = open();
        for at in 0..size {
            std::fs::create_dir(dir.path().join(format!("bk{at:06}"))).unwrap();
        }
        let found = |wanted: &dyn Fn(&Bucket) -> bool, most: usize, expected: &[&str]| {
            let found = store.find_buckets(wanted, most).unwrap();
            assert_eq!(found.iter().map(|info| info.name.as_str()).collect::<Vec<_>>(), expected);
        };
        pages.push(calls(|| found(&|bucket| bucket.as_str() > "bk000003", 2, &["bk000004", "bk000005"])));
        below.push(calls(|| found(&|bucket| bucket.as_str().starts_with("bk00001"), 1, &["bk000010"])));
        let all = calls(|| assert_eq!(store.list_buckets().unwrap().len(), size + 1));
        assert!(all <= 3 * (size + 1) + 10, "{all} system calls for {size} buckets");
    }
    assert_flat("page of buckets", &pages, 1.2);
    assert_flat("buckets with a prefix", &below, 1.2);
}

/// Each page reads many subdirectories, of which it needs one key each.
#[test]
fn a_page_of_common_prefixes_reads_the_bucket_once() {
    const LARGE: usize = 40;
    let (dir, store, bucket) = open();
    for at in 0..2_000 {
        let path = dir.path().join(format!("bucket/d{at:04}"));
        std::fs::create_dir(&path).unwrap();
        let files = if at < LARGE { 500 } else { 1 };
        (0..files).for_each(|file| std::fs::write(path.join(format!("f{file:03}")), "content").unwrap());
    }
    std::thread::sleep(Duration::from_millis(50));
    let mut query = ListQuery { delimiter: Some("/".into()), max_keys: 20, ..Default::default() };
    let mut page = || {
        let page = store.list(&bucket, &query).unwrap();
        assert_eq!(page.entries.len(), 20);
        query.start_after = page.next;
    };
    page();
    let pages = [(); 2].map(|()| run(FaultInjectionPlan::default(), &mut page).1);
    let reads = pages.each_ref().map(|called| called.iter().filter(|call| **call == "getdents64").count());
    // Two calls read each of 20 subdirectories, or up to 21 if the page determines whether it is the last.
    assert!(reads.iter().all(|count| *count <= 2 * 21), "the bucket was read again: {reads:?} getdents64");
}

/// One common prefix represents all keys below it, regardless of their number.
#[test]
fn a_common_prefix_costs_the_same_for_many_keys() {
    type Name = fn(usize) -> String;
    // A key that cannot be a path comes first below the common prefix.
    let odd: Name = |at| if at == 0 { "a//x".to_owned() } else { format!("a/d{at:06}/k") };
    let shapes: [(&str, &str, Name); 4] = [
        ("directories", "-", |at| format!("a-{at:06}/k")),
        ("directories below a directory", "-", |at| format!("a/b-{at:06}/k")),
        ("directories below a path", "/", |at| format!("a/{at:06}/k")),
        ("an odd key", "/", odd),
    ];
    for (what, delimiter, name) in shapes {
        let (mut first, mut next, mut indexed) = (Vec::new(), Vec::new(), Vec::new());
        for size in [SIZES[0], SIZES[1]] {
            let (_dir, store, bucket) = open();
            (0..size).for_each(|at| drop(put(&store, &bucket, &name(at))));
            put(&store, &bucket, "z");
            std::thread::sleep(Duration::from_millis(50));
            let mut query =
                ListQuery { delimiter: Some(delimiter.into()), max_keys: 10, ..Default::default() };
            let list = |query: &ListQuery, count| {
                let entries = store.list(&bucket, query).unwrap().entries;
                assert_eq!(entries.len(), count, "{what}");
                entries[0].name().to_owned()
            };
            first.push(calls(|| drop(list(&query, 2))));
            query.start_after = Some(list(&query, 2));
            next.push(calls(|| drop(list(&query, 1))));
            // A listing by prefix after each change creates an index of the directory.
            query = ListQuery { prefix: "a".into(), start_after: None, max_keys: 50, ..query };
            for _ in 0..3 {
                put(&store, &bucket, "y");
                store.delete(&bucket, &key("y"), &Default::default()).unwrap();
                list(&query, 1);
            }
            indexed.push(calls(|| drop(list(&query, 1))));
        }
        assert_flat(&format!("common prefix of {what}"), &first, 1.2);
        assert_flat(&format!("page after {what}"), &next, 1.2);
        assert_flat(&format!("common prefix of {what} in an index"), &indexed, 1.2);
    }
}

/// The encoded form of a long key is a path of several directories.
#[test]
fn a_page_of_long_keys_costs_the_same_beside_a_writer() {
    let tail = "é".repeat(90);
    let long = |at: usize| format!("run//{at:06}{tail}/{at:06}");
    let (mut odd, mut versions, mut below) = (Vec::new(), Vec::new(), Vec::new());
    for size in [SIZES[0], SIZES[1]] {
        let (_dir, store, bucket) = open();
        (0..size).for_each(|at| drop(put(&store, &bucket, &long(at))));
        let (start, mut more) = (Some(long(size / 2 - 1)), size);
        let mut write = || {
            more += 1;
            put(&store, &bucket, &long(more));
        };
        let query = ListQuery { start_after: start.clone(), max_keys: 10, ..Default::default() };
        odd.push(calls_beside(&mut write, || {
            let keys: Vec<_> = store.list(&bucket, &query).unwrap().entries;
            assert_eq!((keys.len(), keys[0].name()), (10, &*long(size / 2)));
        }));
        let query = ListQuery { delimiter: Some("/".into()), ..Default::default() };
        below.push(calls_beside(&mut write, || {
            let entries = store.list(&bucket, &query).unwrap().entries;
            assert_eq!(entries.iter().map(|entry| entry.name()).collect::<Vec<_>>(), ["run/"]);
        }));
        store.set_versioning(&bucket, VersioningState::Enabled).unwrap();
        (0..size).for_each(|at| drop(put(&store, &bucket, &long(at))));
        let query = VersionsQuery { key_after: start, max_keys: 10, ..Default::default() };
        versions.push(calls_beside(&mut write, || {
            let page = store.list_versions(&bucket, &query).unwrap().versions;
            assert_eq!((page.len(), page[0].key.as_str()), (10, &*long(size / 2)));
        }));
    }
    // After a directory has changed, its names are read again; each call returns about a hundred long names.
    assert_flat("page of long keys", &odd, 2.0);
    assert_flat("common prefix of long keys", &below, 2.0);
    assert_flat("page of versions of long keys", &versions, 2.0);
}

/// Returns the minimum number of system calls of `act`, like [`calls`], but runs `write` before each call of `act`.
fn calls_beside(mut write: impl FnMut(), mut act: impl FnMut()) -> usize {
    let counts = (0..5).map(|_| {
        write();
        run(FaultInjectionPlan::default(), &mut act).1.len()
    });
    counts.min().unwrap_or_default()
}
