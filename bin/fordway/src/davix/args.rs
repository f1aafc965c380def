//! The command lines of davix's tools, with the same names and options as in davix.

use std::path::PathBuf;

use clap::builder::PossibleValuesParser;
use clap::{ArgAction, Args, Parser, ValueEnum};

/// The values of `--metalink`.
const METALINK_MODES: [&str; 4] = ["auto", "failover", "no", "disable"];

/// The options of every tool.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Options of every davix command")]
pub(super) struct DavixOptions {
    /// Time limit for opening a connection, in seconds
    #[arg(long, value_name = "SECONDS")]
    pub(super) conn_timeout: Option<u64>,
    /// Time limit for the whole operation, in seconds; 0 for no limit
    #[arg(long, value_name = "SECONDS")]
    pub(super) timeout: Option<u64>,
    /// Maximum number of retries of a failed request
    #[arg(long, value_name = "N")]
    pub(super) retry: Option<u32>,
    /// Accepted, without effect; the delay before the first retry is 50 ms, and doubles with each further retry
    #[arg(long, value_name = "SECONDS")]
    pub(super) retry_delay: Option<u64>,
    /// Add a header to every request, such as 'Authorization: Bearer TOKEN'; davix-cp sends it only to the server that
    /// makes the copy
    #[arg(long = "header", short = 'H', value_name = "NAME: VALUE", action = ArgAction::Append)]
    pub(super) headers: Vec<String>,
    /// Whether to read from other replicas if the server fails: yes for auto and failover, no for no and disable
    #[arg(long, value_name = "WHETHER", value_parser = PossibleValuesParser::new(METALINK_MODES))]
    pub(super) metalink: Option<String>,
    /// Whether to follow redirections; only davix-http accepts no
    #[arg(long, value_name = "WHETHER", value_parser = PossibleValuesParser::new(["auto", "yes", "no"]))]
    pub(super) redirection: Option<String>,
    /// Profile: grid, which trusts the authorities in X509_CERT_DIR or /etc/grid-security/certificates
    #[arg(long, short = 'P', value_name = "NAME", value_delimiter = ',')]
    pub(super) module: Vec<String>,
    /// SOCKS5 or HTTP proxy, such as socks5://HOST:PORT
    #[arg(long, short = 'x', value_name = "URL")]
    pub(super) proxy: Option<String>,
    /// Log to standard error
    #[arg(long)]
    pub(super) debug: bool,
    /// Log to standard error; the scopes are ignored
    #[arg(long, value_name = "SCOPES")]
    pub(super) trace: Option<String>,
    /// Accepted, without effect
    #[arg(long, short)]
    pub(super) verbose: bool,
    /// Print no warnings, such as a note that a cached list of replicas was used; davix-cp also omits which machine
    /// made a copy
    #[arg(long)]
    pub(super) quiet: bool,
    /// Options for credentials and trust
    #[command(flatten)]
    pub(super) security: SecurityOptions,
    /// Options that are rejected.
    #[command(flatten)]
    pub(super) refused: RefusedOptions,
}

/// The options for credentials and trust.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Credentials")]
pub(super) struct SecurityOptions {
    /// Client certificate or X.509 proxy: a PEM file that only its owner can read
    #[arg(long, short = 'E', value_name = "FILE")]
    pub(super) cert: Option<String>,
    /// Private key [default: the file of --cert]
    #[arg(long, value_name = "FILE")]
    pub(super) key: Option<String>,
    /// Also trust the certificate authorities in this directory
    #[arg(long, value_name = "DIR", action = ArgAction::Append)]
    pub(super) capath: Vec<String>,
    /// Do not verify server certificates
    #[arg(long, short = 'k')]
    pub(super) insecure: bool,
    /// User name for password authentication
    #[arg(long, value_name = "USER")]
    pub(super) userlogin: Option<String>,
    /// Password; other users of this machine may see it
    #[arg(long, value_name = "PASSWORD")]
    pub(super) userpass: Option<String>,
    /// S3: access key
    #[arg(long, value_name = "KEY")]
    pub(super) s3accesskey: Option<String>,
    /// S3: secret key; other users of this machine may see it
    #[arg(long, value_name = "KEY")]
    pub(super) s3secretkey: Option<String>,
    /// S3: region used in signatures [default: from the AWS configuration]
    #[arg(long, value_name = "NAME")]
    pub(super) s3region: Option<String>,
    /// S3: session token of temporary credentials
    #[arg(long, value_name = "TOKEN")]
    pub(super) s3token: Option<String>,
    /// S3: read the bucket from the first segment of the path, not from the host name
    #[arg(long)]
    pub(super) s3alternate: bool,
}

