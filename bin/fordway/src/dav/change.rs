//! Making collections, and removing files and collections.

use fordway_command::{Context, Exit};
use fordway_http::webdav::{Resource, WebDav, without_query};
use fordway_store::{Error, ErrorKind, Result};

use super::{Event, client};
use crate::args::RmArgs;
use crate::transfer::queue;
use crate::transfer::tally::Tally;
use crate::web::http_url;

/// Makes a collection, with `parents` those above it too.
pub(crate) fn make(address: &str, parents: bool, context: &Context) -> Result<()> {
    let (dav, url) = (client(context), http_url(address));
    match parents {
        true => dav.make_collections(&url)?,
        false => dav.make_collection(&url)?,
    }
    context.output.event(&Event::new("make_collection", without_query(address)))
}

/// Removes what is at an address, with `--recursive` a collection and all in it: each file by a
/// request of its own, so that what cannot be removed is named and the rest is gone.
pub(crate) fn remove(address: &str, args: &RmArgs, context: &Context) -> Result<Exit> {
    let (dav, url) = (client(context), http_url(address));
    let found = dav.stat(&url)?;
    if found.is_collection && !args.recursive {
        let address = without_query(address);
        let why = format!("{address} is a collection; add --recursive to remove it and all in it");
        return Err(Error::new(ErrorKind::InvalidArgument, why));
    }
    let removal = Removal { dav: &dav, args, context, tally: Tally::default() };
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
    queue::for_each(args.jobs, files, |file| match file {
        Ok(file) if args.filters.admit(&file.relative) => removal.one(&file),
        Ok(_) => {}
        Err(error) => removal.tally.failed(context, &error),
    });
    // What was left out, or could not be removed, would go with the collection that it is in.
    if removal.tally.has_failed() || !args.filters.is_empty() {
        return removal.tally.finish(context);
    }
    for collection in collections.iter().rev() {
        removal.one(collection);
    }
    removal.tally.finish(context)
}

struct Removal<'r> {
    dav: &'r WebDav,
    args: &'r RmArgs,
    context: &'r Context,
    tally: Tally,
}

impl Removal<'_> {
    fn one(&self, resource: &Resource) {
        match self.try_one(resource) {
            Ok(()) => self.tally.done(),
            Err(error) => self.tally.failed(self.context, &error),
        }
    }

    fn try_one(&self, resource: &Resource) -> Result<()> {
        self.context.interrupt.check()?;
        if !self.args.dry_run {
            self.dav.remove(&resource.url)?;
        }
        let event =
            Event { dry_run: self.args.dry_run, ..Event::new("delete", without_query(&resource.url)) };
        self.context.output.event(&event)
    }
}
