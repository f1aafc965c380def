//! Listings while directories come and go.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use fordway_posix::{PosixConfig, PosixStore};
use fordway_store::{Bucket, DeleteOptions, Key, ListQuery, PutOptions, Store};

/// Says that it is over when it goes out of scope, also by a panic.
struct Over<'o>(&'o AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A directory may be removed, because its last object was, between the moments in which it is opened and
/// read. What was there all the time is listed.
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
