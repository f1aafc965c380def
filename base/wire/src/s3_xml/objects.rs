//! Responses about objects: copies, deletions, tags, attributes, multipart uploads and access control lists.

use std::time::{SystemTime, UNIX_EPOCH};

use fordway_store::{
    Checksum, ChecksumAlgorithm, ChecksumType, DeleteResult, ETag, ObjectPart, PartInfo, PartListing, Result,
    Tags, UploadId, UploadListing, UploadSummary, VersionId,
};

use super::{
    ErrorDocument, checksum, decoded, error_document, etag, for_each_element, number, plan, required, time,
};

/// The result of a copy of an object or part. Like the completion of an upload, a copy may fail under status 200.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CopyResult {
    /// The copy exists, with this ETag and time, and with this checksum if it has one.
    Done(ETag, SystemTime, Option<Checksum>),
    /// The copy failed.
    Failed(ErrorDocument),
}

/// Reads a `CopyObjectResult` or `CopyPartResult`. Errors: `BadResponse`.
pub fn copied(document: &[u8]) -> Result<CopyResult> {
    if let Some(error) = error_document(document)? {
        return Ok(CopyResult::Failed(error));
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
    Ok(CopyResult::Done(required(tag, "ETag")?, modified, sum))
}

/// An object or a version that could not be deleted, and why.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeleteFailure {
    /// The key.
    pub key: String,
    /// The version, if the response names it.
    pub version: Option<VersionId>,
    /// S3's error code.
    pub code: String,
    /// A human-readable message.
    pub message: String,
}

/// The result of a request to delete several keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeleteObjectsResult {
    /// Keys that were deleted, each with the result of the delete.
    pub deleted: Vec<(String, DeleteResult)>,
    /// Keys that were not deleted.
    pub failures: Vec<DeleteFailure>,
}

