//! `sync`: makes a directory or prefix like another.

use fordway_command::{Address, Context, Exit, file_error};
use fordway_store::{Error, ErrorKind, Result};

use super::cp::{about, from_item};
use crate::args::SyncArgs;
use crate::transfer::plan::{self, Direction, Step, SyncRules};
use crate::transfer::tree::{self, Item, Items};
use crate::transfer::{self, Action, Existing, Settings, unsupported};
use crate::wildcard::Filters;

pub(super) fn run(args: &SyncArgs, context: &Context) -> Result<Exit> {
    let from = Address::parse(&args.source)?.into_directory();
    let to = Address::parse(&args.destination)?.into_directory();
    let rules = SyncRules {
        direction: direction(&from, &to)?,
        size_only: args.size_only,
        exact_timestamps: args.exact_timestamps,
        delete: args.delete,
    };
    let filters = &args.transfer.filters;
    let source = wanted(tree::items(context, &from)?, filters);
    let destination = wanted(destination_items(context, &to, args.transfer.dry_run)?, filters);
    let lane = context.store()?.lane();
    let actions = plan::sync(source, destination, rules).map(|step| match step? {
        Step::Copy(item) => {
            let source = from_item(&from, &item);
            let target = to.below(&item.relative).map_err(|error| about(error, &source, lane))?;
            Ok(Action::Copy { from: source, to: target, size: Some(item.size) })
        }
        Step::Remove(item) => Ok(Action::Remove(from_item(&to, &item))),
    });
    transfer::run(context, &Settings::of(&args.transfer, Existing::Replace), actions)
}

fn direction(from: &Address, to: &Address) -> Result<Direction> {
    match (from, to) {
        (Address::S3(one, source), Address::S3(other, target))
            if one == other
                && (source.starts_with(target.as_str()) || target.starts_with(source.as_str())) =>
        {
            let why = format!("{from} and {to} lie within one another; choose two separate prefixes");
            Err(Error::new(ErrorKind::InvalidArgument, why))
        }
        (Address::S3(..), Address::S3(..)) => Ok(Direction::Copy),
        (Address::S3(..), Address::Local(_)) => Ok(Direction::Download),
        (Address::Local(_), Address::S3(..)) => Ok(Direction::Upload),
        _ => Err(Error::new(ErrorKind::InvalidArgument, unsupported(from, to))),
    }
}

/// What is at the destination. A local directory that is missing is made, or taken as empty.
fn destination_items(context: &Context, to: &Address, dry_run: bool) -> Result<Items> {
    if let Address::Local(path) = to
        && !path.exists()
    {
        if dry_run {
            return Ok(Box::new(std::iter::empty()));
        }
        std::fs::create_dir_all(path).map_err(|error| file_error("making", path.display(), error))?;
    }
    tree::items(context, to)
}

/// What the filters admit; markers of prefixes (`dir/`, empty) are not content.
fn wanted<'a>(items: Items, filters: &'a Filters) -> impl Iterator<Item = Result<Item>> + 'a {
    let is_marker =
        |item: &Item| item.size == 0 && (item.relative.is_empty() || item.relative.ends_with('/'));
    items.filter(move |item| {
        item.as_ref().map_or(true, |item| !is_marker(item) && filters.admit(&item.relative))
    })
}
