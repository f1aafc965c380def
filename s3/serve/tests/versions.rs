//! Tests versions over HTTP: keeping, reading, listing and removing versions, and delete markers.

mod client;

use client::{Answer, BUCKET, Call, Fixture, bucket, serve};
use fordway_store::{Bucket, ObjectVersionOperations, Objects, VersioningState};

const ENABLED: &str = "<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>";

fn versioned() -> Fixture {
    let fixture = serve();
    fixture.store.set_versioning(&bucket(), VersioningState::Enabled).unwrap();
    fixture
}

fn on_bucket(fixture: &Fixture, query: &str) -> Answer {
    fixture.client.send(&Call::new("GET", format!("/{BUCKET}")).query(query))
}

/// Puts `body` and returns the version ID.
fn put(fixture: &Fixture, key: &str, body: &str) -> String {
    let made = fixture.client.send(&Call::on("PUT", key).body(body)).ok();
    made.header("x-amz-version-id").unwrap().to_owned()
}

#[test]
fn a_bucket_says_whether_it_keeps_versions() {
    let fixture = serve();
    let set = |body: &str| {
        fixture.client.send(&Call::new("PUT", format!("/{BUCKET}")).query("versioning").body(body))
    };
    assert_eq!(on_bucket(&fixture, "versioning").ok().element("Status"), None);
    set(ENABLED).ok();
    assert_eq!(on_bucket(&fixture, "versioning").ok().element("Status").as_deref(), Some("Enabled"));
    set(&ENABLED.replace("Enabled", "Suspended")).ok();
    assert_eq!(on_bucket(&fixture, "versioning").ok().element("Status").as_deref(), Some("Suspended"));
    assert_eq!(set("<VersioningConfiguration/>").error(), (400, "MalformedXML".to_owned()));
    let mfa = ENABLED.replace("</Status>", "</Status><MfaDelete>Enabled</MfaDelete>");
    assert_eq!(set(&mfa).error(), (501, "NotImplemented".to_owned()));
    let none = fixture.client.send(&Call::new("GET", "/nowhere").query("versioning"));
    assert_eq!(none.error(), (404, "NoSuchBucket".to_owned()));
}

#[test]
fn where_versions_are_kept_they_are_named() {
    let fixture = serve();
    fixture.client.send(&Call::on("PUT", "k").body("x")).ok();
    fixture.client.send(&Call::new("PUT", format!("/{BUCKET}")).query("versioning").body(ENABLED)).ok();
    for method in ["GET", "HEAD"] {
        let old = fixture.client.send(&Call::on(method, "k").query("versionId=null")).ok();
        assert_eq!(old.header("x-amz-version-id"), Some("null"), "{method}");
    }
    let full = fixture.client.send(&Call::new("DELETE", format!("/{BUCKET}")));
    assert_eq!(full.error(), (409, "BucketNotEmpty".to_owned()));
    assert!(full.element("Message").unwrap().ends_with("You must delete all versions in the bucket."));
}

#[test]
fn an_unversioned_bucket_names_no_versions() {
    let fixture = serve();
    assert_eq!(fixture.client.send(&Call::on("PUT", "k").body("x")).ok().header("x-amz-version-id"), None);
    let answer = fixture.client.send(&Call::on("GET", "k").query("versionId=null")).ok();
    assert_eq!((answer.text().as_str(), answer.header("x-amz-version-id")), ("x", None));
    assert_eq!(on_bucket(&fixture, "versions").ok().elements("VersionId"), ["null"]);
    let version = |name: &str| {
        let query = format!("versionId={name}");
        fixture.client.send(&Call::on("GET", "k").query(&query)).error()
    };
    assert_eq!(version("0123456789abcdef0123456789abcdef"), (404, "NoSuchVersion".to_owned()));
    // For a version ID that no store generates, the error is `InvalidArgument`, as on S3.
    assert_eq!(version("other"), (400, "InvalidArgument".to_owned()));
}

#[test]
fn versions_are_read_by_name() {
    let fixture = versioned();
    let (one, two) = (put(&fixture, "k", "one"), put(&fixture, "k", "two!"));
    for (query, version, body) in [
        (String::new(), &two, "two!"),
        (format!("versionId={one}"), &one, "one"),
        (format!("versionId={two}"), &two, "two!"),
    ] {
        let got = fixture.client.send(&Call::on("GET", "k").query(&query)).ok();
        assert_eq!((got.text().as_str(), got.header("x-amz-version-id")), (body, Some(version.as_str())));
        let head = fixture.client.send(&Call::on("HEAD", "k").query(&query)).ok();
        assert_eq!(head.header("content-length"), Some(body.len().to_string().as_str()));
        assert_eq!(head.header("x-amz-version-id"), Some(version.as_str()));
    }
}

