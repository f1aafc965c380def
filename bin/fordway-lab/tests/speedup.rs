//! Tests `speedup` as a user would run it: published tables, and jobs that succeed, fail on one rank, or hang. Jobs
//! require Open MPI's launcher, and networks require root. Tests whose requirement is not met are skipped with a
//! message.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use fordway_measure::{ParallelJobSummary, RunDocument};

fn speedup(dir: &Path, options: &[&str], job: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fordway-lab"));
    command.arg("speedup").args(options).args(["--no-report", "--out", "x.run", "--", "sh", "-c", job]);
    command.current_dir(dir).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn has_launcher() -> bool {
    let told = Command::new("mpirun").arg("--version").output();
    let has = told.is_ok_and(|told| String::from_utf8_lossy(&told.stdout).contains("(Open MPI) 4."));
    if !has {
        fordway_needs::skip("there is no mpirun of Open MPI 4 (Debian: openmpi-bin)");
    }
    has
}

fn is_root() -> bool {
    fordway_needs::root("make network namespaces")
}

fn of(run: &RunDocument, lane: &str, ranks: u32) -> ParallelJobSummary {
    let mut rows = run.summaries.iter().filter(|row| row.lane == lane);
    rows.find_map(|row| row.parallel.clone().filter(|of| of.ranks == ranks)).unwrap()
}

/// Returns the command lines that contain `word`.
fn processes(word: &str) -> Vec<String> {
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let lines = all.filter_map(|entry| std::fs::read_to_string(entry.path().join("cmdline")).ok());
    lines.filter(|line| line.contains(word)).collect()
}

/// A rank that writes a report as the preloaded library does: 10 ms of work, including 4 ms in MPI. Rank 1 finishes 2
/// ms after rank 0.
const REPORTS: &str = r#"r=$OMPI_COMM_WORLD_RANK; e=$((11000000 + r * 2000000))
    echo "{\"rank\": $r, \"start_ns\": 1000000, \"end_ns\": $e, \"mpi_ns\": 4000000}" > $FORDWAY_RANK_REPORTS/rank-$r.json"#;

#[test]
fn reports_of_ranks_become_work_share_and_lateness() {
    if !has_launcher() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let output = speedup(dir.path(), &["--setup", "shm,loopback+yield", "--time", "work"], REPORTS);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let run = RunDocument::read(&dir.path().join("x.run")).unwrap();
    assert_eq!((run.kind.as_str(), run.summaries.len()), ("speedup", 3));
    assert!(
        run.summaries.iter().all(|row| (row.operations, row.errors) == (5, 0)),
        "the first one is dropped"
    );
    let two = of(&run, "loopback+yield", 2);
    assert_eq!(two.work_ns.unwrap().value, 12e6);
    assert_eq!(two.late_ns.unwrap().value, 2e6);
    assert!((two.communication_share.unwrap().value - 8.0 / 22.0).abs() < 1e-12);
    assert!((two.speedup.unwrap().value - 10.0 / 12.0).abs() < 1e-12, "work is what counts");
    assert!((two.efficiency.unwrap().value - 5.0 / 12.0).abs() < 1e-12);
    let table = String::from_utf8_lossy(&output.stdout);
    assert!(table.contains("unreliable, because 3 costs are fitted to 2 numbers of ranks"), "{table}");
    let fits: serde_json::Value =
        serde_json::from_slice(&std::fs::read(dir.path().join("x.run/speedup.json")).unwrap()).unwrap();
    assert_eq!(fits["fits"][1]["lane"], "loopback+yield");
    assert_eq!(fits["fits"][1]["fit"]["is_tested"], false);
}

#[test]
fn a_rank_that_fails_is_told_and_the_others_go_on() {
    if !has_launcher() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let output = speedup(dir.path(), &["--setup", "shm"], "exit $((OMPI_COMM_WORLD_RANK * 3))");
    assert_eq!(output.status.code(), Some(1));
    let told = said(&output);
    // The launcher does not always print its message about the failure completely, so check only the exit status.
    assert!(told.contains("shm with 2 ranks: ") && told.contains("exit status: 3"), "{told}");
    assert!(told.contains("not measured"), "that nobody reported is told: {told}");
    let run = RunDocument::read(&dir.path().join("x.run")).unwrap();
    let counts: Vec<_> = run.summaries.iter().map(|row| (row.operations, row.errors)).collect();
    assert_eq!(counts, [(5, 0), (0, 1)]);
    assert_eq!(of(&run, "shm", 2).speedup, None);
    assert_eq!(of(&run, "shm", 1).communication_share, None, "null is not measured");
}

#[test]
fn ranks_that_hang_are_ended_with_all_they_started() {
    if !has_launcher() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    // In a job with several ranks, each rank ignores SIGTERM and starts a process that could outlive the rank.
    let job = "test $OMPI_COMM_WORLD_SIZE = 1 || { sleep 86397.25 & trap '' TERM; sleep 86397.25; }";
    let output = speedup(dir.path(), &["--setup", "shm", "--deadline", "3s"], job);
    assert_eq!(output.status.code(), Some(7), "{}", said(&output));
    assert!(said(&output).contains("took longer than 3s and was terminated"), "{}", said(&output));
    if is_root() {
        assert_eq!(processes("86397.25"), Vec::<String>::new());
    }
}

#[test]
fn half_of_the_ranks_are_in_each_network() {
    if !has_launcher() || !is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let job = "readlink /proc/self/ns/net >> net.$OMPI_COMM_WORLD_SIZE.$OMPI_COMM_WORLD_RANK";
    let output = speedup(dir.path(), &["--ranks", "4", "--setup", "bare,bridge"], job);
    let told = said(&output);
    assert_eq!(output.status.code(), Some(0), "{told}");
    assert!(told.contains("skipped bridge: ") && told.contains("address translation"), "{told}");
    let networks: Vec<String> = (0..4)
        .map(|rank| std::fs::read_to_string(dir.path().join(format!("net.4.{rank}"))).unwrap())
        .collect();
    assert_eq!((&networks[0], &networks[2]), (&networks[1], &networks[3]));
    assert_ne!(networks[0], networks[2]);
    let here = std::fs::read_link("/proc/self/ns/net").unwrap();
    assert!(networks.iter().all(|network| !network.contains(here.to_str().unwrap())));
    assert_eq!(std::fs::read_to_string(dir.path().join("net.1.0")).unwrap(), networks[0]);
}

/// Each container has its own host name. After a killed job, no process and no mount remains.
#[test]
fn ranks_are_in_one_container_or_half_of_them_in_each_of_two() {
    if !has_launcher() || !is_root() || !fordway_needs::programs(&["crun"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let job = "echo $(hostname) $(readlink /proc/self/ns/net /proc/self/ns/pid) $PWD \
        > at.$OMPI_COMM_WORLD_SIZE.$OMPI_COMM_WORLD_RANK.$(hostname)";
    let output = speedup(dir.path(), &["--ranks", "1,4", "--setup", "shm,container,two-containers"], job);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let run = RunDocument::read(&dir.path().join("x.run")).unwrap();
    assert_eq!(run.summaries.len(), 5, "a single rank also runs in the container");
    let place = |rank: usize, host: &str| {
        let told = std::fs::read_to_string(dir.path().join(format!("at.4.{rank}.{host}"))).unwrap();
        let words: Vec<String> = told.split_whitespace().map(str::to_owned).collect();
        assert_eq!(words[3], dir.path().to_str().unwrap(), "the working directory is the caller's");
        (words[1].clone(), words[2].clone())
    };
    let far = [2, 3].map(|rank| place(rank, "far"));
    let near = [0, 1].map(|rank| place(rank, "near"));
    assert_eq!((&near[0], &far[0]), (&near[1], &far[1]));
    assert_ne!(near[0].0, far[0].0);
    let hang = "test $OMPI_COMM_WORLD_SIZE = 1 || { sleep 86396.5 & trap '' TERM; sleep 86396.5; }";
    for setup in ["shm,container", "shm,two-containers"] {
        let output = speedup(dir.path(), &["--setup", setup, "--deadline", "3s"], hang);
        assert_eq!(output.status.code(), Some(7), "{}", said(&output));
        assert_eq!(processes("86396.5"), Vec::<String>::new());
    }
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains("/run/fordway"), "{mounts}");
}

/// The ranks of one job run under two kernels. After a job that hangs, no kernel remains.
#[test]
fn half_of_the_ranks_are_under_each_of_two_kernels() {
    if !has_launcher() || !is_root() || !fordway_needs::programs(&["linux.uml", "cc"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let job = format!("uname -r > at.$OMPI_COMM_WORLD_RANK.$(hostname); {REPORTS}");
    let output = speedup(dir.path(), &["--setup", "shm,two-kernels", "--time", "work"], &job);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let run = RunDocument::read(&dir.path().join("x.run")).unwrap();
    let two = of(&run, "two-kernels", 2);
    assert_eq!((two.work_ns.unwrap().value, two.late_ns.unwrap().value), (12e6, 2e6));
    assert!(of(&run, "two-kernels", 1).speedup.is_some(), "a single rank also runs under a kernel");
    let kernel = |place: &str| std::fs::read_to_string(dir.path().join(place)).unwrap();
    assert_eq!(kernel("at.0.near"), kernel("at.1.far"));
    let here = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    assert_ne!(kernel("at.1.far"), here);
    let fails = "echo rank $OMPI_COMM_WORLD_RANK gives up; exit $((OMPI_COMM_WORLD_RANK * 3))";
    let output = speedup(dir.path(), &["--setup", "two-kernels", "--deadline", "30s"], fails);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    // The error repeats only the last lines. mpirun prints the job's lines and its own lines in varying order, so check
    // for either line.
    let arrives = ["Exit code:    3", "rank 1 gives up"].iter().any(|line| said(&output).contains(line));
    assert!(arrives, "the job's output: {}", said(&output));
    assert_eq!(processes(dir.path().to_str().unwrap()), Vec::<String>::new());
}

#[test]
fn what_cannot_be_run_is_told_before_anything_is() {
    let dir = tempfile::tempdir().unwrap();
    let run = |path: &str, options: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fordway-lab"));
        command.arg("speedup").args(options).env("PATH", path).current_dir(dir.path());
        let output = command.output().unwrap();
        (output.status.code(), said(&output))
    };
    let (code, told) = run("/nowhere", &["--", "true"]);
    assert_eq!(code, Some(1));
    assert!(told.contains("mpirun is not on PATH; install openmpi-bin"), "{told}");
    let (code, told) = run("/usr/bin:/bin", &["--mpirun", "/bin/true", "--", "true"]);
    assert_eq!(code, Some(1));
    assert!(told.contains("/bin/true is not the mpirun of Open MPI 4"), "{told}");
    let (code, told) = run("/usr/bin:/bin", &["--rounds", "4", "--", "true"]);
    assert!(code == Some(2) && told.contains("4 is not in 5..=1000"), "{told}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing was written");
}

/// A mistyped name is reported together with the correct name, even without MPI, and even if another set-up comes
/// first.
#[test]
fn a_mistyped_set_up_is_told_first() {
    for (names, hint) in [("bare,vxaln", "did you mean vxlan?"), ("shn", "did you mean shm?")] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fordway-lab"));
        command.args(["speedup", "--setup", names, "--", "true"]).env("PATH", "/nowhere");
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{names}: {}", said(&output));
        assert!(said(&output).contains(hint), "{names}: {}", said(&output));
    }
}

#[test]
fn set_ups_that_are_none_are_refused() {
    if !has_launcher() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for (names, why) in [
        ("shm,moon", "there is no set-up \"moon\""),
        ("shm,shm", "two set-ups called \"shm\""),
        ("shm,container-bridge", "cannot hold other programs"),
        ("shm,ssh", "it has no networks of its own"),
    ] {
        let output = speedup(dir.path(), &["--setup", names], "true");
        assert_eq!(output.status.code(), Some(2), "{names}");
        assert!(said(&output).contains(why), "{names}: {}", said(&output));
    }
}

#[test]
fn tables_are_recomputed() {
    let dir = tempfile::tempdir().unwrap();
    let check = |table: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fordway-lab"));
        let output = command.args(["speedup", "--check", table]).current_dir(dir.path()).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned(), said(&output))
    };
    let (code, richter, _) = check("richter");
    assert_eq!((code, richter.matches(" is printed as ").count()), (Some(0), 2), "{richter}");
    assert!(richter.contains("E is printed as 5 %, but is 1.3 % (S/n)"), "{richter}");
    assert!(richter.contains("E is printed as 4 %, but is 0.9 % (S/n)"), "{richter}");
    std::fs::write(dir.path().join("good.csv"), "set-up,ranks,wall_s\na,1,10\nb,2,6\n").unwrap();
    assert_eq!(check("good.csv").0, Some(0));
    std::fs::write(dir.path().join("bad.csv"), "set-up,ranks,wall_s,speedup\na,1,10.0,1\nb,2,6.0,2.0\n")
        .unwrap();
    let (code, bad, _) = check("bad.csv");
    assert!(code == Some(8) && bad.contains("S is printed as 2, but is 1.67"), "{bad}");
    let (code, _, told) = check("none.csv");
    assert!(code == Some(3) && told.contains("none.csv"), "{told}");
}

