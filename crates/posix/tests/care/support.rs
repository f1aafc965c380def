//! A store in a temporary directory, and plain POSIX hands on its files.

use std::ffi::CStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use fordway_posix::{PosixConfig, PosixStore};
use fordway_store::{
    Bucket, DeleteOptions, Expected, GetOptions, Key, PartOptions, PutOptions, Store, UploadId,
};
use tempfile::TempDir;

pub(crate) struct Rig {
    pub(crate) dir: TempDir,
    pub(crate) store: PosixStore,
}

impl Rig {
    /// An empty bucket `bkt`.
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = PosixStore::open(dir.path(), PosixConfig::default()).unwrap();
        store.create_bucket(&bucket()).unwrap();
        Rig { dir, store }
    }

    pub(crate) fn put(&self, key: &str, body: impl AsRef<[u8]>) {
        self.put_with(key, body, &PutOptions::default());
    }

    pub(crate) fn put_with(&self, key: &str, body: impl AsRef<[u8]>, options: &PutOptions) {
        self.store.put(&bucket(), &name(key), body.as_ref(), options).unwrap();
    }

    pub(crate) fn get(&self, key: &str) -> Option<Vec<u8>> {
        let mut body = Vec::new();
        self.store.read(&bucket(), &name(key), &GetOptions::default(), &mut body).ok().map(|_| body)
    }

    pub(crate) fn delete(&self, key: &str) {
        self.store.delete(&bucket(), &name(key), &DeleteOptions::default()).unwrap();
    }

    pub(crate) fn start_upload(&self, key: &str) -> UploadId {
        self.store.create_upload(&bucket(), &name(key), &PutOptions::default()).unwrap()
    }

    pub(crate) fn put_part(&self, key: &str, upload: &UploadId, number: u16, body: &[u8]) {
        let options = PartOptions::default();
        let mut part = self.store.part_writer(&bucket(), &name(key), upload, number, &options).unwrap();
        part.write(body).unwrap();
        part.commit(&Expected::default()).unwrap();
    }

    /// A path below the bucket.
    pub(crate) fn path(&self, below: &str) -> PathBuf {
        self.dir.path().join("bkt").join(below)
    }

    /// Writes a file as a POSIX program would, with its directories.
    pub(crate) fn write(&self, below: &str, body: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(below);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, body).unwrap();
        path
    }

    pub(crate) fn set_attribute(&self, below: &str, attribute: &CStr, value: &[u8]) {
        fordway_sys::set_xattr(File::open(self.path(below)).unwrap(), attribute, value).unwrap();
    }

    /// All paths below the root, with a `/` behind directories.
    pub(crate) fn tree(&self) -> Vec<String> {
        let mut found = Vec::new();
        walk(self.dir.path(), self.dir.path(), &mut found);
        found.sort();
        found
    }
}

fn walk(root: &Path, dir: &Path, found: &mut Vec<String>) {
    for entry in dir.read_dir().unwrap() {
        let path = entry.unwrap().path();
        let below = path.strip_prefix(root).unwrap().to_string_lossy().into_owned();
        match path.is_dir() && !path.is_symlink() {
            true => {
                found.push(format!("{below}/"));
                walk(root, &path, found);
            }
            false => found.push(below),
        }
    }
}

pub(crate) fn bucket() -> Bucket {
    Bucket::new("bkt").unwrap()
}

pub(crate) fn name(key: &str) -> Key {
    Key::new(key).unwrap()
}
