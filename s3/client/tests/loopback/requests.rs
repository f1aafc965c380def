//! Tests the requests that each call sends, and the results that it returns for the responses.

use std::collections::BTreeMap;
use std::time::{Duration, UNIX_EPOCH};

use fordway_client::s3::{S3Config, S3Store};

use crate::scripted::{Seen, Server, answer, bucket, error, key, object};
use fordway_store::{
    BoxedMetadata, BucketDocumentKind, BucketDocumentOperations, ByteRange, Checksum, ChecksumAlgorithm,
    CompleteOptions, CompletedPart, Conditions, CopyOptions, ETag, ErrorKind, ExpectedContent, GetOptions,
    ListQuery, Metadata, MultipartUploadOperations, ObjectBatchOperations, ObjectLock, ObjectTagOperations,
    ObjectVersionOperations, Objects, PutOptions, Result, UploadId, VersionId, VersioningState,
};

const MIB: usize = 1024 * 1024;

fn lines(seen: &[Seen]) -> Vec<&str> {
    seen.iter().map(Seen::line).collect()
}

fn started() -> Vec<u8> {
    let body = "<InitiateMultipartUploadResult><UploadId>u.1</UploadId></InitiateMultipartUploadResult>";
    answer(200, "", body)
}

fn tagged(tag: &str) -> Vec<u8> {
    answer(200, &format!("etag: \"{tag}\"\r\ndate: Fri, 24 May 2013 00:00:00 GMT\r\n"), "")
}

#[test]
fn metadata_goes_and_comes_back() {
    let metadata = BoxedMetadata::from(Metadata {
        content_type: Some("text/plain".into()),
        cache_control: Some("no-store".into()),
        user: BTreeMap::from([("a".into(), "plain".into()), ("b".into(), "\u{e4}\r\nx: y ".into())]),
        ..Default::default()
    });
    let server = Server::answering(vec![tagged("t")]);
    let options = PutOptions { metadata: metadata.clone(), ..Default::default() };
    let made = server.store(|_| {}).put(&bucket(), &key("k"), b"123456789", &options).unwrap();
    assert_eq!((made.etag, made.checksum), (ETag::new("t"), None));
    assert_eq!(made.modified, UNIX_EPOCH + Duration::from_secs(1_369_353_600));
    let seen = server.seen();
    assert_eq!(seen[0].body, b"123456789");
    assert_eq!(seen[0].header("x-amz-checksum-crc64nvme"), Some("rosUhgp5mIg="));
    assert_eq!(seen[0].header("x"), None, "a value cannot smuggle in a header");

    let wanted = ["content-type", "cache-control", "x-amz-meta-a", "x-amz-meta-b"];
    let echo: String =
        wanted.iter().map(|name| format!("{name}: {}\r\n", seen[0].header(name).unwrap())).collect();
    let server =
        Server::answering(vec![format!("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n{echo}\r\n").into_bytes()]);
    let info = server.store(|_| {}).head(&bucket(), &key("k"), &GetOptions::default()).unwrap();
    assert_eq!((info.metadata, info.size), (metadata, 9));
}

/// A program may specify a wrong size, such as -1. Running out of memory would terminate the program.
#[test]
fn content_too_large_for_memory_is_refused() {
    let store = Server::start(vec![]).store(|_| {});
    for size in [u64::MAX, u64::MAX / 2] {
        let options = PutOptions { size_hint: Some(size), ..Default::default() };
        let refused = store.writer(&bucket(), &key("k"), &options).err().expect("no parts can be that large");
        assert_eq!(refused.kind(), ErrorKind::EntityTooLarge);
        assert!(refused.to_string().contains("s3://bucket/k"), "{refused}");
    }
}

#[test]
fn a_header_that_cannot_be_sent_is_refused() {
    let server = Server::start(vec![]);
    let store = server.store(|_| {});
    let content_type =
        BoxedMetadata::from(Metadata { content_type: Some("a\r\nb: c".into()), ..Default::default() });
    let name = BoxedMetadata::from(Metadata {
        user: BTreeMap::from([("a b".into(), String::new())]),
        ..Default::default()
    });
    for metadata in [content_type, name] {
        let options = PutOptions { metadata, ..Default::default() };
        let error = store.put(&bucket(), &key("k"), b"", &options).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    }
    let conditions = Conditions::only_if(ETag::new("a\r\nb: c"));
    let error = store.put(&bucket(), &key("k"), b"", &PutOptions { conditions, ..Default::default() });
    assert_eq!(error.unwrap_err().kind(), ErrorKind::InvalidArgument);
}

