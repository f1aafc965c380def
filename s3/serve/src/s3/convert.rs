//! Converts between the S3 layer's types and the store's, and writes the headers and documents that the S3 layer does
//! not write.

use std::collections::BTreeMap;
use std::time::SystemTime;

use bytes::Bytes;
use fordway_store::{
    BoxedMetadata, Bucket, Checksum, ChecksumAlgorithm, ChecksumType, Conditions, ETag, ETagMatch, Error,
    ErrorKind, Key, Metadata, ObjectContent, ObjectInfo, Tags, VersionId,
};
use fordway_wire::date::{format_iso8601, http_date, parse_http};
use fordway_wire::header_text::decode;
use fordway_wire::s3_xml::{ResponseDocumentBuilder, legal_hold_name};
use fordway_wire::uri::push_path;
use fordway_wire::{header_text, tagging};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri, header};
use percent_encoding::percent_decode_str;
use s3s::dto::{ETagCondition, Timestamp};
use s3s::{Body, S3Response};

use crate::answer::{PreparedBody, UrlScheme};
use crate::content::BodyExtension;
use crate::message::composed;
use crate::s3::error::{OperationResult, S3Failure};
use crate::s3::tagging::check;

/// Returns the bucket and the key that a request names.
pub(super) fn names(bucket: &str, key: &str) -> OperationResult<(Bucket, Key)> {
    Ok((Bucket::new(bucket)?, Key::new(key)?))
}

/// Returns the version that a request names, if any. Errors: `NoSuchVersion`; `InvalidArgument` for an invalid ID. An
/// empty ID is invalid, because it could be mistaken for the latest version.
pub(super) fn version(named: Option<&str>) -> OperationResult<Option<VersionId>> {
    if named == Some("") {
        let detail = "versionId is empty; omit it to select the latest version";
        return Err(Error::new(ErrorKind::InvalidArgument, detail).into());
    }
    if named.is_some_and(|name| name != VersionId::NULL && name.len() < VersionId::GENERATED_BYTES_MIN) {
        return Err(S3Failure::argument(
            "Invalid version id specified",
            "versionId",
            named.unwrap_or_default(),
        ));
    }
    Ok(named.map(VersionId::new).transpose()?)
}

/// Converts a version ID to the string that a response contains.
pub(super) fn version_name(version: Option<VersionId>) -> Option<String> {
    version.map(|version| version.as_str().to_owned())
}

/// Parses the tags in `x-amz-tagging`. Errors: `BadRequest` for too many tags; `InvalidArgument`, `InvalidTag`.
pub(crate) fn tags(header: Option<&str>) -> OperationResult<Tags> {
    let Some(text) = header else { return Ok(Tags::new()) };
    let tags = tagging::decode(text).ok().filter(|tags| is_encoded(text) && !tags.contains_key(""));
    let tags = tags.ok_or_else(|| {
        let words = "The header 'x-amz-tagging' shall be encoded as UTF-8 then URLEncoded URL query parameters \
                     without tag name duplicates.";
        S3Failure::argument(words, TAGGING.as_str(), text)
    })?;
    let listed: Vec<_> = tags.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
    check(&listed)?;
    Ok(tags)
}

/// Returns whether two hexadecimal digits follow each percent sign.
pub(super) fn is_encoded(text: &str) -> bool {
    let is_code = |after: &str| after.len() > 1 && after.bytes().take(2).all(|byte| byte.is_ascii_hexdigit());
    text.split('%').skip(1).all(is_code)
}

/// Converts a count, which is a signed number in a request, and limits it to `max`. Errors: `InvalidArgument`.
pub(super) fn page_size(name: &str, wanted: Option<i32>, max: usize) -> OperationResult<usize> {
    let wanted = wanted.unwrap_or(i32::MAX);
    let count = usize::try_from(wanted).map_err(|_| {
        let words = format!("Argument {name} must be an integer between 0 and 2147483647");
        S3Failure::argument(&words, name, &wanted.to_string())
    })?;
    Ok(count.min(max))
}

/// Converts a time to the S3 layer's type.
pub(super) fn timestamp(time: SystemTime) -> Option<Timestamp> {
    Some(Timestamp::from(time))
}

