//! `presign`: a URL that gives access to an object for some time.

use std::fmt;
use std::time::Duration;

use fordway_command::{Address, Context, Exit};
use fordway_store::{Error, ErrorKind, Result};
use serde::Serialize;

use crate::args::PresignArgs;

#[derive(Serialize)]
struct Signed<'r> {
    url: &'r str,
    method: &'static str,
    expires_in_seconds: u32,
}

impl fmt::Display for Signed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.url)
    }
}

pub(super) fn run(args: &PresignArgs, context: &Context) -> Result<Exit> {
    let (bucket, key) = Address::parse(&args.address)?.into_object()?;
    let lane = context.lane()?;
    let presigner = lane.presigner.ok_or_else(|| {
        let why = "this lane has no URLs: the file system's own permissions decide who reads an object; \
                   presign at an http(s):// endpoint";
        Error::new(ErrorKind::NotImplemented, why).during(
            "presign",
            lane.store.lane(),
            bucket.as_str(),
            key.as_str(),
        )
    })?;
    let (method, lifetime) = (args.method.name(), Duration::from_secs(args.expires_in.into()));
    let url = presigner.presign(method, &bucket, &key, lifetime)?;
    context.output.record(&Signed { url: &url, method, expires_in_seconds: args.expires_in })?;
    Ok(Exit::Ok)
}
