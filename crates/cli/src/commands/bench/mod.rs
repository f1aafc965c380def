//! `bench`: one kind of work each, measured.

mod rest;

use fordway_store::Result;

use crate::args::{BenchArgs, BenchCommand, GlobalArgs};
use crate::context::Context;
use crate::exit::Exit;

pub(super) fn run(args: &BenchArgs, global: &GlobalArgs, context: &Context) -> Result<Exit> {
    match &args.command {
        BenchCommand::Rest(args) => rest::run(args, global, context),
    }
}
