//! Tests tags over HTTP.

mod client;

use client::{Answer, Call, Fixture, serve};

const TWO: &str = "<Tagging><TagSet><Tag><Key>a</Key><Value>1</Value></Tag><Tag><Key>b c</Key>\
                   <Value/></Tag></TagSet></Tagging>";

fn tagging(fixture: &Fixture, method: &str, key: &str, body: &str) -> Answer {
    fixture.client.send(&Call::on(method, key).query("tagging").body(body))
}

fn tags(fixture: &Fixture, key: &str) -> Vec<(String, String)> {
    let answer = tagging(fixture, "GET", key, "").ok();
    answer.elements("Key").into_iter().zip(answer.elements("Value")).collect()
}

fn owned(tags: &[(&str, &str)]) -> Vec<(String, String)> {
    tags.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

#[test]
fn tags_are_set_read_and_removed() {
    let fixture = serve();
    fixture.client.send(&Call::on("PUT", "k").header("x-amz-tagging", "x=y&empty").body("z")).ok();
    assert_eq!(tags(&fixture, "k"), owned(&[("empty", ""), ("x", "y")]));
    for method in ["GET", "HEAD"] {
        let answer = fixture.client.send(&Call::on(method, "k")).ok();
        assert_eq!(answer.header("x-amz-tagging-count"), Some("2"), "{method}");
    }
    tagging(&fixture, "PUT", "k", TWO).ok();
    assert_eq!(tags(&fixture, "k"), owned(&[("a", "1"), ("b c", "")]));
    assert_eq!(tagging(&fixture, "DELETE", "k", "").status, 204);
    assert!(tags(&fixture, "k").is_empty());
    assert_eq!(fixture.client.send(&Call::on("GET", "k")).ok().header("x-amz-tagging-count"), None);
    assert_eq!(tagging(&fixture, "PUT", "none", TWO).error(), (404, "NoSuchKey".to_owned()));
}

/// A parser that ignored CDATA sections would set wrong tags and delete a wrong object.
#[test]
fn cdata_sections_are_read() {
    let fixture = serve();
    for key in ["a", "ab"] {
        fixture.client.send(&Call::on("PUT", key).body("z")).ok();
    }
    let set = "<Tagging><TagSet><Tag><Key><![CDATA[a]]></Key><Value>1<![CDATA[2]]>3</Value></Tag></TagSet></Tagging>";
    on_bucket(&fixture, "PUT", "tagging", set).ok();
    assert_eq!(on_bucket(&fixture, "GET", "tagging", "").ok().elements("Value"), ["123"]);
    tagging(&fixture, "PUT", "a", set).ok();
    assert_eq!(tags(&fixture, "a"), owned(&[("a", "123")]));
    let delete = "<Delete><Object><Key>a<![CDATA[b]]></Key></Object></Delete>";
    assert_eq!(on_bucket(&fixture, "POST", "delete", delete).ok().elements("Key"), ["ab"]);
    fixture.client.send(&Call::on("GET", "a")).ok();
    let broken = on_bucket(&fixture, "POST", "delete", &delete.replace("]]>", ""));
    assert_eq!(broken.error(), (400, "MalformedXML".to_owned()));
    let references = delete.replace("[b]", &format!("[{}]", "&".repeat(100)));
    assert_eq!(on_bucket(&fixture, "POST", "delete", &references).ok().elements("Key").len(), 1);
}

/// Some libraries write every name with a prefix, and every character beyond ASCII as a reference.
#[test]
fn names_with_prefixes_and_references_are_read() {
    let fixture = serve();
    for key in ["k", "%F0%9F%98%80"] {
        fixture.client.send(&Call::on("PUT", key).body("z")).ok();
    }
    for set in [
        "<Tagging><TagSet xmlns:n='x'><n:Tag><n:Key>a</n:Key><n:Value>1</n:Value></n:Tag></TagSet></Tagging>",
        "<n:Tagging xmlns:n='x'><n:TagSet><n:Tag><n:Key>a</n:Key><n:Value>1</n:Value></n:Tag></n:TagSet></n:Tagging>",
    ] {
        tagging(&fixture, "DELETE", "k", "");
        tagging(&fixture, "PUT", "k", set).ok();
        assert_eq!(tags(&fixture, "k"), owned(&[("a", "1")]), "{set}");
        on_bucket(&fixture, "PUT", "tagging", set).ok();
        assert_eq!(on_bucket(&fixture, "GET", "tagging", "").ok().elements("Value"), ["1"], "{set}");
    }
    let rule = "<n:AllowedMethod>GET</n:AllowedMethod><n:AllowedOrigin>*</n:AllowedOrigin>";
    let cors =
        format!("<n:CORSConfiguration xmlns:n='x'><n:CORSRule>{rule}</n:CORSRule></n:CORSConfiguration>");
    on_bucket(&fixture, "PUT", "cors", &cors).ok();
    let versioning =
        "<n:VersioningConfiguration xmlns:n='x'><n:Status>Enabled</n:Status></n:VersioningConfiguration>";
    on_bucket(&fixture, "PUT", "versioning", versioning).ok();
    let delete = "<n:Delete xmlns:n='x'><n:Object><n:Key>&#x1F600;</n:Key></n:Object></n:Delete>";
    assert_eq!(on_bucket(&fixture, "POST", "delete", delete).ok().elements("Key"), ["\u{1f600}"]);
    let listed = on_bucket(&fixture, "GET", "list-type=2", "").ok();
    assert_eq!(listed.elements("Key"), ["k"]);
}

fn on_bucket(fixture: &Fixture, method: &'static str, query: &'static str, body: &str) -> Answer {
    fixture.client.send(&Call::new(method, format!("/{}", client::BUCKET)).query(query).body(body))
}

#[test]
fn tags_that_cannot_be_are_refused() {
    let fixture = serve();
    fixture.client.send(&Call::on("PUT", "k").body("z")).ok();
    let tag = |name: &str| format!("<Tag><Key>{name}</Key><Value>v</Value></Tag>");
    let set = |tags: &str| format!("<Tagging><TagSet>{tags}</TagSet></Tagging>");
    let eleven: String = (0..11).map(|at| tag(&at.to_string())).collect();
    let many = tagging(&fixture, "PUT", "k", &set(&eleven));
    assert_eq!(many.error(), (400, "BadRequest".to_owned()));
    let many = (0..11).map(|at| format!("{at}=")).collect::<Vec<_>>().join("&");
    let many = fixture.client.send(&Call::on("PUT", "k").header("x-amz-tagging", many).body("new"));
    assert_eq!(many.error(), (400, "BadRequest".to_owned()));
    for bad in [[tag("a"), tag("a")].concat(), tag(&"x".repeat(129)), tag(""), tag("a!")] {
        let answer = tagging(&fixture, "PUT", "k", &set(&bad));
        assert_eq!(answer.error(), (400, "InvalidTag".to_owned()), "{bad}");
    }
    for bad in ["a=1&a=2", "a=%FF", "a%", "a=%4", "=1"] {
        let answer = fixture.client.send(&Call::on("PUT", "k").header("x-amz-tagging", bad).body("new"));
        assert_eq!(answer.error(), (400, "InvalidArgument".to_owned()), "{bad}");
        assert_eq!(answer.element("ArgumentName").unwrap(), "x-amz-tagging");
    }
    for (bad, words) in [("a?=1", "The TagKey you"), ("a=1*", "The TagValue you"), ("Aws:a=1", "System tags")]
    {
        let answer = fixture.client.send(&Call::on("PUT", "k").header("x-amz-tagging", bad).body("new"));
        assert_eq!(answer.error(), (400, "InvalidTag".to_owned()), "{bad}");
        assert!(answer.element("Message").unwrap().starts_with(words), "{bad}");
    }
    assert_eq!(fixture.client.send(&Call::on("GET", "k")).ok().text(), "z");
}

/// A header that the gateway cannot read is refused. If the header were ignored, the object would lack its tags.
#[test]
fn headers_that_are_not_ascii_are_refused() {
    let fixture = serve();
    fixture.client.send(&Call::on("PUT", "k").body("z")).ok();
    let source = format!("/{}/k", client::BUCKET);
    let copy = || Call::on("PUT", "new").header("x-amz-copy-source", source.clone());
    let argument = (400, "InvalidArgument".to_owned());
    for call in [
        Call::on("PUT", "new").body("z").header("x-amz-tagging", "a=é"),
        copy().header("x-amz-tagging", "a=é").header("x-amz-tagging-directive", "REPLACE"),
        Call::on("POST", "new").query("uploads").header("x-amz-tagging", "a=é"),
        Call::on("POST", "new").query("uploads").header("x-amz-checksum-algorithm", "é"),
        Call::on("PUT", "new").body("z").header("x-amz-sdk-checksum-algorithm", "CRC32é"),
    ] {
        let answer = fixture.client.send(&call);
        assert_eq!(answer.error(), argument, "{:?}", call.headers);
    }
    let call = Call::on("PUT", "new").body("z").header("content-md5", "é");
    assert_eq!(fixture.client.send(&call).error(), (400, "InvalidDigest".to_owned()));
    assert_eq!(fixture.client.send(&Call::on("HEAD", "new")).status, 404);
}

/// A bucket may be created with tags. An invalid tag prevents the creation.
#[test]
fn buckets_are_created_with_tags() {
    let fixture = serve();
    let create = |tags: &[(&str, &str)]| {
        let tag =
            |(name, value): &(&str, &str)| format!("<Tag><Key>{name}</Key><Value>{value}</Value></Tag>");
        let tags: String = tags.iter().map(tag).collect();
        let region = "<LocationConstraint>us-east-1</LocationConstraint>";
        let body =
            format!("<CreateBucketConfiguration>{region}<Tags>{tags}</Tags></CreateBucketConfiguration>");
        fixture.client.send(&Call::new("PUT", "/tagged-bucket").body(body))
    };
    let names: Vec<_> = (0..51).map(|at| at.to_string()).collect();
    let many: Vec<_> = names.iter().map(|name| (&**name, "")).collect();
    for (bad, code) in [
        (&many[..], "BadRequest"),
        (&[("a", "1"), ("a", "2")], "InvalidTag"),
        (&[("a", "1,2")], "InvalidTag"),
    ] {
        assert_eq!(create(bad).error(), (400, code.to_owned()), "{bad:?}");
        assert_eq!(fixture.client.send(&Call::new("HEAD", "/tagged-bucket")).status, 404);
    }
    assert_eq!(create(&[("b", "1"), ("a", "")]).ok().header("location"), Some("/tagged-bucket"));
    let read = fixture.client.send(&Call::new("GET", "/tagged-bucket").query("tagging")).ok();
    assert_eq!(
        (read.elements("Key"), read.elements("Value")),
        (vec!["b".into(), "a".into()], vec!["1".into(), String::new()])
    );
}

#[test]
fn copies_keep_tags_or_replace_them() {
    let fixture = serve();
    fixture.client.send(&Call::new("PUT", "/plain-bucket")).ok();
    let put = Call::new("PUT", "/plain-bucket/from").header("x-amz-tagging", "x=y").body("z");
    fixture.client.send(&put).ok();
    let copy = |to| Call::on("PUT", to).header("x-amz-copy-source", "/plain-bucket/from");
    // Without the `REPLACE` directive, the `x-amz-tagging` header has no effect.
    fixture.client.send(&copy("kept").header("x-amz-tagging", "n=1")).ok();
    assert_eq!(tags(&fixture, "kept"), owned(&[("x", "y")]));
    let replaced = copy("new").header("x-amz-tagging-directive", "REPLACE").header("x-amz-tagging", "n=1");
    fixture.client.send(&replaced).ok();
    assert_eq!(tags(&fixture, "new"), owned(&[("n", "1")]));
    let start = Call::on("POST", "big").query("uploads").header("x-amz-tagging", "u=1");
    let upload = fixture.client.send(&start).ok().element("UploadId").unwrap();
    let query = format!("partNumber=1&uploadId={upload}");
    let part = fixture.client.send(&Call::on("PUT", "big").query(&query).body("x")).ok();
    let body = format!(
        "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{}</ETag></Part></CompleteMultipartUpload>",
        part.header("etag").unwrap()
    );
    fixture.client.send(&Call::on("POST", "big").query(&format!("uploadId={upload}")).body(body)).ok();
    assert_eq!(tags(&fixture, "big"), owned(&[("u", "1")]));
}
