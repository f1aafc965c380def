//! Runs `probe.c`, which checks each promise of the header, on each kind of file.

use std::process::Command;

use fordway_testkit::hostile::{HostileServer, ResponseFault, ResponseFaultScript};
use tempfile::TempDir;

use crate::harness::*;

const VALGRIND: [&str; 5] =
    ["valgrind", "--quiet", "--leak-check=full", "--errors-for-leak-kinds=definite", "--error-exitcode=9"];

#[test]
fn of_a_file_at_a_server() {
    Probe::new(Build::Plain).all_points(&[], &at_a_server(ResponseFaultScript::honest()), 1);
}

#[test]
fn of_a_file_at_a_server_from_eight_threads() {
    Probe::new(Build::Plain).all_points(&[], &at_a_server(ResponseFaultScript::honest()), 8);
}

#[test]
fn of_a_file_at_a_server_that_knows_no_lists_and_cuts_answers() {
    let script = ResponseFaultScript::honest()
        .always(ResponseFault::WholeOverRanges(1))
        .on_requests(5..7, ResponseFault::ResetAt(5_000));
    Probe::new(Build::Plain).all_points(&[], &at_a_server(script), 2);
}

/// The environment selects the HTTP version. The server supports only HTTP/2, so the checks fail if the setting has no
/// effect.
#[test]
fn of_a_file_at_a_server_over_http2() {
    let probe = Probe::new(Build::Plain);
    let server = HostileServer::start_http2(content(), ResponseFaultScript::honest());
    let mut place = served_by(server);
    place.environment.push(("FORDWAY_HTTP_VERSION", "2".to_owned()));
    probe.all_points(&[], &place, 8);
    let mut command = probe.command(&[]);
    command.args(["refused", &place.url, ""]).env("FORDWAY_HTTP_VERSION", "4");
    let said = run(&mut command);
    assert!(said.contains("FORDWAY_HTTP_VERSION"), "{said}");
}

#[test]
fn of_a_local_file() {
    let probe = Probe::new(Build::Plain);
    for url in [probe.copy(), format!("file://{}", probe.copy())] {
        let place = Place { url, missing: "/no/such/file".into(), ..Place::default() };
        probe.all_points(&[], &place, 8);
    }
}

#[test]
fn of_local_files_of_all_kinds() {
    let directory = TempDir::new().unwrap();
    let said = run(Probe::new(Build::Plain).command(&[]).arg("local").arg(directory.path()));
    assert_eq!(said.lines().filter(|line| line.starts_with("ok local")).count(), 10, "{said}");
}

#[test]
fn of_removed_objects() {
    let probe = Probe::new(Build::Plain);
    for place in [embedded(), node(), gateway(None)] {
        let mut command = probe.command(&[]);
        command.args(["removed", &place.url, &place.endpoint]).arg(&place.path);
        let said = run(command.envs(place.environment.iter().map(|(name, value)| (name, value))));
        assert_eq!(said.lines().filter(|line| line.starts_with("ok removed")).count(), 11, "{said}");
    }
    // Opening takes one request.
    let script = ResponseFaultScript::honest().on_requests(1..usize::MAX, ResponseFault::Status(404, None));
    let place = at_a_server(script);
    let said = run(probe.command(&[]).args(["removed", &place.url, "", ""]));
    assert_eq!(said.lines().filter(|line| line.starts_with("ok removed")).count(), 4, "{said}");
}

#[test]
fn of_an_object_in_a_directory() {
    Probe::new(Build::Plain).all_points(&[], &embedded(), 8);
}

#[test]
fn of_an_object_behind_a_gateway() {
    Probe::new(Build::Plain).all_points(&[], &gateway(None), 8);
}

/// This certificate is not in any system's trust store, so only the `ca_bundle` option makes it trusted.
#[test]
fn of_an_object_behind_tls() {
    let (ours, another) = (Certificate::new(), Certificate::new());
    let probe = Probe::new(Build::Plain);
    let mut place = gateway(Some(&ours));
    place.environment.push(("PROBE_CA_BUNDLE", ours.bundle()));
    probe.all_points(&[], &place, 4);
    for bundle in [another.bundle(), "/no/such/bundle".to_owned()] {
        let mut command = probe.command(&[]);
        command.args(["refused", &place.url, &place.endpoint]);
        command.envs(place.environment.iter().map(|(name, value)| (name, value)));
        let said = run(command.env("PROBE_CA_BUNDLE", &bundle));
        assert!(said.starts_with("refused: "), "{said}");
        let why = if bundle.starts_with("/no") { bundle.as_str() } else { "TLS" };
        assert!(said.contains(why), "{said}");
    }
}

