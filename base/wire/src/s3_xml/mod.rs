//! S3's XML documents, as read and written by clients and servers. This file contains the functions that all documents
//! share, and the parser of error documents.
//!
//! For each kind of response, a function reads the document's elements. The function gets the path of each element
//! below the root (`Contents/Key`) and the element's own text. Unknown elements are ignored, because servers add
//! elements of their own. The ending of the root's name may also vary (`ListPartsResult`, `ListPartsResponse`). A
//! document of another kind is an error, because it must not be mistaken for an empty list.

mod bodies;
mod list;
mod lock;
mod objects;
mod tree;

pub use bodies::{
    CreateBucketDocument, ResponseDocumentBuilder, complete_multipart_upload, completed_parts,
    create_bucket_configuration, delete, escaped, new_bucket, simplified, tagging, unknown_element,
    versioning_configuration,
};
pub use list::{
    ListObjectsPage, ListedBucket, VersionsResponseContext, bucket_versioning, list_all_my_buckets,
    list_bucket, list_versions, list_versions_result,
};
pub use lock::{
    ObjectLockDocument, legal_hold, legal_hold_document, legal_hold_name, legal_hold_status,
    lock_configuration, retention, retention_document, stated_retention,
};
pub use objects::{
    AclDocument, CopyResult, DeleteFailure, DeleteObjectsResult, GrantElement, MultipartUploadsPage,
    ObjectPartsPage, UploadCompletionResult, access_control_policy, complete_multipart_upload_result, copied,
    delete_result, initiate_multipart_upload, list_parts, list_uploads, object_attributes, object_tags,
};
pub use tree::XmlElement;

use std::str::FromStr;
use std::time::{SystemTime, UNIX_EPOCH};

use fordway_store::{
    Checksum, ChecksumAlgorithm, ChecksumAlgorithmAndType, ChecksumType, ETag, Error, ErrorKind, Result,
};
use quick_xml::Reader;
use quick_xml::events::Event;

/// Calls `at_end` at the end of every element, with its path below the root and its text. The name of the root must
/// start with `kind`. Errors: `BadResponse` if the document is not complete XML of that kind, and errors of `at_end`.
pub(crate) fn for_each_element(
    document: &[u8],
    kind: &str,
    mut at_end: impl FnMut(&str, &str) -> Result<()>,
) -> Result<()> {
    let root = root(document)?;
    if !root.starts_with(kind) {
        return Err(bad(format!("the document is of type {root}, not {kind}...")));
    }
    let mut reader = Reader::from_str(as_text(document)?);
    let (mut path, mut text, mut elements) = (String::new(), String::new(), 0_usize);
    loop {
        match reader.read_event().map_err(not_xml)? {
            Event::Start(start) => {
                enter(&mut path, start.local_name().into_inner());
                text.clear();
            }
            Event::Empty(start) => {
                let parent = enter(&mut path, start.local_name().into_inner());
                at_end(below_root(&path), "")?;
                path.truncate(parent);
                elements += 1;
            }
            Event::End(_) => {
                at_end(below_root(&path), &text)?;
                path.truncate(path.rfind('/').unwrap_or(0));
                text.clear();
                elements += 1;
            }
            Event::Text(more) => text.push_str(&more),
            Event::CData(more) => text.push_str(&more),
            Event::GeneralRef(reference) => match reference.resolve_char_ref().map_err(not_xml)? {
                Some(character) => text.push(character),
                None => text.push_str(named_entity(&reference)?),
            },
            Event::Eof if path.is_empty() && elements > 0 => return Ok(()),
            Event::Eof => return Err(bad("the XML document is truncated")),
            Event::Decl(_) | Event::PI(_) | Event::DocType(_) | Event::Comment(_) => {}
        }
    }
}

/// Returns the name of the document's root.
fn root(document: &[u8]) -> Result<String> {
    let mut reader = Reader::from_str(as_text(document)?);
    loop {
        match reader.read_event().map_err(not_xml)? {
            Event::Start(start) | Event::Empty(start) => {
                return Ok(start.local_name().into_inner().to_owned());
            }
            Event::Eof => return Err(bad("the document is not XML")),
            _ => {}
        }
    }
}

