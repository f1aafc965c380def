//! Round trips by a library's event loop on both sides, as in HTTP/2.

use std::net::TcpListener;
use std::path::Path;

use fordway_store::Result;
use fordway_sys::send_unpaced_on_loopback;
use fordway_workload::ledger::Rung;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};

use super::http2::PIECE_BYTES;
use super::round_trip::{Other, Sizes, Trip, accepted, start};
use fordway_command::file_error;

/// Over TCP on the loopback interface. What comes is taken over and over into the same memory.
pub(in super::super) struct EventLoops {
    runtime: Runtime,
    socket: TcpStream,
    buffer: Vec<u8>,
    trip: Trip,
    other: Other,
}

impl EventLoops {
    /// With a process at the other side that is given `file` and does not send it.
    pub(in super::super) fn new(file: &Path, sizes: Sizes) -> Result<Self> {
        let failed = |error| file_error("listening at", "127.0.0.1", error);
        let listener = TcpListener::bind("127.0.0.1:0").map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let mut other = start(&format!("loop:{address}"), file)?;
        let (socket, _) = accepted(|| listener.accept(), &mut other)?;
        socket.set_nonblocking(true).and_then(|()| socket.set_nodelay(true)).map_err(failed)?;
        send_unpaced_on_loopback(&socket, address.ip()).map_err(|errno| failed(errno.into()))?;
        let runtime = Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let socket = runtime.block_on(async { TcpStream::from_std(socket) }).map_err(failed)?;
        Ok(EventLoops { runtime, socket, buffer: vec![0; PIECE_BYTES], trip: Trip::new(sizes), other })
    }
}

impl Rung for EventLoops {
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
