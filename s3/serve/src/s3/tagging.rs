//! Tags of objects.

use fordway_store::{Store, Tags};
use fordway_wire::s3_xml::AnswerDocument;
use fordway_wire::tagging;
use http::StatusCode;
use s3s::S3Response;
use s3s::dto::{
    DeleteObjectTaggingInput, DeleteObjectTaggingOutput, GetObjectTaggingInput, GetObjectTaggingOutput,
    PutObjectTaggingInput, PutObjectTaggingOutput,
};

use super::convert::{names, version, version_name, written};
use super::error::{Failure, Outcome};

pub(super) fn get(
    store: &dyn Store,
    input: GetObjectTaggingInput,
) -> Outcome<S3Response<GetObjectTaggingOutput>> {
    let (bucket, key) = names(&input.bucket, &input.key)?;
    let version = version(input.version_id.as_deref())?;
    let tags = store.tags(&bucket, &key, version.as_ref())?;
    let mut document = AnswerDocument::new("Tagging");
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
        Failure::new("MalformedXML", StatusCode::BAD_REQUEST, message)
    };
    let tags = tagging::collect(listed.ok_or_else(malformed)?)?;
    store.set_tags(&bucket, &key, version.as_ref(), &tags)?;
    Ok(PutObjectTaggingOutput { version_id: version_name(version) })
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
