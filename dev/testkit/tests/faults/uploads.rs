//! Tests multipart uploads with a fault during completion: the process is killed, a call fails, or the completion is
//! sent twice concurrently. The sizes of parts are announced, as over HTTP, so parts are written in place into the file
//! that becomes the object.

use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use crate::errors::ON_OPEN_FILES;
use fordway_posix::{Durability, PosixConfig, PosixStore};
use fordway_store::{
    Bucket, CompleteOptions, CompletedPart, Conditions, DeleteOptions, ETag, ErrorKind, ExpectedContent,
    GetOptions, Key, MIN_PART_BYTES, MultipartUploadOperations, ObjectVersionOperations, Objects,
    PartOptions, PartsQuery, PutOptions, PutResult, Result, UploadId, UploadsQuery, VersioningState,
    VersionsQuery,
};
use fordway_sys::fault::{self, FaultInjectionPlan, SyscallFault};
use fordway_sys::{Errno, FileSystemSharing};

const PART_BYTES: usize = MIN_PART_BYTES as usize;
/// The variable that contains the task of a child process, which includes the upload and the number of the call before
/// which the process is killed.
const CHILD: &str = "FORDWAY_TEST_COMPLETE";
/// An upper bound on the number of calls that a completion makes.
const MOST_CALLS: usize = 200;

fn bucket() -> Bucket {
    Bucket::new("bucket").unwrap()
}

fn key() -> Key {
    Key::new("dir/k").unwrap()
}

fn open(dir: &Path) -> PosixStore {
    open_with(dir, Durability::None)
}

fn open_with(dir: &Path, durability: Durability) -> PosixStore {
    PosixStore::open(dir, PosixConfig { durability, ..PosixConfig::default() }).unwrap()
}

fn start(store: &PosixStore) -> UploadId {
    store.create_upload(&bucket(), &key(), &PutOptions::default()).unwrap()
}

fn put_part(store: &PosixStore, upload: &UploadId, number: u16) -> Result<CompletedPart> {
    let options = PartOptions { size_hint: Some(MIN_PART_BYTES), ..Default::default() };
    let mut writer = store.part_writer(&bucket(), &key(), upload, number, &options)?;
    writer.write(&vec![number as u8; PART_BYTES])?;
    Ok(CompletedPart::new(number, writer.commit(&ExpectedContent::default())?.etag))
}

/// The object at the key before the upload is completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Before {
    Nothing,
    Old,
}

const OLD: &[u8] = b"old";

fn complete(
    store: &PosixStore,
    before: Before,
    upload: &UploadId,
    parts: &[CompletedPart],
) -> Result<PutResult> {
    let options = match before {
        Before::Nothing => CompleteOptions::conditions(Conditions::create_only()),
        Before::Old => CompleteOptions::default(),
    };
    store.complete_upload(&bucket(), &key(), upload, parts, &options)
}

/// Creates a bucket with an upload of two parts.
fn prepared(dir: &Path, before: Before) -> (PosixStore, UploadId, Vec<CompletedPart>) {
    let store = open(dir);
    store.create_bucket(&bucket()).unwrap();
    if before == Before::Old {
        store.put(&bucket(), &key(), OLD, &PutOptions::default()).unwrap();
    }
    let upload = start(&store);
    let parts = (1..=2).map(|number| put_part(&store, &upload, number).unwrap()).collect();
    (store, upload, parts)
}

fn body(store: &PosixStore) -> Option<Vec<u8>> {
    let found = store.get(&bucket(), &key(), &GetOptions::default());
    found.ok().map(|object| object.content.into_vec().unwrap())
}

fn whole() -> Vec<u8> {
    [vec![1; PART_BYTES], vec![2; PART_BYTES]].concat()
}

