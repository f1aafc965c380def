//! A directory's names, sorted in key order and cached between the pages of a listing.
//!
//! The names in a directory are unsorted, so the first page of a listing requires reading and sorting all of them. The
//! sorted names of recently listed directories are cached, within limits, so that a later page costs only its own
//! entries. The cached names remain valid as long as the directory's times show that no name has been added or removed
//! (see [`DirectoryTimes`]).

use std::cmp::Ordering;
use std::fs::File;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fordway_sys::{
    CoarseInstant, EntryKind, Errno, FileStat, FileSystemSharing, name_to_text, read_dir_briefly, stat,
    stat_now,
};

use crate::entries::collect_entries;
use crate::index::{FEWEST as INDEXED_FEWEST, KEPT};
use crate::memory::{CacheMemory, CacheOwner, CacheSlot};
use crate::private::{is_settled, times};

/// The maximum memory for the cached names of a directory, in bytes. [`CacheMemory`] limits the memory for all
/// directories.
pub(crate) const MOST_BYTES: usize = if cfg!(test) { 256 << 10 } else { 128 << 20 };
/// The approximate memory of a window, in bytes. A window contains consecutive names of a directory whose names exceed
/// [`MOST_BYTES`] or do not fit into the cache, so that only some pages of a listing need to read the directory.
const WINDOW_BYTES: usize = MOST_BYTES / 8;
/// The approximate memory of a window that would otherwise not fit into the cache. Names that need no more memory than
/// this are always cached, even if they displace names that were used recently.
const SMALL_BYTES: usize = MOST_BYTES / 128;
/// The time for which names are expected to be used again, for the next page of a listing. Other names do not displace
/// them during this time.
const RECENT: Duration = Duration::from_secs(5);
/// The maximum number of cached windows: one for each of several concurrent listings.
const MOST_WINDOWS: usize = 4;
/// The maximum number of cached directories.
pub(crate) const MOST_DIRS: usize = 16;
/// A duration longer than the timestamp resolution of any file system. MooseFS stores times in whole seconds.
const SHARED_STEP: Duration = Duration::from_secs(3);
/// The maximum difference between the clocks of two nodes: the difference up to which S3 servers accept signatures.
const CLOCK_DIFFERENCE_MAX: Duration = Duration::from_secs(15 * 60);
/// The minimum number of names that a directory must have for its names to be cached. Reading a smaller directory again
/// costs no more than one page of a listing.
pub(crate) const FEWEST: usize = 500;

/// The names of a directory in one string, sorted in the byte order of keys. The name of a subdirectory ends in `/`. A
/// symbolic link, and an entry whose type the file system does not report, is stored twice: as a file and as a
/// subdirectory. A walk looks up the type of such an entry when it reaches the entry, because the type may change
/// without a change to the directory.
#[derive(Default)]
pub(crate) struct SortedNames {
    text: String,
    entries: Vec<PackedName>,
    /// Whether the type of any name has to be looked up.
    has_links: bool,
    /// The number of names in the directory, including rejected names.
    read: usize,
    /// Whether names that come after these were left out.
    is_cut: bool,
}

/// A name: its position in the string, and its type. A large directory has many names, so the fields share one integer.
#[derive(Clone, Copy)]
struct PackedName {
    /// The name's first eight bytes after the prefix that all names share, for fast comparison.
    head: u64,
    /// The position of the first byte in the string, in the bits above [`START_SHIFT`]; the length, in bytes, above bit
    /// 0; and whether the type is known, in bit 0. The string may be longer than 4 GiB.
    place: u64,
}

/// The position of a name's start in [`PackedName::place`]. Below it are 16 bits for the length, and one bit that is
/// set if the type is known.
const START_SHIFT: u32 = 17;

impl PackedName {
    fn new(start: usize, len: u16, is_known: bool) -> Self {
        let place = (start as u64) << START_SHIFT | u64::from(len) << 1 | u64::from(is_known);
        PackedName { head: 0, place }
    }

    fn start(self) -> usize {
        (self.place >> START_SHIFT) as usize
    }

    fn len(self) -> usize {
        usize::from((self.place >> 1) as u16)
    }

