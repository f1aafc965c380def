//! Guarantees between two nodes that mount one file system, each with its own caches.
//!
//! `FORDWAY_CLUSTERS=all` adds the file systems that otherwise only `make soak` starts. `FORDWAY_CHECKS=TEXT` runs only
//! the checks whose names contain the text, and `FORDWAY_ROUNDS=N` repeats the linearizability check N times.

mod gateways;
mod uploads;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

use fordway_posix::{PRIVATE_DIR, PosixConfig, PosixStore, ReadConsistency, note_on_mount};
use fordway_store::{
    Bucket, BucketDocuments, ChecksumAlgorithm, Conditions, DeleteOptions, DocumentKind, ETag, ETagPolicy,
    ErrorKind, ExpectedContent, GetOptions, Key, ListEntry, ListQuery, MIN_PART_BYTES, MultipartUploads,
    ObjectTags, ObjectVersions, Objects, PartOptions, PutOptions, Store, Tags,
};
use fordway_sys::{MountIdentity, MountVerdict, SharedGuarantee};
use fordway_testkit::cluster::{ClusterTask, FileSystemCluster};
use fordway_testkit::conformance::{StoreFixture, cases_written, run_all};
use fordway_testkit::history::{HistoryEvent, TimedEvent, is_linearizable};
use fordway_testkit::model;
use fordway_testkit::turns::RoundRobinStore;

/// The variable that tells a process in a cluster its role, its number and its team.
const MEMBER: &str = "FORDWAY_TEST_SHARED";
/// How long the members of a team wait for one another.
const START: Duration = Duration::from_secs(60);
/// The variable that tells a process in a cluster to open its store on [`LOCAL_ROOTS`].
const ON_LOCAL_ROOTS: &str = "FORDWAY_TEST_LOCAL_ROOTS";
/// For each node, a root on a local file system in which `bucket` is a directory of the shared file system.
const LOCAL_ROOTS: [&str; 2] = ["/mnt/local/1", "/mnt/local/2"];
/// The prefix of a line that a member reports.
const REPORT: &str = "report: ";

/// In a soak test, and in a normal run: the number of increments per process, of names that processes compete to
/// create, of times that one object's content is replaced, and of register operations per process.
const INCREMENTS: [usize; 2] = [200, 50];
const CREATED_KEYS: [usize; 2] = [1_000, 60];
const OVERWRITES: [usize; 2] = [3_000, 300];
const USES: [usize; 2] = [5_000, 400];
const OPENED_EARLY: [usize; 2] = [500, 30];
const REPLACED: [usize; 2] = [1_000, 100];
const TAGGED: [usize; 2] = [500, 20];
const MODEL_RUNS: [usize; 2] = [50, 5];
/// How long a program may take to open a name, and how long the server may take to respond.
const OPENED: Duration = Duration::from_millis(50);
const ANSWERED: Duration = Duration::from_millis(50);
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
    ("opened", read_what_was_opened),
    ("overwritten-while-open", use_what_is_overwritten_while_open),
    ("tags", read_tags_at_once),
    ("listed-anew", list_what_was_replaced),
    ("sealed", keep_times),
    ("verdicts", believe_verdicts),
    ("register", use_registers),
    ("no-registers", remove_registers),
    ("opened-too-early", find_what_was_opened_too_early),
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
    run_with(cluster, "", roles)
}

