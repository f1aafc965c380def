//! Tests `cp`, `cat` and `read` on files with several replicas, and `metalink`.

use fordway_command::CommandExit;
use fordway_http::replicas::MetalinkCache;
use fordway_http::vector::SessionOptions;
use fordway_testkit::hostile::{HostileServer, ResponseFault, ResponseFaultScript};

use crate::support::{Ran, Rig};

fn content() -> Vec<u8> {
    (0..300_000_u32).flat_map(u32::to_le_bytes).map(|byte| b'a' + byte % 26).collect()
}

fn server(script: ResponseFaultScript) -> HostileServer {
    HostileServer::start(content(), script)
}

/// Returns a rig whose `m.meta4` describes the content at these servers.
fn rig(servers: &[&HostileServer]) -> Rig {
    let mut rig = Rig::new();
    rig.input = "90 10\n1100000 3\n".into();
    rig.write("file", content());
    let urls: Vec<String> = servers.iter().map(|server| server.url()).collect();
    let mut words = vec!["metalink", "make", "DIR/file", "--out", "DIR/m.meta4"];
    urls.iter().for_each(|url| words.extend(["--replica", url]));
    made(&rig.run(&words));
    std::fs::remove_file(rig.path("file")).unwrap();
    rig
}

fn made(ran: &Ran) {
    assert!(ran.exit == CommandExit::Ok && ran.stdout.starts_with("made: "), "{}{}", ran.stdout, ran.stderr);
}

fn left(rig: &Rig) -> Vec<String> {
    rig.files().into_iter().filter(|name| name != "m.meta4").collect()
}

#[test]
fn what_is_described_is_copied_shown_and_read() {
    let (bad, good) = (
        server(ResponseFaultScript::honest().always(ResponseFault::Status(500, None))),
        server(ResponseFaultScript::honest()),
    );
    let rig = rig(&[&bad, &good]);
    rig.run(&["cp", "--metalink", "DIR/m.meta4", "DIR/copy"]).ok();
    rig.run(&["get", "--metalink", "DIR/m.meta4", "DIR/"]).ok();
    for name in ["copy", "file"] {
        assert!(std::fs::read(rig.path(name)).unwrap() == content(), "{name}");
    }
    assert_eq!(left(&rig), ["copy", "file"]);
    assert!(rig.run(&["cat", "--metalink", "DIR/m.meta4"]).ok().stdout.into_bytes() == content());
    let tail = rig.run(&["cat", "--metalink", "DIR/m.meta4", "--range", "-5"]).ok();
    assert_eq!(tail.stdout.as_bytes(), &content()[content().len() - 5..]);
    let wanted = [&content()[90..100], &content()[1_100_000..1_100_003]].concat();
    for options in [&[][..], &["--no-verify"], &["--streams", "2"], &["--window", "2", "--per-call", "1"]] {
        let words = [&["read", "--metalink", "DIR/m.meta4", "--ranges", "-"], options].concat();
        assert_eq!(rig.run(&words).ok().stdout.as_bytes(), wanted, "{options:?}");
    }
    rig.run(&["read", "--metalink", "DIR/m.meta4", "--sequential", "64KiB", "--output", "DIR/all"]).ok();
    assert!(std::fs::read(rig.path("all")).unwrap() == content());
}

#[test]
fn a_copy_that_cannot_be_right_is_none() {
    let corrupt = server(ResponseFaultScript::honest().always(ResponseFault::FlippedAt(800_000)));
    let rig = rig(&[&corrupt]);
    let ran = rig.run(&["cp", "--metalink", "DIR/m.meta4", "DIR/copy"]).ended(CommandExit::Corrupt);
    assert!(ran.stderr.contains("digest") && ran.stderr.contains(&corrupt.url()), "{}", ran.stderr);
    assert!(!rig.path("copy").exists());
    rig.run(&["cat", "--metalink", "DIR/m.meta4"]).ended(CommandExit::Corrupt);
    rig.run(&["read", "--metalink", "DIR/m.meta4", "--ranges", "-"]).ok();
    rig.run(&["cp", "--metalink", "DIR/nothing.meta4", "DIR/copy"]).ended(CommandExit::NotFound);
}

