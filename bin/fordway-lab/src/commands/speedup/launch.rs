//! Finds the MPI launcher, starts and watches each job, and reads the reports of the job's ranks.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use fordway_command::external::program;
use fordway_command::{CommandContext, file_error};
use fordway_netlab::setup::{
    ContainerCommand, KernelCommand, KernelNetworks, MachineContainer, NetworkEndpoint, quoted_for_shell,
};
use fordway_netlab::{NamespaceProcess, NetworkNamespace};
use fordway_store::{Error, ErrorKind, Result};
use fordway_workload::speedup::{FinishedJob, JobLauncher, RankReport};
use tempfile::TempDir;

use super::remote;
use super::{JobMessageMedium, RunningJobSetup};
use crate::args::SpeedupArgs;
use crate::commands::scratch::ScratchDirectory;

/// The interval at which a running job is checked. The measured time of a job is too long by up to this interval.
const POLL: Duration = Duration::from_millis(1);
/// The variable that names the directory in which ranks write their reports.
const REPORTS: &str = "FORDWAY_RANK_REPORTS";
/// The number of lines of a failed job's output that are reported.
const TOLD_LINES_MAX: usize = 4;
/// The directory in which ranks keep shared memory.
const SHARED_MEMORY: &str = "/dev/shm";

/// Runs the jobs of one program in all set-ups.
pub(super) struct MpiJobRunner<'a> {
    args: &'a SpeedupArgs,
    launcher: &'a MpiLauncher,
    setups: Vec<RunningJobSetup>,
    context: &'a CommandContext,
    fordway: PathBuf,
    /// The running kernels, by the index of the set-up. New kernels are booted only after a job has failed.
    kernels: BTreeMap<usize, Vec<NamespaceProcess>>,
    /// The directory for all files that the launcher and its ranks write. The directory is removed when this value is
    /// dropped.
    scratch: ScratchDirectory,
}

