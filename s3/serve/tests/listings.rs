//! Tests buckets, listings and multipart uploads over HTTP.

mod client;

use client::{BUCKET, Call, Fixture, bucket, key, serve};
use fordway_store::{Bucket, MIN_PART_BYTES, Objects, PutOptions};

fn with_keys(keys: &[&str]) -> Fixture {
    let fixture = serve();
    for name in keys {
        fixture.store.put(&bucket(), &key(name), b"x", &PutOptions::default()).unwrap();
    }
    fixture
}

fn list(fixture: &Fixture, query: &str) -> client::Answer {
    fixture.client.send(&Call::new("GET", format!("/{BUCKET}")).query(query))
}

#[test]
fn pages_of_the_new_form() {
    let fixture = with_keys(&["a", "b/1", "b/2", "c", "d/1", "e"]);
    let first = list(&fixture, "list-type=2&delimiter=%2F&max-keys=2").ok();
    assert_eq!(first.elements("Key"), ["a"]);
    assert_eq!(first.element("CommonPrefixes").unwrap(), "<Prefix>b/</Prefix>");
    assert_eq!(first.element("KeyCount").unwrap(), "2");
    assert_eq!(first.element("IsTruncated").unwrap(), "true");
    assert_eq!(first.element("Owner"), None);
    let token = first.element("NextContinuationToken").unwrap();
    let query = format!("list-type=2&delimiter=%2F&continuation-token={token}&fetch-owner=true");
    let second = list(&fixture, &query).ok();
    assert_eq!(second.elements("Key"), ["c", "e"]);
    assert_eq!(second.element("IsTruncated").unwrap(), "false");
    assert!(second.element("Owner").is_some());

    let after = list(&fixture, "list-type=2&start-after=b%2F2").ok();
    assert_eq!(after.elements("Key"), ["c", "d/1", "e"]);
    assert_eq!(list(&fixture, "list-type=2&prefix=b%2F").ok().elements("Key"), ["b/1", "b/2"]);
    let none = list(&fixture, "list-type=2&max-keys=0").ok();
    assert_eq!((none.elements("Key").len(), none.element("IsTruncated").unwrap()), (0, "false".to_owned()));
}

#[test]
fn pages_of_the_old_form() {
    let fixture = with_keys(&["a", "b/1", "b/2", "c"]);
    let first = list(&fixture, "delimiter=%2F&max-keys=2").ok();
    assert_eq!(first.elements("Key"), ["a"]);
    assert_eq!(first.element("NextMarker").unwrap(), "b/");
    let second = list(&fixture, "delimiter=%2F&marker=b%2F").ok();
    assert_eq!(second.elements("Key"), ["c"]);
}

#[test]
fn pages_of_buckets() {
    let fixture = serve();
    let names = ["data-1", "data-2", "data-3", "other"];
    names.iter().for_each(|name| fixture.store.create_bucket(&Bucket::new(*name).unwrap()).unwrap());
    let list = |query: &str| fixture.client.send(&Call::new("GET", "/").query(query)).ok();
    let first = list("max-buckets=2&prefix=data-");
    assert_eq!(first.elements("Name"), ["data-1", "data-2"]);
    let token = first.element("ContinuationToken").unwrap();
    let second = list(&format!("max-buckets=2&prefix=data-&continuation-token={token}"));
    assert_eq!(
        (second.elements("Name"), second.element("ContinuationToken")),
        (vec!["data-3".to_owned()], None)
    );
    let whole = list("max-buckets=3&prefix=data-");
    assert_eq!((whole.elements("Name").len(), whole.element("ContinuationToken")), (3, None));
    assert_eq!(list("").elements("Name").len(), names.len() + 1);
}

#[test]
fn names_are_encoded_when_asked() {
    let fixture = with_keys(&["a b+\u{1}/ü"]);
    let answer = list(&fixture, "list-type=2&encoding-type=url").ok();
    assert_eq!(answer.elements("Key"), ["a%20b%2B%01/%C3%BC"]);
    assert_eq!(answer.element("EncodingType").unwrap(), "url");
}

