//! Tests HTTP's requirements for reads with unusual heads, and that metadata is returned as it was stored.

mod client;

use std::sync::Arc;
use std::time::Duration;

use client::slow::SlowStore;
use client::{Answer, Call, Fixture, bucket, key, serve, serve_through};
use fordway_store::{MemoryStore, Objects, PutOptions, Store};

fn filled() -> Fixture {
    let fixture = serve();
    fixture.client.send(&Call::on("PUT", "k").body("0123456789")).ok();
    fixture
}

fn with(fixture: &Fixture, method: &'static str, name: &'static str, value: &str) -> Answer {
    fixture.client.send(&Call::on(method, "k").header(name, value))
}

/// RFC 9110 section 14.2 permits a server to ignore an invalid range.
#[test]
fn a_range_that_is_none_is_ignored() {
    let fixture = filled();
    for range in [
        "bytes=abc",
        "bytes=5-2",
        "bytes",
        "lines=1-2",
        "bytes=1-2-3",
        "bytes=-",
        "bytes=+1-2",
        "bytes=1-0,0-0",
    ] {
        let answer = with(&fixture, "GET", "range", range);
        assert_eq!((answer.status, answer.text().as_str()), (200, "0123456789"), "{range}");
        assert_eq!(with(&fixture, "HEAD", "range", range).status, 200, "{range}");
    }
    assert_eq!(with(&fixture, "GET", "range", "bytes=10-").error(), (416, "InvalidRange".to_owned()));
}

#[test]
fn head_says_what_get_would() {
    let fixture = filled();
    let answer = with(&fixture, "HEAD", "range", "bytes=2-4");
    assert_eq!(answer.status, 206);
    assert_eq!(answer.header("content-range"), Some("bytes 2-4/10"));
    assert_eq!(answer.header("content-length"), Some("3"));
    assert_eq!(with(&fixture, "HEAD", "range", "bytes=10-").status, 416);
    let chosen = "response-cache-control=a&response-content-disposition=b&response-content-encoding=c\
                  &response-content-language=d&response-content-type=e&response-expires=f";
    for method in ["GET", "HEAD"] {
        let answer = fixture.client.send(&Call::on(method, "k").query(chosen)).ok();
        let names = ["cache-control", "content-disposition", "content-encoding", "content-language"];
        let said = names.map(|name| answer.header(name).unwrap_or_default());
        assert_eq!(said, ["a", "b", "c", "d"], "{method}");
        assert_eq!((answer.header("content-type"), answer.header("expires")), (Some("e"), Some("f")));
    }
}

/// RFC 9110 section 5.6.7 defines the formats of dates, and section 13.1.3 requires that invalid dates are ignored.
#[test]
fn dates_are_read_in_all_forms_and_ignored_if_they_are_none() {
    let fixture = filled();
    for date in ["Sat, 06 Nov 2094 08:49:37 GMT", "Sat Nov 13 08:49:37 2094", "Sat, 06 Nov 2094 08:49:37 UTC"]
    {
        assert_eq!(with(&fixture, "GET", "if-modified-since", date).status, 304, "{date}");
        assert_eq!(with(&fixture, "GET", "if-unmodified-since", date).status, 200, "{date}");
    }
    let past = "Sunday, 06-Nov-94 08:49:37 GMT";
    assert_eq!(with(&fixture, "GET", "if-modified-since", past).status, 200);
    assert_eq!(with(&fixture, "GET", "if-unmodified-since", past).status, 412);
    for name in ["if-modified-since", "if-unmodified-since"] {
        for method in ["GET", "HEAD"] {
            assert_eq!(with(&fixture, method, name, "yesterday").status, 200, "{method} {name}");
        }
    }
}

#[test]
fn a_part_of_what_has_changed_is_the_whole() {
    let fixture = filled();
    let tag = fixture.client.send(&Call::on("HEAD", "k")).ok().header("etag").unwrap().to_owned();
    let ask = |method: &'static str, tag: &str| {
        fixture.client.send(&Call::on(method, "k").header("range", "bytes=1-2").header("if-range", tag))
    };
    for method in ["GET", "HEAD"] {
        assert_eq!(ask(method, &tag).status, 206);
        assert_eq!(ask(method, "\"other\"").header("content-length"), Some("10"));
    }
}

/// A client appends the part to the bytes it already has, so the part must come from the version in `If-Range`.
#[test]
fn a_part_is_of_the_version_that_the_client_has() {
    let replace = |store: &MemoryStore| {
        store.put(&bucket(), &key("k"), b"9876543210!", &PutOptions::default()).unwrap();
    };
    let slow =
        |inner| Arc::new(SlowStore { inner, delay: Duration::ZERO, after_head: replace }) as Arc<dyn Store>;
    let fixture = serve_through(slow, |_| ());
    let old = fixture.store.put(&bucket(), &key("k"), b"0123456789", &PutOptions::default()).unwrap();
    let ask = |range: &str, tag: &str| {
        fixture.client.send(&Call::on("GET", "k").header("range", range).header("if-range", tag)).ok()
    };
    let tag = format!("\"{}\"", old.etag);
    let part = ask("bytes=1-2", &tag);
    assert_eq!((part.status, part.text().as_str(), part.header("etag")), (206, "12", Some(&*tag)));
    for range in ["bytes=1-2", "bytes=1-2,4-5", "bytes=1000-"] {
        replace(&fixture.store);
        let whole = ask(range, &tag);
        assert_eq!((whole.status, whole.text().as_str()), (200, "9876543210!"), "{range}");
    }
}

/// libs3 sends a value of `Expires` that is not an HTTP date. The gateway returns this value unchanged.
#[test]
fn what_expires_is_kept_as_it_was_said() {
    let fixture = filled();
    for expires in ["Wed, 21 Oct 2015 07:28:00 UTC", "never", "0", "Wed, 21 Oct 2015 07:28:00 GMT"] {
        fixture.client.send(&Call::on("PUT", "e").header("expires", expires).body("x")).ok();
        for method in ["GET", "HEAD"] {
            let answer = fixture.client.send(&Call::on(method, "e")).ok();
            assert_eq!(answer.header("expires"), Some(expires), "{method}");
        }
    }
    let copy = Call::on("PUT", "f").header("x-amz-copy-source", format!("/{}/e", client::BUCKET));
    let copy = copy.header("x-amz-metadata-directive", "REPLACE").header("expires", "never");
    fixture.client.send(&copy).ok();
    assert_eq!(fixture.client.send(&Call::on("GET", "f")).ok().header("expires"), Some("never"));
}
