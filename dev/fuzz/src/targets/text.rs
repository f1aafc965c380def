//! Parsers of header and parameter values.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fordway_store::ByteRange;
use fordway_wire::sigv4::{
    AuthorizationHeader, CanonicalRequest, PresignedRequest, SigningKey, UNSIGNED_PAYLOAD,
};
use fordway_wire::{date, header_text, range, tagging, uri};

/// Parses each line as a value of every header.
pub(super) fn header_values(bytes: &[u8]) {
    for line in String::from_utf8_lossy(bytes).lines() {
        ranges(line);
        dates(line);
        texts(line);
    }
}

fn ranges(text: &str) {
    if let Some(found) = range::parse_range(text) {
        assert_eq!(range::parse_range(&range::format_range(found)), Some(found), "written again");
        for size in [0, 1, 10, u64::MAX] {
            check_resolved(found, size);
        }
    }
    if let Some((found, size)) = range::parse_content_range(text) {
        assert!(found.start < found.end && size.is_none_or(|size| found.end <= size), "{text:?}");
        let mut list = Vec::new();
        range::push_range(&mut list, &found);
        range::push_range(&mut list, &found);
        let half = format!("{}-{}", found.start, found.end - 1);
        assert_eq!(list, format!("{half},{half}").into_bytes());
    }
    let _size = range::parse_unsatisfied_range(text);
}

fn check_resolved(range: ByteRange, size: u64) {
    if let Ok(found) = range.resolve(size) {
        assert!(found.start < found.end && found.end <= size, "{range:?} of {size} bytes is {found:?}");
    }
}

/// Parses a time in each form. A time must not change, to the second, when it is written and parsed again.
fn dates(text: &str) {
    let second = |time: SystemTime| time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs();
    for time in
        [date::parse_http(text), date::parse_iso8601(text), date::parse_amz_date(text)].into_iter().flatten()
    {
        let utc = date::UtcTime::from(time);
        assert_eq!(date::parse_amz_date(&utc.amz_date()).map(second), Some(second(time)), "{text:?}");
        let iso = date::parse_iso8601(&date::format_iso8601(time)).map(second);
        assert_eq!(iso, Some(second(time)), "{text:?}");
        assert_eq!(date::parse_http(&date::format_http(time)).map(second), Some(second(time)), "{text:?}");
        assert!(utc.amz_date().starts_with(&utc.day_stamp()));
    }
}

fn texts(text: &str) {
    assert_eq!(header_text::decode(&header_text::encode(text)), text, "encoded and decoded");
    if let Ok(tags) = tagging::decode(text) {
        assert_eq!(tagging::decode(&tagging::encode(&tags)).ok(), Some(tags), "written again");
    }
    let (mut path, mut query, mut typed) = (String::new(), String::new(), String::new());
    uri::push_path(&mut path, text);
    uri::push_query(&mut query, text);
    uri::push_typed(&mut typed, text);
    assert_eq!(uri::decode(&query).as_deref(), Some(text), "encoded and decoded");
    assert_eq!(uri::decode_segment(&query).as_deref(), Some(text), "encoded and decoded");
    let _listed = uri::decode_listed(text);
    let _canonical = uri::canonical_query([("a", text), (text, "b")]);
    let mut bytes = String::new();
    uri::push_bytes(&mut bytes, text.as_bytes());
    assert!(bytes.is_ascii());
}

/// Parses an `Authorization` header, and signs and verifies a request whose parts are lines of the text.
pub(super) fn sigv4(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let mut lines = text.lines();
    let line = lines.next().unwrap_or_default();
    if let Some(read) = AuthorizationHeader::parse(line) {
        assert!(read.signature.len() == 64 && !read.access_key.contains(['/', ',']), "{line:?}");
    }
    let time = UNIX_EPOCH + Duration::from_secs(u64::from(bytes.len() as u32) * 86_399);
    let key = SigningKey::new(line, time, "us-east-1", "s3");
    assert!(key.is_for(time));
    let value = lines.next().unwrap_or_default();
    let headers = [("host", value), ("x-amz-date", line)];
    let request = CanonicalRequest {
        method: "GET",
        path: value,
        query: line,
        headers: &headers,
        payload_hash: UNSIGNED_PAYLOAD,
    };
    check_signature(&key, time, &request);
    let presigned =
        PresignedRequest { method: "GET", host: "h", path: "/", parameters: &[("a", line), ("b", value)] };
    let token = bytes.len().is_multiple_of(2).then_some(value);
    let query = key.presigned_query("key", token, time, 60, &presigned);
    assert!(query.is_ascii() && !query.contains([' ', '/', '\n']), "{query:?}");
    let _hash = fordway_wire::sigv4::payload_hash(bytes);
}

/// Checks that the server accepts the client's signature of a request, and rejects it for another method.
fn check_signature(key: &SigningKey, time: SystemTime, request: &CanonicalRequest<'_>) {
    let signed = key.authorization("key", time, request);
    let read = AuthorizationHeader::parse(&signed).expect("a header written by this target");
    let stamp = date::UtcTime::from(time).amz_date();
    assert!(key.verifies(read.signature, &stamp, request));
    assert_eq!(key.signature(time, request), read.signature);
    let other = CanonicalRequest { method: "PUT", ..*request };
    assert!(!key.verifies(read.signature, &stamp, &other));
}
