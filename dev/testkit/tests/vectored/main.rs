//! Vectored reads over HTTP: whatever is asked, of whatever server, the bytes are the file's or there
//! is an error.

mod ahead;
mod credentials;
mod deadlines;
mod downloads;
mod expired;
mod first;
mod hostile;
mod ladder;
mod proxies;
mod redirects;
mod servers;
mod shared;
mod socks;
mod streams;

use std::sync::Arc;
use std::time::Duration;

use fordway_http::vector::{Fragment, HttpSession, RemoteFile, SessionOptions};
use fordway_http::{HttpVersion, Timeouts};
use fordway_store::Result;
use fordway_testkit::hostile::{HostileServer, LieScript};
use proptest::prelude::*;

/// Bytes of the files that are served.
const SIZE: usize = 600_000;

/// A file in which no two pieces are alike.
fn file() -> Vec<u8> {
    (0..SIZE as u32 / 4).flat_map(|word| word.wrapping_mul(2_654_435_761).to_le_bytes()).collect()
}

/// A session that gives up soon.
fn session(change: impl FnOnce(&mut SessionOptions)) -> Arc<HttpSession> {
    let wait = Duration::from_millis(1_500);
    let timeouts = Timeouts { connect: wait, first_byte: wait, progress: wait, idle: Duration::from_secs(5) };
    // A machine that is busy must not be taken for a server that pipelines nothing.
    let mut options =
        SessionOptions { timeouts, max_retries: 2, patience: wait, ..SessionOptions::default() };
    change(&mut options);
    Arc::new(HttpSession::new(options))
}

/// For servers that do not lie: what is late comes from a busy machine.
fn patient(options: &mut SessionOptions) {
    let wait = Duration::from_secs(30);
    options.timeouts = Timeouts { connect: wait, first_byte: wait, progress: wait, idle: wait };
}

fn open(url: &str) -> RemoteFile {
    RemoteFile::open(&session(|_| {}), url).unwrap()
}

/// What a server may speak with us.
const VERSIONS: [HttpVersion; 2] = [HttpVersion::Http1, HttpVersion::Http2];

/// A server that speaks it.
fn start(version: HttpVersion, content: Vec<u8>, script: LieScript) -> HostileServer {
    match version {
        HttpVersion::Http1 => HostileServer::start(content, script),
        HttpVersion::Http2 => HostileServer::start_http2(content, script),
    }
}

/// A file at such a server.
fn open_in(version: HttpVersion, url: &str) -> RemoteFile {
    RemoteFile::open(&session(|options| options.http = version), url).unwrap()
}

/// Reads ranges (offset, length) in a call that waits.
fn read(file: &RemoteFile, ranges: &[(u64, usize)]) -> Result<Vec<Vec<u8>>> {
    let mut buffers: Vec<Vec<u8>> = ranges.iter().map(|(_, length)| vec![0xa5; *length]).collect();
    let buffers_of_ranges = ranges.iter().zip(&mut buffers);
    let mut fragments: Vec<_> =
        buffers_of_ranges.map(|((offset, _), buffer)| Fragment { offset: *offset, buffer }).collect();
    file.read_ranges(&mut fragments)?;
    Ok(buffers)
}

/// What `ranges` have in `content`.
fn expected(content: &[u8], ranges: &[(u64, usize)]) -> Vec<Vec<u8>> {
    ranges.iter().map(|(offset, length)| content[*offset as usize..][..*length].to_vec()).collect()
}

/// Ranges of a file of [`SIZE`] bytes: near and far, overlapping, contained, twice, empty, in any order.
fn some_ranges(most: usize) -> impl Strategy<Value = Vec<(u64, usize)>> {
    let length = prop_oneof![0_usize..3, 1_usize..500, 1_usize..40_000];
    let fitting = |(start, length): (usize, usize)| (start as u64, length.min(SIZE - start));
    let anywhere = (0..SIZE, length.clone()).prop_map(fitting);
    let nearby = (0_usize..3_000, length).prop_map(fitting);
    prop::collection::vec(prop_oneof![anywhere, nearby], 0..most)
}

/// Ranges that nothing merges: `count` of `length` bytes, far from each other.
fn spread(count: usize, length: usize) -> Vec<(u64, usize)> {
    (0..count).map(|n| ((n * (SIZE / count)) as u64, length)).collect()
}
