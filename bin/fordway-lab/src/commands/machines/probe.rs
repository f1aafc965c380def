//! The built-in measurements of `machines probe`: a disk (through its file system), the processor's clock, the memory
//! bandwidth, and the network. Without a peer, the network is the loopback interface.

use std::collections::BTreeSet;
use std::fs;
use std::hint::black_box;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fordway_command::{InterruptFlag, file_error};
use fordway_http::{HttpClient, HttpExchangeRequest, HttpVersion, Origin, ReplayPolicy, Timeouts, TlsRoots};
use fordway_machine::doctor::{SystemTree, memory_limit_bytes};
use fordway_measure::{FileSystem, Machine, bytes_text, median};
use fordway_store::{Error, ErrorKind, Result};
use fordway_sys::{drop_cached, reference_cycles, tcp_info};
use fordway_wire::size_text::parse_bytes;
use rustix::net::sockopt::{ip_mtu, ipv6_mtu};

use super::ProbedQuantity;

const DISK_FILE_BYTES: u64 = 256 << 20;
const DISK_PIECE_BYTES: usize = 1 << 20;

/// Measures the disk of `dir`. Errors: the errors of writing to `dir`.
pub(super) fn disk(dir: Option<&Path>) -> Result<Vec<ProbedQuantity>> {
    let names = ["disk_write", "disk_read"];
    let Some(dir) = dir else {
        return Ok(names
            .map(|name| ProbedQuantity::unknown(name, "MB/s", "give a directory with --disk"))
            .into());
    };
    let (written, read) = measure_disk(dir).map_err(|error| file_error("measuring", dir.display(), error))?;
    let kind = FileSystem::of("disk", dir).map_or("a file system".to_owned(), |found| found.kind);
    let place = format!("256 MiB in blocks of 1 MiB in {} ({kind})", dir.display());
    let rate = |elapsed: Duration| DISK_FILE_BYTES as f64 / elapsed.as_micros().max(1) as f64;
    let mut found =
        vec![ProbedQuantity::new(names[0], rate(written), "MB/s", format!("{place}, fdatasync included"))];
    found.push(match kind.as_str() {
        "tmpfs" | "ramfs" => ProbedQuantity::unknown(names[1], "MB/s", "tmpfs has no disk to read from"),
        _ => ProbedQuantity::new(
            names[1],
            rate(read),
            "MB/s",
            format!("{place}, after the page cache was dropped"),
        ),
    });
    Ok(found)
}

/// Returns the times taken to write a file and to read it back. Removes the file.
fn measure_disk(dir: &Path) -> std::io::Result<(Duration, Duration)> {
    let file = tempfile::Builder::new().prefix("fordway-probe-").tempfile_in(dir)?;
    let mut piece = vec![0; DISK_PIECE_BYTES];
    let mut random = fordway_measure::SeededRandom::new(1);
    // The bytes are random, because some disks and file systems skip or compress zeros.
    piece.chunks_mut(8).for_each(|bytes| bytes.copy_from_slice(&random.next_u64().to_le_bytes()));
    let since = Instant::now();
    for _ in 0..DISK_FILE_BYTES / DISK_PIECE_BYTES as u64 {
        file.as_file().write_all(&piece)?;
    }
    file.as_file().sync_data()?;
    let written = since.elapsed();
    drop_cached(file.as_file())?;
    let (since, mut again) = (Instant::now(), std::fs::File::open(file.path())?);
    while again.read(&mut piece)? > 0 {}
    Ok((written, since.elapsed()))
}

/// The time for which the counter is compared with the clock. This time is long enough for a relative error below 1e-6.
const CALIBRATION: Duration = Duration::from_millis(100);
/// The size, in bytes, of each of a thread's two buffers. This size is larger than the caches.
const BUFFER_BYTES: usize = 128 << 20;
/// The number of copies of the buffer; as in STREAM, the result is the rate of the fastest copy.
const COPIES: usize = 5;

/// Measures R, the frequency of reference cycles.
pub(super) fn reference_clock() -> ProbedQuantity {
    let (name, unit) = ("R", "MHz");
    let (Some(before), since) = (reference_cycles(), Instant::now()) else {
        return ProbedQuantity::unknown(
            name,
            unit,
            "this processor's counter does not count reference cycles",
        );
    };
    std::thread::sleep(CALIBRATION);
    let (after, elapsed) = (reference_cycles().unwrap_or_default(), since.elapsed());
    let mhz = after.wrapping_sub(before) as f64 / elapsed.as_nanos() as f64 * 1e3;
    ProbedQuantity::new(name, mhz, unit, "time-stamp counter against the monotonic clock over 100 ms")
}

