//! Round trips over a socket to a process that only responds to requests. The messages have exactly the same sizes as
//! the messages of a lane. The components send the messages with the system calls of the lane or, for HTTP/2, with a
//! library's event loop on both sides.

use std::ffi::OsString;
use std::hint::black_box;
use std::io::{BufRead as _, BufReader};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use fordway_command::file_error;
use fordway_netlab::setup::{NetworkEndpoint, NetworkPair};
use fordway_store::{Error, ErrorKind, Result};
use fordway_sys::{SocketBlockingMode, receive_with_descriptor, send_all, send_unpaced_on_loopback};
use fordway_workload::ledger::LedgerComponent;
use rustix::net::{RecvFlags, recv};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::runtime::{Builder, Runtime};

use super::super::echo::{AdaptivePollingWait, EchoRequest, ORDER_BYTES, ReplySendMethod};
use super::framing::PIECE_BYTES;
use crate::commands::contained::{ContainedProgram, ContainerPlacement};

/// The number of bytes that the client of the http lane receives at a time while it waits for a head.
pub(super) const HEAD_BUFFER_BYTES: usize = 16 << 10;
/// The size of the receive buffer of the node lane's client.
const INBOX_BYTES: usize = 72 << 10;
/// The name of the responding process in error messages.
const PEER: &str = "the peer of a round trip";
/// The maximum time for the responding process to start.
const READY_WITHIN: Duration = Duration::from_secs(30);

/// The message sizes in one operation, and how the response is sent.
pub(in super::super) struct MessageSizes {
    pub(in super::super) request_bytes: usize,
    pub(in super::super) head_bytes: usize,
    pub(in super::super) body_bytes: usize,
    pub(in super::super) form: ReplySendMethod,
    /// The number of bytes that the client copies before its next request, outside the measured time.
    pub(in super::super) rest_bytes: usize,
}

/// A function that returns the message sizes of an operation, for a given number of content bytes.
pub(in super::super) type MessageSizeFunction = Box<dyn FnMut(u64) -> Result<MessageSizes>>;

/// The process that responds, which exits when the connection is closed.
pub(super) enum PeerProcess {
    Bare(Child),
    Contained(ContainedProgram),
}

impl PeerProcess {
    pub(super) fn pid(&self) -> Option<u32> {
        match self {
            PeerProcess::Bare(process) => Some(process.id()),
            PeerProcess::Contained(contained) => contained.pid(),
        }
    }

    fn has_ended(&mut self) -> bool {
        match self {
            PeerProcess::Bare(process) => process.try_wait().is_ok_and(|ended| ended.is_some()),
            PeerProcess::Contained(contained) => contained.has_ended(),
        }
    }
}

