//! Finds and uses proxies. The environment variables that curl also reads determine which proxy a request uses. The
//! `no_proxy` variable lists hosts that are accessed without a proxy. RFC 9110 sections 7.6 and 9.3.6 and RFC 9112
//! section 3.2 define how a request is sent to a proxy.
//!
//! A request to an `http` origin is forwarded: its request line contains the absolute URL. An `https` origin is reached
//! through a tunnel, whose content the proxy cannot see. A SOCKS proxy creates tunnels for both kinds of origin. The
//! connection to an HTTP proxy may itself be encrypted. The proxy's credentials are sent only to the proxy: in
//! `Proxy-Authorization` of a forwarded request, or in the messages that open a tunnel.

mod no_proxy;
mod tunnel;

use std::fmt;
use std::io::{self, Read, Write};
use std::net::ToSocketAddrs as _;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use fordway_store::{Error, ErrorKind, Result};
use fordway_wire::uri;

use super::carrier::TcpOrTlsStream;
use super::socket::TcpSocket;
use super::tls::{TlsConnector, TlsRoots};
use super::{Origin, Timeouts, USER_AGENT};
use no_proxy::NoProxyList;

/// The default port of a proxy that is not reached over TLS, as in curl.
const PORT: u16 = 1080;

/// The proxies for all origins. By default, there are no proxies.
#[derive(Clone, Debug, Default)]
pub struct ProxySettings {
    http: Option<ProxyFromEnv>,
    https: Option<ProxyFromEnv>,
    except: NoProxyList,
}

/// The proxy in a variable, or the reason why it cannot be used. Any caller that needs the proxy gets the
/// reason as an error.
type ProxyFromEnv = Arc<Result<Proxy, String>>;

/// A proxy, and the credentials for it.
#[derive(PartialEq, Eq)]
pub(super) struct Proxy {
    kind: ProxyKind,
    /// The proxy's address.
    origin: Origin,
    /// User and password.
    login: Option<(String, String)>,
}

/// The protocol of a proxy.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ProxyKind {
    /// Plain HTTP.
    Http,
    /// HTTP in a TLS session with the proxy.
    Https,
    /// SOCKS 5; the client resolves host names.
    Socks,
    /// SOCKS 5; the proxy resolves host names.
    SocksByName,
}

impl ProxyKind {
    const ALL: [(&str, ProxyKind); 4] = [
        ("http", ProxyKind::Http),
        ("https", ProxyKind::Https),
        ("socks5", ProxyKind::Socks),
        ("socks5h", ProxyKind::SocksByName),
    ];

    fn scheme(self) -> &'static str {
        ProxyKind::ALL.iter().find(|(_, kind)| *kind == self).map_or("", |(scheme, _)| scheme)
    }
}

impl ProxySettings {
    /// Returns settings with no proxies.
    pub fn none() -> Self {
        ProxySettings::default()
    }

    /// Returns settings with one proxy for all origins. `url` has the same form as the value of `http_proxy`. Errors:
    /// `InvalidArgument`; the message states the reason, but not the password.
    pub fn only(url: &str) -> Result<Self> {
        let proxy = Proxy::parse(url)
            .map_err(|why| Error::new(ErrorKind::InvalidArgument, format!("the proxy {why}")))?;
        let proxy: ProxyFromEnv = Arc::new(Ok(proxy));
        Ok(ProxySettings { http: Some(proxy.clone()), https: Some(proxy), except: NoProxyList::default() })
    }

    /// Returns the proxies that the environment specifies: `http_proxy` for `http` origins, `https_proxy` or
    /// `HTTPS_PROXY` for `https` origins, and otherwise `all_proxy` or `ALL_PROXY`. Hosts in `no_proxy` or `NO_PROXY`
    /// have no proxy. `HTTP_PROXY` is ignored, because a client of a CGI program can set it with a `Proxy` header
    /// (CVE-2016-5385).
    pub fn discover() -> Self {
        ProxySettings::resolve(&|name| std::env::var(name).ok())
    }

