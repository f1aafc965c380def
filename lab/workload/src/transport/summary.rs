//! From blocks to the run.

use fordway_measure::{
    Block, Lane, Limit, Machine, Operation, Records, Run, SCHEMA, SCHEMA_VERSION, Summary, Transfer, median,
    median_interval,
};

use super::{Exchange, Order, Outcome, Plan};
use crate::summary::{Capacity, Header, summarise_phase};

/// Processors busy with one message at a time above which one side must have polled.
const POLLS: f64 = 1.5;

/// The run of `outcome`, found on `lanes` by `plan`.
pub fn describe(plan: &Plan, lanes: Vec<Lane>, outcome: &Outcome, header: Header) -> Run {
    let summaries: Vec<Summary> = outcome
        .orders
        .iter()
        .enumerate()
        .flat_map(|(phase, order)| {
            of_phase(plan, &lanes, (phase as u8, order), &outcome.records, &header.machine)
        })
        .collect();
    let mut warnings = header.warnings;
    warnings.extend(doubts(plan, &header.machine));
    warnings.extend(polling(&lanes, &summaries));
    Run {
        schema: SCHEMA.into(),
        schema_version: SCHEMA_VERSION,
        fordway_version: env!("CARGO_PKG_VERSION").into(),
        kind: "transport".into(),
        started: header.started,
        elapsed_ns: header.elapsed.as_nanos() as u64,
        command: std::env::args().collect(),
        machine: header.machine,
        parameters: header.parameters,
        phases: outcome.orders.iter().map(Order::phase).collect(),
        lanes,
        summaries,
        scores: Vec::new(),
        warnings,
    }
}

/// One summary for each lane that took part.
fn of_phase(
    plan: &Plan,
    lanes: &[Lane],
    (phase, order): (u8, &Order),
    records: &Records,
    machine: &Machine,
) -> Vec<Summary> {
    // One message at a time keeps one side waiting for the other; several keep both at work.
    let threads = if order.exchange == Exchange::Stream { machine.cpus } else { 1 };
    let capacity = Capacity { threads, cpus: machine.cpus };
    let name = order.phase();
    let mut summaries = summarise_phase(lanes, (phase, &name), records, capacity, plan.seed);
    for (lane, summary) in summaries.iter_mut().enumerate() {
        let is_here = |in_lane: u8, in_phase: u8| (usize::from(in_lane), in_phase) == (lane, phase);
        let blocks: Vec<&Block> =
            records.blocks.iter().filter(|block| is_here(block.lane, block.phase)).collect();
        let operations = records.operations.iter().filter(|op| is_here(op.lane, op.phase) && op.ok);
        summary.transfer = transfer(order, &blocks, &operations.collect::<Vec<_>>(), plan.seed);
        if let Some(limit) = summary.transfer.as_ref().and_then(polls) {
            summary.limit = limit;
        }
    }
    summaries.retain(|summary| summary.transfer.is_some());
    summaries
}

/// `None` where the lane did not take part.
fn transfer(order: &Order, blocks: &[&Block], operations: &[&Operation], seed: u64) -> Option<Transfer> {
    if blocks.is_empty() {
        return None;
    }
    let of_block = order.count * order.window;
    let each = |value: &dyn Fn(&Block) -> f64| {
        median(&blocks.iter().map(|block| value(block)).collect::<Vec<_>>()).unwrap_or_default()
    };
    let client_ns = each(&|block| block.client_cpu_ns as f64 / of_block as f64);
    let has_server = blocks.iter().all(|block| block.server_cpu_ns.is_some());
    let server_ns = each(&|block| block.server_cpu_ns.unwrap_or_default() as f64 / of_block as f64);
    let busy = |block: &Block| {
        (block.client_cpu_ns + block.server_cpu_ns.unwrap_or_default()) as f64
            / block.elapsed_ns.max(1) as f64
    };
    let rates: Vec<f64> =
        blocks.iter().map(|block| block.bytes as f64 * 1e9 / block.elapsed_ns.max(1) as f64).collect();
    let time_ns = match order.exchange {
        Exchange::Stream => None,
        Exchange::Fetch | Exchange::PingPong => median_interval(&medians(operations), seed),
    };
    Some(Transfer {
        exchange: order.exchange.name().to_owned(),
        size_bytes: order.size_bytes,
        window: order.window,
        messages: blocks.len() as u64 * of_block,
        time_ns,
        bytes_per_s: median_interval(&rates, seed),
        client_cpu_ns_per_message: client_ns,
        server_cpu_ns_per_message: has_server.then_some(server_ns),
        processors_busy: each(&busy),
    })
}

/// The median time of a message in each block.
fn medians(operations: &[&Operation]) -> Vec<f64> {
    let blocks = operations.chunk_by(|a, b| a.block == b.block);
    let of_block = |block: &[&Operation]| {
        median(&block.iter().map(|operation| operation.duration_ns as f64).collect::<Vec<_>>())
    };
    blocks.filter_map(of_block).collect()
}

/// The limit of a transport that polls: that it is busy says nothing.
fn polls(transfer: &Transfer) -> Option<Limit> {
    if transfer.exchange == Exchange::Stream.name() || transfer.processors_busy < POLLS {
        return None;
    }
    let evidence = format!(
        "{:.2} processors were busy with one message at a time: a side polls while it waits, so CPU time does \
         not tell",
        transfer.processors_busy
    );
    Some(Limit { name: "cannot tell".into(), evidence })
}

/// Says which lanes polled, with what it cost.
fn polling(lanes: &[Lane], summaries: &[Summary]) -> Vec<String> {
    let latency = Exchange::Fetch.name();
    let busy = |lane: &Lane| {
        let rows = summaries.iter().filter(|row| row.lane == lane.name);
        let transfers = rows.filter_map(|row| row.transfer.as_ref()).filter(|of| of.exchange == latency);
        median(&transfers.map(|of| of.processors_busy).collect::<Vec<_>>())
    };
    let said = |lane: &Lane| {
        let busy = busy(lane).filter(|busy| *busy >= POLLS)?;
        Some(format!(
            "{} polls while it waits: {busy:.2} processors were busy with one message at a time. Its latency is \
             that of processors which do nothing else",
            lane.name
        ))
    };
    lanes.iter().filter_map(said).collect()
}

fn doubts(plan: &Plan, machine: &Machine) -> Vec<String> {
    let mut doubts = Vec::new();
    if let Some(load) = machine.load_1min.filter(|load| *load > 0.5 * machine.cpus as f64) {
        doubts.push(format!(
            "the load average was {load} on {} processors before the start: who polls and who sleeps suffer \
             differently from other work; run it again when the machine is idle",
            machine.cpus
        ));
    }
    if machine.cpus < 2 {
        doubts.push("both sides share one processor: a side that polls keeps the other from working".into());
    }
    if plan.rounds < 5 {
        doubts.push("fewer than 5 rounds: there are no intervals; raise --rounds".into());
    }
    doubts
}