/// Checks that a client that continues with the upload never writes into the object, regardless of how the completion
/// ended.
fn check_after(dir: &Path, before: Before, upload: &UploadId, parts: &[CompletedPart], place: &str) {
    let store = open(dir);
    let shown = body(&store);
    let old = (before == Before::Old).then(|| OLD.to_vec());
    assert!(shown == old || shown == Some(whole()), "{place}: torn");
    let again = complete(&store, before, upload, parts);
    match put_part(&store, upload, 3) {
        Ok(_) => assert!(again.is_err(), "{place}: a part came after the end"),
        Err(error) => assert_eq!(error.kind(), ErrorKind::NoSuchUpload, "{place}"),
    }
    assert!(body(&store) == Some(whole()), "{place}: torn afterwards");
    let again = again.unwrap_or_else(|error| panic!("{place}: sent again: {error}"));
    let info = store.head(&bucket(), &key(), &GetOptions::default()).unwrap();
    assert_eq!(again.etag, info.etag, "{place}");
    let uploads = store.list_uploads(&bucket(), &UploadsQuery::default()).unwrap().uploads;
    assert!(uploads.is_empty(), "{place}: {uploads:?}");
}

/// Completes an upload once for each system call of the completion, and kills the process just before that call.
#[test]
fn a_completion_that_dies_can_be_sent_again() {
    for before in [Before::Nothing, Before::Old] {
        let calls = (1..MOST_CALLS).take_while(|at| dies_at(before, *at)).count();
        assert!((10..MOST_CALLS - 1).contains(&calls), "{before:?}: {calls} calls");
    }
}

fn dies_at(before: Before, at: usize) -> bool {
    let dir = tempfile::tempdir().unwrap();
    let (store, upload, parts) = prepared(dir.path(), before);
    drop(store);
    let died = dies(&[], before, at, (&upload, &parts), dir.path());
    check_after(dir.path(), before, &upload, &parts, &format!("{before:?}, killed before call {at}"));
    died
}

/// Runs the completion in a process that is killed before call number `at`. The system calls in `missing` do not exist.
/// Returns false if the completion made fewer calls.
fn dies(
    missing: &[(&str, Errno)],
    before: Before,
    at: usize,
    (upload, parts): (&UploadId, &[CompletedPart]),
    dir: &Path,
) -> bool {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child
        .args(["--ignored", "--exact", "uploads::the_process_that_dies", "--nocapture"])
        .stdout(Stdio::null());
    let tags: Vec<&str> = parts.iter().map(|part| part.etag.as_str()).collect();
    let (is_old, is_linked) = (u8::from(before == Before::Old), u8::from(!missing.is_empty()));
    let task = format!("{is_old} {is_linked} {at} {} {} {}", upload.as_str(), tags.join(","), dir.display());
    crate::way::is_killed(child.env(CHILD, task))
}

#[test]
#[ignore = "run by another test, as a process of its own"]
fn the_process_that_dies() {
    let Ok(task) = std::env::var(CHILD) else { return };
    let [is_old, is_linked, at, upload, tags, dir] = task.splitn(6, ' ').collect::<Vec<_>>()[..] else {
        panic!("{task}")
    };
    let before = if is_old == "1" { Before::Old } else { Before::Nothing };
    let parts = (1..).zip(tags.split(',')).map(|(number, tag)| CompletedPart::new(number, ETag::new(tag)));
    let (parts, upload) = (parts.collect::<Vec<_>>(), UploadId::new(upload).unwrap());
    let missing = if is_linked == "1" { Assembly::Linked.missing() } else { &[] };
    let plan = FaultInjectionPlan {
        nth: Some((at.parse().unwrap(), SyscallFault::Kill)),
        missing,
        ..FaultInjectionPlan::default()
    };
    fault::run(plan, || complete(&open(Path::new(dir)), before, &upload, &parts)).0.unwrap();
}

/// The way in which the parts of an upload become an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Assembly {
    InPlace,
    /// The parts are copied, because their lengths were not announced.
    Copied,
    /// Like `InPlace`, but on a file system without `RENAME_NOREPLACE`.
    Linked,
}

/// The operation of another client between the completion and its repetition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Later {
    Put,
    Delete,
}

const LATER: &[u8] = b"later";

impl Assembly {
    fn missing(self) -> &'static [(&'static str, Errno)] {
        if self == Assembly::Linked { &[("renameat_with", Errno::INVAL)] } else { &[] }
    }

    /// Creates a bucket that contains only an upload with two parts.
    fn prepared(self, dir: &Path) -> (UploadId, Vec<CompletedPart>) {
        if self != Assembly::Copied {
            let (_, upload, parts) = prepared(dir, Before::Nothing);
            return (upload, parts);
        }
        let store = open(dir);
        store.create_bucket(&bucket()).unwrap();
        let upload = start(&store);
        let part = |number: u16| {
            let options = PartOptions::default();
            let mut writer = store.part_writer(&bucket(), &key(), &upload, number, &options).unwrap();
            writer.write(&vec![number as u8; PART_BYTES]).unwrap();
            CompletedPart::new(number, writer.commit(&ExpectedContent::default()).unwrap().etag)
        };
        let parts = vec![part(1), part(2)];
        (upload, parts)
    }
}

