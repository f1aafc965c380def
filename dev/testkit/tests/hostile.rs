//! Tests the hostile server with a client that uses plain sockets. Without faults, the server must respond correctly.
//! With faults, it must deviate exactly as the script specifies.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use fordway_testkit::hostile::{HostileServer, ResponseFault, ResponseFaultScript};

const SIZE: usize = 1_000;

fn file() -> Vec<u8> {
    (0..SIZE).map(|n| (n * 7 % 251) as u8).collect()
}

fn server(script: ResponseFaultScript) -> HostileServer {
    HostileServer::start(file(), script)
}

fn connect(server: &HostileServer) -> TcpStream {
    let stream = TcpStream::connect(server.address()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    stream
}

fn request(method: &str, headers: &str) -> String {
    format!("{method} /file HTTP/1.1\r\nHost: x\r\n{headers}\r\n")
}

/// Sends one request, after which the server closes the connection. Returns the head and the body of the response.
fn exchange(server: &HostileServer, method: &str, headers: &str) -> (String, Vec<u8>) {
    let mut stream = connect(server);
    stream.write_all(request(method, &format!("{headers}Connection: close\r\n")).as_bytes()).unwrap();
    let mut all = Vec::new();
    stream.read_to_end(&mut all).unwrap();
    split(&all)
}

fn split(all: &[u8]) -> (String, Vec<u8>) {
    let at = all.windows(4).position(|window| window == b"\r\n\r\n").expect("a head");
    (String::from_utf8(all[..at + 2].to_vec()).unwrap(), all[at + 4..].to_vec())
}

/// Returns the response to a GET of `ranges` with one fault.
fn told(lie: ResponseFault, ranges: &str) -> (String, Vec<u8>) {
    exchange(&server(ResponseFaultScript::honest().always(lie)), "GET", &format!("Range: bytes={ranges}\r\n"))
}

fn text(body: &[u8]) -> String {
    String::from_utf8_lossy(body).into_owned()
}

/// Returns the `Content-Range` values of a multipart body.
fn parts(body: &[u8]) -> Vec<String> {
    let range = |line: &str| line.strip_prefix("Content-Range: bytes ").map(str::to_owned);
    text(body).lines().filter_map(range).collect()
}

#[test]
fn without_a_script_it_is_right() {
    let server = server(ResponseFaultScript::honest());
    let (head, body) = exchange(&server, "GET", "");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.contains("Content-Length: 1000\r\n"), "{head}");
    assert_eq!(body, file());
    let (head, body) = exchange(&server, "HEAD", "");
    assert!(head.contains("Content-Length: 1000\r\n") && body.is_empty(), "{head}");
    for (range, from, to) in
        [("0-0", 0, 1), ("10-19", 10, 20), ("990-", 990, 1000), ("-5", 995, 1000), ("999-5000", 999, 1000)]
    {
        let (head, body) = exchange(&server, "GET", &format!("Range: bytes={range}\r\n"));
        assert!(head.starts_with("HTTP/1.1 206 "), "{head}");
        assert!(head.contains(&format!("Content-Range: bytes {from}-{}/1000\r\n", to - 1)), "{head}");
        assert_eq!(body, &file()[from..to]);
    }
    let (head, _) = exchange(&server, "GET", "Range: bytes=1000-\r\n");
    assert!(head.starts_with("HTTP/1.1 416 ") && head.contains("Content-Range: bytes */1000\r\n"), "{head}");
    let (head, _) = exchange(&server, "PUT", "");
    assert!(head.starts_with("HTTP/1.1 405 "), "{head}");
    assert_eq!(server.requests().len(), 9);
    assert_eq!(server.connections(), 9);
}

#[test]
fn many_ranges_are_many_parts() {
    let (head, body) =
        exchange(&server(ResponseFaultScript::honest()), "GET", "Range: bytes=0-9,500-509,5000-6000\r\n");
    assert!(head.contains("Content-Type: multipart/byteranges; boundary=a-boundary"), "{head}");
    assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())), "{head}");
    assert_eq!(parts(&body), ["0-9/1000", "500-509/1000"]);
    let (start, content) = (text(&body).find("\r\n\r\n").unwrap() + 4, file());
    assert_eq!(body[start..start + 10], content[..10]);
    assert!(text(&body).ends_with("--a-boundary-of-the-hostile-server--\r\n"));
}

