//! Tests several ranges in one response, over HTTP/1.1 and HTTP/2.

mod client;

use std::ops::Range;

use client::http2::{Http2, run};
use client::{Answer, BUCKET, Call, Fixture, serve, serve_with};
use fordway_wire::byteranges::{ByterangesParser, ByterangesParserStep, boundary_of};

/// Returns the parts of a `multipart/byteranges` response.
fn parts_of(answer: &Answer) -> Vec<(Range<u64>, Vec<u8>)> {
    assert_eq!(answer.status, 206);
    assert_eq!(answer.header("content-length"), Some(&*answer.body.len().to_string()));
    let boundary = boundary_of(answer.header("content-type").unwrap()).unwrap();
    let (mut parts, mut body, mut found) = (ByterangesParser::new(&boundary), &answer.body[..], Vec::new());
    while !body.is_empty() {
        let step = parts.step(body).expect("a well-formed body");
        match &step {
            ByterangesParserStep::Part(_, range, size) => {
                assert!(size.is_some());
                found.push((range.clone(), Vec::new()));
            }
            ByterangesParserStep::Data(count) => {
                found.last_mut().unwrap().1.extend_from_slice(&body[..*count])
            }
            ByterangesParserStep::Skip(_) | ByterangesParserStep::End(_) => {}
        }
        body = &body[step.len()..];
    }
    assert!(parts.has_ended(), "the body is cut");
    found
}

fn content() -> Vec<u8> {
    (0..900_000u32).map(|i| (i * 7 / 5) as u8).collect()
}

/// Puts [`content`] and returns its ETag.
fn put(fixture: &Fixture) -> String {
    let put = Call::on("PUT", "k").header("content-type", "text/x").header("x-amz-meta-a", "b");
    fixture.client.send(&put.body(content())).ok().header("etag").unwrap().to_owned()
}

/// Sends the call over HTTP/1.1 and HTTP/2, and checks that the responses differ only in random or dated values.
fn both_ways(fixture: &Fixture, call: &Call<'_>) -> Answer {
    let over_1 = fixture.client.send(call);
    run(async {
        let over_2 = Http2::connect(&fixture.client).await.send(call).await;
        assert_eq!(over_1.status, over_2.status);
        assert_eq!(over_1.body.len(), over_2.body.len());
        for name in ["etag", "x-amz-meta-a", "accept-ranges", "content-range", "last-modified"] {
            assert_eq!(over_1.header(name), over_2.header(name), "{name}");
        }
        if over_1.status == 206 {
            assert!(parts_of(&over_1) == parts_of(&over_2));
        }
    });
    over_1
}

#[test]
fn several_ranges_come_in_one_answer() {
    let fixture = serve();
    let (tag, content) = (put(&fixture), content());
    let ask = |range: &str| both_ways(&fixture, &Call::on("GET", "k").header("range", range));
    let answer = ask("bytes=5-9, 800000-, 100-300099, -1,9999999-");
    assert_eq!((answer.header("etag"), answer.header("x-amz-meta-a")), (Some(&*tag), Some("b")));
    assert!(answer.text().contains("content-type: text/x\r\n"));
    let expected = [5..10, 800_000..900_000, 100..300_100, 899_999..900_000];
    let expected =
        expected.map(|range| (range.clone(), content[range.start as usize..range.end as usize].to_vec()));
    assert!(parts_of(&answer) == expected);

    let many: Vec<String> = (0..1000).map(|n| format!("{}-{}", n * 900, n * 900 + 49)).collect();
    let parts = parts_of(&ask(&format!("bytes={}", many.join(","))));
    assert_eq!(parts.len(), 1000);
    assert!(parts.iter().all(|(range, part)| content[range.start as usize..][..50] == part[..]));

    let beyond = ask("bytes=900000-,-0");
    assert_eq!(beyond.error(), (416, "InvalidRange".to_owned()));
    assert_eq!(beyond.header("content-range"), Some("bytes */900000"));
    assert_eq!(ask("bytes=0-,0-").error(), (416, "InvalidRange".to_owned()));
    let missing = Call::on("GET", "none").header("range", "bytes=0-0,2-2");
    assert_eq!(both_ways(&fixture, &missing).error(), (404, "NoSuchKey".to_owned()));
}

