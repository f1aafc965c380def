//! Finds the replicas of a file. Descriptions of files are cached, for use when the server is down.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fordway_store::{Error, ErrorKind, Result};
use fordway_wire::metalink::{
    DOCUMENT_BYTES_MAX, FileHash, FileHashAlgorithm, Metalink, MetalinkFile, MetalinkUrl, PRIORITY_LAST,
    is_metalink_type, read_links,
};

use super::{ReplicaCredentialScope, is_one_origin};
use crate::HttpResponse;
use crate::retry::wants_pause;
use crate::vector::HttpSession;
use crate::vector::redirect::{ReplicaDiscoveryResponse, fetch, resolve};

const ACCEPT: &str = "application/metalink4+xml, application/metalink+xml;q=0.9";
/// The maximum size of a document that does not have the content type of a Metalink, but is read because it may be a
/// Metalink.
const SNIFFED_BYTES_MAX: u64 = 4 << 20;
/// The maximum time for one document, including redirections. The idle limit alone is not enough, because a server that
/// sends single bytes at long intervals would block the client forever.
const DOCUMENT_TIME_MAX: Duration = Duration::from_secs(10);
/// The maximum time for all documents.
const DISCOVERY_TIME_MAX: Duration = Duration::from_secs(30);

/// A description of a file's replicas, and how it was found.
#[derive(Clone, Debug)]
pub struct DiscoveredReplicas {
    /// The description.
    pub file: MetalinkFile,
    /// The method: `Link headers`, `Accept`, `?metalink`, `.meta4` or `the cache`.
    pub from: &'static str,
}

/// The value of [`DiscoveredReplicas::from`] for a description from the cache.
const THE_CACHE: &str = "the cache";

impl DiscoveredReplicas {
    /// Returns whether the description is from the cache, and not from the server.
    pub fn is_cached(&self) -> bool {
        self.from == THE_CACHE
    }
}

/// Returns whether the extension of a path or URL belongs to a Metalink: `.meta4` or `.metalink`.
pub fn is_metalink_name(name: &str) -> bool {
    let path = name.split(['?', '#']).next().unwrap_or_default().to_ascii_lowercase();
    path.ends_with(".meta4") || path.ends_with(".metalink")
}

/// Reads the Metalink or the list of URLs at a URL. URLs in the document may be relative to the document's URL. Errors:
/// as for [`crate::vector::RemoteFile::open`]; `InvalidArgument` for any other kind of document. Cost: one request,
/// plus one per redirection.
pub fn fetch_metalink(session: &Arc<HttpSession>, url: &str) -> Result<Metalink> {
    fetch_metalink_until(session, url, session.until())
}

fn fetch_metalink_until(session: &Arc<HttpSession>, url: &str, until: Option<Instant>) -> Result<Metalink> {
    let document = fetch(session, url, ("GET", ACCEPT), (DOCUMENT_BYTES_MAX, until), |_| true)?;
    let mut metalink = Metalink::parse(document.body.as_deref().unwrap_or_default())?;
    metalink.files.iter_mut().for_each(|file| make_absolute(file, &document.base));
    Ok(metalink)
}

/// Finds the replicas of the file at `url`. Tries the `Link` headers of the response to HEAD (RFC 6249), `Accept`,
/// `?metalink`, the URL with `.meta4` appended, and the cache, in that order, until one of them names a replica. The
/// result is cached for `url` only, because a server must not describe the files of other servers. The cache is not
/// used if the server cannot prove its identity. If the server has neither the file nor a description of it, the cached
/// description is removed: the file may have been removed on purpose. Returns `None` if no replica is found. Cost: up
/// to four requests, plus one for each Metalink that the `Link` headers name (at most four), plus one per redirection;
/// one request if the server is unreachable. Takes at most 10 s for each document and 30 s in total, and ends at the
/// deadline. No request is retried.
pub fn discover(
    session: &Arc<HttpSession>,
    url: &str,
    cache: Option<&MetalinkCache>,
) -> Option<DiscoveredReplicas> {
    discover_until(session, url, cache, session.until())
}

