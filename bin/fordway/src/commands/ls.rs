//! `ls`: lists buckets, objects and directories, in the same columns as `aws s3 ls`. With `--versions`, lists all
//! versions and delete markers. Also lists collections on WebDAV servers.

use std::fmt;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use fordway_command::units::{local_time, show_bytes, utc_time};
use fordway_command::{CommandContext, CommandExit, StorageAddress, file_error, shown_name};
use fordway_http::webdav::{DavResource, without_query};
use fordway_store::{
    Bucket, Error, ErrorKind, ListEntry, ListQuery, ObjectSummary, Result, VersionSummary, VersionsQuery,
};
use serde::Serialize;

use crate::args::LsArgs;
use crate::transfer::plan::{self, SyncItem};
use crate::wildcard::{FilterRules, WildcardPattern, has_wildcard, literal_prefix};
use crate::{dav, web};

/// One line of a listing.
#[derive(Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum ListingLine {
    Bucket {
        name: String,
        created: String,
        #[serde(skip)]
        shown_time: String,
    },
    Prefix {
        key: String,
        #[serde(skip)]
        shown: String,
    },
    Version(VersionLine),
    Object {
        key: String,
        size_bytes: u64,
        modified: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        etag: Option<String>,
        #[serde(skip)]
        shown: String,
    },
}

impl fmt::Display for ListingLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ListingLine::Bucket { name, shown_time, .. } => write!(f, "{shown_time} {name}"),
            ListingLine::Prefix { shown, .. } => write!(f, "{:>30} {}", "PRE", shown_name(shown)),
            ListingLine::Version(version) => version.fmt(f),
            ListingLine::Object { shown, .. } => f.write_str(&shown_name(shown)),
        }
    }
}

/// Prints lines, and counts the lines, objects and bytes.
struct ListingPrinter<'c> {
    context: &'c CommandContext,
    human: bool,
    lines: u64,
    objects: u64,
    total_bytes: u64,
}

pub(super) fn run(args: &LsArgs, context: &CommandContext) -> Result<CommandExit> {
    let mut lister =
        ListingPrinter { context, human: args.human_readable, lines: 0, objects: 0, total_bytes: 0 };
    if args.versions
        && !matches!(args.address.as_deref().map(StorageAddress::parse), Some(Ok(StorageAddress::S3(..))))
    {
        let why = "--versions needs a bucket: s3://BUCKET[/PREFIX]";
        return Err(Error::new(ErrorKind::InvalidArgument, why));
    }
    if let Some(url) = args.address.as_deref().filter(|text| web::is_address(text)) {
        return lister.web(url, args);
    }
    let asked_for_something = match StorageAddress::parse(args.address.as_deref().unwrap_or("s3://"))? {
        StorageAddress::Service => lister.buckets().map(|()| false)?,
        StorageAddress::S3(bucket, key) => {
            let asked = !key.is_empty();
            match args.versions {
                true => lister.versions(&bucket, &key, args).map(|()| asked)?,
                false => lister.bucket(&bucket, &key, args).map(|()| asked)?,
            }
        }
        place @ StorageAddress::Local(_) if is_missing(&place) => return Err(forgotten_scheme(&place)),
        StorageAddress::Local(path) => return lister.local(&path, args),
        stdio @ StorageAddress::Stdio => stdio.into_s3().map(|_| false)?,
    };
    if args.summarize {
        lister.summary()?;
    }
    // As with `aws`, a prefix without any objects is a failure, but an empty bucket is not.
    Ok(if asked_for_something && lister.lines == 0 { CommandExit::Failure } else { CommandExit::Ok })
}

/// Returns whether an address is a local path that does not exist and has the form `BUCKET` or `BUCKET/KEY`.
fn is_missing(place: &StorageAddress) -> bool {
    place.as_bucket().is_some_and(|path| Path::new(path).symlink_metadata().is_err())
}

fn forgotten_scheme(place: &StorageAddress) -> Error {
    let why = format!("there is no file or directory {place}; for a bucket, write s3://{place}");
    Error::new(ErrorKind::NoSuchBucket, why)
}

