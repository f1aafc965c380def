//! Tests the guarantees between two nodes that mount the same file system, each with its own caches.
//!
//! `FORDWAY_CLUSTERS=all` adds the file systems that otherwise only `make soak` starts. `FORDWAY_CHECKS=TEXT` runs only
//! the checks whose names contain the text, and `FORDWAY_ROUNDS=N` repeats the linearizability check N times.

mod gateways;
mod registers;
mod uploads;
mod visibility;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use fordway_posix::{PRIVATE_DIR, PosixConfig, PosixStore, ReadConsistency, note_on_mount};
use fordway_store::{
    Bucket, BucketDocumentKind, BucketDocumentOperations, ChecksumAlgorithm, Conditions, DeleteOptions, ETag,
    ETagPolicy, ErrorKind, ExpectedContent, GetOptions, Key, ListEntry, ListQuery, MIN_PART_BYTES,
    MultipartUploadOperations, ObjectRenameOperations, ObjectTagOperations, ObjectVersionOperations, Objects,
    PartOptions, PutOptions, RenameOptions, Store, Tags,
};
use fordway_sys::{MountGuaranteeVerdict, MountProperties, SharedMountGuarantee};
use fordway_testkit::cluster::{ClusterCommand, SharedFileSystemFixture};
use fordway_testkit::conformance::{StoreFixture, cases_written, run_all};
use fordway_testkit::model;
use fordway_testkit::turns::RoundRobinStore;

/// The variable that contains the role, the number and the team of a process in a cluster.
const MEMBER: &str = "FORDWAY_TEST_SHARED";
/// How long the members of a team wait for one another.
const START: Duration = Duration::from_secs(60);
/// The variable that makes a process in a cluster open its store on [`LOCAL_ROOTS`].
const ON_LOCAL_ROOTS: &str = "FORDWAY_TEST_LOCAL_ROOTS";
/// The local root of each node. In these roots, `bucket` is a directory of the shared file system.
const LOCAL_ROOTS: [&str; 2] = ["/mnt/local/1", "/mnt/local/2"];
/// The prefix of a line that a member reports.
const REPORT: &str = "report: ";

/// The number of increments per process, in a soak test and in a normal run.
const INCREMENTS: [usize; 2] = [200, 20];
/// The number of names that processes compete to create, in a soak test and in a normal run.
const CREATED_KEYS: [usize; 2] = [1_000, 60];
/// The number of runs of the model, in a soak test and in a normal run.
const MODEL_RUNS: [usize; 2] = [50, 5];
/// The number of operations in each run of the model.
const MODEL_OPERATIONS: usize = 60;

fn at_length([soak, usual]: [usize; 2]) -> usize {
    if std::env::var_os("FORDWAY_SOAK").is_some() { soak } else { usual }
}

/// A process in a cluster.
struct Member {
    number: usize,
}

