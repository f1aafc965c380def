//! Tests which signatures the gateway accepts.

mod client;

use std::io::Write as _;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use fordway_store::{Bucket, Objects};
use fordway_wire::date;
use fordway_wire::sigv4::UNSIGNED_PAYLOAD;
use hmac::{Hmac, KeyInit as _, Mac as _};

use client::{Answer, BUCKET, Call, Fixture, serve, serve_with};

#[test]
fn an_unknown_key_a_wrong_secret_and_a_wrong_clock_are_told_apart() {
    let fixture = serve();
    let get = Call::new("GET", "/");
    let mut client = fixture.client.clone();
    client.send(&get).ok();
    client.clock_offset_s = -16 * 60;
    assert_eq!(client.send(&get).error(), (403, "RequestTimeTooSkewed".to_owned()));
    client.clock_offset_s = 0;
    client.identity.secret_key.push('x');
    assert_eq!(client.send(&get).error(), (403, "SignatureDoesNotMatch".to_owned()));
    client.identity.access_key.push('x');
    assert_eq!(client.send(&get).error(), (403, "InvalidAccessKeyId".to_owned()));
}

#[test]
fn anonymous_requests_are_refused() {
    let fixture = serve();
    fixture.client.send(&Call::on("PUT", "k").body("x")).ok();
    for method in ["GET", "DELETE", "PUT"] {
        let request = format!(
            "{method} /{BUCKET}/k HTTP/1.1\r\nhost: h\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
        );
        let answer = fixture.client.send_raw(method, &request);
        assert_eq!(answer.error(), (403, "AccessDenied".to_owned()), "{method}");
    }
    assert_eq!(fixture.client.send(&Call::on("GET", "k")).ok().text(), "x");
}

#[test]
fn presigned_urls_work_until_they_expire() {
    let fixture = serve();
    let path = format!("/{BUCKET}/k");
    let send = |method, query: &str, body: &str| {
        let request = format!(
            "{method} {path}?{query} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
            fixture.client.address,
            body.len()
        );
        fixture.client.send_raw(method, &request)
    };
    send("PUT", &fixture.client.presigned("PUT", &path, 60), "data").ok();
    assert_eq!(send("GET", &fixture.client.presigned("GET", &path, 60), "").ok().text(), "data");
    let for_get = fixture.client.presigned("GET", &path, 60);
    assert_eq!(send("DELETE", &for_get, "").error(), (403, "SignatureDoesNotMatch".to_owned()));
    let mut earlier = fixture.client.clone();
    earlier.clock_offset_s = -120;
    let expired = earlier.presigned("GET", &path, 60);
    assert_eq!(send("GET", &expired, "").error(), (403, "AccessDenied".to_owned()));
}

/// s3cmd determines the right region from the error for a wrong region.
#[test]
fn a_signature_for_no_region_is_told_the_right_one() {
    let fixture = serve();
    let request = "GET / HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\
                   authorization: AWS4-HMAC-SHA256 Credential=k/20260101/US/s3/aws4_request, \
                   SignedHeaders=host, Signature=00\r\n\r\n";
    let answer = fixture.client.send_raw("GET", request);
    assert_eq!(answer.error(), (400, "AuthorizationHeaderMalformed".to_owned()));
    assert_eq!(answer.element("Region").unwrap(), "us-east-1");
}

/// Sends a listing request with a version 2 signature that is dated `date`; `query` is not signed. Returns the
/// response.
fn answer_to_version_2(fixture: &Fixture, date: &str, query: &str) -> Answer {
    send_with_version_2(fixture, date, "/", &format!("/{query}"))
}

/// Sends a GET of `target` whose version 2 signature covers `resource`. Returns the response.
fn send_with_version_2(fixture: &Fixture, date: &str, resource: &str, target: &str) -> Answer {
    let identity = &fixture.client.identity;
    let mut mac = Hmac::<sha1::Sha1>::new_from_slice(identity.secret_key.as_bytes()).unwrap();
    mac.update(format!("GET\n\n\n{date}\n{resource}").as_bytes());
    let signature = BASE64.encode(mac.finalize().into_bytes());
    let request = format!(
        "GET {target} HTTP/1.1\r\nhost: h\r\nconnection: close\r\ndate: {date}\r\n\
         authorization: AWS {}:{signature}\r\n\r\n",
        identity.access_key
    );
    fixture.client.send_raw("GET", &request)
}

