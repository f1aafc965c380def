//! Parses and checks policy documents, and defines the types of their elements.

use std::collections::{BTreeSet, HashMap};

use crate::action::ActionSet;
use crate::condition::{self, Condition};
use crate::json::{self, Json};
use crate::pattern::{Pattern, PatternSyntax};
use crate::principal::PrincipalSet;

/// The maximum size of a document in bytes (S3's limit).
pub const MAX_POLICY_BYTES: usize = 20 * 1024;

/// The prefix of the resources that a policy may name.
const RESOURCE: &str = "arn:aws:s3:::";

/// The reason why a document is not a valid policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyError {
    /// AWS's message for this error.
    pub words: String,
    /// The invalid statement and element, and advice for correcting them; empty if the message is sufficient.
    pub detail: String,
}

impl std::fmt::Display for PolicyError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.detail.is_empty() {
            true => f.write_str(&self.words),
            false => write!(f, "{}: {}", self.words, self.detail),
        }
    }
}

impl std::error::Error for PolicyError {}

fn error<T>(words: &str, detail: impl Into<String>) -> Result<T, PolicyError> {
    Err(PolicyError { words: words.to_owned(), detail: detail.into() })
}

/// The version of the policy language, which determines whether `${NAME}` is a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyVersion {
    /// The version without variables, which applies to documents that do not specify a version.
    V2008,
    /// The version with variables.
    V2012,
}

/// Whether a statement allows or denies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The statement allows the requests that it applies to, unless another statement denies them.
    Allow,
    /// The statement denies the requests that it applies to.
    Deny,
}

/// The policy of a bucket.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// The version of the policy language.
    pub version: PolicyVersion,
    /// The statements, in their order in the document.
    pub statements: Vec<Statement>,
}

/// A statement: an effect, and the requests to which it applies.
#[derive(Clone, Debug, PartialEq)]
pub struct Statement {
    /// The `Sid` of the statement; `None` if it is missing or empty.
    pub sid: Option<String>,
    /// Whether the statement allows or denies.
    pub effect: Effect,
    pub(crate) principals: PrincipalSet,
    /// Whether the statement applies to callers other than those named (`NotPrincipal`).
    pub(crate) excludes_principals: bool,
    pub(crate) actions: ActionSet,
    pub(crate) resources: Vec<Pattern>,
    /// Whether the statement applies to the resources that do not match (`NotResource`).
    pub(crate) excludes_resources: bool,
    pub(crate) conditions: Vec<Condition>,
}

impl Policy {
    /// Parses and checks the policy of `bucket`. Errors: AWS's message, and the details.
    pub fn parse(document: &[u8], bucket: &str) -> Result<Self, PolicyError> {
        if document.len() > MAX_POLICY_BYTES {
            let detail = format!("it has {} bytes, and the limit is {MAX_POLICY_BYTES}", document.len());
            return error("Policy exceeds the maximum allowed document size.", detail);
        }
        if document.first() != Some(&b'{') {
            return error("Policies must be valid JSON and the first byte must be '{'", "");
        }
        let root = match json::parse(document) {
            Ok(Json::Object(members)) => members,
            Ok(_) => return error("This policy contains invalid Json", "it is not an object"),
            Err((Some(name), why)) => {
                return error("This policy contains invalid Json", format!("{name:?} occurs twice: {why}"));
            }
            Err((None, why)) => return error("This policy contains invalid Json", why),
        };
        Policy::read(&root, bucket)
    }

