//! Tests that content is published only if it matches the length, the digests and the checksums that the client sends.

mod client;

use client::{Answer, BUCKET, Call, Fixture, bucket, key, serve};
use fordway_store::{Checksum, ChecksumAlgorithm, ErrorKind, GetOptions, Objects};

/// MD5 and CRC-32 of "hello", computed with Python's hashlib and zlib.
const MD5: &str = "XUFAKrxLKna5cZ2REBfFkg==";
const CRC32: &str = "NhCmhg==";
const UNSIGNED_TRAILER: &str = "STREAMING-UNSIGNED-PAYLOAD-TRAILER";

fn nothing_stored(fixture: &Fixture) {
    let found = fixture.store.head(&bucket(), &key("k"), &GetOptions::default());
    assert_eq!(found.unwrap_err().kind(), ErrorKind::NoSuchKey);
}

#[test]
fn content_md5() {
    let fixture = serve();
    let put = |md5: &str, body: &str| {
        fixture.client.send(&Call::on("PUT", "k").header("content-md5", md5).body(body))
    };
    assert_eq!(put(MD5, "hallo").error(), (400, "BadDigest".to_owned()));
    assert_eq!(put("bm9uc2Vuc2U=", "hello").error(), (400, "InvalidDigest".to_owned()));
    nothing_stored(&fixture);
    put(MD5, "hello").ok();
}

#[test]
fn a_checksum_in_a_header() {
    let fixture = serve();
    let put = |body: &str| {
        fixture.client.send(&Call::on("PUT", "k").header("x-amz-checksum-crc32", CRC32).body(body))
    };
    assert_eq!(put("hallo").error(), (400, "BadDigest".to_owned()));
    nothing_stored(&fixture);
    assert_eq!(put("hello").ok().header("x-amz-checksum-crc32"), Some(CRC32));
    for method in ["GET", "HEAD"] {
        let asked = Call::on(method, "k").header("x-amz-checksum-mode", "ENABLED");
        let answer = fixture.client.send(&asked).ok();
        assert_eq!(answer.header("x-amz-checksum-crc32"), Some(CRC32));
        assert_eq!(answer.header("x-amz-checksum-type"), Some("FULL_OBJECT"));
        let part = fixture.client.send(&Call::on(method, "k")).ok();
        assert_eq!(part.header("x-amz-checksum-crc32"), None);
    }
    let ranged = Call::on("GET", "k").header("x-amz-checksum-mode", "ENABLED").header("range", "bytes=0-1");
    assert_eq!(fixture.client.send(&ranged).ok().header("x-amz-checksum-crc32"), None);
}

/// By default, aws-cli and boto3 send `aws-chunked` bodies with a checksum in the trailer.
#[test]
fn a_checksum_in_a_trailer() {
    let fixture = serve();
    let put = |data: &str, trailer: &str| {
        let body = format!("{:x}\r\n{data}\r\n0\r\n{trailer}\r\n", data.len());
        let call = Call::on("PUT", "k")
            .header("content-encoding", "aws-chunked")
            .header("x-amz-decoded-content-length", data.len().to_string())
            .header("x-amz-trailer", "x-amz-checksum-crc32")
            .payload(UNSIGNED_TRAILER)
            .body(body);
        fixture.client.send(&call)
    };
    let right = format!("x-amz-checksum-crc32:{CRC32}\r\n");
    assert_eq!(put("hallo", &right).error(), (400, "BadDigest".to_owned()));
    let malformed = (400, "MalformedTrailerError".to_owned());
    for trailer in ["", "x-amz-checksum-sha1:qvTGHdzF6KLavt4PO0gs2a6pQ00=\r\n", ":AAAA==\r\n"] {
        assert_eq!(put("hello", trailer).error(), malformed, "{trailer:?}");
    }
    assert_eq!(put("hello", "x-amz-checksum-crc32:zzz\r\n").error(), (400, "InvalidRequest".to_owned()));
    nothing_stored(&fixture);
    assert_eq!(put("hello", &right).ok().header("x-amz-checksum-crc32"), Some(CRC32));
    let stored = fixture.client.send(&Call::on("GET", "k")).ok();
    assert_eq!((stored.text().as_str(), stored.header("content-encoding")), ("hello", None));
}

