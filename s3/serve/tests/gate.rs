//! Tests the gate over each version of HTTP and with presigned URLs. The gate determines the operation of a request
//! first, so a request is either served completely or refused.

mod client;

use client::http2::{Http2, run};
use client::tls::Certificate;
use client::{Answer, BUCKET, Call, Fixture, bucket, key, serve, serve_with};
use fordway_store::{
    Bucket, Checksum, ChecksumAlgorithm, GetOptions, ListQuery, ObjectVersionOperations, Objects,
    VersionsQuery,
};

/// Requests that a lenient router would mistake for a plain put, delete or creation.
fn traps() -> Vec<Call<'static>> {
    let annotated = "annotation&annotationName=a";
    vec![
        Call::on("PUT", "k").query("renameObject").header("x-amz-rename-source", "/other"),
        Call::on("PUT", "k").header("x-amz-rename-source", "/other"),
        Call::on("PUT", "k").query("encryption").body("<ObjectEncryption/>"),
        Call::on("PUT", "k").query(annotated).body("an annotation"),
        Call::on("PUT", "k").query("partNumber=1").body("a part"),
        Call::on("PUT", "k").query("nonesuch").body("x"),
        Call::on("DELETE", "k").query(annotated),
        Call::on("DELETE", "k").query("acl"),
        Call::on("DELETE", "k").query("uploads"),
        Call::on("DELETE", "k").query("partNumber=1"),
        Call::on("DELETE", "k").header("x-amz-nonesuch", "1"),
        Call::new("DELETE", "/empty").query("abac"),
        Call::new("DELETE", "/empty").query("logging"),
        Call::new("DELETE", "/empty").query("versioning"),
        Call::new("PUT", "/fresh").query("metadataTable"),
        Call::new("PUT", "/fresh").query("website"),
    ]
}

fn fixture(fixture: Fixture) -> Fixture {
    fixture.store.create_bucket(&Bucket::new("empty").unwrap()).unwrap();
    fixture.client.send(&Call::on("PUT", "k").body("precious")).ok();
    fixture
}

#[track_caller]
fn check(call: &Call<'_>, answer: &Answer, fixture: &Fixture) {
    let said = format!("{} {}?{}: {} {}", call.method, call.path, call.query, answer.status, answer.text());
    let refusals = match call.path.as_ref() {
        // The bucket `fresh` does not exist, so the gateway can also report the missing bucket, as S3 does.
        "/fresh" => [(501, "NotImplemented"), (404, "NoSuchBucket")],
        _ if (call.method, call.query) == ("PUT", "partNumber=1") => [(400, "InvalidArgument"); 2],
        // For a parameter that was added to a presigned URL, the gateway can also report that the signature does not
        // match.
        _ if call.query.starts_with('&') => [(501, "NotImplemented"), (403, "SignatureDoesNotMatch")],
        _ => [(501, "NotImplemented"); 2],
    };
    let (status, code) = answer.error();
    assert!(refusals.contains(&(status, &*code)), "{said}");
    check_untouched(fixture, &said);
}

/// Checks that the buckets and the only object are unchanged.
#[track_caller]
fn check_untouched(fixture: &Fixture, said: &str) {
    let found = fixture.store.get(&bucket(), &key("k"), &GetOptions::default()).expect(said);
    assert_eq!(found.content.into_vec().unwrap(), b"precious", "{said}");
    assert_eq!(fixture.store.list(&bucket(), &ListQuery::default()).unwrap().entries.len(), 1, "{said}");
    let names = fixture.store.list_buckets().unwrap().into_iter().map(|bucket| bucket.name.to_string());
    assert_eq!(names.collect::<Vec<_>>(), [BUCKET, "empty"], "{said}");
}

/// Returns queries with one sub-resource: each sub-resource of S3 with and without a value, and `invented` unknown
/// names.
fn sub_resources(invented: usize) -> (Vec<String>, Vec<String>) {
    let rows = include_str!("../src/gate/operations.txt").lines();
    let rows = rows.filter(|row| row.starts_with("done ") || row.starts_with("refused "));
    let selectors = rows.filter_map(|row| row.split_ascii_whitespace().nth(4));
    let names = selectors.flat_map(|selector| selector.split('?').skip(1));
    let mut names: Vec<&str> = names.filter_map(|name| name.split(['!', '=']).next()).collect();
    names.sort_unstable();
    names.dedup();
    assert!(names.len() > 40, "{names:?}");
    let real = names.iter().flat_map(|name| ["", "=", "=1"].map(|value| format!("{name}{value}")));
    let digest = |at: usize| Checksum::of(ChecksumAlgorithm::Crc64Nvme, &at.to_le_bytes()).value;
    let letters = |byte: &u8| char::from(b'a' + byte % 26);
    let odd = (0..invented).map(|at| format!("z{}", digest(at).iter().map(letters).collect::<String>()));
    (real.collect(), odd.collect())
}

