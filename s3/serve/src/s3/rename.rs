//! RenameObject: changes the key of an object within its bucket.

use fordway_store::{Error, ErrorKind, Key, RenameOptions, Store};
use http::{HeaderMap, HeaderName};
use percent_encoding::percent_decode_str;
use s3s::{Body, S3Response};

use crate::s3::convert::{CONDITIONS, conditions_in, is_encoded, names};
use crate::s3::error::{OperationResult, S3Failure};

const SOURCE: HeaderName = HeaderName::from_static("x-amz-rename-source");

/// The headers for conditions on the object to rename.
const SOURCE_CONDITIONS: [HeaderName; 4] = [
    HeaderName::from_static("x-amz-rename-source-if-match"),
    HeaderName::from_static("x-amz-rename-source-if-none-match"),
    HeaderName::from_static("x-amz-rename-source-if-modified-since"),
    HeaderName::from_static("x-amz-rename-source-if-unmodified-since"),
];

/// Renames an object. A repeated request with the same `x-amz-client-token` finds no source, because the gateway does
/// not store client tokens.
pub(super) fn rename(
    store: &dyn Store,
    (bucket, key): &(String, String),
    headers: &HeaderMap,
) -> OperationResult<S3Response<Body>> {
    let (bucket, to) = names(bucket, key)?;
    let from = rename_source(bucket.as_str(), headers)?;
    let options = RenameOptions {
        source_conditions: conditions_in(headers, &SOURCE_CONDITIONS)?,
        conditions: conditions_in(headers, &CONDITIONS)?,
    };
    store.rename(&bucket, &from, &to, &options)?;
    Ok(S3Response::new(Body::empty()))
}

/// Reads the key of the object to rename from the request's header. The header contains `KEY`, or `/BUCKET/KEY` with
/// the bucket of the request, percent-encoded. Errors: `InvalidArgument`; `NotImplemented` for another bucket.
pub(crate) fn rename_source(bucket: &str, headers: &HeaderMap) -> OperationResult<Key> {
    let text = headers.get(SOURCE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let invalid = || S3Failure::argument("Invalid rename source", SOURCE.as_str(), text);
    let decoded = percent_decode_str(text).decode_utf8().ok().filter(|_| is_encoded(text));
    let path = decoded.ok_or_else(invalid)?;
    let key = match path.strip_prefix('/').map(|path| path.split_once('/').unwrap_or((path, ""))) {
        None => &*path,
        Some((named, key)) if named == bucket => key,
        Some(_) => {
            let detail = "an object can only be renamed within its bucket; copy it, then delete it";
            return Err(Error::new(ErrorKind::NotImplemented, detail).into());
        }
    };
    Key::new(key).map_err(|_| invalid())
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn a_source_is_a_key_of_the_bucket() {
        let read = |text: &'static str| {
            let headers = HeaderMap::from_iter([(SOURCE, HeaderValue::from_static(text))]);
            rename_source("bucket", &headers).map(|key| key.as_str().to_owned()).map_err(|failure| failure.0)
        };
        for (text, key) in [("a/b", "a/b"), ("/bucket/a%20b", "a b"), ("bucket/a", "bucket/a")] {
            assert_eq!(read(text).unwrap(), key);
        }
        for (text, code) in [
            ("", "InvalidArgument"),
            ("/bucket", "InvalidArgument"),
            ("/bucket/", "InvalidArgument"),
            ("a%2", "InvalidArgument"),
            ("/other/a", "NotImplemented"),
        ] {
            assert_eq!(read(text).unwrap_err().code().as_str(), code, "{text}");
        }
    }
}
