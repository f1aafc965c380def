//! Checks the statuses of requests whose connection, server or object fails in the middle of the response.

mod harness;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use harness::{Lane, Program, run};

/// What a server does after it has sent its response to a request.
#[derive(Clone, Copy, PartialEq)]
enum Afterwards {
    Close,
    Stall,
}

/// Starts a server that sends `response` to each request. Returns its address.
fn serve(response: &'static str, afterwards: Afterwards) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for connection in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || respond(&connection, response, afterwards));
        }
    });
    address
}

/// Receives one request and responds to it.
fn respond(connection: &TcpStream, response: &str, afterwards: Afterwards) -> Option<()> {
    let (mut reader, mut line, mut content_bytes) = (BufReader::new(connection), String::new(), 0);
    while reader.read_line(&mut line).ok()? > 2 {
        if let Some(length) = line.strip_prefix("content-length: ") {
            content_bytes = length.trim().parse().ok()?;
        }
        line.clear();
    }
    // A server that closes a connection with unread content resets the connection.
    reader.read_exact(&mut vec![0; content_bytes]).ok()?;
    (&mut &*connection).write_all(response.as_bytes()).ok()?;
    if afterwards == Afterwards::Stall {
        std::thread::sleep(Duration::from_secs(30));
    }
    Some(())
}

/// Returns the lines `OPERATION: STATUS, retryable|final: MESSAGE` for requests with a time limit of 1 s.
fn requests(response: &'static str, afterwards: Afterwards) -> Vec<String> {
    let program = Program::compile("breaks.c", &[]);
    let mut command = program.command(&[]);
    command.args([&serve(response, afterwards), "key", "secret", "1000"]);
    run(&mut command).lines().map(str::to_owned).collect()
}

fn check(lines: &[String], expected: &[(&str, &str)]) {
    assert_eq!(lines.len(), expected.len(), "{lines:?}");
    for (line, (start, part)) in lines.iter().zip(expected) {
        assert!(line.starts_with(start) && line.contains(part), "{start} ... {part}: {line}");
    }
}

const PART_OF_BODY: &str = "HTTP/1.1 200 OK\r\nETag: \"x\"\r\nLast-Modified: Sun, 29 Nov 2026 20:00:00 GMT\r\n\
                            Content-Length: 1000\r\n\r\nabc";

#[test]
fn a_response_that_stops_is_a_timeout() {
    let late = "ErrorRequestTimeout, retryable";
    check(
        &requests(PART_OF_BODY, Afterwards::Stall),
        &[
            (
                &format!("get: {late}: get s3://bucket/key (http): timeout: "),
                "the content stopped arriving; retry",
            ),
            (&format!("put: {late}: put s3://bucket/key (http): timeout: "), "the body stopped arriving"),
            (&format!("list: {late}: list s3://bucket (http): timeout: "), "the body stopped arriving"),
            ("head: OK", ""),
            (
                &format!("delete: {late}: delete s3://bucket/key (http): timeout: "),
                "the body stopped arriving",
            ),
        ],
    );
}

#[test]
fn a_response_that_breaks_off_is_a_failed_connection() {
    let broken = "ConnectionFailed, retryable";
    let missing = "the connection ended with 997 bytes of the body missing";
    check(
        &requests(PART_OF_BODY, Afterwards::Close),
        &[
            (&format!("get: {broken}: get s3://bucket/key (http): unavailable: {missing}; check "), ""),
            (&format!("put: {broken}: put s3://bucket/key (http): unavailable: {missing}"), ""),
            (&format!("list: {broken}: list s3://bucket (http): unavailable: {missing}"), ""),
            ("head: OK", ""),
            (&format!("delete: {broken}: delete s3://bucket/key (http): unavailable: {missing}"), ""),
        ],
    );
}

/// A proxy or an overloaded server responds without S3's error document.
#[test]
fn a_server_that_responds_is_not_a_failed_connection() {
    let said = requests("HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n", Afterwards::Close);
    for (line, name) in said.iter().zip(["get", "put", "list", "head", "delete"]) {
        assert!(line.starts_with(&format!("{name}: ErrorServiceUnavailable, ")), "{line}");
    }
    let said = requests("HTTP/1.1 301 No\r\nContent-Length: 0\r\n\r\n", Afterwards::Close);
    for (line, name) in said.iter().zip(["get", "put", "list", "head", "delete"]) {
        assert!(line.starts_with(&format!("{name}: ErrorPermanentRedirect, final: ")), "{line}");
        assert!(line.contains("the bucket is not at this endpoint"), "{line}");
    }
}

#[test]
fn an_object_that_becomes_shorter_during_a_get_has_the_same_status_on_every_lane() {
    let program = Program::compile("breaks.c", &[]);
    for (name, lane) in [("embedded", Lane::embedded()), ("node", Lane::node()), ("http", Lane::http())] {
        let file = lane.root.path().join("bucket/key");
        std::fs::create_dir(file.parent().unwrap()).unwrap();
        std::fs::write(&file, vec![7; 20_000_000]).unwrap();
        let mut command = program.command(&[]);
        command.args([&lane.host, &lane.access_key, &lane.secret_key, "0"]).arg(&file);
        let said = run(&mut command);
        let start = format!("get: ConnectionFailed, retryable: get s3://bucket/key ({name}): ");
        assert!(said.starts_with(&start), "{said}");
    }
}

#[test]
fn a_lack_of_descriptors_has_the_same_status_on_every_local_lane() {
    let program = Program::compile("descriptors.c", &[]);
    for lane in [Lane::embedded(), Lane::node()] {
        let file = lane.root.path().join("bucket/key");
        std::fs::create_dir(file.parent().unwrap()).unwrap();
        std::fs::write(&file, vec![7; 20_000_000]).unwrap();
        let mut command = program.command(&[]);
        let said = run(command.args([&lane.host, &lane.access_key, &lane.secret_key]));
        assert!(said.starts_with("first: OK\nsecond: ErrorSlowDown: get s3://bucket/key "), "{said}");
        assert!(said.contains("raise `ulimit -n`"), "{said}");
    }
}
