//! The notification configuration of a bucket: which changes are reported to which webhook. The store records the
//! changes, and a program with webhooks delivers them.

use std::sync::Arc;

use fordway_store::{Bucket, BucketDocumentKind, Error, ErrorKind, Store};
use fordway_wire::notification::{NotificationError, NotificationRule, read, write};
use http::StatusCode;
use s3s::{Body, S3Request, S3Response};

use crate::s3::apart::change_apart;
use crate::s3::documents::{answer, sound_document};
use crate::s3::error::{OperationResult, S3Failure, unreadable_body};
use crate::s3::look_up::look_up;
use crate::users::User;

pub(super) const KIND: BucketDocumentKind = BucketDocumentKind::known("notification");

/// The operations that this module serves.
pub(in crate::s3) const SERVED: [&str; 2] =
    ["GetBucketNotificationConfiguration", "PutBucketNotificationConfiguration"];

/// The header with which a client may name webhooks that this gateway does not have.
const SKIP_VALIDATION: &str = "x-amz-skip-destination-validation";

/// Serves one of [`SERVED`]. `webhooks` are the names of the gateway's webhooks.
pub(in crate::s3) async fn serve(
    operation: &str,
    (user, bucket): (Arc<User>, String),
    webhooks: Arc<[String]>,
    request: S3Request<Body>,
) -> OperationResult<S3Response<Body>> {
    let bucket = Bucket::new(bucket)?;
    match operation {
        "GetBucketNotificationConfiguration" => Ok(look_up(user, move |store| get(store, &bucket)).await?),
        _ => put((user, bucket), &webhooks, request).await,
    }
}

/// Returns the document. As on AWS, the document of a bucket without a configuration is empty.
fn get(store: &dyn Store, bucket: &Bucket) -> OperationResult<S3Response<Body>> {
    let found = sound_document(store, bucket, &KIND)?;
    Ok(answer(found.unwrap_or_else(|| write(&[]).into_bytes())))
}

async fn put(
    (user, bucket): (Arc<User>, Bucket),
    webhooks: &[String],
    mut request: S3Request<Body>,
) -> OperationResult<S3Response<Body>> {
    let skips = request.headers.get(SKIP_VALIDATION);
    let skips = skips.is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"true"));
    // `crate::gate` has already limited the size of the body.
    let sent = request.input.store_all_limited(usize::MAX).await;
    let sent = sent.map_err(|error| unreadable_body(&*error))?;
    let checked = rules(&sent).and_then(|rules| match skips {
        true => Ok(rules),
        false => check_webhooks(&rules, webhooks).map(|()| rules),
    });
    if checked.is_err() {
        // AWS reports a missing bucket rather than an invalid document.
        let bucket = bucket.clone();
        look_up(user.clone(), move |store| Ok(store.head_bucket(&bucket)?)).await?;
    }
    let rules = checked?;
    let change = move |store: &dyn Store| match rules.is_empty() {
        true => Ok(store.delete_document(&bucket, &KIND)?),
        false => Ok(store.set_document(&bucket, &KIND, write(&rules).as_bytes())?),
    };
    change_apart(user, change).await?;
    Ok(S3Response::with_status(Body::empty(), StatusCode::OK))
}

/// Checks a document, except for the names of webhooks. Errors: `MalformedXML`, `InvalidArgument`, and
/// `NotImplemented` for other destinations and for events that never occur.
pub(super) fn check(document: &[u8]) -> OperationResult<Vec<u8>> {
    rules(document).map(|rules| write(&rules).into_bytes())
}

fn rules(document: &[u8]) -> OperationResult<Vec<NotificationRule>> {
    read(document).map_err(|NotificationError { code, message }| match code {
        "NotImplemented" => Error::new(ErrorKind::NotImplemented, message).into(),
        code => S3Failure::aws(code, StatusCode::BAD_REQUEST, &message, ""),
    })
}

/// Checks that the gateway has the webhooks. Errors: `InvalidArgument`.
fn check_webhooks(rules: &[NotificationRule], webhooks: &[String]) -> OperationResult<()> {
    match rules.iter().find(|rule| !webhooks.contains(&rule.webhook)) {
        None => Ok(()),
        Some(rule) => {
            let detail = format!(
                "{} names no webhook of this gateway; the option --webhook of `fordway serve` defines webhooks, and \
                 the header {SKIP_VALIDATION}: true accepts any name",
                rule.arn()
            );
            let words = "Unable to validate the following destination configurations";
            Err(S3Failure::aws("InvalidArgument", StatusCode::BAD_REQUEST, words, &detail))
        }
    }
}
