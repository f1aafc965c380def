//! Opens the lane for an endpoint. Every program and binding (command line, Python, C, ...) calls this crate, so that
//! an endpoint has the same meaning everywhere.
//!
//! | endpoint | lane |
//! |---|---|
//! | `file:///DIRECTORY[?OPTION=VALUE&...]`, `/DIRECTORY` | `embedded`: POSIX calls in this process |
//! | `http(s)://HOST[:PORT]` | `http`: S3 REST |
//! | none | `http`: AWS |
//! | `unix:///SOCKET`, `tcp://HOST:PORT` | `node`: the gateway of this node, or of another node |
//!
//! The options of the embedded lane are `durability` (`none`, `data`, `full`), `etag` (`fast`, `md5`), `consistency`
//! (`file-system`, `strong`) and `conditions` (`all`, `none-match-only`). With `consistency=strong`, reads query the
//! server of a file system that other nodes also change. With `conditions=none-match-only`, the lane takes no locks,
//! and therefore refuses `If-Match` on writes.

mod embedded;
mod root;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fordway_client::node::{NodeAddress, NodeKeyPair, NodeStore};
use fordway_client::s3::{BucketAddressing, S3Config, S3Credentials, S3Store};
use fordway_http::TlsRoots;
use fordway_http::vector::RemoteFile;
use fordway_posix::Durability;
use fordway_store::{Bucket, Error, ErrorKind, Key, Result, Store};
use fordway_wire::uri::without_secrets;

use embedded::EmbeddedEndpoint;
use root::RootPathStore;

/// The minimum size of objects that are transferred over HTTP in concurrent parts.
const MULTIPART_THRESHOLD_BYTES: u64 = 64 << 20;

/// Creates presigned URLs. Only lanes that use HTTP have a presigner.
pub trait Presigner: Send + Sync {
    /// Returns a URL with which anyone can send `method` for the object until `lifetime` (1 s to 7 days) has passed.
    /// Errors: `InvalidArgument`.
    fn presign(&self, method: &'static str, bucket: &Bucket, key: &Key, lifetime: Duration)
    -> Result<String>;
}

impl Presigner for S3Store {
    fn presign(
        &self,
        method: &'static str,
        bucket: &Bucket,
        key: &Key,
        lifetime: Duration,
    ) -> Result<String> {
        S3Store::presign(self, method, bucket, key, lifetime.as_secs(), SystemTime::now())
    }
}

/// Opens objects for vectored reads and read-ahead. Only the `http` lane has an opener, because saving requests is
/// worthwhile only on this lane.
pub trait FileOpener: Send + Sync {
    /// Opens the current version of an object. Errors: as for [`Objects::head`](fordway_store::Objects::head).
    fn open_file(&self, bucket: &Bucket, key: &Key) -> Result<RemoteFile>;
}

impl FileOpener for S3Store {
    fn open_file(&self, bucket: &Bucket, key: &Key) -> Result<RemoteFile> {
        S3Store::open_file(self, bucket, key)
    }
}

/// An opened endpoint.
#[derive(Clone)]
pub struct Lane {
    /// The store at the endpoint.
    pub store: Arc<dyn Store>,
    /// Creates presigned URLs, if the lane supports them.
    pub presigner: Option<Arc<dyn Presigner>>,
    /// Opens objects, if the lane can open them with fewer requests than the store.
    pub opener: Option<Arc<dyn FileOpener>>,
    /// Objects of at least this size in bytes are transferred in concurrent parts; `None` if one stream is fastest.
    pub multipart_threshold_bytes: Option<u64>,
    /// The service, on the `http` lane.
    pub service: Option<S3Store>,
    /// The directory that contains the buckets, if this process reads and writes their files itself.
    pub root: Option<PathBuf>,
}

impl Lane {
    /// Creates a lane without presigned URLs, for a store in this process or for a node gateway. On this kind of lane,
    /// a single stream is as fast as several streams.
    pub fn local(store: Arc<dyn Store>) -> Self {
        Lane {
            store,
            presigner: None,
            opener: None,
            multipart_threshold_bytes: None,
            service: None,
            root: None,
        }
    }

