//! Tests the CORS rules and the tags of buckets over HTTP.

mod client;

use client::{Answer, BUCKET, Call, Fixture, serve};

const PAGE: &str = "https://page.example.org";
const RULES: &str = "<CORSConfiguration><CORSRule><AllowedMethod>GET</AllowedMethod><AllowedMethod>PUT</AllowedMethod>\
    <AllowedOrigin>https://*.example.org</AllowedOrigin><AllowedHeader>*</AllowedHeader>\
    <ExposeHeader>ETag</ExposeHeader><MaxAgeSeconds>600</MaxAgeSeconds></CORSRule></CORSConfiguration>";

fn cors(fixture: &Fixture, method: &str, body: &str) -> Answer {
    fixture.client.send(&Call::new(method, format!("/{BUCKET}")).query("cors").body(body))
}

/// Sends the preflight request that a browser sends before a request. Preflight requests are not signed.
fn preflight(fixture: &Fixture, path: &str, headers: &[(&str, &str)]) -> Answer {
    let mut call = format!("OPTIONS {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n");
    headers.iter().for_each(|(name, value)| call.push_str(&format!("{name}: {value}\r\n")));
    call.push_str("\r\n");
    fixture.client.send_raw("OPTIONS", &call)
}

#[test]
fn rules_are_set_read_and_removed() {
    let fixture = serve();
    assert_eq!(cors(&fixture, "GET", "").error(), (404, "NoSuchCORSConfiguration".to_owned()));
    assert_eq!(cors(&fixture, "PUT", RULES).status, 200);
    let kept = cors(&fixture, "GET", "").ok();
    assert_eq!(kept.elements("AllowedMethod"), ["GET", "PUT"]);
    assert_eq!(kept.elements("AllowedOrigin"), ["https://*.example.org"]);
    for bad in ["", "<CORSConfiguration></CORSConfiguration>", "<CORSConfiguration><CORSRule>"] {
        assert_eq!(cors(&fixture, "PUT", bad).error(), (400, "MalformedXML".to_owned()), "{bad}");
    }
    assert_eq!(cors(&fixture, "GET", "").ok().elements("AllowedMethod"), ["GET", "PUT"], "it is kept");
    assert_eq!(cors(&fixture, "DELETE", "").status, 204);
    assert_eq!(cors(&fixture, "GET", "").error(), (404, "NoSuchCORSConfiguration".to_owned()));
}

#[test]
fn preflights_are_answered_without_a_signature() {
    let fixture = serve();
    let asks = [
        ("Origin", PAGE),
        ("Access-Control-Request-Method", "PUT"),
        ("Access-Control-Request-Headers", "x-amz-date,Authorization"),
    ];
    let object = format!("/{BUCKET}/any/key");
    assert_eq!(preflight(&fixture, &object, &asks).error(), (403, "AccessForbidden".to_owned()));
    cors(&fixture, "PUT", RULES).ok();
    let allowed = preflight(&fixture, &object, &asks).ok();
    assert_eq!(allowed.header("access-control-allow-origin"), Some(PAGE));
    assert_eq!(allowed.header("access-control-allow-methods"), Some("GET, PUT"));
    assert_eq!(allowed.header("access-control-allow-headers"), Some("x-amz-date, authorization"));
    assert_eq!(allowed.header("access-control-max-age"), Some("600"));
    // A long list of names is refused, because each name would be compared with each pattern of a rule.
    let many = "x-amz-meta-a,".repeat(1000);
    let long = preflight(&fixture, &object, &[asks[0], asks[1], ("Access-Control-Request-Headers", &many)]);
    assert_eq!(long.error(), (400, "RequestHeaderSectionTooLarge".to_owned()));
    let other = [("Origin", "https://example.com"), ("Access-Control-Request-Method", "PUT")];
    let refused = preflight(&fixture, &object, &other);
    assert_eq!(refused.error(), (403, "AccessForbidden".to_owned()));
    assert_eq!(refused.header("access-control-allow-origin"), None);
    assert_eq!(preflight(&fixture, &object, &[]).status, 400);
    assert_eq!(preflight(&fixture, "/no-such-bucket/k", &asks).error(), (403, "AccessForbidden".to_owned()));
}

#[test]
fn answers_to_pages_say_what_the_rules_allow() {
    let fixture = serve();
    fixture.client.send(&Call::on("PUT", "k").body("hello")).ok();
    let get = |key: &str, origin: &str| fixture.client.send(&Call::on("GET", key).header("origin", origin));
    assert_eq!(get("k", PAGE).ok().header("access-control-allow-origin"), None, "no rules yet");
    cors(&fixture, "PUT", RULES).ok();
    let answer = get("k", PAGE).ok();
    assert_eq!(answer.text(), "hello");
    assert_eq!(answer.header("access-control-allow-origin"), Some(PAGE));
    assert_eq!(answer.header("access-control-expose-headers"), Some("ETag"));
    assert!(answer.header("vary").is_some_and(|vary| vary.contains("Origin")));
    assert_eq!(get("none", PAGE).header("access-control-allow-origin"), Some(PAGE), "errors too");
    assert_eq!(get("k", "https://example.com").ok().header("access-control-allow-origin"), None);
    let plain = fixture.client.send(&Call::on("GET", "k")).ok();
    assert_eq!(plain.header("access-control-allow-origin"), None);
}

#[test]
fn buckets_have_tags() {
    let fixture = serve();
    let tagging = |method, body: &str| {
        fixture.client.send(&Call::new(method, format!("/{BUCKET}")).query("tagging").body(body))
    };
    assert_eq!(tagging("GET", "").error(), (404, "NoSuchTagSet".to_owned()));
    let tag = |name: &str| format!("<Tag><Key>{name}</Key><Value>v</Value></Tag>");
    let set = |tags: &str| format!("<Tagging><TagSet>{tags}</TagSet></Tagging>");
    assert_eq!(tagging("PUT", &set(&[tag("b"), tag("a")].concat())).status, 204);
    let read = tagging("GET", "").ok();
    assert_eq!(read.elements("Key"), ["b", "a"]);
    let root = "<Tagging xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><TagSet>";
    assert!(read.text().contains(root), "{}", read.text());
    let twice = set(&[tag("a"), tag("a")].concat());
    assert_eq!(tagging("PUT", &twice).error(), (400, "InvalidTag".to_owned()));
    assert_eq!(tagging("GET", "").ok().elements("Key"), ["b", "a"]);
    assert_eq!(tagging("DELETE", "").status, 204);
    assert_eq!(tagging("GET", "").error(), (404, "NoSuchTagSet".to_owned()));
}
