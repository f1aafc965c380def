//! Tests which objects a lifecycle run on a directory expires, and which it keeps.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use fordway_posix::{LifecycleEvent, LifecycleOptions, LifecycleSummary, PosixConfig, PosixStore};
use fordway_store::{
    Bucket, BucketDocumentKind, BucketDocumentOperations, DeleteOptions, GetOptions, Key, ListQuery,
    LockConfiguration, MultipartUploadOperations, ObjectLock, ObjectLockOperations, ObjectTagOperations,
    ObjectVersionOperations, Objects, PutOptions, Tags, UploadsQuery, VersionId, VersioningState,
    VersionsQuery,
};

const KIND: BucketDocumentKind = BucketDocumentKind::known("lifecycle");
/// The length of a day in these tests. Instead of waiting, the tests make files older.
const DAY: Duration = Duration::from_secs(1000);

struct Rig {
    dir: tempfile::TempDir,
    store: PosixStore,
}

fn bucket() -> Bucket {
    Bucket::new("bkt").unwrap()
}

fn key(name: &str) -> Key {
    Key::new(name).unwrap()
}

impl Rig {
    /// Creates a bucket with these rules. Each rule is the part of a `Rule` element that follows the status.
    fn new(rules: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = PosixStore::open(dir.path(), PosixConfig::default()).unwrap();
        store.create_bucket(&bucket()).unwrap();
        let rules: String =
            rules.iter().map(|rule| format!("<Rule><Status>Enabled</Status>{rule}</Rule>")).collect();
        let document = format!("<LifecycleConfiguration>{rules}</LifecycleConfiguration>");
        store.set_document(&bucket(), &KIND, document.as_bytes()).unwrap();
        Rig { dir, store }
    }

    fn versioned(self) -> Self {
        self.store.set_versioning(&bucket(), VersioningState::Enabled).unwrap();
        self
    }

    fn put(&self, name: &str) -> Option<VersionId> {
        self.store.put(&bucket(), &key(name), b"content", &PutOptions::default()).unwrap().version
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join("bkt").join(name)
    }

    /// Sets the modification time of the file at `path` to `days` days ago, and keeps the file's record valid.
    fn age(&self, path: &std::path::Path, days: u32) {
        let then = SystemTime::now() - DAY * days;
        File::options().write(true).open(path).unwrap().set_modified(then).unwrap();
    }

    /// Puts an object that is this many days old.
    fn put_old(&self, name: &str, days: u32) -> Option<VersionId> {
        let version = self.put(name);
        self.age(&self.path(name), days);
        version
    }

    fn run(&self) -> (LifecycleSummary, Vec<String>) {
        self.run_with(&LifecycleOptions { day: DAY, ..Default::default() })
    }

    fn run_with(&self, options: &LifecycleOptions) -> (LifecycleSummary, Vec<String>) {
        let mut changes = Vec::new();
        let summary = self.store.run_lifecycle(options, &mut |event| {
            match event {
                LifecycleEvent::Changed(change) => {
                    changes.push(format!("{} {}", change.action.name(), change.key));
                }
                LifecycleEvent::Failed(error) => panic!("{error}"),
                LifecycleEvent::SkippedLink(_, key) | LifecycleEvent::SkippedDirectory(_, key) => {
                    changes.push(format!("skip {key}"));
                }
                LifecycleEvent::Busy(_) | LifecycleEvent::Progress { .. } => {}
            }
            Ok(())
        });
        changes.sort_unstable();
        (summary.unwrap(), changes)
    }

    fn keys(&self) -> Vec<String> {
        let listing = self.store.list(&bucket(), &ListQuery::default()).unwrap();
        listing.entries.iter().map(|entry| entry.name().to_owned()).collect()
    }

