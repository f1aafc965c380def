//! Tags of buckets.

use fordway_store::BucketDocumentKind;
use http::StatusCode;
use s3s::dto::{Tag, Tagging};

use crate::s3::documents::{AbsentSetting, DocumentKindHandler, always, read, write};
use crate::s3::error::{OperationResult, S3Failure};
use crate::s3::tagging::check_each;

/// The maximum number of tags of a bucket (S3's limit).
const MAX_BUCKET_TAGS: usize = 50;

pub(in crate::s3) const KIND: BucketDocumentKind = BucketDocumentKind::known("tagging");

pub(super) const SERVICE: DocumentKindHandler = DocumentKindHandler {
    kind: KIND,
    get: "GetBucketTagging",
    put: "PutBucketTagging",
    delete: Some("DeleteBucketTagging"),
    absent: AbsentSetting::Error("NoSuchTagSet", "the bucket has no tags"),
    put_status: StatusCode::NO_CONTENT,
    check,
    permits: always,
};

/// Checks the tags of a bucket. Errors: `MalformedXML`, `BadRequest`, `InvalidTag`.
fn check(document: &[u8]) -> OperationResult<Vec<u8>> {
    let tagging: Tagging = read(document)?;
    let texts = |tag: Tag| (tag.key.unwrap_or_default(), tag.value.unwrap_or_default());
    document_of(tagging.tag_set.into_iter().map(texts).collect())
}

/// Returns the document with the tags of a bucket. Errors: `InvalidTag`; `BadRequest` for more than 50 tags.
pub(in crate::s3) fn document_of(listed: Vec<(String, String)>) -> OperationResult<Vec<u8>> {
    if listed.len() > MAX_BUCKET_TAGS {
        let words = format!("Bucket tag count cannot be greater than {MAX_BUCKET_TAGS}");
        return Err(S3Failure::aws("BadRequest", StatusCode::BAD_REQUEST, &words, ""));
    }
    check_each(&listed)?;
    let tag = |(key, value)| Tag { key: Some(key), value: Some(value) };
    write(&Tagging { tag_set: listed.into_iter().map(tag).collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tagging(tags: &[(&str, &str)]) -> String {
        let tags: String = tags
            .iter()
            .map(|(name, value)| format!("<Tag><Key>{name}</Key><Value>{value}</Value></Tag>"))
            .collect();
        format!(
            "<Tagging xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><TagSet>{tags}</TagSet></Tagging>"
        )
    }

    #[test]
    fn tags_are_kept_in_their_order() {
        let kept = String::from_utf8(check(tagging(&[("b", "1"), ("a", "")]).as_bytes()).unwrap()).unwrap();
        assert!(kept.find("<Key>b</Key>") < kept.find("<Key>a</Key>"), "{kept}");
    }

    #[test]
    fn limits_are_those_of_s3() {
        let many: Vec<_> = (0..51).map(|at| (format!("k{at}"), "v")).collect();
        let many: Vec<_> = many.iter().map(|(name, value)| (name.as_str(), *value)).collect();
        assert!(check(tagging(&many[..50]).as_bytes()).is_ok());
        let long = "x".repeat(257);
        let code =
            |tags: &[(&str, &str)]| check(tagging(tags).as_bytes()).unwrap_err().0.code().as_str().to_owned();
        assert_eq!(code(&many), "BadRequest");
        for bad in
            [&[("a", "1"), ("a", "2")][..], &[("", "1")], &[("a", &long)], &[("a!", "")], &[("a", "%")]]
        {
            assert_eq!(code(bad), "InvalidTag", "{bad:?}");
        }
        for bad in ["", "<Tagging>", "<Tagging><TagSet><Tag></TagSet></Tagging>", "no document"] {
            assert_eq!(check(bad.as_bytes()).unwrap_err().0.code().as_str(), "MalformedXML", "{bad}");
        }
    }
}
