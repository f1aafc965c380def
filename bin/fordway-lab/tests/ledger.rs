//! Tests the ledger and the probe as separate processes: their output, and the files that remain. Durations are not
//! checked.

use std::path::Path;
use std::process::{Command, Output};

use fordway_measure::RunDocument;
use serde_json::Value;

fn fordway(dir: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fordway-lab"));
    // The machine's settings must not affect a test.
    command
        .args(words)
        .env_clear()
        .env("HOME", "/nonexistent")
        .env("FORDWAY_LAB_FORCE", "1")
        .env("PATH", "/nonexistent");
    command.current_dir(dir).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Measures every path, with sizes on both sides of the threshold for sending content separately from the head.
#[test]
fn every_path_is_taken_apart() {
    let dir = tempfile::tempdir().unwrap();
    let ran = fordway(
        dir.path(),
        &["ledger", "--root", ".", "--duration", "1ms", "--size", "1KiB", "--size", "100KiB", "--only-sizes"],
    );
    assert!(ran.status.success(), "{}", text(&ran.stderr));
    let printed = text(&ran.stdout);
    assert_eq!(names(dir.path()), ["ledger.run"]);
    let run = RunDocument::read(&dir.path().join("ledger.run")).unwrap();
    assert_eq!((run.kind.as_str(), run.phases.len()), ("ledger", 2));
    assert!(run.parameters["rounds"].as_u64() >= Some(5), "{:?}", run.parameters);
    for summary in &run.summaries {
        assert!(summary.operations >= 15 && summary.errors == 0, "{} {}", summary.lane, summary.phase);
    }
    let account = std::fs::read(dir.path().join("ledger.run/ledger.json")).unwrap();
    let account: Value = serde_json::from_slice(&account).unwrap();
    assert_eq!(account["components"].as_array().unwrap().len(), run.lanes.len());
    for path in [
        "posix get",
        "embedded get",
        "node get",
        "http get",
        "https get",
        "http2 get",
        #[cfg(feature = "http3")]
        "http3 get",
        "embedded put",
        "node put",
        "http put",
        "https put",
        #[cfg(feature = "http3")]
        "http3 put",
    ] {
        let entries: Vec<&Value> =
            account["entries"].as_array().unwrap().iter().filter(|entry| entry["path"] == path).collect();
        assert_eq!(entries.len(), 2, "{path}");
        for entry in entries {
            let ns = |name: &str| entry[name]["value"].as_f64().unwrap();
            assert!(ns("measured_ns") > 0.0 && ns("sum_ns") > 0.0, "{entry}");
            assert!(entry["residual_ns"]["low"].as_f64() <= entry["residual_ns"]["high"].as_f64());
        }
        assert!(printed.contains(&format!("{path}, 1.00 KiB")), "{path}: {printed}");
    }
    assert!(printed.contains("sum of components") && printed.contains("residual"), "{printed}");
    assert_eq!(printed.matches("medians do not add up exactly").count(), 1, "{printed}");
}

/// Readers of run files identify a result by its phase, so neighbouring sizes need different names.
#[test]
fn neighbouring_sizes_are_different_phases() {
    let dir = tempfile::tempdir().unwrap();
    let sizes = ["--size", "4095", "--size", "4KiB", "--only-sizes", "--path", "posix"];
    let ran = fordway(dir.path(), &[&["ledger", "--root", ".", "--duration", "1ms"][..], &sizes].concat());
    assert!(ran.status.success(), "{}", text(&ran.stderr));
    let run = RunDocument::read(&dir.path().join("ledger.run")).unwrap();
    assert_eq!(run.phases, ["4095 B", "4 KiB"]);
}

/// The client copies content once more if the content arrives in one message with the head. The client does not copy
/// content that is passed as a file descriptor.
#[test]
fn the_parts_are_those_of_the_size() {
    let dir = tempfile::tempdir().unwrap();
    let ran = fordway(
        dir.path(),
        &[
            "ledger",
            "--root",
            ".",
            "--duration",
            "1ms",
            "--size",
            "64KiB",
            "--size",
            "65KiB",
            "--only-sizes",
            "--path",
            "node",
            "--placement",
            "free",
            "--json",
        ],
    );
    assert!(ran.status.success(), "{}", text(&ran.stderr));
    let records: Vec<Value> =
        text(&ran.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let parts = |size: u64| -> Vec<&str> {
        let entry = records.iter().find(|record| record["size_bytes"] == size).unwrap();
        entry["parts"].as_array().unwrap().iter().map(|part| part["component"].as_str().unwrap()).collect()
    };
    assert_eq!(parts(64 << 10), ["embedded get", "unix round trip", "node frames", "memory copy"]);
    assert_eq!(parts(65 << 10), ["embedded get", "unix round trip", "node frames"]);
    assert!(records.iter().any(|record| record["component"] == "memory copy" && record["fit"].is_object()));
}

/// The component that measures HTTP/2 frames includes an in-memory pipe. The path has no such pipe, so the pipe's time
/// is subtracted.
#[test]
fn http2_is_taken_apart_without_the_pipe() {
    let dir = tempfile::tempdir().unwrap();
    let words = ["ledger", "--root", ".", "--duration", "1ms", "--size", "70KiB", "--only-sizes", "--json"];
    let ran = fordway(dir.path(), &[&words[..], &["--path", "http2"]].concat());
    assert!(ran.status.success(), "{}", text(&ran.stderr));
    let records: Vec<Value> =
        text(&ran.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let entry = records.iter().find(|record| record["path"] == "http2 get").unwrap();
    let part = |component: &str| {
        let parts = entry["parts"].as_array().unwrap();
        parts
            .iter()
            .find(|part| part["component"] == component)
            .unwrap_or_else(|| panic!("{component}: {entry}"))
    };
    assert_eq!(
        (&part("memory pipe")["times"], &part("http2 frames")["times"]),
        (&(-1.0).into(), &1.0.into())
    );
    assert!(part("memory pipe")["ns"]["value"].as_f64() < Some(0.0), "{entry}");
    // Only one size is measured, and a fit needs several sizes.
    assert!(entry["fitted_sum_ns"].is_null(), "{entry}");
}

/// The time attributed to each HTTP/3 layer is the difference between its round trip and the round trip of the layer
/// below. The content is smaller than a packet, about as large as a packet, or so large that acknowledgements are
/// needed.
#[cfg(feature = "http3")]
#[test]
fn http3_is_a_ladder() {
    let dir = tempfile::tempdir().unwrap();
    let words = ["ledger", "--root", ".", "--duration", "1ms", "--only-sizes", "--json"];
    let sizes = ["--size", "1,1400,1MiB", "--path", "http3,http3-put"];
    let ran = fordway(dir.path(), &[&words[..], &sizes].concat());
    assert!(ran.status.success(), "{}", text(&ran.stderr));
    let records: Vec<Value> =
        text(&ran.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for (path, suffix) in [("http3 get", ""), ("http3 put", ", put")] {
        let entries: Vec<&Value> = records.iter().filter(|record| record["path"] == path).collect();
        assert_eq!(entries.len(), 3, "{path}");
        for entry in entries {
            let parts = entry["parts"].as_array().unwrap();
            let beyond = |name: &str| {
                let part = parts.iter().find(|part| part["component"] == format!("{name}{suffix}"));
                part.unwrap_or_else(|| panic!("{name}: {entry}"))["beyond"].clone()
            };
            assert_eq!(beyond("udp round trip"), Value::Null);
            assert_eq!(beyond("quic round trip"), format!("udp round trip{suffix}"));
            assert_eq!(beyond("http3 round trip"), format!("quic round trip{suffix}"));
            assert_eq!(beyond("socket pair round trip"), Value::Null);
        }
    }
    assert!(records.iter().any(|record| record["component"] == "packet protection"), "{records:?}");
}

/// The components of a GET on a new connection are a GET on a kept connection and the set-up of the connection. The
/// components that resume sessions also check that each session is resumed.
#[test]
fn new_connections_are_taken_apart() {
    let dir = tempfile::tempdir().unwrap();
    let words = ["ledger", "--root", ".", "--duration", "1ms", "--size", "4KiB", "--only-sizes", "--json"];
    let paths = if cfg!(feature = "http3") { "http-new,https-new,http3-new" } else { "http-new,https-new" };
    let ran = fordway(dir.path(), &[&words[..], &["--path", paths]].concat());
    assert!(ran.status.success(), "{}", text(&ran.stderr));
    let records: Vec<Value> =
        text(&ran.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let parts = |path: &str| -> Vec<String> {
        let entry = records.iter().find(|record| record["path"] == path);
        let entry = entry.unwrap_or_else(|| panic!("{path}: {records:?}"));
        let part = |part: &Value| match part["beyond"].as_str() {
            Some(base) => format!("{} beyond {base}", part["component"].as_str().unwrap()),
            None => part["component"].as_str().unwrap().to_owned(),
        };
        entry["parts"].as_array().unwrap().iter().map(part).collect()
    };
    let tcp = "tcp, new connection beyond tcp, kept connection";
    assert_eq!(parts("http get, new connection"), ["http get", tcp]);
    assert_eq!(
        parts("https get, new connection"),
        ["https get", tcp, "tls, new connection beyond tcp, new connection", "tls settings"]
    );
    assert_eq!(
        parts("https get, resumed session"),
        ["https get", tcp, "tls, resumed session beyond tcp, new connection"]
    );
    for name in ["http get", "https get"] {
        assert_eq!(records.iter().filter(|record| record["path"] == name).count(), 1, "{name}");
    }
    if cfg!(feature = "http3") {
        assert_eq!(
            parts("http3 get, resumed session"),
            ["http3 get", "quic round trip, resumed session beyond quic round trip"]
        );
        assert_eq!(parts("http3 get, new connection")[2], "tls settings");
    }
    for component in ["tls handshake", "tls handshake, resumed"] {
        assert!(records.iter().any(|record| record["component"] == component), "{component}");
    }
}

/// A program without HTTP/3 reports the names of the skipped paths, and measures the other paths.
#[cfg(not(feature = "http3"))]
#[test]
fn a_program_without_http3_leaves_it_out() {
    let dir = tempfile::tempdir().unwrap();
    let words = ["ledger", "--root", ".", "--duration", "1ms", "--size", "4KiB", "--only-sizes"];
    let ran = fordway(dir.path(), &[&words[..], &["--path", "posix,http3,http3-put"]].concat());
    assert!(ran.status.success(), "{}", text(&ran.stderr));
    let run = RunDocument::read(&dir.path().join("ledger.run")).unwrap();
    for path in ["http3 get", "http3 put"] {
        let start = format!("skipped the path {path}: ");
        assert!(run.warnings.iter().any(|warning| warning.starts_with(&start)), "{:?}", run.warnings);
    }
    assert!(text(&ran.stdout).contains("posix get, 4.00 KiB"), "{}", text(&ran.stdout));
}

/// Content over 128 KiB is sent in a file that the gateway provides. The file must not remain.
#[test]
fn puts_are_the_sum_of_theirs() {
    let dir = tempfile::tempdir().unwrap();
    let words = ["ledger", "--root", ".", "--duration", "1ms", "--only-sizes", "--json"];
    let sizes = ["--size", "128KiB", "--size", "129KiB"];
    // A path that is specified twice is measured once.
    let paths = ["--path", "node-put", "--path", "http-put", "--path", "node-put"];
    let ran = fordway(dir.path(), &[&words[..], &sizes, &paths].concat());
    assert!(ran.status.success(), "{}", text(&ran.stderr));
    assert_eq!(names(dir.path()), ["ledger.run"]);
    let records: Vec<Value> =
        text(&ran.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let parts = |path: &str, size: u64| -> Vec<&str> {
        let is_it = |record: &&Value| record["path"] == path && record["size_bytes"] == size;
        let entry = records.iter().find(is_it).unwrap_or_else(|| panic!("{path} at {size}: {records:?}"));
        entry["parts"].as_array().unwrap().iter().map(|part| part["component"].as_str().unwrap()).collect()
    };
    for size in [128 << 10, 129 << 10] {
        assert_eq!(
            parts("node put", size),
            ["embedded put", "unix round trip, put", "node frames, put"],
            "at {size}"
        );
        assert_eq!(parts("http put", size)[..2], ["embedded put, checksum", "crc64nvme"], "at {size}");
    }
    assert_eq!(records.iter().filter(|record| record["path"] == "node put").count(), 2);
}

/// If only root can set up a network, the command skips that network for other users and reports the reason. For all
/// users, it skips a network that translates addresses.
#[test]
fn a_network_is_a_path_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let words = ["ledger", "--root", ".", "--duration", "1ms", "--size", "4KiB", "--only-sizes"];
    let networks = ["--path", "posix", "--setup", "bare", "--setup", "bridge"];
    let ran = fordway(dir.path(), &[&words[..], &networks].concat());
    assert!(ran.status.success(), "{}", text(&ran.stderr));
    let run = RunDocument::read(&dir.path().join("ledger.run")).unwrap();
    let is_left_out = |name: &str| {
        let start = format!("skipped the network {name}: ");
        run.warnings.iter().any(|warning| warning.starts_with(&start) && warning.len() > start.len())
    };
    assert!(is_left_out("bridge"), "{:?}", run.warnings);
    if fordway_sys::user_id() != 0 {
        assert!(is_left_out("bare"), "{:?}", run.warnings);
        return;
    }
    let account = std::fs::read(dir.path().join("ledger.run/ledger.json")).unwrap();
    let account: Value = serde_json::from_slice(&account).unwrap();
    let entries = account["entries"].as_array().unwrap();
    let entry = entries.iter().find(|entry| entry["path"] == "http get, bare").unwrap();
    let parts: Vec<_> = entry["parts"].as_array().unwrap().iter().map(|part| &part["component"]).collect();
    assert!(parts.contains(&&Value::from("tcp round trip, bare")), "{parts:?}");
    assert!(parts.contains(&&Value::from("verify")), "{parts:?}");
}

/// A path with a container is compared with the same path without a container, on this machine's network and at the far
/// end of a wire. If no container can be started, the command reports the names of both skipped paths, and measures the
/// other paths.
#[test]
fn a_container_is_a_row_beside_the_same_without_it() {
    let dir = tempfile::tempdir().unwrap();
    let words = ["ledger", "--root", ".", "--duration", "1ms", "--size", "4KiB", "--only-sizes"];
    let mut command = Command::new(env!("CARGO_BIN_EXE_fordway-lab"));
    command.args(words).args(["--path", "posix", "--setup", "container,bare+container"]);
    command.env("FORDWAY_LAB_FORCE", "1").current_dir(dir.path());
    let ran = command.output().unwrap();
    assert!(ran.status.success(), "{}", text(&ran.stderr));
    assert!(text(&ran.stdout).contains("posix get, 4.00 KiB"), "{}", text(&ran.stdout));
    let run = RunDocument::read(&dir.path().join("ledger.run")).unwrap();
    let names = ["container", "bare+container"];
    let is_left_out = |name: &str| {
        let start = format!("skipped the network {name}: ");
        run.warnings.iter().any(|warning| warning.starts_with(&start) && warning.len() > start.len())
    };
    if names.iter().any(|name| is_left_out(name)) {
        assert!(names.iter().all(|name| is_left_out(name)), "{:?}", run.warnings);
        let can = fordway_sys::user_id() == 0 && fordway_needs::programs(&["crun", "unshare", "ip"]);
        assert!(!can, "{:?}", run.warnings);
        return;
    }
    let account = std::fs::read(dir.path().join("ledger.run/ledger.json")).unwrap();
    let account: Value = serde_json::from_slice(&account).unwrap();
    for (name, without) in [("container", ""), ("bare+container", ", bare")] {
        let path = format!("http get, {name}");
        let entry =
            account["entries"].as_array().unwrap().iter().find(|entry| entry["path"] == path.as_str());
        let parts = &entry.unwrap_or_else(|| panic!("{path}: {account}"))["parts"];
        assert_eq!(parts[0]["component"], format!("http get{without}"));
        assert_eq!(parts[1]["component"], format!("tcp round trip, {name}"));
        assert_eq!(parts[1]["beyond"], format!("tcp round trip{without}"));
    }
    for summary in run.summaries.iter().filter(|summary| summary.lane.contains("container")) {
        assert!(summary.operations >= 15 && summary.errors == 0, "{} {}", summary.lane, summary.phase);
    }
}

#[test]
fn what_cannot_be_measured_is_said() {
    let dir = tempfile::tempdir().unwrap();
    for (words, said) in [
        (&["ledger", "--size", "0"][..], "--size 0: use 1 B to 64.0 MiB"),
        (&["ledger", "--root", "missing"], "missing"),
        (&["ledger", "--path", "http4"], "similar value"),
        (&["ledger", "--root", ".", "--setup", "moon"], "there is no set-up \"moon\""),
        (&["ledger", "--root", ".", "--setup", "moon+container"], "there is no set-up \"moon\""),
        (&["ledger", "--root", ".", "--setup", "container+container"], "cannot hold other programs"),
        (&["ledger", "--root", ".", "--setup", "bare", "--setup", "bare"], "give each only once"),
    ] {
        let ran = fordway(dir.path(), words);
        assert!(!ran.status.success(), "{words:?}");
        assert!(text(&ran.stderr).contains(said), "{words:?}: {}", text(&ran.stderr));
    }
    assert!(names(dir.path()).is_empty());
}

/// `fordway-lab` rejects an `--endpoint` that the command would not use, and reports that it does not measure an
/// endpoint from the environment.
#[test]
fn an_endpoint_is_never_ignored_without_a_word() {
    let dir = tempfile::tempdir().unwrap();
    for words in [
        &["ledger"][..],
        &["speedup", "--", "true"],
        &["machines", "probe"],
        &["doctor"],
        &["netlab", "--", "true"],
        &["pingpong", "pong"],
        &["bench", "transport"],
        &["bench", "pingpong", "--list"],
        &["bench", "rest", "http://127.0.0.1:1/x"],
        &["bench", "vector", "http://127.0.0.1:1/x", "--ranges", "none"],
        &["bench", "mdtest", "."],
    ] {
        let ran = fordway(dir.path(), &[&["--endpoint", "http://127.0.0.1:1"], words].concat());
        assert_eq!(ran.status.code(), Some(2), "{words:?}");
        let said = text(&ran.stderr);
        assert!(said.contains("--endpoint http://127.0.0.1:1 is not used here: "), "{words:?}: {said}");
    }
    for option in ["--profile", "--region"] {
        let ran = fordway(dir.path(), &[option, "any", "doctor"]);
        assert_eq!(ran.status.code(), Some(2), "{option}");
        assert!(
            text(&ran.stderr).contains(&format!("{option} any is not used here: ")),
            "{}",
            text(&ran.stderr)
        );
    }
    assert!(names(dir.path()).is_empty());
    let mut command = Command::new(env!("CARGO_BIN_EXE_fordway-lab"));
    command.args([
        "ledger",
        "--duration",
        "1ms",
        "--size",
        "4KiB",
        "--only-sizes",
        "--path",
        "posix",
        "--root",
        ".",
    ]);
    let ran = command.env("AWS_ENDPOINT_URL", "http://aws.invalid").current_dir(dir.path()).output().unwrap();
    assert!(ran.status.success(), "{}", text(&ran.stderr));
    let told = "the endpoint of the environment, http://aws.invalid, is not measured";
    assert!(text(&ran.stderr).contains(told), "{}", text(&ran.stderr));
}

/// The former name of an option is rejected with a message that contains the new name.
#[test]
fn renamed_options_are_answered_with_their_new_names() {
    let dir = tempfile::tempdir().unwrap();
    for (words, tip) in [
        (&["ledger", "--network", "bare"][..], "--network of `ledger` is now --setup"),
        (&["speedup", "--repeat", "7", "--", "true"], "--repeat of `speedup` is now --rounds"),
        (&["compare", ".", "--warm-up", "2"], "--warm-up of `compare` is now --warm-up-rounds"),
        (&["bench", "transport", "--sizes", "1"], "--sizes of `transport` is now --size"),
        (&["bench", "mdtest", ".", "--run", "x.run"], "--run of `bench` is now --out"),
        (&["bench", "rest", "http://127.0.0.1:1/x", "--run=x.run"], "--run of `bench` is now --out"),
        (
            &["bench", "pingpong", "--connections", "kept"],
            "--connections of `pingpong` is now --connection-policy",
        ),
    ] {
        let ran = fordway(dir.path(), words);
        assert_eq!(ran.status.code(), Some(2), "{words:?}");
        assert!(text(&ran.stderr).contains(tip), "{words:?}: {}", text(&ran.stderr));
        assert!(!text(&ran.stderr).contains("a similar"), "{words:?}: {}", text(&ran.stderr));
    }
    assert!(names(dir.path()).is_empty());
}

#[test]
fn a_probe_says_how_it_knows() {
    let dir = tempfile::tempdir().unwrap();
    let ran = fordway(dir.path(), &["machines", "probe", "--disk", ".", "--json"]);
    assert!(ran.status.success(), "{}", text(&ran.stderr));
    let probe: Value = serde_json::from_slice(&ran.stdout).unwrap();
    assert_eq!(probe["schema"], "fordway.probe");
    let quantities = probe["quantities"].as_array().unwrap();
    let found: Vec<&str> = quantities.iter().map(|one| one["name"].as_str().unwrap()).collect();
    assert_eq!(found, ["R", "mem_tp", "mem_tp_all", "rtt", "mtu", "mss", "eBW", "disk_write", "disk_read"]);
    for one in quantities {
        assert!(one["how"].as_str().is_some_and(|how| !how.is_empty()), "{one}");
        assert!(one["value"].is_null() || one["value"].as_f64() > Some(0.0), "{one}");
    }
    assert!(names(dir.path()).is_empty(), "the file is gone");
}

#[test]
fn a_peer_that_is_not_there_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let ran = fordway(dir.path(), &["machines", "probe", "--peer", &gone.to_string()]);
    assert_eq!(ran.status.code(), Some(7), "{}", text(&ran.stderr));
    assert!(text(&ran.stderr).contains(&format!("no connection to {gone}")), "{}", text(&ran.stderr));
}
