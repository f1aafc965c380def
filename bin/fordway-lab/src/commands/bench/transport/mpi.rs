//! MPI as a transport: two ranks, started by the launcher of their MPI implementation, communicate over TCP or shared
//! memory. This module can also run two ranks only to measure their round-trip time, with the placement and connection
//! that their MPI implementation chooses.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use fordway_command::external::program;
use fordway_measure::RunDocument;
use fordway_store::Result;
use fordway_workload::transport::RemoteTransport;

use super::process::{ChildProgram, ChildProgramListener};
use crate::args::TransportBenchArgs;

/// The message that is shown if fordway-mpi is missing; it names Debian's packages.
const NOT_BUILT: &str = "skipped MPI: fordway-mpi does not exist; `make mpi` builds it for Debian's Open MPI \
    (packages openmpi-bin libopenmpi-dev), `make mpi MPICC=mpicc.mpich MPIRUN=mpirun.mpich` for MPICH (mpich \
    libmpich-dev)";

/// Environment variables that let Open MPI run as root, as in containers, and start more ranks than there are cores, as
/// on small machines. Other MPI implementations ignore these variables.
const PERMISSIVE: [(&str, &str); 4] = [
    ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
    ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
    ("OMPI_MCA_rmaps_base_oversubscribe", "1"),
    ("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe"),
];

/// MPI implementations that need different settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MpiImplementation {
    OpenMpi,
    Mpich,
    Other,
}

/// The medium over which messages are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MpiMessageMedium {
    Tcp,
    Shm,
}

/// A fordway-mpi program, and its MPI implementation.
#[derive(Debug)]
pub(super) struct MpiProgram {
    binary: PathBuf,
    implementation: String,
    launcher: PathBuf,
}

/// Two running ranks that wait for tasks.
pub(super) struct MpiJob {
    pub(super) remote: RemoteTransport,
    pub(super) program: ChildProgram,
    /// The process IDs of the rank that sends requests and of the rank that responds.
    pub(super) sides: [u32; 2],
}

/// Returns the command that starts `fordway-mpi transport` on two ranks, and the name of their MPI implementation. The
/// MPI implementation chooses the placement and the connection of the ranks. The caller must add the options of
/// `transport`. Errors: a sentence that names the missing program.
pub(super) fn two_ranks() -> std::result::Result<(Command, String), String> {
    let mpi = MpiProgram::of(default_binary().ok_or(NOT_BUILT)?, None)?;
    let mut command = Command::new(&mpi.launcher);
    command.args(["-n", "2"]).arg(&mpi.binary).arg("transport").envs(PERMISSIVE.iter().copied());
    Ok((command, mpi.implementation))
}

/// Returns all programs that can be started, and a message for each program that cannot be started.
pub(super) fn find(args: &TransportBenchArgs) -> (Vec<MpiProgram>, Vec<String>) {
    let binaries = match args.mpi.is_empty() {
        false => args.mpi.clone(),
        true => default_binary().into_iter().collect(),
    };
    if binaries.is_empty() {
        return (Vec::new(), vec![NOT_BUILT.to_owned()]);
    }
    let (mut found, mut missing) = (Vec::new(), Vec::new());
    for binary in binaries {
        match MpiProgram::of(binary, args.mpirun.as_deref()) {
            Ok(mpi) => found.push(mpi),
            Err(why) => missing.push(why),
        }
    }
    (distinct(found, &mut missing), missing)
}

/// Returns the first program of each MPI implementation, because the names of transports contain only the
/// implementation. Adds a message to `missing` for each other program.
fn distinct(all: Vec<MpiProgram>, missing: &mut Vec<String>) -> Vec<MpiProgram> {
    let mut found: Vec<MpiProgram> = Vec::new();
    for mpi in all {
        if found.iter().any(|other| other.name() == mpi.name()) {
            let (binary, name) = (mpi.binary.display(), mpi.name());
            missing.push(format!("skipped {binary}: --mpi contains an earlier program of {name}"));
        } else {
            found.push(mpi);
        }
    }
    found
}

fn default_binary() -> Option<PathBuf> {
    let beside = std::env::current_exe().ok().and_then(|exe| Some(exe.parent()?.join("fordway-mpi")));
    beside.filter(|path| path.is_file()).or_else(|| program("fordway-mpi"))
}

impl MpiProgram {
    fn of(binary: PathBuf, launcher: Option<&Path>) -> std::result::Result<Self, String> {
        let implementation = implementation_of(&binary)?;
        let names: &[&str] = match MpiImplementation::of(&implementation) {
            MpiImplementation::OpenMpi => &["mpirun.openmpi", "mpirun"],
            MpiImplementation::Mpich => &["mpirun.mpich", "mpirun"],
            MpiImplementation::Other => &["mpirun"],
        };
        let launcher = launcher.map(Path::to_owned).or_else(|| names.iter().find_map(|name| program(name)));
        let launcher = launcher.ok_or_else(|| {
            format!("skipped {implementation}: {} is not on PATH; give it with --mpirun", names.join(" or "))
        })?;
        Ok(MpiProgram { binary, implementation, launcher })
    }