    fn is_known(self) -> bool {
        self.place & 1 == 1
    }
}

/// A name in a [`SortedNames`].
#[derive(Clone, Copy)]
pub(crate) struct ListedName<'n> {
    /// The name, with a trailing `/` if it is a directory.
    pub(crate) text: &'n str,
    /// Whether the type is known. The type of any other name has to be looked up.
    pub(crate) is_known: bool,
}

impl ListedName<'_> {
    /// Returns whether the name is listed as a directory, with a trailing `/`.
    pub(crate) fn is_dir(self) -> bool {
        self.text.ends_with('/')
    }
}

impl SortedNames {
    /// Reads the names in `dir` that `wanted` accepts, as [`collect_entries`] does. Omits entries that are neither
    /// files, directories nor links.
    pub(crate) fn read(
        dir: &File,
        before: Option<&FileStat>,
        wanted: impl FnMut(&[u8]) -> bool,
    ) -> Result<Self, Errno> {
        Self::read_kinds(dir, before, wanted, |kind| kind)
    }

    /// Reads names as [`SortedNames::read`] does, but treats all entries that may be files as files.
    pub(crate) fn read_files(
        dir: &File,
        before: Option<&FileStat>,
        wanted: impl FnMut(&[u8]) -> bool,
    ) -> Result<Self, Errno> {
        Self::read_kinds(dir, before, wanted, |kind| match kind {
            EntryKind::Link | EntryKind::Unknown => EntryKind::File,
            kind => kind,
        })
    }

    fn read_kinds(
        dir: &File,
        before: Option<&FileStat>,
        mut wanted: impl FnMut(&[u8]) -> bool,
        kind_of: impl Fn(EntryKind) -> EntryKind,
    ) -> Result<Self, Errno> {
        let mut names = collect_entries(dir, before, SortedNames::default, |names, name, kind| {
            names.read += 1;
            // In a listing with a prefix, most names are rejected by their first bytes.
            if wanted(name) {
                names.push(&name_to_text(name), kind_of(kind));
            }
        })?;
        names.sort();
        // Growing vectors reserve up to twice the memory that they need.
        names.text.shrink_to_fit();
        names.entries.shrink_to_fit();
        Ok(names)
    }

    /// Reads the names of all entries of `dir` except directories. Errors: as for [`read_dir_briefly`], including
    /// `AGAIN`.
    pub(crate) fn read_briefly(dir: &File) -> Result<Self, Errno> {
        let mut names = SortedNames::default();
        read_dir_briefly(dir, |name, kind| {
            names.has_links |= matches!(kind, EntryKind::Link | EntryKind::Unknown);
            if kind != EntryKind::Dir {
                names.push(&name_to_text(name), EntryKind::File);
            }
            names.read += 1;
        })?;
        names.sort();
        Ok(names)
    }

    /// Adds the names of `other` that `self` does not contain.
    pub(crate) fn add(&mut self, other: SortedNames) {
        if self.entries.is_empty() {
            *self = other;
            return;
        }
        let new: Vec<_> =
            (0..other.len()).map(|at| other.get(at)).filter(|name| !self.has(name.text)).collect();
        new.into_iter().for_each(|name| self.push_listed(name));
        self.read = self.read.max(other.read);
        self.sort();
    }

    fn has(&self, text: &str) -> bool {
        let at = self.first_from(text);
        at < self.len() && self.get(at).text == text
    }

