//! Commands that read: `read`, many ranges of a file or object, or all of it with read-ahead; `cat`, and `cp` to standard
//! output, objects as they are, with bounded memory; `presign`, a URL that gives access to an object for some time.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Write};
use std::path::Path;
use std::time::Duration;

use fordway_command::reading::{Cost, Reading, What, measure, read_ranges};
use fordway_command::units::human_bytes;
use fordway_command::{Address, Context, Exit, Leftover, file_error};
use fordway_store::{Bucket, Error, ErrorKind, GetOptions, Key, Result};
use serde::Serialize;

use super::Source;
use super::change::only_object;
use crate::args::{CatArgs, CpArgs, PresignArgs, ReadArgs, ReplicaArgs};
use crate::replicas::Places;
use crate::transfer::{Verifier, temporary_beside};
use crate::web;

/// Larger blocks are read as several.
const BLOCK_BYTES_MAX: usize = 1 << 30;

/// What reading took.
#[derive(Debug, Serialize)]
struct Summary<'a> {
    url: &'a str,
    per_call: u32,
    window: u32,
    #[serde(flatten)]
    cost: Cost,
}

impl fmt::Display for Summary<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Cost { bytes, fragments, calls, seconds, .. } = self.cost;
        let rate = human_bytes((bytes as f64 / seconds.max(1e-9)) as u64);
        if fragments > 0 {
            write!(f, "{fragments} ranges of together ")?;
        }
        write!(f, "{} in {seconds:.3} s ({rate}/s): {calls} calls", human_bytes(bytes))?;
        if let (Some(requests), Some(connections)) = (self.cost.requests, self.cost.connections) {
            write!(f, ", {requests} requests on {connections} connections")?;
        }
        write!(f, ", {:.3} s of CPU time", self.cost.client_cpu_seconds)
    }
}

pub(super) fn run(args: &ReadArgs, context: &Context) -> Result<Exit> {
    let ranges =
        args.ranges.as_deref().map(|path| read_ranges(path, context)).transpose()?.unwrap_or_default();
    let what = match args.sequential {
        Some(block) => What::Blocks {
            block_bytes: usize::try_from(block).unwrap_or(usize::MAX).min(BLOCK_BYTES_MAX),
            read_ahead_bytes: args.read_ahead,
        },
        None => What::Ranges { ranges: &ranges, window: args.window as usize },
    };
    context.output.start_progress();
    context.output.expect_bytes(ranges.iter().map(|(_, length)| *length as u64).sum());
    let url = args.url.as_deref().unwrap_or_default();
    let (replicas, verify) = (&args.replicas, !args.no_verify);
    let reading = Reading { url, what, calls: &args.calls, replicas, verify };
    let cost = match &args.output {
        _ if args.discard => measure(&reading, context, &mut |_| Ok(())),
        Some(path) => to_file(&reading, path, context),
        None => measure(&reading, context, &mut |call| context.output.data(call.bytes)),
    };
    context.output.end_progress();
    let url = if url.is_empty() { args.replicas.metalink.as_deref().unwrap_or_default() } else { url };
    let summary = Summary { url, per_call: args.calls.per_call, window: args.window, cost: cost? };
    if args.discard {
        context.output.record(&summary)?;
    } else if args.output.is_some() {
        context.output.event(&summary)?;
    }
    Ok(Exit::Ok)
}

/// What is there is replaced when all has come, and a failure leaves nothing behind.
fn to_file(reading: &Reading, path: &Path, context: &Context) -> Result<Cost> {
    let failed = |error| file_error("writing to", path.display(), error);
    if path.metadata().is_ok_and(|about| !about.is_file()) {
        let file = OpenOptions::new().write(true).open(path).map_err(failed)?;
        return write_all(reading, &file, (path, context));
    }
    let target = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let temporary = temporary_beside(&target)?;
    let _removed_by_signals = context.interrupt.temporary(temporary.path(), Leftover::Useless);
    let cost = write_all(reading, temporary.as_file(), (path, context))?;
    temporary.persist(&target).map_err(|error| failed(error.error))?;
    Ok(cost)
}

fn write_all(reading: &Reading, file: &File, (path, context): (&Path, &Context)) -> Result<Cost> {
    let failed = |error| file_error("writing to", path.display(), error);
    let mut file = BufWriter::with_capacity(1 << 20, file);
    let cost = measure(reading, context, &mut |call| file.write_all(call.bytes).map_err(failed))?;
    file.flush().map_err(failed)?;
    Ok(cost)
}

/// What to write of each object.
struct Wanted<'a> {
    options: GetOptions,
    verify: bool,
    replicas: &'a ReplicaArgs,
}

pub(super) fn cat(args: &CatArgs, context: &Context) -> Result<Exit> {
    let options = GetOptions { range: args.range, version: args.version_id.clone(), ..Default::default() };
    let verify = !args.no_verify && args.range.is_none();
    let wanted = Wanted { options, verify, replicas: &args.replicas };
    write_sources(&args.addresses, args.raw, &wanted, context)
}

/// `cp SOURCE... -`.
pub(super) fn copy_out(args: &CpArgs, context: &Context) -> Result<Exit> {
    if args.recursive || args.transfer.dry_run {
        let why = "--recursive and --dry-run do not go with standard output (-) as the destination";
        return Err(Error::new(ErrorKind::InvalidArgument, why));
    }
    let options = GetOptions { version: args.version_id.clone(), ..Default::default() };
    let wanted = Wanted { options, verify: !args.transfer.no_verify, replicas: &args.replicas };
    write_sources(&args.sources, args.raw, &wanted, context)
}

fn write_sources(addresses: &[String], raw: bool, wanted: &Wanted<'_>, context: &Context) -> Result<Exit> {
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

pub(super) fn presign(args: &PresignArgs, context: &Context) -> Result<Exit> {
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
