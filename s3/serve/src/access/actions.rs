//! The actions that each operation needs (see "Required permissions for Amazon S3 API operations" in the S3 user
//! guide).

use std::borrow::Cow;

use fordway_policy::Action;
use http::HeaderMap;

use crate::access::facts::PolicyRequestContext;
use crate::s3::{copy_source, rename_source};

/// An action, and the resource on which a caller needs it.
pub(super) struct RequiredPermission<'r> {
    pub(super) action: Action,
    pub(super) bucket: Cow<'r, str>,
    /// The key of the object; empty for an action on the bucket.
    pub(super) key: Cow<'r, str>,
    /// The version in the request.
    pub(super) version: Option<String>,
    /// Whether the request's body contains the tags of an object.
    pub(super) tags_are_in_body: bool,
}

/// The table of operations. Each entry contains an operation, its actions, and the actions that replace them if the
/// request names a version. If the last list is empty, the version makes no difference.
const ACTIONS: &[(&str, &[&str], &[&str])] = &[
    ("AbortMultipartUpload", &["AbortMultipartUpload"], &[]),
    ("CompleteMultipartUpload", &["PutObject"], &[]),
    ("CopyObject", &["PutObject"], &[]),
    // Creating a bucket needs no action, because a new bucket has no rules, and the store reports an error if the
    // bucket exists.
    ("CreateBucket", &[], &[]),
    ("CreateMultipartUpload", &["PutObject"], &[]),
    ("DeleteBucket", &["DeleteBucket"], &[]),
    ("DeleteBucketCors", &["PutBucketCORS"], &[]),
    ("DeleteBucketEncryption", &["PutEncryptionConfiguration"], &[]),
    ("DeleteBucketLifecycle", &["PutLifecycleConfiguration"], &[]),
    ("DeleteBucketOwnershipControls", &["PutBucketOwnershipControls"], &[]),
    ("DeleteBucketPolicy", &["DeleteBucketPolicy"], &[]),
    ("DeleteBucketReplication", &["PutReplicationConfiguration"], &[]),
    ("DeleteBucketTagging", &["PutBucketTagging"], &[]),
    ("DeleteBucketWebsite", &["DeleteBucketWebsite"], &[]),
    ("DeleteObject", &["DeleteObject"], &["DeleteObjectVersion"]),
    ("DeleteObjectTagging", &["DeleteObjectTagging"], &["DeleteObjectVersionTagging"]),
    // The operation itself checks the action for each key, after it has read the request's document.
    ("DeleteObjects", &[], &[]),
    ("DeletePublicAccessBlock", &["PutBucketPublicAccessBlock"], &[]),
    ("GetBucketAcl", &["GetBucketAcl"], &[]),
    ("GetBucketCors", &["GetBucketCORS"], &[]),
    ("GetBucketEncryption", &["GetEncryptionConfiguration"], &[]),
    ("GetBucketLifecycleConfiguration", &["GetLifecycleConfiguration"], &[]),
    ("GetBucketLocation", &["GetBucketLocation"], &[]),
    ("GetBucketNotificationConfiguration", &["GetBucketNotification"], &[]),
    ("GetBucketOwnershipControls", &["GetBucketOwnershipControls"], &[]),
    ("GetBucketPolicy", &["GetBucketPolicy"], &[]),
    ("GetBucketPolicyStatus", &["GetBucketPolicyStatus"], &[]),
    ("GetBucketReplication", &["GetReplicationConfiguration"], &[]),
    ("GetBucketTagging", &["GetBucketTagging"], &[]),
    ("GetBucketVersioning", &["GetBucketVersioning"], &[]),
    ("GetBucketWebsite", &["GetBucketWebsite"], &[]),
    ("GetObject", &["GetObject"], &["GetObjectVersion"]),
    ("GetObjectAcl", &["GetObjectAcl"], &["GetObjectVersionAcl"]),
    (
        "GetObjectAttributes",
        &["GetObject", "GetObjectAttributes"],
        &["GetObjectVersion", "GetObjectVersionAttributes"],
    ),
    ("GetObjectLegalHold", &["GetObjectLegalHold"], &[]),
    ("GetObjectLockConfiguration", &["GetBucketObjectLockConfiguration"], &[]),
    ("GetObjectRetention", &["GetObjectRetention"], &[]),
    ("GetObjectTagging", &["GetObjectTagging"], &["GetObjectVersionTagging"]),
    ("GetPublicAccessBlock", &["GetBucketPublicAccessBlock"], &[]),
    ("HeadBucket", &["ListBucket"], &[]),
    ("HeadObject", &["GetObject"], &["GetObjectVersion"]),
    ("ListMultipartUploads", &["ListBucketMultipartUploads"], &[]),
    ("ListObjects", &["ListBucket"], &[]),
    ("ListObjectsV2", &["ListBucket"], &[]),
    ("ListObjectVersions", &["ListBucketVersions"], &[]),
    ("ListParts", &["ListMultipartUploadParts"], &[]),
    ("PostObject", &["PutObject"], &[]),
    ("PutBucketAcl", &["PutBucketAcl"], &[]),
    ("PutBucketCors", &["PutBucketCORS"], &[]),
    ("PutBucketLifecycleConfiguration", &["PutLifecycleConfiguration"], &[]),
    ("PutBucketNotificationConfiguration", &["PutBucketNotification"], &[]),
    ("PutBucketOwnershipControls", &["PutBucketOwnershipControls"], &[]),
    ("PutBucketPolicy", &["PutBucketPolicy"], &[]),
    ("PutBucketTagging", &["PutBucketTagging"], &[]),
    ("PutBucketVersioning", &["PutBucketVersioning"], &[]),
    ("PutObject", &["PutObject"], &[]),
    ("PutObjectAcl", &["PutObjectAcl"], &["PutObjectVersionAcl"]),
    ("PutObjectLegalHold", &["PutObjectLegalHold"], &[]),
    ("PutObjectLockConfiguration", &["PutBucketObjectLockConfiguration"], &[]),
    ("PutObjectRetention", &["PutObjectRetention"], &[]),
    ("PutObjectTagging", &["PutObjectTagging"], &["PutObjectVersionTagging"]),
    ("PutPublicAccessBlock", &["PutBucketPublicAccessBlock"], &[]),
    ("RenameObject", &["PutObject"], &[]),
    ("UploadPart", &["PutObject"], &[]),
    ("UploadPartCopy", &["PutObject"], &[]),
];

