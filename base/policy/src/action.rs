//! The actions on buckets and objects that policies allow and deny (Service authorization reference, "Actions,
//! resources, and condition keys for Amazon S3").

use std::sync::LazyLock;

use crate::pattern::Pattern;

/// An action on a bucket or an object, such as `s3:GetObject`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Action(u8);

/// Actions on buckets, in no particular order.
const OF_BUCKETS: [&str; 57] = [
    "CreateBucket",
    "CreateBucketMetadataTableConfiguration",
    "DeleteBucket",
    "DeleteBucketMetadataTableConfiguration",
    "DeleteBucketPolicy",
    "DeleteBucketWebsite",
    "GetAccelerateConfiguration",
    "GetAnalyticsConfiguration",
    "GetBucketAcl",
    "GetBucketCORS",
    "GetBucketLocation",
    "GetBucketLogging",
    "GetBucketMetadataTableConfiguration",
    "GetBucketNotification",
    "GetBucketObjectLockConfiguration",
    "GetBucketOwnershipControls",
    "GetBucketPolicy",
    "GetBucketPolicyStatus",
    "GetBucketPublicAccessBlock",
    "GetBucketRequestPayment",
    "GetBucketTagging",
    "GetBucketVersioning",
    "GetBucketWebsite",
    "GetEncryptionConfiguration",
    "GetIntelligentTieringConfiguration",
    "GetInventoryConfiguration",
    "GetLifecycleConfiguration",
    "GetMetricsConfiguration",
    "GetReplicationConfiguration",
    "ListBucket",
    "ListBucketMultipartUploads",
    "ListBucketVersions",
    "PutAccelerateConfiguration",
    "PutAnalyticsConfiguration",
    "PutBucketAcl",
    "PutBucketCORS",
    "PutBucketLogging",
    "PutBucketNotification",
    "PutBucketObjectLockConfiguration",
    "PutBucketOwnershipControls",
    "PutBucketPolicy",
    "PutBucketPublicAccessBlock",
    "PutBucketRequestPayment",
    "PutBucketTagging",
    "PutBucketVersioning",
    "PutBucketWebsite",
    "PutEncryptionConfiguration",
    "PutIntelligentTieringConfiguration",
    "PutInventoryConfiguration",
    "PutLifecycleConfiguration",
    "PutMetricsConfiguration",
    "PutReplicationConfiguration",
    "TagResource",
    "UntagResource",
    "ListTagsForResource",
    "UpdateBucketMetadataInventoryTableConfiguration",
    "UpdateBucketMetadataJournalTableConfiguration",
];

/// Actions on objects, in no particular order.
const OF_OBJECTS: [&str; 41] = [
    "AbortMultipartUpload",
    "BypassGovernanceRetention",
    "DeleteObject",
    "DeleteObjectTagging",
    "DeleteObjectVersion",
    "DeleteObjectVersionTagging",
    "GetObject",
    "GetObjectAcl",
    "GetObjectAttributes",
    "GetObjectLegalHold",
    "GetObjectRetention",
    "GetObjectTagging",
    "GetObjectTorrent",
    "GetObjectVersion",
    "GetObjectVersionAcl",
    "GetObjectVersionAttributes",
    "GetObjectVersionForReplication",
    "GetObjectVersionTagging",
    "GetObjectVersionTorrent",
    "InitiateReplication",
    "ListMultipartUploadParts",
    "ObjectOwnerOverrideToBucketOwner",
    "PutObject",
    "PutObjectAcl",
    "PutObjectLegalHold",
    "PutObjectRetention",
    "PutObjectTagging",
    "PutObjectVersionAcl",
    "PutObjectVersionTagging",
    "ReplicateDelete",
    "ReplicateObject",
    "ReplicateTags",
    "RestoreObject",
    "GetObjectAnnotation",
    "PutObjectAnnotation",
    "DeleteObjectAnnotation",
    "GetObjectVersionAnnotation",
    "PutObjectVersionAnnotation",
    "DeleteObjectVersionAnnotation",
    "ListObjectAnnotations",
    "UpdateObjectEncryption",
];

const COUNT: usize = OF_BUCKETS.len() + OF_OBJECTS.len();
const _: () = assert!(COUNT <= 128, "a set of actions has a bit for each action");

