//! Implements each S3 operation in terms of the store. The S3 layer (crate `s3s`) parses requests, checks signatures
//! and writes responses. The S3 layer responds with NotImplemented to operations that have no method in this module.

mod absent;
pub(crate) mod acl;
mod apart;
mod attributes;
mod buckets;
mod convert;
mod copy;
mod delete;
pub(crate) mod documents;
mod error;
mod form;
mod list;
mod lock;
mod look_up;
mod multipart;
mod reads;
mod rename;
mod routes;
mod tagging;
mod upload;
mod versions;

use std::sync::Arc;

use fordway_store::{Bucket, GetOptions, Store};
use s3s::config::{S3Config, StaticConfigProvider};
use s3s::dto::*;
use s3s::service::{S3Service, S3ServiceBuilder};
use s3s::validation::NameValidation;
use s3s::{S3, S3Request, S3Response, S3Result};

use crate::GatewayConfig;
use crate::domains::BucketDomains;
use crate::identity::{NAMELESS_REGION, NoSecretKeys, RequestAuthenticator, SecretKeyLookup};
use crate::users::{User, Users};
pub(crate) use convert::stated_checksum;
#[cfg(feature = "fuzzing")]
pub(crate) use convert::{CONDITIONS, conditions_in, metadata};
pub(crate) use reads::DEFAULT_TYPE;

use absent::absent;
pub(crate) use apart::PublishLatency;
use apart::until_unlocked;
use apart::{apart, change_apart, here_unless_remote};
use convert::names;
pub(crate) use convert::{describe, is_plain, is_printable, quoted, tags};
pub(crate) use copy::copy_source;
pub(crate) use error::{OperationResult, S3Failure, beyond_limit};
pub(crate) use form::PostFormContext;
pub(crate) use look_up::look_up;
pub(crate) use rename::rename_source;
use routes::ObjectRoutes;
pub(crate) use upload::ObjectUpload;

/// Builds the service that answers signed requests from `users`.
pub(crate) fn service(
    users: Arc<Users>,
    config: &GatewayConfig,
    domains: BucketDomains,
    publishing: Arc<PublishLatency>,
) -> S3Service {
    let keys = SecretKeyLookup(users.clone());
    let admission = RequestAuthenticator::Signed(users);
    let webhooks = config.webhooks.iter().map(|webhook| webhook.name().to_owned()).collect();
    let regions = (Some(config.reported_region()), config.region.as_deref());
    let mut builder = builder(regions, admission, domains.clone(), publishing, webhooks);
    builder.set_auth(keys);
    builder.set_host(domains);
    builder.build()
}

/// Builds the service that answers unsigned requests. The caller's user is in the request's extensions.
pub(crate) fn service_for_peers(publishing: Arc<PublishLatency>) -> S3Service {
    let mut builder =
        builder((None, None), RequestAuthenticator::Peers, BucketDomains::none(), publishing, [].into());
    // The S3 layer checks access only if it can look up keys.
    builder.set_auth(NoSecretKeys);
    builder.build()
}

/// Returns a builder of a service. `reported` is the region that is reported to clients; `own` is the only region in
/// which they may create buckets.
fn builder(
    (reported, own): (Option<&str>, Option<&str>),
    admission: RequestAuthenticator,
    domains: BucketDomains,
    publishing: Arc<PublishLatency>,
    webhooks: Arc<[String]>,
) -> S3ServiceBuilder {
    let mut limits = S3Config::default();
    // The S3 layer needs no limit, because `crate::gate` limits the size of documents.
    limits.xml_max_body_size = usize::MAX;
    let mut builder = S3ServiceBuilder::new(S3Frontend {
        region: reported.map(str::to_owned),
        admission: admission.clone(),
    });
    builder.set_config(Arc::new(StaticConfigProvider::new(Arc::new(limits))));
    builder.set_validation(BucketNameValidator);
    let region = own.map(str::to_owned);
    builder.set_route(ObjectRoutes { admission: admission.clone(), domains, publishing, region, webhooks });
    builder.set_access(admission);
    builder
}

/// Returns the response to a request that failed outside the S3 layer, in the form that the S3 layer uses.
pub(crate) fn failed(failure: impl Into<S3Failure>) -> http::Response<s3s::Body> {
    failure.into().0.to_http_response().unwrap_or_else(|error| {
        tracing::error!(?error, "an error could not be written in S3's format");
        let mut response = http::Response::new(s3s::Body::empty());
        *response.status_mut() = http::StatusCode::INTERNAL_SERVER_ERROR;
        response
    })
}

/// Checks bucket names: accepts the same names as the store.
struct BucketNameValidator;

impl NameValidation for BucketNameValidator {
    fn validate_bucket_name(&self, name: &str) -> bool {
        Bucket::new(name).is_ok()
    }
}