/// Returns the memory that this process may use, in bytes: the machine's memory, or the smallest limit of its control
/// groups. A process that exceeds such a limit is killed.
pub(super) fn usable_memory_bytes(machine: &Machine) -> Option<u64> {
    machine.memory_bytes.into_iter().chain(memory_limit_bytes(&SystemTree::at("/"))).min()
}

/// Checks that a measurement needs at most a quarter of the usable memory. Errors: the reason why it needs too much.
fn check_memory(wanted: u64, usable: Option<u64>) -> std::result::Result<(), String> {
    match usable {
        Some(usable) if wanted <= usable / 4 => Ok(()),
        _ => {
            let usable = usable.map_or("an unknown size".to_owned(), bytes_text);
            let wanted = bytes_text(wanted);
            Err(format!("it takes {wanted} of memory, more than a quarter of the usable memory ({usable})"))
        }
    }
}

/// Measures the number of bytes that copies in memory read and write per second, with one thread and with one thread
/// for each processor. Errors: `Interrupted`.
pub(super) fn memory_bandwidth(
    threads: usize,
    usable: Option<u64>,
    interrupt: &InterruptFlag,
) -> Result<Vec<ProbedQuantity>> {
    let of = |name: &'static str, threads: usize, who: String| -> Result<ProbedQuantity> {
        if let Err(why) = check_memory(2 * (BUFFER_BYTES * threads) as u64, usable) {
            return Ok(ProbedQuantity::unknown(name, "MB/s", why));
        }
        let size = bytes_text(BUFFER_BYTES as u64);
        let how = format!("copies of {size} by {who}, bytes read and written, the fastest of {COPIES}");
        Ok(ProbedQuantity::new(name, copy_mb_per_s(threads, interrupt)?, "MB/s", how))
    };
    Ok(vec![
        of("mem_tp", 1, "one thread".to_owned())?,
        of("mem_tp_all", threads, format!("{threads} threads at once"))?,
    ])
}

/// Returns the rate of the fastest round of copies by `threads` threads at once. Errors: `Interrupted`.
fn copy_mb_per_s(threads: usize, interrupt: &InterruptFlag) -> Result<f64> {
    let fastest = fastest_round((threads, COPIES), interrupt, || {
        let (from, mut to) = (vec![1u8; BUFFER_BYTES], vec![2u8; BUFFER_BYTES]);
        move || {
            to.copy_from_slice(black_box(&from));
            black_box(&to);
        }
    })?;
    Ok((2 * BUFFER_BYTES * threads) as f64 / fastest.as_micros().max(1) as f64)
}

/// Returns the duration of the fastest round. In a round, `threads` threads run at once, each with its own closure from
/// `make`. A round lasts until its slowest thread has finished. Errors: `Interrupted`, at the end of a round.
pub(super) fn fastest_round<W: FnMut()>(
    (threads, rounds): (usize, usize),
    interrupt: &InterruptFlag,
    make: impl Fn() -> W + Sync,
) -> Result<Duration> {
    let (barrier, is_over) = (std::sync::Barrier::new(threads), AtomicBool::new(false));
    let measure = || {
        let mut work = make();
        let mut round = || {
            // One thread decides for all, because the others would wait for a thread that has stopped.
            if barrier.wait().is_leader() {
                is_over.store(interrupt.is_raised(), Ordering::Relaxed);
            }
            barrier.wait();
            if is_over.load(Ordering::Relaxed) {
                return None;
            }
            let since = Instant::now();
            work();
            barrier.wait();
            Some(since.elapsed())
        };
        (0..rounds).map_while(|_| round()).collect::<Vec<_>>()
    };
    let times = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(measure)).collect();
        let joined = workers.into_iter().map(|worker| worker.join());
        joined.map(|times| times.unwrap_or_else(|e| std::panic::resume_unwind(e))).collect::<Vec<_>>()
    });
    if is_over.into_inner() {
        return Err(ErrorKind::Interrupted.into());
    }
    let slowest = |round: usize| times.iter().map(|of_thread| of_thread[round]).max();
    Ok((0..rounds).filter_map(slowest).min().unwrap_or_default())
}

