//! The public access block of a bucket. Its settings restrict public policies and public ACLs.

use http::StatusCode;
use s3s::dto::PublicAccessBlockConfiguration;

use crate::access::PUBLIC_ACCESS_BLOCK;
use crate::s3::documents::{AbsentSetting, DocumentKindHandler, always, read, write};
use crate::s3::error::OperationResult;

pub(super) const SERVICE: DocumentKindHandler = DocumentKindHandler {
    kind: PUBLIC_ACCESS_BLOCK,
    get: "GetPublicAccessBlock",
    put: "PutPublicAccessBlock",
    delete: Some("DeletePublicAccessBlock"),
    absent: AbsentSetting::Error(
        "NoSuchPublicAccessBlockConfiguration",
        "the bucket has no public access block",
    ),
    put_status: StatusCode::OK,
    check,
    permits: always,
};

/// Returns the document with all four settings; settings that were not sent are off. Errors: `MalformedXML`.
fn check(document: &[u8]) -> OperationResult<Vec<u8>> {
    let sent: PublicAccessBlockConfiguration = read(document)?;
    let set = |setting: Option<bool>| Some(setting.unwrap_or(false));
    write(&PublicAccessBlockConfiguration {
        block_public_acls: set(sent.block_public_acls),
        ignore_public_acls: set(sent.ignore_public_acls),
        block_public_policy: set(sent.block_public_policy),
        restrict_public_buckets: set(sent.restrict_public_buckets),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::block_of;

    #[test]
    fn settings_that_are_not_sent_are_off() {
        let sent = "<PublicAccessBlockConfiguration><BlockPublicPolicy>true</BlockPublicPolicy>\
                    </PublicAccessBlockConfiguration>";
        let block = block_of(&check(sent.as_bytes()).unwrap()).unwrap();
        assert!(block.block_public_policy);
        assert!(!block.block_public_acls && !block.ignore_public_acls && !block.restrict_public_buckets);
    }

    #[test]
    fn other_documents_are_refused() {
        for bad in [
            "",
            "<x/>",
            "<PublicAccessBlockConfiguration><BlockPublicPolicy>yes</BlockPublicPolicy>\
             </PublicAccessBlockConfiguration>",
            "<PublicAccessBlockConfiguration/><x/>",
        ] {
            assert!(check(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
