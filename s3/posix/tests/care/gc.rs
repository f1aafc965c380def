//! Tests what `collect_garbage` removes, and what it must always keep.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use fordway_posix::{ChosenBuckets, GarbageFile, GcEvent, GcOptions, GcSummary, PosixConfig, PosixStore};
use fordway_store::{
    CompleteOptions, CompletedPart, Error, ErrorKind, GetOptions, MAX_TAGS, MultipartUploadOperations,
    ObjectTagOperations, ObjectVersionOperations, Objects, PartsQuery, UploadId, VersioningState,
    VersionsQuery,
};

use crate::support::{Rig, bucket, name};

/// A pause after which the clock of any file system shows a different time.
const APART: Duration = Duration::from_millis(60);

/// Collects garbage that is older than `limit`.
fn collect(rig: &Rig, limit: Duration, dry_run: bool) -> (GcSummary, Vec<GarbageFile>) {
    let (buckets, staged_age, upload_age, empty_dir_age) = (Vec::new(), limit, limit, limit);
    collect_with(
        rig,
        &GcOptions { buckets, staged_age, upload_age, empty_dir_age, event_age: limit, dry_run },
    )
}

fn collect_with(rig: &Rig, options: &GcOptions) -> (GcSummary, Vec<GarbageFile>) {
    let mut removed = Vec::new();
    let summary = rig.store.collect_garbage(options, &mut |event| {
        match event {
            GcEvent::Removed(garbage) => removed.push(garbage),
            GcEvent::Failed(error) => panic!("{error}"),
            GcEvent::Progress { .. } => {}
        }
        Ok(())
    });
    removed.sort_by(|a, b| a.path.cmp(&b.path));
    (summary.unwrap(), removed)
}

fn kinds_and_paths(removed: &[GarbageFile]) -> Vec<(&str, &str, u64)> {
    removed.iter().map(|garbage| (garbage.kind.name(), garbage.path.as_str(), garbage.size_bytes)).collect()
}

fn upload_path(id: &UploadId) -> String {
    format!("bkt/.fordway/mpu/{}", id.as_str())
}

/// Checks that a dry run finds `expected` and changes nothing, that a real run removes the same files, and that a
/// second run finds nothing.
fn assert_collects(rig: &Rig, cutoff: Instant, expected: &[(&str, &str, u64)]) {
    let before = rig.tree();
    let (rehearsed, would_go) = collect(rig, cutoff.elapsed(), true);
    assert_eq!(kinds_and_paths(&would_go), expected);
    assert_eq!(rig.tree(), before);
    let (summary, gone) = collect(rig, cutoff.elapsed(), false);
    assert_eq!(gone, would_go);
    assert_eq!(summary.removed, rehearsed.removed);
    assert_eq!(summary.freed_bytes, expected.iter().map(|(_, _, bytes)| bytes).sum::<u64>());
    for garbage in &gone {
        assert!(!rig.dir.path().join(&garbage.path).exists(), "{}", garbage.path);
    }
    let stays: Vec<_> = before
        .into_iter()
        .filter(|path| !gone.iter().any(|gone| path.trim_end_matches('/').starts_with(&gone.path)))
        .collect();
    assert_eq!(rig.tree(), stays);
    assert_eq!(collect(rig, cutoff.elapsed(), false).1, []);
}

#[test]
fn staged_files_go_when_they_are_old() {
    let rig = Rig::new();
    rig.put("alive", "x");
    rig.write(".fordway/tmp/0000000000000abc", "12345");
    thread::sleep(APART);
    let cutoff = Instant::now();
    thread::sleep(APART);
    rig.write(".fordway/tmp/0000000000000def", "1");
    // A program can set a file's modification time to the past, but not its change time, which shows that this file is
    // new.
    let backdated = File::create(rig.path(".fordway/tmp/00000000000000ed")).unwrap();
    backdated.set_modified(SystemTime::UNIX_EPOCH).unwrap();
    assert_collects(&rig, cutoff, &[("staged-file", "bkt/.fordway/tmp/0000000000000abc", 5)]);
    assert_eq!(rig.get("alive").unwrap(), b"x");
}

