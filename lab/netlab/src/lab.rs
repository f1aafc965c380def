//! Joins two namespaces in which experiments run, and sets the congestion-control algorithm of TCP in a network.
//!
//! A namespace may use only an algorithm that the machine allows all processes to use
//! (`net.ipv4.tcp_allowed_congestion_control`, by default `reno` and the machine's default algorithm). All namespaces
//! share this list, which can be written only from the initial namespace. The kernel checks the list only when a
//! namespace's algorithm is set. An algorithm that is missing from the list is therefore added only while it is being
//! set.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;

use fordway_store::{Error, ErrorKind, Result};

use crate::link::DEVICE;
use crate::{EmulatedLink, LinkConfig, LinkStats, NetworkNamespace};

/// The server's address.
pub const SERVER_ADDRESS: &str = "10.77.0.1";
/// The client's address.
pub const CLIENT_ADDRESS: &str = "10.77.0.2";

/// The configuration of a lab.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LabConfig {
    /// The link; `None` for virtual Ethernet, which runs at the speed of the machine.
    pub link: Option<LinkConfig>,
    /// The maximum size to which TCP grows a connection's buffers, in bytes; `None` for the kernel's default.
    pub tcp_buffer_bytes: Option<u64>,
    /// TCP's congestion-control algorithm; `None` for the kernel's default.
    pub congestion_control: Option<String>,
}

/// The networks of a server and a client, joined by a link. Dropping the lab removes the link and the networks.
#[derive(Debug)]
pub struct NetworkLab {
    /// The namespace that has [`SERVER_ADDRESS`].
    pub server: NetworkNamespace,
    /// The namespace that has [`CLIENT_ADDRESS`].
    pub client: NetworkNamespace,
    link: Option<EmulatedLink>,
}

impl NetworkLab {
    /// Creates both networks and joins them.
    ///
    /// Errors: `NotImplemented` if this process lacks the necessary privileges, or the machine lacks the necessary
    /// features; `InvalidArgument` for invalid link properties, or a congestion-control algorithm that the kernel does
    /// not have. Cost: about 50 ms.
    pub fn new(config: &LabConfig) -> Result<Self> {
        let (server, client) = (NetworkNamespace::new()?, NetworkNamespace::new()?);
        let (server_address, client_address) =
            (format!("{SERVER_ADDRESS}/24"), format!("{CLIENT_ADDRESS}/24"));
        let link = match &config.link {
            Some(link) => {
                Some(EmulatedLink::new([(&client, &client_address), (&server, &server_address)], link)?)
            }
            None => {
                client.connect(&server, DEVICE, &client_address, &server_address)?;
                None
            }
        };
        for namespace in [&server, &client] {
            set_up_tcp(namespace, config)?;
        }
        Ok(NetworkLab { server, client, link })
    }

    /// Returns the counters of the link; `None` if the lab has no link. `there` is the direction from the client to the
    /// server.
    pub fn stats(&self) -> Option<LinkStats> {
        self.link.as_ref().map(EmulatedLink::stats)
    }

    /// Returns the TCP parameters that determine throughput, with their values in the client's namespace. Both
    /// namespaces have the same values.
    pub fn settings(&self) -> Result<BTreeMap<&'static str, String>> {
        const PARAMETERS: [&str; 4] = [
            "net/ipv4/tcp_rmem",
            "net/ipv4/tcp_wmem",
            "net/ipv4/tcp_congestion_control",
            "net/ipv4/tcp_no_metrics_save",
        ];
        PARAMETERS.into_iter().map(|name| Ok((name, self.client.get(name)?))).collect()
    }
}

fn set_up_tcp(namespace: &NetworkNamespace, config: &LabConfig) -> Result<()> {
    if let Some(bytes) = config.tcp_buffer_bytes {
        for (name, start) in [("tcp_rmem", 131_072), ("tcp_wmem", 16_384)] {
            let values = format!("4096 {start} {}", bytes.max(start));
            namespace.set(&format!("net/ipv4/{name}"), &values)?;
        }
    }
    if let Some(name) = &config.congestion_control {
        set_algorithm(namespace, name)?;
    }
    // By default, the kernel reuses the TCP metrics of earlier connections. Later runs would then differ from earlier
    // runs.
    namespace.set("net/ipv4/tcp_no_metrics_save", "1")
}

const DEFAULT_ALGORITHM: &str = "net/ipv4/tcp_congestion_control";
const ALLOWED_ALGORITHMS: &str = "/proc/sys/net/ipv4/tcp_allowed_congestion_control";
const AVAILABLE_ALGORITHMS: &str = "/proc/sys/net/ipv4/tcp_available_congestion_control";

/// Makes new connections in `namespace` use `algorithm`, such as `cubic`. The machine's list of allowed algorithms
/// is restored before this function returns.
///
/// Errors: `InvalidArgument` if the kernel has no such algorithm; `NotImplemented` if the machine does not allow the
/// algorithm in namespaces, and this process is not permitted to change the list of allowed algorithms. Cost: at most
/// 20 system calls.
pub(crate) fn set_algorithm(namespace: &NetworkNamespace, algorithm: &str) -> Result<()> {
    match namespace.set(DEFAULT_ALGORITHM, algorithm) {
        Err(refused) if refused.kind() == ErrorKind::NotImplemented => {
            allow_while(algorithm, || namespace.set(DEFAULT_ALGORITHM, algorithm))
        }
        done => done,
    }
}

/// Allows all processes of the machine to use the congestion control `algorithm`, runs `work`, and then restores the
/// list of allowed algorithms.
fn allow_while(algorithm: &str, work: impl FnOnce() -> Result<()>) -> Result<()> {
    let available = std::fs::read_to_string(AVAILABLE_ALGORITHMS).unwrap_or_default();
    if !lists(&available, algorithm) {
        let message = format!(
            "the kernel has no congestion control {algorithm}; it has {} (`modprobe tcp_{algorithm}` may add it)",
            available.trim()
        );
        return Err(Error::new(ErrorKind::InvalidArgument, message));
    }
    // The lock serializes processes. Without the lock, a process could restore a list that contains another process's
    // change, and thus make that change permanent.
    let list = File::open(ALLOWED_ALGORITHMS).map_err(|error| not_allowed(algorithm, error))?;
    list.lock().map_err(|error| not_allowed(algorithm, error))?;
    let before = io::read_to_string(&list).map_err(|error| not_allowed(algorithm, error))?;
    if lists(&before, algorithm) {
        return work();
    }
    let write = |value: &str| std::fs::write(ALLOWED_ALGORITHMS, value);
    write(&format!("{} {algorithm}", before.trim())).map_err(|error| not_allowed(algorithm, error))?;
    let done = work();
    write(before.trim()).map_err(|error| {
        let message = format!("{ALLOWED_ALGORITHMS} cannot be restored; write \"{}\" to it", before.trim());
        Error::new(ErrorKind::Io, message).caused_by(error)
    })?;
    done
}

fn lists(algorithms: &str, algorithm: &str) -> bool {
    algorithms.split_ascii_whitespace().any(|one| one == algorithm)
}

fn not_allowed(algorithm: &str, error: io::Error) -> Error {
    let message = format!(
        "the machine does not allow the congestion control {algorithm} in namespaces, and this process may not change \
         that; add it to net.ipv4.tcp_allowed_congestion_control on the host"
    );
    Error::new(ErrorKind::NotImplemented, message).caused_by(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_compared_whole() {
        assert!(lists("reno bbr cubic\n", "cubic"));
        assert!(!lists("reno bbr2\n", "bbr"));
    }
}
