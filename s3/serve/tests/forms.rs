//! Tests form uploads with valid and hostile HTML forms, all of which have a policy. A refused form must store nothing.

mod client;

use std::io::Write as _;
use std::net::Shutdown;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use client::{Answer, BUCKET, Call, Fixture, bucket, key, read_answer, serve, serve_with};
use fordway_store::{GetOptions, ListQuery, ObjectTagOperations as _, Objects};
use hmac::{Hmac, KeyInit as _, Mac as _};

const BOUNDARY: &str = "----WebKitFormBoundaryXo7";

/// A form. Adding a field replaces a field with the same name.
struct Form {
    fields: Vec<(String, String)>,
    file: Vec<u8>,
}

/// Returns conditions on the fields that every form has, followed by the conditions `more`.
fn conditions(more: &str) -> String {
    let amazon =
        ["algorithm", "credential", "date"].map(|name| format!("[\"starts-with\",\"$x-amz-{name}\",\"\"]"));
    format!("[{{\"bucket\":\"{BUCKET}\"}},[\"starts-with\",\"$key\",\"up/\"],{}{more}]", amazon.join(","))
}

fn policy(more: &str) -> String {
    format!("{{\"expiration\":\"2100-01-01T00:00:00.000Z\",\"conditions\":{}}}", conditions(more))
}

impl Form {
    /// Creates a permitted form, with further conditions in its policy.
    fn new(fixture: &Fixture, more: &str) -> Self {
        Form::with_policy(fixture, &policy(more))
    }

    fn with_policy(fixture: &Fixture, policy: &str) -> Self {
        let signed = fixture.client.form_fields(policy).into_iter();
        let form = Form { fields: Vec::new(), file: b"the file\r\n--not the boundary".to_vec() };
        signed.fold(form.set("key", "up/k"), |form, (name, value)| form.set(name, &value))
    }

    fn set(mut self, name: &str, value: &str) -> Self {
        self.fields.retain(|(known, _)| known != name);
        self.fields.push((name.to_owned(), value.to_owned()));
        self
    }

    fn without(mut self, name: &str) -> Self {
        self.fields.retain(|(known, _)| known != name);
        self
    }

    fn file(mut self, content: impl Into<Vec<u8>>) -> Self {
        self.file = content.into();
        self
    }

    fn body(&self) -> Vec<u8> {
        let mut body = Vec::new();
        for (name, value) in &self.fields {
            body.extend_from_slice(part(name, value).as_bytes());
        }
        let head =
            "Content-Disposition: form-data; name=\"file\"; filename=\"a.txt\"\r\nContent-Type: image/png";
        body.extend_from_slice(format!("--{BOUNDARY}\r\n{head}\r\n\r\n").as_bytes());
        body.extend_from_slice(&self.file);
        body.extend_from_slice(format!("\r\n--{BOUNDARY}--\r\n").as_bytes());
        body
    }

    fn send(&self, fixture: &Fixture) -> Answer {
        send(fixture, &self.body(), "")
    }
}

fn part(name: &str, value: &str) -> String {
    format!("--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n")
}

fn head(fixture: &Fixture, length: usize, headers: &str) -> String {
    format!(
        "POST /{BUCKET} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\
         content-type: multipart/form-data; boundary={BOUNDARY}\r\n\r\n",
        fixture.client.address
    )
}

fn send(fixture: &Fixture, body: &[u8], headers: &str) -> Answer {
    let mut stream = fixture.client.connect();
    stream.write_all(head(fixture, body.len(), headers).as_bytes()).unwrap();
    // An error is ignored, because a gateway that refuses a form may close the connection before it has read the whole
    // form.
    let _ = stream.write_all(body);
    read_answer(&mut stream, "POST")
}

fn content(fixture: &Fixture, name: &str) -> Vec<u8> {
    fixture.store.get(&bucket(), &key(name), &GetOptions::default()).unwrap().content.into_vec().unwrap()
}

