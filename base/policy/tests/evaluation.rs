//! Tests AWS's documented examples of policy evaluation, and properties that hold for all policies.

use fordway_policy::{
    AccessRequest, Action, BucketAccessDecision, BucketAccessRules, CallerRole, CannedAcl,
    ConditionKeyValues, Policy, Principal, PublicAccessBlock, Verdict,
};
use proptest::prelude::*;

const BUCKET: &str = "amzn-s3-demo-bucket";

fn parsed(statements: &str) -> Policy {
    let document = format!("{{\"Version\": \"2012-10-17\", \"Statement\": [{statements}]}}");
    Policy::parse(document.as_bytes(), BUCKET).unwrap_or_else(|error| panic!("{error}: {document}"))
}

fn verdict(
    policy: &Policy,
    user: Option<&str>,
    action: &str,
    key: Option<&str>,
    keys: &[(&str, &str)],
) -> Verdict {
    let principal = user.map_or(Principal::Anonymous, Principal::User);
    let mut found = ConditionKeyValues::default();
    keys.iter().for_each(|(key, value)| found.add(key.to_string(), value.to_string()));
    if let Some(user) = user {
        found.add("aws:username", user);
    }
    let action = Action::new(action).unwrap();
    policy.decide(&AccessRequest { principal, action, bucket: BUCKET, key, keys: found }).verdict
}

use Verdict::{Allowed, Denied, NotAllowed};

/// A policy, and requests with the expected decisions: user, action, key, condition keys.
type Case = (
    &'static str,
    &'static [(
        Option<&'static str>,
        &'static str,
        Option<&'static str>,
        &'static [(&'static str, &'static str)],
        Verdict,
    )],
);

