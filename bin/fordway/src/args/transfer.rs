//! Options of the commands that move, read or remove content: `cp`, `sync`, `mv`, `cat`, `read`, `rm`, `mkdir`,
//! `metalink`. This file also defines `--include` and `--exclude`, whose order on the command line matters, and the
//! option that selects the server that makes a third-party copy.

use std::path::PathBuf;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{
    Arg, ArgAction, ArgGroup, ArgMatches, Args, Command, Error, FromArgMatches, Subcommand, ValueEnum,
};
use fordway_command::StorageAddress;
use fordway_store::{ByteRange, ChecksumAlgorithm, VersionId};
use fordway_wire::size_text::parse_bytes;

use super::{AwsOptions, MetadataArgs, ReplicaArgs, VectorReadArgs, byte_range, version_id};
use crate::transfer::ObjectMetadataRules;
use crate::wildcard::{FilterAction, FilterRules, WildcardPattern};

/// Options of `cp`.
#[derive(Debug, Args)]
#[command(
    override_usage = CP_USAGE,
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

If the destination ends in / or is a directory, the copy keeps the name of the source. With --recursive, \
s3://b/p selects everything below s3://b/p/; if there is nothing, it selects the object s3://b/p. Without --recursive, \
s3://b/p/ selects the object with this key, if there is one.

--recursive leaves out the hidden files of unfinished downloads (.NAME.0123456789abcdef.part), and prints their number.

A copy between two keys of a store keeps the holes of a sparse file, unless it is made in parts. Uploads and downloads \
copy holes as zeros."
)]
pub struct CpArgs {
    /// The sources and the destination
    #[command(flatten)]
    pub paths: TransferPaths,
    /// Copy everything below the source
    #[arg(long, short)]
    pub recursive: bool,
    /// Treat * and ? in sources as literal characters
    #[arg(long)]
    pub raw: bool,
    /// Use this version instead of the latest; only with a single object
    #[arg(long, value_name = "ID", value_parser = version_id)]
    pub version_id: Option<VersionId>,
    /// Skip objects and files that already exist at the destination; `mv` keeps their sources
    #[arg(long, short, visible_alias = "no-overwrite", conflicts_with = "if_none_match")]
    pub no_clobber: bool,
    /// Fail if an object or file already exists at the destination
    #[arg(long)]
    pub if_none_match: bool,
    /// Replicas of http(s) files
    #[command(flatten)]
    pub replicas: ReplicaArgs,
    /// Which server transfers the content of a copy between two web servers
    #[arg(long, value_enum, value_name = "WHO", default_value_t = ThirdPartyCopyArg::Pull)]
    pub third_party: ThirdPartyCopyArg,
    /// The filters that select what to copy, and the other options of a transfer
    #[command(flatten)]
    pub transfer: TransferArgs,
}

/// The sources and the destination of `cp` and `mv`. All of them are values of one argument, so that options can appear
/// between the sources and the destination.
#[derive(Debug)]
pub struct TransferPaths {
    /// The sources; empty only with `--metalink`.
    pub sources: Vec<String>,
    /// The destination.
    pub destination: String,
}

const PATHS: &str = "Files, directories, s3:// addresses, wildcards, http(s):// and dav(s):// addresses, or - (only \
                     `cp`); the last one is DESTINATION";

const CP_USAGE: &str = "fordway cp [OPTIONS] [SOURCE]... <DESTINATION>";
const MV_USAGE: &str = "fordway mv [OPTIONS] <SOURCE>... <DESTINATION>";

fn missing_destination(usage: &str) -> Error {
    let mut error = Error::new(ErrorKind::MissingRequiredArgument);
    error.insert(ContextKind::InvalidArg, ContextValue::Strings(vec!["<DESTINATION>".to_owned()]));
    error.insert(ContextKind::Usage, ContextValue::StyledStr(format!("Usage: {usage}").into()));
    error
}