/// Reads a `DeleteResult`. Errors: `BadResponse`.
pub fn delete_result(document: &[u8]) -> Result<DeleteObjectsResult> {
    let mut outcome = DeleteObjectsResult::default();
    let (mut key, mut deleted, mut failure) =
        (String::new(), DeleteResult::default(), DeleteFailure::default());
    for_each_element(document, "Delete", |path, text| {
        match path {
            "Deleted/Key" => text.clone_into(&mut key),
            "Deleted/DeleteMarker" => deleted.is_marker = text.trim() == "true",
            // For a delete marker that was removed, the document contains both IDs, and they are equal.
            "Deleted/VersionId" | "Deleted/DeleteMarkerVersionId" => {
                deleted.version = VersionId::new(text).ok();
            }
            "Deleted" => outcome.deleted.push((std::mem::take(&mut key), std::mem::take(&mut deleted))),
            "Error/Key" => text.clone_into(&mut failure.key),
            "Error/VersionId" => failure.version = VersionId::new(text).ok(),
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

/// One page of the parts that an object was assembled from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectPartsPage {
    /// The parts, with the server's part numbers.
    pub parts: Vec<ObjectPart>,
    /// The number of parts of the object; S3 itself lists only parts that were sent with checksums.
    pub total: u16,
    /// The part number after which the next page starts, if there is one.
    pub next: Option<u16>,
}

/// Reads the parts from a `GetObjectAttributesResponse`. Errors: `BadResponse`.
pub fn object_attributes(document: &[u8]) -> Result<ObjectPartsPage> {
    let blank = || ObjectPart { number: 0, size: 0, checksum: None };
    let (mut page, mut part) = (ObjectPartsPage::default(), blank());
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

/// The result of the completion of an upload. S3 sends the status before it has assembled the parts, so a failure may
/// arrive under status 200.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UploadCompletionResult {
    /// The object exists, with this ETag, and with this checksum if the parts had one.
    Published(ETag, Option<Checksum>),
    /// The completion failed.
    Failed(ErrorDocument),
}

/// Reads an `InitiateMultipartUploadResult`. Errors: `BadResponse`.
pub fn initiate_multipart_upload(document: &[u8]) -> Result<UploadId> {
    const ID: &str = "UploadId";
    let mut id = None;
    for_each_element(document, "InitiateMultipartUpload", |path, text| {
        if path == ID && !text.is_empty() {
            id = Some(UploadId::foreign(text));
        }
        Ok(())
    })?;
    required(id, ID)
}

/// Reads the response to a CompleteMultipartUpload request. Errors: `BadResponse`.
pub fn complete_multipart_upload_result(document: &[u8]) -> Result<UploadCompletionResult> {
    const TAG: &str = "ETag";
    if let Some(error) = error_document(document)? {
        return Ok(UploadCompletionResult::Failed(error));
    }
    let (mut tag, mut sum) = (None, None);
    for_each_element(document, "CompleteMultipartUpload", |path, text| {
        match path {
            TAG => tag = Some(etag(text)),
            other => sum = checksum(other, text).or(sum.take()),
        }
        Ok(())
    })?;
    Ok(UploadCompletionResult::Published(required(tag, TAG)?, sum))
}

/// Reads a `ListPartsResult`. Errors: `BadResponse`.
pub fn list_parts(document: &[u8]) -> Result<PartListing> {
    let mut listing = PartListing::default();
    let blank = || PartInfo { number: 0, size: 0, etag: ETag::new(""), modified: UNIX_EPOCH, checksum: None };
    let mut part = blank();
    let (mut algorithm, mut kind) = (None, None);
    for_each_element(document, "ListParts", |path, text| {
        match path {
            "Part/PartNumber" => part.number = number(path, text)?,
            "Part/Size" => part.size = number(path, text)?,
            "Part/ETag" => part.etag = etag(text),
            "Part/LastModified" => part.modified = time(text),
            "Part" => listing.parts.push(std::mem::replace(&mut part, blank())),
            "IsTruncated" => listing.truncated = text.trim() == "true",
            "ChecksumAlgorithm" => algorithm = ChecksumAlgorithm::from_name(text.trim()),
            "ChecksumType" => kind = ChecksumType::from_name(text.trim()),
            other => {
                let found = other.strip_prefix("Part/").and_then(|name| checksum(name, text));
                part.checksum = found.or(part.checksum.take());
            }
        }
        Ok(())
    })?;
    listing.checksum = plan(algorithm, kind);
    Ok(listing)
}

/// One page of uploads as the server sent it, with names decoded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MultipartUploadsPage {
    /// The uploads.
    pub listing: UploadListing,
    /// The key to continue from.
    pub next_key: Option<String>,
    /// The upload to continue from, among the uploads of that key.
    pub next_upload: Option<String>,
}

/// Reads a `ListMultipartUploadsResult`. Errors: `BadResponse`.
pub fn list_uploads(document: &[u8]) -> Result<MultipartUploadsPage> {
    let mut page = MultipartUploadsPage::default();
    let mut url_encoded = false;
    let blank = || UploadSummary {
        key: String::new(),
        upload: UploadId::foreign(""),
        started: UNIX_EPOCH,
        checksum: None,
    };
    let mut upload = blank();
    let (mut algorithm, mut kind) = (None, None);
    for_each_element(document, "ListMultipartUploads", |path, text| {
        match path {
            "Upload/Key" => text.clone_into(&mut upload.key),
            "Upload/UploadId" => upload.upload = UploadId::foreign(text),
            "Upload/Initiated" => upload.started = time(text),
            "Upload/ChecksumAlgorithm" => algorithm = ChecksumAlgorithm::from_name(text.trim()),
            "Upload/ChecksumType" => kind = ChecksumType::from_name(text.trim()),
            "Upload" => {
                upload.checksum = plan(algorithm.take(), kind.take());
                page.listing.uploads.push(std::mem::replace(&mut upload, blank()));
            }
            "IsTruncated" => page.listing.truncated = text.trim() == "true",
            "NextKeyMarker" if !text.is_empty() => page.next_key = Some(text.to_owned()),
            "NextUploadIdMarker" if !text.is_empty() => page.next_upload = Some(text.to_owned()),
            "EncodingType" => url_encoded = text.trim() == "url",
            _ => {}
        }
        Ok(())
    })?;
    for upload in &mut page.listing.uploads {
        upload.key = decoded(std::mem::take(&mut upload.key), url_encoded)?;
    }
    page.next_key = page.next_key.map(|key| decoded(key, url_encoded)).transpose()?;
    Ok(page)
}

/// An `AccessControlPolicy`. Missing strings are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AclDocument {
    /// The owner's canonical id.
    pub owner_id: String,
    /// The owner's name.
    pub owner_name: String,
    /// The grants.
    pub grants: Vec<GrantElement>,
}

/// One grant. Only the strings that apply to the grantee's kind are set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GrantElement {
    /// The e-mail address, if the grant identifies the user by e-mail address.
    pub email: String,
    /// The canonical ID, if the grant identifies the user by canonical ID.
    pub id: String,
    /// The name, if the grant identifies the user by canonical ID.
    pub name: String,
    /// The URI, for a group.
    pub uri: String,
    /// `READ`, `WRITE`, `READ_ACP`, `WRITE_ACP` or `FULL_CONTROL`.
    pub permission: String,
}

