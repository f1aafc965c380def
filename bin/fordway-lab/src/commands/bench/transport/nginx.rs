//! A static web server: nginx, one process, on a free port of the loopback interface.

use std::fmt::Write as _;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use fordway_client::s3::{Credentials, S3Config, S3Store};
use fordway_command::external::program;
use fordway_command::file_error;
use fordway_store::{Result, Store};

use super::process::Program;

/// Where it is on Debian, which only root's PATH has.
const AT_DEBIAN: &str = "/usr/sbin/nginx";

/// The server, until this is dropped.
pub(super) struct Nginx {
    program: Program,
    address: SocketAddr,
}

impl Nginx {
    /// Serves `root`, with its own files in `dir`. `None` if it is not installed.
    pub(super) fn start(root: &Path, dir: &Path) -> Result<Option<Self>> {
        let at_debian = || Some(PathBuf::from(AT_DEBIAN)).filter(|path| path.is_file());
        let Some(nginx) = program("nginx").or_else(at_debian) else { return Ok(None) };
        let address = free_address()?;
        let config = dir.join("nginx.conf");
        std::fs::write(&config, text(root, dir, address))
            .map_err(|error| file_error("writing", config.display(), error))?;
        let mut command = Command::new(nginx);
        command.arg("-c").arg(&config).arg("-p").arg(dir).stdin(Stdio::null()).stderr(Stdio::null());
        let mut program = Program::start("nginx", &mut command)?;
        program.until(|| TcpStream::connect(address).ok())?;
        Ok(Some(Nginx { program, address }))
    }

    pub(super) fn pid(&self) -> u32 {
        self.program.pid()
    }

    /// A bucket is a directory there, and an object a file: so the client of the http lane reads it too,
    /// and what differs between the two is the server.
    pub(super) fn client(&self) -> Result<Arc<dyn Store>> {
        let config = S3Config::new(format!("http://{}", self.address), "us-east-1", Credentials::Anonymous);
        Ok(Arc::new(S3Store::new(config)?))
    }
}

/// A port that is free now; nginx cannot be asked to take any.
fn free_address() -> Result<SocketAddr> {
    let found = TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr());
    found.map_err(|error| file_error("finding", "a free port", error))
}

fn text(root: &Path, dir: &Path, address: SocketAddr) -> String {
    let (root, dir) = (root.display(), dir.display());
    let mut text = format!(
        "worker_processes 1; daemon off; master_process off; pid {dir}/pid; error_log {dir}/error.log;\n\
         events {{ worker_connections 1024; }}\n\
         http {{ access_log off; sendfile on; tcp_nodelay on; keepalive_requests 1000000000; open_file_cache max=1000;\n"
    );
    for kind in ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"] {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{kind}_temp_path {dir}/{kind};");
    }
    text + &format!("server {{ listen {address}; root {root}; }} }}\n")
}
