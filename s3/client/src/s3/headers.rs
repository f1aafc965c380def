//! Converts metadata, conditions and checksums to headers, and back.

use std::time::{SystemTime, UNIX_EPOCH};

use fordway_store::{
    Checksum, ChecksumAlgorithm, Conditions, ETag, ETagMatch, Error, ErrorKind, Metadata, ObjectInfo,
    ObjectLock, PutResult, Result, Tags, VersionId,
};
use fordway_wire::range::digits;
use fordway_wire::s3_xml::{legal_hold_name, legal_hold_status, stated_retention};
use fordway_wire::{date, header_text, tagging};

use crate::s3::request::S3Call;
use fordway_http::HttpResponse;

const USER_PREFIX: &str = "x-amz-meta-";

/// Adds the headers of `metadata`. Errors: `InvalidArgument` for a name that is invalid in a header.
pub(super) fn add_metadata<'a>(call: &mut S3Call<'a>, metadata: &'a Metadata) -> Result<()> {
    let standard = [
        ("content-type", &metadata.content_type),
        ("content-encoding", &metadata.content_encoding),
        ("content-language", &metadata.content_language),
        ("content-disposition", &metadata.content_disposition),
        ("cache-control", &metadata.cache_control),
        ("expires", &metadata.expires),
    ];
    for (name, value) in standard {
        if let Some(value) = value {
            call.header(name, value.as_str());
        }
    }
    for (name, value) in &metadata.user {
        let is_token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
        if name.is_empty() || !name.bytes().all(is_token) {
            return Err(call.named(refused(format!("the metadata name {name:?} is invalid in a header"))));
        }
        call.header(format!("{USER_PREFIX}{}", name.to_ascii_lowercase()), header_text::encode(value));
    }
    Ok(())
}

/// Adds the header for `tags`, if there are any tags.
pub(super) fn add_tags(call: &mut S3Call, tags: &Tags) {
    if !tags.is_empty() {
        call.header("x-amz-tagging", tagging::encode(tags));
    }
}

/// Adds the headers for an object lock.
pub(super) fn add_lock(call: &mut S3Call, lock: &ObjectLock) {
    if let Some(retention) = lock.retention {
        call.header("x-amz-object-lock-mode", retention.mode.name());
        call.header("x-amz-object-lock-retain-until-date", date::format_iso8601(retention.until()));
    }
    if let Some(is_on) = lock.legal_hold {
        call.header("x-amz-object-lock-legal-hold", legal_hold_name(is_on));
    }
}

/// Returns the lock of an object, from the headers of a response.
fn lock(response: &HttpResponse) -> ObjectLock {
    let mode = response.header("x-amz-object-lock-mode");
    let until = response.header("x-amz-object-lock-retain-until-date");
    ObjectLock {
        retention: mode.zip(until).and_then(|(mode, until)| stated_retention(mode, until).ok()),
        legal_hold: response.header("x-amz-object-lock-legal-hold").and_then(legal_hold_status),
    }
}

/// Adds the header that bypasses a retention in governance mode.
pub(super) fn add_bypass(call: &mut S3Call, bypass: bool) {
    if bypass {
        call.header("x-amz-bypass-governance-retention", "true");
    }
}

