//! `mb`: makes buckets.

use std::fmt;

use fordway_command::{Address, Context, Exit};
use fordway_store::Result;
use serde::Serialize;

use crate::args::MbArgs;

/// A bucket that was made or removed.
#[derive(Serialize)]
pub(super) struct BucketEvent<'e> {
    pub(super) operation: &'static str,
    pub(super) bucket: &'e str,
    pub(super) dry_run: bool,
}

impl fmt::Display for BucketEvent<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dry = if self.dry_run { "(dryrun) " } else { "" };
        write!(f, "{dry}{}: {}", self.operation, self.bucket)
    }
}

pub(super) fn run(args: &MbArgs, context: &Context) -> Result<Exit> {
    super::for_each(context, &args.buckets, |text| {
        let bucket = Address::parse(text)?.into_bucket()?;
        context.store()?.create_bucket(&bucket)?;
        let event = BucketEvent { operation: "make_bucket", bucket: bucket.as_str(), dry_run: false };
        context.output.event(&event).map(|()| Exit::Ok)
    })
}
