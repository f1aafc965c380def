//! The rules of a bucket as a whole: its policy, its ACL, its public access block, and the caller's role.

use crate::acl::CannedAcl;
use crate::decision::{Decision, Verdict};
use crate::document::Policy;
use crate::request::AccessRequest;

/// The caller's role in a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallerRole {
    /// The user who owns the bucket's directory, or root.
    Owner,
    /// Another user with a key pair.
    User,
    /// An anonymous caller, whose requests are not signed.
    Anonymous,
}

/// The public access block of a bucket. By default, all settings are off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PublicAccessBlock {
    /// Rejects public access control lists (ACLs).
    pub block_public_acls: bool,
    /// Ignores public ACLs.
    pub ignore_public_acls: bool,
    /// Rejects public policies.
    pub block_public_policy: bool,
    /// Limits a public policy to the bucket's owner.
    pub restrict_public_buckets: bool,
}

/// The policy, the ACL and the public access block of a bucket.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BucketAccessRules {
    /// The policy; `None` if the bucket has no policy.
    pub policy: Option<Policy>,
    /// The ACL; private if the bucket has no ACL, or if its ownership controls disable ACLs.
    pub acl: CannedAcl,
    /// The public access block.
    pub block: PublicAccessBlock,
}

/// Whether a bucket's rules allow a request, and the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BucketAccessDecision {
    /// The bucket has no policy, so only the file system checks access by users.
    NoPolicy,
    /// The caller owns the bucket, and no statement denies the request.
    Owner,
    /// A statement allows the request, and no statement denies it.
    Allowed(usize),
    /// The ACL allows the request, and no statement denies it.
    AllowedByAcl,
    /// A statement denies the request.
    Denied(usize),
    /// The bucket has a policy, and neither a statement nor the ACL allows the request.
    NotAllowed,
    /// The policy is public, and the bucket's public access block limits a public policy to the owner.
    Restricted,
    /// The request is anonymous, the bucket has no policy, and the ACL does not allow the request.
    Anonymous,
}

impl BucketAccessDecision {
    /// Returns whether the request is permitted. The file system also checks a permitted request.
    pub fn is_permitted(self) -> bool {
        matches!(
            self,
            BucketAccessDecision::NoPolicy
                | BucketAccessDecision::Owner
                | BucketAccessDecision::Allowed(_)
                | BucketAccessDecision::AllowedByAcl
        )
    }
}

impl BucketAccessRules {
    /// Returns whether the rules permit every request of a user. Anonymous requests still need
    /// [`BucketAccessRules::rule`].
    pub fn are_open_to_users(&self) -> bool {
        self.policy.is_none()
    }

    /// Decides whether the rules permit a request.
    pub fn rule(&self, role: CallerRole, request: &AccessRequest<'_>) -> BucketAccessDecision {
        let is_in_acl = || !self.block.ignore_public_acls && self.acl.allows(request);
        let Some(policy) = &self.policy else {
            return match role {
                CallerRole::Anonymous if is_in_acl() => BucketAccessDecision::AllowedByAcl,
                CallerRole::Anonymous => BucketAccessDecision::Anonymous,
                CallerRole::Owner | CallerRole::User => BucketAccessDecision::NoPolicy,
            };
        };
        let decision = policy.decide(request);
        match (role, decision) {
            (_, Decision { verdict: Verdict::Denied, statement }) => {
                BucketAccessDecision::Denied(statement.unwrap_or(0))
            }
            (CallerRole::Owner, _) => BucketAccessDecision::Owner,
            _ if self.block.restrict_public_buckets && policy.is_public() => BucketAccessDecision::Restricted,
            (_, Decision { verdict: Verdict::Allowed, statement }) => {
                BucketAccessDecision::Allowed(statement.unwrap_or(0))
            }
            _ if is_in_acl() => BucketAccessDecision::AllowedByAcl,
            _ => BucketAccessDecision::NotAllowed,
        }
    }
}
