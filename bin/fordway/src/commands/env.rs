//! `env` prints the settings that another program needs to access the objects, in the format of that program.

use fordway_client::s3::S3Credentials;
use fordway_command::{CommandContext, CommandExit};
use fordway_http::TlsRoots;
use fordway_lanes::LaneConfigOverrides;
use fordway_serve::AccessKeyPair;
use fordway_store::{Error, ErrorKind, Result};
use serde::Serialize;

use crate::args::{ClientToolArg, EnvArgs};

/// The SDKs' variable for the endpoint.
pub(super) const AWS_ENDPOINT: &str = "AWS_ENDPOINT_URL";

pub(super) fn run(
    args: &EnvArgs,
    lane: &LaneConfigOverrides,
    context: &CommandContext,
) -> Result<CommandExit> {
    let settings = ClientToolSettings::find(lane)?;
    settings.check(args.tool)?;
    match context.output.is_json() {
        true => context.output.row(&EnvOutput::new(&settings, args.tool))?,
        false => context.output.data(settings.text(args.tool).as_bytes())?,
    }
    Ok(CommandExit::Ok)
}

/// The output of `env --json`.
#[derive(Serialize)]
struct EnvOutput<'s> {
    endpoint_url: &'s str,
    region: Option<&'s str>,
    access_key_id: Option<&'s str>,
    secret_access_key: Option<&'s str>,
    session_token: Option<&'s str>,
    ca_bundle: Option<&'s str>,
    /// The settings in the format of the program.
    text: String,
}

impl<'s> EnvOutput<'s> {
    fn new(settings: &'s ClientToolSettings, tool: ClientToolArg) -> Self {
        let keys = settings.keys.as_ref();
        EnvOutput {
            endpoint_url: &settings.endpoint,
            region: settings.region.as_deref(),
            access_key_id: keys.map(|keys| &*keys.access_key),
            secret_access_key: keys.map(|keys| &*keys.secret_key),
            session_token: settings.session_token.as_deref(),
            ca_bundle: settings.ca_bundle.as_deref(),
            text: settings.text(tool),
        }
    }
}

/// The settings that a program needs to access the objects.
pub(super) struct ClientToolSettings {
    pub(super) endpoint: String,
    pub(super) region: Option<String>,
    pub(super) keys: Option<AccessKeyPair>,
    pub(super) session_token: Option<String>,
    pub(super) ca_bundle: Option<String>,
}

impl ClientToolSettings {
    /// Finds the settings as every command does: first in the options, then in the environment, then in the AWS
    /// configuration. Errors: `InvalidArgument` if there is no endpoint.
    fn find(lane: &LaneConfigOverrides) -> Result<Self> {
        let config = fordway_lanes::configuration(lane)?;
        if config.is_endpoint_unset {
            let why = "no endpoint is configured; add --endpoint URL, or set AWS_ENDPOINT_URL";
            return Err(Error::new(ErrorKind::InvalidArgument, why));
        }
        let (keys, session_token) = match &*config.credentials.last() {
            S3Credentials::Keys { access_key, secret_key, session_token, .. } => {
                let (access_key, secret_key) = (access_key.clone(), secret_key.clone());
                (Some(AccessKeyPair { access_key, secret_key }), session_token.clone())
            }
            // `last` never returns `Renewed`.
            S3Credentials::Anonymous | S3Credentials::Renewed(_) => (None, None),
        };
        let ca_bundle = match config.tls_roots {
            TlsRoots::File(path) => Some(path.display().to_string()),
            _ => None,
        };
        let region = Some(config.region);
        Ok(ClientToolSettings { endpoint: config.endpoint, region, keys, session_token, ca_bundle })
    }

