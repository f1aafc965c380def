//! Tests the notification configuration of a bucket over HTTP: which documents are stored, and which are refused.

mod client;

use std::sync::Arc;

use client::{Answer, BUCKET, Call, Fixture, bucket, serve_with};
use fordway_serve::{Webhook, WebhookConfig};
use fordway_store::{BucketDocumentKind, BucketDocumentOperations};

const KIND: BucketDocumentKind = BucketDocumentKind::known("notification");

fn webhook(name: &str) -> Arc<Webhook> {
    let (name, url) = (name.to_owned(), "https://hooks.example.org/".to_owned());
    Webhook::new(WebhookConfig { name, url, ..WebhookConfig::default() }).unwrap()
}

fn fixture() -> Fixture {
    serve_with(|config| config.webhooks = vec![webhook("ci"), webhook("logs")])
}

fn queue(webhook: &str, inner: &str) -> String {
    format!(
        "<QueueConfiguration><Queue>arn:fordway:sqs::{webhook}:webhook</Queue>{inner}</QueueConfiguration>"
    )
}

fn call(path: &str, inner: &str) -> Call<'static> {
    let namespace = "http://s3.amazonaws.com/doc/2006-03-01/";
    let document =
        format!("<NotificationConfiguration xmlns=\"{namespace}\">{inner}</NotificationConfiguration>");
    Call::new("PUT", path).query("notification").body(document)
}

fn put(fixture: &Fixture, inner: &str) -> Answer {
    fixture.client.send(&call(&format!("/{BUCKET}"), inner))
}

fn get(fixture: &Fixture) -> String {
    let call = Call::new("GET", format!("/{BUCKET}")).query("notification");
    fixture.client.send(&call).ok().text()
}

const CREATED: &str = "<Event>s3:ObjectCreated:*</Event>";

#[test]
fn a_configuration_is_stored_until_an_empty_one_removes_it() {
    let fixture = fixture();
    assert!(get(&fixture).contains("<NotificationConfiguration"), "a bucket has an empty one at first");
    assert_eq!(fixture.store.document(&bucket(), &KIND).unwrap(), None);
    let filter =
        "<Filter><S3Key><FilterRule><Name>prefix</Name><Value>in/</Value></FilterRule></S3Key></Filter>";
    let topic = "<TopicConfiguration><Id>t</Id><Topic>arn:fordway:sns::logs:webhook</Topic>\
                 <Event>s3:ObjectRemoved:*</Event></TopicConfiguration>";
    put(&fixture, &(queue("ci", &format!("<Id>q</Id>{CREATED}{filter}")) + topic)).ok();
    let found = get(&fixture);
    for part in ["<Id>q</Id>", "<Value>in/</Value>", "arn:fordway:sns::logs:webhook", "s3:ObjectRemoved:*"] {
        assert!(found.contains(part), "{part} is not in {found}");
    }
    assert!(found.contains("xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\""), "{found}");
    put(&fixture, "").ok();
    assert_eq!(fixture.store.document(&bucket(), &KIND).unwrap(), None);
    assert!(!get(&fixture).contains("QueueConfiguration"));
}

#[test]
fn other_configurations_are_refused_and_change_nothing() {
    let fixture = fixture();
    put(&fixture, &queue("ci", CREATED)).ok();
    let before = get(&fixture);
    let lambda = "<CloudFunctionConfiguration><CloudFunction>arn:aws:lambda:::f</CloudFunction>\
                  <Event>s3:ObjectCreated:*</Event></CloudFunctionConfiguration>";
    for (inner, status, code, word) in [
        (queue("other", CREATED), 400, "InvalidArgument", "names no webhook of this gateway"),
        (queue("ci", CREATED) + &queue("logs", CREATED), 400, "InvalidArgument", "overlap"),
        (queue("ci", "<Event>s3:ObjectEaten:*</Event>"), 400, "InvalidArgument", "s3:ObjectEaten:*"),
        (queue("ci", "<Event>s3:Replication:*</Event>"), 501, "NotImplemented", "s3:Replication:*"),
        (queue("ci", ""), 400, "MalformedXML", "Event"),
        (lambda.to_owned(), 501, "NotImplemented", "CloudFunctionConfiguration"),
        ("<EventBridgeConfiguration/>".to_owned(), 501, "NotImplemented", "EventBridgeConfiguration"),
    ] {
        let answer = put(&fixture, &inner);
        assert_eq!(answer.error(), (status, code.to_owned()), "{inner}: {}", answer.text());
        assert!(answer.text().contains(word), "{inner}: {}", answer.text());
    }
    assert_eq!(get(&fixture), before);
    let missing = fixture.client.send(&call("/missing-bucket", &queue("other", CREATED)));
    assert_eq!(missing.error(), (404, "NoSuchBucket".to_owned()));
}

#[test]
fn a_client_may_name_webhooks_of_other_gateways() {
    let fixture = fixture();
    let inner = queue("other", CREATED);
    let skip = call(&format!("/{BUCKET}"), &inner).header("x-amz-skip-destination-validation", "true");
    fixture.client.send(&skip).ok();
    assert!(get(&fixture).contains("arn:fordway:sqs::other:webhook"));
    let bad = call(&format!("/{BUCKET}"), &queue("ci", "<Event>x</Event>"))
        .header("x-amz-skip-destination-validation", "true");
    assert_eq!(fixture.client.send(&bad).error(), (400, "InvalidArgument".to_owned()));
}
