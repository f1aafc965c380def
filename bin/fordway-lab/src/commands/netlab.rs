//! `netlab`: runs a client and a server with an emulated link between them.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use fordway_command::{CommandContext, CommandExit, file_error};
use fordway_measure::{bytes_text, ns_text};
use fordway_netlab::{
    CLIENT_ADDRESS, DirectionStats, LabConfig, LinkConfig, LinkStats, NamespaceProcess, NetworkLab,
    SERVER_ADDRESS,
};
use fordway_store::{Error, ErrorKind, Result};
use serde::Serialize;

use crate::args::{NetlabArgs, SegmentOffloadArg};

/// The maximum time that a server may take to accept connections.
const READY_WITHIN: Duration = Duration::from_secs(30);

pub(super) fn run(args: &NetlabArgs, context: &CommandContext) -> Result<CommandExit> {
    let config = config(args);
    let lab = NetworkLab::new(&config)?;
    let mut server = args.server.as_deref().map(|server| start_server(&lab, server)).transpose()?;
    if let Some(server) = &mut server {
        args.ready_ports.iter().try_for_each(|port| wait_for_port(&lab, server, *port, context))?;
    }
    run_client(&lab, args, context, &config)
}

fn config(args: &NetlabArgs) -> LabConfig {
    let has_link = args.link.rtt.is_some() || args.link.rate.is_some() || args.link.loss.is_some();
    let link = LinkConfig {
        rtt: args.link.rtt.unwrap_or_default(),
        rate_bits_per_s: args.link.rate,
        queue_bytes: args.queue,
        loss: args.link.loss.unwrap_or_default(),
        seed: args.seed,
        large_packets: match args.tso {
            SegmentOffloadArg::Auto => None,
            SegmentOffloadArg::On => Some(true),
            SegmentOffloadArg::Off => Some(false),
        },
    };
    LabConfig {
        link: has_link.then_some(link),
        tcp_buffer_bytes: Some(args.tcp_buffer),
        congestion_control: args.link.congestion.clone(),
    }
}

/// Starts the server. The server's standard output is redirected to standard error, because standard output is reserved
/// for the client.
fn start_server(lab: &NetworkLab, line: &str) -> Result<NamespaceProcess> {
    let mut shell = Command::new("sh");
    shell.args(["-c", line]).stdin(Stdio::null()).stdout(std::io::stderr());
    lab.server.start_contained(with_addresses(shell))
}

fn with_addresses(mut command: Command) -> Command {
    command.env("FORDWAY_NETLAB_SERVER", SERVER_ADDRESS).env("FORDWAY_NETLAB_CLIENT", CLIENT_ADDRESS);
    command
}

/// Waits until the server accepts connections on a port. Connects from within the server's network, so that the
/// attempts do not use the link.
fn wait_for_port(
    lab: &NetworkLab,
    server: &mut NamespaceProcess,
    port: u16,
    context: &CommandContext,
) -> Result<()> {
    let address = SERVER_ADDRESS.parse().map(|address| SocketAddr::new(address, port));
    let address = address.map_err(|error| Error::new(ErrorKind::Internal, "the address").caused_by(error))?;
    let since = Instant::now();
    let is_ready = || lab.server.run(|| TcpStream::connect_timeout(&address, READY_WITHIN).is_ok());
    while !is_ready()? {
        context.interrupt.check()?;
        if let Some(status) = server.ended()? {
            let why = format!("the server exited ({status}) before it accepted connections on port {port}");
            return Err(Error::new(ErrorKind::Unavailable, why));
        }
        if since.elapsed() > READY_WITHIN {
            let why =
                format!("the server does not accept connections on {SERVER_ADDRESS} port {port} after 30 s");
            return Err(Error::new(ErrorKind::Timeout, why));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

fn run_client(
    lab: &NetworkLab,
    args: &NetlabArgs,
    context: &CommandContext,
    config: &LabConfig,
) -> Result<CommandExit> {
    let [program, arguments @ ..] = args.client.as_slice() else {
        return Err(Error::new(ErrorKind::InvalidArgument, "the command to run as the client is missing"));
    };
    // The client may run for hours, so a file that cannot be written must be an error before it starts.
    if let Some(path) = &args.stats {
        std::fs::write(path, "").map_err(|error| file_error("writing", path.display(), error))?;
    }
    let mut command = Command::new(program);
    command.args(arguments);
    let mut command = with_addresses(command);
    // Instruments such as `fordway bench rest` read their own counters in `/proc`.
    fordway_sys::own_proc_directory(&mut command);
    let mut client = lab.client.start_contained(command)?;
    let ended = client.wait(|| context.interrupt.is_raised())?;
    let setup = config.link.as_ref().map(EffectiveLinkSettings::of);
    let report = NetlabReport { setup, parameters: lab.settings()?, link: lab.stats() };
    if report.link.is_some() {
        context.output.note(&report.to_string());
    }
    if let Some(path) = &args.stats {
        write_report(&report, path)?;
    }
    match ended {
        None => Err(Error::new(ErrorKind::Interrupted, "stopped by a signal")),
        Some(status) if status.success() => Ok(CommandExit::Ok),
        Some(status) => {
            context.output.note(&format!("the client exited with {status}"));
            Ok(CommandExit::Failure)
        }
    }
}

fn write_report(report: &NetlabReport, path: &std::path::Path) -> Result<()> {
    let text = serde_json::to_string_pretty(report).map_err(|error| {
        Error::new(ErrorKind::Internal, "writing the counters of the link").caused_by(error)
    })?;
    std::fs::write(path, text + "\n").map_err(|error| file_error("writing", path.display(), error))
}

/// The settings of the lab, and the counters of its link.
#[derive(Serialize)]
struct NetlabReport {
    setup: Option<EffectiveLinkSettings>,
    parameters: BTreeMap<&'static str, String>,
    link: Option<LinkStats>,
}

/// The settings of the link, including defaults.
#[derive(Serialize)]
struct EffectiveLinkSettings {
    rtt_ns: u128,
    rate_bits_per_s: Option<u64>,
    queue_bytes: Option<u64>,
    loss: f64,
    seed: u64,
    large_packets: bool,
}

impl EffectiveLinkSettings {
    fn of(link: &LinkConfig) -> Self {
        EffectiveLinkSettings {
            rtt_ns: link.rtt.as_nanos(),
            rate_bits_per_s: link.rate_bits_per_s,
            queue_bytes: link.rate_bits_per_s.map(|_| link.queue_or_default_bytes()),
            loss: link.loss,
            seed: link.seed,
            large_packets: link.has_large_packets(),
        }
    }
}

impl fmt::Display for NetlabReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(LinkStats { there, back, cpu_ns }) = self.link else { return Ok(()) };
        let direction = |name, stats: DirectionStats| {
            let DirectionStats { packets, bytes, dropped_by_queue, lost, refused } = stats;
            let bytes = bytes_text(bytes);
            format!(
                "to the {name} {packets} packets ({bytes}), {dropped_by_queue} dropped by the queue, \
                 {lost} lost, {refused} refused"
            )
        };
        let (there, back, cpu) = (direction("server", there), direction("client", back), ns_text(cpu_ns));
        write!(f, "link: {there}; {back}; {cpu} of CPU")
    }
}
