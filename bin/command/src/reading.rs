//! Reads ranges of a file, or reads a whole file block by block. Ranges are grouped into calls, of which several may be
//! in flight. A file that lists ranges has one `offset length` per line.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fordway_http::replicas::ReplicatedFile;
use fordway_http::vector::{HttpTrafficCounts, ReadAheadSettings, RemoteReader};
use fordway_store::{Bucket, ByteRange, Error, ErrorKind, GetOptions, Key, Result, Store};
use serde::Serialize;

use crate::address::StorageAddress;
use crate::args::{ReplicaArgs, VectorReadArgs};
use crate::context::CommandContext;
use crate::exit::file_error;
use crate::replicas::{OpenedRemoteFile, PendingReadTicket, ReplicaOpener};

/// The input of [`measure`]: the file or object, the bytes to read, and the options.
pub struct ReadSpecification<'a> {
    /// The URL; empty if the command line contains only a Metalink.
    pub url: &'a str,
    /// The bytes to read: ranges, or the whole file.
    pub what: ReadSelection<'a>,
    /// How ranges are grouped into calls.
    pub calls: &'a VectorReadArgs,
    /// Options for replicas of the file.
    pub replicas: &'a ReplicaArgs,
    /// Whether the pieces that contain ranges are verified against their digests.
    pub verify: bool,
}

/// The bytes to read.
#[derive(Clone, Copy)]
pub enum ReadSelection<'a> {
    /// These ranges, with up to `window` calls in flight.
    Ranges {
        /// The offset and length of each range, in bytes.
        ranges: &'a [(u64, usize)],
        /// The maximum number of calls in flight at once.
        window: usize,
    },
    /// The whole file in blocks, with a limit on read-ahead memory.
    Blocks {
        /// The size of one read.
        block_bytes: usize,
        /// The maximum amount of memory for read-ahead, in bytes.
        read_ahead_bytes: u64,
    },
}

/// The cost of a read, including the cost of opening the file.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ReadTotals {
    /// The total number of bytes read.
    pub bytes: u64,
    /// The number of ranges.
    pub fragments: u64,
    /// The number of calls that read the ranges.
    pub calls: u64,
    /// The time from opening to the last byte.
    pub seconds: f64,
    /// The number of requests; `null` on lanes without requests.
    pub requests: Option<u64>,
    /// The number of connections opened; `null` on lanes without connections.
    pub connections: Option<u64>,
    /// The CPU time of this process, in seconds.
    pub client_cpu_seconds: f64,
    /// Whether the server ignored the ranges and sent the whole file.
    pub server_ignores_ranges: bool,
}

/// A completed call, as passed to a [`ReadCallSink`].
pub struct FinishedReadCall<'b> {
    /// The bytes read, in the order in which they were requested.
    pub bytes: &'b [u8],
    /// The time at which the call started.
    pub started: Instant,
    /// The time from the start of the call until all of its bytes had arrived.
    pub took: Duration,
}

/// A function that receives the bytes of a finished call.
pub type ReadCallSink<'a> = dyn FnMut(FinishedReadCall<'_>) -> Result<()> + 'a;

/// Reads everything into `sink`. Errors: the errors of the lane and of `sink`.
pub fn measure(
    reading: &ReadSpecification,
    context: &CommandContext,
    sink: &mut ReadCallSink<'_>,
) -> Result<ReadTotals> {
    let (started, cpu_before) = (Instant::now(), cpu_seconds());
    let fragments = if let ReadSelection::Ranges { ranges, .. } = reading.what { ranges.len() } else { 0 };
    let mut cost = ReadTotals { fragments: fragments as u64, ..Default::default() };
    let mut count = |call: FinishedReadCall<'_>| {
        cost.bytes += call.bytes.len() as u64;
        cost.calls += 1;
        context.output.advance_bytes(call.bytes.len() as u64);
        context.interrupt.check()?;
        sink(call)
    };
    let (traffic, server_ignores_ranges) = match (reading.what, open(reading, context)?) {
        (ReadSelection::Ranges { ranges, window }, Some((file, begun))) => {
            let begun = begun.map(|ticket| (started, ticket));
            read_ranges_of(file, (reading, context), (ranges, window, begun), &mut count)
                .map(|(traffic, ignores_ranges)| (Some(traffic), ignores_ranges))
        }
        (ReadSelection::Ranges { ranges, .. }, None) => {
            read_object(reading, ranges, context, &mut count).map(|()| (None, false))
        }
        (ReadSelection::Blocks { block_bytes, read_ahead_bytes }, Some((file, _))) => {
            read_blocks(file, (reading, context), (block_bytes, read_ahead_bytes), &mut count)
                .map(|traffic| (Some(traffic), false))
        }
        (ReadSelection::Blocks { .. }, None) => {
            let detail =
                "--sequential is read-ahead over HTTP, which this lane does not need; use `fordway cat`";
            Err(Error::new(ErrorKind::NotImplemented, detail))
        }
    }?;
    cost.server_ignores_ranges = server_ignores_ranges;
    cost.requests = traffic.map(|traffic| traffic.requests);
    cost.connections = traffic.map(|traffic| traffic.connections);
    cost.seconds = started.elapsed().as_secs_f64();
    cost.client_cpu_seconds = cpu_seconds() - cpu_before;
    Ok(cost)
}

