//! Tests set-ups that need root: the options of their wires, emulated machines, and clean-up.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::{SHORT, bench, fordway, is_root, rows, said};

/// The part of a set-up file that places `pong` and `ping` in two networks.
const ENDS: &str =
    "[pong]\nin = \"pong\"\naddress = \"{pong-host}\"\n[ping]\nin = \"ping\"\naddress = \"127.0.0.1\"\n";

#[test]
fn overlays_take_every_option_of_the_wire() {
    if !is_root() {
        return;
    }
    let allowed = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_allowed_congestion_control").unwrap();
    let algorithm = allowed.split_ascii_whitespace().next().unwrap();
    for options in [
        &["--mtu", "1400"][..],
        &["--mtu", "9000", "--no-offload"][..],
        &["--rtt", "2ms", "--cores", "1"][..],
        &["--loss", "0.1%", "--congestion", algorithm][..],
    ] {
        let output = bench(
            &[&SHORT[..], &["--setup", "bare,vxlan,tunnel", "--connection-policy", "kept"], options].concat(),
        );
        assert_eq!(output.status.code(), Some(0), "{options:?}: {}", said(&output));
        let rows = rows(&output);
        assert_eq!(rows.len(), 3, "{options:?}");
        assert!(
            rows.iter().all(|row| row["operations"] == 40 && row["errors"] == 0),
            "{options:?}: {rows:?}"
        );
    }
}

#[test]
fn what_bridges_the_wire_is_not_put_on_an_emulated_link() {
    if !is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("bridging.toml");
    std::fs::write(&file, format!("description = \"d\"\nneeds-ethernet = true\n{ENDS}")).unwrap();
    let setup = ["--setup", file.to_str().unwrap(), "--connection-policy", "kept"];
    let output = bench(&[&SHORT[..], &setup, &["--rtt", "2ms"]].concat());
    assert_eq!(output.status.code(), Some(7), "{}", said(&output));
    assert!(said(&output).contains("it bridges the link"), "{}", said(&output));
    let output = bench(&[&SHORT[..], &setup].concat());
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
}

