//! Tests servers that are slow, broken or wrong. Every call must return the right bytes or a clear error.

use std::time::{Duration, Instant};

use crate::scripted::{Server, Step, answer, bucket, error, key, object};
use fordway_client::s3::S3Config;
use fordway_store::{
    ByteRange, Checksum, ChecksumAlgorithm, Conditions, ErrorKind, GetOptions, Objects, PutOptions, Result,
};

fn read(server: &Server, change: impl FnOnce(&mut S3Config)) -> Result<Vec<u8>> {
    let mut buffer = b"left over".to_vec();
    server.store(change).read(&bucket(), &key("k"), &GetOptions::default(), &mut buffer)?;
    Ok(buffer)
}

fn once(config: &mut S3Config) {
    config.max_retries = 0;
}

/// Disables retries and sets short timeouts.
fn hasty(config: &mut S3Config) {
    let short = Duration::from_millis(300);
    (config.timeouts.first_byte, config.timeouts.progress) = (short, short);
    config.max_retries = 0;
}

/// Returns the error kind of a single GET whose response is `answer`, without retries.
fn kind_of(answer: &[u8]) -> Option<ErrorKind> {
    let server = Server::start(vec![vec![Step::Request, Step::Send(answer.to_vec())]]);
    read(&server, once).err().map(|error| error.kind())
}

#[test]
fn connections_are_reused_and_buffers_recycled() {
    let bodies: [&[u8]; 4] = [b"first", &[7; 100_000], b"", b"last"];
    let server = Server::answering(bodies.map(object).to_vec());
    let store = server.store(once);
    let mut buffer = Vec::new();
    for body in bodies {
        let size = store.read(&bucket(), &key("a b"), &GetOptions::default(), &mut buffer).unwrap();
        assert_eq!((buffer.as_slice(), size), (body, body.len() as u64));
    }
    let seen = server.seen();
    assert_eq!(seen.len(), 4);
    assert_eq!(seen[0].line(), "GET /bucket/a%20b HTTP/1.1");
    assert!(seen[0].header("authorization").unwrap().starts_with("AWS4-HMAC-SHA256 Credential=AK/"));
}

#[test]
fn a_head_that_never_comes_is_a_timeout() {
    let server = Server::start(vec![vec![Step::Request, Step::Pause(Duration::from_secs(20))]]);
    let started = Instant::now();
    let error = read(&server, hasty).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert!(started.elapsed() < Duration::from_secs(15));
}

#[test]
fn a_call_has_a_limit_in_all_however_often_it_may_be_tried() {
    let silent = || vec![Step::Request, Step::Pause(Duration::from_secs(30))];
    let server = Server::start(vec![silent(), silent(), silent()]);
    let started = Instant::now();
    let patient = |config: &mut S3Config| {
        config.timeouts.first_byte = Duration::from_secs(60);
        (config.timeout, config.max_retries) = (Some(Duration::from_millis(400)), 100);
    };
    assert_eq!(read(&server, patient).unwrap_err().kind(), ErrorKind::Timeout);
    let took = started.elapsed();
    assert!(took >= Duration::from_millis(400) && took < Duration::from_secs(20), "{took:?}");
}

#[test]
fn a_head_that_drips_is_a_timeout_too() {
    let drip = Step::Drip(object("x"), Duration::from_millis(250));
    let server = Server::start(vec![vec![Step::Request, drip]]);
    let started = Instant::now();
    assert_eq!(read(&server, hasty).unwrap_err().kind(), ErrorKind::Timeout);
    assert!(started.elapsed() < Duration::from_secs(15));
}

#[test]
fn a_body_that_stops_is_a_timeout() {
    let mut cut = object("0123456789");
    cut.truncate(cut.len() - 5);
    let script = vec![Step::Request, Step::Send(cut), Step::Pause(Duration::from_secs(20))];
    assert_eq!(read(&Server::start(vec![script]), hasty).unwrap_err().kind(), ErrorKind::Timeout);
}