#[test]
fn a_version_is_copied() {
    let fixture = versioned();
    let plain = Bucket::new("plain-bucket").unwrap();
    fixture.store.create_bucket(&plain).unwrap();
    fixture.store.set_versioning(&plain, VersioningState::Enabled).unwrap();
    let put = |body: &str| fixture.client.send(&Call::new("PUT", "/plain-bucket/k").body(body)).ok();
    let one = put("one").header("x-amz-version-id").unwrap().to_owned();
    put("two");
    let source = format!("/plain-bucket/k?versionId={one}");
    let copied = fixture.client.send(&Call::on("PUT", "copy").header("x-amz-copy-source", source)).ok();
    assert_eq!(copied.header("x-amz-copy-source-version-id"), Some(one.as_str()));
    assert!(copied.header("x-amz-version-id").is_some());
    assert_eq!(fixture.client.send(&Call::on("GET", "copy")).ok().text(), "one");
}

#[test]
fn a_delete_marker_hides_and_is_removed() {
    let fixture = versioned();
    let one = put(&fixture, "k", "one");
    let marked = fixture.client.send(&Call::on("DELETE", "k")).ok();
    assert_eq!(marked.header("x-amz-delete-marker"), Some("true"));
    let marker = marked.header("x-amz-version-id").unwrap().to_owned();

    let hidden = fixture.client.send(&Call::on("GET", "k"));
    assert_eq!(hidden.error(), (404, "NoSuchKey".to_owned()));
    for hidden in [hidden, fixture.client.send(&Call::on("HEAD", "k"))] {
        assert_eq!(hidden.header("x-amz-delete-marker"), Some("true"));
        assert_eq!(hidden.header("x-amz-version-id"), Some(marker.as_str()));
        assert_eq!((hidden.header("allow"), hidden.header("last-modified")), (None, None));
    }
    let by_name = format!("versionId={marker}");
    let itself = fixture.client.send(&Call::on("GET", "k").query(&by_name));
    assert_eq!(itself.error(), (405, "MethodNotAllowed".to_owned()));
    for itself in [itself, fixture.client.send(&Call::on("HEAD", "k").query(&by_name))] {
        assert_eq!(itself.header("x-amz-delete-marker"), Some("true"));
        assert_eq!(itself.header("x-amz-version-id"), Some(marker.as_str()));
        assert_eq!(itself.header("allow"), Some("DELETE"));
        let written = fordway_wire::date::parse_http(itself.header("last-modified").unwrap()).unwrap();
        assert!(written.elapsed().unwrap() < std::time::Duration::from_secs(60));
    }
    let copy =
        |source: &str| fixture.client.send(&Call::on("PUT", "copy").header("x-amz-copy-source", source));
    let refused = copy(&format!("/{BUCKET}/k?{by_name}"));
    assert_eq!(refused.error(), (400, "InvalidRequest".to_owned()));
    assert!(refused.text().contains("may not specifically refer to a delete marker by version id."));
    assert_eq!(copy(&format!("/{BUCKET}/k")).error(), (404, "NoSuchKey".to_owned()));
    assert_eq!(fixture.client.send(&Call::on("GET", "none")).header("x-amz-delete-marker"), None);
    let older = fixture.client.send(&Call::on("GET", "k").query(&format!("versionId={one}"))).ok();
    assert_eq!(older.text(), "one");

    let removed = fixture.client.send(&Call::on("DELETE", "k").query(&by_name)).ok();
    assert_eq!(removed.header("x-amz-delete-marker"), Some("true"));
    assert_eq!(removed.header("x-amz-version-id"), Some(marker.as_str()));
    assert_eq!(fixture.client.send(&Call::on("GET", "k")).ok().text(), "one");
}

#[test]
fn names_of_listed_versions_are_encoded_when_asked() {
    let fixture = versioned();
    put(&fixture, "a%20b", "one");
    let listed = on_bucket(&fixture, "encoding-type=url&versions").ok();
    assert_eq!(listed.element("EncodingType").as_deref(), Some("url"));
    assert_eq!(listed.header("content-type"), Some("application/xml"));
    assert_eq!(listed.elements("Key"), ["a%20b"]);
    assert_eq!(on_bucket(&fixture, "versions").ok().elements("Key"), ["a b"]);
}

