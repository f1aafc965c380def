//! Runs the binary under `mpirun`, on every lane, and with a rank that dies.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fordway_measure::RunDocument;
use fordway_posix::{PosixConfig, PosixStore};
use fordway_serve::{AccessKeyPair, Gateway, GatewayConfig, Users};
use fordway_workload::speedup::RankReport;
use fordway_workload::transport::{
    MessageBlockTask, MessageExchangePattern, MessageTransport, RemoteTransport,
};

const RANKS: u64 = 2;
/// How long a job may take to start, or to end after one of its ranks has died.
const PATIENCE: Duration = Duration::from_secs(120);

/// Returns a command that runs two ranks in `dir`, regardless of the number of cores.
fn mpirun(dir: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("MPIRUN").unwrap_or_else(|| "mpirun".into()));
    command.args(["-n", "2"]);
    // By default, Open MPI refuses to run as root or with more ranks than cores, both of which happen in containers.
    // MPICH ignores these variables.
    for variable in
        ["OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "OMPI_MCA_rmaps_base_oversubscribe"]
    {
        command.env(variable, "1");
    }
    command.arg(env!("CARGO_BIN_EXE_fordway-mpi")).args(words).current_dir(dir);
    command
        .env("AWS_ACCESS_KEY_ID", "key")
        .env("AWS_SECRET_ACCESS_KEY", "secret")
        .env("AWS_REGION", "us-east-1")
        // Other tests may keep this machine busy.
        .env("FORDWAY_LAB_FORCE", "1");
    command
}

fn finished(mut command: Command) -> (Output, String) {
    let output = command.output().expect("mpirun is installed by `make mpi`");
    let all =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    (output, all)
}

/// Starts a gateway on `root` that runs until the process ends.
fn gateway(root: &Path) -> String {
    let store = PosixStore::open(root, PosixConfig::default()).unwrap();
    let identity = AccessKeyPair { access_key: "key".into(), secret_key: "secret".into() };
    let listen: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let gateway = Gateway::bind(Users::one(identity, Arc::new(store)), GatewayConfig::new(listen)).unwrap();
    let address = gateway.local_addr();
    std::thread::spawn(move || gateway.run());
    format!("http://{address}")
}

/// Every workload must complete on every lane without an error.
#[test]
fn all_workloads_on_all_lanes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    for lane in ["s3", "http"] {
        std::fs::create_dir(dir.path().join(lane)).unwrap();
    }
    let (embedded, http) = (format!("file://{path}/s3"), gateway(&dir.path().join("http")));
    let io500 = "--stonewall 60 --easy-bytes 4MiB --hard-transfers 20 --easy-files 30 --hard-files 120";
    // Open MPI binds each rank to its own core.
    let all = fordway_sys::usable_cores().len();
    let processors = all.min(RANKS as usize)..=all;
    for (workload, options, phases) in [
        ("ior", "--block-size 4MiB --reorder", 2),
        ("mdtest", "--mode hard --items 50 --shift 1", 4),
        ("mdworkbench", "--datasets 2 --objects 10", 7),
        ("io500", io500, 12),
    ] {
        let mut words = vec![workload, path, &embedded, &http, "--out", workload];
        words.extend(options.split(' '));
        let mut job = mpirun(dir.path(), &words);
        job.env("OMPI_MCA_hwloc_base_binding_policy", "core:overload-allowed");
        let (output, all) = finished(job);
        assert!(output.status.success(), "{workload}: {all}");
        let run = RunDocument::read(&dir.path().join(workload)).unwrap();
        assert_eq!((run.lanes.len(), run.phases.len()), (3, phases), "{workload}: {:?}", run.phases);
        assert_eq!(run.parameters["ranks"], RANKS);
        assert!(processors.contains(&run.machine.cpus), "{}", run.machine.cpus);
        assert!(run.conditions.is_some() && all.contains("conditions: "), "{all}");
        for row in &run.summaries {
            // Each rank may be bound to one processor, and both together use more than one.
            assert!(!row.limit.evidence.contains("report this bug"), "{}", row.limit.evidence);
            assert_eq!((row.errors, row.operations > 0), (0, true), "{workload} {} {}", row.phase, row.lane);
        }
    }
}

/// The total size of the files must equal the number of bytes that the ranks report as written.
#[test]
fn sums_over_ranks_are_those_of_the_files() {
    let dir = tempfile::tempdir().unwrap();
    let words = ["ior", ".", "--block-size", "2MiB", "--segments", "3", "--keep", "--out", "x.run"];
    let (output, all) = finished(mpirun(dir.path(), &words));
    assert!(output.status.success(), "{all}");
    let run = RunDocument::read(&dir.path().join("x.run")).unwrap();
    let files: Vec<u64> = std::fs::read_dir(dir.path().join("fordway-bench/ior"))
        .unwrap()
        .map(|entry| entry.unwrap().metadata().unwrap().len())
        .collect();
    assert_eq!(files, [6 << 20; RANKS as usize]);
    assert_eq!(run.summaries[0].bytes, files.iter().sum::<u64>());
    let (refused, all) = finished(mpirun(dir.path(), &words));
    assert!(!refused.status.success() && all.contains("choose another --name"), "{all}");
    assert_eq!(all.matches("choose another --name").count(), 1, "one rank tells: {all}");
}

