//! What the loops themselves cost: load on a target that answers at once, without a system call.

use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use fordway_measure::{Clock, Connections};
use fordway_store::Result;
use fordway_workload::rest::{
    Answer, Arrivals, Channel, LaneBlocks, Place, Plan, Settings, Traffic, run_block, summarise,
};

const SLOTS: usize = 16;

/// Answers what was started with the next wait; where nothing was, the wait is a sleep.
#[derive(Default)]
struct Null {
    started: Vec<(usize, Instant)>,
}

impl Channel for Null {
    fn slots(&self) -> usize {
        SLOTS
    }

    fn start(&mut self, slot: usize) {
        self.started.push((slot, Instant::now()));
    }

    fn wait(&mut self, limit: Duration, answers: &mut Vec<Answer>) -> Result<()> {
        if self.started.is_empty() {
            std::thread::sleep(limit);
        }
        answers.extend(self.started.drain(..).map(|(slot, started)| {
            let ended = Instant::now();
            Answer {
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

    fn traffic(&self) -> Traffic {
        Traffic::default()
    }

    fn connections(&self) -> Option<Connections> {
        None
    }
}

/// CPU time of an operation, ns, and operations per second.
fn cost(arrivals: Arrivals, keep_operations: bool) -> (f64, f64) {
    let plan = Plan {
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
    let place = Place { lane: 0, phase: 0, round: 0, block: 0 };
    let connect = |_: usize| -> Result<Box<dyn Channel>> { Ok(Box::new(Null::default())) };
    let stop = AtomicBool::new(false);
    let block = run_block(&plan, place, Clock::start(), &connect, &stop, &mut |_| {}).unwrap();
    let settings = Settings {
        lane: "null".into(),
        phase: "null".into(),
        arrivals,
        uploads: false,
        connections: SLOTS as u64,
        streams: 1,
        threads: 1,
        cpus: 1,
    };
    let summary = summarise(&LaneBlocks { settings, blocks: vec![block] }, None, 1);
    assert_eq!(summary.errors, 0);
    (summary.client_cpu_ns_per_op.unwrap(), summary.ops_per_s.unwrap())
}

/// A request over loopback costs a client at least 5 µs, mostly in the kernel; of that the loops must be a
/// small part. The bound is for builds without optimisation on a machine with other work.
#[test]
#[allow(clippy::print_stdout, reason = "the figures of the documentation")]
fn the_loops_cost_little() {
    for (name, arrivals, keep) in [
        ("closed loop", Arrivals::Closed, false),
        ("closed loop, every operation kept", Arrivals::Closed, true),
        ("open loop, 100,000/s at equal intervals", Arrivals::Fixed(1e5), false),
        ("open loop, 100,000/s by chance", Arrivals::Poisson(1e5), false),
        ("open loop, more than can be done", Arrivals::Fixed(1e7), false),
    ] {
        let (cpu_ns, ops_per_s) = cost(arrivals, keep);
        println!("{name}: {cpu_ns:.0} ns of CPU time per operation, {ops_per_s:.0} operations/s");
        assert!(cpu_ns < 60_000.0, "{name}: {cpu_ns} ns");
        if arrivals == Arrivals::Closed {
            assert!(cpu_ns < 20_000.0 && ops_per_s > 50_000.0, "{name}: {cpu_ns} ns, {ops_per_s}/s");
        }
    }
}
