//! Many client processes at once.

use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use fordway_measure::{median, median_interval};
use fordway_store::{GetOptions, Key, Objects};

use crate::bare::{Ask, Client};
use crate::{SMALL, bucket, is_wanted, node_store, small};

/// How long all clients work in a round.
const ROUND_MS: u64 = 500;

/// Gets 4 KiB again and again, from when standard input ends; prints how often.
pub(crate) fn client(lane: &str, socket: &Path, ms: u64) -> Result<()> {
    let (mut body, bucket) = (Vec::new(), bucket()?);
    let keys = (0..SMALL).map(|number| Ok(Key::new(small(number))?)).collect::<Result<Vec<_>>>()?;
    let mut bare = if lane == "echo" { Some(Client::connect(socket)?) } else { None };
    let node = node_store(socket);
    let mut get = |number: usize| match &mut bare {
        Some(bare) => bare.small(Ask::Echo, number, &mut body),
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

/// Operations a second of this many clients together.
fn throughput(lane: &str, socket: &Path, clients: usize) -> Result<f64> {
    let start = |_| -> Result<Child> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["client", lane]).arg(socket).arg(ROUND_MS.to_string());
        Ok(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?)
    };
    let mut all = (0..clients).map(start).collect::<Result<Vec<_>>>()?;
    // Until all have connected and got once.
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

pub(crate) fn compare(gateway: &Path, bare: &Path, rounds: usize) -> Result<()> {
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
        ("node get, 8 clients, beside that", 1, 0),
        ("node get, 64 clients, beside 8", 2, 1),
        ("bare echo, 64 clients, beside 8", 3, 0),
    ] {
        let ratios: Vec<f64> = found[at].iter().zip(&found[beside]).map(|(this, that)| this / that).collect();
        let ratio = median_interval(&ratios, 1).context("too few rounds")?;
        let each = median(&found[at]).context("no rounds")?;
        println!("  {name:<34} {each:>9.0}  {:.2} x [{:.2}, {:.2}]", ratio.value, ratio.low, ratio.high);
    }
    Ok(())
}