/// Request headers that require an additional action when an object is created.
const BY_HEADER: &[(&str, &str)] = &[
    ("x-amz-acl", "PutObjectAcl"),
    ("x-amz-grant-full-control", "PutObjectAcl"),
    ("x-amz-grant-read", "PutObjectAcl"),
    ("x-amz-grant-read-acp", "PutObjectAcl"),
    ("x-amz-grant-write-acp", "PutObjectAcl"),
    ("x-amz-object-lock-legal-hold", "PutObjectLegalHold"),
    ("x-amz-object-lock-mode", "PutObjectRetention"),
    ("x-amz-object-lock-retain-until-date", "PutObjectRetention"),
    ("x-amz-tagging", "PutObjectTagging"),
];
/// The operations that create an object, and whose headers can therefore require an action of [`BY_HEADER`].
const MAKING: [&str; 4] = ["CopyObject", "CreateMultipartUpload", "PostObject", "PutObject"];

/// The operations that can have a condition on the ETag of the object. The response reveals whether the object has this
/// ETag, so the caller must be allowed to read the object (see "Conditional writes" and "Conditional deletes" in the S3
/// user guide).
const CONDITIONAL: [&str; 5] =
    ["CompleteMultipartUpload", "CopyObject", "DeleteObject", "PutObject", "RenameObject"];

/// The operations that can bypass a retention in governance mode, if a header requests the bypass.
const BYPASSING: [&str; 2] = ["DeleteObject", "PutObjectRetention"];
const BYPASS: &str = "x-amz-bypass-governance-retention";

/// Returns whether [`ACTIONS`] contains an operation.
#[cfg(test)]
pub(super) fn knows(operation: &str) -> bool {
    ACTIONS.iter().any(|(name, ..)| *name == operation)
}

