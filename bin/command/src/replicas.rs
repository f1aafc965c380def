//! Opens files that may have replicas, for commands that read from web servers.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fordway_http::replicas::{
    DiscoveredReplicas, MetalinkCache, ReplicaCredentialScope, ReplicaOptions, ReplicatedFile,
    ReplicatedReadTicket, discover_until, fetch_metalink, is_metalink_name,
};
use fordway_http::retry::wants_pause;
use fordway_http::vector::{
    HttpSession, HttpTrafficCounts, RangeReadTicket, RemoteFile, SessionOptions, is_without_size,
};
use fordway_http::{HttpVersion, TlsRoots};
use fordway_store::{
    ChecksumAlgorithm, ContentHasher, ETagPolicy, Error, ErrorKind, ExpectedContent, Result,
};
use fordway_wire::metalink::{Metalink, MetalinkFile, MetalinkUrl};

use crate::args::ReplicaArgs;
use crate::context::CommandContext;
use crate::exit::file_error;
use crate::web;

/// How to open files that may have replicas.
#[derive(Clone, Copy)]
pub struct ReplicaOpener<'a> {
    /// The options on the command line.
    pub args: &'a ReplicaArgs,
    /// Whether pieces are verified against their digests.
    pub verify: bool,
    /// The CA bundle; `None` selects the bundle from the environment.
    pub ca_bundle: Option<&'a PathBuf>,
    /// The maximum number of connections to one server.
    pub connections: usize,
    /// The HTTP version; `None` selects the version from the environment.
    pub http: Option<HttpVersion>,
    /// The time limit for an operation, including retries.
    pub deadline: Option<Duration>,
}

/// A file at one or several locations.
pub enum OpenedRemoteFile {
    /// A file at one location.
    One(RemoteFile),
    /// A file at several locations.
    Many(ReplicatedFile),
}

/// A function that opens a file at one location.
type LocationOpenFunction<'o> = dyn FnMut(&Arc<HttpSession>, &str) -> Result<RemoteFile> + 'o;

/// A ticket for requested ranges.
pub enum PendingReadTicket {
    /// A ticket for a file at one location.
    One(RangeReadTicket),
    /// A ticket for a file at several locations.
    Many(ReplicatedReadTicket),
}

impl<'a> ReplicaOpener<'a> {
    /// Creates an opener with the default number of connections and the CA bundle from the environment.
    pub fn usual(args: &'a ReplicaArgs, verify: bool) -> Self {
        let connections = SessionOptions::default().connections_per_origin;
        ReplicaOpener { args, verify, ca_bundle: None, connections, http: None, deadline: None }
    }

    fn options(&self, context: &CommandContext) -> Result<SessionOptions> {
        let options = context.web_options()?;
        let bundle = self.ca_bundle.cloned();
        Ok(SessionOptions {
            tls_roots: match (options.tls_roots, bundle) {
                (TlsRoots::Unverified, _) => TlsRoots::Unverified,
                (_, Some(bundle)) => TlsRoots::File(bundle),
                (roots, None) => roots,
            },
            connections_per_origin: self.connections,
            http: self.http.unwrap_or(options.http),
            deadline: self.deadline.or(options.deadline),
            ..options
        })
    }

    fn session(&self, context: &CommandContext) -> Result<Arc<HttpSession>> {
        Ok(Arc::new(HttpSession::new(self.options(context)?)))
    }

    fn is_told_none(&self) -> bool {
        self.args.metalink.as_deref() == Some("none")
    }

    /// Returns the value of `--metalink`, unless it is `none`.
    fn source(&self) -> Option<&str> {
        self.args.metalink.as_deref().filter(|source| *source != "none")
    }

    /// Opens the file at `url`, which may also be the URL of a Metalink. With `--metalink`, `url` may be empty. Errors:
    /// the error of opening the file at `url`, if no other location is known.
    pub fn open(&self, url: &str, context: &CommandContext) -> Result<OpenedRemoteFile> {
        self.open_by(url, context, &mut RemoteFile::open)
    }

    /// Opens a file and requests the first ranges at the same time, unless the file is at several locations.
    pub fn open_reading(
        &self,
        url: &str,
        first: &[(u64, usize)],
        context: &CommandContext,
    ) -> Result<(OpenedRemoteFile, Option<PendingReadTicket>)> {
        let mut begun = None;
        let opened = self.open_by(url, context, &mut |session, url| {
            let (file, ticket) = RemoteFile::open_reading(session, url, first, Vec::new())?;
            begun = Some(PendingReadTicket::One(ticket));
            Ok(file)
        })?;
        let is_one = matches!(opened, OpenedRemoteFile::One(_));
        Ok((opened, begun.filter(|_| is_one)))
    }

