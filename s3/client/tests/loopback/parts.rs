//! Tests versions and parts of objects with responses that our gateway does not send.

use crate::scripted::{Server, Step, answer, bucket, error, key};
use fordway_client::s3::{S3Config, S3Credentials, S3Store};
use fordway_store::{
    ChecksumAlgorithm, ChecksumAlgorithmAndType, ChecksumType, DeleteOptions, DeleteResult, Error, ErrorKind,
    GetOptions, MultipartUploadOperations, ObjectTagOperations, ObjectVersionOperations, Objects, PartsQuery,
    PutOptions, PutResult, Result, UploadId, VersionId, VersionsQuery,
};

fn part(number: u16) -> GetOptions {
    GetOptions { part: Some(number), ..Default::default() }
}

#[test]
fn a_part_says_where_it_lies() {
    let headers = "content-range: bytes 5-8/9\r\nx-amz-mp-parts-count: 2\r\nx-amz-version-id: v1\r\n";
    let server = Server::answering(vec![answer(206, headers, "tail")]);
    let object = server.store(|_| {}).get(&bucket(), &key("k"), &part(2)).unwrap();
    assert_eq!((object.range.clone(), object.info.size, object.info.part_count), (5..9, 9, Some(2)));
    assert_eq!(object.info.version, VersionId::new("v1").ok());
    assert_eq!(object.content.into_vec().unwrap(), b"tail");
    assert_eq!(server.seen()[0].line(), "GET /bucket/k?partNumber=2 HTTP/1.1");
}

/// The response for an empty part states neither the part's range nor the object's size.
#[test]
fn an_empty_part_is_at_the_end() {
    let headers = "x-amz-mp-parts-count: 2\r\netag: \"e-2\"\r\n";
    let whole = b"HTTP/1.1 200 OK\r\netag: \"e-2\"\r\ncontent-length: 9\r\n\r\n".to_vec();
    // The first connection stays open for the content of the part.
    let scripts = [answer(200, headers, ""), whole].map(|answer| vec![Step::Request, Step::Send(answer)]);
    let server = Server::start(scripts.into());
    let object = server.store(|_| {}).get(&bucket(), &key("k"), &part(2)).unwrap();
    assert_eq!((object.range.clone(), object.info.size), (9..9, 9));
    assert!(object.content.into_vec().unwrap().is_empty());
    assert_eq!(server.seen()[1].line(), "HEAD /bucket/k HTTP/1.1");
}

#[test]
fn a_server_that_knows_no_parts_is_not_believed() {
    let whole = || answer(200, "", "whole");
    let wrong = |range: &str| answer(206, &format!("content-range: {range}\r\n"), "tail");
    let read = |answer: Vec<u8>, number| {
        let store = Server::answering(vec![answer]).store(|config| config.max_retries = 0);
        store.get(&bucket(), &key("k"), &part(number))
    };
    assert_eq!(read(whole(), 1).unwrap().range, 0..5);
    for answer in [whole(), wrong("bytes 5-9/10"), wrong("nonsense")] {
        assert_eq!(read(answer, 2).unwrap_err().kind(), ErrorKind::BadResponse);
    }
}

#[test]
fn a_list_of_parts_states_the_checksum_of_the_upload() {
    let page = "<ListPartsResult><Part><PartNumber>1</PartNumber></Part><IsTruncated>false</IsTruncated>\
                <ChecksumAlgorithm>SHA256</ChecksumAlgorithm><ChecksumType>COMPOSITE</ChecksumType></ListPartsResult>";
    let server = Server::answering(vec![answer(200, "", page)]);
    let upload = UploadId::foreign("u");
    let listed =
        server.store(|_| {}).list_parts(&bucket(), &key("k"), &upload, &PartsQuery::default()).unwrap();
    let expected =
        ChecksumAlgorithmAndType { algorithm: ChecksumAlgorithm::Sha256, kind: ChecksumType::Composite };
    assert_eq!((listed.parts.len(), listed.checksum), (1, Some(expected)));
}

#[test]
fn a_checksum_of_parts_is_not_held_against_the_bytes() {
    let headers = "x-amz-checksum-crc32: AAAAAA==-3\r\nx-amz-checksum-type: COMPOSITE\r\n";
    let unnumbered = "x-amz-checksum-crc32: AAAAAA==\r\nx-amz-checksum-type: COMPOSITE\r\n";
    let server = Server::answering(vec![answer(200, headers, "bytes"), answer(200, unnumbered, "bytes")]);
    let store = server.store(|_| {});
    let object = store.get(&bucket(), &key("k"), &GetOptions::default()).unwrap();
    let sum = object.info.checksum.clone().unwrap();
    assert_eq!((sum.algorithm, sum.parts), (ChecksumAlgorithm::Crc32, Some(3)));
    assert_eq!(object.content.into_vec().unwrap(), b"bytes");
    let object = store.get(&bucket(), &key("k"), &GetOptions::default()).unwrap();
    assert_eq!(object.info.checksum, None);
    assert_eq!(object.content.into_vec().unwrap(), b"bytes");
}

