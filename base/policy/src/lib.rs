//! Bucket policies: decides whether a policy document allows a request. This crate uses no files, sockets or clocks.
//!
//! A [`Policy`] is parsed once. [`Policy::decide`] then evaluates a request, and seldom allocates memory.
//! [`BucketAccessRules`] combines the policy with the bucket's ACL, its public access block and the caller's role.
//! [`Policy::explain`] reports for each statement whether it applies, or which of its elements does not match.
//!
//! The language follows AWS (see "IAM JSON policy elements reference" in the IAM user guide). A document with an
//! unsupported element, operator, key or action is rejected, so that no part of a policy is silently ignored.
//!
//! * `document`: the elements of a policy; `json`: the JSON values that contain them
//! * `action`, `principal`, `pattern`, `condition`: the elements of a statement
//! * `request`: the properties of a request that a policy can refer to
//! * `acl`: the canned ACLs of buckets
//! * `decision`: the evaluation; `rules`: the rules of a bucket as a whole; `public`: the meaning of "public"

mod acl;
mod action;
mod condition;
mod decision;
mod document;
mod json;
mod pattern;
mod principal;
mod public;
mod request;
mod rules;
mod wildcard;

pub use acl::{AclGrant, AclGroup, AclPermission, CannedAcl};
pub use action::{Action, ActionSet};
pub use condition::{canonical_key, is_known_key};
pub use decision::{Decision, StatementMatchReport, StatementMismatch, Verdict};
pub use document::{Effect, MAX_POLICY_BYTES, Policy, PolicyError, PolicyVersion, Statement};
pub use principal::{Principal, session_arn};
pub use public::ANONYMOUS_USER_ID;
pub use request::{AccessRequest, ConditionKeyValues};
pub use rules::{BucketAccessDecision, BucketAccessRules, CallerRole, PublicAccessBlock};