/// The rule of STREAM: each array is at least four times as large as the last-level caches.
const TIMES_CACHE: u64 = 4;
/// The minimum size of each array, even if caches are small or unknown. With smaller arrays, the time of a round would
/// mainly consist of the synchronization of threads.
const ARRAY_BYTES_MIN: u64 = 64 << 20;
/// The number of rounds; as in STREAM, the result is the rate of the fastest round.
const ROUNDS: usize = 10;
const Q: f64 = 3.0;
const CPUS: &str = "/sys/devices/system/cpu";

/// The amount of work in a triad.
pub(super) struct StreamTriadParameters {
    array_bytes: u64,
    cache_bytes: Option<u64>,
    threads: usize,
}

impl StreamTriadParameters {
    /// Chooses the amount of work for this machine. Errors: `InvalidArgument` if the arrays need more than a quarter of
    /// the `usable` memory.
    pub(super) fn of(machine: &Machine, usable: Option<u64>) -> Result<Self> {
        let cache_bytes = last_level_cache_bytes(Path::new(CPUS));
        let array_bytes = (TIMES_CACHE * cache_bytes.unwrap_or(0)).max(ARRAY_BYTES_MIN);
        check_memory(3 * array_bytes, usable).map_err(|why| Error::new(ErrorKind::InvalidArgument, why))?;
        Ok(StreamTriadParameters { array_bytes, cache_bytes, threads: machine.cpus_at_once() })
    }

    pub(super) fn how(&self) -> String {
        let cache = match self.cache_bytes {
            Some(bytes) => format!("last-level cache {}", bytes_text(bytes)),
            None => "the kernel does not report the cache size".to_owned(),
        };
        let (threads, array) = (self.threads, bytes_text(self.array_bytes));
        format!("triad on {threads} threads, 3 arrays of {array} ({cache}), the fastest of {ROUNDS}")
    }

    /// Measures the number of MB that the triad reads and writes per second. Errors: `Interrupted`.
    pub(super) fn mb_per_s(&self, interrupt: &InterruptFlag) -> Result<f64> {
        let length = (self.array_bytes / 8) as usize / self.threads;
        let fastest = fastest_round((self.threads, ROUNDS), interrupt, || {
            // Each thread allocates its own arrays, so that they are in the memory of its NUMA node.
            let (mut a, b, c) = (vec![1.0f64; length], vec![2.0; length], vec![0.5; length]);
            move || {
                let (b, c) = (black_box(&b), black_box(&c));
                a.iter_mut().zip(b).zip(c).for_each(|((a, b), c)| *a = b + Q * c);
                black_box(&a);
            }
        })?;
        Ok((3 * 8 * length * self.threads) as f64 / fastest.as_micros().max(1) as f64)
    }
}

/// Returns the total size of all last-level caches; `None` if the kernel does not list them.
fn last_level_cache_bytes(cpus: &Path) -> Option<u64> {
    let mut caches = BTreeSet::new();
    for cpu in fs::read_dir(cpus).ok()?.flatten() {
        for cache in fs::read_dir(cpu.path().join("cache")).into_iter().flatten().flatten() {
            let read = |name| fs::read_to_string(cache.path().join(name)).map(|text| text.trim().to_owned());
            let (Ok(level), Ok(size), Ok(shared)) = (read("level"), read("size"), read("shared_cpu_list"))
            else {
                continue;
            };
            // The kernel writes sizes such as 32768K.
            let size = parse_bytes(&size.replace('K', "KiB").replace('M', "MiB")).ok();
            caches.insert((level.parse::<u8>().ok()?, shared, size?));
        }
    }
    let last = caches.iter().map(|(level, ..)| *level).max()?;
    Some(caches.iter().filter(|(level, ..)| *level == last).map(|(.., size)| size).sum())
}

/// The number of connections whose round-trip time is read.
const CONNECTIONS: usize = 11;
/// The maximum size of a transfer that measures the bandwidth, in bytes.
const TRANSFER_BYTES_MAX: u64 = 1 << 30;
/// The maximum duration of a transfer.
const TRANSFER_TIME_MAX: Duration = Duration::from_secs(5);
const TRANSFER_PIECE_BYTES: usize = 1 << 20;
/// The minimum size of a transfer, in bytes. A smaller transfer would measure the start of a connection rather than the
/// bandwidth.
const TRANSFER_BYTES_MIN: u64 = 1 << 20;

