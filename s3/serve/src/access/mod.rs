//! Authorisation: whether the rules of a bucket permit a request. The rules are checked before a request's body is read
//! and before the file system is accessed. In addition, the file system checks each access, with the uid and the groups
//! of the caller's user.
//!
//! Rules apply to callers who are identified by their keys, and to anonymous callers. A caller whom the kernel has
//! identified could open the same files without a gateway, so rules do not apply to such a caller.
//!
//! Some operations, such as form uploads and retentions, can be checked only with values from the request's body. The
//! code of these operations calls [`authorise`] itself, and adds the values with [`PolicyRequestContext::with`].
//!
//! * `actions`: the actions that each operation needs
//! * `facts`: a request's values for condition keys
//! * `known`: the rules of buckets, read once a second

mod actions;
mod facts;
mod known;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Instant;

use fordway_policy::{AccessRequest, Action, BucketAccessDecision, CallerRole, Principal};
use fordway_store::{Bucket, ErrorKind, GetOptions, Key, MAX_KEY_BYTES, Store, Tags, VersionId};
use http::{HeaderMap, StatusCode};

pub(crate) use facts::{
    IF_MATCH, PolicyRequestContext, RETAIN_UNTIL, RequestNetworkOrigin, signature_age_ms,
};
#[cfg(test)]
pub(crate) use known::block_of;
pub(crate) use known::{
    ACL, BucketOwnerAndRules, POLICY, PUBLIC_ACCESS_BLOCK, acl as read_acl, block as read_block,
    forget_rules, read as read_rules,
};

use crate::s3::{OperationResult, S3Failure, look_up};
use crate::users::{User, UserKind};
use actions::RequiredPermission;

/// Checks that the rules of the buckets permit an operation. `bucket` is empty for an operation on the service, and
/// `key` is empty for an operation on a bucket. `operation` is the operation's S3 name, such as `PutObject`.
///
/// Errors: `AccessDenied`; `KeyTooLong`; errors from reading the rules. Cost: each serving thread reads the rules of a
/// bucket once a second. A decision needs no system call, unless a policy has conditions on the tags of objects.
pub(crate) async fn authorise(
    user: &Arc<User>,
    operation: &str,
    (bucket, key): (&str, &str),
    facts: &PolicyRequestContext<'_>,
) -> OperationResult<()> {
    if user.kind == UserKind::Peer {
        return Ok(());
    }
    if user.kind == UserKind::Anonymous && facts.changes_response_headers() {
        let words = "Request specific response headers cannot be used for anonymous GET requests.";
        return Err(S3Failure::aws("InvalidRequest", StatusCode::BAD_REQUEST, words, "sign the request"));
    }
    if user.kind == UserKind::Anonymous
        && let Some((_, words)) = NEVER_ANONYMOUS.iter().find(|(name, _)| *name == operation)
    {
        return Err(S3Failure::aws("AccessDenied", StatusCode::FORBIDDEN, words, SIGN));
    }
    if bucket.is_empty() {
        return if user.kind == UserKind::Anonymous { Err(unsigned()) } else { Ok(()) };
    }
    if facts.awaits_body(operation) && user.kind != UserKind::Anonymous {
        return Ok(());
    }
    // The cost of evaluating a policy grows with the length of the key, and a document can contain a key of several
    // megabytes.
    if key.len() > MAX_KEY_BYTES {
        Key::new(key)?;
    }
    let facts = &facts.of_operation(operation);
    let needs = actions::needed(operation, (bucket, key), facts);
    if needs.is_empty() && user.kind == UserKind::Anonymous {
        return check_without_actions(user, operation, bucket).await;
    }
    for need in needs {
        let Ok(bucket) = Bucket::new(&*need.bucket) else { continue };
        let access = rules_of(user, &bucket).await?;
        if !access.is_open_to(user) {
            check(user, &access, &need, facts).await?;
        }
    }
    match operation {
        "CopyObject" | "RenameObject" => authorise_copied_tags(user, operation, (bucket, key), facts).await,
        _ => Ok(()),
    }
}

