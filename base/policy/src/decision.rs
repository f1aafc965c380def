//! The evaluation of a policy (see "Policy evaluation logic" in the IAM user guide): a request is denied if any
//! statement denies it. Otherwise, the request is allowed if a statement allows it.

use crate::document::{Effect, Policy, Statement};
use crate::request::AccessRequest;

/// The result of an evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// A statement allows the request, and no statement denies it.
    Allowed,
    /// A statement denies the request.
    Denied,
    /// No statement applies to the request.
    NotAllowed,
}

/// The result of an evaluation, and the statement that determined it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Whether the request is allowed, denied, or neither.
    pub verdict: Verdict,
    /// The index of the statement that determined the result; `None` if no statement applies.
    pub statement: Option<usize>,
}

/// The first element of a statement that does not match a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StatementMismatch {
    /// The caller is not among the statement's principals.
    Principal,
    /// The action is not among the statement's actions.
    Action,
    /// The resource is not among the statement's resources.
    Resource,
    /// The condition with this operator and key does not hold.
    Condition {
        /// The operator as written in the document.
        operator: String,
        /// The key, in lower case.
        key: String,
    },
}

/// Whether a statement applies to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatementMatchReport {
    /// The `Sid` of the statement; `None` if the statement has no `Sid`.
    pub sid: Option<String>,
    /// Whether the statement allows or denies.
    pub effect: Effect,
    /// The first element that does not match; `None` if the statement applies.
    pub mismatch: Option<StatementMismatch>,
}

impl Policy {
    /// Decides whether the policy allows a request. Cost: one pass over the statements. Allocates only for patterns
    /// with variables, conditions on ARNs, comparisons that ignore case, and very long resource names.
    pub fn decide(&self, request: &AccessRequest<'_>) -> Decision {
        let mut allowed = None;
        for (at, statement) in self.statements.iter().enumerate() {
            let decides = statement.effect == Effect::Deny || allowed.is_none();
            if !decides || !statement.applies_to(request) {
                continue;
            }
            match statement.effect {
                Effect::Deny => return Decision { verdict: Verdict::Denied, statement: Some(at) },
                Effect::Allow => allowed = Some(at),
            }
        }
        let verdict = if allowed.is_some() { Verdict::Allowed } else { Verdict::NotAllowed };
        Decision { verdict, statement: allowed }
    }

    /// Returns a report for each statement: whether the statement applies to a request or, if it does not, its first
    /// element that does not match.
    pub fn explain(&self, request: &AccessRequest<'_>) -> Vec<StatementMatchReport> {
        let report = |statement: &Statement| StatementMatchReport {
            sid: statement.sid.clone(),
            effect: statement.effect,
            mismatch: statement.mismatch(request),
        };
        self.statements.iter().map(report).collect()
    }
}

impl Statement {
    fn applies_to(&self, request: &AccessRequest<'_>) -> bool {
        self.actions.has(request.action)
            && self.has_principal(request)
            && self.has_resource(request)
            && self.conditions.iter().all(|condition| condition.is_met_by(request))
    }

    fn has_principal(&self, request: &AccessRequest<'_>) -> bool {
        self.principals.has(request.principal) != self.excludes_principals
    }

    fn has_resource(&self, request: &AccessRequest<'_>) -> bool {
        let mut room = [0; RESOURCE_BYTES];
        let mut long = String::new();
        let resource = resource(request, &mut room, &mut long);
        let fits = self.resources.iter().any(|pattern| pattern.fits(resource, request));
        fits != self.excludes_resources
    }

    fn mismatch(&self, request: &AccessRequest<'_>) -> Option<StatementMismatch> {
        if !self.has_principal(request) {
            return Some(StatementMismatch::Principal);
        }
        if !self.actions.has(request.action) {
            return Some(StatementMismatch::Action);
        }
        if !self.has_resource(request) {
            return Some(StatementMismatch::Resource);
        }
        let unmet = self.conditions.iter().find(|condition| !condition.is_met_by(request))?;
        Some(StatementMismatch::Condition { operator: unmet.operator.clone(), key: unmet.key.clone() })
    }
}

/// The size of the buffer for a resource name. The size is rounded up from the length of the longest bucket name in AWS
/// (63 bytes), a slash and the longest key (1,024 bytes).
const RESOURCE_BYTES: usize = 1152;

/// Returns the name of a request's resource, `BUCKET` or `BUCKET/KEY`. The name is written into `room`, or into `long`
/// if it does not fit into `room`.
fn resource<'m>(
    request: &AccessRequest<'_>,
    room: &'m mut [u8; RESOURCE_BYTES],
    long: &'m mut String,
) -> &'m str {
    let (bucket, key) = (request.bucket, request.key.unwrap_or_default());
    let length = bucket.len() + if request.key.is_some() { 1 + key.len() } else { 0 };
    if length > room.len() {
        long.extend([bucket, "/", key]);
        return long;
    }
    room[..bucket.len()].copy_from_slice(bucket.as_bytes());
    if request.key.is_some() {
        room[bucket.len()] = b'/';
        room[bucket.len() + 1..length].copy_from_slice(key.as_bytes());
    }
    std::str::from_utf8(&room[..length]).unwrap_or_default()
}
