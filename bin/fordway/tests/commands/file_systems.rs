//! Tests downloads into file systems that lack a feature, or that report a failed write late. A shared object, which
//! the dynamic linker loads before libc, replaces a few functions of libc for files in directories with certain names.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use fordway_testkit::hostile::{HostileServer, ResponseFault, ResponseFaultScript};
use tempfile::TempDir;

use crate::binary;

/// In `late`, `close` and `fdatasync` report that the quota is exceeded, as NFS and FUSE do after a delayed write. In
/// `unsynced`, `fdatasync` fails. In `plain`, there are neither locks nor hard links, as on Lustre without `flock` and
/// on exFAT.
const REPLACEMENTS: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int is_written_in(int fd, const char *directory) {
    char link[64], path[4096] = "";
    struct stat about;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    if (readlink(link, path, sizeof path - 1) < 0 || !strstr(path, directory)) return 0;
    return !fstat(fd, &about) && S_ISREG(about.st_mode) && (fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDONLY;
}

int close(int fd) {
    int is_late = is_written_in(fd, "/late/");
    int closed = ((int (*)(int))dlsym(RTLD_NEXT, "close"))(fd);
    if (is_late) errno = EDQUOT;
    return is_late ? -1 : closed;
}

int fdatasync(int fd) {
    if (is_written_in(fd, "/late/")) {
        errno = EDQUOT;
        return -1;
    }
    if (!is_written_in(fd, "/unsynced/")) return ((int (*)(int))dlsym(RTLD_NEXT, "fdatasync"))(fd);
    errno = EIO;
    return -1;
}

int flock(int fd, int operation) {
    if (!is_written_in(fd, "/plain/")) return ((int (*)(int, int))dlsym(RTLD_NEXT, "flock"))(fd, operation);
    errno = ENOSYS;
    return -1;
}

int linkat(int from_dir, const char *from, int to_dir, const char *to, int flags) {
    if (!strstr(to, "/plain/"))
        return ((int (*)(int, const char *, int, const char *, int))dlsym(RTLD_NEXT, "linkat"))(
            from_dir, from, to_dir, to, flags);
    errno = EPERM;
    return -1;
}
"#;

/// Returns the shared object; `None` without a C compiler.
fn replacements() -> Option<&'static Path> {
    static BUILT: OnceLock<Option<(TempDir, PathBuf)>> = OnceLock::new();
    let build = || {
        let cc = fordway_needs::program("cc")?;
        let dir = tempfile::tempdir().unwrap();
        let (source, object) = (dir.path().join("libc.c"), dir.path().join("libc.so"));
        std::fs::write(&source, REPLACEMENTS).unwrap();
        let mut build = Command::new(cc);
        build.args(["-shared", "-fPIC", "-o"]).arg(&object).arg(&source).arg("-ldl");
        assert!(build.status().unwrap().success());
        Some((dir, object))
    };
    BUILT.get_or_init(build).as_ref().map(|(_, object)| object.as_path())
}

/// A directory with `root/bucket/key`, and with a directory for each kind of file system.
struct Place {
    dir: TempDir,
    object: &'static Path,
}

impl Place {
    fn new() -> Option<Self> {
        let (dir, object) = (tempfile::tempdir().unwrap(), replacements()?);
        for name in ["root/bucket", "late", "unsynced", "plain"] {
            std::fs::create_dir_all(dir.path().join(name)).unwrap();
        }
        std::fs::write(dir.path().join("root/bucket/key"), "content\n").unwrap();
        Some(Place { dir, object })
    }

    /// Runs `fordway WORDS`. Replaces `DIR` in each word with the path of the directory.
    fn run(&self, words: &[&str]) -> (Option<i32>, String) {
        self.run_to(words, std::process::Stdio::piped())
    }

    fn run_to(&self, words: &[&str], stdout: impl Into<std::process::Stdio>) -> (Option<i32>, String) {
        let dir = self.dir.path().to_str().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_fordway"));
        command.args(words.iter().map(|word| word.replace("DIR", dir)));
        command.env("AWS_ENDPOINT_URL", format!("file://{dir}/root")).env("LD_PRELOAD", self.object);
        let Output { status, stderr, .. } = command.stdout(stdout).output().unwrap();
        (status.code(), binary::text(&stderr))
    }

    fn read(&self, name: &str) -> Option<String> {
        std::fs::read_to_string(self.dir.path().join(name)).ok()
    }