    /// Like [`ProxySettings::discover`], but calls `variable` for the value of each environment variable.
    pub fn resolve(variable: &dyn Fn(&str) -> Option<String>) -> Self {
        let get = |name: &&str| variable(name).filter(|value| !value.is_empty());
        let first = |names: &[&'static str]| {
            names.iter().find_map(|name| {
                let named = Proxy::parse(&get(name)?).map_err(|why| format!("{name} {why}"));
                Some(Arc::new(named))
            })
        };
        ProxySettings {
            http: first(&["http_proxy", "all_proxy", "ALL_PROXY"]),
            https: first(&["https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"]),
            except: NoProxyList::parse(&["no_proxy", "NO_PROXY"].iter().find_map(get).unwrap_or_default()),
        }
    }

    /// Returns the proxy for `origin`. Errors: `InvalidArgument` if the proxy's URL is not valid.
    pub(super) fn of(&self, origin: &Origin) -> Result<Option<&Proxy>> {
        let named = if origin.tls { &self.https } else { &self.http };
        let Some(named) = named else { return Ok(None) };
        if self.except.has(origin) {
            return Ok(None);
        }
        named.as_ref().as_ref().map(Some).map_err(|why| Error::new(ErrorKind::InvalidArgument, why.clone()))
    }

    /// Opens a tunnel to `origin` through its proxy. Returns `None` if the origin has no proxy. The proxy itself is
    /// trusted according to `roots` if it requires TLS. Errors: `InvalidArgument` if the proxy's URL is not valid;
    /// `Unavailable`, `Timeout`; `AccessDenied` if the proxy refuses; `BadResponse`. Cost: a connection to the proxy,
    /// and further round trips; connecting and waiting for the proxy's response take at most `limit` each.
    pub fn tunnel(&self, origin: &Origin, limit: Duration, roots: &TlsRoots) -> Result<Option<ProxyTunnel>> {
        let Some(proxy) = self.of(origin)? else { return Ok(None) };
        let timeouts = Timeouts::default().within(limit);
        let tls = TlsConnector::new(roots.clone(), b"http/1.1");
        proxy.tunnel(origin, &timeouts, &tls).map(|carrier| Some(ProxyTunnel(carrier)))
    }

    /// Returns the name of the proxy, which identifies the route. An unusable proxy counts as no proxy.
    pub(super) fn name_of(&self, origin: &Origin) -> Option<String> {
        self.of(origin).ok().flatten().map(Proxy::to_string)
    }
}

impl Proxy {
    /// Parses `[SCHEME://][user[:password]@]host[:port][/]`. Errors: the reason why the value is invalid, without the
    /// password.
    fn parse(url: &str) -> Result<Self, String> {
        let (scheme, rest) = url.split_once("://").unwrap_or(("http", url));
        let kind = Self::kind(&scheme.to_ascii_lowercase())?;
        let rest = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let (login, place) =
            rest.rsplit_once('@').map_or((None, rest), |(login, place)| (Some(login), place));
        let http = if kind == ProxyKind::Https { "https" } else { "http" };
        let (mut origin, _) = Origin::parse(&format!("{http}://{place}"))
            .map_err(|_| format!("has no valid host and port; write {}://HOST:PORT", kind.scheme()))?;
        let has_port = place.rsplit_once(':').is_some_and(|(_, port)| !port.contains(']'));
        if !has_port && kind != ProxyKind::Https {
            origin.port = PORT;
        }
        let login = login.map(|login| {
            let (user, password) = login.split_once(':').unwrap_or((login, ""));
            let decoded = |text: &str| uri::decode(text).unwrap_or_else(|| text.to_owned());
            (decoded(user), decoded(password))
        });
        Ok(Proxy { kind, origin, login })
    }

    fn kind(scheme: &str) -> Result<ProxyKind, String> {
        let found = ProxyKind::ALL.into_iter().find(|(name, _)| *name == scheme);
        found.map(|(_, kind)| kind).ok_or_else(|| match scheme {
            "socks" | "socks4" | "socks4a" => {
                format!("names a proxy with {scheme:?}; of SOCKS, only version 5 is supported: socks5h://HOST:PORT")
            }
            other => format!(
                "names a proxy with {other:?}; only http://, https://, socks5:// and socks5h://HOST:PORT are supported"
            ),
        })
    }

    /// Returns whether the proxy forwards requests for `http` origins instead of tunnelling them.
    pub(super) fn forwards(&self) -> bool {
        matches!(self.kind, ProxyKind::Http | ProxyKind::Https)
    }

