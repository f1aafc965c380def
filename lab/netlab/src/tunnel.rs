//! A tunnel in user space: sends each packet of a TUN device in a UDP datagram to the peer. Overlays without
//! kernel support carry packets in the same way. Each packet costs two additional context switches at each end.

use std::net::UdpSocket;

use fordway_store::{Error, ErrorKind, Result};
use fordway_sys::{TUN_READ_BYTES_MAX, TunDevice};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::sockopt;

use crate::namespace::refused;

/// The maximum number of packets to read from one side before the other side is read.
const BATCH: usize = 64;
/// The size of the socket's receive buffer in bytes.
const ROOM_BYTES: usize = 4 << 20;
/// The size of the header that precedes each packet on the device. The header is not sent to the peer; it consists of
/// zeros, because packets are not segmented.
const HEADER_BYTES: usize = 10;

/// One end of a tunnel.
#[derive(Debug)]
pub struct TunnelEnd {
    device: TunDevice,
    socket: UdpSocket,
}

impl TunnelEnd {
    /// Creates a device called `device` in the network of the calling thread, initially down and without an address,
    /// and a socket from `listen` to `peer` (`HOST:PORT` each).
    ///
    /// Errors: `NotImplemented` if this process is not permitted to create devices; `InvalidArgument` for invalid
    /// addresses.
    pub fn new(device: &str, listen: &str, peer: &str) -> Result<Self> {
        let failed =
            |what: &'static str| move |error| Error::new(ErrorKind::InvalidArgument, what).caused_by(error);
        let socket = UdpSocket::bind(listen).map_err(failed("listening for the tunnel"))?;
        socket.connect(peer).map_err(failed("setting the address of the tunnel's peer"))?;
        // With a small buffer, packets of a TCP burst are lost before they are read. Ignore the error, because only a
        // process with CAP_NET_ADMIN may exceed the system's limit for buffers.
        let _ = sockopt::set_socket_recv_buffer_size_force(&socket, ROOM_BYTES);
        socket.set_nonblocking(true).map_err(failed("preparing the tunnel's socket"))?;
        let device =
            TunDevice::new(device, false).map_err(|error| refused("creating a network device", error))?;
        Ok(TunnelEnd { device, socket })
    }

    /// Carries packets for as long as the process runs. Packets refused by the network or the device are lost, as on
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

    /// Sends up to `BATCH` waiting packets from the device to the peer.
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

    /// Writes up to `BATCH` waiting packets from the peer to the device.
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
