//! Options of `policy`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use fordway_policy::Action;

/// Options of `policy`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fordway policy explain s3://data/run.h5 --action GetObject --user alice
  fordway policy explain s3://data --action ListBucket --anonymous --with s3:prefix=public/")]
pub struct PolicyArgs {
    /// The action to perform.
    #[command(subcommand)]
    pub action: PolicySubcommand,
}

/// The actions of `policy`.
#[derive(Debug, Subcommand)]
pub enum PolicySubcommand {
    /// Show whether a bucket's rules permit a request, and which statement decides
    Explain(ExplainArgs),
}

/// Options of `policy explain`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fordway policy explain s3://data/run.h5 --action GetObject --user alice
  fordway policy explain s3://data --action ListBucket --anonymous --with s3:prefix=public/ \\
    --with aws:SourceIp=10.1.2.3
  fordway policy explain s3://data/run.h5 --action PutObject --user bob \\
    --file new-policy.json --json
  fordway policy explain s3://data/run.h5 --action GetObject --role readers --session night-run
  fordway policy explain s3://data/run.h5 --action PutObject --user bob --credentials users.toml

The command reads the policy and the public access block of the bucket, or the policy in FILE, and evaluates them for \
one request. If a condition needs the tags of the object, the command reads them, unless --with sets them. For each \
statement, it reports whether the statement applies, or the first element that does not match. \
With --credentials, the command first looks for the user or the role in the users file, and checks the fields buckets, \
prefixes and read_only. Only the HTTP gateway applies these rules. For requests that the rules permit, the kernel also \
checks the access. The exit code is 0 if the rules permit the request, and 4 if they refuse it.")]
pub struct ExplainArgs {
    /// s3://BUCKET or s3://BUCKET/KEY
    pub address: String,
    /// Action of the request, such as GetObject or s3:ListBucket
    #[arg(long, value_name = "NAME", value_parser = action)]
    pub action: Action,
    /// Name of the user who signs the request
    #[arg(long, value_name = "NAME", required_unless_present_any = ["role", "anonymous"])]
    pub user: Option<String>,
    /// Name of the role whose session signs the request
    #[arg(long, value_name = "NAME", conflicts_with = "user")]
    pub role: Option<String>,
    /// Session name of the role, for policies that refer to it
    #[arg(long, value_name = "NAME", requires = "role")]
    pub session: Option<String>,
    /// Assume that the user or the role owns the bucket
    #[arg(long, conflicts_with = "anonymous")]
    pub owner: bool,
    /// Assume that the request is anonymous
    #[arg(long, conflicts_with_all = ["user", "role"])]
    pub anonymous: bool,
    /// Value of a condition key, such as aws:SourceIp=10.1.2.3 (may be repeated)
    #[arg(long = "with", value_name = "KEY=VALUE", value_parser = condition)]
    pub conditions: Vec<(String, String)>,
    /// Also check the fields of this users file (the gateway's --credentials FILE); needs the permissions of the
    /// gateway's user
    #[arg(long, value_name = "FILE")]
    pub credentials: Option<PathBuf>,
    /// Read the policy from this file instead of the bucket
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
}

fn action(text: &str) -> Result<Action, String> {
    let name = text.strip_prefix("s3:").unwrap_or(text);
    Action::new(name).ok_or_else(|| "use an S3 action, such as GetObject or ListBucket".to_owned())
}

/// Parses a value of a condition key. Converts the key to lower case, except for the name of a tag.
fn condition(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("write KEY=VALUE, such as aws:SourceIp=10.1.2.3")?;
    let key = fordway_policy::canonical_key(key);
    match fordway_policy::is_known_key(&key) {
        true => Ok((key, value.to_owned())),
        false => Err(format!("{key} is not a supported condition key")),
    }
}