#[test]
fn version_2_signatures_are_taken_only_where_that_was_said_and_only_fresh() {
    let now = date::format_http(SystemTime::now());
    let refused = answer_to_version_2(&serve(), &now, "");
    assert_eq!(refused.error(), (400, "InvalidRequest".to_owned()));
    // The message contains AWS's and boto3's names for Signature Version 4, and the option with which the operator of
    // the gateway enables version 2.
    for word in ["AWS4-HMAC-SHA256", "s3v4", "--signature-v2"] {
        assert!(refused.text().contains(word), "{}", refused.text());
    }

    let willing = serve_with(|config| config.signature_v2 = true);
    assert_eq!(answer_to_version_2(&willing, &now, "").status, 200);
    let old = date::format_http(SystemTime::now() - Duration::from_secs(16 * 60));
    assert_eq!(answer_to_version_2(&willing, &old, "").error(), (403, "RequestTimeTooSkewed".to_owned()));
    // A request with two signatures is always refused.
    let twice = "?X-Amz-Signature=00";
    for gateway in [&serve(), &willing] {
        assert_eq!(answer_to_version_2(gateway, &now, twice).error(), (400, "InvalidArgument".to_owned()));
    }
    assert_eq!(answer_to_version_2(&willing, "soon", "").error(), (403, "AccessDenied".to_owned()));
}

/// The weekday is redundant; a wrong weekday must not hide the error about a wrong clock.
#[test]
fn a_date_with_the_wrong_weekday_is_a_date() {
    let willing = serve_with(|config| config.signature_v2 = true);
    let (now, skewed) = (date::format_http(SystemTime::now()), (403, "RequestTimeTooSkewed".to_owned()));
    for day in ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"] {
        let asked = format!("{day}{}", &now[3..]);
        assert_eq!(answer_to_version_2(&willing, &asked, "").status, 200, "{asked}");
        let old = format!("{day}, 07 Jul 2010 21:53:04 GMT");
        assert_eq!(answer_to_version_2(&willing, &old, "").error(), skewed, "{old}");
    }
}

/// boto3 requests `/bucket` and signs `/bucket/`; other clients sign the path that they request.
#[test]
fn a_version_2_signature_of_a_bucket_may_cover_a_slash() {
    let willing = serve_with(|config| config.signature_v2 = true);
    let now = date::format_http(SystemTime::now());
    let send = |resource: &str, target: &str| send_with_version_2(&willing, &now, resource, target);
    for query in ["", "?location", "?versions&max-keys=1", "?prefix=a"] {
        let signed = query.split(['&', '=']).next().filter(|signed| *signed != "?prefix").unwrap_or_default();
        for (signed_path, path) in [("", ""), ("/", ""), ("/", "/")] {
            let resource = format!("/{BUCKET}{signed_path}{signed}");
            let target = format!("/{BUCKET}{path}{query}");
            assert_eq!(send(&resource, &target).status, 200, "{resource} for {target}");
        }
    }
    let missing = send(&format!("/{BUCKET}/?website"), &format!("/{BUCKET}?website"));
    assert_eq!(missing.error(), (404, "NoSuchWebsiteConfiguration".to_owned()));
    let wrong = (403, "SignatureDoesNotMatch".to_owned());
    for resource in ["/other/", "/", &format!("/{BUCKET}//"), &format!("/{BUCKET}/?acl")] {
        assert_eq!(send(resource, &format!("/{BUCKET}")).error(), wrong, "{resource}");
    }
    assert_eq!(send(&format!("/{BUCKET}/k/"), &format!("/{BUCKET}/k")).error(), wrong);
}

