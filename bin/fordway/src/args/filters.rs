//! `--include` and `--exclude`, whose order on the command line matters.

use clap::{Arg, ArgAction, ArgMatches, Args, Command, Error, FromArgMatches};

use crate::wildcard::{Filters, Pattern, Verdict};

const OPTIONS: [(&str, Verdict, &str); 2] = [
    (
        "exclude",
        Verdict::Exclude,
        "Leave out what matches this pattern, compared with the path below the source; the last --exclude \
         or --include that matches decides",
    ),
    ("include", Verdict::Include, "Take what matches this pattern although an earlier --exclude matches it"),
];

impl Args for Filters {
    fn augment_args(command: Command) -> Command {
        OPTIONS.iter().fold(command, |command, (name, _, help)| {
            let option = Arg::new(*name).long(*name).value_name("PATTERN").help(*help);
            command.arg(option.action(ArgAction::Append))
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Filters {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let mut rules = Vec::new();
        for (name, verdict, _) in OPTIONS {
            let positions = matches.indices_of(name).into_iter().flatten();
            let patterns = matches.get_many::<String>(name).into_iter().flatten();
            rules.extend(positions.zip(patterns).map(|(at, text)| (at, verdict, text)));
        }
        rules.sort_by_key(|(at, ..)| *at);
        let in_order = rules.into_iter().map(|(_, verdict, text)| (verdict, Pattern::of_filter(text)));
        Ok(Filters::new(in_order.collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admit(options: &[&str], relative: &str) -> bool {
        let command = Filters::augment_args(Command::new("test"));
        let matches = command.get_matches_from([&["test"], options].concat());
        Filters::from_arg_matches(&matches).unwrap().admit(relative)
    }

    #[test]
    fn order_decides() {
        assert!(admit(&["--exclude", "*", "--include", "*.txt"], "a.txt"));
        assert!(!admit(&["--include", "*.txt", "--exclude", "*"], "a.txt"));
        assert!(!admit(&["--exclude", "*", "--include", "*.txt", "--exclude", "b*"], "b.txt"));
    }
}
