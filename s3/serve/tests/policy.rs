//! Tests bucket policies, public access blocks and anonymous requests, over HTTP.

mod client;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use client::http2::{Http2, run};
use client::{Answer, BUCKET, Call, Client, Fixture, serve_openly};
use fordway_serve::{AccessKeyPair, AnonymousUser, Users};
use fordway_store::{Checksum, ChecksumAlgorithm, MemoryStore};
use fordway_wire::date::format_iso8601;

/// Starts a gateway that serves anonymous requests if a policy permits them.
fn open_to_all() -> Fixture {
    serve_openly(|_| ())
}

fn policy(fixture: &Fixture, method: &str, body: &str) -> Answer {
    fixture.client.send(&Call::new(method, format!("/{BUCKET}")).query("policy").body(body))
}

#[track_caller]
fn put_policy(fixture: &Fixture, statements: &str) {
    let put = policy(fixture, "PUT", &document(statements));
    assert_eq!(put.status, 204, "{}", put.text());
}

fn document(statements: &str) -> String {
    let arn = format!("arn:aws:s3:::{BUCKET}");
    format!("{{\"Version\": \"2012-10-17\", \"Statement\": [{}]}}", statements.replace("ARN", &arn))
}

const READ_ALL: &str =
    r#"{"Effect": "Allow", "Principal": "*", "Action": "s3:GetObject", "Resource": "ARN/public/*"}"#;

/// Sends an anonymous request.
fn anonymous(fixture: &Fixture, method: &str, target: &str, headers: &str, body: &str) -> Answer {
    let length = body.len();
    let call = format!(
        "{method} {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}Content-Length: {length}\r\n\r\n{body}"
    );
    fixture.client.send_raw(method, &call)
}

fn at(key: &str) -> String {
    format!("/{BUCKET}/{key}")
}

const DENIED: (u16, &str) = (403, "AccessDenied");

#[track_caller]
fn assert_denied(answer: &Answer) {
    let (status, code) = answer.error();
    assert_eq!((status, code.as_str()), DENIED, "{}", answer.text());
}

#[test]
fn a_policy_is_kept_as_it_was_sent() {
    let fixture = client::serve();
    assert_eq!(policy(&fixture, "GET", "").error(), (404, "NoSuchBucketPolicy".to_owned()));
    let text = document(READ_ALL);
    assert_eq!(policy(&fixture, "PUT", &text).status, 204);
    let kept = policy(&fixture, "GET", "").ok();
    assert_eq!((kept.text(), kept.header("content-type")), (text, Some("application/json")));
    let status = || fixture.client.send(&Call::new("GET", format!("/{BUCKET}")).query("policyStatus"));
    assert_eq!(status().ok().element("IsPublic").as_deref(), Some("true"));
    put_policy(&fixture, &READ_ALL.replace("\"*\"", "{\"AWS\": \"arn:aws:iam::x:root\"}"));
    assert_eq!(status().ok().element("IsPublic").as_deref(), Some("false"));
    assert_eq!(policy(&fixture, "DELETE", "").status, 204);
    assert_eq!(policy(&fixture, "GET", "").error(), (404, "NoSuchBucketPolicy".to_owned()));
    assert_eq!(status().error(), (404, "NoSuchBucketPolicy".to_owned()));
}

#[test]
fn a_policy_matches_its_digests() {
    let fixture = client::serve();
    let text = document(READ_ALL);
    let put = |name: &'static str, value: &str| {
        let call = Call::new("PUT", format!("/{BUCKET}")).query("policy").body(&*text);
        fixture.client.send(&call.header(name, value))
    };
    for (name, value, code) in [
        ("content-md5", "AAAAAAAAAAAAAAAAAAAAAA==", "BadDigest"),
        ("content-md5", "AAAA", "InvalidDigest"),
        ("x-amz-checksum-crc32", "AAAAAA==", "BadDigest"),
        ("x-amz-checksum-crc32", "AAAA", "InvalidRequest"),
    ] {
        assert_eq!(put(name, value).error(), (400, code.to_owned()), "{name}: {value}");
    }
    assert_eq!(policy(&fixture, "GET", "").error().1, "NoSuchBucketPolicy");
    let crc = Checksum::of(ChecksumAlgorithm::Crc32, text.as_bytes());
    put("x-amz-checksum-crc32", &crc.to_base64()).ok();
}

