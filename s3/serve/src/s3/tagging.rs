//! Tags of objects.

use fordway_store::{MAX_TAGS, Store, Tags};
use fordway_wire::s3_xml::ResponseDocument;
use fordway_wire::tagging;
use http::StatusCode;
use s3s::S3Response;
use s3s::dto::{
    DeleteObjectTaggingInput, DeleteObjectTaggingOutput, GetObjectTaggingInput, GetObjectTaggingOutput,
    PutObjectTaggingInput, PutObjectTaggingOutput,
};

use crate::s3::convert::{names, version, version_name, written};
use crate::s3::error::{Outcome, S3Failure};

/// The maximum number of characters of a tag's name and of its value (S3's limits).
const NAME_CHARS_MAX: usize = 128;
const VALUE_CHARS_MAX: usize = 256;

pub(super) fn get(
    store: &dyn Store,
    input: GetObjectTaggingInput,
) -> Outcome<S3Response<GetObjectTaggingOutput>> {
    let (bucket, key) = names(&input.bucket, &input.key)?;
    let version = version(input.version_id.as_deref())?;
    let tags = store.tags(&bucket, &key, version.as_ref())?;
    let mut document = ResponseDocument::new("Tagging");
    document.open("TagSet");
    for (name, value) in &tags {
        document.open("Tag").element("Key", name).element("Value", value).close();
    }
    let output = GetObjectTaggingOutput { version_id: version_name(version), ..Default::default() };
    Ok(written(output, document))
}

pub(super) fn put(store: &dyn Store, input: PutObjectTaggingInput) -> Outcome<PutObjectTaggingOutput> {
    let (bucket, key) = names(&input.bucket, &input.key)?;
    let version = version(input.version_id.as_deref())?;
    let listed = input.tagging.tag_set.into_iter().map(|tag| tag.key.zip(tag.value));
    let listed: Option<Vec<_>> = listed.collect();
    let malformed = || {
        let message = "every Tag has a Key and a Value";
        S3Failure::new("MalformedXML", StatusCode::BAD_REQUEST, message)
    };
    let listed = listed.ok_or_else(malformed)?;
    check(&listed)?;
    let tags = tagging::collect(listed)?;
    store.set_tags(&bucket, &key, version.as_ref(), &tags)?;
    Ok(PutObjectTaggingOutput { version_id: version_name(version) })
}

/// Checks tags; errors are in AWS's words. Errors: `InvalidTag`.
fn check(tags: &[(String, String)]) -> Outcome<()> {
    let invalid = |words: &str| Err(S3Failure::aws("InvalidTag", StatusCode::BAD_REQUEST, words, ""));
    let is_repeated = |at: usize, name: &String| tags[..at].iter().any(|(known, _)| known == name);
    if tags.len() > MAX_TAGS {
        return invalid(&format!("Object tags cannot be greater than {MAX_TAGS}"));
    }
    for (at, (name, value)) in tags.iter().enumerate() {
        if !(1..=NAME_CHARS_MAX).contains(&name.chars().count()) {
            return invalid("The TagKey you have provided is invalid");
        }
        if value.chars().count() > VALUE_CHARS_MAX {
            return invalid("The TagValue you have provided is invalid");
        }
        if is_repeated(at, name) {
            return invalid("Cannot provide multiple Tags with the same key");
        }
    }
    Ok(())
}

pub(super) fn delete(
    store: &dyn Store,
    input: DeleteObjectTaggingInput,
) -> Outcome<DeleteObjectTaggingOutput> {
    let (bucket, key) = names(&input.bucket, &input.key)?;
    let version = version(input.version_id.as_deref())?;
    store.set_tags(&bucket, &key, version.as_ref(), &Tags::new())?;
    Ok(DeleteObjectTaggingOutput { version_id: version_name(version) })
}
