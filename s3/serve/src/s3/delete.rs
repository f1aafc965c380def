//! Deletes objects and versions of objects.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fordway_store::{
    Bucket, Conditions, DeleteOptions, DeleteResult, ETag, ETagMatch, Error, ErrorKind, GetOptions, Key,
    MAX_KEY_BYTES, ObjectInfo, Store, VersionId,
};
use fordway_wire::s3_error::{ACCESS_DENIED, detail, to_s3};
use fordway_wire::s3_xml::ResponseDocumentBuilder;
use http::StatusCode;
use s3s::dto::{Delete, DeleteObjectInput, DeleteObjectOutput, ObjectIdentifier, Timestamp};
use s3s::{Body, S3ErrorCode, S3Request, S3Response};
use time::OffsetDateTime;

use crate::access::{IF_MATCH, PolicyRequestContext, authorise, is_open};
use crate::s3::apart::change_apart;
use crate::s3::buckets::is_true;
use crate::s3::convert::{names, version, version_name, write_conditions};
use crate::s3::error::{OperationResult, S3Failure};
use crate::s3::lock::BYPASS;
use crate::s3::{convert, documents};
use crate::users::User;

/// The maximum number of keys in one DeleteObjects request (S3's limit).
const KEYS_MAX: usize = 1000;

/// The number of keys that are checked against the bucket's rules before the serving thread serves other clients. Rules
/// can be long, and the thread's other clients may be other users.
const KEYS_PER_TURN: usize = 8;
/// The time after which the serving thread serves other clients even if fewer keys have been checked. With long rules
/// and long headers, the check of one key can take milliseconds.
const TURN: Duration = Duration::from_millis(2);

pub(super) fn one(store: &dyn Store, input: DeleteObjectInput) -> OperationResult<DeleteObjectOutput> {
    let (bucket, key) = names(&input.bucket, &input.key)?;
    let conditions = write_conditions(input.if_match, None);
    let options = DeleteOptions {
        conditions,
        version: version(input.version_id.as_deref())?,
        bypass_governance: input.bypass_governance_retention.unwrap_or(false),
    };
    let state = DeleteConditions { size: input.if_match_size, modified: input.if_match_last_modified_time };
    let deleted = state.delete(store, &bucket, &key, options)?;
    Ok(DeleteObjectOutput {
        delete_marker: deleted.is_marker.then_some(true),
        version_id: version_name(deleted.version),
        request_charged: None,
    })
}

/// Deletes the objects that the document in a request names.
pub(super) async fn serve(
    user: Arc<User>,
    bucket: String,
    request: S3Request<Body>,
) -> OperationResult<S3Response<Body>> {
    let S3Request { input, headers, uri, extensions, .. } = request;
    let delete: Delete = documents::sent(input).await?;
    let facts = PolicyRequestContext::new(&headers, &uri, extensions.get().copied());
    let refused = refused(&user, &facts, &bucket, &delete).await?;
    let bypass = is_true(headers.get(BYPASS));
    change_apart(user, move |store| many(store, bucket, delete, (bypass, &refused))).await
}

/// For each object in a request, returns the reason why the bucket's rules forbid the deletion; `None` if the rules
/// permit the deletion. The result is empty if the rules forbid no deletion. Errors: the errors of reading the rules.
async fn refused(
    user: &Arc<User>,
    facts: &PolicyRequestContext<'_>,
    bucket: &str,
    delete: &Delete,
) -> OperationResult<Vec<Option<String>>> {
    let is_open =
        Bucket::new(bucket).is_ok_and(|bucket| is_open(user, &bucket, Instant::now()).unwrap_or(false));
    let (mut refused, mut turn) = (Vec::new(), Instant::now());
    // A request with more keys than S3 allows is refused later.
    for (at, object) in delete.objects.iter().take(KEYS_MAX).filter(|_| !is_open).enumerate() {
        if at % KEYS_PER_TURN == KEYS_PER_TURN - 1 || turn.elapsed() >= TURN {
            tokio::task::yield_now().await;
            turn = Instant::now();
        }
        let version = object.version_id.as_deref().filter(|version| !version.is_empty());
        if let Some(refusal) = unfit_for_rules(object) {
            refused.push(refusal);
            continue;
        }
        let names = (bucket, object.key.as_str());
        let condition = object.e_tag.as_ref().map(|tag| (IF_MATCH, tag.value().to_owned()));
        let facts = facts.of_version(version);
        let facts = if condition.is_some() { facts.with(condition.as_slice()) } else { facts };
        refused.push(match authorise(user, "DeleteObject", names, &facts).await {
            Ok(()) => None,
            Err(S3Failure(error)) if *error.code() == S3ErrorCode::AccessDenied => {
                Some(in_one_line(error.message().unwrap_or_default()))
            }
            // The caller is permitted to delete the object, and to learn that the object is missing. The deletion
            // itself then determines the result for the missing object.
            Err(S3Failure(error)) if *error.code() == S3ErrorCode::NoSuchKey => None,
            Err(failure) => return Err(failure),
        });
    }
    Ok(refused)
}

