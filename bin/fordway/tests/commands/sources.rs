//! Tests the sources that `cp`, `mv` and `cat` accept, and the errors for other sources.

use fordway_command::CommandExit;
use fordway_store::{GetOptions, Objects};

use crate::binary;
use crate::support::{Rig, bucket, name};

#[test]
fn two_sources_never_go_to_one_place() {
    for command in ["cp", "mv"] {
        let rig = Rig::new();
        rig.write("a/x", "of a");
        rig.write("b/x", "of b");
        rig.write("b/y", "of b");
        let words = [command, "DIR/a/x", "DIR/b/x", "DIR/b/y", "s3://bkt/to/"];
        let ran = rig.run(&words).ended(CommandExit::Usage);
        assert!(
            ran.stderr.contains("b/x and another source would both be copied to s3://bkt/to/x"),
            "{}",
            ran.stderr
        );
        assert_eq!(rig.keys(), ["to/x", "to/y"], "the others are done");
        assert_eq!(rig.get("to/x").unwrap(), b"of a");
        assert_eq!(std::fs::read(rig.path("b/x")).unwrap(), b"of b", "nothing is lost");
    }
}

#[test]
fn two_trees_never_go_to_one_place() {
    let rig = Rig::new();
    rig.put("a/x", "of a");
    rig.put("b/x", "of b");
    rig.put("b/y", "of b");
    let ran = rig.run(&["mv", "-r", "s3://bkt/a", "s3://bkt/b/", "DIR/to"]).ended(CommandExit::Usage);
    assert!(ran.stderr.contains("s3://bkt/b/x and another source"), "{}", ran.stderr);
    assert_eq!(rig.files(), ["to/x", "to/y"]);
    assert_eq!(rig.keys(), ["b/x"]);
}

/// The copy of `a/c/x` would replace `c/x`, which is also a source. The command must refuse this before the first copy.
#[test]
fn no_source_replaces_another_source() {
    let rig = Rig::new();
    for key in ["a/c/x", "c/x", "d/k", "e/d/k", "f/k"] {
        rig.put(key, key);
    }
    rig.write("t/d/k", "of a file");
    rig.write("k", "of a file");
    for (words, why) in [
        (&["mv", "-r", "s3://bkt/a/", "s3://bkt/c/", "s3://bkt"][..], "a/c/x would replace s3://bkt/c/x,"),
        (
            &["mv", "-r", "-j", "1", "s3://bkt/a/", "s3://bkt/c/", "s3://bkt"],
            "which is in the source s3://bkt/c/",
        ),
        (&["mv", "-r", "s3://bkt/c", "s3://bkt/a", "s3://bkt"], "a/c/x would replace"),
        (&["cp", "-r", "s3://bkt/a/", "s3://bkt/c/", "s3://bkt"], "a/c/x would replace"),
        (&["mv", "s3://bkt/a/*", "s3://bkt/c/*", "s3://bkt"], "in the source s3://bkt/c/* too"),
        (&["mv", "--dry-run", "s3://bkt/a/*", "s3://bkt/c/x", "s3://bkt"], "in the source s3://bkt/c/x too"),
        (&["mv", "-r", "s3://bkt/f", "s3://bkt/d", "s3://bkt/d"], "f/k would replace s3://bkt/d/k,"),
        (&["mv", "s3://bkt/f/k", "s3://bkt/d/k", "s3://bkt/d/"], "f/k would replace s3://bkt/d/k,"),
        (&["mv", "s3://bkt/f/k", "s3://bkt/d/*", "s3://bkt/d/"], "in the source s3://bkt/d/* too"),
        (&["cp", "-r", "DIR/t", "s3://bkt/d", "s3://bkt"], "t/d/k would replace s3://bkt/d/k,"),
        (&["mv", "-r", "DIR/t/", "s3://bkt/d/k", "s3://bkt"], "t/d/k would replace s3://bkt/d/k,"),
        (&["mv", "DIR/k", "s3://bkt/d/k", "s3://bkt/d/"], "k would replace s3://bkt/d/k,"),
    ] {
        let ran = rig.run(words).ended(CommandExit::Usage);
        assert!(ran.stderr.contains(why) && ran.stdout.is_empty(), "{words:?}: {}", ran.stderr);
        assert_eq!(rig.keys(), ["a/c/x", "c/x", "d/k", "e/d/k", "f/k"], "{words:?}");
        assert_eq!((rig.get("c/x").unwrap(), rig.get("d/k").unwrap()), (b"c/x".to_vec(), b"d/k".to_vec()));
    }
    // No source is replaced if the object that would replace it, or the source itself, is excluded.
    rig.run(&["cp", "-r", "s3://bkt/a", "s3://bkt/c", "s3://bkt", "--exclude", "c/*"]).ok();
    rig.run(&["cp", "s3://bkt/a/c/x*", "s3://bkt/d/k", "s3://bkt/c/"]).ok();
    rig.run(&["mv", "-r", "s3://bkt/e", "s3://bkt/f", "s3://bkt"]).ok();
    assert_eq!(rig.keys(), ["a/c/x", "c/k", "c/x", "d/k", "k", "x"]);
    assert_eq!(rig.get("d/k").unwrap(), b"e/d/k", "an object that is not a source is replaced");
    // A bucket that does not exist does not stop the other sources.
    rig.run(&["mv", "-r", "s3://none/p", "s3://bkt/d/", "s3://bkt/"]).ended(CommandExit::NotFound);
    assert_eq!(rig.get("k").unwrap(), b"e/d/k");
}

