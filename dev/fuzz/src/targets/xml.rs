//! Parsers of XML documents: Metalink, WebDAV and S3.

use fordway_wire::event_record::{EventRecord, RECORD_BYTES_MAX};
use fordway_wire::metalink::{Metalink, PieceHashes, read_links};
use fordway_wire::notification::{self, EventKind};
use fordway_wire::s3_xml;
use fordway_wire::webdav::{CollectionEntryLocation, CollectionUrl, PerformanceMarkerParser, multistatus};

/// Returns the maximum number of elements that a document of `bytes` may have after parsing.
fn elements_max(bytes: &[u8]) -> usize {
    1 + bytes.len()
}

/// Parses a Metalink, and the headers of a response. A parsed document is written and parsed again.
pub(super) fn metalink(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let links = read_links(text.lines(), text.lines());
    assert!(links.replicas.len() <= elements_max(bytes));
    let _type = fordway_wire::metalink::is_metalink_type(&text);
    let _likely = Metalink::is_likely(bytes);
    let Ok(found) = Metalink::parse(bytes) else { return };
    for file in &found.files {
        let climbs = file.name.starts_with('/') || file.name.split('/').any(|name| name == "..");
        assert!(!climbs, "{:?} points outside a directory", file.name);
        assert!(file.pieces.as_ref().is_none_or(|PieceHashes { length_bytes, .. }| *length_bytes > 0));
        let _strongest = file.strongest_hash();
    }
    let _named = found.clone().file(Some("a"));
    if let Ok(mut file) = found.clone().file(None) {
        file.complete_with(links);
        let _empty = file.is_empty();
    }
    if !found.files.is_empty() && found.files.iter().all(|file| !file.name.is_empty()) {
        let again = Metalink::parse(found.to_xml().as_bytes()).expect("a document written by this target");
        let names =
            |metalink: &Metalink| metalink.files.iter().map(|file| file.name.clone()).collect::<Vec<_>>();
        assert_eq!(names(&again), names(&found), "written again");
    }
}

/// Parses a `multistatus` document, and resolves each of its addresses. Also parses the report on a copy, in pieces of
/// two sizes, which must yield equal results.
pub(super) fn webdav(bytes: &[u8]) {
    let collection = CollectionUrl::new("h.example.org", "/dir/sub%20dir/");
    for resource in multistatus(bytes).unwrap_or_default() {
        place(&collection, &resource.href);
    }
    for line in String::from_utf8_lossy(bytes).lines() {
        place(&collection, line);
    }
    let report = |piece: usize| {
        let mut report = PerformanceMarkerParser::default();
        for piece in bytes.chunks(piece) {
            report.push(piece).ok()?;
        }
        let copied = report.bytes();
        report.finish().ok().map(|outcome| (copied, outcome))
    };
    assert_eq!(report(1), report(bytes.len().max(1)), "in pieces");
}

/// Checks that the name of a member has one segment, and resolves to the same member when its encoded form is parsed
/// again.
fn place(collection: &CollectionUrl, href: &str) {
    if let Ok(CollectionEntryLocation::Member(member)) = collection.place(href) {
        assert!(!matches!(&*member.encoded, "" | "." | ".."), "{href:?}");
        assert!(!member.encoded.contains(['/', '?', '#', '\r', '\n', ' ']), "{href:?}");
        let again = collection.place(&format!("./{}", member.encoded)).expect("an encoded name");
        assert_eq!(again, CollectionEntryLocation::Member(member), "{href:?}");
    }
}

/// Parses a notification configuration, and the record of an event. A parsed value is written and parsed again.
pub(super) fn events(bytes: &[u8]) {
    if let Ok(rules) = notification::read(bytes) {
        let again = notification::read(notification::write(&rules).as_bytes());
        assert_eq!(again.expect("a document written by this target"), rules, "written again");
        let text = String::from_utf8_lossy(bytes);
        for kind in EventKind::ALL {
            let applying = rules.iter().filter(|rule| rule.applies_to(kind, &text)).count();
            assert!(applying <= 1, "{applying} rules apply to one event");
        }
    }
    if let Some(record) = EventRecord::decode(bytes) {
        assert!(bytes.len() <= RECORD_BYTES_MAX);
        let again = EventRecord::decode(&record.encode(0)).expect("a record written by this target");
        assert_eq!(again, record, "written again");
    }
}

/// Parses a document as every kind of S3 request and response.
pub(super) fn s3(bytes: &[u8]) {
    requests(bytes);
    responses(bytes);
    let text = String::from_utf8_lossy(bytes);
    let escaped = s3_xml::escaped(&text);
    assert!(!escaped.contains(['<', '>']), "{escaped:?}");
}

fn requests(bytes: &[u8]) {
    if let Ok(parts) = s3_xml::completed_parts(bytes) {
        let again = s3_xml::completed_parts(s3_xml::complete_multipart_upload(&parts).as_bytes());
        assert_eq!(again.expect("a document written by this target"), parts, "written again");
    }
    let _bucket = s3_xml::new_bucket(bytes);
    let _unknown = s3_xml::unknown_element(bytes, |path| path.len() < 8);
    let _written = s3_xml::XmlElement::read(bytes).map(|root| root.write());
    if let Ok(versioning) = s3_xml::bucket_versioning(bytes) {
        let _written = s3_xml::versioning_configuration(versioning);
    }
    if let Ok(tags) = s3_xml::object_tags(bytes) {
        let again = s3_xml::object_tags(s3_xml::tagging(&tags).as_bytes());
        assert_eq!(again.expect("a document written by this target"), tags, "written again");
    }
    let keys = String::from_utf8_lossy(bytes);
    let _request = s3_xml::delete(keys.lines().map(|key| (key, None)));
    let _configuration = s3_xml::create_bucket_configuration(&keys);
}

fn responses(bytes: &[u8]) {
    let _error = s3_xml::error_document(bytes);
    let _copied = s3_xml::copied(bytes);
    let _deleted = s3_xml::delete_result(bytes);
    let _attributes = s3_xml::object_attributes(bytes);
    let _upload = s3_xml::initiate_multipart_upload(bytes);
    let _completed = s3_xml::complete_multipart_upload_result(bytes);
    let _parts = s3_xml::list_parts(bytes);
    let _uploads = s3_xml::list_uploads(bytes);
    let _policy = s3_xml::access_control_policy(bytes);
    let _objects = s3_xml::list_bucket(bytes);
    let _buckets = s3_xml::list_all_my_buckets(bytes);
    versions(bytes);
}

/// Parses a listing of versions, and writes it as the gateway does.
fn versions(bytes: &[u8]) {
    let Ok(found) = s3_xml::list_versions(bytes) else { return };
    let encode = |text: &str| text.to_owned();
    let query = fordway_store::VersionsQuery::default();
    let answer = s3_xml::VersionsResponseContext {
        bucket: "bucket",
        query: &query,
        owner: "id",
        encode: &encode,
        is_url_encoded: false,
    };
    let written = s3_xml::list_versions_result(&answer, &found);
    let again = s3_xml::list_versions(written.as_bytes()).expect("a document written by this target");
    assert_eq!(again.versions.len(), found.versions.len(), "written again");
}
