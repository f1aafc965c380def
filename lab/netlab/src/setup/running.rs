//! Running set-ups: their networks, the wire that joins them, and the programs. The output of the programs is kept in
//! memory to explain failures. A [`NetworkPair`] is a set-up's networks without `ping` and `pong`, for use by other
//! programs.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use fordway_store::{Error, ErrorKind, Result};
use rustix::fs::{MemfdFlags, memfd_create};

use super::container::contained;
use super::step::{self, SetupDaemon, command, start_in};
use super::{NetworkSetup, PingpongProgramConfig, PlaceholderValues, SetupNetworkKind, WireSettings};
use crate::lab::{CLIENT_ADDRESS, SERVER_ADDRESS};
use crate::{LinkStats, MountNamespace, NamespaceProcess, NetworkLab, NetworkNamespace};

/// The maximum time to wait until a program accepts connections.
const READY_WITHIN: Duration = Duration::from_secs(60);
const CONNECT_WITHIN: Duration = Duration::from_secs(1);
const POLL: Duration = Duration::from_millis(10);

/// The programs that a set-up runs, and their settings.
#[derive(Clone, Debug)]
pub struct SetupPrograms {
    /// The program that replaces the placeholder `{fordway}`.
    pub fordway: PathBuf,
    /// The command that starts `pong`, unless the set-up has its own command for `pong`.
    pub pong: Vec<String>,
    /// The command that starts `ping`, unless the set-up has its own command for `ping`; empty if no `ping` is started.
    pub ping: Vec<String>,
    /// Further arguments for `pong`.
    pub pong_options: Vec<String>,
    /// Placeholder values from the user, which override the values of the set-up.
    pub variables: BTreeMap<String, String>,
    /// The ports of `pong` and `ping`.
    pub ports: (u16, u16),
}

impl SetupPrograms {
    /// Returns the settings for using only the networks of a set-up, without `ping` and `pong`.
    pub(super) fn none(fordway: &Path) -> Self {
        SetupPrograms {
            fordway: fordway.to_path_buf(),
            pong: Vec::new(),
            ping: Vec::new(),
            pong_options: Vec::new(),
            variables: BTreeMap::new(),
            // The ports are needed even without programs, because some set-ups write firewall or forwarding rules for
            // these ports.
            ports: (18_080, 18_081),
        }
    }
}

/// A side of a set-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PingpongSide {
    /// The `ping` side, which sends requests.
    Ping,
    /// The `pong` side, which responds.
    Pong,
}

/// A running set-up. When this value is dropped, or when this process ends for any reason, the programs stop and the
/// networks are removed.
#[derive(Debug)]
pub struct RunningNetworkSetup {
    // The fields are dropped in this order, so `ping` is stopped first.
    ping: SetupDaemon,
    pong: SetupDaemon,
    daemons: Vec<(PingpongSide, SetupDaemon)>,
    networks: BTreeMap<String, NetworkNamespace>,
    ping_network: Option<NetworkNamespace>,
    lab: Option<NetworkLab>,
    is_pong_elsewhere: bool,
    /// The address at which `ping` accepts requests, such as `127.0.0.1:8081`.
    pub ping_address: String,
}

impl RunningNetworkSetup {
    /// Creates the wire, performs the steps, and starts `pong` and `ping`. Both programs accept connections when this
    /// function returns. While waiting, the function calls `stop`, and gives up if `stop` returns true.
    ///
    /// Errors: `NotImplemented` if a program or a privilege is missing; `InvalidArgument` for a placeholder without a
    /// value; `Interrupted` if `stop` returned true; `Unavailable` if a program exits too early; `Timeout` if a program
    /// does not become ready in time. The errors `Unavailable` and `Timeout` contain the program's output.
    pub fn start(
        setup: &NetworkSetup,
        wire: &WireSettings,
        programs: &SetupPrograms,
        stop: &dyn Fn() -> bool,
    ) -> Result<Self> {
        RunningNetworkSetup::check_programs(setup)?;
        check_wire(setup, wire)?;
        match setup.on {
            SetupNetworkKind::Machine => {
                LaunchEnvironment::machine(setup, programs)?.start(setup, programs, stop)
            }
            SetupNetworkKind::Namespaces => {
                let lab = wire.lay()?;
                LaunchEnvironment::namespaces(setup, wire, programs, lab)?.start(setup, programs, stop)
            }
        }
    }

