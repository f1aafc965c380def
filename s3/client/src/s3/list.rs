//! Listings of buckets, objects and versions, and the versioning state of a bucket. A listing of any length is
//! assembled from the service's pages of at most 1,000 entries each. The listing fails if the service repeats a page,
//! sends too many pages without an entry, or sends names out of order. If such a listing succeeded, a caller that
//! compares two listings (`sync --delete`) could delete objects that still exist.

use std::collections::{BTreeMap, HashSet};
use std::hash::{BuildHasher, Hash, RandomState};

use fordway_store::{
    Bucket, BucketInfo, Error, ErrorKind, ListEntry, ListQuery, MAX_KEYS, ObjectListing, Result, VersionId,
    VersionListing, VersioningState, VersionsQuery,
};
use fordway_wire::s3_xml;
use fordway_wire::s3_xml::ListObjectsPage;

use crate::s3::request::S3Call;
use crate::s3::session::S3Session;

/// Lists a bucket. Cost: one request per 1,000 entries.
pub(super) fn list(session: &S3Session, bucket: &Bucket, query: &ListQuery) -> Result<ObjectListing> {
    let mut found = MergedEntries { query, entries: Vec::new() };
    let (mut token, mut pages) = (None, ListingLoopDetector::default());
    let until = session.until();
    loop {
        let wanted = query.max_keys.saturating_sub(found.entries.len()).clamp(1, MAX_KEYS);
        let call = page_call(bucket, query, token.as_deref(), wanted);
        let document = session.run_for_page(&call, until)?;
        let mut page = s3_xml::list_bucket(&document).map_err(|error| call.named(error))?;
        let next = next_of(page.truncated, page.next_token.take()).map_err(|error| call.named(error))?;
        let before = found.entries.len();
        found.add(page).map_err(|error| call.named(error))?;
        if next.is_none() || found.entries.len() >= query.max_keys {
            return Ok(found.finish(next.is_some()));
        }
        pages.go_on(&next, found.entries.len() - before).map_err(|error| call.named(error))?;
        token = next;
    }
}

fn page_call<'a>(
    bucket: &'a Bucket,
    query: &'a ListQuery,
    token: Option<&'a str>,
    wanted: usize,
) -> S3Call<'a> {
    let mut call = S3Call::on_bucket("GET", "list", bucket)
        .query("list-type", "2")
        .query("encoding-type", "url")
        .query("max-keys", wanted.to_string())
        .query("prefix", query.prefix.as_str());
    if let Some(delimiter) = query.delimiter.as_deref().filter(|delimiter| !delimiter.is_empty()) {
        call = call.query("delimiter", delimiter);
    }
    if let Some(token) = token {
        return call.query("continuation-token", token);
    }
    match &query.start_after {
        Some(start) => call.query("start-after", start.as_str()),
        None => call,
    }
}

/// The merged entries of the pages received so far. Only entries after the start and in strictly ascending order are
/// accepted, so that no entry appears twice. The check is needed because servers interpret `start-after` in different
/// ways.
struct MergedEntries<'q> {
    query: &'q ListQuery,
    entries: Vec<ListEntry>,
}