/// The existing policy remains if a new policy is refused.
#[test]
fn what_is_not_a_policy_is_refused_by_name() {
    let fixture = client::serve();
    put_policy(&fixture, READ_ALL);
    let statement = |from: &str, to: &str| document(&READ_ALL.replace(from, to));
    let long = format!("{}{}", document(READ_ALL), " ".repeat(20 * 1024));
    for (bad, words) in [
        ("", "Policies must be valid JSON"),
        ("[]", "Policies must be valid JSON"),
        ("{", "This policy contains invalid Json"),
        ("{\"Statement\": [], \"Statement\": []}", "This policy contains invalid Json"),
        ("{}", "Missing required field Statement"),
        ("{\"Statement\": []}", "Statement is empty"),
        (&statement("Allow", "Permit"), "Invalid effect: Permit"),
        (&statement("\"Effect\"", "\"Efect\""), "Unknown field Efect"),
        (&statement("\"Principal\"", "\"NotPrincipal\""), "Allow with NotPrincipal"),
        (&statement("s3:GetObject", "s3:FetchObject"), "Policy has invalid action"),
        (&statement("s3:GetObject", "s3:ListBucket"), "Action does not apply to any resource"),
        (&statement("ARN", "arn:aws:s3:::another"), "Policy has invalid resource"),
        (&statement("\"Principal\": \"*\"", "\"Principal\": \"whoever\""), "Invalid principal in policy"),
        (&statement("2012-10-17", "2012-10-16").replace("2012-10-17", "2013-01-01"), "valid version"),
        (
            &statement("}", ", \"Condition\": {\"StringEquals\": {\"aws:SourceVpc\": \"x\"}}}"),
            "Policy has an invalid condition key",
        ),
        (
            &statement("}", ", \"Condition\": {\"StringIs\": {\"aws:Referer\": \"x\"}}}"),
            "Invalid Condition type",
        ),
        (
            &statement("}", ", \"Condition\": {\"StringEquals\": {\"s3:prefix\": \"x\"}}}"),
            "Conditions do not apply",
        ),
        (&long, "maximum allowed document size"),
    ] {
        let refused = policy(&fixture, "PUT", bad);
        assert_eq!(refused.error(), (400, "MalformedPolicy".to_owned()), "{bad}");
        assert!(refused.element("Message").unwrap().contains(words), "{bad}: {}", refused.text());
    }
    assert_eq!(policy(&fixture, "GET", "").ok().text(), document(READ_ALL));
    let missing = fixture.client.send(&Call::new("PUT", "/no-such-bucket").query("policy").body("x"));
    assert_eq!(missing.error(), (404, "NoSuchBucket".to_owned()));
}