#[track_caller]
fn nothing_is_stored(fixture: &Fixture, what: &str) {
    let listed = fixture.store.list(&bucket(), &ListQuery::default()).unwrap();
    assert_eq!(listed.entries.len(), 0, "{what}");
}

#[track_caller]
fn refused(form: &Form, fixture: &Fixture, status: u16, code: &str) -> Answer {
    let answer = form.send(fixture);
    assert_eq!(answer.error(), (status, code.to_owned()), "{}", answer.text());
    nothing_is_stored(fixture, code);
    answer
}

#[test]
fn a_form_is_stored_with_all_that_it_says() {
    let fixture = serve();
    let eq = |name: &str| format!(",[\"starts-with\",\"${name}\",\"\"]");
    let more = ["content-type", "x-amz-meta-colour", "tagging", "acl", "cache-control"].map(eq).concat();
    let tags = "<Tagging><TagSet><Tag><Key>a</Key><Value>b c</Value></Tag></TagSet></Tagging>";
    let form = Form::new(&fixture, &more)
        .set("Content-Type", "text/plain")
        .set("x-amz-meta-Colour", "red")
        .set("Tagging", tags)
        .set("acl", "private")
        .set("Cache-Control", "no-cache")
        .set("x-ignore-this", "anything");
    let answer = form.send(&fixture).ok();
    assert_eq!((answer.status, answer.body.len()), (204, 0));
    let object = fixture.store.get(&bucket(), &key("up/k"), &GetOptions::default()).unwrap();
    assert_eq!(answer.header("etag"), Some(format!("\"{}\"", object.info.etag.as_str()).as_str()));
    let url = format!("http://{}/{BUCKET}/up/k", fixture.client.address);
    assert_eq!(answer.header("location"), Some(url.as_str()));
    assert_eq!(object.info.metadata.content_type.as_deref(), Some("text/plain"));
    assert_eq!(object.info.metadata.cache_control.as_deref(), Some("no-cache"));
    assert_eq!(object.info.metadata.user["colour"], "red");
    assert_eq!(fixture.store.tags(&bucket(), &key("up/k"), None).unwrap()["a"], "b c");
    assert_eq!(object.content.into_vec().unwrap(), form.file);
    let plain = Form::new(&fixture, "").file("").set("key", "up/${filename}");
    assert_eq!(plain.send(&fixture).status, 204);
    let empty = fixture.store.get(&bucket(), &key("up/a.txt"), &GetOptions::default()).unwrap();
    assert_eq!(empty.info.metadata.content_type, None, "the type of the part is not that of the object");
    assert_eq!(empty.info.size, 0);
    // The policy is checked after the file's name has replaced its placeholder in the values.
    let named = ",[\"eq\",\"$x-amz-meta-name\",\"<a.txt>\"]";
    let form = Form::new(&fixture, named).set("x-amz-meta-name", "<${filename}>");
    assert_eq!(form.send(&fixture).status, 204);
    let object = fixture.store.head(&bucket(), &key("up/k"), &GetOptions::default()).unwrap();
    assert_eq!(object.metadata.user["name"], "<a.txt>");
}

#[test]
fn the_form_chooses_the_response() {
    let fixture = serve();
    let status = ",[\"starts-with\",\"$success_action_status\",\"\"],[\"starts-with\",\"$success_action_redirect\",\"\"]";
    let form = |status_of: &str, page: &str| {
        Form::new(&fixture, status)
            .set("success_action_status", status_of)
            .set("success_action_redirect", page)
            .send(&fixture)
    };
    for (asked, status) in [("200", 200), ("201", 201), ("204", 204), ("404", 204), ("", 204)] {
        assert_eq!(form(asked, "").status, status, "{asked}");
    }
    let created = form("201", "no URL");
    assert_eq!(created.element("Bucket").as_deref(), Some(BUCKET));
    assert_eq!(created.element("Key").as_deref(), Some("up/k"));
    assert_eq!(created.element("Location").as_deref(), created.header("location"));
    assert_eq!(created.element("ETag").as_deref(), created.header("etag"));
    // Clients would remove the segments `.` and `..` from a URL, and then request another object.
    for name in ["../k", "a/./k", "a/.."] {
        let form = Form::new(&fixture, status).set("success_action_status", "201");
        let form = form.set("success_action_redirect", "").set("key", &format!("up/{name}"));
        let answer = form.send(&fixture).ok();
        assert_eq!((answer.header("location"), answer.element("Location")), (None, None), "{name}");
        assert_eq!(answer.element("Key"), Some(format!("up/{name}")));
    }
    let sent_on = form("201", "https://page.example/done?a=b");
    let etag = sent_on.header("etag").unwrap().trim_matches('"').to_owned();
    let url = format!("https://page.example/done?a=b&bucket={BUCKET}&key=up%2Fk&etag=%22{etag}%22");
    assert_eq!((sent_on.status, sent_on.header("location")), (303, Some(url.as_str())));
}

