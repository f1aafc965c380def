//! Guarantees between two nodes that mount one file system, each with its own caches.
//!
//! `FORDWAY_CLUSTERS=all` adds the file systems that otherwise only `make soak` starts. `FORDWAY_CHECKS=TEXT` runs only
//! the checks whose names contain the text.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fordway_posix::{PosixConfig, PosixStore, ReadConsistency};
use fordway_store::{
    Bucket, Conditions, DeleteOptions, ETag, ErrorKind, GetOptions, Key, ListQuery, ObjectVersions, Objects,
    PutOptions, Store,
};
use fordway_testkit::cluster::FileSystemCluster;
use fordway_testkit::conformance::{StoreFixture, cases_written, run_all};
use fordway_testkit::history::{HistoryEvent, TimedEvent, is_linearizable};
use fordway_testkit::model;
use fordway_testkit::turns::StoreTurns;

/// The variable that tells a process in a cluster its role, its number and its team.
const MEMBER: &str = "FORDWAY_TEST_SHARED";
/// How long the members of a team wait for each other.
const START: Duration = Duration::from_secs(60);
/// The prefix of a line that a member reports.
const REPORT: &str = "report: ";

/// The number of increments of each process, of names that are raced for, of replacements of one object's content, and
/// of register operations of each process: in a soak test, and in a normal run.
const INCREMENTS: [usize; 2] = [200, 50];
const CREATED_KEYS: [usize; 2] = [1_000, 60];
const OVERWRITES: [usize; 2] = [3_000, 300];
const USES: [usize; 2] = [5_000, 400];
const MODEL_RUNS: [usize; 2] = [50, 5];
/// The number of operations in each run of the model.
const MODEL_OPERATIONS: usize = 60;
/// Keys that all processes read and write.
const REGISTERS: [&str; 3] = ["register", "deep/er/register", "odd//register"];

fn at_length([soak, usual]: [usize; 2]) -> usize {
    if std::env::var_os("FORDWAY_SOAK").is_some() { soak } else { usual }
}

/// A process in a cluster.
struct Member {
    number: usize,
}

