//! Requests that the gateway itself sends: to OIDC providers and to webhooks. The gateway connects only to hosts that
//! the administrator has configured. The gateway connects to addresses in private networks or on this machine only if
//! the administrator permits them. Without this restriction, anyone who controls a name in the DNS could make the
//! gateway send requests to services that trust the gateway.
//!
//! If a host has a proxy, the gateway connects only to the proxy, which the administrator has configured. The proxy
//! resolves the host's name, so the proxy alone chooses the address. The TLS connection passes through the proxy to the
//! host. The proxy sees neither the request nor the response, and no other server can impersonate the host.

use std::borrow::Cow;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, ToSocketAddrs, UdpSocket};
use std::time::{Duration, Instant};

use fordway_http::parts::{TlsConnector, connect_any};
use fordway_http::{Origin, ProxySettings, ProxyTunnel, TlsRoots};
use rustls::{ClientConnection, StreamOwned};

use crate::http1::{ChunkDecoder, ChunkStep};

/// The maximum size of a document in bytes.
const DOCUMENT_BYTES_MAX: usize = 1024 * 1024;
/// The maximum size of a response's head in bytes.
const HEAD_BYTES_MAX: usize = 32 * 1024;
/// The maximum number of headers of a response.
const HEADERS_MAX: usize = 100;

/// The rules for a request that the gateway sends.
pub(crate) struct OutgoingRules {
    pub(crate) roots: TlsRoots,
    pub(crate) allows_private: bool,
    /// The name of the setting that sets `allows_private`.
    pub(crate) setting: &'static str,
    pub(crate) proxies: ProxySettings,
    pub(crate) deadline: Instant,
}

/// Checks a URL to which the gateway is configured to send requests. Errors: the reason why the URL is not permitted.
pub(crate) fn check_url(url: &str, allows_private: bool, setting: &str) -> Result<(), String> {
    let origin = origin_of(url)?;
    let is_here = origin.host == "localhost"
        || origin.host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
    match origin.tls || (is_here && allows_private) {
        true => Ok(()),
        false => Err(format!("must be https; http is only for this machine, with {setting}")),
    }
}

/// The error for a URL that has no valid origin. The error does not contain the URL, because the URL may be a secret.
const NO_URL: &str = "is not http(s)://host[:port][/path][?query], without a user and a fragment; correct it";

/// Returns the origin of a URL, which may have a query but no fragment. Errors: the reason, without the URL.
fn origin_of(url: &str) -> Result<Origin, String> {
    let (base, query) = url.split_once('?').unwrap_or((url, ""));
    if query.contains('#') {
        return Err("has a fragment; remove it".to_owned());
    }
    let (origin, _) = Origin::parse(base).map_err(|_| NO_URL.to_owned())?;
    Ok(origin)
}

/// Returns the path and the query of a URL.
fn target_of(url: &str) -> Cow<'_, str> {
    let (_, rest) = url.split_once("://").unwrap_or_default();
    match rest.find(['/', '?']).map_or("", |at| &rest[at..]) {
        "" => "/".into(),
        query if query.starts_with('?') => format!("/{query}").into(),
        target => target.into(),
    }
}

/// Fetches a document. Follows no redirects. Errors: the reason why there is no document.
pub(crate) fn fetch(url: &str, rules: &OutgoingRules) -> Result<Vec<u8>, String> {
    let response = request(url, "GET", "Accept: application/json\r\n", b"", rules);
    let response = response.map_err(|OutgoingFailure { why, .. }| format!("{url}: {why}"))?;
    match response.status {
        200 => Ok(response.body),
        status => Err(format!("{url}: the status is {status}")),
    }
}

