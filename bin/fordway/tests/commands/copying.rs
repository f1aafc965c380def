//! Tests `cp`, `mv` and `cat` against an in-memory store.

use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use crate::binary;
use crate::support::{Captured, Fault, FaultyStore, InterruptedInput, Rig, ShortPipe, bucket, name};
use fordway_command::{CommandExit, InterruptFlag};
use fordway_store::{
    ChecksumAlgorithm, DeleteOptions, ErrorKind, GetOptions, Metadata, MultipartUploadOperations,
    ObjectTagOperations, ObjectVersionOperations, Objects, PutOptions, Tags, UploadsQuery, VersioningState,
};

fn faulty(fault: Fault) -> Rig {
    Rig::over(|inner| Arc::new(FaultyStore { inner, fault }))
}

#[test]
fn a_file_goes_up_and_comes_back() {
    let rig = Rig::new();
    rig.write("in.json", "{}");
    let up = rig.run(&["cp", "DIR/in.json", "s3://bkt/x/", "--metadata", "Run=7,owner=me"]).ok();
    assert_eq!(up.stdout, format!("upload: {} to s3://bkt/x/in.json\n", rig.path("in.json").display()));
    let info = rig.memory.head(&bucket("bkt"), &name("x/in.json"), &GetOptions::default()).unwrap();
    assert_eq!(info.metadata.content_type.as_deref(), Some("application/json"));
    assert_eq!(info.metadata.user["run"], "7");

    rig.run(&["cp", "s3://bkt/x/in.json", "DIR/new/out.json"]).ok();
    assert_eq!(std::fs::read(rig.path("new/out.json")).unwrap(), b"{}");
    let modified = rig.path("new/out.json").metadata().unwrap().modified().unwrap();
    assert_eq!(modified, info.modified);
    assert_eq!(rig.files(), ["in.json", "new/out.json"]);
}

#[test]
fn options_may_stand_between_the_source_and_the_destination() {
    let rig = Rig::new();
    for name in ["src/a", "src/b.tmp", "f", "g"] {
        rig.write(name, name);
    }
    rig.run(&["cp", "-r", "DIR/src", "--exclude", "*.tmp", "s3://bkt/q"]).ok();
    rig.run(&["cp", "DIR/f", "--no-clobber", "DIR/g", "--jobs", "2", "s3://bkt/r/", "--no-progress"]).ok();
    assert_eq!(rig.keys(), ["q/a", "r/f", "r/g"]);
    rig.run(&["mv", "s3://bkt/r/f", "--if-none-match", "s3://bkt/s"]).ok();
    rig.run(&["mv", "--", "s3://bkt/r/g", "s3://bkt/t"]).ok();
    assert_eq!(rig.keys(), ["q/a", "s", "t"]);
    for words in [&["cp", "a"][..], &["mv", "a"], &["cp"], &["mv", "-r"]] {
        let ran = binary::fordway(words, "");
        let said = binary::text(&ran.stderr);
        assert_eq!(ran.status.code(), Some(2), "{said}");
        assert!(said.contains("SOURCE>...\n") || said.contains("  <DESTINATION>\n"), "{said}");
        assert!(said.contains(&format!("Usage: fordway {} [OPTIONS]", words[0])), "{said}");
    }
}

#[test]
fn content_type_can_be_given_or_left_out() {
    let rig = Rig::new();
    rig.write("a.json", "{}");
    rig.run(&["cp", "DIR/a.json", "s3://bkt/none", "--no-guess-mime-type"]).ok();
    rig.run(&["cp", "DIR/a.json", "s3://bkt/given", "--content-type", "text/x"]).ok();
    let stored = |key| rig.memory.head(&bucket("bkt"), &name(key), &GetOptions::default()).unwrap();
    assert_eq!(stored("none").metadata.content_type, None);
    assert_eq!(stored("given").metadata.content_type.as_deref(), Some("text/x"));
}

#[test]
fn all_headers_can_be_set_and_copies_keep_the_others() {
    let rig = Rig::new();
    rig.write("a.json", vec![7; 11_000_000]);
    let stored = |key: &str| {
        let info = rig.memory.head(&bucket("bkt"), &name(key), &GetOptions::default()).unwrap();
        info.metadata.into_inner()
    };
    let headers =
        ["--cache-control", "no-cache", "--content-disposition", "attachment", "--content-language", "de"];
    let defaults = ["--storage-class", "STANDARD", "--acl", "private", "--page-size", "9"];
    let more = ["--content-encoding", "gzip", "--expires", "2030-01-31T12:00:00Z", "--metadata", "a=1,b=2"];
    rig.run(&[&["cp", "DIR/a.json", "s3://bkt/a"][..], &headers, &more, &defaults].concat()).ok();
    let first = Metadata {
        content_type: Some("application/json".to_owned()),
        content_encoding: Some("gzip".to_owned()),
        content_language: Some("de".to_owned()),
        content_disposition: Some("attachment".to_owned()),
        cache_control: Some("no-cache".to_owned()),
        expires: Some("Thu, 31 Jan 2030 12:00:00 GMT".to_owned()),
        user: [("a", "1"), ("b", "2")].map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
    };
    assert_eq!(stored("a"), first);
    let tags: Tags = [("t".to_owned(), "v".to_owned())].into();
    rig.memory.set_tags(&bucket("bkt"), &name("a"), None, &tags).unwrap();

    // Copy in one step, and in parts.
    for parts in [&[][..], &["--multipart-threshold", "10MiB", "--part-size", "5MiB"]] {
        let run = |words: &[&str]| rig.run(&[words, parts].concat());
        run(&["cp", "s3://bkt/a", "s3://bkt/b"]).ok();
        assert_eq!(stored("b"), first);
        run(&[
            "cp",
            "s3://bkt/a",
            "s3://bkt/b",
            "--content-type",
            "text/x",
            "--checksum-algorithm",
            "sha256",
        ])
        .ok();
        assert_eq!(stored("b"), Metadata { content_type: Some("text/x".to_owned()), ..first.clone() });
        assert_eq!(rig.memory.tags(&bucket("bkt"), &name("b"), None).unwrap(), tags);
        let info = rig.memory.head(&bucket("bkt"), &name("b"), &GetOptions::default()).unwrap();
        assert_eq!(info.checksum.unwrap().algorithm, ChecksumAlgorithm::Sha256);
        run(&["mv", "s3://bkt/b", "s3://bkt/c", "--metadata", "c=3"]).ok();
        let user = [("c".to_owned(), "3".to_owned())].into();
        assert_eq!(stored("c"), Metadata { content_type: Some("text/x".to_owned()), user, ..first.clone() });
        run(&["cp", "s3://bkt/a", "s3://bkt/d.txt", "--metadata-directive", "REPLACE"]).ok();
        assert_eq!(
            stored("d.txt"),
            Metadata { content_type: Some("text/plain".to_owned()), ..Metadata::default() }
        );
        run(&["cp", "s3://bkt/a", "s3://bkt/d.txt", "--metadata-directive", "copy"]).ok();
        assert_eq!(stored("d.txt"), first);
    }
}