/// The names of all actions in lower case, in the order of the actions.
static LOWER_CASE_NAMES: LazyLock<Vec<String>> =
    LazyLock::new(|| Action::all().map(|action| action.short_name().to_ascii_lowercase()).collect());

impl Action {
    /// Returns the action with this name, without its prefix `s3:`; `None` if no action has this name. Case is ignored.
    pub fn new(name: &str) -> Option<Self> {
        Action::all().find(|action| action.short_name().eq_ignore_ascii_case(name))
    }

    /// Returns all actions.
    pub fn all() -> impl Iterator<Item = Action> {
        (0..COUNT).map(|at| Action(at as u8))
    }

    /// Returns the name without its prefix `s3:`, such as `GetObject`.
    pub fn short_name(self) -> &'static str {
        let at = usize::from(self.0);
        OF_BUCKETS.get(at).copied().unwrap_or_else(|| OF_OBJECTS[at - OF_BUCKETS.len()])
    }

    /// Returns whether the action's resource is an object rather than a bucket.
    pub fn is_of_objects(self) -> bool {
        usize::from(self.0) >= OF_BUCKETS.len()
    }
}

impl std::fmt::Display for Action {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "s3:{}", self.short_name())
    }
}

/// A set of actions, stored as one bit for each action.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ActionSet(u128);

impl ActionSet {
    /// Returns the actions that match a pattern such as `s3:Get*` or `*`; `None` if the pattern matches no action.
    pub(crate) fn matching(pattern: &str) -> Option<Self> {
        let name = match pattern {
            "*" => "*",
            _ => pattern.get(..3).filter(|start| start.eq_ignore_ascii_case("s3:")).map(|_| &pattern[3..])?,
        };
        let is_of_names = |byte: u8| byte.is_ascii_alphabetic() || matches!(byte, b'*' | b'?');
        if !name.bytes().all(is_of_names) {
            return None;
        }
        let pattern = Pattern::plain(&name.to_ascii_lowercase());
        let fitting = Action::all().zip(&*LOWER_CASE_NAMES).filter(|(_, name)| pattern.fits_plain(name));
        let set: ActionSet = fitting.map(|(action, _)| action).collect();
        (!set.is_empty()).then_some(set)
    }

    /// Returns whether the action is in the set.
    pub fn has(self, action: Action) -> bool {
        self.0 >> action.0 & 1 == 1
    }

    /// Returns whether the set is empty.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the actions that are not in the set.
    pub(crate) fn complement(self) -> Self {
        Action::all().filter(|action| !self.has(*action)).collect()
    }

    /// Returns the actions that are in at least one of the two sets.
    pub(crate) fn union(self, other: Self) -> Self {
        ActionSet(self.0 | other.0)
    }

    /// Returns whether two sets have an action in common.
    pub(crate) fn meets(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    pub(crate) fn of_objects() -> Self {
        Action::all().filter(|action| action.is_of_objects()).collect()
    }
}

impl FromIterator<Action> for ActionSet {
    fn from_iter<I: IntoIterator<Item = Action>>(actions: I) -> Self {
        ActionSet(actions.into_iter().fold(0, |set, action| set | 1 << action.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_name_actions() {
        let get = Action::new("GetObject").unwrap();
        for pattern in ["s3:GetObject", "S3:getobject", "s3:*", "*", "s3:Get*", "s3:?etObject", "s3:*Object"]
        {
            assert!(ActionSet::matching(pattern).unwrap().has(get), "{pattern}");
        }
        assert!(!ActionSet::matching("s3:Put*").unwrap().has(get));
        assert!(!ActionSet::matching("s3:GetObject").unwrap().complement().has(get));
    }

    #[test]
    fn patterns_without_an_action_are_refused() {
        for pattern in [
            "",
            "s3",
            "s3:",
            "s4:GetObject",
            "GetObject",
            "s3::GetObject",
            "s3:Put-Object",
            "s3:GetObject:",
            "s3:????",
            "s3:Abort?",
            "*GetObject",
            "sé:x",
            "s3:NoSuchThing",
        ] {
            assert_eq!(ActionSet::matching(pattern), None, "{pattern}");
        }
    }

    #[test]
    fn no_action_occurs_twice() {
        let mut names: Vec<_> = Action::all().map(Action::short_name).collect();
        names.sort_unstable();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]));
        assert!(Action::new("PutObject").unwrap().is_of_objects());
        assert!(!Action::new("ListBucket").unwrap().is_of_objects());
    }
}
