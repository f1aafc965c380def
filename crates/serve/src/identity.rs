//! Who may call: the key pair, and the checks that need nothing but the request's head.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use fordway_store::{Error, ErrorKind, Result};
use fordway_wire::date;
use http::HeaderMap;
use http::header::{AUTHORIZATION, DATE};
use s3s::access::{S3Access, S3AccessContext};
use s3s::auth::{S3Auth, SecretKey};
use s3s::path::S3Path;
use s3s::{S3Result, s3_error};

use crate::Users;
use crate::monitor::{Operation, Signed, Trace};

/// An access key and its secret.
#[derive(Clone)]
pub struct Identity {
    /// The public half, which requests name.
    pub access_key: String,
    /// The secret half, which requests are signed with.
    pub secret_key: String,
}

impl Identity {
    /// A pair from the system's random source: 20 characters, and 40 with 240 random bits.
    /// Errors: `Io`.
    pub fn generate() -> Result<Self> {
        const LETTERS: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
        let mut random = [0u8; 48];
        getrandom::fill(&mut random)
            .map_err(|error| Error::new(ErrorKind::Io, "no random bytes for a key pair").caused_by(error))?;
        let (name, secret) = random.split_at(18);
        let letters = name.iter().map(|byte| char::from(LETTERS[usize::from(byte & 31)]));
        let access_key = ['F', 'W'].into_iter().chain(letters).collect();
        Ok(Identity { access_key, secret_key: URL_SAFE_NO_PAD.encode(secret) })
    }
}

/// The secret is left out, so that no log ever shows it.
impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").field("access_key", &self.access_key).finish_non_exhaustive()
    }
}

/// Knows the secrets of those who may call.
pub(crate) struct KnownKeys(pub(crate) Arc<Users>);

#[async_trait::async_trait]
impl S3Auth for KnownKeys {
    async fn get_secret_key(&self, access_key: &str) -> S3Result<SecretKey> {
        match self.0.find(access_key) {
            Some(user) => Ok(SecretKey::from(user.keys.secret_key.as_str())),
            None => {
                Err(s3_error!(InvalidAccessKeyId, "the access key is not known here; check the access key"))
            }
        }
    }
}

/// How far a client's clock may be off (S3's limit).
pub(crate) const CLOCK_SKEW_MAX: Duration = Duration::from_secs(15 * 60);

/// Lets every request pass that is signed in a way that cannot be replayed for ever, and says whose it
/// is, by an extension of the request.
pub(crate) struct SignedOnly {
    pub(crate) users: Arc<Users>,
    /// Whether signatures of version 2 are taken.
    pub(crate) allow_version_2: bool,
}

#[async_trait::async_trait]
impl S3Access for SignedOnly {
    async fn check(&self, request: &mut S3AccessContext<'_>) -> S3Result<()> {
        let Some(credentials) = request.credentials() else {
            return Err(s3_error!(AccessDenied, "anonymous requests are refused; sign them (SigV4)"));
        };
        let Some(user) = self.users.find(&credentials.access_key) else {
            return Err(s3_error!(InvalidAccessKeyId, "the access key has just been taken away"));
        };
        if let Some(trace) = request.extensions_mut().remove::<Arc<Trace>>() {
            trace.signed(Signed {
                user: user.clone(),
                operation: Operation::named(request.s3_op().name()),
                names: trace.asked.is_some().then(|| names(request.s3_path())),
                at: Instant::now(),
            });
        }
        request.extensions_mut().insert(user);
        if !signed_with_version_2(request) {
            return Ok(());
        }
        if !self.allow_version_2 {
            // S3's own words: s3cmd looks for them, and signs anew.
            return Err(s3_error!(
                InvalidRequest,
                "The authorization mechanism you have provided is not supported. Please use AWS4-HMAC-SHA256."
            ));
        }
        check_date(request.headers())
    }
}

/// Bucket and key, each empty where there is none.
fn names(path: &S3Path) -> (String, String) {
    match path {
        S3Path::Root => Default::default(),
        S3Path::Bucket { bucket } => (bucket.to_string(), String::new()),
        S3Path::Object { bucket, key } => (bucket.to_string(), key.to_string()),
    }
}

/// Nothing else binds a version 2 signature to the time it was made at; a presigned URL has its own.
fn check_date(headers: &HeaderMap) -> S3Result<()> {
    if !headers.contains_key(AUTHORIZATION) {
        return Ok(());
    }
    let stated = headers.get("x-amz-date").or_else(|| headers.get(DATE));
    let date = stated.and_then(|value| value.to_str().ok()).and_then(date::parse_http);
    let Some(date) = date else {
        return Err(s3_error!(AccessDenied, "the date is missing or none; send an HTTP date"));
    };
    let now = SystemTime::now();
    let skew = now.duration_since(date).unwrap_or_else(|ahead| ahead.duration());
    match skew <= CLOCK_SKEW_MAX {
        true => Ok(()),
        false => Err(s3_error!(RequestTimeTooSkewed, "the clocks are more than 15 minutes apart; set yours")),
    }
}

fn signed_with_version_2(request: &S3AccessContext<'_>) -> bool {
    let header = request.headers().get(AUTHORIZATION);
    let query = request.uri().query().unwrap_or_default();
    header.is_some_and(|value| value.as_bytes().starts_with(b"AWS "))
        || query.split('&').any(|pair| pair.starts_with("Signature="))
}

/// Whether `name` is spelled as regions are.
pub(crate) fn is_region(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
}

/// Whether a signature is bound to something that cannot be a region: s3cmd signs for `US` until it
/// is told better, in an answer that the S3 layer does not give.
pub(crate) fn signs_for_no_region(headers: &HeaderMap) -> bool {
    let header = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let scope = header.split_once("Credential=").map(|(_, credential)| credential);
    scope.and_then(|scope| scope.split('/').nth(2)).is_some_and(|region| !is_region(region))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_pairs_differ_and_keep_their_secret() {
        let (one, other) = (Identity::generate().unwrap(), Identity::generate().unwrap());
        assert_eq!((one.access_key.len(), one.secret_key.len()), (20, 40));
        assert_ne!(one.access_key, other.access_key);
        assert_ne!(one.secret_key, other.secret_key);
        assert!(!format!("{one:?}").contains(&one.secret_key));
    }
}
