//! S3's GetObjectAttributes: the attributes of an object, in one document.

use fordway_store::{Checksum, Error, ErrorKind, GetOptions, ObjectPart, Store};
use fordway_wire::s3_xml::ResponseDocumentBuilder;
use http::StatusCode;
use s3s::S3Response;
use s3s::dto::{GetObjectAttributesInput, GetObjectAttributesOutput, ObjectAttributes};

use crate::s3::convert::{names, page_size, timestamp, version, version_name, written};
use crate::s3::error::{OperationResult, S3Failure};

/// The maximum number of parts in one response (S3's limit).
const PAGE_MAX: usize = 1000;

pub(super) fn get(
    store: &dyn Store,
    input: GetObjectAttributesInput,
) -> OperationResult<S3Response<GetObjectAttributesOutput>> {
    let (bucket, key) = names(&input.bucket, &input.key)?;
    let options = GetOptions { version: version(input.version_id.as_deref())?, ..Default::default() };
    // If one header lists several names, the S3 layer mistakes the list for a single name, so the list is split here.
    let named = input.object_attributes.iter().flat_map(|list| list.as_str().split(',')).map(str::trim);
    let named: Vec<_> = named.collect();
    let wants = |name| named.contains(&name);
    store.head_bucket(&bucket)?;
    check_names(&named)?;
    let info = store.head(&bucket, &key, &options)?;
    let mut document = ResponseDocumentBuilder::new("GetObjectAttributesResponse");
    if wants(ObjectAttributes::ETAG) {
        // In this response, unlike in all others, the ETag has no quotes.
        document.element("ETag", info.etag.as_str());
    }
    if let Some(checksum) = info.checksum.as_ref().filter(|_| wants(ObjectAttributes::CHECKSUM)) {
        // In this response, unlike in all others, AWS returns a composite checksum without its number of parts.
        let whole = Checksum { parts: None, ..checksum.clone() };
        let kind = checksum.checksum_type().name();
        document.open("Checksum").checksum(Some(&whole)).element("ChecksumType", kind).close();
    }
    if info.part_count.is_some() && wants(ObjectAttributes::OBJECT_PARTS) {
        write_parts(&mut document, &store.object_parts(&bucket, &key, &options)?, &input)?;
    }
    if wants(ObjectAttributes::STORAGE_CLASS) {
        document.element("StorageClass", "STANDARD");
    }
    if wants(ObjectAttributes::OBJECT_SIZE) {
        document.element("ObjectSize", &info.size.to_string());
    }
    let output = GetObjectAttributesOutput {
        last_modified: timestamp(info.modified),
        version_id: version_name(info.version),
        ..Default::default()
    };
    Ok(written(output, document))
}

/// Checks the attributes that a request names. Errors: `InvalidRequest` if the request names no attribute;
/// `InvalidArgument` for an attribute that S3 does not have.
fn check_names(named: &[&str]) -> OperationResult<()> {
    const KNOWN: [&str; 5] = [
        ObjectAttributes::ETAG,
        ObjectAttributes::CHECKSUM,
        ObjectAttributes::OBJECT_PARTS,
        ObjectAttributes::STORAGE_CLASS,
        ObjectAttributes::OBJECT_SIZE,
    ];
    match named.iter().find(|name| !KNOWN.contains(name)) {
        None if !named.is_empty() => Ok(()),
        Some(name) if !name.is_empty() => {
            Err(S3Failure::argument("Invalid attribute name specified.", "x-amz-object-attributes", name))
        }
        _ => {
            let words = "The x-amz-object-attributes header specifying the attributes to be retrieved is \
                         either missing or empty";
            let detail = format!("name one or more of {}", KNOWN.join(", "));
            Err(S3Failure::aws("InvalidRequest", StatusCode::BAD_REQUEST, words, &detail))
        }
    }
}

/// Writes the parts that follow the marker.
fn write_parts(
    document: &mut ResponseDocumentBuilder,
    parts: &[ObjectPart],
    input: &GetObjectAttributesInput,
) -> OperationResult<()> {
    let marker = input.part_number_marker.unwrap_or(0);
    let after = usize::try_from(marker)
        .map_err(|_| Error::new(ErrorKind::InvalidArgument, "the part number marker cannot be negative"))?;
    let max_parts = page_size("max-parts", input.max_parts, PAGE_MAX)?;
    let rest = parts.get(after..).unwrap_or_default();
    let shown = &rest[..max_parts.min(rest.len())];
    let next = shown.last().map(|part| part.number.to_string());
    document.open("ObjectParts").element("PartsCount", &parts.len().to_string());
    document.element("PartNumberMarker", &marker.to_string());
    document.maybe("NextPartNumberMarker", next.as_deref()).element("MaxParts", &max_parts.to_string());
    document.element("IsTruncated", if shown.len() < rest.len() { "true" } else { "false" });
    for part in shown {
        document.open("Part").element("PartNumber", &part.number.to_string());
        document.element("Size", &part.size.to_string()).checksum(part.checksum.as_ref()).close();
    }
    document.close();
    Ok(())
}
