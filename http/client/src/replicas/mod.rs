//! A file that has several replicas. The file is read from the best replica, or from several replicas at once. If a
//! replica fails, is slow or sends wrong bytes, the file is read from another replica.
//!
//! Reads become [`job`]s on a [`board`]. A [`stream`] is a thread that takes jobs from the board, and has a connection
//! to one of the [`site`]s. Bytes are checked against the digests of their pieces before the caller gets them. A
//! waiting caller supervises the streams. A stalled or slow stream is compared with a new stream that reads from
//! another replica. The new stream stops unless it is much faster. A [`part`] is a file that is filled in place, in any
//! order.

mod board;
mod discover;
mod gather;
mod job;
mod part;
mod site;
mod stream;

pub use discover::{
    DiscoveredReplicas, MetalinkCache, discover, discover_until, fetch_metalink, is_metalink_name,
};
pub use gather::ReplicatedReadTicket;

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fordway_store::{Error, ErrorKind, Result};
use fordway_wire::metalink::{MetalinkFile, PieceHashes};

use self::board::{RangeJobId, RangeJobResult, RangeJobScheduler, ReplicaStreamId, SharedError, StallPolicy};
use self::gather::PieceCache;
use self::site::ReplicaSite;
use self::stream::TICK;
use super::vector;
use crate::vector::{
    FileDigest, HttpSession, HttpTrafficCounts, RemoteFile, RemoteResource as _, WebFileResource,
};

/// Options for reading a [`ReplicatedFile`].
#[derive(Clone, Debug)]
pub struct ReplicaOptions {
    /// Connections, credentials and timeouts. Retries are counted separately for each replica.
    pub session: vector::SessionOptions,
    /// Which replicas get the credentials of the session.
    pub credentials: ReplicaCredentialScope,
    /// The maximum number of connections to all replicas together. The maximum is exceeded only while a stalled or slow
    /// replica is compared with another replica. `None` means one stream. Like a vectored read, this stream may use
    /// several connections to a server that does not support pipelining.
    pub streams: Option<usize>,
    /// Whether pieces are checked against their digests. If so, reads of small ranges fetch whole pieces.
    pub verify: bool,
    /// Countries (ISO 3166-1) that are preferred among replicas of the same priority.
    pub locations: Vec<String>,
    /// How long a stream may receive no bytes before another replica is tried.
    pub stall: Duration,
    /// How long a stream may be slow before another replica is tried.
    pub detection: Duration,
    /// The rate in bytes per second below which a stream is slow, if no other replica is known to be faster.
    pub rate_floor_bytes_per_s: f64,
}

/// The replicas that get the user's credentials. A description of replicas may come from a server that must not learn
/// the credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplicaCredentialScope {
    /// All replicas. Use this value only if the user wrote or chose the description of the replicas.
    All,
    /// Only replicas with the same scheme, host and port as one of these URLs, which the user named.
    Named(Vec<String>),
}

/// No replica gets credentials.
impl Default for ReplicaCredentialScope {
    fn default() -> Self {
        ReplicaCredentialScope::Named(Vec::new())
    }
}

impl ReplicaCredentialScope {
    /// Returns `session`, or the same session without credentials if the server at `url` must not get them.
    fn session(&self, session: &Arc<HttpSession>, url: &str) -> Arc<HttpSession> {
        let is_named = match self {
            ReplicaCredentialScope::All => true,
            ReplicaCredentialScope::Named(named) => named.iter().any(|named| is_one_origin(named, url)),
        };
        if is_named { session.clone() } else { session.without_credentials() }
    }
}

/// Returns whether two URLs have the same scheme, host and port.
fn is_one_origin(one: &str, other: &str) -> bool {
    match (WebFileResource::parse(&http_url(one)), WebFileResource::parse(&http_url(other))) {
        (Ok(one), Ok(other)) => one.origin() == other.origin(),
        _ => false,
    }
}

impl Default for ReplicaOptions {
    fn default() -> Self {
        ReplicaOptions {
            session: vector::SessionOptions::default(),
            credentials: ReplicaCredentialScope::default(),
            streams: None,
            verify: true,
            locations: Vec::new(),
            stall: Duration::from_secs(1),
            detection: Duration::from_secs(2),
            rate_floor_bytes_per_s: 4e6,
        }
    }
}

/// The lane's name in messages.
const LANE: &str = "http";
/// The maximum size of a file; larger files are refused.
const SIZE_BYTES_MAX: u64 = 1 << 62;
/// The maximum size of a verified piece, because a piece is held in memory until its digest is checked. Longer pieces
/// are not verified.
const PIECE_BYTES_MAX: u64 = 256 << 20;

