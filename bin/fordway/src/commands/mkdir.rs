//! `mkdir`: collections of WebDAV servers, and the markers that stand for directories in buckets.

use fordway_command::{Address, Context, Exit};
use fordway_store::{Error, ErrorKind, Key, PutOptions, Result};
use serde::Serialize;

use crate::args::MkdirArgs;
use crate::{dav, web};

/// A marker that was made.
#[derive(Serialize)]
struct Made {
    operation: &'static str,
    source: String,
}

impl std::fmt::Display for Made {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.operation, self.source)
    }
}

pub(super) fn run(args: &MkdirArgs, context: &Context) -> Result<Exit> {
    super::for_each(context, &args.addresses, |text| {
        if web::is_address(text) {
            return dav::make(text, args.parents, context).map(|()| Exit::Ok);
        }
        let place = Address::parse(text)?;
        if matches!(place, Address::Local(_)) {
            let why = format!("{text} is a path of this machine; use the `mkdir` of the system");
            return Err(Error::new(ErrorKind::InvalidArgument, why));
        }
        let (bucket, key) = place.into_directory().into_s3()?;
        if key.is_empty() {
            let why = format!("s3://{bucket} is a bucket; make it with `fordway mb`");
            return Err(Error::new(ErrorKind::InvalidArgument, why));
        }
        let source = format!("s3://{bucket}/{key}");
        context.store()?.put(&bucket, &Key::new(key)?, &[], &PutOptions::default())?;
        context.output.event(&Made { operation: "make_prefix", source }).map(|()| Exit::Ok)
    })
}
