//! Between the S3 layer's types and the store's, and what an answer says of an object where we write it ourselves.

use std::collections::BTreeMap;
use std::time::SystemTime;

use bytes::Bytes;
use fordway_store::{
    BoxedMetadata, Bucket, Checksum, ChecksumAlgorithm, ChecksumType, Conditions, ETag, ETagMatch, Error,
    ErrorKind, Key, Metadata, ObjectContent, ObjectInfo, Tags, VersionId,
};
use fordway_wire::date::{format_http, parse_http};
use fordway_wire::header_text::decode;
use fordway_wire::s3_xml::ResponseDocument;
use fordway_wire::{header_text, tagging};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri, header};
use percent_encoding::percent_decode_str;
use s3s::dto::{ETagCondition, Timestamp};
use s3s::{Body, S3Response};

use crate::answer::PreparedBody;
use crate::content::BodyExtension;
use crate::message::composed;
use crate::s3::error::{Outcome, S3Failure};

/// The names a request is about.
pub(super) fn names(bucket: &str, key: &str) -> Outcome<(Bucket, Key)> {
    Ok((Bucket::new(bucket)?, Key::new(key)?))
}

/// The version a request names, if it names one. Errors: `NoSuchVersion`, and `InvalidArgument` for what can
/// be no name, above all for an empty one, which must not come to mean the latest.
pub(super) fn version(named: Option<&str>) -> Outcome<Option<VersionId>> {
    if named == Some("") {
        let detail = "the version's name is empty; leave versionId out to mean the latest version";
        return Err(Error::new(ErrorKind::InvalidArgument, detail).into());
    }
    if named.is_some_and(|name| name != VersionId::NULL && name.len() < VERSION_BYTES_MIN) {
        return Err(S3Failure::argument(
            "Invalid version id specified",
            "versionId",
            named.unwrap_or_default(),
        ));
    }
    Ok(named.map(VersionId::new).transpose()?)
}

/// No store makes shorter names of versions.
const VERSION_BYTES_MIN: usize = 24;

/// A version as S3 sends it.
pub(super) fn version_name(version: Option<VersionId>) -> Option<String> {
    version.map(|version| version.as_str().to_owned())
}

/// The tags in `x-amz-tagging`. Errors: `InvalidArgument`.
pub(super) fn tags(header: Option<&str>) -> Outcome<Tags> {
    let text = header.unwrap_or_default();
    tagging::decode(text).map_err(|_| {
        let words = "The header 'x-amz-tagging' shall be encoded as UTF-8 then URLEncoded URL query parameters \
                     without tag name duplicates.";
        S3Failure::argument(words, TAGGING.as_str(), text)
    })
}

/// A count that S3 sends as a signed number, at most `max`. Errors: `InvalidArgument`.
pub(super) fn page_size(name: &str, wanted: Option<i32>, max: usize) -> Outcome<usize> {
    let wanted = wanted.unwrap_or(i32::MAX);
    let count = usize::try_from(wanted).map_err(|_| {
        let words = format!("Argument {name} must be an integer between 0 and 2147483647");
        S3Failure::argument(&words, name, &wanted.to_string())
    })?;
    Ok(count.min(max))
}

/// A time as S3 sends it.
pub(super) fn timestamp(time: SystemTime) -> Option<Timestamp> {
    Some(Timestamp::from(time))
}

fn etag_match(condition: ETagCondition) -> ETagMatch {
    match condition {
        ETagCondition::Any => ETagMatch::Any,
        // The S3 layer takes a list for one tag, and drops the first quote and the last.
        ETagCondition::ETag(tag) => {
            let each = tag.value().split("\"").step_by(2);
            ETagMatch::Tags(each.map(ETag::new).collect())
        }
    }
}

/// What a write or delete asks for.
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

/// The headers of conditions, as RFC 9110 has them: two of tags, two of dates.
pub(super) const CONDITIONS: [HeaderName; 4] =
    [header::IF_MATCH, header::IF_NONE_MATCH, header::IF_MODIFIED_SINCE, header::IF_UNMODIFIED_SINCE];