/// Like [`run`], with `settings` in the environment of each process.
fn run_with(cluster: &FileSystemCluster, settings: &str, roles: &[&str]) -> Vec<Vec<String>> {
    static TEAMS: AtomicUsize = AtomicUsize::new(0);
    let team = TEAMS.fetch_add(1, Ordering::Relaxed);
    let program = std::env::current_exe().unwrap();
    // A task may run on another kernel, which does not inherit this process's environment.
    let soak = std::env::var_os("FORDWAY_SOAK").map_or("", |_| "FORDWAY_SOAK=1");
    let begin = |(number, role): (usize, &&str)| {
        cluster.task(&format!(
            "{soak} {settings} {MEMBER}='{role} {number} {team}' exec {} --ignored --exact a_member_of_a_team --nocapture",
            program.display()
        ))
    };
    let tasks: Vec<_> = roles.iter().enumerate().map(begin).collect();
    (0..roles.len()).for_each(|number| wait_for(&cluster.control(&format!("ready.{team}.{number}"))));
    fs::write(cluster.control(&format!("go.{team}")), "").unwrap();
    let reports =
        |said: String| said.lines().filter_map(|line| line.strip_prefix(REPORT)).map(str::to_owned).collect();
    // Wait for all processes, because a process that fails may make others wait until they also fail.
    let results: Vec<_> = tasks.into_iter().map(ClusterTask::result).collect();
    let failed: Vec<_> = results.iter().filter_map(|result| result.as_ref().err()).cloned().collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    results.into_iter().map(|said| reports(said.unwrap_or_default())).collect()
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
        ("a name that was opened while it was made is found", |cluster| {
            // Other file systems cache the absence of a name for a short time, or not at all.
            if cluster.name == "nfs" {
                for role in ["opened-too-early", "documents-opened-too-early"] {
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
        ("what was opened can be read, whatever another node does", |cluster| {
            run(cluster, &["opened"]);
            run(cluster, &["listed-anew"]);
        }),
        ("an object that is overwritten while it is open is never missing", |cluster| {
            run(cluster, &["overwritten-while-open"]);
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

/// Returns the two nodes' roots.
fn roots() -> [&'static str; 2] {
    match std::env::var_os(ON_LOCAL_ROOTS) {
        Some(_) => LOCAL_ROOTS,
        None => FileSystemCluster::MOUNTS,
    }
}

/// Opens the store as node `number` (modulo two) sees it.
fn store(number: usize) -> PosixStore {
    PosixStore::open(Path::new(roots()[number % 2]), PosixConfig::default()).unwrap()
}

/// Opens a store whose reads ask the file server first.
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
    if roots() == FileSystemCluster::MOUNTS {
        store.create_bucket(&bucket()).unwrap();
    }
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

/// If a file is replaced while it is open, the NFS client first renames it, so the name is missing for a moment. Nobody
/// may mistake that for the removal of the object.
fn use_what_is_overwritten_while_open(_: &Member) {
    let mount = Path::new(FileSystemCluster::MOUNTS[0]).join("bucket");
    let (writer, kind) = (store(0), DocumentKind::new("policy").unwrap());
    let overwrite = |round| {
        let _open =
            [fs::File::open(mount.join("open/x")), fs::File::open(mount.join(".fordway/document-policy"))];
        put(&writer, "open/x", &content(round));
        writer.set_document(&bucket(), &kind, round.to_string().as_bytes()).unwrap();
    };
    overwrite(0);
    let query = ListQuery { prefix: "open/".to_owned(), ..Default::default() };
    let is_read = |reader: &PosixStore| read(reader, "open/x").is_ok();
    let is_listed = |reader: &PosixStore| reader.list(&bucket(), &query).unwrap().entries.len() == 1;
    let is_kept = |reader: &PosixStore| {
        let made = reader.put(&bucket(), &key("open/x"), b"", &put_if(Conditions::create_only()));
        made.is_err_and(|error| error.kind() == ErrorKind::PreconditionFailed)
    };
    let has_document = |reader: &PosixStore| reader.document(&bucket(), &kind).unwrap().is_some();
    type Use<'u> = (&'u str, PosixStore, &'u (dyn Fn(&PosixStore) -> bool + Sync));
    let uses: [Use<'_>; 8] = [
        ("read", store(1), &is_read),
        ("read", strong(1), &is_read),
        ("read", store(0), &is_read),
        ("listed", store(1), &is_listed),
        ("listed", strong(1), &is_listed),
        ("kept", store(1), &is_kept),
        ("document", store(1), &has_document),
        ("document", strong(1), &has_document),
    ];
    let is_over = AtomicBool::new(false);
    let results = std::thread::scope(|scope| {
        let users = uses.map(|(name, store, act)| {
            let is_over = &is_over;
            scope.spawn(move || {
                let mut done = [0, 0];
                while !is_over.load(Ordering::Relaxed) {
                    done[usize::from(act(&store))] += 1;
                }
                (name, done)
            })
        });
        (0..at_length(REPLACED)).for_each(overwrite);
        is_over.store(true, Ordering::Relaxed);
        users.map(|user| user.join().unwrap())
    });
    assert!(results.iter().all(|(_, [missed, done])| *missed == 0 && *done > 0), "{results:?}");
}

/// A change of tags changes neither the name nor the content of a file, and may happen within the same tick of the
/// server's clock as the previous change.
fn read_tags_at_once(_: &Member) {
    let (one, other) = (strong(0), strong(1));
    let tags = |value: usize| Tags::from([("of".to_owned(), value.to_string())]);
    for round in 0..at_length(TAGGED) {
        let name = key(&format!("tags/{round}"));
        let options =
            PutOptions { tags: if round % 2 == 0 { Tags::new() } else { tags(0) }, ..Default::default() };
        one.put(&bucket(), &name, b"1", &options).unwrap();
        assert_eq!(one.tags(&bucket(), &name, None).unwrap(), options.tags);
        for change in 1..4 {
            other.set_tags(&bucket(), &name, None, &tags(change)).unwrap();
            assert_eq!(one.tags(&bucket(), &name, None).unwrap(), tags(change), "round {round}");
        }
    }
}

/// One node opens objects, and the other replaces or removes them before they are read.
fn read_what_was_opened(_: &Member) {
    let (one, other) = (store(0), store(1));
    for round in 0..10 {
        let (name, body) = (format!("opened/{round}"), content(13 + round));
        put(&other, &name, &body);
        let object = one.get(&bucket(), &key(&name), &GetOptions::default()).unwrap();
        match round % 2 {
            0 => drop(put(&other, &name, b"another")),
            _ => drop(other.delete(&bucket(), &key(&name), &DeleteOptions::default()).unwrap()),
        }
        let read = object.content.into_vec().unwrap_or_else(|error| panic!("round {round}: {error}"));
        assert!(read == body, "round {round}: {} of {} bytes", read.len(), body.len());
    }
}

/// A program on one node opens a name just before the other node creates it, and handles the response after its own
/// node has seen that the directory changed. The Linux NFS client then keeps the name cached as missing.
fn find_what_was_opened_too_early(_: &Member) {
    let (one, other) = (store(0), strong(1));
    put(&one, "early/x", b"");
    let [here, there] = FileSystemCluster::MOUNTS.map(|mount| Path::new(mount).join("bucket/early"));
    let dir = fs::File::open(&there).unwrap();
    let mut opener = FrozenOpener::start(&there);
    let mut kept_missing = 0;
    for round in 0..at_length(OPENED_EARLY) {
        let name = round.to_string();
        // After this, the open below sends only one request.
        assert!(!there.join("none").exists());
        opener.open(&name);
        fs::hard_link(here.join("x"), here.join(&name)).unwrap();
        fordway_sys::stat_now(&dir).unwrap();
        opener.thaw();
        fordway_sys::stat_now(&dir).unwrap();
        kept_missing += usize::from(!there.join(&name).exists());
        assert_eq!(read(&other, &format!("early/{name}")), Ok(Vec::new()), "round {round}");
    }
    report(format!("{kept_missing} names were kept as missing"));
}

/// A program that opens names and is frozen while it waits for the server's response.
struct FrozenOpener {
    program: Child,
    names: ChildStdin,
    said: BufReader<ChildStdout>,
}

impl FrozenOpener {
    const GROUP: &str = "/run/freezer/opener";

    fn start(dir: &Path) -> Self {
        let script = "while read -r name; do true 2>/dev/null <$name; echo done; done";
        let mount = "mkdir -p /run/freezer && { mountpoint -q /run/freezer || mount -t cgroup -o freezer none /run/freezer; } && mkdir -p $0";
        let mounted = Command::new("sh").args(["-c", mount, Self::GROUP]).status().unwrap();
        assert!(mounted.success(), "the kernel cannot freeze programs");
        let mut program = Command::new("sh");
        program.args(["-c", script]).current_dir(dir).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut program = program.spawn().unwrap();
        fs::write(format!("{}/cgroup.procs", Self::GROUP), program.id().to_string()).unwrap();
        let (names, said) = (program.stdin.take().unwrap(), BufReader::new(program.stdout.take().unwrap()));
        FrozenOpener { program, names, said }
    }

    /// Opens `name` and waits until the server has responded, but the program has not yet noticed.
    fn open(&mut self, name: &str) {
        let state = format!("/proc/{}/stat", self.program.id());
        writeln!(self.names, "{name}").unwrap();
        let begin = Instant::now();
        while !fs::read_to_string(&state).unwrap().contains(") D ") && begin.elapsed() < OPENED {
            std::thread::yield_now();
        }
        self.set_state("FROZEN");
        std::thread::sleep(ANSWERED);
    }

    fn thaw(&mut self) {
        self.set_state("THAWED");
        self.said.read_line(&mut String::new()).unwrap();
    }

    fn set_state(&self, state: &str) {
        fs::write(format!("{}/freezer.state", Self::GROUP), state).unwrap();
    }
}

impl Drop for FrozenOpener {
    fn drop(&mut self) {
        self.set_state("THAWED");
        self.program.kill().unwrap();
        self.program.wait().unwrap();
    }
}

/// One node replaces objects that the other has listed; a listing that asks the server shows the new ones.
fn list_what_was_replaced(_: &Member) {
    let (one, other) = (strong(0), strong(1));
    let query = ListQuery { prefix: "replaced/".to_owned(), ..Default::default() };
    for round in 0..10 {
        let written = put(&one, "replaced/x", &content(round));
        let listed = other.list(&bucket(), &query).unwrap();
        let ListEntry::Object(seen) = &listed.entries[0] else { panic!("{listed:?}") };
        assert_eq!((seen.size, &seen.etag), (content(round).len() as u64, &written), "round {round}");
    }
}

/// Once a node has written an object or a part, the file's time must not change by itself any more, because a record is
/// valid only for that time. The MooseFS client reports the times of its writes to the server later.
fn keep_times(_: &Member) {
    let (one, other) = (strong(0), strong(1));
    let set = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    let bucket_dir = Path::new(roots()[1]).join("bucket");
    let upload = one.create_upload(&bucket(), &key("sealed/upload"), &PutOptions::default()).unwrap();
    let part = vec![b'p'; MIN_PART_BYTES as usize];
    let options = PartOptions { size_hint: Some(MIN_PART_BYTES), ..Default::default() };
    let mut writer = one.part_writer(&bucket(), &key("sealed/upload"), &upload, 1, &options).unwrap();
    writer.write(&part).unwrap();
    writer.commit(&ExpectedContent::default()).unwrap();
    let checksum = PutOptions { checksum: Some(ChecksumAlgorithm::Crc32c), ..Default::default() };
    one.put(&bucket(), &key("sealed/object"), &part, &checksum).unwrap();
    let data = bucket_dir.join(".fordway/mpu").join(upload.as_str()).join("data");
    for path in [data, bucket_dir.join("sealed/object")] {
        fs::File::options().write(true).open(&path).unwrap().set_modified(set).unwrap();
        // The client reports to the server once a second, and caches attributes for a second.
        std::thread::sleep(Duration::from_secs(4));
        let found = fs::metadata(&path).unwrap().modified().unwrap();
        assert_eq!(found, set, "{} has another time than was set last", path.display());
    }
    other.abort_upload(&bucket(), &key("sealed/upload"), &upload).unwrap();
}

/// A verdict in a root directory makes the store refuse that root only if nobody but the user root or the directory's
/// owner can have written the verdict, and if the verdict is about this mount.
fn believe_verdicts(_: &Member) {
    let root = Path::new(FileSystemCluster::MOUNTS[0]).join("judged");
    fs::create_dir_all(root.join(PRIVATE_DIR)).unwrap();
    let mount = MountIdentity::of(fs::File::open(&root).unwrap()).unwrap();
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
    let broken = MountVerdict { mount: mount.clone(), broken: vec![SharedGuarantee::Locks] };
    let refused = refusal(&broken.to_string(), 0, 0o644).0.unwrap();
    assert!(refused.contains("locks do not reach the other mount"), "{refused}");
    std::os::unix::fs::chown(&root, Some(54321), None).unwrap();
    assert!(refusal(&broken.to_string(), 54321, 0o644).0.is_some(), "the root's owner is believed");
    let sound = MountVerdict { mount: mount.clone(), broken: vec![] };
    let other = MountIdentity { options: format!("{},other", mount.options), ..mount.clone() };
    let elsewhere = MountVerdict { mount: other, ..broken.clone() };
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

/// One node removes a directory that the other has seen, and may create it again.
fn share_directories(_: &Member) {
    let (one, other) = (store(0), store(1));
    for round in 0..10 {
        let (first, second) = (format!("come{round}/and/go/x"), format!("come{round}/and/go/y"));
        put(&one, &first, b"1");
        read(&other, &first).unwrap();
        one.delete(&bucket(), &key(&first), &DeleteOptions::default()).unwrap();
        match read(&other, &first) {
            // The mount's caches allow both results.
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
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--ignored", "--exact", "holds_a_cluster"]).env(HOLDER, &file);
    let mut holder = command.stdout(Stdio::null()).spawn().unwrap();
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
    assert_eq!(said.trim(), "2", "both mounts exist");
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
    StoreFixture::new(RoundRobinStore::new(FileSystemCluster::MOUNTS.map(open).into()), dir)
}

/// This does not run on NFS, where tags that are replaced within one tick of the server's clock look unchanged to the
/// other client.
fn are_one_in_turn(cluster: &FileSystemCluster) {
    if is_long() && cluster.name != "nfs" {
        without_attribute_cache(cluster);
        run(cluster, &["conformance", "model", "model", "gateway-conformance"]);
    }
}

/// Mounts MooseFS without the attribute cache, in which the metadata of objects may be 30 s old.
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

#[allow(clippy::print_stderr, reason = "how often it held")]
fn one_order(cluster: &FileSystemCluster) {
    let rounds = std::env::var("FORDWAY_ROUNDS").map_or(1, |rounds| rounds.parse().unwrap());
    for round in 0..rounds {
        run(cluster, &["no-registers"]);
        have_one_order(&run(cluster, &["register"; 4]));
        eprintln!("{}: round {round} has one order", cluster.name);
    }
}

/// Removes the keys, because a history begins with no object.
fn remove_registers(_: &Member) {
    let store = strong(0);
    for name in REGISTERS {
        store.delete(&bucket(), &key(name), &DeleteOptions::default()).unwrap();
    }
}

/// Mounts a directory of the shared file system as the bucket of a local root on each node, unless that is done.
fn mount_buckets(cluster: &FileSystemCluster) {
    let [one, other] = LOCAL_ROOTS.map(|root| format!("{root}/bucket"));
    let [shared, seen] = FileSystemCluster::MOUNTS.map(|mount| format!("{mount}/alone"));
    let mounts =
        format!("mkdir -p {one} {other} {shared}; mount --bind {shared} {one}; mount --bind {seen} {other}");
    cluster.task(&format!("set -e; mountpoint -q {one} || {{ {mounts}; }}")).output();
}

fn shared_buckets_of_local_roots(cluster: &FileSystemCluster) {
    mount_buckets(cluster);
    let run = |roles: &[&str]| run_with(cluster, &format!("{ON_LOCAL_ROOTS}=1"), roles);
    for role in ["set-up", "old-tags", "opened", "listed-anew", "directories"] {
        run(&[role]);
    }
    if is_long() {
        have_one_order(&run(&["register"; 4]));
    }
}

fn have_one_order(reports: &[Vec<String>]) {
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
        if let Err(fitting) = order {
            // The events around that point, for each client: the last one that fits, and the next three.
            let around = clients.iter().zip(&fitting).map(|(events, fit)| &events[fit.saturating_sub(1)..]);
            let around: Vec<_> = around.map(|events| &events[..events.len().min(4)]).collect();
            panic!("{name}: after {fitting:?} events nothing fits:\n{around:#?}");
        }
    }
}
