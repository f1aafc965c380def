//! The actions of the token service.

use std::sync::Arc;
use std::time::{Duration, Instant, UNIX_EPOCH};

use fordway_wire::date::format_iso8601;
use http::HeaderMap;

use crate::Users;
use crate::monitor::{OperationCode, RequestTrace, SignedOperation};
use crate::sts::TokenService;
use crate::sts::caller::Caller;
use crate::sts::query::{Parameters, StsFailure, VERSION, document, elements, shown};
use crate::sts::session::now_s;
use crate::sts::token::{SessionToken, new_access_key};
use crate::users::User;

/// The limits of a session of a user, in seconds, and the default (AWS's).
const USER_SESSION_S: (u64, u64) = (900, 129_600);
const USER_SESSION_DEFAULT_S: u64 = 43_200;
/// The account in responses: users here have no accounts, but AWS's programs expect twelve digits.
const ACCOUNT: &str = "000000000000";

impl TokenService {
    /// Carries out the action of a request, and returns the document of the response.
    pub(super) async fn act(
        &self,
        users: &Users,
        (headers, body): (&HeaderMap, &[u8]),
        trace: &Arc<RequestTrace>,
    ) -> Result<String, StsFailure> {
        let mut parameters = Parameters::read(body)?;
        let Some(action) = parameters.take("Action") else {
            return Err(StsFailure::bad("MissingAction", "the request has no Action"));
        };
        let version = parameters.take("Version");
        if version.is_some_and(|version| version != VERSION) {
            return Err(StsFailure::bad("InvalidAction", format!("the Version must be {VERSION}")));
        }
        if !["GetCallerIdentity", "GetSessionToken"].contains(&action.as_str()) {
            let why = format!("Could not find operation {} for version {VERSION}", shown(&action));
            return Err(StsFailure::bad("InvalidAction", why));
        }
        let caller = self.caller(users, headers, body)?;
        admit(trace, &caller.user, &action)?;
        let result = match action.as_str() {
            "GetSessionToken" => self.get_session_token(&caller, &mut parameters),
            _ => get_caller_identity(&caller, &parameters),
        };
        Ok(document(&action, &result?, trace.id.as_str()))
    }

    fn get_session_token(&self, caller: &Caller, parameters: &mut Parameters) -> Result<String, StsFailure> {
        let duration_s = parameters.duration_s(USER_SESSION_DEFAULT_S, USER_SESSION_S)?;
        parameters.check_all_taken()?;
        if caller.user.session.is_some() {
            let why = "Cannot call GetSessionToken with session credentials";
            return Err(StsFailure::forbidden("AccessDenied", why));
        }
        self.credentials(caller, duration_s)
    }

    /// Makes temporary credentials, and returns them as an element.
    fn credentials(&self, caller: &Caller, duration_s: u64) -> Result<String, StsFailure> {
        let issued_s = now_s();
        let access_key = new_access_key().map_err(|error| StsFailure::internal(error.to_string()))?;
        let token = SessionToken {
            access_key,
            parent: caller.parent.clone(),
            issued_s,
            expires_s: issued_s + duration_s,
        };
        let text = self.key.seal(&token);
        let secret = self.key.secret_of_new(&text, &caller.parent_secret);
        let expiration = format_iso8601(UNIX_EPOCH + Duration::from_secs(token.expires_s));
        let inner = elements(&[
            ("AccessKeyId", &token.access_key),
            ("SecretAccessKey", &secret),
            ("SessionToken", &text),
            ("Expiration", &expiration),
        ]);
        Ok(format!("<Credentials>{inner}</Credentials>"))
    }
}

fn get_caller_identity(caller: &Caller, parameters: &Parameters) -> Result<String, StsFailure> {
    parameters.check_all_taken()?;
    let user = &caller.user;
    let (arn, id) = (user.arn(), user.userid());
    Ok(elements(&[("Arn", &arn), ("UserId", &id), ("Account", ACCOUNT)]))
}

/// Records the caller in the request's trace. Errors: `Throttling` for a user who is at a limit.
fn admit(trace: &RequestTrace, user: &Arc<User>, action: &str) -> Result<(), StsFailure> {
    let (operation, at) = (OperationCode::named(action), Instant::now());
    trace
        .admit(SignedOperation { user: user.clone(), operation, names: None, at })
        .map_err(|_| StsFailure::bad("Throttling", "Rate exceeded: too many requests are in flight"))
}