/// If a replica has a different file, the command must report corrupt data, with advice for downloads instead of
/// uploads.
#[test]
fn a_replica_with_another_file_is_wrong_data() {
    let other = HostileServer::start(content()[..1_000_000].to_vec(), ResponseFaultScript::honest());
    let flipped = server(ResponseFaultScript::honest().always(ResponseFault::FlippedAt(800_000)));
    for bad in [&other, &flipped] {
        let ran =
            rig(&[bad]).run(&["cp", "--metalink", "DIR/m.meta4", "DIR/copy"]).ended(CommandExit::Corrupt);
        assert!(!ran.stderr.contains("send the data"), "{}", ran.stderr);
        assert!(ran.stderr.contains("check the digest"), "{}", ran.stderr);
    }
}

#[test]
fn a_metalink_is_understood_as_what_it_describes() {
    let good = server(ResponseFaultScript::honest());
    let rig = rig(&[&good]);
    let document = std::fs::read_to_string(rig.path("m.meta4")).unwrap();
    let holder = server(ResponseFaultScript::honest().always(ResponseFault::Document(
        "x.meta4",
        "text/plain",
        document,
    )));
    let url = holder.url().replace("/file", "/x.meta4");
    rig.run(&["cp", &url, "DIR/"]).ok();
    assert!(std::fs::read(rig.path("x")).unwrap() == content());
    assert!(rig.run(&["cat", &url]).ok().stdout.into_bytes() == content());
}

/// A failing server names another replica, from which the program then reads.
#[test]
fn the_server_is_asked_when_it_fails() {
    let good = server(ResponseFaultScript::honest());
    let rig = rig(&[&good]);
    let document = std::fs::read_to_string(rig.path("m.meta4")).unwrap();
    let known = ResponseFault::Document("file.meta4", "application/metalink4+xml", document);
    let origin = server(ResponseFaultScript::honest());
    for failing in [
        ResponseFaultScript::honest().on_requests(0..1_000, ResponseFault::Status(503, None)),
        ResponseFaultScript::honest().on_requests(1..1_000, ResponseFault::CloseAt(0)),
        ResponseFaultScript::honest()
            .on_requests(1..2, ResponseFault::CloseAt(600_000))
            .on_requests(2..1_000, ResponseFault::Status(500, None)),
    ] {
        let origin = server(failing.always(known.clone()));
        rig.run(&["cp", &origin.url(), "DIR/copy"]).ok();
        assert!(std::fs::read(rig.path("copy")).unwrap() == content());
        assert_eq!(left(&rig), ["copy"]);
    }
    let failing = || {
        ResponseFaultScript::honest()
            .on_requests(1..1_000, ResponseFault::CloseAt(600_000))
            .always(known.clone())
    };
    origin.follow(failing());
    let cut = server(failing());
    assert!(rig.run(&["cat", &cut.url()]).ok().stdout.into_bytes() == content());
    let refusing = server(
        ResponseFaultScript::honest()
            .on_requests(1..1_000, ResponseFault::Status(500, None))
            .always(known.clone()),
    );
    let found = rig.run(&["read", &refusing.url(), "--ranges", "-", "--per-call", "1", "--window", "2"]).ok();
    assert_eq!(found.stdout.as_bytes(), [&content()[90..100], &content()[1_100_000..1_100_003]].concat());
    let alone = server(ResponseFaultScript::honest().always(ResponseFault::Status(503, None)).always(known));
    rig.run(&["cp", "--metalink", "none", &alone.url(), "DIR/copy"]).ended(CommandExit::Unavailable);
}

/// If the other replica does not have the version of the bytes that were already written, `cat` must fail.
#[test]
fn cat_does_not_join_two_versions() {
    let newer: Vec<u8> = content().iter().map(|byte| byte.to_ascii_uppercase()).collect();
    let other = HostileServer::start(newer.clone(), ResponseFaultScript::honest());
    let mut rig = Rig::new();
    rig.write("file", newer);
    made(&rig.run(&["metalink", "make", "DIR/file", "--out", "DIR/m.meta4", "--replica", &other.url()]));
    let document = std::fs::read_to_string(rig.path("m.meta4")).unwrap();
    let cut = server(
        ResponseFaultScript::honest()
            .on_requests(1..2, ResponseFault::CloseAt(600_000))
            .on_requests(2..1_000, ResponseFault::Status(500, None))
            .always(ResponseFault::Document("file.meta4", "application/metalink4+xml", document)),
    );
    rig.input.clear();
    let ran = rig.run(&["cat", &cut.url()]).ended(CommandExit::Corrupt);
    assert!(ran.stderr.contains("differ from the bytes written"), "{}", ran.stderr);
    assert!(ran.stdout.bytes().all(|byte| byte.is_ascii_lowercase()), "bytes of both versions");
}

