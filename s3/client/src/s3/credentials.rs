//! Finds the credentials in the environment, and in the configuration files that all AWS tools share.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use fordway_store::{Error, ErrorKind, Result};

use super::process;
use super::profile::{CredentialProfile, ProfileFileKind};
use super::renewal::RenewedKeys;

/// The credentials with which requests are signed. The secret key never appears in `Debug` output.
#[derive(Clone, PartialEq, Eq)]
pub enum S3Credentials {
    /// Requests are not signed.
    Anonymous,
    /// Requests are signed with these keys.
    Keys {
        /// The access key ID, which is public.
        access_key: String,
        /// The secret access key, which signs requests.
        secret_key: String,
        /// The session token of temporary credentials.
        session_token: Option<String>,
        /// The source of the keys, as a phrase for messages, such as `AWS_ACCESS_KEY_ID in the environment`.
        source: String,
    },
    /// Requests are signed with keys that expire, and that are renewed before they expire.
    Renewed(RenewedKeys),
}

/// Credentials with which a request can be signed: [`S3Credentials::Anonymous`] or [`S3Credentials::Keys`].
pub enum CurrentCredentials<'a> {
    /// The credentials do not expire.
    Permanent(&'a S3Credentials),
    /// The current keys of [`S3Credentials::Renewed`].
    Renewed(Arc<S3Credentials>),
}

impl Deref for CurrentCredentials<'_> {
    type Target = S3Credentials;

    fn deref(&self) -> &S3Credentials {
        match self {
            CurrentCredentials::Permanent(credentials) => credentials,
            CurrentCredentials::Renewed(credentials) => credentials,
        }
    }
}

impl S3Credentials {
    /// Creates credentials from permanent keys; `source` is a phrase that describes the source of the keys in messages.
    pub fn keys(
        access_key: impl Into<String>,
        secret_key: impl Into<String>,
        source: impl Into<String>,
    ) -> Self {
        S3Credentials::Keys {
            access_key: access_key.into(),
            secret_key: secret_key.into(),
            session_token: None,
            source: source.into(),
        }
    }

