//! The API as a C program sees it (`probe.c`), on each kind of file.

#![allow(clippy::print_stderr, reason = "a test that is skipped says so")]

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, OnceLock};

use fordway_posix::{PosixConfig, PosixStore};
use fordway_serve::{Gateway, GatewayConfig, Identity, Users};
use fordway_testkit::hostile::{HostileServer, Lie, Script};
use tempfile::TempDir;

const SIZE: usize = 600_000;
const VALGRIND: [&str; 5] =
    ["valgrind", "--quiet", "--leak-check=full", "--errors-for-leak-kinds=definite", "--error-exitcode=9"];

fn content() -> Vec<u8> {
    (0..SIZE as u32 / 4).flat_map(|word| word.wrapping_mul(2_654_435_761).to_le_bytes()).collect()
}

/// The directory with `lib` and `include`, built anew if the source changed.
fn built() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let out = repository.join("out");
        let mut build = Command::new(repository.join("tools/build-capi"));
        // What cargo tells a test about its package would look like a change to build scripts.
        let told = std::env::vars_os().map(|(name, _)| name);
        let told = told.filter(|name| name.to_str().is_some_and(|name| name.starts_with("CARGO_")));
        let kept = ["CARGO_HOME", "CARGO_TARGET_DIR", "CARGO_BUILD_JOBS"];
        for name in told.filter(|name| !kept.iter().any(|kept| name == kept)) {
            build.env_remove(name);
        }
        run(build.arg(&out));
        out
    })
}

/// Runs a command to its end. Panics with all it said if it fails.
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?} cannot be started: {error}"));
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?} ended with {}\n{out}\n{err}", output.status);
    out.into_owned()
}

/// The probe, compiled; with a copy of the file that it reads.
struct Probe {
    directory: TempDir,
}

impl Probe {
    fn compile(flags: &[&str]) -> Self {
        let directory = TempDir::new().unwrap();
        std::fs::write(directory.path().join("copy"), content()).unwrap();
        let mut cc = Command::new("cc");
        cc.args(["-std=gnu11", "-g", "-O1", "-Wall", "-Wextra", "-Werror"]).args(flags);
        cc.arg("-I").arg(built().join("include"));
        cc.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/probe.c"));
        cc.arg("-L").arg(built().join("lib")).args(["-lfordway", "-lpthread", "-o"]);
        run(cc.arg(directory.path().join("probe")));
        Probe { directory }
    }

    fn copy(&self) -> String {
        self.directory.path().join("copy").to_str().unwrap().to_owned()
    }

    fn command(&self, wrapper: &[&str]) -> Command {
        let probe = self.directory.path().join("probe");
        let mut command = match wrapper {
            [] => Command::new(&probe),
            [first, rest @ ..] => {
                let mut command = Command::new(first);
                command.args(rest).arg(&probe);
                command
            }
        };
        command.env("LD_LIBRARY_PATH", built().join("lib"));
        command
    }

    /// Runs all points in so many threads; every one must hold.
    fn all_points(&self, wrapper: &[&str], place: &Place, threads: usize) {
        let mut command = self.command(wrapper);
        command.args([&place.url, &place.endpoint, &self.copy(), &place.missing, &threads.to_string()]);
        command.envs(place.environment.iter().map(|(name, value)| (name, value)));
        let said = run(&mut command);
        let held = said.lines().filter(|line| line.starts_with("ok ")).count();
        assert!(held > 58 * threads, "only {held} points held:\n{said}");
        assert!(said.ends_with("\n0 failed\n"), "{said}");
    }
}

