//! Runs one job: finds the MPI launcher, starts and watches the job, and reads its reports.

use std::ffi::OsString;
use std::fmt::Display;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use fordway_command::external::program;
use fordway_command::{CommandContext, file_error};
use fordway_netlab::setup::{ContainerCommand, MachineContainer, NetworkPair};
use fordway_netlab::{NamespaceProcess, NetworkNamespace};
use fordway_store::{Error, ErrorKind, Result};
use fordway_workload::speedup::{FinishedJob, JobLauncher, RankReport};
use tempfile::TempDir;

use super::remote;
use super::{JobMessageMedium, RunningJobSetup};
use crate::args::SpeedupArgs;

/// The polling interval for a job, and therefore the maximum delay in noticing its end.
const POLL: Duration = Duration::from_millis(1);
/// The variable that names the directory in which ranks write their reports.
const REPORTS: &str = "FORDWAY_RANK_REPORTS";
/// The number of lines of a failed job's output that are reported.
const TOLD_LINES_MAX: usize = 4;
/// The directory in which ranks keep shared memory.
const SHARED_MEMORY: &str = "/dev/shm";

/// Runs the jobs of one program in all set-ups.
pub(super) struct JobRunner<'a> {
    args: &'a SpeedupArgs,
    launcher: &'a MpiLauncher,
    setups: Vec<RunningJobSetup>,
    context: &'a CommandContext,
    fordway: PathBuf,
    /// The directory for all files that the launcher and its ranks write. Removed when this value is dropped.
    scratch: TempDir,
}

impl<'a> JobRunner<'a> {
    pub(super) fn new(
        args: &'a SpeedupArgs,
        launcher: &'a MpiLauncher,
        setups: Vec<RunningJobSetup>,
        context: &'a CommandContext,
    ) -> Result<Self> {
        let base = Some(PathBuf::from(SHARED_MEMORY)).filter(|path| path.is_dir());
        let base = base.unwrap_or_else(std::env::temp_dir);
        let scratch = tempfile::Builder::new().prefix("fordway-").tempdir_in(&base);
        let scratch =
            scratch.map_err(|error| file_error("creating a directory in", base.display(), error))?;
        let fordway = std::env::current_exe()
            .map_err(|error| Error::new(ErrorKind::Io, "finding this program").caused_by(error))?;
        Ok(JobRunner { args, launcher, setups, context, fordway, scratch })
    }

    fn command(&self, setup: &RunningJobSetup, ranks: u32, paper: &JobReportFiles) -> Result<Command> {
        let mut command = Command::new(&self.launcher.program);
        command.args([
            "--allow-run-as-root",
            "--oversubscribe",
            "--bind-to",
            "none",
            "-n",
            &ranks.to_string(),
        ]);
        let scratch = self.scratch.path().display().to_string();
        for (name, value) in [
            ("orte_tmpdir_base", scratch.as_str()),
            ("btl_vader_backing_directory", scratch.as_str()),
            // Ranks that do not end on request are killed immediately.
            ("odls_base_sigkill_timeout", "0"),
        ] {
            command.args(["--mca", name, value]);
        }
        self.carry(&mut command, setup, ranks);
        command.arg("-x").arg(assignment(REPORTS, paper.reports.as_os_str()));
        if let Some(library) = &self.launcher.pmpi {
            command.arg("-x").arg(assignment("LD_PRELOAD", library.as_os_str()));
        }
        command.args(self.args.command.iter().map(|word| filled(word, ranks)));
        command.stdin(Stdio::null()).stdout(paper.stream()?).stderr(paper.stream()?);
        Ok(command)
    }

    /// Adds the options that select the medium for messages and determine where the ranks run.
    fn carry(&self, command: &mut Command, setup: &RunningJobSetup, ranks: u32) {
        let btl = match &setup.carrier {
            JobMessageMedium::Default => None,
            JobMessageMedium::SharedMemory | JobMessageMedium::Container(_) => Some("self,vader"),
            JobMessageMedium::Loopback | JobMessageMedium::Networks(_) | JobMessageMedium::Containers(..) => {
                Some("self,tcp")
            }
        };
        if let Some(btl) = btl {
            command.args(["--mca", "pml", "ob1", "--mca", "btl", btl]);
        }
        if btl.is_some() || setup.is_yielding {
            command.args(["--mca", "mpi_yield_when_idle", if setup.is_yielding { "1" } else { "0" }]);
        }
        match &setup.carrier {
            JobMessageMedium::Loopback => {
                command.args(["--mca", "btl_tcp_if_include", "lo"]);
            }
            JobMessageMedium::Networks(ends) => {
                let agent = self.agent(&ends.far.network.path().display());
                command.args(["--host", &hosts(ends, ranks), "--mca", "plm_rsh_agent", &agent]);
            }
            JobMessageMedium::Containers(_, ends) => {
                let agent = self.agent(&ends.far.address);
                command.args(["--host", &hosts(ends, ranks), "--mca", "plm_rsh_agent", &agent]);
            }
            JobMessageMedium::Default | JobMessageMedium::SharedMemory | JobMessageMedium::Container(_) => {}
        }
    }

