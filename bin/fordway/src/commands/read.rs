//! Commands that read. `read` reads many ranges of a file or object, or all of it with read-ahead. `cat`, and `cp` to
//! standard output, read whole objects with bounded memory. `presign` prints a URL that gives temporary access to an
//! object.

use std::fmt;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::time::Duration;

use fordway_command::reading::{ReadSelection, ReadSpecification, ReadTotals, measure, read_ranges};
use fordway_command::units::{counted, human_bytes};
use fordway_command::{CommandContext, CommandExit, IncompleteFileKind, StorageAddress, file_error};
use fordway_store::{Bucket, Error, ErrorKind, GetOptions, Key, Result};
use serde::Serialize;

use super::SourceSelection;
use super::change::only_object;
use crate::args::{CatArgs, CpArgs, PresignArgs, ReadArgs, ReplicaArgs};
use crate::replicas::ReplicaOpener;
use crate::transfer::plan::SyncItem;
use crate::transfer::{
    ContentVerifier, MadeDirectories, ObjectMetadataRules, ObjectReceiver, SourceFate, finish_file,
    open_special, parent, temporary_beside,
};
use crate::web;
use crate::wildcard::{FilterRules, object_name};

/// The maximum number of bytes to read at once; larger blocks are read in several parts.
const BLOCK_BYTES_MAX: usize = 1 << 30;

/// The cost of reading.
#[derive(Debug, Serialize)]
struct ReadSummary<'a> {
    url: &'a str,
    per_call: u32,
    window: u32,
    #[serde(flatten)]
    cost: ReadTotals,
}

impl fmt::Display for ReadSummary<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ReadTotals { bytes, fragments, calls, seconds, .. } = self.cost;
        let rate = human_bytes((bytes as f64 / seconds.max(1e-9)) as u64);
        if fragments > 0 {
            write!(f, "{}, ", counted(fragments, "range"))?;
        }
        write!(f, "{} in {seconds:.3} s ({rate}/s): {}", human_bytes(bytes), counted(calls, "call"))?;
        if let (Some(requests), Some(connections)) = (self.cost.requests, self.cost.connections) {
            write!(f, ", {} on {}", counted(requests, "request"), counted(connections, "connection"))?;
        }
        write!(f, ", {:.3} s of CPU time", self.cost.client_cpu_seconds)
    }
}

pub(super) fn run(args: &ReadArgs, context: &CommandContext) -> Result<CommandExit> {
    if args.output.is_none() && !args.discard {
        context.output.check_open()?;
    }
    let ranges =
        args.ranges.as_deref().map(|path| read_ranges(path, context)).transpose()?.unwrap_or_default();
    let what = match args.sequential {
        Some(block) => ReadSelection::Blocks {
            block_bytes: usize::try_from(block).unwrap_or(usize::MAX).min(BLOCK_BYTES_MAX),
            read_ahead_bytes: args.read_ahead,
        },
        None => ReadSelection::Ranges { ranges: &ranges, window: args.window as usize },
    };
    context.output.start_progress();
    context.output.expect_bytes(ranges.iter().map(|(_, length)| *length as u64).sum());
    let url = args.url.as_deref().unwrap_or_default();
    let (replicas, verify) = (&args.replicas, !args.no_verify);
    let reading = ReadSpecification { url, what, calls: &args.calls, replicas, verify };
    let cost = match &args.output {
        _ if args.discard => measure(&reading, context, &mut |_| Ok(())),
        Some(path) => to_file(&reading, path, context),
        None => measure(&reading, context, &mut |call| context.output.data(call.bytes)),
    };
    context.output.end_progress();
    let url = if url.is_empty() { args.replicas.metalink.as_deref().unwrap_or_default() } else { url };
    let summary = ReadSummary { url, per_call: args.calls.per_call, window: args.window, cost: cost? };
    if summary.cost.server_ignores_ranges {
        context.output.note(
            "the server ignores ranges and sent the whole file; to read more of it, download it once: fordway cp URL FILE",
        );
    }
    if args.discard {
        context.output.record(&summary)?;
    } else if args.output.is_some() {
        context.output.event(&summary)?;
    }
    Ok(CommandExit::Ok)
}

