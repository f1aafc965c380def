//! Tests what addresses, wildcards and filters select. A selection that differs from the intended one can remove or
//! replace everything, so a command line with two meanings is refused.

use std::sync::Arc;

use fordway_command::CommandExit;

use crate::binary;
use crate::support::{PlainPresigner, Rig};

/// Returns a rig with objects in `logs/` and files in `DIR/d`.
fn rig() -> Rig {
    let rig = Rig::new();
    for key in ["logs/a.log", "logs/b.log", "logs/c.keep", "logs/d.h5", "other"] {
        rig.put(key, key);
    }
    rig.write("d/mine", "mine");
    rig
}

const KEYS: [&str; 5] = ["logs/a.log", "logs/b.log", "logs/c.keep", "logs/d.h5", "other"];

/// s5cmd expands a wildcard in an address of `sync`. A literal `*` would select nothing, and `--delete` would then
/// remove the whole destination.
#[test]
fn sync_refuses_wildcards() {
    let rig = rig();
    for words in [
        &["sync", "s3://bkt/logs/*", "DIR/d"][..],
        &["sync", "s3://bkt/logs/*", "DIR/d", "--delete"],
        &["sync", "s3://bkt/logs/?.log", "s3://bkt/backup", "--delete"],
        &["sync", "DIR/d", "s3://bkt/logs/*"],
        &["sync", "DIR/d", "s3://bkt/*/x", "--delete", "--dry-run"],
    ] {
        let ran = rig.run(words).ended(CommandExit::Usage);
        assert!(ran.stderr.contains("--exclude '*' --include"), "{}", ran.stderr);
        assert!(ran.stderr.contains("--raw"), "{}", ran.stderr);
    }
    assert_eq!(rig.keys(), KEYS);
    assert_eq!(rig.files(), ["d/mine"]);
    rig.put("odd*/a", "1");
    rig.run(&["sync", "--raw", "s3://bkt/odd*", "DIR/odd"]).ok();
    rig.run(&["sync", "--raw", "DIR/odd", "s3://bkt/even?"]).ok();
    assert_eq!(rig.get("even?/a").unwrap(), b"1");
    // A local name may contain these characters.
    rig.write("local*/b", "2");
    rig.run(&["sync", "DIR/local*", "s3://bkt/local"]).ok();
    assert_eq!(rig.get("local/b").unwrap(), b"2");
}

/// A mistyped prefix, or the key of an object, must not empty the destination.
#[test]
fn sync_removes_nothing_if_nothing_is_below_the_prefix() {
    let rig = rig();
    for source in ["s3://bkt/typo", "s3://bkt/other", "s3://bkt/logs/a.log/"] {
        for to in ["DIR/d", "s3://bkt/logs"] {
            for more in [&[][..], &["--dry-run"], &["--exclude", "x"]] {
                let words = [&["sync", source, to, "--delete"], more].concat();
                if source.starts_with("s3://bkt/logs") && to.starts_with("s3://bkt/logs") {
                    continue;
                }
                let ran = rig.run(&words).ended(CommandExit::NotFound);
                assert!(ran.stderr.contains("there is no object below"), "{}", ran.stderr);
            }
        }
    }
    assert_eq!(rig.keys(), KEYS);
    assert_eq!(rig.files(), ["d/mine"]);
    // Without --delete, nothing is lost. A marker shows that the prefix is meant to be empty.
    rig.run(&["sync", "s3://bkt/typo", "DIR/d"]).ok();
    rig.run(&["mkdir", "s3://bkt/empty"]).ok();
    rig.run(&["sync", "s3://bkt/empty", "DIR/d", "--delete"]).ok();
    assert!(rig.files().is_empty());
    // An empty directory and an empty bucket have been found, so they are not a typo.
    std::fs::create_dir(rig.path("none")).unwrap();
    rig.run(&["sync", "DIR/none", "s3://bkt/logs", "--delete"]).ok();
    assert_eq!(rig.keys(), ["empty/", "other"]);
}

