//! `cat`, and `cp` to standard output: objects as they are, with bounded memory.

use fordway_store::{Bucket, Error, ErrorKind, GetOptions, Key, Result};

use super::source::Source;
use super::versions::only_object;
use crate::args::{CatArgs, CpArgs};
use crate::context::Context;
use crate::exit::Exit;
use crate::transfer::Verifier;
use crate::web;

/// What to write of each object.
struct Wanted {
    options: GetOptions,
    verify: bool,
}

pub(super) fn run(args: &CatArgs, context: &Context) -> Result<Exit> {
    let options = GetOptions { range: args.range, version: args.version_id.clone(), ..Default::default() };
    let wanted = Wanted { options, verify: !args.no_verify && args.range.is_none() };
    write_all(&args.addresses, args.raw, &wanted, context)
}

/// `cp SOURCE... -`.
pub(super) fn copy_out(args: &CpArgs, context: &Context) -> Result<Exit> {
    if args.recursive || args.transfer.dry_run {
        let why = "--recursive and --dry-run do not go with standard output (-) as the destination";
        return Err(Error::new(ErrorKind::InvalidArgument, why));
    }
    let options = GetOptions { version: args.version_id.clone(), ..Default::default() };
    let wanted = Wanted { options, verify: !args.transfer.no_verify };
    write_all(&args.sources, args.raw, &wanted, context)
}

fn write_all(addresses: &[String], raw: bool, wanted: &Wanted, context: &Context) -> Result<Exit> {
    if wanted.options.version.is_some() {
        let sources: Result<Vec<_>> = addresses.iter().map(|text| Source::find(text, false, raw)).collect();
        let (bucket, key) = only_object(&sources?)?;
        return write_object(&bucket, &key, wanted, context).map(|()| Exit::Ok);
    }
    super::for_each(context, addresses, |text| {
        if web::is_address(text) {
            return web::write_out(text, wanted.options.range, context).map(|()| Exit::Ok);
        }
        write_source(&Source::find(text, false, raw)?, wanted, context)
    })
}

fn write_source(source: &Source, wanted: &Wanted, context: &Context) -> Result<Exit> {
    let Some(items) = source.items(context)? else {
        let Source::One(place) = source else { return Ok(Exit::Ok) };
        let (bucket, key) = place.clone().into_object()?;
        return write_object(&bucket, &key, wanted, context).map(|()| Exit::Ok);
    };
    let root = source.root();
    super::for_each(context, items, |item| {
        let (bucket, key) = super::cp::from_item(&root, &item?).into_object()?;
        write_object(&bucket, &key, wanted, context).map(|()| Exit::Ok)
    })
}

fn write_object(bucket: &Bucket, key: &Key, wanted: &Wanted, context: &Context) -> Result<()> {
    let store = context.store()?;
    let object = store.get(bucket, key, &wanted.options)?;
    let mut verifier = Verifier::new(&object.info, wanted.verify);
    object
        .content
        .for_each_chunk(|chunk| {
            verifier.update(chunk);
            context.interrupt.check()?;
            context.output.data(chunk)
        })
        .and_then(|()| verifier.finish())
        .map_err(|error| error.during("get", store.lane(), bucket.as_str(), key.as_str()))?;
    context.output.flush()
}
