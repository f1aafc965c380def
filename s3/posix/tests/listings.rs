//! Tests listings while directories are created and removed, and the pages of part listings.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use fordway_posix::{PosixConfig, PosixStore};
use fordway_store::{
    Bucket, DeleteOptions, ExpectedContent, Key, ListQuery, MultipartUploadOperations, Objects, PartOptions,
    PartsQuery, PutOptions, UploadId,
};

/// Sets the flag when this value is dropped, even after a panic.
struct Over<'o>(&'o AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A directory may be removed, with its last object, after it was opened and before it is read. Objects that exist
/// during the whole test must be listed.
#[test]
fn a_directory_that_goes_while_it_is_read_has_no_more_entries() {
    let dir = tempfile::tempdir().unwrap();
    let (bucket, is_over) = (Bucket::new("bucket").unwrap(), AtomicBool::new(false));
    let open = || PosixStore::open(dir.path(), PosixConfig::default()).unwrap();
    let (store, other) = (open(), open());
    let put = |store: &PosixStore, name: &str| {
        store.put(&bucket, &Key::new(name).unwrap(), b"", &PutOptions::default()).unwrap()
    };
    store.create_bucket(&bucket).unwrap();
    put(&store, "a/first");
    put(&store, "z/last");
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                put(&other, "d/e/k");
                let options = DeleteOptions::default();
                other.delete(&bucket, &Key::new("d/e/k").unwrap(), &options).unwrap();
            }
        });
        let _over = Over(&is_over);
        for round in 0..10_000 {
            let listed = store.list(&bucket, &ListQuery::default());
            let entries = listed.unwrap_or_else(|error| panic!("round {round}: {error}")).entries;
            let names: Vec<_> = entries.iter().map(|entry| entry.name()).collect();
            assert_eq!((names[0], names[names.len() - 1]), ("a/first", "z/last"), "round {round}");
        }
    });
}

/// On tmpfs, an overwrite moves an object's directory entry. Each object is nevertheless listed, once.
#[test]
fn objects_that_are_overwritten_during_a_listing_are_listed() {
    const OBJECTS: usize = 3_000;
    let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let (bucket, is_over) = (Bucket::new("bucket").unwrap(), AtomicBool::new(false));
    let open = || PosixStore::open(dir.path(), PosixConfig::default()).unwrap();
    let (store, other) = (open(), open());
    let put = |store: &PosixStore, at: usize| {
        let key = Key::new(format!("{at:05}")).unwrap();
        store.put(&bucket, &key, b"", &PutOptions::default()).unwrap();
    };
    store.create_bucket(&bucket).unwrap();
    (0..OBJECTS).for_each(|at| put(&store, at));
    thread::scope(|scope| {
        scope.spawn(|| {
            let keys = (0..).map(|at| at * 7919 % OBJECTS);
            keys.take_while(|_| !is_over.load(Ordering::Relaxed)).for_each(|at| put(&other, at));
        });
        let _over = Over(&is_over);
        for round in 0..30 {
            let query = ListQuery { max_keys: 2 * OBJECTS, ..Default::default() };
            let entries = store.list(&bucket, &query).unwrap().entries;
            let is_next = |(at, name): (usize, &str)| name == format!("{at:05}");
            assert_eq!(entries.len(), OBJECTS, "round {round}");
            assert!(entries.iter().map(|entry| entry.name()).enumerate().all(is_next), "round {round}");
        }
    });
}

/// Returns the names of a listing, on pages of this size.
fn names(store: &PosixStore, delimiter: Option<&str>, max_keys: usize) -> Vec<String> {
    let delimiter = delimiter.map(str::to_owned);
    let (mut query, mut all) = (ListQuery { delimiter, max_keys, ..Default::default() }, Vec::new());
    loop {
        let page = store.list(&Bucket::new("bucket").unwrap(), &query).unwrap();
        all.extend(page.entries.iter().map(|entry| entry.name().to_owned()));
        match page.next {
            Some(next) => query.start_after = Some(next),
            None => return all,
        }
    }
}

