//! The addresses that commands accept: `s3://bucket/key`, a local path, or `-`.

use std::fmt;
use std::path::{Path, PathBuf};

use fordway_store::{Bucket, Error, ErrorKind, Key, Result};
use fordway_wire::uri::without_secrets;

use crate::web;

/// The form of an object's address.
const OBJECT: &str = "s3://BUCKET/KEY";

/// The name of the private area in a bucket or root.
pub const PRIVATE_AREA: &str = ".fordway";

/// A source or destination of data.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum StorageAddress {
    /// `s3://`: all buckets.
    Service,
    /// `s3://bucket/key`. The key may be empty, a prefix or a wildcard. Each command checks which of these it accepts.
    S3(Bucket, String),
    /// A path on this machine.
    Local(PathBuf),
    /// `-`: standard input or output.
    Stdio,
}

impl StorageAddress {
    /// Parses an address. Errors: `InvalidArgument` for other schemes; `InvalidBucketName`.
    pub fn parse(text: &str) -> Result<Self> {
        if text == "-" {
            return Ok(StorageAddress::Stdio);
        }
        if let Some(rest) = text.strip_prefix("s3://") {
            return match rest.split_once('/').unwrap_or((rest, "")) {
                ("", "") => Ok(StorageAddress::Service),
                (bucket, key) => Ok(StorageAddress::S3(Bucket::new(bucket)?, key.to_owned())),
            };
        }
        if web::is_address(text) {
            let text = without_secrets(text);
            let why = format!(
                "this command does not support the web address {text:?}; `ls`, `stat`, `cat`, `read`, `cp`, \
                 `mv`, `rm` and `mkdir` do; to address an S3 service, use s3://BUCKET/KEY with --endpoint"
            );
            return Err(Error::new(ErrorKind::InvalidArgument, why));
        }
        if let Some((scheme, _)) = text.split_once("://") {
            let text = without_secrets(text);
            let why = format!(
                "{text:?} has the scheme {scheme}; address objects as s3://BUCKET/KEY and specify the server with \
                 --endpoint"
            );
            return Err(Error::new(ErrorKind::InvalidArgument, why));
        }
        if text.is_empty() {
            return Err(Error::new(ErrorKind::InvalidArgument, "an address cannot be empty"));
        }
        // The user has probably forgotten a slash. If the address were treated as a file name, the copy would be
        // written to the current directory.
        if let Some(rest) = text.strip_prefix("s3:") {
            let rest = rest.trim_start_matches('/');
            let why = format!(
                "{text:?} is neither an s3:// address nor a file; write s3://{rest}, or ./{text} for a file \
                 of that name"
            );
            return Err(Error::new(ErrorKind::InvalidArgument, why));
        }
        Ok(StorageAddress::Local(PathBuf::from(text)))
    }

    /// Returns this address as a directory: appends a slash to a key that does not end in a slash.
    pub fn into_directory(self) -> Self {
        match self {
            StorageAddress::S3(bucket, key) if !key.is_empty() && !key.ends_with('/') => {
                StorageAddress::S3(bucket, key + "/")
            }
            other => other,
        }
    }

    /// Returns the address of `relative` below this directory. Errors: `InvalidArgument`, `InvalidKey`, `KeyTooLong`.
    pub fn below(&self, relative: &str) -> Result<Self> {
        match self {
            StorageAddress::S3(bucket, prefix) => {
                let key = Key::new(format!("{prefix}{relative}"))?;
                Ok(StorageAddress::S3(bucket.clone(), key.as_str().to_owned()))
            }
            StorageAddress::Local(root) => local_path(root, relative).map(StorageAddress::Local),
            StorageAddress::Service | StorageAddress::Stdio => {
                Err(Error::new(ErrorKind::InvalidArgument, format!("{self} cannot hold several objects")))
            }
        }
    }

    /// Like [`below`](Self::below), for a name at which content is written. The name usually comes from a listing.
    /// Errors: also `InvalidArgument` for a local path that may be in the private area of a bucket.
    pub fn destination_below(&self, relative: &str) -> Result<Self> {
        if let StorageAddress::Local(root) = self {
            check_not_private(root, relative)?;
        }
        self.below(relative)
    }

