//! The fast path serves plain requests, and the S3 layer serves all other requests. Both paths must return the same
//! response to any request, valid or damaged. Each request is sent unchanged, and once more with a header that routes
//! it through the S3 layer.

mod client;

use std::io::Write as _;

use client::{Answer, BUCKET, Call, Client, Fixture, read_answer, serve};
use fordway_store::Objects;

/// An unsigned header that has no meaning, but makes the fast path leave the request to the S3 layer.
const DETOUR: &[u8] = b"x-detour: 1\r\n";

/// Serves objects with all properties that a response can contain.
fn filled() -> Fixture {
    let fixture = serve();
    let send = |call: Call<'_>| fixture.client.send(&call).ok();
    send(Call::on("PUT", "plain").body("0123456789"));
    send(Call::on("PUT", "empty"));
    send(Call::on("PUT", "a%20b/%C3%A4~1").body("odd"));
    send(
        Call::on("PUT", "told")
            .header("content-type", "text/plain; charset=utf-8")
            .header("content-encoding", "gzip")
            .header("content-language", "de")
            .header("content-disposition", "inline")
            .header("cache-control", "no-store")
            .header("expires", "Thu, 01 Dec 1994 16:00:00 GMT")
            .header("x-amz-meta-colour", "blue")
            .header("x-amz-meta-other", "=?UTF-8?B?w6TDtg==?=")
            .header("x-amz-tagging", "a=1&b=2")
            .header("x-amz-checksum-crc32", "y/Q5Jg==")
            .body("123456789"),
    );
    send(
        Call::on("PUT", "")
            .query("versioning")
            .body("<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>"),
    );
    send(Call::on("PUT", "kept").body("old"));
    send(Call::on("PUT", "kept").body("new"));
    send(Call::on("PUT", "gone").body("x"));
    send(Call::on("DELETE", "gone"));
    let id = send(Call::on("POST", "parts").query("uploads")).element("UploadId").unwrap();
    let upload = format!("partNumber=1&uploadId={id}");
    let etag = send(Call::on("PUT", "parts").query(&upload).body(vec![7; 3000]));
    let etag = etag.header("etag").unwrap().to_owned();
    let complete = format!(
        "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{etag}</ETag></Part></CompleteMultipartUpload>"
    );
    send(Call::on("POST", "parts").query(&format!("uploadId={id}")).body(complete));
    fixture
}

fn send_head(client: &Client, head: &[u8], method: &str) -> Option<Answer> {
    let mut stream = client.connect();
    stream.write_all(head).unwrap();
    // The client shuts down its side of the connection. Otherwise the gateway might wait for the missing end of a
    // damaged head.
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut first = [0];
    (stream.peek(&mut first).unwrap_or(0) > 0).then(|| read_answer(&mut stream, method))
}

