//! `doctor`: finds settings of this node that slow down its programs.

use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use fordway_command::{CommandContext, CommandExit, file_error};
use fordway_machine::doctor::{
    DoctorFinding, DoctorVerdict, JobScheduler, JobSize, RICHTERS_POINTS, SystemNoise, SystemTree, examine,
    examine_mounts, processors, remember_counters, share_caches, verdict_on,
};
use fordway_store::{Error, ErrorKind, Result};
use fordway_sys::{
    Errno, Mode, MountGuaranteeVerdict, MountProperties, OFlags, is_same_user, open_in, remove_file, rename,
    set_mode, stat_in, user_id, write_all_at,
};
use serde::Serialize;

use super::bench::transport::mpi;
use crate::args::{DoctorArgs, JobSchedulerArg};

pub(super) fn run(args: &DoctorArgs, context: &CommandContext) -> Result<CommandExit> {
    if let Some([one, other]) = args.shared.as_deref() {
        let findings = examine_mounts(one, other, context.interrupt.flag())?;
        print(&findings, context)?;
        if share_caches(one, other)? {
            context.output.note("both paths are on one mount, so nothing about several nodes was tested");
        }
        if let Some(file) = &args.verdict {
            let verdict = verdict_on(one, other, &findings)?;
            write_verdict(&verdict, file)?;
            context.output.record(&MountGuaranteeReport::of(&verdict))?;
        }
        return Ok(CommandExit::Ok);
    }
    let mut tree = tree(args)?;
    let mut measured = Vec::new();
    if args.root.is_none() && !args.no_measure {
        // The measurement keeps all processors busy, like a program, so the increase of the counters shows the effects
        // on a program.
        remember_counters(&mut tree);
        measured = measure(&tree, args, context)?;
    }
    let findings = [examine(&tree), measured].concat();
    match args.fix {
        Some(fix) => print_fix(fix, args.nodes, &tree, &findings, context)?,
        None => print(&findings, context)?,
    }
    Ok(CommandExit::Ok)
}

/// Writes a verdict to `file`. The permissions let only the file's owner change the verdict, because stores ignore
/// verdicts that other users could change. The directory may belong to another user, so no link is followed, and only
/// new files are written to.
fn write_verdict(verdict: &MountGuaranteeVerdict, file: &Path) -> Result<()> {
    let failed = |error| file_error("writing the verdict to", file.display(), error);
    let name = file.file_name().and_then(OsStr::to_str).ok_or_else(|| {
        let why = format!("{} is not the name of a file", file.display());
        Error::new(ErrorKind::InvalidArgument, why)
    })?;
    let dir =
        open_trusted(file.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new(".")))?;
    put_in(&dir, name, verdict.to_string().as_bytes()).map_err(|errno| failed(errno.into()))
}

/// Opens the directory at `path` for a verdict. A store believes a verdict only if the verdict's directory belongs to
/// root or to the owner of the directory above. Errors: `AccessDenied` if the directory belongs neither to these users
/// nor to the caller, or if its name is a symbolic link.
fn open_trusted(path: &Path) -> Result<OwnedFd> {
    let failed = |error| file_error("opening the directory of the verdict", path.display(), error);
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW;
    let dir = File::options().read(true).custom_flags(flags.bits() as i32).open(path).map_err(failed)?;
    let owner_of =
        |name: &str| stat_in(&dir, name).map(|state| state.user).map_err(|errno| failed(errno.into()));
    let (owner, above) = (owner_of(".")?, owner_of("..")?);
    if owner != 0 && owner != user_id() && !is_same_user(owner, above) {
        let why = format!(
            "{} belongs to the user with the id {owner}, so no store would believe a verdict in it; have root or the \
             owner of the root remove it, and create it again",
            path.display()
        );
        return Err(Error::new(ErrorKind::AccessDenied, why));
    }
    Ok(dir.into())
}

/// Writes `content` to a new file, and renames the file to `name` in `dir`.
fn put_in(dir: &OwnedFd, name: &str, content: &[u8]) -> std::result::Result<(), Errno> {
    let new = format!("{name}.{:016x}.new", getrandom::u64().map_err(|_| Errno::IO)?);
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
    let file = open_in(dir, &new, flags, Mode::from_raw_mode(0o600))?;
    let written = write_all_at(&file, content, 0)
        .and_then(|()| set_mode(&file, 0o644))
        .and_then(|()| rename(dir, &new, dir, name));
    written.inspect_err(|_| _ = remove_file(dir, &new))
}

/// The printed form of a verdict.
#[derive(Serialize)]
struct MountGuaranteeReport<'a> {
    file_system: &'a str,
    options: &'a str,
    kernel: &'a str,
    broken: Vec<&'static str>,
}

impl<'a> MountGuaranteeReport<'a> {
    fn of(verdict: &'a MountGuaranteeVerdict) -> Self {
        let MountProperties { kind, options, kernel } = &verdict.mount;
        let broken = verdict.broken.iter().map(|guarantee| guarantee.name()).collect();
        MountGuaranteeReport { file_system: kind, options, kernel, broken }
    }
}