#[test]
fn a_short_stream_is_one_put() {
    let server = Server::answering(vec![tagged("t")]);
    let store = server.store(|_| {});
    let mut writer = store.writer(&bucket(), &key("k"), &PutOptions::default()).unwrap();
    writer.write(b"12345").unwrap();
    writer.write(b"6789").unwrap();
    writer.commit(&ExpectedContent { size: Some(9), ..Default::default() }).unwrap();
    let seen = server.seen();
    assert_eq!((seen.len(), seen[0].line()), (1, "PUT /bucket/k HTTP/1.1"));
    assert_eq!(seen[0].body, b"123456789");
}

#[test]
fn what_was_not_announced_is_not_sent() {
    let server = Server::start(vec![]);
    let mut writer = server.store(|_| {}).writer(&bucket(), &key("k"), &PutOptions::default()).unwrap();
    writer.write(b"12345").unwrap();
    let error = writer.commit(&ExpectedContent { size: Some(9), ..Default::default() }).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::IncompleteBody);
    assert_eq!(server.seen().len(), 0);
}

#[test]
fn a_long_stream_is_a_multipart_upload() {
    let done = "<CompleteMultipartUploadResult><ETag>\"x-3\"</ETag></CompleteMultipartUploadResult>";
    let server =
        Server::answering(vec![started(), tagged("p1"), tagged("p2"), tagged("p3"), answer(200, "", done)]);
    let store = server.store(|config| config.part_bytes = 5 * MIB);
    let options = PutOptions { conditions: Conditions::create_only(), ..Default::default() };
    let mut writer = store.writer(&bucket(), &key("k"), &options).unwrap();
    let body: Vec<u8> = (0..12 * MIB).map(|i| (i / 4096) as u8).collect();
    for piece in body.chunks(3_000_000) {
        writer.write(piece).unwrap();
    }
    assert_eq!(writer.commit(&ExpectedContent::default()).unwrap().etag, ETag::new("x-3"));
    let seen = server.seen();
    assert_eq!(
        lines(&seen),
        [
            "POST /bucket/k?uploads= HTTP/1.1",
            "PUT /bucket/k?partNumber=1&uploadId=u.1 HTTP/1.1",
            "PUT /bucket/k?partNumber=2&uploadId=u.1 HTTP/1.1",
            "PUT /bucket/k?partNumber=3&uploadId=u.1 HTTP/1.1",
            "POST /bucket/k?uploadId=u.1 HTTP/1.1",
        ]
    );
    let sent: Vec<u8> = seen[1..4].iter().flat_map(|part| part.body.clone()).collect();
    assert!(sent == body && seen[1].body.len() == 5 * MIB);
    assert!(seen[2].header("x-amz-checksum-crc64nvme").is_some());
    assert_eq!(seen[4].header("if-none-match"), Some("*"));
    let document = String::from_utf8(seen[4].body.clone()).unwrap();
    let last = Checksum::of(ChecksumAlgorithm::Crc64Nvme, &seen[3].body).to_base64();
    let part = format!(
        "<Part><PartNumber>3</PartNumber><ETag>\"p3\"</ETag><ChecksumCRC64NVME>{last}</ChecksumCRC64NVME></Part>"
    );
    assert!(document.contains(&part), "{document}");
    assert_eq!(seen[4].header("x-amz-mp-object-size"), Some(body.len().to_string().as_str()));
}

#[test]
fn an_abandoned_stream_leaves_no_parts() {
    let server = Server::answering(vec![started(), tagged("p1"), answer(204, "", "")]);
    let store = server.store(|config| config.part_bytes = 5 * MIB);
    let mut writer = store.writer(&bucket(), &key("k"), &PutOptions::default()).unwrap();
    writer.write(&vec![0; 6 * MIB]).unwrap();
    drop(writer);
    assert_eq!(server.seen().last().unwrap().line(), "DELETE /bucket/k?uploadId=u.1 HTTP/1.1");
}

