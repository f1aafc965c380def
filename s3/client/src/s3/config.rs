//! The configuration of the client: the service, the credentials and the timeouts.

use std::time::Duration;

use fordway_store::{ChecksumAlgorithm, Error, ErrorKind, Result};

use crate::s3::S3Credentials;
use crate::s3::profile::CredentialProfile;
use fordway_http::{HttpVersion, ProxySettings, Timeouts, TlsRoots};

const DEFAULT_REGION: &str = "us-east-1";
const DEFAULT_PART_BYTES: usize = 8 * 1024 * 1024;

/// The addressing style: which part of a request names the bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BucketAddressing {
    /// Virtual-hosted style at AWS, path style everywhere else.
    #[default]
    Auto,
    /// The path contains the bucket's name (path style).
    Path,
    /// The host name contains the bucket's name (virtual-hosted style).
    VirtualHost,
}

/// The version of request signatures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SignatureVersion {
    /// Signature Version 4; see [`fordway_wire::sigv4`].
    #[default]
    V4,
    /// Signature Version 2, for services that support no later version; see [`fordway_wire::sigv2`].
    V2,
}

impl SignatureVersion {
    /// Parses the names used in the AWS configuration file. Errors: `InvalidArgument`.
    fn named(name: &str) -> Result<Self> {
        match name {
            "s3v4" => Ok(SignatureVersion::V4),
            "s3" => Ok(SignatureVersion::V2),
            other => Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("the signature version {other:?} is unknown; use s3v4, or s3 for version 2"),
            )),
        }
    }
}

/// The configuration of an [`crate::s3::S3Store`].
#[derive(Clone, Debug)]
pub struct S3Config {
    /// The URL of the service: `http(s)://host[:port][/path]`.
    pub endpoint: String,
    /// Whether AWS is used only because no endpoint was configured; error messages then mention the missing endpoint.
    pub is_endpoint_unset: bool,
    /// The region that requests are signed for.
    pub region: String,
    /// The credentials that sign requests.
    pub credentials: S3Credentials,
    /// The signature version, from `FORDWAY_SIGNATURE_VERSION` or the profile's `s3.signature_version`.
    pub signature: SignatureVersion,
    /// The addressing style: which part of a request names the bucket.
    pub addressing: BucketAddressing,
    /// The HTTP version, from `FORDWAY_HTTP_VERSION`: `1.1`, `2` or `3`.
    pub http: HttpVersion,
    /// The timeouts of connections. With the default `first_byte` and without [`S3Config::timeout`], copies and the
    /// completions of uploads wait for up to 15 min, because some services respond only when they have copied the whole
    /// object.
    pub timeouts: Timeouts,
    /// The maximum total time that a call waits for the service, including the waits before retries. A listing of
    /// several pages is one call. A body that makes progress is not interrupted. This time replaces the waits in
    /// `timeouts`, and also limits the time to connect.
    pub timeout: Option<Duration>,
    /// The maximum number of retries of a request after a transient failure; 0 means none.
    pub max_retries: u32,
    /// The algorithm of the checksum that is sent with every upload, unless the upload's options name another
    /// algorithm. The server verifies the checksum. `None` if `AWS_REQUEST_CHECKSUM_CALCULATION` or the profile's
    /// `request_checksum_calculation` is `when_required`, for services that refuse checksum headers.
    pub checksum: Option<ChecksumAlgorithm>,
    /// Whether reads are checked against the checksum that the server sends. Reads are not checked if
    /// `AWS_RESPONSE_CHECKSUM_VALIDATION` or the profile's `response_checksum_validation` is `when_required`.
    pub verify_reads: bool,
    /// Whether signatures cover bodies. Such a signature requires the SHA-256 of the body, which takes 0.6 ms per MiB.
    pub sign_payload: bool,
    /// The part size of a streamed upload, in bytes; at least 5 MiB.
    pub part_bytes: usize,
    /// The trusted certificates.
    pub tls_roots: TlsRoots,
    /// The number of concurrent connections for vectored reads.
    pub connections: usize,
    /// The proxies through which requests are sent.
    pub proxies: ProxySettings,
}

