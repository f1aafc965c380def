//! The actions of the token service.

use std::sync::Arc;
use std::time::{Duration, Instant, UNIX_EPOCH};

use fordway_policy::session_arn;
use fordway_wire::date::format_iso8601;
use http::HeaderMap;
use serde_json::Value;

use crate::Users;
use crate::monitor::{IdentifiedOperation, OperationCode, RequestTrace};
use crate::sts::TokenService;
use crate::sts::caller::Caller;
use crate::sts::jwt::{ClaimFault, UnverifiedWebIdentityToken};
use crate::sts::query::{Parameters, StsFailure, VERSION, document, elements, shown};
use crate::sts::session::{SessionAttributes, now_s};
use crate::sts::token::{RoleInToken, SessionStarter, SessionToken, new_access_key};
use crate::users::{Role, UidGidClaimNames, User};

const ACTIONS: [&str; 4] =
    ["AssumeRole", "AssumeRoleWithWebIdentity", "GetCallerIdentity", "GetSessionToken"];
/// The minimum and the maximum lifetime of a user's session, in seconds (AWS's values). The next constant is the
/// default lifetime.
const USER_SESSION_S: (u64, u64) = (900, 129_600);
const USER_SESSION_DEFAULT_S: u64 = 43_200;
/// The minimum and the maximum lifetime of a role's session, in seconds (AWS's values). The next constant is the
/// default lifetime. The role may have a lower maximum.
const ROLE_SESSION_S: (u64, u64) = (900, 43_200);
const ROLE_SESSION_DEFAULT_S: u64 = 3600;
/// The account ID in responses. The gateway's users have no accounts, but AWS's programs expect an ID of twelve digits.
const ACCOUNT: &str = "000000000000";

impl TokenService {
    /// Performs the action of a request, and returns the document of the response.
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
        if !ACTIONS.contains(&action.as_str()) {
            let why = format!("Could not find operation {} for version {VERSION}", shown(&action));
            return Err(StsFailure::bad("InvalidAction", why));
        }
        if action == "AssumeRoleWithWebIdentity" {
            let result = self.assume_role_with_web_identity(users, &mut parameters, trace).await;
            return Ok(document(&action, &result?, trace.id.as_str()));
        }
        let caller = self.caller(users, headers, body).await?;
        admit(trace, &caller.user, &action)?;
        let result = match action.as_str() {
            "AssumeRole" => self.assume_role(users, &caller, &mut parameters),
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
        self.credentials((&caller.parent, &caller.parent_secret), None, duration_s)
    }

    fn assume_role(
        &self,
        users: &Users,
        caller: &Caller,
        parameters: &mut Parameters,
    ) -> Result<String, StsFailure> {
        let arn = parameters.required("RoleArn")?;
        let session = role_session_name(parameters)?;
        let denied = || {
            let (caller, role) = (caller.user.arn(), shown(&arn));
            let why =
                format!("User: {caller} is not authorized to perform: sts:AssumeRole on resource: {role}");
            StsFailure::forbidden("AccessDenied", why)
        };
        let name = role_name(&arn)?;
        // Only users can assume a role with this action. A session of a role therefore cannot assume another role.
        let is_user = caller.user.role_session().is_none();
        let role = users.role(name).filter(|role| is_user && role.may_be_assumed_by(&caller.user.name));
        let role = role.ok_or_else(denied)?;
        let duration_s = role_duration_s(parameters, &role)?;
        // On AWS, this parameter has an effect only if the trust policy of the role has a condition on it. The roles of
        // this gateway have no such conditions.
        parameters.take("ExternalId");
        parameters.check_all_taken()?;
        let in_token = RoleInToken { name: name.to_owned(), session, ids: None };
        let credentials =
            self.credentials((&caller.parent, &caller.parent_secret), Some(in_token.clone()), duration_s)?;
        Ok(credentials + &assumed_role_user(&in_token))
    }