#[test]
fn pages_of_versions() {
    let fixture = versioned();
    let names =
        [("d/x", "1"), ("d/x", "2"), ("e", "3"), ("e", "4")].map(|(key, body)| put(&fixture, key, body));
    fixture.client.send(&Call::on("DELETE", "e")).ok();
    let whole = on_bucket(&fixture, "versions").ok();
    assert_eq!(whole.elements("VersionId")[..2], [names[1].clone(), names[0].clone()]);
    assert_eq!(whole.elements("VersionId")[3..], [names[3].clone(), names[2].clone()]);
    assert_eq!(whole.elements("IsLatest"), ["true", "false", "true", "false", "false"]);
    let text = whole.text();
    assert!(text.find("<DeleteMarker>").unwrap() < text.find(&names[3]).unwrap(), "{text}");

    let first = on_bucket(&fixture, "max-keys=2&versions&delimiter=%2F").ok();
    assert_eq!(
        (first.element("IsTruncated").as_deref(), first.elements("VersionId").len()),
        (Some("true"), 1)
    );
    assert_eq!(first.elements("Prefix"), ["", "d/"]);
    let (key, version) =
        (first.element("NextKeyMarker").unwrap(), first.element("NextVersionIdMarker").unwrap());
    let query =
        format!("delimiter=%2F&key-marker={}&version-id-marker={version}&versions", key.replace('/', "%2F"));
    let rest = on_bucket(&fixture, &query).ok();
    assert_eq!(rest.elements("VersionId"), [names[3].clone(), names[2].clone()]);
    assert_eq!(rest.element("IsTruncated").as_deref(), Some("false"));
    let alone = on_bucket(&fixture, "version-id-marker=x&versions");
    assert_eq!(alone.error(), (400, "InvalidArgument".to_owned()));
}

#[test]
fn many_versions_are_deleted_at_once() {
    let fixture = versioned();
    let (one, two) = (put(&fixture, "k", "one"), put(&fixture, "k", "two"));
    let delete = |objects: &str| {
        let body = format!("<Delete>{objects}</Delete>");
        fixture.client.send(&Call::new("POST", format!("/{BUCKET}")).query("delete").body(body)).ok()
    };
    let marked = delete("<Object><Key>k</Key></Object>");
    let marker = marked.element("DeleteMarkerVersionId").unwrap();
    assert_eq!(
        (marked.element("DeleteMarker").as_deref(), marked.element("VersionId")),
        (Some("true"), None)
    );
    let named = |version: &str| format!("<Object><Key>k</Key><VersionId>{version}</VersionId></Object>");
    let removed = delete(&format!("{}{}", named(&marker), named(&two)));
    assert_eq!(removed.elements("VersionId"), [marker.clone(), two]);
    assert_eq!(removed.elements("DeleteMarkerVersionId"), [marker]);
    assert_eq!(
        fixture.client.send(&Call::on("GET", "k")).ok().header("x-amz-version-id"),
        Some(one.as_str())
    );

    let refused = delete("<Object><Key>k</Key><ETag>\"other\"</ETag></Object>");
    assert_eq!(refused.element("Code").as_deref(), Some("PreconditionFailed"));
    assert_eq!(fixture.client.send(&Call::on("GET", "k")).ok().text(), "one");
    let fits = "<Object><Key>k</Key><ETag>\"f97c5d29941bfb1b2fdab0874906ab82\"</ETag></Object>";
    assert_eq!(delete(fits).element("DeleteMarker").as_deref(), Some("true"));
}

