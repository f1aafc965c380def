//! Conditions of statements (see "IAM JSON policy elements: Condition operators" and "Set operators for multivalued
//! context keys" in the IAM user guide).

use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use fordway_wire::date::parse_iso8601;

use crate::action::{Action, ActionSet};
use crate::json::Json;
use crate::pattern::{Pattern, PatternSyntax, fold};
use crate::request::AccessRequest;

/// The condition keys that the gateway supports, in lower case, each with the actions it applies to. A key without
/// listed actions applies to all actions.
const KEYS: &[(&str, &[&str])] = &[
    ("aws:currenttime", &[]),
    ("aws:epochtime", &[]),
    ("aws:multifactorauthpresent", &[]),
    (PRINCIPAL_ARN, &[]),
    ("aws:principalisawsservice", &[]),
    ("aws:principaltype", &[]),
    ("aws:referer", &[]),
    ("aws:securetransport", &[]),
    ("aws:sourceip", &[]),
    ("aws:tokenissuetime", &[]),
    ("aws:useragent", &[]),
    ("aws:userid", &[]),
    ("aws:username", &[]),
    ("aws:viaawsservice", &[]),
    ("s3:authtype", &[]),
    ("s3:delimiter", LISTING),
    ("s3:if-match", &["PutObject", "DeleteObject", "DeleteObjectVersion"]),
    ("s3:if-none-match", &["PutObject"]),
    ("s3:max-keys", LISTING),
    ("s3:object-lock-legal-hold", &["PutObject", "PutObjectLegalHold"]),
    ("s3:object-lock-mode", &["PutObject", "PutObjectRetention"]),
    ("s3:object-lock-remaining-retention-days", &["PutObject", "PutObjectRetention"]),
    ("s3:object-lock-retain-until-date", &["PutObject", "PutObjectRetention"]),
    ("s3:objectcreationoperation", &["PutObject"]),
    ("s3:prefix", LISTING),
    ("s3:requestobjecttagkeys", &["PutObject", "PutObjectTagging", "PutObjectVersionTagging"]),
    ("s3:signatureage", &[]),
    ("s3:signatureversion", &[]),
    ("s3:tlsversion", &[]),
    ("s3:versionid", VERSIONS),
    ("s3:x-amz-acl", ACCESS_LISTS),
    ("s3:x-amz-content-sha256", &[]),
    ("s3:x-amz-copy-source", &["PutObject"]),
    ("s3:x-amz-grant-full-control", ACCESS_LISTS),
    ("s3:x-amz-grant-read", ACCESS_LISTS),
    ("s3:x-amz-grant-read-acp", ACCESS_LISTS),
    ("s3:x-amz-grant-write", ACCESS_LISTS),
    ("s3:x-amz-grant-write-acp", ACCESS_LISTS),
    ("s3:x-amz-metadata-directive", &["PutObject"]),
    ("s3:x-amz-object-ownership", &["CreateBucket"]),
    ("s3:x-amz-server-side-encryption", &["PutObject"]),
    ("s3:x-amz-server-side-encryption-aws-kms-key-id", &["PutObject"]),
    ("s3:x-amz-server-side-encryption-customer-algorithm", &["PutObject"]),
    ("s3:x-amz-storage-class", &["PutObject"]),
    ("s3:x-amz-website-redirect-location", &["PutObject"]),
];

/// The condition key for the ARN of the caller.
const PRINCIPAL_ARN: &str = "aws:principalarn";
const LISTING: &[&str] = &["ListBucket", "ListBucketVersions"];
const VERSIONS: &[&str] = &[
    "DeleteObjectVersion",
    "DeleteObjectVersionTagging",
    "GetObjectVersion",
    "GetObjectVersionAcl",
    "GetObjectVersionAttributes",
    "GetObjectVersionTagging",
    "PutObjectVersionAcl",
    "PutObjectVersionTagging",
    "GetObjectLegalHold",
    "GetObjectRetention",
    "PutObjectLegalHold",
    "PutObjectRetention",
];
const ACCESS_LISTS: &[&str] =
    &["PutObject", "PutObjectAcl", "PutObjectVersionAcl", "PutBucketAcl", "CreateBucket"];