impl<'a> MpiJobRunner<'a> {
    pub(super) fn new(
        args: &'a SpeedupArgs,
        launcher: &'a MpiLauncher,
        setups: Vec<RunningJobSetup>,
        context: &'a CommandContext,
    ) -> Result<Self> {
        let base = Some(PathBuf::from(SHARED_MEMORY)).filter(|path| path.is_dir());
        let base = base.unwrap_or_else(std::env::temp_dir);
        let scratch = ScratchDirectory::new("speedup", &base);
        let scratch =
            scratch.map_err(|error| file_error("creating a directory in", base.display(), error))?;
        let fordway = std::env::current_exe()
            .map_err(|error| Error::new(ErrorKind::Io, "finding this program").caused_by(error))?;
        if setups.iter().any(|setup| setup.carrier.has_two_ends()) {
            check_agent(&fordway)?;
        }
        Ok(MpiJobRunner { args, launcher, setups, context, fordway, kernels: BTreeMap::new(), scratch })
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
        let scratch = match &setup.carrier {
            // Each kernel uses its own memory, because the two kernels share only the files of the reports.
            JobMessageMedium::Kernels(_) => SHARED_MEMORY.to_owned(),
            _ => self.scratch.path().display().to_string(),
        };
        for (name, value) in [
            ("orte_tmpdir_base", scratch.as_str()),
            ("btl_vader_backing_directory", scratch.as_str()),
            // Immediately kill ranks that do not exit on request.
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
            JobMessageMedium::Loopback
            | JobMessageMedium::Networks(_)
            | JobMessageMedium::Containers(..)
            | JobMessageMedium::Kernels(_) => Some("self,tcp"),
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
                let place = ends.far.network.path().display().to_string();
                self.spread(command, [ends.near.address, ends.far.address], &place, ranks);
            }
            JobMessageMedium::Containers(_, ends) => {
                let addresses = [ends.near.address, ends.far.address];
                self.spread(command, addresses, &ends.far.address.to_string(), ranks);
            }
            JobMessageMedium::Kernels(kernels) => {
                let addresses = [kernels.ends[0].address, kernels.ends[1].address];
                self.spread(command, addresses, &addresses[1].to_string(), ranks);
            }
            JobMessageMedium::Default | JobMessageMedium::SharedMemory | JobMessageMedium::Container(_) => {}
        }
    }

    /// Distributes the ranks over both ends. The launcher starts `fordway speedup --enter` instead of ssh to run a
    /// command at the far end, `place`.
    fn spread(&self, command: &mut Command, addresses: [IpAddr; 2], place: &str, ranks: u32) {
        let agent = format!("{} speedup --enter {place} --", self.fordway.display());
        command.args(["--host", &hosts(addresses, ranks), "--mca", "plm_rsh_agent", &agent]);
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
            JobMessageMedium::Kernels(kernels) => {
                let command = remote_command(&self.command(setup, ranks, paper)?)?;
                let end = &kernels.ends[0];
                let mut send = Command::new(&self.fordway);
                send.args(["speedup", "--enter", &end.address.to_string(), "--", "near"]).arg(command);
                send.stdin(Stdio::null()).stdout(paper.stream()?).stderr(paper.stream()?);
                return end.network.start_contained(send);
            }
            JobMessageMedium::Default | JobMessageMedium::SharedMemory | JobMessageMedium::Loopback => {}
        }
        match NamespaceProcess::start_contained_here(self.command(setup, ranks, paper)?) {
            // This process lacks the permission to contain the launcher's processes, so start the launcher without
            // containment. If this launcher is terminated, it must terminate its ranks itself.
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
        let asked = ContainerCommand { name: "near", words: &words, variables: &[], network };
        container.start(&asked, paper.stream()?.into(), paper.stream()?.into())
    }

    /// Starts the container that waits for commands at the far end; `None` if the set-up has no containers, or no rank
    /// runs at the far end.
    fn start_far(
        &self,
        setup: &RunningJobSetup,
        ranks: u32,
        paper: &JobReportFiles,
    ) -> Result<Option<NamespaceProcess>> {
        match &setup.carrier {
            JobMessageMedium::Containers(container, ends) if far_ranks(ranks) > 0 => {
                let words = self.accept_words(&ends.far);
                let network = Some(&ends.far.network);
                let asked = ContainerCommand { name: "far", words: &words, variables: &[], network };
                let process = container.start(&asked, paper.stream()?.into(), paper.stream()?.into())?;
                ready(process, &ends.near.network, &ends.far).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Boots both kernels of a set-up that has kernels, unless they are running.
    fn start_kernels(&mut self, lane: usize, paper: &JobReportFiles) -> Result<()> {
        let JobMessageMedium::Kernels(kernels) = &self.setups[lane].carrier else { return Ok(()) };
        if self.kernels.contains_key(&lane) {
            return Ok(());
        }
        let started = [self.start_kernel(kernels, 0, paper)?, self.start_kernel(kernels, 1, paper)?];
        let all = started.into_iter().zip(&kernels.ends);
        let running = all.map(|(process, end)| ready(process, &kernels.ends[0].network, end));
        let running = running.collect::<Result<Vec<_>>>()?;
        self.kernels.insert(lane, running);
        Ok(())
    }

    fn start_kernel(
        &self,
        kernels: &KernelNetworks,
        end: usize,
        paper: &JobReportFiles,
    ) -> Result<NamespaceProcess> {
        let words = self.accept_words(&kernels.ends[end]);
        let asked =
            KernelCommand { end, name: ["near", "far"][end], words: &words, shared: self.scratch.path() };
        kernels.start(&asked, paper.stream()?.into(), paper.stream()?.into())
    }

    /// Returns the program and its arguments that accept commands at an end.
    fn accept_words(&self, end: &NetworkEndpoint) -> [OsString; 4] {
        let address = end.address.to_string();
        [self.fordway.as_os_str().to_owned(), "speedup".into(), "--accept".into(), address.into()]
    }

    /// Waits until a job has exited. If the job exceeds the deadline, terminates it with all its processes before
    /// returning.
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

impl MpiJobRunner<'_> {
    fn run(&mut self, lane: usize, ranks: u32) -> Result<FinishedJob> {
        let paper = JobReportFiles::new(self.scratch.path())?;
        self.start_kernels(lane, &paper).map_err(|error| explained(error, &paper))?;
        let setup = &self.setups[lane];
        let _far = self.start_far(setup, ranks, &paper).map_err(|error| explained(error, &paper))?;
        let since = Instant::now();
        let process = self.start(setup, ranks, &paper)?;
        let status = self.wait(process, since)?;
        let elapsed_ns = u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX);
        // Ctrl-C also terminates the launcher, so a failure of the launcher is not an error of the job.
        self.context.interrupt.check()?;
        if !status.success() {
            let detail = format!("the job exited with {status}: {}", paper.told());
            return Err(Error::new(ErrorKind::Io, detail));
        }
        let mut reports = paper.reports(ranks)?;
        if matches!(setup.carrier, JobMessageMedium::Kernels(_)) {
            let near = reports.len().min((ranks - far_ranks(ranks)) as usize);
            let (near, far) = reports.split_at_mut(near);
            [near, far].into_iter().for_each(count_from_start);
        }
        Ok(FinishedJob { elapsed_ns, ranks: reports })
    }
}

impl JobLauncher for MpiJobRunner<'_> {
    fn launch(&mut self, lane: usize, ranks: u32) -> Result<FinishedJob> {
        let ran = self.run(lane, ranks);
        if ran.is_err() {
            // The failed job's ranks may still run on the kernels, so the next job boots new kernels.
            self.kernels.remove(&lane);
        }
        ran
    }
}