/// Where a file is, as the probe is told.
#[derive(Default)]
struct Place {
    url: String,
    endpoint: String,
    missing: String,
    environment: Vec<(&'static str, String)>,
    _kept: Option<Box<dyn std::any::Any>>,
}

fn at_a_server(script: Script) -> Place {
    let server = HostileServer::start(content(), script);
    let url = server.url();
    // It has one file, whatever it is asked for: what is missing is on this machine.
    let missing = "/no/such/file".to_owned();
    Place { url, missing, _kept: Some(Box::new(server)), ..Place::default() }
}

fn bucket() -> TempDir {
    let root = TempDir::new().unwrap();
    std::fs::create_dir(root.path().join("bkt")).unwrap();
    std::fs::write(root.path().join("bkt/file"), content()).unwrap();
    root
}

fn object(endpoint: String, environment: Vec<(&'static str, String)>, kept: Box<dyn std::any::Any>) -> Place {
    let (url, missing) = ("s3://bkt/file".to_owned(), "s3://bkt/missing".to_owned());
    Place { url, endpoint, missing, environment, _kept: Some(kept) }
}

fn embedded() -> Place {
    let root = bucket();
    object(root.path().to_str().unwrap().to_owned(), Vec::new(), Box::new(root))
}

/// Through a gateway of this process, which ends with the place.
fn gateway() -> Place {
    let root = bucket();
    let store = PosixStore::open(root.path(), PosixConfig::default()).unwrap();
    let identity = Identity::generate().unwrap();
    let config = GatewayConfig::new(SocketAddr::from(([127, 0, 0, 1], 0)));
    let users = Users::one(identity.clone(), Arc::new(store));
    let gateway = Gateway::bind(users, config).unwrap().spawn().unwrap();
    let Identity { access_key, secret_key } = identity;
    // As options: what the environment says is tried by the tests of other leaves.
    let environment = vec![("PROBE_ACCESS_KEY", access_key), ("PROBE_SECRET_KEY", secret_key)];
    object(format!("http://{}", gateway.local_addr()), environment, Box::new((gateway, root)))
}

#[test]
fn of_a_file_at_a_server() {
    Probe::compile(&[]).all_points(&[], &at_a_server(Script::honest()), 1);
}

#[test]
fn of_a_file_at_a_server_from_eight_threads() {
    Probe::compile(&[]).all_points(&[], &at_a_server(Script::honest()), 8);
}

#[test]
fn of_a_file_at_a_server_that_knows_no_lists_and_cuts_answers() {
    let script = Script::honest().always(Lie::WholeOverRanges(1)).on_requests(5..7, Lie::ResetAt(5_000));
    Probe::compile(&[]).all_points(&[], &at_a_server(script), 2);
}

#[test]
fn of_a_local_file() {
    let probe = Probe::compile(&[]);
    for url in [probe.copy(), format!("file://{}", probe.copy())] {
        let place = Place { url, missing: "/no/such/file".into(), ..Place::default() };
        probe.all_points(&[], &place, 8);
    }
}

#[test]
fn of_an_object_in_a_directory() {
    Probe::compile(&[]).all_points(&[], &embedded(), 8);
}

#[test]
fn of_an_object_behind_a_gateway() {
    Probe::compile(&[]).all_points(&[], &gateway(), 8);
}

#[test]
fn under_the_address_sanitizer() {
    let probe = Probe::compile(&["-fsanitize=address"]);
    probe.all_points(&[], &at_a_server(Script::honest()), 8);
    probe.all_points(&[], &embedded(), 2);
}

#[test]
fn under_valgrind() {
    if Command::new("valgrind").arg("--version").output().is_err() {
        eprintln!("skipped: valgrind is not installed; `make setup` installs it");
        return;
    }
    Probe::compile(&[]).all_points(&VALGRIND, &at_a_server(Script::honest()), 2);
}

/// Whoever cancels or closes may free its buffers at once: the sanitizer would tell of a late write.
#[test]
fn nothing_is_written_after_a_cancel_or_close() {
    let probe = Probe::compile(&["-fsanitize=address"]);
    let place = at_a_server(Script::honest().on_requests(1..usize::MAX, Lie::StallAt(40_000)));
    let said = run(probe.command(&[]).args(["stalled", &place.url]));
    assert_eq!(said.lines().filter(|line| line.starts_with("ok stalled")).count(), 6, "{said}");
}

/// The example of the manual does what it says there, as C and with a header that C++ takes.
#[test]
fn the_example_of_the_manual_runs() {
    let manual = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/capi.md")).unwrap();
    let source = manual.split("```c\n").nth(1).unwrap().split("```").next().unwrap();
    let directory = TempDir::new().unwrap();
    let (path, program) = (directory.path().join("example.c"), directory.path().join("example"));
    std::fs::write(&path, source).unwrap();
    let (include, lib) = (built().join("include"), built().join("lib"));
    let mut cc = Command::new("cc");
    cc.args(["-Wall", "-Wextra", "-Werror", "-I"]).arg(&include).arg(&path);
    run(cc.arg("-L").arg(&lib).args(["-lfordway", "-o"]).arg(&program));
    let server = HostileServer::start(content(), Script::honest());
    let mut command = Command::new(&program);
    command.arg(server.url()).env("LD_LIBRARY_PATH", &lib).env("BEARER_TOKEN", "a-token");
    assert_eq!(run(&mut command), "1000 bytes are here\n".repeat(2));
    // The server is on this machine, where tokens may go without TLS.
    let token = ("authorization".to_owned(), "Bearer a-token".to_owned());
    let requests = server.requests();
    assert!(!requests.is_empty() && requests.iter().all(|request| request.headers.contains(&token)));
    let refused = Command::new(&program).arg("/no/such/file").env("LD_LIBRARY_PATH", &lib).output().unwrap();
    assert!(!refused.status.success());
    assert!(String::from_utf8_lossy(&refused.stderr).contains("/no/such/file"));
    let header = include.join("fordway.h");
    run(Command::new("c++").args(["-x", "c++", "-fsyntax-only", "-Wall", "-Werror"]).arg(header));
}

/// A point that cannot hold must fail the program: the others are worth nothing otherwise.
#[test]
fn the_probe_can_fail() {
    let probe = Probe::compile(&[]);
    let other = HostileServer::start(vec![7; SIZE], Script::honest());
    let said = probe.command(&[]).args([&other.url(), "", &probe.copy(), "/none", "1"]).output().unwrap();
    assert!(!said.status.success());
    assert!(String::from_utf8_lossy(&said.stdout).contains("FAILED pread: some bytes"));
}
