//! Tests versions and tags against an in-memory store.

use std::sync::{Arc, Mutex};

use crate::support::{Fault, FaultyStore, Rig, bucket, name};
use fordway_command::CommandExit;
use fordway_store::{
    GetOptions, MultipartUploadOperations, ObjectVersionOperations, Objects, PutOptions, VersionsQuery,
};

/// Returns a rig whose bucket keeps versions and contains two versions of `d/k`. Also returns the IDs of the two
/// versions, oldest first.
fn versioned() -> (Rig, [String; 2]) {
    let rig = Rig::new();
    rig.run(&["versioning", "s3://bkt", "enable"]).ok();
    rig.put("d/k", "older");
    rig.put("d/k", "newer!");
    let listed = rig.memory.list_versions(&bucket("bkt"), &VersionsQuery::default()).unwrap().versions;
    let names = [1, 0].map(|at: usize| listed[at].version.to_string());
    (rig, names)
}

#[test]
fn versioning_is_shown_and_changed() {
    let rig = Rig::new();
    let shown = |words: &[&str]| rig.run(&[&["versioning", "s3://bkt"], words].concat()).ok().stdout;
    assert_eq!(shown(&[]), "s3://bkt: unversioned\n");
    assert_eq!(shown(&["enable"]), "s3://bkt: enabled\n");
    assert_eq!(shown(&["suspend"]), "s3://bkt: suspended\n");
    assert_eq!(shown(&["--json"]), "{\"bucket\":\"bkt\",\"versioning\":\"suspended\"}\n");
    rig.run(&["versioning", "s3://none"]).ended(CommandExit::NotFound);
    rig.run(&["versioning", "s3://bkt/k"]).ended(CommandExit::Usage);
}

#[test]
fn ls_shows_versions_and_markers() {
    let (rig, [older, newer]) = versioned();
    rig.put("top", "x");
    rig.run(&["rm", "s3://bkt/d/k"]).ok();
    let shown = rig.run(&["ls", "s3://bkt/d/", "--versions"]).ok().stdout;
    let lines: Vec<&str> = shown.lines().map(|line| &line[20..]).collect();
    assert!(lines[0].starts_with("   deleted k ") && lines[0].ends_with(" (latest)"), "{shown}");
    assert_eq!(lines[1..], [format!("         6 k {newer}"), format!("         5 k {older}")]);
    let rolled = rig.run(&["ls", "s3://bkt", "--versions"]).ok().stdout;
    assert_eq!((rolled.lines().count(), rolled.contains("PRE d/")), (2, true), "{rolled}");
    let json = rig.run(&["ls", "s3://bkt", "--versions", "-r", "--json"]).ok().stdout;
    assert_eq!(json.lines().count(), 4);
    let marker = json.lines().next().unwrap();
    assert!(
        marker.contains("\"type\":\"version\"") && marker.contains("\"is_delete_marker\":true"),
        "{marker}"
    );
    assert!(!marker.contains("size_bytes"), "{marker}");
    rig.run(&["ls", "s3://bkt/none", "--versions"]).ended(CommandExit::Failure);
    rig.run(&["ls", "--versions"]).ended(CommandExit::Usage);
}

#[test]
fn one_version_is_read_copied_and_removed() {
    let (rig, [older, newer]) = versioned();
    let on = |command: &str, version: &str| rig.run(&[command, "s3://bkt/d/k", "--version-id", version]);
    assert_eq!(on("cat", &older).ok().stdout, "older");
    assert!(on("stat", &older).ok().stdout.contains(&format!("Version: {older}")));
    on("cat", "unknown").ended(CommandExit::NotFound);
    rig.run(&["cp", "s3://bkt/d/k", "DIR/file", "--version-id", &older]).ok();
    assert_eq!(std::fs::read(rig.path("file")).unwrap(), b"older");
    assert_eq!(rig.run(&["cp", "s3://bkt/d/k", "-", "--version-id", &older]).ok().stdout, "older");
    rig.run(&["cp", "s3://bkt/d/k", "s3://bkt/copy", "--version-id", &older]).ok();
    assert_eq!(rig.run(&["cat", "s3://bkt/copy"]).ok().stdout, "older");

    let rehearsed = rig.run(&["rm", "s3://bkt/d/k", "--version-id", &newer, "--dry-run"]).ok().stdout;
    assert_eq!(rehearsed, format!("(dryrun) delete: s3://bkt/d/k (version {newer})\n"));
    assert_eq!(rig.run(&["cat", "s3://bkt/d/k"]).ok().stdout, "newer!");
    on("rm", &newer).ok();
    assert_eq!(rig.run(&["cat", "s3://bkt/d/k"]).ok().stdout, "older");
    for command in ["cat", "rm"] {
        rig.run(&[command, "s3://bkt/d/k", "s3://bkt/copy", "--version-id", &older])
            .ended(CommandExit::Usage);
        rig.run(&[command, "s3://bkt/*", "--version-id", &older]).ended(CommandExit::Usage);
    }
    rig.run(&["stat", "s3://bkt/d/k", "s3://bkt/copy", "--version-id", &older]).ended(CommandExit::Usage);
    rig.run(&["cp", "DIR/file", "s3://bkt/k", "--version-id", &older]).ended(CommandExit::Usage);
}

