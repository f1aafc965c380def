//! The page of a run that a command has just made.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use fordway_command::{Context, file_error};
use fordway_store::Result;

/// Has `fordway-report` make a page of the run: from beside this binary, from a virtual environment
/// that is active, or from PATH.
pub(super) fn write(run: &Path, context: &Context) -> Result<()> {
    let html = run.with_extension("html");
    let beside = std::env::current_exe().ok().and_then(|exe| Some(exe.parent()?.join("fordway-report")));
    let program = beside.filter(|path| path.exists()).unwrap_or_else(|| PathBuf::from("fordway-report"));
    let made = Command::new(&program).arg(run).arg("--out").arg(&html).stdout(Stdio::null()).status();
    match made {
        Ok(status) if status.success() => context.output.text(&format!("report: {}", html.display())),
        Ok(status) => {
            context.output.note(&format!("no HTML report: {} ended with {status}", program.display()));
            Ok(())
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            context.output.note(
                "no HTML report: it comes with the Python package, which `make build` puts into .venv of the \
                 source tree; with .venv/bin in PATH, run `fordway report` on the run",
            );
            Ok(())
        }
        Err(error) => Err(file_error("running", program.display(), error)),
    }
}
