//! Lifecycle rules of buckets. `fordway lifecycle` and gateways with `--lifecycle` apply these rules.

use fordway_store::{BucketDocumentKind, Error, ErrorKind};
use fordway_wire::lifecycle::{LifecycleError, read, write};
use http::StatusCode;

use crate::s3::documents::{AbsentSetting, DocumentKindHandler, always};
use crate::s3::error::{OperationResult, S3Failure};

const KIND: BucketDocumentKind = BucketDocumentKind::known("lifecycle");

pub(super) const SERVICE: DocumentKindHandler = DocumentKindHandler {
    kind: KIND,
    get: "GetBucketLifecycleConfiguration",
    put: "PutBucketLifecycleConfiguration",
    delete: Some("DeleteBucketLifecycle"),
    absent: AbsentSetting::Error(
        "NoSuchLifecycleConfiguration",
        "The lifecycle configuration does not exist",
    ),
    put_status: StatusCode::OK,
    check,
    permits: always,
};

/// Checks the rules of a bucket. Errors: `MalformedXML`, `InvalidArgument`, `InvalidRequest`, and `NotImplemented` for
/// transitions.
fn check(document: &[u8]) -> OperationResult<Vec<u8>> {
    read(document).map(|rules| write(&rules).into_bytes()).map_err(refused)
}

fn refused(LifecycleError { code, message }: LifecycleError) -> S3Failure {
    match code {
        "NotImplemented" => Error::new(ErrorKind::NotImplemented, message).into(),
        code => S3Failure::aws(code, StatusCode::BAD_REQUEST, &message, ""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_stored_as_they_are_sent() {
        let rules = "<LifecycleConfiguration xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Rule><ID>a</ID>\
            <Filter><Prefix>logs/</Prefix></Filter><Status>Enabled</Status><Expiration><Days>1</Days></Expiration>\
            </Rule></LifecycleConfiguration>";
        let stored = String::from_utf8(check(rules.as_bytes()).unwrap()).unwrap();
        assert!(stored.ends_with(rules), "{stored}");
        let moved = rules.replace("Expiration", "Transition");
        assert_eq!(check(moved.as_bytes()).unwrap_err().0.code().as_str(), "NotImplemented");
    }
}
