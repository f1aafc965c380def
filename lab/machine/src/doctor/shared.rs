//! Measures whether two mounts of one file system provide the guarantees that a root shared by several nodes requires.
//! Both mounts may be on this node, as long as each has its own caches. Mounts that share the kernel's caches, such as
//! bind mounts, reveal no more than a single mount would.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{ErrorKind as IoErrorKind, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use fordway_store::{Error, ErrorKind, Result};
use fordway_sys::{
    ByteRangeLocks, Errno, FileSystemSharing, Mode, MountGuaranteeVerdict, MountProblem, MountProperties,
    SharedMountGuarantee, create_unnamed, link_unnamed, look_again, stat_now, sync_data,
};

use super::{DoctorFinding, DoctorVerdict, FindingDraft};

/// The maximum time to wait for a change to become visible.
const STALE_MAX: Duration = Duration::from_secs(40);
const POLL: Duration = Duration::from_millis(5);
/// The number of repetitions of a check that may fail intermittently.
const ROUNDS: usize = 20;
const RACES: usize = 50;
/// A content size that is too large for one request of a network file system's client.
const CONTENT_BYTES: usize = 1 << 20;

/// A directory for these checks, with its paths in both mounts. The directory is removed when this value is dropped.
struct CrossMountDirectory {
    one: PathBuf,
    other: PathBuf,
}

impl Drop for CrossMountDirectory {
    fn drop(&mut self) {
        // Ignore the error: users can recognize a leftover directory by its name.
        let _ = fs::remove_dir_all(&self.one);
    }
}

