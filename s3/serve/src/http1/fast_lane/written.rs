//! The head of an answer, written as the S3 layer would.

use std::ops::Range;

use fordway_store::ObjectInfo;
use http::StatusCode;

use crate::http1::outgoing::{put, put_number, start};
use crate::s3::{DEFAULT_TYPE, describe, is_plain};

/// All but the headers of the connection; `None` where a value cannot stand in a header.
pub(super) fn head(
    status: StatusCode,
    info: &ObjectInfo,
    range: &Range<u64>,
    with_checksum: bool,
) -> Option<Vec<u8>> {
    let mut head = start(status);
    describe(info, &mut |name, value| is_plain(name, value).then(|| put(&mut head, name, value)))?;
    let content_type = info.metadata.content_type.as_deref().unwrap_or(DEFAULT_TYPE);
    is_plain("content-type", content_type.as_bytes()).then_some(())?;
    put(&mut head, "content-type", content_type.as_bytes());
    put_number(&mut head, "content-length", range.end - range.start);
    if status == StatusCode::PARTIAL_CONTENT {
        let text = format!("bytes {}-{}/{}", range.start, range.end.checked_sub(1)?, info.size);
        put(&mut head, "content-range", text.as_bytes());
    }
    if let Some(checksum) = info.checksum.as_ref().filter(|_| with_checksum) {
        put(&mut head, checksum.algorithm.header(), checksum.to_base64().as_bytes());
        put(&mut head, "x-amz-checksum-type", checksum.checksum_type().name().as_bytes());
    }
    Some(head)
}
