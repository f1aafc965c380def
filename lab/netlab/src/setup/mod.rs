//! Set-ups: each set-up defines the commands that start two programs, `ping` and `pong`, and the network between these
//! programs. Each set-up is a small TOML file (`docs/reference/networks.md` explains how to write one), and the usual
//! set-ups are built in. Words in braces are placeholders for values that are known only when a set-up starts.
//! [`WireSettings`] describes the wire between the two networks, and TCP's behaviour in all networks of a set-up.

mod container;
mod kernel;
mod running;
mod step;

pub use container::{ContainerCommand, MachineContainer};
pub use kernel::{KernelCommand, KernelNetworks, USER_MODE_KERNEL_REGISTERS, quoted_for_shell};
pub use running::{NetworkEndpoint, NetworkPair, PingpongSide, RunningNetworkSetup, SetupPrograms};

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use fordway_measure::unknown_name;
use fordway_store::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

use self::step::run_in;
use super::lab::set_algorithm;
use crate::link::DEVICE;
use crate::{LabConfig, LinkConfig, NetworkLab, NetworkNamespace};

/// The built-in set-ups, with the reference first, and templates for the user's own machines.
const BUILT_IN: &[(&str, &str)] = &[
    ("bare", include_str!("../../setups/bare.toml")),
    ("container", include_str!("../../setups/container.toml")),
    ("bridge", include_str!("../../setups/bridge.toml")),
    ("container-bridge", include_str!("../../setups/container-bridge.toml")),
    ("routed", include_str!("../../setups/routed.toml")),
    ("vxlan", include_str!("../../setups/vxlan.toml")),
    ("tunnel", include_str!("../../setups/tunnel.toml")),
    ("ovs", include_str!("../../setups/ovs.toml")),
    ("wireguard", include_str!("../../setups/wireguard.toml")),
    ("vm", include_str!("../../setups/vm.toml")),
    ("loopback", include_str!("../../setups/loopback.toml")),
    ("ssh", include_str!("../../setups/ssh.toml")),
    ("docker", include_str!("../../setups/docker.toml")),
    ("podman", include_str!("../../setups/podman.toml")),
    ("kubernetes", include_str!("../../setups/kubernetes.toml")),
    ("slurm", include_str!("../../setups/slurm.toml")),
];

/// The networks in which a set-up runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SetupNetworkKind {
    /// Network namespaces: the networks `ping` and `pong`, joined by a wire, and any further networks that the set-up
    /// specifies.
    #[default]
    Namespaces,
    /// This machine's network, or any network in which the set-up's commands start the programs.
    Machine,
}

/// A set-up: the networks to create, the steps to take, and the commands that start `ping` and `pong`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct NetworkSetup {
    /// The name of the set-up in tables.
    #[serde(skip)]
    pub name: String,
    /// A description of the set-up, in one sentence.
    pub description: String,
    /// The networks in which the set-up runs.
    #[serde(default)]
    pub on: SetupNetworkKind,
    /// Whether the set-up emulates a machine. Measured times then differ from times on real hardware.
    #[serde(default)]
    pub is_emulated: bool,
    /// The programs that the set-up requires.
    #[serde(default)]
    pub needs: Vec<RequiredProgram>,
    /// Placeholders and their values, which the user may override. The user must supply any value that is empty.
    #[serde(default)]
    pub variables: BTreeMap<String, String>,
    /// Further networks, in addition to the networks `ping` and `pong`.
    #[serde(default)]
    pub networks: Vec<String>,
    /// Whether the steps of the set-up bridge the wire. The wire must then carry Ethernet frames, which the link
    /// emulator does not support.
    #[serde(default)]
    pub needs_ethernet: bool,
    /// The steps to take before `pong` and `ping` start, in order.
    #[serde(default)]
    pub steps: Vec<SetupStep>,
    /// The program that responds to `ping`.
    pub pong: PingpongProgramConfig,
    /// The program that sends requests to `pong`.
    pub ping: PingpongProgramConfig,
}

/// A required program, and the Debian package that contains it.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RequiredProgram {
    /// The name of the program.
    pub program: String,
    /// The Debian package that contains the program.
    pub package: String,
}

