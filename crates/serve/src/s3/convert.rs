//! Between the S3 layer's types and the store's.

use std::time::SystemTime;

use fordway_store::{
    BoxedMetadata, Bucket, Checksum, ChecksumAlgorithm, ChecksumType, Conditions, ETag, ETagMatch, Error,
    ErrorKind, Key, Metadata, Tags, VersionId,
};
use fordway_wire::header_text::decode;
use fordway_wire::tagging;
use http::{HeaderMap, HeaderName, header};
use s3s::dto::{self, ETagCondition, Timestamp};

use super::error::Outcome;

/// The names a request is about.
pub(super) fn names(bucket: &str, key: &str) -> Outcome<(Bucket, Key)> {
    Ok((Bucket::new(bucket)?, Key::new(key)?))
}

/// The version a request names, if it names one. Errors: `NoSuchVersion`.
pub(super) fn version(named: Option<&str>) -> Outcome<Option<VersionId>> {
    Ok(named.filter(|name| !name.is_empty()).map(VersionId::new).transpose()?)
}

/// A version as S3 sends it.
pub(super) fn version_name(version: Option<VersionId>) -> Option<String> {
    version.map(|version| version.as_str().to_owned())
}

/// The tags in `x-amz-tagging`. Errors: `InvalidTag`.
pub(super) fn tags(header: Option<&str>) -> Outcome<Tags> {
    Ok(tagging::decode(header.unwrap_or_default())?)
}

/// A count that S3 sends as a signed number, at most `max`. Errors: `InvalidArgument`.
pub(super) fn page_size(wanted: Option<i32>, max: usize) -> Outcome<usize> {
    let wanted = usize::try_from(wanted.unwrap_or(i32::MAX)).map_err(|_| {
        Error::new(ErrorKind::InvalidArgument, "the number of entries wanted cannot be negative")
    })?;
    Ok(wanted.min(max))
}

/// A count as S3 sends it.
pub(super) fn count(value: usize) -> Option<i32> {
    i32::try_from(value).ok()
}

/// A size in bytes as S3 sends it.
pub(super) fn size(bytes: u64) -> Option<i64> {
    i64::try_from(bytes).ok()
}

/// A tag as S3 sends it.
pub(super) fn etag(tag: &ETag) -> Option<dto::ETag> {
    Some(dto::ETag::Strong(tag.as_str().to_owned()))
}

/// A time as S3 sends it.
pub(super) fn timestamp(time: SystemTime) -> Option<Timestamp> {
    Some(Timestamp::from(time))
}