/// The prefix of condition keys for an object's existing tags.
pub(crate) const EXISTING_TAG: &str = "s3:existingobjecttag/";
/// The prefix of condition keys for the tags in a request.
const REQUEST_TAG: &str = "s3:requestobjecttag/";
/// The common prefix of all keys about the tags in a request.
pub(crate) const REQUEST_TAGS: &str = "s3:requestobjecttag";

/// Returns whether the gateway supports the condition key `key`, which must be in lower case except for a tag name.
pub fn is_known_key(key: &str) -> bool {
    let is_tag = |start: &str| key.strip_prefix(start).is_some_and(|name| !name.is_empty());
    is_tag(EXISTING_TAG) || is_tag(REQUEST_TAG) || KEYS.iter().any(|(known, _)| *known == key)
}

/// Converts the key to lower case, except for a tag name.
pub fn canonical_key(key: &str) -> String {
    match key.split_once('/') {
        Some((start, name)) => format!("{}/{name}", start.to_ascii_lowercase()),
        None => key.to_ascii_lowercase(),
    }
}

/// Returns the actions that the key applies to; `None` if it applies to all actions.
pub(crate) fn actions_with(key: &str) -> Option<ActionSet> {
    if key.starts_with(EXISTING_TAG) {
        return Some(ActionSet::of_objects());
    }
    let (_, actions) = KEYS.iter().find(|(known, actions)| *known == key && !actions.is_empty())?;
    Some(actions.iter().filter_map(|name| Action::new(name)).collect())
}

/// A condition: one operator applied to one key.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Condition {
    /// The operator as written in the document.
    pub(crate) operator: String,
    pub(crate) key: String,
    qualifier: MultivalueQualifier,
    is_negated: bool,
    /// Whether the condition holds if the key is missing.
    if_exists: bool,
    expected: ExpectedValues,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MultivalueQualifier {
    None,
    /// Every value in the request must match.
    All,
    /// At least one value in the request must match.
    Any,
}

/// The values in the document. A value in a request matches if it matches at least one value in the document.
#[derive(Clone, Debug, PartialEq)]
enum ExpectedValues {
    Texts(Vec<Pattern>),
    TextsIgnoringCase(Vec<Pattern>),
    Arns(Vec<Vec<Pattern>>),
    Numbers(ComparisonOperator, Vec<f64>),
    Dates(ComparisonOperator, Vec<SystemTime>),
    Bools(Vec<bool>),
    Networks(Vec<IpNetwork>),
    /// Whether the key must be missing from the request.
    Missing(Vec<bool>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ComparisonOperator {
    Equal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl ComparisonOperator {
    fn holds<T: PartialOrd>(self, value: &T, limit: &T) -> bool {
        match self {
            ComparisonOperator::Equal => value == limit,
            ComparisonOperator::Less => value < limit,
            ComparisonOperator::LessOrEqual => value <= limit,
            ComparisonOperator::Greater => value > limit,
            ComparisonOperator::GreaterOrEqual => value >= limit,
        }
    }
}

/// A network of IP addresses. IPv4 addresses are stored in their IPv6 form (`::ffff:0:0/96`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IpNetwork {
    address: u128,
    bits: u8,
    /// Whether the network contains only IPv4 addresses. Other networks contain no IPv4 address, even if they contain
    /// the IPv6 forms of IPv4 addresses (such as `::/0`).
    pub(crate) is_v4: bool,
}

/// The length of the prefix of the IPv6 forms of IPv4 addresses.
const V4_PREFIX_BITS: u8 = 96;

impl IpNetwork {
    fn read(text: &str) -> Option<Self> {
        let (address, length) = match text.split_once('/') {
            Some((address, length))
                if !length.is_empty() && length.bytes().all(|byte| byte.is_ascii_digit()) =>
            {
                (address, Some(length.parse::<u8>().ok()?))
            }
            Some(_) => return None,
            None => (text, None),
        };
        let address: IpAddr = address.parse().ok()?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = length.unwrap_or(most);
        if bits > most {
            return None;
        }
        let (address, bits) = (as_v6(address), bits + (128 - most));
        Some(IpNetwork { address, bits, is_v4: is_form_of_v4(address) && bits >= V4_PREFIX_BITS })
    }

    /// Returns the network's prefix length in its own address family.
    pub(crate) fn prefix_bits(&self) -> u8 {
        if self.is_v4 { self.bits - V4_PREFIX_BITS } else { self.bits }
    }

    fn has(&self, address: u128) -> bool {
        let mask = if self.bits == 0 { 0 } else { u128::MAX << (128 - self.bits) };
        (address ^ self.address) & mask == 0 && self.is_v4 == is_form_of_v4(address)
    }
}

/// Returns whether an IPv6 address is the form of an IPv4 address.
fn is_form_of_v4(address: u128) -> bool {
    address >> 32 == 0xffff
}

fn as_v6(address: IpAddr) -> u128 {
    let address = match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    };
    Ipv6Addr::to_bits(address)
}

/// The number of parts in an ARN. A wildcard matches within one part only.
const ARN_PARTS: usize = 6;

impl Condition {
    /// Reads the condition that `operator` applies to `key`. Errors: a message with the reason.
    pub(crate) fn read(
        operator: &str,
        key: &str,
        values: &Json,
        has_variables: bool,
    ) -> Result<Self, String> {
        let canonical = canonical_key(key);
        if !is_known_key(&canonical) {
            return Err(format!("the condition key {key:?} is not supported; remove the condition"));
        }
        let form =
            ConditionOperator::read(operator).ok_or_else(|| format!("{operator:?} is not an operator"))?;
        let values =
            texts(values).ok_or_else(|| format!("{operator} of {key} needs strings, numbers or booleans"))?;
        let wrong = |text: &str| format!("{text:?} is not a value for {operator} of {key}");
        let expected = form.expected(&values, has_variables).map_err(|text| wrong(&text))?;
        Ok(Condition {
            operator: operator.to_owned(),
            key: canonical,
            qualifier: form.qualifier,
            is_negated: form.is_negated,
            if_exists: form.if_exists,
            expected,
        })
    }

