//! The only module that prints. It prints data to standard output, and messages and progress to standard error.

use std::borrow::Cow;
use std::fmt::Display;
use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

use fordway_store::{Error, ErrorKind, Result};
use fordway_sys::{StandardStream, close_errors, was_closed_at_start};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

use crate::exit::file_error;

/// The format of records on standard output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputFormat {
    /// Human-readable lines in the format of `aws s3`.
    Text,
    /// One JSON object per line.
    Json,
}

/// Standard output, standard error and the progress bar, shared by all threads of a command.
pub struct CommandOutputStreams {
    stdout: Mutex<Box<dyn Write + Send>>,
    /// The file that the data is written to, if it is known.
    file: Mutex<Option<Box<dyn AsFd + Send>>>,
    stderr: Mutex<Box<dyn Write + Send>>,
    format: OutputFormat,
    quiet: bool,
    bar: ProgressBar,
    /// Whether standard output was closed when the program started. If it was closed, the program has opened
    /// `/dev/null` in its place.
    is_closed: bool,
    reader_gone: AtomicBool,
    /// Whether events are no longer printed.
    withholds_events: AtomicBool,
}

impl CommandOutputStreams {
    /// Creates an output that uses the process's own streams, and shows the bar only if standard error is a terminal.
    pub fn terminal(format: OutputFormat, quiet: bool, progress: bool) -> Self {
        let shown = progress && !quiet && io::stderr().is_terminal();
        let bar = ProgressBar::with_draw_target(
            Some(0),
            if shown { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() },
        );
        let stdout = BufWriter::with_capacity(64 * 1024, io::stdout());
        let is_closed = was_closed_at_start(StandardStream::Output);
        CommandOutputStreams {
            bar,
            is_closed,
            file: Mutex::new(Some(Box::new(io::stdout()))),
            ..CommandOutputStreams::to(stdout, io::stderr(), format, quiet)
        }
    }

    /// Creates an output that prints to the streams of the caller and shows no bar.
    pub fn to(
        stdout: impl Write + Send + 'static,
        stderr: impl Write + Send + 'static,
        format: OutputFormat,
        quiet: bool,
    ) -> Self {
        CommandOutputStreams {
            stdout: Mutex::new(Box::new(stdout)),
            file: Mutex::default(),
            stderr: Mutex::new(Box::new(stderr)),
            format,
            quiet,
            bar: ProgressBar::hidden(),
            is_closed: false,
            reader_gone: AtomicBool::new(false),
            withholds_events: AtomicBool::new(false),
        }
    }

    /// Returns whether the output is JSON.
    pub fn is_json(&self) -> bool {
        self.format == OutputFormat::Json
    }

    /// Prints data to `file` from now on, instead of standard output. Errors: the errors of duplicating a descriptor.
    pub fn redirect(&self, file: File) -> io::Result<()> {
        *lock(&self.file) = Some(Box::new(file.try_clone()?));
        *lock(&self.stdout) = Box::new(file);
        Ok(())
    }

    /// Makes this output print no further events, as with `--only-show-errors`. Warnings are still printed. Commands that
    /// write content to standard output under another name, such as `/dev/stdout`, call this function: a program that
    /// reads the content must not receive the events as a part of it.
    pub fn withhold_events(&self) {
        self.withholds_events.store(true, Ordering::Relaxed);
    }

    /// Checks that data can be printed. Commands that print the content of files call this function first. Other
    /// commands ignore a closed output and discard their messages. Errors: `InvalidArgument`.
    pub fn check_open(&self) -> Result<()> {
        match self.is_closed {
            true => Err(Error::new(ErrorKind::InvalidArgument, "standard output is closed")),
            false => Ok(()),
        }
    }

    /// Prints one line of data: the record's text, or its JSON.
    pub fn record<R: Serialize + Display>(&self, record: &R) -> Result<()> {
        let line = match self.format {
            OutputFormat::Text => format!("{}\n", without_controls(&record.to_string())),
            OutputFormat::Json => format!("{}\n", json(record)?),
        };
        self.data(line.as_bytes())
    }

    /// Prints a record as JSON. With text output, prints nothing: the caller prints the records as a table.
    pub fn row<R: Serialize>(&self, record: &R) -> Result<()> {
        match self.format {
            OutputFormat::Text => Ok(()),
            OutputFormat::Json => self.data(format!("{}\n", json(record)?).as_bytes()),
        }
    }

    /// Prints a line, such as a total or a heading, that appears only in text output, not in JSON.
    pub fn text(&self, line: &str) -> Result<()> {
        if self.format == OutputFormat::Json {
            return Ok(());
        }
        self.data(format!("{line}\n").as_bytes())
    }

    /// Prints one line about an action on an object, without buffering. Prints nothing with `--quiet` or after
    /// [`withhold_events`](Self::withhold_events).
    pub fn event<R: Serialize + Display>(&self, event: &R) -> Result<()> {
        let is_silent = self.quiet || self.withholds_events.load(Ordering::Relaxed);
        if is_silent { Ok(()) } else { self.beside_progress(event) }
    }

    /// Like [`event`](Self::event), but for a completed action. Succeeds even if the reader of the output has exited,
    /// because the action succeeded and the command continues.
    pub fn completed<R: Serialize + Display>(&self, event: &R) -> Result<()> {
        match self.event(event) {
            Err(error) if self.is_reader_gone(&error) => Ok(()),
            printed => printed,
        }
    }

