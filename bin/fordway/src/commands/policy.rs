//! `policy explain` shows whether the users file and the rules of a bucket permit a request, and why.

use std::borrow::Cow;
use std::fmt;
use std::path::Path;

use fordway_command::{CommandContext, CommandExit, StorageAddress, file_error, shown_name};
use fordway_policy::{
    AccessRequest, BucketAccessDecision, BucketAccessRules, CallerRole, CannedAcl, ConditionKeyValues,
    Effect, Policy, Principal, PublicAccessBlock, StatementMatchReport, StatementMismatch,
};
use fordway_serve::{UsersFileEntry, read_users_file};
use fordway_store::{Bucket, BucketDocumentKind, Error, ErrorKind, Key, Result, Store};
use fordway_wire::s3_xml::XmlElement;
use serde::Serialize;

use crate::args::{ExplainArgs, PolicyArgs, PolicySubcommand};

/// The prefix of a condition key for a tag of the object; the name of the tag follows.
const EXISTING_TAG: &str = "s3:existingobjecttag/";
/// The condition key of the prefix of a listing.
const LISTED_PREFIX: &str = "s3:prefix";

pub(super) fn run(args: &PolicyArgs, context: &CommandContext) -> Result<CommandExit> {
    match &args.action {
        PolicySubcommand::Explain(args) => explain(args, context),
    }
}

fn explain(args: &ExplainArgs, context: &CommandContext) -> Result<CommandExit> {
    let (bucket, key) = target(args)?;
    let rules = match &args.file {
        Some(file) => {
            BucketAccessRules { policy: Some(from_file(file, &bucket)?), ..BucketAccessRules::default() }
        }
        None => stored_rules(&*context.store()?, &bucket)?,
    };
    let mut keys = ConditionKeyValues::default();
    add_keys(&mut keys, args);
    add_tags(&mut keys, args, &rules, (&bucket, key.as_deref()), context);
    let principal = match (&args.user, &args.role) {
        (Some(user), _) => Principal::User(user),
        (None, Some(role)) => Principal::Role { name: role, session: args.session.as_deref() },
        (None, None) => Principal::Anonymous,
    };
    let request =
        AccessRequest { principal, action: args.action, bucket: bucket.as_str(), key: key.as_deref(), keys };
    let role = match (args.anonymous, args.owner) {
        (true, _) => CallerRole::Anonymous,
        (false, true) => CallerRole::Owner,
        (false, false) => CallerRole::User,
    };
    let ruling = rules.rule(role, &request);
    let reports = rules.policy.as_ref().map(|policy| policy.explain(&request)).unwrap_or_default();
    let refusal = match &args.credentials {
        Some(file) => refusal_of_users_file(&read_users_file(file)?, args, (&bucket, key.as_deref())),
        None => None,
    };
    let permitted = refusal.is_none() && ruling.is_permitted();
    context.output.record(&PolicyDecisionOutput {
        kind: "policy",
        bucket: bucket.as_str(),
        key: key.as_deref(),
        action: args.action.to_string(),
        permitted,
        reason: refusal.map_or_else(|| reason(ruling, role).into(), Cow::from),
        not_checked: if permitted { not_checked(args) } else { Vec::new() },
        statement: deciding(ruling).map(|at| at + 1),
        statements: reports.iter().enumerate().map(StatementEvaluation::new).collect(),
    })?;
    Ok(if permitted { CommandExit::Ok } else { CommandExit::Denied })
}

/// Returns the reason why the users file refuses the request: the file has no such user or role, or the fields of the
/// entry do not permit the action. For a listing, the prefix is checked instead of a key.
fn refusal_of_users_file(
    entries: &[UsersFileEntry],
    args: &ExplainArgs,
    (bucket, key): (&Bucket, Option<&str>),
) -> Option<String> {
    let (kind, name) = match (&args.user, &args.role) {
        (Some(user), _) => ("user", user),
        (None, Some(role)) => ("role", role),
        // The users file has no entry for anonymous requests.
        (None, None) => return None,
    };
    let Some(entry) = entries.iter().find(|entry| entry.kind == kind && entry.name == *name) else {
        return Some(format!("the users file has no {kind} {}", shown_name(name)));
    };
    let prefix =
        args.conditions.iter().find(|(key, _)| key == LISTED_PREFIX).map(|(_, prefix)| prefix.as_str());
    let refused = entry.admit(args.action, bucket, key.or(prefix).unwrap_or_default()).err()?;
    Some(format!("the users file refuses it: {}", refused.detail()))
}

/// Returns the conditions that this command does not check. The gateway may refuse a permitted request because of these
/// conditions.
fn not_checked(args: &ExplainArgs) -> Vec<&'static str> {
    let users = "the users file (add --credentials FILE)";
    let anonymous = "whether the gateway serves anonymous requests (--anonymous-user)";
    let is_unread = !args.anonymous && args.credentials.is_none();
    let also = is_unread.then_some(users).or(args.anonymous.then_some(anonymous));
    also.into_iter().chain(["the permissions in the file system"]).collect()
}