/// Reads an `AccessControlPolicy`. Errors: `BadResponse`.
pub fn access_control_policy(document: &[u8]) -> Result<AclDocument> {
    let mut acl = AclDocument::default();
    let mut grant = GrantElement::default();
    for_each_element(document, "AccessControlPolicy", |path, text| {
        match path {
            "Owner/ID" => acl.owner_id = text.to_owned(),
            "Owner/DisplayName" => acl.owner_name = text.to_owned(),
            "AccessControlList/Grant/Grantee/EmailAddress" => grant.email = text.to_owned(),
            "AccessControlList/Grant/Grantee/ID" => grant.id = text.to_owned(),
            "AccessControlList/Grant/Grantee/DisplayName" => grant.name = text.to_owned(),
            "AccessControlList/Grant/Grantee/URI" => grant.uri = text.to_owned(),
            "AccessControlList/Grant/Permission" => grant.permission = text.to_owned(),
            "AccessControlList/Grant" => acl.grants.push(std::mem::take(&mut grant)),
            _ => {}
        }
        Ok(())
    })?;
    Ok(acl)
}

#[cfg(test)]
mod tests {
    use fordway_store::{ChecksumAlgorithm, ErrorKind};
    use proptest::prelude::*;

    use super::super::tagging;
    use super::*;

    #[test]
    fn copies() {
        let document = b"<CopyPartResult><LastModified>2011-04-11T20:34:56.000Z</LastModified>\
            <ETag>\"9b2c\"</ETag><ChecksumCRC32>y/Q5Jg==</ChecksumCRC32></CopyPartResult>";
        let sum = Checksum::of(ChecksumAlgorithm::Crc32, b"123456789");
        let copy = CopyResult::Done(ETag::new("9b2c"), time("2011-04-11T20:34:56Z"), Some(sum));
        assert_eq!(copied(document).unwrap(), copy);
        assert!(matches!(copied(b"<Error><Code>SlowDown</Code></Error>").unwrap(), CopyResult::Failed(_)));
    }