    /// Prints one line of data in a command that shows progress, without buffering, and even with `--quiet`.
    pub fn beside_progress<R: Serialize + Display>(&self, record: &R) -> Result<()> {
        self.bar.suspend(|| self.record(record).and_then(|()| self.flush()))
    }

    /// Prints bytes unchanged. Errors: `Io`, including when the reader of the output has exited.
    pub fn data(&self, bytes: &[u8]) -> Result<()> {
        self.written(lock(&self.stdout).write_all(bytes))
    }

    /// Flushes the buffered output.
    pub fn flush(&self) -> Result<()> {
        self.written(lock(&self.stdout).flush())
    }

    /// Flushes the buffered output at the end of a command. Also reports the errors of writes that a network file
    /// system has delayed.
    pub fn finish(&self) -> Result<()> {
        self.flush()?;
        match &*lock(&self.file) {
            Some(file) => self.written(close_errors(file).map_err(io::Error::from)),
            None => Ok(()),
        }
    }

    fn written(&self, result: io::Result<()>) -> Result<()> {
        result.map_err(|error| {
            if error.kind() == io::ErrorKind::BrokenPipe {
                self.reader_gone.store(true, Ordering::Relaxed);
            }
            file_error("writing to", "standard output", error)
        })
    }

    /// Returns whether `error` means only that the reader of the output has exited (as in `fordway ls | head`), which
    /// is not a failure.
    pub fn is_reader_gone(&self, error: &Error) -> bool {
        let cause = std::error::Error::source(error).and_then(|source| source.downcast_ref::<io::Error>());
        self.reader_gone.load(Ordering::Relaxed)
            && cause.is_some_and(|cause| cause.kind() == io::ErrorKind::BrokenPipe)
    }

    /// Prints an error to standard error, with the prefix `fordway: `.
    pub fn error(&self, error: &Error) {
        self.message(&format!("fordway: {error}"));
    }

    /// Prints a warning, unless `--quiet` is given.
    pub fn note(&self, sentence: &str) {
        if !self.quiet {
            self.message(&format!("fordway: {sentence}"));
        }
    }

    /// Prints why a command does not succeed, although nothing failed. Prints even with `--quiet`.
    pub fn reason(&self, sentence: &str) {
        self.message(&format!("fordway: {sentence}"));
    }

    fn message(&self, line: &str) {
        // If standard error is closed, the failure cannot be reported anywhere.
        self.bar.suspend(|| writeln!(lock(&self.stderr), "{}", without_controls(line))).ok();
    }

    /// Shows a progress bar for a command that transfers bytes.
    pub fn start_progress(&self) {
        let style = ProgressStyle::with_template(
            "{bar:30} {binary_bytes}/{binary_total_bytes}  {binary_bytes_per_sec}  {eta}",
        );
        // An invalid template affects only the appearance of the bar, not the transfer.
        if let Ok(style) = style {
            self.bar.set_style(style);
        }
    }

    /// Adds bytes and an object to the expected total.
    pub fn expect_bytes(&self, bytes: u64) {
        self.bar.inc_length(bytes);
    }

    /// Adds to the number of bytes transferred so far.
    pub fn advance_bytes(&self, bytes: u64) {
        self.bar.inc(bytes);
    }

    /// Shows a progress bar for a command that works in steps.
    pub fn start_steps(&self) {
        // An earlier part of the command may have removed the bar. A removed bar stays hidden until it is reset.
        self.bar.reset();
        let style = ProgressStyle::with_template("{bar:30} {percent:>3} %  {msg}  {eta} left");
        if let Ok(style) = style {
            self.bar.set_style(style);
        }
    }

    /// Shows that `done` of `total` steps are complete; `doing` names the current step.
    pub fn steps(&self, done: u64, total: u64, doing: impl Display) {
        if !self.bar.is_hidden() {
            self.bar.set_length(total);
            self.bar.set_message(doing.to_string());
            self.bar.set_position(done);
        }
    }

    /// Shows the progress of a command whose total is unknown.
    pub fn start_counting(&self) {
        if let Ok(style) = ProgressStyle::with_template("{spinner} {human_pos} {msg} ({per_sec})") {
            self.bar.set_style(style);
        }
    }

    /// Shows that `done` items are complete; `what` names the kind of items.
    pub fn counted(&self, done: u64, what: impl Display) {
        if !self.bar.is_hidden() {
            self.bar.set_message(what.to_string());
            self.bar.set_position(done);
        }
    }

    /// Removes the bar.
    pub fn end_progress(&self) {
        self.bar.finish_and_clear();
    }
}

fn json(record: &impl Serialize) -> Result<String> {
    serde_json::to_string(record)
        .map_err(|error| Error::new(ErrorKind::Internal, "writing a record as JSON").caused_by(error))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // One call writes a whole line, so a thread that panics while it holds the lock leaves no partial line.
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Escapes control characters, except the characters that separate lines and columns. Object names may contain any
/// characters, but must not send control sequences to the terminal of a user who lists them.
fn without_controls(text: &str) -> Cow<'_, str> {
    escape(text, |c| c.is_control() && !matches!(c, '\n' | '\t'))
}

/// Returns a name as text output shows it. All control characters are escaped, so that a name always fits on one line.
pub fn shown_name(name: &str) -> Cow<'_, str> {
    escape(name, char::is_control)
}

fn escape(text: &str, is_escaped: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&is_escaped) {
        return text.into();
    }
    text.chars().map(|c| if is_escaped(c) { c.escape_debug().to_string() } else { c.to_string() }).collect()
}