impl ListingPrinter<'_> {
    fn buckets(&mut self) -> Result<()> {
        for bucket in self.context.store()?.list_buckets()? {
            self.print(&ListingLine::Bucket {
                name: bucket.name.to_string(),
                created: utc_time(bucket.created),
                shown_time: local_time(bucket.created),
            })?;
        }
        Ok(())
    }

    fn bucket(&mut self, bucket: &Bucket, key: &str, args: &LsArgs) -> Result<()> {
        let wildcard = (!args.raw && has_wildcard(key)).then(|| WildcardPattern::of_address(key));
        let prefix = if wildcard.is_some() { literal_prefix(key) } else { key };
        let whole_keys = args.recursive || wildcard.is_some();
        let delimiter = (!whole_keys).then(|| "/".to_owned());
        let query = ListQuery { delimiter, ..ListQuery::prefix(prefix) };
        for entry in plan::objects(self.context.store()?, bucket.clone(), query) {
            match entry? {
                ListEntry::CommonPrefix(key) => {
                    let shown = last_segment(key.strip_suffix('/').unwrap_or(&key)).to_owned() + "/";
                    self.print(&ListingLine::Prefix { key, shown })?;
                }
                ListEntry::Object(object) if wildcard.as_ref().is_none_or(|w| w.matches(&object.key)) => {
                    let shown = if whole_keys { &object.key } else { last_segment(&object.key) };
                    self.object(&object, shown)?;
                }
                ListEntry::Object(_) => {}
            }
        }
        Ok(())
    }

    fn object(&mut self, object: &ObjectSummary, name: &str) -> Result<()> {
        let etag = Some(object.etag.to_string());
        self.content(&object.key, name, object.size, object.modified, etag)
    }

    fn local(&mut self, path: &Path, args: &LsArgs) -> Result<CommandExit> {
        let exit = match args.recursive {
            true => self.tree(path)?,
            false => self.directory(path).map(|()| CommandExit::Ok)?,
        };
        if args.summarize {
            self.summary()?;
        }
        Ok(exit)
    }

    /// Prints all files below a directory. Reports each entry that cannot be listed, and continues with the others.
    fn tree(&mut self, path: &Path) -> Result<CommandExit> {
        let root = StorageAddress::Local(path.to_owned());
        let items = plan::items(self.context, &root, &FilterRules::default())?;
        super::for_each(self.context, items, |item| {
            let SyncItem { relative, size, modified } = item?;
            self.content(&relative, &relative, size, modified, None).map(|()| CommandExit::Ok)
        })
    }

    fn directory(&mut self, path: &Path) -> Result<()> {
        let failed = |error| file_error("reading", path.display(), error);
        if !path.metadata().map_err(failed)?.is_dir() {
            return self.file(path);
        }
        let mut paths = Vec::new();
        for entry in path.read_dir().map_err(failed)? {
            paths.push(entry.map_err(failed)?.path());
        }
        paths.sort();
        paths.iter().try_for_each(|path| self.file(path))
    }

    /// Prints a file or directory, with the last component of its path as the name.
    fn file(&mut self, path: &Path) -> Result<()> {
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        // For a broken symbolic link, the link itself is shown.
        let about = path.metadata().or_else(|_| path.symlink_metadata());
        let about = about.map_err(|error| file_error("reading", path.display(), error))?;
        if about.is_dir() {
            let shown = name + "/";
            return self.print(&ListingLine::Prefix { key: shown.clone(), shown });
        }
        self.content(&name, &name, about.len(), about.modified().unwrap_or(UNIX_EPOCH), None)
    }

    fn content(
        &mut self,
        key: &str,
        name: &str,
        size_bytes: u64,
        modified: SystemTime,
        etag: Option<String>,
    ) -> Result<()> {
        self.objects += 1;
        self.total_bytes += size_bytes;
        let shown = format!("{} {:>10} {name}", local_time(modified), show_bytes(size_bytes, self.human));
        self.print(&ListingLine::Object {
            key: key.to_owned(),
            size_bytes,
            modified: utc_time(modified),
            etag,
            shown,
        })
    }

    fn print(&mut self, line: &ListingLine) -> Result<()> {
        self.context.interrupt.check()?;
        self.lines += 1;
        self.context.output.record(line)
    }

    fn summary(&self) -> Result<()> {
        self.context.output.text("")?;
        self.context.output.record(&ListingSummary {
            r#type: "summary",
            objects: self.objects,
            size_bytes: self.total_bytes,
            shown: show_bytes(self.total_bytes, self.human),
        })
    }
}

#[derive(Serialize)]
struct ListingSummary {
    r#type: &'static str,
    objects: u64,
    size_bytes: u64,
    #[serde(skip)]
    shown: String,
}

impl fmt::Display for ListingSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Total Objects: {}\n   Total Size: {}", self.objects, self.shown)
    }
}

fn last_segment(key: &str) -> &str {
    key.rsplit('/').next().unwrap_or(key)
}

/// A version, or a delete marker, which has neither size nor ETag.
#[derive(Serialize)]
struct VersionLine {
    key: String,
    version_id: String,
    is_latest: bool,
    is_delete_marker: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    size_bytes: Option<u64>,
    modified: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    etag: Option<String>,
    #[serde(skip)]
    shown: String,
}

impl fmt::Display for VersionLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&shown_name(&self.shown))
    }
}

