//! Tests the journal of events: which changes it records, and which files of other programs it accepts as records.

use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use fordway_posix::{
    EventJournal, FsckEvent, FsckOptions, GcEvent, GcOptions, LifecycleOptions, PosixConfig, PosixStore,
    ReadEvents, StoredEvent,
};
use fordway_store::{
    Bucket, BucketDocumentKind, BucketDocumentOperations, CompleteOptions, CompletedPart, CopyOptions,
    DeleteOptions, ErrorKind, ExpectedContent, Key, MultipartUploadOperations, ObjectRenameOperations,
    ObjectTagOperations, ObjectVersionOperations, Objects, PartOptions, PutOptions, RenameOptions, Tags,
    VersionId, VersioningState,
};

const KIND: BucketDocumentKind = BucketDocumentKind::known("notification");
const ALL: [&str; 4] = ["ObjectCreated", "ObjectRemoved", "LifecycleExpiration", "ObjectTagging"];
const LONG: Duration = Duration::from_secs(3600);

fn key(key: &str) -> Key {
    Key::new(key).unwrap()
}

fn rule(webhook: &str, events: &[&str], affixes: &[(&str, &str)]) -> String {
    let events: String = events.iter().map(|event| format!("<Event>s3:{event}</Event>")).collect();
    let affix = |(name, value): &(&str, &str)| {
        format!("<FilterRule><Name>{name}</Name><Value>{value}</Value></FilterRule>")
    };
    let affixes: String = affixes.iter().map(affix).collect();
    format!(
        "<QueueConfiguration><Queue>arn:fordway:sqs::{webhook}:webhook</Queue>{events}\
         <Filter><S3Key>{affixes}</S3Key></Filter></QueueConfiguration>"
    )
}

struct Rig {
    dir: tempfile::TempDir,
    store: PosixStore,
    bucket: Bucket,
}

impl Rig {
    /// Returns a store with a bucket that reports all events to the webhook `ci`.
    fn new() -> Self {
        let rig = Rig::unreported();
        let all = ALL.map(|class| format!("{class}:*"));
        rig.configure(&rule("ci", &all.each_ref().map(String::as_str), &[]));
        rig
    }

    fn unreported() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = PosixStore::open(dir.path(), PosixConfig::default()).unwrap();
        let bucket = Bucket::new("results").unwrap();
        store.create_bucket(&bucket).unwrap();
        Rig { dir, store, bucket }
    }

    fn configure(&self, rules: &str) {
        let document = format!("<NotificationConfiguration>{rules}</NotificationConfiguration>");
        self.store.set_document(&self.bucket, &KIND, document.as_bytes()).unwrap();
    }

    fn journal(&self) -> EventJournal {
        EventJournal::of(&self.store)
    }

    fn spool(&self) -> PathBuf {
        self.dir.path().join("results/.fordway/events")
    }

    fn put(&self, name: &str, body: &str) -> Option<VersionId> {
        let made = self.store.put(&self.bucket, &key(name), body.as_bytes(), &PutOptions::default());
        made.unwrap().version
    }

    fn delete(&self, name: &str, version: Option<VersionId>) -> Option<VersionId> {
        let options = DeleteOptions { version, ..Default::default() };
        self.store.delete(&self.bucket, &key(name), &options).unwrap().version
    }

    /// Reads the records that wait for a webhook.
    fn read(&self, webhook: &str) -> ReadEvents {
        let names = self.journal().waiting(&self.bucket, webhook, None, 1000).unwrap().names;
        self.journal().read(&self.bucket, webhook, &names, LONG).unwrap()
    }

    /// Returns the events that wait for the webhook `ci`, and removes them.
    fn take(&self) -> Vec<StoredEvent> {
        let found = self.read("ci");
        assert_eq!((found.expired, found.unwanted, found.ignored), (0, 0, 0));
        self.journal().remove(&self.bucket, &found.events).unwrap();
        assert_eq!(std::fs::read_dir(self.spool()).unwrap().count(), 0);
        found.events
    }

    /// Returns the names and keys of the events that wait, and removes them.
    fn names(&self) -> Vec<(&'static str, String)> {
        self.take().into_iter().map(|event| (event.record.kind.name(), event.record.key)).collect()
    }
}

