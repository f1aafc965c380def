//! Tests the instrument against a simulation. This file contains only one test, because concurrent tests would affect
//! its latencies.

#[path = "bench_rest/command.rs"]
#[allow(dead_code, reason = "shared with other tests")]
mod command;
#[path = "bench_rest/server.rs"]
#[allow(dead_code, reason = "shared with other tests")]
mod server;

use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;

use command::one;
use server::{Server, Stream, answer};

/// Keeps every processor busy with processes of the idle scheduling class, which yield to all other processes. A
/// sleeping virtual processor takes 50 µs or more to wake up. Each request wakes a processor three times: for the
/// client's timer, for the server, and for the client again.
struct Awake(Vec<Child>);

impl Awake {
    fn start() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let busy = |_| {
            let mut command = Command::new("chrt");
            command.args(["--idle", "0", "sh", "-c", "while :; do :; done"]);
            command.stderr(Stdio::null()).spawn().ok()
        };
        Awake((0..processors).filter_map(busy).collect())
    }
}

impl Drop for Awake {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

const CONNECTIONS: usize = 4;
const SECONDS: u64 = 8;
/// The requests per second of the open loop; the server can respond to about 2,000.
const RATE: u64 = 800;
/// The requests per second in the simulation with which the closed loop is compared. This rate is closer to the
/// server's limit than [`RATE`].
const BUSY_RATE: u64 = 1_600;

const SHARES: [(&str, f64); 3] = [("p50_ns", 0.5), ("p99_ns", 0.99), ("p999_ns", 0.999)];

/// The results of one open and one closed loop, and the true latencies, sorted.
struct Measured {
    open: Value,
    closed: Value,
    /// The latencies of a queue with the service times of the open loop, at a request rate of [`RATE`].
    at_rate: Vec<u64>,
    /// The latencies of a queue with the service times of the closed loop, at a request rate of [`BUSY_RATE`].
    when_busy: Vec<u64>,
    /// The open loop's results for a server that responds immediately, before and after the other measurements. The
    /// results show the time that this machine adds to every request.
    nothing: [Value; 2],
}

impl Measured {
    fn measure() -> Self {
        let before = at_once();
        let service = Service::new();
        let of_server = service.clone();
        let server = Server::start(move |stream| of_server.serve(stream));
        let (url, seconds) = (server.url("/x"), format!("{SECONDS}s"));
        let common = [url.as_str(), "--connections", "4", "--duration", &seconds, "--warm-up", "0s"];
        let (_, open) = one(&[&common[..], &["--rate", &RATE.to_string(), "--arrivals", "fixed"]].concat());
        assert_eq!(open["errors"], 0);
        let at_rate = simulate(&service.take_log(), 1_000_000_000 / RATE, CONNECTIONS);
        let (_, closed) = one(&common);
        let when_busy = simulate(&service.take_log(), 1_000_000_000 / BUSY_RATE, CONNECTIONS);
        Measured { open, closed, at_rate, when_busy, nothing: [before, at_once()] }
    }

    /// Returns whether the open loop's result is within the tolerance around the true latencies.
    fn agrees(&self) -> bool {
        SHARES.iter().all(|(name, share)| {
            let (truth, found) = (quantile(&self.at_rate, *share), quantile_ns(&self.open, name));
            found.abs_diff(truth) <= (truth / 20).max(100_000)
        })
    }

    /// Returns whether other processes delay every request so much that the loop and the simulation cannot be expected
    /// to agree. The instrument is not the cause of such delays.
    fn is_disturbed(&self) -> bool {
        self.added_ns("p50_ns") > 80_000 || self.added_ns("p99_ns") > 1_000_000
    }

    /// Returns the time that this machine adds to every request: the larger of the two measurements.
    fn added_ns(&self, quantile: &str) -> u64 {
        self.nothing.iter().map(|result| quantile_ns(result, quantile)).max().unwrap()
    }