    #[test]
    fn deletions_and_those_that_failed() {
        let document = b"<DeleteResult><Deleted><Key>a</Key></Deleted><Error><Key>b&#x1;</Key>\
            <VersionId>w</VersionId><Code>AccessDenied</Code><Message>no</Message></Error><Deleted><Key>c</Key>\
            <DeleteMarker>true</DeleteMarker><DeleteMarkerVersionId>v</DeleteMarkerVersionId></Deleted>\
            </DeleteResult>";
        let DeleteObjectsResult { deleted, failures } = delete_result(document).unwrap();
        assert_eq!((failures.len(), &failures[0].version), (1, &VersionId::new("w").ok()));
        assert_eq!((failures[0].key.as_str(), failures[0].code.as_str()), ("b\u{1}", "AccessDenied"));
        let marker = DeleteResult { version: VersionId::new("v").ok(), is_marker: true };
        assert_eq!(deleted, [("a".into(), DeleteResult::default()), ("c".into(), marker)]);
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

    #[test]
    fn an_upload_from_start_to_end() {
        let started = b"<InitiateMultipartUploadResult><Bucket>b</Bucket><UploadId>VX.pY/x</UploadId>\
            </InitiateMultipartUploadResult>";
        assert_eq!(initiate_multipart_upload(started).unwrap().as_str(), "VX.pY/x");
        let done =
            b"<CompleteMultipartUploadResult><ETag>&#34;x-2&#34;</ETag></CompleteMultipartUploadResult>";
        let published = UploadCompletionResult::Published(ETag::new("x-2"), None);
        assert_eq!(complete_multipart_upload_result(done).unwrap(), published);
        let nothing = initiate_multipart_upload(b"<InitiateMultipartUploadResult/>");
        assert_eq!(nothing.unwrap_err().kind(), ErrorKind::BadResponse);
    }

    #[test]
    fn a_completion_may_fail_under_status_200() {
        let document = b"<?xml version=\"1.0\"?>  \n <Error><Code>InternalError</Code></Error>";
        match complete_multipart_upload_result(document).unwrap() {
            UploadCompletionResult::Failed(error) => assert_eq!(error.code, "InternalError"),
            UploadCompletionResult::Published(..) => panic!("an error was taken for success"),
        }
    }

    #[test]
    fn listings() {
        let parts = b"<ListPartsResponse><Part><PartNumber>2</PartNumber><ETag>\"t\"</ETag><Size>9</Size>\
            <ChecksumCRC32>y/Q5Jg==</ChecksumCRC32></Part>\
            <IsTruncated>true</IsTruncated></ListPartsResponse>";
        let listing = list_parts(parts).unwrap();
        let sum = listing.parts[0].checksum.as_ref().map(Checksum::to_base64);
        assert_eq!(sum.as_deref(), Some("y/Q5Jg=="));
        assert_eq!((listing.parts[0].number, listing.parts[0].size, listing.truncated), (2, 9, true));
        let uploads = b"<ListMultipartUploadsResult><EncodingType>url</EncodingType>\
            <NextKeyMarker>a%20b</NextKeyMarker><NextUploadIdMarker>u</NextUploadIdMarker>\
            <Upload><Key>a%20b</Key><UploadId>u</UploadId><Initiator><ID>1</ID></Initiator></Upload>\
            </ListMultipartUploadsResult>";
        let page = list_uploads(uploads).unwrap();
        assert_eq!((page.listing.uploads[0].key.as_str(), page.next_key.as_deref()), ("a b", Some("a b")));
    }

    #[test]
    fn grants_do_not_mix() {
        let document = b"<AccessControlPolicy><Owner><ID>o</ID></Owner><AccessControlList>\
            <Grant><Grantee><ID>u</ID><DisplayName>U</DisplayName></Grantee><Permission>READ</Permission></Grant>\
            <Grant><Grantee><URI>g</URI></Grantee><Permission>WRITE</Permission></Grant>\
            </AccessControlList></AccessControlPolicy>";
        let acl = access_control_policy(document).unwrap();
        assert_eq!((acl.owner_id.as_str(), acl.owner_name.as_str()), ("o", ""));
        let user = GrantElement {
            id: "u".into(),
            name: "U".into(),
            permission: "READ".into(),
            ..Default::default()
        };
        let group = GrantElement { uri: "g".into(), permission: "WRITE".into(), ..Default::default() };
        assert_eq!(acl.grants, [user, group]);
    }
}