/// A file that has several replicas. Threads may share the file. Calls block.
///
/// Bytes of pieces with a known digest are checked before the caller gets them (unless [`ReplicaOptions::verify`] is
/// off). When a replica fails, the next replica is used, and the bytes received so far are kept. A replica that sends
/// wrong bytes is not used again.
pub struct ReplicatedFile {
    shared: Arc<ReplicatedFileState>,
    cache: Mutex<PieceCache>,
    name: String,
    /// The digest of the whole file.
    hash: Option<FileDigest>,
    /// Whether `hash` was sent by the file's only server. Otherwise, `hash` is part of the description.
    is_hash_stated: bool,
}

/// The statistics of a replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaStatus {
    /// The replica's URL, without the query.
    pub url: String,
    /// The number of bytes from this replica that were used.
    pub delivered_bytes: u64,
    /// Why the replica is no longer used; `None` while it is in use.
    pub out: Option<String>,
}

/// The state that streams and callers share.
struct ReplicatedFileState {
    board: Mutex<RangeJobScheduler>,
    /// Signals every change to the board.
    changed: Condvar,
    size_bytes: u64,
    /// The digests of pieces, if they are verified.
    pieces: Option<PieceHashes>,
    options: ReplicaOptions,
    /// The file that was opened at one replica to determine the size. The first stream that reads from this replica
    /// takes over the open file.
    spare: Mutex<Option<(usize, RemoteFile)>>,
    traffic: Mutex<(HashMap<ReplicaStreamId, Arc<RemoteFile>>, HttpTrafficCounts)>,
}

impl ReplicatedFileState {
    fn board(&self) -> MutexGuard<'_, RangeJobScheduler> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a session for the connections of one stream.
    fn session(&self) -> Arc<HttpSession> {
        let mut options = self.options.session.clone();
        if self.options.streams.is_some() {
            options.connections_per_origin = 1;
        }
        if self.board().sites.len() > 1 {
            // Turn retries off, so that another replica is tried immediately after a failure.
            options.max_retries = 0;
        }
        Arc::new(HttpSession::new(options))
    }

    fn take_spare(&self, site: usize) -> Option<RemoteFile> {
        let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        spare.take_if(|(found, _)| *found == site).map(|(_, file)| file)
    }

    fn traffic(&self) -> MutexGuard<'_, (HashMap<ReplicaStreamId, Arc<RemoteFile>>, HttpTrafficCounts)> {
        self.traffic.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers `file`, so that its traffic is included in the statistics.
    fn opened(&self, id: ReplicaStreamId, file: RemoteFile) -> Arc<RemoteFile> {
        let file = Arc::new(file);
        self.traffic().0.insert(id, file.clone());
        file
    }

    fn closed(&self, id: ReplicaStreamId) {
        let mut traffic = self.traffic();
        if let Some(file) = traffic.0.remove(&id) {
            let sum = add(traffic.1, file.traffic());
            traffic.1 = sum;
        }
    }

    /// Starts streams, if there are jobs without a stream.
    fn ensure_streams(self: &Arc<Self>) {
        let wanted = self.options.streams.unwrap_or(1).max(1);
        loop {
            let id = {
                let mut board = self.board();
                let regular = board.regular_streams();
                if board.queued() == 0
                    || regular >= wanted
                    || (regular > 0 && board.queued() <= board.idle_streams())
                {
                    return;
                }
                board.start(None, Instant::now())
            };
            stream::spawn(self, id);
        }
    }

    /// Waits until `look` finds a result on the board, and supervises the streams while it waits. Errors: `Interrupted`
    /// if the program must stop after a signal.
    fn wait_for<T>(
        self: &Arc<Self>,
        mut look: impl FnMut(&mut RangeJobScheduler) -> Option<T>,
    ) -> Result<T, SharedError> {
        loop {
            self.ensure_streams();
            let hedge = {
                let mut board = self.board();
                if let Some(found) = look(&mut board) {
                    return Ok(found);
                }
                if fordway_sys::after_signal().is_err() {
                    let detail = "a signal interrupted the wait".to_owned();
                    return Err(SharedError { kind: ErrorKind::Interrupted, detail });
                }
                let now = Instant::now();
                let suspect = board.supervise(now);
                let hedge = suspect.map(|of| board.start(Some(of), now));
                if hedge.is_none() {
                    drop(self.changed.wait_timeout(board, TICK).unwrap_or_else(PoisonError::into_inner));
                }
                hedge
            };
            if let Some(id) = hedge {
                tracing::debug!("a replica is slow; the part is also requested from another");
                stream::spawn(self, id);
                self.changed.notify_all();
            }
        }
    }

