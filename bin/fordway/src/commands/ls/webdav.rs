//! `ls` of a web server that speaks WebDAV.

use std::fmt;

use fordway_command::Exit;
use fordway_command::units::{local_time, show_bytes, utc_time};
use fordway_http::webdav::{Resource, without_query};
use fordway_store::Result;
use serde::Serialize;

use super::Lister;
use crate::args::LsArgs;
use crate::{dav, web};

/// One line; the fields are the same as for objects and prefixes. What the server does not tell is null.
#[derive(Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum Line<'l> {
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

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Line::Prefix { key, .. } => write!(f, "{:>30} {key}", "PRE"),
            Line::Object { shown, .. } => f.write_str(shown),
        }
    }
}

impl Lister<'_> {
    /// A collection, all files below it, or a file. What cannot be listed is reported, and the rest shown.
    pub(super) fn web(&mut self, address: &str, args: &LsArgs) -> Result<Exit> {
        let (dav, url) = (dav::client(self.context), web::http_url(address));
        let mut exit = Exit::Ok;
        if args.recursive {
            for found in dav.walk(&url) {
                match found {
                    Ok(resource) if resource.is_collection => {}
                    Ok(resource) => self.resource(&resource)?,
                    Err(error) if exit == Exit::Ok => exit = super::super::report(self.context, error)?,
                    Err(error) => drop(super::super::report(self.context, error)?),
                }
            }
        } else {
            let listing = dav.list(&url)?;
            if !listing.itself.is_collection {
                let relative = super::last_segment(without_query(&url)).to_owned();
                self.resource(&Resource { relative, ..listing.itself })?;
            }
            listing.members.iter().try_for_each(|member| self.resource(member))?;
            for (href, status) in listing.failed {
                let kind = fordway_wire::s3_error::from_s3(status, "");
                let detail = format!("the server cannot describe {href} (HTTP status {status})");
                exit = super::super::report(self.context, fordway_store::Error::new(kind, detail))?;
            }
        }
        if args.summarize {
            self.summary()?;
        }
        Ok(exit)
    }

    fn resource(&mut self, resource: &Resource) -> Result<()> {
        self.context.interrupt.check()?;
        self.lines += 1;
        let url = without_query(&resource.url);
        let Resource { relative, size_bytes, modified, etag, is_collection, .. } = resource;
        if *is_collection {
            return self.context.output.record(&Line::Prefix { key: format!("{relative}/"), url });
        }
        self.objects += 1;
        self.total_bytes += size_bytes.unwrap_or(0);
        let time = modified.map_or_else(|| "-".to_owned(), local_time);
        let size = size_bytes.map_or_else(|| "-".to_owned(), |bytes| show_bytes(bytes, self.human));
        self.context.output.record(&Line::Object {
            key: relative,
            url,
            size_bytes: *size_bytes,
            modified: modified.map(utc_time),
            etag: etag.as_deref(),
            shown: format!("{time:>19} {size:>10} {relative}"),
        })
    }
}