#[test]
fn a_form_without_a_valid_signature_is_refused() {
    let fixture = serve();
    let signed = || Form::new(&fixture, "");
    let names = ["policy", "x-amz-algorithm", "x-amz-credential", "x-amz-date", "x-amz-signature"];
    let anonymous = names.into_iter().fold(signed(), Form::without);
    refused(&anonymous, &fixture, 403, "AccessDenied");
    for name in names {
        let answer = refused(&signed().without(name), &fixture, 400, "InvalidArgument");
        assert_eq!(answer.element("ArgumentName").as_deref(), Some(name));
    }
    let policy = STANDARD.encode(policy("").replace("up/", ""));
    let changed = refused(&signed().set("policy", &policy), &fixture, 403, "SignatureDoesNotMatch");
    assert_eq!(changed.element("StringToSign"), Some(policy));
    refused(&signed().set("x-amz-signature", ""), &fixture, 403, "SignatureDoesNotMatch");
    let credential = |text: &str| signed().set("x-amz-credential", text);
    refused(&credential("nobody/20260101/us-east-1/s3/aws4_request"), &fixture, 403, "InvalidAccessKeyId");
    for bad in ["", "a", "a/20260101/us-east-1/ec2/aws4_request", "a/2026/us-east-1/s3/aws4_request"] {
        refused(&credential(bad), &fixture, 400, "InvalidArgument");
    }
    refused(&signed().set("x-amz-algorithm", "none"), &fixture, 400, "InvalidArgument");
    refused(&signed().set("x-amz-date", "today"), &fixture, 400, "InvalidArgument");
}

#[test]
fn a_form_that_its_policy_does_not_allow_is_refused() {
    let fixture = serve();
    refused(&Form::new(&fixture, "").set("key", "elsewhere/k"), &fixture, 403, "AccessDenied");
    refused(&Form::new(&fixture, "").set("x-amz-meta-a", "b"), &fixture, 403, "AccessDenied");
    refused(&Form::new(&fixture, ",{\"bucket\":\"other\"}"), &fixture, 403, "AccessDenied");
    let expired = policy("").replace("2100", "2000");
    let answer = refused(&Form::with_policy(&fixture, &expired), &fixture, 403, "AccessDenied");
    assert_eq!(answer.element("Message").as_deref(), Some("Invalid according to Policy: Policy expired."));
    refused(&Form::with_policy(&fixture, "no policy"), &fixture, 400, "InvalidPolicyDocument");
    let sized = |more: &str| Form::new(&fixture, more).file("0123456789");
    let large = refused(&sized(",[\"content-length-range\",0,5]"), &fixture, 400, "EntityTooLarge");
    assert_eq!(large.element("ProposedSize").as_deref(), Some("10"));
    assert_eq!(large.element("MaxSizeAllowed").as_deref(), Some("5"));
    let small = refused(&sized(",[\"content-length-range\",11,50]"), &fixture, 400, "EntityTooSmall");
    assert_eq!(small.element("MinSizeAllowed").as_deref(), Some("11"));
    assert_eq!(sized(",[\"content-length-range\",10,10]").send(&fixture).status, 204);
}