    fn names(&self, directory: &str) -> Vec<String> {
        let entries = self.dir.path().join(directory).read_dir().unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

/// A move must not remove its source, and a copy must not replace an old file, if the new content was not stored.
#[test]
fn the_error_of_a_delayed_write_fails_the_command() {
    let Some(place) = Place::new() else { return };
    let server = HostileServer::start(b"content\n".to_vec(), ResponseFaultScript::honest());
    let url = server.url();
    std::fs::write(place.dir.path().join("late/key"), "old").unwrap();
    std::fs::write(place.dir.path().join("ranges"), "0 8\n").unwrap();
    for words in [
        &["mv", "s3://bucket/key", "DIR/late/"][..],
        &["cp", "s3://bucket/key", "DIR/late/key"],
        &["cp", "--if-none-match", "s3://bucket/key", "DIR/late/new"],
        &["cp", "-r", "s3://bucket", "DIR/late"],
        &["sync", "s3://bucket", "DIR/late", "--exact-timestamps"],
        &["cp", &url, "DIR/late/key"],
        &["cp", "--if-none-match", &url, "DIR/late/new"],
        &["read", "s3://bucket/key", "--ranges", "DIR/ranges", "--output", "DIR/late/key"],
    ] {
        let (code, said) = place.run(words);
        assert_eq!(code, Some(6), "{words:?}: {said}");
        assert!(said.contains("/late/") && said.contains("quota"), "{words:?}: {said}");
        assert_eq!(place.read("late/key").unwrap(), "old", "{words:?}");
        assert_eq!(place.names("late"), ["key"], "{words:?}");
        assert_eq!(place.read("root/bucket/key").unwrap(), "content\n", "{words:?}");
    }
    // These files are written in place.
    let make =
        ["metalink", "make", "DIR/root/bucket/key", "--replica", "http://h/key", "--out", "DIR/late/m"];
    for (words, output) in [(&make[..], "other"), (&["cat", "s3://bucket/key"], "late/out")] {
        let output = std::fs::File::create(place.dir.path().join(output)).unwrap();
        let (code, said) = place.run_to(words, output);
        assert_eq!(code, Some(6), "{words:?}: {said}");
    }
}

#[test]
fn a_move_forces_the_content_to_stable_storage_before_it_removes_the_source() {
    let Some(place) = Place::new() else { return };
    let (code, said) = place.run(&["mv", "s3://bucket/key", "DIR/unsynced/"]);
    assert_eq!(code, Some(1), "{said}");
    assert_eq!(place.read("root/bucket/key").unwrap(), "content\n");
    assert!(place.names("unsynced").is_empty());
    // A copy keeps its source, so it does not wait for the disk.
    assert_eq!(place.run(&["cp", "s3://bucket/key", "DIR/unsynced/"]).0, Some(0));
    assert_eq!(place.run(&["mv", "s3://bucket/key", "DIR/"]).0, Some(0));
    assert_eq!(place.read("key").unwrap(), "content\n");
}

/// Lustre without the mount option `flock` has no locks, and exFAT has no hard links.
#[test]
fn files_are_copied_to_a_file_system_without_locks_and_hard_links() {
    let Some(place) = Place::new() else { return };
    let content = vec![b'x'; 100_000];
    let server = HostileServer::start(content.clone(), ResponseFaultScript::honest());
    let (url, file) = (server.url(), place.dir.path().join("file"));
    std::fs::write(&file, &content).unwrap();
    let make = ["metalink", "make", "DIR/file", "--replica", &url, "--out", "DIR/m.meta4"];
    assert_eq!(place.run(&make).0, Some(0));
    for words in [
        &["cp", &url, "DIR/plain/"][..],
        &["cp", "--no-clobber", &url, "DIR/plain/new"],
        &["cp", "--if-none-match", &url, "DIR/plain/new"],
        &["cp", "--metalink", "DIR/m.meta4", "DIR/plain/"],
        &["cp", "--if-none-match", "s3://bucket/key", "DIR/plain/new"],
    ] {
        let (code, said) = place.run(words);
        let existed = words[1] == "--if-none-match";
        assert_eq!(code, Some(if existed { 5 } else { 0 }), "{words:?}: {said}");
        let name = if words.last().unwrap().ends_with("new") { "plain/new" } else { "plain/file" };
        assert!(place.read(name).unwrap().into_bytes() == content, "{words:?}");
        if name == "plain/file" {
            std::fs::remove_file(place.dir.path().join(name)).unwrap();
        }
    }
    // Nothing can be resumed, so a failed copy leaves no part file.
    let wrong = ResponseFault::Header("Repr-Digest", format!("sha-256=:{}=:", "A".repeat(43)));
    server.follow(ResponseFaultScript::honest().always(wrong));
    assert_eq!(place.run(&["cp", "--metalink", "none", &url, "DIR/plain/"]).0, Some(8));
    assert_eq!(place.names("plain"), ["new"]);
}