/// If the source of a copy or a rename has tags, checks that the caller may read these tags and write them to the new
/// object. Cost: reads the tags if either bucket has rules.
async fn authorise_copied_tags(
    user: &Arc<User>,
    operation: &str,
    names: (&str, &str),
    facts: &PolicyRequestContext<'_>,
) -> OperationResult<()> {
    let Some([read, write]) = actions::of_copied_tags(operation, names, facts) else { return Ok(()) };
    let (Ok(from), Ok(to)) = (Bucket::new(&*read.bucket), Bucket::new(&*write.bucket)) else {
        return Ok(());
    };
    let (from, to) = (rules_of(user, &from).await?, rules_of(user, &to).await?);
    if from.is_open_to(user) && to.is_open_to(user) {
        return Ok(());
    }
    let tags = existing_tags(user, &read).await?;
    if tags.is_empty() {
        return Ok(());
    }
    if !from.is_open_to(user) {
        check(user, &from, &read, facts).await?;
    }
    match to.is_open_to(user) {
        true => Ok(()),
        false => check(user, &to, &write, &facts.with_tags(&tags)).await,
    }
}

/// Removes the headers that the caller is not permitted to see from the response to a read. The header for the number
/// of tags and the headers for the object lock require separate actions. Errors: the errors of reading the rules.
pub(crate) async fn hide_headers(
    user: &Arc<User>,
    names: (&str, &str),
    facts: &PolicyRequestContext<'_>,
    headers: &mut HeaderMap,
) -> OperationResult<()> {
    if user.kind == UserKind::Peer {
        return Ok(());
    }
    for (header, need) in actions::of_headers(headers, names, facts) {
        let Ok(bucket) = Bucket::new(names.0) else { continue };
        let access = rules_of(user, &bucket).await?;
        if !access.is_open_to(user) && check(user, &access, &need, facts).await.is_err() {
            headers.remove(header);
        }
    }
    Ok(())
}

/// Checks an unsigned request for an operation that needs no action on its bucket. `DeleteObjects` passes if the bucket
/// has a policy, which may allow the deletions. Every other operation, such as creating a bucket, needs a signature.
/// Errors: `AccessDenied`.
async fn check_without_actions(user: &Arc<User>, operation: &str, bucket: &str) -> OperationResult<()> {
    let (Ok(bucket), "DeleteObjects") = (Bucket::new(bucket), operation) else { return Err(unsigned()) };
    let access = rules_of(user, &bucket).await?;
    match access.rules.as_ref().is_ok_and(|rules| rules.policy.is_some()) {
        true => Ok(()),
        false => Err(unsigned()),
    }
}

/// Checks a PutObjectTagging request, as [`authorise`] does, with the tags from the body of the request. If a policy
/// has conditions on these tags, an earlier call to [`authorise`] without the tags postpones the check to this call.
pub(crate) async fn authorise_tags(
    user: &Arc<User>,
    names: (&str, &str),
    facts: &PolicyRequestContext<'_>,
    tags: &Tags,
) -> OperationResult<()> {
    authorise(user, "PutObjectTagging", names, &facts.with_tags(tags)).await
}

/// Returns whether the cached rules of the bucket permit every request of a user; `None` if the rules have to be read.
/// Cost: no system call.
pub(crate) fn is_open_as_known(user: &User, bucket: &Bucket, at: Instant) -> Option<bool> {
    if user.kind == UserKind::Peer {
        return Some(true);
    }
    known::look(user, bucket, at, |access| access.is_open_to(user))
}

/// Reads the rules of a bucket unless they are in this thread's cache. Returns whether the rules permit every request
/// of a user; `None` if the rules cannot be read without waiting.
pub(crate) fn is_open(user: &User, bucket: &Bucket, at: Instant) -> Option<bool> {
    if let Some(is_open) = is_open_as_known(user, bucket, at) {
        return Some(is_open);
    }
    if user.waits_for_server(bucket) {
        return None;
    }
    let access = fordway_sys::without_waiting(|| known::read(&*user.store, bucket))?.ok()?;
    let access = known::remember(user, bucket, access, at);
    Some(access.is_open_to(user))
}

