//! Compares the node lane with bare sockets that do the same work, and with POSIX calls. Blocks run in random order.
//! Each result is the median of the ratios from all rounds, with its confidence interval.
//!
//! The gateway, the bare server and the clients are separate processes of this program. The first argument selects the
//! role of a process.

mod bare;
mod clients;
mod starts;

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use fordway_client::node::{NodeAddress, NodeStore};
use fordway_posix::{PosixConfig, PosixStore};
use fordway_serve::node::{NodeGateway, NodeGatewayConfig};
use fordway_store::{Bucket, Key, Objects, PutOptions, Store};
use tempfile::TempDir;

#[global_allocator]
static ALLOCATOR: fordway_sys::HalfPageAllocator = fordway_sys::HalfPageAllocator;

/// The number of 4 KiB objects.
const SMALL: usize = 64;

/// The environment variable that, if set to 0, lets the gateway's threads stay on their client's processor.
const LEAVES_CLIENT: &str = "LEAVES_CLIENT";

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["gateway", root, socket] => serve(root, socket),
        ["bare", root, socket] => bare::serve(Path::new(root), Path::new(socket)),
        ["client", lane, socket, ms] => clients::client(lane, Path::new(socket), ms.parse()?),
        ["timed", socket, ms] => starts::client(Path::new(socket), Duration::from_millis(ms.parse()?)),
        ["starts"] => starts::run(),
        [] => run(),
        _ => bail!(
            "the only argument is `starts`; set ROOT to the directory to work in, and ROUNDS to the number of rounds"
        ),
    }
}

fn run() -> Result<()> {
    let rounds = std::env::var("ROUNDS").map_or(Ok(31), |rounds| rounds.parse())?;
    let (dir, root) = filled_root()?;
    let (gateway, bare) = (
        ServerProcess::start("gateway", &root, dir.path(), &[])?,
        ServerProcess::start("bare", &root, dir.path(), &[])?,
    );
    clients::compare(&root, &gateway.socket, &bare.socket, rounds)?;
    clients::compare_many(&gateway.socket, &bare.socket, rounds.div_ceil(4))
}

/// Creates a scratch directory that contains a root with the objects for the clients to read. Returns the scratch
/// directory and the path of the root.
fn filled_root() -> Result<(TempDir, PathBuf)> {
    let place = std::env::var("ROOT").unwrap_or_else(|_| "/dev/shm".to_owned());
    let dir = tempfile::Builder::new().prefix("fordway-node-").tempdir_in(place)?;
    let root = dir.path().join("root");
    std::fs::create_dir_all(root.join("bucket"))?;
    fill(&root)?;
    Ok((dir, root))
}

/// Puts the objects that clients will read into the store, without using a gateway.
fn fill(root: &Path) -> Result<()> {
    let store = PosixStore::open(root, PosixConfig::default())?;
    let put = |name: &str, body: &[u8]| -> Result<()> {
        store.put(&bucket()?, &Key::new(name)?, body, &PutOptions::default())?;
        Ok(())
    };
    (0..SMALL).try_for_each(|number| put(&small(number), &[7; 4096]))?;
    put("1MiB", &vec![7; 1 << 20])?;
    put("16MiB", &vec![7; 16 << 20])
}

fn bucket() -> Result<Bucket> {
    Ok(Bucket::new("bucket")?)
}

fn small(number: usize) -> String {
    format!("s{:02}", number % SMALL)
}

/// Runs the node gateway until standard input ends.
fn serve(root: &str, socket: &str) -> Result<()> {
    let root = PathBuf::from(root);
    let open = move || Ok(Arc::new(PosixStore::open(&root, PosixConfig::default())?) as Arc<dyn Store>);
    let leaves_client = std::env::var_os(LEAVES_CLIENT).is_none_or(|value| value != "0");
    let config = NodeGatewayConfig { lookout: lookout()?, leaves_client, ..NodeGatewayConfig::new(socket) };
    let _gateway = NodeGateway::bind(Arc::new(open), config)?.spawn()?;
    println!("ready");
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// A server process that ends when this process ends.
struct ServerProcess {
    process: Child,
    socket: PathBuf,
}

impl ServerProcess {
    fn start(kind: &str, root: &Path, dir: &Path, environment: &[(&str, &str)]) -> Result<Self> {
        let socket = dir.join(kind);
        let mut command = Command::new(std::env::current_exe()?);
        command.envs(environment.iter().copied());
        command.arg(kind).arg(root).arg(&socket).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn()?;
        let mut ready = String::new();
        BufReader::new(process.stdout.as_mut().context("no output")?).read_line(&mut ready)?;
        Ok(ServerProcess { process, socket })
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        let _ = self.process.wait();
    }
}

/// Returns how long both servers poll for the next request if cores are free: `LOOKOUT_US`, or 20 µs.
fn lookout() -> Result<Duration> {
    Ok(Duration::from_micros(std::env::var("LOOKOUT_US").map_or(Ok(20), |us| us.parse())?))
}

/// Returns whether a comparison is selected: either `ONLY` is not set, or the title contains the value of `ONLY`.
fn is_wanted(title: &str) -> bool {
    std::env::var("ONLY").map_or(true, |part| title.contains(&part))
}

fn node_store(socket: &Path) -> NodeStore {
    NodeStore::new(NodeAddress::Unix(socket.to_owned()))
}