    fn name(&self) -> &'static str {
        match MpiImplementation::of(&self.implementation) {
            MpiImplementation::OpenMpi => "openmpi",
            MpiImplementation::Mpich => "mpich",
            MpiImplementation::Other => "mpi",
        }
    }

    /// Returns the media to which the program can be restricted. `None` means that the MPI implementation is unknown.
    /// Such an implementation chooses the medium itself.
    pub(super) fn carriers(&self) -> &'static [Option<MpiMessageMedium>] {
        match MpiImplementation::of(&self.implementation) {
            MpiImplementation::Other => &[None],
            _ => &[Some(MpiMessageMedium::Tcp), Some(MpiMessageMedium::Shm)],
        }
    }

    /// Starts two ranks, and waits until they accept tasks. Errors: `Unavailable` if the launcher exits first.
    pub(super) fn start(&self, carrier: Option<MpiMessageMedium>, is_yielding: bool) -> Result<MpiJob> {
        let way = match carrier {
            Some(MpiMessageMedium::Tcp) => "-tcp",
            Some(MpiMessageMedium::Shm) => "-shm",
            None => "",
        };
        let name = format!("{}{way}", self.name());
        let door = ChildProgramListener::open()?;
        let mut command = Command::new(&self.launcher);
        // By default, Open MPI binds each of two ranks to a core. `--bind-to none` disables the binding, because the
        // processes of other transports are not bound to cores either.
        command.args(["-n", "2", "--bind-to", "none"]).arg(&self.binary).arg("transport");
        command.arg("--control").arg(door.address()?.to_string());
        command.envs(self.settings(carrier, is_yielding)).stdin(Stdio::null()).stdout(Stdio::null());
        let mut job = ChildProgram::start(&name, &mut command)?;
        let (remote, hello) = RemoteTransport::greet(door.wait_for(&mut job)?, &name)?;
        let how = match carrier {
            Some(MpiMessageMedium::Tcp) => "over TCP on loopback",
            Some(MpiMessageMedium::Shm) => "over shared memory",
            None => "over the transport that it chooses",
        };
        let description = format!(
            "{} {how}: 2 ranks, free to use {} processors of this machine{}",
            hello.implementation,
            hello.sides.map(|side| side.processors.to_string()).join(" and "),
            if is_yielding { ", which yield while they wait (mpi_yield_when_idle)" } else { "" }
        );
        Ok(MpiJob {
            remote: remote.described(description),
            program: job,
            sides: hello.sides.map(|side| side.pid),
        })
    }

    /// Returns the environment variables that restrict the MPI implementation to `carrier`.
    fn settings(
        &self,
        carrier: Option<MpiMessageMedium>,
        is_yielding: bool,
    ) -> Vec<(&'static str, &'static str)> {
        match (MpiImplementation::of(&self.implementation), carrier) {
            (MpiImplementation::OpenMpi, Some(carrier)) => {
                let mut all = PERMISSIVE.to_vec();
                all.push(("OMPI_MCA_pml", "ob1"));
                all.push(("OMPI_MCA_mpi_yield_when_idle", if is_yielding { "1" } else { "0" }));
                all.extend(match carrier {
                    MpiMessageMedium::Tcp => {
                        vec![("OMPI_MCA_btl", "self,tcp"), ("OMPI_MCA_btl_tcp_if_include", "lo")]
                    }
                    // Version 5 of Open MPI renamed this component.
                    MpiMessageMedium::Shm if self.implementation.contains(" v4") => {
                        vec![("OMPI_MCA_btl", "self,vader")]
                    }
                    MpiMessageMedium::Shm => vec![("OMPI_MCA_btl", "self,sm")],
                });
                all
            }
            // MPICH is built on UCX (as in Debian 12) or on libfabric, so the variables of both libraries are set.
            (MpiImplementation::Mpich, Some(MpiMessageMedium::Tcp)) => vec![
                ("MPIR_CVAR_NOLOCAL", "1"),
                ("UCX_TLS", "tcp"),
                ("UCX_NET_DEVICES", "lo"),
                ("FI_PROVIDER", "tcp"),
                ("FI_TCP_IFACE", "lo"),
            ],
            _ => Vec::new(),
        }
    }
}

impl MpiImplementation {
    fn of(implementation: &str) -> Self {
        match implementation {
            text if text.starts_with("Open MPI") => MpiImplementation::OpenMpi,
            text if text.starts_with("MPICH") => MpiImplementation::Mpich,
            _ => MpiImplementation::Other,
        }
    }
}