    /// Creates the value from sorted names.
    pub(crate) fn of_sorted<'n>(sorted: impl Iterator<Item = ListedName<'n>>) -> Self {
        let mut names = SortedNames::default();
        sorted.for_each(|name| names.push_listed(name));
        names
    }

    /// Returns whether the names are too many to be cached.
    pub(crate) fn exceed_the_cache(&self) -> bool {
        self.bytes() > MOST_BYTES
    }

    /// Returns names that need about `most` bytes, beginning with the first name that is not less than `from`.
    fn window(&self, from: &str, most: usize) -> Self {
        let (start, mut bytes) = (self.first_from(from), 0);
        let names = (start..self.len()).map(|at| self.get(at));
        let mut window = SortedNames::of_sorted(names.take_while(|name| {
            bytes += name.text.len() + size_of::<PackedName>();
            bytes <= most
        }));
        window.read = self.read;
        window.is_cut = start + window.len() < self.len();
        window
    }

    /// Returns the last name if names that come after it were left out.
    pub(crate) fn cut_after(&self) -> Option<&str> {
        self.entries.last().filter(|_| self.is_cut).map(|entry| text_of(&self.text, entry))
    }

    /// Returns whether the type of any name has to be looked up.
    pub(crate) fn has_links(&self) -> bool {
        self.has_links
    }

    /// Returns the number of names in the directory that was read.
    pub(crate) fn read_count(&self) -> usize {
        self.read
    }

    fn push(&mut self, name: &str, kind: EntryKind) {
        let (may_be_file, may_be_dir) = match kind {
            EntryKind::File => (true, false),
            EntryKind::Dir => (false, true),
            EntryKind::Link | EntryKind::Unknown => (true, true),
            EntryKind::Other => return,
        };
        // No file system has names of this length.
        let Ok(len) = u16::try_from(name.len() + 1) else { return };
        let (start, is_known) = (self.text.len(), may_be_file != may_be_dir);
        self.text.push_str(name);
        if may_be_file {
            self.entries.push(PackedName::new(start, len - 1, is_known));
        }
        if may_be_dir {
            self.text.push('/');
            self.entries.push(PackedName::new(start, len, is_known));
        }
        self.has_links |= !is_known;
    }

    fn push_listed(&mut self, ListedName { text, is_known }: ListedName) {
        let Ok(len) = u16::try_from(text.len()) else { return };
        self.entries.push(PackedName::new(self.text.len(), len, is_known));
        self.text.push_str(text);
        self.has_links |= !is_known;
    }

    /// Sorts the names, and removes duplicates. If a name was added both with a known and with an unknown type, one of
    /// the two is out of date, so the type counts as unknown.
    fn sort(&mut self) {
        let SortedNames { text, entries, .. } = self;
        let shared = shared_len(text, entries);
        for entry in entries.iter_mut() {
            let rest = &text_of(text, entry).as_bytes()[shared..];
            let mut head = [0; 8];
            let len = rest.len().min(8);
            head[..len].copy_from_slice(&rest[..len]);
            entry.head = u64::from_be_bytes(head);
        }
        entries.sort_unstable_by(|a, b| match a.head.cmp(&b.head) {
            Ordering::Equal => text_of(text, a).cmp(text_of(text, b)).then(a.is_known().cmp(&b.is_known())),
            order => order,
        });
        entries.dedup_by(|a, b| a.head == b.head && text_of(text, a) == text_of(text, b));
    }

    /// Keeps only the names that `keep` accepts; `keep` is called from the last name to the first.
    pub(crate) fn retain_from_last(&mut self, mut keep: impl FnMut(&str) -> bool) {
        let text = &self.text;
        self.entries.reverse();
        self.entries.retain(|entry| keep(text_of(text, entry)));
        self.entries.reverse();
    }

    /// Returns the number of names.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns the name at position `at` in key order.
    pub(crate) fn get(&self, at: usize) -> ListedName<'_> {
        let entry = &self.entries[at];
        ListedName { text: text_of(&self.text, entry), is_known: entry.is_known() }
    }

    /// Returns the position of the first name that is not less than `text`.
    pub(crate) fn first_from(&self, text: &str) -> usize {
        self.entries.partition_point(|entry| text_of(&self.text, entry) < text)
    }

    /// Returns the position after the last name that begins with `prefix` or sorts before `prefix`.
    pub(crate) fn end_of(&self, prefix: &str) -> usize {
        let is_before = |name: &str| name < prefix || name.starts_with(prefix);
        match prefix.is_empty() {
            true => self.len(),
            false => self.entries.partition_point(|entry| is_before(text_of(&self.text, entry))),
        }
    }

    fn bytes(&self) -> usize {
        self.text.capacity() + self.entries.capacity() * size_of::<PackedName>()
    }
}

