//! The commands for web servers that support WebDAV. This file creates collections, and removes files and collections;
//! [`copy`] decides which files a copy or move involves.

mod conflicts;
mod copy;
mod task;

pub(crate) use copy::{DavCopyOptions, copy};

use std::fmt;

use fordway_command::units::{human_bytes, local_time};
use fordway_command::{CommandContext, CommandExit, shown_name};
use fordway_http::webdav::{DavResource, WebDavClient, without_query};
use fordway_store::{Error, ErrorKind, Result};
use fordway_wire::date::format_http;
use serde::Serialize;

use super::transfer::{self, SharedTransferCounts};
use crate::args::RmArgs;
use crate::web::{self, http_url};

/// Returns a client that uses the credentials from the environment. Errors: the errors of
/// [`CommandContext::web_options`].
pub(crate) fn client(context: &CommandContext) -> Result<WebDavClient> {
    Ok(WebDavClient::new(context.web()?.clone()))
}

/// Returns whether an address has a scheme for WebDAV.
pub(crate) fn is_dav(text: &str) -> bool {
    let scheme = text.split("://").next().unwrap_or_default();
    web::is_address(text) && scheme.to_ascii_lowercase().starts_with("dav")
}

/// A completed action or, in a dry run, an intended action, printed as a line or as JSON. The JSON has the fields of an
/// action on an object, and the `by` field, which contains the method of a copy between servers.
#[derive(Serialize)]
struct DavActionOutput<'e> {
    operation: &'static str,
    source: &'e str,
    #[serde(skip_serializing_if = "Option::is_none")]
    destination: Option<&'e str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    size_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    by: Option<&'static str>,
    dry_run: bool,
}

impl<'e> DavActionOutput<'e> {
    fn new(operation: &'static str, source: &'e str) -> Self {
        DavActionOutput { operation, source, destination: None, size_bytes: None, by: None, dry_run: false }
    }
}

impl fmt::Display for DavActionOutput<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dry = if self.dry_run { "(dryrun) " } else { "" };
        write!(f, "{dry}{}: {}", self.operation, shown_name(self.source))?;
        self.destination.map_or(Ok(()), |destination| write!(f, " to {}", shown_name(destination)))?;
        self.by.map_or(Ok(()), |by| write!(f, " ({by})"))
    }
}

/// The output of `stat` for a WebDAV resource.
#[derive(Serialize)]
struct DavStatOutput<'r> {
    url: &'r str,
    r#type: &'static str,
    size_bytes: Option<u64>,
    etag: Option<&'r str>,
    last_modified: Option<String>,
    #[serde(skip)]
    resource: &'r DavResource,
}

impl fmt::Display for DavStatOutput<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let heading = if self.resource.is_collection { "Collection" } else { "File" };
        write!(f, "{heading:>10}: {}", shown_name(self.url))?;
        if let Some(bytes) = self.size_bytes {
            write!(f, "\n      Size: {} ({bytes} bytes)", human_bytes(bytes))?;
        }
        if let Some(time) = self.resource.modified {
            write!(f, "\n  Modified: {}", local_time(time))?;
        }
        self.etag.map_or(Ok(()), |etag| write!(f, "\n      ETag: {etag}"))
    }
}

/// Shows the properties that a server reports for one resource.
pub(crate) fn stat(url: &str, context: &CommandContext) -> Result<()> {
    let resource = client(context)?.stat(&web::http_url(url))?;
    context.output.record(&DavStatOutput {
        url: without_query(url),
        r#type: if resource.is_collection { "collection" } else { "file" },
        size_bytes: resource.size_bytes,
        etag: resource.etag.as_deref(),
        last_modified: resource.modified.map(format_http),
        resource: &resource,
    })
}

/// Creates a collection and, with `parents`, its missing parents.
pub(crate) fn make(address: &str, parents: bool, context: &CommandContext) -> Result<()> {
    let (dav, url) = (client(context)?, http_url(address));
    match parents {
        true => dav.make_collections(&url)?,
        false => dav.make_collection(&url)?,
    }
    context.output.completed(&DavActionOutput::new("make_collection", without_query(address)))
}

/// Removes the resource at an address or, with `--recursive`, a collection and everything in it. Each file is removed
/// by a separate request. A file that cannot be removed is reported, and the other files are still removed.
pub(crate) fn remove(address: &str, args: &RmArgs, context: &CommandContext) -> Result<CommandExit> {
    let (dav, url) = (client(context)?, http_url(address));
    let found = dav.stat(&url)?;
    if found.is_collection && !args.recursive {
        let address = without_query(address);
        let why = format!("{address} is a collection; add --recursive to remove it and its members");
        return Err(Error::new(ErrorKind::InvalidArgument, why));
    }
    let removal = DavRemoveCommand { dav: &dav, args, context, tally: SharedTransferCounts::default() };
    if !found.is_collection {
        removal.one(&found);
        return removal.tally.finish(context);
    }
    let mut collections = vec![found];
    let files = dav.walk(&url).filter_map(|found| match found {
        Ok(resource) if resource.is_collection => {
            collections.push(resource);
            None
        }
        other => Some(other),
    });
    let files = files.take_while(|_| !context.interrupt.is_raised());
    transfer::for_each(args.jobs, files, |file| match file {
        Ok(file) if args.filters.admit(&file.relative) => removal.one(&file),
        Ok(_) => {}
        Err(error) => removal.tally.failed(context, &error),
    });
    // Keep the collections, because removing a collection would also remove files that were excluded or could not be
    // removed.
    if removal.tally.has_failed() || !args.filters.is_empty() {
        return removal.tally.finish(context);
    }
    for collection in collections.iter().rev() {
        removal.one(collection);
    }
    removal.tally.finish(context)
}

/// A running `rm` of files and collections on WebDAV servers.
struct DavRemoveCommand<'r> {
    dav: &'r WebDavClient,
    args: &'r RmArgs,
    context: &'r CommandContext,
    tally: SharedTransferCounts,
}

impl DavRemoveCommand<'_> {
    fn one(&self, resource: &DavResource) {
        match self.try_one(resource) {
            Ok(()) => self.tally.done(),
            Err(error) => self.tally.failed(self.context, &error),
        }
    }

    fn try_one(&self, resource: &DavResource) -> Result<()> {
        self.context.interrupt.check()?;
        if !self.args.dry_run {
            self.dav.remove(&resource.url)?;
        }
        let event = DavActionOutput {
            dry_run: self.args.dry_run,
            ..DavActionOutput::new("delete", without_query(&resource.url))
        };
        self.context.output.completed(&event)
    }
}