/// Returns the result for an object whose key, version ID or ETag is too long to be compared with the bucket's rules. A
/// document can contain strings of several megabytes. The deletion itself reports the error for such a key or version
/// ID. No object has such an ETag.
fn unfit_for_rules(object: &ObjectIdentifier) -> Option<Option<String>> {
    let is_long = |text: &str| text.len() > MAX_KEY_BYTES;
    if is_long(&object.key) || object.version_id.as_deref().is_some_and(is_long) {
        return Some(None);
    }
    let has_long_tag = object.e_tag.as_ref().is_some_and(|tag| is_long(tag.value()));
    has_long_tag.then(|| Some("the ETag is too long; state the ETag of the object".to_owned()))
}

fn many(
    store: &dyn Store,
    bucket: String,
    Delete { objects, quiet }: Delete,
    (bypass, refused): (bool, &[Option<String>]),
) -> OperationResult<S3Response<Body>> {
    let bucket = Bucket::new(bucket)?;
    if objects.is_empty() || objects.len() > KEYS_MAX {
        return Err(malformed(format!("name 1 to {KEYS_MAX} keys, not {}", objects.len())));
    }
    if let Some(object) = objects.iter().find(|object| !can_be_named(&object.key)) {
        let why = "has characters that XML cannot represent; delete it with a separate request";
        return Err(malformed(format!("the key {:?} {why}", object.key)));
    }
    store.head_bucket(&bucket)?;

    let quiet = quiet.unwrap_or(false);
    let mut document = ResponseDocumentBuilder::new("DeleteResult");
    let refusal = |at: usize| refused.get(at).and_then(Option::as_deref);
    let permitted: Vec<_> = objects
        .iter()
        .enumerate()
        .filter(|(at, _)| refusal(*at).is_none())
        .map(|(_, object)| object.clone())
        .collect();
    let mut results = results(store, &bucket, &permitted, bypass).into_iter();
    for (at, object) in objects.iter().enumerate() {
        if let Some(why) = refusal(at) {
            let (_, code) = to_s3(ErrorKind::AccessDenied);
            write_failure(&mut document, object, code, why);
            continue;
        }
        match results.next() {
            Some(Ok(_)) if quiet => {}
            Some(Ok(done)) => write_deleted(&mut document, object, done),
            Some(Err(error)) => {
                write_failure(&mut document, object, to_s3(error.kind()).1, &detail(&error));
            }
            None => write_failure(&mut document, object, "InternalError", "the store reported no result"),
        }
    }
    Ok(convert::document(document))
}

/// Converts the string of a refusal, which consists of AWS's message and the gateway's own message, to the message for
/// one key. AWS's general message is omitted, because it says less than the code.
fn in_one_line(text: &str) -> String {
    match text.split_once('\n') {
        Some((words, detail)) if words == ACCESS_DENIED => detail.to_owned(),
        _ => text.trim_end().replace('\n', "; "),
    }
}

fn malformed(message: String) -> S3Failure {
    S3Failure::new("MalformedXML", StatusCode::BAD_REQUEST, message)
}

/// Returns whether XML 1.0 can represent all characters of the key, directly or as character references.
fn can_be_named(key: &str) -> bool {
    let is_character = |character: char| match character {
        '\t' | '\n' | '\r' => true,
        '\u{fffe}' | '\u{ffff}' => false,
        character => character >= ' ',
    };
    key.chars().all(is_character)
}