    /// Checks that `tool` can use these settings. Errors: `InvalidArgument` for an endpoint that only our own programs
    /// can reach, for missing keys, and for characters that would end a line of a settings file.
    fn check(&self, tool: ClientToolArg) -> Result<()> {
        let fail = |why: String| Err(Error::new(ErrorKind::InvalidArgument, why));
        let values = [self.endpoint.as_str(), self.region(), self.access_key(), self.secret_key()];
        let optional = [self.session_token.as_deref(), self.ca_bundle.as_deref()];
        if values
            .into_iter()
            .chain(optional.into_iter().flatten())
            .any(|value| value.contains(char::is_control))
        {
            return fail(
                "the endpoint, the region or a key contains a control character; correct it".to_owned(),
            );
        }
        if tool == ClientToolArg::Shell {
            return Ok(());
        }
        if !self.endpoint.starts_with("http://") && !self.endpoint.starts_with("https://") {
            let endpoint = &self.endpoint;
            return fail(format!(
                "this program needs an http(s):// endpoint, but the endpoint is {endpoint}; start `fordway serve \
                 DIRECTORY`, and give its address with --endpoint"
            ));
        }
        match self.keys {
            Some(_) => Ok(()),
            None => fail("there is no key pair; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY".to_owned()),
        }
    }

    fn region(&self) -> &str {
        self.region.as_deref().unwrap_or_default()
    }

    fn access_key(&self) -> &str {
        self.keys.as_ref().map_or("", |keys| &keys.access_key)
    }

    fn secret_key(&self) -> &str {
        self.keys.as_ref().map_or("", |keys| &keys.secret_key)
    }

    /// Returns the endpoint without its scheme.
    fn host(&self) -> &str {
        self.endpoint.split_once("://").map_or(&*self.endpoint, |(_, host)| host)
    }

    fn is_tls(&self) -> bool {
        self.endpoint.starts_with("https://")
    }

    fn text(&self, tool: ClientToolArg) -> String {
        match tool {
            ClientToolArg::Shell => self.shell(AWS_ENDPOINT),
            ClientToolArg::S5cmd => self.shell("S3_ENDPOINT_URL"),
            ClientToolArg::AwsCli => self.aws_profile(),
            ClientToolArg::Rclone => self.rclone_remote(),
            ClientToolArg::S3cmd => self.s3cmd_file(),
            ClientToolArg::Curl => self.curl_file(),
            ClientToolArg::Boto3 => self.boto3_call(),
            ClientToolArg::S3fs => self.s3fs_call(),
            ClientToolArg::Pyarrow => self.pyarrow_call(),
            ClientToolArg::Obstore => self.obstore_call(),
            ClientToolArg::Polars => self.storage_options(),
            ClientToolArg::Duckdb => self.duckdb_secret(),
        }
    }

    /// Returns assignments for a shell; `endpoint` is the name of the program's variable for the endpoint.
    pub(super) fn shell(&self, endpoint: &str) -> String {
        let mut text = export(endpoint, &self.endpoint);
        if endpoint == AWS_ENDPOINT {
            // The SDKs prefer the first variable, and ignore the endpoint if the second variable is set.
            text += "unset AWS_ENDPOINT_URL_S3 AWS_IGNORE_CONFIGURED_ENDPOINT_URLS\n";
        }
        if let Some(AccessKeyPair { access_key, secret_key }) = &self.keys {
            text += &export("AWS_ACCESS_KEY_ID", access_key);
            text += &export("AWS_SECRET_ACCESS_KEY", secret_key);
            text += &match &self.session_token {
                Some(token) => export("AWS_SESSION_TOKEN", token),
                // Unset the variable, because otherwise programs would send the token of an earlier session with these
                // keys.
                None => "unset AWS_SESSION_TOKEN\n".to_owned(),
            };
        }
        if let Some(region) = &self.region {
            text += &export("AWS_REGION", region);
            text += &export("AWS_DEFAULT_REGION", region);
        }
        text + &self.ca_bundle.as_ref().map_or_else(String::new, |path| export("AWS_CA_BUNDLE", path))
    }