    /// Returns the versions of all keys, from the newest to the oldest; `None` for a delete marker.
    fn versions(&self) -> Vec<(String, Option<VersionId>)> {
        let listing = self.store.list_versions(&bucket(), &VersionsQuery::default()).unwrap();
        let shown = |version: fordway_store::VersionSummary| {
            let content = version.content.is_some();
            (version.key, content.then_some(version.version))
        };
        listing.versions.into_iter().map(shown).collect()
    }
}

const TWO_DAYS: &str = "<Expiration><Days>2</Days></Expiration>";

#[test]
fn objects_expire_after_their_days_and_not_before() {
    let rig = Rig::new(&[&format!("<Prefix>logs/</Prefix>{TWO_DAYS}")]);
    for (name, days) in [("logs/old", 3), ("logs/young", 1), ("logs/odd//old", 3), ("data/old", 3)] {
        let version = rig.put(name);
        assert_eq!(version, None);
        if !name.contains("//") {
            rig.age(&rig.path(name), days);
        }
    }
    rig.age(&rig.path(".fordway/odd/logs%2Fodd%2F%2Fold"), 3);
    rig.store.put(&bucket(), &key("logs/now"), b"", &PutOptions::default()).unwrap();
    let dry = rig.run_with(&LifecycleOptions { day: DAY, dry_run: true, ..Default::default() });
    assert_eq!(dry.1, ["expire logs/odd//old", "expire logs/old"]);
    assert_eq!(rig.keys().len(), 5);
    let (summary, changes) = rig.run();
    assert_eq!((summary.changed, summary.expired_bytes, summary.failed), (2, 14, 0));
    assert_eq!(changes, dry.1);
    assert_eq!(rig.keys(), ["data/old", "logs/now", "logs/young"]);
    assert_eq!(rig.run().0.changed, 0, "each expires once");
    // Directories that a put created are removed with their last object.
    assert!(rig.path("logs").exists() && !rig.path(".fordway/odd/logs%2Fodd%2F%2Fold").exists());
}

#[test]
fn filters_select_by_tag_and_size() {
    let rule = format!(
        "<Filter><And><Prefix></Prefix><Tag><Key>keep</Key><Value>no</Value></Tag>\
         <ObjectSizeGreaterThan>3</ObjectSizeGreaterThan></And></Filter>{TWO_DAYS}"
    );
    let rig = Rig::new(&[&rule]);
    let tags = |value: &str| Tags::from([("keep".to_owned(), value.to_owned())]);
    for (name, body, value) in [("a", "large", "no"), ("b", "no", "no"), ("c", "large", "yes")] {
        let options = PutOptions { tags: tags(value), ..Default::default() };
        rig.store.put(&bucket(), &key(name), body.as_bytes(), &options).unwrap();
        rig.age(&rig.path(name), 4);
    }
    rig.put_old("d", 4);
    assert_eq!(rig.run().1, ["expire a"]);
    rig.store.set_tags(&bucket(), &key("c"), None, &tags("no")).unwrap();
    assert_eq!(rig.run().1, ["expire c"]);
    assert_eq!(rig.keys(), ["b", "d"]);
}

#[test]
fn dates_expire_everything_and_disabled_rules_nothing() {
    let rig = Rig::new(&[
        "<Prefix>past/</Prefix><Expiration><Date>2020-01-01T00:00:00Z</Date></Expiration>",
        "<Prefix>future/</Prefix><Expiration><Date>2999-01-01T00:00:00Z</Date></Expiration>",
    ]);
    for name in ["past/a", "future/a", "other"] {
        rig.put_old(name, 100);
    }
    assert_eq!(rig.run().1, ["expire past/a"]);
    let rules = format!(
        "<LifecycleConfiguration><Rule><Status>Disabled</Status><Prefix></Prefix>{TWO_DAYS}</Rule></LifecycleConfiguration>"
    );
    rig.store.set_document(&bucket(), &KIND, rules.as_bytes()).unwrap();
    assert_eq!(rig.run().0.changed, 0);
}

