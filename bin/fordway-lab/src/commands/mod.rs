//! The commands, each in its own file or folder. Each command produces a run, a table or findings.

mod bench;
mod compare;
mod contained;
mod doctor;
mod endpoint;
mod gateway;
mod ledger;
mod machines;
mod netlab;
mod pingpong;
mod run_output;
mod scratch;
mod service;
mod speedup;

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use clap::CommandFactory;
use fordway_command::{CommandContext, CommandExit, file_error, manual};
use fordway_machine::MachineWatch;
use fordway_measure::{ResultReliability, RunDocument, RunRecords, doubts_about_modes};
use fordway_store::{Error, ErrorKind, Result};
use fordway_workload::rest::late_requests;
use serde::Serialize;

use crate::args::{CompletionsArgs, GlobalArgs, LabCommandLine, LabSubcommand, ManArgs};

/// Runs the command that a command line names.
pub(crate) fn run(cli: LabCommandLine, context: &CommandContext) -> Result<CommandExit> {
    scratch::remove_on_second_signal(&context.interrupt);
    endpoint::check(&cli.command, &cli.global, context)?;
    match cli.command {
        LabSubcommand::Compare(args) => compare::run(&args, &cli.global, context),
        LabSubcommand::Ledger(args) => ledger::run(&args, context),
        LabSubcommand::Machines(args) => machines::run(&args, context),
        LabSubcommand::Doctor(args) => doctor::run(&args, context),
        LabSubcommand::Speedup(args) => speedup::run(&args, context),
        LabSubcommand::Bench(args) => bench::run(&args, &cli.global, context),
        LabSubcommand::Netlab(args) => netlab::run(&args, context),
        LabSubcommand::Pingpong(args) => pingpong::run(&args, context),
        LabSubcommand::Completions(args) => completions(&args, context),
        LabSubcommand::Man(args) => man(&args, context),
    }
}

/// Returns the value of the option that overrides the AWS environment variable `name`, or else the value of the
/// variable.
fn variable(global: &GlobalArgs, name: &str) -> Option<String> {
    global.lane_options().variable(name)
}

fn completions(args: &CompletionsArgs, context: &CommandContext) -> Result<CommandExit> {
    context
        .output
        .data(&manual::completions(args.shell, LabCommandLine::command(), "fordway-lab"))
        .map(|()| CommandExit::Ok)
}

fn man(args: &ManArgs, context: &CommandContext) -> Result<CommandExit> {
    match &args.out {
        None => context.output.data(&manual::front_page(LabCommandLine::command())?)?,
        Some(directory) => manual::write_pages(LabCommandLine::command(), directory)?,
    }
    Ok(CommandExit::Ok)
}

/// Checks a list that a run varies. A value that occurs twice would yield two phases, or two lanes, with one name.
/// Errors: `InvalidArgument` if a value occurs twice.
fn refuse_repeats<T: PartialEq + std::fmt::Debug>(option: &str, values: &[T]) -> Result<()> {
    let is_repeated = |(at, value): (usize, &T)| values[..at].contains(value);
    match values.iter().enumerate().any(is_repeated) {
        true => {
            let detail = format!("{option} contains a value twice: {values:?}; give each value once");
            Err(Error::new(ErrorKind::InvalidArgument, detail))
        }
        false => Ok(()),
    }
}

/// Stops observing the machine and adds the observed conditions to the run.
fn judge(run: &mut RunDocument, watch: MachineWatch) {
    let mut conditions = watch.conditions();
    late_requests(&run.summaries).into_iter().for_each(|doubt| conditions.doubt(doubt));
    run.add_conditions(conditions);
}

/// Like [`judge`], but also adds a doubt for each result that has two modes.
fn judge_rounds(run: &mut RunDocument, records: &RunRecords, watch: MachineWatch) {
    judge(run, watch);
    let doubts = doubts_about_modes(run, records);
    if let Some(conditions) = &mut run.conditions {
        doubts.into_iter().for_each(|doubt| conditions.doubt(doubt));
    }
}

