//! The answers of multipart uploads.

use std::time::UNIX_EPOCH;

use fordway_store::{
    Checksum, ChecksumAlgorithm, ChecksumType, ETag, PartInfo, PartListing, Result, UploadId, UploadListing,
    UploadSummary,
};

use super::{
    ErrorDocument, checksum, decoded, error_document, etag, for_each_element, number, plan, required, time,
};

/// How a completion ended. S3 sends the status before it has joined the parts, so that a failure
/// may arrive under status 200.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CompletedUpload {
    /// The object is there, with this tag, and with this checksum where the parts had one.
    Published(ETag, Option<Checksum>),
    /// It is not.
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

/// Reads the answer to a completion. Errors: `BadResponse`.
pub fn complete_multipart_upload_result(document: &[u8]) -> Result<CompletedUpload> {
    const TAG: &str = "ETag";
    if let Some(error) = error_document(document)? {
        return Ok(CompletedUpload::Failed(error));
    }
    let (mut tag, mut sum) = (None, None);
    for_each_element(document, "CompleteMultipartUpload", |path, text| {
        match path {
            TAG => tag = Some(etag(text)),
            other => sum = checksum(other, text).or(sum.take()),
        }
        Ok(())
    })?;
    Ok(CompletedUpload::Published(required(tag, TAG)?, sum))
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

/// One page of uploads as the server sent it, names decoded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UploadsPage {
    /// The uploads.
    pub listing: UploadListing,
    /// The key to go on from.
    pub next_key: Option<String>,
    /// The upload of that key to go on from.
    pub next_upload: Option<String>,
}

/// Reads a `ListMultipartUploadsResult`. Errors: `BadResponse`.
pub fn list_uploads(document: &[u8]) -> Result<UploadsPage> {
    let mut page = UploadsPage::default();
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

#[cfg(test)]
mod tests {
    use fordway_store::ErrorKind;

    use super::*;

    #[test]
    fn an_upload_from_start_to_end() {
        let started = b"<InitiateMultipartUploadResult><Bucket>b</Bucket><UploadId>VX.pY/x</UploadId>\
            </InitiateMultipartUploadResult>";
        assert_eq!(initiate_multipart_upload(started).unwrap().as_str(), "VX.pY/x");
        let done =
            b"<CompleteMultipartUploadResult><ETag>&#34;x-2&#34;</ETag></CompleteMultipartUploadResult>";
        let published = CompletedUpload::Published(ETag::new("x-2"), None);
        assert_eq!(complete_multipart_upload_result(done).unwrap(), published);
        let nothing = initiate_multipart_upload(b"<InitiateMultipartUploadResult/>");
        assert_eq!(nothing.unwrap_err().kind(), ErrorKind::BadResponse);
    }

    #[test]
    fn a_completion_may_fail_under_status_200() {
        let document = b"<?xml version=\"1.0\"?>  \n <Error><Code>InternalError</Code></Error>";
        match complete_multipart_upload_result(document).unwrap() {
            CompletedUpload::Failed(error) => assert_eq!(error.code, "InternalError"),
            CompletedUpload::Published(..) => panic!("an error was taken for success"),
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
}
