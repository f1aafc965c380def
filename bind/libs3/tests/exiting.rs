//! Requests of a C program (`exiting.c`) whose threads have already destroyed their thread-local variables.

mod harness;

use harness::{Lane, Program, run};

fn makes_requests(lane: &Lane, program: &Program, wrapper: &[&str]) {
    std::fs::create_dir_all(lane.root.path().join("exiting")).unwrap();
    let mut command = program.command(wrapper);
    let said = run(command.args([&lane.host, &lane.access_key, &lane.secret_key, "exiting"]));
    assert_eq!(said, "ok\n");
}

#[test]
fn in_exit_handlers_and_destructors_of_thread_specific_data() {
    let program = Program::compile("exiting.c", &[]);
    // The logger also keeps data in thread-local variables.
    for wrapper in [&[][..], &["env", "FORDWAY_LOG=trace"]] {
        for lane in [Lane::embedded(), Lane::node(), Lane::http()] {
            makes_requests(&lane, &program, wrapper);
        }
    }
}

#[test]
fn under_the_address_sanitizer() {
    // A thread that is ending cannot free the last strings that the program may still read.
    let program = Program::compile("exiting.c", &["-fsanitize=address"]);
    let wrapper = ["env", "LSAN_OPTIONS=detect_leaks=0"];
    makes_requests(&Lane::embedded(), &program, &wrapper);
    makes_requests(&Lane::http(), &program, &wrapper);
}
