//! Tests the migration of roots, for example after a restore, in which the files of one user could harm another.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use fordway_posix::MigrationEvent;
use fordway_store::{Bucket, GetOptions, MAX_TAGS, Metadata, PutOptions, Store};

use crate::ground::{ALICE, BOB, Ground, Lane, chmod, is_root, key};

/// Puts an object whose record is in a sidecar file.
fn put_apart(store: &dyn Store, bucket: &Bucket, name: &str, content_type: &str) {
    let metadata = Metadata { content_type: Some(content_type.to_owned()), ..Metadata::default() };
    let tags = (0..MAX_TAGS).map(|n| (format!("{n:0>100}"), "v".repeat(256))).collect();
    let options = PutOptions { tags, metadata: metadata.into(), ..PutOptions::default() };
    store.put(bucket, &key(name), name.as_bytes(), &options).unwrap();
}

fn content_type(store: &dyn Store, bucket: &Bucket, name: &str) -> Option<String> {
    store.head(bucket, &key(name), &GetOptions::default()).unwrap().metadata.content_type.clone()
}

impl Ground {
    /// Runs `fsck --migrate` as root. Returns the paths that were changed, and the errors.
    pub(crate) fn migrate(&self) -> (Vec<String>, Vec<String>) {
        let (mut done, mut failed) = (Vec::new(), Vec::new());
        let migrated = self.embedded().migrate(&[], &mut |event| {
            match event {
                MigrationEvent::Done(step) => done.push(step.path),
                MigrationEvent::Failed(error) => failed.push(error.to_string()),
            }
            Ok(())
        });
        migrated.unwrap();
        (done, failed)
    }

    /// Returns the path of an object's sidecar file.
    fn sidecar(&self, bucket: &str, name: &str) -> PathBuf {
        let inode = fs::metadata(self.path(&format!("{bucket}/{name}"))).unwrap().ino();
        self.path(&format!("{bucket}/.fordway/meta/{inode:016x}"))
    }

    /// Renames an object's sidecar file, as if the root were a copy.
    fn estrange(&self, bucket: &str, name: &str) {
        let sidecar = self.sidecar(bucket, name);
        let inode = u64::from_str_radix(sidecar.file_name().unwrap().to_str().unwrap(), 16).unwrap();
        fs::rename(&sidecar, sidecar.with_file_name(format!("{:016x}", inode | 1 << 60))).unwrap();
    }

    /// Exchanges the names of two objects' sidecar files.
    fn exchange(&self, bucket: &str, [one, other]: [&str; 2]) {
        let (one, other) = (self.sidecar(bucket, one), self.sidecar(bucket, other));
        let aside = self.path("aside");
        fs::rename(&one, &aside).unwrap();
        fs::rename(&other, &one).unwrap();
        fs::rename(&aside, &other).unwrap();
    }
}

/// Bob writes many sidecar files that look like the sidecar file of Alice's object.
#[test]
fn a_forged_sidecar_is_bound_to_no_object() {
    if !is_root() {
        return;
    }
    let ground = Ground::new();
    let shared = ground.bucket("shared", 0, 0o1777);
    ground.on(Lane::Http, ALICE, |store| put_apart(store, &shared, "k", "text/alice"));
    let genuine = fs::read(ground.sidecar("shared", "k")).unwrap();
    let at = genuine.windows(10).position(|bytes| bytes == b"text/alice").unwrap();
    let forged = [&genuine[..at], b"text/bobby", &genuine[at + 10..]].concat();
    for number in 1..200 {
        ground.write(&format!("shared/.fordway/meta/{number:015x}b"), BOB, 0o644, &forged);
    }
    let aside = ground.sidecar("shared", "k");
    ground.estrange("shared", "k");
    let (done, failed) = ground.migrate();
    assert_eq!((done.contains(&"shared/k".to_owned()), failed.len()), (true, 0), "{failed:?}");
    assert_eq!(content_type(&ground.embedded(), &shared, "k").as_deref(), Some("text/alice"));
    // Now only forged sidecar files remain.
    fs::remove_file(&aside).unwrap();
    for entry in fs::read_dir(aside.parent().unwrap()).unwrap().map(Result::unwrap) {
        if entry.metadata().unwrap().uid() != BOB {
            fs::remove_file(entry.path()).unwrap();
        }
    }
    assert!(!ground.migrate().0.contains(&"shared/k".to_owned()));
    assert_eq!(content_type(&ground.embedded(), &shared, "k"), None);
}

/// Only Bob may read his object and his directory.
#[test]
fn sidecars_of_files_that_only_their_owner_may_read_are_bound() {
    if !is_root() {
        return;
    }
    let ground = Ground::new();
    let shared = ground.bucket("shared", ALICE, 0o1777);
    ground.make_dirs(&ground.path("shared/bobs"), BOB);
    ground.on(Lane::Http, BOB, |store| {
        for name in ["own", "bobs/own"] {
            put_apart(store, &shared, name, "text/bob");
        }
    });
    for name in ["own", "bobs/own"] {
        ground.estrange("shared", name);
        chmod(&ground.path("shared").join(name), 0o600);
    }
    chmod(&ground.path("shared/bobs"), 0o700);
    let (done, failed) = ground.migrate();
    assert_eq!(failed, [""; 0]);
    for name in ["own", "bobs/own"] {
        assert!(done.contains(&format!("shared/{name}")), "{done:?}");
        assert_eq!(content_type(&ground.embedded(), &shared, name).as_deref(), Some("text/bob"));
        // Bob can still change the metadata.
        let tags = (0..MAX_TAGS).map(|n| (format!("{n:0>100}"), "w".repeat(256))).collect();
        ground.on(Lane::Http, BOB, |store| store.set_tags(&shared, &key(name), None, &tags).unwrap());
    }
}

