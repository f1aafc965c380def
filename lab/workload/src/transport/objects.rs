//! Objects behind a store as a transport: a message is an object, and asking for it is reading it.

use std::sync::Arc;
use std::time::Instant;

use fordway_measure::Lane;
use fordway_store::{Bucket, GetOptions, Key, Result, Store};
use fordway_sys::process_cpu_ns;

use super::linked::own_cpu_ns;
use super::{Done, Exchange, Order, Transport, message_of};
use crate::pattern::noise;

/// What buffers are filled with before a block.
const POISON: u8 = 0xa5;

/// Messages are the objects of `bucket` that [`message_of`] names; [`Objects::content`] is what is in them.
pub struct Objects {
    lane: Lane,
    store: Arc<dyn Store>,
    bucket: Bucket,
    server_pid: Option<u32>,
    connections: usize,
    /// One for each connection.
    buffers: Vec<Vec<u8>>,
    content: Vec<u8>,
}

impl Objects {
    /// Reads from `bucket` of `store`, a window of messages by at most this many threads, whose
    /// connections the store keeps.
    pub fn new(
        lane: Lane,
        store: Arc<dyn Store>,
        bucket: Bucket,
        server_pid: Option<u32>,
        connections: usize,
    ) -> Self {
        let connections = connections.max(1);
        let buffers = vec![Vec::new(); connections];
        Objects { lane, store, bucket, server_pid, connections, buffers, content: Vec::new() }
    }

    /// What the message of `size_bytes` holds.
    pub fn content(size_bytes: u64) -> Vec<u8> {
        noise(size_bytes as usize)
    }

    /// This many messages, shared out to as many threads as a window has room for. With one thread,
    /// the durations are single messages'.
    fn read(&mut self, key: &Key, messages: usize, window: usize) -> Result<Vec<u64>> {
        let threads = self.connections.min(window).max(1);
        let (store, bucket) = (&*self.store, &self.bucket);
        if threads == 1 {
            return read_some(store, bucket, key, messages, &mut self.buffers[0]);
        }
        let buffers = self.buffers[..threads].iter_mut().enumerate();
        std::thread::scope(|scope| {
            let share = |thread: usize| messages / threads + usize::from(thread < messages % threads);
            let read =
                |(thread, buffer)| scope.spawn(move || read_some(store, bucket, key, share(thread), buffer));
            let readers: Vec<_> = buffers.map(read).collect();
            let ended = readers.into_iter().map(|reader| {
                reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)).map(drop)
            });
            ended.collect::<Result<Vec<()>>>()
        })?;
        Ok(Vec::new())
    }

    fn server_cpu_ns(&self) -> Option<u64> {
        self.server_pid.and_then(|pid| process_cpu_ns(pid).ok())
    }

    fn is_right(&self, order: &Order) -> bool {
        let threads = match order.exchange {
            Exchange::Stream => self.connections.min(order.window as usize),
            _ => 1,
        };
        self.buffers[..threads].iter().all(|buffer| *buffer == self.content[..order.size_bytes as usize])
    }
}

/// Reads `key` this many times, one after the other; answers how long each took.
fn read_some(
    store: &dyn Store,
    bucket: &Bucket,
    key: &Key,
    messages: usize,
    buffer: &mut Vec<u8>,
) -> Result<Vec<u64>> {
    let mut durations_ns = Vec::with_capacity(messages);
    let mut last = Instant::now();
    for _ in 0..messages {
        store.read(bucket, key, &GetOptions::default(), buffer)?;
        let now = Instant::now();
        durations_ns.push((now - last).as_nanos() as u64);
        last = now;
    }
    Ok(durations_ns)
}

impl Transport for Objects {
    fn lane(&self) -> &Lane {
        &self.lane
    }

    fn can(&self, exchange: Exchange) -> bool {
        exchange != Exchange::PingPong
    }

    fn carry_out(&mut self, order: &Order) -> Result<Done> {
        let key = message_of(order.size_bytes)?;
        if self.content.len() < order.size_bytes as usize {
            self.content = Objects::content(order.size_bytes);
        }
        let window = order.window as usize;
        self.read(&key, (order.warm_up * order.window) as usize, window)?;
        self.buffers.iter_mut().for_each(|buffer| buffer.fill(POISON));
        let (server_before, own_before) = (self.server_cpu_ns(), own_cpu_ns());
        let started = Instant::now();
        let durations_ns = self.read(&key, (order.count * order.window) as usize, window)?;
        let elapsed_ns = started.elapsed().as_nanos() as u64;
        let (own_after, server_after) = (own_cpu_ns(), self.server_cpu_ns());
        Ok(Done {
            durations_ns: if order.exchange == Exchange::Stream { Vec::new() } else { durations_ns },
            elapsed_ns,
            client_cpu_ns: own_after.saturating_sub(own_before),
            server_cpu_ns: server_before
                .zip(server_after)
                .map(|(before, after)| after.saturating_sub(before)),
            is_right: self.is_right(order),
        })
    }
}