/// Serves S3 operations from the caller's store. Calls to the store block the thread that received the request, except
/// calls that may take a long time (see the crate's documentation).
struct S3Frontend {
    /// The region that is reported to clients; `None` on a socket, where regions have no meaning.
    region: Option<String>,
    /// Provides the names of the users who own buckets.
    admission: RequestAuthenticator,
}

impl S3Frontend {
    fn region(&self) -> &str {
        self.region.as_deref().unwrap_or(NAMELESS_REGION)
    }
}

/// Returns the user who sent a request. Errors: `AccessDenied`, which cannot occur after signatures have been checked.
fn caller<T>(request: &S3Request<T>) -> S3Result<Arc<User>> {
    let user = request.extensions.get::<Arc<User>>().cloned();
    user.ok_or_else(|| s3s::s3_error!(AccessDenied, "the signer of the request is unknown"))
}

/// Converts a user to an owner for responses.
fn owner(user: &User) -> Owner {
    Owner { id: Some(user.name.clone()), display_name: Some(user.name.clone()) }
}

/// Returns the owner of a bucket for responses about its ACL. Errors: `NoSuchBucket`.
async fn owner_of_bucket(
    admission: &RequestAuthenticator,
    user: &Arc<User>,
    bucket: &str,
) -> S3Result<Owner> {
    let bucket = bucket.to_owned();
    let read = move |store: &dyn Store| Ok(store.bucket_owner(&Bucket::new(bucket.clone())?)?);
    let uid = look_up(user.clone(), read).await?;
    let name = admission.owner_names(user, uid).into_iter().next();
    Ok(Owner { id: name.clone(), display_name: name })
}

/// Converts the result of an operation to a response without additional headers.
fn plain<T>(outcome: OperationResult<T>) -> S3Result<S3Response<T>> {
    outcome.map(S3Response::new).map_err(|S3Failure(error)| error)
}

fn bucket_exists(store: &dyn Store, bucket: String) -> OperationResult<()> {
    store.head_bucket(&Bucket::new(bucket)?)?;
    Ok(())
}

fn object_exists(store: &dyn Store, bucket: &str, key: &str, version: Option<&str>) -> OperationResult<()> {
    let (bucket, key) = names(bucket, key)?;
    let options = GetOptions { version: convert::version(version)?, ..Default::default() };
    store.head(&bucket, &key, &options)?;
    Ok(())
}

#[async_trait::async_trait]
impl S3 for S3Frontend {
    async fn list_buckets(
        &self,
        request: S3Request<ListBucketsInput>,
    ) -> S3Result<S3Response<ListBucketsOutput>> {
        let user = caller(&request)?;
        let (owner, region) = (owner(&user), self.region.clone());
        plain(apart(user, move |store| buckets::list(store, &owner, region.as_deref(), request.input)).await)
    }

    async fn head_bucket(
        &self,
        request: S3Request<HeadBucketInput>,
    ) -> S3Result<S3Response<HeadBucketOutput>> {
        let user = caller(&request)?;
        let (region, bucket) = (self.region().to_owned(), request.input.bucket);
        look_up(user, move |store| buckets::head(store, &region, bucket.clone())).await
    }

    async fn delete_bucket(
        &self,
        request: S3Request<DeleteBucketInput>,
    ) -> S3Result<S3Response<DeleteBucketOutput>> {
        let user = caller(&request)?;
        plain(change_apart(user, |store| buckets::delete(store, request.input.bucket)).await)
    }

    async fn get_bucket_location(
        &self,
        request: S3Request<GetBucketLocationInput>,
    ) -> S3Result<S3Response<GetBucketLocationOutput>> {
        let user = caller(&request)?;
        let (region, bucket) = (self.region().to_owned(), request.input.bucket);
        look_up(user, move |store| buckets::location(store, &region, bucket.clone()))
            .await
            .map(S3Response::new)
    }

    async fn get_bucket_versioning(
        &self,
        request: S3Request<GetBucketVersioningInput>,
    ) -> S3Result<S3Response<GetBucketVersioningOutput>> {
        let user = caller(&request)?;
        let bucket = request.input.bucket;
        look_up(user, move |store| versions::get(store, bucket.clone())).await.map(S3Response::new)
    }

    async fn list_object_versions(
        &self,
        request: S3Request<ListObjectVersionsInput>,
    ) -> S3Result<S3Response<ListObjectVersionsOutput>> {
        let user = caller(&request)?;
        let owner = owner(&user);
        let listed = apart(user, move |store| versions::list(store, &owner, request.input)).await;
        listed.map_err(|S3Failure(error)| error)
    }