impl fmt::Display for MountGuaranteeReport<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mount =
            format!("{} with the options {} on Linux {}", self.file_system, self.options, self.kernel);
        match self.broken.as_slice() {
            [] => write!(f, "Verdict: no broken guarantee was found on {mount}."),
            broken => {
                write!(f, "Verdict: a store must not be shared on {mount}. Broken: {}.", broken.join(", "))
            }
        }
    }
}

/// Returns the file tree to examine. Errors: `Io` if the copy given by `--root` does not exist, or if the directory
/// given by `--save` cannot be created.
fn tree(args: &DoctorArgs) -> Result<SystemTree> {
    let root = args.root.as_deref().unwrap_or(Path::new("/"));
    std::fs::read_dir(root).map_err(|error| file_error("opening the copy", root.display(), error))?;
    let tree = SystemTree::at(root);
    let Some(copy) = &args.save else { return Ok(tree) };
    std::fs::create_dir_all(copy).map_err(|error| file_error("creating", copy.display(), error))?;
    Ok(tree.copying_to(copy))
}

/// Measures noise and round trips. A finding reports each quantity that cannot be measured. Errors: `Interrupted`.
fn measure(tree: &SystemTree, args: &DoctorArgs, context: &CommandContext) -> Result<Vec<DoctorFinding>> {
    let processors = processors(tree).unwrap_or_default();
    context.output.start_steps();
    context.output.steps(0, 2, "measuring noise");
    let noise = SystemNoise::listen(&processors, args.listen, context.interrupt.flag());
    context.output.steps(1, 2, "round trips between two MPI ranks");
    let ranks = context.interrupt.check().map(|()| round_trip());
    context.output.end_progress();
    Ok(vec![noise.as_ref().map_or_else(SystemNoise::unheard, SystemNoise::finding), ranks?])
}

fn round_trip() -> DoctorFinding {
    match mpi::half_round_trip_ns() {
        Ok((half_ns, library)) => DoctorFinding::of_ranks(half_ns, &library),
        Err(why) => DoctorFinding::without_ranks(&why),
    }
}

fn print_fix(
    fix: JobSchedulerArg,
    nodes: u32,
    tree: &SystemTree,
    findings: &[DoctorFinding],
    context: &CommandContext,
) -> Result<()> {
    let job = JobSize::filling(tree, nodes).map_err(|unseen| {
        let why = format!("the size of a job for this node is unknown: {unseen}");
        Error::new(ErrorKind::Io, why)
    })?;
    let fix = match fix {
        JobSchedulerArg::Slurm => JobScheduler::Slurm,
        JobSchedulerArg::Kubernetes => JobScheduler::Kubernetes,
    };
    context.output.data(fix.text(findings, job).as_bytes())
}

fn print(findings: &[DoctorFinding], context: &CommandContext) -> Result<()> {
    for finding in findings {
        context.output.record(&FindingText(finding))?;
    }
    let count = |verdict| findings.iter().filter(|finding| finding.verdict == verdict).count();
    context.output.text(&format!(
        "\n{} ok, {} cost you, {} cannot be seen from inside. [n]: number in \
         Richter's list of {RICHTERS_POINTS}.",
        count(DoctorVerdict::Ok),
        count(DoctorVerdict::Costs),
        count(DoctorVerdict::CannotSee)
    ))
}

/// The human-readable form of a finding: the observation, the advice, and the files that were read.
#[derive(Serialize)]
#[serde(transparent)]
struct FindingText<'a>(&'a DoctorFinding);

impl fmt::Display for FindingText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DoctorFinding { check, richter, about, verdict, what, advice, read, .. } = self.0;
        let about = about.as_deref().map(|about| format!(" {about}")).unwrap_or_default();
        let points = richter.iter().map(u8::to_string).collect::<Vec<_>>().join(" ");
        let points = if points.is_empty() { points } else { format!(" [{points}]") };
        write!(f, "{:<10} {check}{about}{points}: {what}", verdict.text())?;
        if let Some(advice) = advice.as_deref().filter(|_| *verdict != DoctorVerdict::Ok) {
            write!(f, "\n           do: {advice}")?;
        }
        match read.as_slice() {
            [] => Ok(()),
            read => write!(f, "\n           read: {}", read.join(" ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_verdict_replaces_no_other_file() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("verdict.new"), "of the user").unwrap();
        let mount = MountProperties { kind: "other".into(), options: "rw".into(), kernel: "6.1".into() };
        let verdict = MountGuaranteeVerdict { mount, broken: Vec::new() };
        for name in ["verdict.a", "verdict.b", "verdict.a"] {
            write_verdict(&verdict, &at(name)).unwrap();
            assert_eq!(std::fs::read_to_string(at(name)).unwrap(), verdict.to_string());
            assert_eq!(std::fs::metadata(at(name)).unwrap().permissions().mode() & 0o777, 0o644);
        }
        assert_eq!(std::fs::read_to_string(at("verdict.new")).unwrap(), "of the user");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 3);
    }
}