#[test]
fn a_policy_that_locks_its_owner_out_needs_a_flag() {
    let fixture = client::serve();
    let lock =
        document(r#"{"Effect": "Deny", "Principal": "*", "Action": "s3:*", "Resource": ["ARN", "ARN/*"]}"#);
    assert_eq!(policy(&fixture, "PUT", &lock).error(), (400, "MalformedPolicy".to_owned()));
    assert_eq!(policy(&fixture, "GET", "").error(), (404, "NoSuchBucketPolicy".to_owned()));
    let call = Call::new("PUT", format!("/{BUCKET}")).query("policy").body(lock);
    let sure = fixture.client.send(&call.header("x-amz-confirm-remove-self-bucket-access", "true"));
    assert_eq!(sure.status, 204, "{}", sure.text());
    for method in ["GET", "PUT", "DELETE"] {
        assert_denied(&policy(&fixture, method, ""));
    }
}

#[test]
fn a_denial_binds_the_owner_too_and_at_once() {
    let fixture = client::serve();
    let send = |method, key: &str| fixture.client.send(&Call::on(method, key).body(""));
    send("PUT", "kept/k").ok();
    send("GET", "kept/k").ok();
    put_policy(
        &fixture,
        r#"{"Sid": "keep", "Effect": "Deny", "Principal": "*", "Action": "s3:DeleteObject", "Resource": "ARN/kept/*"}"#,
    );
    assert_denied(&send("DELETE", "kept/k"));
    send("PUT", "other").ok();
    assert_eq!(send("DELETE", "other").status, 204);
    let list = "<Delete><Object><Key>kept/k</Key></Object><Object><Key>other</Key></Object></Delete>";
    let call = Call::new("POST", format!("/{BUCKET}")).query("delete").body(list);
    let deleted = fixture.client.send(&call).ok();
    let (codes, keys) = (deleted.elements("Code"), deleted.elements("Key"));
    assert_eq!(
        (&codes[..], &keys[..]),
        (&["AccessDenied".to_owned()][..], &["kept/k".to_owned(), "other".to_owned()][..])
    );
    send("GET", "kept/k").ok();
    assert_eq!(policy(&fixture, "DELETE", "").status, 204);
    assert_eq!(send("DELETE", "kept/k").status, 204);
}

#[test]
fn a_new_bucket_has_no_rules_of_an_old_one() {
    let fixture = client::serve();
    let on_bucket = |method, query, body: &str| {
        fixture.client.send(&Call::new(method, "/reused").query(query).body(body))
    };
    let put = || fixture.client.send(&Call::new("PUT", "/reused/k").body("hello"));
    on_bucket("PUT", "", "").ok();
    let denial = r#"{"Effect": "Deny", "Principal": "*", "Action": "s3:PutObject", "Resource": "ARN/*"}"#;
    on_bucket("PUT", "policy", &document(denial).replace(BUCKET, "reused")).ok();
    assert_denied(&put());
    on_bucket("DELETE", "", "").ok();
    on_bucket("PUT", "", "").ok();
    put().ok();
}

#[test]
fn requests_without_a_signature_need_a_user_and_a_policy() {
    let refusing = client::serve();
    refusing.client.send(&Call::on("PUT", "public/k").body("hello")).ok();
    put_policy(&refusing, READ_ALL);
    assert_denied(&anonymous(&refusing, "GET", &at("public/k"), "", ""));

    let fixture = open_to_all();
    fixture.client.send(&Call::on("PUT", "public/k").body("hello")).ok();
    fixture.client.send(&Call::on("PUT", "private/k").body("hello")).ok();
    assert_denied(&anonymous(&fixture, "GET", &at("public/k"), "", ""));
    let list = "<Delete><Object><Key>public/k</Key></Object></Delete>";
    assert_denied(&anonymous(&fixture, "POST", &format!("/{BUCKET}?delete"), "", list));
    put_policy(&fixture, READ_ALL);
    assert_eq!(anonymous(&fixture, "GET", &at("public/k"), "", "").ok().text(), "hello");
    let other = anonymous(&fixture, "GET", &at("public/k?response-content-type=text/html"), "", "");
    assert_eq!(other.error(), (400, "InvalidRequest".to_owned()));
    let part = anonymous(&fixture, "GET", &at("public/k"), "Range: bytes=1-2\r\n", "");
    assert_eq!((part.status, part.text().as_str()), (206, "el"));
    assert_eq!(anonymous(&fixture, "HEAD", &at("public/k"), "", "").status, 200);
    for (method, target) in [
        ("GET", at("private/k")),
        ("PUT", at("public/k")),
        ("DELETE", at("public/k")),
        ("GET", format!("/{BUCKET}")),
        ("GET", format!("/{BUCKET}?policy")),
        ("GET", at("public/k?versionId=null")),
        ("GET", at("public/k?tagging")),
        ("GET", "/".to_owned()),
        ("PUT", "/another".to_owned()),
        ("GET", "/no-such-bucket/k".to_owned()),
        ("POST", at("public/k?uploads")),
    ] {
        assert_denied(&anonymous(&fixture, method, &target, "", ""));
    }
    assert_eq!(anonymous(&fixture, "HEAD", &at("private/k"), "", "").status, 403);
    // Two dots in a key are part of the key, and do not refer to the parent directory.
    let dots = anonymous(&fixture, "GET", &at("public/../private/k"), "", "");
    assert_eq!(dots.error(), (404, "NoSuchKey".to_owned()));
    let source = format!("x-amz-copy-source: {}\r\n", at("private/k"));
    put_policy(
        &fixture,
        r#"{"Effect": "Allow", "Principal": "*", "Action": ["s3:PutObject"], "Resource": "ARN/public/*"}"#,
    );
    assert_eq!(anonymous(&fixture, "PUT", &at("public/new"), "", "sent").status, 200);
    assert_denied(&anonymous(&fixture, "PUT", &at("public/copy"), &source, ""));
    assert_eq!(fixture.client.send(&Call::on("GET", "public/new")).ok().text(), "sent");
    let deletion = "<Delete><Object><Key>public/new</Key></Object></Delete>";
    let deleted = anonymous(&fixture, "POST", &format!("/{BUCKET}?delete"), "", deletion);
    assert!(deleted.text().contains("AccessDenied"), "{}", deleted.text());
    fixture.client.send(&Call::on("GET", "public/new")).ok();
}

/// A condition on an ETag requires permission to read the object. For a missing object, nobody has this permission.
#[test]
fn a_missing_object_does_not_fail_the_deletion_of_others() {
    let fixture = open_to_all();
    fixture.client.send(&Call::on("PUT", "k").body("hello")).ok();
    put_policy(
        &fixture,
        r#"{"Effect": "Allow", "Principal": "*", "Action": "s3:DeleteObject", "Resource": "ARN/*"},
           {"Effect": "Allow", "Principal": "*", "Action": "s3:ListBucket", "Resource": "ARN"}"#,
    );
    let list = "<Delete><Object><Key>k</Key></Object>\
        <Object><Key>missing</Key><ETag>&quot;x&quot;</ETag></Object></Delete>";
    let deleted = anonymous(&fixture, "POST", &format!("/{BUCKET}?delete"), "", list).ok();
    assert_eq!(deleted.elements("Key"), ["k", "missing"], "{}", deleted.text());
    assert_eq!(fixture.client.send(&Call::on("GET", "k")).error().0, 404);
}

/// The error of each key in a DeleteObjects response names the action that was refused, as for a single deletion.
#[test]
fn the_error_of_each_key_names_the_action_that_is_refused() {
    let fixture = open_to_all();
    put_policy(
        &fixture,
        r#"{"Effect": "Deny", "Principal": "*", "Action": "s3:DeleteObjectVersion", "Resource": "ARN/kept"},
           {"Effect": "Deny", "Principal": "*", "Action": "s3:GetObject", "Resource": "ARN/secret"},
           {"Effect": "Allow", "Principal": "*", "Action": "s3:DeleteObject", "Resource": "ARN/public"}"#,
    );
    let list = "<Delete><Object><Key>kept</Key></Object>\
        <Object><Key>kept</Key><VersionId>null</VersionId></Object>\
        <Object><Key>secret</Key><ETag>&quot;x&quot;</ETag></Object></Delete>";
    let call = Call::new("POST", format!("/{BUCKET}")).query("delete").body(list);
    let deleted = fixture.client.send(&call).ok();
    let messages = deleted.elements("Message");
    assert_eq!(messages.len(), 2, "{}", deleted.text());
    for (message, name, key) in
        [(&messages[0], "s3:DeleteObjectVersion", "/kept"), (&messages[1], "s3:GetObject", "/secret")]
    {
        assert!(message.contains(name) && message.contains(key), "{message}");
        assert!(message.contains("explicit deny") && !message.contains('\n'), "{message}");
    }
    let list = "<Delete><Object><Key>public</Key></Object><Object><Key>other</Key></Object></Delete>";
    let deleted = anonymous(&fixture, "POST", &format!("/{BUCKET}?delete"), "", list).ok();
    let why = "the bucket's policy does not allow you s3:DeleteObject; ask the bucket's owner";
    assert_eq!(deleted.elements("Message"), [why]);
}

/// A policy cannot permit these operations to anonymous callers, even if it allows everyone all actions.
#[test]
fn operations_that_need_a_signature_say_so() {
    let fixture = open_to_all();
    fixture.client.send(&Call::on("PUT", "k").body("hello")).ok();
    put_policy(
        &fixture,
        r#"{"Effect": "Allow", "Principal": "*", "Action": "s3:*", "Resource": ["ARN", "ARN/*"]}"#,
    );
    let source = format!("x-amz-copy-source: {}\r\n", at("k"));
    for (method, target, headers, words) in [
        ("PUT", "/another".to_owned(), "", "Anonymous users cannot invoke this API. Please authenticate."),
        ("PUT", at("k?acl"), "", "Anonymous users cannot invoke this API. Please authenticate."),
        ("PUT", at("copy"), &*source, "Anonymous users cannot copy objects. Please authenticate."),
        (
            "POST",
            at("k?uploads"),
            "",
            "Anonymous users cannot initiate multipart uploads. Please authenticate.",
        ),
        (
            "GET",
            format!("/{BUCKET}?ownershipControls"),
            "",
            "s3:GetBucketOwnershipControls does not support Anonymous requests!",
        ),
    ] {
        let answer = anonymous(&fixture, method, &target, headers, "");
        assert_denied(&answer);
        assert_eq!(answer.element("Message").as_deref(), Some(words), "{method} {target}");
    }
    let before = policy(&fixture, "GET", "").ok().text();
    for method in ["GET", "PUT", "DELETE"] {
        let answer =
            anonymous(&fixture, method, &format!("/{BUCKET}?policy"), "", &before.replace("*", "me"));
        assert_eq!(answer.error(), (405, "MethodNotAllowed".to_owned()), "{method}");
    }
    assert_eq!(policy(&fixture, "GET", "").ok().text(), before);
    assert_eq!(fixture.client.send(&Call::on("HEAD", "copy")).status, 404);
    assert_eq!(anonymous(&fixture, "GET", &at("k"), "", "").ok().text(), "hello");
}

#[test]
fn conditions_see_the_request() {
    let fixture = open_to_all();
    fixture.client.send(&Call::on("PUT", "k").body("hello").header("x-amz-tagging", "class=open")).ok();
    let read = |headers: &str| anonymous(&fixture, "GET", &at("k"), headers, "").status;
    let with = |operator: &str, key: &str, value: &str| {
        let condition = format!(", \"Condition\": {{\"{operator}\": {{\"{key}\": \"{value}\"}}}}}}");
        put_policy(&fixture, &READ_ALL.replace("/public", "").replace('}', &condition));
    };
    for (operator, key, value, headers, status) in [
        ("IpAddress", "aws:SourceIp", "127.0.0.0/8", "", 200),
        ("IpAddress", "aws:SourceIp", "10.0.0.0/8", "", 403),
        ("Bool", "aws:SecureTransport", "false", "", 200),
        ("Bool", "aws:SecureTransport", "true", "", 403),
        ("StringLike", "aws:Referer", "https://a/*", "Referer: https://a/b\r\n", 200),
        ("StringLike", "aws:Referer", "https://a/*", "", 403),
        ("StringEquals", "aws:UserAgent", "x", "User-Agent: x\r\n", 200),
        ("DateGreaterThan", "aws:CurrentTime", "2020-01-01T00:00:00Z", "", 200),
        ("DateLessThan", "aws:CurrentTime", "2020-01-01T00:00:00Z", "", 403),
        ("StringEquals", "aws:PrincipalType", "Anonymous", "", 200),
        ("Null", "s3:signatureversion", "true", "", 200),
        ("NumericGreaterThanEquals", "s3:TlsVersion", "1.2", "", 403),
        ("NumericGreaterThanEqualsIfExists", "s3:TlsVersion", "1.2", "", 200),
        ("NumericLessThan", "s3:TlsVersion", "1.2", "", 403),
        ("Bool", "aws:ViaAWSService", "false", "", 200),
        ("Null", "aws:PrincipalIsAWSService", "true", "", 200),
        ("BoolIfExists", "aws:MultiFactorAuthPresent", "true", "", 200),
        ("StringEquals", "s3:ExistingObjectTag/class", "open", "", 200),
        ("StringEquals", "s3:ExistingObjectTag/class", "closed", "", 403),
    ] {
        with(operator, key, value);
        assert_eq!(read(headers), status, "{operator} {key} {value}");
    }
    put_policy(
        &fixture,
        r#"{"Effect": "Allow", "Principal": "*", "Action": "s3:ListBucket", "Resource": "ARN",
            "Condition": {"StringEquals": {"s3:prefix": "a b/", "s3:delimiter": "/"}, "NumericLessThanEquals": {"s3:max-keys": 10}}}"#,
    );
    let list = |query: &str| anonymous(&fixture, "GET", &format!("/{BUCKET}?{query}"), "", "").status;
    assert_eq!(list("prefix=a+b%2F&delimiter=/&max-keys=10"), 200);
    assert_eq!(list("list-type=2&prefix=a%20b/&delimiter=/&max-keys=1"), 200);
    assert_eq!(list("prefix=a%20b/&delimiter=/"), 403);
    assert_eq!(list("prefix=a&delimiter=/&max-keys=10"), 403);
    assert_eq!(list(""), 403);
}

