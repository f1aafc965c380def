//! Pages of uploads in progress whose keys are grouped by a delimiter, as in a listing of objects.

use crate::{Bucket, MultipartUploadOperations, Result, UploadId, UploadSummary, UploadsQuery};

/// The maximum number of uploads that one request to the store returns (S3's limit).
const PAGE_MAX: usize = 1000;

/// One page of uploads and of the common prefixes of their keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UploadPage {
    /// The uploads whose keys have no common prefix, by key and then by identifier.
    pub uploads: Vec<UploadSummary>,
    /// The common prefixes, in byte order.
    pub prefixes: Vec<String>,
    /// The `key_after` and `upload_after` of the next page; `None` on the last page.
    pub next: Option<(String, UploadId)>,
}

impl UploadPage {
    /// Reads the page that `query` selects. Keys that contain `delimiter` after the prefix of the query count as one
    /// entry per common prefix. A page that `query` limits to 0 entries is the last page. Errors: `NoSuchBucket`.
    /// Cost: without a delimiter, one `list_uploads` of the page; with a delimiter, one `list_uploads` for each 1,000
    /// uploads from the start of the page to its end.
    pub fn read<S: MultipartUploadOperations + ?Sized>(
        store: &S,
        bucket: &Bucket,
        query: &UploadsQuery,
        delimiter: Option<&str>,
    ) -> Result<Self> {
        let mut page = UploadPage::default();
        let mut last = None;
        // With a delimiter, any number of uploads may become one entry.
        let max_uploads = if delimiter.is_none() { query.max_uploads.min(PAGE_MAX) } else { PAGE_MAX };
        let mut next = UploadsQuery { max_uploads, ..query.clone() };
        loop {
            let listing = store.list_uploads(bucket, &next)?;
            let end = listing.uploads.last().map(|upload| (upload.key.clone(), upload.upload.clone()));
            for upload in listing.uploads {
                match page.add(upload, query, delimiter) {
                    PageAddOutcome::Added(added) => last = Some(added),
                    PageAddOutcome::AlreadyListed => {}
                    PageAddOutcome::NoRoom => {
                        page.next = last;
                        return Ok(page);
                    }
                }
            }
            let Some((key, upload)) = end.filter(|_| listing.truncated) else { return Ok(page) };
            if delimiter.is_none() && page.uploads.len() >= query.max_uploads {
                page.next = last;
                return Ok(page);
            }
            next.key_after = Some(key);
            next.upload_after = Some(upload.as_str().to_owned());
        }
    }

    fn add(
        &mut self,
        upload: UploadSummary,
        query: &UploadsQuery,
        delimiter: Option<&str>,
    ) -> PageAddOutcome {
        let prefix = delimiter.and_then(|delimiter| common_prefix(&upload.key, &query.prefix, delimiter));
        let is_shown = |prefix: &str| {
            self.prefixes.last().is_some_and(|last| last == prefix)
                || query.key_after.as_deref() == Some(prefix)
        };
        if prefix.is_some_and(is_shown) {
            return PageAddOutcome::AlreadyListed;
        }
        if self.uploads.len() + self.prefixes.len() >= query.max_uploads {
            return PageAddOutcome::NoRoom;
        }
        // If the entry is a common prefix, AWS returns the ID of the first upload with this prefix.
        let id = upload.upload.clone();
        match prefix.map(str::to_owned) {
            Some(prefix) => {
                self.prefixes.push(prefix.clone());
                PageAddOutcome::Added((prefix, id))
            }
            None => {
                let key = upload.key.clone();
                self.uploads.push(upload);
                PageAddOutcome::Added((key, id))
            }
        }
    }
}

/// The result of adding an upload to a page.
enum PageAddOutcome {
    /// The upload, or the common prefix of its key, is the last entry of the page.
    Added((String, UploadId)),
    /// The common prefix of the upload's key is already on this page or on an earlier page.
    AlreadyListed,
    /// The page is full.
    NoRoom,
}

/// Returns `key` up to the end of the first delimiter after `prefix`; `None` if there is no such delimiter.
fn common_prefix<'k>(key: &'k str, prefix: &str, delimiter: &str) -> Option<&'k str> {
    let rest = key.strip_prefix(prefix)?;
    let end = rest.find(delimiter)? + delimiter.len();
    Some(&key[..prefix.len() + end])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ETagPolicy, Key, MemoryStore, Objects, PutOptions};

    #[test]
    fn pages_continue_after_uploads_and_after_common_prefixes() {
        let (store, bucket) = (MemoryStore::new(ETagPolicy::Fast), Bucket::new("bucket").unwrap());
        store.create_bucket(&bucket).unwrap();
        for key in ["a", "d/1", "d/2", "e", "e"] {
            store.create_upload(&bucket, &Key::new(key).unwrap(), &PutOptions::default()).unwrap();
        }
        let expected: [(_, &[&str]); 2] =
            [(Some("/"), &["a", "d/", "e", "e"]), (None, &["a", "d/1", "d/2", "e", "e"])];
        for (delimiter, expected) in expected {
            let mut query = UploadsQuery { max_uploads: 1, ..UploadsQuery::default() };
            let mut names = Vec::new();
            loop {
                let page = UploadPage::read(&store, &bucket, &query, delimiter).unwrap();
                assert_eq!(page.uploads.len() + page.prefixes.len(), 1);
                names.extend(page.uploads.into_iter().map(|upload| upload.key).chain(page.prefixes));
                let Some((key, upload)) = page.next else { break };
                (query.key_after, query.upload_after) = (Some(key), Some(upload.as_str().to_owned()));
            }
            assert_eq!(names, expected);
        }
        let none = UploadsQuery { max_uploads: 0, ..UploadsQuery::default() };
        assert_eq!(UploadPage::read(&store, &bucket, &none, None).unwrap(), UploadPage::default());
    }
}
