//! The rungs and ways of a ledger, each with what it needs.

use std::path::Path as FilePath;
use std::sync::Arc;

use fordway_client::http::Version;
use fordway_measure::Lane;
use fordway_posix::{Durability, PosixConfig, PosixStore};
use fordway_store::{Bucket, ETagPolicy, ErrorKind, Key, PutOptions, Result, Store};
use fordway_wire::node::INLINE_BYTES_MAX;
use fordway_workload::ledger::{MeasuredRung, Path, Rung};

use super::echo::Form;
use super::rungs::files::{Files, Open, PosixGet, Pread, PreadPieces, name};
use super::rungs::heads::Http1Heads;
use super::rungs::http2::{Http2Frames, Pipe};
use super::rungs::layer::Layer;
use super::rungs::memory::{Copy, Digest, Nothing};
use super::rungs::node_frames::NodeFrames;
use super::rungs::request::{Heads, S3Request, Sign, Verify};
use super::rungs::round_trip::{Messages, Tcp, Unix};
use super::rungs::store::{Describe, Get, Objects};
use super::rungs::tls::Tls;
use super::rungs::{Contents, Operation};
use crate::args::PathArg;
use crate::commands::gateway::GatewayProcess;
use crate::exit::file_error;

/// Content up to this size leaves a gateway with its head, in one call, by the node lane and by HTTP.
const INLINE_BYTES: u64 = INLINE_BYTES_MAX as u64;
/// What the client of the HTTP lane receives with a head is copied into place.
const COPIED_BYTES_MAX: u64 = 16 << 10;
/// Content of a TLS record, and what it has besides.
const RECORD_BYTES: u64 = 16 << 10;
const RECORD_OVERHEAD_BYTES: u64 = 22;
const BUCKET: &str = "ledger";

/// All that is measured, and the gateways behind it.
pub(super) struct Ladder {
    pub(super) rungs: Vec<MeasuredRung>,
    pub(super) paths: Vec<Path>,
    gateways: Vec<GatewayProcess>,
}

/// Where objects are, for rungs that are made of them.
struct Site<'s> {
    dir: &'s FilePath,
    bucket: Bucket,
    files: Files,
    largest: std::path::PathBuf,
    objects: Objects,
    contents: Contents,
}

impl Ladder {
    /// Stores an object of each of `sizes` in the empty directory `dir`, and makes the rungs of `ways`.
    pub(super) fn new(dir: &FilePath, sizes: &[u64], ways: &[PathArg]) -> Result<Self> {
        let root = dir.join("s3");
        std::fs::create_dir(&root).map_err(|error| file_error("making", root.display(), error))?;
        let bucket = Bucket::new(BUCKET)?;
        let config = PosixConfig { etag_policy: ETagPolicy::Fast, ..PosixConfig::default() };
        let store = PosixStore::open(&root, config)?;
        store.create_bucket(&bucket)?;
        let largest = sizes.last().copied().unwrap_or_default();
        let contents = Contents::new(largest);
        for &size in sizes {
            store.put(&bucket, &Key::new(name(size))?, contents.of(size), &PutOptions::default())?;
        }
        let files = Files::new(&root.join(BUCKET), &contents);
        let largest = files.path(largest);
        let objects = Objects::new(Arc::new(store), &bucket, &contents)?;
        let site = Site { dir, bucket, files, largest, objects, contents };
        let mut ladder = Ladder { rungs: Vec::new(), paths: Vec::new(), gateways: Vec::new() };
        ladder.memory(&site.contents);
        for way in ways {
            ladder.way(*way, &site, &root)?;
        }
        Ok(ladder)
    }

    /// Ends the gateways.
    pub(super) fn close(self) -> Result<()> {
        drop(self.rungs);
        self.gateways.into_iter().try_for_each(GatewayProcess::stop)
    }

    /// Adds a rung, unless it is there.
    fn add(
        &mut self,
        name: &str,
        description: &str,
        rung: impl FnOnce() -> Result<Box<dyn Rung>>,
    ) -> Result<()> {
        if self.rungs.iter().all(|known| known.lane.name != name) {
            let lane = Lane { name: name.to_owned(), description: description.to_owned() };
            self.rungs.push(MeasuredRung { lane, rung: rung()? });
        }
        Ok(())
    }

    /// Rungs that need nothing, which are measured in any case.
    fn memory(&mut self, contents: &Contents) {
        let mut add = |name: &str, description: &str, rung: Box<dyn Rung>| {
            let lane = Lane { name: name.to_owned(), description: description.to_owned() };
            self.rungs.push(MeasuredRung { lane, rung });
        };
        add("memory copy", "memcpy between buffers in use", Box::new(Copy::new(contents)));
        add("clock", "nothing: two readings of the clock", Box::new(Nothing));
        add("crc64nvme", "CRC-64/NVME of the content", Box::new(Digest::crc64nvme(contents)));
        add("sha256", "SHA-256 of the content", Box::new(Digest::sha256(contents)));
        add("md5", "MD5 of the content", Box::new(Digest::md5(contents)));
    }

