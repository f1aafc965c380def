//! A tunnel in user space: packets of a TUN device, one by one, in UDP datagrams to the other end. That is how
//! overlays work that ask nothing of the kernel; each packet costs two changes of context more at each end.

use std::net::UdpSocket;

use fordway_store::{Error, ErrorKind, Result};
use fordway_sys::{TUN_READ_BYTES_MAX, TunDevice};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::sockopt;

use crate::namespace::refused;

/// Packets taken from one side before the other has its turn.
const BATCH: usize = 64;
/// Datagrams that may wait in the socket.
const ROOM_BYTES: usize = 4 << 20;
/// What precedes a packet in a datagram as on the device; all zeros, because packets are whole.
const HEADER_BYTES: usize = 10;

/// One end of a tunnel.
#[derive(Debug)]
pub struct TunnelEnd {
    device: TunDevice,
    socket: UdpSocket,
}

impl TunnelEnd {
    /// Makes a device called `device`, which is down and has no address, in the network of the calling thread, and
    /// a socket from `listen` to `peer` (`HOST:PORT` each).
    ///
    /// Errors: `NotImplemented` where this process may not; `InvalidArgument` for addresses that are none.
    pub fn new(device: &str, listen: &str, peer: &str) -> Result<Self> {
        let failed =
            |what: &'static str| move |error| Error::new(ErrorKind::InvalidArgument, what).caused_by(error);
        let socket = UdpSocket::bind(listen).map_err(failed("listening for the tunnel"))?;
        socket.connect(peer).map_err(failed("naming the other end of the tunnel"))?;
        // Without room, what TCP sends in one go is lost before anybody can read it. Not all users may have it.
        let _ = sockopt::set_socket_recv_buffer_size_force(&socket, ROOM_BYTES);
        socket.set_nonblocking(true).map_err(failed("preparing the tunnel's socket"))?;
        let device =
            TunDevice::new(device, false).map_err(|error| refused("making a network device", error))?;
        Ok(TunnelEnd { device, socket })
    }

    /// Carries packets for as long as the process lives. What the network or the device refuses is lost, as on
    /// any network. Errors: `Io` if waiting fails.
    pub fn run(&self) -> Result<()> {
        let mut buffer = vec![0; TUN_READ_BYTES_MAX];
        loop {
            let mut events =
                [PollFd::new(&self.device, PollFlags::IN), PollFd::new(&self.socket, PollFlags::IN)];
            match poll(&mut events, None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(Error::new(ErrorKind::Io, "waiting for packets").caused_by(error)),
            }
            self.send_some(&mut buffer);
            self.receive_some(&mut buffer);
        }
    }

    /// From the device to the other end.
    fn send_some(&self, buffer: &mut [u8]) {
        for _ in 0..BATCH {
            match self.device.receive(buffer) {
                Ok(Some(len)) => {
                    if let Err(error) = self.socket.send(&buffer[HEADER_BYTES..len]) {
                        tracing::debug!(%error, "a packet was not sent");
                    }
                }
                _ => return,
            }
        }
    }

    /// From the other end to the device.
    fn receive_some(&self, buffer: &mut [u8]) {
        buffer[..HEADER_BYTES].fill(0);
        for _ in 0..BATCH {
            match self.socket.recv(&mut buffer[HEADER_BYTES..]) {
                Ok(len) => {
                    if let Err(error) = self.device.send(&buffer[..HEADER_BYTES + len]) {
                        tracing::debug!(%error, "a packet was not received");
                    }
                }
                Err(_) => return,
            }
        }
    }
}
