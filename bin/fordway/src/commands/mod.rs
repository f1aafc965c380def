//! One file per command: from its options to records, or to actions for the transfer engine.

mod cat;
mod completions;
mod cp;
mod du;
mod fsck;
mod gc;
mod lab;
mod ls;
mod man;
mod mb;
mod metalink;
mod mkdir;
mod mv;
mod node;
mod node_status;
mod presign;
mod rb;
mod read;
mod rm;
mod serve;
mod source;
mod stat;
mod sync;
mod tag;
mod versioning;
mod versions;

use fordway_command::program::finish;
use fordway_command::{Context, Exit, external};
use fordway_store::{Error, ErrorKind, Result};

use crate::args::{Cli, Command};

/// Carries out a command line. Everything that went wrong has been reported when this returns.
pub fn run(cli: Cli, context: &Context) -> Exit {
    finish(dispatch(cli.command, context), context)
}

fn dispatch(command: Command, context: &Context) -> Result<Exit> {
    match command {
        Command::Ls(args) => ls::run(&args, context),
        Command::Cp(args) => cp::run(&args, context),
        Command::Cat(args) => cat::run(&args, context),
        Command::Metalink(args) => metalink::run(&args, context),
        Command::Read(args) => read::run(&args, context),
        Command::Mv(args) => mv::run(&args, context),
        Command::Mkdir(args) => mkdir::run(&args, context),
        Command::Rm(args) => rm::run(&args, context),
        Command::Stat(args) => stat::run(&args, context),
        Command::Mb(args) => mb::run(&args, context),
        Command::Rb(args) => rb::run(&args, context),
        Command::Du(args) => du::run(&args, context),
        Command::Sync(args) => sync::run(&args, context),
        Command::Tag(args) => tag::run(&args, context),
        Command::Versioning(args) => versioning::run(&args, context),
        Command::Presign(args) => presign::run(&args, context),
        Command::Serve(args) => serve::run(&args, context),
        Command::Node(args) => node::run(&args, context),
        Command::Lab(_) => lab::run(),
        Command::Gc(args) => gc::run(&args, context),
        Command::Fsck(args) => fsck::run(&args, context),
        Command::Completions(args) => completions::run(&args, context),
        Command::Man(args) => man::run(&args, context),
        Command::External(words) => external::run(&words),
    }
}

/// Does `act` for each item; a failure is reported and the others go on. Answers the first failure.
fn for_each<T>(
    context: &Context,
    items: impl IntoIterator<Item = T>,
    mut act: impl FnMut(T) -> Result<Exit>,
) -> Result<Exit> {
    let mut first_failure = Exit::Ok;
    for item in items {
        context.interrupt.check()?;
        let exit = match act(item) {
            Ok(exit) => exit,
            Err(error) => report(context, error)?,
        };
        if first_failure == Exit::Ok {
            first_failure = exit;
        }
    }
    Ok(first_failure)
}

/// Reports an error that does not end the command. Errors: those that do, which are a request to
/// stop and a reader that went away.
fn report(context: &Context, error: Error) -> Result<Exit> {
    if error.kind() == ErrorKind::Interrupted || context.output.is_reader_gone(&error) {
        return Err(error);
    }
    context.output.error(&error);
    Ok(Exit::of(&error))
}
