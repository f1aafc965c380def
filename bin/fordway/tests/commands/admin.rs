//! Tests `admin` against an in-memory store. `lanes.rs` tests `admin` on all lanes.

use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;

use fordway_command::CommandExit;
use fordway_store::{BucketDocumentKind, BucketDocumentOperations, ErrorKind};
use serde_json::{Value, json};

use crate::support::{Fault, FaultyStore, Rig, bucket};

const CORS: &str = "<CORSConfiguration><CORSRule><AllowedMethod>GET</AllowedMethod>\
    <AllowedOrigin>*</AllowedOrigin></CORSRule></CORSConfiguration>";
const PUBLIC: &str = r#"{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Principal": "*",
    "Action": "s3:GetObject", "Resource": "arn:aws:s3:::bkt/*"}]}"#;

fn stored(rig: &Rig, kind: &'static str) -> Option<String> {
    let document = rig.memory.document(&bucket("bkt"), &BucketDocumentKind::known(kind)).unwrap();
    document.map(|document| String::from_utf8(document).unwrap())
}

fn set(rig: &Rig, setting: &str, content: &str) -> crate::support::Ran {
    rig.write("file", content);
    rig.run(&["admin", "set", setting, "s3://bkt", "--file", "DIR/file"])
}

#[test]
fn a_setting_is_set_printed_and_removed() {
    let mut rig = Rig::new();
    assert_eq!(set(&rig, "cors", CORS).ok().stdout, "set: cors of s3://bkt\n");
    assert!(stored(&rig, "cors").unwrap().ends_with(CORS));
    let document = rig.run(&["admin", "get", "cors", "s3://bkt"]).ok().stdout;
    assert!(document.ends_with(&format!("{CORS}\n")), "{document}");
    let printed = rig.run(&["admin", "get", "cors", "s3://bkt", "--json"]).ok().stdout;
    let rule = json!({"AllowedMethods": ["GET"], "AllowedOrigins": ["*"]});
    assert_eq!(serde_json::from_str::<Value>(&printed).unwrap(), json!({ "CORSRules": [rule] }));
    assert_eq!(rig.run(&["admin", "rm", "cors", "s3://bkt"]).ok().stdout, "remove: cors of s3://bkt\n");
    let silent = rig.run(&["admin", "get", "cors", "s3://bkt", "--quiet"]).ended(CommandExit::NotFound);
    assert!(silent.stderr.contains("has no cors setting"), "{}", silent.stderr);
    let missing = rig.run(&["admin", "get", "cors", "s3://bkt"]).ended(CommandExit::NotFound);
    assert!(missing.stderr.contains("`fordway admin set cors`"), "{}", missing.stderr);
    rig.run(&["admin", "rm", "cors", "s3://bkt"]).ok();
    for form in [document, printed] {
        rig.input = form.into_bytes();
        rig.run(&["admin", "set", "cors", "s3://bkt", "--file", "-", "--quiet"]).ok();
        assert!(stored(&rig, "cors").unwrap().ends_with(CORS));
    }
}

