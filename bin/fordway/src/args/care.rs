//! Options of `gc` and `fsck`, which take care of a directory that is served or embedded.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use fordway_store::Bucket;

use fordway_command::units::parse_duration;

/// Which directory, and which buckets of it.
#[derive(Debug, Args)]
pub struct DirectoryArgs {
    /// The directory whose subdirectories are the buckets
    pub root: PathBuf,
    /// Only this bucket; may be given more than once
    #[arg(long = "bucket", value_name = "NAME", value_parser = parse_bucket)]
    pub buckets: Vec<Bucket>,
}

fn parse_bucket(name: &str) -> Result<Bucket, String> {
    Bucket::new(name).map_err(|error| error.to_string())
}

/// Options of `gc`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fordway gc /lustre/project/objects --dry-run
  fordway gc /lustre/project/objects --uploads-older-than 30d --quiet
  fordway gc . --bucket results --bucket scratch --json

Removes what interrupted work left behind: staged files, multipart uploads that nobody went on with,
files that another one of the same key hides, and empty directories that S3 clients had made. It may
run at any time beside programs that read and write. Ages count from the last change on the file
system's clock. What cannot be removed is reported, and the rest is done.")]
pub struct GcArgs {
    /// Where
    #[command(flatten)]
    pub directory: DirectoryArgs,
    /// Remove staged files and empty directories that did not change for so long; longer than any writer pauses
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = parse_duration)]
    pub older_than: Duration,
    /// Remove multipart uploads for which nothing arrived for so long
    #[arg(long, value_name = "TIME", default_value = "7d", value_parser = parse_duration)]
    pub uploads_older_than: Duration,
    /// Show what would be removed, and change nothing
    #[arg(long)]
    pub dry_run: bool,
}

/// Options of `fsck`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fordway fsck /lustre/project/objects
  fordway fsck /lustre/project/objects --read --json > findings.jsonl
  fordway fsck . --bucket results --read
  fordway fsck /lustre/project/objects --migrate

Holds what lies on disk against what is stored about it, and changes nothing but with --migrate. Each finding is one line: \
severity, kind, path, and what to do next. With --read, content that has an MD5 or a checksum is read \
and compared; an ETag of the kind `fast` says nothing of content, so such objects are not read. Exit code \
8 if anything is corrupt, 1 if something could not be read, 0 otherwise, also with notes.")]
pub struct FsckArgs {
    /// Where
    #[command(flatten)]
    pub directory: DirectoryArgs,
    /// Read content and compare it with its MD5 and checksum
    #[arg(long)]
    pub read: bool,
    /// First bring the directory to this version's format, and bind metadata again after a restore
    #[arg(long)]
    pub migrate: bool,
}
