//! One socket to the gateway: its address, the handshake, sending requests and waiting for responses.

use std::borrow::Cow;
use std::fs::File;
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use std::{fmt, io};

use fordway_store::{Error, ErrorKind, Result};
use fordway_sys::{
    Errno, SocketBlockingMode, after_signal, is_closed_by_peer, keep_alive, receive_with_descriptor,
    send_all, set_receive_timeout, wait_at_most,
};
use fordway_wire::node::{
    FrameBuffer, FrameHeader, GATEWAY_HELLO_BYTES, HandshakeProof, HandshakeSide, NONCE_BYTES,
    NodeClientHello, NodeGatewayHello, ReadField, Request, ResponseFlags, VERSION, take_reply,
};

use crate::node::spare::PrecreatedFile;

/// The maximum time that a gateway may take to accept a connection and complete the handshake.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(30);
/// The time for which a thread polls for a response before it sleeps, if the gateway also polls for requests.
const LOOKOUT: Duration = Duration::from_micros(20);
/// The number of consecutive unsuccessful polls after which the thread polls only rarely.
const MISSES_MAX: u32 = 4;
/// The number of waits per poll of a thread that polls only rarely.
const RARELY: u32 = 64;

/// The reason why a request has no usable response.
#[derive(Debug)]
pub(super) enum NodeFailure {
    /// The gateway cannot have acted on the request, because it never received all of it.
    NotSent(Errno),
    /// The connection broke before the response arrived.
    Unknown(Errno),
    /// The gateway responded with an error.
    Answered(Error),
    /// The response is invalid, or this process failed to process it.
    Unusable(Error),
}

impl NodeFailure {
    /// Returns the failure for an error that was decoded from a response.
    fn of_answer(error: Error) -> Self {
        match error.kind() {
            ErrorKind::BadResponse => NodeFailure::Unusable(error),
            _ => NodeFailure::Answered(error),
        }
    }
}

/// A connection to a gateway that has completed the handshake.
pub(super) struct NodeConnection {
    socket: OwnedFd,
    inbox: FrameBuffer,
    /// The descriptor that arrived with the frame being read, or the reason why this process could not receive it.
    descriptor: Option<Result<OwnedFd, Errno>>,
    out: Vec<u8>,
    next_id: u32,
    /// A file that the gateway has passed in advance, for the next large object.
    pub(super) spare: Option<PrecreatedFile>,
    /// Whether the gateway polls for our next request.
    is_awake: bool,
    misses: u32,
    /// The deadline for the handshake; `None` after the handshake is complete.
    greet_until: Option<Instant>,
}

impl NodeConnection {
    /// Connects, and authenticates if the gateway requires it. Errors: `Unavailable` if no gateway can be reached;
    /// `AccessDenied`, `BadResponse`; errors from the gateway.
    pub(super) fn open(address: &NodeAddress) -> Result<Self> {
        let socket = address.connect().map_err(|error| cannot_connect(address, error))?;
        let limit_wait = |socket: &OwnedFd, limit: Option<Duration>| {
            set_receive_timeout(socket, limit).map_err(|errno| cannot_connect(address, errno.into()))
        };
        limit_wait(&socket, Some(wait_at_most(HANDSHAKE_LIMIT)))?;
        let mut connection = NodeConnection {
            socket,
            inbox: FrameBuffer::default(),
            descriptor: None,
            out: Vec::new(),
            next_id: 1,
            spare: None,
            is_awake: false,
            misses: 0,
            greet_until: Some(Instant::now() + HANDSHAKE_LIMIT),
        };
        connection.greet(address).map_err(|failure| match failure {
            NodeFailure::Answered(error) | NodeFailure::Unusable(error) => error,
            NodeFailure::NotSent(Errno::CANCELED) | NodeFailure::Unknown(Errno::CANCELED) => {
                Error::new(ErrorKind::Interrupted, "a signal arrived during the handshake with the gateway")
            }
            NodeFailure::NotSent(errno) | NodeFailure::Unknown(errno) => {
                cannot_connect(address, errno.into())
            }
        })?;
        connection.greet_until = None;
        let in_one_go = wait_at_most(Duration::MAX);
        limit_wait(&connection.socket, (in_one_go < Duration::MAX).then_some(in_one_go))?;
        Ok(connection)
    }