/// Returns the actions that a request needs. An unsupported operation, which is refused later, needs `s3:ListBucket`.
pub(super) fn needed<'r>(
    operation: &str,
    (bucket, key): (&'r str, &'r str),
    facts: &PolicyRequestContext<'r>,
) -> Vec<RequiredPermission<'r>> {
    let version = facts.version();
    let need = |name: &&str| {
        Action::new(name).map(|action| RequiredPermission {
            action,
            bucket: Cow::Borrowed(bucket),
            key: Cow::Borrowed(key),
            version: version.clone(),
            tags_are_in_body: operation == "PutObjectTagging",
        })
    };
    let Some((_, plain, of_version)) = ACTIONS.iter().find(|(name, ..)| *name == operation) else {
        // An unsupported operation needs an action too, because its error reveals whether the bucket exists.
        return ["ListBucket"].iter().filter_map(need).collect();
    };
    let is_of_version = version.is_some() && !of_version.is_empty();
    let mut needs: Vec<_> = if is_of_version { of_version } else { plain }.iter().filter_map(need).collect();
    if MAKING.contains(&operation) {
        for (_, action) in BY_HEADER.iter().filter(|(header, _)| facts.header(header).is_some()) {
            let is_new =
                Action::new(action).is_some_and(|action| needs.iter().all(|need| need.action != action));
            needs.extend([action].into_iter().filter(|_| is_new).filter_map(need));
        }
    }
    if BYPASSING.contains(&operation)
        && facts.header(BYPASS).is_some_and(|text| text.eq_ignore_ascii_case("true"))
    {
        needs.extend(["BypassGovernanceRetention"].iter().filter_map(need));
    }
    if CONDITIONAL.contains(&operation) && facts.names_etag() {
        needs.extend(["GetObject"].iter().filter_map(need));
    }
    match operation {
        "CopyObject" | "UploadPartCopy" => needs.extend(source(facts)),
        "RenameObject" => needs.extend(renamed(bucket, facts)),
        _ => {}
    }
    needs
}

/// Returns the actions that a rename needs on its source object. The operation itself reports an invalid source name.
fn renamed<'r>(bucket: &'r str, facts: &PolicyRequestContext<'r>) -> Vec<RequiredPermission<'r>> {
    let key = facts.headers().and_then(|headers| rename_source(bucket, headers).ok());
    let need = |name: &&str| {
        Some(RequiredPermission {
            action: Action::new(name)?,
            bucket: Cow::Borrowed(bucket),
            key: Cow::Owned(key.as_ref()?.as_str().to_owned()),
            version: None,
            tags_are_in_body: false,
        })
    };
    ["GetObject", "DeleteObject"].iter().filter_map(need).collect()
}

/// Returns the actions that a copy or a rename needs if the new object gets the tags of the source: one to read the
/// source's tags, and one to write them. Returns `None` if the request replaces the tags, or if its source is invalid
/// (see CopyObject in the S3 API reference).
pub(super) fn of_copied_tags<'r>(
    operation: &str,
    (bucket, key): (&'r str, &'r str),
    facts: &PolicyRequestContext<'r>,
) -> Option<[RequiredPermission<'r>; 2]> {
    let read = match operation {
        "RenameObject" => renamed(bucket, facts).into_iter().next()?,
        _ if facts.replaces_tags() => return None,
        _ => source(facts)?,
    };
    let name = if read.version.is_some() { "GetObjectVersionTagging" } else { "GetObjectTagging" };
    let write = RequiredPermission {
        action: Action::new("PutObjectTagging")?,
        bucket: Cow::Borrowed(bucket),
        key: Cow::Borrowed(key),
        version: None,
        tags_are_in_body: false,
    };
    Some([RequiredPermission { action: Action::new(name)?, ..read }, write])
}

