//! Tests mounts within a bucket: their files can be read and deleted, but not written. Requires root.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use fordway_posix::{OpenStores, PosixConfig, PosixStore};
use fordway_store::{
    Bucket, CompleteOptions, CompletedPart, Conditions, CopyOptions, DeleteOptions, ErrorKind,
    ExpectedContent, GetOptions, Key, ListQuery, MAX_TAGS, Metadata, MultipartUploadOperations,
    ObjectTagOperations, ObjectVersionOperations, Objects, PartOptions, PutOptions, Result, Store as _, Tags,
    VersionId, VersioningState,
};

/// The maximum number of files that are created on a mount to get a file with a given inode number.
const FILES_MAX: usize = 10_000;

/// Runs `work` in a thread with a separate mount namespace, in which `/run` is private.
fn in_own_mounts(work: impl FnOnce() + Send + 'static) {
    if !fordway_needs::root("mount file systems") {
        return;
    }
    let name = std::thread::current().name().unwrap_or_default().to_owned();
    let apart = std::thread::Builder::new().name(name).spawn(|| {
        // The mount namespace exists as long as the thread.
        let _namespace = fordway_sys::new_mount_namespace(c"/run").unwrap();
        work();
    });
    apart.unwrap().join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}

/// Creates a store with a bucket that has a mount at `bucket/m`.
fn store_with_mount(mount: &[&str]) -> (PosixStore, Bucket) {
    fs::create_dir_all("/run/root/bucket/m").unwrap();
    let mounted = Command::new("mount").args(mount).arg("/run/root/bucket/m").status().unwrap();
    assert!(mounted.success());
    fs::write("/run/root/bucket/m/f", "by hand").unwrap();
    let store = PosixStore::open(Path::new("/run/root"), PosixConfig::default()).unwrap();
    (store, Bucket::new("bucket").unwrap())
}

fn key(key: &str) -> Key {
    Key::new(key).unwrap()
}

/// Returns options with tags that do not fit into an attribute.
fn with_many_tags() -> PutOptions {
    let tags = (0..MAX_TAGS).map(|n| (format!("{n:0>100}"), "v".repeat(256))).collect();
    PutOptions { tags, ..PutOptions::default() }
}

#[track_caller]
fn assert_refused<T: std::fmt::Debug>(done: Result<T>) {
    let error = done.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotImplemented, "{error}");
    assert!(error.to_string().contains("not on the same mount as its bucket's .fordway"), "{error}");
}

fn keys(store: &PosixStore, bucket: &Bucket) -> Vec<String> {
    let listing = store.list(bucket, &ListQuery::default()).unwrap();
    listing.entries.iter().map(|entry| entry.name().to_owned()).collect()
}

fn upload(store: &PosixStore, bucket: &Bucket, key: &Key) -> Result<()> {
    let upload = store.create_upload(bucket, key, &PutOptions::default())?;
    let mut writer = store.part_writer(bucket, key, &upload, 1, &PartOptions::default())?;
    writer.write(b"part")?;
    let part = CompletedPart::new(1, writer.commit(&ExpectedContent::default())?.etag);
    store.complete_upload(bucket, key, &upload, &[part], &CompleteOptions::default()).map(drop)
}

