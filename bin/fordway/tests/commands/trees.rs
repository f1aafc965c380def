//! Tests which files and objects of a tree `sync`, `cp -r` and `mv -r` copy and remove: links, odd entries, exclusions.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::process::Command;
use std::time::{Duration, SystemTime};

use fordway_command::CommandExit;

use crate::support::Rig;

#[test]
fn sync_up_and_down() {
    let rig = Rig::new();
    rig.write("t/a", "a");
    rig.write("t/sub/b", "bb");
    rig.write("t/skip.tmp", "x");
    rig.put("s/old", "gone from the source");
    rig.put("s/old.tmp", "protected by the filter");
    let words = ["sync", "DIR/t", "s3://bkt/s", "--delete", "--exclude", "*.tmp"];
    rig.run(&words).ok();
    assert_eq!(rig.keys(), ["s/a", "s/old.tmp", "s/sub/b"]);
    assert_eq!(rig.run(&words).ok().stdout, "", "nothing is left to do");

    rig.write("t/a", "changed");
    assert_eq!(rig.run(&words).ok().stdout.lines().count(), 1);
    rig.run(&["sync", "s3://bkt/s", "DIR/down"]).ok();
    assert_eq!(rig.run(&["sync", "s3://bkt/s", "DIR/down"]).ok().stdout, "");
    rig.write("down/extra", "x");
    rig.run(&["sync", "s3://bkt/s", "DIR/down", "--delete"]).ok();
    assert!(!rig.path("down/extra").exists());

    let later = SystemTime::now() + Duration::from_secs(60);
    std::fs::File::options().write(true).open(rig.path("t/a")).unwrap().set_modified(later).unwrap();
    assert_eq!(
        rig.run(&["sync", "DIR/t", "s3://bkt/s", "--size-only", "--exclude", "*.tmp"]).ok().stdout,
        ""
    );
    assert_eq!(rig.run(&words).ok().stdout.lines().count(), 1);
    rig.run(&["sync", "s3://bkt/s", "s3://bkt/mirror"]).ok();
    assert_eq!(rig.get("mirror/sub/b").unwrap(), b"bb");
}

/// The removal of files makes room for downloads: for a file in place of a directory, and for a directory in place of a
/// file.
#[test]
fn sync_turns_directories_into_files_and_back() {
    for jobs in ["1", "8"] {
        let rig = Rig::new();
        for key in ["one/a", "one/z/b/c", "one/z/d", "two/a/b/c", "two/a/d", "two/z"] {
            rig.put(key, key);
        }
        for (source, files) in [
            ("s3://bkt/one", ["d/a", "d/z/b/c", "d/z/d"]),
            ("s3://bkt/two", ["d/a/b/c", "d/a/d", "d/z"]),
            ("s3://bkt/one", ["d/a", "d/z/b/c", "d/z/d"]),
        ] {
            let words = ["sync", source, "DIR/d", "--delete", "-j", jobs];
            rig.run(&words).ok();
            assert_eq!(rig.files(), files);
            assert_eq!(rig.run(&words).ok().stdout, "", "nothing is left to do");
        }
    }
}

/// A directory is kept if a file in it is kept.
#[test]
fn sync_keeps_a_directory_of_an_excluded_file() {
    let rig = Rig::new();
    rig.put("s/a", "a");
    rig.write("d/a/gone", "x");
    rig.write("d/a/sub/kept.log", "x");
    std::fs::create_dir_all(rig.path("e/a/empty")).unwrap();
    let words = ["sync", "s3://bkt/s", "DIR/d", "--delete", "--exclude", "*.log"];
    let ran = rig.run(&words).ended(CommandExit::Usage);
    assert!(ran.stderr.contains("d/a is a directory"), "{}", ran.stderr);
    assert_eq!(rig.files(), ["d/a/sub/kept.log"]);
    rig.run(&["sync", "s3://bkt/s", "DIR/e"]).ended(CommandExit::Usage);
    assert!(rig.path("e/a/empty").is_dir(), "without --delete, nothing is removed");
    rig.run(&["sync", "s3://bkt/s", "DIR/e", "--delete"]).ok();
    assert!(rig.path("e/a").is_file());
}

