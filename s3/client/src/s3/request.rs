//! S3 requests and their signatures. Each day's signing key is cached.

use std::borrow::Cow;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use fordway_http::ReplayPolicy;
use fordway_store::{Bucket, BucketDocumentKind, Error, ErrorKind, Key, Result, VersionId};
use fordway_sys::PerProcess;
use fordway_wire::sigv4::{CanonicalRequest, SigningKey};

use crate::s3::S3Credentials;

/// A request to the service, independent of the endpoint and of the time when it is sent.
pub(super) struct S3Call<'a> {
    pub(super) method: &'static str,
    /// The operation's name, for use in messages.
    pub(super) operation: &'static str,
    /// The name of the bucket; empty for the service itself.
    pub(super) bucket: &'a str,
    /// The key; empty for the bucket itself.
    pub(super) key: &'a str,
    pub(super) query: Vec<(Cow<'a, str>, Cow<'a, str>)>,
    /// Whether the request is for a bucket document. A 404 with a specific code then means that the document is
    /// missing, not the bucket.
    pub(super) is_for_document: bool,
    /// The headers, with names in lower case.
    pub(super) headers: Vec<(Cow<'static, str>, Cow<'a, str>)>,
    pub(super) body: &'a [u8],
    /// The size of the body, if it is produced while it is sent; `body` is then empty.
    pub(super) streamed_bytes: Option<u64>,
    pub(super) replay: ReplayPolicy,
    /// Whether a call with [`ReplayPolicy::IfUnsent`] may be sent again after the server has said that it failed.
    pub(super) is_sent_again_if_failed: bool,
    /// Whether the server may take minutes before it responds.
    pub(super) is_slow: bool,
}

impl<'a> S3Call<'a> {
    pub(super) fn on_service(method: &'static str, operation: &'static str) -> Self {
        S3Call {
            method,
            operation,
            bucket: "",
            key: "",
            query: Vec::new(),
            is_for_document: false,
            headers: Vec::new(),
            body: &[],
            streamed_bytes: None,
            replay: ReplayPolicy::Idempotent,
            is_sent_again_if_failed: false,
            is_slow: false,
        }
    }

    pub(super) fn on_bucket(method: &'static str, operation: &'static str, bucket: &'a Bucket) -> Self {
        S3Call { bucket: bucket.as_str(), ..Self::on_service(method, operation) }
    }

    pub(super) fn on_object(
        method: &'static str,
        operation: &'static str,
        bucket: &'a Bucket,
        key: &'a Key,
    ) -> Self {
        S3Call { key: key.as_str(), ..Self::on_bucket(method, operation, bucket) }
    }

    pub(super) fn query(mut self, name: impl Into<Cow<'a, str>>, value: impl Into<Cow<'a, str>>) -> Self {
        self.query.push((name.into(), value.into()));
        self
    }

    /// Makes this call a request for the bucket document of `kind`.
    pub(super) fn for_document(self, kind: &'a BucketDocumentKind) -> Self {
        // The names of these two sub-resources contain capitals, whereas the names of document kinds do not.
        let name = match kind.as_str() {
            "ownership" => "ownershipControls",
            "public-access-block" => "publicAccessBlock",
            name => name,
        };
        S3Call { is_for_document: true, ..self.query(name, "") }
    }

    /// Adds the version of the object; `None` means the latest version.
    pub(super) fn version(self, version: Option<&VersionId>) -> Self {
        match version {
            Some(version) => self.query("versionId", version.as_str().to_owned()),
            None => self,
        }
    }

    /// Returns whether the query has a parameter `name`.
    pub(super) fn names(&self, name: &str) -> bool {
        self.query.iter().any(|(named, _)| *named == name)
    }

    /// Returns whether the request selects a version of its object, or of the source of a copy.
    pub(super) fn selects_version(&self) -> bool {
        let is_of_copy = |(name, value): &(Cow<'_, str>, Cow<'_, str>)| {
            name == "x-amz-copy-source" && value.contains("?versionId=")
        };
        self.names("versionId") || self.headers.iter().any(is_of_copy)
    }

    pub(super) fn header(&mut self, name: impl Into<Cow<'static, str>>, value: impl Into<Cow<'a, str>>) {
        self.headers.push((name.into(), value.into()));
    }

    pub(super) fn body(mut self, body: &'a [u8]) -> Self {
        self.body = body;
        self
    }

    /// Sets an XML document as the body, with the MD5 that servers require for documents.
    pub(super) fn document(mut self, document: &'a str) -> Self {
        self.body = document.as_bytes();
        self.header("content-type", "application/xml");
        self.header("content-md5", base64_md5(self.body));
        self
    }

    /// Marks the request as not idempotent. The request is then sent again only if the server cannot have acted on it.
    pub(super) fn once(mut self) -> Self {
        self.replay = ReplayPolicy::IfUnsent;
        self
    }