/// A policy that requires a condition for each new object must exempt the parts of an upload, because the upload of a
/// part cannot have a condition.
#[test]
fn policies_tell_new_objects_from_parts() {
    let fixture = client::serve();
    put_policy(
        &fixture,
        r#"{"Effect": "Deny", "Principal": "*", "Action": "s3:PutObject", "Resource": "ARN/*",
            "Condition": {"Null": {"s3:if-none-match": true}, "Bool": {"s3:ObjectCreationOperation": true}}}"#,
    );
    let put = |call: Call<'_>| fixture.client.send(&call);
    assert_denied(&put(Call::on("PUT", "k").body("one")));
    put(Call::on("PUT", "k").body("one").header("if-none-match", "*")).ok();
    let started = put(Call::on("POST", "parts").query("uploads")).ok();
    let upload = started.element("UploadId").unwrap();
    let part = format!("partNumber=1&uploadId={upload}");
    let etag =
        put(Call::on("PUT", "parts").query(&part).body("content")).ok().header("etag").unwrap().to_owned();
    let list = format!(
        "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{etag}</ETag></Part></CompleteMultipartUpload>"
    );
    let of_upload = format!("uploadId={upload}");
    let complete = || Call::on("POST", "parts").query(&of_upload).body(list.clone());
    assert_denied(&put(complete()));
    put(complete().header("if-none-match", "*")).ok();
    let copy = Call::on("PUT", "copy").header("x-amz-copy-source", format!("/{BUCKET}/k"));
    assert_denied(&put(copy));
}