    fn aws_profile(&self) -> String {
        let mut section = vec![
            ("endpoint_url", self.endpoint.as_str()),
            ("region", self.region()),
            ("aws_access_key_id", self.access_key()),
            ("aws_secret_access_key", self.secret_key()),
        ];
        section.extend(self.session_token.as_deref().map(|token| ("aws_session_token", token)));
        section.extend(self.ca_bundle.as_deref().map(|path| ("ca_bundle", path)));
        format!("[profile fordway]\n{}s3 =\n    addressing_style = path\n", lines(&section))
    }

    fn rclone_remote(&self) -> String {
        let mut section = vec![
            ("type", "s3"),
            ("provider", "Other"),
            ("endpoint", self.endpoint.as_str()),
            ("region", self.region()),
            ("access_key_id", self.access_key()),
            ("secret_access_key", self.secret_key()),
        ];
        section.extend(self.session_token.as_deref().map(|token| ("session_token", token)));
        format!("[fordway]\n{}", lines(&section))
    }

    fn s3cmd_file(&self) -> String {
        let mut section = vec![
            ("access_key", self.access_key()),
            ("secret_key", self.secret_key()),
            ("bucket_location", self.region()),
            ("host_base", self.host()),
            ("host_bucket", self.host()),
            ("use_https", if self.is_tls() { "True" } else { "False" }),
        ];
        section.extend(self.session_token.as_deref().map(|token| ("access_token", token)));
        section.extend(self.ca_bundle.as_deref().map(|path| ("ca_certs_file", path)));
        format!("[default]\n{}", lines(&section))
    }

    fn curl_file(&self) -> String {
        let mut section = vec![
            ("aws-sigv4", format!("aws:amz:{}:s3", self.region())),
            ("user", format!("{}:{}", self.access_key(), self.secret_key())),
        ];
        // S3 requires this header, and curl before 8.1 does not send it by default.
        section.push(("header", "x-amz-content-sha256: UNSIGNED-PAYLOAD".to_owned()));
        let header = |token| ("header", format!("x-amz-security-token: {token}"));
        section.extend(self.session_token.as_deref().map(header));
        section.extend(self.ca_bundle.clone().map(|path| ("cacert", path)));
        section
            .iter()
            .fold(String::new(), |text, (name, value)| text + &format!("{name} = {}\n", quoted(value)))
    }

    fn boto3_call(&self) -> String {
        let mut arguments = vec![
            ("endpoint_url", quoted(&self.endpoint)),
            ("region_name", quoted(self.region())),
            ("aws_access_key_id", quoted(self.access_key())),
            ("aws_secret_access_key", quoted(self.secret_key())),
        ];
        arguments.extend(self.session_token.as_deref().map(|token| ("aws_session_token", quoted(token))));
        arguments.extend(self.ca_bundle.as_deref().map(|path| ("verify", quoted(path))));
        let config = r#"Config(signature_version="s3v4", s3={"addressing_style": "path"})"#;
        arguments.push(("config", config.to_owned()));
        let imports = "import boto3\nfrom botocore.config import Config\n";
        format!("{imports}\ns3 = {}", call("boto3.client", &["\"s3\""], &arguments))
    }

