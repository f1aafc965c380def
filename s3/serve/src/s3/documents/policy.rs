//! The policy of a bucket: a JSON document that is stored as it was sent.

use std::sync::Arc;

use fordway_policy::{
    AccessRequest, Action, BucketAccessDecision, CallerRole, MAX_POLICY_BYTES, Policy, PolicyError,
    PublicAccessBlock,
};
use fordway_store::{Bucket, Checksum, ChecksumAlgorithm, Store};
use fordway_wire::s3_xml::ResponseDocumentBuilder;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use s3s::{Body, S3Request, S3Response};

use crate::access::{
    BucketOwnerAndRules, POLICY, PolicyRequestContext, denied, forget_rules, read_block, read_rules,
};
use crate::gate::decoded_md5;
use crate::s3::apart::change_apart;
use crate::s3::convert::{document, invalid_request, stated_checksum};
use crate::s3::documents::sound_document;
use crate::s3::error::{OperationResult, S3Failure, unreadable_body};
use crate::s3::look_up::look_up;
use crate::users::{User, Users};

/// The operations that this module serves.
pub(in crate::s3) const SERVED: [&str; 4] =
    ["GetBucketPolicy", "PutBucketPolicy", "DeleteBucketPolicy", "GetBucketPolicyStatus"];

/// The header with which a client may store a policy that prevents the bucket's owner from changing the policy later.
const CONFIRM: &str = "x-amz-confirm-remove-self-bucket-access";

/// Serves one of [`SERVED`]. `users` are the users that a policy may name; `None` if the users are unknown.
pub(in crate::s3) async fn serve(
    operation: &str,
    (user, bucket): (Arc<User>, String),
    users: Option<&Users>,
    request: S3Request<Body>,
) -> OperationResult<S3Response<Body>> {
    let bucket = Bucket::new(bucket)?;
    match operation {
        "GetBucketPolicy" => Ok(look_up(user, move |store| get(store, &bucket)).await?),
        "GetBucketPolicyStatus" => Ok(look_up(user, move |store| status(store, &bucket)).await?),
        "PutBucketPolicy" => put((user, bucket), users, request).await,
        _ => {
            change_apart(user, move |store| Ok(store.delete_document(&bucket, &POLICY)?)).await?;
            forget_rules();
            Ok(S3Response::with_status(Body::empty(), StatusCode::NO_CONTENT))
        }
    }
}

fn get(store: &dyn Store, bucket: &Bucket) -> OperationResult<S3Response<Body>> {
    let mut response = S3Response::new(Body::from(stored(store, bucket)?));
    response.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}

/// Returns a document whose element `IsPublic` is true if the policy is public.
fn status(store: &dyn Store, bucket: &Bucket) -> OperationResult<S3Response<Body>> {
    let policy = Policy::parse(&stored(store, bucket)?, bucket.as_str()).map_err(malformed)?;
    let mut answer = ResponseDocumentBuilder::new("PolicyStatus");
    answer.element("IsPublic", if policy.is_public() { "true" } else { "false" });
    Ok(document(answer))
}

fn stored(store: &dyn Store, bucket: &Bucket) -> OperationResult<Vec<u8>> {
    let missing = || S3Failure::new("NoSuchBucketPolicy", StatusCode::NOT_FOUND, "the bucket has no policy");
    sound_document(store, bucket, &POLICY)?.ok_or_else(missing)
}

async fn put(
    (user, bucket): (Arc<User>, Bucket),
    users: Option<&Users>,
    mut request: S3Request<Body>,
) -> OperationResult<S3Response<Body>> {
    let sent = request.input.store_all_limited(2 * MAX_POLICY_BYTES).await;
    let sent = sent.map_err(|error| match error.to_string().contains("limit") {
        true => malformed(PolicyError {
            words: "Policy exceeds the maximum allowed document size.".to_owned(),
            detail: format!("the limit is {MAX_POLICY_BYTES} bytes"),
        }),
        false => unreadable_body(&*error),
    })?;
    check_digests(&request.headers, &sent)?;
    let wanted = bucket.clone();
    let read = move |store: &dyn Store| Ok((read_rules(store, &wanted)?, read_block(store, &wanted)));
    let (access, block) = look_up(user.clone(), read).await?;
    let policy = Policy::parse(&sent, bucket.as_str()).map_err(malformed)?;
    check_users(&policy, users)?;
    check_public(&policy, block)?;
    let facts = PolicyRequestContext::new(&request.headers, &request.uri, request.extensions.get().copied());
    if request.headers.get(CONFIRM).is_none_or(|value| !value.as_bytes().eq_ignore_ascii_case(b"true")) {
        check_keeps_owner(&policy, &access, (&user, &bucket), &facts)?;
    }
    change_apart(user, move |store| Ok(store.set_document(&bucket, &POLICY, &sent)?)).await?;
    forget_rules();
    Ok(S3Response::with_status(Body::empty(), StatusCode::NO_CONTENT))
}