fn system_time(timestamp: Timestamp) -> SystemTime {
    time::OffsetDateTime::from(timestamp).into()
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

/// What a read asks for.
pub(super) fn read_conditions(
    if_match: Option<ETagCondition>,
    if_none_match: Option<ETagCondition>,
    if_modified_since: Option<Timestamp>,
    if_unmodified_since: Option<Timestamp>,
) -> Conditions {
    Conditions {
        if_modified_since: if_modified_since.map(system_time),
        if_unmodified_since: if_unmodified_since.map(system_time),
        ..write_conditions(if_match, if_none_match)
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

/// The conditions of a request whose fields the S3 layer does not read. Errors: `InvalidArgument`.
pub(super) fn conditions_of(headers: &HeaderMap) -> Outcome<Conditions> {
    let read = |name: HeaderName| -> Outcome<Option<ETagCondition>> {
        let Some(value) = headers.get(&name) else { return Ok(None) };
        let parsed = ETagCondition::parse_http_header(value.as_bytes());
        let wrong = |_| Error::new(ErrorKind::InvalidArgument, format!("{name}: {value:?} is not an ETag"));
        Ok(Some(parsed.map_err(wrong)?))
    };
    Ok(write_conditions(read(header::IF_MATCH)?, read(header::IF_NONE_MATCH)?))
}

/// The metadata fields of any request that writes an object: they have the same names in each.
macro_rules! metadata_of {
    ($input:expr, $headers:expr) => {
        $crate::s3::convert::metadata(
            &mut $input.metadata,
            $headers,
            [
                $input.content_type.take(),
                $input.content_encoding.take(),
                $input.content_language.take(),
                $input.content_disposition.take(),
                $input.cache_control.take(),
            ],
        )
    };
}
pub(super) use metadata_of;

/// What the client says about the object beside its bytes, `Expires` as it wrote it.
pub(super) fn metadata(
    user: &mut Option<dto::Metadata>,
    headers: &HeaderMap,
    fields: [Option<String>; 5],
) -> BoxedMetadata {
    let [content_type, content_encoding, content_language, content_disposition, cache_control] = fields;
    Metadata {
        content_type,
        content_encoding: content_encoding.and_then(|coding| without_transfer_coding(&coding)),
        content_language,
        content_disposition,
        cache_control,
        expires: headers.get(header::EXPIRES).and_then(|value| value.to_str().ok()).map(str::to_owned),
        user: user
            .take()
            .into_iter()
            .flatten()
            .map(|(name, text)| (name, decode(&text).into_owned()))
            .collect(),
    }
    .into()
}

/// `aws-chunked` is how the body travels, and no property of the object.
fn without_transfer_coding(codings: &str) -> Option<String> {
    let kept: Vec<_> =
        codings.split(',').map(str::trim).filter(|c| !c.eq_ignore_ascii_case("aws-chunked")).collect();
    let kept = kept.join(", ");
    (!kept.is_empty()).then_some(kept)
}

/// The checksum fields of a request, of which at most one may be set. Errors: `InvalidArgument`,
/// `BadDigest`.
macro_rules! stated_checksum {
    ($input:expr) => {{
        use ::fordway_store::ChecksumAlgorithm as Algorithm;
        $crate::s3::convert::one_checksum([
            (Algorithm::Crc32, $input.checksum_crc32.as_deref()),
            (Algorithm::Crc32c, $input.checksum_crc32c.as_deref()),
            (Algorithm::Crc64Nvme, $input.checksum_crc64nvme.as_deref()),
            (Algorithm::Sha1, $input.checksum_sha1.as_deref()),
            (Algorithm::Sha256, $input.checksum_sha256.as_deref()),
        ])
    }};
}
pub(super) use stated_checksum;

/// See [`stated_checksum`].
pub(super) fn one_checksum(fields: [(ChecksumAlgorithm, Option<&str>); 5]) -> Outcome<Option<Checksum>> {
    let mut stated = fields.into_iter().filter_map(|(algorithm, text)| Some((algorithm, text?)));
    match (stated.next(), stated.next()) {
        (None, _) => Ok(None),
        // What is no checksum at all is none that fits: S3 has one code for both.
        (Some((algorithm, text)), None) => Ok(Some(
            Checksum::from_base64(algorithm, text)
                .map_err(|error| Error::new(ErrorKind::BadDigest, error.detail()))?,
        )),
        _ => Err(Error::new(ErrorKind::InvalidArgument, "state one checksum, not several").into()),
    }
}

/// Writes an optional checksum into the fields of an answer, which have the same names in each.
macro_rules! put_checksum {
    ($output:expr, $checksum:expr) => {
        if let Some(checksum) = $checksum {
            let field = match checksum.algorithm {
                ::fordway_store::ChecksumAlgorithm::Crc32 => &mut $output.checksum_crc32,
                ::fordway_store::ChecksumAlgorithm::Crc32c => &mut $output.checksum_crc32c,
                ::fordway_store::ChecksumAlgorithm::Crc64Nvme => &mut $output.checksum_crc64nvme,
                ::fordway_store::ChecksumAlgorithm::Sha1 => &mut $output.checksum_sha1,
                ::fordway_store::ChecksumAlgorithm::Sha256 => &mut $output.checksum_sha256,
            };
            *field = Some(checksum.to_base64());
        }
    };
}
pub(super) use put_checksum;

/// The algorithm a client names. Errors: `InvalidArgument`.
pub(super) fn algorithm(name: &str) -> Outcome<ChecksumAlgorithm> {
    ChecksumAlgorithm::from_name(name).ok_or_else(|| {
        let known = ChecksumAlgorithm::ALL.map(ChecksumAlgorithm::name).join(", ");
        Error::new(ErrorKind::InvalidArgument, format!("checksum {name:?} is not one of {known}")).into()
    })
}

/// What a checksum is computed from, as a client names it. Errors: `InvalidArgument`.
pub(super) fn checksum_type(name: &str) -> Outcome<ChecksumType> {
    ChecksumType::from_name(name).ok_or_else(|| {
        let detail = format!("checksum type {name:?} is neither FULL_OBJECT nor COMPOSITE");
        Error::new(ErrorKind::InvalidArgument, detail).into()
    })
}

/// What a checksum is computed from, as S3 sends it.
pub(super) fn type_of(checksum: &Checksum) -> dto::ChecksumType {
    dto::ChecksumType::from_static(checksum.checksum_type().name())
}

/// Refuses what a writer asks for and would believe it had got. Errors: `NotImplemented`.
macro_rules! refuse_unsupported {
    ($input:expr) => {
        $crate::s3::convert::refuse(&[
            ("x-amz-server-side-encryption", $input.server_side_encryption.is_some()),
            ("x-amz-server-side-encryption-customer-key", $input.sse_customer_key.is_some()),
            ("x-amz-object-lock-mode", $input.object_lock_mode.is_some()),
            ("x-amz-object-lock-legal-hold", $input.object_lock_legal_hold_status.is_some()),
            ("x-amz-website-redirect-location", $input.website_redirect_location.is_some()),
            ("x-amz-grant-read", $input.grant_read.is_some()),
            ("x-amz-grant-full-control", $input.grant_full_control.is_some()),
            (
                "an x-amz-acl other than private",
                $input.acl.as_ref().is_some_and(|acl| {
                    !matches!(acl.as_str(), "private" | "bucket-owner-full-control" | "bucket-owner-read")
                }),
            ),
            (
                "an x-amz-storage-class other than STANDARD",
                $input.storage_class.as_ref().is_some_and(|class| class.as_str() != "STANDARD"),
            ),
        ])
    };
}
pub(super) use refuse_unsupported;

/// See [`refuse_unsupported`].
pub(super) fn refuse(asked: &[(&str, bool)]) -> Outcome<()> {
    match asked.iter().find(|(_, asked)| *asked) {
        None => Ok(()),
        Some((what, _)) => {
            Err(Error::new(ErrorKind::NotImplemented, format!("{what} is not offered here; leave it out"))
                .into())
        }
    }
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
        assert_eq!(page_size(None, 1000).unwrap(), 1000);
        assert_eq!(page_size(Some(5000), 1000).unwrap(), 1000);
        assert_eq!(page_size(Some(0), 1000).unwrap(), 0);
        assert!(page_size(Some(-1), 1000).is_err());
    }

    #[test]
    fn two_checksums_are_one_too_many() {
        let crc = Some("y/U5dA==");
        let fields = |sha1| {
            [
                (ChecksumAlgorithm::Crc32, crc),
                (ChecksumAlgorithm::Crc32c, None),
                (ChecksumAlgorithm::Crc64Nvme, None),
                (ChecksumAlgorithm::Sha1, sha1),
                (ChecksumAlgorithm::Sha256, None),
            ]
        };
        assert!(one_checksum(fields(None)).unwrap().is_some());
        assert!(one_checksum(fields(Some("x"))).is_err());
    }
}
