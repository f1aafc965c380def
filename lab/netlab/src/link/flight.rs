//! The packets in flight, and what a link does to each packet: pure arithmetic, without devices or a clock.

use std::collections::VecDeque;

use fordway_measure::SeededRandom;

use super::LinkConfig;

/// The size of the chunks in which memory is allocated and reused. With small chunks, the link uses only as much memory
/// as the packets in flight need.
const CHUNK_BYTES: usize = 1 << 20;

/// The packets in flight, in order of arrival. Each packet is read directly into the memory where it is kept.
#[derive(Debug)]
pub(super) struct InFlightPacketQueue {
    /// The size of the largest possible packet.
    packet_bytes_max: usize,
    packets: VecDeque<FlightPacket>,
    /// The chunks in use, at least one. The last chunk is being filled.
    chunks: VecDeque<PacketChunk>,
    /// Free chunks. The most recently freed chunk is reused first, because it is still in the processor's cache.
    spare: Vec<Box<[u8]>>,
}

#[derive(Debug)]
struct FlightPacket {
    due_ns: u64,
    start: usize,
    end: usize,
}

#[derive(Debug)]
struct PacketChunk {
    bytes: Box<[u8]>,
    filled: usize,
    /// The number of packets in this chunk that are still waiting.
    waiting: usize,
}

impl PacketChunk {
    fn new(bytes: Box<[u8]>) -> Self {
        PacketChunk { bytes, filled: 0, waiting: 0 }
    }
}

impl InFlightPacketQueue {
    pub(super) fn new(packet_bytes_max: usize) -> Self {
        let first = PacketChunk::new(vec![0; CHUNK_BYTES.max(packet_bytes_max)].into());
        InFlightPacketQueue {
            packet_bytes_max,
            packets: VecDeque::new(),
            chunks: [first].into(),
            spare: Vec::new(),
        }
    }

    /// Returns the memory to read the next packet into, with room for the largest packet.
    pub(super) fn room(&mut self) -> &mut [u8] {
        let last = self.chunks.len() - 1;
        let is_full = self.chunks[last].bytes.len() - self.chunks[last].filled < self.packet_bytes_max;
        if is_full {
            let bytes =
                self.spare.pop().unwrap_or_else(|| vec![0; CHUNK_BYTES.max(self.packet_bytes_max)].into());
            self.chunks.push_back(PacketChunk::new(bytes));
        }
        let last = self.chunks.len() - 1;
        let chunk = &mut self.chunks[last];
        &mut chunk.bytes[chunk.filled..]
    }

    /// Adds the packet that fills the first `len` bytes of the memory that `room` returned. The packet is due at
    /// `due_ns`, which must not be earlier than the due time of the previous packet.
    pub(super) fn push(&mut self, len: usize, due_ns: u64) {
        let last = self.chunks.len() - 1;
        let chunk = &mut self.chunks[last];
        let start = chunk.filled;
        chunk.filled += len;
        chunk.waiting += 1;
        self.packets.push_back(FlightPacket { due_ns, start, end: start + len });
    }

    /// Returns the time at which the first packet is due; `None` if no packet is in flight.
    pub(super) fn due_ns(&self) -> Option<u64> {
        self.packets.front().map(|packet| packet.due_ns)
    }

    /// Returns the packet that is due first; `None` if no packet is in flight.
    pub(super) fn first(&self) -> Option<&[u8]> {
        let (packet, chunk) = self.packets.front().zip(self.chunks.front())?;
        Some(&chunk.bytes[packet.start..packet.end])
    }

    /// Removes the first packet. Its chunk becomes free when all packets in the chunk have been removed.
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

    /// Returns the size of the memory in use or free for reuse, in bytes.
    pub(super) fn held_bytes(&self) -> usize {
        (self.chunks.len() + self.spare.len()) * CHUNK_BYTES.max(self.packet_bytes_max)
    }

    /// Returns whether all memory that may be allocated is in use.
    pub(super) fn is_full(&self, held_bytes_max: usize) -> bool {
        self.spare.is_empty() && self.held_bytes() >= held_bytes_max
    }
}

/// The bottleneck of one direction of a link: packets queue for a line with a limited rate, and are then delayed.
#[derive(Debug)]
pub(super) struct LinkBottleneck {
    delay_ns: u64,
    /// The time to send one byte on the line; 0 for a line without a limit.
    ns_per_byte: f64,
    queue_ns: f64,
    /// The time at which the line will have sent all admitted packets, including fractions of a nanosecond: at 100
    /// Gbit/s a byte takes 0.08 ns.
    free_at_ns: f64,
    loss: f64,
    random: SeededRandom,
}

/// What happens to a packet on a link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum PacketFate {
    /// The packet arrives at this time.
    ArrivesAt(u64),
    /// The packet is dropped, because the queue has no room for it.
    Overflows,
    /// The packet is lost at random.
    IsLost,
}