#[test]
fn a_body_cut_short_is_never_taken_for_the_whole() {
    let whole = object([1; 50_000]);
    for kept in [whole.len() - 1, whole.len() - 30_000] {
        assert_eq!(kind_of(&whole[..kept]), Some(ErrorKind::Unavailable));
    }
    let server = Server::start(vec![vec![Step::Request, Step::Send(whole[..1000].to_vec())]]);
    let opened = server.store(once).get(&bucket(), &key("k"), &GetOptions::default()).unwrap();
    assert_eq!(opened.content.into_vec().unwrap_err().kind(), ErrorKind::Unavailable);
}

/// Returns a partial response for bytes 2 to 5 of nine, with `framing` as its last header and `body` after its head.
fn partial(framing: &str, body: &str) -> Vec<u8> {
    let head = "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 2-5/9\r\nETag: \"e\"\r\n";
    format!("{head}{framing}\r\n\r\n{body}").into_bytes()
}

#[test]
fn a_body_that_does_not_end_with_its_range_is_an_error() {
    let options = GetOptions { range: Some(ByteRange::Inclusive(2, 5)), ..Default::default() };
    let part = GetOptions { part: Some(2), ..Default::default() };
    for (framing, body, kind) in [
        ("Transfer-Encoding: chunked", "4\r\nabcd\r\n0\r\n\r\n", None),
        ("Transfer-Encoding: chunked", "4\r\nabcd\r\n3\r\nefg\r\n0\r\n\r\n", Some(ErrorKind::BadResponse)),
        ("Transfer-Encoding: chunked", "7\r\nabcdefg\r\n0\r\n\r\n", Some(ErrorKind::BadResponse)),
        ("Transfer-Encoding: chunked", "3\r\nabc\r\n0\r\n\r\n", Some(ErrorKind::Unavailable)),
        ("Transfer-Encoding: chunked", "4\r\nabcd\r\n", Some(ErrorKind::Unavailable)),
        ("Connection: close", "abcd", None),
        ("Connection: close", "abcdefg", Some(ErrorKind::BadResponse)),
        ("Connection: close", "abc", Some(ErrorKind::Unavailable)),
    ] {
        for options in [&options, &part] {
            let script = || vec![Step::Request, Step::Send(partial(framing, body))];
            let server = Server::start(vec![script(), script()]);
            let store = server.store(once);
            let mut buffer = Vec::new();
            let read = store.read(&bucket(), &key("k"), options, &mut buffer).map(|_| buffer);
            let got = store.get(&bucket(), &key("k"), options).and_then(|object| object.content.into_vec());
            for result in [read, got] {
                assert_eq!(
                    result.as_ref().err().map(|error| error.kind()),
                    kind,
                    "{framing} {body:?}: {result:?}"
                );
                assert!(kind.is_some() || result.unwrap() == b"abcd");
            }
        }
    }
}

/// Memory grows only with the bytes that arrive, regardless of the length that a server reports.
#[test]
fn a_length_out_of_all_proportion_costs_no_memory() {
    for length in [1_u64 << 40, 1 << 50, i64::MAX as u64, u64::MAX] {
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nETag: \"e\"\r\n\r\n0123456789");
        let kind = kind_of(head.as_bytes()).unwrap();
        let is_told =
            matches!(kind, ErrorKind::Unavailable | ErrorKind::BadResponse | ErrorKind::EntityTooLarge);
        assert!(is_told, "{length}: {kind:?}");
        let script = || vec![Step::Request, Step::Send(head.clone().into_bytes())];
        let server = Server::start(vec![script()]);
        let opened = server.store(once).get(&bucket(), &key("k"), &GetOptions::default());
        assert!(opened.and_then(|object| object.content.into_vec()).is_err(), "{length}");
    }
}