#[test]
fn requests_are_pipelined_and_pinned() {
    let server = server(ResponseFaultScript::honest());
    let mut stream = connect(&server);
    let pinned = |tag: &str| request("GET", &format!("Range: bytes=0-9\r\nIf-Range: {tag}\r\n"));
    let last = request("GET", "Range: bytes=5-5\r\nConnection: close\r\n");
    let all = pinned("\"version-0\"") + &pinned("\"version-9\"") + &last;
    stream.write_all(all.as_bytes()).unwrap();
    let mut answers = Vec::new();
    stream.read_to_end(&mut answers).unwrap();
    let answers = text(&answers);
    let statuses: Vec<&str> = answers.split("HTTP/1.1 ").skip(1).map(|answer| &answer[..3]).collect();
    assert_eq!(statuses, ["206", "200", "206"]);
    assert_eq!(server.connections(), 1);
    let asked = server.requests();
    assert_eq!(asked[1].header("if-range"), Some("\"version-9\""));
    assert_eq!((asked[0].ranges(), asked[0].connection, asked[0].target.as_str()), (1, 0, "/file"));
    assert_eq!(asked[0].head_bytes, pinned("\"version-0\"").len());
}

#[test]
fn contents_are_wrong_as_told() {
    let many = "0-9,20-29,25-34,900-909";
    let status = |lie| told(lie, many).0.split(' ').nth(1).map(str::to_owned);
    assert_eq!(status(ResponseFault::WholeForRange).as_deref(), Some("200"));
    assert_eq!(told(ResponseFault::WholeOverRanges(3), many).1, file());
    assert_eq!(
        told(ResponseFault::WholeOverRanges(4), many).0.lines().next(),
        Some("HTTP/1.1 206 Partial Content")
    );
    assert_eq!(status(ResponseFault::HeadBytesMax(50)).as_deref(), Some("400"));
    assert_eq!(status(ResponseFault::HeadBytesMax(500)).as_deref(), Some("206"));
    assert_eq!(told(ResponseFault::OneSpan, many).1, &file()[..910]);
    assert_eq!(told(ResponseFault::FirstRangeOnly, many).1, &file()[..10]);
    assert_eq!(
        parts(&told(ResponseFault::MergedParts(0), many).1),
        ["0-9/1000", "20-34/1000", "900-909/1000"]
    );
    assert_eq!(parts(&told(ResponseFault::MergedParts(10), many).1), ["0-34/1000", "900-909/1000"]);
    let reversed = ["900-909/1000", "25-34/1000", "20-29/1000", "0-9/1000"];
    assert_eq!(parts(&told(ResponseFault::ReversedParts, many).1), reversed);
    assert_eq!(
        parts(&told(ResponseFault::MissingPart(1), many).1),
        ["0-9/1000", "25-34/1000", "900-909/1000"]
    );
    let (head, body) = told(ResponseFault::Version(3), "0-0");
    assert!(head.contains("ETag: \"version-3\"\r\n"), "{head}");
    assert_eq!(body, [file()[0] ^ 3]);
}

#[test]
fn if_range_can_be_ignored() {
    let headers = "Range: bytes=0-9\r\nIf-Range: \"version-0\"\r\n";
    let changed = ResponseFaultScript::honest().always(ResponseFault::Version(1));
    assert_eq!(exchange(&server(changed.clone()), "GET", headers).1.len(), SIZE);
    assert_eq!(exchange(&server(changed.always(ResponseFault::IgnoresIfRange)), "GET", headers).1.len(), 10);
}

#[test]
fn heads_are_wrong_as_told() {
    assert!(
        told(ResponseFault::ContentRangeMoved(-3), "10-19").0.contains("Content-Range: bytes 7-16/1000\r\n")
    );
    assert_eq!(parts(&told(ResponseFault::ContentRangeMoved(3), "0-9,20-29").1), ["3-12/1000", "23-32/1000"]);
    assert!(
        told(ResponseFault::ContentRangeSize(77), "10-19").0.contains("Content-Range: bytes 10-19/77\r\n")
    );
    let (head, body) = told(ResponseFault::PartBytesOff(2), "10-19");
    assert!(head.contains("Content-Range: bytes 10-19/1000\r\n") && head.contains("Content-Length: 12\r\n"));
    assert_eq!(body, [&file()[10..20], b"??"].concat());
    let longer = told(ResponseFault::PartBytesOff(3), "0-9,20-29").1.len();
    assert_eq!(longer, told(ResponseFault::PartBytesOff(-3), "0-9,20-29").1.len() + 12);
    assert!(!told(ResponseFault::NoContentRange, "10-19").0.contains("Content-Range"));
    assert!(parts(&told(ResponseFault::NoContentRange, "0-9,20-29").1).is_empty());
    assert!(!told(ResponseFault::NoETag, "10-19").0.contains("ETag"));
    let (head, body) = told(ResponseFault::Boundary("o'dd (b)=?", true), "0-9,20-29");
    assert!(
        head.contains("boundary=\"o'dd (b)=?\"\r\n") && text(&body).starts_with("--o'dd (b)=?\r\n"),
        "{head}"
    );
    assert!(!text(&told(ResponseFault::NoFinalBoundary, "0-9,20-29").1).contains("server--"));
    let preamble = told(ResponseFault::Preamble, "0-9,20-29").1;
    assert!(text(&preamble).starts_with("What follows") && text(&preamble).ends_with("That was all.\r\n"));
    let server = server(ResponseFaultScript::honest().always(ResponseFault::BareLineFeeds));
    let mut lines = connect(&server);
    lines.write_all(request("GET", "Range: bytes=0-9,20-29\r\nConnection: close\r\n").as_bytes()).unwrap();
    let mut all = Vec::new();
    lines.read_to_end(&mut all).unwrap();
    assert!(!text(&all).contains('\r') && text(&all).contains("\n--a-boundary-of-the-hostile-server\n"));
}

