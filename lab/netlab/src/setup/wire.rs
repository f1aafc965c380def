//! The wire between the two networks of a set-up, and how TCP behaves in all of them.

use std::process::Command;
use std::time::Duration;

use fordway_store::{Error, ErrorKind, Result};
use serde::Serialize;

use super::step::run_in;
use super::words::Words;
use crate::congestion::set_algorithm;
use crate::link::DEVICE;
use crate::{Lab, LabConfig, LinkConfig, Namespace};

/// The largest packet where nothing else is said: a device's own.
const MTU_BYTES: u32 = 1500;
/// What overlays put before a packet: VXLAN by IPv4, and WireGuard by either.
const HEADERS_BYTES: [u32; 2] = [50, 80];
/// How long a packet may wait for a line of some rate.
const QUEUE_TIME_MS: u64 = 50;

/// What is between the two networks. By default virtual Ethernet, as fast as the machine is.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Wire {
    /// Bits per second, each way: by a token bucket (tbf), or by the link emulator where it is asked for.
    pub rate_bits_per_s: Option<u64>,
    /// A round trip, added by the link emulator.
    pub rtt: Duration,
    /// The share of packets that the link emulator loses, 0 to 1.
    pub loss: f64,
    /// Equal seeds lose the same packets of equal sequences.
    pub seed: u64,
    /// The largest packet, bytes; `None` for the device's 1,500.
    pub mtu_bytes: Option<u32>,
    /// Whether the wire takes pieces of up to 64 KiB, as network cards do that cut them themselves.
    pub is_offloading: bool,
    /// With how much TCP's receive buffers begin, bytes (the second number of `tcp_rmem`); `None` for the kernel's.
    pub tcp_rmem_bytes: Option<u64>,
    /// TCP's congestion control; `None` for the kernel's.
    pub congestion_control: Option<String>,
}

impl Wire {
    /// Whether packets pass the link emulator.
    pub fn is_emulated(&self) -> bool {
        !self.rtt.is_zero() || self.loss > 0.0
    }

    /// Whether anything is said about it, and about TCP, that only networks of our own can have.
    pub(super) fn is_altered(&self) -> bool {
        let plain = Wire { seed: self.seed, is_offloading: true, ..Wire::default() };
        *self != plain
    }

    /// Makes both networks and joins them.
    pub(super) fn lay(&self) -> Result<Lab> {
        let link = LinkConfig {
            rtt: self.rtt,
            rate_bits_per_s: self.rate_bits_per_s,
            loss: self.loss,
            seed: self.seed,
            large_packets: Some(self.is_offloading && self.loss == 0.0),
            ..LinkConfig::default()
        };
        let congestion_control = self.congestion_control.clone();
        let link = self.is_emulated().then_some(link);
        let lab = Lab::new(&LabConfig { link, tcp_buffer_bytes: None, congestion_control })?;
        for end in [&lab.server, &lab.client] {
            self.shape(end)?;
        }
        Ok(lab)
    }

    /// Makes one end of the wire what it is to be.
    fn shape(&self, end: &Namespace) -> Result<()> {
        if let Some(mtu) = self.mtu_bytes {
            end.ip(&format!("link set {DEVICE} mtu {mtu}"))?;
        }
        if !self.is_offloading && !self.is_emulated() {
            end.ip(&format!("link set {DEVICE} gso_max_segs 1"))?;
        }
        match self.rate_bits_per_s {
            Some(rate) if !self.is_emulated() => limit_rate(end, rate),
            _ => Ok(()),
        }
    }

    /// Says how large packets may be: `{mtu}` on the wire, and `{mtu-50}`, `{mtu-80}` within an overlay's headers.
    pub(super) fn describe(&self, words: &mut Words) {
        let mtu = self.mtu_bytes.unwrap_or(MTU_BYTES);
        words.set("mtu", mtu.to_string());
        for headers in HEADERS_BYTES {
            words.set(&format!("mtu-{headers}"), mtu.saturating_sub(headers).to_string());
        }
    }

    /// Has TCP behave alike in a network, whatever else it is.
    pub(super) fn tune(&self, network: &Namespace) -> Result<()> {
        // One connection for each request uses up the ports of a client in seconds.
        network.set("net/ipv4/ip_local_port_range", "1024 65535")?;
        network.set("net/ipv4/tcp_tw_reuse", "1")?;
        network.set("net/ipv4/tcp_no_metrics_save", "1")?;
        if let Some(name) = &self.congestion_control {
            set_algorithm(network, name)?;
        }
        let Some(start) = self.tcp_rmem_bytes else { return Ok(()) };
        let now = network.get("net/ipv4/tcp_rmem")?;
        let [least, _, most] = now.split(' ').collect::<Vec<_>>()[..] else {
            return Err(Error::new(ErrorKind::Internal, format!("tcp_rmem is {now:?}")));
        };
        let most = most.parse::<u64>().unwrap_or(start).max(start);
        network.set("net/ipv4/tcp_rmem", &format!("{least} {start} {most}"))
    }
}

/// A token bucket whose burst lets the largest piece through, and a tick's worth of the rate.
fn limit_rate(end: &Namespace, rate_bits_per_s: u64) -> Result<()> {
    let in_a_tick = rate_bits_per_s / 8 / 250;
    let (burst, queue) = (in_a_tick.max(128 << 10), rate_bits_per_s / 8 * QUEUE_TIME_MS / 1_000);
    let mut command = Command::new("tc");
    let (rate, burst, limit) =
        (format!("{rate_bits_per_s}bit"), burst.to_string(), (queue + burst).to_string());
    let words =
        ["qdisc", "add", "dev", DEVICE, "root", "tbf", "rate", &rate, "burst", &burst, "limit", &limit];
    command.args(words);
    run_in(end, None, command, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_of_an_overlay_fit_into_those_of_the_wire() {
        let filled = |mtu_bytes| {
            let mut words = Words::default();
            Wire { mtu_bytes, ..Wire::default() }.describe(&mut words);
            words.fill("{mtu} {mtu-50} {mtu-80}").unwrap()
        };
        assert_eq!(filled(None), "1500 1450 1420");
        assert_eq!(filled(Some(9000)), "9000 8950 8920");
    }

    #[test]
    fn a_wire_of_which_nothing_is_said_is_not_altered() {
        let plain = Wire { is_offloading: true, seed: 7, ..Wire::default() };
        assert!(!plain.is_altered());
        assert!(Wire { rate_bits_per_s: Some(1), ..plain.clone() }.is_altered());
        assert!(Wire { congestion_control: Some("reno".to_owned()), ..plain.clone() }.is_altered());
        assert!(Wire { is_offloading: false, ..plain }.is_altered());
    }
}
