//! Shared file systems on this machine: each has a server and two mounts with separate caches, like the mounts of two
//! nodes. Needs root.
//!
//! All of it runs in namespaces whose first process is killed with the thread that started it. A killed test leaves no
//! process, mount or file behind, and the machine's own settings do not change.

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

/// Runs the commands that the test writes to `cmd.N`: concurrently, started in the order of their numbers.
const AGENT: &str = r#"
cd /run/fordway
trap 'exit 0' TERM
touch ready
n=0
while true; do
    if [ -e "cmd.$n" ]; then
        (bash "cmd.$n" >"out.$n" 2>&1 </dev/null; echo $? >"rc.$n.new"; mv "rc.$n.new" "rc.$n") &
        n=$((n + 1))
    else
        sleep .05
    fi
done
"#;

/// A volume of two bricks. GlusterFS refuses loopback addresses, so the server gets another one.
const GLUSTERFS: &str = r#"
set -eu
export PATH=$PATH:/usr/sbin:/sbin
ulimit -n 65536 || true
mount -t proc proc /proc
for dir in /var/lib/glusterd /var/log /mnt; do mount -t tmpfs fordway "$dir"; done
mkdir -p /run/gluster /run/bricks/1 /run/bricks/2 /var/log/glusterfs /mnt/1 /mnt/2
printf '%s\n' 'volume management' 'type mgmt/glusterd' 'option working-directory /var/lib/glusterd' \
    'option transport-type socket' 'option transport.socket.bind-address 10.88.0.1' \
    'option transport.address-family inet' 'end-volume' >/run/glusterd.vol
glusterd --volfile=/run/glusterd.vol --pid-file=/run/glusterd.pid
gluster() { command gluster --mode=script "$@"; }
tries=0
until gluster volume list >/dev/null 2>&1; do
    tries=$((tries + 1)); [ "$tries" -lt 300 ]; sleep .1
done
gluster volume create fordway replica 2 10.88.0.1:/run/bricks/1 10.88.0.1:/run/bricks/2 force
gluster volume start fordway
for node in 1 2; do
    glusterfs --volfile-server=10.88.0.1 --volfile-id=fordway "/mnt/$node"
    tries=0
    until mountpoint -q "/mnt/$node" && stat "/mnt/$node/." >/dev/null 2>&1; do
        tries=$((tries + 1)); [ "$tries" -lt 300 ]; sleep .1
    done
done
mkdir /mnt/1/root
set +eu
"#;

/// A user-mode kernel, run as a process, with the machine's root file system mounted read-only. The line `INIT` is
/// replaced.
const KERNEL: &str = r#"
cat >/run/fordway/init <<'END OF INIT'
#!/bin/bash
INIT
END OF INIT
chmod +x /run/fordway/init
exec linux.uml uml_dir=/run/uml mem=512M root=/dev/root rootfstype=hostfs rootflags=/ ro \
    init=/run/fordway/init con=null con0=null,fd:1 quiet </dev/null
"#;

/// A server and two clients, each with its own network namespace and host name: the server would take two clients of
/// one name for the same client.
const NFS: &str = r#"
export PATH=/run/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/run LANG=C.UTF-8
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t tmpfs fordway /tmp
mkdir /tmp/control
mount -t hostfs -o /run/fordway none /tmp/control
for dir in /run /mnt /var/lib/nfs; do mount -t tmpfs fordway "$dir"; done
mkdir -p /run/fordway /run/netns /run/bin /run/modules/lib /run/export /mnt/1 /mnt/2 /var/lib/nfs/v4recovery
mount --move /tmp/control /run/fordway
set -e
ulimit -n 65536 || true
ip link set lo up
ln -s /usr/lib/uml/modules /run/modules/lib/modules
printf '#!/bin/sh\nexec /sbin/modprobe -d /run/modules "$@"\n' >/run/bin/modprobe
chmod +x /run/bin/modprobe
echo /run/bin/modprobe >/proc/sys/kernel/modprobe
modprobe nfsd; modprobe veth; modprobe nfsv4
touch /var/lib/nfs/etab /var/lib/nfs/rmtab /var/lib/nfs/xtab
mount -t tmpfs export /run/export
mkdir /run/export/root
mount -t nfsd nfsd /proc/fs/nfsd
exportfs -o rw,no_root_squash,no_subtree_check,insecure,fsid=0,async '*:/run/export'
rpc.nfsd --no-nfs-version 3 --lease-time 10 --grace-time 10 4
echo Y >/proc/fs/nfsd/v4_end_grace || true
rpc.mountd
for node in 1 2; do
    ip netns add "n$node"
    ip link add "v$node" type veth peer name eth0 netns "n$node"
    ip addr add "10.77.$node.1/24" dev "v$node"
    ip link set "v$node" up
    ip -n "n$node" addr add "10.77.$node.2/24" dev eth0
    ip -n "n$node" link set eth0 up
    nsenter "--net=/run/netns/n$node" unshare --uts \
        sh -c "hostname n$node && mount -t nfs -o vers=4.2 10.77.$node.1:/ /mnt/$node"
