//! Checks the semantics as seen by a C program (`probe.c`), on each lane.

mod harness;

use harness::{Lane, Program, run};

/// Runs all checks on this many threads; every check must pass.
fn probe(program: &Program, wrapper: &[&str], lane: &Lane, threads: usize, big: bool) {
    let mut command = program.command(wrapper);
    command.args([&lane.host, &lane.access_key, &lane.secret_key, &threads.to_string()]);
    if big {
        command.arg("big");
    }
    let said = run(&mut command);
    let held = said.lines().filter(|line| line.starts_with("ok ")).count();
    assert!(held >= 48 * threads, "only {held} points held:\n{said}");
    assert!(said.ends_with(&format!("{held} points, 0 failed\n")), "{said}");
}

fn plain() -> Program {
    Program::compile("probe.c", &[])
}

#[test]
fn on_the_embedded_lane() {
    probe(&plain(), &[], &Lane::embedded(), 1, true);
}

#[test]
fn on_the_embedded_lane_from_eight_threads() {
    probe(&plain(), &[], &Lane::embedded(), 8, false);
}

#[test]
fn on_the_http_lane() {
    probe(&plain(), &[], &Lane::http(), 1, true);
}

#[test]
fn on_the_http_lane_from_eight_threads() {
    probe(&plain(), &[], &Lane::http(), 8, false);
}

#[test]
fn on_the_node_lane() {
    probe(&plain(), &[], &Lane::node(), 1, true);
}

#[test]
fn on_the_node_lane_from_eight_threads() {
    probe(&plain(), &[], &Lane::node(), 8, false);
}

#[test]
fn under_the_address_sanitizer() {
    let program = Program::compile("probe.c", &["-fsanitize=address"]);
    probe(&program, &[], &Lane::embedded(), 8, false);
    probe(&program, &[], &Lane::http(), 1, false);
}

#[test]
fn under_valgrind() {
    if fordway_needs::programs(&["valgrind"]) {
        // Valgrind reports memory as possibly lost if only interior pointers to it exist, as in hash tables. Such
        // memory is not leaked.
        let leaks = "--errors-for-leak-kinds=definite";
        let valgrind = ["valgrind", "--quiet", "--leak-check=full", leaks, "--error-exitcode=9"];
        probe(&plain(), &valgrind, &Lane::embedded(), 1, false);
    }
}

/// A check that cannot pass must make the program fail. If the program succeeded, failures of the other checks could
/// remain undetected.
#[test]
fn the_probe_can_fail() {
    let program = plain();
    let mut command = program.command(&[]);
    let said = command.args(["/no/such/directory", "", "", "1"]).output().unwrap();
    assert!(
        !said.status.success() && String::from_utf8_lossy(&said.stdout).contains("FAILED create a bucket")
    );
}
