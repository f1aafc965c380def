//! A server of bodies whose size the path names, `GET /ping/1000` say: one end of a ping-pong.
//!
//! It is made to be the same wherever it runs, and to cost little beside the network that is measured: each
//! of a fixed number of threads accepts a connection, answers on it until it ends, and accepts the next.
//! So no connection waits for a thread to be made, and there are as many connections at once as threads.

mod request;

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use fordway_store::{Error, ErrorKind, Result};

pub use request::Wanted;
use request::{Received, Requests};

/// The header that says how often the answer was asked for again on the way.
pub const RETRIES: &str = "fordway-retries";
/// How long a connection may be silent.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// How long to wait when no connection can be accepted, as where the table of open files is full.
const PAUSE: Duration = Duration::from_millis(10);
/// Bytes of content that are at hand to be sent, over and over.
const CONTENT_BYTES: usize = 1 << 20;

/// What a server answers with.
pub trait Player: Send + Sync + 'static {
    /// The answer to one request; `room` is memory to keep its body in, used again for the next.
    fn play<'b>(&self, wanted: &Wanted, room: &'b mut Vec<u8>) -> Played<'b>;
}

/// An answer.
#[derive(Debug)]
pub struct Played<'b> {
    /// Its status.
    pub status: u16,
    /// Its content.
    pub content: Content<'b>,
    /// How often others had to be asked again for it.
    pub retries: u32,
}

/// What an answer holds.
#[derive(Clone, Copy, Debug)]
pub enum Content<'b> {
    /// These bytes.
    Bytes(&'b [u8]),
    /// This many bytes that no link can compress away.
    Any(u64),
}

impl Content<'_> {
    fn len(&self) -> u64 {
        match self {
            Content::Bytes(bytes) => bytes.len() as u64,
            Content::Any(len) => *len,
        }
    }
}

/// A server that listens.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
}

impl Server {
    /// Listens at `address` (`HOST:PORT`). Errors: `InvalidArgument` for what is no address of this machine;
    /// `Unavailable` where it is taken.
    pub fn bind(address: &str) -> Result<Self> {
        let failed = |error: io::Error| {
            let kind = match error.kind() {
                io::ErrorKind::AddrInUse => ErrorKind::Unavailable,
                _ => ErrorKind::InvalidArgument,
            };
            Error::new(kind, format!("listening at {address}")).caused_by(error)
        };
        let addresses: Vec<_> = address.to_socket_addrs().map_err(failed)?.collect();
        let listener = TcpListener::bind(addresses.as_slice()).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Server { listener, address })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers with `player`, in `workers` threads that live as long as the process.
    /// Errors: `Io` where threads cannot be started.
    pub fn start(self, player: impl Player, workers: usize) -> Result<()> {
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

/// Bytes that no link can compress away (xorshift64).
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

/// What one thread does for as long as it lives.
fn work(listener: &TcpListener, player: &impl Player, content: &[u8]) {
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

/// Answers the requests of one connection until it ends.
fn converse(socket: &TcpStream, player: &impl Player, content: &[u8], room: &mut Vec<u8>) -> io::Result<()> {
    socket.set_nodelay(true)?;
    socket.set_read_timeout(Some(SILENCE_MAX))?;
    socket.set_write_timeout(Some(SILENCE_MAX))?;
    let mut requests = Requests::new(socket);
    loop {
        match requests.next()? {
            Received::Request(wanted) => {
                let played = player.play(&wanted, room);
                send(socket, &played, wanted.keep_alive, content)?;
                if !wanted.keep_alive {
                    return Ok(());
                }
            }
            Received::Refused(why) => {
                let played = Played { status: 400, content: Content::Bytes(why.as_bytes()), retries: 0 };
                return send(socket, &played, false, content);
            }
            Received::End => return Ok(()),
        }
    }
}

fn send(socket: &TcpStream, played: &Played, keep_alive: bool, content: &[u8]) -> io::Result<()> {
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
        Content::Bytes(bytes) => Ok(fordway_sys::send_all(socket, head.as_bytes(), bytes, None)?),
        Content::Any(len) => send_any(socket, head.as_bytes(), len, content),
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