/// Measures which guarantees hold between `one` and `other`, two mounts of one file system. Takes 10 s, or up to 50 s
/// if caches remain valid for a long time. Creates one directory and removes it. Errors: `InvalidArgument` if a name
/// created in one mount is not visible in the other; `Interrupted`; errors from the file system.
pub fn examine_mounts(one: &Path, other: &Path, is_over: &AtomicBool) -> Result<Vec<DoctorFinding>> {
    let ground = CrossMountDirectory::new(one, other)?;
    let checks: [(&'static str, CrossMountCheck); 8] = [
        ("shared-locks", locks),
        ("shared-flock", flock),
        ("shared-exclusive", exclusive),
        ("shared-unnamed", unnamed),
        ("shared-time-step", time_step),
        ("shared-content", content),
        ("shared-refresh", refresh),
        ("shared-staleness", staleness),
    ];
    let mut findings = Vec::new();
    for (name, check) in checks {
        if is_over.load(Ordering::Relaxed) {
            return Err(ErrorKind::Interrupted.into());
        }
        let said = check(&ground).map_err(|error| {
            let what = format!("checking {name} between {} and {}", one.display(), other.display());
            Error::new(ErrorKind::from(&error), what).caused_by(error)
        })?;
        findings.push(said.put_down(name, &[]));
    }
    Ok(findings)
}

/// Returns whether the two paths lead to one mounted file system, and therefore share the kernel's caches. If they do,
/// the checks reveal nothing about several nodes. Errors: a path cannot be examined.
pub fn share_caches(one: &Path, other: &Path) -> Result<bool> {
    let device = |dir: &Path| {
        let examined = fs::metadata(dir).map(|state| state.dev());
        examined.map_err(|error| {
            Error::new(ErrorKind::from(&error), format!("examining {}", dir.display())).caused_by(error)
        })
    };
    Ok(device(one)? == device(other)?)
}

/// Checks that the findings are valid for several nodes. Errors: `InvalidArgument` if the mounts share caches, but
/// other nodes may change the file system.
fn check_separate(share_caches: bool, sharing: FileSystemSharing) -> Result<()> {
    if !share_caches || !sharing.is_shared() {
        return Ok(());
    }
    let why = "both paths are on one mount, which shows nothing about several nodes; for a verdict, mount the file \
               system twice with separate caches (NFS: with the option nosharecache)";
    Err(Error::new(ErrorKind::InvalidArgument, why))
}

/// Summarizes the findings of [`examine_mounts`] in a verdict for stores on mounts that have the type and the options
/// of the examined mounts. Errors: `InvalidArgument` in three cases: the two mounts differ in type or options; a mount
/// is not in the list of mounts; both paths are on one mount of a file system that other nodes may change.
pub fn verdict_on(one: &Path, other: &Path, findings: &[DoctorFinding]) -> Result<MountGuaranteeVerdict> {
    let sharing = File::open(one).ok().and_then(|dir| FileSystemSharing::of(&dir).ok());
    check_separate(share_caches(one, other)?, sharing.unwrap_or(FileSystemSharing::Unknown))?;
    let identity = |dir: &Path| -> Result<MountProperties> {
        let opened = File::open(dir).map_err(|error| {
            Error::new(ErrorKind::from(&error), format!("opening {}", dir.display())).caused_by(error)
        })?;
        MountProperties::of(&opened).ok_or_else(|| {
            let why = format!("the mount of {} is not listed in /proc/self/mountinfo", dir.display());
            Error::new(ErrorKind::InvalidArgument, why)
        })
    };
    let (mount, counterpart) = (identity(one)?, identity(other)?);
    if mount != counterpart {
        let why = format!(
            "{} is mounted as {} with {}, and {} as {} with {}; a verdict needs two mounts with the same options",
            one.display(),
            mount.kind,
            mount.options,
            other.display(),
            counterpart.kind,
            counterpart.options
        );
        return Err(Error::new(ErrorKind::InvalidArgument, why));
    }
    let is_broken = |guarantee: &SharedMountGuarantee| {
        let check = format!("shared-{}", guarantee.name());
        findings.iter().any(|finding| finding.check == check && finding.verdict != DoctorVerdict::Ok)
    };
    Ok(MountGuaranteeVerdict {
        mount,
        broken: SharedMountGuarantee::ALL.into_iter().filter(is_broken).collect(),
    })
}

type CrossMountCheck = fn(&CrossMountDirectory) -> std::io::Result<FindingDraft>;

impl CrossMountDirectory {
    fn new(one: &Path, other: &Path) -> Result<Self> {
        let failed = |path: &Path, error: std::io::Error| {
            let kind = match ErrorKind::from(&error) {
                ErrorKind::Io => ErrorKind::InvalidArgument,
                kind => kind,
            };
            Error::new(kind, format!("working in {}", path.display())).caused_by(error)
        };
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let name = format!(".fordway-doctor-{}-{}", std::process::id(), now.as_nanos());
        let ground = CrossMountDirectory { one: one.join(&name), other: other.join(&name) };
        fs::create_dir(&ground.one).map_err(|error| failed(one, error))?;
        File::open(other).map_err(|error| failed(other, error))?;
        match waited(|| ground.other.is_dir()) {
            Some(_) => Ok(ground),
            None => {
                let why = format!(
                    "a file created in {} is not visible in {} within {STALE_MAX:?}; name two mounts of one file system",
                    one.display(),
                    other.display()
                );
                Err(Error::new(ErrorKind::InvalidArgument, why))
            }
        }
    }

    fn make(&self, name: &str, content: &[u8]) -> std::io::Result<()> {
        fs::write(self.one.join(name), content)
    }

    /// Replaces `name` in the same way as the store: writes a file under a hidden name, and then renames it to `name`.
    /// Returns the inode number of the new file.
    fn replace(&self, name: &str, content: &[u8], is_synced: bool) -> std::io::Result<u64> {
        let hidden = self.one.join("hidden");
        let mut file = File::create(&hidden)?;
        file.write_all(content)?;
        if is_synced {
            sync_data(&file)?;
        }
        let inode = file.metadata()?.ino();
        drop(file);
        fs::rename(&hidden, self.one.join(name)).map(|()| inode)
    }
}

/// Waits until `is_so` returns true, and returns how long the wait took; `None` if it took longer than [`STALE_MAX`].
fn waited(mut is_so: impl FnMut() -> bool) -> Option<Duration> {
    let begin = Instant::now();
    while !is_so() {
        if begin.elapsed() > STALE_MAX {
            return None;
        }
        thread::sleep(POLL);
    }
    Some(begin.elapsed())
}

const LOCKS_ADVICE: &str = "mount with locks that work across nodes (NFS: vers=4.2; Lustre: flock), or disable \
                            If-Match with conditions=none-match-only";

fn locks(ground: &CrossMountDirectory) -> std::io::Result<FindingDraft> {
    ground.make("locks", b"")?;
    let open = |dir: &Path| OpenOptions::new().write(true).open(dir.join("locks"));
    waited(|| open(&ground.other).is_ok());
    let (held, asked) = (open(&ground.one)?, open(&ground.other)?);
    match MountProblem::of(&held)? {
        None => {}
        Some(MountProblem::Locks(why)) => {
            return Ok(FindingDraft::costs(
                format!("roots and buckets here are refused: {why}"),
                LOCKS_ADVICE,
            ));
        }
        Some(MountProblem::Objects(why)) => {
            let what = "roots and buckets here are refused, regardless of the declared guarantees";
            return Ok(FindingDraft::costs(what, why));
        }
    }
    let (held, asked) = (ByteRangeLocks::new(held.into()), ByteRangeLocks::new(asked.into()));
    let guard = match held.try_lock(7) {
        Err(errno @ (Errno::NOLCK | Errno::OPNOTSUPP | Errno::NOSYS)) => {
            let what =
                format!("the file system grants no locks ({errno}), so overwrites and deletes are refused");
            return Ok(FindingDraft::costs(what, LOCKS_ADVICE));
        }
        guard => guard?,
    };
    let is_shared = asked.try_lock(7)?.is_none();
    let is_bytewise = asked.try_lock(8)?.is_some();
    drop(guard);
    let is_let_go = waited(|| asked.try_lock(7).is_ok_and(|lock| lock.is_some())).is_some();
    Ok(match is_shared && is_bytewise && is_let_go {
        true => FindingDraft::ok(
            "while one mount holds a lock, the other cannot take it, but can take a lock of the next byte",
        ),
        false if !is_shared => {
            let what = "both mounts can hold the same lock at once, so acknowledged If-Match writes are lost";
            FindingDraft::costs(what, LOCKS_ADVICE)
        }
        false => FindingDraft::costs(
            "a lock covers more than its byte, or remains after its release",
            LOCKS_ADVICE,
        ),
    })
}

/// Checks whether a `flock(2)` lock taken through one mount takes effect on the other. Fordway does not use such locks,
/// but other programs do.
fn flock(ground: &CrossMountDirectory) -> std::io::Result<FindingDraft> {
    ground.make("flock", b"")?;
    waited(|| ground.other.join("flock").exists());
    let (held, asked) = (File::open(ground.one.join("flock"))?, File::open(ground.other.join("flock"))?);
    Ok(match (held.try_lock(), asked.try_lock()) {
        (Ok(()), Err(TryLockError::WouldBlock)) => {
            FindingDraft::ok("while one mount holds a lock of flock(2), the other cannot take it")
        }
        (Ok(()), Ok(())) => FindingDraft::ok(
            "locks of flock(2) have no effect on the other mount: programs on several nodes must not rely on them; \
             Fordway does not use them",
        ),
        (Err(error), _) | (_, Err(error)) => {
            FindingDraft::ok(format!("there are no locks of flock(2) ({error}); Fordway does not use them"))
        }
    })
}

/// Checks exclusive creation: two threads create links with the same names at once, one thread through each mount. For
/// each name, exactly one of the two links must succeed.
fn exclusive(ground: &CrossMountDirectory) -> std::io::Result<FindingDraft> {
    let create = |dir: &Path| -> std::io::Result<Vec<bool>> {
        let source = dir.join(format!("source-{:?}", thread::current().id()));
        fs::write(&source, b"")?;
        let give = |race| match fs::hard_link(&source, dir.join(format!("race-{race}"))) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == IoErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(error),
        };
        (0..RACES).map(give).collect()
    };
    let (one, other) = thread::scope(|scope| {
        let other = scope.spawn(|| create(&ground.other));
        (create(&ground.one), other.join())
    });
    let other = other.map_err(|_| std::io::Error::other("the racing thread ended"))??;
    let wrong = one?.iter().zip(&other).filter(|(one, other)| *one == *other).count();
    Ok(match wrong {
        0 => FindingDraft::ok(format!(
            "of two simultaneous links with one name, exactly one succeeds ({RACES} races)"
        )),
        wrong => FindingDraft::costs(
            format!("in {wrong} of {RACES} races both links with one name succeeded, or none"),
            "create objects from one node only: several If-None-Match writes may succeed here",
        ),
    })
}