/// A directory with other files must be refused before anything is measured, and must not be changed.
#[test]
fn files_that_are_no_run_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("mine")).unwrap();
    for name in ["run.json", "ledger.json"] {
        std::fs::write(dir.path().join("mine").join(name), "{\"mine\": 1}").unwrap();
    }
    for words in [&["mdtest", ".", "--items", "5"][..], &["transport", "--size", "1"]] {
        let (output, all) = finished(mpirun(dir.path(), &[words, &["--out", "mine"]].concat()));
        assert!(!output.status.success() && all.contains("holds files but no run"), "{all}");
        assert_eq!(all.matches("holds files but no run").count(), 1, "{all}");
        assert_eq!(std::fs::read_dir(dir.path().join("mine")).unwrap().count(), 2);
        assert!(!dir.path().join("fordway-bench").exists());
    }
}

/// Returns the process of rank `rank`, or `None` if it is not running yet. The process is identified by its
/// environment, because `mpirun` may also have other children, in any order.
fn process_of_rank(job: &Child, rank: u64) -> Option<u32> {
    let told = ["OMPI_COMM_WORLD_RANK", "PMI_RANK"].map(|name| format!("{name}={rank}"));
    let is_rank = |pid: &u32| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|line| told.iter().any(|told| told.as_bytes() == line))
    };
    let children = children_of(job.id());
    // MPICH starts a proxy on each node, and the ranks are children of the proxy.
    let grandchildren = children.iter().flat_map(|child| children_of(*child));
    children.iter().copied().chain(grandchildren).find(is_rank)
}

fn children_of(pid: u32) -> Vec<u32> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    children.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

/// A process started by `nohup` ignores SIGHUP. The program must neither catch the signal nor end because of it. One
/// process without `mpirun` is a job of one rank.
#[test]
fn an_ignored_hang_up_stays_ignored() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' HUP; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_fordway-mpi")]);
    command.args(["mdtest", ".", "--items", "100000000", "--stonewall", "60"]).current_dir(dir.path());
    command.env("FORDWAY_LAB_FORCE", "1");
    let mut job = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let end = Instant::now() + PATIENCE;
    while !dir.path().join("fordway-bench").exists() {
        assert!(Instant::now() < end && job.try_wait().unwrap().is_none(), "the job never began");
        std::thread::sleep(Duration::from_millis(20));
    }
    let status = std::fs::read_to_string(format!("/proc/{}/status", job.id())).unwrap();
    job.kill().unwrap();
    job.wait().unwrap();
    let mask = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        u64::from_str_radix(line.trim(), 16).unwrap()
    };
    // SIGHUP, SIGINT and SIGTERM are the signals 1, 2 and 15.
    assert_eq!(mask("SigIgn:") & 1, 1, "{status}");
    assert_eq!(mask("SigCgt:") & (1 | 1 << 1 | 1 << 14), 1 << 1 | 1 << 14, "{status}");
}

