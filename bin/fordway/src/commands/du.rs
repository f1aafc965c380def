//! `du`: sizes added up, per prefix of the level below.

use std::collections::BTreeMap;
use std::fmt;

use fordway_command::units::show_bytes;
use fordway_command::{Address, Context, Exit};
use fordway_store::Result;
use serde::Serialize;

use super::source::Source;
use crate::args::DuArgs;

#[derive(Clone, Copy, Default)]
struct Usage {
    objects: u64,
    size_bytes: u64,
}

impl Usage {
    fn add(&mut self, size_bytes: u64) {
        self.objects += 1;
        self.size_bytes += size_bytes;
    }
}

#[derive(Serialize)]
struct UsageRecord<'r> {
    address: &'r str,
    objects: u64,
    size_bytes: u64,
    #[serde(skip)]
    human: bool,
}

impl fmt::Display for UsageRecord<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = show_bytes(self.size_bytes, self.human);
        write!(f, "{size:>14} {:>10} objects  {}", self.objects, self.address)
    }
}

pub(super) fn run(args: &DuArgs, context: &Context) -> Result<Exit> {
    Address::parse(&args.address)?.into_s3()?;
    let source = Source::find(&args.address, true, args.raw)?;
    let root = source.root();
    let (mut prefixes, mut total) = (BTreeMap::<String, Usage>::new(), Usage::default());
    for item in source.items(context)?.into_iter().flatten() {
        context.interrupt.check()?;
        let item = item?;
        total.add(item.size);
        if let Some((prefix, _)) = item.relative.split_once('/')
            && !args.summarize
        {
            prefixes.entry(prefix.to_owned()).or_default().add(item.size);
        }
    }
    let print = |address: &str, usage: Usage| {
        let Usage { objects, size_bytes } = usage;
        context.output.record(&UsageRecord { address, objects, size_bytes, human: args.human_readable })
    };
    for (prefix, usage) in prefixes {
        print(&format!("{}{prefix}/", show_root(&root)), usage)?;
    }
    print(&args.address, total)?;
    Ok(Exit::Ok)
}

fn show_root(root: &Address) -> String {
    match root {
        Address::S3(bucket, prefix) => format!("s3://{bucket}/{prefix}"),
        other => other.to_string(),
    }
}