    /// Opens a connection to the proxy, for requests to `http` origins. `tls` is for a proxy that itself requires TLS.
    /// Errors: `Unavailable`, `Timeout`; `BadResponse` if the proxy's certificate is not trusted.
    pub(super) fn connect(&self, timeouts: &Timeouts, tls: &TlsConnector) -> Result<TcpOrTlsStream> {
        let connected = self.socket(timeouts).map(TcpOrTlsStream::Tcp)?;
        match self.kind {
            ProxyKind::Https => {
                let stream = tls.start(&self.origin, connected).map_err(|error| self.unreachable(&error))?;
                Ok(TcpOrTlsStream::Tls(Box::new(stream)))
            }
            _ => Ok(connected),
        }
    }

    fn socket(&self, timeouts: &Timeouts) -> Result<TcpSocket> {
        TcpSocket::connect(&self.origin, timeouts).map_err(|error| self.unreachable(&error))
    }

    fn unreachable(&self, error: &Error) -> Error {
        let detail = format!("no connection to the proxy {self}: {}", error.detail());
        let told = Error::new(error.kind(), detail);
        match std::error::Error::source(error) {
            Some(cause) => told.caused_by(cause.to_string()),
            None => told,
        }
    }

    /// Opens a connection to `origin` through the proxy. Errors: `Unavailable`, `Timeout`; `AccessDenied` if the proxy
    /// refuses; `BadResponse`. Cost: a connection to the proxy, and one further round trip (two with SOCKS, three with
    /// SOCKS and a password).
    pub(super) fn tunnel(
        &self,
        origin: &Origin,
        timeouts: &Timeouts,
        tls: &TlsConnector,
    ) -> Result<TcpOrTlsStream> {
        let named = |error: Error| Error::new(error.kind(), format!("the proxy {self}: {}", error.detail()));
        if !self.forwards() {
            let conversation = tunnel::SocksHandshake::new(self.login.clone(), self.place(origin)?)?;
            let mut socket = self.socket(timeouts)?;
            let opened = tunnel::open_socks(&mut socket, conversation, timeouts.first_byte);
            return opened.map(|()| TcpOrTlsStream::Tcp(socket)).map_err(|error| {
                let error = named(error);
                Error::new(error.kind(), format!("{origin} was not reached: {}", error.detail()))
            });
        }
        let mut carrier = self.connect(timeouts, tls)?;
        let request = self.connect_request(origin);
        let status = tunnel::open(&mut carrier, &request, timeouts.first_byte).map_err(named)?;
        match status {
            200..=299 => Ok(carrier),
            _ => Err(self.refusal(status, origin)),
        }
    }

    /// Returns the destination to send to a SOCKS proxy. Errors: `Unavailable` for a name that cannot be resolved.
    fn place(&self, origin: &Origin) -> Result<tunnel::TunnelDestination> {
        if self.kind == ProxyKind::SocksByName && origin.host.parse::<std::net::IpAddr>().is_err() {
            return Ok(tunnel::TunnelDestination::Name(origin.host.clone(), origin.port));
        }
        let unknown = || {
            let detail =
                format!("cannot find the address of {origin}; with socks5h:// the proxy resolves the name");
            Error::new(ErrorKind::Unavailable, detail)
        };
        let found = (origin.host.as_str(), origin.port).to_socket_addrs();
        let address = found.map_err(|error| unknown().caused_by(error))?.next();
        address.map(tunnel::TunnelDestination::Address).ok_or_else(unknown)
    }

    fn connect_request(&self, origin: &Origin) -> String {
        let host = if origin.host.contains(':') { format!("[{}]", origin.host) } else { origin.host.clone() };
        // The port is always included, because CONNECT has no default port.
        let place = format!("{host}:{}", origin.port);
        let login = self.authorization_line();
        format!("CONNECT {place} HTTP/1.1\r\nHost: {place}\r\nUser-Agent: {USER_AGENT}\r\n{login}\r\n")
    }

    fn authorization_line(&self) -> String {
        self.login.as_ref().map_or_else(String::new, |(user, password)| {
            format!("Proxy-Authorization: Basic {}\r\n", STANDARD.encode(format!("{user}:{password}")))
        })
    }

