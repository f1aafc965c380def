//! Object lock: the configuration of buckets, and the retention and legal hold of versions.

use std::sync::Arc;
use std::time::SystemTime;

use fordway_store::{
    Bucket, ErrorKind, GetOptions, LockConfiguration, ObjectLock, Retention, RetentionMode, Store, VersionId,
    VersioningState,
};
use fordway_wire::date::format_iso8601;
use fordway_wire::s3_xml::{
    ObjectLockDocument, legal_hold, legal_hold_document, legal_hold_status, lock_configuration, retention,
    retention_document, stated_retention,
};
use http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use s3s::{Body, S3Request, S3Response};

use crate::access::{PolicyRequestContext, RETAIN_UNTIL, authorise};
use crate::s3::apart::{change_apart, until_unlocked};
use crate::s3::buckets::is_true;
use crate::s3::convert::{names, parameter, version};
use crate::s3::documents::malformed;
use crate::s3::error::{OperationResult, S3Failure, unreadable_body};
use crate::s3::look_up::look_up;
use crate::users::User;

const MODE: &str = "x-amz-object-lock-mode";
const UNTIL: &str = "x-amz-object-lock-retain-until-date";
const LEGAL_HOLD: &str = "x-amz-object-lock-legal-hold";
pub(super) const BYPASS: &str = "x-amz-bypass-governance-retention";

/// Returns the lock for a new version, from the head of a request. Errors: `InvalidArgument`; `InvalidRequest` in a
/// bucket without object lock. Cost: nothing for a request without object lock headers.
pub(super) fn stated(store: &dyn Store, bucket: &Bucket, headers: &HeaderMap) -> OperationResult<ObjectLock> {
    let text = |name| headers.get(name).map(|value: &HeaderValue| value.to_str().unwrap_or_default());
    let (mode, until, hold) = (text(MODE), text(UNTIL), text(LEGAL_HOLD));
    if (mode, until, hold) == (None, None, None) {
        return Ok(ObjectLock::NONE);
    }
    let retention = match (mode, until) {
        (None, None) => None,
        (Some(mode), Some(_)) if RetentionMode::from_name(mode).is_none() => {
            return Err(S3Failure::argument("Unknown wormMode directive.", MODE, mode));
        }
        (Some(mode), Some(until)) => {
            let words = "The retain until date must be provided in ISO 8601 format";
            Some(stated_retention(mode, until).map_err(|_| S3Failure::argument(words, UNTIL, until))?)
        }
        _ => {
            let words = format!("{UNTIL} and {MODE} must both be supplied.");
            let missing = if mode.is_none() { MODE } else { UNTIL };
            return Err(S3Failure::argument(&words, missing, ""));
        }
    };
    let wrong = |hold| S3Failure::argument("Legal Hold must be either of 'ON' or 'OFF'", LEGAL_HOLD, hold);
    let legal_hold = hold.map(|hold| legal_hold_status(hold).ok_or_else(|| wrong(hold))).transpose()?;
    check_future(retention)?;
    require(store, bucket, "Bucket is missing ObjectLockConfiguration")?;
    Ok(ObjectLock { retention, legal_hold })
}

/// Checks that the date of a retention is in the future. `None` is accepted, because a version without a retention has
/// no date. Errors: `InvalidArgument` for a date in the past.
fn check_future(retention: Option<Retention>) -> OperationResult<()> {
    let kept = ObjectLock::NONE.with_retention(retention, SystemTime::now(), false);
    kept.map(|_| ()).map_err(in_the_past)
}

fn in_the_past(error: fordway_store::Error) -> S3Failure {
    match error.kind() {
        ErrorKind::InvalidArgument => {
            S3Failure::argument("The retain until date must be in the future!", UNTIL, "")
        }
        _ => error.into(),
    }
}

/// AWS's message for an operation on locks in a bucket without object lock.
const NO_LOCK: &str = "Bucket is missing Object Lock Configuration";

/// Checks that the bucket has object lock. Errors: `InvalidRequest`, with AWS's message.
fn require(store: &dyn Store, bucket: &Bucket, words: &str) -> OperationResult<()> {
    match store.lock_configuration(bucket)? {
        Some(_) => Ok(()),
        None => {
            let detail = "put an object lock configuration first";
            Err(S3Failure::aws("InvalidRequest", StatusCode::BAD_REQUEST, words, detail))
        }
    }
}

fn document(text: String) -> S3Response<Body> {
    let mut response = S3Response::new(Body::from(text));
    response.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/xml"));
    response
}

/// Reads the body of a request. `crate::gate` has already limited the size of the body.
async fn body(request: &mut S3Request<Body>) -> OperationResult<Vec<u8>> {
    let sent = request.input.store_all_limited(usize::MAX).await;
    Ok(sent.map_err(|error| unreadable_body(&*error))?.to_vec())
}