impl MergedEntries<'_> {
    /// Adds the entries of the next page. Entries that were already on an earlier page are skipped. Errors:
    /// `BadResponse` for a name without the prefix, or for a name that belongs on an earlier page.
    fn add(&mut self, page: ListObjectsPage) -> Result<()> {
        let objects = page.objects.into_iter().map(ListEntry::Object);
        let prefixes = page.common_prefixes.into_iter().map(ListEntry::CommonPrefix);
        let mut arrived: Vec<ListEntry> =
            objects.chain(prefixes).filter(|entry| self.is_behind_start(entry)).collect();
        arrived.sort_by(|a, b| a.name().cmp(b.name()));
        for entry in arrived {
            let name = entry.name();
            if !name.starts_with(&self.query.prefix) {
                return Err(bad(&format!("the listing contains {name:?}, which does not have the prefix")));
            }
            if self.entries.last().is_none_or(|last| last.name() < name) {
                self.entries.push(entry);
            } else if self.entries.binary_search_by(|known| known.name().cmp(name)).is_err() {
                return Err(bad(&format!("the listing is not in order: {name:?} comes too late")));
            }
        }
        Ok(())
    }

    /// Returns whether `entry` is after the start. If the start is *within* a common prefix, the prefix remains in the
    /// listing, because it represents the later keys below it.
    fn is_behind_start(&self, entry: &ListEntry) -> bool {
        let Some(start) = &self.query.start_after else { return true };
        match entry {
            ListEntry::Object(object) => self.query.is_after_start(&object.key),
            ListEntry::CommonPrefix(prefix) => {
                prefix > start || (start.starts_with(prefix) && start != prefix)
            }
        }
    }

    fn finish(mut self, has_more: bool) -> ObjectListing {
        let overflows = self.entries.len() > self.query.max_keys;
        self.entries.truncate(self.query.max_keys);
        let last = self.entries.last().map(|entry| entry.name().to_owned());
        ObjectListing { next: last.filter(|_| has_more || overflows), entries: self.entries }
    }
}

/// Lists all buckets, except those whose names [`Bucket`] does not accept.
pub(super) fn list_buckets(session: &S3Session) -> Result<Vec<BucketInfo>> {
    let (mut token, mut pages) = (None::<String>, ListingLoopDetector::default());
    let until = session.until();
    // A server may name a bucket more than once.
    let mut buckets = BTreeMap::new();
    loop {
        let mut call = S3Call::on_service("GET", "list buckets");
        if let Some(token) = token.take() {
            call = call.query("continuation-token", token);
        }
        let document = session.run_for_page(&call, until)?;
        let (page, next) = s3_xml::list_all_my_buckets(&document).map_err(|error| call.named(error))?;
        let before = buckets.len();
        for bucket in page {
            match Bucket::new(bucket.name) {
                Ok(name) => {
                    buckets.insert(name, bucket.created);
                }
                Err(error) => tracing::warn!(%error, "a bucket is omitted from the list"),
            }
        }
        if next.is_some() {
            pages.go_on(&next, buckets.len() - before).map_err(|error| call.named(error))?;
        }
        token = next;
        if token.is_none() {
            return Ok(buckets.into_iter().map(|(name, created)| BucketInfo { name, created }).collect());
        }
    }
}

pub(super) fn versioning(session: &S3Session, bucket: &Bucket) -> Result<VersioningState> {
    let call = S3Call::on_bucket("GET", "get versioning", bucket).query("versioning", "");
    let document = session.run_for_document(&call)?;
    s3_xml::bucket_versioning(&document).map_err(|error| call.named(error))
}

pub(super) fn set_versioning(
    session: &S3Session,
    bucket: &Bucket,
    versioning: VersioningState,
) -> Result<()> {
    let document = s3_xml::versioning_configuration(versioning);
    let call = S3Call::on_bucket("PUT", "set versioning", bucket).query("versioning", "").document(&document);
    versioning.check_settable().map_err(|error| call.named(error))?;
    session.run_for_status(&call)
}

/// Lists the versions of a bucket's objects. Cost: one request per 1,000 entries.
pub(super) fn list_versions(
    session: &S3Session,
    bucket: &Bucket,
    query: &VersionsQuery,
) -> Result<VersionListing> {
    let mut found = VersionListing {
        next: query.key_after.clone().map(|key| (key, query.version_after.clone())),
        ..Default::default()
    };
    let mut pages = ListingLoopDetector::starting_at(&found.next);
    let until = session.until();
    loop {
        let missing = query.max_keys.saturating_sub(found.versions.len() + found.prefixes.len());
        let call = versions_call(bucket, query, found.next.take(), missing.min(MAX_KEYS));
        let document = session.run_for_page(&call, until)?;
        let mut page = s3_xml::list_versions(&document).map_err(|error| call.named(error))?;
        let count = page.versions.len() + page.prefixes.len();
        found.versions.append(&mut page.versions);
        found.prefixes.append(&mut page.prefixes);
        found.next = page.next;
        if found.next.is_some() {
            pages.go_on(&found.next, count).map_err(|error| call.named(error))?;
        }
        if found.next.is_none() || found.versions.len() + found.prefixes.len() >= query.max_keys {
            return Ok(found);
        }
    }
}