    /// Returns the bucket and the key, which may be empty. Errors: `InvalidArgument` for any other kind of address.
    pub fn into_s3(self) -> Result<(Bucket, String)> {
        self.split("s3://BUCKET")
    }

    fn split(self, form: &str) -> Result<(Bucket, String)> {
        match self {
            StorageAddress::S3(bucket, key) => Ok((bucket, key)),
            other => {
                let next = other.as_bucket().map(|text| match (form, text.contains('/')) {
                    (OBJECT, false) => format!("; write s3://{text}/KEY"),
                    _ => format!("; write s3://{text}"),
                });
                let why = format!("{other} is not of the form {form}{}", next.unwrap_or_default());
                Err(Error::new(ErrorKind::InvalidArgument, why))
            }
        }
    }

    /// Returns a local path as a string if it has the form `BUCKET` or `BUCKET/KEY`. Such a path may be an address
    /// without its `s3://`, so the error messages suggest that prefix.
    pub fn as_bucket(&self) -> Option<&str> {
        let StorageAddress::Local(path) = self else { return None };
        let text = path.to_str()?;
        let (bucket, _) = text.split_once('/').unwrap_or((text, ""));
        Bucket::new(bucket).ok().map(|_| text)
    }

    /// Returns the bucket of an address that has no key. Errors: `InvalidArgument`.
    pub fn into_bucket(self) -> Result<Bucket> {
        match self.into_s3()? {
            (bucket, key) if key.is_empty() => Ok(bucket),
            (bucket, key) => Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("s3://{bucket}/{key} is an object; specify only the bucket: s3://{bucket}"),
            )),
        }
    }

    /// Returns the bucket and key of one object. Errors: `InvalidArgument` if there is no key.
    pub fn into_object(self) -> Result<(Bucket, Key)> {
        match self.split(OBJECT)? {
            (bucket, key) if key.is_empty() => Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("s3://{bucket} is a bucket; specify an object: s3://{bucket}/KEY"),
            )),
            (bucket, key) => Ok((bucket, Key::new(key)?)),
        }
    }
}

impl fmt::Display for StorageAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StorageAddress::Service => f.write_str("s3://"),
            StorageAddress::S3(bucket, key) if key.is_empty() => write!(f, "s3://{bucket}"),
            StorageAddress::S3(bucket, key) => write!(f, "s3://{bucket}/{key}"),
            StorageAddress::Local(path) => path.display().fmt(f),
            StorageAddress::Stdio => f.write_str("-"),
        }
    }
}

/// Returns the path of `relative` (a key without the copied prefix) under `root`.
///
/// Some keys cannot be paths. The segments `..` and `.` and empty segments are rejected, because they would lead out of
/// `root` or to another key's path. Absolute paths begin with an empty segment. Segments that contain a NUL byte are
/// also rejected. Errors: `InvalidArgument`.
fn local_path(root: &Path, relative: &str) -> Result<PathBuf> {
    let hostile = |segment: &str| matches!(segment, "" | "." | "..") || segment.contains('\0');
    if relative.split('/').any(hostile) {
        let why = format!(
            "{relative:?} cannot be a path below {}; copy this object separately and specify the name of the file",
            root.display()
        );
        return Err(Error::new(ErrorKind::InvalidArgument, why));
    }
    Ok(root.join(relative))
}

