//! The components and paths of a ledger, with the gateways and files that they need. [`paths`] contains the paths that
//! read and write on this machine. `http3` contains the paths over HTTP/3, and [`connections`] the paths on new
//! connections. [`networks`] contains the paths through the networks of set-ups and into containers.

mod connections;
#[cfg(feature = "http3")]
mod http3;
mod names;
mod networks;
mod paths;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use fordway_command::file_error;
use fordway_measure::RowDescription;
use fordway_netlab::setup::NetworkPair;
use fordway_posix::{Durability, PosixConfig, PosixStore};
use fordway_store::{Bucket, ETagPolicy, ErrorKind, Key, Objects as _, PutOptions, Result};
use fordway_workload::ledger::{LedgerComponent, NamedComponent, PathDecomposition};

use self::networks::chosen;
use super::components::request::{Http1HeadComponent, RequestSigningComponent, S3RequestTemplate};
use super::components::storage::{FilesBySize, MeasuredObject, name_of_size};
use super::components::{
    ClockReadingComponent, DigestComponent, MemoryCopyComponent, NonrepeatingContent, ObjectOperation,
};
use crate::args::LedgerPathArg;
use crate::commands::gateway::{GatewayProcess, ServerCertificate};

/// The number of content bytes in a TLS record.
const RECORD_BYTES: u64 = 16 << 10;
/// The number of bytes that a TLS record adds to its content.
const RECORD_OVERHEAD_BYTES: u64 = 22;
const BUCKET: &str = "ledger";

/// The measured components and paths, and the gateways and networks that they require.
#[derive(Default)]
pub(super) struct PreparedLedgerRun {
    pub(super) components: Vec<NamedComponent>,
    pub(super) paths: Vec<PathDecomposition>,
    /// The names of the requested paths and set-ups that cannot be measured on this machine, each with the reason.
    pub(super) left_out: Vec<String>,
    gateways: Vec<GatewayProcess>,
    /// The paths that were added or skipped.
    seen: Vec<LedgerPathArg>,
    /// The certificate of the processes that respond in round trips, if any of them needs a certificate.
    certificate: Option<ServerCertificate>,
    networks: Vec<NetworkPair>,
}

/// The location and content of the objects that components work on.
struct LedgerObjectLocation<'s> {
    dir: &'s Path,
    /// The root that gateways serve.
    root: &'s Path,
    bucket: Bucket,
    files: FilesBySize,
    largest: PathBuf,
    objects: MeasuredObject,
    contents: NonrepeatingContent,
}

impl PreparedLedgerRun {
    /// Stores one object of each size in `sizes` in the empty directory `dir`. Creates the components of all `paths`,
    /// and the components of an HTTP get through each set-up in `networks`.
    pub(super) fn new(
        dir: &Path,
        sizes: &[u64],
        paths: &[LedgerPathArg],
        networks: &[String],
    ) -> Result<Self> {
        let setups = chosen(networks)?;
        let root = dir.join("s3");
        std::fs::create_dir(&root).map_err(|error| file_error("creating", root.display(), error))?;
        let bucket = Bucket::new(BUCKET)?;
        let config = PosixConfig { etag_policy: ETagPolicy::Fast, ..PosixConfig::default() };
        let store = PosixStore::open(&root, config)?;
        store.create_bucket(&bucket)?;
        let largest = sizes.last().copied().unwrap_or_default();
        let contents = NonrepeatingContent::new(largest);
        for &size in sizes {
            store.put(&bucket, &Key::new(name_of_size(size))?, contents.of(size), &PutOptions::default())?;
        }
        let files = FilesBySize::new(&root.join(BUCKET), &contents);
        let largest = files.path(largest);
        let objects = MeasuredObject::new(Arc::new(store), &bucket, &contents)?;
        let site = LedgerObjectLocation { dir, root: &root, bucket, files, largest, objects, contents };
        let mut ledger = PreparedLedgerRun::default();
        ledger.memory(&site.contents);
        for path in paths {
            ledger.path(*path, &site)?;
        }
        ledger.setups(&setups, &site)?;
        Ok(ledger)
    }

    /// Stops the gateways. Errors: `Internal` if a gateway exited with a failure.
    pub(super) fn close(self) -> Result<()> {
        drop(self.components);
        self.gateways.into_iter().try_for_each(GatewayProcess::stop)
    }

    /// Adds a component, unless a component with that name exists.
    fn add(
        &mut self,
        name: &str,
        description: &str,
        component: impl FnOnce() -> Result<Box<dyn LedgerComponent>>,
    ) -> Result<()> {
        if self.components.iter().all(|known| known.row.name != name) {
            let row = RowDescription { name: name.to_owned(), description: description.to_owned() };
            self.components.push(NamedComponent { row, component: component()? });
        }
        Ok(())
    }