#[test]
fn fields_that_are_not_offered_are_refused_by_name() {
    let fixture = serve();
    let with = |name: &str, value: &str| {
        Form::new(&fixture, &format!(",[\"starts-with\",\"${name}\",\"\"]")).set(name, value)
    };
    for (name, value, status, code) in [
        ("acl", "public-read", 400, "AccessControlListNotSupported"),
        ("x-amz-copy-source", "/b/k", 501, "NotImplemented"),
        ("if-none-match", "*", 501, "NotImplemented"),
        ("x-amz-storage-class", "GLACIER", 501, "NotImplemented"),
        ("x-amz-website-redirect-location", "ftp://x", 400, "InvalidRedirectLocation"),
        ("x-amz-checksum-nonesuch", "AAAA", 400, "InvalidRequest"),
        ("x-amz-checksum-crc32", "no checksum", 400, "InvalidRequest"),
        ("x-amz-checksum-crc32", "AAAAAA==", 400, "BadDigest"),
        ("content-md5", "AAAAAAAAAAAAAAAAAAAAAA==", 400, "BadDigest"),
        ("tagging", "no document", 400, "MalformedXML"),
        ("x-amz-meta-a", "a\0b", 400, "InvalidArgument"),
    ] {
        refused(&with(name, value), &fixture, status, code);
    }
    let form = Form::new(&fixture, "");
    for header in ["x-amz-meta-a: b\r\n", "x-amz-tagging: a=b\r\n", "if-none-match: *\r\n"] {
        assert_eq!(
            send(&fixture, &form.body(), header).error(),
            (501, "NotImplemented".to_owned()),
            "{header}"
        );
    }
    nothing_is_stored(&fixture, "headers");
    assert_eq!(with("x-amz-checksum-crc32", "y/U5dA==").file("hello").send(&fixture).error().1, "BadDigest");
    assert_eq!(with("x-amz-checksum-crc32", "NhCmhg==").file("hello").send(&fixture).status, 204);
}

#[test]
fn hostile_forms_store_nothing() {
    let fixture = serve();
    let good = Form::new(&fixture, "").body();
    let after = |part: &str| [part.as_bytes(), &good].concat();
    let malformed = (400, "MalformedPOSTRequest".to_owned());
    for (what, body) in [
        ("NUL in a name", after(&part("a\0b", "x"))),
        ("a carriage return in a name", after(&part("a\rb", "x"))),
        ("a line break in a name", after(&part("a\nb", "x"))),
        ("a preamble", after("preamble\r\n")),
        ("no name", after(&format!("--{BOUNDARY}\r\nContent-Type: text/plain\r\n\r\nx\r\n"))),
        (
            "an encoded part",
            after(&part("a", "x").replace("\r\n\r\n", "\r\nContent-Transfer-Encoding: base64\r\n\r\n")),
        ),
        ("another boundary", good.iter().map(|byte| if *byte == b'X' { b'Y' } else { *byte }).collect()),
        ("no end", good[..good.len() - 4].to_vec()),
        ("an empty body", Vec::new()),
    ] {
        assert_eq!(send(&fixture, &body, "").error(), malformed, "{what}");
        nothing_is_stored(&fixture, what);
    }
    let large = "h".repeat(30_000);
    for part in [part("x-ignore", &large), part(&large, "x"), part("a", "x").replace("form", &large)] {
        assert_eq!(
            send(&fixture, &after(&part), "").error(),
            (400, "MaxPostPreDataLengthExceeded".to_owned())
        );
    }
    let twice = after(&part("key", "up/other"));
    assert_eq!(send(&fixture, &twice, "").error(), (400, "InvalidArgument".to_owned()));
    let no_file = [part("key", "up/k"), format!("--{BOUNDARY}--\r\n")].concat();
    assert_eq!(send(&fixture, no_file.as_bytes(), "").error(), (400, "InvalidArgument".to_owned()));
    nothing_is_stored(&fixture, "all of them");
    let ignored = [good.as_slice(), part("key", "up/other").as_bytes(), b"any\0thing"].concat();
    assert_eq!(send(&fixture, &ignored, "").status, 204, "all after the file is ignored");
}