    /// Returns the command that the launcher starts instead of ssh, to run a command at `place`.
    fn agent(&self, place: &dyn Display) -> String {
        format!("{} speedup --enter {place} --", self.fordway.display())
    }

    fn start(&self, setup: &RunningJobSetup, ranks: u32, paper: &JobReportFiles) -> Result<NamespaceProcess> {
        match &setup.carrier {
            JobMessageMedium::Networks(ends) => {
                return ends.near.network.start_contained(self.command(setup, ranks, paper)?);
            }
            JobMessageMedium::Container(container) => {
                return self.start_in_container(container, None, &self.command(setup, ranks, paper)?, paper);
            }
            JobMessageMedium::Containers(container, ends) => {
                let command = self.command(setup, ranks, paper)?;
                return self.start_in_container(container, Some(&ends.near.network), &command, paper);
            }
            JobMessageMedium::Default | JobMessageMedium::SharedMemory | JobMessageMedium::Loopback => {}
        }
        match NamespaceProcess::start_contained_here(self.command(setup, ranks, paper)?) {
            // If this process may not contain the launcher's processes, a terminated launcher must itself end its
            // ranks.
            Err(error) if error.kind() == ErrorKind::NotImplemented => {
                NamespaceProcess::start_here(self.command(setup, ranks, paper)?)
            }
            started => started,
        }
    }

    fn start_in_container(
        &self,
        container: &MachineContainer,
        network: Option<&NetworkNamespace>,
        command: &Command,
        paper: &JobReportFiles,
    ) -> Result<NamespaceProcess> {
        let words = [command.get_program()].into_iter().chain(command.get_args());
        let words: Vec<OsString> = words.map(ToOwned::to_owned).collect();
        let asked = ContainerCommand { name: "near", words: &words, shared: self.scratch.path(), network };
        container.start(&asked, paper.stream()?.into(), paper.stream()?.into())
    }

    /// Starts what the launcher needs at the far end before the job: a container that waits for commands. `None` if the
    /// set-up needs nothing, or places no rank there.
    fn start_far(
        &self,
        setup: &RunningJobSetup,
        ranks: u32,
        paper: &JobReportFiles,
    ) -> Result<Option<NamespaceProcess>> {
        let JobMessageMedium::Containers(container, ends) = &setup.carrier else { return Ok(None) };
        if far_ranks(ranks) == 0 {
            return Ok(None);
        }
        let at = ends.far.address;
        let words =
            [self.fordway.as_os_str().to_owned(), "speedup".into(), "--accept".into(), at.to_string().into()];
        let network = Some(&ends.far.network);
        let asked = ContainerCommand { name: "far", words: &words, shared: self.scratch.path(), network };
        let mut process = container.start(&asked, paper.stream()?.into(), paper.stream()?.into())?;
        ends.near.network.run(|| remote::wait_for(at, &mut process))??;
        Ok(Some(process))
    }

    /// Waits for a job to end. If the job exceeds the deadline, ends the job and all its processes before returning.
    fn wait(&self, mut process: NamespaceProcess, since: Instant) -> Result<ExitStatus> {
        loop {
            if let Some(status) = process.ended()? {
                return Ok(status);
            }
            self.context.interrupt.check()?;
            if since.elapsed() > self.args.deadline {
                let detail = format!(
                    "the job took longer than {:?} and was terminated; increase --deadline to allow more",
                    self.args.deadline
                );
                return Err(Error::new(ErrorKind::Timeout, detail));
            }
            std::thread::sleep(POLL);
        }
    }
}

impl JobLauncher for JobRunner<'_> {
    fn launch(&mut self, lane: usize, ranks: u32) -> Result<FinishedJob> {
        let paper = JobReportFiles::new(self.scratch.path())?;
        let _far = self.start_far(&self.setups[lane], ranks, &paper)?;
        let since = Instant::now();
        let process = self.start(&self.setups[lane], ranks, &paper)?;
        let status = self.wait(process, since)?;
        let elapsed_ns = u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX);
        // Ctrl-C also reaches the launcher.
        self.context.interrupt.check()?;
        if !status.success() {
            let detail = format!("the job exited with {status}: {}", paper.told());
            return Err(Error::new(ErrorKind::Io, detail));
        }
        Ok(FinishedJob { elapsed_ns, ranks: paper.reports(ranks)? })
    }
}

/// Returns how many ranks are at the far end: half of them, rounded down.
fn far_ranks(ranks: u32) -> u32 {
    ranks / 2
}