/// The conditions in a head, under `names`. A date that is none is no condition (RFC 9110 section 13.1.3).
/// Errors: `InvalidArgument`.
pub(super) fn conditions_in(headers: &HeaderMap, names: &[HeaderName; 4]) -> Outcome<Conditions> {
    let [if_match, if_none_match, modified, unmodified] = names;
    let date = |name: &HeaderName| headers.get(name).and_then(|value| parse_http(value.to_str().ok()?));
    Ok(Conditions {
        if_match: tags_in(headers, if_match)?,
        if_none_match: tags_in(headers, if_none_match)?,
        if_modified_since: date(modified),
        if_unmodified_since: date(unmodified),
    })
}

/// The tags in a header: some clients leave their quotes out.
fn tags_in(headers: &HeaderMap, name: &HeaderName) -> Outcome<Option<ETagMatch>> {
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

/// What the client says about the object beside its bytes, `Expires` as it wrote it.
pub(super) fn metadata(headers: &HeaderMap) -> BoxedMetadata {
    let text = |name: HeaderName| headers.get(name).map(text_of);
    let mut user = BTreeMap::<String, String>::new();
    for (name, value) in headers {
        if let Some(name) = name.as_str().strip_prefix("x-amz-meta-") {
            let value = text_of(value);
            let value = decode(&value);
            // Several of a name are one, as in all of HTTP.
            user.entry(name.to_owned())
                .and_modify(|known| *known += &format!(",{value}"))
                .or_insert(value.into());
        }
    }
    Metadata {
        content_type: text(header::CONTENT_TYPE),
        content_encoding: text(header::CONTENT_ENCODING).and_then(|coding| without_transfer_coding(&coding)),
        content_language: text(header::CONTENT_LANGUAGE),
        content_disposition: text(header::CONTENT_DISPOSITION),
        cache_control: text(header::CACHE_CONTROL),
        expires: text(header::EXPIRES),
        user,
    }
    .into()
}

/// What is not UTF-8 is kept as near to it as text can.
fn text_of(value: &HeaderValue) -> String {
    String::from_utf8_lossy(value.as_bytes()).into_owned()
}

/// `aws-chunked` is how the body travels, and no property of the object.
fn without_transfer_coding(codings: &str) -> Option<String> {
    let kept: Vec<_> =
        codings.split(',').map(str::trim).filter(|c| !c.eq_ignore_ascii_case("aws-chunked")).collect();
    let kept = kept.join(", ");
    (!kept.is_empty()).then_some(kept)
}

/// The checksum in the head of a request, of which there may be one. The S3 layer knows some of their
/// headers only. Errors: the text of an `InvalidRequest`.
pub(crate) fn stated_checksum(headers: &HeaderMap) -> Result<Option<Checksum>, String> {
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
        _ => {
            let words = "Expecting a single x-amz-checksum- header. Multiple checksum Types are not allowed.";
            Err(composed(words, "state one checksum, not several", &[]))
        }
    }
}

/// The headers that an answer has for a checksum, and for what it was computed from.
pub(super) fn checksum_headers(checksum: Option<&Checksum>, kind: Option<ChecksumType>) -> HeaderMap {
    let sum = checksum.and_then(|checksum| {
        let value = HeaderValue::try_from(checksum.to_base64()).ok()?;
        Some((HeaderName::from_static(checksum.algorithm.header()), value))
    });
    let kind = kind.map(|kind| (CHECKSUM_TYPE, HeaderValue::from_static(kind.name())));
    sum.into_iter().chain(kind).collect()
}

/// Adds a header; what cannot stand in one is left out.
pub(super) fn add_text(headers: &mut HeaderMap, name: HeaderName, text: &str) {
    if let Ok(value) = HeaderValue::try_from(text) {
        headers.insert(name, value);
    }
}

/// Names the version that was made, unless it is `null`: where versioning is suspended, AWS's answers to writes have no such
/// header (API reference, examples of PutObject).
pub(super) fn add_version(headers: &mut HeaderMap, made: Option<&VersionId>) {
    if let Some(version) = made.filter(|version| !version.is_null()) {
        add_text(headers, VERSION_ID, version.as_str());
    }
}

/// The version that an answer is about.
pub(super) const VERSION_ID: HeaderName = HeaderName::from_static("x-amz-version-id");
/// Tags, as a query has parameters.
pub(super) const TAGGING: HeaderName = HeaderName::from_static("x-amz-tagging");
/// What a checksum was computed from.
const CHECKSUM_TYPE: HeaderName = HeaderName::from_static("x-amz-checksum-type");