async fn rules_of(user: &Arc<User>, bucket: &Bucket) -> OperationResult<Arc<BucketOwnerAndRules>> {
    let now = Instant::now();
    if let Some(access) = known::known(user, bucket, now) {
        return Ok(access);
    }
    let wanted = bucket.clone();
    match look_up(user.clone(), move |store| Ok(known::read(store, &wanted))).await? {
        Ok(access) => Ok(known::remember(user, bucket, access, now)),
        // In the default value, the bucket has no owner and no rules. Each user with keys then counts as the owner, so
        // the operation continues and reports the missing bucket. Anonymous callers are refused and do not learn that
        // the bucket is missing.
        Err(error) if error.kind() == ErrorKind::NoSuchBucket => Ok(Arc::default()),
        Err(error) => Err(error.into()),
    }
}

/// Checks one action that an operation needs. Errors: `AccessDenied`; errors for the tags in the request's header;
/// errors from reading tags.
async fn check(
    user: &Arc<User>,
    access: &BucketOwnerAndRules,
    need: &RequiredPermission<'_>,
    facts: &PolicyRequestContext<'_>,
) -> OperationResult<()> {
    let role = access.role_of(user);
    let rules = match &access.rules {
        Ok(rules) => rules,
        Err(_) if role == CallerRole::Owner => return Ok(()),
        Err(why) => return Err(denied(why)),
    };
    facts.check_tags()?;
    let policy = rules.policy.as_ref();
    let mut request = AccessRequest {
        principal: match user.kind {
            UserKind::Anonymous => Principal::Anonymous,
            UserKind::Keys | UserKind::Peer => user.principal(),
        },
        action: need.action,
        bucket: &need.bucket,
        key: Some(&*need.key).filter(|_| need.action.is_of_objects()),
        keys: facts.condition_keys(user, need),
    };
    if need.action.is_of_objects() && policy.is_some_and(fordway_policy::Policy::needs_existing_tags) {
        for (name, value) in existing_tags(user, need).await? {
            request.keys.add(format!("s3:existingobjecttag/{name}"), value);
        }
    }
    let waits_for_tags = need.tags_are_in_body
        && !facts.has_tags()
        && policy.is_some_and(fordway_policy::Policy::needs_request_tags);
    if waits_for_tags && role != CallerRole::Anonymous {
        return Ok(());
    }
    match rules.rule(role, &request) {
        // Anonymous callers never read or change a policy, because anyone who can change the policy can permit all
        // other actions.
        ruling if ruling.is_permitted() && role == CallerRole::Anonymous && is_of_policy(need.action) => {
            let detail =
                "only the bucket's owner reads and changes its policy; sign the request as the owner";
            let words = "The specified method is not allowed against this resource.";
            Err(S3Failure::aws("MethodNotAllowed", StatusCode::METHOD_NOT_ALLOWED, words, detail))
        }
        ruling if ruling.is_permitted() => Ok(()),
        BucketAccessDecision::NotAllowed | BucketAccessDecision::Anonymous
            if is_missing(user, rules, role, &mut request, need).await =>
        {
            Err(fordway_store::Error::from(ErrorKind::NoSuchKey).into())
        }
        ruling => Err(refusal(ruling, user, need)),
    }
}

/// Returns whether an action reads or changes the policy itself. No policy can permit these actions for anonymous
/// requests (see PutBucketPolicy in the S3 API reference).
fn is_of_policy(action: Action) -> bool {
    ["DeleteBucketPolicy", "GetBucketPolicy", "PutBucketPolicy"].contains(&action.short_name())
}

/// Returns the tags of the requested object. Returns no tags if the object does not exist.
async fn existing_tags(user: &Arc<User>, need: &RequiredPermission<'_>) -> OperationResult<Tags> {
    let (Ok(bucket), Ok(key)) = (Bucket::new(&*need.bucket), Key::new(&*need.key)) else {
        return Ok(Tags::new());
    };
    let version = need.version.as_deref().map(VersionId::new).transpose();
    let Ok(version) = version else { return Ok(Tags::new()) };
    let tags = move |store: &dyn Store| match store.tags(&bucket, &key, version.as_ref()) {
        Err(error) if is_about_missing(error.kind()) => Ok(Tags::new()),
        found => Ok(found?),
    };
    Ok(look_up(user.clone(), tags).await?)
}

