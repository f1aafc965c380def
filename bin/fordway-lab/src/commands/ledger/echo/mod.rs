//! The process that responds in round trips, with as many bytes as a request specifies. The process uses the same kind
//! of socket and the same system calls as a gateway.

mod connections;
#[cfg(feature = "http3")]
pub(super) mod datagrams;
#[cfg(feature = "http3")]
pub(super) mod quic;

use std::fs::File;
use std::io::{self, Write as _};
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use fordway_command::{CommandExit, file_error};
use fordway_store::Result;
use fordway_sys::{
    Errno, SocketBlockingMode, receive, send_all, send_file, send_more, send_unpaced_on_loopback,
};
use rustix::event::epoll;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::runtime::Builder;

use super::components::framing::PIECE_BYTES;

/// How long the client and the gateway of the node lane poll a socket before they sleep.
const LOOKOUT: Duration = Duration::from_micros(20);
/// The number of consecutive unsuccessful polls after which a side polls only rarely.
const MISSES_MAX: u32 = 4;
/// If a side polls only rarely, it polls in one of this many waits.
const RARELY: u32 = 64;
/// The size, in bytes, of the first part of each request (the order), which specifies the response.
pub(super) const ORDER_BYTES: usize = 24;
/// The maximum number of bytes received at a time; heads are shorter.
pub(super) const RECEIVED_BYTES_MAX: usize = 256 << 10;

/// How a response is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReplySendMethod {
    /// The body is sent from memory.
    Bytes,
    /// The body is sent by `sendfile`, after the head.
    File,
    /// Only the head is sent, together with the file's descriptor.
    Descriptor,
}

/// The request for one response.
#[derive(Clone, Copy, Debug)]
pub(super) struct EchoRequest {
    /// The size of the whole request in bytes; at least [`ORDER_BYTES`].
    pub(super) request_bytes: usize,
    /// The size of the response's head in bytes.
    pub(super) head_bytes: usize,
    /// The size of the response's body in bytes.
    pub(super) body_bytes: usize,
    pub(super) form: ReplySendMethod,
}

impl EchoRequest {
    /// Returns the request: the order, followed by zeros up to the length of the request.
    pub(super) fn to_bytes(self) -> Vec<u8> {
        let form = match self.form {
            ReplySendMethod::Bytes => 0u32,
            ReplySendMethod::File => 1,
            ReplySendMethod::Descriptor => 2,
        };
        let mut bytes = Vec::with_capacity(self.request_bytes);
        bytes.extend_from_slice(&(self.request_bytes as u32).to_le_bytes());
        bytes.extend_from_slice(&form.to_le_bytes());
        bytes.extend_from_slice(&(self.head_bytes as u64).to_le_bytes());
        bytes.extend_from_slice(&(self.body_bytes as u64).to_le_bytes());
        bytes.resize(self.request_bytes.max(ORDER_BYTES), 0);
        bytes
    }

    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let (order, _) = bytes.split_first_chunk::<ORDER_BYTES>()?;
        let number = |at: usize, len: usize| {
            order[at..at + len].iter().rev().fold(0usize, |number, byte| number << 8 | usize::from(*byte))
        };
        let form = match number(4, 4) {
            0 => ReplySendMethod::Bytes,
            1 => ReplySendMethod::File,
            _ => ReplySendMethod::Descriptor,
        };
        Some(EchoRequest {
            request_bytes: number(0, 4),
            form,
            head_bytes: number(8, 8),
            body_bytes: number(16, 8),
        })
    }
}

/// Responds to requests until the measuring process closes the connection. `address` has the form `KIND:ADDRESS`; the
/// measuring process listens at that address (`unix:PATH`, or the kind and `HOST:PORT`). Kinds that open their own port
/// report its address over that connection. `file` is the file to send or, for TLS and QUIC, the directory with the
/// certificate. Errors: the errors of the address, the file or the socket.
pub(super) fn serve(address: &str, file: &Path) -> Result<CommandExit> {
    let served = match address.split_once(':') {
        Some(("unix", path)) => UnixStream::connect(path).and_then(|socket| serve_unix(&socket, file)),
        Some((kind, place)) => TcpStream::connect(place).and_then(|socket| serve_kind(kind, socket, file)),
        None => Err(io::ErrorKind::InvalidInput.into()),
    };
    served.map(|()| CommandExit::Ok).map_err(|error| file_error("answering", address, error))
}

fn serve_kind(kind: &str, socket: TcpStream, file: &Path) -> io::Result<()> {
    match kind {
        "tcp" => serve_tcp(&socket, file),
        "loop" => serve_by_event_loop(socket),
        "connect" => connections::serve(socket),
        "connect-tls" => connections::serve_tls(socket, file),
        #[cfg(feature = "http3")]
        "udp" => quic::serve_datagrams(socket),
        #[cfg(feature = "http3")]
        "quic" => quic::serve(socket, file, quic::QuicApplicationProtocol::Streams),
        #[cfg(feature = "http3")]
        "http3" => quic::serve(socket, file, quic::QuicApplicationProtocol::Http3),
        _ => Err(io::ErrorKind::InvalidInput.into()),
    }
}