    fn way(&mut self, way: PathArg, site: &Site<'_>, root: &FilePath) -> Result<()> {
        match way {
            PathArg::Posix => self.posix(site),
            PathArg::Embedded => self.embedded(site),
            PathArg::Node => self.node(site, root),
            PathArg::Http => self.http(site, root),
            PathArg::Https => self.https(site, root),
            PathArg::Http2 => self.http2(site, root),
        }
    }

    fn file_rungs(&mut self, site: &Site<'_>) -> Result<()> {
        self.add("file open", "open by absolute path, fstat, close", || {
            Ok(Box::new(Open::new(&site.files)))
        })?;
        self.add("pread", "pread of an open file in the page cache", || Ok(Box::new(Pread::new(&site.files))))
    }

    fn posix(&mut self, site: &Site<'_>) -> Result<()> {
        self.file_rungs(site)?;
        let description = "a plain file: open by absolute path, fstat, pread, close";
        self.add("posix get", description, || Ok(Box::new(PosixGet::new(&site.files))))?;
        self.paths.push(Path::new("posix get").with("file open").with("pread"));
        Ok(())
    }

    fn embedded_rungs(&mut self, site: &Site<'_>) -> Result<()> {
        self.file_rungs(site)?;
        let description = "an object read by the store in this process: held directory, no server";
        self.add("embedded get", description, || Ok(Box::new(Get::new(site.objects.clone(), None))))?;
        let description = "an object opened and described by the store, and closed: no content";
        self.add("object open", description, || Ok(Box::new(Describe(site.objects.clone()))))
    }

    fn embedded(&mut self, site: &Site<'_>) -> Result<()> {
        self.embedded_rungs(site)?;
        self.paths.push(Path::new("embedded get").with("file open").with("pread"));
        Ok(())
    }

    fn node(&mut self, site: &Site<'_>, root: &FilePath) -> Result<()> {
        self.embedded_rungs(site)?;
        let mut frames = NodeFrames::new(&site.bucket)?;
        let description = "request and reply of the node lane written and read, in memory";
        self.add("node frames", description, || Ok(Box::new(NodeFrames::new(&site.bucket)?)))?;
        let sizes = move |size_bytes: u64| {
            let (request_bytes, head_bytes) = frames.lengths(size_bytes)?;
            let form = if size_bytes > INLINE_BYTES { Form::Descriptor } else { Form::Bytes };
            Ok(Messages { request_bytes, head_bytes, body_bytes: size_bytes as usize, form })
        };
        let description = "messages as long as the node lane's to a process that only answers, and back; \
                           over 64 KiB a descriptor in place of the content";
        self.add("unix round trip", description, || {
            Ok(Box::new(Unix::new(site.dir, &site.largest, Box::new(sizes))?))
        })?;
        let gateway = GatewayProcess::start_node(root, ETagPolicy::Fast, Durability::None)?;
        self.whole("node get", "the node lane, a gateway process", site, gateway)?;
        self.paths.push(
            Path::new("node get")
                .with("embedded get")
                .with("unix round trip")
                .with("node frames")
                .with_up_to("memory copy", INLINE_BYTES),
        );
        Ok(())
    }

    /// The whole way through a gateway.
    fn whole(
        &mut self,
        name: &str,
        description: &str,
        site: &Site<'_>,
        gateway: GatewayProcess,
    ) -> Result<()> {
        let objects = Objects::new(gateway.client()?, &site.bucket, &site.contents)?;
        let pid = gateway.pid();
        self.gateways.push(gateway);
        self.add(name, description, || Ok(Box::new(Get::new(objects, Some(pid)))))
    }

    /// Heads and signatures, as they go to a plain gateway; answers the request.
    fn request_rungs(&mut self, site: &Site<'_>, root: &FilePath) -> Result<S3Request> {
        let gateway = GatewayProcess::start(root, ETagPolicy::Fast, Durability::None)?;
        let Some((host, identity)) = gateway.place() else { return Err(ErrorKind::Internal.into()) };
        let request = S3Request::new(Operation::Get, host, identity, &site.bucket, &site.contents);
        self.gateways.push(gateway);
        let description = "both heads of HTTP/1.1 written and read, in memory, without the signature";
        self.add("http1 heads", description, || Ok(Box::new(Http1Heads::new(&request))))?;
        self.add("sign", "SigV4 of a request", || Ok(Box::new(Sign::new(&request))))?;
        self.add("verify", "the same signature verified", || Ok(Box::new(Verify::new(&request))))?;
        Ok(request)
    }