/// The holder of a presigned URL for a put must not be able to turn the put into a copy of another object. Therefore,
/// the gateway refuses a request if a header that changes the meaning of the request is not signed.
#[test]
fn what_was_not_signed_changes_nothing() {
    let fixture = serve();
    fixture.store.create_bucket(&Bucket::new("data").unwrap()).unwrap();
    fixture.client.send(&Call::new("PUT", "/data/secret").body("top secret")).ok();
    let path = "/data/given-away";
    let put_to = |query: &str, headers: &str| {
        let request = format!(
            "PUT {path}?{query} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\ncontent-length: 0\r\n{headers}\r\n",
            fixture.client.address,
        );
        fixture.client.send_raw("PUT", &request)
    };
    let query = fixture.client.presigned("PUT", path, 60);
    let put = |headers: &str| put_to(&query, headers);
    let copied = put("x-amz-copy-source: /data/secret\r\n");
    assert_eq!(copied.error(), (403, "AccessDenied".to_owned()));
    assert_eq!(fixture.client.send(&Call::new("GET", path)).status, 404);
    for header in ["x-amz-meta-a: b", "x-amz-tagging: a=b", "X-Amz-Acl: private"] {
        assert_eq!(put(&format!("{header}\r\n")).error(), (403, "AccessDenied".to_owned()), "{header}");
    }
    let head = String::from_utf8(fixture.client.head(&Call::new("PUT", path))).unwrap();
    let more = head.replacen("\r\n\r\n", "\r\nx-amz-copy-source: /data/secret\r\n\r\n", 1);
    assert_eq!(fixture.client.send_raw("PUT", &more).error(), (403, "AccessDenied".to_owned()));
    fixture.client.send_raw("PUT", &head).ok();
    // A forged `Authorization` header that names `x-amz-copy-source` as signed does not make the gateway accept this
    // header, even if the name of a parameter in the URL is percent-encoded.
    let hidden = query.replace("X-Amz-Signature", "%58-Amz-Signature");
    let pretence = "authorization: AWS4-HMAC-SHA256 Credential=a/b, SignedHeaders=x-amz-copy-source, Signature=00\r\n\
                    x-amz-copy-source: /data/secret\r\n";
    for query in [&query, &hidden] {
        assert_eq!(put_to(query, pretence).error(), (400, "InvalidArgument".to_owned()), "{query}");
    }
    // A signature covers all parameters of the URL.
    let further = format!("{query}&x-amz-copy-source=%2Fdata%2Fsecret");
    assert_eq!(put_to(&further, "").error(), (403, "SignatureDoesNotMatch".to_owned()));
    // Headers that are redundant or harmless need not be signed.
    put("x-amz-content-sha256: UNSIGNED-PAYLOAD\r\nx-amz-user-agent: test\r\n").ok();
}

/// The S3 layer ignores names in `SignedHeaders` that it does not find. Anyone could therefore add such names to a
/// signature.
#[test]
fn names_that_were_added_to_a_signature_sign_nothing() {
    let fixture = serve();
    fixture.client.send(&Call::on("PUT", "secret").body("top secret")).ok();
    let head = String::from_utf8(fixture.client.head(&Call::on("PUT", "k"))).unwrap();
    let send = |name: &str, header: &[u8]| {
        let head = head.replace(";x-amz-date,", &format!(";x-amz-date;{name},"));
        let mut stream = fixture.client.connect();
        let end = head.strip_suffix("\r\n").unwrap();
        stream.write_all(&[end.as_bytes(), header, b"\r\n"].concat()).unwrap();
        client::read_answer(&mut stream, "PUT").error()
    };
    let copy = format!("x-amz-copy-source: /{BUCKET}/secret\r\n").into_bytes();
    let denied = (403, "AccessDenied".to_owned());
    for name in ["X-Amz-Copy-Source", "x-amz-Copy-source"] {
        assert_eq!(send(name, &copy), denied, "{name}");
    }
    assert_eq!(send("x-amz-copy-source", &copy), (403, "SignatureDoesNotMatch".to_owned()));
    assert_eq!(send("x-amz-meta-a", b"x-amz-meta-a: \xff\r\n"), (400, "InvalidArgument".to_owned()));
    for name in ["Host", "x-amz-meta-a"] {
        assert_eq!(send(name, b""), (400, "AuthorizationHeaderMalformed".to_owned()), "{name}");
    }
    assert_eq!(fixture.client.send(&Call::on("GET", "k")).status, 404);
    fixture.client.send_raw("PUT", &head).ok();
}