/// Writes to a new file, which replaces an existing file only after all content has been written. After a failure, no
/// new file remains. Special files, such as devices, are written in place.
fn to_file(reading: &ReadSpecification, path: &Path, context: &CommandContext) -> Result<ReadTotals> {
    let failed = |error| file_error("writing to", path.display(), error);
    if let Some(opened) = open_special(path, &context.output) {
        let file = opened.map_err(failed)?;
        return write_all(reading, &file, (path, context));
    }
    let target = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let made = MadeDirectories::default();
    let fetch = || {
        let temporary = temporary_beside(&target, &made)?;
        let _removed_by_signals = context.interrupt.temporary(temporary.path(), IncompleteFileKind::Useless);
        let cost = write_all(reading, temporary.as_file(), (path, context))?;
        temporary.persist(&target).map_err(|error| failed(error.error))?;
        Ok(cost)
    };
    fetch().inspect_err(|_| made.remove_empty(parent(&target)))
}

fn write_all(
    reading: &ReadSpecification,
    file: &File,
    (path, context): (&Path, &CommandContext),
) -> Result<ReadTotals> {
    let failed = |error| file_error("writing to", path.display(), error);
    let mut file = BufWriter::with_capacity(1 << 20, file);
    let cost = measure(reading, context, &mut |call| file.write_all(call.bytes).map_err(failed))?;
    file.flush().map_err(failed)?;
    finish_file(file.get_ref(), SourceFate::Kept).map_err(failed)?;
    Ok(cost)
}

/// The objects and the part of each object to write, and how to write it.
struct CatOptions<'a> {
    options: GetOptions,
    verify: bool,
    replicas: &'a ReplicaArgs,
    filters: FilterRules,
}

pub(super) fn cat(args: &CatArgs, context: &CommandContext) -> Result<CommandExit> {
    let options = GetOptions { range: args.range, version: args.version_id.clone(), ..Default::default() };
    let verify = !args.no_verify && args.range.is_none();
    let wanted = CatOptions { options, verify, replicas: &args.replicas, filters: FilterRules::default() };
    write_sources(&args.addresses, args.raw, &wanted, context)
}

/// Runs `cp SOURCE... -`, which writes the sources to standard output.
pub(super) fn copy_out(args: &CpArgs, context: &CommandContext) -> Result<CommandExit> {
    check_options_of_output(args)?;
    ObjectMetadataRules::of(&args.transfer.object)?
        .check(&StorageAddress::Service, &StorageAddress::Stdio)?;
    let options = GetOptions { version: args.version_id.clone(), ..Default::default() };
    let (verify, filters) = (!args.transfer.no_verify, args.transfer.selection());
    let wanted = CatOptions { options, verify, replicas: &args.replicas, filters };
    write_sources(&args.paths.sources, args.raw, &wanted, context)
}

/// Checks that no option of `cp SOURCE... -` would be without effect. Errors: `InvalidArgument`.
fn check_options_of_output(args: &CpArgs) -> Result<()> {
    let options = [
        ("--recursive", args.recursive),
        ("--dry-run", args.transfer.dry_run),
        ("--no-clobber", args.no_clobber),
        ("--if-none-match", args.if_none_match),
        ("--checksum-algorithm", args.transfer.checksum_algorithm.is_some()),
    ];
    match options.into_iter().find(|(_, is_given)| *is_given) {
        Some((name, _)) => {
            let why = format!("{name} cannot be used with standard output (-) as the destination");
            Err(Error::new(ErrorKind::InvalidArgument, why))
        }
        None => Ok(()),
    }
}

