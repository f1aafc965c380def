//! Shared file systems on this machine, each with a server and two mounts with separate caches, like the mounts of two
//! nodes. Requires root.
//!
//! All processes run in namespaces whose first process is killed when the thread that started it ends. A killed test
//! therefore leaves no process, mount or file behind. The machine's own settings do not change.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use fordway_netlab::{MountNamespace, NamespaceProcess, NetworkNamespace};

/// How long a file system may take to start.
const START: Duration = Duration::from_secs(90);
/// How long a task may take, normally and in a soak test.
const TASK: Duration = Duration::from_secs(240);
const SOAK_TASK: Duration = Duration::from_secs(1800);
const POLL: Duration = Duration::from_millis(10);

/// The script that the first process of a cluster runs after the file system has been mounted.
const AGENT: &str = include_str!("agent.sh");
/// Scripts that start file systems.
const GLUSTERFS: &str = include_str!("glusterfs.sh");
const MOOSEFS: &str = include_str!("moosefs.sh");
const CEPHFS: &str = include_str!("cephfs.sh");
/// The script that starts a user-mode kernel, which runs the commands that replace the line `INIT`.
const KERNEL: &str = include_str!("kernel.sh");
const NFS: &str = include_str!("nfs.sh");
use fordway_netlab::setup::USER_MODE_KERNEL_REGISTERS as XSTATE;

/// A running shared file system, mounted twice. The server and the mounts are removed when this value is dropped, or
/// when the thread that started it ends.
#[derive(Debug)]
pub struct SharedFileSystemFixture {
    /// The name of the file system in messages.
    pub name: &'static str,
    agent: NamespaceProcess,
    next: AtomicUsize,
}

/// A command running in a cluster.
#[derive(Debug)]
pub struct ClusterCommand<'c> {
    cluster: &'c SharedFileSystemFixture,
    number: usize,
}

