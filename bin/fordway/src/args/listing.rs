//! Options of the commands that list and describe objects and buckets, and of the commands for versions
//! and tags.

use clap::{ArgAction, Args, ValueEnum};
use fordway_store::VersionId;

use super::{AwsOptions, version_id};

/// Options of `ls`. As with the system's `ls`, `-h` does not print help.
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
#[command(after_help = "Examples:
  fordway ls
  fordway ls s3://data/2024/
  fordway ls 's3://data/logs/*.gz' --human-readable --summarize
  fordway ls s3://data/2024/run.h5 --versions
  fordway ls s3://data --recursive --json
  fordway ls davs://host.example/data/")]
pub struct LsArgs {
    /// s3://BUCKET[/PREFIX], a wildcard, a local path or dav(s)://HOST/PATH; if omitted, all buckets are listed
    pub address: Option<String>,
    /// List objects at all levels below the address, not only at the first level
    #[arg(long, short)]
    pub recursive: bool,
    /// Show sizes as KiB, MiB, ...
    #[arg(long, short = 'h', visible_short_alias = 'H')]
    pub human_readable: bool,
    /// Print help
    #[arg(long, action = ArgAction::Help)]
    pub help: Option<bool>,
    /// List all versions and delete markers, newest first
    #[arg(long)]
    pub versions: bool,
    /// Print the number of objects and their total size at the end
    #[arg(long, short)]
    pub summarize: bool,
    /// Treat * and ? in the address as literal characters
    #[arg(long)]
    pub raw: bool,
    /// Options of `aws s3` that have no effect here, or are refused
    #[command(flatten)]
    pub aws: AwsOptions,
}

/// Options of `stat`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fordway stat s3://data
  fordway stat s3://data/2024/run.h5 --json")]
pub struct StatArgs {
    /// s3://BUCKET, s3://BUCKET/KEY, http(s)://HOST/PATH or dav(s)://HOST/PATH
    #[arg(required = true, value_name = "ADDRESS")]
    pub addresses: Vec<String>,
    /// Use this version instead of the latest; only with a single object
    #[arg(long, value_name = "ID", value_parser = version_id)]
    pub version_id: Option<VersionId>,
}

/// Options of `mb`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fordway mb s3://results")]
pub struct MbArgs {
    /// s3://BUCKET
    #[arg(required = true, value_name = "BUCKET")]
    pub buckets: Vec<String>,
    /// Options of `aws s3` that have no effect here, or are refused
    #[command(flatten)]
    pub aws: AwsOptions,
}

/// Options of `rb`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fordway rb s3://scratch
  fordway rb s3://scratch --force")]
pub struct RbArgs {
    /// s3://BUCKET
    #[arg(required = true, value_name = "BUCKET")]
    pub buckets: Vec<String>,
    /// First remove all objects, versions and unfinished uploads in the bucket
    #[arg(long)]
    pub force: bool,
    /// Show what would be removed, without removing it
    #[arg(long, alias = "dryrun")]
    pub dry_run: bool,
    /// Number of batches of up to 1,000 objects or versions to remove in parallel, and of unfinished uploads to abort
    /// in parallel, from 1 to 1024
    #[arg(long, short, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub jobs: u16,
    /// Options of `aws s3` that have no effect here, or are refused
    #[command(flatten)]
    pub aws: AwsOptions,
}

/// Options of `du`. As with the system's `du`, `-h` does not print help.
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
#[command(after_help = "Examples:
  fordway du s3://data --human-readable
  fordway du 's3://data/*.h5' --summarize
  sudo fordway du /lustre/project/objects --by-user --human-readable
  sudo fordway du /lustre/project/objects --by-user --prometheus > fordway.prom.new && mv fordway.prom.new fordway.prom

With --by-user, the command adds up the files of each owner, including old versions and unfinished uploads. Because \
listings do not contain owners, the address is then the directory that contains the buckets, as for gc and fsck. If \
root runs the command, the command reads each bucket with the permissions of the bucket's owner. --prometheus \
prints the same numbers as metrics, for the textfile collector of Prometheus' node_exporter. The command prints them \
when it has finished, so write them to another file and rename it: the collector could otherwise read an empty file.")]
pub struct DuArgs {
    /// s3://BUCKET[/DIRECTORY] or a wildcard, such as s3://BUCKET/PREFIX*; with --by-user, the directory whose subdirectories are the buckets
    pub address: String,
    /// Show the total file size of each file owner in each bucket
    #[arg(long, conflicts_with_all = ["summarize", "raw"])]
    pub by_user: bool,
    /// Print the total file size of each file owner in each bucket, as Prometheus metrics
    #[arg(long, requires = "by_user", conflicts_with = "human_readable")]
    pub prometheus: bool,
    /// Print only the total, not one line per prefix
    #[arg(long, short)]
    pub summarize: bool,
    /// Show sizes as KiB, MiB, ...
    #[arg(long, short = 'h', visible_short_alias = 'H')]
    pub human_readable: bool,
    /// Print help
    #[arg(long, action = ArgAction::Help)]
    pub help: Option<bool>,
    /// Treat * and ? in the address as literal characters
    #[arg(long)]
    pub raw: bool,
}

