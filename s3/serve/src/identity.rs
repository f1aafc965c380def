//! Key pairs, and the authentication checks that need only a request's head.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use fordway_store::{Bucket, Error, ErrorKind, Result};
use http::header::AUTHORIZATION;
use http::{Extensions, HeaderMap, HeaderName, HeaderValue, StatusCode, Uri};
use percent_encoding::percent_decode_str;
use s3s::access::{S3Access, S3AccessContext};
use s3s::auth::{S3Auth, SecretKey};
use s3s::path::S3Path;
use s3s::{S3Error, S3ErrorCode, S3Request, S3Result, s3_error};

use crate::Users;
use crate::access::{PolicyRequestContext, authorise, unsigned};
use crate::message::composed;
use crate::monitor::{IdentifiedOperation, OperationCode, RequestTrace};
use crate::s3::{S3Failure, beyond_limit, copy_source, look_up};
use crate::sts::{StsSession, current_session};
use crate::users::User;

/// An access key and its secret.
#[derive(Clone)]
pub struct AccessKeyPair {
    /// The public half, which each signed request contains.
    pub access_key: String,
    /// The secret half, with which requests are signed.
    pub secret_key: String,
}

impl AccessKeyPair {
    /// Generates a pair from the operating system's random number generator: an access key of 20 characters, and a
    /// secret key of 40 characters with 240 random bits. Errors: `Io`.
    pub fn generate() -> Result<Self> {
        const LETTERS: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
        let mut random = [0u8; 48];
        getrandom::fill(&mut random)
            .map_err(|error| Error::new(ErrorKind::Io, "no random bytes for a key pair").caused_by(error))?;
        let (name, secret) = random.split_at(18);
        let letters = name.iter().map(|byte| char::from(LETTERS[usize::from(byte & 31)]));
        let access_key = ['F', 'W'].into_iter().chain(letters).collect();
        Ok(AccessKeyPair { access_key, secret_key: URL_SAFE_NO_PAD.encode(secret) })
    }
}

/// Omits the secret, so that it never appears in a log.
impl fmt::Debug for AccessKeyPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").field("access_key", &self.access_key).finish_non_exhaustive()
    }
}

/// Looks up the secret keys of users for the S3 layer.
pub(crate) struct SecretKeyLookup(pub(crate) Arc<Users>);

#[async_trait::async_trait]
impl S3Auth for SecretKeyLookup {
    async fn get_secret_key(&self, access_key: &str) -> S3Result<SecretKey> {
        if let Some(session) = current_session() {
            return match session.access_key == access_key {
                true => Ok(SecretKey::from(session.secret_key.as_str())),
                false => Err(token_of_another()),
            };
        }
        let user = self.0.find(access_key);
        match user.as_ref().and_then(|user| user.keys.as_ref()) {
            Some(keys) => Ok(SecretKey::from(keys.secret_key.as_str())),
            None => {
                let detail = "the access key is unknown; check it";
                let text = composed(UNKNOWN_KEY, detail, &[("AWSAccessKeyId", access_key)]);
                Err(S3Error::with_message(S3ErrorCode::InvalidAccessKeyId, text))
            }
        }
    }
}

/// Knows no keys, for a gateway whose callers the kernel identifies. The S3 layer looks up no keys for these callers,
/// because [`crate::unsigned::unsigned`] removes the signatures of their requests.
pub(crate) struct NoSecretKeys;

#[async_trait::async_trait]
impl S3Auth for NoSecretKeys {
    async fn get_secret_key(&self, _: &str) -> S3Result<SecretKey> {
        Err(s3_error!(AccessDenied, "this gateway does not check signatures; send the request without one"))
    }
}

/// Returns AWS's error for a security token that does not belong to the request's access key.
fn token_of_another() -> S3Error {
    let words = "The provided token is malformed or otherwise invalid.";
    let text = composed(words, "the token belongs to another access key; send both from one response", &[]);
    let mut error = S3Error::with_message(S3ErrorCode::InvalidToken, text);
    error.set_status_code(StatusCode::BAD_REQUEST);
    error
}