fn pair(name: &'static str, key: &str) -> (&'static str, String) {
    (name, key.to_owned())
}

#[test]
fn a_change_after_the_rules_were_removed_is_not_recorded() {
    let rig = Rig::new();
    // This store represents another process, which has cached the rules at its last put.
    let other = PosixStore::open(rig.dir.path(), PosixConfig::default()).unwrap();
    let put = |name: &str| {
        other.put(&rig.bucket, &key(name), b"hello", &PutOptions::default()).unwrap();
    };
    for _ in 0..5 {
        put("reported");
        rig.store.delete_document(&rig.bucket, &KIND).unwrap();
        put("unreported");
        rig.configure(&rule("ci", &["ObjectCreated:*"], &[]));
        assert_eq!(rig.names(), [pair("ObjectCreated:Put", "reported")]);
    }
}

#[test]
fn each_change_has_its_record() {
    let rig = Rig::new();
    let (store, b) = (&rig.store, &rig.bucket);
    rig.put("a", "hello");
    let events = rig.take();
    let [event] = &events[..] else { panic!("{events:?}") };
    let head = store.head(b, &key("a"), &Default::default()).unwrap();
    assert_eq!(event.record.bucket, "results");
    assert_eq!(event.record.size, Some(5));
    assert_eq!(event.record.etag.as_deref(), Some(head.etag.as_str()));
    assert_eq!((event.record.version.clone(), event.rule.as_str()), (None, "event-1"));
    assert_eq!(event.writer, fordway_sys::user_id());

    store.copy((b, &key("a")), b, &key("d/b"), &CopyOptions::default()).unwrap();
    store.set_tags(b, &key("a"), None, &[("k".to_owned(), "v".to_owned())].into()).unwrap();
    store.set_tags(b, &key("a"), None, &Tags::new()).unwrap();
    store.rename(b, &key("d/b"), &key("d/c"), &RenameOptions::default()).unwrap();
    rig.put("folder/", "");
    rig.put("a", "again");
    rig.put("a/odd", "1");
    rig.delete("a", None);
    rig.delete("missing", None);
    assert_eq!(
        rig.names(),
        [
            pair("ObjectCreated:Copy", "d/b"),
            pair("ObjectTagging:Put", "a"),
            pair("ObjectTagging:Delete", "a"),
            pair("ObjectCreated:Copy", "d/c"),
            pair("ObjectRemoved:Delete", "d/b"),
            pair("ObjectCreated:Put", "folder/"),
            pair("ObjectCreated:Put", "a"),
            pair("ObjectCreated:Put", "a/odd"),
            pair("ObjectRemoved:Delete", "a"),
            pair("ObjectRemoved:Delete", "missing"),
        ]
    );
    let failed = PutOptions { conditions: fordway_store::Conditions::create_only(), ..Default::default() };
    store.put(b, &key("a/odd"), b"2", &failed).unwrap_err();
    let mut writer = store.writer(b, &key("form"), &PutOptions::default()).unwrap();
    writer.note_form();
    writer.write(b"x").unwrap();
    writer.commit(&ExpectedContent::default()).unwrap();
    store.put_many_for_test(b);
    assert_eq!(rig.names()[0], pair("ObjectCreated:Post", "form"));
}

trait PutMany {
    fn put_many_for_test(&self, bucket: &Bucket);
}

impl PutMany for PosixStore {
    fn put_many_for_test(&self, bucket: &Bucket) {
        use fordway_store::ObjectBatchOperations as _;
        let objects: Vec<_> = (0..3).map(|at| (key(&format!("many{at}")), &b"x"[..])).collect();
        self.put_many(bucket, &objects, &PutOptions::default())
            .into_iter()
            .for_each(|made| drop(made.unwrap()));
    }
}

