//! Listings: directories read, sorted and walked in the byte order of keys.

use std::fs::File;
use std::iter::Peekable;

use fordway_store::{
    Bucket, Collector, ErrorKind, Key, ListQuery, Listing, MAX_KEY_BYTES, ObjectInfo, ObjectSummary, Result,
    Step,
};
use fordway_sys::{EntryKind, Errno, Mode, OFlags, open_in, read_dir, stat, stat_in};

use crate::Inner;
use crate::errors::from_errno;
use crate::layout::{PRIVATE_DIR, Place, decode, join, odd, odd_dir, plain};
use crate::read::info_of;
use crate::record::Record;

/// Levels of directories that a key of 1,024 bytes can have.
const MAX_DEPTH: usize = 512;

/// One name of a directory, with a `/` behind it if it is a directory: so that names sort as keys do.
struct Name {
    sorted: String,
    is_dir: bool,
    is_link: bool,
}

/// Whether the walk goes on.
enum Flow {
    On,
    /// Go on behind all keys with this prefix.
    Behind(String),
    Stop,
}

struct Walk<'w> {
    inner: &'w Inner,
    bucket: &'w Bucket,
    query: &'w ListQuery,
    page: Collector<'w>,
    odd: Peekable<std::vec::IntoIter<Key>>,
    /// Device and inode of the directories above, so that a link to one of them is no endless tree.
    above: Vec<(u64, u64)>,
}

impl Inner {
    pub(crate) fn list(&self, bucket: &Bucket, query: &ListQuery) -> Result<Listing> {
        self.open_dir(bucket.as_str()).map_err(|errno| match errno {
            Errno::NOENT | Errno::NOTDIR => ErrorKind::NoSuchBucket.into(),
            errno => from_errno(errno, "opening the bucket"),
        })?;
        let odd = self.odd_keys(bucket, &query.prefix)?.into_iter().peekable();
        let mut walk =
            Walk { inner: self, bucket, query, page: Collector::new(query), odd, above: Vec::new() };
        // The longest directory that all keys with the prefix share.
        let start = query.prefix.rfind('/').map_or("", |at| &query.prefix[..=at]);
        let is_path = Key::new(format!("{start}x")).is_ok_and(|key| plain(bucket, &key).is_some());
        let flow = if is_path { walk.directory(start)? } else { Flow::On };
        if !matches!(flow, Flow::Stop) {
            walk.rest_of_odd()?;
        }
        Ok(walk.page.finish())
    }

    /// Keys with `prefix` that lie apart from their plain paths, sorted.
    fn odd_keys(&self, bucket: &Bucket, prefix: &str) -> Result<Vec<Key>> {
        let mut keys = Vec::new();
        let mut dirs = vec![String::new()];
        let top = odd_dir(bucket);
        while let Some(below) = dirs.pop() {
            let path = if below.is_empty() { top.clone() } else { join(&top, &below) };
            self.read_names(&path, |name, kind| {
                let Ok(name) = std::str::from_utf8(name) else { return };
                let below = if below.is_empty() { name.to_owned() } else { join(&below, name) };
                match kind {
                    EntryKind::Dir => dirs.push(below),
                    _ => keys.extend(decode(&below).filter(|key| key.as_str().starts_with(prefix))),
                }
            })?;
        }
        keys.sort_unstable();
        Ok(keys)
    }

    /// Reads the directory at `path`; one that is not there has no names.
    fn read_names(&self, path: &str, visit: impl FnMut(&[u8], EntryKind)) -> Result<Option<File>> {
        let dir = match self.root.open_beneath(path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()) {
            Ok(dir) => dir,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG) => return Ok(None),
            Err(errno) => return Err(from_errno(errno, "opening a directory")),
        };
        read_dir(&dir, visit).map_err(|errno| from_errno(errno, "reading a directory"))?;
        Ok(Some(dir))
    }

    /// An object as a listing shows it, or `None` if it is gone or no file.
    fn summary(&self, dir: &File, name: &str, place: Place, key: &str) -> Result<Option<ObjectSummary>> {
        if let Ok(Some(info)) = self.describe_in(dir, name) {
            return Ok(Some(summary_of(key, info)));
        }
        match (self.summary_by_open(&place, key), stat_in(dir, name)) {
            // What may not be opened is there all the same; one file must not hide the others.
            (Err(_), Ok(stat)) if stat.is_file => {
                Ok(Some(summary_of(key, info_of(&stat, Record::default()))))
            }
            (summary, _) => summary,
        }
    }

    /// As [`Inner::summary`], of a file that only an open finds: behind a link, or an odd key.
    fn summary_by_open(&self, place: &Place, key: &str) -> Result<Option<ObjectSummary>> {
        let Some(opened) = self.open_file(place)? else { return Ok(None) };
        Ok(Some(summary_of(key, opened.into_info().1)))
    }
}

fn summary_of(key: &str, info: ObjectInfo) -> ObjectSummary {
    ObjectSummary { key: key.to_owned(), size: info.size, etag: info.etag, modified: info.modified }
}

