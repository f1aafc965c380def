//! Options of `aws s3` that the commands with the same names do not have. An option whose effect is already the default
//! is accepted. Any other option is refused with a message that says what to do instead. Without this message, the
//! parser would suggest an option with a similar name. The help does not list these options.

use std::cell::Cell;

use clap::builder::ValueParser;
use clap::error::ErrorKind;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, Error, FromArgMatches};

/// The options of `aws s3` that a command accepts or refuses.
#[derive(Debug)]
pub struct AwsOptions;

/// How the parser treats an option.
enum Treatment {
    /// A flag whose effect is the default.
    AcceptedFlag,
    /// A flag that is refused for this reason.
    RefusedFlag(&'static str),
    /// An option with a value. The values in the list have no effect, and any other value is refused for this reason.
    Value(&'static [&'static str], &'static str),
    /// An option that takes any number, and has no effect.
    Number,
}

const ENCRYPTION: &str = "encryption by the server is not supported; encrypt the files before they are \
                          uploaded, or use an encrypted file system";
const TIME_LIMIT: &str = "the time limits are fixed; requests that may be repeated are repeated";

/// The options, and how the parser treats each of them.
const OPTIONS: [(&str, Treatment); 28] = {
    use Treatment::{AcceptedFlag, Number, RefusedFlag, Value};
    [
        ("bucket-name-prefix", Value(&[], "list all buckets, and select some with `grep`")),
        ("bucket-region", Value(&[], "all buckets of an endpoint are listed, regardless of their region")),
        ("ca-bundle", Value(&[], "set the environment variable AWS_CA_BUNDLE to the file")),
        ("case-conflict", Value(&["ignore"], "names are not compared; only `ignore` is supported")),
        ("checksum-mode", Value(&["ENABLED"], "only ENABLED is supported, the default; see --no-verify")),
        ("cli-connect-timeout", Value(&[], TIME_LIMIT)),
        ("cli-read-timeout", Value(&[], TIME_LIMIT)),
        ("color", Value(&["off", "auto"], "the output has no colors; only `off` and `auto` are supported")),
        (
            "copy-props",
            Value(
                &["default"],
                "copies keep all headers, metadata and tags; with --metadata-directive REPLACE, they keep no \
                 headers and no metadata",
            ),
        ),
        ("debug", RefusedFlag("set the environment variable FORDWAY_LOG=debug")),
        // The size of parts grows with the length of a stream.
        ("expected-size", Number),
        ("force-glacier-transfer", AcceptedFlag),
        (
            "grants",
            Value(
                &[],
                "objects have no ACLs of their own; grant access with a bucket policy (fordway admin set policy)",
            ),
        ),
        (
            "ignore-glacier-warnings",
            RefusedFlag("an archived object is an error, not a warning; skip it with --exclude"),
        ),
        ("no-cli-pager", AcceptedFlag),
        ("no-paginate", AcceptedFlag),
        ("output", Value(&["text"], "use --json to print JSON")),
        ("page-size", Number),
        (
            "request-payer",
            Value(
                &[],
                "requests that the requester pays for are not supported; use `aws s3` for this bucket",
            ),
        ),
        (
            "source-region",
            Value(&[], "both buckets must be at one endpoint; otherwise, copy through a local directory"),
        ),
        ("sse", Value(&[], ENCRYPTION)),
        ("sse-c", Value(&[], ENCRYPTION)),
        ("sse-c-copy-source", Value(&[], ENCRYPTION)),
        ("sse-c-copy-source-key", Value(&[], ENCRYPTION)),
        ("sse-c-key", Value(&[], ENCRYPTION)),
        ("sse-kms-key-id", Value(&[], ENCRYPTION)),
        (
            "validate-same-s3-paths",
            RefusedFlag("access points are not resolved; compare the two addresses before the move"),
        ),
        (
            "website-redirect",
            Value(&[], "websites are not supported; upload the content to this key instead"),
        ),
    ]
};

/// The options whose value is an algorithm.
const ALGORITHMS: [&str; 3] = ["sse", "sse-c", "sse-c-copy-source"];

/// Returns a parser that accepts only `accepted`, and refuses other values for the reason `why`.
fn only(accepted: &'static [&'static str], why: &'static str) -> ValueParser {
    ValueParser::new(move |value: &str| match accepted.contains(&value) {
        true => Ok(value.to_owned()),
        false => Err(why.to_owned()),
    })
}