#[test]
fn success_with_an_error_inside_is_an_error() {
    let failed = || error(200, "InternalError", "");
    let server = Server::answering(vec![failed(), failed(), failed(), failed()]);
    let store = server.store(|config| config.max_retries = 0);
    let parts = [CompletedPart::new(1, ETag::new("t"))];
    let upload = UploadId::foreign("u");
    let completed = store.complete_upload(&bucket(), &key("k"), &upload, &parts, &CompleteOptions::default());
    assert_eq!(completed.unwrap_err().kind(), ErrorKind::Io);
    let copied = store.copy((&bucket(), &key("k")), &bucket(), &key("l"), &CopyOptions::default());
    assert_eq!(copied.unwrap_err().kind(), ErrorKind::Io);
}

/// AWS requires the checksums of the parts if the checksum of the object is composed of them. The caller need not know
/// the checksums of the parts.
#[test]
fn a_completion_that_lacks_checksums_is_sent_again_with_them() {
    let listed = "<ListPartsResult><IsTruncated>false</IsTruncated><Part><PartNumber>1</PartNumber>\
        <LastModified>2026-01-01T00:00:00Z</LastModified><ETag>\"t\"</ETag><Size>1</Size>\
        <ChecksumCRC32>AAAAAA==</ChecksumCRC32></Part></ListPartsResult>";
    let done = "<CompleteMultipartUploadResult><ETag>\"x-1\"</ETag></CompleteMultipartUploadResult>";
    let refused = || {
        let words = "The upload was created using a crc32 checksum. The complete request must include the checksum \
            for each part. It was missing for part 1 in the request.";
        let document = format!("<Error><Code>InvalidRequest</Code><Message>{words}</Message></Error>");
        answer(400, "content-type: application/xml\r\n", document)
    };
    let forbidden = error(403, "AccessDenied", "");
    let complete = |store: &S3Store, etag: &str| {
        let parts = [CompletedPart::new(1, ETag::new(etag))];
        let upload = UploadId::foreign("u");
        store.complete_upload(&bucket(), &key("k"), &upload, &parts, &CompleteOptions::default())
    };
    let server = Server::answering(vec![refused(), answer(200, "", listed), answer(200, "", done)]);
    assert_eq!(complete(&server.store(|_| {}), "t").unwrap().etag, ETag::new("x-1"));
    let last = String::from_utf8(server.seen()[2].body.clone()).unwrap();
    assert!(last.contains("<ETag>\"t\"</ETag><ChecksumCRC32>AAAAAA==</ChecksumCRC32>"), "{last}");
    // The checksum of another part does not help.
    let server = Server::answering(vec![refused(), answer(200, "", listed)]);
    let error = complete(&server.store(|_| {}), "other").unwrap_err();
    assert_eq!(error.s3_code(), Some("InvalidRequest"));
    // An error of the request for the list is reported, together with the reason for this request.
    let server = Server::answering(vec![refused(), forbidden]);
    let error = complete(&server.store(|_| {}), "t").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AccessDenied, "{error}");
    for part in ["list parts", "must include the checksum"] {
        assert!(error.to_string().contains(part), "{error}");
    }
}

/// A completion that is refused for any other reason is not sent again.
#[test]
fn a_completion_that_lacks_no_checksums_is_sent_once() {
    let server = Server::answering(vec![error(400, "InvalidRequest", "")]);
    let (parts, upload) = ([CompletedPart::new(1, ETag::new("t"))], UploadId::foreign("u"));
    let options = CompleteOptions { size: Some(5), ..Default::default() };
    let error =
        server.store(|_| {}).complete_upload(&bucket(), &key("k"), &upload, &parts, &options).unwrap_err();
    assert_eq!(error.s3_code(), Some("InvalidRequest"));
    assert_eq!(server.seen().len(), 1);
}

