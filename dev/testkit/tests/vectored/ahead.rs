//! Tests read-ahead: correct bytes in any order of reads, bounded memory, and few requests.

use std::io::{Read, Seek, SeekFrom};
use std::sync::Arc;
use std::time::Duration;

use fordway_http::vector::{AccessAdvice, ReadAheadSettings, RemoteReader};
use fordway_store::ErrorKind;
use fordway_testkit::hostile::{HostileServer, ResponseFault, ResponseFaultScript};
use proptest::prelude::*;

use crate::{SIZE, file, open};

fn reader(server: &HostileServer, max_bytes: u64) -> RemoteReader {
    RemoteReader::new(Arc::new(open(&server.url())), ReadAheadSettings { max_bytes })
}

/// A step of a program: reads, or advice about later reads.
#[derive(Clone, Debug)]
enum Step {
    /// `count` reads of `len` bytes each, `gap` bytes apart.
    Run {
        at: usize,
        len: usize,
        gap: usize,
        count: usize,
    },
    Sequential,
    Random,
    Normal,
    DontNeed,
    WillNeed(Vec<(u64, usize)>),
}

fn some_step() -> impl Strategy<Value = Step> {
    let gap = prop_oneof![Just(0_usize), 1_usize..100, 20_000_usize..60_000];
    let len = prop_oneof![1_usize..300, 4_000_usize..70_000];
    let run = (0..SIZE + 10, len, gap, 1_usize..12).prop_map(|(at, len, gap, count)| Step::Run {
        at,
        len,
        gap,
        count,
    });
    let ranges = prop::collection::vec((0..SIZE as u64 - 5_000, 0_usize..5_000), 0..8);
    prop_oneof![
        8 => run,
        1 => Just(Step::Sequential),
        1 => Just(Step::Random),
        1 => Just(Step::Normal),
        1 => Just(Step::DontNeed),
        2 => ranges.prop_map(Step::WillNeed),
    ]
}