/// Returns a GET request whose signature, in a header or in the URL, covers exactly the headers in `names`.
fn signed_over(fixture: &Fixture, names: &[&str], in_url: Option<u64>) -> String {
    let (client, path) = (&fixture.client, format!("/{BUCKET}/k"));
    let (now, host) = (SystemTime::now(), client.address.to_string());
    let date = date::UtcTime::from(now).amz_date();
    let all = [("host", host.as_str()), ("x-amz-content-sha256", UNSIGNED_PAYLOAD), ("x-amz-date", &date)];
    let headers: Vec<_> = all.into_iter().filter(|(name, _)| names.contains(name)).collect();
    let day = &date[..8];
    let list = names.join(";");
    let scope = format!("{day}/us-east-1/s3/aws4_request");
    let query = in_url.map(|expires| {
        let credential = format!("{}/{scope}", client.identity.access_key).replace('/', "%2F");
        format!(
            "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential={credential}&X-Amz-Date={date}&X-Amz-Expires={expires}\
             &X-Amz-SignedHeaders={}",
            list.replace(';', "%3B")
        )
    });
    let query = query.unwrap_or_default();
    let lines: String = headers.iter().map(|(name, value)| format!("{name}:{value}\n")).collect();
    let canonical = format!("GET\n{path}\n{query}\n{lines}\n{list}\n{UNSIGNED_PAYLOAD}");
    let hash = client::hex(&<sha2::Sha256 as sha2::Digest>::digest(canonical.as_bytes()));
    let text = format!("AWS4-HMAC-SHA256\n{date}\n{scope}\n{hash}");
    let hmac = |key: &[u8], text: &str| {
        let mut mac = Hmac::<sha2::Sha256>::new_from_slice(key).unwrap();
        mac.update(text.as_bytes());
        mac.finalize().into_bytes().to_vec()
    };
    let secret = format!("AWS4{}", client.identity.secret_key);
    let key = [day, "us-east-1", "s3", "aws4_request"]
        .iter()
        .fold(secret.into_bytes(), |key, part| hmac(&key, part));
    let signature = client::hex(&hmac(&key, &text));
    let sent: String = all.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    match in_url {
        Some(_) => format!(
            "GET {path}?{query}&X-Amz-Signature={signature} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\r\n",
            client.address
        ),
        None => format!(
            "GET {path} HTTP/1.1\r\n{sent}connection: close\r\nauthorization: AWS4-HMAC-SHA256 \
             Credential={}/{scope}, SignedHeaders={list}, Signature={signature}\r\n\r\n",
            client.identity.access_key
        ),
    }
}

/// As on AWS, a signature must cover the host, and a presigned URL is valid for up to a week.
#[test]
fn signatures_that_fit_and_cover_too_little_are_refused() {
    let fixture = serve();
    fixture.client.send(&Call::on("PUT", "k").body("x")).ok();
    let dated = ["x-amz-content-sha256", "x-amz-date"];
    let answer =
        |names: &[&str], in_url| fixture.client.send_raw("GET", &signed_over(&fixture, names, in_url));
    assert_eq!(answer(&["host", dated[0], dated[1]], None).ok().text(), "x");
    assert_eq!(answer(&dated, None).error(), (403, "AccessDenied".to_owned()), "by a header, without host");
    assert_eq!(answer(&[], None).error(), (400, "AuthorizationHeaderMalformed".to_owned()), "over nothing");
    assert_eq!(answer(&["host"], Some(604_800)).ok().text(), "x");
    for expires in [604_801, 31_536_000] {
        let refused = answer(&["host"], Some(expires));
        assert_eq!(refused.error(), (400, "AuthorizationQueryParametersError".to_owned()), "{expires}");
    }
    let refused = answer(&[], Some(60));
    assert_eq!(refused.error(), (400, "AuthorizationQueryParametersError".to_owned()), "a URL over nothing");
}

