//! Tests set-ups from templates: a `pong` that another program starts, and a `pong` behind the test's own ssh server.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{SHORT, bench, rows, said};

/// A set-up whose `pong` is started by a shell.
const BY_A_SHELL: &str = "description = \"d\"\non = \"machine\"\n\
     [variables]\nlisten = \"127.0.0.1:{port}\"\n\
     [ping]\naddress = \"127.0.0.1\"\n[pong]\naddress = \"127.0.0.1\"\n\
     command = [\"sh\", \"-c\", \"exec '{fordway}' pingpong pong --listen {listen} --workers {workers} --until-eof\"]\n";

#[test]
fn a_pong_that_is_no_process_of_ours_has_no_processor_time_of_ours() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("shell.toml");
    fs::write(&file, BY_A_SHELL).unwrap();
    let file = file.to_str().unwrap();
    let setup =
        ["--setup", file, "--set", "port=28480", "--set", "ping-port=28481", "--connection-policy", "kept"];
    let output = bench(&[&SHORT[..], &setup].concat());
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let row = &rows(&output)[0];
    assert_eq!((row["operations"].as_u64(), row["errors"].as_u64()), (Some(40), Some(0)), "{row}");
    assert_eq!((&row["server_cpu_ns_per_op"], &row["load"]["server"]), (&Value::Null, &Value::Null), "{row}");

    for (option, reason) in [
        (&["--rate", "1gbit"][..], "existing networks"),
        (&["--tcp-rmem", "87380"][..], "existing networks"),
        (&["--cores", "1"][..], "omit --cores"),
    ] {
        let output = bench(&[&SHORT[..], &setup, option].concat());
        assert_eq!(output.status.code(), Some(7), "{option:?}: {}", said(&output));
        assert!(said(&output).contains(reason), "{option:?}: {}", said(&output));
    }
}

#[test]
fn set_ups_of_one_machine_are_not_taken_for_one_another() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("shell.toml");
    fs::write(&file, BY_A_SHELL).unwrap();
    let setups = format!("loopback,{}", file.display());
    let options = [
        "--setup",
        &setups,
        "--connection-policy",
        "kept",
        "--set",
        "port=28680",
        "--set",
        "ping-port=28681",
    ];
    let output = bench(&[&SHORT[..], &options].concat());
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let rows = rows(&output);
    let lanes: Vec<_> = rows.iter().map(|row| row["lane"].as_str().unwrap()).collect();
    assert_eq!(lanes, ["loopback", "shell"]);
    // In the `shell` set-up, only the client's process is known. This process must not be counted as a process of the
    // server.
    assert!(rows[0]["load"]["server"].is_object() && rows[1]["load"]["server"].is_null(), "{rows:?}");
    // A process that is already listening on either port must not be mistaken for `ping` or `pong`.
    for taken in [28_682, 28_683] {
        let _other = TcpListener::bind(("127.0.0.1", taken)).unwrap();
        let output = bench(&[&SHORT[..], &options].concat());
        assert_eq!(output.status.code(), Some(1), "{}", said(&output));
        let reason = format!("another process already accepts connections at 127.0.0.1:{taken}");
        assert!(said(&output).contains(&reason), "{}", said(&output));
    }
}

#[test]
fn a_template_asks_for_what_must_be_said() {
    let output = bench(&[&SHORT[..], &["--setup", "ssh"]].concat());
    assert_eq!(output.status.code(), Some(7), "{}", said(&output));
    let asks = ["--set pong-host=VALUE", "there is no program `ssh`"];
    assert!(asks.iter().any(|reason| said(&output).contains(reason)), "{}", said(&output));
}

#[test]
fn the_list_says_what_each_set_up_asks_for() {
    let rows = rows(&bench(&["--list"]));
    let of = |name: &str| rows.iter().find(|row| row["name"] == name).unwrap();
    assert_eq!(of("ssh")["unset"], serde_json::json!(["pong-host"]));
    assert_eq!(of("bare")["emulated"], false);
    assert!(of("vm")["emulated"].is_boolean());
}