/// Returns the bucket of the address and, if the action is on objects, the key. Errors: `InvalidArgument` if the
/// address has a key but the action is on buckets, or if it has no key but the action is on objects.
fn target(args: &ExplainArgs) -> Result<(Bucket, Option<String>)> {
    let wrong = |what: &str| {
        let why = format!("{} is an action on {what}; change the address or the action", args.action);
        Error::new(ErrorKind::InvalidArgument, why)
    };
    match StorageAddress::parse(&args.address)? {
        StorageAddress::S3(bucket, key) if key.is_empty() && !args.action.is_of_objects() => {
            Ok((bucket, None))
        }
        StorageAddress::S3(bucket, key) if !key.is_empty() && args.action.is_of_objects() => {
            Ok((bucket, Some(key)))
        }
        StorageAddress::S3(_, key) if key.is_empty() => Err(wrong("objects")),
        StorageAddress::S3(..) => Err(wrong("buckets")),
        _ => Err(Error::new(ErrorKind::InvalidArgument, "write s3://BUCKET or s3://BUCKET/KEY")),
    }
}

fn from_file(file: &Path, bucket: &Bucket) -> Result<Policy> {
    let document = std::fs::read(file).map_err(|error| file_error("reading", file.display(), error))?;
    parsed(&document, bucket)
}

/// Parses a policy. Errors: `InvalidArgument`.
pub(super) fn parsed(document: &[u8], bucket: &Bucket) -> Result<Policy> {
    let wrong = |error: fordway_policy::PolicyError| {
        Error::new(ErrorKind::InvalidArgument, format!("the policy is malformed: {error}"))
    };
    Policy::parse(document, bucket.as_str()).map_err(wrong)
}

fn stored_rules(store: &dyn Store, bucket: &Bucket) -> Result<BucketAccessRules> {
    let policy = store.document(bucket, &BucketDocumentKind::known("policy"))?;
    let block = store.document(bucket, &BucketDocumentKind::known("public-access-block"))?;
    let block = block.map(|block| XmlElement::read(&block)).transpose()?.unwrap_or_default();
    let is_set = |name| block.child(name).is_some_and(|flag| flag.text.trim() == "true");
    // Other services may have no ACLs, or may not show the ACL to the caller.
    let acl = match super::admin::acl::read(store, bucket) {
        Err(error) if matches!(error.kind(), ErrorKind::NotImplemented | ErrorKind::AccessDenied) => {
            CannedAcl::Private
        }
        acl => acl?,
    };
    Ok(BucketAccessRules {
        policy: policy.map(|document| parsed(&document, bucket)).transpose()?,
        acl,
        block: PublicAccessBlock {
            block_public_acls: is_set("BlockPublicAcls"),
            ignore_public_acls: is_set("IgnorePublicAcls"),
            block_public_policy: is_set("BlockPublicPolicy"),
            restrict_public_buckets: is_set("RestrictPublicBuckets"),
        },
    })
}

/// Adds the values of condition keys that every request by the caller has, unless the command line sets other values.
fn add_keys<'a>(keys: &mut ConditionKeyValues<'a>, args: &'a ExplainArgs) {
    let mut add = |key: &'static str, value: String| {
        if args.conditions.iter().all(|(known, _)| known != key) {
            keys.add(key, value);
        }
    };
    let now = std::time::SystemTime::now();
    match (&args.user, &args.role) {
        (Some(user), _) => {
            add("aws:username", user.clone());
            add("aws:userid", user.clone());
            add("aws:principalisawsservice", "false".to_owned());
            add("aws:principaltype", "User".to_owned());
            add("aws:principalarn", format!("arn:aws:iam:::user/{user}"));
        }
        (None, Some(role)) => {
            // The ID of a session contains the name of the session.
            if let Some(session) = &args.session {
                add("aws:userid", format!("{role}:{session}"));
            }
            add("aws:multifactorauthpresent", "false".to_owned());
            add("aws:principalisawsservice", "false".to_owned());
            add("aws:principaltype", "AssumedRole".to_owned());
            add("aws:principalarn", format!("arn:aws:iam:::role/{role}"));
            add("aws:tokenissuetime", fordway_wire::date::format_iso8601(now));
        }
        (None, None) => {
            add("aws:userid", fordway_policy::ANONYMOUS_USER_ID.to_owned());
            add("aws:principaltype", "Anonymous".to_owned());
        }
    }
    let seconds = now.duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_secs();
    add("aws:currenttime", fordway_wire::date::format_iso8601(now));
    add("aws:epochtime", seconds.to_string());
    add("aws:securetransport", "false".to_owned());
    add("aws:viaawsservice", "false".to_owned());
    for (key, value) in &args.conditions {
        keys.add(key.as_str(), value.as_str());
    }
}