impl Args for TransferPaths {
    fn augment_args(command: Command) -> Command {
        let paths = Arg::new("paths").value_name("SOURCE").help(PATHS).required(true);
        command.arg(paths.action(ArgAction::Append).num_args(1..))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for TransferPaths {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let mut sources: Vec<String> = matches.get_many("paths").into_iter().flatten().cloned().collect();
        // `mv` has no option --metalink.
        let has_metalink = matches.try_contains_id("metalink");
        let may_lack_sources = has_metalink.as_ref().is_ok_and(|given| *given);
        let destination = sources.pop().filter(|_| may_lack_sources || !sources.is_empty());
        destination
            .map(|destination| TransferPaths { sources, destination })
            .ok_or_else(|| missing_destination(if has_metalink.is_ok() { CP_USAGE } else { MV_USAGE }))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Options of `sync`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fordway sync results s3://data/results
  fordway sync s3://data/results results --delete --dry-run
  fordway sync s3://data/a s3://backup/a --exclude 'tmp/*'

A file is copied when it is missing at the destination, when the sizes differ, or when the modification times show that the local side changed (as in `aws s3 sync`).

The hidden files of unfinished downloads (.NAME.0123456789abcdef.part) are left out, and their number is printed.")]
pub struct SyncArgs {
    /// A directory or s3://BUCKET[/PREFIX]
    pub source: String,
    /// A directory or s3://BUCKET[/PREFIX]
    pub destination: String,
    /// Remove files and objects at the destination that do not exist at the source. Nothing is removed below a symbolic
    /// link to a directory. A prefix without any object is an error
    #[arg(long)]
    pub delete: bool,
    /// Treat * and ? in the addresses as literal characters; otherwise, they are an error
    #[arg(long)]
    pub raw: bool,
    /// Skip objects and files that already exist at the destination, even if they differ
    // There is no short option, because `-n` means a dry run in rsync and rclone.
    #[arg(long, visible_alias = "no-overwrite")]
    pub no_clobber: bool,
    /// Download whenever the modification times differ, not only if the local file is newer
    #[arg(long)]
    pub exact_timestamps: bool,
    /// Compare only sizes, not modification times
    #[arg(long, conflicts_with = "exact_timestamps")]
    pub size_only: bool,
    /// The filters that select what to copy, and the other options of a transfer
    #[command(flatten)]
    pub transfer: TransferArgs,
}

/// Options shared by `cp`, `sync` and `mv`.
#[derive(Debug, Args)]
pub struct TransferArgs {
    /// Include and exclude patterns
    #[command(flatten)]
    pub filters: FilterRules,
    /// Follow symbolic links when reading local files; this is the default. A link to a directory that contains the
    /// link is an error. For `mv`, every link to a directory is an error
    #[arg(long, overrides_with = "no_follow_symlinks")]
    pub follow_symlinks: bool,
    /// Skip symbolic links when reading local files; a link to a directory is followed if it is itself SOURCE, except
    /// by `mv`. `sync` also skips links at a local destination: they are neither compared nor removed
    #[arg(long, overrides_with = "follow_symlinks")]
    pub no_follow_symlinks: bool,
    /// Show what would be done, without doing it
    #[arg(long, alias = "dryrun")]
    pub dry_run: bool,
    /// Number of objects to transfer in parallel, from 1 to 1024
    #[arg(long, short, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub jobs: u16,
    /// Number of parts of one large object to transfer in parallel, from 1 to 256. An upload over HTTP keeps each part
    /// in memory until it is sent. If all uploads in progress together would need more than 1 GiB, some of them wait
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub concurrency: u16,
    /// Size of a part, from 5MiB to 5GiB; increased if an object would need more than 10,000 parts
    #[arg(long, value_name = "SIZE", default_value = "16MiB", value_parser = part_size)]
    pub part_size: u64,
    /// Transfer objects of at least this size in parts [default: 64MiB over HTTP; no parts on other lanes]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub multipart_threshold: Option<u64>,
    /// Checksum algorithm for uploads and copies of objects: CRC32, CRC32C, CRC64NVME, SHA1, SHA256, SHA512, MD5,
    /// XXHASH64, XXHASH3, XXHASH128 [default: CRC64NVME over HTTP, none on other lanes]
    #[arg(long, value_name = "NAME", value_parser = checksum_algorithm)]
    pub checksum_algorithm: Option<ChecksumAlgorithm>,
    /// Do not verify downloads against their checksum or MD5 (the MD5 of some encrypted objects is wrong)
    #[arg(long)]
    pub no_verify: bool,
    /// The metadata of the objects written
    #[command(flatten)]
    pub object: MetadataArgs,
    /// Options of `aws s3` that have no effect here, or are refused
    #[command(flatten)]
    pub aws: AwsOptions,
}

impl TransferArgs {
    /// Returns the filters that select the files and objects of a source.
    pub(crate) fn selection(&self) -> FilterRules {
        self.filters.skipping_links(self.no_follow_symlinks)
    }
}

/// Options of `cat`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fordway cat s3://data/notes.txt
  fordway cat s3://data/run.h5 --range 0-511 | xxd
  fordway cat s3://data/notes.txt --version-id 18a3b2c4d5e6f708.0123456789abcdef
  fordway cat 's3://data/logs/*.gz' | zcat
  fordway cat --metalink events.meta4 | sha256sum")]
pub struct CatArgs {
    /// s3://BUCKET/KEY, a wildcard, or http(s)://HOST/PATH (or dav(s)://)
    #[arg(required_unless_present = "metalink", value_name = "ADDRESS")]
    pub addresses: Vec<String>,
    /// Bytes to write: FIRST-LAST (inclusive), FIRST- or -COUNT (the last COUNT bytes)
    #[arg(long, value_name = "RANGE", value_parser = byte_range, allow_hyphen_values = true)]
    pub range: Option<ByteRange>,
    /// Use this version instead of the latest; only with a single object
    #[arg(long, value_name = "ID", value_parser = version_id)]
    pub version_id: Option<VersionId>,
    /// Treat * and ? in addresses as literal characters
    #[arg(long)]
    pub raw: bool,
    /// Do not verify objects against their checksum or MD5
    #[arg(long)]
    pub no_verify: bool,
    /// Replicas of http(s) files
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
  fordway rm s3://data/run.h5 --version-id 18a3b2c4d5e6f708.0123456789abcdef

Removing an object that does not exist succeeds. In a bucket with versioning enabled, the command adds a delete \
marker and keeps the object as a noncurrent version. With --version-id, the command removes a version or a delete \
marker permanently. With --recursive, s3://b/p selects everything below s3://b/p/; if there is nothing, it selects the \
object s3://b/p. If there is no such object either, the command fails.")]
pub struct RmArgs {
    /// s3://BUCKET/KEY, a prefix with --recursive, a wildcard, or dav(s)://HOST/PATH
    #[arg(required = true, value_name = "ADDRESS")]
    pub addresses: Vec<String>,
    /// Remove everything below the address
    #[arg(long, short)]
    pub recursive: bool,
    /// Include and exclude patterns
    #[command(flatten)]
    pub filters: FilterRules,
    /// Show what would be removed, without removing it
    #[arg(long, alias = "dryrun")]
    pub dry_run: bool,
    /// Treat * and ? in addresses as literal characters
    #[arg(long)]
    pub raw: bool,
    /// Remove this version permanently; only with a single object
    #[arg(long, value_name = "ID", value_parser = version_id)]
    pub version_id: Option<VersionId>,
    /// Number of batches of up to 1,000 objects to remove in parallel, from 1 to 1024
    #[arg(long, short, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub jobs: u16,
    /// Options of `aws s3` that have no effect here, or are refused
    #[command(flatten)]
    pub aws: AwsOptions,
}

fn part_size(text: &str) -> Result<u64, String> {
    let bytes = parse_bytes(text)?;
    if (5 << 20..=5 << 30).contains(&bytes) {
        return Ok(bytes);
    }
    Err("the size of a part must be from 5MiB to 5GiB".to_owned())
}

fn checksum_algorithm(text: &str) -> Result<ChecksumAlgorithm, String> {
    ChecksumAlgorithm::from_name(text).ok_or_else(|| {
        let names = ChecksumAlgorithm::ALL.map(ChecksumAlgorithm::name);
        format!("choose one of {}", names.join(", "))
    })
}

/// Options of `mv`.
#[derive(Debug, Args)]
#[command(
    override_usage = MV_USAGE,
    after_help = "Examples:
  fordway mv s3://data/a s3://data/b
  fordway mv run.h5 s3://data/2024/
  fordway mv davs://host.example/new/run.h5 davs://host.example/done/

Each object or file is copied and then removed, as `aws s3 mv` does. Within one bucket, an object is renamed in one \
step, unless the lane is HTTP or the bucket keeps versions. Within one WebDAV server, one MOVE request moves a file, \
or a whole collection with --recursive.

If a source is a symbolic link to a file, the content of the file is copied, and the link is removed. If a link \
in the sources leads to a source, that source is removed last, and is kept if the link could not be moved. A link to a \
directory is an error and is not moved, because the files in the directory may belong to another tree. To move them, \
end the source with a slash: fordway mv -r link/ s3://data/link."
)]
pub struct MvArgs {
    /// The sources and the destination
    #[command(flatten)]
    pub paths: TransferPaths,
    /// Move everything below the source
    #[arg(long, short)]
    pub recursive: bool,
    /// Treat * and ? in sources as literal characters
    #[arg(long)]
    pub raw: bool,
    /// Skip objects and files that already exist at the destination; `mv` keeps their sources
    #[arg(long, short, visible_alias = "no-overwrite", conflicts_with = "if_none_match")]
    pub no_clobber: bool,
    /// Fail if an object or file already exists at the destination
    #[arg(long)]
    pub if_none_match: bool,
    /// Which server transfers the content of a copy between two web servers
    #[arg(long, value_enum, value_name = "WHO", default_value_t = ThirdPartyCopyArg::Pull)]
    pub third_party: ThirdPartyCopyArg,
    /// The filters that select what to move, and the other options of a transfer
    #[command(flatten)]
    pub transfer: TransferArgs,
}

impl MvArgs {
    /// Returns whether the command may copy content into a bucket. Within a bucket, objects are renamed, unless the
    /// options change their metadata.
    pub(super) fn copies_into_bucket(&self) -> bool {
        let bucket_of = |text: &str| match StorageAddress::parse(text) {
            Ok(StorageAddress::S3(bucket, _)) => Some(bucket),
            _ => None,
        };
        let Some(to) = bucket_of(&self.paths.destination) else { return false };
        let keeps_metadata =
            ObjectMetadataRules::of(&self.transfer.object).is_ok_and(|rules| rules.keep_all());
        let is_renamed = |from: &String| bucket_of(from).as_ref() == Some(&to);
        let are_renamed = keeps_metadata && self.transfer.checksum_algorithm.is_none();
        !are_renamed || !self.paths.sources.iter().all(is_renamed)
    }
}

/// Options of `mkdir`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fordway mkdir davs://host.example/data/2024
  fordway mkdir --parents davs://host.example/data/2024/05
  fordway mkdir s3://data/2024

In a bucket, the command creates an empty object whose key ends with a slash. Some programs show such objects as \
directories. Keys below the prefix do not need such an object. Use `fordway mb` to create buckets.")]
pub struct MkdirArgs {
    /// http(s):// or dav(s):// addresses, or s3://BUCKET/PREFIX
    #[arg(required = true, value_name = "ADDRESS")]
    pub addresses: Vec<String>,
    /// Create missing parents too, and do not fail if the address already exists
    #[arg(long, short)]
    pub parents: bool,
}

/// The server that makes a copy from one web server to another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ThirdPartyCopyArg {
    /// The destination reads from the source; if it cannot, this program copies the content
    #[default]
    Pull,
    /// The source writes to the destination; if it cannot, this program copies the content
    Push,
    /// Neither server; this program reads from the source and writes to the destination
    Never,
}

const OPTIONS: [(&str, FilterAction, &str); 2] = [
    (
        "exclude",
        FilterAction::Exclude,
        "Exclude paths below the source that match this pattern; the last matching --exclude or --include decides",
    ),
    (
        "include",
        FilterAction::Include,
        "Include paths that match this pattern even if an earlier --exclude matches them; to select only these paths, \
         write --exclude '*' --include PATTERN",
    ),
];

impl Args for FilterRules {
    fn augment_args(command: Command) -> Command {
        OPTIONS.iter().fold(command, |command, (name, _, help)| {
            let option = Arg::new(*name).long(*name).value_name("PATTERN").help(*help);
            command.arg(option.action(ArgAction::Append))
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for FilterRules {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let mut rules = Vec::new();
        for (name, verdict, _) in OPTIONS {
            let positions = matches.indices_of(name).into_iter().flatten();
            let patterns = matches.get_many::<String>(name).into_iter().flatten();
            rules.extend(positions.zip(patterns).map(|(at, text)| (at, verdict, text)));
        }
        rules.sort_by_key(|(at, ..)| *at);
        let in_order =
            rules.into_iter().map(|(_, verdict, text)| (verdict, WildcardPattern::of_filter(text)));
        let filters = FilterRules::new(in_order.collect());
        if filters.begin_with_include() {
            let why = "--include has no effect without an earlier --exclude; to select only the paths that match, write \
                       --exclude '*' --include PATTERN\n";
            return Err(Error::raw(ErrorKind::ArgumentConflict, why));
        }
        Ok(filters)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Options of `read`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("what").required(true).args(["ranges", "sequential"]))]
#[command(after_help = "Examples:
  fordway read https://data.example.org/events.root --ranges baskets.txt --output baskets.bin
  echo '0 4096' | fordway read s3://data/run.h5 --ranges - | xxd
  fordway read http://127.0.0.1:8080/events.root --ranges baskets.txt --window 4 --discard --json
  fordway read http://127.0.0.1:8080/events.root --sequential 64KiB --discard
  fordway read https://data.example.org/events.root --ranges baskets.txt --http 2 --discard
  fordway read --metalink events.meta4 --ranges baskets.txt --output baskets.bin

Each line of --ranges contains an offset and a length in bytes: `4096 1000`. The ranges are written one after \
another, in the order of the lines. Ranges may overlap; a range that extends beyond the end of the file is an error.")]
pub struct ReadArgs {
    /// http(s)://HOST/PATH, or s3://BUCKET/KEY on any lane
    #[arg(required_unless_present = "metalink")]
    pub url: Option<String>,
    /// File with one range per line, as `offset length`; - for standard input
    #[arg(long, value_name = "FILE")]
    pub ranges: Option<PathBuf>,
    /// Read the whole file (or an object over HTTP) sequentially in blocks of this size, with read-ahead
    #[arg(long, value_name = "SIZE", value_parser = block_bytes, conflicts_with_all = ["window", "per_call"])]
    pub sequential: Option<u64>,
    /// Maximum amount of memory for read-ahead with --sequential
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, default_value = "64MiB", requires = "sequential")]
    pub read_ahead: u64,
    /// Number of calls in flight, from 1 to 1024; with 1, each call waits for the previous call
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub window: u32,
    /// How ranges are grouped into calls and requests.
    #[command(flatten)]
    pub calls: VectorReadArgs,
    /// Replicas of http(s) files
    #[command(flatten)]
    pub replicas: ReplicaArgs,
    /// Read only the given ranges, and do not verify them (a Metalink's digests cover whole pieces)
    #[arg(long)]
    pub no_verify: bool,
    /// Write to this file instead of standard output
    #[arg(long, short, value_name = "FILE", conflicts_with = "discard")]
    pub output: Option<PathBuf>,
    /// Discard the bytes read, and report the time taken and the number of requests
    #[arg(long)]
    pub discard: bool,
}

fn block_bytes(text: &str) -> Result<u64, String> {
    match parse_bytes(text)? {
        0 => Err("a block must have at least one byte".to_owned()),
        bytes => Ok(bytes),
    }
}

/// Options of `metalink`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fordway metalink make events.root --replica https://a.example.org/d/ \\
    --replica https://b.example.org/d/
  fordway metalink make events.root --replica https://a.example.org/d/events.root@ch \\
    --out events.meta4
  fordway metalink show events.meta4
  fordway metalink show https://a.example.org/d/events.root --json")]
pub struct MetalinkArgs {
    /// The action to perform
    #[command(subcommand)]
    pub action: MetalinkSubcommand,
}

/// The subcommand of `metalink`.
#[derive(Debug, Subcommand)]
pub enum MetalinkSubcommand {
    /// Create Metalinks for local files, with the size, the digests of the file and of its pieces, and the replicas
    Make(MetalinkMakeArgs),
    /// Show a Metalink, or the replicas and digests that a server reports for a file
    Show(MetalinkShowArgs),
}

/// Options of `metalink make`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fordway metalink make events.root --replica https://a.example.org/d/ \\
    --replica https://b.example.org/d/
  fordway metalink make *.root --replica https://a.example.org/d/ --out run7.meta4

The file's name is appended to a URL that ends in /. The first URL has priority 1, and the next URL has priority 2. \
A suffix such as @ch specifies the country of the replica.")]
pub struct MetalinkMakeArgs {
    /// Local files to describe
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// URL of a replica (may be repeated, in order of preference)
    #[arg(long = "replica", required = true, value_name = "URL")]
    pub replicas: Vec<String>,
    /// Size of a piece [default: 256KiB, or larger if a file would have more than 4,096 pieces]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub piece_size: Option<u64>,
    /// File to write, or - for standard output [default: FILE.meta4 next to each file]
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
}

/// Options of `metalink show`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fordway metalink show events.meta4
  fordway metalink show https://a.example.org/d/events.root --json")]
pub struct MetalinkShowArgs {
    /// File or URL of a Metalink or of a list of URLs, or the URL of a file whose server is queried
    pub source: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values() {
        assert!(part_size("4MiB").is_err() && part_size("5MiB").is_ok());
    }

    fn admit(options: &[&str], relative: &str) -> bool {
        let command = FilterRules::augment_args(Command::new("test"));
        let matches = command.get_matches_from([&["test"], options].concat());
        FilterRules::from_arg_matches(&matches).unwrap().admit(relative)
    }

    #[test]
    fn order_decides() {
        assert!(admit(&["--exclude", "*", "--include", "*.txt"], "a.txt"));
        assert!(!admit(&["--include", "*", "--exclude", "*.txt"], "a.txt"));
        assert!(!admit(&["--exclude", "*", "--include", "*.txt", "--exclude", "b*"], "b.txt"));
    }
}
