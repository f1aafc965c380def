//! Tests request contexts with a C program (`contexts.c`), on each lane, and against servers that count requests or
//! never respond.

mod harness;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use harness::{Lane, Program, run};

const BUCKET: &str = "contexts";
const OBJECT_BYTES: u64 = 1000;

/// The checks for every lane, each with the number of requests to make, or 0 if the check itself determines the number.
const EVERYWHERE: &[(&str, usize)] = &[
    ("all_at_once_by_runall", 300),
    ("all_at_once_by_select", 300),
    ("callbacks_abort", 0),
    ("callbacks_make_requests", 0),
    ("a_callback_destroys_the_context", 0),
    ("destroy_with_callbacks_waiting", 20),
    ("one_thread_drives_and_another_adds", 0),
    ("a_child_process_and_its_parent", 60),
    ("every_kind_of_request", 0),
    ("results_of_uploads", 0),
    ("timeouts_share_connections", 0),
    ("a_callback_drives_a_context_that_is_being_destroyed", 0),
    ("a_callback_refills_a_context_that_is_being_destroyed", 0),
];
const FOR_FILES: &[(&str, usize)] = &[("requests_given_before_a_fork", 0), ("a_turn_is_bounded", 0)];

/// Returns the content of the probe's objects (`pattern` in `probe.h`).
fn pattern(bytes: u64) -> Vec<u8> {
    (0..bytes).map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 29) as u8).collect()
}

/// Runs one check of the program.
fn check(program: &Program, wrapper: &[&str], host: [&str; 3], (point, count): (&str, usize)) {
    let mut command = program.command(wrapper);
    command.args(host).args([BUCKET, point]);
    if count > 0 {
        command.arg(count.to_string());
    }
    assert_eq!(run(&mut command), format!("ok {point}\n"));
}

fn holds(lane: &Lane, program: &Program, wrapper: &[&str], points: &[(&str, usize)]) {
    let bucket = lane.root.path().join(BUCKET);
    std::fs::create_dir_all(&bucket).unwrap();
    std::fs::write(bucket.join("object"), pattern(OBJECT_BYTES)).unwrap();
    for point in points {
        check(program, wrapper, [&lane.host, &lane.access_key, &lane.secret_key], *point);
    }
}

fn plain() -> Program {
    Program::compile("contexts.c", &[])
}

#[test]
fn on_the_embedded_lane() {
    let (lane, program) = (Lane::embedded(), plain());
    holds(&lane, &program, &[], EVERYWHERE);
    holds(&lane, &program, &[], FOR_FILES);
    let url = format!("file://{}", lane.host);
    check(&program, &[], [&url, "", ""], ("timeouts_share_connections", 0));
}

#[test]
fn on_the_http_lane() {
    holds(&Lane::http(), &plain(), &[], EVERYWHERE);
}

#[test]
fn on_the_node_lane() {
    holds(&Lane::node(), &plain(), &[], EVERYWHERE);
}