    fn greet(&mut self, address: &NodeAddress) -> Result<(), NodeFailure> {
        let hello = NodeClientHello { version: VERSION, takes_descriptors: address.is_local() };
        // A gateway that refuses the connection may already have closed it. The gateway's response can still be read,
        // so a send error is not reported yet.
        let sent = send_all(&self.socket, &hello.to_bytes(), &[], None);
        while self.inbox.waiting().len() < GATEWAY_HELLO_BYTES {
            self.receive(SocketBlockingMode::Yes)
                .map_err(|errno| NodeFailure::NotSent(sent.err().unwrap_or(errno)))?;
        }
        let bytes = self.inbox.waiting().first_chunk();
        let welcome =
            bytes.map(NodeGatewayHello::from_bytes).unwrap_or_else(|| Err(ErrorKind::Internal.into()));
        let welcome = welcome.map_err(|error| {
            NodeFailure::Unusable(Error::new(
                ErrorKind::BadResponse,
                format!("{address}: {}", error.detail()),
            ))
        })?;
        self.inbox.consume(GATEWAY_HELLO_BYTES);
        if welcome.is_refusal {
            return self.reply::<()>(0).map(drop);
        }
        match (welcome.wants_proof, address) {
            (true, NodeAddress::Tcp(_, secret)) => self.prove(secret, &welcome.nonce),
            (false, NodeAddress::Unix(_)) => Ok(()),
            _ => {
                let why =
                    format!("{address} requires an authentication method that does not match its endpoint");
                Err(NodeFailure::Unusable(Error::new(ErrorKind::BadResponse, why)))
            }
        }
    }

    /// Proves to the gateway that this client knows the secret, and checks that the gateway also knows it.
    fn prove(&mut self, secret: &NodeKeyPair, theirs: &[u8; NONCE_BYTES]) -> Result<(), NodeFailure> {
        let mut nonce = [0; NONCE_BYTES];
        getrandom::fill(&mut nonce).map_err(|error| {
            NodeFailure::Unusable(Error::new(ErrorKind::Io, "no random number").caused_by(error))
        })?;
        let NodeKeyPair { access_key, secret_key } = secret;
        let proof = |side| HandshakeProof::new(secret_key, side, theirs, &nonce, access_key);
        let request = Request::Authenticate {
            access_key: Cow::Borrowed(access_key),
            nonce,
            proof: proof(HandshakeSide::Client).to_bytes(),
        };
        let (answer, header) = self.call::<[u8; 32]>(&request, &[])?;
        self.finish(&header);
        match proof(HandshakeSide::Gateway).is(&answer) {
            true => Ok(()),
            false => {
                let why = "the gateway did not prove that it knows the secret key; check the endpoint";
                Err(NodeFailure::Unusable(Error::new(ErrorKind::SignatureDoesNotMatch, why)))
            }
        }
    }

    /// Sends a request and waits for the response. To get the response's body, pass the returned header to
    /// [`NodeConnection::body`].
    pub(super) fn call<T: ReadField>(
        &mut self,
        request: &Request<'_>,
        body: &[u8],
    ) -> Result<(T, FrameHeader), NodeFailure> {
        let id = self.send(request, body)?;
        self.reply(id)
    }

    /// Sends a request, together with the queued requests. Returns the ID of the request.
    pub(super) fn send(&mut self, request: &Request<'_>, body: &[u8]) -> Result<u32, NodeFailure> {
        let id = self.gather(request, body.len());
        self.send_gathered(body).map(|()| id)
    }

    /// Queues a request for the next send. The caller must append a body of `body_bytes` bytes. Returns the request's
    /// ID.
    pub(super) fn gather(&mut self, request: &Request<'_>, body_bytes: usize) -> u32 {
        let id = self.next_id;
        self.next_id = self.next_id.wrapping_add(1).max(1);
        request.put(&mut self.out, id, body_bytes);
        id
    }

    /// Appends body bytes to the most recently queued request.
    pub(super) fn gather_body(&mut self, body: &[u8]) {
        self.out.extend_from_slice(body);
    }

    /// Sends the queued requests, followed by `body`.
    pub(super) fn send_gathered(&mut self, body: &[u8]) -> Result<(), NodeFailure> {
        let sent = send_all(&self.socket, &self.out, body, None);
        self.out.clear();
        sent.map_err(NodeFailure::NotSent)
    }

    /// Waits for the response to the request `id`, which must be the next response to arrive.
    pub(super) fn reply<T: ReadField>(&mut self, id: u32) -> Result<(T, FrameHeader), NodeFailure> {
        let header = self.wait_for_frame()?;
        let bad = |why: &str| NodeFailure::Unusable(Error::new(ErrorKind::BadResponse, why));
        // A gateway that cannot decode a request responds with the ID 0.
        if header.id != id && header.id != 0 {
            return Err(bad("the gateway's response belongs to another request"));
        }
        self.is_awake = header.flags.has(ResponseFlags::AWAKE);
        if header.flags.has(ResponseFlags::MOVED) {
            self.misses = 0;
        }
        let frame = self.inbox.frame(&header).ok_or_else(|| bad("the response is not complete"))?;
        match take_reply(&frame) {
            Ok(answer) => Ok((answer, header)),
            Err(error) => {
                self.finish(&header);
                Err(NodeFailure::of_answer(error))
            }
        }
    }