/// One step of a set-up. Fields take effect in declaration order.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetupStep {
    /// The network in which the step is taken.
    #[serde(rename = "in")]
    pub network: String,
    /// Kernel parameters of the network, by their paths below `/proc/sys`.
    #[serde(default)]
    pub set: BTreeMap<String, String>,
    /// Commands for the `ip` program, one per line.
    pub ip: Option<String>,
    /// A command that must exit successfully before the next step.
    pub run: Option<Vec<String>>,
    /// The standard input of the `run` command.
    pub input: Option<String>,
    /// A command that runs until the set-up is removed.
    pub start: Option<Vec<String>>,
    /// A file whose existence shows that the `start` command is ready, or `/sys/class/net/NAME` for a network device.
    pub ready: Option<String>,
}

/// The network, address and command of one of the two programs, `ping` or `pong`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PingpongProgramConfig {
    /// The network in which the program runs; `None` if the set-up does not use namespaces.
    #[serde(rename = "in")]
    pub network: Option<String>,
    /// The address of the program: `ping` connects to `pong`'s address, and the load generator connects to `ping`'s
    /// address.
    pub address: String,
    /// The command that starts the program; `None` for the usual command. The program's arguments are appended.
    pub command: Option<Vec<String>>,
    /// Whether the program runs in its own container.
    #[serde(default)]
    pub container: bool,
    /// Whether only the other program can reach this program. This process then cannot wait for the program's port.
    #[serde(default)]
    pub hidden: bool,
}

impl NetworkSetup {
    /// Loads a built-in set-up by its name, or a set-up from a file (if the name contains a slash or ends in `.toml`).
    /// Errors: `InvalidArgument` for an unknown name, or a file that is not a valid set-up.
    pub fn load(name: &str) -> Result<Self> {
        if name.contains('/') || name.ends_with(".toml") {
            let text = std::fs::read_to_string(name).map_err(|error| {
                Error::new(ErrorKind::InvalidArgument, format!("reading the set-up {name}")).caused_by(error)
            })?;
            let stem = Path::new(name).file_stem().unwrap_or_default().to_string_lossy().into_owned();
            return NetworkSetup::parse(&stem, &text);
        }
        match BUILT_IN.iter().find(|(known, _)| *known == name) {
            Some((_, text)) => NetworkSetup::parse(name, text),
            None => {
                let detail =
                    format!("{}; or name a file", unknown_name("set-up", name, &NetworkSetup::names()));
                Err(Error::new(ErrorKind::InvalidArgument, detail))
            }
        }
    }