#[test]
fn uploads_are_recorded_when_they_are_complete() {
    let rig = Rig::new();
    let (store, b, k) = (&rig.store, &rig.bucket, key("big"));
    for sizes in [vec![6 << 20, 5], vec![5 << 20, 6 << 20, 1]] {
        let upload = store.create_upload(b, &k, &PutOptions::default()).unwrap();
        let mut parts = Vec::new();
        for (at, size) in sizes.iter().enumerate() {
            let number = at as u16 + 1;
            let mut writer = store.part_writer(b, &k, &upload, number, &PartOptions::default()).unwrap();
            writer.write(&vec![1; *size]).unwrap();
            let etag = writer.commit(&ExpectedContent::default()).unwrap().etag;
            parts.push(CompletedPart { number, etag, checksum: None });
        }
        assert_eq!(EventJournal::of(store).waiting(b, "ci", None, 10).unwrap().total, 0);
        let complete = || store.complete_upload(b, &k, &upload, &parts, &CompleteOptions::default());
        complete().unwrap();
        let events = rig.take();
        let [event] = &events[..] else { panic!("{events:?}") };
        assert_eq!(event.record.kind.name(), "ObjectCreated:CompleteMultipartUpload");
        assert_eq!(event.record.size, Some(sizes.iter().sum::<usize>() as u64));
        // A client that received no response repeats the completion, and the first event may be missing.
        complete().unwrap();
        assert_eq!(rig.names(), [pair("ObjectCreated:CompleteMultipartUpload", "big")]);
    }
}

#[test]
fn versions_have_ascending_sequencers() {
    let rig = Rig::new();
    rig.store.set_versioning(&rig.bucket, VersioningState::Enabled).unwrap();
    let mut versions: Vec<_> = (0..3).map(|at| rig.put("k", &at.to_string())).collect();
    versions.push(rig.delete("k", None));
    versions.push(rig.put("k", "3"));
    rig.delete("k", versions[1].clone());
    let events = rig.take();
    let found: Vec<_> =
        events.iter().map(|event| (event.record.kind.name(), &event.record.version)).collect();
    let created = "ObjectCreated:Put";
    let names =
        [created, created, created, "ObjectRemoved:DeleteMarkerCreated", created, "ObjectRemoved:Delete"];
    for (at, (name, version)) in found.iter().enumerate() {
        let expected = versions.get(at).unwrap_or(&versions[1]).as_ref().map(VersionId::as_str);
        assert_eq!((*name, version.as_deref()), (names[at], expected));
    }
    assert!(events.is_sorted_by(|one, two| one.record.time_ns < two.record.time_ns));
}

#[test]
fn a_rule_selects_events_and_keys_and_a_new_rule_counts_at_once() {
    let rig = Rig::unreported();
    rig.put("in/0.root", "before");
    assert!(!rig.spool().exists() && !rig.dir.path().join("results/.fordway/markers").exists());
    let [one, two] = [("ci", "in/"), ("logs", "out/")].map(|(webhook, prefix)| {
        rule(webhook, &["ObjectCreated:Put"], &[("prefix", prefix), ("suffix", ".root")])
    });
    rig.configure(&(one + &two));
    // No writer uses the earlier state after the configuration was set.
    for name in ["in/1.root", "in/1.txt", "out/1.root", "1.root"] {
        rig.put(name, "x");
    }
    rig.delete("in/1.root", None);
    let found: BTreeMap<&str, Vec<String>> = ["ci", "logs", "other"]
        .map(|webhook| {
            (webhook, rig.read(webhook).events.into_iter().map(|event| event.record.key).collect())
        })
        .into();
    assert_eq!(found["ci"], ["in/1.root"]);
    assert_eq!(found["logs"], ["out/1.root"]);
    assert!(found["other"].is_empty());
    // The rules that apply to waiting events are the bucket's rules at the time of the read.
    rig.configure(&rule("logs", &["ObjectCreated:*"], &[("prefix", "in/")]));
    assert_eq!((rig.read("ci").unwanted, rig.read("logs").unwanted), (1, 1));
    rig.store.delete_document(&rig.bucket, &KIND).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    rig.put("in/2.root", "x");
    assert_eq!(std::fs::read_dir(rig.spool()).unwrap().count(), 0);
}