    /// Marks a call as one for which the server may work for minutes before it responds, such as a copy.
    pub(super) fn slow(mut self) -> Self {
        self.is_slow = true;
        self
    }

    /// Marks a call that is not idempotent as one to send again if the server says that it failed for a reason that may
    /// be temporary. The caller must find out whether an earlier attempt took effect anyway.
    pub(super) fn again_if_failed(mut self) -> Self {
        self.is_sent_again_if_failed = true;
        self
    }

    /// Checks that no header value contains a control character, because a line break would end the header and begin
    /// another header. Errors: `InvalidArgument`.
    pub(super) fn check_headers(&self) -> Result<()> {
        let is_broken = |value: &str| value.bytes().any(|b| b.is_ascii_control());
        match self.headers.iter().find(|(_, value)| is_broken(value)) {
            None => Ok(()),
            Some((name, value)) => {
                let detail = format!("the value {value:?} of {name} has a control character");
                Err(self.named(Error::new(ErrorKind::InvalidArgument, detail)))
            }
        }
    }

    /// Adds the operation and its target to an error.
    pub(super) fn named(&self, error: Error) -> Error {
        error.during(self.operation, crate::s3::store::LANE, self.bucket, self.key)
    }
}

/// Returns the value of `Content-MD5` for `body`.
pub(super) fn base64_md5(body: &[u8]) -> String {
    BASE64.encode(fast_md5::digest(body))
}

/// Returns the value of `Content-MD5` for a known digest.
pub(super) fn base64_digest(md5: [u8; 16]) -> String {
    BASE64.encode(md5)
}

/// A secret key and the day's signing key that was derived from it.
type DailySigningKey = Option<(String, Arc<SigningKey>)>;

/// Signs requests to S3 in one region. Threads may share a signer.
pub struct RequestSigner {
    credentials: S3Credentials,
    region: String,
    /// The signing key is derived when it is first needed.
    key: PerProcess<Mutex<DailySigningKey>>,
}

/// The parts of a request that are signed, except for the headers that signing adds.
pub struct UnsignedRequest<'a> {
    /// The HTTP method, such as `GET`.
    pub method: &'a str,
    /// The encoded path, starting with `/`.
    pub path: &'a str,
    /// The encoded query, sorted, without `?`.
    pub query: &'a str,
    /// The value of `Host`.
    pub host: &'a str,
    /// Further headers to sign, with names in lower case.
    pub headers: &'a [(&'a str, &'a str)],
    /// SHA-256 of the body in hexadecimal, or [`fordway_wire::sigv4::UNSIGNED_PAYLOAD`].
    pub payload_hash: &'a str,
}

impl RequestSigner {
    /// Creates a signer with `credentials`. With [`S3Credentials::Anonymous`], the signer signs nothing.
    pub fn new(credentials: S3Credentials, region: impl Into<String>) -> Self {
        RequestSigner { credentials, region: region.into(), key: PerProcess::default() }
    }

    /// Calls `add` for each header that signs `request` at the time `now`. The last header is `authorization`. Does not
    /// renew keys that have expired. Cost: about 3 µs.
    pub fn sign(&self, request: &UnsignedRequest, now: SystemTime, add: impl FnMut(&'static str, &str)) {
        self.sign_with(&self.credentials.last(), request, now, add);
    }

    /// Signs like [`sign`](Self::sign), but with `credentials` from [`S3Credentials::current`].
    pub(super) fn sign_with(
        &self,
        credentials: &S3Credentials,
        request: &UnsignedRequest,
        now: SystemTime,
        mut add: impl FnMut(&'static str, &str),
    ) {
        let S3Credentials::Keys { access_key, secret_key, session_token, .. } = credentials else {
            return;
        };
        let date = fordway_wire::date::UtcTime::from(now).amz_date();
        let mut headers = vec![("x-amz-content-sha256", request.payload_hash), ("x-amz-date", date.as_str())];
        headers.extend(session_token.as_deref().map(|token| ("x-amz-security-token", token)));
        for (name, value) in &headers {
            add(name, value);
        }
        let mut headers: Vec<(&str, &str)> = headers;
        headers.push(("host", request.host));
        headers.extend_from_slice(request.headers);
        headers.sort_unstable_by_key(|(name, _)| *name);
        let UnsignedRequest { method, path, query, payload_hash, .. } = *request;
        let signed = CanonicalRequest { method, path, query, headers: &headers, payload_hash };
        add("authorization", &self.key(secret_key, now).authorization(access_key, now, &signed));
    }

    /// Returns the signing key of a secret key for the day of `now`.
    pub(super) fn key(&self, secret_key: &str, now: SystemTime) -> Arc<SigningKey> {
        let mut cached = self.key.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        match &*cached {
            Some((secret, key)) if secret == secret_key && key.is_for(now) => key.clone(),
            _ => {
                let key = Arc::new(SigningKey::new(secret_key, now, &self.region, "s3"));
                *cached = Some((secret_key.to_owned(), key.clone()));
                key
            }
        }
    }
}