fn versions_call<'a>(
    bucket: &'a Bucket,
    query: &'a VersionsQuery,
    after: Option<(String, Option<VersionId>)>,
    wanted: usize,
) -> S3Call<'a> {
    let mut call = S3Call::on_bucket("GET", "list versions", bucket)
        .query("versions", "")
        .query("encoding-type", "url")
        .query("max-keys", wanted.to_string())
        .query("prefix", query.prefix.as_str());
    if let Some(delimiter) = query.delimiter.as_deref().filter(|delimiter| !delimiter.is_empty()) {
        call = call.query("delimiter", delimiter);
    }
    let Some((key, version)) = after else { return call };
    call = call.query("key-marker", key);
    match version {
        Some(version) => call.query("version-id-marker", version.as_str().to_owned()),
        None => call,
    }
}

/// The maximum number of consecutive pages without an entry. Services send empty pages after objects have been deleted.
const EMPTY_PAGES_MAX: usize = 10_000;

/// The start positions of the pages that a listing has requested so far. A repeated position reveals a listing that
/// would never end.
#[derive(Default)]
pub(super) struct ListingLoopDetector {
    hasher: RandomState,
    seen: HashSet<u64>,
    empty: usize,
}

impl ListingLoopDetector {
    /// Creates a detector for a listing whose first page begins at `start`.
    pub(super) fn starting_at(start: &impl Hash) -> Self {
        let mut pages = Self::default();
        pages.seen.insert(pages.hasher.hash_one(start));
        pages
    }

    /// Records a page that had `new_entries` new entries and named `next` as the start of the next page. Errors:
    /// `BadResponse` if an earlier page named the same `next`, or after more than [`EMPTY_PAGES_MAX`] pages without an
    /// entry.
    pub(super) fn go_on(&mut self, next: &impl Hash, new_entries: usize) -> Result<()> {
        self.empty = if new_entries > 0 { 0 } else { self.empty + 1 };
        if !self.seen.insert(self.hasher.hash_one(next)) {
            return Err(bad("the listing returns to a page that the service has already sent"));
        }
        if self.empty > EMPTY_PAGES_MAX {
            let detail =
                format!("{EMPTY_PAGES_MAX} pages of the listing had no entries, and the listing continues");
            return Err(bad(&detail));
        }
        Ok(())
    }
}

/// Returns the start of the next page, or `None` if the listing is complete. Errors: `BadResponse` if the listing is
/// truncated and the service does not send the start of the next page.
pub(super) fn next_of<T>(is_truncated: bool, next: Option<T>) -> Result<Option<T>> {
    match (is_truncated, next) {
        (true, None) => Err(bad("the service says that the listing continues, but not where")),
        (is_truncated, next) => Ok(next.filter(|_| is_truncated)),
    }
}

fn bad(detail: &str) -> Error {
    Error::new(ErrorKind::BadResponse, format!("{detail}; report this to the service's operator"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_lead_on_or_end_in_an_error() {
        let mut pages = ListingLoopDetector::default();
        for page in 0..3 * EMPTY_PAGES_MAX {
            pages.go_on(&page, page % 2).unwrap();
        }
        assert_eq!(pages.go_on(&7_usize, 1).unwrap_err().kind(), ErrorKind::BadResponse);
        let mut pages = ListingLoopDetector::default();
        let ended = (0..=EMPTY_PAGES_MAX).find_map(|page| pages.go_on(&page, 0).err());
        assert!(ended.unwrap().to_string().contains("had no entries"));
        assert_eq!(next_of(true, Some(1)).unwrap(), Some(1));
        assert_eq!(next_of(false, Some(1)).unwrap(), None);
        assert!(next_of(true, None::<u8>).is_err() && next_of(false, None::<u8>).unwrap().is_none());
    }
}
