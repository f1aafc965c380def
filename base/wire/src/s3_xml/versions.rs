//! One page of versions and delete markers, both ways. They stand in one sequence, by key and from the
//! newest to the oldest: two lists, which a generated writer would make, lose the order in which
//! versions and delete markers of a key came.

use std::time::UNIX_EPOCH;

use fordway_store::{
    ChecksumAlgorithm, ChecksumPlan, ChecksumType, ETag, Error, ErrorKind, Result, VersionId, VersionListing,
    VersionSummary, VersionsQuery,
};

use super::bodies::{opened, push_element};
use super::{decoded, etag, for_each_element, number, plan, time};
use crate::date;

/// What a server answers to a query beside the page itself.
pub struct VersionsAnswer<'a> {
    /// The bucket.
    pub bucket: &'a str,
    /// What was asked for.
    pub query: &'a VersionsQuery,
    /// How names are written: as they are, or encoded where the client asked for that.
    pub encode: &'a dyn Fn(&str) -> String,
    /// Whether they are encoded.
    pub is_url_encoded: bool,
    /// The identifier of the owner of everything.
    pub owner: &'a str,
}

/// Writes a `ListVersionsResult`.
pub fn list_versions_result(answer: &VersionsAnswer, page: &VersionListing) -> String {
    let VersionsAnswer { query, encode, .. } = answer;
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

fn push_version(body: &mut String, version: &VersionSummary, answer: &VersionsAnswer) {
    let element = if version.content.is_some() { "Version" } else { "DeleteMarker" };
    body.push_str(&format!("<{element}>"));
    push_element(body, "Key", &(answer.encode)(&version.key));
    push_element(body, "VersionId", version.version.as_str());
    push_element(body, "IsLatest", if version.is_latest { "true" } else { "false" });
    push_element(body, "LastModified", &date::format_iso8601(version.modified));
    if let Some((size, tag)) = &version.content {
        push_element(body, "ETag", &format!("\"{tag}\""));
        if let Some(ChecksumPlan { algorithm, kind }) = version.checksum {
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

/// Reads a `ListVersionsResult`; names are decoded, and `next` is set where there are more.
/// Errors: `BadResponse`.
pub fn list_versions(document: &[u8]) -> Result<VersionListing> {
    let mut page = VersionListing::default();
    let (mut is_truncated, mut is_url_encoded) = (false, false);
    let (mut next_key, mut next_version) = (None, None);
    let mut version = Blank::default();
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
        let detail =
            "the listing of versions goes on, and does not say where; report it to who runs the service";
        return Err(Error::new(ErrorKind::BadResponse, detail));
    }
    page.next = next_key.filter(|_| is_truncated).map(|key| (key, next_version));
    Ok(page)
}

/// A version of which the elements are still arriving.
#[derive(Default)]
struct Blank {
    key: String,
    version: String,
    is_latest: bool,
    modified: Option<std::time::SystemTime>,
    size: u64,
    tag: Option<ETag>,
    algorithm: Option<ChecksumAlgorithm>,
    kind: Option<ChecksumType>,
}

impl Blank {
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
        // A service that keeps no versions may leave the name out.
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

    use proptest::prelude::*;

    use super::*;

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
        let answer =
            VersionsAnswer { bucket: "b", query: &query, encode: &encode, is_url_encoded, owner: "me" };
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
                checksum: content.as_ref().map(|_| ChecksumPlan {
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
