//! One end of a ping-pong: a server that returns a body of the size in the path, such as `GET /ping/1000`.
//!
//! The server behaves identically in every network, and takes little time compared with the network under test. The
//! server has a fixed number of threads. Each thread accepts a connection, serves it until it is closed, and accepts
//! the next connection. Therefore no connection waits for the creation of a thread. The number of threads limits the
//! number of connections served at once.

use std::io::{self, Read};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use fordway_store::{Error, ErrorKind, Result};

/// The response header that contains the number of retries made by an intermediate server.
pub const RETRIES: &str = "fordway-retries";
/// The maximum idle time of a connection.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// Pause after a failed `accept`, for example because the table of open files is full.
const PAUSE: Duration = Duration::from_millis(10);
/// The size of the content that is kept in memory and sent repeatedly.
const CONTENT_BYTES: usize = 1 << 20;

/// Produces the responses of a [`PingpongServer`].
pub trait PingpongResponder: Send + Sync + 'static {
    /// Returns the response to one request. `room` is memory for the body, and is reused for the next response.
    fn play<'b>(&self, wanted: &PingpongRequest, room: &'b mut Vec<u8>) -> PingpongResponse<'b>;
}

/// A response of the server.
#[derive(Debug)]
pub struct PingpongResponse<'b> {
    /// The HTTP status.
    pub status: u16,
    /// The content of the response.
    pub content: PingpongPayload<'b>,
    /// The number of retries that this server needed to obtain the content from another server.
    pub retries: u32,
}

/// The content of a response.
#[derive(Clone, Copy, Debug)]
pub enum PingpongPayload<'b> {
    /// The given bytes.
    Bytes(&'b [u8]),
    /// The given number of incompressible bytes, so that compression on a link has no effect.
    Any(u64),
}

impl PingpongPayload<'_> {
    fn len(&self) -> u64 {
        match self {
            PingpongPayload::Bytes(bytes) => bytes.len() as u64,
            PingpongPayload::Any(len) => *len,
        }
    }
}

/// A listening server.
#[derive(Debug)]
pub struct PingpongServer {
    listener: TcpListener,
    address: SocketAddr,
}

impl PingpongServer {
    /// Listens at `address` (`HOST:PORT`). Errors: `InvalidArgument` if `address` is not an address of this machine;
    /// `Unavailable` if the address is in use.
    pub fn bind(address: &str) -> Result<Self> {
        let failed = |error: io::Error| {
            let kind = match error.kind() {
                io::ErrorKind::AddrInUse => ErrorKind::Unavailable,
                _ => ErrorKind::InvalidArgument,
            };
            Error::new(kind, format!("listening on {address}")).caused_by(error)
        };
        let addresses: Vec<_> = address.to_socket_addrs().map_err(failed)?.collect();
        let listener = TcpListener::bind(addresses.as_slice()).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(PingpongServer { listener, address })
    }

    /// Returns the address at which the server listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves requests with the responses of `player` on `workers` threads, which run until the process exits. Errors:
    /// `Io` if threads cannot be started.
    pub fn start(self, player: impl PingpongResponder, workers: usize) -> Result<()> {
        let shared = Arc::new((self.listener, player, content()));
        for _ in 0..workers {
            let shared = Arc::clone(&shared);
            let work = move || work(&shared.0, &shared.1, &shared.2);
            let thread = std::thread::Builder::new().name("pingpong".to_owned()).spawn(work);
            thread.map_err(|error| Error::new(ErrorKind::Io, "starting a thread").caused_by(error))?;
        }
        Ok(())
    }
}

/// Returns incompressible bytes (from xorshift64), so that compression on a link has no effect.
fn content() -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = Vec::with_capacity(CONTENT_BYTES);
    while bytes.len() < CONTENT_BYTES {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes
}

/// Runs the loop of one thread: accepts connections one after the other, and serves each connection until it is closed.
fn work(listener: &TcpListener, player: &impl PingpongResponder, content: &[u8]) {
    let mut room = Vec::new();
    loop {
        match listener.accept() {
            Ok((socket, _)) => {
                if let Err(error) = converse(&socket, player, content, &mut room) {
                    tracing::debug!(%error, "a connection ended early");
                }
            }
            Err(error) => {
                tracing::warn!(%error, "no connection can be accepted");
                std::thread::sleep(PAUSE);
            }
        }
    }
}

/// Serves the requests of one connection until the connection is closed.
fn converse(
    socket: &TcpStream,
    player: &impl PingpongResponder,
    content: &[u8],
    room: &mut Vec<u8>,
) -> io::Result<()> {
    socket.set_nodelay(true)?;
    socket.set_read_timeout(Some(SILENCE_MAX))?;
    socket.set_write_timeout(Some(SILENCE_MAX))?;
    let mut requests = RequestParser::new(socket);
    loop {
        match requests.next()? {
            ConnectionEvent::Request(wanted) => {
                let played = player.play(&wanted, room);
                send(socket, &played, wanted.keep_alive, content)?;
                if !wanted.keep_alive {
                    return Ok(());
                }
            }
            ConnectionEvent::Refused(why) => {
                let played = PingpongResponse {
                    status: 400,
                    content: PingpongPayload::Bytes(why.as_bytes()),
                    retries: 0,
                };
                return send(socket, &played, false, content);
            }
            ConnectionEvent::End => return Ok(()),
        }
    }
}