fn unnamed(ground: &CrossMountDirectory) -> std::io::Result<FindingDraft> {
    let dir = File::open(&ground.one)?;
    let file = match create_unnamed(&dir, Mode::from_raw_mode(0o600)) {
        Err(errno @ (Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL)) => {
            return Ok(FindingDraft::ok(format!(
                "unnamed files are not supported ({errno}); Fordway uses hidden names instead"
            )));
        }
        file => File::from(file?),
    };
    (&file).write_all(b"content")?;
    link_unnamed(&file, &dir, "unnamed")?;
    drop(file);
    let is_there = |dir: &Path| fs::read(dir.join("unnamed")).is_ok_and(|content| content == b"content");
    thread::sleep(POLL);
    Ok(match is_there(&ground.one) && waited(|| is_there(&ground.other)).is_some() {
        true => FindingDraft::ok("a file that was created without a name keeps the name that it is given"),
        false => FindingDraft::costs(
            "a file that was created without a name is missing or empty after it is closed",
            "do not store objects here with programs that rely on O_TMPFILE; Fordway uses hidden names on such mounts",
        ),
    })
}

/// Measures the smallest difference between modification times of files written one after the other.
fn time_step(ground: &CrossMountDirectory) -> std::io::Result<FindingDraft> {
    let (begin, mut times) = (Instant::now(), Vec::new());
    while begin.elapsed() < Duration::from_millis(2500) && times.len() < 400 {
        ground.make("time", b"x")?;
        let state = fs::metadata(ground.one.join("time"))?;
        times.push(state.mtime() * 1_000_000_000 + state.mtime_nsec());
        thread::sleep(Duration::from_micros(if times.len() < 200 { 100 } else { 12_000 }));
    }
    times.sort_unstable();
    times.dedup();
    let step = times.windows(2).map(|pair| pair[1] - pair[0]).min();
    let Some(step) = step else {
        return Ok(FindingDraft::ok(
            "modification times do not change within 2.5 s: listings are read again for 3 s",
        ));
    };
    let ms = step as f64 / 1e6;
    Ok(FindingDraft::ok(format!("modification times differ by at least {ms:.3} ms")).measured(
        "time step",
        ms,
        "ms",
    ))
}