fn text_of<'t>(text: &'t str, entry: &PackedName) -> &'t str {
    &text[entry.start()..][..entry.len()]
}

/// Returns the length, in bytes, of the prefix that all names share.
fn shared_len(text: &str, entries: &[PackedName]) -> usize {
    let Some(first) = entries.first() else { return 0 };
    let first = text_of(text, first).as_bytes();
    entries.iter().fold(first.len(), |shared, entry| {
        let name = text_of(text, entry).as_bytes();
        first[..shared].iter().zip(name).take_while(|(a, b)| a == b).count()
    })
}

/// Returns the metadata of a directory whose names are about to be read. Every later change alters this metadata,
/// unless it occurs in the same clock tick as the directory's previous change.
pub(crate) fn state_before(dir: &File, sharing: FileSystemSharing) -> Result<FileStat, Errno> {
    if sharing.is_shared() { stat_now(dir) } else { stat(dir) }
}

/// What the times of a directory show about changes of its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DirectoryTimes {
    /// This kernel sets the times.
    Kernel,
    /// A server sets the times.
    Server,
    /// The node that changes the directory sets the times, and the file system keeps the latest times (GlusterFS,
    /// CephFS, Lustre). While a node's clock is behind the times of a directory, its changes do not alter them.
    Nodes,
    /// As [`DirectoryTimes::Nodes`], but listings must be correct no matter how far the clocks of the nodes differ.
    Untrusted,
}

impl DirectoryTimes {
    /// Returns the variant that applies to a file system. `is_strong` is true with [`ReadConsistency::Strong`].
    ///
    /// [`ReadConsistency::Strong`]: crate::ReadConsistency::Strong
    pub(crate) fn on(sharing: FileSystemSharing, is_strong: bool) -> Self {
        match sharing {
            FileSystemSharing::Local => DirectoryTimes::Kernel,
            FileSystemSharing::Nfs => DirectoryTimes::Server,
            FileSystemSharing::Unknown if is_strong => DirectoryTimes::Untrusted,
            FileSystemSharing::Unknown => DirectoryTimes::Nodes,
        }
    }

    /// Returns whether every later change will alter the directory's times. `unchanged_for` is the time for which this
    /// process has seen the times of `stat`.
    pub(crate) fn show_changes(self, stat: &FileStat, unchanged_for: Duration) -> bool {
        match self {
            DirectoryTimes::Kernel => is_settled(stat),
            // The resolution of the server's clock is unknown, so the longest known step is assumed.
            DirectoryTimes::Server => unchanged_for > SHARED_STEP,
            DirectoryTimes::Nodes => unchanged_for > SHARED_STEP && is_behind_all_clocks(stat),
            DirectoryTimes::Untrusted => false,
        }
    }

    /// Returns whether this process must have seen the times for a while before they show changes.
    fn need_time(self) -> bool {
        matches!(self, DirectoryTimes::Server | DirectoryTimes::Nodes)
    }
}

/// Returns whether the times of `stat` are in the past on every node, if the nodes' clocks differ by at most
/// [`CLOCK_DIFFERENCE_MAX`].
fn is_behind_all_clocks(stat: &FileStat) -> bool {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as i64;
    let latest = stat.modified_ns.max(stat.changed_ns);
    now.saturating_sub(latest) > CLOCK_DIFFERENCE_MAX.as_nanos() as i64
}

/// A cache of the names in recently listed directories.
#[derive(Default)]
pub(crate) struct NameCache {
    all: Mutex<Vec<NameCacheEntry>>,
    /// Directories that were read for a listing, the most recent last.
    asked: Mutex<Vec<ListedDirectory>>,
    /// The number of times that a directory was read for a listing.
    #[cfg(test)]
    pub(crate) reads: std::sync::atomic::AtomicUsize,
    /// Windows of directories that have too many names to be cached, the most recently used last.
    windows: Mutex<Vec<NameWindow>>,
    pub(crate) owner: CacheOwner,
}

/// Consecutive names of a directory.
struct NameWindow {
    device: u64,
    inode: u64,
    times: (i64, i64),
    /// The window contains all names from this string on, up to its last name.
    from: Box<str>,
    names: Arc<CacheSlot<SortedNames>>,
}

