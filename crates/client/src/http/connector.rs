//! New connections to an origin.

use fordway_store::Result;

use super::connection::Connection;
use super::proxy::Proxies;
use super::socket::Socket;
use super::tls::TlsConnector;
use super::{Credentials, Origin, Timeouts, TlsRoots, Version};

/// Makes connections: by way of a proxy where one is named for the origin, through TLS where that asks for it.
pub(super) struct Connector {
    version: Version,
    timeouts: Timeouts,
    tls: TlsConnector,
    proxies: Proxies,
}

impl Connector {
    pub(super) fn new(version: Version, timeouts: Timeouts, roots: TlsRoots, who: Credentials) -> Self {
        let protocol: &[u8] = match version {
            Version::Http1 => b"http/1.1",
            #[cfg(feature = "http2")]
            Version::Http2 => b"h2",
        };
        let tls = TlsConnector::new(roots, protocol).showing(who);
        Connector { version, timeouts, tls, proxies: Proxies::none() }
    }

    /// By way of these.
    pub(super) fn through(self, proxies: Proxies) -> Self {
        Connector { proxies, ..self }
    }

    /// Which proxies are used.
    pub(super) fn proxies(&self) -> &Proxies {
        &self.proxies
    }

    /// Errors: `Unavailable`, `Timeout`, `InvalidArgument`; `BadResponse` for a server without HTTP/2;
    /// `AccessDenied` for a proxy that refuses.
    pub(super) fn connect(&self, origin: &Origin) -> Result<Connection> {
        match self.version {
            Version::Http1 if origin.tls => {
                // Credentials that cannot be used are an error before anybody is bothered.
                self.tls.config()?;
                let stream = self.tls.start(origin, self.socket(origin)?)?;
                Ok(Connection::tls(stream, self.timeouts))
            }
            Version::Http1 => match self.proxies.of(origin)? {
                Some(proxy) if proxy.forwards() => {
                    let connection = Connection::plain(proxy.connect(&self.timeouts)?, self.timeouts);
                    Ok(connection.forwarded(proxy.forwarding(origin)))
                }
                _ => Ok(Connection::plain(self.socket(origin)?, self.timeouts)),
            },
            #[cfg(feature = "http2")]
            Version::Http2 => {
                let connection =
                    super::http2::Http2::connect(origin, self.socket(origin)?, &self.timeouts, &self.tls)?;
                Ok(Connection::multiplexed(connection, self.timeouts))
            }
        }
    }

    /// What is at the other end is the origin, whoever is between.
    fn socket(&self, origin: &Origin) -> Result<Socket> {
        match self.proxies.of(origin)? {
            Some(proxy) => proxy.tunnel(origin, &self.timeouts),
            None => Socket::connect(origin, &self.timeouts),
        }
    }
}