/// The sidecar files that must be renamed belong to Bob, and the bucket belongs to Alice.
#[test]
fn another_users_sidecar_makes_way_without_being_lost() {
    if !is_root() {
        return;
    }
    let ground = Ground::new();
    let shared = ground.bucket("shared", ALICE, 0o1777);
    ground.on(Lane::Http, BOB, |store| {
        for name in ["a", "b"] {
            put_apart(store, &shared, name, &format!("text/{name}"));
        }
    });
    ground.exchange("shared", ["a", "b"]);
    let (_, failed) = ground.migrate();
    assert_eq!(failed, [""; 0]);
    for name in ["a", "b"] {
        let found = content_type(&ground.embedded(), &shared, name);
        assert_eq!(found, Some(format!("text/{name}")));
    }
    assert_eq!(fs::read_dir(ground.path("shared/.fordway/meta")).unwrap().count(), 2);
}

/// A bucket into which its owner may not write is reported, and the next bucket is migrated.
#[test]
fn a_bucket_that_cannot_be_migrated_does_not_stop_the_others() {
    if !is_root() {
        return;
    }
    let ground = Ground::new();
    let buckets = ["aaa", "bbb"].map(|name| ground.bucket(name, ALICE, 0o755));
    for bucket in &buckets {
        ground.on(Lane::Http, ALICE, |store| {
            for name in ["a", "b"] {
                put_apart(store, bucket, name, &format!("text/{name}"));
            }
        });
        ground.exchange(bucket.as_str(), ["a", "b"]);
    }
    chmod(&ground.path("aaa"), 0o555);
    let (done, failed) = ground.migrate();
    assert!(!failed.is_empty() && failed.iter().all(|error| error.contains("aaa")), "{failed:?}");
    assert!(done.contains(&".fordway/format".to_owned()), "{done:?}");
    assert_eq!(content_type(&ground.embedded(), &buckets[1], "a").as_deref(), Some("text/a"));
    chmod(&ground.path("aaa"), 0o755);
    assert_eq!(ground.migrate().1, [""; 0]);
    for name in ["a", "b"] {
        let found = content_type(&ground.embedded(), &buckets[0], name);
        assert_eq!(found, Some(format!("text/{name}")));
    }
}

/// Alice, who owns the bucket, renames Bob's private directory to the name of the private area.
#[test]
fn a_private_directory_is_not_given_away() {
    if !is_root() {
        return;
    }
    let ground = Ground::new();
    ground.bucket("alice", ALICE, 0o777);
    ground.write("alice/bobs/secret", BOB, 0o600, "Bob's own");
    ground.write("alice/bobs/tmp/deeper", BOB, 0o600, "Bob's own");
    chmod(&ground.path("alice/bobs"), 0o700);
    fs::rename(ground.path("alice/bobs"), ground.path("alice/.fordway")).unwrap();
    let (_, failed) = ground.migrate();
    assert!(
        failed.iter().any(|error| error.contains("alice/.fordway") && error.contains("secret")),
        "{failed:?}"
    );
    for path in ["alice/.fordway", "alice/.fordway/tmp"] {
        assert_eq!(ground.owner(path), BOB, "{path}");
    }
    assert_eq!(fs::metadata(ground.path("alice/.fordway")).unwrap().mode() & 0o777, 0o700);
    fs::remove_file(ground.path("alice/.fordway/secret")).unwrap();
    let (_, failed) = ground.migrate();
    assert!(failed.iter().any(|error| error.contains("alice/.fordway/tmp")), "{failed:?}");
    assert_eq!(ground.owner("alice/.fordway/tmp"), BOB);
}

/// The owner of an object makes it unreadable for others, and changes its content. The sidecar file is then the only
/// copy of the metadata.
#[test]
fn gc_keeps_the_metadata_of_a_file_that_it_may_not_read() {
    if !is_root() {
        return;
    }
    for collector in [0, ALICE] {
        let ground = Ground::new();
        let shared = ground.bucket("shared", ALICE, 0o1777);
        ground.on(Lane::Http, BOB, |store| put_apart(store, &shared, "k", "text/bob"));
        let sidecar = ground.sidecar("shared", "k");
        chmod(&ground.path("shared/k"), 0o600);
        let file = File::options().append(true).open(ground.path("shared/k")).unwrap();
        std::io::Write::write_all(&mut &file, b" and more").unwrap();
        std::thread::sleep(std::time::Duration::from_millis(60));
        let collect = || ground.collect();
        let summary = if collector == 0 { collect() } else { crate::ground::as_user(ALICE, collect) };
        assert_eq!(summary.failed > 0, collector != 0, "only root may act as Bob");
        assert!(sidecar.exists(), "collected by {collector}");
        ground.on(Lane::Http, BOB, |store| {
            assert_eq!(store.tags(&shared, &key("k"), None).unwrap().len(), MAX_TAGS);
        });
        // The sidecar file of a removed object is still garbage.
        fs::remove_file(ground.path("shared/k")).unwrap();
        ground.collect();
        assert!(!sidecar.exists());
    }
}
