//! Tests of files with replicas: even if replicas misbehave, a read must return the file's bytes or an error.

mod discovery;
mod faults;
mod schedules;
mod streams;

use std::cell::Cell;
use std::fs::File;
use std::sync::LazyLock;
use std::time::Duration;

use fordway_http::replicas::{ReplicaOptions, ReplicatedFile};
use fordway_http::vector::{Fragment, SessionOptions};
use fordway_http::{HttpVersion, Timeouts};
use fordway_store::Result;
use fordway_testkit::hostile::{HostileServer, ResponseFaultScript};
use fordway_wire::metalink::{FileHash, FileHashAlgorithm, MetalinkFile, MetalinkUrl, PieceHashes};

/// The sizes of the served files and of their pieces, in bytes.
const SIZE: usize = 3_000_000;
const PIECE: usize = 100_000;

/// The served file, in which no two pieces are alike, and its checksums. The checksums are computed only once, because
/// the computation is slow without compiler optimization.
static SERVED: LazyLock<ServedFile> = LazyLock::new(|| {
    let content: Vec<u8> =
        (0..SIZE as u32 / 4).flat_map(|word| word.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    let hex = content.chunks(PIECE).map(|piece| FileHash::of(FileHashAlgorithm::Sha256, piece).hex).collect();
    let pieces = PieceHashes { length_bytes: PIECE as u64, kind: FileHashAlgorithm::Sha256, hex };
    ServedFile { hash: FileHash::of(FileHashAlgorithm::Sha256, &content), pieces, content }
});

thread_local! {
    /// The HTTP version of the servers and clients in this thread, which runs one test.
    static VERSION: Cell<HttpVersion> = const { Cell::new(HttpVersion::Http1) };
}

struct ServedFile {
    content: Vec<u8>,
    hash: FileHash,
    pieces: PieceHashes,
}

fn content() -> Vec<u8> {
    SERVED.content.clone()
}

/// Returns options with short timeouts, because the tests check what happens after a timeout.
fn options() -> ReplicaOptions {
    let wait = Duration::from_millis(1_500);
    let timeouts = Timeouts { connect: wait, first_byte: wait, progress: wait, idle: Duration::from_secs(5) };
    ReplicaOptions {
        session: SessionOptions { http: VERSION.get(), timeouts, ..SessionOptions::default() },
        stall: Duration::from_millis(300),
        detection: Duration::from_millis(300),
        rate_floor_bytes_per_s: 200_000.0,
        ..ReplicaOptions::default()
    }
}

fn server(script: ResponseFaultScript) -> HostileServer {
    match VERSION.get() {
        HttpVersion::Http1 => HostileServer::start(content(), script),
        _ => HostileServer::start_http2(content(), script),
    }
}

/// Returns a Metalink that describes the content and lists these servers, the best server first.
fn described(servers: &[&HostileServer]) -> MetalinkFile {
    let replicas = (1..).zip(servers).map(|(priority, server)| at(&server.url(), priority));
    MetalinkFile {
        name: "file".into(),
        size_bytes: Some(SIZE as u64),
        hashes: vec![SERVED.hash.clone()],
        pieces: Some(SERVED.pieces.clone()),
        replicas: replicas.collect(),
        ..MetalinkFile::default()
    }
}

fn at(url: &str, priority: u32) -> MetalinkUrl {
    MetalinkUrl { url: url.into(), priority, location: None }
}

fn open(described: &MetalinkFile) -> ReplicatedFile {
    ReplicatedFile::open(described, options()).unwrap()
}

/// Copies the whole file in order.
fn copied(file: &ReplicatedFile) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.copy_range(0..file.size_bytes(), &mut |chunk| {
        bytes.extend_from_slice(chunk);
        Ok(())
    })?;
    Ok(bytes)
}

/// Completes `part` with the bytes that it does not contain yet. Returns the number of reused bytes.
fn completed(file: &ReplicatedFile, part: &File) -> Result<u64> {
    file.complete(part, &mut |_| Ok(()))
}

fn read(file: &ReplicatedFile, ranges: &[(u64, usize)]) -> Result<Vec<Vec<u8>>> {
    let mut buffers: Vec<Vec<u8>> = ranges.iter().map(|(_, length)| vec![0xa5; *length]).collect();
    let buffers_of_ranges = ranges.iter().zip(&mut buffers);
    let mut fragments: Vec<_> =
        buffers_of_ranges.map(|((offset, _), buffer)| Fragment { offset: *offset, buffer }).collect();
    file.read_ranges(&mut fragments)?;
    Ok(buffers)
}

/// Returns ranges from all parts of the file. Some of the ranges overlap.
fn some_ranges() -> Vec<(u64, usize)> {
    let spread = (0..60).map(|n| (n * (SIZE as u64 / 60), 1_000));
    spread.chain([(5, 250_000), (200_000, 100_000), (SIZE as u64 - 7, 7), (9, 0)]).collect()
}

fn expected(ranges: &[(u64, usize)]) -> Vec<Vec<u8>> {
    let content = content();
    ranges.iter().map(|(offset, length)| content[*offset as usize..][..*length].to_vec()).collect()
}
