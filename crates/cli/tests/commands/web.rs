//! `cat`, `stat` and `cp` of files at web servers.

use fordway_cli::Exit;
use fordway_store::{Checksum, ChecksumAlgorithm};
use fordway_testkit::hostile::{HostileServer, Lie, Script};

use crate::support::Rig;

fn content() -> Vec<u8> {
    (0..300_000_u32).flat_map(u32::to_le_bytes).map(|byte| b'a' + byte % 26).collect()
}

fn server() -> HostileServer {
    HostileServer::start(content(), Script::honest())
}

#[test]
fn files_are_shown() {
    let (rig, server) = (Rig::new(), server());
    let url = server.url();
    assert!(rig.run(&["cat", &url]).ok().stdout.into_bytes() == content());
    assert!(rig.run(&["cp", &url, "-"]).ok().stdout.into_bytes() == content());
    let tail = rig.run(&["cat", &url, "--range", "-5"]).ok();
    assert_eq!(tail.stdout.as_bytes(), &content()[content().len() - 5..]);
    let shown = rig.run(&["stat", &url]).ok().stdout;
    assert!(shown.contains("(1200000 bytes)") && shown.contains("ETag: \"version-0\""), "{shown}");
}

#[test]
fn files_are_copied_under_their_name_or_another() {
    let (rig, server) = (Rig::new(), server());
    let copied = rig.run(&["cp", &server.url(), "DIR/copy"]).ok();
    assert!(copied.stdout.starts_with(&format!("download: {}", server.url())), "{}", copied.stdout);
    rig.run(&["cp", &format!("{}?token=1", server.url()), "DIR/below/"]).ok();
    for name in ["copy", "below/file"] {
        assert!(std::fs::read(rig.dir.path().join(name)).unwrap() == content(), "{name}");
    }
    std::fs::write(rig.dir.path().join("mine"), "mine").unwrap();
    rig.run(&["cp", "--no-clobber", &server.url(), "DIR/mine"]).ok();
    let refused = rig.run(&["cp", "--if-none-match", &server.url(), "DIR/mine"]);
    assert_ne!(refused.exit, Exit::Ok);
    assert!(refused.stderr.contains("exists"), "{}", refused.stderr);
    assert_eq!(std::fs::read(rig.dir.path().join("mine")).unwrap(), b"mine");
    rig.run(&["cp", &server.url(), "DIR/mine"]).ok();
    assert!(std::fs::read(rig.dir.path().join("mine")).unwrap() == content());
    let left: Vec<_> = rig.dir.path().read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 3, "{left:?}");
}

#[test]
fn an_interrupted_copy_goes_on_where_it_ended() {
    let (rig, server) = (Rig::new(), server());
    let cut =
        Script::honest().on_requests(1..2, Lie::CloseAt(700_000)).on_requests(2..3, Lie::Status(404, None));
    server.follow(cut);
    let failed = rig.run(&["cp", &server.url(), "DIR/copy"]);
    assert_ne!(failed.exit, Exit::Ok);
    assert!(!rig.dir.path().join("copy").exists());
    server.follow(Script::honest());
    rig.run(&["cp", &server.url(), "DIR/copy"]).ok();
    assert!(std::fs::read(rig.dir.path().join("copy")).unwrap() == content());
    let last = server.requests().pop().unwrap();
    assert_eq!(last.header("range"), Some("bytes=700000-1199999"));
    assert_eq!(last.header("if-range"), Some("\"version-0\""));
}

#[test]
fn a_part_of_another_version_is_not_used() {
    let (rig, server) = (Rig::new(), server());
    let cut =
        Script::honest().on_requests(1..2, Lie::CloseAt(700_000)).on_requests(2..3, Lie::Status(404, None));
    server.follow(cut);
    assert_ne!(rig.run(&["cp", &server.url(), "DIR/copy"]).exit, Exit::Ok);
    server.follow(Script::honest().always(Lie::Version(1)));
    rig.run(&["cp", &server.url(), "DIR/copy"]).ok();
    let changed: Vec<u8> = content().iter().map(|byte| byte ^ 1).collect();
    assert!(std::fs::read(rig.dir.path().join("copy")).unwrap() == changed);
}

#[test]
fn what_web_servers_cannot_do_is_said() {
    let (rig, server) = (Rig::new(), server());
    let url = server.url();
    for (words, hint) in [
        (vec!["du", &url], "is not taken here"),
        (vec!["cp", &url, "s3://bkt/k"], "copy it to a file first"),
        (vec!["cp", "--dry-run", &url, "DIR/x"], "--dry-run"),
        (vec!["cp", "s3://bkt/k", &url], "copy it to a file first"),
        (vec!["cp", &url, "/dev/null"], "no file"),
    ] {
        let refused = rig.run(&words);
        assert_ne!(refused.exit, Exit::Ok, "{words:?}");
        assert!(refused.stderr.contains(hint), "{words:?}: {}", refused.stderr);
    }
    assert_eq!(server.requests().len(), 0);
}

#[test]
fn a_copy_that_has_not_the_digest_is_made_once_more() {
    let rig = Rig::new();
    let sum = Checksum::of(ChecksumAlgorithm::Sha256, &content()).to_base64();
    let stated = || Script::honest().always(Lie::Header("Digest", format!("SHA-256={sum}")));
    let server = HostileServer::start(content(), stated().on_requests(1..2, Lie::Flipped));
    let copied = rig.run(&["cp", "--json", &server.url(), "DIR/copy"]).ok();
    assert!(copied.stdout.contains(r#""verified":"SHA256""#), "{}", copied.stdout);
    assert!(std::fs::read(rig.dir.path().join("copy")).unwrap() == content());
    assert_eq!(server.requests().len(), 3, "HEAD, and two copies");
    server.follow(stated().always(Lie::Flipped));
    let failed = rig.run(&["cp", "--metalink", "none", &server.url(), "DIR/other"]);
    assert_eq!(failed.exit, Exit::Corrupt);
    assert!(failed.stderr.contains("SHA256 that the server states"), "{}", failed.stderr);
    assert_eq!(server.requests().len(), 6, "tried twice");
    let left: Vec<_> = rig.dir.path().read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["copy"]);
    assert_eq!(rig.run(&["cat", &server.url()]).exit, Exit::Corrupt);
}