/// An entry is kept if it is not a file, or if Fordway does not use its name.
#[test]
fn what_is_not_ours_stays() {
    let rig = Rig::new();
    let upload = rig.start_upload("k");
    let dir = upload_path(&upload);
    let dir = dir.strip_prefix("bkt/").unwrap();
    let foreign = [
        ".fordway/notes",
        ".fordway/tmp/notes",
        ".fordway/tmp/0123456789ABCDEF",
        ".fordway/tmp/0123456789abcdef0",
        ".fordway/mpu/notes",
        ".fordway/mpu/0123abcd/00001",
        ".fordway/meta/notes",
        ".fordway/odd/dir/",
        ".fordway/versions/%zz/",
        &format!("{dir}/notes"),
        &format!("{dir}/00001-notes"),
        &format!("{dir}/00002/deep"),
    ];
    for path in foreign {
        match path.strip_suffix('/') {
            Some(dir) => fs::create_dir_all(rig.path(dir)).unwrap(),
            None => drop(rig.write(path, "mine")),
        }
    }
    std::os::unix::fs::symlink("notes", rig.path(".fordway/tmp/0123456789abcdee")).unwrap();
    thread::sleep(APART);
    collect(&rig, Duration::ZERO, false);
    for path in foreign {
        assert!(rig.path(path).exists(), "{path}");
    }
    assert!(rig.path(".fordway/tmp/0123456789abcdee").is_symlink());
    assert!(!rig.path(dir).join("upload").exists(), "what is ours is gone");
}

#[test]
fn uploads_go_when_nothing_arrived_for_long() {
    let rig = Rig::new();
    let (old, running) = (rig.start_upload("old"), rig.start_upload("running"));
    rig.put_part("old", &old, 1, b"1234567");
    rig.put_part("running", &running, 1, b"first");
    rig.write(".fordway/mpu/00000000000000010000000000000001/00001", "123");
    let files = rig.path(&format!(".fordway/mpu/{}", old.as_str())).read_dir().unwrap();
    let old_bytes = files.map(|file| file.unwrap().metadata().unwrap().len()).sum();
    thread::sleep(APART);
    let cutoff = Instant::now();
    thread::sleep(APART);
    rig.put_part("running", &running, 2, b"second");
    rig.write(
        ".fordway/mpu/00000000000000020000000000000002/00001",
        "of an upload that is just being created",
    );
    let old = upload_path(&old);
    let mut expected = [
        ("upload", old.as_str(), old_bytes),
        ("upload-rest", "bkt/.fordway/mpu/00000000000000010000000000000001", 3),
    ];
    expected.sort_by_key(|(_, path, _)| *path);
    assert_collects(&rig, cutoff, &expected);

    let parts = rig.store.list_parts(&bucket(), &name("running"), &running, &PartsQuery::default()).unwrap();
    assert_eq!(parts.parts.len(), 2);
}

#[test]
fn files_that_another_of_their_key_hides_go() {
    let rig = Rig::new();
    // `a` and `c` are put after `a/b` and `c/d`, so they are odd; `x//y` cannot be a path.
    for key in ["a/b", "a", "c/d", "c", "x//y"] {
        rig.put(key, format!("odd {key}"));
    }
    // A POSIX program replaces the directory with a file.
    fs::remove_dir_all(rig.path("a")).unwrap();
    rig.write("a", "plain");
    // A hidden file is removed regardless of its age.
    assert_collects(&rig, Instant::now(), &[("hidden-file", "bkt/.fordway/odd/a", 5)]);
    let contents = ["a", "c", "c/d", "x//y"].map(|key| rig.get(key).unwrap());
    assert_eq!(contents, [&b"plain"[..], b"odd c", b"odd c/d", b"odd x//y"]);
}

/// In a bucket that keeps versions, a hidden file is an old version.
#[test]
fn hidden_versions_stay() {
    let rig = Rig::new();
    rig.keep_versions();
    for key in ["a/b", "a"] {
        rig.put(key, format!("odd {key}"));
    }
    let version = rig.store.head(&bucket(), &name("a"), &GetOptions::default()).unwrap().version.unwrap();
    fs::remove_dir_all(rig.path("a")).unwrap();
    rig.write("a", "plain");
    for versioning in [VersioningState::Enabled, VersioningState::Suspended] {
        rig.store.set_versioning(&bucket(), versioning).unwrap();
        assert_collects(&rig, Instant::now(), &[]);
        let object = rig.store.get(&bucket(), &name("a"), &GetOptions::version(version.clone())).unwrap();
        assert_eq!(object.content.into_vec().unwrap(), b"odd a");
    }
}