/// The empty line at the end shows that no trailer is missing.
#[test]
fn announced_trailers_end_with_an_empty_line() {
    let fixture = serve();
    let put = |end: &str| {
        let call = Call::on("PUT", "k")
            .header("x-amz-decoded-content-length", "5")
            .header("x-amz-trailer", "x-amz-checksum-crc32")
            .payload(UNSIGNED_TRAILER);
        fixture.client.send(&call.body(format!("5\r\nhello\r\n0\r\n{end}")))
    };
    for end in
        [String::new(), format!("x-amz-checksum-crc32:{CRC32}\r\n"), format!("x-amz-checksum-crc32:{CRC32}")]
    {
        assert_eq!(put(&end).error(), (400, "IncompleteBody".to_owned()), "{end:?}");
    }
    nothing_stored(&fixture);
    put(&format!("x-amz-checksum-crc32:{CRC32}\r\n\r\n")).ok();
}

/// A chunked body may omit some elements, but it must not contradict its head.
#[test]
fn trailers_are_those_that_the_head_announces() {
    let fixture = serve();
    let put = |trailer: &str, headers: &[(&str, &str)]| {
        let mut call = Call::on("PUT", "k").payload(UNSIGNED_TRAILER);
        for (name, value) in headers {
            call = call.header(name, value.to_string());
        }
        fixture.client.send(&call.body(format!("5\r\nhello\r\n0\r\n{trailer}\r\n")))
    };
    let (length, stated) = (("x-amz-decoded-content-length", "5"), ("x-amz-checksum-crc32", CRC32));
    let announced = ("x-amz-trailer", "x-amz-checksum-crc32");
    let right = format!("x-amz-checksum-crc32:{CRC32}\r\n");
    let code = |answer: Answer| answer.error().1;
    assert_eq!(code(put(&right, &[length])), "MalformedTrailerError");
    assert_eq!(code(put(&right, &[length, announced, stated])), "InvalidRequest");
    let other = ("x-amz-sdk-checksum-algorithm", "SHA1");
    assert_eq!(code(put(&right, &[length, announced, other])), "InvalidRequest");
    for wrong in [&[announced][..], &[("x-amz-decoded-content-length", "5x"), announced]] {
        assert_eq!(put(&right, wrong).error(), (411, "MissingContentLength".to_owned()));
    }
    // A body of the wrong size is reported before problems with its trailers.
    let longer = ("x-amz-decoded-content-length", "7");
    assert_eq!(code(put("", &[longer, announced])), "IncompleteBody");
    nothing_stored(&fixture);
    assert_eq!(put("", &[length, stated]).ok().header("x-amz-checksum-crc32"), Some(CRC32));
    put("", &[length]).ok();
}

/// AWS accepts a chunk of less than 8 KiB only as the last chunk with content.
#[test]
fn a_small_chunk_stands_last() {
    let fixture = serve();
    let put = |sizes: &[usize]| {
        let chunk = |size: &usize| format!("{size:x}\r\n{}\r\n", "x".repeat(*size));
        let body = sizes.iter().map(chunk).collect::<String>() + "0\r\n\r\n";
        let length = sizes.iter().sum::<usize>().to_string();
        let call = Call::on("PUT", "k").payload(UNSIGNED_TRAILER);
        fixture.client.send(&call.header("x-amz-decoded-content-length", length).body(body))
    };
    for small in [&[100, 100][..], &[8192, 8191, 10]] {
        assert_eq!(put(small).error(), (400, "InvalidChunkSizeError".to_owned()), "{small:?}");
    }
    nothing_stored(&fixture);
    put(&[8192, 9000, 10]).ok();
}

#[test]
fn signed_chunks() {
    let fixture = serve();
    let put = |data: &[u8], tamper: bool| {
        let mut call = Call::on("PUT", "k")
            .header("x-amz-decoded-content-length", data.len().to_string())
            .payload("STREAMING-AWS4-HMAC-SHA256-PAYLOAD");
        let length = fixture.client.signed_chunks(&fixture.client.head(&call), data).len();
        call = call.header("content-length", length.to_string());
        let head = fixture.client.head(&call);
        let mut body = fixture.client.signed_chunks(&head, data);
        if tamper {
            let at = body.windows(data.len()).position(|window| window == data).unwrap();
            body[at] ^= 1;
        }
        let mut stream = fixture.client.connect();
        std::io::Write::write_all(&mut stream, &[head, body].concat()).unwrap();
        client::read_answer(&mut stream, "PUT")
    };
    assert_eq!(put(b"hello", true).error(), (403, "SignatureDoesNotMatch".to_owned()));
    nothing_stored(&fixture);
    put(b"hello", false).ok();
    assert_eq!(fixture.client.send(&Call::on("GET", "k")).ok().text(), "hello");
}