#[test]
fn copies_name_their_source_and_conditions() {
    let done = "<CopyObjectResult><ETag>\"c\"</ETag></CopyObjectResult>";
    let server = Server::answering(vec![answer(200, "", done)]);
    let options = CopyOptions {
        metadata: Some(BoxedMetadata::EMPTY),
        tags: Some([("n".to_owned(), "a b".to_owned())].into()),
        source_version: Some(VersionId::new("v/1").unwrap()),
        source_conditions: Conditions::only_if(ETag::new("s")),
        conditions: Conditions::create_only(),
        checksum: Some(fordway_store::ChecksumAlgorithm::XxHash3),
        ..Default::default()
    };
    let copied =
        server.store(|_| {}).copy((&bucket(), &key("a b+c")), &bucket(), &key("l"), &options).unwrap();
    assert_eq!(copied.etag, ETag::new("c"));
    let seen = server.seen();
    assert_eq!(seen[0].header("x-amz-copy-source"), Some("/bucket/a%20b%2Bc?versionId=v%2F1"));
    assert_eq!(seen[0].header("x-amz-tagging"), Some("n=a%20b"));
    assert_eq!(seen[0].header("x-amz-tagging-directive"), Some("REPLACE"));
    assert_eq!(seen[0].header("x-amz-metadata-directive"), Some("REPLACE"));
    assert_eq!(seen[0].header("x-amz-copy-source-if-match"), Some("\"s\""));
    assert_eq!(seen[0].header("x-amz-checksum-algorithm"), Some("XXHASH3"));
    assert_eq!(seen[0].header("if-none-match"), Some("*"));
}

fn page(keys: &[&str], prefixes: &[&str], token: Option<&str>) -> Vec<u8> {
    let object =
        |key: &&str| format!("<Contents><Key>{key}</Key><Size>1</Size><ETag>\"t\"</ETag></Contents>");
    let prefix = |prefix: &&str| format!("<CommonPrefixes><Prefix>{prefix}</Prefix></CommonPrefixes>");
    let token = token.map_or_else(String::new, |token| {
        format!("<IsTruncated>true</IsTruncated><NextContinuationToken>{token}</NextContinuationToken>")
    });
    let (keys, prefixes) =
        (keys.iter().map(object).collect::<String>(), prefixes.iter().map(prefix).collect::<String>());
    answer(200, "", format!("<ListBucketResult>{token}{keys}{prefixes}</ListBucketResult>"))
}

fn names(listing: &fordway_store::ObjectListing) -> Vec<&str> {
    listing.entries.iter().map(fordway_store::ListEntry::name).collect()
}

#[test]
fn pages_are_joined_in_order_without_doubles() {
    let server =
        Server::answering(vec![page(&["c", "d"], &["b/"], Some("t 1")), page(&["e", "f"], &["d/"], None)]);
    let query = ListQuery {
        delimiter: Some("/".into()),
        start_after: Some("a".into()),
        max_keys: 5,
        ..Default::default()
    };
    let listing = server.store(|_| {}).list(&bucket(), &query).unwrap();
    assert_eq!(names(&listing), ["b/", "c", "d", "d/", "e"]);
    assert_eq!(listing.next.as_deref(), Some("e"));
    let seen = server.seen();
    let common = "list-type=2&max-keys";
    assert_eq!(
        lines(&seen),
        [
            format!("GET /bucket?delimiter=%2F&encoding-type=url&{common}=5&prefix=&start-after=a HTTP/1.1"),
            format!(
                "GET /bucket?continuation-token=t%201&delimiter=%2F&encoding-type=url&{common}=2&prefix= HTTP/1.1"
            ),
        ]
    );
}

/// If a page ends with a common prefix, here `b/`, some services list this prefix again on the next page.
#[test]
fn a_prefix_is_not_listed_again_on_the_next_page() {
    let query = |start: &str| ListQuery {
        delimiter: Some("/".into()),
        start_after: Some(start.into()),
        ..Default::default()
    };
    let server = Server::answering(vec![page(&["c"], &["b/"], None), page(&["c"], &["b/"], None)]);
    let store = server.store(|_| {});
    assert_eq!(names(&store.list(&bucket(), &query("b/")).unwrap()), ["c"]);
    assert_eq!(names(&store.list(&bucket(), &query("b/1")).unwrap()), ["b/", "c"], "it stands for b/2");
}

