//! Files with replicas, for the commands that read from web servers.

use std::fs::OpenOptions;
use std::hash::{DefaultHasher, Hash};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use fordway_client::http::replicas::{
    ReplicaOptions, ReplicatedFile, ReplicatedTicket, discover, fetch_metalink, is_metalink_name,
};
use fordway_client::http::vector::{Options, RemoteFile, Session, Ticket, Traffic};
use fordway_client::http::{Credentials, Proxies, TlsRoots, Version};
use fordway_store::{Error, ErrorKind, Result};
use fordway_wire::metalink::{Metalink, MetalinkFile, MetalinkUrl};

use crate::args::ReplicaArgs;
use crate::context::Context;
use crate::exit::file_error;
use crate::interrupt::Leftover;
use crate::part::PartFile;
use crate::transfer::Existing;
use crate::web;

/// How files are read that may have replicas.
#[derive(Clone, Copy)]
pub(crate) struct Places<'a> {
    pub(crate) args: &'a ReplicaArgs,
    /// Whether pieces are held against their digests.
    pub(crate) verify: bool,
    pub(crate) ca_bundle: Option<&'a PathBuf>,
    pub(crate) connections: usize,
    pub(crate) http: Version,
    /// How long an operation may take in all.
    pub(crate) deadline: Option<Duration>,
}

/// A file at one place, or at several.
pub(crate) enum Opened {
    One(RemoteFile),
    Many(ReplicatedFile),
}

/// How a file at one place is opened.
type Open<'o> = dyn FnMut(&Arc<Session>, &str) -> Result<RemoteFile> + 'o;

/// Ranges under way.
pub(crate) enum OpenedTicket {
    One(Ticket),
    Many(ReplicatedTicket),
}

impl<'a> Places<'a> {
    /// With the usual number of connections, and authorities of the environment.
    pub(crate) fn usual(args: &'a ReplicaArgs, verify: bool) -> Self {
        let connections = Options::default().connections_per_origin;
        Places { args, verify, ca_bundle: None, connections, http: Version::default(), deadline: None }
    }

    fn options(&self) -> Options {
        let bundle = self.ca_bundle.cloned().or_else(web::ca_bundle);
        Options {
            tls_roots: TlsRoots::find(bundle),
            credentials: Credentials::discover(),
            proxies: Proxies::discover(),
            connections_per_origin: self.connections,
            http: self.http,
            deadline: self.deadline,
            ..Options::default()
        }
    }

    fn session(&self) -> Arc<Session> {
        Arc::new(Session::new(self.options()))
    }

    fn is_told_none(&self) -> bool {
        self.args.metalink.as_deref() == Some("none")
    }

    /// What `--metalink` names, unless that is `none`.
    fn source(&self) -> Option<&str> {
        self.args.metalink.as_deref().filter(|source| *source != "none")
    }

    /// Opens what is at `url`, which may name a Metalink itself; with `--metalink`, it may be empty. Errors: those of opening, when nobody knows
    /// another place.
    pub(crate) fn open(&self, url: &str, context: &Context) -> Result<Opened> {
        self.open_by(url, context, &mut RemoteFile::open)
    }

    /// The same with ranges that are read first: they are under way then, unless the file is at several places.
    pub(crate) fn open_reading(
        &self,
        url: &str,
        first: &[(u64, usize)],
        context: &Context,
    ) -> Result<(Opened, Option<OpenedTicket>)> {
        let mut begun = None;
        let opened = self.open_by(url, context, &mut |session, url| {
            let (file, ticket) = RemoteFile::open_reading(session, url, first, Vec::new())?;
            begun = Some(OpenedTicket::One(ticket));
            Ok(file)
        })?;
        let is_one = matches!(opened, Opened::One(_));
        Ok((opened, begun.filter(|_| is_one)))
    }

    fn open_by(&self, url: &str, context: &Context, open: &mut Open<'_>) -> Result<Opened> {
        let url = &web::http_url(url);
        if let Some(source) = self.source() {
            let metalink = self.read(source, context)?;
            let name = base_name(url);
            let wanted = (metalink.files.len() > 1 && !name.is_empty()).then_some(name.as_str());
            let mut file = metalink.file(wanted)?;
            put_first(&mut file, url);
            return self.replicated(&file).map(Opened::Many);
        }
        if is_metalink_name(url) && !self.is_told_none() {
            return self.replicated(&self.read(url, context)?.file(None)?).map(Opened::Many);
        }
        match open(&self.session(), url) {
            Ok(file) if !self.is_told_none() && file.has_links() => match self.found(url, context) {
                Some(replicated) => Ok(Opened::Many(replicated)),
                None => Ok(Opened::One(file)),
            },
            Ok(_) if self.args.streams.is_some() => {
                let mut file = MetalinkFile::default();
                put_first(&mut file, url);
                self.replicated(&file).map(Opened::Many)
            }
            Ok(file) => Ok(Opened::One(file)),
            Err(error) => self.instead(url, error, context).map(Opened::Many),
        }
    }

    /// The file at other places than `url`, where it failed. Errors: `error`, if there are none.
    pub(crate) fn instead(&self, url: &str, error: Error, context: &Context) -> Result<ReplicatedFile> {
        if self.is_told_none() || !may_be_elsewhere(error.kind()) {
            return Err(error);
        }
        self.found(&web::http_url(url), context).ok_or(error)
    }