impl LinkBottleneck {
    /// Creates a bottleneck. `direction` is part of the seed, so that the two directions of a link lose different
    /// packets.
    pub(super) fn new(config: &LinkConfig, direction: u64) -> Self {
        let ns_per_byte = config.rate_bits_per_s.map_or(0.0, |rate| 8e9 / rate as f64);
        LinkBottleneck {
            delay_ns: u64::try_from(config.rtt.as_nanos() / 2).unwrap_or(u64::MAX),
            ns_per_byte,
            queue_ns: config.queue_or_default_bytes() as f64 * ns_per_byte,
            free_at_ns: 0.0,
            loss: config.loss,
            random: SeededRandom::new(config.seed.wrapping_mul(2).wrapping_add(direction)),
        }
    }

    /// Admits a packet at `now_ns`. A real line would carry the packet as `segments` packets with a total of `bytes`
    /// bytes.
    pub(super) fn admit(&mut self, now_ns: u64, bytes: u64, segments: u64) -> PacketFate {
        let now = now_ns as f64;
        let starts = self.free_at_ns.max(now);
        if self.ns_per_byte > 0.0 && starts - now > self.queue_ns {
            return PacketFate::Overflows;
        }
        self.free_at_ns = starts + bytes as f64 * self.ns_per_byte;
        // A lost packet occupies the line like any other packet.
        if self.loses(segments) {
            return PacketFate::IsLost;
        }
        PacketFate::ArrivesAt(self.free_at_ns as u64 + self.delay_ns)
    }

    fn loses(&mut self, segments: u64) -> bool {
        if self.loss <= 0.0 {
            return false;
        }
        let all_arrive = (1.0 - self.loss).powi(i32::try_from(segments).unwrap_or(i32::MAX));
        let draw = (self.random.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
        draw >= all_arrive
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn packets_come_out_as_they_went_in_and_memory_is_used_again() {
        let mut flight = InFlightPacketQueue::new(100_000);
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

    fn link() -> LinkConfig {
        LinkConfig {
            rtt: Duration::from_millis(30),
            rate_bits_per_s: Some(1_000_000_000),
            ..Default::default()
        }
    }

    #[test]
    fn packets_follow_each_other_at_the_rate() {
        let mut line = LinkBottleneck::new(&link(), 0);
        let arrivals: Vec<_> = (0..3).map(|_| line.admit(1_000, 1_500, 1)).collect();
        assert_eq!(arrivals, [15_013_000, 15_025_000, 15_037_000].map(PacketFate::ArrivesAt));
        assert_eq!(
            line.admit(1_000_000_000, 1_500, 1),
            PacketFate::ArrivesAt(1_015_012_000),
            "the line was idle"
        );
    }

    #[test]
    fn a_full_queue_drops_what_comes_last() {
        let mut line = LinkBottleneck::new(&LinkConfig { queue_bytes: Some(15_000), ..link() }, 0);
        let fates: Vec<_> = (0..20).map(|_| line.admit(0, 1_500, 1)).collect();
        let arrived = fates.iter().take_while(|fate| matches!(fate, PacketFate::ArrivesAt(_))).count();
        assert_eq!(arrived, 11, "ten wait for one");
        assert!(fates[arrived..].iter().all(|fate| *fate == PacketFate::Overflows));
        assert!(matches!(line.admit(12_000, 1_500, 1), PacketFate::ArrivesAt(_)), "one has left");
    }

    #[test]
    fn loss_is_as_asked_and_repeats_with_its_seed() {
        let lost = |seed, segments| {
            let config = LinkConfig { loss: 0.01, seed, rate_bits_per_s: None, ..Default::default() };
            let mut line = LinkBottleneck::new(&config, 1);
            (0..100_000).map(|_| line.admit(0, 1_500, segments) == PacketFate::IsLost).collect::<Vec<_>>()
        };
        let count = |lost: &[bool]| lost.iter().filter(|lost| **lost).count();
        // The tolerance is five standard deviations of 100,000 draws in each direction.
        assert!((840..1_160).contains(&count(&lost(7, 1))), "{}", count(&lost(7, 1)));
        assert!((34_300..35_900).contains(&count(&lost(7, 43))), "{}", count(&lost(7, 43)));
        assert_eq!(lost(7, 1), lost(7, 1));
        assert_ne!(lost(7, 1), lost(8, 1));
    }

    #[test]
    fn a_line_without_a_rate_only_delays() {
        let mut line = LinkBottleneck::new(&LinkConfig { rate_bits_per_s: None, ..link() }, 0);
        assert!((0..9).all(|_| line.admit(5, 65_000, 45) == PacketFate::ArrivesAt(15_000_005)));
    }
}
