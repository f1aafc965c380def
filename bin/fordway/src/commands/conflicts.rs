//! Checks of `cp` and `mv` before the first copy: that no copy replaces an object that is also a source, that a move
//! leaves no source behind, and that no copy becomes a source of the same command.

use std::collections::HashSet;
use std::fmt::Display;

use fordway_command::{CommandContext, StorageAddress};
use fordway_store::{Bucket, Error, ErrorKind, Result};

use super::cp::{DestinationPathRule, from_item, is_content, nested, one};
use super::{SourceSelection, overlap};
use crate::transfer::TransferAction;
use crate::transfer::plan::{self, SyncItem, SyncItemIterator};
use crate::wildcard::FilterRules;

/// The sources and the destination of a command.
pub(super) struct SourceConflictCheck<'c> {
    pub(super) sources: &'c [SourceSelection],
    pub(super) target: &'c DestinationPathRule,
    pub(super) filters: &'c FilterRules,
    pub(super) context: &'c CommandContext,
}

/// The sources below the destination, which the copies of the command could replace.
#[derive(Default)]
struct ReplaceableSources<'c> {
    /// The keys of single objects.
    objects: HashSet<&'c str>,
    /// The sources with several objects, and the prefixes of their roots.
    trees: Vec<(&'c SourceSelection, String)>,
}

