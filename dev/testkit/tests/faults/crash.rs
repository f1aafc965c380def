//! Kills the process (`kill -9`) before every single file-system call of every operation that changes something.
//! Afterwards, the store must show either the complete old state or the complete new state, and must work.

use std::path::Path;
use std::process::{Command, Stdio};

use fordway_sys::fault::{self, SyscallFault};
use fordway_testkit::scenario::{BucketSnapshot, OperationScenario, SCENARIOS, snapshot, versions, works};

use crate::way::{DURABLE, NO_ATTRIBUTES, OLD_KERNEL, USUAL, Way, is_killed, strays};

/// The variable that contains the task of a child process: the environment, the scenario, the call and the directory.
const CHILD: &str = "FORDWAY_TEST_CRASH";
const WAYS: &[&Way] = &[&USUAL, &DURABLE, &OLD_KERNEL, &NO_ATTRIBUTES];
/// The minimum number of calls in any scenario. If a scenario makes fewer calls, the injection of faults probably does
/// not work.
const LEAST_CALLS: usize = 6;
/// The maximum number of calls in a scenario. A scenario with more calls is assumed to be in an endless loop.
const MOST_CALLS: usize = 1000;

#[test]
fn dies_at_every_call_in_the_usual_way() {
    dies_at_every_call(&USUAL);
}

#[test]
fn dies_at_every_call_with_full_durability() {
    dies_at_every_call(&DURABLE);
}

#[test]
fn dies_at_every_call_on_an_old_kernel() {
    dies_at_every_call(&OLD_KERNEL);
}

#[test]
fn dies_at_every_call_without_attributes() {
    dies_at_every_call(&NO_ATTRIBUTES);
}

#[allow(clippy::print_stdout)]
fn dies_at_every_call(way: &Way) {
    for scenario in way.scenarios() {
        let (before, after) = way.reference(scenario);
        let survived_at = (1..MOST_CALLS).find(|at| !dies_at(way, scenario, *at, &before, &after));
        let calls = survived_at.expect("the operation never ended") - 1;
        println!("{}, {}: killed before each of {calls} calls", way.name, scenario.name);
        assert!(calls >= LEAST_CALLS, "{}: {calls} calls", scenario.name);
    }
}

/// Kills the process that runs the scenario before call number `at`. Returns false if the scenario made fewer calls.
/// Panics if the resulting state is wrong.
fn dies_at(
    way: &Way,
    scenario: &OperationScenario,
    at: usize,
    before: &BucketSnapshot,
    after: &BucketSnapshot,
) -> bool {
    let dir = way.prepared(scenario);
    let died = run_child(way, scenario, at, dir.path());
    let place = format!("{}, {}, killed before call {at}", way.name, scenario.name);
    let checked = std::panic::catch_unwind(|| {
        way.within(|| check(way, scenario, dir.path(), before, after, !died));
    });
    assert!(checked.is_ok(), "{place}");
    died
}

/// Runs the scenario in a separate process. Returns whether the process was killed at the call.
fn run_child(way: &Way, scenario: &OperationScenario, at: usize, dir: &Path) -> bool {
    let way = WAYS.iter().position(|each| each.name == way.name).unwrap();
    let number = SCENARIOS.iter().position(|each| each.name == scenario.name).unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--ignored", "--exact", "crash::the_process_that_dies", "--nocapture"]);
    child.env(CHILD, format!("{way} {number} {at} {}", dir.display())).stdout(Stdio::null());
    is_killed(&mut child)
}

#[test]
#[ignore = "run by the other tests, as a process of its own"]
fn the_process_that_dies() {
    let Ok(task) = std::env::var(CHILD) else { return };
    let [way, number, at, dir] = task.splitn(4, ' ').collect::<Vec<_>>()[..] else { panic!("{task}") };
    let (way, scenario) = (WAYS[way.parse::<usize>().unwrap()], &SCENARIOS[number.parse::<usize>().unwrap()]);
    let store = way.open(Path::new(dir));
    let plan = way.plan(Some((at.parse().unwrap(), SyscallFault::Kill)));
    let (done, _) = fault::run(plan, || (scenario.act)(&store));
    assert_eq!(done.err().map(|error| error.kind()), scenario.refused);
}

/// Checks the state that another process finds after the crash.
fn check(
    way: &Way,
    scenario: &OperationScenario,
    dir: &Path,
    before: &BucketSnapshot,
    after: &BucketSnapshot,
    completed: bool,
) {
    let store = way.open(dir);
    let mut shown = snapshot(&store);
    assert!(shown == *after || (!completed && shown == *before), "it shows {:?}", shown.keys());
    assert_eq!(strays(dir, &shown), [] as [&Path; 0]);
    if scenario.keeps_versions && !scenario.name.starts_with("delete the latest") {
        let kept = versions(&store);
        let lost = before.iter().find(|(name, seen)| !kept.contains(&((*name).clone(), seen.body.clone())));
        assert!(lost.is_none(), "lost: {:?}", lost.map(|(name, _)| name));
    }
    if shown == *before {
        let again = (scenario.act)(&store);
        assert_eq!(again.map_err(|error| error.kind()).err(), scenario.refused);
        shown = snapshot(&store);
        assert!(shown == *after, "tried again, it shows {:?}", shown.keys());
    }
    works(&store, &shown);
    assert_eq!(strays(dir, &BucketSnapshot::new()), [] as [&Path; 0]);
}
