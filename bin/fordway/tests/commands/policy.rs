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

#[test]
fn the_users_file_decides_first() {
    let rig = Rig::new();
    let who = format!("uid = {}\ngid = {}\n", fordway_sys::user_id(), fordway_sys::group_id());
    let user = |name: &str, more: &str| {
        format!("[[user]]\nname = \"{name}\"\naccess_key = \"{name}\"\nsecret_key = \"s\"\n{who}{more}")
    };
    let (bob, eve) = (user("bob", "read_only = true\n"), user("eve", "buckets = [\"other\"]\n"));
    rig.write("users.toml", user("ann", "prefixes = [\"ann/\"]\n") + &bob + &eve);
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(rig.path("users.toml"), mode).unwrap();
    let explain = |address: &str, action: &str, who: &[&str]| {
        let words = ["policy", "explain", address, "--action", action, "--credentials", "DIR/users.toml"];
        rig.run(&[&words[..], who].concat())
    };
    for (address, action, who, why) in [
        (
            "s3://bkt/k",
            "PutObject",
            &["--user", "bob"][..],
            "the users file refuses it: this access key is read-only",
        ),
        ("s3://bkt/k", "GetObject", &["--user", "eve"], "may not access the bucket bkt"),
        ("s3://bkt/k", "GetObject", &["--user", "ann"], "does not start with a prefix"),
        (
            "s3://bkt",
            "ListBucket",
            &["--user", "ann", "--with", "s3:prefix=b"],
            "does not start with a prefix",
        ),
        ("s3://bkt/k", "GetObject", &["--user", "carol"], "the users file has no user carol"),
        ("s3://bkt/k", "GetObject", &["--role", "bob"], "the users file has no role bob"),
    ] {
        let refused = explain(address, action, who).ended(CommandExit::Denied);
        assert!(refused.stdout.contains(why), "{who:?}: {}", refused.stdout);
        assert!(!refused.stdout.contains("not checked"), "{}", refused.stdout);
    }
    explain("s3://bkt", "ListBucket", &["--user", "ann", "--with", "s3:prefix=ann/"]).ok();
    let permitted = explain("s3://bkt/k", "GetObject", &["--user", "bob"]).ok();
    let shown = "permitted: s3:GetObject on s3://bkt/k: the bucket has no policy\n  \
                 not checked: the permissions in the file system\n";
    assert_eq!(permitted.stdout, shown);
    let unread =
        rig.run(&["policy", "explain", "s3://bkt/k", "--action", "PutObject", "--user", "carol"]).ok();
    assert!(
        unread.stdout.contains("not checked: the users file (add --credentials FILE); the permissions"),
        "{}",
        unread.stdout
    );
}

/// As in the gateway, a condition on tags is checked with the tags of the object.
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
