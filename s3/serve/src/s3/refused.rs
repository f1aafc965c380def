//! Operations that S3 has and this gateway does not offer. It refuses them by name after it has checked the
//! signature and the bucket, so that strangers learn nothing about buckets.

use fordway_store::{Bucket, GetOptions, Key, Store, Versioning};
use http::StatusCode;

use crate::s3::error::{Failure, Outcome};

/// AWS's words for what is not done.
const NOT_IMPLEMENTED: &str = "A header you provided implies functionality that is not implemented.";

/// The answer to such an operation.
pub(super) fn refusal(store: &dyn Store, (bucket, key): &(String, String), operation: &str) -> Failure {
    match locks(store, bucket, key, operation) {
        Err(failure) => failure,
        Ok(()) => {
            let detail = format!("{operation} is not offered here; do without it");
            Failure::aws("NotImplemented", StatusCode::NOT_IMPLEMENTED, NOT_IMPLEMENTED, &detail)
        }
    }
}

/// Answers requests about object locks, which no bucket has here. Errors: AWS's for a missing lock, and those
/// of the store.
fn locks(store: &dyn Store, bucket: &str, key: &str, operation: &str) -> Outcome<()> {
    if bucket.is_empty() {
        return Ok(());
    }
    let bucket = Bucket::new(bucket)?;
    store.head_bucket(&bucket)?;
    match operation {
        "GetObjectLegalHold" | "GetObjectRetention" => {
            store.head(&bucket, &Key::new(key)?, &GetOptions::default())?;
            Err(no_lock())
        }
        "PutObjectLegalHold" | "PutObjectRetention" => Err(no_lock()),
        "PutObjectLockConfiguration" if store.versioning(&bucket)? != Versioning::Enabled => {
            let words = "Versioning must be 'Enabled' on the bucket to apply a Object Lock configuration";
            Err(Failure::aws(
                "InvalidBucketState",
                StatusCode::CONFLICT,
                words,
                "objects are not locked here",
            ))
        }
        _ => Ok(()),
    }
}

fn no_lock() -> Failure {
    let words = "Bucket is missing Object Lock Configuration";
    Failure::aws("InvalidRequest", StatusCode::BAD_REQUEST, words, "objects are not locked here")
}