    fn open_by(
        &self,
        url: &str,
        context: &CommandContext,
        open: &mut LocationOpenFunction<'_>,
    ) -> Result<OpenedRemoteFile> {
        let (url, started) = (&web::http_url(url), Instant::now());
        if let Some(source) = self.source() {
            let metalink = self.read(source, context)?;
            let name = base_name(url);
            let wanted = (metalink.files.len() > 1 && !name.is_empty()).then_some(name.as_str());
            let mut file = metalink.file(wanted)?;
            put_first(&mut file, url);
            return self.replicated(&file, named(&[source, url]), context).map(OpenedRemoteFile::Many);
        }
        if is_metalink_name(url) && !self.is_told_none() {
            return self
                .replicated(&self.read(url, context)?.file(None)?, named(&[url]), context)
                .map(OpenedRemoteFile::Many);
        }
        let opened = open(&self.session(context)?, url);
        if let Some(coding) = opened.as_ref().ok().and_then(|file| file.version().unexpected_coding(url)) {
            let shown = url.split(['?', '#']).next().unwrap_or_default();
            context.output.note(&format!(
                "the server sends {shown} compressed (Content-Encoding: {coding}), and the bytes stay compressed"
            ));
        }
        match opened {
            Ok(file) if !self.is_told_none() && file.has_links() => {
                let found = self.discovered(url, self.until(started, context)?, context);
                // The server is up, so a cached description can only be older than the file.
                let found = found.filter(|found| !found.is_cached());
                match found.and_then(|found| self.opened(&found, (url, Some(file.size_bytes())), context)) {
                    Some(replicated) => Ok(OpenedRemoteFile::Many(replicated)),
                    None => Ok(OpenedRemoteFile::One(file)),
                }
            }
            Ok(_) if self.args.streams.is_some() => {
                let mut file = MetalinkFile::default();
                put_first(&mut file, url);
                self.replicated(&file, named(&[url]), context).map(OpenedRemoteFile::Many)
            }
            Ok(file) => Ok(OpenedRemoteFile::One(file)),
            Err(error) if is_without_size(&error) => Err(error),
            Err(error) => {
                self.instead_since(started, (url, None), error, context).map(OpenedRemoteFile::Many)
            }
        }
    }

    /// Returns the deadline of an operation that began at `started`.
    fn until(&self, started: Instant, context: &CommandContext) -> Result<Option<Instant>> {
        Ok(self.options(context)?.deadline.map(|deadline| started + deadline))
    }

    /// Opens the file at its other locations, after reading from `url` has failed with `error`. `size_bytes` is the
    /// size of the file at `url`, if it is known; replicas of another size are replicas of another version. Errors:
    /// `error`, if there are no other locations.
    pub fn instead(
        &self,
        (url, size_bytes): (&str, Option<u64>),
        error: Error,
        context: &CommandContext,
    ) -> Result<ReplicatedFile> {
        self.instead_since(Instant::now(), (url, size_bytes), error, context)
    }

    /// Like [`ReplicaOpener::instead`], but the deadline of the operation counts from its start, `started`. Errors:
    /// `error`, if there are no other locations or if the deadline has passed.
    pub fn instead_since(
        &self,
        started: Instant,
        (url, size_bytes): (&str, Option<u64>),
        error: Error,
        context: &CommandContext,
    ) -> Result<ReplicatedFile> {
        if self.is_told_none() || !may_be_elsewhere(error.kind()) {
            return Err(error);
        }
        match self.until(started, context)? {
            Some(until) if until <= Instant::now() => Err(error),
            // Finding replicas would send further requests to a server that has asked the client to wait.
            _ if wants_pause(&error) => {
                let cached =
                    context.metalinks.as_ref().and_then(|cache| cache.discovered(&web::http_url(url)));
                cached.and_then(|found| self.opened(&found, (url, size_bytes), context)).ok_or(error)
            }
            until => {
                let found = self.discovered(&web::http_url(url), until, context);
                // A server that is up, and does not have the file, may have removed it. In that case, the cached
                // replicas must not be used.
                let found = found.filter(|found| error.kind() != ErrorKind::NoSuchKey || !found.is_cached());
                found.and_then(|found| self.opened(&found, (url, size_bytes), context)).ok_or(error)
            }
        }
    }

    /// Finds the replicas of the file at `url`; sends no requests after `until`.
    fn discovered(
        &self,
        url: &str,
        until: Option<Instant>,
        context: &CommandContext,
    ) -> Option<DiscoveredReplicas> {
        discover_until(&self.session(context).ok()?, url, context.metalinks.as_ref(), until)
    }