    fn read(root: &[(String, Json)], bucket: &str) -> Result<Self, PolicyError> {
        if let Some((name, _)) =
            root.iter().find(|(name, _)| !["Version", "Id", "Statement"].contains(&name.as_str()))
        {
            return error(&format!("Unknown field {name}"), "a policy has Version, Id and Statement");
        }
        let Some(statements) = member(root, "Statement") else {
            return error("Missing required field Statement", "");
        };
        let version = match member(root, "Version") {
            None => PolicyVersion::V2008,
            Some(Json::Text(text)) if text == "2008-10-17" => PolicyVersion::V2008,
            Some(Json::Text(text)) if text == "2012-10-17" => PolicyVersion::V2012,
            Some(_) => return error("The policy must contain a valid version string", "write 2012-10-17"),
        };
        if !matches!(member(root, "Id"), None | Some(Json::Text(_))) {
            return error("This policy contains invalid Json", "Id must be a string");
        }
        let statements = match statements {
            Json::List(statements) => &statements[..],
            statement @ Json::Object(_) => std::slice::from_ref(statement),
            _ => return error("This policy contains invalid Json", "Statement is a list of objects"),
        };
        if statements.is_empty() {
            return error("Could not parse the policy: Statement is empty!", "");
        }
        let mut patterns = ActionPatterns::default();
        let read = |(at, statement)| {
            Statement::read(statement, version, bucket, &mut patterns).map_err(|mut error| {
                let between = if error.detail.is_empty() { "" } else { ": " };
                error.detail = format!("statement {}{between}{}", at + 1, error.detail);
                error
            })
        };
        let statements: Vec<_> = statements.iter().enumerate().map(read).collect::<Result<_, _>>()?;
        let mut sids = BTreeSet::new();
        match statements.iter().filter_map(|statement| statement.sid.as_ref()).find(|sid| !sids.insert(*sid))
        {
            Some(sid) => {
                error("Statement IDs (SID) in a single policy must be unique.", format!("{sid:?} is not"))
            }
            None => Ok(Policy { version, statements }),
        }
    }

    /// Returns whether a condition depends on the existing tags of an object.
    pub fn needs_existing_tags(&self) -> bool {
        let needs = |condition: &Condition| condition.key.starts_with(condition::EXISTING_TAG);
        self.statements.iter().flat_map(|statement| &statement.conditions).any(needs)
    }

    /// Returns whether a condition depends on the tags in a request.
    pub fn needs_request_tags(&self) -> bool {
        let needs = |condition: &Condition| condition.key.starts_with(condition::REQUEST_TAGS);
        self.statements.iter().flat_map(|statement| &statement.conditions).any(needs)
    }

    /// Returns the users that the document names without an ARN.
    pub fn bare_users(&self) -> impl Iterator<Item = &str> {
        let users = self.statements.iter().flat_map(|statement| &statement.principals.users);
        users.filter(|user| user.is_bare).map(|user| user.name.as_str())
    }
}

/// The sets of actions that a document's patterns match. Comparing a pattern with the names of all actions takes
/// microseconds, and a document may contain a pattern thousands of times, so each pattern is compared once.
#[derive(Default)]
struct ActionPatterns<'d>(HashMap<&'d str, Option<ActionSet>>);

impl<'d> ActionPatterns<'d> {
    /// Returns the same result as [`ActionSet::matching`].
    fn matching(&mut self, pattern: &'d str) -> Option<ActionSet> {
        *self.0.entry(pattern).or_insert_with(|| ActionSet::matching(pattern))
    }
}

fn member<'m>(members: &'m [(String, Json)], name: &str) -> Option<&'m Json> {
    members.iter().find(|(known, _)| known == name).map(|(_, value)| value)
}

/// The names of the elements that a statement may have.
const ELEMENTS: [&str; 9] = [
    "Sid",
    "Effect",
    "Principal",
    "NotPrincipal",
    "Action",
    "NotAction",
    "Resource",
    "NotResource",
    "Condition",
];

/// Returns the value of the element `name` or `not_name`, and whether the element is `not_name`. Errors: if both or
/// neither of these elements are present.
fn one_of<'m>(
    members: &'m [(String, Json)],
    [name, not_name]: [&str; 2],
    words: &str,
) -> Result<(&'m Json, bool), PolicyError> {
    match (member(members, name), member(members, not_name)) {
        (Some(value), None) => Ok((value, false)),
        (None, Some(value)) => Ok((value, true)),
        (None, None) => error(words, format!("it has no {name}")),
        (Some(_), Some(_)) => error(words, format!("it has both {name} and {not_name}")),
    }
}

