//! Tests what transports send, record and summarize, on a link within this process and on an in-memory store.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use fordway_measure::{LanePhaseResult, Machine, RowDescription, RunDocument};
use fordway_store::Objects as _;
use fordway_store::{Bucket, ETagPolicy, ErrorKind, MemoryStore, PutOptions};
use fordway_workload::summary::RunFileHeader;
use fordway_workload::transport::{
    LinkTransport, MessageBlockResult, MessageBlockTask, MessageExchangePattern, MessageTransport,
    MpiJobHello, MpiJobProcess, ObjectTransport, RemoteTransport, TcpLink, TransportPlan, TransportProgress,
    answer, describe, follow, message_of, run,
};

const SIZES: [u64; 3] = [1, 4096, 3_000_000];

fn lane(name: &str) -> RowDescription {
    RowDescription { name: name.into(), description: String::new() }
}

fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let asks = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (asks, listener.accept().unwrap().0)
}

/// Creates a transport over TCP whose peer is a thread of this process. The thread exits when the link is dropped.
fn tcp(name: &str) -> (LinkTransport<TcpLink>, JoinHandle<()>) {
    let (asks, answers) = pair();
    let other = std::thread::spawn(move || follow(&mut TcpLink::new(answers).unwrap()).unwrap());
    (LinkTransport::new(lane(name), TcpLink::new(asks).unwrap()), other)
}

/// Returns a store with a message of each size. One bit of the message of size `spoilt` is wrong.
fn objects(spoilt: Option<u64>) -> ObjectTransport {
    let (store, bucket) = (MemoryStore::new(ETagPolicy::Fast), Bucket::new("messages").unwrap());
    store.create_bucket(&bucket).unwrap();
    for size in SIZES {
        let mut content = ObjectTransport::content(size);
        if spoilt == Some(size) {
            *content.last_mut().unwrap() ^= 1;
        }
        store.put(&bucket, &message_of(size).unwrap(), &content, &PutOptions::default()).unwrap();
    }
    ObjectTransport::new(lane("memory"), Arc::new(store), bucket, None, 3)
}

fn plan() -> TransportPlan {
    TransportPlan { sizes: SIZES.to_vec(), rounds: 5, messages: 20, block_bytes: 4 << 20, window: 8, seed: 7 }
}

/// Measures `transports`. Returns the run, and the numbers of operations and blocks in the run's records.
fn measured(mut transports: Vec<Box<dyn MessageTransport>>) -> (RunDocument, usize, usize) {
    let lanes = transports.iter().map(|transport| transport.lane().clone()).collect();
    let outcome = run(&plan(), &mut transports, &AtomicBool::new(false), &mut |_| ()).unwrap();
    let header = RunFileHeader {
        machine: Machine { cpus: 2, ..Machine::default() },
        started: String::new(),
        elapsed: Duration::ZERO,
        parameters: serde_json::Map::new(),
        warnings: Vec::new(),
    };
    let run = describe(&plan(), lanes, &outcome, header);
    (run, outcome.records.operations.len(), outcome.records.blocks.len())
}

fn row<'r>(run: &'r RunDocument, phase: &str, lane: &str) -> &'r LanePhaseResult {
    run.summaries.iter().find(|row| (row.phase.as_str(), row.lane.as_str()) == (phase, lane)).unwrap()
}

#[test]
fn every_message_is_recorded_and_right() {
    let (tcp, other) = tcp("tcp");
    let (run, operations, blocks) = measured(vec![Box::new(tcp), Box::new(objects(None))]);
    other.join().unwrap();
    let phases = ["latency 1 B", "latency 4 KiB", "latency 3000000 B", "bandwidth 1 B", "bandwidth 4 KiB"];
    assert_eq!((run.phases.len(), &run.phases[..5]), (9, &phases.map(String::from)[..]));
    // Only links support half round trips.
    assert_eq!(run.summaries.len(), 2 * 6 + 3);
    assert_eq!(blocks, 5 * run.summaries.len());
    // A block has 20, 20 and 1 messages of the three sizes. Latency on two lanes and half round trips on one lane
    // record every message; for bandwidth, a block is one operation.
    assert_eq!(operations, 5 * (3 * (20 + 20 + 1) + 2 * 3));
    for row in &run.summaries {
        let of = row.transfer.as_ref().unwrap();
        assert_eq!((row.errors, row.bytes), (0, of.messages * of.size_bytes), "{} {}", row.phase, row.lane);
        assert_eq!(of.time_ns.is_some(), of.exchange != "bandwidth");
        assert!(of.bytes_per_s.is_some_and(|rate| rate.low > 0.0 && rate.low <= rate.high));
        assert_eq!(of.server_cpu_ns_per_message.is_some(), row.lane == "tcp");
        assert_eq!(row.ratio.is_some(), row.lane == "memory");
        // If messages are sent one after another, the rate must match the time of a message.
        if of.exchange == "half-round-trip" {
            let busy = row.ops_per_s.unwrap() * row.latency.unwrap().mean_ns as f64 / 1e9;
            assert!((0.6..1.05).contains(&busy), "{busy} of the time: {}", row.phase);
            assert!((row.bytes_per_s.unwrap() / row.ops_per_s.unwrap() - of.size_bytes as f64).abs() < 1e-3);
        }
    }
    let of = row(&run, "bandwidth 4 KiB", "tcp").transfer.as_ref().unwrap();
    assert_eq!((of.window, of.messages), (8, 5 * 8 * 10));
    let alone = row(&run, "bandwidth 3000000 B", "memory").transfer.as_ref().unwrap();
    assert_eq!((alone.window, alone.messages), (5, 5 * 5));
}

