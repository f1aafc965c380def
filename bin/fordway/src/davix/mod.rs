//! davix's command-line tools as other names of the `fordway` program: under the name `davix-get`, through a symbolic
//! link, it accepts the options of davix-get, and runs `fordway cp` or `fordway cat`.
//!
//! `args` defines the command lines, `address` and `connection` turn URLs and options into Fordway's own, and `listing`
//! prints what `davix-ls` prints. This file runs the tools, each as far as possible as one of Fordway's commands.

mod address;
mod args;
mod connection;
mod listing;

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind as LineErrorKind;
use fordway_command::program::{self, finish};
use fordway_command::{CommandContext, CommandExit, file_error};
use fordway_http::webdav::{PlainRequest, without_query};
use fordway_lanes::LaneOptions;
use fordway_store::{Error, ErrorKind, Result};

use self::address::DavixAddress;
use self::args::{
    CopyMode, CpLine, DavixOptions, GetLine, HttpLine, LsLine, MkdirLine, MvLine, PutLine, RmLine,
};
use crate::args::{CommandLine, GlobalArgs};
use crate::web::http_url;
use crate::{commands, dav};

/// The exit code of davix's tools for most failures: -1, of which the system keeps the low byte.
const FAILED: u8 = 255;
/// The exit code for an unknown option, and of `davix-rm` for every failure.
const FAILED_LIGHTLY: u8 = 1;

/// One of davix's tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DavixTool {
    /// `davix-get`
    Get,
    /// `davix-put`
    Put,
    /// `davix-ls`
    Ls,
    /// `davix-rm`
    Rm,
    /// `davix-mkdir`
    Mkdir,
    /// `davix-mv`
    Mv,
    /// `davix-cp`
    Cp,
    /// `davix-http`
    Http,
}

impl DavixTool {
    const ALL: [DavixTool; 8] = [
        DavixTool::Get,
        DavixTool::Put,
        DavixTool::Ls,
        DavixTool::Rm,
        DavixTool::Mkdir,
        DavixTool::Mv,
        DavixTool::Cp,
        DavixTool::Http,
    ];

    /// Returns the tool that a program's first argument names, with or without a path.
    pub fn named(program: &OsStr) -> Option<Self> {
        let name = Path::new(program).file_name()?;
        Self::ALL.into_iter().find(|tool| tool.name() == name)
    }

    fn name(self) -> &'static str {
        match self {
            DavixTool::Get => "davix-get",
            DavixTool::Put => "davix-put",
            DavixTool::Ls => "davix-ls",
            DavixTool::Rm => "davix-rm",
            DavixTool::Mkdir => "davix-mkdir",
            DavixTool::Mv => "davix-mv",
            DavixTool::Cp => "davix-cp",
            DavixTool::Http => "davix-http",
        }
    }

    /// Returns the exit code by which scripts of davix's users tell how a command ended.
    fn code(self, exit: CommandExit) -> u8 {
        match exit {
            CommandExit::Ok => 0,
            CommandExit::Interrupted => CommandExit::Interrupted as u8,
            _ if self == DavixTool::Rm => FAILED_LIGHTLY,
            _ => FAILED,
        }
    }
}

/// Runs a tool with the words after its name. When this returns, all errors have been reported.
pub fn run(tool: DavixTool, words: Vec<OsString>) -> ExitCode {
    match tool {
        DavixTool::Get => run_line::<GetLine>(tool, words),
        DavixTool::Put => run_line::<PutLine>(tool, words),
        DavixTool::Ls => run_line::<LsLine>(tool, words),
        DavixTool::Rm => run_line::<RmLine>(tool, words),
        DavixTool::Mkdir => run_line::<MkdirLine>(tool, words),
        DavixTool::Mv => run_line::<MvLine>(tool, words),
        DavixTool::Cp => run_line::<CpLine>(tool, words),
        DavixTool::Http => run_line::<HttpLine>(tool, words),
    }
}

/// A parsed command line.
trait ToolLine: Parser {
    fn options(&self) -> &DavixOptions;

    /// Returns the URLs of the command line.
    fn urls(&self) -> Vec<&str>;

    /// Runs the tool with these addresses, which are the parsed URLs.
    fn run(&self, addresses: &[DavixAddress], context: &CommandContext) -> Result<CommandExit>;
}