/// Sends a listing request with `lines` in its head, and returns the response.
fn answer_to(fixture: &Fixture, target: &str, lines: &str) -> Answer {
    let request = format!("GET {target} HTTP/1.1\r\nhost: h\r\nconnection: close\r\n{lines}\r\n");
    fixture.client.send_raw("GET", &request)
}

const SCOPE: &str = "20260101/us-east-1/s3/aws4_request";

/// The errors for malformed signatures have AWS's messages.
#[test]
fn the_form_of_a_signature_in_a_header_is_explained() {
    let fixture = serve();
    let whole = |credential: &str| {
        format!("AWS4-HMAC-SHA256 Credential={credential},SignedHeaders=host,Signature={}", "0".repeat(64))
    };
    let malformed = "AuthorizationHeaderMalformed";
    for (value, code, words) in [
        ("invalid_header".to_owned(), "InvalidArgument", "one and only one ' ' (space) required."),
        ("AWS2-HMAC-SHA1 Credential=a".to_owned(), "InvalidArgument", "Unsupported Authorization Type"),
        (format!("AWS4-HMAC-SHA256 Credential=a/{SCOPE},Signature=0"), malformed, "three components"),
        (
            format!("AWS4-HMAC-SHA256 Credential=a/{SCOPE},SignedHeaders-host,Signature=0"),
            malformed,
            "component \"SignedHeaders-host\" is malformed.",
        ),
        (
            format!("AWS4-HMAC-SHA256 a=a/{SCOPE},SignedHeaders=b,Signature=0"),
            malformed,
            "missing Credential.",
        ),
        (
            format!("AWS4-HMAC-SHA256 Credential=a/{SCOPE},a=b,Signature=0"),
            malformed,
            "missing SignedHeaders.",
        ),
        (
            format!("AWS4-HMAC-SHA256 Credential=a/{SCOPE},SignedHeaders=b,a=0"),
            malformed,
            "missing Signature.",
        ),
        (whole("a/20260101/us-east-1/s3/extra/things"), malformed, "the Credential is mal-formed"),
        (whole("a/20260101/us-east-1/s3/aws_request"), malformed, "incorrect terminal \"aws_request\"."),
        (whole("a/20260101/us-east-1/ec2/aws4_request"), malformed, "incorrect service \"ec2\"."),
        (whole("a/3223423234/us-east-1/s3/aws4_request"), malformed, "incorrect date format \"3223423234\"."),
        (whole("a/20260101/US/s3/aws4_request"), malformed, "the region \"US\" is wrong; expecting"),
        (whole("a/20260102/us-east-1/s3/aws4_request"), malformed, "Invalid credential date \"20260102\"."),
    ] {
        let lines = format!("x-amz-date: 20260101T000000Z\r\nauthorization: {value}\r\n");
        let answer = answer_to(&fixture, "/", &lines);
        assert_eq!(answer.error(), (400, code.to_owned()), "{value}");
        let said = answer.element("Message").unwrap().replace("&quot;", "\"");
        assert!(said.contains(words), "{value}: {said}");
    }
    for date in ["", "x-amz-date: \r\n", "x-amz-date: 03032006\r\n"] {
        let lines = format!("{date}authorization: {}\r\n", whole(&format!("a/{SCOPE}")));
        let answer = answer_to(&fixture, "/", &lines);
        assert_eq!(answer.error(), (403, "AccessDenied".to_owned()), "{date}");
    }
    for (hash, code) in [("", "InvalidRequest"), ("x-amz-content-sha256: x\r\n", "InvalidArgument")] {
        let signed = whole(&format!("a/{SCOPE}"));
        let lines = format!("x-amz-date: 20260101T000000Z\r\n{hash}authorization: {signed}\r\n");
        assert_eq!(answer_to(&fixture, "/", &lines).error(), (400, code.to_owned()), "{hash}");
    }
}

