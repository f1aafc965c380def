//! Tests what `check` reports as a finding, and what it does not report.

use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::os::unix::net::UnixListener;

use fordway_posix::{FindingSeverity, FsckEvent, FsckFinding, FsckOptions, FsckSummary, MigrationEvent};
use fordway_store::{
    BoxedMetadata, Bucket, BucketDocumentKind, BucketDocumentOperations, ChecksumAlgorithm, ChecksumType,
    ETagPolicy, Error, ErrorKind, MAX_TAGS, MIN_PART_BYTES, Metadata, MultipartUploadOperations, Objects,
    PutOptions, UploadsQuery,
};

use crate::support::{Rig, bucket, name};

fn check(rig: &Rig, read: bool) -> (FsckSummary, Vec<FsckFinding>) {
    let mut found = Vec::new();
    let options = FsckOptions { read, document_problem: Some(document_problem), ..Default::default() };
    let summary = rig.store.check(&options, &mut |event| {
        if let FsckEvent::Found(finding) = event {
            found.push(finding);
        }
        Ok(())
    });
    found.sort_by(|a, b| (&a.path, a.kind.name()).cmp(&(&b.path, b.kind.name())));
    (summary.unwrap(), found)
}

/// The rule for documents in these tests: a document must not begin with `?`.
fn document_problem(bucket: &Bucket, kind: &BucketDocumentKind, document: &[u8]) -> Option<String> {
    document.starts_with(b"?").then(|| format!("the {kind} of {bucket} begins with ?"))
}

fn kinds_and_paths(found: &[FsckFinding]) -> Vec<(&str, &str)> {
    found.iter().map(|finding| (finding.kind.name(), finding.path.as_str())).collect()
}

/// Changes content without a visible trace: the file's modification time is restored.
fn rot(rig: &Rig, below: &str, body: &[u8]) {
    let path = rig.path(below);
    let modified = path.metadata().unwrap().modified().unwrap();
    fs::write(&path, body).unwrap();
    File::options().write(true).open(&path).unwrap().set_modified(modified).unwrap();
}

#[test]
fn a_store_in_use_is_clean() {
    let rig = Rig::new();
    for key in ["a", "a/b", "d/e/f", "x//y", ".fordway", "dir/", &"k".repeat(300)] {
        rig.put(key, key);
    }
    let user = (0..20).map(|n| (format!("name-{n}"), "v".repeat(40))).collect();
    let metadata =
        BoxedMetadata::from(Metadata { content_type: Some("text/x".into()), user, ..Default::default() });
    rig.put_with("long-record", "x", &PutOptions { metadata, ..Default::default() });
    rig.put_apart("apart", "x");
    rig.keep_versions();
    rig.put("versioned", "one");
    rig.put("versioned", "two");
    rig.delete("versioned");
    rig.write("posix/made", "by hand");
    symlink("posix/made", rig.path("link")).unwrap();
    let upload = rig.start_upload("big");
    rig.put_part("big", &upload, 1, b"part");
    for read in [false, true] {
        let (summary, found) = check(&rig, read);
        assert_eq!(found, []);
        // The bucket contains ten objects, two old versions, one delete marker and one part.
        assert_eq!((summary.files, summary.corrupt, summary.notes), (14, 0, 0));
    }
}