/// Returns a Metalink for a version of the file at this server.
fn described(rig: &Rig, content: &[u8], at: &HostileServer) -> String {
    rig.write("old", content);
    let url = at.url();
    let make = ["metalink", "make", "DIR/old", "--out", "DIR/old.meta4", "--replica", &url];
    made(&rig.run(&make));
    std::fs::remove_file(rig.path("old")).unwrap();
    let document = std::fs::read_to_string(rig.path("old.meta4")).unwrap();
    std::fs::remove_file(rig.path("old.meta4")).unwrap();
    document
}

/// A Metalink that was not renewed with its file leads to replicas of an older version.
#[test]
fn a_metalink_of_another_version_does_not_replace_the_file() {
    let old: Vec<u8> = content()[..1_000_000].to_vec();
    let other = HostileServer::start(old.clone(), ResponseFaultScript::honest());
    let rig = Rig::new();
    let known =
        ResponseFault::Document("file.meta4", "application/metalink4+xml", described(&rig, &old, &other));
    let link = ResponseFault::Header(
        "Link",
        "<file.meta4>; rel=describedby; type=\"application/metalink4+xml\"".to_owned(),
    );
    let healthy = server(ResponseFaultScript::honest().always(known.clone()).always(link));
    let ran = rig.run(&["cat", &healthy.url()]).ended(CommandExit::Ok);
    assert!(ran.stdout.into_bytes() == content(), "the old version");
    assert!(ran.stderr.contains("1000000 bytes, but the file has 1200000"), "{}", ran.stderr);
    rig.run(&["cp", &healthy.url(), "DIR/copy"]).ended(CommandExit::Ok);
    assert!(std::fs::read(rig.path("copy")).unwrap() == content());
    assert_eq!(other.requests().len(), 0);
    // The download breaks off, and only replicas of the older version are left.
    let cut = server(
        ResponseFaultScript::honest().on_requests(1..1_000, ResponseFault::CloseAt(300)).always(known),
    );
    let ran = rig.run(&["cp", &cut.url(), "DIR/cut"]).ended(CommandExit::Unavailable);
    assert!(ran.stderr.contains("1000000 bytes, but the file has 1200000"), "{}", ran.stderr);
    assert!(!rig.path("cut").exists());
}

/// The replicas have another version of the same size, so only the bytes that have arrived show the difference.
#[test]
fn cp_does_not_go_on_with_another_version() {
    let newer: Vec<u8> = content().iter().map(|byte| byte.to_ascii_uppercase()).collect();
    let other = HostileServer::start(newer.clone(), ResponseFaultScript::honest());
    let rig = Rig::new();
    let document = described(&rig, &newer, &other);
    let without_hashes: String =
        document.lines().filter(|line| !line.contains("hash") && !line.contains("pieces")).collect();
    for document in [document.clone(), without_hashes] {
        let cut = server(
            ResponseFaultScript::honest()
                .on_requests(1..2, ResponseFault::CloseAt(600_000))
                .on_requests(2..1_000, ResponseFault::Status(500, None))
                .always(ResponseFault::Document("file.meta4", "application/metalink4+xml", document)),
        );
        let ran = rig.run(&["cp", &cut.url(), "DIR/copy"]).ended(CommandExit::Corrupt);
        assert!(ran.stderr.contains("the replicas differ"), "{}", ran.stderr);
        assert_eq!(rig.files(), Vec::<String>::new());
    }
}

/// A server that is up and does not have a file may have removed it. In that case, the cached replicas must not be
/// used.
#[test]
fn a_removed_file_is_not_read_from_cached_replicas() {
    let other = server(ResponseFaultScript::honest());
    let mut rig = Rig::new();
    let document = described(&rig, &content(), &other);
    let cache = MetalinkCache::new(rig.path("cache"));
    rig.metalinks = Some(cache.clone());
    rig.web = Some(SessionOptions { max_retries: 0, ..SessionOptions::default() });
    let sick = ResponseFaultScript::honest()
        .always(ResponseFault::Document("file.meta4", "application/metalink4+xml", document))
        .always(ResponseFault::Status(500, None));
    let origin = server(sick);
    rig.run(&["cat", &origin.url()]).ok();
    assert!(cache.find(&origin.url()).is_some());
    origin.follow(ResponseFaultScript::honest().always(ResponseFault::Status(500, None)));
    let cached = rig.run(&["cat", &origin.url()]).ended(CommandExit::Ok);
    assert!(cached.stderr.contains("with a Metalink from the cache"), "{}", cached.stderr);
    for status in [404, 410] {
        origin.follow(ResponseFaultScript::honest().always(ResponseFault::Status(status, None)));
        let ran = rig.run(&["cat", &origin.url()]).ended(CommandExit::NotFound);
        assert_eq!(ran.stdout, "");
        assert!(cache.find(&origin.url()).is_none(), "{status}");
    }
}

