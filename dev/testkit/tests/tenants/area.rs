//! Tests buckets that several users write to.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use fordway_posix::{MigrationEvent, PosixConfig, PosixStore};

use fordway_store::{
    Bucket, BucketDocumentKind, CompleteOptions, CompletedPart, DeleteOptions, ErrorKind, ExpectedContent,
    GetOptions, ListQuery, ObjectVersionOperations, Objects, PartOptions, PutOptions, PutResult, Result,
    Store, UploadId, VersioningState, VersionsQuery,
};

use crate::ground::{
    ALICE, BOB, Ground, Lane, TEAM, as_user, bucket, chmod, denied, is_root, key, put, read,
};

/// Returns a key whose encoded form needs several path components.
fn long_key() -> String {
    format!("long//{}", "x".repeat(600))
}

/// In a bucket with the sticky bit, everything that a user stores belongs to this user, regardless of its location and
/// of which user used the bucket first.
#[test]
fn in_a_sticky_bucket_nobody_touches_what_is_anothers() {
    if !is_root() {
        return;
    }
    for lane in [Lane::Http, Lane::Node] {
        for first in [ALICE, BOB] {
            let ground = Ground::new();
            let shared = ground.bucket("shared", 0, 0o1777);
            // The first user of the bucket creates its private area.
            ground.on(lane, first, |store| {
                put(store, &shared, "first//key", b"f").unwrap();
                put(store, &shared, "plain", b"p").unwrap();
                put(store, &shared, "plain", b"q").unwrap();
                store.delete(&shared, &key("plain"), &DeleteOptions::default()).unwrap();
            });
            let keys = ["a//b".to_owned(), long_key(), "plain".to_owned(), "dir/in".to_owned()];
            ground.on(lane, ALICE, |store| {
                keys.iter().for_each(|name| put(store, &shared, name, b"alice").unwrap());
                keys.iter().for_each(|name| put(store, &shared, name, b"alice's").unwrap());
            });
            ground.on(lane, BOB, |store| {
                for name in &keys {
                    denied(name, put(store, &shared, name, b"bob"));
                    denied(name, store.delete(&shared, &key(name), &DeleteOptions::default()));
                    assert_eq!(read(store, &shared, name).unwrap(), b"alice's", "{name}");
                }
            });
            assert_bob_cannot(&ground, "shared/.fordway");
            for dir in ["", "/odd", "/tmp"] {
                let state = fs::metadata(ground.path(&format!("shared/.fordway{dir}"))).unwrap();
                assert_eq!((state.uid(), state.mode() & 0o7777), (0, 0o1777), "{lane:?} {dir}");
            }
            assert_eq!(ground.owner("shared/.fordway/locks"), 0);
            assert_eq!(ground.owner("shared/.fordway/odd/a%2F%2Fb"), ALICE);
            assert_eq!(ground.check(), []);
        }
    }
}