/// Places half of the ranks at each end, the first ones at the near end.
fn hosts(ends: &NetworkPair, ranks: u32) -> String {
    let far = far_ranks(ranks);
    match far {
        0 => ends.near.address.to_string(),
        _ => format!("{}:{},{}:{far}", ends.near.address, ranks - far, ends.far.address),
    }
}

fn assignment(name: &str, value: &std::ffi::OsStr) -> OsString {
    let mut text = OsString::from(name);
    text.push("=");
    text.push(value);
    text
}

/// Replaces `{ranks}` in a word of the command. A word that is not UTF-8 is kept as it is.
fn filled(word: &OsString, ranks: u32) -> OsString {
    word.to_str().map_or_else(|| word.clone(), |text| text.replace("{ranks}", &ranks.to_string()).into())
}

/// The files that one job writes.
struct JobReportFiles {
    dir: TempDir,
    reports: PathBuf,
}

impl JobReportFiles {
    fn new(scratch: &Path) -> Result<Self> {
        let failed = |error| file_error("creating a directory in", scratch.display(), error);
        let dir = TempDir::new_in(scratch).map_err(failed)?;
        let reports = dir.path().join("ranks");
        std::fs::create_dir(&reports).map_err(failed)?;
        Ok(JobReportFiles { dir, reports })
    }

    fn log(&self) -> PathBuf {
        self.dir.path().join("log")
    }

    fn stream(&self) -> Result<File> {
        let opened = File::options().create(true).append(true).open(self.log());
        opened.map_err(|error| file_error("opening", self.log().display(), error))
    }

    /// Returns the last lines of the log joined into one, without purely decorative lines.
    fn told(&self) -> String {
        let text = std::fs::read(self.log()).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let said = |line: &&str| line.chars().any(char::is_alphanumeric);
        let lines: Vec<&str> = text.lines().map(str::trim).filter(said).collect();
        match lines.is_empty() {
            true => "it printed nothing".to_owned(),
            false => lines[lines.len().saturating_sub(TOLD_LINES_MAX)..].join(" / "),
        }
    }

    /// Returns the reports of all ranks, or none if any is missing.
    fn reports(&self, ranks: u32) -> Result<Vec<RankReport>> {
        let mut reports = Vec::new();
        for rank in 0..ranks {
            let path = self.reports.join(format!("rank-{rank}.json"));
            let Ok(text) = std::fs::read(&path) else { return Ok(Vec::new()) };
            reports.push(serde_json::from_slice(&text).map_err(|error| {
                let detail = format!("the report of rank {rank} is invalid");
                Error::new(ErrorKind::Internal, detail).caused_by(error)
            })?);
        }
        Ok(reports)
    }
}

/// The library that is preloaded into the ranks of a C or C++ program and reports their communication.
const PMPI: &str = "libfordway-pmpi.so";

/// `mpirun`, and the library that is loaded between the program and MPI.
#[derive(Debug)]
pub(super) struct MpiLauncher {
    pub(super) program: PathBuf,
    /// The first line that `mpirun --version` prints.
    pub(super) version: String,
    pub(super) pmpi: Option<PathBuf>,
}

impl MpiLauncher {
    /// Finds the launcher. Errors: `NotImplemented` if there is no Open MPI of a supported version; `Io` for a library
    /// that does not exist.
    pub(super) fn find(args: &SpeedupArgs) -> Result<Self> {
        let found = ["mpirun.openmpi", "mpirun"].iter().find_map(|name| program(name));
        let Some(program) = args.mpirun.clone().or(found) else {
            let detail = "mpirun is not on PATH; install openmpi-bin, or give its path with --mpirun";
            return Err(Error::new(ErrorKind::NotImplemented, detail));
        };
        let version = version(&program)?;
        Ok(MpiLauncher { program, version, pmpi: pmpi(args)? })
    }
}

fn version(program: &PathBuf) -> Result<String> {
    let told = Command::new(program).arg("--version").stdin(Stdio::null()).output();
    let told = told.map_err(|error| file_error("starting", program.display(), error))?;
    let text = String::from_utf8_lossy(&told.stdout);
    let line = text.lines().next().unwrap_or_default().trim().to_owned();
    // Some builds print the name of the run-time environment (OpenRTE) instead of Open MPI.
    match line.contains("(Open MPI) 4.") || line.contains("(OpenRTE) 4.") {
        true => Ok(line),
        false => {
            let detail = format!(
                "{} is not the mpirun of Open MPI 4, which is needed to place ranks; its version is \
                 {line:?}; give another with --mpirun",
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
    // The path is checked now, because the ranks' loader would silently continue without the library.
    named.canonicalize().map(Some).map_err(|error| file_error("opening", named.display(), error))
}
