//! Tests objects over HTTP. Content is returned as it was stored, whether it is read as a whole, in ranges or with
//! conditions.

mod client;

use client::{Answer, BUCKET, Call, bucket, key, serve};
use fordway_store::{GetOptions, ListQuery, Objects};

#[test]
fn an_object_comes_back_with_all_that_was_said_about_it() {
    let fixture = serve();
    let put = Call::on("PUT", "a/b.txt")
        .header("content-type", "text/plain")
        .header("content-encoding", "gzip,aws-chunked")
        .header("content-language", "de")
        .header("content-disposition", "inline")
        .header("cache-control", "no-store")
        .header("expires", "Thu, 01 Dec 1994 16:00:00 GMT")
        .header("x-amz-meta-colour", "blue")
        .body("hello");
    let made = fixture.client.send(&put).ok();
    assert_eq!(made.header("etag"), Some("\"5d41402abc4b2a76b9719d911017c592\""));

    for method in ["GET", "HEAD"] {
        let answer = fixture.client.send(&Call::on(method, "a/b.txt")).ok();
        assert_eq!(answer.status, 200);
        for (name, value) in [
            ("content-length", "5"),
            ("content-type", "text/plain"),
            ("content-encoding", "gzip"),
            ("content-language", "de"),
            ("content-disposition", "inline"),
            ("cache-control", "no-store"),
            ("expires", "Thu, 01 Dec 1994 16:00:00 GMT"),
            ("x-amz-meta-colour", "blue"),
            ("accept-ranges", "bytes"),
            ("etag", "\"5d41402abc4b2a76b9719d911017c592\""),
        ] {
            assert_eq!(answer.header(name), Some(value), "{method} {name}");
        }
        assert!(answer.header("last-modified").is_some_and(|date| date.ends_with("GMT")));
        assert_eq!(answer.text(), if method == "GET" { "hello" } else { "" });
    }
}

#[test]
fn an_empty_object_has_the_default_type() {
    let fixture = serve();
    fixture.client.send(&Call::on("PUT", "empty")).ok();
    let answer = fixture.client.send(&Call::on("GET", "empty")).ok();
    assert_eq!((answer.header("content-length"), answer.text().as_str()), (Some("0"), ""));
    assert_eq!(answer.header("content-type"), Some("binary/octet-stream"));
}

#[test]
fn ranges() {
    let fixture = serve();
    fixture.client.send(&Call::on("PUT", "digits").body("0123456789")).ok();
    let part = |range: &str| fixture.client.send(&Call::on("GET", "digits").header("range", range));
    for (range, body, content_range) in [
        ("bytes=2-4", "234", "bytes 2-4/10"),
        ("bytes=7-", "789", "bytes 7-9/10"),
        ("bytes=-3", "789", "bytes 7-9/10"),
        ("bytes=8-99", "89", "bytes 8-9/10"),
    ] {
        let answer = part(range).ok();
        assert_eq!((answer.status, answer.text().as_str()), (206, body), "{range}");
        assert_eq!(answer.header("content-range"), Some(content_range));
    }
    let beyond = part("bytes=10-");
    assert_eq!(beyond.error(), (416, "InvalidRange".to_owned()));
    assert_eq!(beyond.header("content-range"), Some("bytes */10"));
}

#[test]
fn a_large_object_arrives_unharmed() {
    let fixture = serve();
    let body: Vec<u8> = (0..3_000_000u32).map(|i| (i * 7 / 3) as u8).collect();
    fixture.client.send(&Call::on("PUT", "large").body(body.clone())).ok();
    assert!(fixture.client.send(&Call::on("GET", "large")).ok().body == body);
}

