//! The `fordway` binary: reads the command line, makes its surroundings, and runs it.

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::Parser;
use fordway_cli::{Cli, Context, Exit, Format, GlobalArgs, Interrupt, Output};
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    let cli = Cli::parse();
    start_logging();
    let interrupt = Interrupt::default();
    let context = surroundings(&cli.global, interrupt.clone());
    stop_on_signals(interrupt);
    fordway_cli::run(cli, &context).into()
}

/// SIGINT, SIGTERM and SIGHUP stop transfers at their next chunk, so that temporary things are
/// removed; a second one ends a process that hangs in a read.
fn stop_on_signals(interrupt: Interrupt) {
    let handler = move || {
        if interrupt.raise() {
            std::process::exit(Exit::Interrupted as i32);
        }
    };
    if let Err(error) = ctrlc::set_handler(handler) {
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

/// `FORDWAY_LOG=debug` (or `fordway_cli=trace`, ...) logs to standard error; nothing is logged without it.
fn start_logging() {
    if let Ok(filter) = EnvFilter::try_from_env("FORDWAY_LOG") {
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