/// Checks that no segment of `relative` is the name of a private area. Whoever chooses the names of a source could
/// otherwise set the policy and the versions of a bucket whose directory is the destination. The check applies to every
/// directory, because a directory can become a bucket later. Errors: `InvalidArgument`.
pub fn check_not_private(root: &Path, relative: &str) -> Result<()> {
    if !relative.split('/').any(|segment| segment == PRIVATE_AREA) {
        return Ok(());
    }
    let why = format!(
        "{relative:?} is not written below {}, because {PRIVATE_AREA} is the name of the private area of a bucket; \
         exclude such names, or copy this one separately and specify the name of the file",
        root.display()
    );
    Err(Error::new(ErrorKind::InvalidArgument, why))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s3(bucket: &str, key: &str) -> StorageAddress {
        StorageAddress::S3(Bucket::new(bucket).unwrap(), key.to_owned())
    }

    #[test]
    fn addresses() {
        for (text, address) in [
            ("-", StorageAddress::Stdio),
            ("s3://", StorageAddress::Service),
            ("s3://b", s3("b", "")),
            ("s3://b/", s3("b", "")),
            ("s3://b//x/", s3("b", "/x/")),
            ("s3://b/a b*?", s3("b", "a b*?")),
            ("dir/file", StorageAddress::Local("dir/file".into())),
            ("./-", StorageAddress::Local("./-".into())),
        ] {
            assert_eq!(StorageAddress::parse(text).unwrap(), address, "{text}");
        }
    }

    #[test]
    fn what_is_no_address() {
        for (text, kind) in [
            ("http://h/b", ErrorKind::InvalidArgument),
            ("", ErrorKind::InvalidArgument),
            ("s3:///key", ErrorKind::InvalidBucketName),
            ("s3://-b/key", ErrorKind::InvalidBucketName),
        ] {
            assert_eq!(StorageAddress::parse(text).unwrap_err().kind(), kind, "{text}");
        }
        let kind = |result: Result<Bucket>| result.unwrap_err().kind();
        assert_eq!(kind(s3("b", "k").into_bucket()), ErrorKind::InvalidArgument);
        assert_eq!(kind(StorageAddress::Stdio.into_bucket()), ErrorKind::InvalidArgument);
        assert_eq!(s3("b", "").into_object().unwrap_err().kind(), ErrorKind::InvalidArgument);
    }

    #[test]
    fn a_forgotten_scheme_is_suggested() {
        let local = |text: &str| StorageAddress::Local(text.into());
        let says = |error: Error, wanted: &str| assert_eq!(error.detail(), wanted);
        says(
            local("results").into_bucket().unwrap_err(),
            "results is not of the form s3://BUCKET; write s3://results",
        );
        says(
            local("data").into_object().unwrap_err(),
            "data is not of the form s3://BUCKET/KEY; write s3://data/KEY",
        );
        says(
            local("data/a").into_object().unwrap_err(),
            "data/a is not of the form s3://BUCKET/KEY; write s3://data/a",
        );
        for text in ["./data", "/data/a", "a b"] {
            says(local(text).into_s3().unwrap_err(), &format!("{text} is not of the form s3://BUCKET"));
        }
    }

    #[test]
    fn errors_do_not_show_passwords_or_signatures() {
        for text in
            ["https://user:SECRET@host/a", "ftp://user:SECRET@host/a", "https://host/a?signature=SECRET"]
        {
            let error = StorageAddress::parse(text).unwrap_err();
            assert!(error.detail().contains("host/a") && !error.detail().contains("SECRET"), "{error}");
        }
    }

    #[test]
    fn keys_stay_below_the_directory() {
        let root = Path::new("/out");
        assert_eq!(local_path(root, "a/b..c/...").unwrap(), Path::new("/out/a/b..c/..."));
        for hostile in ["../x", "a/../../x", "/etc/passwd", "a//b", "./a", "a/", "..", "a\0b"] {
            assert_eq!(
                local_path(root, hostile).unwrap_err().kind(),
                ErrorKind::InvalidArgument,
                "{hostile}"
            );
        }
    }

    #[test]
    fn listings_name_no_destination_in_a_private_area() {
        let root = StorageAddress::Local("/out/.fordway".into());
        for refused in [".fordway", ".fordway/locks", "bucket/.fordway/versioning", "a/.fordway"] {
            let error = root.destination_below(refused).unwrap_err();
            assert!(error.detail().contains("private area"), "{refused}: {error}");
            assert!(s3("b", "").destination_below(refused).is_ok(), "{refused}");
        }
        for (name, path) in
            [(".fordway-x", "/out/.fordway/.fordway-x"), ("a/x.fordway", "/out/.fordway/a/x.fordway")]
        {
            assert_eq!(root.destination_below(name).unwrap(), StorageAddress::Local(path.into()));
        }
    }
}
