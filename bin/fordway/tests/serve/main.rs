//! Tests the HTTP gateway as a separate process: users, signals (including SIGKILL), a root that disappears, and
//! several gateways on one directory.

mod events;
mod hand_over;
mod interrupts;
mod nginx;
mod process;
mod race;
mod start;
mod streams;
mod tls;

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fordway_client::s3::S3Store;
use fordway_store::{ErrorKind, GetOptions, Key, ListQuery, Objects, PutOptions};

use process::{KEYS, Process, bucket, command, place};

fn write_credentials(path: &Path, users: &[&str]) {
    let (uid, gid) = (fordway_sys::user_id(), fordway_sys::group_id());
    let text: String = users
        .iter()
        .map(|name| {
            format!(
                "[[user]]\nname='{name}'\naccess_key='{name}'\nsecret_key='secret'\nuid={uid}\ngid={gid}\n"
            )
        })
        .collect();
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o600)).unwrap();
}

#[track_caller]
fn wait_for(condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(15), "it did not come about in time");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Returns a command that runs `program` in a process that ignores SIGHUP, as `nohup` does.
fn after_nohup(program: &Command) -> Command {
    after("trap '' HUP", program)
}

/// Returns a command that runs `program` in a process that can open `count` files.
fn with_open_files(count: u32, program: &Command) -> Command {
    after(&format!("ulimit -n {count}"), program)
}

/// Returns a command that runs `program` in the process of a shell, after the shell has run `prepare`.
fn after(prepare: &str, program: &Command) -> Command {
    let mut shell = Command::new("sh");
    let script = format!("{prepare}; exec \"$0\" \"$@\"");
    shell.args(["-c", &script]).arg(program.get_program()).args(program.get_args());
    shell.env("AWS_ACCESS_KEY_ID", KEYS.0).env("AWS_SECRET_ACCESS_KEY", KEYS.1).env_remove("FORDWAY_LOG");
    shell.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    shell
}

/// Idle connections must not use up the file descriptors that requests on other connections need.
#[test]
fn few_open_files_mean_few_connections() {
    let dir = place();
    let gateway = Process::of(&mut with_open_files(100, &command(dir.path(), &[])), false);
    let client = gateway.client();
    client.put(&bucket(), &Key::new("k").unwrap(), b"1", &PutOptions::default()).unwrap();
    let address = gateway.endpoint.strip_prefix("http://").unwrap();
    let _idle: Vec<_> = (0..100).map(|_| TcpStream::connect(address).unwrap()).collect();
    std::thread::sleep(Duration::from_millis(300));
    for number in 0..20 {
        let key = Key::new(format!("d/{number}")).unwrap();
        client.put(&bucket(), &key, b"1", &PutOptions::default()).unwrap();
        client.get(&bucket(), &key, &GetOptions::default()).unwrap().content.into_vec().unwrap();
        client.list(&bucket(), &ListQuery::default()).unwrap();
    }
    let said = gateway.stop_well();
    assert!(said.contains("100 open files allows 18 connections instead of 16384"), "{said}");
    assert!(!said.contains("cannot accept"), "{said}");
}

#[test]
fn a_hang_up_reads_the_users_again_and_reopens_the_log() {
    let dir = place();
    let (users, log) = (dir.path().join("users.toml"), dir.path().join("log"));
    write_credentials(&users, &["one"]);
    let options = ["--credentials", users.to_str().unwrap(), "--access-log", log.to_str().unwrap()];
    let gateway = Process::of(&mut after_nohup(&command(dir.path(), &options)), false);
    assert_eq!(gateway.client_of("one", "secret").list_buckets().unwrap().len(), 1);
    let stranger = gateway.client_of("two", "secret");
    assert_eq!(stranger.list_buckets().err().map(|error| error.kind()), Some(ErrorKind::InvalidAccessKeyId));
    wait_for(|| std::fs::metadata(&log).is_ok_and(|found| found.len() > 0));
    std::fs::rename(&log, dir.path().join("log.1")).unwrap();
    write_credentials(&users, &["one", "two"]);
    gateway.hang_up();
    wait_for(|| stranger.list_buckets().is_ok());
    wait_for(|| std::fs::read_to_string(&log).is_ok_and(|text| text.contains("\"user\":\"two\"")));
    gateway.stop_well();
}

/// A service manager asks for a reload while the gateway starts. Here, the gateway waits until its output is read.
#[test]
fn a_hang_up_during_the_start_does_not_stop_the_gateway() {
    let dir = place();
    let log = dir.path().join("log");
    let (mut reader, mut writer) = std::io::pipe().unwrap();
    rustix::io::ioctl_fionbio(&writer, true).unwrap();
    let mut filled = 0;
    while let Ok(written) = writer.write(&[b'.'; 4096]) {
        filled += written;
    }
    rustix::io::ioctl_fionbio(&writer, false).unwrap();
    let mut child =
        command(dir.path(), &["--access-log", log.to_str().unwrap()]).stdout(writer).spawn().unwrap();
    // The log is opened after the start of the gateway's signal handling, and before the output.
    wait_for(|| log.exists());
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::HUP).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    reader.read_exact(&mut vec![0; filled]).unwrap();
    let mut ready = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(reader), &mut ready).unwrap();
    let endpoint = ready.trim().rsplit_once(" at ").expect(&ready).1;
    std::thread::sleep(Duration::from_millis(300));
    let listed = process::client(endpoint, KEYS).list_buckets();
    let ended = child.try_wait().unwrap();
    let _ = child.kill();
    let _ = child.wait();
    assert_eq!((listed.map(|all| all.len()).ok(), ended), (Some(1), None));
}

