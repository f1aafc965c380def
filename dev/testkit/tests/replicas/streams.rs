//! Tests several concurrent streams, and files that are filled in any order.

use std::os::unix::fs::FileExt;

use fordway_http::replicas::ReplicatedFile;
use fordway_store::{Error, ErrorKind};
use fordway_testkit::hostile::{HostileServer, RecordedRequest, ResponseFault, ResponseFaultScript};
use fordway_wire::metalink::{FileHash, FileHashAlgorithm, MetalinkFile};

use crate::{PIECE, SIZE, completed, content, described, expected, options, read, server, some_ranges};

fn open(described: &MetalinkFile, streams: usize) -> ReplicatedFile {
    let mut options = options();
    options.streams = Some(streams);
    ReplicatedFile::open(described, options).unwrap()
}

fn whole(part: &std::fs::File) -> Vec<u8> {
    let mut bytes = vec![0; part.metadata().unwrap().len() as usize];
    part.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

/// The file is copied in six jobs, of which a stream first takes two.
#[test]
fn streams_share_the_work_and_are_no_more_than_asked_for() {
    let content = content().repeat(8);
    let slow = ResponseFaultScript::honest().always(ResponseFault::Slow(6_000_000));
    let servers = [0, 1, 2].map(|_| HostileServer::start(content.clone(), slow.clone()));
    let replicas = described(&servers.each_ref()).replicas;
    let size_bytes = Some(content.len() as u64);
    let file = open(&MetalinkFile { size_bytes, replicas, ..MetalinkFile::default() }, 3);
    let part = tempfile::tempfile().unwrap();
    completed(&file, &part).unwrap();
    assert!(whole(&part) == content);
    assert!(servers.iter().all(|server| server.connections() <= 2), "one for questions, one for content");
    let delivered = file.replicas().into_iter().map(|replica| replica.delivered_bytes).collect::<Vec<_>>();
    assert!(delivered.iter().all(|bytes| *bytes > 0), "{delivered:?}");
}

#[test]
fn streams_may_be_of_one_replica() {
    let one = server(ResponseFaultScript::honest());
    let file = open(&described(&[&one]), 4);
    let part = tempfile::tempfile().unwrap();
    completed(&file, &part).unwrap();
    assert!(whole(&part) == content());
    assert!(one.connections() <= 4, "{}", one.connections());
    assert!(read(&file, &some_ranges()).unwrap() == expected(&some_ranges()));
}

#[test]
fn a_corrupt_stream_among_good_ones_is_made_good() {
    let bad = server(ResponseFaultScript::honest().always(ResponseFault::FlippedAt(2_000_000)));
    let good = server(ResponseFaultScript::honest());
    for has_pieces in [true, false] {
        let mut described = described(&[&bad, &good]);
        described.pieces = described.pieces.filter(|_| has_pieces);
        let part = tempfile::tempfile().unwrap();
        completed(&open(&described, 2), &part).unwrap();
        assert!(whole(&part) == content(), "{has_pieces}");
    }
}

/// An interrupted copy is resumed, and the bytes that have already been received are not requested again. The file is
/// copied in three jobs.
#[test]
fn what_was_left_is_used() {
    let content = content().repeat(4);
    for has_pieces in [true, false] {
        let one = HostileServer::start(content.clone(), ResponseFaultScript::honest());
        let mut described = described(&[&one]);
        described.size_bytes = Some(content.len() as u64);
        described.hashes = vec![FileHash::of(FileHashAlgorithm::Sha256, &content)];
        described.pieces.iter_mut().for_each(|pieces| pieces.hex = vec![pieces.hex.clone(); 4].concat());
        described.pieces = described.pieces.filter(|_| has_pieces);
        let part = tempfile::tempfile().unwrap();
        let mut left = 5_000_000_i64;
        let ended = open(&described, 2).complete(&part, &mut |bytes| {
            left -= bytes as i64;
            if left > 0 { Ok(()) } else { Err(Error::from(ErrorKind::Interrupted)) }
        });
        assert_eq!(ended.unwrap_err().kind(), ErrorKind::Interrupted);
        let before = one.requests().len();
        let resumed = completed(&open(&described, 1), &part).unwrap();
        assert!(resumed >= 5_000_000 && whole(&part) == content, "{resumed}");
        let requested: u64 = one.requests()[before..].iter().map(requested_bytes).sum();
        let missing = content.len() as u64 - resumed;
        // On a busy machine, a late piece is requested twice.
        assert!((missing..=2 * missing).contains(&requested), "{has_pieces}: {resumed}, {requested}");
    }
}

/// Returns the number of bytes in the ranges of a request.
fn requested_bytes(request: &RecordedRequest) -> u64 {
    let ranges = request.header("range").and_then(|ranges| ranges.strip_prefix("bytes="));
    let ranges =
        ranges.into_iter().flat_map(|ranges| ranges.split(',')).filter_map(|range| range.split_once('-'));
    ranges.map(|(first, last)| last.parse::<u64>().unwrap() + 1 - first.trim().parse::<u64>().unwrap()).sum()
}

/// The piece digests detect that the partial file was changed between the two attempts.
#[test]
fn what_was_left_is_not_trusted() {
    let one = server(ResponseFaultScript::honest());
    let part = tempfile::tempfile().unwrap();
    let mut left = content();
    left[PIECE + 7] ^= 1;
    left.truncate(5 * PIECE + 3);
    part.write_all_at(&left, 0).unwrap();
    assert_eq!(completed(&open(&described(&[&one]), 1), &part).unwrap(), 4 * PIECE as u64);
    assert!(whole(&part) == content());
    // Without piece digests, the digest of the whole file detects the change.
    let part = tempfile::tempfile().unwrap();
    let mut left = content();
    left[7] ^= 1;
    part.write_all_at(&left[..2 << 20], 0).unwrap();
    let without = MetalinkFile { pieces: None, ..described(&[&one]) };
    assert_eq!(completed(&open(&without, 1), &part).unwrap(), 2 << 20);
    assert!(whole(&part) == content() && part.metadata().unwrap().len() == SIZE as u64);
}

#[test]
fn empty_files_are_files() {
    let empty = HostileServer::start([], ResponseFaultScript::honest());
    let replicas = vec![crate::at(&empty.url(), 1)];
    let described = MetalinkFile { size_bytes: Some(0), replicas, ..MetalinkFile::default() };
    let part = tempfile::tempfile().unwrap();
    assert_eq!(completed(&open(&described, 2), &part).unwrap(), 0);
    assert_eq!(part.metadata().unwrap().len(), 0);
}