#[test]
fn conditions_of_reads() {
    let fixture = serve();
    fixture.client.send(&Call::on("PUT", "k").body("hello")).ok();
    let tag = "\"5d41402abc4b2a76b9719d911017c592\"";
    let get = |name, value: &str| fixture.client.send(&Call::on("GET", "k").header(name, value));
    assert_eq!(get("if-match", tag).status, 200);
    assert_eq!(get("if-match", "\"other\"").error(), (412, "PreconditionFailed".to_owned()));
    let current = get("if-none-match", tag);
    assert_eq!((current.status, current.text().as_str()), (304, ""));
    assert_eq!(current.header("etag"), Some(tag));
    assert_eq!(get("if-none-match", "\"other\"").status, 200);
    // If a header lists several ETags, one matching ETag is enough.
    assert_eq!(get("if-match", &format!("\"other\", {tag}")).status, 200);
    assert_eq!(get("if-none-match", &format!("{tag}, \"other\"")).status, 304);
    assert_eq!(get("if-none-match", &format!("W/\"a\",W/\"b\",{tag}")).status, 304);
    assert_eq!(get("if-none-match", "\"a\", \"b\"").status, 200);
    let put = Call::on("PUT", "k").header("if-none-match", format!("\"other\", {tag}")).body("no");
    assert_eq!(fixture.client.send(&put).error(), (412, "PreconditionFailed".to_owned()));
    assert_eq!(get("if-modified-since", "Thu, 01 Jan 2037 00:00:00 GMT").status, 304);
    assert_eq!(get("if-unmodified-since", "Thu, 01 Jan 2004 00:00:00 GMT").status, 412);
}

#[test]
fn conditions_of_writes() {
    let fixture = serve();
    let create = || fixture.client.send(&Call::on("PUT", "k").header("if-none-match", "*").body("1"));
    create().ok();
    assert_eq!(create().error(), (412, "PreconditionFailed".to_owned()));
    let replace = |tag: &str| fixture.client.send(&Call::on("PUT", "k").header("if-match", tag).body("2"));
    assert_eq!(replace("\"other\"").error(), (412, "PreconditionFailed".to_owned()));
    replace("\"c4ca4238a0b923820dcc509a6f75849b\"").ok();
    let delete = fixture.client.send(&Call::on("DELETE", "k").header("if-match", "\"other\""));
    assert_eq!(delete.error(), (412, "PreconditionFailed".to_owned()));
    assert_eq!(fixture.client.send(&Call::on("GET", "k")).ok().text(), "2");
}

#[test]
fn an_answer_can_be_dressed_up() {
    let fixture = serve();
    fixture.client.send(&Call::on("PUT", "k").body("x")).ok();
    let query = "response-cache-control=max-age%3D5&response-content-type=text%2Fcsv";
    let answer = fixture.client.send(&Call::on("GET", "k").query(query)).ok();
    assert_eq!(answer.header("content-type"), Some("text/csv"));
    assert_eq!(answer.header("cache-control"), Some("max-age=5"));
}

#[test]
fn keys_arrive_byte_for_byte() {
    let fixture = serve();
    for (wire, meant) in [
        ("a//b", "a//b"),
        ("../x", "../x"),
        ("a/./b", "a/./b"),
        ("dir/", "dir/"),
        ("/lead", "/lead"),
        ("%C3%BC%20%2B%25", "ü +%"),
        ("plus%2Bsign", "plus+sign"),
        ("%01", "\u{1}"),
    ] {
        fixture.client.send(&Call::on("PUT", wire).body(meant)).ok();
        let stored = fixture.store.get(&bucket(), &key(meant), &GetOptions::default());
        assert_eq!(stored.unwrap().content.into_vec().unwrap(), meant.as_bytes(), "{meant:?}");
        assert_eq!(fixture.client.send(&Call::on("GET", wire)).ok().body, meant.as_bytes());
    }
    let long = "k".repeat(1025);
    assert_eq!(fixture.client.send(&Call::on("PUT", &long)).error(), (400, "KeyTooLongError".to_owned()));
    assert_eq!(fixture.client.send(&Call::on("PUT", "a%00b")).error(), (400, "InvalidURI".to_owned()));
    assert_eq!(fixture.store.list(&bucket(), &ListQuery::default()).unwrap().entries.len(), 8);
}