#[test]
fn lifecycle_rules_have_events_of_their_own() {
    let rig = Rig::new();
    let lifecycle = "<LifecycleConfiguration><Rule><Prefix></Prefix><Status>Enabled</Status><Expiration><Days>1</Days>\
                     </Expiration><NoncurrentVersionExpiration><NoncurrentDays>1</NoncurrentDays>\
                     </NoncurrentVersionExpiration></Rule></LifecycleConfiguration>";
    rig.store
        .set_document(&rig.bucket, &BucketDocumentKind::known("lifecycle"), lifecycle.as_bytes())
        .unwrap();
    let run = || {
        std::thread::sleep(Duration::from_millis(20));
        let options = LifecycleOptions { day: Duration::from_nanos(1), ..Default::default() };
        rig.store.run_lifecycle(&options, &mut |_| Ok(())).unwrap()
    };
    rig.put("k", "1");
    run();
    assert_eq!(rig.names(), [pair("ObjectCreated:Put", "k"), pair("LifecycleExpiration:Delete", "k")]);
    rig.store.set_versioning(&rig.bucket, VersioningState::Enabled).unwrap();
    rig.put("k", "2");
    run();
    run();
    let names: Vec<_> = rig.names().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names[..2], ["ObjectCreated:Put", "LifecycleExpiration:DeleteMarkerCreated"]);
    assert!(
        names[2..].iter().all(|name| *name == "LifecycleExpiration:Delete") && names.len() > 2,
        "{names:?}"
    );
}

/// A change whose record cannot be written is refused before it is made.
#[test]
fn without_room_for_the_record_nothing_changes() {
    let rig = Rig::new();
    rig.put("k", "old");
    rig.take();
    // A file at the path of the journal's directory makes the journal unusable.
    std::fs::remove_dir(rig.spool()).unwrap();
    std::fs::write(rig.spool(), "in the way").unwrap();
    std::thread::sleep(Duration::from_millis(30));
    let put = rig.store.put(&rig.bucket, &key("k"), b"new", &PutOptions::default());
    assert!(put.is_err(), "{put:?}");
    let deleted = rig.store.delete(&rig.bucket, &key("k"), &DeleteOptions::default());
    assert!(deleted.is_err(), "{deleted:?}");
    let mut content = Vec::new();
    rig.store.read(&rig.bucket, &key("k"), &Default::default(), &mut content).unwrap();
    assert_eq!(content, b"old");
}

#[test]
fn a_configuration_of_another_user_is_ignored() {
    if !fordway_needs::root("to own files as other users") {
        return;
    }
    let rig = Rig::new();
    let document = rig.dir.path().join("results/.fordway/document-notification");
    std::os::unix::fs::chown(&document, Some(4242), None).unwrap();
    std::os::unix::fs::chown(rig.dir.path().join("results"), Some(1000), None).unwrap();
    std::thread::sleep(Duration::from_millis(30));
    rig.put("k", "x");
    assert_eq!(std::fs::read_dir(rig.spool()).unwrap().count(), 0);
    std::os::unix::fs::chown(&document, Some(1000), None).unwrap();
    std::thread::sleep(Duration::from_millis(30));
    rig.put("k", "x");
    assert_eq!(rig.read("ci").events.len(), 1);
    std::fs::set_permissions(&document, PermissionsExt::from_mode(0o666)).unwrap();
    std::thread::sleep(Duration::from_millis(30));
    rig.put("l", "x");
    // The earlier event waits until the owner repairs the configuration.
    let names = rig.journal().waiting(&rig.bucket, "ci", None, 10).unwrap().names;
    let error = rig.journal().read(&rig.bucket, "ci", &names, LONG).unwrap_err();
    assert_eq!((error.kind(), names.len()), (ErrorKind::AccessDenied, 1), "{error}");
    std::fs::set_permissions(&document, PermissionsExt::from_mode(0o644)).unwrap();
    assert_eq!(rig.read("ci").events.len(), 1);
}

