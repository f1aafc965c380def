//! Measures the cost of each layer alone, and checks whether these costs add up to the cost of a whole operation.
//!
//! A [`LedgerComponent`] does the work of exactly one layer. [`measure`] measures each component at every size, in
//! interleaved blocks. [`LedgerCostReport::of`] fits a cost per operation and per byte to each component. The report
//! then adds up the times of each [`PathDecomposition`]'s components, and compares the sum with the time of the whole
//! path, measured in the same run. The difference is the residual: the time that the components do not explain.
//!
//! This module defines and measures paths and components; `account` evaluates the records and formats tables.

mod account;

pub use account::{
    ComponentAccount, ComponentCost, FIT_MEDIAN_PERCENT_MAX, FitSegment, LedgerCostReport,
    LedgerPathBreakdown, MEDIANS_NOTE, PiecewiseLinearFit, SizeCost, component_table, entry_table,
};

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fordway_measure::{BlockRecord, OperationRecord, RowDescription, RunRecords, SeededRandom, own_cpu_ns};
use fordway_store::{Error, ErrorKind, Result};
use fordway_sys::process_cpu_ns;
use serde::{Deserialize, Serialize};

/// The work of one layer, or of a whole path.
pub trait LedgerComponent {
    /// Prepares for operations of `size_bytes` (at least 1). The preparation is not timed.
    fn prepare(&mut self, size_bytes: u64) -> Result<()>;

    /// Runs before each operation, and is not timed. If a layer pauses between the operations of a whole path, the
    /// component of this layer pauses in this method.
    fn before(&mut self) -> Result<()> {
        Ok(())
    }

    /// Performs one operation. Only this method is timed.
    fn run(&mut self) -> Result<()>;

    /// Checks the result of the last operation. The check is not timed.
    fn check(&self) -> Result<()> {
        Ok(())
    }

    /// Returns whether an operation handles all bytes of its size. If an operation handles only some bytes, the
    /// component has no rate in bytes per second.
    fn moves_content(&self) -> bool {
        true
    }

    /// Returns the process whose CPU time counts as the server's; `None` if there is no server.
    fn server_pid(&self) -> Option<u32> {
        None
    }
}

/// A path that is measured as a whole, and the components whose times should add up to the time of the path.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PathDecomposition {
    /// The component that measures the whole path; the path has the same name.
    pub name: String,
    /// The components that the path consists of.
    pub parts: Vec<LedgerPathComponent>,
}

/// One component of a path.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LedgerPathComponent {
    /// The component's name.
    #[serde(alias = "rung")]
    pub component: String,
    /// A component whose work `component` includes, but which the path counts separately. Only the difference between
    /// the two times counts. `None` if all of the component's time counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub beyond: Option<String>,
    /// The number of times that the component occurs in the path; negative if the component is subtracted.
    pub times: f64,
    /// The smallest size, in bytes, at which the component is part of the path.
    pub from_bytes: u64,
    /// The largest size, in bytes, at which the component is part of the path; `None` for no maximum.
    pub to_bytes: Option<u64>,
}

impl PathDecomposition {
    /// Creates a path that has no components yet.
    pub fn new(name: &str) -> Self {
        PathDecomposition { name: name.to_owned(), parts: Vec::new() }
    }

    /// Adds `component` once, at all sizes.
    pub fn with(self, component: &str) -> Self {
        self.part(component, 0, None)
    }

    /// Adds the time by which `component` takes longer than `base`, at all sizes. Use this method for a series of
    /// components if each component does all the work of the previous component, and further work.
    pub fn with_beyond(self, component: &str, base: &str) -> Self {
        let mut path = self.part(component, 0, None);
        if let Some(part) = path.parts.last_mut() {
            part.beyond = Some(base.to_owned());
        }
        path
    }

    /// Subtracts `component` once. The subtraction is needed if other components include the work of `component`, but
    /// the path does not.
    pub fn less(mut self, component: &str) -> Self {
        self.parts.push(LedgerPathComponent {
            component: component.to_owned(),
            beyond: None,
            times: -1.0,
            from_bytes: 0,
            to_bytes: None,
        });
        self
    }

    /// Adds `component` at sizes up to `to_bytes`.
    pub fn with_up_to(self, component: &str, to_bytes: u64) -> Self {
        self.part(component, 0, Some(to_bytes))
    }