/// Appends the last lines of a job's output to the message of `error`.
fn explained(error: Error, paper: &JobReportFiles) -> Error {
    let detail = format!("{}: {}", error.detail(), paper.told());
    Error::new(error.kind(), detail).caused_by(error)
}

/// Checks that the launcher can start `fordway` instead of ssh. Open MPI divides the name of this program at spaces and
/// colons, and knows no quotes.
fn check_agent(fordway: &Path) -> Result<()> {
    let path = fordway.to_string_lossy();
    if path.contains([' ', ':']) {
        let why = format!(
            "Open MPI cannot start {path:?} for a job with two ends, because the path contains a space or a colon; \
             copy the program to another directory"
        );
        return Err(Error::new(ErrorKind::InvalidArgument, why));
    }
    Ok(())
}

/// Returns the number of ranks at the far end: half of the ranks, rounded down.
fn far_ranks(ranks: u32) -> u32 {
    ranks / 2
}

/// Returns the launcher's list of hosts, with half of the ranks at each end and the first ranks at the near end.
fn hosts([near, far]: [IpAddr; 2], ranks: u32) -> String {
    match far_ranks(ranks) {
        0 => near.to_string(),
        further => format!("{near}:{},{far}:{further}", ranks - further),
    }
}

/// Waits until `process` accepts commands at `end`.
fn ready(
    mut process: NamespaceProcess,
    from: &NetworkNamespace,
    end: &NetworkEndpoint,
) -> Result<NamespaceProcess> {
    from.run(|| remote::wait_for(end.address, &mut process))??;
    Ok(process)
}

/// Converts a command to a shell command line. Errors: the errors of quoting a word.
fn remote_command(command: &Command) -> Result<String> {
    let words = [command.get_program()].into_iter().chain(command.get_args());
    Ok(words.map(quoted_for_shell).collect::<Result<Vec<_>>>()?.join(" "))
}

/// Converts the times of one kernel's ranks to times since the start of the kernel's first rank. The two kernels have
/// different clocks, but the ranks of both kernels leave `MPI_Init` at the same time.
fn count_from_start(reports: &mut [RankReport]) {
    let start = reports.iter().map(|report| report.start_ns).min().unwrap_or_default();
    for report in reports {
        report.start_ns -= start;
        report.end_ns = report.end_ns.saturating_sub(start);
    }
}

fn assignment(name: &str, value: &std::ffi::OsStr) -> OsString {
    let mut text = OsString::from(name);
    text.push("=");
    text.push(value);
    text
}

/// Replaces `{ranks}` in a word of the command. A word that is not UTF-8 stays unchanged.
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

    /// Joins the last lines of the log into one line. Omits lines without letters and digits.
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

    /// Returns the reports of all ranks; empty if any report is missing. Errors: `Internal` if a report is invalid.
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
    /// Finds the launcher. Errors: `NotImplemented` if no supported version of Open MPI is installed; `Io` for a
    /// library that does not exist.
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
    // Check the path here, because the ranks' loader silently continues if the library does not exist.
    named.canonicalize().map(Some).map_err(|error| file_error("opening", named.display(), error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_the_launcher_would_divide_is_refused() {
        check_agent(Path::new("/opt/fordway/bin/fordway")).unwrap();
        for path in ["/opt/my programs/fordway", "/opt/a:b/fordway"] {
            assert_eq!(
                check_agent(Path::new(path)).unwrap_err().kind(),
                ErrorKind::InvalidArgument,
                "{path}"
            );
        }
    }
}