/// Response headers that require an action in addition to the action of the read itself. Each entry contains the
/// header, the action, and the action for a request that names a version (see GetObject in the S3 API reference).
const HIDDEN: [(&str, &str, &str); 4] = [
    ("x-amz-tagging-count", "GetObjectTagging", "GetObjectVersionTagging"),
    ("x-amz-object-lock-mode", "GetObjectRetention", "GetObjectRetention"),
    ("x-amz-object-lock-retain-until-date", "GetObjectRetention", "GetObjectRetention"),
    ("x-amz-object-lock-legal-hold", "GetObjectLegalHold", "GetObjectLegalHold"),
];

/// Returns the headers of a response that require an additional action, each with its action.
pub(super) fn of_headers<'r>(
    headers: &HeaderMap,
    (bucket, key): (&'r str, &'r str),
    facts: &PolicyRequestContext<'r>,
) -> Vec<(&'static str, RequiredPermission<'r>)> {
    let version = facts.version();
    let present = HIDDEN.iter().filter(|(header, ..)| headers.contains_key(*header));
    let need = |(header, plain, of_version): &(&'static str, &str, &str)| {
        let name = if version.is_some() { of_version } else { plain };
        let need = RequiredPermission {
            action: Action::new(name)?,
            bucket: Cow::Borrowed(bucket),
            key: Cow::Borrowed(key),
            version: version.clone(),
            tags_are_in_body: false,
        };
        Some((*header, need))
    };
    present.filter_map(need).collect()
}

/// Returns the action that a copy needs on its source object. The operation itself reports an invalid source name.
fn source<'r>(facts: &PolicyRequestContext<'r>) -> Option<RequiredPermission<'r>> {
    let (bucket, key, version) = copy_source(facts.headers()?).ok()?;
    let name = if version.is_some() { "GetObjectVersion" } else { "GetObject" };
    Some(RequiredPermission {
        action: Action::new(name)?,
        bucket: Cow::Owned(bucket.as_str().to_owned()),
        key: Cow::Owned(key.as_str().to_owned()),
        version: version.map(|version| version.as_str().to_owned()),
        tags_are_in_body: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gate::OperationRule;

    #[test]
    fn each_operation_that_is_offered_has_its_actions() {
        let unknown: Vec<_> = OperationRule::offered()
            .filter(|operation| operation.name != "ListBuckets" && !knows(operation.name))
            .map(|operation| operation.name)
            .collect();
        assert_eq!(unknown, [""; 0]);
    }

    #[test]
    fn what_is_renamed_and_what_bypasses_retention_needs_actions_of_its_own() {
        let uri = http::Uri::from_static("/b/to");
        let actions = |operation: &str, header: (&'static str, &'static str)| -> Vec<(String, String)> {
            let headers = http::HeaderMap::from_iter([(
                http::HeaderName::from_static(header.0),
                http::HeaderValue::from_static(header.1),
            )]);
            let facts = PolicyRequestContext::new(&headers, &uri, None);
            let needs = needed(operation, ("b", "to"), &facts);
            needs.iter().map(|need| (need.action.to_string(), need.key.to_string())).collect()
        };
        let on = |name: &str, key: &str| (format!("s3:{name}"), key.to_owned());
        assert_eq!(
            actions("RenameObject", ("x-amz-rename-source", "/b/from")),
            [on("PutObject", "to"), on("GetObject", "from"), on("DeleteObject", "from")]
        );
        assert_eq!(
            actions("DeleteObject", (BYPASS, "true")),
            [on("DeleteObject", "to"), on("BypassGovernanceRetention", "to")]
        );
        assert_eq!(actions("DeleteObject", (BYPASS, "false")), [on("DeleteObject", "to")]);
        for header in ["if-match", "if-none-match"] {
            assert_eq!(
                actions("PutObject", (header, "\"tag\"")),
                [on("PutObject", "to"), on("GetObject", "to")]
            );
            assert_eq!(actions("PutObject", (header, "*")), [on("PutObject", "to")]);
        }
    }

    #[test]
    fn each_name_is_that_of_an_action() {
        let names = ACTIONS.iter().flat_map(|(_, plain, of_version)| plain.iter().chain(*of_version));
        for name in names.chain(BY_HEADER.iter().map(|(_, name)| name)) {
            assert!(Action::new(name).is_some(), "{name}");
        }
    }
}