#[test]
fn a_large_version_is_copied_in_parts() {
    let rig = Rig::new();
    rig.run(&["versioning", "s3://bkt", "enable"]).ok();
    let body = vec![7; 11 << 20];
    rig.put("k", body.clone());
    rig.run(&["tag", "s3://bkt/k", "a=1"]).ok();
    let version =
        rig.memory.head(&bucket("bkt"), &name("k"), &GetOptions::default()).unwrap().version.unwrap();
    rig.put("k", "newer");
    let limit = ["--version-id", version.as_str(), "--multipart-threshold", "5MiB", "--part-size", "5MiB"];
    rig.run(&[&["cp", "s3://bkt/k", "s3://bkt/copy"][..], &limit].concat()).ok();
    rig.run(&[&["cp", "s3://bkt/k", "DIR/file"][..], &limit].concat()).ok();
    let copied = rig.memory.get(&bucket("bkt"), &name("copy"), &GetOptions::default()).unwrap();
    assert_eq!((copied.info.part_count, copied.info.tag_count), (Some(2), 1));
    assert!(copied.content.into_vec().unwrap() == body);
    assert!(std::fs::read(rig.path("file")).unwrap() == body);
}

#[test]
fn rb_removes_versions_by_force() {
    let (rig, [older, _]) = versioned();
    rig.run(&["rm", "s3://bkt/d/k"]).ok();
    rig.run(&["rb", "s3://bkt"]).ended(CommandExit::Conflict);
    let shown = rig.run(&["rb", "s3://bkt", "--force"]).ok().stdout;
    assert_eq!(shown.lines().count(), 4, "{shown}");
    assert!(shown.contains(&format!("delete: s3://bkt/d/k (version {older})\n")), "{shown}");
    assert!(rig.memory.list_buckets().unwrap().is_empty());
}

/// There are more versions and uploads than fit on one page of a listing, or into one request that removes versions.
#[test]
fn rb_removes_many_versions_and_uploads_by_force() {
    const COUNT: usize = 2500;
    let rig = Rig::new();
    rig.run(&["versioning", "s3://bkt", "enable"]).ok();
    for number in 0..COUNT {
        // Many versions of a few keys, so that a batch contains several versions of a key.
        rig.put(&format!("d/{}", number % 7), "x");
        let upload = name(&format!("upload/{}", number % 7));
        rig.memory.create_upload(&bucket("bkt"), &upload, &PutOptions::default()).unwrap();
    }
    let shown = rig.run(&["rb", "s3://bkt", "--force", "--dry-run"]).ok().stdout;
    assert_eq!(shown.lines().count(), COUNT + 1);
    let shown = rig.run(&["rb", "s3://bkt", "--force", "-j", "4"]).ok().stdout;
    let lines: std::collections::HashSet<_> = shown.lines().collect();
    assert_eq!(lines.len(), COUNT + 1, "each version once, and the bucket");
    assert!(rig.memory.list_buckets().unwrap().is_empty());
}

/// A store locks a key while it removes a version, so workers that remove versions of one key would wait for each other
/// until the time limit.
#[test]
fn rb_never_removes_versions_of_one_key_in_parallel() {
    let rig = Rig::over(|inner| {
        Arc::new(FaultyStore { inner, fault: Fault::RefusesParallelRemovals(Mutex::default()) })
    });
    rig.run(&["versioning", "s3://bkt", "enable"]).ok();
    let counts = [("a", 700), ("b", 4100), ("c", 300), ("d", 1300), ("e", 1)];
    counts.iter().for_each(|(key, count)| (0..*count).for_each(|_| rig.put(key, "x")));
    let shown = rig.run(&["rb", "s3://bkt", "--force", "-j", "8"]).ok().stdout;
    assert_eq!(shown.lines().count(), 6401 + 1);
    assert!(rig.memory.list_buckets().unwrap().is_empty());
}

#[test]
fn tags_are_shown_and_replaced() {
    let rig = Rig::new();
    rig.put("k", "x");
    assert_eq!(rig.run(&["tag", "s3://bkt/k"]).ok().stdout, "");
    rig.run(&["tag", "s3://bkt/k", "b=2", "A=x=y"]).ok();
    assert_eq!(rig.run(&["tag", "s3://bkt/k"]).ok().stdout, "A=x=y\nb=2\n");
    let json = rig.run(&["tag", "s3://bkt/k", "--json"]).ok().stdout;
    assert_eq!(json, "{\"bucket\":\"bkt\",\"key\":\"k\",\"tags\":{\"A\":\"x=y\",\"b\":\"2\"}}\n");
    assert!(rig.run(&["stat", "s3://bkt/k"]).ok().stdout.contains("Tags: 2"));
    rig.run(&["tag", "s3://bkt/k", "a=1", "a=2"]).ended(CommandExit::Usage);
    rig.run(&["tag", "s3://bkt/k", "--remove"]).ok();
    let none = rig.run(&["tag", "s3://bkt/k", "--json"]).ok().stdout;
    assert_eq!(none, "{\"bucket\":\"bkt\",\"key\":\"k\",\"tags\":{}}\n");
    rig.run(&["tag", "s3://bkt/none"]).ended(CommandExit::NotFound);
    rig.run(&["tag", "s3://bkt"]).ended(CommandExit::Usage);
}
