//! Tests `cat`, `stat` and `cp` on files on web servers.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;

use fordway_command::CommandExit;
use fordway_store::{Checksum, ChecksumAlgorithm};
use fordway_testkit::hostile::{HostileServer, RecordedRequest, ResponseFault, ResponseFaultScript};

use crate::support::Rig;

fn content() -> Vec<u8> {
    (0..300_000_u32).flat_map(u32::to_le_bytes).map(|byte| b'a' + byte % 26).collect()
}

fn server() -> HostileServer {
    HostileServer::start(content(), ResponseFaultScript::honest())
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
    // The name of the part file is not longer than the file system allows.
    let long = "ä".repeat(127);
    rig.run(&["cp", &server.url(), &format!("DIR/{long}")]).ok();
    std::fs::remove_file(rig.path(&long)).unwrap();
    std::fs::write(rig.dir.path().join("mine"), "mine").unwrap();
    rig.run(&["cp", "--no-clobber", &server.url(), "DIR/mine"]).ok();
    let refused = rig.run(&["cp", "--if-none-match", &server.url(), "DIR/mine"]);
    assert_ne!(refused.exit, CommandExit::Ok);
    assert!(refused.stderr.contains("exists"), "{}", refused.stderr);
    assert_eq!(std::fs::read(rig.dir.path().join("mine")).unwrap(), b"mine");
    rig.run(&["cp", &server.url(), "DIR/mine"]).ok();
    assert!(std::fs::read(rig.dir.path().join("mine")).unwrap() == content());
    let left: Vec<_> = rig.dir.path().read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 3, "{left:?}");
}

#[test]
fn a_replaced_file_keeps_its_permissions() {
    let (rig, server) = (Rig::new(), server());
    rig.write("d/file", "old");
    let permissions = |path: &str| rig.path(path).metadata().unwrap().permissions().mode() & 0o777;
    for bits in [0o600, 0o440] {
        std::fs::set_permissions(rig.path("d/file"), Permissions::from_mode(bits)).unwrap();
        rig.run(&["cp", &server.url(), "DIR/d/"]).ok();
        assert!(std::fs::read(rig.path("d/file")).unwrap() == content());
        assert_eq!(permissions("d/file"), bits);
        rig.write("ranges", "0 10");
        rig.run(&["read", &server.url(), "--ranges", "DIR/ranges", "--output", "DIR/d/file"]).ok();
        assert_eq!((rig.path("d/file").metadata().unwrap().len(), permissions("d/file")), (10, bits));
    }
    rig.run(&["cp", &server.url(), "DIR/new"]).ok();
    assert_eq!(permissions("new"), permissions("ranges"));
}

#[test]
fn the_name_of_a_copy_is_decoded() {
    let (rig, server) = (Rig::new(), server());
    let root = server.url().replace("/file", "");
    let names = [
        ("d/100%25%20r%C3%A9el", "100% r\u{e9}el"),
        ("d/a%2Fb", "a%2Fb"),
        ("d/%FF", "%FF"),
        ("d/a b", "a b"),
    ];
    for (path, name) in names {
        rig.run(&["cp", &format!("{root}/{path}?token=1"), "DIR/named/"]).ok();
        assert!(std::fs::read(rig.dir.path().join("named").join(name)).unwrap() == content(), "{name}");
    }
    for path in ["d/%2E%2E", "d/"] {
        let refused = rig.run(&["cp", &format!("{root}/{path}"), "DIR/named/"]);
        assert!(refused.stderr.contains("does not end in a name"), "{}", refused.stderr);
    }
}

