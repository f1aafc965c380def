//! Copies from buckets whose names Amazon does not give. The S3 layer refuses them while it reads the
//! request, so such a request takes a way around that: it goes through the layer again, as one whose
//! sender is known, with a name that the layer takes and the true one beside it.

use fordway_store::Bucket;
use http::{Extensions, HeaderMap, HeaderName, HeaderValue, Method, Request, Uri};
use percent_encoding::percent_decode_str;
use s3s::path::check_bucket_name;
use s3s::service::S3Service;
use s3s::{Body, S3Request, S3Response, S3Result};

use super::error::{Failure, Outcome};
use crate::unsigned::unsigned;

const COPY_SOURCE: HeaderName = HeaderName::from_static("x-amz-copy-source");
/// The name that stands for the true one; no bucket is looked for by it.
const STAND_IN: &str = "another-name";

/// The true name of the bucket that a copy reads from.
#[derive(Clone)]
pub(super) struct SourceBucket(Bucket);

impl SourceBucket {
    /// The bucket that a copy reads from, which the S3 layer knows as `name`. Errors: `InvalidBucketName`.
    pub(super) fn of(extensions: &Extensions, name: &str) -> Outcome<Bucket> {
        match extensions.get::<SourceBucket>() {
            Some(SourceBucket(bucket)) => Ok(bucket.clone()),
            None => Ok(Bucket::new(name)?),
        }
    }
}

/// Whether the request is a copy from a bucket that the S3 layer would refuse and the store knows.
pub(super) fn is_from_other_name(method: &Method, headers: &HeaderMap) -> bool {
    method == Method::PUT
        && taken_apart(headers).is_some_and(|(bucket, _)| !check_bucket_name(bucket.as_str()))
}

/// What `service`, which needs no signature, answers to a copy from such a bucket.
pub(super) async fn copy(service: &S3Service, request: S3Request<Body>) -> S3Result<S3Response<Body>> {
    let S3Request { input, method, uri, mut headers, mut extensions, .. } = request;
    if let Some((bucket, rest)) = taken_apart(&headers)
        && let Ok(source) = HeaderValue::try_from(format!("/{STAND_IN}/{rest}"))
    {
        headers.insert(COPY_SOURCE, source);
        extensions.insert(SourceBucket(bucket));
    }
    let request = unsigned(assembled((method, uri, headers, extensions), input));
    let answer = service.call(request).await.map_err(|error| Failure::from(unanswered(&error)).0)?;
    let (parts, body) = answer.into_parts();
    let mut response = S3Response::new(body);
    (response.status, response.headers) = (Some(parts.status), parts.headers);
    Ok(response)
}

fn unanswered(error: &impl std::fmt::Debug) -> fordway_store::Error {
    fordway_store::Error::new(fordway_store::ErrorKind::Internal, format!("a copy got no answer: {error:?}"))
}

fn assembled(
    (method, uri, headers, extensions): (Method, Uri, HeaderMap, Extensions),
    body: Body,
) -> Request<Body> {
    let mut request = Request::new(body);
    (*request.method_mut(), *request.uri_mut()) = (method, uri);
    (*request.headers_mut(), *request.extensions_mut()) = (headers, extensions);
    request
}

/// The bucket that is copied from, and what is behind its name, as the header has it.
fn taken_apart(headers: &HeaderMap) -> Option<(Bucket, String)> {
    let source = headers.get(COPY_SOURCE)?.to_str().ok()?;
    let slashes = ["/", "%2F", "%2f"];
    let source = slashes.iter().find_map(|slash| source.strip_prefix(slash)).unwrap_or(source);
    let found = slashes.iter().filter_map(|slash| Some((source.find(slash)?, slash.len())));
    let (end, slash_bytes) = found.min()?;
    let bucket = percent_decode_str(&source[..end]).decode_utf8().ok()?;
    Some((Bucket::new(bucket).ok()?, source[end + slash_bytes..].to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_from_what_is_behind_them() {
        let apart = |source: &str| {
            let headers = HeaderMap::from_iter([(COPY_SOURCE, HeaderValue::from_str(source).unwrap())]);
            taken_apart(&headers).map(|(bucket, rest)| format!("{bucket} {rest}"))
        };
        for (source, expected) in [
            ("/Big/a%2Fb?versionId=1", Some("Big a%2Fb?versionId=1")),
            ("my_data/a", Some("my_data a")),
            ("%2Fab%2fa/b", Some("ab a/b")),
            ("B%69g/a", Some("Big a")),
            ("arn:aws:s3:region:1:accesspoint/x/object/k", None),
            ("Big", None),
            ("%ff/a", None),
        ] {
            assert_eq!(apart(source).as_deref(), expected, "{source}");
        }
    }
}