    /// Adds `component` at sizes over `bytes`.
    pub fn with_over(self, component: &str, bytes: u64) -> Self {
        self.part(component, bytes + 1, None)
    }

    /// Adds `component` at sizes from `from_bytes` to `to_bytes`, both included.
    pub fn part(mut self, component: &str, from_bytes: u64, to_bytes: Option<u64>) -> Self {
        self.parts.push(LedgerPathComponent {
            component: component.to_owned(),
            beyond: None,
            times: 1.0,
            from_bytes,
            to_bytes,
        });
        self
    }

    /// Returns the components that apply at a size.
    pub fn parts_at(&self, size_bytes: u64) -> impl Iterator<Item = &LedgerPathComponent> {
        self.parts.iter().filter(move |part| {
            part.from_bytes <= size_bytes && part.to_bytes.is_none_or(|most| size_bytes <= most)
        })
    }
}

/// The approximate duration of a block: long enough for a meaningful median, but short enough that the machine is in
/// the same state during neighbouring blocks.
const BLOCK_NS: u64 = 2_000_000;
/// The maximum number of operations in a block.
const OPERATIONS_MAX: usize = 40;
/// The minimum number of operations in a block, regardless of their duration.
const OPERATIONS_MIN: usize = 3;
/// The number of unrecorded operations before a block, which are needed because the previous block left other data in
/// the caches.
const WARM_UP: usize = 2;
/// The minimum number of rounds, because an interval needs at least five values.
const ROUNDS_MIN: u16 = 5;

/// The plan of a measurement.
#[derive(Clone, Debug)]
pub struct LedgerPlan {
    /// The sizes in bytes, in ascending order; at most 255 sizes.
    pub sizes: Vec<u64>,
    /// The time after which no new round starts. At least five recorded rounds run, even if they take longer.
    pub duration: Duration,
    /// The seed of every random order.
    pub seed: u64,
}

/// A component with its name.
pub struct NamedComponent {
    /// The component's name and description.
    pub row: RowDescription,
    /// The component.
    pub component: Box<dyn LedgerComponent>,
}

/// The progress of a measurement.
#[derive(Clone, Copy, Debug)]
pub struct LedgerProgress {
    /// The number of the current round; round 0 is a warm-up and does not count.
    pub round: u16,
    /// Nanoseconds since the start of the measurement.
    pub elapsed_ns: u64,
}

/// Measures `components` in rounds, with the clock `now_ns`. Each round measures the sizes in random order. At each
/// size, a round measures all components in random order, with one block of operations per component. Drift therefore
/// affects all components alike, and each round yields one figure for each component and size. The first round is not
/// recorded. In the records, components are lanes and sizes are phases. If `stop` is set, returns early with the
/// complete rounds. Errors: the errors of the components; `Interrupted` if fewer than [`ROUNDS_MIN`] recorded rounds
/// were complete.
pub fn measure(
    plan: &LedgerPlan,
    components: &mut [NamedComponent],
    now_ns: &dyn Fn() -> u64,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(LedgerProgress),
) -> Result<RunRecords> {
    let mut work = LedgerRunState { now_ns, stop, records: RunRecords::default(), blocks: 0 };
    let mut random = SeededRandom::new(plan.seed);
    let mut round = 0;
    let mut began_ns = now_ns();
    let is_stopped = |error: &Error| error.kind() == ErrorKind::Interrupted || stop.load(Ordering::Relaxed);
    while round <= ROUNDS_MIN || (now_ns() - began_ns) < plan.duration.as_nanos() as u64 && round < u16::MAX {
        progress(LedgerProgress { round, elapsed_ns: now_ns() - began_ns });
        let mut sizes: Vec<usize> = (0..plan.sizes.len()).collect();
        random.shuffle(&mut sizes);
        let done =
            sizes.into_iter().try_for_each(|size| work.all_at(plan, size, components, round, &mut random));
        match done {
            // Ctrl-C also reaches the gateways, so a component may fail before this loop notices the request to stop.
            Err(error) if is_stopped(&error) && round > ROUNDS_MIN => {
                work.records.keep_rounds(round - 1);
                break;
            }
            done => done?,
        }
        if round == 0 {
            work.records = RunRecords::default();
            began_ns = now_ns();
        }
        round += 1;
    }
    Ok(work.records)
}