impl Statement {
    fn read<'d>(
        statement: &'d Json,
        version: PolicyVersion,
        bucket: &str,
        patterns: &mut ActionPatterns<'d>,
    ) -> Result<Self, PolicyError> {
        let Json::Object(members) = statement else {
            return error("This policy contains invalid Json", "it is not an object");
        };
        if let Some((name, _)) = members.iter().find(|(name, _)| !ELEMENTS.contains(&name.as_str())) {
            return error(
                &format!("Unknown field {name}"),
                format!("a statement has {}", ELEMENTS.join(", ")),
            );
        }
        let sid = match member(members, "Sid") {
            None => None,
            Some(Json::Text(sid)) => Some(sid.clone()).filter(|sid| !sid.is_empty()),
            Some(_) => return error("This policy contains invalid Json", "Sid must be a string"),
        };
        let effect = effect(member(members, "Effect"))?;
        let (principals, excludes_principals) = principals(members, effect)?;
        let actions = actions(members, patterns)?;
        let (resources, excludes_resources) = resources(members, version, bucket)?;
        let conditions = conditions(member(members, "Condition"), version)?;
        let statement = Statement {
            sid,
            effect,
            principals,
            excludes_principals,
            actions,
            resources,
            excludes_resources,
            conditions,
        };
        statement.check_conditions()?;
        // As in AWS, actions are not compared with resources if the statement has `NotAction` or `NotResource`.
        if member(members, "Action").is_some() && !excludes_resources {
            statement.check_resources(member(members, "Action"), patterns)?;
        }
        Ok(statement)
    }

    /// Checks that each action has a resource that it can apply to. If an action pattern matches both actions on
    /// buckets and actions on objects, a resource of one of these two kinds suffices.
    fn check_resources<'d>(
        &self,
        element: Option<&'d Json>,
        patterns: &mut ActionPatterns<'d>,
    ) -> Result<(), PolicyError> {
        let has_objects = self.resources.iter().any(|pattern| may_be_of_objects(pattern.text()));
        let has_bucket = self.resources.iter().any(|pattern| may_be_of_buckets(pattern.text()));
        let objects = ActionSet::of_objects();
        let buckets = objects.complement();
        for name in texts_of(element).unwrap_or_default() {
            let Some(set) = patterns.matching(name) else { continue };
            let applies = set.meets(objects) && has_objects || set.meets(buckets) && has_bucket;
            if !applies {
                return error("Action does not apply to any resource(s) in statement", name);
            }
        }
        Ok(())
    }

    /// Checks that each key in the statement's conditions applies to one of the statement's actions.
    fn check_conditions(&self) -> Result<(), PolicyError> {
        let is_idle = |condition: &&Condition| {
            condition::actions_with(&condition.key).is_some_and(|actions| !actions.meets(self.actions))
        };
        match self.conditions.iter().find(is_idle) {
            Some(condition) => error(
                "Conditions do not apply to combination of actions and resources in statement",
                format!("no request for its actions has {}", condition.key),
            ),
            None => Ok(()),
        }
    }
}

/// Returns whether a resource pattern, without its prefix, can match an object.
fn may_be_of_objects(pattern: &str) -> bool {
    pattern.contains(['/', '*']) || pattern.contains("${")
}

/// Returns whether a resource pattern, without its prefix, can match a bucket.
fn may_be_of_buckets(pattern: &str) -> bool {
    !pattern.contains('/') || pattern.contains("${")
}

fn effect(element: Option<&Json>) -> Result<Effect, PolicyError> {
    match element {
        Some(Json::Text(text)) if text == "Allow" => Ok(Effect::Allow),
        Some(Json::Text(text)) if text == "Deny" => Ok(Effect::Deny),
        Some(Json::Text(text)) => error(&format!("Invalid effect: {text}"), "write Allow or Deny"),
        _ => error("Missing required field Effect", "write Allow or Deny"),
    }
}

fn principals(members: &[(String, Json)], effect: Effect) -> Result<(PrincipalSet, bool), PolicyError> {
    const WORDS: &str = "Invalid principal in policy";
    let (element, is_not) = one_of(members, ["Principal", "NotPrincipal"], WORDS)?;
    if is_not && effect == Effect::Allow {
        return error("Allow with NotPrincipal is not allowed.", "name the callers in Principal");
    }
    match PrincipalSet::read(element) {
        Ok(set) => Ok((set, is_not)),
        Err(why) => error(WORDS, why),
    }
}

fn actions<'d>(
    members: &'d [(String, Json)],
    patterns: &mut ActionPatterns<'d>,
) -> Result<ActionSet, PolicyError> {
    const WORDS: &str = "Policy has invalid action";
    let (element, is_not) = one_of(members, ["Action", "NotAction"], WORDS)?;
    let Some(names) = texts_of(Some(element)) else { return error(WORDS, "name at least one action") };
    let mut all = ActionSet::default();
    for name in names {
        match patterns.matching(name) {
            Some(set) => all = all.union(set),
            None => return error(WORDS, format!("{name:?} matches no action on buckets and objects")),
        }
    }
    Ok(if is_not { all.complement() } else { all })
}