/// With --no-clobber, a failed condition on the destination means that the copy is skipped. A failed condition on the
/// source is an error.
#[test]
fn a_source_that_is_replaced_during_a_copy_is_not_a_destination_that_exists() {
    let rig = Rig::over(|inner| {
        let other = inner.clone();
        let replace = move || {
            let body = vec![2; 11_000_000];
            other.put(&bucket("bkt"), &name("src"), &body, &PutOptions::default()).map(drop).unwrap();
        };
        Arc::new(FaultyStore { inner, fault: Fault::Meanwhile("src", Box::new(replace)) })
    });
    rig.put("src", vec![1; 11_000_000]);
    let parts = &["--multipart-threshold", "10MiB", "--part-size", "5MiB", "--concurrency", "1"];
    for (destination, options) in
        [("s3://bkt/new", &["--content-type", "text/x"][..]), ("s3://bkt/new", parts), ("DIR/new", parts)]
    {
        rig.put("src", vec![1; 11_000_000]);
        let ran = rig.run(&[&["cp", "-n", "s3://bkt/src", destination], options].concat());
        let ran = ran.ended(CommandExit::Conflict);
        assert!(ran.stderr.contains("was replaced during the copy"), "{}", ran.stderr);
    }
    assert_eq!((rig.keys(), rig.files()), (vec!["src".to_owned()], Vec::new()));
}

#[test]
fn options_for_metadata_are_not_ignored() {
    let rig = Rig::new();
    rig.write("f", "x");
    rig.put("k", "y");
    for (words, why) in [
        (
            &["cp", "s3://bkt/k", "s3://bkt/l", "--metadata-directive", "COPY", "--cache-control", "x"][..],
            "COPY cannot",
        ),
        (&["cp", "s3://bkt/k", "DIR/k", "--cache-control", "x"], "only apply to objects"),
        (&["cp", "s3://bkt/k", "-", "--content-type", "x"], "only apply to objects"),
        (
            &["sync", "DIR", "s3://bkt/s", "--metadata-directive", "REPLACE"],
            "only applies to copies of objects",
        ),
        (&["cp", "DIR/f", "http://127.0.0.1:1/f", "--metadata", "a=b"], "only support --content-type"),
    ] {
        let ran = rig.run(words).ended(CommandExit::Usage);
        assert!(ran.stderr.contains(why), "{words:?}: {}", ran.stderr);
    }
    assert_eq!(rig.keys(), ["k"]);
}