#[test]
fn two_local_places_are_both_named() {
    let rig = Rig::new();
    rig.write("f", "x");
    let ran = rig.run(&["cp", "DIR/f", "DIR/to/"]).ended(CommandExit::Usage);
    let (from, to) = (rig.path("f"), rig.path("to"));
    let named = format!("cannot copy {} to {}/: at least one", from.display(), to.display());
    assert!(ran.stderr.contains(&named), "{}", ran.stderr);
}

#[test]
fn cat_says_how_to_have_all_below_a_prefix() {
    let rig = Rig::new();
    rig.put("p/a", "1");
    rig.put("p/b", "2");
    for (prefix, all) in
        [("s3://bkt", "s3://bkt/*"), ("s3://bkt/", "s3://bkt/*"), ("s3://bkt/p/", "s3://bkt/p/*")]
    {
        let ran = rig.run(&["cat", prefix]).ended(CommandExit::Usage);
        assert!(ran.stderr.contains(&format!("write '{all}'")), "{}", ran.stderr);
    }
    assert_eq!(rig.run(&["cat", "s3://bkt/p/*"]).ok().stdout, "12");
    let ran = rig.run(&["rm", "s3://bkt/p/"]).ended(CommandExit::Usage);
    assert!(ran.stderr.contains("add --recursive"), "{}", ran.stderr);
}

#[test]
fn addresses_that_are_nearly_right_are_shown_right() {
    let rig = Rig::new();
    let ran = rig.run(&["ls", "s3:/bkt/p"]).ended(CommandExit::Usage);
    assert!(
        ran.stderr.contains("\"s3:/bkt/p\" is neither an s3:// address nor a file; write s3://bkt/p"),
        "{}",
        ran.stderr
    );
    for command in ["cat", "rm", "mb"] {
        let ran = rig.run(&[command, "bucket-a"]).ended(CommandExit::Usage);
        assert!(ran.stderr.contains("; write s3://bucket-a"), "{}", ran.stderr);
    }
    let ran = rig.run(&["ls", "no-such-bucket"]).ended(CommandExit::NotFound);
    assert!(ran.stderr.ends_with("; for a bucket, write s3://no-such-bucket\n"), "{}", ran.stderr);
    let ran = rig.run(&["tag", "p/a"]).ended(CommandExit::Usage);
    assert!(ran.stderr.contains("p/a is not of the form s3://BUCKET/KEY"), "{}", ran.stderr);
    let ran = rig.run(&["mb", "bkt"]).ended(CommandExit::Usage);
    assert!(ran.stderr.ends_with("bkt is not of the form s3://BUCKET; write s3://bkt\n"), "{}", ran.stderr);
}

#[test]
fn a_file_that_says_nothing_of_its_size_is_to_be_piped_in() {
    let rig = Rig::new();
    let ran = rig.run(&["cp", "/proc/self/status", "s3://bkt/k"]).ended(CommandExit::Usage);
    assert!(ran.stderr.contains("pipe it in and use - as the source"), "{}", ran.stderr);
    assert_eq!(rig.get("k"), None);
}