/// Creates entries that a hostile user could create, and checks that only the real record is delivered.
#[test]
fn hostile_entries_are_ignored() {
    let rig = Rig::new();
    rig.put("real", "x");
    let spool = rig.spool();
    let real = std::fs::read_dir(&spool).unwrap().next().unwrap().unwrap().path();
    let record = std::fs::read_to_string(&real).unwrap();
    let name = |number: u32| spool.join(format!("{:016x}-{:016x}-ci", 1, number));
    let secret = rig.dir.path().join("secret");
    std::fs::write(&secret, &record).unwrap();
    symlink(&secret, name(1)).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, name(2), rustix::fs::Mode::from_raw_mode(0o666)).unwrap();
    std::fs::create_dir(name(3)).unwrap();
    std::fs::File::create(name(4)).unwrap().set_len(1 << 30).unwrap();
    std::fs::write(name(5), "nonsense").unwrap();
    std::fs::hard_link(&secret, name(6)).unwrap();
    std::fs::write(name(7), record.replace("bucket results", "bucket another")).unwrap();
    std::fs::write(spool.join("not-an-event"), &record).unwrap();
    let found = rig.read("ci");
    let keys: Vec<_> = found.events.iter().map(|event| event.record.key.as_str()).collect();
    assert_eq!((keys, found.ignored, found.unwanted), (vec!["real"], 6, 0));
    assert!(std::fs::symlink_metadata(name(1)).unwrap().is_symlink(), "it is kept");
    // Old entries are removed, except directories.
    std::thread::sleep(Duration::from_millis(20));
    let names = rig.journal().waiting(&rig.bucket, "ci", None, 1000).unwrap().names;
    let expired = rig.journal().read(&rig.bucket, "ci", &names, Duration::from_millis(1)).unwrap().expired;
    assert_eq!((expired, std::fs::read(&secret).unwrap().len()), (7, record.len()));
    assert!(name(3).is_dir() && spool.join("not-an-event").exists());
}

/// The event names the owner of the record's file, regardless of the file's content.
#[test]
fn the_user_of_an_event_is_the_owner_of_its_record() {
    if !fordway_needs::root("to own files as other users") {
        return;
    }
    let rig = Rig::new();
    rig.put("k", "x");
    let path = std::fs::read_dir(rig.spool()).unwrap().next().unwrap().unwrap().path();
    std::os::unix::fs::chown(&path, Some(4242), None).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    for name in ["results", "results/.fordway/document-notification", "results/.fordway/events"] {
        std::os::unix::fs::chown(rig.dir.path().join(name), Some(1000), None).unwrap();
    }
    assert_eq!(std::fs::metadata(&path).unwrap().uid(), 4242);
    let found = rig.read("ci");
    assert_eq!((found.events.len(), found.events[0].writer), (1, 4242));
}

/// A record that cannot be removed after its delivery would be delivered repeatedly.
#[test]
fn a_record_that_cannot_be_removed_is_not_delivered() {
    if !fordway_needs::root("to own files as other users") {
        return;
    }
    let rig = Rig::new();
    rig.put("k", "x");
    let path = std::fs::read_dir(rig.spool()).unwrap().next().unwrap().unwrap().path();
    let own = |path: &std::path::Path, user: u32| std::os::unix::fs::chown(path, Some(user), None).unwrap();
    own(&rig.dir.path().join("results"), 1000);
    own(&rig.dir.path().join("results/.fordway/document-notification"), 1000);
    own(&path, 4242);
    own(&rig.spool(), 2000);
    std::fs::set_permissions(rig.spool(), PermissionsExt::from_mode(0o755)).unwrap();
    let found = rig.read("ci");
    assert_eq!((found.events.len(), found.stuck, path.exists()), (0, 1, true));
    // An old record that cannot be removed does not block other records.
    std::thread::sleep(Duration::from_millis(20));
    let names = rig.journal().waiting(&rig.bucket, "ci", None, 10).unwrap().names;
    let found = rig.journal().read(&rig.bucket, "ci", &names, Duration::from_millis(1)).unwrap();
    assert_eq!((found.expired, found.stuck), (0, 1));
    // In a directory with the sticky bit, the owner of the record may remove it.
    std::fs::set_permissions(rig.spool(), PermissionsExt::from_mode(0o1777)).unwrap();
    let found = rig.read("ci");
    assert_eq!((found.events.len(), found.stuck), (1, 0));
    rig.journal().remove(&rig.bucket, &found.events).unwrap();
    assert!(!path.exists());
}

