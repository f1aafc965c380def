//! Versioning of buckets, and listings of versions made of the service's pages of at most 1,000.

use fordway_store::{Bucket, MAX_KEYS, Result, VersionId, VersionListing, Versioning, VersionsQuery};
use fordway_wire::s3_xml;

use super::pages::Pages;
use super::request::Call;
use super::session::Session;

pub(super) fn versioning(session: &Session, bucket: &Bucket) -> Result<Versioning> {
    let call = Call::on_bucket("GET", "get versioning", bucket).query("versioning", "");
    let document = session.run_for_document(&call)?;
    s3_xml::bucket_versioning(&document).map_err(|error| call.named(error))
}

pub(super) fn set_versioning(session: &Session, bucket: &Bucket, versioning: Versioning) -> Result<()> {
    let document = s3_xml::versioning_configuration(versioning);
    let call = Call::on_bucket("PUT", "set versioning", bucket).query("versioning", "").document(&document);
    versioning.check_settable().map_err(|error| call.named(error))?;
    session.run_for_status(&call)
}

/// Cost: a request per 1,000 entries.
pub(super) fn list(session: &Session, bucket: &Bucket, query: &VersionsQuery) -> Result<VersionListing> {
    let mut found = VersionListing {
        next: query.key_after.clone().map(|key| (key, query.version_after.clone())),
        ..Default::default()
    };
    let mut pages = Pages::default();
    loop {
        let missing = query.max_keys.saturating_sub(found.versions.len() + found.prefixes.len());
        let call = page_call(bucket, query, found.next.take(), missing.min(MAX_KEYS));
        let document = session.run_for_document(&call)?;
        let mut page = s3_xml::list_versions(&document).map_err(|error| call.named(error))?;
        let count = page.versions.len() + page.prefixes.len();
        found.versions.append(&mut page.versions);
        found.prefixes.append(&mut page.prefixes);
        found.next = page.next;
        if found.next.is_none() || found.versions.len() + found.prefixes.len() >= query.max_keys {
            return Ok(found);
        }
        pages.go_on(&found.next, count).map_err(|error| call.named(error))?;
    }
}

fn page_call<'a>(
    bucket: &'a Bucket,
    query: &'a VersionsQuery,
    after: Option<(String, Option<VersionId>)>,
    wanted: usize,
) -> Call<'a> {
    let mut call = Call::on_bucket("GET", "list versions", bucket)
        .query("versions", "")
        .query("encoding-type", "url")
        .query("max-keys", wanted.to_string())
        .query("prefix", query.prefix.as_str());
    if let Some(delimiter) = query.delimiter.as_deref().filter(|delimiter| !delimiter.is_empty()) {
        call = call.query("delimiter", delimiter);
    }
    let Some((key, version)) = after else { return call };
    call = call.query("key-marker", key);
    match version {
        Some(version) => call.query("version-id-marker", version.as_str().to_owned()),
        None => call,
    }
}