    /// Returns the body of the response whose header is `header`. The body is valid until [`NodeConnection::finish`] is
    /// called.
    pub(super) fn body(&self, header: &FrameHeader) -> &[u8] {
        self.inbox.frame(header).map_or(&[], |frame| frame.body)
    }

    /// Drops the response whose header is `header` from the buffer.
    pub(super) fn finish(&mut self, header: &FrameHeader) {
        self.inbox.consume(header.frame_bytes());
    }

    /// Returns the file whose descriptor arrived with the response. Errors: `TooManyOpenFiles` if this process cannot
    /// have another descriptor; `BadResponse` if no descriptor arrived.
    pub(super) fn file(&mut self, header: &FrameHeader) -> Result<File, NodeFailure> {
        let passed = self.descriptor.take().filter(|_| header.flags.has(ResponseFlags::DESCRIPTOR));
        let error = match passed {
            Some(Ok(descriptor)) => return Ok(File::from(descriptor)),
            Some(Err(errno)) => {
                let why = "receiving a file from the gateway";
                Error::new(ErrorKind::TooManyOpenFiles, why).caused_by(errno)
            }
            None => Error::new(ErrorKind::BadResponse, "the gateway passed no descriptor"),
        };
        Err(NodeFailure::Unusable(error))
    }

    /// Returns whether the gateway has closed the connection. Cost: one `recvfrom`.
    pub(super) fn is_closed(&self) -> bool {
        is_closed_by_peer(&self.socket)
    }

    /// Reads content that follows the last response. Returns bytes that have already arrived. If no bytes have arrived,
    /// reads from the socket once.
    pub(super) fn read_stream(&mut self, buffer: &mut [u8]) -> Result<usize, Errno> {
        let waiting = self.inbox.waiting();
        if waiting.is_empty() {
            let received = receive_some(&self.socket, buffer, SocketBlockingMode::Yes, None);
            return received.map(|(count, _)| count);
        }
        let count = waiting.len().min(buffer.len());
        buffer[..count].copy_from_slice(&waiting[..count]);
        self.inbox.consume(count);
        Ok(count)
    }

    /// Returns whether the connection has no pending data, in which case another caller can use it.
    pub(super) fn is_at_rest(&self) -> bool {
        self.inbox.waiting().is_empty() && self.out.is_empty()
    }

    fn wait_for_frame(&mut self) -> Result<FrameHeader, NodeFailure> {
        let mut since = None;
        loop {
            let next = self
                .inbox
                .next_header()
                .map_err(|error| NodeFailure::Unusable(Error::new(ErrorKind::BadResponse, error.detail())))?;
            if let Some(header) = next {
                return Ok(header);
            }
            let wait = self.how_to_wait(&mut since);
            match self.receive(wait) {
                Ok(()) => {
                    self.misses =
                        if since.is_some() && wait == SocketBlockingMode::No { 0 } else { self.misses }
                }
                Err(Errno::WOULDBLOCK) if wait == SocketBlockingMode::No => std::hint::spin_loop(),
                Err(errno) => return Err(NodeFailure::Unknown(errno)),
            }
        }
    }

    /// Decides whether to poll briefly before sleeping, which is worthwhile if the gateway also polls and recent polls
    /// have succeeded.
    fn how_to_wait(&mut self, since: &mut Option<Instant>) -> SocketBlockingMode {
        match since {
            None if self.is_awake && (self.misses < MISSES_MAX || self.misses.is_multiple_of(RARELY)) => {
                *since = Some(Instant::now());
                SocketBlockingMode::No
            }
            Some(since) if self.is_awake && since.elapsed() < LOOKOUT => SocketBlockingMode::No,
            _ => {
                if self.is_awake {
                    self.misses = self.misses.wrapping_add(1);
                    self.is_awake = false;
                }
                SocketBlockingMode::Yes
            }
        }
    }

    fn receive(&mut self, wait: SocketBlockingMode) -> Result<(), Errno> {
        let (count, descriptor) = receive_some(&self.socket, self.inbox.room(), wait, self.greet_until)?;
        if descriptor.is_some() {
            self.descriptor = descriptor;
        }
        match count {
            0 => Err(Errno::CONNRESET),
            count => {
                self.inbox.filled(count);
                Ok(())
            }
        }
    }
}