/// If the file changes during the upload, the upload must fail, because the object would consist of parts of two
/// versions of the file.
#[test]
fn a_file_that_changes_while_its_parts_are_sent_is_not_uploaded() {
    let rig = Rig::new();
    rig.write("big", vec![1; 12 << 20]);
    let done = AtomicBool::new(false);
    let ran = std::thread::scope(|scope| {
        scope.spawn(|| {
            let file = std::fs::OpenOptions::new().write(true).open(rig.path("big")).unwrap();
            for size in (12 << 20).. {
                if done.load(Ordering::Relaxed) {
                    return;
                }
                file.set_len(size).unwrap();
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let parts = ["--multipart-threshold", "6MiB", "--part-size", "5MiB"];
        let ran = rig.run(&[&["cp", "DIR/big", "s3://bkt/big"][..], &parts].concat());
        done.store(true, Ordering::Relaxed);
        ran
    });
    let ran = ran.ended(CommandExit::Corrupt);
    assert!(ran.stderr.contains("changed during the read"), "{}", ran.stderr);
    assert!(rig.keys().is_empty());
    assert!(rig.memory.list_uploads(&bucket("bkt"), &UploadsQuery::default()).unwrap().uploads.is_empty());
}

/// Like the previous test, for an upload that is not sent in parts. The size of the file does not change.
#[test]
fn a_file_that_is_overwritten_during_its_upload_is_not_uploaded() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("f");
    let rig = Rig::over(|inner| {
        let path = path.clone();
        let overwrite = move || std::fs::write(&path, "new").unwrap();
        Arc::new(FaultyStore { inner, fault: Fault::Meanwhile("k", Box::new(overwrite)) })
    });
    for command in ["cp", "mv"] {
        std::fs::write(&path, "old").unwrap();
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(60)).unwrap();
        let ran = rig.run(&[command, path.to_str().unwrap(), "s3://bkt/k"]).ended(CommandExit::Corrupt);
        assert!(ran.stderr.contains("changed during the read"), "{}", ran.stderr);
        assert!(rig.keys().is_empty() && std::fs::read(&path).unwrap() == b"new");
    }
}

#[test]
fn a_tree_goes_up_filtered_and_comes_back() {
    let rig = Rig::new();
    for file in ["t/a.txt", "t/sub/b.txt", "t/sub/c.tmp", "t/sub/deep/d.txt"] {
        rig.write(file, file);
    }
    rig.run(&["cp", "DIR/t", "s3://bkt/up", "--recursive", "--exclude", "*.tmp"]).ok();
    assert_eq!(rig.keys(), ["up/a.txt", "up/sub/b.txt", "up/sub/deep/d.txt"]);
    rig.put("up-other", "a neighbour that only shares letters");
    rig.put("up/marker/", "");
    rig.run(&["cp", "s3://bkt/up", "DIR/back", "-r"]).ok();
    let back: Vec<_> = rig.files().into_iter().filter(|file| file.starts_with("back/")).collect();
    assert_eq!(back, ["back/a.txt", "back/sub/b.txt", "back/sub/deep/d.txt"]);
    assert_eq!(std::fs::read_to_string(rig.path("back/sub/b.txt")).unwrap(), "t/sub/b.txt");
}

#[test]
fn wildcards_keep_the_path_below_their_literal_part() {
    let rig = Rig::new();
    for key in ["logs/1.gz", "logs/2024/2.gz", "logs/3.txt", "logs/[x].gz", "other.gz"] {
        rig.put(key, key);
    }
    rig.run(&["cp", "s3://bkt/logs/*.gz", "DIR/out"]).ok();
    assert_eq!(rig.files(), ["out/1.gz", "out/2024/2.gz", "out/[x].gz"]);
    let none = rig.run(&["cp", "s3://bkt/none*", "DIR/out"]).ended(CommandExit::NotFound);
    assert!(none.stderr.contains("no object matches s3://bkt/none*"), "{}", none.stderr);
    rig.put("a*b", "literal");
    rig.run(&["cp", "--raw", "s3://bkt/a*b", "DIR/star"]).ok();
    assert_eq!(std::fs::read_to_string(rig.path("star")).unwrap(), "literal");
}

#[test]
fn objects_are_copied_within_the_store() {
    let rig = Rig::new();
    rig.put("a/1", "one");
    rig.put("a/2", "two");
    let ran = rig.run(&["cp", "s3://bkt/a/", "s3://bkt/a/copy/", "--recursive"]).ok();
    assert_eq!(
        ran.sorted(),
        ["copy: s3://bkt/a/1 to s3://bkt/a/copy/1", "copy: s3://bkt/a/2 to s3://bkt/a/copy/2"]
    );
    // Objects that are already below the destination are not copied.
    rig.run(&["cp", "s3://bkt/a/", "s3://bkt/a/copy/", "--recursive"]).ok();
    assert_eq!(rig.keys(), ["a/1", "a/2", "a/copy/1", "a/copy/2"]);
    rig.run(&["cp", "s3://bkt/a/1", "s3://bkt/b", "--content-type", "text/one"]).ok();
    let info = rig.memory.head(&bucket("bkt"), &name("b"), &GetOptions::default()).unwrap();
    assert_eq!(info.metadata.content_type.as_deref(), Some("text/one"));
}

/// The copy of `p/p/x1` would replace `p/x1`, which is also a source. The command must refuse such a copy.
#[test]
fn a_prefix_is_not_copied_over_itself() {
    let rig = Rig::new();
    for key in ["p/x1", "p/p/x1", "q/x"] {
        rig.put(key, key);
    }
    rig.put("q/q/", "");
    for words in [
        &["mv", "-r", "s3://bkt/p", "s3://bkt"][..],
        &["mv", "s3://bkt/p/*", "s3://bkt/"],
        &["cp", "-r", "s3://bkt/p/", "s3://bkt/"],
    ] {
        let ran = rig.run(words).ended(CommandExit::Usage);
        assert!(ran.stderr.contains("s3://bkt/p/p/x1 would replace s3://bkt/p/x1"), "{}", ran.stderr);
        assert_eq!(rig.keys(), ["p/p/x1", "p/x1", "q/q/", "q/x"], "{words:?}");
    }
    // No source is replaced if the object that would replace it is excluded or does not exist.
    rig.run(&["cp", "s3://bkt/p/x*", "s3://bkt/"]).ok();
    rig.run(&["cp", "-r", "s3://bkt/p", "s3://bkt/", "--exclude", "p/*"]).ok();
    rig.run(&["mv", "-r", "s3://bkt/q", "s3://bkt/"]).ok();
    assert_eq!(rig.keys(), ["p/p/x1", "p/x1", "q/q/", "x", "x1"]);
}

/// An object that is below the destination and in the source is not moved. A move must neither replace it nor leave it
/// behind without a word.
#[test]
fn a_prefix_is_not_moved_into_itself_twice() {
    let rig = Rig::new();
    for key in ["a/x", "a/old/x", "a/old/y"] {
        rig.put(key, key);
    }
    for words in [
        &["mv", "-r", "s3://bkt/a", "s3://bkt/a/old"][..],
        &["mv", "-r", "--dry-run", "s3://bkt/a", "s3://bkt/a/old/"],
        &["mv", "s3://bkt/a/*", "s3://bkt/a/old/"],
        &["mv", "-r", "s3://bkt/a", "s3://bkt/a/old/", "--exclude", "old/x"],
    ] {
        let ran = rig.run(words).ended(CommandExit::Usage);
        assert!(ran.stderr.contains(" is in the source s3://bkt/a/"), "{}", ran.stderr);
        assert!(ran.stderr.contains("or add --exclude 'old/*'"), "{}", ran.stderr);
        assert_eq!(rig.keys(), ["a/old/x", "a/old/y", "a/x"], "{words:?}");
        assert_eq!(rig.get("a/old/x").unwrap(), b"a/old/x");
    }
    rig.run(&["mv", "-r", "s3://bkt/a", "s3://bkt/a/new"]).ok();
    assert_eq!(rig.keys(), ["a/new/old/x", "a/new/old/y", "a/new/x"]);
    rig.put("a/x", "again");
    rig.run(&["mv", "s3://bkt/a/x*", "s3://bkt/a/new/"]).ok();
    rig.put("a/z", "z");
    rig.run(&["mv", "-r", "s3://bkt/a", "s3://bkt/a/new/", "--exclude", "new/*"]).ok();
    assert_eq!(rig.keys(), ["a/new/old/x", "a/new/old/y", "a/new/x", "a/new/z"]);
    assert_eq!(rig.get("a/new/x").unwrap(), b"again");
}

#[test]
fn several_sources_need_a_directory() {
    let rig = Rig::new();
    for file in ["a", "b"] {
        rig.write(file, file);
    }
    rig.run(&["cp", "DIR/a", "DIR/b", "s3://bkt/dir"]).ok();
    assert_eq!(rig.keys(), ["dir/a", "dir/b"]);
    let ran = rig.run(&["cp", "s3://bkt/dir/a", "s3://bkt/dir/b", "DIR/a"]).ended(CommandExit::Usage);
    assert!(ran.stderr.contains("give a directory"), "{}", ran.stderr);
}

#[test]
fn hostile_keys_never_leave_the_destination() {
    let rig = Rig::new();
    for key in ["p/../../../escaped", "p//etc/absolute", "p/good", "p/a/./b", "p/zlast"] {
        rig.put(key, key);
    }
    let ran = rig.run(&["cp", "s3://bkt/p/", "DIR/in/out", "--recursive"]).ended(CommandExit::Usage);
    assert_eq!(rig.files(), ["in/out/good", "in/out/zlast"]);
    assert_eq!(ran.stderr.matches("cannot be a path below").count(), 3, "{}", ran.stderr);
    assert!(ran.stderr.contains("copy s3://bkt/p/../../../escaped (memory)"), "{}", ran.stderr);
    assert!(ran.stderr.ends_with("3 of 5 failed, 2 done, 0 skipped\n"), "{}", ran.stderr);
    rig.run(&["sync", "s3://bkt/p/", "DIR/in/synced"]).ended(CommandExit::Usage);
    assert_eq!(rig.files(), ["in/out/good", "in/out/zlast", "in/synced/good", "in/synced/zlast"]);
}

/// The owner of a source must not choose the policy and the versions of a bucket that it is copied to.
#[test]
fn no_listing_writes_into_a_private_area() {
    let rig = Rig::new();
    let private = ["p/.fordway/document-policy", "p/d/.fordway/versioning", "p/.fordway"];
    for key in private.into_iter().chain(["p/good", "p/.fordway-x", "p/zlast/.fordways"]) {
        rig.put(key, key);
    }
    rig.write("bucket/.fordway/locks", "");
    let good = ["bucket/.fordway-x", "bucket/.fordway/locks", "bucket/good", "bucket/zlast/.fordways"];
    for words in [
        &["cp", "-r", "s3://bkt/p/", "DIR/bucket"][..],
        &["cp", "s3://bkt/p/*", "DIR/bucket"],
        &["sync", "s3://bkt/p/", "DIR/bucket", "--delete"],
        &["cp", "-r", "s3://bkt/p/", "DIR/bucket", "--dry-run"],
        &["mv", "-r", "s3://bkt/p/", "DIR/bucket"],
    ] {
        let ran = rig.run(words).ended(CommandExit::Usage);
        assert_eq!(
            ran.stderr.matches("the name of the private area").count(),
            3,
            "{words:?}: {}",
            ran.stderr
        );
        assert_eq!(rig.files(), good, "{words:?}");
    }
    assert_eq!(rig.keys(), ["p/.fordway", "p/.fordway/document-policy", "p/d/.fordway/versioning"]);
    rig.run(&["cp", "s3://bkt/p/.fordway", "DIR/bucket/"]).ended(CommandExit::Usage);
    rig.run(&["cp", "-r", "s3://bkt/p/", "DIR/new"]).ended(CommandExit::Usage);
    assert_eq!(rig.files(), good, "a directory that is no bucket yet");
    rig.run(&["sync", "s3://bkt/p/", "DIR/bucket", "--exclude", "*.fordway*"]).ok();
    rig.run(&["cp", "s3://bkt/p/.fordway/document-policy", "DIR/named"]).ok();
    rig.run(&["cp", "-r", "s3://bkt/p/", "s3://bkt/copy/"]).ok();
}

#[test]
fn existing_destinations() {
    let rig = Rig::new();
    rig.write("f", "new");
    rig.put("f", "old");
    assert_eq!(rig.run(&["cp", "-n", "DIR/f", "s3://bkt/f"]).ok().stdout, "");
    rig.run(&["cp", "--if-none-match", "DIR/f", "s3://bkt/f"]).ended(CommandExit::Conflict);
    assert_eq!(rig.get("f").unwrap(), b"old");
    rig.run(&["cp", "-n", "s3://bkt/f", "DIR/f"]).ok();
    rig.run(&["cp", "--if-none-match", "s3://bkt/f", "DIR/f"]).ended(CommandExit::Conflict);
    assert_eq!(std::fs::read(rig.path("f")).unwrap(), b"new");
    assert_eq!(rig.files(), ["f"]);
    rig.run(&["cp", "DIR/f", "s3://bkt/f"]).ok();
    assert_eq!(rig.get("f").unwrap(), b"new");
}

#[test]
fn nothing_is_overwritten_if_that_is_asked_for() {
    let rig = Rig::new();
    rig.write("t/a", "new");
    rig.write("t/b", "new");
    rig.put("s/a", "old");
    rig.put("s/gone", "old");
    let keeps = "--no-overwrite";
    rig.run(&["sync", "DIR/t", "s3://bkt/s", keeps, "--delete"]).ok();
    assert_eq!((rig.get("s/a").unwrap(), rig.get("s/b").unwrap()), (b"old".to_vec(), b"new".to_vec()));
    assert_eq!(rig.keys(), ["s/a", "s/b"]);
    rig.run(&["mv", "-r", "DIR/t", "s3://bkt/s", keeps]).ok();
    assert_eq!(rig.files(), ["t/a", "t/b"], "what was not moved is kept");
    rig.run(&["mv", "s3://bkt/s/a", "DIR/t/a", keeps]).ok();
    rig.run(&["cp", "s3://bkt/s/a", "DIR/t/a", keeps]).ok();
    rig.run(&["sync", "s3://bkt/s", "DIR/t", keeps, "--exact-timestamps"]).ok();
    assert_eq!(std::fs::read(rig.path("t/a")).unwrap(), b"new");
    symlink("nowhere", rig.path("dangling")).unwrap();
    rig.run(&["cp", "s3://bkt/s/a", "DIR/dangling", keeps]).ok();
    assert!(!rig.path("nowhere").exists());
    assert_eq!(rig.keys(), ["s/a", "s/b"]);
}

/// Some services ignore the condition of a request, and would replace the destination.
#[test]
fn nothing_is_overwritten_on_services_that_ignore_conditions() {
    let mut rig = faulty(Fault::IgnoresConditions);
    rig.input = b"of a pipe".to_vec();
    rig.write("f", "new");
    for key in ["k", "old", "d/"] {
        rig.put(key, key);
    }
    for (words, exit) in [
        (&["cp", "--if-none-match", "s3://bkt/k", "s3://bkt/old"][..], CommandExit::Conflict),
        (&["mv", "--if-none-match", "s3://bkt/k", "s3://bkt/old"], CommandExit::Conflict),
        (&["cp", "--if-none-match", "DIR/f", "s3://bkt/old"], CommandExit::Conflict),
        (&["cp", "--if-none-match", "-", "s3://bkt/old"], CommandExit::Conflict),
        (&["mv", "--no-clobber", "s3://bkt/k", "s3://bkt/old"], CommandExit::Ok),
        (&["mkdir", "s3://bkt/d"], CommandExit::Conflict),
        (&["mkdir", "--parents", "s3://bkt/d"], CommandExit::Ok),
    ] {
        let ran = rig.run(words).ended(exit);
        assert_eq!(ran.stderr.contains(" already exists"), exit == CommandExit::Conflict, "{}", ran.stderr);
        for key in ["k", "old", "d/"] {
            assert_eq!(rig.get(key).unwrap(), key.as_bytes(), "{words:?}");
        }
    }
    rig.run(&["mv", "--if-none-match", "s3://bkt/k", "s3://bkt/new"]).ok();
    assert_eq!(rig.keys(), ["d/", "new", "old"]);
}

/// Without permission to list a bucket, a user cannot find out whether an object exists.
#[test]
fn an_upload_that_replaces_nothing_needs_no_permission_to_list() {
    let rig = faulty(Fault::HidesMissing);
    rig.write("f", "new");
    rig.put("old", "old");
    rig.run(&["cp", "--no-clobber", "DIR/f", "s3://bkt/new"]).ok();
    rig.run(&["cp", "--no-clobber", "DIR/f", "s3://bkt/old"]).ok();
    rig.run(&["mkdir", "s3://bkt/d"]).ok();
    // Fewer services support the condition of a copy.
    rig.run(&["cp", "--no-clobber", "s3://bkt/old", "s3://bkt/other"]).ended(CommandExit::Denied);
    assert_eq!(rig.keys(), ["d/", "new", "old"]);
    assert_eq!(rig.get("old").unwrap(), b"old");
}

/// Another program creates the destination after the check for an existing destination. The command must not replace
/// it.
#[test]
fn a_destination_that_appears_is_not_overwritten() {
    let place = tempfile::tempdir().unwrap();
    let appears = place.path().join("appears");
    let rig = Rig::over(|inner| {
        let appears = appears.clone();
        let create = move || std::fs::write(&appears, "other").unwrap();
        Arc::new(FaultyStore { inner, fault: Fault::Meanwhile("k", Box::new(create)) })
    });
    rig.put("k", "content");
    let appears = appears.to_str().unwrap();
    let ran = rig.run(&["mv", "s3://bkt/k", appears, "--no-overwrite"]).ok();
    assert_eq!((ran.stdout.as_str(), std::fs::read(appears).unwrap()), ("", b"other".to_vec()));
    std::fs::remove_file(appears).unwrap();
    rig.run(&["mv", "s3://bkt/k", appears, "--if-none-match"]).ended(CommandExit::Conflict);
    assert_eq!(rig.get("k").unwrap(), b"content");
}

#[test]
fn a_link_stays_and_a_device_is_not_replaced() {
    let rig = Rig::new();
    rig.put("k", "content");
    rig.write("target", "old");
    symlink(rig.path("target"), rig.path("link")).unwrap();
    rig.run(&["cp", "s3://bkt/k", "DIR/link"]).ok();
    assert!(rig.path("link").is_symlink());
    assert_eq!(std::fs::read(rig.path("target")).unwrap(), b"content");
    rig.run(&["cp", "s3://bkt/k", "/dev/null"]).ok();
    assert!(!std::path::Path::new("/dev/null").metadata().unwrap().is_file());
}

#[test]
fn a_replaced_file_keeps_its_permissions() {
    let rig = Rig::new();
    rig.put("p/k", "content");
    rig.write("d/k", "old");
    let mode = |path: &str| rig.path(path).metadata().unwrap().permissions().mode() & 0o777;
    for (bits, words) in [
        (0o600, &["cp", "s3://bkt/p/k", "DIR/d/k"][..]),
        (0o640, &["cp", "-r", "s3://bkt/p", "DIR/d", "--multipart-threshold", "1"]),
        (0o444, &["sync", "s3://bkt/p", "DIR/d", "--exact-timestamps"]),
    ] {
        std::fs::set_permissions(rig.path("d/k"), Permissions::from_mode(bits)).unwrap();
        let file = std::fs::File::open(rig.path("d/k")).unwrap();
        file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        assert!(rig.run(words).ok().stdout.starts_with("download: "), "{words:?}");
        assert_eq!((mode("d/k"), std::fs::read(rig.path("d/k")).unwrap()), (bits, b"content".to_vec()));
    }
    // A file that replaces nothing gets the same permissions as a file that any other program creates.
    rig.write("other", "");
    rig.run(&["cp", "s3://bkt/p/k", "DIR/new"]).ok();
    assert_eq!(mode("new"), mode("other"));
}

#[test]
fn dry_run_touches_nothing() {
    let rig = Rig::new();
    rig.write("t/a", "a");
    rig.put("k/b", "b");
    let ran = rig.run(&["cp", "DIR/t", "s3://bkt/new", "-r", "--dry-run"]).ok();
    assert_eq!(ran.stdout, format!("(dryrun) upload: {} to s3://bkt/new/a\n", rig.path("t/a").display()));
    rig.run(&["cp", "s3://bkt/k/b", "DIR/b", "--dryrun"]).ok();
    rig.run(&["sync", "s3://bkt/k", "DIR/none", "--delete", "--dry-run"]).ok();
    rig.run(&["sync", "DIR/t", "s3://bkt/k", "--delete", "--dry-run"]).ok();
    rig.run(&["rm", "s3://bkt/k", "-r", "--dry-run"]).ok();
    rig.run(&["rb", "s3://bkt", "--force", "--dry-run"]).ok();
    assert_eq!(rig.keys(), ["k/b"]);
    assert_eq!(rig.files(), ["t/a"]);
    assert!(!rig.path("none").exists());
    for words in [
        ["cp", "DIR/missing", "s3://bkt/"],
        ["cp", "s3://bkt/missing", "DIR/x"],
        ["mv", "DIR/t/a", "s3://nowhere/x"],
    ] {
        let ran = rig.run(&[&words[..], &["--dry-run"]].concat()).ended(CommandExit::NotFound);
        assert!(!ran.stdout.contains("(dryrun)"), "{words:?}: {}", ran.stdout);
    }
}

#[test]
fn a_dry_run_ends_as_the_command_would() {
    let versioned = |rig: &Rig| {
        rig.memory.set_versioning(&bucket("bkt"), VersioningState::Enabled).unwrap();
        rig.put("k", "k");
        rig.memory.delete(&bucket("bkt"), &name("k"), &DeleteOptions::default()).unwrap();
    };
    let filled = |rig: &Rig| ["k", "l"].into_iter().for_each(|key| rig.put(key, key));
    for (prepare, words, exit) in [
        (&filled as &dyn Fn(&Rig), &["rm", "s3://nowhere/k"][..], CommandExit::NotFound),
        (&filled, &["rm", "s3://nowhere/k", "s3://bkt/k"], CommandExit::NotFound),
        (&filled, &["rm", "s3://nowhere/k", "--version-id", "null"], CommandExit::NotFound),
        (&filled, &["rm", "s3://bkt/k", "s3://bkt/none"], CommandExit::Ok),
        (&filled, &["rb", "s3://bkt"], CommandExit::Conflict),
        (&versioned, &["rb", "s3://bkt"], CommandExit::Conflict),
        (&versioned, &["rb", "s3://bkt", "--force"], CommandExit::Ok),
        (&|_: &Rig| (), &["rb", "s3://bkt"], CommandExit::Ok),
        (&|_: &Rig| (), &["rb", "s3://nowhere"], CommandExit::NotFound),
        (&filled, &["cp", "--if-none-match", "DIR/f", "s3://bkt/k"], CommandExit::Conflict),
        (&filled, &["cp", "--if-none-match", "DIR/f", "s3://bkt/new"], CommandExit::Ok),
        (&filled, &["mv", "--if-none-match", "s3://bkt/k", "s3://bkt/l"], CommandExit::Conflict),
        (&filled, &["cp", "--if-none-match", "s3://bkt/k", "DIR/f"], CommandExit::Conflict),
        (&filled, &["cp", "--no-clobber", "s3://bkt/k", "DIR/f"], CommandExit::Ok),
        (&filled, &["cp", "-r", "s3://bkt/", "DIR/d"], CommandExit::Usage),
        (&filled, &["cp", "s3://bkt/k", "DIR/f/x"], CommandExit::Failure),
        (&filled, &["cp", "DIR/pipe", "s3://bkt/"], CommandExit::Usage),
        (&filled, &["sync", "s3://bkt", "DIR/d"], CommandExit::Usage),
        (&filled, &["sync", "s3://bkt", "DIR/d", "--delete"], CommandExit::Ok),
    ] {
        for dry in [&["--dry-run"][..], &[]] {
            let rig = Rig::new();
            rig.write("f", "f");
            rig.write("d/k/x", "x");
            rustix::fs::mkfifoat(rustix::fs::CWD, rig.path("pipe"), rustix::fs::Mode::RWXU).unwrap();
            prepare(&rig);
            let ran = rig.run(&[words, dry].concat());
            assert_eq!(ran.exit, exit, "{words:?} {dry:?}\n{}{}", ran.stdout, ran.stderr);
        }
    }
}

#[test]
fn one_failure_does_not_stop_the_others() {
    let rig = faulty(Fault::Fails("bad", ErrorKind::AccessDenied));
    for key in ["p/a", "p/bad", "p/c"] {
        rig.put(key, key);
    }
    let ran = rig.run(&["cp", "s3://bkt/p/", "DIR/out", "--recursive"]).ended(CommandExit::Denied);
    assert_eq!(rig.files(), ["out/a", "out/c"]);
    assert!(ran.stderr.contains("get s3://bkt/p/bad (memory): access denied"), "{}", ran.stderr);
    assert!(ran.stderr.contains("1 of 3 failed, 2 done"), "{}", ran.stderr);
    let ran = rig.run(&["cat", "s3://bkt/p/*"]).ended(CommandExit::Denied);
    assert_eq!(ran.stdout, "p/ap/c");
}

#[test]
fn failed_downloads_leave_no_directories() {
    let rig = faulty(Fault::Corrupts("bad"));
    for key in ["p/a/b/bad1", "p/a/bad2", "p/good/x"] {
        rig.put(key, "content");
    }
    std::fs::create_dir(rig.path("old")).unwrap();
    for words in [
        &["cp", "s3://bkt/none", "DIR/new/dir/x"][..],
        &["cp", "s3://bkt/none", "DIR/old/x"],
        &["sync", "s3://nobucket/p", "DIR/synced"],
        &["cp", "http://127.0.0.1:1/x", "DIR/web/x"],
    ] {
        assert_ne!(rig.run(words).exit, CommandExit::Ok, "{words:?}");
    }
    rig.run(&["cp", "-r", "s3://bkt/p", "DIR/out"]).ended(CommandExit::Corrupt);
    assert_eq!(rig.files(), ["out/good/x"]);
    assert!(!rig.path("out/a").exists() && rig.path("old").exists());
    let left = rig.dir.path().read_dir().unwrap().count();
    assert_eq!(left, 2, "only `old` and `out`");
    rig.run(&["sync", "s3://bkt/empty", "DIR/synced"]).ok();
    assert!(rig.path("synced").is_dir());
}

#[test]
fn corrupt_content_is_found_and_leaves_no_file() {
    let rig = faulty(Fault::Corrupts("bad"));
    rig.put("bad", "some content");
    let ran = rig.run(&["cp", "s3://bkt/bad", "DIR/out"]).ended(CommandExit::Corrupt);
    assert!(ran.stderr.contains("get s3://bkt/bad (memory): bad digest"), "{}", ran.stderr);
    assert!(rig.files().is_empty());
    rig.run(&["cp", "s3://bkt/bad", "DIR/out", "--multipart-threshold", "1"]).ended(CommandExit::Corrupt);
    assert!(rig.files().is_empty());
    rig.run(&["cat", "s3://bkt/bad"]).ended(CommandExit::Corrupt);
    rig.run(&["cp", "s3://bkt/bad", "DIR/out", "--no-verify"]).ok();
    assert_eq!(rig.files(), ["out"]);
}

/// The CRC of an object is compared with the combined CRC of the parts that arrived.
#[test]
fn downloads_in_parts_are_verified_by_crcs() {
    let body: Vec<u8> = (0..11_000_000u32).map(|i| ((i * 31) >> 3) as u8).collect();
    let rig = faulty(Fault::Corrupts("bad"));
    rig.write("file", &body);
    let in_parts = ["--multipart-threshold", "6MiB", "--part-size", "5MiB"];
    for algorithm in ["crc32", "crc32c", "crc64nvme"] {
        for key in ["s3://bkt/good", "s3://bkt/bad"] {
            rig.run(&["cp", "DIR/file", key, "--checksum-algorithm", algorithm]).ok();
        }
        rig.run(&[&["cp", "s3://bkt/good", "DIR/good"][..], &in_parts].concat()).ok();
        assert!(std::fs::read(rig.path("good")).unwrap() == body, "{algorithm}");
        let bad = [&["cp", "s3://bkt/bad", "DIR/bad"][..], &in_parts].concat();
        let ran = rig.run(&bad).ended(CommandExit::Corrupt);
        assert!(ran.stderr.contains("get s3://bkt/bad (memory): bad digest"), "{}", ran.stderr);
        assert_eq!(rig.files(), ["file", "good"]);
        rig.run(&[&bad[..], &["--no-verify"]].concat()).ok();
        std::fs::remove_file(rig.path("bad")).unwrap();
    }
}

#[test]
fn ctrl_c_leaves_what_was_there() {
    let interrupt = InterruptFlag::default();
    let mut rig = faulty(Fault::Interrupts("big", interrupt.clone()));
    rig.interrupt = interrupt;
    rig.put("p/big", vec![7; 1_000_000]);
    rig.put("p/later", "x");
    rig.write("out/big", "before");
    let ran = rig.run(&["cp", "s3://bkt/p/", "DIR/out", "-r", "-j", "1"]).ended(CommandExit::Interrupted);
    assert_eq!(rig.files(), ["out/big"]);
    assert_eq!(std::fs::read(rig.path("out/big")).unwrap(), b"before");
    assert_eq!(ran.stderr.lines().count(), 1, "{}", ran.stderr);
}

#[test]
fn ctrl_c_stops_at_the_next_chunk() {
    for threshold in [None, Some(5 << 20)] {
        let mut rig = Rig::new();
        rig.multipart_threshold_bytes = threshold;
        let (interrupt, bytes_after) = (rig.interrupt.clone(), Arc::default());
        let input =
            InterruptedInput { interrupt, bytes_before: 6 << 20, bytes_after: Arc::clone(&bytes_after) };
        let words = ["cp", "-", "s3://bkt/k", "--part-size", "5MiB"];
        let exit = rig.run_with_input(&words, input, Captured::default(), Captured::default());
        assert_eq!(exit, CommandExit::Interrupted);
        let taken = bytes_after.load(Ordering::Relaxed);
        assert!(taken <= 1 << 20, "{taken} bytes were read after Ctrl-C");
        assert!(rig.keys().is_empty());
        let left = rig.memory.list_uploads(&bucket("bkt"), &UploadsQuery::default()).unwrap();
        assert_eq!(left.uploads, []);
    }
}

#[test]
fn large_files_go_in_parts_both_ways() {
    let rig = Rig::new();
    let body: Vec<u8> = (0..11_000_000u32).map(|i| ((i * 31) >> 3) as u8).collect();
    rig.write("big", &body);
    let parts = ["--multipart-threshold", "10MiB", "--part-size", "5MiB"];
    rig.run(&[&["cp", "DIR/big", "s3://bkt/big", "--checksum-algorithm", "sha256"][..], &parts].concat())
        .ok();
    let info = rig.memory.head(&bucket("bkt"), &name("big"), &GetOptions::default()).unwrap();
    assert!(info.etag.as_str().ends_with("-3"), "{}", info.etag);
    assert_eq!(rig.get("big").unwrap(), body);
    rig.put("single", &body);
    rig.run(&[&["cp", "s3://bkt/*", "DIR/out/"][..], &parts].concat()).ok();
    assert!(std::fs::read(rig.path("out/big")).unwrap() == body);
    assert!(std::fs::read(rig.path("out/single")).unwrap() == body);
    rig.run(&[&["cp", "s3://bkt/single", "DIR/alone"][..], &parts].concat()).ok();
    assert!(std::fs::read(rig.path("alone")).unwrap() == body);
    rig.run(&[&["cp", "s3://bkt/single", "s3://bkt/copied"][..], &parts].concat()).ok();
    let info = rig.memory.head(&bucket("bkt"), &name("copied"), &GetOptions::default()).unwrap();
    assert!(info.etag.as_str().ends_with("-2"), "{}", info.etag);
    assert!(rig.get("copied").unwrap() == body);
}

#[test]
fn a_failed_part_aborts_the_upload() {
    let rig = faulty(Fault::FailsPart(2));
    rig.write("big", vec![1; 11_000_000]);
    let words = ["cp", "DIR/big", "s3://bkt/big", "--multipart-threshold", "1", "--part-size", "5MiB"];
    rig.run(&words).ended(CommandExit::Unavailable);
    assert!(rig.keys().is_empty());
    let left = rig.memory.list_uploads(&bucket("bkt"), &UploadsQuery::default()).unwrap();
    assert_eq!(left.uploads, []);
}

#[test]
fn standard_input_and_output() {
    let mut rig = Rig::new();
    for (size, threshold) in [
        (0, None),
        (12_000_000, None),
        (100, Some(1 << 20)),
        (12_000_000, Some(1 << 20)),
        (0, Some(0)),
        (1, Some(0)),
    ] {
        rig.input = (0..size).map(|i: u32| (i >> 2) as u8).collect();
        rig.multipart_threshold_bytes = threshold;
        rig.run(&["cp", "-", "s3://bkt/piped", "--part-size", "5MiB"]).ok();
        assert!(rig.get("piped").unwrap() == rig.input, "{size} {threshold:?}");
    }
    rig.run(&["cp", "-", "s3://bkt/dir/"]).ended(CommandExit::Usage);
    rig.put("text", "0123456789");
    assert_eq!(rig.run(&["cp", "s3://bkt/text", "-"]).ok().stdout, "0123456789");
    for (range, shown) in [("2-4", "234"), ("8-", "89"), ("-3", "789")] {
        assert_eq!(rig.run(&["cat", "s3://bkt/text", "--range", range]).ok().stdout, shown);
    }
    rig.run(&["cat", "s3://bkt/text", "--range", "10-"]).ended(CommandExit::Usage);
    let ran = rig.run(&["cat", "s3://bkt/none", "s3://bkt/text"]).ended(CommandExit::NotFound);
    assert_eq!(ran.stdout, "0123456789");
}

#[test]
fn a_reader_that_leaves_ends_commands_quietly() {
    let rig = Rig::new();
    rig.put("big", vec![b'x'; 1_000_000]);
    for words in [&["cat", "s3://bkt/big", "s3://bkt/big"][..], &["ls", "s3://bkt", "-r"]] {
        let stderr = Captured::default();
        assert_eq!(rig.run_with_streams(words, ShortPipe(10), stderr.clone()), CommandExit::Ok);
        assert_eq!(stderr.text(), "");
    }
}

#[test]
fn copies_go_on_although_nobody_reads_of_them() {
    let rig = faulty(Fault::Fails("bad", ErrorKind::AccessDenied));
    for key in ["p/a", "p/bad", "p/c"] {
        rig.put(key, key);
    }
    let words = ["cp", "s3://bkt/p/", "DIR/out", "-r"];
    assert_eq!(rig.run_with_streams(&words, ShortPipe(10), Captured::default()), CommandExit::Denied);
    assert_eq!(rig.files(), ["out/a", "out/c"]);
}

/// A copy that succeeds but cannot be reported counts as one failure.
#[test]
fn an_output_that_cannot_be_written_is_one_failure() {
    let rig = Rig::new();
    rig.write("f", "x");
    let (full, stderr) =
        (std::fs::File::options().write(true).open("/dev/full").unwrap(), Captured::default());
    let exit = rig.run_with_streams(&["cp", "DIR/f", "s3://bkt/f"], full, stderr.clone());
    assert_eq!((exit, stderr.text().lines().count()), (CommandExit::NoSpace, 1), "{}", stderr.text());
    assert_eq!(rig.keys(), ["f"]);
}

#[test]
fn one_source_that_is_not_there_does_not_stop_the_others() {
    let rig = Rig::new();
    rig.put("a1", "x");
    let ran = rig.run(&["cp", "s3://bkt/none*", "s3://bkt/a*", "DIR/out/"]).ended(CommandExit::NotFound);
    assert_eq!(rig.files(), ["out/a1"]);
    assert!(ran.stderr.contains("1 of 2 failed, 1 done"), "{}", ran.stderr);
}

#[test]
fn places_that_cannot_be_copied_between() {
    let rig = Rig::new();
    rig.write("f", "x");
    for words in [
        &["cp", "DIR/f", "DIR/g"][..],
        &["cp", "-", "DIR/g"],
        &["cp", "DIR", "s3://bkt/"],
        &["cp", "s3://bkt/p/", "DIR"],
        &["cp", "DIR/f", "s3://"],
        &["sync", "DIR", "DIR"],
        &["sync", "s3://bkt/a", "s3://bkt/a/b"],
    ] {
        let ran = rig.run(words).ended(CommandExit::Usage);
        assert!(ran.stderr.starts_with("fordway: "), "{words:?}: {}", ran.stderr);
    }
    let none = rig.run(&["cp", "DIR/none", "s3://bkt/"]).ended(CommandExit::NotFound);
    assert!(
        none.stderr.contains("/none does not exist; check the path, or write s3://BUCKET/KEY"),
        "{}",
        none.stderr
    );
    rig.run(&["cp", "DIR/f", "s3://nobucket/"]).ended(CommandExit::NotFound);
    rig.run(&["cp", "s3://bkt/none", "DIR/x"]).ended(CommandExit::NotFound);
    assert_eq!(rig.files(), ["f"]);
    symlink("nowhere", rig.path("link")).unwrap();
    let dangling = rig.run(&["cp", "DIR/link", "s3://bkt/"]).ended(CommandExit::NotFound);
    assert!(dangling.stderr.contains("/link is a dangling link"), "{}", dangling.stderr);
}

#[test]
fn an_error_about_the_length_of_a_name_names_the_file() {
    let rig = Rig::new();
    rig.write("t/some-file", "x");
    let long = format!("s3://bkt/{}", "d/".repeat(510));
    for command in [&["cp", "-r"][..], &["sync"], &["mv", "-r"]] {
        let ran = rig.run(&[command, &["DIR/t", &long]].concat()).ended(CommandExit::Usage);
        assert!(ran.stderr.contains("t/some-file"), "{}", ran.stderr);
    }
}

/// A response with a different object size comes from a different version of the object, even if its range is correct.
#[test]
fn parts_of_a_download_agree_on_the_size() {
    const PART: usize = 5 << 20;
    let rig = faulty(Fault::Grows(PART as u64));
    rig.put("k", vec![7; 2 * PART + 1]);
    let words = ["cp", "s3://bkt/k", "DIR/out", "--part-size", "5MiB", "--multipart-threshold", "6MiB"];
    let ran = rig.run(&words).ended(CommandExit::Unavailable);
    assert!(ran.stderr.contains("copy it again"), "{}", ran.stderr);
    assert!(rig.files().is_empty(), "{:?}", rig.files());
}

/// After Ctrl-C, the batches that wait for a worker must not be removed.
#[test]
fn a_signal_ends_removals_before_the_next_batch() {
    for (words, versioning) in [
        (&["rm", "-r", "s3://bkt/", "-j", "2"][..], VersioningState::Unversioned),
        (&["rb", "--force", "s3://bkt", "-j", "2"], VersioningState::Unversioned),
        (&["rb", "--force", "s3://bkt", "-j", "2"], VersioningState::Enabled),
        (&["sync", "DIR/empty", "s3://bkt", "--delete", "-j", "2"], VersioningState::Unversioned),
    ] {
        let (interrupt, batches) = (InterruptFlag::default(), Arc::new(AtomicUsize::new(0)));
        let mut rig = faulty(Fault::InterruptsRemovals(
            interrupt.clone(),
            Box::new({
                let batches = Arc::clone(&batches);
                move || {
                    batches.fetch_add(1, Ordering::Relaxed);
                }
            }),
        ));
        rig.interrupt = interrupt;
        std::fs::create_dir(rig.path("empty")).unwrap();
        if versioning == VersioningState::Enabled {
            rig.memory.set_versioning(&bucket("bkt"), versioning).unwrap();
        }
        (0..9500).for_each(|number| rig.put(&format!("{number}"), ""));
        let ran = rig.run(words).ended(CommandExit::Interrupted);
        let batches = batches.load(Ordering::Relaxed);
        assert!((1..=2).contains(&batches), "{batches}");
        let said = format!("after {} objects; ", 1000 * batches);
        assert!(ran.stderr.contains(&said) && ran.stderr.contains("may still carry out"), "{}", ran.stderr);
    }
}