/// A put that takes a long time fills a file in its own directory. The times of the directory do not change meanwhile.
#[test]
fn a_staged_file_that_is_being_written_stays_in_its_own_directory() {
    let rig = Rig::new();
    let shelter = ".fordway/tmp/0123456789abcdef";
    rig.write(&format!("{shelter}/0123456789abcdee"), "begun");
    thread::sleep(APART);
    let cutoff = Instant::now();
    thread::sleep(APART);
    rig.write(&format!("{shelter}/0123456789abcdee"), "begun and continued");
    assert_collects(&rig, cutoff, &[]);
    thread::sleep(APART);
    assert_collects(&rig, Instant::now(), &[("staged-file", &format!("bkt/{shelter}"), 0)]);
}

/// A directory that is an object is reached under several names. Only its own bucket's private area states that there
/// are such objects.
#[test]
fn directories_that_are_objects_stay_under_any_name() {
    let rig = Rig::new();
    let root = rig.dir.path();
    for key in ["sub/d/", "sub/deep/er/", "top/"] {
        rig.put(key, "");
    }
    let have_all = || ["sub/d/", "sub/deep/er/", "top/"].iter().all(|key| rig.get(key).is_some());
    std::os::unix::fs::symlink("bkt/sub", root.join("part")).unwrap();
    std::os::unix::fs::symlink(".", root.join("whole")).unwrap();
    thread::sleep(APART);
    collect(&rig, Duration::ZERO, false);
    assert!(have_all(), "through a link");
    let wrong = PosixStore::open_for_care(&root.join("bkt"), PosixConfig::default()).unwrap();
    let options = GcOptions { empty_dir_age: Duration::ZERO, ..GcOptions::default() };
    wrong.collect_garbage(&options, &mut |_| Ok(())).unwrap();
    assert!(have_all(), "with the bucket in place of the root");
    // The bucket is moved into another bucket, and its private area is lost.
    fs::create_dir(root.join("outer")).unwrap();
    fs::rename(rig.path(""), root.join("outer/bkt")).unwrap();
    collect(&rig, Duration::ZERO, false);
    fs::rename(root.join("outer/bkt"), rig.path("")).unwrap();
    assert!(have_all(), "in another bucket");
    fs::remove_dir_all(rig.path(".fordway")).unwrap();
    collect(&rig, Duration::ZERO, false);
    for key in ["sub/d", "sub/deep/er", "top"] {
        assert!(rig.path(key).is_dir(), "{key}");
    }
}

/// A bucket with several names is examined once, under its own name.
#[test]
fn a_bucket_with_two_names_is_examined_once() {
    let rig = Rig::new();
    for key in ["a", "b/c", "d/e/f"] {
        rig.put(key, "x");
    }
    rig.write(".fordway/tmp/0000000000000abc", "12345");
    let entries = collect(&rig, Duration::ZERO, true).0.entries;
    for alias in ["aaa", "zzz"] {
        std::os::unix::fs::symlink("bkt", rig.dir.path().join(alias)).unwrap();
    }
    thread::sleep(APART);
    assert_eq!(collect(&rig, Duration::ZERO, true).0.entries, entries);
    let chosen = ChosenBuckets::of(&rig.store, &[]).unwrap();
    assert_eq!((chosen.buckets, chosen.unreadable.len()), (vec![bucket()], 0));
    let removed = collect(&rig, Duration::ZERO, false).1;
    let staged = ("staged-file", "bkt/.fordway/tmp/0000000000000abc", 5);
    assert_eq!(kinds_and_paths(&removed), [staged]);
}