    /// Returns the rewriter for requests through this proxy to `origin`, which does not use TLS.
    pub(super) fn forwarding(&self, origin: &Origin) -> ProxyRequestRewriter {
        ProxyRequestRewriter::new(origin, self.authorization_line(), self.to_string())
    }

    /// Returns the error for the proxy's refusal to connect to `origin`.
    fn refusal(&self, status: u16, origin: &Origin) -> Error {
        let (kind, why) = match status {
            407 => return wants_login(&self.to_string(), self.login.is_some()),
            408 | 429 | 500 | 502..=504 => (ErrorKind::Unavailable, "cannot connect to it now"),
            _ => (
                ErrorKind::AccessDenied,
                "does not connect to it; add the host to no_proxy to bypass the proxy",
            ),
        };
        Error::new(kind, format!("{origin} was not reached: the proxy {self} {why} (HTTP status {status})"))
    }
}

/// Shows the proxy without its credentials.
impl fmt::Display for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.kind.scheme(), self.origin.authority())
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Proxy({self})")
    }
}

/// A connection to an origin through a proxy. Neither TLS nor HTTP with the origin has begun.
pub struct ProxyTunnel(TcpOrTlsStream);

impl ProxyTunnel {
    /// Sets the timeout for reads. Errors: the error of the system call. Cost: a system call if the value changes.
    pub fn set_read_timeout(&mut self, timeout: Duration) -> io::Result<()> {
        self.0.tcp_mut().set_read_timeout(timeout)
    }
}

impl Read for ProxyTunnel {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        self.0.read(room)
    }
}

impl Write for ProxyTunnel {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.0.write(data)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Rewrites requests for a proxy that forwards them.
pub(crate) struct ProxyRequestRewriter {
    /// The scheme, host and port to insert before the path.
    target: String,
    /// The header line with the proxy's credentials, or an empty string.
    login: String,
    proxy: String,
}

impl ProxyRequestRewriter {
    /// Creates a rewriter for requests to `origin` through the proxy with this name; `login` is a header line, or
    /// empty.
    fn new(origin: &Origin, login: String, proxy: String) -> Self {
        ProxyRequestRewriter { target: origin.to_string(), login, proxy }
    }

    /// Rewrites the request whose head begins at `start` into absolute form (RFC 9112 section 3.2.2).
    pub(crate) fn rewrite(&self, heads: &mut Vec<u8>, start: usize) {
        let position =
            |heads: &[u8], byte| heads[start..].iter().position(|b| *b == byte).map(|at| start + at + 1);
        if let Some(after_line) = position(heads, b'\n') {
            heads.splice(after_line..after_line, self.login.bytes());
        }
        if let Some(path) = position(heads, b' ') {
            heads.splice(path..path, self.target.bytes());
        }
    }