    fn found(&self, url: &str, context: &Context) -> Option<ReplicatedFile> {
        let found = discover(&self.session(), url, context.metalinks.as_ref())?;
        tracing::debug!(from = found.from, replicas = found.file.replicas.len(), "found replicas");
        if found.from == "the cache" {
            context.output.note(&format!("{url} is read as a Metalink of the cache describes it"));
        }
        self.replicated(&found.file).ok()
    }

    /// Reads a Metalink or a list of URLs: a file of this machine, or at a URL. Keeps it for later.
    pub(crate) fn read(&self, source: &str, context: &Context) -> Result<Metalink> {
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

    pub(crate) fn replicated(&self, file: &MetalinkFile) -> Result<ReplicatedFile> {
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
pub(crate) fn base_name(url: &str) -> String {
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

impl Opened {
    pub(crate) fn size_bytes(&self) -> u64 {
        match self {
            Opened::One(file) => file.size_bytes(),
            Opened::Many(file) => file.size_bytes(),
        }
    }

    pub(crate) fn traffic(&self) -> Traffic {
        match self {
            Opened::One(file) => file.traffic(),
            Opened::Many(file) => file.traffic(),
        }
    }

    pub(crate) fn submit(&self, ranges: &[(u64, usize)], memory: Vec<u8>) -> Result<OpenedTicket> {
        match self {
            Opened::One(file) => file.submit(ranges, memory).map(OpenedTicket::One),
            Opened::Many(file) => file.submit(ranges, memory).map(OpenedTicket::Many),
        }
    }

    /// Errors: also `Internal`, for a ticket of the file that was read before.
    pub(crate) fn wait(&self, ticket: OpenedTicket) -> Result<Vec<u8>> {
        match (self, ticket) {
            (Opened::One(file), OpenedTicket::One(ticket)) => Ok(file.wait(ticket)?.bytes),
            (Opened::Many(file), OpenedTicket::Many(ticket)) => Ok(file.wait(ticket)?.bytes),
            _ => Err(Error::new(ErrorKind::Internal, "a ticket of another file")),
        }
    }

    /// Hands the bytes of `range` to `sink` in order; goes on elsewhere where the one place fails.
    pub(crate) fn copy_range(
        &self,
        range: Range<u64>,
        (url, places, context): (&str, &Places<'_>, &Context),
        sink: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let file = match self {
            Opened::One(file) => file,
            Opened::Many(file) => return file.copy_range(range, sink),
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

/// Copies all files of the Metalink or list at `source`.
pub(crate) fn copy_all(
    source: &str,
    destination: &str,
    existing: Existing,
    places: &Places<'_>,
    context: &Context,
) -> Result<()> {
    let metalink = places.read(source, context)?;
    let is_directory = destination.ends_with('/') || Path::new(destination).is_dir();
    if metalink.files.len() != 1 && !is_directory {
        let count = metalink.files.len();
        let why = format!("{source} describes {count} files; name a directory, as {destination}/");
        return Err(Error::new(ErrorKind::InvalidArgument, why));
    }
    for described in &metalink.files {
        context.interrupt.check()?;
        let first = described.replicas.first().map_or("", |replica| replica.url.as_str());
        let name = if described.name.is_empty() { web::name_of(first) } else { described.name.clone() };
        let path = web::place(&name, source, destination)?;
        if web::is_wanted(&path, existing)? {
            context.output.start_progress();
            let copied = copy(&places.replicated(described)?, source, &path, existing, context);
            context.output.end_progress();
            copied?;
        }
    }
    Ok(())
}

/// Copies a file to `path`, by way of a part beside it.
pub(crate) fn copy(
    file: &ReplicatedFile,
    from: &str,
    path: &Path,
    existing: Existing,
    context: &Context,
) -> Result<()> {
    let (hasher, leftover) = identity(file);
    let part = PartFile::open(path, (&hasher, leftover), context)?;
    copy_into(file, part, (from, path), existing, context)
}

/// What tells the part of this file from others, and what is left of it is worth: without digests nothing can be proved.
pub(crate) fn identity(file: &ReplicatedFile) -> (DefaultHasher, Leftover) {
    let mut hasher = DefaultHasher::new();
    file.identity().hash(&mut hasher);
    (hasher, file.digest_name().map_or(Leftover::Useless, |_| Leftover::Resumable))
}

/// The same by way of a part that is open.
pub(crate) fn copy_into(
    file: &ReplicatedFile,
    part: PartFile<'_>,
    (from, path): (&str, &Path),
    existing: Existing,
    context: &Context,
) -> Result<()> {
    let bytes = file.size_bytes();
    context.output.expect_bytes(bytes);
    let mut there_bytes = 0;
    let completed = complete(file, part.path(), &mut |bytes| {
        there_bytes += bytes;
        context.output.advance_bytes(bytes);
        context.interrupt.check()
    });
    let verified = file.digest_name();
    let resumed_bytes = match completed {
        Ok(resumed_bytes) => resumed_bytes,
        Err(error) => {
            part.failed(&error, there_bytes);
            return Err(error);
        }
    };
    part.publish(path, existing)?;
    let to = path.display().to_string();
    context.output.event(&web::Copied { action: "download", from, to, bytes, resumed_bytes, verified })
}

/// Makes the file at `part` the whole of `file`; returns how many bytes of it were there before.
fn complete(file: &ReplicatedFile, part: &Path, progress: &mut dyn FnMut(u64) -> Result<()>) -> Result<u64> {
    let failed = |error| file_error("writing", part.display(), error);
    let part = OpenOptions::new().read(true).write(true).open(part).map_err(failed)?;
    file.complete(&part, progress)
}
