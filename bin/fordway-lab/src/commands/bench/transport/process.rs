//! Programs that a measurement starts, and the clients that connect to these programs. One of these programs is nginx,
//! which serves static files from one process on a free port of the loopback interface.

use std::fmt::Write as _;
use std::fs::File;
use std::io::ErrorKind::WouldBlock;
use std::io::Write as _;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fordway_client::s3::{S3Config, S3Credentials, S3Store};
use fordway_command::external::program;
use fordway_command::file_error;
use fordway_store::{Error, ErrorKind, Result, Store};

/// The maximum time for a program to start, or to exit on its own.
const PATIENCE: Duration = Duration::from_secs(60);
/// The polling interval while waiting for a program.
const POLL: Duration = Duration::from_millis(5);

/// A started program. [`finish`](Self::finish) waits until the program exits on its own; dropping the value kills the
/// program.
pub(super) struct ChildProgram {
    name: String,
    child: Child,
}

impl ChildProgram {
    pub(super) fn start(name: &str, command: &mut Command) -> Result<Self> {
        // If this process is killed, it cannot stop the program, so the kernel stops the program.
        fordway_sys::end_with_thread(command);
        let child = command.spawn().map_err(|error| file_error("starting", name, error))?;
        Ok(ChildProgram { name: name.to_owned(), child })
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Calls `is_ready` until it returns a value. Errors: `Unavailable` if the program exits first or takes too long.
    pub(super) fn until<T>(&mut self, mut is_ready: impl FnMut() -> Option<T>) -> Result<T> {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(ready) = is_ready() {
                return Ok(ready);
            }
            let ended =
                self.child.try_wait().map_err(|error| file_error("waiting for", &self.name, error))?;
            if ended.is_some() || Instant::now() > end {
                let how = ended
                    .map_or("is not ready after a minute".to_owned(), |how| format!("exited with {how}"));
                let why = format!("{} {how}; its messages above may give the reason", self.name);
                return Err(Error::new(ErrorKind::Unavailable, why));
            }
            std::thread::sleep(POLL);
        }
    }

    /// Waits for a program that exits when its peer exits.
    pub(super) fn finish(mut self) -> Result<()> {
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            let ended =
                self.child.try_wait().map_err(|error| file_error("waiting for", &self.name, error))?;
            match ended {
                Some(how) if how.success() => return Ok(()),
                Some(how) => {
                    let why =
                        format!("{} exited with {how}; its messages above may give the reason", self.name);
                    return Err(Error::new(ErrorKind::Unavailable, why));
                }
                None => std::thread::sleep(POLL),
            }
        }
        Err(Error::new(ErrorKind::Timeout, format!("{} did not exit and was killed", self.name)))
    }
}

impl Drop for ChildProgram {
    fn drop(&mut self) {
        // Ignore errors: both calls fail if the program has already exited.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A listener for the connection of a started program.
pub(super) struct ChildProgramListener(TcpListener);

impl ChildProgramListener {
    pub(super) fn open() -> Result<Self> {
        let opened = TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| {
            listener.set_nonblocking(true)?;
            Ok(ChildProgramListener(listener))
        });
        opened.map_err(|error| file_error("listening on", "the loopback interface", error))
    }

    pub(super) fn address(&self) -> Result<SocketAddr> {
        self.0.local_addr().map_err(|error| file_error("listening on", "the loopback interface", error))
    }

    /// Returns the connection made by `program`. Connections from other users are closed, because other users could
    /// send invented figures or the process IDs of other programs. Errors: `Unavailable` if the program exits first.
    pub(super) fn wait_for(&self, program: &mut ChildProgram) -> Result<TcpStream> {
        let accepted = program.until(|| match self.0.accept() {
            Err(error) if error.kind() == WouldBlock => None,
            Ok((stream, _)) if !is_own(&stream) => None,
            done => Some(done.map(|(stream, _)| stream)),
        })?;
        let failed = |error| file_error("accepting a connection of", &program.name, error);
        let stream = accepted.map_err(failed)?;
        stream.set_nonblocking(false).map_err(failed)?;
        Ok(stream)
    }
}

/// Returns whether a process of this user opened the other end of a loopback connection. Returns true if the kernel
/// does not list the connections.
fn is_own(stream: &TcpStream) -> bool {
    let (Ok(table), Ok(peer), Ok(own)) =
        (std::fs::read_to_string("/proc/net/tcp"), stream.peer_addr(), stream.local_addr())
    else {
        return true;
    };
    uid_of(&table, peer, own) == Some(rustix::process::getuid().as_raw())
}

/// Returns the uid of the process that opened the socket at `local` connected to `remote`, from the content of
/// `/proc/net/tcp`; `None` if there is no such socket.
fn uid_of(table: &str, local: SocketAddr, remote: SocketAddr) -> Option<u32> {
    let text = |address: SocketAddr| match address.ip() {
        // The kernel prints an address as a number in its own byte order.
        IpAddr::V4(ip) => format!("{:08X}:{:04X}", u32::from_ne_bytes(ip.octets()), address.port()),
        IpAddr::V6(_) => String::new(),
    };
    let (local, remote) = (text(local), text(remote));
    table.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let is_it = *fields.get(1)? == local && *fields.get(2)? == remote;
        if is_it { fields.get(7)?.parse().ok() } else { None }
    })
}

