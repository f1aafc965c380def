//! Servers on loopback whose behaviour is known.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// What the handlers of all connections counted.
#[derive(Default)]
pub(crate) struct Seen {
    requests: AtomicU64,
    body_bytes: AtomicU64,
}

/// A connection, with what is counted on it.
pub(crate) struct Stream {
    reader: BufReader<TcpStream>,
    seen: Arc<Seen>,
}

/// A server with one thread per connection, which ends with the test.
pub(crate) struct Server {
    address: SocketAddr,
    seen: Arc<Seen>,
    stop: Arc<AtomicBool>,
}

impl Server {
    pub(crate) fn start(handle: impl Fn(Stream) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (seen, stop, handle) =
            (Arc::new(Seen::default()), Arc::new(AtomicBool::new(false)), Arc::new(handle));
        let (of_thread, is_over) = (seen.clone(), stop.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if is_over.load(Ordering::Relaxed) {
                    return;
                }
                let (stream, handle) = (stream.unwrap(), handle.clone());
                stream.set_nodelay(true).unwrap();
                let stream = Stream { reader: BufReader::new(stream), seen: of_thread.clone() };
                std::thread::spawn(move || handle(stream));
            }
        });
        Server { address, seen, stop }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub(crate) fn requests(&self) -> u64 {
        self.seen.requests.load(Ordering::Relaxed)
    }

    pub(crate) fn body_bytes(&self) -> u64 {
        self.seen.body_bytes.load(Ordering::Relaxed)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // Wakes the thread that accepts.
        let _ = TcpStream::connect(self.address);
    }
}

impl Stream {
    /// Reads a request with its body; `false` at the end of the connection.
    fn receive(&mut self) -> bool {
        let (mut length, mut line) = (0, String::new());
        loop {
            line.clear();
            match self.reader.read_line(&mut line) {
                Ok(0) | Err(_) => return false,
                Ok(_) if line == "\r\n" => break,
                Ok(_) => {}
            }
            if let Some(value) = line.strip_prefix("content-length: ") {
                length = value.trim().parse().unwrap();
            }
        }
        let read = std::io::copy(&mut self.reader.by_ref().take(length), &mut std::io::sink()).unwrap();
        self.seen.requests.fetch_add(1, Ordering::Relaxed);
        self.seen.body_bytes.fetch_add(read, Ordering::Relaxed);
        read == length
    }

    fn send(&mut self, bytes: &[u8]) -> bool {
        self.reader.get_mut().write_all(bytes).is_ok()
    }
}

/// An answer with a body of so many bytes.
pub(crate) fn answer(body_bytes: usize) -> Vec<u8> {
    let mut answer =
        format!("HTTP/1.1 200 OK\r\nserver: test\r\ncontent-length: {body_bytes}\r\n\r\n").into_bytes();
    answer.resize(answer.len() + body_bytes, b'x');
    answer
}

/// Answers every request with `bytes`, after a sleep.
pub(crate) fn serve(mut stream: Stream, wait: Duration, bytes: &[u8]) {
    while stream.receive() {
        if !wait.is_zero() {
            std::thread::sleep(wait);
        }
        if !stream.send(bytes) {
            return;
        }
    }
}

/// Answers one request and closes the connection.
pub(crate) fn answer_and_close(mut stream: Stream, bytes: &[u8]) {
    if stream.receive() {
        stream.send(bytes);
    }
}

/// Service of 1 ms, more or less a fifth, with 2 % of 50 ms, all logged as they really were.
#[derive(Clone)]
pub(crate) struct Service(Arc<Mutex<Vec<(Instant, Duration)>>>, Arc<AtomicU64>);

impl Service {
    pub(crate) fn new() -> Self {
        Service(Arc::default(), Arc::new(AtomicU64::new(1)))
    }

    pub(crate) fn serve(&self, mut stream: Stream) {
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
        // A permutation of the counter's bits is random enough, and the same in every run.
        let mut random = self.1.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        random ^= random >> 31;
        random = random.wrapping_mul(0xbf58_476d_1ce4_e5b9);
        random ^= random >> 27;
        if random % 100 < 2 {
            return Duration::from_millis(50);
        }
        Duration::from_nanos(800_000 + (random >> 32) % 400_000)
    }

    /// Service times in the order in which service began.
    pub(crate) fn take_log(&self) -> Vec<Duration> {
        let mut log = std::mem::take(&mut *self.0.lock().unwrap());
        log.sort_unstable_by_key(|(began, _)| *began);
        log.into_iter().map(|(_, took)| took).collect()
    }
}

/// Latencies in a queue of arrivals at equal intervals before `servers`, first come first served; sorted.
pub(crate) fn simulate(service: &[Duration], interval_ns: u64, servers: usize) -> Vec<u64> {
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
