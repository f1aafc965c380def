//! `davix-ls`: prints one name per line, or davix's long format. Scripts split the six columns of the long format at
//! spaces.

use std::time::{SystemTime, UNIX_EPOCH};

use fordway_command::units::local_time;
use fordway_command::{CommandContext, CommandExit, shown_name};
use fordway_http::webdav::{DavResource, WebDavClient, without_query};
use fordway_store::{Bucket, Error, GetOptions, Key, ListEntry, ListQuery, Result, Store};
use fordway_wire::s3_error::from_s3;

use super::address::DavixS3Address;
use super::args::{DavixLsArgs, S3ListingMode};
use crate::commands::report;
use crate::dav;
use crate::transfer::plan;
use crate::web::http_url;

/// The content of one line of a listing.
struct ListedEntry<'e> {
    name: &'e str,
    is_directory: bool,
    size_bytes: u64,
    modified: Option<SystemTime>,
    /// The nine characters of the permissions. WebDAV and S3 do not report permissions, so these characters are the
    /// placeholders that davix prints.
    rights: &'static str,
}

impl ListedEntry<'_> {
    fn line(&self, is_long: bool) -> String {
        let name = shown_name(self.name);
        if !is_long {
            return name.into_owned();
        }
        let kind = if self.is_directory { 'd' } else { '-' };
        let time = local_time(self.modified.unwrap_or(UNIX_EPOCH));
        // The second column is the number of hard links, which servers do not report.
        format!("{kind}{} {:<5} {:<10} {time} {name}", self.rights, 0, self.size_bytes)
    }

    fn of<'e>(resource: &DavResource, name: &'e str) -> ListedEntry<'e> {
        ListedEntry {
            name,
            is_directory: resource.is_collection,
            size_bytes: resource.size_bytes.unwrap_or(0),
            modified: resource.modified,
            rights: "rwxrwxrwx",
        }
    }
}

fn print(entry: &ListedEntry<'_>, line: &DavixLsArgs, context: &CommandContext) -> Result<()> {
    context.interrupt.check()?;
    context.output.data(format!("{}\n", entry.line(line.long)).as_bytes())
}

/// Lists a collection, everything below it, or a file.
pub(super) fn web(line: &DavixLsArgs, context: &CommandContext) -> Result<CommandExit> {
    let (dav, url) = (dav::client(context)?, http_url(&line.url));
    if line.recursive.is_some() {
        return below(&dav, &url, line, context);
    }
    let listing = dav.list(&url)?;
    if !listing.itself.is_collection {
        print(&ListedEntry::of(&listing.itself, &line.url), line, context)?;
        return Ok(CommandExit::Ok);
    }
    for member in &listing.members {
        print(&ListedEntry::of(member, own_name(&member.url)), line, context)?;
    }
    for (href, status) in &listing.failed {
        let why = format!("the server cannot describe {href} (HTTP status {status})");
        let kind = from_s3(*status, "");
        // Omit the general advice for these kinds of errors, which is about S3 and about this machine.
        context.output.error(&Error::new(kind, why).with_advice(""));
    }
    Ok(if listing.failed.is_empty() { CommandExit::Ok } else { CommandExit::Failure })
}

/// Lists everything below a collection, with paths relative to the server's root.
fn below(dav: &WebDavClient, url: &str, line: &DavixLsArgs, context: &CommandContext) -> Result<CommandExit> {
    let mut exit = CommandExit::Ok;
    for found in dav.walk(url) {
        match found {
            Ok(resource) => print(&ListedEntry::of(&resource, server_path(&resource.url)), line, context)?,
            Err(error) => {
                let failure = report(context, error)?;
                exit = if exit == CommandExit::Ok { failure } else { exit };
            }
        }
        // A listing may take hours, and programs read its lines as they arrive.
        context.output.flush()?;
    }
    Ok(exit)
}

/// Returns the percent-encoded path of a URL, without its first slash and without trailing slashes.
fn server_path(url: &str) -> &str {
    let path = without_query(url).splitn(4, '/').nth(3).unwrap_or_default();
    path.trim_end_matches('/')
}