#[test]
fn deletes_have_conditions_on_size_and_time() {
    let fixture = versioned();
    // A conditional delete of an object that does not exist creates no delete marker.
    fixture.client.send(&Call::on("DELETE", "k").header("if-match", "*")).ok();
    assert_eq!(on_bucket(&fixture, "versions").ok().elements("VersionId").len(), 0);
    let version = put(&fixture, "k", "12345");
    let delete = |headers: &[(&'static str, &str)], query: &str| {
        let call =
            headers.iter().fold(Call::on("DELETE", "k"), |call, (name, value)| call.header(name, *value));
        fixture.client.send(&Call { query, ..call })
    };
    let refused = (412, "PreconditionFailed".to_owned());
    let epoch = "Thu, 01 Jan 1970 00:00:00 GMT";
    assert_eq!(delete(&[("x-amz-if-match-size", "4")], "").error(), refused);
    assert_eq!(delete(&[("x-amz-if-match-last-modified-time", epoch)], "").error(), refused);
    let modified = fixture.client.send(&Call::on("HEAD", "k")).ok();
    let modified = modified.header("last-modified").unwrap().to_owned();
    let right = [("x-amz-if-match-size", "5"), ("x-amz-if-match-last-modified-time", modified.as_str())];
    assert_eq!(delete(&right, "").ok().header("x-amz-delete-marker"), Some("true"));
    // A delete marker has no size, so it does not meet a condition on the size.
    assert_eq!(delete(&right, "").error(), refused);
    let named = format!("versionId={version}");
    assert_eq!(delete(&[("x-amz-if-match-size", "4")], &named).error(), refused);
    delete(&[("x-amz-if-match-size", "5")], &named).ok();
    assert_eq!(fixture.client.send(&Call::on("GET", "k").query(&named)).error().0, 404);
}

#[test]
fn deletes_of_many_have_conditions_too() {
    let fixture = serve();
    for (name, body) in [("a", "1"), ("b", "12")] {
        fixture.client.send(&Call::on("PUT", name).body(body)).ok();
    }
    let document = "<Delete><Object><Key>a</Key><Size>9</Size></Object>\
                    <Object><Key>b</Key><Size>2</Size></Object>\
                    <Object><Key>c</Key><Size>3</Size></Object></Delete>";
    let call = Call::new("POST", format!("/{BUCKET}")).query("delete").body(document);
    let answer = fixture.client.send(&call).ok();
    assert_eq!(answer.elements("Code"), ["PreconditionFailed"]);
    assert_eq!(answer.elements("Key").len(), 3);
    assert_eq!(fixture.client.send(&Call::on("HEAD", "a")).status, 200);
    // As in the If-Match header, `*` means any object.
    let any = "<Delete><Object><Key>a</Key><ETag>*</ETag></Object>\
               <Object><Key>a</Key><ETag>*</ETag><Size>1</Size></Object></Delete>";
    let answer = fixture.client.send(&Call::new("POST", format!("/{BUCKET}")).query("delete").body(any)).ok();
    assert_eq!((answer.elements("Code").len(), answer.elements("Key").len()), (0, 2), "{}", answer.text());
    assert_eq!(fixture.client.send(&Call::on("HEAD", "a")).status, 404);
    assert_eq!(fixture.client.send(&Call::on("HEAD", "b")).status, 404);
}

/// The gateway checks the date of a retention before it looks for the object. The error for an invalid date has AWS's
/// message.
#[test]
fn dates_of_retentions_lie_ahead() {
    let fixture = serve();
    let locked = |key: &str| format!("/locked-bucket{key}");
    let create = Call::new("PUT", locked("")).header("x-amz-bucket-object-lock-enabled", "true");
    fixture.client.send(&create).ok();
    let past = "<Retention><Mode>COMPLIANCE</Mode><RetainUntilDate>2020-01-01T00:00:00Z</RetainUntilDate></Retention>";
    let put = |key: &str| fixture.client.send(&Call::new("PUT", locked(key)).query("retention").body(past));
    let ahead = "The retain until date must be in the future!";
    let wrong = "The retain until date must be provided in ISO 8601 format";
    let stating = |bucket: &str, until: &str| {
        let call = Call::new("PUT", format!("{bucket}/k")).header("x-amz-object-lock-mode", "GOVERNANCE");
        fixture.client.send(&call.header("x-amz-object-lock-retain-until-date", until))
    };
    let unlocked = format!("/{BUCKET}");
    for (answer, words) in [
        (put("/none"), ahead),
        (stating("/locked-bucket", "2020-01-01T00:00:00Z"), ahead),
        (stating("/locked-bucket", "tomorrow"), wrong),
        (stating(&unlocked, "2020-01-01T00:00:00Z"), ahead),
    ] {
        assert_eq!(answer.error(), (400, "InvalidArgument".to_owned()));
        assert_eq!(answer.element("Message").as_deref(), Some(words));
    }
    let missing = Call::new("PUT", "/no-such-bucket/k").query("retention").body(past);
    assert_eq!(fixture.client.send(&missing).error(), (404, "NoSuchBucket".to_owned()));
    assert_eq!(fixture.client.send(&Call::new("HEAD", locked("/k"))).status, 404);
}

#[test]
fn a_page_of_versions_has_no_negative_size() {
    let answer = on_bucket(&serve(), "versions&max-keys=-123");
    assert_eq!(answer.error(), (400, "InvalidArgument".to_owned()));
    assert_eq!(answer.element("Message").as_deref(), Some("max-keys cannot be negative"));
    assert_eq!(answer.element("ArgumentValue").as_deref(), Some("-123"));
}
