//! Tests of the board's decisions, with a simulated clock.

use super::{TRIAL, *};

const PATIENCE: StallPolicy =
    StallPolicy { stall: Duration::from_secs(1), detection: Duration::from_secs(2), floor_bytes_per_s: 1e6 };
const MIB: usize = 1 << 20;

/// Creates a board with `sites` replicas at hosts that only this test uses, and jobs of 1 MiB.
fn board(test: &str, sites: usize, jobs: u64) -> (RangeJobScheduler, Vec<RangeJobId>) {
    let site = |index| {
        let url = format!("http://{test}-{index}/f");
        ReplicaSite::new(&url, &url, index as u32 + 1, false)
    };
    let mut board = RangeJobScheduler::new((0..sites).map(site).collect(), PATIENCE);
    let job = |at: u64| board.add(Arc::from([(at << 20, MIB)]));
    let jobs = (0..jobs).map(job).collect();
    (board, jobs)
}

/// Simulates a stream that receives `rate` bytes per second for `time`, in steps of 50 ms. Returns the time at the end.
fn bring(
    board: &mut RangeJobScheduler,
    id: ReplicaStreamId,
    rate: u64,
    from: Instant,
    time: Duration,
) -> Instant {
    let step = Duration::from_millis(50);
    let mut now = from;
    while now < from + time {
        now += step;
        board.progress(id, step, rate / 20, now);
    }
    now
}

fn failure(kind: ErrorKind) -> Error {
    Error::new(kind, "as told")
}

#[test]
fn jobs_are_handed_out_in_order_and_come_back() {
    let now = Instant::now();
    let (mut board, jobs) = board("order", 1, 3);
    let stream = board.start(None, now);
    assert_eq!(board.choose(stream, now), ReplicaChoice::Replica(0));
    assert_eq!(board.claim(stream, now).unwrap().0, jobs[0]);
    assert_eq!(board.claim(stream, now).unwrap().0, jobs[1]);
    board.give_back(stream, jobs[0], None, now);
    board.complete(stream, jobs[1], vec![1], now);
    assert!(board.is_over(jobs[1]) && !board.is_over(jobs[0]));
    assert_eq!(board.claim(stream, now).unwrap().0, jobs[0]);
    board.release(jobs[2]);
    assert!(board.claim(stream, now).is_none());
}

/// The removal of a later job does not shorten the time that the first job has waited.
#[test]
fn the_first_job_waits_from_the_time_when_it_became_first() {
    let start = Instant::now();
    let (mut board, jobs) = board("front", 1, 3);
    let stream = board.start(None, start);
    board.choose(stream, start);
    while board.claim(stream, start).is_some() {}
    let second = |count| start + Duration::from_secs(count);
    board.complete(stream, jobs[1], vec![1], second(1));
    assert_eq!(board.streams[&stream].front_since, start);
    board.give_back(stream, jobs[0], None, second(2));
    assert_eq!(board.streams[&stream].front_since, second(2), "the third job is now the first");
    board.complete(stream, jobs[2], vec![1], second(3));
    assert_eq!(board.claim_ahead(stream, 0, second(4)).unwrap().0, jobs[0]);
    assert_eq!(board.streams[&stream].front_since, second(4));
}

#[test]
fn streams_go_to_replicas_that_fewest_read_from() {
    let now = Instant::now();
    let (mut board, _) = board("fewest", 2, 9);
    let streams = [0; 3].map(|_| board.start(None, now));
    let chosen = streams.map(|stream| board.choose(stream, now));
    assert_eq!(chosen, [ReplicaChoice::Replica(0), ReplicaChoice::Replica(1), ReplicaChoice::Replica(0)]);
    board.failed(0, &failure(ErrorKind::NoSuchKey), false, now);
    assert_eq!(board.choose(streams[0], now), ReplicaChoice::Replica(1));
}