/// Performs a step. Returns `false` after an error, which a hostile server may cause.
fn carry_out(reader: &mut RemoteReader, step: &Step, content: &[u8], max_bytes: u64) -> bool {
    match step {
        Step::Run { at, len, gap, count } => (0..*count).all(|n| {
            let at = at + n * (len + gap);
            let mut buffer = vec![0xa5; *len];
            let Ok(count) = reader.read_at(at as u64, &mut buffer) else { return false };
            let there = &content[at.min(SIZE)..(at + len).min(SIZE)];
            assert!(buffer[..count] == *there, "{len} bytes at {at}");
            assert!(reader.held_bytes() <= max_bytes, "{} of {max_bytes} bytes", reader.held_bytes());
            true
        }),
        Step::Sequential => reader.advise(AccessAdvice::Sequential).is_ok(),
        Step::Random => reader.advise(AccessAdvice::Random).is_ok(),
        Step::Normal => reader.advise(AccessAdvice::Normal).is_ok(),
        Step::DontNeed => reader.advise(AccessAdvice::DontNeed).is_ok(),
        Step::WillNeed(ranges) => reader.advise(AccessAdvice::WillNeed(ranges)).is_ok(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn any_order_of_reads_gives_the_files_bytes(
        steps in prop::collection::vec(some_step(), 1..12),
        max_bytes in prop_oneof![Just(0_u64), 1_u64..100_000, Just(1 << 20), Just(64 << 20)],
        lists in any::<bool>(),
    ) {
        let content = file();
        let script = if lists { ResponseFaultScript::honest() } else { ResponseFaultScript::honest().always(ResponseFault::WholeOverRanges(1)) };
        let server = HostileServer::start(content.clone(), script);
        let mut reader = reader(&server, max_bytes);
        for step in &steps {
            prop_assert!(carry_out(&mut reader, step, &content, max_bytes), "{step:?}");
        }
    }

    #[test]
    fn a_server_that_lies_gives_the_files_bytes_or_an_error(
        steps in prop::collection::vec(some_step(), 1..8),
        from in 1_usize..6,
        lie in prop_oneof![
            (0_usize..60_000).prop_map(ResponseFault::ResetAt),
            (0_usize..60_000).prop_map(ResponseFault::CloseAt),
            Just(ResponseFault::ClosesAfter),
            Just(ResponseFault::DropsPipelined),
            Just(ResponseFault::WholeForRange),
            Just(ResponseFault::Version(3)),
            Just(ResponseFault::Status(503, Some(0))),
            Just(ResponseFault::Status(403, None)),
        ],
    ) {
        let content = file();
        let server = HostileServer::start(content.clone(), ResponseFaultScript::honest());
        let mut reader = reader(&server, 1 << 20);
        server.follow(ResponseFaultScript::honest().on_requests(from..from + 2, lie));
        for step in &steps {
            carry_out(&mut reader, step, &content, 1 << 20);
        }
    }
}

#[test]
fn a_file_is_read_from_end_to_end_on_one_connection_and_each_byte_once() {
    let content = file();
    let server = HostileServer::start(content.clone(), ResponseFaultScript::honest());
    let mut reader = reader(&server, 64 << 20);
    let (mut read, mut block) = (Vec::new(), vec![0; 10_000]);
    loop {
        match reader.read(&mut block).unwrap() {
            0 => break,
            count => read.extend_from_slice(&block[..count]),
        }
    }
    assert!(read == content);
    let traffic = reader.file().traffic();
    assert_eq!(traffic.connections, 1);
    assert!(traffic.requests <= 12, "{} requests for {SIZE} bytes", traffic.requests);
    assert_eq!(asked_bytes(&server), SIZE as u64);
}

/// Returns the total size of all requested ranges, in bytes.
fn asked_bytes(server: &HostileServer) -> u64 {
    let ranges = server.requests();
    let ranges = ranges.iter().filter_map(|request| request.header("range")?.strip_prefix("bytes="));
    let lists = ranges.flat_map(|list| list.split(','));
    lists
        .map(|range| {
            let (first, last) = range.split_once('-').unwrap();
            last.parse::<u64>().unwrap() + 1 - first.parse::<u64>().unwrap()
        })
        .sum()
}

#[test]
fn records_at_equal_distances_are_asked_for_without_what_lies_between() {
    let content = file();
    let server = HostileServer::start(content.clone(), ResponseFaultScript::honest());
    let mut reader = reader(&server, 64 << 20);
    let mut record = [0; 100];
    for at in (1_000..SIZE - 100).step_by(20_000) {
        reader.read_at(at as u64, &mut record).unwrap();
        assert!(record == content[at..at + 100]);
    }
    let reads = (1_000..SIZE - 100).step_by(20_000).count();
    let traffic = reader.file().traffic();
    assert!(traffic.requests < 8, "{} requests for {reads} reads", traffic.requests);
    assert_eq!(asked_bytes(&server), 100 * reads as u64);
}

#[test]
fn reads_without_an_order_ask_for_no_more_than_they_want() {
    let server = HostileServer::start(file(), ResponseFaultScript::honest());
    let mut reader = reader(&server, 64 << 20);
    let mut record = [0; 100];
    for at in [300_000, 5_000, 590_000, 120_000, 410_000] {
        assert_eq!(reader.read_at(at, &mut record).unwrap(), 100);
    }
    assert_eq!(asked_bytes(&server), 500);
    reader.advise(AccessAdvice::Random).unwrap();
    for at in [0, 100, 200] {
        reader.read_at(at, &mut record).unwrap();
    }
    assert_eq!(asked_bytes(&server), 800);
    reader.advise(AccessAdvice::Sequential).unwrap();
    reader.read_at(200_000, &mut record).unwrap();
    // The response to this read has arrived. Later requests may still be in progress.
    assert!(asked_bytes(&server) > 800 + 100);
}

#[test]
fn what_is_announced_comes_before_it_is_read() {
    let content = file();
    let server = HostileServer::start(content.clone(), ResponseFaultScript::honest());
    let mut reader = reader(&server, 64 << 20);
    reader.advise(AccessAdvice::WillNeed(&[(500_000, 50), (7, 60), (100_000, 70)])).unwrap();
    let mut buffer = [0; 50];
    for at in [100_010, 500_000, 12] {
        reader.read_at(at, &mut buffer).unwrap();
        assert!(buffer == content[at as usize..][..50]);
    }
    assert_eq!(reader.file().traffic().requests, 2, "HEAD and one list");
    let error = reader.advise(AccessAdvice::WillNeed(&[(SIZE as u64, 1)])).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidRange);
}

/// A seek to another position does not wait for read-ahead data that is no longer needed.
#[test]
fn a_jump_gives_up_what_is_on_its_way() {
    let content: Vec<u8> = (0..30_000_000_u32 / 4).flat_map(u32::to_le_bytes).collect();
    let server = HostileServer::start(content.clone(), ResponseFaultScript::honest());
    let mut reader = reader(&server, 64 << 20);
    let mut block = vec![0; 64 << 10];
    reader.advise(AccessAdvice::Sequential).unwrap();
    for at in (0..8_000_000).step_by(block.len()) {
        reader.read_at(at, &mut block).unwrap();
    }
    let before = reader.held_bytes();
    assert!(before > 3 << 20, "{before}");
    reader.advise(AccessAdvice::Normal).unwrap();
    reader.read_at(29_000_000, &mut block).unwrap();
    assert!(block == content[29_000_000..][..block.len()]);
    // The reader keeps only the memory for one request, and for bytes that it has already allowed the server to send.
    let after = reader.held_bytes();
    assert!(after < before && after < 4 << 20, "{after}");
    assert_eq!(reader.seek(SeekFrom::End(-4)).unwrap(), 29_999_996);
    assert_eq!(reader.read(&mut block).unwrap(), 4);
    assert!(reader.seek(SeekFrom::Current(-40_000_000)).is_err());
}

#[test]
fn what_is_given_up_ends_and_others_go_on() {
    let content = file();
    let server = HostileServer::start(content.clone(), ResponseFaultScript::honest());
    let opened = Arc::new(open(&server.url()));
    server.follow(ResponseFaultScript::honest().on_requests(1..2, ResponseFault::StallAt(1_000)));
    let stalled = opened.submit(&[(0, 100_000)], Vec::new()).unwrap();
    let good = opened.submit(&[(300_000, 1_000)], Vec::new()).unwrap();
    let waiter = std::thread::spawn({
        let opened = opened.clone();
        move || opened.wait(good).map(|ranges| ranges.bytes)
    });
    std::thread::sleep(Duration::from_millis(100));
    opened.cancel(stalled);
    assert!(waiter.join().unwrap().unwrap() == content[300_000..301_000]);

    server.follow(ResponseFaultScript::honest().always(ResponseFault::StallAt(1_000)));
    let stalled = opened.submit(&[(0, 100_000)], Vec::new()).unwrap();
    let waiter = std::thread::spawn({
        let opened = opened.clone();
        move || opened.wait(stalled).map(|_| ())
    });
    std::thread::sleep(Duration::from_millis(100));
    opened.cancel_all();
    assert_eq!(waiter.join().unwrap().unwrap_err().kind(), ErrorKind::InvalidArgument);
}
