//! Sends load to `ping`. Each thread requests one message at a time, with the next size from a list. The sizes are
//! random, but evenly distributed over the range. A run varies the connection policy, the concurrency, the number of
//! processors and the TCP window.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use fordway_http::HttpResponse;
use fordway_load::pingpong::RETRIES;
use fordway_measure::{SeededRandom, TcpConnectionStats, bytes_text};
use fordway_store::{Error, ErrorKind, Result};
use fordway_workload::rest::{CompletedRequest, LoadFailure, NetworkTraffic, RequestChannel};

use crate::args::{ConnectionReuseArg, PingpongBenchArgs, SizeDistributionArg};
use crate::commands;
use crate::commands::pingpong::PongHttpClient;

/// One combination of values for the options that a run varies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PingpongParameterSet {
    pub(super) policy: ConnectionReuseArg,
    pub(super) concurrency: u16,
    /// The number of processors for each side; `None` for all processors.
    pub(super) cores: Option<u16>,
    /// The index of the window in the values given by `--tcp-rmem`.
    pub(super) window: usize,
    /// TCP's initial receive window in bytes; `None` for the kernel's default.
    pub(super) tcp_rmem_bytes: Option<u64>,
}

impl PingpongParameterSet {
    /// Returns the name used in tables. The name contains the policy, the concurrency, and each other option that the
    /// user sets.
    pub(super) fn label(&self) -> String {
        let policy = match self.policy {
            ConnectionReuseArg::PerRequest => "per-request",
            ConnectionReuseArg::Kept => "kept",
        };
        let cores = self.cores.map(|cores| format!(" cores={cores}")).unwrap_or_default();
        let window = self.tcp_rmem_bytes.map(|bytes| format!(" tcp_rmem={bytes}")).unwrap_or_default();
        format!("{policy} c={}{cores}{window}", self.concurrency)
    }
}

/// Returns the windows given by `--tcp-rmem`, or the kernel's default.
pub(super) fn windows(args: &PingpongBenchArgs) -> Vec<Option<u64>> {
    match args.tcp_rmem.is_empty() {
        true => vec![None],
        false => args.tcp_rmem.iter().copied().map(Some).collect(),
    }
}

/// Returns all combinations. Errors: `InvalidArgument` if more processors are requested than the machine has, or if a
/// window is too small, or if a list contains a value twice.
pub(super) fn points(args: &PingpongBenchArgs, cores: usize) -> Result<Vec<PingpongParameterSet>> {
    let refused = |detail: String| Err(Error::new(ErrorKind::InvalidArgument, detail));
    if let Some(too_many) = args.cores.iter().find(|wanted| usize::from(**wanted) > cores) {
        return refused(format!("--cores {too_many} exceeds the {cores} processors of this machine"));
    }
    if let Some(small) = args.tcp_rmem.iter().find(|bytes| **bytes < 4096) {
        return refused(format!("--tcp-rmem {} is too small; the minimum is 4 KiB", bytes_text(*small)));
    }
    commands::refuse_repeats("--connection-policy", &args.connection_policy)?;
    commands::refuse_repeats("--concurrency", &args.concurrency)?;
    commands::refuse_repeats("--cores", &args.cores)?;
    commands::refuse_repeats("--tcp-rmem", &args.tcp_rmem)?;
    let cores: Vec<Option<u16>> = match args.cores.is_empty() {
        true => vec![None],
        false => args.cores.iter().copied().map(Some).collect(),
    };
    let mut points = Vec::new();
    for (window, tcp_rmem_bytes) in windows(args).into_iter().enumerate() {
        for &cores in &cores {
            for &concurrency in &args.concurrency {
                for &policy in &args.connection_policy {
                    points.push(PingpongParameterSet { policy, concurrency, cores, window, tcp_rmem_bytes });
                }
            }
        }
    }
    match u8::try_from(points.len()) {
        Ok(_) => Ok(points),
        Err(_) => refused("there are more than 255 combinations; omit some".to_owned()),
    }
}

/// The range from which sizes are drawn, and the number of sizes that are drawn per round.
#[derive(Clone, Copy, Debug)]
pub(super) struct MessageSizeRange {
    min_bytes: u64,
    max_bytes: u64,
    scale: SizeDistributionArg,
    pub(super) points: u64,
    repetitions: u64,
}

impl MessageSizeRange {
    /// Reads the range from the options. Errors: `InvalidArgument` if the minimum exceeds the maximum.
    pub(super) fn new(args: &PingpongBenchArgs) -> Result<Self> {
        if args.min > args.max {
            let detail = format!("--min {} is more than --max {}; swap them", args.min, args.max);
            return Err(Error::new(ErrorKind::InvalidArgument, detail));
        }
        let all = (args.max - args.min).saturating_add(1);
        let points = match args.coverage {
            Some(share) => (share * all as f64 / f64::from(args.rounds)).ceil().max(1.0) as u64,
            None => u64::from(args.points),
        };
        Ok(MessageSizeRange {
            min_bytes: args.min,
            max_bytes: args.max,
            scale: args.scale,
            points,
            repetitions: u64::from(args.repetitions),
        })
    }