    /// Opens the replicas of the file at `url`. Returns `None` if this fails, or if the size of the file at `url`
    /// differs from the size of the replicas: a description that was not updated together with the file leads to an
    /// older version.
    fn opened(
        &self,
        found: &DiscoveredReplicas,
        (url, size_bytes): (&str, Option<u64>),
        context: &CommandContext,
    ) -> Option<ReplicatedFile> {
        tracing::debug!(from = found.from, replicas = found.file.replicas.len(), "found replicas");
        let is_other = |described: u64| size_bytes.is_some_and(|size| size != described);
        let refuse = |described: u64| {
            let size = size_bytes.unwrap_or_default();
            let shown = url.split(['?', '#']).next().unwrap_or_default();
            context.output.note(&format!(
                "the replicas of {shown} are not used: they have {described} bytes, but the file has {size}"
            ));
        };
        if let Some(described) = found.file.size_bytes.filter(|described| is_other(*described)) {
            refuse(described);
            return None;
        }
        if found.is_cached() {
            context.output.note(&format!("{url} is read with a Metalink from the cache"));
        }
        let file = self.replicated(&found.file, named(&[url]), context).ok()?;
        if is_other(file.size_bytes()) {
            refuse(file.size_bytes());
            return None;
        }
        Some(file)
    }

    /// Reads a Metalink or a list of URLs from a local file or a URL, and caches it. A local file is the user's own
    /// list, so it is cached for all its URLs. A document from a server is cached only for URLs of this server.
    pub fn read(&self, source: &str, context: &CommandContext) -> Result<Metalink> {
        let metalink = self.read_uncached(source, context)?;
        let is_address = web::is_address(source);
        let keep = |cache: &MetalinkCache, file| match is_address {
            true => cache.keep_from_server(source, file),
            false => cache.keep_from_user(file),
        };
        for file in metalink.files.iter().filter(|file| !file.replicas.is_empty()) {
            if let Some(Err(error)) = context.metalinks.as_ref().map(|cache| keep(cache, file)) {
                tracing::debug!(%error, "the Metalink is not cached");
            }
        }
        Ok(metalink)
    }

    /// Reads a Metalink or a list of URLs from a local file or a URL, for a caller that only examines it.
    pub fn read_uncached(&self, source: &str, context: &CommandContext) -> Result<Metalink> {
        if web::is_address(source) {
            return fetch_metalink(&self.session(context)?, source);
        }
        let document = std::fs::read(source).map_err(|error| file_error("reading", source, error))?;
        Metalink::parse(&document)
    }

    /// Opens the file that a Metalink describes. Errors: the error of opening the file, if every location fails.
    pub fn replicated(
        &self,
        file: &MetalinkFile,
        credentials: ReplicaCredentialScope,
        context: &CommandContext,
    ) -> Result<ReplicatedFile> {
        let options = ReplicaOptions {
            session: self.options(context)?,
            credentials,
            streams: self.args.streams.map(usize::from),
            verify: self.verify,
            locations: self.args.location.clone(),
            ..ReplicaOptions::default()
        };
        ReplicatedFile::open(file, options)
    }
}

/// Determines, from the addresses that the user specified, which replicas receive the user's credentials. A local
/// Metalink or list of URLs is the user's own file, so all its replicas count as specified by the user.
pub fn named(addresses: &[&str]) -> ReplicaCredentialScope {
    let is_local = |address: &&str| !address.is_empty() && !web::is_address(address);
    match addresses.iter().any(is_local) {
        true => ReplicaCredentialScope::All,
        false => ReplicaCredentialScope::Named(addresses.iter().map(|&address| address.to_owned()).collect()),
    }
}

/// Inserts `url`, which the user specified, as the first replica. Does nothing if `url` is empty or the URL of a
/// Metalink, or if the list already contains `url`.
fn put_first(file: &mut MetalinkFile, url: &str) {
    if url.is_empty() || is_metalink_name(url) || file.replicas.iter().any(|replica| replica.url == url) {
        return;
    }
    file.replicas.insert(0, MetalinkUrl { url: url.to_owned(), priority: 1, location: None });
}

/// Returns the last path segment of an address, without its query.
pub fn base_name(url: &str) -> String {
    let path = url.split(['?', '#']).next().unwrap_or_default();
    path.rsplit('/').next().unwrap_or_default().to_owned()
}

/// Returns whether a failure is specific to the location, in which case another location may succeed.
fn may_be_elsewhere(kind: ErrorKind) -> bool {
    use ErrorKind as K;
    matches!(
        kind,
        K::Unavailable
            | K::Timeout
            | K::NoSuchKey
            | K::BadResponse
            | K::IncompleteBody
            | K::Io
            | K::BadDigest
    )
}

impl OpenedRemoteFile {
    /// Returns the size of the whole file.
    pub fn size_bytes(&self) -> u64 {
        match self {
            OpenedRemoteFile::One(file) => file.size_bytes(),
            OpenedRemoteFile::Many(file) => file.size_bytes(),
        }
    }

