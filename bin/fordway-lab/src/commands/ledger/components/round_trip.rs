//! Round trips over a socket to a process that only answers, with messages of the very sizes that a lane
//! has on the wire, by the system calls that it makes; or by a library's event loop on both sides, as in HTTP/2.

use std::hint::black_box;
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use fordway_command::file_error;
use fordway_netlab::setup::NetworkPair;
use fordway_store::{Error, ErrorKind, Result};
use fordway_sys::{WaitMode, receive_with_descriptor, send_all, send_unpaced_on_loopback};
use fordway_workload::ledger::LedgerComponent;
use rustix::net::{RecvFlags, recv};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::runtime::{Builder, Runtime};

use super::super::echo::{AdaptiveWait, EchoRequest, ORDER_BYTES, ReplyForm};
use super::framing::PIECE_BYTES;

/// What the client of the HTTP lane receives at a time while it waits for a head.
const HEAD_BUFFER_BYTES: usize = 16 << 10;
/// What the client of the node lane has room for.
const INBOX_BYTES: usize = 72 << 10;
/// How long the other side may take to come up.
const READY_WITHIN: Duration = Duration::from_secs(30);

/// The sizes on the wire of one operation, and how the answer leaves.
pub(in super::super) struct MessageSizes {
    pub(in super::super) request_bytes: usize,
    pub(in super::super) head_bytes: usize,
    pub(in super::super) body_bytes: usize,
    pub(in super::super) form: ReplyForm,
    /// What the client copies before it asks again, outside of the time.
    pub(in super::super) rest_bytes: usize,
}

/// Which messages an operation of this many bytes has.
pub(in super::super) type Sizes = Box<dyn FnMut(u64) -> Result<MessageSizes>>;

/// The other side; it ends when the connection does.
pub(super) struct PeerProcess(Child);

