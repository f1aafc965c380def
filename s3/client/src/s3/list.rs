//! Listings: any number of entries made of the service's pages of at most 1,000.

use fordway_store::{Bucket, BucketInfo, Entry, ListQuery, Listing, MAX_KEYS, Result};
use fordway_wire::s3_xml::{self, ListBucketPage};

use super::pages::{Pages, next_of};
use super::request::Call;
use super::session::Session;

/// Lists a bucket. Cost: a request per 1,000 entries.
pub(super) fn list(session: &Session, bucket: &Bucket, query: &ListQuery) -> Result<Listing> {
    let mut found = Merged { query, entries: Vec::new() };
    let (mut token, mut pages) = (None, Pages::default());
    loop {
        let wanted = query.max_keys.saturating_sub(found.entries.len()).clamp(1, MAX_KEYS);
        let call = page_call(bucket, query, token.as_deref(), wanted);
        let document = session.run_for_document(&call)?;
        let mut page = s3_xml::list_bucket(&document).map_err(|error| call.named(error))?;
        let next = next_of(page.truncated, page.next_token.take()).map_err(|error| call.named(error))?;
        let before = found.entries.len();
        found.add(page);
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
) -> Call<'a> {
    let mut call = Call::on_bucket("GET", "list", bucket)
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

/// Entries of the pages so far. Whatever a server makes of `start-after`, they rise strictly and lie
/// behind the start, so that pages join without a double.
struct Merged<'q> {
    query: &'q ListQuery,
    entries: Vec<Entry>,
}

impl Merged<'_> {
    fn add(&mut self, page: ListBucketPage) {
        let objects = page.objects.into_iter().map(Entry::Object);
        let prefixes = page.common_prefixes.into_iter().map(Entry::CommonPrefix);
        let mut arrived: Vec<Entry> =
            objects.chain(prefixes).filter(|entry| self.is_behind_start(entry)).collect();
        arrived.sort_by(|a, b| a.name().cmp(b.name()));
        for entry in arrived {
            if self.entries.last().is_none_or(|last| last.name() < entry.name()) {
                self.entries.push(entry);
            }
        }
    }

    /// A start *within* a common prefix leaves that prefix in the listing: it stands for the keys
    /// below it that come later.
    fn is_behind_start(&self, entry: &Entry) -> bool {
        let Some(start) = &self.query.start_after else { return true };
        match entry {
            Entry::Object(object) => self.query.is_after_start(&object.key),
            Entry::CommonPrefix(prefix) => prefix > start || (start.starts_with(prefix) && start != prefix),
        }
    }

    fn finish(mut self, has_more: bool) -> Listing {
        let overflows = self.entries.len() > self.query.max_keys;
        self.entries.truncate(self.query.max_keys);
        let last = self.entries.last().map(|entry| entry.name().to_owned());
        Listing { next: last.filter(|_| has_more || overflows), entries: self.entries }
    }
}

/// All buckets whose names we can address.
pub(super) fn list_buckets(session: &Session) -> Result<Vec<BucketInfo>> {
    let (mut buckets, mut token, mut pages) = (Vec::new(), None::<String>, Pages::default());
    loop {
        let mut call = Call::on_service("GET", "list buckets");
        if let Some(token) = token.take() {
            call = call.query("continuation-token", token);
        }
        let document = session.run_for_document(&call)?;
        let (page, next) = s3_xml::list_all_my_buckets(&document).map_err(|error| call.named(error))?;
        if next.is_some() {
            pages.go_on(&next, page.len()).map_err(|error| call.named(error))?;
        }
        for bucket in page {
            match Bucket::new(bucket.name) {
                Ok(name) => buckets.push(BucketInfo { name, created: bucket.created }),
                Err(error) => tracing::warn!(%error, "a bucket is left out of the list"),
            }
        }
        token = next;
        if token.is_none() {
            buckets.sort_by(|a, b| a.name.cmp(&b.name));
            return Ok(buckets);
        }
    }
}