#[test]
fn streams_copy_one_file() {
    let one = server(ResponseFaultScript::honest());
    let rig = rig(&[&one]);
    rig.run(&["cp", &one.url(), "DIR/copy", "--streams", "3"]).ok();
    rig.run(&["cp", "--metalink", "DIR/m.meta4", "DIR/other", "--streams", "3"]).ok();
    for name in ["copy", "other"] {
        assert!(std::fs::read(rig.path(name)).unwrap() == content(), "{name}");
    }
    assert_eq!(left(&rig), ["copy", "other"]);
}

#[test]
fn metalinks_are_shown() {
    let good = server(ResponseFaultScript::honest());
    let rig = rig(&[&good]);
    let text = rig.run(&["metalink", "show", "DIR/m.meta4"]).ok().stdout;
    for part in ["File: file", "(1200000 bytes)", "sha-256: ", "Pieces: 5 of 262144 bytes", &good.url()] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let json = rig.run(&["metalink", "show", "DIR/m.meta4", "--json"]).ok().stdout;
    let shown: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&shown["size_bytes"], &shown["pieces"]["count"]), (&1_200_000.into(), &5.into()));
    assert_eq!(shown["replicas"][0]["priority"], 1);
    let asked = rig.run(&["metalink", "show", &good.url()]);
    assert_ne!(asked.exit, CommandExit::Ok);
    assert!(asked.stderr.contains("no replicas of"), "{}", asked.stderr);
}

/// A Metalink from a server is not used for the files of other servers. Only the user can list other servers' files.
#[test]
fn a_metalink_from_a_server_is_not_cached_for_another_server() {
    let (one, other) = (server(ResponseFaultScript::honest()), server(ResponseFaultScript::honest()));
    let mut rig = rig(&[&one, &other]);
    rig.metalinks = Some(MetalinkCache::new(rig.path("cache")));
    rig.web = Some(SessionOptions { max_retries: 0, ..SessionOptions::default() });
    let holder =
        HostileServer::start(std::fs::read(rig.path("m.meta4")).unwrap(), ResponseFaultScript::honest());
    rig.run(&["cp", "--metalink", &holder.url(), "DIR/copy"]).ok();
    rig.run(&["metalink", "show", "DIR/m.meta4"]).ok();
    let url = one.url();
    drop(one);
    let ran = rig.run(&["cat", &url]).ended(CommandExit::Unavailable);
    assert_eq!(ran.stdout, "");
    assert!(!rig.path("cache").exists());
    rig.run(&["cat", "--metalink", "DIR/m.meta4"]).ok();
    let ran = rig.run(&["cat", &url]).ended(CommandExit::Ok);
    assert!(ran.stdout.into_bytes() == content());
    assert!(ran.stderr.contains("with a Metalink from the cache"), "{}", ran.stderr);
}

#[test]
fn places_of_several_files_are_directories() {
    let rig = Rig::new();
    rig.write("a b", "1");
    rig.write("c", "");
    let words = ["metalink", "make", "DIR/a b", "DIR/c", "--out", "-"];
    let made = rig.run(&[&words[..], &["--replica", "http://h/d/@CH"]].concat()).ok().stdout;
    assert!(made.contains("<url location=\"ch\" priority=\"1\">http://h/d/a%20b</url>"), "{made}");
    for (place, why) in [("http://h/f", "is the URL of one file"), ("h/f", "is not a URL")] {
        let refused = rig.run(&[&words[..], &["--replica", place]].concat()).ended(CommandExit::Usage);
        assert!(refused.stderr.contains(why), "{}", refused.stderr);
    }
}