fn etag_match(condition: ETagCondition) -> ETagMatch {
    match condition {
        ETagCondition::Any => ETagMatch::Any,
        // The S3 layer mistakes a list for a single ETag, and removes the first and the last quote. The list is
        // therefore split at the remaining quotes.
        ETagCondition::ETag(tag) => {
            let each = tag.value().split("\"").step_by(2);
            ETagMatch::Tags(each.map(ETag::new).collect())
        }
    }
}

/// Returns the conditions of a write or delete.
pub(super) fn write_conditions(
    if_match: Option<ETagCondition>,
    if_none_match: Option<ETagCondition>,
) -> Conditions {
    Conditions {
        if_match: if_match.map(etag_match),
        if_none_match: if_none_match.map(etag_match),
        ..Conditions::default()
    }
}

/// The headers of conditional requests (RFC 9110): two for ETags, two for dates.
pub(crate) const CONDITIONS: [HeaderName; 4] =
    [header::IF_MATCH, header::IF_NONE_MATCH, header::IF_MODIFIED_SINCE, header::IF_UNMODIFIED_SINCE];

/// Reads the conditions of a request from the headers with these `names`. An invalid date in one of HTTP's own headers
/// is ignored (RFC 9110 section 13.1.3). Errors: `InvalidArgument`, including for an invalid date in an `x-amz-`
/// header.
pub(crate) fn conditions_in(headers: &HeaderMap, names: &[HeaderName; 4]) -> OperationResult<Conditions> {
    let [if_match, if_none_match, modified, unmodified] = names;
    Ok(Conditions {
        if_match: tags_in(headers, if_match)?,
        if_none_match: tags_in(headers, if_none_match)?,
        if_modified_since: date_in(headers, modified)?,
        if_unmodified_since: date_in(headers, unmodified)?,
    })
}

fn date_in(headers: &HeaderMap, name: &HeaderName) -> OperationResult<Option<SystemTime>> {
    let Some(value) = headers.get(name) else { return Ok(None) };
    match value.to_str().ok().and_then(parse_http) {
        None if name.as_str().starts_with("x-amz-") => {
            Err(Error::new(ErrorKind::InvalidArgument, format!("{name} is not an HTTP date")).into())
        }
        date => Ok(date),
    }
}

/// Reads the ETags in a header. Some clients omit the quotes.
fn tags_in(headers: &HeaderMap, name: &HeaderName) -> OperationResult<Option<ETagMatch>> {
    let Some(value) = headers.get(name) else { return Ok(None) };
    let text = value.to_str().unwrap_or_default().trim();
    if text == "*" {
        return Ok(Some(ETagMatch::Any));
    }
    let each = text.split(',').map(str::trim).filter(|tag| !tag.is_empty());
    let tags: Vec<_> = each.map(|tag| ETag::new(tag.strip_prefix("W/").unwrap_or(tag))).collect();
    match tags.is_empty() {
        true => Err(Error::new(ErrorKind::InvalidArgument, format!("{name} is not an ETag")).into()),
        false => Ok(Some(ETagMatch::Tags(tags))),
    }
}

/// Reads the object's metadata from the request headers. `Expires` is stored unchanged, even if it is not a date.
/// Errors: `MetadataTooLarge`.
pub(crate) fn metadata(headers: &HeaderMap) -> OperationResult<BoxedMetadata> {
    let text = |name: HeaderName| headers.get(name).map(text_of);
    // Several headers with the same name form one list.
    let list = |name: HeaderName| {
        let values: Vec<_> = headers.get_all(name).iter().map(text_of).collect();
        (!values.is_empty()).then(|| values.join(", "))
    };
    let mut user = BTreeMap::<String, String>::new();
    let mut bytes = 0;
    for (name, value) in headers {
        if let Some(name) = name.as_str().strip_prefix("x-amz-meta-") {
            let value = text_of(value);
            let value = decode(&value);
            bytes += name.len() + value.len();
            // Several headers with the same name form one list, as everywhere in HTTP.
            user.entry(name.to_owned())
                .and_modify(|known| *known += &format!(",{value}"))
                .or_insert(value.into());
        }
    }
    if bytes > METADATA_BYTES_MAX {
        let words = "Your metadata headers exceed the maximum allowed metadata size";
        let (size, most) = (bytes.to_string(), METADATA_BYTES_MAX.to_string());
        let facts = [("Size", &*size), ("MaxSizeAllowed", &*most)];
        let message = composed(words, "names and values count; use shorter or fewer ones", &facts);
        return Err(S3Failure::new("MetadataTooLarge", StatusCode::BAD_REQUEST, message));
    }
    let metadata = Metadata {
        content_type: text(header::CONTENT_TYPE),
        content_encoding: list(header::CONTENT_ENCODING).and_then(|coding| without_transfer_coding(&coding)),
        content_language: list(header::CONTENT_LANGUAGE),
        content_disposition: text(header::CONTENT_DISPOSITION),
        cache_control: list(header::CACHE_CONTROL),
        expires: text(header::EXPIRES),
        user,
    };
    Ok(metadata.into())
}