    /// Returns whether the condition holds for the request.
    pub(crate) fn is_met_by(&self, request: &AccessRequest<'_>) -> bool {
        let mut values = request.keys.values(&self.key).peekable();
        let is_missing = values.peek().is_none();
        if let ExpectedValues::Missing(expected) = &self.expected {
            return expected.contains(&is_missing);
        }
        if is_missing {
            return self.if_exists
                || match self.qualifier {
                    MultivalueQualifier::None => self.is_negated,
                    MultivalueQualifier::All => true,
                    MultivalueQualifier::Any => false,
                };
        }
        // A session has two ARNs: the ARN of its role, which is the value of the condition key, and its own ARN.
        let session = match self.key == PRINCIPAL_ARN {
            true => request.principal.session_arn(),
            false => None,
        };
        let mut fits = |value: &str| {
            self.expected.fits(value, request)
                || session.as_ref().is_some_and(|arn| self.expected.fits(arn, request))
        };
        match (self.qualifier, self.is_negated) {
            (MultivalueQualifier::None | MultivalueQualifier::Any, false) => values.any(&mut fits),
            (MultivalueQualifier::All, false) => values.all(&mut fits),
            (MultivalueQualifier::None | MultivalueQualifier::All, true) => !values.any(&mut fits),
            (MultivalueQualifier::Any, true) => !values.all(&mut fits),
        }
    }

    /// Returns the networks if the condition is on addresses, is not negated, and is false for requests without the
    /// key; `None` for any other condition.
    pub(crate) fn networks(&self) -> Option<&[IpNetwork]> {
        match &self.expected {
            ExpectedValues::Networks(networks) if self.restricts() => Some(networks),
            _ => None,
        }
    }

    /// Returns true if the condition is not negated, is false for requests without the key, and all its values are
    /// strings or ARNs that contain neither wildcards nor variables.
    pub(crate) fn has_fixed_values(&self) -> bool {
        let is_fixed = match &self.expected {
            ExpectedValues::Texts(texts) | ExpectedValues::TextsIgnoringCase(texts) => {
                texts.iter().all(Pattern::is_fixed)
            }
            ExpectedValues::Arns(arns) => arns.iter().flatten().all(Pattern::is_fixed),
            _ => false,
        };
        is_fixed && self.restricts()
    }