fn below_root(path: &str) -> &str {
    path.split_once('/').map_or("", |(_, rest)| rest)
}

/// Appends an element's name to the path; returns the length to which the path must be truncated when the element ends.
fn enter(path: &mut String, name: &str) -> usize {
    let parent = path.len();
    if !path.is_empty() {
        path.push('/');
    }
    path.push_str(name);
    parent
}

/// Returns the document as a string. Errors: `BadResponse` if the document is not UTF-8, or contains a NUL byte. XML
/// cannot contain this byte, even as a character reference (XML 1.0, section 2.2).
fn as_text(document: &[u8]) -> Result<&str> {
    if document.contains(&0) {
        return Err(bad("the XML document contains a NUL byte"));
    }
    std::str::from_utf8(document).map_err(|error| bad("the XML document is not UTF-8").caused_by(error))
}

fn named_entity(name: &str) -> Result<&'static str> {
    quick_xml::escape::resolve_predefined_entity(name).ok_or_else(|| bad(format!("unknown entity &{name};")))
}

fn not_xml(error: quick_xml::Error) -> Error {
    bad("the document is not XML").caused_by(error)
}

fn bad(detail: impl Into<String>) -> Error {
    Error::new(ErrorKind::BadResponse, detail)
}

/// Reads a number. Errors: `BadResponse`.
fn number<T: FromStr>(path: &str, text: &str) -> Result<T> {
    text.trim().parse().map_err(|_| bad(format!("{path} is {text:?}, not a number in range")))
}

/// Parses a time; an invalid time becomes the epoch, because an invalid time should not make a listing fail.
fn time(text: &str) -> SystemTime {
    crate::date::parse_iso8601(text.trim()).unwrap_or(UNIX_EPOCH)
}

fn etag(text: &str) -> ETag {
    ETag::new(text)
}

/// Returns the checksum in an element called `name`. Returns `None` for another kind of element, and for an invalid
/// value, because checksums are optional.
fn checksum(name: &str, text: &str) -> Option<Checksum> {
    let algorithm = ChecksumAlgorithm::from_name(name.strip_prefix("Checksum")?)?;
    Checksum::from_base64(algorithm, text.trim()).ok()
}

/// Returns the algorithm and type of a checksum in a listing. If a service sends no type, the default type applies.
fn plan(
    algorithm: Option<ChecksumAlgorithm>,
    kind: Option<ChecksumType>,
) -> Option<ChecksumAlgorithmAndType> {
    let algorithm = algorithm?;
    Some(ChecksumAlgorithmAndType { algorithm, kind: kind.unwrap_or(ChecksumType::default_of(algorithm)) })
}

/// Returns the value of the required element `path`. Errors: `BadResponse` if the document lacks this element.
fn required<T>(value: Option<T>, path: &str) -> Result<T> {
    value.ok_or_else(|| bad(format!("the document has no {path}")))
}

/// Decodes a name if the page is URL-encoded. Whether the page is URL-encoded is known only at the end, because
/// `EncodingType` may come last.
fn decoded(text: String, url_encoded: bool) -> Result<String> {
    match url_encoded {
        false => Ok(text),
        true => crate::uri::decode_listed(&text)
            .ok_or_else(|| bad(format!("the name {text:?} is not UTF-8 when decoded"))),
    }
}

/// A server's description of a failure. A field is empty if the server does not send it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ErrorDocument {
    /// S3's error code, such as `NoSuchKey`.
    pub code: String,
    /// A human-readable message.
    pub message: String,
    /// The region of the bucket, if the request went to another region.
    pub region: String,
    /// The endpoint to use instead.
    pub endpoint: String,
    /// The client's time, if the clocks differ too much.
    pub request_time: String,
    /// The server's time, if the clocks differ too much.
    pub server_time: String,
    /// The identifier of the request in the server's log.
    pub request_id: String,
}

