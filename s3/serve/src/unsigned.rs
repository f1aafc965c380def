//! The client of a connection, and requests from clients that the kernel has identified. Signatures of such requests
//! have no meaning, so this module removes them, and decodes `aws-chunked` bodies.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use http::header::{AUTHORIZATION, CONTENT_LENGTH, HeaderName, HeaderValue};
use http::uri::PathAndQuery;
use http::{Request, Uri};
use serde::{Serialize, Serializer};

use crate::aws_chunked::{
    CONTENT_SHA256, DECODED_LENGTH, TrailerFields, decoded, decoded_length, is_in_chunks, states_chunks,
};
use crate::tls::TlsVersion;
use crate::users::User;

/// Headers that have no meaning without a signature.
const SIGNATURE_HEADERS: [HeaderName; 5] = [
    AUTHORIZATION,
    CONTENT_SHA256,
    DECODED_LENGTH,
    HeaderName::from_static("x-amz-date"),
    HeaderName::from_static("x-amz-security-token"),
];
/// Parameters of a presigned URL, of signature versions 4 and 2.
const SIGNATURE_PARAMETERS: [&str; 11] = [
    "X-Amz-Algorithm",
    "X-Amz-Content-Sha256",
    "X-Amz-Credential",
    "X-Amz-Date",
    "X-Amz-Expires",
    "X-Amz-Security-Token",
    "X-Amz-Signature",
    "X-Amz-SignedHeaders",
    "AWSAccessKeyId",
    "Expires",
    "Signature",
];

/// Returns the request without its signature. The signature, its date and the SHA-256 of the body are not checked.
/// Checksums are still checked.
pub(crate) fn unsigned(request: Request<s3s::Body>) -> Request<s3s::Body> {
    let (mut parts, mut body) = request.into_parts();
    parts.uri = without_signature(parts.uri);
    let headers = &mut parts.headers;
    // A hash in the head has no meaning either, so it does not contradict the other headers.
    if is_in_chunks(headers) || states_chunks(headers) {
        let (length, trailers) = (decoded_length(headers), TrailerFields::default());
        body = decoded(body, length, trailers.clone());
        parts.extensions.insert(trailers);
        match length {
            Some(length) => headers.insert(CONTENT_LENGTH, HeaderValue::from(length)),
            None => headers.remove(CONTENT_LENGTH),
        };
    }
    for name in SIGNATURE_HEADERS {
        headers.remove(name);
    }
    Request::from_parts(parts, body)
}

/// Returns whether `name` is a parameter of presigned URLs.
pub(crate) fn is_of_signature(name: &str) -> bool {
    SIGNATURE_PARAMETERS.contains(&name)
}

fn without_signature(uri: Uri) -> Uri {
    with_parameters(uri, |pair| !is_of_signature(pair.split('=').next().unwrap_or_default()))
}

/// Returns the URI with only those parameters of its query for which `is_kept` returns true. `is_kept` gets a parameter
/// with its value, both still encoded.
pub(crate) fn with_parameters(uri: Uri, is_kept: impl Fn(&str) -> bool) -> Uri {
    let query = uri.query().unwrap_or_default();
    if query.split('&').all(&is_kept) {
        return uri;
    }
    let kept: Vec<&str> = query.split('&').filter(|pair| is_kept(pair)).collect();
    let target = match kept.is_empty() {
        true => uri.path().to_owned(),
        false => format!("{}?{}", uri.path(), kept.join("&")),
    };
    let mut parts = uri.into_parts();
    // The conversion always succeeds, because the new target is part of a valid target.
    parts.path_and_query = PathAndQuery::try_from(target).ok();
    Uri::from_parts(parts).unwrap_or_default()
}

/// The client of a connection.
#[derive(Clone)]
pub(crate) enum ConnectionPeer {
    /// A client at a remote address. Its requests must be signed.
    Remote {
        address: SocketAddr,
        /// The version of TLS; `None` for a connection that is not encrypted.
        tls: Option<TlsVersion>,
    },
    /// A program on this machine, whose user the kernel has identified. The signatures of its requests have no meaning.
    Unix(Arc<User>),
}

impl fmt::Display for ConnectionPeer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConnectionPeer::Remote { address, .. } => address.fmt(f),
            ConnectionPeer::Unix(user) => f.write_str(&user.name),
        }
    }
}

impl Serialize for ConnectionPeer {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_of_the_signature_leaves_the_query() {
        let stripped = |text: &str| without_signature(text.parse().unwrap()).to_string();
        assert_eq!(
            stripped("/b/k?X-Amz-Signature=1&partNumber=2&X-Amz-Date=3&uploadId=x"),
            "/b/k?partNumber=2&uploadId=x"
        );
        assert_eq!(stripped("/b/k?AWSAccessKeyId=a&Signature=b&Expires=1"), "/b/k");
        assert_eq!(
            stripped("/b/k%20?versionId=1&response-expires=x"),
            "/b/k%20?versionId=1&response-expires=x"
        );
        assert_eq!(stripped("http://h:1/b?X-Amz-Date=3"), "http://h:1/b");
    }
}
