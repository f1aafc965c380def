//! Runs `fordway doctor` on this machine and on copies of other machines' system files.

use std::collections::BTreeMap;
use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::process::{Command, Output};

use fordway_sys::MountGuaranteeVerdict;
use fordway_testkit::cluster::SharedFileSystemFixture;
use serde_json::Value;

const CROWDED: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../lab/machine/tests/fixtures/crowded-guest-v2");

fn fordway(words: &[&str], path: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_fordway-lab")).args(words).env("PATH", path).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn findings(words: &[&str]) -> Vec<Value> {
    let told = fordway(words, "");
    assert!(told.status.success(), "{words:?}: {}", text(&told.stderr));
    text(&told.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_copy_is_examined_and_not_measured() {
    let findings = findings(&["doctor", "--root", CROWDED, "--json"]);
    let found = |check: &str| findings.iter().find(|finding| finding["check"] == check);
    let steal = found("steal").unwrap();
    assert_eq!((&steal["verdict"], &steal["read"][0]), (&"costs".into(), &"/proc/stat".into()));
    assert_eq!(steal["measured"][0]["unit"], "%");
    assert!(found("noise").is_none() && found("mpi-latency").is_none());
    let told = text(&fordway(&["doctor", "--root", CROWDED], "").stdout);
    assert!(
        told.contains("\ncosts you  steal [4 10 14]: ") && told.contains(" cannot be seen from inside"),
        "{told}"
    );
}

#[test]
fn this_machine_is_listened_to_and_goes_on_without_mpi() {
    let findings = findings(&["doctor", "--listen", "20ms", "--json"]);
    let found = |check: &str| findings.iter().find(|finding| finding["check"] == check).unwrap();
    assert!(
        found("noise")["measured"][0]["value"].as_f64().is_some_and(|share| (0.0..100.0).contains(&share))
    );
    // With an empty PATH, no MPI launcher is found.
    let ranks = found("mpi-latency");
    assert_eq!(ranks["verdict"], "cannot_see");
    assert!(ranks["what"].as_str().unwrap().starts_with("not measured: "), "{ranks}");
}

#[test]
fn noise_that_was_not_listened_to_is_not_claimed() {
    let findings = findings(&["doctor", "--listen", "0s", "--json"]);
    let noise = findings.iter().find(|finding| finding["check"] == "noise").unwrap();
    assert_eq!((&noise["verdict"], &noise["measured"]), (&"cannot_see".into(), &Value::Array(Vec::new())));
}

#[test]
fn a_saved_copy_says_what_the_machine_said() {
    let place = tempfile::tempdir().unwrap();
    let copy = place.path().join("copy").display().to_string();
    let verdicts = |words: &[&str]| -> Vec<[Value; 4]> {
        let fields = ["check", "about", "verdict", "read"];
        findings(words).iter().map(|finding| fields.map(|field| finding[field].clone())).collect()
    };
    let here = verdicts(&["doctor", "--no-measure", "--save", &copy, "--json"]);
    assert!(here.len() > 25);
    assert_eq!(verdicts(&["doctor", "--root", &copy, "--json"]), here);
}

#[test]
fn settings_are_files_for_schedulers() {
    let script = text(&fordway(&["doctor", "--root", CROWDED, "--fix", "slurm", "--nodes", "3"], "").stdout);
    assert!(script.starts_with("#!/bin/bash\n") && script.contains("\n#SBATCH --nodes=3\n"), "{script}");
    let manifests = text(&fordway(&["doctor", "--root", CROWDED, "--fix", "kubernetes"], "").stdout);
    assert!(manifests.contains("\nkind: PodGroup\n") && manifests.contains("\nkind: Job\n"), "{manifests}");
}

#[test]
fn what_is_no_copy_is_refused() {
    let missing = fordway(&["doctor", "--root", "/does/not/exist"], "");
    assert_eq!(missing.status.code(), Some(3));
    assert!(text(&missing.stderr).contains("/does/not/exist"), "{}", text(&missing.stderr));
    let place = tempfile::tempdir().unwrap();
    let empty = place.path().display().to_string();
    let unsized_job = fordway(&["doctor", "--root", &empty, "--fix", "slurm"], "");
    assert_eq!(unsized_job.status.code(), Some(1));
    assert!(text(&unsized_job.stderr).contains("/proc/meminfo: there is no such file"));
    for wrong in [["--listen", "2m"], ["--fix", "cron"], ["--nodes", "2"]] {
        let refused = fordway(&[&["doctor"], &wrong[..]].concat(), "");
        assert_eq!(refused.status.code(), Some(2), "{wrong:?}");
    }
}

/// The verdict is written into a directory of a user who has planted a symbolic link at each name that could be
/// written to. The file to which the links lead must not change.
#[test]
fn a_verdict_follows_no_planted_link() {
    if !fordway_needs::root("be two users") {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let (root, victim) = (place.path().join("root"), place.path().join("victim"));
    let private = root.join(".fordway");
    std::fs::create_dir_all(&private).unwrap();
    std::fs::write(&victim, "secret").unwrap();
    std::fs::set_permissions(&victim, Permissions::from_mode(0o600)).unwrap();
    for name in ["verdict", "verdict.new"] {
        symlink(&victim, private.join(name)).unwrap();
    }
    let (shared, file) = (root.display().to_string(), private.join("verdict").display().to_string());
    let judge = || fordway(&["doctor", "--shared", &shared, &shared, "--verdict", &file], "");
    let is_untouched = || {
        assert_eq!(std::fs::read(&victim).unwrap(), b"secret");
        assert_eq!(victim.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    };
    // A tenant has made the directory in another user's root.
    chown(&private, Some(54_321), None).unwrap();
    let refused = judge();
    assert!(!refused.status.success());
    assert!(
        text(&refused.stderr).contains("belongs to the user with the id 54321"),
        "{}",
        text(&refused.stderr)
    );
    is_untouched();
    chown(&root, Some(54_321), None).unwrap();
    let written = judge();
    assert!(written.status.success(), "{}", text(&written.stderr));
    is_untouched();
    let state = private.join("verdict").symlink_metadata().unwrap();
    assert_eq!((state.is_file(), state.permissions().mode() & 0o777, state.uid()), (true, 0o644, 0));
    assert!(MountGuaranteeVerdict::parse(&std::fs::read_to_string(&file).unwrap()).is_some());
    // The directory itself is a link.
    std::fs::rename(&private, root.join("real")).unwrap();
    symlink(root.join("real"), &private).unwrap();
    assert!(!judge().status.success());
}

/// Returns the verdict of each check on two mounts of a cluster.
fn verdicts(cluster: &SharedFileSystemFixture) -> BTreeMap<String, String> {
    let [one, other] = SharedFileSystemFixture::MOUNTS;
    let program = env!("CARGO_BIN_EXE_fordway-lab");
    let file = format!("{}/verdict", SharedFileSystemFixture::CONTROL);
    let doctor = format!("{program} doctor --shared {one} {other} --json --verdict {file}");
    let told = cluster.task(&format!("{doctor} 2>&1")).output();
    let verdict = |line: &str| -> Option<(String, String)> {
        let finding: Value = serde_json::from_str(line).ok()?;
        Some((finding["check"].as_str()?.to_owned(), finding["verdict"].as_str()?.to_owned()))
    };
    let found: BTreeMap<_, _> = told.lines().filter_map(verdict).collect();
    assert_eq!(found.len(), 8, "{}: {told}", cluster.name);
    found
}

/// Checks two mounts with separate caches. The guarantees that the store relies on must hold. Reads that do not query
/// the server must be stale.
fn hold_but_remember(cluster: &SharedFileSystemFixture) {
    let found = verdicts(cluster);
    for check in ["locks", "flock", "exclusive", "unnamed", "time-step", "content", "refresh"] {
        assert_eq!(found[&format!("shared-{check}")], "ok", "{}: {check}", cluster.name);
    }
    assert_eq!(found["shared-staleness"], "costs", "{}", cluster.name);
    let verdict = std::fs::read_to_string(cluster.control("verdict")).unwrap();
    let verdict = MountGuaranteeVerdict::parse(&verdict).unwrap();
    assert_eq!(verdict.broken, []);
    assert!(verdict.mount.kind.contains(cluster.name), "{verdict}");
    assert!(!verdict.mount.options.contains("addr="), "addresses differ between nodes: {verdict}");
}

#[test]
fn two_mounts_of_nfs_are_measured() {
    SharedFileSystemFixture::nfs().inspect(hold_but_remember);
}

#[test]
fn two_mounts_of_glusterfs_are_measured() {
    SharedFileSystemFixture::glusterfs().inspect(hold_but_remember);
}

#[test]
fn two_file_systems_are_not_one() {
    let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let [one, other] = [&one, &other].map(|dir| dir.path().to_str().unwrap());
    let refused = fordway(&["doctor", "--shared", one, other], "");
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused.stderr).contains("two mounts of one file system"), "{}", text(&refused.stderr));
}

#[test]
fn a_verdict_is_printed_and_written() {
    let dir = tempfile::tempdir().unwrap();
    let [dir, file] = ["", "verdict"].map(|name| dir.path().join(name).to_str().unwrap().to_owned());
    let printed = fordway(&["doctor", "--shared", &dir, &dir, "--verdict", &file], "");
    assert_eq!(printed.status.code(), Some(0), "{}", text(&printed.stderr));
    let verdict = MountGuaranteeVerdict::parse(&std::fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!(verdict.broken, []);
    let sentence = format!("guarantee was found on {} with", verdict.mount.kind);
    assert!(text(&printed.stdout).contains(&sentence), "{}", text(&printed.stdout));
    assert!(text(&printed.stderr).contains("both paths are on one mount"), "{}", text(&printed.stderr));
    assert!(!text(&printed.stdout).contains("[]"), "{}", text(&printed.stdout));
    let alone = fordway(&["doctor", "--verdict", &file], "");
    assert_eq!(alone.status.code(), Some(2));
}