/// Options of davix that have no counterpart in Fordway. The tools parse these options only to reject them with a
/// reason.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct RefusedOptions {
    #[arg(long, hide = true)]
    azurekey: Option<String>,
    #[arg(long, hide = true)]
    gcloud_creds: Option<String>,
    #[arg(long, hide = true)]
    ostoken: Option<String>,
    #[arg(long, hide = true)]
    osprojectid: Option<String>,
    #[arg(long, hide = true)]
    swiftaccount: Option<String>,
    #[arg(long, hide = true)]
    swift_listing: Option<String>,
    #[arg(long, hide = true)]
    infile: Option<String>,
}

impl RefusedOptions {
    /// Returns the first of these options that the command line contains, and advice on an alternative.
    pub(super) fn given(&self) -> Option<(&'static str, &'static str)> {
        const SWIFT: &str = "Swift is not supported; use the S3 interface of the service, with --s3accesskey";
        const GOOGLE: &str =
            "credentials of Google are not supported; use HMAC keys of the service with --s3accesskey";
        [
            (&self.azurekey, "--azurekey", "Azure is not supported; use azcopy"),
            (&self.gcloud_creds, "--gcloud-creds", GOOGLE),
            (&self.ostoken, "--ostoken", SWIFT),
            (&self.osprojectid, "--osprojectid", SWIFT),
            (&self.swiftaccount, "--swiftaccount", SWIFT),
            (&self.swift_listing, "--swift-listing", SWIFT),
            (&self.infile, "--infile", "lists of files are not read; start one command for each file"),
        ]
        .into_iter()
        .find_map(|(value, name, instead)| value.is_some().then_some((name, instead)))
    }
}

/// The command line of `davix-get`.
#[derive(Debug, Parser)]
#[command(
    about = "Read a file from a web server or S3 service, with the options of davix-get",
    after_help = "Example:
  davix-get -E /tmp/x509up_u1000 davs://host.example/data/run.root run.root"
)]
pub(super) struct DavixGetArgs {
    /// Read everything below the URL, over this many connections
    #[arg(short = 'r', value_name = "N")]
    pub(super) recursive: Option<u16>,
    /// File to write; has the same effect as the second argument
    #[arg(short = 'o', value_name = "FILE")]
    pub(super) output: Option<PathBuf>,
    /// Maximum number of retries while the server fetches the file, for example from tape (HTTP status 202) [default:
    /// 180]
    #[arg(long, value_name = "N")]
    pub(super) accepted_retry: Option<u32>,
    /// Delay before each of these retries [default: 10]
    #[arg(long, value_name = "SECONDS")]
    pub(super) accepted_retry_delay: Option<u32>,
    /// Accepted, without effect
    #[arg(short = 'O', hide = true)]
    pub(super) own_name: bool,
    /// http(s)://, dav(s):// or s3(s):// URL
    pub(super) url: String,
    /// File to write [default: standard output]
    pub(super) file: Option<PathBuf>,
    #[command(flatten)]
    pub(super) options: DavixOptions,
}

