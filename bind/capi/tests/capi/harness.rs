//! Provides the library, C programs linked to it, and servers and directories with the file that these programs read.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use fordway_posix::{PosixConfig, PosixStore};
use fordway_serve::node::{NodeGateway, NodeGatewayConfig};
use fordway_serve::{AccessKeyPair, Gateway, GatewayConfig, TlsCertificate, Users};
use fordway_store::Store;
use fordway_testkit::hostile::{HostileServer, ResponseFaultScript};
use tempfile::TempDir;

pub(crate) const SIZE: usize = 600_000;

pub(crate) fn content() -> Vec<u8> {
    (0..SIZE as u32 / 4).flat_map(|word| word.wrapping_mul(2_654_435_761).to_le_bytes()).collect()
}

/// Returns the directory with the library that cargo built for this test, under the file names of an installed library.
pub(crate) fn lib() -> &'static Path {
    static LIB: OnceLock<TempDir> = OnceLock::new();
    let made = LIB.get_or_init(|| {
        let test = std::env::current_exe().unwrap();
        let built = test.with_file_name("libfordway_capi.so");
        assert!(built.is_file(), "cargo builds {} with the tests", built.display());
        let lib = TempDir::new().unwrap();
        for name in ["libfordway.so.0", "libfordway.so"] {
            std::os::unix::fs::symlink(&built, lib.path().join(name)).unwrap();
        }
        lib
    });
    made.path()
}

pub(crate) fn include() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("include")
}

/// Runs a command to completion, and returns its output. If the command fails, panics with all its output.
pub(crate) fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?} cannot be started: {error}"));
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?} ended with {}\n{out}\n{err}", output.status);
    out.into_owned()
}

/// Compiles C source to a program that is linked to the library.
pub(crate) fn compile(source: &Path, flags: &[&str], program: &Path) {
    let mut cc = Command::new("cc");
    cc.args(["-std=gnu11", "-g", "-O1", "-Wall", "-Wextra", "-Werror"]).args(flags);
    cc.arg("-I").arg(include()).arg(source);
    run(cc.arg("-L").arg(lib()).args(["-lfordway", "-lpthread", "-o"]).arg(program));
}

/// How a program is compiled.
#[derive(Clone, Copy)]
pub(crate) enum Build {
    Plain,
    AddressSanitizer,
}

/// Returns a program of this crate, compiled once for all tests.
pub(crate) fn program(source: &str, build: Build) -> PathBuf {
    static MADE: OnceLock<TempDir> = OnceLock::new();
    static COMPILED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
    let (kind, flags): (_, &[&str]) = match build {
        Build::Plain => ("plain", &[]),
        Build::AddressSanitizer => ("asan", &["-fsanitize=address"]),
    };
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(source);
    let name = source.with_extension(kind).file_name().unwrap().to_owned();
    let program = MADE.get_or_init(|| TempDir::new().unwrap()).path().join(name);
    let mut compiled = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
    if !compiled.contains(&program) {
        compile(&source, flags, &program);
        compiled.push(program.clone());
    }
    program
}

/// The probe, and a copy of the file that it reads.
pub(crate) struct Probe {
    directory: TempDir,
    program: PathBuf,
}

impl Probe {
    pub(crate) fn new(build: Build) -> Self {
        let directory = TempDir::new().unwrap();
        std::fs::write(directory.path().join("copy"), content()).unwrap();
        Probe { directory, program: program("tests/probe.c", build) }
    }

    pub(crate) fn copy(&self) -> String {
        self.directory.path().join("copy").to_str().unwrap().to_owned()
    }

    pub(crate) fn command(&self, wrapper: &[&str]) -> Command {
        let mut command = match wrapper {
            [] => Command::new(&self.program),
            [first, rest @ ..] => {
                let mut command = Command::new(first);
                command.args(rest).arg(&self.program);
                command
            }
        };
        command.env("LD_LIBRARY_PATH", lib());
        command
    }

    /// Runs all checks of the probe on `threads` threads. Every check must pass.
    pub(crate) fn all_points(&self, wrapper: &[&str], place: &Place, threads: usize) {
        let mut command = self.command(wrapper);
        command.args([&place.url, &place.endpoint, &self.copy(), &place.missing, &threads.to_string()]);
        command.envs(place.environment.iter().map(|(name, value)| (name, value)));
        let said = run(&mut command);
        let held = said.lines().filter(|line| line.starts_with("ok ")).count();
        assert!(held > 58 * threads, "only {held} points held:\n{said}");
        assert!(said.ends_with("\n0 failed\n"), "{said}");
    }
}