#[test]
fn each_damage_of_objects_is_found() {
    let rig = Rig::new();
    for key in ["fine", "longer", "rewritten", "mangled", "x//y"] {
        rig.put(key, "content");
    }
    rig.write("longer", "content and more");
    std::thread::sleep(std::time::Duration::from_millis(20));
    rig.write("rewritten", "CONTENT");
    rig.set_attribute("mangled", c"user.fordway", b"\x09nonsense");
    rig.write(".fordway/odd/%zz", "not ours");
    let deep = ["d".repeat(250).as_str(); 5].join("/");
    rig.write(&format!("{deep}/f"), "too long a key");
    fs::write(rig.dir.path().join("bkt").join(OsStr::from_bytes(b"latin\xe4")), "").unwrap();
    symlink("../../outside", rig.path("out")).unwrap();
    symlink("nowhere", rig.path("dangling")).unwrap();
    symlink("circle", rig.path("circle")).unwrap();
    rig.write("moved/.fordway/versions/k/0000000000000001-null", "");
    rig.write("moved/d/.fordway", "a file");
    let _socket = UnixListener::bind(rig.path("socket")).unwrap();

    let (summary, found) = check(&rig, false);
    let deep = format!("bkt/{deep}/f");
    let mut expected = vec![
        ("odd-name", "bkt/.fordway/odd/%zz"),
        ("link-outside", "bkt/circle"),
        ("link-dangling", "bkt/dangling"),
        ("long-key", deep.as_str()),
        ("not-utf8", "bkt/latin\\xe4"),
        ("changed", "bkt/longer"),
        ("bad-record", "bkt/mangled"),
        ("nested-private", "bkt/moved/.fordway"),
        ("nested-private", "bkt/moved/d/.fordway"),
        ("link-outside", "bkt/out"),
        ("changed", "bkt/rewritten"),
        ("special-file", "bkt/socket"),
    ];
    expected.sort_by_key(|(_, path)| *path);
    assert_eq!(kinds_and_paths(&found), expected);
    assert_eq!((summary.corrupt, summary.notes, summary.unreadable), (1, 11, 0));
    let longer = found.iter().find(|finding| finding.path == "bkt/longer").unwrap();
    assert_eq!(longer.detail, "7 bytes were stored, but the file now has 16");
}

#[test]
fn a_bucket_that_leads_into_another_bucket_is_found() {
    let rig = Rig::new();
    rig.put("d/k", "content");
    for (link, target) in [("alias", "bkt"), ("part", "bkt/d")] {
        symlink(target, rig.dir.path().join(link)).unwrap();
    }
    let (summary, found) = check(&rig, false);
    assert_eq!(kinds_and_paths(&found), [("bucket-link", "part")]);
    assert_eq!((summary.corrupt, summary.notes, summary.unreadable), (0, 1, 0));
}

#[test]
fn each_damage_of_what_lies_beside_objects_is_found() {
    let rig = Rig::new();
    rig.keep_versions();
    for key in ["fine", "lost", "mangled", "recycled"] {
        rig.put_apart(key, "content");
    }
    fs::remove_file(rig.sidecar_of("lost")).unwrap();
    fs::write(rig.sidecar_of("mangled"), "\x09nonsense").unwrap();
    // After a restore from a backup, a new file can have another file's sidecar file. This copy creates such a case.
    fs::copy(rig.sidecar_of("fine"), rig.sidecar_of("recycled")).unwrap();
    rig.put("versioned", "one");
    rig.put("versioned", "two");
    rig.set_attribute(&rig.kept_versions("versioned")[0], c"user.fordway", b"\x09");
    rig.write(".fordway/versions/versioned/no-version", "");
    rig.write(".fordway/versions/%zz/0000000000000001-null", "");
    rig.write(".fordway/meta/0x", "");
    rig.write(".fordway/notes", "");
    rig.write(".fordway/tmp/notes", "");
    fs::remove_file(rig.path(".fordway/locks")).unwrap();
    fs::create_dir(rig.path(".fordway/locks")).unwrap();
    rig.write(".fordway/versioning", "perhaps\n");
    let (summary, found) = check(&rig, true);
    let old = format!("bkt/{}", rig.kept_versions("versioned")[0]);
    let mut expected = vec![
        ("not-ours", "bkt/.fordway/locks"),
        ("sidecar-name", "bkt/.fordway/meta/0x"),
        ("stray-private", "bkt/.fordway/notes"),
        ("stray-private", "bkt/.fordway/tmp/notes"),
        ("bad-versioning", "bkt/.fordway/versioning"),
        ("version-name", "bkt/.fordway/versions/%zz/0000000000000001-null"),
        ("bad-record", old.as_str()),
        ("version-name", "bkt/.fordway/versions/versioned/no-version"),
        ("record-missing", "bkt/lost"),
        ("bad-record", "bkt/mangled"),
        ("record-missing", "bkt/recycled"),
    ];
    expected.sort_by_key(|(_, path)| *path);
    assert_eq!(kinds_and_paths(&found), expected);
    assert_eq!((summary.corrupt, summary.notes), (6, 5));
}