impl PeerProcess {
    pub(super) fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for PeerProcess {
    fn drop(&mut self) {
        // The connection was closed before: it is on its way out, or never came.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(super) fn start(address: &str, file: &Path) -> Result<PeerProcess> {
    let exe = std::env::current_exe().map_err(|error| file_error("finding", "this program", error))?;
    let mut command = Command::new(exe);
    command.args(["ledger", "--echo", address, "--echo-file"]).arg(file).stdin(Stdio::null());
    let child = command.stdout(Stdio::null()).spawn();
    child.map(PeerProcess).map_err(|error| file_error("starting", "the other side of a round trip", error))
}

/// Accepts the one who was started. Errors: it does not come.
pub(super) fn accepted<T>(
    mut accept: impl FnMut() -> std::io::Result<T>,
    other: &mut PeerProcess,
) -> Result<T> {
    let since = Instant::now();
    loop {
        match accept() {
            Ok(socket) => return Ok(socket),
            Err(error) if error.kind() != std::io::ErrorKind::WouldBlock => {
                return Err(file_error("accepting", "the other side of a round trip", error));
            }
            Err(_) => {}
        }
        let is_gone = other.0.try_wait().is_ok_and(|ended| ended.is_some());
        if is_gone || since.elapsed() > READY_WITHIN {
            let why = "the process at the other side of the round trips did not come up";
            return Err(Error::new(ErrorKind::Unavailable, why));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// What all kinds of round trip keep.
pub(super) struct RoundTrip {
    sizes: Sizes,
    pub(super) request: Vec<u8>,
    order: EchoRequest,
    body: Vec<u8>,
    /// What is copied where the client is to be busy, and to where.
    rest: (Vec<u8>, Vec<u8>),
    pub(super) received: usize,
}

impl RoundTrip {
    pub(super) fn new(sizes: Sizes) -> Self {
        let order = EchoRequest { request_bytes: 0, head_bytes: 0, body_bytes: 0, form: ReplyForm::Bytes };
        RoundTrip {
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

    /// A client that was passed a file is busy with its content before it asks again, and the writer of an
    /// object has to remove the last one. The other side sleeps meanwhile, and the longer it sleeps the longer
    /// it takes to wake.
    pub(super) fn rest(&mut self) {
        self.rest.1.copy_from_slice(black_box(&self.rest.0));
    }

    /// Bytes of the answer.
    pub(super) fn expected(&self) -> usize {
        let EchoRequest { head_bytes, body_bytes, form, .. } = self.order;
        head_bytes + if form == ReplyForm::Descriptor { 0 } else { body_bytes }
    }

    pub(super) fn check(&self) -> Result<()> {
        match self.received == self.expected() {
            true => Ok(()),
            false => {
                let why = format!("{} bytes came of {}", self.received, self.expected());
                Err(Error::new(ErrorKind::IncompleteBody, why))
            }
        }
    }
}

/// Over a Unix socket, as the node lane: large content as a descriptor.
pub(in super::super) struct UnixRoundTrip {
    socket: UnixStream,
    inbox: Vec<u8>,
    descriptor: Option<OwnedFd>,
    lookout: AdaptiveWait,
    trip: RoundTrip,
    other: PeerProcess,
}

impl UnixRoundTrip {
    /// With a process that passes `file`; its socket is made in `dir`.
    pub(in super::super) fn new(dir: &Path, file: &Path, sizes: Sizes) -> Result<Self> {
        let path = dir.join("round-trip.sock");
        let failed = |error| file_error("listening at", path.display(), error);
        let listener = UnixListener::bind(&path).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let mut other = start(&format!("unix:{}", path.display()), file)?;
        let (socket, _) = accepted(|| listener.accept(), &mut other)?;
        // Its name is free for another component of this kind.
        std::fs::remove_file(&path).map_err(failed)?;
        socket.set_nonblocking(false).map_err(failed)?;
        let (inbox, lookout) = (vec![0; INBOX_BYTES], AdaptiveWait::default());
        Ok(UnixRoundTrip { socket, inbox, descriptor: None, lookout, trip: RoundTrip::new(sizes), other })
    }
}

impl LedgerComponent for UnixRoundTrip {
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
                ReplyForm::Descriptor => receive_with_descriptor(socket, room, WaitMode::Yes),
                _ => self.lookout.wait(|wait| receive_with_descriptor(socket, &mut *room, wait)),
            };
            let (count, descriptor) = received.map_err(failed)?;
            if count == 0 {
                return Err(failed(fordway_sys::Errno::CONNRESET));
            }
            self.descriptor = descriptor;
            self.trip.received += count;
        }
        // Closed as a file that was read, within the time.
        let has_descriptor = self.descriptor.take().is_some();
        match has_descriptor == (self.trip.order.form == ReplyForm::Descriptor) {
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
        Some(self.other.pid())
    }
}

/// Over TCP on the loopback interface, as the HTTP lane.
pub(in super::super) struct TcpRoundTrip {
    socket: TcpStream,
    buffer: Vec<u8>,
    trip: RoundTrip,
    other: PeerProcess,
}

impl TcpRoundTrip {
    /// With a process that sends `file`.
    pub(in super::super) fn new(file: &Path, sizes: Sizes) -> Result<Self> {
        let failed = |error| file_error("listening at", "127.0.0.1", error);
        let listener = TcpListener::bind("127.0.0.1:0").map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        TcpRoundTrip::over(listener, start(&format!("tcp:{address}"), file)?, sizes)
    }

    /// The same with that process at the far end of a network, and this side at the near one.
    pub(in super::super) fn through(ends: &NetworkPair, file: &Path, sizes: Sizes) -> Result<Self> {
        let failed = |error| file_error("listening at", ends.near.address, error);
        let listener =
            ends.near.network.run(|| TcpListener::bind((ends.near.address, 0)))?.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let other = ends.far.network.run(|| start(&format!("tcp:{address}"), file))??;
        TcpRoundTrip::over(listener, other, sizes)
    }

    fn over(listener: TcpListener, mut other: PeerProcess, sizes: Sizes) -> Result<Self> {
        let failed = |error| file_error("listening for", "the other side of a round trip", error);
        listener.set_nonblocking(true).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let (socket, _) = accepted(|| listener.accept(), &mut other)?;
        socket.set_nonblocking(false).and_then(|()| socket.set_nodelay(true)).map_err(failed)?;
        send_unpaced_on_loopback(&socket, address.ip()).map_err(|errno| failed(errno.into()))?;
        Ok(TcpRoundTrip { socket, buffer: vec![0; HEAD_BUFFER_BYTES], trip: RoundTrip::new(sizes), other })
    }

    /// The head with what comes in its call, then the rest of the body straight into place.
    fn receive(&mut self) -> Result<usize, fordway_sys::Errno> {
        let head_bytes = self.trip.order.head_bytes;
        let mut filled = 0;
        while filled < head_bytes {
            match recv(&self.socket, &mut self.buffer[filled..], RecvFlags::empty())?.1 {
                0 => return Ok(filled),
                count => filled += count,
            }
        }
        let early = &self.buffer[head_bytes..filled];
        self.trip.body[..early.len()].copy_from_slice(early);
        while filled < self.trip.expected() {
            match recv(&self.socket, &mut self.trip.body[filled - head_bytes..], RecvFlags::WAITALL)?.1 {
                0 => return Ok(filled),
                count => filled += count,
            }
        }
        Ok(filled)
    }
}

impl LedgerComponent for TcpRoundTrip {
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
        self.trip.received = self.receive().map_err(failed)?;
        self.trip.check()
    }

    fn check(&self) -> Result<()> {
        self.trip.check()
    }

    fn server_pid(&self) -> Option<u32> {
        Some(self.other.pid())
    }
}

/// Over TCP on the loopback interface. What comes is taken over and over into the same memory.
pub(in crate::commands::ledger) struct EventLoops {
    runtime: Runtime,
    socket: tokio::net::TcpStream,
    buffer: Vec<u8>,
    trip: RoundTrip,
    other: PeerProcess,
}

impl EventLoops {
    /// With a process at the other side that is given `file` and does not send it.
    pub(in crate::commands::ledger) fn new(file: &Path, sizes: Sizes) -> Result<Self> {
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
        Ok(EventLoops { runtime, socket, buffer: vec![0; PIECE_BYTES], trip: RoundTrip::new(sizes), other })
    }
}

impl LedgerComponent for EventLoops {
    fn prepare(&mut self, size_bytes: u64) -> Result<()> {
        self.trip.prepare(size_bytes)
    }

    fn run(&mut self) -> Result<()> {
        let EventLoops { runtime, socket, buffer, trip, .. } = self;
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
        Some(self.other.pid())
    }
}
