//! Tests the access log, the counters and the health responses.

mod client;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use client::http2::{Http2, push, run};
use client::{BUCKET, Call, serve_with};

#[test]
fn a_line_says_what_was_asked_and_answered_but_no_secret() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("access.log");
    let fixture = serve_with(|config| config.access_log = Some(path.clone()));
    fixture.client.send(&Call::on("PUT", "a%20b").body("hello")).ok();
    fixture.client.send(&Call::on("GET", "a%20b")).ok();
    assert_eq!(fixture.client.send(&Call::on("GET", "none")).status, 404);
    let mut stranger = fixture.client.clone();
    stranger.identity.access_key = "nobody".to_owned();
    assert_eq!(stranger.send(&Call::new("GET", "/")).status, 403);
    let (user, secret) =
        (fixture.client.identity.access_key.clone(), fixture.client.identity.secret_key.clone());
    // When the gateway has stopped, all lines have been written.
    drop(fixture);
    let text = std::fs::read_to_string(&path).unwrap();
    let lines: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).expect("each line is JSON")).collect();
    assert_eq!(lines.len(), 4, "{text}");
    for (at, field, value) in [
        (0, "operation", "PutObject".into()),
        (0, "bytes_in", 5.into()),
        (1, "method", "GET".into()),
        (1, "operation", "GetObject".into()),
        (1, "user", user.into()),
        (1, "bucket", BUCKET.into()),
        (1, "key", "a b".into()),
        (1, "status", 200.into()),
        (1, "bytes_out", 5.into()),
        (1, "complete", true.into()),
        (2, "status", 404.into()),
        (3, "status", 403.into()),
        (3, "user", serde_json::Value::Null),
        (3, "operation", "unknown".into()),
    ] {
        assert_eq!(lines[at][field], value, "{at} {field}: {text}");
    }
    assert!(lines.iter().all(|line| line["us"].as_u64() >= line["send_us"].as_u64()), "{text}");
    assert!(lines[0]["remote"].as_str().unwrap().starts_with("127.0.0.1:"));
    assert!(!text.contains(&secret) && !text.contains("Signature"));
}

#[test]
fn a_log_that_was_moved_away_is_opened_anew() {
    let dir = tempfile::tempdir().unwrap();
    let (path, old) = (dir.path().join("access.log"), dir.path().join("access.log.1"));
    let fixture = serve_with(|config| config.access_log = Some(path.clone()));
    fixture.client.send(&Call::on("GET", "first")).error();
    let is_written =
        |path: &std::path::Path| std::fs::read_to_string(path).is_ok_and(|text| !text.is_empty());
    wait_for(|| is_written(&path));
    std::fs::rename(&path, &old).unwrap();
    fixture.gateway.reload_handle().trigger();
    wait_for(|| path.exists());
    fixture.client.send(&Call::on("GET", "second")).error();
    wait_for(|| is_written(&path));
    assert!(std::fs::read_to_string(&path).unwrap().contains("\"second\""));
    assert!(!std::fs::read_to_string(&old).unwrap().contains("\"second\""));
}

#[test]
fn counters_and_health_are_asked_for_without_a_signature() {
    let fixture = serve_with(|config| config.metrics = Some(SocketAddr::from(([127, 0, 0, 1], 0))));
    let metrics = fixture.gateway.metrics_addr().unwrap();
    fixture.client.send(&Call::on("PUT", "k").body("hello")).ok();
    fixture.client.send(&Call::on("GET", "k")).ok();
    fixture.client.send(&Call::on("HEAD", "none"));
    // A request is counted after its response has been sent. The client may receive the response slightly earlier.
    wait_for(|| ask(metrics, "/metrics").contains("operation=\"HeadObject\",status=\"404\"} 1"));
    let text = ask(metrics, "/metrics");
    for line in [
        "fordway_requests_total{operation=\"PutObject\",status=\"200\"} 1",
        "fordway_requests_total{operation=\"GetObject\",status=\"200\"} 1",
        "fordway_request_duration_seconds_count{operation=\"GetObject\"} 1",
        "fordway_received_bytes_total 5",
        "fordway_sent_bytes_total 5",
        "fordway_requests_in_flight 0",
        "fordway_root_available 1",
    ] {
        assert!(text.lines().any(|found| found.starts_with(line)), "{line} is not in\n{text}");
    }
    assert!(ask(metrics, "/health").starts_with("HTTP/1.1 200"));
    assert!(ask(metrics, "/ready").starts_with("HTTP/1.1 200"));
    assert!(ask(metrics, "/else").starts_with("HTTP/1.1 404"));
}

