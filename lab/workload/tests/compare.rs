//! Tests the instrument itself, with known delays, wrong content and failures.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use fordway_measure::{OperationRecord, RowDescription, SpeedVerdict};
use fordway_store::{Bucket, Error, ErrorKind, Key, MemoryStore, Result};
use fordway_workload::compare::{
    CompareClients, ComparePhase, ComparePlan, CompareProgress, ComparisonResults, check_eviction, run,
};
use fordway_workload::summary::{RunParallelism, summarise};
use fordway_workload::{
    DelayInjectingTarget, FileTree, MeasuredTarget, PosixTarget, StoreTarget, SyncLevel, TreeFile,
};

const PLAN: ComparePlan = ComparePlan {
    rounds: 5,
    warm_up: 1,
    seed: 42,
    clients: CompareClients::ThisProcess,
    threads: 1,
    range_bytes: 100,
    cold: None,
};
const CAPACITY: RunParallelism = RunParallelism { threads: 1, cpus: 2 };

fn tree(files: usize) -> FileTree {
    let item = |i: usize| TreeFile {
        key: Key::new(format!("d{}/f{i:03}", i % 3)).unwrap(),
        body: vec![i as u8; i * 37],
    };
    let mut items: Vec<TreeFile> = (0..files).map(item).collect();
    items.sort_by(|a, b| a.key.cmp(&b.key));
    FileTree { bytes: items.iter().map(|item| item.body.len() as u64).sum(), items, warnings: vec![] }
}

fn lane(name: &str) -> RowDescription {
    RowDescription { name: name.into(), description: String::new() }
}

fn memory(name: &str) -> StoreTarget {
    StoreTarget::new(
        lane(name),
        std::sync::Arc::new(MemoryStore::default()),
        Bucket::new("bucket").unwrap(),
        None,
    )
    .unwrap()
}

fn compare(
    plan: &ComparePlan,
    tree: &FileTree,
    targets: &[Box<dyn MeasuredTarget>],
) -> Result<ComparisonResults> {
    run(plan, tree, targets, &AtomicBool::new(false), &mut || Ok(()), &mut |_| {})
}

fn lanes(targets: &[Box<dyn MeasuredTarget>]) -> Vec<RowDescription> {
    targets.iter().map(|target| target.lane().clone()).collect()
}