    /// Waits until a job has ended.
    fn wait_job(self: &Arc<Self>, id: RangeJobId) -> RangeJobResult {
        self.wait_for(|board| board.jobs.get(&id).and_then(|job| job.outcome.clone()))?
    }
}

impl ReplicatedFile {
    /// Opens the described file. If the description contains the size, nothing is sent yet; otherwise, the size is
    /// requested from the replicas, best first. Errors: `InvalidArgument` if no URL is HTTP; the replicas' errors if no
    /// replica returns the size.
    pub fn open(described: &MetalinkFile, options: ReplicaOptions) -> Result<Self> {
        let sites = sites(described, &options.locations);
        if sites.is_empty() {
            let detail = "the Metalink names no address by http(s) or dav(s); add one";
            return Err(Error::new(ErrorKind::InvalidArgument, detail));
        }
        let patience = StallPolicy {
            stall: options.stall,
            detection: options.detection,
            floor_bytes_per_s: options.rate_floor_bytes_per_s,
        };
        let name = if described.name.is_empty() { sites[0].shown.clone() } else { described.name.clone() };
        let mut shared = ReplicatedFileState {
            board: Mutex::new(RangeJobScheduler::new(sites, patience)),
            changed: Condvar::new(),
            size_bytes: 0,
            pieces: described.pieces.clone().filter(|pieces| options.verify && is_usable(pieces)),
            options,
            spare: Mutex::default(),
            traffic: Mutex::default(),
        };
        let size = described.size_bytes.map_or_else(|| shared.ask_for_size(), Ok);
        shared.size_bytes = size.map_err(|error| error.during_at("open", LANE, &name))?;
        shared.check_size()?;
        shared.check_pieces()?;
        let hash =
            described.strongest_hash().cloned().map(FileDigest::Hash).filter(|_| shared.options.verify);
        let (shared, cache) = (Arc::new(shared), Mutex::default());
        Ok(ReplicatedFile { shared, cache, name, hash, is_hash_stated: false })
    }

    /// Asks the server for a digest of the whole file, if the file has only one location and its description contains
    /// no digest. A copy of the whole file is then verified against the server's digest. Must precede the first read.
    /// Cost: at most one request (HEAD). Without a response, the file remains without a digest.
    pub fn ask_for_digest(&mut self) {
        let is_known = self.hash.is_some() || self.shared.pieces.is_some();
        if !self.shared.options.verify || is_known || self.shared.board().sites.len() > 1 {
            return;
        }
        let spare = self.shared.spare.lock().unwrap_or_else(PoisonError::into_inner);
        self.hash = spare.as_ref().and_then(|(_, file)| file.stated_digest());
        self.is_hash_stated = self.hash.is_some();
    }

    /// Returns the size of the file.
    pub fn size_bytes(&self) -> u64 {
        self.shared.size_bytes
    }

    /// Returns the name of the file from the description, or the first URL if the description has no name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns an identifier for the file: its digests, or its URLs if the description has no digests.
    pub fn identity(&self) -> String {
        let pieces = self.shared.pieces.as_ref();
        let mut identity = format!("{} bytes", self.size_bytes());
        let of_pieces = pieces.iter().flat_map(|pieces| pieces.hex.iter().cloned());
        for text in self.hash.iter().map(FileDigest::text).chain(of_pieces) {
            identity.push(' ');
            identity.push_str(&text);
        }
        if self.hash.is_none() && pieces.is_none() {
            self.shared.board().sites.iter().for_each(|site| identity.push_str(&site.url));
        }
        identity
    }

    /// Returns the name of the digest that verifies a copy of the whole file: the file's digest, or else the pieces'
    /// digest.
    pub fn digest_name(&self) -> Option<&'static str> {
        let of_pieces = self.shared.pieces.as_ref().map(|pieces| pieces.kind.name());
        let of_whole = |digest: &FileDigest| match digest {
            FileDigest::Hash(hash) if !self.is_hash_stated => hash.kind.name(),
            digest => digest.name(),
        };
        self.hash.as_ref().map(of_whole).or(of_pieces)
    }

    /// Returns whether bytes are checked against digests before the caller gets them.
    pub fn is_verified(&self) -> bool {
        self.shared.pieces.is_some()
    }

    /// Returns the numbers of requests and connections so far, over all streams.
    pub fn traffic(&self) -> HttpTrafficCounts {
        let traffic = self.shared.traffic();
        traffic.0.values().fold(traffic.1, |sum, file| add(sum, file.traffic()))
    }

    /// Returns the statistics of the replicas, in the order of the description.
    pub fn replicas(&self) -> Vec<ReplicaStatus> {
        let status = |site: &ReplicaSite| ReplicaStatus {
            url: site.shown.clone(),
            delivered_bytes: site.delivered_bytes,
            out: site.out.as_ref().map(|told| told.detail.clone()),
        };
        self.shared.board().sites.iter().map(status).collect()
    }

    fn named(&self, error: Error) -> Error {
        error.during_at("read", LANE, &self.name)
    }
}