#[test]
fn a_latest_version_is_hidden_once_and_old_ones_expire() {
    let rules = [
        "<ID>hide</ID><Prefix></Prefix><Expiration><Days>2</Days></Expiration>",
        "<ID>old</ID><Prefix></Prefix><NoncurrentVersionExpiration><NoncurrentDays>2</NoncurrentDays>\
         </NoncurrentVersionExpiration>",
    ];
    let rig = Rig::new(&rules).versioned();
    rig.put("a");
    let latest = rig.put_old("a", 5);
    assert_eq!(rig.run().1, ["hide a"]);
    assert!(rig.keys().is_empty());
    assert_eq!(rig.run().0.changed, 0, "a delete marker is created once, and nothing else is due yet");
    let versions = rig.versions();
    assert_eq!(versions.len(), 3);
    assert_eq!((&versions[0].1, &versions[1].1), (&None, &latest));
}

#[test]
fn noncurrent_versions_expire_beyond_those_that_are_kept() {
    let rule = "<Prefix></Prefix><NoncurrentVersionExpiration><NoncurrentDays>1</NoncurrentDays>\
                <NewerNoncurrentVersions>2</NewerNoncurrentVersions></NoncurrentVersionExpiration>";
    let rig = Rig::new(&[rule]).versioned();
    let made: Vec<_> = (0..5).map(|_| rig.put("k").unwrap()).collect();
    assert_eq!(rig.run().0.changed, 0, "no version was replaced a day ago");
    // With a day this short, the next midnight is now, so everything is due.
    let short = LifecycleOptions { day: Duration::from_nanos(1), ..Default::default() };
    let (summary, changes) = rig.run_with(&short);
    assert_eq!(changes, ["expire-version k", "expire-version k"]);
    assert_eq!(summary.failed, 0);
    let left: Vec<_> = rig.versions().into_iter().filter_map(|(_, version)| version).collect();
    let expected: Vec<_> = made[2..].iter().rev().cloned().collect();
    assert_eq!(left, expected);
    assert_eq!(rig.run_with(&short).0.changed, 0);
}

/// A POSIX program can put an old file at a key, or the object of another key. The key's old versions do not expire
/// earlier for this reason: their days count from the time at which they were replaced.
#[test]
fn a_file_with_old_times_makes_no_version_expire_early() {
    let rule = "<Prefix></Prefix><NoncurrentVersionExpiration><NoncurrentDays>3</NoncurrentDays>\
                </NoncurrentVersionExpiration>";
    let rig = Rig::new(&[rule]).versioned();
    rig.put("other");
    for name in ["copied", "moved", "archived"] {
        rig.put(name);
    }
    std::thread::sleep(Duration::from_secs(5));
    let restore = |name: &str| {
        let restored = rig.dir.path().join("restored");
        fs::write(&restored, "from a backup").unwrap();
        File::options().write(true).open(&restored).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
        fs::rename(restored, rig.path(name)).unwrap();
    };
    for name in ["copied", "moved", "archived"] {
        rig.put(name);
    }
    restore("copied");
    fs::rename(rig.path("other"), rig.path("moved")).unwrap();
    restore("archived");
    rig.put("archived");
    for dry_run in [true, false] {
        let options = LifecycleOptions { day: Duration::from_secs(1), dry_run, ..Default::default() };
        assert_eq!(rig.run_with(&options).1, [""; 0], "dry run: {dry_run}");
    }
    let short = LifecycleOptions { day: Duration::from_nanos(1), ..Default::default() };
    assert_eq!(rig.run_with(&short).0.changed, 4, "one version of two keys, two of the third");
}

#[test]
fn a_delete_marker_goes_when_it_hides_nothing() {
    let rule = "<Prefix></Prefix><Expiration><ExpiredObjectDeleteMarker>true</ExpiredObjectDeleteMarker></Expiration>";
    let rig = Rig::new(&[rule]).versioned();
    let version = rig.put("a").unwrap();
    for name in ["a", "b"] {
        rig.store.delete(&bucket(), &key(name), &DeleteOptions::default()).unwrap();
    }
    assert_eq!(rig.run().1, ["expire-marker b"]);
    let options = DeleteOptions { version: Some(version), ..Default::default() };
    rig.store.delete(&bucket(), &key("a"), &options).unwrap();
    assert_eq!(rig.run().1, ["expire-marker a"]);
    assert!(rig.versions().is_empty());
    rig.store.delete_bucket(&bucket()).unwrap();
}