fn run_line<L: ToolLine>(tool: DavixTool, words: Vec<OsString>) -> ExitCode {
    let line = match parse::<L>(tool, words) {
        Ok(line) => line,
        Err(error) => return report_usage(&error),
    };
    let options = line.options();
    let is_logged = options.debug || options.trace.is_some();
    let global = globals(tool != DavixTool::Cp || options.quiet);
    match Prepared::of(tool, &line) {
        Ok(prepared) => {
            let lane = prepared.lane.clone();
            program::run_on_lane(&global, lane, is_logged.then_some("debug"), |context| {
                tool.code(finish(prepared.run(&line, context), context)).into()
            })
        }
        Err(error) => {
            // If standard error is closed, the failure cannot be reported anywhere.
            let _ = writeln!(std::io::stderr(), "{}: {error}", tool.name());
            tool.code(CommandExit::of(&error)).into()
        }
    }
}

/// Parses a command line as `getopt_long` does: options may be abbreviated, repeated, and follow arguments.
fn parse<L: Parser>(tool: DavixTool, words: Vec<OsString>) -> Result<L, clap::Error> {
    let command = L::command()
        .name(tool.name())
        .bin_name(tool.name())
        .version(concat!(env!("CARGO_PKG_VERSION"), " (Fordway)"))
        .max_term_width(100)
        .infer_long_args(true)
        .args_override_self(true)
        .mut_args(|arg| {
            let takes_value = arg.get_action().takes_values() && !arg.is_positional();
            if takes_value { arg.allow_hyphen_values(true) } else { arg }
        });
    let words = std::iter::once(OsString::from(tool.name())).chain(words);
    let matches = command.try_get_matches_from(words)?;
    L::from_arg_matches(&matches)
}

/// Prints the help text or what is wrong with a command line.
fn report_usage(error: &clap::Error) -> ExitCode {
    // If the stream is closed, the text cannot be printed anywhere.
    let _ = error.print();
    match error.kind() {
        LineErrorKind::DisplayHelp | LineErrorKind::DisplayVersion => ExitCode::SUCCESS,
        LineErrorKind::UnknownArgument => FAILED_LIGHTLY.into(),
        _ => FAILED.into(),
    }
}

/// The global options of Fordway's commands. `davix-cp` alone is not quiet: it says which machine made the copy.
fn globals(quiet: bool) -> GlobalArgs {
    GlobalArgs { endpoint: None, profile: None, region: None, json: false, quiet, no_progress: true }
}

/// What is known about a command before it connects.
struct Prepared {
    addresses: Vec<DavixAddress>,
    lane: LaneOptions,
    web: Option<fordway_http::vector::SessionOptions>,
}

impl Prepared {
    /// Checks the options and the URLs. Errors: `InvalidArgument`.
    fn of(tool: DavixTool, line: &impl ToolLine) -> Result<Self> {
        let options = line.options();
        connection::check(options)?;
        if options.redirection.as_deref() == Some("no") && tool != DavixTool::Http {
            let why = "--redirection no: files are read from where the server says; use davix-http to see a redirection";
            return Err(Error::new(ErrorKind::InvalidArgument, why));
        }
        let parse = |url| DavixAddress::parse(url, &options.security);
        let addresses = line.urls().into_iter().map(parse).collect::<Result<Vec<_>>>()?;
        let services: Vec<_> = addresses
            .iter()
            .filter_map(|address| match address {
                DavixAddress::S3(service) => Some(service),
                DavixAddress::Web(_) => None,
            })
            .collect();
        if services.windows(2).any(|pair| pair[0].endpoint != pair[1].endpoint) {
            let why = "objects cannot be copied from one S3 service to another; copy to a file first";
            return Err(Error::new(ErrorKind::InvalidArgument, why));
        }
        let lane = match services.first() {
            Some(service) => connection::lane_options(service, options)?,
            None => LaneOptions::default(),
        };
        let is_web = services.len() < addresses.len();
        let web = is_web.then(|| connection::web_options(options, tool == DavixTool::Http)).transpose()?;
        Ok(Prepared { addresses, lane, web })
    }

    fn run(mut self, line: &impl ToolLine, context: &CommandContext) -> Result<CommandExit> {
        if let Some(options) = self.web.take() {
            context.use_web_options(options);
        }
        line.run(&self.addresses, context)
    }
}

