//! Tests that a server cannot make the client work or wait forever, or allocate unlimited memory.

use crate::scripted::{Server, answer, bucket, key};
use fordway_store::{
    ErrorKind, GetOptions, MultipartUploadOperations, Objects, PartsQuery, UploadId, UploadsQuery,
};

fn attributes(parts: &str) -> Vec<u8> {
    let document = format!(
        "<GetObjectAttributesResponse><ObjectParts>{parts}</ObjectParts></GetObjectAttributesResponse>"
    );
    answer(200, "", &document)
}

/// A response that lists more parts than a 16-bit part number can count must not cause a panic.
#[test]
fn an_object_has_no_more_parts_than_s3_allows() {
    let many: String = (0..65_537).map(|_| "<Part><Size>1</Size></Part>").collect();
    for parts in [many.as_str(), "<PartsCount>10001</PartsCount>"] {
        let server = Server::answering(vec![attributes(parts)]);
        let error =
            server.store(|_| {}).object_parts(&bucket(), &key("k"), &GetOptions::default()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadResponse, "{error}");
        assert!(error.to_string().contains("more than 10000 parts"), "{error}");
    }
}

#[test]
fn parts_are_listed_in_ascending_order() {
    let page = "<ListPartsResult><IsTruncated>true</IsTruncated><Part><PartNumber>5</PartNumber></Part>\
                <Part><PartNumber>3</PartNumber></Part></ListPartsResult>";
    let server = Server::answering(vec![answer(200, "", page)]);
    let upload = UploadId::foreign("u");
    let error = server
        .store(|config| config.max_retries = 0)
        .list_parts(&bucket(), &key("k"), &upload, &PartsQuery::default())
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadResponse, "{error}");
    assert!(error.to_string().contains("not in order"), "{error}");
}

/// If the client accepted a page that does not begin after the requested position, a caller that lists page by page
/// could request the same page forever.
#[test]
fn a_page_of_uploads_begins_after_the_page_before() {
    let page = "<ListMultipartUploadsResult><IsTruncated>true</IsTruncated><NextKeyMarker>k2</NextKeyMarker>\
                <NextUploadIdMarker>u2</NextUploadIdMarker><Upload><Key>k1</Key><UploadId>u1</UploadId></Upload>\
                <Upload><Key>k2</Key><UploadId>u2</UploadId></Upload></ListMultipartUploadsResult>";
    let query = |key: &str, upload: Option<&str>| UploadsQuery {
        key_after: Some(key.to_owned()),
        upload_after: upload.map(str::to_owned),
        max_uploads: 2,
        ..UploadsQuery::default()
    };
    for (after, is_right) in [
        (query("k0", None), true),
        (query("k1", Some("u0")), true),
        (query("k1", Some("u1")), false),
        (query("k1", None), true),
        (query("k2", None), false),
        (query("k2", Some("u2")), false),
    ] {
        let server = Server::answering(vec![answer(200, "", page)]);
        let listed = server.store(|config| config.max_retries = 0).list_uploads(&bucket(), &after);
        match listed {
            Ok(listed) => assert!(is_right && listed.uploads.len() == 2, "{after:?}"),
            Err(error) => assert!(!is_right && error.kind() == ErrorKind::BadResponse, "{after:?}: {error}"),
        }
    }
}

#[test]
fn a_list_of_the_same_buckets_comes_to_an_end() {
    let page = |number: usize| {
        let document = format!(
            "<ListAllMyBucketsResult><Buckets><Bucket><Name>bucket</Name></Bucket></Buckets>\
             <ContinuationToken>{number}</ContinuationToken></ListAllMyBucketsResult>"
        );
        answer(200, "", &document)
    };
    let server = Server::answering((0..10_003).map(page).collect());
    let error = server.store(|config| config.max_retries = 0).list_buckets().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadResponse, "{error}");
    assert!(error.to_string().contains("had no entries"), "{error}");
}

#[test]
fn the_trailers_of_a_body_are_limited() {
    let body = "<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>";
    let respond = |trailers: usize| {
        let trailers = "name: value\r\n".repeat(trailers);
        format!(
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n0\r\n{trailers}\r\n",
            body.len()
        )
        .into_bytes()
    };
    let list = |trailers| {
        let server = Server::answering(vec![respond(trailers)]);
        server.store(|config| config.max_retries = 0).list(&bucket(), &Default::default())
    };
    assert!(list(100).is_ok());
    let error = list(50_000).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadResponse, "{error}");
}
