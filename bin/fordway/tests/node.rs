//! Tests the node gateway as a separate process: its ready line, commands that use it, and signals, including SIGKILL.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fordway_client::node::{NodeAddress, NodeStore};
use fordway_store::{Bucket, ErrorKind, ExpectedContent, GetOptions, Key, ListQuery, Objects, PutOptions};
use fordway_wire::node::{GATEWAY_HELLO_BYTES, NodeClientHello, Request, VERSION};

/// A gateway process, which is killed when this value is dropped.
struct Gateway {
    process: Child,
    output: BufReader<ChildStdout>,
    ready: String,
}

impl Gateway {
    fn start(dir: &Path, more: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fordway"));
        command.arg("node").arg(dir.join("root")).arg("--socket").arg(dir.join("socket")).args(more);
        command.env_remove("AWS_ACCESS_KEY_ID").env_remove("AWS_SECRET_ACCESS_KEY");
        let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut ready = String::new();
        let mut output = BufReader::new(process.stdout.take().unwrap());
        output.read_line(&mut ready).unwrap();
        Gateway { process, output, ready }
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn place() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(dir.path().join("root/bucket")).unwrap();
    dir
}

fn fordway(dir: &Path, words: &[&str]) -> std::process::Output {
    let endpoint = format!("unix://{}", dir.join("socket").display());
    Command::new(env!("CARGO_BIN_EXE_fordway")).args(["--endpoint", &endpoint]).args(words).output().unwrap()
}

fn bucket() -> Bucket {
    Bucket::new("bucket").unwrap()
}

#[test]
fn commands_work_through_it_and_a_signal_ends_it_well() {
    let dir = place();
    let mut gateway = Gateway::start(dir.path(), &[]);
    let root = dir.path().join("root");
    assert_eq!(
        gateway.ready,
        format!("fordway: serving {} at unix://{}\n", root.display(), dir.path().join("socket").display())
    );
    let file = dir.path().join("file");
    std::fs::write(&file, vec![7; 3_000_000]).unwrap();
    assert!(fordway(dir.path(), &["cp", file.to_str().unwrap(), "s3://bucket/a/b"]).status.success());
    assert_eq!(std::fs::read(root.join("bucket/a/b")).unwrap(), std::fs::read(&file).unwrap());
    assert_eq!(fordway(dir.path(), &["cat", "s3://bucket/a/b"]).stdout.len(), 3_000_000);
    assert_eq!(fordway(dir.path(), &["cat", "s3://bucket/none"]).status.code(), Some(3));
    fordway_sys::terminate(gateway.process.id()).unwrap();
    assert!(gateway.process.wait().unwrap().success());
    assert!(!dir.path().join("socket").exists());
    let after = fordway(dir.path(), &["ls"]);
    assert_eq!(after.status.code(), Some(7));
    assert!(
        String::from_utf8_lossy(&after.stderr).contains("start the gateway with `fordway node ROOT --socket")
    );
}

/// Even if the path of the socket is relative, the printed endpoint must be usable from any directory.
#[test]
fn a_socket_named_from_here_is_an_endpoint_from_anywhere() {
    let dir = place();
    let mut command = Command::new(env!("CARGO_BIN_EXE_fordway"));
    command.args(["node", "root", "--socket", "./socket"]).current_dir(dir.path());
    let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut output = BufReader::new(process.stdout.take().unwrap());
    let mut ready = String::new();
    output.read_line(&mut ready).unwrap();
    let gateway = Gateway { process, output, ready };
    let endpoint = gateway.ready.trim_end().rsplit_once(" at ").unwrap().1;
    let mut listing = Command::new(env!("CARGO_BIN_EXE_fordway"));
    let listed = listing.args(["--endpoint", endpoint, "ls"]).current_dir("/").output().unwrap();
    assert!(String::from_utf8_lossy(&listed.stdout).ends_with(" bucket\n"), "{listed:?}");
}

#[test]
fn its_counters_can_be_asked_for() {
    let dir = place();
    let _gateway = Gateway::start(dir.path(), &[]);
    let file = dir.path().join("file");
    std::fs::write(&file, vec![7; 1000]).unwrap();
    assert!(fordway(dir.path(), &["cp", file.to_str().unwrap(), "s3://bucket/k"]).status.success());
    let socket = dir.path().join("socket");
    let status = |more: &[&str]| {
        let words = [&["node", "--status", "--socket", socket.to_str().unwrap()], more].concat();
        let output = Command::new(env!("CARGO_BIN_EXE_fordway")).args(words).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let found: serde_json::Value = serde_json::from_str(&status(&["--json"])).unwrap();
    assert_eq!((&found["bytes_in"], &found["requests_put"]), (&1000.into(), &1.into()), "{found}");
    assert!(found["connections_open"].as_u64() >= Some(1) && found["uptime_s"].is_u64(), "{found}");
    assert!(status(&[]).lines().any(|line| line.split_whitespace().eq(["bytes_in", "1000", "Bytes"])));
    let both = fordway(dir.path(), &["node", "/tmp", "--status"]);
    assert_eq!(both.status.code(), Some(2));
}

fn prlimit(pid: u32, files: &str) {
    let words = ["--pid", &pid.to_string(), &format!("--nofile={files}")];
    assert!(Command::new("prlimit").args(words).status().unwrap().success());
}

/// Opens connections until one is refused, and returns the message of the refusal.
fn refusal(socket: &Path, most: usize) -> String {
    let mut all = Vec::new();
    for _ in 0..most {
        let mut client = UnixStream::connect(socket).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        // A gateway that refuses the connection may already have closed it.
        let hello = NodeClientHello { version: VERSION, takes_descriptors: true };
        let _ = client.write_all(&hello.to_bytes());
        client.read_exact(&mut [0; GATEWAY_HELLO_BYTES]).unwrap();
        let mut rest = Vec::new();
        client.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        // A connection that is served sends nothing before the first request.
        let _ = client.read_to_end(&mut rest);
        if !rest.is_empty() {
            return String::from_utf8_lossy(&rest).into_owned();
        }
        all.push(client);
    }
    panic!("{most} connections were accepted");
}

#[test]
fn connections_for_which_there_are_no_descriptors_are_refused() {
    let dir = place();
    let program = env!("CARGO_BIN_EXE_fordway");
    let few = "ulimit -n 200; exec \"$0\" node \"$1\" --socket \"$2\"";
    let mut command = Command::new("sh");
    command.args(["-c", few, program]).arg(dir.path().join("root")).arg(dir.path().join("socket"));
    let mut process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(process.stderr.take().unwrap());
    let mut output = BufReader::new(process.stdout.take().unwrap());
    let mut ready = String::new();
    output.read_line(&mut ready).unwrap();
    let gateway = Gateway { process, output, ready };
    let mut note = String::new();
    said.read_line(&mut note).unwrap();
    assert!(note.contains("200 open files allows 34 connections instead of 4096"), "{note}");
    let socket = dir.path().join("socket");
    let refused = refusal(&socket, 40);
    // If root runs the gateway, one user can open half of the connections.
    let most = if fordway_sys::user_id() == 0 { "17 connections open" } else { "34 connections open" };
    assert!(refused.contains(most), "{refused}");
    // Even if no descriptor is free, a client receives the reason.
    prlimit(gateway.process.id(), "20");
    let refused = refusal(&socket, 40);
    assert!(refused.contains("no file descriptor left"), "{refused}");
}

/// With its response to a put, the gateway passes an open file descriptor for the next put. A process that cannot have
/// another descriptor drops it, and the put succeeds.
#[test]
fn a_put_does_not_fail_because_the_next_puts_file_cannot_be_received() {
    const CHILD: &str = "FORDWAY_TEST_FEW_FILES_IN";
    if let Some(dir) = std::env::var_os(CHILD) {
        return put_with_few_files(Path::new(&dir));
    }
    let dir = place();
    let _gateway = Gateway::start(dir.path(), &[]);
    // The limit on open files applies to a whole process, so the client runs in a separate process.
    let mut client = Command::new(std::env::current_exe().unwrap());
    client.args(["--exact", "a_put_does_not_fail_because_the_next_puts_file_cannot_be_received"]);
    let output = client.arg("--nocapture").env(CHILD, dir.path()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    for name in ["first", "second"] {
        let stored = std::fs::read(dir.path().join("root/bucket").join(name)).unwrap();
        assert!(stored == vec![7; 1 << 20], "{name}");
    }
}

/// Stores two objects when the process can open only one more file.
fn put_with_few_files(dir: &Path) {
    let store = NodeStore::new(NodeAddress::Unix(dir.join("socket")));
    let put = |name: &str| {
        let key = Key::new(name).unwrap();
        store.put(&bucket(), &key, &vec![7; 1 << 20], &PutOptions::default()).map(drop)
    };
    store.head_bucket(&bucket()).unwrap();
    let next = std::fs::File::open("/dev/null").unwrap();
    let lowest_free = next.as_raw_fd();
    drop(next);
    prlimit(std::process::id(), &(lowest_free + 1).to_string());
    let done = [put("first"), put("second")];
    assert!(done.iter().all(Result::is_ok), "{done:?}");
}

/// Some clients announce long messages and never send their last bytes. Other clients send many requests and read no
/// responses. The gateway must not use more memory for these clients than is configured.
#[test]
fn clients_that_mean_no_good_take_no_more_memory_than_there_is() {
    let dir = place();
    let gateway = Gateway::start(dir.path(), &["--memory", "32MiB"]);
    let store = NodeStore::new(NodeAddress::Unix(dir.path().join("socket")));
    store.put(&bucket(), &Key::new("k").unwrap(), &[1; 60_000], &PutOptions::default()).unwrap();
    let mut long = Vec::new();
    Request::Append {}.put(&mut long, 1, 16 << 20);
    long.resize(16 << 20, 0);
    let mut many = Vec::new();
    let (bucket, key) = (Cow::Owned(bucket()), Cow::Owned(Key::new("k").unwrap()));
    let get = Request::Get { bucket, key, options: Cow::Owned(GetOptions::default()) };
    (0..50_000).for_each(|id| get.put(&mut many, id, 0));
    let clients: Vec<UnixStream> = (0..40)
        .map(|at| {
            let mut socket = UnixStream::connect(dir.path().join("socket")).unwrap();
            socket
                .write_all(&NodeClientHello { version: VERSION, takes_descriptors: true }.to_bytes())
                .unwrap();
            socket.read_exact(&mut [0; GATEWAY_HELLO_BYTES]).unwrap();
            socket.set_write_timeout(Some(Duration::from_millis(100))).unwrap();
            socket.write_all(if at % 2 == 0 { &long } else { &many }).unwrap_or_default();
            socket
        })
        .collect();
    let status = std::fs::read_to_string(format!("/proc/{}/status", gateway.process.id())).unwrap();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    let resident_kib: u64 = resident.trim().trim_end_matches(" kB").parse().unwrap();
    // Without limits, twenty messages of 16 MiB would use 320 MiB, and the responses 60 GB.
    assert!(resident_kib < (32 + 40 / 2 + 30) << 10, "{resident_kib} KiB");
    assert_eq!(
        store
            .head(&Bucket::new("bucket").unwrap(), &Key::new("k").unwrap(), &GetOptions::default())
            .unwrap()
            .size,
        60_000
    );
    drop(clients);
}

#[test]
fn a_second_gateway_on_the_same_socket_is_refused() {
    let dir = place();
    let first = Gateway::start(dir.path(), &[]);
    let second = Gateway::start(dir.path(), &[]);
    assert!(!first.ready.is_empty() && second.ready.is_empty());
    assert!(fordway(dir.path(), &["ls"]).status.success(), "the first still serves");
}

/// The results of the clients' calls, before and after the gateway is killed.
#[derive(Default)]
struct Told {
    /// The acknowledged objects, each with the byte that fills its content.
    done: BTreeMap<String, u8>,
    failed: usize,
}

/// The gateway is killed while eight clients write small and large objects. Each call either succeeds or fails with a
/// clear message. Every acknowledged object exists and is complete, and no object is half-written. A new gateway on the
/// same path serves immediately.
#[test]
fn a_gateway_killed_under_load_loses_nothing_that_was_acknowledged() {
    let dir = place();
    let mut gateway = Gateway::start(dir.path(), &["--durability", "none"]);
    let (told, stop) = (Arc::new(Mutex::new(Told::default())), Arc::new(AtomicBool::new(false)));
    let store = NodeStore::new(NodeAddress::Unix(dir.path().join("socket")));
    let clients: Vec<_> = (0..8u8)
        .map(|client| {
            let (store, told, stop) = (store.clone(), told.clone(), stop.clone());
            std::thread::spawn(move || work(client, &store, &told, &stop))
        })
        .collect();
    std::thread::sleep(Duration::from_millis(400));
    gateway.process.kill().unwrap();
    gateway.process.wait().unwrap();
    std::thread::sleep(Duration::from_millis(20));
    let restarted = Instant::now();
    let again = Gateway::start(dir.path(), &[]);
    assert!(!again.ready.is_empty() && restarted.elapsed() < Duration::from_secs(30));
    std::thread::sleep(Duration::from_millis(300));
    stop.store(true, Ordering::Relaxed);
    clients.into_iter().for_each(|client| client.join().unwrap());
    let told = told.lock().unwrap();
    assert!(told.done.len() > 20, "{} objects were put", told.done.len());
    let listed = store.list(&bucket(), &ListQuery { max_keys: 1_000_000, ..Default::default() }).unwrap();
    for entry in &listed.entries {
        let object = store.get(&bucket(), &Key::new(entry.name()).unwrap(), &GetOptions::default()).unwrap();
        let body = object.content.into_vec().unwrap();
        assert!(!body.is_empty() && body.iter().all(|byte| *byte == body[0]), "{} is torn", entry.name());
        assert!([LARGE, SMALL].contains(&body.len()), "{} has {} bytes", entry.name(), body.len());
    }
    let names: Vec<&str> = listed.entries.iter().map(|entry| entry.name()).collect();
    for name in told.done.keys() {
        assert!(names.binary_search(&name.as_str()).is_ok(), "{name} was acknowledged and is gone");
    }
    assert!(told.failed < told.done.len(), "{} of {} failed", told.failed, told.done.len());
}

const SMALL: usize = 4096;
const LARGE: usize = 600_000;

fn work(client: u8, store: &NodeStore, told: &Mutex<Told>, stop: &AtomicBool) {
    for number in 0.. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let name = format!("c{client}/{number}");
        let key = Key::new(name.as_str()).unwrap();
        let seed = (number % 251 + 1) as u8;
        let put = match number % 4 {
            0 => store.put(&bucket(), &key, &vec![seed; LARGE], &PutOptions::default()),
            1 => in_pieces(store, &key, seed),
            _ => store.put(&bucket(), &key, &vec![seed; SMALL], &PutOptions::default()),
        };
        let mut told = told.lock().unwrap();
        match put {
            Ok(_) => drop(told.done.insert(name, seed)),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
                told.failed += 1;
            }
        }
        drop(told);
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn in_pieces(store: &NodeStore, key: &Key, seed: u8) -> fordway_store::Result<fordway_store::PutResult> {
    let mut writer = store.writer(&bucket(), key, &PutOptions::default())?;
    for _ in 0..LARGE / 100_000 {
        writer.write(&vec![seed; 100_000])?;
    }
    writer.commit(&ExpectedContent::default())
}

#[test]
fn by_tcp_only_who_knows_the_secret_is_served() {
    let dir = place();
    let mut gateway = Gateway::start(dir.path(), &["--tcp", "127.0.0.1:0", "--tcp-as-root"]);
    let tcp = gateway.ready.split(" at ").find_map(|at| at.strip_prefix("tcp://")).unwrap();
    let endpoint = format!("tcp://{}", tcp.split(' ').next().unwrap());
    let mut value = || {
        let mut line = String::new();
        gateway.output.read_line(&mut line).unwrap();
        line.trim().split_once('=').unwrap().1.to_owned()
    };
    let (access_key, secret_key) = (value(), value());
    let ls = |access_key: &str, secret_key: &str| {
        Command::new(env!("CARGO_BIN_EXE_fordway"))
            .args(["--endpoint", &endpoint, "ls"])
            .env("AWS_ACCESS_KEY_ID", access_key)
            .env("AWS_SECRET_ACCESS_KEY", secret_key)
            .output()
            .unwrap()
    };
    let served = ls(&access_key, &secret_key);
    assert!(String::from_utf8_lossy(&served.stdout).contains("bucket"), "{served:?}");
    for (access_key, secret_key) in [(&*access_key, "wrong"), ("wrong", &*secret_key)] {
        let refused = ls(access_key, secret_key);
        assert_eq!(refused.status.code(), Some(4), "{refused:?}");
        assert!(refused.stdout.is_empty());
    }
    // A client without proof of identity is not accepted.
    let mut raw = std::net::TcpStream::connect(endpoint.trim_start_matches("tcp://")).unwrap();
    std::io::Write::write_all(&mut raw, b"GET / HTTP/1.1\r\n\r\n").unwrap();
    assert!(!matches!(raw.read(&mut [0; 64]), Ok(count) if count > 0));
}