fn is_about_missing(kind: ErrorKind) -> bool {
    use ErrorKind::{MethodNotAllowed, NoSuchBucket, NoSuchKey, NoSuchVersion};
    matches!(kind, NoSuchKey | NoSuchVersion | NoSuchBucket | MethodNotAllowed)
}

/// Returns whether a request reads a missing object whose key the caller may list. Such a caller is permitted to learn
/// that the object is missing.
async fn is_missing<'r>(
    user: &Arc<User>,
    rules: &fordway_policy::BucketAccessRules,
    role: CallerRole,
    request: &mut AccessRequest<'r>,
    need: &'r RequiredPermission<'_>,
) -> bool {
    let is_read = ["GetObject", "GetObjectVersion"].contains(&need.action.short_name());
    let (Some(list), true) = (Action::new("ListBucket"), is_read) else { return false };
    (request.action, request.key) = (list, None);
    request.keys.replace("s3:prefix", [Cow::Borrowed(&*need.key)]);
    let (Ok(bucket), Ok(key)) = (Bucket::new(&*need.bucket), Key::new(&*need.key)) else { return false };
    if !rules.rule(role, request).is_permitted() {
        return false;
    }
    let head = move |store: &dyn Store| Ok(store.head(&bucket, &key, &GetOptions::default()).map(drop));
    let found = look_up(user.clone(), head).await;
    matches!(found, Ok(Err(error)) if error.kind() == ErrorKind::NoSuchKey)
}

fn refusal(ruling: BucketAccessDecision, user: &User, need: &RequiredPermission<'_>) -> S3Failure {
    let action = need.action;
    match ruling {
        BucketAccessDecision::Denied(_) => {
            let slash = if action.is_of_objects() { "/" } else { "" };
            let key = if action.is_of_objects() { &*need.key } else { "" };
            let words = format!(
                "User: {} is not authorized to perform: {action} on resource: \"arn:aws:s3:::{}{slash}{key}\" with an \
                 explicit deny in a resource-based policy",
                user.name, need.bucket
            );
            let detail = format!("the bucket's policy denies you {action}; ask the bucket's owner");
            S3Failure::aws("AccessDenied", StatusCode::FORBIDDEN, &words, &detail)
        }
        BucketAccessDecision::Restricted => denied(
            "the bucket's public access block limits its public policy to the bucket's owner; ask the owner",
        ),
        BucketAccessDecision::Anonymous => unsigned(),
        _ => denied(&format!("the bucket's policy does not allow you {action}; ask the bucket's owner")),
    }
}

/// Returns the error for an anonymous request that needs a signature.
pub(crate) fn unsigned() -> S3Failure {
    denied(SIGN)
}

/// The gateway's own message for an anonymous request that needs a signature.
const SIGN: &str = "anonymous requests are refused; sign them (SigV4)";

/// AWS's message for an anonymous request, used for most operations that need a signature.
const NO_ANONYMOUS: &str = "Anonymous users cannot invoke this API. Please authenticate.";

/// The operations that no policy can permit for anonymous requests, with AWS's messages.
const NEVER_ANONYMOUS: [(&str, &str); 9] = [
    ("CopyObject", "Anonymous users cannot copy objects. Please authenticate."),
    ("CreateBucket", NO_ANONYMOUS),
    ("CreateMultipartUpload", "Anonymous users cannot initiate multipart uploads. Please authenticate."),
    ("DeleteBucketOwnershipControls", "s3:PutBucketOwnershipControls does not support Anonymous requests!"),
    ("GetBucketOwnershipControls", "s3:GetBucketOwnershipControls does not support Anonymous requests!"),
    ("PutBucketAcl", NO_ANONYMOUS),
    ("PutBucketOwnershipControls", "s3:PutBucketOwnershipControls does not support Anonymous requests!"),
    ("PutObjectAcl", NO_ANONYMOUS),
    ("SelectObjectContent", NO_ANONYMOUS),
];

/// Returns AWS's error for a request that the rules do not permit. `why` is the gateway's own explanation.
pub(crate) fn denied(why: &str) -> S3Failure {
    S3Failure::aws("AccessDenied", StatusCode::FORBIDDEN, "Access Denied.", why)
}