    async fn get_bucket_acl(
        &self,
        request: S3Request<GetBucketAclInput>,
    ) -> S3Result<S3Response<GetBucketAclOutput>> {
        let user = caller(&request)?;
        let owner = owner_of_bucket(&self.admission, &user, &request.input.bucket).await?;
        let (of, bucket) = (owner.clone(), request.input.bucket);
        let grants =
            look_up(user, move |store| acl::grants(store, &Bucket::new(bucket.clone())?, &of)).await?;
        plain(Ok(GetBucketAclOutput { grants: Some(grants), owner: Some(owner) }))
    }

    absent! {
        get_bucket_encryption: GetBucketEncryptionInput => GetBucketEncryptionOutput,
            "ServerSideEncryptionConfigurationNotFoundError";
        get_bucket_replication: GetBucketReplicationInput => GetBucketReplicationOutput,
            "ReplicationConfigurationNotFoundError";
        get_bucket_website: GetBucketWebsiteInput => GetBucketWebsiteOutput, "NoSuchWebsiteConfiguration";
        delete_bucket_encryption: DeleteBucketEncryptionInput => DeleteBucketEncryptionOutput;
        delete_bucket_replication: DeleteBucketReplicationInput => DeleteBucketReplicationOutput;
        delete_bucket_website: DeleteBucketWebsiteInput => DeleteBucketWebsiteOutput;
    }

    async fn get_object_acl(
        &self,
        request: S3Request<GetObjectAclInput>,
    ) -> S3Result<S3Response<GetObjectAclOutput>> {
        let user = caller(&request)?;
        let owner = owner_of_bucket(&self.admission, &user, &request.input.bucket).await?;
        let input = request.input;
        look_up(user, move |store| {
            object_exists(store, &input.bucket, &input.key, input.version_id.as_deref())
        })
        .await?;
        plain(Ok(GetObjectAclOutput {
            grants: Some(buckets::full_control(&owner)),
            owner: Some(owner),
            request_charged: None,
        }))
    }

    async fn get_object_tagging(
        &self,
        request: S3Request<GetObjectTaggingInput>,
    ) -> S3Result<S3Response<GetObjectTaggingOutput>> {
        let user = caller(&request)?;
        let input = request.input;
        look_up(user, move |store| tagging::get(store, input.clone())).await
    }

    async fn delete_object_tagging(
        &self,
        request: S3Request<DeleteObjectTaggingInput>,
    ) -> S3Result<S3Response<DeleteObjectTaggingOutput>> {
        let user = caller(&request)?;
        let input = request.input;
        plain(until_unlocked(user, move |store| tagging::delete(store, input.clone())).await)
    }

    async fn get_object_attributes(
        &self,
        request: S3Request<GetObjectAttributesInput>,
    ) -> S3Result<S3Response<GetObjectAttributesOutput>> {
        let user = caller(&request)?;
        let described = apart(user, |store| attributes::get(store, request.input)).await;
        described.map_err(|S3Failure(error)| error)
    }

    async fn list_objects(
        &self,
        request: S3Request<ListObjectsInput>,
    ) -> S3Result<S3Response<ListObjectsOutput>> {
        let user = caller(&request)?;
        let owner = owner(&user);
        apart(user, move |store| list::list_v1(store, &owner, request.input))
            .await
            .map_err(|S3Failure(error)| error)
    }

    async fn list_objects_v2(
        &self,
        request: S3Request<ListObjectsV2Input>,
    ) -> S3Result<S3Response<ListObjectsV2Output>> {
        let user = caller(&request)?;
        let owner = owner(&user);
        apart(user, move |store| list::list_v2(store, &owner, request.input))
            .await
            .map_err(|S3Failure(error)| error)
    }

    async fn delete_object(
        &self,
        request: S3Request<DeleteObjectInput>,
    ) -> S3Result<S3Response<DeleteObjectOutput>> {
        let user = caller(&request)?;
        let input = request.input;
        plain(until_unlocked(user, move |store| delete::one(store, input.clone())).await)
    }

    async fn abort_multipart_upload(
        &self,
        request: S3Request<AbortMultipartUploadInput>,
    ) -> S3Result<S3Response<AbortMultipartUploadOutput>> {
        let user = caller(&request)?;
        plain(change_apart(user, |store| multipart::abort(store, request.input)).await)
    }

    async fn list_parts(&self, request: S3Request<ListPartsInput>) -> S3Result<S3Response<ListPartsOutput>> {
        let user = caller(&request)?;
        let owner = owner(&user);
        let listed = apart(user, move |store| multipart::list_parts(store, &owner, request.input)).await;
        listed.map_err(|S3Failure(error)| error)
    }

    async fn list_multipart_uploads(
        &self,
        request: S3Request<ListMultipartUploadsInput>,
    ) -> S3Result<S3Response<ListMultipartUploadsOutput>> {
        let user = caller(&request)?;
        let owner = owner(&user);
        let listed = apart(user, move |store| multipart::list_uploads(store, &owner, request.input)).await;
        listed.map_err(|S3Failure(error)| error)
    }
}