/// For parts that were uploaded without checksums, S3 itself returns only the number of parts.
#[test]
fn parts_that_are_not_listed_are_asked_for_one_by_one() {
    let counted = "<GetObjectAttributesResponse><ObjectParts><PartsCount>2</PartsCount></ObjectParts>\
                   </GetObjectAttributesResponse>";
    let head =
        |size: u64| format!("HTTP/1.1 206 Partial Content\r\ncontent-length: {size}\r\n\r\n").into_bytes();
    let server = Server::answering(vec![answer(200, "", counted), head(7), head(2)]);
    let parts = server.store(|_| {}).object_parts(&bucket(), &key("k"), &GetOptions::default()).unwrap();
    let sizes: Vec<_> = parts.iter().map(|part| (part.number, part.size)).collect();
    assert_eq!(sizes, [(1, 7), (2, 2)]);
    let seen = server.seen();
    assert_eq!(seen[0].header("x-amz-object-attributes"), Some("ObjectParts"));
    assert_eq!(seen[2].line(), "HEAD /bucket/k?partNumber=2 HTTP/1.1");
}

#[test]
fn pages_of_versions_end_in_an_error_if_a_server_never_ends_them() {
    let page = |key: &str, more: &str| {
        let version = match key {
            "" => String::new(),
            key => format!("<Version><Key>{key}</Key><VersionId>v</VersionId></Version>"),
        };
        let document = format!("<ListVersionsResult>{more}{version}</ListVersionsResult>");
        answer(200, "", document)
    };
    let more = "<IsTruncated>true</IsTruncated><NextKeyMarker>a</NextKeyMarker>\
                <NextVersionIdMarker>v</NextVersionIdMarker>";
    let server = Server::answering(vec![page("a", more), page("", more)]);
    let error = server.store(|_| {}).list_versions(&bucket(), &VersionsQuery::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadResponse);
    let second = server.seen()[1].line().to_owned();
    assert!(second.contains("key-marker=a") && second.contains("version-id-marker=v"), "{second}");
}

#[test]
fn versions_are_named_in_requests_and_answers() {
    let marker = answer(204, "x-amz-version-id: m\r\nx-amz-delete-marker: true\r\n", "");
    let hidden = error(404, "NoSuchKey", "");
    let made = answer(200, "etag: \"t\"\r\nx-amz-version-id: null\r\n", "");
    let missing = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n".to_vec();
    let server = Server::answering(vec![marker, hidden, made, missing]);
    let store = server.store(|_| {});
    let version = || VersionId::new("a+b").unwrap();
    let options = DeleteOptions { version: Some(version()), ..Default::default() };
    let deleted = store.delete(&bucket(), &key("k"), &options).unwrap();
    assert_eq!(deleted, DeleteResult { version: VersionId::new("m").ok(), is_marker: true });
    let gone = store.tags(&bucket(), &key("k"), Some(&version())).unwrap_err();
    assert_eq!(gone.kind(), ErrorKind::NoSuchKey);
    let made = store.put(&bucket(), &key("k"), b"x", &PutOptions::default()).unwrap();
    assert_eq!(made.version, Some(VersionId::null()));
    let missing = store.head(&bucket(), &key("k"), &GetOptions::version(version())).unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NoSuchVersion);
    assert_eq!(server.seen()[0].line(), "DELETE /bucket/k?versionId=a%2Bb HTTP/1.1");
}

/// Streams the part `content` without an MD5. Returns the result, and the number of times that the content was
/// requested.
fn stream(store: &S3Store) -> (Result<PutResult>, u32) {
    let mut requests = 0;
    let mut produce = |sink: &mut (dyn FnMut(&[u8]) -> Result<()> + '_)| {
        requests += 1;
        sink(b"con")?;
        sink(b"tent")
    };
    let upload = UploadId::foreign("u");
    let made = store.put_part_streamed((&bucket(), &key("k")), (&upload, 1), (7, None), &mut produce);
    (made, requests)
}

#[test]
fn a_streamed_part_is_checked_with_its_etag() {
    const RIGHT: &str = "\"9a0364b9e99bb480dd25e1f0284c8555\"";
    const WRONG: &str = "\"9a0364b9e99bb480dd25e1f0284c8556\"";
    let sent = |etag: &str, headers: &str| {
        let server = Server::answering(vec![answer(200, &format!("etag: {etag}\r\n{headers}"), "")]);
        let made = stream(&server.store(|_| {})).0;
        assert_eq!(server.seen()[0].body, b"content");
        made.map(drop).map_err(|error: Error| error.kind())
    };
    assert_eq!(sent(RIGHT, ""), Ok(()));
    assert_eq!(sent(WRONG, ""), Err(ErrorKind::BadDigest));
    assert_eq!(sent(WRONG, "x-amz-server-side-encryption: aws:kms\r\n"), Ok(()));
    assert_eq!(sent("\"0123456789abcdef0123456789abcdef-1\"", ""), Ok(()));
}

#[test]
fn a_streamed_part_is_sent_again_only_if_nothing_was_produced() {
    let server = Server::answering(vec![answer(503, "", "")]);
    let (made, requests) = stream(&server.store(|_| {}));
    assert_eq!((made.unwrap_err().kind(), requests, server.seen().len()), (ErrorKind::Unavailable, 1, 1));

    // Nobody listens until the server has been started again.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let restarted = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(150));
        Server::listening(
            std::net::TcpListener::bind(address).unwrap(),
            vec![vec![Step::Request, Step::Send(answer(200, "etag: \"fast-1\"\r\n", ""))]],
        )
        .seen()
    });
    let keys = S3Credentials::keys("AK", "SK", "a test");
    let config = S3Config::new(format!("http://{address}"), "us-east-1", keys);
    let (made, requests) = stream(&S3Store::new(config).unwrap());
    assert_eq!((made.unwrap().etag.as_str(), requests), ("fast-1", 1));
    assert_eq!(restarted.join().unwrap()[0].body, b"content");
}