    fn of_service(service: S3Store) -> Self {
        let store = Arc::new(service.clone());
        Lane {
            presigner: Some(store.clone()),
            opener: Some(store.clone()),
            store,
            multipart_threshold_bytes: Some(MULTIPART_THRESHOLD_BYTES),
            service: Some(service),
            root: None,
        }
    }

    /// Returns a lane that shares this lane's connections, but has another [`LaneConfigOverrides::timeout`]. A timeout
    /// has no effect on lanes other than the `http` lane.
    pub fn with_timeout(&self, timeout: Duration) -> Self {
        match &self.service {
            Some(service) => Lane::of_service(service.with_timeout(timeout)),
            None => self.clone(),
        }
    }
}

/// A caller's settings, which override the environment; `None` means that the environment determines the setting.
#[derive(Clone, Debug, Default)]
pub struct LaneConfigOverrides {
    /// The endpoint, which takes precedence over `AWS_ENDPOINT_URL_S3`, `AWS_ENDPOINT_URL` and the AWS configuration
    /// file.
    pub endpoint: Option<String>,
    /// The profile in the AWS configuration files.
    pub profile: Option<String>,
    /// The region for which requests are signed.
    pub region: Option<String>,
    /// The credentials for requests, on lanes that sign or authenticate.
    pub credentials: Option<S3Credentials>,
    /// The addressing style (which part of a request names the bucket), on lanes that use URLs.
    pub addressing: Option<BucketAddressing>,
    /// The maximum time that a request may wait for another machine, including retries.
    pub timeout: Option<Duration>,
    /// The maximum number of retries of a request after transient failures, on the `http` lane.
    pub max_retries: Option<u32>,
    /// The number of concurrent connections for vectored reads, on the `http` lane.
    pub connections: Option<usize>,
    /// A PEM file with the certificates to trust instead of the default certificates, on the `http` lane.
    pub ca_bundle: Option<PathBuf>,
    /// The certificate authorities to trust, on the `http` lane. This setting takes precedence over `ca_bundle`.
    pub tls_roots: Option<TlsRoots>,
    /// The durability of writes on the embedded lane, if the endpoint does not state it.
    pub durability: Option<Durability>,
}

/// The environment variables that contain credentials, or the location of credentials.
const CREDENTIAL_VARIABLES: [&str; 5] = [
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_SECURITY_TOKEN",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
];

/// Opens the lane that `options` and the environment select. Errors: `InvalidArgument` for an invalid endpoint or an
/// unknown profile; `NotImplemented`; errors from the lane.
pub fn open(options: &LaneConfigOverrides) -> Result<Lane> {
    let variable = |name: &str| options.variable(name);
    let resolve = |endpoint: Option<&str>| options.resolve(endpoint);
    let endpoint = S3Config::find_endpoint(options.endpoint.as_deref(), &variable)?;
    tracing::debug!(?endpoint, "opening the lane");
    match endpoint.as_deref().map(EndpointTarget::parse).transpose()? {
        Some(EndpointTarget::Embedded(embedded)) => {
            open_embedded(embedded.with_durability(options.durability))
        }
        Some(EndpointTarget::Unix(socket)) => Ok(open_node(NodeAddress::Unix(socket))),
        Some(EndpointTarget::Tcp(host)) => {
            let secret = secret(&host, resolve(Some(&host))?)?;
            Ok(open_node(NodeAddress::Tcp(host, secret)))
        }
        Some(EndpointTarget::Http(url)) => open_http(resolve(Some(&url))?),
        None => open_http(resolve(None)?),
    }
}

/// Returns the settings that `options` and the environment select, for use by other programs. The endpoint may belong
/// to any lane. Errors: `InvalidArgument`, `Io`.
pub fn configuration(options: &LaneConfigOverrides) -> Result<S3Config> {
    options.resolve(options.endpoint.as_deref())
}

impl LaneConfigOverrides {
    /// Returns the value of an AWS environment variable, or of the option that overrides it. If the options name a
    /// profile, the variables that contain credentials are ignored, as in AWS tools.
    pub fn variable(&self, name: &str) -> Option<String> {
        let given = match name {
            "AWS_PROFILE" => self.profile.clone(),
            "AWS_DEFAULT_PROFILE" if self.profile.is_some() => return None,
            "AWS_REGION" => self.region.clone(),
            _ if self.profile.is_some() && CREDENTIAL_VARIABLES.contains(&name) => return None,
            _ => None,
        };
        given.or_else(|| std::env::var(name).ok())
    }

