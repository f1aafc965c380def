//! A gateway that a measurement starts.

use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader, Read};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use fordway_client::node::{NodeAddress, NodeStore};
use fordway_client::s3::{S3Config, S3Credentials, S3Store};
use fordway_http::{HttpVersion, TlsRoots};
use fordway_netlab::NetworkNamespace;
use fordway_netlab::setup::NetworkEndpoint;
use fordway_posix::Durability;
use fordway_serve::AccessKeyPair;
use fordway_store::{ETagPolicy, Error, ErrorKind, Result, Store};

use fordway_command::{external, file_error};

use super::contained::{ContainedProgram, ContainerPlacement};
use super::scratch::ScratchDirectory;

const PROGRAM: &str = "fordway";
const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// A gateway in a separate process, so that its CPU time is counted separately. The gateway stops when this value is
/// dropped, or when this process exits.
pub(super) struct GatewayProcess {
    program: GatewayProgram,
    speaks: GatewayProtocol,
    /// The command that started the program; `None` in a container.
    command: Option<GatewayCommand>,
}

enum GatewayProgram {
    /// A process outside of containers, which exits when its standard input is closed.
    Bare(Child),
    Contained(ContainedProgram),
}

/// The protocol of a gateway, with the data that a client needs to connect.
enum GatewayProtocol {
    Http {
        endpoint: String,
        identity: AccessKeyPair,
        certificate: Option<ServerCertificate>,
        version: HttpVersion,
    },
    Node {
        socket: PathBuf,
        _dir: ScratchDirectory,
    },
}

/// How a gateway of an HTTP lane carries requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RestTransport {
    /// The HTTP version of the clients.
    pub version: HttpVersion,
    /// Whether the gateway has a certificate. HTTP/3 always needs one.
    pub has_tls: bool,
}

impl RestTransport {
    const PLAIN: RestTransport = RestTransport { version: HttpVersion::Http1, has_tls: false };
    const TLS: RestTransport = RestTransport { version: HttpVersion::Http1, has_tls: true };
    #[cfg(feature = "http3")]
    const HTTP3: RestTransport = RestTransport { version: HttpVersion::Http3, has_tls: true };

    /// Creates the certificate that the transport needs, for a server at `address`.
    fn certificate(self, address: IpAddr) -> Result<Option<ServerCertificate>> {
        match self.has_tls {
            true => ServerCertificate::make(address).map(Some),
            false => Ok(None),
        }
    }

    /// Returns the options that make a gateway offer the HTTP version, except the options for the certificate.
    fn options(self) -> &'static [&'static str] {
        match self.version {
            HttpVersion::Http1 | HttpVersion::Http2 => &[],
            #[cfg(feature = "http3")]
            HttpVersion::Http3 => &["--http3"],
        }
    }

    /// Returns the protocol in words, for example `HTTP/1.1 and TLS`.
    pub(super) fn words(self) -> String {
        let tls = match (self.version, self.has_tls) {
            (HttpVersion::Http1 | HttpVersion::Http2, true) => " and TLS",
            (HttpVersion::Http1 | HttpVersion::Http2, false) => "",
            #[cfg(feature = "http3")]
            (HttpVersion::Http3, _) => "",
        };
        format!("HTTP/{}{tls}", self.version.number())
    }
}

/// A certificate for one address, with its private key, in a directory that is removed when this value is
/// dropped.
pub(super) struct ServerCertificate(ScratchDirectory);

impl ServerCertificate {
    /// Creates a certificate for the loopback address.
    pub(super) fn for_loopback() -> Result<Self> {
        Self::make(LOOPBACK)
    }

    fn make(address: IpAddr) -> Result<Self> {
        let made = rcgen::generate_simple_self_signed(vec![address.to_string()])
            .map_err(|error| Error::new(ErrorKind::Internal, "creating a certificate").caused_by(error))?;
        let dir = ScratchDirectory::new("certificate", &std::env::temp_dir());
        let dir = dir.map_err(|error| file_error("creating", "a directory for a certificate", error))?;
        let certificate = ServerCertificate(dir);
        for (path, text) in [
            (certificate.path(), made.cert.pem()),
            (certificate.key_path(), made.signing_key.serialize_pem()),
        ] {
            std::fs::write(&path, text).map_err(|error| file_error("writing", path.display(), error))?;
        }
        Ok(certificate)
    }

    /// Returns the directory, which contains the files `cert.pem` and `key.pem`.
    pub(super) fn directory(&self) -> &Path {
        self.0.path()
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("cert.pem")
    }

    fn key_path(&self) -> PathBuf {
        self.0.path().join("key.pem")
    }
}