/// Like [`discover`], but requests nothing after `until`, the deadline of the operation that needs the replicas.
pub fn discover_until(
    session: &Arc<HttpSession>,
    url: &str,
    cache: Option<&MetalinkCache>,
    until: Option<Instant>,
) -> Option<DiscoveredReplicas> {
    let latest = Instant::now() + DISCOVERY_TIME_MAX;
    let until = until.map_or(latest, |until| until.min(latest));
    let found = match ask(session, url, until) {
        Ok(found) => found,
        // The user must learn of the certificate. Bytes from the cached replicas would hide the problem.
        Err(error) if error.is_at_untrusted_server() => {
            tracing::debug!(url, %error, "the server is not trusted, so the cache is not used");
            return None;
        }
        Err(error) if error.kind() == ErrorKind::NoSuchKey => {
            tracing::debug!(url, %error, "the server does not have the file");
            if let Some(cache) = cache {
                cache.forget(url);
            }
            return None;
        }
        Err(error) => {
            tracing::debug!(url, %error, "the server does not report replicas");
            None
        }
    };
    if let Some(found) = &found
        && let Some(cache) = cache
        && let Err(error) = cache.keep_for(url, &found.file)
    {
        tracing::debug!(%error, "the Metalink is not cached");
    }
    found.or_else(|| cache?.discovered(url))
}

/// Tries all discovery methods at the server. Errors: the error of the request, if the server is unreachable or cannot
/// prove its identity; `NoSuchKey` if the server has neither the file nor a description of it.
fn ask(session: &Arc<HttpSession>, url: &str, until: Instant) -> Result<Option<DiscoveredReplicas>> {
    let head = fetch(session, url, ("HEAD", "*/*"), (0, end_of_document(until)), |_| false);
    let stated = head.map(|head| links_of(&head));
    let digests = stated.as_ref().map(|stated| stated.hashes.clone()).unwrap_or_default();
    let linked = stated.and_then(|stated| by_links(session, url, stated, until));
    let missing = linked.as_ref().err().filter(|error| error.kind() == ErrorKind::NoSuchKey);
    let missing = missing.map(Error::repeated);
    let mut untrusted = None;
    // A server that refuses one method may support another method.
    let mut pass_over_refusals = |found| match found {
        Err(error) if is_silence(&error) => Err(untrusted.take().unwrap_or(error)),
        Err(error) if error.is_at_untrusted_server() => {
            untrusted.get_or_insert(error);
            Ok(None)
        }
        Err(_) => Ok(None),
        found => found,
    };
    if let Some(file) = pass_over_refusals(linked)? {
        return Ok(Some(DiscoveredReplicas { file, from: "Link headers" }));
    }
    let (path, query) = url.split_at(url.find(['?', '#']).unwrap_or(url.len()));
    let ways = [
        ("Accept", url.to_owned()),
        ("?metalink", format!("{path}?metalink")),
        (".meta4", format!("{path}.meta4{query}")),
    ];
    for (from, address) in ways {
        let described = pass_over_refusals(by_document(session, &address, until))?;
        if let Some(mut file) = described.filter(|described| !is_other_version(&digests, described)) {
            if !file.replicas.iter().any(|replica| replica.url == url) {
                let replica = MetalinkUrl { url: url.to_owned(), priority: PRIORITY_LAST, location: None };
                file.replicas.push(replica);
            }
            return Ok(Some(DiscoveredReplicas { file, from }));
        }
    }
    untrusted.or(missing).map_or(Ok(None), Err)
}

/// Returns whether no further request should be sent to the server, because the server does not respond, or asks for a
/// pause. A server whose connection was lost during a response may still respond to a request for a Metalink.
fn is_silence(error: &Error) -> bool {
    match error.kind() {
        ErrorKind::Timeout => true,
        _ if wants_pause(error) => true,
        ErrorKind::Unavailable => !error.is_at_lost_connection() && !error.detail().contains("HTTP status"),
        _ => false,
    }
}

/// Returns the deadline for a document that is requested now.
fn end_of_document(until: Instant) -> Option<Instant> {
    Some(until.min(Instant::now() + DOCUMENT_TIME_MAX))
}

/// The maximum number of Metalinks that are fetched because `Link` headers name them. A response may name any number of
/// Metalinks, on any servers.
const METALINKS_MAX: usize = 4;

/// Completes the description in the headers of a file with the Metalinks that these headers name.
fn by_links(
    session: &Arc<HttpSession>,
    url: &str,
    mut file: MetalinkFile,
    until: Instant,
) -> Result<Option<MetalinkFile>> {
    for address in std::mem::take(&mut file.described_by).into_iter().take(METALINKS_MAX) {
        // The server at `url` chose the address, so another server must not get the credentials.
        let session = ReplicaCredentialScope::Named(vec![url.to_owned()]).session(session, &address);
        let metalink = fetch_metalink_until(&session, &address, end_of_document(until));
        match metalink.and_then(|metalink| metalink.file(None)) {
            Ok(described) if is_other_version(&file.hashes, &described) => {
                tracing::debug!(url = address, "the Metalink describes another version of the file");
            }
            Ok(described) => {
                file.name = described.name.clone();
                file.complete_with(described);
                break;
            }
            Err(error) => tracing::debug!(url = address, %error, "a Metalink cannot be read"),
        }
    }
    let own = MetalinkUrl { url: url.to_owned(), priority: 1, location: None };
    let has_others = file.replicas.iter().any(|replica| replica.url != url);
    if has_others && !file.replicas.contains(&own) {
        file.replicas.insert(0, own);
    }
    Ok(has_others.then_some(file))
}