fn resources(
    members: &[(String, Json)],
    version: PolicyVersion,
    bucket: &str,
) -> Result<(Vec<Pattern>, bool), PolicyError> {
    const WORDS: &str = "Policy has invalid resource";
    let (element, is_not) = one_of(members, ["Resource", "NotResource"], WORDS)?;
    let Some(names) = texts_of(Some(element)) else { return error(WORDS, "name at least one resource") };
    let syntax = PatternSyntax { has_wildcards: true, has_variables: version == PolicyVersion::V2012 };
    let mut patterns = Vec::with_capacity(names.len());
    for name in names {
        let path = name.strip_prefix(RESOURCE).filter(|path| !path.is_empty() && !path.starts_with('/'));
        let Some(path) = path.filter(|path| is_of_bucket(path, bucket)) else {
            return error(WORDS, format!("{name:?} is not in this bucket; write {RESOURCE}{bucket}/KEY"));
        };
        match Pattern::new(path, syntax, condition::is_known_key) {
            Ok(pattern) => patterns.push(pattern),
            Err(variable) => {
                return error(WORDS, format!("{variable} is not a supported variable"));
            }
        }
    }
    Ok((patterns, is_not))
}

/// Returns whether a resource can match the bucket or an object in it.
fn is_of_bucket(path: &str, bucket: &str) -> bool {
    let (name, has_key) = match path.split_once('/') {
        Some((name, _)) => (name, true),
        None => (path, false),
    };
    // If the name has a variable, or has a `*` and no key after it, the name may also match a slash and a key. In this
    // case, only the text before the first variable or `*` is compared.
    let is_open = name.contains("${") || (!has_key && name.contains('*'));
    let start = name.find("${").unwrap_or(name.len()).min(name.find('*').unwrap_or(name.len()));
    match is_open {
        true => Pattern::plain(&format!("{}*", &name[..start])).fits_plain(bucket),
        false => Pattern::plain(name).fits_plain(bucket),
    }
}

fn conditions(element: Option<&Json>, version: PolicyVersion) -> Result<Vec<Condition>, PolicyError> {
    let Some(element) = element else { return Ok(Vec::new()) };
    let Json::Object(operators) = element else {
        return error("This policy contains invalid Json", "Condition is an object");
    };
    let mut conditions = Vec::new();
    for (operator, keys) in operators {
        if !condition::is_operator(operator) {
            return error(&format!("Invalid Condition type : {operator}"), "look up the condition operators");
        }
        let Json::Object(keys) = keys else {
            return error("This policy contains invalid Json", format!("{operator} is an object"));
        };
        for (key, values) in keys {
            if !condition::is_known_key(&condition::canonical_key(key)) {
                let detail = format!("the condition key {key} is not supported; remove the condition");
                return error("Policy has an invalid condition key", detail);
            }
            match Condition::read(operator, key, values, version == PolicyVersion::V2012) {
                Ok(condition) => conditions.push(condition),
                Err(why) if operator.ends_with("IpAddress") => {
                    return error("Invalid IP address in Conditions", why);
                }
                Err(why) => return error("Invalid policy syntax.", why),
            }
        }
    }
    Ok(conditions)
}

/// Returns the string or the non-empty list of strings in an element; `None` for any other value.
fn texts_of(element: Option<&Json>) -> Option<Vec<&str>> {
    fn text(value: &Json) -> Option<&str> {
        match value {
            Json::Text(text) => Some(text),
            _ => None,
        }
    }
    match element? {
        Json::List(list) if list.is_empty() => None,
        Json::List(list) => list.iter().map(text).collect(),
        value => text(value).map(|text| vec![text]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A policy of the maximum size may contain a pattern 2,850 times.
    #[test]
    fn each_action_pattern_is_compared_once() {
        let list = format!("[{}]", vec!["\"s3:*\""; 2850].join(","));
        let read = |actions: &str| json::parse(actions.as_bytes()).unwrap();
        let members = [("Action".to_owned(), read(&list))];
        let mut patterns = ActionPatterns::default();
        let all = actions(&members, &mut patterns).unwrap();
        assert_eq!((all, patterns.0.len()), (ActionSet::matching("*").unwrap(), 1));
        let other = [("Action".to_owned(), read("[\"s3:*\", \"s3:GetObject\"]"))];
        actions(&other, &mut patterns).unwrap();
        assert_eq!(patterns.0.len(), 2);
    }
}
