//! Tests open and closed loops over HTTP/1.1, against servers whose behaviour is known.

use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fordway_sys::terminate;

use crate::command::{bench, command, one, stderr};
use crate::multiplexed::Certificate;
use crate::server::{self, Server, answer};

#[test]
fn a_closed_loop_counts_what_the_server_saw() {
    let server = Server::start(|stream| server::serve(stream, Duration::ZERO, &answer(1024)));
    let (output, summary) = one(&[
        &server.url("/x"),
        "--requests",
        "500",
        "--connections",
        "4",
        "--threads",
        "2",
        "--warm-up",
        "0s",
        "--size",
        "1KiB",
    ]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!((summary["operations"].as_u64(), summary["errors"].as_u64()), (Some(500), Some(0)));
    assert_eq!(server.requests(), 500);
    assert_eq!(summary["bytes"], 500 * 1024);
    let load = &summary["load"];
    assert_eq!(load["header_received_bytes_per_op"].as_f64(), Some((answer(1024).len() - 1024) as f64));
    assert!(load["header_sent_bytes_per_op"].as_f64().is_some_and(|bytes| bytes > 40.0 && bytes < 200.0));
    assert!(load["client"]["cpu_ns"].as_u64().is_some_and(|ns| ns > 0) && load["server"].is_null());
    assert_eq!(load["tcp"]["count"], 4);
    assert!(load["rate_asked_per_s"].is_null() && load["lateness"].is_null());
}

#[test]
fn bodies_are_sent_whole_and_sweeps_measure_all_combinations() {
    let server = Server::start(|stream| server::serve(stream, Duration::ZERO, &answer(0)));
    let (output, summaries) = bench(&[
        &server.url("/b/{size}/o-{number}"),
        "--method",
        "PUT",
        "--size",
        "1KiB,3MiB",
        "--connections",
        "1,2",
        "--objects",
        "3",
        "--requests",
        "20",
        "--warm-up",
        "0s",
    ]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(summaries.len(), 4);
    assert_eq!(server.requests(), 80);
    assert_eq!(server.body_bytes(), 40 * (1024 + (3 << 20)));
    assert_eq!(summaries[3]["bytes"], 20 * (3 << 20));
}

/// Readers of run files identify a result by its phase, so neighbouring sizes need different names.
#[test]
fn each_combination_is_a_phase_of_its_own() {
    let server = Server::start(|stream| server::serve(stream, Duration::ZERO, &answer(0)));
    let url = server.url("/o");
    let few = [url.as_str(), "--method", "PUT", "--requests", "2", "--warm-up", "0s"];
    let (output, summaries) = bench(&[&few[..], &["--size", "65535,65536,65537"]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    let phases: Vec<&str> = summaries.iter().filter_map(|summary| summary["phase"].as_str()).collect();
    assert_eq!(phases, ["PUT 65535 B c=1 t=1", "PUT 64 KiB c=1 t=1", "PUT 65537 B c=1 t=1"]);
    for list in
        [["--size", "1KiB,1024"], ["--connections", "4,4"], ["--threads", "1,1"], ["--http", "1.1,1.1"]]
    {
        let (output, _) = bench(&[&few[..], &list].concat());
        assert_eq!(output.status.code(), Some(2), "{list:?}");
        assert!(stderr(&output).contains("contains a value twice"), "{}", stderr(&output));
    }
}

/// Each fault of a server must be reported in a column and in a message, and must never cause a crash or an endless
/// wait.
#[test]
fn servers_that_lie_stall_or_leave_are_told_apart() {
    let head = |length: usize| format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n");
    let cases: Vec<(&str, Vec<u8>, &str)> = vec![
        ("a body shorter than stated", [head(100).as_bytes(), &[0; 50]].concat(), "Unavailable"),
        ("a body longer than stated", [head(10).as_bytes(), &[0; 50]].concat(), "BadResponse"),
        ("no HTTP at all", b"SSH-2.0-OpenSSH\r\n\r\n".to_vec(), "BadResponse"),
        (
            "two lengths",
            b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nx".to_vec(),
            "BadResponse",
        ),
        ("no response", Vec::new(), "Unavailable"),
        ("a refusal", b"HTTP/1.1 503 Slow Down\r\ncontent-length: 2\r\n\r\nno".to_vec(), "status 503"),
        ("a full disk", b"HTTP/1.1 507 Full\r\ncontent-length: 2\r\n\r\nno".to_vec(), "status 507"),
        ("another size", answer(7), "wrong size"),
    ];
    for (what, bytes, kind) in cases {
        // If only the status or the size of a response is wrong, the server keeps the connection open.
        let may_go_on = kind.starts_with("status") || kind == "wrong size";
        let server = Server::start(move |stream| match may_go_on {
            true => server::serve(stream, Duration::ZERO, &bytes),
            false => server::answer_and_close(stream, &bytes),
        });
        let (output, summary) = one(&[
            &server.url("/x"),
            "--requests",
            "5",
            "--warm-up",
            "0s",
            "--size",
            "1KiB",
            "--timeout",
            "5s",
        ]);
        assert_eq!(summary["errors"], 5, "{what}: {summary}");
        assert_eq!(summary["load"]["errors"][kind], 5, "{what}: {}", summary["load"]["errors"]);
        let code = if kind == "status 507" { 6 } else { 7 };
        assert_eq!(output.status.code(), Some(code), "{what}");
        assert!(stderr(&output).contains("5 requests failed"), "{what}: {}", stderr(&output));
        assert!(summary["latency"].is_null() && summary["ops_per_s"].is_null());
    }
}

#[test]
fn a_server_that_ignores_the_range_is_noticed() {
    for (status, range, ignored) in [
        ("200 OK", "0-3", 3),
        ("206 Partial Content", "0-3", 0),
        // The whole object was requested.
        ("200 OK", "0-", 0),
    ] {
        let bytes = format!("HTTP/1.1 {status}\r\ncontent-length: 4\r\n\r\nabcd");
        let server = Server::start(move |stream| server::serve(stream, Duration::ZERO, bytes.as_bytes()));
        let (_, summary) = one(&[&server.url("/x"), "--range", range, "--requests", "3", "--warm-up", "0s"]);
        assert_eq!(summary["errors"], ignored, "{status} {range}: {summary}");
        let counted = summary["load"]["errors"]["range ignored"].as_u64().unwrap_or(0);
        assert_eq!(counted, ignored, "{status} {range}: {summary}");
    }
}

/// A success that arrives before the body was sent must not count as a fast upload. An error is reported as it is.
#[test]
fn a_success_before_the_body_was_sent_is_a_failure() {
    for (status, kind) in [("200 OK", "BadResponse"), ("403 Forbidden", "status 403")] {
        let bytes = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n");
        let server = Server::start(move |mut stream| {
            if stream.receive_head().is_some() && stream.send(bytes.as_bytes()) {
                // If the connection were closed, the client might not receive the response.
                std::thread::sleep(Duration::from_secs(60));
            }
        });
        let url = server.url("/x");
        // The body does not fit into the buffers of the kernel.
        let load = ["--method", "PUT", "--size", "32MiB", "--requests", "3", "--warm-up", "0s"];
        let (_, summary) = one(&[&[url.as_str()], &load[..]].concat());
        assert_eq!(
            (&summary["errors"], &summary["load"]["errors"][kind]),
            (&3.into(), &3.into()),
            "{summary}"
        );
    }
}

#[test]
fn a_server_that_never_answers_is_given_up() {
    let server = Server::start(|stream| server::serve(stream, Duration::from_secs(3600), b""));
    let (output, summary) =
        one(&[&server.url("/x"), "--requests", "2", "--warm-up", "0s", "--timeout", "1s"]);
    assert_eq!(summary["load"]["errors"]["Timeout"], 2, "{summary}");
    assert!(stderr(&output).contains("no complete response arrived within 1s"), "{}", stderr(&output));
}

#[test]
fn a_server_that_is_not_there_ends_the_command() {
    let (output, summaries) = bench(&["http://127.0.0.1:1/x", "--requests", "2"]);
    assert_eq!((output.status.code(), summaries.len()), (Some(7), 0));
    assert!(stderr(&output).contains("cannot connect to http://127.0.0.1:1"), "{}", stderr(&output));
}

#[test]
fn a_rate_that_cannot_be_kept_is_said_with_the_rate_achieved() {
    let server = Server::start(|stream| server::serve(stream, Duration::from_millis(10), &answer(1)));
    let (output, summary) = one(&[
        &server.url("/x"),
        "--rate",
        "10000",
        "--connections",
        "2",
        "--duration",
        "1s",
        "--warm-up",
        "0s",
    ]);
    let achieved = summary["ops_per_s"].as_f64().unwrap();
    assert!((100.0..=200.0).contains(&achieved), "2 connections at 10 ms make 200 a second, not {achieved}");
    let skipped = summary["load"]["skipped"].as_u64().unwrap();
    let all = skipped + summary["operations"].as_u64().unwrap();
    assert!((9_500..10_500).contains(&all), "{all} arrivals of about 10,000");
    assert!(stderr(&output).contains("was not reached"), "{}", stderr(&output));
    assert_eq!(summary["limit"]["name"], "cannot tell");
}

/// Returns a server that responds to 50 requests/s over all connections.
fn fifty_per_s() -> Server {
    let turn = Arc::new(Mutex::new(()));
    Server::start(move |mut stream| {
        while stream.receive() {
            let turn = turn.lock().unwrap();
            std::thread::sleep(Duration::from_millis(20));
            drop(turn);
            if !stream.send(&answer(1)) {
                return;
            }
        }
    })
}

/// With enough connections, every request starts in time, even if the server is far too slow.
#[test]
fn a_rate_that_only_the_client_keeps_is_not_reached() {
    let load = ["--rate", "200", "--arrivals", "fixed", "--connections", "400", "--warm-up", "0s"];
    for length in [["--duration", "2s"], ["--requests", "400"]] {
        let server = fifty_per_s();
        let (output, summary) = one(&[&[server.url("/x").as_str()], &load[..], &length[..]].concat());
        assert_eq!(summary["load"]["skipped"], 0);
        assert_ne!(summary["limit"]["name"], "rate", "{}", summary["limit"]);
        assert!(stderr(&output).contains("was not reached"), "{}", stderr(&output));
    }
}

/// Long response times do not make a rate unreachable.
#[test]
fn a_rate_is_reached_however_long_a_request_takes() {
    let server = Server::start(|stream| server::serve(stream, Duration::from_millis(200), &answer(1)));
    let load = ["--rate", "100", "--arrivals", "fixed", "--connections", "100", "--warm-up", "0s"];
    for length in [["--duration", "2s"], ["--requests", "200"]] {
        let (output, summary) = one(&[&[server.url("/x").as_str()], &load[..], &length[..]].concat());
        assert_eq!(summary["limit"]["name"], "rate", "{}", stderr(&output));
        assert!(!stderr(&output).contains("was not reached"), "{}", stderr(&output));
    }
}

#[test]
fn impossible_loads_are_refused() {
    for args in [
        &["http://127.0.0.1:1/x", "--rate", "0"][..],
        &["http://127.0.0.1:1/x", "--rate", "NaN"],
        &["http://127.0.0.1:1/x", "--connections", "0"],
        &["http://127.0.0.1:1/x", "--threads", "4", "--connections", "2"],
        &["http://127.0.0.1:1/{size}"],
        &["http://127.0.0.1:1/x", "--duration", "0s"],
        &["http://127.0.0.1:1/x", "--method", "PUT", "--size", "16777215TiB"],
        &["http://127.0.0.1:1/x", "--pin-server", "0"],
        &["ftp://127.0.0.1/x"],
    ] {
        let (output, summaries) = bench(args);
        assert_eq!((output.status.code(), summaries.len()), (Some(2), 0), "{args:?}: {}", stderr(&output));
        assert!(!output.stderr.is_empty());
    }
}

#[test]
fn a_server_process_that_is_not_there_all_the_time_is_not_counted() {
    let mut short = Command::new("sleep").arg("0.3").spawn().unwrap();
    // Reap the process, because its process ID would otherwise remain in use.
    let pid = short.id().to_string();
    let waiter = std::thread::spawn(move || short.wait());
    let server = Server::start(|stream| server::serve(stream, Duration::ZERO, &answer(1)));
    let (output, summary) =
        one(&[&server.url("/x"), "--duration", "1s", "--warm-up", "0s", "--server-pid", &pid]);
    waiter.join().unwrap().unwrap();
    assert!(summary["server_cpu_ns_per_op"].is_null() && summary["load"]["server"].is_null());
    assert!(stderr(&output).contains("the server's counters are not used"), "{}", stderr(&output));
}

/// If the process that `--server-pid` specifies is idle, the command reports that the process is not the server. If the
/// process does not exist, the command fails.
#[test]
fn a_process_that_is_not_the_server_is_noticed() {
    let server = Server::start(|stream| server::serve(stream, Duration::ZERO, &answer(1)));
    let mut idle = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    let (url, pid) = (server.url("/x"), idle.id().to_string());
    let words = [&url, "--requests", "500", "--warm-up", "0s", "--server-pid"];
    // Give the program time to start, because its start would count as CPU time of the server.
    std::thread::sleep(Duration::from_millis(200));
    let (output, summary) = one(&[&words[..], &[&*pid]].concat());
    assert!(summary["server_cpu_ns_per_op"].is_null() && summary["load"]["server"].is_null());
    assert!(stderr(&output).contains("it is not the server"), "{}", stderr(&output));
    idle.kill().unwrap();
    idle.wait().unwrap();
    let (output, summaries) = bench(&[&words[..], &["4194303"]].concat());
    assert_eq!((output.status.code(), summaries.len()), (Some(2), 0), "{}", stderr(&output));
}

/// A server may close an idle connection. In this test, each connection serves ten requests, and the server closes the
/// connection when the eleventh arrives.
#[test]
fn requests_that_met_a_closed_connection_are_sent_again() {
    let server = Server::start(|stream| server::serve_some(stream, 10, &answer(64)));
    let (output, summary) = one(&[&server.url("/x"), "--requests", "100", "--warm-up", "0s", "--size", "64"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!((summary["operations"].as_u64(), summary["errors"].as_u64()), (Some(100), Some(0)));
    assert_eq!(summary["load"]["reconnects"], 9);
    assert_eq!(server.requests(), 109);
    let body = answer(64).len() as f64 - 64.0;
    assert_eq!(summary["load"]["header_received_bytes_per_op"].as_f64(), Some(body));
}

/// A connection that is being opened must not delay the requests on other connections of the same thread. In this test,
/// a handshake takes 100 ms, and each connection carries one request.
#[test]
fn connections_are_opened_at_the_same_time() {
    let certificate = Certificate::make();
    let config = Arc::new(certificate.config(b"http/1.1"));
    let handshake = Duration::from_millis(100);
    let bytes = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 1\r\n\r\nx".to_vec();
    let server = Server::start(move |stream| stream.answer_over_tls(config.clone(), handshake, &bytes));
    let trusted = certificate.file.path().to_str().unwrap();
    let load = ["--connections", "16", "--requests", "64", "--warm-up", "0s", "--ca-bundle", trusted];
    let started = std::time::Instant::now();
    let (output, summary) = one(&[&[server.tls_url("/x").as_str()], &load[..]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!((summary["operations"].as_u64(), summary["errors"].as_u64()), (Some(64), Some(0)));
    assert_eq!(summary["load"]["reconnects"], 48);
    // One after the other, the 64 handshakes would take 6.4 s.
    assert!(started.elapsed() < Duration::from_secs(4), "{:?}", started.elapsed());
    // A request's latency includes the time of its own handshake, but not the time of the other handshakes.
    let worst_ns = summary["latency"]["max_ns"].as_u64().unwrap();
    assert!((100_000_000..800_000_000).contains(&worst_ns), "{worst_ns}");
}

/// Waits until the server has received this many requests, or the program has ended.
fn wait_for_requests(server: &Server, requests: u64, child: &mut Child) {
    while server.requests() < requests && child.try_wait().unwrap().is_none() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Without a pause that all connections share, a server that is down would keep the client busy.
#[test]
fn a_server_that_is_down_is_called_rarely() {
    let bytes = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 1\r\n\r\nx";
    let server = Server::start(|stream| server::answer_and_close(stream, bytes));
    let url = server.url("/x");
    let mut command = command(&[&url, "--connections", "64", "--duration", "3s", "--warm-up", "0s"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_for_requests(&server, 100, &mut child);
    drop(server);
    let ended = child.wait_with_output().unwrap();
    let summary: serde_json::Value = serde_json::from_slice(&ended.stdout).unwrap();
    let errors = summary["errors"].as_u64().unwrap();
    assert!((1..=3500).contains(&errors), "{errors} attempts in 3 s");
}

/// A request is repeated at most once. Otherwise, the client would repeat the request forever if a server closes every
/// connection without a response.
#[test]
fn a_request_is_sent_again_once() {
    let connections = std::sync::atomic::AtomicU64::new(0);
    let server = Server::start(move |stream| {
        let is_first = connections.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == 0;
        server::serve_some(stream, usize::from(is_first), &answer(1));
    });
    let (output, summary) = one(&[&server.url("/x"), "--requests", "5", "--warm-up", "0s"]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert_eq!((summary["operations"].as_u64(), summary["errors"].as_u64()), (Some(1), Some(4)));
    // One request succeeded, one was sent twice, and three were sent on connections that returned no response.
    assert_eq!(server.requests(), 6);
}

/// After a signal, the complete rounds are reported, or the first block if no round is complete.
#[test]
fn an_interrupted_load_is_reported_as_such() {
    let server = Server::start(|stream| server::serve(stream, Duration::ZERO, &answer(0)));
    for length in [&["--rounds", "1000", "--requests", "20"][..], &["--duration", "600s"]] {
        let before = server.requests();
        let mut command = command(&[&[server.url("/x").as_str(), "--warm-up", "0s"], length].concat());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        wait_for_requests(&server, before + 50, &mut child);
        terminate(child.id()).unwrap();
        let ended = child.wait_with_output().unwrap();
        assert_eq!(ended.status.code(), Some(130), "{}", stderr(&ended));
        assert!(stderr(&ended).contains("interrupted: the results cover only"), "{}", stderr(&ended));
        let summary: serde_json::Value = serde_json::from_slice(&ended.stdout).unwrap();
        let operations = summary["operations"].as_u64().unwrap();
        assert!(operations > 0 && (length.len() < 4 || operations.is_multiple_of(20)), "{summary}");
    }
}

/// If the server stops after some rounds, the complete rounds are reported with the error and its exit code.
#[test]
fn a_server_that_stops_does_not_lose_the_complete_rounds() {
    let server = Server::start(|stream| server::serve(stream, Duration::ZERO, &answer(0)));
    let url = server.url("/x");
    let mut command = command(&[&url, "--warm-up", "0s", "--rounds", "1000", "--requests", "20"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_for_requests(&server, 50, &mut child);
    drop(server);
    let ended = child.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(7), "{}", stderr(&ended));
    assert!(stderr(&ended).contains("interrupted: the results cover only"), "{}", stderr(&ended));
    let summary: serde_json::Value = serde_json::from_slice(&ended.stdout).unwrap();
    assert!(summary["operations"].as_u64().unwrap() >= 40, "{summary}");
}
