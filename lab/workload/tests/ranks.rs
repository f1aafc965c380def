//! Tests the workloads on several ranks: the content that they write, its verification, and the options that they
//! reject.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::{Args, FromArgMatches};
use fordway_measure::{RowDescription, RunClock};
use fordway_store::{
    Bucket, DeleteOptions, ErrorKind, GetOptions, Key, ListQuery, MemoryStore, Objects, PutOptions, Result,
};
use fordway_workload::bench::WorkloadPlan;
use fordway_workload::io500::{Io500Plan, score};
use fordway_workload::ior::IorPlan;
use fordway_workload::mdtest::MdtestPlan;
use fordway_workload::mdworkbench::MdworkbenchPlan;
use fordway_workload::{PhaseResult, RunControl, WorkloadLocation, WorkloadRank, team};

const RANKS: usize = 3;

/// Returns the plan for these command-line options.
fn plan<P: Args + FromArgMatches>(words: &str) -> P {
    let command = P::augment_args(clap::Command::new("bench").no_binary_name(true));
    P::from_arg_matches(&command.try_get_matches_from(words.split_whitespace()).unwrap()).unwrap()
}

fn ior(words: &str) -> WorkloadPlan {
    WorkloadPlan::Ior(plan::<IorPlan>(words))
}

fn mdtest(words: &str) -> WorkloadPlan {
    WorkloadPlan::Mdtest(plan::<MdtestPlan>(words))
}

fn mdworkbench(words: &str) -> WorkloadPlan {
    WorkloadPlan::Mdworkbench(plan::<MdworkbenchPlan>(words))
}

fn name() -> Bucket {
    Bucket::new("bench").unwrap()
}

fn objects(store: &Arc<MemoryStore>) -> WorkloadLocation {
    let lane = RowDescription { name: "memory".into(), description: String::new() };
    WorkloadLocation::objects(lane, store.clone(), name(), None)
}

fn run(workload: &WorkloadPlan, site: &WorkloadLocation, keep: bool) -> Result<Vec<PhaseResult>> {
    let (stop, show) = (AtomicBool::new(false), |_: &str, _: u64| {});
    let (watch, clock) = (RunControl::new(&stop, &show), RunClock::start());
    let mut all =
        team::threads(RANKS, |team| workload.run(&WorkloadRank::new(team, &watch, clock), site, keep));
    all.swap_remove(0)
}

fn assert_clean(results: &[PhaseResult], phases: &[(&str, u64)]) {
    let found: Vec<_> = results.iter().map(|result| (result.phase.as_str(), result.succeeded())).collect();
    assert_eq!(found, phases);
    for result in results {
        assert_eq!((result.errors(), result.failures()), (0, vec![]), "{}", result.phase);
        assert_eq!(result.ranks.len(), RANKS);
        assert!(result.elapsed_ns() >= result.fastest_ns() && result.fastest_ns() > 0);
    }
}

fn sizes(store: &MemoryStore, bucket: &str) -> Vec<u64> {
    let page = store.list(&Bucket::new(bucket).unwrap(), &ListQuery::default()).unwrap();
    page.entries.iter().filter_map(|entry| entry.object()).map(|object| object.size).collect()
}

/// In all modes and mappings, all written data must be read back, and the bucket must contain exactly the written
/// objects.
#[test]
fn ior_on_objects() {
    let n = RANKS as u64;
    for (words, transfers, left) in [
        ("-t 1MiB -b 4MiB -C", 4, vec![1 << 20; 4 * RANKS]),
        ("-m hard -s 7 -C", 7, vec![47_008; 7 * RANKS]),
        ("-m rnd -b 64KiB", 16, vec![4096; 16 * RANKS]),
        ("--mapping multipart -t 2MiB -b 16MiB -s 2", 16, vec![32 << 20; RANKS]),
        ("--mapping multipart -m hard -t 1MiB -b 8MiB -s 2 -C", 16, vec![48 << 20]),
    ] {
        let store = Arc::new(MemoryStore::default());
        let results = run(&ior(words), &objects(&store), true).unwrap();
        assert_clean(&results, &[("ior-write", n * transfers), ("ior-read", n * transfers)]);
        assert_eq!(sizes(&store, "bench"), left, "{words}");
        assert_eq!(results[0].bytes(), left.iter().sum::<u64>());
    }
}