/// An answer whose document is written here: the S3 layer does not know all that stands in it.
pub(super) fn written<T>(output: T, document: ResponseDocument) -> S3Response<T> {
    let mut response = S3Response::new(output);
    let document = Bytes::from(document.finish());
    response.extensions.insert(BodyExtension::new(PreparedBody::Content(ObjectContent::Bytes(document))));
    response
}

/// The same where the S3 layer has no part in the answer.
pub(super) fn document(document: ResponseDocument) -> S3Response<Body> {
    let mut response = written(Body::empty(), document);
    response.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/xml"));
    response
}

/// The value of a parameter, decoded.
pub(super) fn parameter(uri: &Uri, name: &str) -> Option<String> {
    let pairs = uri.query().unwrap_or_default().split('&');
    let mut pairs = pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    let found = pairs.find(|(known, _)| percent_decode_str(known).eq(name.bytes()));
    Some(percent_decode_str(found?.1).decode_utf8_lossy().into_owned())
}

/// A tag as documents have it.
pub(crate) fn quoted(tag: &ETag) -> String {
    ["\"", tag.as_str(), "\""].concat()
}

/// The algorithm a client names. Errors: `InvalidRequest`.
pub(super) fn algorithm(name: &str) -> Outcome<ChecksumAlgorithm> {
    ChecksumAlgorithm::from_name(name).ok_or_else(|| {
        let mut known = ChecksumAlgorithm::ALL.map(ChecksumAlgorithm::name);
        known.sort_unstable();
        let advice = "Please try again with any of the valid types";
        let words = format!("Checksum algorithm provided is unsupported. {advice}: [{}]", known.join(", "));
        invalid_request(composed(&words, &format!("{name:?} is none of them"), &[]))
    })
}

/// What a checksum is computed from, as a client names it. Errors: `InvalidRequest`.
pub(super) fn checksum_type(name: &str) -> Outcome<ChecksumType> {
    ChecksumType::from_name(&name.to_ascii_uppercase()).ok_or_else(|| {
        let detail = format!("{name:?} is neither FULL_OBJECT nor COMPOSITE");
        invalid_request(composed("Value for x-amz-checksum-type header is invalid.", &detail, &[]))
    })
}

/// S3's code for what is wrong with checksums, and with a few other things.
pub(super) fn invalid_request(message: impl Into<String>) -> S3Failure {
    S3Failure::new("InvalidRequest", StatusCode::BAD_REQUEST, message)
}

/// Refuses what a client asks for and would believe it had got. Errors: `NotImplemented`.
pub(super) fn refuse(asked: &[(&str, bool)]) -> Outcome<()> {
    match asked.iter().find(|(_, asked)| *asked) {
        None => Ok(()),
        Some((what, _)) => {
            Err(Error::new(ErrorKind::NotImplemented, format!("{what} is not offered here; leave it out"))
                .into())
        }
    }
}

/// Hands each header to `put`, of which user metadata may be no headers; `None` where `put` says
/// so.
pub(crate) fn describe(info: &ObjectInfo, put: &mut impl FnMut(&str, &[u8]) -> Option<()>) -> Option<()> {
    put("accept-ranges", b"bytes")?;
    put("etag", quoted(&info.etag).as_bytes())?;
    put("last-modified", format_http(info.modified).as_bytes())?;
    describe_metadata(info, put)?;
    if let Some(parts) = info.part_count {
        put("x-amz-mp-parts-count", parts.to_string().as_bytes())?;
    }
    if info.tag_count > 0 {
        put("x-amz-tagging-count", info.tag_count.to_string().as_bytes())?;
    }
    if let Some(version) = &info.version {
        put("x-amz-version-id", version.as_str().as_bytes())?;
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
        put(&format!("x-amz-meta-{name}"), header_text::encode(value).as_bytes())?;
    }
    Some(())
}

/// Whether name and value are such as nobody reads in two ways. What a POSIX program recorded may be
/// anything.
pub(crate) fn is_plain(name: &str, value: &[u8]) -> bool {
    let is_name = name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
    is_name && value.iter().all(|byte| (b' '..=b'~').contains(byte)) && value.trim_ascii() == value
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