/// Receives bytes like [`receive_with_descriptor`], but waits until `until` (without a time limit if `until` is
/// `None`), and periodically checks whether the program must stop. Errors: `TIMEDOUT`, `CANCELED`.
fn receive_some(
    socket: &OwnedFd,
    buffer: &mut [u8],
    wait: SocketBlockingMode,
    until: Option<Instant>,
) -> Result<(usize, Option<Result<OwnedFd, Errno>>), Errno> {
    loop {
        match receive_with_descriptor(socket, &mut *buffer, wait) {
            Err(Errno::WOULDBLOCK) if wait == SocketBlockingMode::Yes => {
                after_signal()?;
                if until.is_some_and(|until| Instant::now() >= until) {
                    return Err(Errno::TIMEDOUT);
                }
            }
            done => return done,
        }
    }
}

fn cannot_connect(address: &NodeAddress, error: std::io::Error) -> Error {
    use std::io::ErrorKind as Io;
    let (kind, why) = match (error.kind(), address) {
        (Io::PermissionDenied, _) => (
            ErrorKind::AccessDenied,
            format!("no permission to open the socket of {address}; it belongs to another user"),
        ),
        (Io::NotFound, NodeAddress::Unix(path)) => (
            ErrorKind::Unavailable,
            format!(
                "there is no socket {0}; start the gateway with `fordway node ROOT --socket {0}`",
                path.display()
            ),
        ),
        (Io::ConnectionRefused, NodeAddress::Unix(path)) => (
            ErrorKind::Unavailable,
            format!(
                "no gateway listens on {0}; start it again with `fordway node ROOT --socket {0}`",
                path.display()
            ),
        ),
        (Io::TimedOut, _) => (
            ErrorKind::Unavailable,
            format!("{address} did not answer within {} s; is it a gateway?", HANDSHAKE_LIMIT.as_secs()),
        ),
        _ => (ErrorKind::Unavailable, format!("connecting to {address}")),
    };
    Error::new(kind, why).caused_by(error)
}

/// The address of a gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeAddress {
    /// A Unix socket on this node. The kernel identifies the caller to the gateway.
    Unix(PathBuf),
    /// A host and port, for clients that know the secret.
    Tcp(String, NodeKeyPair),
}

/// The key pair that a gateway requires over TCP.
#[derive(Clone, PartialEq, Eq)]
pub struct NodeKeyPair {
    /// The public half, which identifies the key.
    pub access_key: String,
    /// The secret half, which is never sent.
    pub secret_key: String,
}

/// Omits the secret, so that it never appears in a log.
impl fmt::Debug for NodeKeyPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secret").field("access_key", &self.access_key).finish_non_exhaustive()
    }
}

impl NodeAddress {
    pub(super) fn connect(&self) -> io::Result<OwnedFd> {
        match self {
            NodeAddress::Unix(path) => UnixStream::connect(path).map(OwnedFd::from),
            NodeAddress::Tcp(host, _) => {
                let socket = connect_within(host, HANDSHAKE_LIMIT)?;
                socket.set_nodelay(true)?;
                keep_alive(&socket)?;
                Ok(socket.into())
            }
        }
    }

    /// Returns whether descriptors can be passed over the connection.
    pub(super) fn is_local(&self) -> bool {
        matches!(self, NodeAddress::Unix(_))
    }
}

/// Connects to the first address of `host` that accepts a connection. The time limit for each address is `limit`.
fn connect_within(host: &str, limit: Duration) -> io::Result<TcpStream> {
    let mut failed = io::Error::new(io::ErrorKind::NotFound, format!("{host} has no address"));
    for address in host.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, limit) {
            Ok(socket) => return Ok(socket),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

impl fmt::Display for NodeAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NodeAddress::Unix(path) => write!(f, "unix://{}", path.display()),
            NodeAddress::Tcp(host, _) => write!(f, "tcp://{host}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gateway_that_says_nothing_is_not_waited_for_without_end() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let (ours, short) = (OwnedFd::from(ours), Duration::from_millis(20));
        set_receive_timeout(&ours, Some(short)).unwrap();
        let until = Some(Instant::now() + 2 * short);
        let received = receive_some(&ours, &mut [0; 8], SocketBlockingMode::Yes, until);
        assert_eq!(received.unwrap_err(), Errno::TIMEDOUT);
        set_receive_timeout(&ours, None).unwrap();
    }
}
