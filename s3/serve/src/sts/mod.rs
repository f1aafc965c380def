//! The token service (AWS STS), at the same address as S3. Users exchange their keys for temporary credentials. Session
//! tokens are authenticated documents, so the gateway need not store the tokens. Gateways with the same session key
//! accept each other's tokens.
//!
//! * `actions`: the actions of the service
//! * `query`: AWS's query protocol, in which requests are forms and responses are XML documents
//! * `caller`: the signatures of requests for the service
//! * `token`: session tokens and their keys
//! * `session`: requests to S3 with temporary credentials
//! * `provider`: OIDC providers and their keys
//! * `jwt`, `jwk`: web identity tokens, and the keys that verify them

mod actions;
mod caller;
mod jwk;
mod jwt;
mod provider;
mod query;
mod session;
mod token;

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;

use http::header::{CONTENT_TYPE, HeaderValue};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body::Body as _;
use s3s::Body;

use crate::Users;
use crate::domains::BucketDomains;
use crate::monitor::RequestTrace;
pub(crate) use provider::{IdentityProvider, IdentityProviderEntry, RoleTrust};
pub(crate) use session::{
    SessionAttributes, StsSession, current_session, session_of, session_with, with_session,
};
pub use token::SessionTokenKeys;

use query::StsFailure;

/// The token service of a gateway.
pub(crate) struct TokenService {
    key: SessionTokenKeys,
}

/// The maximum size of a request's body; the longest parameter is a web identity token of 20,000 characters.
const BODY_BYTES_MAX: usize = 64 * 1024;

/// Returns whether a request is for the token service. Such a request posts a form to `/`, which no S3 request does.
pub(crate) fn is_call<B>(request: &Request<B>, domains: &BucketDomains) -> bool {
    const FORM: &[u8] = b"application/x-www-form-urlencoded";
    let is_form = |headers: &HeaderMap| {
        let kind = headers.get(CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
        kind.get(..FORM.len()).is_some_and(|start| start.eq_ignore_ascii_case(FORM))
    };
    let (uri, headers) = (request.uri(), request.headers());
    request.method() == Method::POST
        && uri.path() == "/"
        && uri.query().is_none()
        && is_form(headers)
        && domains.names(headers, uri).0.is_empty()
}

impl TokenService {
    /// Creates the service. If `key` is `None`, generates a key; tokens then become invalid when this process exits.
    /// Errors: `Io`.
    pub(crate) fn new(key: Option<SessionTokenKeys>) -> fordway_store::Result<Self> {
        Ok(TokenService { key: key.map_or_else(SessionTokenKeys::random, Ok)? })
    }

    /// Answers a request for which [`is_call`] returns true.
    pub(crate) async fn answer(
        &self,
        users: &Users,
        request: Request<Body>,
        trace: &Arc<RequestTrace>,
    ) -> Response<Body> {
        let (parts, body) = request.into_parts();
        let answered = match read_all(body).await {
            Ok(body) => self.act(users, (&parts.headers, &body), trace).await,
            Err(failure) => Err(failure),
        };
        let (status, document) = match answered {
            Ok(document) => (StatusCode::OK, document),
            Err(failure) => (failure.status, failure.document(trace.id.as_str())),
        };
        let mut response = Response::new(Body::from(document));
        *response.status_mut() = status;
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/xml"));
        response
    }
}

async fn read_all(mut body: Body) -> Result<Vec<u8>, StsFailure> {
    let mut read = Vec::new();
    while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
        let frame = frame.map_err(|_| StsFailure::validation("the body of the request could not be read"))?;
        let Ok(data) = frame.into_data() else { continue };
        if read.len() + data.len() > BODY_BYTES_MAX {
            let mut failure = StsFailure::validation("the request is larger than 64 KiB");
            failure.status = StatusCode::PAYLOAD_TOO_LARGE;
            return Err(failure);
        }
        read.extend_from_slice(&data);
    }
    Ok(read)
}

/// Passes an input to each parser of this module.
#[cfg(feature = "fuzzing")]
pub(crate) fn fuzz(bytes: &[u8]) {
    let _parameters = query::Parameters::read(bytes);
    let _document = crate::outgoing::body_of(bytes);
    let keys = jwk::read_keys(bytes).unwrap_or_default();
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let key = SessionTokenKeys::random().expect("the system has random bytes");
    assert!(key.open(text).is_none(), "a token that nobody made");
    if let Ok(token) = jwt::UnverifiedWebIdentityToken::read(text.trim()) {
        let _fault = token.check_claims(0);
        assert!(!token.is_signed_by(&keys), "a token that nobody signed");
    }
}
