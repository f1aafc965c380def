//! The `fordway` binary: reads the command line, makes its surroundings, and runs it.

use std::process::ExitCode;

use clap::Parser;
use fordway_cli::{Cli, Context, EndpointSources, Format, GlobalArgs, Interrupt, Output};
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    let cli = Cli::parse();
    start_logging();
    let interrupt = Interrupt::on_signals().unwrap_or_default();
    let context = surroundings(&cli.global, interrupt);
    fordway_cli::run(cli, &context).into()
}

fn surroundings(global: &GlobalArgs, interrupt: Interrupt) -> Context {
    let format = if global.json { Format::Json } else { Format::Text };
    let output = Output::terminal(format, global.quiet, !global.no_progress && !global.json);
    let (endpoint, profile) = (global.endpoint.clone(), global.profile.clone());
    let open = move || EndpointSources::of_process(endpoint.clone(), profile.clone()).endpoint()?.open();
    Context::new(open, output, std::io::stdin(), interrupt)
}

/// `FORDWAY_LOG=debug` (or `fordway_cli=trace`, ...) logs to standard error; nothing is logged without it.
fn start_logging() {
    if let Ok(filter) = EnvFilter::try_from_env("FORDWAY_LOG") {
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    }
}
