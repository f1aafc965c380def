//! `rm`: removes objects, 1,000 per request.

use fordway_store::Result;

use super::cp::from_item;
use super::source::Source;
use crate::address::Address;
use crate::args::RmArgs;
use crate::context::Context;
use crate::exit::Exit;
use crate::transfer::{self, Action, Settings};
use crate::wildcard::Filters;

pub(super) fn run(args: &RmArgs, context: &Context) -> Result<Exit> {
    let mut plans = Vec::new();
    for text in &args.addresses {
        // Local files have `rm` already, and a slip of the pen must not remove one.
        Address::parse(text)?.into_s3()?;
        plans.push(removals(context, Source::find(text, args.recursive, args.raw)?, &args.filters));
    }
    let settings = Settings::removal(args.dry_run, args.jobs);
    transfer::run(context, &settings, plans.into_iter().flatten())
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
