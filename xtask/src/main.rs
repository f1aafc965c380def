//! Chores of the repository that want more than a line of shell: `cargo xtask NAME`.

mod arrows;
mod header;
mod test;

use std::env;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Result, bail};

const USAGE: &str = "\
usage: cargo xtask NAME

  arrows           check that crates use only what their room allows
  header [--check] write the header of the C API, or check that it is what the code says
  test [PYTHON]    build and run the suites `rust`, `python` (with the interpreter PYTHON, default
                   .venv/bin/python) and `mpi`; name what was skipped and why; print the sum
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
        ["arrows"] => arrows::check_workspace(),
        ["header"] => header::write(&root()),
        ["header", "--check"] => header::check(&root()),
        ["test"] => test::run_all(&root(), ".venv/bin/python"),
        ["test", python] => test::run_all(&root(), python),
        _ => bail!("{USAGE}"),
    }
}
