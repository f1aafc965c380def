//! Deletes one or more objects, and accesses the documents of a bucket. A document is identified by the name of its S3
//! sub-resource, and is sent unchanged.

use std::collections::{HashMap, HashSet};

use fordway_store::{
    Bucket, BucketDocumentKind, DeleteOptions, DeleteResult, Error, ErrorKind, Key, Result, VersionId,
    check_document,
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

/// The key of an object to delete, or of the version to delete.
type DeletedName<'k> = (&'k Key, Option<&'k VersionId>);

/// Deletes objects or versions, and returns one result for each of them, in order. Cost: one request per 1,000 objects,
/// and one for each key with a character that XML 1.0 excludes.
pub(super) fn delete_many(
    session: &S3Session,
    bucket: &Bucket,
    objects: &[DeletedName<'_>],
) -> Vec<Result<DeleteResult>> {
    let runs = objects.chunk_by(|one, next| is_text(one.0) == is_text(next.0));
    let batches = runs.flat_map(|run| run.chunks(if is_text(run[0].0) { MAX_BATCH } else { 1 }));
    batches.flat_map(|batch| delete_batch(session, bucket, batch)).collect()
}

/// Returns whether an XML 1.0 document can contain the key (section 2.2).
fn is_text(key: &Key) -> bool {
    let is_excluded = |character: char| matches!(character, '\0'..='\u{8}' | '\u{b}' | '\u{c}' | '\u{e}'..='\u{1f}' | '\u{fffe}' | '\u{ffff}');
    !key.as_str().contains(is_excluded)
}

fn delete_batch(
    session: &S3Session,
    bucket: &Bucket,
    objects: &[DeletedName<'_>],
) -> Vec<Result<DeleteResult>> {
    if let [(key, version)] = objects
        && !is_text(key)
    {
        let options = DeleteOptions { version: version.cloned(), ..Default::default() };
        return vec![delete(session, bucket, key, &options)];
    }
    let document = s3_xml::delete(objects.iter().map(|(key, version)| (key.as_str(), *version)));
    let call = S3Call::on_bucket("POST", "delete", bucket).query("delete", "").document(&document);
    let answer = session
        .run(&call, |mut response| s3_xml::delete_result(&response.read_document()?))
        .map(|outcome| DeleteResultsByName::new(outcome, objects));
    let result_of = |object: &DeletedName<'_>| match &answer {
        Ok(outcome) => outcome.of(object),
        Err(error) => Err(error.repeated()),
    };
    let named = |error: Error, key: &Key| {
        error.during("delete", crate::s3::store::LANE, bucket.as_str(), key.as_str())
    };
    objects.iter().map(|object| result_of(object).map_err(|error| named(error, object.0))).collect()
}

/// The result for each object of a batch. An object that the response does not mention counts as deleted, unless the
/// response reports a failure for a name that was not in the request.
struct DeleteResultsByName {
    deleted: HashMap<(String, Option<VersionId>), DeleteResult>,
    /// A failure without a version applies to all versions of its key.
    failures: HashMap<(String, Option<VersionId>), DeleteFailure>,
    /// A failure whose name matches no object, so any of the unmentioned objects may have failed.
    stray: Option<DeleteFailure>,
}

impl DeleteResultsByName {
    fn new(outcome: DeleteObjectsResult, objects: &[DeletedName<'_>]) -> Self {
        // The version in the result for an object is not part of its name, unless the request named versions.
        let names_versions = objects.iter().any(|(_, version)| version.is_some());
        let version_of = |version: &Option<VersionId>| version.clone().filter(|_| names_versions);
        let is_missing =
            |failure: &DeleteFailure| s3_error::from_s3(400, &failure.code) == ErrorKind::NoSuchKey;
        let asked: HashSet<(&str, Option<&VersionId>)> = objects
            .iter()
            .flat_map(|(key, version)| [(key.as_str(), *version), (key.as_str(), None)])
            .collect();
        let failures = outcome.failures.into_iter().filter(|failure| !is_missing(failure));
        let (known, stray): (Vec<_>, Vec<_>) = failures.partition(|failure| {
            asked.contains(&(failure.key.as_str(), version_of(&failure.version).as_ref()))
        });
        let deleted = outcome.deleted.into_iter();
        let failures = known.into_iter();
        DeleteResultsByName {
            deleted: deleted.map(|(key, result)| ((key, version_of(&result.version)), result)).collect(),
            failures: failures
                .map(|failure| ((failure.key.clone(), version_of(&failure.version)), failure))
                .collect(),
            stray: stray.into_iter().next(),
        }
    }

    fn of(&self, (key, version): &DeletedName<'_>) -> Result<DeleteResult> {
        let name = (key.as_str().to_owned(), version.cloned());
        let deleted = self.deleted.get(&name);
        let failure = self.failures.get(&name).or_else(|| self.failures.get(&(name.0.clone(), None)));
        match (failure, deleted, &self.stray) {
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
    let DeleteFailure { key, code, message, .. } = stray;
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
    fn each_version_has_its_result() {
        let (key, other) = (Key::new("k").unwrap(), Key::new("l").unwrap());
        let versions = ["1", "2", "3"].map(|id| VersionId::new(id).unwrap());
        let [one, two, three] = &versions;
        let asked = [(&key, Some(one)), (&key, Some(two)), (&key, Some(three)), (&other, Some(one))];
        let failed = |key: &str, version: Option<&VersionId>| DeleteFailure {
            key: key.to_owned(),
            version: version.cloned(),
            code: "AccessDenied".to_owned(),
            message: String::new(),
        };
        let results = |failures: Vec<DeleteFailure>| {
            let marker = DeleteResult { version: Some(two.clone()), is_marker: true };
            let outcome = DeleteObjectsResult { deleted: vec![("k".to_owned(), marker)], failures };
            let results = DeleteResultsByName::new(outcome, &asked);
            let kind = |result: Result<DeleteResult>| {
                result.map(|done| done.is_marker).map_err(|error| error.kind())
            };
            asked.each_ref().map(|object| kind(results.of(object)))
        };
        let denied = Err(ErrorKind::AccessDenied);
        assert_eq!(results(vec![failed("k", Some(one))]), [denied, Ok(true), Ok(false), Ok(false)]);
        assert_eq!(results(vec![failed("k", None)]), [denied, denied, denied, Ok(false)], "of all versions");
        let unknown = results(vec![failed("k", VersionId::new("4").ok().as_ref())]);
        let unsure = Err(ErrorKind::BadResponse);
        assert_eq!(unknown, [unsure, Ok(true), unsure, unsure], "any of the others may have failed");
    }

    #[test]
    fn a_new_delete_marker_is_no_part_of_the_name() {
        let key = Key::new("k").unwrap();
        let marker = DeleteResult { version: VersionId::new("m").ok(), is_marker: true };
        let failure =
            DeleteFailure { key: "l".to_owned(), version: marker.version.clone(), ..Default::default() };
        let deleted = vec![("k".to_owned(), marker.clone())];
        let other = Key::new("l").unwrap();
        let asked = [(&key, None), (&other, None)];
        let results =
            DeleteResultsByName::new(DeleteObjectsResult { deleted, failures: vec![failure] }, &asked);
        assert_eq!(results.of(&asked[0]).unwrap(), marker);
        assert!(results.of(&asked[1]).is_err());
    }

    #[test]
    fn advice_of_a_gateway_is_not_repeated() {
        let failed = |code: &str, message: &str| {
            let (key, code, message) = ("k".to_owned(), code.to_owned(), message.to_owned());
            explained(&DeleteFailure { key, code, message, version: None }).to_string()
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