/// Checks whether a name becomes visible before its content, with and without the store's countermeasure: a sync
/// before the rename.
fn content(ground: &CrossMountDirectory) -> std::io::Result<FindingDraft> {
    let torn = |is_synced| -> std::io::Result<usize> {
        let mut torn = 0;
        for round in 0..ROUNDS {
            let name = format!("content-{is_synced}-{round}");
            let body = vec![b'a' + round as u8; CONTENT_BYTES];
            ground.replace(&name, &body, is_synced)?;
            let mut seen = None;
            waited(|| {
                seen = fs::read(ground.other.join(&name)).ok();
                seen.is_some()
            });
            torn += usize::from(seen.is_none_or(|seen| seen != body));
        }
        Ok(torn)
    };
    let (plain, synced) = (torn(false)?, torn(true)?);
    let said = match (plain, synced) {
        (_, 1..) => FindingDraft::costs(
            format!(
                "{synced} of {ROUNDS} files were incomplete when their name became visible, although their content was synced first"
            ),
            "do not read objects on another node while they are written: incomplete objects may be visible here",
        ),
        (0, 0) => {
            FindingDraft::ok(format!("content was visible before its name in {ROUNDS} of {ROUNDS} files"))
        }
        (plain, 0) => FindingDraft::ok(format!(
            "{plain} of {ROUNDS} files were incomplete when their name became visible, but none of those whose content \
             was synced first, as the store does on such file systems"
        )),
    };
    Ok(said.measured("short files", plain as f64, "").measured("short files when synced", synced as f64, ""))
}

/// Checks whether lookups can be forced to bypass this node's caches and query the server. The store forces such a
/// lookup before it evaluates a condition and, with `consistency=strong`, before each read.
fn refresh(ground: &CrossMountDirectory) -> std::io::Result<FindingDraft> {
    ground.make("refreshed", b"0")?;
    waited(|| ground.other.join("refreshed").exists());
    let (mut stale, mut refreshed) = (0, 0);
    for round in 0..ROUNDS {
        let inode = ground.replace("refreshed", format!("{round}").as_bytes(), true)?;
        let seen = || fs::metadata(ground.other.join("refreshed")).map(|state| state.ino());
        stale += usize::from(seen().ok() != Some(inode));
        let dir = File::open(&ground.other)?;
        stat_now(&dir)?;
        look_again(&dir, "refreshed");
        refreshed += usize::from(seen().ok() == Some(inode));
    }
    let said = match refreshed == ROUNDS {
        true => FindingDraft::ok(format!(
            "a replaced file was found when the server was queried, {ROUNDS} of {ROUNDS} times; without a query, the \
             old file was found {stale} times"
        )),
        false => FindingDraft::costs(
            format!(
                "although the server was queried, this node still found the old file {} of {ROUNDS} times",
                ROUNDS - refreshed
            ),
            "shorten the caches of the mount (NFS: actimeo=0,lookupcache=none; FUSE: entry and attribute time-outs of 0)",
        ),
    };
    Ok(said.measured("old files seen", stale as f64, "").measured("found when queried", refreshed as f64, ""))
}