fn write_sources(
    addresses: &[String],
    raw: bool,
    wanted: &CatOptions<'_>,
    context: &CommandContext,
) -> Result<CommandExit> {
    context.output.check_open()?;
    // Pieces are verified against their digests even if only a range is requested.
    let places = ReplicaOpener::usual(wanted.replicas, wanted.verify || wanted.options.range.is_some());
    let filters = &wanted.filters;
    if addresses.is_empty() {
        if !filters.is_empty() {
            let why = "--exclude and --include have no effect on --metalink without a URL";
            return Err(Error::new(ErrorKind::InvalidArgument, why));
        }
        return web::write_out("", wanted.options.range, &places, context).map(|()| CommandExit::Ok);
    }
    if wanted.options.version.is_some() {
        let sources: Result<Vec<_>> =
            addresses.iter().map(|text| SourceSelection::resolve_flat(text, raw, true, context)).collect();
        let (bucket, key) = only_object(&sources?)?;
        if !filters.admit(object_name(key.as_str())) {
            return Ok(CommandExit::Ok);
        }
        return write_object(&bucket, &key, wanted, context).map(|()| CommandExit::Ok);
    }
    super::for_each(context, addresses, |text| {
        if web::is_address(text) {
            if !filters.admit(&web::name_of(text)) {
                return Ok(CommandExit::Ok);
            }
            return web::write_out(text, wanted.options.range, &places, context).map(|()| CommandExit::Ok);
        }
        write_source(&SourceSelection::resolve_flat(text, raw, false, context)?, wanted, context)
    })
}

fn write_source(
    source: &SourceSelection,
    wanted: &CatOptions<'_>,
    context: &CommandContext,
) -> Result<CommandExit> {
    let filters = &wanted.filters;
    let Some(items) = source.items(context, filters)? else {
        let SourceSelection::One(place) = source else { return Ok(CommandExit::Ok) };
        let (bucket, key) = place.clone().into_object()?;
        if !filters.admit(object_name(key.as_str())) {
            return Ok(CommandExit::Ok);
        }
        return write_object(&bucket, &key, wanted, context).map(|()| CommandExit::Ok);
    };
    let root = source.root();
    let is_wanted =
        |item: &Result<_>| item.as_ref().map_or(true, |item: &SyncItem| filters.admit(&item.relative));
    super::for_each(context, items.filter(is_wanted), |item| {
        let (bucket, key) = super::cp::from_item(&root, &item?).into_object()?;
        write_object(&bucket, &key, wanted, context).map(|()| CommandExit::Ok)
    })
}

fn write_object(bucket: &Bucket, key: &Key, wanted: &CatOptions<'_>, context: &CommandContext) -> Result<()> {
    let store = context.store()?;
    let object = store.get(bucket, key, &wanted.options)?;
    let mut verifier = ContentVerifier::new(&object.info, wanted.verify);
    let (version, interrupt) = (wanted.options.version.as_ref(), &context.interrupt);
    ObjectReceiver { store: &*store, object: (bucket, key), version, interrupt }
        .receive(object, &mut |chunk| {
            verifier.update(chunk);
            context.interrupt.check()?;
            context.output.data(chunk)
        })
        .and_then(|()| verifier.finish())
        .map_err(|error| error.during("get", store.lane(), bucket.as_str(), key.as_str()))?;
    context.output.flush()
}

#[derive(Serialize)]
struct PresignedUrl<'r> {
    url: &'r str,
    method: &'static str,
    expires_in_seconds: u32,
}

impl fmt::Display for PresignedUrl<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.url)
    }
}

pub(super) fn presign(args: &PresignArgs, context: &CommandContext) -> Result<CommandExit> {
    let (bucket, key) = StorageAddress::parse(&args.address)?.into_object()?;
    let lane = context.lane()?;
    let presigner = lane.presigner.ok_or_else(|| {
        let why = "this lane has no URLs: file system permissions control who can read an object; \
                   use presign with an http(s):// endpoint";
        Error::new(ErrorKind::NotImplemented, why).during(
            "presign",
            lane.store.lane(),
            bucket.as_str(),
            key.as_str(),
        )
    })?;
    let (method, lifetime) = (args.method.name(), Duration::from_secs(args.expires_in.into()));
    let url = presigner.presign(method, &bucket, &key, lifetime)?;
    context.output.record(&PresignedUrl { url: &url, method, expires_in_seconds: args.expires_in })?;
    Ok(CommandExit::Ok)
}