impl S3Config {
    /// Returns the default configuration for a service.
    pub fn new(endpoint: impl Into<String>, region: impl Into<String>, credentials: S3Credentials) -> Self {
        S3Config {
            endpoint: endpoint.into(),
            is_endpoint_unset: false,
            region: region.into(),
            credentials,
            signature: SignatureVersion::V4,
            addressing: BucketAddressing::Auto,
            http: HttpVersion::default(),
            timeouts: Timeouts::default(),
            timeout: None,
            max_retries: 4,
            checksum: Some(ChecksumAlgorithm::Crc64Nvme),
            verify_reads: true,
            sign_payload: false,
            part_bytes: DEFAULT_PART_BYTES,
            tls_roots: TlsRoots::System,
            connections: 8,
            proxies: ProxySettings::none(),
        }
    }

    /// Reads the configuration from the environment and the shared configuration files. The endpoint is the first of
    /// these that is set: `endpoint`, `AWS_ENDPOINT_URL_S3`, `AWS_ENDPOINT_URL`, the profile's endpoint. If none of
    /// them is set, the endpoint is AWS. Errors: `InvalidArgument`, `Io`.
    pub fn from_environment(endpoint: Option<&str>) -> Result<Self> {
        Self::resolve(endpoint, &|name| std::env::var(name).ok())
    }