#[test]
fn empty_directories_that_we_made_go() {
    let rig = Rig::new();
    rig.put("kept/by/key", "x");
    rig.put("left/deep/down/key", "x");
    rig.put("mixed/ours/key", "x");
    fs::create_dir_all(rig.path("mixed/foreign")).unwrap();
    // After a crash between the removal of a file and the removal of its directories, the empty directories remain.
    fs::remove_file(rig.path("left/deep/down/key")).unwrap();
    fs::remove_file(rig.path("mixed/ours/key")).unwrap();
    let long = format!(".fordway/odd/{}%", "long".repeat(60));
    fs::create_dir_all(rig.path(&long)).unwrap();
    let long = format!("bkt/{long}");
    // The empty directory `folder` is an object.
    rig.put("folder/", "");
    assert!(rig.path("folder").is_dir());
    thread::sleep(APART);
    let cutoff = Instant::now();
    thread::sleep(APART);
    rig.put("young/key", "x");
    fs::remove_file(rig.path("young/key")).unwrap();
    let expected = [
        ("empty-dir", long.as_str(), 0),
        ("empty-dir", "bkt/left", 0),
        ("empty-dir", "bkt/left/deep", 0),
        ("empty-dir", "bkt/left/deep/down", 0),
        ("empty-dir", "bkt/mixed/ours", 0),
    ];
    assert_collects(&rig, cutoff, &expected);
    assert!(rig.path("mixed/foreign").is_dir());
    assert_eq!(rig.get("folder/").as_deref(), Some(&b""[..]));
    assert_eq!(rig.get("kept/by/key").unwrap(), b"x");
}

#[test]
fn sidecar_files_go_with_their_objects() {
    let rig = Rig::new();
    rig.keep_versions();
    for key in ["alive", "x//odd", "gone", "changed", "moved", "twice"] {
        match key {
            "x//odd" => rig.put(key, "its name is encoded"),
            key => rig.put_apart(key, "content"),
        }
    }
    rig.put_apart("twice", "its first version has a record apart, too");
    rig.write(".fordway/meta/not-ours", "");
    let gone = rig.sidecar_of("gone");
    let bytes = gone.metadata().unwrap().len();
    // The file is kept open, so that no later file gets its inode number, and therefore its sidecar file.
    let _open = fs::File::open(rig.path("gone")).unwrap();
    fs::remove_file(rig.path("gone")).unwrap();
    rig.write("changed", "another content");
    let foreign = rig.path("dir").join(OsStr::from_bytes(b"latin\xe4"));
    fs::create_dir_all(&foreign).unwrap();
    fs::rename(rig.path("moved"), foreign.join("moved")).unwrap();
    thread::sleep(APART);
    let cutoff = Instant::now();
    thread::sleep(APART);
    rig.put_apart("young", "x");
    fs::remove_file(rig.path("young")).unwrap();
    let gone = gone.strip_prefix(rig.dir.path()).unwrap().to_str().unwrap();
    assert_collects(&rig, cutoff, &[("sidecar", gone, bytes)]);
    let left = ["alive", "changed", "dir/latin\u{efe4}/moved", "twice"];
    assert_eq!(left.map(|key| rig.tag_count(key)), [MAX_TAGS; 4]);
    let versions = rig.store.list_versions(&bucket(), &VersionsQuery::default()).unwrap().versions;
    let oldest = versions.iter().find(|version| version.key == "twice" && !version.is_latest).unwrap();
    let tags = rig.store.tags(&bucket(), &name("twice"), Some(&oldest.version)).unwrap();
    assert_eq!(tags.len(), MAX_TAGS);
}

/// In a copy of a root, files have other inode numbers. Until the copy is migrated, no sidecar file is named after the
/// inode number of its object's file.
#[test]
fn sidecar_files_of_a_copy_stay_until_it_is_migrated() {
    let rig = Rig::new();
    rig.put_apart("k", "content");
    let sidecar = rig.sidecar_of("k");
    fs::rename(&sidecar, sidecar.with_file_name(format!("{:016x}", 1))).unwrap();
    thread::sleep(APART);
    let options = GcOptions { buckets: vec![bucket()], staged_age: APART / 2, ..Default::default() };
    assert_eq!(collect_with(&rig, &options).1, []);
    // The sticky bit hides the record from readers, but its sidecar file is still needed.
    fs::set_permissions(rig.path("k"), fs::Permissions::from_mode(0o1777)).unwrap();
    assert_eq!(collect_with(&rig, &options).1, []);
    rig.store.migrate(&[], &mut |_| Ok(())).unwrap();
    assert_eq!(rig.tag_count("k"), MAX_TAGS);
    thread::sleep(APART);
    assert_eq!(collect_with(&rig, &options).1.len(), 1, "the earlier name goes");
    assert_eq!(rig.tag_count("k"), MAX_TAGS);
}

