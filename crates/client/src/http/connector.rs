//! New connections to an origin.

use fordway_store::Result;

use super::connection::Connection;
use super::socket::Socket;
use super::tls::TlsConnector;
use super::{Credentials, Origin, Timeouts, TlsRoots, Version};

/// Makes connections, through TLS where the origin asks for it.
pub(super) struct Connector {
    version: Version,
    timeouts: Timeouts,
    tls: TlsConnector,
}

impl Connector {
    pub(super) fn new(version: Version, timeouts: Timeouts, roots: TlsRoots, who: Credentials) -> Self {
        let protocol: &[u8] = match version {
            Version::Http1 => b"http/1.1",
            #[cfg(feature = "http2")]
            Version::Http2 => b"h2",
        };
        Connector { version, timeouts, tls: TlsConnector::new(roots, protocol).showing(who) }
    }

    /// Errors: `Unavailable`, `Timeout`, `InvalidArgument`; `BadResponse` for a server without HTTP/2.
    pub(super) fn connect(&self, origin: &Origin) -> Result<Connection> {
        match self.version {
            Version::Http1 if origin.tls => {
                let stream = self.tls.connect(origin, &self.timeouts)?;
                Ok(Connection::tls(stream, self.timeouts))
            }
            Version::Http1 => Ok(Connection::plain(Socket::connect(origin, &self.timeouts)?, self.timeouts)),
            #[cfg(feature = "http2")]
            Version::Http2 => {
                let connection = super::http2::Http2::connect(origin, &self.timeouts, &self.tls)?;
                Ok(Connection::http2(connection, self.timeouts))
            }
        }
    }
}