/// The maximum size of user metadata in bytes (S3's limit): the names without `x-amz-meta-`, plus the values, in UTF-8.
const METADATA_BYTES_MAX: usize = 2048;

/// Converts a header value to a string. Replaces bytes that are not UTF-8 with U+FFFD.
fn text_of(value: &HeaderValue) -> String {
    String::from_utf8_lossy(value.as_bytes()).into_owned()
}

/// Removes `aws-chunked`, which describes the transfer of the body, not the object.
fn without_transfer_coding(codings: &str) -> Option<String> {
    let kept: Vec<_> =
        codings.split(',').map(str::trim).filter(|c| !c.eq_ignore_ascii_case("aws-chunked")).collect();
    let kept = kept.join(", ");
    (!kept.is_empty()).then_some(kept)
}

/// Returns the checksum in the head of a request. A head may contain only one checksum. The function reads the headers
/// itself, because the S3 layer supports only some of the checksum headers. Errors: the message of the error
/// `InvalidRequest`.
pub(crate) fn stated_checksum(headers: &HeaderMap) -> Result<Option<Checksum>, String> {
    // Looking up the header of each algorithm is the most expensive step, so this step is skipped for a request without
    // a checksum.
    if !headers.keys().any(|name| name.as_str().starts_with("x-amz-checksum-")) {
        return Ok(None);
    }
    let value = |algorithm: ChecksumAlgorithm| {
        let value = headers.get(algorithm.header())?;
        Some((algorithm, value.to_str().unwrap_or_default()))
    };
    let mut stated = ChecksumAlgorithm::ALL.into_iter().filter_map(value);
    match (stated.next(), stated.next()) {
        (None, _) => Ok(None),
        (Some((algorithm, text)), None) => {
            Checksum::from_base64(algorithm, text).map(Some).map_err(|error| {
                composed(&format!("Value for {} header is invalid.", algorithm.header()), error.detail(), &[])
            })
        }
        _ => Err(SEVERAL_CHECKSUMS.to_owned()),
    }
}

/// AWS's message for a request with several checksums.
const SEVERAL_CHECKSUMS: &str =
    "Expecting a single x-amz-checksum- header. Multiple checksum Types are not allowed.\nstate one checksum";

/// Returns the error for a request with several checksums.
pub(super) fn several_checksums() -> S3Failure {
    invalid_request(SEVERAL_CHECKSUMS)
}

/// Returns the response headers for a checksum and its type.
pub(super) fn checksum_headers(checksum: Option<&Checksum>, kind: Option<ChecksumType>) -> HeaderMap {
    let sum = checksum.and_then(|checksum| {
        let value = HeaderValue::try_from(checksum.to_base64()).ok()?;
        Some((HeaderName::from_static(checksum.algorithm.header()), value))
    });
    let kind = kind.map(|kind| (CHECKSUM_TYPE, HeaderValue::from_static(kind.name())));
    sum.into_iter().chain(kind).collect()
}

/// Adds a header, unless `text` is not a valid value.
pub(super) fn add_text(headers: &mut HeaderMap, name: HeaderName, text: &str) {
    if let Ok(value) = HeaderValue::try_from(text) {
        headers.insert(name, value);
    }
}

/// Adds the header with the ID of the new version, unless the ID is `null`. If versioning is suspended, AWS's responses
/// to writes do not have this header (see the examples of PutObject in the S3 API reference).
pub(super) fn add_version(headers: &mut HeaderMap, made: Option<&VersionId>) {
    if let Some(version) = made.filter(|version| !version.is_null()) {
        add_text(headers, VERSION_ID, version.as_str());
    }
}

