//! One page of a bucket, of either version of the request.

use std::time::UNIX_EPOCH;

use fordway_store::{ChecksumAlgorithm, ChecksumType, ETag, ObjectSummary, Result};

use super::{decoded, etag, for_each_element, number, plan, time};

/// A page as the server sent it, names decoded; objects and prefixes are two lists, as in S3.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListBucketPage {
    /// The objects.
    pub objects: Vec<ObjectSummary>,
    /// Prefixes that keys were rolled up into.
    pub common_prefixes: Vec<String>,
    /// Whether there is another page.
    pub truncated: bool,
    /// Version 2: the token of the next page.
    pub next_token: Option<String>,
    /// Version 1: the marker of the next page; servers state it only with a delimiter.
    pub next_marker: Option<String>,
}

/// Reads a `ListBucketResult`. Errors: `BadResponse`.
pub fn list_bucket(document: &[u8]) -> Result<ListBucketPage> {
    let mut page = ListBucketPage::default();
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

impl ListBucketPage {
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

#[cfg(test)]
mod tests {
    use fordway_store::ErrorKind;

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
}