/// Interrupts a completion at each of its calls. Another client then replaces or deletes the object, and the first
/// client sends the completion again.
#[test]
fn a_completion_that_is_sent_again_undoes_no_later_write() {
    let (killed, failed) = (SyscallFault::Kill, SyscallFault::Fail(Errno::IO));
    for assembly in [Assembly::InPlace, Assembly::Copied, Assembly::Linked] {
        for (fault, later) in [(killed, Later::Put), (killed, Later::Delete), (failed, Later::Put)] {
            let calls =
                (1..MOST_CALLS).take_while(|at| is_interrupted_at(assembly, (*at, fault), later)).count();
            assert!((10..MOST_CALLS - 1).contains(&calls), "{assembly:?}: {calls} calls");
        }
    }
}

fn is_interrupted_at(assembly: Assembly, (at, fault): (usize, SyscallFault), later: Later) -> bool {
    let dir = crate::way::scratch();
    let (upload, parts) = assembly.prepared(dir.path());
    let is_done = match fault {
        SyscallFault::Kill => !dies(assembly.missing(), Before::Nothing, at, (&upload, &parts), dir.path()),
        SyscallFault::Fail(_) | SyscallFault::LoseReply(_) => {
            let plan = FaultInjectionPlan {
                nth: Some((at, fault)),
                missing: assembly.missing(),
                ..FaultInjectionPlan::default()
            };
            let store = open(dir.path());
            fault::run(plan, || complete(&store, Before::Nothing, &upload, &parts)).1.len() < at
        }
    };
    let store = open(dir.path());
    let was_published = body(&store) == Some(whole());
    match later {
        Later::Put => drop(store.put(&bucket(), &key(), LATER, &PutOptions::default()).unwrap()),
        Later::Delete => drop(store.delete(&bucket(), &key(), &DeleteOptions::default()).unwrap()),
    }
    let expected = (later == Later::Put).then(|| LATER.to_vec());
    let plan = FaultInjectionPlan { nth: None, missing: assembly.missing(), ..FaultInjectionPlan::default() };
    let (again, _) = fault::run(plan, || {
        store.complete_upload(&bucket(), &key(), &upload, &parts, &CompleteOptions::default())
    });
    let place = format!("{assembly:?}, {later:?}, {fault:?} at call {at}: {again:?}");
    match again {
        Ok(_) => assert!(!was_published && body(&store) == Some(whole()), "{place}"),
        Err(error) => {
            // Without `RENAME_NOREPLACE`, two steps replace the rename. Whether the upload was completed is unknown
            // only between these steps.
            assert!(was_published || assembly == Assembly::Linked, "{place}");
            assert_eq!(error.kind(), ErrorKind::NoSuchUpload, "{place}");
            assert!(body(&store) == expected, "{place}");
        }
    }
    !is_done
}

/// Kills a completion at each of its calls. If no object exists after the kill, the parts are listed, the upload
/// accepts a further part, and a completion with that part succeeds.
#[test]
fn an_upload_whose_completion_died_can_be_continued() {
    for assembly in [Assembly::InPlace, Assembly::Copied] {
        let calls = (1..MOST_CALLS).take_while(|at| is_continued_after(assembly, *at)).count();
        assert!((10..MOST_CALLS - 1).contains(&calls), "{assembly:?}: {calls} calls");
    }
}

