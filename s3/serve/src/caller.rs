//! Who is at the other end of a connection.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use serde::{Serialize, Serializer};

use crate::users::User;

/// The other end of a connection, and how it is known who that is.
#[derive(Clone)]
pub(crate) enum Caller {
    /// Somebody at an address, whose requests must be signed.
    Remote(SocketAddr),
    /// A program of this machine that the kernel has named; signatures are of no account.
    Peer(Arc<User>),
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Caller::Remote(address) => address.fmt(f),
            Caller::Peer(user) => f.write_str(&user.name),
        }
    }
}

impl Serialize for Caller {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
