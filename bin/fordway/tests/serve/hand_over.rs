//! Tests replacing one gateway with another on a socket that a service manager keeps open.

use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use fordway_client::s3::{S3Config, S3Credentials, S3Store};
use fordway_store::{GetOptions, Key, Objects, PutOptions};

use super::process::{KEYS, Process, bucket, command, place};

/// A stand-in for systemd with a socket unit: the stand-in binds a socket, and starts the gateway with the socket as a
/// descriptor.
struct ServiceManager {
    socket: TcpListener,
}

impl ServiceManager {
    fn listening() -> Self {
        ServiceManager { socket: TcpListener::bind("127.0.0.1:0").unwrap() }
    }

    fn endpoint(&self) -> String {
        format!("http://{}", self.socket.local_addr().unwrap())
    }

    /// Returns a command that gets the socket as descriptor 3, under `name`.
    fn command(&self, dir: &Path, name: &str) -> Command {
        let gateway = command(dir, &["--durability", "none"]);
        let mut shell = Command::new("/bin/sh");
        // The shell sets LISTEN_PID, because the process ID of the gateway is the process ID of the shell.
        let script = format!("LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES={name} exec \"$@\" 3<&0 0</dev/null");
        shell.args(["-c", &script, "sh"]).arg(gateway.get_program()).args(gateway.get_args());
        for (variable, value) in gateway.get_envs() {
            match value {
                Some(value) => shell.env(variable, value),
                None => shell.env_remove(variable),
            };
        }
        let socket: OwnedFd = self.socket.try_clone().unwrap().into();
        shell.stdin(socket).stdout(Stdio::piped()).stderr(Stdio::piped());
        shell
    }

    fn start(&self, dir: &Path) -> Process {
        Process::of(&mut self.command(dir, "s3"), false)
    }
}

/// Returns a client that never retries, so that every failure is noticed.
fn impatient_client(endpoint: &str) -> S3Store {
    let keys = S3Credentials::keys(KEYS.0, KEYS.1, "this test");
    let config = S3Config { max_retries: 0, ..S3Config::new(endpoint, "us-east-1", keys) };
    S3Store::new(config).unwrap()
}

const CLIENTS: usize = 64;
const RESTARTS: usize = 4;

/// Writes and reads until `stop` is set; returns the number of objects, all of which were acknowledged.
fn write_and_read(client: usize, endpoint: &str, stop: &AtomicBool, requests: &AtomicUsize) -> usize {
    let store = impatient_client(endpoint);
    for number in 0.. {
        if stop.load(Ordering::Relaxed) {
            return number;
        }
        let (key, content) = (Key::new(format!("{client}/{number}")).unwrap(), format!("{client} {number}"));
        let put = store.put(&bucket(), &key, content.as_bytes(), &PutOptions::default());
        put.unwrap_or_else(|error| panic!("putting {key}: {error}"));
        let got = store.get(&bucket(), &key, &GetOptions::default());
        let got = got.unwrap_or_else(|error| panic!("getting {key}: {error}")).content.into_vec().unwrap();
        assert_eq!(got, content.as_bytes());
        requests.fetch_add(2, Ordering::Relaxed);
    }
    0
}

#[test]
fn a_gateway_is_replaced_under_load_and_no_request_fails() {
    let dir = place();
    let manager = ServiceManager::listening();
    let (endpoint, stop, requests) = (manager.endpoint(), AtomicBool::new(false), AtomicUsize::new(0));
    let first = manager.start(dir.path());
    assert_eq!(first.endpoint, endpoint, "it serves at the socket, not at --listen");
    let written: Vec<usize> = std::thread::scope(|scope| {
        let start = |client| {
            let (endpoint, stop, requests) = (&endpoint, &stop, &requests);
            scope.spawn(move || write_and_read(client, endpoint, stop, requests))
        };
        let clients: Vec<_> = (0..CLIENTS).map(start).collect();
        let mut gateway = first;
        for _ in 0..RESTARTS {
            let before = requests.load(Ordering::Relaxed);
            super::wait_for(|| {
                requests.load(Ordering::Relaxed) > before + 2 * CLIENTS
                    || clients.iter().any(|client| client.is_finished())
            });
            let _silent = TcpStream::connect(manager.socket.local_addr().unwrap()).unwrap();
            assert_eq!(gateway.stop_well(), "", "a drained gateway has nothing to complain about");
            gateway = manager.start(dir.path());
        }
        stop.store(true, Ordering::Relaxed);
        let written = clients.into_iter().map(|client| client.join().unwrap()).collect();
        gateway.stop_well();
        written
    });
    let files = std::fs::read_dir(dir.path().join("root/bucket")).unwrap();
    let files = files.map(|entry| entry.unwrap()).filter(|entry| entry.file_name() != ".fordway");
    let found: usize = files.map(|entry| std::fs::read_dir(entry.path()).unwrap().count()).sum();
    assert_eq!(found, written.iter().sum::<usize>(), "no acknowledged object is lost");
}

/// If the service manager passes no socket for S3, the gateway must report the missing socket and exit.
#[test]
fn a_socket_without_a_use_is_refused() {
    let dir = place();
    let manager = ServiceManager::listening();
    let ended = manager.command(dir.path(), "metrics").output().unwrap();
    let said = String::from_utf8(ended.stderr).unwrap();
    assert!(!ended.status.success() && said.contains("passed no socket for S3"), "{said}");
}