/// Every phase must perform its operations on every lane, and the records must match these operations.
#[test]
fn all_phases_run_and_verify() {
    let dir = tempfile::tempdir().unwrap();
    let posix = PosixTarget::new(&dir.path().join("posix"), SyncLevel::Nothing).unwrap();
    let targets: Vec<Box<dyn MeasuredTarget>> = vec![Box::new(posix), Box::new(memory("memory"))];
    for threads in [1, 4] {
        let (plan, tree) = (ComparePlan { threads, ..PLAN }, tree(150));
        let outcome = compare(&plan, &tree, &targets).unwrap();
        assert_eq!(outcome.failures, Vec::<String>::new());
        let summaries = summarise(&lanes(&targets), &outcome.records, CAPACITY);
        assert_eq!(summaries.len(), 12);
        let objects = &outcome.records.objects;
        assert_eq!(objects.len(), 5 * 150);
        assert_eq!(objects.iter().map(|object| object.bytes).sum::<u64>(), 5 * tree.bytes);
        // Each round creates and empties three directories.
        assert_eq!(objects.iter().map(|object| object.made_directories).sum::<u16>(), 5 * 3);
        let sizes = |phase: u8| -> Vec<u64> {
            let puts = outcome.records.operations.iter().filter(|op| (op.lane, op.phase) == (1, phase));
            puts.map(|op| op.bytes).collect()
        };
        // The put and get operations have the same sizes, in the same order, as the object records.
        let said: Vec<u64> = objects.iter().map(|object| object.bytes).collect();
        assert_eq!((sizes(0), sizes(3)), (said.clone(), said));
        for summary in &summaries {
            let files = if summary.phase == "list" { 3 } else { 150 - u64::from(summary.phase == "range") };
            assert_eq!((summary.operations, summary.errors), (5 * files, 0), "{}", summary.phase);
            let bytes = match summary.phase.as_str() {
                "put" | "get" => 5 * tree.bytes,
                "range" => 5 * tree.items.iter().map(|item| item.body.len().min(100) as u64).sum::<u64>(),
                _ => 0,
            };
            assert_eq!(summary.bytes, bytes, "{}", summary.phase);
            assert_eq!(summary.ratio.is_some(), summary.lane == "memory");
            assert_eq!(summary.server_cpu_ns_per_op, None);
        }
    }
    targets.iter().for_each(|target| target.clean_up().unwrap());
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

/// Files that are larger than a block must not make the threads take turns.
#[test]
fn threads_work_at_the_same_time_on_large_files() {
    let items = (0..8)
        .map(|i| TreeFile { key: Key::new(format!("f{i}")).unwrap(), body: vec![i as u8; 12 << 20] })
        .collect();
    let tree = FileTree { items, bytes: 8 * (12 << 20), warnings: vec![] };
    let slow = || DelayInjectingTarget::new(Box::new(memory("memory")), Duration::from_millis(20));
    let targets: Vec<Box<dyn MeasuredTarget>> = vec![Box::new(slow())];
    let plan = ComparePlan { threads: 4, rounds: 1, warm_up: 0, ..PLAN };
    let records = compare(&plan, &tree, &targets).unwrap().records;
    for phase in [ComparePhase::Put, ComparePhase::Get] {
        let operations: Vec<_> = records.operations.iter().filter(|op| op.phase == phase as u8).collect();
        let threads: Vec<u16> = operations.iter().map(|op| op.thread).collect();
        assert_eq!(threads, [0, 1, 2, 3, 0, 1, 2, 3]);
        for block in operations.chunks(4) {
            let last_start = block.iter().map(|op| op.start_ns).max();
            let first_end = block.iter().map(|op| op.start_ns + op.duration_ns).min();
            assert!(last_start < first_end, "{block:?}");
        }
    }
}

/// Children must perform every operation exactly once, in the order of the records. Their failures must be reported,
/// and an error that would affect every later operation must end the run.
#[test]
fn children_share_the_work() {
    let dir = tempfile::tempdir().unwrap();
    let posix = |name: &str| PosixTarget::new(&dir.path().join(name), SyncLevel::Nothing).unwrap();
    let targets: Vec<Box<dyn MeasuredTarget>> = vec![Box::new(posix("one")), Box::new(posix("other"))];
    let plan = ComparePlan { clients: CompareClients::Children(3), threads: 2, ..PLAN };
    let tree = tree(500);
    let outcome = compare(&plan, &tree, &targets).unwrap();
    assert_eq!(outcome.failures, Vec::<String>::new());
    let puts: Vec<_> = outcome.records.operations.iter().filter(|op| (op.lane, op.phase) == (1, 0)).collect();
    let sizes: Vec<u64> = puts.iter().map(|op| op.bytes).collect();
    assert_eq!(sizes, outcome.records.objects.iter().map(|object| object.bytes).collect::<Vec<_>>());
    let threads: std::collections::BTreeSet<u16> = puts.iter().map(|op| op.thread).collect();
    assert_eq!(threads.into_iter().collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
    assert!(outcome.records.blocks.iter().all(|block| block.client_cpu_ns > 0 && block.elapsed_ns > 0));
    targets.iter().for_each(|target| target.clean_up().unwrap());
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);

    let plan = ComparePlan { clients: CompareClients::Children(2), ..PLAN };
    let refused =
        compare(&plan, &tree, &[refuses("full", 0, ErrorKind::NoSpace)]).expect_err("the puts fail");
    assert_eq!(refused.kind(), ErrorKind::NoSpace);
    assert!(refused.to_string().contains("a client process"), "{refused}");
}

/// Files below the directory are removed from the page cache before each phase that reads content, even in the warm-up
/// round.
#[test]
fn content_is_cold_when_it_is_read() {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let posix = PosixTarget::new(&dir.path().join("posix"), SyncLevel::Nothing).unwrap();
    let plan = ComparePlan { cold: Some(dir.path().to_owned()), rounds: 1, ..PLAN };
    let tree = tree(20);
    let eviction = compare(&plan, &tree, &[Box::new(posix)]).unwrap().eviction.unwrap();
    assert_eq!((eviction.files, eviction.bytes), (4 * 20, 4 * tree.bytes));
    match check_eviction(dir.path()) {
        Ok(()) => assert_eq!(eviction.remaining_bytes, 0),
        Err(kept) => {
            assert_eq!(kept.kind(), ErrorKind::InvalidArgument, "{kept}");
            assert_eq!(eviction.remaining_bytes, eviction.bytes);
        }
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "only the empty directory of the target");
    assert_eq!(compare(&PLAN, &tree, &[Box::new(memory("memory"))]).unwrap().eviction, None);
}

/// Returns the mean latency of a lane over all phases.
fn mean_ns(operations: &[OperationRecord], lane: u8) -> f64 {
    let durations: Vec<u64> =
        operations.iter().filter(|op| op.lane == lane).map(|op| op.duration_ns).collect();
    durations.iter().sum::<u64>() as f64 / durations.len() as f64
}

/// The records must reproduce the actual sleeping time to within 5 %.
#[test]
fn an_injected_delay_is_recovered() {
    let delayed = DelayInjectingTarget::new(Box::new(memory("memory")), Duration::from_millis(1));
    let log = delayed.log();
    let targets: Vec<Box<dyn MeasuredTarget>> = vec![Box::new(memory("memory")), Box::new(delayed)];
    let plan = ComparePlan { warm_up: 0, ..PLAN };
    let outcome = compare(&plan, &tree(40), &targets).unwrap();
    let recovered = mean_ns(&outcome.records.operations, 1) - mean_ns(&outcome.records.operations, 0);
    let logged = log.mean_ns().unwrap();
    assert!((recovered / logged - 1.0).abs() < 0.05, "{recovered} ns of {logged} ns");
    let summaries = summarise(&lanes(&targets), &outcome.records, CAPACITY);
    let slow = summaries.iter().find(|row| row.phase == "get" && row.lane == "memory+delay").unwrap();
    assert_eq!(slow.ratio.as_ref().unwrap().verdict, SpeedVerdict::Slower);
}

/// A target that returns wrong content, and rejects puts after a given number.
struct Liar {
    within: StoreTarget,
    lies: AtomicBool,
    /// The number of puts that still succeed.
    puts: AtomicU64,
    /// The error of all further puts.
    refusal: ErrorKind,
}

impl MeasuredTarget for Liar {
    fn lane(&self) -> &RowDescription {
        self.within.lane()
    }
    fn put(&self, key: &Key, body: &[u8]) -> Result<()> {
        let is_allowed = |left: u64| left.checked_sub(1);
        match self.puts.fetch_update(Ordering::Relaxed, Ordering::Relaxed, is_allowed) {
            Err(_) => Err(Error::new(self.refusal, "no more puts")),
            Ok(_) => self.within.put(key, body),
        }
    }
    fn list(&self) -> Result<Vec<(String, u64)>> {
        self.within.list()
    }
    fn head(&self, key: &Key) -> Result<u64> {
        self.within.head(key)
    }
    fn get(&self, key: &Key, buffer: &mut Vec<u8>) -> Result<()> {
        // Every second get leaves the buffer unchanged, like a read that has no effect.
        match self.lies.fetch_xor(true, Ordering::Relaxed) {
            true => Ok(()),
            false => self.within.get(key, buffer),
        }
    }
    fn get_range(&self, key: &Key, _: u64, len: u64, buffer: &mut Vec<u8>) -> Result<()> {
        self.within.get_range(key, 0, len, buffer)
    }
    fn delete(&self, key: &Key) -> Result<()> {
        self.within.delete(key)
    }
    fn clean_up(&self) -> Result<()> {
        self.within.clean_up()
    }
}

#[test]
fn wrong_content_is_counted_not_measured() {
    let lies = AtomicBool::new(true);
    let (puts, refusal) = (AtomicU64::new(u64::MAX), ErrorKind::Internal);
    let liar = Liar { within: memory("liar"), lies, puts, refusal };
    let targets: Vec<Box<dyn MeasuredTarget>> = vec![Box::new(liar)];
    let outcome = compare(&PLAN, &tree(80), &targets).unwrap();
    let summaries = summarise(&lanes(&targets), &outcome.records, CAPACITY);
    let get = summaries.iter().find(|row| row.phase == "get").unwrap();
    assert!(get.errors >= 190, "{} of 400 lies were found", get.errors);
    assert!(outcome.failures[0].contains("content that differs from the source"), "{:?}", outcome.failures);
}

#[test]
fn a_full_disk_ends_the_run_with_its_own_message() {
    let error =
        compare(&PLAN, &tree(3), &[refuses("full", 0, ErrorKind::NoSpace)]).expect_err("the puts fail");
    assert_eq!((error.kind(), error.detail()), (ErrorKind::NoSpace, "no more puts"));
}

/// Returns a target that accepts `puts` puts, and rejects all further puts with the error `refusal`.
fn refuses(name: &str, puts: u64, refusal: ErrorKind) -> Box<dyn MeasuredTarget> {
    let puts = AtomicU64::new(puts);
    Box::new(Liar { within: memory(name), lies: AtomicBool::new(false), puts, refusal })
}

/// Servers are started again between rounds. If one does not start, the rounds that were complete before remain in the
/// results.
#[test]
fn servers_are_started_again_between_rounds() {
    let (tree, stop) = (tree(3), AtomicBool::new(false));
    let targets: Vec<Box<dyn MeasuredTarget>> = vec![Box::new(memory("memory"))];
    let compare = |refused: u32| {
        let mut started = 0;
        let mut renew = || {
            started += 1;
            if started == refused { Err(ErrorKind::Unavailable.into()) } else { Ok(()) }
        };
        let outcome = run(&PLAN, &tree, &targets, &stop, &mut renew, &mut |_| {});
        (outcome, started)
    };
    let (outcome, started) = compare(0);
    assert_eq!((outcome.unwrap().failures.len(), started), (0, u32::from(PLAN.warm_up + PLAN.rounds) - 1));
    let (outcome, _) = compare(u32::from(PLAN.warm_up) + 2);
    let end = outcome.unwrap().early_end.expect("a server did not start");
    assert_eq!((end.rounds, end.error.kind()), (2, ErrorKind::Unavailable));
    assert_eq!(compare(1).0.expect_err("no round is complete").kind(), ErrorKind::Unavailable);
}

/// If a server stops answering, the rounds that were complete before must remain in the results.
#[test]
fn an_unreachable_server_does_not_lose_the_complete_rounds() {
    let complete = u64::from(PLAN.warm_up) + 2;
    let target = refuses("gone", complete * 3 + 1, ErrorKind::Unavailable);
    let outcome = compare(&PLAN, &tree(3), &[target]).unwrap();
    let end = outcome.early_end.expect("the puts fail");
    assert_eq!((end.rounds, end.error.kind()), (2, ErrorKind::Unavailable));
    assert!(end.warning(PLAN.rounds).contains("no more puts"));
    assert!(outcome.records.operations.iter().all(|operation| operation.round < 2));
    // If no recorded round is complete, the error is returned.
    let target = refuses("gone", complete + 1, ErrorKind::Unavailable);
    assert_eq!(compare(&PLAN, &tree(3), &[target]).expect_err("no round").kind(), ErrorKind::Unavailable);
}

#[test]
fn a_request_to_stop_is_heeded_within_a_block() {
    let stop = AtomicBool::new(false);
    let mut blocks = 0;
    let mut progress = |_| {
        blocks += 1;
        stop.store(true, Ordering::Relaxed);
    };
    let targets: Vec<Box<dyn MeasuredTarget>> = vec![Box::new(memory("memory"))];
    let error =
        run(&PLAN, &tree(200), &targets, &stop, &mut || Ok(()), &mut progress).expect_err("it was stopped");
    assert_eq!((error.kind(), blocks), (ErrorKind::Interrupted, 1));
}

#[test]
fn an_interrupted_comparison_keeps_its_complete_rounds() {
    let stop = AtomicBool::new(false);
    let plan = ComparePlan { rounds: 1_000, ..PLAN };
    let mut progress = |at: CompareProgress| {
        let is_late = at.round == plan.warm_up + 3 && at.phase == ComparePhase::Get;
        stop.store(is_late, Ordering::Relaxed);
    };
    let targets: Vec<Box<dyn MeasuredTarget>> = vec![Box::new(memory("memory"))];
    let outcome = run(&plan, &tree(50), &targets, &stop, &mut || Ok(()), &mut progress).unwrap();
    assert_eq!(outcome.early_end.as_ref().map(|end| end.rounds), Some(3));
    let rounds: std::collections::BTreeSet<u16> =
        outcome.records.blocks.iter().map(|block| block.round).collect();
    assert_eq!(rounds, (0..3).collect());
    assert!(outcome.records.operations.iter().all(|operation| operation.round < 3));
    assert!(outcome.records.objects.iter().all(|object| object.round < 3));
    assert_eq!(summarise(&lanes(&targets), &outcome.records, CAPACITY)[0].operations, 150);
}
