//! Tests symbolic links in a bucket, and private directories that are not at the top of a bucket.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fordway_posix::{PosixConfig, PosixStore};
use fordway_store::{
    Bucket, CompleteOptions, CompletedPart, CopyOptions, DeleteOptions, ErrorKind, ExpectedContent,
    GetOptions, Key, ListQuery, LockConfiguration, MultipartUploadOperations, ObjectLock,
    ObjectLockOperations, ObjectRenameOperations, ObjectTagOperations, ObjectVersionOperations, Objects,
    PartOptions, PutOptions, RenameOptions, Result, Retention, RetentionMode, Tags, VersionId,
    VersioningState,
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

/// The names in a directory are cached until the directory changes, but a link's target may change while the directory
/// does not.
#[test]
fn the_type_of_a_link_is_that_of_its_current_target() {
    const FILES: usize = 600;
    let rig = Rig::new();
    rig.put("target/object", "x").unwrap();
    (0..FILES).for_each(|at| fs::write(rig.path(&format!("bkt/k{at:03}")), "x").unwrap());
    for name in ["k300!", "k300-link", "l", "nowhere"] {
        symlink(if name == "nowhere" { "missing" } else { "target" }, rig.path(&format!("bkt/{name}")))
            .unwrap();
    }
    std::thread::sleep(Duration::from_millis(50));
    let shown = || {
        let (mut query, mut names) = (ListQuery { max_keys: 7, ..Default::default() }, Vec::new());
        loop {
            let page = rig.store.list(&bucket("bkt"), &query).unwrap();
            names.extend(page.entries.iter().map(|entry| entry.name().to_owned()));
            let Some(next) = page.next else { return names };
            query.start_after = Some(next);
        }
    };
    let check = |of_link: &dyn Fn(&str) -> Vec<String>| {
        for _ in 0..2 {
            let names = shown();
            assert!(names.is_sorted(), "{names:?}");
            let links: Vec<_> = names.into_iter().filter(|name| !is_plain(name)).collect();
            assert_eq!(links, ["k300!", "k300-link", "l"].map(of_link).concat());
        }
    };
    fn is_plain(name: &str) -> bool {
        name.starts_with("target") || name.strip_prefix('k').is_some_and(|rest| rest.len() == 3)
    }
    check(&|link| vec![format!("{link}/object")]);
    // Through another directory, the target changes while the directory with the links does not.
    fs::write(rig.path("other/file"), "x").unwrap();
    for name in ["k300!", "k300-link", "l"] {
        fs::remove_file(rig.path(&format!("bkt/{name}"))).unwrap();
        symlink("../other/file", rig.path(&format!("bkt/{name}"))).unwrap();
    }
    std::thread::sleep(Duration::from_millis(50));
    check(&|link| vec![link.to_owned()]);
    fs::remove_file(rig.path("other/file")).unwrap();
    check(&|_| Vec::new());
    fs::create_dir(rig.path("other/file")).unwrap();
    fs::write(rig.path("other/file/object"), "x").unwrap();
    check(&|link| vec![format!("{link}/object")]);
}

/// A bucket that was moved into another bucket keeps its private area, whose files must not become objects.
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
    // A directory with many names is listed from an index, which the kernel's queue of changes keeps up to date.
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

/// Asserts that the change was refused because it would leave the bucket.
fn assert_leaves<T: std::fmt::Debug>(what: &str, done: Result<T>) {
    let error = done.expect_err(what);
    assert_eq!(error.kind(), ErrorKind::AccessDenied, "{what}: {error}");
    assert!(error.to_string().contains("leads through a symbolic link out of its bucket"), "{what}: {error}");
}

/// Asserts that every kind of change to `name`, a key whose file or directory is in another bucket, is refused.
fn assert_unchangeable(rig: &Rig, name: &str) {
    let (bkt, at) = (bucket("bkt"), key(name));
    let store = &rig.store;
    assert_leaves("put", rig.put(name, "changed"));
    assert_leaves("delete", rig.delete(name));
    assert_leaves(
        "delete",
        store.delete(&bkt, &at, &DeleteOptions { version: Some(VersionId::null()), ..Default::default() }),
    );
    assert_leaves("tags", store.set_tags(&bkt, &at, None, &Tags::from([("a".into(), "b".into())])));
    assert_leaves("copy", store.copy((&bkt, &key("own")), &bkt, &at, &CopyOptions::default()));
    assert_leaves("upload", store.create_upload(&bkt, &at, &PutOptions::default()));
    if store.versioning(&bkt).unwrap() == VersioningState::Unversioned {
        let options = RenameOptions::default();
        assert_leaves("rename from", store.rename(&bkt, &at, &key("new"), &options));
        assert_leaves("rename to", store.rename(&bkt, &key("own"), &at, &options));
    }
}

#[test]
fn changes_do_not_leave_the_bucket_through_a_link() {
    for versioning in [None, Some(VersioningState::Enabled), Some(VersioningState::Suspended)] {
        let rig = Rig::new();
        let (bkt, other) = (bucket("bkt"), bucket("other"));
        rig.store.set_versioning(&other, VersioningState::Enabled).unwrap();
        rig.store.set_lock_configuration(&other, &LockConfiguration::default()).unwrap();
        let until = SystemTime::now() + Duration::from_secs(3600);
        let until_ms = until.duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
        let retention = Some(Retention { mode: RetentionMode::Compliance, until_ms });
        let locked = PutOptions { lock: ObjectLock { retention, legal_hold: None }, ..Default::default() };
        for name in ["x", "d/x"] {
            rig.store.put(&other, &key(name), b"locked", &locked).unwrap();
        }
        rig.put("own", "own").unwrap();
        versioning.map_or(Ok(()), |state| rig.store.set_versioning(&bkt, state)).unwrap();
        symlink("../other", rig.path("bkt/l")).unwrap();
        fs::create_dir(rig.path("bkt/real")).unwrap();
        symlink("../l/d", rig.path("bkt/real/m")).unwrap();
        // The first attempts open the path; the later attempts use the directory that the store keeps open.
        for _ in 0..3 {
            for name in ["l/x", "l/d/x", "real/m/x"] {
                assert_eq!(rig.get(name), Ok(b"locked".to_vec()), "{name}");
                assert_unchangeable(&rig, name);
            }
        }
        for name in ["l/new", "l/new/er"] {
            assert_leaves(name, rig.put(name, ""));
        }
        assert_eq!(rig.list("", false), ["l/d/x", "l/x", "own", "real/m/x"]);
        let listed = rig.store.list_versions(&other, &Default::default()).unwrap().versions;
        assert_eq!(listed.len(), 2);
        assert!(!rig.path("other/new").exists());
        // The link's own key is a key of this bucket.
        if versioning.is_none() {
            assert_leaves("l/d/", rig.put("l/d/", ""));
            rig.delete("l").unwrap();
            assert!(!rig.path("bkt/l").is_symlink());
        }
        assert_eq!(fs::read(rig.path("other/x")).unwrap(), b"locked");
    }
}

#[test]
fn a_link_to_a_file_of_another_bucket_is_replaced_but_not_kept_as_a_version() {
    let rig = Rig::new();
    let (bkt, other) = (bucket("bkt"), bucket("other"));
    rig.store.put(&other, &key("x"), b"other", &PutOptions::default()).unwrap();
    symlink("../other/x", rig.path("bkt/f")).unwrap();
    let tags = Tags::from([("a".into(), "b".into())]);
    assert_leaves("tags", rig.store.set_tags(&bkt, &key("f"), None, &tags));
    rig.put("f", "own").unwrap();
    assert!(!rig.path("bkt/f").is_symlink());
    fs::remove_file(rig.path("bkt/f")).unwrap();

    symlink("../other/x", rig.path("bkt/f")).unwrap();
    rig.store.set_versioning(&bkt, VersioningState::Enabled).unwrap();
    assert_leaves("put", rig.put("f", "own"));
    assert_leaves("delete", rig.delete("f"));
    let null = DeleteOptions { version: Some(VersionId::null()), ..Default::default() };
    rig.store.delete(&bkt, &key("f"), &null).unwrap();
    assert!(!rig.path("bkt/f").is_symlink());
    assert!(rig.store.tags(&other, &key("x"), None).unwrap().is_empty());
    assert_eq!(fs::read(rig.path("other/x")).unwrap(), b"other");
}

/// Links within the bucket, and buckets that are links, are followed.
#[test]
fn changes_follow_links_within_the_bucket() {
    let rig = Rig::new();
    fs::create_dir_all(rig.path("bkt/real/sub")).unwrap();
    symlink("real", rig.path("bkt/l")).unwrap();
    symlink("../real/sub", rig.path("bkt/real/up")).unwrap();
    symlink("other", rig.path("alias")).unwrap();
    let tags = Tags::from([("a".into(), "b".into())]);
    let places =
        [("bkt", "l/k", "bkt/real/k"), ("bkt", "l/up/n/k", "bkt/real/sub/n/k"), ("alias", "k", "other/k")];
    for (name, at, path) in places {
        let name = bucket(name);
        for _ in 0..3 {
            rig.store.put(&name, &key(at), b"content", &PutOptions::default()).unwrap();
            rig.store.set_tags(&name, &key(at), None, &tags).unwrap();
            assert_eq!(rig.store.tags(&name, &key(at), None).unwrap(), tags);
            assert_eq!(fs::read(rig.path(path)).unwrap(), b"content");
        }
        rig.store.delete(&name, &key(at), &DeleteOptions::default()).unwrap();
        assert!(!rig.path(path).exists());
    }
    let upload = rig.store.create_upload(&bucket("bkt"), &key("l/up/k"), &PutOptions::default()).unwrap();
    let mut part =
        rig.store.part_writer(&bucket("bkt"), &key("l/up/k"), &upload, 1, &PartOptions::default()).unwrap();
    part.write(b"part").unwrap();
    let parts = [CompletedPart::new(1, part.commit(&ExpectedContent::default()).unwrap().etag)];
    rig.store
        .complete_upload(&bucket("bkt"), &key("l/up/k"), &upload, &parts, &CompleteOptions::default())
        .unwrap();
    rig.store.rename(&bucket("bkt"), &key("l/up/k"), &key("l/k"), &RenameOptions::default()).unwrap();
    assert_eq!(rig.list("", false), ["l/k", "real/k"]);
}

/// Changes through a bucket that is a link into another bucket would not respect that bucket's locks.
#[test]
fn a_bucket_that_is_a_link_must_lead_to_a_bucket() {
    let rig = Rig::new();
    let other = bucket("other");
    rig.store.set_versioning(&other, VersioningState::Enabled).unwrap();
    rig.store.put(&other, &key("sub/deep/x"), b"kept", &PutOptions::default()).unwrap();
    symlink("other/sub", rig.path("part")).unwrap();
    symlink(".", rig.path("whole")).unwrap();
    let tags = Tags::from([("a".into(), "b".into())]);
    for (name, at) in [("part", "deep/x"), ("whole", "other/sub/deep/x")] {
        let (name, at) = (bucket(name), key(at));
        for _ in 0..3 {
            let read = rig.store.get(&name, &at, &GetOptions::default()).unwrap();
            assert_eq!(read.content.into_vec().unwrap(), b"kept");
            assert_leaves("put", rig.store.put(&name, &at, b"lost", &PutOptions::default()));
            assert_leaves("delete", rig.store.delete(&name, &at, &DeleteOptions::default()));
            assert_leaves("tags", rig.store.set_tags(&name, &at, None, &tags));
            assert_leaves("upload", rig.store.create_upload(&name, &at, &PutOptions::default()));
            assert_leaves("versions", rig.store.set_versioning(&name, VersioningState::Enabled));
        }
        assert_leaves("put", rig.store.put(&name, &key("new"), b"new", &PutOptions::default()));
    }
    assert!(!rig.path("other/sub/.fordway").exists() && !rig.path(".fordway/versioning").exists());
    assert_eq!(fs::read(rig.path("other/sub/deep/x")).unwrap(), b"kept");
    assert_eq!(rig.store.list_versions(&other, &Default::default()).unwrap().versions.len(), 1);
}

/// Neither a read nor a change reaches a file in a private directory through a link.
#[test]
fn no_link_leads_into_a_private_directory() {
    let rig = Rig::new();
    rig.store.put(&bucket("other"), &key("x//y"), b"odd", &PutOptions::default()).unwrap();
    rig.put("a//b", "odd").unwrap();
    for (link, target) in [
        ("l", ".fordway"),
        ("m", ".fordway/odd"),
        ("n", "../other/.fordway/odd"),
        ("o", "../other/.fordway"),
        ("f", ".fordway/odd/a%2F%2Fb"),
        ("g", "../other/.fordway/odd/x%2F%2Fy"),
    ] {
        symlink(target, rig.path("bkt").join(link)).unwrap();
    }
    assert_eq!(rig.list("", false), ["a//b"]);
    assert_eq!(rig.list("", true), ["a/"]);
    for _ in 0..3 {
        for name in ["l/locks", "m/a%2F%2Fb", "n/x%2F%2Fy", "o/odd/x%2F%2Fy", "f", "g"] {
            assert_eq!(rig.get(name), Err(ErrorKind::AccessDenied), "{name}");
            let head = rig.store.head(&bucket("bkt"), &key(name), &GetOptions::default());
            assert_eq!(head.unwrap_err().kind(), ErrorKind::AccessDenied, "{name}");
        }
        for name in ["l/document-policy", "l/odd/new", "m/a%2F%2Fb", "n/x%2F%2Fy", "o/versioning"] {
            assert_eq!(rig.put(name, "x").unwrap_err().kind(), ErrorKind::AccessDenied, "{name}");
            assert_eq!(rig.delete(name).unwrap_err().kind(), ErrorKind::AccessDenied, "{name}");
        }
    }
    assert_eq!(rig.get("a//b"), Ok(b"odd".to_vec()));
    assert_eq!(fs::read(rig.path("other/.fordway/odd/x%2F%2Fy")).unwrap(), b"odd");
    rig.delete("f").unwrap();
    assert!(!rig.path("bkt/f").is_symlink());
}

/// With two links from each directory to the next one, there are 2^30 paths. A listing must not try them all.
#[test]
fn many_paths_to_nothing_cost_little() {
    let rig = Rig::new();
    let dir = |number: usize| rig.path("bkt").join(format!("d{number:02}"));
    for number in 0..=30 {
        fs::create_dir(dir(number)).unwrap();
    }
    for number in 0..30 {
        for link in ["a", "b"] {
            symlink(format!("../d{:02}", number + 1), dir(number).join(link)).unwrap();
        }
        // These links form cycles, so that each directory is skipped while the walk is in it.
        symlink(format!("../d{number:02}"), dir(number + 1).join("back")).unwrap();
        symlink("../d00", dir(number + 1).join("top")).unwrap();
    }
    assert_eq!(rig.list("d00/", true), [""; 0]);
    (0..=30).for_each(|number| symlink("nowhere", dir(number).join("dangling")).unwrap());
    assert_eq!(rig.list("", false), [""; 0]);
    // An object is found on all paths without cycles, even if an earlier listing found directories on these paths
    // empty.
    fs::write(dir(3).join("k"), "").unwrap();
    let listed = rig.list("d00/", false);
    let expected: Vec<String> = (0..8)
        .map(|bits| format!("d00/{}/k", [2, 1, 0].map(|bit| ["a", "b"][bits >> bit & 1]).join("/")))
        .collect();
    assert_eq!(listed, expected);
    assert_eq!(rig.list("d02/", false), ["d02/a/k", "d02/b/k"]);
    assert_eq!(rig.list("d04/back/", false), ["d04/back/k"]);
    let from_below: Vec<_> = expected.iter().map(|key| key.replace("d00", "d04/top")).collect();
    assert_eq!(rig.list("d04/top/", false), from_below);
}

/// At most 40 links on a path are followed. A directory behind too many links on one path may be reachable on another
/// path.
#[test]
fn a_directory_that_is_too_far_away_on_one_path_is_listed_on_a_shorter_one() {
    let rig = Rig::new();
    let dir = |number: usize| rig.path("bkt").join(format!("d{number:02}"));
    for number in 0..=50 {
        fs::create_dir(dir(number)).unwrap();
        symlink(format!("../d{:02}", number + 1), dir(number).join("a")).unwrap();
    }
    fs::write(dir(50).join("k"), "").unwrap();
    let listed = rig.list("", false);
    let expected: Vec<_> =
        (10..=50).map(|number| format!("d{number:02}/{}k", "a/".repeat(50 - number))).collect();
    assert_eq!(listed, expected);
    fs::remove_file(dir(50).join("k")).unwrap();
    for number in 0..=50 {
        symlink(format!("../d{:02}", number + 1), dir(number).join("b")).unwrap();
    }
    assert_eq!(rig.list("", false), [""; 0]);
}

/// Directories contain random links to each other. The listing is compared with a simple walk.
#[test]
fn remembered_directories_hide_no_object() {
    let rig = Rig::new();
    let mut seed = 7_u64;
    let mut random = move |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    };
    for round in 0..60 {
        let _ = fs::remove_dir_all(rig.path("bkt"));
        fs::create_dir(rig.path("bkt")).unwrap();
        let count = 3 + random(4);
        for number in 0..count {
            fs::create_dir(rig.path("bkt").join(format!("d{number}"))).unwrap();
        }
        for number in 0..count {
            let dir = rig.path("bkt").join(format!("d{number}"));
            for link in 0..random(4) {
                symlink(format!("../d{}", random(count)), dir.join(format!("l{link}"))).unwrap();
            }
            if random(4) == 0 {
                fs::write(dir.join("k"), "").unwrap();
            }
        }
        let mut expected = Vec::new();
        walk(&rig.path("bkt"), "", &mut Vec::new(), &mut expected);
        expected.sort_unstable();
        expected.truncate(1000);
        assert_eq!(rig.list("", false), expected, "round {round}");
    }
}

/// Finds all files on all paths that contain no directory twice.
fn walk(dir: &Path, at: &str, above: &mut Vec<PathBuf>, found: &mut Vec<String>) {
    let real = dir.canonicalize().unwrap();
    if above.contains(&real) {
        return;
    }
    above.push(real);
    for entry in fs::read_dir(dir).unwrap() {
        let (path, name) = (entry.as_ref().unwrap().path(), entry.unwrap().file_name());
        let key = format!("{at}{}", name.to_str().unwrap());
        match path.is_dir() {
            true => walk(&path, &format!("{key}/"), above, found),
            false => found.push(key),
        }
    }
    above.pop();
}