/// Returns the checks that do not fork. In a forked child, memory owned by the parent's other threads becomes
/// unreachable, which leak checkers report. Locks of the address sanitizer may stay locked in the child.
fn without_fork(points: &[(&'static str, usize)]) -> Vec<(&'static str, usize)> {
    points.iter().copied().filter(|(point, _)| *point != "a_child_process_and_its_parent").collect()
}

#[test]
fn under_the_address_sanitizer() {
    let program = Program::compile("contexts.c", &["-fsanitize=address"]);
    holds(&Lane::embedded(), &program, &[], EVERYWHERE);
    holds(&Lane::http(), &program, &[], &without_fork(EVERYWHERE));
}

#[test]
fn under_valgrind() {
    if fordway_needs::programs(&["valgrind"]) {
        let leaks = "--errors-for-leak-kinds=definite";
        let shown = "--show-leak-kinds=definite";
        let valgrind = ["valgrind", "--quiet", "--leak-check=full", leaks, shown, "--error-exitcode=9"];
        let few: Vec<_> = EVERYWHERE.iter().map(|(point, count)| (*point, count.div_ceil(10))).collect();
        holds(&Lane::embedded(), &plain(), &valgrind, &few);
        holds(&Lane::http(), &plain(), &valgrind, &without_fork(&few));
    }
}

/// A server that returns the same object for every name, but responds only after a given number of requests are in
/// flight.
struct CountingServer {
    address: String,
    flights: Arc<RequestFlights>,
}

struct RequestFlights {
    /// The current number of requests in flight, and the maximum so far.
    counts: Mutex<(usize, usize)>,
    changed: Condvar,
    /// The number of connections so far.
    connections: AtomicUsize,
    /// The number of requests to wait for, or `None` if the server never responds.
    awaited: Option<usize>,
}

impl CountingServer {
    fn start(awaited: Option<usize>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (counts, changed, connections) = (Mutex::default(), Condvar::new(), AtomicUsize::new(0));
        let flights = Arc::new(RequestFlights { counts, changed, connections, awaited });
        let shared = flights.clone();
        std::thread::spawn(move || {
            for connection in listener.incoming() {
                let flights = shared.clone();
                flights.connections.fetch_add(1, Ordering::Relaxed);
                std::thread::spawn(move || flights.serve(connection.unwrap()));
            }
        });
        CountingServer { address, flights }
    }

    fn most(&self) -> usize {
        self.flights.counts.lock().unwrap().1
    }
}

impl RequestFlights {
    fn serve(&self, mut connection: TcpStream) -> Option<()> {
        let content = pattern(OBJECT_BYTES);
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Length: {OBJECT_BYTES}\r\nETag: \"e\"\r\n\
             Last-Modified: Mon, 02 Jan 2023 03:04:05 GMT\r\n\r\n"
        );
        let whole = [head.as_bytes(), &content].concat();
        let mut received = Vec::new();
        loop {
            while !received.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                connection.read_exact(&mut byte).ok()?;
                received.push(byte[0]);
            }
            let answer = if received.starts_with(b"HEAD ") { head.as_bytes() } else { &whole };
            received.clear();
            self.wait();
            connection.write_all(answer).ok()?;
        }
    }

    /// Waits until the expected number of requests are in flight, or until a timeout.
    fn wait(&self) {
        let mut counts = self.counts.lock().unwrap();
        counts.0 += 1;
        counts.1 = counts.1.max(counts.0);
        self.changed.notify_all();
        let patience = Duration::from_secs(if self.awaited.is_some() { 5 } else { 600 });
        let is_missing = |counts: &mut (usize, usize)| self.awaited.is_none_or(|awaited| counts.1 < awaited);
        let (mut counts, _) = self.changed.wait_timeout_while(counts, patience, is_missing).unwrap();
        counts.0 -= 1;
    }
}

#[test]
fn as_many_requests_are_in_flight_as_were_added() {
    let program = plain();
    for (point, count) in [("all_at_once_by_runall", 64), ("all_at_once_by_select", 64)] {
        let server = CountingServer::start(Some(count));
        check(&program, &[], [&server.address, "key", "secret"], (point, count));
        assert_eq!(server.most(), count, "{point}");
    }
}

#[test]
fn requests_with_different_timeouts_share_a_connection() {
    let server = CountingServer::start(Some(1));
    check(&plain(), &[], [&server.address, "key", "secret"], ("timeouts_share_connections", 0));
    assert_eq!(server.flights.connections.load(Ordering::Relaxed), 1);
}

#[test]
fn more_requests_than_threads_all_end() {
    let server = CountingServer::start(Some(256));
    check(&plain(), &[], [&server.address, "key", "secret"], ("all_at_once_by_runall", 1000));
    assert_eq!(server.most(), 256);
}

#[test]
fn nothing_waits_for_a_silent_server() {
    let server = CountingServer::start(None);
    let point = ("nothing_waits_for_a_silent_server", 64);
    check(&plain(), &[], [&server.address, "key", "secret"], point);
    if fordway_needs::programs(&["valgrind"]) {
        let valgrind = ["valgrind", "--quiet", "--leak-check=full", "--errors-for-leak-kinds=definite"];
        let valgrind = [&valgrind[..], &["--error-exitcode=9"]].concat();
        check(&plain(), &valgrind, [&server.address, "key", "secret"], (point.0, 8));
    }
}

/// If no worker thread can be started, requests take longer but succeed.
#[test]
fn without_threads_the_driving_thread_does_it_all() {
    let lane = Lane::http();
    // No thread can have a stack this large.
    let no_threads = ["env", "RUST_MIN_STACK=70368744177664"];
    holds(&lane, &plain(), &no_threads, &[("all_at_once_by_select", 300), ("every_kind_of_request", 0)]);
}