/// The location of a file, as arguments and environment variables for the probe.
#[derive(Default)]
pub(crate) struct Place {
    pub(crate) url: String,
    pub(crate) endpoint: String,
    pub(crate) missing: String,
    pub(crate) environment: Vec<(&'static str, String)>,
    /// The path of an object's file.
    pub(crate) path: PathBuf,
    /// Resources that are released together with the location.
    pub(crate) _kept: Option<Box<dyn std::any::Any>>,
}

pub(crate) fn at_a_server(script: ResponseFaultScript) -> Place {
    served_by(HostileServer::start(content(), script))
}

/// Returns the location of a file at this server. The server stops when the location is dropped.
pub(crate) fn served_by(server: HostileServer) -> Place {
    let url = server.url();
    // The server returns its only file for any URL, so the missing file is a path on this machine.
    let missing = "/no/such/file".to_owned();
    Place { url, missing, _kept: Some(Box::new(server)), ..Place::default() }
}

fn bucket() -> TempDir {
    let root = TempDir::new().unwrap();
    std::fs::create_dir(root.path().join("bkt")).unwrap();
    std::fs::write(root.path().join("bkt/file"), content()).unwrap();
    root
}

fn object(
    endpoint: String,
    environment: Vec<(&'static str, String)>,
    root: TempDir,
    gateway: Option<Box<dyn std::any::Any>>,
) -> Place {
    let (url, missing) = ("s3://bkt/file".to_owned(), "s3://bkt/missing".to_owned());
    let path = root.path().join("bkt/file");
    Place { url, endpoint, missing, environment, path, _kept: Some(Box::new((gateway, root))) }
}

pub(crate) fn embedded() -> Place {
    let root = bucket();
    object(root.path().to_str().unwrap().to_owned(), Vec::new(), root, None)
}

/// Returns the location of a file behind a node gateway in this process.
pub(crate) fn node() -> Place {
    let (root, sockets) = (bucket(), TempDir::new().unwrap());
    let (path, socket) = (root.path().to_owned(), sockets.path().join("socket"));
    let open = move || Ok(Arc::new(PosixStore::open(&path, PosixConfig::default())?) as Arc<dyn Store>);
    let gateway =
        NodeGateway::bind(Arc::new(open), NodeGatewayConfig::new(&socket)).unwrap().spawn().unwrap();
    object(format!("unix://{}", socket.display()), Vec::new(), root, Some(Box::new((gateway, sockets))))
}

/// Returns the location of a file behind a gateway in this process. The gateway stops when the location is dropped.
pub(crate) fn gateway(certificate: Option<&Certificate>) -> Place {
    let root = bucket();
    let store = PosixStore::open(root.path(), PosixConfig::default()).unwrap();
    let identity = AccessKeyPair::generate().unwrap();
    let mut config = GatewayConfig::new(SocketAddr::from(([127, 0, 0, 1], 0)));
    config.tls = certificate.map(Certificate::load);
    config.http3 = certificate.is_some();
    let users = Users::one(identity.clone(), Arc::new(store));
    let gateway = Gateway::bind(users, config).unwrap().spawn().unwrap();
    let AccessKeyPair { access_key, secret_key } = identity;
    // The keys are passed as options; tests of other crates cover environment variables.
    let environment = vec![("PROBE_ACCESS_KEY", access_key), ("PROBE_SECRET_KEY", secret_key)];
    let scheme = if certificate.is_some() { "https" } else { "http" };
    let endpoint = format!("{scheme}://{}", gateway.local_addr());
    object(endpoint, environment, root, Some(Box::new(gateway)))
}

/// A certificate for the loopback address, and its key.
pub(crate) struct Certificate(TempDir);

impl Certificate {
    pub(crate) fn new() -> Self {
        let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
        let certificate = Certificate(TempDir::new().unwrap());
        std::fs::write(certificate.path("cert"), made.cert.pem()).unwrap();
        std::fs::write(certificate.path("key"), made.signing_key.serialize_pem()).unwrap();
        certificate
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn bundle(&self) -> String {
        self.path("cert").to_str().unwrap().to_owned()
    }

    fn load(&self) -> TlsCertificate {
        TlsCertificate::load(&self.path("cert"), &self.path("key")).unwrap()
    }
}