    pub(super) fn check_programs(setup: &NetworkSetup) -> Result<()> {
        let missing = setup.missing();
        let [need, ..] = &missing[..] else { return Ok(()) };
        let detail = format!("there is no program `{}`; install {}", need.program, need.package);
        Err(Error::new(ErrorKind::NotImplemented, detail))
    }

    /// Returns the network from which `ping` can be reached; `None` for this process's network.
    pub fn ping_network(&self) -> Option<&NetworkNamespace> {
        self.ping_network.as_ref()
    }

    /// Returns the process ID of `pong`, as seen from outside any PID namespace; `None` if the started command runs
    /// `pong` through another program, possibly on another machine.
    pub fn pong_id(&self) -> Option<u32> {
        (!self.is_pong_elsewhere).then(|| self.pong.process.id())
    }

    /// Pins the processes of a side, including its daemons, to the processors `cpus`. Errors: `InvalidArgument` for
    /// processors that do not exist.
    pub fn pin(&self, side: PingpongSide, cpus: &[usize]) -> Result<()> {
        let daemons = self.daemons.iter().filter(|(of, _)| *of == side).map(|(_, daemon)| daemon);
        let own = if side == PingpongSide::Ping { &self.ping } else { &self.pong };
        for daemon in daemons.chain([own]) {
            let family = fordway_sys::descendants(daemon.process.id()).unwrap_or_default();
            for process in family {
                match fordway_sys::pin_process(process, cpus) {
                    // The process has already ended.
                    Err(fordway_sys::Errno::SRCH) => {}
                    pinned => pinned.map_err(|errno| {
                        let detail = format!("processes cannot be bound to processors {cpus:?}");
                        Error::new(ErrorKind::InvalidArgument, detail).caused_by(errno)
                    })?,
                }
            }
        }
        Ok(())
    }

    /// Returns the counters of the link emulator; `None` if the link emulator is not in use.
    pub fn stats(&self) -> Option<LinkStats> {
        self.lab.as_ref().and_then(NetworkLab::stats)
    }

    /// Returns the TCP parameters that determine throughput, with their values in `ping`'s network; empty for a set-up
    /// on a machine.
    pub fn settings(&self) -> BTreeMap<String, String> {
        const PARAMETERS: [&str; 3] =
            ["net/ipv4/tcp_rmem", "net/ipv4/tcp_wmem", "net/ipv4/tcp_congestion_control"];
        let Some(network) = self.networks.get("ping") else { return BTreeMap::new() };
        let value = |name: &str| Some((name.to_owned(), network.get(name).ok()?));
        PARAMETERS.into_iter().filter_map(value).collect()
    }

    /// Returns the last output of `ping` and `pong`, to explain a failure.
    pub fn told(&self) -> String {
        format!("ping: {}; pong: {}", self.ping.log.told(), self.pong.log.told())
    }
}

/// Checks whether the set-up supports the wire's settings. Errors: `NotImplemented` if the set-up does not support the
/// settings.
pub(super) fn check_wire(setup: &NetworkSetup, wire: &WireSettings) -> Result<()> {
    let why = match setup.on {
        SetupNetworkKind::Machine if wire.is_altered() => {
            "it runs in existing networks, whose packets and TCP settings cannot be changed; leave out the options for \
             them, or leave out the set-up"
        }
        SetupNetworkKind::Namespaces if setup.needs_ethernet && wire.is_emulated() => {
            "it bridges the link, but the link emulator carries packets without Ethernet headers; leave out the round \
             trip and the loss (--rate alone needs no emulator)"
        }
        _ => return Ok(()),
    };
    Err(Error::new(ErrorKind::NotImplemented, why))
}

/// The networks, placeholders and daemons with which a set-up's programs are started.
pub(super) struct LaunchEnvironment {
    pub(super) words: PlaceholderValues,
    networks: BTreeMap<String, NetworkNamespace>,
    mounts: Option<MountNamespace>,
    pub(super) lab: Option<NetworkLab>,
    pub(super) daemons: Vec<(PingpongSide, SetupDaemon)>,
}

impl LaunchEnvironment {
    fn machine(setup: &NetworkSetup, programs: &SetupPrograms) -> Result<Self> {
        let words = words(setup, programs)?;
        Ok(LaunchEnvironment {
            words,
            networks: BTreeMap::new(),
            mounts: None,
            lab: None,
            daemons: Vec::new(),
        })
    }