#[test]
fn a_mount_within_a_bucket_is_read_but_not_written() {
    in_own_mounts(|| {
        let (store, bucket) = store_with_mount(&["-t", "tmpfs", "tmpfs"]);
        store.put(&bucket, &key("own"), b"own", &PutOptions::default()).unwrap();
        let metadata = Metadata { content_type: Some("text/x".into()), ..Metadata::default() };
        let conditions = Conditions::create_only();
        for options in [
            PutOptions::default(),
            PutOptions { conditions, ..PutOptions::default() },
            PutOptions { metadata: metadata.into(), ..PutOptions::default() },
            with_many_tags(),
        ] {
            assert_refused(store.put(&bucket, &key("m/new"), b"new", &options));
        }
        assert_refused(store.put(&bucket, &key("m/f"), b"new", &PutOptions::default()));
        assert_refused(store.put(&bucket, &key("m/sub/deep/new"), b"new", &PutOptions::default()));
        assert!(!Path::new("/run/root/bucket/m/sub").exists(), "the directories of a refused put go");
        let copied =
            |to: &str| store.copy((&bucket, &key("own")), &bucket, &key(to), &CopyOptions::default());
        assert_refused(copied("m/new"));
        for name in ["m/new", "m/sub/deep/new"] {
            assert_refused(store.create_upload(&bucket, &key(name), &PutOptions::default()));
        }
        assert!(!has_files(Path::new("/run/root/bucket/.fordway/mpu")));
        upload(&store, &bucket, &key("d/new")).unwrap();
        store.delete(&bucket, &key("d/new"), &DeleteOptions::default()).unwrap();
        assert_refused(store.set_tags(&bucket, &key("m/f"), None, &with_many_tags().tags));
        assert!(!has_files(Path::new("/run/root/bucket/.fordway/meta")));
        // Objects on the mount can be read, copied and deleted.
        assert_eq!(keys(&store, &bucket), ["m/f", "own"]);
        let object = store.get(&bucket, &key("m/f"), &GetOptions::default()).unwrap();
        assert_eq!(object.content.into_vec().unwrap(), b"by hand");
        store.copy((&bucket, &key("m/f")), &bucket, &key("copy"), &CopyOptions::default()).unwrap();
        store.delete(&bucket, &key("m/f"), &DeleteOptions::default()).unwrap();
        assert_eq!(keys(&store, &bucket), ["copy", "own"]);
    });
}

/// A long object is refused before all its content has arrived.
#[test]
fn a_long_put_on_a_mount_is_refused_early() {
    in_own_mounts(|| {
        let (store, bucket) = store_with_mount(&["-t", "tmpfs", "tmpfs"]);
        let piece = vec![0; 1 << 20];
        let mut writer = store.writer(&bucket, &key("m/d/long"), &PutOptions::default()).unwrap();
        let refused = (0..20).find_map(|_| writer.write(&piece).err());
        assert_refused(refused.map_or(Ok(()), Err));
        drop(writer);
        assert!(!Path::new("/run/root/bucket/m/d").exists());
        // The same content can be stored outside the mount.
        let mut writer = store.writer(&bucket, &key("d/long"), &PutOptions::default()).unwrap();
        (0..20).for_each(|_| writer.write(&piece).unwrap());
        writer.commit(&ExpectedContent::default()).unwrap();
        let copied =
            store.copy((&bucket, &key("d/long")), &bucket, &key("m/d/long"), &CopyOptions::default());
        assert_refused(copied);
        assert!(!Path::new("/run/root/bucket/m/d").exists());
    });
}

/// Without a version ID, a delete in a bucket with versions keeps the latest version, which cannot leave its mount.
#[test]
fn an_object_on_a_mount_cannot_become_an_old_version() {
    in_own_mounts(|| {
        let (store, bucket) = store_with_mount(&["-t", "tmpfs", "tmpfs"]);
        store.set_versioning(&bucket, VersioningState::Enabled).unwrap();
        assert_refused(store.delete(&bucket, &key("m/f"), &DeleteOptions::default()));
        assert_eq!(fs::read("/run/root/bucket/m/f").unwrap(), b"by hand");
        let version = Some(VersionId::null());
        let null = DeleteOptions { version, ..DeleteOptions::default() };
        store.delete(&bucket, &key("m/f"), &null).unwrap();
        assert_eq!(keys(&store, &bucket), Vec::<String>::new());
    });
}

fn has_files(dir: &Path) -> bool {
    dir.read_dir().is_ok_and(|mut names| names.next().is_some())
}

/// A file on a mount may have the inode number of an object whose record is in a sidecar file.
#[test]
fn a_file_with_the_inode_number_of_another_object_does_not_touch_its_record() {
    in_own_mounts(|| {
        let (store, bucket) = store_with_mount(&["-t", "tmpfs", "tmpfs"]);
        store.put(&bucket, &key("own"), b"own", &with_many_tags()).unwrap();
        let inode = fs::metadata("/run/root/bucket/own").unwrap().ino();
        let same = (0..FILES_MAX).map(|number| format!("m/{number}")).find(|name| {
            let path = format!("/run/root/bucket/{name}");
            fs::write(&path, "other").unwrap();
            fs::metadata(&path).unwrap().ino() == inode
        });
        let Some(same) = same else {
            fordway_needs::skip("this tmpfs does not number its files from 1");
            return;
        };
        assert_eq!(store.tags(&bucket, &key(&same), None).unwrap(), Tags::new());
        store.delete(&bucket, &key(&same), &DeleteOptions::default()).unwrap();
        assert_eq!(store.tags(&bucket, &key("own"), None).unwrap(), with_many_tags().tags);
    });
}

