//! The `fordway` binary: reads the command line, makes its surroundings, and runs it.

use std::io::{IsTerminal, Write as _};
use std::process::ExitCode;

use clap::Parser;
use fordway_cli::{Cli, Command, Context, Exit, Format, GlobalArgs, Interrupt, Output};
use fordway_client::http::replicas::MetalinkCache;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    let cli = Cli::parse();
    start_logging(&cli.command);
    let interrupt = Interrupt::default();
    let context = surroundings(&cli.global, interrupt.clone());
    stop_on_signals(interrupt);
    fordway_cli::run(cli, &context).into()
}

/// SIGINT, SIGTERM and SIGHUP stop transfers at their next chunk, so that temporary things are
/// removed; a second one ends a process that hangs in a read. To a gateway SIGHUP means something else.
fn stop_on_signals(interrupt: Interrupt) {
    let mut signals = match Signals::new([SIGINT, SIGTERM, SIGHUP]) {
        Ok(signals) => signals,
        Err(error) => {
            // Signals then end the process as they always do.
            tracing::warn!(%error, "signals are not handled");
            return;
        }
    };
    let wait = move || {
        for signal in signals.forever() {
            let is_taken = signal == SIGHUP && interrupt.hang_up();
            if !is_taken && interrupt.raise() {
                for kept in interrupt.leave() {
                    let kept = kept.display();
                    // Nobody can be told where nobody listens.
                    let _ = writeln!(
                        std::io::stderr(),
                        "fordway: {kept} is kept; give the same command again to go on from there"
                    );
                }
                std::process::exit(Exit::Interrupted as i32);
            }
        }
    };
    if let Err(error) = std::thread::Builder::new().name("fordway-signals".to_owned()).spawn(wait) {
        tracing::warn!(%error, "signals are not handled");
    }
}

fn surroundings(global: &GlobalArgs, interrupt: Interrupt) -> Context {
    let format = if global.json { Format::Json } else { Format::Text };
    let output = Output::terminal(format, global.quiet, !global.no_progress && !global.json);
    let options = fordway_lanes::Options {
        endpoint: global.endpoint.clone(),
        profile: global.profile.clone(),
        region: global.region.clone(),
        ..Default::default()
    };
    let open = move |endpoint: Option<&str>| match endpoint {
        Some(endpoint) => fordway_lanes::open(&fordway_lanes::Options {
            endpoint: Some(endpoint.to_owned()),
            ..options.clone()
        }),
        None => fordway_lanes::open(&options),
    };
    let mut context = Context::new(open, output, std::io::stdin(), interrupt);
    context.metalinks = MetalinkCache::of_user();
    context
}

/// `FORDWAY_LOG=debug` (or `fordway_cli=trace`, ...) logs to standard error. Without it gateways log
/// what their operator should know, and other commands nothing.
fn start_logging(command: &Command) {
    let is_gateway = matches!(command, Command::Serve(_) | Command::Node(_));
    let wanted = std::env::var("FORDWAY_LOG").ok().or_else(|| is_gateway.then(|| "warn".to_owned()));
    if let Some(filter) = wanted.and_then(|wanted| EnvFilter::try_new(wanted).ok()) {
        // The S3 layer logs every 404 as an error of its own.
        let filter = match "s3s=off".parse() {
            Ok(quiet) => filter.add_directive(quiet),
            Err(_) => filter,
        };
        tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_ansi(std::io::stderr().is_terminal())
            .with_writer(std::io::stderr)
            .init();
    }
}