#[test]
fn what_is_not_there() {
    let fixture = serve();
    let missing = fixture.client.send(&Call::on("GET", "none"));
    assert_eq!(missing.error(), (404, "NoSuchKey".to_owned()));
    assert!(missing.element("Detail").unwrap().contains(&format!("s3://{BUCKET}/none")));
    assert_eq!(missing.element("Key").as_deref(), Some("none"));
    assert_eq!(fixture.client.send(&Call::on("HEAD", "none")).status, 404);
    let elsewhere = fixture.client.send(&Call::new("GET", "/no-bucket/k"));
    assert_eq!(elsewhere.error(), (404, "NoSuchBucket".to_owned()));
    assert_eq!(fixture.client.send(&Call::on("DELETE", "none")).status, 204);
}

/// AWS's error documents repeat parts of the request, and programs read them.
#[test]
fn error_documents_repeat_parts_of_the_request() {
    let fixture = serve();
    fixture.client.send(&Call::on("PUT", "k").body("0123456789")).ok();
    fixture.client.send(&Call::new("PUT", "/other-bucket")).ok();
    let bucket =
        |method: &'static str, query: &'static str| Call::new(method, format!("/{BUCKET}")).query(query);
    let source = format!("/{BUCKET}/none%20here");
    let version = "0".repeat(32);
    let of_version = format!("versionId={version}");
    for (call, code, facts) in [
        (Call::on("GET", "a%20%26%20b"), "NoSuchKey", &[("Key", "a &amp; b")][..]),
        (Call::new("GET", "/no-bucket/k"), "NoSuchBucket", &[("BucketName", "no-bucket")]),
        (Call::new("PUT", "/no-bucket/k").body("x"), "NoSuchBucket", &[("BucketName", "no-bucket")]),
        (Call::new("PUT", "/other-bucket"), "BucketAlreadyOwnedByYou", &[("BucketName", "other-bucket")]),
        (Call::new("PUT", "/No_Bucket"), "InvalidBucketName", &[("BucketName", "No_Bucket")]),
        (Call::new("DELETE", format!("/{BUCKET}")), "BucketNotEmpty", &[("BucketName", BUCKET)]),
        (bucket("GET", "tagging"), "NoSuchTagSet", &[("BucketName", BUCKET)]),
        (bucket("GET", "policy"), "NoSuchBucketPolicy", &[("BucketName", BUCKET)]),
        (bucket("GET", "lifecycle"), "NoSuchLifecycleConfiguration", &[("BucketName", BUCKET)]),
        (Call::on("GET", "k").query("uploadId=a%20b"), "NoSuchUpload", &[("UploadId", "a b")]),
        (Call::on("GET", "k").query(&of_version), "NoSuchVersion", &[("Key", "k"), ("VersionId", &version)]),
        (
            Call::on("GET", "k").header("range", "bytes=10-"),
            "InvalidRange",
            &[("RangeRequested", "bytes=10-"), ("ActualObjectSize", "10")],
        ),
        (
            Call::on("GET", "k").header("if-match", "\"other\""),
            "PreconditionFailed",
            &[("Condition", "If-Match")],
        ),
        (
            Call::on("PUT", "k").header("if-none-match", "*").body("x"),
            "PreconditionFailed",
            &[("Condition", "If-None-Match")],
        ),
        (
            Call::new("PUT", "/other-bucket/copy").header("x-amz-copy-source", &source),
            "NoSuchKey",
            &[("Key", "none here")],
        ),
        (
            Call::on("PUT", "copy")
                .header("x-amz-copy-source", format!("/{BUCKET}/k"))
                .header("x-amz-copy-source-if-match", "\"other\""),
            "PreconditionFailed",
            &[("Condition", "x-amz-copy-source-If-Match")],
        ),
    ] {
        let refused = fixture.client.send(&call);
        assert_eq!(refused.error().1, code, "{}", refused.text());
        for (name, value) in facts {
            assert_eq!(refused.elements(name), [*value], "{code}: {name}");
        }
        assert!(refused.text().ends_with("</HostId></Error>"));
    }
}