/// The last chunk has no content. The signature of the last chunk proves that no earlier chunk is missing.
#[test]
fn a_body_without_the_whole_of_its_last_chunk_is_refused() {
    let fixture = serve();
    let data = b"hello";
    let send = |cut: usize| {
        let call = |length: usize| {
            Call::on("PUT", "k")
                .header("x-amz-decoded-content-length", data.len().to_string())
                .header("content-length", length.to_string())
                .payload("STREAMING-AWS4-HMAC-SHA256-PAYLOAD")
        };
        let whole = fixture.client.signed_chunks(&fixture.client.head(&call(0)), data).len();
        let head = fixture.client.head(&call(whole - cut));
        let mut body = fixture.client.signed_chunks(&head, data);
        body.truncate(whole - cut);
        let mut stream = fixture.client.connect();
        std::io::Write::write_all(&mut stream, &[head, body].concat()).unwrap();
        client::read_answer(&mut stream, "PUT")
    };
    // Each cut removes more of the last chunk: both line breaks, one digit of the signature, half of the signature, the
    // whole signature, everything except the `0`, and the whole chunk.
    let last = "0;chunk-signature=".len() + 64 + 4;
    for cut in [4, 5, 36, 68, last - 1, last] {
        assert_eq!(send(cut).error(), (400, "IncompleteBody".to_owned()), "{cut}");
        nothing_stored(&fixture);
    }
    send(0).ok();
    // Some senders omit the empty line at the end.
    send(2).ok();
}

#[test]
fn the_signed_hash_of_the_body() {
    let fixture = serve();
    let call = Call::on("PUT", "k").payload(&"0".repeat(64)).body("hello");
    assert_eq!(fixture.client.send(&call).error(), (400, "XAmzContentSHA256Mismatch".to_owned()));
    nothing_stored(&fixture);
}

#[test]
fn a_body_that_ends_early_leaves_nothing() {
    let fixture = serve();
    for payload in [None, Some("UNSIGNED-PAYLOAD".to_owned())] {
        let call = Call { payload, ..Call::on("PUT", "k").header("content-length", "10").body("hello") };
        let mut stream = fixture.client.connect();
        std::io::Write::write_all(&mut stream, &fixture.client.head(&call)).unwrap();
        std::io::Write::write_all(&mut stream, b"hello").unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let _ = std::io::Read::read_to_end(&mut stream, &mut Vec::new());
        nothing_stored(&fixture);
    }
}

/// The S3 layer reports a server error for a body that cannot be read. The gateway replaces this error.
#[test]
fn a_document_that_ends_early_is_named() {
    let fixture = serve();
    let call =
        Call::on("PUT", "k").query("tagging").header("content-length", "100").payload("UNSIGNED-PAYLOAD");
    let mut stream = fixture.client.connect();
    std::io::Write::write_all(&mut stream, &fixture.client.head(&call)).unwrap();
    std::io::Write::write_all(&mut stream, b"<Tagging><TagSet>").unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(client::read_answer(&mut stream, "PUT").error(), (400, "IncompleteBody".to_owned()));
}

#[test]
fn parts_are_checked_too() {
    let fixture = serve();
    let started = fixture.client.send(&Call::on("POST", "k").query("uploads")).ok();
    let query = format!("partNumber=1&uploadId={}", started.element("UploadId").unwrap());
    let put = |name, value: &str, body: &str| {
        fixture.client.send(&Call::on("PUT", "k").query(&query).header(name, value).body(body))
    };
    assert_eq!(put("content-md5", MD5, "hallo").error(), (400, "BadDigest".to_owned()));
    assert_eq!(put("x-amz-checksum-crc32", CRC32, "hallo").error(), (400, "BadDigest".to_owned()));
    let list = format!("uploadId={}", started.element("UploadId").unwrap());
    let parts = fixture.client.send(&Call::on("GET", "k").query(&list)).ok();
    assert!(parts.elements("PartNumber").is_empty());
    assert_eq!(put("x-amz-checksum-crc32", CRC32, "hello").ok().header("x-amz-checksum-crc32"), Some(CRC32));
}