/// A program that does not ignore SIGPIPE survives a cancel and a close while a response arrives, and no thread of the
/// library takes the program's signals.
#[test]
fn of_a_canceled_read_over_http3() {
    let certificate = Certificate::new();
    let place = gateway(Some(&certificate));
    let probe = Probe::new(Build::Plain);
    let mut command = probe.command(&[]);
    command.args(["canceled", &place.url, &place.endpoint, "3"]);
    command.envs(place.environment.iter().map(|(name, value)| (name, value)));
    command.env("PROBE_CA_BUNDLE", certificate.bundle()).env("FORDWAY_HTTP_VERSION", "3");
    let said = run(&mut command);
    assert_eq!(said.lines().filter(|line| line.starts_with("ok canceled")).count(), 9, "{said}");
}

/// A program may change its environment. The connections to an earlier server, which trusted other certificates, are
/// then not used.
#[test]
fn the_ca_bundle_of_the_environment_may_change() {
    let (ours, another) = (Certificate::new(), Certificate::new());
    let (probe, place) = (Probe::new(Build::Plain), gateway(Some(&ours)));
    let web = format!("{}/bkt/file", place.endpoint);
    // The gateway refuses the URL of an object, which has no signature, but only after the TLS handshake.
    for (url, endpoint, second) in [(&place.url, &*place.endpoint, "opened"), (&web, "", "access denied")] {
        let mut command = probe.command(&[]);
        command.args(["trusted", url, endpoint, &another.bundle(), &ours.bundle()]);
        command.envs(place.environment.iter().map(|(name, value)| (name, value)));
        let said = run(command.env_remove("PROBE_CA_BUNDLE"));
        let lines: Vec<&str> = said.lines().collect();
        assert!(lines[0].contains("TLS"), "{said}");
        assert!(lines[1].contains(second), "{said}");
    }
}

#[test]
fn under_the_address_sanitizer() {
    let probe = Probe::new(Build::AddressSanitizer);
    probe.all_points(&[], &at_a_server(ResponseFaultScript::honest()), 8);
    probe.all_points(&[], &embedded(), 2);
}

#[test]
fn under_valgrind() {
    if !fordway_needs::programs(&["valgrind"]) {
        return;
    }
    Probe::new(Build::Plain).all_points(&VALGRIND, &at_a_server(ResponseFaultScript::honest()), 2);
}

/// A program may free its buffers right after a cancel or close. The sanitizer reports any later write by the library.
#[test]
fn nothing_is_written_after_a_cancel_or_close() {
    let probe = Probe::new(Build::AddressSanitizer);
    let place =
        at_a_server(ResponseFaultScript::honest().on_requests(1..usize::MAX, ResponseFault::StallAt(40_000)));
    let said = run(probe.command(&[]).args(["stalled", &place.url]));
    assert_eq!(said.lines().filter(|line| line.starts_with("ok stalled")).count(), 7, "{said}");
}

/// The manual's example compiles as C and does what the manual says. The header also compiles as C++ and as C89.
#[test]
fn the_example_of_the_manual_runs() {
    let manual =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/capi.md"))
            .unwrap();
    let source = manual.split("```c\n").nth(1).unwrap().split("```").next().unwrap();
    let directory = TempDir::new().unwrap();
    let (path, program) = (directory.path().join("example.c"), directory.path().join("example"));
    std::fs::write(&path, source).unwrap();
    compile(&path, &[], &program);
    let server = HostileServer::start(content(), ResponseFaultScript::honest());
    let mut command = Command::new(&program);
    command.arg(server.url()).env("LD_LIBRARY_PATH", lib()).env("BEARER_TOKEN", "a-token");
    assert_eq!(run(&mut command), "1000 bytes are here\n".repeat(2));
    // The server is on this machine, so tokens may be sent without TLS.
    let token = ("authorization".to_owned(), "Bearer a-token".to_owned());
    let requests = server.requests();
    assert!(!requests.is_empty() && requests.iter().all(|request| request.headers.contains(&token)));
    let refused = Command::new(&program).arg("/no/such/file").env("LD_LIBRARY_PATH", lib()).output().unwrap();
    assert!(!refused.status.success());
    assert!(String::from_utf8_lossy(&refused.stderr).contains("/no/such/file"));
    let header = include().join("fordway.h");
    run(Command::new("c++").args(["-x", "c++", "-fsyntax-only", "-Wall", "-Werror"]).arg(&header));
    run(Command::new("cc").args(["-x", "c", "-std=c89", "-pedantic-errors", "-fsyntax-only"]).arg(&header));
}

/// A check that cannot pass must make the program fail. If the program succeeded, the results of the other checks would
/// mean nothing.
#[test]
fn the_probe_can_fail() {
    let probe = Probe::new(Build::Plain);
    let other = HostileServer::start(vec![7; SIZE], ResponseFaultScript::honest());
    let said = probe.command(&[]).args([&other.url(), "", &probe.copy(), "/none", "1"]).output().unwrap();
    assert!(!said.status.success());
    assert!(String::from_utf8_lossy(&said.stdout).contains("FAILED pread: some bytes"));
}
