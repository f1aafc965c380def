//! The ownership setting of a bucket's objects. The setting only determines whether the bucket can have an ACL. With
//! `BucketOwnerEnforced`, which is the default, the bucket cannot have an ACL. With every setting, the file of a new
//! object belongs to the user who creates the object.

use fordway_store::{Bucket, BucketDocumentKind, Result, Store};
use http::StatusCode;
use s3s::dto::{ObjectOwnership, OwnershipControls};

use crate::access::read_acl;
use crate::gate::NO_BUCKET_ACLS;
use crate::s3::documents::{AbsentSetting, DocumentKindHandler, SettingChange, malformed, read};
use crate::s3::error::{OperationResult, S3Failure};

pub(in crate::s3) const KIND: BucketDocumentKind = BucketDocumentKind::known("ownership");

/// The values of `ObjectOwnership` that S3 defines.
const SETTINGS: [&str; 3] = [
    ObjectOwnership::BUCKET_OWNER_ENFORCED,
    ObjectOwnership::BUCKET_OWNER_PREFERRED,
    ObjectOwnership::OBJECT_WRITER,
];

/// Returns the document with a setting.
pub(in crate::s3) fn document_of(setting: &str) -> String {
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?><OwnershipControls><Rule><ObjectOwnership>{setting}</ObjectOwnership>\
         </Rule></OwnershipControls>"
    )
}

/// Returns whether the ownership controls of a bucket enable ACLs. Errors: the errors of reading the document.
pub(crate) fn enables_acls(store: &dyn Store, bucket: &Bucket) -> Result<bool> {
    Ok(store.document(bucket, &KIND)?.is_some_and(|document| has_acls(&document)))
}

fn has_acls(document: &[u8]) -> bool {
    setting_of(document).is_ok_and(|setting| setting != ObjectOwnership::BUCKET_OWNER_ENFORCED)
}

pub(super) const SERVICE: DocumentKindHandler = DocumentKindHandler {
    kind: KIND,
    get: "GetBucketOwnershipControls",
    put: "PutBucketOwnershipControls",
    delete: Some("DeleteBucketOwnershipControls"),
    absent: AbsentSetting::Error("OwnershipControlsNotFoundError", "the bucket has no ownership controls"),
    put_status: StatusCode::OK,
    check,
    permits,
};

/// Returns the document to store. Errors: `MalformedXML` for a setting that S3 does not have.
fn check(document: &[u8]) -> OperationResult<Vec<u8>> {
    setting_of(document).map(|setting| document_of(setting).into_bytes())
}

fn setting_of(document: &[u8]) -> OperationResult<&'static str> {
    let controls: OwnershipControls = read(document)?;
    let [rule] = &controls.rules[..] else {
        return Err(malformed("the document must have exactly one rule".to_owned()));
    };
    let stated = rule.object_ownership.as_str();
    let known = SETTINGS.into_iter().find(|setting| *setting == stated);
    known.ok_or_else(|| malformed(format!("{stated:?} is not an object ownership")))
}

/// Checks that a change of the setting does not disable an ACL that grants access. Errors:
/// `InvalidBucketAclWithObjectOwnership`.
fn permits(change: &SettingChange) -> OperationResult<()> {
    if change.document.is_some_and(has_acls) || !read_acl(change.store, change.bucket)?.is_public() {
        return Ok(());
    }
    let detail = "set the ACL of the bucket to private first";
    let code = "InvalidBucketAclWithObjectOwnership";
    Err(S3Failure::aws(code, StatusCode::BAD_REQUEST, NO_BUCKET_ACLS, detail))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_settings_of_s3_are_kept() {
        for setting in SETTINGS {
            let document = document_of(setting);
            assert_eq!(check(document.as_bytes()).unwrap(), document.as_bytes());
            assert_eq!(has_acls(document.as_bytes()), setting != "BucketOwnerEnforced", "{setting}");
        }
        let rules = "<Rule><ObjectOwnership>ObjectWriter</ObjectOwnership></Rule>";
        for bad in [
            "",
            "<OwnershipControls/>",
            &document_of("Nobody"),
            &document_of("ObjectWriter").replace(rules, &rules.repeat(2)),
        ] {
            assert!(check(bad.as_bytes()).is_err(), "{bad}");
            assert!(!has_acls(bad.as_bytes()), "{bad}");
        }
    }
}