/// Returns whether a digest in the description differs from the digest that the server of the file states.
fn is_other_version(stated: &[FileHash], described: &MetalinkFile) -> bool {
    let differs =
        |own: &FileHash| described.hashes.iter().any(|hash| hash.kind == own.kind && hash.hex != own.hex);
    stated.iter().any(differs)
}

fn links_of(head: &ReplicaDiscoveryResponse) -> MetalinkFile {
    let (links, digests) = (head.links.iter().map(String::as_str), head.digests.iter().map(String::as_str));
    let mut file = read_links(links, digests);
    make_absolute(&mut file, &head.base);
    file
}

fn by_document(session: &Arc<HttpSession>, address: &str, until: Instant) -> Result<Option<MetalinkFile>> {
    let limits = (DOCUMENT_BYTES_MAX, end_of_document(until));
    let document = fetch(session, address, ("GET", ACCEPT), limits, may_be_metalink)?;
    let Some(body) = document.body.filter(|body| Metalink::is_likely(body)) else { return Ok(None) };
    let mut file = Metalink::parse(&body)?.file(None)?;
    make_absolute(&mut file, &document.base);
    Ok((!file.replicas.is_empty()).then_some(file))
}

/// Returns whether the body may be a Metalink. A server that does not support Metalink sends the file itself, which may
/// be large and must not be received here.
fn may_be_metalink(answer: &HttpResponse) -> bool {
    answer.header("content-type").is_some_and(is_metalink_type)
        || answer.body_bytes().is_some_and(|bytes| bytes <= SNIFFED_BYTES_MAX)
}

/// Makes URLs absolute; drops URLs that cannot be resolved.
fn make_absolute(file: &mut MetalinkFile, base: &str) {
    let absolute = |address: &str| match address.contains("://") {
        true => Some(address.to_owned()),
        false => resolve(base, address).ok(),
    };
    file.replicas.retain_mut(|replica| match absolute(&replica.url) {
        Some(url) => {
            replica.url = url;
            true
        }
        None => false,
    });
    file.described_by = file.described_by.iter().filter_map(|address| absolute(address)).collect();
}

/// The maximum size of a cached description.
const BYTES_MAX: usize = 4 << 20;
/// The maximum number of URLs under which a description is cached.
const ADDRESSES_MAX: usize = 8;

/// A directory of descriptions, one for each URL. Only the user or the server of a URL may describe the file at this
/// URL, because any other server could replace the file's content with its own.
#[derive(Clone, Debug)]
pub struct MetalinkCache {
    directory: PathBuf,
}

impl MetalinkCache {
    /// Creates a cache in this directory, which is created when the first description is cached.
    pub fn new(directory: PathBuf) -> Self {
        MetalinkCache { directory }
    }

    /// Returns the user's cache: `$XDG_CACHE_HOME/fordway/metalinks`, else below `~/.cache`; `None` without a home
    /// directory.
    pub fn of_user() -> Option<Self> {
        let named = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let base = named("XDG_CACHE_HOME").or_else(|| named("HOME").map(|home| home.join(".cache")))?;
        Some(MetalinkCache::new(base.join("fordway/metalinks")))
    }

    fn path(&self, url: &str) -> PathBuf {
        // A server must not be able to choose a URL whose description has the file name of another URL.
        let name = FileHash::of(FileHashAlgorithm::Sha256, url.as_bytes()).hex;
        self.directory.join(format!("{name}.meta4"))
    }

    /// Caches a description that the server of `url` has sent, for this URL. Errors: as for
    /// [`MetalinkCache::keep_from_user`].
    pub fn keep_for(&self, url: &str, file: &MetalinkFile) -> Result<()> {
        self.keep(file, &[url])
    }

    /// Caches a description from a document that was fetched from `source`, but only for URLs with the scheme, host and
    /// port of `source`. Errors: as for [`MetalinkCache::keep_from_user`].
    pub fn keep_from_server(&self, source: &str, file: &MetalinkFile) -> Result<()> {
        let urls = file.replicas.iter().map(|replica| replica.url.as_str());
        self.keep(file, &urls.filter(|url| is_one_origin(source, url)).collect::<Vec<_>>())
    }