impl SharedFileSystemFixture {
    /// The paths at which tasks see the mounts of the two nodes. Each mount shows an initially empty directory of the
    /// file system.
    pub const MOUNTS: [&'static str; 2] = ["/mnt/1/root", "/mnt/2/root"];
    /// A directory that tasks share, outside the file system.
    pub const CONTROL: &'static str = MountNamespace::SCRATCH;

    /// Starts GlusterFS as packaged by Debian: a volume on two bricks, with each file on both bricks. Returns `None`
    /// and records a skip if GlusterFS is not available.
    pub fn glusterfs() -> Option<Self> {
        let is_possible = fordway_needs::root("mount GlusterFS")
            && fordway_needs::programs(&["glusterd", "gluster", "glusterfs", "ip", "mountpoint"]);
        is_possible.then(|| SharedFileSystemFixture::start("glusterfs", &format!("{GLUSTERFS}{AGENT}")))?
    }

    /// Starts MooseFS as packaged by Debian, with default mount options: two chunk servers, with each file on both
    /// servers. Returns `None` and records a skip if MooseFS is not available.
    pub fn moosefs() -> Option<Self> {
        let is_possible = fordway_needs::root("mount MooseFS")
            && fordway_needs::programs(&["mfsmaster", "mfschunkserver", "mfsmount", "ip"]);
        is_possible.then(|| SharedFileSystemFixture::start("moosefs", &format!("{MOOSEFS}{AGENT}")))?
    }

    /// Starts CephFS as packaged by Debian, mounted by `ceph-fuse`. Returns `None` and records a skip if CephFS is not
    /// available.
    pub fn cephfs() -> Option<Self> {
        let programs = ["ceph", "monmaptool", "ceph-mon", "ceph-osd", "ceph-mds", "ceph-fuse", "ip"];
        let is_possible = fordway_needs::root("mount CephFS") && fordway_needs::programs(&programs);
        is_possible.then(|| SharedFileSystemFixture::start("cephfs", &format!("{CEPHFS}{AGENT}")))?
    }

    /// Starts NFS 4.2 with default mount options, with the server and both clients in one user-mode Linux. Returns
    /// `None` and records a skip if a required program is not available.
    pub fn nfs() -> Option<Self> {
        let programs = [
            "linux.uml",
            "cc",
            "rpc.nfsd",
            "rpc.mountd",
            "exportfs",
            "mount.nfs",
            "modprobe",
            "ip",
            "nsenter",
        ];
        let is_possible =
            fordway_needs::root("start a kernel with namespaces") && fordway_needs::programs(&programs);
        let kernel = KERNEL.replace("\nXSTATE\n", &format!("\n{XSTATE}\n"));
        let script = kernel.replace("\nINIT\n", &format!("\n{NFS}{AGENT}\n"));
        is_possible.then(|| SharedFileSystemFixture::start("nfs", &script))?
    }

    fn start(name: &'static str, script: &str) -> Option<Self> {
        match SharedFileSystemFixture::try_start(name, script) {
            Ok(cluster) => Some(cluster),
            Err(why) => {
                fordway_needs::skip(format_args!("{name} does not start: {why}"));
                None
            }
        }
    }

    fn try_start(name: &'static str, script: &str) -> Result<Self, String> {
        let network = NetworkNamespace::new().map_err(|error| error.to_string())?;
        network.ip("addr add 10.88.0.1/32 dev lo").map_err(|error| error.to_string())?;
        let mounts = MountNamespace::new().map_err(|error| error.to_string())?;
        let log = tempfile::tempfile().map_err(|error| error.to_string())?;
        let copy = || log.try_clone().map(Stdio::from).map_err(|error| error.to_string());
        let mut command = Command::new("bash");
        command.args(["-c", script]).stdin(Stdio::null()).stdout(copy()?).stderr(copy()?);
        let agent = network.start_within(&mounts, command).map_err(|error| error.to_string())?;
        let mut cluster = SharedFileSystemFixture { name, agent, next: AtomicUsize::new(0) };
        let begin = Instant::now();
        while !cluster.control("ready").exists() {
            let ended = cluster.agent.ended().map_err(|error| error.to_string())?;
            // A user-mode kernel does not exit after a panic, so search its output for the panic message.
            let is_lost = ended.is_some() || tail(&log).contains("Kernel panic");
            if is_lost || begin.elapsed() > START {
                return Err(format!("after {:?}, ended {ended:?}: {}", begin.elapsed(), tail(&log)));
            }
            std::thread::sleep(POLL);
        }
        Ok(cluster)
    }

    /// Returns the path of a file in [`SharedFileSystemFixture::CONTROL`], as seen by the test.
    pub fn control(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{}/{name}", self.agent.id(), Self::CONTROL))
    }

    /// Returns the ID of the cluster's first process, outside the namespaces. When the first process ends, the kernel
    /// kills all other processes of the cluster.
    pub fn process(&self) -> u32 {
        self.agent.id()
    }

    /// Starts a shell command that sees both mounts.
    pub fn task(&self, command: &str) -> ClusterCommand<'_> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let new = self.control(&format!("cmd.{number}.new"));
        fs::write(&new, command).unwrap();
        fs::rename(new, self.control(&format!("cmd.{number}"))).unwrap();
        ClusterCommand { cluster: self, number }
    }
}

/// Returns the last 2,000 bytes of the scripts' output.
fn tail(log: &File) -> String {
    const BYTES_MAX: u64 = 2000;
    let length = log.metadata().map_or(0, |metadata| metadata.len());
    let mut last = vec![0; BYTES_MAX as usize];
    let read = log.read_at(&mut last, length.saturating_sub(BYTES_MAX)).unwrap_or(0);
    String::from_utf8_lossy(&last[..read]).into_owned()
}

impl ClusterCommand<'_> {
    /// Waits for the task to end, and returns its output. Panics if the task fails.
    pub fn output(self) -> String {
        self.result().unwrap_or_else(|why| panic!("{why}"))
    }

    /// Waits for the task to end, and returns its output or the reason why it failed. Panics if the task does not end.
    pub fn result(self) -> Result<String, String> {
        let file = |what: &str| self.cluster.control(&format!("{what}.{}", self.number));
        let begin = Instant::now();
        let most = if std::env::var_os("FORDWAY_SOAK").is_some() { SOAK_TASK } else { TASK };
        while !file("rc").exists() {
            let said = || fs::read_to_string(file("out")).unwrap_or_default();
            assert!(begin.elapsed() < most, "{}: a task does not end: {}", self.cluster.name, said());
            std::thread::sleep(POLL);
        }
        let (code, said) =
            (fs::read_to_string(file("rc")).unwrap(), fs::read_to_string(file("out")).unwrap());
        match code.trim() {
            "0" => Ok(said),
            code => Err(format!("{}: a task failed with code {code}: {said}", self.cluster.name)),
        }
    }
}
