//! Tests `machines measure`, `compare` and `pick` as separate processes. The machine's speed is not checked.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;

fn fordway(dir: &Path, path: impl AsRef<std::ffi::OsStr>, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fordway-lab"));
    // The machine's settings must not affect a test.
    command
        .arg("machines")
        .args(words)
        .env_clear()
        .env("HOME", "/nonexistent")
        .env("FORDWAY_LAB_FORCE", "1")
        .env("PATH", path);
    command.current_dir(dir).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn json(ran: &Output) -> Value {
    assert!(ran.status.success(), "{}", text(&ran.stderr));
    serde_json::from_slice(&ran.stdout).unwrap()
}

fn feature<'a>(measured: &'a Value, name: &str) -> &'a Value {
    let features = measured["features"].as_array().unwrap();
    features.iter().find(|one| one["name"] == name).unwrap_or_else(|| panic!("no {name} in {measured}"))
}

/// Returns a directory, for use in PATH, that contains a program `name`.
fn with_program(dir: &Path, name: &str, script: &str) -> PathBuf {
    let bin = dir.join("bin");
    fs::create_dir_all(&bin).unwrap();
    fs::write(bin.join(name), format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(bin.join(name), fs::Permissions::from_mode(0o755)).unwrap();
    bin
}

const PROGRAMS: [&str; 10] = [
    "--feature",
    "threads",
    "--feature",
    "cpu_time_s",
    "--feature",
    "disk_read_mb_per_s",
    "--feature",
    "disk_write_mb_per_s",
    "--feature",
    "loopback_mb_per_s",
];

#[test]
fn missing_programs_are_named_with_their_packages() {
    let dir = tempfile::tempdir().unwrap();
    let mut words =
        vec!["measure", "--json", "--name", "bare one", "--catalogue", "ours.toml", "--disk", "/var/tmp"];
    words.extend(PROGRAMS);
    let measured = json(&fordway(dir.path(), "/nonexistent", &words));
    assert_eq!((&measured["schema"], &measured["name"]), (&"fordway.machine".into(), &"bare one".into()));
    assert!(feature(&measured, "threads")["value"].as_f64() >= Some(1.0));
    for (name, program) in [("cpu_time_s", "tachyon"), ("loopback_mb_per_s", "iperf3")] {
        let one = feature(&measured, name);
        assert!(one["value"].is_null() && one["values"].as_array().unwrap().is_empty(), "{one}");
        let how = one["how"].as_str().unwrap();
        assert_eq!(how, format!("{program} is not installed; on Debian, install the package {program}"));
    }
    assert!(feature(&measured, "disk_read_mb_per_s")["value"].is_null());
    let catalogue = fs::read_to_string(dir.path().join("ours.toml")).unwrap();
    assert!(catalogue.contains("[machine.\"bare one\"]\nthreads = "), "{catalogue}");
    assert!(catalogue.contains("cpu_time_s = \"not measured: tachyon is not installed"), "{catalogue}");
}

#[test]
fn a_machine_is_added_once() {
    let dir = tempfile::tempdir().unwrap();
    let measure = |name| {
        let words = ["measure", "--name", name, "--feature", "threads", "--catalogue", "ours.toml"];
        fordway(dir.path(), "/nonexistent", &words)
    };
    fs::write(dir.path().join("ours.toml"), "# ours\n[machine.a]\nthreads = 1\n").unwrap();
    assert!(measure("b").status.success());
    let ran = measure("a");
    assert_eq!(ran.status.code(), Some(2), "{}", text(&ran.stdout));
    assert!(
        text(&ran.stderr).contains("ours.toml already contains the machine a; give another --name"),
        "{}",
        text(&ran.stderr)
    );
    let catalogue = fs::read_to_string(dir.path().join("ours.toml")).unwrap();
    assert!(catalogue.starts_with("# ours\n[machine.a]\nthreads = 1\n\n[machine.b]\n"), "{catalogue}");
    let ran = fordway(dir.path(), "/nonexistent", &["compare", "ours.toml"]);
    assert!(ran.status.success(), "{}", text(&ran.stderr));
}

/// A catalogue outlives the warning that the command printed, so the catalogue must contain the doubts.
#[test]
fn doubts_about_a_machine_are_told_by_those_who_use_its_values() {
    let dir = tempfile::tempdir().unwrap();
    let machines = "[machine.a]\nthreads = 1\n[machine.a.how]\nconditions = \"measured by force\"\n\
         [machine.b]\nthreads = 2\n";
    fs::write(dir.path().join("ours.toml"), machines).unwrap();
    for words in [&["compare", "ours.toml"][..], &["pick", "--like", "b", "--in", "ours.toml"]] {
        let ran = fordway(dir.path(), "/nonexistent", words);
        let told = text(&ran.stderr);
        assert!(ran.status.success(), "{told}");
        assert_eq!(told.matches("the values of a are in doubt: measured by force").count(), 1, "{told}");
        assert!(!told.contains("values of b"), "{told}");
    }
}

#[test]
fn an_interrupted_measurement_reports_its_complete_rounds() {
    let dir = tempfile::tempdir().unwrap();
    let said = "{\"end\": {\"sum_received\": {\"bits_per_second\": 8000000}}}";
    let script = format!("/bin/sleep 0.2; echo \"Server listening on 1\"; echo '{said}'");
    let bin = with_program(dir.path(), "iperf3", &script);
    let mut command = Command::new(env!("CARGO_BIN_EXE_fordway-lab"));
    command.args([
        "machines",
        "measure",
        "--json",
        "--name",
        "a",
        "--rounds",
        "100",
        "--catalogue",
        "ours.toml",
    ]);
    command.args(["--feature", "loopback_mb_per_s", "--disk", "/var/tmp"]).env_clear();
    command.env("FORDWAY_LAB_FORCE", "1").env("PATH", bin).current_dir(dir.path());
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(Duration::from_secs(3));
    let killed = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
    let ran = child.wait_with_output().unwrap();
    assert_eq!(ran.status.code(), Some(130), "{}", text(&ran.stderr));
    let measured: Value = serde_json::from_slice(&ran.stdout).unwrap();
    let values = feature(&measured, "loopback_mb_per_s")["values"].as_array().unwrap();
    assert!((1..100).contains(&values.len()), "{values:?}");
    assert!(text(&ran.stderr).contains("interrupted: the results cover only"), "{}", text(&ran.stderr));
    assert!(!dir.path().join("ours.toml").exists());
}

/// Uses a stand-in for fio that counts its calls. Writes and reads alternate, so the medians of three rounds are 3 MB/s
/// for writes and 4 MB/s for reads.
#[test]
fn values_are_medians_of_what_programs_say() {
    let dir = tempfile::tempdir().unwrap();
    let count = dir.path().join("count").display().to_string();
    let fio = format!(
        "n=0; [ -f {count} ] && read n < {count}; n=$((n+1)); echo $n > {count}
echo \"{{\\\"jobs\\\": [{{\\\"write\\\": {{\\\"bw_bytes\\\": ${{n}}000000}}, \\\"read\\\": {{\\\"bw_bytes\\\": ${{n}}000000}}}}]}}\""
    );
    let bin = with_program(dir.path(), "fio", &fio);
    let said = "{\"end\": {\"sum_received\": {\"bits_per_second\": 8000000}}}";
    with_program(dir.path(), "iperf3", &format!("echo \"Server listening on 1\"; echo '{said}'"));
    with_program(dir.path(), "tachyon", "echo no picture");
    let mut words = vec!["measure", "--json", "--name", "a", "--disk", "/var/tmp"];
    words.extend(PROGRAMS);
    let measured = json(&fordway(dir.path(), &bin, &words));
    assert_eq!(feature(&measured, "loopback_mb_per_s")["values"], serde_json::json!([1.0, 1.0, 1.0]));
    let tachyon = feature(&measured, "cpu_time_s");
    assert!(
        tachyon["value"].is_null() && tachyon["how"].as_str().unwrap().contains("created no image"),
        "{tachyon}"
    );
    let [write, read] =
        ["write", "read"].map(|what| feature(&measured, &format!("disk_{what}_mb_per_s")).clone());
    if write["how"].as_str().unwrap().contains("is in memory, not on a disk") {
        assert!(write["value"].is_null() && read["value"].is_null());
        return;
    }
    assert_eq!(
        (&write["values"], &read["values"]),
        (&serde_json::json!([1.0, 3.0, 5.0]), &serde_json::json!([2.0, 4.0, 6.0]))
    );
    assert_eq!((write["value"].as_f64(), read["value"].as_f64()), (Some(3.0), Some(4.0)));
}

#[test]
fn a_program_that_fails_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let bin = with_program(dir.path(), "iperf3", "echo 'unable to connect' >&2; exit 1");
    let words = ["measure", "--json", "--peer", "127.0.0.1:9", "--feature", "network_mb_per_s"];
    let measured = json(&fordway(dir.path(), &bin, &words));
    let network = feature(&measured, "network_mb_per_s");
    assert!(network["value"].is_null(), "{network}");
    assert!(network["how"].as_str().unwrap().contains("its output: unable to connect"), "{network}");
}