#[test]
fn an_error_for_one_record_does_not_keep_the_others() {
    let rig = Rig::new();
    rig.put("k", "x");
    let mut events = rig.read("ci").events;
    let mut bad = events[0].clone();
    bad.name = "x".repeat(300);
    events.insert(0, bad);
    rig.journal().remove(&rig.bucket, &events).unwrap_err();
    assert_eq!(std::fs::read_dir(rig.spool()).unwrap().count(), 0);
}

/// The gateway must be able to read records even if the writer runs as another user.
#[test]
fn a_record_can_be_read_whatever_the_umask_is() {
    // The umask belongs to the process, so another process runs this test with its own umask.
    if std::env::var_os("FORDWAY_TEST_UMASK").is_none() {
        let test = std::env::current_exe().unwrap();
        let script = "umask 077; exec \"$0\" --exact a_record_can_be_read_whatever_the_umask_is";
        let mut shell = std::process::Command::new("sh");
        let done = shell.arg("-c").arg(script).arg(test).env("FORDWAY_TEST_UMASK", "1").output().unwrap();
        assert!(done.status.success(), "{done:?}");
        return;
    }
    let rig = Rig::new();
    rig.put("k", "x");
    let path = std::fs::read_dir(rig.spool()).unwrap().next().unwrap().unwrap().path();
    assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o7777, 0o644);
}

#[test]
fn an_unreadable_record_is_counted() {
    if !fordway_needs::root("to own files as other users") {
        return;
    }
    let rig = Rig::new();
    rig.put("k", "x");
    let path = std::fs::read_dir(rig.spool()).unwrap().next().unwrap().unwrap().path();
    for name in ["results", "results/.fordway/document-notification", "results/.fordway/events"] {
        std::os::unix::fs::chown(rig.dir.path().join(name), Some(1000), None).unwrap();
    }
    // Only root may read this file.
    std::os::unix::fs::chown(&path, Some(4242), None).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o000)).unwrap();
    let found = rig.read("ci");
    assert_eq!((found.events.len(), found.unreadable, found.ignored), (0, 1, 0));
}

/// A record counts only if its owner has certainly written it: nobody else may write to the file, and where others may
/// rename files, the file has its owner's mark.
#[test]
fn a_record_that_others_may_have_written_or_moved_is_ignored() {
    let rig = Rig::new();
    let counts = || {
        let found = rig.read("ci");
        (found.events.len(), found.ignored)
    };
    rig.put("k", "x");
    let record = std::fs::read_dir(rig.spool()).unwrap().next().unwrap().unwrap().path();
    mode(&record, 0o664);
    assert_eq!(counts(), (0, 1));
    mode(&record, 0o644);
    assert_eq!(counts(), (1, 0));
    for name in ["results", "results/.fordway", "results/.fordway/events"] {
        mode(&rig.dir.path().join(name), 0o777);
    }
    rig.configure(&rule("ci", &["ObjectCreated:*"], &[]));
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(counts(), (0, 1), "the record has no mark");
    std::fs::remove_file(record).unwrap();
    rig.put("k", "y");
    assert_eq!(counts(), (1, 0));
    let record = std::fs::read_dir(rig.spool()).unwrap().next().unwrap().unwrap().path();
    let aside = rig.dir.path().join("aside");
    std::thread::sleep(Duration::from_millis(2500));
    assert_eq!(counts(), (1, 0), "the mark stays valid");
    std::fs::rename(&record, &aside).unwrap();
    std::fs::rename(&aside, &record).unwrap();
    assert_eq!(counts(), (0, 1), "the record was renamed");
    // The bucket was opened to others after the first files of `.fordway` were created.
    let is_about_mode = |kind: &str| kind == "closed-private";
    assert_eq!(findings(&rig).iter().filter(|(kind, _)| !is_about_mode(kind)).count(), 1);
}

/// Writes `name` to the rig's bucket as a user in the group 4300. Returns the error's message.
fn put_as_member(rig: &Rig, name: &str) -> Result<(), String> {
    // The member has a separate store, as a separate process would.
    let (root, bucket, key) = (rig.dir.path().to_owned(), rig.bucket.clone(), key(name));
    let member = fordway_sys::PeerCredentials { uid: 4242, gid: 4242, groups: vec![4300] };
    let put = move || {
        fordway_sys::act_as(&member).unwrap();
        let store = PosixStore::open(&root, PosixConfig::default()).unwrap();
        store.put(&bucket, &key, b"x", &PutOptions::default()).map(drop)
    };
    std::thread::spawn(put).join().unwrap().map_err(|error| error.to_string())
}