/// Checks that Bob cannot remove or replace any file below `dir` through POSIX, except his own files.
#[track_caller]
fn assert_bob_cannot(ground: &Ground, dir: &str) {
    let mut all = vec![ground.path(dir)];
    while let Some(path) = all.pop() {
        let state = fs::symlink_metadata(&path).unwrap();
        if state.is_dir() {
            all.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
        if state.uid() == BOB {
            continue;
        }
        as_user(BOB, || {
            fs::rename(&path, path.with_extension("away")).expect_err("it is not Bob's to rename");
            assert!(fs::remove_file(&path).is_err() && fs::remove_dir(&path).is_err(), "{}", path.display());
        });
    }
}

/// Bob tries to remove, replace and continue Alice's objects and uploads in the bucket, and every attempt is denied.
fn tries_all_that_is_alices(store: &dyn Store, shared: &Bucket, upload: &UploadId, parts: &[CompletedPart]) {
    let all = store.list_versions(shared, &VersionsQuery::default()).unwrap().versions;
    let hers = all.iter().filter(|version| version.content.is_some());
    assert_eq!(hers.clone().count(), 4);
    for version in hers {
        let delete = DeleteOptions { version: Some(version.version.clone()), ..Default::default() };
        denied(&version.key, store.delete(shared, &key(&version.key), &delete));
    }
    denied("delete", store.delete(shared, &key("k"), &DeleteOptions::default()));
    denied("overwrite", put(store, shared, "k", b"bob"));
    let part = store.part_writer(shared, &key("up"), upload, 1, &PartOptions::default());
    denied(
        "part",
        part.and_then(|mut part| {
            part.write(b"bob's part")?;
            part.commit(&ExpectedContent::default())
        }),
    );
    let complete = CompleteOptions::default();
    denied("complete", store.complete_upload(shared, &key("up"), upload, parts, &complete));
    denied("abort", store.abort_upload(shared, &key("up"), upload));
}

#[test]
fn in_a_sticky_bucket_old_versions_and_uploads_are_their_makers() {
    if !is_root() {
        return;
    }
    for lane in [Lane::Http, Lane::Node] {
        let ground = Ground::new();
        let shared = ground.bucket("shared", 0, 0o1777);
        ground.on(lane, BOB, |store| {
            denied("versioning", store.set_versioning(&shared, VersioningState::Enabled))
        });
        ground.embedded().set_versioning(&shared, VersioningState::Enabled).unwrap();
        // Bob is the first to create directories, and creates delete markers for keys that Alice uses later.
        ground.on(lane, BOB, |store| {
            for name in ["k", "k//odd"] {
                store.delete(&shared, &key(name), &DeleteOptions::default()).unwrap();
            }
            let upload = store.create_upload(&shared, &key("bobs"), &PutOptions::default()).unwrap();
            store.abort_upload(&shared, &key("bobs"), &upload).unwrap();
        });
        let upload = ground.on(lane, ALICE, |store| {
            for name in ["k", "k//odd"] {
                put(store, &shared, name, b"old").unwrap();
                put(store, &shared, name, b"new").unwrap();
            }
            let upload = store.create_upload(&shared, &key("up"), &PutOptions::default()).unwrap();
            let mut part =
                store.part_writer(&shared, &key("up"), &upload, 1, &PartOptions::default()).unwrap();
            part.write(b"alice's part").unwrap();
            let made = part.commit(&ExpectedContent::default()).unwrap();
            (upload, [CompletedPart { number: 1, etag: made.etag, checksum: None }])
        });
        let (upload, parts) = upload;
        ground.on(lane, BOB, |store| tries_all_that_is_alices(store, &shared, &upload, &parts));
        assert_bob_cannot(&ground, "shared/.fordway");
        ground.on(lane, ALICE, |store| {
            store.complete_upload(&shared, &key("up"), &upload, &parts, &CompleteOptions::default()).unwrap();
            assert_eq!(read(store, &shared, "up").unwrap(), b"alice's part");
            let old = |name: &str| {
                let query = VersionsQuery { prefix: name.to_owned(), ..Default::default() };
                let all = store.list_versions(&shared, &query).unwrap().versions;
                let old =
                    all.iter().filter(|version| version.key == name && version.content.is_some()).nth(1);
                store.get(&shared, &key(name), &GetOptions::version(old.unwrap().version.clone())).unwrap()
            };
            for name in ["k", "k//odd"] {
                assert_eq!(old(name).content.into_vec().unwrap(), b"old");
            }
        });
        assert_eq!(ground.check(), []);
    }
}

/// The variable that contains the action and the root of a tenant's process.
const TENANT: &str = "FORDWAY_TEST_TENANT";

/// Runs this test program again as a process of `uid`, which performs `act` in [`a_tenants_process`].
fn run_as(uid: u32, act: &str, root: &Path) {
    // The user may not be allowed to read the directory in which the program was built.
    let program = root.parent().unwrap().join("program");
    if !program.exists() {
        fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    }
    let mut command = Command::new(program);
    command.args(["--exact", "area::a_tenants_process", "--nocapture"]);
    command.env(TENANT, format!("{act} {}", root.display())).uid(uid).gid(uid);
    let done = command.output().unwrap();
    assert!(done.status.success(), "{act}: {}", String::from_utf8_lossy(&done.stderr));
}

/// Performs the action of [`run_as`]. Does nothing in a normal test run.
#[test]
fn a_tenants_process() {
    let Ok(task) = std::env::var(TENANT) else { return };
    let (act, root) = task.split_once(' ').unwrap();
    let (store, shared) =
        (PosixStore::open(Path::new(root), PosixConfig::default()).unwrap(), bucket("shared"));
    match act {
        "makes" => {
            put(&store, &shared, "bob//key", b"b").unwrap();
            put(&store, &shared, "bobs", b"b").unwrap();
            put(&store, &shared, "bobs", b"c").unwrap();
        }
        "uses" => {
            put(&store, &shared, "plain", b"a").unwrap();
            put(&store, &shared, "plain", b"b").unwrap();
            denied("odd key", put(&store, &shared, "alice//key", b"a"));
            assert_eq!(read(&store, &shared, "bob//key").unwrap(), b"b");
            store.delete(&shared, &key("plain"), &DeleteOptions::default()).unwrap();
        }
        other => panic!("{other}"),
    }
}

/// Programs that do not run as root cannot give directories to the bucket's owner. If a user other than the caller and
/// the bucket's owner could remove an object's files, these programs refuse to store the object. Objects whose keys are
/// plain paths can still be stored.
#[test]
fn without_root_a_third_users_area_is_not_used() {
    if !is_root() {
        return;
    }
    let ground = Ground::new();
    ground.bucket("shared", 0, 0o1777);
    run_as(BOB, "makes", &ground.path(""));
    assert_eq!(ground.owner("shared/.fordway/odd"), BOB);
    run_as(ALICE, "uses", &ground.path(""));
    assert_eq!(fs::read_dir(ground.path("shared/.fordway/tmp")).unwrap().count(), 0, "nothing is left there");
    let found = ground.check();
    assert!(found.contains(&("not-ours".to_owned(), "shared/.fordway/odd".to_owned())), "{found:?}");
}

/// Everything that root creates in a bucket's private area belongs to the bucket's owner.
#[test]
fn what_root_makes_in_a_bucket_is_the_owners() {
    if !is_root() {
        return;
    }
    let ground = Ground::new();
    let alices = ground.bucket("alice", ALICE, 0o755);
    let root = ground.embedded();
    put(&root, &alices, "x//y", b"r").unwrap();
    put(&root, &alices, "k", b"r").unwrap();
    put(&root, &alices, "k", b"s").unwrap();
    for path in ["", "/odd", "/tmp", "/locks"] {
        assert_eq!(ground.owner(&format!("alice/.fordway{path}")), ALICE, "{path}");
    }
    // Alice can therefore continue without root.
    ground.on(Lane::Embedded, ALICE, |store| {
        put(store, &alices, "k", b"alice").unwrap();
        put(store, &alices, "x//y", b"alice").unwrap();
        store.delete(&alices, &key("x//y"), &DeleteOptions::default()).unwrap();
    });
}

/// All users with write permission for a group's bucket share its private area, regardless of their umask. No other
/// user has access.
#[test]
fn a_group_shares_its_buckets_area() {
    if !is_root() {
        return;
    }
    for lane in Lane::ALL {
        let ground = Ground::new();
        let team = ground.bucket("team", ALICE, 0o770);
        std::os::unix::fs::chown(ground.path("team"), None, Some(TEAM)).unwrap();
        ground.on(lane, BOB, |store| {
            for name in ["k", "x//y"] {
                put(store, &team, name, b"bob").unwrap();
                put(store, &team, name, b"bob's").unwrap();
            }
        });
        ground.on(lane, ALICE, |store| {
            for name in ["k", "x//y", "own//key"] {
                put(store, &team, name, b"alice").unwrap();
                assert_eq!(read(store, &team, name).unwrap(), b"alice");
            }
        });
        for path in ["", "/odd", "/tmp", "/locks"] {
            let state = fs::metadata(ground.path(&format!("team/.fordway{path}"))).unwrap();
            assert_eq!((state.gid(), state.mode() & 0o007), (TEAM, 0), "{lane:?} {path}");
        }
    }
}

/// In a bucket with the sticky bit, a versioning file from a user other than the bucket's owner cannot cause the loss
/// of content.
#[test]
fn a_third_users_words_are_not_believed() {
    if !is_root() {
        return;
    }
    let ground = Ground::new();
    let shared = ground.bucket("shared", ALICE, 0o1777);
    ground.on(Lane::Http, ALICE, |store| put(store, &shared, "k//odd", b"x").unwrap());
    ground.write("shared/.fordway/versioning", BOB, 0o644, "Suspended\n");
    std::thread::sleep(std::time::Duration::from_millis(30));
    ground.on(Lane::Http, ALICE, |store| {
        assert_eq!(
            store.versioning(&shared).unwrap(),
            VersioningState::Enabled,
            "what is kept can be removed later"
        );
        store.set_versioning(&shared, VersioningState::Suspended).unwrap();
        assert_eq!(store.versioning(&shared).unwrap(), VersioningState::Suspended);
    });
}

/// If a user other than the bucket's owner puts bucket documents into the private area, these documents are ignored.
/// Only the owner can set documents.
#[test]
fn a_third_users_documents_are_not_believed() {
    if !is_root() {
        return;
    }
    let ground = Ground::new();
    let (shared, cors) = (ground.bucket("shared", ALICE, 0o1777), BucketDocumentKind::known("cors"));
    ground.on(Lane::Http, ALICE, |store| put(store, &shared, "k//odd", b"x").unwrap());
    ground.write("shared/.fordway/document-cors", BOB, 0o644, "<CORSConfiguration/>");
    for (lane, user) in [(Lane::Http, ALICE), (Lane::Node, ALICE), (Lane::Http, BOB)] {
        ground.on(lane, user, |store| {
            assert_eq!(store.document(&shared, &cors).unwrap(), None, "{lane:?}");
        });
    }
    ground.on(Lane::Node, BOB, |store| denied("document", store.set_document(&shared, &cors, b"<x/>")));
    ground.on(Lane::Node, ALICE, |store| {
        store.set_document(&shared, &cors, b"<x/>").unwrap();
        assert_eq!(store.document(&shared, &cors).unwrap().as_deref(), Some(&b"<x/>"[..]));
    });
    // A document that is not a small regular file is not accepted.
    let path = ground.path("shared/.fordway/document-cors");
    std::fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", &path).unwrap();
    ground.on(Lane::Node, ALICE, |store| denied("document", store.document(&shared, &cors).map(drop)));
    ground.collect();
    assert!(path.is_symlink() && !ground.check().is_empty(), "gc leaves it, and fsck reports it");
}

/// In a bucket with the sticky bit, a user cannot prevent other users from listing the bucket by making a directory
/// inaccessible.
#[test]
fn a_closed_directory_of_another_user_hides_nothing_else() {
    if !is_root() {
        return;
    }
    let ground = Ground::new();
    for (name, mode) in [("sticky", 0o1777), ("team", 0o777)] {
        let bucket = ground.bucket(name, ALICE, mode);
        for path in ["a/x", "private/x", "z"] {
            ground.write(&format!("{name}/{path}"), ALICE, 0o644, "x");
        }
        chmod(&ground.path(&format!("{name}/private")), 0o700);
        for lane in Lane::ALL {
            let list = |delimiter: Option<&str>| {
                let query = ListQuery { delimiter: delimiter.map(str::to_owned), ..Default::default() };
                ground.on(lane, BOB, |store| {
                    let page = store.list(&bucket, &query)?;
                    Ok(page.entries.iter().map(|entry| entry.name().to_owned()).collect::<Vec<_>>())
                })
            };
            match name {
                "sticky" => {
                    assert_eq!(list(None).unwrap(), ["a/x", "z"], "{lane:?}");
                    assert_eq!(list(Some("/")).unwrap(), ["a/", "private/", "z"], "{lane:?}");
                }
                _ => denied("a listing that would not be complete", list(None)),
            }
        }
    }
}

/// The root that [`a_process_in_a_user_namespace`] opens.
const FOREIGN_ROOT: &str = "FORDWAY_TEST_FOREIGN_ROOT";

#[test]
#[ignore = "run by another test, in a user namespace"]
fn a_process_in_a_user_namespace() {
    let Some(root) = std::env::var_os(FOREIGN_ROOT) else { return };
    let store: &dyn Store = &PosixStore::open(Path::new(&root), PosixConfig::default()).unwrap();
    let found = store.document(&Bucket::new("team").unwrap(), &BucketDocumentKind::known("policy"));
    assert!(!matches!(found, Ok(Some(_))), "{found:?}");
}

/// In a user namespace, all users without an ID there have the same ID. The policy of another user must not be treated
/// as the policy of the bucket's owner.
#[test]
fn another_users_policy_is_not_the_owners_in_a_user_namespace() {
    if !is_root() || !fordway_needs::programs(&["unshare"]) {
        return;
    }
    let ground = Ground::new();
    let team = ground.bucket("team", ALICE, 0o1777);
    ground.on(Lane::Http, ALICE, |store| put(store, &team, "k//odd", b"x").unwrap());
    ground.write("team/.fordway/document-policy", BOB, 0o644, "{}");
    let mut process = Command::new("unshare");
    process.args(["--user", "--map-root-user"]).arg(std::env::current_exe().unwrap());
    process.args(["--ignored", "--exact", "area::a_process_in_a_user_namespace"]);
    let ended = process.env(FOREIGN_ROOT, ground.path("")).output().unwrap();
    if String::from_utf8_lossy(&ended.stderr).contains("unshare failed") {
        fordway_needs::skip("there are no user namespaces");
        return;
    }
    let said = String::from_utf8_lossy(&ended.stdout);
    assert!(ended.status.success() && said.contains("1 passed"), "{said}");
}

/// The ID that stands for all users without an ID in a user namespace.
const OVERFLOW_USER: u32 = 65_534;

#[test]
#[ignore = "run by another test, in a user namespace"]
fn a_process_of_the_overflow_user() {
    let Some(root) = std::env::var_os(FOREIGN_ROOT) else { return };
    as_user(OVERFLOW_USER, || {
        let store: &dyn Store = &PosixStore::open(Path::new(&root), PosixConfig::default()).unwrap();
        let policy = BucketDocumentKind::known("policy");
        for name in ["own", "open"] {
            let found = store.document(&bucket(name), &policy).unwrap();
            assert_eq!(found.as_deref(), Some(&b"{}"[..]), "{name}");
            store.set_document(&bucket(name), &policy, b"{ }").unwrap();
            assert_eq!(store.document(&bucket(name), &policy).unwrap().unwrap(), b"{ }", "{name}");
        }
        put(store, &bucket("own"), "k//odd", b"x").unwrap();
        for name in ["foreign-file", "foreign-area"] {
            let found = store.document(&bucket(name), &policy);
            assert!(!matches!(found, Ok(Some(_))), "{name}: {found:?}");
        }
        denied("a policy of another user's bucket", store.set_document(&bucket("foreign"), &policy, b"{}"));
        // Versions and odd keys of all users look alike in a bucket that others may write to.
        let error = put(store, &bucket("open"), "k//odd", b"x").unwrap_err();
        assert!(error.to_string().contains("65534 stands for all users"), "{error}");
        let error = store.set_versioning(&bucket("open"), VersioningState::Enabled).unwrap_err();
        assert!(error.to_string().contains("65534 stands for all users"), "{error}");
    });
}

/// A process may be the user whose ID also stands for all users without an ID in its user namespace (`runAsUser: 65534`
/// in Kubernetes). The process sets the policies of its own buckets, and believes no policy of another user.
#[test]
fn the_overflow_user_owns_only_its_own_buckets() {
    const OTHER: u32 = 70_000;
    if !is_root() || !fordway_needs::programs(&["unshare"]) {
        return;
    }
    let ground = Ground::new();
    for (name, owner, mode, (area, author)) in [
        ("own", OVERFLOW_USER, 0o755, (OVERFLOW_USER, OVERFLOW_USER)),
        ("open", OVERFLOW_USER, 0o1777, (OVERFLOW_USER, OVERFLOW_USER)),
        ("foreign-file", OVERFLOW_USER, 0o755, (OVERFLOW_USER, OTHER)),
        ("foreign-area", OVERFLOW_USER, 0o755, (OTHER, OVERFLOW_USER)),
        ("foreign", OTHER, 0o777, (OTHER, OTHER)),
    ] {
        ground.bucket(name, owner, mode);
        ground.make_dirs(&ground.path(&format!("{name}/.fordway")), area);
        ground.write(&format!("{name}/.fordway/document-policy"), author, 0o644, "{}");
    }
    let mut process = Command::new("unshare");
    process.args(["--user", "sh", "-c", "echo ready && read go && exec \"$0\" \"$@\""]);
    process.arg(std::env::current_exe().unwrap());
    process.args(["--ignored", "--exact", "area::a_process_of_the_overflow_user", "--nocapture"]);
    process.env(FOREIGN_ROOT, ground.path("")).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut process = process.spawn().unwrap();
    let mut said = BufReader::new(process.stdout.take().unwrap());
    let mut ready = String::new();
    said.read_line(&mut ready).unwrap();
    let give_ids = |file| fs::write(format!("/proc/{}/{file}", process.id()), "0 0 65536\n");
    if ready != "ready\n" || ["uid_map", "gid_map"].map(give_ids).iter().any(Result::is_err) {
        process.kill().unwrap();
        process.wait().unwrap();
        fordway_needs::skip("there are no user namespaces");
        return;
    }
    process.stdin.take().unwrap().write_all(b"go\n").unwrap();
    let mut rest = String::new();
    said.read_to_string(&mut rest).unwrap();
    assert!(process.wait().unwrap().success() && rest.contains("1 passed"), "{rest}");
}

/// A document that controls access is ignored if other users may have changed it, or may have moved it into place. Such
/// a document may be any file of the bucket's owner.
#[test]
fn a_policy_that_others_may_have_written_or_moved_is_not_believed() {
    if !is_root() {
        return;
    }
    let ground = Ground::new();
    let (team, policy) = (ground.bucket("team", ALICE, 0o777), BucketDocumentKind::known("policy"));
    let path = "team/.fordway/document-policy";
    ground.write(path, ALICE, 0o664, "{}");
    chmod(&ground.path("team/.fordway"), 0o777);
    let deny_all = |what: &str| {
        for lane in Lane::ALL {
            ground.on(lane, ALICE, |store| denied(what, store.document(&team, &policy)));
        }
    };
    deny_all("a policy that others may write to");
    chmod(&ground.path(path), 0o644);
    deny_all("a policy without its owner's mark");
    let set = |document: &[u8]| {
        ground.on(Lane::Embedded, ALICE, |store| store.set_document(&team, &policy, document).unwrap());
    };
    let believed = || ground.on(Lane::Node, ALICE, |store| store.document(&team, &policy)).unwrap().unwrap();
    set(b"{}");
    assert_eq!(believed(), b"{}");
    // Bob gives the policy's path to an object of Alice, to her ACL, and to her former policy.
    ground.on(Lane::Http, ALICE, |store| put(store, &team, "example.json", b"{}").unwrap());
    let acl = BucketDocumentKind::known("acl");
    ground.on(Lane::Embedded, ALICE, |store| store.set_document(&team, &acl, b"private").unwrap());
    let rename = |from: &str, to: &str| {
        let (from, to) = (ground.path(from), ground.path(to));
        as_user(BOB, || fs::rename(from, to)).unwrap();
    };
    rename(path, "team/former");
    for from in ["team/example.json", "team/.fordway/document-acl"] {
        set(b"{\"strict\": true}");
        rename(from, path);
        deny_all(from);
    }
    set(b"{\"strict\": true}");
    std::thread::sleep(Duration::from_millis(2500));
    rename("team/former", path);
    deny_all("the former policy");
    let found: Vec<_> = ground.check().into_iter().map(|(_, path)| path).collect();
    assert!(found.is_empty() || found == [path], "{found:?}");
    // Nobody but Alice could have moved the file if her directories are closed, or have the sticky bit.
    for (mode, private) in [(0o1777, 0o1777), (0o755, 0o755)] {
        chmod(&ground.path("team"), mode);
        chmod(&ground.path("team/.fordway"), private);
        std::thread::sleep(Duration::from_millis(30));
        assert_eq!(believed(), b"{}", "{mode:o}");
    }
}

/// All users may create symbolic links in a bucket. A user who is limited to some buckets cannot reach another bucket
/// through a link.
#[test]
fn for_a_limited_user_no_link_leads_to_another_bucket() {
    if !is_root() {
        return;
    }
    for limits in ["buckets=['pub']\n", "buckets=['pub']\nread_only=true\n", "buckets=['pu*', 'link']\n"] {
        for uid in [BOB, 0] {
            let user = "[[user]]\nname='guest'\naccess_key='guest'\nsecret_key='secret'\n";
            let ground = Ground::with_user(&format!("{user}uid={uid}\ngid={uid}\n{limits}"));
            let (public, private) = (ground.bucket("pub", BOB, 0o755), ground.bucket("private", BOB, 0o755));
            ground.write("private/dir/secret", BOB, 0o644, "secret");
            ground.write("pub/dir/open", BOB, 0o644, "open");
            for (link, target) in [
                ("pub/up", ".."),
                ("pub/file", "../private/dir/secret"),
                ("pub/dir/far", "../../private/dir"),
                ("pub/abs", "/etc"),
                ("pub/within", "dir"),
                ("pub/within-file", "dir/open"),
                ("link", "private"),
            ] {
                symlink(target, ground.path(link)).unwrap();
            }
            let guest = ground.client("guest");
            let ways = ["up/private/dir/secret", "up/pub/dir/open", "file", "dir/far/secret", "abs/passwd"];
            for way in ways {
                for options in [GetOptions::default(), GetOptions::range(fordway_store::ByteRange::From(0))] {
                    denied(way, guest.get(&public, &key(way), &options));
                }
                denied(way, guest.head(&public, &key(way), &GetOptions::default()));
                denied(way, guest.copy((&public, &key(way)), &public, &key("copy"), &Default::default()));
                if !way.ends_with("file") {
                    denied(way, put(&guest, &public, way, b"guest"));
                    denied(way, guest.delete(&public, &key(way), &DeleteOptions::default()));
                    denied(way, upload(&guest, &public, way));
                }
            }
            assert_eq!(read(&guest, &public, "within/open").unwrap(), b"open");
            assert_eq!(read(&guest, &public, "within-file").unwrap(), b"open");
            let names = |bucket: &Bucket| -> Vec<String> {
                let page = guest.list(bucket, &Default::default()).unwrap();
                page.entries.iter().map(|entry| entry.name().to_owned()).collect()
            };
            assert!(names(&public).iter().all(|name| !name.contains("secret")), "{:?}", names(&public));
            denied("another bucket", guest.list(&private, &Default::default()));
            let link = guest.list(&bucket("link"), &Default::default());
            assert!(link.is_err(), "a bucket that is a link is none of theirs");
            assert_eq!(fs::read(ground.path("private/dir/secret")).unwrap(), b"secret");
            // For a user without this limit, links may lead anywhere below the root.
            assert_eq!(read(&ground.client("bob"), &public, "up/private/dir/secret").unwrap(), b"secret");
            let missing = read(&guest, &public, "dir/none").expect_err("it does not exist");
            assert_eq!(missing.kind(), ErrorKind::NoSuchKey);
        }
    }
}

/// Puts an object in one part.
fn upload(store: &dyn Store, bucket: &Bucket, name: &str) -> Result<PutResult> {
    let upload = store.create_upload(bucket, &key(name), &PutOptions::default())?;
    let mut part = store.part_writer(bucket, &key(name), &upload, 1, &PartOptions::default())?;
    part.write(b"guest")?;
    let parts = [CompletedPart::new(1, part.commit(&ExpectedContent::default())?.etag)];
    store.complete_upload(bucket, &key(name), &upload, &parts, &CompleteOptions::default())
}

/// In a root with an older format version, the private area of a sticky bucket was created by a user other than the
/// bucket's owner. The store uses this area only for operations that are safe. After the user root has run the
/// migration, the store uses the area for all operations.
#[test]
fn an_old_root_is_migrated() {
    if !is_root() {
        return;
    }
    let ground = Ground::new();
    let shared = ground.bucket("shared", 0, 0o1777);
    for path in ["odd/alice%2F%2Fkey", "odd/bob%2F%2Fkey", "locks", "tmp/0123456789abcdef"] {
        ground.write(
            &format!("shared/.fordway/{path}"),
            BOB,
            0o666,
            if path.starts_with("odd") { "old" } else { "" },
        );
    }
    ground.write("shared/.fordway/notes/mine", BOB, 0o600, "what Fordway never makes");
    for path in ["", "odd", "tmp"] {
        chmod(&ground.path(&format!("shared/.fordway/{path}")), 0o777);
    }
    lchown(ground.path("shared/.fordway/odd/alice%2F%2Fkey"), Some(ALICE), Some(ALICE)).unwrap();
    ground.on(Lane::Http, ALICE, |store| {
        assert_eq!(read(store, &shared, "alice//key").unwrap(), b"old");
        put(store, &shared, "plain", b"a").unwrap();
        put(store, &shared, "plain", b"b").unwrap();
        store.delete(&shared, &key("plain"), &DeleteOptions::default()).unwrap();
        denied("odd key", put(store, &shared, "alice//key", b"new"));
    });
    // The put is also denied if the owner created the area, as long as all users may remove its files.
    for path in ["", "odd"] {
        lchown(ground.path(&format!("shared/.fordway/{path}")), Some(0), Some(0)).unwrap();
    }
    ground.on(Lane::Http, ALICE, |store| denied("odd key", put(store, &shared, "alice//key", b"new")));
    let mut done = Vec::new();
    let migrated = ground.embedded().migrate(&[], &mut |event| {
        match event {
            MigrationEvent::Done(step) => done.push(step.path),
            MigrationEvent::Failed(error) => panic!("{error}"),
        }
        Ok(())
    });
    migrated.unwrap();
    for path in ["", "/odd", "/tmp", "/locks"] {
        let state = fs::metadata(ground.path(&format!("shared/.fordway{path}"))).unwrap();
        assert_eq!((state.uid(), state.mode() & 0o1000 != 0), (0, path != "/locks"), "{path}");
        assert!(done.contains(&format!("shared/.fordway{path}")), "{done:?}");
    }
    assert_eq!(ground.owner("shared/.fordway/notes"), BOB);
    assert_eq!(ground.owner("shared/.fordway/odd/alice%2F%2Fkey"), ALICE);
    for lane in Lane::ALL {
        ground.on(lane, ALICE, |store| put(store, &shared, "alice//key", b"new").unwrap());
        ground.on(lane, BOB, |store| denied("odd key", put(store, &shared, "alice//key", b"bob")));
    }
    assert!(ground.check().iter().all(|(kind, _)| kind == "stray-private"), "{:?}", ground.check());
}

/// If a bucket's owner has no access to the bucket, root's `gc` and `fsck` have no access either, because they act as
/// the owner. The two commands must report the bucket.
#[test]
fn a_bucket_that_its_owner_may_not_reach_is_reported() {
    if !is_root() {
        return;
    }
    let ground = Ground::new();
    ground.bucket("alice", ALICE, 0o755);
    ground.write("alice/.fordway/tmp/0123456789abcdef", ALICE, 0o600, "staged");
    chmod(&ground.path(""), 0o700);
    let summary = ground.collect();
    assert!(summary.failed > 0 && summary.removed == 0);
    assert!(ground.check().iter().any(|(kind, _)| kind == "unreadable"));
    assert!(ground.path("alice/.fordway/tmp/0123456789abcdef").exists());
    chmod(&ground.path(""), 0o755);
    assert_eq!(ground.collect().removed, 1);
}

/// If the bucket's owner may not open a directory, `gc` and `fsck` read it as the directory's owner.
#[test]
fn a_directory_of_another_user_is_looked_at_as_that_user() {
    if !is_root() {
        return;
    }
    let ground = Ground::new();
    let shared = ground.bucket("shared", ALICE, 0o1777);
    ground.on(Lane::Http, BOB, |store| put(store, &shared, "bob/deep/key", b"x").unwrap());
    fs::remove_file(ground.path("shared/bob/deep/key")).unwrap();
    ground.write("shared/closed/file", BOB, 0o600, "x");
    for path in ["shared/bob", "shared/bob/deep", "shared/closed"] {
        chmod(&ground.path(path), 0o700);
    }
    assert_eq!(ground.check(), []);
    assert_eq!(ground.collect().removed, 2, "the directories that Bob's put had made");
    assert!(!ground.path("shared/bob").exists());
    assert_eq!(fs::read(ground.path("shared/closed/file")).unwrap(), b"x");
}

/// Files that one user of a shared bucket creates next to other users' files must not hide or change the other users'
/// objects.
#[test]
fn nothing_that_is_planted_hides_what_is_anothers() {
    if !is_root() {
        return;
    }
    for lane in Lane::ALL {
        let ground = Ground::new();
        let shared = ground.bucket("shared", 0, 0o1777);
        ground.embedded().set_versioning(&shared, VersioningState::Enabled).unwrap();
        let upload = ground.on(lane, ALICE, |store| {
            for body in ["old", "new"] {
                put(store, &shared, "a//b", body.as_bytes()).unwrap();
                put(store, &shared, "k", body.as_bytes()).unwrap();
            }
            store.create_upload(&shared, &key("up"), &PutOptions::default()).unwrap()
        });
        plant_everything(&ground);
        ground.on(lane, ALICE, |store| {
            let listed = store.list(&shared, &Default::default()).unwrap();
            let names: Vec<&str> = listed.entries.iter().map(|entry| entry.name()).collect();
            assert!(names.contains(&"a//b") && names.contains(&"k"), "{lane:?} {names:?}");
            let versions = store.list_versions(&shared, &VersionsQuery::default()).unwrap().versions;
            assert_eq!(versions.iter().filter(|version| version.key == "a//b").count(), 2, "{lane:?}");
            let uploads = store.list_uploads(&shared, &Default::default()).unwrap().uploads;
            assert!(uploads.iter().any(|found| found.upload == upload), "{lane:?} {uploads:?}");
            for name in ["a//b", "k"] {
                assert_eq!(read(store, &shared, name).unwrap(), b"new");
                put(store, &shared, name, b"newest").unwrap();
                store.delete(&shared, &key(name), &DeleteOptions::default()).unwrap();
            }
            store.abort_upload(&shared, &key("up"), &upload).unwrap();
        });
    }
}

/// Creates links, unreadable files and directories, and FIFOs as Bob, wherever Bob may write.
fn plant_everything(ground: &Ground) {
    let long = format!("{}%", "x".repeat(240));
    for dir in ["", "/odd", "/versions", "/mpu", "/tmp", "/meta", "/versions/k", "/versions/a%2F%2Fb"] {
        let dir = ground.path(&format!("shared/.fordway{dir}"));
        if !dir.exists() {
            continue;
        }
        as_user(BOB, || {
            let upload = "0123456789abcdef0123456789abcdef";
            for name in ["link", upload, "0000000000000001-null", "0123456789abcdef"] {
                let _ = symlink("../../../secret", dir.join(name));
            }
            symlink("..", dir.join(format!("z{}", &long[1..]))).unwrap();
            fs::write(dir.join("closed"), "x").unwrap();
            fs::write(dir.join("0000000000000002-null"), "x").unwrap();
            for closed in [dir.join(&long), dir.join(upload.replace('0', "1"))] {
                fs::create_dir(&closed).unwrap();
                fs::set_permissions(closed, PermissionsExt::from_mode(0o000)).unwrap();
            }
            for closed in ["closed", "0000000000000002-null"] {
                fs::set_permissions(dir.join(closed), PermissionsExt::from_mode(0o000)).unwrap();
            }
            rustix::fs::mknodat(
                rustix::fs::CWD,
                dir.join("fifo"),
                rustix::fs::FileType::Fifo,
                rustix::fs::Mode::from_raw_mode(0o666),
                0,
            )
            .unwrap();
        });
    }
}