/// Checks the body of a request against the MD5 and the checksum in its head, because the gate checks digests only for
/// XML documents. Errors: `InvalidDigest`, `InvalidRequest`, `BadDigest`.
fn check_digests(headers: &HeaderMap, sent: &[u8]) -> OperationResult<()> {
    let refused = |code, why: &str| Err(S3Failure::new(code, StatusCode::BAD_REQUEST, why));
    if let Some(stated) = headers.get("content-md5") {
        let Some(stated) = stated.to_str().ok().and_then(decoded_md5) else {
            return refused("InvalidDigest", "Content-MD5 is not the base64 of an MD5; compute it again");
        };
        if Checksum::of(ChecksumAlgorithm::Md5, sent).value != stated {
            return refused("BadDigest", "the body does not match its Content-MD5; send it again");
        }
    }
    match stated_checksum(headers).map_err(invalid_request)? {
        Some(stated) if Checksum::of(stated.algorithm, sent).value != stated.value => {
            let why = format!("the body does not match its {}; send it again", stated.algorithm.name());
            refused("BadDigest", &why)
        }
        _ => Ok(()),
    }
}

/// Checks that users named without an ARN exist, because such a name may be misspelt.
fn check_users(policy: &Policy, users: Option<&Users>) -> OperationResult<()> {
    let Some(users) = users else { return Ok(()) };
    match policy.bare_users().find(|name| !users.has_name(name)) {
        None => Ok(()),
        Some(name) => Err(malformed(PolicyError {
            words: "Invalid principal in policy".to_owned(),
            detail: format!("{name:?} is not a user of this gateway; look up the names in the users file"),
        })),
    }
}

/// Checks that the bucket's public access block permits the policy. Errors: `AccessDenied`.
fn check_public(policy: &Policy, block: fordway_store::Result<PublicAccessBlock>) -> OperationResult<()> {
    // A block that cannot be read must not prevent the owner from replacing the policy.
    let is_blocked = block.is_ok_and(|block| block.block_public_policy);
    match is_blocked && policy.is_public() {
        true => Err(denied("the bucket's public access block refuses public policies; change that first")),
        false => Ok(()),
    }
}

/// Checks that the policy permits the owner to read, change and delete the policy. Errors: `MalformedPolicy`.
fn check_keeps_owner(
    policy: &Policy,
    access: &BucketOwnerAndRules,
    (user, bucket): (&User, &Bucket),
    facts: &PolicyRequestContext<'_>,
) -> OperationResult<()> {
    if access.role_of(user) != CallerRole::Owner {
        return Ok(());
    }
    for name in ["GetBucketPolicy", "PutBucketPolicy", "DeleteBucketPolicy"] {
        let Some(action) = Action::new(name) else { continue };
        let keys = facts.keys_on_bucket(user, action, bucket.as_str());
        let request =
            AccessRequest { principal: user.principal(), action, bucket: bucket.as_str(), key: None, keys };
        let rules = fordway_policy::BucketAccessRules { policy: Some(policy.clone()), ..Default::default() };
        if let BucketAccessDecision::Denied(at) = rules.rule(CallerRole::Owner, &request) {
            return Err(malformed(PolicyError {
                words: "The new bucket policy will not allow the caller to change it.".to_owned(),
                detail: format!(
                    "statement {} denies the bucket's owner {action}; exclude the owner, or send {CONFIRM}: true",
                    at + 1
                ),
            }));
        }
    }
    Ok(())
}

fn malformed(error: PolicyError) -> S3Failure {
    S3Failure::aws("MalformedPolicy", StatusCode::BAD_REQUEST, &error.words, &error.detail)
}