/// Options of `env`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fordway env rclone >> ~/.config/rclone/rclone.conf
  eval \"$(fordway env)\"
  fordway --endpoint https://s3.example.org env boto3
  curl --config <(fordway env curl) http://127.0.0.1:9000/data/run.h5

The command prints the endpoint, the region and the keys that fordway itself uses, in the format that TOOL reads. The \
output contains the secret key. Replace BUCKET in the output with the name of a bucket. Every TOOL except shell needs \
an http(s):// endpoint. With --json, the output is one JSON object with the settings; its field `text` has the format \
of TOOL.")]
pub struct EnvArgs {
    /// Program for which to print settings
    #[arg(value_enum, default_value_t = ClientToolArg::Shell)]
    pub tool: ClientToolArg,
}

/// A program for which `env` can print settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ClientToolArg {
    /// Environment variables that fordway, the AWS SDKs and many other programs read
    Shell,
    /// A profile for ~/.aws/config, for `aws --profile fordway`
    AwsCli,
    /// Python code that creates a client
    Boto3,
    /// A configuration file, for `curl --config`
    Curl,
    /// SQL statement that creates a secret for s3:// addresses
    Duckdb,
    /// Python code that creates a store
    Obstore,
    /// Python code with storage options, which deltalake and other programs that use object_store also accept
    #[value(alias = "deltalake")]
    Polars,
    /// Python code that creates a file system
    Pyarrow,
    /// A remote for rclone.conf
    Rclone,
    /// Environment variables that s5cmd reads
    S5cmd,
    /// A file for ~/.s3cfg
    S3cmd,
    /// Python code that creates an fsspec file system
    S3fs,
}

/// Options of `presign`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fordway presign s3://data/run.h5 --expires-in 600
  curl -T run.h5 \"$(fordway presign s3://data/run.h5 --method put)\"")]
pub struct PresignArgs {
    /// s3://BUCKET/KEY
    pub address: String,
    /// Number of seconds until the URL expires, from 1 to 604800 (seven days)
    #[arg(long, value_name = "SECONDS", default_value_t = 3600, value_parser = clap::value_parser!(u32).range(1..=604_800))]
    pub expires_in: u32,
    /// Operation that the URL permits
    #[arg(long, value_enum, default_value_t = PresignMethod::Get)]
    pub method: PresignMethod,
    /// Options of `aws s3` that have no effect here, or are refused
    #[command(flatten)]
    pub aws: AwsOptions,
}

/// The operation that a presigned URL permits.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum PresignMethod {
    /// Read the object
    Get,
    /// Read the object's metadata
    Head,
    /// Write the object
    Put,
    /// Remove the object
    Delete,
}

impl PresignMethod {
    /// Returns the HTTP method.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            PresignMethod::Get => "GET",
            PresignMethod::Head => "HEAD",
            PresignMethod::Put => "PUT",
            PresignMethod::Delete => "DELETE",
        }
    }
}

/// Options of `versioning`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fordway versioning s3://data
  fordway versioning s3://data enable
  fordway versioning s3://data suspend

Without CHANGE, the command prints whether the bucket keeps versions. If versioning is suspended, the bucket keeps \
its existing versions.")]
pub struct VersioningArgs {
    /// s3://BUCKET
    pub bucket: String,
    /// Change to make
    #[arg(value_enum)]
    pub change: Option<VersioningChange>,
}

/// The new state of a bucket's versioning.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum VersioningChange {
    /// Keep overwritten and deleted objects as versions from now on
    Enable,
    /// Keep no further versions; existing versions remain
    Suspend,
}

/// Options of `tag`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fordway tag s3://data/run.h5
  fordway tag s3://data/run.h5 project=ice state=final
  fordway tag s3://data/run.h5 --remove

The new tags replace all tags of the object. The content of the object is not rewritten.")]
pub struct TagArgs {
    /// s3://BUCKET/KEY
    pub address: String,
    /// Tags to set; if omitted, the current tags are shown
    #[arg(value_name = "KEY=VALUE", value_parser = tag)]
    pub tags: Vec<(String, String)>,
    /// Remove all tags
    #[arg(long, conflicts_with = "tags")]
    pub remove: bool,
    /// Use this version instead of the latest
    #[arg(long, value_name = "ID", value_parser = version_id)]
    pub version_id: Option<VersionId>,
}

fn tag(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("write KEY=VALUE".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_keep_their_case() {
        assert_eq!(tag("Owner=a=b"), Ok(("Owner".into(), "a=b".into())));
        assert!(tag("=x").is_err() && tag("x").is_err());
    }
}