#[test]
fn sync_finds_what_exists_beside_a_linked_directory() {
    let rig = Rig::new();
    for file in ["src/real.d/x", "src/sub-2", "src/sub.txt"] {
        rig.write(file, file);
    }
    symlink("real.d", rig.path("src/sub")).unwrap();
    let words = ["sync", "DIR/src", "s3://bkt/s", "--delete"];
    rig.run(&words).ok();
    assert_eq!(rig.run(&words).ok().stdout, "", "nothing is left to do");
    assert_eq!(rig.keys(), ["s/real.d/x", "s/sub-2", "s/sub.txt", "s/sub/x"]);
}

#[test]
fn links_can_be_skipped() {
    let rig = Rig::new();
    for file in ["t/a", "t/d/b", "other/c"] {
        rig.write(file, file);
    }
    symlink("a", rig.path("t/link")).unwrap();
    symlink("../other", rig.path("t/tree")).unwrap();
    symlink("nowhere", rig.path("t/dangling")).unwrap();
    symlink("..", rig.path("t/d/loop")).unwrap();
    symlink("t", rig.path("root")).unwrap();
    let skips = "--no-follow-symlinks";
    // A link that the user specifies as the source is followed even with `--no-follow-symlinks`, if it points to a
    // directory.
    rig.run(&["cp", "-r", "DIR/root", "s3://bkt/c", skips]).ok();
    rig.run(&["sync", "DIR/t", "s3://bkt/s", "--follow-symlinks", skips]).ok();
    rig.run(&["cp", "DIR/t/link", "s3://bkt/single", skips]).ok();
    assert_eq!(rig.keys(), ["c/a", "c/d/b", "s/a", "s/d/b"]);
    rig.put("s/link", "older");
    rig.put("s/gone", "");
    rig.put("s/tree/c", "older");
    rig.run(&["sync", "DIR/t", "s3://bkt/s", "--delete", skips]).ok();
    assert_eq!(
        rig.keys()[2..],
        ["s/a", "s/d/b", "s/link", "s/tree/c"],
        "what is skipped is not removed either"
    );
    rig.run(&["mv", "-r", "DIR/t", "s3://bkt/m", skips]).ok();
    assert_eq!(rig.keys()[2..4], ["m/a", "m/d/b"]);
    assert!(rig.path("t/link").is_symlink() && rig.path("other/c").exists());
    rig.write("t/a", "a");
    rig.run(&["cp", "DIR/t/link", "s3://bkt/single"]).ok();
    assert_eq!(rig.get("single").unwrap(), b"a");
}

/// A link that forms a loop is sorted as a directory, so the error about it follows the file `loop-x`.
#[test]
fn objects_with_the_name_of_a_loop_are_kept() {
    let rig = Rig::new();
    for file in ["t/d/loop-x", "t/z"] {
        rig.write(file, file);
    }
    symlink("..", rig.path("t/d/loop")).unwrap();
    let keys = ["s/d", "s/d/loop", "s/d/loop/x", "s/gone"];
    for key in keys {
        rig.put(key, key);
    }
    let ran = rig.run(&["sync", "DIR/t", "s3://bkt/s", "--delete"]);
    assert!(ran.exit != CommandExit::Ok && ran.stderr.contains("loop"), "{}", ran.stderr);
    assert_eq!(rig.keys(), ["s/d/loop", "s/d/loop-x", "s/d/loop/x", "s/z"]);
}

