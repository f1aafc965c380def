//! Tests vectored reads over HTTP. For any ranges and any server, the result must be the file's bytes or an error.

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
use fordway_testkit::hostile::{HostileServer, ResponseFaultScript};
use proptest::prelude::*;

/// The size of the served files, in bytes.
const SIZE: usize = 600_000;

/// Returns a file in which no two pieces are equal.
fn file() -> Vec<u8> {
    (0..SIZE as u32 / 4).flat_map(|word| word.wrapping_mul(2_654_435_761).to_le_bytes()).collect()
}

/// Returns a session with short timeouts.
fn session(change: impl FnOnce(&mut SessionOptions)) -> Arc<HttpSession> {
    let wait = Duration::from_millis(1_500);
    let timeouts = Timeouts { connect: wait, first_byte: wait, progress: wait, idle: Duration::from_secs(5) };
    // These timeouts are long enough to distinguish a busy machine from a server that does not support pipelining.
    let mut options =
        SessionOptions { timeouts, max_retries: 2, patience: wait, ..SessionOptions::default() };
    change(&mut options);
    Arc::new(HttpSession::new(options))
}

/// Sets long timeouts, for servers without faults. A late response from such a server means only that the machine is
/// busy.
fn patient(options: &mut SessionOptions) {
    let wait = Duration::from_secs(30);
    options.timeouts = Timeouts { connect: wait, first_byte: wait, progress: wait, idle: wait };
}

fn open(url: &str) -> RemoteFile {
    RemoteFile::open(&session(|_| {}), url).unwrap()
}

/// The HTTP versions that are tested.
const VERSIONS: [HttpVersion; 2] = [HttpVersion::Http1, HttpVersion::Http2];

/// Starts a server for this version.
fn start(version: HttpVersion, content: Vec<u8>, script: ResponseFaultScript) -> HostileServer {
    match version {
        HttpVersion::Http1 => HostileServer::start(content, script),
        HttpVersion::Http2 => HostileServer::start_http2(content, script),
        HttpVersion::Http3 => panic!("the hostile server does not support HTTP/3"),
    }
}

/// Opens a file on a server of this version.
fn open_in(version: HttpVersion, url: &str) -> RemoteFile {
    RemoteFile::open(&session(|options| options.http = version), url).unwrap()
}

/// Reads ranges (offset, length) in a blocking call.
fn read(file: &RemoteFile, ranges: &[(u64, usize)]) -> Result<Vec<Vec<u8>>> {
    let mut buffers: Vec<Vec<u8>> = ranges.iter().map(|(_, length)| vec![0xa5; *length]).collect();
    let buffers_of_ranges = ranges.iter().zip(&mut buffers);
    let mut fragments: Vec<_> =
        buffers_of_ranges.map(|((offset, _), buffer)| Fragment { offset: *offset, buffer }).collect();
    file.read_ranges(&mut fragments)?;
    Ok(buffers)
}

/// Returns the bytes of `ranges` in `content`.
fn expected(content: &[u8], ranges: &[(u64, usize)]) -> Vec<Vec<u8>> {
    ranges.iter().map(|(offset, length)| content[*offset as usize..][..*length].to_vec()).collect()
}

/// Generates ranges of a file of [`SIZE`] bytes, in any order. They may be close or distant, overlap, contain each
/// other, be repeated, or be empty.
fn some_ranges(most: usize) -> impl Strategy<Value = Vec<(u64, usize)>> {
    let length = prop_oneof![0_usize..3, 1_usize..500, 1_usize..40_000];
    let fitting = |(start, length): (usize, usize)| (start as u64, length.min(SIZE - start));
    let anywhere = (0..SIZE, length.clone()).prop_map(fitting);
    let nearby = (0_usize..3_000, length).prop_map(fitting);
    prop::collection::vec(prop_oneof![anywhere, nearby], 0..most)
}

/// Returns `count` ranges of `length` bytes that are too far apart to be merged.
fn spread(count: usize, length: usize) -> Vec<(u64, usize)> {
    (0..count).map(|n| ((n * (SIZE / count)) as u64, length)).collect()
}