    fn http(&mut self, site: &Site<'_>, root: &FilePath) -> Result<()> {
        self.embedded_rungs(site)?;
        let request = self.request_rungs(site, root)?;
        let sizes = move |size_bytes: u64| {
            let Heads { asked, answered } = request.heads(size_bytes)?;
            let form = if size_bytes > INLINE_BYTES { Form::File } else { Form::Bytes };
            Ok(Messages {
                request_bytes: asked.len(),
                head_bytes: answered.len(),
                body_bytes: size_bytes as usize,
                form,
            })
        };
        let description = "messages as long as HTTP/1.1's over loopback TCP to a process that only answers, \
                           and back; content over 64 KiB by sendfile";
        self.add("tcp round trip", description, || Ok(Box::new(Tcp::new(&site.largest, Box::new(sizes))?)))?;
        let gateway = GatewayProcess::start(root, ETagPolicy::Fast, Durability::None)?;
        self.whole("http get", "S3 over HTTP/1.1 on loopback, a gateway process", site, gateway)?;
        let path = Path::new("http get").with("object open").with_up_to("pread", INLINE_BYTES);
        self.paths.push(with_request(path.with("tcp round trip")));
        Ok(())
    }

    fn https(&mut self, site: &Site<'_>, root: &FilePath) -> Result<()> {
        self.embedded_rungs(site)?;
        let request = self.request_rungs(site, root)?;
        let sizes = move |size_bytes: u64| {
            let Heads { asked, answered } = request.heads(size_bytes)?;
            let records = size_bytes.div_ceil(RECORD_BYTES) + 1;
            let body_bytes = (size_bytes + records * RECORD_OVERHEAD_BYTES) as usize;
            let request_bytes = asked.len() + RECORD_OVERHEAD_BYTES as usize;
            Ok(Messages { request_bytes, head_bytes: answered.len(), body_bytes, form: Form::Bytes })
        };
        let description = "the same with all content from memory, as TLS needs it";
        self.add("tcp round trip, no sendfile", description, || {
            Ok(Box::new(Tcp::new(&site.largest, Box::new(sizes))?))
        })?;
        let description = "content sealed and opened by TLS, both in memory, one after the other";
        self.add("tls", description, || Ok(Box::new(Tls::new(&site.contents)?)))?;
        let gateway = GatewayProcess::start_tls(root, ETagPolicy::Fast, Durability::None)?;
        self.whole("https get", "S3 over HTTP/1.1 and TLS on loopback, a gateway process", site, gateway)?;
        let path = Path::new("https get").with("object open").with("pread").with("tls");
        self.paths.push(with_request(path.with("tcp round trip, no sendfile")));
        Ok(())
    }

    fn http2(&mut self, site: &Site<'_>, root: &FilePath) -> Result<()> {
        self.embedded_rungs(site)?;
        let request = self.request_rungs(site, root)?;
        let description = "pread of an open file in the page cache, 64 KiB at a time";
        self.add("pread in pieces", description, || Ok(Box::new(PreadPieces::new(&site.files))))?;
        let description = "a GET without its content answered by the S3 layer in memory, signature verified";
        self.add("s3 layer", description, || {
            Ok(Box::new(Layer::new(Operation::Get, &site.bucket, &site.contents)?))
        })?;
        self.http2_rungs(site, &request)?;
        let gateway =
            GatewayProcess::start(root, ETagPolicy::Fast, Durability::None)?.asked_in(Version::Http2);
        self.whole("http2 get", "S3 over HTTP/2 in the clear on loopback, a gateway process", site, gateway)?;
        self.paths.push(
            Path::new("http2 get")
                .with("object open")
                .with("pread in pieces")
                .with("tcp round trip, event loops")
                .with("http2 frames")
                .less("memory pipe")
                .with("http1 heads")
                .with("sign")
                .with("s3 layer"),
        );
        Ok(())
    }

    fn http2_rungs(&mut self, site: &Site<'_>, request: &S3Request) -> Result<()> {
        let frames = || Http2Frames::new(request, &site.contents);
        let description = "heads compressed and content in frames of HTTP/2, written and read by both \
                           libraries, through a pipe in memory";
        self.add("http2 frames", description, || Ok(Box::new(frames()?)))?;
        let description = "as many bytes through that pipe alone";
        self.add("memory pipe", description, || Ok(Box::new(Pipe::new(frames()?)?)))?;
        let mut counted = frames()?;
        let sizes = move |size_bytes: u64| {
            let (request_bytes, answer_bytes) = counted.lengths(size_bytes)?;
            let body_bytes = size_bytes as usize;
            let head_bytes = answer_bytes - body_bytes;
            Ok(Messages { request_bytes, head_bytes, body_bytes, form: Form::Pieces })
        };
        let description = "messages as long as HTTP/2's over loopback TCP, 64 KiB at a time, with an event \
                           loop on both sides";
        self.add("tcp round trip, event loops", description, || {
            Ok(Box::new(Tcp::new(&site.largest, Box::new(sizes))?.with_event_loop()?))
        })
    }
}

/// What every request over HTTP has.
fn with_request(path: Path) -> Path {
    path.with("http1 heads").with("sign").with("verify").with_up_to("memory copy", COPIED_BYTES_MAX)
}