/// A directory or file in the private area that lacks permissions of the bucket's directory locks other writers out.
#[test]
fn a_mode_that_locks_other_writers_out_is_found_and_corrected() {
    let rig = Rig::new();
    fs::set_permissions(rig.path(""), Permissions::from_mode(0o777)).unwrap();
    for content in ["one", "two"] {
        rig.put("k", content);
    }
    assert_eq!(kinds_and_paths(&check(&rig, false).1), []);
    for (path, mode) in [(".fordway/tmp", 0o755), (".fordway/locks", 0o600)] {
        fs::set_permissions(rig.path(path), Permissions::from_mode(mode)).unwrap();
    }
    let (summary, found) = check(&rig, false);
    let expected = [("closed-private", "bkt/.fordway/locks"), ("closed-private", "bkt/.fordway/tmp")];
    assert_eq!(kinds_and_paths(&found), expected);
    assert_eq!((summary.corrupt, summary.notes), (0, 2));
    rig.store.migrate(&[], &mut |_| Ok(())).unwrap();
    assert_eq!(kinds_and_paths(&check(&rig, false).1), []);
}

/// `chmod -R 1777` sets the sticky bit on files. The bit hides a record from readers until the migration removes it.
#[test]
fn a_sticky_bit_that_hides_a_record_is_found_and_removed() {
    let rig = Rig::new();
    let bare = PutOptions { etag_policy: Some(ETagPolicy::Fast), ..Default::default() };
    rig.put_with("bare", "content", &bare);
    rig.write("made", "by hand");
    for key in ["plain", "x//y", "dir/below"] {
        rig.put(key, "content");
    }
    rig.put_apart("apart", "content");
    rig.keep_versions();
    rig.put("versioned", "one");
    rig.put("versioned", "two");
    let old = rig.kept_versions("versioned").remove(0);
    let odd = ".fordway/odd/x%2F%2Fy";
    for path in ["bare", "made", "plain", odd, "dir/below", "apart", "versioned", &old] {
        fs::set_permissions(rig.path(path), Permissions::from_mode(0o1777)).unwrap();
    }
    let mut hidden: Vec<String> = ["plain", odd, "dir/below", "apart", "versioned", &old]
        .iter()
        .map(|path| format!("bkt/{path}"))
        .collect();
    hidden.sort_unstable();
    for read in [false, true] {
        let (summary, found) = check(&rig, read);
        let expected: Vec<_> = hidden.iter().map(|path| ("hidden-record", path.as_str())).collect();
        assert_eq!(kinds_and_paths(&found), expected);
        assert_eq!((summary.corrupt, summary.notes), (6, 0));
    }
    let mut done = Vec::new();
    let mut tell = |event: MigrationEvent| match event {
        MigrationEvent::Done(step) => {
            done.push((step.done, step.path));
            Ok(())
        }
        MigrationEvent::Failed(error) => Err(error),
    };
    rig.store.migrate(&[bucket()], &mut tell).unwrap();
    done.retain(|(done, _)| *done == "sticky bit removed, which hid its metadata");
    let mut removed: Vec<_> = done.into_iter().map(|(_, path)| path).collect();
    removed.sort_unstable();
    assert_eq!(removed, hidden);
    assert_eq!(check(&rig, true).1, []);
    assert_eq!(rig.tag_count("apart"), MAX_TAGS);
    let mode = |path: &str| rig.path(path).metadata().unwrap().permissions().mode() & 0o7777;
    assert_eq!(["bare", "made", "plain"].map(mode), [0o1777, 0o1777, 0o777]);
}

