//! `man` and `completions`: the manual pages and completion scripts of fordway. For the measuring commands, both refer
//! to the pages and scripts of `fordway-lab`.

use std::io::Write as _;
use std::path::Path;

use clap::{Command, CommandFactory, Subcommand};
use fordway_command::external::PYTHON_COMMANDS;
use fordway_command::{CommandContext, CommandExit, file_error, manual};
use fordway_store::Result;

use super::lab_output;
use crate::args::{AwsOptions, CommandLine, CompletionsArgs, LabCommand, ManArgs};

pub(super) fn completions(args: &CompletionsArgs, context: &CommandContext) -> Result<CommandExit> {
    let python = PYTHON_COMMANDS.iter().map(|(name, about)| Command::new(*name).about(*about));
    let command = AwsOptions::omitted_from(CommandLine::command).subcommands(python);
    let own = manual::completions(args.shell, command, "fordway");
    let of_lab = lab_output(&["completions", &args.shell.to_string()]);
    let own = String::from_utf8_lossy(&own).into_owned();
    let of_lab = String::from_utf8_lossy(&of_lab).into_owned();
    context.output.data(joined(&args.shell.to_string(), &own, &of_lab).as_bytes())?;
    Ok(CommandExit::Ok)
}

/// Joins fordway's script with the script of `fordway-lab`, which is empty if that program is not installed. In the
/// joined script, the completions of `fordway-lab` complete the words after a measuring command. If its script is
/// empty, the shell can load these completions from a separate file.
fn joined(shell: &str, own: &str, of_lab: &str) -> String {
    let names = |separator: &str| lab_commands().join(separator);
    match shell {
        "bash" => format!("{own}{of_lab}{}", BASH.replace("LAB_COMMANDS", &names("|"))),
        "zsh" => {
            // The `#compdef` line must remain the first line. When zsh loads a file, the code in the file calls
            // `_fordway`, so all functions must be defined before that call.
            let (first, own) = own.split_once('\n').unwrap_or(("", own));
            let of_lab = of_lab.strip_prefix("#compdef fordway-lab\n").unwrap_or(of_lab);
            let own = own.replacen("\n_fordway() {\n", ZSH_CALL, 1);
            format!("{first}\n{of_lab}{}{own}", ZSH.replace("LAB_COMMANDS", &names("|")))
        }
        "fish" => format!("{own}{of_lab}{}", FISH.replace("LAB_COMMANDS", &names(" "))),
        _ => format!("{own}{of_lab}"),
    }
}

/// Returns the names of the measuring commands.
fn lab_commands() -> Vec<String> {
    let lab = LabCommand::augment_subcommands(Command::new("fordway"));
    lab.get_subcommands().map(|command| command.get_name().to_owned()).collect()
}

/// Completes fordway's words in bash.
const BASH: &str = r#"
_fordway_or_lab() {
    local at
    for (( at = 1; at < COMP_CWORD; at++ )); do
        case ${COMP_WORDS[at]} in
            LAB_COMMANDS)
                declare -F _fordway__lab >/dev/null || _completion_loader fordway-lab 2>/dev/null
                declare -F _fordway__lab >/dev/null || break
                COMP_WORDS=(fordway-lab "${COMP_WORDS[@]:at}")
                COMP_CWORD=$((COMP_CWORD - at + 1))
                _fordway__lab fordway-lab "$2" "$3"
                return
                ;;
            --endpoint | --profile | --region) at=$((at + 1)) ;;
            -*) ;;
            *) break ;;
        esac
    done
    _fordway "$@"
}

if [[ "${BASH_VERSINFO[0]}" -eq 4 && "${BASH_VERSINFO[1]}" -ge 4 || "${BASH_VERSINFO[0]}" -gt 4 ]]; then
    complete -F _fordway_or_lab -o nosort -o bashdefault -o default fordway
else
    complete -F _fordway_or_lab -o bashdefault -o default fordway
