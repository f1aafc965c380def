//! Lists: all buckets, the versioning state of one bucket, a page of a bucket's listing (for version 1 or 2 of the
//! request), and a page of versions and delete markers. The page of versions is both read and written.
//!
//! Versions and delete markers form one sequence, sorted by key and then from the newest to the oldest. A derived
//! serializer would write two lists, and lose the order of a key's versions and delete markers.

use std::time::{SystemTime, UNIX_EPOCH};

use fordway_store::{
    ChecksumAlgorithm, ChecksumAlgorithmAndType, ChecksumType, ETag, Error, ErrorKind, ObjectSummary, Result,
    VersionId, VersionListing, VersionSummary, VersioningState, VersionsQuery,
};

use super::bodies::{opened, push_element};
use super::{bad, decoded, etag, for_each_element, number, plan, time};
use crate::date;

/// A page as the server sent it, with names decoded. Objects and prefixes are in separate lists, as in S3.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListObjectsPage {
    /// The objects.
    pub objects: Vec<ObjectSummary>,
    /// Common prefixes, each of which represents one or more keys.
    pub common_prefixes: Vec<String>,
    /// Whether there is another page.
    pub truncated: bool,
    /// Version 2: the token of the next page.
    pub next_token: Option<String>,
    /// Version 1: the marker of the next page; servers state it only with a delimiter.
    pub next_marker: Option<String>,
}

/// Reads a `ListBucketResult`. Errors: `BadResponse`.
pub fn list_bucket(document: &[u8]) -> Result<ListObjectsPage> {
    let mut page = ListObjectsPage::default();
    let mut url_encoded = false;
    let mut object = blank();
    let (mut algorithm, mut kind) = (None, None);
    for_each_element(document, "ListBucket", |path, text| {
        match path {
            "Contents/Key" => text.clone_into(&mut object.key),
            "Contents/Size" => object.size = number(path, text)?,
            "Contents/ETag" => object.etag = etag(text),
            "Contents/LastModified" => object.modified = time(text),
            "Contents/ChecksumAlgorithm" => algorithm = ChecksumAlgorithm::from_name(text.trim()),
            "Contents/ChecksumType" => kind = ChecksumType::from_name(text.trim()),
            "Contents" => {
                object.checksum = plan(algorithm.take(), kind.take());
                page.objects.push(std::mem::replace(&mut object, blank()));
            }
            "CommonPrefixes/Prefix" => page.common_prefixes.push(text.to_owned()),
            "IsTruncated" => page.truncated = text.trim() == "true",
            "NextContinuationToken" => page.next_token = Some(text.to_owned()),
            "NextMarker" => page.next_marker = Some(text.to_owned()),
            "EncodingType" => url_encoded = text.trim() == "url",
            _ => {}
        }
        Ok(())
    })?;
    page.decode_names(url_encoded)
}

fn blank() -> ObjectSummary {
    ObjectSummary { key: String::new(), size: 0, etag: ETag::new(""), modified: UNIX_EPOCH, checksum: None }
}

impl ListObjectsPage {
    fn decode_names(mut self, url_encoded: bool) -> Result<Self> {
        for object in &mut self.objects {
            object.key = decoded(std::mem::take(&mut object.key), url_encoded)?;
        }
        for prefix in &mut self.common_prefixes {
            *prefix = decoded(std::mem::take(prefix), url_encoded)?;
        }
        self.next_marker = self.next_marker.map(|marker| decoded(marker, url_encoded)).transpose()?;
        Ok(self)
    }
}

/// A bucket in the server's list; its name may be invalid according to [`fordway_store::Bucket`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedBucket {
    /// The name.
    pub name: String,
    /// The time at which the bucket was created.
    pub created: SystemTime,
}

/// Reads a `ListAllMyBucketsResult`: the buckets, and the token of the next page if there is one.
/// Errors: `BadResponse`.
pub fn list_all_my_buckets(document: &[u8]) -> Result<(Vec<ListedBucket>, Option<String>)> {
    let (mut buckets, mut next) = (Vec::new(), None);
    let mut bucket = ListedBucket { name: String::new(), created: UNIX_EPOCH };
    for_each_element(document, "ListAllMyBuckets", |path, text| {
        match path {
            "Buckets/Bucket/Name" => text.clone_into(&mut bucket.name),
            "Buckets/Bucket/CreationDate" => bucket.created = time(text),
            "Buckets/Bucket" => buckets.push(bucket.clone()),
            "ContinuationToken" if !text.is_empty() => next = Some(text.to_owned()),
            _ => {}
        }
        Ok(())
    })?;
    Ok((buckets, next))
}