    /// Returns the message sizes of a block in random order. The range is divided into as many equal parts as there are
    /// points. One size is drawn from each part, and occurs `repetitions` times. Equal seeds yield the same sizes.
    pub(super) fn draw(&self, seed: u64) -> Vec<u64> {
        let mut random = SeededRandom::new(seed);
        let mut all = Vec::with_capacity((self.points * self.repetitions) as usize);
        for part in 0..self.points {
            // With 2^24 steps in each part, every size can be drawn from a part that contains up to about 16 million
            // sizes.
            let within = random.below(1 << 24) as f64 / f64::from(1 << 24);
            let size_bytes = self.at((part as f64 + within) / self.points as f64);
            all.extend((0..self.repetitions).map(|_| size_bytes));
        }
        random.shuffle(&mut all);
        all
    }

    /// Returns the size at position `share` in the range: 0 is the smallest size, and 1 is the largest size.
    fn at(&self, share: f64) -> u64 {
        let (min, max) = (self.min_bytes as f64, self.max_bytes as f64);
        let size = match self.scale {
            SizeDistributionArg::Linear => min + share * (max + 1.0 - min),
            // The logarithm of 0 is undefined, so 1 is added to every size.
            SizeDistributionArg::Log => {
                ((min + 1.0).ln() + share * ((max + 2.0).ln() - (min + 1.0).ln())).exp() - 1.0
            }
        };
        (size.floor() as u64).clamp(self.min_bytes, self.max_bytes)
    }
}

/// The maximum number of bytes of a response's body that are recorded as the reason for a failure.
const REASON_BYTES_MAX: usize = 500;

/// The message sizes of a block, shared by all threads. After the last size, the sequence restarts with the first.
#[derive(Debug)]
pub(super) struct MessageSizeSequence {
    all: Vec<u64>,
    next: AtomicUsize,
}

impl MessageSizeSequence {
    pub(super) fn new(all: Vec<u64>) -> Self {
        MessageSizeSequence { all, next: AtomicUsize::new(0) }
    }

    /// Returns the number of messages in the block.
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    fn next(&self) -> u64 {
        self.all[self.next.fetch_add(1, Ordering::Relaxed) % self.all.len()]
    }
}

/// The number of unanswered messages in a row after which a set-up is considered dead.
const UNANSWERED_MAX: u32 = 10;

/// Counts unanswered messages of a set-up, over all threads of a block. A message counts if its failure took a
/// considerable part of the time limit. Messages that fail immediately do not prolong a run, and are ordinary results.
#[derive(Debug)]
pub(super) struct UnansweredMessages {
    in_a_row: AtomicU32,
    timeout: Duration,
}

impl UnansweredMessages {
    pub(super) fn new(timeout: Duration) -> Self {
        UnansweredMessages { in_a_row: AtomicU32::new(0), timeout }
    }

    /// Counts a message. Errors: `Timeout` if too many messages in a row were not answered.
    fn count(&self, failure: Option<&LoadFailure>, took: Duration) -> Result<()> {
        let Some(failure) = failure.filter(|_| took >= self.timeout / 2) else {
            self.in_a_row.store(0, Ordering::Relaxed);
            return Ok(());
        };
        match self.in_a_row.fetch_add(1, Ordering::Relaxed) + 1 {
            UNANSWERED_MAX.. => {
                let detail = format!(
                    "{UNANSWERED_MAX} messages in a row were not answered within --timeout: {}",
                    failure.detail
                );
                Err(Error::new(ErrorKind::Timeout, detail))
            }
            _ => Ok(()),
        }
    }
}

/// One thread's connection to `ping`.
pub(super) struct PingChannel {
    caller: PongHttpClient,
    sizes: Arc<MessageSizeSequence>,
    unanswered: Arc<UnansweredMessages>,
    keep: bool,
    room: Vec<u8>,
    is_due: bool,
    connections: u64,
}

/// The outcome of one message.
struct MessageOutcome {
    first_byte: Instant,
    retries: u32,
    /// The reason for the failure; `None` if the message did not fail.
    failure: Option<LoadFailure>,
}

impl PingChannel {
    pub(super) fn new(
        address: &str,
        (sizes, unanswered): (&Arc<MessageSizeSequence>, &Arc<UnansweredMessages>),
        keep: bool,
    ) -> Result<Self> {
        let caller = PongHttpClient::new(&format!("http://{address}"), "ping", unanswered.timeout)?;
        let (sizes, unanswered) = (Arc::clone(sizes), Arc::clone(unanswered));
        Ok(PingChannel { caller, sizes, unanswered, keep, room: Vec::new(), is_due: false, connections: 0 })
    }