/// AWS's message for an unknown access key.
const UNKNOWN_KEY: &str = "The AWS Access Key Id you provided does not exist in our records.";

/// The maximum difference between a client's clock and the gateway's clock, as on AWS.
pub(crate) const CLOCK_SKEW_MAX: Duration = Duration::from_secs(15 * 60);

/// The sender of a request, as recorded in the request's extensions.
struct KnownCaller {
    /// The user whom the kernel identified when the client connected.
    user: Option<Arc<User>>,
    /// The session to which the request's security token belongs.
    session: Option<Arc<StsSession>>,
}

impl KnownCaller {
    fn of(extensions: &Extensions) -> Self {
        KnownCaller { user: extensions.get().cloned(), session: extensions.get().cloned() }
    }
}

/// Identifies the user who sent a request, and adds the [`User`] to the request's extensions. Refuses requests whose
/// user is unknown.
#[derive(Clone)]
pub(crate) enum RequestAuthenticator {
    /// Identifies users by the access keys of signatures. Version 4 signatures must cover the host and the `x-amz-`
    /// headers.
    Signed(Arc<Users>),
    /// Trusts the user whom the kernel identified when the client connected, and checks no signature.
    Peers,
}

#[async_trait::async_trait]
impl S3Access for RequestAuthenticator {
    async fn check(&self, request: &mut S3AccessContext<'_>) -> S3Result<()> {
        let known = KnownCaller::of(request.extensions_mut());
        let access_key = request.credentials().map(|credentials| credentials.access_key.as_str());
        let user = self.admit(known, access_key, request.headers(), request.uri())?;
        let (operation, names) = (OperationCode::named(request.s3_op().name()), names(request.s3_path()));
        Self::take_note(request.extensions_mut(), &user, operation, || Some(names.clone()))?;
        let origin = request.extensions_mut().get().copied();
        let user = user.at(&names.0).map_err(|error| S3Failure::from(error).0)?;
        let name = request.s3_op().name();
        let facts = PolicyRequestContext::new(request.headers(), request.uri(), origin);
        let permitted = authorise(&user, name, (&names.0, &names.1), &facts).await;
        permitted.map_err(|S3Failure(error)| error)?;
        self.check_owners(&user, &names.0, request.headers()).await?;
        request.extensions_mut().insert(user);
        Ok(())
    }
}

impl RequestAuthenticator {
    /// Returns the user who sent a request that the S3 layer does not pass to an operation. Errors: `AccessDenied`,
    /// `InvalidAccessKeyId`, `InvalidToken`, or AWS's code for a malformed signature.
    pub(crate) fn admit_request<T>(&self, request: &S3Request<T>) -> S3Result<Arc<User>> {
        let known = KnownCaller::of(&request.extensions);
        let access_key = request.credentials.as_ref().map(|credentials| credentials.access_key.as_str());
        self.admit(known, access_key, &request.headers, &request.uri)
    }

    /// Returns the users with key pairs; `None` if the kernel identifies callers.
    pub(crate) fn users(&self) -> Option<&Users> {
        match self {
            RequestAuthenticator::Signed(users) => Some(users),
            RequestAuthenticator::Peers => None,
        }
    }

    fn admit(
        &self,
        known: KnownCaller,
        access_key: Option<&str>,
        headers: &HeaderMap,
        uri: &Uri,
    ) -> S3Result<Arc<User>> {
        let RequestAuthenticator::Signed(users) = self else {
            let user =
                known.user.ok_or_else(|| s3_error!(AccessDenied, "the sender of the request is unknown"))?;
            return Ok(user);
        };
        let Some(access_key) = access_key else {
            let S3Failure(refused) = unsigned();
            return users.anonymous().ok_or(refused);
        };
        let user = match known.session {
            Some(session) if session.access_key == access_key => session.user.clone(),
            Some(_) => return Err(token_of_another()),
            None => users
                .find(access_key)
                .ok_or_else(|| s3_error!(InvalidAccessKeyId, "the access key has just been removed"))?,
        };
        let is_version_2 = signed_with_version_2(headers, uri);
        // Version 2 signatures cover all `x-amz-` headers. A request with signatures of both versions must pass the
        // checks for both versions.
        if has_version_4_query(uri) || !is_version_2 {
            check_all_signed(headers, uri)?;
        }
        if !is_version_2 {
            return check_form(headers, uri).map(|()| user);
        }
        Ok(user)
    }