/// The header with the ID of the version that a response describes.
pub(super) const VERSION_ID: HeaderName = HeaderName::from_static("x-amz-version-id");
/// The header with tags, in the form of query parameters.
pub(super) const TAGGING: HeaderName = HeaderName::from_static("x-amz-tagging");
/// The header with the type of a checksum: whether it was computed from the whole object, or from the checksums of its
/// parts.
const CHECKSUM_TYPE: HeaderName = HeaderName::from_static("x-amz-checksum-type");

/// Returns a response with a document. The gateway writes the document itself, because the S3 layer does not support
/// all elements of the document.
pub(super) fn written<T>(output: T, document: ResponseDocumentBuilder) -> S3Response<T> {
    let mut response = S3Response::new(output);
    let document = Bytes::from(document.finish());
    response.extensions.insert(BodyExtension::new(PreparedBody::Content(ObjectContent::Bytes(document))));
    response
}

/// Returns a response with a document, for an operation that the S3 layer does not serve.
pub(super) fn document(document: ResponseDocumentBuilder) -> S3Response<Body> {
    let mut response = written(Body::empty(), document);
    response.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/xml"));
    response
}

/// Returns the decoded value of a query parameter.
pub(super) fn parameter(uri: &Uri, name: &str) -> Option<String> {
    let pairs = uri.query().unwrap_or_default().split('&');
    let mut pairs = pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    let found = pairs.find(|(known, _)| percent_decode_str(known).eq(name.bytes()));
    let spaced = found?.1.replace('+', " ");
    Some(percent_decode_str(&spaced).decode_utf8_lossy().into_owned())
}

/// Returns the URL of an object, with the host of the request, or only the path if the request has no host. Returns
/// `None` if the key has a segment `.` or `..`. Clients remove such segments from URLs, even if the segments are
/// encoded, and would request another object (RFC 3986 section 5.2.4).
pub(super) fn location(
    (bucket, key): &(String, String),
    scheme: Option<UrlScheme>,
    headers: &HeaderMap,
) -> Option<String> {
    if key.split('/').any(|segment| matches!(segment, "." | "..")) {
        return None;
    }
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let mut location = match (scheme, host) {
        (Some(UrlScheme(scheme)), Some(host)) => format!("{scheme}://{host}"),
        _ => String::new(),
    };
    if !host.is_some_and(|host| host.starts_with(&format!("{bucket}."))) {
        location.push_str(&format!("/{bucket}"));
    }
    location.push('/');
    push_path(&mut location, key);
    Some(location)
}

/// Returns an ETag in quotes, as in headers and documents.
pub(crate) fn quoted(tag: &ETag) -> String {
    ["\"", tag.as_str(), "\""].concat()
}

/// Returns the checksum algorithm that a client names. Errors: `InvalidRequest`.
pub(super) fn algorithm(name: &str) -> OperationResult<ChecksumAlgorithm> {
    ChecksumAlgorithm::from_name(name).ok_or_else(|| {
        let mut known = ChecksumAlgorithm::ALL.map(ChecksumAlgorithm::name);
        known.sort_unstable();
        let advice = "Please try again with any of the valid types";
        let words = format!("Checksum algorithm provided is unsupported. {advice}: [{}]", known.join(", "));
        invalid_request(composed(&words, &format!("{name:?} is none of them"), &[]))
    })
}

/// Returns the checksum type that a client names. Errors: `InvalidRequest`.
pub(super) fn checksum_type(name: &str) -> OperationResult<ChecksumType> {
    ChecksumType::from_name(&name.to_ascii_uppercase()).ok_or_else(|| {
        let detail = format!("{name:?} is neither FULL_OBJECT nor COMPOSITE");
        invalid_request(composed("Value for x-amz-checksum-type header is invalid.", &detail, &[]))
    })
}

/// Returns the error `InvalidRequest`, which S3 uses, for example, for invalid checksums.
pub(super) fn invalid_request(message: impl Into<String>) -> S3Failure {
    S3Failure::new("InvalidRequest", StatusCode::BAD_REQUEST, message)
}

/// Refuses unsupported options, because a client could not notice that an option was ignored. Errors: `NotImplemented`.
pub(super) fn refuse(asked: &[(&str, bool)]) -> OperationResult<()> {
    match asked.iter().find(|(_, asked)| *asked) {
        None => Ok(()),
        Some((what, _)) => {
            Err(Error::new(ErrorKind::NotImplemented, format!("{what} is not supported; remove it")).into())
        }
    }
}