/// Measures with the real programs instead of stand-ins.
#[test]
fn the_programs_of_debian_are_understood() {
    if !fordway_needs::programs(&["tachyon", "fio", "iperf3"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut words = vec!["measure", "--json", "--rounds", "1", "--disk", "/var/tmp", "--disk-size", "1MiB"];
    words.extend(PROGRAMS);
    let measured = json(&fordway(dir.path(), "/usr/bin:/bin", &words));
    for one in measured["features"].as_array().unwrap() {
        let is_memory = one["how"].as_str().unwrap().contains("is in memory, not on a disk");
        assert!(one["value"].as_f64() > Some(0.0) || is_memory, "{one}");
    }
}

const AWS: &str = "[machine.large]\nthreads = 2\nmemory_mb = 8000\ndisk_read_mb_per_s = 50
[machine.xlarge]\nthreads = 4\nmemory_mb = 16000\n";
const GCE: &str = "[machine.standard-2]\nthreads = 2\nmemory_mb = 7500\n
[machine.standard-4]\nthreads = 4\nmemory_mb = 15000\n[machine.tiny]\nthreads = 1\nmemory_mb = 600\n";

fn catalogues() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("aws.toml"), AWS).unwrap();
    fs::write(dir.path().join("gce.toml"), GCE).unwrap();
    dir
}