#[test]
fn a_locked_version_never_expires() {
    let rules = [
        "<ID>hide</ID><Prefix></Prefix><Expiration><Days>1</Days></Expiration>",
        "<ID>old</ID><Prefix></Prefix><NoncurrentVersionExpiration><NoncurrentDays>1</NoncurrentDays>\
         </NoncurrentVersionExpiration>",
    ];
    let rig = Rig::new(&rules).versioned();
    rig.store.set_lock_configuration(&bucket(), &LockConfiguration::default()).unwrap();
    let lock = ObjectLock { retention: None, legal_hold: Some(true) };
    let options = PutOptions { lock, ..Default::default() };
    let held = rig.store.put(&bucket(), &key("k"), b"held", &options).unwrap().version.unwrap();
    let free = rig.put("k").unwrap();
    let short = LifecycleOptions { day: Duration::from_nanos(1), ..Default::default() };
    // The latest version is hidden; in this run, it does not yet count as an old version.
    let (summary, changes) = rig.run_with(&short);
    assert_eq!((changes, summary.locked), (vec!["hide k".to_owned()], 1));
    let (summary, changes) = rig.run_with(&short);
    assert_eq!((changes, summary.locked), (vec!["expire-version k".to_owned()], 1));
    let has = |version: &VersionId| {
        rig.store.head(&bucket(), &key("k"), &GetOptions::version(version.clone())).is_ok()
    };
    assert!(has(&held) && !has(&free));
    rig.store.set_legal_hold(&bucket(), &key("k"), Some(&held), false).unwrap();
    assert_eq!(rig.run_with(&short).1, ["expire-version k"]);
    assert!(!has(&held));
}

#[test]
fn uploads_are_aborted_after_their_days() {
    let rule = "<Prefix>a</Prefix><AbortIncompleteMultipartUpload><DaysAfterInitiation>1</DaysAfterInitiation>\
                </AbortIncompleteMultipartUpload>";
    let rig = Rig::new(&[rule]);
    for name in ["a", "b"] {
        rig.store.create_upload(&bucket(), &key(name), &PutOptions::default()).unwrap();
    }
    assert_eq!(rig.run().0.changed, 0);
    let short = LifecycleOptions { day: Duration::from_nanos(1), ..Default::default() };
    assert_eq!(rig.run_with(&short).1, ["abort-upload a"]);
    let left = rig.store.list_uploads(&bucket(), &UploadsQuery::default()).unwrap();
    assert_eq!(left.uploads.iter().map(|upload| upload.key.as_str()).collect::<Vec<_>>(), ["b"]);
}

/// An object does not expire if a POSIX program changes it after the object has been examined. In this test, the
/// program changes objects while the previous change is being reported.
#[test]
fn what_a_program_changes_meanwhile_stays() {
    let rig = Rig::new(&[&format!("<Prefix></Prefix>{TWO_DAYS}")]);
    let names: Vec<_> = (0..40).map(|at| format!("k{at:02}")).collect();
    names.iter().for_each(|name| drop(rig.put_old(name, 5)));
    let options = LifecycleOptions { day: DAY, ..Default::default() };
    let mut expired = 0;
    rig.store
        .run_lifecycle(&options, &mut |event| {
            if let LifecycleEvent::Changed(_) = event {
                expired += 1;
                if expired == 5 {
                    // All other objects are on the page that was already listed.
                    fs::write(rig.path("k10"), "in place").unwrap();
                    fs::write(rig.path("new"), "renamed").unwrap();
                    fs::rename(rig.path("new"), rig.path("k20")).unwrap();
                    rig.put("k30");
                }
            }
            Ok(())
        })
        .unwrap();
    assert_eq!(rig.keys(), ["k10", "k20", "k30"]);
    assert_eq!(fs::read(rig.path("k20")).unwrap(), b"renamed");
    assert_eq!(expired, 37);
}