const METHODS: [&str; 5] = ["GET", "HEAD", "PUT", "POST", "DELETE"];

/// Returns calls with each sub-resource of S3 and each method, on an object and two buckets, and one call with each
/// invented sub-resource. The last element of each tuple is true if the sub-resource is invented.
fn walk(invented: usize) -> Vec<(String, &'static str, String, bool)> {
    let (real, odd) = sub_resources(invented);
    let paths = [format!("/{BUCKET}/k"), "/empty".to_owned(), "/fresh".to_owned()];
    let mut calls = Vec::new();
    for query in real {
        for (path, method) in paths.iter().flat_map(|path| METHODS.map(|method| (path, method))) {
            calls.push((query.clone(), method, path.clone(), false));
        }
    }
    for (at, query) in odd.into_iter().enumerate() {
        calls.push((query, METHODS[at % METHODS.len()], paths[at % paths.len()].clone(), true));
    }
    calls
}

#[track_caller]
fn check_walked(fixture: &Fixture, call: &Call<'_>, is_unknown: bool, answer: &Answer) {
    let said = format!("{} {}?{}: {} {}", call.method, call.path, call.query, answer.status, answer.text());
    assert!(answer.status < 500 || answer.status == 501, "{said}");
    assert!(!is_unknown || answer.status == 501, "{said}");
    check_untouched(fixture, &said);
}

#[test]
fn no_sub_resource_changes_anything_over_http_1() {
    let fixture = fixture(serve());
    for (query, method, path, is_unknown) in walk(2000) {
        let call = Call::new(method, path).query(&query).body("<Anything/>");
        check_walked(&fixture, &call, is_unknown, &fixture.client.send(&call));
    }
    // After all of these requests, a plain read, which the fast path serves, still works.
    assert_eq!(fixture.client.send(&Call::on("GET", "k")).ok().text(), "precious");
}

#[test]
fn no_sub_resource_changes_anything_over_http_2() {
    let fixture = fixture(serve());
    for part in walk(2000).chunks(200) {
        run(async {
            let http2 = Http2::connect(&fixture.client).await;
            for (query, method, path, is_unknown) in part {
                let call = Call::new(method, path.clone()).query(query).body("<Anything/>");
                check_walked(&fixture, &call, *is_unknown, &http2.send(&call).await);
            }
        });
    }
}

#[test]
fn over_http_1() {
    let fixture = fixture(serve());
    for call in traps() {
        check(&call, &fixture.client.send(&call), &fixture);
    }
}

#[test]
fn over_http_2() {
    let fixture = fixture(serve());
    run(async {
        let http2 = Http2::connect(&fixture.client).await;
        for call in traps() {
            check(&call, &http2.send(&call).await, &fixture);
        }
    });
}

#[cfg(feature = "http3")]
#[test]
fn over_http_3() {
    use client::http3::Http3;

    let certificate = Certificate::new();
    let fixture = serve_with(|config| {
        config.tls = Some(certificate.load());
        config.http3 = true;
    });
    fixture.store.create_bucket(&Bucket::new("empty").unwrap()).unwrap();
    run(async {
        let mut http3 = Http3::connect(&fixture.client, &certificate).await;
        http3.send(&Call::on("PUT", "k").body("precious")).await.ok();
        for call in traps() {
            check(&call, &http3.send(&call).await, &fixture);
        }
    });
}

#[test]
fn over_http_2_and_tls() {
    let certificate = Certificate::new();
    let fixture = serve_with(|config| config.tls = Some(certificate.load()));
    fixture.store.create_bucket(&Bucket::new("empty").unwrap()).unwrap();
    run(async {
        let http2 = Http2::connect_tls(&fixture.client, &certificate).await;
        http2.send(&Call::on("PUT", "k").body("precious")).await.ok();
        for call in traps() {
            check(&call, &http2.send(&call).await, &fixture);
        }
    });
}