impl GatewayProcess {
    /// Serves `root` over HTTP on a free port of the loopback interface.
    pub(super) fn start(root: &Path, etag: ETagPolicy, durability: Durability) -> Result<Self> {
        Self::start_rest(RestTransport::PLAIN, None, root, etag, durability)
    }

    /// Like [`start`](Self::start), but serves in the network at one end of a set-up, for clients at the other end.
    pub(super) fn start_at(
        end: &NetworkEndpoint,
        root: &Path,
        etag: ETagPolicy,
        durability: Durability,
    ) -> Result<Self> {
        Self::start_rest(RestTransport::PLAIN, Some(end), root, etag, durability)
    }

    /// Like [`start`](Self::start), with TLS.
    pub(super) fn start_tls(root: &Path, etag: ETagPolicy, durability: Durability) -> Result<Self> {
        Self::start_rest(RestTransport::TLS, None, root, etag, durability)
    }

    /// Like [`start_tls`](Self::start_tls), over HTTP/3.
    #[cfg(feature = "http3")]
    pub(super) fn start_http3(root: &Path, etag: ETagPolicy, durability: Durability) -> Result<Self> {
        Self::start_rest(RestTransport::HTTP3, None, root, etag, durability)
    }

    /// Serves `root` over `transport` on a free port: in the network at `end`, or else on the loopback interface.
    pub(super) fn start_rest(
        transport: RestTransport,
        end: Option<&NetworkEndpoint>,
        root: &Path,
        etag: ETagPolicy,
        durability: Durability,
    ) -> Result<Self> {
        let address = end.map_or(LOOPBACK, |end| end.address);
        let mut command = GatewayCommand::new("serve", root, etag, durability)?;
        let certificate = transport.certificate(address)?;
        if let Some(made) = &certificate {
            command.add([OsStr::new("--tls-cert"), made.path().as_os_str()]);
            command.add([OsStr::new("--tls-key"), made.key_path().as_os_str()]);
        }
        command.add(transport.options());
        if let Some(end) = end {
            // Suppress the gateway's note that other machines can read its traffic, because no other machine is in that
            // network.
            command.add(["--quiet"]);
            command.network = Some(end.network.clone());
        }
        Self::start_http(command, certificate, SocketAddr::new(address, 0), transport.version)
    }

    /// Like [`start`](Self::start), in a container. Errors: the errors of starting a container; `Unavailable` if the
    /// gateway does not start in the container.
    pub(super) fn start_contained(
        place: ContainerPlacement<'_>,
        root: &Path,
        etag: ETagPolicy,
        durability: Durability,
    ) -> Result<Self> {
        let address = place.far.map_or(LOOPBACK, |far| far.address);
        let listen = SocketAddr::new(address, 0).to_string();
        let mut words = vec![gateway_program()?.into_os_string()];
        words.extend(["--quiet", "serve", "--listen", &listen].map(OsString::from));
        words.extend(options(etag, durability).map(OsString::from));
        words.push(root.as_os_str().to_owned());
        let identity = AccessKeyPair::generate()?;
        let variable = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let variables = [
            variable("AWS_ACCESS_KEY_ID", &identity.access_key),
            variable("AWS_SECRET_ACCESS_KEY", &identity.secret_key),
        ];
        let mut contained = ContainedProgram::start(place, &words, &variables)?;
        let ready = contained.line();
        let endpoint = endpoint_of(&ready, "http")?;
        contained.find()?;
        let (certificate, version) = (None, HttpVersion::Http1);
        Ok(GatewayProcess {
            program: GatewayProgram::Contained(contained),
            speaks: GatewayProtocol::Http { endpoint, identity, certificate, version },
            command: None,
        })
    }

    /// Sets the HTTP version of the clients that are created for this gateway. Has no effect on a gateway of the node
    /// lane.
    pub(super) fn asked_in(mut self, http: HttpVersion) -> Self {
        if let GatewayProtocol::Http { version, .. } = &mut self.speaks {
            *version = http;
        }
        self
    }

    fn start_http(
        mut command: GatewayCommand,
        certificate: Option<ServerCertificate>,
        address: SocketAddr,
        version: HttpVersion,
    ) -> Result<Self> {
        let identity = AccessKeyPair::generate()?;
        command.keys = Some(identity.clone());
        let (process, endpoint) = command.start("http", ["--listen", &address.to_string()])?;
        // When the gateway is started again, clients must find it at the same address.
        let place = endpoint.split_once("://").map_or(&*endpoint, |(_, place)| place);
        command.add(["--listen", place]);
        let program = GatewayProgram::Bare(process);
        let speaks = GatewayProtocol::Http { endpoint, identity, certificate, version };
        Ok(GatewayProcess { program, speaks, command: Some(command) })
    }

