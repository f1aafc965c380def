//! Restarts the gateway and the client many times. At each start, the kernel chooses a processor for each process, and
//! the process often stays on this processor.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use fordway_measure::{median, ns_text};
use fordway_store::{GetOptions, Key, Objects};
use fordway_sys::process_usage;

use crate::{LEAVES_CLIENT, SMALL, ServerProcess, bucket, filled_root, node_store, small};

/// The number of calls that are timed together as one sample.
const BLOCK: usize = 200;
/// The duration of each operation's warm-up, and of its measurement.
const PHASE: Duration = Duration::from_millis(300);
/// The highest accepted ratio of the slowest to the fastest start, with the gateway's default settings.
const RATIO_MAX: f64 = 1.3;
const OPERATIONS: [&str; 2] = ["4 KiB get", "head"];

/// The time of a call in nanoseconds, and how often the client sleeps per call.
#[derive(Clone, Copy)]
struct CallTimingAfterStart {
    call_ns: f64,
    sleeps: f64,
}

/// Starts the gateway and a client `STARTS` times (20 by default) in each of two modes, alternately: the gateway's
/// threads leave their client's processor, or stay on it. Errors: in the default mode, the slowest start takes more
/// than [`RATIO_MAX`] times as long as the fastest.
pub(crate) fn run() -> Result<()> {
    let starts = std::env::var("STARTS").map_or(Ok(20), |starts| starts.parse())?;
    let (dir, root) = filled_root()?;
    // The first index is 1 if threads leave their client's processor, and 0 otherwise. The second index is the
    // operation.
    let mut found: [[Vec<CallTimingAfterStart>; 2]; 2] = Default::default();
    for _ in 0..starts {
        for (leaves, of_kind) in [("0", 0), ("1", 1)] {
            let gateway = ServerProcess::start("gateway", &root, dir.path(), &[(LEAVES_CLIENT, leaves)])?;
            for (figures, all) in one_start(&gateway.socket)?.into_iter().zip(&mut found[of_kind]) {
                all.push(figures);
            }
        }
    }
    println!(
        "{starts} starts of gateway and client: the time of a call, and how often the client sleeps per call"
    );
    println!("{:34} {:>9} {:>9} {:>9} {:>6}  sleeps", "", "fastest", "median", "slowest", "ratio");
    let mut holds = true;
    for (name, kinds, is_default) in [("threads stay", &found[0], false), ("threads leave", &found[1], true)]
    {
        for (operation, all) in OPERATIONS.iter().zip(kinds) {
            let ratio = row(&format!("{operation}, {name}"), all)?;
            holds &= ratio <= RATIO_MAX || !is_default;
        }
    }
    ensure!(holds, "the slowest start takes more than {RATIO_MAX} times as long as the fastest");
    Ok(())
}

/// Prints the figures of all starts. Returns the ratio of the slowest start to the fastest.
fn row(name: &str, all: &[CallTimingAfterStart]) -> Result<f64> {
    let mut sorted = all.to_vec();
    sorted.sort_by(|a, b| a.call_ns.total_cmp(&b.call_ns));
    let (first, last) = (sorted.first().context("no starts")?, sorted.last().context("no starts")?);
    let middle = sorted[sorted.len() / 2].call_ns;
    let sleeps = [first, last].map(|figures| figures.sleeps);
    let ratio = last.call_ns / first.call_ns;
    let [fastest, middle, slowest] = [first.call_ns, middle, last.call_ns].map(|ns| ns_text(ns as u64));
    println!(
        "{name:34} {fastest:>9} {middle:>9} {slowest:>9} {ratio:6.2}  {:.2} (fastest), {:.2} (slowest)",
        sleeps[0], sleeps[1]
    );
    Ok(ratio)
}

/// Runs a client in a new process. Returns the client's figures for each operation.
fn one_start(socket: &Path) -> Result<Vec<CallTimingAfterStart>> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("timed").arg(socket).arg(PHASE.as_millis().to_string());
    let done = command.stderr(Stdio::inherit()).output()?;
    ensure!(done.status.success(), "a client failed");
    let read = |line: &str| -> Result<CallTimingAfterStart> {
        let (call_ns, sleeps) = line.split_once(' ').context("a client wrote something else")?;
        Ok(CallTimingAfterStart { call_ns: call_ns.parse()?, sleeps: sleeps.parse()? })
    };
    String::from_utf8(done.stdout)?.lines().map(read).collect()
}

/// Calls get and then head on 4 KiB objects, each for `phase` after a warm-up of the same length. Prints a line for
/// each operation.
pub(crate) fn client(socket: &Path, phase: Duration) -> Result<()> {
    let (node, bucket, mut body) = (node_store(socket), bucket()?, Vec::new());
    let keys = (0..SMALL).map(|number| Ok(Key::new(small(number))?)).collect::<Result<Vec<_>>>()?;
    let mut get = |number: usize| -> Result<()> {
        node.read(&bucket, &keys[number % SMALL], &GetOptions::default(), &mut body)?;
        Ok(())
    };
    timed(phase, &mut get)?;
    let gets = timed(phase, &mut get)?;
    let mut head = |number: usize| -> Result<()> {
        node.head(&bucket, &keys[number % SMALL], &GetOptions::default())?;
        Ok(())
    };
    let heads = timed(phase, &mut head)?;
    for CallTimingAfterStart { call_ns, sleeps } in [gets, heads] {
        println!("{call_ns} {sleeps}");
    }
    Ok(())
}

/// Repeats a call for `phase`. The returned time is the median over blocks of calls, so that a short disturbance does
/// not affect the result.
fn timed(phase: Duration, call: &mut dyn FnMut(usize) -> Result<()>) -> Result<CallTimingAfterStart> {
    let (start, slept, mut blocks) = (Instant::now(), process_usage().voluntary_switches, Vec::new());
    while start.elapsed() < phase {
        let of_block = Instant::now();
        (0..BLOCK).try_for_each(&mut *call)?;
        blocks.push(of_block.elapsed().as_nanos() as f64 / BLOCK as f64);
    }
    let sleeps = process_usage().voluntary_switches - slept;
    let calls = (blocks.len() * BLOCK) as f64;
    Ok(CallTimingAfterStart { call_ns: median(&blocks).context("no calls")?, sleeps: sleeps as f64 / calls })
}