/// The query of a presigned URL is signed, but the holder of the URL may append unsigned parameters.
#[test]
fn with_presigned_urls() {
    let fixture = fixture(serve());
    let path = format!("/{BUCKET}/k");
    for (method, further) in [("PUT", "&encryption"), ("DELETE", "&acl"), ("DELETE", "&partNumber=1")] {
        let query = fixture.client.presigned(method, &path, 60);
        let host = fixture.client.address;
        let request =
            format!("{method} {path}?{query}{further} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
        let answer = fixture.client.send_raw(method, &request);
        check(&Call::new(method, path.clone()).query(further), &answer, &fixture);
    }
}

/// The gate also refuses unknown parameters and headers of a plain read.
#[test]
fn on_the_fast_path() {
    let fixture = fixture(serve());
    for method in ["GET", "HEAD"] {
        let odd = [
            (Call::on(method, "k").query("nonesuch"), 501),
            (Call::on(method, "k").header("x-amz-nonesuch", "1"), 501),
            (Call::on(method, "k").header("x-amz-server-side-encryption-customer-key", "1"), 400),
            (Call::on(method, "k").header("x-amz-server-side-encryption", "AES256"), 400),
        ];
        for (call, status) in odd {
            let answer = fixture.client.send(&call);
            assert_eq!(answer.status, status, "{method} {} {:?}", call.query, call.headers);
        }
    }
}

#[test]
fn what_is_harmless_goes_on_working() {
    let fixture = fixture(serve());
    let send = |call: Call<'_>| fixture.client.send(&call).ok();
    send(Call::on("GET", "k").query("x-id=GetObject"));
    send(Call::on("GET", "k").header("x-amz-request-payer", "requester"));
    send(Call::on("GET", "k").query("x-note=for-the-log&response-content-type=text%2Fplain"));
    send(Call::on("PUT", "j").query("x-id=PutObject").header("x-amz-acl", "private").body("x"));
    send(Call::on("PUT", "j").header("x-amz-storage-class", "STANDARD").body("x"));
    send(
        Call::on("DELETE", "j")
            .query("x-id=DeleteObject")
            .header("x-amz-bypass-governance-retention", "true"),
    );
    send(
        Call::new("GET", format!("/{BUCKET}")).query("encoding-type=url&list-type=2&metadata=true&prefix=a"),
    );
}

/// The limit on the total size of the headers is the same as AWS's. Heads that are too long for the connection cause a
/// different error.
#[test]
fn headers_have_a_limit() {
    let fixture = fixture(serve());
    for (method, key, length) in [("PUT", "k", 8192), ("GET", "k", 20_000)] {
        let answer = fixture.client.send(&Call::on(method, key).header("x-amz-custom", "d".repeat(length)));
        assert_eq!(answer.error(), (400, "RequestHeaderSectionTooLarge".to_owned()), "{method}");
        assert_eq!(answer.element("MaxSizeAllowed").as_deref(), Some("8192"));
    }
    // The limit on headers also applies to headers with metadata, which a plain put may have.
    let long = Call::on("PUT", "k").header("content-disposition", "d".repeat(8193)).body("x");
    assert_eq!(fixture.client.send(&long).error(), (400, "RequestHeaderSectionTooLarge".to_owned()));
    check_untouched(&fixture, "the headers are too large");
    fixture.client.send(&Call::on("GET", "k").header("x-custom", "d".repeat(6000))).ok();
}

/// An empty version ID must not be mistaken for the latest version.
#[test]
fn a_version_without_a_name() {
    let fixture = fixture(serve());
    for call in [Call::on("DELETE", "k").query("versionId="), Call::on("GET", "k").query("versionId=")] {
        assert_eq!(fixture.client.send(&call).error(), (400, "InvalidArgument".to_owned()));
    }
    let listed = fixture.store.list_versions(&bucket(), &VersionsQuery::default()).unwrap();
    assert_eq!(listed.versions.len(), 1);
}

#[test]
fn documents_are_what_their_heads_say() {
    let fixture = fixture(serve());
    let delete = "<Delete><Object><Key>k</Key></Object></Delete>";
    let call = || Call::new("POST", format!("/{BUCKET}")).query("delete=").body(delete);
    let code = |call: Call<'_>| fixture.client.send(&call).error();
    let other = "0".repeat(64);
    for call in [call().payload(&other), Call::new("PUT", "/fresh").payload(&other)] {
        assert_eq!(code(call), (400, "XAmzContentSHA256Mismatch".to_owned()));
    }
    let (wrong_md5, short_md5) = ("AAAAAAAAAAAAAAAAAAAAAA==", "AAAA");
    assert_eq!(code(call().header("content-md5", wrong_md5)), (400, "BadDigest".to_owned()));
    assert_eq!(code(call().header("content-md5", short_md5)), (400, "InvalidDigest".to_owned()));
    assert_eq!(code(call().header("x-amz-checksum-crc32", "AAAAAA==")), (400, "BadDigest".to_owned()));
    let large = Call::new("POST", format!("/{BUCKET}")).query("delete=").body(vec![b' '; 5 << 20]);
    assert_eq!(code(large), (400, "MaxMessageLengthExceeded".to_owned()));
    assert!(fixture.store.head(&bucket(), &key("k"), &GetOptions::default()).is_ok());
    assert!(fixture.store.head_bucket(&Bucket::new("fresh").unwrap()).is_err());
    fixture.client.send(&call()).ok();
}

/// Options of a new bucket are either applied or refused.
#[test]
fn new_buckets_lie_here_and_have_names_of_s3() {
    let fixture = serve_with(|config| config.region = Some("eu-central-1".to_owned()));
    for region in ["us-east-1", "nowhere"] {
        let refused = create_bucket(&fixture, "fresh", region);
        assert_eq!(refused.error(), (400, "InvalidLocationConstraint".to_owned()));
    }
    for name in ["a_b", "Abc", &"a".repeat(64), "a..b"] {
        let refused = create_bucket(&fixture, name, "");
        assert_eq!(refused.error(), (400, "InvalidBucketName".to_owned()), "{name}");
    }
    assert_eq!(fixture.store.list_buckets().unwrap().len(), 1);
    create_bucket(&fixture, "fresh", "eu-central-1").ok();
    let head = fixture.client.send(&Call::new("HEAD", "/fresh")).ok();
    assert_eq!(head.header("x-amz-bucket-region"), Some("eu-central-1"));
    let location = fixture.client.send(&Call::new("GET", "/fresh").query("location")).ok();
    assert!(location.text().contains(">eu-central-1</LocationConstraint>"), "{}", location.text());
    create_bucket(&fixture, &"a".repeat(63), "").ok();
    let there = fixture.client.send(&Call::new("GET", "/").query("bucket-region=eu-central-1")).ok();
    assert_eq!(there.elements("Name").len(), 3);
    let elsewhere = fixture.client.send(&Call::new("GET", "/").query("bucket-region=us-east-1")).ok();
    assert_eq!(elsewhere.elements("Name").len(), 0);
}

/// Clients of all regions can create buckets at a gateway that has no region.
#[test]
fn without_a_region_new_buckets_may_have_any() {
    let fixture = serve();
    for region in ["", "us-east-1", "eu-west-1", "EU"] {
        create_bucket(&fixture, &format!("new{}", region.to_lowercase()), region).ok();
    }
    let head = fixture.client.send(&Call::new("HEAD", "/neweu-west-1")).ok();
    assert_eq!(head.header("x-amz-bucket-region"), Some("us-east-1"));
}

fn create_bucket(fixture: &Fixture, name: &str, region: &str) -> Answer {
    let document = match region {
        "" => String::new(),
        region => format!(
            "<CreateBucketConfiguration><LocationConstraint>{region}</LocationConstraint>\
             </CreateBucketConfiguration>"
        ),
    };
    fixture.client.send(&Call::new("PUT", format!("/{name}")).body(document))
}

#[test]
fn a_bucket_of_somebody_else_is_not_touched() {
    let fixture = fixture(serve());
    let me = fixture.client.send(&Call::new("GET", "/")).ok().element("ID").unwrap();
    let asked = |method, owner: &str| {
        fixture.client.send(&Call::on(method, "k").header("x-amz-expected-bucket-owner", owner))
    };
    for method in ["GET", "PUT", "DELETE"] {
        assert_eq!(asked(method, "somebody-else").error(), (403, "AccessDenied".to_owned()), "{method}");
    }
    assert_eq!(asked("GET", &me).ok().text(), "precious");
}

/// XML parsers convert a literal carriage return, and reject other control characters.
#[test]
fn keys_come_back_as_they_are() {
    let fixture = fixture(serve());
    for path in ["a%0Db", "a%0D%0Ab"] {
        fixture.client.send(&Call::on("PUT", path).body("x")).ok();
        let listed = fixture.client.send(&Call::new("GET", format!("/{BUCKET}")).query("list-type=2")).ok();
        assert!(!listed.text().contains('\r') && listed.text().contains("&#xd;"), "{}", listed.text());
        let document = format!(
            "<Delete><Object><Key>{}</Key></Object></Delete>",
            path.replace("%0D", "&#13;").replace("%0A", "&#10;")
        );
        let deleted = Call::new("POST", format!("/{BUCKET}")).query("delete=").body(document);
        let deleted = fixture.client.send(&deleted).ok();
        let key = path.replace("%0D", "&#xd;").replace("%0A", "&#xa;");
        assert_eq!(deleted.element("Key").as_deref(), Some(key.as_str()));
    }
    fixture.client.send(&Call::on("PUT", "a%01b").body("x")).ok();
    for reference in ["&#1;", "&#0;", "\u{1}"] {
        let keys = format!("<Object><Key>k</Key></Object><Object><Key>a{reference}b</Key></Object>");
        let call = Call::new("POST", format!("/{BUCKET}")).query("delete=");
        let answer = fixture.client.send(&call.body(format!("<Delete>{keys}</Delete>")));
        assert_eq!(answer.error(), (400, "MalformedXML".to_owned()), "{reference:?}");
    }
    let missing = fixture.client.send(&Call::on("GET", "none%01"));
    assert!(missing.status == 404 && !missing.text().contains('\u{1}'), "{}", missing.text());
    let left = fixture.store.list(&bucket(), &ListQuery::default()).unwrap();
    assert_eq!(left.entries.len(), 2, "a part of the batch was deleted");
}

/// Some of AWS's SDKs send a list in one header, and some send the list in several headers.
#[test]
fn a_list_may_take_several_headers() {
    let fixture = fixture(serve());
    let host = fixture.client.address;
    let asked = Call::on("GET", "k").query("attributes").header("x-amz-object-attributes", "ETag,ObjectSize");
    let answer = fixture.client.send(&asked).ok();
    assert!(answer.element("ETag").is_some() && answer.element("ObjectSize").is_some());
    let path = format!("/{BUCKET}/k");
    let query = fixture.client.presigned("GET", &path, 60);
    let twice = "x-amz-object-attributes: ETag\r\nx-amz-object-attributes: ObjectSize\r\n";
    let request =
        format!("GET {path}?{query}&attributes HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n{twice}\r\n");
    // The response is a 403, because the signature covers neither header. The gate itself must not refuse the request.
    assert_eq!(fixture.client.send_raw("GET", &request).status, 403);
}

/// Some clients omit the quotes around an ETag.
#[test]
fn conditions_without_quotes() {
    let fixture = fixture(serve());
    let tag = fixture.client.send(&Call::on("HEAD", "k")).ok().header("etag").unwrap().to_owned();
    let bare = tag.trim_matches('"');
    fixture.client.send(&Call::on("GET", "k").header("if-match", bare)).ok();
    assert_eq!(fixture.client.send(&Call::on("GET", "k").header("if-none-match", bare)).status, 304);
    let other = format!("\"other\", {bare}");
    fixture.client.send(&Call::on("PUT", "k").header("if-match", other).body("precious")).ok();
    let wrong = Call::on("PUT", "k").header("if-match", "other").body("x");
    assert_eq!(fixture.client.send(&wrong).error(), (412, "PreconditionFailed".to_owned()));
}

/// The gateway does not encrypt objects. If the headers contradict each other, AWS also refuses the request. AWS's
/// error is more helpful than the error for an unsupported feature.
#[test]
fn encryption_that_nobody_could_do_has_the_error_of_aws() {
    const METHOD: (&str, &str) = ("x-amz-server-side-encryption", "AES256");
    const KMS: (&str, &str) = ("x-amz-server-side-encryption", "aws:kms");
    const KMS_KEY: (&str, &str) = ("x-amz-server-side-encryption-aws-kms-key-id", "a-key");
    const ALGORITHM: (&str, &str) = ("x-amz-server-side-encryption-customer-algorithm", "AES256");
    // A key of 32 NUL bytes, and the MD5 of the key, computed with Python's hashlib.
    const KEY: (&str, &str) =
        ("x-amz-server-side-encryption-customer-key", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=");
    const MD5: (&str, &str) = ("x-amz-server-side-encryption-customer-key-md5", "cLyPS3KoaSFGi/joRB3OUQ==");
    let fixture = fixture(serve());
    let put = |headers: &[(&'static str, &'static str)]| {
        let call = headers.iter().fold(Call::on("PUT", "k"), |call, (name, value)| call.header(name, *value));
        let answer = fixture.client.send(&call.body("x"));
        assert!(!answer.text().contains(KEY.1), "the key is in the response: {}", answer.text());
        answer
    };
    for whole in [&[METHOD][..], &[KMS, KMS_KEY], &[ALGORITHM, KEY, MD5]] {
        assert_eq!(put(whole).error(), (501, "NotImplemented".to_owned()), "{whole:?}");
    }
    let unknown = ("x-amz-server-side-encryption", "aes:kms");
    let short = (KEY.0, "AAAA");
    let other = (MD5.0, "AAAAAAAAAAAAAAAAAAAAAA==");
    for (headers, words) in [
        (&[unknown][..], "method specified is not supported"),
        (&[METHOD, KMS_KEY], "requires HTTP header x-amz-server-side-encryption : aws:kms"),
        (&[KMS_KEY], "requires HTTP header x-amz-server-side-encryption : aws:kms"),
        (&[METHOD, ALGORITHM, KEY, MD5], "incompatible"),
        (&[KMS, ALGORITHM, KEY, MD5], "incompatible"),
        (&[KEY, MD5], "valid encryption algorithm"),
        (&[ALGORITHM, MD5], "appropriate secret key"),
        (&[ALGORITHM, short, MD5], "appropriate secret key"),
        (&[ALGORITHM, KEY], "calculated MD5"),
        (&[ALGORITHM, KEY, other], "calculated MD5"),
    ] {
        let answer = put(headers);
        assert_eq!(answer.error(), (400, "InvalidArgument".to_owned()), "{headers:?}");
        assert!(answer.text().contains(words), "{headers:?}: {}", answer.text());
    }
    let stored = fixture.client.send(&Call::on("GET", "k")).ok();
    assert_eq!(stored.text(), "precious");
}

/// A program may send an empty condition by mistake. The request must not become unconditional.
#[test]
fn an_empty_condition_is_refused() {
    let fixture = fixture(serve());
    for (method, name) in [
        ("DELETE", "if-match"),
        ("DELETE", "x-amz-if-match-size"),
        ("DELETE", "x-amz-if-match-last-modified-time"),
        ("PUT", "if-match"),
        ("PUT", "if-none-match"),
    ] {
        for value in ["", " "] {
            let answer = fixture.client.send(&Call::on(method, "k").header(name, value));
            assert_eq!(answer.error(), (400, "InvalidArgument".to_owned()), "{method} {name}");
            check_untouched(&fixture, name);
        }
    }
}

/// Over HTTP/1, a request without a length and without a transfer coding has no body, so an empty object would replace
/// the existing object.
#[test]
fn an_upload_without_a_length_is_refused() {
    let fixture = fixture(serve());
    let path = format!("/{BUCKET}/k");
    let query = fixture.client.presigned("PUT", &path, 60);
    let chunked = "transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n";
    for (version, rest) in [("HTTP/1.0", "\r\n"), ("HTTP/1.1", "\r\n"), ("HTTP/1.1", chunked)] {
        let head = format!(
            "PUT {path}?{query} {version}\r\nhost: {}\r\nconnection: close\r\n{rest}",
            fixture.client.address
        );
        let answer = fixture.client.send_raw("PUT", &head);
        assert!(answer.text().contains("state the length of the body"), "{}", answer.text());
        assert_eq!(answer.error(), (411, "MissingContentLength".to_owned()), "{version}");
        check_untouched(&fixture, version);
    }
}

/// RFC 9112 section 3.2.2 requires a server to use the host in an absolute target, and to ignore the `Host` header. The
/// signature, however, covers the `Host` header, so the gateway refuses a request in which the two hosts differ.
#[test]
fn the_host_of_an_absolute_target_must_be_that_of_the_header() {
    let fixture = fixture(serve());
    let address = fixture.client.address;
    let path = format!("/{BUCKET}/k");
    let query = fixture.client.presigned("GET", &path, 60);
    let get = |host: &str| {
        fixture.client.send_raw(
            "GET",
            &format!(
                "GET http://{host}{path}?{query} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n"
            ),
        )
    };
    get(&address.to_string()).ok();
    for other in ["other.example", "127.0.0.1", &format!("user@{address}")] {
        let answer = get(other);
        assert!(answer.text().contains("the Host header and the host in the request's target differ"));
        assert_eq!(answer.error(), (400, "InvalidRequest".to_owned()), "{other}");
    }
}
