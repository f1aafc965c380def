//! One file per command: from its options to records, or to actions for the transfer engine.

mod cat;
mod completions;
mod cp;
mod du;
mod ls;
mod man;
mod mb;
mod presign;
mod rb;
mod rm;
mod source;
mod stat;
mod sync;

use fordway_store::{Error, Result};

use crate::args::{Cli, Command};
use crate::context::Context;
use crate::exit::Exit;
use crate::external;

/// Carries out a command line. Everything that went wrong has been told when this returns.
pub fn run(cli: Cli, context: &Context) -> Exit {
    let ended = dispatch(cli.command, context).and_then(|exit| context.output.flush().map(|()| exit));
    match ended {
        Ok(exit) => exit,
        // Nobody reads on; that is how `fordway ls | head` is meant to end.
        Err(_) if context.output.reader_gone() => Exit::Ok,
        Err(error) => {
            // What was listed before the failure is data that was asked for; the failure counts more.
            context.output.flush().ok();
            context.output.error(&error);
            Exit::of(&error)
        }
    }
}

fn dispatch(command: Command, context: &Context) -> Result<Exit> {
    match command {
        Command::Ls(args) => ls::run(&args, context),
        Command::Cp(args) => cp::run(&args, context),
        Command::Cat(args) => cat::run(&args, context),
        Command::Rm(args) => rm::run(&args, context),
        Command::Stat(args) => stat::run(&args, context),
        Command::Mb(args) => mb::run(&args, context),
        Command::Rb(args) => rb::run(&args, context),
        Command::Du(args) => du::run(&args, context),
        Command::Sync(args) => sync::run(&args, context),
        Command::Presign(args) => presign::run(&args, context),
        Command::Completions(args) => completions::run(&args, context),
        Command::Man(args) => man::run(&args, context),
        Command::External(words) => external::run(&words),
    }
}

/// Does `act` for each word of the command line; a failure is reported and the others go on.
fn for_each<T>(context: &Context, words: &[T], mut act: impl FnMut(&T) -> Result<Exit>) -> Result<Exit> {
    let mut first_failure = Exit::Ok;
    for word in words {
        context.interrupt.check()?;
        let exit = match act(word) {
            Ok(exit) => exit,
            Err(error) => report(context, error)?,
        };
        if first_failure == Exit::Ok {
            first_failure = exit;
        }
    }
    Ok(first_failure)
}

/// Reports an error that does not end the command. Errors: when nobody reads on.
fn report(context: &Context, error: Error) -> Result<Exit> {
    if context.output.reader_gone() {
        return Err(error);
    }
    context.output.error(&error);
    Ok(Exit::of(&error))
}