    fn told(&self) -> String {
        let (late, nothing) = (&self.open["load"]["lateness"]["p50_ns"], self.added_ns("p50_ns"));
        let mut text = format!("at {RATE}/s; sent {late} ns late; {nothing} ns without service (medians)\n");
        for (name, share) in SHARES {
            let truth = quantile(&self.at_rate, share);
            text += &line(name, truth, "open", quantile_ns(&self.open, name));
            text += &line(name, truth, "closed", quantile_ns(&self.closed, name));
        }
        text += &format!("what users would see at {BUSY_RATE}/s\n");
        for (name, share) in SHARES {
            text += &line(name, quantile(&self.when_busy, share), "closed", quantile_ns(&self.closed, name));
        }
        text
    }
}

/// Returns the open loop's result for a server that responds immediately.
fn at_once() -> Value {
    let quick = Server::start(|stream| server::serve(stream, Duration::ZERO, &answer(100)));
    let common = [&quick.url("/x"), "--connections", "4", "--duration", "3s", "--warm-up", "0s"];
    one(&[&common[..], &["--rate", &RATE.to_string(), "--arrivals", "fixed"]].concat()).1
}

fn quantile(sorted: &[u64], share: f64) -> u64 {
    sorted[((sorted.len() - 1) as f64 * share).round() as usize]
}

/// Formats the latency `found` by `loop_name` next to the simulated `truth`.
fn line(name: &str, truth: u64, loop_name: &str, found: u64) -> String {
    let error = 100.0 * (found as f64 / truth as f64 - 1.0);
    format!("{name}: simulated {truth}, {loop_name} loop {found} ({error:+.1} %)\n")
}

/// The open loop must measure the same latencies as a simulated queue with the server's logged service times.
#[test]
#[allow(clippy::print_stdout, reason = "the figures of the documentation")]
fn the_open_loop_finds_what_a_queue_simulation_says() {
    let _awake = Awake::start();
    let (mut undisturbed, mut last) = (None, String::new());
    for _ in 0..6 {
        let measured = Measured::measure();
        if measured.agrees() {
            let busy = quantile(&measured.when_busy, 0.99);
            assert!(quantile_ns(&measured.closed, "p99_ns") < busy, "{}", measured.told());
            return println!("{}", measured.told());
        }
        last = measured.told();
        if !measured.is_disturbed() {
            undisturbed = Some(last.clone());
        }
    }
    match undisturbed {
        Some(told) => panic!("the open loop does not agree with the simulation:\n{told}"),
        None => fordway_needs::skip(format_args!("other work delays every request on this machine: {last}")),
    }
}

/// A service that takes 50 ms for 2 % of the requests, and 0.8 to 1.2 ms for each other request. The service logs the
/// actual service times.
#[derive(Clone)]
struct Service(Arc<Mutex<Vec<(Instant, Duration)>>>, Arc<AtomicU64>);

impl Service {
    fn new() -> Self {
        Service(Arc::default(), Arc::new(AtomicU64::new(1)))
    }

    fn serve(&self, mut stream: Stream) {
        let bytes = answer(100);
        while stream.receive() {
            let began = Instant::now();
            std::thread::sleep(self.next());
            let done = stream.send(&bytes);
            self.0.lock().unwrap().push((began, began.elapsed()));
            if !done {
                return;
            }
        }
    }

    fn next(&self) -> Duration {
        // A hash of the counter is random enough, and yields the same times in every run.
        let mut random = self.1.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        random ^= random >> 31;
        random = random.wrapping_mul(0xbf58_476d_1ce4_e5b9);
        random ^= random >> 27;
        if random % 100 < 2 {
            return Duration::from_millis(50);
        }
        Duration::from_nanos(800_000 + (random >> 32) % 400_000)
    }

    /// Returns the service times in the order in which service began.
    fn take_log(&self) -> Vec<Duration> {
        let mut log = std::mem::take(&mut *self.0.lock().unwrap());
        log.sort_unstable_by_key(|(began, _)| *began);
        log.into_iter().map(|(_, took)| took).collect()
    }
}

/// Returns the sorted latencies of a first-come-first-served queue with `servers` servers, whose requests arrive at
/// equal intervals.
fn simulate(service: &[Duration], interval_ns: u64, servers: usize) -> Vec<u64> {
    let mut free_at_ns = vec![0_u64; servers];
    let mut latencies: Vec<u64> = service
        .iter()
        .enumerate()
        .map(|(number, service)| {
            let arrival_ns = number as u64 * interval_ns;
            let next = (0..servers).min_by_key(|at| free_at_ns[*at]).unwrap();
            let end_ns = free_at_ns[next].max(arrival_ns) + service.as_nanos() as u64;
            free_at_ns[next] = end_ns;
            end_ns - arrival_ns
        })
        .collect();
    latencies.sort_unstable();
    latencies
}

fn quantile_ns(summary: &Value, name: &str) -> u64 {
    summary["latency"][name].as_u64().unwrap_or_else(|| panic!("no {name} in {summary}"))
}
