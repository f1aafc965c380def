//! Options of the commands that move or remove content.

use clap::Args;
use fordway_store::{ByteRange, ChecksumAlgorithm, VersionId};

use super::{ReplicaArgs, ThirdPartyArg, byte_range, version_id};
use crate::wildcard::Filters;
use fordway_wire::size_text::parse_bytes;

/// Options of `cp`.
#[derive(Debug, Args)]
#[command(
    allow_missing_positional = true,
    after_help = "Examples:
  fordway cp run.h5 s3://data/2024/
  fordway cp s3://data/2024/run.h5 .
  fordway cp 's3://data/logs/*.gz' logs/
  fordway cp results s3://data/results --recursive --exclude '*.tmp'
  fordway cp s3://data/a s3://backup/a
  fordway cp davs://one.example/a.root davs://two.example/a.root
  tar c results | fordway cp - s3://data/results.tar
  fordway cp https://data.example.org/events.root . --streams 4
  fordway cp --metalink events.meta4 .

A destination that ends in / or is a directory keeps the name of the source. With --recursive, \
s3://b/p means what lies below s3://b/p/."
)]
pub struct CpArgs {
    /// Files, directories, s3:// addresses, wildcards, -, or http(s):// and dav(s):// addresses
    #[arg(required_unless_present = "metalink", value_name = "SOURCE")]
    pub sources: Vec<String>,
    /// A file, a directory, an s3://, http(s):// or dav(s):// address, or -
    pub destination: String,
    /// Copy all that lies below the source
    #[arg(long, short)]
    pub recursive: bool,
    /// Take * and ? in sources literally
    #[arg(long)]
    pub raw: bool,
    /// A version of the one object that is named, not its latest
    #[arg(long, value_name = "ID", value_parser = version_id)]
    pub version_id: Option<VersionId>,
    /// Skip what is at the destination already
    #[arg(long, short, conflicts_with = "if_none_match")]
    pub no_clobber: bool,
    /// Fail where something is at the destination already
    #[arg(long)]
    pub if_none_match: bool,
    /// Where else an http(s) file is
    #[command(flatten)]
    pub replicas: ReplicaArgs,
    /// How to copy between web servers
    #[arg(long, value_enum, value_name = "WHO", default_value_t = ThirdPartyArg::Pull)]
    pub third_party: ThirdPartyArg,
    /// What to copy and how
    #[command(flatten)]
    pub transfer: TransferArgs,
}

/// Options of `sync`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fordway sync results s3://data/results
  fordway sync s3://data/results results --delete --dry-run
  fordway sync s3://data/a s3://backup/a --exclude 'tmp/*'

A file is copied when it is missing at the destination, when the sizes differ, or when the \
modification times say that the local side changed (as `aws s3 sync` decides).")]
pub struct SyncArgs {
    /// A directory or s3://BUCKET[/PREFIX]
    pub source: String,
    /// A directory or s3://BUCKET[/PREFIX]
    pub destination: String,
    /// Remove at the destination what the source does not have
    #[arg(long)]
    pub delete: bool,
    /// Downloads: copy whenever the times differ, not only when the local file is newer
    #[arg(long)]
    pub exact_timestamps: bool,
    /// Compare sizes only
    #[arg(long, conflicts_with = "exact_timestamps")]
    pub size_only: bool,
    /// What to copy and how
    #[command(flatten)]
    pub transfer: TransferArgs,
}

/// What `cp` and `sync` have in common.
#[derive(Debug, Args)]
pub struct TransferArgs {
    /// Include and exclude patterns
    #[command(flatten)]
    pub filters: Filters,
    /// Show what would be done, and do nothing
    #[arg(long, alias = "dryrun")]
    pub dry_run: bool,
    /// Objects transferred at once
    #[arg(long, short, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub jobs: u16,
    /// Parts of one large object transferred at once
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub concurrency: u16,
    /// Bytes of a part (5MiB to 5GiB); raised where an object would need more than 10,000
    #[arg(long, value_name = "SIZE", default_value = "16MiB", value_parser = part_size)]
    pub part_size: u64,
    /// Transfer larger objects in parts [default: 64MiB over HTTP; one stream elsewhere]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub multipart_threshold: Option<u64>,
    /// Metadata to keep with what is written; replaces the source's when objects are copied
    #[arg(long, value_name = "KEY=VALUE", value_delimiter = ',', value_parser = key_value)]
    pub metadata: Vec<(String, String)>,
    /// Content-Type of what is written [default: guessed from the file name]
    #[arg(long, value_name = "TYPE")]
    pub content_type: Option<String>,
    /// Do not guess the Content-Type
    #[arg(long)]
    pub no_guess_mime_type: bool,
    /// Checksum to store with uploads: CRC32, CRC32C, CRC64NVME, SHA1, SHA256 [default: CRC64NVME over HTTP]
    #[arg(long, value_name = "NAME", value_parser = checksum_algorithm)]
    pub checksum_algorithm: Option<ChecksumAlgorithm>,
    /// Do not hold downloads against their checksum or MD5 (some encrypted objects have a false one)
    #[arg(long)]
    pub no_verify: bool,
}