/// In rsync and rclone, `-n` is a dry run.
#[test]
fn sync_has_no_option_n() {
    let ran = binary::fordway(&["sync", "-n", "--delete", "d", "s3://b/p"], "");
    assert_eq!(ran.status.code(), Some(2));
    assert!(binary::text(&ran.stderr).contains("unexpected argument '-n'"), "{}", binary::text(&ran.stderr));
    let rig = rig();
    rig.run(&["sync", "--no-clobber", "DIR/d", "s3://bkt/d"]).ok();
    assert_eq!(rig.get("d/mine").unwrap(), b"mine");
}

/// In s5cmd and rclone, `--include` alone selects only what matches. In `aws s3`, it has no effect.
#[test]
fn an_include_without_an_earlier_exclude_is_refused() {
    for words in [
        &["rm", "--include", "*.log", "s3://b/logs/*"][..],
        &["rm", "-r", "--include", "*.log", "--exclude", "*", "s3://b/logs"],
        &["mv", "-r", "--include", "a*", "s3://b/logs", "d"],
        &["cp", "-r", "s3://b/logs", "d", "--include", "**.log"],
        &["sync", "s3://b/logs", "d", "--delete", "--include", "a", "--exclude", "b"],
    ] {
        let ran = binary::fordway(words, "");
        let said = binary::text(&ran.stderr);
        assert_eq!(ran.status.code(), Some(2), "{words:?}: {said}");
        assert!(said.contains("--exclude '*' --include"), "{words:?}: {said}");
    }
    let rig = rig();
    // This has the same meaning in all programs.
    rig.run(&["cp", "-r", "--include", "*", "--exclude", "*.log", "s3://bkt/logs", "DIR/all"]).ok();
    rig.run(&["rm", "--exclude", "*", "--include", "*.log", "s3://bkt/logs/*"]).ok();
    assert_eq!(rig.keys(), ["logs/c.keep", "logs/d.h5", "other"]);
    assert_eq!(rig.files(), ["all/c.keep", "all/d.h5", "d/mine"]);
}

/// As in `aws s3`, a pattern may begin with the absolute path of the local side. Before, such a pattern had no effect.
#[test]
fn an_absolute_pattern_excludes_local_files() {
    let rig = Rig::new();
    rig.write("d/a", "a");
    rig.write("d/private/p", "p");
    rig.write("single", "single");
    let private = ["--exclude", "DIR/d/private/*"];
    for words in [&["sync", "DIR/d", "s3://bkt"][..], &["cp", "-r", "DIR/d", "s3://bkt"]] {
        rig.run(&[words, &private].concat()).ok();
        assert_eq!(rig.keys(), ["a"], "{words:?}");
    }
    rig.run(&["cp", "DIR/single", "s3://bkt/x", "--exclude", "DIR/sing*"]).ok();
    assert_eq!(rig.keys(), ["a"]);
    // The pattern also protects the objects that --delete would remove.
    rig.put("private/p", "kept");
    rig.run(&[&["sync", "DIR/d", "s3://bkt", "--delete"][..], &private].concat()).ok();
    assert_eq!(rig.keys(), ["a", "private/p"]);
    rig.run(&["sync", "s3://bkt", "DIR/down", "--exclude", "DIR/down/private/*"]).ok();
    rig.run(&["mv", "-r", "s3://bkt", "DIR/moved", "--exclude", "DIR/moved/private/*"]).ok();
    assert_eq!(rig.files(), ["d/a", "d/private/p", "down/a", "moved/a", "single"]);
    for words in [
        &["sync", "DIR/d", "s3://bkt"][..],
        &["mv", "-r", "DIR/d", "s3://bkt"],
        &["cp", "s3://bkt/private/p", "DIR/exactly"],
        &["cp", "-r", "DIR/d", "DIR/down", "s3://bkt"],
    ] {
        let ran = rig.run(&[words, &["--exclude", "/private/*"]].concat()).ended(CommandExit::Usage);
        assert!(ran.stderr.contains("patterns are relative to the source"), "{words:?}: {}", ran.stderr);
    }
    // After a link, `..` leads to the parent of the link's target.
    std::os::unix::fs::symlink("d/private", rig.path("link")).unwrap();
    rig.write("d/private/keep", "a file that the bucket does not have");
    rig.run(&[&["sync", "s3://bkt/private", "DIR/link/..", "--delete"][..], &private].concat()).ok();
    std::fs::remove_file(rig.path("link")).unwrap();
    assert_eq!(rig.files(), ["d/p", "d/private/keep", "d/private/p", "down/a", "moved/a", "single"]);
    rig.put("b//x", "a key with an empty segment");
    rig.run(&["cp", "-r", "s3://bkt/b/", "s3://bkt/c/", "--exclude", "/x"]).ok();
    assert_eq!(rig.keys(), ["b//x", "private/p"]);
}