/// Measures the network. Errors: `Unavailable` if nothing responds at `peer`; `InvalidArgument` if `peer` is an invalid
/// URL.
pub(super) fn network(peer: Option<&str>) -> Result<Vec<ProbedQuantity>> {
    let Some(peer) = peer else { return loopback() };
    if !peer.contains("://") {
        let mut quantities = connection(peer, peer)?;
        let why = "HOST:PORT has no object to fetch; give the URL of one with --peer http://...";
        quantities.push(ProbedQuantity::unknown("eBW", "MB/s", why));
        return Ok(quantities);
    }
    let (origin, path) = Origin::parse(peer)?;
    let mut quantities = connection(&format!("{}:{}", origin.host, origin.port), &origin.to_string())?;
    quantities.push(download(&origin, &path)?);
    Ok(quantities)
}

fn unreachable(peer: &str, error: std::io::Error) -> Error {
    let why = format!("no connection to {peer}; check the host and that the port is open");
    Error::new(ErrorKind::Unavailable, why).caused_by(error)
}

/// Reads the round-trip time, the MSS and the MTU of connections to `place` (host and port) from the kernel.
fn connection(place: &str, peer: &str) -> Result<Vec<ProbedQuantity>> {
    let (mut rtts_us, mut mss, mut mtu) = (Vec::new(), None, None);
    for _ in 0..CONNECTIONS {
        let stream = TcpStream::connect(place).map_err(|error| unreachable(peer, error))?;
        let info = tcp_info(&stream).map_err(|errno| unreachable(peer, errno.into()))?;
        rtts_us.push(f64::from(info.rtt_us));
        mss = Some(info.mss_bytes);
        let is_v4 = stream.peer_addr().is_ok_and(|address| address.is_ipv4());
        mtu = if is_v4 { ip_mtu(&stream).ok() } else { ipv6_mtu(&stream).ok() };
    }
    let rtt = median(&rtts_us).unwrap_or_default();
    let how = format!("TCP_INFO after the handshake, median of {CONNECTIONS} connections to {peer}");
    let size = |name, value: Option<u32>, how: &str| match value {
        Some(bytes) => ProbedQuantity::new(name, f64::from(bytes), "B", format!("{how}, to {peer}")),
        None => ProbedQuantity::unknown(name, "B", "the kernel does not report it"),
    };
    Ok(vec![
        ProbedQuantity::new("rtt", rtt, "us", how),
        size("mtu", mtu, "IP_MTU: the path MTU, as far as the kernel knows it"),
        size("mss", mss, "TCP_INFO after the handshake"),
    ])
}

/// Measures the bandwidth of downloading an object over one connection.
fn download(origin: &Origin, path: &str) -> Result<ProbedQuantity> {
    let client = HttpClient::new(HttpVersion::Http1, Timeouts::default(), TlsRoots::System);
    let head = format!("GET {path} HTTP/1.1\r\nhost: {}\r\n\r\n", origin.authority());
    let write_head = |out: &mut Vec<u8>| out.extend_from_slice(head.as_bytes());
    let exchange = HttpExchangeRequest {
        origin,
        method: "GET",
        write_head: &write_head,
        body: &[],
        replay: ReplayPolicy::Idempotent,
    };
    let mut response = client.send(&exchange).map_err(|failure| failure.error)?;
    let unknown = |why: String| Ok(ProbedQuantity::unknown("eBW", "MB/s", why));
    if response.status() != 200 {
        return unknown(format!("{origin}{path} returned status {}", response.status()));
    }
    let Some(length) = response.body_bytes().filter(|length| *length >= TRANSFER_BYTES_MIN) else {
        return unknown(format!("{origin}{path} is not an object with a known size of at least 1 MiB"));
    };
    let (since, mut done, mut piece) = (Instant::now(), 0, vec![0; TRANSFER_PIECE_BYTES]);
    while done < length.min(TRANSFER_BYTES_MAX) && since.elapsed() < TRANSFER_TIME_MAX {
        let wanted = (length - done).min(TRANSFER_PIECE_BYTES as u64) as usize;
        response.read_into(&mut piece[..wanted])?;
        done += wanted as u64;
    }
    let how = format!("{} of {origin}{path} on one connection, after its head", bytes_text(done));
    Ok(ProbedQuantity::new("eBW", done as f64 / since.elapsed().as_micros() as f64, "MB/s", how))
}