thread_local! {
    static IS_OMITTED: Cell<bool> = const { Cell::new(false) };
}

impl AwsOptions {
    /// Calls `make` on this thread, and returns the command line that `make` defines, without these options. Otherwise,
    /// scripts for completions would contain these options, because clap_complete does not omit hidden options.
    pub(crate) fn omitted_from(make: impl FnOnce() -> Command) -> Command {
        IS_OMITTED.set(true);
        let made = make();
        IS_OMITTED.set(false);
        made
    }
}

impl Args for AwsOptions {
    fn augment_args(command: Command) -> Command {
        if IS_OMITTED.get() {
            return command;
        }
        OPTIONS.iter().fold(command, |command, (name, treatment)| {
            let option = Arg::new(*name).long(*name).hide(true);
            command.arg(match treatment {
                Treatment::AcceptedFlag | Treatment::RefusedFlag(_) => option.action(ArgAction::SetTrue),
                // As in `aws`, the value of `--sse` and `--sse-c` may be omitted.
                Treatment::Value(accepted, why) => option
                    .value_name("VALUE")
                    .num_args(if ALGORITHMS.contains(name) { 0..=1 } else { 1..=1 })
                    .default_missing_value("AES256")
                    .action(ArgAction::Append)
                    .value_parser(only(accepted, why)),
                Treatment::Number => option
                    .value_name("N")
                    .action(ArgAction::Append)
                    .value_parser(clap::value_parser!(u64).range(1..)),
            })
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for AwsOptions {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        for (name, treatment) in &OPTIONS {
            if let Treatment::RefusedFlag(why) = treatment
                && matches.get_flag(name)
            {
                return Err(Error::raw(ErrorKind::UnknownArgument, format!("--{name}: {why}")));
            }
        }
        Ok(AwsOptions)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        Self::from_arg_matches(matches).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<AwsOptions, Error> {
        let command = AwsOptions::augment_args(Command::new("test")).arg(Arg::new("paths").num_args(0..));
        AwsOptions::from_arg_matches(&command.try_get_matches_from([&["test"], words].concat())?)
    }

    #[test]
    fn what_is_the_default_is_accepted() {
        for words in [
            &["--page-size", "100", "s3://b/k"][..],
            &["--checksum-mode", "ENABLED"],
            &["--copy-props", "default", "--case-conflict", "ignore", "--output", "text"],
            &["--color", "off", "--color", "auto"],
            &["--force-glacier-transfer", "--no-paginate", "--no-cli-pager", "s3://b/k"],
        ] {
            parse(words).unwrap_or_else(|error| panic!("{words:?}: {error}"));
        }
    }

    #[test]
    fn every_other_option_is_refused_for_a_reason() {
        for (name, treatment) in &OPTIONS {
            let option = format!("--{name}");
            match treatment {
                Treatment::Value(_, why) => {
                    let refused = parse(&[&option, "other"]).unwrap_err().to_string();
                    assert!(refused.contains(why), "{refused}");
                }
                Treatment::RefusedFlag(why) => {
                    let refused = parse(&[&option]).unwrap_err().to_string();
                    assert!(refused.contains(&format!("--{name}: {why}")), "{refused}");
                }
                Treatment::Number => assert!(parse(&[&option, "0"]).is_err()),
                Treatment::AcceptedFlag => {}
            }
        }
        for words in [&["--sse", "f"][..], &["f", "--sse"]] {
            let refused = parse(words).unwrap_err().to_string();
            assert!(refused.contains(ENCRYPTION), "{refused}");
        }
    }
}
