//! Takes the names of a directory from its index instead of reading the directory, and decides which directories are
//! indexed.

use std::fs::File;

use fordway_store::Result;
use fordway_sys::FileStat;

use super::{BucketWalk, CONTINUED_FEWEST, INDEX_PAGE, WalkContinuation};
use crate::dirs::DirectoryHandle;
use crate::index::{DirectoryId, DirectoryRole, NameIndexQuery};

impl BucketWalk<'_> {
    /// Offers keys as [`BucketWalk::directory`] does, but takes the names from the directory's index. Returns `None` if
    /// there is no index, or if the index was dropped during the call. If the result is `None`, `from` is the first
    /// name that has not been offered.
    pub(super) fn indexed_directory(
        &mut self,
        at: &str,
        path: &str,
        from: &mut String,
    ) -> Result<Option<WalkContinuation>> {
        let inner = self.inner;
        if inner.volume.dirs.indexes.is_empty() || self.contents.sharing.is_shared() {
            return Ok(None);
        }
        let dir = match inner.volume.dirs.open_if_busy(&inner.volume.root, path) {
            // The bucket's own directory need not be checked, because it was found to exist at the start of the call.
            Ok(Some(dir)) if at.is_empty() || !dir.is_gone() => dir,
            _ => return Ok(None),
        };
        let is_whole = from.is_empty() && self.query.prefix.len() <= at.len();
        let (visit, mut id) = (self.path.begin(false), None);
        let flow = self.indexed_names(at, &dir, from, &mut id)?;
        let id = id.filter(|_| is_whole && flow.is_some());
        self.path.end(visit, id, at.len());
        Ok(flow)
    }

    /// Offers the names in the index of `dir`, as [`BucketWalk::indexed_directory`] does. Sets `id` to the identity of
    /// the directory.
    fn indexed_names(
        &mut self,
        at: &str,
        dir: &DirectoryHandle,
        from: &mut String,
        id: &mut Option<DirectoryId>,
    ) -> Result<Option<WalkContinuation>> {
        let (inner, query) = (self.inner, self.query);
        let indexes = &inner.volume.dirs.indexes;
        let prefix = query.prefix.get(at.len()..).unwrap_or_default();
        let most = query.max_keys.saturating_add(1).min(INDEX_PAGE);
        while let Some(found) =
            indexes.names(dir, DirectoryRole::Objects, NameIndexQuery { from, prefix, most })
        {
            self.path.note_links(found.names.has_links());
            if id.is_none() && self.path.knows_as_empty(found.id, at.len()) {
                return Ok(Some(WalkContinuation::On));
            }
            *id = Some(found.id);
            let flow = self.names(at, (dir.file(), found.id), &found.names, from)?;
            if found.is_last || !matches!(flow, WalkContinuation::On) {
                return Ok(Some(flow));
            }
            let last = found.names.get(found.names.len() - 1).text;
            let Some(next) = self.next_name(at, last) else { return Ok(Some(flow)) };
            *from = next;
        }
        Ok(None)
    }

    /// Returns whether an index of the directory `at`, which had this many names, costs less than it saves. While a
    /// directory is watched, each open, put and delete in it takes up to a tenth longer.
    pub(super) fn is_worth_indexing(&self, at: &str, names: usize) -> bool {
        // A listing by prefix reads many names to return few. So does each further page of a large directory whose
        // objects are created or removed between the pages, as `fordway rm -r` does.
        let is_by_prefix = self.query.prefix.get(at.len()..).is_some_and(|wanted| !wanted.is_empty());
        is_by_prefix || (names >= CONTINUED_FEWEST && !self.first_wanted(at).is_empty())
    }

    /// Returns whether every change in `dir` goes through this kernel. The directory and its bucket may be on different
    /// mounts.
    pub(super) fn is_watchable(&self, dir: &File, stat: &FileStat) -> bool {
        let site = self.inner.volume.private.site_of(dir, stat.device);
        !self.contents.sharing.is_shared() && site.is_ok_and(|site| !site.sharing.is_shared())
    }
}
