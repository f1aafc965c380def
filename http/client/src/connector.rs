//! Opens connections to an origin (scheme, host and port).

#[cfg(feature = "http2")]
use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
#[cfg(feature = "http2")]
use std::sync::Mutex;
#[cfg(feature = "http2")]
use std::sync::PoisonError;

use fordway_store::{Error, ErrorKind, Result};
#[cfg(feature = "http2")]
use fordway_sys::PerProcess;
use fordway_wire::uri;

use super::carrier::TcpOrTlsStream;
use super::connection::BufferedConnection;
#[cfg(feature = "http2")]
use super::http2::Http2Connection;
#[cfg(feature = "http3")]
use super::http3;
use super::proxy::ProxySettings;
use super::socket::TcpSocket;
use super::tls::{TlsConnector, TlsRoots};
use super::{HttpVersion, SessionCredentials, Timeouts};

/// Opens connections, through a proxy if one is configured for the origin, and with TLS if the origin requires it.
/// Clones share their knowledge of servers and certificates.
#[derive(Clone)]
pub struct Connector {
    version: HttpVersion,
    timeouts: Timeouts,
    tls: Arc<TlsConnector>,
    proxies: ProxySettings,
    /// Opens TLS sessions with proxies, which must never receive the client's certificate.
    proxy_tls: Arc<TlsConnector>,
    #[cfg(feature = "http2")]
    http2: Arc<Http2OnlyOrigins>,
}

/// Servers known to support only HTTP/2, because an attempt with HTTP/1.1 failed.
#[cfg(feature = "http2")]
struct Http2OnlyOrigins {
    tls: TlsConnector,
    origins: PerProcess<Mutex<HashSet<Origin>>>,
}

impl Connector {
    /// Creates a connector for this HTTP version, without a proxy.
    pub fn new(version: HttpVersion, timeouts: Timeouts, roots: TlsRoots, who: SessionCredentials) -> Self {
        let protocol: &[u8] = match version {
            HttpVersion::Http1 => b"http/1.1",
            #[cfg(feature = "http2")]
            HttpVersion::Http2 => b"h2",
            #[cfg(feature = "http3")]
            HttpVersion::Http3 => b"h3",
        };
        #[cfg(feature = "http2")]
        let http2 = Http2OnlyOrigins {
            tls: TlsConnector::new(roots.clone(), b"h2").showing(who.clone()),
            origins: PerProcess::default(),
        };
        let proxy_tls = TlsConnector::new(roots.clone(), b"http/1.1");
        let tls = TlsConnector::new(roots, protocol).showing(who);
        Connector {
            version,
            timeouts,
            tls: Arc::new(tls),
            proxies: ProxySettings::none(),
            proxy_tls: Arc::new(proxy_tls),
            #[cfg(feature = "http2")]
            http2: Arc::new(http2),
        }
    }

    /// Returns a connector that differs only in its timeouts.
    pub(super) fn with_timeouts(&self, timeouts: Timeouts) -> Self {
        Connector { timeouts, ..self.clone() }
    }

    /// Returns the timeouts of connections.
    pub(super) fn timeouts(&self) -> Timeouts {
        self.timeouts
    }

    /// Uses these proxies for connections.
    pub(super) fn through(self, proxies: ProxySettings) -> Self {
        Connector { proxies, ..self }
    }

    /// Returns the proxy settings in use.
    pub(super) fn proxies(&self) -> &ProxySettings {
        &self.proxies
    }

    /// Opens a connection. Errors: `Unavailable`, `Timeout`, `InvalidArgument`; `BadResponse` if the server does not
    /// support HTTP/2; `AccessDenied` if a proxy refuses.
    pub fn connect(&self, origin: &Origin) -> Result<BufferedConnection> {
        match self.version {
            HttpVersion::Http1 if origin.tls => self.secure(origin),
            HttpVersion::Http1 => match self.proxies.of(origin)? {
                Some(proxy) if proxy.forwards() => {
                    let carrier = proxy.connect(&self.timeouts, &self.proxy_tls)?;
                    let connection = BufferedConnection::on(carrier, self.timeouts);
                    Ok(connection.forwarded(proxy.forwarding(origin)))
                }
                _ => Ok(BufferedConnection::on(self.carrier(origin)?, self.timeouts)),
            },
            #[cfg(feature = "http2")]
            HttpVersion::Http2 => self.multiplexed(origin, &self.tls),
            #[cfg(feature = "http3")]
            HttpVersion::Http3 => self.over_quic(origin),
        }
    }

    /// Opens an HTTP/3 connection. Errors: `InvalidArgument` if the origin has a proxy, because proxies do not carry
    /// QUIC.
    #[cfg(feature = "http3")]
    fn over_quic(&self, origin: &Origin) -> Result<BufferedConnection> {
        if self.proxies.of(origin)?.is_some() {
            let detail = format!(
                "HTTP/3 does not go through a proxy; use HTTP 1.1 or 2 for {origin} (FORDWAY_HTTP_VERSION), or add it to \
                 NO_PROXY"
            );
            return Err(Error::new(ErrorKind::InvalidArgument, detail));
        }
        let socket = http3::connect(origin, &self.timeouts, &self.tls)?;
        Ok(BufferedConnection::plain(socket, self.timeouts))
    }

    /// Opens an HTTP/1.1 connection over TLS.
    #[cfg(not(feature = "http2"))]
    fn secure(&self, origin: &Origin) -> Result<BufferedConnection> {
        self.secure_http1(origin)
    }

