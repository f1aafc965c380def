//! Measures the cost of the load loops themselves, on a target that completes requests immediately, without a system
//! call.

use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use fordway_measure::{RunClock, TcpConnectionStats};
use fordway_store::Result;
use fordway_workload::rest::{
    ArrivalProcess, BlockPosition, CompletedRequest, LaneBlocks, LoadPlan, NetworkTraffic, RequestChannel,
    SummaryRowLoadSettings, run_block, summarise,
};

const SLOTS: usize = 16;

/// A channel that completes all started requests in the next wait. If no request has been started, the wait sleeps.
#[derive(Default)]
struct Null {
    started: Vec<(usize, Instant)>,
}

impl RequestChannel for Null {
    fn slots(&self) -> usize {
        SLOTS
    }

    fn start(&mut self, slot: usize) {
        self.started.push((slot, Instant::now()));
    }

    fn wait(&mut self, limit: Duration, answers: &mut Vec<CompletedRequest>) -> Result<()> {
        if self.started.is_empty() {
            std::thread::sleep(limit);
        }
        answers.extend(self.started.drain(..).map(|(slot, started)| {
            let ended = Instant::now();
            CompletedRequest {
                slot,
                started,
                first_byte: Some(ended),
                ended,
                body_bytes: 1024,
                retries: 0,
                failure: None,
            }
        }));
        Ok(())
    }

    fn traffic(&self) -> NetworkTraffic {
        NetworkTraffic::default()
    }

    fn connections(&self) -> Option<TcpConnectionStats> {
        None
    }
}

/// Returns the CPU time per operation in nanoseconds, and operations per second.
fn cost(arrivals: ArrivalProcess, keep_operations: bool) -> (f64, f64) {
    let plan = LoadPlan {
        arrivals,
        duration: Duration::from_millis(500),
        requests: None,
        warm_up: Duration::from_millis(50),
        threads: 1,
        seed: 1,
        client_cpus: Vec::new(),
        server_pid: None,
        keep_operations,
    };
    let place = BlockPosition { lane: 0, phase: 0, round: 0, block: 0 };
    let connect = |_: usize| -> Result<Box<dyn RequestChannel>> { Ok(Box::new(Null::default())) };
    let stop = AtomicBool::new(false);
    let block = run_block(&plan, place, RunClock::start(), &connect, &stop, &mut |_| {}).unwrap();
    let settings = SummaryRowLoadSettings {
        lane: "null".into(),
        phase: "null".into(),
        arrivals,
        uploads: false,
        connections: SLOTS as u64,
        streams: 1,
        threads: 1,
        cpus: 1,
    };
    let summary = summarise(&LaneBlocks { settings, blocks: vec![block] }, None);
    assert_eq!(summary.errors, 0);
    (summary.client_cpu_ns_per_op.unwrap(), summary.ops_per_s.unwrap())
}

/// A request over loopback costs a client at least 5 µs, mostly in the kernel; the loops must cost only a small
/// fraction of this time. The limits allow for unoptimized builds on a busy machine.
#[test]
#[allow(clippy::print_stdout, reason = "the figures of the documentation")]
fn the_loops_cost_little() {
    for (name, arrivals, keep) in [
        ("closed loop", ArrivalProcess::Closed, false),
        ("closed loop, every operation kept", ArrivalProcess::Closed, true),
        ("open loop, 100,000/s at equal intervals", ArrivalProcess::Fixed(1e5), false),
        ("open loop, 100,000/s by chance", ArrivalProcess::Poisson(1e5), false),
        ("open loop, more than can be done", ArrivalProcess::Fixed(1e7), false),
    ] {
        let (cpu_ns, ops_per_s) = cost(arrivals, keep);
        println!("{name}: {cpu_ns:.0} ns of CPU time per operation, {ops_per_s:.0} operations/s");
        assert!(cpu_ns < 60_000.0, "{name}: {cpu_ns} ns");
        if arrivals == ArrivalProcess::Closed {
            assert!(cpu_ns < 20_000.0 && ops_per_s > 50_000.0, "{name}: {cpu_ns} ns, {ops_per_s}/s");
        }
    }
}