/// Files reached through a link to a directory may belong to another directory tree, so `sync --delete` must not remove
/// them.
#[test]
fn sync_removes_nothing_below_a_linked_directory() {
    let rig = Rig::new();
    rig.put("src/a", "a");
    rig.put("src/link/shared", "new content");
    for file in ["precious/data", "precious/deep/data", "precious/shared", "d/gone", "file"] {
        rig.write(file, file);
    }
    symlink("../precious", rig.path("d/link")).unwrap();
    symlink("../file", rig.path("d/link-to-file")).unwrap();
    let ran = rig.run(&["sync", "s3://bkt/src", "DIR/d", "--delete", "--no-follow-symlinks"]).ok();
    assert_eq!(ran.stdout.matches("delete:").count(), 1, "{}", ran.stdout);
    assert!(rig.path("d/link-to-file").is_symlink(), "skipped links are kept");

    let ran = rig.run(&["sync", "s3://bkt/src", "DIR/d", "--delete"]).ended(CommandExit::Ok);
    let note = "d/link is a link to a directory, so --delete removes nothing below it";
    assert_eq!(ran.stderr.matches(note).count(), 1, "{}", ran.stderr);
    assert_eq!(ran.stdout, format!("delete: {}\n", rig.path("d/link-to-file").display()));
    let kept = ["d/a", "d/link/data", "d/link/deep/data", "d/link/shared"];
    assert_eq!(rig.files()[..4], kept);
    assert_eq!(rig.files()[4..], ["file", "precious/data", "precious/deep/data", "precious/shared"]);

    // A destination that is itself a link is not a link below the destination.
    symlink("d", rig.path("to")).unwrap();
    rig.write("d/gone", "x");
    rig.run(&["sync", "s3://bkt/src", "DIR/to", "--delete", "--quiet"]).ok();
    assert!(!rig.path("d/gone").exists());
}

/// A link to a directory may point outside the source. `mv` must not remove the files in that directory.
#[test]
fn mv_removes_nothing_behind_a_linked_directory() {
    let rig = Rig::new();
    for file in ["t/a", "t/z", "t/d/b", "outside/precious", "outside/file"] {
        rig.write(file, file);
    }
    symlink("../outside", rig.path("t/link")).unwrap();
    symlink("..", rig.path("t/d/loop")).unwrap();
    symlink("../outside/file", rig.path("t/link-to-file")).unwrap();
    for words in [&["--dry-run"][..], &[], &["--follow-symlinks"]] {
        let ran = rig.run(&[&["mv", "-r", "DIR/t", "s3://bkt/m"][..], words].concat());
        let ran = ran.ended(CommandExit::Usage);
        for link in ["link", "d/loop"] {
            let named =
                format!("{} is a link to a directory, and a move", rig.path("t").join(link).display());
            let advice = format!("--exclude '{link}/*', or all links with --no-follow-symlinks");
            assert!(ran.stderr.contains(&named) && ran.stderr.contains(&advice), "{}", ran.stderr);
        }
    }
    assert_eq!(rig.keys(), ["m/a", "m/d/b", "m/link-to-file", "m/z"]);
    assert_eq!(rig.get("m/link-to-file").unwrap(), b"outside/file");
    assert!(rig.path("t/link").is_symlink() && !rig.path("t/link-to-file").is_symlink());
    for file in ["outside/precious", "outside/file"] {
        assert!(rig.path(file).exists(), "{file}");
    }
    let words = ["mv", "-r", "DIR/t", "s3://bkt/m", "--exclude", "link/*"];
    rig.run(&[&words[..], &["--exclude", "d/loop"]].concat()).ok();
    rig.run(&["mv", "-r", "DIR/t", "s3://bkt/m", "--no-follow-symlinks"]).ok();

    // A shell passes links as sources when it expands `t/*`.
    for words in [&[][..], &["--no-follow-symlinks"]] {
        let ran = rig.run(&[&["mv", "-r", "DIR/t/link", "s3://bkt/n"][..], words].concat());
        let advice = format!("to move them, write {}/\n", rig.path("t/link").display());
        assert!(ran.stderr.ends_with(&advice), "{}", ran.stderr);
        ran.ended(CommandExit::Usage);
    }
    assert!(rig.path("outside/precious").exists());
    rig.run(&["mv", "-r", "DIR/t/link/", "s3://bkt/n"]).ok();
    assert_eq!(rig.keys()[4..], ["n/file", "n/precious"]);
    assert!(rig.path("t/link").is_symlink() && !rig.path("outside/precious").exists());
}

