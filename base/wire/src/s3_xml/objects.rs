//! What is answered about objects: copies, deletions, tags and attributes.

use std::time::{SystemTime, UNIX_EPOCH};

use fordway_store::{Checksum, Deleted, ETag, ObjectPart, Result, Tags, VersionId};

use super::{ErrorDocument, checksum, error_document, etag, for_each_element, number, required, time};

/// How a copy of an object or part ended; like a completion it may fail under status 200.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Copied {
    /// The copy is there, with this tag and time, and with this checksum where it has one.
    Done(ETag, SystemTime, Option<Checksum>),
    /// It is not.
    Failed(ErrorDocument),
}

/// Reads a `CopyObjectResult` or `CopyPartResult`. Errors: `BadResponse`.
pub fn copied(document: &[u8]) -> Result<Copied> {
    if let Some(error) = error_document(document)? {
        return Ok(Copied::Failed(error));
    }
    let (mut tag, mut modified, mut sum) = (None, UNIX_EPOCH, None);
    for_each_element(document, "Copy", |path, text| {
        match path {
            "ETag" => tag = Some(etag(text)),
            "LastModified" => modified = time(text),
            other => sum = checksum(other, text).or(sum.take()),
        }
        Ok(())
    })?;
    Ok(Copied::Done(required(tag, "ETag")?, modified, sum))
}

/// A key that could not be deleted, and why.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeleteFailure {
    /// The key.
    pub key: String,
    /// S3's code.
    pub code: String,
    /// A sentence for people.
    pub message: String,
}

/// What became of each key that was to be deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeleteOutcome {
    /// Keys that are gone, and what that made of them.
    pub deleted: Vec<(String, Deleted)>,
    /// Keys that are not.
    pub failures: Vec<DeleteFailure>,
}

/// Reads a `DeleteResult`. Errors: `BadResponse`.
pub fn delete_result(document: &[u8]) -> Result<DeleteOutcome> {
    let mut outcome = DeleteOutcome::default();
    let (mut key, mut deleted, mut failure) = (String::new(), Deleted::default(), DeleteFailure::default());
    for_each_element(document, "Delete", |path, text| {
        match path {
            "Deleted/Key" => text.clone_into(&mut key),
            "Deleted/DeleteMarker" => deleted.is_marker = text.trim() == "true",
            // Of a marker that was removed both are stated, and are the same.
            "Deleted/VersionId" | "Deleted/DeleteMarkerVersionId" => {
                deleted.version = VersionId::new(text).ok();
            }
            "Deleted" => outcome.deleted.push((std::mem::take(&mut key), std::mem::take(&mut deleted))),
            "Error/Key" => text.clone_into(&mut failure.key),
            "Error/Code" => text.clone_into(&mut failure.code),
            "Error/Message" => text.clone_into(&mut failure.message),
            "Error" => outcome.failures.push(std::mem::take(&mut failure)),
            _ => {}
        }
        Ok(())
    })?;
    Ok(outcome)
}

/// Reads a `Tagging`. Errors: `BadResponse`.
pub fn object_tags(document: &[u8]) -> Result<Tags> {
    let (mut tags, mut name, mut value) = (Tags::new(), String::new(), String::new());
    for_each_element(document, "Tagging", |path, text| {
        match path {
            "TagSet/Tag/Key" => text.clone_into(&mut name),
            "TagSet/Tag/Value" => text.clone_into(&mut value),
            "TagSet/Tag" => drop(tags.insert(std::mem::take(&mut name), std::mem::take(&mut value))),
            _ => {}
        }
        Ok(())
    })?;
    Ok(tags)
}

/// One page of the parts that an object was completed of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AttributesPage {
    /// The parts, under the numbers that the server gives them.
    pub parts: Vec<ObjectPart>,
    /// How many the object has in all; S3 itself lists only those that were sent with checksums.
    pub total: u16,
    /// The number to go on after, if there are more.
    pub next: Option<u16>,
}