#[test]
fn a_metalink_is_made_only_if_a_reader_would_accept_it() {
    let rig = Rig::new();
    rig.write("file", "0123456789");
    let make = |file: &str, replica: &str, more: &[&str]| {
        let words = ["metalink", "make", file, "--replica", replica, "--out", "DIR/m.meta4"];
        rig.run(&[&words[..], more].concat())
    };
    for (replica, why) in [("ftp://h/d/", "ftp"), ("http://user@host/", "user or password")] {
        let refused = make("DIR/file", replica, &[]).ended(CommandExit::Usage);
        assert!(refused.stderr.contains(why), "{}", refused.stderr);
    }
    for name in ["a\\b", "a\u{1}b"] {
        rig.write(name, "x");
        make(&format!("DIR/{name}"), "http://h/d/", &[]).ended(CommandExit::Usage);
    }
    assert!(!rig.path("m.meta4").exists());
    let name = "tab\tand\nlines\r";
    rig.write(name, "x");
    made(&make(&format!("DIR/{name}"), "http://h/d/", &[]));
    let shown = rig.run(&["metalink", "show", "DIR/m.meta4", "--json"]).ok().stdout;
    assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).unwrap()["name"], name);
    // A URL that the user specifies twice counts as one replica.
    made(&make("DIR/file", "http://h/d/", &["--replica", "http://h/d/"]));
}

#[test]
fn pieces_have_the_size_that_is_asked_for() {
    let rig = Rig::new();
    rig.write("file", vec![7; 1_000_000]);
    let make = |size: &str| {
        let words = ["metalink", "make", "DIR/file", "--replica", "http://h/d/", "--out", "DIR/m.meta4"];
        rig.run(&[&words[..], &["--piece-size", size]].concat())
    };
    let refused = make("0").ended(CommandExit::Usage);
    assert!(refused.stderr.contains("use --piece-size 1 or more"), "{}", refused.stderr);
    for (size, count) in [("300000", 4), ("1000000", 1), ("9999999", 1), ("1000", 1000), ("64", 15_625)] {
        made(&make(size));
        let shown = rig.run(&["metalink", "show", "DIR/m.meta4", "--json"]).ok().stdout;
        let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
        assert_eq!(shown["pieces"]["count"], count, "{size}");
    }
    let sparse = std::fs::File::create(rig.path("file")).unwrap();
    sparse.set_len(1 << 30).unwrap();
    let refused = make("1").ended(CommandExit::Usage);
    assert!(refused.stderr.contains("too small"), "{}", refused.stderr);
}

#[test]
fn a_pipe_is_not_described() {
    let rig = Rig::new();
    rustix::fs::mkfifoat(rustix::fs::CWD, rig.path("pipe"), rustix::fs::Mode::RWXU).unwrap();
    for name in ["DIR/pipe", "DIR/"] {
        let refused = rig.run(&["metalink", "make", name, "--replica", "http://h/d/"]);
        let refused = refused.ended(CommandExit::Usage);
        assert!(refused.stderr.contains("not a regular file"), "{}", refused.stderr);
    }
}

/// If one replica fails during the copy, the remaining bytes are read from the other replicas. If all replicas fail,
/// the copy leaves no part file, because a later copy could mistake its content for correct content.
#[test]
fn replicas_that_fail_leave_no_part() {
    let good = server(ResponseFaultScript::honest());
    let rig = rig(&[&good]);
    let document = std::fs::read_to_string(rig.path("m.meta4")).unwrap();
    let known = ResponseFault::Document("file.meta4", "application/metalink4+xml", document);
    let breaks_off = ResponseFaultScript::honest()
        .on_requests(1..2, ResponseFault::CloseAt(600_000))
        .on_requests(2..1_000, ResponseFault::Status(500, None));
    let origin = server(breaks_off.always(known));
    good.follow(ResponseFaultScript::honest().always(ResponseFault::FlippedAt(800_000)));
    rig.run(&["cp", &origin.url(), "DIR/copy"]).ended(CommandExit::Corrupt);
    assert_eq!(left(&rig), Vec::<String>::new(), "nothing is left");
    good.follow(ResponseFaultScript::honest());
    rig.run(&["cp", &origin.url(), "DIR/copy"]).ok();
    assert!(std::fs::read(rig.path("copy")).unwrap() == content());
}