    /// Returns the error for a response with status 407, which always comes from the proxy.
    pub(crate) fn wants_login(&self) -> Error {
        wants_login(&self.proxy, !self.login.is_empty())
    }
}

/// Returns the error for a proxy that requires credentials or, if `has_said` is set, has rejected the credentials that
/// it received.
fn wants_login(proxy: &str, has_said: bool) -> Error {
    let why = if has_said { "a different user and password from those" } else { "a user and password" };
    let scheme = proxy.split("://").next().unwrap_or("http");
    let detail = format!(
        "the proxy {proxy} requires {why} in its URL: {scheme}://USER:PASSWORD@HOST:PORT (HTTP status 407)"
    );
    Error::new(ErrorKind::AccessDenied, detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proxies(variables: &[(&str, &str)]) -> ProxySettings {
        ProxySettings::resolve(&|name| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    fn chosen(variables: &[(&str, &str)], url: &str) -> Option<String> {
        proxies(variables).of(&Origin::parse(url).unwrap().0).unwrap().map(Proxy::to_string)
    }

    #[test]
    fn variables_are_read_as_by_curl() {
        let all = [
            ("http_proxy", "http://a:1"),
            ("HTTP_PROXY", "http://cgi:1"),
            ("HTTPS_PROXY", "b:2"),
            ("https_proxy", ""),
            ("ALL_PROXY", "HTTP://C"),
        ];
        assert_eq!(chosen(&all, "http://h").as_deref(), Some("http://a:1"));
        assert_eq!(chosen(&all, "https://h").as_deref(), Some("http://b:2"));
        assert_eq!(chosen(&all[1..2], "http://h"), None, "HTTP_PROXY is another one's word");
        for socks in ["socks5://c", "SOCKS5H://c:9"] {
            let shown = if socks.ends_with('9') { "socks5h://c:9" } else { "socks5://c:1080" };
            assert_eq!(chosen(&[("ALL_PROXY", socks)], "http://h").as_deref(), Some(shown));
        }
        for (tls, shown) in [("https://c", "https://c"), ("HTTPS://c:8443", "https://c:8443")] {
            assert_eq!(chosen(&[("all_proxy", tls)], "http://h").as_deref(), Some(shown));
        }
        for url in ["http://h", "https://h"] {
            assert_eq!(chosen(&all[4..], url).as_deref(), Some("http://c:1080"));
            assert_eq!(chosen(&[("all_proxy", "[::1]/"), all[4]], url).as_deref(), Some("http://[::1]:1080"));
            assert_eq!(chosen(&[all[4], ("NO_PROXY", "x, h")], url), None);
            assert_eq!(
                chosen(&[all[4], ("NO_PROXY", "h"), ("no_proxy", "x")], url).as_deref(),
                Some("http://c:1080")
            );
        }
    }

    #[test]
    fn mistakes_are_told_when_they_matter_and_without_the_password() {
        for (value, why) in [
            ("socks4://me:secret@h:1", "only version 5"),
            ("ftp://me:secret@h:1", "only http://"),
            ("socks5://me:secret@h:x", "write socks5://HOST:PORT"),
            ("https://me:secret@h:x", "write https://HOST:PORT"),
            ("http://me:secret@h:x", "no valid host and port"),
            ("http://me:secret@", "no valid host and port"),
        ] {
            let wrong = proxies(&[("https_proxy", value)]);
            assert!(wrong.of(&Origin::parse("http://h").unwrap().0).unwrap().is_none());
            let error = wrong.of(&Origin::parse("https://h").unwrap().0).unwrap_err();
            let text = error.to_string();
            assert!(
                text.contains("https_proxy ") && text.contains(why) && !text.contains("secret"),
                "{text}"
            );
        }
    }

    #[test]
    fn logins_are_decoded_and_never_shown() {
        let proxy = Proxy::parse("http://me:p%40ss:word@h:3128/").unwrap();
        let expected = format!("Proxy-Authorization: Basic {}\r\n", STANDARD.encode("me:p@ss:word"));
        assert_eq!(proxy.authorization_line(), expected);
        assert_eq!(format!("{proxy} {proxy:?}"), "http://h:3128 Proxy(http://h:3128)");
        assert!(!format!("{:?}", proxies(&[("http_proxy", "http://u:secret@h")])).contains("secret"));
    }

    #[test]
    fn tunnels_are_asked_for_by_host_and_port() {
        let proxy = Proxy::parse("p").unwrap();
        for (url, line) in
            [("https://h", "CONNECT h:443 HTTP/1.1"), ("https://[::1]:9", "CONNECT [::1]:9 HTTP/1.1")]
        {
            let request = proxy.connect_request(&Origin::parse(url).unwrap().0);
            assert_eq!(request.lines().next(), Some(line));
            assert!(request.ends_with("\r\n\r\n") && !request.contains("Authorization"));
        }
    }

    #[test]
    fn requests_are_written_in_absolute_form() {
        let (origin, _) = Origin::parse("http://h:8080").unwrap();
        let forwarding = ProxyRequestRewriter::new(
            &origin,
            "Proxy-Authorization: Basic bWU6\r\n".to_owned(),
            String::new(),
        );
        let mut heads = b"before".to_vec();
        heads.extend_from_slice(b"GET /a?b HTTP/1.1\r\nHost: h:8080\r\n\r\n");
        forwarding.rewrite(&mut heads, 6);
        let expected =
            "beforeGET http://h:8080/a?b HTTP/1.1\r\nProxy-Authorization: Basic bWU6\r\nHost: h:8080\r\n\r\n";
        assert_eq!(String::from_utf8(heads).unwrap(), expected);
    }
}
