//! Tests lifecycle runs by root in buckets to which several users may write.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::Command;
use std::time::Duration;

use fordway_posix::{LifecycleEvent, LifecycleOptions};
use fordway_store::{Bucket, VersioningState, VersionsQuery};
use fordway_sys::set_xattr;

use crate::ground::{ALICE, BOB, Ground, Lane, as_user, chmod, is_root, put};

/// In a bucket with the sticky bit, Bob may create names in the directory with Alice's old versions. None of these
/// names may make a version expire, regardless of the version or delete marker that the name represents.
#[test]
fn names_of_a_third_user_make_no_version_expire() {
    if !is_root() {
        return;
    }
    let ground = Ground::new();
    let shared = ground.bucket("shared", ALICE, 0o1777);
    ground.on(Lane::Embedded, ALICE, |store| {
        store.set_versioning(&shared, VersioningState::Enabled).unwrap();
        (0..4).for_each(|round| put(store, &shared, "thesis", format!("draft {round}").as_bytes()).unwrap());
    });
    let keep_two = "<NoncurrentVersionExpiration><NoncurrentDays>1</NoncurrentDays>\
                    <NewerNoncurrentVersions>2</NewerNoncurrentVersions></NoncurrentVersionExpiration>";
    ground.set_rule(&shared, ALICE, keep_two);
    let dir = "shared/.fordway/versions/thesis";
    let newest =
        fs::read_dir(ground.path(dir)).unwrap().map(|entry| entry.unwrap().file_name()).max().unwrap();
    let order = u64::from_str_radix(&newest.to_str().unwrap()[..16], 16).unwrap();
    for (number, suffix) in ["", "-marker", "", "-marker"].iter().enumerate() {
        let order = order + 1 + number as u64;
        let name = format!("{order:016x}-{order:016x}.{number:016x}{suffix}");
        ground.write(&format!("{dir}/{name}"), BOB, 0o644, "");
    }
    ground.expire();
    let left = ground.on(Lane::Embedded, ALICE, |store| {
        let page = store.list_versions(&shared, &VersionsQuery::default()).unwrap();
        page.versions
            .iter()
            .filter(|version| version.content.as_ref().is_some_and(|(size, _)| *size == 7))
            .count()
    });
    assert_eq!(left, 3, "the latest version and two old ones");
}

/// All users with write permission for a bucket without the sticky bit may set rules. The rules of a user expire only
/// objects that this user could remove.
#[test]
fn rules_of_a_writer_lend_that_writer_no_rights() {
    if !is_root() {
        return;
    }
    let ground = Ground::new();
    let team = ground.bucket("team", ALICE, 0o777);
    ground.write("team/alice/thesis", ALICE, 0o644, "years of work");
    ground.write("team/bob/draft", BOB, 0o644, "nothing");
    ground.expire_all(&team, BOB);
    let done = ground.expire();
    assert_eq!(fs::read(ground.path("team/alice/thesis")).unwrap(), b"years of work", "{done:?}");
    assert!(!ground.path("team/bob/draft").exists(), "{done:?}");
    assert_eq!((done.changed, done.failed), (1, 1));
    ground.expire_all(&team, ALICE);
    assert_eq!(ground.expire().changed, 1, "the bucket's owner may expire everything");
}

/// A directory that the bucket's owner cannot read does not keep the other objects of the bucket from expiring. The run
/// reports the directory.
#[test]
fn a_closed_directory_stops_no_expiry() {
    if !is_root() {
        return;
    }
    for (mode, is_versioned) in [(0o775, false), (0o775, true), (0o1777, false)] {
        let ground = Ground::new();
        let team = ground.bucket("team", ALICE, mode);
        ground.on(Lane::Embedded, ALICE, |store| {
            if is_versioned {
                store.set_versioning(&team, VersioningState::Enabled).unwrap();
            }
            put(store, &team, "zzz", b"due").unwrap();
        });
        ground.write("team/aaa/draft", BOB, 0o644, "private");
        ground.write("team/bbb/draft", BOB, 0o644, "private");
        chmod(&ground.path("team/aaa"), 0o700);
        chmod(&ground.path("team/bbb"), 0o700);
        ground.expire_all(&team, ALICE);
        let (mut skipped, mut changed) = (0, Vec::new());
        let options = LifecycleOptions { day: Duration::from_nanos(1), ..LifecycleOptions::default() };
        let summary = ground.embedded().run_lifecycle(&options, &mut |event| {
            match event {
                LifecycleEvent::SkippedDirectory(..) => skipped += 1,
                LifecycleEvent::Changed(change) => changed.push(change.key),
                _ => {}
            }
            Ok(())
        });
        assert_eq!((skipped, changed), (1, vec!["zzz".to_owned()]), "{mode:o} {is_versioned}");
        assert_eq!(summary.unwrap().failed, 0);
        assert!(ground.path("team/aaa/draft").exists());
    }
}

const EVERYTHING: &str = "<LifecycleConfiguration><Rule><Status>Enabled</Status><Filter/>\
                          <Expiration><Days>1</Days></Expiration></Rule></LifecycleConfiguration>";
const NOTHING_YET: &str = "<Expiration><Date>2999-01-01T00:00:00Z</Date></Expiration>";
const RULES: &str = "team/.fordway/document-lifecycle";

/// Creates a bucket of Alice that the team may write to, with a file in a directory that only Alice may write to. Alice
/// has set rules that expire nothing.
fn team_of(ground: &Ground) -> Bucket {
    let team = ground.bucket("team", ALICE, 0o777);
    ground.write("team/alice/thesis", ALICE, 0o644, "years of work");
    ground.set_rule(&team, ALICE, NOTHING_YET);
    team
}

