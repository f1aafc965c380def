//! Tests the program with sources and destinations that are not regular files, and with a limit on file sizes.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use fordway_testkit::hostile::{HostileServer, ResponseFault, ResponseFaultScript};
use rustix::process::{Pid, Signal, kill_process};

use crate::binary;

/// Creates a directory that contains `root/bucket/key`.
fn place() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(dir.path().join("root/bucket")).unwrap();
    std::fs::write(dir.path().join("root/bucket/key"), "content\n").unwrap();
    dir
}

fn fordway(dir: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fordway"));
    command.args(["--endpoint", &format!("file://{}", dir.join("root").display())]).args(words);
    command.stdin(Stdio::null()).stderr(Stdio::piped());
    command
}

#[test]
fn standard_output_is_written_in_place() {
    let dir = place();
    let (log, ranges) = (dir.path().join("log"), dir.path().join("ranges"));
    std::fs::write(&ranges, "0 8\n").unwrap();
    for destination in ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"] {
        for words in [
            &["cp", "s3://bucket/key", destination][..],
            &["cp", "--json", "s3://bucket/key", destination],
            &["read", "s3://bucket/key", "--ranges", ranges.to_str().unwrap(), "--output", destination],
        ] {
            std::fs::write(&log, "before\n").unwrap();
            let opened = OpenOptions::new().append(true).open(&log).unwrap();
            let ran = fordway(dir.path(), words).stdout(opened).output().unwrap();
            assert!(ran.status.success(), "{words:?}: {}", binary::text(&ran.stderr));
            assert_eq!(std::fs::read_to_string(&log).unwrap(), "before\ncontent\n", "{words:?}");
        }
    }
    let file = dir.path().join("root/bucket/key");
    let make = ["metalink", "make", file.to_str().unwrap(), "--replica", "http://host/key", "--out"];
    let described = |out| fordway(dir.path(), &[&make[..], &[out]].concat()).output().unwrap().stdout;
    assert_eq!(binary::text(&described("/dev/stdout")), binary::text(&described("-")));
    assert_eq!(dir.path().read_dir().unwrap().count(), 3, "no other file is left");
}

/// Only the content of an object must not be mixed with messages. A download into another special file is reported.
#[test]
fn a_download_into_another_special_file_is_reported() {
    let dir = place();
    let ran = fordway(dir.path(), &["cp", "s3://bucket/key", "/dev/null"]).output().unwrap();
    assert_eq!(binary::text(&ran.stdout), "download: s3://bucket/key to /dev/null\n");
}

/// Runs the command with the redirections of a shell, such as `<&-`, which closes standard input.
fn redirected(dir: &Path, words: &[&str], redirections: &str) -> (Option<i32>, String) {
    let fordway = fordway(dir, words);
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("exec \"$0\" \"$@\" {redirections}")]);
    shell.arg(fordway.get_program()).args(fordway.get_args());
    let ran = shell.output().unwrap();
    (ran.status.code(), binary::text(&ran.stderr))
}

/// The first file that a program opens gets the descriptor number of a closed stream, unless the program first opens
/// `/dev/null` in its place.
#[test]
fn closed_streams_are_neither_read_nor_written() {
    let dir = place();
    let stored = dir.path().join("root/bucket/stored");
    let file = dir.path().join("file");
    std::fs::write(&file, "12345").unwrap();
    for words in [&["cp", "-", "s3://bucket/stored"][..], &["read", "s3://bucket/key", "--ranges", "-"]] {
        let (code, said) = redirected(dir.path(), words, "<&-");
        assert_eq!(
            (code, said.as_str()),
            (Some(2), "fordway: invalid argument: standard input is closed\n"),
            "{words:?}"
        );
        let (_, said) = redirected(dir.path(), words, "</dev/null");
        assert!(!said.contains("is closed"), "{said}");
    }
    assert_eq!(std::fs::read(&stored).unwrap(), b"", "of /dev/null, which is an ordinary empty input");
    for words in [&["cat", "s3://bucket/key"][..], &["cp", "s3://bucket/key", "-"]] {
        let (code, said) = redirected(dir.path(), words, ">&-");
        assert_eq!(
            (code, said.as_str()),
            (Some(2), "fordway: invalid argument: standard output is closed\n"),
            "{words:?}"
        );
    }
    for redirections in ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"] {
        let up = ["cp", file.to_str().unwrap(), "s3://bucket/stored"];
        assert_eq!(redirected(dir.path(), &up, redirections), (Some(0), String::new()), "{redirections}");
        assert_eq!(std::fs::read(&stored).unwrap(), b"12345", "{redirections}");
        let missing = ["cp", "s3://bucket/none", file.to_str().unwrap()];
        assert_eq!(redirected(dir.path(), &missing, redirections).0, Some(3), "{redirections}");
        assert_eq!(std::fs::read(&file).unwrap(), b"12345", "{redirections}");
    }
}

