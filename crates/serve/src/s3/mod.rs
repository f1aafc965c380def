//! Each S3 operation in terms of the store. The S3 layer (crate `s3s`) parses requests, checks
//! signatures and writes answers; what it has no method for here it answers with NotImplemented.

mod attributes;
mod buckets;
mod convert;
mod copy;
mod delete;
mod error;
mod list;
mod multipart;
mod objects;
mod tagging;
mod upload;
mod uploads;
mod versions;

use std::sync::Arc;

use fordway_store::{Bucket, GetOptions, Store};
use s3s::config::{S3Config, StaticConfigProvider};
use s3s::dto::*;
use s3s::service::{S3Service, S3ServiceBuilder};
use s3s::validation::NameValidation;
use s3s::{S3, S3Request, S3Response, S3Result};

use crate::GatewayConfig;
use crate::domains::Domains;
use crate::identity::{SignedOnly, SingleKey};
pub(crate) use objects::DEFAULT_TYPE;

use convert::names;
use error::{Failure, Outcome};

/// The most bytes of an XML document: 10,000 parts with a checksum each take about 2 MiB.
const DOCUMENT_BYTES_MAX: usize = 4 * 1024 * 1024;
/// The most bytes of an HTML form upload, which is read before it is refused.
const FORM_BYTES_MAX: usize = 64 * 1024;

/// The service that answers requests for `store`, signed with `identity`.
pub(crate) fn service(store: Arc<dyn Store>, config: &GatewayConfig, domains: Domains) -> S3Service {
    let identity = &config.identity;
    let owner =
        Owner { id: Some(identity.access_key.clone()), display_name: Some(identity.access_key.clone()) };
    let mut limits = S3Config::default();
    limits.xml_max_body_size = DOCUMENT_BYTES_MAX;
    limits.form_max_field_size = FORM_BYTES_MAX;
    limits.form_max_fields_size = FORM_BYTES_MAX;
    limits.post_object_max_file_size = FORM_BYTES_MAX as u64;
    let mut builder = S3ServiceBuilder::new(Frontend { store, owner, region: config.region.clone() });
    builder.set_config(Arc::new(StaticConfigProvider::new(Arc::new(limits))));
    builder.set_auth(SingleKey::new(identity));
    builder.set_access(SignedOnly { allow_version_2: config.signature_v2 });
    builder.set_validation(StoreNames);
    builder.set_host(domains);
    builder.build()
}

/// The answer to a read that failed outside of the S3 layer, as that would have written it.
/// `size_bytes` is that of the object, where it is known.
pub(crate) fn failed_read(error: fordway_store::Error, size_bytes: Option<u64>) -> http::Response<s3s::Body> {
    let mut failure = Failure::from(error);
    if let Some(size_bytes) = size_bytes {
        let value = format!("bytes */{size_bytes}");
        failure.add_header(
            http::header::CONTENT_RANGE,
            http::HeaderValue::try_from(value).expect("it is ASCII"),
        );
    }
    failure.0.to_http_response().unwrap_or_else(|error| {
        tracing::error!(?error, "an error could not be written as S3 has it");
        let mut response = http::Response::new(s3s::Body::empty());
        *response.status_mut() = http::StatusCode::INTERNAL_SERVER_ERROR;
        response
    })
}

/// Accepts the bucket names that the store does.
struct StoreNames;

impl NameValidation for StoreNames {
    fn validate_bucket_name(&self, name: &str) -> bool {
        Bucket::new(name).is_ok()
    }
}

/// S3 in front of a store. Calls block the thread they come in on: see the crate's own words on why.
struct Frontend {
    store: Arc<dyn Store>,
    owner: Owner,
    region: String,
}

/// An answer with no headers but those of its output.
fn plain<T>(outcome: Outcome<T>) -> S3Result<S3Response<T>> {
    outcome.map(S3Response::new).map_err(|Failure(error)| error)
}

impl Frontend {
    fn without<T>(&self, bucket: String, code: &str) -> S3Result<T> {
        Err(buckets::without(&*self.store, bucket, code).0)
    }

    fn bucket_exists(&self, bucket: String) -> Outcome<()> {
        self.store.head_bucket(&Bucket::new(bucket)?)?;
        Ok(())
    }

    fn object_exists(&self, bucket: &str, key: &str, version: Option<&str>) -> Outcome<()> {
        let (bucket, key) = names(bucket, key)?;
        let options = GetOptions { version: convert::version(version)?, ..Default::default() };
        self.store.head(&bucket, &key, &options)?;
        Ok(())
    }
}