/// An ssh server with its own keys, port and configuration. The server is killed when this value is dropped.
struct Sshd(Child);

impl Drop for Sshd {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Creates a key pair without a password. The public key is in a file next to the private key.
fn make_key(path: &Path) {
    let mut command = Command::new("ssh-keygen");
    let made = command.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(path).status().unwrap();
    assert!(made.success());
}

impl Sshd {
    /// Starts a server, and writes a client configuration in which its name is `other`.
    fn start(dir: &Path) -> Self {
        let at = |name: &str| dir.join(name).to_str().unwrap().to_owned();
        make_key(&dir.join("host"));
        make_key(&dir.join("user"));
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let server = format!(
            "ListenAddress 127.0.0.1:{port}\nHostKey {}\nAuthorizedKeysFile {}\nPidFile none\n\
             StrictModes no\nUsePAM no\nPasswordAuthentication no\n",
            at("host"),
            at("user.pub"),
        );
        fs::write(dir.join("sshd_config"), server).unwrap();
        let known = fs::read_to_string(dir.join("host.pub")).unwrap();
        fs::write(dir.join("known"), format!("[127.0.0.1]:{port} {known}")).unwrap();
        let client = format!(
            "Host other\n HostName 127.0.0.1\n Port {port}\n IdentityFile {}\n IdentitiesOnly yes\n\
             UserKnownHostsFile {}\n",
            at("user"),
            at("known"),
        );
        fs::write(dir.join("ssh_config"), client).unwrap();
        if fordway_sys::user_id() == 0 {
            // The server needs this directory for privilege separation.
            fs::create_dir_all("/run/sshd").unwrap();
        }
        let log = fs::File::create(dir.join("log")).unwrap();
        let mut command = Command::new("/usr/sbin/sshd");
        command.args(["-D", "-e", "-f", &at("sshd_config")]).stdin(Stdio::null()).stderr(log);
        let mut server = Sshd(command.spawn().unwrap());
        let since = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            let log = || fs::read_to_string(dir.join("log")).unwrap();
            assert!(server.0.try_wait().unwrap().is_none(), "sshd has ended: {}", log());
            assert!(since.elapsed() < Duration::from_secs(60), "sshd does not answer: {}", log());
            std::thread::sleep(Duration::from_millis(20));
        }
        server
    }
}

