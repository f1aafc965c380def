//! Listings of the objects in a bucket: ListObjects and ListObjectsV2.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use fordway_store::{
    Bucket, ChecksumAlgorithmAndType, Error, ErrorKind, ListEntry, ListQuery, MAX_KEYS, ObjectListing,
    ObjectSummary, Store,
};
use fordway_wire::date::format_iso8601;
use fordway_wire::s3_xml::ResponseDocumentBuilder;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use s3s::S3Response;
use s3s::dto::{
    EncodingType, ListObjectsInput, ListObjectsOutput, ListObjectsV2Input, ListObjectsV2Output, Owner,
};

use crate::s3::convert::{page_size, quoted, written};
use crate::s3::error::OperationResult;

/// The characters that are percent-encoded: all except the unreserved characters of RFC 3986 and the slash.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~').remove(b'/');

/// The encoding of names in a response. Clients request URL encoding because XML cannot represent every character.
#[derive(Clone, Copy)]
pub(super) enum NameEncoding {
    Plain,
    Url,
}

impl NameEncoding {
    /// Reads the `encoding-type` parameter. Errors: `InvalidArgument`.
    pub(super) fn new(asked: Option<&EncodingType>) -> OperationResult<Self> {
        match asked.map(EncodingType::as_str) {
            None | Some("") => Ok(NameEncoding::Plain),
            Some(EncodingType::URL) => Ok(NameEncoding::Url),
            Some(other) => {
                let detail = format!("encoding-type {other:?} is not url");
                Err(Error::new(ErrorKind::InvalidArgument, detail).into())
            }
        }
    }

    pub(super) fn apply(self, name: &str) -> String {
        match self {
            NameEncoding::Plain => name.to_owned(),
            NameEncoding::Url => utf8_percent_encode(name, ENCODED).to_string(),
        }
    }
}

pub(super) fn list_v1(
    store: &dyn Store,
    owner: &Owner,
    input: ListObjectsInput,
) -> OperationResult<S3Response<ListObjectsOutput>> {
    let bucket = Bucket::new(input.bucket.as_str())?;
    let query = ListQuery {
        prefix: input.prefix.unwrap_or_default(),
        delimiter: input.delimiter.filter(|delimiter| !delimiter.is_empty()),
        start_after: input.marker.filter(|marker| !marker.is_empty()),
        max_keys: page_size("max-keys", input.max_keys, MAX_KEYS)?,
    };
    let listing = store.list(&bucket, &query)?;
    let encoding = NameEncoding::new(input.encoding_type.as_ref())?;
    let marker = encoding.apply(query.start_after.as_deref().unwrap_or_default());
    let mut document = opened(&bucket, &query, encoding);
    document.element("Marker", &marker);
    document.maybe("NextMarker", listing.next.as_deref().map(|next| encoding.apply(next)).as_deref());
    document.element("IsTruncated", if listing.next.is_some() { "true" } else { "false" });
    write_entries(&mut document, &listing, encoding, Some(owner));
    Ok(written(ListObjectsOutput::default(), document))
}

pub(super) fn list_v2(
    store: &dyn Store,
    owner: &Owner,
    input: ListObjectsV2Input,
) -> OperationResult<S3Response<ListObjectsV2Output>> {
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
        max_keys: page_size("max-keys", input.max_keys, MAX_KEYS)?,
    };
    let listing = store.list(&bucket, &query)?;
    let encoding = NameEncoding::new(input.encoding_type.as_ref())?;
    let mut document = opened(&bucket, &query, encoding);
    document.maybe("StartAfter", input.start_after.as_deref().map(|start| encoding.apply(start)).as_deref());
    document.maybe("ContinuationToken", token.as_deref());
    document.element("KeyCount", &listing.entries.len().to_string());
    document.element("IsTruncated", if listing.next.is_some() { "true" } else { "false" });
    document.maybe("NextContinuationToken", listing.next.as_deref().map(write_token).as_deref());
    let owner = Some(owner).filter(|_| input.fetch_owner.unwrap_or(false));
    write_entries(&mut document, &listing, encoding, owner);
    Ok(written(ListObjectsV2Output::default(), document))
}

/// Writes the beginning of the document for either version of the operation. The gateway writes the document itself,
/// because the S3 layer does not escape carriage returns, which XML parsers convert to line feeds.
fn opened(bucket: &Bucket, query: &ListQuery, encoding: NameEncoding) -> ResponseDocumentBuilder {
    let mut document = ResponseDocumentBuilder::new("ListBucketResult");
    document.element("Name", bucket.as_str()).element("Prefix", &encoding.apply(&query.prefix));
    document.maybe("Delimiter", query.delimiter.as_deref().map(|text| encoding.apply(text)).as_deref());
    document.element("MaxKeys", &query.max_keys.to_string());
    if matches!(encoding, NameEncoding::Url) {
        document.element("EncodingType", "url");
    }
    document
}

fn write_entries(
    document: &mut ResponseDocumentBuilder,
    listing: &ObjectListing,
    encoding: NameEncoding,
    owner: Option<&Owner>,
) {
    for entry in &listing.entries {
        match entry {
            ListEntry::CommonPrefix(_) => {}
            ListEntry::Object(object) => write_object(document, object, encoding, owner),
        }
    }
    for entry in &listing.entries {
        if let ListEntry::CommonPrefix(prefix) = entry {
            document.open("CommonPrefixes").element("Prefix", &encoding.apply(prefix)).close();
        }
    }
}

fn write_object(
    document: &mut ResponseDocumentBuilder,
    object: &ObjectSummary,
    encoding: NameEncoding,
    owner: Option<&Owner>,
) {
    document.open("Contents").element("Key", &encoding.apply(&object.key));
    document.element("LastModified", &format_iso8601(object.modified));
    document.element("ETag", &quoted(&object.etag));
    if let Some(ChecksumAlgorithmAndType { algorithm, kind }) = object.checksum {
        document.element("ChecksumAlgorithm", algorithm.name()).element("ChecksumType", kind.name());
    }
    document.element("Size", &object.size.to_string());
    if let Some(owner) = owner {
        write_owner(document, "Owner", owner);
    }
    document.element("StorageClass", "STANDARD").close();
}

/// Writes a user as an element of a document.
pub(super) fn write_owner(document: &mut ResponseDocumentBuilder, element: &'static str, owner: &Owner) {
    document.open(element).maybe("ID", owner.id.as_deref());
    document.maybe("DisplayName", owner.display_name.as_deref()).close();
}

/// Encodes the key after which the next page starts. The encoded key is the continuation token. Because of the
/// encoding, clients do not mistake the token for a key.
fn write_token(next: &str) -> String {
    URL_SAFE_NO_PAD.encode(next)
}

/// Decodes a continuation token. Errors: `InvalidArgument`.
fn read_token(token: &str) -> OperationResult<String> {
    let next = URL_SAFE_NO_PAD.decode(token).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    let wrong = || Error::new(ErrorKind::InvalidArgument, "the continuation token is not from this server");
    Ok(next.ok_or_else(wrong)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_survive_their_encoding() {
        assert_eq!(NameEncoding::Url.apply("a b/ü+~\u{1}"), "a%20b/%C3%BC%2B~%01");
        assert_eq!(NameEncoding::Plain.apply("a b+"), "a b+");
    }

    #[test]
    fn tokens_are_opaque_and_checked() {
        assert_eq!(read_token(&write_token("a/ü")).unwrap(), "a/ü");
        assert!(read_token("not base64!").is_err());
    }
}