/// A link may point to a file of the same tree, directly or through another link. The file is removed when all links
/// have been copied.
#[test]
fn mv_copies_links_to_files_of_the_same_tree() {
    for jobs in ["1", "8"] {
        let rig = Rig::new();
        rig.write("t/data", "data");
        rig.write("t/sub/x", "x");
        for (target, link) in [("data", "latest"), ("latest", "newest"), ("../data", "sub/a"), ("x", "sub/b")]
        {
            symlink(target, rig.path("t").join(link)).unwrap();
        }
        rig.run(&["mv", "-r", "-j", jobs, "DIR/t", "s3://bkt/m"]).ok();
        assert_eq!(rig.keys(), ["m/data", "m/latest", "m/newest", "m/sub/a", "m/sub/b", "m/sub/x"]);
        for key in ["m/latest", "m/newest", "m/sub/a"] {
            assert_eq!(rig.get(key).unwrap(), b"data", "{key}");
        }
        for path in ["t/data", "t/latest", "t/newest", "t/sub/a", "t/sub/b", "t/sub/x"] {
            assert!(rig.path(path).symlink_metadata().is_err(), "{path}");
        }
    }
}

/// If a link is not moved, the file that it points to is kept. A link that the user excludes does not keep the file.
#[test]
fn mv_keeps_the_file_of_a_link_that_is_not_moved() {
    let rig = Rig::new();
    rig.write("t/data", "data");
    symlink("data", rig.path("t/latest")).unwrap();
    rig.put("m/latest", "older");
    let ran = rig.run(&["mv", "-r", "--no-clobber", "DIR/t", "s3://bkt/m"]).ended(CommandExit::Conflict);
    let why = "t/data was copied but not removed, because the link";
    assert!(ran.stderr.contains(why), "{}", ran.stderr);
    assert_eq!(rig.files(), ["t/data", "t/latest"]);
    for words in [&["--exclude", "latest"][..], &["--no-follow-symlinks"]] {
        rig.write("t/data", "data");
        rig.run(&[&["mv", "-r", "DIR/t", "s3://bkt/n"], words].concat()).ok();
        assert!(!rig.path("t/data").exists() && rig.path("t/latest").is_symlink(), "{words:?}");
    }
}

/// A link that the command line does not name is not a source, although it is in the directory of a source.
#[test]
fn mv_of_a_file_ignores_the_links_beside_it() {
    let rig = Rig::new();
    rig.write("t/data", "data");
    symlink("data", rig.path("t/latest")).unwrap();
    rig.run(&["mv", "DIR/t/data", "s3://bkt/m/"]).ok();
    assert_eq!(rig.keys(), ["m/data"]);
    assert!(!rig.path("t/data").exists() && rig.path("t/latest").is_symlink());
}

/// A file and a link to it may be separate sources. The link is copied before the file is removed.
#[test]
fn mv_copies_a_link_that_is_named_after_its_file() {
    let rig = Rig::new();
    rig.write("t/data", "data");
    symlink("data", rig.path("t/latest")).unwrap();
    rig.run(&["mv", "-j", "1", "DIR/t/data", "DIR/t/latest", "s3://bkt/m/"]).ok();
    assert_eq!((rig.get("m/data").unwrap(), rig.get("m/latest").unwrap()), (b"data".into(), b"data".into()));
    assert!(!rig.path("t/data").exists() && !rig.path("t/latest").is_symlink());
}

/// In this test, the sources are file names without a directory.
#[test]
fn mv_copies_a_link_in_the_working_directory() {
    let rig = Rig::new();
    rig.write("t/data", "data");
    symlink("data", rig.path("t/latest")).unwrap();
    std::fs::create_dir_all(rig.path("root/bucket")).unwrap();
    let endpoint = format!("file://{}", rig.path("root").display());
    let ran = Command::new(env!("CARGO_BIN_EXE_fordway"))
        .args(["--endpoint", &endpoint, "mv", "-j", "1", "data", "latest", "s3://bucket/m/"])
        .current_dir(rig.path("t"))
        .output()
        .unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    assert_eq!(std::fs::read(rig.path("root/bucket/m/latest")).unwrap(), b"data");
    assert!(!rig.path("t/data").exists() && !rig.path("t/latest").is_symlink());
}