/// A directory without objects is not a common prefix, whatever else it contains.
#[test]
fn common_prefixes_are_those_of_the_listed_keys() {
    let dir = tempfile::tempdir().unwrap();
    let store = PosixStore::open(dir.path(), PosixConfig::default()).unwrap();
    let bucket = Bucket::new("bucket").unwrap();
    store.create_bucket(&bucket).unwrap();
    let at = |path: &str| dir.path().join("bucket").join(path);
    let write = |path: &str| {
        std::fs::create_dir_all(at(path).parent().unwrap()).unwrap();
        std::fs::write(at(path), "").unwrap();
    };
    let (mut long, name) = (String::from("long"), "n".repeat(250));
    (0..4).for_each(|_| long = format!("{long}/{name}"));
    // An open parent directory shortens the path.
    std::fs::create_dir_all(at(&long)).unwrap();
    std::fs::write(at(&long).join("x".repeat(30)), "").unwrap();
    for path in [
        "left/.nfs000000000000000100000001",
        "left/.fuse_hidden0000000100000001",
        "moved/bucket/.fordway/odd/x%2F%2Fy",
        "file/.fordway",
        "deep/a/b/c/d/object",
        "many/50/object",
        "plain-1",
        "plain/x",
        "plain0",
    ] {
        write(path);
    }
    (0..50).for_each(|number| std::fs::create_dir_all(at(&format!("many/{number:02}/empty"))).unwrap());
    std::fs::create_dir(at("empty")).unwrap();
    std::os::unix::fs::symlink("../plain", at("empty/link")).unwrap();
    std::os::unix::fs::symlink("deep", at("to-deep")).unwrap();
    for odd in ["odd//x", "plain/x/y", "empty0//x"] {
        store.put(&bucket, &Key::new(odd).unwrap(), b"", &PutOptions::default()).unwrap();
    }
    for delimiter in ["/", "-", "a", "/a/", "k"] {
        let query = ListQuery { delimiter: Some(delimiter.to_owned()), ..Default::default() };
        let keys = names(&store, None, 1_000);
        let mut expected: Vec<_> =
            keys.iter().map(|key| query.common_prefix(key).unwrap_or(key).to_owned()).collect();
        expected.dedup();
        for max_keys in [1, 2, 3, 1_000] {
            assert_eq!(names(&store, Some(delimiter), max_keys), expected, "{delimiter}, {max_keys} keys");
        }
    }
    assert!(!names(&store, Some("/"), 9).iter().any(|name| name == "left/" || name == "long/"));
}

fn one_upload() -> (tempfile::TempDir, PosixStore, (Bucket, Key, UploadId)) {
    let dir = tempfile::tempdir().unwrap();
    let store = PosixStore::open(dir.path(), PosixConfig::default()).unwrap();
    let (bucket, key) = (Bucket::new("bucket").unwrap(), Key::new("k").unwrap());
    store.create_bucket(&bucket).unwrap();
    let upload = store.create_upload(&bucket, &key, &PutOptions::default()).unwrap();
    (dir, store, (bucket, key, upload))
}

fn put_part(store: &PosixStore, (bucket, key, upload): &(Bucket, Key, UploadId), number: u16) {
    let mut part = store.part_writer(bucket, key, upload, number, &PartOptions::default()).unwrap();
    part.write(b"x").unwrap();
    part.commit(&ExpectedContent::default()).unwrap();
}

/// Part numbers close together and far apart are all listed, regardless of the page size.
#[test]
fn pages_of_parts_join_to_the_whole() {
    let (_dir, store, target) = one_upload();
    let (bucket, key, upload) = &target;
    let numbers: Vec<u16> =
        (1..=30).chain([31 + 63, 31 + 63 + 65, 400, 5_000, 5_002, 9_999, 10_000]).collect();
    for number in &numbers {
        put_part(&store, &target, *number);
    }
    for max_parts in [1, 2, 7, 1_000] {
        let (mut found, mut after) = (Vec::new(), 0);
        loop {
            let query = PartsQuery { after, max_parts };
            let page = store.list_parts(bucket, key, upload, &query).unwrap();
            assert!(page.parts.len() <= max_parts);
            found.extend(page.parts.iter().map(|part| part.number));
            let Some(last) = found.last().copied().filter(|_| page.truncated) else { break };
            after = last;
        }
        assert_eq!(found, numbers, "{max_parts}");
    }
    let none = store.list_parts(bucket, key, upload, &PartsQuery { after: 3, max_parts: 0 }).unwrap();
    assert!(none.parts.is_empty() && none.truncated);
}

#[test]
fn a_page_of_one_part_costs_no_more_where_there_are_thousands() {
    let (_dir, store, target) = one_upload();
    let (bucket, key, upload) = &target;
    (1..=2_000).for_each(|number| put_part(&store, &target, number));
    let fastest = |query: &PartsQuery| {
        let timed = |_| {
            let started = std::time::Instant::now();
            store.list_parts(bucket, key, upload, query).unwrap();
            started.elapsed()
        };
        (0..5).map(timed).min().unwrap()
    };
    let all = fastest(&PartsQuery { max_parts: 10_000, ..Default::default() });
    let one = fastest(&PartsQuery { max_parts: 1, ..Default::default() });
    assert!(one * 50 < all, "{one:?} for one of them, {all:?} for all");
}