#[test]
fn what_cannot_be_listed() {
    let fixture = serve();
    let code = |query| list(&fixture, query).error();
    assert_eq!(code("list-type=2&continuation-token=%21"), (400, "InvalidArgument".to_owned()));
    assert_eq!(code("list-type=2&max-keys=-1"), (400, "InvalidArgument".to_owned()));
    let elsewhere = fixture.client.send(&Call::new("GET", "/nowhere").query("list-type=2"));
    assert_eq!(elsewhere.error(), (404, "NoSuchBucket".to_owned()));
}

#[test]
fn buckets_come_and_go() {
    let fixture = serve();
    let send =
        |method, path: &str, query: &'static str| fixture.client.send(&Call::new(method, path).query(query));
    send("PUT", "/new-bucket", "").ok();
    assert_eq!(send("PUT", "/new-bucket", "").error(), (409, "BucketAlreadyOwnedByYou".to_owned()));
    assert_eq!(send("PUT", "/-bad", "").error(), (400, "InvalidBucketName".to_owned()));
    // A directory whose name is not allowed for a new bucket can be a bucket.
    assert_eq!(send("PUT", "/my_data", "").error(), (400, "InvalidBucketName".to_owned()));
    let existing = Bucket::new("my_data").unwrap();
    fixture.store.create_bucket(&existing).unwrap();
    assert_eq!(send("PUT", "/my_data", "").error(), (409, "BucketAlreadyOwnedByYou".to_owned()));
    fixture.store.delete_bucket(&existing).unwrap();
    assert_eq!(send("GET", "/", "").ok().elements("Name"), [BUCKET, "new-bucket"]);
    assert_eq!(send("HEAD", "/new-bucket", "").ok().header("x-amz-bucket-region"), Some("us-east-1"));
    send("PUT", "/new-bucket/k", "").ok();
    assert_eq!(send("DELETE", "/new-bucket", "").error(), (409, "BucketNotEmpty".to_owned()));
    send("DELETE", "/new-bucket/k", "").ok();
    send("DELETE", "/new-bucket", "").ok();
    assert_eq!(send("HEAD", "/new-bucket", "").status, 404);
}

#[test]
fn what_clients_ask_in_passing() {
    let fixture = serve();
    fixture.client.send(&Call::on("PUT", "k")).ok();
    assert!(list(&fixture, "location").ok().text().contains("LocationConstraint"));
    assert_eq!(list(&fixture, "versioning").ok().element("Status"), None);
    assert_eq!(list(&fixture, "acl").ok().element("Permission").unwrap(), "FULL_CONTROL");
    assert_eq!(list(&fixture, "policy").error(), (404, "NoSuchBucketPolicy".to_owned()));
    let none = "ServerSideEncryptionConfigurationNotFoundError";
    assert_eq!(list(&fixture, "encryption").error(), (404, none.to_owned()));
    let delete = |path: &str| fixture.client.send(&Call::new("DELETE", path).query("policy"));
    assert_eq!(delete(&format!("/{BUCKET}")).status, 204);
    assert_eq!(delete("/nowhere").error(), (404, "NoSuchBucket".to_owned()));
    assert_eq!(list(&fixture, "lifecycle").error(), (404, "NoSuchLifecycleConfiguration".to_owned()));
    assert_eq!(list(&fixture, "cors").error(), (404, "NoSuchCORSConfiguration".to_owned()));
    assert_eq!(list(&fixture, "website").error(), (404, "NoSuchWebsiteConfiguration".to_owned()));
    assert_eq!(list(&fixture, "requestPayment").error(), (501, "NotImplemented".to_owned()));
    let tags = fixture.client.send(&Call::on("GET", "k").query("tagging")).ok();
    assert_eq!(tags.element("Tag"), None);
    assert_eq!(fixture.client.send(&Call::on("GET", "none").query("tagging")).status, 404);
}

fn start(fixture: &Fixture) -> String {
    let call = Call::on("POST", "big").query("uploads").header("x-amz-meta-m", "1");
    fixture.client.send(&call).ok().element("UploadId").unwrap()
}