#[test]
fn invalid_rules_are_reported_and_change_nothing() {
    let rig = Rig::new(&[]);
    rig.put_old("k", 100);
    let mut failures = 0;
    let options = LifecycleOptions { day: DAY, ..Default::default() };
    let summary = rig.store.run_lifecycle(&options, &mut |event| {
        failures += u32::from(matches!(event, LifecycleEvent::Failed(_)));
        Ok(())
    });
    let summary = summary.unwrap();
    assert_eq!((summary.failed, summary.changed, failures), (1, 0, 1));
    assert_eq!(rig.keys(), ["k"]);
}

/// A link may lead to another bucket, which has other rules and locks, or to other objects of the same bucket, which
/// expire under their own keys.
#[test]
fn nothing_expires_through_a_link_to_a_directory() {
    let rules = format!("<Prefix></Prefix>{TWO_DAYS}");
    for (rig, action) in [(Rig::new(&[&rules]), "expire"), (Rig::new(&[&rules]).versioned(), "hide")] {
        let other = rig.dir.path().join("other");
        fs::create_dir_all(other.join("d")).unwrap();
        for name in ["x", "d/y"] {
            fs::write(other.join(name), "kept").unwrap();
            rig.age(&other.join(name), 5);
        }
        rig.put_old("real/k", 5);
        for (link, target) in [("l", "../other"), ("real/m", "../../other/d"), ("same", "real")] {
            std::os::unix::fs::symlink(target, rig.path(link)).unwrap();
        }
        assert_eq!(rig.keys(), ["l/d/y", "l/x", "real/k", "real/m/y", "same/k", "same/m/y"]);
        let (summary, changes) = rig.run();
        assert_eq!((summary.changed, summary.failed), (1, 0));
        let skipped: Vec<_> = changes.iter().filter(|change| change.starts_with("skip ")).collect();
        assert_eq!((changes.len(), skipped.len()), (2, 1), "{changes:?}");
        assert!(changes.contains(&format!("{action} real/k")));
        assert!(other.join("x").exists() && other.join("d/y").exists());
    }
}

/// A key reached through a link to a directory is also found through its old versions.
#[test]
fn nothing_with_old_versions_expires_through_a_link_to_a_directory() {
    let old = "<Prefix></Prefix><NoncurrentVersionExpiration><NoncurrentDays>2</NoncurrentDays>\
               </NoncurrentVersionExpiration>";
    let rig = Rig::new(&[&format!("<Prefix>l/</Prefix>{TWO_DAYS}"), old]).versioned();
    fs::create_dir(rig.path("real")).unwrap();
    std::os::unix::fs::symlink("real", rig.path("l")).unwrap();
    for _ in 0..3 {
        rig.put_old("l/x", 5);
    }
    let before = rig.versions();
    let (summary, changes) = rig.run();
    assert_eq!((summary.changed, summary.failed, changes), (0, 0, vec!["skip l".to_owned()]));
    // With a day this short, the next midnight is now, so everything is due.
    let short = LifecycleOptions { day: Duration::from_nanos(1), ..Default::default() };
    assert_eq!(rig.run_with(&short).1, ["skip l"]);
    assert_eq!(rig.versions(), before);
    assert!(rig.path("real/x").exists());
}

#[test]
fn the_receiver_ends_a_run() {
    let rig = Rig::new(&[&format!("<Prefix></Prefix>{TWO_DAYS}")]);
    (0..10).for_each(|at| drop(rig.put_old(&format!("k{at}"), 5)));
    let options = LifecycleOptions { day: DAY, ..Default::default() };
    let ended = rig.store.run_lifecycle(&options, &mut |_| Err(fordway_store::ErrorKind::Interrupted.into()));
    assert_eq!(ended.unwrap_err().kind(), fordway_store::ErrorKind::Interrupted);
    assert_eq!(rig.keys().len(), 9);
    assert_eq!(rig.run().0.changed, 9);
}

