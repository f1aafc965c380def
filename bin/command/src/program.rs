//! Connects commands to `main`: logging, signals, the command's context, and the exit code.

use std::io::{self, IsTerminal, Read, Write as _};
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fordway_http::replicas::MetalinkCache;
use fordway_lanes::LaneConfigOverrides;
use fordway_store::{Error, ErrorKind, Result};
use fordway_sys::{Signal, StandardStream, is_ignored, was_closed_at_start};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use signal_hook::consts::{SIGHUP, SIGXFSZ};
use signal_hook::iterator::Signals;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use super::context::InterruptFlag;
use crate::args::GlobalArgs;
use crate::context::CommandContext;
use crate::exit::CommandExit;
use crate::output::{CommandOutputStreams, OutputFormat};

/// Whether waits for other hosts must end, because a signal has requested a stop.
static ENDS_WAITS: AtomicBool = AtomicBool::new(false);

/// How long a command of `fordway` may take to end after a signal. The command is usually blocked if it takes longer,
/// for example in a write to a pipe that no process reads.
const SIGNAL_GRACE: Duration = Duration::from_secs(3);

/// How often a server checks whether it should stop.
const STOP_POLL: Duration = Duration::from_millis(50);

/// How often a command that waits for standard input checks whether it should stop.
const INPUT_POLL: Duration = Duration::from_millis(50);

/// Runs a command with a new context. `log` is the log filter that applies unless FORDWAY_LOG is set.
pub fn run(
    global: &GlobalArgs,
    log: Option<&str>,
    command: impl FnOnce(&CommandContext) -> CommandExit,
) -> ExitCode {
    run_with(global, (global.lane_options(), log), None, |context| command(context).into())
}

/// Like [`run`], but opens the lane with the options `lane` instead of the global options, and lets the command return
/// any exit code. A command that does not end within [`SIGNAL_GRACE`] after a signal is ended, unless it is a server.
pub fn run_on_lane(
    global: &GlobalArgs,
    lane: LaneConfigOverrides,
    log: Option<&str>,
    command: impl FnOnce(&CommandContext) -> ExitCode,
) -> ExitCode {
    run_with(global, (lane, log), Some(SIGNAL_GRACE), command)
}

fn run_with(
    global: &GlobalArgs,
    (lane, log): (LaneConfigOverrides, Option<&str>),
    grace: Option<Duration>,
    command: impl FnOnce(&CommandContext) -> ExitCode,
) -> ExitCode {
    start_logging(log);
    survive_file_size_limit();
    let interrupt = InterruptFlag::default();
    let context = surroundings(global, lane, interrupt.clone());
    stop_on_signals(interrupt, grace);
    command(&context)
}

/// Finishes a command. When this function returns, all errors have been reported.
pub fn finish(ended: Result<CommandExit>, context: &CommandContext) -> CommandExit {
    let exit = ended.unwrap_or_else(|error| tell(context, &error));
    match context.output.finish() {
        Err(error) if exit == CommandExit::Ok => tell(context, &error),
        _ => exit,
    }
}

/// Reports the error that ended a command. Reports nothing if the error only means that the reader of the output has
/// exited, as in `fordway ls | head`.
fn tell(context: &CommandContext, error: &Error) -> CommandExit {
    if context.output.is_reader_gone(error) {
        return CommandExit::Ok;
    }
    context.output.error(error);
    // After a signal, the error may be a consequence of the signal: for example, Ctrl-C also stops a local server.
    let is_stopped = context.interrupt.is_raised() && !context.interrupt.is_of_server();
    if is_stopped { CommandExit::Interrupted } else { CommandExit::of(error) }
}

/// Handles signals: SIGINT, SIGTERM and SIGHUP stop transfers at their next chunk, and end waits for other hosts. The
/// program then removes its temporary files. A server finishes its requests, so a signal does not end its waits. A
/// second signal ends the process even if the process hangs in a read or write. If `grace` is set, the process also
/// ends when this time has passed after the first signal, unless it is a server. A gateway handles SIGHUP differently:
/// it reloads its files. A signal that is ignored when the process starts, such as SIGHUP under `nohup`, stays ignored.
/// The exception is a gateway that reloads its files: it handles SIGHUP even then.
fn stop_on_signals(interrupt: InterruptFlag, grace: Option<Duration>) {
    let caught = [Signal::INT, Signal::TERM, Signal::HUP].into_iter().filter(|signal| !is_ignored(*signal));
    let mut signals = match Signals::new(caught.map(Signal::as_raw)) {
        Ok(signals) => signals,
        Err(error) => {
            // The signals keep their default action, which ends the process.
            tracing::warn!(%error, "cannot handle signals");
            return;
        }
    };
    interrupt.set_signals(signals.handle());
    fordway_sys::ask_after_signals(|| ENDS_WAITS.load(Ordering::Relaxed));
    let wait = move || {
        for signal in signals.forever() {
            if signal == SIGHUP && interrupt.hang_up() {
                continue;
            }
            let is_second = interrupt.raise();
            ENDS_WAITS.store(!interrupt.is_of_server(), Ordering::Relaxed);
            match grace {
                _ if is_second => leave(&interrupt),
                Some(grace) => leave_after(grace, interrupt.clone()),
                None => {}
            }
        }
    };
    if let Err(error) = spawn("fordway-signals", wait) {
        tracing::warn!(%error, "cannot handle signals");
    }
}