/// A server that sends a file while it is still creating the file cannot report the file's size.
#[test]
fn a_file_without_a_stated_size_is_copied_as_it_comes() {
    let (rig, server) = (Rig::new(), server());
    let unsized_file = || {
        ResponseFaultScript::honest()
            .always(ResponseFault::WholeForRange)
            .always(ResponseFault::Chunked(70_000))
    };
    server.follow(unsized_file());
    assert!(rig.run(&["cat", &server.url()]).ok().stdout.into_bytes() == content());
    rig.run(&["cp", &server.url(), "DIR/copy"]).ok();
    assert!(std::fs::read(rig.dir.path().join("copy")).unwrap() == content());
    let sum = Checksum::of(ChecksumAlgorithm::Sha256, &content()).to_base64();
    let stated = ResponseFault::Header("Repr-Digest", format!("sha-256=:{sum}:"));
    server.follow(unsized_file().always(stated.clone()));
    assert!(
        rig.run(&["cp", "--json", &server.url(), "DIR/copy"]).ok().stdout.contains("\"verified\":\"SHA256\"")
    );
    let cut = unsized_file().always(ResponseFault::CloseAt(500_000));
    let wrong = unsized_file().always(stated).always(ResponseFault::Flipped);
    // The body ends when the connection closes, so the client cannot detect a truncated body.
    let endless =
        ResponseFaultScript::honest().always(ResponseFault::WholeForRange).always(ResponseFault::UntilClose);
    for (script, words) in
        [(cut, "the connection ended"), (wrong, "SHA256"), (endless, "does not state the size")]
    {
        server.follow(script);
        let failed = rig.run(&["cp", &server.url(), "DIR/other"]);
        assert_ne!(failed.exit, CommandExit::Ok);
        assert!(failed.stderr.contains(words), "{}", failed.stderr);
        assert_eq!(rig.dir.path().read_dir().unwrap().count(), 1, "nothing is left");
    }
    let ranged = rig.run(&["cat", &server.url(), "--range", "0-5"]);
    assert!(ranged.stderr.contains("does not state the size"), "{}", ranged.stderr);
}

/// A server may compress files although the request forbids compression. Such a server then reports the size of the
/// compressed bytes.
#[test]
fn compressed_content_is_pointed_out() {
    let rig = Rig::new();
    for (coding, path, is_told) in [
        ("gzip", "file", true),
        ("x-gzip", "file.gz", false),
        ("gzip", "file.GZ?t=1", false),
        ("identity", "file", false),
    ] {
        let coded = ResponseFault::Header("Content-Encoding", coding.to_owned());
        let server = HostileServer::start(content(), ResponseFaultScript::honest().always(coded));
        let copied = rig.run(&["cp", &server.url().replace("file", path), "DIR/coded"]);
        assert_eq!(copied.exit, CommandExit::Ok, "{}", copied.stderr);
        assert_eq!(copied.stderr.contains("compressed"), is_told, "{coding} {path}: {}", copied.stderr);
    }
}

/// Returns a rig in which a copy to `DIR/copy` ended after 700,000 bytes, and the server.
fn interrupted_copy() -> (Rig, HostileServer) {
    let (rig, server) = (Rig::new(), server());
    let cut = ResponseFaultScript::honest()
        .on_requests(1..2, ResponseFault::CloseAt(700_000))
        .on_requests(2..3, ResponseFault::Status(404, None));
    server.follow(cut);
    assert_ne!(rig.run(&["cp", &server.url(), "DIR/copy"]).exit, CommandExit::Ok);
    (rig, server)
}

#[test]
fn an_interrupted_copy_goes_on_where_it_ended() {
    let (rig, server) = interrupted_copy();
    assert!(!rig.dir.path().join("copy").exists());
    server.follow(ResponseFaultScript::honest());
    rig.run(&["cp", &server.url(), "DIR/copy"]).ok();
    assert!(std::fs::read(rig.dir.path().join("copy")).unwrap() == content());
    let last = server.requests().pop().unwrap();
    assert_eq!(last.header("range"), Some("bytes=700000-1199999"));
    assert_eq!(last.header("if-range"), Some("\"version-0\""));
}

/// Any user who may write to the directory can replace the part file with a link. The copy must not write to the link's
/// target.
#[test]
fn a_copy_is_not_continued_in_the_file_of_somebody_else() {
    let (rig, server) = interrupted_copy();
    let part = rig.dir.path().join(&rig.files()[0]);
    let victim = rig.dir.path().join("victim");
    std::fs::write(&victim, "precious").unwrap();
    server.follow(ResponseFaultScript::honest());
    for is_symbolic in [true, false] {
        std::fs::remove_file(&part).unwrap();
        match is_symbolic {
            true => std::os::unix::fs::symlink(&victim, &part).unwrap(),
            false => std::fs::hard_link(&victim, &part).unwrap(),
        }
        let refused = rig.run(&["cp", &server.url(), "DIR/copy"]);
        assert_eq!(refused.exit, CommandExit::Denied, "{}", refused.stderr);
        assert!(refused.stderr.contains(".part is a link"), "{}", refused.stderr);
        assert_eq!(std::fs::read(&victim).unwrap(), b"precious");
    }
    std::fs::remove_file(&part).unwrap();
    rig.run(&["cp", &server.url(), "DIR/copy"]).ok();
}