#[test]
fn a_rank_that_dies_ends_the_job_with_a_sentence() {
    let dir = tempfile::tempdir().unwrap();
    let words = ["mdtest", ".", "--items", "100000000", "--stonewall", "60"];
    let job = mpirun(dir.path(), &words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let end = Instant::now() + PATIENCE;
    let victim = loop {
        // If this directory exists, all ranks have returned from MPI_Init.
        match process_of_rank(&job, 1).filter(|_| dir.path().join("fordway-bench").exists()) {
            Some(process) => break process,
            None => assert!(Instant::now() < end, "the job never began"),
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let started = Instant::now();
    let killed = Command::new("kill").args(["-9", &victim.to_string()]).status().unwrap();
    assert!(killed.success());
    let output = job.wait_with_output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr) + String::from_utf8_lossy(&output.stdout);
    assert!(started.elapsed() < PATIENCE, "the others waited for it: {told}");
    assert!(!output.status.success(), "{told}");
    // Messages printed by Open MPI or MPICH.
    let is_told = told.contains("rank 1") && told.contains("signal 9") || told.contains("EXIT CODE: 9");
    assert!(is_told, "{told}");
}

/// Without a controller, two ranks must measure latency, bandwidth and half round trips for each size, and receive the
/// right bytes.
#[test]
fn transport_makes_a_run() {
    let dir = tempfile::tempdir().unwrap();
    let words =
        ["transport", "--size", "1,5000,300000", "--messages", "5", "--rounds", "5", "--out", "x.run"];
    let (output, all) = finished(mpirun(dir.path(), &words));
    assert!(output.status.success() && all.contains("half-round-trip 5000 B"), "{all}");
    let run = RunDocument::read(&dir.path().join("x.run")).unwrap();
    assert_eq!((run.kind.as_str(), run.summaries.len()), ("transport", 9));
    for row in &run.summaries {
        let of = row.transfer.as_ref().unwrap();
        assert_eq!((row.errors, row.bytes), (0, of.messages * of.size_bytes), "{}", row.phase);
        assert!(of.server_cpu_ns_per_message.is_some());
    }
    assert!(run.conditions.is_some(), "{all}");
}

#[test]
fn transport_takes_orders_until_nobody_gives_them() {
    let dir = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let control = listener.local_addr().unwrap().to_string();
    let mut job = mpirun(dir.path(), &["transport", "--control", &control]).spawn().unwrap();
    let (mut remote, hello) = RemoteTransport::greet(listener.accept().unwrap().0, "mpi").unwrap();
    assert!(hello.implementation.contains("MPI"), "{hello:?}");
    assert_ne!(hello.sides[0].pid, hello.sides[1].pid);
    for (exchange, window) in [
        (MessageExchangePattern::Fetch, 1),
        (MessageExchangePattern::Stream, 64),
        (MessageExchangePattern::PingPong, 1),
    ] {
        let order = MessageBlockTask { exchange, size_bytes: 100_000, window, count: 3, warm_up: 1 };
        assert!(remote.carry_out(&order).unwrap().is_right, "{exchange:?}");
    }
    drop(remote);
    assert!(job.wait().unwrap().success());
}

#[test]
fn transport_is_for_two() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_fordway-mpi"));
    // Without `mpirun`, there is one rank.
    let output = command.args(["transport", "--size", "1"]).current_dir(dir.path()).output().unwrap();
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("needs 2 ranks but has 1"), "{output:?}");
}

/// Returns what every rank of the stencil printed.
fn stencil_lines(output: &Output) -> Vec<serde_json::Value> {
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

#[test]
fn the_stencil_has_the_same_heat_on_any_ranks() {
    let dir = tempfile::tempdir().unwrap();
    let words = ["stencil", "--cells", "10000", "--steps", "50"];
    let alone = Command::new(env!("CARGO_BIN_EXE_fordway-mpi")).args(words).output().unwrap();
    assert!(alone.status.success(), "{alone:?}");
    let alone = stencil_lines(&alone);
    assert_eq!((alone.len(), &alone[0]["ranks"], &alone[0]["cells"]), (1, &1.into(), &10_000.into()));
    let heat = alone[0]["heat"].as_f64().unwrap();
    assert!(heat > 100.0, "the edge warms the plate: {heat}");
    let (output, all) = finished(mpirun(dir.path(), &words));
    assert!(output.status.success(), "{all}");
    let lines = stencil_lines(&output);
    assert_eq!(lines.len(), RANKS as usize, "{all}");
    for line in &lines {
        assert!((line["heat"].as_f64().unwrap() / heat - 1.0).abs() < 1e-7, "{line} for {heat}");
        let time = |name: &str| line[name].as_u64().unwrap();
        assert!(time("communication_ns") > 0 && time("communication_ns") <= time("elapsed_ns"), "{line}");
    }
}

#[test]
fn a_stencil_that_fails_on_one_rank_ends_on_all() {
    let dir = tempfile::tempdir().unwrap();
    let (output, all) = finished(mpirun(dir.path(), &["stencil", "--steps", "1000000000", "--fail", "1"]));
    assert!(!output.status.success());
    assert!(all.contains("rank 1 failed, which ends the job"), "{all}");
}

/// The preloaded library must intercept the MPI calls of a program that was not built for it.
#[test]
fn ranks_report_their_communication() {
    let dir = tempfile::tempdir().unwrap();
    let library = dir.path().join("report.so");
    let compiler = std::env::var_os("MPICC").unwrap_or_else(|| "mpicc".into());
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/pmpi/report.c");
    let mut compile = Command::new(compiler);
    compile.args(["-O2", "-Wall", "-Werror", "-fPIC", "-shared", source, "-o"]).arg(&library);
    assert!(compile.status().unwrap().success());
    let mut job = mpirun(dir.path(), &["stencil", "--cells", "10000", "--steps", "50"]);
    job.env("LD_PRELOAD", &library).env("FORDWAY_RANK_REPORTS", dir.path());
    let (output, all) = finished(job);
    assert!(output.status.success(), "{all}");
    for rank in 0..RANKS {
        let text = std::fs::read(dir.path().join(format!("rank-{rank}.json"))).expect(&all);
        let report: RankReport = serde_json::from_slice(&text).unwrap();
        assert_eq!(u64::from(report.rank), rank);
        assert!(report.mpi_ns > 0 && report.mpi_ns <= report.end_ns - report.start_ns, "{report:?}");
    }
}
