//! New connections to an origin.

use fordway_store::Result;

use super::connection::Connection;
use super::socket::Socket;
use super::tls::TlsConnector;
use super::{Origin, Timeouts, TlsRoots};

/// Makes connections that speak HTTP/1.1, through TLS where the origin asks for it.
pub(super) struct Connector {
    timeouts: Timeouts,
    tls: TlsConnector,
}

impl Connector {
    pub(super) fn new(timeouts: Timeouts, roots: TlsRoots) -> Self {
        Connector { timeouts, tls: TlsConnector::new(roots, b"http/1.1") }
    }

    /// Errors: `Unavailable`, `Timeout`, `InvalidArgument`.
    pub(super) fn connect(&self, origin: &Origin) -> Result<Connection> {
        if origin.tls {
            let stream = self.tls.connect(origin, &self.timeouts)?;
            return Ok(Connection::tls(stream, self.timeouts));
        }
        Ok(Connection::plain(Socket::connect(origin, &self.timeouts)?, self.timeouts))
    }
}