#[test]
fn a_part_file_that_another_copy_writes_is_left_alone() {
    let (rig, server) = interrupted_copy();
    let part = std::fs::File::open(rig.dir.path().join(&rig.files()[0])).unwrap();
    part.lock().unwrap();
    server.follow(ResponseFaultScript::honest());
    let refused = rig.run(&["cp", &server.url(), "DIR/copy"]).ended(CommandExit::Unavailable);
    let says = ".part; wait until it has ended, and run the command again\n";
    assert!(refused.stderr.ends_with(says), "{}", refused.stderr);
    drop(part);
    rig.run(&["cp", &server.url(), "DIR/copy"]).ok();
}

/// The part file of another version cannot be resumed. It must not remain after a complete copy, unless another copy
/// still writes it. Files that only look similar remain.
#[test]
fn a_complete_copy_removes_the_part_files_of_earlier_copies() {
    for options in [&[][..], &["--streams", "2"], &["--no-clobber"]] {
        for is_in_use in [false, true] {
            let (rig, server) = interrupted_copy();
            let part = rig.files().remove(0);
            let used = std::fs::File::open(rig.path(&part)).unwrap();
            if is_in_use {
                used.lock().unwrap();
            }
            let similar = [".copy.0123.part", ".copy2.0123456789abcdef.part", ".other.0123456789abcdef.part"];
            similar.iter().for_each(|name| rig.write(name, "1"));
            server.follow(ResponseFaultScript::honest().always(ResponseFault::Version(1)));
            let url = server.url();
            rig.run(&[&["cp", &url, "DIR/copy"], options].concat()).ok();
            let mut left = rig.files();
            left.retain(|name| !similar.contains(&name.as_str()));
            assert_eq!(left.contains(&part), is_in_use, "{options:?}: {left:?}");
            assert_eq!(left.len(), 1 + usize::from(is_in_use), "{options:?}: {left:?}");
            assert_eq!(rig.files().len(), left.len() + similar.len(), "{options:?}");
        }
    }
}

/// The size of the body differs from the size in the response to HEAD. The body is chunked, or ends when the connection
/// closes.
#[test]
fn a_body_that_does_not_end_with_the_file_is_an_error() {
    for framing in [ResponseFault::Chunked(1_000), ResponseFault::UntilClose] {
        let (rig, server) = (Rig::new(), server());
        let longer = ResponseFaultScript::honest()
            .on_method("GET", framing)
            .on_method("GET", ResponseFault::BodyOff(11));
        server.follow(longer);
        for words in
            [&["cat", &server.url()][..], &["cp", &server.url(), "DIR/copy"], &["cp", &server.url(), "-"]]
        {
            let ran = rig.run(words);
            assert_ne!(ran.exit, CommandExit::Ok, "{words:?}");
            assert!(ran.stderr.contains("continues after"), "{words:?}: {}", ran.stderr);
        }
        assert_eq!(rig.files(), Vec::<String>::new());
    }
}

/// A failed copy keeps its part file only if the next copy can resume from that file. In this case, a message names the
/// file. If the next copy cannot resume, no file remains.
#[test]
fn a_copy_that_fails_leaves_nothing_that_is_of_no_use() {
    let cut = || {
        ResponseFaultScript::honest()
            .on_requests(1..2, ResponseFault::CloseAt(700_000))
            .on_requests(2..100, ResponseFault::Status(404, None))
    };
    let (rig, server) = (Rig::new(), server());
    server.follow(cut());
    let kept = rig.run(&["cp", &server.url(), "DIR/copy"]);
    assert_ne!(kept.exit, CommandExit::Ok);
    let files = rig.files();
    assert!(
        files.len() == 1 && kept.stderr.contains(&format!("{}; run the same command", files[0])),
        "{}",
        kept.stderr
    );
    server.follow(ResponseFaultScript::honest());
    rig.run(&["cp", &server.url(), "DIR/copy"]).ok();
    assert_eq!(rig.files(), ["copy"]);
    for script in [
        cut().always(ResponseFault::NoETag),
        ResponseFaultScript::honest().on_requests(1..100, ResponseFault::Status(404, None)),
        ResponseFaultScript::honest()
            .on_requests(1..2, ResponseFault::CloseAt(700_000))
            .on_requests(2..100, ResponseFault::Version(3)),
    ] {
        let (rig, server) = (Rig::new(), self::server());
        server.follow(script.clone());
        let failed = rig.run(&["cp", &server.url(), "DIR/copy"]);
        assert_ne!(failed.exit, CommandExit::Ok);
        assert_eq!(rig.files(), Vec::<String>::new(), "{script:?}: {}", failed.stderr);
    }
}

