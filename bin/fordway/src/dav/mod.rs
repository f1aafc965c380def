//! The commands on web servers that speak WebDAV.

mod change;
mod copy;
mod task;

use std::fmt;

use fordway_command::Context;
use fordway_command::units::{human_bytes, local_time};
use fordway_http::webdav::{Resource, WebDav, without_query};
use fordway_store::Result;
use fordway_wire::date::format_http;
use serde::Serialize;

pub(crate) use change::{make, remove};
pub(crate) use copy::{Order, copy};

use crate::web;

/// The servers, with whatever credentials the environment has.
pub(crate) fn client(context: &Context) -> WebDav {
    WebDav::new(context.web().clone())
}

/// Whether an address asks for WebDAV by its scheme.
pub(crate) fn is_dav(text: &str) -> bool {
    let scheme = text.split("://").next().unwrap_or_default();
    web::is_address(text) && scheme.to_ascii_lowercase().starts_with("dav")
}

/// What was done (or would be), as a line or as JSON; the fields of the other lanes, and how a copy
/// between servers was made.
#[derive(Serialize)]
struct Event<'e> {
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

impl<'e> Event<'e> {
    fn new(operation: &'static str, source: &'e str) -> Self {
        Event { operation, source, destination: None, size_bytes: None, by: None, dry_run: false }
    }
}

impl fmt::Display for Event<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dry = if self.dry_run { "(dryrun) " } else { "" };
        write!(f, "{dry}{}: {}", self.operation, self.source)?;
        self.destination.map_or(Ok(()), |destination| write!(f, " to {destination}"))?;
        self.by.map_or(Ok(()), |by| write!(f, " ({by})"))
    }
}

/// What `stat` shows.
#[derive(Serialize)]
struct Record<'r> {
    url: &'r str,
    r#type: &'static str,
    size_bytes: Option<u64>,
    etag: Option<&'r str>,
    last_modified: Option<String>,
    #[serde(skip)]
    resource: &'r Resource,
}

impl fmt::Display for Record<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let heading = if self.resource.is_collection { "Collection" } else { "File" };
        write!(f, "{heading:>10}: {}", self.url)?;
        if let Some(bytes) = self.size_bytes {
            write!(f, "\n      Size: {} ({bytes} bytes)", human_bytes(bytes))?;
        }
        if let Some(time) = self.resource.modified {
            write!(f, "\n  Modified: {}", local_time(time))?;
        }
        self.etag.map_or(Ok(()), |etag| write!(f, "\n      ETag: {etag}"))
    }
}

/// Shows what a server says of one resource.
pub(crate) fn stat(url: &str, context: &Context) -> Result<()> {
    let resource = client(context).stat(&web::http_url(url))?;
    context.output.record(&Record {
        url: without_query(url),
        r#type: if resource.is_collection { "collection" } else { "file" },
        size_bytes: resource.size_bytes,
        etag: resource.etag.as_deref(),
        last_modified: resource.modified.map(format_http),
        resource: &resource,
    })
}