/// A link that the filters exclude does not keep the file that it points to, even if the link itself is a source.
#[test]
fn mv_removes_the_file_of_an_excluded_link() {
    let rig = Rig::new();
    rig.write("t/data", "data");
    symlink("data", rig.path("t/latest")).unwrap();
    rig.run(&["mv", "DIR/t/data", "DIR/t/latest", "s3://bkt/m/", "--exclude", "latest"]).ok();
    assert_eq!(rig.keys(), ["m/data"]);
    assert!(!rig.path("t/data").exists() && rig.path("t/latest").is_symlink());
}

/// The command prints a warning about each entry that cannot be a copy of an object, and continues with the copies.
#[test]
fn odd_entries_at_the_destination_are_skipped() {
    let rig = Rig::new();
    for key in ["s/a", "s/pipe", "s/sub/b", "s/zzz"] {
        rig.put(key, key);
    }
    rig.write("d/sub/gone", "x");
    symlink("nowhere", rig.path("d/dangling")).unwrap();
    symlink("self", rig.path("d/self")).unwrap();
    symlink("..", rig.path("d/sub/loop")).unwrap();
    std::fs::write(rig.path("d").join(OsStr::from_bytes(b"odd-\xff")), "x").unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, rig.path("d/pipe"), rustix::fs::Mode::RWXU).unwrap();
    let words = ["sync", "s3://bkt/s", "DIR/d", "--delete"];
    // A copy into the pipe would wait for a reader.
    let ran = rig.run(&words).ended(CommandExit::Usage);
    assert_eq!(ran.stderr.matches("skipping an entry at the destination: ").count(), 5, "{}", ran.stderr);
    assert!(ran.stderr.contains("d/pipe is not a regular file, so `sync` does not"), "{}", ran.stderr);
    assert!(ran.stderr.ends_with("1 of 5 failed, 4 done, 0 skipped\n"), "{}", ran.stderr);
    for file in ["d/a", "d/sub/b", "d/zzz"] {
        assert!(rig.path(file).is_file(), "{file}");
    }
    assert!(!rig.path("d/sub/gone").exists() && rig.path("d/dangling").is_symlink());
    let ran = rig.run(&[&words[..], &["--exclude", "pipe"]].concat()).ended(CommandExit::Ok);
    assert_eq!(ran.stderr.lines().count(), 4, "{}", ran.stderr);
}

/// This test has no unreadable directory, because in Docker, tests often run as root, which can read everything.
#[test]
fn excluded_entries_need_not_be_readable() {
    let rig = Rig::new();
    rig.write("t/a", "a");
    std::fs::create_dir(rig.path("t/d")).unwrap();
    symlink("nowhere", rig.path("t/bad-dangling")).unwrap();
    symlink("bad-self", rig.path("t/bad-self")).unwrap();
    symlink("..", rig.path("t/d/bad-loop")).unwrap();
    let odd = OsStr::from_bytes(b"bad-\xff");
    std::fs::write(rig.path("t").join(odd), "x").unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, rig.path("t/bad-pipe"), rustix::fs::Mode::RWXU).unwrap();
    for words in [&["cp", "-r", "DIR/t", "s3://bkt/c"][..], &["sync", "DIR/t", "s3://bkt/s"]] {
        let ran = rig.run(words);
        assert!(ran.exit != CommandExit::Ok && ran.stderr.contains("5 of 6 failed"), "{}", ran.stderr);
        rig.run(&[words, &["--exclude", "*bad-*"]].concat()).ok();
        let ran = rig.run(&[words, &["--exclude", "*bad-*", "--include", "*pipe"]].concat());
        assert!(ran.stderr.contains("bad-pipe is neither a file nor a directory"), "{}", ran.stderr);
    }
    assert_eq!(rig.keys(), ["c/a", "s/a"]);
}

