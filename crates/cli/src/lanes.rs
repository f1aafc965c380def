//! From an endpoint to the lane behind it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use fordway_store::{Error, ErrorKind, Result};

use crate::context::Lane;

/// Where objects are, before it is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// A directory of this machine: S3 calls become file-system calls in this process.
    Embedded(PathBuf),
    /// An S3 service.
    Http(String),
    /// AWS itself, whose address follows from the region.
    Aws,
}

/// The environment, the `--endpoint` option and the AWS configuration, as far as endpoints go.
#[derive(Clone, Debug, Default)]
pub struct EndpointSources {
    /// `--endpoint`.
    pub option: Option<String>,
    /// Environment variables.
    pub environment: BTreeMap<String, String>,
    /// The text of the AWS configuration file; empty if there is none.
    pub aws_config: String,
    /// The profile to read in it.
    pub profile: String,
}

/// What the command line says about AWS accounts; `None` leaves it to the environment.
#[derive(Clone, Debug, Default)]
pub struct AwsOptions {
    /// `--profile`.
    pub profile: Option<String>,
    /// `--region`.
    pub region: Option<String>,
}

impl EndpointSources {
    /// Reads the environment and the AWS configuration file of this process.
    pub fn of_process(option: Option<String>, aws: &AwsOptions) -> Self {
        let environment: BTreeMap<String, String> = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect();
        let home = environment.get("HOME").map(PathBuf::from).unwrap_or_default();
        let config = environment.get("AWS_CONFIG_FILE").map(PathBuf::from);
        // A missing file is the common case, and an unreadable one configures nothing either.
        let aws_config =
            std::fs::read_to_string(config.unwrap_or(home.join(".aws/config"))).unwrap_or_default();
        let profile = aws
            .profile
            .clone()
            .or_else(|| environment.get("AWS_PROFILE").cloned())
            .unwrap_or_else(|| "default".to_owned());
        EndpointSources { option, environment, aws_config, profile }
    }

    /// The endpoint: option, `AWS_ENDPOINT_URL_S3`, `AWS_ENDPOINT_URL`, configuration file, AWS.
    /// Errors: `InvalidArgument`, `NotImplemented`.
    pub fn endpoint(&self) -> Result<Endpoint> {
        let set = |name: &str| self.environment.get(name).filter(|value| !value.is_empty()).cloned();
        let ignored =
            set("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS").is_some_and(|v| v.eq_ignore_ascii_case("true"));
        let configured = || {
            set("AWS_ENDPOINT_URL_S3")
                .or_else(|| set("AWS_ENDPOINT_URL"))
                .or_else(|| configured_endpoint(&self.aws_config, &self.profile))
        };
        match self.option.clone().or_else(|| if ignored { None } else { configured() }) {
            Some(text) => Endpoint::parse(&text),
            None => Ok(Endpoint::Aws),
        }
    }
}

impl Endpoint {
    /// Reads an endpoint. Errors: `InvalidArgument`, `NotImplemented`.
    pub fn parse(text: &str) -> Result<Self> {
        let invalid = |why: &str| {
            let why =
                format!("the endpoint {text:?} {why}; use file:///DIRECTORY, /DIRECTORY or https://HOST");
            Err(Error::new(ErrorKind::InvalidArgument, why))
        };
        if text.starts_with('/') {
            return Ok(Endpoint::Embedded(text.into()));
        }
        match text.split_once("://") {
            Some(("file", path)) if path.starts_with('/') => Ok(Endpoint::Embedded(path.into())),
            Some(("file", _)) => invalid("does not name an absolute path"),
            Some(("http" | "https", "")) => invalid("has no host"),
            Some(("http" | "https", _)) => Ok(Endpoint::Http(text.trim_end_matches('/').to_owned())),
            Some(("unix" | "tcp", _)) => Err(Error::new(
                ErrorKind::NotImplemented,
                format!(
                    "the endpoint {text:?} is of the node lane, which comes with version 0.2; \
                     until then use file:///DIRECTORY on the same node"
                ),
            )),
            Some(_) => invalid("has a scheme that is not known"),
            None => invalid("is neither a URL nor an absolute path"),
        }
    }

    /// Opens the lane. Errors: those of the lane.
    pub fn open(&self, aws: &AwsOptions) -> Result<Lane> {
        tracing::debug!(endpoint = ?self, ?aws, "opening the lane");
        match self {
            Endpoint::Embedded(root) => open_embedded(root),
            Endpoint::Http(url) => open_http(Some(url), aws),
            Endpoint::Aws => open_http(None, aws),
        }
    }
}