    fn receive(&mut self, bytes: u64) -> Result<MessageOutcome> {
        let mut response = self.caller.ask(bytes, self.keep).map_err(|failure| failure.error)?;
        let first_byte = Instant::now();
        self.connections += u64::from(response.is_first());
        let retries = response.header(RETRIES).and_then(|text| text.parse().ok()).unwrap_or_default();
        if response.status() != 200 {
            let failure = refused(&mut response);
            return Ok(MessageOutcome { first_byte, retries, failure: Some(failure) });
        }
        if response.body_bytes() != Some(bytes) {
            let detail = format!("the response declares {:?} bytes, not {bytes}", response.body_bytes());
            return Err(Error::new(ErrorKind::BadResponse, detail));
        }
        let room = usize::try_from(bytes).unwrap_or(usize::MAX);
        self.room.resize(room.max(self.room.len()), 0);
        response.read_into(&mut self.room[..room])?;
        Ok(MessageOutcome { first_byte, retries, failure: None })
    }
}

/// Describes a response from `ping` whose status is not 200.
fn refused(response: &mut HttpResponse) -> LoadFailure {
    let kind = format!("status {}", response.status());
    let said = response.read_rest(REASON_BYTES_MAX).unwrap_or_default();
    let said = String::from_utf8_lossy(&said).trim().to_owned();
    LoadFailure { detail: if said.is_empty() { kind.clone() } else { said }, kind: kind.into() }
}

impl RequestChannel for PingChannel {
    fn slots(&self) -> usize {
        1
    }

    fn start(&mut self, _slot: usize) {
        self.is_due = true;
    }

    /// Waits for the whole response, because the thread has no other request in flight. Errors: `Timeout` if the set-up
    /// no longer answers.
    fn wait(&mut self, _limit: Duration, answers: &mut Vec<CompletedRequest>) -> Result<()> {
        if !std::mem::take(&mut self.is_due) {
            return Ok(());
        }
        let bytes = self.sizes.next();
        let started = Instant::now();
        let received = self.receive(bytes);
        let ended = Instant::now();
        let (first_byte, retries, failure) = match received {
            Ok(MessageOutcome { first_byte, retries, failure }) => (Some(first_byte), retries, failure),
            Err(error) => {
                let failure = LoadFailure { kind: error.kind().name().into(), detail: error.to_string() };
                (None, 0, Some(failure))
            }
        };
        self.unanswered.count(failure.as_ref(), ended.duration_since(started))?;
        // A failed operation is recorded with the requested size, because failures are also analysed by size.
        answers.push(CompletedRequest {
            slot: 0,
            started,
            first_byte,
            ended,
            body_bytes: bytes,
            retries,
            failure,
        });
        Ok(())
    }

    fn traffic(&self) -> NetworkTraffic {
        NetworkTraffic { connections: self.connections, ..NetworkTraffic::default() }
    }

    fn connections(&self) -> Option<TcpConnectionStats> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(min_bytes: u64, max_bytes: u64, scale: SizeDistributionArg) -> MessageSizeRange {
        MessageSizeRange { min_bytes, max_bytes, scale, points: 1000, repetitions: 2 }
    }

    #[test]
    fn draws_repeat_and_reach_all_over_the_range() {
        for scale in [SizeDistributionArg::Log, SizeDistributionArg::Linear] {
            let range = range(0, 500_000, scale);
            let drawn = range.draw(7);
            assert_eq!(drawn, range.draw(7));
            assert_ne!(drawn, range.draw(8));
            assert_eq!(drawn.len(), 2000);
            let (least, most) = (drawn.iter().min().unwrap(), drawn.iter().max().unwrap());
            assert!(*least < 600 && *most > 490_000 && *most <= 500_000, "{least} to {most}");
        }
        let small =
            range(0, 500_000, SizeDistributionArg::Log).draw(1).iter().filter(|size| **size < 706).count();
        assert!((990..=1010).contains(&small), "half of the logarithms: {small}");
    }

    #[test]
    fn a_range_of_one_size_is_that_size() {
        for (size, scale) in
            [(0, SizeDistributionArg::Log), (1, SizeDistributionArg::Log), (1, SizeDistributionArg::Linear)]
        {
            assert!(range(size, size, scale).draw(3).iter().all(|drawn| *drawn == size));
        }
        let both: std::collections::BTreeSet<u64> =
            range(0, 1, SizeDistributionArg::Log).draw(3).into_iter().collect();
        assert_eq!(both.into_iter().collect::<Vec<_>>(), [0, 1]);
    }
}
