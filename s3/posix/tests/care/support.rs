//! Provides a store in a temporary directory, and POSIX access to the store's files.

use std::ffi::CStr;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use fordway_posix::{PosixConfig, PosixStore};
use fordway_store::{
    Bucket, CompleteOptions, CompletedPart, DeleteOptions, ETagPolicy, ExpectedContent, GetOptions, Key,
    MAX_TAGS, MIN_PART_BYTES, MultipartUploadOperations, ObjectTagOperations, ObjectVersionOperations,
    Objects, PartOptions, PutOptions, UploadId, VersioningState,
};
use tempfile::TempDir;

pub(crate) struct Rig {
    pub(crate) dir: TempDir,
    pub(crate) store: PosixStore,
}

impl Rig {
    /// Creates a store with an empty bucket `bkt`.
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = PosixStore::open(dir.path(), PosixConfig::default()).unwrap();
        store.create_bucket(&bucket()).unwrap();
        Rig { dir, store }
    }

    /// Puts an object that has a record.
    pub(crate) fn put(&self, key: &str, body: impl AsRef<[u8]>) {
        self.put_with(key, body, &PutOptions { etag_policy: Some(ETagPolicy::Md5), ..Default::default() });
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
        part.commit(&ExpectedContent::default()).unwrap();
    }

    /// Puts an object in parts. All parts except the last have the minimum size.
    pub(crate) fn upload_with(&self, key: &str, body: &[u8], options: &PutOptions) {
        let (bucket, key) = (bucket(), name(key));
        let upload = self.store.create_upload(&bucket, &key, options).unwrap();
        let put = |(number, part): (u16, &[u8])| {
            let options = PartOptions {
                checksum: options.checksum,
                size_hint: Some(part.len() as u64),
                ..Default::default()
            };
            let mut writer = self.store.part_writer(&bucket, &key, &upload, number, &options).unwrap();
            writer.write(part).unwrap();
            CompletedPart::new(number, writer.commit(&ExpectedContent::default()).unwrap().etag)
        };
        let parts: Vec<_> = (1..).zip(body.chunks(MIN_PART_BYTES as usize)).map(put).collect();
        self.store.complete_upload(&bucket, &key, &upload, &parts, &CompleteOptions::default()).unwrap();
    }

    /// Puts an object whose record is too long for an attribute, so that the record is in a sidecar file.
    pub(crate) fn put_apart(&self, key: &str, body: &str) {
        let tags = (0..MAX_TAGS).map(|n| (format!("{n:0>100}"), "v".repeat(256))).collect();
        self.put_with(key, body, &PutOptions { tags, ..Default::default() });
        assert!(self.sidecar_of(key).exists());
    }

    /// Returns the path of an object's sidecar file, if the object has a sidecar file.
    pub(crate) fn sidecar_of(&self, below: &str) -> PathBuf {
        self.path(&format!(".fordway/meta/{:016x}", self.path(below).metadata().unwrap().ino()))
    }

    pub(crate) fn tag_count(&self, key: &str) -> usize {
        self.store.tags(&bucket(), &name(key), None).unwrap().len()
    }

    pub(crate) fn keep_versions(&self) {
        self.store.set_versioning(&bucket(), VersioningState::Enabled).unwrap();
    }

    /// Returns the paths, below the bucket, of the old versions of a key whose name needs no encoding.
    pub(crate) fn kept_versions(&self, key: &str) -> Vec<String> {
        let dir = format!(".fordway/versions/{key}");
        let names = self.path(&dir).read_dir().unwrap().map(|entry| entry.unwrap().file_name());
        let mut paths: Vec<_> = names.map(|name| format!("{dir}/{}", name.to_str().unwrap())).collect();
        paths.sort();
        paths
    }

    /// Returns a path below the bucket.
    pub(crate) fn path(&self, below: &str) -> PathBuf {
        self.dir.path().join("bkt").join(below)
    }

    /// Writes a file as a POSIX program would, and creates its directories.
    pub(crate) fn write(&self, below: &str, body: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(below);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, body).unwrap();
        path
    }

    pub(crate) fn set_attribute(&self, below: &str, attribute: &CStr, value: &[u8]) {
        fordway_sys::set_xattr(File::open(self.path(below)).unwrap(), attribute, value).unwrap();
    }

    /// Returns all paths below the root, with a `/` after directories.
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