struct LedgerRunState<'w> {
    now_ns: &'w dyn Fn() -> u64,
    stop: &'w AtomicBool,
    records: RunRecords,
    blocks: u32,
}

impl LedgerRunState<'_> {
    /// Measures one block of each component at one size, in random order.
    fn all_at(
        &mut self,
        plan: &LedgerPlan,
        size: usize,
        components: &mut [NamedComponent],
        round: u16,
        random: &mut SeededRandom,
    ) -> Result<()> {
        let mut order: Vec<usize> = (0..components.len()).collect();
        random.shuffle(&mut order);
        for index in order {
            if self.stop.load(Ordering::Relaxed) {
                return Err(Error::new(ErrorKind::Interrupted, "stopped by request"));
            }
            let place =
                LedgerPosition { lane: index as u8, phase: size as u8, round: round.saturating_sub(1) };
            let NamedComponent { row, component } = &mut components[index];
            self.block(place, &mut **component, plan.sizes[size]).map_err(|error| {
                let doing = format!("measuring the component {} at {} bytes", row.name, plan.sizes[size]);
                Error::new(error.kind(), doing).caused_by(error)
            })?;
        }
        self.blocks += 1;
        Ok(())
    }

    fn block(
        &mut self,
        place: LedgerPosition,
        component: &mut dyn LedgerComponent,
        size_bytes: u64,
    ) -> Result<()> {
        component.prepare(size_bytes)?;
        self.warm_up(component)?;
        let server = component.server_pid();
        let server_cpu = || server.and_then(|pid| process_cpu_ns(pid).ok());
        let (server_before, own_before) = (server_cpu(), own_cpu_ns());
        let times = self.operations(component)?;
        let (own_after, server_after) = (own_cpu_ns(), server_cpu());
        component.check()?;
        let elapsed_ns = times.iter().map(|(_, duration_ns)| duration_ns).sum();
        let size_bytes = if component.moves_content() { size_bytes } else { 0 };
        let bytes = size_bytes * times.len() as u64;
        self.records.blocks.push(BlockRecord {
            lane: place.lane,
            phase: place.phase,
            round: place.round,
            block: self.blocks,
            operations: times.len() as u32,
            bytes,
            elapsed_ns,
            client_cpu_ns: own_after.saturating_sub(own_before),
            server_cpu_ns: server_before
                .zip(server_after)
                .map(|(before, after)| after.saturating_sub(before)),
        });
        let operation =
            |(start_ns, duration_ns)| place.operation(self.blocks, start_ns, duration_ns, size_bytes);
        self.records.operations.extend(times.into_iter().map(operation));
        Ok(())
    }

    /// Runs up to [`WARM_UP`] operations. If one operation takes longer than a block, a single operation is enough,
    /// because it fills the caches with its own data.
    fn warm_up(&self, component: &mut dyn LedgerComponent) -> Result<()> {
        let began_ns = (self.now_ns)();
        for _ in 0..WARM_UP {
            component.before()?;
            component.run()?;
            if (self.now_ns)() - began_ns > BLOCK_NS {
                break;
            }
        }
        Ok(())
    }

    /// Runs the operations of a block; returns the start and the duration of each operation, in nanoseconds.
    fn operations(&self, component: &mut dyn LedgerComponent) -> Result<Vec<(u64, u64)>> {
        let mut times = Vec::with_capacity(OPERATIONS_MAX);
        let mut spent_ns = 0;
        while times.len() < OPERATIONS_MIN || times.len() < OPERATIONS_MAX && spent_ns < BLOCK_NS {
            component.before()?;
            let start_ns = (self.now_ns)();
            component.run()?;
            let duration_ns = (self.now_ns)() - start_ns;
            times.push((start_ns, duration_ns));
            spent_ns += duration_ns;
        }
        Ok(times)
    }
}

/// The component, size and round of a block.
#[derive(Clone, Copy)]
struct LedgerPosition {
    lane: u8,
    phase: u8,
    round: u16,
}

impl LedgerPosition {
    fn operation(self, block: u32, start_ns: u64, duration_ns: u64, bytes: u64) -> OperationRecord {
        let LedgerPosition { lane, phase, round } = self;
        OperationRecord {
            lane,
            phase,
            round,
            block,
            thread: 0,
            start_ns,
            duration_ns,
            bytes,
            ok: true,
            intended_ns: None,
            first_byte_ns: None,
        }
    }
}
