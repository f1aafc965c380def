//! Tests `gc` and `fsck` on a directory.

use std::path::PathBuf;
use std::time::Duration;

use fordway_command::CommandExit;
use fordway_posix::{PosixConfig, PosixStore};
use fordway_store::{
    ChecksumAlgorithm, ExpectedContent, MultipartUploadOperations, ObjectVersionOperations, Objects,
    PartOptions, PutOptions, VersioningState,
};

use crate::support::{Rig, bucket, name};

/// Returns a rig with the directory `DIR/root`, which contains a bucket with an object, and the store on this
/// directory.
fn rig_with_a_bucket() -> (Rig, PosixStore) {
    let rig = Rig::new();
    std::fs::create_dir(rig.path("root")).unwrap();
    let store = PosixStore::open(&rig.path("root"), PosixConfig::default()).unwrap();
    store.create_bucket(&bucket("bkt")).unwrap();
    let options = PutOptions { checksum: Some(ChecksumAlgorithm::Crc32c), ..Default::default() };
    store.put(&bucket("bkt"), &name("k"), b"content", &options).unwrap();
    (rig, store)
}

fn rot(path: PathBuf) {
    let modified = path.metadata().unwrap().modified().unwrap();
    std::fs::write(&path, "conTent").unwrap();
    std::fs::File::options().write(true).open(&path).unwrap().set_modified(modified).unwrap();
}

#[test]
fn gc_says_what_it_would_do_and_then_does_it() {
    let (rig, _) = rig_with_a_bucket();
    rig.write("root/bkt/.fordway/tmp/0123456789abcdef", "1234");
    std::thread::sleep(Duration::from_millis(50));
    let line = "remove staged-file: bkt/.fordway/tmp/0123456789abcdef (4 Bytes)";
    let ran = rig.run(&["gc", "DIR/root"]).ok();
    assert_eq!(ran.stdout.lines().next_back().unwrap().split(" of ").next(), Some("removed 0"));

    let old = ["--older-than", "0s", "--uploads-older-than", "0s"];
    let ran = rig.run(&[&["gc", "DIR/root", "--dry-run"], &old[..]].concat()).ok();
    assert!(ran.stdout.starts_with(&format!("(dry run) {line}\n(dry run) removed 1 of ")), "{}", ran.stdout);
    assert!(rig.path("root/bkt/.fordway/tmp/0123456789abcdef").exists());

    let ran = rig.run(&[&["gc", "DIR/root", "--bucket", "bkt"], &old[..]].concat()).ok();
    assert!(ran.stdout.starts_with(&format!("{line}\nremoved 1 of ")), "{}", ran.stdout);
    assert!(ran.stdout.ends_with(" entries, 4 Bytes freed\n"), "{}", ran.stdout);
    assert!(!rig.path("root/bkt/.fordway/tmp/0123456789abcdef").exists());
    assert_eq!(std::fs::read(rig.path("root/bkt/k")).unwrap(), b"content");
}

/// Users who are allowed to create files choose the names of these files. Such a name must not be able to control the
/// terminal of a user who lists the files.
#[test]
fn names_do_not_control_the_terminal() {
    let (rig, _) = rig_with_a_bucket();
    let (evil, shown) = ("a\u{1b}]0;t\u{7}\nremove: k", r"a\u{1b}]0;t\u{7}\nremove: k");
    rig.memory.put(&bucket("bkt"), &name(evil), b"content", &PutOptions::default()).unwrap();
    let below = format!("{evil}-p/x");
    rig.memory.put(&bucket("bkt"), &name(&below), b"content", &PutOptions::default()).unwrap();
    let dir = rig.path("root/bkt").join(format!("{evil}-dir"));
    std::fs::create_dir(&dir).unwrap();
    let dir = std::fs::File::open(dir).unwrap();
    fordway_sys::set_xattr(dir, c"user.fordway.dir", b"1").unwrap();
    std::thread::sleep(Duration::from_millis(50));
    for ran in [
        rig.run(&["ls", "s3://bkt/"]),
        rig.run(&["rm", "--recursive", "--dryrun", "s3://bkt/"]),
        rig.run(&["du", "s3://bkt/"]),
        rig.run(&["du", &format!("s3://bkt/{evil}")]),
        rig.run(&["stat", &format!("s3://bkt/{evil}")]),
        rig.run(&["cat", &format!("s3://bkt/{evil}")]),
        rig.run(&["cat", &format!("s3://bkt/{evil}-none")]),
        rig.run(&["gc", "DIR/root", "--older-than", "0s"]),
    ] {
        let text = ran.stdout + &ran.stderr;
        assert!(!text.contains(|c: char| c.is_control() && c != '\n'), "{text}");
        assert!(text == "content" || text.contains(shown), "{text}");
        assert!(!text.lines().any(|line| line.starts_with("remove: k")), "{text}");
    }
}