/// `--jobs` may be larger than the number of files that a process may open.
#[test]
fn more_jobs_than_files_copy_everything() {
    let dir = place();
    std::fs::create_dir(dir.path().join("many")).unwrap();
    (0..300).for_each(|n| std::fs::write(dir.path().join(format!("many/{n}")), "content\n").unwrap());
    let many = dir.path().join("many");
    for (words, limit) in [
        (["cp", "-r", many.to_str().unwrap(), "s3://bucket/up"], "ulimit -n 32"),
        (["sync", "--quiet", "s3://bucket/up", dir.path().join("down").to_str().unwrap()], "ulimit -n 32"),
        (["sync", "--quiet", many.to_str().unwrap(), "s3://bucket/again"], "ulimit -S -n 32"),
    ] {
        let fordway = fordway(dir.path(), &[&words[..], &["--jobs", "100"]].concat());
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("{limit} && exec \"$0\" \"$@\"")]);
        let ran = shell.arg(fordway.get_program()).args(fordway.get_args()).output().unwrap();
        assert!(ran.status.success() && ran.stderr.is_empty(), "{words:?}: {}", binary::text(&ran.stderr));
    }
    for made in ["root/bucket/up", "down", "root/bucket/again"] {
        let files = dir.path().join(made).read_dir().unwrap();
        assert_eq!(files.filter(|file| file.as_ref().unwrap().metadata().unwrap().len() == 8).count(), 300);
    }
}

/// Sends SIGTERM after 300 ms, when the process is waiting; returns the exit code and messages of the process.
fn stopped(mut child: Child) -> (Option<i32>, String) {
    std::thread::sleep(Duration::from_millis(300));
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    let start = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if start.elapsed() > Duration::from_secs(10) {
            child.kill().unwrap();
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    (child.wait().unwrap().code(), said)
}

#[test]
fn one_signal_ends_a_command_that_waits_for_input() {
    let dir = place();
    let mut child =
        fordway(dir.path(), &["cp", "-", "s3://bucket/piped"]).stdin(Stdio::piped()).spawn().unwrap();
    let input = child.stdin.take();
    let (code, said) = stopped(child);
    assert_eq!(code, Some(130), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(!dir.path().join("root/bucket/piped").exists());
    drop(input);
}

#[test]
fn one_signal_ends_a_command_that_waits_before_another_attempt() {
    let busy = ResponseFaultScript::honest().always(ResponseFault::Status(503, Some(60)));
    let server = HostileServer::start(vec![b'x'; 1000], busy);
    let (code, said) = stopped(fordway(place().path(), &["cat", &server.url()]).spawn().unwrap());
    assert_eq!(code, Some(130), "{said}");
}

/// `nohup` makes a command ignore SIGHUP. A shell without job control makes commands that it starts with `&` ignore
/// SIGINT.
#[test]
fn signals_that_the_parent_ignores_do_not_stop_a_command() {
    let dir = place();
    let fordway = fordway(dir.path(), &["cp", "--quiet", "-", "s3://bucket/piped"]);
    for (name, signal) in [("HUP", Signal::HUP), ("INT", Signal::INT)] {
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("trap '' {name}; exec \"$0\" \"$@\"")]);
        shell.arg(fordway.get_program()).args(fordway.get_args());
        let mut child = shell.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(300));
        kill_process(Pid::from_child(&child), signal).unwrap();
        std::thread::sleep(Duration::from_millis(200));
        // The write fails if the command has ended.
        let _ = child.stdin.take().unwrap().write_all(name.as_bytes());
        let ended = child.wait_with_output().unwrap();
        assert_eq!((ended.status.code(), binary::text(&ended.stderr)), (Some(0), String::new()), "{name}");
        assert_eq!(std::fs::read_to_string(dir.path().join("root/bucket/piped")).unwrap(), name);
    }
}