/// Options of `cat`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fordway cat s3://data/notes.txt
  fordway cat s3://data/run.h5 --range 0-511 | xxd
  fordway cat s3://data/notes.txt --version-id 3sL4kqtJlcpXroDTDmJ
  fordway cat 's3://data/logs/*.gz' | zcat
  fordway cat --metalink events.meta4 | sha256sum")]
pub struct CatArgs {
    /// s3://BUCKET/KEY, a wildcard, or http(s)://HOST/PATH (or dav(s)://)
    #[arg(required_unless_present = "metalink", value_name = "ADDRESS")]
    pub addresses: Vec<String>,
    /// Bytes FIRST-LAST (both included), FIRST- or -COUNT (from the end)
    #[arg(long, value_name = "RANGE", value_parser = byte_range, allow_hyphen_values = true)]
    pub range: Option<ByteRange>,
    /// A version of the one object that is named, not its latest
    #[arg(long, value_name = "ID", value_parser = version_id)]
    pub version_id: Option<VersionId>,
    /// Take * and ? in addresses literally
    #[arg(long)]
    pub raw: bool,
    /// Do not hold objects against their checksum or MD5
    #[arg(long)]
    pub no_verify: bool,
    /// Where else an http(s) file is
    #[command(flatten)]
    pub replicas: ReplicaArgs,
}

/// Options of `rm`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fordway rm s3://data/run.h5
  fordway rm 's3://data/logs/2023-*' --dry-run
  fordway rm davs://host.example/old --recursive
  fordway rm s3://data/old --recursive --exclude '*.keep'
  fordway rm s3://data/run.h5 --version-id 3sL4kqtJlcpXroDTDmJ

Removing an object that is not there succeeds. In a bucket that keeps versions it becomes one of them, behind a \
delete marker; --version-id removes a version, or a marker, for good. With --recursive, s3://b/p means what lies below s3://b/p/.")]
pub struct RmArgs {
    /// s3://BUCKET/KEY, a prefix with --recursive, a wildcard, or dav(s)://HOST/PATH
    #[arg(required = true, value_name = "ADDRESS")]
    pub addresses: Vec<String>,
    /// Remove all that lies below the address
    #[arg(long, short)]
    pub recursive: bool,
    /// Include and exclude patterns
    #[command(flatten)]
    pub filters: Filters,
    /// Show what would be removed, and remove nothing
    #[arg(long, alias = "dryrun")]
    pub dry_run: bool,
    /// Take * and ? in addresses literally
    #[arg(long)]
    pub raw: bool,
    /// A version of the one object that is named, to be removed for good
    #[arg(long, value_name = "ID", value_parser = version_id)]
    pub version_id: Option<VersionId>,
    /// Batches of 1,000 objects removed at once
    #[arg(long, short, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub jobs: u16,
}

fn part_size(text: &str) -> Result<u64, String> {
    let bytes = parse_bytes(text)?;
    if (5 << 20..=5 << 30).contains(&bytes) {
        return Ok(bytes);
    }
    Err("a part has 5MiB to 5GiB".to_owned())
}

fn key_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_ascii_lowercase(), value.to_owned())),
        _ => Err("write KEY=VALUE".to_owned()),
    }
}

fn checksum_algorithm(text: &str) -> Result<ChecksumAlgorithm, String> {
    ChecksumAlgorithm::from_name(text).ok_or_else(|| {
        let names = ChecksumAlgorithm::ALL.map(ChecksumAlgorithm::name);
        format!("choose one of {}", names.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values() {
        assert_eq!(key_value("Owner=a=b"), Ok(("owner".into(), "a=b".into())));
        assert!(key_value("=x").is_err() && key_value("x").is_err());
        assert!(part_size("4MiB").is_err() && part_size("5MiB").is_ok());
    }
}