/// Sends a JSON document, and returns the status of the response. The body of the response is not read. `token` is a
/// bearer token. Follows no redirects. Errors: the messages contain only the origin of the URL, because the path and
/// the query may be secrets.
pub(crate) fn post(
    url: &str,
    token: Option<&str>,
    document: &[u8],
    rules: &OutgoingRules,
) -> Result<u16, OutgoingFailure> {
    let bytes = document.len();
    let mut headers = format!("Content-Type: application/json\r\nContent-Length: {bytes}\r\n");
    if let Some(token) = token {
        headers += &format!("Authorization: Bearer {token}\r\n");
    }
    let sent = request(url, "POST", &headers, document, rules).map(|response| response.status);
    sent.map_err(|failure| match origin_of(url) {
        Ok(origin) => OutgoingFailure { why: format!("{origin}: {}", failure.why), ..failure },
        Err(_) => failure,
    })
}

/// Sends a request. Errors: the reasons do not contain the URL.
fn request(
    url: &str,
    method: &str,
    headers: &str,
    body: &[u8],
    rules: &OutgoingRules,
) -> Result<PeerResponse, OutgoingFailure> {
    let failed = |why: String| OutgoingFailure { why, was_connected: false };
    let origin = origin_of(url).map_err(failed)?;
    let path = target_of(url);
    if !path.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(failed("the path has characters that a URL must encode".to_owned()));
    }
    let stream = connect(&origin, rules).map_err(failed)?;
    let (authority, agent) = (origin.authority(), fordway_http::USER_AGENT);
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: {authority}\r\nUser-Agent: {agent}\r\n{headers}Connection: close\r\n\r\n"
    );
    let message = [head.as_bytes(), body].concat();
    // For a POST, only the status matters, so the rest of the response need not arrive.
    let has_document = method == "GET";
    let exchanged = match origin.tls {
        false => exchange(stream, &message, has_document),
        true => {
            let tls = TlsConnector::new(rules.roots.clone(), b"http/1.1");
            let session = tls.config().and_then(|config| Ok((config, TlsConnector::name(&origin)?)));
            let (config, name) = session.map_err(|error| failed(error.detail().to_owned()))?;
            let session = ClientConnection::new(config, name).map_err(|error| failed(error.to_string()))?;
            exchange(StreamOwned::new(session, stream), &message, has_document)
        }
    };
    exchanged.map_err(|error| OutgoingFailure { was_connected: true, ..failed(error.to_string()) })
}

/// The reason why a request has no response.
#[derive(Debug)]
pub(crate) struct OutgoingFailure {
    pub(crate) why: String,
    /// Whether a connection was established. If so, the server may have received the request.
    pub(crate) was_connected: bool,
}

/// The response to a request.
struct PeerResponse {
    status: u16,
    /// The body, if the caller requested the body and the status is 200; otherwise empty.
    body: Vec<u8>,
}

/// A connection whose calls fail after the deadline, even if the server is still sending slowly.
struct DeadlineStream {
    route: Route,
    deadline: Instant,
}

/// The route to a host: a direct connection, or a tunnel through a proxy.
enum Route {
    Direct(TcpStream),
    Proxy(ProxyTunnel),
}

impl DeadlineStream {
    fn left(&self) -> io::Result<Duration> {
        left(self.deadline).ok_or_else(|| io::Error::new(io::ErrorKind::TimedOut, "no response in time"))
    }
}

impl Read for DeadlineStream {
    fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        let left = self.left()?;
        match &mut self.route {
            Route::Direct(stream) => {
                stream.set_read_timeout(Some(left))?;
                stream.read(target)
            }
            Route::Proxy(tunnel) => {
                tunnel.set_read_timeout(left)?;
                tunnel.read(target)
            }
        }
    }
}

impl Write for DeadlineStream {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let left = self.left()?;
        match &mut self.route {
            Route::Direct(stream) => {
                stream.set_write_timeout(Some(left))?;
                stream.write(data)
            }
            // The tunnel's own timeout for writes is at most the time that was left when the tunnel was opened.
            Route::Proxy(tunnel) => tunnel.write(data),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.route {
            Route::Direct(stream) => stream.flush(),
            Route::Proxy(tunnel) => tunnel.flush(),
        }
    }
}

fn left(deadline: Instant) -> Option<Duration> {
    deadline.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
}

