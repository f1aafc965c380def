//! Describes one resource, the members of a collection, or everything below it.

use std::collections::VecDeque;

use fordway_store::{Error, ErrorKind, Result};
use fordway_wire::webdav::{CollectionEntryLocation, CollectionUrl, MultistatusEntry, PROPFIND, multistatus};

use super::call::{DavBody, DavRequest, DavResponse};
use super::{DavResource, WebDavClient, collection_url, member_url, without_query};
use crate::vector::{RemoteFile, RemoteResource as _};

/// The maximum depth of collections. Without a limit, a walk over links that form a cycle would never end.
const DEPTH_MAX: usize = 256;

/// A resource and, if it is a collection, its members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CollectionListing {
    /// The resource that was requested.
    pub itself: DavResource,
    /// The members, in byte order of their names.
    pub members: Vec<DavResource>,
    /// Members that the server cannot describe: the URL of each, as the server writes it, and the status.
    pub failed: Vec<(String, u16)>,
}

impl WebDavClient {
    /// Describes one resource. Errors: `NoSuchKey`, `AccessDenied`, `InvalidArgument`, `MethodNotAllowed`,
    /// `Unavailable`, `Timeout`, `BadResponse`, `Io` and others. Cost: one request (PROPFIND); if the server does not
    /// support WebDAV, one more (HEAD), which works only for files.
    pub fn stat(&self, url: &str) -> Result<DavResource> {
        let answer = self.propfind(url, "0")?;
        match answer.status {
            400 | 405 | 501 => self.stat_by_head(url, &answer),
            _ => described(url, &answer),
        }
    }

    /// Describes one resource without falling back to HEAD, which returns too little information. Errors: as for
    /// [`WebDavClient::list`].
    pub(super) fn list_one(&self, url: &str) -> Result<DavResource> {
        described(url, &self.propfind(url, "0")?)
    }

    /// Lists a collection; a file has no members. Errors: as for [`WebDavClient::stat`]; `MethodNotAllowed` if the
    /// server does not support WebDAV. Cost: one request (PROPFIND of depth 1).
    pub fn list(&self, url: &str) -> Result<CollectionListing> {
        let answer = self.propfind(url, "1")?;
        listing(url, &answer).map_err(|error| answer.file.named("list", error))
    }

    /// Iterates over everything below a collection, each collection before its members. A collection that cannot be
    /// listed yields an error, and the walk continues. Cost: one request per collection, because most servers refuse to
    /// list everything in one request. Memory: the collections that have not been listed yet, and the members of one
    /// collection.
    pub fn walk(&self, url: &str) -> CollectionWalk<'_> {
        let root = DavResource { is_collection: true, ..DavResource::unknown(url) };
        CollectionWalk { dav: self, open: vec![root], ready: VecDeque::new() }
    }

    pub(super) fn propfind(&self, url: &str, depth: &str) -> Result<DavResponse> {
        let call = DavRequest::new("PROPFIND", if depth == "0" { "stat" } else { "list" });
        let call = call.header("depth", depth).header("content-type", "application/xml; charset=utf-8");
        self.ask(url, &mut DavRequest { body: DavBody::Bytes(PROPFIND), ..call })
    }

    fn stat_by_head(&self, url: &str, answer: &DavResponse) -> Result<DavResource> {
        match RemoteFile::open(&self.session, url) {
            Ok(file) => {
                let version = file.version();
                let modified = version.last_modified.as_deref().and_then(fordway_wire::date::parse_http);
                let (size_bytes, etag) = (Some(version.size_bytes), version.etag.clone());
                Ok(DavResource { size_bytes, modified, etag, ..DavResource::unknown(url) })
            }
            Err(error) if error.kind() == ErrorKind::BadResponse => {
                Err(answer.file.named("stat", answer.refusal("PROPFIND")))
            }
            Err(error) => Err(error),
        }
    }
}

impl DavResource {
    /// Creates the description of a file whose properties are unknown.
    fn unknown(url: &str) -> Self {
        DavResource {
            url: url.to_owned(),
            relative: String::new(),
            is_collection: false,
            size_bytes: None,
            modified: None,
            etag: None,
        }
    }

    fn of(url: String, relative: String, described: MultistatusEntry) -> Self {
        let properties = described.properties;
        DavResource {
            url: if properties.is_collection { collection_url(&url) } else { url },
            relative,
            is_collection: properties.is_collection,
            // For a collection, some servers report the size of the directory itself.
            size_bytes: properties.size_bytes.filter(|_| !properties.is_collection),
            modified: properties.modified,
            etag: properties.etag,
        }
    }
}

