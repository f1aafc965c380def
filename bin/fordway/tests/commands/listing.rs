//! Tests `ls`, `stat`, `du`, `mb`, `rb`, `rm` and `presign` against an in-memory store.

use std::sync::Arc;

use crate::support::{Fault, FaultyStore, PlainPresigner, Rig, bucket, name};
use fordway_command::CommandExit;
use fordway_store::{ErrorKind, MultipartUploadOperations, Objects, PutOptions};

/// Returns the listing without its dates and times.
fn columns(text: &str) -> Vec<String> {
    let undated = |line: &str| match line.get(..20) {
        Some(date) if date.starts_with("20") => line[20..].to_owned(),
        _ => line.to_owned(),
    };
    text.lines().map(undated).collect()
}

#[test]
fn ls_has_the_columns_of_aws() {
    let rig = Rig::new();
    rig.put("pre/a", vec![0; 1536]);
    rig.put("pre/sub/b", "bb");
    rig.put("prefix", "");
    assert_eq!(columns(&rig.run(&["ls"]).ok().stdout), ["bkt"]);
    let pre = format!("{:>30} pre/", "PRE");
    assert_eq!(columns(&rig.run(&["ls", "s3://bkt"]).ok().stdout), [&pre, "         0 prefix"]);
    assert_eq!(columns(&rig.run(&["ls", "s3://bkt/pre"]).ok().stdout), [&pre, "         0 prefix"]);
    let shown = rig.run(&["ls", "s3://bkt/pre/", "-H", "--summarize"]).ok().stdout;
    let sub = format!("{:>30} sub/", "PRE");
    let expected = ["   1.5 KiB a", &sub, "", "Total Objects: 1", "   Total Size: 1.5 KiB"];
    assert_eq!(columns(&shown), expected);
    let shown = rig.run(&["ls", "-r", "s3://bkt/pre/"]).ok().stdout;
    assert_eq!(columns(&shown), ["      1536 pre/a", "         2 pre/sub/b"]);
    let shown = rig.run(&["ls", "s3://bkt/pre/*b"]).ok().stdout;
    assert_eq!(columns(&shown), ["         2 pre/sub/b"]);
}

#[test]
fn ls_that_finds_nothing() {
    let rig = Rig::new();
    rig.run(&["ls", "s3://bkt"]).ok();
    rig.put("pre//c", "");
    let empty = format!("{:>30} /", "PRE");
    assert!(columns(&rig.run(&["ls", "s3://bkt/pre/"]).ok().stdout).contains(&empty));
    rig.run(&["ls", "s3://bkt/none"]).ended(CommandExit::Failure);
    rig.run(&["ls", "s3://bkt/none*"]).ended(CommandExit::Failure);
    rig.run(&["ls", "s3://nobucket"]).ended(CommandExit::NotFound);
    rig.run(&["ls", "DIR/none"]).ended(CommandExit::NotFound);
    rig.run(&["ls", "-"]).ended(CommandExit::Usage);
}

#[test]
fn ls_of_local_paths() {
    let rig = Rig::new();
    rig.write("d/f", "abc");
    rig.write("d/s/g", "x");
    let sub = format!("{:>30} s/", "PRE");
    assert_eq!(columns(&rig.run(&["ls", "DIR/d"]).ok().stdout), ["         3 f", &sub]);
    assert_eq!(columns(&rig.run(&["ls", "-r", "DIR/d"]).ok().stdout), ["         3 f", "         1 s/g"]);
    assert_eq!(columns(&rig.run(&["ls", "DIR/d/f"]).ok().stdout), ["         3 f"]);
}

#[test]
fn pages_are_followed() {
    let rig = Rig::new();
    for number in 0..2_500 {
        rig.put(&format!("many/{number:05}"), "x");
    }
    let ran = rig.run(&["ls", "s3://bkt/many/"]).ok();
    assert_eq!(ran.stdout.lines().count(), 2_500);
    let ran = rig.run(&["rm", "s3://bkt/many/*"]).ok();
    assert_eq!(ran.stdout.lines().count(), 2_500);
    assert!(rig.keys().is_empty());
}

