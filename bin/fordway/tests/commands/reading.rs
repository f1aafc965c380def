//! Tests `read` on ranges of objects and of files on an HTTP server.

use clap::Parser as _;
use fordway_cli::CommandLine;
use fordway_command::CommandExit;
use fordway_testkit::hostile::{HostileServer, ResponseFault, ResponseFaultScript};

use crate::support::Rig;

const RANGES: &str = "# offset length\n90 10\n\n0 3 # the beginning\n95 2\n50 0\n1 2\n";

fn content() -> Vec<u8> {
    (0..100).map(|n| b'0' + n % 64).collect()
}

fn wanted() -> Vec<u8> {
    let content = content();
    [&content[90..], &content[..3], &content[95..97], &content[1..3]].concat()
}

fn rig() -> Rig {
    let mut rig = Rig::new();
    rig.input = RANGES.into();
    rig.put("k", content());
    rig
}

fn server() -> HostileServer {
    HostileServer::start(content(), ResponseFaultScript::honest())
}

#[test]
fn a_read_that_never_began_leaves_the_file_there_was() {
    let rig = rig();
    rig.write("out", "of yesterday");
    let read = |words: &[&str]| rig.run(&[&["read"], words, &["--output", "DIR/out"]].concat());
    let ran = read(&["s3://bkt/mistyped", "--ranges", "-"]).ended(CommandExit::NotFound);
    assert!(ran.stderr.contains("no such key"), "{}", ran.stderr);
    assert_eq!(rig.path("out").metadata().unwrap().len(), 12);
    rig.write("none", "");
    read(&["s3://bkt/k", "--ranges", "DIR/none"]).ok();
    assert_eq!(rig.path("out").metadata().unwrap().len(), 0, "no ranges make an empty file");
}

#[test]
fn ranges_are_written_in_the_order_asked() {
    let (rig, server) = (rig(), server());
    for url in ["s3://bkt/k", &server.url()] {
        for window in ["1", "3"] {
            let words = ["fordway", "read", url, "--ranges", "-", "--per-call", "2", "--window", window];
            assert_eq!(rig.run(&words[1..]).ok().stdout.as_bytes(), wanted(), "{url}");
            let to_file = rig.run(&[&words[1..], &["--output", "DIR/out"]].concat()).ok();
            assert!(to_file.stdout.contains("5 ranges, 17 Bytes"), "{}", to_file.stdout);
            assert_eq!(std::fs::read(rig.dir.path().join("out")).unwrap(), wanted(), "{url}");
        }
    }
}

#[test]
fn what_was_thrown_away_is_summed_up() {
    let (rig, server) = (rig(), server());
    let words = ["read", &server.url(), "--ranges", "-", "--per-call", "2", "--discard", "--json"];
    let summary: serde_json::Value = serde_json::from_str(&rig.run(&words).ok().stdout).unwrap();
    for (name, value) in [("bytes", 17), ("fragments", 5), ("calls", 3), ("requests", 3), ("connections", 1)]
    {
        assert_eq!(summary[name], value, "{name} in {summary}");
    }
    assert!(summary["seconds"].as_f64().unwrap() > 0.0 && summary["client_cpu_seconds"].is_f64());
}

/// If a server ignores ranges, reading two small ranges takes as long as reading the whole file. The command must
/// report the reason.
#[test]
fn a_server_that_ignores_ranges_is_reported() {
    let rig = rig();
    let ignoring = ResponseFaultScript::honest().always(ResponseFault::WholeForRange);
    for (script, is_reported) in [(ResponseFaultScript::honest(), false), (ignoring, true)] {
        let server = HostileServer::start(content().repeat(10_000), script);
        let words = ["read", &server.url(), "--ranges", "-", "--per-call", "2", "--discard"];
        let ran = rig.run(&words).ended(CommandExit::Ok);
        assert_eq!(ran.stderr.contains("ignores ranges"), is_reported, "{}", ran.stderr);
    }
}

#[test]
fn ranges_are_read_by_http2() {
    let rig = rig();
    let server = HostileServer::start_http2(content(), ResponseFaultScript::honest());
    let words = ["read", &server.url(), "--ranges", "-", "--http", "2", "--per-call", "2"];
    assert_eq!(rig.run(&words).ok().stdout.as_bytes(), wanted());
    let words = ["read", &server.url(), "--sequential", "30", "--http", "2", "--output", "DIR/out"];
    rig.run(&words).ok();
    assert_eq!(std::fs::read(rig.dir.path().join("out")).unwrap(), content());
    assert_eq!(server.connections(), 2, "one a command");
    let words = ["fordway", "read", &server.url(), "--ranges", "-", "--http", "4"];
    let refused = CommandLine::try_parse_from(words).unwrap_err().to_string();
    assert!(refused.contains("use 1.1, or 2"), "{refused}");
}

#[test]
fn a_file_is_read_in_blocks() {
    let (rig, server) = (rig(), server());
    let words = ["read", &server.url(), "--sequential", "30", "--output", "DIR/out", "--json"];
    rig.run(&words).ok();
    assert_eq!(std::fs::read(rig.dir.path().join("out")).unwrap(), content());
    let words = ["read", &server.url(), "--sequential", "30", "--discard", "--json"];
    let summary: serde_json::Value = serde_json::from_str(&rig.run(&words).ok().stdout).unwrap();
    for (name, value) in [("bytes", 100), ("fragments", 0), ("calls", 4), ("connections", 1)] {
        assert_eq!(summary[name], value, "{name} in {summary}");
    }
    let refused = rig.run(&["read", "s3://bkt/k", "--sequential", "30"]);
    assert!(refused.exit != CommandExit::Ok && refused.stderr.contains("fordway cat"), "{}", refused.stderr);
}

#[test]
fn wrong_lists_and_ranges_are_told() {
    let (mut rig, server) = (rig(), server());
    for (input, said) in [
        ("0 1\n7\n", "line 2 of - is \"7\"; write an offset and a length in bytes"),
        ("0 1\n95 6\n", "invalid range: 6 bytes at 95"),
    ] {
        rig.input = input.into();
        for url in ["s3://bkt/k", &server.url()] {
            let ran = rig.run(&["read", url, "--ranges", "-", "--discard"]).ended(CommandExit::Usage);
            assert!(ran.stderr.contains(said), "{}", ran.stderr);
        }
    }
    rig.input = "0 1\n".into();
    server.follow(ResponseFaultScript::honest().always(ResponseFault::Status(404, None)));
    let ran = rig.run(&["read", &server.url(), "--ranges", "-"]).ended(CommandExit::NotFound);
    assert!(ran.stderr.contains(&format!("open {} (http): no such key", server.url())), "{}", ran.stderr);
}