#[async_trait::async_trait]
impl S3 for Frontend {
    async fn list_buckets(
        &self,
        request: S3Request<ListBucketsInput>,
    ) -> S3Result<S3Response<ListBucketsOutput>> {
        plain(buckets::list(&*self.store, &self.owner, request.input))
    }

    async fn create_bucket(
        &self,
        request: S3Request<CreateBucketInput>,
    ) -> S3Result<S3Response<CreateBucketOutput>> {
        plain(buckets::create(&*self.store, request.input))
    }

    async fn head_bucket(
        &self,
        request: S3Request<HeadBucketInput>,
    ) -> S3Result<S3Response<HeadBucketOutput>> {
        plain(buckets::head(&*self.store, &self.region, request.input.bucket))
    }

    async fn delete_bucket(
        &self,
        request: S3Request<DeleteBucketInput>,
    ) -> S3Result<S3Response<DeleteBucketOutput>> {
        plain(buckets::delete(&*self.store, request.input.bucket))
    }

    async fn get_bucket_location(
        &self,
        request: S3Request<GetBucketLocationInput>,
    ) -> S3Result<S3Response<GetBucketLocationOutput>> {
        plain(buckets::location(&*self.store, &self.region, request.input.bucket))
    }

    async fn get_bucket_versioning(
        &self,
        request: S3Request<GetBucketVersioningInput>,
    ) -> S3Result<S3Response<GetBucketVersioningOutput>> {
        plain(versions::get(&*self.store, request.input.bucket))
    }

    async fn put_bucket_versioning(
        &self,
        request: S3Request<PutBucketVersioningInput>,
    ) -> S3Result<S3Response<PutBucketVersioningOutput>> {
        plain(versions::put(&*self.store, request.input))
    }

    async fn list_object_versions(
        &self,
        request: S3Request<ListObjectVersionsInput>,
    ) -> S3Result<S3Response<ListObjectVersionsOutput>> {
        versions::list(&*self.store, &self.owner, request.input).map_err(|Failure(error)| error)
    }

    async fn get_bucket_acl(
        &self,
        request: S3Request<GetBucketAclInput>,
    ) -> S3Result<S3Response<GetBucketAclOutput>> {
        let owner = self.owner.clone();
        plain(
            self.bucket_exists(request.input.bucket).map(|()| GetBucketAclOutput {
                grants: Some(buckets::full_control(&owner)),
                owner: Some(owner),
            }),
        )
    }

    async fn get_bucket_policy(
        &self,
        request: S3Request<GetBucketPolicyInput>,
    ) -> S3Result<S3Response<GetBucketPolicyOutput>> {
        self.without(request.input.bucket, "NoSuchBucketPolicy")
    }

    async fn get_bucket_cors(
        &self,
        request: S3Request<GetBucketCorsInput>,
    ) -> S3Result<S3Response<GetBucketCorsOutput>> {
        self.without(request.input.bucket, "NoSuchCORSConfiguration")
    }

    async fn get_bucket_lifecycle_configuration(
        &self,
        request: S3Request<GetBucketLifecycleConfigurationInput>,
    ) -> S3Result<S3Response<GetBucketLifecycleConfigurationOutput>> {
        self.without(request.input.bucket, "NoSuchLifecycleConfiguration")
    }

    async fn get_bucket_tagging(
        &self,
        request: S3Request<GetBucketTaggingInput>,
    ) -> S3Result<S3Response<GetBucketTaggingOutput>> {
        self.without(request.input.bucket, "NoSuchTagSet")
    }

    async fn get_object_acl(
        &self,
        request: S3Request<GetObjectAclInput>,
    ) -> S3Result<S3Response<GetObjectAclOutput>> {
        let (owner, input) = (self.owner.clone(), request.input);
        let exists = self.object_exists(&input.bucket, &input.key, input.version_id.as_deref());
        plain(exists.map(|()| GetObjectAclOutput {
            grants: Some(buckets::full_control(&owner)),
            owner: Some(owner),
            request_charged: None,
        }))
    }

    async fn get_object_tagging(
        &self,
        request: S3Request<GetObjectTaggingInput>,
    ) -> S3Result<S3Response<GetObjectTaggingOutput>> {
        plain(tagging::get(&*self.store, request.input))
    }

