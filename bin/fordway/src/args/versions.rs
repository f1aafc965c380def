//! Options of the commands about versions and tags.

use clap::{Args, ValueEnum};
use fordway_store::VersionId;

use super::version_id;

/// Options of `versioning`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fordway versioning s3://data
  fordway versioning s3://data enable
  fordway versioning s3://data suspend

Without a word it says whether the bucket keeps versions. A bucket that was suspended keeps the versions it has.")]
pub struct VersioningArgs {
    /// s3://BUCKET
    pub bucket: String,
    /// What to change
    #[arg(value_enum)]
    pub change: Option<VersioningChange>,
}

/// What is to become of a bucket's versioning.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum VersioningChange {
    /// Keep what is overwritten and deleted from now on
    Enable,
    /// Keep no more of it
    Suspend,
}

/// Options of `tag`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fordway tag s3://data/run.h5
  fordway tag s3://data/run.h5 project=ice state=final
  fordway tag s3://data/run.h5 --remove

The tags given replace all that the object had; it is not written again.")]
pub struct TagArgs {
    /// s3://BUCKET/KEY
    pub address: String,
    /// Tags to set; without any, those that are set are shown
    #[arg(value_name = "KEY=VALUE", value_parser = tag)]
    pub tags: Vec<(String, String)>,
    /// Remove all tags
    #[arg(long, conflicts_with = "tags")]
    pub remove: bool,
    /// A version of the object, not its latest
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