/// Root examines files with the rights of their owners, including files that only their owners can read.
#[test]
fn private_files_of_other_users_are_examined() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let rig = Rig::new();
    let bare = PutOptions { etag_policy: Some(ETagPolicy::Fast), ..Default::default() };
    rig.put_with("bare", "content", &bare);
    for key in ["recorded", "hidden"] {
        rig.put(key, "content");
    }
    fs::set_permissions(rig.dir.path(), Permissions::from_mode(0o755)).unwrap();
    chown(rig.path(""), Some(1), None).unwrap();
    for (path, mode) in [("bare", 0o1600), ("recorded", 0o600), ("hidden", 0o1600)] {
        chown(rig.path(path), Some(2), None).unwrap();
        fs::set_permissions(rig.path(path), Permissions::from_mode(mode)).unwrap();
    }
    assert_eq!(kinds_and_paths(&check(&rig, true).1), [("hidden-record", "bkt/hidden")]);
    rig.store.migrate(&[], &mut |_| Ok(())).unwrap();
    assert_eq!(check(&rig, true).1, []);
}

#[test]
fn damaged_uploads_are_found() {
    let rig = Rig::new();
    let (fine, torn) = (rig.start_upload("fine"), rig.start_upload("torn"));
    rig.put_part("fine", &fine, 1, b"part");
    rig.write(&format!(".fordway/mpu/{torn}/upload", torn = torn.as_str()), "\x07torn");
    rig.write(&format!(".fordway/mpu/{}/1", fine.as_str()), "a number is written with five digits");
    rig.write(".fordway/mpu/00000000000000010000000000000001/00001", "a part of nothing");
    rig.write(".fordway/mpu/stray", "");
    let listed = rig.store.list_uploads(&bucket(), &UploadsQuery::default()).unwrap().uploads;
    assert_eq!(
        listed.iter().map(|upload| upload.key.as_str()).collect::<Vec<_>>(),
        ["fine"],
        "others are shown"
    );
    let (summary, found) = check(&rig, true);
    let (stray, torn) =
        (format!("bkt/.fordway/mpu/{}/1", fine.as_str()), format!("bkt/.fordway/mpu/{}", torn.as_str()));
    let mut expected = vec![
        ("upload-rest", "bkt/.fordway/mpu/00000000000000010000000000000001"),
        ("bad-upload", "bkt/.fordway/mpu/00000000000000010000000000000001/00001"),
        ("stray-part", stray.as_str()),
        ("bad-upload", torn.as_str()),
        ("stray-part", "bkt/.fordway/mpu/stray"),
    ];
    expected.sort_by_key(|(_, path)| *path);
    assert_eq!(kinds_and_paths(&found), expected);
    assert_eq!(summary.corrupt, 2);
}

#[test]
fn content_that_rotted_is_found_by_reading() {
    let rig = Rig::new();
    let with = |etag_policy, checksum| PutOptions { etag_policy, checksum, ..Default::default() };
    rig.put_with("md5", "content", &with(Some(ETagPolicy::Md5), None));
    rig.put_with("sound", "content", &with(Some(ETagPolicy::Md5), Some(ChecksumAlgorithm::Sha256)));
    rig.put_with("fast", "content", &with(Some(ETagPolicy::Fast), None));
    for algorithm in ChecksumAlgorithm::ALL {
        rig.put_with(algorithm.name(), vec![7; 700_000], &with(None, Some(algorithm)));
        let mut rotten = vec![7; 700_000];
        rotten[699_999] ^= 1;
        rot(&rig, algorithm.name(), &rotten);
    }
    rot(&rig, "md5", b"conTent");
    rot(&rig, "fast", b"conTent");

    let (_, found) = check(&rig, false);
    assert_eq!(found, [], "names and times tell nothing");
    let (summary, found) = check(&rig, true);
    // A `fast` ETag does not depend on the content, so damage to the object `fast` cannot be detected.
    let expected = [
        "CRC32",
        "CRC32C",
        "CRC64NVME",
        "MD5",
        "SHA1",
        "SHA256",
        "SHA512",
        "XXHASH128",
        "XXHASH3",
        "XXHASH64",
        "md5",
    ];
    assert_eq!(found.iter().map(|f| f.path.trim_start_matches("bkt/")).collect::<Vec<_>>(), expected);
    assert!(found.iter().all(|finding| finding.kind.severity() == FindingSeverity::Corrupt));
    assert!(found[10].detail.contains("9a0364b9e99bb480dd25e1f0284c8555"), "{}", found[10].detail);
    assert_eq!((summary.read_files, summary.read_bytes), (12, 10 * 700_000 + 14));
}

