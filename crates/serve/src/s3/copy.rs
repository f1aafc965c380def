//! Copies within the store.

use fordway_store::{Bucket, Conditions, CopyOptions, Error, ErrorKind, GetOptions, Key, Store, VersionId};
use http::{Extensions, StatusCode};
use s3s::S3Request;
use s3s::dto::{
    CopyObjectInput, CopyObjectOutput, CopyObjectResult, CopySource, MetadataDirective, Range,
    TaggingDirective,
};

use super::convert::{
    conditions_of, etag, metadata_of, names, put_checksum, read_conditions, refuse_unsupported, tags,
    timestamp, type_of, version, version_name,
};
use super::error::{Failure, Outcome, message};
use super::objects::byte_range;
use super::source::SourceBucket;

pub(super) fn copy(store: &dyn Store, request: S3Request<CopyObjectInput>) -> Outcome<CopyObjectOutput> {
    let (mut input, headers) = (request.input, request.headers);
    refuse_unsupported!(input)?;
    let (bucket, key) = names(&input.bucket, &input.key)?;
    let (from_bucket, from_key, version) = copy_source(&input.copy_source, &request.extensions)?;
    let replaces = |directive: Option<&str>| directive == Some(MetadataDirective::REPLACE);
    let replaces_metadata = replaces(input.metadata_directive.as_ref().map(MetadataDirective::as_str));
    let replaces_tags = replaces(input.tagging_directive.as_ref().map(TaggingDirective::as_str));
    let source_conditions = read_conditions(
        input.copy_source_if_match.take(),
        input.copy_source_if_none_match.take(),
        input.copy_source_if_modified_since.take(),
        input.copy_source_if_unmodified_since.take(),
    );
    let options = CopyOptions {
        metadata: replaces_metadata.then(|| metadata_of!(input, &headers)),
        tags: replaces_tags.then(|| tags(input.tagging.as_deref())).transpose()?,
        source_version: version.clone(),
        source_conditions,
        conditions: conditions_of(&headers)?,
    };
    options.check_target((&from_bucket, &from_key), (&bucket, &key)).map_err(as_invalid_request)?;
    let made = store.copy((&from_bucket, &from_key), &bucket, &key, &options)?;

    let mut result = CopyObjectResult {
        e_tag: etag(&made.etag),
        last_modified: timestamp(made.modified),
        checksum_type: made.checksum.as_ref().map(type_of),
        ..Default::default()
    };
    put_checksum!(result, &made.checksum);
    Ok(CopyObjectOutput {
        copy_object_result: Some(result),
        copy_source_version_id: version_name(version),
        version_id: version_name(made.version),
        ..Default::default()
    })
}

/// S3 has a code of its own for a copy that changes nothing.
fn as_invalid_request(error: Error) -> Failure {
    Failure::new("InvalidRequest", StatusCode::BAD_REQUEST, message(&error))
}

/// The object that a copy reads, and the version of it that is named.
pub(super) fn copy_source(
    source: &CopySource,
    extensions: &Extensions,
) -> Outcome<(Bucket, Key, Option<VersionId>)> {
    match source {
        CopySource::Bucket { bucket, key, version_id } => {
            let bucket = SourceBucket::of(extensions, bucket)?;
            Ok((bucket, Key::new(&**key)?, version(version_id.as_deref())?))
        }
        _ => {
            Err(Error::new(ErrorKind::NotImplemented, "copy from /bucket/key; there are no access points")
                .into())
        }
    }
}

/// What a copied part asks of its source, with the range it takes.
pub(super) fn copy_source_options(
    range: Option<&str>,
    version: Option<VersionId>,
    conditions: Conditions,
) -> Outcome<GetOptions> {
    let range = range.map(Range::parse).transpose();
    let range = range.map_err(|_| {
        Error::new(ErrorKind::InvalidArgument, "x-amz-copy-source-range is not bytes=first-last")
    })?;
    Ok(GetOptions { range: range.map(byte_range), version, conditions, ..Default::default() })
}