done
set +e
"#;

/// A running shared file system, mounted twice. Server and mounts are removed when this value is dropped, or when its
/// thread ends.
#[derive(Debug)]
pub struct FileSystemCluster {
    /// The name of the file system in messages.
    pub name: &'static str,
    agent: NamespaceProcess,
    next: AtomicUsize,
}

/// A command running in a cluster.
#[derive(Debug)]
pub struct ClusterTask<'c> {
    cluster: &'c FileSystemCluster,
    number: usize,
}

impl FileSystemCluster {
    /// The two nodes' mounts, as tasks see them; each is an empty directory in the file system.
    pub const MOUNTS: [&'static str; 2] = ["/mnt/1/root", "/mnt/2/root"];
    /// A directory that tasks share, outside the file system.
    pub const CONTROL: &'static str = MountNamespace::SCRATCH;

    /// GlusterFS as packaged by Debian: a volume on two bricks, each file on both. `None`, with a record of the skip,
    /// if it is not available.
    pub fn glusterfs() -> Option<Self> {
        let is_possible = fordway_needs::root("mount GlusterFS")
            && fordway_needs::programs(&["glusterd", "gluster", "glusterfs", "ip", "mountpoint"]);
        is_possible.then(|| FileSystemCluster::start("glusterfs", &format!("{GLUSTERFS}{AGENT}")))?
    }

    /// NFS 4.2 with default mount options, server and both clients in one user-mode Linux. `None`, with a record of the
    /// skip, if it is not available.
    pub fn nfs() -> Option<Self> {
        let programs =
            ["linux.uml", "rpc.nfsd", "rpc.mountd", "exportfs", "mount.nfs", "modprobe", "ip", "nsenter"];
        let is_possible =
            fordway_needs::root("start a kernel with namespaces") && fordway_needs::programs(&programs);
        let script = KERNEL.replace("\nINIT\n", &format!("\n{NFS}{AGENT}\n"));
        is_possible.then(|| FileSystemCluster::start("nfs", &script))?
    }

    fn start(name: &'static str, script: &str) -> Option<Self> {
        match FileSystemCluster::try_start(name, script) {
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
        let mut cluster = FileSystemCluster { name, agent, next: AtomicUsize::new(0) };
        let begin = Instant::now();
        while !cluster.control("ready").exists() {
            let ended = cluster.agent.ended().map_err(|error| error.to_string())?;
            // A kernel process does not exit after a panic.
            let is_lost = ended.is_some() || tail(&log).contains("Kernel panic");
            if is_lost || begin.elapsed() > START {
                return Err(format!("after {:?}, ended {ended:?}: {}", begin.elapsed(), tail(&log)));
            }
            std::thread::sleep(POLL);
        }
        Ok(cluster)
    }

    /// The path of a file in [`FileSystemCluster::CONTROL`], as the test sees it.
    pub fn control(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{}/{name}", self.agent.id(), Self::CONTROL))
    }

    /// Returns the process ID, outside the namespaces, of the cluster's first process. When that process ends, the
    /// kernel kills all others in the cluster.
    pub fn process(&self) -> u32 {
        self.agent.id()
    }

    /// Starts a shell command that sees both mounts.
    pub fn task(&self, command: &str) -> ClusterTask<'_> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let new = self.control(&format!("cmd.{number}.new"));
        fs::write(&new, command).unwrap();
        fs::rename(new, self.control(&format!("cmd.{number}"))).unwrap();
        ClusterTask { cluster: self, number }
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

impl ClusterTask<'_> {
    /// Waits for the end of the task; returns its output. Panics if it fails.
    pub fn output(self) -> String {
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
        assert_eq!(code.trim(), "0", "{}: a task failed: {said}", self.cluster.name);
        said
    }
}
