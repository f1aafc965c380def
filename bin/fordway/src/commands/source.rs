//! Which objects an address means, for the commands that take several.

use std::fmt;
use std::path::Path;

use fordway_command::{Address, Context};
use fordway_store::{Bucket, Error, ErrorKind, Result};

use crate::transfer::tree::{self, Items};
use crate::wildcard::{directory, has_wildcard, literal_prefix};

/// The source of a command, read from its address.
pub(super) enum Source {
    /// One object or file, or standard input.
    One(Address),
    /// All that lies below a directory or prefix.
    Below(Address),
    /// The objects of a bucket that fit a wildcard.
    Matching(Bucket, String),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::One(place) | Source::Below(place) => place.fmt(f),
            Source::Matching(bucket, wildcard) => write!(f, "s3://{bucket}/{wildcard}"),
        }
    }
}

impl Source {
    /// Reads `text`, for a command that has no `--recursive`: it takes objects, and wildcards of them.
    pub(super) fn find_flat(text: &str, raw: bool) -> Result<Self> {
        match Address::parse(text)? {
            Address::S3(bucket, key)
                if (raw || !has_wildcard(&key)) && (key.is_empty() || key.ends_with('/')) =>
            {
                let place = format!("s3://{bucket}/{key}");
                let why = format!("{place} is not one object; all below it is '{place}*'");
                Err(Error::new(ErrorKind::InvalidArgument, why))
            }
            _ => Self::find(text, false, raw),
        }
    }

    /// Reads `text`; `raw` takes wildcards literally.
    pub(super) fn find(text: &str, recursive: bool, raw: bool) -> Result<Self> {
        match Address::parse(text)? {
            Address::S3(bucket, key) if !raw && has_wildcard(&key) => Ok(Source::Matching(bucket, key)),
            Address::S3(bucket, key) if recursive => {
                Ok(Source::Below(Address::S3(bucket, key).into_directory()))
            }
            Address::S3(bucket, key) if key.is_empty() || key.ends_with('/') => {
                let why = format!("s3://{bucket}/{key} is not one object; add --recursive for all below it");
                Err(Error::new(ErrorKind::InvalidArgument, why))
            }
            Address::Local(path) if path.is_dir() && recursive => Ok(Source::Below(Address::Local(path))),
            Address::Local(path) if path.is_dir() => {
                let why = format!("{} is a directory; add --recursive for all below it", path.display());
                Err(Error::new(ErrorKind::InvalidArgument, why))
            }
            Address::Service => Err(Error::new(ErrorKind::InvalidArgument, "s3:// names no bucket")),
            other => Ok(Source::One(other)),
        }
    }

    /// The directory or prefix that relative names start from.
    pub(super) fn root(&self) -> Address {
        match self {
            Source::Below(root) => root.clone(),
            Source::Matching(bucket, wildcard) => {
                Address::S3(bucket.clone(), directory(literal_prefix(wildcard)).to_owned())
            }
            Source::One(Address::S3(bucket, key)) => Address::S3(bucket.clone(), directory(key).to_owned()),
            Source::One(Address::Local(path)) => {
                Address::Local(path.parent().unwrap_or(Path::new("")).to_owned())
            }
            Source::One(other) => other.clone(),
        }
    }

    /// The listing of a source of several objects; `None` for a single one.
    /// A wildcard that fits nothing makes one `NoSuchKey` error.
    pub(super) fn items(&self, context: &Context) -> Result<Option<Items>> {
        match self {
            Source::One(_) => Ok(None),
            Source::Below(root) => tree::items(context, root).map(Some),
            Source::Matching(bucket, wildcard) => {
                let mut items = tree::matching(context, bucket, wildcard)?.peekable();
                if items.peek().is_none() {
                    return Err(Error::new(
                        ErrorKind::NoSuchKey,
                        format!(
                            "nothing fits s3://{bucket}/{wildcard} (add --raw to take * and ? literally)"
                        ),
                    ));
                }
                Ok(Some(Box::new(items)))
            }
        }
    }
}
