//! Files with replicas, for the commands that read from web servers.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use fordway_http::replicas::{
    ReplicaOptions, ReplicatedFile, ReplicatedTicket, discover, fetch_metalink, is_metalink_name,
};
use fordway_http::vector::{HttpSession, RangeTicket, ReadTraffic, RemoteFile, SessionOptions};
use fordway_http::{HttpVersion, ProxySettings, SessionCredentials, TlsRoots};
use fordway_store::{Error, ErrorKind, Result};
use fordway_wire::metalink::{Metalink, MetalinkFile, MetalinkUrl};

use crate::args::ReplicaArgs;
use crate::context::CommandContext;
use crate::exit::file_error;
use crate::web;

/// How files are read that may have replicas.
#[derive(Clone, Copy)]
pub struct ReplicaOpener<'a> {
    /// What the command line says.
    pub args: &'a ReplicaArgs,
    /// Whether pieces are checked against their digests.
    pub verify: bool,
    /// Authorities; `None` for the environment's.
    pub ca_bundle: Option<&'a PathBuf>,
    /// To one server at most.
    pub connections: usize,
    /// Which HTTP is spoken.
    pub http: HttpVersion,
    /// How long an operation may take in all.
    pub deadline: Option<Duration>,
}

/// A file at one place, or at several.
pub enum OpenedFile {
    /// At one place.
    One(RemoteFile),
    /// At several.
    Many(ReplicatedFile),
}

/// How a file at one place is opened.
type Open<'o> = dyn FnMut(&Arc<HttpSession>, &str) -> Result<RemoteFile> + 'o;

/// Ranges under way.
pub enum OpenedTicket {
    /// Of a file at one place.
    One(RangeTicket),
    /// Of a file at several.
    Many(ReplicatedTicket),
}

impl<'a> ReplicaOpener<'a> {
    /// With the usual number of connections, and authorities of the environment.
    pub fn usual(args: &'a ReplicaArgs, verify: bool) -> Self {
        let connections = SessionOptions::default().connections_per_origin;
        ReplicaOpener {
            args,
            verify,
            ca_bundle: None,
            connections,
            http: HttpVersion::default(),
            deadline: None,
        }
    }

    fn options(&self) -> SessionOptions {
        let bundle = self.ca_bundle.cloned().or_else(web::ca_bundle);
        SessionOptions {
            tls_roots: TlsRoots::find(bundle),
            credentials: SessionCredentials::discover(),
            proxies: ProxySettings::discover(),
            connections_per_origin: self.connections,
            http: self.http,
            deadline: self.deadline,
            ..SessionOptions::default()
        }
    }

    fn session(&self) -> Arc<HttpSession> {
        Arc::new(HttpSession::new(self.options()))
    }

    fn is_told_none(&self) -> bool {
        self.args.metalink.as_deref() == Some("none")
    }

    /// What `--metalink` names, unless that is `none`.
    fn source(&self) -> Option<&str> {
        self.args.metalink.as_deref().filter(|source| *source != "none")
    }

    /// Opens what is at `url`, which may name a Metalink itself; with `--metalink`, it may be empty. Errors: from opening, when nobody knows
    /// another place.
    pub fn open(&self, url: &str, context: &CommandContext) -> Result<OpenedFile> {
        self.open_by(url, context, &mut RemoteFile::open)
    }

    /// The same with ranges that are read first: they are under way then, unless the file is at several places.
    pub fn open_reading(
        &self,
        url: &str,
        first: &[(u64, usize)],
        context: &CommandContext,
    ) -> Result<(OpenedFile, Option<OpenedTicket>)> {
        let mut begun = None;
        let opened = self.open_by(url, context, &mut |session, url| {
            let (file, ticket) = RemoteFile::open_reading(session, url, first, Vec::new())?;
            begun = Some(OpenedTicket::One(ticket));
            Ok(file)
        })?;
        let is_one = matches!(opened, OpenedFile::One(_));
        Ok((opened, begun.filter(|_| is_one)))
    }

    fn open_by(&self, url: &str, context: &CommandContext, open: &mut Open<'_>) -> Result<OpenedFile> {
        let url = &web::http_url(url);
        if let Some(source) = self.source() {
            let metalink = self.read(source, context)?;
            let name = base_name(url);
            let wanted = (metalink.files.len() > 1 && !name.is_empty()).then_some(name.as_str());
            let mut file = metalink.file(wanted)?;
            put_first(&mut file, url);
            return self.replicated(&file).map(OpenedFile::Many);
        }
        if is_metalink_name(url) && !self.is_told_none() {
            return self.replicated(&self.read(url, context)?.file(None)?).map(OpenedFile::Many);
        }
        match open(&self.session(), url) {
            Ok(file) if !self.is_told_none() && file.has_links() => match self.found(url, context) {
                Some(replicated) => Ok(OpenedFile::Many(replicated)),
                None => Ok(OpenedFile::One(file)),
            },
            Ok(_) if self.args.streams.is_some() => {
                let mut file = MetalinkFile::default();
                put_first(&mut file, url);
                self.replicated(&file).map(OpenedFile::Many)
            }
            Ok(file) => Ok(OpenedFile::One(file)),
            Err(error) => self.instead(url, error, context).map(OpenedFile::Many),
        }
    }

