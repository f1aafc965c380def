//! Operations on buckets: listing, creating and deleting buckets, and reading properties such as the region.

use std::sync::Arc;

use fordway_policy::CannedAcl;
use fordway_store::{Bucket, Error, ErrorKind, LockConfiguration, Store, VersioningState};
use fordway_wire::s3_xml::{CreateBucketDocument, new_bucket};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use s3s::dto::{
    BucketLocationConstraint, DeleteBucketOutput, GetBucketLocationOutput, Grant, Grantee, HeadBucketOutput,
    ListBucketsInput, ListBucketsOutput, Owner, Permission, Type,
};
use s3s::{Body, S3Request, S3Response};

use crate::access::forget_rules;
use crate::gate::{NO_BUCKET_ACLS, OWNERSHIP};
use crate::identity::NAMELESS_REGION;
use crate::s3::acl;
use crate::s3::apart::change_apart;
use crate::s3::convert::{add_text, timestamp};
use crate::s3::documents::{malformed, ownership, tagging};
use crate::s3::error::{OperationResult, S3Failure, unreadable_body};
use crate::users::User;

/// The maximum number of buckets in one response (S3's limit).
const PAGE_MAX: usize = 10_000;
/// The maximum length of a new bucket's name in bytes (S3's limit).
const NAME_BYTES_MAX: usize = 63;

pub(super) fn list(
    store: &dyn Store,
    owner: &Owner,
    region: Option<&str>,
    input: ListBucketsInput,
) -> OperationResult<ListBucketsOutput> {
    let is_elsewhere = input.bucket_region.as_deref().zip(region).is_some_and(|(asked, ours)| asked != ours);
    let page = page_size(input.max_buckets)?;
    let prefix = input.prefix.as_deref().unwrap_or_default();
    let after = input.continuation_token.as_deref().unwrap_or_default();
    let wanted = |bucket: &Bucket| {
        let name = bucket.as_str();
        !is_elsewhere && name.starts_with(prefix) && name > after
    };
    // One more bucket shows whether there is another page.
    let found = store.find_buckets(&wanted, page + 1)?;
    let has_more = found.len() > page;
    let shown = found.into_iter().take(page);
    let buckets: Vec<_> = shown
        .map(|bucket| s3s::dto::Bucket {
            name: Some(bucket.name.as_str().to_owned()),
            creation_date: timestamp(bucket.created),
            bucket_region: region.map(str::to_owned),
        })
        .collect();
    let last = buckets.last().and_then(|bucket| bucket.name.clone());
    Ok(ListBucketsOutput {
        continuation_token: last.filter(|_| has_more),
        buckets: Some(buckets),
        owner: Some(owner.clone()),
        prefix: input.prefix,
    })
}

/// Returns the number of buckets per page. Errors: `InvalidArgument` for a number out of range.
fn page_size(asked: Option<i32>) -> OperationResult<usize> {
    let Some(asked) = asked else { return Ok(PAGE_MAX) };
    match usize::try_from(asked) {
        Ok(count) if (1..=PAGE_MAX).contains(&count) => Ok(count),
        _ => {
            let words = format!("Argument max-buckets must be an integer between 1 and {PAGE_MAX}.");
            Err(S3Failure::argument(&words, "max-buckets", &asked.to_string()))
        }
    }
}

