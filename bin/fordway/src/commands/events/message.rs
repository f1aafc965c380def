//! The document that a webhook receives, in the format of S3's event messages (version 2.1).

use std::time::{Duration, UNIX_EPOCH};

use fordway_posix::StoredEvent;
use fordway_sys::user_name;
use fordway_wire::date::format_iso8601;
use serde_json::{Map, Value, json};

/// Returns the document for `events` of one bucket, whose owner has the user ID `owner`.
pub(super) fn message(events: &[StoredEvent], owner: u32, region: &str) -> Vec<u8> {
    let owner = principal(owner);
    let records: Vec<Value> = events.iter().map(|event| record(event, &owner, region)).collect();
    json!({ "Records": records }).to_string().into_bytes()
}

fn record(event: &StoredEvent, owner: &str, region: &str) -> Value {
    let change = &event.record;
    json!({
        "eventVersion": "2.1",
        "eventSource": "aws:s3",
        "awsRegion": region,
        "eventTime": format_iso8601(UNIX_EPOCH + Duration::from_nanos(change.time_ns)),
        "eventName": change.kind.name(),
        "userIdentity": { "principalId": principal(event.writer) },
        // The journal does not contain the client's address.
        "requestParameters": { "sourceIPAddress": "" },
        "responseElements": { "x-amz-request-id": event.name, "x-amz-id-2": "" },
        "s3": {
            "s3SchemaVersion": "1.0",
            "configurationId": event.rule,
            "bucket": {
                "name": change.bucket,
                "ownerIdentity": { "principalId": owner },
                "arn": format!("arn:aws:s3:::{}", change.bucket),
            },
            "object": object(event),
        },
    })
}

fn object(event: &StoredEvent) -> Map<String, Value> {
    let change = &event.record;
    let mut object = Map::new();
    object.insert("key".to_owned(), encoded(&change.key).into());
    if let Some(size) = change.size {
        object.insert("size".to_owned(), size.into());
    }
    if let Some(etag) = &change.etag {
        object.insert("eTag".to_owned(), etag.as_str().into());
    }
    if let Some(version) = &change.version {
        object.insert("versionId".to_owned(), version.as_str().into());
    }
    object.insert("sequencer".to_owned(), format!("{:016X}", change.time_ns).into());
    object
}

/// Returns the name of a user, or the user ID if the system has no name for it.
fn principal(user: u32) -> String {
    user_name(user).unwrap_or_else(|| user.to_string())
}

/// Encodes a key as S3 does in events: percent-encoded as in a form, where a space becomes `+`, but slashes are
/// unchanged.
fn encoded(key: &str) -> String {
    let mut encoded = String::with_capacity(key.len());
    for byte in key.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'*' | b'/' => {
                encoded.push(char::from(byte));
            }
            b' ' => encoded.push('+'),
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use fordway_wire::event_record::EventRecord;
    use fordway_wire::notification::EventKind;

    use super::*;

    #[test]
    fn a_message_has_the_form_that_consumers_read() {
        let record = EventRecord {
            bucket: "results".to_owned(),
            kind: EventKind::Put,
            key: "in/ä b+\"<.root".to_owned(),
            time_ns: 1_764_406_000_123_456_789,
            size: Some(5),
            etag: Some("5d41".to_owned()),
            version: None,
        };
        let event = StoredEvent { name: "n".to_owned(), record, rule: "r".to_owned(), writer: 0 };
        let read: Value = serde_json::from_slice(&message(&[event], 4_294_967_290, "eu-1")).unwrap();
        let found = &read["Records"][0];
        assert_eq!(found["eventName"], "ObjectCreated:Put");
        assert_eq!(found["eventTime"], "2025-11-29T08:46:40.123Z");
        assert_eq!(found["awsRegion"], "eu-1");
        assert_eq!(found["userIdentity"]["principalId"], "root");
        assert_eq!(found["s3"]["configurationId"], "r");
        assert_eq!(found["s3"]["bucket"]["ownerIdentity"]["principalId"], "4294967290");
        assert_eq!(
            found["s3"]["object"],
            json!({ "key": "in/%C3%A4+b%2B%22%3C.root", "size": 5, "eTag": "5d41", "sequencer": "187C6DE8ACED2D15" })
        );
    }
}