/// Connects to the host, through its proxy if it has one. Errors: the reason why there is no connection.
fn connect(origin: &Origin, rules: &OutgoingRules) -> Result<DeadlineStream, String> {
    let left = left(rules.deadline).ok_or("no connection in time")?;
    let deadline = rules.deadline;
    // Without TLS, the host is always this machine. A proxy on another machine could not reach this machine at such an
    // address.
    if origin.tls {
        let is_internal = origin.host.parse().is_ok_and(is_internal) || origin.host == "localhost";
        if is_internal && !rules.allows_private {
            return Err(internal(rules));
        }
        let tunnel = rules.proxies.tunnel(origin, left, &rules.roots);
        let tunnel = tunnel.map_err(|error| error.detail().to_owned())?;
        if let Some(tunnel) = tunnel {
            return Ok(DeadlineStream { route: Route::Proxy(tunnel), deadline });
        }
    }
    let stream = connect_directly(origin, rules, left)?;
    Ok(DeadlineStream { route: Route::Direct(stream), deadline })
}

/// Returns the error for an address that is not public.
fn internal(rules: &OutgoingRules) -> String {
    format!("the address is private, or of this machine; {} permits it", rules.setting)
}

/// Connects to one of the host's permitted addresses. The host name is resolved only once, so only checked addresses
/// are used.
fn connect_directly(origin: &Origin, rules: &OutgoingRules, left: Duration) -> Result<TcpStream, String> {
    let found = (origin.host.as_str(), origin.port).to_socket_addrs();
    let found: Vec<SocketAddr> = found.map_err(|error| format!("no address: {error}"))?.collect();
    let permitted = found.into_iter().filter(|at| rules.allows_private || !is_internal(at.ip()));
    let permitted: Vec<SocketAddr> = permitted.collect();
    if permitted.is_empty() {
        return Err(internal(rules));
    }
    connect_any(permitted, left).map_err(|error| error.to_string())
}

/// Returns whether an address belongs to a private network or to this machine, or is not public for another reason.
fn is_internal(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) => is_internal_v4(address) || is_own(address.into()),
        IpAddr::V6(address) => is_internal_v6(address) || is_own(address.into()),
    }
}

/// Returns whether an address belongs to this machine. The check relies on the kernel, which uses such an address
/// itself as the source of a connection to it, regardless of `net.ipv4.ip_nonlocal_bind`. Nothing is sent. Cost: five
/// system calls.
fn is_own(address: IpAddr) -> bool {
    let unspecified: IpAddr = match address {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let source = UdpSocket::bind((unspecified, 0)).and_then(|socket| {
        socket.connect((address, 9))?;
        socket.local_addr()
    });
    source.is_ok_and(|source| source.ip() == address)
}

fn is_internal_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    match a {
        0 | 10 | 127 | 224.. => true,
        100 => (64..128).contains(&b),
        169 => b == 254,
        172 => (16..32).contains(&b),
        192 => b == 168 || (b == 0 && matches!(c, 0 | 2)),
        198 => matches!(b, 18 | 19) || (b == 51 && c == 100),
        203 => b == 0 && c == 113,
        _ => false,
    }
}

/// Returns whether an IPv6 address is not public. Only global unicast addresses (2000::/3) are public, except for
/// tunnels to IPv4 and addresses for documentation.
fn is_internal_v6(address: Ipv6Addr) -> bool {
    let [first, second, ..] = address.segments();
    match first {
        0x2001 => second < 0x0200 || second == 0x0db8,
        0x2002 | 0x3fff => true,
        0x2000..=0x3ffe => false,
        _ => true,
    }
}

/// Sends a request and returns the response. If `has_document` is set, also reads the body of a response with the
/// status 200. Errors: a response that is malformed or too large, and connection errors.
fn exchange(mut stream: impl Read + Write, request: &[u8], has_document: bool) -> io::Result<PeerResponse> {
    stream.write_all(request)?;
    stream.flush()?;
    let (head, received) = receive_head(&mut stream)?;
    let status = head.status;
    let body = match has_document && status == 200 {
        true => read_body(stream, received, head.framing?)?,
        false => Vec::new(),
    };
    Ok(PeerResponse { status, body })
}

