//! Checks of `cp` and `mv` on WebDAV servers before the first copy: that no copy becomes a source of the same command,
//! and that no copy replaces a file that is also a source.

use std::collections::HashSet;
use std::fmt::Display;

use fordway_http::Origin;
use fordway_http::webdav::{WebDavClient, without_query};
use fordway_store::{Error, ErrorKind, Result};
use fordway_wire::uri;

use super::copy::{DavCopyEndpoint, one};
use crate::transfer::plan;
use crate::wildcard::FilterRules;

/// The server and the decoded path of a URL. Servers do not distinguish paths that only differ in empty segments.
#[derive(Debug, PartialEq, Eq, Hash)]
struct DavLocation {
    origin: Origin,
    path: Vec<String>,
}

impl DavLocation {
    /// Returns `None` if the endpoint is not on a web server.
    fn of(place: &DavCopyEndpoint) -> Option<Self> {
        let DavCopyEndpoint::Web(url) = place else { return None };
        let (origin, path) = Origin::parse(without_query(url)).ok()?;
        let segments = path.split('/').filter(|segment| !segment.is_empty());
        let decoded = |segment: &str| uri::decode_segment(segment).unwrap_or_else(|| segment.to_owned());
        Some(DavLocation { origin, path: segments.map(decoded).collect() })
    }

    /// If `inner` is this location or a location below it, returns the relative path of `inner`.
    fn path_to(&self, inner: &DavLocation) -> Option<String> {
        let inside = inner.path.strip_prefix(self.path.as_slice()).filter(|_| self.origin == inner.origin);
        inside.map(|segments| segments.join("/"))
    }
}

/// The sources and the destination of a command.
pub(super) struct DavConflictCheck<'c> {
    pub(super) dav: &'c WebDavClient,
    pub(super) sources: &'c [DavCopyEndpoint],
    pub(super) destination: &'c DavCopyEndpoint,
    pub(super) filters: &'c FilterRules,
}

impl DavConflictCheck<'_> {
    /// Checks the copies of single files to a collection. Errors: `InvalidArgument` if a copy would replace a file that
    /// is also a source. The errors of the addresses are left to the copies.
    pub(super) fn check_files(&self) -> Result<()> {
        if self.sources.len() < 2 {
            return Ok(());
        }
        let sources: HashSet<_> = self.sources.iter().filter_map(DavLocation::of).collect();
        for source in self.sources {
            let Ok(task) = one(source, self.destination, true) else { continue };
            let Some(to) = DavLocation::of(&task.to) else { continue };
            if self.filters.admit(&task.relative)
                && sources.contains(&to)
                && DavLocation::of(source) != Some(to)
            {
                return Err(replaces_source(source, &task.to, &task.to));
            }
        }
        Ok(())
    }

    /// Checks a recursive copy. Errors: `InvalidArgument` if the destination is inside a source, because the listing of
    /// the source would contain the copies, each of which would be copied again; `InvalidArgument` if the destination
    /// contains a source, and a copy could replace a file of this source; errors of listings. Cost: if the destination
    /// contains sources, each source is listed once for each contained source, but only the part that would be copied
    /// there.
    pub(super) fn check_trees(&self) -> Result<()> {
        let Some(to) = DavLocation::of(self.destination) else { return Ok(()) };
        for source in self.sources {
            let inside = DavLocation::of(source).and_then(|from| from.path_to(&to));
            let inside = inside.filter(|inside| !inside.is_empty());
            if inside.is_some_and(|inside| !self.filters.exclude_all_below(&format!("{inside}/"))) {
                let why = format!(
                    "{} is a collection inside the source {source}, so the copies would be copied again; choose a \
                     destination outside the source",
                    self.destination
                );
                return Err(Error::new(ErrorKind::InvalidArgument, why));
            }
        }
        for replaced in self.sources {
            let Some(inside) = DavLocation::of(replaced).and_then(|place| to.path_to(&place)) else {
                continue;
            };
            // All copies of files to themselves fail.
            let others = self.sources.iter().filter(|source| DavLocation::of(source).as_ref() != Some(&to));
            for source in others {
                self.check_tree(source, replaced, &inside)?;
            }
        }
        Ok(())
    }

    /// Checks that no copy from `source` replaces a file in `replaced`, which is at the path `inside` below the
    /// destination. A file `source/inside/name` is copied to `destination/inside/name`, which is `replaced/name`.
    fn check_tree(&self, source: &DavCopyEndpoint, replaced: &DavCopyEndpoint, inside: &str) -> Result<()> {
        let start = if inside.is_empty() { String::new() } else { format!("{inside}/") };
        let is_conflict =
            |name: &str| self.filters.admit(&format!("{start}{name}")) && self.filters.admit(name);
        match self.first_file(source, &start, is_conflict)? {
            Some(name) => {
                let from = source.below(&format!("{start}{name}"));
                Err(replaces_source(&from, &replaced.below(&name), replaced))
            }
            None => Ok(()),
        }
    }

    /// Returns the name of the first wanted file in a directory or collection of a source, relative to this directory.
    /// Returns `None` if the directory does not exist. Errors: errors of listings.
    fn first_file(
        &self,
        source: &DavCopyEndpoint,
        start: &str,
        is_wanted: impl Fn(&str) -> bool,
    ) -> Result<Option<String>> {
        if let DavCopyEndpoint::Local(path) = source {
            let mut files = plan::readable_files(path, start, self.filters).flatten();
            return Ok(files.find(|item| is_wanted(&item.relative)).map(|item| item.relative));
        }
        let place = source.below(start.trim_end_matches('/'));
        let DavCopyEndpoint::Web(url) = &place else { return Ok(None) };
        for found in self.dav.walk(url) {
            match found {
                Ok(found) if !found.is_collection && is_wanted(&found.relative) => {
                    return Ok(Some(found.relative));
                }
                Ok(_) => {}
                // There is no such collection, or there is a file in its place.
                Err(error) if matches!(error.kind(), ErrorKind::NoSuchKey | ErrorKind::InvalidArgument) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }
}

/// Returns the error for a copy that would replace a file of `source`.
fn replaces_source(from: &DavCopyEndpoint, to: &DavCopyEndpoint, source: &impl Display) -> Error {
    let why = format!(
        "{from} would replace {to}, which is in the source {source} too; choose a destination that does not contain \
         the source"
    );
    Error::new(ErrorKind::InvalidArgument, why)
}
