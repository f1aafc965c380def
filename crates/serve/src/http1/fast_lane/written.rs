//! The head of an answer, written as the S3 layer would.

use std::ops::Range;

use fordway_store::ObjectInfo;
use fordway_wire::date::format_http;
use fordway_wire::header_text;
use http::StatusCode;

use crate::http1::outgoing::{put, put_number, start};
use crate::s3::DEFAULT_TYPE;

/// All but the headers of the connection; `None` where a value cannot stand in a header.
pub(super) fn head(
    status: StatusCode,
    info: &ObjectInfo,
    range: &Range<u64>,
    with_checksum: bool,
) -> Option<Vec<u8>> {
    let mut head = common(status, info)?;
    let content_type = info.metadata.content_type.as_deref().unwrap_or(DEFAULT_TYPE);
    put(&mut head, "content-type", checked(content_type)?);
    put_number(&mut head, "content-length", range.end - range.start);
    if status == StatusCode::PARTIAL_CONTENT {
        let text = format!("bytes {}-{}/{}", range.start, range.end.checked_sub(1)?, info.size);
        put(&mut head, "content-range", text.as_bytes());
    }
    if let Some(checksum) = info.checksum.as_ref().filter(|_| with_checksum) {
        let name = format!("x-amz-checksum-{}", checksum.algorithm.name().to_ascii_lowercase());
        put(&mut head, &name, checksum.to_base64().as_bytes());
        put(&mut head, "x-amz-checksum-type", checksum.checksum_type().name().as_bytes());
    }
    Some(head)
}

/// What an answer says of an object whatever part of it follows.
pub(super) fn common(status: StatusCode, info: &ObjectInfo) -> Option<Vec<u8>> {
    let mut head = start(status);
    put(&mut head, "accept-ranges", b"bytes");
    head.extend_from_slice(b"etag: \"");
    head.extend_from_slice(checked(info.etag.as_str())?);
    head.extend_from_slice(b"\"\r\n");
    put(&mut head, "last-modified", format_http(info.modified).as_bytes());
    put_metadata(&mut head, info)?;
    if let Some(parts) = info.part_count {
        put_number(&mut head, "x-amz-mp-parts-count", parts.into());
    }
    if info.tag_count > 0 {
        put_number(&mut head, "x-amz-tagging-count", info.tag_count as u64);
    }
    if let Some(version) = &info.version {
        put(&mut head, "x-amz-version-id", checked(version.as_str())?);
    }
    Some(head)
}

fn put_metadata(head: &mut Vec<u8>, info: &ObjectInfo) -> Option<()> {
    let metadata = &info.metadata;
    for (name, value) in [
        ("cache-control", &metadata.cache_control),
        ("content-disposition", &metadata.content_disposition),
        ("content-encoding", &metadata.content_encoding),
        ("content-language", &metadata.content_language),
        ("expires", &metadata.expires),
    ] {
        if let Some(value) = value {
            put(head, name, checked(value)?);
        }
    }
    for (name, value) in &metadata.user {
        let is_name =
            name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
        put(head, &format!("x-amz-meta-{name}"), checked(&header_text::encode(value))?);
        is_name.then_some(())?;
    }
    Some(())
}

/// What a header can carry as it is. What a POSIX program recorded may be anything.
fn checked(value: &str) -> Option<&[u8]> {
    let is_plain = value.bytes().all(|byte| (b' '..=b'~').contains(&byte)) && value.trim() == value;
    is_plain.then_some(value.as_bytes())
}