    /// Returns the credentials for a request that is sent now. Renews keys that expire soon, which takes at most
    /// `limit`. Errors: the keys have expired and cannot be renewed. Cost: no system call unless keys are renewed.
    pub fn current(&self, limit: Duration) -> Result<CurrentCredentials<'_>> {
        match self {
            S3Credentials::Renewed(keys) => keys.current(limit).map(CurrentCredentials::Renewed),
            permanent => Ok(CurrentCredentials::Permanent(permanent)),
        }
    }

    /// Returns the credentials without renewing them.
    pub fn last(&self) -> CurrentCredentials<'_> {
        match self {
            S3Credentials::Renewed(keys) => CurrentCredentials::Renewed(keys.last()),
            permanent => CurrentCredentials::Permanent(permanent),
        }
    }

    /// Returns the first keys that are found. As in AWS tools, the order is: the environment, the profile in the
    /// credentials file, the profile's `credential_process` (whose keys are renewed), and the profile in the config
    /// file. Returns [`S3Credentials::Anonymous`] if there are no keys. Errors: `InvalidArgument` if an access key ID
    /// has no secret access key, or the reverse; `NotImplemented` if AWS tools would first use a kind of credentials
    /// that this client does not support. Other keys are not used instead of unsupported credentials, because they may
    /// belong to another user.
    pub(super) fn find(
        variable: &dyn Fn(&str) -> Option<String>,
        profile: &CredentialProfile,
    ) -> Result<Self> {
        let get = |name: &str| variable(name).filter(|value| !value.is_empty());
        let token = get("AWS_SESSION_TOKEN").or_else(|| get("AWS_SECURITY_TOKEN"));
        let keys = (get("AWS_ACCESS_KEY_ID"), get("AWS_SECRET_ACCESS_KEY"), token);
        if let Some(found) = pair(keys, "AWS_ACCESS_KEY_ID in the environment")? {
            return Ok(found);
        }
        if get("AWS_WEB_IDENTITY_TOKEN_FILE").is_some() && get("AWS_ROLE_ARN").is_some() {
            return Err(unsupported("the environment", "AWS_WEB_IDENTITY_TOKEN_FILE", ""));
        }
        if let Some(setting) = UNSUPPORTED.into_iter().find(|name| profile.get(name).is_some()) {
            let export = format!(" --profile {}", profile.name());
            return Err(unsupported(&profile.described(ProfileFileKind::Config), setting, &export));
        }
        if let Some(found) = Self::in_file(profile, ProfileFileKind::Credentials)? {
            return Ok(found);
        }
        if let Some(command) = profile.get("credential_process") {
            return process::credentials(command, profile.name());
        }
        if let Some(found) = Self::in_file(profile, ProfileFileKind::Config)? {
            return Ok(found);
        }
        match CONTAINER_VARIABLES.into_iter().find(|name| get(name).is_some()) {
            Some(name) => Err(unsupported("the environment", name, "")),
            None => Ok(S3Credentials::Anonymous),
        }
    }

    pub(super) fn in_file(profile: &CredentialProfile, file: ProfileFileKind) -> Result<Option<Self>> {
        let source = profile.described(file);
        let get = |name: &str| match profile.get_in(file, name).filter(|value| !value.is_empty()) {
            // A value in quotes is refused: AWS tools would use the quotes as a part of the key, and the service would
            // report an unknown key.
            Some(value) if value.starts_with(['"', '\'']) => {
                let why = format!("the value of {name} in {source} is in quotes; write it without them");
                Err(Error::new(ErrorKind::InvalidArgument, why))
            }
            found => Ok(found.map(str::to_owned)),
        };
        let token = get("aws_session_token")?.map_or_else(|| get("aws_security_token"), |it| Ok(Some(it)))?;
        pair((get("aws_access_key_id")?, get("aws_secret_access_key")?, token), &source)
    }

    /// Returns a phrase that describes the credentials in messages.
    pub fn described(&self) -> String {
        match self {
            S3Credentials::Anonymous => {
                "no credentials (neither AWS_ACCESS_KEY_ID nor the profile has a key)".to_owned()
            }
            S3Credentials::Keys { access_key, source, .. } => {
                format!("access key {access_key} from {source}")
            }
            S3Credentials::Renewed(keys) => keys.described(),
        }
    }
}

/// Settings of a profile that make AWS tools fetch temporary credentials from an AWS service.
const UNSUPPORTED: [&str; 6] = [
    "role_arn",
    "web_identity_token_file",
    "sso_session",
    "sso_start_url",
    "sso_account_id",
    "login_session",
];

/// Environment variables that tell AWS tools where to fetch temporary credentials in a container.
const CONTAINER_VARIABLES: [&str; 2] =
    ["AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI"];

fn unsupported(place: &str, setting: &str, export: &str) -> Error {
    let why = format!(
        "{place} has {setting}, which this client does not support; set the keys that `aws configure \
         export-credentials{export} --format env` (aws-cli 2) prints, or use a credential_process"
    );
    Error::new(ErrorKind::NotImplemented, why)
}

type RawCredentials = (Option<String>, Option<String>, Option<String>);

fn pair(
    (access_key, secret_key, session_token): RawCredentials,
    source: &str,
) -> Result<Option<S3Credentials>> {
    let half = |missing: &str| {
        let detail = format!("credentials from {source} have no {missing}; set both keys or neither");
        Err(Error::new(ErrorKind::InvalidArgument, detail))
    };
    match (access_key, secret_key) {
        (None, None) => Ok(None),
        (None, Some(_)) => half("access key"),
        (Some(_), None) => half("secret key"),
        (Some(access_key), Some(secret_key)) => {
            Ok(Some(S3Credentials::Keys { access_key, secret_key, session_token, source: source.to_owned() }))
        }
    }
}

impl fmt::Debug for S3Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.described())
    }
}
