//! Listings of a bucket, old form and new.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use fordway_store::{Bucket, Entry, Error, ErrorKind, ListQuery, Listing, MAX_KEYS, Store};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use s3s::dto::{
    ChecksumAlgorithm, ChecksumType, CommonPrefix, EncodingType, ListObjectsInput, ListObjectsOutput,
    ListObjectsV2Input, ListObjectsV2Output, Object, ObjectStorageClass, Owner,
};

use super::convert::{count, etag, page_size, size, timestamp};
use super::error::Outcome;

/// Everything but the unreserved characters of RFC 3986 and the slash.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~').remove(b'/');

/// How names are written in an answer: a client asks for URL encoding because XML cannot hold
/// every character.
#[derive(Clone, Copy)]
pub(super) enum Encoding {
    Plain,
    Url,
}

impl Encoding {
    /// Errors: `InvalidArgument`.
    pub(super) fn new(asked: Option<&EncodingType>) -> Outcome<Self> {
        match asked.map(EncodingType::as_str) {
            None | Some("") => Ok(Encoding::Plain),
            Some(EncodingType::URL) => Ok(Encoding::Url),
            Some(other) => {
                let detail = format!("encoding-type {other:?} is not url");
                Err(Error::new(ErrorKind::InvalidArgument, detail).into())
            }
        }
    }

    pub(super) fn apply(self, name: &str) -> String {
        match self {
            Encoding::Plain => name.to_owned(),
            Encoding::Url => utf8_percent_encode(name, ENCODED).to_string(),
        }
    }
}

pub(super) fn list_v1(
    store: &dyn Store,
    owner: &Owner,
    input: ListObjectsInput,
) -> Outcome<ListObjectsOutput> {
    let bucket = Bucket::new(input.bucket.as_str())?;
    let query = ListQuery {
        prefix: input.prefix.unwrap_or_default(),
        delimiter: input.delimiter.filter(|delimiter| !delimiter.is_empty()),
        start_after: input.marker.filter(|marker| !marker.is_empty()),
        max_keys: page_size(input.max_keys, MAX_KEYS)?,
    };
    let listing = store.list(&bucket, &query)?;
    let encoding = Encoding::new(input.encoding_type.as_ref())?;
    let next = listing.next.as_deref().map(|next| encoding.apply(next));
    let (contents, common_prefixes) = entries(listing, encoding, Some(owner));
    Ok(ListObjectsOutput {
        name: Some(input.bucket),
        prefix: Some(encoding.apply(&query.prefix)),
        marker: Some(encoding.apply(query.start_after.as_deref().unwrap_or_default())),
        delimiter: query.delimiter.as_deref().map(|delimiter| encoding.apply(delimiter)),
        max_keys: count(query.max_keys),
        is_truncated: Some(next.is_some()),
        next_marker: next,
        contents: Some(contents),
        common_prefixes: Some(common_prefixes),
        encoding_type: input.encoding_type,
        request_charged: None,
    })
}

pub(super) fn list_v2(
    store: &dyn Store,
    owner: &Owner,
    input: ListObjectsV2Input,
) -> Outcome<ListObjectsV2Output> {
    let bucket = Bucket::new(input.bucket.as_str())?;
    let token = input.continuation_token;
    let start_after = match token.as_deref().filter(|token| !token.is_empty()) {
        Some(token) => Some(read_token(token)?),
        None => input.start_after.clone().filter(|start| !start.is_empty()),
    };
    let query = ListQuery {
        prefix: input.prefix.unwrap_or_default(),
        delimiter: input.delimiter.filter(|delimiter| !delimiter.is_empty()),
        start_after,
        max_keys: page_size(input.max_keys, MAX_KEYS)?,
    };
    let listing = store.list(&bucket, &query)?;
    let encoding = Encoding::new(input.encoding_type.as_ref())?;
    let (key_count, next) = (count(listing.entries.len()), listing.next.as_deref().map(write_token));
    let owner = Some(owner).filter(|_| input.fetch_owner.unwrap_or(false));
    let (contents, common_prefixes) = entries(listing, encoding, owner);
    Ok(ListObjectsV2Output {
        name: Some(input.bucket),
        prefix: Some(encoding.apply(&query.prefix)),
        start_after: input.start_after.as_deref().map(|start| encoding.apply(start)),
        continuation_token: token,
        delimiter: query.delimiter.as_deref().map(|delimiter| encoding.apply(delimiter)),
        max_keys: count(query.max_keys),
        key_count,
        is_truncated: Some(next.is_some()),
        next_continuation_token: next,
        contents: Some(contents),
        common_prefixes: Some(common_prefixes),
        encoding_type: input.encoding_type,
        request_charged: None,
    })
}

fn entries(listing: Listing, encoding: Encoding, owner: Option<&Owner>) -> (Vec<Object>, Vec<CommonPrefix>) {
    let (mut objects, mut prefixes) = (Vec::with_capacity(listing.entries.len()), Vec::new());
    for entry in listing.entries {
        match entry {
            Entry::CommonPrefix(prefix) => {
                prefixes.push(CommonPrefix { prefix: Some(encoding.apply(&prefix)) });
            }
            Entry::Object(object) => objects.push(Object {
                key: Some(encoding.apply(&object.key)),
                size: size(object.size),
                e_tag: etag(&object.etag),
                last_modified: timestamp(object.modified),
                storage_class: Some(ObjectStorageClass::from_static(ObjectStorageClass::STANDARD)),
                owner: owner.cloned(),
                checksum_algorithm: object
                    .checksum
                    .map(|plan| vec![ChecksumAlgorithm::from_static(plan.algorithm.name())]),
                checksum_type: object.checksum.map(|plan| ChecksumType::from_static(plan.kind.name())),
                ..Default::default()
            }),
        }
    }
    (objects, prefixes)
}

/// Where the next page starts, in a form that no client takes for a key.
fn write_token(next: &str) -> String {
    URL_SAFE_NO_PAD.encode(next)
}

/// Errors: `InvalidArgument`.
fn read_token(token: &str) -> Outcome<String> {
    let next = URL_SAFE_NO_PAD.decode(token).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    let wrong = || Error::new(ErrorKind::InvalidArgument, "the continuation token is not one of this server");
    Ok(next.ok_or_else(wrong)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_survive_their_encoding() {
        assert_eq!(Encoding::Url.apply("a b/ü+~\u{1}"), "a%20b/%C3%BC%2B~%01");
        assert_eq!(Encoding::Plain.apply("a b+"), "a b+");
    }

    #[test]
    fn tokens_are_opaque_and_checked() {
        assert_eq!(read_token(&write_token("a/ü")).unwrap(), "a/ü");
        assert!(read_token("not base64!").is_err());
    }
}
