//! Deletes one or more objects, and accesses the documents of a bucket. A document is identified by the name of its S3
//! sub-resource, and is sent unchanged.

use std::collections::{HashMap, HashSet};

use fordway_store::{
    Bucket, BucketDocumentKind, DeleteOptions, DeleteResult, Error, ErrorKind, Key, Result, check_document,
};
use fordway_wire::s3_xml::{DeleteFailure, DeleteObjectsResult, XmlElement};
use fordway_wire::{s3_error, s3_xml};

use crate::s3::failure::{self, own_words};
use crate::s3::headers::{OF_OBJECT, add_bypass, add_conditions, version};
use crate::s3::request::S3Call;
use crate::s3::session::S3Session;

/// The maximum number of keys in one request.
const MAX_BATCH: usize = 1000;

pub(super) fn delete(
    session: &S3Session,
    bucket: &Bucket,
    key: &Key,
    options: &DeleteOptions,
) -> Result<DeleteResult> {
    let mut call = S3Call::on_object("DELETE", "delete", bucket, key).version(options.version.as_ref());
    let is_plain = options.conditions.is_empty();
    if !is_plain {
        call = call.once();
    }
    add_conditions(&mut call, &options.conditions, &OF_OBJECT);
    add_bypass(&mut call, options.bypass_governance);
    let deleted = session.run(&call, |mut response| {
        failure::check_done(&mut response)?;
        let is_marker = response.header("x-amz-delete-marker") == Some("true");
        Ok(DeleteResult { version: version(&response), is_marker })
    });
    match deleted {
        // Some services report a missing key as an error; S3 itself responds with success.
        Err(error) if is_plain && error.s3_code() == Some("NoSuchKey") => Ok(DeleteResult::default()),
        // Without the code, the response need not be from an S3 service, so the object may still exist.
        Err(error) if is_plain && error.kind() == ErrorKind::NoSuchKey => {
            let detail = format!(
                "{}: the response has no S3 error code, so whether the object exists is unknown; check the endpoint",
                error.detail()
            );
            Err(call.named(Error::new(ErrorKind::BadResponse, detail)))
        }
        other => other,
    }
}

/// Deletes objects, and returns one result per key, in order. Cost: one request per 1,000 keys, and one for each key
/// with a character that XML 1.0 excludes.
pub(super) fn delete_many(session: &S3Session, bucket: &Bucket, keys: &[Key]) -> Vec<Result<DeleteResult>> {
    let runs = keys.chunk_by(|one, next| is_text(one) == is_text(next));
    let batches = runs.flat_map(|run| run.chunks(if is_text(&run[0]) { MAX_BATCH } else { 1 }));
    batches.flat_map(|batch| delete_batch(session, bucket, batch)).collect()
}

/// Returns whether an XML 1.0 document can contain the key (section 2.2).
fn is_text(key: &Key) -> bool {
    let is_excluded = |character: char| matches!(character, '\0'..='\u{8}' | '\u{b}' | '\u{c}' | '\u{e}'..='\u{1f}' | '\u{fffe}' | '\u{ffff}');
    !key.as_str().contains(is_excluded)
}

fn delete_batch(session: &S3Session, bucket: &Bucket, keys: &[Key]) -> Vec<Result<DeleteResult>> {
    if let [key] = keys
        && !is_text(key)
    {
        return vec![delete(session, bucket, key, &DeleteOptions::default())];
    }
    let document = s3_xml::delete(keys.iter().map(Key::as_str));
    let call = S3Call::on_bucket("POST", "delete", bucket).query("delete", "").document(&document);
    let answer = session
        .run(&call, |mut response| s3_xml::delete_result(&response.read_document()?))
        .map(|outcome| DeleteResultsByKey::new(outcome, keys));
    let result_of = |key: &Key| match &answer {
        Ok(outcome) => outcome.of(key),
        Err(error) => Err(error.repeated()),
    };
    let named = |error: Error, key: &Key| {
        error.during("delete", crate::s3::store::LANE, bucket.as_str(), key.as_str())
    };
    keys.iter().map(|key| result_of(key).map_err(|error| named(error, key))).collect()
}

/// The result for each key of a batch. A key that the response does not mention counts as deleted, unless the response
/// reports a failure for a name that was not in the request.
struct DeleteResultsByKey {
    deleted: HashMap<String, DeleteResult>,
    failures: HashMap<String, DeleteFailure>,
    /// A failure whose name matches no key, so any of the unmentioned keys may have failed.
    stray: Option<DeleteFailure>,
}