/// With a wildcard, filters work as in s5cmd, where only included names are selected. `aws s3` has no wildcards.
#[test]
fn a_wildcard_with_an_include_removes_only_what_is_included() {
    let rig = rig();
    let filters = ["--exclude", "*.keep", "--include", "*.log"];
    for words in [&["rm", "s3://bkt/logs/*"][..], &["mv", "s3://bkt/logs/*", "DIR/moved/"]] {
        let ran = rig.run(&[words, &filters].concat()).ended(CommandExit::Usage);
        assert!(ran.stderr.contains("--exclude '*' --include"), "{}", ran.stderr);
    }
    assert_eq!(rig.keys(), KEYS);
    // With --recursive, filters work as in `aws s3`.
    rig.run(&[&["rm", "-r", "s3://bkt/logs"][..], &filters].concat()).ok();
    assert_eq!(rig.keys(), ["logs/c.keep", "other"]);
}

#[test]
fn filters_apply_to_standard_output() {
    let rig = rig();
    let filtered = |words: &[&str]| rig.run(words).ok().stdout;
    assert_eq!(filtered(&["cp", "s3://bkt/logs/*", "-", "--exclude", "*.log"]), "logs/c.keeplogs/d.h5");
    let only = ["--exclude", "*", "--include", "b*"];
    assert_eq!(filtered(&[&["cp", "s3://bkt/logs/*", "-"], &only[..]].concat()), "logs/b.log");
    assert_eq!(filtered(&["cp", "s3://bkt/other", "-", "--exclude", "o*"]), "");
    assert_eq!(filtered(&["cp", "s3://bkt/other", "-", "--exclude", "x"]), "other");
    for option in [&["--no-clobber"][..], &["--if-none-match"], &["--checksum-algorithm", "SHA1"]] {
        let ran = rig.run(&[&["cp", "s3://bkt/other", "-"], option].concat()).ended(CommandExit::Usage);
        assert!(ran.stderr.contains(option[0]) && ran.stdout.is_empty(), "{}", ran.stderr);
    }
}

/// Scripts pass the global options of `aws` to every command.
#[test]
fn all_commands_of_aws_s3_accept_its_global_options() {
    let rig = Rig { presigner: Some(Arc::new(PlainPresigner)), ..rig() };
    let global = ["--no-cli-pager", "--no-paginate", "--output", "text", "--color", "off"];
    for words in [
        &["mb", "s3://new"][..],
        &["rb", "s3://new"],
        &["presign", "s3://bkt/other"],
        &["ls", "s3://bkt"],
        &["rm", "s3://bkt/other"],
    ] {
        rig.run(&[words, &global].concat()).ok();
        let ran = binary::fordway(&[words, &["--debug"]].concat(), "");
        assert_eq!(ran.status.code(), Some(2), "{words:?}");
        assert!(binary::text(&ran.stderr).contains("FORDWAY_LOG=debug"), "{}", binary::text(&ran.stderr));
    }
}