#[test]
fn ior_with_a_bucket_for_each_file() {
    let store = Arc::new(MemoryStore::default());
    run(&ior("--mapping bucket -t 1MiB -b 2MiB"), &objects(&store), true).unwrap();
    assert_eq!(store.list_buckets().unwrap().len(), 1 + RANKS);
    assert_eq!(sizes(&store, "bench-ior-data.00000002"), [1 << 20; 2]);
    let again = Arc::new(MemoryStore::default());
    run(&ior("--mapping bucket -m hard -s 2"), &objects(&again), false).unwrap();
    assert_eq!(again.list_buckets().unwrap().len(), 0, "all buckets are removed");
}

/// With plain files, the size of the file must equal the number of bytes that the ranks report as written.
#[test]
fn ior_on_files() {
    let dir = tempfile::tempdir().unwrap();
    let site = WorkloadLocation::files(dir.path(), name());
    let results = run(&ior("-m hard -s 20 -C -e"), &site, true).unwrap();
    assert_clean(&results, &[("ior-write", 60), ("ior-read", 60)]);
    let file = dir.path().join("bench/ior/data");
    assert_eq!(std::fs::metadata(&file).unwrap().len(), results[0].bytes());
    let refused = run(&ior(""), &site, false).expect_err("the directory exists");
    assert_eq!(refused.kind(), ErrorKind::BucketAlreadyOwnedByYou);
    assert!(file.exists(), "what another run left is not touched");
}

/// A workload with several buckets may find one of them only after it has created others.
#[test]
fn buckets_and_directories_of_others_are_kept() {
    let set = "--datasets 4 --objects 2 --buckets dataset";
    for (workload, taken) in [
        (ior("--mapping bucket -t 1KiB -b 2KiB"), "bench-ior-data.00000001"),
        (mdworkbench(set), "bench-set.0.3"),
    ] {
        let store = Arc::new(MemoryStore::default());
        let (bucket, key) = (Bucket::new(taken).unwrap(), Key::new("thesis").unwrap());
        store.create_bucket(&bucket).unwrap();
        store.put(&bucket, &key, b"mine", &PutOptions::default()).unwrap();
        let refused = run(&workload, &objects(&store), false).expect_err("the bucket exists");
        assert_eq!(refused.kind(), ErrorKind::BucketAlreadyOwnedByYou);
        assert!(refused.to_string().contains(taken), "{refused}");
        assert_eq!(store.list_buckets().unwrap().len(), 1, "the run removes what it created");
        assert_eq!(sizes(&store, taken), [4]);
    }
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("bench-set.0.3")).unwrap();
    let site = WorkloadLocation::files(dir.path(), name());
    run(&mdworkbench(set), &site, false).expect_err("the directory exists");
    let left: Vec<_> =
        std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["bench-set.0.3"]);
}

