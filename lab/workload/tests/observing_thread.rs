//! This test is a separate program, because other tests in the same process would use CPU time at the same time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fordway_measure::{BlockRecord, RowDescription, RunningCounters};
use fordway_store::{Bucket, Key, MemoryStore};
use fordway_workload::compare::{CompareClients, ComparePlan, run};
use fordway_workload::{DelayInjectingTarget, FileTree, StoreTarget, TreeFile};

fn tree(files: u8) -> FileTree {
    let item = |at: u8| TreeFile { key: Key::new(format!("f{at:03}")).unwrap(), body: vec![at; 1000] };
    FileTree { items: (0..files).map(item).collect(), bytes: u64::from(files) * 1000, warnings: vec![] }
}

fn delayed() -> DelayInjectingTarget {
    let lane = RowDescription { name: "memory".into(), description: String::new() };
    let store = Arc::new(MemoryStore::default());
    let target = StoreTarget::new(lane, store, Bucket::new("bucket").unwrap(), None).unwrap();
    DelayInjectingTarget::new(Box::new(target), Duration::from_millis(2))
}

/// The thread that observes the machine during a run is not a client.
#[test]
fn the_observing_thread_is_not_counted() {
    let plan = ComparePlan {
        rounds: 1,
        warm_up: 0,
        seed: 42,
        clients: CompareClients::ThisProcess,
        threads: 1,
        range_bytes: 100,
        cold: None,
    };
    let (stop, ready) = (AtomicBool::new(false), AtomicBool::new(false));
    let records = std::thread::scope(|scope| {
        scope.spawn(|| {
            fordway_measure::exclude_this_thread();
            ready.store(true, Ordering::Relaxed);
            while !stop.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        while !ready.load(Ordering::Relaxed) {
            std::hint::spin_loop();
        }
        let counters = RunningCounters::start_own().unwrap();
        let outcome = run(
            &plan,
            &tree(20),
            &[Box::new(delayed())],
            &AtomicBool::new(false),
            &mut || Ok(()),
            &mut |_| {},
        );
        let counted = counters.stop(0).unwrap();
        stop.store(true, Ordering::Relaxed);
        assert!(counted.cpu_ns < counted.covered_ns / 4, "{counted:?}");
        outcome.unwrap().records
    });
    let sum = |value: fn(&BlockRecord) -> u64| records.blocks.iter().map(value).sum::<u64>();
    let (cpu_ns, elapsed_ns) = (sum(|block| block.client_cpu_ns), sum(|block| block.elapsed_ns));
    assert!(cpu_ns < elapsed_ns / 4, "{cpu_ns} ns of CPU time in {elapsed_ns} ns of waiting");
}
