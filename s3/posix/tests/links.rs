//! Tests symbolic links in a bucket, and private directories that are not at the top of a bucket.

use std::fs;
use std::path::PathBuf;

use fordway_posix::{PosixConfig, PosixStore};
use fordway_store::{
    Bucket, DeleteOptions, ErrorKind, GetOptions, Key, ListQuery, Objects, PutOptions, Result,
};
use tempfile::TempDir;

struct Rig {
    dir: TempDir,
    store: PosixStore,
}

fn bucket(name: &str) -> Bucket {
    Bucket::new(name).unwrap()
}

fn key(key: &str) -> Key {
    Key::new(key).unwrap()
}

impl Rig {
    /// Creates a store with the empty buckets `bkt` and `other`.
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = PosixStore::open(dir.path(), PosixConfig::default()).unwrap();
        for name in ["bkt", "other"] {
            store.create_bucket(&bucket(name)).unwrap();
        }
        Rig { dir, store }
    }

    fn path(&self, below: &str) -> PathBuf {
        self.dir.path().join(below)
    }

    fn put(&self, name: &str, body: &str) -> Result<()> {
        self.store.put(&bucket("bkt"), &key(name), body.as_bytes(), &PutOptions::default()).map(drop)
    }

    fn get(&self, name: &str) -> Result<Vec<u8>, ErrorKind> {
        let opened = self.store.get(&bucket("bkt"), &key(name), &GetOptions::default());
        opened.map(|object| object.content.into_vec().unwrap()).map_err(|error| error.kind())
    }

    fn delete(&self, name: &str) -> Result<()> {
        self.store.delete(&bucket("bkt"), &key(name), &DeleteOptions::default()).map(drop)
    }

    fn list(&self, prefix: &str, delimiter: bool) -> Vec<String> {
        let delimiter = delimiter.then(|| "/".to_owned());
        let query = ListQuery { prefix: prefix.to_owned(), delimiter, ..Default::default() };
        let listing = self.store.list(&bucket("bkt"), &query).unwrap();
        listing.entries.iter().map(|entry| entry.name().to_owned()).collect()
    }
}

/// A bucket that was moved into another bucket keeps its private directory, whose files must not become objects.
#[test]
fn a_private_directory_further_down_holds_no_objects() {
    let rig = Rig::new();
    rig.store.put(&bucket("other"), &key("x"), b"x", &PutOptions::default()).unwrap();
    rig.store.put(&bucket("other"), &key("x//y"), b"odd", &PutOptions::default()).unwrap();
    rig.put("a/z", "z").unwrap();
    fs::rename(rig.path("other"), rig.path("bkt/a/inner")).unwrap();
    fs::write(rig.path("bkt/a/.fordway"), "a file").unwrap();
    let private = rig.path("bkt/a/inner/.fordway/odd/x%2F%2Fy");
    assert!(private.exists());
    assert_eq!(rig.list("", false), ["a/inner/x", "a/z"]);
    assert_eq!(rig.list("a/inner/", true), ["a/inner/x"]);
    assert_eq!(rig.list("a/.f", false), [""; 0]);
    assert_eq!(rig.list("a/inner/.fordway/", false), [""; 0]);
    for name in ["a/.fordway", "a/inner/.fordway/odd/x%2F%2Fy", "a/inner/.fordway/odd/"] {
        assert_eq!(rig.get(name), Err(ErrorKind::NoSuchKey), "{name}");
        rig.put(name, "of the outer bucket").unwrap();
        assert_eq!(rig.get(name), Ok(b"of the outer bucket".to_vec()), "{name}");
        assert!(rig.list("", false).contains(&name.to_owned()));
        rig.delete(name).unwrap();
        assert_eq!(rig.get(name), Err(ErrorKind::NoSuchKey), "{name}");
    }
    assert_eq!(fs::read(&private).unwrap(), b"odd");
    assert_eq!(fs::read(rig.path("bkt/a/.fordway")).unwrap(), b"a file");
    // A directory with many names is listed from an index, which is told of new names.
    fs::create_dir(rig.path("bkt/w")).unwrap();
    for number in 0..1500 {
        fs::write(rig.path("bkt/w").join(number.to_string()), "").unwrap();
    }
    let count = rig.list("w/1", false).len();
    for number in 0..5 {
        rig.put(&format!("w/1-{number}"), "").unwrap();
        assert_eq!(rig.list("w/1", false).len(), count + number + 1);
        let _ = fs::create_dir(rig.path("bkt/w/.fordway"));
        assert_eq!(rig.list("w/.", true), [""; 0]);
    }
}