/// If one bit of a message's content is wrong, the last message of each block with messages of that size counts as an
/// error.
#[test]
fn wrong_bytes_are_errors() {
    let (run, ..) = measured(vec![Box::new(objects(Some(4096)))]);
    let errors: BTreeMap<_, _> = run.summaries.iter().map(|row| (row.phase.as_str(), row.errors)).collect();
    assert_eq!((errors["latency 1 B"], errors["latency 4 KiB"], errors["bandwidth 4 KiB"]), (0, 5, 5));
    assert_eq!(row(&run, "latency 4 KiB", "memory").operations, 5 * 19);
}

#[test]
fn orders_go_to_another_process_and_answers_come_back() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let control = listener.local_addr().unwrap();
    let hello = MpiJobHello {
        implementation: "an MPI".into(),
        sides: [MpiJobProcess::own(), MpiJobProcess { pid: 7, processors: 3 }],
    };
    let said = hello.clone();
    let job = std::thread::spawn(move || {
        let (mut linked, other) = tcp("job");
        answer(control, &said, &mut linked).unwrap();
        drop(linked);
        other.join().unwrap();
    });
    let (mut remote, heard) = RemoteTransport::greet(listener.accept().unwrap().0, "job").unwrap();
    assert_eq!(heard, hello);
    for exchange in MessageExchangePattern::ALL {
        let order = MessageBlockTask { exchange, size_bytes: 1000, window: 1, count: 3, warm_up: 1 };
        let done: MessageBlockResult = remote.carry_out(&order).unwrap();
        assert!(done.is_right && done.elapsed_ns > 0 && done.server_cpu_ns.is_some(), "{done:?}");
        assert_eq!(done.durations_ns.len(), 3);
    }
    drop(remote);
    job.join().unwrap();
}

#[test]
fn a_side_that_is_gone_is_named() {
    let (asks, answers) = pair();
    drop(answers);
    let gone = RemoteTransport::greet(asks, "openmpi-tcp").err().expect("it never said anything");
    assert_eq!(gone.kind(), ErrorKind::Unavailable);
    assert!(gone.to_string().contains("openmpi-tcp ended before it had answered"), "{gone}");
}

#[test]
fn a_side_of_another_version_is_named() {
    let (asks, mut answers) = pair();
    answers.write_all(b"{\"of\": \"last year\"}\n").unwrap();
    let error = RemoteTransport::greet(asks, "openmpi-tcp").err().expect("it is another version");
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.to_string().contains("the fordway-mpi that openmpi-tcp runs"), "{error}");
}

#[test]
fn a_run_can_be_stopped() {
    let stopped = run(&plan(), &mut [Box::new(objects(None))], &AtomicBool::new(true), &mut |_| ());
    assert_eq!(stopped.expect_err("it was asked to stop").kind(), ErrorKind::Interrupted);
}

#[test]
fn a_run_that_is_stopped_keeps_its_complete_rounds() {
    let stop = AtomicBool::new(false);
    let plan = TransportPlan { rounds: 50, ..plan() };
    let mut progress = |at: TransportProgress| stop.store(at.done * 50 > at.total * 2, Ordering::Relaxed);
    let outcome = run(&plan, &mut [Box::new(objects(None))], &stop, &mut progress).unwrap();
    assert_eq!(outcome.interrupted_after, Some(2));
    assert_eq!(outcome.records.blocks.iter().map(|block| block.round).max(), Some(1));
}

#[test]
fn sides_cross_a_link() {
    let side = MpiJobProcess { pid: u32::MAX, processors: 128 };
    assert_eq!(MpiJobProcess::from_bytes(side.to_bytes()), side);
    assert_eq!(MpiJobProcess::own().pid, std::process::id());
}