/// The command line of `davix-put`.
#[derive(Debug, Parser)]
#[command(
    about = "Write a file to a web server or S3 service, with the options of davix-put",
    after_help = "Example:
  davix-put -E /tmp/x509up_u1000 run.root davs://host.example/data/run.root"
)]
pub(super) struct DavixPutArgs {
    /// Write everything below the directory, over this many connections
    #[arg(short = 'r', value_name = "N")]
    pub(super) recursive: Option<u16>,
    /// Accepted, without effect
    #[arg(short = 'o', hide = true)]
    pub(super) output: Option<PathBuf>,
    /// Do not ask the server whether it accepts the file before sending it (Expect: 100-continue)
    #[arg(long)]
    pub(super) no_100_continue: bool,
    /// File to send
    pub(super) file: String,
    /// http(s)://, dav(s):// or s3(s):// URL
    pub(super) url: String,
    #[command(flatten)]
    pub(super) options: DavixOptions,
}

/// The keys that a listing contains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum S3ListingMode {
    /// The keys at the first level below the URL
    #[default]
    Hierarchical,
    /// All keys below the URL
    Semi,
    /// All keys of the bucket
    Flat,
}

/// The command line of `davix-ls`.
#[derive(Debug, Parser)]
#[command(
    about = "List a collection or bucket, with the options of davix-ls",
    after_help = "Example:
  davix-ls -l davs://host.example/data/"
)]
pub(super) struct DavixLsArgs {
    /// Also print the type, the size and the time of each entry
    #[arg(long = "long-list", short = 'l')]
    pub(super) long: bool,
    /// List everything below the URL; the number is accepted without effect
    #[arg(short = 'r', value_name = "N")]
    pub(super) recursive: Option<u16>,
    /// Which keys of a bucket to list
    #[arg(long, value_enum, value_name = "MODE", default_value_t)]
    pub(super) s3_listing: S3ListingMode,
    /// Maximum number of keys to list
    #[arg(long, value_name = "N")]
    pub(super) s3_maxkeys: Option<usize>,
    /// Accepted, without effect
    #[arg(long, value_name = "WHETHER")]
    pub(super) no_cap: Option<String>,
    /// Accepted, without effect
    #[arg(short = 'f', hide = true)]
    pub(super) full: bool,
    /// http(s)://, dav(s):// or s3(s):// URL
    pub(super) url: String,
    #[command(flatten)]
    pub(super) options: DavixOptions,
}

/// The options for the request of `davix-http`.
#[derive(Debug, Default, Args)]
pub(super) struct DavixRequestArgs {
    /// Method of the request
    #[arg(long, short = 'X', value_name = "METHOD")]
    pub(super) request: Option<String>,
    /// Content of the request
    #[arg(long, value_name = "TEXT")]
    pub(super) data: Option<String>,
    /// File to write [default: standard output]
    #[arg(short = 'o', value_name = "FILE")]
    pub(super) output: Option<PathBuf>,
}

/// davix's options for a request of any method. Tools other than `davix-http` accept them without effect, as davix
/// does.
#[derive(Debug, Default, Args)]
pub(super) struct IgnoredRequestArgs {
    /// Accepted, without effect
    #[arg(long, short = 'X', value_name = "METHOD", hide = true)]
    request: Option<String>,
    /// Accepted, without effect
    #[arg(long, value_name = "TEXT", hide = true)]
    data: Option<String>,
    /// Accepted, without effect
    #[arg(short = 'o', value_name = "FILE", hide = true)]
    output: Option<PathBuf>,
}

/// The command line of `davix-rm`.
#[derive(Debug, Parser)]
#[command(
    about = "Remove a file, collection or object, with the options of davix-rm",
    after_help = "Example:
  davix-rm davs://host.example/data/run.root"
)]
pub(super) struct DavixRmArgs {
    /// Remove recursively, with N concurrent requests
    #[arg(short = 'r', value_name = "N")]
    pub(super) recursive: Option<u16>,
    /// Accepted, without effect
    #[arg(short = 'n', value_name = "N")]
    pub(super) per_request: Option<u32>,
    /// http(s)://, dav(s):// or s3(s):// URL
    pub(super) url: String,
    #[command(flatten)]
    pub(super) ignored: IgnoredRequestArgs,
    #[command(flatten)]
    pub(super) options: DavixOptions,
}

