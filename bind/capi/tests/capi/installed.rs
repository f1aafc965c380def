//! Tests the optimised and stripped library that `make capi` builds, both shared and static.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::harness::*;

/// Returns the directory with `lib` and `include`, or `None` if the environment does not name it.
fn installed() -> Option<PathBuf> {
    let named = std::env::var_os("FORDWAY_CAPI").map(PathBuf::from);
    if named.is_none() {
        fordway_needs::skip(
            "FORDWAY_CAPI is not set to the directory that `make capi` has written; `make test` sets it",
        );
    }
    named
}

#[test]
fn the_example_runs_with_both_libraries() {
    let Some(installed) = installed() else { return };
    let directory = TempDir::new().unwrap();
    let (file, list) = (directory.path().join("file"), directory.path().join("ranges"));
    std::fs::write(&file, content()).unwrap();
    std::fs::write(&list, "0 1000\n4096 500\n").unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/baskets.c");
    let lib = installed.join("lib");
    let whole = lib.join("libfordway.a");
    let shared = ["-L", lib.to_str().unwrap(), "-lfordway"];
    let fixed = [whole.to_str().unwrap(), "-lpthread", "-ldl", "-lm"];
    for (name, libraries) in [("shared", &shared[..]), ("static", &fixed[..])] {
        let program = directory.path().join(name);
        let mut cc = Command::new("cc");
        cc.args(["-Wall", "-Wextra", "-Werror", "-I"]).arg(installed.join("include")).arg(&source);
        run(cc.args(libraries).arg("-o").arg(&program));
        let said = run(Command::new(&program).arg(&file).arg(&list).env("LD_LIBRARY_PATH", &lib));
        assert!(said.starts_with("2 baskets, 1500 bytes, "), "{name}: {said}");
    }
}
