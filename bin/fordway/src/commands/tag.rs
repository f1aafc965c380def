//! `tag`: the tags of an object.

use std::fmt;

use fordway_command::{Address, Context, Exit};
use fordway_store::{Error, ErrorKind, Result, Tags};
use serde::Serialize;

use crate::args::TagArgs;

/// An object's tags, one per line.
#[derive(Serialize)]
struct Record<'r> {
    bucket: &'r str,
    key: &'r str,
    tags: &'r Tags,
}

impl fmt::Display for Record<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<String> = self.tags.iter().map(|(name, value)| format!("{name}={value}")).collect();
        f.write_str(&lines.join("\n"))
    }
}

pub(super) fn run(args: &TagArgs, context: &Context) -> Result<Exit> {
    let (bucket, key) = Address::parse(&args.address)?.into_object()?;
    let (store, version) = (context.store()?, args.version_id.as_ref());
    if args.remove || !args.tags.is_empty() {
        store.set_tags(&bucket, &key, version, &distinct(&args.tags)?)?;
        return Ok(Exit::Ok);
    }
    let tags = store.tags(&bucket, &key, version)?;
    let record = Record { bucket: bucket.as_str(), key: key.as_str(), tags: &tags };
    match tags.is_empty() {
        // A person reads nothing where there is nothing; a program still reads a record.
        true => context.output.row(&record)?,
        false => context.output.record(&record)?,
    }
    Ok(Exit::Ok)
}

/// Errors: `InvalidTag` for a name that is given twice.
fn distinct(listed: &[(String, String)]) -> Result<Tags> {
    let mut tags = Tags::new();
    for (name, value) in listed {
        if tags.insert(name.clone(), value.clone()).is_some() {
            return Err(Error::new(ErrorKind::InvalidTag, format!("{name:?} is given twice")));
        }
    }
    Ok(tags)
}