#[test]
fn two_catalogues_are_compared() {
    let dir = catalogues();
    let words = ["compare", "aws.toml", "gce.toml", "--heat-map", "map.svg", "--json"];
    let ran = fordway(dir.path(), "", &words);
    let compared = json(&ran);
    assert_eq!(compared["features"], serde_json::json!(["threads", "memory_mb"]));
    let note = text(&ran.stderr);
    assert!(
        note.contains("not comparing disk_read_mb_per_s, which is unknown for xlarge, standard-4"),
        "{note}"
    );
    assert_eq!(compared["rows"], serde_json::json!(["xlarge", "large"]));
    let pairs: Vec<_> =
        compared["pairs"].as_array().unwrap().iter().map(|pair| pair["column"].clone()).collect();
    assert_eq!(pairs, ["standard-4", "standard-2"]);
    // The expected similarity follows from the memory of 7,500 MB, which is 15/16 of 8,000 MB.
    let expected = 1.0 - (1.0f64 / 16.0).powi(2) / 2.0;
    assert!((compared["values"][1][1].as_f64().unwrap() - expected).abs() < 1e-12, "{compared}");
    assert_eq!(fs::read_to_string(dir.path().join("map.svg")).unwrap().matches("<title>").count(), 6);
    let printed = text(&fordway(dir.path(), "", &["compare", "gce.toml"]).stdout);
    assert!(printed.contains("No pair has a similarity of at least 0.9; the most similar:"), "{printed}");
}