#[test]
fn gc_in_json_and_quietly() {
    let (rig, store) = rig_with_a_bucket();
    let upload = store.create_upload(&bucket("bkt"), &name("big"), &PutOptions::default()).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    let ran = rig.run(&["gc", "DIR/root", "--uploads-older-than", "0s", "--dry-run", "--json"]).ok();
    let lines: Vec<serde_json::Value> =
        ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines[0]["kind"], "upload");
    assert_eq!(lines[0]["path"], format!("bkt/.fordway/mpu/{}", upload.as_str()));
    assert_eq!((&lines[1]["kind"], &lines[1]["removed"]), (&"summary".into(), &1.into()));
    assert_eq!(lines[1]["freed_bytes"], lines[0]["size_bytes"]);
    let ran = rig.run(&["gc", "DIR/root", "--uploads-older-than", "0s", "--quiet"]).ok();
    assert_eq!(ran.stdout, "");
    assert_eq!(std::fs::read_dir(rig.path("root/bkt/.fordway/mpu")).unwrap().count(), 0);
}

#[test]
fn fsck_ends_with_8_only_where_data_is_corrupt() {
    let (rig, _) = rig_with_a_bucket();
    let clean = "checked 1 files (7 Bytes): 0 corrupt, 0 unreadable, 0 notes\n";
    assert_eq!(rig.run(&["fsck", "DIR/root"]).ok().stdout, clean);
    std::os::unix::fs::symlink("nowhere", rig.path("root/bkt/line\nbreak")).unwrap();
    let noted = rig.run(&["fsck", "DIR/root", "--read"]).ok().stdout;
    assert!(noted.starts_with("note: link-dangling: bkt/line\\nbreak; remove it or "), "{noted}");
    assert_eq!(noted.lines().count(), 2);
    rot(rig.path("root/bkt/k"));
    rig.run(&["fsck", "DIR/root"]).ok();
    let rotten = rig.run(&["fsck", "DIR/root", "--read", "--bucket", "bkt"]).ended(CommandExit::Corrupt);
    assert_eq!(rotten.stderr, "");
    let found = rotten.stdout.lines().find(|line| line.starts_with("corrupt: corrupt: bkt/k: ")).unwrap();
    assert!(found.contains("CRC32C is ") && found.contains("; restore it from a copy"), "{found}");
}

#[test]
fn a_bucket_in_place_of_a_root_is_noticed() {
    let (rig, store) = rig_with_a_bucket();
    store.create_upload(&bucket("bkt"), &name("big"), &PutOptions::default()).unwrap();
    for (words, exit) in [
        (&["fsck"][..], CommandExit::Ok),
        (&["fsck", "--migrate"], CommandExit::Usage),
        (&["gc"], CommandExit::Usage),
        (&["lifecycle"], CommandExit::Usage),
        (&["du", "--by-user"], CommandExit::Usage),
    ] {
        let ran = rig.run(&[words, &["DIR/root/bkt"]].concat()).ended(exit);
        let root = rig.path("root").canonicalize().unwrap();
        let advice = format!(
            "bkt looks like a bucket, not like the root of buckets; its root is {}\n",
            root.display()
        );
        assert!(ran.stderr.ends_with(&advice), "{}", ran.stderr);
        rig.run(&[words, &["DIR/root"]].concat()).ok();
    }
}