fn cpu_seconds() -> f64 {
    let usage = fordway_sys::process_usage();
    (usage.user_ns + usage.system_ns) as f64 / 1e9
}

/// A call in flight, and its start time.
type InFlightReadCall = (Instant, PendingReadTicket);

/// Opens a file. If opening the file has already started the first call, also returns that call. Returns `None` for an
/// object on a lane that does not benefit from several calls in flight. Cost: a HEAD request, unless the first call was
/// started.
fn open(
    reading: &ReadSpecification,
    context: &CommandContext,
) -> Result<Option<(OpenedRemoteFile, Option<PendingReadTicket>)>> {
    if reading.url.starts_with("s3://") {
        let (bucket, key) = StorageAddress::parse(reading.url)?.into_object()?;
        let file = context.lane()?.opener.map(|opener| opener.open_file(&bucket, &key)).transpose();
        return Ok(file?.map(|file| (OpenedRemoteFile::One(file), None)));
    }
    match reading.what {
        ReadSelection::Ranges { ranges, .. } => {
            let first = ranges.chunks(reading.calls.per_call as usize).next().unwrap_or_default();
            reading.places().open_reading(reading.url, first, context).map(Some)
        }
        ReadSelection::Blocks { .. } => {
            reading.places().open(reading.url, context).map(|file| Some((file, None)))
        }
    }
}

impl ReadSpecification<'_> {
    fn places(&self) -> ReplicaOpener<'_> {
        let connections = self.calls.connections as usize;
        ReplicaOpener {
            args: self.replicas,
            verify: self.verify,
            ca_bundle: self.calls.ca_bundle.as_ref(),
            connections,
            http: Some(self.calls.http),
            deadline: self.calls.deadline,
        }
    }
}

fn read_blocks(
    file: OpenedRemoteFile,
    (reading, context): (&ReadSpecification, &CommandContext),
    (block_bytes, read_ahead_bytes): (usize, u64),
    sink: &mut ReadCallSink<'_>,
) -> Result<HttpTrafficCounts> {
    let file = match file {
        OpenedRemoteFile::One(file) => file,
        OpenedRemoteFile::Many(file) => return read_blocks_of_many(&file, 0, block_bytes, sink),
    };
    let mut reader = RemoteReader::new(Arc::new(file), ReadAheadSettings { max_bytes: read_ahead_bytes });
    let (mut block, mut position) = (vec![0; block_bytes.max(1)], 0);
    loop {
        let started = Instant::now();
        let count = match reader.read_at(position, &mut block) {
            Ok(count) => count,
            Err(error) => {
                let known = (reading.url, Some(reader.file().size_bytes()));
                let file = reading.places().instead_since(started, known, error, context)?;
                return read_blocks_of_many(&file, position, block_bytes, sink);
            }
        };
        if count == 0 {
            return Ok(reader.file().traffic());
        }
        position += count as u64;
        sink(FinishedReadCall { bytes: &block[..count], started, took: started.elapsed() })?;
    }
}

fn read_blocks_of_many(
    file: &ReplicatedFile,
    from: u64,
    block_bytes: usize,
    sink: &mut ReadCallSink<'_>,
) -> Result<HttpTrafficCounts> {
    let mut started = Instant::now();
    file.copy_range(from..file.size_bytes(), &mut |bytes| {
        for bytes in bytes.chunks(block_bytes.max(1)) {
            sink(FinishedReadCall { bytes, started, took: started.elapsed() })?;
            started = Instant::now();
        }
        Ok(())
    })?;
    Ok(file.traffic())
}