#[test]
fn passing_failures_are_tried_again_and_then_told() {
    let mut now = Instant::now();
    let (mut board, jobs) = board("passing", 1, 1);
    let stream = board.start(None, now);
    for _ in 0..STRIKES_MAX {
        assert_eq!(board.choose(stream, now), ReplicaChoice::Replica(0));
        board.failed(0, &failure(ErrorKind::Unavailable), false, now);
        now += Duration::from_secs(9);
    }
    assert_eq!(board.choose(stream, now), ReplicaChoice::End);
    board.ended(stream, now);
    let told = board.jobs[&jobs[0]].outcome.clone().unwrap().unwrap_err();
    assert_eq!((told.kind, told.detail.contains("as told")), (ErrorKind::Unavailable, true));
    // A repeated call retries the replica.
    let stream = board.start(None, now);
    assert_eq!(board.choose(stream, now), ReplicaChoice::Replica(0));
}

#[test]
fn a_crawling_replica_is_compared_and_left() {
    let start = Instant::now();
    let (mut board, _) = board("crawl", 2, 40);
    let slow = board.start(None, start);
    board.choose(slow, start);
    while board.claim(slow, start).is_some() {}
    let now = bring(&mut board, slow, 200_000, start, Duration::from_millis(1_900));
    assert_eq!(board.supervise(now), None);
    let now = bring(&mut board, slow, 200_000, now, Duration::from_millis(200));
    assert_eq!(board.supervise(now), Some(slow));
    let hedge = board.start(Some(slow), now);
    assert_eq!(board.choose(hedge, now), ReplicaChoice::Replica(1));
    assert_eq!(board.supervise(now), None, "one is enough");
    board.claim(hedge, now).unwrap();
    let now = bring(&mut board, hedge, 9_000_000, now, Duration::from_millis(250));
    board.supervise(now);
    assert!(board.streams[&slow].is_leaving && !board.streams[&hedge].is_leaving);
    assert_eq!(board.regular_streams(), 1);
}

#[test]
fn a_hedge_that_is_no_better_leaves() {
    let start = Instant::now();
    let (mut board, _) = board("no-better", 2, 40);
    let slow = board.start(None, start);
    board.choose(slow, start);
    board.claim(slow, start).unwrap();
    let now = bring(&mut board, slow, 500_000, start, Duration::from_millis(2_100));
    assert_eq!(board.supervise(now), Some(slow));
    let hedge = board.start(Some(slow), now);
    board.choose(hedge, now);
    board.claim(hedge, now).unwrap();
    let later = bring(&mut board, hedge, 400_000, now, TRIAL);
    bring(&mut board, slow, 500_000, now, TRIAL);
    assert_eq!(board.supervise(later), None);
    assert!(board.streams[&hedge].is_leaving && !board.streams[&slow].is_leaving);
    board.ended(hedge, later);
    assert_eq!(board.supervise(later), None, "the stream is not compared again for a while");
}

#[test]
fn a_silent_replica_is_hedged_and_its_work_raced() {
    let start = Instant::now();
    let (mut board, jobs) = board("silent", 2, 1);
    let silent = board.start(None, start);
    board.choose(silent, start);
    board.claim(silent, start).unwrap();
    assert_eq!(board.supervise(start + PATIENCE.stall / 2), None);
    let now = start + PATIENCE.stall;
    assert_eq!(board.supervise(now), Some(silent));
    let hedge = board.start(Some(silent), now);
    board.choose(hedge, now);
    assert_eq!(board.claim(hedge, now).unwrap().0, jobs[0]);
    board.complete(hedge, jobs[0], vec![7], now);
    assert!(board.is_over(jobs[0]));
    assert_eq!(board.jobs[&jobs[0]].outcome.as_ref().unwrap().as_deref().unwrap(), &vec![7]);
}

#[test]
fn a_healthy_replica_is_left_alone() {
    let start = Instant::now();
    let (mut board, _) = board("healthy", 3, 40);
    let stream = board.start(None, start);
    board.choose(stream, start);
    board.claim(stream, start).unwrap();
    let now = bring(&mut board, stream, 50_000_000, start, Duration::from_secs(20));
    assert_eq!(board.supervise(now), None);
    board.idle(stream);
    assert_eq!(board.supervise(now + Duration::from_secs(60)), None);
}