/// Memory grows only with the bytes that arrive, even if the response to a range request contains a huge length.
#[test]
fn ranges_of_a_file_out_of_all_proportion_cost_no_memory() {
    for size in [1_u64 << 40, i64::MAX as u64] {
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {size}\r\nETag: \"e\"\r\n\r\n");
        let last = size - 1;
        let body = format!(
            "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 9-{last}/{size}\r\nContent-Length: {}\r\nETag: \"e\"\r\n\r\nabc",
            size - 9
        );
        let server = Server::start(vec![
            vec![Step::Request, Step::Send(head.into_bytes())],
            vec![Step::Request, Step::Send(body.into_bytes())],
        ]);
        let ranges = [ByteRange::From(9)];
        let read = server.store(once).read_ranges(&bucket(), &key("k"), &ranges, &GetOptions::default());
        assert!(read.is_err(), "{size}");
    }
}

#[test]
fn a_read_that_was_cut_is_done_again() {
    let whole = object([1; 50_000]);
    let cut = vec![Step::Request, Step::Send(whole[..20_000].to_vec())];
    let server = Server::start(vec![cut, vec![Step::Request, Step::Send(whole)]]);
    assert_eq!(read(&server, |_| {}).unwrap(), [1; 50_000]);
}

#[test]
fn bytes_beyond_the_length_are_not_the_next_answer() {
    let mut long = object("right");
    long.extend_from_slice(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nwrong");
    let reused = vec![Step::Request, Step::Send(long), Step::Request, Step::Send(object("wrong"))];
    let server = Server::start(vec![reused, vec![Step::Request, Step::Send(object("again"))]]);
    let store = server.store(once);
    for expected in ["right", "again"] {
        let object = store.get(&bucket(), &key("k"), &GetOptions::default()).unwrap();
        assert_eq!(object.content.into_vec().unwrap(), expected.as_bytes());
    }
    assert_eq!(server.seen()[1].connection, 1);
}

#[test]
fn what_is_not_http_is_a_bad_response() {
    for garbage in [
        "SSH-2.0-OpenSSH_9.2\r\n",
        "HTTP/1.1 abc\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 3\r\ncontent-length: 4\r\n\r\nabcd",
        "HTTP/1.1 200 OK\r\ncontent-length: -3\r\n\r\nabcd",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\nabcd",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabcd\r\n0\r\n\r\n",
        "HTTP/1.1 206 Partial\r\ncontent-length: 3\r\n\r\nabc",
        "HTTP/1.1 200 OK\r\ncontent-len",
    ] {
        assert_eq!(kind_of(garbage.as_bytes()), Some(ErrorKind::BadResponse), "{garbage:?}");
    }
    let endless = [b"HTTP/1.1 200 OK\r\nx: ".to_vec(), vec![b'a'; 300_000]].concat();
    assert_eq!(kind_of(&endless), Some(ErrorKind::BadResponse));
    assert_eq!(kind_of(b""), Some(ErrorKind::Unavailable));
}

#[test]
fn chunks_of_any_cut_are_joined() {
    let head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
    let large = "y".repeat(40_000);
    let body =
        format!("5\r\nhello\r\n1;ext=1\r\n \r\n{:X}\r\n{large}\r\n0\r\ntrailer: x\r\n\r\n", large.len());
    let small = "5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n";
    let script = vec![
        Step::Request,
        Step::Send([head.as_bytes(), body.as_bytes()].concat()),
        Step::Request,
        Step::Send(head.as_bytes().to_vec()),
        Step::Drip(small.as_bytes().to_vec(), Duration::from_millis(1)),
    ];
    let server = Server::start(vec![script]);
    let store = server.store(once);
    for expected in [format!("hello {large}"), "hello world".to_owned()] {
        let object = store.get(&bucket(), &key("k"), &GetOptions::default()).unwrap();
        assert_eq!(object.info.size, expected.len() as u64);
        assert_eq!(object.content.into_vec().unwrap(), expected.as_bytes());
    }
    assert_eq!(server.seen().len(), 2, "the connection was kept");
    let cut = format!("{head}5\r\nhello\r\n");
    assert_eq!(kind_of(cut.as_bytes()), Some(ErrorKind::Unavailable));
}

#[test]
fn interim_answers_are_passed_over_and_a_body_may_end_with_the_connection() {
    let interim = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n\r\nto the end".to_vec();
    let server = Server::start(vec![vec![Step::Request, Step::Send(interim)]]);
    assert_eq!(read(&server, once).unwrap(), b"to the end");
}

#[test]
fn a_busy_server_is_asked_again() {
    let busy = || error(503, "SlowDown", "");
    let server = Server::answering(vec![busy(), busy(), object("at last")]);
    assert_eq!(read(&server, |_| {}).unwrap(), b"at last");

    let server = Server::answering(vec![busy(), busy(), busy(), object("too late")]);
    let error = read(&server, |_| {}).unwrap_err();
    assert_eq!((error.kind(), error.tries()), (ErrorKind::Unavailable, 3));
    assert!(
        error.to_string().starts_with("get s3://bucket/k (http): unavailable: it says so (SlowDown"),
        "{error}"
    );
}

#[test]
fn what_cannot_pass_is_not_tried_again() {
    let server = Server::answering(vec![error(404, "NoSuchKey", ""), object("never")]);
    let error = read(&server, |_| {}).unwrap_err();
    assert_eq!((error.kind(), error.tries()), (ErrorKind::NoSuchKey, 1));
}

#[test]
fn nobody_listening_is_unavailable() {
    let server = Server::start(vec![]);
    let store = server.store(once);
    server.seen();
    let error = store.list_buckets().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("cannot connect to http://127.0.0.1:"), "{error}");
}

