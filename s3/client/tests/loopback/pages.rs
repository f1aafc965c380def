//! Tests listings of services that repeat a page, or do not specify where a truncated listing continues.

use fordway_store::{
    Bucket, ErrorKind, GetOptions, ListQuery, ObjectVersionOperations, PartsQuery, Result, Store, UploadId,
    UploadsQuery, VersionsQuery,
};

use crate::scripted::{Server, answer, bucket, key};

/// A function that calls a listing operation.
type Ask = fn(&dyn Store, &Bucket) -> Result<()>;

const LISTINGS: [(&str, &str, Ask); 6] = [
    (
        "<ListBucketResult><IsTruncated>true</IsTruncated>NEXT<Contents><Key>a</Key><Size>1</Size>\
         <LastModified>2026-05-24T00:00:00.000Z</LastModified><ETag>e</ETag></Contents></ListBucketResult>",
        "<NextContinuationToken>t</NextContinuationToken>",
        |store, bucket| store.list(bucket, &ListQuery::default()).map(drop),
    ),
    (
        "<ListVersionsResult><IsTruncated>true</IsTruncated>NEXT</ListVersionsResult>",
        "<NextKeyMarker>k</NextKeyMarker>",
        |store, bucket| store.list_versions(bucket, &VersionsQuery::default()).map(drop),
    ),
    (
        "<ListMultipartUploadsResult><IsTruncated>true</IsTruncated>NEXT</ListMultipartUploadsResult>",
        "<NextKeyMarker>k</NextKeyMarker><NextUploadIdMarker>u</NextUploadIdMarker>",
        |store, bucket| store.list_uploads(bucket, &UploadsQuery::default()).map(drop),
    ),
    (
        "<ListPartsResult><IsTruncated>true</IsTruncated>NEXT</ListPartsResult>",
        "<NextPartNumberMarker>7</NextPartNumberMarker>",
        |store, bucket| {
            let upload = UploadId::new("u")?;
            store.list_parts(bucket, &key("k"), &upload, &PartsQuery::default()).map(drop)
        },
    ),
    (
        "<GetObjectAttributesResponse><ObjectParts><PartsCount>9</PartsCount><IsTruncated>true</IsTruncated>NEXT<Part>\
         <PartNumber>1</PartNumber><Size>1</Size></Part></ObjectParts></GetObjectAttributesResponse>",
        "<NextPartNumberMarker>1</NextPartNumberMarker>",
        |store, bucket| store.object_parts(bucket, &key("k"), &GetOptions::default()).map(drop),
    ),
    (
        "<ListAllMyBucketsResult><Buckets></Buckets>NEXT</ListAllMyBucketsResult>",
        "<ContinuationToken>t</ContinuationToken>",
        |store, _| store.list_buckets().map(drop),
    ),
];

#[test]
fn a_service_that_leads_in_a_circle_is_not_followed() {
    for (document, next, ask) in LISTINGS {
        let page = answer(200, "Content-Type: application/xml\r\n", document.replace("NEXT", next));
        let server = Server::answering(vec![page; 20]);
        let error = ask(&server.store(|_| {}), &bucket()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadResponse, "{document}: {error}");
        assert!(error.to_string().contains("report this"), "{error}");
        assert!(server.seen().len() <= 3, "{document}");
    }
}

/// If the client considered a truncated listing complete, `sync --delete` would delete all objects that are missing
/// from the listing.
#[test]
fn a_listing_that_goes_on_nowhere_is_an_error() {
    for (document, _, ask) in &LISTINGS[..4] {
        let page = answer(200, "Content-Type: application/xml\r\n", document.replace("NEXT", ""));
        let error = ask(&Server::answering(vec![page; 2]).store(|_| {}), &bucket()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadResponse, "{document}: {error}");
    }
}

/// If the client accepted a page whose marker is the requested marker, a caller that requests one page at a time would
/// request the same page forever.
#[test]
fn a_full_page_that_repeats_its_marker_is_an_error() {
    let version = "<Version><Key>k</Key><VersionId>1</VersionId><Size>1</Size><ETag>e</ETag></Version>";
    let document = format!(
        "<ListVersionsResult><IsTruncated>true</IsTruncated><NextKeyMarker>k</NextKeyMarker>{version}</ListVersionsResult>"
    );
    let query = VersionsQuery { key_after: Some("k".into()), max_keys: 1, ..Default::default() };
    let server = Server::answering(vec![answer(200, "", document)]);
    let error = server.store(|_| {}).list_versions(&bucket(), &query).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadResponse, "{error}");
}
