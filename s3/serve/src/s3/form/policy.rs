//! The policy of a form: the time until which the form may be sent, and the allowed fields and sizes.

use std::ops::RangeInclusive;
use std::time::SystemTime;

use base64::alphabet;
use base64::engine::{DecodePaddingMode, Engine as _, GeneralPurpose, GeneralPurposeConfig};
use fordway_wire::date::parse_iso8601;
use http::StatusCode;
use serde_json::{Map, Value};

use crate::s3::error::{OperationResult, S3Failure};
use crate::s3::form::fields::FormFields;

/// Fields that need no condition in the policy: the fields of the signature, ignored fields, and checksums. A checksum
/// needs no condition, because it can only cause a refusal.
const UNCONDITIONED: [&str; 4] = ["policy", "x-amz-signature", "signature", "awsaccesskeyid"];
const UNCONDITIONED_PREFIXES: [&str; 2] = ["x-ignore-", "x-amz-checksum-"];

/// The parsed policy of a form.
#[derive(Debug)]
pub(super) struct PostPolicy {
    expiration: SystemTime,
    conditions: Vec<FormCondition>,
}

/// A condition on a form.
#[derive(Debug)]
enum FormCondition {
    Field(FieldCondition),
    /// The allowed sizes of the file in bytes.
    Size(RangeInclusive<u64>),
}

/// A condition on the value of a field.
#[derive(Debug)]
struct FieldCondition {
    /// The name of the field, in lower case.
    field: String,
    value: String,
    is_prefix: bool,
    /// The condition as AWS's error messages spell it.
    text: String,
}

impl PostPolicy {
    /// Parses a policy in base64. Errors: `InvalidPolicyDocument`, with AWS's messages; `AccessDenied` for a condition
    /// that is not on a field.
    pub(super) fn read(encoded: &str) -> OperationResult<Self> {
        let document = decoded(encoded)?;
        let Ok(Value::Object(policy)) = serde_json::from_str(&with_escaped_dollars(&document)) else {
            return Err(invalid("Invalid JSON."));
        };
        let expiration = policy.get("expiration").ok_or_else(|| invalid("Policy missing expiration."))?;
        let conditions = policy.get("conditions").ok_or_else(|| invalid("Policy missing conditions."))?;
        if let Some(other) = policy.keys().find(|name| !["expiration", "conditions"].contains(&name.as_str()))
        {
            return Err(invalid(&format!("Unexpected: \"{other}\"")));
        }
        let expiration = text(expiration)?;
        let wrong_date = || invalid(&format!("Invalid 'expiration' value: '{expiration}'"));
        let expiration = parse_iso8601(expiration).ok_or_else(wrong_date)?;
        let Value::Array(conditions) = conditions else {
            return Err(invalid("Invalid 'conditions' value: must be a List."));
        };
        let conditions = conditions.iter().map(FormCondition::read).collect::<OperationResult<_>>()?;
        Ok(PostPolicy { expiration, conditions })
    }

    /// Checks whether the policy allows a form for this bucket and key. Returns the allowed sizes of the form's file.
    /// Errors: `AccessDenied`, with AWS's message, if the policy has expired, a condition is not met, or a field has no
    /// condition.
    pub(super) fn check(
        &self,
        form: &FormFields,
        (bucket, key): &(String, String),
        now: SystemTime,
    ) -> OperationResult<RangeInclusive<u64>> {
        if self.expiration < now {
            return Err(denied("Policy expired."));
        }
        let covers = |name: &str| self.fields().any(|condition| condition.field == name);
        let is_extra = |name: &&str| !is_unconditioned(name) && !covers(name);
        // The bucket is part of the URL and not a field, but still needs a condition.
        if let Some(name) = form.names().find(is_extra).or_else(|| Some("bucket").filter(is_extra)) {
            return Err(denied(&format!("Extra input fields: {name}")));
        }
        let value = |name: &str| match name {
            "bucket" => Some(bucket.as_str()),
            "key" => Some(key.as_str()),
            _ => form.get(name),
        };
        match self
            .fields()
            .find(|condition| !value(&condition.field).is_some_and(|value| condition.allows(value)))
        {
            Some(condition) => Err(condition.failed()),
            None => Ok(self.sizes()),
        }
    }

    fn fields(&self) -> impl Iterator<Item = &FieldCondition> {
        self.conditions.iter().filter_map(|condition| match condition {
            FormCondition::Field(condition) => Some(condition),
            FormCondition::Size(_) => None,
        })
    }

