//! Finds the credentials: in the environment, and in the configuration files that all AWS tools share.

use std::fmt;
use std::path::{Path, PathBuf};

use fordway_store::{Error, ErrorKind, Result};

/// The credentials that requests are signed with. The secret never appears in `Debug` output.
#[derive(Clone, PartialEq, Eq)]
pub enum S3Credentials {
    /// Requests are not signed.
    Anonymous,
    /// Requests are signed with these keys.
    Keys {
        /// The public half, which identifies the key.
        access_key: String,
        /// The secret half, which signs requests.
        secret_key: String,
        /// The session token of temporary keys.
        session_token: Option<String>,
        /// Where the keys were found, as a phrase for messages, such as `AWS_ACCESS_KEY_ID in the environment`.
        source: String,
    },
}

impl S3Credentials {
    /// Creates credentials from permanent keys; `source` is a phrase that says, in messages, where they were found.
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

    /// Returns the keys in the environment, else the keys of the profile, else [`S3Credentials::Anonymous`]. Errors:
    /// `InvalidArgument` if one half of a pair is missing.
    pub(super) fn find(
        variable: &dyn Fn(&str) -> Option<String>,
        profile: &CredentialProfile,
    ) -> Result<Self> {
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
        Ok(pair(keys, &profile.described())?.unwrap_or(S3Credentials::Anonymous))
    }

    /// Returns a phrase that describes the credentials in messages.
    pub fn described(&self) -> String {
        match self {
            S3Credentials::Anonymous => "no credentials (AWS_ACCESS_KEY_ID is not set)".to_owned(),
            S3Credentials::Keys { access_key, source, .. } => {
                format!("access key {access_key} from {source}")
            }
        }
    }
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

type ProfileSection = (String, Vec<(String, String)>);

/// The settings of one profile. Settings in the credentials file take precedence over settings in the config file.
#[derive(Default)]
pub(super) struct CredentialProfile {
    name: String,
    credentials_file: PathBuf,
    settings: Vec<(String, String)>,
}

impl CredentialProfile {
    /// Reads the profile that `AWS_PROFILE` names, or `default`. A missing file counts as empty. Errors:
    /// `InvalidArgument` if a profile is named but does not exist, `Io`.
    pub(super) fn load(variable: &dyn Fn(&str) -> Option<String>) -> Result<Self> {
        let get = |name: &str| variable(name).filter(|value| !value.is_empty());
        let wanted = get("AWS_PROFILE");
        let name = wanted.clone().unwrap_or_else(|| "default".to_owned());
        let home = PathBuf::from(get("HOME").unwrap_or_default());
        let path = |name: &str, usual: &str| get(name).map_or_else(|| home.join(usual), PathBuf::from);
        let credentials_file = path("AWS_SHARED_CREDENTIALS_FILE", ".aws/credentials");
        let secrets = read_sections(&credentials_file)?;
        let config = read_sections(&path("AWS_CONFIG_FILE", ".aws/config"))?;

        let titles = [name.clone(), format!("profile {name}")];
        let mut settings = of_sections(&secrets, &titles[..1]);
        settings.extend(of_sections(&config, if name == "default" { &titles } else { &titles[1..] }));
        let is_known = secrets.iter().chain(&config).any(|(title, _)| titles.contains(title));
        if wanted.is_some() && !is_known {
            let detail =
                format!("no configuration file has the profile {name:?} (of AWS_PROFILE or --profile)");
            return Err(Error::new(ErrorKind::InvalidArgument, detail));
        }
        let mut profile = CredentialProfile { name, credentials_file, settings };
        profile.add_services(&config);
        Ok(profile)
    }

    /// Returns a setting's value. S3's own settings have names of the form `s3.NAME`.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.settings.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }

    /// Returns a phrase that describes the profile in messages.
    pub(super) fn described(&self) -> String {
        format!("profile `{}` of {}", self.name, self.credentials_file.display())
    }

    fn add_services(&mut self, config: &[ProfileSection]) {
        if let Some(services) = self.get("services") {
            let title = format!("services {services}");
            self.settings.extend(of_sections(config, &[title]));
        }
    }
}

fn of_sections(sections: &[ProfileSection], titles: &[String]) -> Vec<(String, String)> {
    let wanted = sections.iter().filter(|(title, _)| titles.contains(title));
    wanted.flat_map(|(_, settings)| settings.iter().cloned()).collect()
}

fn read_sections(path: &Path) -> Result<Vec<ProfileSection>> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(parse(&text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        // The home directory belongs to another user, or is not a directory (`/dev/null`), as is common for services.
        Err(_) if path.try_exists().is_err() => Ok(Vec::new()),
        Err(error) => Err(Error::new(ErrorKind::Io, format!("reading {}", path.display())).caused_by(error)),
    }
}

/// Parses sections of `name = value` lines. An indented line belongs to the setting above it, and the names of both
/// form one name (`s3.endpoint_url`).
fn parse(text: &str) -> Vec<ProfileSection> {
    let mut sections: Vec<ProfileSection> = Vec::new();
    let mut outer = String::new();
    for line in text.lines() {
        let content = line.split(" #").next().unwrap_or_default().trim();
        if content.is_empty() || content.starts_with(['#', ';']) {
            continue;
        }
        if let Some(title) = content.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            let words: Vec<&str> = title.split_whitespace().collect();
            sections.push((words.join(" "), Vec::new()));
            continue;
        }
        let (Some((_, settings)), Some((name, value))) = (sections.last_mut(), content.split_once('='))
        else {
            continue;
        };
        let (name, value) = (name.trim().to_ascii_lowercase(), value.trim().to_owned());
        if line.starts_with([' ', '\t']) {
            settings.push((format!("{outer}.{name}"), value));
        } else {
            outer.clone_from(&name);
            settings.push((name, value));
        }
    }
    sections
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_home_that_is_none_has_no_files() {
        let profile =
            CredentialProfile::load(&|name| (name == "HOME").then(|| "/dev/null".to_owned())).unwrap();
        assert_eq!(profile.get("region"), None);
        let dir = std::env::temp_dir().to_string_lossy().into_owned();
        let unreadable = CredentialProfile::load(&|name| (name == "AWS_CONFIG_FILE").then(|| dir.clone()));
        assert_eq!(unreadable.err().expect("a directory is not a file").kind(), ErrorKind::Io);
    }

    #[test]
    fn sections_and_nested_settings() {
        let text = "# comment\n[default]\nregion = eu-west-1 # here\n[ services  local ]\ns3 =\n  \
                    endpoint_url = http://h:1\n\nstray\n";
        let sections = parse(text);
        assert_eq!(sections[0], ("default".into(), vec![("region".into(), "eu-west-1".into())]));
        assert_eq!(sections[1].0, "services local");
        assert_eq!(sections[1].1[1], ("s3.endpoint_url".into(), "http://h:1".into()));
    }
}