impl NameWindow {
    /// Returns the names if they contain the first name that is not less than `from`.
    fn covering(&self, from: &str) -> Option<Arc<SortedNames>> {
        let names = Some(&self.names).filter(|_| &*self.from <= from)?.get()?;
        names.cut_after().is_none_or(|last| from <= last).then_some(names)
    }

    /// Returns whether `from` is the smallest string that sorts after the last name.
    fn ends_before(&self, from: &str) -> bool {
        let names = self.names.get();
        let last = names.as_ref().and_then(|names| names.cut_after());
        last.is_none_or(|last| from.strip_prefix(last) == Some("\0"))
    }
}

/// A directory that was read for a listing.
struct ListedDirectory {
    device: u64,
    inode: u64,
    times: (i64, i64),
    when: CoarseInstant,
    /// The number of names in the directory.
    names: usize,
}

/// The cached knowledge about the last listing of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ListingFreshness {
    /// Nothing is known: the directory was never listed, was last listed long ago, or is small.
    Unknown,
    /// The directory has not changed since it was last listed.
    Unchanged,
    /// The directory was listed less than [`KEPT`] ago, when it had this many names, and may have changed since.
    Changed { names: usize },
}

struct NameCacheEntry {
    device: u64,
    inode: u64,
    times: (i64, i64),
    /// The time at which these directory times were first seen.
    seen: CoarseInstant,
    /// The sorted names; `None` while a further change might not alter the directory's times, or if the names do not
    /// fit into the cache.
    names: Option<Arc<CacheSlot<SortedNames>>>,
}

impl NameCacheEntry {
    fn is_of(&self, stat: &FileStat) -> bool {
        (self.device, self.inode, self.times) == (stat.device, stat.inode, times(stat))
    }
}

impl NameCache {
    /// Returns all names of `dir`, from the cache or from `read`.
    pub(crate) fn names(
        &self,
        before: &FileStat,
        directory_times: DirectoryTimes,
        read: impl FnOnce() -> Result<SortedNames, Errno>,
    ) -> Result<Arc<SortedNames>, Errno> {
        let (found, seen) = self.find(before);
        if let Some(names) = found {
            return Ok(names);
        }
        // This check must precede the read. Otherwise, a change during the read might leave the directory with the
        // times in `before`.
        let shows_changes = directory_times.show_changes(before, seen.elapsed());
        let names = Arc::new(read()?);
        if names.len() >= FEWEST {
            match shows_changes {
                true => self.keep(before, seen, Some(&names)),
                false if directory_times.need_time() => self.keep(before, seen, None),
                false => {}
            }
        }
        Ok(names)
    }

    /// Returns the cached names of a directory with this state.
    pub(crate) fn recall(&self, stat: &FileStat) -> Option<Arc<SortedNames>> {
        self.find(stat).0
    }

    /// Returns a cached window of a directory with this state, if one contains the first name that is not less than
    /// `from`.
    pub(crate) fn recall_window(&self, stat: &FileStat, from: &str) -> Option<Arc<SortedNames>> {
        let mut all = self.windows.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let is_same = |window: &NameWindow| {
            (window.device, window.inode, window.times) == (stat.device, stat.inode, times(stat))
        };
        let mut found = all.iter().enumerate().filter(|(_, window)| is_same(window));
        let (at, names) = found.find_map(|(at, window)| Some((at, window.covering(from)?)))?;
        all[at..].rotate_left(1);
        Some(names)
    }

    /// Returns whether `names`, the names of a directory with this state, are too many to be cached, or did not fit
    /// into the cache.
    pub(crate) fn need_window(&self, stat: &FileStat, names: &SortedNames) -> bool {
        let all = self.all.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let has_no_room = |entry: &NameCacheEntry| {
            entry.is_of(stat) && !entry.names.as_ref().is_some_and(|names| names.has_content())
        };
        names.exceed_the_cache() || all.iter().any(has_no_room)
    }