fi
"#;

/// Selects the words of a measuring command in zsh.
const ZSH: &str = r#"
_fordway_select_lab() {
    local -i at
    for (( at = 2; at < CURRENT; at++ )); do
        case $words[at] in
            (LAB_COMMANDS)
                (( $+functions[_fordway-lab] )) || autoload -Uz +X _fordway-lab 2>/dev/null || return 1
                words=(fordway-lab "${(@)words[at,-1]}")
                (( CURRENT -= at - 2 ))
                return 0
                ;;
            (--endpoint|--profile|--region) (( at++ )) ;;
            (-*) ;;
            (*) return 1 ;;
        esac
    done
    return 1
}
"#;

const ZSH_CALL: &str = r#"
_fordway() {
    if _fordway_select_lab; then
        _fordway-lab
        return
    fi
"#;

/// Completes the words of a measuring command in fish.
const FISH: &str = r#"
function __fish_fordway_complete_lab
    set -l words (commandline -opc)
    while set -q words[1]; and not contains -- $words[1] LAB_COMMANDS
        set -e words[1]
    end
    complete --do-complete (string join ' ' -- fordway-lab (string escape -- $words) (commandline -ct))
end

complete -c fordway -n "__fish_fordway_using_subcommand LAB_COMMANDS" -a "(__fish_fordway_complete_lab)"
"#;

pub(super) fn man(args: &ManArgs, context: &CommandContext) -> Result<CommandExit> {
    match &args.out {
        None => context.output.data(&manual::front_page(CommandLine::command())?)?,
        Some(directory) => {
            manual::write_pages(CommandLine::command(), directory)?;
            references_to_lab(directory)?;
            lab_output(&["man", "--out", &directory.to_string_lossy()]);
        }
    }
    Ok(CommandExit::Ok)
}

/// Replaces the pages of the measuring commands with references to the pages of `fordway-lab`, which defines the
/// options of these commands.
fn references_to_lab(directory: &Path) -> Result<()> {
    let all = CommandLine::command();
    for name in lab_commands() {
        let about = all.find_subcommand(&name).and_then(Command::get_about);
        let about = about.map(ToString::to_string).unwrap_or_default();
        let path = directory.join(format!("fordway-{name}.1"));
        let written = std::fs::File::create(&path).and_then(|mut file| {
            write!(
                file,
                ".TH fordway-{name} 1\n\
                 .SH NAME\nfordway\\-{name} \\- {about}\n\
                 .SH SYNOPSIS\n\\fBfordway {name}\\fR [\\fIARGUMENTS\\fR]\n\
                 .SH DESCRIPTION\n\\fBfordway {name}\\fR runs \\fBfordway\\-lab {name}\\fR, and has its arguments, \
                 options and exit codes.\n\
                 .SH SEE ALSO\n\\fBfordway\\-lab\\-{name}\\fR(1), \\fBfordway\\fR(1)\n"
            )
        });
        written.map_err(|error| file_error("writing", path.display(), error))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_a_measuring_command_are_left_to_fordway_lab() {
        for (shell, wanted) in [
            ("bash", "compare|ledger|machines|"),
            ("zsh", "(compare|ledger|machines|"),
            ("fish", "__fish_fordway_using_subcommand compare ledger machines "),
        ] {
            let own = "#compdef fordway\n\nautoload\n\n_fordway() {\n    own\n}\n";
            let script = joined(shell, own, "#compdef fordway-lab\nlab\n");
            assert!(script.contains(wanted) && !script.contains("LAB_COMMANDS"), "{script}");
            assert!(script.starts_with("#compdef fordway\n"), "{script}");
        }
        let zsh = joined("zsh", "#compdef fordway\n\n_fordway() {\n    own\n}\n", "");
        assert!(zsh.contains("        _fordway-lab\n        return\n    fi\n    own\n"), "{zsh}");
    }
}