/// The server closes an idle connection. The next request succeeds on a new connection, even if the request is not
/// idempotent.
#[test]
fn a_connection_closed_while_idle_is_replaced() {
    let script = |body| vec![Step::Request, Step::Send(object(body))];
    let server = Server::start(vec![script("one"), script("two"), script("")]);
    let store = server.store(once);
    let mut buffer = Vec::new();
    for expected in ["one", "two"] {
        store.read(&bucket(), &key("k"), &GetOptions::default(), &mut buffer).unwrap();
        assert_eq!(buffer, expected.as_bytes());
        std::thread::sleep(Duration::from_millis(50));
    }
    let create = PutOptions { conditions: Conditions::create_only(), ..Default::default() };
    store.put(&bucket(), &key("k"), b"x", &create).unwrap();
    assert_eq!(server.seen().len(), 3);
}

#[test]
fn a_conditional_write_is_never_sent_twice_on_a_guess() {
    let cut = || vec![Step::Request];
    let server = Server::start(vec![cut(), vec![Step::Request, Step::Send(answer(200, "", ""))]]);
    let create = PutOptions { conditions: Conditions::create_only(), ..Default::default() };
    let error = server.store(|_| {}).put(&bucket(), &key("k"), b"x", &create).unwrap_err();
    assert_eq!((error.kind(), error.tries()), (ErrorKind::Unavailable, 1));

    let server = Server::start(vec![cut(), vec![Step::Request, Step::Send(object(""))]]);
    server.store(|_| {}).put(&bucket(), &key("k"), b"x", &PutOptions::default()).unwrap();
    assert_eq!(server.seen().len(), 2, "a plain one is");
}

#[test]
fn a_refusal_before_the_body_was_read_is_heard() {
    let refusal =
        vec![Step::Head, Step::Send(error(403, "AccessDenied", "")), Step::Pause(Duration::from_millis(50))];
    let server = Server::start(vec![refusal]);
    let body = vec![0; 32 << 20];
    let error = server.store(once).put(&bucket(), &key("k"), &body, &PutOptions::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AccessDenied);
    assert!(error.to_string().contains("access key AK from a test"), "{error}");
}

/// A response that precedes the content or has no ETag must not count as a success. Otherwise, `mv` would delete the
/// source.
#[test]
fn a_success_that_cannot_be_one_is_not_believed() {
    let put = |script: Vec<Step>, body: &[u8]| {
        let server = Server::start(vec![script]);
        server.store(once).put(&bucket(), &key("k"), body, &PutOptions::default())
    };
    let early = vec![Step::Head, Step::Send(object("")), Step::Pause(Duration::from_millis(50))];
    let error = put(early, &vec![0; 32 << 20]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadResponse, "{error}");
    assert!(error.to_string().contains("before it had received the content"), "{error}");
    let login_page = answer(200, "content-type: text/html\r\n", "<html>Log in</html>");
    let error = put(vec![Step::Request, Step::Send(login_page)], b"content").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadResponse, "{error}");
}