    /// Returns whether one of the condition's values is a string without wildcards and variables that equals `value`.
    pub(crate) fn has_fixed_value(&self, value: &str) -> bool {
        match &self.expected {
            ExpectedValues::Texts(texts) => {
                texts.iter().any(|text| text.is_fixed() && text.fits_plain(value))
            }
            ExpectedValues::TextsIgnoringCase(texts) => {
                texts.iter().any(|text| text.is_fixed() && fold(text.text()) == fold(value))
            }
            _ => false,
        }
    }

    /// Returns whether the condition is not negated and is false for requests without the key.
    fn restricts(&self) -> bool {
        !self.is_negated && !self.if_exists && self.qualifier != MultivalueQualifier::All
    }
}

impl ExpectedValues {
    fn fits(&self, value: &str, request: &AccessRequest<'_>) -> bool {
        match self {
            ExpectedValues::Texts(patterns) => patterns.iter().any(|pattern| pattern.fits(value, request)),
            ExpectedValues::TextsIgnoringCase(patterns) => {
                let folded = fold(value);
                patterns.iter().any(|pattern| pattern.equals_ignoring_case(&folded, request))
            }
            ExpectedValues::Arns(arns) => arns.iter().any(|arn| {
                let parts: Vec<_> = value.splitn(ARN_PARTS, ':').collect();
                parts.len() == ARN_PARTS
                    && arn.iter().zip(parts).all(|(pattern, part)| pattern.fits(part, request))
            }),
            ExpectedValues::Numbers(order, limits) => {
                number(value).is_some_and(|value| limits.iter().any(|limit| order.holds(&value, limit)))
            }
            ExpectedValues::Dates(order, limits) => {
                date(value).is_some_and(|value| limits.iter().any(|limit| order.holds(&value, limit)))
            }
            ExpectedValues::Bools(expected) => boolean(value).is_some_and(|value| expected.contains(&value)),
            ExpectedValues::Networks(networks) => value.parse().is_ok_and(|address| {
                let address = as_v6(address);
                networks.iter().any(|network| network.has(address))
            }),
            ExpectedValues::Missing(_) => false,
        }
    }
}

/// A condition operator, split into its qualifier, base operator, negation and `IfExists` suffix.
struct ConditionOperator<'o> {
    qualifier: MultivalueQualifier,
    base: &'o str,
    is_negated: bool,
    if_exists: bool,
}

impl<'o> ConditionOperator<'o> {
    /// Reads an operator such as `ForAnyValue:StringNotLikeIfExists`. Returns `None` for an unknown operator.
    fn read(operator: &'o str) -> Option<Self> {
        let (qualifier, rest) = match operator.split_once(':') {
            Some(("ForAllValues", rest)) => (MultivalueQualifier::All, rest),
            Some(("ForAnyValue", rest)) => (MultivalueQualifier::Any, rest),
            Some(_) => return None,
            None => (MultivalueQualifier::None, operator),
        };
        let (base, if_exists) = match rest.strip_suffix("IfExists") {
            Some(base) => (base, true),
            None => (rest, false),
        };
        let (base, is_negated) = match base {
            "StringNotEquals" => ("StringEquals", true),
            "StringNotEqualsIgnoreCase" => ("StringEqualsIgnoreCase", true),
            "StringNotLike" => ("StringLike", true),
            "NumericNotEquals" => ("NumericEquals", true),
            "DateNotEquals" => ("DateEquals", true),
            "NotIpAddress" => ("IpAddress", true),
            "ArnNotEquals" => ("ArnEquals", true),
            "ArnNotLike" => ("ArnLike", true),
            base => (base, false),
        };
        let is_bare_null = base != "Null" || (!if_exists && qualifier == MultivalueQualifier::None);
        is_bare_null.then_some(ConditionOperator { qualifier, base, is_negated, if_exists })
    }

