//! davix's command-line tools as other names of the `fordway` program. For example, a program that is started through a
//! symbolic link with the name `davix-get` accepts the options of davix-get, and runs the `cp` or `cat` command.
//!
//! `args` defines the command lines. `address` and `connection` convert URLs and options to Fordway's own. `tools` runs
//! the tools, and `listing` prints the output of `davix-ls`. This file recognizes the names, parses the command lines,
//! and chooses the exit codes.

mod address;
mod args;
mod connection;
mod listing;
mod tools;

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use clap::Parser;
use clap::error::{ContextKind, ContextValue, ErrorKind as LineErrorKind};
use fordway_command::program::{self, finish};
use fordway_command::{CommandContext, CommandExit};
use fordway_http::vector::SessionOptions;
use fordway_lanes::LaneConfigOverrides;
use fordway_store::{Error, ErrorKind, Result};

use self::address::DavixAddress;
use self::args::{
    DavixCpArgs, DavixGetArgs, DavixHttpCommandArgs, DavixLsArgs, DavixMkdirArgs, DavixMvArgs, DavixOptions,
    DavixPutArgs, DavixRmArgs,
};
use crate::args::GlobalArgs;

/// The exit code of davix's tools for most failures: the low byte of -1.
const FAILED: u8 = 255;
/// The exit code for an unknown option, and for every failure of `davix-rm`.
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

    /// Returns the exit code with which davix's tool reports this outcome, because scripts depend on davix's exit
    /// codes.
    fn code(self, exit: CommandExit) -> u8 {
        match exit {
            CommandExit::Ok => 0,
            CommandExit::Interrupted => CommandExit::Interrupted as u8,
            _ if self == DavixTool::Rm => FAILED_LIGHTLY,
            _ => FAILED,
        }
    }
}

/// Runs a tool with the command-line arguments that follow its name. When this function returns, all errors have been
/// reported.
pub fn run(tool: DavixTool, words: Vec<OsString>) -> ExitCode {
    match tool {
        DavixTool::Get => run_line::<DavixGetArgs>(tool, words),
        DavixTool::Put => run_line::<DavixPutArgs>(tool, words),
        DavixTool::Ls => run_line::<DavixLsArgs>(tool, words),
        DavixTool::Rm => run_line::<DavixRmArgs>(tool, words),
        DavixTool::Mkdir => run_line::<DavixMkdirArgs>(tool, words),
        DavixTool::Mv => run_line::<DavixMvArgs>(tool, words),
        DavixTool::Cp => run_line::<DavixCpArgs>(tool, words),
        DavixTool::Http => run_line::<DavixHttpCommandArgs>(tool, words),
    }
}

/// A parsed command line.
trait DavixToolCommand: Parser {
    fn options(&self) -> &DavixOptions;

    /// Returns the URLs of the command line.
    fn urls(&self) -> Vec<&str>;

    /// Changes the options for connections to web servers, as the tool's own options require. Errors:
    /// `InvalidArgument`.
    fn adjust(&self, addresses: &[DavixAddress], web: &mut SessionOptions) -> Result<()> {
        let _ = (addresses, web);
        Ok(())
    }

    /// Runs the tool. `addresses` are the parsed URLs of the command line.
    fn run(&self, addresses: &[DavixAddress], context: &CommandContext) -> Result<CommandExit>;
}

fn run_line<L: DavixToolCommand>(tool: DavixTool, words: Vec<OsString>) -> ExitCode {
    let line = match parse::<L>(tool, words) {
        Ok(line) => line,
        Err(error) => return report_usage(&error),
    };
    let options = line.options();
    if !options.quiet && has_settings_file() {
        report(tool, "~/.davixrc is not read; give its settings as options, or logins in ~/.netrc");
    }
    let is_logged = options.debug || options.trace.is_some();
    let global = globals(options.quiet);
    match PreparedDavixCommand::of(tool, &line) {
        Ok(prepared) => {
            let lane = prepared.lane.clone();
            program::run_on_lane(&global, lane, is_logged.then_some("debug"), |context| {
                // Only `davix-cp` prints its actions, because it prints which machine made the copy.
                if tool != DavixTool::Cp {
                    context.output.withhold_events();
                }
                tool.code(finish(prepared.run(&line, context), context)).into()
            })
        }
        Err(error) => {
            report(tool, &error.to_string());
            tool.code(CommandExit::of(&error)).into()
        }
    }
}

/// Prints a message to standard error, for use before the command's context exists.
fn report(tool: DavixTool, sentence: &str) {
    // Ignore the error: if standard error is closed, the message cannot be printed anywhere.
    let _ = writeln!(std::io::stderr(), "{}: {sentence}", tool.name());
}

/// Returns whether the user has a settings file of davix. Scripts may rely on the credentials in that file.
fn has_settings_file() -> bool {
    std::env::var_os("HOME").is_some_and(|home| Path::new(&home).join(".davixrc").is_file())
}

/// Parses a command line as `getopt_long` does: options may be abbreviated and repeated, and may appear after
/// arguments.
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

/// Prints the help text, or the error of a command line.
fn report_usage(error: &clap::Error) -> ExitCode {
    // If the stream is closed, the text cannot be printed anywhere.
    let _ = error.print();
    match error.kind() {
        LineErrorKind::DisplayHelp | LineErrorKind::DisplayVersion => ExitCode::SUCCESS,
        LineErrorKind::UnknownArgument if names_option(error) => FAILED_LIGHTLY.into(),
        _ => FAILED.into(),
    }
}

/// Returns whether an error is about an option, and not about an excess argument.
fn names_option(error: &clap::Error) -> bool {
    let named = error.get(ContextKind::InvalidArg);
    matches!(named, Some(ContextValue::String(word)) if word.starts_with('-'))
}

/// Returns the global options of Fordway's commands.
fn globals(quiet: bool) -> GlobalArgs {
    GlobalArgs {
        endpoint: None,
        profile: None,
        region: None,
        json: false,
        quiet,
        only_show_errors: false,
        no_progress: true,
    }
}

/// The parsed URLs and options of a command, before it connects.
struct PreparedDavixCommand {
    addresses: Vec<DavixAddress>,
    lane: LaneConfigOverrides,
    web: Option<SessionOptions>,
}

impl PreparedDavixCommand {
    /// Checks the options and the URLs. Errors: `InvalidArgument`.
    fn of(tool: DavixTool, line: &impl DavixToolCommand) -> Result<Self> {
        let options = line.options();
        connection::check(options)?;
        if options.redirection.as_deref() == Some("no") && tool != DavixTool::Http {
            let why = "--redirection no: this command always follows redirections; use davix-http to see a redirection";
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
            None => LaneConfigOverrides::default(),
        };
        let is_web = services.len() < addresses.len();
        let mut web =
            is_web.then(|| connection::web_options(options, tool == DavixTool::Http)).transpose()?;
        web.as_mut().map_or(Ok(()), |web| line.adjust(&addresses, web))?;
        Ok(PreparedDavixCommand { addresses, lane, web })
    }

    fn run(mut self, line: &impl DavixToolCommand, context: &CommandContext) -> Result<CommandExit> {
        if let Some(options) = self.web.take() {
            context.use_web_options(options);
        }
        line.run(&self.addresses, context)
    }
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
        let get = line::<DavixGetArgs>(DavixTool::Get, &words).unwrap();
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
            assert_eq!(line::<DavixGetArgs>(DavixTool::Get, &words).unwrap_err().kind(), kind, "{words:?}");
        }
    }
}
