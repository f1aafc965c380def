//! `versioning`: whether a bucket keeps versions.

use std::fmt;

use fordway_command::{Address, Context, Exit};
use fordway_store::{Result, Versioning};
use serde::Serialize;

use crate::args::{VersioningArgs, VersioningChange};

/// A bucket and its versioning.
#[derive(Serialize)]
struct Record<'r> {
    bucket: &'r str,
    versioning: &'static str,
}

impl fmt::Display for Record<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s3://{}: {}", self.bucket, self.versioning)
    }
}

pub(super) fn run(args: &VersioningArgs, context: &Context) -> Result<Exit> {
    let bucket = Address::parse(&args.bucket)?.into_bucket()?;
    let store = context.store()?;
    let wanted = args.change.map(|change| match change {
        VersioningChange::Enable => Versioning::Enabled,
        VersioningChange::Suspend => Versioning::Suspended,
    });
    let versioning = match wanted {
        Some(wanted) => store.set_versioning(&bucket, wanted).map(|()| wanted)?,
        None => store.versioning(&bucket)?,
    };
    let versioning = match versioning {
        Versioning::Unversioned => "unversioned",
        Versioning::Enabled => "enabled",
        Versioning::Suspended => "suspended",
    };
    context.output.record(&Record { bucket: bucket.as_str(), versioning }).map(|()| Exit::Ok)
}