/// Calls `put` with each header that describes the object. User metadata may contain names or values that are not valid
/// in headers. Returns `None` as soon as `put` returns `None`.
pub(crate) fn describe(info: &ObjectInfo, put: &mut impl FnMut(&str, &[u8]) -> Option<()>) -> Option<()> {
    put("accept-ranges", b"bytes")?;
    put("etag", quoted(&info.etag).as_bytes())?;
    put("last-modified", &http_date(info.modified))?;
    describe_metadata(info, put)?;
    if let Some(parts) = info.part_count {
        put("x-amz-mp-parts-count", parts.to_string().as_bytes())?;
    }
    if info.tag_count > 0 {
        put("x-amz-tagging-count", info.tag_count.to_string().as_bytes())?;
    }
    describe_lock(info, put)?;
    if let Some(version) = &info.version {
        put("x-amz-version-id", version.as_str().as_bytes())?;
    }
    Some(())
}

fn describe_lock(info: &ObjectInfo, put: &mut impl FnMut(&str, &[u8]) -> Option<()>) -> Option<()> {
    if let Some(retention) = info.lock.retention {
        put("x-amz-object-lock-mode", retention.mode.name().as_bytes())?;
        put("x-amz-object-lock-retain-until-date", format_iso8601(retention.until()).as_bytes())?;
    }
    if let Some(is_on) = info.lock.legal_hold {
        put("x-amz-object-lock-legal-hold", legal_hold_name(is_on).as_bytes())?;
    }
    Some(())
}

fn describe_metadata(info: &ObjectInfo, put: &mut impl FnMut(&str, &[u8]) -> Option<()>) -> Option<()> {
    let metadata = &info.metadata;
    for (name, value) in [
        ("cache-control", &metadata.cache_control),
        ("content-disposition", &metadata.content_disposition),
        ("content-encoding", &metadata.content_encoding),
        ("content-language", &metadata.content_language),
        ("expires", &metadata.expires),
    ] {
        if let Some(value) = value {
            put(name, value.as_bytes())?;
        }
    }
    for (name, value) in &metadata.user {
        put(&format!("x-amz-meta-{name}"), header_text::encode_for_response(value).as_bytes())?;
    }
    Some(())
}

/// Returns whether all programs interpret the name and the value in the same way. Metadata written by a POSIX program
/// may contain any bytes.
pub(crate) fn is_plain(name: &str, value: &[u8]) -> bool {
    // All other names are constants of the gateway, so they need no check.
    let is_of_user = name.starts_with("x-amz-meta-");
    let is_name = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (!is_of_user || name.bytes().all(is_name)) && is_printable(value) && value.trim_ascii() == value
}

/// Returns whether the value is printable ASCII.
pub(crate) fn is_printable(value: &[u8]) -> bool {
    // Checks all bytes without an early exit, so that the compiler can vectorize the loop.
    value.iter().fold(true, |is_printable, byte| is_printable & (b' '..=b'~').contains(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_transfer_coding_is_not_kept() {
        assert_eq!(without_transfer_coding("aws-chunked"), None);
        assert_eq!(without_transfer_coding("gzip,aws-chunked").as_deref(), Some("gzip"));
        assert_eq!(without_transfer_coding("gzip, br").as_deref(), Some("gzip, br"));
    }

    #[test]
    fn page_sizes() {
        assert_eq!(page_size("max-keys", None, 1000).unwrap(), 1000);
        assert_eq!(page_size("max-keys", Some(5000), 1000).unwrap(), 1000);
        assert_eq!(page_size("max-keys", Some(0), 1000).unwrap(), 0);
        assert!(page_size("max-keys", Some(-1), 1000).is_err());
    }

    #[test]
    fn two_checksums_are_one_too_many() {
        let mut headers = HeaderMap::new();
        assert!(stated_checksum(&headers).unwrap().is_none());
        headers.insert("x-amz-checksum-crc32", HeaderValue::from_static("y/U5dA=="));
        assert_eq!(stated_checksum(&headers).unwrap().unwrap().algorithm, ChecksumAlgorithm::Crc32);
        headers.insert("x-amz-checksum-xxhash3", HeaderValue::from_static("x"));
        assert!(stated_checksum(&headers).is_err());
    }
}
