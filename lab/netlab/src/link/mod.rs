//! An emulated link between two namespaces, through which every packet passes.
//!
//! Each end is a TUN device. A thread reads the packets that one namespace sends, and decides what a real line would do
//! with each packet. The thread delays the packet by the time that the line would take, and writes it to the other
//! namespace. Rates count bytes of IP packets, headers included: 1448 bytes of TCP content count as 1500 bytes.
//!
//! With `large_packets`, the kernel leaves segmentation to the device, and up to 64 KiB pass as one large packet. Large
//! packets reduce the CPU time at gigabit rates, but have two side effects. A large packet arrives as a whole, at the
//! time at which its last byte would arrive (at 1 Gbit/s, its first segment is 0.5 ms late). A loss drops a whole large
//! packet, with the probability that at least one of its segments is lost. Therefore `large_packets` is off by default
//! if the link loses packets.

mod flight;

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use fordway_measure::RunClock;
use fordway_store::{Error, ErrorKind, Result};
use fordway_sys::{TUN_READ_BYTES_MAX, TunDevice, VirtioNetHeader};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use serde::Serialize;

use self::flight::{InFlightPacketQueue, LinkBottleneck, PacketFate};
use crate::NetworkNamespace;
use crate::namespace::refused;

/// The name of the devices in both namespaces.
pub(crate) const DEVICE: &str = "fw0";

/// The properties of a link. The default is a line of unlimited rate, without delay, queue or loss.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LinkConfig {
    /// The round-trip time; the delay in each direction is half of the round-trip time.
    pub rtt: Duration,
    /// The rate in bits of IP packets per second in each direction; `None` for no limit.
    pub rate_bits_per_s: Option<u64>,
    /// The size of the queue in front of the line, in bytes. Packets that do not fit are dropped. `None` means the
    /// bandwidth-delay product, but at least 256 KiB.
    pub queue_bytes: Option<u64>,
    /// The share of packets that are lost, 0 to 1.
    pub loss: f64,
    /// The seed of random losses. For equal sequences of packets, links with equal seeds lose the same packets.
    pub seed: u64,
    /// Whether segments of up to 64 KiB in total pass as one packet (TSO); `None` means yes if `loss` is 0, and
    /// otherwise no.
    pub large_packets: Option<bool>,
}

impl LinkConfig {
    /// Returns the size of the queue in front of the line, in bytes.
    pub fn queue_or_default_bytes(&self) -> u64 {
        let in_a_round_trip = self.rate_bits_per_s.unwrap_or(0) as f64 / 8.0 * self.rtt.as_secs_f64();
        self.queue_bytes.unwrap_or((in_a_round_trip as u64).max(256 << 10))
    }

    /// Returns whether segments of up to 64 KiB in total pass as one packet (TSO).
    pub fn has_large_packets(&self) -> bool {
        self.large_packets.unwrap_or(self.loss == 0.0)
    }

    fn check(&self) -> Result<()> {
        let problem = match self {
            LinkConfig { loss, .. } if !(0.0..=1.0).contains(loss) => "a loss outside of 0 to 1",
            LinkConfig { rtt, .. } if *rtt > Duration::from_secs(60) => "a round trip of more than a minute",
            LinkConfig { rate_bits_per_s: Some(0), .. } => "a rate of 0",
            _ => return Ok(()),
        };
        Err(Error::new(ErrorKind::InvalidArgument, format!("invalid link: {problem}")))
    }
}

/// The counters of a link since it was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LinkStats {
    /// Traffic from the first namespace to the second.
    pub there: DirectionStats,
    /// Traffic from the second namespace to the first.
    pub back: DirectionStats,
    /// CPU time of the emulation, including the kernel's work for receiving.
    pub cpu_ns: u64,
}

/// The counters of one direction of a link since it was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DirectionStats {
    /// Packets that were neither dropped nor lost. A large packet counts as the number of its segments.
    pub packets: u64,
    /// The bytes of the IP packets in `packets`, headers included.
    pub bytes: u64,
    /// Packets dropped because the queue, or the memory for packets in flight, was full.
    pub dropped_by_queue: u64,
    /// Packets lost at random, as configured.
    pub lost: u64,
    /// Packets that the receiving namespace refused. The number should be 0.
    pub refused: u64,
}

