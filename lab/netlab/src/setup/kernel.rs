//! Two user-mode Linux kernels, each with this machine's files, on two networks joined by a wire. User-mode Linux runs
//! a kernel as a process without virtualization support. Computation is nearly as fast as on the machine, but system
//! calls take many times as long. Each kernel has one processor.

use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::fs::Permissions;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;

use fordway_store::{Error, ErrorKind, Result};

use super::step::{command, found, run_in};
use super::{NetworkEndpoint, NetworkPair, NetworkSetup, WireSettings};
use crate::{MountNamespace, NamespaceProcess, NetworkNamespace};

/// C source of a library that must be preloaded into user-mode Linux on processors with more registers than user-mode
/// Linux supports.
pub const USER_MODE_KERNEL_REGISTERS: &str = include_str!("xstate.c");
/// The device that joins this machine's network to the network of a kernel.
const TAP: &str = "tap0";
/// The path of the compiled library in the mount namespace.
const LIBRARY: &str = "/run/fordway/xstate.so";
/// The memory of a kernel. The machine provides memory only for the pages in use.
const MEMORY: &str = "1G";
/// The programs that a kernel needs, and the Debian packages that contain them.
const NEEDS: [(&str, &str); 2] = [("linux.uml", "user-mode-linux"), ("cc", "gcc")];

/// The two kernels' networks. [`KernelNetworks::start`] starts a kernel. When this value is dropped, or when this
/// process ends for any reason, the wire and the networks are removed.
#[derive(Debug)]
pub struct KernelNetworks {
    /// For each kernel, the network from which its programs can be reached, and the kernel's own address.
    pub ends: [NetworkEndpoint; 2],
    mounts: MountNamespace,
    _wire: NetworkPair,
}

/// The command that a kernel runs.
#[derive(Debug)]
pub struct KernelCommand<'a> {
    /// The end at which the kernel runs: 0 or 1.
    pub end: usize,
    /// The host name of the kernel.
    pub name: &'a str,
    /// The program and its arguments, which run in the directory and with the environment of this process. The kernel
    /// stops when the program exits.
    pub words: &'a [OsString],
    /// A directory of this machine that the kernel mounts at the same path, even below `/dev`.
    pub shared: &'a Path,
}

/// Returns the two addresses in the network between this machine and the kernel at `end`: this machine's address, and
/// the kernel's address.
fn addresses(end: usize) -> [Ipv4Addr; 2] {
    let network = [121, 122][end];
    [Ipv4Addr::new(192, 168, network, 1), Ipv4Addr::new(192, 168, network, 2)]
}

impl KernelNetworks {
    /// Creates the wire and the networks. `fordway` is the path of this program. Errors: `NotImplemented` if a program
    /// or a privilege is missing.
    pub fn lay(wire: &WireSettings, fordway: &Path) -> Result<Self> {
        if let Some((program, package)) = NEEDS.iter().find(|(program, _)| found(program).is_none()) {
            let detail = format!("there is no program `{program}`; install {package}");
            return Err(Error::new(ErrorKind::NotImplemented, detail));
        }
        let pair = NetworkPair::lay(&NetworkSetup::load("bare")?, wire, fordway)?;
        let networks = [&pair.near.network, &pair.far.network];
        for (end, other) in [(0, &pair.far), (1, &pair.near)] {
            prepare(networks[end], end, other.address)?;
        }
        let mounts = MountNamespace::new()?;
        let compile = ["cc", "-O2", "-x", "c", "-shared", "-fPIC", "-o", LIBRARY, "-"].map(str::to_owned);
        run_in(networks[0], Some(&mounts), command(&compile)?, Some(USER_MODE_KERNEL_REGISTERS.to_owned()))?;
        let ends = [0, 1].map(|end| NetworkEndpoint {
            network: networks[end].clone(),
            address: IpAddr::V4(addresses(end)[1]),
        });
        Ok(KernelNetworks { ends, mounts, _wire: pair })
    }