    /// Reads the values. Errors: the value that the operator does not accept, or the name of an unknown operator.
    fn expected(&self, values: &[String], has_variables: bool) -> Result<ExpectedValues, String> {
        let syntax = |has_wildcards| PatternSyntax { has_wildcards, has_variables };
        let pattern = |text: &str, syntax| Pattern::new(text, syntax, is_known_key);
        let order = |name: &str| {
            Some(match name {
                "Equals" => ComparisonOperator::Equal,
                "LessThan" => ComparisonOperator::Less,
                "LessThanEquals" => ComparisonOperator::LessOrEqual,
                "GreaterThan" => ComparisonOperator::Greater,
                "GreaterThanEquals" => ComparisonOperator::GreaterOrEqual,
                _ => return None,
            })
        };
        let numeric = self.base.strip_prefix("Numeric").and_then(order);
        let dated = self.base.strip_prefix("Date").and_then(order);
        Ok(match self.base {
            "StringEquals" => ExpectedValues::Texts(each(values, |text| pattern(text, syntax(false)))?),
            "StringEqualsIgnoreCase" => {
                ExpectedValues::TextsIgnoringCase(each(values, |text| pattern(text, syntax(false)))?)
            }
            "StringLike" => ExpectedValues::Texts(each(values, |text| pattern(text, syntax(true)))?),
            "ArnEquals" | "ArnLike" => ExpectedValues::Arns(each(values, |text| {
                let parts: Result<Vec<_>, _> =
                    text.splitn(ARN_PARTS, ':').map(|part| pattern(part, syntax(true))).collect();
                parts
                    .and_then(|parts| if parts.len() == ARN_PARTS { Ok(parts) } else { Err(text.to_owned()) })
            })?),
            "BinaryEquals" => ExpectedValues::Texts(each(values, |text| {
                let bytes = STANDARD.decode(text).ok().and_then(|bytes| String::from_utf8(bytes).ok());
                let text = bytes.ok_or_else(|| text.to_owned())?;
                pattern(&text, PatternSyntax { has_wildcards: false, has_variables: false })
            })?),
            "Bool" => {
                ExpectedValues::Bools(each(values, |text| boolean(text).ok_or_else(|| text.to_owned()))?)
            }
            "Null" => {
                ExpectedValues::Missing(each(values, |text| boolean(text).ok_or_else(|| text.to_owned()))?)
            }
            "IpAddress" => ExpectedValues::Networks(each(values, |text| {
                IpNetwork::read(text).ok_or_else(|| text.to_owned())
            })?),
            base => match (numeric, dated) {
                (Some(order), _) => ExpectedValues::Numbers(
                    order,
                    each(values, |text| number(text).ok_or_else(|| text.to_owned()))?,
                ),
                (_, Some(order)) => ExpectedValues::Dates(
                    order,
                    each(values, |text| date(text).ok_or_else(|| text.to_owned()))?,
                ),
                _ => return Err(base.to_owned()),
            },
        })
    }
}

/// Returns whether an operator with this name exists.
pub(crate) fn is_operator(name: &str) -> bool {
    let sample = |base: &str| match base {
        base if base.starts_with("Numeric") => "1",
        base if base.starts_with("Date") => "2026-01-01",
        "IpAddress" => "10.0.0.0/8",
        "ArnEquals" | "ArnLike" => "a:b:c:d:e:f",
        "Bool" | "Null" => "true",
        _ => "",
    };
    ConditionOperator::read(name)
        .is_some_and(|form| form.expected(&[sample(form.base).to_owned()], false).is_ok())
}

fn each<T>(values: &[String], read: impl FnMut(&String) -> Result<T, String>) -> Result<Vec<T>, String> {
    values.iter().map(read).collect()
}

/// Returns one value or a list of values as strings; `None` if there are no values, or if a value is not a string,
/// Boolean or number.
fn texts(values: &Json) -> Option<Vec<String>> {
    let text = |value: &Json| match value {
        Json::Text(text) => Some(text.clone()),
        Json::Bool(value) => Some(value.to_string()),
        Json::Number(number) => Some(number.to_string()),
        _ => None,
    };
    match values {
        Json::List(values) if !values.is_empty() => values.iter().map(text).collect(),
        Json::List(_) => None,
        value => text(value).map(|text| vec![text]),
    }
}

