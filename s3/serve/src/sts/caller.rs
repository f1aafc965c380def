//! The sender of a request for the token service: a user with keys, or a user in a session.

use std::sync::Arc;
use std::time::SystemTime;

use fordway_wire::date::parse_amz_date;
use fordway_wire::sigv4::{AuthorizationHeader, CanonicalRequest, SigningKey, payload_hash};
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName};

use crate::Users;
use crate::identity::CLOCK_SKEW_MAX;
use crate::sts::TokenService;
use crate::sts::query::StsFailure;
use crate::sts::session::{TokenFault, now_s};
use crate::sts::token::SessionStarter;
use crate::users::User;

/// The sender of a signed request.
pub(super) struct Caller {
    pub(super) user: Arc<User>,
    /// The caller, or the user or the issuer for whom the caller's session was started.
    pub(super) parent: SessionStarter,
    /// The long-term secret key; empty for a web identity.
    pub(super) parent_secret: String,
}

impl TokenService {
    /// Returns the sender of a request. Errors: AWS's errors for an invalid signature or token.
    pub(super) async fn caller(
        &self,
        users: &Users,
        headers: &HeaderMap,
        body: &[u8],
    ) -> Result<Caller, StsFailure> {
        let Some(value) = headers.get(AUTHORIZATION) else {
            let why = "Request is missing Authentication Token";
            return Err(StsFailure::forbidden("MissingAuthenticationToken", why));
        };
        let authorization = value.to_str().ok().and_then(AuthorizationHeader::parse).ok_or_else(|| {
            let why =
                "Authorization must be a version 4 signature with Credential, SignedHeaders and Signature";
            StsFailure::bad("IncompleteSignature", why)
        })?;
        let (caller, access_key, secret_key) = self.signer(users, headers, authorization.access_key).await?;
        if access_key != authorization.access_key {
            return Err(unknown_key());
        }
        check_signature(headers, body, &authorization, &secret_key).map(|()| caller)
    }

    /// Returns the caller, and the access key and the secret key with which the request must be signed.
    async fn signer(
        &self,
        users: &Users,
        headers: &HeaderMap,
        access_key: &str,
    ) -> Result<(Caller, String, String), StsFailure> {
        let parent_of = |parent: &str| {
            let user = users.find(parent).ok_or_else(unknown_key)?;
            let secret = user.keys.as_ref().map(|keys| keys.secret_key.clone()).ok_or_else(unknown_key)?;
            Ok((user, secret))
        };
        let Some(token) = headers.get("x-amz-security-token") else {
            let (user, secret) = parent_of(access_key)?;
            let parent = SessionStarter::User(access_key.to_owned());
            let caller = Caller { user, parent, parent_secret: secret.clone() };
            return Ok((caller, access_key.to_owned(), secret));
        };
        let token = token.to_str().unwrap_or_default();
        let (session, parent) = self.session(users, token, now_s()).await.map_err(|fault| match fault {
            TokenFault::Invalid => unknown_key(),
            TokenFault::Expired => {
                StsFailure::forbidden("ExpiredToken", "The security token included in the request is expired")
            }
        })?;
        let parent_secret = match &parent {
            SessionStarter::User(access_key) => parent_of(access_key)?.1,
            SessionStarter::Issuer(_) => String::new(),
        };
        let caller = Caller { user: session.user, parent, parent_secret };
        Ok((caller, session.access_key, session.secret_key))
    }
}

fn unknown_key() -> StsFailure {
    let why = "The security token included in the request is invalid.";
    StsFailure::forbidden("InvalidClientTokenId", why)
}

fn check_signature(
    headers: &HeaderMap,
    body: &[u8],
    authorization: &AuthorizationHeader<'_>,
    secret_key: &str,
) -> Result<(), StsFailure> {
    let wrong = |why: &str| Err(StsFailure::forbidden("SignatureDoesNotMatch", why));
    let AuthorizationHeader { day, region, service, signature, signed_headers, .. } = *authorization;
    if service != "sts" {
        return wrong("Credential should be scoped to correct service: 'sts'.");
    }
    let date = headers.get("x-amz-date").and_then(|value| value.to_str().ok()).unwrap_or_default();
    let Some(signed) = parse_amz_date(date) else {
        return Err(StsFailure::bad("IncompleteSignature", "the request needs a valid x-amz-date header"));
    };
    let now = SystemTime::now();
    let apart = now.duration_since(signed).unwrap_or_else(|ahead| ahead.duration());
    if apart >= CLOCK_SKEW_MAX {
        return wrong("Signature expired or not yet valid: the clocks differ by more than 15 minutes.");
    }
    if !date.starts_with(day) || day.len() != 8 {
        return wrong("Date in Credential scope does not match YYYYMMDD from ISO-8601 version of date");
    }
    let names: Vec<&str> = signed_headers.split(';').collect();
    let Some(values) = names.iter().map(|name| value_of(headers, name)).collect::<Option<Vec<_>>>() else {
        return wrong("a signed header is missing, or is not text");
    };
    let is_left_out = |name: &HeaderName| {
        let must_be_signed = name == "host" || name.as_str().starts_with("x-amz-");
        must_be_signed && name != "x-amz-user-agent" && !names.contains(&name.as_str())
    };
    if !names.contains(&"host") || headers.keys().any(is_left_out) {
        return wrong("'Host' and all 'X-Amz-' headers must be signed.");
    }
    let pairs: Vec<(&str, &str)> =
        names.iter().copied().zip(values.iter().map(|value| value.as_str())).collect();
    let request = CanonicalRequest {
        method: "POST",
        path: "/",
        query: "",
        headers: &pairs,
        payload_hash: &payload_hash(body),
    };
    match SigningKey::for_day(secret_key, day, region, service).verifies(signature, date, &request) {
        true => Ok(()),
        false => wrong(
            "The request signature we calculated does not match the signature you provided. Check your AWS Secret \
             Access Key and signing method.",
        ),
    }
}

/// Returns the value of a header for the canonical request: the values of all headers with this name, joined by commas.
/// Returns `None` if the header is missing or is not text.
fn value_of(headers: &HeaderMap, name: &str) -> Option<String> {
    let values: Option<Vec<&str>> = headers.get_all(name).iter().map(|value| value.to_str().ok()).collect();
    values.filter(|values| !values.is_empty()).map(|values| values.join(","))
}