/// Receives the head of the final response, and skips interim responses (1xx). Returns the head and the bytes received
/// after the head.
fn receive_head(stream: &mut impl Read) -> io::Result<(OutgoingResponseHead, Vec<u8>)> {
    let (mut received, mut start) = (Vec::new(), 0);
    loop {
        match OutgoingResponseHead::parse(&received[start..])? {
            // 101 is a final status, because it switches the connection to another protocol.
            Some(head) if matches!(head.status, 100 | 102..=199) => start += head.bytes,
            Some(head) => {
                received.drain(..start + head.bytes);
                return Ok((head, received));
            }
            None if received.len() > HEAD_BYTES_MAX || !receive(stream, &mut received)? => {
                return Err(io::Error::other("the response has no valid head"));
            }
            None => {}
        }
    }
}

/// Reads the rest of a body, whose first bytes are in `received`.
fn read_body(mut stream: impl Read, mut received: Vec<u8>, framing: Framing) -> io::Result<Vec<u8>> {
    match framing {
        Framing::Length(length) if length > DOCUMENT_BYTES_MAX as u64 => Err(too_large()),
        Framing::Length(length) => {
            while (received.len() as u64) < length {
                if !receive(&mut stream, &mut received)? {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
            }
            received.truncate(usize::try_from(length).unwrap_or(usize::MAX));
            Ok(received)
        }
        Framing::Chunked => read_chunks(stream, received),
        Framing::UntilClose => {
            while receive(&mut stream, &mut received)? {
                check_size(received.len())?;
            }
            check_size(received.len()).map(|()| received)
        }
    }
}

/// Returns the body of a response that consists of the bytes `response`.
#[cfg(feature = "fuzzing")]
pub(crate) fn body_of(response: &[u8]) -> Option<Vec<u8>> {
    struct Received<'r>(&'r [u8]);

    impl Read for Received<'_> {
        fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
            self.0.read(target)
        }
    }

    impl Write for Received<'_> {
        fn write(&mut self, data: &[u8]) -> io::Result<usize> {
            Ok(data.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    exchange(Received(response), b"", true).ok().map(|response| response.body)
}

fn read_chunks(mut stream: impl Read, mut received: Vec<u8>) -> io::Result<Vec<u8>> {
    let (mut decoder, mut document, mut at) = (ChunkDecoder::default(), Vec::new(), 0);
    loop {
        let step = decoder.step(&received[at..], usize::MAX);
        match step.map_err(|refusal| io::Error::other(refusal.why))? {
            ChunkStep::Skip(count) | ChunkStep::Trailer(count) => at += count,
            ChunkStep::Data(count) => {
                document.extend_from_slice(&received[at..at + count]);
                check_size(document.len())?;
                at += count;
            }
            ChunkStep::End => return Ok(document),
            ChunkStep::More => {
                received.drain(..at);
                at = 0;
                if !receive(&mut stream, &mut received)? {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
            }
        }
    }
}

/// Receives the next bytes. Returns false at the end of the connection.
fn receive(stream: &mut impl Read, received: &mut Vec<u8>) -> io::Result<bool> {
    let mut piece = [0; 8192];
    let count = stream.read(&mut piece)?;
    received.extend_from_slice(&piece[..count]);
    Ok(count > 0)
}

fn check_size(bytes: usize) -> io::Result<()> {
    if bytes > DOCUMENT_BYTES_MAX { Err(too_large()) } else { Ok(()) }
}

fn too_large() -> io::Error {
    io::Error::other("the document is larger than 1 MiB")
}

/// The way in which the end of a body is found.
#[derive(Debug, PartialEq, Eq)]
enum Framing {
    Length(u64),
    Chunked,
    UntilClose,
}

struct OutgoingResponseHead {
    status: u16,
    bytes: usize,
    /// The framing of the body. An error affects only callers that read the body.
    framing: io::Result<Framing>,
}

impl OutgoingResponseHead {
    /// Parses a head. Returns `None` if the head is incomplete. Errors: the head is malformed.
    fn parse(received: &[u8]) -> io::Result<Option<Self>> {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut response = httparse::Response::new(&mut headers);
        let parsed = response.parse(received).map_err(io::Error::other)?;
        let httparse::Status::Complete(bytes) = parsed else { return Ok(None) };
        let framing = Framing::of(response.headers);
        Ok(Some(OutgoingResponseHead { status: response.code.unwrap_or(0), bytes, framing }))
    }
}

impl Framing {
    /// Returns the framing that the headers of a response specify. Errors: the framing is not supported.
    fn of(headers: &[httparse::Header]) -> io::Result<Self> {
        let mut framing = Framing::UntilClose;
        for header in headers {
            let value = std::str::from_utf8(header.value).unwrap_or_default().trim();
            if header.name.eq_ignore_ascii_case("transfer-encoding") {
                if !value.eq_ignore_ascii_case("chunked") {
                    return Err(io::Error::other("the transfer encoding is not supported"));
                }
                framing = Framing::Chunked;
            }
            if header.name.eq_ignore_ascii_case("content-length") && framing != Framing::Chunked {
                let length = value.parse().map_err(|_| io::Error::other("the length is not a number"))?;
                framing = Framing::Length(length);
            }
        }
        Ok(framing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_are_not_public_are_known() {
        for internal in [
            "0.0.0.0",
            "10.1.2.3",
            "100.64.0.1",
            "127.0.0.1",
            "127.9.9.9",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.1",
            "192.168.0.1",
            "198.18.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:10.0.0.1",
            "::ffff:169.254.169.254",
            "::7f00:1",
            "64:ff9b::7f00:1",
            "2001:0:1::1",
            "2001:db8::1",
            "2002:7f00:1::",
            "fc00::1",
            "fd12::1",
            "fe80::1",
            "fec0::1",
            "ff02::1",
        ] {
            assert!(is_internal(internal.parse().unwrap()), "{internal}");
        }
        for public in
            ["8.8.8.8", "100.128.0.1", "172.32.0.1", "192.0.1.1", "193.0.0.1", "2001:4860::1", "2a00::1"]
        {
            assert!(!is_internal(public.parse().unwrap()), "{public}");
        }
    }

    #[test]
    fn addresses_of_this_machine_are_its_own() {
        assert!(is_own("127.0.0.1".parse().unwrap()));
        // Documentation addresses (RFC 5737, RFC 3849) belong to no machine.
        assert!(!is_own("192.0.2.1".parse().unwrap()) && !is_own("2001:db8::1".parse().unwrap()));
    }

    /// A connection on which a response arrives, a few bytes at a time.
    struct Arriving<'r>(&'r [u8]);

    impl Read for Arriving<'_> {
        fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
            let count = self.0.len().min(7).min(target.len());
            target[..count].copy_from_slice(&self.0[..count]);
            self.0 = &self.0[count..];
            Ok(count)
        }
    }

    impl Write for Arriving<'_> {
        fn write(&mut self, data: &[u8]) -> io::Result<usize> {
            Ok(data.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn body(response: &str) -> Option<String> {
        let response = exchange(Arriving(response.as_bytes()), b"", true).ok()?;
        String::from_utf8(response.body).ok().filter(|_| response.status == 200)
    }

    #[test]
    fn bodies_end_where_their_head_says() {
        for response in [
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello, more",
            "HTTP/1.0 200 OK\r\n\r\nhello",
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: <a>\r\n\r\nHTTP/1.0 200 OK\r\n\r\nhello",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n",
        ] {
            assert_eq!(body(response).as_deref(), Some("hello"), "{response}");
        }
        let large = format!("HTTP/1.0 200 OK\r\n\r\n{}", "x".repeat(DOCUMENT_BYTES_MAX + 1));
        let chunk = format!("100000\r\n{}\r\n", "x".repeat(DOCUMENT_BYTES_MAX));
        let chunks = format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{chunk}{chunk}0\r\n\r\n");
        for bad in [
            "",
            "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello",
            "HTTP/1.1 200 OK\r\nContent-Length: 1048577\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nhello",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel",
            "HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1/\r\nContent-Length: 0\r\n\r\n",
            "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
            "SSH-2.0\r\n\r\n",
            &large,
            &chunks,
        ] {
            assert_eq!(body(bad), None, "{}", &bad[..bad.len().min(80)]);
        }
    }

    #[test]
    fn the_target_is_the_path_and_the_query() {
        for (url, expected) in [
            ("https://h", "/"),
            ("https://h/", "/"),
            ("https://h/a/b?c=d/e", "/a/b?c=d/e"),
            ("https://h?x=SECRET/tail", "/?x=SECRET/tail"),
            ("https://h:1?x", "/?x"),
        ] {
            assert_eq!(target_of(url), expected, "{url}");
        }
    }

    #[test]
    fn failures_of_a_post_name_only_the_origin() {
        // No process listens on port 1, the port of the first URL. The gateway does not permit the second and the third
        // URL.
        for url in [
            "http://127.0.0.1:1/PATH?x=QUERY",
            "http://127.0.0.1:1/PATH\u{e4}?QUERY",
            "http://h@1/PATH?QUERY",
        ] {
            let rules = OutgoingRules {
                roots: TlsRoots::System,
                allows_private: true,
                setting: "--private",
                proxies: ProxySettings::default(),
                deadline: Instant::now() + Duration::from_secs(5),
            };
            let failure = post(url, None, b"{}", &rules).unwrap_err();
            assert!(!failure.was_connected, "{}", failure.why);
            assert!(!failure.why.contains("PATH") && !failure.why.contains("QUERY"), "{}", failure.why);
            let is_named = failure.why.starts_with("http://127.0.0.1:1: ");
            assert_eq!(is_named, !url.contains('@'), "{}", failure.why);
        }
    }

    /// Returns the status of the response to a POST, on a connection that fails after the bytes of `response`. Returns
    /// `None` on an error.
    fn status(response: &str) -> Option<u16> {
        struct Broken<'r>(Arriving<'r>);

        impl Read for Broken<'_> {
            fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
                match self.0.read(target)? {
                    0 => Err(io::ErrorKind::UnexpectedEof.into()),
                    count => Ok(count),
                }
            }
        }

        impl Write for Broken<'_> {
            fn write(&mut self, data: &[u8]) -> io::Result<usize> {
                self.0.write(data)
            }

            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }

        let response = exchange(Broken(Arriving(response.as_bytes())), b"", false).ok()?;
        assert!(response.body.is_empty());
        Some(response.status)
    }

    #[test]
    fn the_answer_to_a_post_is_its_status() {
        for (response, expected) in [
            // The connection of the first response ends without `close_notify`. The body of the second response does
            // not arrive.
            ("HTTP/1.0 200 OK\r\n\r\nhello", 200),
            ("HTTP/1.1 200 OK\r\nContent-Length: 1048577\r\n\r\n", 200),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel", 200),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n", 200),
            ("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n", 204),
            ("HTTP/1.1 102 Processing\r\nContent-Length: 7\r\n\r\nHTTP/1.1 500 X\r\n\r\n", 500),
            ("HTTP/1.1 101 Switching Protocols\r\n\r\n", 101),
        ] {
            assert_eq!(status(response), Some(expected), "{response}");
        }
        let endless = "HTTP/1.1 100 Continue\r\n\r\n".repeat(HEAD_BYTES_MAX / 20);
        for bad in ["", "HTTP/1.1 200 OK\r\n", "HTTP/1.1 100 Continue\r\n\r\n", &endless] {
            assert_eq!(status(bad), None, "{}", &bad[..bad.len().min(80)]);
        }
    }
}
