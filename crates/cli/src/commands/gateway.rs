//! A gateway that a measurement starts for itself.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use fordway_client::s3::{Credentials, S3Config, S3Store};
use fordway_posix::Durability;
use fordway_serve::Identity;
use fordway_store::{ETagPolicy, Error, ErrorKind, Result};

use crate::exit::file_error;

/// A gateway in a process of its own, so that its CPU time is its own too. It ends with its
/// standard input, and so with this process, however that ends.
pub(super) struct GatewayProcess {
    process: Child,
    endpoint: String,
    identity: Identity,
}

impl GatewayProcess {
    /// Serves `root` on a free port of the loopback interface.
    pub(super) fn start(root: &Path, etag: ETagPolicy, durability: Durability) -> Result<Self> {
        let identity = Identity::generate()?;
        let exe = std::env::current_exe().map_err(|error| file_error("finding", "this program", error))?;
        let mut process = Command::new(exe)
            .args(["serve", "--listen", "127.0.0.1:0", "--until-eof"])
            .args(["--etag", etag.name(), "--durability", durability.name()])
            .arg(root)
            .env("AWS_ACCESS_KEY_ID", &identity.access_key)
            .env("AWS_SECRET_ACCESS_KEY", &identity.secret_key)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| file_error("starting", "the gateway", error))?;
        let mut ready = String::new();
        if let Some(stdout) = process.stdout.as_mut() {
            // A gateway that fails says why on standard error, which is ours too.
            let _ = BufReader::new(stdout.by_ref()).read_line(&mut ready);
        }
        match ready.trim().rsplit_once(" at ") {
            Some((_, endpoint)) => {
                let endpoint = endpoint.to_owned();
                Ok(GatewayProcess { process, endpoint, identity })
            }
            None => {
                let _ = process.wait();
                Err(Error::new(ErrorKind::Unavailable, "the gateway for the http lane did not start"))
            }
        }
    }

    pub(super) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// A client that it knows.
    pub(super) fn client(&self) -> Result<S3Store> {
        let Identity { access_key, secret_key } = &self.identity;
        let keys = Credentials::keys(access_key, secret_key, "this run");
        S3Store::new(S3Config::new(&self.endpoint, "us-east-1", keys))
    }

    /// Ends it. Errors: `Internal` if it did not end well.
    pub(super) fn stop(mut self) -> Result<()> {
        drop(self.process.stdin.take());
        let ended = self.process.wait().map_err(|error| file_error("waiting for", "the gateway", error))?;
        match ended.success() {
            true => Ok(()),
            false => Err(Error::new(ErrorKind::Internal, format!("the gateway ended with {ended}"))),
        }
    }
}

impl Drop for GatewayProcess {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        let _ = self.process.wait();
    }
}
