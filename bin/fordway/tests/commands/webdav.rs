//! Tests commands on WebDAV servers. Copies between servers use XRootD. All other tests that need a WebDAV server use
//! Apache httpd.

use std::os::unix::fs::{FileExt, symlink};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fordway_command::CommandExit;
use fordway_testkit::foreign::{ExternalServerProcess, SelfSignedCertificate};
use fordway_testkit::hostile::{HostileServer, RecordedRequest, ResponseFault, ResponseFaultScript};

use crate::support::{Captured, Rig, ShortPipe};

/// Returns the server's address with the WebDAV scheme.
fn dav(server: &ExternalServerProcess, path: &str) -> String {
    server.url(path).replace("http", "dav")
}

#[test]
fn files_go_up_and_come_down() {
    let Some(server) = ExternalServerProcess::apache() else { return };
    let rig = Rig::new();
    rig.write("tree/a b", "1");
    rig.write("tree/sub/c", vec![b'c'; 200_000]);
    let there = dav(&server, "up");
    let up = rig.run(&["cp", "--recursive", "DIR/tree", &there]).ok();
    assert_eq!(up.stdout.lines().count(), 2, "{}", up.stdout);
    assert!(up.sorted()[0].starts_with("upload: ") && up.sorted()[0].ends_with("/up/a%20b"), "{}", up.stdout);
    let listed = rig.run(&["ls", &there, "--summarize"]).ok().stdout;
    assert!(listed.contains("PRE sub/\n") && listed.contains(" 1 a b\n"), "{listed}");
    assert!(listed.ends_with("Total Objects: 1\n   Total Size: 1\n"), "{listed}");
    let all = rig.run(&["ls", &there, "--recursive"]).ok();
    assert_eq!(all.stdout.lines().count(), 2, "{}", all.stdout);
    assert!(all.stdout.contains("200000 sub/c"), "{}", all.stdout);
    rig.run(&["cp", "--recursive", &there, "DIR/down"]).ok();
    assert_eq!(std::fs::read(rig.path("down/a b")).unwrap(), b"1");
    assert_eq!(std::fs::read(rig.path("down/sub/c")).unwrap().len(), 200_000);
    rig.run(&["cp", &dav(&server, "up/a%20b"), "DIR/here/"]).ok();
    assert_eq!(rig.run(&["cat", &dav(&server, "up/a%20b")]).ok().stdout, "1");
    rig.run(&["cp", "DIR/tree/a b", &dav(&server, "up/sub/")]).ok();
    assert_eq!(rig.run(&["cat", &dav(&server, "up/sub/a%20b")]).ok().stdout, "1");
    let rig = Rig { input: b"from a pipe".to_vec(), ..rig };
    rig.run(&["cp", "-", &dav(&server, "piped")]).ok();
    assert_eq!(rig.run(&["cat", &dav(&server, "piped")]).ok().stdout, "from a pipe");
}

#[test]
fn mv_to_a_server_removes_nothing_behind_a_linked_directory() {
    let Some(server) = ExternalServerProcess::apache() else { return };
    let rig = Rig::new();
    for file in ["t/a", "outside/precious"] {
        rig.write(file, file);
    }
    symlink("../outside", rig.path("t/link")).unwrap();
    let there = dav(&server, "linked");
    let ran = rig.run(&["mv", "-r", "DIR/t", &there]).ended(CommandExit::Usage);
    assert!(ran.stderr.contains("t/link is a link to a directory, and a move"), "{}", ran.stderr);
    rig.run(&["mv", "-r", "DIR/t/link", &there]).ended(CommandExit::Usage);
    assert_eq!(rig.files(), ["outside/precious", "t/link/precious"]);
}

#[test]
fn mv_to_a_server_copies_links_to_files_of_the_same_tree() {
    let Some(server) = ExternalServerProcess::apache() else { return };
    let rig = Rig::new();
    rig.write("t/data", "data");
    symlink("data", rig.path("t/latest")).unwrap();
    let there = dav(&server, "same-tree");
    rig.run(&["mv", "-r", "-j", "1", "DIR/t", &there]).ok();
    assert_eq!(rig.run(&["cat", &format!("{there}/latest")]).ok().stdout, "data");
    assert!(rig.path("t/latest").symlink_metadata().is_err() && !rig.path("t/data").exists());
}