fn mode(path: &std::path::Path, mode: u32) {
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
}

#[test]
fn a_bucket_that_is_opened_to_a_group_later_gets_its_events_directory_opened() {
    if !fordway_needs::root("to act as other users") {
        return;
    }
    let rig = Rig::unreported();
    mode(rig.dir.path(), 0o755);
    let at = rig.dir.path().join("results");
    mode(&at, 0o755);
    let rules = rule("ci", &["ObjectCreated:*"], &[]);
    rig.configure(&rules);
    std::os::unix::fs::chown(&at, None, Some(4300)).unwrap();
    mode(&at, 0o2775);
    let error = put_as_member(&rig, "k").unwrap_err();
    assert!(
        error.contains("results/.fordway/events") && error.contains("fordway admin set events"),
        "{error}"
    );
    rig.configure(&rules);
    assert_eq!(std::fs::metadata(rig.spool()).unwrap().mode() & 0o1777, 0o775);
    put_as_member(&rig, "k").unwrap();
    assert_eq!(rig.read("ci").events[0].writer, 4242);
}

#[test]
fn in_a_bucket_with_the_sticky_bit_only_the_owner_creates_the_events_directory() {
    if !fordway_needs::root("to act as other users") {
        return;
    }
    let rig = Rig::unreported();
    mode(rig.dir.path(), 0o755);
    mode(&rig.dir.path().join("results"), 0o1777);
    let rules = rule("ci", &["ObjectCreated:*"], &[]);
    rig.configure(&rules);
    std::fs::remove_dir(rig.spool()).unwrap();
    let error = put_as_member(&rig, "k").unwrap_err();
    assert!(
        error.contains("results/.fordway/events") && error.contains("fordway admin set events"),
        "{error}"
    );
    assert!(!rig.spool().exists());
    rig.configure(&rules);
    put_as_member(&rig, "k").unwrap();
}

#[test]
fn only_one_program_claims_a_bucket_for_a_webhook() {
    let rig = Rig::new();
    rig.put("k", "x");
    let other = EventJournal::of(&PosixStore::open(rig.dir.path(), PosixConfig::default()).unwrap());
    let journal = rig.journal();
    let claimed = journal.claim(&rig.bucket, "ci", || {
        let second = other.claim(&rig.bucket, "ci", || ()).unwrap();
        (second, other.claim(&rig.bucket, "logs", || ()).unwrap())
    });
    assert_eq!(claimed.unwrap(), Some((None, Some(()))));
    assert_eq!(other.claim(&rig.bucket, "ci", || ()).unwrap(), Some(()));
    assert_eq!(journal.buckets().unwrap(), std::slice::from_ref(&rig.bucket));
}

#[test]
fn the_oldest_names_come_first_and_memory_is_limited() {
    let rig = Rig::new();
    for at in 0..20 {
        rig.put(&format!("k{at}"), "x");
    }
    let all = rig.journal().waiting(&rig.bucket, "ci", None, 1000).unwrap();
    let some = rig.journal().waiting(&rig.bucket, "ci", None, 7).unwrap();
    assert_eq!((all.total, some.total, &all.names[..7]), (20, 20, &some.names[..]));
    // Names that do not come after the given name do not count towards the limit of seven names.
    let rest = rig.journal().waiting(&rig.bucket, "ci", some.names.last().map(String::as_str), 7).unwrap();
    assert_eq!((rest.total, rest.later, &rest.names[..]), (20, 13, &all.names[7..14]));
    assert!(all.names.is_sorted());
}

#[test]
fn a_bucket_with_waiting_events_can_be_removed() {
    let rig = Rig::new();
    rig.put("k", "x");
    rig.delete("k", None);
    std::fs::write(rig.spool().join("foreign"), "x").unwrap();
    let error = rig.store.delete_bucket(&rig.bucket).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BucketNotEmpty, "{error}");
    std::fs::remove_file(rig.spool().join("foreign")).unwrap();
    rig.store.delete_bucket(&rig.bucket).unwrap();
    assert!(!rig.dir.path().join("results").exists());
}