/// Runs one of Fordway's own commands, which reports its errors.
fn own_command(words: &[&OsStr], context: &CommandContext) -> Result<CommandExit> {
    let words = std::iter::once(OsStr::new("fordway")).chain(words.iter().copied());
    let line = CommandLine::try_parse_from(words)
        .map_err(|error| Error::new(ErrorKind::Internal, "translating the options").caused_by(error))?;
    Ok(commands::run(line, context))
}

/// Returns words of a command line that begin with those that are given.
macro_rules! words {
    ($($word:expr),* $(,)?) => { vec![$(OsStr::new($word)),*] };
}

/// Returns the number of jobs for a number of threads.
fn jobs(threads: u16) -> String {
    format!("--jobs={}", threads.clamp(1, 1024))
}

/// Returns a local path that cannot be mistaken for standard input or a URL.
fn local_word(path: &Path) -> PathBuf {
    if path.is_absolute() { path.to_owned() } else { Path::new(".").join(path) }
}

/// Returns the option that decides whether replicas are asked for.
fn metalink_word(options: &DavixOptions) -> Option<&'static str> {
    let is_wanted = match options.metalink.as_deref() {
        Some(mode) => matches!(mode, "auto" | "failover"),
        None => !connection::has_secrets(options),
    };
    (!is_wanted).then_some("--metalink=none")
}

impl ToolLine for GetLine {
    fn options(&self) -> &DavixOptions {
        &self.options
    }

    fn urls(&self) -> Vec<&str> {
        vec![&self.url]
    }

    fn run(&self, addresses: &[DavixAddress], context: &CommandContext) -> Result<CommandExit> {
        let (address, word) = (&addresses[0], addresses[0].word());
        let file = self.file.as_ref().or(self.output.as_ref());
        if let Some(threads) = self.recursive
            && is_collection(address, context)?
        {
            let jobs = jobs(threads);
            let directory = file.cloned().unwrap_or_else(|| usual_directory(&word));
            let directory = local_word(&directory);
            return own_command(
                &words!["cp", "--recursive", "--raw", &jobs, "--", &word, &directory],
                context,
            );
        }
        let mut words = match file {
            Some(file) if !is_device(file) => words!["cp", "--raw"],
            Some(file) => {
                print_into(file, context)?;
                words!["cat", "--raw"]
            }
            None => words!["cat", "--raw"],
        };
        if matches!(address, DavixAddress::Web(_)) {
            words.extend(metalink_word(&self.options).map(OsStr::new));
        }
        words.extend(words!["--", &word]);
        let file = file.filter(|file| !is_device(file)).map(|file| local_word(file));
        words.extend(file.as_ref().map(|file| file.as_os_str()));
        own_command(&words, context)
    }
}

/// Returns whether an address can be read recursively. A plain web server lists nothing.
fn is_collection(address: &DavixAddress, context: &CommandContext) -> Result<bool> {
    match address {
        DavixAddress::Web(url) if address.can_be_listed() => {
            Ok(dav::client(context).stat(&http_url(url))?.is_collection)
        }
        DavixAddress::Web(_) => Ok(false),
        DavixAddress::S3(_) => Ok(true),
    }
}

/// Returns the directory that a collection is copied to if none is named: its own name.
fn usual_directory(url: &str) -> PathBuf {
    let path = without_query(url).trim_end_matches('/');
    let name = path.splitn(4, '/').nth(3).and_then(|path| path.rsplit('/').next()).unwrap_or_default();
    match fordway_wire::uri::decode_segment(name).filter(|name| !name.contains('/')) {
        Some(name) if !matches!(name.as_str(), "" | "." | "..") => PathBuf::from(name),
        _ => PathBuf::from("temp"),
    }
}

/// Returns whether a path is a device or pipe, such as /dev/null, to which content is written as it arrives.
fn is_device(path: &Path) -> bool {
    path.metadata().is_ok_and(|about| !about.is_file() && !about.is_dir())
}

/// Makes data go to a file instead of standard output.
fn print_into(path: &Path, context: &CommandContext) -> Result<()> {
    let opened = File::options().write(true).create(true).truncate(true).open(path);
    let file = opened.map_err(|error| file_error("writing to", path.display(), error))?;
    context.output.redirect(file);
    Ok(())
}

impl ToolLine for PutLine {
    fn options(&self) -> &DavixOptions {
        &self.options
    }

    fn urls(&self) -> Vec<&str> {
        vec![&self.url]
    }