/// The examples are from the S3 user guide, "Examples of Amazon S3 bucket policies", and the IAM user guide, "Policy
/// evaluation logic" and "Policies and permissions: examples". Supported condition keys replace unsupported ones.
const CASES: &[Case] = &[
    // Read-only permission for everybody.
    (
        r#"{"Sid": "PublicRead", "Effect": "Allow", "Principal": "*", "Action": ["s3:GetObject", "s3:GetObjectVersion"],
            "Resource": ["arn:aws:s3:::amzn-s3-demo-bucket/*"]}"#,
        &[
            (None, "GetObject", Some("a"), &[], Allowed),
            (Some("u"), "GetObject", Some("a/b"), &[], Allowed),
            (None, "PutObject", Some("a"), &[], NotAllowed),
            (None, "ListBucket", None, &[], NotAllowed),
        ],
    ),
    // Allow only uploads with the canned ACL that gives the bucket's owner full control.
    (
        r#"{"Effect": "Allow", "Principal": {"AWS": "arn:aws:iam::111122223333:root"}, "Action": "s3:PutObject",
            "Resource": "arn:aws:s3:::amzn-s3-demo-bucket/*",
            "Condition": {"StringEquals": {"s3:x-amz-acl": "bucket-owner-full-control"}}}"#,
        &[
            (
                Some("111122223333"),
                "PutObject",
                Some("a"),
                &[("s3:x-amz-acl", "bucket-owner-full-control")],
                Allowed,
            ),
            (Some("111122223333"), "PutObject", Some("a"), &[], NotAllowed),
            (
                Some("other"),
                "PutObject",
                Some("a"),
                &[("s3:x-amz-acl", "bucket-owner-full-control")],
                NotAllowed,
            ),
        ],
    ),
    // A specific network.
    (
        r#"{"Sid": "IPAllow", "Effect": "Deny", "Principal": "*", "Action": "s3:*",
            "Resource": ["arn:aws:s3:::amzn-s3-demo-bucket", "arn:aws:s3:::amzn-s3-demo-bucket/*"],
            "Condition": {"NotIpAddress": {"aws:SourceIp": "192.0.2.0/24"}}}"#,
        &[
            (Some("u"), "GetObject", Some("a"), &[("aws:sourceip", "192.0.2.9")], NotAllowed),
            (Some("u"), "GetObject", Some("a"), &[("aws:sourceip", "203.0.113.9")], Denied),
            (Some("u"), "ListBucket", None, &[], Denied),
        ],
    ),
    // IPv4 and IPv6 ranges, with one address excluded.
    (
        r#"{"Effect": "Allow", "Principal": "*", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::amzn-s3-demo-bucket/*",
            "Condition": {"IpAddress": {"aws:SourceIp": ["192.0.2.0/24", "2001:DB8:1234:5678::/64"]},
                          "NotIpAddress": {"aws:SourceIp": "192.0.2.188/32"}}}"#,
        &[
            (None, "GetObject", Some("a"), &[("aws:sourceip", "192.0.2.1")], Allowed),
            (None, "GetObject", Some("a"), &[("aws:sourceip", "2001:db8:1234:5678::1")], Allowed),
            (None, "GetObject", Some("a"), &[("aws:sourceip", "192.0.2.188")], NotAllowed),
            (None, "GetObject", Some("a"), &[("aws:sourceip", "2001:db8:1234:5679::1")], NotAllowed),
        ],
    ),
    // HTTPS only.
    (
        r#"{"Effect": "Deny", "Principal": "*", "Action": "s3:*",
            "Resource": ["arn:aws:s3:::amzn-s3-demo-bucket", "arn:aws:s3:::amzn-s3-demo-bucket/*"],
            "Condition": {"Bool": {"aws:SecureTransport": "false"}}},
           {"Effect": "Allow", "Principal": {"AWS": "u"}, "Action": "s3:GetObject",
            "Resource": "arn:aws:s3:::amzn-s3-demo-bucket/*"}"#,
        &[
            (Some("u"), "GetObject", Some("a"), &[("aws:securetransport", "true")], Allowed),
            (Some("u"), "GetObject", Some("a"), &[("aws:securetransport", "false")], Denied),
            (Some("v"), "GetObject", Some("a"), &[("aws:securetransport", "true")], NotAllowed),
        ],
    ),
    // A specific referer.
    (
        r#"{"Effect": "Allow", "Principal": "*", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::amzn-s3-demo-bucket/*",
            "Condition": {"StringLike": {"aws:Referer": ["http://www.example.com/*", "http://example.com/*"]}}}"#,
        &[
            (None, "GetObject", Some("a"), &[("aws:referer", "http://example.com/x")], Allowed),
            (None, "GetObject", Some("a"), &[("aws:referer", "http://example.org/x")], NotAllowed),
            (None, "GetObject", Some("a"), &[], NotAllowed),
        ],
    ),
    // Each user's own folder.
    (
        r#"{"Effect": "Allow", "Principal": "*", "Action": ["s3:GetObject", "s3:PutObject"],
            "Resource": "arn:aws:s3:::amzn-s3-demo-bucket/home/${aws:username}/*"},
           {"Effect": "Allow", "Principal": "*", "Action": "s3:ListBucket", "Resource": "arn:aws:s3:::amzn-s3-demo-bucket",
            "Condition": {"StringLike": {"s3:prefix": ["", "home/", "home/${aws:username}/*"]}}}"#,
        &[
            (Some("ann"), "PutObject", Some("home/ann/x"), &[], Allowed),
            (Some("ann"), "PutObject", Some("home/bob/x"), &[], NotAllowed),
            (Some("a*"), "PutObject", Some("home/ann/x"), &[], NotAllowed),
            (None, "PutObject", Some("home//x"), &[], NotAllowed),
            (Some("ann"), "ListBucket", None, &[("s3:prefix", "home/ann/x")], Allowed),
            (Some("ann"), "ListBucket", None, &[("s3:prefix", "home/bob/")], NotAllowed),
            (Some("ann"), "ListBucket", None, &[], NotAllowed),
        ],
    ),
    // Tags of objects.
    (
        r#"{"Effect": "Allow", "Principal": "*", "Action": ["s3:GetObject"], "Resource": "arn:aws:s3:::amzn-s3-demo-bucket/*",
            "Condition": {"StringEquals": {"s3:ExistingObjectTag/environment": "production"}}}"#,
        &[
            (None, "GetObject", Some("a"), &[("s3:existingobjecttag/environment", "production")], Allowed),
            (None, "GetObject", Some("a"), &[("s3:existingobjecttag/environment", "test")], NotAllowed),
            (None, "GetObject", Some("a"), &[], NotAllowed),
        ],
    ),
    // Allow only the listed tag names.
    (
        r#"{"Effect": "Allow", "Principal": "*", "Action": "s3:PutObjectTagging", "Resource": "arn:aws:s3:::amzn-s3-demo-bucket/*",
            "Condition": {"ForAllValues:StringLike": {"s3:RequestObjectTagKeys": ["Owner", "CreationDate"]}}}"#,
        &[
            (Some("u"), "PutObjectTagging", Some("a"), &[("s3:requestobjecttagkeys", "Owner")], Allowed),
            (
                Some("u"),
                "PutObjectTagging",
                Some("a"),
                &[("s3:requestobjecttagkeys", "Owner"), ("s3:requestobjecttagkeys", "Other")],
                NotAllowed,
            ),
            (Some("u"), "PutObjectTagging", Some("a"), &[], Allowed),
        ],
    ),
    // A limit on the page size.
    (
        r#"{"Effect": "Deny", "Principal": {"AWS": "u"}, "Action": "s3:ListBucket", "Resource": "arn:aws:s3:::amzn-s3-demo-bucket",
            "Condition": {"NumericGreaterThan": {"s3:max-keys": "10"}}}"#,
        &[
            (Some("u"), "ListBucket", None, &[("s3:max-keys", "11")], Denied),
            (Some("u"), "ListBucket", None, &[("s3:max-keys", "10")], NotAllowed),
            (Some("u"), "ListBucket", None, &[], NotAllowed),
        ],
    ),
    // An explicit deny takes precedence, regardless of its position.
    (
        r#"{"Effect": "Allow", "Principal": "*", "Action": "s3:*", "Resource": "arn:aws:s3:::amzn-s3-demo-bucket/*"},
           {"Effect": "Deny", "Principal": "*", "Action": "s3:DeleteObject", "Resource": "arn:aws:s3:::amzn-s3-demo-bucket/keep/*"},
           {"Effect": "Allow", "Principal": {"AWS": "u"}, "Action": "s3:*", "Resource": "arn:aws:s3:::amzn-s3-demo-bucket/*"}"#,
        &[
            (Some("u"), "DeleteObject", Some("keep/a"), &[], Denied),
            (Some("u"), "DeleteObject", Some("other"), &[], Allowed),
            (Some("u"), "ListBucket", None, &[], NotAllowed),
        ],
    ),
    // NotPrincipal with Deny, NotAction, NotResource.
    (
        r#"{"Effect": "Deny", "NotPrincipal": {"AWS": ["boss", "arn:aws:iam::444455556666:root"]}, "Action": "s3:*",
            "Resource": ["arn:aws:s3:::amzn-s3-demo-bucket", "arn:aws:s3:::amzn-s3-demo-bucket/*"]}"#,
        &[
            (Some("boss"), "GetObject", Some("a"), &[], NotAllowed),
            (Some("444455556666"), "GetObject", Some("a"), &[], NotAllowed),
            (Some("u"), "GetObject", Some("a"), &[], Denied),
            (None, "ListBucket", None, &[], Denied),
        ],
    ),
    (
        r#"{"Effect": "Allow", "Principal": {"AWS": "u"}, "NotAction": ["s3:Delete*", "s3:Put*"], "Resource": "arn:aws:s3:::amzn-s3-demo-bucket/*"},
           {"Effect": "Deny", "Principal": "*", "Action": "s3:GetObject", "NotResource": "arn:aws:s3:::amzn-s3-demo-bucket/public/*"}"#,
        &[
            (Some("u"), "GetObject", Some("public/a"), &[], Allowed),
            (Some("u"), "GetObject", Some("a"), &[], Denied),
            (Some("u"), "GetObjectTagging", Some("a"), &[], Allowed),
            (Some("u"), "PutObject", Some("a"), &[], NotAllowed),
        ],
    ),
    // IfExists and Null.
    (
        r#"{"Effect": "Allow", "Principal": "*", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::amzn-s3-demo-bucket/*",
            "Condition": {"StringLikeIfExists": {"aws:Referer": "https://a/*"}, "Null": {"aws:UserAgent": "false"}}}"#,
        &[
            (None, "GetObject", Some("a"), &[("aws:useragent", "x")], Allowed),
            (
                None,
                "GetObject",
                Some("a"),
                &[("aws:useragent", "x"), ("aws:referer", "https://b/")],
                NotAllowed,
            ),
            (None, "GetObject", Some("a"), &[("aws:referer", "https://a/")], NotAllowed),
        ],
    ),
    // A time between a start and an end.
    (
        r#"{"Effect": "Allow", "Principal": "*", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::amzn-s3-demo-bucket/*",
            "Condition": {"DateGreaterThan": {"aws:CurrentTime": "2026-04-01T00:00:00Z"},
                          "DateLessThan": {"aws:CurrentTime": "2026-06-30T23:59:59Z"}}}"#,
        &[
            (None, "GetObject", Some("a"), &[("aws:currenttime", "2026-05-01T00:00:00.000Z")], Allowed),
            (None, "GetObject", Some("a"), &[("aws:currenttime", "2026-07-01T00:00:00.000Z")], NotAllowed),
        ],
    ),
];

