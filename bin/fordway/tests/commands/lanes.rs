//! Tests that `mv` removes a source only if it has not changed since it was copied, and that `sync` detects every
//! change. The tests use an in-memory store and every lane.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

use fordway_command::CommandExit;
use fordway_store::{Objects, PutOptions};

use crate::support::{Fault, FaultyStore, Rig, bucket, name};

/// Returns a rig in which another program replaces the source of a move during the copy.
fn with_another_program(act: impl Fn() + Send + Sync + 'static) -> Rig {
    Rig::over(|inner| Arc::new(FaultyStore { inner, fault: Fault::Meanwhile("k", Box::new(act)) }))
}

#[test]
fn a_file_that_is_replaced_during_its_upload_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let (path, new) = (dir.path().join("file"), dir.path().join("new"));
    std::fs::write(&path, "old").unwrap();
    let replaced = path.clone();
    let rig = with_another_program(move || {
        // The new file has the same size, so that only the identity and the times differ.
        std::fs::write(&new, "new").unwrap();
        std::fs::rename(&new, &replaced).unwrap();
    });
    let words = ["mv", path.to_str().unwrap(), "s3://bkt/k"];
    let ran = rig.run(&words).ended(CommandExit::Conflict);
    assert!(ran.stderr.contains("it was copied but not removed"), "{}", ran.stderr);
    assert_eq!(std::fs::read(&path).unwrap(), b"new");
    assert_eq!(rig.get("k").unwrap(), b"old");
}

#[test]
fn a_link_is_moved_with_the_content_of_its_file() {
    let rig = Rig::new();
    rig.write("file", "content");
    std::os::unix::fs::symlink("file", rig.path("link")).unwrap();
    rig.run(&["mv", "DIR/link", "s3://bkt/k"]).ok();
    assert_eq!((rig.files(), rig.keys()), (vec!["file".to_owned()], vec!["k".to_owned()]));
}

#[test]
fn an_object_that_is_replaced_during_its_copy_is_kept() {
    for words in [["mv", "s3://bkt/k", "DIR/out"], ["mv", "s3://bkt/k", "s3://other/copied"]] {
        let memory = Arc::new(std::sync::OnceLock::new());
        let store = Arc::clone(&memory);
        let rig = with_another_program(move || {
            let store: &fordway_store::MemoryStore = store.get().unwrap();
            store.put(&bucket("bkt"), &name("k"), b"new", &PutOptions::default()).map(drop).unwrap();
        });
        memory.set(rig.memory.clone()).ok().unwrap();
        rig.memory.create_bucket(&bucket("other")).unwrap();
        rig.put("k", "old");
        let ran = rig.run(&words).ended(CommandExit::Conflict);
        assert!(ran.stderr.contains("delete s3://bkt/k (memory)"), "{}", ran.stderr);
        assert_eq!(rig.get("k").unwrap(), b"new", "{words:?}");
    }
}

/// A gateway in a separate process, and its endpoint. The process is killed when this value is dropped.
struct Gateway(Child, String);

impl Gateway {
    fn start(words: &[&str], root: &Path) -> Self {
        let mut process = program().args(words).arg(root).stdout(Stdio::piped()).spawn().unwrap();
        let mut ready = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut ready).unwrap();
        let endpoint = ready.trim().rsplit_once(" at ").map(|(_, place)| place.to_owned());
        Gateway(process, endpoint.unwrap_or_default())
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns a command for the program, with the same keys for the gateway and its clients.
fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fordway"));
    command.env("AWS_ACCESS_KEY_ID", "me").env("AWS_SECRET_ACCESS_KEY", "secret");
    command
}

fn fordway(endpoint: &str, words: &[&str]) -> Output {
    program().args(["--endpoint", endpoint]).args(words).output().unwrap()
}

/// A directory with a bucket, and the endpoints of all lanes to it.
struct Lanes {
    dir: tempfile::TempDir,
    root: PathBuf,
    endpoints: Vec<String>,
    _gateways: [Gateway; 2],
}