#[test]
fn mdtest_on_both_kinds() {
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(MemoryStore::default());
    let n = 10 * RANKS as u64;
    for site in [WorkloadLocation::files(dir.path(), name()), objects(&store)] {
        for words in ["-n 10", "-n 10 -m hard -N 1", "-n 10 -m hard --delete list"] {
            let results = run(&mdtest(words), &site, false).unwrap();
            let phases = ["mdtest-create", "mdtest-stat", "mdtest-read", "mdtest-delete"];
            assert_clean(&results, &phases.map(|phase| (phase, n)));
        }
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    assert!(store.list_buckets().unwrap().is_empty());
}

/// Runs of different phases of md-workbench must have different default names, so that no run replaces another.
#[test]
fn the_run_of_a_phase_has_its_own_name() {
    for (words, name) in [
        ("", "mdworkbench"),
        ("--phases precreate", "mdworkbench-precreate"),
        ("--phases cleanup,benchmark", "mdworkbench-benchmark-cleanup"),
        ("--phases precreate,benchmark,cleanup", "mdworkbench"),
    ] {
        assert_eq!(mdworkbench(words).run_name(), name);
    }
    assert_eq!(mdtest("").run_name(), "mdtest");
}

/// The three phases of md-workbench are separate runs on the same data sets. A data set keeps its size while its
/// objects are replaced.
#[test]
fn mdworkbench_goes_on_where_it_stopped() {
    for (buckets, count) in [("one", 1), ("dataset", 1 + 2 * RANKS)] {
        let store = Arc::new(MemoryStore::default());
        let site = objects(&store);
        let run =
            |words: &str| run(&mdworkbench(&format!("-D 2 -P 5 --buckets {buckets} {words}")), &site, false);
        let n = 2 * RANKS as u64;
        let missing = run("--phases benchmark").expect_err("there is no set yet");
        assert_eq!(missing.kind(), ErrorKind::InvalidArgument);
        assert_clean(&run("--phases precreate").unwrap(), &[("precreate", 5 * n)]);
        assert_eq!(store.list_buckets().unwrap().len(), count);
        for _ in 0..2 {
            let results = run("--phases benchmark -I 3").unwrap();
            let steps = ["benchmark-stat", "benchmark-read", "benchmark-delete", "benchmark-create"];
            let mut phases = steps.map(|step| (step, 3 * n)).to_vec();
            phases.push(("benchmark", 12 * n));
            assert_clean(&results, &phases);
        }
        let other = run("--phases benchmark -S 17").expect_err("that is another set");
        assert!(
            other.to_string().contains("other options: --object-size 3901, not 17; use the options"),
            "{other}"
        );
        assert_clean(&run("--phases cleanup").unwrap(), &[("cleanup", 5 * n)]);
        assert!(store.list_buckets().unwrap().is_empty());
    }
}

/// After an interrupted benchmark, the ranks have replaced different numbers of objects. The next benchmark must not
/// measure failures.
#[test]
fn mdworkbench_refuses_a_data_set_whose_objects_are_unknown() {
    let store = Arc::new(MemoryStore::default());
    let site = objects(&store);
    let benchmark = mdworkbench("-D 2 -P 50 --phases benchmark");
    run(&mdworkbench("-D 2 -P 50 --phases precreate"), &site, false).unwrap();
    interrupt(&benchmark, &site);
    let refused = run(&benchmark, &site, false).expect_err("the objects are unknown");
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    assert!(refused.to_string().contains("remove them with --phases cleanup"), "{refused}");
    run(&mdworkbench("-D 2 -P 50 --phases cleanup"), &site, false).unwrap();
    assert!(store.list_buckets().unwrap().is_empty());
}

/// The objects of an interrupted precreate can be removed, but not measured.
#[test]
fn mdworkbench_removes_a_data_set_that_is_incomplete() {
    for buckets in ["one", "dataset"] {
        let store = Arc::new(MemoryStore::default());
        let site = objects(&store);
        let phases = |phases: &str| mdworkbench(&format!("-D 2 -P 50 --buckets {buckets} --phases {phases}"));
        interrupt(&phases("precreate"), &site);
        let refused = run(&phases("benchmark"), &site, false).expect_err("the data set is incomplete");
        assert!(refused.to_string().contains("remove them with --phases cleanup"), "{refused}");
        run(&phases("cleanup"), &site, false).unwrap();
        assert!(store.list_buckets().unwrap().is_empty());
    }
}

/// Runs `workload`, and sets the stop flag after the first operation.
#[track_caller]
fn interrupt(workload: &WorkloadPlan, site: &WorkloadLocation) {
    let stop = AtomicBool::new(false);
    let show = |_: &str, _: u64| stop.store(true, std::sync::atomic::Ordering::Relaxed);
    let (watch, clock) = (RunControl::new(&stop, &show), RunClock::start());
    // By now, progress is due, so the first operation of rank 0 sets the flag.
    std::thread::sleep(std::time::Duration::from_millis(200));
    let all = team::threads(RANKS, |team| workload.run(&WorkloadRank::new(team, &watch, clock), site, false));
    assert!(all.iter().all(|one| one.as_ref().is_err_and(|error| error.kind() == ErrorKind::Interrupted)));
}

#[test]
fn io500_has_all_phases_scores_and_a_stamp() {
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(MemoryStore::default());
    let words = "--stonewall 60 --easy-bytes 4MiB --hard-transfers 5 --easy-files 20 --hard-files 120";
    let plan: Io500Plan = plan(words);
    for site in [WorkloadLocation::files(dir.path(), name()), objects(&store)] {
        let results = run(&WorkloadPlan::Io500(plan.clone()), &site, false).unwrap();
        let phases = [
            ("ior-easy-write", 2),
            ("mdtest-easy-write", 20),
            ("ior-hard-write", 5),
            ("mdtest-hard-write", 120),
            ("find", 140),
            ("ior-easy-read", 2),
            ("mdtest-easy-stat", 20),
            ("ior-hard-read", 5),
            ("mdtest-hard-stat", 120),
            ("mdtest-easy-delete", 20),
            ("mdtest-hard-read", 120),
            ("mdtest-hard-delete", 120),
        ];
        assert_clean(&results, &phases.map(|(phase, of_rank)| (phase, of_rank * RANKS as u64)));
        assert!(plan.stamp(&results).is_some_and(|stamp| stamp.contains("non-compliant (short run")));
        let lane = fordway_workload::bench::MeasuredLane {
            lane: site.lane().clone(),
            has_unknown_server: false,
            rounds: vec![results],
        };
        let scored = score(&plan, &[lane], None);
        assert!(scored[0].0.scores.is_some() && scored[0].1.contains("[SCORE ] Bandwidth"));
    }
}

/// Content that another program changed counts as an error of the phase that reads this content, and the message names
/// the object. The run does not fail.
#[test]
fn changed_and_missing_content_is_counted() {
    let store = Arc::new(MemoryStore::default());
    let site = objects(&store);
    run(&mdworkbench("-D 1 -P 4 --phases precreate"), &site, false).unwrap();
    let key = |number: u64| Key::new(format!("set.0.0/{number:010}")).unwrap();
    store.put(&name(), &key(1), &[7; 3901], &PutOptions::default()).unwrap();
    store.delete(&name(), &key(2), &DeleteOptions::default()).unwrap();
    let results = run(&mdworkbench("-D 1 -P 4 --phases benchmark,cleanup"), &site, false).unwrap();
    let of = |phase: &str| results.iter().find(|result| result.phase == phase).unwrap();
    assert_eq!((of("benchmark-stat").errors(), of("benchmark-read").errors()), (1, 2));
    let failures = of("benchmark-read").failures().join("; ");
    assert!(failures.contains("set.0.0/0000000001 does not have the content"), "{failures}");
    assert_eq!(of("benchmark-create").errors(), 0);
}

#[test]
fn what_cannot_be_done_is_refused_before_anything_is_made() {
    let store = Arc::new(MemoryStore::default());
    for (workload, why) in [
        (ior("-t 3MiB -b 4MiB"), "not a multiple of the transfer"),
        (ior("-t 0"), "at least 1"),
        (ior("-t 8TiB -b 8TiB"), "at most 4 GiB"),
        (ior("-s 99999999999999999"), "more than a file can hold"),
        (ior("-m hard --mapping multipart"), "below S3's 5 MiB"),
        (ior("-m rnd --mapping multipart"), "no random order"),
        (ior("-t 5MiB -b 5MiB -s 20000 --mapping multipart"), "more than S3's 10000"),
        (ior("-m hard -t 8MiB -D 1 --mapping multipart"), "holes"),
        (mdtest("-n 0"), "at least 1"),
        (mdtest("-w 1TiB"), "in memory"),
        (mdworkbench("-I 101"), "at most --objects"),
        (WorkloadPlan::Io500(plan("--easy-bytes 1")), "at least 2 MiB"),
    ] {
        let error = run(&workload, &objects(&store), false).expect_err(why);
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().contains(why), "{error}");
    }
    assert!(store.list_buckets().unwrap().is_empty());
    let nowhere = WorkloadLocation::files(Path::new("/does/not/exist"), name());
    let error = run(&mdtest(""), &nowhere, false).expect_err("no such directory");
    assert!(error.to_string().contains("/does/not/exist"), "{error}");
    assert!(store.head(&name(), &Key::new("x").unwrap(), &GetOptions::default()).is_err());
}
