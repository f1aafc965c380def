//! Checks that the machine has what a test needs: root, a program, or a kernel feature.
//!
//! libtest cannot skip a test at run time: a test that returns early counts as passed. A test that cannot run therefore
//! calls [`skip`], directly or through one of the checks below, and returns. `skip` writes a record with the reason.
//! `cargo xtask test` collects the records, counts such tests as skipped, prints their names and reasons, and fails in
//! CI unless `.ci/may-skip` expects them.

use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};

/// The variable that names the record file; without it, [`skip`] writes only to standard error.
pub const RECORD_VARIABLE: &str = "FORDWAY_SKIPPED_TESTS";

/// Records that the calling test, or part of it, does not run on this machine. `reason` describes what is missing, and
/// which package or command provides it. The caller must then return from its test.
#[allow(clippy::print_stderr, reason = "a skipped test says so")]
pub fn skip(reason: impl Display) {
    let reason = reason.to_string().replace('\n', " ");
    eprintln!("skipped: {reason}");
    if let Some(path) = std::env::var_os(RECORD_VARIABLE) {
        record(Path::new(&path), &format!("{}\t{reason}\n", test_name()));
    }
}

/// Writes the record with a single `write` and `O_APPEND`, so that records of concurrent programs do not mix.
fn record(path: &Path, line: &str) {
    let opened = OpenOptions::new().create(true).append(true).open(path);
    let written = opened.and_then(|mut file| file.write_all(line.as_bytes()));
    // Panic, because this crate exists to prevent unreported skips.
    written.unwrap_or_else(|error| panic!("{} cannot be written: {error}", path.display()));
}

/// Returns `program::module::test`; libtest names each test's thread after the test.
fn test_name() -> String {
    let program = std::env::current_exe().unwrap_or_default();
    let stem = program.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let name = stem.rsplit_once('-').map_or(stem.as_str(), |(name, _hash)| name);
    format!("{name}::{}", std::thread::current().name().unwrap_or("unnamed thread"))
}

/// Returns whether this process runs as root. If it does not, records a skip. `purpose` completes "only root can ...".
pub fn root(purpose: &str) -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        skip(format_args!("only root can {purpose}"));
    }
    is_root
}

/// Returns the path of `program`, which need not be in `PATH`, because Debian installs servers in `sbin` directories.
/// Records a skip if the program is not installed.
pub fn program(program: &str) -> Option<PathBuf> {
    program_from(program, "`make setup` installs what tests use")
}

/// Like [`program`], for a program that `make setup` does not always install; `source` describes where to get the
/// program.
pub fn program_from(program: &str, source: &str) -> Option<PathBuf> {
    let found = find(program);
    if found.is_none() {
        skip(format_args!("{program} is not installed; {source}"));
    }
    found
}

/// Returns whether all of `programs` are installed; records a skip that names the first missing one.
pub fn programs(programs: &[&str]) -> bool {
    programs.iter().all(|name| program(name).is_some())
}

fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let server_dirs = ["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(server_dirs).map(|dir| dir.join(program)).find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_is_named_as_libtest_names_it() {
        assert_eq!(test_name(), "fordway_needs::tests::a_test_is_named_as_libtest_names_it");
    }

    #[test]
    fn records_are_appended() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("skipped");
        record(&path, "a\tb\n");
        record(&path, "c\td\n");
        assert_eq!(std::fs::read_to_string(path).unwrap(), "a\tb\nc\td\n");
    }

    #[test]
    fn programs_are_found_where_debian_puts_them() {
        assert!(find("sh").is_some() && find("no-such-program").is_none());
    }
}