fn send(socket: &TcpStream, played: &PingpongResponse, keep_alive: bool, content: &[u8]) -> io::Result<()> {
    let reason = if played.status == 200 { "OK" } else { "Failed" };
    let connection = if keep_alive { "" } else { "connection: close\r\n" };
    let head = format!(
        "HTTP/1.1 {} {reason}\r\ncontent-type: application/octet-stream\r\ncontent-length: {}\r\n\
         {RETRIES}: {}\r\n{connection}\r\n",
        played.status,
        played.content.len(),
        played.retries,
    );
    match played.content {
        PingpongPayload::Bytes(bytes) => Ok(fordway_sys::send_all(socket, head.as_bytes(), bytes, None)?),
        PingpongPayload::Any(len) => send_any(socket, head.as_bytes(), len, content),
    }
}

fn send_any(socket: &TcpStream, head: &[u8], len: u64, content: &[u8]) -> io::Result<()> {
    let first = len.min(content.len() as u64);
    fordway_sys::send_all(socket, head, &content[..first as usize], None)?;
    let mut left = len - first;
    while left > 0 {
        let next = left.min(content.len() as u64);
        fordway_sys::send_all(socket, &content[..next as usize], &[], None)?;
        left -= next;
    }
    Ok(())
}

/// Maximum number of bytes in the head of a request.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// Maximum number of headers in a request.
const HEADERS_MAX: usize = 64;

/// A request that the server received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PingpongRequest {
    /// The number of content bytes requested.
    pub bytes: u64,
    /// Whether another request may follow on the connection.
    pub keep_alive: bool,
}

/// The next event on a connection: a request, invalid input, or the end of the connection.
#[derive(Debug, PartialEq, Eq)]
enum ConnectionEvent {
    Request(PingpongRequest),
    /// The input was rejected, for the given reason.
    Refused(&'static str),
    End,
}

/// Parses the requests of one connection.
struct RequestParser<'s> {
    socket: &'s TcpStream,
    buffer: Vec<u8>,
}

impl<'s> RequestParser<'s> {
    fn new(socket: &'s TcpStream) -> Self {
        RequestParser { socket, buffer: Vec::with_capacity(1024) }
    }

    /// Waits for the next event and returns it. Errors: the errors of the socket.
    fn next(&mut self) -> io::Result<ConnectionEvent> {
        loop {
            if let Some((received, length)) = parse(&self.buffer) {
                self.buffer.drain(..length);
                return Ok(received);
            }
            if self.buffer.len() > HEAD_BYTES_MAX {
                return Ok(ConnectionEvent::Refused("the head of the request is too long\n"));
            }
            let mut piece = [0; 1024];
            match self.socket.read(&mut piece) {
                Ok(0) => return Ok(ConnectionEvent::End),
                Ok(got) => self.buffer.extend_from_slice(&piece[..got]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// Parses the request at the start of `bytes`; returns it with the length of its head, or `None` if the head is
/// incomplete.
fn parse(bytes: &[u8]) -> Option<(ConnectionEvent, usize)> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    let length = match request.parse(bytes) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return None,
        Err(_) => {
            return Some((ConnectionEvent::Refused("this is not a request of HTTP/1.1\n"), bytes.len()));
        }
    };
    Some((meaning(&request), length))
}

fn meaning(request: &httparse::Request) -> ConnectionEvent {
    if request.method != Some("GET") {
        return ConnectionEvent::Refused("only GET is answered\n");
    }
    let named = |name: &'static str| {
        request.headers.iter().filter(move |header| header.name.eq_ignore_ascii_case(name))
    };
    if named("content-length").any(|header| header.value != b"0") || named("transfer-encoding").count() > 0 {
        return ConnectionEvent::Refused("a request with a body is not answered\n");
    }
    let path = request.path.unwrap_or_default();
    let last = path.split('?').next().and_then(|path| path.rsplit('/').next()).unwrap_or_default();
    let Some(bytes) = Some(last).filter(|text| is_number(text)).and_then(|text| text.parse().ok()) else {
        return ConnectionEvent::Refused("the path must end with a number of bytes, as /pong/1000 does\n");
    };
    let says_close = named("connection").any(|header| header.value.eq_ignore_ascii_case(b"close"));
    ConnectionEvent::Request(PingpongRequest { bytes, keep_alive: !says_close && request.version == Some(1) })
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(request: &str) -> ConnectionEvent {
        parse(request.as_bytes()).expect("a whole head").0
    }

    #[test]
    fn the_last_part_of_the_path_is_the_size() {
        let wanted = |bytes, keep_alive| ConnectionEvent::Request(PingpongRequest { bytes, keep_alive });
        assert_eq!(received("GET /pong/0 HTTP/1.1\r\n\r\n"), wanted(0, true));
        assert_eq!(received("GET /a/b/500000?x=1 HTTP/1.1\r\nhost: h\r\n\r\n"), wanted(500_000, true));
        assert_eq!(received("GET /1 HTTP/1.1\r\nConnection: Close\r\n\r\n"), wanted(1, false));
        assert_eq!(received("GET /1 HTTP/1.0\r\n\r\n"), wanted(1, false));
        assert_eq!(parse(b"GET /1 HTTP/1.1\r\nhost:"), None);
    }

    #[test]
    fn what_cannot_be_answered_is_refused() {
        let tail = "HTTP/1.1\r\n\r\n";
        for bad in ["GET /", "GET /x", "GET /-1", "GET /+1", "GET /99999999999999999999", "PUT /1"] {
            assert!(matches!(received(&format!("{bad} {tail}")), ConnectionEvent::Refused(_)), "{bad}");
        }
        let body = "GET /1 HTTP/1.1\r\ncontent-length: 3\r\n\r\nabc";
        assert!(matches!(received(body), ConnectionEvent::Refused(_)));
        assert!(matches!(received("\0\r\n\r\n"), ConnectionEvent::Refused(_)));
    }
}