impl SourceConflictCheck<'_> {
    /// Checks that no copy replaces an object that is also a source. A copy can replace a source if the destination
    /// contains the source. The order of the copies would then determine which of the two contents remains, and a move
    /// would lose the other content. Errors: `InvalidArgument` if there is such an object; errors of listings. Cost: if
    /// the destination contains sources, each source with several objects is listed once for each contained source, but
    /// only the part that would be copied there.
    pub(super) fn check_replaced(&self) -> Result<()> {
        let StorageAddress::S3(bucket, prefix) = self.target.directory() else { return Ok(()) };
        // The copy of a single object to itself fails.
        if matches!(self.sources, [SourceSelection::One(_)]) {
            return Ok(());
        }
        let replaceable = self.replaceable(bucket, prefix);
        for source in self.sources {
            match source {
                SourceSelection::One(from) => self.check_object(from, &replaceable)?,
                // All copies of objects to themselves fail.
                _ if source.root() == *self.target.directory() => {}
                _ => self.check_tree(source, (bucket, prefix), &replaceable)?,
            }
        }
        Ok(())
    }

    fn replaceable(&self, bucket: &Bucket, prefix: &str) -> ReplaceableSources<'_> {
        let mut replaceable = ReplaceableSources::default();
        for source in self.sources {
            match (source, source.root()) {
                (SourceSelection::One(place @ StorageAddress::S3(within, key)), _) if within == bucket => {
                    if matches!(one(place, self.target, self.filters), Ok(Some(_))) {
                        replaceable.objects.insert(key);
                    }
                }
                (
                    SourceSelection::Below(_) | SourceSelection::Matching(..),
                    StorageAddress::S3(within, root),
                ) if within == *bucket && root.starts_with(prefix) => {
                    replaceable.trees.push((source, root));
                }
                _ => {}
            }
        }
        replaceable
    }

    /// Checks the copy of a single object or file. Leaves the errors of its address to the copy.
    fn check_object(&self, from: &StorageAddress, replaceable: &ReplaceableSources<'_>) -> Result<()> {
        let Ok(Some(TransferAction::Copy { to, .. })) = one(from, self.target, self.filters) else {
            return Ok(());
        };
        let StorageAddress::S3(_, key) = &to else { return Ok(()) };
        if *from != to && replaceable.objects.contains(key.as_str()) {
            return Err(replaces_source(from, &to, &to));
        }
        let mut trees = replaceable.trees.iter();
        match trees.find(|(tree, root)| self.selects(tree, root, key)) {
            Some((tree, _)) => Err(replaces_source(from, &to, tree)),
            None => Ok(()),
        }
    }

    /// Checks the copies of the objects and files of one source.
    fn check_tree(
        &self,
        source: &SourceSelection,
        (bucket, prefix): (&Bucket, &str),
        replaceable: &ReplaceableSources<'_>,
    ) -> Result<()> {
        let address = |relative: &str| StorageAddress::S3(bucket.clone(), format!("{prefix}{relative}"));
        for (tree, root) in &replaceable.trees {
            // An object `source/inside/name` is copied to `destination/inside/name`, which is `root/name`.
            let inside = &root[prefix.len()..];
            let is_source = |relative: &str| self.selects(tree, root, &format!("{prefix}{relative}"));
            if let Some(item) = self.find(source, inside, is_source)? {
                return Err(replaces_source(
                    &from_item(&source.root(), &item),
                    &address(&item.relative),
                    tree,
                ));
            }
        }
        for name in replaceable.objects.iter().filter_map(|key| key.strip_prefix(prefix)) {
            if let Some(item) = self.find(source, name, |relative| relative == name)? {
                let to = address(name);
                return Err(replaces_source(&from_item(&source.root(), &item), &to, &to));
            }
        }
        Ok(())
    }

    /// Returns the first item of a source whose path relative to the source begins with `start` and is wanted. Errors:
    /// errors of the listing, except for a missing bucket, which the copy reports without ending the command.
    fn find(
        &self,
        source: &SourceSelection,
        start: &str,
        is_wanted: impl Fn(&str) -> bool,
    ) -> Result<Option<SyncItem>> {
        let root = source.root();
        for item in self.items(&root, start)? {
            let item = match item {
                Err(error) if error.kind() == ErrorKind::NoSuchBucket => return Ok(None),
                item => item?,
            };
            let relative = format!("{start}{}", item.relative);
            let is_selected = match &root {
                StorageAddress::S3(_, prefix) => self.selects(source, prefix, &format!("{prefix}{relative}")),
                _ => self.filters.admit(&relative),
            };
            let item = SyncItem { relative, ..item };
            if is_content(&item) && is_selected && is_wanted(&item.relative) {
                return Ok(Some(item));
            }
        }
        Ok(None)
    }

    /// Lists the items below `root` whose relative paths begin with `start`, without `start`. For a local `root`,
    /// `start` is the path of a directory or of a file. Skips local entries that cannot be read, and so are not copied.
    fn items(&self, root: &StorageAddress, start: &str) -> Result<SyncItemIterator> {
        match root {
            StorageAddress::S3(bucket, prefix) => {
                let place = StorageAddress::S3(bucket.clone(), format!("{prefix}{start}"));
                plan::items(self.context, &place, self.filters)
            }
            StorageAddress::Local(root) => Ok(plan::readable_files(root, start, self.filters)),
            StorageAddress::Service | StorageAddress::Stdio => Ok(Box::new(std::iter::empty())),
        }
    }

    /// Returns whether a source that is not a single object, and whose root has this prefix, selects this key.
    fn selects(&self, source: &SourceSelection, root: &str, key: &str) -> bool {
        let relative = key.strip_prefix(root);
        relative.is_some_and(|relative| self.filters.admit(relative)) && source.selects(key)
    }

    /// Checks, for a move, that no source is below the destination. Objects below the destination are not moved, but
    /// the copies of the same command could replace them. Errors: `InvalidArgument` if there is such an object; errors
    /// of listings. Cost: a listing of the destination if it is inside a source.
    pub(super) fn check_left_behind(&self) -> Result<()> {
        let to = self.target.directory();
        for source in self.sources.iter().filter(|source| !matches!(source, SourceSelection::One(_))) {
            let Some(inside) = nested(&source.root(), to) else { continue };
            if let Some(item) = self.find(source, &inside, |_| true)? {
                let why = format!(
                    "{} is in the source {source} and below the destination {to}, so it would be left behind or \
                     replaced; choose a destination outside the source, or add --exclude '{inside}*'",
                    from_item(&source.root(), &item)
                );
                return Err(Error::new(ErrorKind::InvalidArgument, why));
            }
        }
        Ok(())
    }

    /// Checks that the destination is not a directory inside a source. Otherwise, the listing of the source would
    /// contain the copies, each of which would be copied again, without end. Errors: `InvalidArgument`.
    pub(super) fn check_inside(&self, source: &SourceSelection) -> Result<()> {
        let (root, to) = (source.root(), self.target.directory());
        if matches!(source, SourceSelection::One(_)) {
            return Ok(());
        }
        let Some(inside) = overlap::path_inside(&root, to, self.context)? else { return Ok(()) };
        if self.filters.exclude_all_below(&inside) || !source.may_select_below(&inside) {
            return Ok(());
        }
        let why = format!(
            "{to} is a directory inside the source {source}, so the copies would be copied again; choose a \
             destination outside the source"
        );
        Err(Error::new(ErrorKind::InvalidArgument, why))
    }
}

/// Returns the error for a copy that would replace an object of `source`.
fn replaces_source(from: &StorageAddress, to: &StorageAddress, source: &impl Display) -> Error {
    let why = format!(
        "{from} would replace {to}, which is in the source {source} too; choose a destination that does not contain \
         the source"
    );
    Error::new(ErrorKind::InvalidArgument, why)
}
