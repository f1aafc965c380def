//! Tags of objects.

use std::sync::Arc;

use fordway_store::{MAX_TAGS, Store, Tags, is_of_tags, is_reserved_tag};
use fordway_wire::s3_xml::ResponseDocumentBuilder;
use fordway_wire::tagging;
use http::{HeaderMap, StatusCode};
use s3s::dto::{
    DeleteObjectTaggingInput, DeleteObjectTaggingOutput, GetObjectTaggingInput, GetObjectTaggingOutput,
    Tagging,
};
use s3s::{Body, S3Request, S3Response};

use crate::access::{PolicyRequestContext, authorise_tags};
use crate::message::composed;
use crate::s3::apart::until_unlocked;
use crate::s3::convert::{VERSION_ID, add_text, names, parameter, version, version_name, written};
use crate::s3::documents;
use crate::s3::error::{OperationResult, S3Failure};
use crate::users::User;

/// The maximum number of characters of a tag's name (S3's limit).
const NAME_CHARS_MAX: usize = 128;
/// The maximum number of characters of a tag's value (S3's limit).
const VALUE_CHARS_MAX: usize = 256;

pub(super) fn get(
    store: &dyn Store,
    input: GetObjectTaggingInput,
) -> OperationResult<S3Response<GetObjectTaggingOutput>> {
    let (bucket, key) = names(&input.bucket, &input.key)?;
    let version = version(input.version_id.as_deref())?;
    let tags = store.tags(&bucket, &key, version.as_ref())?;
    let mut document = ResponseDocumentBuilder::new("Tagging");
    document.open("TagSet");
    for (name, value) in &tags {
        document.open("Tag").element("Key", name).element("Value", value).close();
    }
    let output = GetObjectTaggingOutput { version_id: version_name(version), ..Default::default() };
    Ok(written(output, document))
}

/// Replaces the tags of an object.
pub(super) async fn put(
    user: Arc<User>,
    (bucket, key): (String, String),
    request: S3Request<Body>,
) -> OperationResult<S3Response<Body>> {
    let S3Request { input, headers, uri, extensions, .. } = request;
    let document: Tagging = documents::sent(input).await?;
    let tags = tagging::collect(listed(&document)?)?;
    let facts = PolicyRequestContext::new(&headers, &uri, extensions.get().copied());
    authorise_tags(&user, (&bucket, &key), &facts, &tags).await?;
    let named = parameter(&uri, "versionId");
    let replace = move |store: &dyn Store| {
        let (bucket, key) = names(&bucket, &key)?;
        let version = version(named.as_deref())?;
        store.set_tags(&bucket, &key, version.as_ref(), &tags)?;
        Ok(version)
    };
    let version = until_unlocked(user, replace).await?;
    let mut headers = HeaderMap::new();
    if let Some(version) = version_name(version) {
        add_text(&mut headers, VERSION_ID, &version);
    }
    Ok(S3Response::with_headers(Body::empty(), headers))
}

/// Returns the tags in a document for an object. Errors: `MalformedXML`, `BadRequest`, `InvalidTag`.
pub(super) fn listed(document: &Tagging) -> OperationResult<Vec<(String, String)>> {
    let listed = document.tag_set.iter().map(|tag| tag.key.clone().zip(tag.value.clone()));
    let listed: Option<Vec<_>> = listed.collect();
    let malformed = || {
        let message = "every Tag needs a Key and a Value";
        S3Failure::new("MalformedXML", StatusCode::BAD_REQUEST, message)
    };
    let listed = listed.ok_or_else(malformed)?;
    check(&listed)?;
    Ok(listed)
}

/// Checks the tags of an object. Errors, with AWS's messages: `BadRequest` for too many tags, `InvalidTag`.
pub(super) fn check(tags: &[(String, String)]) -> OperationResult<()> {
    if tags.len() > MAX_TAGS {
        let words = format!("Object tags cannot be greater than {MAX_TAGS}");
        return Err(S3Failure::aws("BadRequest", StatusCode::BAD_REQUEST, &words, "send fewer tags"));
    }
    check_each(tags)
}

/// Checks each tag, and that no name occurs twice. Errors: `InvalidTag`, with AWS's messages.
pub(super) fn check_each(tags: &[(String, String)]) -> OperationResult<()> {
    for (at, (name, value)) in tags.iter().enumerate() {
        let (name_chars, value_chars) = (name.chars().count(), value.chars().count());
        if !(1..=NAME_CHARS_MAX).contains(&name_chars) || !name.chars().all(is_of_tags) {
            return Err(invalid("The TagKey you have provided is invalid", &[("TagKey", name)]));
        }
        if is_reserved_tag(name) {
            let words = "System tags cannot be added/updated by requester";
            return Err(invalid(words, &[("TagKey", name)]));
        }
        if value_chars > VALUE_CHARS_MAX || !value.chars().all(is_of_tags) {
            let facts = [("TagKey", &**name), ("TagValue", value)];
            return Err(invalid("The TagValue you have provided is invalid", &facts));
        }
        if tags[..at].iter().any(|(known, _)| known == name) {
            return Err(invalid("Cannot provide multiple Tags with the same key", &[("TagKey", name)]));
        }
    }
    Ok(())
}

fn invalid(words: &str, facts: &[(&str, &str)]) -> S3Failure {
    S3Failure::new("InvalidTag", StatusCode::BAD_REQUEST, composed(words, "", facts))
}

pub(super) fn delete(
    store: &dyn Store,
    input: DeleteObjectTaggingInput,
) -> OperationResult<DeleteObjectTaggingOutput> {
    let (bucket, key) = names(&input.bucket, &input.key)?;
    let version = version(input.version_id.as_deref())?;
    store.set_tags(&bucket, &key, version.as_ref(), &Tags::new())?;
    Ok(DeleteObjectTaggingOutput { version_id: version_name(version) })
}