/// Adds the tags of the object if a condition needs them, unless the command line sets tags. If the tags cannot be
/// read, prints a note, because the gateway may be able to read them.
fn add_tags(
    keys: &mut ConditionKeyValues<'_>,
    args: &ExplainArgs,
    rules: &BucketAccessRules,
    (bucket, key): (&Bucket, Option<&str>),
    context: &CommandContext,
) {
    let is_needed = rules.policy.as_ref().is_some_and(Policy::needs_existing_tags);
    let Some(key) = key.filter(|_| is_needed) else { return };
    if args.conditions.iter().any(|(known, _)| known.starts_with(EXISTING_TAG)) {
        return;
    }
    let found = context.store().and_then(|store| store.tags(bucket, &Key::new(key)?, None));
    match found {
        Ok(tags) => tags.into_iter().for_each(|(name, value)| keys.add(format!("{EXISTING_TAG}{name}"), value)),
        Err(error) if matches!(error.kind(), ErrorKind::NoSuchKey | ErrorKind::NoSuchBucket) => {}
        Err(error) => context.output.note(&format!(
            "the tags of the object are unknown ({error}); set them with --with s3:ExistingObjectTag/NAME=VALUE"
        )),
    }
}

fn reason(ruling: BucketAccessDecision, role: CallerRole) -> &'static str {
    match ruling {
        BucketAccessDecision::NotAllowed if role == CallerRole::User => {
            "no statement allows it; if the caller owns the bucket, add --owner"
        }
        BucketAccessDecision::NoPolicy => "the bucket has no policy",
        BucketAccessDecision::Owner => "the caller owns the bucket, and no statement denies it",
        BucketAccessDecision::Allowed(_) => "a statement allows it, and none denies it",
        BucketAccessDecision::AllowedByAcl => "the ACL of the bucket allows it, and no statement denies it",
        BucketAccessDecision::Denied(_) => "a statement denies it",
        BucketAccessDecision::NotAllowed => "no statement allows it",
        BucketAccessDecision::Restricted => {
            "the public access block limits a public policy to the bucket's owner"
        }
        BucketAccessDecision::Anonymous => "the request is not signed, and the bucket has no policy",
    }
}

fn deciding(ruling: BucketAccessDecision) -> Option<usize> {
    match ruling {
        BucketAccessDecision::Allowed(at) | BucketAccessDecision::Denied(at) => Some(at),
        _ => None,
    }
}

/// The rules' decision on a request.
#[derive(Serialize)]
struct PolicyDecisionOutput<'r> {
    kind: &'static str,
    bucket: &'r str,
    key: Option<&'r str>,
    action: String,
    permitted: bool,
    reason: Cow<'static, str>,
    /// The conditions that were not checked. The gateway may refuse a permitted request because of these conditions.
    not_checked: Vec<&'static str>,
    /// The number of the statement that decides, counting from 1.
    statement: Option<usize>,
    statements: Vec<StatementEvaluation>,
}

/// Whether a statement applies to the request.
#[derive(Serialize)]
struct StatementEvaluation {
    number: usize,
    sid: Option<String>,
    effect: &'static str,
    applies: bool,
    misfit: Option<String>,
}

impl StatementEvaluation {
    fn new((at, report): (usize, &StatementMatchReport)) -> Self {
        StatementEvaluation {
            number: at + 1,
            sid: report.sid.clone(),
            effect: if report.effect == Effect::Allow { "Allow" } else { "Deny" },
            applies: report.mismatch.is_none(),
            misfit: report.mismatch.as_ref().map(|mismatch| match mismatch {
                StatementMismatch::Principal => "Principal".to_owned(),
                StatementMismatch::Action => "Action".to_owned(),
                StatementMismatch::Resource => "Resource".to_owned(),
                StatementMismatch::Condition { operator, key } => format!("Condition {operator} {key}"),
            }),
        }
    }
}

impl fmt::Display for PolicyDecisionOutput<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.permitted { "permitted" } else { "refused" };
        let object = self.key.map(|key| format!("/{key}")).unwrap_or_default();
        write!(f, "{verdict}: {} on s3://{}{object}: {}", self.action, self.bucket, self.reason)?;
        for statement in &self.statements {
            let sid = statement.sid.as_ref().map(|sid| format!(" ({sid:?})")).unwrap_or_default();
            write!(f, "\n  statement {}{sid}, {}: ", statement.number, statement.effect)?;
            match &statement.misfit {
                None => f.write_str("applies")?,
                Some(misfit) => write!(f, "does not apply: {misfit} does not match")?,
            }
        }
        match self.not_checked[..] {
            [] => Ok(()),
            _ => write!(f, "\n  not checked: {}", self.not_checked.join("; ")),
        }
    }
}