#[test]
fn credentials_that_cannot_be_used_are_said_at_the_start() {
    let dir = place();
    let users = dir.path().join("users.toml");
    let options = ["--credentials", users.to_str().unwrap()];
    let said = Process::refusal(dir.path(), &options);
    assert!(said.contains("users.toml does not exist; correct the path, or create the file"), "{said}");
    write_credentials(&users, &["one"]);
    std::fs::set_permissions(&users, PermissionsExt::from_mode(0o644)).unwrap();
    let said = Process::refusal(dir.path(), &options);
    assert!(said.contains("may be read or written by others") && said.contains("chmod 600"), "{said}");
}

/// If a directory entry is not in the kernel's cache, another thread has to look it up. The gateway must not log this
/// case as an error.
#[test]
fn what_is_asked_for_the_first_time_is_no_error_in_the_log() {
    let dir = place();
    let gateway = Process::start(dir.path(), &[]);
    for name in ["never", "asked", "for"] {
        let key = Key::new(name).unwrap();
        let got = gateway.client().get(&bucket(), &key, &GetOptions::default()).map(drop);
        assert_eq!(got.expect_err("it does not exist").kind(), ErrorKind::NoSuchKey);
    }
    assert_eq!(gateway.stop_well(), "");
}

#[test]
fn a_root_that_goes_away_is_answered_with_503_and_logged() {
    let dir = place();
    let gateway = Process::start(dir.path(), &["--metrics", "127.0.0.1:0"]);
    let (store, key) = (gateway.client(), Key::new("k").unwrap());
    store.put(&bucket(), &key, b"here", &PutOptions::default()).unwrap();
    let (root, away) = (dir.path().join("root"), dir.path().join("away"));
    std::fs::rename(&root, &away).unwrap();
    wait_for(|| gateway.ask_metrics("/ready").starts_with("HTTP/1.1 503"));
    let error = store.get(&bucket(), &key, &GetOptions::default()).expect_err("it is gone");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    // First another directory replaces the root, then the original root returns.
    std::fs::create_dir_all(root.join("bucket")).unwrap();
    wait_for(|| gateway.ask_metrics("/ready").starts_with("HTTP/1.1 200"));
    let missing = store.get(&bucket(), &key, &GetOptions::default()).expect_err("it is empty");
    assert_eq!(missing.kind(), ErrorKind::NoSuchKey, "{missing}");
    std::fs::remove_dir_all(&root).unwrap();
    std::fs::rename(&away, &root).unwrap();
    wait_for(|| store.get(&bucket(), &key, &GetOptions::default()).is_ok());
    let log = gateway.stop_well();
    assert!(log.contains("is missing; requests are answered with 503 until it is back"), "{log}");
    assert!(log.contains("is now a different directory"), "{log}");
}

/// The gateway is killed while eight clients write. Every acknowledged object must exist and be complete.
#[test]
fn a_gateway_killed_under_load_loses_nothing_that_was_acknowledged() {
    let dir = place();
    let gateway = Process::start(dir.path(), &["--durability", "data"]);
    let (told, stop) = (Arc::new(Mutex::new(BTreeSet::new())), Arc::new(AtomicBool::new(false)));
    let clients: Vec<_> = (0..8)
        .map(|client| {
            let (store, told, stop) = (gateway.client(), told.clone(), stop.clone());
            std::thread::spawn(move || write_until(client, &store, &told, &stop))
        })
        .collect();
    wait_for(|| told.lock().unwrap().len() > 100);
    gateway.kill();
    stop.store(true, Ordering::Relaxed);
    clients.into_iter().for_each(|client| client.join().unwrap());
    let again = Process::start(dir.path(), &[]);
    let store = again.client();
    let told = told.lock().unwrap();
    for (name, seed, size) in told.iter() {
        let object = store.get(&bucket(), &Key::new(name.as_str()).unwrap(), &GetOptions::default());
        let object = object.unwrap_or_else(|error| panic!("{name} was acknowledged: {error}"));
        let body = object.content.into_vec().unwrap();
        assert!(body.len() == *size && body.iter().all(|byte| byte == seed), "{name} is not what was put");
    }
    let all = store.list(&bucket(), &ListQuery { max_keys: 1_000_000, ..Default::default() }).unwrap();
    assert!(
        all.entries.len() >= told.len() && all.entries.len() <= told.len() + 8,
        "one more per client at most"
    );
    for entry in &all.entries {
        let key = Key::new(entry.name()).unwrap();
        let body = store.get(&bucket(), &key, &GetOptions::default()).unwrap().content.into_vec().unwrap();
        assert!(
            [SMALL, LARGE].contains(&body.len()) && body.iter().all(|byte| *byte == body[0]),
            "{key:?} is torn"
        );
    }
}

const SMALL: usize = 4096;
const LARGE: usize = 700_000;

fn write_until(client: u8, store: &S3Store, told: &Mutex<BTreeSet<(String, u8, usize)>>, stop: &AtomicBool) {
    for number in 0.. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let (name, seed) = (format!("c{client}/{number}"), (number % 251 + 1) as u8);
        let size = if number % 4 == 0 { LARGE } else { SMALL };
        match store.put(
            &bucket(),
            &Key::new(name.as_str()).unwrap(),
            &vec![seed; size],
            &PutOptions::default(),
        ) {
            Ok(_) => drop(told.lock().unwrap().insert((name, seed, size))),
            // The gateway was killed.
            Err(_) => return,
        }
    }
}

/// Sends an anonymous request for a path to a server.
fn ask(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}
