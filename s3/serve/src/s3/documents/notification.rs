//! The notification configuration of a bucket: which changes are reported to which webhook. The store records the
//! changes, and a program with webhooks delivers them.

use fordway_store::{BucketDocumentKind, Error, ErrorKind};
use fordway_wire::notification::{NotificationError, NotificationRule, read, write};
use http::StatusCode;

use crate::s3::documents::{AbsentSetting, DocumentKindHandler, SettingChange};
use crate::s3::error::{OperationResult, S3Failure};

const KIND: BucketDocumentKind = BucketDocumentKind::known("notification");

/// The header with which a client may name webhooks that this gateway does not have.
const SKIP_VALIDATION: &str = "x-amz-skip-destination-validation";

pub(super) const SERVICE: DocumentKindHandler = DocumentKindHandler {
    kind: KIND,
    get: "GetBucketNotificationConfiguration",
    put: "PutBucketNotificationConfiguration",
    delete: None,
    absent: AbsentSetting::EmptyDocument("NotificationConfiguration"),
    put_status: StatusCode::OK,
    check,
    permits,
};

/// Checks a document, except for the names of webhooks. Errors: `MalformedXML`, `InvalidArgument`, and
/// `NotImplemented` for other destinations and for events that never occur.
fn check(document: &[u8]) -> OperationResult<Vec<u8>> {
    rules(document).map(|rules| write(&rules).into_bytes())
}

fn rules(document: &[u8]) -> OperationResult<Vec<NotificationRule>> {
    read(document).map_err(|NotificationError { code, message }| match code {
        "NotImplemented" => Error::new(ErrorKind::NotImplemented, message).into(),
        code => S3Failure::aws(code, StatusCode::BAD_REQUEST, &message, ""),
    })
}

/// Checks that the gateway has the webhooks, unless the client skips this check. Errors: `NoSuchBucket`,
/// `InvalidArgument`.
fn permits(change: &SettingChange) -> OperationResult<()> {
    let skips = change.headers.get(SKIP_VALIDATION);
    let skips = skips.is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"true"));
    let Some(document) = change.document.filter(|_| !skips) else { return Ok(()) };
    check_webhooks(&rules(document)?, change.webhooks).or_else(|failure| {
        // AWS reports a missing bucket rather than an invalid document.
        change.store.head_bucket(change.bucket)?;
        Err(failure)
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