#[test]
fn copies() {
    let fixture = serve();
    fixture.client.send(&Call::new("PUT", "/plain-bucket")).ok();
    let put = Call::new("PUT", "/plain-bucket/from%20here").header("x-amz-meta-m", "1").body("data");
    fixture.client.send(&put).ok();
    let copy = |to: &str| Call::on("PUT", to).header("x-amz-copy-source", "/plain-bucket/from%20here");
    let made = fixture.client.send(&copy("kept")).ok();
    assert_eq!(made.element("ETag").unwrap(), "\"8d777f385d3dfec8815d20f7496026dc\"");
    let kept = fixture.client.send(&Call::on("GET", "kept")).ok();
    assert_eq!((kept.text().as_str(), kept.header("x-amz-meta-m")), ("data", Some("1")));

    let replaced = copy("new").header("x-amz-metadata-directive", "REPLACE").header("x-amz-meta-n", "2");
    fixture.client.send(&replaced).ok();
    let replaced = fixture.client.send(&Call::on("HEAD", "new")).ok();
    assert_eq!((replaced.header("x-amz-meta-m"), replaced.header("x-amz-meta-n")), (None, Some("2")));

    let stale = copy("k").header("x-amz-copy-source-if-match", "\"other\"");
    assert_eq!(fixture.client.send(&stale).error(), (412, "PreconditionFailed".to_owned()));
    let taken = copy("new").header("if-none-match", "*");
    assert_eq!(fixture.client.send(&taken).error(), (412, "PreconditionFailed".to_owned()));
}

#[test]
fn many_are_deleted_at_once() {
    let fixture = serve();
    for name in ["a", "b", "c"] {
        fixture.client.send(&Call::on("PUT", name)).ok();
    }
    let body = "<Delete><Object><Key>a</Key></Object><Object><Key>b</Key></Object><Object><Key>none</Key></Object></Delete>";
    let delete = Call::new("POST", format!("/{BUCKET}")).query("delete").body(body);
    let answer = fixture.client.send(&delete).ok();
    assert_eq!(answer.elements("Key"), ["a", "b", "none"]);
    let left = fixture.store.list(&bucket(), &ListQuery::default()).unwrap();
    assert_eq!(left.entries.len(), 1);
    assert_eq!(left.entries[0].name(), "c");
}

#[test]
fn the_source_of_a_copy_is_encoded_and_whole() {
    let fixture = serve();
    for (source, what) in [
        ("bucket/%ZZ", "encoding"),
        ("100%/foo", "encoding"),
        ("bucket/%C3%", "encoding"),
        ("bucket/%C3", "encoding"),
        ("a@b/foo", "bucket name"),
        ("bucket", "object key"),
        ("/bucket/", "object key"),
    ] {
        let answer = fixture.client.send(&Call::on("PUT", "k").header("x-amz-copy-source", source));
        assert_eq!(answer.error(), (400, "InvalidArgument".to_owned()), "{source}");
        assert_eq!(answer.element("Message"), Some(format!("Invalid copy source {what}")), "{source}");
    }
}

/// Tests AWS's limit on the size of user metadata, which applies to the names and the values together.
#[test]
fn user_metadata_has_a_limit() {
    let fixture = serve();
    let put = |bytes: usize| Call::on("PUT", "k").header("x-amz-meta-n", "v".repeat(bytes)).body("x");
    fixture.client.send(&put(2047)).ok();
    let much = fixture.client.send(&put(2048));
    assert_eq!(much.error(), (400, "MetadataTooLarge".to_owned()));
    assert_eq!(much.element("Size").as_deref(), Some("2049"));
    let start = Call::on("POST", "k").query("uploads").header("x-amz-meta-n", "v".repeat(2048));
    assert_eq!(fixture.client.send(&start).error(), (400, "MetadataTooLarge".to_owned()));
    // Values in RFC 2047 form count as the text that they encode: 6 bytes for each group of three characters.
    let encoded = |groups: usize| format!("=?UTF-8?B?{}?=", "w6nDqcOp".repeat(groups));
    fixture.client.send(&Call::on("PUT", "k").header("x-amz-meta-n", encoded(333)).body("x")).ok();
    let much = fixture.client.send(&put(2000).header("x-amz-meta-m", encoded(8)));
    assert_eq!(much.element("Size").as_deref(), Some("2050"));
}

