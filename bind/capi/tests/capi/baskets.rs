//! Runs the example that reads a file as a plug-in does (`examples/baskets.c`).

use std::path::PathBuf;
use std::process::{Command, Output};

use fordway_testkit::hostile::{HostileServer, ResponseFault, ResponseFaultScript};
use tempfile::TempDir;

use crate::harness::*;

/// Baskets for several batches, and the directory of the file that lists these baskets.
struct Baskets {
    ranges: Vec<(usize, usize)>,
    directory: TempDir,
}

impl Baskets {
    fn new() -> Self {
        let ranges: Vec<_> =
            (0..700_usize).map(|number| (number * 7_919 % (SIZE - 2_000), 1 + number * 31 % 2_000)).collect();
        let directory = TempDir::new().unwrap();
        let lines: String = ranges.iter().map(|(offset, length)| format!("{offset} {length}\n")).collect();
        std::fs::write(directory.path().join("ranges"), lines).unwrap();
        Baskets { ranges, directory }
    }

    fn list(&self) -> PathBuf {
        self.directory.path().join("ranges")
    }

    /// Returns the output that the example must print for these baskets.
    fn said(&self) -> String {
        let file = content();
        let bytes: Vec<u8> =
            self.ranges.iter().flat_map(|(offset, length)| &file[*offset..][..*length]).copied().collect();
        let step = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(1_099_511_628_211);
        let sum = bytes.iter().fold(14_695_981_039_346_656_037, step);
        format!("{} baskets, {} bytes, {sum:016x}\n", self.ranges.len(), bytes.len())
    }

    fn command(&self, place: &Place, build: Build) -> Command {
        let mut command = Command::new(program("examples/baskets.c", build));
        command.arg(&place.url).arg(self.list()).env("LD_LIBRARY_PATH", lib());
        command
    }

    fn refused(&self, url: &str) -> String {
        let place = Place { url: url.to_owned(), ..Place::default() };
        let Output { status, stdout, stderr } =
            self.command(&place, Build::AddressSanitizer).output().unwrap();
        let said = String::from_utf8(stderr).unwrap();
        assert_eq!(status.code(), Some(1), "{said}");
        assert!(stdout.is_empty() && !said.contains("Sanitizer"), "{said}");
        said
    }
}

#[test]
fn the_bytes_are_those_of_the_file_on_every_lane() {
    let baskets = Baskets::new();
    let cut = ResponseFaultScript::honest()
        .always(ResponseFault::WholeOverRanges(1))
        .on_requests(5..7, ResponseFault::ResetAt(500));
    for place in [at_a_server(ResponseFaultScript::honest()), at_a_server(cut), embedded()] {
        let mut command = baskets.command(&place, Build::AddressSanitizer);
        // The environment specifies the endpoint, as it does for a plug-in.
        assert_eq!(run(command.env("AWS_ENDPOINT_URL_S3", &place.endpoint)), baskets.said());
    }
}

#[test]
fn certificates_are_those_of_the_bundle() {
    let (baskets, certificate) = (Baskets::new(), Certificate::new());
    let place = gateway(Some(&certificate));
    let keys = |name: &str| place.environment.iter().find(|(said, _)| *said == name).unwrap().1.clone();
    let mut command = baskets.command(&place, Build::Plain);
    command.arg(certificate.bundle()).env("AWS_ENDPOINT_URL_S3", &place.endpoint);
    command.env("AWS_ACCESS_KEY_ID", keys("PROBE_ACCESS_KEY"));
    command.env("AWS_SECRET_ACCESS_KEY", keys("PROBE_SECRET_KEY"));
    assert_eq!(run(&mut command), baskets.said());
}

/// Batches in flight must be cancelled before their memory is freed. Otherwise, the sanitizer reports an error.
#[test]
fn what_goes_wrong_ends_it_with_a_sentence() {
    let baskets = Baskets::new();
    // Each of the eleven batches takes at least one request. Before the batches, the program sends a HEAD request,
    // reads the first bytes of the file, and makes the vectored read.
    for (lie, why) in [
        (ResponseFault::Version(7), "what was read before is of no use"),
        (ResponseFault::Status(403, None), "HTTP status 403"),
    ] {
        let script = ResponseFaultScript::honest().on_requests(10..usize::MAX, lie);
        let said = baskets.refused(&HostileServer::start(content(), script).url());
        let is_read = ["batch: ", "vector read: "].iter().any(|begin| said.starts_with(begin));
        assert!(is_read && said.contains(why), "{said}");
    }
    assert!(baskets.refused("/no/such/file").contains("/no/such/file"));
}