#[test]
fn the_documented_cases_are_answered_as_documented() {
    for (statements, requests) in CASES {
        let policy = parsed(statements);
        for (user, action, key, keys, expected) in *requests {
            let found = verdict(&policy, *user, action, *key, keys);
            assert_eq!(found, *expected, "{user:?} {action} {key:?} {keys:?}: {statements}");
        }
    }
}

/// Only the 2012 version of the language has variables.
#[test]
fn an_old_policy_has_no_variables() {
    let statement = r#"{"Effect": "Allow", "Principal": "*", "Action": "s3:GetObject",
        "Resource": "arn:aws:s3:::amzn-s3-demo-bucket/${aws:username}/*"}"#;
    let old = Policy::parse(format!("{{\"Statement\": {statement}}}").as_bytes(), BUCKET).unwrap();
    assert_eq!(verdict(&old, Some("ann"), "GetObject", Some("ann/x"), &[]), NotAllowed);
    assert_eq!(verdict(&old, Some("ann"), "GetObject", Some("${aws:username}/x"), &[]), Allowed);
    assert_eq!(verdict(&parsed(statement), Some("ann"), "GetObject", Some("ann/x"), &[]), Allowed);
}

/// The examples are from "The meaning of public" in the S3 user guide.
#[test]
fn public_policies_are_known() {
    let is_public = |principal: &str, condition: &str| {
        parsed(&format!(
            "{{\"Effect\": \"Allow\", \"Principal\": {principal}, \"Action\": \"s3:GetObject\", \
             \"Resource\": \"arn:aws:s3:::{BUCKET}/*\"{condition}}}"
        ))
        .is_public()
    };
    let when = |text: &str| format!(", \"Condition\": {text}");
    assert!(is_public("\"*\"", ""));
    assert!(is_public("{\"AWS\": \"*\"}", &when(r#"{"StringEquals": {"aws:Referer": "x"}}"#)));
    assert!(is_public("\"*\"", &when(r#"{"IpAddress": {"aws:SourceIp": "0.0.0.0/1"}}"#)));
    assert!(is_public("\"*\"", &when(r#"{"IpAddress": {"aws:SourceIp": ["10.0.0.0/8", "::/0"]}}"#)));
    assert!(is_public("\"*\"", &when(r#"{"NotIpAddress": {"aws:SourceIp": "10.0.0.0/8"}}"#)));
    assert!(is_public("\"*\"", &when(r#"{"StringLike": {"aws:userid": "a*"}}"#)));
    for network in ["::/32", "::/0", "::ffff:0.0.0.0/96", "::ffff:0.0.0.0/103", "2000::/31"] {
        let condition = format!("{{\"IpAddress\": {{\"aws:SourceIp\": \"{network}\"}}}}");
        let is_narrow = network == "::/32";
        assert_eq!(is_public("\"*\"", &when(&condition)), !is_narrow, "{network}");
    }
    for (operator, value) in
        [("StringEquals", "anonymous"), ("StringLike", "anonymous"), ("StringEqualsIgnoreCase", "Anonymous")]
    {
        let condition = format!("{{\"{operator}\": {{\"aws:userid\": [\"ann\", \"{value}\"]}}}}");
        assert!(is_public("\"*\"", &when(&condition)), "{operator} {value}");
    }
    assert!(!is_public("{\"AWS\": \"u\"}", ""));
    assert!(!is_public("\"*\"", &when(r#"{"IpAddress": {"aws:SourceIp": "::ffff:10.0.0.0/104"}}"#)));
    assert!(!is_public("\"*\"", &when(r#"{"IpAddress": {"aws:SourceIp": "10.0.0.0/8"}}"#)));
    assert!(!is_public("\"*\"", &when(r#"{"StringEquals": {"aws:userid": "ann"}}"#)));
}

/// A session has the ARN of its role and an ARN of its own. Both ARNs name the session, in principals and in
/// conditions.
#[test]
fn sessions_are_named_by_both_of_their_arns() {
    let role = "arn:aws:iam:::role/readers";
    let session = "arn:aws:sts:::assumed-role/readers/night-run";
    let decide = |statement: &str, caller: &'static str| {
        let principal = Principal::Role { name: "readers", session: Some(caller) };
        let mut keys = ConditionKeyValues::default();
        keys.add("aws:principalarn", role);
        let action = Action::new("GetObject").unwrap();
        let request = AccessRequest { principal, action, bucket: BUCKET, key: Some("k"), keys };
        parsed(statement).decide(&request).verdict
    };
    let statement = |effect: &str, rest: &str| {
        format!(
            "{{\"Effect\": \"{effect}\", {rest}, \"Action\": \"s3:*\", \"Resource\": \"arn:aws:s3:::{BUCKET}/*\"}}"
        )
    };
    let when = |operator: &str, arn: &str| {
        format!(
            "\"Principal\": \"*\", \"Condition\": {{\"{operator}\": {{\"aws:PrincipalArn\": \"{arn}\"}}}}"
        )
    };
    let is = |arn: &str| format!("\"Principal\": {{\"AWS\": \"{arn}\"}}");
    let is_not = |arn: &str| format!("\"NotPrincipal\": {{\"AWS\": \"{arn}\"}}");
    for (effect, rest, of_night, of_day) in [
        ("Allow", is(session), Allowed, NotAllowed),
        ("Allow", is(role), Allowed, Allowed),
        ("Deny", is_not(session), NotAllowed, Denied),
        ("Deny", is_not(role), NotAllowed, NotAllowed),
        ("Allow", when("ArnEquals", session), Allowed, NotAllowed),
        ("Allow", when("ArnLike", "arn:aws:sts:::assumed-role/readers/day-*"), NotAllowed, Allowed),
        ("Allow", when("StringEquals", role), Allowed, Allowed),
        ("Allow", when("ForAllValues:StringEquals", role), Allowed, Allowed),
        ("Deny", when("ArnNotEquals", session), NotAllowed, Denied),
        ("Deny", when("StringNotEquals", role), NotAllowed, NotAllowed),
    ] {
        let statement = statement(effect, &rest);
        assert_eq!(decide(&statement, "night-run"), of_night, "{statement}");
        assert_eq!(decide(&statement, "day-run"), of_day, "{statement}");
    }
}

#[test]
fn rules_know_the_owner_and_the_public() {
    let request = |user| AccessRequest {
        principal: user,
        action: Action::new("GetObject").unwrap(),
        bucket: BUCKET,
        key: Some("a"),
        keys: ConditionKeyValues::default(),
    };
    let (ann, none) = (request(Principal::User("ann")), request(Principal::Anonymous));
    let nothing = BucketAccessRules::default();
    assert_eq!(nothing.rule(CallerRole::User, &ann), BucketAccessDecision::NoPolicy);
    assert_eq!(nothing.rule(CallerRole::Anonymous, &none), BucketAccessDecision::Anonymous);
    let policy = parsed(CASES[0].0);
    let mut rules = BucketAccessRules { policy: Some(policy), ..BucketAccessRules::default() };
    assert_eq!(rules.rule(CallerRole::Anonymous, &none), BucketAccessDecision::Allowed(0));
    rules.block.restrict_public_buckets = true;
    assert_eq!(rules.rule(CallerRole::Anonymous, &none), BucketAccessDecision::Restricted);
    assert_eq!(rules.rule(CallerRole::User, &ann), BucketAccessDecision::Restricted);
    assert_eq!(rules.rule(CallerRole::Owner, &ann), BucketAccessDecision::Owner);
}

/// An ACL can allow a request that no statement allows. A denial and the public access block take precedence over the
/// ACL.
#[test]
fn acls_allow_what_no_statement_denies() {
    let request = |principal, action: &str| AccessRequest {
        principal,
        action: Action::new(action).unwrap(),
        bucket: BUCKET,
        key: None,
        keys: ConditionKeyValues::default(),
    };
    let (ann, none) = (Principal::User("ann"), Principal::Anonymous);
    let statement = |effect: &str, who: &str| {
        format!(
            "{{\"Effect\": \"{effect}\", \"Principal\": {who}, \"Action\": \"s3:ListBucket\", \
             \"Resource\": \"arn:aws:s3:::{BUCKET}\"}}"
        )
    };
    let mut rules = BucketAccessRules { acl: CannedAcl::PublicRead, ..BucketAccessRules::default() };
    let rule =
        |rules: &BucketAccessRules, role, principal, action| rules.rule(role, &request(principal, action));
    let (user, anonymous) = (CallerRole::User, CallerRole::Anonymous);
    assert_eq!(rule(&rules, anonymous, none, "ListBucket"), BucketAccessDecision::AllowedByAcl);
    assert_eq!(rule(&rules, anonymous, none, "PutObject"), BucketAccessDecision::Anonymous);
    assert_eq!(rule(&rules, user, ann, "PutObject"), BucketAccessDecision::NoPolicy);
    rules.policy = Some(parsed(&statement("Allow", "\"bob\"")));
    assert_eq!(rule(&rules, user, ann, "ListBucket"), BucketAccessDecision::AllowedByAcl);
    assert_eq!(rule(&rules, user, ann, "PutObject"), BucketAccessDecision::NotAllowed);
    rules.acl = CannedAcl::AuthenticatedRead;
    assert_eq!(rule(&rules, user, ann, "ListBucket"), BucketAccessDecision::AllowedByAcl);
    assert_eq!(rule(&rules, anonymous, none, "ListBucket"), BucketAccessDecision::NotAllowed);
    rules.block.ignore_public_acls = true;
    assert_eq!(rule(&rules, user, ann, "ListBucket"), BucketAccessDecision::NotAllowed);
    rules.block = PublicAccessBlock { restrict_public_buckets: true, ..PublicAccessBlock::default() };
    assert_eq!(rule(&rules, user, ann, "ListBucket"), BucketAccessDecision::AllowedByAcl);
    rules.policy = Some(parsed(&statement("Allow", "\"*\"")));
    assert_eq!(rule(&rules, user, ann, "ListBucket"), BucketAccessDecision::Restricted);
    rules.policy = Some(parsed(&statement("Deny", "\"*\"")));
    assert_eq!(rule(&rules, user, ann, "ListBucket"), BucketAccessDecision::Denied(0));
    assert_eq!(rule(&rules, CallerRole::Owner, ann, "PutObject"), BucketAccessDecision::Owner);
}

/// Generates random valid statements.
fn statement() -> impl Strategy<Value = String> {
    let effect = prop_oneof![Just("Allow"), Just("Deny")];
    let principal =
        prop_oneof![Just("\"*\""), Just("\"ann\""), Just("[\"ann\", \"bob\"]"), Just("{\"AWS\": \"bob\"}")];
    let action = prop_oneof![Just("s3:*"), Just("s3:GetObject"), Just("s3:Get*"), Just("s3:PutObject")];
    let resource = prop_oneof![Just("*"), Just("a/*"), Just("?"), Just("${aws:username}/*"), Just("b*c")];
    let condition = prop_oneof![
        Just(""),
        Just(r#", "Condition": {"StringLike": {"aws:Referer": "x*"}}"#),
        Just(r#", "Condition": {"Null": {"aws:Referer": "true"}}"#),
    ];
    (effect, principal, action, resource, condition).prop_map(
        |(effect, principal, action, resource, condition)| {
            format!(
                "{{\"Effect\": \"{effect}\", \"Principal\": {principal}, \"Action\": \"{action}\", \
             \"Resource\": \"arn:aws:s3:::{BUCKET}/{resource}\"{condition}}}"
            )
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_time: 5_000, ..ProptestConfig::default() })]

    /// Parsing arbitrary bytes returns a policy or an error, and never panics.
    #[test]
    fn any_bytes_are_answered(bytes in proptest::collection::vec(any::<u8>(), 0..200), text in "\\PC{0,80}") {
        let _ = Policy::parse(&bytes, BUCKET);
        let _ = Policy::parse(format!("{{{text}").as_bytes(), BUCKET);
        let resource = format!("{{\"Statement\": {{\"Effect\": \"Deny\", \"Principal\": \"*\", \"Action\": \"s3:GetObject\", \"Resource\": {:?}}}}}", text);
        let _ = Policy::parse(resource.as_bytes(), BUCKET);
    }

    /// The order of statements does not matter. An additional `Deny` statement never causes more requests to be
    /// allowed. The report of [`Policy::explain`] agrees with the decision.
    #[test]
    fn denials_only_take_away(
        statements in proptest::collection::vec(statement(), 1..6),
        user in prop_oneof![Just(None), Just(Some("ann")), Just(Some("bob"))],
        action in prop_oneof![Just("GetObject"), Just("PutObject")],
        key in prop_oneof![Just("a/x"), Just("x"), Just("ann/y"), Just("bc"), Just("ä")],
        referer in prop_oneof![Just(None), Just(Some("xy")), Just(Some("z"))],
    ) {
        let policy = parsed(&statements.join(","));
        let keys: Vec<_> = referer.iter().map(|value| ("aws:referer", *value)).collect();
        let found = verdict(&policy, user, action, Some(key), &keys);
        let reversed: Vec<_> = statements.iter().rev().cloned().collect();
        prop_assert_eq!(found, verdict(&parsed(&reversed.join(",")), user, action, Some(key), &keys));

        let allows: Vec<_> = statements.iter().filter(|text| text.contains("Allow")).cloned().collect();
        if found == Allowed {
            prop_assert_eq!(verdict(&parsed(&allows.join(",")), user, action, Some(key), &keys), Allowed);
        }
        let mut values = ConditionKeyValues::default();
        keys.iter().for_each(|(key, value)| values.add(*key, *value));
        if let Some(user) = user {
            values.add("aws:username", user);
        }
        let principal = user.map_or(Principal::Anonymous, Principal::User);
        let action = Action::new(action).unwrap();
        let reports = policy.explain(&AccessRequest { principal, action, bucket: BUCKET, key: Some(key), keys: values });
        let applies = |effect| reports.iter().any(|report| report.effect == effect && report.mismatch.is_none());
        let expected = match (applies(fordway_policy::Effect::Deny), applies(fordway_policy::Effect::Allow)) {
            (true, _) => Denied,
            (false, true) => Allowed,
            (false, false) => NotAllowed,
        };
        prop_assert_eq!(found, expected);
    }
}