/// Reads a `VersioningConfiguration`. Errors: `BadResponse`.
pub fn bucket_versioning(document: &[u8]) -> Result<VersioningState> {
    let mut found = VersioningState::Unversioned;
    for_each_element(document, "VersioningConfiguration", |path, text| {
        if path == "Status" {
            found = match text.trim() {
                "Enabled" => VersioningState::Enabled,
                "Suspended" => VersioningState::Suspended,
                other => return Err(bad(format!("the versioning status is {other:?}"))),
            };
        }
        Ok(())
    })?;
    Ok(found)
}

/// The data that a response to a query for versions needs in addition to the page itself.
pub struct VersionsResponseContext<'a> {
    /// The name of the bucket.
    pub bucket: &'a str,
    /// The query that selected the page.
    pub query: &'a VersionsQuery,
    /// Returns a name as it appears in the response: URL-encoded if the client requested URL encoding.
    pub encode: &'a dyn Fn(&str) -> String,
    /// Whether names are encoded.
    pub is_url_encoded: bool,
    /// The identifier of the owner of all versions.
    pub owner: &'a str,
}

/// Writes a `ListVersionsResult`.
pub fn list_versions_result(answer: &VersionsResponseContext, page: &VersionListing) -> String {
    let VersionsResponseContext { query, encode, .. } = answer;
    let mut body = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>");
    body.push_str(&opened("ListVersionsResult", 512 * page.versions.len()));
    push_element(&mut body, "Name", answer.bucket);
    push_element(&mut body, "Prefix", &encode(&query.prefix));
    push_element(&mut body, "KeyMarker", &encode(query.key_after.as_deref().unwrap_or_default()));
    push_element(&mut body, "VersionIdMarker", query.version_after.as_ref().map_or("", VersionId::as_str));
    push_element(&mut body, "MaxKeys", &query.max_keys.to_string());
    if let Some(delimiter) = &query.delimiter {
        push_element(&mut body, "Delimiter", &encode(delimiter));
    }
    if answer.is_url_encoded {
        push_element(&mut body, "EncodingType", "url");
    }
    push_element(&mut body, "IsTruncated", if page.next.is_some() { "true" } else { "false" });
    if let Some((key, version)) = &page.next {
        push_element(&mut body, "NextKeyMarker", &encode(key));
        push_element(&mut body, "NextVersionIdMarker", version.as_ref().map_or("", VersionId::as_str));
    }
    page.versions.iter().for_each(|version| push_version(&mut body, version, answer));
    for prefix in &page.prefixes {
        body.push_str("<CommonPrefixes>");
        push_element(&mut body, "Prefix", &encode(prefix));
        body.push_str("</CommonPrefixes>");
    }
    body.push_str("</ListVersionsResult>");
    body
}

fn push_version(body: &mut String, version: &VersionSummary, answer: &VersionsResponseContext) {
    let element = if version.content.is_some() { "Version" } else { "DeleteMarker" };
    body.push_str(&format!("<{element}>"));
    push_element(body, "Key", &(answer.encode)(&version.key));
    push_element(body, "VersionId", version.version.as_str());
    push_element(body, "IsLatest", if version.is_latest { "true" } else { "false" });
    push_element(body, "LastModified", &date::format_iso8601(version.modified));
    if let Some((size, tag)) = &version.content {
        push_element(body, "ETag", &format!("\"{tag}\""));
        if let Some(ChecksumAlgorithmAndType { algorithm, kind }) = version.checksum {
            push_element(body, "ChecksumAlgorithm", algorithm.name());
            push_element(body, "ChecksumType", kind.name());
        }
        push_element(body, "Size", &size.to_string());
        push_element(body, "StorageClass", "STANDARD");
    }
    body.push_str("<Owner>");
    push_element(body, "ID", answer.owner);
    push_element(body, "DisplayName", answer.owner);
    body.push_str(&format!("</Owner></{element}>"));
}