#[test]
fn objects_belong_to_the_owner_of_the_bucket() {
    let fixture = serve();
    let controls = |method, body: &str| {
        fixture.client.send(&Call::new(method, format!("/{BUCKET}")).query("ownershipControls").body(body))
    };
    let rules = |names: &[&str]| {
        let rule = |name| format!("<Rule><ObjectOwnership>{name}</ObjectOwnership></Rule>");
        let rules: String = names.iter().map(rule).collect();
        format!("<OwnershipControls>{rules}</OwnershipControls>")
    };
    let none = (404, "OwnershipControlsNotFoundError".to_owned());
    assert_eq!(controls("GET", "").error(), none);
    controls("PUT", &rules(&["BucketOwnerEnforced"])).ok();
    for bad in [&[][..], &["Everybody"], &["BucketOwnerEnforced", "BucketOwnerEnforced"]] {
        assert_eq!(controls("PUT", &rules(bad)).error(), (400, "MalformedXML".to_owned()), "{bad:?}");
    }
    let read = |answer: Answer| answer.ok().element("ObjectOwnership");
    assert_eq!(read(controls("GET", "")).as_deref(), Some("BucketOwnerEnforced"));
    for setting in ["ObjectWriter", "BucketOwnerPreferred"] {
        controls("PUT", &rules(&[setting])).ok();
        assert_eq!(read(controls("GET", "")).as_deref(), Some(setting));
    }
    assert_eq!(controls("DELETE", "").status, 204);
    assert_eq!(controls("GET", "").error(), none);
    let create = Call::new("PUT", "/owned-bucket").header("x-amz-object-ownership", "BucketOwnerEnforced");
    fixture.client.send(&create).ok();
    let owned = fixture.client.send(&Call::new("GET", "/owned-bucket").query("ownershipControls"));
    assert_eq!(read(owned).as_deref(), Some("BucketOwnerEnforced"));
}

#[test]
fn what_would_only_seem_to_be_done_is_refused() {
    let fixture = serve();
    for (name, value, status, code) in [
        ("x-amz-server-side-encryption", "AES256", 501, "NotImplemented"),
        ("x-amz-storage-class", "GLACIER", 501, "NotImplemented"),
        ("x-amz-website-redirect-location", "/other", 501, "NotImplemented"),
        ("x-amz-website-redirect-location", "other", 400, "InvalidRedirectLocation"),
        ("x-amz-acl", "public-read", 400, "AccessControlListNotSupported"),
        ("x-amz-grant-read", "id=x", 400, "AccessControlListNotSupported"),
        ("x-amz-acl", "nonesuch", 400, "InvalidArgument"),
    ] {
        let answer = fixture.client.send(&Call::on("PUT", "k").header(name, value).body("x"));
        assert_eq!(answer.error(), (status, code.to_owned()), "{name}: {value}");
    }
    fixture.client.send(&Call::on("PUT", "k").header("x-amz-acl", "private").body("x")).ok();
    let version = fixture.client.send(&Call::on("GET", "k").query("versionId=abc"));
    assert_eq!(version.error(), (400, "InvalidArgument".to_owned()));
    let opaque = Call::on("GET", "k").query("versionId=0123456789abcdef0123456789abcdef");
    assert_eq!(fixture.client.send(&opaque).error(), (404, "NoSuchVersion".to_owned()));
}