/// Earlier versions of `gc` removed the sidecar file of an object if a POSIX program had changed the object's file.
/// A file without its sidecar file therefore does not show that the root is a copy.
#[test]
fn a_changed_file_without_a_sidecar_file_does_not_keep_others() {
    let rig = Rig::new();
    rig.put_apart("k", "content");
    rig.put_apart("changed", "content");
    let sidecar = rig.sidecar_of("k");
    fs::copy(&sidecar, sidecar.with_file_name(format!("{:016x}", 1))).unwrap();
    fs::remove_file(rig.sidecar_of("changed")).unwrap();
    thread::sleep(APART);
    let options = GcOptions { buckets: vec![bucket()], staged_age: APART / 2, ..Default::default() };
    assert_eq!(collect_with(&rig, &options).1, []);
    rig.write("changed", "content and more");
    assert_eq!(collect_with(&rig, &options).1.len(), 1);
    assert_eq!(rig.tag_count("k"), MAX_TAGS);
}

/// If an object is reached through a link, its sidecar file is in the bucket that contains the link.
#[test]
fn sidecar_files_of_objects_behind_links_stay() {
    let rig = Rig::new();
    rig.put_apart("link/key", "content");
    fs::rename(rig.path("link"), rig.dir.path().join("other")).unwrap();
    std::os::unix::fs::symlink("../other", rig.path("link")).unwrap();
    thread::sleep(APART);
    let options = GcOptions { buckets: vec![bucket()], staged_age: APART / 2, ..Default::default() };
    assert_eq!(collect_with(&rig, &options).1, []);
    assert_eq!(rig.tag_count("link/key"), MAX_TAGS);
}

#[test]
fn versions_stay_and_what_only_looks_like_one_goes() {
    let rig = Rig::new();
    rig.keep_versions();
    rig.put("twice", "one");
    rig.put("twice", "two");
    rig.put("deleted", "one");
    rig.delete("deleted");
    rig.put("torn", "one");
    // After a crash, a version may be linked as an old version without having been replaced.
    let version = rig.store.head(&bucket(), &name("torn"), &GetOptions::default()).unwrap().version.unwrap();
    let alias = format!(".fordway/versions/torn/{:016x}-{version}", 1);
    fs::create_dir_all(rig.path(".fordway/versions/torn")).unwrap();
    fs::hard_link(rig.path("torn"), rig.path(&alias)).unwrap();
    // A hard link elsewhere does not make a version the latest version.
    fs::hard_link(rig.path(&rig.kept_versions("twice")[0]), rig.path("linked")).unwrap();
    fs::create_dir_all(rig.path(&format!(".fordway/versions/{}%/left", "long".repeat(60)))).unwrap();
    thread::sleep(APART);
    let cutoff = Instant::now();
    thread::sleep(APART);
    fs::create_dir_all(rig.path(".fordway/versions/young")).unwrap();
    let long = format!("bkt/.fordway/versions/{}%", "long".repeat(60));
    let (left, alias) = (format!("{long}/left"), format!("bkt/{alias}"));
    let expected = [
        ("empty-dir", long.as_str(), 0),
        ("empty-dir", left.as_str(), 0),
        ("empty-dir", "bkt/.fordway/versions/torn", 0),
        ("version-alias", alias.as_str(), 0),
    ];
    let listed = || rig.store.list_versions(&bucket(), &VersionsQuery::default()).unwrap();
    let before = listed();
    assert_eq!(before.versions.len(), 6);
    assert_collects(&rig, cutoff, &expected);
    assert_eq!(listed(), before);
    assert_eq!(rig.get("torn").as_deref(), Some(&b"one"[..]));
}

#[test]
fn links_are_not_followed() {
    let rig = Rig::new();
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("old"), "mine").unwrap();
    fs::create_dir_all(rig.path(".fordway/mpu")).unwrap();
    std::os::unix::fs::symlink(outside.path(), rig.path(".fordway/tmp")).unwrap();
    std::os::unix::fs::symlink(outside.path(), rig.path(".fordway/mpu/abc")).unwrap();
    std::os::unix::fs::symlink(outside.path(), rig.path("dir")).unwrap();
    let options = GcOptions { staged_age: Duration::ZERO, upload_age: Duration::ZERO, ..Default::default() };
    let mut refused = Vec::new();
    let summary = rig.store.collect_garbage(&options, &mut |event| {
        if let GcEvent::Failed(error) = event {
            refused.push(error);
        }
        Ok(())
    });
    assert_eq!(summary.unwrap().removed, 0);
    assert_eq!(refused.iter().map(Error::kind).collect::<Vec<_>>(), [ErrorKind::AccessDenied]);
    assert!(refused[0].to_string().contains("s3://bkt/.fordway/tmp"), "{}", refused[0]);
    assert_eq!(fs::read(outside.path().join("old")).unwrap(), b"mine");
}

