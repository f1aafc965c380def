//! Tests load over HTTP/2 and HTTP/3.

use std::process::{Output, Stdio};
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::Value;

use crate::command::{bench, command, one, stderr};
use crate::multiplexed::{BODY_BYTES, Certificate, Manner, Server};

const REQUESTS: u64 = 60;
const PUT_BYTES: u64 = 100_000;

/// Sends `REQUESTS` requests over `http` with `method`, on two connections with four streams each.
fn run(url: &str, http: &str, method: &str, more: &[&str]) -> (Output, Value) {
    let requests = REQUESTS.to_string();
    let size = if method == "PUT" { PUT_BYTES.to_string() } else { BODY_BYTES.to_string() };
    let common = [
        url,
        "--http",
        http,
        "--method",
        method,
        "--size",
        &size,
        "--requests",
        &requests,
        "--connections",
        "2",
        "--streams",
        "4",
        "--warm-up",
        "0s",
    ];
    one(&[&common[..], more].concat())
}

/// Asserts that the instrument's figures agree with the figures of `server`.
#[track_caller]
fn assert_agrees((output, summary): (Output, Value), server: &Server, method: &str, is_tcp: bool) {
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!((summary["operations"].as_u64(), summary["errors"].as_u64()), (Some(REQUESTS), Some(0)));
    let moved = if method == "PUT" { PUT_BYTES } else { BODY_BYTES as u64 };
    assert_eq!(summary["bytes"], REQUESTS * moved);
    let uploaded = if method == "PUT" { REQUESTS * PUT_BYTES } else { 0 };
    assert_eq!(server.counts(), (REQUESTS, uploaded));
    assert_eq!(server.seen.connections.load(Ordering::Relaxed), 2);
    let load = &summary["load"];
    assert_eq!((load["connections"].as_u64(), load["streams"].as_u64()), (Some(2), Some(4)));
    assert_eq!(load["reconnects"], 0);
    assert_eq!(load["tcp"].is_null(), !is_tcp);
    if is_tcp && method == "GET" {
        // Each frame has a header of 9 bytes, and HPACK compresses the request headers.
        let sent = load["header_sent_bytes_per_op"].as_f64().unwrap();
        assert!((5.0..60.0).contains(&sent), "{sent} bytes of head per request");
    }
    let (first, last) = (&load["first_byte"]["p50_ns"], &summary["latency"]["p50_ns"]);
    assert!(first.as_u64().is_some_and(|ns| ns > 0) && first.as_u64() <= last.as_u64(), "{first} {last}");
}

#[test]
fn http2_without_tls() {
    for method in ["GET", "PUT"] {
        let server = Server::http2(Manner::default());
        assert_agrees(run(&server.url("http", "/x"), "2", method, &[]), &server, method, true);
    }
}

