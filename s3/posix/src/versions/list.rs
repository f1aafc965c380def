//! Which versions there are.

use std::collections::BTreeSet;

use fordway_store::{
    Bucket, Checksum, ErrorKind, Key, ListQuery, Result, Step, VersionCollector, VersionId, VersionListing,
    VersionSummary, VersionsQuery,
};
use fordway_sys::{EntryKind, Errno, Mode, OFlags, read_dir};

use super::{Archived, archived_place};
use crate::Inner;
use crate::errors::from_errno;
use crate::layout::{decode, join, versions_dir};
use crate::read::{Opened, system_time};
use crate::stage::{MAX_RACES, give_way};

impl Inner {
    pub(crate) fn list_versions(&self, bucket: &Bucket, query: &VersionsQuery) -> Result<VersionListing> {
        self.require_bucket(bucket)?;
        let mut page = VersionCollector::new(query);
        let mut archived = self.versioned_keys(bucket, &query.prefix)?;
        if let (Some(key), Some(_)) = (&query.key_after, &query.version_after) {
            // The rest of the versions of the key that the page before ended in.
            if self.offer_key(&mut page, bucket, key)? == Step::Full {
                return Ok(page.finish());
            }
            archived.retain(|other| other > key);
        }
        let mut archived = archived.into_iter().peekable();
        let mut keys = query.keys();
        keys.max_keys = fordway_store::MAX_KEYS;
        loop {
            let current = self.list(bucket, &keys)?;
            for entry in &current.entries {
                while let Some(key) = archived.next_if(|key| key.as_str() < entry.name()) {
                    if self.offer_key(&mut page, bucket, &key)? == Step::Full {
                        return Ok(page.finish());
                    }
                }
                archived.next_if(|key| key == entry.name());
                if self.offer_key(&mut page, bucket, entry.name())? == Step::Full {
                    return Ok(page.finish());
                }
            }
            match current.next {
                Some(next) => keys = ListQuery { start_after: Some(next), ..keys },
                None => break,
            }
        }
        for key in archived {
            if self.offer_key(&mut page, bucket, &key)? == Step::Full {
                break;
            }
        }
        Ok(page.finish())
    }

    fn offer_key(&self, page: &mut VersionCollector, bucket: &Bucket, key: &str) -> Result<Step> {
        page.offer(key, || match self.versions_to_show(bucket, key) {
            // Of a key that is closed to the caller nothing is shown, and the others are.
            Err(error) if error.kind() == ErrorKind::AccessDenied => Ok(Vec::new()),
            versions => versions,
        })
    }

    /// All versions of a key, from the newest to the oldest.
    fn versions_to_show(&self, bucket: &Bucket, key: &str) -> Result<Vec<VersionSummary>> {
        let key = Key::new(key)?;
        let (mut latest, mut versions) = (self.find_object(bucket, &key)?, Vec::new());
        for race in 0..MAX_RACES {
            give_way(race);
            let version = latest.as_ref().map(Opened::version);
            versions = self.versions_with(bucket, &key, latest)?;
            // What became the latest meanwhile, or ceased to be it, may have been missed.
            latest = self.find_object(bucket, &key)?;
            if latest.as_ref().map(Opened::version) == version {
                break;
            }
        }
        if let Some(newest) = versions.first_mut() {
            newest.is_latest = true;
        }
        Ok(versions)
    }

    fn versions_with(
        &self,
        bucket: &Bucket,
        key: &Key,
        latest: Option<Opened>,
    ) -> Result<Vec<VersionSummary>> {
        let mut shown: BTreeSet<VersionId> = BTreeSet::new();
        let mut versions = Vec::new();
        if let Some(opened) = latest {
            let version = opened.version();
            shown.insert(version.clone());
            versions.push(summary(key, version, opened));
        }
        for archived in self.archived(bucket, key)? {
            if !shown.insert(archived.version.clone()) {
                continue;
            }
            versions.extend(self.describe_archived(bucket, key, &archived)?);
        }
        Ok(versions)
    }

    /// `None` if it is gone by now.
    fn describe_archived(
        &self,
        bucket: &Bucket,
        key: &Key,
        found: &Archived,
    ) -> Result<Option<VersionSummary>> {
        let version = found.version.clone();
        if found.is_marker {
            let modified = system_time(i64::try_from(found.order).unwrap_or(i64::MAX));
            let key = key.as_str().to_owned();
            return Ok(Some(VersionSummary {
                key,
                version,
                is_latest: false,
                modified,
                content: None,
                checksum: None,
            }));
        }
        let opened = match self.open_file(bucket, &archived_place(bucket, key, found)) {
            // Anybody may put a closed file there: it hides no other version.
            Err(error) if error.kind() == ErrorKind::AccessDenied => None,
            opened => opened?,
        };
        Ok(opened.map(|opened| summary(key, version, opened)))
    }

    /// Keys with `prefix` that have old versions or delete markers, sorted.
    fn versioned_keys(&self, bucket: &Bucket, prefix: &str) -> Result<Vec<String>> {
        let top = versions_dir(bucket);
        let (mut keys, mut dirs) = (Vec::new(), vec![String::new()]);
        while let Some(below) = dirs.pop() {
            let path = if below.is_empty() { top.clone() } else { join(&top, &below) };
            let dir = match self.root.open_beneath(&path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()) {
                Ok(dir) => dir,
                Err(Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG) => continue,
                // What one user has closed, or led elsewhere, hides nothing of another's.
                Err(Errno::ACCESS | Errno::LOOP) if !below.is_empty() => continue,
                Err(errno) => return Err(from_errno(errno, "opening the versions")),
            };
            let read = read_dir(dir, |name, kind| {
                let Ok(name) = std::str::from_utf8(name) else { return };
                let below = if below.is_empty() { name.to_owned() } else { join(&below, name) };
                match name.ends_with('%') {
                    true => dirs.push(below),
                    false if kind == EntryKind::File => {}
                    false => keys.extend(decode(&below).map(|key| key.as_str().to_owned())),
                }
            });
            read.map_err(|errno| from_errno(errno, "reading the versions"))?;
        }
        keys.retain(|key| key.starts_with(prefix));
        keys.sort_unstable();
        Ok(keys)
    }

    /// Whether the bucket has old versions or delete markers.
    pub(crate) fn has_versions(&self, bucket: &Bucket) -> Result<bool> {
        for key in self.versioned_keys(bucket, "")? {
            if !self.archived(bucket, &Key::new(key)?)?.is_empty() {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

fn summary(key: &Key, version: VersionId, opened: Opened) -> VersionSummary {
    let info = opened.into_info().1;
    VersionSummary {
        key: key.as_str().to_owned(),
        version,
        is_latest: false,
        modified: info.modified,
        checksum: info.checksum.as_ref().map(Checksum::plan),
        content: Some((info.size, info.etag)),
    }
}
