//! Requests on buckets, and the listing of one.

use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::ptr;

use fordway_store::{Bucket, Entry, ListQuery, Listing, MAX_KEYS};

use crate::abi::{ListBucketCallback, ListBucketContent, ListServiceCallback};
use crate::failure::{Failure, Outcome};
use crate::lane::Target;
use crate::response::{Properties, QuotedTag, Responder, c_text, checked, seconds};
use crate::status::Status;

/// The most entries that one call of a listing callback gets.
pub(crate) const BATCH: usize = 32;

thread_local! {
    /// Programs (IOR is one) pass the marker of one listing to the next without a copy of it.
    static LAST_MARKER: RefCell<Option<CString>> = const { RefCell::new(None) };
}

/// Tells of every bucket. Errors: from the store and of the callback.
pub(crate) fn list_all(
    lane: &fordway_lanes::Lane,
    callback: Option<ListServiceCallback>,
    responder: &Responder,
) -> Outcome {
    let buckets = lane.store.list_buckets()?;
    responder.succeeded(Properties::default)?;
    let Some(callback) = callback else { return Ok(()) };
    for bucket in buckets {
        let name = c_text(bucket.name.as_str());
        let created_s = seconds(bucket.created);
        // SAFETY: the handler's creator vouches for the callback and its data; the texts outlive it.
        checked(unsafe { callback(c"".as_ptr(), c"".as_ptr(), name.as_ptr(), created_s, responder.data()) })?;
    }
    Ok(())
}

/// Whether the bucket is there. Errors: `NoSuchBucket`, `AccessDenied`.
pub(crate) fn test(target: &Target, responder: &Responder) -> Outcome {
    target.lane.store.head_bucket(&target.bucket)?;
    responder.succeeded(Properties::default)
}

/// Makes a bucket. Errors: `BucketAlreadyOwnedByYou`, and a place that the lane does not have.
pub(crate) fn create(
    target: &Target,
    location: Option<&str>,
    region: Option<&str>,
    responder: &Responder,
) -> Outcome {
    if let Some(location) = location.filter(|location| Some(*location) != region) {
        let why = format!(
            "a bucket is made where its endpoint is, not in {location:?}; \
             use an endpoint and an authRegion of that region, or no location"
        );
        return Err(Failure::refused(Status::ErrorInvalidLocationConstraint, why));
    }
    target.lane.store.create_bucket(&target.bucket)?;
    responder.succeeded(Properties::default)
}

/// Removes an empty bucket. Errors: `NoSuchBucket`, `BucketNotEmpty`.
pub(crate) fn delete(target: &Target, responder: &Responder) -> Outcome {
    target.lane.store.delete_bucket(&target.bucket)?;
    responder.succeeded(Properties::default)
}

/// The query of libs3: 0 keys is as many as S3 gives at most, and so is more than that.
pub(crate) fn query(
    prefix: Option<&str>,
    marker: Option<&str>,
    delimiter: Option<&str>,
    max_keys: usize,
) -> ListQuery {
    ListQuery {
        prefix: prefix.unwrap_or_default().to_owned(),
        delimiter: delimiter.map(str::to_owned),
        start_after: marker.map(str::to_owned),
        max_keys: if max_keys == 0 { MAX_KEYS } else { max_keys.min(MAX_KEYS) },
    }
}

/// Tells of one page of a bucket, in batches. The page is read before the first callback, which
/// so may change the bucket.
pub(crate) fn list(
    target: &Target,
    query: &ListQuery,
    callback: Option<ListBucketCallback>,
    responder: &Responder,
) -> Outcome {
    let page = target.lane.store.list(&target.bucket, query)?;
    responder.succeeded(Properties::default)?;
    let Some(callback) = callback else { return Ok(()) };
    let next = page.next.as_deref().map(c_text);
    let marker = next.as_deref().map_or(c"".as_ptr(), |next| next.as_ptr());
    let told = tell_entries(&page, marker, callback, responder);
    LAST_MARKER.set(next);
    told
}

fn tell_entries(
    page: &Listing,
    marker: *const c_char,
    callback: ListBucketCallback,
    responder: &Responder,
) -> Outcome {
    let is_truncated = i32::from(page.next.is_some());
    for batch in page.entries.chunks(BATCH) {
        let batch = Batch::new(batch);
        let (contents, prefixes) = (batch.contents(), batch.prefix_pointers());
        // SAFETY: the handler's creator vouches for the callback and its data; `batch`, `contents`
        // and `prefixes` outlive the call, and the marker is kept beyond it.
        checked(unsafe {
            callback(
                is_truncated,
                marker,
                contents.len() as i32,
                contents.as_ptr(),
                prefixes.len() as i32,
                prefixes.as_ptr(),
                responder.data(),
            )
        })?;
    }
    Ok(())
}

/// Entries with their texts as C has them.
struct Batch {
    objects: Vec<(CString, QuotedTag, i64, u64)>,
    prefixes: Vec<CString>,
}

impl Batch {
    fn new(entries: &[Entry]) -> Self {
        let mut batch = Batch { objects: Vec::with_capacity(entries.len()), prefixes: Vec::new() };
        for entry in entries {
            match entry {
                Entry::Object(object) => batch.objects.push((
                    c_text(&object.key),
                    QuotedTag::new(&object.etag),
                    seconds(object.modified),
                    object.size,
                )),
                Entry::CommonPrefix(prefix) => batch.prefixes.push(c_text(prefix)),
            }
        }
        batch
    }

    fn contents(&self) -> Vec<ListBucketContent> {
        let content =
            |(key, etag, last_modified_s, size): &(CString, QuotedTag, i64, u64)| ListBucketContent {
                key: key.as_ptr(),
                last_modified_s: *last_modified_s,
                etag: etag.as_ptr(),
                size: *size,
                owner_id: ptr::null(),
                owner_display_name: ptr::null(),
            };
        self.objects.iter().map(content).collect()
    }

    fn prefix_pointers(&self) -> Vec<*const c_char> {
        self.prefixes.iter().map(|prefix| prefix.as_ptr()).collect()
    }
}

/// The bucket a copy goes to: `name`, or the target's. Errors: `InvalidBucketName`.
pub(crate) fn named_or_own(name: Option<&str>, own: &Bucket) -> Outcome<Bucket> {
    match name {
        Some(name) => Ok(Bucket::new(name)?),
        None => Ok(own.clone()),
    }
}
