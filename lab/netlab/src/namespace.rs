//! A network of its own for threads and processes, programs inside it, and files that only these see.

use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fordway_store::{Error, ErrorKind, Result};

/// A network namespace. Clones are the same one; it is gone with the last of them, once no process is
/// in it either.
#[derive(Clone, Debug)]
pub struct NetworkNamespace(Arc<OwnedFd>);

impl NetworkNamespace {
    /// Makes a namespace with a loopback device and nothing else.
    ///
    /// Errors: `NotImplemented` where this process may not, or where there is no program `ip`.
    pub fn new() -> Result<Self> {
        let made = in_a_thread(fordway_sys::new_network_namespace)?;
        let descriptor = made.map_err(|error| refused("making a network namespace", error))?;
        let namespace = NetworkNamespace(Arc::new(descriptor));
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
    pub fn connect(
        &self,
        other: &NetworkNamespace,
        device: &str,
        address: &str,
        other_address: &str,
    ) -> Result<()> {
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

/// A mount namespace whose `/run` is empty and in memory: programs keep their sockets, databases and
/// process numbers there, and none of it outlives this process, whatever way that ends. Clones are the same one.
#[derive(Clone, Debug)]
pub struct MountNamespace(Arc<OwnedFd>);

impl MountNamespace {
    /// Where set-ups write their own files, within.
    pub const SCRATCH: &str = "/run/fordway";

    /// Makes one. Errors: `NotImplemented` where this process may not.
    pub fn new() -> Result<Self> {
        let made = in_a_thread(|| {
            let made = fordway_sys::new_mount_namespace(c"/run")?;
            std::fs::create_dir(Self::SCRATCH)?;
            Ok(made)
        })?;
        let descriptor = made.map_err(|error| refused("making a mount namespace", error))?;
        Ok(MountNamespace(Arc::new(descriptor)))
    }

    /// Puts the calling thread, and no other, into it, for good.
    pub(crate) fn enter(&self) -> Result<()> {
        let here = std::env::current_dir();
        fordway_sys::enter_mount_namespace(&*self.0)
            .map_err(|error| refused("entering a mount namespace", error))?;
        // Where the directory is hidden, the root will do.
        let _ = std::env::set_current_dir(here.as_deref().unwrap_or(Path::new("/")));
        Ok(())
    }

    /// Does `work` in a thread of its own that sees the files within.
    pub(crate) fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T> {
        in_a_thread(|| self.enter().map(|()| work()))?
    }
}

/// How long a program has to end by itself when it is asked to.
const GRACE: Duration = Duration::from_secs(1);
/// How often a program is looked after.
const POLL: Duration = Duration::from_millis(5);

/// A program in a namespace. When this is dropped it is asked to end (SIGTERM), and a second later it
/// is killed; when the thread or process that holds it dies, it is killed at once.
#[derive(Debug)]
pub struct NamespaceProcess {
    child: Child,
    /// The kernel ties the program to the thread that started it, so that thread stays.
    keeper: Option<(mpsc::Sender<()>, JoinHandle<()>)>,
}

impl NetworkNamespace {
    /// Starts a program in the namespace. Errors: `InvalidArgument` if there is no such program.
    pub fn start(&self, command: Command) -> Result<NamespaceProcess> {
        NamespaceProcess::start(Some(self), None, command, false)
    }

    /// Starts a program that is to leave nothing behind: what it starts in turn, in the background or
    /// not, ends with it. It is the first process of a process namespace, so its own number is 1.
    pub fn start_contained(&self, command: Command) -> Result<NamespaceProcess> {
        NamespaceProcess::start(Some(self), None, command, true)
    }

    /// The same for a program that sees the files of `mounts`.
    pub fn start_within(&self, mounts: &MountNamespace, command: Command) -> Result<NamespaceProcess> {
        NamespaceProcess::start(Some(self), Some(mounts.clone()), command, true)
    }
}

impl NamespaceProcess {
    /// Starts a program in the network of this process that is to leave nothing behind, as
    /// [`NetworkNamespace::start_contained`] does. Errors: `NotImplemented` where this process may not.
    pub fn start_contained_here(command: Command) -> Result<Self> {
        NamespaceProcess::start(None, None, command, true)
    }

    /// Starts a program in the network of this process.
    pub fn start_here(command: Command) -> Result<Self> {
        NamespaceProcess::start(None, None, command, false)
    }

    fn start(
        namespace: Option<&NetworkNamespace>,
        mounts: Option<MountNamespace>,
        command: Command,
        is_contained: bool,
    ) -> Result<Self> {
        let namespace = namespace.cloned();
        let (started, child) = mpsc::channel();
        let (keeper, until_dropped) = mpsc::channel::<()>();
        let keep = move || {
            // An answer that nobody takes, and an end without a message, are both in order.
            let _ = started.send(launch(namespace.as_ref(), mounts.as_ref(), command, is_contained));
            let _ = until_dropped.recv();
        };
        let thread = std::thread::Builder::new().name("netlab-process".to_owned());
        let thread = thread
            .spawn(keep)
            .map_err(|error| Error::new(ErrorKind::Io, "starting a thread").caused_by(error))?;
        let child = child
            .recv()
            .map_err(|_| Error::new(ErrorKind::Internal, "the thread that starts programs is gone"))??;
        Ok(NamespaceProcess { child, keeper: Some((keeper, thread)) })
    }

    /// Its number outside of any process namespace.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// How it ended; `None` if it runs on.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        self.child
            .try_wait()
            .map_err(|error| Error::new(ErrorKind::Io, "waiting for a program").caused_by(error))
    }

    /// Waits until it has ended, or until `stop` says so (`None`); asks every 5 ms.
    pub fn wait(&mut self, mut stop: impl FnMut() -> bool) -> Result<Option<ExitStatus>> {
        loop {
            match self.ended()? {
                None if stop() => return Ok(None),
                None => std::thread::sleep(POLL),
                ended => return Ok(ended),
            }
        }
    }
}

impl Drop for NamespaceProcess {
    fn drop(&mut self) {
        // An input that ends is a request to end, too, and one that reaches programs elsewhere.
        drop(self.child.stdin.take());
        if let Ok(None) = self.child.try_wait() {
            // It is not yet waited for, so the number is still its own.
            let _ = fordway_sys::terminate(self.child.id());
            let asked = Instant::now();
            if let Ok(None) = self.wait(|| asked.elapsed() > GRACE) {
                let _ = self.child.kill();
                let _ = self.child.wait();
            }
        }
        if let Some((keeper, thread)) = self.keeper.take() {
            drop(keeper);
            let _ = thread.join();
        }
    }
}

/// Starts a program from the calling thread, which is in the namespace from then on.
fn launch(
    namespace: Option<&NetworkNamespace>,
    mounts: Option<&MountNamespace>,
    mut command: Command,
    is_contained: bool,
) -> Result<Child> {
    if let Some(namespace) = namespace {
        namespace.enter()?;
    }
    if let Some(mounts) = mounts {
        mounts.enter()?;
    }
    if is_contained {
        fordway_sys::own_process_namespace()
            .map_err(|error| refused("making a process namespace", error.into()))?;
    }
    fordway_sys::end_with_thread(&mut command);
    let program = command.get_program().to_string_lossy().into_owned();
    command.spawn().map_err(|error| failed_to_start(&program, error))
}

fn failed_to_start(program: &str, error: io::Error) -> Error {
    let (kind, why) = match error.kind() {
        io::ErrorKind::NotFound => (ErrorKind::InvalidArgument, "there is no such program in PATH"),
        _ => (ErrorKind::Io, "it does not start"),
    };
    Error::new(kind, format!("{program}: {why}")).caused_by(error)
}