impl Drop for PeerProcess {
    fn drop(&mut self) {
        // If the process has connected, it exits by itself, because the connection has already been closed. Kill the
        // process anyway, because it may never have connected.
        if let PeerProcess::Bare(process) = self {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// A process that serves at an address that it chooses. The process reports the address over a control connection, and
/// exits when that connection is closed.
pub(super) struct PeerServer {
    pub(super) address: SocketAddr,
    _control: TcpStream,
    other: PeerProcess,
}

impl PeerServer {
    /// Starts a process of this kind on the loopback interface, with `file` as an argument.
    pub(super) fn start(kind: &str, file: &Path) -> Result<Self> {
        let failed = |error| file_error("listening at", "127.0.0.1", error);
        let listener = TcpListener::bind("127.0.0.1:0").map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        PeerServer::told(&listener, start(&format!("{kind}:{address}"), file)?)
    }

    /// Waits until the process reports its address.
    fn told(listener: &TcpListener, mut other: PeerProcess) -> Result<Self> {
        let failed = |error| file_error("listening for", PEER, error);
        listener.set_nonblocking(true).map_err(failed)?;
        let (control, _) = accepted(|| listener.accept(), &mut other)?;
        control.set_nonblocking(false).map_err(failed)?;
        control.set_read_timeout(Some(READY_WITHIN)).map_err(failed)?;
        let mut line = String::new();
        BufReader::new(&control).read_line(&mut line).map_err(failed)?;
        let address = line.trim_end().parse().map_err(|_| {
            Error::new(ErrorKind::Unavailable, "the peer process of the round trips did not serve")
        })?;
        Ok(PeerServer { address, _control: control, other })
    }

    pub(super) fn pid(&self) -> Option<u32> {
        self.other.pid()
    }
}

/// Starts the responding process, which connects to `address`.
pub(super) fn start(address: &str, file: &Path) -> Result<PeerProcess> {
    let mut command = Command::new(this_program()?);
    command.args(["ledger", "--echo", address, "--echo-file"]).arg(file).stdin(Stdio::null());
    let child = command.stdout(Stdio::null()).spawn();
    child.map(PeerProcess::Bare).map_err(|error| file_error("starting", PEER, error))
}

/// Like [`start`], in a container.
fn start_contained(place: ContainerPlacement<'_>, address: &str, file: &Path) -> Result<PeerProcess> {
    let mut words = vec![this_program()?.into_os_string()];
    words.extend(["ledger", "--echo", address, "--echo-file"].map(OsString::from));
    words.push(file.as_os_str().to_owned());
    ContainedProgram::start(place, &words, &[]).map(PeerProcess::Contained)
}

fn this_program() -> Result<PathBuf> {
    std::env::current_exe().map_err(|error| file_error("finding", "this program", error))
}

/// Accepts the connection of the started process. Errors: `Unavailable` if the process does not connect.
pub(super) fn accepted<T>(
    mut accept: impl FnMut() -> std::io::Result<T>,
    other: &mut PeerProcess,
) -> Result<T> {
    let since = Instant::now();
    loop {
        match accept() {
            Ok(socket) => {
                if let PeerProcess::Contained(contained) = other {
                    contained.find()?;
                }
                return Ok(socket);
            }
            Err(error) if error.kind() != std::io::ErrorKind::WouldBlock => {
                return Err(file_error("accepting", PEER, error));
            }
            Err(_) => {}
        }
        if other.has_ended() || since.elapsed() > READY_WITHIN {
            let why = "the peer process of the round trips did not start";
            return Err(Error::new(ErrorKind::Unavailable, why));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The state that all kinds of round trips share.
pub(super) struct RoundTripBuffers {
    sizes: MessageSizeFunction,
    pub(super) request: Vec<u8>,
    order: EchoRequest,
    body: Vec<u8>,
    /// The source and destination of the copy that keeps the client busy.
    rest: (Vec<u8>, Vec<u8>),
    pub(super) received: usize,
}

impl RoundTripBuffers {
    pub(super) fn new(sizes: MessageSizeFunction) -> Self {
        let order =
            EchoRequest { request_bytes: 0, head_bytes: 0, body_bytes: 0, form: ReplySendMethod::Bytes };
        RoundTripBuffers {
            sizes,
            request: Vec::new(),
            order,
            body: Vec::new(),
            rest: Default::default(),
            received: 0,
        }
    }

    pub(super) fn prepare(&mut self, size_bytes: u64) -> Result<()> {
        let MessageSizes { request_bytes, head_bytes, body_bytes, form, rest_bytes } =
            (self.sizes)(size_bytes)?;
        let request_bytes = request_bytes.max(ORDER_BYTES);
        self.order = EchoRequest { request_bytes, head_bytes, body_bytes, form };
        self.request = self.order.to_bytes();
        self.body.resize(body_bytes, 0);
        self.rest.0.resize(rest_bytes, 1);
        self.rest.1.resize(rest_bytes, 0);
        Ok(())
    }

    /// Keeps the client busy between two requests, as on a real lane. A real client uses the content of a received file
    /// descriptor before it sends the next request. A client that writes objects removes the previous object.
    /// Meanwhile, the responding process sleeps. The longer the responding process sleeps, the longer its wake-up
    /// takes.
    pub(super) fn rest(&mut self) {
        self.rest.1.copy_from_slice(black_box(&self.rest.0));
    }

    /// Returns the number of bytes expected in the response.
    pub(super) fn expected(&self) -> usize {
        let EchoRequest { head_bytes, body_bytes, form, .. } = self.order;
        head_bytes + if form == ReplySendMethod::Descriptor { 0 } else { body_bytes }
    }

    /// Receives the head, together with any content that arrives in the same calls. Then receives the rest of the body
    /// directly into the buffer of the body. Sets `received` to the number of received bytes, which is less than
    /// [`expected`](Self::expected) if the connection is closed early.
    pub(super) fn receive(&mut self, socket: impl AsFd, buffer: &mut [u8]) -> Result<(), fordway_sys::Errno> {
        let head_bytes = self.order.head_bytes;
        self.received = 0;
        while self.received < head_bytes {
            match recv(&socket, &mut buffer[self.received..], RecvFlags::empty())?.1 {
                0 => return Ok(()),
                count => self.received += count,
            }
        }
        let early = &buffer[head_bytes..self.received];
        self.body[..early.len()].copy_from_slice(early);
        while self.received < self.expected() {
            match recv(&socket, &mut self.body[self.received - head_bytes..], RecvFlags::WAITALL)?.1 {
                0 => return Ok(()),
                count => self.received += count,
            }
        }
        Ok(())
    }

    pub(super) fn check(&self) -> Result<()> {
        match self.received == self.expected() {
            true => Ok(()),
            false => {
                let why = format!("received {} bytes of {}", self.received, self.expected());
                Err(Error::new(ErrorKind::IncompleteBody, why))
            }
        }
    }
}

/// Round trips over a Unix socket, as in the node lane: large content is passed as a descriptor.
pub(in super::super) struct UnixRoundTripComponent {
    socket: UnixStream,
    inbox: Vec<u8>,
    descriptor: Option<OwnedFd>,
    lookout: AdaptivePollingWait,
    trip: RoundTripBuffers,
    other: PeerProcess,
}

impl UnixRoundTripComponent {
    /// Starts a process that passes the descriptor of `file`. The socket is created in `dir`.
    pub(in super::super) fn new(dir: &Path, file: &Path, sizes: MessageSizeFunction) -> Result<Self> {
        let path = dir.join("round-trip.sock");
        let failed = |error| file_error("listening on", path.display(), error);
        let listener = UnixListener::bind(&path).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let mut other = start(&format!("unix:{}", path.display()), file)?;
        let (socket, _) = accepted(|| listener.accept(), &mut other)?;
        // Remove the name of the socket, so that another component of this kind can use the same name.
        std::fs::remove_file(&path).map_err(failed)?;
        socket.set_nonblocking(false).map_err(failed)?;
        let (inbox, lookout) = (vec![0; INBOX_BYTES], AdaptivePollingWait::default());
        Ok(UnixRoundTripComponent {
            socket,
            inbox,
            descriptor: None,
            lookout,
            trip: RoundTripBuffers::new(sizes),
            other,
        })
    }
}

impl LedgerComponent for UnixRoundTripComponent {
    fn prepare(&mut self, size_bytes: u64) -> Result<()> {
        self.trip.prepare(size_bytes)
    }

    fn before(&mut self) -> Result<()> {
        self.trip.rest();
        Ok(())
    }

    fn run(&mut self) -> Result<()> {
        let failed = |errno: fordway_sys::Errno| file_error("a round trip by", "a Unix socket", errno.into());
        send_all(&self.socket, &self.trip.request, &[], None).map_err(failed)?;
        self.trip.received = 0;
        let expected = self.trip.expected();
        while self.trip.received < expected {
            let room = &mut self.inbox[self.trip.received..];
            let socket = &self.socket;
            let received = match self.trip.order.form {
                ReplySendMethod::Descriptor => receive_with_descriptor(socket, room, SocketBlockingMode::Yes),
                _ => self.lookout.wait(|wait| receive_with_descriptor(socket, &mut *room, wait)),
            };
            let (count, descriptor) = received.map_err(failed)?;
            if count == 0 {
                return Err(failed(fordway_sys::Errno::CONNRESET));
            }
            self.descriptor = descriptor.transpose().map_err(failed)?;
            self.trip.received += count;
        }
        // Close the descriptor within the measured time, because a client would also close a file that it has read.
        let has_descriptor = self.descriptor.take().is_some();
        match has_descriptor == (self.trip.order.form == ReplySendMethod::Descriptor) {
            true => Ok(()),
            false => {
                Err(Error::new(ErrorKind::BadResponse, "a descriptor is missing, or there is one too many"))
            }
        }
    }

    fn check(&self) -> Result<()> {
        self.trip.check()
    }

    fn server_pid(&self) -> Option<u32> {
        self.other.pid()
    }
}

/// Round trips over TCP on the loopback interface, as in the http lane.
pub(in super::super) struct TcpRoundTripComponent {
    socket: TcpStream,
    buffer: Vec<u8>,
    trip: RoundTripBuffers,
    other: PeerProcess,
}

impl TcpRoundTripComponent {
    /// Starts a process that sends `file`.
    pub(in super::super) fn new(file: &Path, sizes: MessageSizeFunction) -> Result<Self> {
        let failed = |error| file_error("listening at", "127.0.0.1", error);
        let listener = TcpListener::bind("127.0.0.1:0").map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        TcpRoundTripComponent::over(listener, start(&format!("tcp:{address}"), file)?, sizes)
    }

    /// Like [`new`](Self::new), with the process at the far end of a network and this side at the near end.
    pub(in super::super) fn through(
        ends: &NetworkPair,
        file: &Path,
        sizes: MessageSizeFunction,
    ) -> Result<Self> {
        let failed = |error| file_error("listening at", ends.near.address, error);
        let listener =
            ends.near.network.run(|| TcpListener::bind((ends.near.address, 0)))?.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let other = ends.far.network.run(|| start(&format!("tcp:{address}"), file))??;
        TcpRoundTripComponent::over(listener, other, sizes)
    }

    /// Like [`new`](Self::new), with the process in a container. If the container has its own network, this side is at
    /// the near end of that network.
    pub(in super::super) fn contained(
        place: ContainerPlacement<'_>,
        near: Option<&NetworkEndpoint>,
        file: &Path,
        sizes: MessageSizeFunction,
    ) -> Result<Self> {
        let address = near.map_or(IpAddr::V4(Ipv4Addr::LOCALHOST), |near| near.address);
        let failed = |error| file_error("listening at", address, error);
        let listen = || TcpListener::bind((address, 0));
        let listener = match near {
            None => listen(),
            Some(near) => near.network.run(listen)?,
        };
        let listener = listener.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let other = start_contained(place, &format!("tcp:{address}"), file)?;
        TcpRoundTripComponent::over(listener, other, sizes)
    }

    fn over(listener: TcpListener, mut other: PeerProcess, sizes: MessageSizeFunction) -> Result<Self> {
        let failed = |error| file_error("listening for", PEER, error);
        listener.set_nonblocking(true).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let (socket, _) = accepted(|| listener.accept(), &mut other)?;
        socket.set_nonblocking(false).and_then(|()| socket.set_nodelay(true)).map_err(failed)?;
        send_unpaced_on_loopback(&socket, address.ip()).map_err(|errno| failed(errno.into()))?;
        Ok(TcpRoundTripComponent {
            socket,
            buffer: vec![0; HEAD_BUFFER_BYTES],
            trip: RoundTripBuffers::new(sizes),
            other,
        })
    }
}

impl LedgerComponent for TcpRoundTripComponent {
    fn prepare(&mut self, size_bytes: u64) -> Result<()> {
        self.trip.prepare(size_bytes)
    }

    fn before(&mut self) -> Result<()> {
        self.trip.rest();
        Ok(())
    }

    fn run(&mut self) -> Result<()> {
        let failed = |errno: fordway_sys::Errno| file_error("a round trip by", "TCP", errno.into());
        send_all(&self.socket, &self.trip.request, &[], None).map_err(failed)?;
        self.trip.receive(&self.socket, &mut self.buffer).map_err(failed)?;
        self.trip.check()
    }

    fn check(&self) -> Result<()> {
        self.trip.check()
    }

    fn server_pid(&self) -> Option<u32> {
        self.other.pid()
    }
}

/// Round trips between event loops over TCP on the loopback interface. All received bytes are written to the same
/// buffer, where they overwrite each other.
pub(in crate::commands::ledger) struct EventLoopRoundTripComponent {
    runtime: Runtime,
    socket: tokio::net::TcpStream,
    buffer: Vec<u8>,
    trip: RoundTripBuffers,
    other: PeerProcess,
}

impl EventLoopRoundTripComponent {
    /// Starts the responding process. The process gets `file` as an argument, but does not send the file.
    pub(in crate::commands::ledger) fn new(file: &Path, sizes: MessageSizeFunction) -> Result<Self> {
        let failed = |error| file_error("listening at", "127.0.0.1", error);
        let listener = TcpListener::bind("127.0.0.1:0").map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let mut other = start(&format!("loop:{address}"), file)?;
        let (socket, _) = accepted(|| listener.accept(), &mut other)?;
        socket.set_nonblocking(true).and_then(|()| socket.set_nodelay(true)).map_err(failed)?;
        send_unpaced_on_loopback(&socket, address.ip()).map_err(|errno| failed(errno.into()))?;
        let runtime = Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let socket = runtime.block_on(async { tokio::net::TcpStream::from_std(socket) }).map_err(failed)?;
        Ok(EventLoopRoundTripComponent {
            runtime,
            socket,
            buffer: vec![0; PIECE_BYTES],
            trip: RoundTripBuffers::new(sizes),
            other,
        })
    }
}

impl LedgerComponent for EventLoopRoundTripComponent {
    fn prepare(&mut self, size_bytes: u64) -> Result<()> {
        self.trip.prepare(size_bytes)
    }

    fn run(&mut self) -> Result<()> {
        let EventLoopRoundTripComponent { runtime, socket, buffer, trip, .. } = self;
        trip.received = 0;
        let done: std::io::Result<()> = runtime.block_on(async {
            socket.write_all(&trip.request).await?;
            while trip.received < trip.expected() {
                match socket.read(buffer).await? {
                    0 => break,
                    count => trip.received += count,
                }
            }
            Ok(())
        });
        done.map_err(|error| file_error("a round trip by", "TCP", error))?;
        trip.check()
    }

    fn check(&self) -> Result<()> {
        self.trip.check()
    }

    fn server_pid(&self) -> Option<u32> {
        self.other.pid()
    }
}