    /// Returns the names of all built-in set-ups, the reference first.
    pub fn names() -> Vec<&'static str> {
        BUILT_IN.iter().map(|(name, _)| *name).collect()
    }

    /// Returns all built-in set-ups, the reference first.
    pub fn all() -> Result<Vec<Self>> {
        BUILT_IN.iter().map(|(name, text)| NetworkSetup::parse(name, text)).collect()
    }

    /// Parses the text of a set-up. Errors: `InvalidArgument` for text that is not a valid set-up.
    pub fn parse(name: &str, text: &str) -> Result<Self> {
        let wrong = |why: String| Error::new(ErrorKind::InvalidArgument, format!("the set-up {name}: {why}"));
        let setup: NetworkSetup = toml::from_str(text).map_err(|error| wrong(error.to_string()))?;
        let setup = NetworkSetup { name: name.to_owned(), ..setup };
        setup.check().map_err(wrong)?;
        Ok(setup)
    }

    /// Returns whether `ping` or `pong` may run outside of this process and its descendants, as in a container of a
    /// container engine, or on another machine. The commands of such a set-up only ask another program to start them.
    pub fn runs_elsewhere(&self) -> bool {
        let has_command = self.pong.command.is_some() || self.ping.command.is_some();
        self.on == SetupNetworkKind::Machine && has_command
    }

    /// Returns whether the set-up emulates a machine, either by its definition or by its accelerator.
    pub fn emulates(&self) -> bool {
        self.is_emulated || self.accelerator().is_some_and(step::emulates)
    }

    /// Returns the set-up's name for tables and figures, with `(emulated)` appended if the set-up is emulated.
    pub fn label(&self) -> String {
        if self.emulates() { format!("{} (emulated)", self.name) } else { self.name.clone() }
    }

    /// Returns the accelerator of the set-up's virtual machine; `None` if there is no virtual machine.
    fn accelerator(&self) -> Option<&str> {
        self.variables.get(step::ACCELERATOR_WORD).map(|said| step::resolved_accelerator(said))
    }

    /// Returns whether the set-up can run without placeholder values from the user.
    pub fn is_complete(&self) -> bool {
        self.variables.values().all(|value| !value.is_empty())
    }

    /// Returns whether the set-up is measured by default: it runs in namespaces, is complete and is not emulated.
    pub fn is_usual(&self) -> bool {
        self.on == SetupNetworkKind::Namespaces && self.is_complete() && !self.emulates()
    }

    /// Returns the address on which the set-up's programs listen: all addresses in namespaces, but only the loopback
    /// address on a machine.
    pub fn bind(&self) -> &'static str {
        if self.on == SetupNetworkKind::Namespaces { "0.0.0.0" } else { "127.0.0.1" }
    }

    /// Checks the set-up for contradictions. Errors: a description of the first contradiction.
    fn check(&self) -> std::result::Result<(), String> {
        let parts = [&self.ping, &self.pong].map(|part| part.network.as_deref());
        if self.on == SetupNetworkKind::Machine {
            let has_networks = parts.iter().any(Option::is_some) || !self.networks.is_empty();
            return match has_networks || !self.steps.is_empty() {
                true => Err("a set-up on the bare machine has neither networks nor steps".to_owned()),
                false => Ok(()),
            };
        }
        if parts.contains(&None) {
            return Err("ping and pong each need `in`, the name of their network".to_owned());
        }
        let used = parts.iter().flatten().copied().chain(self.steps.iter().map(|step| step.network.as_str()));
        let is_known = |name: &&str| {
            ["ping", "pong"].contains(name) || self.networks.iter().any(|network| network == name)
        };
        let mut used = used;
        match used.find(|name| !is_known(name)) {
            Some(name) => Err(format!("there is no network {name:?}; name it in `networks`")),
            None => Ok(()),
        }
    }

    /// Returns the required programs that are missing, each with its package.
    pub fn missing(&self) -> Vec<RequiredProgram> {
        let is_missing = |need: &&RequiredProgram| step::found(&need.program).is_none();
        let mut missing: Vec<RequiredProgram> = self.needs.iter().filter(is_missing).cloned().collect();
        let has_container = self.ping.container || self.pong.container;
        missing.extend(has_container.then(container::missing_runtime).flatten());
        missing
    }
}

/// The default MTU of the wire, in bytes.
const MTU_BYTES: u32 = 1500;
/// Header bytes that overlays add to a packet: VXLAN over IPv4, and WireGuard over either IP version.
const HEADERS_BYTES: [u32; 2] = [50, 80];
/// The longest queueing time of a packet on a rate-limited line.
const QUEUE_TIME_MS: u64 = 50;

/// The settings of the wire between the two networks. By default, the wire is virtual Ethernet at the speed of the
/// machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct WireSettings {
    /// The rate in bits per second in each direction, limited by the link emulator if it is in use, otherwise by a
    /// token bucket filter (`tbf`).
    pub rate_bits_per_s: Option<u64>,
    /// The round-trip time that the link emulator adds.
    pub rtt: Duration,
    /// The share of packets that the link emulator drops, 0 to 1.
    pub loss: f64,
    /// The seed of random losses. For equal sequences of packets, links with equal seeds drop the same packets.
    pub seed: u64,
    /// The MTU in bytes; `None` for the device's default of 1,500.
    pub mtu_bytes: Option<u32>,
    /// Whether the wire carries segments of up to 64 KiB, as network cards with segmentation offload do.
    pub is_offloading: bool,
    /// The initial size of TCP's receive buffers in bytes (the second number of `tcp_rmem`); `None` for the
    /// kernel's default.
    pub tcp_rmem_bytes: Option<u64>,
    /// TCP's congestion-control algorithm; `None` for the kernel's default.
    pub congestion_control: Option<String>,
}