impl Lanes {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (root, socket) = (dir.path().join("root"), dir.path().join("socket"));
        std::fs::create_dir_all(root.join("bucket")).unwrap();
        let node = Gateway::start(&["node", "--socket", socket.to_str().unwrap()], &root);
        let http = Gateway::start(
            &["serve", "--listen", "127.0.0.1:0", "--webhook", "ci=https://hooks.example.org/"],
            &root,
        );
        let unix = format!("unix://{}", socket.display());
        let file = format!("file://{}", root.display());
        let without_conditions = format!("{file}?conditions=none-match-only");
        let endpoints = vec![file, unix, http.1.clone(), without_conditions];
        Lanes { dir, root, endpoints, _gateways: [node, http] }
    }
}

/// `sync` must detect a change that keeps the size, less than a second after the upload.
#[test]
fn sync_finds_a_change_within_a_second() {
    let lanes = Lanes::start();
    let (tree, file) = (lanes.dir.path().join("tree"), lanes.dir.path().join("tree/file"));
    std::fs::create_dir(&tree).unwrap();
    for (number, endpoint) in lanes.endpoints.iter().enumerate() {
        let sync = |from: &str, to: &str| {
            let ran = fordway(endpoint, &["sync", from, to]);
            assert!(ran.status.success(), "{endpoint}: {}", String::from_utf8_lossy(&ran.stderr));
            String::from_utf8(ran.stdout).unwrap().lines().count()
        };
        let (up, mirror) = (format!("s3://bucket/{number}/up"), format!("s3://bucket/{number}/mirror"));
        for content in ["one", "two"] {
            std::thread::sleep(Duration::from_millis(20));
            std::fs::write(&file, content).unwrap();
            for (from, to) in [(tree.to_str().unwrap(), &up), (&up, &mirror)] {
                assert_eq!(sync(from, to), 1, "{endpoint}: {from} to {to}, {content}");
                assert_eq!(sync(from, to), 0, "{endpoint}: {from} to {to}, nothing is left to do");
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
}

/// A local directory can be a part of the bucket. A `sync` between the directory and the bucket would then remove the
/// only copy of objects.
#[test]
fn sync_refuses_a_directory_that_holds_the_same_objects() {
    let lanes = Lanes::start();
    let bucket = lanes.root.join("bucket");
    std::fs::create_dir_all(bucket.join("c/none")).unwrap();
    std::fs::create_dir(lanes.dir.path().join("copy")).unwrap();
    std::os::unix::fs::symlink(&bucket, lanes.dir.path().join("link")).unwrap();
    for key in ["a", "c/d", "z"] {
        std::fs::write(bucket.join(key), vec![b'x'; 1 << 20]).unwrap();
    }
    let path = |relative: &str| lanes.dir.path().join(relative).display().to_string();
    for endpoint in [&lanes.endpoints[0], &lanes.endpoints[1], &lanes.endpoints[3]] {
        for (local, prefix) in [
            ("root/bucket/c", "s3://bucket"),
            ("root/bucket", "s3://bucket"),
            ("root", "s3://bucket"),
            ("root/bucket/c", "s3://bucket/c/"),
            ("root/bucket", "s3://bucket/new"),
            ("link/c/none/deeper", "s3://bucket/c"),
        ] {
            let local = &path(local);
            for words in [["sync", prefix, local, "--delete"], ["sync", local, prefix, "--delete"]] {
                let ran = fordway(endpoint, &words);
                let said = String::from_utf8_lossy(&ran.stderr);
                assert_eq!(ran.status.code(), Some(2), "{endpoint} {words:?}: {said}");
                assert!(said.contains("contains the other, because the objects are the files in"), "{said}");
            }
        }
        let (copy, part) = (path("copy"), path("root/bucket/c"));
        for words in
            [["sync", "s3://bucket", &copy], ["sync", &copy, "s3://bucket"], ["sync", &part, "s3://bucket/n"]]
        {
            let ran = fordway(endpoint, &words);
            assert!(ran.status.success(), "{words:?}: {}", String::from_utf8_lossy(&ran.stderr));
        }
        std::fs::remove_dir_all(bucket.join("n")).unwrap();
    }
    for key in ["a", "c/d", "z"] {
        assert_eq!(std::fs::metadata(bucket.join(key)).unwrap().len(), 1 << 20);
    }
}

/// A listing of the bucket would contain the copies, and the command would copy them again, without end.
#[test]
fn a_bucket_is_not_copied_into_its_own_directory() {
    let lanes = Lanes::start();
    let bucket = lanes.root.join("bucket");
    for number in 0..1100 {
        std::fs::write(bucket.join(format!("k{number:04}")), "x").unwrap();
    }
    let (inside, bucket_path) = (bucket.join("zz/new"), bucket.display().to_string());
    let inside_path = inside.display().to_string();
    for endpoint in &lanes.endpoints {
        for words in [
            ["cp", "-r", "s3://bucket", &inside_path],
            ["mv", "-r", "s3://bucket", &inside_path],
            ["cp", "--quiet", "s3://bucket/*", &inside_path],
            ["cp", "-r", &bucket_path, "s3://bucket/zz/new"],
        ] {
            let ran = fordway(endpoint, &words);
            let said = String::from_utf8_lossy(&ran.stderr);
            assert_eq!(ran.status.code(), Some(2), "{endpoint} {words:?}: {said}");
            assert!(said.contains("is a directory inside the source"), "{said}");
            assert_eq!(
                bucket
                    .read_dir()
                    .unwrap()
                    .filter(|entry| {
                        !entry.as_ref().unwrap().file_name().to_string_lossy().starts_with('.')
                    })
                    .count(),
                1100,
                "{endpoint} {words:?}"
            );
        }
        // The source does not select the copies.
        for words in [
            &["cp", "-r", "s3://bucket", &inside_path, "--exclude", "zz/*"][..],
            &["cp", "s3://bucket/k*", &inside_path],
        ] {
            let ran = fordway(endpoint, words);
            assert!(ran.status.success(), "{endpoint} {words:?}: {}", String::from_utf8_lossy(&ran.stderr));
            assert_eq!(inside.read_dir().unwrap().count(), 1100, "{endpoint} {words:?}");
            std::fs::remove_dir_all(bucket.join("zz")).unwrap();
        }
    }
}

/// The gateway passes no open files if the bucket has no large objects, and never passes open files over HTTP. In these
/// cases, `sync` must find the shared directory by the name of the bucket.
#[test]
fn sync_finds_a_shared_directory_by_its_name() {
    let lanes = Lanes::start();
    let bucket = lanes.root.join("bucket");
    std::fs::create_dir(bucket.join("c")).unwrap();
    for key in ["a", "c/d"] {
        std::fs::write(bucket.join(key), key).unwrap();
    }
    // A copy of the bucket's directory is not the bucket's directory.
    let other = lanes.dir.path().join("copy/bucket");
    std::fs::create_dir_all(&other).unwrap();
    std::fs::write(other.join("a"), "a").unwrap();
    let modified = std::fs::metadata(bucket.join("a")).unwrap().modified().unwrap();
    std::fs::File::options().write(true).open(other.join("a")).unwrap().set_modified(modified).unwrap();
    let path = |relative: &str| lanes.dir.path().join(relative).display().to_string();
    for endpoint in &lanes.endpoints {
        for (local, prefix) in
            [("root/bucket/c", "s3://bucket"), ("root/bucket", "s3://bucket/c"), ("root", "s3://bucket")]
        {
            let ran = fordway(endpoint, &["sync", &path(local), prefix, "--delete"]);
            let said = String::from_utf8_lossy(&ran.stderr);
            assert_eq!(ran.status.code(), Some(2), "{endpoint} {local}: {said}");
            assert!(said.contains("contains the other"), "{said}");
        }
        let ran = fordway(endpoint, &["sync", &path("copy/bucket"), "s3://bucket/n"]);
        assert!(ran.status.success(), "{endpoint}: {}", String::from_utf8_lossy(&ran.stderr));
        std::fs::remove_dir_all(bucket.join("n")).unwrap();
    }
    assert!(bucket.join("a").exists() && bucket.join("c/d").exists());
}

/// If the bucket contains a link, an object below the prefix can be a file of the source.
#[test]
fn sync_removes_no_file_of_the_source_through_a_link() {
    let lanes = Lanes::start();
    let (bucket, source) = (lanes.root.join("bucket"), lanes.root.join("other/source"));
    for directory in [&source, &bucket.join("p")] {
        std::fs::create_dir_all(directory).unwrap();
    }
    std::os::unix::fs::symlink("../../other/source", bucket.join("p/link")).unwrap();
    std::fs::write(bucket.join("p/gone"), "x").unwrap();
    // The gateway passes the large object as an open file.
    std::fs::write(bucket.join("large"), vec![b'x'; 1 << 20]).unwrap();
    for endpoint in [&lanes.endpoints[0], &lanes.endpoints[1]] {
        std::fs::write(source.join("precious"), "x").unwrap();
        std::fs::write(bucket.join("p/gone"), "x").unwrap();
        let ran = fordway(endpoint, &["sync", source.to_str().unwrap(), "s3://bucket/p", "--delete"]);
        let said = String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.success(), "{endpoint}: {said}");
        assert!(source.join("precious").exists() && !bucket.join("p/gone").exists(), "{endpoint}: {said}");
        assert!(said.contains("s3://bucket/p/link/precious is a file of the source"), "{endpoint}: {said}");
    }
}

/// If a link leads to objects of another bucket, these objects are kept when everything around the link is removed.
#[test]
fn what_is_emptied_loses_its_links_and_not_what_they_lead_to() {
    use std::os::unix::fs::symlink;
    let lanes = Lanes::start();
    let other = lanes.root.join("other");
    for name in ["d/deep", "empty"] {
        std::fs::create_dir_all(other.join(name)).unwrap();
    }
    for name in ["x", "d/y", "d/deep/z"] {
        std::fs::write(other.join(name), "precious").unwrap();
    }
    for (endpoint, versioning) in
        lanes.endpoints[..3].iter().flat_map(|endpoint| [(endpoint, false), (endpoint, true)])
    {
        let run = |words: &[&str]| {
            let ran = fordway(endpoint, words);
            let said = String::from_utf8_lossy(&ran.stderr).into_owned();
            (ran.status.success(), said, String::from_utf8_lossy(&ran.stdout).into_owned())
        };
        let made = run(&["mb", "s3://doomed"]);
        assert!(made.0, "{endpoint}: {}", made.1);
        let bucket = lanes.root.join("doomed");
        if versioning {
            assert!(run(&["versioning", "s3://doomed", "enable"]).0);
        }
        let fill = || {
            assert!(run(&["cp", other.join("x").to_str().unwrap(), "s3://doomed/a/own"]).0);
            symlink("../other", bucket.join("l")).unwrap();
            symlink("../../other/d", bucket.join("a/m")).unwrap();
        };
        fill();
        // A key that leads through a link is refused, and so is a prefix reached through the link.
        for words in
            [&["rm", "s3://doomed/l/x"][..], &["rm", "-r", "s3://doomed/l/d"], &["rm", "-r", "s3://doomed/l"]]
        {
            let (is_removed, said, _) = run(words);
            assert!(
                !is_removed && said.contains("leads through a symbolic link out of its bucket"),
                "{endpoint} {words:?}: {said}"
            );
        }
        let (is_removed, said, _) = run(&["rm", "-r", "s3://doomed/", "--exclude", "own"]);
        assert!(
            !is_removed && said.contains("leads through a symbolic link out of its bucket"),
            "{endpoint}: {said}"
        );
        let (is_removed, said, shown) = run(&["rm", "-r", "s3://doomed/a"]);
        assert!(is_removed, "{endpoint}: {said}");
        assert_eq!(shown.matches("s3://doomed/a/m\n").count(), 1, "{endpoint}: {shown}");
        assert!(!bucket.join("a/m").is_symlink() && bucket.join("l").is_symlink(), "{endpoint}");
        std::fs::remove_file(bucket.join("l")).unwrap();
        fill();
        let (is_removed, said, shown) = run(&["rb", "--force", "s3://doomed"]);
        assert!(is_removed && !bucket.exists(), "{endpoint}: {said} {shown}");
        for name in ["x", "d/y", "d/deep/z"] {
            assert_eq!(std::fs::read(other.join(name)).unwrap(), b"precious", "{endpoint}");
        }
    }
}

/// If the key itself is a link, or a key on its path has versions, nothing is removed: neither the link nor the
/// version.
#[test]
fn a_version_is_not_lost_in_place_of_a_link() {
    use std::os::unix::fs::symlink;
    let lanes = Lanes::start();
    let other = lanes.root.join("other");
    std::fs::create_dir_all(other.join("s")).unwrap();
    std::fs::write(other.join("s/f"), "precious").unwrap();
    for endpoint in &lanes.endpoints[..3] {
        let run = |words: &[&str]| {
            let ran = fordway(endpoint, words);
            let said = String::from_utf8_lossy(&ran.stderr).into_owned();
            (ran.status.success(), said, String::from_utf8_lossy(&ran.stdout).into_owned())
        };
        let put = |key: &str| {
            let made = run(&["cp", other.join("s/f").to_str().unwrap(), &format!("s3://kept/{key}")]);
            assert!(made.0, "{endpoint}: {}", made.1);
        };
        assert!(run(&["mb", "s3://kept"]).0);
        let bucket = lanes.root.join("kept");
        ["dir/y", "dir", "l/s"].into_iter().for_each(put);
        assert!(run(&["versioning", "s3://kept", "enable"]).0);
        assert!(run(&["rm", "s3://kept/l/s"]).0);
        let _ = std::fs::remove_dir(bucket.join("l"));
        symlink("../other", bucket.join("l")).unwrap();
        symlink("../../other/s/f", bucket.join("dir/x")).unwrap();
        let (is_removed, said, shown) = run(&["rm", "-r", "s3://kept/"]);
        assert!(!is_removed && said.contains("leads through a symbolic link"), "{endpoint}: {said}");
        assert_eq!(shown.matches("s3://kept/dir\n").count(), 1, "{endpoint}: {shown}");
        assert!(!shown.contains("s3://kept/l"), "{endpoint}: {shown}");
        assert!(bucket.join("dir/x").is_symlink() && bucket.join("l").is_symlink(), "{endpoint}");
        for key in ["dir", "dir/y", "l/s"] {
            let kept = run(&["cat", &format!("s3://kept/{key}"), "--version-id", "null"]);
            assert_eq!(kept.2, "precious", "{endpoint} {key}: {}", kept.1);
        }
        std::fs::remove_dir_all(&bucket).unwrap();
    }
}

/// Neither a listing of objects nor a listing of a bucket's directory shows `.fordway`.
#[test]
fn the_records_of_a_bucket_are_not_content() {
    let lanes = Lanes::start();
    let (source, private) = (lanes.root.join("bucket"), lanes.root.join("bucket/.fordway"));
    std::fs::create_dir_all(&private).unwrap();
    std::fs::create_dir_all(lanes.root.join("other")).unwrap();
    std::fs::create_dir_all(source.join("d/.fordway")).unwrap();
    for file in [".fordway/locks", "d/.fordway/mine", "a"] {
        std::fs::write(source.join(file), "x").unwrap();
    }
    for command in ["cp", "mv"] {
        let words = [command, "-r", source.to_str().unwrap(), "s3://other/"];
        let ran = fordway(&lanes.endpoints[0], &words);
        let said = String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.success() && said.contains("bucket/.fordway, which holds"), "{said}");
        assert!(private.join("locks").exists());
    }
    let listed = fordway(&lanes.endpoints[0], &["ls", "-r", "s3://other"]);
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    assert!(listed.contains("d/.fordway/mine") && !listed.contains("locks"), "{listed}");
}

/// A local path can be the file of an object. A move from the path to the object, or from the object to the path, must
/// then keep the file.
#[test]
fn an_object_that_is_moved_onto_its_own_file_is_kept() {
    let lanes = Lanes::start();
    let (dir, root) = (&lanes.dir, &lanes.root);
    for endpoint in &lanes.endpoints {
        for key in ["k", "d/k"] {
            let (path, object) = (root.join("bucket").join(key), format!("s3://bucket/{key}"));
            let local = path.to_str().unwrap();
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            for (from, to) in [(local, &*object), (&*object, local)] {
                std::fs::write(&path, "only copy").unwrap();
                let ran = fordway(endpoint, &["mv", from, to]);
                let said = String::from_utf8_lossy(&ran.stderr);
                assert_eq!(ran.status.code(), Some(5), "{endpoint}: {from} to {to}: {said}");
                assert_eq!(std::fs::read(&path).unwrap(), b"only copy", "{endpoint}: {from} to {to}");
            }
        }
        let (path, directory) = (root.join("bucket/d/k"), root.join("bucket/d"));
        let directory = directory.to_str().unwrap();
        for (from, to) in [(directory, "s3://bucket/d"), ("s3://bucket/d", directory)] {
            let ran = fordway(endpoint, &["mv", "--recursive", from, to]);
            assert_eq!(ran.status.code(), Some(5), "{endpoint}: {from} to {to}");
            assert_eq!(std::fs::read(&path).unwrap(), b"only copy", "{endpoint}: {from} to {to}");
        }
        // A move to any other path succeeds.
        let out = dir.path().join("out");
        let out = out.to_str().unwrap();
        for (from, to) in [("s3://bucket/d/k", out), (out, "s3://bucket/d/k"), ("s3://bucket/d/k", out)] {
            let ran = fordway(endpoint, &["mv", from, to]);
            assert!(ran.status.success(), "{endpoint}: {}", String::from_utf8_lossy(&ran.stderr));
        }
        assert_eq!(std::fs::read(out).unwrap(), b"only copy");
        assert!(!path.exists());
    }
}

/// The settings of a bucket are the same on every lane, regardless of the lane that set them.
#[test]
fn settings_of_a_bucket_are_changed_and_seen_on_every_lane() {
    let lanes = Lanes::start();
    let file = lanes.dir.path().join("setting");
    let run = |endpoint: &str, words: &[&str]| {
        let ran = fordway(endpoint, words);
        let said = String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.success(), "{endpoint}: {words:?}: {said}");
        String::from_utf8(ran.stdout).unwrap()
    };
    run(&lanes.endpoints[0], &["versioning", "s3://bucket", "enable"]);
    let settings = [
        (
            "policy",
            r#"{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Principal": "*",
            "Action": "s3:GetObject", "Resource": "arn:aws:s3:::bucket/*"}]}"#,
        ),
        ("public-access", r#"{"RestrictPublicBuckets": true}"#),
        ("ownership", r#"{"Rules": [{"ObjectOwnership": "BucketOwnerEnforced"}]}"#),
        (
            "cors",
            r#"{"CORSRules": [{"AllowedMethods": ["GET"], "AllowedOrigins": ["*"], "MaxAgeSeconds": 9}]}"#,
        ),
        (
            "lifecycle",
            r#"{"Rules": [{"Status": "Enabled", "Filter": {"And": {"Prefix": "a<&>", "Tags": [
            {"Key": "b", "Value": "c"}]}}, "Expiration": {"Days": 3}}]}"#,
        ),
        (
            "events",
            r#"{"QueueConfigurations": [{"QueueArn": "arn:fordway:sqs::ci:webhook",
            "Events": ["s3:ObjectCreated:*"]}]}"#,
        ),
        (
            "lock",
            r#"{"ObjectLockEnabled": "Enabled", "Rule": {"DefaultRetention": {"Mode": "GOVERNANCE", "Days": 9}}}"#,
        ),
        ("tags", r#"{"TagSet": [{"Key": "a", "Value": "1 + 2"}]}"#),
    ];
    let show = |endpoint: &str| run(endpoint, &["admin", "show", "s3://bucket", "--json"]);
    // The last lane acquires no locks, and therefore refuses object lock.
    let endpoints = &lanes.endpoints[..3];
    let mut shown = std::collections::BTreeSet::new();
    for endpoint in endpoints {
        for (setting, content) in settings {
            std::fs::write(&file, content).unwrap();
            run(endpoint, &["admin", "set", setting, "s3://bucket", "--file", file.to_str().unwrap()]);
        }
        shown.extend(endpoints.iter().map(|endpoint| show(endpoint)));
        for (setting, _) in settings.iter().filter(|(setting, _)| *setting != "lock") {
            run(endpoint, &["admin", "rm", setting, "s3://bucket"]);
        }
        let left = show(endpoint);
        assert_eq!(left.matches("null").count(), settings.len() - 1, "{left}");
    }
    let shown: Vec<_> = shown.into_iter().collect();
    let [shown] = &shown[..] else { panic!("lanes differ: {shown:#?}") };
    assert!(!shown.contains("null") && shown.contains("a<&>"), "{shown}");
}