/// The tags of a PutObjectTagging request are in the body, so the policy is checked after the body has been read.
#[test]
fn tags_of_requests_are_checked() {
    let fixture = client::serve();
    fixture.client.send(&Call::on("PUT", "k").body("hello")).ok();
    put_policy(
        &fixture,
        r#"{"Effect": "Deny", "Principal": "*", "Action": ["s3:PutObject", "s3:PutObjectTagging"], "Resource": "ARN/*",
            "Condition": {"StringEquals": {"s3:RequestObjectTag/class": "secret"}}}"#,
    );
    let tag = |value: &str| {
        let body =
            format!("<Tagging><TagSet><Tag><Key>class</Key><Value>{value}</Value></Tag></TagSet></Tagging>");
        fixture.client.send(&Call::on("PUT", "k").query("tagging").body(body))
    };
    assert_denied(&tag("secret"));
    assert_eq!(tag("open").status, 200);
    let put =
        |value: &str| fixture.client.send(&Call::on("PUT", "k").body("x").header("x-amz-tagging", value));
    assert_denied(&put("class=secret"));
    assert_eq!(put("class=open").status, 200);
}

/// A copy that keeps the tags of its source reads and writes these tags.
#[test]
fn tags_of_copies_are_checked() {
    let fixture = client::serve();
    let put = |key: &str, tags: &str| {
        fixture.client.send(&Call::on("PUT", key).body("x").header("x-amz-tagging", tags)).ok();
    };
    put("secret", "class=secret");
    put("open", "class=open");
    fixture.client.send(&Call::on("PUT", "plain").body("x")).ok();
    let copy = |from: &str| {
        let source = format!("/{BUCKET}/{from}");
        Call::on("PUT", "to").header("x-amz-copy-source", source)
    };
    put_policy(
        &fixture,
        r#"{"Effect": "Deny", "Principal": "*", "Action": "s3:PutObjectTagging", "Resource": "ARN/*",
            "Condition": {"StringEquals": {"s3:RequestObjectTag/class": "secret"}}}"#,
    );
    assert_denied(&fixture.client.send(&copy("secret")));
    for from in ["open", "plain"] {
        assert_eq!(fixture.client.send(&copy(from)).status, 200, "{from}");
    }
    put_policy(
        &fixture,
        r#"{"Effect": "Deny", "Principal": "*", "Action": "s3:GetObjectTagging", "Resource": "ARN/*"}"#,
    );
    assert_denied(&fixture.client.send(&copy("open")));
    assert_eq!(fixture.client.send(&copy("plain")).status, 200);
    let replaced = copy("open").header("x-amz-tagging-directive", "REPLACE").header("x-amz-tagging", "a=b");
    assert_eq!(fixture.client.send(&replaced).status, 200);
    // Callers who are not permitted to read the tags do not see the number of tags.
    let head = |key: &str| fixture.client.send(&Call::on("HEAD", key)).ok();
    assert_eq!(head("open").header("x-amz-tagging-count"), None);
    assert_eq!(policy(&fixture, "DELETE", "").status, 204);
    assert_eq!(head("open").header("x-amz-tagging-count"), Some("1"));
}

