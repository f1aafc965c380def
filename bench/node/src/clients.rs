//! Measurements with one client, and with many concurrent client processes.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use fordway_measure::{SeededRandom, median, median_interval, ns_text};
use fordway_posix::{PosixConfig, PosixStore};
use fordway_store::{GetOptions, Key, ObjectBatchOperations, Objects, PutOptions, Store};
use fordway_sys::{Mode, OFlags, open_in, read_into_spare, stat};

use crate::bare::{BareSocketClient, BareSocketRequest};
use crate::{SMALL, bucket, is_wanted, node_store, small};

/// The name of an operation, and a function that performs the operation once.
type TimedOperation<'w> = (&'static str, Box<dyn FnMut() -> Result<()> + 'w>);

/// The number of calls in a block, and the number of objects per call.
struct BlockCallCounts {
    calls: usize,
    objects: usize,
}

/// Runs each of `ways` in interleaved blocks. Prints the time per object of each way, and the ratio of this time to the
/// time of the first way.
fn ways(
    title: &str,
    shape: &BlockCallCounts,
    mut ways: Vec<TimedOperation<'_>>,
    rounds: usize,
) -> Result<()> {
    if !is_wanted(title) {
        return Ok(());
    }
    let mut times: Vec<Vec<f64>> = ways.iter().map(|_| Vec::new()).collect();
    let mut shuffle = SeededRandom::new(7);
    // The first round is a warm-up.
    for round in 0..=rounds {
        let mut order: Vec<usize> = (0..ways.len()).collect();
        shuffle.shuffle(&mut order);
        for at in order {
            let start = Instant::now();
            (0..shape.calls).try_for_each(|_| (ways[at].1)())?;
            let each = start.elapsed().as_nanos() as f64 / (shape.calls * shape.objects) as f64;
            if round > 0 {
                times[at].push(each);
            }
        }
    }
    println!("{title}");
    for (at, (name, _)) in ways.iter().enumerate() {
        let each = median(&times[at]).context("no rounds")?;
        let ratios: Vec<f64> = times[at].iter().zip(&times[0]).map(|(this, first)| this / first).collect();
        let ratio = median_interval(&ratios).context("too few rounds")?;
        println!(
            "  {name:<34} {:>9}  {:.2} x [{:.2}, {:.2}]",
            ns_text(each as u64),
            ratio.value,
            ratio.low,
            ratio.high
        );
    }
    Ok(())
}

pub(crate) fn compare(root: &Path, gateway: &Path, bare: &Path, rounds: usize) -> Result<()> {
    small_gets(root, gateway, bare, rounds)?;
    large_gets(root, gateway, bare, rounds)?;
    puts(root, gateway, rounds)
}

fn direct(dir: &File, name: &str, body: &mut Vec<u8>) -> Result<()> {
    let file = open_in(dir, name, OFlags::RDONLY, Mode::empty())?;
    let size = stat(&file)?.size as usize;
    body.clear();
    read_into_spare(&file, body, 0, size)?;
    Ok(())
}

fn small_gets(root: &Path, gateway: &Path, bare: &Path, rounds: usize) -> Result<()> {
    let (node, mut client, bucket) = (node_store(gateway), BareSocketClient::connect(bare)?, bucket()?);
    let dir = File::open(root.join("bucket"))?;
    let keys = (0..SMALL).map(|number| Ok(Key::new(small(number))?)).collect::<Result<Vec<_>>>()?;
    let (mut of_bare, mut of_node, mut at, mut at_node) = (Vec::new(), Vec::new(), 0, 0);
    let one = BlockCallCounts { calls: 500, objects: 1 };
    let one_by_one: Vec<TimedOperation<'_>> = vec![
        (
            "bare socket, open, fstat, pread",
            Box::new(|| {
                at += 1;
                client.small(BareSocketRequest::Small, at % SMALL, &mut of_bare)
            }),
        ),
        (
            "node get",
            Box::new(|| {
                at_node += 1;
                node.read(&bucket, &keys[at_node % SMALL], &GetOptions::default(), &mut of_node)?;
                Ok(())
            }),
        ),
    ];
    ways("4 KiB get, one at a time", &one, one_by_one, rounds)?;
    let batch = BlockCallCounts { calls: 10, objects: SMALL };
    let batches: Vec<TimedOperation<'_>> = vec![
        (
            "open, fstat, pread, close",
            Box::new(|| {
                for number in 0..SMALL {
                    direct(&dir, &small(number), &mut Vec::new())?;
                }
                Ok(())
            }),
        ),
        (
            "node get_many of 64",
            Box::new(|| {
                node.get_many(&bucket, &keys).into_iter().try_for_each(|got| got.map(drop))?;
                Ok(())
            }),
        ),
    ];
    ways("4 KiB get, 64 by one call, per object", &batch, batches, rounds)
}