#[test]
fn fsck_in_json_has_one_object_per_finding() {
    let (rig, _) = rig_with_a_bucket();
    rot(rig.path("root/bkt/k"));
    let ran = rig.run(&["fsck", "DIR/root", "--read", "--json", "--quiet"]).ended(CommandExit::Corrupt);
    let finding: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(
        (&finding["severity"], &finding["kind"], &finding["path"]),
        (&"corrupt".into(), &"corrupt".into(), &"bkt/k".into())
    );
}

#[test]
fn what_is_not_there_is_said() {
    let (rig, _) = rig_with_a_bucket();
    for command in ["gc", "fsck", "lifecycle"] {
        let ran = rig.run(&[command, "DIR/none"]).ended(CommandExit::NotFound);
        let advice = "none does not exist; correct the path, or create the directory";
        assert!(ran.stderr.contains(advice), "{}", ran.stderr);
        let ran = rig.run(&[command, "DIR/root", "--bucket", "missing"]).ended(CommandExit::NotFound);
        assert!(ran.stderr.contains("s3://missing"), "{}", ran.stderr);
    }
    rig.interrupt.raise();
    rig.run(&["fsck", "DIR/root"]).ended(CommandExit::Interrupted);
}

/// One owner has objects, an old version and an upload. If this test is permitted to change the owner of a file,
/// another owner has a file.
#[test]
fn du_counts_by_owner_what_listings_do_not_show() {
    let (rig, store) = rig_with_a_bucket();
    let (bkt, odd) = (bucket("bkt"), name("a//b"));
    store.put(&bkt, &odd, b"odd", &PutOptions::default()).unwrap();
    store.set_versioning(&bkt, VersioningState::Enabled).unwrap();
    store.put(&bkt, &name("k"), b"newer content", &PutOptions::default()).unwrap();
    let upload = store.create_upload(&bkt, &name("big"), &PutOptions::default()).unwrap();
    let mut part = store.part_writer(&bkt, &name("big"), &upload, 1, &PartOptions::default()).unwrap();
    part.write(&[0; 1000]).unwrap();
    part.commit(&ExpectedContent::default()).unwrap();
    rig.write("root/bkt/by/posix", "12345");
    let is_root = std::os::unix::fs::chown(rig.path("root/bkt/by/posix"), Some(4242), None).is_ok();
    std::os::unix::fs::symlink("/etc", rig.path("root/bkt/link")).unwrap();

    let ran = rig.run(&["du", "DIR/root", "--by-user", "--json"]).ok();
    let lines: Vec<serde_json::Value> =
        ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let mine = &lines[0];
    assert_eq!((&mine["bucket"], &mine["uid"]), (&"bkt".into(), &fordway_sys::user_id().into()));
    let of_others = if is_root { 0 } else { 5 };
    assert_eq!(mine["objects_bytes"], "odd".len() + "newer content".len() + of_others);
    assert_eq!((&mine["versions"], &mine["versions_bytes"]), (&1.into(), &"content".len().into()));
    assert!(mine["other_bytes"].as_u64() >= Some(1000), "{mine}");
    if is_root {
        let other = &lines[1];
        assert_eq!((&other["uid"], &other["user"]), (&4242.into(), &serde_json::Value::Null));
        assert_eq!((&other["objects"], &other["objects_bytes"]), (&1.into(), &5.into()));
    }
    let metrics = rig.run(&["du", "DIR/root", "--by-user", "--prometheus"]).ok().stdout;
    let user = fordway_sys::user_name(fordway_sys::user_id()).unwrap();
    for (name, kind, value) in [
        ("stored_files", "versions", mine["versions"].as_u64()),
        ("stored_bytes", "objects", mine["objects_bytes"].as_u64()),
        ("stored_bytes", "other", mine["other_bytes"].as_u64()),
    ] {
        let value = value.unwrap();
        let line = format!("fordway_{name}{{bucket=\"bkt\",user=\"{user}\",kind=\"{kind}\"}} {value}\n");
        assert!(metrics.contains(&line), "{line}is not in\n{metrics}");
    }
    let ran = rig.run(&["du", "s3://bkt", "--by-user"]);
    assert!(ran.stderr.contains("specify the directory that contains the buckets"), "{}", ran.stderr);
}
