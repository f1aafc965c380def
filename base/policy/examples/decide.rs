//! Decides requests from standard input, one JSON object per line, for `tools/soak-policy`: `{"policy": TEXT,
//! "bucket": NAME, "key": KEY or null, "action": NAME, "user": NAME or null, "owner": BOOLEAN, "values": {KEY:
//! [VALUE, ...]}}`. Writes `allow`, `deny` or `malformed: REASON` for each request.

use std::io::{BufRead as _, Write as _};

use fordway_policy::{
    AccessRequest, Action, BucketAccessRules, CallerRole, ConditionKeyValues, Policy, Principal,
    canonical_key,
};
use serde_json::Value;

fn main() -> std::io::Result<()> {
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    for line in std::io::stdin().lock().lines() {
        let case: Value = serde_json::from_str(&line?)?;
        writeln!(out, "{}", answer(&case))?;
    }
    out.flush()
}

fn answer(case: &Value) -> String {
    let text = |name: &str| case[name].as_str();
    let bucket = text("bucket").unwrap_or_default();
    let policy = match Policy::parse(text("policy").unwrap_or_default().as_bytes(), bucket) {
        Ok(policy) => policy,
        Err(error) => return format!("malformed: {error}"),
    };
    let Some(action) = text("action").and_then(Action::new) else { return "malformed: action".to_owned() };
    let mut keys = ConditionKeyValues::default();
    for (key, values) in case["values"].as_object().into_iter().flatten() {
        for value in values.as_array().into_iter().flatten().filter_map(Value::as_str) {
            keys.add(canonical_key(key), value);
        }
    }
    let role = match (text("user"), case["owner"] == true) {
        (None, _) => CallerRole::Anonymous,
        (_, true) => CallerRole::Owner,
        _ => CallerRole::User,
    };
    let principal = text("user").map_or(Principal::Anonymous, Principal::User);
    let request = AccessRequest { principal, action, bucket, key: text("key"), keys };
    let rules = BucketAccessRules { policy: Some(policy), ..BucketAccessRules::default() };
    if rules.rule(role, &request).is_permitted() { "allow".to_owned() } else { "deny".to_owned() }
}
