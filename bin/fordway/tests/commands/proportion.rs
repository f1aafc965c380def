//! Tests that memory use does not depend on the sizes that servers and documents claim. For any claimed size, a command
//! must end with an error and use little memory.

use std::process::{Command, Output};

use fordway_testkit::hostile::{HostileServer, ResponseFault, ResponseFaultScript};

use crate::binary::text;
use crate::support::Rig;

/// The address space of a command, in KiB. Allocating any of the sizes used in these tests exceeds this limit and
/// fails.
const LIMIT_KIB: u64 = 2 << 20;

/// Sizes larger than any file in these tests.
const SIZES: [u64; 4] = [1 << 40, 1 << 50, i64::MAX as u64, u64::MAX];

fn limited(rig: &Rig, words: &[&str]) -> Output {
    let dir = rig.dir.path().to_str().unwrap();
    let words = words.iter().map(|word| word.replace("DIR", dir));
    Command::new("sh")
        .args(["-c", &format!("ulimit -v {LIMIT_KIB} && exec \"$0\" \"$@\""), env!("CARGO_BIN_EXE_fordway")])
        .args(words)
        .env("XDG_CACHE_HOME", rig.dir.path())
        .env("AWS_CONFIG_FILE", "/dev/null")
        .env("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
        .env("AWS_ACCESS_KEY_ID", "AK")
        .env("AWS_SECRET_ACCESS_KEY", "SK")
        .env("AWS_REGION", "r")
        .env("AWS_MAX_ATTEMPTS", "1")
        .output()
        .unwrap()
}

/// Asserts that the command fails with an exit code and an error message, without a panic.
#[track_caller]
fn assert_fails(rig: &Rig, words: &[&str]) {
    let ran = limited(rig, words);
    let said = text(&ran.stderr);
    assert!(
        ran.status.code().is_some_and(|code| code > 0 && code != 101),
        "{words:?}: {:?} {said}",
        ran.status
    );
    assert!(!said.contains("panicked") && !said.contains("memory allocation of"), "{words:?}: {said}");
}

fn metalink(size: u64, pieces: &str, url: &str) -> String {
    let file = format!("<file name=\"file\"><size>{size}</size>{pieces}<url>{url}</url></file>");
    format!("<metalink xmlns=\"urn:ietf:params:xml:ns:metalink\">{file}</metalink>")
}

#[test]
fn sizes_of_metalinks() {
    let rig = Rig::new();
    let server = HostileServer::start(vec![7; 100_000], ResponseFaultScript::honest());
    let hash = "<hash>a9993e364706816aba3e25717850c26c9cd0d89d</hash>";
    for size in SIZES {
        for pieces in [String::new(), format!("<pieces length=\"{size}\" type=\"sha-1\">{hash}</pieces>")] {
            rig.write("m.meta4", metalink(size, &pieces, &server.url()));
            for words in [
                &["cp", "--metalink", "DIR/m.meta4", &server.url(), "DIR/x"][..],
                &["cat", "--metalink", "DIR/m.meta4", &server.url()],
                &["cat", "--metalink", "DIR/m.meta4", "--range", "5-", &server.url()],
                &["cp", "--streams", "3", "--metalink", "DIR/m.meta4", &server.url(), "DIR/x"],
            ] {
                assert_fails(&rig, words);
            }
        }
    }
}

/// A server claims a huge size in its response headers, and the Metalink claims the same size. The server closes the
/// connection after 50,000 bytes of content.
#[test]
fn sizes_that_a_server_confirms() {
    let rig = Rig::new();
    for size in SIZES {
        let off = ResponseFault::ContentLengthOff(i64::try_from(size).unwrap_or(i64::MAX) - 100_000);
        let script = ResponseFaultScript::honest()
            .on_method("HEAD", off)
            .always(ResponseFault::ContentRangeSize(size));
        let server =
            HostileServer::start(vec![7; 100_000], script.on_method("GET", ResponseFault::CloseAt(50_000)));
        let url = server.url();
        let hash = "<hash>a9993e364706816aba3e25717850c26c9cd0d89d</hash>";
        let pieces = format!("<pieces length=\"{size}\" type=\"sha-1\">{hash}</pieces>");
        rig.write("m.meta4", metalink(size, &pieces, &url));
        rig.write("ranges", format!("7 9\n9 {}\n", size - 9));
        for words in [
            &["cp", "--metalink", "none", &url, "DIR/x"][..],
            &["cp", "--streams", "3", &url, "DIR/x"],
            &["cp", "--metalink", "DIR/m.meta4", &url, "DIR/x"],
            &["cat", "--metalink", "none", &url],
            &["read", "--metalink", "none", &url, "--sequential", "64KiB", "--output", "DIR/y"],
            &["read", "--metalink", "none", &url, "--ranges", "DIR/ranges", "--output", "DIR/y"],
        ] {
            assert_fails(&rig, words);
        }
    }
}
