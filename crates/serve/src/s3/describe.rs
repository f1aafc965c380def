//! What an answer says of an object whatever part of it follows, where we write it ourselves.

use fordway_store::ObjectInfo;
use fordway_wire::date::format_http;
use fordway_wire::header_text;

/// Hands each header to `put`, names in lower case; `None` where a value cannot stand in a header, or
/// `put` says so.
pub(crate) fn describe(info: &ObjectInfo, put: &mut impl FnMut(&str, &[u8]) -> Option<()>) -> Option<()> {
    put("accept-ranges", b"bytes")?;
    put("etag", format!("\"{}\"", printable(info.etag.as_str())?).as_bytes())?;
    put("last-modified", format_http(info.modified).as_bytes())?;
    describe_metadata(info, put)?;
    if let Some(parts) = info.part_count {
        put("x-amz-mp-parts-count", parts.to_string().as_bytes())?;
    }
    if info.tag_count > 0 {
        put("x-amz-tagging-count", info.tag_count.to_string().as_bytes())?;
    }
    if let Some(version) = &info.version {
        put("x-amz-version-id", printable(version.as_str())?.as_bytes())?;
    }
    Some(())
}

fn describe_metadata(info: &ObjectInfo, put: &mut impl FnMut(&str, &[u8]) -> Option<()>) -> Option<()> {
    let metadata = &info.metadata;
    for (name, value) in [
        ("cache-control", &metadata.cache_control),
        ("content-disposition", &metadata.content_disposition),
        ("content-encoding", &metadata.content_encoding),
        ("content-language", &metadata.content_language),
        ("expires", &metadata.expires),
    ] {
        if let Some(value) = value {
            put(name, printable(value)?.as_bytes())?;
        }
    }
    for (name, value) in &metadata.user {
        let is_name =
            name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
        is_name.then_some(())?;
        put(&format!("x-amz-meta-{name}"), printable(&header_text::encode(value))?.as_bytes())?;
    }
    Some(())
}

/// What a header can carry as it is. What a POSIX program recorded may be anything.
pub(crate) fn printable(value: &str) -> Option<&str> {
    let is_plain = value.bytes().all(|byte| (b' '..=b'~').contains(&byte)) && value.trim() == value;
    is_plain.then_some(value)
}