impl ListingPrinter<'_> {
    fn versions(&mut self, bucket: &Bucket, key: &str, args: &LsArgs) -> Result<()> {
        let wildcard = (!args.raw && has_wildcard(key)).then(|| WildcardPattern::of_address(key));
        let prefix = if wildcard.is_some() { literal_prefix(key) } else { key };
        let whole_keys = args.recursive || wildcard.is_some();
        let delimiter = (!whole_keys).then(|| "/".to_owned());
        let mut query = VersionsQuery { prefix: prefix.to_owned(), delimiter, ..Default::default() };
        let store = self.context.store()?;
        loop {
            let page = store.list_versions(bucket, &query)?;
            let mut prefixes = page.prefixes.into_iter().peekable();
            for version in page.versions {
                while let Some(prefix) = prefixes.next_if(|prefix| *prefix < version.key) {
                    self.prefix(prefix)?;
                }
                if wildcard.as_ref().is_none_or(|wildcard| wildcard.matches(&version.key)) {
                    self.version(version, whole_keys)?;
                }
            }
            prefixes.try_for_each(|prefix| self.prefix(prefix))?;
            let Some((key, version)) = page.next else { return Ok(()) };
            (query.key_after, query.version_after) = (Some(key), version);
        }
    }

    fn prefix(&mut self, key: String) -> Result<()> {
        let shown = last_segment(key.strip_suffix('/').unwrap_or(&key)).to_owned() + "/";
        self.print(&ListingLine::Prefix { key, shown })
    }

    fn version(&mut self, found: VersionSummary, whole_keys: bool) -> Result<()> {
        let (size_bytes, etag) = found.content.map(|(size, etag)| (size, etag.to_string())).unzip();
        let size = size_bytes.map_or("deleted".to_owned(), |size| show_bytes(size, self.human));
        let name = if whole_keys { &found.key } else { last_segment(&found.key) };
        let latest = if found.is_latest { " (latest)" } else { "" };
        let shown = format!("{} {size:>10} {name} {}{latest}", local_time(found.modified), found.version);
        self.objects += 1;
        self.total_bytes += size_bytes.unwrap_or(0);
        self.print(&ListingLine::Version(VersionLine {
            version_id: found.version.to_string(),
            is_latest: found.is_latest,
            is_delete_marker: size_bytes.is_none(),
            size_bytes,
            modified: utc_time(found.modified),
            etag,
            key: found.key,
            shown,
        }))
    }
}

/// A line for a WebDAV resource, with the same fields as for objects and prefixes. Fields that the server does not
/// provide are null.
#[derive(Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum WebDavLine<'l> {
    Prefix {
        key: String,
        url: &'l str,
    },
    Object {
        key: &'l str,
        url: &'l str,
        size_bytes: Option<u64>,
        modified: Option<String>,
        etag: Option<&'l str>,
        #[serde(skip)]
        shown: String,
    },
}

impl fmt::Display for WebDavLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WebDavLine::Prefix { key, .. } => write!(f, "{:>30} {}", "PRE", shown_name(key)),
            WebDavLine::Object { shown, .. } => f.write_str(&shown_name(shown)),
        }
    }
}

impl ListingPrinter<'_> {
    /// Prints a collection, all files below it, or a file. Reports resources that cannot be listed, and prints the
    /// other resources.
    fn web(&mut self, address: &str, args: &LsArgs) -> Result<CommandExit> {
        let (dav, url) = (dav::client(self.context)?, web::http_url(address));
        let mut exit = CommandExit::Ok;
        if args.recursive {
            for found in dav.walk(&url) {
                match found {
                    Ok(resource) if resource.is_collection => {}
                    Ok(resource) => self.resource(&resource)?,
                    Err(error) if exit == CommandExit::Ok => exit = super::report(self.context, error)?,
                    Err(error) => drop(super::report(self.context, error)?),
                }
            }
        } else {
            let listing = dav.list(&url)?;
            if !listing.itself.is_collection {
                let relative = last_segment(without_query(&url)).to_owned();
                self.resource(&DavResource { relative, ..listing.itself })?;
            }
            listing.members.iter().try_for_each(|member| self.resource(member))?;
            for (href, status) in listing.failed {
                let kind = fordway_wire::s3_error::from_s3(status, "");
                let detail = format!("the server cannot describe {href} (HTTP status {status})");
                exit = super::report(self.context, fordway_store::Error::new(kind, detail))?;
            }
        }
        if args.summarize {
            self.summary()?;
        }
        Ok(exit)
    }

    fn resource(&mut self, resource: &DavResource) -> Result<()> {
        self.context.interrupt.check()?;
        self.lines += 1;
        let url = without_query(&resource.url);
        let DavResource { relative, size_bytes, modified, etag, is_collection, .. } = resource;
        if *is_collection {
            return self.context.output.record(&WebDavLine::Prefix { key: format!("{relative}/"), url });
        }
        self.objects += 1;
        self.total_bytes += size_bytes.unwrap_or(0);
        let time = modified.map_or_else(|| "-".to_owned(), local_time);
        let size = size_bytes.map_or_else(|| "-".to_owned(), |bytes| show_bytes(bytes, self.human));
        self.context.output.record(&WebDavLine::Object {
            key: relative,
            url,
            size_bytes: *size_bytes,
            modified: modified.map(utc_time),
            etag: etag.as_deref(),
            shown: format!("{time:>19} {size:>10} {relative}"),
        })
    }
}
