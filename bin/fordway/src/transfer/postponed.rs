//! Removals that a move postpones to its end: a link in the source may lead to a file that the same command moves. The
//! file must exist until the link has been copied, because the copy of a link has the content of the file.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use fordway_store::{Error, ErrorKind, Result};
use walkdir::WalkDir;

use super::moved::{FileId, LocalSourceStamps};
use super::plan::is_private_area;
use crate::wildcard::FilterRules;

/// The maximum number of links that the kernel follows in one path.
const LINKS_MAX: usize = 40;

/// A link in the source of a move.
struct SourceLink {
    path: PathBuf,
    /// The file that the link leads to, and the other links on the way to it.
    led_to: Vec<FileId>,
}

/// The links in the sources of a move, and the removals that wait for them.
#[derive(Default)]
pub(crate) struct PostponedRemovals {
    links: Vec<SourceLink>,
    led_to: HashSet<FileId>,
    waiting: Mutex<Vec<(PathBuf, LocalSourceStamps)>>,
}

impl PostponedRemovals {
    /// Looks for the links that a move of `sources` copies. Links that cannot be read are ignored, because the listing
    /// of the source reports them. Cost: lists each directory.
    pub(crate) fn of<'s>(sources: impl Iterator<Item = &'s Path>, filters: &FilterRules) -> Self {
        let links: Vec<SourceLink> = match filters.skips_links() {
            true => Vec::new(),
            false => sources.flat_map(|source| links_in(source, filters)).map(SourceLink::new).collect(),
        };
        let led_to = links.iter().flat_map(|link| link.led_to.iter().copied()).collect();
        PostponedRemovals { links, led_to, waiting: Mutex::default() }
    }

    /// Removes a source that was copied, now or at the end. Errors: as for [`LocalSourceStamps::remove`].
    pub(crate) fn remove(&self, path: &Path, copied: &LocalSourceStamps) -> Result<()> {
        if !self.led_to.contains(&copied.id()) {
            return copied.remove(path);
        }
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.push((path.to_owned(), copied.clone()));
        Ok(())
    }

    /// Removes the sources that wait, unless a link that was not moved still leads to them. Returns the failures.
    pub(crate) fn finish(&self) -> Vec<Error> {
        let mut waiting = std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner));
        let mut failures = Vec::new();
        while !waiting.is_empty() {
            let left = self.links.iter().filter(|link| link.path.is_symlink());
            let held: HashMap<FileId, &Path> =
                left.flat_map(|link| link.led_to.iter().map(|id| (*id, link.path.as_path()))).collect();
            let (kept, free): (Vec<_>, Vec<_>) =
                waiting.into_iter().partition(|(_, copied)| held.contains_key(&copied.id()));
            if free.is_empty() {
                let needed = |(path, copied): &(PathBuf, LocalSourceStamps)| {
                    held.get(&copied.id()).map(|link| needed_by(path, link))
                };
                failures.extend(kept.iter().filter_map(needed));
                break;
            }
            failures.extend(free.iter().filter_map(|(path, copied)| copied.remove(path).err()));
            waiting = kept;
        }
        failures
    }
}

impl SourceLink {
    fn new(path: PathBuf) -> Self {
        let mut led_to: Vec<FileId> = path.metadata().iter().map(FileId::of).collect();
        let mut here = path.clone();
        for _ in 0..LINKS_MAX {
            let Ok(target) = here.read_link() else { break };
            here = super::parent(&here).join(target);
            led_to.extend(here.symlink_metadata().iter().map(FileId::of));
        }
        SourceLink { path, led_to }
    }
}

/// Returns the links below `source`, or `source` itself if it is a link to a file.
fn links_in(source: &Path, filters: &FilterRules) -> Vec<PathBuf> {
    if !source.is_dir() {
        return source.is_symlink().then(|| source.to_owned()).into_iter().collect();
    }
    let entries = WalkDir::new(source).min_depth(1).into_iter();
    let entries = entries.filter_entry(|entry| !is_private_area(entry.path())).filter_map(|entry| entry.ok());
    let is_wanted = |path: &PathBuf| {
        let relative = path.strip_prefix(source).unwrap_or(path);
        filters.admit(&relative.to_string_lossy())
    };
    entries
        .filter(|entry| entry.path_is_symlink())
        .map(walkdir::DirEntry::into_path)
        .filter(is_wanted)
        .collect()
}

/// Returns the error for a source that was copied, and that a link needs.
fn needed_by(path: &Path, link: &Path) -> Error {
    let why = format!(
        "{} was copied but not removed, because the link {}, which was not moved, leads to it",
        path.display(),
        link.display()
    );
    Error::new(ErrorKind::ConditionalConflict, why)
}