/// Reports the address at which this process serves, over the control connection to the measuring process.
fn announce(control: &TcpStream, address: SocketAddr) -> io::Result<()> {
    writeln!(&mut &*control, "{address}")
}

/// Waits as the client and the gateway of the node lane do: polls briefly, unless recent polls were unsuccessful, and
/// then sleeps.
#[derive(Default)]
pub(super) struct AdaptivePollingWait {
    misses: u32,
}

impl AdaptivePollingWait {
    pub(super) fn wait<T>(
        &mut self,
        mut receive: impl FnMut(SocketBlockingMode) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        if self.misses < MISSES_MAX || self.misses.is_multiple_of(RARELY) {
            let since = Instant::now();
            while since.elapsed() < LOOKOUT {
                match receive(SocketBlockingMode::No) {
                    Err(Errno::WOULDBLOCK) => std::hint::spin_loop(),
                    done => {
                        self.misses = 0;
                        return done;
                    }
                }
            }
        }
        self.misses = self.misses.wrapping_add(1);
        receive(SocketBlockingMode::Yes)
    }
}

/// Responds like the node gateway: a thread that polls and then sleeps in `recv`.
fn serve_unix(socket: &UnixStream, file: &Path) -> io::Result<()> {
    let file = File::open(file)?;
    let mut buffer = vec![0; RECEIVED_BYTES_MAX];
    let answer = vec![1; 1 << 20];
    let (mut last, mut lookout) = (ReplySendMethod::Bytes, AdaptivePollingWait::default());
    loop {
        let order = taken(&mut buffer, |room| match last {
            ReplySendMethod::Descriptor => receive(socket, room, SocketBlockingMode::Yes),
            _ => lookout.wait(|wait| receive(socket, &mut *room, wait)),
        })?;
        let Some(order) = order else { return Ok(()) };
        let (head, body) = answer.split_at(order.head_bytes);
        match order.form {
            ReplySendMethod::Descriptor => send_all(socket, head, &[], Some(file.as_fd()))?,
            _ => send_all(socket, head, &body[..order.body_bytes], None)?,
        }
        last = order.form;
    }
}

/// Responds like the HTTP gateway: `epoll_wait`, `recv`, `send` or `sendfile` on a non-blocking socket.
fn serve_tcp(socket: &TcpStream, file: &Path) -> io::Result<()> {
    let file = &File::open(file)?;
    socket.set_nodelay(true)?;
    send_unpaced_on_loopback(socket, socket.peer_addr()?.ip())?;
    socket.set_nonblocking(true)?;
    let mut server = EchoServer { socket, file, poll: SocketEpoll::new(socket)?, answer: Vec::new() };
    let mut buffer = vec![0; RECEIVED_BYTES_MAX];
    loop {
        let mut is_drained = true;
        let order = taken(&mut buffer, |room| {
            loop {
                if is_drained {
                    server.poll.wait()?;
                }
                match receive(socket, room, SocketBlockingMode::No) {
                    Err(Errno::WOULDBLOCK) => is_drained = true,
                    got => {
                        is_drained = got? < room.len();
                        return got;
                    }
                }
            }
        })?;
        let Some(order) = order else { return Ok(()) };
        server.answer(order)?;
    }
}

/// Responds like the gateway over HTTP/2: with the event loop of a library, from memory, one piece at a time.
fn serve_by_event_loop(socket: TcpStream) -> io::Result<()> {
    socket.set_nodelay(true)?;
    send_unpaced_on_loopback(&socket, socket.peer_addr()?.ip())?;
    socket.set_nonblocking(true)?;
    let runtime = Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut socket = tokio::net::TcpStream::from_std(socket)?;
        let (mut request, mut answer) = (vec![0; RECEIVED_BYTES_MAX], Vec::new());
        while let Some(order) = awaited(&mut socket, &mut request).await? {
            answer.resize(order.head_bytes + order.body_bytes, 1);
            for piece in answer.chunks(PIECE_BYTES) {
                socket.write_all(piece).await?;
            }
        }
        Ok(())
    })
}

/// Reads a request without content; returns `None` at the end of the connection.
async fn awaited(socket: &mut tokio::net::TcpStream, request: &mut [u8]) -> io::Result<Option<EchoRequest>> {
    let mut filled = 0;
    loop {
        match socket.read(&mut request[filled..]).await? {
            0 => return Ok(None),
            count => filled += count,
        }
        let order = EchoRequest::read(&request[..filled]).filter(|order| filled >= order.request_bytes);
        if order.is_some() {
            return Ok(order);
        }
    }
}

