//! Tests one session that many threads share, and several batches in flight.

use std::collections::VecDeque;
use std::sync::Arc;

use fordway_http::vector::{Fragment, RemoteFile};
use fordway_store::ErrorKind;
use fordway_testkit::hostile::{HostileServer, ResponseFault, ResponseFaultScript};

use crate::{SIZE, expected, file, open, patient, session, spread};

/// Reads random ranges in 64 threads through one session with 4 connections. Returns the file.
pub(crate) fn read_by_many_threads(url: &str, reads_each: usize) -> Arc<RemoteFile> {
    let shared = session(|options| {
        patient(options);
        options.connections_per_origin = 4;
    });
    let opened = Arc::new(RemoteFile::open(&shared, url).unwrap());
    read_in_many_threads(&opened, reads_each);
    opened
}

/// Reads random ranges in 64 threads.
pub(crate) fn read_in_many_threads(opened: &Arc<RemoteFile>, reads_each: usize) {
    let content = Arc::new(file());
    let reader = |thread: usize| {
        let (opened, content) = (opened.clone(), content.clone());
        move || {
            let mut random = thread as u64 + 1;
            let mut next = |below: usize| {
                random =
                    random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (random >> 33) as usize % below
            };
            for _ in 0..reads_each {
                let (offset, length) = (next(SIZE - 9_000), 1 + next(9_000));
                let mut buffer = vec![0; length];
                assert_eq!(opened.read_at(offset as u64, &mut buffer).unwrap(), length);
                assert!(buffer == content[offset..][..length]);
            }
        }
    };
    let threads: Vec<_> = (0..64).map(|thread| std::thread::spawn(reader(thread))).collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn threads_share_connections_up_to_the_cap() {
    let server = HostileServer::start(file(), ResponseFaultScript::honest());
    let opened = read_by_many_threads(&server.url(), 100);
    assert!(server.connections() <= 4, "{}", server.connections());
    assert_eq!(opened.traffic().requests, 6_401);
    assert_eq!(opened.traffic().connections as usize, server.connections());
}

#[test]
fn batches_are_under_way_together_and_fetched_in_any_order() {
    let content = file();
    let server = HostileServer::start(content.clone(), ResponseFaultScript::honest());
    let opened = open(&server.url());
    let ranges: Vec<Vec<_>> =
        (0..12_u64).map(|n| spread(50, 300).iter().map(|(at, len)| (at + n, *len)).collect()).collect();
    let mut tickets: VecDeque<_> =
        ranges.iter().map(|ranges| (ranges, opened.submit(ranges, vec![1; 50]).unwrap())).collect();
    for round in 0.. {
        let next = if round % 3 == 0 { tickets.pop_back() } else { tickets.pop_front() };
        let Some((ranges, ticket)) = next else { break };
        assert!(opened.wait(ticket).unwrap().bytes == expected(&content, ranges).concat());
    }
    assert_eq!((server.connections(), opened.traffic().connections), (1, 1));
}

#[test]
fn threads_wait_for_each_others_batches() {
    let content = Arc::new(file());
    let server = HostileServer::start(content.to_vec(), ResponseFaultScript::honest());
    let opened = Arc::new(open(&server.url()));
    let reader = |thread: u64| {
        let (opened, content) = (opened.clone(), content.clone());
        move || {
            for round in 0..50 {
                let ranges: Vec<_> =
                    spread(20, 200).iter().map(|(at, len)| (at + thread * 50 + round, *len)).collect();
                let ticket = opened.submit(&ranges, Vec::new()).unwrap();
                assert!(opened.wait(ticket).unwrap().bytes == expected(&content, &ranges).concat());
            }
        }
    };
    let threads: Vec<_> = (0..8).map(|thread| std::thread::spawn(reader(thread))).collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn a_batch_that_fails_takes_no_other_along() {
    let content = file();
    let server = HostileServer::start(content.clone(), ResponseFaultScript::honest());
    let opened = open(&server.url());
    server.follow(ResponseFaultScript::honest().on_requests(1..2, ResponseFault::Status(403, None)));
    let tickets: Vec<_> = (0..3).map(|n| opened.submit(&[(n * 9, 9)], Vec::new()).unwrap()).collect();
    let kinds: Vec<_> = tickets
        .into_iter()
        .map(|ticket| opened.wait(ticket).map_err(|error| error.kind()).map(|r| r.bytes))
        .collect();
    assert_eq!(
        kinds,
        [Err(ErrorKind::AccessDenied), Ok(content[9..18].to_vec()), Ok(content[18..27].to_vec())]
    );
}

#[test]
fn what_lies_behind_the_end_is_refused_before_anything_is_read() {
    let server = HostileServer::start(file(), ResponseFaultScript::honest());
    let opened = open(&server.url());
    let size = SIZE as u64;
    for (offset, length) in [(size, 1), (size - 1, 2), (u64::MAX, 1), (u64::MAX, 0)] {
        let error = crate::read(&opened, &[(0, 1), (offset, length)]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidRange, "{offset} {length}");
        assert!(opened.submit(&[(offset, length)], Vec::new()).is_err());
    }
    assert_eq!(crate::read(&opened, &[(size, 0)]).unwrap(), [b""]);
    let mut buffer = [0; 10];
    assert_eq!(opened.read_at(size - 3, &mut buffer).unwrap(), 3);
    assert_eq!(buffer[..3], file()[SIZE - 3..]);
    assert_eq!(opened.read_at(size + 3, &mut buffer).unwrap(), 0);
    assert_eq!(server.requests().len(), 2);
    let mut twice = [[0; 4], [0; 4]];
    let [first, second] = &mut twice;
    opened
        .read_ranges(&mut [Fragment { offset: 7, buffer: first }, Fragment { offset: 7, buffer: second }])
        .unwrap();
    assert!(twice[0] == twice[1] && twice[0] == file()[7..11]);
}