    pub(super) fn namespaces(
        setup: &NetworkSetup,
        wire: &WireSettings,
        programs: &SetupPrograms,
        lab: NetworkLab,
    ) -> Result<Self> {
        let mounts = MountNamespace::new()?;
        let mut networks = BTreeMap::from([
            ("ping".to_owned(), lab.client.clone()),
            ("pong".to_owned(), lab.server.clone()),
        ]);
        for name in &setup.networks {
            networks.insert(name.clone(), NetworkNamespace::new()?);
        }
        let mut words = words(setup, programs)?;
        wire.describe(&mut words);
        for (name, network) in &networks {
            wire.tune(network)?;
            words.set(name, network.path().display().to_string());
        }
        let mut site = LaunchEnvironment {
            words,
            networks,
            mounts: Some(mounts.clone()),
            lab: Some(lab),
            daemons: Vec::new(),
        };
        for (number, step) in setup.steps.iter().enumerate() {
            let taken = step.take(&site.networks[&step.network], &mounts, &site.words);
            let daemon = taken.map_err(|error| in_step(number + 1, error))?;
            let side = if step.network.starts_with("ping") { PingpongSide::Ping } else { PingpongSide::Pong };
            site.daemons.extend(daemon.map(|daemon| (side, daemon)));
        }
        Ok(site)
    }

    fn start(
        mut self,
        setup: &NetworkSetup,
        programs: &SetupPrograms,
        stop: &dyn Fn() -> bool,
    ) -> Result<RunningNetworkSetup> {
        let (pong_port, ping_port) = programs.ports;
        let pong_address = self.words.fill(&setup.pong.address)?;
        self.words.set("pong-address", &pong_address);
        let ping_address = at(&self.words.fill(&setup.ping.address)?, ping_port);
        if setup.on == SetupNetworkKind::Machine {
            let pong_address = (!setup.pong.hidden).then(|| at(&pong_address, pong_port));
            [Some(&ping_address), pong_address.as_ref()]
                .into_iter()
                .flatten()
                .try_for_each(|at| check_free(at))?;
        }
        let mut pong = self.launch("pong", &setup.pong, &programs.pong, &programs.pong_options)?;
        let asker = self.network_of(&setup.ping).cloned();
        if !setup.pong.hidden {
            wait_for_port(asker.as_ref(), &mut pong, &at(&pong_address, pong_port), ("pong", stop))?;
        }
        let mut ping = self.launch("ping", &setup.ping, &programs.ping, &[])?;
        wait_for_port(asker.as_ref(), &mut ping, &ping_address, ("ping", stop))?;
        let is_pong_elsewhere = setup.on == SetupNetworkKind::Machine && setup.pong.command.is_some();
        let LaunchEnvironment { networks, lab, daemons, .. } = self;
        let ping_network = asker;
        Ok(RunningNetworkSetup {
            ping,
            pong,
            daemons,
            networks,
            ping_network,
            lab,
            is_pong_elsewhere,
            ping_address,
        })
    }

    pub(super) fn network_of(&self, part: &PingpongProgramConfig) -> Option<&NetworkNamespace> {
        self.networks.get(part.network.as_deref()?)
    }

    fn launch(
        &self,
        name: &str,
        part: &PingpongProgramConfig,
        usual: &[String],
        options: &[String],
    ) -> Result<SetupDaemon> {
        let mut words = self.words.fill_all(part.command.as_deref().unwrap_or(usual))?;
        words.extend(options.iter().cloned());
        let (Some(network), Some(mounts)) = (self.network_of(part), &self.mounts) else {
            return start_here(&words);
        };
        if part.container {
            words = contained(mounts, name, &words)?;
        }
        start_in(network, mounts, command(&words)?)
    }
}

/// Starts a command in the namespaces of this process.
fn start_here(words: &[String]) -> Result<SetupDaemon> {
    let log = ProgramLog::new()?;
    let mut command = command(words)?;
    command.stdin(Stdio::piped()).stdout(log.stream()).stderr(log.stream());
    Ok(SetupDaemon { process: NamespaceProcess::start_here(command)?, log })
}

fn words(setup: &NetworkSetup, programs: &SetupPrograms) -> Result<PlaceholderValues> {
    let mut words = PlaceholderValues::default();
    words.set("fordway", programs.fordway.display().to_string());
    words.set("scratch", MountNamespace::SCRATCH);
    words.set("port", programs.ports.0.to_string());
    words.set("ping-port", programs.ports.1.to_string());
    words.set("ping-host", CLIENT_ADDRESS);
    words.set("pong-host", SERVER_ADDRESS);
    for (word, value) in setup.variables.iter().chain(&programs.variables) {
        words.set(word, value);
    }
    if let Some(accelerator) = setup.accelerator() {
        words.set(step::ACCELERATOR_WORD, accelerator);
    }
    // Replace placeholders in the values of the set-up's variables, but not in the values of `programs`, such as
    // `{size}`.
    words.fill_variables(&setup.variables)?;
    Ok(words)
}