fn complete(fixture: &Fixture, upload: &str, parts: &[(u16, &str)]) -> client::Answer {
    let parts: String = parts
        .iter()
        .map(|(n, tag)| format!("<Part><PartNumber>{n}</PartNumber><ETag>{tag}</ETag></Part>"))
        .collect();
    let body = format!("<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>");
    fixture.client.send(&Call::on("POST", "big").query(&format!("uploadId={upload}")).body(body))
}

#[test]
fn a_multipart_upload() {
    let fixture = serve();
    let upload = start(&fixture);
    let part = vec![7u8; MIN_PART_BYTES as usize];
    let query = |number| format!("partNumber={number}&uploadId={upload}");
    let put = |number, body: &[u8]| {
        let answer = fixture.client.send(&Call::on("PUT", "big").query(&query(number)).body(body)).ok();
        answer.header("etag").unwrap().to_owned()
    };
    let (first, last) = (put(1, &part), put(3, b"tail"));
    fixture.client.send(&Call::new("PUT", "/source")).ok();
    fixture.client.send(&Call::new("PUT", "/source/k").body(vec![8u8; part.len() + 1])).ok();
    let copy = Call::on("PUT", "big")
        .query("")
        .header("x-amz-copy-source", "/source/k")
        .header("x-amz-copy-source-range", format!("bytes=1-{}", part.len()));
    let copied = fixture.client.send(&Call { query: &query(2), ..copy }).ok();
    let middle = copied.element("ETag").unwrap().replace("&quot;", "\"");

    let listed = fixture.client.send(&Call::on("GET", "big").query(&format!("uploadId={upload}"))).ok();
    assert_eq!(listed.elements("PartNumber"), ["1", "2", "3"]);
    let beyond = format!("partNumber=2&uploadId={upload}");
    let beyond = Call::on("PUT", "big")
        .query(&beyond)
        .header("x-amz-copy-source", "/source/k")
        .header("x-amz-copy-source-range", format!("bytes=2-{}", part.len() + 1));
    let answer = fixture.client.send(&beyond);
    assert_eq!(answer.error(), (400, "InvalidArgument".to_owned()));
    assert!(answer.element("Message").unwrap().starts_with("Range specified is not valid for source object"));
    let uploads = list(&fixture, "uploads").ok();
    assert_eq!(
        (uploads.elements("Key"), uploads.elements("UploadId")),
        (vec!["big".to_owned()], vec![upload.clone()])
    );

    assert_eq!(
        complete(&fixture, &upload, &[(1, &first), (4, &last)]).error(),
        (400, "InvalidPart".to_owned())
    );
    assert_eq!(
        complete(&fixture, &upload, &[(3, &last), (1, &first)]).error(),
        (400, "InvalidPartOrder".to_owned())
    );
    assert_eq!(complete(&fixture, &upload, &[(3, &last), (3, &last)]).error().0, 400);
    let done = complete(&fixture, &upload, &[(1, &first), (2, &middle), (3, &last)]).ok();
    assert!(done.element("ETag").unwrap().contains("-3"));
    let whole = fixture.client.send(&Call::on("GET", "big")).ok();
    assert!(whole.body == [part, vec![8u8; MIN_PART_BYTES as usize], b"tail".to_vec()].concat());
    assert_eq!(whole.header("x-amz-meta-m"), Some("1"));
    assert_eq!(complete(&fixture, &upload, &[(1, &first)]).error(), (404, "NoSuchUpload".to_owned()));
}

#[test]
fn an_aborted_upload_is_gone() {
    let fixture = serve();
    let upload = start(&fixture);
    let query = format!("uploadId={upload}");
    let abort = || fixture.client.send(&Call::on("DELETE", "big").query(&query));
    assert_eq!(abort().status, 204);
    assert_eq!(abort().error(), (404, "NoSuchUpload".to_owned()));
    let late = format!("partNumber=1&{query}");
    assert_eq!(fixture.client.send(&Call::on("PUT", "big").query(&late)).error().0, 404);
    let bad = start(&fixture);
    let zero = format!("partNumber=0&uploadId={bad}");
    assert_eq!(
        fixture.client.send(&Call::on("PUT", "big").query(&zero)).error(),
        (400, "InvalidArgument".to_owned())
    );
}
