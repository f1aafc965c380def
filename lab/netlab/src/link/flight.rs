//! The packets that are on their way.

use std::collections::VecDeque;

/// Memory is taken in pieces of this size, and used again: what is in flight is all that is ever touched.
const CHUNK_BYTES: usize = 1 << 20;

/// Packets in the order of their arrival, read straight into where they wait.
#[derive(Debug)]
pub(super) struct Flight {
    /// The most that one packet may need.
    packet_bytes_max: usize,
    packets: VecDeque<Packet>,
    /// Never empty; the last is being filled.
    chunks: VecDeque<Chunk>,
    /// The one used last is used first, because it is still in the processor's cache.
    spare: Vec<Box<[u8]>>,
}

#[derive(Debug)]
struct Packet {
    due_ns: u64,
    start: usize,
    end: usize,
}

#[derive(Debug)]
struct Chunk {
    bytes: Box<[u8]>,
    filled: usize,
    /// How many packets in it wait.
    waiting: usize,
}

impl Chunk {
    fn new(bytes: Box<[u8]>) -> Self {
        Chunk { bytes, filled: 0, waiting: 0 }
    }
}

impl Flight {
    pub(super) fn new(packet_bytes_max: usize) -> Self {
        let first = Chunk::new(vec![0; CHUNK_BYTES.max(packet_bytes_max)].into());
        Flight { packet_bytes_max, packets: VecDeque::new(), chunks: [first].into(), spare: Vec::new() }
    }

    /// Where the next packet may be read to; room for the largest.
    pub(super) fn room(&mut self) -> &mut [u8] {
        let last = self.chunks.len() - 1;
        let is_full = self.chunks[last].bytes.len() - self.chunks[last].filled < self.packet_bytes_max;
        if is_full {
            let bytes =
                self.spare.pop().unwrap_or_else(|| vec![0; CHUNK_BYTES.max(self.packet_bytes_max)].into());
            self.chunks.push_back(Chunk::new(bytes));
        }
        let last = self.chunks.len() - 1;
        let chunk = &mut self.chunks[last];
        &mut chunk.bytes[chunk.filled..]
    }

    /// Keeps the first `len` bytes of the room until `due_ns`, which must not lie before the last one's.
    pub(super) fn push(&mut self, len: usize, due_ns: u64) {
        let last = self.chunks.len() - 1;
        let chunk = &mut self.chunks[last];
        let start = chunk.filled;
        chunk.filled += len;
        chunk.waiting += 1;
        self.packets.push_back(Packet { due_ns, start, end: start + len });
    }

    /// When the first packet is due.
    pub(super) fn due_ns(&self) -> Option<u64> {
        self.packets.front().map(|packet| packet.due_ns)
    }

    /// The first packet.
    pub(super) fn first(&self) -> Option<&[u8]> {
        let (packet, chunk) = self.packets.front().zip(self.chunks.front())?;
        Some(&chunk.bytes[packet.start..packet.end])
    }

    /// Forgets the first packet.
    pub(super) fn pop(&mut self) {
        if self.packets.pop_front().is_none() {
            return;
        }
        let is_alone = self.chunks.len() == 1;
        let chunk = &mut self.chunks[0];
        chunk.waiting -= 1;
        match (chunk.waiting, is_alone) {
            (0, true) => chunk.filled = 0,
            (0, false) => self.spare.extend(self.chunks.pop_front().map(|chunk| chunk.bytes)),
            _ => {}
        }
    }

    /// Memory in use and to be used again, bytes.
    pub(super) fn held_bytes(&self) -> usize {
        (self.chunks.len() + self.spare.len()) * CHUNK_BYTES.max(self.packet_bytes_max)
    }

    /// Whether all memory that may be had is in use.
    pub(super) fn is_full(&self, held_bytes_max: usize) -> bool {
        self.spare.is_empty() && self.held_bytes() >= held_bytes_max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_come_out_as_they_went_in_and_memory_is_used_again() {
        let mut flight = Flight::new(100_000);
        let (mut next_in, mut next_out) = (0u64, 0u64);
        let len = |n: u64| (n as usize * 7_919) % 60_000 + 8;
        for round in 0..200 {
            for _ in 0..(round * 13) % 70 {
                let room = flight.room();
                assert!(room.len() >= 100_000);
                room[..8].copy_from_slice(&next_in.to_le_bytes());
                flight.push(len(next_in), next_in);
                next_in += 1;
            }
            for _ in 0..(round * 29) % 70 {
                let Some(packet) = flight.first() else { break };
                assert_eq!((packet.len(), &packet[..8]), (len(next_out), &next_out.to_le_bytes()[..]));
                assert_eq!(flight.due_ns(), Some(next_out));
                flight.pop();
                next_out += 1;
            }
        }
        let most = flight.held_bytes();
        while flight.first().is_some() {
            flight.pop();
            next_out += 1;
        }
        assert_eq!(next_in, next_out);
        assert!(next_in > 5_000);
        assert_eq!(flight.held_bytes(), most, "nothing is given back, nothing is lost");
        assert_eq!((flight.due_ns(), flight.chunks.len()), (None, 1));
    }
}