/// Gives `from` the path of the rules, as Bob, who may rename every file in the bucket's top directories.
fn move_into_place(ground: &Ground, from: &str) {
    let (from, to) = (ground.path(from), ground.path(RULES));
    as_user(BOB, || fs::rename(from, to)).unwrap();
}

/// Asserts that a run expires nothing, and reports the rules once.
fn assert_refused(ground: &Ground, what: &str) {
    let done = ground.expire();
    assert_eq!((done.changed, done.failed), (0, 1), "{what}: {done:?}");
    assert!(ground.path("team/alice/thesis").exists(), "{what}");
}

/// A member of the team moves a file of the bucket's owner to the path of the rules. The rules do not act with the
/// owner's rights, regardless of which file was moved.
#[test]
fn rules_that_another_writer_has_moved_into_place_expire_nothing() {
    if !is_root() {
        return;
    }
    let ground = Ground::new();
    let team = team_of(&ground);
    for (name, mode) in [("notes", 0o664), ("example.xml", 0o644)] {
        ground.write(&format!("team/{name}"), ALICE, mode, EVERYTHING);
        move_into_place(&ground, &format!("team/{name}"));
        assert_refused(&ground, name);
    }
    // Alice's object may have the mark of a document, if she copied it with its attributes. The copy is another file.
    ground.set_rule(&team, ALICE, "<Expiration><Days>1</Days></Expiration>");
    let copied = Command::new("cp").arg("-a").args([ground.path(RULES), ground.path("team/copy")]).status();
    assert!(copied.unwrap().success());
    move_into_place(&ground, "team/copy");
    assert_refused(&ground, "a copy");
    ground.set_rule(&team, ALICE, NOTHING_YET);
    let done = ground.expire();
    assert_eq!((done.changed, done.failed), (0, 0), "Alice has set rules of her own again");
}

/// An older document of the bucket's owner, which a member of the team moved aside, does not replace the newer one.
/// Both a run and a migration ignore it.
#[test]
fn old_rules_that_another_writer_has_kept_expire_nothing() {
    if !is_root() {
        return;
    }
    let ground = Ground::new();
    let team = team_of(&ground);
    ground.expire_all(&team, ALICE);
    let (rules, aside) = (ground.path(RULES), ground.path("team/aside"));
    as_user(BOB, || fs::rename(rules, aside)).unwrap();
    ground.set_rule(&team, ALICE, NOTHING_YET);
    std::thread::sleep(Duration::from_millis(2500));
    move_into_place(&ground, "team/aside");
    assert_refused(&ground, "old rules");
    ground.migrate();
    assert_refused(&ground, "old rules after a migration");
}

/// While others may write to a file, they can set a mark on it. The mark does not become valid when the owner denies
/// others write access, because the file is older than the mark.
#[test]
fn a_mark_that_another_writer_has_set_does_not_count() {
    if !is_root() {
        return;
    }
    let ground = Ground::new();
    let team = team_of(&ground);
    ground.write("team/notes", ALICE, 0o666, EVERYTHING);
    std::thread::sleep(Duration::from_millis(2500));
    move_into_place(&ground, "team/notes");
    let identity = |path: &str| {
        let file = fs::File::open(ground.path(path)).unwrap();
        let created_ns = fordway_sys::recorded_creation_ns(&file).unwrap().unwrap_or_default();
        format!("{}.{created_ns}", file.metadata().unwrap().ino())
    };
    let changed = fs::metadata(ground.path(RULES)).unwrap();
    let time_ns = changed.ctime() * 1_000_000_000 + changed.ctime_nsec();
    let mark = format!("1 lifecycle {} {} {time_ns}", identity("team"), identity(RULES));
    let set =
        || set_xattr(fs::File::open(ground.path(RULES)).unwrap(), c"user.fordway.owner", mark.as_bytes());
    as_user(BOB, || set().unwrap());
    chmod(&ground.path(RULES), 0o644);
    assert_refused(&ground, "a forged mark");
    ground.expire_all(&team, ALICE);
    assert_eq!(ground.expire().changed, 1, "a file that Alice has just created");
}

/// A copy does not show which user gave a document its name, so the owner sets the rules of a restored root again. A
/// migration does not make the rules effective, because another writer may have moved them into place. Documents that
/// nobody else could have renamed need no mark.
#[test]
fn rules_are_set_again_after_a_restore_and_need_no_mark_in_a_closed_bucket() {
    if !is_root() {
        return;
    }
    let ground = Ground::new();
    let team = team_of(&ground);
    ground.expire_all(&team, ALICE);
    let copied = Command::new("cp").arg("-a").args([ground.path("team"), ground.path("copy")]).status();
    assert!(copied.unwrap().success());
    fs::rename(ground.path("team"), ground.path("../lost")).unwrap();
    fs::rename(ground.path("copy"), ground.path("team")).unwrap();
    assert_refused(&ground, "before the migration");
    let (done, failed) = ground.migrate();
    assert!(!done.contains(&RULES.to_owned()) && failed.is_empty(), "{done:?} {failed:?}");
    assert_refused(&ground, "after the migration");
    ground.expire_all(&team, ALICE);
    let done = ground.expire();
    assert_eq!((done.changed, done.failed), (1, 0), "{done:?}");
    ground.write("team/alice/thesis", ALICE, 0o644, "years of work");
    fs::remove_file(ground.path(RULES)).unwrap();
    ground.write(RULES, ALICE, 0o644, EVERYTHING);
    assert_refused(&ground, "no mark");
    chmod(&ground.path("team"), 0o755);
    assert_refused(&ground, "no mark, and the private area is open");
    chmod(&ground.path("team/.fordway"), 0o755);
    std::thread::sleep(Duration::from_millis(30));
    assert_eq!(ground.expire().changed, 1, "only Alice can have written the rules");
}
