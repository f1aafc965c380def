//! Selects the set-ups of a run, and brings them up.

use std::time::{Duration, Instant};

use fordway_command::CommandContext;
use fordway_netlab::setup::{
    NetworkSetup, RunningNetworkSetup, SetupNetworkKind, SetupPrograms, WireSettings,
};
use fordway_store::{Error, ErrorKind, Result};

use super::load::windows;
use crate::args::PingpongBenchArgs;
use crate::commands::pingpong::PongHttpClient;

/// The default ports of `pong` and `ping`. On a shared machine, these ports may already be in use; `--set port=`
/// selects other ports.
const PORTS: (u16, u16) = (18_080, 18_081);

/// A set-up in this run: either its running instances, one for each window, or the reason why it could not be started.
pub(super) struct MeasuredNetworkSetup {
    pub(super) setup: NetworkSetup,
    pub(super) running: Result<Vec<RunningNetworkSetup>>,
    /// The time that the set-up took to start or to fail.
    pub(super) started_in: Duration,
}

impl MeasuredNetworkSetup {
    /// Returns the set-up's name in tables.
    pub(super) fn label(&self) -> String {
        self.setup.label()
    }

    /// Returns the reason why the set-up is not running.
    pub(super) fn problem(&self) -> Option<String> {
        self.running.as_ref().err().map(ToString::to_string)
    }
}

/// Returns the set-ups in the options. Errors: `InvalidArgument` for unknown or repeated names.
pub(super) fn chosen(args: &PingpongBenchArgs) -> Result<Vec<NetworkSetup>> {
    let mut setups = match args.setup.is_empty() {
        true => NetworkSetup::all()?.into_iter().filter(NetworkSetup::is_usual).collect(),
        false => args.setup.iter().map(|name| NetworkSetup::load(name)).collect::<Result<Vec<_>>>()?,
    };
    for (at, setup) in setups.iter().enumerate() {
        if setups[..at].iter().any(|other| other.name == setup.name) {
            let detail = format!("there are two set-ups called {:?}; give each only once", setup.name);
            return Err(Error::new(ErrorKind::InvalidArgument, detail));
        }
    }
    if setups.len() > 64 {
        return Err(Error::new(ErrorKind::InvalidArgument, "a run has at most 64 set-ups; omit some"));
    }
    for setup in &mut setups {
        let unknown =
            |(word, _): &&(String, String)| setups_word(word) || setup.variables.contains_key(word.as_str());
        let known: Vec<_> = args.set.iter().filter(unknown).cloned().collect();
        setup.variables.extend(known);
    }
    spread_ports(&mut setups)?;
    Ok(setups)
}

/// Assigns two separate ports to each set-up that uses this machine's network. Adds 2 to the default ports of a set-up
/// for each earlier set-up on this network.
fn spread_ports(setups: &mut [NetworkSetup]) -> Result<()> {
    let sharing = setups.iter_mut().filter(|setup| setup.on == SetupNetworkKind::Machine);
    for (number, setup) in sharing.enumerate() {
        for (word, usual) in [("port", PORTS.0), ("ping-port", PORTS.1)] {
            let first = port(setup, word, usual)?;
            let own = first.checked_add(2 * number as u16).ok_or_else(|| {
                let detail = format!(
                    "{word}={first} does not leave enough ports for all set-ups; choose a smaller one"
                );
                Error::new(ErrorKind::InvalidArgument, detail)
            })?;
            setup.variables.insert(word.to_owned(), own.to_string());
        }
    }
    Ok(())
}

/// Returns whether `word` is a placeholder that every set-up has.
fn setups_word(word: &str) -> bool {
    ["port", "ping-port"].contains(&word)
}

/// Brings up all set-ups, one after the other. If a set-up cannot be brought up, the result contains its error. Errors:
/// only `Interrupted`.
pub(super) fn bring_up(
    args: &PingpongBenchArgs,
    setups: Vec<NetworkSetup>,
    context: &CommandContext,
) -> Result<Vec<MeasuredNetworkSetup>> {
    let total = setups.len() as u64;
    let mut lanes = Vec::new();
    for (done, setup) in setups.into_iter().enumerate() {
        context.output.steps(done as u64, total, format_args!("starting {}", setup.label()));
        let since = Instant::now();
        let running = bring_up_one(args, &setup, context);
        let started_in = since.elapsed();
        context.interrupt.check()?;
        if let Err(error) = &running {
            context.output.note(&format!("skipped {}: {error}", setup.label()));
        }
        lanes.push(MeasuredNetworkSetup { setup, running, started_in });
    }
    Ok(lanes)
}

/// Starts a set-up once for each window, because existing connections keep their initial window.
fn bring_up_one(
    args: &PingpongBenchArgs,
    setup: &NetworkSetup,
    context: &CommandContext,
) -> Result<Vec<RunningNetworkSetup>> {
    let programs = programs(args, setup)?;
    let stop = || context.interrupt.is_raised();
    let one = |window| {
        let running = RunningNetworkSetup::start(setup, &wire(args, window), &programs, &stop)?;
        check_cores(&running, args)?;
        check(&running, args, &stop)?;
        Ok(running)
    };
    windows(args).into_iter().map(one).collect()
}

