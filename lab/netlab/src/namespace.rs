//! A network of its own for threads and processes.

use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;

use fordway_store::{Error, ErrorKind, Result};

/// A network namespace. Clones are the same one; it is gone with the last of them, once no process is
/// in it either.
#[derive(Clone, Debug)]
pub struct Namespace(Arc<OwnedFd>);

impl Namespace {
    /// Makes a namespace with a loopback device and nothing else.
    ///
    /// Errors: `NotImplemented` where this process may not, or where there is no program `ip`.
    pub fn new() -> Result<Self> {
        let made = in_a_thread(fordway_sys::new_network_namespace)?;
        let descriptor = made.map_err(|error| refused("making a network namespace", error))?;
        let namespace = Namespace(Arc::new(descriptor));
        // Router solicitations would be packets that nobody asked for.
        namespace.set("net/ipv6/conf/default/disable_ipv6", "1").or_else(ignore_missing)?;
        namespace.ip("link set lo up")?;
        Ok(namespace)
    }

    /// Puts the calling thread, and no other, into the namespace, for good.
    pub fn enter(&self) -> Result<()> {
        fordway_sys::enter_network_namespace(&*self.0)
            .map_err(|error| refused("entering a network namespace", error.into()))
    }

    /// Does `work` in a thread of its own inside the namespace. Cost: a thread.
    /// Errors: only from getting there; the work's are its own.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T> {
        in_a_thread(|| self.enter().map(|()| work()))?
    }

    /// The namespace as a path, for `nsenter --net=PATH` and for `ip link set DEVICE netns PATH`; good
    /// as long as this process lives.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd()))
    }

    /// Runs commands of the program `ip` inside the namespace, one a line, without the word `ip`.
    pub fn ip(&self, commands: &str) -> Result<()> {
        let output = self.run(|| run_ip(commands))?.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => {
                Error::new(ErrorKind::NotImplemented, "there is no program `ip`; install iproute2")
            }
            _ => Error::new(ErrorKind::Io, "running ip").caused_by(error),
        })?;
        match output.status.success() {
            true => Ok(()),
            false => {
                let said = String::from_utf8_lossy(&output.stderr);
                Err(Error::new(ErrorKind::Io, format!("ip refused {commands:?}: {}", said.trim())))
            }
        }
    }

    /// Sets a parameter of the network, named by its path below `/proc/sys`, as in `net/ipv4/tcp_rmem`.
    /// Errors: `NotImplemented` where the kernel has no such parameter in a namespace, `InvalidArgument` for
    /// a value it does not take.
    pub fn set(&self, parameter: &str, value: &str) -> Result<()> {
        let path = format!("/proc/sys/{parameter}");
        self.run(|| std::fs::write(path, value))?.map_err(|error| {
            let kind = match error.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied => ErrorKind::NotImplemented,
                _ => ErrorKind::InvalidArgument,
            };
            Error::new(kind, format!("setting {parameter} to {value:?}")).caused_by(error)
        })
    }

    /// The value of a parameter, its parts separated by single spaces. Errors: `NotImplemented` as above.
    pub fn get(&self, parameter: &str) -> Result<String> {
        let path = format!("/proc/sys/{parameter}");
        let text = self.run(|| std::fs::read_to_string(path))?.map_err(|error| {
            Error::new(ErrorKind::NotImplemented, format!("reading {parameter}")).caused_by(error)
        })?;
        Ok(text.split_ascii_whitespace().collect::<Vec<_>>().join(" "))
    }

    /// Joins two namespaces by a pair of virtual Ethernet devices, both called `device` and up; as fast as
    /// the machine is. `address` and `other_address` are such as `10.0.0.1/24`.
    pub fn connect(&self, other: &Namespace, device: &str, address: &str, other_address: &str) -> Result<()> {
        let peer = other.path();
        self.ip(&format!("link add {device} type veth peer name {device} netns {}", peer.display()))?;
        self.ip(&format!("addr add {address} dev {device}\nlink set {device} up"))?;
        other.ip(&format!("addr add {other_address} dev {device}\nlink set {device} up"))
    }
}

fn ignore_missing(error: Error) -> Result<()> {
    if error.kind() == ErrorKind::NotImplemented { Ok(()) } else { Err(error) }
}

fn run_ip(commands: &str) -> io::Result<std::process::Output> {
    let mut ip = Command::new("ip");
    // Debian has it where only root's PATH leads.
    ip.env("PATH", format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default()));
    ip.args(["-batch", "-"]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut running = ip.spawn()?;
    if let Some(mut input) = running.stdin.take() {
        input.write_all(commands.as_bytes())?;
        input.write_all(b"\n")?;
    }
    running.wait_with_output()
}

/// Does `work` in a thread that ends with it, because what a thread entered it cannot always leave.
pub(crate) fn in_a_thread<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("netlab".to_owned());
        let running = thread
            .spawn_scoped(scope, work)
            .map_err(|error| Error::new(ErrorKind::Io, "starting a thread").caused_by(error))?;
        Ok(running.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}

/// What the system said to something that only root may do, with the way out.
pub(crate) fn refused(what: &str, error: io::Error) -> Error {
    let (kind, why) = match error.kind() {
        io::ErrorKind::PermissionDenied => (
            ErrorKind::NotImplemented,
            "needs root, or a user namespace where the kernel allows those: \
             put `unshare --map-root-user` before the command",
        ),
        io::ErrorKind::NotFound => {
            (ErrorKind::NotImplemented, "needs /dev/net/tun: `modprobe tun`, or give it to the container")
        }
        _ => (ErrorKind::Io, "failed"),
    };
    Error::new(kind, format!("{what} {why}")).caused_by(error)
}