#[test]
fn documents_that_cannot_be_parsed_or_read_are_found() {
    let rig = Rig::new();
    for (kind, document) in [("cors", "<CORSConfiguration/>"), ("policy", "?{}"), ("tagging", "<Tagging/>")] {
        rig.store.set_document(&bucket(), &BucketDocumentKind::known(kind), document.as_bytes()).unwrap();
    }
    fs::remove_file(rig.path(".fordway/document-tagging")).unwrap();
    fs::write(rig.path(".fordway/document-tagging"), vec![b'x'; 1 << 20]).unwrap();
    let (summary, found) = check(&rig, false);
    let expected = ["policy", "tagging"].map(|kind| format!("bkt/.fordway/document-{kind}"));
    let expected: Vec<_> = expected.iter().map(|path| ("bad-document", path.as_str())).collect();
    assert_eq!(kinds_and_paths(&found), expected);
    assert_eq!((summary.corrupt, found[0].detail.as_str()), (2, "the policy of bkt begins with ?"));
}

/// A checksum of the whole object or of each part reveals the damage; a checksum of each part also shows which part is
/// damaged.
#[test]
fn parts_that_rotted_are_found_by_reading() {
    let rig = Rig::new();
    let part_bytes = MIN_PART_BYTES as usize;
    let body: Vec<u8> = (0..2 * part_bytes as u32 + 1000).map(|n| n.wrapping_mul(97) as u8).collect();
    let kinds = [
        ("composite", ChecksumAlgorithm::Sha1, ChecksumType::Composite, "part 2's SHA1 is "),
        ("full", ChecksumAlgorithm::Crc32, ChecksumType::FullObject, "the content's CRC32 is "),
    ];
    for (key, algorithm, kind, _) in kinds {
        let (checksum, checksum_type) = (Some(algorithm), Some(kind));
        rig.upload_with(key, &body, &PutOptions { checksum, checksum_type, ..Default::default() });
    }
    let (summary, found) = check(&rig, true);
    assert_eq!(found, []);
    assert_eq!((summary.read_files, summary.read_bytes), (2, 2 * body.len() as u64));
    let mut rotten = body;
    rotten[part_bytes + 7] ^= 1;
    kinds.iter().for_each(|(key, ..)| rot(&rig, key, &rotten));
    let (_, found) = check(&rig, true);
    assert_eq!(kinds_and_paths(&found), [("corrupt", "bkt/composite"), ("corrupt", "bkt/full")]);
    for (finding, (.., says)) in found.iter().zip(kinds) {
        assert!(finding.detail.starts_with(says), "{}", finding.detail);
    }
}

#[test]
fn only_the_buckets_asked_for_are_looked_at() {
    let rig = Rig::new();
    let other = Bucket::new("other").unwrap();
    rig.store.create_bucket(&other).unwrap();
    let recorded = PutOptions { etag_policy: Some(ETagPolicy::Md5), ..Default::default() };
    rig.store.put(&other, &name("k"), b"x", &recorded).unwrap();
    rig.set_attribute("../other/k", c"user.fordway", b"\x09");
    let checked = |buckets| rig.store.check(&FsckOptions { buckets, ..Default::default() }, &mut |_| Ok(()));
    assert_eq!(checked(vec![bucket()]).unwrap().corrupt, 0);
    assert_eq!(checked(vec![other]).unwrap().corrupt, 1);
    let missing = checked(vec![Bucket::new("missing").unwrap()]);
    assert_eq!(missing.err().map(|error| error.kind()), Some(ErrorKind::NoSuchBucket));
}

#[test]
fn whoever_is_told_can_end_it() {
    let rig = Rig::new();
    symlink("a", rig.path("dangling-1")).unwrap();
    symlink("a", rig.path("dangling-2")).unwrap();
    let mut told = 0;
    let ended = rig.store.check(&FsckOptions::default(), &mut |_| {
        told += 1;
        Err(Error::from(ErrorKind::Interrupted))
    });
    assert_eq!(ended.err().map(|error| error.kind()), Some(ErrorKind::Interrupted));
    assert_eq!(told, 1);
}
