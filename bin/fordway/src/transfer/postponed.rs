//! Removals that a move postpones to its end: a link in the source may point to a file that the same command moves. The
//! file must exist until the link has been copied, because the copy of a link has the content of the file.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use fordway_command::InterruptFlag;
use fordway_store::{Error, ErrorKind, Result};
use walkdir::{DirEntry, WalkDir};

use super::moved::{FileId, LocalSourceStamps};
use super::plan::is_private_area;
use crate::wildcard::FilterRules;

/// The maximum number of links that the kernel follows in one path.
const LINKS_MAX: usize = 40;

/// A link in the source of a move.
struct SourceLink {
    path: PathBuf,
    /// The file that the link points to, and the further links on the path to this file.
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
    /// Finds the links that a move of `sources` copies; `sources` are files and directories. Links that cannot be read
    /// are ignored, because the listing of the source reports them. The search ends early when `interrupt` is raised.
    /// The links are then incomplete, and the caller must not move anything. Cost: lists each directory.
    pub(crate) fn of<'s>(
        sources: impl Iterator<Item = &'s Path>,
        filters: &FilterRules,
        interrupt: &InterruptFlag,
    ) -> Self {
        let find = |source| links_in(source, filters, interrupt);
        let links: Vec<SourceLink> = match filters.skips_links() {
            true => Vec::new(),
            false => sources.flat_map(find).map(SourceLink::new).collect(),
        };
        let led_to = links.iter().flat_map(|link| link.led_to.iter().copied()).collect();
        PostponedRemovals { links, led_to, waiting: Mutex::default() }
    }

    /// Removes a source that was copied, either immediately or at the end of the move. Errors: the errors of
    /// [`LocalSourceStamps::remove`].
    pub(crate) fn remove(&self, path: &Path, copied: &LocalSourceStamps) -> Result<()> {
        if !self.led_to.contains(&copied.id()) {
            return copied.remove(path);
        }
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.push((path.to_owned(), copied.clone()));
        Ok(())
    }

    /// Removes the sources whose removal was postponed, except the sources to which a link that was not moved still
    /// points. Returns the failures.
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

/// Returns the links below `source`, or `source` itself if it is a link to a file. The filters apply to the path below
/// `source`, or to the name of a single link. Does not enter directories whose whole content the filters exclude.
fn links_in(source: &Path, filters: &FilterRules, interrupt: &InterruptFlag) -> Vec<PathBuf> {
    if !source.is_dir() {
        let name = source.file_name().unwrap_or_default();
        let is_wanted = source.is_symlink() && filters.admit(&name.to_string_lossy());
        return is_wanted.then(|| source.to_owned()).into_iter().collect();
    }
    let relative = |path: &Path| path.strip_prefix(source).unwrap_or(path).to_string_lossy().into_owned();
    let is_entered = |entry: &DirEntry| {
        let is_excluded = entry.depth() > 0
            && entry.file_type().is_dir()
            && filters.exclude_all_below(&format!("{}/", relative(entry.path())));
        !is_excluded && !is_private_area(entry.path())
    };
    let entries = WalkDir::new(source).min_depth(1).into_iter().filter_entry(is_entered);
    entries
        .take_while(|_| !interrupt.is_raised())
        .filter_map(|entry| entry.ok())
        .filter(|entry| entry.path_is_symlink())
        .map(DirEntry::into_path)
        .filter(|path| filters.admit(&relative(path)))
        .collect()
}

/// Returns the error for a source that was copied but not removed, because a link points to it.
fn needed_by(path: &Path, link: &Path) -> Error {
    let why = format!(
        "{} was copied but not removed, because the link {}, which was not moved, points to it; move or remove the \
         link, then remove the file",
        path.display(),
        link.display()
    );
    Error::new(ErrorKind::ConditionalConflict, why)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::wildcard::{FilterAction, WildcardPattern};

    /// Creates `t/data`, and the links to it `t/latest` and `t/d/deep`.
    fn tree() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("t/d")).unwrap();
        std::fs::write(dir.path().join("t/data"), "data").unwrap();
        symlink("data", dir.path().join("t/latest")).unwrap();
        symlink("../data", dir.path().join("t/d/deep")).unwrap();
        dir
    }

    fn found(source: &Path, filters: &FilterRules, interrupt: &InterruptFlag) -> Vec<PathBuf> {
        let mut found = links_in(source, filters, interrupt);
        found.sort();
        found
    }

    #[test]
    fn filters_exclude_links() {
        let (dir, go) = (tree(), InterruptFlag::default());
        let path = |name: &str| dir.path().join(name);
        let without =
            |name| FilterRules::new(vec![(FilterAction::Exclude, WildcardPattern::of_filter(name))]);
        let all = FilterRules::default();
        assert_eq!(found(&path("t"), &all, &go), [path("t/d/deep"), path("t/latest")]);
        assert_eq!(found(&path("t"), &without("d/*"), &go), [path("t/latest")]);
        assert_eq!(found(&path("t/latest"), &all, &go), [path("t/latest")]);
        assert_eq!(found(&path("t/latest"), &without("latest"), &go), [] as [PathBuf; 0]);
        assert_eq!(found(&path("t/data"), &all, &go), [] as [PathBuf; 0]);
    }

    #[test]
    fn a_signal_ends_the_search() {
        let (dir, interrupt) = (tree(), InterruptFlag::default());
        interrupt.raise();
        let source = dir.path().join("t");
        assert_eq!(found(&source, &FilterRules::default(), &interrupt), [] as [PathBuf; 0]);
    }
}
