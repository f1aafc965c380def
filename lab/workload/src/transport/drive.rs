//! All sizes on all transports, in interleaved blocks.

use std::sync::atomic::{AtomicBool, Ordering};

use fordway_measure::{Block, Clock, Operation, Records, Shuffle};
use fordway_store::{Error, ErrorKind, Result};

use super::sizes::exact_text;
use super::{Done, Exchange, Order, Transport};

/// Windows of a block, at most.
const WINDOWS: u64 = 10;
/// Of how many messages one is sent before those that count.
const WARM_UP_SHARE: u64 = 10;
/// Bytes under way at once, but for a single message that is larger.
const WINDOW_BYTES: u64 = 16 << 20;
/// Phases that a run file can tell apart.
const MAX_PHASES: usize = 255;

/// What is measured.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The sizes in bytes, each at least 1.
    pub sizes: Vec<u64>,
    /// How often each size is measured on each transport.
    pub rounds: u16,
    /// Messages of a block, at most.
    pub messages: u64,
    /// Bytes of a block, at most, but for a single message that is larger.
    pub block_bytes: u64,
    /// Messages under way at once for bandwidth, at most.
    pub window: u64,
    /// Decides every order.
    pub seed: u64,
}

/// What a run found.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Every message (every block, for bandwidth) and every block.
    pub records: Records,
    /// What was asked for in each phase, in the phases' order.
    pub orders: Vec<Order>,
}

/// How far a run is.
#[derive(Clone, Debug)]
pub struct Progress {
    /// Blocks done, over all transports.
    pub done: u64,
    /// Blocks in all.
    pub total: u64,
    /// The phase at work.
    pub phase: String,
}

impl Plan {
    /// What is asked for in each phase that any of `transports` can do.
    /// Errors: `InvalidArgument` where there are more phases than a run can have.
    fn orders(&self, transports: &[Box<dyn Transport>]) -> Result<Vec<Order>> {
        let is_possible = |exchange: &Exchange| transports.iter().any(|transport| transport.can(*exchange));
        let of_exchange = |exchange| self.sizes.iter().map(move |size| self.order(exchange, *size));
        let orders: Vec<Order> =
            Exchange::ALL.into_iter().filter(is_possible).flat_map(of_exchange).collect();
        match orders.len() {
            0..=MAX_PHASES => Ok(orders),
            phases => {
                let why = format!("{phases} phases are more than {MAX_PHASES}; name fewer sizes");
                Err(Error::new(ErrorKind::InvalidArgument, why))
            }
        }
    }

    /// A block of messages of that size: as many as are quickly sent.
    fn order(&self, exchange: Exchange, size_bytes: u64) -> Order {
        let at_most = |bytes: u64, most: u64| (bytes / size_bytes).clamp(1, most.max(1));
        let window = match exchange {
            Exchange::Stream => at_most(WINDOW_BYTES, self.window),
            Exchange::Fetch | Exchange::PingPong => 1,
        };
        let count = match exchange {
            Exchange::Stream => (self.block_bytes / (size_bytes * window)).clamp(1, WINDOWS),
            Exchange::Fetch | Exchange::PingPong => at_most(self.block_bytes, self.messages),
        };
        Order { exchange, size_bytes, window, count, warm_up: count.div_ceil(WARM_UP_SHARE) }
    }
}

impl Order {
    /// The name of its phase.
    pub(super) fn phase(&self) -> String {
        format!("{} {}", self.exchange.name(), exact_text(self.size_bytes))
    }
}

/// Runs `plan`. Ends early with `Interrupted` when `stop` is set, and with the error of a transport
/// that fails.
pub fn run(
    plan: &Plan,
    transports: &mut [Box<dyn Transport>],
    stop: &AtomicBool,
    progress: &mut dyn FnMut(Progress),
) -> Result<Outcome> {
    let clock = Clock::start();
    let mut random = Shuffle::new(plan.seed);
    let mut outcome = Outcome { orders: plan.orders(transports)?, ..Outcome::default() };
    let total = u64::from(plan.rounds) * outcome.orders.len() as u64 * transports.len() as u64;
    let (mut done, mut block) = (0, 0);
    for round in 0..plan.rounds {
        for (phase, order) in outcome.orders.iter().enumerate() {
            let mut lanes: Vec<usize> = (0..transports.len()).collect();
            random.shuffle(&mut lanes);
            for lane in lanes {
                if stop.load(Ordering::Relaxed) {
                    return Err(Error::new(ErrorKind::Interrupted, "stopped by request"));
                }
                if transports[lane].can(order.exchange) {
                    let result = transports[lane].carry_out(order)?;
                    let place = Place { lane: lane as u8, phase: phase as u8, round, block };
                    place.keep(order, &result, clock.now_ns(), &mut outcome.records);
                }
                done += 1;
                progress(Progress { done, total, phase: order.phase() });
            }
            block += 1;
        }
    }
    Ok(outcome)
}

#[derive(Clone, Copy)]
struct Place {
    lane: u8,
    phase: u8,
    round: u16,
    block: u32,
}

impl Place {
    /// Records one block that ended at `end_ns`. The last message is wrong where its bytes are.
    fn keep(self, order: &Order, done: &Done, end_ns: u64, records: &mut Records) {
        let Place { lane, phase, round, block } = self;
        let messages = order.count * order.window;
        let (durations_ns, bytes) = match order.exchange {
            Exchange::Stream => (&[done.elapsed_ns][..], messages * order.size_bytes),
            Exchange::Fetch | Exchange::PingPong => (&done.durations_ns[..], order.size_bytes),
        };
        let mut start_ns = end_ns.saturating_sub(done.elapsed_ns);
        let first = records.operations.len();
        for &duration_ns in durations_ns {
            let (thread, ok, intended_ns, first_byte_ns) = (0, true, None, None);
            records.operations.push(Operation {
                lane,
                phase,
                round,
                block,
                thread,
                start_ns,
                duration_ns,
                bytes,
                ok,
                intended_ns,
                first_byte_ns,
            });
            start_ns += duration_ns * order.exchange.trips();
        }
        let all = &mut records.operations[first..];
        if let Some(last) = all.last_mut().filter(|_| !done.is_right) {
            (last.ok, last.bytes) = (false, 0);
        }
        records.blocks.push(Block {
            lane,
            phase,
            round,
            block,
            operations: all.iter().filter(|operation| operation.ok).count() as u32,
            bytes: all.iter().map(|operation| operation.bytes).sum(),
            elapsed_ns: done.elapsed_ns,
            client_cpu_ns: done.client_cpu_ns,
            server_cpu_ns: done.server_cpu_ns,
        });
    }
}
