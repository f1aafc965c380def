//! The `fordway` binary: reads the command line, makes its surroundings, and runs it.

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::Parser;
use fordway_cli::{Cli, Command, Context, Exit, Format, GlobalArgs, Interrupt, Output};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let is_gateway = matches!(cli.command, Command::Serve(_) | Command::Node(_));
    let reloads = matches!(cli.command, Command::Serve(_));
    start_logging(is_gateway);
    let interrupt = Interrupt::default();
    let context = surroundings(&cli.global, interrupt.clone());
    heed_signals(interrupt, reloads);
    fordway_cli::run(cli, &context).into()
}

/// SIGINT, SIGTERM and SIGHUP stop transfers at their next chunk, so that temporary things are
/// removed; a second one ends a process that hangs in a read. With `reloads`, SIGHUP asks for files to
/// be read anew instead.
fn heed_signals(interrupt: Interrupt, reloads: bool) {
    let heed = move |mut signals: Signals| {
        for signal in signals.forever() {
            if signal == SIGHUP && reloads {
                interrupt.ask_for_reload();
            } else if interrupt.raise() {
                std::process::exit(Exit::Interrupted as i32);
            }
        }
    };
    let start =
        |signals| std::thread::Builder::new().name("fordway-signals".to_owned()).spawn(move || heed(signals));
    if let Err(error) = Signals::new([SIGINT, SIGTERM, SIGHUP]).and_then(start) {
        // Signals then end the process as they always do.
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
    Context::new(open, output, std::io::stdin(), interrupt)
}

/// `FORDWAY_LOG=debug` (or `fordway_cli=trace`, ...) logs to standard error; without it, gateways log
/// warnings and errors, and other commands nothing.
fn start_logging(is_gateway: bool) {
    let chosen = EnvFilter::try_from_env("FORDWAY_LOG").ok();
    if let Some(filter) = chosen.or_else(|| is_gateway.then(|| EnvFilter::new("warn"))) {
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
