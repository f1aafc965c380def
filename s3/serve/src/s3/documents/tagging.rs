//! Tags of buckets.

use fordway_store::{DocumentKind, Error, ErrorKind, Tags, check_tag};
use http::StatusCode;
use s3s::dto::Tagging;

use crate::s3::documents::{DocumentService, read, write};
use crate::s3::error::Outcome;

/// The maximum number of tags of a bucket (S3's limit).
const MAX_BUCKET_TAGS: usize = 50;

pub(super) const SERVICE: DocumentService = DocumentService {
    kind: DocumentKind::known("tagging"),
    operations: ["GetBucketTagging", "PutBucketTagging", "DeleteBucketTagging"],
    missing: ("NoSuchTagSet", "the bucket has no tags"),
    put_status: StatusCode::NO_CONTENT,
    check,
};

/// Checks the tags of a bucket. Errors: `MalformedXML`, `InvalidTag`.
fn check(document: &[u8]) -> Outcome<Vec<u8>> {
    let tagging: Tagging = read(document)?;
    let mut tags = Tags::new();
    for tag in &tagging.tag_set {
        let name = tag.key.clone().unwrap_or_default();
        let value = tag.value.clone().unwrap_or_default();
        check_tag(&name, &value)?;
        if tags.insert(name.clone(), value).is_some() {
            return Err(refused(format!("the tag {name:?} is there twice; name it once")));
        }
    }
    if tags.len() > MAX_BUCKET_TAGS {
        return Err(refused(format!("{} tags are more than {MAX_BUCKET_TAGS}", tags.len())));
    }
    write(&tagging)
}

fn refused(why: String) -> crate::s3::error::S3Failure {
    Error::new(ErrorKind::InvalidTag, why).into()
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
        for bad in [&many[..], &[("a", "1"), ("a", "2")], &[("", "1")], &[("a", &long)]] {
            assert_eq!(check(tagging(bad).as_bytes()).unwrap_err().0.code().as_str(), "InvalidTag");
        }
        for bad in ["", "<Tagging>", "<Tagging><TagSet><Tag></TagSet></Tagging>", "no document"] {
            assert_eq!(check(bad.as_bytes()).unwrap_err().0.code().as_str(), "MalformedXML", "{bad}");
        }
    }
}