fn open_embedded(root: &Path) -> Result<Lane> {
    Err(not_built("embedded", &root.display().to_string()))
}

fn open_http(url: Option<&str>, aws: &AwsOptions) -> Result<Lane> {
    let region = aws.region.as_deref().unwrap_or("as configured");
    Err(not_built("http", &url.map_or(format!("AWS (region: {region})"), str::to_owned)))
}

fn not_built(lane: &'static str, endpoint: &str) -> Error {
    let why = format!("this build has no {lane} lane, which the endpoint {endpoint} asks for");
    Error::new(ErrorKind::NotImplemented, why)
}

/// `endpoint_url` of a profile: that of its `services` section for S3 first, then its own.
fn configured_endpoint(config: &str, profile: &str) -> Option<String> {
    let own = if profile == "default" { "default".to_owned() } else { format!("profile {profile}") };
    let services = value_in(config, &own, "", "services").map(|name| format!("services {name}"));
    services
        .and_then(|section| value_in(config, &section, "s3", "endpoint_url"))
        .or_else(|| value_in(config, &own, "", "endpoint_url"))
}

/// The value of `name` in `[section]`; `group` is the name above an indented block, or empty.
fn value_in(config: &str, section: &str, group: &str, name: &str) -> Option<String> {
    let (mut in_section, mut in_group) = (false, "");
    for line in config.lines() {
        let text = line.trim();
        if text.is_empty() || text.starts_with(['#', ';']) {
            continue;
        }
        if let Some(header) = text.strip_prefix('[') {
            let header = header.split(']').next().unwrap_or_default();
            in_section = header.split_whitespace().eq(section.split_whitespace());
            in_group = "";
            continue;
        }
        let Some((key, value)) = text.split_once('=').map(|(key, value)| (key.trim(), value.trim())) else {
            continue;
        };
        let indented = line.starts_with([' ', '\t']);
        if !indented {
            in_group = if value.is_empty() { key } else { "" };
        }
        let here = if indented { in_group } else { "" };
        if in_section && here == group && key == name && !value.is_empty() {
            return Some(value.to_owned());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = "\
# comment
[default]
region = eu-central-1
s3 =
  addressing_style = path
  endpoint_url = http://nested-is-not-the-profiles:1
endpoint_url = http://default:9000

[profile lab]
services = lab-services
endpoint_url = http://lab:1
[services lab-services]
ec2 =
  endpoint_url = http://ec2:1
s3 =
  endpoint_url = http://lab-s3:9000
";

    fn sources(option: Option<&str>, environment: &[(&str, &str)], profile: &str) -> EndpointSources {
        EndpointSources {
            option: option.map(str::to_owned),
            environment: environment.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
            aws_config: CONFIG.to_owned(),
            profile: profile.to_owned(),
        }
    }

    #[test]
    fn the_first_source_wins() {
        let both = [("AWS_ENDPOINT_URL_S3", "/s3"), ("AWS_ENDPOINT_URL", "/any")];
        let http = |url: &str| Endpoint::Http(url.to_owned());
        for (sources, endpoint) in [
            (sources(Some("file:///option"), &both, "default"), Endpoint::Embedded("/option".into())),
            (sources(None, &both, "default"), Endpoint::Embedded("/s3".into())),
            (sources(None, &both[1..], "default"), Endpoint::Embedded("/any".into())),
            (sources(None, &[], "default"), http("http://default:9000")),
            (sources(None, &[], "lab"), http("http://lab-s3:9000")),
            (sources(None, &[], "nobody"), Endpoint::Aws),
            (sources(None, &[("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true")], "default"), Endpoint::Aws),
        ] {
            assert_eq!(sources.endpoint().unwrap(), endpoint);
        }
    }

    #[test]
    fn endpoints_that_are_none() {
        for (text, kind) in [
            ("file://relative", ErrorKind::InvalidArgument),
            ("relative", ErrorKind::InvalidArgument),
            ("ftp://h", ErrorKind::InvalidArgument),
            ("https://", ErrorKind::InvalidArgument),
            ("unix:///run/s", ErrorKind::NotImplemented),
            ("tcp://h:1", ErrorKind::NotImplemented),
        ] {
            assert_eq!(Endpoint::parse(text).unwrap_err().kind(), kind, "{text}");
        }
        assert!(Endpoint::parse("unix:///run/s").unwrap_err().to_string().contains("version 0.2"));
    }
}