    async fn put_object_tagging(
        &self,
        request: S3Request<PutObjectTaggingInput>,
    ) -> S3Result<S3Response<PutObjectTaggingOutput>> {
        plain(tagging::put(&*self.store, request.input))
    }

    async fn delete_object_tagging(
        &self,
        request: S3Request<DeleteObjectTaggingInput>,
    ) -> S3Result<S3Response<DeleteObjectTaggingOutput>> {
        plain(tagging::delete(&*self.store, request.input))
    }

    async fn get_object_attributes(
        &self,
        request: S3Request<GetObjectAttributesInput>,
    ) -> S3Result<S3Response<GetObjectAttributesOutput>> {
        plain(attributes::get(&*self.store, request.input))
    }

    async fn list_objects(
        &self,
        request: S3Request<ListObjectsInput>,
    ) -> S3Result<S3Response<ListObjectsOutput>> {
        plain(list::list_v1(&*self.store, &self.owner, request.input))
    }

    async fn list_objects_v2(
        &self,
        request: S3Request<ListObjectsV2Input>,
    ) -> S3Result<S3Response<ListObjectsV2Output>> {
        plain(list::list_v2(&*self.store, &self.owner, request.input))
    }

    async fn get_object(&self, request: S3Request<GetObjectInput>) -> S3Result<S3Response<GetObjectOutput>> {
        objects::get(&*self.store, request).map_err(|Failure(error)| error)
    }

    async fn head_object(
        &self,
        request: S3Request<HeadObjectInput>,
    ) -> S3Result<S3Response<HeadObjectOutput>> {
        objects::head(&*self.store, request).map_err(|Failure(error)| error)
    }

    async fn put_object(&self, request: S3Request<PutObjectInput>) -> S3Result<S3Response<PutObjectOutput>> {
        plain(upload::put(&*self.store, request).await)
    }

    /// Forms sent by browsers are not offered.
    async fn post_object(
        &self,
        _request: S3Request<PostObjectInput>,
    ) -> S3Result<S3Response<PostObjectOutput>> {
        Err(s3s::s3_error!(NotImplemented, "form uploads are not offered here; use PUT"))
    }

    async fn delete_object(
        &self,
        request: S3Request<DeleteObjectInput>,
    ) -> S3Result<S3Response<DeleteObjectOutput>> {
        plain(delete::one(&*self.store, request.input))
    }

    async fn delete_objects(
        &self,
        request: S3Request<DeleteObjectsInput>,
    ) -> S3Result<S3Response<DeleteObjectsOutput>> {
        plain(delete::many(&*self.store, request.input))
    }

    async fn copy_object(
        &self,
        request: S3Request<CopyObjectInput>,
    ) -> S3Result<S3Response<CopyObjectOutput>> {
        plain(copy::copy(&*self.store, request))
    }

    async fn create_multipart_upload(
        &self,
        request: S3Request<CreateMultipartUploadInput>,
    ) -> S3Result<S3Response<CreateMultipartUploadOutput>> {
        plain(multipart::create(&*self.store, request))
    }

    async fn upload_part(
        &self,
        request: S3Request<UploadPartInput>,
    ) -> S3Result<S3Response<UploadPartOutput>> {
        plain(upload::put_part(&*self.store, request).await)
    }

    async fn upload_part_copy(
        &self,
        request: S3Request<UploadPartCopyInput>,
    ) -> S3Result<S3Response<UploadPartCopyOutput>> {
        plain(multipart::copy_part(&*self.store, request.input))
    }

    async fn complete_multipart_upload(
        &self,
        request: S3Request<CompleteMultipartUploadInput>,
    ) -> S3Result<S3Response<CompleteMultipartUploadOutput>> {
        plain(multipart::complete(&*self.store, request.input))
    }

    async fn abort_multipart_upload(
        &self,
        request: S3Request<AbortMultipartUploadInput>,
    ) -> S3Result<S3Response<AbortMultipartUploadOutput>> {
        plain(multipart::abort(&*self.store, request.input))
    }

    async fn list_parts(&self, request: S3Request<ListPartsInput>) -> S3Result<S3Response<ListPartsOutput>> {
        plain(multipart::list_parts(&*self.store, request.input))
    }

    async fn list_multipart_uploads(
        &self,
        request: S3Request<ListMultipartUploadsInput>,
    ) -> S3Result<S3Response<ListMultipartUploadsOutput>> {
        plain(uploads::list(&*self.store, request.input))
    }
}