#[test]
fn a_policy_is_kept_as_it_is() {
    let rig = Rig::new();
    set(&rig, "policy", PUBLIC).ok();
    assert_eq!(stored(&rig, "policy").unwrap(), PUBLIC);
    assert_eq!(rig.run(&["admin", "get", "policy", "s3://bkt"]).ok().stdout, format!("{PUBLIC}\n"));
    let printed = rig.run(&["admin", "get", "policy", "s3://bkt", "--json"]).ok().stdout;
    assert_eq!(serde_json::from_str::<Value>(&printed).unwrap(), json!({ "Policy": PUBLIC }));
    rig.run(&["admin", "rm", "policy", "s3://bkt"]).ok();
    set(&rig, "policy", &printed).ok();
    assert_eq!(stored(&rig, "policy").unwrap(), PUBLIC);
    set(&rig, "public-access", r#"{"BlockPublicPolicy": true}"#).ok();
    set(&rig, "policy", PUBLIC).ended(CommandExit::Denied);
}

/// The command must check documents, because a store does not check them, and gateways apply them.
#[test]
fn wrong_documents_are_refused() {
    let rig = Rig::new();
    for (setting, content, exit) in [
        ("cors", "", CommandExit::Usage),
        ("cors", "text", CommandExit::Usage),
        ("cors", "{", CommandExit::Usage),
        ("cors", "<Tagging><TagSet/></Tagging>", CommandExit::Usage),
        (
            "cors",
            r#"{"CORSRules": [{"AllowedMethods": ["FLY"], "AllowedOrigins": ["*"]}]}"#,
            CommandExit::Usage,
        ),
        ("cors", r#"{"CORSRule": [{"AllowedMethod": "GET", "x": "y"}]}"#, CommandExit::Failure),
        ("ownership", r#"{"Rules": [{"ObjectOwnership": "Nobody"}]}"#, CommandExit::Usage),
        ("lifecycle", r#"{"Rules": []}"#, CommandExit::Usage),
        ("policy", "{}", CommandExit::Usage),
        ("policy", CORS, CommandExit::Usage),
        ("lock", r#"{"ObjectLockEnabled": "Enabled"}"#, CommandExit::Usage),
        (
            "events",
            r#"{"QueueConfigurations": [{"QueueArn": "arn:aws:sqs:::q", "Events": []}]}"#,
            CommandExit::Usage,
        ),
        ("events", r#"{"LambdaFunctionConfigurations": [{"Id": "x"}]}"#, CommandExit::Failure),
    ] {
        let ran = set(&rig, setting, content).ended(exit);
        assert!(ran.stderr.starts_with("fordway: "), "{setting} {content}: {}", ran.stderr);
    }
    let none = rig.run(&["admin", "show", "s3://bkt"]).ok().stdout;
    assert_eq!(none.matches("none").count(), 8, "{none}");
    rig.run(&["admin", "rm", "lock", "s3://bkt"]).ended(CommandExit::Usage);
    rig.run(&["admin", "get", "cors", "s3://none"]).ended(CommandExit::NotFound);
    rig.run(&["admin", "get", "cors", "s3://bkt/k"]).ended(CommandExit::Usage);
    rig.run(&["admin", "set", "cors", "s3://bkt", "--file", "DIR/none"]).ended(CommandExit::NotFound);
}

#[test]
fn show_has_all_settings_in_a_few_words() {
    let rig = Rig::new();
    rig.run(&["versioning", "s3://bkt", "enable"]).ok();
    let rule = r#"{"Status": "Disabled", "Filter": {}, "Expiration": {"Days": 3}}"#;
    for (setting, content) in [
        ("policy", PUBLIC),
        ("public-access", r#"{"RestrictPublicBuckets": true}"#),
        ("ownership", r#"{"Rules": [{"ObjectOwnership": "BucketOwnerEnforced"}]}"#),
        ("lifecycle", &*format!("{{\"Rules\": [{rule}]}}")),
        (
            "events",
            r#"{"QueueConfigurations": [{"QueueArn": "arn:fordway:sqs::ci:webhook", "Events": ["s3:ObjectTagging:*"],
                "Filter": {"Key": {"FilterRules": [{"Name": "suffix", "Value": ".root"}]}}}]}"#,
        ),
        (
            "lock",
            r#"{"ObjectLockEnabled": "Enabled", "Rule": {"DefaultRetention": {"Mode": "GOVERNANCE", "Days": 9}}}"#,
        ),
        ("tags", r#"{"TagSet": [{"Key": "a", "Value": "1"}, {"Key": "b", "Value": ""}]}"#),
    ] {
        set(&rig, setting, content).ok();
    }
    let shown = rig.run(&["admin", "show", "s3://bkt"]).ok().stdout;
    let expected = "\
versioning     enabled
policy         1 statement, public
public-access  RestrictPublicBuckets
ownership      BucketOwnerEnforced
cors           none
lifecycle      1 rule, 1 disabled
events         1 rule
lock           enabled; by default GOVERNANCE for 9 days
tags           a=1, b=
acl            private
";
    assert_eq!(shown, expected);
    let record = rig.run(&["admin", "show", "s3://bkt", "--json"]).ok().stdout;
    let record: Value = serde_json::from_str(&record).unwrap();
    assert_eq!((&record["bucket"], &record["versioning"]), (&json!("bkt"), &json!("enabled")));
    assert_eq!((&record["cors"], &record["policy"]), (&Value::Null, &json!({ "Policy": PUBLIC })));
    assert_eq!(record["public_access"]["PublicAccessBlockConfiguration"]["RestrictPublicBuckets"], true);
    // Other programs may have stored documents with any content.
    let forged = "<Tagging><TagSet><Tag><Key>a</Key><Value>1\npolicy  none</Value></Tag></TagSet></Tagging>";
    let kind = BucketDocumentKind::known("tagging");
    rig.memory.set_document(&bucket("bkt"), &kind, forged.as_bytes()).unwrap();
    let shown = rig.run(&["admin", "show", "s3://bkt"]).ok().stdout;
    assert!(shown.ends_with("tags           a=1\\npolicy  none\nacl            private\n"), "{shown}");
}

/// Other programs, and failing disks, can change the documents. Damaged documents do not hide the other settings.
#[test]
fn damaged_settings_are_named_as_such() {
    let rig = Rig::new();
    let documents = [
        ("policy", "policy", "garbage"),
        ("cors", "cors", "<Other/>"),
        ("tags", "tagging", "<Tagging>"),
        ("acl", "acl", "x"),
    ];
    for (_, kind, content) in documents {
        let kind = BucketDocumentKind::known(kind);
        rig.memory.set_document(&bucket("bkt"), &kind, content.as_bytes()).unwrap();
    }
    let broken = rig.run(&["admin", "show", "s3://bkt"]).ended(CommandExit::Corrupt);
    assert_eq!(broken.stderr.lines().count(), documents.len(), "{}", broken.stderr);
    for (name, ..) in documents {
        assert!(broken.stdout.contains(&format!("{name:15}damaged\n")), "{}", broken.stdout);
    }
    assert!(broken.stdout.contains("ownership      none\n"), "{}", broken.stdout);
    let record = rig.run(&["admin", "show", "s3://bkt", "--json"]).ended(CommandExit::Corrupt).stdout;
    assert!(!record.contains("policy") && record.contains("ownership"), "{record}");
}

#[test]
fn a_broken_document_is_not_printed() {
    let rig = Rig::new();
    for (setting, kind) in [("cors", "cors"), ("policy", "policy"), ("tags", "tagging")] {
        rig.memory.set_document(&bucket("bkt"), &BucketDocumentKind::known(kind), b"\xff<x").unwrap();
        let broken = rig.run(&["admin", "get", setting, "s3://bkt"]).ended(CommandExit::Corrupt);
        assert_eq!(broken.stdout, "");
        assert!(broken.stderr.contains("document is malformed"), "{}", broken.stderr);
    }
}

/// An endpoint may not support a setting, and a user may be allowed to read only some of the settings. The other
/// settings must still be shown.
#[test]
fn one_failing_setting_does_not_hide_the_others() {
    for (kind, exit, words) in [
        (ErrorKind::NotImplemented, CommandExit::Ok, "not supported by the endpoint"),
        (ErrorKind::MethodNotAllowed, CommandExit::Ok, "not supported by the endpoint"),
        (ErrorKind::AccessDenied, CommandExit::Denied, "not permitted"),
    ] {
        let rig = Rig::over(|inner| Arc::new(FaultyStore { inner, fault: Fault::Fails("cors", kind) }));
        set(&rig, "tags", r#"{"TagSet": []}"#).ok();
        let shown = rig.run(&["admin", "show", "s3://bkt"]).ended(exit).stdout;
        assert!(shown.contains(&format!("cors           {words}\n")), "{shown}");
        assert!(shown.ends_with("tags           no tags\nacl            private\n"), "{shown}");
        let record = rig.run(&["admin", "show", "s3://bkt", "--json"]).ended(exit).stdout;
        assert!(!record.contains("cors") && record.contains("TagSet"), "{record}");
    }
    // A cause that concerns all settings is reported only once.
    let fault = Fault::Fails("", ErrorKind::AccessDenied);
    let rig = Rig::over(|inner| Arc::new(FaultyStore { inner, fault }));
    let ran = rig.run(&["admin", "show", "s3://bkt"]).ended(CommandExit::Denied);
    assert_eq!(ran.stderr.lines().count(), 1, "{}", ran.stderr);
    assert_eq!(ran.stdout.matches("not permitted").count(), 8, "{}", ran.stdout);
    let fault = Fault::Fails("cors", ErrorKind::MethodNotAllowed);
    let rig = Rig::over(|inner| Arc::new(FaultyStore { inner, fault }));
    let ran = rig.run(&["admin", "get", "cors", "s3://bkt"]).ended(CommandExit::Failure);
    assert!(ran.stderr.contains("this endpoint has no cors setting"), "{}", ran.stderr);
    let fault = Fault::Fails("cors", ErrorKind::Unavailable);
    let rig = Rig::over(|inner| Arc::new(FaultyStore { inner, fault }));
    assert_eq!(rig.run(&["admin", "show", "s3://bkt"]).ended(CommandExit::Unavailable).stdout, "");
}

#[test]
fn acls_need_an_ownership_setting_and_no_block() {
    let rig = Rig::new();
    let acl = |name: &[&str]| rig.run(&[&["admin", "acl", "s3://bkt"], name].concat());
    assert_eq!(acl(&[]).ok().stdout, "s3://bkt: private\n");
    let refused = acl(&["public-read"]).ended(CommandExit::Usage);
    assert!(refused.stderr.contains("BucketOwnerPreferred"), "{}", refused.stderr);
    set(&rig, "ownership", r#"{"Rules": [{"ObjectOwnership": "BucketOwnerPreferred"}]}"#).ok();
    assert_eq!(acl(&["public-read-write"]).ok().stdout, "s3://bkt: public-read-write\n");
    assert_eq!(acl(&[]).ok().stdout, "s3://bkt: public-read-write\n");
    let record: Value = serde_json::from_str(&acl(&["--json"]).ok().stdout).unwrap();
    assert_eq!(record, json!({"bucket": "bkt", "acl": "public-read-write"}));
    let shown = rig.run(&["admin", "show", "s3://bkt"]).ok().stdout;
    assert!(shown.ends_with("acl            public-read-write\n"), "{shown}");
    assert!(stored(&rig, "acl").is_some());
    set(&rig, "public-access", r#"{"BlockPublicAcls": true}"#).ok();
    acl(&["public-read"]).ended(CommandExit::Denied);
    assert_eq!(acl(&[]).ok().stdout, "s3://bkt: public-read-write\n");
    acl(&["private", "--quiet"]).ok();
    assert_eq!(stored(&rig, "acl"), None);
    rig.run(&["admin", "acl", "s3://none"]).ended(CommandExit::NotFound);
}

#[test]
fn a_users_file_is_checked_and_shown_without_secrets() {
    let rig = Rig::new();
    let who = format!("uid = {}\ngid = {}\n", fordway_sys::user_id(), fordway_sys::group_id());
    let user = |name: &str, more: &str| {
        let keys = format!("access_key = \"{name}-key\"\nsecret_key = \"{name}-secret\"\n");
        format!("[[user]]\nname = \"{name}\"\n{keys}{who}{more}")
    };
    let good = format!(
        "{}{}[[role]]\nname = \"r\"\n{who}[[oidc]]\nissuer = \"https://i.example\"\naudience = [\"a\"]\n",
        user("ann", ""),
        user("bob", "buckets = [\"b-*\"]\nread_only = true\n")
    );
    let run = |content: &str, mode: u32, more: &[&str]| {
        rig.write("users.toml", content);
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(rig.path("users.toml"), mode).unwrap();
        rig.run(&[&["admin", "users", "DIR/users.toml"], more].concat())
    };
    let shown = run(&good, 0o600, &[]).ended(CommandExit::Ok);
    let ids = format!("uid {}, gid {}", fordway_sys::user_id(), fordway_sys::group_id());
    let expected = format!(
        "user ann: access key ann-key, {ids}, all buckets\nuser bob: access key bob-key, {ids}, buckets b-*, read-only\n\
         role r: {ids}, all buckets\noidc https://i.example\n"
    );
    assert_eq!(shown.stdout, expected);
    assert!(shown.stderr.contains("nobody may assume the role r"), "{}", shown.stderr);
    assert!(shown.stderr.contains("no role trusts the provider https://i.example"), "{}", shown.stderr);
    let records = run(&good, 0o600, &["--json"]).ended(CommandExit::Ok).stdout;
    let records: Vec<Value> = records.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((&records[1]["name"], &records[1]["buckets"]), (&json!("bob"), &json!(["b-*"])));
    assert!(!format!("{records:?}{}", shown.stdout).contains("secret"));
    let assumed = good.replace("name = \"r\"", "name = \"r\"\nassumed_by = [\"ann\"]");
    let shown = run(&assumed, 0o600, &[]).ended(CommandExit::Ok);
    assert!(shown.stdout.contains("assumed by ann") && !shown.stderr.contains("nobody"), "{}", shown.stderr);
    let wrong = run(&good.replace("read_only", "readonly"), 0o600, &[]).ended(CommandExit::Usage);
    assert!(wrong.stderr.contains("line 14: unknown field `readonly`"), "{}", wrong.stderr);
    run(&good, 0o644, &[]).ended(CommandExit::Denied);
}