/// Reads a `GetObjectAttributesResponse` for its parts. Errors: `BadResponse`.
pub fn object_attributes(document: &[u8]) -> Result<AttributesPage> {
    let blank = || ObjectPart { number: 0, size: 0, checksum: None };
    let (mut page, mut part) = (AttributesPage::default(), blank());
    let (mut is_truncated, mut next) = (false, None);
    for_each_element(document, "GetObjectAttributes", |path, text| {
        match path {
            "ObjectParts/Part/PartNumber" => part.number = number(path, text)?,
            "ObjectParts/Part/Size" => part.size = number(path, text)?,
            "ObjectParts/Part" => page.parts.push(std::mem::replace(&mut part, blank())),
            "ObjectParts/PartsCount" | "ObjectParts/TotalPartsCount" => page.total = number(path, text)?,
            "ObjectParts/IsTruncated" => is_truncated = text.trim() == "true",
            "ObjectParts/NextPartNumberMarker" => next = Some(number(path, text)?),
            other => {
                let found = other.strip_prefix("ObjectParts/Part/").and_then(|name| checksum(name, text));
                part.checksum = found.or(part.checksum.take());
            }
        }
        Ok(())
    })?;
    page.next = next.filter(|_| is_truncated);
    Ok(page)
}

#[cfg(test)]
mod tests {
    use fordway_store::ChecksumAlgorithm;
    use proptest::prelude::*;

    use super::super::tagging;
    use super::*;

    #[test]
    fn copies() {
        let document = b"<CopyPartResult><LastModified>2011-04-11T20:34:56.000Z</LastModified>\
            <ETag>\"9b2c\"</ETag><ChecksumCRC32>y/Q5Jg==</ChecksumCRC32></CopyPartResult>";
        let sum = Checksum::of(ChecksumAlgorithm::Crc32, b"123456789");
        let copy = Copied::Done(ETag::new("9b2c"), time("2011-04-11T20:34:56Z"), Some(sum));
        assert_eq!(copied(document).unwrap(), copy);
        assert!(matches!(copied(b"<Error><Code>SlowDown</Code></Error>").unwrap(), Copied::Failed(_)));
    }

    #[test]
    fn deletions_and_those_that_failed() {
        let document = b"<DeleteResult><Deleted><Key>a</Key></Deleted><Error><Key>b&#x1;</Key>\
            <Code>AccessDenied</Code><Message>no</Message></Error><Deleted><Key>c</Key>\
            <DeleteMarker>true</DeleteMarker><DeleteMarkerVersionId>v</DeleteMarkerVersionId></Deleted>\
            </DeleteResult>";
        let DeleteOutcome { deleted, failures } = delete_result(document).unwrap();
        assert_eq!(failures.len(), 1);
        assert_eq!((failures[0].key.as_str(), failures[0].code.as_str()), ("b\u{1}", "AccessDenied"));
        let marker = Deleted { version: VersionId::new("v").ok(), is_marker: true };
        assert_eq!(deleted, [("a".into(), Deleted::default()), ("c".into(), marker)]);
        assert!(delete_result(b"<Other/>").is_err());
    }

    #[test]
    fn parts_of_an_object() {
        let document = b"<GetObjectAttributesResponse><ETag>t-3</ETag><ObjectParts>\
            <IsTruncated>true</IsTruncated><NextPartNumberMarker>2</NextPartNumberMarker>\
            <Part><PartNumber>1</PartNumber><Size>9</Size><ChecksumCRC32>y/Q5Jg==</ChecksumCRC32></Part>\
            <Part><PartNumber>2</PartNumber><Size>5</Size></Part><PartsCount>3</PartsCount>\
            </ObjectParts></GetObjectAttributesResponse>";
        let page = object_attributes(document).unwrap();
        assert_eq!((page.parts.len(), page.total, page.next), (2, 3, Some(2)));
        let sum = Checksum::of(ChecksumAlgorithm::Crc32, b"123456789");
        assert_eq!(page.parts[0], ObjectPart { number: 1, size: 9, checksum: Some(sum) });
        assert_eq!(page.parts[1], ObjectPart { number: 2, size: 5, checksum: None });
    }

    proptest! {
        #[test]
        fn any_tags_survive(tags in prop::collection::btree_map("[^\0]{1,20}", "[^\0]{0,20}", 0..5)) {
            prop_assert_eq!(object_tags(tagging(&tags).as_bytes()).unwrap(), tags);
        }
    }
}