#[test]
fn unfinished_downloads_are_not_content() {
    let rig = Rig::new();
    for file in [
        "t/a",
        "t/.fordway-a1B2c3.part",
        "t/d/.fordway-ZZZZZZ.part",
        "t/.fordway-notes.part.txt",
        "t/.fordway-0123456789abcdef.part",
        "t/d/.f.bin.0123456789abcdef.part",
    ] {
        rig.write(file, file);
    }
    for words in [&["sync", "DIR/t", "s3://bkt/s"][..], &["cp", "-r", "DIR/t", "s3://bkt/c"]] {
        let ran = rig.run(words).ended(CommandExit::Ok);
        assert_eq!(ran.stderr.matches("left out 4 files").count(), 1, "{}", ran.stderr);
        let ran = rig.run(&[words, &["--exclude", "d/*"]].concat()).ended(CommandExit::Ok);
        assert!(ran.stderr.contains("left out 2 files"), "{}", ran.stderr);
        rig.run(&[words, &["--exclude", "*.part"]].concat()).ok();
    }
    assert_eq!(rig.keys(), ["c/.fordway-notes.part.txt", "c/a", "s/.fordway-notes.part.txt", "s/a"]);
    rig.run(&["sync", "s3://bkt/s", "DIR/t", "--delete"]).ok();
    assert_eq!(rig.files().len(), 6, "another download still needs its file");
    rig.run(&["cp", "DIR/t/d/.f.bin.0123456789abcdef.part", "s3://bkt/named"]).ok();
    assert!(rig.keys().contains(&"named".to_owned()));
}

#[test]
fn sync_removes_nothing_when_the_source_is_missing() {
    let rig = Rig::new();
    rig.put("s/a", "a");
    rig.run(&["sync", "DIR/none", "s3://bkt/s", "--delete"]).ended(CommandExit::NotFound);
    assert_eq!(rig.keys(), ["s/a"]);
    rig.write("down/a", "a");
    rig.run(&["sync", "s3://nobucket/s", "DIR/down", "--delete"]).ended(CommandExit::NotFound);
    assert_eq!(rig.files(), ["down/a"]);
}

/// A link at the destination can lead to the destination of another object. The second download would replace the
/// content of the first, whose object no longer exists.
#[test]
fn mv_does_not_replace_a_file_that_it_has_written() {
    for (jobs, of_link, of_file) in [("1", "a", "b"), ("1", "b", "a"), ("8", "a", "b")] {
        let rig = Rig::new();
        let objects = [of_link, of_file].map(|name| [name.to_owned(), format!("d-{name}/k")]).concat();
        objects.iter().for_each(|key| rig.put(key, key));
        rig.write(&format!("o/{of_file}"), "old");
        rig.write(&format!("o/d-{of_file}/other"), "old");
        symlink(of_file, rig.path(&format!("o/{of_link}"))).unwrap();
        symlink(format!("d-{of_file}"), rig.path(&format!("o/d-{of_link}"))).unwrap();
        let ran = rig.run(&["mv", "-r", "-j", jobs, "s3://bkt", "DIR/o"]).ended(CommandExit::Usage);
        assert!(ran.stderr.contains("is the destination of two sources"), "{}", ran.stderr);
        assert!(ran.stderr.contains("2 of 4 failed, 2 done"), "{}", ran.stderr);
        let mut left = rig.keys();
        assert_eq!(left.len(), 2, "{left:?}");
        left.extend(
            [of_file.to_owned(), format!("d-{of_file}/k")]
                .map(|name| std::fs::read_to_string(rig.path(&format!("o/{name}"))).unwrap()),
        );
        left.sort();
        assert_eq!(left, ["a", "b", "d-a/k", "d-b/k"]);
    }
}

/// A FIFO early in a tree must not mean that surplus objects stay forever.
#[test]
fn sync_removes_surplus_objects_although_one_entry_is_special() {
    let rig = Rig::new();
    rig.write("s/m", "m");
    let made = std::process::Command::new("mkfifo").arg(rig.path("s/a")).status().unwrap();
    assert!(made.success());
    std::os::unix::fs::symlink("nowhere", rig.path("s/link")).unwrap();
    for key in ["0", "a", "link/below", "z"] {
        rig.put(key, key);
    }
    let ran = rig.run(&["sync", "DIR/s", "s3://bkt", "--delete"]);
    assert!(ran.exit != CommandExit::Ok && ran.stderr.contains("s/a is neither"), "{}", ran.stderr);
    assert_eq!(rig.keys(), ["a", "link/below", "m"]);
}
