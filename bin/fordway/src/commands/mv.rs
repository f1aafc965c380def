//! `mv`: copies, each of which takes its source away when it is done; or a server's own move.

use fordway_command::{Context, Exit};
use fordway_store::Result;

use super::cp::{copy_all, existing};
use crate::args::MvArgs;
use crate::dav;
use crate::transfer::Settings;

pub(super) fn run(args: &MvArgs, context: &Context) -> Result<Exit> {
    let existing = existing(args.no_clobber, args.if_none_match);
    let order = dav::Order::of_mv(args, existing);
    if order.concerns_web() {
        return dav::copy(&order, context);
    }
    let settings = Settings::of(&args.transfer, existing).removing_sources();
    let sources = super::cp::sources(&args.sources, args.recursive, args.raw)?;
    copy_all(&sources, &args.destination, &args.transfer.filters, &settings, context)
}