#[test]
fn an_interrupted_measurement_keeps_the_jobs_that_ended() {
    if !has_launcher() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_fordway-lab"));
    command.args([
        "speedup",
        "--setup",
        "shm",
        "--ranks",
        "1",
        "--rounds",
        "1000",
        "--no-report",
        "--out",
        "x.run",
        "--",
    ]);
    // Each job adds a line to a file, so that the test knows how many jobs have run.
    command.args(["sh", "-c", "echo >>jobs"]).current_dir(dir.path());
    let running = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let jobs = || std::fs::read_to_string(dir.path().join("jobs")).map_or(0, |text| text.lines().count());
    let begin = std::time::Instant::now();
    while jobs() < 4 {
        assert!(begin.elapsed().as_secs() < 120, "no job starts");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert!(Command::new("kill").args(["-INT", &running.id().to_string()]).status().unwrap().success());
    let output = running.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", said(&output));
    let run = RunDocument::read(&dir.path().join("x.run")).unwrap();
    assert!(run.summaries[0].operations >= 2, "{:?}", run.summaries);
    assert!(
        run.warnings.iter().any(|warning| warning.starts_with("interrupted after ")),
        "{:?}",
        run.warnings
    );
    assert!(String::from_utf8_lossy(&output.stdout).contains("run: x.run"));
}
