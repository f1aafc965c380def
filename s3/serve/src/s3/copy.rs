//! Copies of objects and parts within the store.

use fordway_store::{
    Bucket, ByteRange, CopyOptions, Error, ErrorKind, GetOptions, Key, PutResult, Store, VersionId,
};
use fordway_wire::date::format_iso8601;
use fordway_wire::range::parse_range;
use fordway_wire::s3_xml::ResponseDocumentBuilder;
use http::{HeaderMap, HeaderName, HeaderValue};
use percent_encoding::percent_decode_str;
use s3s::{Body, S3Response};

use crate::message::composed;
use crate::s3::convert::{
    CONDITIONS, TAGGING, add_text, add_version, algorithm, conditions_in, document, invalid_request,
    is_encoded, metadata, names, quoted, tags, version,
};
use crate::s3::error::{OperationResult, S3Failure};
use crate::s3::lock;

pub(super) fn copy(
    store: &dyn Store,
    (bucket, key): &(String, String),
    headers: &HeaderMap,
) -> OperationResult<S3Response<Body>> {
    let (bucket, key) = names(bucket, key)?;
    let (from_bucket, from_key, version) = copy_source(headers)?;
    let replaces_metadata = replaces(headers, "x-amz-metadata-directive")?;
    let replaces_tags = replaces(headers, "x-amz-tagging-directive")?;
    // As on AWS, metadata that exceeds the limit is refused even if the copy does not use the request's metadata.
    let metadata = metadata(headers)?;
    let tagging = headers.get(TAGGING).and_then(|value| value.to_str().ok());
    let checksum = headers.get("x-amz-checksum-algorithm").and_then(|value| value.to_str().ok());
    let options = CopyOptions {
        metadata: replaces_metadata.then_some(metadata),
        tags: replaces_tags.then(|| tags(tagging)).transpose()?,
        source_version: version.clone(),
        source_conditions: conditions_in(headers, &SOURCE_CONDITIONS)?,
        conditions: conditions_in(headers, &CONDITIONS)?,
        checksum: checksum.map(algorithm).transpose()?,
        lock: lock::stated(store, &bucket, headers)?,
    };
    options
        .check_target((&from_bucket, &from_key), (&bucket, &key))
        .map_err(|error| invalid_request(composed(TO_ITSELF, error.detail(), &[])))?;
    let made = store.copy((&from_bucket, &from_key), &bucket, &key, &options).map_err(source_failure)?;
    let mut response = document(copied("CopyObjectResult", &made));
    add_versions(&mut response, version.as_ref(), made.version.as_ref());
    Ok(response)
}

/// AWS's message for a copy of a delete marker.
const OF_MARKER: &str =
    "The source of a copy request may not specifically refer to a delete marker by version id.";

/// Returns the failure of a copy. If the requested version of the source is a delete marker, AWS refuses the request as
/// invalid.
pub(super) fn source_failure(error: Error) -> S3Failure {
    match error.kind() {
        ErrorKind::MethodNotAllowed if error.is_at_delete_marker() => {
            invalid_request(composed(OF_MARKER, "", &[]))
        }
        _ => error.into(),
    }
}

/// AWS's message for a copy that changes nothing.
const TO_ITSELF: &str = "This copy request is illegal because it is trying to copy an object to itself without \
    changing the object's metadata, storage class, website redirect location or encryption attributes.";

/// The headers for conditions on a copy's source.
pub(super) const SOURCE_CONDITIONS: [HeaderName; 4] = [
    HeaderName::from_static("x-amz-copy-source-if-match"),
    HeaderName::from_static("x-amz-copy-source-if-none-match"),
    HeaderName::from_static("x-amz-copy-source-if-modified-since"),
    HeaderName::from_static("x-amz-copy-source-if-unmodified-since"),
];

/// Returns whether a directive header requests that the metadata or tags in the request replace those of the source.
/// Errors: `InvalidArgument` for an unknown directive.
fn replaces(headers: &HeaderMap, directive: &str) -> OperationResult<bool> {
    match headers.get(directive).map(HeaderValue::as_bytes) {
        None | Some(b"COPY") => Ok(false),
        Some(b"REPLACE") => Ok(true),
        Some(_) => {
            let kind = if directive == "x-amz-tagging-directive" { "tagging" } else { "metadata" };
            Err(S3Failure::argument(&format!("Unknown {kind} directive."), directive, ""))
        }
    }
}

