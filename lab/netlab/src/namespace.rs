//! Network namespaces for threads and processes, mount namespaces with private files, and the programs that run in
//! them.

use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fordway_store::{Error, ErrorKind, Result};

/// A network namespace. Clones refer to the same namespace. The kernel removes the namespace when the last clone has
/// been dropped and the last process in the namespace has ended.
#[derive(Clone, Debug)]
pub struct NetworkNamespace(Arc<OwnedFd>);

impl NetworkNamespace {
    /// Creates a namespace that has only a loopback device.
    ///
    /// Errors: `NotImplemented` if this process is not permitted to create namespaces, or if the `ip` program is
    /// missing.
    pub fn new() -> Result<Self> {
        let made = in_a_thread(fordway_sys::new_network_namespace)?;
        let descriptor = made.map_err(|error| refused("creating a network namespace", error))?;
        let namespace = NetworkNamespace(Arc::new(descriptor));
        // IPv6 is disabled, because its router solicitations would be additional packets on the link.
        namespace.set("net/ipv6/conf/default/disable_ipv6", "1").or_else(ignore_missing)?;
        namespace.ip("link set lo up")?;
        Ok(namespace)
    }

    /// Moves only the calling thread into the namespace, permanently.
    pub fn enter(&self) -> Result<()> {
        fordway_sys::enter_network_namespace(&*self.0)
            .map_err(|error| refused("entering a network namespace", error.into()))
    }

    /// Runs `work` inside the namespace, in a new thread. Cost: one thread. Errors: the namespace cannot be entered.
    /// The result of `work` is returned unchanged.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T> {
        in_a_thread(|| self.enter().map(|()| work()))?
    }

    /// Returns a path to the namespace, for `nsenter --net=PATH` and for `ip link set DEVICE netns PATH`. The path
    /// is valid as long as this process runs and a clone of the namespace exists.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd()))
    }

    /// Runs commands of the `ip` program inside the namespace, one per line and without the word `ip`.
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

    /// Sets a kernel parameter of the network, given by its path below `/proc/sys`, such as `net/ipv4/tcp_rmem`.
    /// Errors: `NotImplemented` if the kernel has no such parameter in a namespace; `InvalidArgument` for an invalid
    /// value.
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

    /// Returns the value of a kernel parameter, with single spaces between its fields. Errors: `NotImplemented` if
    /// the parameter cannot be read.
    pub fn get(&self, parameter: &str) -> Result<String> {
        let path = format!("/proc/sys/{parameter}");
        let text = self.run(|| std::fs::read_to_string(path))?.map_err(|error| {
            Error::new(ErrorKind::NotImplemented, format!("reading {parameter}")).caused_by(error)
        })?;
        Ok(text.split_ascii_whitespace().collect::<Vec<_>>().join(" "))
    }

    /// Joins two namespaces by a pair of virtual Ethernet devices, which run at the speed of the machine. Both devices
    /// are called `device`, and are brought up. `address` and `other_address` have the form `10.0.0.1/24`.
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
    // Debian installs `ip` in a directory that only root's PATH includes.
    ip.env("PATH", format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default()));
    ip.args(["-batch", "-"]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut running = ip.spawn()?;
    if let Some(mut input) = running.stdin.take() {
        input.write_all(commands.as_bytes())?;
        input.write_all(b"\n")?;
    }
    running.wait_with_output()
}

/// Runs `work` in a new thread that ends when `work` returns, because a thread cannot leave every kind of namespace
/// that it has entered.
pub(crate) fn in_a_thread<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("netlab".to_owned());
        let running = thread
            .spawn_scoped(scope, work)
            .map_err(|error| Error::new(ErrorKind::Io, "starting a thread").caused_by(error))?;
        Ok(running.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}

/// Creates the error for an operation that only root may perform, with a remedy.
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

/// A mount namespace with an empty `/run` in memory, for the sockets, databases and process IDs of programs. None of
/// these files remains after this process ends, regardless of how it ends. Clones refer to the same namespace.
#[derive(Clone, Debug)]
pub struct MountNamespace(Arc<OwnedFd>);

impl MountNamespace {
    /// The directory inside the namespace where set-ups write their own files.
    pub const SCRATCH: &str = "/run/fordway";

    /// Creates a mount namespace. Errors: `NotImplemented` if this process is not permitted to create mount namespaces.
    pub fn new() -> Result<Self> {
        let made = in_a_thread(|| {
            let made = fordway_sys::new_mount_namespace(c"/run")?;
            std::fs::create_dir(Self::SCRATCH)?;
            Ok(made)
        })?;
        let descriptor = made.map_err(|error| refused("creating a mount namespace", error))?;
        Ok(MountNamespace(Arc::new(descriptor)))
    }