    /// Serves `root` in the protocol of the node lane, on a socket in a new directory.
    pub(super) fn start_node(root: &Path, etag: ETagPolicy, durability: Durability) -> Result<Self> {
        let dir = ScratchDirectory::new("node", &std::env::temp_dir());
        let dir = dir.map_err(|error| file_error("creating", "a directory for a socket", error))?;
        let socket = dir.path().join("node.sock");
        check_socket_path(&socket)?;
        let mut command = GatewayCommand::new("node", root, etag, durability)?;
        command.add([OsStr::new("--socket"), socket.as_os_str()]);
        let (process, _) = command.start("node", [])?;
        let speaks = GatewayProtocol::Node { socket, _dir: dir };
        Ok(GatewayProcess { program: GatewayProgram::Bare(process), speaks, command: Some(command) })
    }

    /// Stops the gateway, and starts it again at the same address and with the same keys. Clients connect again. Has no
    /// effect on a gateway in a container. Errors: `Internal` if the gateway exited with a failure; `Unavailable` if it
    /// does not start.
    pub(super) fn start_again(&mut self) -> Result<()> {
        let Some(command) = self.command.clone() else { return Ok(()) };
        self.program.stop()?;
        let (process, _) = command.start(command.lane, [])?;
        self.program = GatewayProgram::Bare(process);
        Ok(())
    }

    pub(super) fn pid(&self) -> u32 {
        match &self.program {
            GatewayProgram::Bare(process) => process.id(),
            // The process ID is always set, because it was found when the gateway started.
            GatewayProgram::Contained(contained) => contained.pid().unwrap_or_default(),
        }
    }

    /// Returns a client whose keys the gateway accepts.
    pub(super) fn client(&self) -> Result<Arc<dyn Store>> {
        self.new_clients()()
    }

    /// Returns a function that creates clients whose keys the gateway accepts.
    pub(super) fn new_clients(&self) -> impl Fn() -> Result<Arc<dyn Store>> + 'static {
        let (config, socket) = match &self.speaks {
            GatewayProtocol::Http { .. } => (self.client_config(), None),
            GatewayProtocol::Node { socket, .. } => (None, Some(socket.clone())),
        };
        move || match (&config, &socket) {
            (Some(config), _) => Ok(Arc::new(S3Store::new(config.clone())?)),
            (None, Some(socket)) => Ok(Arc::new(NodeStore::new(NodeAddress::Unix(socket.clone())))),
            (None, None) => Err(ErrorKind::Internal.into()),
        }
    }

    /// Returns a client that opens a new connection for each request. Errors: `Internal` if the gateway does not serve
    /// HTTP.
    pub(super) fn client_without_pool(&self) -> Result<Arc<dyn Store>> {
        let mut config = self.client_config().ok_or(ErrorKind::Internal)?;
        config.timeouts.idle = Duration::ZERO;
        Ok(Arc::new(S3Store::new(config)?))
    }

    fn client_config(&self) -> Option<S3Config> {
        let GatewayProtocol::Http { endpoint, identity, certificate, version } = &self.speaks else {
            return None;
        };
        let AccessKeyPair { access_key, secret_key } = identity;
        let keys = S3Credentials::keys(access_key, secret_key, "this run");
        let mut config = S3Config::new(endpoint, "us-east-1", keys);
        config.http = *version;
        if let Some(certificate) = certificate {
            config.tls_roots = TlsRoots::File(certificate.path());
        }
        Some(config)
    }

    /// Returns `HOST:PORT` and the keys; `None` if the gateway does not serve HTTP.
    pub(super) fn place(&self) -> Option<(&str, &AccessKeyPair)> {
        match &self.speaks {
            GatewayProtocol::Http { endpoint, identity, .. } => {
                Some((endpoint.split_once("://").map_or(endpoint, |(_, place)| place), identity))
            }
            GatewayProtocol::Node { .. } => None,
        }
    }

    /// Stops the gateway. Errors: `Internal` if the gateway exited with a failure.
    pub(super) fn stop(mut self) -> Result<()> {
        self.program.stop()
    }
}

impl GatewayProgram {
    /// Stops the program. Errors: `Internal` if the program exited with a failure.
    fn stop(&mut self) -> Result<()> {
        match self.end()? {
            Some(ended) if !ended.success() => {
                Err(Error::new(ErrorKind::Internal, format!("the gateway exited with {ended}")))
            }
            _ => Ok(()),
        }
    }

    /// Stops the program; returns its exit status, which is unknown for a container.
    fn end(&mut self) -> Result<Option<ExitStatus>> {
        match self {
            GatewayProgram::Bare(process) => {
                // Client processes that were forked after the gateway was started have copies of this end of the pipe,
                // so closing this end may not be enough. The process has not been waited for, so its ID cannot have
                // been reused.
                drop(process.stdin.take());
                if let Ok(None) = process.try_wait() {
                    let _ = fordway_sys::terminate(process.id());
                }
                let ended = process.wait();
                ended.map(Some).map_err(|error| file_error("waiting for", "the gateway", error))
            }
            GatewayProgram::Contained(contained) => {
                contained.stop();
                Ok(None)
            }
        }
    }
}