    /// Returns the first of these endpoints that is set: `endpoint`, `AWS_ENDPOINT_URL_S3`, `AWS_ENDPOINT_URL`, the
    /// profile's endpoint. Returns `None`, which means AWS itself, if none of them is set. The files are read only if
    /// the argument and the environment name no endpoint. Errors: `InvalidArgument`, `Io`.
    pub fn find_endpoint(
        endpoint: Option<&str>,
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Option<String>> {
        let get = |name: &str| variable(name).filter(|value| !value.is_empty());
        let ignored = get("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS")
            .is_some_and(|value| value.eq_ignore_ascii_case("true"));
        if endpoint.is_some() || ignored {
            return Ok(endpoint.map(str::to_owned));
        }
        let of_environment = get("AWS_ENDPOINT_URL_S3").or_else(|| get("AWS_ENDPOINT_URL"));
        // `fordway run` replaces the endpoint of the default profile, but a command that names another profile means
        // the endpoint of this profile.
        let is_of_run = of_environment.is_some() && of_environment == get("FORDWAY_RUN_ENDPOINT");
        let profile = get("AWS_DEFAULT_PROFILE").or_else(|| get("AWS_PROFILE"));
        let is_profile_first = is_of_run && profile.is_some_and(|name| name != "default");
        if of_environment.is_some() && !is_profile_first {
            return Ok(of_environment);
        }
        let profile = CredentialProfile::load(variable)?;
        let setting = |name: &str| profile.get(name).filter(|value| !value.is_empty()).map(str::to_owned);
        Ok(setting("s3.endpoint_url").or_else(|| setting("endpoint_url")).or(of_environment))
    }

    /// Reads the configuration like [`S3Config::from_environment`], but gets environment variables from `variable`.
    pub fn resolve(endpoint: Option<&str>, variable: &dyn Fn(&str) -> Option<String>) -> Result<Self> {
        Self::resolve_with(endpoint, variable, None)
    }

    /// Reads the configuration like [`S3Config::resolve`]. If `credentials` are given, uses them and searches for no
    /// others.
    pub fn resolve_with(
        endpoint: Option<&str>,
        variable: &dyn Fn(&str) -> Option<String>,
        credentials: Option<S3Credentials>,
    ) -> Result<Self> {
        let get = |name: &str| variable(name).filter(|value| !value.is_empty());
        let profile = CredentialProfile::load(variable)?;
        let setting = |name: &str| profile.get(name).filter(|value| !value.is_empty()).map(str::to_owned);
        let region = get("AWS_REGION")
            .or_else(|| get("AWS_DEFAULT_REGION"))
            .or_else(|| setting("region"))
            .unwrap_or_else(|| DEFAULT_REGION.to_owned());
        let named = Self::find_endpoint(endpoint, variable)?;
        let is_endpoint_unset = named.is_none();
        let endpoint = named.unwrap_or_else(|| aws_endpoint(&region));
        let credentials = credentials.map_or_else(|| S3Credentials::find(variable, &profile), Ok)?;
        let addressing = match setting("s3.addressing_style").as_deref() {
            Some("path") => BucketAddressing::Path,
            Some("virtual") => BucketAddressing::VirtualHost,
            _ => BucketAddressing::Auto,
        };
        let signature = get("FORDWAY_SIGNATURE_VERSION").or_else(|| setting("s3.signature_version"));
        let signature = signature.as_deref().map_or(Ok(SignatureVersion::V4), SignatureVersion::named)?;
        let http = HttpVersion::resolve(variable)?;
        let is_required_only = |name: &str| checksums_only_when_required(name, &get, &setting);
        let sends_checksums = !is_required_only("request_checksum_calculation")?;
        let verify_reads = !is_required_only("response_checksum_validation")?;
        let usual = S3Config::new(endpoint, region, credentials);
        let bundle = get("AWS_CA_BUNDLE").or_else(|| setting("ca_bundle"));
        let tls_roots = bundle.map_or(TlsRoots::System, |path| TlsRoots::File(path.into()));
        Ok(S3Config {
            is_endpoint_unset,
            signature,
            addressing,
            http,
            tls_roots,
            proxies: ProxySettings::resolve(variable),
            checksum: usual.checksum.filter(|_| sends_checksums),
            verify_reads,
            ..usual
        })
    }

    /// Checks the settings. Errors: `InvalidArgument` for a setting that no service accepts.
    pub(super) fn check(&self) -> Result<()> {
        if self.part_bytes < fordway_store::MIN_PART_BYTES as usize {
            let detail =
                format!("parts of {} bytes are too small; S3 requires at least 5 MiB", self.part_bytes);
            return Err(Error::new(ErrorKind::InvalidArgument, detail));
        }
        Ok(())
    }
}

/// Returns whether a setting of the AWS tools says that checksums are used only when the service requires them. Errors:
/// `InvalidArgument` for an unknown value.
fn checksums_only_when_required(
    name: &str,
    variable: &dyn Fn(&str) -> Option<String>,
    setting: &dyn Fn(&str) -> Option<String>,
) -> Result<bool> {
    let upper = format!("AWS_{}", name.to_ascii_uppercase());
    let Some(value) = variable(&upper).or_else(|| setting(name)) else { return Ok(false) };
    match value.to_ascii_lowercase().as_str() {
        "when_required" => Ok(true),
        "when_supported" => Ok(false),
        _ => {
            let detail = format!("{upper} or {name} is {value:?}; use when_supported or when_required");
            Err(Error::new(ErrorKind::InvalidArgument, detail))
        }
    }
}

/// Returns the endpoint of AWS in a region. The regions in China have a domain of their own.
fn aws_endpoint(region: &str) -> String {
    let domain = if region.starts_with("cn-") { "amazonaws.com.cn" } else { "amazonaws.com" };
    format!("https://s3.{region}.{domain}")
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn resolve(endpoint: Option<&str>, variables: &[(&str, &str)]) -> Result<S3Config> {
        let variables: HashMap<_, _> = variables.iter().copied().collect();
        S3Config::resolve(endpoint, &|name| variables.get(name).map(|value| (*value).to_owned()))
    }

    #[test]
    fn the_nearer_setting_wins() {
        let files = tempfile::tempdir().unwrap();
        let (config, secrets) = (files.path().join("config"), files.path().join("credentials"));
        let text = "[default]\nregion=eu-west-1\nservices=mine\n[services mine]\ns3 =\n  endpoint_url = http://file:1\n";
        std::fs::write(&config, text).unwrap();
        std::fs::write(&secrets, "[default]\naws_access_key_id = AK\naws_secret_access_key = SECRET\n")
            .unwrap();
        let paths = [
            ("AWS_CONFIG_FILE", config.to_str().unwrap()),
            ("AWS_SHARED_CREDENTIALS_FILE", secrets.to_str().unwrap()),
        ];
        let from_files = resolve(None, &paths).unwrap();
        assert_eq!(
            (from_files.endpoint.as_str(), from_files.region.as_str()),
            ("http://file:1", "eu-west-1")
        );
        assert!(from_files.credentials.described().contains("profile `default` of "));
        assert!(!format!("{from_files:?}").contains("SECRET"));

        let mut variables = paths.to_vec();
        variables.extend([("AWS_ENDPOINT_URL", "http://any:1"), ("AWS_REGION", "r")]);
        variables.extend([("AWS_ACCESS_KEY_ID", "EK"), ("AWS_SECRET_ACCESS_KEY", "S")]);
        let found = resolve(None, &variables).unwrap();
        assert_eq!((found.endpoint.as_str(), found.region.as_str()), ("http://any:1", "r"));
        assert!(found.credentials.described().contains("AWS_ACCESS_KEY_ID in the environment"));
        variables.push(("AWS_ENDPOINT_URL_S3", "http://s3:1"));
        assert_eq!(resolve(None, &variables).unwrap().endpoint, "http://s3:1");
        assert_eq!(resolve(Some("http://flag:1"), &variables).unwrap().endpoint, "http://flag:1");
    }

    #[test]
    fn without_any_setting_it_is_aws_and_anonymous() {
        let found = resolve(None, &[("HOME", "/nonexistent")]).unwrap();
        assert_eq!(found.endpoint, "https://s3.us-east-1.amazonaws.com");
        assert_eq!(found.credentials, S3Credentials::Anonymous);
        assert!(found.is_endpoint_unset);
        let found = resolve(Some("http://h:1"), &[("HOME", "/nonexistent")]).unwrap();
        assert!(!found.is_endpoint_unset);
    }

    #[test]
    fn regions_in_china_have_their_own_domain() {
        let variables = [("HOME", "/nonexistent"), ("AWS_REGION", "cn-north-1")];
        assert_eq!(resolve(None, &variables).unwrap().endpoint, "https://s3.cn-north-1.amazonaws.com.cn");
    }

    #[test]
    fn a_profile_keeps_its_endpoint_within_fordway_run() {
        let files = tempfile::tempdir().unwrap();
        let config = files.path().join("config");
        let text = "[default]\nendpoint_url=http://d:1\n[profile a]\nendpoint_url=http://a:1\n[profile b]\nregion=rb\n";
        std::fs::write(&config, text).unwrap();
        let run = [
            ("AWS_CONFIG_FILE", config.to_str().unwrap()),
            ("AWS_ENDPOINT_URL", "http://run:1"),
            ("FORDWAY_RUN_ENDPOINT", "http://run:1"),
        ];
        let endpoint = |more: &[(&str, &str)]| resolve(None, &[&run, more].concat()).unwrap().endpoint;
        assert_eq!(endpoint(&[]), "http://run:1");
        assert_eq!(endpoint(&[("AWS_PROFILE", "default")]), "http://run:1");
        assert_eq!(endpoint(&[("AWS_PROFILE", "a")]), "http://a:1");
        assert_eq!(endpoint(&[("AWS_PROFILE", "b")]), "http://run:1");
        assert_eq!(
            endpoint(&[("AWS_PROFILE", "a"), ("AWS_ENDPOINT_URL_S3", "http://own:1")]),
            "http://own:1"
        );
    }

    #[test]
    fn two_variables_name_the_profile() {
        let files = tempfile::tempdir().unwrap();
        let config = files.path().join("config");
        std::fs::write(&config, "[profile a]\nregion = ra\n[profile b]\nregion = rb\n").unwrap();
        let config = ("AWS_CONFIG_FILE", config.to_str().unwrap());
        let region = |more: &[(&str, &str)]| resolve(None, &[&[config], more].concat()).unwrap().region;
        let (default, usual) = (("AWS_DEFAULT_PROFILE", "a"), ("AWS_PROFILE", "b"));
        assert_eq!(region(&[default]), "ra");
        assert_eq!(region(&[usual]), "rb");
        // botocore reads the variables in this order.
        assert_eq!(region(&[usual, default]), "ra");
    }

    /// Finds the credentials of `[default]` in a credentials file and a config file.
    fn in_files(secrets: &str, config: &str, variables: &[(&str, &str)]) -> Result<S3Config> {
        let files = tempfile::tempdir().unwrap();
        let paths =
            ["AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"].map(|name| (name, files.path().join(name)));
        for ((_, path), text) in paths.iter().zip([secrets, config]) {
            std::fs::write(path, format!("[default]\n{text}")).unwrap();
        }
        let mut all: Vec<_> = paths.iter().map(|(name, path)| (*name, path.to_str().unwrap())).collect();
        all.extend(variables);
        resolve(Some("http://h:1"), &all)
    }

    #[test]
    fn keys_are_found_in_the_order_of_aws() {
        let keys = |name: &str| format!("aws_access_key_id = {name}\naws_secret_access_key = S\n");
        let process =
            r#"credential_process = echo '{"Version":1,"AccessKeyId":"PROCESS","SecretAccessKey":"S"}'"#;
        let found = |secrets: &str, config: &str, variables: &[(&str, &str)]| {
            in_files(secrets, config, variables).unwrap().credentials.described()
        };
        let config = format!("{}{process}\n", keys("CONFIG"));
        let environment = [("AWS_ACCESS_KEY_ID", "ENV"), ("AWS_SECRET_ACCESS_KEY", "S")];
        assert!(found(&keys("SHARED"), &config, &environment).contains("key ENV from AWS_ACCESS_KEY_ID"));
        assert!(found(&keys("SHARED"), &config, &[]).contains("key SHARED from profile `default` of "));
        assert!(found("", &config, &[]).contains("key PROCESS from the credential_process"));
        assert!(found("", &keys("CONFIG"), &[]).contains("key CONFIG from profile `default` of "));
        assert!(found("", "", &[]).contains("no credentials"));
        // The access key ID and the secret access key must be in the same file.
        let mixed = in_files("aws_access_key_id = A\n", "aws_secret_access_key = S\n", &[]).unwrap_err();
        assert!(mixed.to_string().contains("no secret key"), "{mixed}");
        let quoted = in_files("aws_access_key_id = 'A'\naws_secret_access_key = S\n", "", &[]).unwrap_err();
        assert!(
            quoted.to_string().contains("aws_access_key_id") && quoted.to_string().contains("in quotes"),
            "{quoted}"
        );
    }

    #[test]
    fn unsupported_credentials_are_refused_instead_of_using_others() {
        let keys = "aws_access_key_id = SHARED\naws_secret_access_key = S\n";
        for setting in ["role_arn", "web_identity_token_file", "sso_session", "sso_start_url"] {
            let config = format!("{setting} = x\n");
            let refused = in_files(keys, &config, &[]).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::NotImplemented);
            assert!(refused.to_string().contains(setting), "{refused}");
            assert!(refused.to_string().contains("export-credentials --profile default"), "{refused}");
            let environment = [("AWS_ACCESS_KEY_ID", "ENV"), ("AWS_SECRET_ACCESS_KEY", "S")];
            assert!(in_files(keys, &config, &environment).is_ok());
        }
        let token = [("AWS_WEB_IDENTITY_TOKEN_FILE", "f"), ("AWS_ROLE_ARN", "r")];
        assert_eq!(in_files(keys, "", &token).unwrap_err().kind(), ErrorKind::NotImplemented);
        let container = [("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://169.254.170.2/keys")];
        let refused = in_files("", "", &container).unwrap_err();
        assert!(refused.to_string().contains("AWS_CONTAINER_CREDENTIALS_FULL_URI"), "{refused}");
        assert!(in_files(keys, "", &container).is_ok(), "keys in files come before those of a container");
        let given = S3Config::resolve_with(
            None,
            &|name| token.iter().find(|(has, _)| *has == name).map(|(_, it)| (*it).to_owned()),
            Some(S3Credentials::Anonymous),
        );
        assert_eq!(given.unwrap().credentials, S3Credentials::Anonymous);
    }

    #[test]
    fn mistakes_are_named() {
        let missing = resolve(None, &[("HOME", "/nonexistent"), ("AWS_PROFILE", "gone")]).unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::InvalidArgument);
        let half = resolve(None, &[("HOME", "/nonexistent"), ("AWS_ACCESS_KEY_ID", "AK")]).unwrap_err();
        assert!(half.to_string().contains("no secret key"), "{half}");
    }
}