/// The signature of a URL never covers the content, whatever its holder states.
#[test]
fn a_policy_can_refuse_content_that_is_not_signed() {
    let fixture = client::serve();
    put_policy(
        &fixture,
        r#"{"Effect": "Deny", "Principal": "*", "Action": "s3:PutObject", "Resource": "ARN/*",
            "Condition": {"StringEquals": {"s3:x-amz-content-sha256": "UNSIGNED-PAYLOAD"}}}"#,
    );
    let put = || Call::on("PUT", "k").body("hello");
    assert_denied(&fixture.client.send(&put().payload("UNSIGNED-PAYLOAD")));
    fixture.client.send(&put()).ok();
    let query = fixture.client.presigned("PUT", &at("k"), 60);
    let hash = client::hex(&Checksum::of(ChecksumAlgorithm::Sha256, b"hello").value);
    for header in ["".to_owned(), format!("x-amz-content-sha256: {hash}\r\n")] {
        let host = fixture.client.address;
        let request = format!(
            "PUT {}?{query} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n{header}content-length: 5\r\n\r\nhello",
            at("k")
        );
        assert_denied(&fixture.client.send_raw("PUT", &request));
    }
}

/// The retention and the legal hold are in the body, so the policy is checked after the body has been read.
#[test]
fn locks_of_requests_are_checked() {
    let fixture = client::serve();
    let on_bucket = |query: &str, body: &str| {
        fixture.client.send(&Call::new("PUT", format!("/{BUCKET}")).query(query).body(body)).ok();
    };
    on_bucket("versioning", "<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>");
    on_bucket(
        "object-lock",
        "<ObjectLockConfiguration><ObjectLockEnabled>Enabled</ObjectLockEnabled></ObjectLockConfiguration>",
    );
    fixture.client.send(&Call::on("PUT", "k").body("hello")).ok();
    put_policy(
        &fixture,
        r#"{"Effect": "Deny", "Principal": "*", "Action": "s3:PutObjectRetention", "Resource": "ARN/*",
            "Condition": {"StringEquals": {"s3:object-lock-mode": "COMPLIANCE"}}},
           {"Effect": "Deny", "Principal": "*", "Action": "s3:PutObjectLegalHold", "Resource": "ARN/*",
            "Condition": {"StringEquals": {"s3:object-lock-legal-hold": "OFF"}}}"#,
    );
    let retain = |mode: &str| {
        let until = "<RetainUntilDate>2099-01-01T00:00:00Z</RetainUntilDate>";
        let body = format!("<Retention><Mode>{mode}</Mode>{until}</Retention>");
        fixture.client.send(&Call::on("PUT", "k").query("retention").body(body))
    };
    assert_denied(&retain("COMPLIANCE"));
    retain("GOVERNANCE").ok();
    let hold = |status: &str| {
        let body = format!("<LegalHold><Status>{status}</Status></LegalHold>");
        fixture.client.send(&Call::on("PUT", "k").query("legal-hold").body(body))
    };
    hold("ON").ok();
    assert_denied(&hold("OFF"));
    let nowhere =
        |query: &str| fixture.client.send(&Call::new("PUT", "/missing/k").query(query).body("<x/>"));
    for query in ["retention", "legal-hold"] {
        assert_eq!(nowhere(query).error(), (404, "NoSuchBucket".to_owned()));
    }
}

#[test]
fn a_policy_limits_the_length_of_retentions() {
    let fixture = client::serve();
    let on_bucket = |query: &str, body: &str| {
        fixture.client.send(&Call::new("PUT", format!("/{BUCKET}")).query(query).body(body)).ok();
    };
    on_bucket("versioning", "<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>");
    on_bucket(
        "object-lock",
        "<ObjectLockConfiguration><ObjectLockEnabled>Enabled</ObjectLockEnabled></ObjectLockConfiguration>",
    );
    put_policy(
        &fixture,
        r#"{"Effect": "Deny", "Principal": "*", "Action": ["s3:PutObject", "s3:PutObjectRetention"],
            "Resource": "ARN/*",
            "Condition": {"NumericGreaterThan": {"s3:object-lock-remaining-retention-days": "10"}}}"#,
    );
    let in_days = |days: u64| format_iso8601(SystemTime::now() + Duration::from_secs(days * 86_400));
    let put = |until: &str| {
        let call = Call::on("PUT", "k").body("hello").header("x-amz-object-lock-mode", "GOVERNANCE");
        fixture.client.send(&call.header("x-amz-object-lock-retain-until-date", until))
    };
    let retain = |until: &str| {
        let body = format!(
            "<Retention><Mode>GOVERNANCE</Mode><RetainUntilDate>{until}</RetainUntilDate></Retention>"
        );
        fixture.client.send(&Call::on("PUT", "k").query("retention").body(body))
    };
    assert_denied(&put(&in_days(11)));
    put(&in_days(9)).ok();
    // Some programs send the local time with its offset from UTC (RFC 3339).
    let ahead = in_days(10).replace('Z', "+01:00");
    put(&ahead).ok();
    assert_denied(&put(&in_days(10).replace('Z', "-01:00")));
    assert_denied(&retain(&in_days(11)));
    retain(&in_days(10)).ok();
    fixture.client.send(&Call::on("PUT", "plain").body("hello")).ok();
}