/// The command line of `davix-mkdir`.
#[derive(Debug, Parser)]
#[command(
    about = "Create a collection, bucket or prefix, with the options of davix-mkdir",
    after_help = "Example:
  davix-mkdir davs://host.example/data/2024/"
)]
pub(super) struct DavixMkdirArgs {
    /// Accepted, without effect
    #[arg(short = 'r', value_name = "N")]
    pub(super) recursive: Option<u16>,
    /// http(s)://, dav(s):// or s3(s):// URL
    pub(super) url: String,
    #[command(flatten)]
    pub(super) ignored: IgnoredRequestArgs,
    #[command(flatten)]
    pub(super) options: DavixOptions,
}

/// The command line of `davix-mv`.
#[derive(Debug, Parser)]
#[command(
    about = "Move a file, collection or object, with the options of davix-mv",
    after_help = "Example:
  davix-mv davs://host.example/new/run.root davs://host.example/done/run.root"
)]
pub(super) struct DavixMvArgs {
    /// Accepted, without effect
    #[arg(short = 'r', value_name = "N")]
    pub(super) recursive: Option<u16>,
    /// http(s)://, dav(s):// or s3(s):// URL
    pub(super) source: String,
    /// URL of the same kind as the source
    pub(super) destination: String,
    #[command(flatten)]
    pub(super) ignored: IgnoredRequestArgs,
    #[command(flatten)]
    pub(super) options: DavixOptions,
}

/// The server that makes a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum DavixCopyMode {
    /// The source, which writes to the destination
    #[default]
    Push,
    /// The destination, which reads from the source
    Pull,
}

/// The command line of `davix-cp`.
#[derive(Debug, Parser)]
#[command(
    about = "Have one server copy a file to another server, with the options of davix-cp",
    after_help = "Example:
  davix-cp --copy-mode pull davs://one.example/run.root davs://two.example/run.root"
)]
pub(super) struct DavixCpArgs {
    /// Which server makes the copy
    #[arg(long, value_enum, value_name = "MODE", default_value_t)]
    pub(super) copy_mode: DavixCopyMode,
    /// http(s)://, dav(s):// or s3(s):// URL
    pub(super) source: String,
    /// URL of the same kind as the source
    pub(super) destination: String,
    #[command(flatten)]
    pub(super) ignored: IgnoredRequestArgs,
    #[command(flatten)]
    pub(super) options: DavixOptions,
}

/// The command line of `davix-http`.
#[derive(Debug, Parser)]
#[command(
    about = "Send one request, and print the content of the response, with the options of davix-http",
    after_help = "Example:
  davix-http -X PROPFIND -H 'Depth: 0' https://host.example/data/

The exit code is 0 if the server responded, even with an error status. The command prints the error status to standard \
error. The exit code is 255 for the statuses 401 and 403."
)]
pub(super) struct DavixHttpCommandArgs {
    #[command(flatten)]
    pub(super) request: DavixRequestArgs,
    /// Accepted, without effect
    #[arg(short = 'r', value_name = "N")]
    pub(super) recursive: Option<u16>,
    /// http(s):// or dav(s):// URL
    pub(super) url: String,
    #[command(flatten)]
    pub(super) options: DavixOptions,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definitions_are_sound() {
        DavixGetArgs::command().debug_assert();
        DavixPutArgs::command().debug_assert();
        DavixLsArgs::command().debug_assert();
        DavixRmArgs::command().debug_assert();
        DavixMkdirArgs::command().debug_assert();
        DavixMvArgs::command().debug_assert();
        DavixCpArgs::command().debug_assert();
        DavixHttpCommandArgs::command().debug_assert();
    }
}