#[test]
fn whoever_is_told_can_end_it() {
    let rig = Rig::new();
    for n in 0..3 {
        rig.write(&format!(".fordway/tmp/{n:016x}"), "");
    }
    thread::sleep(APART);
    let options = GcOptions { staged_age: Duration::ZERO, ..Default::default() };
    let ended = rig.store.collect_garbage(&options, &mut |_| Err(Error::from(ErrorKind::Interrupted)));
    assert_eq!(ended.err().map(|error| error.kind()), Some(ErrorKind::Interrupted));
    assert_eq!(fs::read_dir(rig.path(".fordway/tmp")).unwrap().count(), 2);
}

/// Writers create and remove the same directories, move keys between plain and odd paths, and run uploads, while
/// garbage collections run one after the other.
#[test]
fn beside_writers_nothing_is_lost() {
    let rig = Rig::new();
    let done = AtomicBool::new(false);
    let (collections, removed) = thread::scope(|scope| {
        let writers: Vec<_> = (0..3)
            .map(|writer| {
                scope.spawn({
                    let rig = &rig;
                    move || write_much(rig, writer)
                })
            })
            .collect();
        let collector = scope.spawn(|| {
            let (mut collections, mut removed) = (0, 0);
            // Only the limit for directories is short, so that the staged files of the writers are kept.
            let options = GcOptions { empty_dir_age: Duration::from_millis(15), ..Default::default() };
            while !done.load(Ordering::Relaxed) {
                removed += collect_with(&rig, &options).0.removed;
                collections += 1;
            }
            (collections, removed)
        });
        let written: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        done.store(true, Ordering::Relaxed);
        written.into_iter().for_each(|written| written.unwrap());
        collector.join().unwrap()
    });
    assert!(collections > 1, "{collections}");
    // On a fast machine, the writers may have reused every directory before it was old enough to be removed.
    thread::sleep(APART);
    let removed = removed + collect(&rig, APART / 2, false).0.removed;
    assert!(removed > 0, "{collections} collections removed nothing");
    // The objects that each writer wrote in its last round must exist.
    for writer in 0..3 {
        assert_eq!(rig.get(&format!("up/{writer}")).unwrap(), b"part");
    }
}

fn write_much(rig: &Rig, writer: usize) {
    for round in 0..100 {
        let body = format!("{writer} {round}");
        let (deep, turn) = (format!("shared/{}/deep/{writer}", round % 3), format!("turn/{writer}"));
        rig.put(&deep, &body);
        assert_eq!(rig.get(&deep).as_deref(), Some(body.as_bytes()));
        rig.delete(&deep);
        assert_eq!(rig.get(&deep), None);

        rig.put(&format!("{turn}/below"), "makes a directory of it");
        rig.put(&turn, &body);
        assert_eq!(rig.get(&turn).as_deref(), Some(body.as_bytes()), "odd");
        rig.delete(&format!("{turn}/below"));
        rig.put(&turn, format!("{body} plain"));
        assert_eq!(
            rig.get(&turn).unwrap(),
            format!("{body} plain").as_bytes(),
            "plain, which hides the odd one"
        );
        rig.delete(&turn);
        assert_eq!(rig.get(&turn), None, "neither place");

        // A POSIX program leaves this directory empty. A later round may put an object into the directory again,
        // perhaps while the directory is being removed.
        let left = format!("left/{}/{writer}/key", round % 5);
        rig.put(&left, &body);
        assert_eq!(rig.get(&left).as_deref(), Some(body.as_bytes()));
        fs::remove_file(rig.path(&left)).unwrap();

        if round % 10 == 9 {
            upload(rig, &format!("up/{writer}"));
        }
    }
}

fn upload(rig: &Rig, key: &str) {
    let id = rig.start_upload(key);
    rig.put_part(key, &id, 1, b"part");
    let listed = rig.store.list_parts(&bucket(), &name(key), &id, &PartsQuery::default()).unwrap();
    let etag = listed.parts[0].etag.clone();
    let parts = [CompletedPart::new(1, etag)];
    rig.store.complete_upload(&bucket(), &name(key), &id, &parts, &CompleteOptions::default()).unwrap();
}