/// Reads a request from the socket into `buffer`; content that exceeds the buffer overwrites earlier content. Returns
/// `None` at the end of the connection.
fn taken(
    buffer: &mut [u8],
    mut receive: impl FnMut(&mut [u8]) -> Result<usize, Errno>,
) -> io::Result<Option<EchoRequest>> {
    let (mut filled, mut got) = (0, 0);
    loop {
        let order = EchoRequest::read(&buffer[..filled]);
        if let Some(order) = order.filter(|order| got >= order.request_bytes) {
            return Ok(Some(order));
        }
        // Keep the order, and overwrite the unused bytes after it.
        let room = if filled < buffer.len() { &mut buffer[filled..] } else { &mut buffer[ORDER_BYTES..] };
        match receive(room)? {
            0 => return Ok(None),
            count => {
                got += count;
                filled = (filled + count).min(buffer.len());
            }
        }
    }
}

/// Waits for one socket with epoll, as event loops do.
struct SocketEpoll(OwnedFd);

impl SocketEpoll {
    fn new(socket: &TcpStream) -> io::Result<Self> {
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let interest = epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::ET;
        epoll::add(&poll, socket, epoll::EventData::new_u64(0), interest)?;
        Ok(SocketEpoll(poll))
    }

    /// Waits until the socket has an event.
    fn wait(&self) -> Result<(), Errno> {
        let mut events = [MaybeUninit::uninit(); 8];
        epoll::wait(&self.0, &mut events, None).map(drop).or_else(|errno| match errno {
            Errno::INTR => Ok(()),
            errno => Err(errno),
        })
    }
}

struct EchoServer<'s> {
    socket: &'s TcpStream,
    file: &'s File,
    poll: SocketEpoll,
    answer: Vec<u8>,
}

impl EchoServer<'_> {
    fn answer(&mut self, order: EchoRequest) -> io::Result<()> {
        let in_memory =
            order.head_bytes + if order.form == ReplySendMethod::Bytes { order.body_bytes } else { 0 };
        if self.answer.len() < in_memory {
            self.answer.resize(in_memory, 1);
        }
        let answer = &self.answer[..in_memory];
        if order.form != ReplySendMethod::File {
            return self.all(in_memory, |at| {
                rustix::net::send(self.socket, &answer[at..], rustix::net::SendFlags::NOSIGNAL)
            });
        }
        self.all(in_memory, |at| send_more(self.socket, &answer[at..]))?;
        let body_bytes = order.body_bytes;
        self.all(body_bytes, |at| send_file(self.socket, self.file, at as u64, body_bytes - at))
    }

    /// Calls `send` repeatedly, until the kernel has accepted all `bytes`.
    fn all(&self, bytes: usize, send: impl Fn(usize) -> Result<usize, Errno>) -> io::Result<()> {
        let mut done = 0;
        while done < bytes {
            match send(done) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => done += count,
                Err(Errno::AGAIN) => self.poll.wait()?,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(request_bytes: usize, form: ReplySendMethod) -> EchoRequest {
        EchoRequest { request_bytes, head_bytes: 300, body_bytes: 1 << 20, form }
    }

    #[test]
    fn an_order_is_read_as_it_was_written() {
        for form in [ReplySendMethod::Bytes, ReplySendMethod::File, ReplySendMethod::Descriptor] {
            let bytes = order(100, form).to_bytes();
            assert_eq!(bytes.len(), 100);
            let read = EchoRequest::read(&bytes).unwrap();
            assert_eq!((read.request_bytes, read.head_bytes, read.body_bytes), (100, 300, 1 << 20));
            assert_eq!(read.form, form);
        }
        assert!(EchoRequest::read(&[0; ORDER_BYTES - 1]).is_none());
    }

    /// Checks that a request larger than the buffer is read completely, without any byte of the next request.
    #[test]
    fn a_request_is_taken_whole_whatever_pieces_it_comes_in() {
        for (request_bytes, piece) in [(ORDER_BYTES, 7), (1_000, 64), (1_000, 1), (64, 64)] {
            let bytes = order(request_bytes, ReplySendMethod::Bytes).to_bytes();
            let (mut buffer, mut left) = (vec![0; 64], bytes.as_slice());
            let read = taken(&mut buffer, |room| {
                let (now, later) = left.split_at(piece.min(room.len()).min(left.len()));
                room[..now.len()].copy_from_slice(now);
                left = later;
                Ok(now.len())
            });
            assert_eq!(read.unwrap().unwrap().request_bytes, request_bytes);
            assert!(left.is_empty(), "{} bytes are left of {request_bytes}", left.len());
        }
        let ended = taken(&mut [0; 64], |_| Ok(0));
        assert!(ended.unwrap().is_none());
    }
}