/// Reads a `ListVersionsResult`. Names are decoded, and `next` is set if there are more versions.
/// Errors: `BadResponse`.
pub fn list_versions(document: &[u8]) -> Result<VersionListing> {
    let mut page = VersionListing::default();
    let (mut is_truncated, mut is_url_encoded) = (false, false);
    let (mut next_key, mut next_version) = (None, None);
    let mut version = VersionEntryBuilder::default();
    for_each_element(document, "ListVersions", |path, text| {
        match path {
            "Version" | "DeleteMarker" => {
                let is_object = path == "Version";
                page.versions.push(std::mem::take(&mut version).finish(is_object)?);
            }
            "CommonPrefixes/Prefix" => page.prefixes.push(text.to_owned()),
            "IsTruncated" => is_truncated = text.trim() == "true",
            "NextKeyMarker" => next_key = Some(text.to_owned()),
            "NextVersionIdMarker" if !text.is_empty() => next_version = Some(VersionId::new(text)?),
            "EncodingType" => is_url_encoded = text.trim() == "url",
            _ => version.set(path, text)?,
        }
        Ok(())
    })?;
    for name in page.versions.iter_mut().map(|version| &mut version.key).chain(&mut page.prefixes) {
        *name = decoded(std::mem::take(name), is_url_encoded)?;
    }
    let next_key = next_key.map(|key| decoded(key, is_url_encoded)).transpose()?;
    if is_truncated && next_key.is_none() {
        let detail = "the listing of versions continues, but the response does not say where; report this to the operator of the service";
        return Err(Error::new(ErrorKind::BadResponse, detail));
    }
    page.next = next_key.filter(|_| is_truncated).map(|key| (key, next_version));
    Ok(page)
}

/// A version whose elements are still being read.
#[derive(Default)]
struct VersionEntryBuilder {
    key: String,
    version: String,
    is_latest: bool,
    modified: Option<std::time::SystemTime>,
    size: u64,
    tag: Option<ETag>,
    algorithm: Option<ChecksumAlgorithm>,
    kind: Option<ChecksumType>,
}

impl VersionEntryBuilder {
    fn set(&mut self, path: &str, text: &str) -> Result<()> {
        match path.split_once('/') {
            Some(("Version" | "DeleteMarker", "Key")) => text.clone_into(&mut self.key),
            Some(("Version" | "DeleteMarker", "VersionId")) => text.clone_into(&mut self.version),
            Some(("Version" | "DeleteMarker", "IsLatest")) => self.is_latest = text.trim() == "true",
            Some(("Version" | "DeleteMarker", "LastModified")) => self.modified = Some(time(text)),
            Some(("Version", "Size")) => self.size = number(path, text)?,
            Some(("Version", "ETag")) => self.tag = Some(etag(text)),
            Some(("Version", "ChecksumAlgorithm")) => {
                self.algorithm = ChecksumAlgorithm::from_name(text.trim());
            }
            Some(("Version", "ChecksumType")) => self.kind = ChecksumType::from_name(text.trim()),
            _ => {}
        }
        Ok(())
    }

