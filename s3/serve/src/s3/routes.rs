//! Operations that the gateway serves itself. For these operations, the S3 layer only checks signatures. In operations
//! that read or write objects, the S3 layer ignores some request headers, or refuses headers that HTTP requires servers
//! to ignore. In documents, the S3 layer ignores elements with prefixes and CDATA sections.

use std::sync::Arc;

use http::header::CONTENT_LENGTH;
use http::{Extensions, HeaderMap, Method, Uri};
use s3s::route::S3Route;
use s3s::{Body, S3Request, S3Response, S3Result};

use crate::access::{PolicyRequestContext, authorise, hide_headers};
use crate::content::BodyExtension;
use crate::domains::BucketDomains;
use crate::gate;
use crate::identity::RequestAuthenticator;
use crate::monitor::OperationCode;
use crate::s3::apart::{PublishLatency, change_apart, here_unless_remote};
use crate::s3::error::{OperationResult, S3Failure};
use crate::s3::look_up::look_up;
use crate::s3::reads::ReadRequest;
use crate::s3::{
    acl, buckets, caller, copy, delete, documents, error, lock, multipart, owner_of_bucket, rename, tagging,
    upload, versions,
};

/// The operations that this module serves, except operations on documents.
const SERVED: [&str; 20] = [
    "CompleteMultipartUpload",
    "CopyObject",
    "CreateBucket",
    "CreateMultipartUpload",
    "DeleteObjects",
    "GetObject",
    "GetObjectLegalHold",
    "GetObjectLockConfiguration",
    "GetObjectRetention",
    "HeadObject",
    "PutBucketAcl",
    "PutBucketVersioning",
    "PutObject",
    "PutObjectLegalHold",
    "PutObjectLockConfiguration",
    "PutObjectRetention",
    "PutObjectTagging",
    "RenameObject",
    "UploadPart",
    "UploadPartCopy",
];

pub(super) struct ObjectRoutes {
    pub(super) admission: RequestAuthenticator,
    pub(super) domains: BucketDomains,
    pub(super) publishing: Arc<PublishLatency>,
    /// The only region in which buckets may be created; `None` if clients may name any region.
    pub(super) region: Option<String>,
    /// The names of the webhooks to which the gateway delivers events.
    pub(super) webhooks: Arc<[String]>,
}

/// Returns the name of the operation that the gate found for a request.
fn operation(extensions: &Extensions) -> &'static str {
    extensions.get::<&'static gate::OperationRule>().map_or("", |operation| operation.name)
}

#[async_trait::async_trait]
impl S3Route for ObjectRoutes {
    fn is_match(&self, _: &Method, _: &Uri, _: &HeaderMap, extensions: &mut Extensions) -> bool {
        let found = extensions.get::<&'static gate::OperationRule>();
        let is_served = |name| {
            SERVED.contains(&name)
                || documents::of_operation(name).is_some()
                || documents::policy::SERVED.contains(&name)
        };
        found.is_some_and(|operation| !operation.is_offered || is_served(operation.name))
    }

    async fn check_access(&self, request: &mut S3Request<Body>) -> S3Result<()> {
        let user = self.admission.admit_request(request)?;
        let name = operation(&request.extensions);
        let names = self.domains.names(&request.headers, &request.uri);
        let code = OperationCode::named(name);
        RequestAuthenticator::take_note(&mut request.extensions, &user, code, || Some(names.clone()))?;
        let user = user.at(&names.0).map_err(|error| S3Failure::from(error).0)?;
        let facts =
            PolicyRequestContext::new(&request.headers, &request.uri, request.extensions.get().copied());
        let permitted = authorise(&user, name, (&names.0, &names.1), &facts).await;
        permitted.map_err(|S3Failure(error)| error)?;
        self.admission.check_owners(&user, &names.0, &request.headers).await?;
        request.extensions.insert(user);
        Ok(())
    }

    async fn call(&self, request: S3Request<Body>) -> S3Result<S3Response<Body>> {
        self.serve(request).await.map_err(|S3Failure(error)| error)
    }
}

impl ObjectRoutes {
    async fn serve(&self, request: S3Request<Body>) -> OperationResult<S3Response<Body>> {
        let user = caller(&request)?;
        let operation = operation(&request.extensions);
        let names = self.domains.names(&request.headers, &request.uri);
        if let Some((service, action)) = documents::of_operation(operation) {
            return service.serve(action, (user, names.0), self.webhooks.clone(), request).await;
        }
        if documents::policy::SERVED.contains(&operation) {
            let users = self.admission.users();
            return documents::policy::serve(operation, (user, names.0), users, request).await;
        }
        let S3Request { headers, uri, .. } = &request;
        if request.extensions.get::<&'static gate::OperationRule>().is_some_and(|known| !known.is_offered) {
            let has_document = headers.get(CONTENT_LENGTH).is_some_and(|length| length != "0");
            return look_up(user, move |store| Err(error::refusal(store, &names, operation, has_document)))
                .await
                .map_err(S3Failure);
        }
        match operation {
            "GetObject" | "HeadObject" => {
                let is_head = operation == "HeadObject";
                let facts = PolicyRequestContext::new(headers, uri, request.extensions.get().copied());
                let wanted = Arc::new(ReadRequest::read(&names, headers, uri, is_head)?);
                let read = look_up(user.clone(), move |store| match is_head {
                    true => wanted.head(store),
                    false => wanted.get(store),
                });
                let mut response = read.await?;
                hide_headers(&user, (&names.0, &names.1), &facts, &mut response.headers).await?;
                if let (Some(server), Some(body)) = (&user.server, response.extensions.get::<BodyExtension>())
                {
                    body.read_by(server);
                }
                Ok(response)
            }
            "GetObjectLockConfiguration" => lock::get_configuration(user, names.0).await,
            "PutObjectLockConfiguration" => lock::put_configuration(user, names.0, request).await,
            "GetObjectRetention" | "GetObjectLegalHold" => {
                lock::get(user, names, &request.uri, operation == "GetObjectRetention").await
            }
            "PutObjectRetention" => lock::put_retention(user, names, request).await,
            "PutObjectLegalHold" => lock::put_legal_hold(user, names, request).await,
            "DeleteObjects" => delete::serve(user, names.0, request).await,
            "PutBucketVersioning" => versions::put(user, names.0, request).await,
            "PutObjectTagging" => tagging::put(user, names, request).await,
            "RenameObject" => {
                let rename =
                    move |store: &dyn fordway_store::Store| rename::rename(store, &names, &request.headers);
                change_apart(user, rename).await
            }
            "PutBucketAcl" => {
                let owner = owner_of_bucket(&self.admission, &user, &names.0).await.map_err(S3Failure)?;
                acl::put(user, owner, names.0, request).await
            }
            "PutObject" => upload::put(&user, &names, request, &self.publishing).await,
            "UploadPart" => upload::put_part(&user, &names, request, &self.publishing).await,
            "CreateBucket" => buckets::create(&user, self.region.as_deref(), names.0, request).await,
            "CreateMultipartUpload" => {
                let headers = headers.clone();
                here_unless_remote(&user, move |store| multipart::create(store, &names, &headers)).await
            }
            "CopyObject" => {
                change_apart(user, move |store| copy::copy(store, &names, &request.headers)).await
            }
            "UploadPartCopy" => {
                let copy = move |store: &dyn fordway_store::Store| {
                    multipart::copy_part(store, &names, &request.headers, &request.uri)
                };
                change_apart(user, copy).await
            }
            _ => multipart::complete(user, names, request).await,
        }
    }
}