/// Returns the last segment of a URL's path, percent-encoded.
fn own_name(url: &str) -> &str {
    server_path(url).rsplit('/').next().unwrap_or_default()
}

/// Lists the keys of a bucket.
pub(super) fn bucket(
    service: &DavixS3Address,
    line: &DavixLsArgs,
    context: &CommandContext,
) -> Result<CommandExit> {
    let mode = if line.recursive.is_some() { S3ListingMode::Semi } else { line.s3_listing };
    let store = context.store()?;
    let bucket = Bucket::new(&service.bucket)?;
    let (query, root) = match mode {
        S3ListingMode::Flat => (ListQuery::prefix(""), String::new()),
        S3ListingMode::Semi => (ListQuery::prefix(directory(&service.key)), String::new()),
        S3ListingMode::Hierarchical => {
            let root = directory(&service.key);
            (ListQuery { delimiter: Some("/".to_owned()), ..ListQuery::prefix(&root) }, root)
        }
    };
    let most = line.s3_maxkeys.unwrap_or(usize::MAX);
    let mut count = 0;
    for entry in plan::objects(store.clone(), bucket.clone(), query).take(most) {
        count += 1;
        list_entry(&entry?, &root, line, context)?;
    }
    if count == 0 && !service.key.is_empty() {
        return one_object(service, &*store, line, context);
    }
    Ok(CommandExit::Ok)
}

fn directory(key: &str) -> String {
    if key.is_empty() || key.ends_with('/') { key.to_owned() } else { format!("{key}/") }
}

fn list_entry(entry: &ListEntry, root: &str, line: &DavixLsArgs, context: &CommandContext) -> Result<()> {
    let name = entry.name().strip_prefix(root).unwrap_or(entry.name());
    let (size_bytes, modified) = match entry {
        ListEntry::Object(object) => (object.size, Some(object.modified)),
        ListEntry::CommonPrefix(_) => (0, None),
    };
    let is_directory = matches!(entry, ListEntry::CommonPrefix(_));
    let name = if is_directory { name.trim_end_matches('/') } else { name };
    // This object represents the directory itself, which is not listed.
    if name.is_empty() {
        return Ok(());
    }
    let rights = "rwxr-xr-x";
    print(&ListedEntry { name, is_directory, size_bytes, modified, rights }, line, context)
}

/// Prints the object at the address. Errors: `NoSuchKey` if there is no such object.
fn one_object(
    service: &DavixS3Address,
    store: &dyn Store,
    line: &DavixLsArgs,
    context: &CommandContext,
) -> Result<CommandExit> {
    let (bucket, key) = (Bucket::new(&service.bucket)?, Key::new(service.key.as_str())?);
    let found = store.head(&bucket, &key, &GetOptions::default())?;
    let last = service.key.rsplit('/').next().unwrap_or_default();
    let entry = ListedEntry {
        name: if line.long { last } else { &line.url },
        is_directory: false,
        size_bytes: found.size,
        modified: Some(found.modified),
        rights: "rwxr-xr-x",
    };
    print(&entry, line, context).map(|()| CommandExit::Ok)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_those_of_davix() {
        let entry = |name, is_directory, size_bytes| ListedEntry {
            name,
            is_directory,
            size_bytes,
            modified: None,
            rights: "rwxrwxrwx",
        };
        let long = entry("a%20b", false, 12).line(true);
        assert!(long.starts_with("-rwxrwxrwx 0     12         ") && long.ends_with(" a%20b"), "{long}");
        assert_eq!(long.split_whitespace().count(), 6);
        assert!(entry("d", true, 12_345_678_901).line(true).starts_with("drwxrwxrwx 0     12345678901 "));
        assert_eq!(entry("d", true, 0).line(false), "d");
    }

    #[test]
    fn names_keep_their_encoding() {
        assert_eq!(server_path("http://h//root/a%20b/?t=1"), "/root/a%20b");
        assert_eq!(own_name("http://h/d/a%20b?t=1"), "a%20b");
        assert_eq!(own_name("http://h/d/sub/"), "sub");
    }
}
