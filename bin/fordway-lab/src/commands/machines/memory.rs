//! The processor's clock and its memory.

use std::hint::black_box;
use std::time::{Duration, Instant};

use fordway_measure::{Machine, bytes_text};
use fordway_sys::reference_cycles;

use super::Quantity;

/// How long the counter is checked against the clock: errors are then below one in a million.
const CALIBRATION: Duration = Duration::from_millis(100);
/// Each of the two buffers of a thread: more than caches hold.
const BUFFER_BYTES: usize = 128 << 20;
/// Copies of which the fastest counts, as STREAM has it.
const COPIES: usize = 5;

/// R: the clock at which reference cycles count.
pub(super) fn reference_clock() -> Quantity {
    let (name, unit) = ("R", "MHz");
    let (Some(before), since) = (reference_cycles(), Instant::now()) else {
        return Quantity::unknown(name, unit, "this processor's counter does not count reference cycles");
    };
    std::thread::sleep(CALIBRATION);
    let (after, elapsed) = (reference_cycles().unwrap_or_default(), since.elapsed());
    let mhz = after.wrapping_sub(before) as f64 / elapsed.as_nanos() as f64 * 1e3;
    Quantity::new(name, mhz, unit, "time-stamp counter held against the monotonic clock for 100 ms")
}

/// Bytes read and written per second by copies in memory: by one thread, and by one on each processor.
pub(super) fn bandwidth(machine: &Machine) -> Vec<Quantity> {
    let one = "mem_tp";
    let all = "mem_tp_all";
    let threads = machine.cpus;
    let wanted = 2 * (BUFFER_BYTES * threads) as u64;
    if machine.memory_bytes.is_none_or(|memory| wanted > memory / 4) {
        let why = format!("it takes {} of memory, more than a quarter of what there is", bytes_text(wanted));
        return [one, all].map(|name| Quantity::unknown(name, "MB/s", &*why)).into();
    }
    let how = |who: &str| {
        let size = bytes_text(BUFFER_BYTES as u64);
        format!("copies of {size} by {who}, bytes read and written, the fastest of {COPIES}")
    };
    vec![
        Quantity::new(one, copy_mb_per_s(1), "MB/s", how("one thread")),
        Quantity::new(all, copy_mb_per_s(threads), "MB/s", how(&format!("{threads} threads at once"))),
    ]
}

/// The fastest round of copies by `threads` at once.
fn copy_mb_per_s(threads: usize) -> f64 {
    let fastest = fastest_round(threads, COPIES, || {
        let (from, mut to) = (vec![1u8; BUFFER_BYTES], vec![2u8; BUFFER_BYTES]);
        move || {
            to.copy_from_slice(black_box(&from));
            black_box(&to);
        }
    });
    (2 * BUFFER_BYTES * threads) as f64 / fastest.as_micros().max(1) as f64
}

/// How long the fastest round takes in which `threads` at once do what `make` makes for each of them. A round
/// ends with its last thread.
pub(super) fn fastest_round<W: FnMut()>(
    threads: usize,
    rounds: usize,
    make: impl Fn() -> W + Sync,
) -> Duration {
    let barrier = std::sync::Barrier::new(threads);
    let measure = || {
        let mut work = make();
        let mut round = || {
            barrier.wait();
            let since = Instant::now();
            work();
            barrier.wait();
            since.elapsed()
        };
        (0..rounds).map(|_| round()).collect::<Vec<_>>()
    };
    let times = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(measure)).collect();
        let joined = workers.into_iter().map(|worker| worker.join());
        joined.map(|times| times.unwrap_or_else(|e| std::panic::resume_unwind(e))).collect::<Vec<_>>()
    });
    let slowest = |round: usize| times.iter().map(|of_thread| of_thread[round]).max();
    (0..rounds).filter_map(slowest).min().unwrap_or_default()
}