    fn run(&self, addresses: &[DavixAddress], context: &CommandContext) -> Result<CommandExit> {
        let (file, word) = (local_word(Path::new(&self.file)), addresses[0].word());
        match self.recursive.filter(|_| file.is_dir()) {
            Some(threads) => {
                let jobs = jobs(threads);
                own_command(&words!["cp", "--recursive", "--raw", &jobs, "--", &file, &word], context)
            }
            None => own_command(&words!["cp", "--raw", "--", &file, &word], context),
        }
    }
}

impl ToolLine for LsLine {
    fn options(&self) -> &DavixOptions {
        &self.options
    }

    fn urls(&self) -> Vec<&str> {
        vec![&self.url]
    }

    fn run(&self, addresses: &[DavixAddress], context: &CommandContext) -> Result<CommandExit> {
        match &addresses[0] {
            DavixAddress::Web(_) => listing::web(self, context),
            DavixAddress::S3(service) => listing::bucket(service, self, context),
        }
    }
}

impl ToolLine for RmLine {
    fn options(&self) -> &DavixOptions {
        &self.options
    }

    fn urls(&self) -> Vec<&str> {
        vec![&self.url]
    }

    fn run(&self, addresses: &[DavixAddress], context: &CommandContext) -> Result<CommandExit> {
        let word = addresses[0].word();
        match (&addresses[0], self.recursive) {
            (_, Some(threads)) => {
                let jobs = jobs(threads);
                own_command(&words!["rm", "--recursive", "--raw", &jobs, "--", &word], context)
            }
            // One request, with which most servers remove a whole collection.
            (DavixAddress::Web(url), None) => {
                dav::client(context).remove(&http_url(url)).map(|()| CommandExit::Ok)
            }
            (DavixAddress::S3(_), None) => own_command(&words!["rm", "--raw", "--", &word], context),
        }
    }
}

impl ToolLine for MkdirLine {
    fn options(&self) -> &DavixOptions {
        &self.options
    }

    fn urls(&self) -> Vec<&str> {
        vec![&self.url]
    }

    fn run(&self, addresses: &[DavixAddress], context: &CommandContext) -> Result<CommandExit> {
        match &addresses[0] {
            DavixAddress::S3(service) if service.key.is_empty() => {
                let bucket = format!("s3://{}", service.bucket);
                own_command(&words!["mb", "--", &bucket], context)
            }
            other => own_command(&words!["mkdir", "--", &other.word()], context),
        }
    }
}

impl ToolLine for MvLine {
    fn options(&self) -> &DavixOptions {
        &self.options
    }

    fn urls(&self) -> Vec<&str> {
        vec![&self.source, &self.destination]
    }

    fn run(&self, addresses: &[DavixAddress], context: &CommandContext) -> Result<CommandExit> {
        let (from, to) = (addresses[0].word(), addresses[1].word());
        let mut words = words!["mv", "--raw"];
        // `fordway mv` moves a collection only if that is asked for.
        if let DavixAddress::Web(url) = &addresses[0]
            && dav::client(context).stat(&http_url(url))?.is_collection
        {
            words.push(OsStr::new("--recursive"));
        }
        words.extend(words!["--", &from, &to]);
        own_command(&words, context)
    }
}

impl ToolLine for CpLine {
    fn options(&self) -> &DavixOptions {
        &self.options
    }

    fn urls(&self) -> Vec<&str> {
        vec![&self.source, &self.destination]
    }

    fn run(&self, addresses: &[DavixAddress], context: &CommandContext) -> Result<CommandExit> {
        let (from, to) = (addresses[0].word(), addresses[1].word());
        let server = match self.copy_mode {
            CopyMode::Push => "--third-party=push",
            CopyMode::Pull => "--third-party=pull",
        };
        own_command(&words!["cp", "--raw", server, "--", &from, &to], context)
    }
}

/// The methods that `davix-http` sends; names of headers and methods are constants in the client.
const METHODS: [&str; 18] = [
    "GET",
    "HEAD",
    "PUT",
    "POST",
    "DELETE",
    "OPTIONS",
    "PATCH",
    "TRACE",
    "PROPFIND",
    "PROPPATCH",
    "MKCOL",
    "COPY",
    "MOVE",
    "LOCK",
    "UNLOCK",
    "SEARCH",
    "REPORT",
    "ACL",
];

impl ToolLine for HttpLine {
    fn options(&self) -> &DavixOptions {
        &self.options
    }