    /// Returns the numbers of requests and connections so far.
    pub fn traffic(&self) -> HttpTrafficCounts {
        match self {
            OpenedRemoteFile::One(file) => file.traffic(),
            OpenedRemoteFile::Many(file) => file.traffic(),
        }
    }

    /// Returns whether the only server of the file ignores ranges and sends the whole file.
    pub fn ignores_ranges(&self) -> bool {
        match self {
            OpenedRemoteFile::One(file) => file.learned().ignores_ranges,
            OpenedRemoteFile::Many(_) => false,
        }
    }

    /// Requests ranges, whose bytes will be stored in `memory`. Errors: the errors of the first request.
    pub fn submit(&self, ranges: &[(u64, usize)], memory: Vec<u8>) -> Result<PendingReadTicket> {
        match self {
            OpenedRemoteFile::One(file) => file.submit(ranges, memory).map(PendingReadTicket::One),
            OpenedRemoteFile::Many(file) => file.submit(ranges, memory).map(PendingReadTicket::Many),
        }
    }

    /// Waits for a ticket. Errors: the errors of the requests, and `Internal` for a ticket of a different file.
    pub fn wait(&self, ticket: PendingReadTicket) -> Result<Vec<u8>> {
        match (self, ticket) {
            (OpenedRemoteFile::One(file), PendingReadTicket::One(ticket)) => Ok(file.wait(ticket)?.bytes),
            (OpenedRemoteFile::Many(file), PendingReadTicket::Many(ticket)) => Ok(file.wait(ticket)?.bytes),
            _ => Err(Error::new(ErrorKind::Internal, "a ticket of another file")),
        }
    }

    /// Passes the bytes of `range` to `sink` in order. If the file was opened at a single location and a read at this
    /// location fails, continues at another location.
    pub fn copy_range(
        &self,
        range: Range<u64>,
        (url, places, context): (&str, &ReplicaOpener<'_>, &CommandContext),
        sink: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let file = match self {
            OpenedRemoteFile::One(file) => file,
            OpenedRemoteFile::Many(file) => return file.copy_range(range, sink),
        };
        let (mut at, mut passed, mut has_sink_failed) = (range.start, content_hasher(), false);
        let started = Instant::now();
        let mut counted = |bytes: &[u8]| {
            at += bytes.len() as u64;
            passed.update(bytes);
            sink(bytes).inspect_err(|_| has_sink_failed = true)
        };
        let copied = match places.verify && range == (0..file.size_bytes()) {
            // Bytes that have been passed to `sink` cannot be replaced, so a mismatch with the server's digest is an
            // error.
            true => file.copy_verified(0, &|| Ok(Box::new(std::io::empty())), &mut counted).map(drop),
            false => file.copy_range(range.clone(), &mut counted),
        };
        match copied {
            Err(error) if !has_sink_failed && at < range.end => {
                let replicated = places.instead_since(started, (url, None), error, context)?;
                if replicated.size_bytes() != file.size_bytes() {
                    return Err(other_content(&replicated));
                }
                continue_copy(&replicated, range, (at, passed), sink)
            }
            copied => copied,
        }
    }
}

/// Returns a hash function for comparing the bytes of two replicas. The function hashes bytes faster than a network
/// delivers them.
fn content_hasher() -> ContentHasher {
    ContentHasher::new(ETagPolicy::Fast, false, Some(ChecksumAlgorithm::XxHash128))
}

/// Passes the rest of `range`, from `at` on, to `sink`. Another replica sent the bytes before `at`, and `passed` is the
/// hash of those bytes. The replica that is read now may have another version of the file. Its bytes before `at` are
/// therefore also read, and their hash is compared with `passed`. Errors: `BadDigest` if the hashes differ.
fn continue_copy(
    file: &ReplicatedFile,
    range: Range<u64>,
    (at, passed): (u64, ContentHasher),
    sink: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let expected = passed.finish(&ExpectedContent::default())?.checksum;
    let (mut offset, mut again) = (range.start, Some(content_hasher()));
    file.copy_range(range, &mut |bytes| {
        let known = bytes.len().min(usize::try_from(at - offset.min(at)).unwrap_or(usize::MAX));
        let (known, rest) = bytes.split_at(known);
        offset += bytes.len() as u64;
        again.iter_mut().for_each(|again| again.update(known));
        if offset < at {
            return Ok(());
        }
        if let Some(again) = again.take()
            && again.finish(&ExpectedContent::default())?.checksum != expected
        {
            return Err(other_content(file));
        }
        if rest.is_empty() { Ok(()) } else { sink(rest) }
    })
}

/// Returns the error for a replica whose content differs from the bytes that another replica sent.
fn other_content(file: &ReplicatedFile) -> Error {
    let detail = format!(
        "the connection broke, and the replicas of {} differ from the bytes written so far; read the file again",
        file.name()
    );
    Error::new(ErrorKind::BadDigest, detail)
}