/// Parses an error document; returns `None` if the root is another element. Errors: `BadResponse` if the document is
/// not XML.
pub fn error_document(document: &[u8]) -> Result<Option<ErrorDocument>> {
    if root(document)? != "Error" {
        return Ok(None);
    }
    let mut found = ErrorDocument::default();
    for_each_element(document, "Error", |path, text| {
        let field = match path {
            "Code" => &mut found.code,
            // `Detail`, which our gateway adds, is more specific than AWS's message and therefore takes precedence.
            "Message" if !found.message.is_empty() => return Ok(()),
            "Message" | "Detail" => &mut found.message,
            "Region" | "BucketRegion" => &mut found.region,
            "Endpoint" => &mut found.endpoint,
            "RequestTime" => &mut found.request_time,
            "ServerTime" => &mut found.server_time,
            "RequestId" => &mut found.request_id,
            _ => return Ok(()),
        };
        text.clone_into(field);
        Ok(())
    })?;
    Ok(Some(found))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Runs every parser on the same bytes.
    fn parse_all(document: &[u8]) {
        let _results = (
            list_bucket(document),
            list_all_my_buckets(document),
            error_document(document),
            initiate_multipart_upload(document),
            complete_multipart_upload_result(document),
            copied(document),
            (list_parts(document), list_uploads(document), delete_result(document)),
            (list_versions(document), object_tags(document), object_attributes(document)),
            bucket_versioning(document),
            (completed_parts(document), access_control_policy(document)),
            (ObjectLockDocument::read(document), retention(document), legal_hold(document)),
        );
    }

    #[test]
    fn a_document_must_be_whole() {
        for bad in ["", "text", "<a>", "<a><b></a>", "<a>&nope;</a>", "<a>&#0;</a>", "\u{feff}<a"] {
            let result = for_each_element(bad.as_bytes(), "", |_, _| Ok(()));
            assert_eq!(result.unwrap_err().kind(), ErrorKind::BadResponse, "{bad:?}");
        }
        assert!(
            for_each_element(b"<?xml version=\"1.0\"?><a xmlns=\"x\"><b/></a>", "a", |_, _| Ok(())).is_ok()
        );
    }

    #[test]
    fn a_page_of_another_kind_is_not_an_empty_list() {
        let page = b"<html><body>Welcome</body></html>";
        assert_eq!(list_bucket(page).unwrap_err().kind(), ErrorKind::BadResponse);
        assert_eq!(list_all_my_buckets(page).unwrap_err().kind(), ErrorKind::BadResponse);
        assert_eq!(list_parts(page).unwrap_err().kind(), ErrorKind::BadResponse);
        assert_eq!(list_uploads(page).unwrap_err().kind(), ErrorKind::BadResponse);
        assert_eq!(delete_result(page).unwrap_err().kind(), ErrorKind::BadResponse);
        assert_eq!(list_versions(page).unwrap_err().kind(), ErrorKind::BadResponse);
        assert_eq!(object_tags(page).unwrap_err().kind(), ErrorKind::BadResponse);
        assert_eq!(object_attributes(page).unwrap_err().kind(), ErrorKind::BadResponse);
        assert_eq!(bucket_versioning(page).unwrap_err().kind(), ErrorKind::BadResponse);
    }

    proptest! {
        #[test]
        fn no_bytes_make_a_parser_panic(document in prop::collection::vec(any::<u8>(), 0..300)) {
            parse_all(&document);
        }

        #[test]
        fn no_text_like_xml_makes_a_parser_panic(
            document in "(<|>|/|&|;|#|a|Key|Contents|ListBucketResult|ListVersionsResult|Version|TagSet|Tagging|\"|!|\\[|CDATA| ){0,60}"
        ) {
            parse_all(document.as_bytes());
        }
    }

    #[test]
    fn reads_an_error_and_nothing_else() {
        let document = b"<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>NoSuchKey</Code>\
            <Message>a &lt;b&gt; &#99;</Message><Resource>/b/k</Resource></Error>";
        let error = error_document(document).unwrap().unwrap();
        assert_eq!((error.code.as_str(), error.message.as_str()), ("NoSuchKey", "a <b> c"));
        let detailed =
            b"<Error><Code>NoSuchKey</Code><Message>gone</Message><Detail>b/k is gone</Detail></Error>";
        assert_eq!(error_document(detailed).unwrap().unwrap().message, "b/k is gone");
        assert_eq!(error_document(b"<CopyObjectResult><Error/></CopyObjectResult>").unwrap(), None);
        assert!(error_document(b"502 Bad Gateway").is_err());
    }
}