#[test]
fn a_public_access_block_refuses_and_limits_public_policies() {
    let fixture = open_to_all();
    fixture.client.send(&Call::on("PUT", "public/k").body("hello")).ok();
    let block = |method: &str, setting: &str| {
        let body = match method {
            "PUT" => format!(
                "<PublicAccessBlockConfiguration><{setting}>true</{setting}></PublicAccessBlockConfiguration>"
            ),
            _ => String::new(),
        };
        fixture.client.send(&Call::new(method, format!("/{BUCKET}")).query("publicAccessBlock").body(body))
    };
    assert_eq!(block("GET", "").error(), (404, "NoSuchPublicAccessBlockConfiguration".to_owned()));
    block("PUT", "BlockPublicPolicy").ok();
    let kept = block("GET", "").ok();
    assert_eq!(kept.element("BlockPublicPolicy").as_deref(), Some("true"));
    assert_eq!(kept.element("RestrictPublicBuckets").as_deref(), Some("false"));
    assert_denied(&policy(&fixture, "PUT", &document(READ_ALL)));
    put_policy(&fixture, &READ_ALL.replace("\"*\"", "{\"AWS\": \"arn:aws:iam::x:root\"}"));
    assert_eq!(block("DELETE", "").status, 204);
    put_policy(&fixture, READ_ALL);
    anonymous(&fixture, "GET", &at("public/k"), "", "").ok();
    block("PUT", "RestrictPublicBuckets").ok();
    assert_denied(&anonymous(&fixture, "GET", &at("public/k"), "", ""));
    fixture.client.send(&Call::on("GET", "public/k")).ok();
}

/// The client gets the response to a refused request before it sends the body.
#[test]
fn a_refusal_comes_before_the_body() {
    let fixture = open_to_all();
    let call = format!(
        "PUT {} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 1000000\r\n\r\n",
        at("k")
    );
    let refused = fixture.client.send_raw("PUT", &call);
    assert_denied(&refused);
}

/// The anonymous user must have a uid that belongs neither to another user nor to root.
#[test]
fn a_user_without_a_uid_of_its_own_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let open: fordway_serve::StoreOpenFunction = Arc::new(|| Ok(Arc::new(MemoryStore::default())));
    let users = || Users::one_of(AccessKeyPair::generate().unwrap(), dir.path(), open.clone()).unwrap();
    for uid in [0, fordway_sys::user_id()] {
        let acts_as = fordway_sys::PeerCredentials { uid, gid: 1, groups: Vec::new() };
        let user = AnonymousUser { name: "x".to_owned(), acts_as: Some(acts_as) };
        let refused = users().with_anonymous(user).err().expect("it has another's uid");
        assert_eq!(refused.kind(), fordway_store::ErrorKind::InvalidArgument);
    }
}

#[test]
fn refused_anonymous_requests_are_counted() {
    let fixture = serve_openly(|config| {
        config.metrics = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
        config.user_limits.requests_max = 0;
    });
    assert_eq!(anonymous(&fixture, "GET", &at("public/k"), "", "").error(), (503, "SlowDown".to_owned()));
    let metrics = Client { address: fixture.gateway.metrics_addr().unwrap(), ..fixture.client.clone() };
    let text =
        metrics.send_raw("GET", "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").text();
    let counter = "fordway_user_requests_refused_total{user=\"nobody\",limit=\"requests\"} 1";
    assert!(text.lines().any(|line| line == counter), "{text}");
}