    /// Checks the headers that contain the expected owners of buckets. Cost: nothing if the request has no such header.
    /// Errors: `AccessDenied`.
    pub(crate) async fn check_owners(
        &self,
        user: &Arc<User>,
        bucket: &str,
        headers: &HeaderMap,
    ) -> S3Result<()> {
        if let Some(stated) = headers.get(EXPECTED_OWNER)
            && let Ok(bucket) = Bucket::new(bucket)
        {
            self.check_owner(user, bucket, (EXPECTED_OWNER, stated)).await?;
        }
        if let Some(stated) = headers.get(EXPECTED_SOURCE_OWNER)
            && let Ok((bucket, ..)) = copy_source(headers)
        {
            self.check_owner(user, bucket, (EXPECTED_SOURCE_OWNER, stated)).await?;
        }
        Ok(())
    }

    async fn check_owner(
        &self,
        user: &Arc<User>,
        bucket: Bucket,
        (header, stated): (&str, &HeaderValue),
    ) -> S3Result<()> {
        let uid = look_up(user.clone(), move |store| match store.bucket_owner(&bucket) {
            // The operation itself reports the missing bucket.
            Err(error) if error.kind() == ErrorKind::NoSuchBucket => Ok(None),
            found => Ok(Some(found?)),
        });
        let Some(uid) = uid.await? else { return Ok(()) };
        let names = self.owner_names(user, uid);
        if names.iter().any(|name| name.as_bytes() == stated.as_bytes()) {
            return Ok(());
        }
        let detail = format!(
            "the bucket's owner is {}, not the one in {header}; correct the header",
            names.join(" or ")
        );
        let text = composed("Access Denied.", &detail, &[]);
        Err(S3Error::with_message(S3ErrorCode::AccessDenied, text))
    }

    /// Returns the names of the users who own the buckets of `uid`; responses show the first name as the owner. If no
    /// user of the gateway has this uid, or the store has no owners, the caller counts as the owner.
    pub(crate) fn owner_names(&self, caller: &User, uid: Option<u32>) -> Vec<String> {
        let mut names = match (self, uid) {
            (_, None) => Vec::new(),
            (RequestAuthenticator::Signed(users), Some(uid)) => users.names_of(uid),
            (RequestAuthenticator::Peers, Some(uid)) => vec![uid.to_string()],
        };
        if names.is_empty() || uid == Some(caller.uid) {
            names.retain(|name| *name != caller.name);
            names.insert(0, caller.name.clone());
        }
        names
    }

    /// Records the operation and the user in the request's trace. `names` returns the decoded bucket and key; their
    /// encoded forms in the path may differ. Errors: `SlowDown` if the user has reached a limit.
    pub(crate) fn take_note(
        extensions: &mut Extensions,
        user: &Arc<User>,
        operation: OperationCode,
        names: impl FnOnce() -> Option<(String, String)>,
    ) -> S3Result<()> {
        let Some(trace) = extensions.remove::<Arc<RequestTrace>>() else { return Ok(()) };
        let names = trace.asked.is_some().then(names).flatten();
        let signed = IdentifiedOperation { user: user.clone(), operation, names, at: Instant::now() };
        trace.admit(signed).map_err(beyond_limit)
    }
}