/// Without a pause that all streams share, a server that is down would keep the client busy.
#[test]
fn a_server_that_is_down_is_called_rarely_over_http2() {
    let server = Server::http2(Manner { requests_per_connection: Some(1), ..Manner::default() });
    let url = server.url("http", "/x");
    let load = ["--http", "2", "--streams", "64", "--duration", "3s", "--warm-up", "0s"];
    let mut command = command(&[&[url.as_str()], &load[..]].concat());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    while server.counts().0 < 10 && child.try_wait().unwrap().is_none() {
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(server);
    let ended = child.wait_with_output().unwrap();
    let summary: Value = serde_json::from_slice(&ended.stdout).unwrap();
    let errors = summary["errors"].as_u64().unwrap();
    assert!((1..=3500).contains(&errors), "{errors} attempts in 3 s");
}

/// A success that arrives before the body was sent must not count as a fast upload.
#[test]
fn a_success_before_the_body_was_sent_is_a_failure_over_http2() {
    let server = Server::http2(Manner { answers_early: true, ..Manner::default() });
    let url = server.url("http", "/x");
    // The body is larger than the server's window.
    let load = ["--http", "2", "--method", "PUT", "--size", "1MiB", "--requests", "3", "--warm-up", "0s"];
    let (_, summary) = one(&[&[url.as_str()], &load[..]].concat());
    assert_eq!(summary["load"]["errors"]["BadResponse"], 3, "{summary}");
}

#[test]
fn http2_over_tls() {
    let certificate = Certificate::make();
    let trusted = certificate.file.path().to_str().unwrap();
    for method in ["GET", "PUT"] {
        let server = Server::http2(Manner { tls: Some(certificate.clone()), ..Manner::default() });
        let ran = run(&server.url("https", "/x"), "2", method, &["--ca-bundle", trusted]);
        assert_agrees(ran, &server, method, true);
    }
}

#[cfg(feature = "http3")]
#[test]
fn http3() {
    let certificate = Certificate::make();
    let trusted = certificate.file.path().to_str().unwrap();
    for method in ["GET", "PUT"] {
        let server = Server::http3(&certificate);
        let ran = run(&server.url("https", "/x"), "3", method, &["--ca-bundle", trusted]);
        assert_agrees(ran, &server, method, false);
    }
}

/// A server whose certificate is not trusted must be reported as unreachable, and HTTP/3 must be refused for an `http`
/// URL.
#[test]
fn what_a_server_does_not_speak_is_said() {
    let certificate = Certificate::make();
    let server = Server::http2(Manner { tls: Some(certificate.clone()), ..Manner::default() });
    let other = Certificate::make();
    let trusted = other.file.path().to_str().unwrap();
    let url = server.url("https", "/x");
    let (output, summaries) = bench(&[&url, "--http", "2", "--ca-bundle", trusted, "--requests", "1"]);
    assert_eq!((output.status.code(), summaries.len()), (Some(7), 0), "{}", stderr(&output));
    assert!(stderr(&output).contains("cannot connect to https://localhost"), "{}", stderr(&output));
    #[cfg(feature = "http3")]
    {
        let (output, _) = bench(&["http://127.0.0.1:1/x", "--http", "3", "--requests", "1"]);
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).contains("HTTP/3 is always encrypted"), "{}", stderr(&output));
    }
}

/// If a server accepts only 20 requests on each connection, the requests that it did not process must be sent on the
/// next connection.
#[test]
fn farewells_of_http2_are_no_errors() {
    let server = Server::http2(Manner { requests_per_connection: Some(20), ..Manner::default() });
    let args = ["--http", "2", "--requests", "100", "--streams", "3", "--warm-up", "0s"];
    let (output, summary) = one(&[&[&*server.url("http", "/x")], &args[..]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!((summary["operations"].as_u64(), summary["errors"].as_u64()), (Some(100), Some(0)));
    let reconnects = summary["load"]["reconnects"].as_u64().unwrap();
    assert!((1..=5).contains(&reconnects), "{reconnects}");
    assert_eq!(server.counts().0, 100);
}

/// A sweep must measure all combinations, alternate between the two HTTP versions, and compute the ratio between the
/// versions over five rounds.
#[test]
fn sweeps_compare_versions_in_turn() {
    let server = Server::http2(Manner::default());
    let dir = tempfile::tempdir().unwrap();
    let run_dir = dir.path().join("x.run");
    let (output, summaries) = bench(&[
        &server.url("http", "/x"),
        "--http",
        "1.1,2",
        "--connections",
        "2,4",
        "--streams",
        "1,2",
        "--threads",
        "1,2",
        "--rounds",
        "5",
        "--requests",
        "10",
        "--warm-up",
        "0s",
        "--out",
        run_dir.to_str().unwrap(),
    ]);
    assert!(output.status.success(), "{}", stderr(&output));
    let rows: Vec<_> = summaries
        .iter()
        .map(|row| format!("{} {}", row["phase"].as_str().unwrap(), row["lane"].as_str().unwrap()))
        .collect();
    assert_eq!(rows.len(), 16);
    assert_eq!(rows[0], "GET c=2 t=1 http/1.1");
    assert_eq!(rows[15], "GET c=4 x 2 streams t=2 http/2");
    for row in &summaries {
        assert_eq!((row["operations"].as_u64(), row["errors"].as_u64()), (Some(50), Some(0)));
        let interval = &row["ratio"]["interval"];
        assert_eq!(interval["samples"].as_u64(), (row["lane"] == "http/2").then_some(5), "{row}");
    }
    assert_eq!(server.counts().0, 16 * 50);
    let run = fordway_measure::RunDocument::read(&run_dir).unwrap();
    assert_eq!((run.lanes.len(), run.phases.len(), run.summaries.len()), (2, 8, 16));
}
