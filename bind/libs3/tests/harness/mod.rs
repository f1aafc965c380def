//! Builds the libraries as `make libs3` does, and C programs that load them. Also provides lanes for these programs.

#![allow(dead_code, unreachable_pub, reason = "each test file uses a part of it")]
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Arc, OnceLock};

use fordway_posix::{PosixConfig, PosixStore};
use fordway_serve::node::{NodeGateway, NodeGatewayConfig};
use fordway_serve::{AccessKeyPair, Gateway, GatewayConfig, Users};
use fordway_store::Store;
use tempfile::TempDir;

/// The directory of this crate's tests.
pub const TESTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests");

/// Returns the directory with `lib` and `include`, rebuilt if the source has changed.
pub fn built() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let out = repository.join("target/test-libraries");
        let mut build = Command::new(repository.join("tools/build-libs3"));
        // Use the profile `dev`, because the profile of `make libs3` would recompile all crates.
        run(build.arg(&out).arg("dev"));
        out
    })
}

/// Runs a command to completion, and returns its output. If the command fails, panics with all of its output.
pub fn run(command: &mut Command) -> String {
    let Output { status, stdout, stderr } =
        command.output().unwrap_or_else(|error| panic!("{command:?} cannot be started: {error}"));
    let (out, err) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{command:?} ended with {status}\n{out}\n{err}");
    out.into_owned()
}

/// A C program from the directory [`TESTS`], compiled against the header and linked to `libs3.so.4`.
pub struct Program {
    directory: TempDir,
}

impl Program {
    pub fn compile(source: &str, flags: &[&str]) -> Self {
        let directory = TempDir::new().unwrap();
        let out = built();
        let mut cc = Command::new("cc");
        cc.args(["-std=gnu11", "-g", "-O1", "-Wall", "-Wextra", "-Werror"]).args(flags);
        cc.arg("-I").arg(out.join("include")).arg(Path::new(TESTS).join(source));
        cc.arg("-L")
            .arg(out.join("lib"))
            .args(["-ls3", "-lpthread", "-o"])
            .arg(directory.path().join("program"));
        run(&mut cc);
        Program { directory }
    }

    /// Returns a command that runs the program, through `wrapper` if `wrapper` is not empty.
    pub fn command(&self, wrapper: &[&str]) -> Command {
        let program = self.directory.path().join("program");
        let mut command = match wrapper {
            [] => Command::new(&program),
            [first, rest @ ..] => {
                let mut command = Command::new(first);
                command.args(rest).arg(&program);
                command
            }
        };
        command.env("LD_LIBRARY_PATH", built().join("lib"));
        command
    }
}

/// A lane to a directory, and the settings that a program needs to use it.
pub struct Lane {
    pub root: TempDir,
    pub host: String,
    pub access_key: String,
    pub secret_key: String,
    _gateway: Option<Box<dyn std::any::Any>>,
}

/// Creates a directory, in memory if possible, because these tests create many files.
fn root() -> TempDir {
    TempDir::new_in("/dev/shm").or_else(|_| TempDir::new()).unwrap()
}

impl Lane {
    pub fn embedded() -> Self {
        let root = root();
        let host = root.path().to_str().unwrap().to_owned();
        Lane { root, host, access_key: String::new(), secret_key: String::new(), _gateway: None }
    }

    /// Serves a directory through a node gateway in this process. The gateway stops when the lane is dropped.
    pub fn node() -> Self {
        let (root, sockets) = (root(), TempDir::new().unwrap());
        let (path, socket) = (root.path().to_owned(), sockets.path().join("socket"));
        let open = move || Ok(Arc::new(PosixStore::open(&path, PosixConfig::default())?) as Arc<dyn Store>);
        let gateway =
            NodeGateway::bind(Arc::new(open), NodeGatewayConfig::new(&socket)).unwrap().spawn().unwrap();
        let host = format!("unix://{}", socket.display());
        let (access_key, secret_key) = (String::new(), String::new());
        Lane { root, host, access_key, secret_key, _gateway: Some(Box::new((gateway, sockets))) }
    }

    /// Serves a directory through an HTTP gateway in this process. The gateway stops when the lane is dropped.
    pub fn http() -> Self {
        let root = root();
        let store = PosixStore::open(root.path(), PosixConfig::default()).unwrap();
        let identity = AccessKeyPair::generate().unwrap();
        let config = GatewayConfig::new(SocketAddr::from(([127, 0, 0, 1], 0)));
        let gateway =
            Gateway::bind(Users::one(identity.clone(), Arc::new(store)), config).unwrap().spawn().unwrap();
        let host = gateway.local_addr().to_string();
        let AccessKeyPair { access_key, secret_key } = identity;
        Lane { root, host, access_key, secret_key, _gateway: Some(Box::new(gateway)) }
    }
}