/// Sends `head` over both paths, checks that both responses are the same, and returns the response. The order of
/// headers does not matter, `date` may differ by a second, and each response has its own request ID.
#[track_caller]
fn both_ways(client: &Client, head: &[u8]) -> Option<Answer> {
    let line = head.iter().position(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    let detour = [&head[..line], DETOUR, &head[line..]].concat();
    let method = if head.starts_with(b"HEAD") { "HEAD" } else { "GET" };
    let [short, common] = [head, &detour].map(|head| {
        let mut answer = send_head(client, head, method)?;
        answer.headers.retain(|(name, _)| !["date", "x-amz-request-id"].contains(&name.as_str()));
        if let Some(id) = answer.element("RequestId") {
            answer.body = answer.text().replace(&id, "").into_bytes();
        }
        answer.headers.sort();
        Some(answer)
    });
    let shown = String::from_utf8_lossy(head).into_owned();
    let (Some(short), Some(common)) = (&short, &common) else {
        assert!(short.is_none() && common.is_none(), "{shown}");
        return None;
    };
    assert_eq!(short.status, common.status, "{shown}");
    assert_eq!(short.headers, common.headers, "{shown}");
    assert!(short.body == common.body, "{shown}");
    Some(Answer { status: short.status, headers: short.headers.clone(), body: short.body.clone() })
}

fn calls() -> Vec<(Call<'static>, u16)> {
    let mut calls = Vec::new();
    for method in ["GET", "HEAD"] {
        let mut add = |status: u16, call: Call<'static>| calls.push((call, status));
        for key in ["plain", "empty", "a%20b/%C3%A4~1", "told", "kept", "parts"] {
            add(200, Call::on(method, key));
            add(200, Call::on(method, key).header("x-amz-checksum-mode", "ENABLED"));
            add(200, Call::on(method, key).payload("UNSIGNED-PAYLOAD"));
        }
        for key in ["none", "gone", "a%20b", "plain/"] {
            add(404, Call::on(method, key));
        }
        add(404, Call::new(method, "/no-such-bucket/k"));
        add(400, Call::new(method, "/b%20d/k"));
        add(200, Call::on(method, "plain").header("x-amz-checksum-mode", "enabled"));
        add(200, Call::on(method, "plain").query("partNumber=1"));
        add(200, Call::on(method, "kept").query("versionId=null"));
        add(304, Call::on(method, "plain").header("if-none-match", "*"));
        add(412, Call::on(method, "plain").header("if-match", "\"x\""));
        add(200, Call::on(method, "plain").header("amz-sdk-request", "attempt=1").header("accept", "*/*"));
        add(200, Call::on(method, "plain").payload(&"0".repeat(64)));
        add(200, Call::on(method, "").query("location"));
    }
    for range in ["bytes=0-0", "bytes=2-4", "bytes=7-", "bytes=-3", "bytes=8-99", "bytes=-99"] {
        calls.push((Call::on("GET", "plain").header("range", range), 206));
        calls.push((Call::on("HEAD", "plain").header("range", range), 206));
        calls.push((
            Call::on("GET", "told").header("range", range).header("x-amz-checksum-mode", "ENABLED"),
            206,
        ));
    }
    for range in ["bytes=10-", "bytes=-0", "bytes=99-100"] {
        calls.push((Call::on("GET", "plain").header("range", range), 416));
    }
    calls
}

#[test]
fn both_ways_answer_alike() {
    let fixture = filled();
    let mut seen = Vec::new();
    for (call, status) in calls() {
        let answer = both_ways(&fixture.client, &fixture.client.head(&call)).unwrap();
        let shown = format!("{} {} {:?}", call.method, call.path, call.headers);
        // For some requests, the S3 layer determines the status. For these requests, the test checks only that both
        // paths return the same status.
        if call.query.is_empty() && !shown.contains("enabled") {
            assert_eq!(answer.status, status, "{shown}");
        }
        seen.push(answer.status);
    }
    for status in [200, 206, 304, 400, 404, 412, 416] {
        assert!(seen.contains(&status), "no response was a {status}");
    }
}

#[test]
fn wrong_keys_clocks_and_days_are_refused_both_ways() {
    let fixture = filled();
    let call = Call::on("GET", "plain");
    let mut client = fixture.client.clone();
    for (offset_s, status) in [(-16 * 60, 403), (16 * 60, 403), (-14 * 60, 200), (14 * 60, 200)] {
        client.clock_offset_s = offset_s;
        assert_eq!(both_ways(&client, &client.head(&call)).unwrap().status, status, "{offset_s}");
    }
    client.clock_offset_s = 0;
    client.identity.secret_key.push('x');
    assert_eq!(both_ways(&client, &client.head(&call)).unwrap().status, 403);
    client.identity.access_key.push('x');
    assert_eq!(both_ways(&client, &client.head(&call)).unwrap().status, 403);
}

/// Sends requests in which a header was added, removed or rewritten in transit.
#[test]
fn what_was_changed_on_the_way_is_judged_alike() {
    let fixture = filled();
    let call = Call::on("GET", "told").header("range", "bytes=2-4");
    let head = String::from_utf8(fixture.client.head(&call)).unwrap();
    let mut accepted = 0;
    for (from, to) in [
        ("range: bytes=2-4\r\n", "range: bytes=2-5\r\n"),
        ("range: bytes=2-4\r\n", ""),
        ("range: bytes=2-4\r\n", "range: bytes=2-4\r\nrange: bytes=2-4\r\n"),
        ("range: bytes=2-4", "range:   bytes=2-4  "),
        ("range:", "Range:"),
        ("\r\n\r\n", "\r\nx-amz-expected-bucket-owner: me\r\n\r\n"),
        ("\r\n\r\n", "\r\nx-amz-checksum-mode: ENABLED\r\n\r\n"),
        ("\r\n\r\n", "\r\nif-none-match: *\r\n\r\n"),
        ("GET", "HEAD"),
        ("told", "plain"),
        ("told", "tol%64"),
        ("told", "told?"),
        ("told", "told?versionId=null"),
        ("SignedHeaders=host;", "SignedHeaders="),
        ("SignedHeaders=host;range;", "SignedHeaders=range;host;"),
        ("SignedHeaders=host;", "SignedHeaders=Host;"),
        ("SignedHeaders=host;", "SignedHeaders=accept;host;"),
        (", Signature", ",Signature"),
        (", Signature", ",  Signature"),
        ("us-east-1", "eu-west-1"),
        ("us-east-1", "US"),
        ("/s3/", "/iam/"),
        ("Z\r\n", "z\r\n"),
        ("HTTP/1.1", "HTTP/1.0"),
        (&format!("/{BUCKET}/"), &format!("/{BUCKET}//")),
        (&format!("/{BUCKET}/"), &format!("//{BUCKET}/")),
        (&format!("/{BUCKET}/"), &format!("/{BUCKET}/../{BUCKET}/")),
    ] {
        assert!(head.contains(from), "{from}");
        let changed = head.replacen(from, to, 1);
        accepted +=
            usize::from(both_ways(&fixture.client, changed.as_bytes()).is_some_and(|a| a.status < 300));
    }
    assert!((5..20).contains(&accepted), "{accepted}");
}

/// Sends a valid request whose head is damaged at random places.
#[test]
fn damaged_requests_are_judged_alike() {
    let fixture = filled();
    let mut state = 11u32;
    let mut next = move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 16) as usize
    };
    let mut refused = 0;
    for round in 0..400 {
        let call = match round % 3 {
            0 => Call::on("GET", "told").header("range", "bytes=1-2"),
            1 => Call::on("HEAD", "a%20b/%C3%A4~1"),
            _ => Call::on("GET", "plain").header("x-amz-checksum-mode", "ENABLED"),
        };
        let mut head = fixture.client.head(&call);
        for _ in 0..1 + next() % 2 {
            let at = next() % (head.len() - 4);
            match next() % 4 {
                0 => drop(head.remove(at)),
                1 => head.insert(at, b"aZ0 /%;:,=\t\r\n\xe4"[next() % 14]),
                2 => head[at] ^= 0x20,
                _ => head[at] = b"aZ0 /%;:,=\t\r\n\xe4"[next() % 14],
            }
        }
        refused += usize::from(both_ways(&fixture.client, &head).is_none_or(|answer| answer.status >= 300));
    }
    assert!((200..400).contains(&refused), "{refused}");
    assert!(fixture.store.list_buckets().is_ok());
}
