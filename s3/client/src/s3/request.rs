//! One S3 request, before it is signed.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use fordway_store::{Bucket, DocumentKind, Error, ErrorKind, Key, Result, VersionId};

use fordway_http::Replay;

/// What is asked of the service, independent of where it is and of when it is sent.
pub(super) struct Call<'a> {
    pub(super) method: &'static str,
    /// How messages call it.
    pub(super) operation: &'static str,
    /// Empty for the service itself.
    pub(super) bucket: &'a str,
    /// Empty for the bucket itself.
    pub(super) key: &'a str,
    pub(super) query: Vec<(Cow<'a, str>, Cow<'a, str>)>,
    /// A 404 with a code of its own then says that the document is missing, not the bucket.
    pub(super) is_for_document: bool,
    /// Names in lower case.
    pub(super) headers: Vec<(Cow<'static, str>, Cow<'a, str>)>,
    pub(super) body: &'a [u8],
    pub(super) replay: Replay,
}

impl<'a> Call<'a> {
    pub(super) fn on_service(method: &'static str, operation: &'static str) -> Self {
        Call {
            method,
            operation,
            bucket: "",
            key: "",
            query: Vec::new(),
            is_for_document: false,
            headers: Vec::new(),
            body: &[],
            replay: Replay::Safe,
        }
    }

    pub(super) fn on_bucket(method: &'static str, operation: &'static str, bucket: &'a Bucket) -> Self {
        Call { bucket: bucket.as_str(), ..Self::on_service(method, operation) }
    }

    pub(super) fn on_object(
        method: &'static str,
        operation: &'static str,
        bucket: &'a Bucket,
        key: &'a Key,
    ) -> Self {
        Call { key: key.as_str(), ..Self::on_bucket(method, operation, bucket) }
    }

    pub(super) fn query(mut self, name: impl Into<Cow<'a, str>>, value: impl Into<Cow<'a, str>>) -> Self {
        self.query.push((name.into(), value.into()));
        self
    }

    /// Asks for a document of the bucket.
    pub(super) fn for_document(self, kind: &'a DocumentKind) -> Self {
        Call { is_for_document: true, ..self.query(kind.as_str(), "") }
    }

    /// Names a version of the object; `None` is the latest.
    pub(super) fn version(self, version: Option<&VersionId>) -> Self {
        match version {
            Some(version) => self.query("versionId", version.as_str().to_owned()),
            None => self,
        }
    }

    /// Whether the query has a parameter of that name.
    pub(super) fn names(&self, name: &str) -> bool {
        self.query.iter().any(|(named, _)| *named == name)
    }

    pub(super) fn header(&mut self, name: impl Into<Cow<'static, str>>, value: impl Into<Cow<'a, str>>) {
        self.headers.push((name.into(), value.into()));
    }

    pub(super) fn body(mut self, body: &'a [u8]) -> Self {
        self.body = body;
        self
    }

    /// A document as body, with the digest that servers demand of one.
    pub(super) fn document(mut self, document: &'a str) -> Self {
        self.body = document.as_bytes();
        self.header("content-type", "application/xml");
        self.header("content-md5", base64_md5(self.body));
        self
    }

    /// Sent again only if the server cannot have acted on it: doing it twice is not doing it once.
    pub(super) fn once(mut self) -> Self {
        self.replay = Replay::IfUnsent;
        self
    }

    /// Whatever a value was made of, it must not end its header and begin another.
    /// Errors: `InvalidArgument`.
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

    /// Names the operation and its target in an error.
    pub(super) fn named(&self, error: Error) -> Error {
        error.during(self.operation, super::store::LANE, self.bucket, self.key)
    }
}

/// The value of `Content-MD5` for `body`.
pub(super) fn base64_md5(body: &[u8]) -> String {
    BASE64.encode(fast_md5::digest(body))
}

/// The value of `Content-MD5` for a digest that is known.
pub(super) fn base64_digest(md5: [u8; 16]) -> String {
    BASE64.encode(md5)
}
