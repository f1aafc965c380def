//! Where the gateway is.

use std::fmt;
use std::io;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use fordway_sys::keep_alive;

/// Where a gateway listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeAddress {
    /// A socket on this node; the kernel tells the gateway who calls.
    Unix(PathBuf),
    /// A host and port, for clients that know the secret.
    Tcp(String, Secret),
}

/// The keys that a gateway wants by TCP.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret {
    /// Names the key; not secret.
    pub access_key: String,
    /// Is never sent.
    pub secret_key: String,
}

/// The secret is left out, so that no log ever shows it.
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secret").field("access_key", &self.access_key).finish_non_exhaustive()
    }
}

impl NodeAddress {
    pub(super) fn connect(&self) -> io::Result<OwnedFd> {
        match self {
            NodeAddress::Unix(path) => UnixStream::connect(path).map(OwnedFd::from),
            NodeAddress::Tcp(host, _) => {
                let socket = TcpStream::connect(host)?;
                socket.set_nodelay(true)?;
                keep_alive(&socket)?;
                Ok(socket.into())
            }
        }
    }

    /// Whether descriptors can be passed.
    pub(super) fn is_local(&self) -> bool {
        matches!(self, NodeAddress::Unix(_))
    }
}

impl fmt::Display for NodeAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NodeAddress::Unix(path) => write!(f, "unix://{}", path.display()),
            NodeAddress::Tcp(host, _) => write!(f, "tcp://{host}"),
        }
    }
}