/// Deletes the objects and returns one result per object, in order. If the request names only keys, one call to the
/// store deletes all of them.
fn results(
    store: &dyn Store,
    bucket: &Bucket,
    objects: &[ObjectIdentifier],
    bypass: bool,
) -> Vec<fordway_store::Result<DeleteResult>> {
    let is_plain = |object: &ObjectIdentifier| {
        object.version_id.is_none() && object.e_tag.is_none() && DeleteConditions::of(object).is_nothing()
    };
    let keys = objects.iter().filter(|object| is_plain(object)).map(|object| Key::new(object.key.as_str()));
    match keys.collect::<fordway_store::Result<Vec<_>>>() {
        Ok(keys) if keys.len() == objects.len() => store.delete_many(bucket, &keys),
        _ => objects.iter().map(|object| remove(store, bucket, object, bypass)).collect(),
    }
}

fn remove(
    store: &dyn Store,
    bucket: &Bucket,
    object: &ObjectIdentifier,
    bypass: bool,
) -> fordway_store::Result<DeleteResult> {
    let key = Key::new(object.key.as_str())?;
    let version = object.version_id.as_deref().filter(|name| !name.is_empty());
    let options = DeleteOptions {
        // In DeleteObjects, unlike in DeleteObject, AWS reports an ID that it never generates as a missing version.
        version: version
            .map(fordway_store::VersionId::new)
            .transpose()
            .map_err(|_| Error::from(ErrorKind::NoSuchVersion))?,
        bypass_governance: bypass,
        conditions: object.e_tag.as_ref().map_or_else(Conditions::default, |tag| match tag.value() {
            "*" => Conditions { if_match: Some(ETagMatch::Any), ..Default::default() },
            tag => Conditions::only_if(ETag::new(tag)),
        }),
    };
    DeleteConditions::of(object).delete(store, bucket, &key, options)
}

/// The conditions that a delete may have in addition to the ETag: the object's size and modification time.
struct DeleteConditions {
    size: Option<i64>,
    modified: Option<Timestamp>,
}

impl DeleteConditions {
    fn of(object: &ObjectIdentifier) -> Self {
        DeleteConditions { size: object.size, modified: object.last_modified_time.clone() }
    }

    fn is_nothing(&self) -> bool {
        self.size.is_none() && self.modified.is_none()
    }

    /// Deletes the object if it meets the conditions. The store compares only ETags. This method therefore passes the
    /// ETag of the object that met the conditions to the store, so that the store deletes no other version. Errors:
    /// the errors of the store.
    fn delete(
        &self,
        store: &dyn Store,
        bucket: &Bucket,
        key: &Key,
        mut options: DeleteOptions,
    ) -> fordway_store::Result<DeleteResult> {
        let look = || {
            let version = options.version.clone();
            store.head(bucket, key, &GetOptions { version, ..Default::default() })
        };
        match (!self.is_nothing()).then(look) {
            None => {}
            Some(Ok(info)) if self.is_met_by(&info) => {
                options.conditions.if_match = Some(pinned(options.conditions.if_match, info.etag));
            }
            Some(Ok(_)) => return Err(differs("its size or time differs")),
            Some(Err(error)) if error.is_at_delete_marker() => {
                return Err(differs("the latest version is a delete marker"));
            }
            // The conditions do not apply to a missing object, because there is nothing to delete. The store's `delete`
            // determines the response.
            Some(Err(error)) if is_missing(error.kind()) => {}
            Some(Err(error)) => return Err(error),
        }
        store.delete(bucket, key, &options)
    }

    /// Returns whether the object meets the conditions. Times are compared in whole seconds, as in HTTP headers.
    fn is_met_by(&self, info: &ObjectInfo) -> bool {
        let seconds = |time: Timestamp| OffsetDateTime::from(time).unix_timestamp();
        let modified = OffsetDateTime::from(info.modified).unix_timestamp();
        self.size.is_none_or(|size| u64::try_from(size) == Ok(info.size))
            && self.modified.clone().is_none_or(|wanted| seconds(wanted) == modified)
    }
}