/// Reads ranges. Returns the traffic, and whether the server ignored the ranges.
fn read_ranges_of(
    mut file: OpenedRemoteFile,
    (reading, context): (&ReadSpecification, &CommandContext),
    (ranges, window, mut begun): (&[(u64, usize)], usize, Option<InFlightReadCall>),
    sink: &mut ReadCallSink<'_>,
) -> Result<(HttpTrafficCounts, bool)> {
    let mut under_way = VecDeque::new();
    let mut calls = ranges.chunks(reading.calls.per_call as usize);
    let mut memory = Vec::new();
    loop {
        while under_way.len() < window
            && let Some(call) = calls.next()
        {
            let (started, ticket) = match begun.take() {
                Some(begun) => begun,
                None => (Instant::now(), file.submit(call, std::mem::take(&mut memory))?),
            };
            under_way.push_back((started, call, ticket));
        }
        let Some((started, call, ticket)) = under_way.pop_front() else {
            return Ok((file.traffic(), file.ignores_ranges()));
        };
        memory = match (file.wait(ticket), &file) {
            (Err(error), OpenedRemoteFile::One(_)) => {
                // Continue with the replicas. Resubmit the calls that were in flight when reading failed, in their
                // original order.
                let known = (reading.url, Some(file.size_bytes()));
                let replicated = reading.places().instead_since(started, known, error, context)?;
                file = OpenedRemoteFile::Many(replicated);
                for (_, call, ticket) in &mut under_way {
                    *ticket = file.submit(call, Vec::new())?;
                }
                file.wait(file.submit(call, Vec::new())?)?
            }
            (waited, _) => waited?,
        };
        sink(FinishedReadCall { bytes: &memory, started, took: started.elapsed() })?;
    }
}

/// Reads from a store whose calls are synchronous: each call completes before the next one starts.
fn read_object(
    reading: &ReadSpecification,
    ranges: &[(u64, usize)],
    context: &CommandContext,
    sink: &mut ReadCallSink<'_>,
) -> Result<()> {
    let (bucket, key) = StorageAddress::parse(reading.url)?.into_object()?;
    let store = context.store()?;
    let mut bytes = Vec::new();
    for call in ranges.chunks(reading.calls.per_call as usize) {
        let started = Instant::now();
        bytes.clear();
        read_call(&*store, (&bucket, &key), call, &mut bytes)?;
        sink(FinishedReadCall { bytes: &bytes, started, took: started.elapsed() })?;
    }
    Ok(())
}

/// Reads the ranges of one call. Errors: `InvalidRange` for a range that extends beyond the end of the object, even if
/// the range begins within the object.
fn read_call(
    store: &dyn Store,
    (bucket, key): (&Bucket, &Key),
    call: &[(u64, usize)],
    bytes: &mut Vec<u8>,
) -> Result<()> {
    let asked = call.iter().filter(|(_, length)| *length > 0);
    let wanted: Vec<_> = asked
        .clone()
        .map(|(offset, length)| ByteRange::Inclusive(*offset, offset + *length as u64 - 1))
        .collect();
    let found = store.read_ranges(bucket, key, &wanted, &GetOptions::default())?;
    for ((offset, length), range) in asked.zip(found) {
        if range.len() != *length {
            let detail = format!("{length} bytes at {offset} extend beyond the end of the object");
            let error = Error::new(ErrorKind::InvalidRange, detail);
            return Err(error.during("get", store.lane(), bucket.as_str(), key.as_str()));
        }
        bytes.extend_from_slice(&range);
    }
    Ok(())
}

/// Reads a list of ranges; ignores empty lines and anything after a `#`. Errors: `InvalidArgument` with the line
/// number, `Io`.
pub fn read_ranges(path: &Path, context: &CommandContext) -> Result<Vec<(u64, usize)>> {
    let failed = |error| file_error("reading", path.display(), error);
    let input: Box<dyn Read> = match path.to_str() {
        Some("-") => context.take_input()?,
        _ => Box::new(File::open(path).map_err(failed)?),
    };
    let mut ranges = Vec::new();
    for (number, line) in BufReader::new(input).lines().enumerate() {
        let line = line.map_err(failed)?;
        let text = line.split('#').next().unwrap_or_default().trim();
        if !text.is_empty() {
            ranges.push(parse(text).ok_or_else(|| unreadable(path, number + 1, text))?);
        }
    }
    Ok(ranges)
}

fn parse(text: &str) -> Option<(u64, usize)> {
    let (offset, length) = text.split_once(char::is_whitespace)?;
    let (offset, length): (u64, usize) = (offset.parse().ok()?, length.trim_start().parse().ok()?);
    offset.checked_add(length as u64)?;
    Some((offset, length))
}

fn unreadable(path: &Path, line: usize, text: &str) -> Error {
    let detail = format!(
        "line {line} of {} is {text:?}; write an offset and a length in bytes, as in: 4096 1000",
        path.display()
    );
    Error::new(ErrorKind::InvalidArgument, detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_pairs() {
        assert_eq!(parse("0 10"), Some((0, 10)));
        assert_eq!(parse("7 \t0"), Some((7, 0)));
        for bad in ["7", "a 1", "1 b", "-1 2", "1 2 3", "18446744073709551615 1"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