fn is_continued_after(assembly: Assembly, at: usize) -> bool {
    let dir = crate::way::scratch();
    let (upload, mut parts) = assembly.prepared(dir.path());
    let died = dies(&[], Before::Nothing, at, (&upload, &parts), dir.path());
    let store = open(dir.path());
    let place = format!("{assembly:?}, killed before call {at}");
    if body(&store).is_some() {
        let refused = put_part(&store, &upload, 3).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::NoSuchUpload, "{place}");
        assert!(body(&store) == Some(whole()), "{place}");
        return died;
    }
    let listed = store.list_parts(&bucket(), &key(), &upload, &PartsQuery::default());
    let listed = listed.unwrap_or_else(|error| panic!("{place}: {error}"));
    assert_eq!(listed.parts.len(), 2, "{place}");
    parts.push(put_part(&store, &upload, 3).unwrap_or_else(|error| panic!("{place}: {error}")));
    complete(&store, Before::Nothing, &upload, &parts).unwrap_or_else(|error| panic!("{place}: {error}"));
    assert!(body(&store) == Some([whole(), vec![3; PART_BYTES]].concat()), "{place}");
    assert!(store.list_uploads(&bucket(), &UploadsQuery::default()).unwrap().uploads.is_empty(), "{place}");
    died
}

/// A completion dies, or is refused, after `cp -al` has given the upload's file a second name. The upload can be
/// continued and completed, and the copy does not change.
#[test]
fn an_upload_whose_file_has_a_second_name_can_be_continued() {
    for assembly in [Assembly::InPlace, Assembly::Copied] {
        let calls = (1..MOST_CALLS).take_while(|at| is_continued_beside_copy(assembly, Some(*at))).count();
        assert!((10..MOST_CALLS - 1).contains(&calls), "{assembly:?}: {calls} calls");
        is_continued_beside_copy(assembly, None);
    }
}

/// Interrupts the first completion before call `at`, or lets it fail because of a wrong ETag. Returns whether the
/// completion was interrupted.
fn is_continued_beside_copy(assembly: Assembly, at: Option<usize>) -> bool {
    let dir = crate::way::scratch();
    let (upload, mut parts) = assembly.prepared(dir.path());
    let files = dir.path().join("bucket/.fordway/mpu").join(upload.as_str());
    let copy = dir.path().join("copy");
    std::fs::create_dir(&copy).unwrap();
    for name in std::fs::read_dir(&files).unwrap().map(|entry| entry.unwrap().file_name()) {
        std::fs::hard_link(files.join(&name), copy.join(&name)).unwrap();
    }
    let copied = std::fs::read(copy.join("data")).unwrap();
    let store = open(dir.path());
    let place = format!("{assembly:?}, {at:?}");
    let died = match at {
        Some(at) => dies(&[], Before::Nothing, at, (&upload, &parts), dir.path()),
        None => {
            let wrong = [parts[0].clone(), CompletedPart::new(2, ETag::new("wrong"))];
            let refused = complete(&store, Before::Nothing, &upload, &wrong).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::InvalidPart, "{place}");
            true
        }
    };
    let mut expected = whole();
    if body(&store).is_none() {
        parts.push(put_part(&store, &upload, 3).unwrap_or_else(|error| panic!("{place}: {error}")));
        expected.extend(vec![3; PART_BYTES]);
    }
    complete(&store, Before::Nothing, &upload, &parts).unwrap_or_else(|error| panic!("{place}: {error}"));
    assert!(body(&store) == Some(expected), "{place}");
    assert!(store.list_uploads(&bucket(), &UploadsQuery::default()).unwrap().uploads.is_empty(), "{place}");
    assert!(std::fs::read(copy.join("data")).unwrap() == copied, "{place}");
    died
}

/// Makes each system call of a completion fail once, after another completion of the upload has died. The parts are
/// kept, so the next completion succeeds.
#[test]
fn a_second_completion_that_fails_loses_no_part() {
    for errno in [Errno::IO, Errno::NOMEM] {
        let calls = (1..MOST_CALLS).take_while(|at| second_fails_at(*at, errno)).count();
        assert!((10..MOST_CALLS - 1).contains(&calls), "{errno}: {calls} calls");
    }
}

fn second_fails_at(at: usize, errno: Errno) -> bool {
    let dir = crate::way::scratch();
    let (upload, parts) = Assembly::InPlace.prepared(dir.path());
    let files = dir.path().join("bucket/.fordway/mpu").join(upload.as_str());
    std::fs::rename(files.join("upload"), files.join("closed")).unwrap();
    let store = open(dir.path());
    let plan = FaultInjectionPlan { nth: Some((at, SyscallFault::Fail(errno))), ..Default::default() };
    let (done, calls) = fault::run(plan, || complete(&store, Before::Nothing, &upload, &parts));
    let place = format!("call {at}, {:?}: {errno}: {done:?}", calls.get(at - 1));
    let kind = done.map(drop).map_err(|error| error.kind());
    assert!(kind != Err(ErrorKind::NoSuchUpload), "{place}");
    check_after(dir.path(), Before::Nothing, &upload, &parts, &place);
    calls.len() >= at
}