    fn urls(&self) -> Vec<&str> {
        vec![&self.url]
    }

    fn run(&self, addresses: &[DavixAddress], context: &CommandContext) -> Result<CommandExit> {
        let DavixAddress::Web(url) = &addresses[0] else {
            let why = "davix-http does not sign requests to S3; send them to a URL from `fordway presign`";
            return Err(Error::new(ErrorKind::InvalidArgument, why));
        };
        let wanted = self.request.request.as_deref().unwrap_or("GET").trim();
        let method = METHODS.into_iter().find(|method| *method == wanted).ok_or_else(|| {
            let why = format!("the method {wanted:?} is none of {}; use curl", METHODS.join(", "));
            Error::new(ErrorKind::InvalidArgument, why)
        })?;
        let body = self.request.data.as_deref().map(str::as_bytes);
        let follows = self.options.redirection.as_deref() != Some("no");
        if let Some(file) = &self.request.output {
            print_into(file, context)?;
        }
        let request = PlainRequest { method, body, follows };
        let status = dav::client(context).request(&http_url(url), &request, &mut |status, bytes| {
            context.interrupt.check()?;
            if is_denied(status) { Ok(()) } else { context.output.data(bytes) }
        })?;
        context.output.flush()?;
        if status < 400 {
            return Ok(CommandExit::Ok);
        }
        let shown = without_query(url);
        let why = format!("{shown}: the server answered with HTTP status {status}");
        let kind = if is_denied(status) { ErrorKind::AccessDenied } else { ErrorKind::BadResponse };
        context.output.error(&Error::new(kind, why));
        Ok(if is_denied(status) { CommandExit::Denied } else { CommandExit::Ok })
    }
}

/// Returns whether a status is one of the two that davix-http treats as failures, of which it prints no content.
fn is_denied(status: u16) -> bool {
    matches!(status, 401 | 403)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line<L: Parser>(tool: DavixTool, words: &[&str]) -> Result<L, clap::Error> {
        parse(tool, words.iter().map(OsString::from).collect())
    }

    #[test]
    fn names_are_known_with_and_without_a_path() {
        for tool in DavixTool::ALL {
            assert_eq!(DavixTool::named(OsStr::new(tool.name())), Some(tool));
            let path = Path::new("/usr/lib/fordway/davix").join(tool.name());
            assert_eq!(DavixTool::named(path.as_os_str()), Some(tool));
        }
        for other in ["fordway", "davix", "davix-", "davix-get.sh", ""] {
            assert_eq!(DavixTool::named(OsStr::new(other)), None, "{other}");
        }
    }

    #[test]
    fn lines_are_read_as_getopt_reads_them() {
        let words = [
            "-E",
            "p",
            "https://h/f",
            "--redirect",
            "yes",
            "-r4",
            "-H",
            "-x: y",
            "out",
            "--retry",
            "1",
            "--retry=2",
        ];
        let get = line::<GetLine>(DavixTool::Get, &words).unwrap();
        assert_eq!((get.url.as_str(), get.recursive), ("https://h/f", Some(4)));
        assert_eq!(get.options.headers, ["-x: y"]);
        assert_eq!(get.options.security.cert.as_deref(), Some("p"));
        assert_eq!(get.options.retry, Some(2));
        assert_eq!(get.options.redirection.as_deref(), Some("yes"));
        for (words, kind) in [
            (vec!["--nonsense", "u"], LineErrorKind::UnknownArgument),
            (vec![], LineErrorKind::MissingRequiredArgument),
            (vec!["u", "--retry", "x"], LineErrorKind::ValueValidation),
            (vec!["u", "--metalink", "x"], LineErrorKind::InvalidValue),
            (vec!["--help"], LineErrorKind::DisplayHelp),
        ] {
            assert_eq!(line::<GetLine>(DavixTool::Get, &words).unwrap_err().kind(), kind, "{words:?}");
        }
    }

    #[test]
    fn directories_are_named_after_collections() {
        for (url, name) in [
            ("davs://h/a/b%20c/", "b c"),
            ("s3://bkt/p/q", "q"),
            ("davs://h/", "temp"),
            ("davs://h/a/..", "temp"),
            ("davs://h/a%2Fb", "temp"),
        ] {
            assert_eq!(usual_directory(url), Path::new(name), "{url}");
        }
    }
}