    /// Starts a kernel, which boots within about 2 seconds. Dropping the returned value ends the kernel. Errors:
    /// `InvalidArgument` for a word, a path or a working directory that is not UTF-8.
    pub fn start(&self, asked: &KernelCommand<'_>, stdout: Stdio, stderr: Stdio) -> Result<NamespaceProcess> {
        let place = format!("{}/{}", MountNamespace::SCRATCH, asked.name);
        let script = init(asked)?;
        let write = || {
            std::fs::create_dir_all(&place)?;
            std::fs::write(format!("{place}/init"), script)?;
            std::fs::set_permissions(format!("{place}/init"), Permissions::from_mode(0o755))
        };
        self.mounts
            .run(write)?
            .map_err(|error| Error::new(ErrorKind::from(&error), "describing a kernel").caused_by(error))?;
        let init = format!("init={place}/init");
        let (memory, umid) = (format!("mem={MEMORY}"), format!("umid={}", asked.name));
        let network = format!("vec0:transport=tap,ifname={TAP},depth=128");
        let words = [
            "linux.uml",
            // The script is in a different directory, because user-mode Linux empties `uml_dir`.
            "uml_dir=/run/uml",
            &umid,
            &memory,
            "root=/dev/root",
            "rootfstype=hostfs",
            "rootflags=/",
            "rw",
            &init,
            &network,
            "con=null",
            "con0=null,fd:1",
            "quiet",
        ];
        let mut kernel = command(&words.map(str::to_owned))?;
        kernel.env("LD_PRELOAD", LIBRARY).env("TMPDIR", MountNamespace::SCRATCH);
        kernel.stdin(Stdio::null()).stdout(stdout).stderr(stderr);
        self.ends[asked.end].network.start_within(&self.mounts, kernel)
    }
}

/// Creates the network between this machine and the kernel at `end`, and the route to the other kernel.
fn prepare(network: &NetworkNamespace, end: usize, other: IpAddr) -> Result<()> {
    let [ours, _] = addresses(end);
    let [theirs, _] = addresses(1 - end);
    network.set("net/ipv4/ip_forward", "1")?;
    network.ip(&format!(
        "tuntap add dev {TAP} mode tap\naddr add {ours}/24 dev {TAP}\nlink set {TAP} up\n\
         route add {theirs}/24 via {other}",
        theirs = Ipv4Addr::from(u32::from(theirs) & !0xff),
    ))
}

/// Returns the script that is the first process of the kernel.
fn init(asked: &KernelCommand<'_>) -> Result<String> {
    let [gateway, own] = addresses(asked.end);
    let (name, shared) =
        (quoted_for_shell(OsStr::new(asked.name))?, quoted_for_shell(asked.shared.as_os_str())?);
    let mut script = format!(
        "#!/bin/sh\n\
         PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n\
         mount -t proc proc /proc; mount -t sysfs sysfs /sys; mount -t tmpfs -o mode=755 dev /dev\n\
         mkdir /dev/shm /dev/pts; mount -t tmpfs -o mode=1777 shm /dev/shm; mount -t devpts devpts /dev/pts\n\
         mknod -m 666 /dev/null c 1 3; mknod -m 666 /dev/zero c 1 5; mknod -m 666 /dev/full c 1 7\n\
         mknod -m 666 /dev/random c 1 8; mknod -m 666 /dev/urandom c 1 9; ln -s /proc/self/fd /dev/fd\n\
         mkdir -p {shared}; mount -t hostfs -o {shared} none {shared}\n\
         hostname {name}; ip link set lo up; ip addr add {own}/24 dev vec0; ip link set vec0 up\n\
         ip route add default via {gateway}\n"
    );
    for (name, value) in std::env::vars_os() {
        // Skip variables whose name is not valid in a shell, or whose value is not UTF-8.
        let is_name = |name: &str| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        if let (Some(name), Ok(value)) =
            (name.to_str().filter(|name| is_name(name)), quoted_for_shell(&value))
        {
            let _ = writeln!(script, "export {name}={value}");
        }
    }
    let here = std::env::current_dir()
        .map_err(|error| Error::new(ErrorKind::Io, "finding the working directory").caused_by(error))?;
    let words = asked.words.iter().map(|word| quoted_for_shell(word)).collect::<Result<Vec<_>>>()?;
    let _ = writeln!(
        script,
        "cd {}\n{}\necho o >/proc/sysrq-trigger",
        quoted_for_shell(here.as_os_str())?,
        words.join(" ")
    );
    Ok(script)
}

/// Quotes `text` for the shell. Errors: `InvalidArgument` if the text is not UTF-8.
pub fn quoted_for_shell(text: &OsStr) -> Result<String> {
    match text.to_str() {
        Some(text) => Ok(format!("'{}'", text.replace('\'', r"'\''"))),
        None => {
            let detail = format!("{text:?} is not UTF-8, which user-mode Linux requires");
            Err(Error::new(ErrorKind::InvalidArgument, detail))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shell_gets_words_as_they_are() {
        let word = "it's $HOME `x` \"y\"";
        let printed = std::process::Command::new("sh")
            .args(["-c", &format!("printf %s {}", quoted_for_shell(OsStr::new(word)).unwrap())])
            .output()
            .unwrap();
        assert_eq!(String::from_utf8(printed.stdout).unwrap(), word);
    }
}
