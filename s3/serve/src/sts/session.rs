//! S3 requests with temporary credentials. The token in a request identifies the session, whose secret key must have
//! signed the request.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use http::{HeaderMap, HeaderName, StatusCode, Uri};
use percent_encoding::percent_decode_str;

use crate::Users;
use crate::gate::GateRefusal;
use crate::identity::{parameter, signed_with_version_2};
use crate::message::composed;
use crate::sts::TokenService;
use crate::sts::token::{self, SessionStarter, SessionToken};
use crate::users::{Role, User};

/// The header that carries a session token.
const TOKEN_HEADER: HeaderName = HeaderName::from_static("x-amz-security-token");
/// The query parameter that carries a session token in a presigned URL.
const TOKEN_PARAMETER: &str = "X-Amz-Security-Token";

tokio::task_local! {
    /// The session of the request that the S3 layer is serving. This variable stores the session, because the S3 layer
    /// does not pass the request to the function that looks up keys.
    static CURRENT: Arc<StsSession>;
}

/// A session: a user who signs with temporary credentials.
pub(crate) struct StsSession {
    pub(crate) user: Arc<User>,
    pub(crate) access_key: String,
    pub(crate) secret_key: String,
}

/// Data about the session of a user.
#[derive(Debug)]
pub(crate) struct SessionAttributes {
    /// The time at which the token was issued, in seconds since 1970.
    pub(crate) issued_s: u64,
    /// The name of the session, if the user is a role.
    pub(crate) role_session: Option<String>,
}

/// The reason why a token is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TokenFault {
    Invalid,
    Expired,
}

impl TokenService {
    /// Returns the session of a token, and the token's parent. `now_s` is the current time in seconds since 1970. A
    /// parent user must still exist and must still be allowed to assume the role. For a parent issuer, the role must
    /// still trust the issuer.
    pub(super) async fn session(
        &self,
        users: &Users,
        text: &str,
        now_s: u64,
    ) -> Result<(StsSession, SessionStarter), TokenFault> {
        let (token, key) = self.key.open(text).ok_or(TokenFault::Invalid)?;
        if now_s >= token.expires_s {
            return Err(TokenFault::Expired);
        }
        let (user, parent_secret) = user_of(users, &token).await.ok_or(TokenFault::Invalid)?;
        let secret_key = token::secret(key, text, &parent_secret);
        Ok((StsSession { user, access_key: token.access_key, secret_key }, token.parent))
    }
}

/// Returns the user of a session, and the secret key of the user who started the session (empty for a web identity).
/// Returns `None` if the session is no longer valid.
async fn user_of(users: &Users, token: &SessionToken) -> Option<(Arc<User>, String)> {
    let issued_s = token.issued_s;
    let of_role = |is_trusted: &dyn Fn(&Role) -> bool| {
        let stated = token.role.as_ref()?;
        users.role(&stated.name).filter(|role| is_trusted(role)).map(|role| (role, stated))
    };
    let (role, secret) = match &token.parent {
        SessionStarter::User(access_key) => {
            let parent = users.find(access_key)?;
            let secret = parent.keys.as_ref()?.secret_key.clone();
            if token.role.is_none() {
                return Some((parent.in_session(SessionAttributes { issued_s, role_session: None }), secret));
            }
            (of_role(&|role| role.may_be_assumed_by(&parent.name))?, secret)
        }
        SessionStarter::Issuer(issuer) => {
            users.provider(issuer)?;
            (of_role(&|role| role.trusts_of(issuer).next().is_some())?, String::new())
        }
    };
    let (role, stated) = role;
    let facts = SessionAttributes { issued_s, role_session: Some(stated.session.clone()) };
    Some((role.acting_as(stated.ids).await?.in_session(facts), secret))
}

/// Returns the session of a request to S3; `None` for a request without a token. Errors: `InvalidToken`,
/// `ExpiredToken`.
pub(crate) async fn session_of(
    service: Option<&TokenService>,
    users: &Users,
    headers: &HeaderMap,
    uri: &Uri,
) -> Result<Option<Arc<StsSession>>, GateRefusal> {
    let in_header = headers.get(TOKEN_HEADER);
    let in_query = uri.query().and_then(|_| parameter(uri, TOKEN_PARAMETER));
    if in_header.is_none() && in_query.is_none() {
        return Ok(None);
    }
    let in_header = in_header.map(|value| value.to_str().unwrap_or_default());
    let in_query = in_query.map(|value| percent_decode_str(value).decode_utf8_lossy());
    let token = match (in_header, in_query.as_deref()) {
        (Some(one), Some(other)) if one != other => return Err(invalid("two tokens differ; send one")),
        (one, other) => one.or(other).unwrap_or_default(),
    };
    if signed_with_version_2(headers, uri) {
        return Err(invalid("temporary credentials need a version 4 signature"));
    }
    session_with(service, users, token).await.map(Some)
}

/// Returns the session of a token from a header, a URL or a form. Errors: `InvalidToken`, `ExpiredToken`.
pub(crate) async fn session_with(
    service: Option<&TokenService>,
    users: &Users,
    token: &str,
) -> Result<Arc<StsSession>, GateRefusal> {
    let session = match service {
        Some(service) => service.session(users, token, now_s()).await,
        None => Err(TokenFault::Invalid),
    };
    match session {
        Ok((session, _)) => Ok(Arc::new(session)),
        Err(TokenFault::Invalid) => Err(invalid(
            "the token is not from this gateway, or its user has been removed or has new keys; get a new token",
        )),
        Err(TokenFault::Expired) => {
            Err(refused("ExpiredToken", "The provided token has expired.", "get a new token"))
        }
    }
}

pub(super) fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn invalid(detail: &str) -> GateRefusal {
    refused("InvalidToken", "The provided token is malformed or otherwise invalid.", detail)
}

fn refused(code: &'static str, words: &str, detail: &str) -> GateRefusal {
    GateRefusal { status: StatusCode::BAD_REQUEST, code, message: composed(words, detail, &[]) }
}

/// Serves a request to S3 that belongs to a session.
pub(crate) async fn with_session<F: Future>(session: Arc<StsSession>, serve: F) -> F::Output {
    CURRENT.scope(session, serve).await
}

/// Returns the session of the request that the calling task serves.
pub(crate) fn current_session() -> Option<Arc<StsSession>> {
    CURRENT.try_with(Arc::clone).ok()
}
