//! The MPI that starts ranks.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use fordway_command::external::program;
use fordway_command::file_error;
use fordway_store::{Error, ErrorKind, Result};

use crate::args::SpeedupArgs;

/// What has the ranks of any program in C or C++ report.
const PMPI: &str = "libfordway-pmpi.so";

/// `mpirun`, and what is put between the program and MPI.
#[derive(Debug)]
pub(super) struct Launcher {
    pub(super) program: PathBuf,
    /// What it says of itself.
    pub(super) version: String,
    pub(super) pmpi: Option<PathBuf>,
}

impl Launcher {
    /// Errors: `NotImplemented` where there is no Open MPI of a version that we know how to ask; `Io` for a
    /// library that is not there.
    pub(super) fn find(args: &SpeedupArgs) -> Result<Self> {
        let found = ["mpirun.openmpi", "mpirun"].iter().find_map(|name| program(name));
        let Some(program) = args.mpirun.clone().or(found) else {
            let detail = "there is no mpirun on PATH; install openmpi-bin, or name it with --mpirun";
            return Err(Error::new(ErrorKind::NotImplemented, detail));
        };
        let version = version(&program)?;
        Ok(Launcher { program, version, pmpi: pmpi(args)? })
    }
}

fn version(program: &PathBuf) -> Result<String> {
    let told = Command::new(program).arg("--version").stdin(Stdio::null()).output();
    let told = told.map_err(|error| file_error("starting", program.display(), error))?;
    let text = String::from_utf8_lossy(&told.stdout);
    let line = text.lines().next().unwrap_or_default().trim().to_owned();
    // Some builds name its run-time.
    match line.contains("(Open MPI) 4.") || line.contains("(OpenRTE) 4.") {
        true => Ok(line),
        false => {
            let detail = format!(
                "{} is no mpirun of Open MPI 4, which is what can be told where ranks run; it says {line:?}; \
                 name another with --mpirun",
                program.display()
            );
            Err(Error::new(ErrorKind::NotImplemented, detail))
        }
    }
}

fn pmpi(args: &SpeedupArgs) -> Result<Option<PathBuf>> {
    let Some(named) = &args.pmpi else {
        let beside = std::env::current_exe().ok().and_then(|exe| Some(exe.parent()?.join(PMPI)));
        return Ok(beside.filter(|path| path.is_file()));
    };
    // The loader of the ranks would go on without it, and in silence.
    named.canonicalize().map(Some).map_err(|error| file_error("opening", named.display(), error))
}