/// A listing that is not sorted would make `sync --delete` delete objects that exist.
#[test]
fn a_listing_in_disorder_is_an_error() {
    let list = |pages: Vec<Vec<u8>>, prefix: &str| {
        let query = ListQuery { prefix: prefix.into(), ..Default::default() };
        Server::answering(pages).store(|_| {}).list(&bucket(), &query).map_err(|error| error.kind())
    };
    let late = vec![page(&["b", "c"], &[], Some("t")), page(&["a", "d"], &[], None)];
    assert_eq!(list(late, "").unwrap_err(), ErrorKind::BadResponse);
    assert_eq!(list(vec![page(&["p/a", "q"], &[], None)], "p/").unwrap_err(), ErrorKind::BadResponse);
    let within = vec![page(&["b", "a"], &[], Some("t")), page(&["b", "c"], &[], None)];
    assert_eq!(names(&list(within, "").unwrap()), ["a", "b", "c"]);
}

/// The name in the failure may be encoded in a different way, so the deletion of any unmentioned key may have failed.
#[test]
fn a_failure_of_a_name_that_was_not_asked_for_is_not_lost() {
    let body = "<DeleteResult><Deleted><Key>a</Key></Deleted>\
        <Error><Key>c%26</Key><Code>AccessDenied</Code><Message>no</Message></Error></DeleteResult>";
    let server = Server::answering(vec![answer(200, "", body)]);
    let results = server.store(|_| {}).delete_many(&bucket(), &[key("a"), key("c&")]);
    assert!(results[0].is_ok());
    let error = results[1].as_ref().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadResponse);
    assert!(error.to_string().contains("c%26"), "{error}");
}

#[test]
fn many_deletions_are_one_request_and_each_has_its_result() {
    let body = "<DeleteResult><Error><Key>b</Key><Code>AccessDenied</Code><Message>no</Message></Error></DeleteResult>";
    let server = Server::answering(vec![answer(200, "", body)]);
    let keys = [key("a"), key("b"), key("c&")];
    let results = server.store(|_| {}).delete_many(&bucket(), &keys);
    let kinds: Vec<_> =
        results.iter().map(|result| result.as_ref().err().map(|error| error.kind())).collect();
    assert_eq!(kinds, [None, Some(ErrorKind::AccessDenied), None]);
    let failed = results[1].as_ref().unwrap_err();
    assert_eq!((failed.target(), failed.s3_code()), ("s3://bucket/b", Some("AccessDenied")));
    let seen = server.seen();
    assert_eq!(seen[0].line(), "POST /bucket?delete= HTTP/1.1");
    assert!(seen[0].header("content-md5").is_some());
    assert!(String::from_utf8_lossy(&seen[0].body).contains("<Key>c&amp;</Key>"));
}

/// No XML document can contain these characters (XML 1.0, section 2.2), so each key that contains such a character is
/// deleted in a separate request.
#[test]
fn keys_that_xml_excludes_are_deleted_one_by_one() {
    let batch = || answer(200, "", "<DeleteResult/>");
    let answers = vec![batch(), answer(204, "", ""), answer(403, "", ""), batch()];
    let server = Server::answering(answers);
    let keys = [key("a"), key("b"), key("\u{1}"), key("\u{ffff}"), key("tab\t\r\n")];
    let results = server.store(|_| {}).delete_many(&bucket(), &keys);
    let kinds: Vec<_> =
        results.iter().map(|result| result.as_ref().err().map(|error| error.kind())).collect();
    assert_eq!(kinds, [None, None, None, Some(ErrorKind::AccessDenied), None]);
    let lines: Vec<_> = server.seen().iter().map(|request| request.line().to_owned()).collect();
    assert_eq!(lines[0], "POST /bucket?delete= HTTP/1.1");
    assert_eq!(lines[1..3], ["DELETE /bucket/%01 HTTP/1.1", "DELETE /bucket/%EF%BF%BF HTTP/1.1"]);
    assert_eq!(lines[3], "POST /bucket?delete= HTTP/1.1");
}

#[test]
fn presigned_urls_carry_everything() {
    let server = Server::start(vec![]);
    let store = server.store(|_| {});
    let now = UNIX_EPOCH + Duration::from_secs(1_369_353_600);
    let url = store.presign("GET", &bucket(), &key("a b"), 60, now).unwrap();
    let start = format!(
        "{}/bucket/a%20b?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AK%2F20130524",
        server.url
    );
    assert!(url.starts_with(&start), "{url}");
    assert!(url.contains("&X-Amz-Expires=60&"));
    let error = store.presign("GET", &bucket(), &key("k"), 0, now).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}