/// The path of nginx on Debian, in a directory that is in PATH only for root.
const AT_DEBIAN: &str = "/usr/sbin/nginx";

/// A running nginx, which is stopped when this value is dropped.
pub(super) struct NginxServer {
    program: ChildProgram,
    address: SocketAddr,
}

impl NginxServer {
    /// Serves the directory `root` in `dir`, and keeps nginx's own files in `dir`. Returns `None` if nginx is not
    /// installed.
    pub(super) fn start(root: &str, dir: &Path) -> Result<Option<Self>> {
        let at_debian = || Some(PathBuf::from(AT_DEBIAN)).filter(|path| path.is_file());
        let Some(nginx) = program("nginx").or_else(at_debian) else { return Ok(None) };
        let address = free_address()?;
        let (config, messages) = (dir.join("nginx.conf"), dir.join("messages"));
        std::fs::write(&config, text(root, address))
            .map_err(|error| file_error("writing", config.display(), error))?;
        let stderr =
            File::create(&messages).map_err(|error| file_error("creating", messages.display(), error))?;
        let mut command = Command::new(nginx);
        // nginx also finds variables in the path of its directory, so it is not told this path.
        command.current_dir(dir).args(["-p", ".", "-c", "nginx.conf"]).stdin(Stdio::null()).stderr(stderr);
        let mut program = ChildProgram::start("nginx", &mut command)?;
        let ready = program.until(|| TcpStream::connect(address).ok());
        // The messages of an nginx that has started are of no interest: without root, it cannot open its usual log.
        if ready.is_err()
            && let Ok(messages) = std::fs::read(&messages)
        {
            let _ = std::io::stderr().write_all(&messages);
        }
        ready?;
        Ok(Some(NginxServer { program, address }))
    }

    pub(super) fn pid(&self) -> u32 {
        self.program.pid()
    }

    /// Returns a client for nginx. A bucket is a directory and an object is a file, so the client of the http lane can
    /// read from nginx as well. The measurements of nginx and of the gateway then differ only in the server.
    pub(super) fn client(&self) -> Result<Arc<dyn Store>> {
        let config = S3Config::new(format!("http://{}", self.address), "us-east-1", S3Credentials::Anonymous);
        Ok(Arc::new(S3Store::new(config)?))
    }
}

/// Finds a port that is free now, because nginx cannot choose a port itself.
fn free_address() -> Result<SocketAddr> {
    let found = TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr());
    found.map_err(|error| file_error("finding", "a free port", error))
}

/// Returns the configuration. All paths are relative to nginx's directory.
fn text(root: &str, address: SocketAddr) -> String {
    let mut text = "worker_processes 1; daemon off; master_process off; pid pid; error_log stderr;\n\
         events { worker_connections 1024; }\n\
         http { access_log off; sendfile on; tcp_nodelay on; keepalive_requests 1000000000; open_file_cache max=1000;\n"
        .to_owned();
    for kind in ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"] {
        // Writing to a `String` cannot fail.
        let _ = writeln!(text, "{kind}_temp_path {kind};");
    }
    text + &format!("server {{ listen {address}; root {root}; }} }}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_of_a_connection_is_known() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, _) = listener.accept().unwrap();
        assert!(is_own(&stream));
        let (peer, own) = (client.local_addr().unwrap(), client.peer_addr().unwrap());
        let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
        assert_eq!(uid_of(&table, peer, own), Some(rustix::process::getuid().as_raw()));
        assert_eq!(uid_of(&table, own, "127.0.0.1:1".parse().unwrap()), None);
        // The end of this connection at port 40000 belongs to the user 1000.
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
             1: 0100007F:9C40 0100007F:1F90 01 00000000:00000000 00:00000000 00000000  1000        0 1 1\n";
        let found = uid_of(table, "127.0.0.1:40000".parse().unwrap(), "127.0.0.1:8080".parse().unwrap());
        assert_eq!(found, cfg!(target_endian = "little").then_some(1000));
    }
}
