//! Uploads in progress, listed; keys may be rolled up as in a listing of objects.

use fordway_store::{Bucket, Store, UploadSummary, UploadsQuery};
use s3s::dto::{CommonPrefix, ListMultipartUploadsInput, ListMultipartUploadsOutput, MultipartUpload};

use super::convert::{count, page_size, timestamp};
use super::error::Outcome;
use super::list::Encoding;

/// The most entries in one answer (S3's limit).
const PAGE_MAX: usize = 1000;

pub(super) fn list(
    store: &dyn Store,
    input: ListMultipartUploadsInput,
) -> Outcome<ListMultipartUploadsOutput> {
    let bucket = Bucket::new(input.bucket.as_str())?;
    let query = UploadsQuery {
        prefix: input.prefix.clone().unwrap_or_default(),
        key_after: input.key_marker.clone().filter(|marker| !marker.is_empty()),
        upload_after: input.upload_id_marker.clone().filter(|marker| !marker.is_empty()),
        max_uploads: page_size(input.max_uploads, PAGE_MAX)?,
    };
    let delimiter = input.delimiter.as_deref().filter(|delimiter| !delimiter.is_empty());
    let page = Page::read(store, &bucket, &query, delimiter)?;
    let encoding = Encoding::new(input.encoding_type.as_ref())?;
    let last = page.last.filter(|_| page.is_truncated);
    let prefix = |prefix: &String| CommonPrefix { prefix: Some(encoding.apply(prefix)) };
    Ok(ListMultipartUploadsOutput {
        bucket: Some(input.bucket),
        prefix: Some(encoding.apply(&query.prefix)),
        delimiter: delimiter.map(|delimiter| encoding.apply(delimiter)),
        key_marker: input.key_marker.as_deref().map(|marker| encoding.apply(marker)),
        upload_id_marker: input.upload_id_marker,
        next_key_marker: last.as_ref().map(|(key, _)| encoding.apply(key)),
        next_upload_id_marker: last.and_then(|(_, upload)| upload),
        max_uploads: count(query.max_uploads),
        is_truncated: Some(page.is_truncated),
        uploads: Some(page.uploads.into_iter().map(|upload| listed(upload, encoding)).collect()),
        common_prefixes: Some(page.prefixes.iter().map(prefix).collect()),
        encoding_type: input.encoding_type,
        request_charged: None,
    })
}

fn listed(upload: UploadSummary, encoding: Encoding) -> MultipartUpload {
    MultipartUpload {
        key: Some(encoding.apply(&upload.key)),
        upload_id: Some(upload.upload.as_str().to_owned()),
        initiated: timestamp(upload.started),
        ..Default::default()
    }
}

#[derive(Default)]
struct Page {
    uploads: Vec<UploadSummary>,
    prefixes: Vec<String>,
    /// The last entry: a key with its upload, or a prefix.
    last: Option<(String, Option<String>)>,
    is_truncated: bool,
}

impl Page {
    fn read(
        store: &dyn Store,
        bucket: &Bucket,
        query: &UploadsQuery,
        delimiter: Option<&str>,
    ) -> fordway_store::Result<Self> {
        let mut page = Page::default();
        let mut next = UploadsQuery { max_uploads: PAGE_MAX, ..query.clone() };
        loop {
            let listing = store.list_uploads(bucket, &next)?;
            let last = listing.uploads.last().map(|upload| (upload.key.clone(), upload.upload.clone()));
            for upload in listing.uploads {
                if !page.add(upload, query, delimiter) {
                    page.is_truncated = query.max_uploads > 0;
                    return Ok(page);
                }
            }
            let Some((key, upload)) = last.filter(|_| listing.truncated) else { return Ok(page) };
            next.key_after = Some(key);
            next.upload_after = Some(upload.as_str().to_owned());
        }
    }

    /// Answers `false` if the page had no room for it.
    fn add(&mut self, upload: UploadSummary, query: &UploadsQuery, delimiter: Option<&str>) -> bool {
        let prefix = delimiter.and_then(|delimiter| common_prefix(&upload.key, &query.prefix, delimiter));
        let is_shown = |prefix: &str| {
            self.prefixes.last().is_some_and(|last| last == prefix)
                || query.key_after.as_deref() == Some(prefix)
        };
        if prefix.is_some_and(is_shown) {
            return true;
        }
        if self.uploads.len() + self.prefixes.len() >= query.max_uploads {
            return false;
        }
        match prefix.map(str::to_owned) {
            Some(prefix) => {
                self.last = Some((prefix.clone(), None));
                self.prefixes.push(prefix);
            }
            None => {
                self.last = Some((upload.key.clone(), Some(upload.upload.as_str().to_owned())));
                self.uploads.push(upload);
            }
        }
        true
    }
}

/// The part of `key` that ends with the first delimiter after `prefix`.
fn common_prefix<'k>(key: &'k str, prefix: &str, delimiter: &str) -> Option<&'k str> {
    let rest = key.strip_prefix(prefix)?;
    let end = rest.find(delimiter)? + delimiter.len();
    Some(&key[..prefix.len() + end])
}