/// Makes each system call of a part fail once. The error never says that the upload has ended, because clients then
/// abort the whole transfer.
#[test]
fn a_part_that_fails_does_not_end_the_upload() {
    let (mut at, mut is_reached) = (0, true);
    while is_reached && at < MOST_CALLS {
        at += 1;
        let dir = crate::way::scratch();
        let (store, upload, _) = prepared(dir.path(), Before::Nothing);
        let errno = if at % 2 == 0 { Errno::IO } else { Errno::MFILE };
        let plan = FaultInjectionPlan { nth: Some((at, SyscallFault::Fail(errno))), ..Default::default() };
        let (put, calls) = fault::run(plan, || {
            let options = PartOptions { size_hint: Some(MIN_PART_BYTES), ..Default::default() };
            let mut writer = store.part_writer(&bucket(), &key(), &upload, 3, &options)?;
            writer.write(&vec![3; PART_BYTES])?;
            // This part is slow, so the store looks up its directory again.
            thread::sleep(std::time::Duration::from_millis(12));
            writer.commit(&ExpectedContent::default()).map(drop)
        });
        let place = format!("call {at}, {:?}: {errno}: {put:?}", calls.get(at - 1));
        let kind = put.map_err(|error| error.kind());
        assert!(!matches!(kind, Err(ErrorKind::NoSuchUpload | ErrorKind::NoSuchKey)), "{place}");
        put_part(&store, &upload, 3).unwrap_or_else(|error| panic!("{place}: sent again: {error}"));
        is_reached = calls.len() >= at;
    }
    assert!((10..MOST_CALLS).contains(&at), "{at}");
}

/// Makes each system call of the completion fail once. Durability is `full`.
#[test]
fn a_completion_that_fails_leaves_no_way_into_the_object() {
    for before in [Before::Nothing, Before::Old] {
        let calls = (1..MOST_CALLS).take_while(|at| fails_at(before, *at)).count();
        assert!((10..MOST_CALLS - 1).contains(&calls), "{before:?}: {calls} calls");
    }
}

fn fails_at(before: Before, at: usize) -> bool {
    let dir = tempfile::tempdir().unwrap();
    let (_, upload, parts) = prepared(dir.path(), before);
    let store = open_with(dir.path(), Durability::Full);
    let plan = FaultInjectionPlan {
        nth: Some((at, SyscallFault::Fail(Errno::IO))),
        ..FaultInjectionPlan::default()
    };
    let (_, calls) = fault::run(plan, || complete(&store, before, &upload, &parts));
    check_after(dir.path(), before, &upload, &parts, &format!("{before:?}, call {at} failed"));
    calls.len() >= at
}

/// A client repeats the completion without waiting for the response. All completions return the same result, and only
/// one version is created.
#[test]
fn a_completion_that_is_sent_twice_at_once_is_one() {
    for round in 0..60 {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path());
        store.create_bucket(&bucket()).unwrap();
        store.set_versioning(&bucket(), VersioningState::Enabled).unwrap();
        let upload = start(&store);
        let parts = [put_part(&store, &upload, 1).unwrap()];
        let done: Vec<PutResult> = thread::scope(|scope| {
            let (upload, parts, dir) = (&upload, &parts, dir.path());
            let all = [(); 4].map(|()| {
                scope.spawn(move || {
                    let options = CompleteOptions::default();
                    open(dir).complete_upload(&bucket(), &key(), upload, parts, &options)
                })
            });
            all.map(|each| each.join().unwrap().unwrap_or_else(|error| panic!("round {round}: {error}")))
                .into()
        });
        assert!(done.iter().all(|each| *each == done[0]), "round {round}: {done:?}");
        let versions = store.list_versions(&bucket(), &VersionsQuery::default()).unwrap().versions;
        assert_eq!(versions.len(), 1, "round {round}");
        assert_eq!(Some(&versions[0].version), done[0].version.as_ref(), "round {round}");
        assert!(store.list_uploads(&bucket(), &UploadsQuery::default()).unwrap().uploads.is_empty());
    }
}