fn large_gets(root: &Path, gateway: &Path, bare: &Path, rounds: usize) -> Result<()> {
    let (node, mut client, bucket) = (node_store(gateway), BareSocketClient::connect(bare)?, bucket()?);
    let dir = File::open(root.join("bucket"))?;
    let (mut of_bare, mut of_node) = (Vec::with_capacity(1 << 20), Vec::with_capacity(1 << 20));
    let key = Key::new("1MiB")?;
    let mega: Vec<TimedOperation<'_>> = vec![
        ("bare socket, descriptor, pread", Box::new(|| client.descriptor(&mut of_bare))),
        (
            "node get",
            Box::new(|| {
                node.read(&bucket, &key, &GetOptions::default(), &mut of_node)?;
                Ok(())
            }),
        ),
    ];
    ways("1 MiB get", &BlockCallCounts { calls: 50, objects: 1 }, mega, rounds)?;
    let (mut of_posix, mut of_node) = (Vec::with_capacity(16 << 20), Vec::with_capacity(16 << 20));
    let key = Key::new("16MiB")?;
    let large: Vec<TimedOperation<'_>> = vec![
        ("open, fstat, pread, close", Box::new(|| direct(&dir, "16MiB", &mut of_posix))),
        (
            "node get",
            Box::new(|| {
                node.read(&bucket, &key, &GetOptions::default(), &mut of_node)?;
                Ok(())
            }),
        ),
    ];
    ways("16 MiB get", &BlockCallCounts { calls: 4, objects: 1 }, large, rounds)
}

fn puts(root: &Path, gateway: &Path, rounds: usize) -> Result<()> {
    let (node, bucket) = (node_store(gateway), bucket()?);
    let embedded = PosixStore::open(root, PosixConfig::default())?;
    for (title, bytes, calls) in [
        ("4 KiB put over an object", 4096, 200),
        ("256 KiB put over an object", 256 << 10, 40),
        ("1 MiB put over an object", 1 << 20, 20),
        ("16 MiB put over an object", 16 << 20, 2),
    ] {
        let body = vec![9; bytes];
        let keys = [Key::new("put-embedded")?, Key::new("put-node")?];
        let stores: [&dyn Store; 2] = [&embedded, &node];
        let put = |at: usize| {
            let (store, key, bucket, body) = (stores[at], &keys[at], &bucket, &body);
            Box::new(move || {
                store.put(bucket, key, body, &PutOptions::default())?;
                Ok(())
            })
        };
        ways(
            title,
            &BlockCallCounts { calls, objects: 1 },
            vec![("embedded put", put(0)), ("node put", put(1))],
            rounds,
        )?;
    }
    Ok(())
}

/// The time that all clients run in each round.
const ROUND_MS: u64 = 500;

/// Gets 4 KiB objects repeatedly, starting when standard input ends; prints the number of gets.
pub(crate) fn client(lane: &str, socket: &Path, ms: u64) -> Result<()> {
    let (mut body, bucket) = (Vec::new(), bucket()?);
    let keys = (0..SMALL).map(|number| Ok(Key::new(small(number))?)).collect::<Result<Vec<_>>>()?;
    let mut bare = if lane == "echo" { Some(BareSocketClient::connect(socket)?) } else { None };
    let node = node_store(socket);
    let mut get = |number: usize| match &mut bare {
        Some(bare) => bare.small(BareSocketRequest::Echo, number, &mut body),
        None => {
            node.read(&bucket, &keys[number % SMALL], &GetOptions::default(), &mut body)?;
            Ok(())
        }
    };
    get(0)?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    let (start, mut done) = (Instant::now(), 0);
    while start.elapsed() < Duration::from_millis(ms) {
        get(done)?;
        done += 1;
    }
    println!("{done}");
    Ok(())
}

/// Returns the total operations per second of `clients` concurrent clients.
fn throughput(lane: &str, socket: &Path, clients: usize) -> Result<f64> {
    let start = |_| -> Result<Child> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["client", lane]).arg(socket).arg(ROUND_MS.to_string());
        Ok(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?)
    };
    let mut all = (0..clients).map(start).collect::<Result<Vec<_>>>()?;
    // Give all clients time to connect and perform one get.
    std::thread::sleep(Duration::from_millis(100 + 5 * clients as u64));
    all.iter_mut().for_each(|client| drop(client.stdin.take()));
    let mut total = 0.0;
    for client in all {
        let ended = client.wait_with_output()?;
        ensure!(ended.status.success(), "a client failed");
        total += String::from_utf8(ended.stdout)?.trim().parse::<f64>()?;
    }
    Ok(total * 1e3 / ROUND_MS as f64)
}

pub(crate) fn compare_many(gateway: &Path, bare: &Path, rounds: usize) -> Result<()> {
    let title = "4 KiB get by many processes, operations a second of all together";
    if !is_wanted(title) {
        return Ok(());
    }
    let mut found: [Vec<f64>; 4] = Default::default();
    for _ in 0..rounds.max(5) {
        found[0].push(throughput("echo", bare, 8)?);
        found[1].push(throughput("node", gateway, 8)?);
        found[2].push(throughput("node", gateway, 64)?);
        found[3].push(throughput("echo", bare, 64)?);
    }
    println!("{title}");
    for (name, at, beside) in [
        ("bare echo, 8 clients", 0, 0),
        ("node get, 8 clients, compared with that", 1, 0),
        ("node get, 64 clients, compared with 8", 2, 1),
        ("bare echo, 64 clients, compared with 8", 3, 0),
    ] {
        let ratios: Vec<f64> = found[at].iter().zip(&found[beside]).map(|(this, that)| this / that).collect();
        let ratio = median_interval(&ratios).context("too few rounds")?;
        let each = median(&found[at]).context("no rounds")?;
        println!("  {name:<34} {each:>9.0}  {:.2} x [{:.2}, {:.2}]", ratio.value, ratio.low, ratio.high);
    }
    Ok(())
}