/// Appends `port` to `address`, unless the address already has a port.
fn at(address: &str, port: u16) -> String {
    if address.contains(':') { address.to_owned() } else { format!("{address}:{port}") }
}

fn in_step(number: usize, error: Error) -> Error {
    let detail = format!("step {number}: {error}");
    Error::new(error.kind(), detail)
}

/// Checks that no program listens on `address` yet. A program that already listens would be mistaken for the program
/// that is started next. Errors: `InvalidArgument` if a program listens on `address`.
fn check_free(address: &str) -> Result<()> {
    if !takes_connections(address) {
        return Ok(());
    }
    let detail = format!(
        "another process already accepts connections at {address}; choose other ports with --set port= and ping-port="
    );
    Err(Error::new(ErrorKind::InvalidArgument, detail))
}

fn takes_connections(address: &str) -> bool {
    let found = address.to_socket_addrs().ok().and_then(|mut all| all.next());
    found.is_some_and(|address| TcpStream::connect_timeout(&address, CONNECT_WITHIN).is_ok())
}

/// Waits until the program accepts connections at `address`, as seen from `network`.
fn wait_for_port(
    network: Option<&NetworkNamespace>,
    daemon: &mut SetupDaemon,
    address: &str,
    (name, stop): (&str, &dyn Fn() -> bool),
) -> Result<()> {
    let since = Instant::now();
    let connect = || takes_connections(address);
    loop {
        if network.map_or_else(|| Ok(connect()), |network| network.run(connect))? {
            return Ok(());
        }
        if stop() {
            return Err(Error::new(ErrorKind::Interrupted, "stopped by a signal"));
        }
        if let Some(status) = daemon.process.ended()? {
            let why =
                format!("{name} ended ({status}) before it accepted connections: {}", daemon.log.told());
            return Err(Error::new(ErrorKind::Unavailable, why));
        }
        if since.elapsed() > READY_WITHIN {
            let why = format!(
                "{name} accepts no connections at {address} after {READY_WITHIN:?}: {}",
                daemon.log.told()
            );
            return Err(Error::new(ErrorKind::Timeout, why));
        }
        std::thread::sleep(POLL);
    }
}

/// The maximum time until the first connection is established. The first connection may take a long time, because
/// overlays learn their routes from the first packets.
const REACHED_WITHIN: Duration = Duration::from_secs(15);
/// The port to which a datagram socket is connected in order to find its own address. Connecting a datagram socket
/// sends nothing.
const DISCARD: u16 = 9;

/// One end of a pair of networks: the network in which programs run, and the address at which the pair's other network
/// reaches them.
#[derive(Clone, Debug)]
pub struct NetworkEndpoint {
    /// The network in which the programs run.
    pub network: NetworkNamespace,
    /// The address at which the pair's other network reaches this network.
    pub address: IpAddr,
}

/// The running networks of a set-up, with two ends that can reach each other. When this value is dropped, or when this
/// process ends for any reason, the daemons stop and the networks are removed.
#[derive(Debug)]
pub struct NetworkPair {
    /// The end at which `ping` would run.
    pub near: NetworkEndpoint,
    /// The end at which `pong` would run.
    pub far: NetworkEndpoint,
    _daemons: Vec<(PingpongSide, SetupDaemon)>,
    _lab: Option<NetworkLab>,
}

impl NetworkPair {
    /// Creates the wire and performs the steps. `fordway` is the program that steps may start.
    ///
    /// Errors: `InvalidArgument` for a set-up that does more than create networks; `NotImplemented` if a program or a
    /// privilege is missing, or if only one end can reach the other, because addresses are translated.
    pub fn lay(setup: &NetworkSetup, wire: &WireSettings, fordway: &Path) -> Result<Self> {
        check(setup)?;
        RunningNetworkSetup::check_programs(setup)?;
        check_wire(setup, wire)?;
        let site = LaunchEnvironment::namespaces(setup, wire, &SetupPrograms::none(fordway), wire.lay()?)?;
        let network_of = |part: &PingpongProgramConfig| {
            let found = site.network_of(part).cloned();
            found.ok_or_else(|| Error::new(ErrorKind::Internal, "a part of a set-up without its network"))
        };
        let (near, far) = (network_of(&setup.ping)?, network_of(&setup.pong)?);
        let far = NetworkEndpoint { address: parse(&site.words.fill(&setup.pong.address)?)?, network: far };
        let near = NetworkEndpoint { address: near.run(|| own_address(far.address))??, network: near };
        for (from, to) in [(&near, &far), (&far, &near)] {
            reach(from, to)?;
        }
        Ok(NetworkPair { near, far, _daemons: site.daemons, _lab: site.lab })
    }
}