    async fn assume_role_with_web_identity(
        &self,
        users: &Users,
        parameters: &mut Parameters,
        trace: &Arc<RequestTrace>,
    ) -> Result<String, StsFailure> {
        let arn = parameters.required("RoleArn")?;
        let session = role_session_name(parameters)?;
        let text = parameters.required("WebIdentityToken")?;
        let identity = verified(users, &text).await?;
        let name = role_name(&arn)?;
        let is_trusted = |role: &Arc<Role>| {
            role.trusts_of(&identity.issuer).any(|trust| trust.is_met_by(&identity.token.claims))
        };
        let role = users.role(name).filter(is_trusted).ok_or_else(|| {
            let why = "Not authorized to perform sts:AssumeRoleWithWebIdentity";
            StsFailure::forbidden("AccessDenied", why)
        })?;
        let duration_s = role_duration_s(parameters, &role)?;
        parameters.check_all_taken()?;
        let ids = role.id_claims.as_ref().map(|claims| stated_ids(&identity.token, claims)).transpose()?;
        let user = role.acting_as(ids).await;
        let user = user.ok_or_else(|| {
            StsFailure::forbidden("AccessDenied", "The role cannot act as the uid and gid in the token")
        })?;
        let facts = SessionAttributes { issued_s: now_s(), role_session: Some(session.clone()) };
        admit(trace, &user.in_session(facts), "AssumeRoleWithWebIdentity")?;
        let in_token = RoleInToken { name: name.to_owned(), session, ids };
        let parent = SessionStarter::Issuer(identity.issuer.clone());
        let credentials = self.credentials((&parent, ""), Some(in_token.clone()), duration_s)?;
        let subject = identity.token.text("sub").unwrap_or_default();
        // The caller chooses the name of the session, so this log line records the verified identity.
        tracing::info!(
            request_id = trace.id.as_str(),
            issuer = identity.issuer,
            subject,
            role = name,
            session = in_token.session,
            "a web identity has assumed a role"
        );
        let facts = [
            ("SubjectFromWebIdentityToken", subject),
            ("Audience", &identity.audience),
            ("Provider", &identity.issuer),
        ];
        Ok(credentials + &assumed_role_user(&in_token) + &elements(&facts))
    }

    /// Creates temporary credentials, and returns them as an XML element.
    fn credentials(
        &self,
        (parent, parent_secret): (&SessionStarter, &str),
        role: Option<RoleInToken>,
        duration_s: u64,
    ) -> Result<String, StsFailure> {
        let issued_s = now_s();
        let access_key = new_access_key().map_err(|error| StsFailure::internal(error.to_string()))?;
        let token = SessionToken {
            access_key,
            parent: parent.clone(),
            role,
            issued_s,
            expires_s: issued_s + duration_s,
        };
        let text = self.key.seal(&token);
        let secret = self.key.secret_of_new(&text, parent_secret);
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

/// A web identity token whose signature and claims were verified.
struct VerifiedWebIdentity<'t> {
    token: UnverifiedWebIdentityToken<'t>,
    issuer: String,
    audience: String,
}

/// Verifies a web identity token. Errors: `InvalidIdentityToken`, `ExpiredTokenException`, `IDPCommunicationError`.
async fn verified<'t>(users: &Users, text: &'t str) -> Result<VerifiedWebIdentity<'t>, StsFailure> {
    let invalid = |why: &str| {
        StsFailure::bad("InvalidIdentityToken", format!("The web identity token is refused: {why}"))
    };
    let token = UnverifiedWebIdentityToken::read(text).map_err(invalid)?;
    let issuer = token.text("iss").unwrap_or_default().to_owned();
    let provider = users.provider(&issuer).ok_or_else(|| invalid("its issuer is unknown here"))?;
    if !provider.entry.allows(token.algorithm) {
        return Err(invalid("its algorithm is not allowed"));
    }
    // The claims are checked before the signature, so that an old token does not make the gateway send requests to the
    // provider.
    let audience = token.audience(provider.entry.audience());
    let audience = audience.ok_or_else(|| invalid("it is for another audience"))?.to_owned();
    match token.check_claims(now_s()) {
        Ok(()) => {}
        Err(ClaimFault::Invalid(why)) => return Err(invalid(why)),
        Err(ClaimFault::Expired) => {
            return Err(StsFailure::bad("ExpiredTokenException", "The web identity token has expired"));
        }
    }
    // Only the log contains the reason, because the caller is not authenticated and need not learn about the gateway's
    // network.
    let is_signed = provider.has_key(|keys| token.is_signed_by(keys)).await.ok_or_else(|| {
        let why = "The keys of the identity provider cannot be fetched; the gateway's log states the reason";
        StsFailure::bad("IDPCommunicationError", why)
    })?;
    match is_signed {
        true => Ok(VerifiedWebIdentity { token, issuer, audience }),
        false => Err(invalid("no key of its issuer has signed it")),
    }
}