#[test]
fn table_iv_has_three_similar_pairs() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../contrib/catalogues/kratzke-quint-table-iv.toml");
    let ran = fordway(Path::new("/"), "", &["compare", "--table", file]);
    assert!(ran.status.success(), "{}", text(&ran.stderr));
    let printed = text(&ran.stdout);
    assert!(
        printed.contains("Pairs with a similarity of at least 0.9: 3\n0.98  m3.large  n1-standard-2\n"),
        "{printed}"
    );
}

#[test]
fn bad_catalogues_are_refused() {
    let dir = catalogues();
    fs::write(dir.path().join("zero.toml"), "[machine.a]\nthreads = 0\n").unwrap();
    fs::write(dir.path().join("other.toml"), "[machine.a]\ncpu_time_s = 3\n").unwrap();
    for (words, code, told) in [
        (
            &["compare", "zero.toml"][..],
            2,
            "zero.toml: machine a: threads is 0, but a feature must be a number above 0",
        ),
        (&["compare", "aws.toml", "other.toml"], 2, "no feature in common"),
        (
            &["compare", "aws.toml", "--feature", "disk_read_mb_per_s"],
            2,
            "disk_read_mb_per_s is not known for xlarge",
        ),
        (
            &["compare", "aws.toml", "--feature", "threds"],
            2,
            "did you mean threads? Choose from: threads, cpu_time_s",
        ),
        (&["compare", "missing.toml"], 3, "missing.toml"),
        (&["compare"], 2, "CATALOGUE"),
        (&["compare", "--table", "aws.toml"], 2, "not a table of similarities"),
        (
            &["pick", "--like", "nobody", "--in", "aws.toml"],
            2,
            "there is no machine nobody; choose from xlarge, large",
        ),
        (&["pick", "--like", "large", "--in", "aws.toml", "--at-least", "threads"], 2, "FEATURE=VALUE"),
    ] {
        let ran = fordway(dir.path(), "", words);
        assert_eq!(ran.status.code(), Some(code), "{words:?}");
        assert!(
            text(&ran.stderr).contains(told) && ran.stdout.is_empty(),
            "{words:?}: {}",
            text(&ran.stderr)
        );
    }
}

#[test]
fn the_most_similar_that_is_large_enough() {
    let dir = catalogues();
    let pick = |more: &[&str]| {
        let words = [&["pick", "--like", "large", "--of", "aws.toml", "--in", "gce.toml"], more].concat();
        fordway(dir.path(), "", &words)
    };
    let names = |ran: &Output| -> Vec<String> {
        let found = json(ran);
        found["candidates"]
            .as_array()
            .unwrap()
            .iter()
            .map(|c| c["name"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(names(&pick(&["--json"])), ["standard-2", "standard-4", "tiny"]);
    assert_eq!(names(&pick(&["--json", "--at-least", "threads=3"])), ["standard-4"]);
    assert_eq!(names(&pick(&["--json", "--at-most", "memory_mb=7500"])), ["standard-2", "tiny"]);
    let printed = text(&pick(&[]).stdout);
    assert!(printed.starts_with("Most similar to large:\n1.00  standard-2\n"), "{printed}");
    assert!(printed.contains("memory_mb") && printed.contains("7500 MB   0.94"), "{printed}");
    let ran = pick(&["--at-least", "threads=64"]);
    assert_eq!(ran.status.code(), Some(1));
    assert!(
        ran.stdout.is_empty() && text(&ran.stderr).contains("no machine of gce.toml meets"),
        "{}",
        text(&ran.stderr)
    );
}
