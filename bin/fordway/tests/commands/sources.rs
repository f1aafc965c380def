//! Tests the sources that `cp`, `mv` and `cat` accept, and the errors for others.

use fordway_command::CommandExit;

use crate::support::Rig;

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
    let ran = rig.run(&["tag", "p/a"]).ended(CommandExit::Usage);
    assert!(ran.stderr.contains("p/a is not of the form s3://BUCKET/KEY"), "{}", ran.stderr);
    let ran = rig.run(&["mb", "bkt"]).ended(CommandExit::Usage);
    assert!(ran.stderr.ends_with("bkt is not of the form s3://BUCKET\n"), "{}", ran.stderr);
}

#[test]
fn a_file_that_says_nothing_of_its_size_is_to_be_piped_in() {
    let rig = Rig::new();
    let ran = rig.run(&["cp", "/proc/self/status", "s3://bkt/k"]).ended(CommandExit::Usage);
    assert!(ran.stderr.contains("pipe it in and use - as the source"), "{}", ran.stderr);
    assert_eq!(rig.get("k"), None);
}
