//! One file per command: from its options to records, or to actions for the transfer engine.

mod bench;
mod cat;
mod compare;
mod completions;
mod cp;
mod doctor;
mod du;
mod fsck;
mod gateway;
mod gc;
mod ledger;
mod ls;
mod machines;
mod man;
mod mb;
mod metalink;
mod mkdir;
mod mv;
mod netlab;
mod node;
mod node_status;
mod page;
mod pingpong;
mod presign;
mod rb;
mod read;
mod rm;
mod serve;
mod source;
mod speedup;
mod stat;
mod sync;
mod tag;
mod versioning;
mod versions;

use fordway_store::{Error, ErrorKind, Result};

use crate::args::{Cli, Command, GlobalArgs};
use crate::context::Context;
use crate::exit::Exit;
use crate::external;

/// Carries out a command line. Everything that went wrong has been told when this returns.
pub fn run(cli: Cli, context: &Context) -> Exit {
    let exit = dispatch(cli.command, &cli.global, context).unwrap_or_else(|error| tell(context, &error));
    match context.output.flush() {
        Err(error) if exit == Exit::Ok => tell(context, &error),
        _ => exit,
    }
}

/// Reports what ended a command, unless it is that nobody reads on: `fordway ls | head` ends so.
fn tell(context: &Context, error: &Error) -> Exit {
    if context.output.is_reader_gone(error) {
        return Exit::Ok;
    }
    context.output.error(error);
    Exit::of(error)
}

fn dispatch(command: Command, global: &GlobalArgs, context: &Context) -> Result<Exit> {
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
        Command::Compare(args) => compare::run(&args, context),
        Command::Ledger(args) => ledger::run(&args, context),
        Command::Machines(args) => machines::run(&args, context),
        Command::Doctor(args) => doctor::run(&args, context),
        Command::Speedup(args) => speedup::run(&args, context),
        Command::Bench(args) => bench::run(&args, global, context),
        Command::Netlab(args) => netlab::run(&args, context),
        Command::Pingpong(args) => pingpong::run(&args, context),
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
