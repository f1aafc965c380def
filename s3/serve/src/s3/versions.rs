//! Versioning of buckets, and listings of their versions.

use std::sync::Arc;

use bytes::Bytes;
use fordway_store::{
    Bucket, Error, ErrorKind, MAX_KEYS, ObjectContent, Store, VersioningState, VersionsQuery,
};
use fordway_wire::s3_xml::{VersionsResponseContext, list_versions_result};
use http::StatusCode;
use s3s::dto::{
    BucketVersioningStatus, GetBucketVersioningOutput, ListObjectVersionsInput, ListObjectVersionsOutput,
    MFADelete, Owner, VersioningConfiguration,
};
use s3s::{Body, S3Request, S3Response};

use crate::answer::PreparedBody;
use crate::content::BodyExtension;
use crate::s3::apart::change_apart;
use crate::s3::convert::{page_size, refuse, version};
use crate::s3::documents;
use crate::s3::error::{OperationResult, S3Failure};
use crate::s3::list::NameEncoding;
use crate::users::User;

pub(super) fn get(store: &dyn Store, bucket: String) -> OperationResult<GetBucketVersioningOutput> {
    let status = match store.versioning(&Bucket::new(bucket)?)? {
        VersioningState::Unversioned => None,
        VersioningState::Enabled => Some(BucketVersioningStatus::ENABLED),
        VersioningState::Suspended => Some(BucketVersioningStatus::SUSPENDED),
    };
    Ok(GetBucketVersioningOutput {
        status: status.map(BucketVersioningStatus::from_static),
        mfa_delete: None,
    })
}

/// Enables or suspends the versioning of a bucket.
pub(super) async fn put(
    user: Arc<User>,
    bucket: String,
    request: S3Request<Body>,
) -> OperationResult<S3Response<Body>> {
    let wanted: VersioningConfiguration = documents::sent(request.input).await?;
    change_apart(user, move |store| set(store, bucket, &wanted)).await?;
    Ok(S3Response::new(Body::empty()))
}

fn set(store: &dyn Store, bucket: String, wanted: &VersioningConfiguration) -> OperationResult<()> {
    let wants_mfa = wanted.mfa_delete.as_ref().is_some_and(|mfa| mfa.as_str() == MFADelete::ENABLED);
    refuse(&[("MfaDelete", wants_mfa)])?;
    let versioning = match wanted.status.as_ref().map(BucketVersioningStatus::as_str) {
        Some(BucketVersioningStatus::ENABLED) => VersioningState::Enabled,
        Some(BucketVersioningStatus::SUSPENDED) => VersioningState::Suspended,
        _ => {
            let message = "the Status of versioning must be Enabled or Suspended";
            return Err(S3Failure::new("MalformedXML", StatusCode::BAD_REQUEST, message));
        }
    };
    let bucket = Bucket::new(bucket)?;
    if versioning == VersioningState::Suspended && store.lock_configuration(&bucket)?.is_some() {
        let words = "An Object Lock configuration is present on this bucket, so the versioning state cannot be changed.";
        let detail =
            "object lock needs versioning, which cannot be suspended in this bucket; use another bucket";
        return Err(S3Failure::aws("InvalidBucketState", StatusCode::CONFLICT, words, detail));
    }
    Ok(store.set_versioning(&bucket, versioning)?)
}

/// Lists versions. The gateway writes the document itself, because the S3 layer would write versions and delete markers
/// as two separate lists.
pub(super) fn list(
    store: &dyn Store,
    owner: &Owner,
    input: ListObjectVersionsInput,
) -> OperationResult<S3Response<ListObjectVersionsOutput>> {
    let bucket = Bucket::new(input.bucket)?;
    if let Some(negative) = input.max_keys.filter(|keys| *keys < 0) {
        // For a negative `max-keys`, AWS's message in this listing differs from its message in other listings.
        return Err(S3Failure::argument("max-keys cannot be negative", "maxKeys", &negative.to_string()));
    }
    let query = VersionsQuery {
        prefix: input.prefix.unwrap_or_default(),
        delimiter: input.delimiter.filter(|delimiter| !delimiter.is_empty()),
        key_after: input.key_marker.filter(|marker| !marker.is_empty()),
        version_after: version(input.version_id_marker.as_deref().filter(|marker| !marker.is_empty()))?,
        max_keys: page_size("max-keys", input.max_keys, MAX_KEYS)?,
    };
    if query.version_after.is_some() && query.key_after.is_none() {
        let detail = "a version-id-marker needs a key-marker";
        return Err(Error::new(ErrorKind::InvalidArgument, detail).into());
    }
    let encoding = NameEncoding::new(input.encoding_type.as_ref())?;
    let page = store.list_versions(&bucket, &query)?;
    let answer = VersionsResponseContext {
        bucket: bucket.as_str(),
        query: &query,
        encode: &|name| encoding.apply(name),
        is_url_encoded: matches!(encoding, NameEncoding::Url),
        owner: owner.id.as_deref().unwrap_or_default(),
    };
    let document = Bytes::from(list_versions_result(&answer, &page));
    let mut response = S3Response::new(ListObjectVersionsOutput::default());
    response.extensions.insert(BodyExtension::new(PreparedBody::Content(ObjectContent::Bytes(document))));
    Ok(response)
}