/// Returns the first line of the library version that the program prints.
fn implementation_of(binary: &Path) -> std::result::Result<String, String> {
    let name = binary.display();
    let told = Command::new(binary).args(["transport", "--which"]).stdin(Stdio::null()).output();
    let told = told.map_err(|error| format!("skipped MPI: {name} cannot be started: {error}"))?;
    let text = String::from_utf8_lossy(&told.stdout).trim().to_owned();
    match told.status.success() && !text.is_empty() {
        true => Ok(text),
        false => {
            let why = String::from_utf8_lossy(&told.stderr).trim().to_owned();
            Err(format!("skipped MPI: {name} exited with {}: {why}; rebuild it with `make mpi`", told.status))
        }
    }
}

/// Options that send enough one-byte messages for a stable median, in less than a second.
const PLAN: [&str; 6] = ["--size", "1", "--rounds", "5", "--messages", "1000"];
const EXCHANGE: &str = "half-round-trip";

/// Returns half of the round-trip time of one byte between two ranks on this node, in nanoseconds, and the name of the
/// MPI library. Errors: a sentence that names the missing program or describes the failure. Cost: starting the
/// launcher, plus up to one second for the messages.
pub(in crate::commands) fn half_round_trip_ns() -> Result<(u64, String), String> {
    let (mut command, library) = two_ranks()?;
    let place =
        tempfile::tempdir().map_err(|error| format!("cannot create a directory for the run: {error}"))?;
    run_job(&mut command, place.path())?;
    let run = RunDocument::read(&place.path().join("ranks.run")).map_err(|error| error.to_string())?;
    let is_wanted = |exchange: &str| exchange == EXCHANGE;
    let summary = run
        .summaries
        .iter()
        .find(|summary| summary.transfer.as_ref().is_some_and(|transfer| is_wanted(&transfer.exchange)));
    let latency = summary.and_then(|summary| summary.latency);
    Ok((latency.ok_or("fordway-mpi wrote a run without round trips")?.p50_ns, library))
}

fn run_job(command: &mut Command, place: &Path) -> Result<(), String> {
    let log = place.join("messages");
    let messages =
        File::create(&log).map_err(|error| format!("cannot create a file for its messages: {error}"))?;
    command.args(PLAN).arg("--out").arg(place.join("ranks.run"));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(messages);
    let ended = ChildProgram::start("fordway-mpi", command).and_then(ChildProgram::finish);
    ended.map_err(|error| {
        let messages = std::fs::read_to_string(&log).unwrap_or_default();
        let last = messages.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default().trim();
        format!("{error} ({last})")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mpi(implementation: &str) -> MpiProgram {
        MpiProgram {
            binary: PathBuf::new(),
            implementation: implementation.to_owned(),
            launcher: PathBuf::new(),
        }
    }

    #[test]
    fn no_two_transports_have_one_name() {
        let mut missing = Vec::new();
        let all = vec![mpi("Open MPI v4.1.4"), mpi("MPICH Version: 4.0.2"), mpi("Open MPI v5.0.7")];
        let names: Vec<_> = distinct(all, &mut missing).iter().map(MpiProgram::name).collect();
        assert_eq!(names, ["openmpi", "mpich"]);
        assert!(missing.len() == 1 && missing[0].contains("an earlier program of openmpi"), "{missing:?}");
    }

    #[test]
    fn each_library_has_its_own_settings() {
        let value = |mpi: &MpiProgram, carrier, name: &str| {
            let all = mpi.settings(Some(carrier), false);
            all.into_iter().find(|(key, _)| *key == name).map(|(_, value)| value)
        };
        let (four, five, mpich) =
            (mpi("Open MPI v4.1.4, package: Debian"), mpi("Open MPI v5.0.7"), mpi("MPICH Version: 4.0.2"));
        assert_eq!(value(&four, MpiMessageMedium::Shm, "OMPI_MCA_btl"), Some("self,vader"));
        assert_eq!(value(&five, MpiMessageMedium::Shm, "OMPI_MCA_btl"), Some("self,sm"));
        assert_eq!(value(&five, MpiMessageMedium::Tcp, "OMPI_MCA_btl"), Some("self,tcp"));
        assert_eq!(value(&mpich, MpiMessageMedium::Tcp, "MPIR_CVAR_NOLOCAL"), Some("1"));
        assert_eq!(value(&mpich, MpiMessageMedium::Shm, "MPIR_CVAR_NOLOCAL"), None);
        assert_eq!([&four, &mpich, &mpi("Other 1.0")].map(MpiProgram::name), ["openmpi", "mpich", "mpi"]);
        assert_eq!(mpi("Other 1.0").carriers(), [None]);
    }

    #[test]
    fn what_is_no_fordway_mpi_is_named() {
        let why = implementation_of(Path::new("/does/not/exist")).expect_err("there is no such program");
        assert!(why.contains("/does/not/exist cannot be started"), "{why}");
        let why = implementation_of(Path::new("/bin/false")).expect_err("it is another program");
        assert!(why.contains("make mpi"), "{why}");
    }
}