/// Returns the bucket and the key of a path. A bucket or a key that the path does not contain is an empty string.
fn names(path: &S3Path) -> (String, String) {
    match path {
        S3Path::Root => Default::default(),
        S3Path::Bucket { bucket } => (bucket.to_string(), String::new()),
        S3Path::Object { bucket, key } => (bucket.to_string(), key.to_string()),
    }
}

/// The header with the expected owner of the bucket in the request's path.
const EXPECTED_OWNER: &str = "x-amz-expected-bucket-owner";
/// The header with the expected owner of the bucket of a copy's source.
const EXPECTED_SOURCE_OWNER: &str = "x-amz-source-expected-bucket-owner";

pub(crate) fn signed_with_version_2(headers: &HeaderMap, uri: &Uri) -> bool {
    let header = headers.get(AUTHORIZATION);
    header.is_some_and(|value| value.as_bytes().starts_with(b"AWS ")) || parameter(uri, "Signature").is_some()
}

/// `x-amz-` headers that `SignedHeaders` may omit. These headers do not change the request's meaning, or every
/// signature covers them.
const UNSIGNED: [&str; 3] = ["x-amz-content-sha256", "x-amz-date", "x-amz-user-agent"];

/// Checks that all `x-amz-` headers are signed. An unsigned `x-amz-` header could change the operation of a signed
/// request, for example from a put to a copy. A recipient of a presigned URL must not be able to add such a header.
/// Errors: `AccessDenied`.
fn check_all_signed(headers: &HeaderMap, uri: &Uri) -> S3Result<()> {
    let signed = signed_headers(headers, uri).unwrap_or_default();
    let is_signed = |name: &str| signed.split(';').any(|known| known == name);
    // An empty `x-amz-trailer` header has no meaning. The gateway itself adds an empty `x-amz-trailer` to each request
    // without this header.
    let is_announced_nothing = |name: &str| name == "x-amz-trailer" && headers[name].is_empty();
    let of_amazon = headers.keys().map(HeaderName::as_str).filter(|name| name.starts_with("x-amz-"));
    let of_amazon = of_amazon.filter(|name| !is_announced_nothing(name));
    // Some presigned URLs contain headers as query parameters. The signature covers the whole URL, and therefore also
    // these headers.
    let is_in_url = |name: &str| has_version_4_query(uri) && has_parameter(uri, name);
    let left_out = |name: &&str| !UNSIGNED.contains(name) && !is_signed(name) && !is_in_url(name);
    let mut names: Vec<&str> = of_amazon.filter(left_out).collect();
    if names.is_empty() {
        return Ok(());
    }
    names.sort_unstable();
    let names = names.join(", ");
    let words = "There were headers present in the request which were not signed";
    let detail = format!("not signed: {names}; sign them, or remove them");
    let text = composed(words, &detail, &[("HeadersNotSigned", &names)]);
    Err(S3Error::with_message(S3ErrorCode::AccessDenied, text))
}

/// Checks that a version 4 signature covers the `host` header, as AWS requires, and that it covers every header that it
/// names. The S3 layer ignores other names, so anyone could add such names to a signature. Errors: `AccessDenied`, or
/// AWS's code for a malformed signature.
fn check_form(headers: &HeaderMap, uri: &Uri) -> S3Result<()> {
    let signed = signed_headers(headers, uri).unwrap_or_default();
    if signed.split(';').all(|name| name.trim().is_empty()) {
        return Err(malformed(uri, "SignedHeaders names no header; sign at least host"));
    }
    if signed.bytes().any(|byte| byte.is_ascii_uppercase()) {
        return Err(malformed(uri, "SignedHeaders has a name in upper case; write the names in lower case"));
    }
    if signed.split(';').any(|name| !headers.contains_key(name)) {
        return Err(malformed(
            uri,
            "SignedHeaders names a header that the request lacks; send it, or omit the name",
        ));
    }
    if !signed.split(';').any(|name| name == "host") {
        return Err(s3_error!(
            AccessDenied,
            "the header host is not signed; sign it, so that nobody can send the request elsewhere"
        ));
    }
    Ok(())
}