/// A running link. Dropping this value stops the link and removes its devices.
#[derive(Debug)]
pub struct EmulatedLink {
    stats: Arc<Mutex<LinkStats>>,
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl EmulatedLink {
    /// Joins two namespaces by devices called `fw0` with the given addresses (such as `10.0.0.1/24`).
    ///
    /// Errors: `InvalidArgument` for invalid link properties; `NotImplemented` if this process is not permitted to
    /// create network devices. Cost: two system calls for each packet, to read and to write the packet; no system calls
    /// while there is no traffic.
    pub fn new(ends: [(&NetworkNamespace, &str); 2], config: &LinkConfig) -> Result<Self> {
        config.check()?;
        let large_packets = config.has_large_packets();
        let [first, second] = ends.map(|(namespace, address)| open_end(namespace, address, large_packets));
        let devices = [first?, second?];
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| Error::new(ErrorKind::Io, "creating an eventfd").caused_by(error))?;
        let (stop, stats) = (Arc::new(stop), Arc::new(Mutex::new(LinkStats::default())));
        let mut engine = LinkEmulatorState::new(devices, config, Arc::clone(&stop), Arc::clone(&stats));
        let thread = std::thread::Builder::new().name("netlab-link".to_owned());
        let thread = thread
            .spawn(move || engine.run())
            .map_err(|error| Error::new(ErrorKind::Io, "starting a thread").caused_by(error))?;
        Ok(EmulatedLink { stats, stop, thread: Some(thread) })
    }