/// Prints the conditions of a run, and its warnings.
fn write_trust(run: &RunDocument, context: &CommandContext) -> Result<()> {
    if let Some(conditions) = &run.conditions {
        context.output.text(&conditions.to_string())?;
    }
    for warning in &run.warnings {
        context.output.note(&format!("warning: {warning}"));
    }
    Ok(())
}

/// Writes the run's summaries as rows of JSON, each with its conditions.
fn write_summaries(run: &RunDocument, context: &CommandContext) -> Result<()> {
    run.summaries
        .iter()
        .try_for_each(|summary| write_row(summary, (&summary.lane, &summary.phase), run, context))
}

/// Writes a row of JSON, with the conditions under which `lane` was measured in `phase`.
fn write_row<R: Serialize>(
    row: &R,
    (lane, phase): (&str, &str),
    run: &RunDocument,
    context: &CommandContext,
) -> Result<()> {
    let conditions = run.conditions.as_ref().map(|all| all.of_cell(lane, phase));
    context.output.row(&RowWithReliability { row, conditions })
}

/// A row of JSON, and the conditions under which it was measured.
#[derive(Serialize)]
struct RowWithReliability<'r, R: Serialize> {
    #[serde(flatten)]
    row: &'r R,
    conditions: Option<ResultReliability<'r>>,
}

/// Returns whether the file is a page that `fordway-report` has written.
fn is_report(page: &Path) -> bool {
    let mut head = Vec::new();
    let read = std::fs::File::open(page).and_then(|file| file.take(REPORT_HEAD_BYTES).read_to_end(&mut head));
    let head = String::from_utf8_lossy(&head);
    read.is_ok() && head.starts_with("<!doctype html>") && REPORT_MARKS.iter().any(|mark| head.contains(mark))
}

/// The number of bytes at the start of a page that are searched for [`REPORT_MARKS`].
const REPORT_HEAD_BYTES: u64 = 65_536;
/// The strings that identify a report: one for this version, and one for older versions.
const REPORT_MARKS: [&str; 2] = ["<meta name=\"generator\" content=\"Fordway\">", "· Fordway</title>"];

/// Writes the HTML page of a run, unless `no_report` is set. Without a new page, removes the page of an older run.
fn write_or_remove_page(run: &Path, no_report: bool, context: &CommandContext) -> Result<()> {
    match no_report {
        true => remove_page(&run.with_extension("html"), context),
        false => return write_page(run, context),
    }
    Ok(())
}

/// Removes the page of an older run, which would be mistaken for the page of the new run.
fn remove_page(html: &Path, context: &CommandContext) {
    if is_report(html) && std::fs::remove_file(html).is_ok() {
        context.output.note(&format!("removed the report of an older run, {}", html.display()));
    }
}

/// Runs `fordway-report` to write the HTML page of a run. Looks for the program in the directory of this binary, then
/// on PATH, which includes an active virtual environment.
fn write_page(run: &Path, context: &CommandContext) -> Result<()> {
    let html = run.with_extension("html");
    let beside = std::env::current_exe().ok().and_then(|exe| Some(exe.parent()?.join("fordway-report")));
    let program = beside.filter(|path| path.exists()).unwrap_or_else(|| PathBuf::from("fordway-report"));
    let made =
        std::process::Command::new(&program).arg(run).arg("--out").arg(&html).stdout(Stdio::null()).status();
    match made {
        Ok(status) if status.success() => context.output.text(&format!("report: {}", html.display())),
        Ok(status) => {
            context.output.note(&format!("no HTML report: {} exited with {status}", program.display()));
            remove_page(&html, context);
            Ok(())
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            context.output.note(
                "no HTML report: it needs the Python package, which `make build` installs in .venv of the \
                 source tree; add .venv/bin to PATH and run `fordway report` on the run",
            );
            remove_page(&html, context);
            Ok(())
        }
        Err(error) => Err(file_error("running", program.display(), error)),
    }
}