    fn resolve(&self, endpoint: Option<&str>) -> Result<S3Config> {
        let config = S3Config::resolve_with(endpoint, &|name| self.variable(name), self.credentials.clone())?;
        Ok(self.adjust(config))
    }

    /// Returns `config` with the settings of these options.
    fn adjust(&self, config: S3Config) -> S3Config {
        S3Config {
            addressing: self.addressing.unwrap_or(config.addressing),
            timeout: self.timeout.or(config.timeout),
            max_retries: self.max_retries.unwrap_or(config.max_retries),
            connections: self.connections.unwrap_or(config.connections),
            tls_roots: self
                .tls_roots
                .clone()
                .or_else(|| self.ca_bundle.clone().map(TlsRoots::File))
                .unwrap_or(config.tls_roots),
            ..config
        }
    }
}

fn open_embedded(embedded: EmbeddedEndpoint) -> Result<Lane> {
    let store = Arc::new(RootPathStore::open(embedded.root.clone(), embedded.config)?);
    Ok(Lane { root: Some(embedded.root), ..Lane::local(store) })
}

fn open_node(address: NodeAddress) -> Lane {
    Lane::local(Arc::new(NodeStore::new(address)))
}

/// Returns the keys for authentication over TCP. Errors: `InvalidArgument` if there are no keys.
fn secret(host: &str, config: S3Config) -> Result<NodeKeyPair> {
    match &*config.credentials.last() {
        S3Credentials::Keys { access_key, secret_key, .. } => {
            Ok(NodeKeyPair { access_key: access_key.clone(), secret_key: secret_key.clone() })
        }
        _ => Err(Error::new(
            ErrorKind::InvalidArgument,
            format!(
                "{} needs a key; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY to what the gateway printed",
                without_secrets(&format!("tcp://{host}"))
            ),
        )),
    }
}

fn open_http(config: S3Config) -> Result<Lane> {
    S3Store::new(config).map(Lane::of_service)
}

/// A parsed endpoint.
#[derive(Clone, Debug)]
enum EndpointTarget {
    Embedded(EmbeddedEndpoint),
    Http(String),
    Unix(PathBuf),
    Tcp(String),
}

impl EndpointTarget {
    fn parse(text: &str) -> Result<Self> {
        let invalid = |why: &str| {
            let text = without_secrets(text);
            let why = format!(
                "the endpoint {text:?} {why}; use file:///DIRECTORY, /DIRECTORY, unix:///SOCKET, tcp://HOST:PORT or https://HOST"
            );
            Err(Error::new(ErrorKind::InvalidArgument, why))
        };
        if text.starts_with('/') {
            return Ok(EndpointTarget::Embedded(EmbeddedEndpoint::at(text)));
        }
        match text.split_once("://") {
            Some(("file", path)) if path.starts_with('/') => {
                EmbeddedEndpoint::parse(path).map(EndpointTarget::Embedded)
            }
            Some(("file", _)) => invalid("does not name an absolute path"),
            Some(("http" | "https", "")) => invalid("has no host"),
            Some(("http" | "https", _)) => Ok(EndpointTarget::Http(text.trim_end_matches('/').to_owned())),
            Some(("unix", path)) if path.starts_with('/') => Ok(EndpointTarget::Unix(path.into())),
            Some(("unix", _)) => invalid("does not name an absolute path"),
            Some(("tcp", host)) if host.contains(':') => {
                Ok(EndpointTarget::Tcp(host.trim_end_matches('/').to_owned()))
            }
            Some(("tcp", _)) => invalid("has no port"),
            Some(_) => invalid("has an unknown scheme"),
            None => invalid("is neither a URL nor an absolute path"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_pick_the_lane() {
        let root = |text: &str| match EndpointTarget::parse(text) {
            Ok(EndpointTarget::Embedded(embedded)) => embedded.root.display().to_string(),
            other => panic!("{other:?}"),
        };
        assert_eq!(root("/a b/c?d"), "/a b/c?d");
        assert_eq!(root("file:///a b/c"), "/a b/c");
        assert_eq!(root("file:///a b/c?durability=data"), "/a b/c");
        let http = EndpointTarget::parse("http://h:1/").unwrap();
        assert!(matches!(http, EndpointTarget::Http(url) if url == "http://h:1"));
        let unix = EndpointTarget::parse("unix:///run/a b").unwrap();
        assert!(matches!(unix, EndpointTarget::Unix(path) if path.as_os_str() == "/run/a b"));
        let tcp = EndpointTarget::parse("tcp://[::1]:7/").unwrap();
        assert!(matches!(tcp, EndpointTarget::Tcp(host) if host == "[::1]:7"));
        for (text, kind) in [
            ("file://relative", ErrorKind::InvalidArgument),
            ("file:///a?durabilty=full", ErrorKind::InvalidArgument),
            ("relative", ErrorKind::InvalidArgument),
            ("ftp://h", ErrorKind::InvalidArgument),
            ("https://", ErrorKind::InvalidArgument),
            ("unix://run/s", ErrorKind::InvalidArgument),
            ("tcp://h", ErrorKind::InvalidArgument),
        ] {
            assert_eq!(EndpointTarget::parse(text).unwrap_err().kind(), kind, "{text}");
        }
    }

    #[test]
    fn errors_do_not_show_passwords() {
        for endpoint in ["ftp://user:hidden@host", "http://user:hidden@host", "tcp://user:hidden@host"] {
            let options = LaneConfigOverrides { endpoint: Some(endpoint.into()), ..Default::default() };
            let error = open(&options).err().expect("the endpoint has a user or no port").to_string();
            assert!(error.contains("://***@host") && !error.contains("hidden"), "{error}");
        }
    }

    #[test]
    fn a_missing_root_is_named() {
        let options = LaneConfigOverrides { endpoint: Some("/does/not/exist".into()), ..Default::default() };
        let error = open(&options).err().expect("there is no such directory");
        assert!(error.to_string().contains("/does/not/exist does not exist"), "{error}");
    }

    #[test]
    fn a_missing_gateway_is_named_when_it_is_asked() {
        let options =
            LaneConfigOverrides { endpoint: Some("unix:///does/not/exist".into()), ..Default::default() };
        let store = open(&options).unwrap().store;
        assert_eq!(store.lane(), "node");
        let error = store.list_buckets().expect_err("there is no such socket");
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.to_string().contains("fordway node ROOT --socket /does/not/exist"), "{error}");
    }

    #[test]
    fn http_lanes_sign_urls_and_local_ones_do_not() {
        let at = |endpoint: &str| {
            open(&LaneConfigOverrides { endpoint: Some(endpoint.into()), ..Default::default() }).unwrap()
        };
        let (http, local) = (at("http://127.0.0.1:9"), at("/"));
        assert_eq!((http.store.lane(), local.store.lane()), ("http", "embedded"));
        assert!(http.presigner.is_some() && local.presigner.is_none());
    }
}