/// The server responds to the first two requests and stalls in all later requests, so that an incomplete download
/// remains.
#[test]
fn a_copy_that_was_killed_is_gone_on_with() {
    let large = content().repeat(10);
    let stalling = ResponseFaultScript::honest().on_requests(2..1_000, ResponseFault::StallAt(100));
    let server = HostileServer::start(large.clone(), stalling);
    let rig = Rig::new();
    rig.write("source/file", &large);
    let words = ["metalink", "make", "DIR/source/file", "--out", "DIR/m.meta4", "--replica"];
    made(&rig.run(&[&words[..], &[&server.url()]].concat()));
    let (metalink, copy) = (rig.path("m.meta4"), rig.path("copy"));
    let mut killed = std::process::Command::new(env!("CARGO_BIN_EXE_fordway"))
        .args(["cp", "--streams", "1", "--metalink"])
        .args([&metalink, &copy])
        .env("XDG_CACHE_HOME", rig.path("cache"))
        .spawn()
        .unwrap();
    let has_begun = || {
        let part = rig.files().into_iter().find(|name| name.starts_with(".copy."));
        part.is_some_and(|name| std::fs::read(rig.path(&name)).unwrap().starts_with(&large[..1_000]))
    };
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while !has_begun() {
        assert!(std::time::Instant::now() < deadline, "{:?}", rig.files());
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    killed.kill().unwrap();
    killed.wait().unwrap();
    assert!(!copy.exists());
    server.follow(ResponseFaultScript::honest());
    let told = rig.run(&["cp", "--metalink", "DIR/m.meta4", "DIR/copy", "--json"]).ok().stdout;
    let event: serde_json::Value = serde_json::from_str(&told).unwrap();
    assert!(event["resumed_bytes"].as_u64().unwrap() > 1_000_000, "{event}");
    assert!(std::fs::read(copy).unwrap() == large);
    assert!(!rig.files().iter().any(|name| name.starts_with(".copy.")), "{:?}", rig.files());
}

/// The name comes from a server.
#[test]
fn a_name_in_a_metalink_forges_no_line() {
    let rig = Rig::new();
    let file = "<file name=\"a&#10;      Size: 1\"><url>http://h/a</url></file>";
    rig.write("m.meta4", format!("<metalink xmlns=\"urn:ietf:params:xml:ns:metalink\">{file}</metalink>"));
    let ran = rig.run(&["metalink", "show", "DIR/m.meta4"]);
    assert!(!ran.stdout.lines().any(|line| line.starts_with("      Size: 1")), "{}", ran.stdout);
    assert!(ran.exit != CommandExit::Ok || ran.stdout.contains("a\\n      Size: 1"), "{}", ran.stdout);
}

/// The help promises that the remaining files are still processed.
#[test]
fn one_failure_does_not_end_the_copy_of_all_files_of_a_metalink() {
    let (good, gone) = (
        server(ResponseFaultScript::honest()),
        server(ResponseFaultScript::honest().always(ResponseFault::Status(404, None))),
    );
    let rig = Rig::new();
    let file = |name: &str, server: &HostileServer| {
        format!("<file name=\"{name}\"><url>{}</url></file>", server.url())
    };
    let private = file(".fordway", &good);
    let files = [file("a", &good), file("b", &gone), file("c", &good), file("a", &good), private].concat();
    rig.write("m.meta4", format!("<metalink xmlns=\"urn:ietf:params:xml:ns:metalink\">{files}</metalink>"));
    let ran = rig.run(&["cp", "--metalink", "DIR/m.meta4", "DIR/d/"]).ended(CommandExit::NotFound);
    assert!(ran.stderr.contains("describes two files that would be copied to"), "{}", ran.stderr);
    assert!(ran.stderr.contains("the name of the private area"), "{}", ran.stderr);
    assert_eq!(left(&rig), ["d/a", "d/c"]);
    rig.run(&["cp", "--metalink", "DIR/m.meta4", "--exclude", "*", "--include", "c", "DIR/e/"]).ok();
    assert_eq!(left(&rig), ["d/a", "d/c", "e/c"]);
}

/// As in a copy of a URL, the file that a link leads to is replaced, and a pipe is refused.
#[test]
fn a_file_of_a_metalink_does_not_replace_a_link_or_a_pipe() {
    let good = server(ResponseFaultScript::honest());
    let rig = rig(&[&good]);
    rig.write("scratch/real", "old");
    std::fs::create_dir(rig.path("d")).unwrap();
    std::os::unix::fs::symlink("../scratch/real", rig.path("d/file")).unwrap();
    rig.run(&["cp", "--metalink", "DIR/m.meta4", "DIR/d"]).ok();
    assert!(rig.path("d/file").is_symlink());
    assert!(std::fs::read(rig.path("scratch/real")).unwrap() == content());
    std::fs::create_dir(rig.path("e")).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, rig.path("e/file"), rustix::fs::Mode::RWXU).unwrap();
    rig.run(&["cp", "--metalink", "DIR/m.meta4", "DIR/e"]).ended(CommandExit::Usage);
    assert!(!rig.path("e/file").metadata().unwrap().is_file());
}
