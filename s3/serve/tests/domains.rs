//! Tests requests whose host name contains the bucket's name.

mod client;

use client::http2::{Http2, run};
use client::{Call, Fixture, key, serve_with};
use fordway_store::{Bucket, Objects};

fn serve() -> Fixture {
    let fixture = serve_with(|config| config.domains = vec!["s3.example.org".to_owned()]);
    fixture.store.create_bucket(&Bucket::new("data").unwrap()).unwrap();
    fixture
}

/// Sends each request with and without a header that the fast path does not support. The fast path and the S3 layer
/// must return the same response.
#[test]
fn the_bucket_is_in_the_host_and_the_key_in_the_path() {
    let fixture = serve();
    let at = |method: &'static str, host: &str, path: &str| Call::new(method, path).header("host", host);
    for host in ["data.s3.example.org", "data.s3.example.org:9000", "data.S3.Example.ORG"] {
        fixture.client.send(&at("PUT", host, "/a%20b/c").body("hello")).ok();
        fixture.store.head(&Bucket::new("data").unwrap(), &key("a b/c"), &Default::default()).unwrap();
        let get = fixture.client.send(&at("GET", host, "/a%20b/c")).ok();
        let slow = fixture.client.send(&at("GET", host, "/a%20b/c").header("x-other", "1")).ok();
        assert_eq!((get.text(), slow.text()), ("hello".to_owned(), "hello".to_owned()));
        let listed = fixture.client.send(&at("GET", host, "/").query("list-type=2")).ok();
        assert_eq!(listed.elements("Key"), ["a b/c"]);
        let path = fixture.client.send(&at("GET", host, "/data/a%20b/c"));
        assert_eq!(path.error(), (404, "NoSuchKey".to_owned()));
        assert_eq!(path.elements("Key"), ["data/a b/c"]);
        let document = fixture.client.send(&at("GET", host, "/").query("tagging"));
        assert_eq!(document.error(), (404, "NoSuchTagSet".to_owned()));
        assert_eq!(document.elements("BucketName"), ["data"], "host {host}");
        fixture.client.send(&at("DELETE", host, "/a%20b/c")).ok();
    }
}

#[test]
fn the_access_log_names_the_bucket_in_the_host() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let fixture = serve_with(|config| {
        config.domains = vec!["s3.example.org".to_owned()];
        config.access_log = Some(log.clone());
    });
    for header in ["accept", "x-other"] {
        let call = Call::new("GET", "/a%20b/c").header("host", "data.s3.example.org").header(header, "1");
        assert_eq!(fixture.client.send(&call).error(), (404, "NoSuchBucket".to_owned()));
    }
    drop(fixture);
    let text = std::fs::read_to_string(&log).unwrap();
    assert_eq!(text.matches(r#""bucket":"data","key":"a b/c""#).count(), 2, "{text}");
}

#[test]
fn other_hosts_leave_the_bucket_to_the_path() {
    let fixture = serve();
    for host in ["s3.example.org", "localhost:9000", "other.example.org", "127.0.0.1:9000"] {
        let put = Call::new("PUT", "/data/k").header("host", host).body("hello");
        fixture.client.send(&put).ok();
        let get = fixture.client.send(&Call::new("GET", "/data/k").header("host", host)).ok();
        assert_eq!(get.text(), "hello", "{host}");
    }
    let other = Call::new("GET", "/k").header("host", "none.s3.example.org");
    assert_eq!(fixture.client.send(&other).error(), (404, "NoSuchBucket".to_owned()));
}

/// In HTTP/2, the host is in the pseudo-header `:authority`, not in a `Host` header. A bucket in the path must not be
/// mistaken for the request's bucket.
#[test]
fn over_http2_the_bucket_is_in_the_host_too() {
    let fixture = serve();
    let other = Bucket::new("other").unwrap();
    fixture.store.create_bucket(&other).unwrap();
    run(async {
        let http2 = Http2::connect(&fixture.client).await;
        let at =
            |method: &'static str, path: &str| Call::new(method, path).header("host", "data.s3.example.org");
        http2.send(&at("PUT", "/other/k").body("hello")).await.ok();
        assert_eq!(http2.send(&at("GET", "/other/k")).await.ok().text(), "hello");
        fixture.store.head(&Bucket::new("data").unwrap(), &key("other/k"), &Default::default()).unwrap();
        assert!(
            fixture.store.head(&other, &key("k"), &Default::default()).is_err(),
            "it is in the wrong bucket"
        );
        let mut two_hosts = http2.request(&at("GET", "/other/k"));
        two_hosts.headers_mut().insert("host", "other.s3.example.org".parse().unwrap());
        let mut send = http2.send.clone().ready().await.unwrap();
        let (response, _) = send.send_request(two_hosts, true).unwrap();
        assert_eq!(response.await.unwrap().status(), 400);
    });
}

/// The host is signed, so the bucket cannot be changed in transit.
#[test]
fn a_signature_for_one_bucket_is_none_for_another() {
    let fixture = serve();
    let get = Call::new("GET", "/k").header("host", "data.s3.example.org");
    let head = String::from_utf8(fixture.client.head(&get)).unwrap();
    let moved = head.replace("host: data.", "host: other.");
    assert_eq!(fixture.client.send_raw("GET", &moved).error(), (403, "SignatureDoesNotMatch".to_owned()));
}

/// A key may begin with a slash. Such a key differs from the key without the slash, in reads of one range and of
/// several ranges.
#[test]
fn a_slash_more_is_another_key() {
    let fixture = serve();
    let at = |method: &'static str, path: &str| Call::new(method, path).header("host", "data.s3.example.org");
    fixture.client.send(&at("PUT", "/k").body("the wrong one")).ok();
    fixture.client.send(&at("PUT", "//k").body("the right one")).ok();
    for range in ["bytes=0-8", "bytes=0-3,4-8"] {
        let answer = fixture.client.send(&at("GET", "//k").header("range", range)).ok();
        assert!(answer.text().contains("righ"), "{range}: {}", answer.text());
    }
}