impl DeleteResultsByKey {
    fn new(outcome: DeleteObjectsResult, keys: &[Key]) -> Self {
        let is_missing =
            |failure: &DeleteFailure| s3_error::from_s3(400, &failure.code) == ErrorKind::NoSuchKey;
        let asked: HashSet<&str> = keys.iter().map(Key::as_str).collect();
        let failures = outcome.failures.into_iter().filter(|failure| !is_missing(failure));
        let (known, stray): (Vec<_>, Vec<_>) =
            failures.partition(|failure| asked.contains(failure.key.as_str()));
        DeleteResultsByKey {
            deleted: outcome.deleted.into_iter().collect(),
            failures: known.into_iter().map(|failure| (failure.key.clone(), failure)).collect(),
            stray: stray.into_iter().next(),
        }
    }

    fn of(&self, key: &Key) -> Result<DeleteResult> {
        match (self.failures.get(key.as_str()), self.deleted.get(key.as_str()), &self.stray) {
            (Some(failure), ..) => Err(explained(failure)),
            (None, Some(deleted), _) => Ok(deleted.clone()),
            (None, None, Some(stray)) => Err(unmentioned(stray)),
            (None, None, None) => Ok(DeleteResult::default()),
        }
    }
}

/// Returns the error for a key that the response does not mention, if the response reports a failure for an unknown
/// key.
fn unmentioned(stray: &DeleteFailure) -> Error {
    let DeleteFailure { key, code, message } = stray;
    let detail = format!(
        "the response does not mention this key, but reports a failure for {key:?}: {message} ({code}); check the object"
    );
    Error::new(ErrorKind::BadResponse, detail)
}

fn explained(failure: &DeleteFailure) -> Error {
    let kind = s3_error::from_s3(400, &failure.code);
    let detail = match own_words(&failure.message, kind) {
        "" => failure.code.clone(),
        words => format!("{words} ({})", failure.code),
    };
    Error::new(kind, detail).with_s3_code(&failure.code)
}

pub(super) fn get_document(
    session: &S3Session,
    bucket: &Bucket,
    kind: &BucketDocumentKind,
) -> Result<Option<Vec<u8>>> {
    let call = S3Call::on_bucket("GET", "get document", bucket).for_document(kind);
    match session.run_for_document(&call) {
        Ok(document) if kind.absent_root().is_some() && XmlElement::read(&document)?.children.is_empty() => {
            Ok(None)
        }
        Ok(document) => Ok(Some(document)),
        Err(error) if error.kind() == ErrorKind::NoSuchKey => Ok(None),
        Err(error) => Err(error),
    }
}

pub(super) fn set_document(
    session: &S3Session,
    bucket: &Bucket,
    kind: &BucketDocumentKind,
    document: &[u8],
) -> Result<()> {
    let call = S3Call::on_bucket("PUT", "set document", bucket).for_document(kind);
    check_document(document).map_err(|error| call.named(error))?;
    let text = str::from_utf8(document).map_err(|_| call.named(not_text()))?;
    session.run_for_status(&call.document(text))
}

pub(super) fn delete_document(session: &S3Session, bucket: &Bucket, kind: &BucketDocumentKind) -> Result<()> {
    if let Some(root) = kind.absent_root() {
        return set_document(session, bucket, kind, format!("<{root}/>").as_bytes());
    }
    session.run_for_status(&S3Call::on_bucket("DELETE", "delete document", bucket).for_document(kind))
}

fn not_text() -> Error {
    Error::new(ErrorKind::InvalidArgument, "a document that is sent over HTTP must be UTF-8")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_of_a_gateway_is_not_repeated() {
        let failed = |code: &str, message: &str| {
            let (key, code, message) = ("k".to_owned(), code.to_owned(), message.to_owned());
            explained(&DeleteFailure { key, code, message }).to_string()
        };
        let advice = ErrorKind::AccessDenied.advice();
        assert_eq!(
            failed("AccessDenied", &format!("s3://b/k: permission denied; {advice}")),
            format!("access denied: permission denied (AccessDenied); {advice}")
        );
        assert_eq!(
            failed("AccessDenied", "s3://b/k: the version is retained; wait until its date"),
            "access denied: the version is retained; wait until its date (AccessDenied)"
        );
    }
}