/// Returns AWS's error for a malformed signature. The error's code depends on whether the signature is in the URL or in
/// a header.
fn malformed(uri: &Uri, why: &'static str) -> S3Error {
    let code = match has_version_4_query(uri) {
        true => "AuthorizationQueryParametersError",
        false => "AuthorizationHeaderMalformed",
    };
    let mut error = S3Error::with_message(
        S3ErrorCode::from_bytes(code.as_bytes()).unwrap_or(S3ErrorCode::InvalidRequest),
        why,
    );
    error.set_status_code(StatusCode::BAD_REQUEST);
    error
}

/// Returns the names of the headers that a version 4 signature covers, separated by semicolons.
fn signed_headers(headers: &HeaderMap, uri: &Uri) -> Option<String> {
    if has_version_4_query(uri) {
        let names = parameter(uri, "X-Amz-SignedHeaders")?;
        return percent_decode_str(names).decode_utf8().ok().map(Cow::into_owned);
    }
    // The signature covers the credential scope, which precedes `SignedHeaders=`. A third party therefore cannot insert
    // another `SignedHeaders=` into the scope.
    let (_, names) = headers.get(AUTHORIZATION)?.to_str().ok()?.rsplit_once("SignedHeaders=")?;
    names.split(',').next().map(str::to_owned)
}

fn has_version_4_query(uri: &Uri) -> bool {
    parameter(uri, "X-Amz-Signature").is_some()
}

/// Returns the percent-encoded value of a query parameter. The parameter's name in the URL may be percent-encoded.
pub(crate) fn parameter<'u>(uri: &'u Uri, wanted: &str) -> Option<&'u str> {
    let mut pairs = uri.query().unwrap_or_default().split('&');
    pairs.find_map(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        percent_decode_str(name).eq(wanted.bytes()).then_some(value)
    })
}

/// Returns whether the query has a parameter named `wanted`, ignoring case. `wanted` must be in lower case.
fn has_parameter(uri: &Uri, wanted: &str) -> bool {
    uri.query().unwrap_or_default().split('&').any(|pair| {
        let name = pair.split('=').next().unwrap_or_default();
        percent_decode_str(name).map(|byte| byte.to_ascii_lowercase()).eq(wanted.bytes())
    })
}

/// The region that S3 represents as an empty location. Gateways without a region report this region.
pub(crate) const NAMELESS_REGION: &str = "us-east-1";

/// Returns whether `name` has the form of a region's name: lower-case letters, digits and hyphens.
pub(crate) fn is_region(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_owner_of_a_bucket_is_not_whoever_asks() {
        let store = Arc::new(fordway_store::MemoryStore::default());
        let caller = User::of_tests(1001, store.clone());
        let identity = AccessKeyPair { access_key: "key".to_owned(), secret_key: "secret".to_owned() };
        let users = Arc::new(Users::one(identity, store));
        let only = users.find("key").unwrap();
        let signed = RequestAuthenticator::Signed(users);
        assert_eq!(signed.owner_names(&caller, Some(only.uid)), [only.name.as_str()]);
        // If no user of the gateway is known to be the owner, the caller counts as the owner.
        for uid in [None, Some(4_000_000_001), Some(1001)] {
            assert_eq!(signed.owner_names(&caller, uid), ["1001"], "{uid:?}");
        }
        assert_eq!(RequestAuthenticator::Peers.owner_names(&caller, Some(1002)), ["1002"]);
    }

    #[test]
    fn generated_pairs_differ_and_keep_their_secret() {
        let (one, other) = (AccessKeyPair::generate().unwrap(), AccessKeyPair::generate().unwrap());
        assert_eq!((one.access_key.len(), one.secret_key.len()), (20, 40));
        assert_ne!(one.access_key, other.access_key);
        assert_ne!(one.secret_key, other.secret_key);
        assert!(!format!("{one:?}").contains(&one.secret_key));
    }
}