pub(super) async fn get_configuration(user: Arc<User>, bucket: String) -> OperationResult<S3Response<Body>> {
    let bucket = Bucket::new(bucket)?;
    let found = look_up(user, move |store| Ok(store.lock_configuration(&bucket)?)).await?;
    let missing = || {
        let words = "Object Lock configuration does not exist for this bucket.";
        S3Failure::aws("ObjectLockConfigurationNotFoundError", StatusCode::NOT_FOUND, words, "")
    };
    Ok(document(lock_configuration(&found.ok_or_else(missing)?)))
}

pub(super) async fn put_configuration(
    user: Arc<User>,
    bucket: String,
    mut request: S3Request<Body>,
) -> OperationResult<S3Response<Body>> {
    let document = body(&mut request).await?;
    if document.is_empty() {
        let words = "Request Body is empty";
        return Err(S3Failure::aws("MissingRequestBodyError", StatusCode::BAD_REQUEST, words, ""));
    }
    change_apart(user, move |store| {
        let bucket = Bucket::new(bucket)?;
        let state = store.versioning(&bucket)?;
        let configuration = configuration(&document)?;
        if state != VersioningState::Enabled {
            let words = "Versioning must be 'Enabled' on the bucket to apply a Object Lock configuration";
            return Err(S3Failure::aws(
                "InvalidBucketState",
                StatusCode::CONFLICT,
                words,
                "enable versioning",
            ));
        }
        store.set_lock_configuration(&bucket, &configuration)?;
        Ok(S3Response::new(Body::empty()))
    })
    .await
}

/// Checks a configuration, and returns its document. Errors: as for [`configuration`].
pub(super) fn check(document: &[u8]) -> OperationResult<Vec<u8>> {
    configuration(document).map(|configuration| lock_configuration(&configuration).into_bytes())
}

/// Parses a configuration. Errors: `MalformedXML`, `InvalidRetentionPeriod`, as on AWS.
fn configuration(document: &[u8]) -> OperationResult<LockConfiguration> {
    let read = ObjectLockDocument::read(document).map_err(|error| malformed(error.detail().to_owned()))?;
    if read.state.as_deref() != Some("Enabled") {
        return Err(malformed("ObjectLockEnabled must be Enabled".to_owned()));
    }
    if let Some(found) = read.configuration() {
        return Ok(found);
    }
    let is_one = read.days.is_some() != read.years.is_some();
    let is_known = matches!(read.mode.as_deref(), Some("GOVERNANCE" | "COMPLIANCE"));
    match is_one && is_known {
        false => Err(malformed("a default retention needs a mode, and either days or years".to_owned())),
        true => {
            let least = read.days.or(read.years).unwrap_or_default();
            let words = match least {
                ..1 => "Default retention period must be a positive integer value.",
                _ => "Default retention period too large.",
            };
            let detail = "the limits are 1 to 36500 days, or 1 to 100 years";
            Err(S3Failure::aws("InvalidRetentionPeriod", StatusCode::BAD_REQUEST, words, detail))
        }
    }
}

/// Returns the version that a request names, if any. In an operation on locks, an empty ID means the latest version,
/// because operations on locks, unlike deletes, cannot destroy a version.
fn version_in(uri: &Uri) -> OperationResult<Option<VersionId>> {
    version(parameter(uri, "versionId").as_deref().filter(|name| !name.is_empty()))
}

/// Returns the retention or the legal hold of a version.
pub(super) async fn get(
    user: Arc<User>,
    (bucket, key): (String, String),
    uri: &Uri,
    is_retention: bool,
) -> OperationResult<S3Response<Body>> {
    let (bucket, key) = names(&bucket, &key)?;
    let version = version_in(uri)?;
    let found = look_up(user, move |store| {
        let options = GetOptions { version: version.clone(), ..Default::default() };
        let lock = store.head(&bucket, &key, &options)?.lock;
        // A version that was moved from a bucket with object lock keeps its lock.
        if lock.is_none() {
            require(store, &bucket, NO_LOCK)?;
        }
        Ok(lock)
    });
    let lock = found.await?;
    let shown = match is_retention {
        true => lock.retention.map(|retention| retention_document(Some(retention))),
        false => lock.legal_hold.map(legal_hold_document),
    };
    let missing = || {
        let words = "The specified object does not have a ObjectLock configuration.";
        S3Failure::aws("NoSuchObjectLockConfiguration", StatusCode::NOT_FOUND, words, "")
    };
    Ok(document(shown.ok_or_else(missing)?))
}