#[test]
fn an_object_without_a_size_is_not_empty() {
    let head = || b"HTTP/1.1 200 OK\r\netag: \"t\"\r\n\r\n".to_vec();
    let server = Server::answering(vec![head()]);
    let error = server.store(once).head(&bucket(), &key("k"), &GetOptions::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadResponse, "{error}");
    let server = Server::answering(vec![head()]);
    let opened = server.store(once).open_file(&bucket(), &key("k"));
    assert_eq!(opened.err().unwrap().kind(), ErrorKind::BadResponse);
}

#[test]
fn corrupted_bytes_are_found_by_their_checksum() {
    let stated = Checksum::of(ChecksumAlgorithm::Crc32c, b"as written").to_base64();
    let headers = format!("x-amz-checksum-crc32c: {stated}\r\n");
    let answers = || vec![answer(200, &headers, "As written"); 2];
    assert_eq!(read(&Server::answering(answers()), once).unwrap_err().kind(), ErrorKind::BadDigest);
    let server = Server::answering(answers());
    let opened = server.store(once).get(&bucket(), &key("k"), &GetOptions::default()).unwrap();
    assert_eq!(opened.content.into_vec().unwrap_err().kind(), ErrorKind::BadDigest);
    assert!(read(&Server::answering(answers()), |config| config.verify_reads = false).is_ok());
    let right = answer(200, &headers, "as written");
    assert_eq!(read(&Server::answering(vec![right]), once).unwrap(), b"as written");
}

/// The ETags of objects that are encrypted with a key of KMS or of the client look like an MD5.
#[test]
fn the_etag_of_an_encrypted_object_is_not_an_md5() {
    let tag = "0123456789abcdef0123456789abcdef";
    for (encryption, is_md5) in [
        ("", true),
        ("x-amz-server-side-encryption: AES256\r\n", true),
        ("x-amz-server-side-encryption: aws:kms\r\n", false),
        ("x-amz-server-side-encryption: aws:kms:dsse\r\n", false),
        ("x-amz-server-side-encryption-customer-algorithm: AES256\r\n", false),
    ] {
        let headers = format!("ETag: \"{tag}\"\r\n{encryption}");
        let store = |body| Server::answering(vec![answer(200, &headers, body)]).store(once);
        let opened = store("body").get(&bucket(), &key("k"), &GetOptions::default()).unwrap();
        let found = store("").head(&bucket(), &key("k"), &GetOptions::default()).unwrap();
        for info in [&opened.info, &found] {
            assert_eq!((info.etag.as_str(), info.etag.as_md5().is_some()), (tag, is_md5), "{encryption}");
        }
    }
}

#[test]
fn ranges_are_what_was_asked_for() {
    let part = |range: &str| answer(206, &format!("content-range: bytes {range}\r\n"), "2345");
    // If a response has unread bytes, the client closes the connection.
    let script = |answers: Vec<Vec<u8>>| {
        answers.into_iter().flat_map(|answer| [Step::Request, Step::Send(answer)]).collect::<Vec<_>>()
    };
    let server = Server::start(vec![
        script(vec![part("2-5/10"), object("0123456789")]),
        script(vec![part("3-6/10")]),
        script(vec![object("0123")]),
    ]);
    let store = server.store(once);
    let mut buffer = Vec::new();
    let range = GetOptions::range(ByteRange::Inclusive(2, 5));
    let mut read =
        || store.read(&bucket(), &key("k"), &range, &mut buffer).map(|size| (size, buffer.clone()));
    assert_eq!(read().unwrap(), (10, b"2345".to_vec()));
    assert_eq!(read().unwrap(), (10, b"2345".to_vec()), "from a server that knows no ranges");
    assert_eq!(read().unwrap_err().kind(), ErrorKind::BadResponse);
    let past_the_end = GetOptions::range(ByteRange::From(4));
    let error = store.get(&bucket(), &key("k"), &past_the_end).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidRange);
}