impl Drop for GatewayProgram {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

/// The command that starts a gateway.
#[derive(Clone)]
struct GatewayCommand {
    /// The name of the lane, for errors.
    lane: &'static str,
    words: Vec<OsString>,
    /// The keys that the gateway accepts.
    keys: Option<AccessKeyPair>,
    /// The network in which the gateway runs; `None` for the network of this process.
    network: Option<NetworkNamespace>,
}

impl GatewayCommand {
    /// Returns the command that serves `root`, without the address to listen on.
    fn new(name: &'static str, root: &Path, etag: ETagPolicy, durability: Durability) -> Result<Self> {
        let mut words = vec![gateway_program()?.into_os_string()];
        words.extend([name, "--until-eof"].map(OsString::from));
        words.extend(options(etag, durability).map(OsString::from));
        words.push(root.as_os_str().to_owned());
        Ok(GatewayCommand { lane: name, words, keys: None, network: None })
    }

    fn add<W: AsRef<OsStr>>(&mut self, words: impl IntoIterator<Item = W>) {
        self.words.extend(words.into_iter().map(|word| word.as_ref().to_owned()));
    }

    /// Starts a gateway and waits until it is ready; returns the process and its endpoint. Errors: `Unavailable` if the
    /// gateway does not start.
    fn start<const N: usize>(&self, lane: &str, more: [&str; N]) -> Result<(Child, String)> {
        let mut command = Command::new(&self.words[0]);
        command
            .args(&self.words[1..])
            .args(more)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Ctrl-C signals the whole process group of the terminal. The gateway must not receive this signal, because
            // the clean-up of this process uses the gateway. The gateway exits at the end of its standard input, even
            // if this process is killed.
            .process_group(0);
        if let Some(keys) = &self.keys {
            command.env("AWS_ACCESS_KEY_ID", &keys.access_key).env("AWS_SECRET_ACCESS_KEY", &keys.secret_key);
        }
        match &self.network {
            None => ready(command, lane),
            Some(network) => network.run(|| ready(command, lane))?,
        }
    }
}

/// The maximum length of a socket's path, which the size of `sockaddr_un` determines.
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// Checks the length of a path that the user did not choose, so that the error names the setting to change. Errors:
/// `InvalidArgument`.
fn check_socket_path(socket: &Path) -> Result<()> {
    if socket.as_os_str().len() <= SOCKET_PATH_BYTES_MAX {
        return Ok(());
    }
    let why = format!(
        "a gateway needs a socket in the directory for temporary files, but the path {} is longer than \
         {SOCKET_PATH_BYTES_MAX} bytes, the system's maximum; set TMPDIR to a directory with a shorter path",
        socket.display()
    );
    Err(Error::new(ErrorKind::InvalidArgument, why))
}

fn gateway_program() -> Result<PathBuf> {
    external::beside(PROGRAM).or_else(|| external::program(PROGRAM)).ok_or_else(|| {
        let why =
            "a gateway needs the program fordway, which is neither next to fordway-lab nor in PATH; install \
             it";
        Error::new(ErrorKind::InvalidArgument, why)
    })
}

fn options(etag: ETagPolicy, durability: Durability) -> [&'static str; 4] {
    ["--etag", etag.name(), "--durability", durability.name()]
}

/// Starts a gateway and waits until it is ready; returns the process and its endpoint.
fn ready(mut command: Command, lane: &str) -> Result<(Child, String)> {
    let mut process = command.spawn().map_err(|error| file_error("starting", "the gateway", error))?;
    let mut ready = String::new();
    if let Some(stdout) = process.stdout.as_mut() {
        // If the gateway fails, it reports the reason on standard error, which it inherits from this process.
        let _ = BufReader::new(stdout.by_ref()).read_line(&mut ready);
    }
    let endpoint = endpoint_of(&ready, lane);
    if endpoint.is_err() {
        let _ = process.wait();
    }
    Ok((process, endpoint?))
}

/// Returns the endpoint in the line `ready`, which a gateway prints when it is ready. Errors: `Unavailable` if the line
/// contains no endpoint.
fn endpoint_of(ready: &str, lane: &str) -> Result<String> {
    let endpoint = ready.trim().rsplit_once(" at ").map(|(_, endpoint)| endpoint.to_owned());
    let why = || format!("the gateway for the {lane} lane did not start");
    endpoint.ok_or_else(|| Error::new(ErrorKind::Unavailable, why()))
}
