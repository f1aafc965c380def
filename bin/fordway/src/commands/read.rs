//! `read`: many ranges of a file or object, or all of it with read-ahead.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Write};
use std::path::Path;

use fordway_command::reading::{Cost, Reading, What, measure, read_ranges};
use fordway_command::units::human_bytes;
use fordway_command::{Context, Exit, Leftover, file_error};
use fordway_store::Result;
use serde::Serialize;

use crate::args::ReadArgs;
use crate::transfer::temporary_beside;

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