type Role = (&'static str, fn(&Member));

/// A guarantee, and the function that checks it.
type Check = (&'static str, fn(&SharedFileSystemFixture));

const ROLES: &[Role] = &[
    ("set-up", set_up),
    ("counter", count_up),
    ("count", count),
    ("creator", create_all),
    ("old-tags", use_old_tags),
    ("old-tags-of-versions", use_old_tags_of_versions),
    ("writer", visibility::overwrite),
    ("reader", visibility::read_whole),
    ("lister", visibility::list_what_was_put),
    ("directories", visibility::share_directories),
    ("left-behind", visibility::leave_names_behind),
    ("bucket-in-use", visibility::delete_a_bucket_in_use),
    ("opened", visibility::read_what_was_opened),
    ("overwritten-while-open", visibility::use_what_is_overwritten_while_open),
    ("sidecars", visibility::keep_sidecars_of_other_objects),
    ("renames", visibility::replace_with_one_rename),
    ("tags", visibility::read_tags_at_once),
    ("listed-anew", visibility::list_what_was_replaced),
    ("listed-in-one-step", visibility::list_what_was_created_in_one_step),
    ("events", visibility::record_events_at_once),
    ("if-match-opened-too-early", registers::replace_what_was_opened_too_early),
    ("sealed", visibility::keep_times),
    ("verdicts", believe_verdicts),
    ("register", registers::use_registers),
    ("no-registers", registers::remove_registers),
    ("opened-too-early", visibility::find_what_was_opened_too_early),
    ("uploads", uploads::share_uploads),
    ("completed-uploads", uploads::read_completed_uploads),
    ("closed-uploads", uploads::close_uploads),
    ("documents", uploads::share_documents),
    ("documents-opened-too-early", uploads::find_documents_opened_too_early),
    ("gateway", gateways::keep_gateway),
    ("gateway-user", gateways::use_gateways),
    ("gateway-racer", gateways::race_through_gateways),
    ("gateway-killer", gateways::kill_a_gateway),
    ("gateway-staller", gateways::use_gateway_of_a_silent_server),
    ("gateway-conformance", |_| assert_eq!(run_all(&gateways::in_turn), cases_written())),
    ("conformance", conform),
    ("model", follow_model),
];

#[test]
fn glusterfs_is_one_store_for_two_nodes() {
    SharedFileSystemFixture::glusterfs().inspect(is_one_store);
}

#[test]
fn nfs_is_one_store_for_two_nodes() {
    SharedFileSystemFixture::nfs().inspect(is_one_store);
}

#[test]
fn moosefs_is_one_store_for_two_nodes() {
    in_soak(SharedFileSystemFixture::moosefs);
}

#[test]
fn cephfs_is_one_store_for_two_nodes() {
    in_soak(SharedFileSystemFixture::cephfs);
}

/// Returns whether to run checks that take too long for CI.
fn is_long() -> bool {
    ["FORDWAY_SOAK", "FORDWAY_CLUSTERS"].iter().any(|name| std::env::var_os(name).is_some())
}

/// Runs the checks only on request, because CI has no time for more file systems.
fn in_soak(start: fn() -> Option<SharedFileSystemFixture>) {
    match is_long() {
        true => drop(start().inspect(is_one_store)),
        false => fordway_needs::skip("`make soak` starts this file system, or FORDWAY_CLUSTERS=all"),
    }
}

#[test]
#[ignore = "run by the other tests, as processes in a cluster"]
fn a_member_of_a_team() {
    let Ok(task) = std::env::var(MEMBER) else { return };
    let [role, number, team] = task.splitn(3, ' ').collect::<Vec<_>>()[..] else { panic!("{task}") };
    let (_, act) = ROLES.iter().find(|(name, _)| *name == role).unwrap();
    let control = Path::new(SharedFileSystemFixture::CONTROL);
    fs::write(control.join(format!("ready.{team}.{number}")), "").unwrap();
    wait_for(&control.join(format!("go.{team}")));
    act(&Member { number: number.parse().unwrap() });
}

fn wait_for(file: &Path) {
    let begin = Instant::now();
    while !file.exists() {
        assert!(begin.elapsed() < START, "{} does not come", file.display());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Runs one process for each of `roles`. All processes start at the same time. Returns the report of each process.
fn run(cluster: &SharedFileSystemFixture, roles: &[&str]) -> Vec<Vec<String>> {
    run_with(cluster, "", roles)
}

/// Runs processes like [`run`], with `settings` in the environment of each process.
fn run_with(cluster: &SharedFileSystemFixture, settings: &str, roles: &[&str]) -> Vec<Vec<String>> {
    static TEAMS: AtomicUsize = AtomicUsize::new(0);
    let team = TEAMS.fetch_add(1, Ordering::Relaxed);
    let program = std::env::current_exe().unwrap();
    // A task may run on another kernel, which does not inherit this process's environment.
    let soak = std::env::var_os("FORDWAY_SOAK").map_or("", |_| "FORDWAY_SOAK=1");
    let begin = |(number, role): (usize, &&str)| {
        cluster.task(&format!(
            "{soak} {settings} {MEMBER}='{role} {number} {team}' exec '{}' --ignored --exact a_member_of_a_team --nocapture",
            program.display()
        ))
    };
    let tasks: Vec<_> = roles.iter().enumerate().map(begin).collect();
    (0..roles.len()).for_each(|number| wait_for(&cluster.control(&format!("ready.{team}.{number}"))));
    fs::write(cluster.control(&format!("go.{team}")), "").unwrap();
    let reports =
        |said: String| said.lines().filter_map(|line| line.strip_prefix(REPORT)).map(str::to_owned).collect();
    // Wait for all processes, because a process that fails may make others wait until they also fail.
    let results: Vec<_> = tasks.into_iter().map(ClusterCommand::result).collect();
    let failed: Vec<_> = results.iter().filter_map(|result| result.as_ref().err()).cloned().collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    results.into_iter().map(|said| reports(said.unwrap_or_default())).collect()
}

#[allow(clippy::print_stdout, reason = "the test that started this process reads it")]
fn report(line: impl std::fmt::Display) {
    // The test harness has already started a line, so print a line break first.
    println!("\n{REPORT}{line}");
}

#[allow(clippy::print_stderr, reason = "which of them failed, and how long each takes")]
fn is_one_store(cluster: &SharedFileSystemFixture) {
    run(cluster, &["set-up"]);
    let checks: &[Check] = &[
        ("the put just acknowledged is listed", |cluster| {
            run(cluster, &["lister"]);
        }),
        ("an old ETag is refused", |cluster| {
            run(cluster, &["old-tags"]);
        }),
        ("an old ETag is refused where versions are kept", |cluster| {
            run(cluster, &["old-tags-of-versions"]);
        }),
        ("no increment is lost", no_increment_is_lost),
        ("of racing creators one wins", one_creator_wins),
        ("no read is torn", |cluster| {
            run(cluster, &["writer", "reader", "reader", "reader"]);
        }),
        ("strong reads and writes have one order", registers::one_order),
        ("a name that was opened while it was made is found", |cluster| {
            // Other file systems cache the absence of a name for a short time, or do not cache it.
            if cluster.name == "nfs" {
                let roles = ["opened-too-early", "documents-opened-too-early", "if-match-opened-too-early"];
                for role in roles {
                    eprintln!("{}", run(cluster, &[role])[0].join(""));
                }
            }
        }),
        ("nodes share uploads", |cluster| {
            run(cluster, &["uploads"]);
            run(cluster, &["completed-uploads"]);
            run(cluster, &["closed-uploads"]);
        }),
        ("gateways on two nodes are one service", gateways::are_one_service),
        ("a gateway that is killed holds nothing up", gateways::survive_the_death_of_one),
        ("nodes share documents", |cluster| {
            run(cluster, &["documents"]);
        }),
        ("calls of two nodes in turn are those of one store", are_one_in_turn),
        ("directories come and go", |cluster| {
            run(cluster, &["directories"]);
        }),
        ("what the file system leaves behind is not an object", |cluster| {
            run(cluster, &["left-behind"]);
        }),
        ("a bucket is deleted as soon as its removed files are closed", |cluster| {
            run(cluster, &["bucket-in-use"]);
        }),
        ("what was opened can be read, whatever another node does", |cluster| {
            run(cluster, &["opened"]);
            run(cluster, &["listed-anew"]);
        }),
        ("an object that is overwritten while it is open is never missing", |cluster| {
            run(cluster, &["overwritten-while-open"]);
        }),
        ("a sidecar file belongs to one object on all nodes", |cluster| {
            if cluster.name == "nfs" {
                run(cluster, &["renames"]);
            }
            run(cluster, &["sidecars"]);
        }),
        ("a strong listing shows names that were created in one step of the clock", |cluster| {
            if cluster.name == "nfs" {
                eprintln!("{}", run(cluster, &["listed-in-one-step"])[0].join(""));
            }
        }),
        ("rules that another node has just set apply to all events", |cluster| {
            if cluster.name == "nfs" {
                run(cluster, &["events"]);
            }
        }),
        ("tags that another node has just set are read", |cluster| {
            // MooseFS, as mounted here, caches attributes for 30 s.
            if cluster.name != "moosefs" {
                run(cluster, &["tags"]);
            }
        }),
        ("the time of a written file stays", |cluster| {
            run(cluster, &["sealed"]);
        }),
        ("a verdict is believed from those who may give it", |cluster| {
            run(cluster, &["verdicts"]);
        }),
        ("a shared bucket of a local root has the same guarantees", shared_buckets_of_local_roots),
        ("a silent file server holds up only those who need it", gateways::outlast_a_silent_server),
    ];
    let only = std::env::var("FORDWAY_CHECKS").unwrap_or_default();
    let mut failed = Vec::new();
    for (name, check) in checks.iter().filter(|(name, _)| name.contains(&only)) {
        let begin = Instant::now();
        let held = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| check(cluster)));
        eprintln!("{}: {name}: {:?}, {}", cluster.name, begin.elapsed(), held.is_ok());
        if held.is_err() {
            failed.push(*name);
        }
    }
    assert!(failed.is_empty(), "on {}: {failed:?}", cluster.name);
}

fn no_increment_is_lost(cluster: &SharedFileSystemFixture) {
    run(cluster, &["counter"; 8]);
    let seen = run(cluster, &["count"; 2]);
    assert_eq!(seen, vec![vec![(8 * at_length(INCREMENTS)).to_string()]; 2]);
}

fn one_creator_wins(cluster: &SharedFileSystemFixture) {
    let won = run(cluster, &["creator"; 8]);
    let mut winners: BTreeMap<&str, usize> = BTreeMap::new();
    won.iter().flatten().for_each(|key| *winners.entry(key.as_str()).or_default() += 1);
    assert_eq!(winners.len(), at_length(CREATED_KEYS));
    assert!(winners.values().all(|winners| *winners == 1), "{winners:?}");
}

fn bucket() -> Bucket {
    Bucket::new("bucket").unwrap()
}

fn key(name: &str) -> Key {
    Key::new(name).unwrap()
}

/// Returns the two nodes' roots.
fn roots() -> [&'static str; 2] {
    match std::env::var_os(ON_LOCAL_ROOTS) {
        Some(_) => LOCAL_ROOTS,
        None => SharedFileSystemFixture::MOUNTS,
    }
}

/// Opens the store on the mount of node `number` (modulo two).
fn store(number: usize) -> PosixStore {
    PosixStore::open(Path::new(roots()[number % 2]), PosixConfig::default()).unwrap()
}

/// Opens a store with strong consistency, whose reads query the file server first.
fn strong(number: usize) -> PosixStore {
    let config = PosixConfig { consistency: ReadConsistency::Strong, ..PosixConfig::default() };
    PosixStore::open(Path::new(roots()[number % 2]), config).unwrap()
}

fn put(store: &PosixStore, name: &str, body: &[u8]) -> ETag {
    store.put(&bucket(), &key(name), body, &PutOptions::default()).unwrap().etag
}

fn put_if(conditions: Conditions) -> PutOptions {
    PutOptions { conditions, ..Default::default() }
}

fn read(store: &PosixStore, name: &str) -> Result<Vec<u8>, ErrorKind> {
    let mut body = Vec::new();
    let got = store.read(&bucket(), &key(name), &GetOptions::default(), &mut body);
    got.map(|_| body).map_err(|error| error.kind())
}

fn set_up(_: &Member) {
    let store = store(0);
    // On a local root, the bucket is a mount that already exists.
    if roots() == SharedFileSystemFixture::MOUNTS {
        store.create_bucket(&bucket()).unwrap();
    }
    put(&store, "dir/count", b"0");
    put(&store, "whole", &content(0));
    // Keep one key in each directory, because directories that are removed with their last key behave differently (see
    // docs/reference/shared.md).
    put(&store, "deep/er/stays", b"");
    put(&store, "odd//stays", b"");
}

fn count(member: &Member) {
    // Wait until all caches in this cluster have expired.
    std::thread::sleep(Duration::from_secs(4));
    report(String::from_utf8(read(&store(member.number), "dir/count").unwrap()).unwrap());
}

fn count_up(member: &Member) {
    let store = store(member.number);
    let mut left = at_length(INCREMENTS);
    while left > 0 {
        let object = match store.get(&bucket(), &key("dir/count"), &GetOptions::default()) {
            Ok(object) => object,
            Err(error) => panic!("{error}"),
        };
        let only_if = put_if(Conditions::only_if(object.info.etag));
        let count: u64 = String::from_utf8(object.content.into_vec().unwrap()).unwrap().parse().unwrap();
        match store.put(&bucket(), &key("dir/count"), (count + 1).to_string().as_bytes(), &only_if) {
            Ok(_) => left -= 1,
            // On a busy machine, a lock may not be free in time. Nothing was changed then.
            Err(error) if matches!(error.kind(), ErrorKind::PreconditionFailed | ErrorKind::LockTimeout) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

fn create_all(member: &Member) {
    let store = store(member.number);
    for number in 0..at_length(CREATED_KEYS) {
        let name = format!("created{}/{number}", number / 20);
        match store.put(
            &bucket(),
            &key(&name),
            &[member.number as u8; 1000],
            &put_if(Conditions::create_only()),
        ) {
            Ok(_) => report(name),
            Err(error) => assert_eq!(error.kind(), ErrorKind::PreconditionFailed, "{error}"),
        }
    }
}

/// A conditional call through one node fails if its ETag belongs to a version that the other node has replaced or
/// removed.
fn use_old_tags(_: &Member) {
    let (one, other) = (store(0), store(1));
    for round in 0..10 {
        let name = format!("tags/{round}");
        let old = put(&one, &name, b"one");
        assert_eq!(other.head(&bucket(), &key(&name), &GetOptions::default()).unwrap().etag, old);
        let new = put(&one, &name, b"another");
        let refused = other.put(&bucket(), &key(&name), b"lost", &put_if(Conditions::only_if(old.clone())));
        assert_eq!(
            refused.map(|made| made.etag).map_err(|error| error.kind()),
            Err(ErrorKind::PreconditionFailed)
        );
        let options = DeleteOptions { conditions: Conditions::only_if(old), ..Default::default() };
        let refused = other.delete(&bucket(), &key(&name), &options);
        assert_eq!(refused.map_err(|error| error.kind()).unwrap_err(), ErrorKind::PreconditionFailed);
        let third =
            other.put(&bucket(), &key(&name), b"third", &put_if(Conditions::only_if(new))).unwrap().etag;
        other.delete(&bucket(), &key(&name), &DeleteOptions::default()).unwrap();
        let refused = one.put(&bucket(), &key(&name), b"lost", &put_if(Conditions::only_if(third)));
        assert_eq!(refused.map(|made| made.etag).map_err(|error| error.kind()), Err(ErrorKind::NoSuchKey));
    }
}

/// Checks conditional puts with ETags of old versions in a bucket with versioning, where the file of an old version
/// still exists under another name.
fn use_old_tags_of_versions(_: &Member) {
    use fordway_store::VersioningState;
    let (one, other) = (store(0), store(1));
    let bucket = Bucket::new("versions").unwrap();
    one.create_bucket(&bucket).unwrap();
    one.set_versioning(&bucket, VersioningState::Enabled).unwrap();
    for round in 0..5 {
        let key = key(&format!("tags/{round}"));
        let put = |body: &[u8]| one.put(&bucket, &key, body, &PutOptions::default()).unwrap().etag;
        let old = put(b"one");
        assert_eq!(other.head(&bucket, &key, &GetOptions::default()).unwrap().etag, old);
        let new = put(b"another");
        let refused = other.put(&bucket, &key, b"lost", &put_if(Conditions::only_if(old)));
        assert_eq!(
            refused.map(|made| made.etag).map_err(|error| error.kind()),
            Err(ErrorKind::PreconditionFailed)
        );
        other.put(&bucket, &key, b"third", &put_if(Conditions::only_if(new))).unwrap();
    }
}

/// Returns the content of version number `round`: one letter, repeated up to the version's size.
fn content(round: usize) -> Vec<u8> {
    vec![b'a' + (round % 26) as u8; 1 + round * 7919 % 300_000]
}

/// The store refuses a root because of the verdict in its directory under two conditions: the verdict applies to this
/// mount, and only root or the directory's owner could have written the verdict.
fn believe_verdicts(_: &Member) {
    let root = Path::new(SharedFileSystemFixture::MOUNTS[0]).join("judged");
    fs::create_dir_all(root.join(PRIVATE_DIR)).unwrap();
    let mount = MountProperties::of(fs::File::open(&root).unwrap()).unwrap();
    let file = root.join(PRIVATE_DIR).join("verdict");
    let refusal = |verdict: &str, owner: u32, mode: u32| {
        fs::write(&file, verdict).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        std::os::unix::fs::chown(&file, Some(owner), None).unwrap();
        let refused = PosixStore::open(&root, PosixConfig::default()).err().map(|error| error.to_string());
        (refused, note_on_mount(&root))
    };
    let kind = format!("is on {}, which", mount.kind);
    assert!(note_on_mount(&root).unwrap().contains(&kind), "there is no verdict yet");
    let broken = MountGuaranteeVerdict { mount: mount.clone(), broken: vec![SharedMountGuarantee::Locks] };
    let refused = refusal(&broken.to_string(), 0, 0o644).0.unwrap();
    assert!(refused.contains("locks do not reach the other mount"), "{refused}");
    std::os::unix::fs::chown(&root, Some(54321), None).unwrap();
    assert!(refusal(&broken.to_string(), 54321, 0o644).0.is_some(), "the root's owner is believed");
    let sound = MountGuaranteeVerdict { mount: mount.clone(), broken: vec![] };
    let other = MountProperties { options: format!("{},other", mount.options), ..mount.clone() };
    let elsewhere = MountGuaranteeVerdict { mount: other, ..broken.clone() };
    let cases = [
        ("of a tenant", broken.to_string(), 54322, 0o644),
        ("that anyone can change", broken.to_string(), 0, 0o666),
        ("of other options", elsewhere.to_string(), 0, 0o644),
        ("of a later version", broken.to_string().replace("verdict 1", "verdict 9"), 0, 0o644),
    ];
    for (what, verdict, owner, mode) in cases {
        let (refused, note) = refusal(&verdict, owner, mode);
        assert!(refused.is_none() && note.is_some(), "a verdict {what}: {refused:?}");
    }
    assert_eq!(refusal(&sound.to_string(), 0, 0o644), (None, None));
    assert_eq!(note_on_mount(Path::new("/run")), None, "it is local");
    fs::remove_dir_all(&root).unwrap();
}

/// The variable that contains the path of a file. A test that will be killed writes the process ID of its cluster to
/// this file.
const HOLDER: &str = "FORDWAY_TEST_HOLDER";

#[test]
#[ignore = "run by another test, as a process that is killed"]
fn holds_a_cluster() {
    let Ok(file) = std::env::var(HOLDER) else { return };
    let cluster = SharedFileSystemFixture::glusterfs().unwrap();
    let new = format!("{file}.new");
    fs::write(&new, cluster.process().to_string()).unwrap();
    fs::rename(new, file).unwrap();
    std::thread::sleep(START);
}

#[test]
fn a_test_that_is_killed_leaves_nothing_behind() {
    // Check that a cluster can start on this machine, before another process starts a cluster.
    let Some(cluster) = SharedFileSystemFixture::glusterfs() else { return };
    drop(cluster);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("process");
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--ignored", "--exact", "holds_a_cluster"]).env(HOLDER, &file);
    let mut holder = command.stdout(Stdio::null()).spawn().unwrap();
    wait_for(&file);
    let process = Path::new("/proc").join(fs::read_to_string(&file).unwrap());
    assert!(process.exists());
    holder.kill().unwrap();
    holder.wait().unwrap();
    let begin = Instant::now();
    // The kernel kills all other processes of the namespace before the first process disappears.
    while process.exists() {
        assert!(begin.elapsed() < START, "{} lives on", process.display());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_cluster_ends_with_its_test() {
    let Some(cluster) = SharedFileSystemFixture::glusterfs() else { return };
    let process = Path::new("/proc").join(cluster.process().to_string());
    let said = cluster.task("grep -c glusterfs /proc/mounts").output();
    assert_eq!(said.trim(), "2", "both mounts exist");
    let outside = fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(!outside.contains("glusterfs"), "{outside}");
    drop(cluster);
    assert!(!process.exists());
}

/// Creates a root without cached entries, which is removed with the fixture. Calls alternate between stores on the two
/// mounts.
fn in_turn() -> StoreFixture {
    let dir = tempfile::tempdir_in(SharedFileSystemFixture::MOUNTS[0]).unwrap();
    let name = dir.path().file_name().unwrap();
    let config = PosixConfig { consistency: ReadConsistency::Strong, ..PosixConfig::default() };
    let open = |mount: &str| -> Arc<dyn Store> {
        Arc::new(PosixStore::open(&Path::new(mount).join(name), config.clone()).unwrap())
    };
    StoreFixture::new(RoundRobinStore::new(SharedFileSystemFixture::MOUNTS.map(open).into()), dir)
}

/// Runs the conformance suite with calls that alternate between two nodes. The suite does not run on NFS, where tags
/// that are replaced within one tick of the server's clock look unchanged to the other client.
fn are_one_in_turn(cluster: &SharedFileSystemFixture) {
    if is_long() && cluster.name != "nfs" {
        without_attribute_cache(cluster);
        run(cluster, &["conformance", "model", "model", "gateway-conformance"]);
    }
}

/// Mounts MooseFS without the attribute cache, which can return metadata of objects that is up to 30 s old.
fn without_attribute_cache(cluster: &SharedFileSystemFixture) {
    if cluster.name == "moosefs" {
        let mount = "umount /mnt/$node && mfsmount -H 10.88.0.1 -o mfsxattrcacheto=0 /mnt/$node";
        cluster.task(&format!("set -e; for node in 1 2; do {mount}; done")).output();
    }
}

fn conform(_: &Member) {
    assert_eq!(run_all(&in_turn), cases_written());
}

fn follow_model(member: &Member) {
    for round in 0..at_length(MODEL_RUNS) {
        let seed = (round * 2 + member.number % 2) as u64;
        model::check(&*in_turn(), &model::sequence(seed, MODEL_OPERATIONS));
    }
}

/// Mounts a directory of the shared file system as the bucket of a local root on each node, unless it is already
/// mounted.
fn mount_buckets(cluster: &SharedFileSystemFixture) {
    let [one, other] = LOCAL_ROOTS.map(|root| format!("{root}/bucket"));
    let [shared, seen] = SharedFileSystemFixture::MOUNTS.map(|mount| format!("{mount}/alone"));
    let mounts =
        format!("mkdir -p {one} {other} {shared}; mount --bind {shared} {one}; mount --bind {seen} {other}");
    cluster.task(&format!("set -e; mountpoint -q {one} || {{ {mounts}; }}")).output();
}

fn shared_buckets_of_local_roots(cluster: &SharedFileSystemFixture) {
    mount_buckets(cluster);
    let run = |roles: &[&str]| run_with(cluster, &format!("{ON_LOCAL_ROOTS}=1"), roles);
    for role in ["set-up", "old-tags", "opened", "listed-anew", "directories"] {
        run(&[role]);
    }
    if is_long() {
        registers::have_one_order(&run(&["register"; 4]));
    }
}
