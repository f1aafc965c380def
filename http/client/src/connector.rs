//! New connections to an origin.

#[cfg(feature = "http2")]
use std::collections::HashSet;
#[cfg(feature = "http2")]
use std::sync::{Mutex, PoisonError};

use fordway_store::Result;

use super::connection::Connection;
#[cfg(feature = "http2")]
use super::http2::Http2;
use super::proxy::Proxies;
use super::socket::Socket;
use super::tls::TlsConnector;
use super::{Credentials, Origin, Timeouts, TlsRoots, Version};

/// Makes connections: by way of a proxy where one is named for the origin, through TLS where that asks for it.
pub struct Connector {
    version: Version,
    timeouts: Timeouts,
    tls: TlsConnector,
    proxies: Proxies,
    #[cfg(feature = "http2")]
    http2: OnlyHttp2,
}

/// Servers that were asked in HTTP/1.1, and speak only HTTP/2.
#[cfg(feature = "http2")]
struct OnlyHttp2 {
    tls: TlsConnector,
    origins: Mutex<HashSet<Origin>>,
}

impl Connector {
    /// Connections of this version of HTTP, by no proxy.
    pub fn new(version: Version, timeouts: Timeouts, roots: TlsRoots, who: Credentials) -> Self {
        let protocol: &[u8] = match version {
            Version::Http1 => b"http/1.1",
            #[cfg(feature = "http2")]
            Version::Http2 => b"h2",
        };
        #[cfg(feature = "http2")]
        let http2 = OnlyHttp2 {
            tls: TlsConnector::new(roots.clone(), b"h2").showing(who.clone()),
            origins: Mutex::default(),
        };
        let tls = TlsConnector::new(roots, protocol).showing(who);
        Connector {
            version,
            timeouts,
            tls,
            proxies: Proxies::none(),
            #[cfg(feature = "http2")]
            http2,
        }
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
    pub fn connect(&self, origin: &Origin) -> Result<Connection> {
        match self.version {
            Version::Http1 if origin.tls => self.secure(origin),
            Version::Http1 => match self.proxies.of(origin)? {
                Some(proxy) if proxy.forwards() => {
                    let connection = Connection::plain(proxy.connect(&self.timeouts)?, self.timeouts);
                    Ok(connection.forwarded(proxy.forwarding(origin)))
                }
                _ => Ok(Connection::plain(self.socket(origin)?, self.timeouts)),
            },
            #[cfg(feature = "http2")]
            Version::Http2 => self.multiplexed(origin, &self.tls),
        }
    }

    /// HTTP/1.1 through TLS.
    #[cfg(not(feature = "http2"))]
    fn secure(&self, origin: &Origin) -> Result<Connection> {
        self.secure_http1(origin)
    }

    /// HTTP/1.1 through TLS, and HTTP/2 with a server that takes nothing else.
    #[cfg(feature = "http2")]
    fn secure(&self, origin: &Origin) -> Result<Connection> {
        let known = || self.http2.origins.lock().unwrap_or_else(PoisonError::into_inner);
        if known().contains(origin) {
            return self.multiplexed(origin, &self.http2.tls);
        }
        match self.secure_http1(origin) {
            Err(error) if TlsConnector::is_for_want_of_protocol(&error) => {
                let connection = self.multiplexed(origin, &self.http2.tls)?;
                tracing::debug!(%origin, "speaks only HTTP/2");
                known().insert(origin.clone());
                Ok(connection)
            }
            made => made,
        }
    }

    fn secure_http1(&self, origin: &Origin) -> Result<Connection> {
        // Credentials that cannot be used are an error before anybody is bothered.
        self.tls.config()?;
        let stream = self.tls.start(origin, self.socket(origin)?)?;
        Ok(Connection::tls(stream, self.timeouts))
    }

    #[cfg(feature = "http2")]
    fn multiplexed(&self, origin: &Origin, tls: &TlsConnector) -> Result<Connection> {
        let connection = Http2::connect(origin, self.socket(origin)?, &self.timeouts, tls)?;
        Ok(Connection::multiplexed(connection, self.timeouts))
    }

    /// The peer is the origin, no matter what is between.
    fn socket(&self, origin: &Origin) -> Result<Socket> {
        match self.proxies.of(origin)? {
            Some(proxy) => proxy.tunnel(origin, &self.timeouts),
            None => Socket::connect(origin, &self.timeouts),
        }
    }
}