/// Creates a bucket with the tags, the ownership setting and the ACL from the request. `region` is the gateway's
/// region; `None` if the gateway has no region, so that clients may name any region.
pub(super) async fn create(
    user: &Arc<User>,
    region: Option<&str>,
    bucket: String,
    mut request: S3Request<Body>,
) -> OperationResult<S3Response<Body>> {
    // `crate::gate` has already limited the size of the body.
    let document = request.input.store_all_limited(usize::MAX).await;
    let document = document.map_err(|error| unreadable_body(&*error))?;
    let asked = match document.is_empty() {
        true => CreateBucketDocument::default(),
        false => new_bucket(&document).map_err(|error| malformed(error.detail().to_owned()))?,
    };
    if let (Some(asked), Some(region)) = (asked.region, region) {
        check_region(&asked, region)?;
    }
    let tags = (!asked.tags.is_empty()).then(|| tagging::document_of(asked.tags)).transpose()?;
    let bucket = Bucket::new(bucket)?;
    let (new, has_lock) = (bucket.clone(), is_true(request.headers.get("x-amz-bucket-object-lock-enabled")));
    let ownership = text_of(&request.headers, OWNERSHIP).map(str::to_owned);
    let acl = stated_acl(&request.headers, ownership.as_deref())?;
    let settings = NewBucketSettings { has_lock, tags, ownership, acl };
    let make = move |store: &dyn Store| -> OperationResult<()> {
        // An existing directory can have a name that is not allowed for a new bucket. Clients that create the bucket
        // before they use it must then be told that the bucket exists.
        if let Err(refused) = check_name(&new)
            && store.head_bucket(&new).is_err()
        {
            return Err(refused);
        }
        store.create_bucket(&new)?;
        settings.store(store, &new).inspect_err(|_| remove_unfinished(store, &new))
    };
    // Changing the settings takes locks of the new bucket. The owner of the bucket can already hold these locks, so the
    // changes run on a thread that may wait.
    change_apart(user.clone(), make).await?;
    let mut headers = arn(&bucket);
    add_text(&mut headers, header::LOCATION, &format!("/{bucket}"));
    Ok(S3Response::with_headers(Body::empty(), headers))
}

/// The settings of a new bucket.
struct NewBucketSettings {
    has_lock: bool,
    /// The document with the bucket's tags.
    tags: Option<Vec<u8>>,
    ownership: Option<String>,
    acl: CannedAcl,
}

impl NewBucketSettings {
    fn store(self, store: &dyn Store, bucket: &Bucket) -> OperationResult<()> {
        if self.has_lock {
            store.set_versioning(bucket, VersioningState::Enabled)?;
            store.set_lock_configuration(bucket, &LockConfiguration::default())?;
        }
        if let Some(tags) = self.tags {
            store.set_document(bucket, &tagging::KIND, &tags)?;
        }
        if let Some(setting) = self.ownership {
            store.set_document(bucket, &ownership::KIND, ownership::document_of(&setting).as_bytes())?;
        }
        match self.acl {
            CannedAcl::Private => Ok(()),
            public => Ok(acl::store_acl(store, bucket, public)?),
        }
    }
}

/// Removes a new bucket that lacks some of its settings. Otherwise, the client would mistake the bucket for the
/// requested one when a repeated request reports that it exists. The bucket remains if it already has objects.
#[cold]
fn remove_unfinished(store: &dyn Store, bucket: &Bucket) {
    match store.delete_bucket(bucket) {
        Ok(()) => forget_rules(),
        Err(error) => tracing::warn!(%error, %bucket, "a bucket without its settings was not removed"),
    }
}

/// Returns the ACL from a request that creates a bucket with the ownership setting `ownership`. Errors:
/// `InvalidBucketAclWithObjectOwnership` if the setting, or the default, disables ACLs.
fn stated_acl(headers: &HeaderMap, ownership: Option<&str>) -> OperationResult<CannedAcl> {
    let acl = text_of(headers, "x-amz-acl").map_or(Ok(CannedAcl::Private), acl::named_acl)?;
    let has_acls = ownership.is_some_and(|setting| setting != "BucketOwnerEnforced");
    match acl.is_public() && !has_acls {
        true => {
            let detail = format!("send {OWNERSHIP}: BucketOwnerPreferred, or use a policy");
            let code = "InvalidBucketAclWithObjectOwnership";
            Err(S3Failure::aws(code, StatusCode::BAD_REQUEST, NO_BUCKET_ACLS, &detail))
        }
        false => Ok(acl),
    }
}

fn text_of<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// Returns whether a header has the value `true`, ignoring case.
pub(super) fn is_true(header: Option<&HeaderValue>) -> bool {
    header.is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"true"))
}

