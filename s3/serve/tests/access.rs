//! Who is let in.

mod client;

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

/// s3cmd learns the region this way.
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

/// What a gateway answers to a listing that was signed the old way at `date`; `query` is not signed.
fn answer_to_version_2(fixture: &Fixture, date: &str, query: &str) -> Answer {
    let identity = &fixture.client.identity;
    let mut mac = Hmac::<sha1::Sha1>::new_from_slice(identity.secret_key.as_bytes()).unwrap();
    mac.update(format!("GET\n\n\n{date}\n/").as_bytes());
    let signature = BASE64.encode(mac.finalize().into_bytes());
    let request = format!(
        "GET /{query} HTTP/1.1\r\nhost: h\r\nconnection: close\r\ndate: {date}\r\n\
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
    // What boto3 calls the other version, and what the gateway's operator can do.
    for word in ["AWS4-HMAC-SHA256", "s3v4", "--signature-v2"] {
        assert!(refused.text().contains(word), "{}", refused.text());
    }

    let willing = serve_with(|config| config.signature_v2 = true);
    assert_eq!(answer_to_version_2(&willing, &now, "").status, 200);
    let old = date::format_http(SystemTime::now() - Duration::from_secs(16 * 60));
    assert_eq!(answer_to_version_2(&willing, &old, "").error(), (403, "RequestTimeTooSkewed".to_owned()));
    // Made to look like one of version 4, it is still none.
    let disguise = "?X-Amz-Signature=00";
    assert_eq!(answer_to_version_2(&serve(), &now, disguise).error(), (400, "InvalidRequest".to_owned()));
    assert_eq!(
        answer_to_version_2(&willing, &old, disguise).error(),
        (403, "RequestTimeTooSkewed".to_owned())
    );
    assert_eq!(answer_to_version_2(&willing, "soon", "").error(), (403, "AccessDenied".to_owned()));
}

/// Who was given an address to put an object at must not make it a copy of another one: what changes what is
/// asked for is signed, or refused.
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
    // Nor does it help to hide which signature counts.
    let hidden = query.replace("X-Amz-Signature", "%58-Amz-Signature");
    let pretence = "authorization: AWS4-HMAC-SHA256 Credential=a/b, SignedHeaders=x-amz-copy-source, Signature=00\r\n\
                    x-amz-copy-source: /data/secret\r\n";
    for query in [&query, &hidden] {
        assert_eq!(put_to(query, pretence).error(), (403, "AccessDenied".to_owned()), "{query}");
    }
    // Headers that stand in the URL are covered by its signature as all of it is.
    let further = format!("{query}&x-amz-copy-source=%2Fdata%2Fsecret");
    assert_eq!(put_to(&further, "").error(), (403, "SignatureDoesNotMatch".to_owned()));
    // What says the same as the signature, or nothing.
    put("x-amz-content-sha256: UNSIGNED-PAYLOAD\r\nx-amz-user-agent: test\r\n").ok();
}

/// A request for an object that is signed over these headers and no others, by a header or in the URL.
fn signed_over(fixture: &Fixture, names: &[&str], in_url: Option<u64>) -> String {
    let (client, path) = (&fixture.client, format!("/{BUCKET}/k"));
    let (now, host) = (SystemTime::now(), client.address.to_string());
    let date = date::Utc::from(now).amz_date();
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

/// As AWS has it: a signature is of the host it was made for, and a URL is good for a week at most.
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