    fn finish(self, is_object: bool) -> Result<VersionSummary> {
        // A service that keeps no versions may omit the version ID.
        let version = match self.version.as_str() {
            "" => VersionId::null(),
            name => VersionId::new(name)?,
        };
        let tag = self.tag.unwrap_or_else(|| ETag::new(""));
        Ok(VersionSummary {
            key: self.key,
            version,
            is_latest: self.is_latest,
            modified: self.modified.unwrap_or(UNIX_EPOCH),
            content: is_object.then_some((self.size, tag)),
            checksum: plan(self.algorithm, self.kind),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use fordway_store::ErrorKind;
    use proptest::prelude::*;

    use super::super::versioning_configuration;
    use super::*;

    const PAGE: &str = "<ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">\
        <Name>b</Name><Prefix></Prefix><KeyCount>3</KeyCount><MaxKeys>3</MaxKeys>\
        <IsTruncated>true</IsTruncated><NextContinuationToken>t+1</NextContinuationToken>\
        <Contents><Key>a+b%2Fc%0A</Key><LastModified>2009-10-12T17:50:30.000Z</LastModified>\
        <ETag>&quot;fba9&quot;</ETag><Size>434234</Size><Owner><ID>x</ID></Owner></Contents>\
        <Contents><Key>z</Key><ETag>\"2\"</ETag><Size>0</Size></Contents>\
        <CommonPrefixes><Prefix>p%2F</Prefix></CommonPrefixes>\
        <EncodingType>url</EncodingType></ListBucketResult>";

    #[test]
    fn version_2_with_encoded_names() {
        let page = list_bucket(PAGE.as_bytes()).unwrap();
        let keys: Vec<_> = page.objects.iter().map(|object| object.key.as_str()).collect();
        assert_eq!(keys, ["a b/c\n", "z"]);
        assert_eq!((page.objects[0].size, page.objects[0].etag.as_str()), (434_234, "fba9"));
        assert_eq!(page.objects[0].modified, time("2009-10-12T17:50:30Z"));
        assert_eq!(page.common_prefixes, ["p/"]);
        assert_eq!((page.truncated, page.next_token.as_deref()), (true, Some("t+1")));
    }

    #[test]
    fn version_1_as_it_stands() {
        let document = "<ListBucketResult><Marker/><IsTruncated>false</IsTruncated>\
            <NextMarker>a+b</NextMarker><Contents><Key> a+b </Key><Size>1</Size></Contents></ListBucketResult>";
        let page = list_bucket(document.as_bytes()).unwrap();
        assert_eq!(page.objects[0].key, " a+b ");
        assert_eq!(page.next_marker.as_deref(), Some("a+b"));
    }

    #[test]
    fn a_size_that_is_no_number_is_an_error() {
        let document = PAGE.replace("434234", "-1");
        assert_eq!(list_bucket(document.as_bytes()).unwrap_err().kind(), ErrorKind::BadResponse);
    }

    #[test]
    fn versioning_both_ways() {
        for state in [VersioningState::Unversioned, VersioningState::Enabled, VersioningState::Suspended] {
            assert_eq!(bucket_versioning(versioning_configuration(state).as_bytes()).unwrap(), state);
        }
        let odd = b"<VersioningConfiguration><Status>Maybe</Status></VersioningConfiguration>";
        assert!(bucket_versioning(odd).is_err());
    }

    #[test]
    fn reads_names_and_times() {
        let document = b"<ListAllMyBucketsResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">\
            <Owner><ID>x</ID></Owner><Buckets>\
            <Bucket><Name>a</Name><CreationDate>2013-05-24T00:00:00.000Z</CreationDate></Bucket>\
            <Bucket><Name>b</Name></Bucket></Buckets></ListAllMyBucketsResult>";
        let (buckets, next) = list_all_my_buckets(document).unwrap();
        assert_eq!(buckets.iter().map(|bucket| bucket.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(buckets[0].created, time("2013-05-24T00:00:00Z"));
        assert_eq!(next, None);
    }

    fn written(page: &VersionListing, is_url_encoded: bool) -> String {
        let encode = |name: &str| {
            let mut encoded = String::new();
            match is_url_encoded {
                true => crate::uri::push_path(&mut encoded, name),
                false => encoded.push_str(name),
            }
            encoded
        };
        let query = VersionsQuery::default();
        let answer = VersionsResponseContext {
            bucket: "b",
            query: &query,
            encode: &encode,
            is_url_encoded,
            owner: "me",
        };
        list_versions_result(&answer, page)
    }

    fn version() -> impl Strategy<Value = VersionSummary> {
        let content = prop::option::of((any::<u32>(), "[0-9a-f]{1,40}"));
        ("[^\0]{1,20}", "[!-~]{1,20}", any::<bool>(), 0..4_000_000_000_000_u64, content).prop_map(
            |(key, version, is_latest, ms, content)| VersionSummary {
                key,
                version: VersionId::new(version).unwrap(),
                is_latest,
                modified: UNIX_EPOCH + Duration::from_millis(ms),
                checksum: content.as_ref().map(|_| ChecksumAlgorithmAndType {
                    algorithm: ChecksumAlgorithm::Crc32,
                    kind: ChecksumType::FullObject,
                }),
                content: content.map(|(size, tag)| (u64::from(size), ETag::new(&tag))),
            },
        )
    }

    proptest! {
        #[test]
        fn any_page_survives(
            versions in prop::collection::vec(version(), 0..4),
            prefixes in prop::collection::vec("[^\0]{1,20}", 0..3),
            next in prop::option::of(("[^\0]{1,20}", prop::option::of("[!-~]{1,20}"))),
            is_url_encoded in any::<bool>(),
        ) {
            let next = next.map(|(key, id)| (key, id.map(|id| VersionId::new(id).unwrap())));
            let page = VersionListing { versions, prefixes, next };
            prop_assert_eq!(list_versions(written(&page, is_url_encoded).as_bytes()).unwrap(), page);
        }
    }

    #[test]
    fn a_service_without_versions_names_none() {
        let document = b"<ListVersionsResult><Version><Key>k</Key><VersionId>null</VersionId>\
            <Size>3</Size></Version><Version><Key>l</Key></Version></ListVersionsResult>";
        let page = list_versions(document).unwrap();
        assert!(page.versions.iter().all(|version| version.version.is_null()));
        assert_eq!(page.versions[0].content.as_ref().map(|(size, _)| *size), Some(3));
    }
}