    /// Opens an HTTP/1.1 connection over TLS, or an HTTP/2 connection if the server supports only HTTP/2.
    #[cfg(feature = "http2")]
    fn secure(&self, origin: &Origin) -> Result<BufferedConnection> {
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

    fn secure_http1(&self, origin: &Origin) -> Result<BufferedConnection> {
        // Fail on unusable credentials before any connection is opened.
        self.tls.config()?;
        let stream = self.tls.start(origin, self.carrier(origin)?)?;
        Ok(BufferedConnection::tls(stream, self.timeouts))
    }

    #[cfg(feature = "http2")]
    fn multiplexed(&self, origin: &Origin, tls: &TlsConnector) -> Result<BufferedConnection> {
        let connection = Http2Connection::connect(origin, self.carrier(origin)?, &self.timeouts, tls)?;
        Ok(BufferedConnection::multiplexed(connection, self.timeouts))
    }

    /// Opens a connection whose peer is the origin, directly or through a proxy tunnel.
    fn carrier(&self, origin: &Origin) -> Result<TcpOrTlsStream> {
        match self.proxies.of(origin)? {
            Some(proxy) => proxy.tunnel(origin, &self.timeouts, &self.proxy_tls),
            None => TcpSocket::connect(origin, &self.timeouts).map(TcpOrTlsStream::Tcp),
        }
    }
}

/// Scheme, host and port of a server. Connections to the same origin are interchangeable.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Origin {
    /// Whether the scheme is `https`.
    pub tls: bool,
    /// A host name or an address. IPv6 addresses have no brackets.
    pub host: String,
    /// The port, 1 to 65,535.
    pub port: u16,
}

impl Origin {
    /// Splits `http(s)://host[:port][/path]` into origin and path. The path is empty, or begins with `/` and does not
    /// end with `/`. Errors: `InvalidArgument`.
    pub fn parse(url: &str) -> Result<(Self, String)> {
        let refused = |why: &str| {
            let url = uri::without_secrets(url);
            let detail = format!("the endpoint {url:?} {why}; write it as http(s)://host[:port]");
            Error::new(ErrorKind::InvalidArgument, detail)
        };
        let (scheme, rest) = url.split_once("://").ok_or_else(|| refused("has no scheme"))?;
        let tls = match scheme.to_ascii_lowercase().as_str() {
            "http" => false,
            "https" => true,
            _ => return Err(refused("is neither http nor https")),
        };
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        if authority.contains(['@', '?', '#']) || path.contains(['?', '#']) {
            return Err(refused("has a user, query or fragment"));
        }
        let (host, port) = split_port(authority).ok_or_else(|| refused("has no valid host and port"))?;
        let legal = |b: u8| b.is_ascii_alphanumeric() || b"-._:%".contains(&b);
        if host.is_empty() || !host.bytes().all(legal) {
            return Err(refused("has no valid host"));
        }
        let port = port.unwrap_or(if tls { 443 } else { 80 });
        let host = host.to_ascii_lowercase();
        Ok((Origin { tls, host, port }, path.trim_end_matches('/').to_owned()))
    }

    /// Returns the origin at `label.host`, with the same scheme and port.
    pub fn subdomain(&self, label: &str) -> Self {
        Origin { host: format!("{label}.{}", self.host), ..self.clone() }
    }

    /// Returns the value of the `Host` header, without the port if it is the scheme's default.
    pub fn authority(&self) -> String {
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        match (self.tls, self.port) {
            (true, 443) | (false, 80) => host,
            (_, port) => format!("{host}:{port}"),
        }
    }

    /// Returns whether the host is an IP address or `localhost`, neither of which has subdomains.
    pub fn is_numeric_or_local(&self) -> bool {
        self.host == "localhost" || self.host.parse::<std::net::IpAddr>().is_ok()
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", if self.tls { "https" } else { "http" }, self.authority())
    }
}

fn split_port(authority: &str) -> Option<(&str, Option<u16>)> {
    let (host, rest) = match authority.strip_prefix('[') {
        Some(bracketed) => bracketed.split_once(']')?,
        None => authority.split_at(authority.find(':').unwrap_or(authority.len())),
    };
    match rest.strip_prefix(':') {
        None if rest.is_empty() => Some((host, None)),
        None => None,
        Some(port) => port.parse().ok().filter(|port| *port != 0).map(|port| (host, Some(port))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(url: &str) -> Option<(String, String)> {
        Origin::parse(url).ok().map(|(origin, path)| (origin.to_string(), path))
    }

    #[test]
    fn errors_do_not_show_passwords() {
        let error = Origin::parse("http://user:SECRET@host/a").unwrap_err();
        assert!(error.detail().contains("\"http://***@host/a\""), "{error}");
    }

    #[test]
    fn parses_what_people_write() {
        let pair = |a: &str, b: &str| Some((a.to_owned(), b.to_owned()));
        assert_eq!(shown("http://127.0.0.1:9000/"), pair("http://127.0.0.1:9000", ""));
        assert_eq!(shown("HTTPS://S3.Example.org"), pair("https://s3.example.org", ""));
        assert_eq!(shown("http://[::1]:9000/base/"), pair("http://[::1]:9000", "/base"));
        assert_eq!(shown("https://h:443"), pair("https://h", ""));
        for bad in ["", "host", "ftp://h", "http://", "http://h:x", "http://h:0", "http://a@h", "http://h h"]
        {
            assert_eq!(Origin::parse(bad).unwrap_err().kind(), ErrorKind::InvalidArgument, "{bad}");
        }
    }
}