/// Scripts rely on the JSON output: its fields, their order and their names.
#[test]
fn json_is_stable() {
    let rig = Rig::new();
    rig.put("dir/k", "content");
    rig.write("f", "x");
    let shown = rig.run(&["ls", "s3://bkt", "--json"]).ok().stdout;
    assert_eq!(shown, "{\"type\":\"prefix\",\"key\":\"dir/\"}\n");
    let shown = rig.run(&["ls", "s3://bkt/dir/", "--json", "--summarize"]).ok().stdout;
    let (object, summary) = shown.trim_end().split_once('\n').unwrap();
    assert!(
        object.starts_with(r#"{"type":"object","key":"dir/k","size_bytes":7,"modified":"20"#),
        "{object}"
    );
    assert!(object.ends_with(r#"Z","etag":"9a0364b9e99bb480dd25e1f0284c8555"}"#), "{object}");
    assert_eq!(summary, r#"{"type":"summary","objects":1,"size_bytes":7}"#);
    let shown = rig.run(&["du", "s3://bkt", "--json"]).ok().stdout;
    let expected = "{\"address\":\"s3://bkt/dir/\",\"objects\":1,\"size_bytes\":7}\n\
                    {\"address\":\"s3://bkt\",\"objects\":1,\"size_bytes\":7}\n";
    assert_eq!(shown, expected);
    let shown = rig.run(&["cp", "DIR/f", "s3://bkt/f", "--json"]).ok().stdout;
    let source = rig.path("f");
    let expected = format!(
        "{{\"operation\":\"upload\",\"source\":\"{}\",\"destination\":\"s3://bkt/f\",\"size_bytes\":1,\"dry_run\":false}}\n",
        source.display()
    );
    assert_eq!(shown, expected);
    let shown = rig.run(&["rm", "s3://bkt/f", "--json"]).ok().stdout;
    assert_eq!(shown, "{\"operation\":\"delete\",\"source\":\"s3://bkt/f\",\"dry_run\":false}\n");
    let shown = rig.run(&["mb", "s3://new", "--json"]).ok().stdout;
    assert_eq!(shown, "{\"operation\":\"make_bucket\",\"bucket\":\"new\",\"dry_run\":false}\n");
}

#[test]
fn stat_tells_all() {
    let rig = Rig::new();
    let mut options = PutOptions::default();
    options.metadata.content_type = Some("text/plain".into());
    options.metadata.user.insert("run".into(), "7".into());
    rig.memory.put(&bucket("bkt"), &name("k"), b"content", &options).unwrap();
    let shown = rig.run(&["stat", "s3://bkt/k"]).ok().stdout;
    for part in ["s3://bkt/k", "7 Bytes", "9a0364b9e99bb480dd25e1f0284c8555", "text/plain", "run=7"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let shown = rig.run(&["stat", "s3://bkt/k", "--json"]).ok().stdout;
    assert!(shown.contains(r#""content_type":"text/plain","content_encoding":null"#), "{shown}");
    assert!(shown.ends_with("\"metadata\":{\"run\":\"7\"}}\n"), "{shown}");
    assert!(rig.run(&["stat", "s3://bkt"]).ok().stdout.contains("Bucket: s3://bkt"));
    let ran = rig.run(&["stat", "s3://bkt/none", "s3://bkt/k"]).ended(CommandExit::NotFound);
    assert!(ran.stdout.contains("s3://bkt/k"), "the second address is shown although the first failed");
}

#[test]
fn du_adds_up_per_prefix() {
    let rig = Rig::new();
    for (key, size) in [("p/a/1", 10), ("p/a/2", 20), ("p/b/c/3", 2048), ("p/top", 1), ("q", 5)] {
        rig.put(key, vec![0; size]);
    }
    let words = |text: &str| -> Vec<String> {
        text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
    };
    let shown = rig.run(&["du", "s3://bkt/p"]).ok().stdout;
    let expected =
        ["30 2 objects s3://bkt/p/a/", "2048 1 objects s3://bkt/p/b/", "2079 4 objects s3://bkt/p"];
    assert_eq!(words(&shown), expected);
    let shown = rig.run(&["du", "s3://bkt", "-s", "-H"]).ok().stdout;
    assert_eq!(words(&shown), ["2.0 KiB 5 objects s3://bkt"]);
}

#[test]
fn rm_removes_what_is_meant() {
    let rig = Rig::new();
    for key in ["old/1", "old/2.keep", "older", "x1", "x2", "single"] {
        rig.put(key, key);
    }
    rig.run(&["rm", "s3://bkt/old", "--recursive", "--exclude", "*.keep"]).ok();
    assert_eq!(rig.keys(), ["old/2.keep", "older", "single", "x1", "x2"]);
    let ran = rig.run(&["rm", "s3://bkt/x*", "s3://bkt/single"]).ok();
    assert_eq!(ran.sorted(), ["delete: s3://bkt/single", "delete: s3://bkt/x1", "delete: s3://bkt/x2"]);
    assert_eq!(rig.keys(), ["old/2.keep", "older"]);
    rig.run(&["rm", "s3://bkt/gone-already"]).ok();
    rig.run(&["rm", "s3://bkt/none*"]).ended(CommandExit::NotFound);
    for words in [&["rm", "s3://bkt"][..], &["rm", "s3://bkt/old/"], &["rm", "DIR"], &["rm", "DIR", "-r"]] {
        rig.run(words).ended(CommandExit::Usage);
    }
    assert_eq!(rig.keys(), ["old/2.keep", "older"]);
    assert!(rig.dir.path().exists());
}

#[test]
fn rm_goes_on_after_a_failure() {
    let rig =
        Rig::over(|inner| Arc::new(FaultyStore { inner, fault: Fault::Fails("bad", ErrorKind::ReadOnly) }));
    for key in ["p/a", "p/bad", "p/c"] {
        rig.put(key, key);
    }
    let ran = rig.run(&["rm", "s3://bkt/p/", "-r", "--quiet"]).ended(CommandExit::Denied);
    assert_eq!(rig.keys(), ["p/bad"]);
    assert_eq!(ran.stdout, "");
    assert!(ran.stderr.contains("delete s3://bkt/p/bad (memory): read only"), "{}", ran.stderr);
}

#[test]
fn buckets_come_and_go() {
    let rig = Rig::new();
    assert_eq!(rig.run(&["mb", "s3://one", "s3://two"]).ok().stdout, "make_bucket: one\nmake_bucket: two\n");
    rig.run(&["mb", "s3://one"]).ended(CommandExit::Conflict);
    rig.run(&["mb", "s3://one/key"]).ended(CommandExit::Usage);
    rig.put("k", "x");
    rig.memory.create_upload(&bucket("bkt"), &name("unfinished"), &PutOptions::default()).unwrap();
    rig.run(&["rb", "s3://bkt"]).ended(CommandExit::Conflict);
    assert_eq!(rig.keys(), ["k"]);
    let ran = rig.run(&["rb", "s3://bkt", "--force"]).ok();
    assert_eq!(ran.stdout, "delete: s3://bkt/k\nremove_bucket: bkt\n");
    rig.run(&["rb", "s3://bkt"]).ended(CommandExit::NotFound);
}

#[test]
fn presign_needs_a_lane_with_urls() {
    let mut rig = Rig::new();
    let ran = rig.run(&["presign", "s3://bkt/k"]).ended(CommandExit::Failure);
    assert!(ran.stderr.contains("presign s3://bkt/k (memory): not implemented: this lane has no URLs"));
    rig.presigner = Some(Arc::new(PlainPresigner));
    let ran = rig.run(&["presign", "s3://bkt/k", "--expires-in", "60", "--method", "put"]).ok();
    assert_eq!(ran.stdout, "https://host/bkt/k?method=PUT&expires=60\n");
}

/// The help promises that the remaining objects are still processed.
#[test]
fn a_local_listing_continues_after_an_entry_that_cannot_be_listed() {
    let rig = Rig::new();
    rig.write("t/z", "12");
    std::os::unix::fs::symlink("nowhere", rig.path("t/dangling")).unwrap();
    let ran = rig.run(&["ls", "-r", "--summarize", "DIR/t"]);
    assert_ne!(ran.exit, CommandExit::Ok);
    assert!(ran.stderr.contains("t/dangling is a dangling link"), "{}", ran.stderr);
    assert!(ran.stdout.contains(" 2 z\n") && ran.stdout.contains("Total Size: 2"), "{}", ran.stdout);
}