    fn sizes(&self) -> RangeInclusive<u64> {
        self.conditions.iter().fold(0..=u64::MAX, |all, condition| match condition {
            FormCondition::Size(sizes) => *all.start().max(sizes.start())..=*all.end().min(sizes.end()),
            FormCondition::Field(_) => all,
        })
    }
}

fn is_unconditioned(name: &str) -> bool {
    UNCONDITIONED.contains(&name) || UNCONDITIONED_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

impl FormCondition {
    fn read(condition: &Value) -> OperationResult<Self> {
        match condition {
            Value::Object(simple) => FieldCondition::simple(simple).map(FormCondition::Field),
            Value::Array(items) => FormCondition::operation(condition, items),
            _ => Err(invalid("Invalid condition test: must be a List or Object.")),
        }
    }

    fn operation(condition: &Value, items: &[Value]) -> OperationResult<Self> {
        let Some(operation) = items.first() else {
            return Err(invalid("Invalid Condition: missing operation identifier."));
        };
        let operation = text(operation)?;
        let lower = operation.to_ascii_lowercase();
        if !["eq", "starts-with", "content-length-range"].contains(&lower.as_str()) {
            return Err(invalid(&format!("Invalid Condition: unknown operation '{operation}'.")));
        }
        let [_, first, second] = items else {
            return Err(invalid(&format!("Invalid {operation}: wrong number of arguments.")));
        };
        if lower == "content-length-range" {
            return Ok(FormCondition::Size(bytes(first)?..=bytes(second)?));
        }
        let (field, text_of) = (text(first)?, condition.to_string());
        let value = match second {
            Value::Number(number) => number.to_string(),
            other => text(other)?.to_owned(),
        };
        let is_prefix = lower == "starts-with";
        let named = field.strip_prefix('$').filter(|name| !name.is_empty());
        let condition = FieldCondition {
            field: named.unwrap_or_default().to_ascii_lowercase(),
            value,
            is_prefix,
            text: text_of,
        };
        if named.is_none() { Err(condition.failed()) } else { Ok(FormCondition::Field(condition)) }
    }
}

impl FieldCondition {
    fn simple(condition: &Map<String, Value>) -> OperationResult<Self> {
        let mut properties = condition.iter();
        let (Some((field, value)), None) = (properties.next(), properties.next()) else {
            return Err(invalid(
                "Invalid Simple-Condition: Simple-Conditions must have exactly one property specified.",
            ));
        };
        let Value::String(value) = value else {
            return Err(invalid("Invalid Simple-Condition: value must be a string."));
        };
        let field = field.to_ascii_lowercase();
        let text = format!("[\"eq\", \"${field}\", \"{value}\"]");
        Ok(FieldCondition { field, value: value.clone(), is_prefix: false, text })
    }

    /// Returns whether the condition allows a value. A content type may be a list; each type in the list must begin
    /// with the prefix.
    fn allows(&self, value: &str) -> bool {
        match (self.is_prefix, self.field.as_str()) {
            (false, _) => value == self.value,
            (true, "content-type") => value.split(',').all(|kind| kind.trim().starts_with(&self.value)),
            (true, _) => value.starts_with(&self.value),
        }
    }

    /// Returns the error for a condition that is not met, with the text of the condition in the policy. The detail has
    /// the form of some of AWS's errors, because minio-go searches error messages for this form.
    fn failed(&self) -> S3Failure {
        let FieldCondition { field, value, is_prefix, text } = self;
        let operation = if *is_prefix { "starts-with" } else { "eq" };
        let words = format!("Invalid according to Policy: Policy Condition failed: {text}");
        let detail = format!(
            "Policy Condition failed: [\"{operation}\", \"${field}\", \"{value}\"]; change the field, or the policy"
        );
        S3Failure::aws("AccessDenied", StatusCode::FORBIDDEN, &words, &detail)
    }
}

fn decoded(encoded: &str) -> OperationResult<String> {
    const BASE64: GeneralPurpose = GeneralPurpose::new(
        &alphabet::STANDARD,
        GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
    );
    // Some programs insert line breaks into base64.
    let encoded: String = encoded.chars().filter(|character| !matches!(character, '\r' | '\n')).collect();
    if encoded.trim().is_empty() {
        return Err(invalid("Expecting '{' but found End-of-Input"));
    }
    let bytes = BASE64.decode(encoded.trim()).map_err(|_| invalid("invalid Base64 encoding."))?;
    String::from_utf8(bytes).map_err(|_| invalid("Invalid JSON."))
}

/// Replaces `\$` with an escape sequence that JSON supports. In policies, `\$` represents a dollar sign (see "Creating
/// a POST policy" in the S3 API reference).
fn with_escaped_dollars(document: &str) -> String {
    let (mut replaced, mut is_escaped) = (String::with_capacity(document.len()), false);
    for character in document.chars() {
        match (is_escaped, character) {
            (true, '$') => replaced.push_str("u0024"),
            _ => replaced.push(character),
        }
        is_escaped = !is_escaped && character == '\\';
    }
    replaced
}

fn text(value: &Value) -> OperationResult<&str> {
    value.as_str().ok_or_else(|| invalid("Invalid JSON."))
}

/// Reads a number of bytes, which some programs write as a string.
fn bytes(value: &Value) -> OperationResult<u64> {
    let number = value.as_u64().or_else(|| value.as_str()?.parse().ok());
    number.ok_or_else(|| invalid("Invalid JSON."))
}

fn invalid(words: &str) -> S3Failure {
    let words = format!("Invalid Policy: {words}");
    S3Failure::aws("InvalidPolicyDocument", StatusCode::BAD_REQUEST, &words, "")
}

fn denied(words: &str) -> S3Failure {
    let words = format!("Invalid according to Policy: {words}");
    S3Failure::aws("AccessDenied", StatusCode::FORBIDDEN, &words, "")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use base64::engine::general_purpose::STANDARD;
    use fordway_wire::form_data::{FormField, UploadFormFields};

    use super::*;

    const FUTURE: &str = "2100-01-01T00:00:00Z";

    fn policy(conditions: &str) -> String {
        format!("{{\"expiration\":\"{FUTURE}\",\"conditions\":{conditions}}}")
    }

    fn form(fields: &[(&str, &str)]) -> FormFields {
        let field = |(name, value): &(&str, &str)| FormField { name: (*name).into(), value: (*value).into() };
        let start = UploadFormFields { fields: fields.iter().map(field).collect(), file_name: String::new() };
        FormFields::new(start).unwrap()
    }

    fn said(failure: &S3Failure) -> (String, String) {
        let words = failure.0.message().unwrap_or_default().lines().next().unwrap_or_default();
        (failure.0.code().as_str().to_owned(), words.to_owned())
    }

    /// Checks a form with the given fields for the bucket `b` and the key `k`.
    fn checked(conditions: &str, fields: &[(&str, &str)]) -> Result<RangeInclusive<u64>, (String, String)> {
        let target = ("b".to_owned(), "k".to_owned());
        let read = PostPolicy::read(&STANDARD.encode(policy(conditions)));
        read.and_then(|policy| policy.check(&form(fields), &target, SystemTime::now()))
            .map_err(|error| said(&error))
    }

    #[test]
    fn documents_that_are_no_policies_are_refused_with_the_words_of_aws() {
        let far = |conditions: &str| policy(conditions);
        for (document, words) in [
            ("", "Expecting '{' but found End-of-Input"),
            ("no json", "Invalid JSON."),
            ("[]", "Invalid JSON."),
            ("{\"conditions\":[]}", "Policy missing expiration."),
            ("{\"EXPIRATION\":\"x\",\"conditions\":[]}", "Policy missing expiration."),
            ("{\"expiration\":\"2100-01-01T00:00:00Z\"}", "Policy missing conditions."),
            ("{\"expiration\":true,\"conditions\":[]}", "Invalid JSON."),
            ("{\"expiration\":\"soon\",\"conditions\":[]}", "Invalid 'expiration' value: 'soon'"),
            ("{\"expiration\":\"x\",\"conditions\":[],\"extra\":1}", "Unexpected: \"extra\""),
            (&far("true"), "Invalid 'conditions' value: must be a List."),
            (&far("[true]"), "Invalid condition test: must be a List or Object."),
            (&far("[[]]"), "Invalid Condition: missing operation identifier."),
            (&far("[[\"like\",\"$key\",\"k\"]]"), "Invalid Condition: unknown operation 'like'."),
            (&far("[[\"eq\",\"$key\"]]"), "Invalid eq: wrong number of arguments."),
            (
                &far("[[\"content-length-range\",0]]"),
                "Invalid content-length-range: wrong number of arguments.",
            ),
            (&far("[[\"content-length-range\",-1,5]]"), "Invalid JSON."),
            (&far("[[\"content-length-range\",1.5,5]]"), "Invalid JSON."),
            (&far("[[\"eq\",1,\"k\"]]"), "Invalid JSON."),
            (&far("[[\"eq\",\"$key\",true]]"), "Invalid JSON."),
            (&far("[{\"acl\":1}]"), "Invalid Simple-Condition: value must be a string."),
        ] {
            let failure = PostPolicy::read(&STANDARD.encode(document)).expect_err(document);
            let expected = ("InvalidPolicyDocument".to_owned(), format!("Invalid Policy: {words}"));
            assert_eq!(said(&failure), expected, "{document}");
        }
        let failure = PostPolicy::read("%").expect_err("no base64");
        assert_eq!(said(&failure).1, "Invalid Policy: invalid Base64 encoding.");
    }

    #[test]
    fn each_field_needs_a_condition_that_it_meets() {
        let key = ("key", "k");
        let all = |more: &str| format!("[{{\"bucket\":\"b\"}},[\"starts-with\",\"$key\",\"\"]{more}]");
        assert_eq!(checked(&all(""), &[key]), Ok(0..=u64::MAX));
        let denied =
            |words: &str| Err(("AccessDenied".to_owned(), format!("Invalid according to Policy: {words}")));
        let extra = |name: &str| denied(&format!("Extra input fields: {name}"));
        assert_eq!(checked("[{\"bucket\":\"b\"}]", &[key]), extra("key"));
        assert_eq!(checked("[{\"key\":\"k\"}]", &[key]), extra("bucket"));
        assert_eq!(checked(&all(""), &[key, ("acl", "private")]), extra("acl"));
        let free =
            [key, ("policy", ""), ("x-ignore-a", ""), ("x-amz-signature", ""), ("x-amz-checksum-crc32", "")];
        assert_eq!(checked(&all(""), &free), Ok(0..=u64::MAX));
        let failed = |text: &str| denied(&format!("Policy Condition failed: {text}"));
        assert_eq!(
            checked("[{\"BUCKET\":\"c\"},{\"key\":\"k\"}]", &[key]),
            failed("[\"eq\", \"$bucket\", \"c\"]")
        );
        let meta = "[\"StArTs-WiTh\",\"$X-Amz-Meta-A\",\"x\"]";
        assert_eq!(checked(&all(&format!(",{meta}")), &[key, ("x-amz-meta-a", "xy")]), Ok(0..=u64::MAX));
        assert_eq!(checked(&all(&format!(",{meta}")), &[key, ("x-amz-meta-a", "y")]), failed(meta));
        assert_eq!(checked(&all(&format!(",{meta}")), &[key]), failed(meta), "the field is missing");
        assert_eq!(checked(&all(",[\"eq\",\"acl\",\"x\"]"), &[key]), failed("[\"eq\",\"acl\",\"x\"]"));
        let kinds = all(",[\"starts-with\",\"$Content-Type\",\"text/\"]");
        assert!(checked(&kinds, &[key, ("content-type", "text/plain, text/html")]).is_ok());
        assert!(checked(&kinds, &[key, ("content-type", "text/plain, image/png")]).is_err());
    }

    #[test]
    fn sizes_are_the_strictest() {
        let sizes = "[{\"bucket\":\"b\"},[\"content-length-range\",1,\"10\"],[\"content-length-range\",0,5]]";
        assert_eq!(checked(sizes, &[]), Ok(1..=5));
    }

    #[test]
    fn a_dollar_may_be_escaped() {
        assert_eq!(with_escaped_dollars(r#""\$a\\$b\\\$""#), r#""\u0024a\\$b\\\u0024""#);
        let read = PostPolicy::read(&STANDARD.encode(policy(r#"[["eq","$key","\$k"]]"#))).unwrap();
        assert_eq!(read.fields().next().unwrap().value, "$k");
    }

    #[test]
    fn a_policy_expires() {
        let read = PostPolicy::read(&STANDARD.encode(policy("[{\"bucket\":\"b\"}]"))).unwrap();
        let target = ("b".to_owned(), "k".to_owned());
        let end = parse_iso8601(FUTURE).unwrap();
        assert!(read.check(&form(&[]), &target, end).is_ok());
        let late = read.check(&form(&[]), &target, end + Duration::from_secs(1)).expect_err("it expired");
        assert_eq!(said(&late).1, "Invalid according to Policy: Policy expired.");
    }
}