#[test]
fn a_delete_of_what_is_not_there_succeeds() {
    let server =
        Server::answering(vec![error(404, "NoSuchKey", ""), error(404, "NoSuchBucket", ""), object("")]);
    let store = server.store(|_| {});
    assert!(store.delete(&bucket(), &key("k"), &Default::default()).is_ok());
    let error = store.delete(&bucket(), &key("k"), &Default::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSuchBucket);
}

fn web_page() -> Vec<u8> {
    answer(200, "content-type: text/html\r\n", "<!DOCTYPE html><html><body>Welcome</body></html>")
}

/// A 404 without a code may come from a web server or a proxy.
#[test]
fn a_delete_succeeds_only_if_an_s3_service_says_so() {
    let bare = || answer(404, "content-type: text/html\r\n", "<html><body>Not Found</body></html>");
    let coded = answer(404, "x-fordway-error-code: NoSuchKey\r\n", "");
    let server = Server::answering(vec![bare(), answer(404, "", ""), web_page(), coded, answer(204, "", "")]);
    let store = server.store(|_| {});
    let delete = || store.delete(&bucket(), &key("k"), &Default::default());
    for _ in 0..3 {
        let error = delete().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadResponse, "{error}");
        assert!(error.to_string().contains("s3://bucket/k"), "{error}");
    }
    assert!(delete().is_ok() && delete().is_ok());
}

/// The login page of a proxy has status 200.
#[test]
fn a_page_for_people_is_no_success() {
    type StatusCall<'c> = &'c dyn Fn(&S3Store) -> Result<()>;
    let calls: [StatusCall; 6] = [
        &|store| store.create_bucket(&bucket()),
        &|store| store.delete_bucket(&bucket()),
        &|store| store.set_tags(&bucket(), &key("k"), None, &Default::default()),
        &|store| store.set_versioning(&bucket(), VersioningState::Enabled),
        &|store| store.delete_document(&bucket(), &BucketDocumentKind::known("cors")),
        &|store| store.abort_upload(&bucket(), &key("k"), &UploadId::foreign("u")),
    ];
    for (at, call) in calls.iter().enumerate() {
        for body in
            [web_page(), answer(200, "", "<html>Welcome</html>"), answer(200, "", "{\"login\": true}")]
        {
            let error = call(&Server::answering(vec![body]).store(|_| {})).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::BadResponse, "{at}: {error}");
        }
        let denied = call(&Server::answering(vec![error(200, "AccessDenied", "")]).store(|_| {}));
        assert_eq!(denied.unwrap_err().kind(), ErrorKind::AccessDenied, "{at}");
        for body in ["", "\r\n", "<?xml version=\"1.0\"?><Done/>"] {
            call(&Server::answering(vec![answer(200, "", body)]).store(|_| {})).unwrap();
        }
    }
}

/// Some S3 services refuse checksum headers. The settings of the AWS tools omit these headers.
#[test]
fn checksums_can_be_left_out() {
    let server =
        Server::answering(vec![tagged("t"), tagged("t"), object("x"), started(), tagged("p"), tagged("q")]);
    let variables = [
        ("HOME", "/nonexistent"),
        ("AWS_REQUEST_CHECKSUM_CALCULATION", "WHEN_REQUIRED"),
        ("AWS_RESPONSE_CHECKSUM_VALIDATION", "when_required"),
    ];
    let variable =
        |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
    let found = S3Config::resolve(Some(&server.url), &variable).unwrap();
    let store = S3Store::new(S3Config { part_bytes: 5 * MIB, ..found }).unwrap();
    store.put(&bucket(), &key("k"), b"x", &PutOptions::default()).unwrap();
    let lock = ObjectLock { legal_hold: Some(true), ..Default::default() };
    store.put(&bucket(), &key("k"), b"x", &PutOptions { lock, ..Default::default() }).unwrap();
    store.read(&bucket(), &key("k"), &GetOptions::default(), &mut Vec::new()).unwrap();
    let mut writer = store.writer(&bucket(), &key("k"), &PutOptions::default()).unwrap();
    writer.write(&vec![0; 11 * MIB]).unwrap();
    std::mem::forget(writer);
    drop(store);
    let seen = server.seen();
    assert_eq!(seen.len(), 6);
    for request in &seen {
        assert!(
            !request.head.contains("x-amz-checksum") && !request.head.contains("x-amz-sdk"),
            "{}",
            request.head
        );
    }
    let md5: Vec<_> = seen.iter().map(|request| request.header("content-md5").is_some()).collect();
    // S3 requires a digest of an object with a lock. Parts have one if they have no checksum.
    assert_eq!(md5, [false, true, false, false, true, true]);
    let wrong = |name: &str| (name == "AWS_REQUEST_CHECKSUM_CALCULATION").then(|| "never".to_owned());
    assert_eq!(S3Config::resolve(None, &wrong).unwrap_err().kind(), ErrorKind::InvalidArgument);
}

