//! `rm`: removes objects, 1,000 per request.

use fordway_command::{Address, Context, Exit};
use fordway_store::{Error, ErrorKind, Result};

use super::cp::from_item;
use super::source::Source;
use super::versions::{only_object, remove};
use crate::args::RmArgs;
use crate::transfer::{self, Action, Settings};
use crate::wildcard::Filters;
use crate::{dav, web};

pub(super) fn run(args: &RmArgs, context: &Context) -> Result<Exit> {
    let mut sources = Vec::new();
    let (web, others): (Vec<_>, Vec<_>) = args.addresses.iter().partition(|text| web::is_address(text));
    if !web.is_empty() {
        if !others.is_empty() || args.version_id.is_some() {
            let why = "addresses of web servers are removed by themselves, and without --version-id";
            return Err(Error::new(ErrorKind::InvalidArgument, why));
        }
        return super::for_each(context, web, |text| dav::remove(text, args, context));
    }
    for text in &args.addresses {
        // Local files have `rm` already, and a slip of the pen must not remove one.
        Address::parse(text)?.into_s3()?;
        sources.push(Source::find(text, args.recursive, args.raw)?);
    }
    if let Some(version) = &args.version_id {
        let (bucket, key) = only_object(&sources)?;
        return remove(context, (&bucket, &key), version, args.dry_run);
    }
    let settings = Settings::removal(args.dry_run, args.jobs);
    let removals = sources.into_iter().flat_map(|source| removals(context, source, &args.filters));
    transfer::run(context, &settings, removals)
}

/// What one address asks to remove; an address that cannot be listed is one failure of several.
fn removals<'a>(
    context: &Context,
    source: Source,
    filters: &'a Filters,
) -> Box<dyn Iterator<Item = Result<Action>> + 'a> {
    let root = source.root();
    match (source.items(context), source) {
        (Err(error), _) => Box::new(std::iter::once(Err(error))),
        (Ok(None), Source::One(place)) => Box::new(std::iter::once(Ok(Action::Remove(place)))),
        (Ok(None), _) => Box::new(std::iter::empty()),
        (Ok(Some(items)), _) => Box::new(items.filter_map(move |item| match item {
            Ok(item) => filters.admit(&item.relative).then(|| Ok(Action::Remove(from_item(&root, &item)))),
            Err(error) => Some(Err(error)),
        })),
    }
}