#[test]
fn bodies_that_are_no_forms_are_refused() {
    let fixture = serve();
    for (kind, status, code) in [
        ("application/json", 412, "PreconditionFailed"),
        ("multipart/form-data", 400, "MalformedPOSTRequest"),
        ("multipart/form-data; boundary=a; boundary=b", 400, "MalformedPOSTRequest"),
    ] {
        let call = Call::new("POST", format!("/{BUCKET}")).header("content-type", kind).body("x");
        assert_eq!(fixture.client.send(&call).error(), (status, code.to_owned()), "{kind}");
    }
}

/// Sends a form without its last bytes, and then shuts down the connection for writing.
#[test]
fn a_form_that_is_cut_stores_nothing() {
    let fixture = serve();
    let body = Form::new(&fixture, "").file(vec![b'x'; 3000]).body();
    for cut in [1, 2, 8, 40, 2000, 3060, body.len() - 100, body.len()] {
        let mut stream = fixture.client.connect();
        stream.write_all(head(&fixture, body.len(), "").as_bytes()).unwrap();
        stream.write_all(&body[..body.len() - cut]).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        // There may be no response. When the connection has ended, the gateway has finished processing the form.
        let mut rest = Vec::new();
        let _ = std::io::Read::read_to_end(&mut stream, &mut rest);
        assert!(!String::from_utf8_lossy(&rest).starts_with("HTTP/1.1 2"), "{cut}");
        nothing_is_stored(&fixture, &cut.to_string());
    }
}

#[test]
fn a_large_file_is_stored_whole() {
    let fixture = serve();
    // The content has many line breaks, so that pieces of the body often end with a possible start of a boundary.
    let file: Vec<u8> = (0..5_000_000_u32).map(|at| b"\r\n-- x"[at as usize % 6]).collect();
    let form = Form::new(&fixture, "").file(file);
    assert_eq!(form.send(&fixture).status, 204);
    assert!(content(&fixture, "up/k") == form.file);
}

/// The headers of a form upload are not signed. A header must therefore not change the values of the condition keys
/// about the signature.
#[test]
fn bucket_policies_know_how_a_form_is_signed() {
    let fixture = serve();
    let set = |operator: &str, key: &str, value: &str| {
        let statement = format!(
            "{{\"Effect\":\"Deny\",\"Principal\":\"*\",\"Action\":\"s3:PutObject\",\
             \"Resource\":\"arn:aws:s3:::{BUCKET}/*\",\"Condition\":{{\"{operator}\":{{\"{key}\":\"{value}\"}}}}}}"
        );
        let policy = format!("{{\"Version\":\"2012-10-17\",\"Statement\":[{statement}]}}");
        fixture.client.send(&Call::new("PUT", format!("/{BUCKET}")).query("policy").body(policy)).ok();
    };
    let form = Form::new(&fixture, "");
    let forged = "authorization: AWS4-HMAC-SHA256 Credential=x\r\nx-amz-date: 20000101T000000Z\r\n";
    for (operator, key, value) in [
        ("StringNotEquals", "s3:authType", "REST-HEADER"),
        ("StringEquals", "s3:authType", "POST"),
        ("StringEquals", "s3:signatureversion", "AWS4-HMAC-SHA256"),
        ("NumericLessThan", "s3:signatureAge", "600000"),
    ] {
        set(operator, key, value);
        let answer = send(&fixture, &form.body(), forged);
        assert_eq!(answer.error(), (403, "AccessDenied".to_owned()), "{key}: {}", answer.text());
    }
    nothing_is_stored(&fixture, "a denied form");
    set("StringNotEquals", "s3:authType", "POST");
    form.send(&fixture).ok();
}