#[test]
fn rm_removes_what_mkdir_made() {
    let rig = Rig::new();
    rig.run(&["mkdir", "s3://bkt/mk"]).ok();
    rig.put("mk/a", "a");
    rig.run(&["rm", "--dry-run", "s3://bkt/mk/"]).ok();
    assert_eq!(rig.run(&["rm", "s3://bkt/mk/"]).ok().stdout, "delete: s3://bkt/mk/\n");
    assert_eq!(rig.keys(), ["mk/a"]);
    let ran = rig.run(&["rm", "s3://bkt/mk/"]).ended(CommandExit::Usage);
    assert!(ran.stderr.contains("add --recursive"), "{}", ran.stderr);
    assert_eq!(rig.keys(), ["mk/a"]);
}

/// `cat`, `cp` and `mv` accept an object whose key ends in a slash, as `ls`, `stat` and `rm` do.
#[test]
fn an_object_whose_key_ends_in_a_slash_is_copied_alone() {
    let rig = Rig::new();
    for (key, body) in [("mk/", "of the marker"), ("mk/a", "a")] {
        rig.put(key, body);
    }
    assert_eq!(rig.run(&["cat", "s3://bkt/mk/"]).ok().stdout, "of the marker");
    assert_eq!(rig.run(&["cp", "s3://bkt/mk/", "-"]).ok().stdout, "of the marker");
    rig.run(&["cp", "s3://bkt/mk/", "DIR/file"]).ok();
    assert_eq!(std::fs::read_to_string(rig.path("file")).unwrap(), "of the marker");
    rig.run(&["cp", "s3://bkt/mk/", "s3://bkt/copy"]).ok();
    rig.run(&["cp", "s3://bkt/mk/", "s3://bkt/below/"]).ok();
    assert_eq!(rig.keys(), ["below/mk/", "copy", "mk/", "mk/a"]);
    assert_eq!(rig.get("below/mk/").unwrap(), b"of the marker");
    rig.run(&["mv", "s3://bkt/mk/", "s3://bkt/moved/"]).ok();
    assert_eq!(rig.keys(), ["below/mk/", "copy", "mk/a", "moved/mk/"]);

    std::fs::create_dir(rig.path("dir")).unwrap();
    let ran = rig.run(&["cp", "s3://bkt/moved/mk/", "DIR/dir/"]).ended(CommandExit::Usage);
    assert!(ran.stderr.contains("specify the name of the file"), "{}", ran.stderr);
    for words in [&["cp", "s3://bkt/mk/", "DIR/no"][..], &["mv", "s3://bkt/mk/", "DIR/no"]] {
        let ran = rig.run(words).ended(CommandExit::Usage);
        assert!(ran.stderr.contains("add --recursive"), "{}", ran.stderr);
    }
    let ran = rig.run(&["cat", "s3://bkt/mk/"]).ended(CommandExit::Usage);
    assert!(ran.stderr.contains("write 's3://bkt/mk/*'"), "{}", ran.stderr);
    assert_eq!(rig.files(), ["file"]);
}

/// A prefix with nothing below it is an error, unless it is the key of an object.
#[test]
fn recursive_commands_take_one_object_and_report_an_empty_prefix() {
    let rig = Rig::new();
    for key in ["d/obj", "d/obj2", "d/obj3", "e/x", "e/x/below"] {
        rig.put(key, key);
    }
    rig.run(&["mkdir", "s3://bkt/made"]).ok();
    rig.run(&["cp", "-r", "s3://bkt/d/obj", "DIR/file"]).ok();
    rig.run(&["cp", "-r", "s3://bkt/d/obj", "DIR/dir/"]).ok();
    rig.run(&["cp", "-r", "s3://bkt/e/x", "DIR/e"]).ok();
    rig.run(&["cp", "-r", "s3://bkt/made", "DIR/none"]).ok();
    assert_eq!(rig.files(), ["dir/obj", "e/below", "file"]);
    assert_eq!(std::fs::read_to_string(rig.path("file")).unwrap(), "d/obj");
    rig.run(&["mv", "-r", "s3://bkt/d/obj2", "s3://bkt/moved"]).ok();
    assert_eq!(rig.run(&["rm", "-r", "s3://bkt/d/obj3", "--exclude", "obj*"]).ok().stdout, "");
    assert_eq!(rig.run(&["rm", "-r", "s3://bkt/d/obj3"]).ok().stdout, "delete: s3://bkt/d/obj3\n");
    assert_eq!(rig.keys(), ["d/obj", "e/x", "e/x/below", "made/", "moved"]);

    for words in [
        &["rm", "-r", "s3://bkt/typo"][..],
        &["rm", "-r", "--json", "s3://bkt/typo/"],
        &["rm", "-r", "s3://bkt/d/obj/"],
        &["cp", "-r", "s3://bkt/typo", "DIR/out"],
        &["mv", "-r", "s3://bkt/typo", "s3://bkt/out"],
        &["cp", "-r", "--dry-run", "s3://bkt/typo", "DIR/out"],
    ] {
        let ran = rig.run(words).ended(CommandExit::NotFound);
        assert!(ran.stderr.contains("there is no object below s3://bkt/"), "{words:?}: {}", ran.stderr);
    }
    assert_eq!(rig.keys().len(), 5);
    // The other sources are copied.
    rig.run(&["cp", "-r", "s3://bkt/typo", "s3://bkt/d", "DIR/more"]).ended(CommandExit::NotFound);
    assert!(rig.path("more/obj").exists());
    // Neither an empty bucket nor a synchronisation with an empty prefix is an error.
    rig.run(&["mb", "s3://empty"]).ok();
    rig.run(&["rm", "-r", "s3://empty"]).ok();
    rig.run(&["sync", "s3://bkt/typo", "DIR/synced"]).ok();
}