/// Tests Ctrl-C before the first byte of a copy, for a copy that can be resumed and for a copy that cannot be resumed.
#[test]
fn an_interrupted_copy_leaves_nothing_that_is_of_no_use() {
    for script in [ResponseFaultScript::honest(), ResponseFaultScript::honest().always(ResponseFault::NoETag)]
    {
        let rig = Rig::new();
        let server = HostileServer::start(content(), script);
        rig.interrupt.raise();
        assert_ne!(rig.run(&["cp", &server.url(), "DIR/copy"]).exit, CommandExit::Ok);
        assert_ne!(rig.run(&["cp", "--streams", "2", &server.url(), "DIR/copy"]).exit, CommandExit::Ok);
        assert_eq!(rig.files(), Vec::<String>::new());
    }
}

/// After a second Ctrl-C, for example while no bytes arrive, the process must end immediately. Only resumable files may
/// remain.
#[test]
fn a_copy_that_is_ended_by_signals_says_what_it_leaves() {
    for (script, is_kept) in [
        (ResponseFaultScript::honest(), true),
        (ResponseFaultScript::honest().always(ResponseFault::NoETag), false),
    ] {
        let rig = Rig::new();
        let server =
            HostileServer::start(content(), script.on_requests(1..2, ResponseFault::StallAt(700_000)));
        let copying = std::process::Command::new(env!("CARGO_BIN_EXE_fordway"))
            .args(["cp", "--metalink", "none", &server.url()])
            .arg(rig.path("copy"))
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
        let has_part = || {
            rig.files().iter().any(|name| rig.path(name).metadata().is_ok_and(|about| about.len() == 700_000))
        };
        while !has_part() {
            assert!(std::time::Instant::now() < deadline, "{:?}", rig.files());
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        let pid = rustix::process::Pid::from_child(&copying);
        while rustix::process::kill_process(pid, rustix::process::Signal::INT).is_ok()
            && rustix::process::test_kill_process(pid).is_ok()
            && !std::fs::read_to_string(format!("/proc/{}/stat", copying.id()))
                .unwrap_or_default()
                .contains(") Z ")
        {
            assert!(std::time::Instant::now() < deadline);
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        let ended = copying.wait_with_output().unwrap();
        assert_eq!(ended.status.code(), Some(130));
        let said = String::from_utf8(ended.stderr).unwrap();
        assert_eq!(
            (rig.files().len(), said.contains("same command again to resume")),
            (usize::from(is_kept), is_kept),
            "{said}"
        );
    }
}

#[test]
fn a_part_of_another_version_is_not_used() {
    let (rig, server) = interrupted_copy();
    server.follow(ResponseFaultScript::honest().always(ResponseFault::Version(1)));
    rig.run(&["cp", &server.url(), "DIR/copy"]).ok();
    let changed: Vec<u8> = content().iter().map(|byte| byte ^ 1).collect();
    assert!(std::fs::read(rig.dir.path().join("copy")).unwrap() == changed);
}

#[test]
fn what_web_servers_cannot_do_is_said() {
    let (rig, server) = (Rig::new(), server());
    let url = server.url();
    for (words, hint) in [
        (vec!["du", &url], "does not support the web address"),
        (vec!["cp", &url, "s3://bkt/k"], "copy it to a file first"),
        (vec!["cp", "s3://bkt/k", &url], "copy it to a file first"),
        (vec!["cp", &url, "/dev/null"], "is not a file"),
    ] {
        let refused = rig.run(&words);
        assert_ne!(refused.exit, CommandExit::Ok, "{words:?}");
        assert!(refused.stderr.contains(hint), "{words:?}: {}", refused.stderr);
    }
    assert_eq!(server.requests().len(), 0);
}

#[test]
fn a_copy_that_has_not_the_digest_is_made_once_more() {
    let rig = Rig::new();
    let sum = Checksum::of(ChecksumAlgorithm::Sha256, &content()).to_base64();
    let stated =
        || ResponseFaultScript::honest().always(ResponseFault::Header("Digest", format!("SHA-256={sum}")));
    let server = HostileServer::start(content(), stated().on_requests(1..2, ResponseFault::Flipped));
    let copied = rig.run(&["cp", "--json", &server.url(), "DIR/copy"]).ok();
    assert!(copied.stdout.contains(r#""verified":"SHA256""#), "{}", copied.stdout);
    assert!(std::fs::read(rig.dir.path().join("copy")).unwrap() == content());
    assert_eq!(server.requests().len(), 3, "HEAD, and two copies");
    server.follow(stated().always(ResponseFault::Flipped));
    let failed = rig.run(&["cp", "--metalink", "none", &server.url(), "DIR/other"]);
    assert_eq!(failed.exit, CommandExit::Corrupt);
    assert!(failed.stderr.contains("SHA256 that the server states"), "{}", failed.stderr);
    assert_eq!(server.requests().len(), 6, "tried twice");
    let left: Vec<_> = rig.dir.path().read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["copy"]);
    assert_eq!(rig.run(&["cat", &server.url()]).exit, CommandExit::Corrupt);
}

/// A copy over several connections consists of ranges, so the digest comes from the response to a HEAD request.
#[test]
fn a_copy_over_several_connections_has_the_digest_of_the_server() {
    let digest = |data: &[u8]| Checksum::of(ChecksumAlgorithm::Sha256, data).to_base64();
    let of_s3 = |data: &[u8]| ("x-amz-checksum-sha256", digest(data));
    let fields = |data: &[u8]| ("Repr-Digest", format!("sha-256=:{}:", digest(data)));
    let instance = |data: &[u8]| ("Digest", format!("SHA-256={}", digest(data)));
    let stating = |(name, value)| ResponseFaultScript::honest().always(ResponseFault::Header(name, value));
    for streams in ["1", "2"] {
        for (right, wrong) in [
            (of_s3(&content()), of_s3(b"other")),
            (fields(&content()), fields(b"other")),
            (instance(&content()), instance(b"other")),
        ] {
            let (rig, server) = (Rig::new(), HostileServer::start(content(), stating(right)));
            let url = server.url();
            let copied = rig.run(&["cp", "--json", "--streams", streams, &url, "DIR/copy"]).ok();
            assert!(copied.stdout.contains(r#""verified":"SHA256""#), "{}", copied.stdout);
            assert!(std::fs::read(rig.path("copy")).unwrap() == content());
            rig.run(&["cat", "--streams", streams, &url]).ok();
            server.follow(stating(wrong));
            let words = ["cp", "--metalink", "none", "--streams", streams, &url, "DIR/other"];
            let failed = rig.run(&words).ended(CommandExit::Corrupt);
            assert!(failed.stderr.contains("SHA256 that the server states"), "{}", failed.stderr);
            assert_eq!(rig.files(), ["copy"]);
            rig.run(&["cat", "--streams", streams, &url]).ended(CommandExit::Corrupt);
        }
    }
}

/// A server that does not state a digest, or refuses a request for a digest, must not make the command fail.
#[test]
fn a_copy_over_several_connections_needs_no_digest() {
    for script in [
        ResponseFaultScript::honest(),
        ResponseFaultScript::honest().always(ResponseFault::RefusesDigests(400)),
    ] {
        let (rig, server) = (Rig::new(), HostileServer::start(content(), script));
        let copied = rig.run(&["cp", "--json", "--streams", "2", &server.url(), "DIR/copy"]).ok();
        assert!(copied.stdout.contains(r#""verified":null"#), "{}", copied.stdout);
        assert!(std::fs::read(rig.path("copy")).unwrap() == content());
    }
}

/// Users need `--no-verify` exactly when a server states a wrong digest.
#[test]
fn a_wrong_digest_is_ignored_on_request() {
    let wrong = ResponseFault::Header("Repr-Digest", format!("sha-256=:{}=:", "A".repeat(43)));
    let whole = || ResponseFaultScript::honest().always(wrong.clone());
    let unsized_file = || whole().always(ResponseFault::WholeForRange).always(ResponseFault::Chunked(70_000));
    let (rig, server) = (Rig::new(), server());
    let url = server.url();
    let other = format!("{url}2");
    let streams = ["cp", &url, "DIR/copy", "--streams", "2"];
    for words in [&["cp", &url, "DIR/copy"][..], &["cat", &url], &["cp", &url, "-"], &streams] {
        for script in [whole(), unsized_file()] {
            server.follow(script.clone());
            rig.run(words).ended(CommandExit::Corrupt);
            let ran = rig.run(&[words, &["--no-verify"]].concat()).ok();
            let copied = if words.contains(&"DIR/copy") {
                std::fs::read(rig.path("copy")).unwrap()
            } else {
                ran.stdout.into_bytes()
            };
            assert!(copied == content(), "{words:?}");
        }
    }
    server.follow(whole());
    rig.run(&["cp", "--metalink", "none", &url, &other, "DIR/two/"]).ended(CommandExit::Corrupt);
    rig.run(&["cp", "--metalink", "none", "--no-verify", &url, &other, "DIR/two/"]).ok();
    assert!(std::fs::read(rig.path("two/file2")).unwrap() == content());
}

/// With `none`, the server is not queried for replicas, even if several files are copied.
#[test]
fn replicas_of_several_files_are_not_searched_on_request() {
    for (words, is_searched) in [(&["cp"][..], true), (&["cp", "--metalink", "none"], false)] {
        let gone = ResponseFaultScript::honest().always(ResponseFault::Status(404, None));
        let (rig, server) = (Rig::new(), HostileServer::start(content(), gone));
        let urls = [server.url(), format!("{}2", server.url())];
        rig.run(&[words, &[&urls[0], &urls[1], "DIR/d/"]].concat()).ended(CommandExit::NotFound);
        let asks = |request: &RecordedRequest| request.target.contains("meta");
        assert_eq!(server.requests().iter().any(asks), is_searched, "{words:?}");
    }
}

#[test]
fn options_without_effect_on_web_addresses_are_refused() {
    let (rig, server) = (Rig::new(), server());
    let (url, other) = (server.url(), format!("{}2", server.url()));
    rig.put("k", "k");
    rig.write("list", &url);
    for (words, named) in [
        (&["cp", "--metalink", "DIR/list", &url, &other, "DIR/d/"][..], "--metalink"),
        (&["cp", "-r", "--metalink", "DIR/list", &url, "DIR/d"], "--metalink"),
        (&["cp", "--metalink", "DIR/list", "s3://bkt/k", "DIR/d/"], "--metalink"),
        (&["cp", "--streams", "2", "s3://bkt/k", "s3://bkt/l"], "--streams"),
        (&["cp", "--location", "ch", "DIR/list", &url], "--location"),
        (&["cp", "--version-id", "v", &url, "DIR/d"], "--version-id"),
        (&["cp", "--version-id", "v", &url, &other, "DIR/d/"], "--version-id"),
        (&["cp", "--content-type", "text/x", &url, "DIR/d"], "metadata"),
        (&["cp", "--content-type", "text/x", &url, &other, "DIR/d/"], "metadata"),
        (&["cp", "--checksum-algorithm", "SHA1", &url, "DIR/d"], "--checksum-algorithm"),
        (&["cp", "--checksum-algorithm", "SHA1", &url, &other, "DIR/d/"], "--checksum-algorithm"),
        (&["sync", "DIR", "s3://bkt/s", "--exact-timestamps"], "--exact-timestamps"),
    ] {
        let ran = rig.run(words).ended(CommandExit::Usage);
        assert!(ran.stderr.contains(named), "{words:?}: {}", ran.stderr);
    }
    assert_eq!((rig.files(), rig.keys()), (vec!["list".to_owned()], vec!["k".to_owned()]));
    // The filters also apply to a single file.
    assert_eq!(rig.run(&["cp", "--exclude", "f*", &url, "DIR/d/"]).ok().stdout, "");
    rig.run(&["cp", "--exclude", "x*", &url, "DIR/d/"]).ok();
    assert_eq!(rig.files(), ["d/file", "list"]);
}

#[test]
fn a_dry_run_makes_the_first_checks() {
    let (rig, server) = (Rig::new(), server());
    let (url, other) = (server.url(), format!("{}2", server.url()));
    for words in [&["cp", "--dry-run", &url, "DIR/d/"][..], &["cp", "--dry-run", &url, &other, "DIR/d/"]] {
        let ran = rig.run(words).ok();
        assert_eq!(ran.stdout.lines().count(), words.len() - 3, "{}", ran.stdout);
        assert!(ran.stdout.starts_with("(dryrun) copy: "), "{}", ran.stdout);
    }
    assert!(rig.files().is_empty());
    std::fs::create_dir_all(rig.path("d/file")).unwrap();
    rig.run(&["cp", "--dry-run", &url, &other, "DIR/d/"]).ended(CommandExit::Usage);
    rig.run(&["cp", "--dry-run", "DIR/none", &url]).ended(CommandExit::NotFound);
    server.follow(ResponseFaultScript::honest().always(ResponseFault::Status(404, None)));
    rig.run(&["cp", "--dry-run", &url, &other, "DIR/e/"]).ended(CommandExit::NotFound);
}
