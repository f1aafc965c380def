//! Tests the sidecar files of objects that are replaced while other objects take over their inode numbers.

use std::thread;

use fordway_posix::{PosixConfig, PosixStore};
use fordway_store::{Bucket, GetOptions, Key, MAX_TAGS, Objects, PutOptions};

/// Each of four stores replaces its own objects, which take over inode numbers that the other stores have just freed.
/// If the file system does not reuse inode numbers (tmpfs), the test proves nothing.
#[test]
fn an_inode_that_is_used_again_keeps_its_record() {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let bucket = Bucket::new("bucket").unwrap();
    PosixStore::open(dir.path(), PosixConfig::default()).unwrap().create_bucket(&bucket).unwrap();
    let tags: fordway_store::Tags = (0..MAX_TAGS).map(|n| (format!("{n:0>100}"), "v".repeat(256))).collect();
    thread::scope(|scope| {
        for number in 0..4 {
            let (dir, bucket, tags) = (&dir, &bucket, &tags);
            scope.spawn(move || {
                let store = PosixStore::open(dir.path(), PosixConfig::default()).unwrap();
                let key = Key::new(format!("k{number}")).unwrap();
                let options = PutOptions { tags: tags.clone(), ..Default::default() };
                for round in 0..1500 {
                    store.put(bucket, &key, b"body", &options).unwrap();
                    let info = store.head(bucket, &key, &GetOptions::default()).unwrap();
                    assert_eq!(info.tag_count, MAX_TAGS, "thread {number}, round {round}");
                }
            });
        }
    });
}