#[test]
fn du_of_an_object_shows_its_size() {
    let rig = Rig::new();
    rig.put("p/a", "12345");
    let words =
        |address| rig.run(&["du", address]).ok().stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(words("s3://bkt/p/a"), "5 1 objects s3://bkt/p/a");
    assert_eq!(words("s3://bkt/p"), "5 1 objects s3://bkt/p");
    assert_eq!(words("s3://bkt/none"), "0 0 objects s3://bkt/none");
}

#[test]
fn quiet_has_the_name_that_aws_uses() {
    let rig = Rig::new();
    rig.write("f", "x");
    assert_eq!(rig.run(&["cp", "--only-show-errors", "DIR/f", "s3://bkt/"]).ok().stdout, "");
    // As in `aws`, an option may be repeated, and the last value counts.
    let twice = ["--quiet", "--only-show-errors", "--acl", "private", "--acl", "private"];
    let types = ["--content-type", "text/x", "--content-type", "text/y"];
    rig.run(&[&["cp", "DIR/f", "s3://bkt/"][..], &twice, &types].concat()).ok();
    let info = rig.memory.head(&bucket("bkt"), &name("f"), &GetOptions::default()).unwrap();
    assert_eq!(info.metadata.content_type.as_deref(), Some("text/y"));
}

/// As in `aws`, `--only-show-errors` still prints warnings. `--quiet` prints none.
#[test]
fn only_show_errors_shows_warnings_too() {
    let rig = Rig::new();
    rig.put("k", "x");
    std::fs::create_dir(rig.path("d")).unwrap();
    let made = std::process::Command::new("mkfifo").arg(rig.path("d/only")).status().unwrap();
    assert!(made.success());
    let ran = rig.run(&["sync", "s3://bkt", "DIR/d", "--only-show-errors"]).ended(CommandExit::Ok);
    assert!(ran.stderr.contains("skipping an entry at the destination"), "{}", ran.stderr);
    assert_eq!(ran.stdout, "");
    rig.run(&["sync", "s3://bkt", "DIR/d", "--quiet"]).ok();
    let words = ["--only-show-errors", "--endpoint", "file:///nonexistent/d", "cp", "missing", "s3://b/k"];
    let ran = binary::fordway(&words, "");
    assert!(ran.status.code() != Some(0) && ran.stdout.is_empty() && !ran.stderr.is_empty());
}

/// A copy of exactly the threshold is made in parts, like an upload and a download.
#[test]
fn the_threshold_itself_counts_as_large() {
    let rig = Rig::new();
    rig.put("big", vec![b'x'; 6 << 20]);
    let parts = ["--multipart-threshold", "6MiB", "--part-size", "5MiB"];
    rig.run(&[&["cp", "s3://bkt/big", "s3://bkt/copy"][..], &parts].concat()).ok();
    let copied = rig.memory.head(&bucket("bkt"), &name("copy"), &GetOptions::default()).unwrap();
    assert_eq!(copied.part_count, Some(2));
}
