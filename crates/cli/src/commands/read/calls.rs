//! Ranges as calls, one after the other or several under way; or all of a file, block by block.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fordway_client::http::vector::{Options, ReadAhead, Reader, RemoteFile, Traffic};
use fordway_store::{Bucket, ByteRange, Error, ErrorKind, GetOptions, Key, Result, Store};
use serde::Serialize;

use crate::address::Address;
use crate::args::CallArgs;
use crate::context::Context;
use crate::web;

/// What is read, and how.
pub(crate) struct Reading<'a> {
    pub(crate) url: &'a str,
    pub(crate) what: What<'a>,
    pub(crate) calls: &'a CallArgs,
}

/// What is read of it.
#[derive(Clone, Copy)]
pub(crate) enum What<'a> {
    /// These, so many calls under way at once.
    Ranges { ranges: &'a [(u64, usize)], window: usize },
    /// All, in blocks, with so much memory for what is read ahead.
    Blocks { block_bytes: usize, read_ahead_bytes: u64 },
}

/// What reading took, opening included.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Cost {
    pub(crate) bytes: u64,
    pub(crate) fragments: u64,
    pub(crate) calls: u64,
    pub(crate) seconds: f64,
    /// `null` on lanes that have none.
    pub(crate) requests: Option<u64>,
    pub(crate) connections: Option<u64>,
    /// Of this process.
    pub(crate) client_cpu_seconds: f64,
}

/// One call that has ended.
pub(crate) struct Call<'b> {
    /// What was read, in the order asked for.
    pub(crate) bytes: &'b [u8],
    pub(crate) started: Instant,
    pub(crate) took: Duration,
}

/// Takes what a call has read.
pub(crate) type Sink<'a> = dyn FnMut(Call<'_>) -> Result<()> + 'a;

/// Reads everything into `sink`. Errors: those of the lane, and of `sink`.
pub(crate) fn measure(reading: &Reading, context: &Context, sink: &mut Sink<'_>) -> Result<Cost> {
    let (started, cpu_before) = (Instant::now(), cpu_seconds());
    let fragments = if let What::Ranges { ranges, .. } = reading.what { ranges.len() } else { 0 };
    let mut cost = Cost { fragments: fragments as u64, ..Default::default() };
    let mut count = |call: Call<'_>| {
        cost.bytes += call.bytes.len() as u64;
        cost.calls += 1;
        context.output.advance_bytes(call.bytes.len() as u64);
        context.interrupt.check()?;
        sink(call)
    };
    let traffic = match (reading.what, open(reading, context)?) {
        (What::Ranges { ranges, window }, Some(file)) => {
            read_ranges_of(file, reading, (ranges, window), &mut count).map(Some)
        }
        (What::Ranges { ranges, .. }, None) => {
            read_object(reading, ranges, context, &mut count).map(|()| None)
        }
        (What::Blocks { block_bytes, read_ahead_bytes }, Some(file)) => {
            read_blocks(file, block_bytes, read_ahead_bytes, &mut count).map(Some)
        }
        (What::Blocks { .. }, None) => {
            let detail =
                "--sequential reads ahead by HTTP, which this lane has no need of; use `fordway cat`";
            Err(Error::new(ErrorKind::NotImplemented, detail))
        }
    }?;
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

/// `None` for objects on lanes that are not worth to be asked ahead. Cost: a HEAD.
fn open(reading: &Reading, context: &Context) -> Result<Option<RemoteFile>> {
    if reading.url.starts_with("s3://") {
        let (bucket, key) = Address::parse(reading.url)?.into_object()?;
        return context.lane()?.opener.map(|opener| opener.open_file(&bucket, &key)).transpose();
    }
    let options = Options {
        connections_per_origin: reading.calls.connections as usize,
        deadline: reading.calls.deadline,
        ..Default::default()
    };
    RemoteFile::open(&web::session(reading.calls.ca_bundle.clone(), options), reading.url).map(Some)
}

fn read_blocks(
    file: RemoteFile,
    block_bytes: usize,
    read_ahead_bytes: u64,
    sink: &mut Sink<'_>,
) -> Result<Traffic> {
    let mut reader = Reader::new(Arc::new(file), ReadAhead { max_bytes: read_ahead_bytes });
    let (mut block, mut position) = (vec![0; block_bytes.max(1)], 0);
    loop {
        let started = Instant::now();
        let count = reader.read_at(position, &mut block)?;
        if count == 0 {
            return Ok(reader.file().traffic());
        }
        position += count as u64;
        sink(Call { bytes: &block[..count], started, took: started.elapsed() })?;
    }
}

fn read_ranges_of(
    file: RemoteFile,
    reading: &Reading,
    (ranges, window): (&[(u64, usize)], usize),
    sink: &mut Sink<'_>,
) -> Result<Traffic> {
    let mut under_way = VecDeque::new();
    let mut calls = ranges.chunks(reading.calls.per_call as usize);
    let mut memory = Vec::new();
    loop {
        while under_way.len() < window
            && let Some(call) = calls.next()
        {
            let started = Instant::now();
            under_way.push_back((started, file.submit(call, std::mem::take(&mut memory))?));
        }
        let Some((started, ticket)) = under_way.pop_front() else { return Ok(file.traffic()) };
        memory = file.wait(ticket)?.bytes;
        sink(Call { bytes: &memory, started, took: started.elapsed() })?;
    }
}

/// A store that answers at once has no calls under way: each is waited for.
fn read_object(
    reading: &Reading,
    ranges: &[(u64, usize)],
    context: &Context,
    sink: &mut Sink<'_>,
) -> Result<()> {
    let (bucket, key) = Address::parse(reading.url)?.into_object()?;
    let store = context.store()?;
    let mut bytes = Vec::new();
    for call in ranges.chunks(reading.calls.per_call as usize) {
        let started = Instant::now();
        bytes.clear();
        read_call(&*store, (&bucket, &key), call, &mut bytes)?;
        sink(Call { bytes: &bytes, started, took: started.elapsed() })?;
    }
    Ok(())
}

/// Errors: `InvalidRange`, also for a range of which only the end is missing.
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
            let detail = format!("{length} bytes at {offset} end behind the object");
            let error = Error::new(ErrorKind::InvalidRange, detail);
            return Err(error.during("get", store.lane(), bucket.as_str(), key.as_str()));
        }
        bytes.extend_from_slice(&range);
    }
    Ok(())
}