impl WireSettings {
    /// Returns whether packets pass through the link emulator.
    pub fn is_emulated(&self) -> bool {
        !self.rtt.is_zero() || self.loss > 0.0
    }

    /// Returns whether any setting of the wire or of TCP requires separate networks.
    fn is_altered(&self) -> bool {
        let plain = WireSettings { seed: self.seed, is_offloading: true, ..WireSettings::default() };
        *self != plain
    }

    /// Creates the networks of client and server, and joins them by a wire with these settings.
    fn lay(&self) -> Result<NetworkLab> {
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
        let lab = NetworkLab::new(&LabConfig { link, tcp_buffer_bytes: None, congestion_control })?;
        for end in [&lab.server, &lab.client] {
            self.shape(end)?;
        }
        Ok(lab)
    }

    /// Sets the MTU at one end of the wire and, unless the link emulator is in use, the segmentation and the rate.
    fn shape(&self, end: &NetworkNamespace) -> Result<()> {
        if let Some(mtu) = self.mtu_bytes {
            end.ip(&format!("link set {DEVICE} mtu {mtu}"))?;
        }
        if !self.is_offloading && !self.is_emulated() {
            end.ip(&format!("link set {DEVICE} gso_max_segs 1"))?;
        }
        match self.rate_bits_per_s {
            Some(rate) if !self.is_emulated() => {
                limit_rate(end, rate, burst_bytes(rate, self.mtu_bytes.unwrap_or(MTU_BYTES)))
            }
            _ => Ok(()),
        }
    }

    /// Sets the placeholders for MTUs: `{mtu}` is the MTU of the wire; `{mtu-50}` and `{mtu-80}` leave room for an
    /// overlay's headers.
    fn describe(&self, words: &mut PlaceholderValues) {
        let mtu = self.mtu_bytes.unwrap_or(MTU_BYTES);
        words.set("mtu", mtu.to_string());
        for headers in HEADERS_BYTES {
            words.set(&format!("mtu-{headers}"), mtu.saturating_sub(headers).to_string());
        }
    }