/// The names of the headers for conditions. These names differ between conditions on the object of a request and
/// conditions on a source.
pub(super) struct ConditionHeaderNames([&'static str; 4]);

/// Conditions on the object of the request.
pub(super) const OF_OBJECT: ConditionHeaderNames =
    ConditionHeaderNames(["if-match", "if-none-match", "if-modified-since", "if-unmodified-since"]);

/// Conditions on the source of a copy.
pub(super) const OF_COPY_SOURCE: ConditionHeaderNames = ConditionHeaderNames([
    "x-amz-copy-source-if-match",
    "x-amz-copy-source-if-none-match",
    "x-amz-copy-source-if-modified-since",
    "x-amz-copy-source-if-unmodified-since",
]);

/// Adds the headers of `conditions`.
pub(super) fn add_conditions(call: &mut S3Call, conditions: &Conditions, names: &ConditionHeaderNames) {
    let ConditionHeaderNames([if_match, if_none_match, modified_since, unmodified_since]) = names;
    for (name, tags) in [(if_match, &conditions.if_match), (if_none_match, &conditions.if_none_match)] {
        if let Some(tags) = tags {
            call.header(*name, tag_list(tags));
        }
    }
    let times =
        [(modified_since, conditions.if_modified_since), (unmodified_since, conditions.if_unmodified_since)];
    for (name, time) in times {
        if let Some(time) = time {
            call.header(*name, date::format_http(time));
        }
    }
}

fn tag_list(tags: &ETagMatch) -> String {
    match tags {
        ETagMatch::Any => "*".to_owned(),
        ETagMatch::Tags(tags) => {
            let quoted: Vec<String> = tags.iter().map(|tag| format!("\"{tag}\"")).collect();
            quoted.join(", ")
        }
    }
}

/// Conditions on the source of a rename.
pub(super) const OF_RENAME_SOURCE: ConditionHeaderNames = ConditionHeaderNames([
    "x-amz-rename-source-if-match",
    "x-amz-rename-source-if-none-match",
    "x-amz-rename-source-if-modified-since",
    "x-amz-rename-source-if-unmodified-since",
]);

/// Adds a checksum, which the server verifies.
pub(super) fn add_checksum(call: &mut S3Call, checksum: &Checksum) {
    call.header(checksum.algorithm.header(), checksum.to_base64());
}

/// Returns the description of an object of `size` bytes, from the headers of a response.
pub(super) fn object_info(response: &HttpResponse, size: u64) -> ObjectInfo {
    let mut info = ObjectInfo::new(size, etag(response));
    info.modified = response.header("last-modified").and_then(date::parse_http).unwrap_or(UNIX_EPOCH);
    info.metadata = metadata(response).into();
    info.checksum = checksum(response);
    info.version = version(response).filter(|version| !version.is_null());
    let count = |name| response.header(name).and_then(digits);
    info.tag_count = count("x-amz-tagging-count").map_or(0, |count| count as usize);
    info.part_count = count("x-amz-mp-parts-count").and_then(|count| u16::try_from(count).ok());
    info.lock = lock(response);
    info
}

/// Returns the version ID in a response.
pub(super) fn version(response: &HttpResponse) -> Option<VersionId> {
    VersionId::new(response.header("x-amz-version-id")?).ok()
}

/// Returns the result of a write, from the headers of the response. Errors: `BadResponse` if there is no ETag. A
/// response without an ETag was not sent by an S3 service that stored the content. Such a response may be, for example,
/// a proxy's login page.
pub(super) fn put_result(response: &HttpResponse) -> Result<PutResult> {
    let etag = etag(response);
    if etag.as_str().is_empty() {
        let detail = "the response reports success without an ETag; check whether the content was stored";
        return Err(Error::new(ErrorKind::BadResponse, detail));
    }
    let (modified, checksum, version) = (answered_at(response), checksum(response), version(response));
    Ok(PutResult { etag, modified, checksum, version })
}

/// Returns the ETag in a response, or an empty ETag. The ETag of an object that is encrypted with a key of KMS or of
/// the client looks like an MD5, but is not the MD5 of the content.
pub(super) fn etag(response: &HttpResponse) -> ETag {
    let tag = response.header("etag").unwrap_or_default();
    let is_of_kms = response.header("x-amz-server-side-encryption").is_some_and(|kind| kind != "AES256");
    let is_of_client = response.header("x-amz-server-side-encryption-customer-algorithm").is_some();
    if is_of_kms || is_of_client { ETag::new_not_md5(tag) } else { ETag::new(tag) }
}

/// Returns the time of publication: the `Date` of the response or, if the response has no `Date`, the local time.
pub(super) fn answered_at(response: &HttpResponse) -> SystemTime {
    response.header("date").and_then(date::parse_http).unwrap_or_else(SystemTime::now)
}

/// Returns the checksum in a response. A composite checksum without the number of parts is ignored, because it would be
/// mistaken for a checksum of the whole content.
fn checksum(response: &HttpResponse) -> Option<Checksum> {
    let found = |algorithm: ChecksumAlgorithm| {
        let value = response.header(algorithm.header())?;
        Checksum::from_base64(algorithm, value).ok()
    };
    let is_composite = response.header("x-amz-checksum-type") == Some("COMPOSITE");
    let stated = ChecksumAlgorithm::ALL.into_iter().find_map(found);
    stated.filter(|checksum| checksum.parts.is_some() || !is_composite)
}

fn metadata(response: &HttpResponse) -> Metadata {
    let own = |name| response.header(name).map(str::to_owned);
    Metadata {
        // S3 returns this content type if the writer specified no type, so the client treats it as no content type.
        content_type: own("content-type").filter(|value| value != "binary/octet-stream"),
        content_encoding: own("content-encoding"),
        content_language: own("content-language"),
        content_disposition: own("content-disposition"),
        cache_control: own("cache-control"),
        expires: own("expires"),
        user: response.headers().filter_map(user_metadata).collect(),
    }
}

fn user_metadata((name, value): (&str, &str)) -> Option<(String, String)> {
    let (prefix, rest) = name.split_at_checked(USER_PREFIX.len())?;
    let text = || header_text::decode(value).into_owned();
    prefix.eq_ignore_ascii_case(USER_PREFIX).then(|| (rest.to_ascii_lowercase(), text()))
}

fn refused(detail: String) -> Error {
    Error::new(ErrorKind::InvalidArgument, detail)
}