    /// The file at other places than `url`, where it failed. Errors: `error`, if there are none.
    pub fn instead(&self, url: &str, error: Error, context: &CommandContext) -> Result<ReplicatedFile> {
        if self.is_told_none() || !may_be_elsewhere(error.kind()) {
            return Err(error);
        }
        self.found(&web::http_url(url), context).ok_or(error)
    }

    fn found(&self, url: &str, context: &CommandContext) -> Option<ReplicatedFile> {
        let found = discover(&self.session(), url, context.metalinks.as_ref())?;
        tracing::debug!(from = found.from, replicas = found.file.replicas.len(), "found replicas");
        if found.from == "the cache" {
            context.output.note(&format!("{url} is read as a Metalink of the cache describes it"));
        }
        self.replicated(&found.file).ok()
    }

    /// Reads a Metalink or a list of URLs: a file of this machine, or at a URL. Keeps it for later.
    pub fn read(&self, source: &str, context: &CommandContext) -> Result<Metalink> {
        let metalink = if web::is_address(source) {
            fetch_metalink(&self.session(), source)?
        } else {
            let document = std::fs::read(source).map_err(|error| file_error("reading", source, error))?;
            Metalink::parse(&document)?
        };
        for file in metalink.files.iter().filter(|file| !file.replicas.is_empty()) {
            if let Some(Err(error)) = context.metalinks.as_ref().map(|cache| cache.keep(file)) {
                tracing::debug!(%error, "the Metalink is not kept");
            }
        }
        Ok(metalink)
    }

    /// Opens what a Metalink describes. Errors: from opening at every place.
    pub fn replicated(&self, file: &MetalinkFile) -> Result<ReplicatedFile> {
        let options = ReplicaOptions {
            session: self.options(),
            streams: self.args.streams.map(usize::from),
            verify: self.verify,
            locations: self.args.location.clone(),
            ..ReplicaOptions::default()
        };
        ReplicatedFile::open(file, options)
    }
}

/// The address that was named goes before all that others name.
fn put_first(file: &mut MetalinkFile, url: &str) {
    if url.is_empty() || is_metalink_name(url) || file.replicas.iter().any(|replica| replica.url == url) {
        return;
    }
    file.replicas.insert(0, MetalinkUrl { url: url.to_owned(), priority: 1, location: None });
}

/// The last name in an address, without its query.
pub fn base_name(url: &str) -> String {
    let path = url.split(['?', '#']).next().unwrap_or_default();
    path.rsplit('/').next().unwrap_or_default().to_owned()
}

/// Whether a failure is one of the place, and not of what was asked.
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

impl OpenedFile {
    /// Of the whole file.
    pub fn size_bytes(&self) -> u64 {
        match self {
            OpenedFile::One(file) => file.size_bytes(),
            OpenedFile::Many(file) => file.size_bytes(),
        }
    }

    /// Requests and connections until now.
    pub fn traffic(&self) -> ReadTraffic {
        match self {
            OpenedFile::One(file) => file.traffic(),
            OpenedFile::Many(file) => file.traffic(),
        }
    }

    /// Asks for ranges; `memory` is used again. Errors: from the first request.
    pub fn submit(&self, ranges: &[(u64, usize)], memory: Vec<u8>) -> Result<OpenedTicket> {
        match self {
            OpenedFile::One(file) => file.submit(ranges, memory).map(OpenedTicket::One),
            OpenedFile::Many(file) => file.submit(ranges, memory).map(OpenedTicket::Many),
        }
    }

    /// Errors: also `Internal`, for a ticket of the file that was read before.
    pub fn wait(&self, ticket: OpenedTicket) -> Result<Vec<u8>> {
        match (self, ticket) {
            (OpenedFile::One(file), OpenedTicket::One(ticket)) => Ok(file.wait(ticket)?.bytes),
            (OpenedFile::Many(file), OpenedTicket::Many(ticket)) => Ok(file.wait(ticket)?.bytes),
            _ => Err(Error::new(ErrorKind::Internal, "a ticket of another file")),
        }
    }

    /// Hands the bytes of `range` to `sink` in order; goes on elsewhere where the one place fails.
    pub fn copy_range(
        &self,
        range: Range<u64>,
        (url, places, context): (&str, &ReplicaOpener<'_>, &CommandContext),
        sink: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let file = match self {
            OpenedFile::One(file) => file,
            OpenedFile::Many(file) => return file.copy_range(range, sink),
        };
        let (mut at, mut has_sink_failed) = (range.start, false);
        let mut counted = |bytes: &[u8]| {
            at += bytes.len() as u64;
            sink(bytes).inspect_err(|_| has_sink_failed = true)
        };
        let copied = match range == (0..file.size_bytes()) {
            // What was handed out cannot be taken back: other bytes than the server's digest says are an error
            // all the same.
            true => file.copy_verified(0, &|| Ok(Box::new(std::io::empty())), &mut counted).map(drop),
            false => file.copy_range(range.clone(), &mut counted),
        };
        match copied {
            Err(error) if !has_sink_failed && at < range.end => {
                let replicated = places.instead(url, error, context)?;
                replicated.copy_range(at..range.end, sink)
            }
            copied => copied,
        }
    }
}