    /// Moves only the calling thread into the mount namespace, permanently.
    pub(crate) fn enter(&self) -> Result<()> {
        let here = std::env::current_dir();
        fordway_sys::enter_mount_namespace(&*self.0)
            .map_err(|error| refused("entering a mount namespace", error))?;
        // If the working directory is hidden inside the namespace, use the root directory.
        let _ = std::env::set_current_dir(here.as_deref().unwrap_or(Path::new("/")));
        Ok(())
    }

    /// Runs `work` inside the mount namespace, in a new thread.
    pub(crate) fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T> {
        in_a_thread(|| self.enter().map(|()| work()))?
    }
}

/// The time between a program's SIGTERM and its SIGKILL.
const GRACE: Duration = Duration::from_secs(1);
/// The same time for a program whose standard input has just been closed. Such a program may have to remove what it
/// created on another machine, such as a pod.
const GRACE_WITH_INPUT: Duration = Duration::from_secs(10);
/// The interval at which [`NamespaceProcess::wait`] checks whether a program has ended.
const POLL: Duration = Duration::from_millis(5);

/// A program in a namespace. Dropping this value sends SIGTERM to the program, and kills the program if it is still
/// running a second later. If the keeper thread or this process dies, the program is killed immediately.
#[derive(Debug)]
pub struct NamespaceProcess {
    child: Child,
    /// The thread that started the program. The kernel kills the program when this thread ends, so the thread
    /// lives as long as the program is needed.
    keeper: Option<(mpsc::Sender<()>, JoinHandle<()>)>,
}

impl NetworkNamespace {
    /// Starts a program in the namespace. Errors: `InvalidArgument` if there is no such program.
    pub fn start(&self, command: Command) -> Result<NamespaceProcess> {
        NamespaceProcess::start(Some(self), None, command, false)
    }

    /// Starts a program. All descendants of the program, including background processes, end together with the program.
    /// The program is the first process of a PID namespace, so its process ID inside is 1.
    pub fn start_contained(&self, command: Command) -> Result<NamespaceProcess> {
        NamespaceProcess::start(Some(self), None, command, true)
    }

    /// Starts a program like [`NetworkNamespace::start_contained`], inside the mount namespace `mounts`.
    pub fn start_within(&self, mounts: &MountNamespace, command: Command) -> Result<NamespaceProcess> {
        NamespaceProcess::start(Some(self), Some(mounts.clone()), command, true)
    }
}

impl NamespaceProcess {
    /// Starts a program in the network of this process. As with [`NetworkNamespace::start_contained`], the program's
    /// descendants are killed when the program exits. Errors: `NotImplemented` if this process is not permitted to
    /// create PID namespaces.
    pub fn start_contained_here(command: Command) -> Result<Self> {
        NamespaceProcess::start(None, None, command, true)
    }

    /// Starts a program like [`NamespaceProcess::start_contained_here`], inside the mount namespace `mounts`.
    pub fn start_within_here(mounts: &MountNamespace, command: Command) -> Result<Self> {
        NamespaceProcess::start(None, Some(mounts.clone()), command, true)
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
            // Ignore errors: the receiver of the result may be gone, and `recv` fails when `keeper` is dropped.
            let _ = started.send(launch(namespace.as_ref(), mounts.as_ref(), command, is_contained));
            let _ = until_dropped.recv();
        };
        let thread = std::thread::Builder::new().name("netlab-process".to_owned());
        let thread = thread
            .spawn(keep)
            .map_err(|error| Error::new(ErrorKind::Io, "starting a thread").caused_by(error))?;
        let child = child
            .recv()
            .map_err(|_| Error::new(ErrorKind::Internal, "the thread that starts programs has exited"))??;
        Ok(NamespaceProcess { child, keeper: Some((keeper, thread)) })
    }

    /// Returns the program's process ID as seen from outside any PID namespace.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the program's exit status; `None` if the program is still running.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        self.child
            .try_wait()
            .map_err(|error| Error::new(ErrorKind::Io, "waiting for a program").caused_by(error))
    }

    /// Waits until the program has ended, or until `stop` returns true; checks both conditions every 5 ms. Returns
    /// `None` if `stop` returned true.
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
        // Closing standard input also tells the program to exit, even if the program runs on another machine.
        let grace = if self.child.stdin.take().is_some() { GRACE_WITH_INPUT } else { GRACE };
        if let Ok(None) = self.child.try_wait() {
            // The process has not been reaped yet, so its process ID cannot have been reused.
            let _ = fordway_sys::terminate(self.child.id());
            let asked = Instant::now();
            if let Ok(None) = self.wait(|| asked.elapsed() > grace) {
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

/// Moves the calling thread into the namespaces, and starts a program from this thread.
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
            .map_err(|error| refused("creating a process namespace", error.into()))?;
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