/// Tests all of S3's checksum algorithms in headers. Content with a wrong checksum is not stored, and a correct
/// checksum is stored and returned.
#[test]
fn every_checksum_in_a_header() {
    let fixture = serve();
    for algorithm in ChecksumAlgorithm::ALL {
        let (header, sum) = (algorithm.header(), Checksum::of(algorithm, b"hello").to_base64());
        let put = |body: &str| {
            let call = Call::on("PUT", "k").header("x-amz-sdk-checksum-algorithm", algorithm.name());
            fixture.client.send(&call.header(header, sum.as_str()).body(body))
        };
        assert_eq!(put("hallo").error(), (400, "BadDigest".to_owned()), "{algorithm:?}");
        nothing_stored(&fixture);
        assert_eq!(put("hello").ok().header(header), Some(sum.as_str()));
        for method in ["GET", "HEAD"] {
            let asked = Call::on(method, "k").header("x-amz-checksum-mode", "ENABLED");
            assert_eq!(fixture.client.send(&asked).ok().header(header), Some(sum.as_str()));
        }
        let named = Call::on("GET", "k").query("attributes").header("x-amz-object-attributes", "Checksum");
        let element = format!("Checksum{}", algorithm.name());
        assert_eq!(fixture.client.send(&named).ok().element(&element), Some(sum.clone()));
        let listed = fixture.client.send(&Call::new("GET", format!("/{BUCKET}")).query("list-type=2")).ok();
        assert_eq!(listed.element("ChecksumAlgorithm").as_deref(), Some(algorithm.name()));
        assert_eq!(listed.element("ChecksumType").as_deref(), Some("FULL_OBJECT"));
        let copy = Call::on("PUT", "copy").header("x-amz-copy-source", format!("/{BUCKET}/k"));
        assert_eq!(fixture.client.send(&copy).ok().element(&element), Some(sum));
        fixture.client.send(&Call::on("DELETE", "copy")).ok();
        fixture.client.send(&Call::on("DELETE", "k")).ok();
    }
}

/// Tests all checksum algorithms in trailers. The requests announce the algorithm as SDKs do.
#[test]
fn every_checksum_in_a_trailer() {
    let fixture = serve();
    for algorithm in ChecksumAlgorithm::ALL {
        let (header, sum) = (algorithm.header(), Checksum::of(algorithm, b"hello").to_base64());
        let put = |data: &str| {
            let call = Call::on("PUT", "k")
                .header("x-amz-decoded-content-length", data.len().to_string())
                .header("x-amz-sdk-checksum-algorithm", algorithm.name())
                .header("x-amz-trailer", header)
                .payload(UNSIGNED_TRAILER)
                .body(format!("{:x}\r\n{data}\r\n0\r\n{header}:{sum}\r\n\r\n", data.len()));
            fixture.client.send(&call)
        };
        assert_eq!(put("hallo").error(), (400, "BadDigest".to_owned()), "{algorithm:?}");
        nothing_stored(&fixture);
        assert_eq!(put("hello").ok().header(header), Some(sum.as_str()));
        fixture.client.send(&Call::on("DELETE", "k")).ok();
    }
}

/// Tests multipart uploads with each checksum algorithm. The S3 layer supports only five of the algorithms.
#[test]
fn every_checksum_of_parts() {
    let fixture = serve();
    for algorithm in ChecksumAlgorithm::ALL {
        let name = algorithm.name();
        let start = Call::on("POST", "k").query("uploads").header("x-amz-checksum-algorithm", name);
        let id = fixture.client.send(&start).ok().element("UploadId").unwrap();
        let part = Checksum::of(algorithm, b"hello");
        let query = format!("partNumber=1&uploadId={id}");
        let put = Call::on("PUT", "k").query(&query).header(algorithm.header(), part.to_base64());
        let tag = fixture.client.send(&put.body("hello")).ok().header("etag").unwrap().to_owned();
        let query = format!("uploadId={id}");
        let listed = fixture.client.send(&Call::on("GET", "k").query(&query)).ok();
        assert_eq!(listed.element(&format!("Checksum{name}")), Some(part.to_base64()));
        assert_eq!(listed.element("ChecksumAlgorithm").as_deref(), Some(name));
        let end = |sum: &str| {
            let document = format!(
                "<CompleteMultipartUpload><Part><ETag>{tag}</ETag><PartNumber>1</PartNumber>\
                 <Checksum{name}>{sum}</Checksum{name}></Part></CompleteMultipartUpload>"
            );
            fixture.client.send(&Call::on("POST", "k").query(&query).body(document))
        };
        let other = Checksum::of(algorithm, b"hallo").to_base64();
        assert_eq!(end(&other).error(), (400, "InvalidPart".to_owned()), "{name}");
        let made = end(&part.to_base64()).ok();
        let kind = made.element("ChecksumType").unwrap();
        let expected = match kind.as_str() {
            "FULL_OBJECT" => part.clone(),
            _ => Checksum::composite(algorithm, &[&part]),
        };
        assert_eq!(kind == "FULL_OBJECT", algorithm == ChecksumAlgorithm::Crc64Nvme);
        assert_eq!(made.element(&format!("Checksum{name}")), Some(expected.to_base64()));
    }
}