/// A store keeps frequently used directories open, which prevents the unmount of their file systems.
#[test]
fn what_an_idle_store_keeps_open_can_be_closed() {
    in_own_mounts(|| {
        let (_, bucket) = store_with_mount(&["-t", "tmpfs", "tmpfs"]);
        fs::create_dir("/run/root/mounted").unwrap();
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "tmpfs", "/run/root/mounted"]).status().unwrap();
        assert!(mounted.success());
        let stores = OpenStores::default();
        let config = PosixConfig { open_stores: Some(stores.clone()), ..PosixConfig::default() };
        let store = PosixStore::open(Path::new("/run/root"), config).unwrap();
        let mounted = Bucket::new("mounted").unwrap();
        for content in ["one", "two", "three", "four"] {
            store.get(&bucket, &key("m/f"), &GetOptions::default()).unwrap();
            // Each put after the first needs the bucket's lock table.
            store.put(&mounted, &key("k"), content.as_bytes(), &PutOptions::default()).unwrap();
        }
        let is_unmounted = |path: &str| Command::new("umount").arg(path).output().unwrap().status.success();
        stores.close_unused();
        assert!(!is_unmounted("/run/root/bucket/m"), "it was in use a moment ago");
        std::thread::sleep(Duration::from_secs(1));
        stores.close_unused();
        assert!(is_unmounted("/run/root/bucket/m"));
        assert!(is_unmounted("/run/root/mounted"));
        assert_eq!(keys(&store, &bucket), Vec::<String>::new());
    });
}

/// A bind mount of the same file system has the same device number, so only the kernel's error shows the mount. Objects
/// can be created there, but not replaced.
#[test]
fn a_bind_mount_is_named_in_the_error() {
    in_own_mounts(|| {
        fs::create_dir("/run/other").unwrap();
        let (store, bucket) = store_with_mount(&["--bind", "/run/other"]);
        assert_refused(store.put(&bucket, &key("m/f"), b"new", &PutOptions::default()));
        assert_eq!(fs::read("/run/other/f").unwrap(), b"by hand");
    });
}

/// A gateway opens one store for each user. The first call on a bucket may already have to wait for a file server, so
/// every store knows the buckets that are mounts of file systems other than local ones. `proc` represents such a file
/// system.
#[test]
fn a_store_knows_its_remote_buckets_before_it_has_used_them() {
    in_own_mounts(|| {
        let root = Path::new("/run/root");
        for (kind, bucket) in [("proc", "far"), ("tmpfs", "near")] {
            fs::create_dir_all(root.join(bucket)).unwrap();
            let mounted = Command::new("mount").args(["-t", kind, kind]).arg(root.join(bucket)).status();
            assert!(mounted.unwrap().success());
        }
        let store = PosixStore::open(root, PosixConfig::default()).unwrap();
        let server = store.file_server("far").unwrap();
        assert_eq!(server.file_system, fs::metadata(root.join("far")).unwrap().dev());
        assert!(store.file_server("near").is_none() && store.file_server("other").is_none());
        // A file system that was mounted later is known as soon as one of the root's stores has used it.
        let other = PosixStore::open(root, PosixConfig::default()).unwrap();
        assert!(other.file_server("later").is_none());
        fs::create_dir(root.join("later")).unwrap();
        let mounted = Command::new("mount").args(["-t", "proc", "proc"]).arg(root.join("later")).status();
        assert!(mounted.unwrap().success());
        let later = Bucket::new("later").unwrap();
        let _ = store.get(&later, &key("none"), &GetOptions::default());
        assert!(other.file_server("later").is_some());
    });
}
