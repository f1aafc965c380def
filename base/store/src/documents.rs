//! Documents of buckets: what S3 keeps about a bucket as a whole, such as its tags or its CORS rules.
//!
//! A document is S3's own XML or JSON. A store keeps the bytes and does not read them: so a new kind of document takes no
//! change in any store, and none in the protocols between them.

use std::borrow::Cow;
use std::fmt;

use crate::{Bucket, Error, ErrorKind, Result};

/// Bytes of the longest document; AWS allows as much for its longest, CORS rules.
pub const MAX_DOCUMENT_BYTES: usize = 64 * 1024;
/// Bytes of the longest name of a kind.
const MAX_KIND_BYTES: usize = 32;

/// What a document says: the name of S3's sub-resource, such as `cors` or `tagging`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DocumentKind(Cow<'static, str>);

impl DocumentKind {
    /// A kind that this program knows. `name` has lower-case letters and hyphens.
    pub const fn known(name: &'static str) -> Self {
        DocumentKind(Cow::Borrowed(name))
    }

    /// A kind by its name. Errors: `InvalidArgument` unless it has 1 to 32 lower-case letters and hyphens.
    pub fn new(name: &str) -> Result<Self> {
        let is_name = name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-');
        if name.is_empty() || name.len() > MAX_KIND_BYTES || !is_name {
            let why = format!("{name:?} is no kind of document; write lower-case letters and hyphens");
            return Err(Error::new(ErrorKind::InvalidArgument, why));
        }
        Ok(DocumentKind(Cow::Owned(name.to_owned())))
    }

    /// Its name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for DocumentKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The documents of buckets, one of each kind.
pub trait BucketDocuments {
    /// The document; `None` if the bucket has none. Errors: `NoSuchBucket`.
    fn document(&self, bucket: &Bucket, kind: &DocumentKind) -> Result<Option<Vec<u8>>>;

    /// Sets the document in the place of the one there was; readers see either. The bytes are not checked.
    /// Errors: `NoSuchBucket`; `EntityTooLarge` beyond [`MAX_DOCUMENT_BYTES`]; `AccessDenied` for users who may not
    /// decide about the bucket.
    fn set_document(&self, bucket: &Bucket, kind: &DocumentKind, document: &[u8]) -> Result<()>;

    /// Removes the document; removing what is not there succeeds. Errors: as for [`BucketDocuments::set_document`].
    fn delete_document(&self, bucket: &Bucket, kind: &DocumentKind) -> Result<()>;
}

/// Errors: `EntityTooLarge` for more than a document may have.
pub fn check_document(document: &[u8]) -> Result<()> {
    if document.len() <= MAX_DOCUMENT_BYTES {
        return Ok(());
    }
    let why =
        format!("a document of a bucket has at most {MAX_DOCUMENT_BYTES} bytes, this one {}", document.len());
    Err(Error::new(ErrorKind::EntityTooLarge, why))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_plain_names() {
        for name in ["cors", "object-lock", "a"] {
            assert_eq!(DocumentKind::new(name).unwrap().as_str(), name);
        }
        let long = "a".repeat(33);
        for name in ["", "..", "a/b", "CORS", "a.b", "a b", "c\0", &long] {
            assert_eq!(DocumentKind::new(name).unwrap_err().kind(), ErrorKind::InvalidArgument, "{name:?}");
        }
    }

    #[test]
    fn documents_have_an_end() {
        assert!(check_document(&[0; MAX_DOCUMENT_BYTES]).is_ok());
        assert_eq!(
            check_document(&[0; MAX_DOCUMENT_BYTES + 1]).unwrap_err().kind(),
            ErrorKind::EntityTooLarge
        );
    }
}