/// Checks the region that is requested for a new bucket. Errors: `InvalidLocationConstraint` for any region except the
/// gateway's.
fn check_region(asked: &str, region: &str) -> OperationResult<()> {
    if asked.is_empty() || asked == region {
        return Ok(());
    }
    let message = format!(
        "this gateway was started with --region {region}, so {asked:?} is not a region here; set the client's region \
         to {region}, or start the gateway without --region"
    );
    Err(S3Failure::new("InvalidLocationConstraint", StatusCode::BAD_REQUEST, message))
}

/// Checks that S3 would accept the name of a new bucket, so that the bucket's content can be moved to S3. Errors:
/// `InvalidBucketName`.
fn check_name(bucket: &Bucket) -> OperationResult<()> {
    let name = bucket.as_str();
    let is_plain =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.');
    match name.len() <= NAME_BYTES_MAX && name.bytes().all(is_plain) {
        true => Ok(()),
        false => {
            let detail = format!(
                "{name:?} is not a name that S3 allows for a new bucket; use 3 to {NAME_BYTES_MAX} lower-case letters, \
                 digits, dots and hyphens, starting with a letter or digit"
            );
            Err(Error::new(ErrorKind::InvalidBucketName, detail).into())
        }
    }
}

pub(super) fn head(
    store: &dyn Store,
    region: &str,
    bucket: String,
) -> OperationResult<S3Response<HeadBucketOutput>> {
    let bucket = Bucket::new(bucket)?;
    store.head_bucket(&bucket)?;
    let output = HeadBucketOutput { bucket_region: Some(region.to_owned()), ..Default::default() };
    Ok(S3Response::with_headers(output, arn(&bucket)))
}

/// Returns the header with the ARN (Amazon Resource Name) of a bucket.
fn arn(bucket: &Bucket) -> HeaderMap {
    let mut headers = HeaderMap::new();
    add_text(&mut headers, BUCKET_ARN, &format!("arn:aws:s3:::{bucket}"));
    headers
}

const BUCKET_ARN: HeaderName = HeaderName::from_static("x-amz-bucket-arn");

pub(super) fn delete(store: &dyn Store, bucket: String) -> OperationResult<DeleteBucketOutput> {
    let bucket = Bucket::new(bucket)?;
    match store.delete_bucket(&bucket) {
        Ok(()) => {
            // A new bucket with this name must not have the rules of the deleted bucket.
            forget_rules();
            Ok(DeleteBucketOutput::default())
        }
        Err(error) if error.kind() == ErrorKind::BucketNotEmpty && keeps_versions(store, &bucket) => {
            let words =
                "The bucket you tried to delete is not empty. You must delete all versions in the bucket.";
            Err(S3Failure::aws("BucketNotEmpty", StatusCode::CONFLICT, words, error.detail()))
        }
        Err(error) => Err(error.into()),
    }
}

fn keeps_versions(store: &dyn Store, bucket: &Bucket) -> bool {
    store.versioning(bucket).is_ok_and(|state| state != VersioningState::Unversioned)
}

pub(super) fn location(
    store: &dyn Store,
    region: &str,
    bucket: String,
) -> OperationResult<GetBucketLocationOutput> {
    store.head_bucket(&Bucket::new(bucket)?)?;
    let named = Some(region).filter(|region| *region != NAMELESS_REGION);
    Ok(GetBucketLocationOutput {
        location_constraint: named.map(|region| BucketLocationConstraint::from(region.to_owned())),
    })
}

/// Returns an error with `code`, for a configuration that a bucket does not have.
pub(super) fn without(code: &str) -> S3Failure {
    S3Failure::new(code, StatusCode::NOT_FOUND, "this configuration is not supported")
}

/// Returns the grant of the owner, who always has full control.
pub(super) fn full_control(owner: &Owner) -> Vec<Grant> {
    let grantee = Grantee {
        id: owner.id.clone(),
        display_name: owner.display_name.clone(),
        email_address: None,
        type_: Type::from_static(Type::CANONICAL_USER),
        uri: None,
    };
    vec![Grant {
        grantee: Some(grantee),
        permission: Some(Permission::from_static(Permission::FULL_CONTROL)),
    }]
}
