//! TCP's congestion control in a network of its own.
//!
//! A namespace may only take an algorithm that the machine allows to everybody
//! (`net.ipv4.tcp_allowed_congestion_control`, by default `reno` and the machine's own). The list is one for all
//! namespaces and can only be written from the first. The kernel consults it when a namespace is set, and not again: so the
//! algorithm is on the list for that moment.

use std::fs::File;
use std::io;

use fordway_store::{Error, ErrorKind, Result};

use crate::Namespace;

const DEFAULT_ALGORITHM: &str = "net/ipv4/tcp_congestion_control";
const ALLOWED_ALGORITHMS: &str = "/proc/sys/net/ipv4/tcp_allowed_congestion_control";
const AVAILABLE_ALGORITHMS: &str = "/proc/sys/net/ipv4/tcp_available_congestion_control";

/// Has connections made in `namespace` use `algorithm`, such as `cubic`. The machine's list of allowed algorithms is as
/// before when this returns.
///
/// Errors: `InvalidArgument` where the kernel has no such algorithm; `NotImplemented` where the machine does not allow it
/// in namespaces and this process may not change that. Cost: 20 system calls at most.
pub(crate) fn set_algorithm(namespace: &Namespace, algorithm: &str) -> Result<()> {
    match namespace.set(DEFAULT_ALGORITHM, algorithm) {
        Err(refused) if refused.kind() == ErrorKind::NotImplemented => {
            allow_while(algorithm, || namespace.set(DEFAULT_ALGORITHM, algorithm))
        }
        done => done,
    }
}

/// Does `work` while the machine allows `algorithm` to everybody.
fn allow_while(algorithm: &str, work: impl FnOnce() -> Result<()>) -> Result<()> {
    let available = std::fs::read_to_string(AVAILABLE_ALGORITHMS).unwrap_or_default();
    if !lists(&available, algorithm) {
        let message = format!(
            "the kernel has no congestion control {algorithm}; it has {} (`modprobe tcp_{algorithm}` may add it)",
            available.trim()
        );
        return Err(Error::new(ErrorKind::InvalidArgument, message));
    }
    // Two processes that each put back what the other had changed would leave the change: one at a time.
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
        let message = format!("{ALLOWED_ALGORITHMS} cannot be put back; write \"{}\" there", before.trim());
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
