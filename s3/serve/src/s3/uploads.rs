//! Uploads in progress, listed; keys may be rolled up as in a listing of objects.

use fordway_store::{Bucket, Store, UploadSummary, UploadsQuery};
use fordway_wire::date::format_iso8601;
use fordway_wire::s3_xml::AnswerDocument;
use s3s::S3Response;
use s3s::dto::{EncodingType, ListMultipartUploadsInput, ListMultipartUploadsOutput, Owner};

use crate::s3::convert::{page_size, written};
use crate::s3::error::Outcome;
use crate::s3::list::Encoding;
use crate::s3::multipart::write_upload;

/// The most entries in one answer (S3's limit).
const PAGE_MAX: usize = 1000;

pub(super) fn list(
    store: &dyn Store,
    owner: &Owner,
    input: ListMultipartUploadsInput,
) -> Outcome<S3Response<ListMultipartUploadsOutput>> {
    let bucket = Bucket::new(input.bucket.as_str())?;
    let query = UploadsQuery {
        prefix: input.prefix.clone().unwrap_or_default(),
        key_after: input.key_marker.clone().filter(|marker| !marker.is_empty()),
        upload_after: input.upload_id_marker.clone().filter(|marker| !marker.is_empty()),
        max_uploads: page_size("max-uploads", input.max_uploads, PAGE_MAX)?,
    };
    let delimiter = input.delimiter.as_deref().filter(|delimiter| !delimiter.is_empty());
    let page = Page::read(store, &bucket, &query, delimiter)?;
    let encoding = Encoding::new(input.encoding_type.as_ref())?;
    let last = page.last.filter(|_| page.is_truncated);
    let mut document = AnswerDocument::new("ListMultipartUploadsResult");
    document.element("Bucket", bucket.as_str());
    document.element("KeyMarker", &encoding.apply(input.key_marker.as_deref().unwrap_or_default()));
    document.element("UploadIdMarker", input.upload_id_marker.as_deref().unwrap_or_default());
    if let Some((key, upload)) = &last {
        document.element("NextKeyMarker", &encoding.apply(key));
        document.maybe("NextUploadIdMarker", upload.as_deref());
    }
    document.element("Prefix", &encoding.apply(&query.prefix));
    document.maybe("Delimiter", delimiter.map(|delimiter| encoding.apply(delimiter)).as_deref());
    document.maybe("EncodingType", input.encoding_type.as_ref().map(EncodingType::as_str));
    document.element("MaxUploads", &query.max_uploads.to_string());
    document.element("IsTruncated", if page.is_truncated { "true" } else { "false" });
    page.uploads.iter().for_each(|upload| write(&mut document, upload, encoding, owner));
    for prefix in &page.prefixes {
        document.open("CommonPrefixes").element("Prefix", &encoding.apply(prefix)).close();
    }
    Ok(written(ListMultipartUploadsOutput::default(), document))
}

fn write(document: &mut AnswerDocument, upload: &UploadSummary, encoding: Encoding, owner: &Owner) {
    document.open("Upload").element("Key", &encoding.apply(&upload.key));
    document.element("UploadId", upload.upload.as_str());
    document.element("Initiated", &format_iso8601(upload.started));
    write_upload(document, owner, upload.checksum);
    document.close();
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
                // AWS names the upload that the prefix was found by.
                self.last = Some((prefix.clone(), Some(upload.upload.as_str().to_owned())));
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
