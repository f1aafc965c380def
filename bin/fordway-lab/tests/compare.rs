//! Tests `fordway compare` as a separate process: its output, the files that remain, and its exit code.

use std::io::{BufRead, BufReader};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use fordway_measure::RunDocument;
use fordway_sys::terminate;
use tempfile::TempDir;

fn fordway(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fordway-lab"));
    // The machine's settings must not affect a test.
    command
        .args(words)
        .env_clear()
        .env("HOME", "/nonexistent")
        .env("FORDWAY_LAB_FORCE", "1")
        .env("PATH", "/nonexistent");
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Creates a tree with a few small files and one file that is larger than all buffers.
fn tree(dir: &Path) {
    for i in 0..30 {
        let at = dir.join(format!("d{}", i % 4));
        std::fs::create_dir_all(&at).unwrap();
        std::fs::write(at.join(format!("f{i}")), vec![i as u8; i * 100]).unwrap();
    }
    std::fs::write(dir.join("large"), vec![7; 3_000_000]).unwrap();
}

fn compare(dir: &Path, more: &[&str]) -> Command {
    let mut command = fordway(&["compare", "source", "--root", ".", "--no-report"]);
    command.args(more).current_dir(dir);
    command
}

fn entries(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Every lane runs every phase, and all content is verified. Only a readable run file remains.
#[test]
fn every_lane_does_every_phase() {
    let dir = tempfile::tempdir().unwrap();
    tree(&dir.path().join("source"));
    let ran = compare(dir.path(), &["--check-instrument", "--seed", "7"]).output().unwrap();
    assert!(ran.status.success(), "{}", text(&ran.stderr));
    let table = text(&ran.stdout);
    assert!(table.contains("instrument: ") && table.contains("run: compare.run"), "{table}");
    assert_eq!(entries(dir.path()), ["compare.run", "source"]);

    let run = RunDocument::read(&dir.path().join("compare.run")).unwrap();
    let lanes: Vec<_> = run.lanes.iter().map(|lane| lane.name.as_str()).collect();
    assert_eq!(lanes, ["posix", "embedded", "node", "http", "posix+delay"]);
    assert_eq!(run.summaries.len(), 6 * 5);
    for row in &run.summaries {
        let operations = match row.phase.as_str() {
            "list" => 15,
            "range" => 5 * 30,
            _ => 5 * 31,
        };
        assert_eq!((row.operations, row.errors), (operations, 0), "{} {}", row.phase, row.lane);
        let has_server = ["node", "http"].contains(&row.lane.as_str());
        assert_eq!(row.server_cpu_ns_per_op.is_some(), has_server, "{} {}", row.phase, row.lane);
        assert!(table.contains(row.phase.as_str()) && table.contains(row.lane.as_str()));
    }
    assert_eq!(run.parameters["seed"], 7);
    assert_eq!(run.parameters["durability"], "none");
    let check = &run.parameters["instrument_check"];
    assert!(check["injected_ns"].as_f64().unwrap() >= 8e5 && check["measured_ns"].as_f64().unwrap() > 0.0);
}

/// Gateways with TLS, HTTP/2 and HTTP/3 must each have a row, in addition to the row of the plain gateway.
#[test]
fn tls_and_newer_versions_are_rows() {
    let dir = tempfile::tempdir().unwrap();
    tree(&dir.path().join("source"));
    let ran =
        compare(dir.path(), &["--lane", "http", "--lane", "https", "--lane", "http2", "--lane", "http3"])
            .output()
            .unwrap();
    assert!(ran.status.success(), "{}", text(&ran.stderr));
    let run = RunDocument::read(&dir.path().join("compare.run")).unwrap();
    let lanes: Vec<_> = run.lanes.iter().map(|lane| lane.name.as_str()).collect();
    assert_eq!(lanes, ["http", "https", "http2", "http3"]);
    assert!(run.lanes[1].description.contains("TLS") && run.lanes[2].description.contains("HTTP/2"));
    for row in &run.summaries {
        assert!(row.operations > 0 && row.errors == 0, "{} {}", row.phase, row.lane);
        assert!(row.server_cpu_ns_per_op.is_some(), "{} {}", row.phase, row.lane);
    }
}

/// Every lane works in several processes, and the run file states their number.
#[test]
fn clients_are_processes() {
    let dir = tempfile::tempdir().unwrap();
    tree(&dir.path().join("source"));
    let lanes = "posix,embedded,node,http,https,http2,http3";
    let words = ["--clients", "3", "--threads", "2", "--rounds", "2", "--lane", lanes];
    let ran = compare(dir.path(), &words).output().unwrap();
    assert!(ran.status.success(), "{}", text(&ran.stderr));
    assert_eq!(entries(dir.path()), ["compare.run", "source"]);
    let run = RunDocument::read(&dir.path().join("compare.run")).unwrap();
    assert_eq!((&run.parameters["clients"], &run.parameters["threads"]), (&3.into(), &2.into()));
    assert_eq!((&run.parameters["link"], &run.parameters["cache"]), (&"none".into(), &"warm".into()));
    assert_eq!(run.summaries.len(), 6 * 7);
    for row in &run.summaries {
        assert!(row.operations > 0 && row.errors == 0, "{} {}", row.phase, row.lane);
        assert!(row.client_cpu_ns_per_op > Some(0.0), "{} {}", row.phase, row.lane);
    }
    for words in [["--clients", "4", "--check-instrument"], ["--clients", "256", "--threads=1024"]] {
        let refused = compare(dir.path(), &words).output().unwrap();
        assert_eq!(refused.status.code(), Some(2), "{words:?}: {}", text(&refused.stderr));
    }
}

/// Over an emulated link, the lanes with HTTP take at least the round-trip time, and the other lanes do not.
#[test]
fn a_link_is_between_client_and_gateways() {
    if !fordway_needs::root("make network namespaces") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    tree(&dir.path().join("source"));
    let lanes = "posix,node,http,https,http3";
    let mut command =
        compare(dir.path(), &["--link", "rtt=20ms,rate=1Gbit", "--rounds", "1", "--lane", lanes]);
    let ran = command.env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin").output().unwrap();
    assert!(ran.status.success(), "{}", text(&ran.stderr));
    let run = RunDocument::read(&dir.path().join("compare.run")).unwrap();
    assert_eq!(run.parameters["link"], "rtt=20ms,rate=1gbit");
    assert!(run.parameters["link_packets"].as_u64() > Some(1000), "{:?}", run.parameters);
    for row in run.summaries.iter().filter(|row| row.phase == "head") {
        let is_over_link = row.lane.starts_with("http");
        let fastest = row.latency.as_ref().unwrap().min_ns;
        assert_eq!(fastest >= 20_000_000, is_over_link, "{} {fastest} ns", row.lane);
    }
    let described = |name: &str| run.lanes.iter().find(|lane| lane.name == name).unwrap().description.clone();
    assert!(described("https").contains("an emulated link (rtt=20ms,rate=1gbit)"), "{}", described("https"));

    let target = ["--link", "rtt=1ms", "--target", "other=http://127.0.0.1:9"];
    let refused = compare(dir.path(), &target).output().unwrap();
    assert_eq!(refused.status.code(), Some(2), "{}", text(&refused.stderr));
    assert!(text(&refused.stderr).contains("the network of --link contains only the gateways"));
}

/// With a cold cache, content is read from the device. A file system that has no device is refused.
#[test]
fn a_cold_cache_needs_a_device() {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    tree(&dir.path().join("source"));
    let ran = compare(dir.path(), &["--cache", "cold", "--rounds", "1"]).output().unwrap();
    let said = text(&ran.stderr);
    match ran.status.code() {
        Some(2) => assert!(said.contains("keeps content in memory"), "{said}"),
        code => {
            assert_eq!(code, Some(0), "{said}");
            let run = RunDocument::read(&dir.path().join("compare.run")).unwrap();
            assert_eq!(run.parameters["cache"], "cold");
            assert!(!run.warnings.iter().any(|each| each.contains("page cache")), "{:?}", run.warnings);
        }
    }
    let refused = compare(dir.path(), &["--cache", "cold", "--root", "/dev/shm"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(2), "{}", text(&refused.stderr));
    assert_eq!(
        entries(Path::new("/dev/shm")).iter().filter(|name| name.contains("fordway-compare-")).count(),
        0
    );
}

/// With `--json`, every line is a row, and nothing else is printed.
#[test]
fn json_is_rows() {
    let dir = tempfile::tempdir().unwrap();
    tree(&dir.path().join("source"));
    let ran = compare(dir.path(), &["--json", "--lane", "posix", "--lane", "embedded"]).output().unwrap();
    let stdout = text(&ran.stdout);
    let rows: Vec<serde_json::Value> =
        stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rows.len(), 12);
    assert_eq!(
        (&rows[1]["lane"], &rows[1]["server_cpu_ns_per_op"]),
        (&"embedded".into(), &serde_json::Value::Null)
    );
    let words = ["--json", "--lane", "posix", "--check-instrument", "--rounds", "1"];
    let stdout = text(&compare(dir.path(), &words).output().unwrap().stdout);
    let last: serde_json::Value = serde_json::from_str(stdout.lines().last().unwrap()).unwrap();
    assert!(last["injected_ns"].as_f64().unwrap() >= 8e5 && last["measured_ns"].is_f64(), "{last}");
}

fn wait(mut child: Child, at_most: Duration) -> Output {
    let end = Instant::now() + at_most;
    while child.try_wait().unwrap().is_none() {
        assert!(Instant::now() < end, "it did not end in {at_most:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
    child.wait_with_output().unwrap()
}

/// After SIGTERM during a comparison, only the source and the run file of the complete rounds remain. A message reports
/// that the temporary directory was removed.
#[test]
fn a_signal_cleans_up() {
    let dir = tempfile::tempdir().unwrap();
    tree(&dir.path().join("source"));
    let mut command = compare(dir.path(), &["--rounds", "1000"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let end = Instant::now() + Duration::from_secs(20);
    let is_at_work = || {
        entries(dir.path()).iter().any(|name| {
            name.starts_with("fordway-compare-")
                && entries(&dir.path().join(name)).contains(&"posix".to_owned())
        })
    };
    while !is_at_work() {
        assert!(Instant::now() < end, "it never began");
        std::thread::sleep(Duration::from_millis(10));
    }
    std::thread::sleep(Duration::from_millis(100));
    terminate(child.id()).unwrap();
    let ended = wait(child, Duration::from_secs(20));
    assert_eq!(ended.status.code(), Some(130), "{}", text(&ended.stderr));
    assert!(text(&ended.stderr).contains("removed the temporary directory"), "{}", text(&ended.stderr));
    let left: Vec<_> = entries(dir.path()).into_iter().filter(|name| !name.ends_with(".run")).collect();
    assert_eq!(left, ["source"]);
}

#[test]
fn what_is_no_directory_is_said_in_a_sentence() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("empty")).unwrap();
    std::fs::write(dir.path().join("file"), "x").unwrap();
    for (source, says, code) in
        [("missing", "cannot be read", 3), ("empty", "no regular file", 2), ("file", "not a directory", 2)]
    {
        let ran = fordway(&["compare", source]).current_dir(dir.path()).output().unwrap();
        assert_eq!(ran.status.code(), Some(code));
        assert!(text(&ran.stderr).contains(says), "{}", text(&ran.stderr));
    }
    let ran =
        fordway(&["compare", ".", "--root", "/does/not/exist"]).current_dir(dir.path()).output().unwrap();
    assert_eq!(ran.status.code(), Some(3));
    assert!(text(&ran.stderr).contains("--root /does/not/exist"), "{}", text(&ran.stderr));
}

/// If TMPDIR is so long that the path of a gateway's socket exceeds the limit, the error must name TMPDIR.
#[test]
fn a_long_directory_for_temporary_files_is_named() {
    let dir = tempfile::tempdir().unwrap();
    tree(&dir.path().join("source"));
    let long = dir.path().join("x".repeat(100));
    std::fs::create_dir(&long).unwrap();
    let ran = compare(dir.path(), &["--lane", "node"]).env("TMPDIR", &long).output().unwrap();
    assert_eq!(ran.status.code(), Some(2), "{}", text(&ran.stderr));
    assert!(
        text(&ran.stderr).contains("set TMPDIR to a directory with a shorter path"),
        "{}",
        text(&ran.stderr)
    );
    assert_eq!(entries(&long), [""; 0]);
}

/// Returns the path of the gateway program, which is next to the program under test; `cargo build` builds both.
fn gateway_program() -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_fordway-lab")).with_file_name("fordway")
}

/// A service that runs before the comparison starts.
struct Service {
    child: Child,
    endpoint: String,
    root: TempDir,
}

impl Service {
    /// Starts a gateway with the keys `key` and `secret`, on a directory with the bucket `data` and an object in it.
    fn fordway() -> Self {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("data")).unwrap();
        std::fs::write(root.path().join("data/theirs"), "not ours").unwrap();
        let mut child = Command::new(gateway_program())
            .args(["serve", "--listen", "127.0.0.1:0"])
            .arg(root.path())
            .env("AWS_ACCESS_KEY_ID", "key")
            .env("AWS_SECRET_ACCESS_KEY", "secret")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let endpoint = line.trim().rsplit(' ').next().unwrap().to_owned();
        Service { child, endpoint, root }
    }

    /// Starts versitygw with the same keys and bucket, if it is installed.
    fn versity() -> Option<Self> {
        let program = fordway_needs::program_from("versitygw", "it is at github.com/versity/versitygw")?;
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("data")).unwrap();
        std::fs::write(root.path().join("data/theirs"), "not ours").unwrap();
        let address = free_address();
        let child = Command::new(program)
            .args(["--access", "key", "--secret", "secret", "--port", &address, "--quiet", "posix"])
            .arg(root.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let service = Service { child, endpoint: format!("http://{address}"), root };
        let end = Instant::now() + Duration::from_secs(20);
        while TcpStream::connect(&address).is_err() {
            assert!(Instant::now() < end, "versitygw does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        Some(service)
    }

    /// Returns the names of the buckets, and the names of the entries in `data`.
    fn content(&self) -> (Vec<String>, Vec<String>) {
        let visible = |mut names: Vec<String>| {
            names.retain(|name| !name.starts_with('.'));
            names
        };
        (visible(entries(self.root.path())), visible(entries(&self.root.path().join("data"))))
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns an address on which nothing is listening.
fn free_address() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

/// Runs a comparison of `posix` with these targets. Uses the access key that this test's services accept.
fn compare_with(dir: &Path, targets: &[&str], secret: &str) -> Output {
    let mut command = compare(dir, &["--lane", "posix", "--rounds", "2", "--seed", "7"]);
    for target in targets {
        command.args(["--target", target]);
    }
    command.env("AWS_ACCESS_KEY_ID", "key").env("AWS_SECRET_ACCESS_KEY", secret).output().unwrap()
}

/// Checks that `service` has two rows in addition to the row `posix`: one for a new bucket, and one for an existing
/// bucket. After the comparison, the content of the service must be unchanged.
fn service_is_a_row(service: &Service) {
    let dir = tempfile::tempdir().unwrap();
    tree(&dir.path().join("source"));
    let before = service.content();
    let (made, within) =
        (format!("made={}", service.endpoint), format!("within={}/data/some/where", service.endpoint));
    let ran = compare_with(dir.path(), &[&made, &within], "secret");
    assert!(ran.status.success(), "{}", text(&ran.stderr));
    let table = text(&ran.stdout);
    let run = RunDocument::read(&dir.path().join("compare.run")).unwrap();
    let lanes: Vec<_> = run.lanes.iter().map(|lane| lane.name.as_str()).collect();
    assert_eq!(lanes, ["posix", "made", "within"]);
    assert!(run.lanes[1].description.contains(&service.endpoint), "{}", run.lanes[1].description);
    assert_eq!(run.summaries.len(), 6 * 3);
    for row in &run.summaries {
        assert!(row.operations > 0 && row.errors == 0, "{} {}", row.phase, row.lane);
        assert_eq!(row.server_cpu_ns_per_op, None, "{} {}", row.phase, row.lane);
    }
    assert!(table.contains("  made ") && table.contains("On all lanes except made, within: "), "{table}");
    assert_eq!(run.parameters["targets"]["made"], service.endpoint);
    assert_eq!(service.content(), before);
}

#[test]
fn a_service_is_a_row_and_is_left_as_it_was() {
    service_is_a_row(&Service::fordway());
}

#[test]
fn versitygw_is_a_row_and_is_left_as_it_was() {
    if let Some(service) = Service::versity() {
        service_is_a_row(&service);
    }
}

/// A target can also be a `file` URL. In this test, the durability setting of the URL differs from the setting of the
/// other lane.
#[test]
fn a_directory_with_other_settings_is_a_row() {
    let dir = tempfile::tempdir().unwrap();
    tree(&dir.path().join("source"));
    let root = tempfile::tempdir().unwrap();
    let full = format!("full=file://{}?durability=full", root.path().display());
    let ran = compare_with(dir.path(), &[&full], "secret");
    assert!(ran.status.success(), "{}", text(&ran.stderr));
    let run = RunDocument::read(&dir.path().join("compare.run")).unwrap();
    assert_eq!(run.lanes[1].name, "full");
    assert!(entries(root.path()).iter().all(|name| name.starts_with('.')), "{:?}", entries(root.path()));
}

/// A target that cannot be compared is reported before anything is measured, and no file remains.
#[test]
fn a_target_that_is_none_is_refused_in_a_sentence() {
    let dir = tempfile::tempdir().unwrap();
    tree(&dir.path().join("source"));
    let service = Service::fordway();
    let (before, url) = (service.content(), service.endpoint.as_str());
    let good = format!("good={url}");
    let closed = format!("closed=http://{}", free_address());
    for (targets, secret, code, says) in [
        (vec![good.as_str(), good.as_str()], "secret", 2, "the name good is used twice"),
        (vec!["http2=http://127.0.0.1:1"], "secret", 2, "the name http2 is the name of a Fordway lane"),
        (vec!["nonsense"], "secret", 2, "write NAME=URL"),
        (vec!["bad=http://h:port"], "secret", 2, "the URL's port"),
        (vec![good.as_str(), closed.as_str()], "secret", 7, "start it, or correct the URL"),
        (vec![good.as_str()], "another", 4, "rejects these keys"),
        (vec![&format!("missing={url}/nobucket")], "secret", 3, "has no bucket nobucket"),
    ] {
        let ran = compare_with(dir.path(), &targets, secret);
        let stderr = text(&ran.stderr);
        assert_eq!(ran.status.code(), Some(code), "{targets:?}: {stderr}");
        assert!(stderr.contains(says) && !stderr.contains("31 files"), "{targets:?}: {stderr}");
        assert_eq!(entries(dir.path()), ["source"], "{targets:?}");
        assert_eq!(service.content(), before, "{targets:?}");
    }
}

/// `--endpoint` adds a row. The command reports an endpoint from the environment but does not use it, because the user
/// did not request writes to that endpoint.
#[test]
fn an_endpoint_is_a_row_or_told() {
    let dir = tempfile::tempdir().unwrap();
    tree(&dir.path().join("source"));
    let service = Service::fordway();
    let run = |options: &[&str]| {
        let mut command = compare(dir.path(), &["--lane", "posix", "--rounds", "1"]);
        command.args(options).env("AWS_ENDPOINT_URL", &service.endpoint);
        command.env("AWS_ACCESS_KEY_ID", "key").env("AWS_SECRET_ACCESS_KEY", "secret").output().unwrap()
    };
    let lanes = || {
        let run = RunDocument::read(&dir.path().join("compare.run")).unwrap();
        run.lanes.into_iter().map(|lane| lane.name).collect::<Vec<_>>()
    };
    let told = format!("the endpoint of the environment, {}, is not measured", service.endpoint);
    let ran = run(&[]);
    assert!(ran.status.success() && text(&ran.stderr).contains(&told), "{}", text(&ran.stderr));
    assert_eq!(lanes(), ["posix"]);
    let ran = run(&["--endpoint", &service.endpoint]);
    assert!(ran.status.success() && !text(&ran.stderr).contains(&told), "{}", text(&ran.stderr));
    assert_eq!(lanes(), ["posix", "endpoint"]);
    let ran = run(&["--target", &format!("named={}", service.endpoint)]);
    assert!(ran.status.success() && !text(&ran.stderr).contains(&told), "{}", text(&ran.stderr));
    let ran = run(&["--endpoint", "nonsense"]);
    assert_eq!(ran.status.code(), Some(2));
    assert!(text(&ran.stderr).contains("--endpoint: \"nonsense\" is not a URL"), "{}", text(&ran.stderr));
}
