//! What is known of an object, in one document: S3's GetObjectAttributes.

use fordway_store::{Error, ErrorKind, GetOptions, ObjectPart, Store};
use s3s::S3Response;
use s3s::dto::{
    Checksum, GetObjectAttributesInput, GetObjectAttributesOutput, GetObjectAttributesParts,
    ObjectAttributes, StorageClass,
};

use super::convert::{
    count, etag, names, page_size, put_checksum, size, timestamp, type_of, version, version_name,
};
use super::error::Outcome;

/// The most parts in one answer (S3's limit).
const PAGE_MAX: usize = 1000;

/// Says that a document's tag has no quotes around it. S3 has none there, and only there; the S3 layer
/// writes them everywhere.
#[derive(Clone, Copy)]
pub(crate) struct BareTag;

impl BareTag {
    /// The document without them.
    pub(crate) fn write(self, document: &[u8]) -> Vec<u8> {
        let text = String::from_utf8_lossy(document);
        text.replacen("<ETag>\"", "<ETag>", 1).replacen("\"</ETag>", "</ETag>", 1).into_bytes()
    }
}

pub(super) fn get(
    store: &dyn Store,
    input: GetObjectAttributesInput,
) -> Outcome<S3Response<GetObjectAttributesOutput>> {
    let mut response = S3Response::new(described_as(store, input)?);
    response.extensions.insert(BareTag);
    Ok(response)
}

fn described_as(store: &dyn Store, input: GetObjectAttributesInput) -> Outcome<GetObjectAttributesOutput> {
    let (bucket, key) = names(&input.bucket, &input.key)?;
    let options = GetOptions { version: version(input.version_id.as_deref())?, ..Default::default() };
    // The S3 layer takes a header with a list in it for one name.
    let named = input.object_attributes.iter().flat_map(|list| list.as_str().split(',')).map(str::trim);
    let named: Vec<_> = named.collect();
    let wants = |name| named.contains(&name);
    let info = store.head(&bucket, &key, &options)?;
    let parts = match info.part_count.filter(|_| wants(ObjectAttributes::OBJECT_PARTS)) {
        Some(_) => Some(page(store.object_parts(&bucket, &key, &options)?, &input)?),
        None => None,
    };
    Ok(GetObjectAttributesOutput {
        checksum: info.checksum.filter(|_| wants(ObjectAttributes::CHECKSUM)).map(described),
        e_tag: etag(&info.etag).filter(|_| wants(ObjectAttributes::ETAG)),
        last_modified: timestamp(info.modified),
        object_parts: parts,
        object_size: size(info.size).filter(|_| wants(ObjectAttributes::OBJECT_SIZE)),
        storage_class: wants(ObjectAttributes::STORAGE_CLASS)
            .then(|| StorageClass::from_static(StorageClass::STANDARD)),
        version_id: version_name(info.version),
        ..Default::default()
    })
}

fn described(checksum: fordway_store::Checksum) -> Checksum {
    let mut described = Checksum { checksum_type: Some(type_of(&checksum)), ..Default::default() };
    put_checksum!(described, Some(&checksum));
    described
}

/// The parts after the marker.
fn page(parts: Vec<ObjectPart>, input: &GetObjectAttributesInput) -> Outcome<GetObjectAttributesParts> {
    let marker = input.part_number_marker.unwrap_or(0);
    let after = usize::try_from(marker)
        .map_err(|_| Error::new(ErrorKind::InvalidArgument, "the part number marker cannot be negative"))?;
    let max_parts = page_size(input.max_parts, PAGE_MAX)?;
    let total = parts.len();
    let mut rest = parts.into_iter().skip(after);
    let shown: Vec<_> = rest.by_ref().take(max_parts).map(listed).collect();
    let is_truncated = rest.next().is_some();
    Ok(GetObjectAttributesParts {
        is_truncated: Some(is_truncated),
        max_parts: count(max_parts),
        next_part_number_marker: shown.last().and_then(|part| part.part_number),
        part_number_marker: Some(marker),
        parts: Some(shown),
        total_parts_count: count(total),
    })
}

fn listed(part: ObjectPart) -> s3s::dto::ObjectPart {
    let mut listed = s3s::dto::ObjectPart {
        part_number: Some(i32::from(part.number)),
        size: size(part.size),
        ..Default::default()
    };
    put_checksum!(listed, &part.checksum);
    listed
}
