//! A link between two namespaces, emulated packet by packet.
//!
//! Each end is a TUN device. A thread reads what one namespace sends, decides what a real line would do to
//! it, keeps it for as long as it would take, and writes it to the other. Rates count bytes of IP, headers
//! included: a line of 1 Gbit/s carries 1448 bytes of TCP content in the time of 1500.
//!
//! With `large_packets` the kernel leaves the cutting into segments to the device, and up to 64 KiB go
//! through in one piece. That is what makes gigabits cheap, and it changes two things: a piece arrives as
//! a whole, when its last byte would (0.5 ms late for the first at 1 Gbit/s), and loss takes the whole
//! piece, with the probability that one of its segments is hit. So it is off by default where there is loss.

mod bottleneck;
mod engine;
mod flight;

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use fordway_store::{Error, ErrorKind, Result};
use fordway_sys::Tun;
use rustix::event::{EventfdFlags, eventfd};
use serde::Serialize;

use crate::Namespace;
use crate::namespace::refused;
use engine::Engine;

/// What the devices are called in both namespaces.
pub(crate) const DEVICE: &str = "fw0";

/// What a link is like. The default is a line of any rate without delay, queue or loss.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LinkConfig {
    /// Time there and back, half of it each way.
    pub rtt: Duration,
    /// Bits of IP packets per second, each way; `None` for no limit.
    pub rate_bits_per_s: Option<u64>,
    /// How many bytes may wait for the line before what comes last is dropped; `None` for what the line
    /// carries in a round trip, but at least 256 KiB.
    pub queue_bytes: Option<u64>,
    /// The share of packets that is lost on the way, 0 to 1.
    pub loss: f64,
    /// Equal seeds lose the same packets of equal sequences.
    pub seed: u64,
    /// Whether pieces of up to 64 KiB go through as one; `None` for yes unless there is loss.
    pub large_packets: Option<bool>,
}

impl LinkConfig {
    /// How many bytes may wait for the line.
    pub fn queue_or_default_bytes(&self) -> u64 {
        let in_a_round_trip = self.rate_bits_per_s.unwrap_or(0) as f64 / 8.0 * self.rtt.as_secs_f64();
        self.queue_bytes.unwrap_or((in_a_round_trip as u64).max(256 << 10))
    }

    /// Whether pieces of up to 64 KiB go through as one.
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
        Err(Error::new(ErrorKind::InvalidArgument, format!("no link has {problem}")))
    }
}

/// What went through a link so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LinkStats {
    /// What the first namespace sent to the second.
    pub there: DirectionStats,
    /// What the second sent to the first.
    pub back: DirectionStats,
    /// CPU time of the emulation, in which the kernel's work of receiving is included.
    pub cpu_ns: u64,
}

/// What went through one direction of a link so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DirectionStats {
    /// Packets that arrived, as they would be on a real line.
    pub packets: u64,
    /// Their bytes of IP, headers included.
    pub bytes: u64,
    /// Packets that the queue had no room for.
    pub dropped_by_queue: u64,
    /// Packets that were lost as the configuration asks.
    pub lost: u64,
    /// Packets that the receiving namespace refused, which no link should have.
    pub refused: u64,
}

/// A running link; it ends, and its devices are gone, when this is dropped.
#[derive(Debug)]
pub struct Link {
    stats: Arc<Mutex<LinkStats>>,
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Link {
    /// Joins two namespaces by devices called `fw0` with these addresses (such as `10.0.0.1/24`).
    ///
    /// Errors: `InvalidArgument` for a link that cannot be, `NotImplemented` where this process may not make
    /// network devices. Cost while packets pass: two system calls for each piece; none while none does.
    pub fn new(ends: [(&Namespace, &str); 2], config: &LinkConfig) -> Result<Self> {
        config.check()?;
        let large_packets = config.has_large_packets();
        let [first, second] = ends.map(|(namespace, address)| open_end(namespace, address, large_packets));
        let devices = [first?, second?];
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| Error::new(ErrorKind::Io, "making an eventfd").caused_by(error))?;
        let (stop, stats) = (Arc::new(stop), Arc::new(Mutex::new(LinkStats::default())));
        let mut engine = Engine::new(devices, config, Arc::clone(&stop), Arc::clone(&stats));
        let thread = std::thread::Builder::new().name("netlab-link".to_owned());
        let thread = thread
            .spawn(move || engine.run())
            .map_err(|error| Error::new(ErrorKind::Io, "starting a thread").caused_by(error))?;
        Ok(Link { stats, stop, thread: Some(thread) })
    }

    /// What went through so far.
    pub fn stats(&self) -> LinkStats {
        *self.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes the device at one end of a link.
fn open_end(namespace: &Namespace, address: &str, large_packets: bool) -> Result<Tun> {
    let device = namespace
        .run(|| Tun::new(DEVICE, large_packets))?
        .map_err(|error| refused("making a network device", error))?;
    // The queue before the device is not the link's: it must never be what drops.
    namespace
        .ip(&format!("link set {DEVICE} txqueuelen 100000 mtu 1500 up\naddr add {address} dev {DEVICE}"))?;
    Ok(device)
}

impl Drop for Link {
    fn drop(&mut self) {
        // An eventfd takes this unless it was told 2^64 times before.
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