#[test]
fn pong_is_started_by_ssh_and_ends_with_the_bench() {
    if !fordway_needs::programs(&["ssh", "sshd", "ssh-keygen"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let _server = Sshd::start(dir.path());
    // Use a copy of the program with a unique name, so that its processes can be found by name.
    let program = dir.path().join("fordway-of-this-test");
    fs::copy(env!("CARGO_BIN_EXE_fordway-lab"), &program).unwrap();
    let program = program.to_str().unwrap();
    let set = [
        "pong-host=other".to_owned(),
        "pong-at=127.0.0.1".to_owned(),
        format!("program={program}"),
        format!("ssh=ssh -o BatchMode=yes -F {}", dir.path().join("ssh_config").display()),
        "port=28580".to_owned(),
        "ping-port=28581".to_owned(),
    ];
    let set: Vec<&str> = set.iter().flat_map(|word| ["--set", word]).collect();
    // The delay of every response shows that the option reaches the `pong` behind ssh.
    let delay = ["--pong-option=--delay=5ms", "--setup", "ssh", "--connection-policy", "kept"];
    let output = bench(&[&SHORT[..], &delay, &set].concat());
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let row = &rows(&output)[0];
    assert_eq!((row["operations"].as_u64(), row["errors"].as_u64()), (Some(40), Some(0)), "{row}");
    assert!(row["latency"]["min_ns"].as_u64().unwrap() > 5_000_000, "{row}");
    let since = Instant::now();
    while super::setups::processes_with(program) > 0 {
        assert!(since.elapsed() < Duration::from_secs(60), "pong goes on");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Stands in for kubectl: runs the program of a pod on this machine, and takes a while to remove the pod.
const KUBECTL: &str = r#"#!/bin/sh
cd "$DIR" || exit 1
echo "$*" >>log
case $1 in
run)
    name=$2
    [ -e "$name" ] && exit 1
    sleep 0.3
    touch "$name"
    until [ "$1" = -- ]; do shift; done
    shift 2
    for word; do
        shift
        case $word in http://fordway-pong:*) word=http://127.0.0.1:${word##*:} ;; esac
        set -- "$@" "$word"
    done
    "$PROGRAM" "$@"
    sleep 1.5
    rm "$name"
    echo "removed $name" >>log
    ;;
get | wait) for pod; do :; done; [ -e "${pod#pod/}" ] || exit 1 ;;
port-forward) exec sleep 60 ;;
esac
"#;

/// Runs the set-up `kubernetes` with [`KUBECTL`], which keeps its files in `dir`. Returns the output, and the log of
/// the calls of kubectl. `ports` contains the ports of `pong` and `ping`.
fn bench_in_pods(dir: &Path, ports: [&str; 2]) -> (Output, String) {
    let kubectl = dir.join("kubectl");
    fs::write(&kubectl, KUBECTL).unwrap();
    fs::set_permissions(&kubectl, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let setup = ["--setup", "kubernetes", "--connection-policy", "kept"];
    let [port, ping_port] = [format!("port={}", ports[0]), format!("ping-port={}", ports[1])];
    let set = ["--set", "image=none", "--set", &port, "--set", &ping_port];
    let words = [&["bench", "pingpong", "--json", "--seed", "1"], &SHORT[..], &setup, &set].concat();
    let path = format!("{}:{}", dir.display(), std::env::var("PATH").unwrap());
    let mut command = super::fordway(&words);
    command.env("PATH", path).env("DIR", dir).env("PROGRAM", env!("CARGO_BIN_EXE_fordway-lab"));
    let output = command.output().unwrap();
    (output, fs::read_to_string(dir.join("log")).unwrap())
}

/// The programs in pods must not end before the run, and no pod may remain after the run.
#[test]
fn pods_run_as_long_as_the_bench_and_are_removed() {
    let dir = tempfile::tempdir().unwrap();
    let (output, log) = bench_in_pods(dir.path(), ["28780", "28781"]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let row = &rows(&output)[0];
    assert_eq!((row["operations"].as_u64(), row["errors"].as_u64()), (Some(40), Some(0)), "{row}");
    for line in [
        "=metadata.name=fordway-pong,status.phase!=Running,status.phase!=Pending\n",
        "=metadata.name=fordway-ping,status.phase!=Running,status.phase!=Pending\n",
        "delete --ignore-not-found --now service/fordway-pong\n",
        "delete pods --now --wait=false --selector=fordway-run=",
        "delete pods,services --now --wait=false --selector=fordway-run=",
        "removed fordway-ping\n",
        "removed fordway-pong\n",
    ] {
        assert!(log.contains(line), "{line:?} is missing in {log}");
    }
}

/// The pods and the service of another run in the same namespace are not removed, and the run is refused.
#[test]
fn pods_of_another_run_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("fordway-pong"), "").unwrap();
    let (output, log) = bench_in_pods(dir.path(), ["29080", "29081"]);
    assert_ne!(output.status.code(), Some(0), "{}", said(&output));
    let remedy = "kubectl delete --now pod/fordway-pong service/fordway-pong";
    assert!(said(&output).contains(remedy), "{}", said(&output));
    assert!(!log.contains("pods,services"), "{log}");
    assert!(!log.contains("service/fordway-pong") && !log.contains("removed fordway-pong"), "{log}");
}