/// Returns the uid and the gid that a token contains, as numbers or as strings of digits. Errors: `IDPRejectedClaim`.
fn stated_ids(
    token: &UnverifiedWebIdentityToken<'_>,
    claims: &UidGidClaimNames,
) -> Result<(u32, u32), StsFailure> {
    let id = |claim: &str| {
        let value = token.claims.get(claim);
        let number = value.and_then(Value::as_u64).and_then(|id| u32::try_from(id).ok());
        let id = number.or_else(|| value?.as_str()?.parse().ok());
        id.ok_or_else(|| {
            let why = format!("The claim {} is not a number", shown(claim));
            StsFailure::forbidden("IDPRejectedClaim", why)
        })
    };
    Ok((id(&claims.uid)?, id(&claims.gid)?))
}

fn assumed_role_user(role: &RoleInToken) -> String {
    let RoleInToken { name, session, .. } = role;
    let (id, arn) = (format!("{name}:{session}"), session_arn(name, session));
    format!("<AssumedRoleUser>{}</AssumedRoleUser>", elements(&[("AssumedRoleId", &id), ("Arn", &arn)]))
}

/// Returns the name of a role from its ARN, in any account and any partition of AWS (such as `aws-cn`). A path before
/// the name is ignored. Errors: `ValidationError`.
fn role_name(arn: &str) -> Result<&str, StsFailure> {
    let is_of_aws = |partition: &str| {
        partition.starts_with("aws")
            && partition.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-')
    };
    let resource = arn.strip_prefix("arn:").and_then(|rest| rest.split_once(":iam::"));
    let name = resource.filter(|(partition, _)| is_of_aws(partition));
    name.and_then(|(_, rest)| rest.split_once(":role/"))
        .filter(|(account, _)| account.bytes().all(|byte| byte.is_ascii_digit()))
        .and_then(|(_, path)| path.rsplit('/').next())
        .filter(|name| !name.is_empty())
        .ok_or_else(|| StsFailure::validation(&format!("{} is invalid", shown(arn))))
}

/// Removes and returns the name of a session, which must have 2 to 64 characters. Errors: `ValidationError`.
fn role_session_name(parameters: &mut Parameters) -> Result<String, StsFailure> {
    let name = parameters.required("RoleSessionName")?;
    let is_permitted = |byte: u8| byte.is_ascii_alphanumeric() || b"_+=,.@-".contains(&byte);
    match (2..=64).contains(&name.len()) && name.bytes().all(is_permitted) {
        true => Ok(name),
        false => Err(StsFailure::constraint(&format!(
            "Value '{}' at 'roleSessionName' failed to satisfy constraint: Member must satisfy regular expression \
             pattern: [\\w+=,.@-]{{2,64}}",
            shown(&name)
        ))),
    }
}

/// Removes and returns the lifetime of a role's session, in seconds. Errors: `ValidationError`.
fn role_duration_s(parameters: &mut Parameters, role: &Role) -> Result<u64, StsFailure> {
    let default = ROLE_SESSION_DEFAULT_S.min(role.max_duration_s);
    let seconds = parameters.duration_s(default, ROLE_SESSION_S)?;
    match seconds <= role.max_duration_s {
        true => Ok(seconds),
        false => {
            let why = "The requested DurationSeconds exceeds the MaxSessionDuration set for this role.";
            Err(StsFailure::validation(why))
        }
    }
}

fn get_caller_identity(caller: &Caller, parameters: &Parameters) -> Result<String, StsFailure> {
    parameters.check_all_taken()?;
    let user = &caller.user;
    let arn = match user.role_session() {
        Some(session) => session_arn(&user.name, session),
        None => user.arn(),
    };
    let id = user.userid();
    Ok(elements(&[("Arn", &arn), ("UserId", &id), ("Account", ACCOUNT)]))
}

/// Records the caller in the request's trace. Errors: `Throttling` for a user who has reached a limit.
fn admit(trace: &RequestTrace, user: &Arc<User>, action: &str) -> Result<(), StsFailure> {
    let (operation, at) = (OperationCode::named(action), Instant::now());
    trace
        .admit(IdentifiedOperation { user: user.clone(), operation, names: None, at })
        .map_err(|refusal| StsFailure::bad("Throttling", format!("Rate exceeded: {}", refusal.reason.why())))
}