pub(super) async fn put_retention(
    user: Arc<User>,
    names: (String, String),
    mut request: S3Request<Body>,
) -> OperationResult<S3Response<Body>> {
    let document = body(&mut request).await?;
    let bypass = is_true(request.headers.get(BYPASS));
    let stated = match retention(&document) {
        Ok(stated) => stated,
        Err(error) => return Err(malformed_for(user, &names.0, error).await),
    };
    let mode = stated.map(|retention| ("s3:object-lock-mode", retention.mode.name().to_owned()));
    let until = stated.map(|retention| (RETAIN_UNTIL, format_iso8601(retention.until())));
    let values: Vec<_> = mode.into_iter().chain(until).collect();
    let facts = PolicyRequestContext::new(&request.headers, &request.uri, request.extensions.get().copied());
    authorise(&user, "PutObjectRetention", (&names.0, &names.1), &facts.with(&values)).await?;
    change(user, names, &request.uri, move |store, (bucket, key), version| {
        check_future(stated)?;
        store.set_retention(bucket, key, version, stated, bypass).map_err(in_the_past)
    })
    .await
}

pub(super) async fn put_legal_hold(
    user: Arc<User>,
    names: (String, String),
    mut request: S3Request<Body>,
) -> OperationResult<S3Response<Body>> {
    let document = body(&mut request).await?;
    let is_on = match legal_hold(&document) {
        Ok(is_on) => is_on,
        Err(error) => return Err(malformed_for(user, &names.0, error).await),
    };
    let status = if is_on { "ON" } else { "OFF" };
    let values = [("s3:object-lock-legal-hold", status.to_owned())];
    let facts = PolicyRequestContext::new(&request.headers, &request.uri, request.extensions.get().copied());
    authorise(&user, "PutObjectLegalHold", (&names.0, &names.1), &facts.with(&values)).await?;
    change(user, names, &request.uri, move |store, (bucket, key), version| {
        Ok(store.set_legal_hold(bucket, key, version, is_on)?)
    })
    .await
}

/// Returns the error for a malformed document. If the bucket is missing, returns the error for a missing bucket
/// instead, as on AWS.
async fn malformed_for(user: Arc<User>, bucket: &str, error: fordway_store::Error) -> S3Failure {
    let failure = malformed(error.detail().to_owned());
    let Ok(bucket) = Bucket::new(bucket) else { return failure };
    let found = look_up(user, move |store| {
        store.head_bucket(&bucket)?;
        Ok(())
    });
    found.await.err().map_or(failure, S3Failure)
}

/// Calls `set` to change the lock of a version. Errors: `InvalidRequest` in a bucket without object lock; errors from
/// `set`.
async fn change(
    user: Arc<User>,
    (bucket, key): (String, String),
    uri: &Uri,
    set: impl Fn(&dyn Store, (&Bucket, &fordway_store::Key), Option<&VersionId>) -> OperationResult<()>
    + Clone
    + Send
    + 'static,
) -> OperationResult<S3Response<Body>> {
    let (bucket, key) = names(&bucket, &key)?;
    let version = version_in(uri)?;
    until_unlocked(user, move |store| {
        let options = GetOptions { version: version.clone(), ..Default::default() };
        // A version that was moved from a bucket with object lock keeps its lock, which can be removed.
        let has_lock = || store.head(&bucket, &key, &options).is_ok_and(|found| !found.lock.is_none());
        require(store, &bucket, NO_LOCK).or_else(|missing| if has_lock() { Ok(()) } else { Err(missing) })?;
        set(store, (&bucket, &key), version.as_ref())
    })
    .await?;
    Ok(S3Response::new(Body::empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(rule: &str) -> String {
        let document = format!(
            "<ObjectLockConfiguration><ObjectLockEnabled>Enabled</ObjectLockEnabled>{rule}</ObjectLockConfiguration>"
        );
        configuration(document.as_bytes()).unwrap_err().0.code().as_str().to_owned()
    }

    #[test]
    fn errors_are_those_of_aws() {
        let rule = |inner| format!("<Rule><DefaultRetention>{inner}</DefaultRetention></Rule>");
        for (inner, expected) in [
            ("<Mode>GOVERNANCE</Mode><Days>0</Days>", "InvalidRetentionPeriod"),
            ("<Mode>GOVERNANCE</Mode><Years>-1</Years>", "InvalidRetentionPeriod"),
            ("<Mode>GOVERNANCE</Mode><Years>101</Years>", "InvalidRetentionPeriod"),
            ("<Mode>GOVERNANCE</Mode><Days>1</Days><Years>1</Years>", "MalformedXML"),
            ("<Mode>abc</Mode><Days>1</Days>", "MalformedXML"),
            ("<Days>1</Days>", "MalformedXML"),
        ] {
            assert_eq!(code(&rule(inner)), expected, "{inner}");
        }
        let disabled = b"<ObjectLockConfiguration><ObjectLockEnabled>Disabled</ObjectLockEnabled></ObjectLockConfiguration>";
        assert!(configuration(disabled).is_err());
    }
}