/// If a run is killed after it has created the delete marker of an object, the next run removes the object, and creates
/// no second marker.
#[test]
fn a_killed_run_leaves_one_delete_marker() {
    let rig = Rig::new(&["<Filter/><Expiration><Days>1</Days></Expiration>"]).versioned();
    let version = rig.put_old("k", 2);
    let kept = rig.dir.path().join("kept");
    fs::hard_link(rig.path("k"), &kept).unwrap();
    let marker = rig.store.delete(&bucket(), &key("k"), &DeleteOptions::default()).unwrap().version;
    fs::hard_link(&kept, rig.path("k")).unwrap();
    assert_eq!(rig.run().1, ["hide k"]);
    let listed = rig.store.list_versions(&bucket(), &VersionsQuery::default()).unwrap().versions;
    let found: Vec<_> = listed.into_iter().map(|found| Some(found.version)).collect();
    assert_eq!(found, [marker, version]);
    assert!(!rig.path("k").exists());
}

/// A user who may create names in the directory of a key's versions can make it look as if a delete had been
/// interrupted.
#[test]
fn a_version_that_only_seems_to_be_deleted_is_kept() {
    let rig = Rig::new(&["<Filter/><Expiration><Days>1</Days></Expiration>"]).versioned();
    let version = rig.put_old("k", 2).unwrap();
    let forged = rig.path(".fordway/versions/k");
    fs::create_dir_all(&forged).unwrap();
    fs::write(forged.join(format!("{:016x}-{version}", 1)), "forged").unwrap();
    fs::write(forged.join("ffffffffffffffff-x-marker"), "").unwrap();
    rig.run();
    let kept: Vec<_> =
        walk(&rig.path("")).into_iter().filter(|file| fs::read(file).unwrap() == b"content").collect();
    assert_eq!(kept.len(), 1, "the version's own file");
}

/// Returns all files below a directory.
fn walk(dir: &std::path::Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { walk(&path) } else { vec![path] }).collect()
}

/// While a run holds its own lock, it can lock every key: none shares an in-process lock with the run.
#[test]
fn a_run_does_not_block_itself() {
    let rig = Rig::new(&[&format!("<Filter/>{TWO_DAYS}")]);
    for at in 0..300 {
        rig.put_old(&format!("run/{at}"), 4);
    }
    let (summary, changes) = rig.run();
    assert_eq!((summary.failed, changes.len()), (0, 300));
    assert!(rig.keys().is_empty());
}

/// In a bucket that keeps versions, a directory that was an object before versioning was enabled expires, and so does a
/// version whose record the sticky bit hides.
#[test]
fn folders_and_files_with_the_sticky_bit_are_hidden() {
    let rig = Rig::new(&[&format!("<Prefix></Prefix>{TWO_DAYS}")]);
    rig.store.put(&bucket(), &key("folder/"), b"", &PutOptions::default()).unwrap();
    let rig = rig.versioned();
    let version = rig.put("sticky");
    fs::set_permissions(rig.path("sticky"), Permissions::from_mode(0o1777)).unwrap();
    // With a day this short, everything is due.
    let short = LifecycleOptions { day: Duration::from_nanos(1), ..Default::default() };
    let dry = rig.run_with(&LifecycleOptions { dry_run: true, ..short.clone() });
    let (summary, changes) = rig.run_with(&short);
    assert_eq!((summary.changed, changes), (2, dry.1));
    assert!(rig.keys().is_empty());
    let versions = rig.versions();
    assert_eq!(versions.len(), 4, "each object and its delete marker: {versions:?}");
    assert!(versions.contains(&("sticky".to_owned(), version)), "{versions:?}");
}