#[test]
fn a_form_of_version_2_is_refused_unless_accepted() {
    let form = |fixture: &Fixture| {
        let encoded = STANDARD.encode(format!(
            "{{\"expiration\":\"2100-01-01T00:00:00Z\",\"conditions\":[{{\"bucket\":\"{BUCKET}\"}},\
             [\"starts-with\",\"$key\",\"up/\"]]}}"
        ));
        let secret = fixture.client.identity.secret_key.as_bytes();
        let mac = Hmac::<sha1::Sha1>::new_from_slice(secret).unwrap().chain_update(&encoded);
        let form = Form { fields: Vec::new(), file: b"old".to_vec() };
        form.set("key", "up/k")
            .set("AWSAccessKeyId", &fixture.client.identity.access_key)
            .set("policy", &encoded)
            .set("signature", &STANDARD.encode(mac.finalize().into_bytes()))
    };
    let strict = serve();
    let allowing = serve_with(|config| config.signature_v2 = true);
    refused(&form(&strict), &strict, 400, "InvalidRequest");
    refused(&form(&allowing).set("signature", "AAAA"), &allowing, 403, "SignatureDoesNotMatch");
    refused(&form(&allowing).without("signature"), &allowing, 400, "InvalidArgument");
    refused(&form(&allowing).set("key", "k"), &allowing, 403, "AccessDenied");
    assert_eq!(form(&allowing).send(&allowing).status, 204);
    assert_eq!(content(&allowing, "up/k"), b"old");
}

/// A page from another origin can read the response to a form if the bucket's CORS rules allow this origin.
#[test]
fn a_page_learns_the_result() {
    let fixture = serve();
    let rules = "<CORSConfiguration><CORSRule><AllowedMethod>POST</AllowedMethod>\
        <AllowedOrigin>https://page.example</AllowedOrigin><ExposeHeader>ETag</ExposeHeader></CORSRule></CORSConfiguration>";
    fixture.client.send(&Call::new("PUT", format!("/{BUCKET}")).query("cors").body(rules)).ok();
    let form = Form::new(&fixture, "");
    let answer = send(&fixture, &form.body(), "origin: https://page.example\r\n").ok();
    assert_eq!(answer.header("access-control-allow-origin"), Some("https://page.example"));
    assert_eq!(answer.header("access-control-expose-headers"), Some("ETag"));
    let refused =
        send(&fixture, &Form::new(&fixture, "").without("policy").body(), "origin: https://page.example\r\n");
    assert_eq!((refused.status, refused.header("access-control-allow-origin").is_some()), (400, true));
    let other = send(&fixture, &form.body(), "origin: https://other.example\r\n").ok();
    assert_eq!(other.header("access-control-allow-origin"), None);
}

/// The holder of a signed form can send that form, and no other request.
#[test]
fn a_signed_form_authorises_no_other_operation() {
    let fixture = serve();
    let body = Form::new(&fixture, "").body();
    let access_key = &fixture.client.identity.access_key;
    let forged = format!(
        "authorization: AWS4-HMAC-SHA256 Credential={access_key}/20260101/us-east-1/s3/aws4_request, \
         SignedHeaders=host, Signature={}\r\nx-amz-date: 20260101T000000Z\r\nx-amz-content-sha256: UNSIGNED-PAYLOAD\r\n",
        "0".repeat(64)
    );
    for target in ["?delete", "/k?uploads", "/k?uploadId=1"] {
        let head = head(&fixture, body.len(), &forged)
            .replace(&format!("/{BUCKET} "), &format!("/{BUCKET}{target} "));
        let mut stream = fixture.client.connect();
        stream.write_all(head.as_bytes()).unwrap();
        let _ = stream.write_all(&body);
        let answer = read_answer(&mut stream, "POST");
        assert_eq!(answer.error(), (400, "InvalidRequest".to_owned()), "{target}");
    }
    let uploads = fixture.client.send(&Call::new("GET", format!("/{BUCKET}")).query("uploads")).ok();
    assert_eq!(uploads.elements("UploadId").len(), 0);
}