#[test]
fn the_form_of_a_signature_in_a_url_is_explained() {
    let fixture = serve();
    let parameters = [
        ("X-Amz-Algorithm", "AWS4-HMAC-SHA256"),
        ("X-Amz-Credential", "a/20260101/us-east-1/s3/aws4_request"),
        ("X-Amz-Date", "20260101T000000Z"),
        ("X-Amz-Expires", "60"),
        ("X-Amz-SignedHeaders", "host"),
        ("X-Amz-Signature", "00"),
    ];
    let refused = |changed: &str, value: Option<&str>, words: &str| {
        let pairs = parameters.iter().filter_map(|(name, usual)| match *name == changed {
            true => value.map(|value| format!("{name}={value}")),
            false => Some(format!("{name}={usual}")),
        });
        let target = format!("/?{}", pairs.collect::<Vec<_>>().join("&"));
        let answer = answer_to(&fixture, &target, "");
        assert_eq!(answer.error(), (400, "AuthorizationQueryParametersError".to_owned()), "{target}");
        let said = answer.element("Message").unwrap();
        assert!(said.contains(words), "{target}: {said}");
    };
    for (name, _) in parameters {
        refused(name, None, "requires the X-Amz-Algorithm");
    }
    refused("X-Amz-Algorithm", Some("AWS4-SHA256"), "X-Amz-Algorithm only supports");
    refused(
        "X-Amz-Credential",
        Some("a/b"),
        "Error parsing the X-Amz-Credential parameter; the Credential is",
    );
    refused("X-Amz-Credential", Some("a/20260102/us-east-1/s3/aws4_request"), "Invalid credential date");
    refused("X-Amz-Credential", Some("a/20260101/us-east-1/sns/aws4_request"), "incorrect service");
    refused("X-Amz-Date", Some("2026"), "X-Amz-Date must be in the ISO8601 Long Format");
    refused("X-Amz-Expires", Some("soon"), "X-Amz-Expires should be a number");
    refused("X-Amz-Expires", Some("-3"), "X-Amz-Expires must be non-negative");
    refused("X-Amz-Expires", Some("604801"), "must be less than 604800 seconds");
}

/// Programs compare messages with AWS's messages. The gateway's own message and details are therefore separate
/// elements.
#[test]
fn errors_have_the_words_of_aws_and_ours() {
    let fixture = serve();
    let missing = fixture.client.send(&Call::on("GET", "none"));
    assert_eq!(missing.element("Message").unwrap(), "The specified key does not exist.");
    assert!(missing.element("Detail").unwrap().contains(&format!("s3://{BUCKET}/none")));
    let mut stranger = fixture.client.clone();
    stranger.identity.access_key = "nobody".to_owned();
    let refused = stranger.send(&Call::new("GET", "/"));
    assert_eq!(refused.element("AWSAccessKeyId").unwrap(), "nobody");
}

/// A request that contains its time only in `Date` is valid.
#[test]
fn the_header_date_is_enough() {
    let fixture = serve();
    let mut client = fixture.client.clone();
    client.dates_by_date = true;
    client.send(&Call::new("GET", "/")).ok();
}

/// Responses to requests for unsupported operations must not reveal to unknown callers whether a bucket or an object
/// exists.
#[test]
fn what_is_not_offered_is_refused_to_known_callers_only() {
    let fixture = serve();
    let answer = answer_to(&fixture, &format!("/{BUCKET}?website"), "");
    assert_eq!(answer.error(), (403, "AccessDenied".to_owned()));
    let put =
        |bucket: &str, what: &str| fixture.client.send(&Call::new("PUT", format!("/{bucket}")).query(what));
    // Most programs show only the message, so the message names the operation.
    for (what, operation) in [("website", "PutBucketWebsite"), ("encryption", "PutBucketEncryption")] {
        let refused = put(BUCKET, what);
        assert_eq!(refused.error(), (501, "NotImplemented".to_owned()));
        let aws_message = "A header you provided implies functionality that is not implemented.";
        assert_eq!(refused.element("Message").as_deref(), Some(aws_message));
        assert_eq!(refused.element("Detail"), Some(format!("{operation} is not supported")));
    }
    assert_eq!(put("nowhere", "website").error(), (404, "NoSuchBucket".to_owned()));
    let retention = fixture.client.send(&Call::on("GET", "k").query("retention"));
    assert_eq!(retention.error(), (404, "NoSuchKey".to_owned()));
}