/// Ends the process after this time, unless the process is a server. A server takes as long as its requests need.
fn leave_after(grace: Duration, interrupt: InterruptFlag) {
    let wait = move || {
        std::thread::sleep(grace);
        if !interrupt.is_of_server() {
            leave(&interrupt);
        }
    };
    if let Err(error) = spawn("fordway-grace", wait) {
        tracing::warn!(%error, "only a second signal ends a command that is blocked");
    }
}

/// Ends the process without waiting for its other threads. Removes temporary files, and prints a note for each file
/// that is kept.
fn leave(interrupt: &InterruptFlag) {
    for kept in interrupt.leave() {
        // The reader of standard error may be blocked too.
        if !may_write_now(&std::io::stderr()) {
            break;
        }
        let kept = kept.display();
        // Ignore the error: if standard error is closed, there is nowhere to report it.
        let _ = writeln!(std::io::stderr(), "fordway: {kept} is kept; run the same command again to resume");
    }
    std::process::exit(CommandExit::Interrupted as i32);
}

/// Returns whether a short write to `file` does not wait for a reader.
fn may_write_now(file: &impl AsFd) -> bool {
    let mut wanted = [PollFd::new(file, PollFlags::OUT)];
    !matches!(poll(&mut wanted, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(0))
}

/// Makes a write beyond the file-size limit (RLIMIT_FSIZE) fail with an error. By default, the signal SIGXFSZ would
/// kill the process. This function installs a handler instead of ignoring the signal, because programs that this
/// process starts would inherit an ignored signal.
fn survive_file_size_limit() {
    if let Err(error) = signal_hook::flag::register(SIGXFSZ, Arc::default()) {
        tracing::warn!(%error, "cannot handle SIGXFSZ");
    }
}

fn surroundings(
    global: &GlobalArgs,
    options: LaneConfigOverrides,
    interrupt: InterruptFlag,
) -> CommandContext {
    let format = if global.json { OutputFormat::Json } else { OutputFormat::Text };
    let progress = !global.no_progress && !global.json && !global.only_show_errors;
    let output = CommandOutputStreams::terminal(format, global.quiet, progress);
    if global.only_show_errors {
        output.withhold_events();
    }
    let open = move |endpoint: Option<&str>| match endpoint {
        Some(endpoint) => fordway_lanes::open(&LaneConfigOverrides {
            endpoint: Some(endpoint.to_owned()),
            ..options.clone()
        }),
        None => fordway_lanes::open(&options),
    };
    let input = InterruptibleInput(interrupt.clone());
    let mut context = CommandContext::new(open, output, input, interrupt);
    context.metalinks = MetalinkCache::of_user();
    context.is_input_closed = was_closed_at_start(StandardStream::Input);
    context
}

/// Standard input. A read ends when the flag is raised, even if no input arrives.
struct InterruptibleInput(InterruptFlag);

impl Read for InterruptibleInput {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let stdin = io::stdin();
        while !self.0.is_raised() {
            let mut wanted = [PollFd::new(&stdin, PollFlags::IN)];
            let wait = Timespec { tv_sec: 0, tv_nsec: INPUT_POLL.as_nanos() as _ };
            match poll(&mut wanted, Some(&wait)) {
                Ok(0) | Err(Errno::INTR) => {}
                // A closed pipe and an error also count as input, because the read then returns the end of the input or
                // the error. Errors of `poll` itself are ignored, because `poll` does not support every kind of file.
                Ok(_) | Err(_) => return Ok(rustix::io::read(&stdin, buffer)?),
            }
        }
        Err(Errno::CANCELED.into())
    }
}

/// Starts logging to standard error with the filter in `FORDWAY_LOG`, such as `debug` or `fordway_cli=trace`, or with
/// the filter `default` if the variable is not set.
fn start_logging(default: Option<&str>) {
    let wanted = std::env::var("FORDWAY_LOG").ok().or_else(|| default.map(str::to_owned));
    if let Some(filter) = wanted.and_then(|wanted| wanted.parse::<Targets>().ok()) {
        // The `s3s` crate logs every 404 as an error, so its messages are disabled.
        let filter = filter.with_target("s3s", LevelFilter::OFF);
        let lines = fmt::layer().with_ansi(std::io::stderr().is_terminal()).with_writer(std::io::stderr);
        tracing_subscriber::registry().with(filter).with(lines).init();
    }
}

/// Calls `stop` to end a server when a signal arrives or, if `until_eof` is set, at the end of standard input. The
/// signal does not end the server's waits for other hosts, because requests in progress may need the responses.
pub fn stop_when_asked(
    stop: impl Fn() + Clone + Send + 'static,
    interrupt: &InterruptFlag,
    until_eof: bool,
) -> Result<()> {
    interrupt.set_of_server();
    if until_eof {
        let stop = stop.clone();
        let wait = move || {
            // End of file and a read error both mean that the peer has exited.
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
            stop();
        };
        spawn("fordway-stdin", wait)?;
    }
    let interrupt = interrupt.clone();
    spawn("fordway-stop", move || {
        while !interrupt.is_raised() {
            std::thread::sleep(STOP_POLL);
        }
        stop();
    })
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<()> {
    let started = std::thread::Builder::new().name(name.to_owned()).spawn(work);
    started.map(drop).map_err(|error| Error::new(ErrorKind::Io, "starting a thread").caused_by(error))
}