    /// Caches some of `names`, from `from` on, if these are all names of a directory. `before` is the state of the
    /// directory before it was read. The directory must not be on a shared file system.
    pub(crate) fn keep_window(&self, before: &FileStat, names: &SortedNames, from: &str) {
        if names.is_cut || !is_settled(before) {
            return;
        }
        let (device, inode, times) = (before.device, before.inode, times(before));
        let mut all = self.windows.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        all.retain(|window| (window.device, window.inode) != (device, inode) || window.times == times);
        if all.len() >= MOST_WINDOWS {
            all.remove(0);
        }
        let large = Arc::new(names.window(from, WINDOW_BYTES));
        let mut kept = self.charged_if_room(&large);
        if kept.is_none() {
            // A listing that needs this window no longer needs the window before it.
            let is_before = |window: &NameWindow| {
                (window.device, window.inode) == (device, inode) && window.ends_before(from)
            };
            all.retain(|window| !is_before(window));
            kept = self.charged_if_room(&large);
        }
        let names = kept.unwrap_or_else(|| self.charged(&Arc::new(names.window(from, SMALL_BYTES))));
        all.push(NameWindow { device, inode, times, from: from.into(), names });
    }

    fn charged(&self, names: &Arc<SortedNames>) -> Arc<CacheSlot<SortedNames>> {
        let bytes = names.bytes();
        CacheMemory::of_process().keep(&self.owner, names.clone(), bytes)
    }

    /// Returns the names' slot unless the names are many and would displace content that was used recently.
    fn charged_if_room(&self, names: &Arc<SortedNames>) -> Option<Arc<CacheSlot<SortedNames>>> {
        let bytes = names.bytes();
        match bytes <= SMALL_BYTES {
            true => Some(self.charged(names)),
            false => CacheMemory::of_process().keep_if_room(&self.owner, names.clone(), bytes, RECENT),
        }
    }