#[test]
fn what_is_emulated_is_marked_in_every_place() {
    if !is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("machine.toml");
    std::fs::write(&file, format!("description = \"d\"\nvariables = {{ accelerator = \"kvm\" }}\n{ENDS}"))
        .unwrap();
    let run = dir.path().join("x.run");
    let words =
        ["--setup", file.to_str().unwrap(), "--connection-policy", "kept", "--out", run.to_str().unwrap()];
    let output = bench(&[&SHORT[..], &words, &["--set", "accelerator=tcg"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert!(
        said(&output).contains("machine (emulated): its processor is emulated in software"),
        "{}",
        said(&output)
    );
    assert_eq!(rows(&output)[0]["lane"], "machine (emulated)");
    let info: serde_json::Value =
        serde_json::from_slice(&std::fs::read(run.join("run.json")).unwrap()).unwrap();
    assert_eq!(info["parameters"]["setups"][0]["emulated"], true);
    assert_eq!(info["lanes"][0]["name"], "machine (emulated)");
    assert!(info["parameters"]["setups"][0]["started_in_ns"].as_u64().unwrap() > 0);
    let output = bench(&[&SHORT[..], &words[..4]].concat());
    assert_eq!(rows(&output)[0]["lane"], "machine", "kvm runs code on the processor itself");
}

/// Returns a directory that contains a kernel with its modules: this machine's root, or the directory into which
/// `tools/vm-kernel` unpacked a kernel.
fn kernel_root() -> Option<String> {
    let unpacked = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/vm-kernel");
    let has_kernel = |root: &&Path| {
        let files = std::fs::read_dir(root.join("boot")).into_iter().flatten().flatten();
        let is_kernel = |file: &std::fs::DirEntry| file.file_name().to_string_lossy().starts_with("vmlinuz-");
        files.into_iter().any(|file| is_kernel(&file)) && root.join("lib/modules").is_dir()
    };
    let found = [Path::new("/"), &unpacked].into_iter().find(has_kernel);
    found.map(|root| root.to_str().unwrap().to_owned())
}

#[test]
fn pong_answers_from_a_virtual_machine() {
    if !is_root() {
        return;
    }
    let has = |program: &str| std::env::split_paths("/usr/bin:/bin").any(|dir| dir.join(program).exists());
    let (true, true, Some(root)) = (has("qemu-system-x86_64"), has("busybox"), kernel_root()) else {
        fordway_needs::skip(
            "qemu-system-x86, busybox-static, and a kernel as tools/vm-kernel unpacks it are needed",
        );
        return;
    };
    // Use emulation (TCG), because it is available on every machine, even without hardware virtualization.
    let set = ["--set", "accelerator=tcg", "--set", &format!("kernel-root={root}")];
    let options = ["--setup", "vm", "--tcp-rmem", "87380", "--mtu", "1400", "--connection-policy", "kept"];
    let output = bench(&[&SHORT[..], &options, &set].concat());
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let rows = rows(&output);
    assert!(rows.iter().all(|row| row["lane"] == "vm (emulated)" && row["operations"] == 40), "{rows:?}");
    let nowhere = tempfile::tempdir().unwrap();
    let set = ["--set", &format!("kernel-root={}", nowhere.path().display())];
    let output = bench(&[&SHORT[..], &["--setup", "vm"], &set].concat());
    assert_eq!(output.status.code(), Some(7), "{}", said(&output));
    assert!(said(&output).contains("there is no kernel with its modules below"), "{}", said(&output));
}

/// Returns the network devices of this namespace, and the number of mounts named `fordway`.
fn traces() -> (String, usize) {
    let mut devices: Vec<_> =
        std::fs::read_dir("/sys/class/net").unwrap().map(|entry| entry.unwrap().file_name()).collect();
    devices.sort();
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    (format!("{devices:?}"), mounts.matches(" fordway ").count())
}

/// Counts the processes with `word` in their command line. The command lines of all descendants of a benchmark contain
/// the program's file name.
pub(super) fn processes_with(word: &str) -> usize {
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let has_word = |path: &Path| {
        std::fs::read(path.join("cmdline")).is_ok_and(|text| String::from_utf8_lossy(&text).contains(word))
    };
    all.filter(|process| has_word(&process.path())).count()
}

#[test]
fn nothing_is_left_after_a_kill_and_after_an_interrupt() {
    if !is_root() {
        return;
    }
    let before = traces();
    // The nine processes are the benchmark itself, two ends in each of three set-ups, and the two ends of the tunnel.
    let is_up = |count| count >= 9;
    for signal in ["KILL", "INT"] {
        end_in_the_middle(&["--setup", "bare,vxlan,tunnel"], signal, None, &is_up);
        assert_eq!(traces(), before, "{signal}");
    }
}

/// Starts a long benchmark, and sends it a signal when `is_up` returns true for the number of its processes. All
/// processes must then exit.
fn end_in_the_middle(options: &[&str], signal: &str, path: Option<&Path>, is_up: &dyn Fn(usize) -> bool) {
    let dir = tempfile::tempdir().unwrap();
    let own = dir.path().join("fordway-of-this-test");
    std::fs::copy(env!("CARGO_BIN_EXE_fordway-lab"), &own).unwrap();
    let mut command = Command::new(&own);
    command.args(["bench", "pingpong", "--rounds", "1000"]).args(options);
    command.envs(path.map(|path| ("PATH", path)));
    let mut running = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let own = own.to_str().unwrap();
    let wait_until = |is_so: &dyn Fn(usize) -> bool| {
        let since = Instant::now();
        while !is_so(processes_with(own)) {
            assert!(since.elapsed() < Duration::from_secs(60), "{} processes", processes_with(own));
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    wait_until(is_up);
    let id = running.id().to_string();
    assert!(Command::new("kill").args(["-s", signal, &id]).status().unwrap().success());
    running.wait().unwrap();
    wait_until(&|count| count == 0);
}

/// Returns the control groups that have the names of our containers.
fn groups() -> Vec<std::path::PathBuf> {
    let output =
        Command::new("find").args(["/sys/fs/cgroup", "-type", "d", "-name", "fordway-p[io]ng-*"]).output();
    String::from_utf8_lossy(&output.unwrap().stdout).lines().map(Into::into).collect()
}

#[test]
fn runc_takes_the_place_of_crun_and_the_next_run_removes_what_a_kill_left() {
    if !is_root() {
        return;
    }
    // PATH contains links to all programs except crun, because the benchmark would prefer crun to runc.
    let bin = tempfile::tempdir().unwrap();
    for dir in ["/usr/bin", "/usr/sbin"] {
        for program in std::fs::read_dir(dir).unwrap().flatten() {
            if program.file_name() != "crun" {
                let _ = std::os::unix::fs::symlink(program.path(), bin.path().join(program.file_name()));
            }
        }
    }
    if !bin.path().join("runc").exists() {
        fordway_needs::skip("runc is not installed");
        return;
    }
    // The command lines of both ends contain the program's name, and so do the command lines of their container
    // runtimes.
    end_in_the_middle(&["--setup", "container"], "KILL", Some(bin.path()), &|count| count >= 3);
    let mut short =
        fordway(&["bench", "pingpong", "--json", "--setup", "container", "--connection-policy", "kept"]);
    let output = short.args(SHORT).env("PATH", bin.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert_eq!(rows(&output)[0]["operations"], 40);
    assert_eq!(groups(), Vec::<std::path::PathBuf>::new());
}