#[test]
fn answers_can_be_none() {
    let (head, body) = told(ResponseFault::Status(503, Some(2)), "0-9");
    assert!(
        head.starts_with("HTTP/1.1 503 ") && head.contains("Retry-After: 2\r\n") && body.is_empty(),
        "{head}"
    );
    let (head, _) = told(ResponseFault::Redirect(302, "http://127.0.0.1:1/x".to_owned()), "0-9");
    assert!(
        head.starts_with("HTTP/1.1 302 ") && head.contains("Location: http://127.0.0.1:1/x\r\n"),
        "{head}"
    );
}

#[test]
fn bodies_are_framed_as_told() {
    let (head, body) = told(ResponseFault::Chunked(7), "0-9");
    assert!(head.contains("Transfer-Encoding: chunked\r\n") && !head.contains("Content-Length"), "{head}");
    let content = file();
    let expected = [b"7\r\n", &content[..7], b"\r\n3\r\n", &content[7..10], b"\r\n0\r\n\r\n"].concat();
    assert_eq!(body, expected);
    let (head, body) = told(ResponseFault::UntilClose, "0-9");
    assert!(!head.contains("Content-Length") && head.contains("Connection: close\r\n"), "{head}");
    assert_eq!(body, &content[..10]);
    let (head, body) = told(ResponseFault::ContentLengthOff(5), "0-9");
    assert!(head.contains("Content-Length: 15\r\n"), "{head}");
    assert_eq!(body.len(), 10);
}

/// Returns the number of body bytes that arrive before the connection ends, and the error that ends the connection.
fn until_the_end(lie: ResponseFault) -> (usize, Option<ErrorKind>) {
    let server = server(ResponseFaultScript::honest().always(lie));
    let mut stream = connect(&server);
    stream.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    stream.write_all(request("GET", "").as_bytes()).unwrap();
    let (mut all, mut buf) = (Vec::new(), [0; 4096]);
    let end = loop {
        match stream.read(&mut buf) {
            Ok(0) => break None,
            Ok(len) => all.extend(&buf[..len]),
            Err(error) => break Some(error.kind()),
        }
    };
    (split(&all).1.len(), end)
}

#[test]
fn connections_end_as_told() {
    assert_eq!(until_the_end(ResponseFault::ResetAt(123)), (123, Some(ErrorKind::ConnectionReset)));
    assert_eq!(until_the_end(ResponseFault::CloseAt(123)), (123, None));
    assert_eq!(until_the_end(ResponseFault::StallAt(123)), (123, Some(ErrorKind::WouldBlock)));
    assert_eq!(until_the_end(ResponseFault::ClosesAfter), (SIZE, None));
}

#[test]
fn pipelined_requests_can_be_dropped() {
    let server = server(ResponseFaultScript::honest().always(ResponseFault::DropsPipelined));
    let mut stream = connect(&server);
    let three = request("GET", "Range: bytes=0-9\r\n").repeat(3);
    stream.write_all(three.as_bytes()).unwrap();
    let mut all = Vec::new();
    stream.read_to_end(&mut all).unwrap();
    let (head, body) = split(&all);
    assert!(!head.contains("Connection: close"), "{head}");
    assert_eq!(body, &file()[..10], "one response and no more");
}

#[test]
fn heads_can_be_slow() {
    let start = Instant::now();
    told(ResponseFault::SlowHead(Duration::from_millis(1)), "0-9");
    assert!(start.elapsed() > Duration::from_millis(100), "a head of more than 100 bytes");
}

#[test]
fn lies_are_told_when_they_are_due() {
    let busy = || ResponseFault::Status(503, None);
    let script = ResponseFaultScript::honest().on_requests(1..2, busy()).on_connections(3..4, busy());
    let server = server(script);
    let statuses: Vec<String> = (0..5).map(|_| exchange(&server, "GET", "").0[9..12].to_owned()).collect();
    assert_eq!(statuses, ["200", "503", "200", "503", "200"]);
    server.follow(ResponseFaultScript::honest().always(busy()));
    assert_eq!(&exchange(&server, "GET", "").0[9..12], "503");
}