/// Measures for how long this node sees stale state after a change by another node, if lookups do not query the server.
fn staleness(ground: &CrossMountDirectory) -> std::io::Result<FindingDraft> {
    let names = ["replaced", "removed", "missed"];
    ground.make(names[0], b"old")?;
    ground.make(names[1], b"old")?;
    let other = |name: &str| ground.other.join(name);
    waited(|| names[..2].iter().all(|name| other(name).exists()));
    let is_missing = !other(names[2]).exists();
    let inode = ground.replace(names[0], b"new and longer", true)?;
    fs::remove_file(ground.one.join(names[1]))?;
    ground.make(names[2], b"new")?;
    let mut since = [None; 3];
    let begin = Instant::now();
    waited(|| {
        let shows = [
            fs::metadata(other(names[0])).is_ok_and(|state| state.ino() == inode && state.len() == 14),
            !other(names[1]).exists(),
            is_missing && other(names[2]).exists(),
        ];
        for (since, shows) in since.iter_mut().zip(shows) {
            *since = since.or(shows.then(|| begin.elapsed()));
        }
        since.iter().all(Option::is_some)
    });
    let seconds = since.map(|since: Option<Duration>| since.unwrap_or(STALE_MAX).as_secs_f64());
    let [replaced, removed, missed] = seconds;
    let what = format!(
        "a replaced file is visible after {replaced:.2} s, a removed file is gone after {removed:.2} s, and a new name \
         that was looked up before is visible after {missed:.2} s"
    );
    let said = match seconds.iter().all(|seconds| *seconds < 0.05) {
        true => FindingDraft::ok(what),
        false => FindingDraft::costs(
            format!("{what}: reads may return state that is this old"),
            "where that matters, read with consistency=strong",
        ),
    };
    let measured = said.measured("replaced file", replaced, "s").measured("removed file", removed, "s");
    Ok(measured.measured("missed name", missed, "s"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::DoctorVerdict;

    #[test]
    fn one_mount_of_a_shared_file_system_gives_no_verdict() {
        assert!(share_caches(Path::new("/"), Path::new("/")).unwrap());
        assert!(!share_caches(Path::new("/"), Path::new("/proc")).unwrap());
        for sharing in [FileSystemSharing::Nfs, FileSystemSharing::Unknown] {
            let refused = check_separate(true, sharing).unwrap_err();
            assert!(refused.to_string().contains("nosharecache"), "{refused}");
            check_separate(false, sharing).unwrap();
        }
        check_separate(true, FileSystemSharing::Local).unwrap();
    }

    /// Examines two paths to the same directory; these paths behave as one mount.
    #[test]
    fn one_local_file_system_keeps_every_promise() {
        let dir = tempfile::tempdir().unwrap();
        let findings = examine_mounts(dir.path(), dir.path(), &AtomicBool::new(false)).unwrap();
        assert_eq!(findings.len(), 8);
        for finding in &findings {
            assert_eq!(finding.verdict, DoctorVerdict::Ok, "{finding:?}");
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        let verdict = verdict_on(dir.path(), dir.path(), &findings).unwrap();
        assert_eq!(verdict.broken, []);
        let mut locks = findings[0].clone();
        locks.verdict = DoctorVerdict::Costs;
        let verdict = verdict_on(dir.path(), dir.path(), &[locks]).unwrap();
        assert_eq!(verdict.broken, [SharedMountGuarantee::Locks]);
        let apart = verdict_on(dir.path(), Path::new("/proc"), &findings).unwrap_err();
        assert_eq!(apart.kind(), ErrorKind::InvalidArgument, "{apart}");
        assert!(apart.to_string().contains("the same options"), "{apart}");
    }
}