#[test]
fn an_answer_says_where_its_time_went_if_that_is_asked() {
    let fixture = serve_with(|_| ());
    fixture.client.send(&Call::on("PUT", "k").body("hello")).ok();
    // A plain read bypasses the S3 layer. The S3 layer serves a listing.
    for call in [Call::on("GET", "k"), Call::new("GET", format!("/{BUCKET}"))] {
        assert_eq!(fixture.client.send(&call).ok().header("server-timing"), None);
        let answer = fixture.client.send(&call.header("x-fordway-timing", "1")).ok();
        let timing = answer.header("server-timing").unwrap();
        let parts: Vec<(&str, f64)> = timing
            .split(", ")
            .map(|part| part.split_once(";dur=").map(|(name, ms)| (name, ms.parse().unwrap())).unwrap())
            .collect();
        assert_eq!(parts.iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["parse", "auth", "store"]);
        assert!(parts.iter().all(|(_, ms)| (0.0..1000.0).contains(ms)), "{timing}");
        assert!(parts[1].1 > 0.0, "a signature is not checked in no time: {timing}");
    }
}

#[test]
fn limits_are_kept() {
    let fixture = serve_with(|config| {
        config.body_bytes_max = 1000;
        config.head_bytes_max = 4096;
    });
    fixture.client.send(&Call::on("PUT", "k").body(vec![1; 1000])).ok();
    assert_eq!(fixture.client.send(&Call::on("PUT", "k").body(vec![1; 1001])).status, 413);
    let long = Call::on("GET", "k").header("x-amz-meta-a", "x".repeat(4096));
    assert_eq!(fixture.client.send(&long).status, 431);
    let mut chunked = fixture.client.connect();
    let head = Call::on("PUT", "c").header("content-length", "9").payload("UNSIGNED-PAYLOAD");
    let head = String::from_utf8(fixture.client.head(&head)).unwrap();
    let head = head.replace("content-length: 9\r\n", "transfer-encoding: chunked\r\n");
    let head = head.replace(";content-length", "");
    chunked.write_all(head.as_bytes()).unwrap();
    let _ = chunked.write_all(format!("{:x}\r\n{}\r\n0\r\n\r\n", 2000, "x".repeat(2000)).as_bytes());
    let answer = client::read_answer(&mut chunked, "PUT");
    assert!(answer.status >= 400, "{}", answer.status);
    assert_eq!(fixture.client.send(&Call::on("GET", "c")).status, 404);
}

fn ask(address: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: h\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[track_caller]
fn wait_for(condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(10), "it did not come about in time");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A request over HTTP/2 whose body stops arriving ends without a response. The request is still counted and logged,
/// and is no longer in flight.
#[test]
fn a_request_that_ends_without_an_answer_is_counted_and_over() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("access.log");
    let fixture = serve_with(|config| {
        config.stall_timeout = Duration::from_millis(300);
        config.metrics = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
        config.access_log = Some(path.clone());
    });
    let metrics = fixture.gateway.metrics_addr().unwrap();
    run(async {
        let http2 = Http2::connect(&fixture.client).await;
        let put = Call::on("PUT", "half").payload("UNSIGNED-PAYLOAD").body(vec![1; 1000]);
        let (answer, mut upload) = http2.start(&put, false).await;
        push(&mut upload, &[1; 500], false).await.unwrap();
        answer.await.expect_err("it is never answered");
    });
    wait_for(|| ask(metrics, "/metrics").contains("fordway_requests_in_flight 0"));
    drop(fixture);
    let text = std::fs::read_to_string(&path).unwrap();
    let cut = text.lines().find(|line| line.contains("\"PUT\"")).expect("it is in the log");
    assert!(cut.contains("\"status\":499") && cut.contains("\"complete\":false"), "{cut}");
}

/// The request ID in a response is in the log, regardless of how the request was served.
#[test]
fn every_answer_names_its_request() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("access.log");
    let fixture = serve_with(|config| config.access_log = Some(path.clone()));
    fixture.client.send(&Call::on("PUT", "k").body("hello")).ok();
    let calls = || {
        [
            Call::on("GET", "k"),
            Call::on("HEAD", "k").header("range", "bytes=0-1"),
            Call::on("GET", "none"),
            Call::on("HEAD", "none"),
            Call::on("PUT", "k").query("nonesuch"),
            Call::new("GET", "/"),
            Call::new("DELETE", "/no-such-bucket"),
        ]
    };
    let mut answers: Vec<_> = calls().iter().map(|call| fixture.client.send(call)).collect();
    run(async {
        let http2 = Http2::connect(&fixture.client).await;
        for call in calls() {
            answers.push(http2.send(&call).await);
        }
    });
    drop(fixture);
    let log = std::fs::read_to_string(&path).unwrap();
    let host = answers[0].header("x-amz-id-2").unwrap().to_owned();
    for (at, answer) in answers.iter().enumerate() {
        let id = answer.header("x-amz-request-id").expect("no name");
        assert_eq!(id.len(), 16, "{at}");
        assert_eq!(answer.header("x-amz-id-2"), Some(host.as_str()));
        let line = log.lines().find(|line| line.contains(&format!("\"request_id\":\"{id}\"")));
        let status = format!("\"status\":{}", answer.status);
        assert!(line.is_some_and(|line| line.contains(&status)), "{at}: {id} is not in {log}");
        if answer.status >= 400 && !answer.body.is_empty() {
            assert_eq!(answer.element("RequestId").as_deref(), Some(id), "{}", answer.text());
            assert_eq!(answer.element("HostId").as_deref(), Some(host.as_str()));
        }
    }
}
