//! Messages over UDP: the datagrams are as large as QUIC packets and are sent like QUIC packets, but without QUIC.
//! quinn's socket sends up to ten datagrams in one `sendmsg` (GSO), and receives all available datagrams in one
//! `recvmmsg` (GRO). The sender limits the number of bytes in flight. The receiver acknowledges each batch that it
//! receives, as RFC 9000 section 13.2 recommends, except the last batch of a message.
//!
//! The datagrams have no packet numbers. If datagrams are lost, the receiver waits for a period without datagrams, and
//! then requests as many bytes as are missing.

use std::future::poll_fn;
use std::io::{self, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use quinn::udp::{BATCH_SIZE, EcnCodepoint, RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, Runtime as _, TokioRuntime, UdpPoller};
use tokio::time::timeout;

use super::EchoRequest;

/// The size of a datagram after QUIC's path MTU discovery: quinn probes up to this size.
pub(in crate::commands::ledger) const DATAGRAM_BYTES: usize = 1452;
/// The number of bytes that QUIC adds to the content of a packet (RFC 9000 sections 17.3.1 and 19.8): flags, a
/// connection ID (8 bytes), a packet number (2), the header of a STREAM frame, and the tag of the encryption (16).
pub(in crate::commands::ledger) const PACKET_OVERHEAD_BYTES: usize = 36;
/// The maximum number of datagrams that quinn passes to the kernel at once.
const SEGMENTS_MAX: usize = 10;
/// The maximum number of bytes in flight. This many bytes fit into the kernel's default receive buffer.
const WINDOW_BYTES: usize = 96 << 10;
/// The size of an acknowledgement, which is about the size of a packet with one ACK frame.
const CONTROL_BYTES: usize = 40;
/// The first bytes of an acknowledgement. A request for missing bytes begins with [`MISSING`] instead. Messages contain
/// neither of these two byte strings.
const ACKNOWLEDGED: [u8; 4] = *b"ack!";
const MISSING: [u8; 4] = *b"gone";
/// The time without datagrams after which the receiver requests missing bytes.
const SILENCE: Duration = Duration::from_millis(200);
/// The maximum number of requests for missing bytes. After these requests, the receiver returns `TimedOut`.
const ASKS_MAX: u32 = 50;

/// Returns the total size of the datagrams in which QUIC sends `stream_bytes` of stream data, in bytes.
pub(in crate::commands::ledger) fn on_the_wire(stream_bytes: usize) -> usize {
    stream_bytes + stream_bytes.div_ceil(DATAGRAM_BYTES - PACKET_OVERHEAD_BYTES) * PACKET_OVERHEAD_BYTES
}

/// One end of the exchange of datagrams.
pub(in crate::commands::ledger) struct DatagramEndpoint {
    socket: Arc<dyn AsyncUdpSocket>,
    writable: Pin<Box<dyn UdpPoller>>,
    /// The address of the peer. The end that waits for requests learns the address from the first datagram.
    peer: Option<SocketAddr>,
    room: Vec<u8>,
}

/// The contents of the datagrams that one `recvmmsg` received.
#[derive(Default)]
struct ReceivedBatch {
    data_bytes: usize,
    /// The request at the start of the data; `None` if the data does not start with a request.
    order: Option<EchoRequest>,
    acknowledged_bytes: usize,
    /// The number of bytes that the peer still needs; `None` if the peer did not request missing bytes.
    missing_bytes: Option<usize>,
}

impl ReceivedBatch {
    fn add(&mut self, datagram: &[u8]) {
        match control(datagram) {
            Some((ACKNOWLEDGED, bytes)) => self.acknowledged_bytes += bytes,
            Some((_, bytes)) => self.missing_bytes = Some(bytes),
            None => {
                if self.data_bytes == 0 {
                    self.order = EchoRequest::read(datagram);
                }
                self.data_bytes += datagram.len();
            }
        }
    }
}

/// Parses an acknowledgement or a request for missing bytes.
fn control(datagram: &[u8]) -> Option<([u8; 4], usize)> {
    let (kind, rest) = datagram.split_first_chunk::<4>()?;
    let (count, _) = rest.split_first_chunk::<8>()?;
    let is_control = datagram.len() == CONTROL_BYTES && [ACKNOWLEDGED, MISSING].contains(kind);
    is_control.then(|| (*kind, u64::from_le_bytes(*count) as usize))
}

impl DatagramEndpoint {
    /// Creates an end that uses `socket`, in the calling runtime. Errors: operating-system errors.
    pub(in crate::commands::ledger) fn new(socket: UdpSocket, peer: Option<SocketAddr>) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        let socket = TokioRuntime.wrap_udp_socket(socket)?;
        let writable = socket.clone().create_io_poller();
        let room = vec![0; DATAGRAM_BYTES * socket.max_receive_segments() * BATCH_SIZE];
        Ok(DatagramEndpoint { socket, writable, peer, room })
    }

    /// Sends a message. Errors: operating-system errors.
    pub(in crate::commands::ledger) async fn send(&mut self, message: &[u8]) -> io::Result<()> {
        let batch_bytes = DATAGRAM_BYTES * self.socket.max_transmit_segments().min(SEGMENTS_MAX);
        let (mut sent, mut on_the_way) = (0, 0);
        while sent < message.len() {
            let batch = &message[sent..message.len().min(sent + batch_bytes)];
            if on_the_way == 0 || on_the_way + batch.len() <= WINDOW_BYTES {
                self.transmit(batch).await?;
                sent += batch.len();
                on_the_way += batch.len();
                continue;
            }
            let received = self.batch().await?;
            on_the_way = on_the_way.saturating_sub(received.acknowledged_bytes);
            if let Some(missing_bytes) = received.missing_bytes {
                (sent, on_the_way) = (message.len().saturating_sub(missing_bytes), 0);
            }
        }
        Ok(())
    }

    /// Receives a message of `bytes`. Errors: operating-system errors; `TimedOut` if the peer no longer responds.
    pub(in crate::commands::ledger) async fn receive(&mut self, bytes: usize) -> io::Result<()> {
        let (mut left_bytes, mut asks) = (bytes, 0);
        while left_bytes > 0 {
            let Ok(received) = timeout(SILENCE, self.batch()).await else {
                asks += 1;
                if asks > ASKS_MAX {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                self.tell(MISSING, left_bytes).await?;
                continue;
            };
            let data_bytes = received?.data_bytes;
            left_bytes = left_bytes.saturating_sub(data_bytes);
            if left_bytes > 0 && data_bytes > 0 {
                self.tell(ACKNOWLEDGED, data_bytes).await?;
            }
        }
        Ok(())
    }

    /// Waits for a request, and receives all of it. Resends the missing bytes of the last response, `answer`, if the
    /// peer requests them. Errors: operating-system errors.
    pub(in crate::commands::ledger) async fn order(&mut self, answer: &[u8]) -> io::Result<EchoRequest> {
        loop {
            let received = self.batch().await?;
            if let Some(missing_bytes) = received.missing_bytes {
                self.send(&answer[..missing_bytes.min(answer.len())]).await?;
            }
            let Some(order) = received.order else { continue };
            let left_bytes = order.request_bytes.saturating_sub(received.data_bytes);
            if left_bytes > 0 {
                self.tell(ACKNOWLEDGED, received.data_bytes).await?;
                self.receive(left_bytes).await?;
            }
            return Ok(order);
        }
    }

    async fn tell(&mut self, kind: [u8; 4], bytes: usize) -> io::Result<()> {
        let mut datagram = [0; CONTROL_BYTES];
        datagram[..4].copy_from_slice(&kind);
        datagram[4..12].copy_from_slice(&(bytes as u64).to_le_bytes());
        self.transmit(&datagram).await
    }

    /// Passes datagrams to the kernel.
    async fn transmit(&mut self, contents: &[u8]) -> io::Result<()> {
        let destination = self.peer.ok_or(io::ErrorKind::NotConnected)?;
        let segment_size = (contents.len() > DATAGRAM_BYTES).then_some(DATAGRAM_BYTES);
        let ecn = Some(EcnCodepoint::Ect0);
        let transmit = Transmit { destination, ecn, contents, segment_size, src_ip: None };
        loop {
            match self.socket.try_send(&transmit) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    poll_fn(|context| self.writable.as_mut().poll_writable(context)).await?;
                }
                sent => return sent,
            }
        }
    }

    /// Waits until datagrams arrive, and receives all available datagrams.
    async fn batch(&mut self) -> io::Result<ReceivedBatch> {
        let mut metas = [RecvMeta::default(); BATCH_SIZE];
        let DatagramEndpoint { socket, room, .. } = self;
        let part_bytes = room.len() / BATCH_SIZE;
        let count = {
            let mut parts = room.chunks_exact_mut(part_bytes);
            let mut rooms: [IoSliceMut<'_>; BATCH_SIZE] =
                std::array::from_fn(|_| IoSliceMut::new(parts.next().unwrap_or_default()));
            poll_fn(|context| socket.poll_recv(context, &mut rooms, &mut metas)).await?
        };
        let mut received = ReceivedBatch::default();
        for (meta, part) in metas[..count].iter().zip(self.room.chunks_exact(part_bytes)) {
            self.peer = Some(meta.addr);
            part[..meta.len].chunks(meta.stride.max(1)).for_each(|datagram| received.add(datagram));
        }
        Ok(received)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::ledger::echo::ReplySendMethod;

    fn line(peer: Option<SocketAddr>) -> (DatagramEndpoint, SocketAddr) {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        (DatagramEndpoint::new(socket, peer).unwrap(), address)
    }

    fn order(request_bytes: usize, body_bytes: usize) -> EchoRequest {
        EchoRequest { request_bytes, head_bytes: 100, body_bytes, form: ReplySendMethod::Bytes }
    }

    #[test]
    fn messages_of_any_size_arrive_in_both_directions() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (mut far, address) = line(None);
            let (mut near, _) = line(Some(address));
            let answer = vec![1; 3 << 20];
            for (request_bytes, body_bytes) in [(100, 1), (300, 2 << 20), (2 << 20, 5), (1452, 1453)] {
                let asked = order(request_bytes, body_bytes);
                let serve = async {
                    let order = far.order(&answer).await.unwrap();
                    assert_eq!((order.request_bytes, order.body_bytes), (request_bytes, body_bytes));
                    far.send(&answer[..order.head_bytes + order.body_bytes]).await.unwrap();
                };
                let ask = async {
                    near.send(&asked.to_bytes()).await.unwrap();
                    near.receive(100 + body_bytes).await.unwrap();
                };
                tokio::join!(serve, ask);
            }
        });
    }

    /// A response is received completely, even if one of its datagrams is lost.
    #[test]
    fn missing_bytes_are_asked_for() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (mut far, address) = line(None);
            let (mut near, _) = line(Some(address));
            let answer = vec![1; 1000];
            near.send(&order(100, 900).to_bytes()).await.unwrap();
            far.order(&answer).await.unwrap();
            far.send(&answer[..600]).await.unwrap();
            tokio::select! {
                _ = far.order(&answer) => panic!("no second request was sent"),
                received = near.receive(1000) => received.unwrap(),
            }
        });
    }

    #[test]
    fn only_short_datagrams_with_a_mark_are_acknowledgements() {
        let mut datagram = [0; CONTROL_BYTES];
        datagram[..4].copy_from_slice(&MISSING);
        datagram[4] = 7;
        assert_eq!(control(&datagram), Some((MISSING, 7)));
        assert_eq!(control(&datagram[..39]), None);
        assert_eq!(control(&[1; CONTROL_BYTES]), None);
        assert_eq!(control(b"ack!"), None);
    }
}