    /// Returns the counters since the link was created.
    pub fn stats(&self) -> LinkStats {
        *self.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Creates the device at one end of a link.
fn open_end(namespace: &NetworkNamespace, address: &str, large_packets: bool) -> Result<TunDevice> {
    let device = namespace
        .run(|| TunDevice::new(DEVICE, large_packets))?
        .map_err(|error| refused("creating a network device", error))?;
    // The queue in front of the device is not part of the link, so this queue must never drop packets.
    namespace
        .ip(&format!("link set {DEVICE} txqueuelen 100000 mtu 1500 up\naddr add {address} dev {DEVICE}"))?;
    Ok(device)
}

impl Drop for EmulatedLink {
    fn drop(&mut self) {
        // The write fails only if the eventfd's counter is full, which a single write cannot cause.
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The maximum number of packets to read from one device before the other device is read.
const BATCH: usize = 64;
/// The maximum memory for packets in flight in one direction. For a link without a rate, this constant is the only
/// limit on the memory.
const FLIGHT_BYTES_MAX: usize = 1 << 30;

/// The maximum pause between polls for new packets while packets are in flight. The pause is a tenth of the round-trip
/// time, but at most this constant. The thread pauses because waking up costs more than carrying a packet. A packet
/// that is alone on the link is not delayed.
const NAP_NS_MAX: u64 = 200_000;

/// The state of the link's thread.
struct LinkEmulatorState {
    clock: RunClock,
    nap_ns: u64,
    devices: [TunDevice; 2],
    there: LinkDirectionState,
    back: LinkDirectionState,
    stop: Arc<OwnedFd>,
    shared: Arc<Mutex<LinkStats>>,
}

struct LinkDirectionState {
    line: LinkBottleneck,
    flight: InFlightPacketQueue,
    stats: DirectionStats,
}

impl LinkEmulatorState {
    fn new(
        devices: [TunDevice; 2],
        config: &LinkConfig,
        stop: Arc<OwnedFd>,
        shared: Arc<Mutex<LinkStats>>,
    ) -> Self {
        let direction = |number| LinkDirectionState {
            line: LinkBottleneck::new(config, number),
            flight: InFlightPacketQueue::new(TUN_READ_BYTES_MAX),
            stats: DirectionStats::default(),
        };
        let nap_ns = u64::try_from(config.rtt.as_nanos() / 10).map_or(NAP_NS_MAX, |ns| ns.min(NAP_NS_MAX));
        LinkEmulatorState {
            clock: RunClock::start(),
            nap_ns,
            devices,
            there: direction(0),
            back: direction(1),
            stop,
            shared,
        }
    }

    /// Carries packets until the stop event is signalled.
    fn run(&mut self) {
        // Ignore the error: without precise timers, packets are up to 50 µs late, but nothing else changes.
        let _ = fordway_sys::precise_timers();
        let mut is_told_to_stop = false;
        while !is_told_to_stop {
            let woke_at_ns = self.clock.now_ns();
            let mut is_behind = self.carry();
            if !is_behind && self.has_packets() {
                let worked_ns = self.clock.now_ns() - woke_at_ns;
                std::thread::sleep(Duration::from_nanos(self.nap_ns.saturating_sub(worked_ns)));
                is_behind = self.carry();
            }
            self.share();
            is_told_to_stop = self.wait(is_behind);
        }
    }

    /// Returns whether any packets are in flight.
    fn has_packets(&self) -> bool {
        self.there.flight.due_ns().is_some() || self.back.flight.due_ns().is_some()
    }

    /// Reads new packets and delivers due packets in both directions; returns whether more packets may already be
    /// waiting.
    fn carry(&mut self) -> bool {
        let [first, second] = &self.devices;
        let more_there = self.there.take_in(first, self.clock);
        self.there.hand_over(second, self.clock);
        let more_back = self.back.take_in(second, self.clock);
        self.back.hand_over(first, self.clock);
        more_there || more_back
    }

    fn share(&self) {
        let stats = LinkStats {
            there: self.there.stats,
            back: self.back.stats,
            cpu_ns: fordway_sys::thread_cpu_ns(),
        };
        *self.shared.lock().unwrap_or_else(PoisonError::into_inner) = stats;
    }

    /// Waits until a packet arrives or is due; returns whether the link must stop.
    fn wait(&self, is_behind: bool) -> bool {
        let now_ns = self.clock.now_ns();
        let due_ns = [self.there.flight.due_ns(), self.back.flight.due_ns()].into_iter().flatten().min();
        let wait_ns = if is_behind { Some(0) } else { due_ns.map(|due| due.saturating_sub(now_ns)) };
        let timeout = wait_ns
            .map(|ns| Timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 });
        let [first, second] = &self.devices;
        let mut events = [
            PollFd::new(first, PollFlags::IN),
            PollFd::new(second, PollFlags::IN),
            PollFd::new(&*self.stop, PollFlags::IN),
        ];
        // If a signal interrupts the wait, continue: after every wait, the thread checks both devices and all due
        // times.
        let _ = poll(&mut events, timeout.as_ref());
        !events[2].revents().is_empty()
    }
}

impl LinkDirectionState {
    /// Reads the packets waiting at a device; returns whether more may be waiting.
    fn take_in(&mut self, from: &TunDevice, clock: RunClock) -> bool {
        for _ in 0..BATCH {
            // A device that is down or removed returns an error, and has no packets.
            let Ok(Some(len)) = from.receive(self.flight.room()) else { return false };
            let Some((header, packet)) = VirtioNetHeader::split(&self.flight.room()[..len]) else { continue };
            let (segments, bytes) = on_the_wire(header, packet.len() as u64);
            match self.line.admit(clock.now_ns(), bytes, segments) {
                PacketFate::ArrivesAt(_) if self.flight.is_full(FLIGHT_BYTES_MAX) => {
                    self.stats.dropped_by_queue += segments;
                }
                PacketFate::ArrivesAt(due_ns) => {
                    self.flight.push(len, due_ns);
                    self.stats.packets += segments;
                    self.stats.bytes += bytes;
                }
                PacketFate::Overflows => self.stats.dropped_by_queue += segments,
                PacketFate::IsLost => self.stats.lost += segments,
            }
        }
        true
    }

    /// Writes the packets that are due to the receiving device.
    fn hand_over(&mut self, to: &TunDevice, clock: RunClock) {
        let mut now_ns = clock.now_ns();
        while let Some(due_ns) = self.flight.due_ns() {
            // Delivery takes time, so further packets may have become due.
            if due_ns > now_ns {
                now_ns = clock.now_ns();
                if due_ns > now_ns {
                    return;
                }
            }
            if self.flight.first().is_some_and(|packet| to.send(packet).is_err()) {
                self.stats.refused += 1;
            }
            self.flight.pop();
        }
    }
}

/// Returns how many packets a real device would send instead of this packet, and their total bytes.
fn on_the_wire(header: VirtioNetHeader, bytes: u64) -> (u64, u64) {
    let VirtioNetHeader { header_bytes, segment_bytes } = header;
    if segment_bytes == 0 || bytes <= header_bytes {
        return (1, bytes);
    }
    let segments = (bytes - header_bytes).div_ceil(segment_bytes);
    (segments, bytes + (segments - 1) * header_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_packets_count_as_what_they_are_cut_into() {
        let tcp = VirtioNetHeader { header_bytes: 52, segment_bytes: 1448 };
        assert_eq!(on_the_wire(tcp, 52 + 1448), (1, 1500));
        assert_eq!(on_the_wire(tcp, 52 + 1449), (2, 1500 + 53));
        assert_eq!(on_the_wire(tcp, 52 + 44 * 1448), (44, 44 * 1500));
        assert_eq!(on_the_wire(VirtioNetHeader { header_bytes: 0, segment_bytes: 0 }, 84), (1, 84));
    }
}