impl Drop for ReplicatedFile {
    /// Ends the streams. Most streams end almost immediately. A stream that is waiting for a connection, or for the
    /// response to its first request, ends after that wait.
    fn drop(&mut self) {
        self.shared.board().is_closing = true;
        self.shared.changed.notify_all();
    }
}

impl ReplicatedFileState {
    fn ask_for_size(&self) -> Result<u64> {
        let session = self.session();
        loop {
            let site = {
                let board = self.board();
                let now = Instant::now();
                let untried = board.sites.iter().enumerate().filter(|(_, site)| site.is_untried());
                untried
                    .min_by_key(|(index, site)| (site.rank(now), *index))
                    .map(|(index, site)| (index, site.url.clone()))
            };
            let Some((site, url)) = site else {
                return Err((&site::told(&self.board().sites)).into());
            };
            let session = self.options.credentials.session(&session, &url);
            match RemoteFile::open(&session, &url) {
                Ok(file) => {
                    let size = file.size_bytes();
                    *self.spare.lock().unwrap_or_else(PoisonError::into_inner) = Some((site, file));
                    return Ok(size);
                }
                Err(error) => self.board().failed(site, &error, false, Instant::now()),
            }
        }
    }

    /// Checks that a file can have this size. Errors: `InvalidArgument`.
    fn check_size(&self) -> Result<()> {
        if self.size_bytes <= SIZE_BYTES_MAX {
            return Ok(());
        }
        let detail = format!(
            "it states a size of {} bytes, which no file system can hold; correct the size, or omit it",
            self.size_bytes
        );
        Err(Error::new(ErrorKind::InvalidArgument, detail))
    }

    /// Checks the number of pieces. Errors: `InvalidArgument` if the number does not match the file's size.
    fn check_pieces(&self) -> Result<()> {
        let Some(pieces) = &self.pieces else { return Ok(()) };
        let count = self.size_bytes.div_ceil(pieces.length_bytes);
        if count == pieces.hex.len() as u64 {
            return Ok(());
        }
        let (found, size) = (pieces.hex.len(), self.size_bytes);
        let detail =
            format!("the Metalink has digests of {found} pieces; a file of {size} bytes has {count}");
        Err(Error::new(ErrorKind::InvalidArgument, detail))
    }
}

/// Returns whether pieces can be verified one by one.
fn is_usable(pieces: &PieceHashes) -> bool {
    let fits = pieces.length_bytes <= PIECE_BYTES_MAX;
    if !fits {
        tracing::warn!(
            bytes = pieces.length_bytes,
            "the Metalink's pieces are too long to be verified one by one"
        );
    }
    fits
}

/// Returns the replicas whose URLs this client can read, each URL once.
fn sites(described: &MetalinkFile, locations: &[String]) -> Vec<ReplicaSite> {
    let mut sites: Vec<ReplicaSite> = Vec::new();
    for replica in &described.replicas {
        let url = http_url(&replica.url);
        let is_known = sites.iter().any(|site| site.url == url);
        if is_known || WebFileResource::parse(&url).is_err() {
            continue;
        }
        let is_preferred = replica
            .location
            .as_deref()
            .is_some_and(|place| locations.iter().any(|wanted| wanted.eq_ignore_ascii_case(place)));
        let shown = url.split(['?', '#']).next().unwrap_or_default();
        sites.push(ReplicaSite::new(&url, shown, replica.priority, is_preferred));
    }
    sites
}

/// Checks that a replica can be read from `url`. Errors: `InvalidArgument` for a scheme other than `http(s)` and
/// `dav(s)`, and for a URL with a user or a password.
pub fn check_replica(url: &str) -> Result<()> {
    WebFileResource::parse(&http_url(url)).map(drop)
}

/// Returns the URL with `http(s)` in place of `dav(s)`.
fn http_url(url: &str) -> String {
    match url.split_once("://") {
        Some(("dav" | "DAV", rest)) => format!("http://{rest}"),
        Some(("davs" | "DAVS", rest)) => format!("https://{rest}"),
        _ => url.to_owned(),
    }
}

fn add(one: HttpTrafficCounts, other: HttpTrafficCounts) -> HttpTrafficCounts {
    HttpTrafficCounts {
        requests: one.requests + other.requests,
        connections: one.connections + other.connections,
    }
}