/// Measures the round-trip time and the bandwidth of the loopback interface.
fn loopback() -> Result<Vec<ProbedQuantity>> {
    let failed = |error| file_error("measuring", "the loopback interface", error);
    let listener = TcpListener::bind("127.0.0.1:0").map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    // The listener's queue is long enough for all connections, so they need not be accepted yet.
    let mut quantities = connection(&address.to_string(), "127.0.0.1")?;
    for _ in 0..CONNECTIONS {
        listener.accept().map_err(failed)?;
    }
    let (done, elapsed) = std::thread::scope(|scope| -> std::io::Result<(u64, Duration)> {
        let sender = scope.spawn(|| send(TcpStream::connect(address)?));
        let (mut stream, _) = listener.accept()?;
        let (since, mut done, mut piece) = (Instant::now(), 0, vec![0; TRANSFER_PIECE_BYTES]);
        loop {
            match stream.read(&mut piece)? {
                0 => break,
                count => done += count as u64,
            }
        }
        let elapsed = since.elapsed();
        sender.join().unwrap_or_else(|e| std::panic::resume_unwind(e))?;
        Ok((done, elapsed))
    })
    .map_err(failed)?;
    let how = format!("{} over one connection on 127.0.0.1, thread to thread", bytes_text(done));
    quantities.push(ProbedQuantity::new("eBW", done as f64 / elapsed.as_micros() as f64, "MB/s", how));
    Ok(quantities)
}

fn send(mut stream: TcpStream) -> std::io::Result<()> {
    let (since, mut left, piece) = (Instant::now(), TRANSFER_BYTES_MAX, vec![1; TRANSFER_PIECE_BYTES]);
    while left > 0 && since.elapsed() < TRANSFER_TIME_MAX {
        stream.write_all(&piece)?;
        left -= TRANSFER_PIECE_BYTES as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    /// Simulates two sockets with two processors each: a cache that several processors share is counted once.
    #[test]
    fn caches_of_the_last_level_are_added() {
        let dir = tempfile::tempdir().unwrap();
        for (cpu, socket) in [(0, "0-1"), (1, "0-1"), (2, "2-3"), (3, "2-3")] {
            let own = cpu.to_string();
            for (index, level, size, shared) in [(0, "1", "48K", own.as_str()), (3, "3", "32768K", socket)] {
                let cache = dir.path().join(format!("cpu{cpu}/cache/index{index}"));
                fs::create_dir_all(&cache).unwrap();
                for (name, text) in [("level", level), ("size", size), ("shared_cpu_list", shared)] {
                    fs::write(cache.join(name), format!("{text}\n")).unwrap();
                }
            }
        }
        assert_eq!(last_level_cache_bytes(dir.path()), Some(64 << 20));
        assert_eq!(last_level_cache_bytes(&dir.path().join("cpu0")), None);
        assert_eq!(last_level_cache_bytes(&dir.path().join("missing")), None);
    }

    #[test]
    fn a_machine_without_the_memory_is_told() {
        let machine = Machine { cpus: 1, memory_bytes: Some(1 << 40), ..Machine::default() };
        // A control group may allow less than the machine has.
        let error = StreamTriadParameters::of(&machine, Some(1 << 20)).err().expect("it was measured");
        assert!(error.to_string().contains("more than a quarter"), "{error}");
        let go_on = InterruptFlag::default();
        let copies = memory_bandwidth(4, Some(256 << 20), &go_on).unwrap();
        assert!(copies.iter().all(|copy| copy.value.is_none() && copy.how.contains("256 MiB")));
        // One thread needs less memory than all threads.
        let copies = memory_bandwidth(1 << 20, Some(1 << 30), &go_on).unwrap();
        assert!(copies[0].value.is_some() && copies[1].value.is_none());
        assert!(usable_memory_bytes(&machine).is_some_and(|bytes| bytes <= 1 << 40));
        let triad = StreamTriadParameters { array_bytes: 1 << 16, cache_bytes: None, threads: 2 };
        assert!(triad.mb_per_s(&go_on).unwrap() > 0.0 && triad.how().contains("3 arrays of 64.0 KiB"));
    }

    #[test]
    fn a_signal_ends_the_measurement_after_the_round() {
        let (interrupt, rounds) = (InterruptFlag::default(), AtomicUsize::new(0));
        let ended = fastest_round((3, 1_000), &interrupt, || {
            || {
                if rounds.fetch_add(1, Ordering::Relaxed) == 3 {
                    interrupt.raise();
                }
            }
        });
        assert_eq!(ended.unwrap_err().kind(), ErrorKind::Interrupted);
        assert_eq!(rounds.into_inner(), 6, "three threads began a third round");
    }
}
