//! What an answer says of an object whatever part of it follows, where we write it ourselves.

use fordway_store::ObjectInfo;
use fordway_wire::date::format_http;
use fordway_wire::header_text;

/// Hands each header to `put`, of which user metadata may be no headers; `None` where `put` says
/// so.
pub(crate) fn describe(info: &ObjectInfo, put: &mut impl FnMut(&str, &[u8]) -> Option<()>) -> Option<()> {
    put("accept-ranges", b"bytes")?;
    put("etag", format!("\"{}\"", info.etag).as_bytes())?;
    put("last-modified", format_http(info.modified).as_bytes())?;
    describe_metadata(info, put)?;
    if let Some(parts) = info.part_count {
        put("x-amz-mp-parts-count", parts.to_string().as_bytes())?;
    }
    if info.tag_count > 0 {
        put("x-amz-tagging-count", info.tag_count.to_string().as_bytes())?;
    }
    if let Some(version) = &info.version {
        put("x-amz-version-id", version.as_str().as_bytes())?;
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
            put(name, value.as_bytes())?;
        }
    }
    for (name, value) in &metadata.user {
        put(&format!("x-amz-meta-{name}"), header_text::encode(value).as_bytes())?;
    }
    Some(())
}

/// Whether name and value are such as nobody reads in two ways. What a POSIX program recorded may be
/// anything.
pub(crate) fn is_plain(name: &str, value: &[u8]) -> bool {
    let is_name = name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
    is_name && value.iter().all(|byte| (b' '..=b'~').contains(byte)) && value.trim_ascii() == value
}