type Role = (&'static str, fn(&Member));

/// A guarantee, and the function that checks it.
type Check = (&'static str, fn(&FileSystemCluster));

const ROLES: &[Role] = &[
    ("set-up", set_up),
    ("counter", count_up),
    ("count", count),
    ("creator", create_all),
    ("old-tags", use_old_tags),
    ("old-tags-of-versions", use_old_tags_of_versions),
    ("writer", overwrite),
    ("reader", read_whole),
    ("lister", list_what_was_put),
    ("directories", share_directories),
    ("left-behind", leave_names_behind),
    ("register", use_registers),
    ("conformance", conform),
    ("model", follow_model),
];

#[test]
fn glusterfs_is_one_store_for_two_nodes() {
    FileSystemCluster::glusterfs().inspect(is_one_store);
}

#[test]
fn nfs_is_one_store_for_two_nodes() {
    FileSystemCluster::nfs().inspect(is_one_store);
}

#[test]
fn moosefs_is_one_store_for_two_nodes() {
    in_soak(FileSystemCluster::moosefs);
}

#[test]
fn cephfs_is_one_store_for_two_nodes() {
    in_soak(FileSystemCluster::cephfs);
}

/// Returns whether to run checks that take too long for CI.
fn is_long() -> bool {
    ["FORDWAY_SOAK", "FORDWAY_CLUSTERS"].iter().any(|name| std::env::var_os(name).is_some())
}

/// Runs the checks only on request, because CI has no time for more file systems.
fn in_soak(start: fn() -> Option<FileSystemCluster>) {
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
    let control = Path::new(FileSystemCluster::CONTROL);
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

/// Runs one process for each of `roles`, all started at the same moment; returns what each reports.
fn run(cluster: &FileSystemCluster, roles: &[&str]) -> Vec<Vec<String>> {
    static TEAMS: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
    let team = TEAMS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let program = std::env::current_exe().unwrap();
    // A task may run on another kernel, which does not inherit this process's environment.
    let soak = std::env::var_os("FORDWAY_SOAK").map_or("", |_| "FORDWAY_SOAK=1");
    let begin = |(number, role): (usize, &&str)| {
        cluster.task(&format!(
            "{soak} {MEMBER}='{role} {number} {team}' exec {} --ignored --exact a_member_of_a_team --nocapture",
            program.display()
        ))
    };
    let tasks: Vec<_> = roles.iter().enumerate().map(begin).collect();
    (0..roles.len()).for_each(|number| wait_for(&cluster.control(&format!("ready.{team}.{number}"))));
    fs::write(cluster.control(&format!("go.{team}")), "").unwrap();
    let reports =
        |said: String| said.lines().filter_map(|line| line.strip_prefix(REPORT)).map(str::to_owned).collect();
    tasks.into_iter().map(|task| reports(task.output())).collect()
}

#[allow(clippy::print_stdout, reason = "the test that started this process reads it")]
fn report(line: impl std::fmt::Display) {
    // The test harness has already started a line, so this begins a new one.
    println!("\n{REPORT}{line}");
}

#[allow(clippy::print_stderr, reason = "which of them failed, and how long each takes")]
fn is_one_store(cluster: &FileSystemCluster) {
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
        ("strong reads and writes have one order", one_order),
        ("calls of two nodes in turn are those of one store", are_one_in_turn),
        ("directories come and go", |cluster| {
            run(cluster, &["directories"]);
        }),
        ("what the file system leaves behind is no object", |cluster| {
            run(cluster, &["left-behind"]);
        }),
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

fn no_increment_is_lost(cluster: &FileSystemCluster) {
    run(cluster, &["counter"; 8]);
    let seen = run(cluster, &["count"; 2]);
    assert_eq!(seen, vec![vec![(8 * at_length(INCREMENTS)).to_string()]; 2]);
}

fn one_creator_wins(cluster: &FileSystemCluster) {
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

/// Opens the store as node `number` (modulo two) sees it.
fn store(number: usize) -> PosixStore {
    PosixStore::open(Path::new(FileSystemCluster::MOUNTS[number % 2]), PosixConfig::default()).unwrap()
}

/// Opens a store whose reads ask the file server first.
fn strong(number: usize) -> PosixStore {
    let config = PosixConfig { consistency: ReadConsistency::Strong, ..PosixConfig::default() };
    PosixStore::open(Path::new(FileSystemCluster::MOUNTS[number % 2]), config).unwrap()
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
    store.create_bucket(&bucket()).unwrap();
    put(&store, "dir/count", b"0");
    put(&store, "whole", &content(0));
    // Directories that are created and removed with their last key behave differently: see docs/reference/shared.md.
    put(&store, "deep/er/stays", b"");
    put(&store, "odd//stays", b"");
}

fn count(member: &Member) {
    // No cache in this cluster is valid for longer.
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
            Err(error) if error.kind() == ErrorKind::PreconditionFailed => {}
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

/// One node has seen a version that the other has replaced or removed.
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

/// The file of an old version continues to exist under another name.
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

fn overwrite(member: &Member) {
    let store = store(member.number);
    (0..at_length(OVERWRITES)).for_each(|round| drop(put(&store, "whole", &content(round))));
    put(&store, "overwritten", b"1");
}

fn read_whole(member: &Member) {
    let store = store(member.number);
    let begin = Instant::now();
    let (mut reads, overwrites) = (0, at_length(OVERWRITES));
    while read(&store, "overwritten").is_err() && begin.elapsed() < START {
        let body = read(&store, "whole").unwrap();
        let is_whole =
            (0..overwrites).any(|round| content(round).len() == body.len() && body == content(round));
        let letters: std::collections::BTreeSet<u8> = body.iter().copied().collect();
        assert!(is_whole, "{} bytes of {letters:?} after {reads} reads", body.len());
        reads += 1;
    }
    report(reads);
}

/// There are enough entries that a listing is cached.
fn list_what_was_put(_: &Member) {
    let (one, other) = (store(0), store(1));
    put(&one, "listed/first", b"");
    let dir = Path::new(FileSystemCluster::MOUNTS[0]).join("bucket/listed");
    (0..600).for_each(|number| fs::write(dir.join(format!("{number:04}")), "").unwrap());
    let start_after = Some("listed/0599".to_owned());
    let query = ListQuery { prefix: "listed/".to_owned(), start_after, ..Default::default() };
    for round in 0..15 {
        let store = if round % 2 == 0 { &one } else { &other };
        store.list(&bucket(), &query).unwrap();
        let name = format!("listed/{:04}", 700 + round);
        put(store, &name, b"");
        let listed = store.list(&bucket(), &query).unwrap();
        assert!(
            listed.entries.iter().any(|entry| format!("{entry:?}").contains(&name)),
            "{name} is not listed"
        );
    }
}

/// One node removes a directory that the other has seen, and may create it again.
fn share_directories(_: &Member) {
    let (one, other) = (store(0), store(1));
    for round in 0..10 {
        let (first, second) = (format!("come{round}/and/go/x"), format!("come{round}/and/go/y"));
        put(&one, &first, b"1");
        read(&other, &first).unwrap();
        one.delete(&bucket(), &key(&first), &DeleteOptions::default()).unwrap();
        match read(&other, &first) {
            // Both are within what the mount's caches allow.
            Ok(_) | Err(ErrorKind::NoSuchKey) => {}
            Err(kind) => panic!("{kind:?}"),
        }
        put(&other, &second, b"2");
        assert_eq!(read(&other, &second).unwrap(), b"2");
        other.delete(&bucket(), &key(&second), &DeleteOptions::default()).unwrap();
        one.put(&bucket(), &key(&first), b"3", &put_if(Conditions::create_only())).unwrap();
        other.list(&bucket(), &ListQuery { prefix: format!("come{round}/"), ..Default::default() }).unwrap();
    }
}

/// NFS renames a file that is removed while it is open to a hidden name; FUSE may do the same.
fn leave_names_behind(_: &Member) {
    let (one, other) = (store(0), store(1));
    let dir = Path::new(FileSystemCluster::MOUNTS[0]).join("bucket/left");
    put(&one, "left/a", b"1");
    put(&one, "left/.nfs", b"an object");
    let open = fs::File::open(dir.join("a")).unwrap();
    put(&one, "left/a", b"2");
    let open_too = fs::File::open(dir.join("a")).unwrap();
    one.delete(&bucket(), &key("left/a"), &DeleteOptions::default()).unwrap();
    let query = ListQuery { prefix: "left/".to_owned(), ..Default::default() };
    for store in [&one, &other] {
        let listed = store.list(&bucket(), &query).unwrap();
        assert_eq!(listed.entries.len(), 1, "{:?}", listed.entries);
    }
    drop((open, open_too));
    one.delete(&bucket(), &key("left/.nfs"), &DeleteOptions::default()).unwrap();
    one.list(&bucket(), &query).unwrap();
}

/// The variable that names the file in which a test that is about to be killed writes the process ID of its cluster.
const HOLDER: &str = "FORDWAY_TEST_HOLDER";

#[test]
#[ignore = "run by another test, as a process that is killed"]
fn holds_a_cluster() {
    let Ok(file) = std::env::var(HOLDER) else { return };
    let cluster = FileSystemCluster::glusterfs().unwrap();
    let new = format!("{file}.new");
    fs::write(&new, cluster.process().to_string()).unwrap();
    fs::rename(new, file).unwrap();
    std::thread::sleep(START);
}

#[test]
fn a_test_that_is_killed_leaves_nothing_behind() {
    // This checks that a cluster can start here, before another process starts one.
    let Some(cluster) = FileSystemCluster::glusterfs() else { return };
    drop(cluster);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("process");
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args(["--ignored", "--exact", "holds_a_cluster"]).env(HOLDER, &file);
    let mut holder = command.stdout(std::process::Stdio::null()).spawn().unwrap();
    wait_for(&file);
    let process = Path::new("/proc").join(fs::read_to_string(&file).unwrap());
    assert!(process.exists());
    holder.kill().unwrap();
    holder.wait().unwrap();
    let begin = Instant::now();
    // The kernel kills all other processes of the namespace before its first process is gone.
    while process.exists() {
        assert!(begin.elapsed() < START, "{} lives on", process.display());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_cluster_ends_with_its_test() {
    let Some(cluster) = FileSystemCluster::glusterfs() else { return };
    let process = Path::new("/proc").join(cluster.process().to_string());
    let said = cluster.task("grep -c glusterfs /proc/mounts").output();
    assert_eq!(said.trim(), "2", "both mounts are there");
    let outside = fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(!outside.contains("glusterfs"), "{outside}");
    drop(cluster);
    assert!(!process.exists());
}

/// Puts, creates, reads and deletes keys that the other mount uses too; reports each operation with its times.
fn use_registers(member: &Member) {
    let store = strong(member.number);
    let mut random = 0x9e37_79b9_u64 + member.number as u64;
    for step in 0..at_length(USES) {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let name = REGISTERS[(random >> 33) as usize % REGISTERS.len()];
        let value = (member.number * at_length(USES) + step) as u64;
        let began = now_ns();
        let event = use_register(&store, name, value, (random >> 50) % 10);
        report(format!("{name} {event} {began} {}", now_ns()));
    }
}

fn use_register(store: &PosixStore, name: &str, value: u64, choice: u64) -> String {
    let body = value.to_string();
    match choice {
        0..3 => {
            put(store, name, body.as_bytes());
            format!("put {value}")
        }
        3..4 => match store.put(&bucket(), &key(name), body.as_bytes(), &put_if(Conditions::create_only())) {
            Ok(_) => format!("created {value}"),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::PreconditionFailed, "{error}");
                "refused 0".to_owned()
            }
        },
        4..9 => match read(store, name) {
            Ok(body) => format!("read {}", String::from_utf8(body).unwrap()),
            Err(kind) => {
                assert_eq!(kind, ErrorKind::NoSuchKey);
                "missed 0".to_owned()
            }
        },
        _ => {
            store.delete(&bucket(), &key(name), &DeleteOptions::default()).unwrap();
            "deleted 0".to_owned()
        }
    }
}

/// Returns the time of a clock that all processes of a cluster share, because they run on one kernel.
fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Creates a root in which nothing has been cached yet; it is removed with the fixture. Calls alternate between stores
/// on the two mounts.
fn in_turn() -> StoreFixture {
    let dir = tempfile::tempdir_in(FileSystemCluster::MOUNTS[0]).unwrap();
    let name = dir.path().file_name().unwrap();
    let config = PosixConfig { consistency: ReadConsistency::Strong, ..PosixConfig::default() };
    let open = |mount: &str| -> Arc<dyn Store> {
        Arc::new(PosixStore::open(&Path::new(mount).join(name), config.clone()).unwrap())
    };
    StoreFixture::new(StoreTurns::new(FileSystemCluster::MOUNTS.map(open).into()), dir)
}

/// Not on NFS, where tags that are replaced within one step of the server's clock look unchanged to the other client.
fn are_one_in_turn(cluster: &FileSystemCluster) {
    if is_long() && cluster.name != "nfs" {
        without_attribute_cache(cluster);
        run(cluster, &["conformance", "model", "model"]);
    }
}

/// Mounts MooseFS without the cache of attributes, in which the metadata of objects may be 30 s old.
fn without_attribute_cache(cluster: &FileSystemCluster) {
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

fn one_order(cluster: &FileSystemCluster) {
    let reports = run(cluster, &["register"; 4]);
    let mut histories: BTreeMap<&str, Vec<Vec<TimedEvent>>> = BTreeMap::new();
    for (client, line) in
        reports.iter().enumerate().flat_map(|(client, lines)| lines.iter().map(move |line| (client, line)))
    {
        let [name, what, value, began, ended] = line.split(' ').collect::<Vec<_>>()[..] else {
            panic!("{line}")
        };
        let value = value.parse().unwrap();
        let event = match what {
            "put" => HistoryEvent::Put(value),
            "created" => HistoryEvent::Created(value),
            "refused" => HistoryEvent::NotCreated,
            "read" => HistoryEvent::Read(Some(value)),
            "missed" => HistoryEvent::Read(None),
            _ => HistoryEvent::Deleted,
        };
        let timed = TimedEvent { event, began_ns: began.parse().unwrap(), ended_ns: ended.parse().unwrap() };
        histories.entry(name).or_insert_with(|| vec![Vec::new(); reports.len()])[client].push(timed);
    }
    assert_eq!(histories.len(), REGISTERS.len());
    for (name, clients) in histories {
        let order = is_linearizable(&clients);
        assert!(order.is_ok(), "{name}: after {order:?} events nothing fits");
    }
}