fn check(setup: &NetworkSetup) -> Result<()> {
    let is_special = |part: &PingpongProgramConfig| part.container || part.command.is_some();
    let why = match setup.on {
        SetupNetworkKind::Machine => "it has no networks of its own",
        SetupNetworkKind::Namespaces if is_special(&setup.ping) || is_special(&setup.pong) => {
            "it defines how its programs are started, for example in containers without access to the files of this machine"
        }
        SetupNetworkKind::Namespaces => return Ok(()),
    };
    let detail = format!("the set-up {} cannot hold other programs: {why}", setup.name);
    Err(Error::new(ErrorKind::InvalidArgument, detail))
}

fn parse(address: &str) -> Result<IpAddr> {
    address.parse().map_err(|error| {
        let detail = format!("{address:?} is not an address, and a set-up does not resolve names");
        Error::new(ErrorKind::InvalidArgument, detail).caused_by(error)
    })
}

/// Returns the source address of packets sent to `other`.
fn own_address(other: IpAddr) -> Result<IpAddr> {
    let found = UdpSocket::bind("0.0.0.0:0").and_then(|socket| {
        socket.connect((other, DISCARD))?;
        socket.local_addr()
    });
    found.map(|address| address.ip()).map_err(|error| {
        Error::new(ErrorKind::NotImplemented, format!("there is no route to {other}")).caused_by(error)
    })
}

/// Checks that a connection can be made. Behind network address translation, an end is reached at an address that is
/// not its own, or cannot be reached at all.
fn reach(from: &NetworkEndpoint, to: &NetworkEndpoint) -> Result<()> {
    let failed = |error: std::io::Error| {
        let detail = format!(
            "the two ends cannot reach each other at their own addresses ({} to {}), for example because of address \
             translation",
            from.address, to.address
        );
        Error::new(ErrorKind::NotImplemented, detail).caused_by(error)
    };
    let listener = to.network.run(|| TcpListener::bind((to.address, 0)))?.map_err(failed)?;
    let port = listener.local_addr().map_err(failed)?.port();
    let address = SocketAddr::new(to.address, port);
    let connected = from.network.run(|| TcpStream::connect_timeout(&address, REACHED_WITHIN))?;
    connected.map(drop).map_err(failed)
}

/// The maximum number of bytes that an error message quotes from a log.
const TOLD_BYTES_MAX: u64 = 2_000;

/// A file in memory to which programs write their output.
#[derive(Debug)]
pub(super) struct ProgramLog(File);

impl ProgramLog {
    pub(super) fn new() -> Result<Self> {
        let made = memfd_create("fordway-log", MemfdFlags::CLOEXEC).map_err(std::io::Error::from);
        made.map(|file| ProgramLog(file.into()))
            .map_err(|error| Error::new(ErrorKind::Io, "creating a file in memory").caused_by(error))
    }

    /// Returns the log as a stream for the output of a program; if the file's descriptor cannot be duplicated, the
    /// output is discarded.
    pub(super) fn stream(&self) -> Stdio {
        self.0.try_clone().map_or_else(|_| Stdio::null(), Stdio::from)
    }

    /// Returns the last lines of the log, joined into one line.
    pub(super) fn told(&self) -> String {
        let mut file = &self.0;
        let len = file.metadata().map_or(0, |metadata| metadata.len());
        let mut end = Vec::new();
        let start = len.saturating_sub(TOLD_BYTES_MAX);
        let read = file.seek(SeekFrom::Start(start)).and_then(|_| file.read_to_end(&mut end));
        // The programs share this file's position, so move the position back to the end.
        let _ = file.seek(SeekFrom::End(0));
        let text = String::from_utf8_lossy(&end);
        let lines: Vec<_> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        match (read, lines.is_empty()) {
            (Err(_), _) | (_, true) => "it said nothing".to_owned(),
            _ => format!("it said: {}", lines[lines.len().saturating_sub(3)..].join(" / ")),
        }
    }
}