/// Trailers other than one checksum are refused. If they were accepted, they would be neither checked nor stored, and
/// the client would get no error.
#[test]
fn a_trailer_is_one_checksum_and_nothing_else() {
    let fixture = serve();
    let sum = format!("x-amz-checksum-crc32:{CRC32}\r\n");
    let sha256 = "x-amz-checksum-sha256:AAAA\r\n";
    for (announced, trailers) in [
        ("x-amz-checksum-crc32,x-amz-checksum-sha256", format!("{sum}{sha256}")),
        ("x-amz-checksum-crc32, x-amz-checksum-foo", sum.clone()),
        ("x-amz-checksum-crc32,x-amz-meta-foo", format!("{sum}x-amz-meta-foo:bar\r\n")),
        ("x-amz-meta-foo", "x-amz-meta-foo:bar\r\n".to_owned()),
        ("x-amz-checksum-crc32", format!("{sum}x-amz-meta-foo:bar\r\n")),
        ("x-amz-checksum-crc32", format!("{sum}if-none-match:*\r\n")),
    ] {
        let call = Call::on("PUT", "k")
            .header("content-encoding", "aws-chunked")
            .header("x-amz-decoded-content-length", "5")
            .header("x-amz-trailer", announced)
            .payload(UNSIGNED_TRAILER)
            .body(format!("5\r\nhello\r\n0\r\n{trailers}\r\n"));
        assert_eq!(fixture.client.send(&call).error().0, 400, "{announced}: {trailers}");
        nothing_stored(&fixture);
    }
}

/// Several headers with the same name form one list. The coding `aws-chunked` is removed from the list, because it
/// describes the transfer and not the object.
#[test]
fn repeated_headers_of_metadata_are_one_list() {
    let fixture = serve();
    let path = format!("/{BUCKET}/k");
    for [one, other] in [["aws-chunked", "gzip"], ["gzip", "aws-chunked"]] {
        let query = fixture.client.presigned("PUT", &path, 60);
        let head = format!(
            "PUT {path}?{query} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\ncontent-length: 1\r\n\
             content-encoding: {one}\r\ncontent-encoding: {other}\r\n\
             cache-control: no-cache\r\ncache-control: no-store\r\n\r\nx",
            fixture.client.address
        );
        fixture.client.send_raw("PUT", &head).ok();
        let stored = fixture.client.send(&Call::on("HEAD", "k")).ok();
        assert_eq!(stored.header("content-encoding"), Some("gzip"), "{one}, {other}");
        assert_eq!(stored.header("cache-control"), Some("no-cache, no-store"));
    }
}

/// Values that are valid in a header are returned as they were sent.
#[test]
fn metadata_of_plain_text_comes_back_unchanged() {
    let fixture = serve();
    for value in ["=?UTF-8?Q?=C3=A4?=", "=?"] {
        fixture.client.send(&Call::on("PUT", "k").header("x-amz-meta-a", value).body("x")).ok();
        let stored = fixture.client.send(&Call::on("HEAD", "k")).ok();
        assert_eq!(stored.header("x-amz-meta-a"), Some(value));
    }
}

/// A condition of a copy must not be ignored because its date cannot be parsed.
#[test]
fn a_copy_with_an_unreadable_date_is_refused() {
    let fixture = serve();
    fixture.client.send(&Call::on("PUT", "from").body("new")).ok();
    fixture.client.send(&Call::on("PUT", "k").body("old")).ok();
    for date in ["2020-01-01T00:00:00Z", "garbage"] {
        let call = Call::on("PUT", "k")
            .header("x-amz-copy-source", format!("/{BUCKET}/from"))
            .header("x-amz-copy-source-if-unmodified-since", date);
        assert_eq!(fixture.client.send(&call).error(), (400, "InvalidArgument".to_owned()), "{date}");
    }
    assert_eq!(fixture.client.send(&Call::on("GET", "k")).ok().text(), "old");
}