    /// Sets the TCP parameters of a network. All networks of a set-up have the same parameters.
    fn tune(&self, network: &NetworkNamespace) -> Result<()> {
        // With the default range, a client that opens one connection per request runs out of ports within seconds.
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

/// The size of a frame's header: Ethernet and one VLAN tag.
const FRAME_HEADER_BYTES: u64 = 18;
/// The delay of the kernel's timers for which a wire compensates. After a pause, the wire passes one frame at once, and
/// the bytes that it could have sent in this time.
const TIMER_DELAY_US: u64 = 100;

/// Returns how many bytes a rate-limited wire passes at once after a pause.
fn burst_bytes(rate_bits_per_s: u64, mtu_bytes: u32) -> u64 {
    u64::from(mtu_bytes) + FRAME_HEADER_BYTES + rate_bits_per_s / 8 * TIMER_DELAY_US / 1_000_000
}

/// The highest rate at which short messages are limited too, in bits/s.
const EXACT_RATE_MAX: u64 = 2_000_000_000;

/// Limits the rate with two token buckets. The first bucket limits the mean rate. It holds as many bytes as the line
/// sends in one kernel tick, so that late timers do not lower the mean rate. Alone, it would pass all these bytes at
/// once, so messages of up to this size would not be limited. The second bucket therefore passes at most `burst` bytes
/// at once, and then at most 105 % of the rate. Above [`EXACT_RATE_MAX`], the second bucket would lower the rate of
/// long messages, because timers are not exact enough.
fn limit_rate(end: &NetworkNamespace, rate_bits_per_s: u64, burst: u64) -> Result<()> {
    let in_a_tick = rate_bits_per_s / 8 / 250;
    let (saved, queue) = (in_a_tick.max(128 << 10), rate_bits_per_s / 8 * QUEUE_TIME_MS / 1_000);
    let mut command = Command::new("tc");
    command.args(["qdisc", "add", "dev", DEVICE, "root", "tbf", "rate"]);
    command.args([format!("{rate_bits_per_s}bit"), "burst".into(), saved.to_string()]);
    command.args(["limit".into(), (queue + saved).to_string()]);
    if rate_bits_per_s <= EXACT_RATE_MAX {
        command.args(["peakrate".into(), format!("{}bit", rate_bits_per_s + rate_bits_per_s.div_ceil(20))]);
        command.args(["mtu".into(), burst.to_string()]);
    }
    run_in(end, None, command, None)
}

/// Placeholders and their values.
#[derive(Clone, Debug, Default)]
struct PlaceholderValues(BTreeMap<String, String>);

impl PlaceholderValues {
    fn set(&mut self, word: &str, value: impl Into<String>) {
        self.0.insert(word.to_owned(), value.into());
    }

    /// Replaces all placeholders in `text`. A placeholder is a word of letters, digits, `-` and `_` in braces, such as
    /// `{word}`. Leaves all other braces unchanged, because command languages also use braces. Errors:
    /// `InvalidArgument` for an unknown placeholder.
    fn fill(&self, text: &str) -> Result<String> {
        let mut filled = String::with_capacity(text.len());
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('{') {
            filled += before;
            match after.split_once('}').filter(|(word, _)| is_word(word)) {
                Some((word, behind)) => {
                    filled +=
                        self.0.get(word).filter(|value| !value.is_empty()).ok_or_else(|| unknown(word))?;
                    rest = behind;
                }
                None => {
                    filled.push('{');
                    rest = after;
                }
            }
        }
        Ok(filled + rest)
    }

    /// Replaces the placeholders in the values of `variables`, which may contain other variables. Errors:
    /// `InvalidArgument` for an unknown placeholder, and for variables that contain each other.
    fn fill_variables(&mut self, variables: &BTreeMap<String, String>) -> Result<()> {
        let mut open: Vec<_> = variables.iter().filter(|(_, value)| value.contains('{')).collect();
        while !open.is_empty() {
            let names: Vec<_> = open.iter().map(|(name, _)| format!("{{{name}}}")).collect();
            let is_open = |value: &str| names.iter().any(|name| value.contains(name));
            let (waiting, ready): (Vec<_>, Vec<_>) = open.into_iter().partition(|(_, value)| is_open(value));
            if ready.is_empty() {
                let detail = format!("the values of {} contain each other", names.join(", "));
                return Err(Error::new(ErrorKind::InvalidArgument, detail));
            }
            for (name, value) in ready {
                self.set(name, self.fill(value)?);
            }
            open = waiting;
        }
        Ok(())
    }

    /// Replaces the placeholders in each word of a command.
    fn fill_all(&self, command: &[String]) -> Result<Vec<String>> {
        command.iter().map(|part| self.fill(part)).collect()
    }
}

fn is_word(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
}

fn unknown(word: &str) -> Error {
    let detail = format!("{{{word}}} has no value; set it with --set {word}=VALUE");
    Error::new(ErrorKind::InvalidArgument, detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_of_engines_and_other_machines_are_unknown_processes() {
        for setup in NetworkSetup::all().unwrap() {
            let elsewhere = ["docker", "kubernetes", "podman", "slurm", "ssh"].contains(&setup.name.as_str());
            assert_eq!(setup.runs_elsewhere(), elsewhere, "{}", setup.name);
        }
    }

    #[test]
    fn all_that_are_built_in_are_sound() {
        let all = NetworkSetup::all().unwrap();
        assert_eq!(all[0].name, "bare", "the reference is the first");
        let usual: Vec<_> =
            all.iter().filter(|setup| setup.is_usual()).map(|setup| setup.name.as_str()).collect();
        assert!(usual.len() >= 9 && !usual.contains(&"loopback"), "{usual:?}");
        let templates: Vec<_> = all.iter().filter(|setup| !setup.is_complete()).collect();
        assert!(templates.iter().all(|setup| setup.on == SetupNetworkKind::Machine) && templates.len() >= 3);
    }

    #[test]
    fn what_describes_no_set_up_is_refused() {
        let parts = "[ping]\nin = \"ping\"\naddress = \"a\"\n[pong]\nin = \"pong\"\naddress = \"b\"\n";
        let refused = |text: String| {
            let error = NetworkSetup::parse("x", &text).expect_err("it is not a set-up");
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            error.to_string()
        };
        assert!(NetworkSetup::parse("x", &format!("description = \"d\"\n{parts}")).is_ok());
        assert!(refused(parts.to_owned()).contains("description"));
        assert!(refused(format!("description = \"d\"\ncolour = 1\n{parts}")).contains("colour"));
        let elsewhere = parts.replace("in = \"pong\"", "in = \"moon\"");
        assert!(refused(format!("description = \"d\"\n{elsewhere}")).contains("\"moon\""));
        let nowhere = parts.replace("in = \"pong\"\n", "");
        assert!(refused(format!("description = \"d\"\n{nowhere}")).contains("`in`"));
        assert!(refused(format!("description = \"d\"\non = \"machine\"\n{parts}")).contains("neither"));
        let unknown = NetworkSetup::load("moon").expect_err("it is none").to_string();
        assert!(unknown.contains("bare"), "{unknown}");
    }

    #[test]
    fn packets_of_an_overlay_fit_into_those_of_the_wire() {
        let filled = |mtu_bytes| {
            let mut words = PlaceholderValues::default();
            WireSettings { mtu_bytes, ..WireSettings::default() }.describe(&mut words);
            words.fill("{mtu} {mtu-50} {mtu-80}").unwrap()
        };
        assert_eq!(filled(None), "1500 1450 1420");
        assert_eq!(filled(Some(9000)), "9000 8950 8920");
    }

    #[test]
    fn a_wire_of_which_nothing_is_said_is_not_altered() {
        let plain = WireSettings { is_offloading: true, seed: 7, ..WireSettings::default() };
        assert!(!plain.is_altered());
        assert!(WireSettings { rate_bits_per_s: Some(1), ..plain.clone() }.is_altered());
        assert!(WireSettings { congestion_control: Some("reno".to_owned()), ..plain.clone() }.is_altered());
        assert!(WireSettings { is_offloading: false, ..plain }.is_altered());
    }

    #[test]
    fn a_burst_is_a_frame_and_what_the_line_sends_in_100_us() {
        assert_eq!(burst_bytes(100_000_000, 1500), 1518 + 1250);
        assert_eq!(burst_bytes(1_000_000_000, 9000), 9018 + 12_500);
    }

    #[test]
    fn variables_may_contain_variables() {
        let filled = |variables: &[(&str, &str)]| {
            let variables: BTreeMap<_, _> =
                variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            let mut words = PlaceholderValues::default();
            words.set("port", "80");
            for (name, value) in &variables {
                words.set(name, value);
            }
            words.fill_variables(&variables).and_then(|()| words.fill("{a} {b}"))
        };
        assert_eq!(filled(&[("a", "{b}-{c}"), ("b", "{c}:{port}"), ("c", "x")]).unwrap(), "x:80-x x:80");
        assert_eq!(filled(&[("a", "{ {port} }"), ("b", "1{a}")]).unwrap(), "{ 80 } 1{ 80 }");
        for wrong in
            [&[("a", "{b}"), ("b", "{a}")][..], &[("a", "{a}"), ("b", "1")], &[("a", "{d}"), ("b", "1")]]
        {
            assert_eq!(filled(wrong).unwrap_err().kind(), ErrorKind::InvalidArgument, "{wrong:?}");
        }
    }

    #[test]
    fn words_are_replaced_and_other_braces_stay() {
        let mut words = PlaceholderValues::default();
        words.set("port", "8080");
        words.set("host", "");
        assert_eq!(words.fill("dnat to 172.17.0.2:{port}; }").unwrap(), "dnat to 172.17.0.2:8080; }");
        assert_eq!(words.fill("table ip nat {\n chain x { a }}").unwrap(), "table ip nat {\n chain x { a }}");
        for unknown in ["ssh {host}", "{nobody}"] {
            let error = words.fill(unknown).expect_err("it stands for nothing");
            assert!(error.to_string().contains("--set"), "{error}");
        }
    }
}
