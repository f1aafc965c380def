//! The ownership setting of a bucket's objects. The only supported value is `BucketOwnerEnforced`, because ACLs are not
//! supported.

use fordway_store::{DocumentKind, Error, ErrorKind};
use http::StatusCode;
use s3s::dto::{ObjectOwnership, OwnershipControls};

use crate::s3::documents::{DocumentService, malformed, read};
use crate::s3::error::OperationResult;

pub(in crate::s3) const KIND: DocumentKind = DocumentKind::known("ownership");

/// The document with the setting `BucketOwnerEnforced`.
pub(in crate::s3) const ENFORCED: &str = "<?xml version=\"1.0\" encoding=\"UTF-8\"?><OwnershipControls><Rule>\
    <ObjectOwnership>BucketOwnerEnforced</ObjectOwnership></Rule></OwnershipControls>";

pub(super) const SERVICE: DocumentService = DocumentService {
    kind: KIND,
    operations: ["GetBucketOwnershipControls", "PutBucketOwnershipControls", "DeleteBucketOwnershipControls"],
    missing: ("OwnershipControlsNotFoundError", "the bucket has no ownership controls"),
    put_status: StatusCode::OK,
    check,
};

/// Accepts the only supported setting, and returns its document. Errors: `MalformedXML` for a setting that S3 does not
/// have, `NotImplemented` for S3's other settings.
fn check(document: &[u8]) -> OperationResult<Vec<u8>> {
    const OTHERS: [&str; 2] = [ObjectOwnership::BUCKET_OWNER_PREFERRED, ObjectOwnership::OBJECT_WRITER];
    let controls: OwnershipControls = read(document)?;
    let [rule] = &controls.rules[..] else {
        return Err(malformed("the document must have exactly one rule".to_owned()));
    };
    match rule.object_ownership.as_str() {
        ObjectOwnership::BUCKET_OWNER_ENFORCED => Ok(ENFORCED.into()),
        other if OTHERS.contains(&other) => {
            let detail = format!("{other} needs access lists, which are not supported");
            Err(Error::new(ErrorKind::NotImplemented, detail).into())
        }
        other => Err(malformed(format!("{other:?} is not an object ownership"))),
    }
}