/// The size of the file does not change, but the upload may contain parts of two versions.
#[test]
fn a_file_that_is_overwritten_during_its_upload_is_not_reported_as_copied() {
    let Some(server) = ExternalServerProcess::apache() else { return };
    let rig = Rig::new();
    rig.write("f", vec![1; 32 << 20]);
    let is_done = AtomicBool::new(false);
    let ran = std::thread::scope(|scope| {
        scope.spawn(|| {
            let file = std::fs::File::options().write(true).open(rig.path("f")).unwrap();
            while !is_done.load(Ordering::Relaxed) {
                file.write_all_at(&[2; 9], 0).unwrap();
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let ran = rig.run(&["mv", "DIR/f", &dav(&server, "changing")]);
        is_done.store(true, Ordering::Relaxed);
        ran
    });
    let ran = ran.ended(CommandExit::Corrupt);
    assert!(ran.stderr.contains("changed during the read"), "{}", ran.stderr);
    assert_eq!(rig.files(), ["f"]);
}

#[test]
fn mv_from_a_server_does_not_replace_a_file_that_it_has_written() {
    let Some(server) = ExternalServerProcess::apache() else { return };
    let rig = Rig::new();
    ["t/x", "t/y", "o/y"].iter().for_each(|file| rig.write(file, file));
    symlink("y", rig.path("o/x")).unwrap();
    let there = dav(&server, "two-to-one");
    rig.run(&["cp", "-r", "DIR/t", &there]).ok();
    let ran = rig.run(&["mv", "-r", &there, "DIR/o"]).ended(CommandExit::Usage);
    assert!(ran.stderr.contains("is the destination of two sources"), "{}", ran.stderr);
    let moved = std::fs::read_to_string(rig.path("o/y")).unwrap();
    let kept = ["x", "y"].into_iter().find(|name| !moved.ends_with(name)).unwrap();
    assert_eq!(rig.run(&["cat", &format!("{there}/{kept}")]).ok().stdout, format!("t/{kept}"));
}

#[test]
fn copies_and_removals_go_on_although_nobody_reads_of_them() {
    let Some(server) = ExternalServerProcess::apache() else { return };
    let rig = Rig::new();
    (0..9).for_each(|number| rig.write(&format!("tree/{number}"), "1"));
    let there = dav(&server, "many");
    let run = |words: &[&str]| {
        let stderr = Captured::default();
        let exit = rig.run_with_streams(words, ShortPipe(10), stderr.clone());
        assert_eq!((exit, stderr.text()), (CommandExit::Ok, String::new()), "{words:?}");
    };
    run(&["mkdir", &there]);
    run(&["cp", "--recursive", "DIR/tree", &there]);
    run(&["cp", "--recursive", &there, "DIR/down"]);
    assert_eq!(rig.files().iter().filter(|name| name.starts_with("down/")).count(), 9);
    run(&["mv", "--recursive", &there, "DIR/moved"]);
    assert_eq!(rig.files().iter().filter(|name| name.starts_with("moved/")).count(), 9);
    run(&["rm", "--recursive", &there]);
    rig.run(&["stat", &there]).ended(CommandExit::NotFound);
}

#[test]
fn names_with_line_breaks_are_shown_on_one_line() {
    let Some(server) = ExternalServerProcess::apache() else { return };
    let rig = Rig::new();
    rig.write("tree/a\nb", "1");
    let there = dav(&server, "lines");
    for ran in [
        rig.run(&["cp", "--recursive", "DIR/tree", &there]),
        rig.run(&["ls", &there]),
        rig.run(&["ls", "--recursive", &there]),
        rig.run(&["cp", "--recursive", &there, "DIR/down"]),
    ] {
        let shown = ran.ok().stdout;
        assert!(shown.lines().count() == 1 && shown.contains(r"a\nb"), "{shown}");
    }
}

#[test]
fn two_files_never_go_to_one_address() {
    let Some(server) = ExternalServerProcess::apache() else { return };
    let rig = Rig::new();
    rig.write("a/x", "of a");
    rig.write("b/x", "of b");
    let to = dav(&server, "to/");
    rig.run(&["mkdir", &to]).ok();
    let ran = rig.run(&["mv", "DIR/a/x", "DIR/b/x", &to]).ended(CommandExit::Usage);
    assert!(ran.stderr.contains("b/x and another source"), "{}", ran.stderr);
    assert_eq!(rig.run(&["cat", &dav(&server, "to/x")]).ok().stdout, "of a");
    assert_eq!(rig.files(), ["b/x"], "nothing is lost");
}

/// The listing of the source would contain the copies, each of which would be copied again.
#[test]
fn a_collection_is_not_copied_into_itself() {
    let Some(server) = ExternalServerProcess::apache() else { return };
    let rig = Rig::new();
    rig.write("t/a", "a");
    rig.write("t/sub/b", "b");
    let (data, inside) = (dav(&server, "data"), dav(&server, "data/back"));
    rig.run(&["cp", "-r", "DIR/t", &data]).ok();
    for words in [
        &["cp", "-r", &data, &inside][..],
        &["cp", "-r", "--dry-run", &format!("{data}/"), &dav(&server, "data//%62ack/")],
        &["mv", "-r", &data, &inside],
        &["mv", "-r", "-j", "1", &data, &inside, "--exclude", "a"],
        &["cp", "-r", "DIR/t", &data, &inside],
    ] {
        let ran = rig.run(words).ended(CommandExit::Usage);
        assert!(ran.stderr.contains("is a collection inside the source"), "{words:?}: {}", ran.stderr);
        rig.run(&["stat", &inside]).ended(CommandExit::NotFound);
    }
    for _ in 0..2 {
        rig.run(&["cp", "-r", &data, &inside, "--exclude", "back/*"]).ok();
        rig.run(&["cp", "-r", &data, &dav(&server, "data2")]).ok();
    }
    let listed = rig.run(&["ls", "-r", &data]).ok().stdout;
    let names: Vec<_> = listed.lines().filter_map(|line| line.split(' ').next_back()).collect();
    assert_eq!(names, ["a", "back/a", "back/sub/b", "sub/b"], "{listed}");
}

#[test]
fn no_source_on_a_server_replaces_another_source() {
    let Some(server) = ExternalServerProcess::apache() else { return };
    let rig = Rig::new();
    let files = ["a/c/x", "c/x", "d/k", "f/k", "p/p/x", "p/x"];
    files.iter().for_each(|file| rig.write(&format!("t/{file}"), file));
    rig.run(&["cp", "-r", "DIR/t", &dav(&server, "o")]).ok();
    let at = |path: &str| dav(&server, &format!("o/{path}"));
    for (words, from) in [
        (&["mv", "-r", &at("p"), &at("")][..], "p/p/x"),
        (&["mv", "-r", "--exclude", "y", &at("p"), &at("")], "p/p/x"),
        (&["cp", "-r", &at("a"), &at("c"), &at("")], "a/c/x"),
        (&["mv", "-r", &at("c/"), &at("a/"), &at("")], "a/c/x"),
        (&["cp", "-r", "DIR/t/a", &at("c"), &at("")], "a/c/x"),
        (&["mv", "-r", &at("f"), &at("d"), &at("d")], "f/k"),
        (&["mv", &at("f/k"), &at("d/k"), &at("d/")], "f/k"),
        (&["mv", "DIR/t/f/k", &at("d/k"), &at("d/")], "f/k"),
    ] {
        let ran = rig.run(words).ended(CommandExit::Usage);
        let why = format!("{from} would replace http");
        assert!(
            ran.stderr.contains(&why) && ran.stderr.contains("in the source"),
            "{words:?}: {}",
            ran.stderr
        );
        for file in files {
            assert_eq!(rig.run(&["cat", &at(file)]).ok().stdout, file, "{words:?}");
        }
    }
    rig.run(&["cp", "-r", &at("p"), &at(""), "--exclude", "p/*"]).ok();
    assert_eq!(rig.run(&["cat", &at("x")]).ok().stdout, "p/x");
    rig.run(&["mv", &at("f/k"), &at("a/c/x"), &at("d/")]).ok();
    assert_eq!(rig.run(&["cat", &at("d/k")]).ok().stdout, "f/k");
}

#[test]
fn more_jobs_than_files_copy_everything_to_a_server() {
    let Some(server) = ExternalServerProcess::apache() else { return };
    let rig = Rig::new();
    (0..300).for_each(|number| rig.write(&format!("many/{number}"), "content"));
    let (many, there, down) = (rig.path("many"), dav(&server, "many"), rig.path("down"));
    let (many, down) = (many.to_str().unwrap(), down.to_str().unwrap());
    for (from, to) in [(many, there.as_str()), (there.as_str(), down)] {
        let mut shell = Command::new("sh");
        shell.args(["-c", "ulimit -n 32 && exec \"$0\" cp --recursive --jobs 100 \"$@\""]);
        let ran = shell.args([env!("CARGO_BIN_EXE_fordway"), from, to]).output().unwrap();
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    }
    assert_eq!(rig.files().iter().filter(|file| file.starts_with("down/")).count(), 300);
}

#[test]
fn json_has_the_fields_of_the_other_lanes() {
    let Some(server) = ExternalServerProcess::apache() else { return };
    let rig = Rig::new();
    rig.write("f", "12345");
    let url = dav(&server, "d/f");
    rig.run(&["mkdir", &dav(&server, "d")]).ok();
    let parse = |text: &str| serde_json::from_str::<serde_json::Value>(text.lines().last().unwrap()).unwrap();
    let up = parse(&rig.run(&["--json", "cp", "DIR/f", &url]).ok().stdout);
    assert_eq!((&up["operation"], &up["size_bytes"]), (&"upload".into(), &5.into()));
    let listed = parse(&rig.run(&["--json", "ls", &dav(&server, "d")]).ok().stdout);
    assert_eq!(
        (&listed["type"], &listed["key"], &listed["size_bytes"]),
        (&"object".into(), &"f".into(), &5.into())
    );
    assert_eq!(listed["url"], server.url("d/f"));
    assert!(listed["modified"].as_str().unwrap().ends_with('Z') && listed["etag"].is_string());
    let root = parse(&rig.run(&["--json", "ls", &dav(&server, "")]).ok().stdout);
    assert_eq!((&root["type"], &root["key"]), (&"prefix".into(), &"d/".into()));
    let about = parse(&rig.run(&["--json", "stat", &url]).ok().stdout);
    assert_eq!((&about["type"], &about["size_bytes"]), (&"file".into(), &5.into()));
    let about = parse(&rig.run(&["--json", "stat", &dav(&server, "d")]).ok().stdout);
    assert_eq!((&about["type"], about["size_bytes"].is_null()), (&"collection".into(), true));
}

#[test]
fn what_is_there_is_kept_where_that_is_asked_for() {
    let Some(server) = ExternalServerProcess::apache() else { return };
    let rig = Rig::new();
    rig.write("f", "new");
    rig.write("old", "old");
    let url = dav(&server, "f");
    rig.run(&["cp", "DIR/old", &url]).ok();
    rig.run(&["cp", "--no-clobber", "DIR/f", &url]).ok();
    rig.run(&["cp", "--if-none-match", "DIR/f", &url]).ended(CommandExit::Conflict);
    rig.run(&["cp", "--dry-run", "DIR/f", &url]).ok();
    assert_eq!(rig.run(&["cat", &url]).ok().stdout, "old");
    let other = dav(&server, "other");
    rig.run(&["cp", &url, &other]).ok();
    rig.run(&["cp", "DIR/f", &url]).ok();
    rig.run(&["cp", "--if-none-match", &url, &other]).ended(CommandExit::Conflict);
    rig.run(&["cp", &url, &other]).ok();
    assert_eq!(rig.run(&["cat", &other]).ok().stdout, "new");
    // A copy of a file to the address of a collection would replace the whole collection.
    rig.run(&["mkdir", &dav(&server, "d")]).ok();
    let refused = rig.run(&["cp", &url, &dav(&server, "d")]).ended(CommandExit::Usage);
    assert!(refused.stderr.contains("is a collection, which the copy would replace"), "{}", refused.stderr);
    let refused = rig.run(&["mv", &url, &dav(&server, "d")]).ended(CommandExit::Usage);
    assert!(
        refused.stderr.contains("is a collection") && refused.stderr.contains("with /"),
        "{}",
        refused.stderr
    );
    rig.run(&["cp", &url, &url]).ended(CommandExit::Usage);
    rig.run(&["cp", &dav(&server, "d"), &dav(&server, "e")]).ended(CommandExit::Usage);
    rig.run(&["cp", &url, &dav(&server, "d/")]).ok();
    assert_eq!(rig.run(&["cat", &dav(&server, "d/f")]).ok().stdout, "new");
}

#[test]
fn files_and_collections_are_moved_and_removed() {
    let Some(server) = ExternalServerProcess::apache() else { return };
    let rig = Rig::new();
    for name in ["t/1", "t/2.keep", "t/u/3"] {
        rig.write(name, name);
    }
    let (t, v) = (dav(&server, "t"), dav(&server, "v"));
    rig.run(&["mv", "--recursive", "DIR/t", &t]).ok();
    assert_eq!(rig.files(), Vec::<String>::new());
    let moved = rig.run(&["mv", "--recursive", &t, &v]).ok();
    assert!(moved.stdout.ends_with("(by the server)\n"), "{}", moved.stdout);
    assert_eq!(rig.run(&["stat", &t]).exit, CommandExit::NotFound);
    rig.run(&["mv", &dav(&server, "v/1"), &dav(&server, "v/u/")]).ok();
    rig.run(&["mv", &dav(&server, "v/u/1"), "DIR/1"]).ok();
    assert_eq!(std::fs::read(rig.path("1")).unwrap(), b"t/1");
    rig.run(&["rm", &v]).ended(CommandExit::Usage);
    rig.run(&["rm", &v, "--recursive", "--dry-run"]).ok();
    rig.run(&["rm", &v, "--recursive", "--exclude", "*.keep"]).ok();
    let left = rig.run(&["ls", &v, "--recursive"]).ok().stdout;
    assert!(left.ends_with(" 2.keep\n") && left.lines().count() == 1, "{left}");
    rig.run(&["rm", &v, "--recursive"]).ok();
    for words in [["rm", &v], ["ls", &v], ["stat", &v], ["cat", &v]] {
        rig.run(&words).ended(CommandExit::NotFound);
    }
    let there = dav(&server, "a/b/c");
    rig.run(&["mkdir", &there]).ended(CommandExit::NotFound);
    rig.run(&["mkdir", "--parents", &there]).ok();
    rig.run(&["mkdir", "--parents", &there]).ok();
    rig.run(&["mkdir", &there]).ended(CommandExit::Conflict);
}

#[test]
fn empty_directories_are_copied_too() {
    let Some(server) = ExternalServerProcess::apache() else { return };
    let rig = Rig::new();
    rig.write("tree/sub/c", "c");
    for directory in ["tree/sub/none", "empty"] {
        std::fs::create_dir_all(rig.path(directory)).unwrap();
    }
    let up = rig.run(&["cp", "--recursive", "DIR/tree", &dav(&server, "up")]).ok();
    assert_eq!(up.stdout.lines().count(), 1, "{}", up.stdout);
    rig.run(&["cp", "--recursive", "DIR/empty", &dav(&server, "empty")]).ok();
    for made in ["up/sub/none", "empty"] {
        rig.run(&["stat", &dav(&server, made)]).ok();
    }
    rig.run(&["cp", "--recursive", &dav(&server, "up"), "DIR/down"]).ok();
    rig.run(&["cp", "--recursive", &dav(&server, "empty"), "DIR/none"]).ok();
    assert!(rig.path("down/sub/none").is_dir() && rig.path("none").is_dir());
    // A filter selects files, and their directories are created for them.
    rig.run(&["cp", "--recursive", &dav(&server, "up"), "DIR/some", "--exclude", "x"]).ok();
    assert!(rig.path("some/sub/c").is_file() && !rig.path("some/sub/none").exists());
    rig.run(&["cp", "--recursive", "DIR/tree", &dav(&server, "dry"), "--dry-run"]).ok();
    rig.run(&["stat", &dav(&server, "dry")]).ended(CommandExit::NotFound);
    rig.run(&["cp", "--recursive", &dav(&server, "missing"), "DIR/missing"]).ended(CommandExit::NotFound);
    assert!(!rig.path("missing").exists());
}

/// The owner of a server must not choose the policy and the versions of a bucket that its files are copied to.
#[test]
fn no_server_writes_into_a_private_area() {
    let Some(server) = ExternalServerProcess::apache() else { return };
    let rig = Rig::new();
    rig.write("tree/.fordway/document-policy", "policy");
    rig.write("tree/good", "good");
    rig.run(&["cp", "-r", "DIR/tree", &dav(&server, "up")]).ok();
    for words in [
        &["cp", "-r", &dav(&server, "up"), "DIR/bucket"][..],
        &["mv", "-r", &dav(&server, "up"), "DIR/bucket"],
        &["cp", &dav(&server, "up/.fordway"), "DIR/bucket/"],
    ] {
        let ran = rig.run(words).ended(CommandExit::Usage);
        assert!(ran.stderr.contains("the name of the private area"), "{words:?}: {}", ran.stderr);
        assert!(rig.path("bucket/good").exists() && !rig.path("bucket/.fordway").exists(), "{words:?}");
    }
}

/// nginx derives the ETag from size and time, so two different files can have the same ETag.
#[test]
fn files_with_equal_properties_are_told_apart_by_their_content() {
    let Some(server) = ExternalServerProcess::nginx() else { return };
    let rig = Rig::new();
    let time = std::time::SystemTime::now() - Duration::from_secs(60);
    let write = |name: &str, content: &str| {
        let path = server.files().join(name);
        std::fs::write(&path, content).unwrap();
        std::fs::File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
    };
    let read = |name: &str| std::fs::read_to_string(server.files().join(name)).ok();
    write("status", "old");
    write("status.tmp", "new");
    let (status, draft) = (dav(&server, "status"), dav(&server, "status.tmp"));
    rig.run(&["cp", &draft, &status]).ok();
    assert_eq!(read("status").as_deref(), Some("new"));
    write("status", "old");
    rig.run(&["mv", &draft, &status]).ok();
    assert_eq!((read("status").as_deref(), read("status.tmp")), (Some("new"), None));
    // nginx removes repeated slashes, so the second address leads to the same file.
    let again = dav(&server, "/status");
    rig.run(&["cp", &status, &again]).ok();
    let refused = rig.run(&["mv", &status, &again]).ended(CommandExit::Usage);
    assert!(refused.stderr.contains("seem to be the same file"), "{}", refused.stderr);
    assert_eq!(read("status").as_deref(), Some("new"));
}

/// This server does not support WebDAV, so the program reads the file's properties from HTTP headers. Each attempt uses
/// a new server.
#[test]
fn a_move_removes_only_what_was_copied() {
    let rig = Rig::new();
    let mv = |script: ResponseFaultScript| {
        let server = HostileServer::start("hello", script);
        let ran = rig.run(&["mv", "--quiet", &server.url(), "DIR/x"]);
        (ran, server.requests())
    };
    let removals = |requests: &[RecordedRequest]| -> Vec<usize> {
        (0..requests.len()).filter(|number| requests[*number].method == "DELETE").collect()
    };
    let removes = || ResponseFaultScript::honest().on_method("DELETE", ResponseFault::Status(204, None));
    let (moved, requests) = mv(removes());
    assert_eq!((moved.exit, moved.stderr.as_str()), (CommandExit::Ok, ""));
    let [removal] = removals(&requests)[..] else { panic!("one DELETE in {requests:?}") };
    assert_eq!(requests[removal].header("if-match"), Some("\"version-0\""));

    // The file is replaced after the copy, just before the program reads its properties again.
    let (kept, requests) = mv(removes().on_requests(removal - 1..removal, ResponseFault::Version(1)));
    assert_eq!((kept.exit, removals(&requests)), (CommandExit::Conflict, Vec::new()));
    assert!(kept.stderr.contains("was changed during the copy"), "{}", kept.stderr);

    // The server itself detects that the file was replaced.
    let refuses = ResponseFaultScript::honest().on_method("DELETE", ResponseFault::Status(412, None));
    let (kept, _) = mv(refuses);
    assert!(kept.stderr.contains("was changed during the copy"), "{}", kept.stderr);
}

#[test]
fn a_move_removes_no_collection_and_replaces_no_device() {
    let Some(server) = ExternalServerProcess::apache() else { return };
    let rig = Rig::new();
    rig.write("f", "1");
    let (file, collection) = (dav(&server, "d/f"), dav(&server, "d/"));
    rig.run(&["mkdir", &collection]).ok();
    rig.run(&["cp", "DIR/f", &file]).ok();
    let refused = rig.run(&["mv", &collection, "DIR/g"]).ended(CommandExit::Usage);
    assert!(refused.stderr.contains("is a collection; add --recursive"), "{}", refused.stderr);
    rustix::fs::mkfifoat(rustix::fs::CWD, rig.path("pipe"), rustix::fs::Mode::RWXU).unwrap();
    let refused = rig.run(&["mv", &file, "DIR/pipe"]).ended(CommandExit::Usage);
    assert!(refused.stderr.contains("pipe is not a file"), "{}", refused.stderr);
    rig.write("target", "old");
    std::os::unix::fs::symlink("target", rig.path("link")).unwrap();
    rig.run(&["mv", &file, "DIR/link"]).ok();
    assert!(rig.path("link").is_symlink(), "the file that the link points to is replaced");
    assert_eq!(std::fs::read(rig.path("target")).unwrap(), b"1");
    rig.run(&["stat", &file]).ended(CommandExit::NotFound);
}

#[test]
fn objects_are_moved_too_and_have_markers() {
    let rig = Rig::new();
    rig.put("a", "1");
    rig.put("d/b", "2");
    rig.run(&["mv", "s3://bkt/a", "s3://bkt/e/"]).ok();
    rig.run(&["mv", "s3://bkt/d/b", "DIR/b"]).ok();
    assert_eq!(rig.keys(), ["e/a"]);
    let up = rig.run(&["mv", "DIR/b", "s3://bkt/f/b"]).ok();
    assert!(up.stdout.starts_with("move: "), "{}", up.stdout);
    assert!(!rig.path("b").exists());
    rig.run(&["mv", "--recursive", "s3://bkt/f", "s3://bkt/g"]).ok();
    rig.run(&["mv", "--dry-run", "s3://bkt/e/a", "s3://bkt/x"]).ok();
    rig.run(&["mv", "s3://bkt/e/a", "s3://bkt/e/a"]).ended(CommandExit::Usage);
    rig.run(&["mv", "--no-clobber", "s3://bkt/e/a", "s3://bkt/g/b"]).ok();
    assert_eq!(rig.keys(), ["e/a", "g/b"]);
    rig.run(&["mkdir", "s3://bkt/new"]).ok();
    assert_eq!(rig.keys(), ["e/a", "g/b", "new/"]);
    rig.put("full/", "content of an object that looks like a directory");
    let refused = rig.run(&["mkdir", "s3://bkt/full"]).ended(CommandExit::Conflict);
    assert!(refused.stderr.contains("s3://bkt/full/ already exists"), "{}", refused.stderr);
    rig.run(&["mkdir", "--parents", "s3://bkt/full"]).ok();
    assert!(rig.get("full/").is_some_and(|content| !content.is_empty()), "nothing is replaced");
    rig.run(&["mkdir", "s3://bkt"]).ended(CommandExit::Usage);
    rig.run(&["mkdir", "DIR/x"]).ended(CommandExit::Usage);
}

/// A web server without WebDAV lacks the methods that these commands need. The error message must say that the server
/// does not support WebDAV.
#[test]
fn servers_without_webdav_say_so() {
    let (rig, server) = (Rig::new(), HostileServer::start("hello", ResponseFaultScript::honest()));
    rig.write("f", "1");
    let url = server.url();
    for words in [vec!["ls", &url], vec!["mkdir", &url], vec!["cp", "DIR/f", &url], vec!["rm", &url]] {
        let refused = rig.run(&words);
        assert_ne!(refused.exit, CommandExit::Ok, "{words:?}");
        assert!(refused.stderr.contains("does not support WebDAV"), "{words:?}: {}", refused.stderr);
    }
    let about = rig.run(&["stat", &url.replace("http", "dav")]).ok().stdout;
    assert!(about.contains("(5 bytes)"), "{about}");
}

/// Runs the binary, and passes the certificate in its environment.
fn fordway(authority: &SelfSignedCertificate, words: &[&str]) -> (i32, String, String) {
    let ran = Command::new(env!("CARGO_BIN_EXE_fordway"))
        .args(words)
        .env("AWS_CA_BUNDLE", authority.file())
        .output()
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (ran.status.code().unwrap(), text(ran.stdout), text(ran.stderr))
}

#[test]
fn servers_copy_to_one_another_where_they_can() {
    let authority = SelfSignedCertificate::new();
    let (Some(one), Some(two)) =
        (ExternalServerProcess::xrootd(&authority), ExternalServerProcess::xrootd(&authority))
    else {
        return;
    };
    let Some(apache) = ExternalServerProcess::apache() else { return };
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("f");
    std::fs::write(&file, vec![b'x'; 1_000_000]).unwrap();
    let run = |words: &[&str]| {
        let (code, stdout, stderr) = fordway(&authority, words);
        assert_eq!(code, 0, "{words:?}\n{stdout}\n{stderr}");
        (stdout, stderr)
    };
    let from = dav(&one, "f");
    run(&["cp", file.to_str().unwrap(), &from]);
    for (option, by) in [
        ("--third-party=pull", "third-party copy, pulled"),
        ("--third-party=push", "third-party copy, pushed"),
        ("--third-party=never", "through this machine"),
    ] {
        let (told, notes) = run(&["cp", option, &from, &dav(&two, option)]);
        assert!(told.contains(by) && notes.is_empty(), "{told} {notes}");
        assert_eq!(run(&["cat", &dav(&two, option)]).0.len(), 1_000_000);
    }
    // Apache does not support third-party copies, so this program copies the content itself.
    let (told, notes) = run(&["cp", &from, &dav(&apache, "f")]);
    assert!(
        told.contains("through this machine") && notes.contains("does not support third-party copies"),
        "{told} {notes}"
    );
    assert_eq!(run(&["cat", &dav(&apache, "f")]).0.len(), 1_000_000);
    run(&["mv", &from, &dav(&two, "moved")]);
    let (code, _, told) = fordway(&authority, &["cp", &from, &dav(&two, "x")]);
    assert_eq!(code, 3, "{told}");
}

/// XRootD empties the destination when a PUT begins, so a command must open the source before it sends the request.
#[test]
fn a_copy_whose_source_cannot_be_read_leaves_the_destination() {
    let authority = SelfSignedCertificate::new();
    let Some(server) = ExternalServerProcess::xrootd(&authority) else { return };
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("f");
    std::fs::write(&file, vec![b'x'; 300_000]).unwrap();
    let there = dav(&server, "f");
    assert_eq!(fordway(&authority, &["cp", file.to_str().unwrap(), &there]).0, 0);
    let missing = dir.path().join("none");
    let (code, _, told) = fordway(&authority, &["cp", missing.to_str().unwrap(), &there]);
    assert_eq!(code, 3, "{told}");
    assert!(!told.contains("tries"), "{told}");
    // The server itself does not detect that the source and the destination are the same file. The contents are equal,
    // so `cp` has nothing to do, but `mv` would remove the file.
    for other in [there.replace("/f", "/%66"), there.replace("/f", "//f")] {
        for command in ["cp", "mv"] {
            let (code, _, told) = fordway(&authority, &[command, &there, &other]);
            assert_eq!(code, if command == "cp" { 0 } else { 2 }, "{command} {other}: {told}");
            let (_, read, _) = fordway(&authority, &["cat", &there]);
            assert_eq!(read.len(), 300_000, "{command} {other}: {told}");
        }
    }
}