impl Walk<'_> {
    /// Offers the keys below the directory `at` (empty, or ending in `/`), in order.
    fn directory(&mut self, at: &str) -> Result<Flow> {
        let path =
            if at.is_empty() { self.bucket.as_str().to_owned() } else { join(self.bucket.as_str(), at) };
        let mut names = Vec::new();
        let Some(dir) = self.inner.read_names(&path, |name, kind| names.extend(self.name(at, name, kind)))?
        else {
            return Ok(Flow::On);
        };
        let id = stat(&dir).map(|stat| (stat.device, stat.inode)).unwrap_or_default();
        if self.above.contains(&id) || self.above.len() >= MAX_DEPTH {
            return Ok(Flow::On);
        }
        self.classify(&dir, &path, &mut names);
        names.sort_unstable_by(|a, b| a.sorted.cmp(&b.sorted));
        self.above.push(id);
        let flow = self.names(at, &dir, &names);
        self.above.pop();
        flow
    }

    fn names(&mut self, at: &str, dir: &File, names: &[Name]) -> Result<Flow> {
        let mut behind: Option<String> = None;
        for name in names {
            let key = format!("{at}{}", name.sorted);
            if behind.as_deref().is_some_and(|prefix| key.starts_with(prefix)) {
                continue;
            }
            let flow = match name.is_dir {
                true if self.is_wanted(&key) => self.directory(&key)?,
                true => Flow::On,
                false => self.file(dir, name, &key)?,
            };
            match flow {
                Flow::On => {}
                // Nothing else in this directory can be behind a prefix that the directory is in.
                Flow::Behind(prefix) if at.starts_with(&prefix) => return Ok(Flow::Behind(prefix)),
                Flow::Behind(prefix) => behind = Some(prefix),
                Flow::Stop => return Ok(Flow::Stop),
            }
        }
        Ok(Flow::On)
    }

    fn file(&mut self, dir: &File, name: &Name, key: &str) -> Result<Flow> {
        if key.len() > MAX_KEY_BYTES {
            return Ok(Flow::On);
        }
        while self.odd.peek().is_some_and(|odd| odd.as_str() < key) {
            if matches!(self.next_odd()?, Flow::Stop) {
                return Ok(Flow::Stop);
            }
        }
        // A plain file hides an odd one of the same key.
        self.odd.next_if(|odd| odd.as_str() == key);
        let inner = self.inner;
        let place = Place::of_path(join(self.bucket.as_str(), key));
        let describe = || match name.is_link {
            false => inner.summary(dir, &name.sorted, place, key),
            // A link that leads outside the root, or nowhere, is no object.
            true => Ok(inner.summary_by_open(&place, key).unwrap_or_default()),
        };
        self.page.offer(key, describe).map(Flow::from)
    }

    fn next_odd(&mut self) -> Result<Flow> {
        let Some(key) = self.odd.next() else { return Ok(Flow::On) };
        let place = odd(self.bucket, &key);
        let describe = || self.inner.summary_by_open(&place, key.as_str());
        self.page.offer(key.as_str(), describe).map(Flow::from)
    }

    fn rest_of_odd(&mut self) -> Result<()> {
        while self.odd.peek().is_some() {
            if matches!(self.next_odd()?, Flow::Stop) {
                break;
            }
        }
        Ok(())
    }

    /// A name that may lead to keys that are asked for.
    fn name(&self, at: &str, name: &[u8], kind: EntryKind) -> Option<Name> {
        let name = std::str::from_utf8(name).ok()?;
        if (at.is_empty() && name == PRIVATE_DIR) || kind == EntryKind::Other {
            return None;
        }
        let wanted = self.query.prefix.get(at.len()..).unwrap_or_default();
        if !(name.starts_with(wanted) || wanted.starts_with(name)) {
            return None;
        }
        let (is_dir, is_link) =
            (kind == EntryKind::Dir, kind == EntryKind::Link || kind == EntryKind::Unknown);
        Some(Name { sorted: if is_dir { format!("{name}/") } else { name.to_owned() }, is_dir, is_link })
    }

    /// Finds out what links (and entries of file systems that do not say) lead to.
    fn classify(&self, dir: &File, path: &str, names: &mut [Name]) {
        for name in names.iter_mut().filter(|name| name.is_link) {
            let plain = stat_in(dir, &name.sorted).is_ok_and(|stat| stat.is_file || stat.is_dir);
            let dir_flags = OFlags::PATH | OFlags::DIRECTORY;
            name.is_dir = match plain {
                true => open_in(dir, &name.sorted, dir_flags, Mode::empty()).is_ok(),
                false => self.inner.open_dir(&join(path, &name.sorted)).is_ok(),
            };
            name.is_link = !plain;
            if name.is_dir {
                name.sorted.push('/');
            }
        }
    }

    /// Whether keys below the directory `key` can be on this page.
    fn is_wanted(&self, key: &str) -> bool {
        let in_prefix = key.starts_with(&self.query.prefix) || self.query.prefix.starts_with(key);
        let after_start = match self.query.start_after.as_deref() {
            None => true,
            Some(start) if start.starts_with(key) => {
                start != key || self.query.is_after_start(&format!("{key}x"))
            }
            Some(_) => self.query.is_after_start(key),
        };
        in_prefix && after_start
    }
}

impl From<Step> for Flow {
    fn from(step: Step) -> Self {
        match step {
            Step::Next => Flow::On,
            Step::SkipPrefix(prefix) => Flow::Behind(prefix),
            Step::Full => Flow::Stop,
        }
    }
}