#[test]
fn errors_say_what_to_do() {
    let message = |answer: Vec<u8>| {
        let error = read(&Server::answering(vec![answer]), once).unwrap_err();
        (error.kind(), error.to_string())
    };
    let (kind, text) = message(answer(301, "x-amz-bucket-region: eu-west-1\r\n", ""));
    assert_eq!(kind, ErrorKind::InvalidArgument);
    assert!(text.contains("set AWS_REGION=eu-west-1"), "{text}");
    let server = Server::answering(vec![answer(301, "", ""), answer(307, "location: http://other/\r\n", "")]);
    let store = server.store(once);
    for (code, part) in [
        ("PermanentRedirect", "HTTP status 301; the bucket is not at this endpoint or not in region "),
        ("TemporaryRedirect", "HTTP status 307; use the endpoint http://other/"),
    ] {
        let error = store.head(&bucket(), &key("k"), &GetOptions::default()).unwrap_err();
        assert_eq!((error.kind(), error.s3_code()), (ErrorKind::InvalidArgument, Some(code)));
        assert!(error.to_string().contains(part), "{error}");
    }
    let times = "<RequestTime>20130524T000000Z</RequestTime><ServerTime>2013-05-24T01:00:00Z</ServerTime>";
    let (kind, text) = message(error(403, "RequestTimeTooSkewed", times));
    assert_eq!(kind, ErrorKind::RequestTimeTooSkewed);
    assert!(text.contains("this machine's clock says ") && text.contains("2013-05-24T01:00:00Z"), "{text}");
    let (kind, text) = message(answer(502, "", "<html>nginx"));
    assert_eq!((kind, text.contains("HTTP status 502")), (ErrorKind::Unavailable, true), "{text}");
    let busy = |status| {
        let error = read(&Server::answering(vec![answer(status, "", "")]), once).unwrap_err();
        (error.kind(), error.s3_code().map(str::to_owned))
    };
    for (status, code) in [(429, "SlowDown"), (502, "ServiceUnavailable"), (503, "ServiceUnavailable")] {
        assert_eq!(busy(status), (ErrorKind::Unavailable, Some(code.to_owned())), "{status}");
    }
}

/// S3 services implement HEAD, so a refused HEAD is not followed by another GET.
#[test]
fn ranges_that_are_refused_are_not_requested_again() {
    let connection = || vec![Step::Request, Step::Send(answer(400, "", ""))];
    let server = Server::start(vec![connection(), connection(), connection()]);
    let ranges = [ByteRange::Inclusive(0, 1), ByteRange::Inclusive(10_000_000, 10_000_001)];
    let read = server.store(once).read_ranges(&bucket(), &key("k"), &ranges, &GetOptions::default());
    assert_eq!(read.unwrap_err().kind(), ErrorKind::InvalidArgument);
    let seen = server.seen();
    let seen: Vec<_> = seen.iter().map(|seen| seen.line().split(' ').next().unwrap()).collect();
    assert_eq!(seen, ["GET", "HEAD", "HEAD"]);
}

#[test]
fn a_head_request_has_no_document_but_still_a_kind() {
    let bare = answer(404, "", "");
    let told =
        b"HTTP/1.1 404 No\r\nx-fordway-error-code: NoSuchBucket\r\ncontent-length: 99\r\n\r\n".to_vec();
    let server = Server::answering(vec![bare.clone(), told, bare]);
    let store = server.store(once);
    let head = || store.head(&bucket(), &key("k"), &GetOptions::default()).unwrap_err().kind();
    assert_eq!(head(), ErrorKind::NoSuchKey);
    assert_eq!(head(), ErrorKind::NoSuchBucket);
    assert_eq!(store.head_bucket(&bucket()).unwrap_err().kind(), ErrorKind::NoSuchBucket);
    assert_eq!(server.seen().len(), 3);
}
