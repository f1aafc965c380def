//! `cat`, and `cp` to standard output: objects as they are, with bounded memory.

use fordway_command::{Context, Exit};
use fordway_store::{Bucket, Error, ErrorKind, GetOptions, Key, Result};

use super::source::Source;
use super::versions::only_object;
use crate::args::{CatArgs, CpArgs, ReplicaArgs};
use crate::replicas::Places;
use crate::transfer::Verifier;
use crate::web;

/// What to write of each object.
struct Wanted<'a> {
    options: GetOptions,
    verify: bool,
    replicas: &'a ReplicaArgs,
}

pub(super) fn run(args: &CatArgs, context: &Context) -> Result<Exit> {
    let options = GetOptions { range: args.range, version: args.version_id.clone(), ..Default::default() };
    let verify = !args.no_verify && args.range.is_none();
    let wanted = Wanted { options, verify, replicas: &args.replicas };
    write_all(&args.addresses, args.raw, &wanted, context)
}

/// `cp SOURCE... -`.
pub(super) fn copy_out(args: &CpArgs, context: &Context) -> Result<Exit> {
    if args.recursive || args.transfer.dry_run {
        let why = "--recursive and --dry-run do not go with standard output (-) as the destination";
        return Err(Error::new(ErrorKind::InvalidArgument, why));
    }
    let options = GetOptions { version: args.version_id.clone(), ..Default::default() };
    let wanted = Wanted { options, verify: !args.transfer.no_verify, replicas: &args.replicas };
    write_all(&args.sources, args.raw, &wanted, context)
}

fn write_all(addresses: &[String], raw: bool, wanted: &Wanted<'_>, context: &Context) -> Result<Exit> {
    // Pieces are checked against their digests also where only a range is wanted.
    let places = Places::usual(wanted.replicas, wanted.verify || wanted.options.range.is_some());
    if addresses.is_empty() {
        return web::write_out("", wanted.options.range, &places, context).map(|()| Exit::Ok);
    }
    if wanted.options.version.is_some() {
        let sources: Result<Vec<_>> = addresses.iter().map(|text| Source::find_flat(text, raw)).collect();
        let (bucket, key) = only_object(&sources?)?;
        return write_object(&bucket, &key, wanted, context).map(|()| Exit::Ok);
    }
    super::for_each(context, addresses, |text| {
        if web::is_address(text) {
            return web::write_out(text, wanted.options.range, &places, context).map(|()| Exit::Ok);
        }
        write_source(&Source::find_flat(text, raw)?, wanted, context)
    })
}

fn write_source(source: &Source, wanted: &Wanted<'_>, context: &Context) -> Result<Exit> {
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

fn write_object(bucket: &Bucket, key: &Key, wanted: &Wanted<'_>, context: &Context) -> Result<()> {
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