/// Returns the condition `asked`, restricted to the object with the ETag `compared` if `asked` names no ETags. Any
/// object meets the condition `*`, even one that has replaced the compared object.
fn pinned(asked: Option<ETagMatch>, compared: ETag) -> ETagMatch {
    match asked {
        Some(ETagMatch::Tags(tags)) => ETagMatch::Tags(tags),
        None | Some(ETagMatch::Any) => ETagMatch::Tags(vec![compared]),
    }
}

fn is_missing(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::NoSuchKey | ErrorKind::NoSuchVersion | ErrorKind::NoSuchBucket)
}

fn differs(why: &str) -> Error {
    Error::new(ErrorKind::PreconditionFailed, why)
}

/// Writes the result for a deleted object. The result names the requested version, and any delete marker that was
/// created or removed.
fn write_deleted(document: &mut ResponseDocumentBuilder, object: &ObjectIdentifier, done: DeleteResult) {
    document.open("Deleted").element("Key", &object.key);
    document.maybe("VersionId", object.version_id.as_deref());
    if done.is_marker {
        document.element("DeleteMarker", "true");
        document.maybe("DeleteMarkerVersionId", done.version.as_ref().map(VersionId::as_str));
    }
    document.close();
}

fn write_failure(
    document: &mut ResponseDocumentBuilder,
    object: &ObjectIdentifier,
    code: &str,
    message: &str,
) {
    document.open("Error").element("Key", &object.key);
    document.maybe("VersionId", object.version_id.as_deref());
    document.element("Code", code).element("Message", message).close();
}

#[cfg(test)]
mod tests {
    use std::future::{Future as _, poll_fn};
    use std::pin::pin;

    use fordway_store::{BucketDocumentOperations as _, MemoryStore, Objects as _};
    use http::{HeaderMap, Uri};

    use super::*;
    use crate::access::POLICY;
    use crate::{AccessKeyPair, Users};

    fn store_with_policy() -> Arc<MemoryStore> {
        let (store, bucket) = (MemoryStore::default(), Bucket::new("bucket").unwrap());
        let policy = br#"{"Version": "2012-10-17", "Statement": [{"Effect": "Deny", "Principal": "*",
            "Action": "s3:DeleteObject", "Resource": "arn:aws:s3:::bucket/k9*"}]}"#;
        store.create_bucket(&bucket).unwrap();
        store.set_document(&bucket, &POLICY, policy).unwrap();
        Arc::new(store)
    }

    #[test]
    fn a_delete_with_a_condition_on_the_size_names_the_compared_object() {
        let compared = || ETag::new("compared");
        let tags = |tag: ETag| ETagMatch::Tags(vec![tag]);
        assert_eq!(pinned(None, compared()), tags(compared()));
        assert_eq!(pinned(Some(ETagMatch::Any), compared()), tags(compared()));
        assert_eq!(pinned(Some(tags(ETag::new("asked"))), compared()), tags(ETag::new("asked")));
    }

    #[test]
    fn other_clients_are_served_while_many_keys_are_checked() {
        let object = |at: usize| ObjectIdentifier { key: format!("k{at}"), ..Default::default() };
        let delete = Delete { objects: (0..KEYS_MAX).map(object).collect(), quiet: None };
        let (headers, uri) = (HeaderMap::new(), Uri::from_static("/bucket"));
        let facts = PolicyRequestContext::new(&headers, &uri, None);
        let identity = AccessKeyPair::generate().unwrap();
        let user = Users::one(identity.clone(), store_with_policy()).find(&identity.access_key).unwrap();
        let mut checked = pin!(refused(&user, &facts, "bucket", &delete));
        let mut turns = 0;
        let counted = poll_fn(|context| {
            turns += 1;
            checked.as_mut().poll(context)
        });
        let refused = crate::workers::new_runtime().unwrap().block_on(counted).unwrap();
        let is_refused = |at: usize| format!("k{at}").starts_with("k9");
        let refused: Vec<_> = refused.iter().map(Option::is_some).collect();
        assert_eq!(refused, (0..KEYS_MAX).map(is_refused).collect::<Vec<_>>());
        assert!(turns > KEYS_MAX / KEYS_PER_TURN, "{turns} turns");
    }
}
