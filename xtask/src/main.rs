//! Repository tasks that need more than one line of shell: `cargo xtask NAME`.

mod arrows;
mod dependencies;
mod features;
mod header;
mod spread;
mod test;

use std::env;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Result, bail};

const USAGE: &str = "\
usage: cargo xtask NAME

  arrows           check that crates depend only on allowed crates, and that the methods of each type are defined in a
                   few files
  dependencies     check licences, crates in two versions, and yanked versions; advisories where `cargo audit` is
                   installed; and that the programs and the module for Python select the same features
  header [--check] write the header of the C API, or check that it matches the code
  test [PYTHON] [SUITE[:TARGET]]...
                   build and run the suites `rust`, `python` (with the interpreter PYTHON, default
                   .venv/bin/python) and `mpi`, or only the given suites; print the totals,
                   and skipped tests with the reason. TARGET is one test program of a suite in Rust
                   (`lib`: the unit tests), or a file or folder in bind/python/tests: `rust:netlab`, `python:test_store.py`
";

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn run(arguments: &[String]) -> Result<()> {
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["arrows"] => arrows::check_workspace().and_then(|()| spread::check(&root())),
        ["dependencies"] => dependencies::check().and_then(|()| features::check()),
        ["header"] => header::write(&root()),
        ["header", "--check"] => header::check(&root()),
        ["test"] => test::run(&root(), ".venv/bin/python", &[]),
        ["test", python, ref selected @ ..] => test::run(&root(), python, selected),
        _ => bail!("{USAGE}"),
    }
}