/// Returns the description of `url` itself, without its members, from a response to PROPFIND.
fn described(url: &str, answer: &DavResponse) -> Result<DavResource> {
    let listing = listing(url, answer).map_err(|error| answer.file.named("stat", error))?;
    Ok(listing.itself)
}

/// Returns the description of `url` and its members in a response to PROPFIND.
fn listing(url: &str, answer: &DavResponse) -> Result<CollectionListing> {
    if answer.status != 207 {
        return Err(match answer.status {
            200..=299 => {
                let detail =
                    format!("the server answered {} to PROPFIND: it does not support WebDAV", answer.status);
                Error::new(ErrorKind::BadResponse, detail)
            }
            _ => answer.refusal("PROPFIND"),
        });
    }
    let target = answer.file.url();
    let path = target.splitn(4, '/').nth(3).unwrap_or_default();
    let collection = CollectionUrl::new(&answer.file.origin().host, path);
    let (mut itself, mut members, mut failed) = (None, Vec::new(), Vec::new());
    for described in multistatus(&answer.document)? {
        let status = described.status.filter(|status| *status >= 400);
        match (collection.place(&described.href)?, status) {
            (CollectionEntryLocation::Itself, Some(status)) => {
                return Err(answer.of_status(status).refusal("PROPFIND"));
            }
            (CollectionEntryLocation::Itself, None) => {
                itself = Some(DavResource::of(url.to_owned(), String::new(), described))
            }
            // The member was removed while the server was listing the collection.
            (CollectionEntryLocation::Member(_), Some(404)) | (CollectionEntryLocation::Deeper, _) => {}
            (CollectionEntryLocation::Member(_), Some(status)) => failed.push((described.href, status)),
            (CollectionEntryLocation::Member(name), None) => {
                members.push(DavResource::of(member_url(url, &name.encoded), name.shown, described));
            }
        }
    }
    members.sort_by(|a: &DavResource, b| a.relative.cmp(&b.relative));
    members.dedup_by(|a, b| a.relative == b.relative);
    let itself = itself.or_else(|| {
        // Some servers do not describe the collection itself along with its members.
        (!members.is_empty())
            .then(|| DavResource { is_collection: true, ..DavResource::unknown(&collection_url(url)) })
    });
    let itself = itself.ok_or_else(|| {
        Error::new(ErrorKind::BadResponse, "the server's listing does not contain the requested path")
    })?;
    if !itself.is_collection && !members.is_empty() {
        return Err(Error::new(ErrorKind::BadResponse, "the server lists members of a file"));
    }
    Ok(CollectionListing { itself, members, failed })
}

/// See [`WebDavClient::walk`].
pub struct CollectionWalk<'d> {
    dav: &'d WebDavClient,
    /// Collections to list; the last one is listed next.
    open: Vec<DavResource>,
    ready: VecDeque<Result<DavResource>>,
}

impl CollectionWalk<'_> {
    /// Lists a collection, names its members relative to the root, and queues the members that are collections.
    fn enter(&mut self, collection: &DavResource) -> Result<()> {
        if collection.relative.split('/').count() > DEPTH_MAX {
            let detail = format!(
                "{} is deeper than {DEPTH_MAX} collections; there may be a symbolic-link loop",
                without_query(&collection.url)
            );
            return Err(Error::new(ErrorKind::BadResponse, detail));
        }
        let CollectionListing { itself, members, failed } = self.dav.list(&collection.url)?;
        let below = |name: &str| match collection.relative.as_str() {
            "" => name.to_owned(),
            above => format!("{above}/{name}"),
        };
        if collection.relative.is_empty() && !itself.is_collection {
            let detail = format!("{} is a file, not a collection", without_query(&itself.url));
            return Err(Error::new(ErrorKind::InvalidArgument, detail));
        }
        let first = self.open.len();
        for member in members {
            let member = DavResource { relative: below(&member.relative), ..member };
            if member.is_collection {
                self.open.push(member.clone());
            }
            self.ready.push_back(Ok(member));
        }
        self.open[first..].reverse();
        self.ready.extend(failed.into_iter().map(|(href, status)| {
            let detail = format!("the server cannot describe {href} (HTTP status {status})");
            let kind = fordway_wire::s3_error::from_s3(status, "");
            Err(Error::new(kind, detail).during_at("list", "http", without_query(&collection.url)))
        }));
        Ok(())
    }
}

impl Iterator for CollectionWalk<'_> {
    type Item = Result<DavResource>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(found) = self.ready.pop_front() {
                return Some(found);
            }
            let collection = self.open.pop()?;
            if let Err(error) = self.enter(&collection) {
                return Some(Err(error));
            }
        }
    }
}