#[test]
fn conditions_hold_and_what_is_not_understood_is_refused() {
    let fixture = serve();
    let tag = put(&fixture);
    let with = |name: &'static str, value: &str| {
        both_ways(&fixture, &Call::on("GET", "k").header("range", "bytes=0-0,2-2").header(name, value))
    };
    assert_eq!(parts_of(&with("if-match", &tag)).len(), 2);
    assert_eq!(parts_of(&with("if-none-match", "\"other\"")).len(), 2);
    assert_eq!(with("if-match", "\"other\"").error(), (412, "PreconditionFailed".to_owned()));
    assert_eq!(with("if-none-match", &tag).status, 304);
    assert_eq!(parts_of(&with("if-modified-since", "Fri, 01 Jan 2021 00:00:00 GMT")).len(), 2);
    assert_eq!(with("if-modified-since", "Fri, 01 Jan 2100 00:00:00 GMT").status, 304);
    assert_eq!(parts_of(&with("if-range", &tag)).len(), 2);
    assert_eq!(with("if-range", "\"other\"").body, content());
    let part = Call::on("GET", "k").header("range", "bytes=0-0,2-2").query("partNumber=1");
    assert_eq!(both_ways(&fixture, &part).status, 400);
}

/// A response header that a request sets has a limit, so that a short request cannot occupy much memory.
#[test]
fn a_chosen_header_has_a_limit() {
    let fixture = serve();
    put(&fixture);
    let ranges = (0..1000).map(|n| format!("{}-{0}", n * 9)).collect::<Vec<_>>().join(",");
    for name in ["content-type", "content-disposition", "cache-control"] {
        for (length, status) in [(4096, 206), (4097, 400)] {
            let query = format!("response-{name}={}", "x".repeat(length));
            let call = Call::on("GET", "k").query(&query).header("range", format!("bytes={ranges}"));
            let answer = both_ways(&fixture, &call);
            assert_eq!(answer.status, status, "{name} {length}");
            if status == 400 {
                assert_eq!(answer.error().1, "InvalidArgument");
            } else {
                assert_eq!(parts_of(&answer).len(), 1000);
            }
        }
    }
}

/// A user who is not permitted to read an object cannot read ranges of the object either.
#[test]
fn signatures_are_checked_as_for_all_else() {
    let fixture = serve();
    put(&fixture);
    let mut stranger = fixture.client.clone();
    stranger.identity.secret_key.push('x');
    let call = Call::on("GET", "k").header("range", "bytes=0-0,2-2");
    assert_eq!(stranger.send(&call).error(), (403, "SignatureDoesNotMatch".to_owned()));
    let raw = |query: &str| {
        let request = format!(
            "GET /{BUCKET}/k{query} HTTP/1.1\r\nhost: {}\r\nrange: bytes=0-0,2-2\r\nconnection: close\r\n\r\n",
            fixture.client.address
        );
        fixture.client.send_raw("GET", &request)
    };
    assert_eq!(raw("").error(), (403, "AccessDenied".to_owned()));
    let presigned = fixture.client.presigned("GET", &format!("/{BUCKET}/k"), 60);
    assert_eq!(parts_of(&raw(&format!("?{presigned}"))).len(), 2);
}

#[test]
fn the_host_may_name_the_bucket() {
    let fixture = serve_with(|config| config.domains = vec!["s3.example.org".to_owned()]);
    put(&fixture);
    let named = format!("{BUCKET}.s3.example.org");
    let call = Call::new("GET", "/k").header("host", named).header("range", "bytes=0-1,5-5");
    assert_eq!(parts_of(&fixture.client.send(&call)).len(), 2);
}
