//! The thread that carries packets from one device to the other, at the time they are due.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fordway_measure::Clock;
use fordway_sys::{PacketHeader, TUN_READ_BYTES_MAX, Tun};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::bottleneck::{Bottleneck, Fate};
use super::flight::Flight;
use super::{DirectionStats, LinkConfig, LinkStats};

/// Packets taken from one device before the other has its turn.
const BATCH: usize = 64;
/// The most memory that packets on their way may take in one direction: a link without a rate has no other bound.
const FLIGHT_BYTES_MAX: usize = 1 << 30;

/// While packets are on their way, the thread looks for others no oftener than this, or than a tenth of the
/// round trip: waking up costs more than carrying a packet. A packet that is alone on the link waits for nothing.
const NAP_NS_MAX: u64 = 200_000;

/// Everything the thread works with.
pub(super) struct Engine {
    clock: Clock,
    nap_ns: u64,
    devices: [Tun; 2],
    there: Direction,
    back: Direction,
    stop: Arc<OwnedFd>,
    shared: Arc<Mutex<LinkStats>>,
}

struct Direction {
    line: Bottleneck,
    flight: Flight,
    stats: DirectionStats,
}

impl Engine {
    pub(super) fn new(
        devices: [Tun; 2],
        config: &LinkConfig,
        stop: Arc<OwnedFd>,
        shared: Arc<Mutex<LinkStats>>,
    ) -> Self {
        let direction = |number| Direction {
            line: Bottleneck::new(config, number),
            flight: Flight::new(TUN_READ_BYTES_MAX),
            stats: DirectionStats::default(),
        };
        let nap_ns = u64::try_from(config.rtt.as_nanos() / 10).map_or(NAP_NS_MAX, |ns| ns.min(NAP_NS_MAX));
        Engine {
            clock: Clock::start(),
            nap_ns,
            devices,
            there: direction(0),
            back: direction(1),
            stop,
            shared,
        }
    }

    /// Carries packets until it is told to stop.
    pub(super) fn run(&mut self) {
        // Without it packets are up to 50 µs late, and nothing else.
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

    /// Whether any are on their way.
    fn has_packets(&self) -> bool {
        self.there.flight.due_ns().is_some() || self.back.flight.due_ns().is_some()
    }

    /// Takes in and hands over what there is; answers whether there may be more at once.
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

    /// Waits for a packet to come or to be due; answers whether it is time to stop.
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
        // A signal is as good as an event: all is looked at anyway.
        let _ = poll(&mut events, timeout.as_ref());
        !events[2].revents().is_empty()
    }
}

impl Direction {
    /// Reads what waits at a device; answers whether more may wait.
    fn take_in(&mut self, from: &Tun, clock: Clock) -> bool {
        for _ in 0..BATCH {
            // A device that is down or gone says so by an error, and has nothing to give.
            let Ok(Some(len)) = from.receive(self.flight.room()) else { return false };
            let Some((header, packet)) = PacketHeader::split(&self.flight.room()[..len]) else { continue };
            let (segments, bytes) = on_the_wire(header, packet.len() as u64);
            match self.line.admit(clock.now_ns(), bytes, segments) {
                Fate::ArrivesAt(_) if self.flight.is_full(FLIGHT_BYTES_MAX) => {
                    self.stats.dropped_by_queue += segments;
                }
                Fate::ArrivesAt(due_ns) => {
                    self.flight.push(len, due_ns);
                    self.stats.packets += segments;
                    self.stats.bytes += bytes;
                }
                Fate::Overflows => self.stats.dropped_by_queue += segments,
                Fate::IsLost => self.stats.lost += segments,
            }
        }
        true
    }

    /// Writes what is due to the other device.
    fn hand_over(&mut self, to: &Tun, clock: Clock) {
        let mut now_ns = clock.now_ns();
        while let Some(due_ns) = self.flight.due_ns() {
            // Handing over takes time, in which more may have come due.
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

/// As how many packets of how many bytes in all a real device would send this one.
fn on_the_wire(header: PacketHeader, bytes: u64) -> (u64, u64) {
    let PacketHeader { header_bytes, segment_bytes } = header;
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
        let tcp = PacketHeader { header_bytes: 52, segment_bytes: 1448 };
        assert_eq!(on_the_wire(tcp, 52 + 1448), (1, 1500));
        assert_eq!(on_the_wire(tcp, 52 + 1449), (2, 1500 + 53));
        assert_eq!(on_the_wire(tcp, 52 + 44 * 1448), (44, 44 * 1500));
        assert_eq!(on_the_wire(PacketHeader { header_bytes: 0, segment_bytes: 0 }, 84), (1, 84));
    }
}