/// Adds the headers with the version that was read and the version that was created.
pub(super) fn add_versions(
    response: &mut S3Response<Body>,
    source: Option<&VersionId>,
    made: Option<&VersionId>,
) {
    if let Some(version) = source {
        add_text(&mut response.headers, SOURCE_VERSION_ID, version.as_str());
    }
    add_version(&mut response.headers, made);
}

const SOURCE_VERSION_ID: HeaderName = HeaderName::from_static("x-amz-copy-source-version-id");

/// Returns the document that describes the result of a copy.
pub(super) fn copied(root: &'static str, made: &PutResult) -> ResponseDocumentBuilder {
    let mut document = ResponseDocumentBuilder::new(root);
    document.element("ETag", &quoted(&made.etag));
    document.element("LastModified", &format_iso8601(made.modified));
    document.checksum_with_type(made.checksum.as_ref());
    document
}

/// Returns the bucket, key and version that a copy reads from. Errors: `InvalidArgument` for a malformed source; errors
/// for invalid names; `NotImplemented` for an access point.
pub(crate) fn copy_source(headers: &HeaderMap) -> OperationResult<(Bucket, Key, Option<VersionId>)> {
    let text = headers.get(COPY_SOURCE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let invalid = |what: &str, value: &str| {
        S3Failure::argument(&format!("Invalid copy source {what}"), COPY_SOURCE.as_str(), value)
    };
    let (path, named) = match text.split_once("?versionId=") {
        Some((path, named)) => (path, Some(percent_decode_str(named).decode_utf8_lossy())),
        None => (text, None),
    };
    // As in a query, `+` represents a space. Some clients encode the source as a query.
    let spaced = path.replace('+', " ");
    let decoded = percent_decode_str(&spaced).decode_utf8().ok().filter(|_| is_encoded(path));
    let path = decoded.ok_or_else(|| invalid("encoding", text))?;
    let path = path.strip_prefix('/').unwrap_or(&path);
    if path.starts_with("arn:") {
        let detail = "copy from /bucket/key; access points are not supported";
        return Err(Error::new(ErrorKind::NotImplemented, detail).into());
    }
    let (bucket, key) = path.split_once('/').unwrap_or((path, ""));
    let bucket = Bucket::new(bucket).map_err(|_| invalid("bucket name", text))?;
    if key.is_empty() {
        return Err(invalid("object key", ""));
    }
    Ok((bucket, Key::new(key)?, version(named.as_deref())?))
}

const COPY_SOURCE: HeaderName = HeaderName::from_static("x-amz-copy-source");

/// Returns the range and the conditions for the source of a copied part. Errors: `InvalidArgument`.
pub(super) fn copy_source_options(
    headers: &HeaderMap,
    version: Option<VersionId>,
) -> OperationResult<GetOptions> {
    let text = headers.get("x-amz-copy-source-range").map(|value| value.to_str().unwrap_or_default());
    let range = text.map(|text| match parse_range(text) {
        Some(range @ ByteRange::Inclusive(first, last)) if first <= last => Ok(range),
        _ => {
            let words = "The x-amz-copy-source-range value must be of the form bytes=first-last where first \
                         and last are the zero-based offsets of the first and last bytes to copy";
            Err(S3Failure::argument(words, "x-amz-copy-source-range", text))
        }
    });
    let conditions = conditions_in(headers, &SOURCE_CONDITIONS)?;
    Ok(GetOptions { range: range.transpose()?, version, conditions, ..Default::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_encoded_as_paths_or_as_queries() {
        let read = |text: &'static str| {
            let headers = HeaderMap::from_iter([(COPY_SOURCE, HeaderValue::from_static(text))]);
            copy_source(&headers).ok().map(|(bucket, key, _)| format!("{bucket}/{key}"))
        };
        for (text, source) in [
            ("/bucket/a%20b", Some("bucket/a b")),
            ("bucket/a+b", Some("bucket/a b")),
            ("bucket%2Fa%2Bb+c", Some("bucket/a+b c")),
            ("/bucket/a+b?versionId=null", Some("bucket/a b")),
            ("/bucket/", None),
            ("/bucket/%zz", None),
        ] {
            assert_eq!(read(text).as_deref(), source, "{text}");
        }
    }
}