    /// Caches a description from the user, for all its URLs. A description of URLs with queries, which may be secret,
    /// is not cached. Errors: `Io`.
    pub fn keep_from_user(&self, file: &MetalinkFile) -> Result<()> {
        self.keep(file, &file.replicas.iter().map(|replica| replica.url.as_str()).collect::<Vec<_>>())
    }

    /// Caches a description for `urls`.
    fn keep(&self, file: &MetalinkFile, urls: &[&str]) -> Result<()> {
        let metalink = Metalink { files: vec![file.clone()] };
        let document = metalink.to_xml();
        let has_queries = file.replicas.iter().any(|replica| replica.url.contains('?'));
        if document.len() > BYTES_MAX || has_queries || urls.iter().any(|url| url.contains('?')) {
            return Ok(());
        }
        let failed = |error| Error::new(ErrorKind::Io, "keeping a Metalink").caused_by(error);
        for url in urls.iter().take(ADDRESSES_MAX) {
            let path = self.path(url);
            if fs::read(&path).is_ok_and(|known| known == document.as_bytes()) {
                continue;
            }
            fs::create_dir_all(&self.directory).map_err(failed)?;
            let unfinished = path.with_extension(format!("{}.tmp", std::process::id()));
            let written =
                fs::File::create(&unfinished).and_then(|mut file| file.write_all(document.as_bytes()));
            written.and_then(|()| fs::rename(&unfinished, &path)).map_err(failed)?;
        }
        Ok(())
    }

    /// Removes the cached description of the file at `url`, if any.
    pub fn forget(&self, url: &str) {
        match fs::remove_file(self.path(url)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                tracing::debug!(%error, "a cached Metalink cannot be removed");
            }
            _ => {}
        }
    }

    /// Returns the cached description of the file at `url`, if any, as [`discover`] does. Sends nothing.
    pub fn discovered(&self, url: &str) -> Option<DiscoveredReplicas> {
        Some(DiscoveredReplicas { file: self.find(url)?, from: THE_CACHE })
    }

    /// Returns the cached description of the file at `url`, if any.
    pub fn find(&self, url: &str) -> Option<MetalinkFile> {
        let document = fs::read(self.path(url)).ok()?;
        Metalink::parse(&document).ok()?.file(None).ok()
    }
}

#[cfg(test)]
mod tests {
    use fordway_wire::metalink::MetalinkUrl;

    use super::*;

    fn cache() -> (tempfile::TempDir, MetalinkCache) {
        let directory = tempfile::tempdir().unwrap();
        let cache = MetalinkCache::new(directory.path().join("a/b"));
        (directory, cache)
    }

    fn described(urls: &[&str]) -> MetalinkFile {
        let at = |url: &&str| MetalinkUrl { url: (*url).to_owned(), priority: 1, location: None };
        let replicas = urls.iter().map(at).collect();
        MetalinkFile { name: "f".into(), size_bytes: Some(3), replicas, ..Default::default() }
    }

    #[test]
    fn a_users_list_is_found_by_each_address() {
        let (directory, cache) = cache();
        let file = described(&["http://a/f", "http://b/f"]);
        cache.keep_from_user(&file).unwrap();
        cache.keep_from_user(&file).unwrap();
        assert_eq!(cache.find("http://a/f"), Some(file.clone()));
        assert_eq!(cache.find("http://b/f"), Some(file));
        assert_eq!(cache.find("http://c/f"), None);
        let secret = described(&["http://s/f?token=1"]);
        cache.keep_from_user(&secret).unwrap();
        cache.keep_for("http://s/f?token=1", &secret).unwrap();
        assert_eq!(cache.find("http://s/f?token=1"), None);
        assert_eq!(directory.path().join("a/b").read_dir().unwrap().count(), 2);
    }

    #[test]
    fn a_server_describes_only_its_own_files() {
        let (_directory, cache) = cache();
        let file = described(&["http://a/f", "http://a/g", "https://a/f", "http://a:81/f", "http://b/f"]);
        cache.keep_for("http://a/f", &file).unwrap();
        let found = |url: &str| cache.find(url).is_some();
        let urls: Vec<_> = file.replicas.iter().map(|replica| replica.url.as_str()).collect();
        assert_eq!(urls.iter().map(|url| found(url)).collect::<Vec<_>>(), [true, false, false, false, false]);
        cache.keep_from_server("http://A:80/lists/f.meta4", &file).unwrap();
        assert_eq!(urls.iter().map(|url| found(url)).collect::<Vec<_>>(), [true, true, false, false, false]);
    }
}