/// Returns the settings of the wire between the two ends, from the options.
pub(super) fn wire(args: &PingpongBenchArgs, tcp_rmem_bytes: Option<u64>) -> WireSettings {
    WireSettings {
        rate_bits_per_s: args.link.rate,
        rtt: args.link.rtt.unwrap_or_default(),
        loss: args.link.loss.unwrap_or_default(),
        seed: args.chance.seed.unwrap_or(1),
        mtu_bytes: args.mtu,
        is_offloading: !args.no_offload,
        tcp_rmem_bytes,
        congestion_control: args.link.congestion.clone(),
    }
}

fn programs(args: &PingpongBenchArgs, setup: &NetworkSetup) -> Result<SetupPrograms> {
    let fordway = std::env::current_exe()
        .map_err(|error| Error::new(ErrorKind::Io, "finding this program").caused_by(error))?;
    // The URL of `pong` that the user specifies may contain {size}. `ping` replaces this word later, so the
    // substitution here keeps it.
    let words =
        [("bind", setup.bind().to_owned()), ("size", "{size}".to_owned()), ("workers", workers(args))];
    Ok(SetupPrograms {
        fordway,
        pong: end("pong", "port"),
        ping: ping(args),
        pong_options: args.pong_option.clone(),
        variables: words.map(|(word, value)| (word.to_owned(), value)).into(),
        ports: (port(setup, "port", PORTS.0)?, port(setup, "ping-port", PORTS.1)?),
    })
}

/// Returns the command that starts one end; `port` is the placeholder for the port of that end.
fn end(name: &str, port: &str) -> Vec<String> {
    let listen = format!("{{bind}}:{{{port}}}");
    let words = ["{fordway}", "pingpong", name, "--listen", &listen, "--workers", "{workers}", "--until-eof"];
    words.map(str::to_owned).to_vec()
}

/// Returns the number of connections that each end must accept at once.
fn workers(args: &PingpongBenchArgs) -> String {
    let most = args.concurrency.iter().copied().max().unwrap_or(1);
    // Connections from the measurement of the previous policy may still be open.
    (u32::from(most) * 4 + 16).min(4096).to_string()
}

fn ping(args: &PingpongBenchArgs) -> Vec<String> {
    let pong = args.pong.clone().unwrap_or_else(|| "http://{pong-address}:{port}".to_owned());
    let timeout = format!("{}us", args.timeout.as_micros());
    let mut words = end("ping", "ping-port");
    let options = [("--pong", pong), ("--retries", args.retries.to_string()), ("--timeout", timeout)];
    words.extend(options.into_iter().flat_map(|(option, value)| [option.to_owned(), value]));
    words
}

/// Returns the value of the placeholder `word` of a set-up as a port. Errors: `InvalidArgument` if the value is not a
/// port.
fn port(setup: &NetworkSetup, word: &str, usual: u16) -> Result<u16> {
    let said = setup.variables.get(word).map(|text| text.parse::<u16>());
    said.unwrap_or(Ok(usual)).map_err(|error| {
        Error::new(ErrorKind::InvalidArgument, format!("{word} is not a port")).caused_by(error)
    })
}

/// Checks that `pong` can be pinned. Errors: `NotImplemented` if `--cores` is given and `pong` is not a process of this
/// set-up.
fn check_cores(running: &RunningNetworkSetup, args: &PingpongBenchArgs) -> Result<()> {
    match args.cores.is_empty() || (running.pong_id().is_some() && args.pong.is_none()) {
        true => Ok(()),
        false => {
            let detail = "--cores does not work because pong runs on another machine; omit --cores";
            Err(Error::new(ErrorKind::NotImplemented, detail))
        }
    }
}

/// The maximum time for the first message to arrive.
const FIRST_WITHIN: Duration = Duration::from_secs(15);
const POLL: Duration = Duration::from_millis(50);

/// Repeats the request for one message until the message arrives, so that a `ping` that cannot reach its `pong` is
/// reported before anything is measured.
fn check(running: &RunningNetworkSetup, args: &PingpongBenchArgs, stop: &dyn Fn() -> bool) -> Result<()> {
    let since = Instant::now();
    loop {
        match check_once(running, args) {
            Err(_) if since.elapsed() < FIRST_WITHIN && !stop() => std::thread::sleep(POLL),
            done => return done,
        }
    }
}

fn check_once(running: &RunningNetworkSetup, args: &PingpongBenchArgs) -> Result<()> {
    let ask = || {
        let caller = PongHttpClient::new(&format!("http://{}", running.ping_address), "ping", args.timeout)?;
        let mut response = caller.ask(args.min, false).map_err(|failure| failure.error)?;
        let status = response.status();
        let said = response.read_document()?;
        match status {
            200 => Ok(()),
            _ => Err(Error::new(ErrorKind::Unavailable, String::from_utf8_lossy(&said).trim().to_owned())),
        }
    };
    let asked: Result<()> = running.ping_network().map_or_else(|| Ok(ask()), |network| network.run(ask))?;
    asked.map_err(|error| Error::new(error.kind(), format!("{error} ({})", running.told())))
}

/// Takes all set-ups down in parallel, because each set-up may wait until its programs exit.
pub(super) fn take_down(lanes: Vec<MeasuredNetworkSetup>) {
    std::thread::scope(|scope| {
        for running in lanes.into_iter().filter_map(|lane| lane.running.ok()).flatten() {
            scope.spawn(move || drop(running));
        }
    });
}
