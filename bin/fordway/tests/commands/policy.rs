//! Tests `policy explain`.

use fordway_command::CommandExit;
use fordway_store::{BucketDocumentKind, BucketDocumentOperations};

use crate::support::{Rig, bucket};

const POLICY: &str = r#"{"Version": "2012-10-17", "Statement": [
    {"Sid": "keep", "Effect": "Deny", "Principal": "*", "Action": "s3:DeleteObject", "Resource": "arn:aws:s3:::bkt/kept/*"},
    {"Effect": "Allow", "Principal": "*", "Action": "s3:*", "Resource": "arn:aws:s3:::bkt/*",
     "Condition": {"IpAddress": {"aws:SourceIp": "10.0.0.0/8"}}}]}"#;

fn rig() -> Rig {
    let rig = Rig::new();
    rig.memory.set_document(&bucket("bkt"), &BucketDocumentKind::known("policy"), POLICY.as_bytes()).unwrap();
    rig
}

#[test]
fn the_deciding_statement_is_named() {
    let rig = rig();
    let explain = |address: &str, action: &str, more: &[&str]| {
        rig.run(&[&["policy", "explain", address, "--action", action], more].concat())
    };
    let denied = explain("s3://bkt/kept/k", "DeleteObject", &["--user", "ann", "--owner"]);
    assert_eq!(denied.exit, CommandExit::Denied);
    assert!(
        denied.stdout.starts_with("refused: s3:DeleteObject on s3://bkt/kept/k: a statement denies it\n")
    );
    assert!(denied.stdout.contains("statement 1 (\"keep\"), Deny: applies"), "{}", denied.stdout);
    let allowed =
        explain("s3://bkt/k", "s3:GetObject", &["--anonymous", "--with", "aws:SourceIp=10.1.2.3"]).ok();
    assert!(allowed.stdout.contains("statement 2, Allow: applies"), "{}", allowed.stdout);
    let elsewhere = explain("s3://bkt/k", "GetObject", &["--anonymous", "--with", "aws:SourceIp=11.1.2.3"]);
    assert_eq!(elsewhere.exit, CommandExit::Denied);
    assert!(
        elsewhere.stdout.contains("Condition IpAddress aws:sourceip does not match"),
        "{}",
        elsewhere.stdout
    );
    explain("s3://bkt/k", "GetObject", &["--user", "ann", "--owner"]).ok();
    assert_eq!(explain("s3://bkt", "GetObject", &["--anonymous"]).exit, CommandExit::Usage);
}

#[test]
fn a_role_is_not_the_user_of_its_name() {
    let rig = Rig::new();
    let everybody = r#""Effect": "Allow", "Principal": "*""#;
    let readers = r#""Effect": "Allow", "Principal": {"AWS": "arn:aws:iam:::role/readers"}"#;
    let policy = POLICY.replace(everybody, readers);
    let policy = policy.replace("IpAddress", "StringEquals").replace("aws:SourceIp", "aws:userid");
    rig.write("policy.json", policy.replace("10.0.0.0/8", "readers:night"));
    let words = ["policy", "explain", "s3://bkt/k", "--action", "GetObject", "--file", "DIR/policy.json"];
    let explain = |more: &[&str]| rig.run(&[&words[..], more].concat());
    for session in [["--with", "aws:userid=readers:night"], ["--session", "night"]] {
        let allowed = explain(&[&["--role", "readers"][..], &session].concat()).ok();
        assert!(allowed.stdout.contains("statement 2, Allow: applies"), "{}", allowed.stdout);
    }
    for more in [&["--role", "readers"][..], &["--role", "writers"], &["--user", "readers"]] {
        assert_eq!(explain(more).exit, CommandExit::Denied, "{more:?}");
    }
}

#[test]
fn a_file_is_tried_before_it_is_set_and_json_has_the_same() {
    let rig = Rig::new();
    rig.write("policy.json", POLICY);
    let words = ["policy", "explain", "s3://bkt/kept/k", "--action", "DeleteObject", "--user", "ann"];
    assert!(rig.run(&words).ok().stdout.contains("the bucket has no policy"));
    let ran = rig.run(&[&words[..], &["--file", "DIR/policy.json", "--json"]].concat());
    let record: serde_json::Value = serde_json::from_str(ran.stdout.trim()).unwrap();
    assert_eq!((record["permitted"].as_bool(), record["statement"].as_u64()), (Some(false), Some(1)));
    assert_eq!(record["statements"][1]["misfit"], "Condition IpAddress aws:sourceip");
    rig.write("policy.json", "{}");
    assert_eq!(rig.run(&[&words[..], &["--file", "DIR/policy.json"]].concat()).exit, CommandExit::Usage);
}

#[test]
fn the_acl_of_the_bucket_counts() {
    let rig = Rig::new();
    let explain = |more: &[&str]| {
        rig.run(&[&["policy", "explain", "s3://bkt", "--action", "ListBucket"], more].concat())
    };
    assert_eq!(explain(&["--anonymous"]).exit, CommandExit::Denied);
    rig.write("file", r#"{"Rules": [{"ObjectOwnership": "ObjectWriter"}]}"#);
    rig.run(&["admin", "set", "ownership", "s3://bkt", "--file", "DIR/file"]).ok();
    rig.run(&["admin", "acl", "s3://bkt", "public-read"]).ok();
    let allowed = explain(&["--anonymous"]).ok().stdout;
    assert!(allowed.contains("the ACL of the bucket allows it"), "{allowed}");
    rig.write("file", r#"{"IgnorePublicAcls": true}"#);
    rig.run(&["admin", "set", "public-access", "s3://bkt", "--file", "DIR/file"]).ok();
    assert_eq!(explain(&["--anonymous"]).exit, CommandExit::Denied);
}

/// As in the gateway, the object's own tags count.
#[test]
fn the_tags_of_the_object_are_looked_up() {
    let rig = Rig::new();
    let policy = r#"{"Version": "2012-10-17", "Statement": [
        {"Effect": "Allow", "Principal": "*", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::bkt/*",
         "Condition": {"StringEquals": {"s3:ExistingObjectTag/Class": "open"}}}]}"#;
    rig.write("policy.json", policy);
    rig.put("k", "content");
    rig.run(&["tag", "s3://bkt/k", "Class=open"]).ok();
    let explain = |key: &str, more: &[&str]| {
        let address = format!("s3://bkt/{key}");
        let words = ["policy", "explain", &address, "--action", "GetObject", "--file", "DIR/policy.json"];
        rig.run(&[&words[..], more].concat())
    };
    explain("k", &["--user", "ann"]).ok();
    let refused = explain("none", &["--user", "ann"]).ended(CommandExit::Denied);
    assert!(refused.stdout.contains("if the caller owns the bucket, add --owner"), "{}", refused.stdout);
    explain("none", &["--user", "ann", "--with", "s3:ExistingObjectTag/Class=open"]).ok();
    explain("k", &["--user", "ann", "--with", "s3:ExistingObjectTag/Class=closed"])
        .ended(CommandExit::Denied);
}