    fn s3fs_call(&self) -> String {
        let mut client = format!("{{\"region_name\": {}", quoted(self.region()));
        if let Some(path) = &self.ca_bundle {
            client += &format!(", \"verify\": {}", quoted(path));
        }
        let mut arguments = vec![
            ("endpoint_url", quoted(&self.endpoint)),
            ("key", quoted(self.access_key())),
            ("secret", quoted(self.secret_key())),
        ];
        arguments.extend(self.session_token.as_deref().map(|token| ("token", quoted(token))));
        arguments.push(("client_kwargs", client + "}"));
        arguments.push(("config_kwargs", r#"{"s3": {"addressing_style": "path"}}"#.to_owned()));
        format!("import s3fs\n\nfiles = {}", call("s3fs.S3FileSystem", &[], &arguments))
    }

    fn pyarrow_call(&self) -> String {
        let mut arguments = vec![
            ("endpoint_override", quoted(self.host())),
            ("scheme", quoted(if self.is_tls() { "https" } else { "http" })),
            ("region", quoted(self.region())),
            ("access_key", quoted(self.access_key())),
            ("secret_key", quoted(self.secret_key())),
        ];
        arguments.extend(self.session_token.as_deref().map(|token| ("session_token", quoted(token))));
        arguments.extend(self.ca_bundle.as_deref().map(|path| ("tls_ca_file_path", quoted(path))));
        format!("from pyarrow import fs\n\nfiles = {}", call("fs.S3FileSystem", &[], &arguments))
    }

    fn obstore_call(&self) -> String {
        let mut arguments = vec![
            ("endpoint", quoted(&self.endpoint)),
            ("region", quoted(self.region())),
            ("access_key_id", quoted(self.access_key())),
            ("secret_access_key", quoted(self.secret_key())),
            ("virtual_hosted_style_request", "False".to_owned()),
        ];
        arguments.extend(self.session_token.as_deref().map(|token| ("session_token", quoted(token))));
        if !self.is_tls() {
            arguments.push(("client_options", r#"{"allow_http": True}"#.to_owned()));
        }
        format!(
            "from obstore.store import S3Store\n\nstore = {}",
            call("S3Store", &["\"BUCKET\""], &arguments)
        )
    }

    fn storage_options(&self) -> String {
        let mut options = vec![
            ("aws_endpoint_url", self.endpoint.as_str()),
            ("aws_region", self.region()),
            ("aws_access_key_id", self.access_key()),
            ("aws_secret_access_key", self.secret_key()),
            ("aws_virtual_hosted_style_request", "false"),
        ];
        options.extend(self.session_token.as_deref().map(|token| ("aws_session_token", token)));
        options.extend((!self.is_tls()).then_some(("aws_allow_http", "true")));
        let entry = |text: String, (name, value): &(&str, &str)| {
            text + &format!("    \"{name}\": {},\n", quoted(value))
        };
        format!("storage_options = {{\n{}}}\n", options.iter().fold(String::new(), entry))
    }

    fn duckdb_secret(&self) -> String {
        let mut fields = vec![
            ("TYPE", "s3".to_owned()),
            ("ENDPOINT", sql(self.host())),
            ("USE_SSL", self.is_tls().to_string()),
            ("URL_STYLE", sql("path")),
            ("REGION", sql(self.region())),
            ("KEY_ID", sql(self.access_key())),
            ("SECRET", sql(self.secret_key())),
        ];
        fields.extend(self.session_token.as_deref().map(|token| ("SESSION_TOKEN", sql(token))));
        let fields: Vec<_> = fields.iter().map(|(name, value)| format!("    {name} {value}")).collect();
        let load = "INSTALL httpfs;\nLOAD httpfs;\n";
        format!("{load}CREATE OR REPLACE SECRET fordway (\n{}\n);\n", fields.join(",\n"))
    }
}

/// Writes an assignment. Within single quotes, only the quote itself is special.
fn export(name: &str, value: &str) -> String {
    format!("export {name}='{}'\n", value.replace('\'', r"'\''"))
}

/// Writes the lines of a section; `check` has already rejected values that span several lines.
fn lines(section: &[(&str, &str)]) -> String {
    section.iter().fold(String::new(), |text, (name, value)| text + &format!("{name} = {value}\n"))
}

/// Writes a quoted string in a syntax that both Python and curl accept.
fn quoted(value: &str) -> String {
    format!("\"{}\"", value.replace('\\', r"\\").replace('"', "\\\""))
}

fn sql(value: &str) -> String {
    format!("'{}'", value.replace('\'', "''"))
}

/// Writes a call in Python, with one argument per line.
fn call(function: &str, positional: &[&str], named: &[(&str, String)]) -> String {
    let positional = positional.iter().map(|value| format!("    {value},\n"));
    let named = named.iter().map(|(name, value)| format!("    {name}={value},\n"));
    format!("{function}(\n{})\n", positional.chain(named).collect::<String>())
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;

    use super::*;

    /// A secret that contains every character that any of the languages treats specially.
    const SECRET: &str = r#"`a` "b" \ $HOME 'c' # ; %d"#;

    fn settings(endpoint: &str) -> ClientToolSettings {
        ClientToolSettings {
            endpoint: endpoint.to_owned(),
            region: Some("us-east-1".to_owned()),
            keys: Some(AccessKeyPair { access_key: "me".into(), secret_key: SECRET.into() }),
            session_token: None,
            ca_bundle: None,
        }
    }

    fn output(program: &str, words: &[&str]) -> String {
        let ran = std::process::Command::new(program).args(words).output().unwrap();
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
        String::from_utf8(ran.stdout).unwrap()
    }

    #[test]
    fn a_shell_reads_what_is_printed() {
        for (tool, variable) in
            [(ClientToolArg::Shell, "AWS_ENDPOINT_URL"), (ClientToolArg::S5cmd, "S3_ENDPOINT_URL")]
        {
            let text = settings("http://h:1").text(tool);
            let script = format!("{text}printf '%s|%s' \"${variable}\" \"$AWS_SECRET_ACCESS_KEY\"");
            assert_eq!(output("sh", &["-c", &script]), format!("http://h:1|{SECRET}"));
        }
    }

    #[test]
    fn no_variable_of_an_earlier_session_selects_another_server() {
        let stale = "export AWS_ENDPOINT_URL_S3=http://old AWS_IGNORE_CONFIGURED_ENDPOINT_URLS=true\n";
        let text = settings("http://h:1").text(ClientToolArg::Shell);
        let script = format!(
            "set -eu\n{stale}{text}\
             printf '%s|' \"$AWS_ENDPOINT_URL\" \"${{AWS_ENDPOINT_URL_S3-unset}}\" \
             \"${{AWS_IGNORE_CONFIGURED_ENDPOINT_URLS-unset}}\"\n{text}"
        );
        assert_eq!(output("sh", &["-c", &script]), "http://h:1|unset|unset|");
    }

    #[test]
    fn python_reads_what_is_printed() {
        let text = settings("https://h").storage_options();
        let script = format!("{text}print(storage_options['aws_secret_access_key'], end='')");
        assert_eq!(output("python3", &["-c", &script]), SECRET);
        assert!(
            !text.contains("allow_http") && settings("http://h").storage_options().contains("allow_http")
        );
    }

    #[test]
    fn settings_that_a_program_cannot_use_are_refused() {
        let refused = |settings: &ClientToolSettings, tool| settings.check(tool).unwrap_err().to_string();
        let local = settings("file:///data");
        assert!(local.check(ClientToolArg::Shell).is_ok());
        assert!(refused(&local, ClientToolArg::Boto3).contains("start `fordway serve DIRECTORY`"));
        let without_keys = ClientToolSettings { keys: None, ..settings("http://h") };
        assert!(refused(&without_keys, ClientToolArg::Rclone).contains("there is no key pair"));
        let two_lines = settings("http://h\nendpoint = http://other");
        assert!(refused(&two_lines, ClientToolArg::AwsCli).contains("a control character"));
    }

    #[test]
    fn temporary_keys_and_certificates_reach_each_program_that_takes_them() {
        let all = ClientToolSettings {
            session_token: Some("the-token".into()),
            ca_bundle: Some("/ca.pem".into()),
            ..settings("https://h")
        };
        for &tool in ClientToolArg::value_variants() {
            assert!(all.text(tool).contains("the-token"), "{tool:?}");
            // These programs have no setting for the CA bundle: they read it from the environment or from the command
            // line.
            let has_none =
                [ClientToolArg::Rclone, ClientToolArg::Obstore, ClientToolArg::Polars, ClientToolArg::Duckdb]
                    .contains(&tool);
            assert_eq!(all.text(tool).contains("/ca.pem"), !has_none, "{tool:?}");
        }
    }
}
