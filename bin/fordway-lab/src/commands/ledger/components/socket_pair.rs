//! Round trips between two threads over a pair of sockets. The messages are as large as the messages that our HTTP/3
//! client exchanges with its thread that translates HTTP/1.1 to HTTP/3. That thread runs an event loop.

use std::io;
use std::os::unix::net::UnixStream;

use fordway_command::file_error;
use fordway_store::Result;
use fordway_sys::send_all;
use fordway_workload::ledger::LedgerComponent;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::runtime::Builder;

use super::round_trip::{HEAD_BUFFER_BYTES, MessageSizeFunction, RoundTripBuffers};
use crate::commands::ledger::echo::datagrams::{DATAGRAM_BYTES, PACKET_OVERHEAD_BYTES};
use crate::commands::ledger::echo::{EchoRequest, RECEIVED_BYTES_MAX};

/// The number of body bytes that the thread sends at a time: the content of one packet.
const PACKET_CONTENT_BYTES: usize = DATAGRAM_BYTES - PACKET_OVERHEAD_BYTES;

/// Round trips to a thread that only responds to requests.
pub(in crate::commands::ledger) struct SocketPairComponent {
    /// Our end; `None` before the first operation.
    socket: Option<UnixStream>,
    buffer: Vec<u8>,
    trip: RoundTripBuffers,
}

impl SocketPairComponent {
    pub(in crate::commands::ledger) fn new(sizes: MessageSizeFunction) -> Self {
        let buffer = vec![0; HEAD_BUFFER_BYTES];
        SocketPairComponent { socket: None, buffer, trip: RoundTripBuffers::new(sizes) }
    }

    /// Starts the thread, which exits when our end of the pair is closed. The thread inherits the CPU affinity of the
    /// calling thread, like the thread of a connection.
    fn start() -> io::Result<UnixStream> {
        let (near, far) = UnixStream::pair()?;
        far.set_nonblocking(true)?;
        // If the thread fails, it closes its end of the pair, so the next operation fails as well.
        std::thread::Builder::new().name("ledger-pair".to_owned()).spawn(move || serve(far))?;
        Ok(near)
    }
}

fn serve(socket: UnixStream) -> io::Result<()> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (mut incoming, mut outgoing) = tokio::net::UnixStream::from_std(socket)?.into_split();
        let (mut request, mut answer) = (vec![0; RECEIVED_BYTES_MAX], Vec::new());
        loop {
            let mut received = incoming.read(&mut request).await?;
            let Some(order) = EchoRequest::read(&request[..received]) else { return Ok(()) };
            while received < order.request_bytes {
                match incoming.read(&mut request).await? {
                    0 => return Ok(()),
                    count => received += count,
                }
            }
            answer.resize(order.head_bytes + order.body_bytes, 1);
            let (head, body) = answer.split_at(order.head_bytes);
            for piece in [head].into_iter().chain(body.chunks(PACKET_CONTENT_BYTES)) {
                outgoing.write_all(piece).await?;
            }
        }
    })
}

impl LedgerComponent for SocketPairComponent {
    fn prepare(&mut self, size_bytes: u64) -> Result<()> {
        if self.socket.is_none() {
            let started = SocketPairComponent::start();
            self.socket = Some(started.map_err(|error| file_error("starting", "a thread", error))?);
        }
        self.trip.prepare(size_bytes)
    }

    fn before(&mut self) -> Result<()> {
        self.trip.rest();
        Ok(())
    }

    fn run(&mut self) -> Result<()> {
        let failed =
            |errno: fordway_sys::Errno| file_error("a round trip by", "a pair of sockets", errno.into());
        let Some(socket) = &self.socket else { return Ok(()) };
        send_all(socket, &self.trip.request, &[], None).map_err(failed)?;
        self.trip.receive(socket, &mut self.buffer).map_err(failed)?;
        self.trip.check()
    }

    fn check(&self) -> Result<()> {
        self.trip.check()
    }
}