/// Several signatures that nobody verifies do not meet the conditions of a policy on signatures.
#[test]
fn an_unverified_signature_meets_no_condition() {
    const BOGUS_V4: (&str, &str) = (
        "authorization",
        "AWS4-HMAC-SHA256 Credential=AKIA/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, \
         Signature=0123456789012345678901234567890123456789012345678901234567890123",
    );
    const BOGUS_V2: (&str, &str) = ("authorization", "AWS AKIA:AAAAAAAAAAAAAAAAAAAAAAAAAAA=");
    const DATE: (&str, &str) = ("x-amz-date", "20260101T000000Z");
    const HASH: (&str, &str) = ("x-amz-content-sha256", "UNSIGNED-PAYLOAD");
    let http_date = fordway_wire::date::format_http(SystemTime::now());
    let now = ("date", http_date.as_str());
    for signature_v2 in [false, true] {
        let fixture = serve_openly(|config| config.signature_v2 = signature_v2);
        fixture.client.send(&Call::on("PUT", "public/k").body("hello")).ok();
        let only_signed = r#"{"Effect": "Deny", "Principal": "*", "Action": "s3:GetObject", "Resource": "ARN/*",
            "Condition": {"StringNotEquals": {"s3:signatureversion": ["AWS4-HMAC-SHA256", "AWS"]}}}"#;
        put_policy(&fixture, &format!("{READ_ALL}, {only_signed}"));
        fixture.client.send(&Call::on("GET", "public/k")).ok();
        assert_denied(&anonymous(&fixture, "GET", &at("public/k"), "", ""));
        for headers in [
            &[BOGUS_V4, BOGUS_V4, DATE, HASH][..],
            &[BOGUS_V4, BOGUS_V2, DATE, HASH],
            &[BOGUS_V2, BOGUS_V2, now],
            &[BOGUS_V2, BOGUS_V4, now],
            &[("authorization", ""), BOGUS_V4, DATE, HASH],
        ] {
            let lines: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
            let refused = anonymous(&fixture, "GET", &at("public/k"), &lines, "");
            assert_eq!(refused.error(), (400, "InvalidArgument".to_owned()), "{lines}");
            run(async {
                let mut send = Http2::connect(&fixture.client).await.send.ready().await.unwrap();
                let target = format!("http://{}{}", fixture.client.address, at("public/k"));
                let mut request = http::Request::builder().uri(target);
                for (name, value) in headers {
                    request = request.header(*name, *value);
                }
                let (response, _) = send.send_request(request.body(()).unwrap(), true).unwrap();
                assert_eq!(response.await.unwrap().status(), 400, "{lines}");
            });
        }
        for query in ["Signature=x", "AWSAccessKeyId=x", "X-Amz-Signature=x", "X-Amz-Date=20260101T000000Z"] {
            for header in ["", "authorization: AWS a:b\r\n", "authorization: AWS4-HMAC-SHA256 x\r\n"] {
                let refused = anonymous(&fixture, "GET", &at(&format!("public/k?{query}")), header, "");
                assert!([400, 403].contains(&refused.status), "{query} {header}: {}", refused.text());
            }
        }
    }
}

/// The gateway counts the tags of an upload before it evaluates the policy. Otherwise, a policy that compares each tag
/// with many values would occupy the thread for seconds, while other users wait.
#[test]
fn thousands_of_tags_are_refused_before_a_policy_compares_them() {
    let fixture = open_to_all();
    let values = vec!["\"${aws:userid}z\""; 1_000].join(",");
    put_policy(
        &fixture,
        &format!(
            "{{\"Effect\": \"Deny\", \"Principal\": \"*\", \"Action\": \"s3:PutObject\", \"Resource\": \"ARN/*\", \
             \"Condition\": {{\"StringEquals\": {{\"s3:RequestObjectTagKeys\": [{values}]}}}}}}"
        ),
    );
    let put = |tags: usize| {
        let tags = (0..tags).map(|at| format!("t{at}=")).collect::<Vec<_>>().join("&");
        fixture.client.send(&Call::on("PUT", "k").header("x-amz-tagging", tags).body("x"))
    };
    let start = std::time::Instant::now();
    assert_eq!(put(2_000).error(), (400, "BadRequest".to_owned()));
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    put(10).ok();
}

/// A document can contain a key of several megabytes. Comparing such a key with a long policy would take minutes. The
/// error is reported for this key only.
#[test]
fn a_key_that_is_too_long_is_not_compared() {
    let fixture = open_to_all();
    let resources = vec!["\"ARN/*aaaaaa?b*\""; 300].join(",");
    put_policy(
        &fixture,
        &format!(
            "{{\"Effect\": \"Deny\", \"Principal\": \"*\", \"Action\": \"s3:DeleteObject\", \"Resource\": [{resources}]}}"
        ),
    );
    let long = "a".repeat(3 * 1024 * 1024);
    let document =
        format!("<Delete><Object><Key>{long}</Key></Object><Object><Key>k</Key></Object></Delete>");
    let call = Call::new("POST", format!("/{BUCKET}")).query("delete").body(document);
    let start = std::time::Instant::now();
    let answer = fixture.client.send(&call).ok();
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    assert_eq!(answer.elements("Code"), ["KeyTooLongError"]);
    assert_eq!(answer.elements("Deleted").len(), 1);
    let half = "a".repeat(1024 * 1024);
    let version = format!("<Object><Key>k</Key><VersionId>{half}</VersionId></Object>");
    let tag = format!("<Object><Key>k</Key><ETag>{half}</ETag></Object>");
    let document = format!("<Delete>{version}{tag}</Delete>");
    let answer = fixture.client.send(&Call { body: document.into(), ..call }).ok();
    let codes = answer.elements("Code");
    assert_eq!((codes.len(), &*codes[1]), (2, "AccessDenied"), "{codes:?}");
}
