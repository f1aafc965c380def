//! Checks the headers for server-side encryption. Fordway does not encrypt, so the gate always refuses these headers.
//! If AWS would refuse the headers as well, for example because they contradict each other, the response is AWS's
//! error.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use fordway_store::ChecksumAlgorithm;
use http::HeaderMap;

use super::document::{decoded_md5, digest};
use super::{GateRefusal, OperationRule};

/// The header that names the encryption method. The names of all headers for server-side encryption begin with this
/// name.
pub(super) const METHOD: &str = "x-amz-server-side-encryption";
const KMS_KEY: &str = "x-amz-server-side-encryption-aws-kms-key-id";
const ALGORITHM: &str = "x-amz-server-side-encryption-customer-algorithm";
const KEY: &str = "x-amz-server-side-encryption-customer-key";
const KEY_MD5: &str = "x-amz-server-side-encryption-customer-key-md5";
/// The encryption methods in which AWS manages the keys.
const METHODS: [&str; 4] = ["AES256", "aws:fsx", "aws:kms", "aws:kms:dsse"];

/// Checks the headers as AWS does. Errors: `InvalidArgument`, with AWS's messages.
pub(super) fn check(operation: &OperationRule, headers: &HeaderMap) -> Result<(), GateRefusal> {
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or_default());
    let refused = |words: &str| Err(GateRefusal::argument(words, METHOD, text(METHOD).unwrap_or("null")));
    let has_customer_key = [ALGORITHM, KEY, KEY_MD5].iter().any(|name| headers.contains_key(*name));
    match text(METHOD) {
        Some(_) if ["GET", "HEAD"].contains(&operation.method) => {
            refused("x-amz-server-side-encryption header is not supported for this operation.")
        }
        Some(method) if !METHODS.contains(&method) => {
            refused("The encryption method specified is not supported")
        }
        Some(_) if has_customer_key => refused(
            "Server Side Encryption with Customer provided key is incompatible with the encryption method specified",
        ),
        method if text(KMS_KEY).is_some() && !method.is_some_and(|method| method.starts_with("aws:kms")) => {
            refused(
                "Server Side Encryption with AWS KMS managed key requires HTTP header \
                 x-amz-server-side-encryption : aws:kms",
            )
        }
        _ if has_customer_key => check_customer_key(text(ALGORITHM), text(KEY), text(KEY_MD5)),
        _ => Ok(()),
    }
}

/// Checks that a customer-provided key is complete. The error never contains the key.
fn check_customer_key(
    algorithm: Option<&str>,
    key: Option<&str>,
    key_md5: Option<&str>,
) -> Result<(), GateRefusal> {
    let start = "Requests specifying Server Side Encryption with Customer provided keys must provide";
    if algorithm != Some("AES256") {
        let words = format!("{start} a valid encryption algorithm.");
        return Err(GateRefusal::argument(&words, ALGORITHM, algorithm.unwrap_or("null")));
    }
    let key = key.and_then(|key| STANDARD.decode(key).ok()).filter(|key| key.len() == 32);
    let Some(key) = key else {
        return Err(GateRefusal::argument(&format!("{start} an appropriate secret key."), KEY, "null"));
    };
    let stated = key_md5.and_then(decoded_md5);
    match stated.is_some_and(|stated| digest(ChecksumAlgorithm::Md5, &key) == stated) {
        true => Ok(()),
        false => {
            let words = "The calculated MD5 hash of the key did not match the hash that was provided.";
            Err(GateRefusal::argument(words, KEY_MD5, key_md5.unwrap_or("null")))
        }
    }
}