fn number(text: &str) -> Option<f64> {
    text.parse().ok().filter(|number: &f64| number.is_finite())
}

fn boolean(text: &str) -> Option<bool> {
    match text {
        _ if text.eq_ignore_ascii_case("true") => Some(true),
        _ if text.eq_ignore_ascii_case("false") => Some(false),
        _ => None,
    }
}

/// Reads a date (`2026-01-31`), a time in UTC (`2026-01-31T12:00:00Z`), or seconds since 1970.
fn date(text: &str) -> Option<SystemTime> {
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return UNIX_EPOCH.checked_add(Duration::from_secs(text.parse().ok()?));
    }
    match text.contains('T') {
        true => parse_iso8601(text),
        false => parse_iso8601(&format!("{text}T00:00:00Z")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::principal::Principal;
    use crate::request::ConditionKeyValues;

    /// Returns whether the condition holds for a request with these values.
    fn holds(operator: &str, key: &str, values: &str, found: &[(&'static str, &'static str)]) -> bool {
        let values = crate::json::parse(values.as_bytes()).unwrap();
        let condition = Condition::read(operator, key, &values, true).unwrap();
        let mut keys = ConditionKeyValues::default();
        found.iter().for_each(|(key, value)| keys.add(*key, *value));
        let action = Action::new("ListBucket").unwrap();
        condition.is_met_by(&AccessRequest {
            principal: Principal::Anonymous,
            action,
            bucket: "b",
            key: None,
            keys,
        })
    }

    /// The cases are the examples from the IAM user guide's pages about operators.
    #[test]
    fn operators_compare_as_documented() {
        for (operator, values, value, expected) in [
            ("StringEquals", "\"a*\"", "a*", true),
            ("StringEquals", "\"a*\"", "ab", false),
            ("StringEquals", "[\"x\", \"a\"]", "a", true),
            ("StringNotEquals", "[\"x\", \"a\"]", "a", false),
            ("StringEqualsIgnoreCase", "\"AbC\"", "aBc", true),
            ("StringNotEqualsIgnoreCase", "\"AbC\"", "aBc", false),
            ("StringEqualsIgnoreCase", "\"AbC\"", "abcd", false),
            ("StringEqualsIgnoreCase", "\"abcd\"", "ABC", false),
            ("StringEqualsIgnoreCase", "\"ÄB\"", "äb", true),
            ("StringEqualsIgnoreCase", "\"äb\"", "ÄB", true),
            ("StringEqualsIgnoreCase", "\"ä\"", "äb", false),
            // The Kelvin sign, whose lower-case form is shorter, and a letter whose lower-case form is longer.
            ("StringEqualsIgnoreCase", "\"\u{212a}k\"", "K\u{212a}", true),
            ("StringEqualsIgnoreCase", "\"\u{130}\"", "i\u{307}", true),
            ("StringEqualsIgnoreCase", "\"ΟΔΟΣ\"", "οδος", true),
            ("StringLike", "\"a*\"", "ab/c", true),
            ("StringLike", "\"a?\"", "abc", false),
            ("StringNotLike", "\"a*\"", "ab", false),
            ("NumericEquals", "10", "10", true),
            ("NumericEquals", "\"10\"", "10.0", true),
            ("NumericNotEquals", "10", "11", true),
            ("NumericLessThan", "10", "10", false),
            ("NumericLessThanEquals", "\"10\"", "10", true),
            ("NumericGreaterThan", "10", "11", true),
            ("NumericGreaterThanEquals", "10", "9", false),
            ("NumericEquals", "10", "ten", false),
            ("DateEquals", "\"2026-01-31\"", "2026-01-31T00:00:00Z", true),
            ("DateLessThan", "\"2026-01-31T12:00:00Z\"", "2026-01-31T11:59:59Z", true),
            ("DateGreaterThan", "\"1769860800\"", "2026-01-31T12:00:01Z", true),
            ("DateNotEquals", "\"2026-01-31\"", "2026-01-31T00:00:00Z", false),
            ("Bool", "\"true\"", "true", true),
            ("Bool", "true", "false", false),
            ("IpAddress", "\"10.1.0.0/16\"", "10.1.255.3", true),
            ("IpAddress", "\"10.1.0.0/16\"", "10.2.0.1", false),
            ("IpAddress", "\"10.1.2.3\"", "::ffff:10.1.2.3", true),
            ("IpAddress", "\"2001:db8::/32\"", "2001:db8:1::1", true),
            ("IpAddress", "\"::1/128\"", "::1", true),
            ("IpAddress", "\"::1\"", "::2", false),
            ("IpAddress", "\"::/0\"", "2001:db8::1", true),
            ("IpAddress", "\"0.0.0.0/0\"", "2001:db8::1", false),
            ("IpAddress", "\"::/0\"", "10.0.0.1", false),
            ("IpAddress", "\"::/0\"", "::ffff:10.0.0.1", false),
            ("IpAddress", "\"::/32\"", "10.0.0.1", false),
            ("IpAddress", "\"::fffe:0:0/95\"", "10.0.0.1", false),
            ("IpAddress", "\"::ffff:0.0.0.0/96\"", "10.0.0.1", true),
            ("IpAddress", "\"::ffff:10.0.0.0/104\"", "10.9.9.9", true),
            ("IpAddress", "\"::ffff:10.0.0.0/104\"", "11.0.0.1", false),
            ("NotIpAddress", "\"::/0\"", "10.0.0.1", true),
            ("NotIpAddress", "[\"10.0.0.0/8\", \"192.0.2.0/24\"]", "192.0.2.9", false),
            ("NotIpAddress", "\"10.0.0.0/8\"", "11.0.0.1", true),
            ("ArnLike", "\"arn:aws:iam::*:user/a*\"", "arn:aws:iam::1:user/ab", true),
            ("ArnEquals", "\"arn:aws:*:user/ab:x:y\"", "arn:aws:iam::1:user/ab", false),
            ("ArnNotLike", "\"arn:aws:iam::*:user/a*\"", "arn:aws:iam::1:user/ab", false),
            ("BinaryEquals", "\"YWJj\"", "abc", true),
        ] {
            let key = "aws:userid";
            assert_eq!(
                holds(operator, key, values, &[(key, value)]),
                expected,
                "{operator} {values} {value}"
            );
        }
    }

    /// A client chooses the values of some variables, and a policy may repeat these variables. The cost is limited by
    /// the length of the compared text, not by the length of the values.
    #[test]
    fn long_values_of_variables_are_not_copied() {
        let long: &'static str = "x".repeat(60_000).leak();
        let found = [("aws:userid", "anonymous"), ("aws:referer", long)];
        let patterns = vec!["\"${aws:Referer}\""; 1_000].join(",");
        let begin = std::time::Instant::now();
        for operator in ["StringEquals", "StringEqualsIgnoreCase", "StringLike"] {
            for _ in 0..5 {
                assert!(!holds(operator, "aws:userid", &format!("[{patterns}]"), &found), "{operator}");
            }
        }
        assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
    }

    #[test]
    fn variables_are_compared_without_case() {
        let found = [("aws:username", "Änn"), ("aws:userid", "home/ÄNN!")];
        let fits = |values: &str| holds("StringEqualsIgnoreCase", "aws:userid", values, &found);
        assert!(fits("\"HOME/${aws:username}!\""));
        for values in ["\"HOME/${aws:username}\"", "\"HOME/${aws:username}!!\"", "\"${aws:referer}\""] {
            assert!(!fits(values), "{values}");
        }
    }

    #[test]
    fn a_missing_key_fits_negated_operators_only() {
        let missing = |operator| holds(operator, "aws:Referer", "\"x\"", &[]);
        for operator in [
            "StringEquals",
            "StringLike",
            "StringEqualsIgnoreCase",
            "ForAnyValue:StringEquals",
            "ForAnyValue:StringNotLike",
        ] {
            assert!(!missing(operator), "{operator}");
        }
        for operator in [
            "StringNotEquals",
            "StringNotLike",
            "StringEqualsIfExists",
            "StringNotLikeIfExists",
            "ForAllValues:StringEquals",
            "ForAnyValue:StringEqualsIfExists",
        ] {
            assert!(missing(operator), "{operator}");
        }
        assert!(holds("Null", "aws:Referer", "\"true\"", &[]));
        assert!(!holds("Null", "aws:Referer", "false", &[]));
        assert!(holds("Null", "aws:Referer", "\"false\"", &[("aws:referer", "")]));
    }

    #[test]
    fn sets_are_compared_value_by_value() {
        let key = "s3:requestobjecttagkeys";
        let (one, both) = (&[(key, "a")][..], &[(key, "a"), (key, "z")][..]);
        for (operator, found, expected) in [
            ("ForAllValues:StringEquals", one, true),
            ("ForAllValues:StringEquals", both, false),
            ("ForAnyValue:StringEquals", both, true),
            ("ForAnyValue:StringNotEquals", both, true),
            ("ForAnyValue:StringNotEquals", one, false),
            ("ForAllValues:StringNotEquals", both, false),
        ] {
            assert_eq!(holds(operator, key, "[\"a\", \"b\"]", found), expected, "{operator} {found:?}");
        }
    }

    #[test]
    fn tags_keep_their_case_and_keys_do_not() {
        assert!(holds(
            "StringEquals",
            "S3:ExistingObjectTag/Class",
            "\"x\"",
            &[("s3:existingobjecttag/Class", "x")]
        ));
        assert!(!holds(
            "StringEquals",
            "s3:ExistingObjectTag/class",
            "\"x\"",
            &[("s3:existingobjecttag/Class", "x")]
        ));
    }

    #[test]
    fn variables_have_the_value_of_a_key() {
        let name = ("aws:username", "a*");
        let prefix = |value| ("s3:prefix", value);
        let home = "\"home/${aws:UserName}/*\"";
        assert!(holds("StringLike", "s3:prefix", home, &[name, prefix("home/a*/x")]));
        assert!(!holds("StringLike", "s3:prefix", home, &[name, prefix("home/ab/x")]));
        assert!(!holds("StringLike", "s3:prefix", home, &[prefix("home//x")]));
        assert!(holds("StringLike", "s3:prefix", "\"${aws:username, 'nobody'}/*\"", &[prefix("nobody/x")]));
        assert!(holds("StringLike", "s3:prefix", "\"${*}${$}${?}\"", &[prefix("*$?")]));
    }

    #[test]
    fn what_cannot_be_decided_is_refused() {
        for (operator, key, values) in [
            ("StringEqual", "aws:Referer", "\"x\""),
            ("NullIfExists", "aws:Referer", "true"),
            ("ForAnyValue:Null", "aws:Referer", "true"),
            ("ForSomeValues:StringEquals", "aws:Referer", "\"x\""),
            ("StringEquals", "aws:SourceVpce", "\"x\""),
            ("StringEquals", "s3:ExistingObjectTag/", "\"x\""),
            ("StringEquals", "aws:Referer", "[]"),
            ("StringEquals", "aws:Referer", "{}"),
            ("StringEquals", "aws:Referer", "\"${aws:FederatedProvider}\""),
            ("StringEquals", "aws:Referer", "\"${aws:username\""),
            ("NumericEquals", "s3:max-keys", "\"ten\""),
            ("NumericEquals", "s3:max-keys", "\"NaN\""),
            ("DateEquals", "aws:CurrentTime", "\"soon\""),
            ("Bool", "aws:SecureTransport", "\"yes\""),
            ("IpAddress", "aws:SourceIp", "\"10.0.0.0/33\""),
            ("IpAddress", "aws:SourceIp", "\"10.0.0\""),
            ("ArnLike", "aws:PrincipalArn", "\"arn:aws\""),
        ] {
            let values = crate::json::parse(values.as_bytes()).unwrap();
            assert!(Condition::read(operator, key, &values, true).is_err(), "{operator} {key} {values:?}");
        }
        assert!(is_operator("ForAnyValue:DateLessThanEqualsIfExists") && !is_operator("DateBefore"));
    }
}