/// The response to the first GET contains the object's size, so no HEAD is needed before that GET.
#[test]
fn ranges_with_an_end_cost_no_head() {
    let part = |range: &str, body: &str| {
        let length = body.len();
        let head =
            format!("HTTP/1.1 206 Partial Content\r\netag: \"t\"\r\ncontent-range: bytes {range}/10\r\n");
        format!("{head}server: AmazonS3\r\ncontent-length: {length}\r\n\r\n{body}").into_bytes()
    };
    let server = Server::answering(vec![part("2-4", "234"), part("8-9", "89")]);
    let store = server.store(|_| {});
    let read = |ranges: &[ByteRange]| {
        store.read_ranges(&bucket(), &key("k"), ranges, &GetOptions::default()).unwrap()
    };
    assert_eq!(read(&[ByteRange::Inclusive(2, 4)]), [b"234"]);
    assert_eq!(read(&[ByteRange::Inclusive(8, 20)]), [b"89"]);
    drop(store);
    let seen = server.seen();
    assert_eq!(lines(&seen), ["GET /bucket/k HTTP/1.1"; 2]);
    assert_eq!(
        [&seen[0], &seen[1]].map(|seen| seen.header("range")),
        [Some("bytes=2-4"), Some("bytes=8-20")]
    );
    assert!(seen.iter().all(|seen| seen.connection == 0 && seen.header("if-match").is_none()));
}

/// A 404 for a missing configuration does not mean that the bucket is missing.
#[test]
fn a_code_that_nobody_knows_does_not_take_a_bucket_away() {
    let unknown = error(404, "NoSuchPublicAccessBlockConfiguration", "");
    let server = Server::answering(vec![unknown, error(404, "NoSuchBucket", ""), answer(404, "", "")]);
    let store = server.store(|_| {});
    let versioning = || store.versioning(&bucket()).unwrap_err();
    let error = versioning();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    assert!(error.to_string().contains("NoSuchPublicAccessBlockConfiguration"), "{error}");
    assert_eq!(versioning().kind(), ErrorKind::NoSuchBucket);
    assert_eq!(versioning().kind(), ErrorKind::NoSuchBucket);
}

/// With and without an error document, the error contains the request ID, which lets the service's operator find the
/// request.
#[test]
fn an_error_names_its_request() {
    let told = error(403, "AccessDenied", "<RequestId>R1</RequestId>");
    let bare = b"HTTP/1.1 404 No\r\nx-amz-request-id: R2\r\ncontent-length: 9\r\n\r\n".to_vec();
    let server = Server::answering(vec![told, bare]);
    let store = server.store(|_| {});
    let head = || store.head(&bucket(), &key("k"), &GetOptions::default()).unwrap_err().to_string();
    let get = store.get(&bucket(), &key("k"), &GetOptions::default()).unwrap_err().to_string();
    assert!(get.contains("request R1"), "{get}");
    let head = head();
    assert!(head.contains("request R2"), "{head}");
}

/// The name of a document kind may differ from the name of its sub-resource.
#[test]
fn documents_are_addressed_by_their_sub_resources() {
    let server = Server::answering((0..3).map(|_| answer(204, "", "")).collect());
    let store = server.store(|_| {});
    for kind in ["cors", "ownership", "public-access-block"] {
        store.delete_document(&bucket(), &BucketDocumentKind::known(kind)).unwrap();
    }
    let wanted = ["cors", "ownershipControls", "publicAccessBlock"];
    assert_eq!(lines(&server.seen()), wanted.map(|name| format!("DELETE /bucket?{name}= HTTP/1.1")));
}