    /// Adds the components that need only memory, which are always measured.
    fn memory(&mut self, contents: &NonrepeatingContent) {
        let mut add = |name: &str, description: &str, component: Box<dyn LedgerComponent>| {
            let row = RowDescription { name: name.to_owned(), description: description.to_owned() };
            self.components.push(NamedComponent { row, component });
        };
        add(
            names::MEMORY_COPY,
            "memcpy between buffers in use",
            Box::new(MemoryCopyComponent::new(contents)),
        );
        add("clock", "nothing: two readings of the clock", Box::new(ClockReadingComponent));
        add(names::CRC64NVME, "CRC-64/NVME of the content", Box::new(DigestComponent::crc64nvme(contents)));
        add("sha256", "SHA-256 of the content", Box::new(DigestComponent::sha256(contents)));
        add("md5", "MD5 of the content", Box::new(DigestComponent::md5(contents)));
    }

    /// Adds a path, unless it has already been added.
    fn path(&mut self, path: LedgerPathArg, site: &LedgerObjectLocation<'_>) -> Result<()> {
        if self.seen.contains(&path) {
            return Ok(());
        }
        self.seen.push(path);
        match path {
            LedgerPathArg::Posix => self.posix(site),
            LedgerPathArg::Embedded => self.embedded(site),
            LedgerPathArg::Node => self.node(site),
            LedgerPathArg::Http => self.http(site),
            LedgerPathArg::Https => self.https(site),
            LedgerPathArg::Http2 => self.http2(site),
            LedgerPathArg::EmbeddedPut => self.embedded_put(site),
            LedgerPathArg::NodePut => self.node_put(site),
            LedgerPathArg::HttpPut => self.http_put(site),
            LedgerPathArg::HttpsPut => self.https_put(site),
            LedgerPathArg::HttpNew => self.http_new(site),
            LedgerPathArg::HttpsNew => self.https_new(site),
            LedgerPathArg::Http3New => self.http3_new(site),
            LedgerPathArg::Http3 => self.http3_path(ObjectOperation::Get, site),
            LedgerPathArg::Http3Put => self.http3_path(ObjectOperation::Put, site),
        }
    }

    /// Returns the directory with the certificate of the responding processes.
    fn certificate(&mut self) -> Result<PathBuf> {
        let certificate = match self.certificate.take() {
            Some(made) => made,
            None => ServerCertificate::for_loopback()?,
        };
        let directory = certificate.directory().to_owned();
        self.certificate = Some(certificate);
        Ok(directory)
    }

    /// Records that a path over HTTP/3 is skipped, because this program is built without HTTP/3.
    #[cfg(not(feature = "http3"))]
    fn http3_path(&mut self, operation: ObjectOperation, _: &LedgerObjectLocation<'_>) -> Result<()> {
        let path = operation.path_over("http3");
        self.left_out.push(format!("skipped the path {path}: fordway-lab was built without HTTP/3"));
        Ok(())
    }

    /// Starts a gateway over HTTP/1.1 without TLS. Its durability is `none`, so that writes do not wait for the disk.
    fn gateway(root: &Path) -> Result<GatewayProcess> {
        GatewayProcess::start(root, ETagPolicy::Fast, Durability::None)
    }

    /// Starts a gateway over HTTP/1.1 with TLS. Its durability is `none`.
    fn tls_gateway(root: &Path) -> Result<GatewayProcess> {
        GatewayProcess::start_tls(root, ETagPolicy::Fast, Durability::None)
    }

    /// Starts a gateway without TLS, and adds the component that signs requests. Returns the signed request to that
    /// gateway.
    fn request(
        &mut self,
        site: &LedgerObjectLocation<'_>,
        operation: ObjectOperation,
    ) -> Result<S3RequestTemplate> {
        let gateway = PreparedLedgerRun::gateway(site.root)?;
        let Some((host, identity)) = gateway.place() else { return Err(ErrorKind::Internal.into()) };
        let request = S3RequestTemplate::new(operation, host, identity, &site.bucket, &site.contents);
        self.gateways.push(gateway);
        self.add(names::SIGN, "SigV4 of a request", || Ok(Box::new(RequestSigningComponent::new(&request))))?;
        Ok(request)
    }

    /// Adds the component `name`, which writes and reads the heads of `request` and its response.
    fn heads(&mut self, name: &str, request: &S3RequestTemplate) -> Result<()> {
        let description = "both heads of HTTP/1.1 written and read, in memory, without the signature";
        self.add(name, description, || Ok(Box::new(Http1HeadComponent::new(request))))
    }
}
