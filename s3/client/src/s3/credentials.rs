//! Who signs, and where that was found.

use std::fmt;

use fordway_store::{Error, ErrorKind, Result};

use super::profile::Profile;

/// Keys to sign with, or none. The secret never shows in `Debug` output.
#[derive(Clone, PartialEq, Eq)]
pub enum Credentials {
    /// Requests are not signed.
    Anonymous,
    /// Requests are signed with these keys.
    Keys {
        /// Names the key; not secret.
        access_key: String,
        /// Signs.
        secret_key: String,
        /// Goes along with temporary keys.
        session_token: Option<String>,
        /// Where the keys were found, for messages: `AWS_ACCESS_KEY_ID in the environment`.
        source: String,
    },
}

impl Credentials {
    /// Permanent keys that the caller has from `source`, a phrase for messages.
    pub fn keys(
        access_key: impl Into<String>,
        secret_key: impl Into<String>,
        source: impl Into<String>,
    ) -> Self {
        Credentials::Keys {
            access_key: access_key.into(),
            secret_key: secret_key.into(),
            session_token: None,
            source: source.into(),
        }
    }

    /// The keys of the environment, else the profile's, else none.
    /// Errors: `InvalidArgument` where one half of a pair is missing.
    pub(super) fn find(variable: &dyn Fn(&str) -> Option<String>, profile: &Profile) -> Result<Self> {
        let get = |name: &str| variable(name).filter(|value| !value.is_empty());
        let from_environment = pair(
            (get("AWS_ACCESS_KEY_ID"), get("AWS_SECRET_ACCESS_KEY"), get("AWS_SESSION_TOKEN")),
            "AWS_ACCESS_KEY_ID in the environment",
        )?;
        if let Some(found) = from_environment {
            return Ok(found);
        }
        let get = |name: &str| profile.get(name).map(str::to_owned);
        let keys = (get("aws_access_key_id"), get("aws_secret_access_key"), get("aws_session_token"));
        Ok(pair(keys, &profile.described())?.unwrap_or(Credentials::Anonymous))
    }

    /// How messages call them.
    pub fn described(&self) -> String {
        match self {
            Credentials::Anonymous => "no credentials (AWS_ACCESS_KEY_ID is not set)".to_owned(),
            Credentials::Keys { access_key, source, .. } => format!("access key {access_key} from {source}"),
        }
    }
}

type Found = (Option<String>, Option<String>, Option<String>);

fn pair((access_key, secret_key, session_token): Found, source: &str) -> Result<Option<Credentials>> {
    let half = |missing: &str| {
        let detail = format!("credentials from {source} have no {missing}; set both keys or neither");
        Err(Error::new(ErrorKind::InvalidArgument, detail))
    };
    match (access_key, secret_key) {
        (None, None) => Ok(None),
        (None, Some(_)) => half("access key"),
        (Some(_), None) => half("secret key"),
        (Some(access_key), Some(secret_key)) => {
            Ok(Some(Credentials::Keys { access_key, secret_key, session_token, source: source.to_owned() }))
        }
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.described())
    }
}