    /// Returns whether no window is cached.
    #[cfg(test)]
    pub(crate) fn has_no_windows(&self) -> bool {
        self.windows.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).is_empty()
    }

    /// Removes a directory from the cache.
    pub(crate) fn forget(&self, (device, inode): (u64, u64)) {
        let mut all = self.all.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        all.retain(|memory| (memory.device, memory.inode) != (device, inode));
    }

    /// Returns the cached knowledge about the last listing of the directory whose current metadata is `stat`.
    pub(crate) fn last_listing(&self, stat: &FileStat) -> ListingFreshness {
        let asked = self.asked.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        match asked.iter().find(|asked| (asked.device, asked.inode) == (stat.device, stat.inode)) {
            Some(asked) if asked.times == times(stat) && is_settled(stat) => ListingFreshness::Unchanged,
            Some(ListedDirectory { when, names, .. })
                if when.elapsed() < KEPT && *names >= INDEXED_FEWEST =>
            {
                ListingFreshness::Changed { names: *names }
            }
            _ => ListingFreshness::Unknown,
        }
    }

    /// Records a listing of the directory whose metadata is `stat`, which had `names` entries.
    pub(crate) fn note_listing(&self, stat: &FileStat, names: usize) {
        #[cfg(test)]
        self.reads.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let (device, inode, times, when) = (stat.device, stat.inode, times(stat), CoarseInstant::now());
        let mut asked = self.asked.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        asked.retain(|asked| (asked.device, asked.inode) != (device, inode));
        // Many small subdirectories must not displace the directory that contains them.
        if names < INDEXED_FEWEST {
            return;
        }
        if asked.len() >= MOST_DIRS {
            asked.remove(0);
        }
        asked.push(ListedDirectory { device, inode, times, when, names });
    }

    /// Returns the names cached for the directory's current times, and the time at which these times were first seen.
    fn find(&self, stat: &FileStat) -> (Option<Arc<SortedNames>>, CoarseInstant) {
        let mut all = self.all.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let Some(at) = all.iter().position(|memory| memory.is_of(stat)) else {
            return (None, CoarseInstant::now());
        };
        let found = (all[at].names.as_ref().and_then(|names| names.get()), all[at].seen);
        // The directory that was used last is removed last.
        all[at..].rotate_left(1);
        found
    }

    fn keep(&self, stat: &FileStat, seen: CoarseInstant, names: Option<&Arc<SortedNames>>) {
        let (device, inode) = (stat.device, stat.inode);
        let mut all = self.all.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        all.retain(|memory| (memory.device, memory.inode) != (device, inode));
        // Names that cannot be cached must not displace the names of other directories.
        if names.is_some_and(|names| names.exceed_the_cache()) {
            return;
        }
        let names = names.and_then(|names| self.charged_if_room(names));
        all.push(NameCacheEntry { device, inode, times: times(stat), seen, names });
        if all.len() > MOST_DIRS {
            all.remove(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::memory::STORE_BYTES;

    /// Returns the state of a directory that a node changed this many seconds ago by its own clock.
    fn changed_ago(seconds: i64) -> FileStat {
        let mut stat = stat(tempfile::tempfile().unwrap()).unwrap();
        stat.modified_ns -= seconds * 1_000_000_000;
        stat.changed_ns = stat.modified_ns;
        stat
    }

    /// GlusterFS, CephFS and Lustre keep the latest time that any node has sent, so a change by a node whose clock is
    /// behind does not alter a directory's times.
    #[test]
    fn times_that_nodes_set_show_no_changes_while_a_clock_may_be_behind() {
        let (unknown, long) = (FileSystemSharing::Unknown, Duration::from_secs(60));
        let of_nodes = DirectoryTimes::on(unknown, false);
        for (seconds, show) in [(-120, false), (0, false), (600, false), (1000, true)] {
            assert_eq!(of_nodes.show_changes(&changed_ago(seconds), long), show, "{seconds} s");
            assert!(!of_nodes.show_changes(&changed_ago(seconds), SHARED_STEP), "{seconds} s");
            assert!(!DirectoryTimes::on(unknown, true).show_changes(&changed_ago(seconds), long));
        }
        for is_strong in [false, true] {
            let of_server = DirectoryTimes::on(FileSystemSharing::Nfs, is_strong);
            assert!(of_server.show_changes(&changed_ago(-120), long), "a server has one clock");
            assert!(!of_server.show_changes(&changed_ago(1000), SHARED_STEP));
        }
    }

    #[test]
    fn names_are_read_again_if_the_times_show_nothing() {
        let (cache, before) = (NameCache::default(), changed_ago(10_000));
        let names = |count: usize, directory_times| {
            let all: Vec<String> = (0..count).map(|number| format!("{number:04}")).collect();
            let read = || Ok(of_files(&all));
            cache.names(&before, directory_times, read).unwrap().len()
        };
        assert_eq!(names(FEWEST, DirectoryTimes::Untrusted), FEWEST);
        assert_eq!(names(FEWEST + 1, DirectoryTimes::Untrusted), FEWEST + 1);
        assert_eq!(names(FEWEST + 2, DirectoryTimes::Kernel), FEWEST + 2);
        assert_eq!(names(FEWEST + 3, DirectoryTimes::Kernel), FEWEST + 2, "they are cached");
    }

    proptest! {
        #[test]
        fn names_sort_as_keys(names in proptest::collection::btree_map("[ab/!é]{0,12}", any::<bool>(), 0..40)) {
            let mut sorted = SortedNames::default();
            for (name, is_dir) in &names {
                let name = format!("same{}", name.replace('/', "0"));
                sorted.push(&name, if *is_dir { EntryKind::Dir } else { EntryKind::File });
            }
            sorted.sort();
            let texts: Vec<&str> = (0..sorted.len()).map(|at| sorted.get(at).text).collect();
            prop_assert!(texts.is_sorted(), "{texts:?}");
            prop_assert_eq!(texts.len(), names.len());
            for (at, text) in texts.iter().enumerate() {
                prop_assert!(sorted.first_from(text) <= at);
                prop_assert!(texts[..sorted.first_from(text)].iter().all(|before| before < text));
            }
        }
    }

    #[test]
    fn names_may_have_more_than_4_gib_of_text() {
        for start in [0, 1 << 32, (1 << 47) - 1] {
            for (len, is_known) in [(1, false), (u16::MAX, true)] {
                let name = PackedName::new(start, len, is_known);
                assert_eq!((name.start(), name.len(), name.is_known()), (start, usize::from(len), is_known));
            }
        }
        assert_eq!(size_of::<PackedName>(), 16);
    }

    fn of_files(all: &[String]) -> SortedNames {
        SortedNames::of_sorted(all.iter().map(|text| ListedName { text, is_known: true }))
    }

    /// Returns this many sorted names of 100 bytes each.
    fn long_names(count: usize) -> SortedNames {
        let all: Vec<String> = (0..count).map(|number| format!("{number:0100}")).collect();
        of_files(&all)
    }

    /// Returns the state of another directory that has not changed for a while.
    fn settled(inode: u64) -> FileStat {
        let mut stat = stat(tempfile::tempfile().unwrap()).unwrap();
        (stat.inode, stat.modified_ns, stat.changed_ns) = (inode, 1, 1);
        stat
    }

    #[test]
    fn names_that_are_too_many_displace_no_others() {
        let (cache, now) = (NameCache::default(), CoarseInstant::now());
        cache.keep(&settled(1), now, Some(&Arc::new(long_names(FEWEST))));
        let many = Arc::new(long_names(MOST_BYTES / 100));
        cache.keep(&settled(2), now, Some(&many));
        assert!(cache.recall(&settled(1)).is_some());
        assert!(cache.recall(&settled(2)).is_none());
    }

    #[test]
    fn the_names_of_large_directories_do_not_displace_names_that_were_just_used() {
        let _other = CacheMemory::of_process().keep(&CacheOwner::default(), Arc::new(()), 1);
        let (cache, now, names) = (NameCache::default(), CoarseInstant::now(), long_names(FEWEST));
        let (most, names) = (STORE_BYTES / names.bytes(), Arc::new(names));
        for inode in 0..10 {
            cache.keep(&settled(inode), now, Some(&names));
            assert_eq!(cache.need_window(&settled(inode), &names), inode >= most as u64);
        }
        let kept: Vec<u64> = (0..10).filter(|inode| cache.recall(&settled(*inode)).is_some()).collect();
        assert_eq!(kept, Vec::from_iter(0..most as u64));
        let few = Arc::new(long_names(1));
        cache.keep(&settled(10), now, Some(&few));
        assert!(cache.recall(&settled(10)).is_some(), "few names always have room");
    }

    #[test]
    fn directories_that_are_used_stay_cached() {
        let (cache, now, names) = (NameCache::default(), CoarseInstant::now(), Arc::new(long_names(1)));
        for inode in 0..3 * MOST_DIRS as u64 {
            cache.keep(&settled(inode), now, Some(&names));
            assert!(cache.recall(&settled(0)).is_some(), "after {inode} others");
        }
        assert!(cache.recall(&settled(1)).is_none());
        cache.forget((settled(0).device, 0));
        assert!(cache.recall(&settled(0)).is_none());
    }

    #[test]
    fn windows_cover_the_names_of_a_large_directory() {
        let (cache, names) = (NameCache::default(), long_names(MOST_BYTES / 100));
        let (before, start) = (settled(1), names.get(100).text.to_owned());
        assert!(!cache.need_window(&before, &long_names(10)), "few names need no window");
        cache.keep_window(&before, &names, &start);
        let window = cache.recall_window(&before, &start).unwrap();
        assert!(window.bytes() <= 2 * WINDOW_BYTES);
        let last = window.cut_after().unwrap().to_owned();
        assert!((0..window.len()).all(|at| window.get(at).text == names.get(100 + at).text));
        assert!(cache.recall_window(&before, &last).is_some());
        assert!(cache.recall_window(&before, &format!("{last}\0")).is_none());
        assert!(cache.recall_window(&before, names.get(99).text).is_none());
        let changed = FileStat { modified_ns: 2, ..before };
        assert!(cache.recall_window(&changed, &start).is_none());
        cache.keep_window(&before, &names, &last);
        assert!(cache.recall_window(&before, "9").is_none());
        let end = names.get(names.len() - 10).text;
        cache.keep_window(&before, &names, end);
        assert!(cache.recall_window(&before, "9").is_some_and(|window| window.cut_after().is_none()));
    }
}