/// Returns the kinds and paths of all findings.
fn findings(rig: &Rig) -> Vec<(&'static str, String)> {
    let mut found = Vec::new();
    let told = rig.store.check(&FsckOptions::default(), &mut |event| {
        if let FsckEvent::Found(finding) = event {
            found.push((finding.kind.name(), finding.path));
        }
        Ok(())
    });
    told.unwrap();
    found.sort();
    found
}

#[test]
fn fsck_names_entries_that_are_not_delivered_and_rules_that_are_not_used() {
    let rig = Rig::new();
    rig.put("k", "x");
    assert_eq!(findings(&rig), []);
    let odd = format!("{:016x}-{:016x}-ci", 1, 1);
    std::fs::write(rig.spool().join(&odd), "nonsense").unwrap();
    std::fs::create_dir(rig.spool().join(odd.replace("-ci", "-di"))).unwrap();
    std::fs::write(rig.spool().join("other"), "").unwrap();
    let path = |name: &str| format!("results/.fordway/events/{name}");
    let bad = |name: &str| ("bad-event", path(name));
    assert_eq!(findings(&rig), [bad(&odd), bad(&odd.replace("-ci", "-di")), bad("other")]);
    std::fs::remove_dir_all(rig.spool()).unwrap();
    let (document, markers) = ("results/.fordway/document-notification", "results/.fordway/markers");
    let of_rules = [("bad-notification", document.to_owned())];
    std::fs::write(rig.dir.path().join(markers), "").unwrap();
    std::fs::write(rig.dir.path().join("results/.fordway/tick"), "").unwrap();
    std::fs::remove_file(rig.dir.path().join("results/.fordway/tick")).unwrap();
    assert_eq!(findings(&rig), of_rules);
    // Setting the configuration again also writes the file `markers` again.
    rig.configure(&rule("ci", &["ObjectCreated:*"], &[]));
    assert_eq!(findings(&rig), []);
    std::fs::write(rig.dir.path().join(document), "<NotificationConfiguration>").unwrap();
    assert_eq!(findings(&rig), of_rules);
    rig.put("k", "an invalid configuration has no rules");
    assert_eq!(std::fs::read_dir(rig.spool()).map_or(0, Iterator::count), 0);
}

/// A user without the permission to read the configuration cannot check whether it is valid. A check by root acts as
/// the owner of the bucket, here as `nobody`.
#[test]
fn fsck_reports_rules_without_read_permission_as_unreadable() {
    let rig = Rig::new();
    let document = "results/.fordway/document-notification";
    let set_mode =
        |path: &Path, mode| std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    set_mode(&rig.dir.path().join(document), 0o000);
    set_mode(rig.dir.path(), 0o755);
    if fordway_sys::user_id() == 0 {
        for path in ["results", "results/.fordway"] {
            std::os::unix::fs::chown(rig.dir.path().join(path), Some(65534), Some(65534)).unwrap();
        }
    }
    let found: Vec<_> = findings(&rig).into_iter().filter(|(_, path)| path == document).collect();
    assert_eq!(found, [("unreadable", document.to_owned())]);
}

#[test]
fn gc_removes_records_that_nobody_delivers() {
    let rig = Rig::new();
    rig.put("k", "x");
    std::fs::write(rig.spool().join("other"), "").unwrap();
    let collect = |event_age: Duration| {
        let (mut removed, options) = (Vec::new(), GcOptions { event_age, ..Default::default() });
        let told = rig.store.collect_garbage(&options, &mut |event| {
            if let GcEvent::Removed(garbage) = event {
                removed.push(garbage.kind.name());
            }
            Ok(())
        });
        told.unwrap();
        removed
    };
    assert_eq!(collect(LONG), [] as [&str; 0]);
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(collect(Duration::from_millis(1)), ["event"]);
    let left: Vec<_> =
        std::fs::read_dir(rig.spool()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["other"]);
}