/// On file systems that other nodes may change, parts are written into one file only if no page belongs to two parts.
#[test]
fn parts_that_would_share_a_page_are_in_files_of_their_own() {
    let plan = |sharing| FaultInjectionPlan { sharing: Some(sharing), ..FaultInjectionPlan::default() };
    for (sharing, excess, are_apart) in [
        (FileSystemSharing::Local, 1, false),
        (FileSystemSharing::Nfs, 0, false),
        (FileSystemSharing::Nfs, 1, true),
        (FileSystemSharing::Unknown, 4096, true),
    ] {
        let dir = crate::way::scratch();
        let size = PART_BYTES + excess;
        fault::run(plan(sharing), || {
            let store = open(dir.path());
            store.create_bucket(&bucket()).unwrap();
            let upload = start(&store);
            let parts = [1, 2].map(|number| {
                let options = PartOptions { size_hint: Some(size as u64), ..Default::default() };
                let mut writer = store.part_writer(&bucket(), &key(), &upload, number, &options).unwrap();
                writer.write(&vec![number as u8; size]).unwrap();
                CompletedPart::new(number, writer.commit(&ExpectedContent::default()).unwrap().etag)
            });
            let at = dir.path().join("bucket/.fordway/mpu").join(upload.as_str());
            let names = std::fs::read_dir(at).unwrap().map(|entry| entry.unwrap().file_name());
            let apart = names.filter(|name| name.to_str().is_some_and(|name| name.contains('-'))).count();
            // Subtract 1, because the name `part-size` also contains a hyphen.
            assert_eq!(apart - 1, if are_apart { 2 } else { 0 }, "{sharing:?}, {excess}");
            let options = CompleteOptions::default();
            store.complete_upload(&bucket(), &key(), &upload, &parts, &options).unwrap();
            assert!(body(&store) == Some([vec![1; size], vec![2; size]].concat()), "{sharing:?}, {excess}");
        });
    }
}

/// If a client announces a part of any length and then disconnects, the upload can still be completed.
#[test]
fn a_length_that_nobody_sends_takes_no_place() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    store.create_bucket(&bucket()).unwrap();
    for announced in [u64::MAX, 1 << 63, i64::MAX as u64 / 2] {
        let upload = start(&store);
        let options = PartOptions { size_hint: Some(announced), ..Default::default() };
        drop(store.part_writer(&bucket(), &key(), &upload, 3, &options).unwrap());
        let parts: Vec<_> = [1, 2, 3].map(|number| put_part(&store, &upload, number).unwrap()).into();
        let done = store.complete_upload(&bucket(), &key(), &upload, &parts, &CompleteOptions::default());
        done.unwrap_or_else(|error| panic!("{announced}: {error}"));
        assert!(body(&store) == Some([whole(), vec![3; PART_BYTES]].concat()), "{announced}");
    }
}

/// Makes every call on an open file fail once with `NOENT`, which the client of GlusterFS may return when another node
/// has removed or replaced the file. A completion must try again, or return an error after which clients try again.
#[test]
fn a_completion_outlasts_open_files_that_the_server_no_longer_has() {
    let run = |nth| {
        let dir = crate::way::scratch();
        let (store, upload, parts) = prepared(dir.path(), Before::Old);
        let plan = FaultInjectionPlan {
            nth,
            sharing: Some(FileSystemSharing::Unknown),
            ..FaultInjectionPlan::default()
        };
        let (done, calls) = fault::run(plan, || complete(&store, Before::Old, &upload, &parts));
        (dir, upload, parts, done, calls)
    };
    let (.., calls) = run(None);
    let mut failed = 0;
    for at in 0..calls.len() {
        let fault = (at + 1, SyscallFault::Fail(Errno::NOENT));
        if !ON_OPEN_FILES.contains(&calls[at]) {
            continue;
        }
        let (dir, upload, parts, done, made) = run(Some(fault));
        let place = format!("call {at}, {}", made[at]);
        if ON_OPEN_FILES.contains(&made[at]) {
            failed += 1;
            let kind = done.map(drop).map_err(|error| error.kind());
            assert!(matches!(kind, Ok(()) | Err(ErrorKind::ConditionalConflict)), "{place}: {kind:?}");
        }
        check_after(dir.path(), Before::Old, &upload, &parts, &place);
    }
    assert!(failed > 5, "{calls:?}");
}