#[test]
fn a_pipe_is_refused_without_waiting_for_its_writer() {
    let dir = place();
    let pipe = dir.path().join("pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RWXU).unwrap();
    let server = HostileServer::start(Vec::new(), ResponseFaultScript::honest());
    for (command, to) in [("cp", "s3://bucket/piped"), ("cp", &server.url()), ("mv", &server.url())] {
        let child = fordway(dir.path(), &[command, pipe.to_str().unwrap(), to]).spawn().unwrap();
        let (code, said) = stopped(child);
        assert_eq!(code, Some(2), "{command} {to}: {said}");
        assert!(said.contains("is not a regular file; pipe it in"), "{command} {to}: {said}");
    }
}

/// The kernel restarts these system calls after the signal handler has returned.
#[test]
fn one_signal_ends_a_command_that_is_blocked() {
    let dir = place();
    let pipe = dir.path().join("pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RWXU).unwrap();
    // Nothing reads from the pipe.
    let child = fordway(dir.path(), &["cp", "s3://bucket/key", pipe.to_str().unwrap()]).spawn().unwrap();
    let start = Instant::now();
    let (code, said) = stopped(child);
    assert_eq!(code, Some(130), "{said}");
    assert!(start.elapsed() < Duration::from_secs(8), "{:?}", start.elapsed());

    std::fs::write(dir.path().join("root/bucket/large"), vec![0; 1 << 20]).unwrap();
    let mut child =
        fordway(dir.path(), &["cat", "s3://bucket/large"]).stdout(Stdio::piped()).spawn().unwrap();
    let reader = child.stdout.take();
    let (code, said) = stopped(child);
    assert_eq!(code, Some(130), "{said}");
    drop(reader);
}

#[test]
fn a_download_into_a_pipe_is_written_to_it() {
    let dir = place();
    let pipe = dir.path().join("pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RWXU).unwrap();
    let child =
        fordway(dir.path(), &["cp", "--quiet", "s3://bucket/key", pipe.to_str().unwrap()]).spawn().unwrap();
    // This read waits until the command opens the pipe for writing.
    assert_eq!(std::fs::read(&pipe).unwrap(), b"content\n");
    assert!(child.wait_with_output().unwrap().status.success());
    assert!(!pipe.metadata().unwrap().is_file(), "the pipe is still there");
    let words = ["cp", "s3://bucket/key", pipe.to_str().unwrap(), "--no-overwrite"];
    assert!(fordway(dir.path(), &words).status().unwrap().success(), "nothing waits for a reader");
}

/// By default, the kernel kills a process that writes beyond the limit (RLIMIT_FSIZE). The command must report an error
/// instead.
#[test]
fn a_file_size_limit_is_an_ordinary_error() {
    let dir = place();
    let large = dir.path().join("large");
    File::create(&large).unwrap().set_len(1 << 20).unwrap();
    let fordway = fordway(dir.path(), &["cp", large.to_str().unwrap(), "s3://bucket/large"]);
    let mut shell = Command::new("sh");
    shell
        .args(["-c", "ulimit -f 64; exec \"$0\" \"$@\""])
        .arg(fordway.get_program())
        .args(fordway.get_args());
    let ran = shell.output().unwrap();
    let said = String::from_utf8_lossy(&ran.stderr);
    assert_eq!(ran.status.code(), Some(2), "{said}");
    assert!(said.contains("entity too large"), "{said}");
    assert!(!dir.path().join("root/bucket/large").exists());
}

/// After its connection breaks, a download continues at the first missing byte, and requests the same version.
#[test]
fn a_broken_connection_does_not_end_a_download() {
    let content: Vec<u8> = (0..900_000_u32).map(|number| (number >> 3) as u8).collect();
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    for words in [
        &["cp", "s3://bkt/key", out.to_str().unwrap()][..],
        &["cp", "s3://bkt/key", out.to_str().unwrap(), "--multipart-threshold", "1"],
        &["cat", "s3://bkt/key"],
    ] {
        let cut = ResponseFaultScript::honest().on_requests(0..3, ResponseFault::ResetAt(200_000));
        let server = HostileServer::start(content.clone(), cut);
        let endpoint = format!("http://{}", server.address());
        let words = [&["--quiet", "--endpoint", &endpoint][..], words].concat();
        let ran = binary::fordway(&words, "");
        assert!(ran.status.success(), "{}", binary::text(&ran.stderr));
        let got = if ran.stdout.is_empty() { std::fs::read(&out).unwrap() } else { ran.stdout };
        assert!(got == content, "{words:?}");
        let resumed = server.requests().iter().filter(|request| request.header("if-match").is_some()).count();
        assert!(resumed >= 2, "{resumed} requests");

        server.follow(ResponseFaultScript::honest().on_method("GET", ResponseFault::ResetAt(500)));
        let ran = binary::fordway(&words, "");
        let said = binary::text(&ran.stderr);
        assert_eq!(ran.status.code(), Some(7), "{said}");
        assert!(said.contains("the connection broke with") && !said.contains("send it again"), "{said}");
    }
}
